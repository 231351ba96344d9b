"""Join the processes of a job into one JAX program, whichever launcher started them, and resume
it.
"""

import atexit
import errno
import faulthandler
import hashlib
import inspect
import ipaddress
import itertools
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from signal import SIG_BLOCK, SIG_UNBLOCK

import jax

_folders, _restores = itertools.count(), itertools.count()


def _shown(name):
    """A name in one line."""
    return str(name) if str(name).isprintable() else repr(str(name))


def on_this_host(coordinator):
    """Where the coordinator listens, for jax.distributed.initialize: not to other hosts, if its
    address is this one's.

    It has no authentication, and by default listens on all interfaces.
    """
    host, _, port = coordinator.rpartition(":")
    host = host.strip("[]")
    if host.lower() == "localhost":
        host = "127.0.0.1"
    if host.lower() == socket.gethostname().lower():
        with suppress(OSError):
            found = {entry[4][0] for entry in socket.getaddrinfo(host, int(port))}
            host = found.pop() if len(found) == 1 else host
    try:
        own = ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which other hosts may need to reach
        own = False
    bind = f"[{host}]" if ":" in host else host
    return {"coordinator_bind_address": f"{bind}:{port}"} if own else {}


def port_of_this_step():
    """The coordinator's address for a later step of a Slurm job, for jax.distributed.initialize.

    JAX takes the port from the job's number alone, so a second step would join the first one's
    coordinator and end its processes.
    """
    own = "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT"
    nodes = os.environ.get("SLURM_STEP_NODELIST")
    if not nodes or any(os.environ.get(name) for name in own):
        return {}
    step = _of_slurm("SLURM_STEP_ID") if os.environ.get("SLURM_STEP_ID") else 0
    if step == 0:
        return {}
    # 1021, a prime, so that the next step and the next job do not have the same port
    port = 61440 + (_of_slurm("SLURM_JOB_ID") + 1021 * step) % 4096
    return {"coordinator_address": f"{_first_node(nodes)}:{port}"}


def _first_node(nodes):
    """Such as node1 of "node1,node3", or node001 of "node[001-004,007]"."""
    return "".join(re.match(r"([^,\[]+)(?:\[(\d+))?", nodes).groups(""))


def coordinator_of(options):
    """The address "host:port" at which all will look for process 0, of what
    jax.distributed.initialize is given and of Slurm's variables; "" if only the launcher knows it.
    """
    named = options.get("coordinator_address") or os.environ.get("JAX_COORDINATOR_ADDRESS")
    nodes, job = (os.environ.get(f"SLURM_{name}") for name in ("STEP_NODELIST", "JOB_ID"))
    if named or not nodes or not job or options.get("cluster_detection_method"):
        return named or ""
    # as JAX does
    return f"{_first_node(nodes)}:{61440 + _of_slurm('SLURM_JOB_ID') % 4096}"


def _whole(name, least, most, what):
    """The whole number in a variable of the environment; ends this process if there is none."""
    text = os.environ.get(name, "")
    if re.fullmatch("[0-9]{1,10}", text) and least <= int(text) <= most:
        return int(text)
    given = f"{name}={_shown(text)}" if name in os.environ else f"{name} is not set"
    raise SystemExit(f"{given}: export {name}={what}, a whole number from {least} to {most}")


def _of_slurm(name):
    """A number that Slurm has set; ends this process if it is none."""
    return _whole(name, 0, 2**32, "what srun sets for a task")


def _parts(name, address):
    """The host and the port of an address; ends this process if it is none."""
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):([0-9]{1,5})", address)
    if not found or not 0 < int(found[2]) < 65536 or found[1] in ("0.0.0.0", "[::]"):
        raise SystemExit(
            f"{name}={_shown(address)} is no address of process 0: export "
            f"{name}=host:port, such as node1:8476"
        )
    return found[1].strip("[]"), int(found[2])


def check_first():
    """End this process if it has joined before: its own coordinator would be what has the port."""
    state = _state()
    if state is not None and state.client is not None:
        raise SystemExit(
            "this process has joined before: call join once, and not jax.distributed.initialize"
        )


def check_coordinator(address, first):
    """End this process if the coordinator's address cannot be right: JAX would wait 300 seconds,
    and process 0 (`first`) would crash if its port is taken.
    """
    name = "COORDINATOR" if "COORDINATOR" in os.environ else "JAX_COORDINATOR_ADDRESS"
    host, port = _parts(name, address)
    here, cure = socket.gethostname(), "name process 0's host, JAX_COORDINATOR_ADDRESS=name:port"
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", "no name of a host")
        raise SystemExit(
            f"{here} cannot resolve {_shown(host)}, the coordinator's name ({why}): {cure}"
        ) from error
    if not first:
        return
    bind = on_this_host(address).get("coordinator_bind_address", f":{port}").rpartition(":")[0]
    try:
        server = socket.create_server((bind.strip("[]"), port), family=_family(bind))
    except OSError as error:
        raise SystemExit(
            f"port {port} of {here}, the coordinator's, is already in use: choose a free one, "
            "JAX_COORDINATOR_ADDRESS=name:port (PORT=... for ssh.sh), or end the program there"
        ) from error
    with server:
        if not _reaches(server, host, port):
            raise SystemExit(
                f"the coordinator's address {address} is not on {here}, where process "
                f"0 runs: {cure}"
            )


def _family(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _reaches(server, host, port):
    """Whether what is sent to an address arrives at this server."""
    word, end = os.urandom(16), time.monotonic() + 5
    with suppress(OSError), socket.create_connection((host, port), 5) as sender:
        sender.sendall(word)
        server.settimeout(5)
        while time.monotonic() < end:
            accepted, _ = server.accept()
            with accepted, suppress(OSError):  # others may be early, and silent
                accepted.settimeout(1)
                if accepted.recv(len(word)) == word:
                    return True
    return False


def _state():
    """What jax.distributed.initialize has set up, to which no public name leads: process_id, and a
    client of the coordinator. None in a JAX that keeps it elsewhere.
    """
    with suppress(ImportError, AttributeError):
        from jax._src import distributed

        state = distributed.global_state
        if hasattr(state, "client") and hasattr(state, "process_id"):
            return state
    return None


def _number():
    """The process index. No device is asked: one may be what is missing."""
    state = _state()
    return jax.process_index() if state is None else state.process_id


def _who():
    return f"process {_number()} on {socket.gethostname()}"


def leave_at_once(kind, error, traceback):
    """End this process with its error, so that the launcher sees at once that it failed.

    At a normal exit JAX waits until the other processes end too, which by default takes up to 300
    seconds.
    """
    sys.__excepthook__(kind, error, traceback)
    _leave(1)


def _leave(status):
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, as by `| head`, or no file at all
            stream.flush()
    if _number() == 0:  # its end is the end of all, who may have an error to print
        time.sleep(1)
    os._exit(status)


def _is_joined():
    """False if jax.distributed.shutdown was called, where all processes came to an end."""
    state = _state()
    return state is None or state.client is not None


def leave_on_system_exit():
    """Let SystemExit with an error end this process at once too, since Python 3.12; no excepthook
    is told of it. A program that catches the exception goes on, and one in which all processes end
    with an error calls jax.distributed.shutdown before.
    """
    if not hasattr(sys, "monitoring"):
        return
    watch, outermost = sys.monitoring, inspect.stack(0)[-1].frame.f_code

    def unwound(code, _, error):
        failed = isinstance(error, SystemExit) and error.code not in (None, 0)
        if failed and code is outermost and _is_joined():
            print(f"{_who()}: SystemExit: {error.code}", file=sys.stderr)
            _leave(error.code if isinstance(error.code, int) else 1)

    tool = next((number for number in (4, 3) if watch.get_tool(number) is None), None)
    if tool is not None:
        watch.use_tool_id(tool, "join")
        watch.register_callback(tool, watch.events.PY_UNWIND, unwound)
        watch.set_events(tool, watch.events.PY_UNWIND)


def tell_who_left(seconds=10):
    """Let a process that has come to its end say so if it still waits for others after that many
    seconds: they may wait for it in a collective.
    """
    left = threading.Event()

    def wait():
        left.wait()
        time.sleep(seconds)
        print(
            f"{_who()}: has come to its end, and not all others have: if they hang, this process "
            "has left the program too early (a break, a return, sys.exit)",
            file=sys.stderr,
            flush=True,
        )

    threading.Thread(target=wait, daemon=True).start()
    atexit.register(left.set)


def end_after_sigterm(seconds):
    """Let this process end itself if it still runs that many seconds after SIGTERM, with its stacks
    and status 143.

    JAX's preemption service takes the signal so that a program can save, and a process in a
    collective that hangs would stay for ever. Python's own handlers wait for the main thread;
    faulthandler's does not, and calls JAX's as well.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    faulthandler.register(signal.SIGTERM, writer, chain=True)
    # SIGTERM ends a forked child, such as a worker that loads data, from its first instruction on.
    # With these handlers the child would go on, and this process would take the signal for its own.
    block, unblock = (
        partial(signal.pthread_sigmask, how, [signal.SIGTERM]) for how in (SIG_BLOCK, SIG_UNBLOCK)
    )
    default = partial(signal.signal, signal.SIGTERM, signal.SIG_DFL)
    os.register_at_fork(
        before=block, after_in_parent=unblock, after_in_child=lambda: (default(), unblock())
    )

    def wait():
        os.read(reader, 1)
        time.sleep(seconds)
        print(
            f"{_who()}: still running {seconds:g} s after SIGTERM, ends now",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback()
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def exchange(key, text, limit=100):
    """What every process says under a key, as a list by process index, through the coordinator: no
    GPU takes part.

    A key serves once. A process that comes more than limit seconds after the first one is an error
    in all.
    """
    state = _state()
    if state is None:
        return _gathered(text)
    store = state.client
    if store is None:
        return [text]
    try:
        store.key_value_set(f"{key}/{jax.process_index()}", text)
        store.wait_at_barrier(key, round(1000 * limit))  # ms
        said = store.key_value_dir_get(f"{key}/")
    except AttributeError:  # a JAX whose client has other methods
        return _gathered(text)
    return [value for _, value in sorted(said, key=lambda pair: int(pair[0].rpartition("/")[2]))]


def _gathered(text):
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    rows = multihost_utils.process_allgather(np.pad(data, (0, int(sizes.max()) - len(data))))
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes.ravel(), strict=True)]


def names(numbers):
    """Process 3; processes 0, 1 and 5; processes 0, 1, 2 and 29 more."""
    numbers = list(map(str, numbers))
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    last = numbers[-1] if len(numbers) <= 4 else f"{len(numbers) - 3} more"
    return f"processes {', '.join(numbers[:-1][:3])} and {last}"


def check_program():
    """End all processes if they run different programs: then they compute another result, or
    hang.
    """
    file = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else "none"
    mine = {
        "version of JAX": jax.__version__,
        "arguments": " ".join(sys.argv[1:]) or "none",
        f"text of {file.name}": f"SHA-256 {digest}",
    }
    every = [json.loads(text) for text in exchange("program", json.dumps(mine))]
    for what in dict.fromkeys(what for one in every for what in one):
        who = {}
        for index, one in enumerate(every):
            who.setdefault(one.get(what, "missing"), []).append(index)
        if len(who) > 1:
            differ = "; ".join(f"{value} in {names(indices)}" for value, indices in who.items())
            raise SystemExit(f"the processes run different programs, {what}: {differ}")


def join(*, any_platform=False, any_program=False, sigterm_seconds=100, **options):
    """Call jax.distributed.initialize if the launcher says that there are several processes, and
    check their number.

    An uncaught exception then ends its process at once, and since Python 3.12 SystemExit with an
    error does; since JAX 0.8.2 any other end waits a minute for the others. Ends the process if the
    coordinator's name cannot be resolved, its port is taken, or it is not process 0's host; all
    processes if their arguments or main files differ (unless
    any_program), and each one sigterm_seconds after SIGTERM if it has not ended by itself: less
    than the 120 s that `--signal=TERM@120` leaves.
    Ends the process if JAX has silently fallen back to CPUs: who means CPUs sets JAX_PLATFORMS=cpu
    (or any_platform). Slurm and Open MPI say so in variables of their own. Elsewhere NUM_PROCESSES
    has to say it; if JAX cannot ask the launcher for the rest (ssh), COORDINATOR is the address
    "host:port" of process 0, and PROCESS_ID the process index.
    """
    if "COORDINATOR" in os.environ:
        _parts("COORDINATOR", os.environ["COORDINATOR"])
        expected = _whole("NUM_PROCESSES", 1, 10**6, "how many processes there are")
        options["coordinator_address"] = os.environ["COORDINATOR"]
        options["num_processes"] = expected
        options["process_id"] = _whole("PROCESS_ID", 0, expected - 1, "the process index")
        options = on_this_host(os.environ["COORDINATOR"]) | options
        # within a Slurm job too, where JAX would ask Slurm
        options["cluster_detection_method"] = "deactivate"
    else:
        counts = "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "NUM_PROCESSES"
        name = next((name for name in counts if name in os.environ), "")
        if "PROCESS_ID" in os.environ and name in ("NUM_PROCESSES", ""):
            raise SystemExit(
                "PROCESS_ID is set, but COORDINATOR is not: export COORDINATOR=host:port of "
                "process 0, such as node1:8476"
            )
        expected = _whole(name, 1, 10**6, "how many processes there are") if name else 1
        # Open MPI 5
        if "OMPI_COMM_WORLD_SIZE" in os.environ and "OMPI_MCA_orte_hnp_uri" not in os.environ:
            if not find_spec("mpi4py"):
                raise SystemExit(
                    "Open MPI 5 does not tell JAX where process 0 is: pip install mpi4py"
                )
            # JAX 0.7 does not choose it by itself
            options = {"cluster_detection_method": "mpi4py"} | options
        if "OMPI_COMM_WORLD_SIZE" not in os.environ and "cluster_detection_method" not in options:
            options = port_of_this_step() | options
    # SLURM_INTERACTIVE_STEP in slurm.h
    if expected > 1 and os.environ.get("SLURM_STEP_ID") == str(2**32 - 6):
        raise SystemExit(
            f"{expected} tasks, but this is the interactive step of salloc, which has one: "
            "start with srun"
        )
    if expected > 1:
        # since JAX 0.8.2
        if "shutdown_timeout_seconds" in inspect.signature(jax.distributed.initialize).parameters:
            options = {"shutdown_timeout_seconds": 60} | options
        check_first()
        if address := coordinator_of(options):
            rank = options.get("process_id", os.environ.get("SLURM_PROCID"))
            check_coordinator(address, first=str(rank) == "0")
        jax.distributed.initialize(**options)
        sys.excepthook = leave_at_once
        leave_on_system_exit()
        tell_who_left()
        end_after_sigterm(sigterm_seconds)
    try:
        count = jax.process_count()
    except (AssertionError, RuntimeError) as error:
        # JAX 0.12 raises an empty AssertionError without a plugin for it
        platforms = os.environ.get("JAX_PLATFORMS")
        raise SystemExit(f"JAX finds no device for JAX_PLATFORMS={platforms}: {error!r}") from error
    if count != expected:
        raise SystemExit(f"{expected} processes were started, but JAX sees {count}")
    if jax.default_backend() == "cpu" and not any_platform and jax.config.jax_platforms != "cpu":
        cure = (
            "If you mean CPUs, set JAX_PLATFORMS=cpu; else JAX_PLATFORMS=cuda shows what JAX lacks"
        )
        raise SystemExit(f"JAX finds no GPU or TPU and uses CPUs. {cure}")
    if expected > 1 and not any_program:
        check_program()


def reads(file, word, seconds=5):
    """Whether a file has this word within some seconds; a shared file system may be slow to
    tell.
    """
    end = time.monotonic() + seconds
    while True:
        with suppress(OSError):
            if file.read_text() == word:
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.1)


OF_A_FOLDER = {
    "EROFS": "this file system is read-only for the job: take another, such as the scratch",
    "ENOSPC": (
        "the file system is full (df -h, and df -i for the number of files): delete, or take "
        "another"
    ),
    "EDQUOT": (
        "your quota is used up (the site's quota command): delete old checkpoints, or take "
        "another folder"
    ),
    "EACCES": "you may not write there: look at ls -ld, and at the group of your project",
    "EEXIST": "it is a file, or a link that leads nowhere: name a folder",
    "ENOTDIR": "it is a file, or below one: name a folder",
    "ELOOP": "it is a link that leads to itself: name a folder",
    "ENAMETOOLONG": "its name is too long: name another folder",
}


def try_folder(folder, key):
    """What this process sees in a folder: "host", whether it "reads" what process 0 has written
    there just now, and its own "errno" and "error" in writing, if there was one. Process 0 makes
    the folder.
    """
    me, host, why = jax.process_index(), socket.gethostname(), None
    word = f"{host} {os.getpid()} {time.time()}"
    first, own = (Path(folder, f".written-by-{index}") for index in (0, me))
    try:
        if me == 0:
            Path(folder).mkdir(parents=True, exist_ok=True)
            own.write_text(word)
    except OSError as error:
        word, why = "", error
    word, *_ = exchange(f"{key}/word", word)  # all others come later
    try:
        if me and word:
            own.write_text("")
    except FileNotFoundError:  # another disk, which has no such folder
        pass
    except OSError as error:
        why = error
    seen = {"host": host, "reads": bool(word) and reads(first, word)}
    if why:
        code = errno.errorcode.get(why.errno or 0, "?")
        seen |= {"errno": code, "error": why.strerror or str(why)}
    exchange(f"{key}/read", "")  # all have looked
    with suppress(OSError):
        own.unlink()
    return seen


def check_folder(folder, key, *, to_write):
    """End all processes, each with one line, if they cannot save in a folder: Orbax would wait for
    minutes, or for ever. What is read-only may stay so, unless to_write.
    """
    seen, shown = try_folder(folder, key), _shown(folder)
    every = [json.loads(text) for text in exchange(f"{key}/seen", json.dumps(seen))]
    failed = [index for index, seen in enumerate(every) if "errno" in seen]
    if failed:
        code, host, error = (every[failed[0]][what] for what in ("errno", "host", "error"))
        if not to_write and code in ("EROFS", "EACCES", "EPERM"):
            return
        cure = OF_A_FOLDER.get(code, f"look at it on {host}: ls -ld, df -h")
        who = names(index for index in failed if every[index]["errno"] == code)
        raise SystemExit(f"{shown} cannot hold checkpoints: {who} on {host}: {error}; {cure}")
    blind = [index for index, seen in enumerate(every) if not seen["reads"]]
    if blind:
        hosts = ", ".join(dict.fromkeys(every[index]["host"] for index in blind))
        raise SystemExit(
            f"{shown} is not one folder for all hosts: {names(blind)} on {hosts} cannot read what "
            f"process 0 on {every[0]['host']} has written there; name a folder on a disk that all "
            "mount"
        )


def shared_folder(folder):
    """The path of a folder for checkpoints, which is made if it is not there.

    All processes end at once, each with one line, if one of them cannot write there, or cannot read
    what process 0 has written. An address such as gs://... is returned as it is.

        with ocp.CheckpointManager(shared_folder(folder)) as manager:
    """
    if "://" in str(folder):
        return folder
    if str(folder).startswith(("~", "$")):
        raise SystemExit(
            f"{_shown(folder)} is a name in which the shell has replaced nothing: write "
            '"$HOME/run", in double quotes and with a space before it'
        )
    if not str(folder):
        raise SystemExit("the name of the checkpoints' folder is empty: is its variable set?")
    if re.search("[\ud800-\udfff]", str(folder)):  # TensorStore takes no other names
        raise SystemExit(f"{_shown(folder)} is not in UTF-8: name another folder")
    path = Path(os.path.abspath(folder))
    check_folder(path, f"folder {next(_folders)}", to_write=True)
    return path


def restore_newest(manager, target, limit=3600):
    """The newest step that every process can read, with its state; (0, None) if there is no
    checkpoint yet.

    A process that cannot read a step would leave the others waiting in Orbax's barriers. So each
    process reads its own shards without them, and then all compare their errors through the
    coordinator. Steps newer than the result are named with a warning, and their folders renamed,
    such as 6 to damaged-6: Orbax would not save these steps again. If all steps fail, then the
    program or the disk may have changed, and not the files: nothing is renamed.

        # Else Orbax looks into the newest step, which may be damaged.
        handler = ocp.StandardCheckpointHandler()
        with ocp.CheckpointManager(folder, item_handlers=handler) as manager:
            begin, state = restore_newest(manager, target)
            state = state or jax.jit(create, out_shardings=layout)()

    Args:
        manager: an Orbax CheckpointManager with a StandardCheckpointHandler.
        target: the state's arrays as jax.ShapeDtypeStruct with a sharding.
        limit: by how many seconds the processes may differ in the time to read a step.

    Raises SystemExit if the processes do not share the manager's folder, or if there are
    checkpoints, but not one that all processes can read.
    """
    import orbax.checkpoint as ocp

    me, call = jax.process_index(), next(_restores)  # a key of the coordinator's store serves once

    def together(what, text):
        return exchange(f"restore {call}/{what}", text, limit)

    def read(step):
        try:
            return reader.restore(step, args=ocp.args.StandardRestore(target)), ""
        except Exception as error:  # of many kinds, from a missing file to one that ends too soon
            return None, f"{type(error).__name__}: {error}".splitlines()[0][:200]

    if "://" not in str(manager.directory):
        check_folder(manager.directory, f"restore {call}/folder", to_write=False)
    seen = [json.loads(steps) for steps in together("steps", json.dumps(list(manager.all_steps())))]
    damaged, state = [], None
    processes = {
        "primary_host": me,
        "active_processes": {me},
        "barrier_sync_key_prefix": f"restore {call} by {me}",
    }
    alone = ocp.options.MultiprocessingOptions(**processes)
    options = ocp.CheckpointManagerOptions(create=False, multiprocessing_options=alone)
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
    with ocp.CheckpointManager(manager.directory, item_handlers=handler, options=options) as reader:
        for step in sorted(set().union(*seen), reverse=True):
            state, error = read(step)
            errors = {index: error for index, error in enumerate(together(step, error)) if error}
            if not errors:
                break
            state = None  # or its memory would be in use while the older step is read
            damaged.append(manager.directory / str(step))
            if me == 0:
                print(
                    (
                        f"WARNING: {names(errors)} cannot restore {damaged[-1]}: "
                        f"{min(errors.items())[1]}"
                    ),
                    flush=True,
                )
        else:
            if damaged:
                raise SystemExit(
                    f"no checkpoint in {manager.directory} can be restored by all processes"
                )
            return 0, None
    for folder in damaged:
        if me == 0 and folder.exists():
            # the same step, damaged once more
            before = len(list(manager.directory.glob(f"damaged-{folder.name}*")))
            folder.rename(
                folder.with_name(f"damaged-{folder.name}" + f"-{before + 1}" * bool(before))
            )
    together("set aside", "")
    manager.reload()
    return step, state
