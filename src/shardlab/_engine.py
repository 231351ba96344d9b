"""What runs in the processes that `shardlab.processes` starts: each function gets the process index first."""

import ast
import contextlib
import faulthandler
import linecache
import os
import signal
import socket
import threading
import time
from pathlib import Path

_me = {}


def hello(_):
    """The position of this engine: by its rank, if a launcher gave it one, else by host and process id."""
    ranks = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    rank = next((int(os.environ[name]) for name in ranks if name in os.environ), 0)
    return {"value": (rank, socket.gethostname(), os.getpid())}


def prepare(process, folder, watch, settings):
    """Send what this process writes to files of its own, and make the settings that must come before JAX starts."""
    Path(folder).mkdir(exist_ok=True)
    _me.update(folder=Path(folder), process=process)
    # Output of C++ code is of use only if this process dies.
    log = os.open(_me["folder"] / f"{process}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    _me["where"] = open(_me["folder"] / f"{process}.where", "w")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, file=_me["where"], all_threads=True)
    if watch:
        threading.Thread(target=_watch, args=watch, daemon=True).start()
    os.environ["JAX_ENABLE_PREEMPTION_SERVICE"] = "true" if settings["preemption"] else "false"
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # plt.show() gives a picture
    os.environ.update(settings["environment"])
    import jax

    from shardlab.devices import configure

    if hasattr(jax.config, "jax_enable_preemption_service"):  # JAX 0.7 has no such setting, and always listens
        jax.config.update("jax_enable_preemption_service", settings["preemption"])
    if settings["devices"] is not None:
        configure(settings["devices"])
    return {"value": None}


def _watch(parent, controller):
    """End this process, and the controller, if the notebook that started both has ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    with contextlib.suppress(OSError):
        os.killpg(controller, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def coordinator_address(_, host):
    """An address on this host, with a port that is free now."""
    with socket.socket() as free:
        free.bind(("", 0))
        return {"value": f"{host}:{free.getsockname()[1]}"}


def join(process, coordinator, n, options):
    """Connect to the other processes; JAX then sees the devices of all of them."""
    import jax

    jax.distributed.initialize(coordinator, n, process, **options)
    return {"value": len(jax.devices())}


def value(_, expression):
    """The value of an expression, with the names of the cells that ran here."""
    from IPython import get_ipython

    return {"value": eval(expression, get_ipython().user_ns)}


def run(_, code):
    """Run a cell, and return its output and how it ended."""
    from IPython import get_ipython
    from IPython.utils.capture import capture_output

    shell, begin, result = get_ipython(), time.monotonic(), {}
    file = _me["folder"] / f"{_me['process']}.text"
    # The file of the last cell stays open: a thread may still be writing.
    text = open(file, "w", buffering=1)  # noqa: SIM115
    _me["texts"] = [*_me.get("texts", ())[-1:], text]
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
    return {"text": file.read_text(), "pictures": pictures, "seconds": time.monotonic() - begin, **result}


def _execute(code, names):
    from IPython.display import display

    linecache.cache["<cell>"] = len(code), None, code.splitlines(keepends=True), "<cell>"
    body = ast.parse(code, "<cell>").body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
    if last and (value := eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)) is not None:
        display(value)


def _error_text(error):
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _line(error):
    """The line of the cell from which an exception came: the last one in its traceback."""
    line, trace = getattr(error, "lineno", 0) if isinstance(error, SyntaxError) else 0, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "<cell>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line or 0
