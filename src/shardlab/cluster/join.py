"""Join the processes of a job into one JAX program, whichever launcher started them."""

import inspect
import os
import sys

import jax


def on_this_host(coordinator):
    """Where the coordinator listens, for jax.distributed.initialize: not to other hosts, if its address is this one's.

    It has no authentication, and by default listens on all interfaces.
    """
    host, _, port = coordinator.rpartition(":")
    return {"coordinator_bind_address": f"127.0.0.1:{port}"} if host in ("localhost", "127.0.0.1") else {}


def leave_at_once(kind, error, traceback):
    """End this process with its error, so that the launcher sees at once that it failed.

    At a normal exit JAX waits until the other processes end too, which by default takes up to 300 seconds.
    """
    sys.__excepthook__(kind, error, traceback)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def join(*, any_platform=False, **options):
    """Call jax.distributed.initialize if the launcher says that there are several processes, and check their number.

    An uncaught exception then ends its process at once; since JAX 0.8.2 any other end waits a minute for the others.
    Ends the process if JAX has silently fallen back to CPUs: who means CPUs sets JAX_PLATFORMS=cpu (or any_platform).
    Slurm and Open MPI say so in variables of their own. Elsewhere NUM_PROCESSES has to say it; if JAX cannot ask the
    launcher for the rest (ssh), COORDINATOR is the address "host:port" of process 0, and PROCESS_ID the process index.
    """
    if "COORDINATOR" in os.environ:
        expected = int(os.environ["NUM_PROCESSES"])
        options["coordinator_address"] = os.environ["COORDINATOR"]
        options["num_processes"] = expected
        options["process_id"] = int(os.environ["PROCESS_ID"])
        options = on_this_host(os.environ["COORDINATOR"]) | options
        options["cluster_detection_method"] = "deactivate"  # within a Slurm job too, where JAX would ask Slurm
    else:
        names = "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "NUM_PROCESSES"
        expected = next((int(os.environ[name]) for name in names if name in os.environ), 1)
    if expected > 1:
        if "shutdown_timeout_seconds" in inspect.signature(jax.distributed.initialize).parameters:  # since JAX 0.8.2
            options = {"shutdown_timeout_seconds": 60} | options
        jax.distributed.initialize(**options)
        sys.excepthook = leave_at_once
    try:
        count = jax.process_count()
    except (AssertionError, RuntimeError) as error:  # JAX 0.12 raises an empty AssertionError without a plugin for it
        platforms = os.environ.get("JAX_PLATFORMS")
        raise SystemExit(f"JAX finds no device for JAX_PLATFORMS={platforms}: {error!r}") from error
    if count != expected:
        raise SystemExit(f"{expected} processes were started, but JAX sees {count}")
    if jax.default_backend() == "cpu" and not any_platform and "cpu" not in os.environ.get("JAX_PLATFORMS", ""):
        cure = "If you mean CPUs, set JAX_PLATFORMS=cpu; else JAX_PLATFORMS=cuda shows what JAX lacks"
        raise SystemExit(f"JAX finds no GPU or TPU and uses CPUs. {cure}")
