"""Check a job before it computes: run under any launcher, it says what is wrong with the launch, and how to cure it.

srun python preflight.py --folder /shared/run              # or mpirun.sh, ssh.sh, or alone
srun python preflight.py --processes 8 --devices 8 --gbit 100
srun python -m shardlab.cluster.preflight                          # the same, where shardlab is installed

Every process checks itself and the others: how many they are, on which devices, with how many cores, whether they reach
each other and how fast, whether they share a folder and have the same packages. Process 0 prints a line for each check.
The exit status is 0 if all is well, 1 if a check failed, 2 if JAX could not start or a process waited in vain. It takes
some ten seconds; a process that waits longer than --limit seconds says for what, prints its stacks, and ends.
"""

import argparse
import atexit
import faulthandler
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

LAUNCHERS = {"Slurm": "SLURM_PROCID", "Open MPI": "OMPI_COMM_WORLD_RANK", "by hand": "PROCESS_ID"}
PACKAGES = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint")
UNREACHED = (
    "the processes do not reach process 0: were all of them started, is its name resolved "
    "(JAX_COORDINATOR_ADDRESS=name:port), is the port open?"
)
MEGABYTES = 16  # that each device has, when the transport is measured


@dataclass(frozen=True)
class Check:
    """What became of one check.

    Attributes:
      name: of the check, such as "platform".
      ok: whether all is well; None if it could not be checked.
      detail: what was found, in words.
      cure: what to do about it; "" if all is well.
    """

    name: str
    ok: bool | None
    detail: str
    cure: str = ""


def judge(facts, *, cpus=False, processes=0, devices=0, gbit=0.0):
    """Judge what the processes have found, `facts` by index: a `Check` for each thing, as they should be read.

    `cpus`: whether CPUs are meant; `processes`, `devices`: how many there should be; `gbit`: what the network should
    give a process, in Gbit/s. 0 means that it is not known.
    """
    checks = [_counted(facts, processes, devices), _platform(facts, cpus)]
    if all(fact["platform"] == "gpu" and fact["visible"] for fact in facts):
        checks.append(_claims(facts))
    elif any(fact["platform"] == "gpu" and not fact["visible"] for fact in facts):
        checks.append(Check("GPUs", None, "nvidia-smi lists none, so who uses which cannot be compared"))
    checks += [_cores(facts), _versions(facts)]
    if any(fact["reads"] is not None for fact in facts):
        checks.append(_folder(facts))
    if "seconds" in facts[0]:
        checks.append(_network(facts[0], len({fact["host"] for fact in facts}) > 1, gbit))
    checks += [_proxies(facts)] if any(fact.get("proxies") for fact in facts) else []
    return checks


def _many(count, noun):
    return f"{count} {noun}" if count == 1 else f"{count} {noun}es" if noun.endswith("s") else f"{count} {noun}s"


def _names(numbers):
    """Process 3; processes 0, 1 and 5; processes 0, 1, 2 and 29 more."""
    numbers = list(map(str, numbers))
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    last = numbers[-1] if len(numbers) <= 4 else f"{len(numbers) - 3} more"
    return f"processes {', '.join(numbers[:-1][:3])} and {last}"


def _counted(facts, processes, devices):
    hosts, total = Counter(fact["host"] for fact in facts), sum(fact.get("devices", 1) for fact in facts)
    shape = f"{_many(len(facts), 'process')} on {_many(len(hosts), 'host')}, {_many(total, 'device')}"
    if processes and len(facts) != processes:
        cure = "compare --ntasks, or nodes times --ntasks-per-node, with --processes; was srun (or mpirun) forgotten?"
        return Check("processes", False, f"{shape}, but --processes {processes}", cure)
    if devices and total != devices:
        cure = "request GPUs per node (--gres=gpu:4), let each task see all of them, and start one task per GPU"
        return Check("processes", False, f"{shape}, but --devices {devices}", cure)
    return Check("processes", True, shape)


def _platform(facts, cpus):
    kinds = Counter((fact["platform"], fact["kind"]) for fact in facts)
    shown = ", ".join(f"{platform} ({kind}) in {_many(n, 'process')}" for (platform, kind), n in kinds.items())
    slow = [fact["process"] for fact in facts if fact["platform"] == "cpu"]
    if slow and not cpus:
        card = any(fact["visible"] for fact in facts)
        cure = (
            "the driver sees GPUs, so JAX lacks its plugin: pip install 'jax[cuda12]' in this environment"
            if card
            else "ask for GPUs (--gres=gpu:4), look at nvidia-smi on the node; if CPUs are meant, set JAX_PLATFORMS=cpu"
        )
        return Check("platform", False, f"{_names(slow)} fell back to CPUs ({shown})", cure)
    if len(kinds) > 1:
        cure = "the processes have different devices: name one kind of node, as by --constraint"
        return Check("platform", False, shown, cure)
    return Check("platform", True, shown)


def _claims(facts):
    owners = {}
    for fact in facts:
        for gpu in fact["gpus"]:
            owners.setdefault((fact["host"], gpu), []).append(fact["process"])
    shared = {gpu: who for gpu, who in owners.items() if len(who) > 1}
    if shared:
        (host, gpu), who = next(iter(shared.items()))
        cure = (
            "let each task see all GPUs of its node, so that JAX chooses, or set JAX_LOCAL_DEVICE_IDS=0 where the site "
            "binds one GPU to each task; one process per node takes JAX_LOCAL_DEVICE_IDS=0,1,2,3"
        )
        return Check("GPUs", False, f"{_names(who)} on {host} use one GPU, {gpu}", cure)
    idle = len({(fact["host"], gpu) for fact in facts for gpu in fact["visible"]} - set(owners))
    if idle:
        cure = "start one task per GPU, or one per node with JAX_LOCAL_DEVICE_IDS=0,1,2,3"
        subject = "1 GPU is" if idle == 1 else f"{idle} GPUs are"
        return Check("GPUs", False, f"{subject} used by no process", cure)
    return Check("GPUs", True, f"{len(owners)} GPUs, each used by one process")


def _cores(facts):
    few = [fact for fact in facts if len(fact["cores"]) < 2]
    cure = "divide the cores of a node by its tasks: --cpus-per-task, export SRUN_CPUS_PER_TASK, --hint=nomultithread"
    if few:
        return Check("cores", False, f"{_names(f['process'] for f in few)} on {few[0]['host']} has 1 core", cure)
    most, least = (choose(len(fact["cores"]) for fact in facts) for choose in (max, min))
    for host in {fact["host"] for fact in facts}:
        sets = [set(fact["cores"]) for fact in facts if fact["host"] == host]
        together, each = set().union(*sets), sum(map(len, sets))
        if any(len(cores) < len(together) for cores in sets) and each > len(together):
            return Check("cores", False, f"tasks on {host} are bound to cores that overlap", cure)
    return Check("cores", True, f"{least} cores for a process" if least == most else f"{least} to {most} cores")


def _versions(facts):
    for name in sorted({name for fact in facts for name in fact["versions"]}):
        by_version = {}
        for fact in facts:
            by_version.setdefault(fact["versions"].get(name, "missing"), []).append(fact["process"])
        if len(by_version) > 1:
            sentence = "; ".join(f"{version} in {_names(who)}" for version, who in by_version.items())
            cure = "activate one environment, on a disk that all nodes share, in the batch script"
            return Check("versions", False, f"{name}: {sentence}", cure)
    shown = [f"{name} {facts[0]['versions'][name]}" for name in ("python", "jax") if name in facts[0]["versions"]]
    return Check("versions", True, f"{', '.join(shown)}, the same in all" if shown else "the same in all")


def _folder(facts):
    blind = [fact["process"] for fact in facts if not fact["reads"]]
    if blind:
        cure = "name a folder on a file system that all nodes mount (not /tmp), and that every process may use"
        return Check("folder", False, f"{_names(blind)} cannot read there what process 0 has written", cure)
    return Check("folder", True, "what process 0 writes, all read")


def _network(first, several_hosts, gbit):
    n, seconds, transport = first["all_devices"], first["seconds"], first["transport"]
    if isinstance(seconds, str):  # what JAX said instead
        cure = "NCCL_DEBUG=INFO says which interface and plugin it takes; the cause stands in its first WARN line"
        return Check("network", False, f"an all-reduce by {transport} failed: {seconds}", cure)
    got = 2 * (n - 1) / n * MEGABYTES * 2**20 * 8 / seconds / 1e9  # a ring
    shown = f"{got:.2f} Gbit/s for each of {n} devices"
    how = f"{MEGABYTES} MiB all-reduced in {1000 * seconds:.1f} ms by {transport}"
    if not gbit or got >= gbit / 2:
        return Check("network", True, f"{shown} ({how})")
    if "gloo" in transport:
        cure = "gloo listens at the address to which the host's name resolves: look at /etc/hosts and at the link"
    elif several_hosts:
        cure = "NCCL_DEBUG=INFO prints the interface: name another (NCCL_SOCKET_IFNAME=ib0), load the network's plugin"
    else:
        cure = "within a node NCCL should use NVLink: look at nvidia-smi topo -m, and at NCCL_DEBUG=INFO"
    return Check("network", False, f"{shown}, less than half of {gbit:g} ({how})", cure)


def _proxies(facts):
    names = sorted({name for fact in facts for name in fact.get("proxies", ())})
    cure = f"unset {' '.join(names)} in the batch script: connections to the coordinator would go through them"
    return Check("proxies", False, f"set: {', '.join(names)}", cure)


# --- What a process finds ----------------------------------------------------------------------------------------


def cards():
    """The UUIDs of the GPUs that this process may use: those that the driver lists, less CUDA_VISIBLE_DEVICES."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    every = process.stdout.split() if process.returncode == 0 else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return every
    chosen = [name.strip() for name in visible.split(",") if name.strip()]
    numbered = [every[int(name)] for name in chosen if name.isdigit() and int(name) < len(every)]
    return numbered + [uuid for name in chosen for uuid in every if uuid.startswith(name)]


def transport(platform, log):
    """How NCCL says that it sends, from its log; gloo on CPUs."""
    if platform == "cpu":
        return "gloo"
    text = "".join(file.read_text(errors="replace") for file in log.parent.glob(f"{log.name}*"))
    ways = Counter(re.findall(r"\[(?:send|receive)\] via (NET/[\w/ ]+?|P2P[\w/]*|SHM[\w/]*)(?:/\d+)*\s", text))
    using = re.findall(r"Using network (\S+)", text)
    return ", ".join([*(f"network {name}" for name in dict.fromkeys(using)), *ways]) or "NCCL"


def _facts():
    """What this process sees."""
    import jax

    visible = cards()
    local = jax.local_devices()
    numbers = [d.local_hardware_id for d in local if d.platform == "gpu"]
    gpus = [visible[number] for number in numbers if number in range(len(visible))]
    versions = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return {
        "process": jax.process_index(),
        "host": socket.gethostname(),
        "platform": local[0].platform,
        "kind": local[0].device_kind,
        "devices": len(local),
        "gpus": gpus,
        "visible": visible,
        "cores": sorted(cores),
        "versions": versions,
        "reads": None,
        "proxies": [name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")],
    }


def _shared(key, value, every=True):
    """What all processes (or process 0 alone) say under a key, through the coordinator: no GPU takes part."""
    import jax
    from jax._src import distributed  # where JAX itself keeps it; no public name leads there

    store, mine = distributed.global_state.client, json.dumps(value)
    if store is None:
        return [value]
    whose = range(jax.process_count()) if every else [0]
    if jax.process_index() in whose:
        store.key_value_set(f"preflight/{key}/{jax.process_index()}", mine)
    return [json.loads(store.blocking_key_value_get(f"preflight/{key}/{rank}", 10**8)) for rank in whose]


def _measured():
    """Seconds of an all-reduce of `MEGABYTES` MiB among all devices: the fastest of five."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    n, floats = jax.device_count(), MEGABYTES * 2**18
    mesh = jax.make_mesh((n,), ("d",), axis_types=(AxisType.Auto,))
    by_device, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
    x = jax.make_array_from_callback((n, floats), by_device, lambda index: np.ones((1, floats), np.float32))
    total = jax.jit(lambda x: x.sum(0), out_shardings=whole)
    if float(total(x).addressable_data(0)[0]) != n:
        raise SystemExit(f"the sum of {n} ones is {float(total(x).addressable_data(0)[0])}")
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        total(x).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _reads(folder):
    """Whether this process reads in a folder what process 0 has written there just now; None without a folder."""
    import jax

    if not folder:
        return None
    file, word = Path(folder) / ".preflight", f"{socket.gethostname()} {os.getpid()} {time.time()}"
    if jax.process_index() == 0:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(word)
    [word] = _shared("word", word, every=False)
    for _ in range(50):  # a shared file system may be slow to tell
        with suppress(OSError):
            if file.read_text() == word:
                return True
        time.sleep(0.1)
    return False


class _Patience:
    """Ends this process, with words, a cure and stacks, if what it does takes longer than a limit in seconds."""

    def __init__(self, rank, limit):
        self.rank, self.limit, self.doing, self.cure = rank, limit, "", ""
        self.timer = threading.Timer(limit, self._end)
        self.timer.daemon = True
        self.timer.start()
        faulthandler.dump_traceback_later(limit + 10, exit=True)  # if C code lets no thread run

    def over(self, doing, cure):
        """Say what begins, and what to do if it does not end."""
        self.doing, self.cure = doing, cure

    def stop(self):
        """All is done."""
        self.timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def _end(self):
        who = f"process {self.rank} on {socket.gethostname()}"
        message = f"preflight: {who} has waited {self.limit} s {self.doing}\n     cure: {self.cure}\n"
        print(message, end="", flush=True)
        faulthandler.dump_traceback()
        os._exit(2)


def main():
    """Join the job, check it, and print what was found; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=0, metavar="N", help="how many processes there should be")
    parser.add_argument("--devices", type=int, default=0, metavar="N", help="how many devices there should be in all")
    parser.add_argument("--folder", metavar="PATH", help="a folder that all processes should share")
    parser.add_argument("--gbit", type=float, default=0, metavar="G", help="Gbit/s that the network should give each")
    parser.add_argument(
        "--limit", type=int, default=60, metavar="S", help="seconds, once JAX is imported, until a hang is ended (60)"
    )
    parser.add_argument("--json", action="store_true", help="print the checks and all facts as JSON")
    options = parser.parse_args()

    cpus = os.environ.get("JAX_PLATFORMS") == "cpu"
    launcher = next((name for name, rank in LAUNCHERS.items() if rank in os.environ), "none")
    log = Path(tempfile.mkdtemp(prefix="preflight-")) / "nccl"
    atexit.register(shutil.rmtree, log.parent, ignore_errors=True)
    nccl = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH", "NCCL_DEBUG_FILE": f"{log}.%h"}
    os.environ.update({name: value for name, value in nccl.items() if name not in os.environ})

    import jax

    try:
        from join import join  # beside this file
    except ImportError:  # in the package
        from shardlab.cluster.join import join

    rank = os.environ.get(LAUNCHERS.get(launcher, ""), "0")
    patience = _Patience(rank, options.limit)
    patience.over("for the others in jax.distributed.initialize", UNREACHED)
    begin = time.perf_counter()
    try:
        join(any_platform=True, initialization_timeout=options.limit + 60)
    except (RuntimeError, ValueError, SystemExit) as error:
        message = (
            f"preflight: process {rank} (launcher {launcher}) cannot start: {error}\n     cure: {_cure_of(error)}\n"
        )
        print(message, end="", flush=True)
        return 2
    started = time.perf_counter() - begin
    patience.over("for what the other processes see", "look at the processes that print nothing: did they all start?")
    facts = _facts()
    facts["reads"] = _reads(options.folder)
    every = _shared("facts", facts)
    every[0]["all_devices"] = sum(facts_of_one["devices"] for facts_of_one in every)
    if every[0]["all_devices"] > 1:
        every[0]["seconds"] = "the processes have different platforms"
        if len({facts_of_one["platform"] for facts_of_one in every}) == 1:
            cure = "the network of the collectives hangs: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME; is a port blocked?"
            patience.over("in an all-reduce", cure)
            try:
                every[0]["seconds"] = _measured()
            except (RuntimeError, ValueError) as error:
                every[0]["seconds"] = str(error).splitlines()[0]
        every[0]["transport"] = transport(facts["platform"], log)
    patience.stop()
    asked = {"cpus": cpus, "processes": options.processes, "devices": options.devices, "gbit": options.gbit}
    checks = judge(every, **asked)
    checks.insert(0, Check("launcher", True, f"{launcher}, joined in {started:.1f} s"))
    if jax.process_index() == 0:
        both = {"checks": [asdict(check) for check in checks], "processes": every}
        text = json.dumps(both) if options.json else _table(checks)
        print(f"{text}\n", end="", flush=True)  # one write, so that lines of several processes do not mix
    if options.folder and jax.process_index() == 0:
        Path(options.folder, ".preflight").unlink(missing_ok=True)
    return 1 if any(check.ok is False for check in checks) else 0


def _table(checks):
    lines = []
    for check in checks:
        word = {True: "ok  ", False: "FAIL", None: "skip"}[check.ok]
        lines.append(f"{word} {check.name}: {check.detail}")
        lines += [f"     cure: {check.cure}"] if check.cure else []
    failed = sum(check.ok is False for check in checks)
    return "\n".join([*lines, f"{failed} of {len(checks)} checks failed" if failed else "ready"])


def _cure_of(error):
    """What to do about an error at the start."""
    if "DEADLINE_EXCEEDED" in str(error):
        return UNREACHED
    if "no device" in str(error):
        import jax

        sees, asks = cards(), str(jax.config.read("jax_cuda_visible_devices"))
        if sees and asks.isdigit() and int(asks) >= len(sees):
            return (
                f"this task sees {_many(len(sees), 'GPU')}, but JAX asks for number {asks}: request GPUs per node "
                "(--gres=gpu:4), or set JAX_LOCAL_DEVICE_IDS=0"
            )
        if not sees:
            return "nvidia-smi lists no GPU for this task: request some (--gres=gpu:4), and look at it on the node"
        plugins = [
            name
            for distribution in importlib.metadata.distributions()
            if "plugin" in (name := distribution.name.lower())
        ]
        if not any(name.startswith("jax-") for name in plugins):
            return "install JAX's plugin in this environment: pip install 'jax[cuda12]'"
        return f"{', '.join(plugins)} is there: compare its CUDA with the driver's in nvidia-smi; unset LD_LIBRARY_PATH"
    return "start it by srun, mpirun, or with COORDINATOR, NUM_PROCESSES and PROCESS_ID set, as ssh.sh does"


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
