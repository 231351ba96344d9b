"""What runs in the processes that `shardlab.cluster.processes` starts: each function gets the
process index first.
"""

import ast
import contextlib
import faulthandler
import linecache
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
from difflib import SequenceMatcher
from pathlib import Path

PORTS = range(15000, 32000)  # from which a group takes its own

_me = {}


def hello(_):
    """The position of this engine: by its rank, if a launcher gave it one, else by host and process
    id.
    """
    ranks = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    rank = next((int(os.environ[name]) for name in ranks if name in os.environ), 0)
    return {"value": (rank, socket.gethostname(), os.getpid())}


def prepare(process, folder, watch, settings):
    """Send what this process writes to files of its own, and make the settings that must come
    before JAX starts.
    """
    Path(folder).mkdir(exist_ok=True)
    _me.update(folder=Path(folder), process=process)
    # Output of C++ code is of use only if this process dies.
    log = os.open(_me["folder"] / f"{process}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    _me["where"] = open(_me["folder"] / f"{process}.where", "w")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, file=_me["where"], all_threads=True)
    if watch:
        threading.Thread(target=_watch, args=(*watch, folder), daemon=True).start()
    os.environ["JAX_ENABLE_PREEMPTION_SERVICE"] = "true" if settings["preemption"] else "false"
    # plt.show() gives a picture
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ.update(settings["environment"])
    import jax

    from shardlab.arrays.devices import configure

    # JAX 0.7 has no such setting, and always listens
    if hasattr(jax.config, "jax_enable_preemption_service"):
        jax.config.update("jax_enable_preemption_service", settings["preemption"])
    if settings["devices"] is not None:
        configure(settings["devices"])
    # What Python prints goes to another file, also between cells, when threads print.
    _me["text"] = sys.stdout = sys.stderr = open(  # noqa: SIM115
        _me["folder"] / f"{process}.text", "w", buffering=1
    )
    return {"value": None}


def descendants(pids):
    """The processes that these started, directly or not: their children, and all that share their
    sessions.

    A child whose parent has ended is still in the session. The processes themselves are not among
    them.
    """
    import psutil

    children = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            children |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) in pids:
                children.add(pid)
    return sorted(children - set(pids))


def end(pids):
    """Kill processes; those that have ended already do no harm."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _watch(parent, controller, folder):
    """If the notebook that started this process has ended, end it, its children and the controller;
    leave no file.
    """
    while os.getppid() == parent:
        time.sleep(0.5)
    with contextlib.suppress(OSError):
        os.killpg(controller, signal.SIGKILL)
    end(descendants([os.getpid()]))
    shutil.rmtree(folder, ignore_errors=True)
    end([os.getpid()])


def coordinator_address(_, host):
    """An address on this host, with a port that is free now."""
    return {"value": f"{host}:{free_ports(1)[0]}"}


def free_ports(count):
    """Port numbers in a row on this host that are free now.

    They are none of those that systems give to outgoing connections (from 32768 on Linux, 49152
    elsewhere): such a port could be taken between now and its use by any program that connects to
    another.
    """
    rows = range(PORTS.start, PORTS.stop - count + 1, count)
    for first in random.sample(rows, len(rows)):
        ports = range(first, first + count)
        if all(map(_is_free, ports)):
            return list(ports)
    raise OSError(f"no {count} ports in a row are free from {PORTS.start} to {PORTS.stop - 1}")


def _is_free(port):
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("", port))
        return True
    return False


def join(process, coordinator, n, options, sigterm_seconds, places):
    """Connect to the other processes; JAX then sees the devices of all of them.

    `places` has the index of each process on its host, for the GPU of that number; None leaves all
    of them to it. JAX does not ask Slurm: in a step of one task every process would get the first
    GPU.
    """
    import jax

    from shardlab.cluster.join import end_after_sigterm, on_this_host

    own = {"local_device_ids": places[process]} if places else {}
    own |= on_this_host(coordinator) | {"cluster_detection_method": "deactivate"}
    jax.distributed.initialize(coordinator, n, process, **own | options)
    end_after_sigterm(sigterm_seconds)
    return {"value": len(jax.devices())}


def value(_, expression):
    """The value of an expression, with the names of the cells that ran here."""
    from IPython import get_ipython

    shell = get_ipython()
    try:
        return {"value": eval(expression, shell.user_ns)}
    except NameError as error:
        hidden = shell.user_ns_hidden
        names = [name for name in shell.user_ns if not name.startswith("_") and name not in hidden]
        wrong = str(error.name)
        names.sort(
            key=lambda name: (-SequenceMatcher(None, name.lower(), wrong.lower()).ratio(), name)
        )
        there = (
            f"there are {', '.join(names[:5])}{', ...' * (len(names) > 5)}"
            if names
            else "no cell has made any"
        )
        return {"value": None, "error": f"NameError: there is no name {wrong!r}; {there}"}


def run(_, code):
    """Run a cell, and return how it ended, and what was printed since the cell before ended."""
    from IPython import get_ipython
    from IPython.utils.capture import capture_output

    shell, begin, result, text = get_ipython(), time.monotonic(), {}, _me["text"]
    quiet = contextlib.redirect_stdout(text), contextlib.redirect_stderr(text)
    with capture_output(stdout=False, stderr=False) as shown, quiet[0], quiet[1]:
        try:
            _execute(code, shell.user_ns)
        except BaseException as error:
            result = {"error": _error_text(error), "line": _line(error)}
    text.flush()
    pictures = []
    for output in shown.outputs:
        if set(output.data) == {"text/plain"}:
            print(output.data["text/plain"], file=text)
        else:
            pictures.append(output.data)
    text.flush()
    with open(text.name, "rb") as file:
        file.seek(_me.get("told", 0))
        printed = file.read()
        _me["told"] = file.tell()
    return {
        "text": printed.decode(errors="replace"),
        "told": _me["told"],
        "pictures": pictures,
        "seconds": time.monotonic() - begin,
        **result,
    }


def _execute(code, names):
    from IPython.display import display

    linecache.cache["<cell>"] = len(code), None, code.splitlines(keepends=True), "<cell>"
    body = ast.parse(code, "<cell>").body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
    if (
        last
        and (value := eval(compile(ast.Expression(last.value), "<cell>", "eval"), names))
        is not None
    ):
        display(value)


def _error_text(error):
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _line(error):
    """The line of the cell from which an exception came: the last one in its traceback."""
    line, trace = (
        getattr(error, "lineno", 0) if isinstance(error, SyntaxError) else 0,
        error.__traceback__,
    )
    while trace:
        if trace.tb_frame.f_code.co_filename == "<cell>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line or 0
