"""Join the processes of a job into one JAX program, whichever launcher started them, and resume
it.
"""

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
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from signal import SIG_BLOCK, SIG_UNBLOCK

import jax

_restores = itertools.count()


def on_this_host(coordinator):
    """Where the coordinator listens, for jax.distributed.initialize: not to other hosts, if its
    address is this one's.

    It has no authentication, and by default listens on all interfaces.
    """
    host, _, port = coordinator.rpartition(":")
    if host.lower() == "localhost":
        host = "127.0.0.1"
    try:
        own = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name, which other hosts may need to reach
        own = False
    return {"coordinator_bind_address": f"{host}:{port}"} if own else {}


def port_of_this_step():
    """The coordinator's address for a later step of a Slurm job, for jax.distributed.initialize.

    JAX takes the port from the job's number alone, so a second step would join the first one's
    coordinator and end its processes.
    """
    own = "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT"
    step, nodes = (int(os.environ.get("SLURM_STEP_ID") or 0), os.environ.get("SLURM_STEP_NODELIST"))
    if step == 0 or not nodes or any(os.environ.get(name) for name in own):
        return {}
    # node1 of "node1,node3", node001 of "node[001-004,007]"
    host = "".join(re.match(r"([^,\[]+)(?:\[(\d+))?", nodes).groups(""))
    # 1021, a prime, so that the next step and the next job do not have the same port
    port = 61440 + (int(os.environ["SLURM_JOB_ID"]) + 1021 * step) % 4096
    return {"coordinator_address": f"{host}:{port}"}


def leave_at_once(kind, error, traceback):
    """End this process with its error, so that the launcher sees at once that it failed.

    At a normal exit JAX waits until the other processes end too, which by default takes up to 300
    seconds.
    """
    sys.__excepthook__(kind, error, traceback)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


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
        who = f"process {jax.process_index()} on {socket.gethostname()}"
        print(
            f"{who}: still running {seconds:g} s after SIGTERM, ends now",
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
    try:
        from jax._src import distributed  # no public name leads to the coordinator's store

        store = distributed.global_state.client
        if store is None:
            return [text]
        store.key_value_set(f"{key}/{jax.process_index()}", text)
        store.wait_at_barrier(key, round(1000 * limit))  # ms
        said = store.key_value_dir_get(f"{key}/")
    except (ImportError, AttributeError):  # a JAX that keeps it elsewhere
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

    An uncaught exception then ends its process at once; since JAX 0.8.2 any other end waits a
    minute for the others. Ends all processes if their arguments or main files differ (unless
    any_program), and each one sigterm_seconds after SIGTERM if it has not ended by itself: less
    than the 120 s that `--signal=TERM@120` leaves.
    Ends the process if JAX has silently fallen back to CPUs: who means CPUs sets JAX_PLATFORMS=cpu
    (or any_platform). Slurm and Open MPI say so in variables of their own. Elsewhere NUM_PROCESSES
    has to say it; if JAX cannot ask the launcher for the rest (ssh), COORDINATOR is the address
    "host:port" of process 0, and PROCESS_ID the process index.
    """
    if "COORDINATOR" in os.environ:
        expected = int(os.environ["NUM_PROCESSES"])
        options["coordinator_address"] = os.environ["COORDINATOR"]
        options["num_processes"] = expected
        options["process_id"] = int(os.environ["PROCESS_ID"])
        options = on_this_host(os.environ["COORDINATOR"]) | options
        # within a Slurm job too, where JAX would ask Slurm
        options["cluster_detection_method"] = "deactivate"
    else:
        counts = "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "NUM_PROCESSES"
        expected = next((int(os.environ[name]) for name in counts if name in os.environ), 1)
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
        jax.distributed.initialize(**options)
        sys.excepthook = leave_at_once
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

    Raises SystemExit if there are checkpoints, but not one that all processes can read.
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
