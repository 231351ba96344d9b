"""Check a job before it computes: run under any launcher, it says what is wrong with the launch,
and how to cure it.

srun python preflight.py --folder /shared/run              # or mpirun.sh, ssh.sh, or alone
srun python preflight.py --processes 8 --devices 8 --gbit 100
srun python -m shardlab.cluster.preflight              # the same, where shardlab is installed

Every process checks itself and the others: how many they are, on which devices, with how many
cores, whether they reach each other and how fast, whether they share a folder and have the same
packages. Process 0 prints a line for each check. The exit status is 0 if all is well, 1 if a check
failed, 2 if JAX could not start or a process waited in vain. It takes some ten seconds; a process
that waits longer than --limit seconds says for what, prints its stacks, and ends.
"""

import argparse
import atexit
import faulthandler
import importlib
import importlib.metadata
import ipaddress
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

# A copy of this file has join.py beside it; the package has it too.
_join = importlib.import_module(f"{__package__}.join" if __package__ else "join")
exchange, join, names, try_folder = _join.exchange, _join.join, _join.names, _join.try_folder

LAUNCHERS = {"Slurm": "SLURM_PROCID", "Open MPI": "OMPI_COMM_WORLD_RANK", "by hand": "PROCESS_ID"}
PACKAGES = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint")
# names of packages that drive GPUs
LIBRARIES = r"jax-(cuda|rocm)\d+-(plugin|pjrt)|nvidia-(nccl|cudnn)-cu\d+"
SMI = {"nvidia": "nvidia-smi", "amd": "rocm-smi"}
HIDES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}
PROXIES = "grpc_proxy", "https_proxy", "http_proxy"  # that gRPC reads, in this order
DIRECT = "no_grpc_proxy", "no_proxy"  # the same, for the hosts that it reaches without
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
    """Judge what the processes have found, `facts` by index: a `Check` for each thing, as they
    should be read.

    `cpus`: whether CPUs are meant; `processes`, `devices`: how many there should be; `gbit`: what
    the network should give a process, in Gbit/s. 0 means that it is not known.
    """
    checks = [_counted(facts, processes, devices), _platform(facts, cpus)]
    if all(fact["platform"] == "gpu" and fact["visible"] for fact in facts):
        checks.append(_claims(facts))
    elif any(fact["platform"] == "gpu" and not fact["visible"] for fact in facts):
        (smi, *_) = [SMI[fact.get("vendor", "nvidia")] for fact in facts if not fact["visible"]]
        checks.append(
            Check("GPUs", None, f"{smi} lists none, so who uses which cannot be compared")
        )
    checks += [_cores(facts), _versions(facts)]
    if any(fact["reads"] is not None for fact in facts):
        checks.append(_folder(facts))
    checks += _late(facts)
    if "seconds" in facts[0]:
        checks.append(_network(facts[0], len({fact["host"] for fact in facts}) > 1, gbit))
    checks += [_proxies(facts)] if any(fact.get("proxies") for fact in facts) else []
    return checks


def _many(count, noun):
    return (
        f"{count} {noun}"
        if count == 1
        else f"{count} {noun}es"
        if noun.endswith("s")
        else f"{count} {noun}s"
    )


def _counted(facts, processes, devices):
    hosts, total = (
        Counter(fact["host"] for fact in facts),
        sum(fact.get("devices", 1) for fact in facts),
    )
    shape = (
        f"{_many(len(facts), 'process')} on {_many(len(hosts), 'host')}, {_many(total, 'device')}"
    )
    if processes and len(facts) != processes:
        cure = (
            "compare --ntasks, or nodes times --ntasks-per-node, with --processes; was srun (or "
            "mpirun) forgotten?"
        )
        return Check("processes", False, f"{shape}, but --processes {processes}", cure)
    if devices and total != devices:
        cure = (
            "request GPUs per node (--gres=gpu:4), let each task see all of them, and start one "
            "task per GPU"
        )
        return Check("processes", False, f"{shape}, but --devices {devices}", cure)
    each = {}
    for fact in facts:
        each.setdefault(fact.get("devices", 1), []).append(fact["process"])
    if len(each) > 1:
        said = "; ".join(f"{count} in {names(who)}" for count, who in sorted(each.items()))
        cure = "give every task the same GPUs: compare --gres and --gpus-per-task on the nodes"
        return Check("processes", False, f"devices differ: {said}", cure)
    return Check("processes", True, shape)


def _platform(facts, cpus):
    kinds = Counter((fact["platform"], fact["kind"]) for fact in facts)
    shown = ", ".join(
        f"{platform} ({kind}) in {_many(n, 'process')}" for (platform, kind), n in kinds.items()
    )
    slow = [fact for fact in facts if fact["platform"] == "cpu"]
    if slow and not cpus:
        who = names(fact["process"] for fact in slow)
        return Check("platform", False, f"{who} fell back to CPUs ({shown})", _why_cpus(slow[0]))
    if len(kinds) > 1:
        cure = "the processes have different devices: name one kind of node, as by --constraint"
        return Check("platform", False, shown, cure)
    return Check("platform", True, shown)


def _why_cpus(fact):
    """What kept JAX from the GPUs of a process, and the cure: what it has seen decides, and only
    then what is usual.
    """
    smi = SMI[fact.get("vendor", "nvidia")]
    platforms, versions = fact.get("platforms") or "", fact["versions"]
    if fact.get("unknown"):
        return (
            f"{' '.join(fact['unknown'])} is among the visible devices, but {smi} does not list "
            "it: unset the variable"
        )
    if not fact["visible"]:
        hidden = f"{fact['hidden']} hides all GPUs: unset it, or " if fact.get("hidden") else ""
        meant = "if CPUs are meant, set JAX_PLATFORMS=cpu"
        return f"{hidden}ask for GPUs (--gres=gpu:4), look at {smi} on the node; {meant}"
    if platforms.split(",")[0] == "cpu":
        return (
            f"JAX_PLATFORMS={platforms} asks for CPUs, and there are GPUs: set JAX_PLATFORMS=cuda "
            "(rocm on AMD)"
        )
    plugins = [name for name in versions if re.fullmatch(r"jax-(cuda|rocm)\d+-plugin", name)]
    ours = [
        name for name in plugins if name.startswith("jax-rocm") == (fact.get("vendor") == "amd")
    ]
    if not ours:
        how = (
            "ROCm's plugin, as docs.jax.dev/en/latest/installation.html says"
            if fact.get("vendor") == "amd"
            else ""
        )
        there = f" ({', '.join(plugins)} is for other GPUs)" if plugins else ""
        return f"the driver sees GPUs, so JAX lacks its plugin{there}: {how or _pip(fact)}"
    if other := _mismatch(versions):
        return f"{other}: install all of them at once, as {_pip(fact)} does"
    driver = (
        f"driver {versions['driver']}" if "driver" in versions else f"the driver that {smi} names"
    )
    return (
        f"{', '.join(ours)} is there: compare its CUDA or ROCm with {driver}; unset LD_LIBRARY_PATH"
    )


def _pip(fact):
    """The line that installs JAX's plugin for CUDA, by the driver and the GPU: CUDA 13 needs driver
    580 and compute capability 7.5, which a V100 does not have.
    """
    driver, gpu = (
        [int(number) for number in re.findall(r"\d+", text)]
        for text in (fact["versions"].get("driver", ""), fact.get("capability", ""))
    )
    extra = "cuda13" if driver[:1] >= [580] and (not gpu or gpu >= [7, 5]) else "cuda12"
    return f"pip install 'jax[{extra}]' in this environment"


def _mismatch(versions):
    """A plugin of another version than jaxlib's, in words; JAX uses a CUDA plugin only if the
    numbers agree.
    """
    number = {
        name: re.match(r"[\d.]*", version)[0].rstrip(".") for name, version in versions.items()
    }
    for name in versions:
        if re.fullmatch(r"jax-cuda\d+-(plugin|pjrt)", name) and number[name] != number.get(
            "jaxlib", number[name]
        ):
            return f"{name} {versions[name]} is not of the version of jaxlib, {versions['jaxlib']}"
    return ""


def _claims(facts):
    owners = {}
    for fact in facts:
        for gpu in fact["gpus"]:
            owners.setdefault((fact["host"], gpu), []).append(fact["process"])
    shared = {gpu: who for gpu, who in owners.items() if len(who) > 1}
    if shared:
        (host, gpu), who = next(iter(shared.items()))
        cure = (
            "let each task see all GPUs of its node, so that JAX chooses, or set "
            "JAX_LOCAL_DEVICE_IDS=0 where the site binds one GPU to each task; one process "
            "per node takes JAX_LOCAL_DEVICE_IDS=0,1,2,3"
        )
        return Check("GPUs", False, f"{names(who)} on {host} use one GPU, {gpu}", cure)
    idle = len({(fact["host"], gpu) for fact in facts for gpu in fact["visible"]} - set(owners))
    if idle:
        cure = "start one task per GPU, or one per node with JAX_LOCAL_DEVICE_IDS=0,1,2,3"
        subject = "1 GPU is" if idle == 1 else f"{idle} GPUs are"
        return Check("GPUs", False, f"{subject} used by no process", cure)
    return Check("GPUs", True, f"{len(owners)} GPUs, each used by one process")


def _cores(facts):
    few = [fact for fact in facts if len(fact["cores"]) < 2]
    cure = (
        "divide the cores of a node by its tasks: --cpus-per-task, export SRUN_CPUS_PER_TASK, "
        "--hint=nomultithread"
    )
    if few:
        who = [fact["process"] for fact in few if fact["host"] == few[0]["host"]]
        return Check(
            "cores",
            False,
            f"{names(who)} on {few[0]['host']} {'has' if len(who) == 1 else 'have'} 1 core",
            cure,
        )
    far = [
        fact for fact in facts if fact.get("near") and not set(fact["near"]) & set(fact["cores"])
    ]
    if far:
        (fact, *_), who = far, names(fact["process"] for fact in far)
        said = (
            f"{who}: no core near the GPU, {_ranges(fact['cores'])} instead of "
            f"{_ranges(fact['near'])}"
        )
        near = (
            "let Slurm bind by GPU (srun --gpu-bind=closest, --cpu-bind=map_ldom:...), as "
            "nvidia-smi topo -m shows"
        )
        return Check("cores", False, f"{said} on {fact['host']}", near)
    most, least = (choose(len(fact["cores"]) for fact in facts) for choose in (max, min))
    for host in {fact["host"] for fact in facts}:
        sets = [set(fact["cores"]) for fact in facts if fact["host"] == host]
        together, each = set().union(*sets), sum(map(len, sets))
        if any(len(cores) < len(together) for cores in sets) and each > len(together):
            return Check("cores", False, f"tasks on {host} are bound to cores that overlap", cure)
    return Check(
        "cores",
        True,
        f"{least} cores for a process" if least == most else f"{least} to {most} cores",
    )


def _ranges(numbers):
    """0-3,8: the form of taskset and of Linux."""
    text, numbers = [], sorted(numbers)
    for number in numbers:
        if number - 1 not in numbers:
            text.append(str(number))
        elif number + 1 not in numbers:
            text[-1] += f"-{number}"
    return ",".join(text)


def _versions(facts):
    for name in sorted({name for fact in facts for name in fact["versions"]}):
        by_version = {}
        for fact in facts:
            by_version.setdefault(fact["versions"].get(name, "missing"), []).append(fact["process"])
        if len(by_version) > 1:
            sentence = "; ".join(
                f"{version} in {names(who)}" for version, who in by_version.items()
            )
            cure = "activate one environment, on a disk that all nodes share, in the batch script"
            return Check("versions", False, f"{name}: {sentence}", cure)
    for fact in facts:
        if other := _mismatch(fact["versions"]):
            return Check(
                "versions",
                False,
                f"{other} in {names([fact['process']])}",
                f"install them together: {_pip(fact)}",
            )
    shown = [
        f"{name} {facts[0]['versions'][name]}"
        for name in ("python", "jax")
        if name in facts[0]["versions"]
    ]
    return Check(
        "versions", True, f"{', '.join(shown)}, the same in all" if shown else "the same in all"
    )


def _folder(facts):
    failed = [fact for fact in facts if fact.get("errno")]
    if failed:
        code = failed[0]["errno"]
        which = [fact["process"] for fact in failed if fact["errno"] == code]
        cure = _join.OF_A_FOLDER.get(
            code, f"look at it on {failed[0]['host']}: ls -ld, df -h; all nodes have to mount it"
        )
        return Check(
            "folder",
            False,
            f"{names(which)} cannot write there: {code}, {failed[0]['error']}",
            cure,
        )
    blind = [fact["process"] for fact in facts if not fact["reads"]]
    if blind:
        cure = (
            "name a folder on a file system that all nodes mount (not /tmp), and that every "
            "process may use"
        )
        return Check(
            "folder", False, f"{names(blind)} cannot read there what process 0 has written", cure
        )
    return Check("folder", True, "what process 0 writes, all read")


def _network(first, several_hosts, gbit):
    n, seconds, transport = first["all_devices"], first["seconds"], first["transport"]
    if isinstance(seconds, str) and "loopback" in seconds:
        return Check("network", False, seconds, OWN_NAME)
    if isinstance(seconds, str):  # what JAX said instead
        cure = (
            "NCCL_DEBUG=INFO says which interface and plugin it takes; the cause stands in its "
            "first WARN line"
        )
        return Check("network", False, f"an all-reduce by {transport} failed: {seconds}", cure)
    got = 2 * (n - 1) / n * MEGABYTES * 2**20 * 8 / seconds / 1e9  # a ring
    shown = f"{got:.2f} Gbit/s for each of {n} devices"
    how = f"{MEGABYTES} MiB all-reduced in {1000 * seconds:.1f} ms by {transport}"
    if not gbit or got >= gbit / 2:
        return Check("network", True, f"{shown} ({how})")
    if "gloo" in transport:
        cure = f"{OWN_NAME}; and at the link"
    elif several_hosts:
        cure = (
            "NCCL_DEBUG=INFO prints the interface: name another (NCCL_SOCKET_IFNAME=ib0), load "
            "the network's plugin"
        )
    else:
        cure = (
            "within a node NCCL should use NVLink: look at nvidia-smi topo -m, and at "
            "NCCL_DEBUG=INFO"
        )
    return Check("network", False, f"{shown}, less than half of {gbit:g} ({how})", cure)


OWN_NAME = "gloo listens at the address to which the host's own name resolves: look at /etc/hosts"


def _behind_loopback(facts):
    """Which processes no other host would reach by gloo, in words; "" if all are reached."""
    inside = [fact for fact in facts if fact.get("address", "").startswith("127.")]
    if not inside or len({fact["host"] for fact in facts}) == 1 or facts[0]["platform"] != "cpu":
        return ""
    hosts = ", ".join(dict.fromkeys(f"{fact['host']} is {fact['address']}" for fact in inside))
    who = names(fact["process"] for fact in inside)
    return f"no other host reaches {who}: there the name {hosts}, a loopback address"


def _late(facts):
    """A check that names the last process, if the others have waited long for it to join."""
    joined = [fact.get("joined", 0) for fact in facts]
    last = min(facts, key=lambda fact: fact.get("joined", 0))
    if (late := max(joined) - min(joined)) < LATE:
        return []
    said = f"process {last['process']} on {last['host']} came {late:.0f} s after the first"
    cure = "look at what slows its start (the environment's disk, a module), or give --limit"
    return [Check("start", None, said, cure)]


LATE = 20  # seconds: an import of JAX from a slow disk takes less


def _proxies(facts):
    variables = sorted({name for fact in facts for name in fact.get("proxies", ())})
    return Check(
        "proxies", False, f"connections to the coordinator go through {', '.join(variables)}", UNSET
    )


UNSET = (
    "unset the variable in the batch script, or name the nodes in no_proxy (their names, or the "
    "end of these)"
)


# --- What a process finds -------------------------------------------------------------------------


def coordinator_host():
    """The host of process 0 as far as the environment tells, or ""."""
    address = os.environ.get("COORDINATOR") or os.environ.get("JAX_COORDINATOR_ADDRESS") or ""
    nodes = re.match(r"([^,\[]*)(?:\[(\w+))?", os.environ.get("SLURM_STEP_NODELIST", ""))
    return address.rpartition(":")[0] or "".join(part for part in nodes.groups() if part)


def uses_proxy():
    """The variable that leads gRPC's connections to the coordinator through a proxy, or "".

    gRPC reads these and no others, in this order:
    grpc.github.io/grpc/core/md_doc_core_default_http_proxy_mapper.html.
    """
    proxy = next((name for name in PROXIES if os.environ.get(name)), "")
    direct = (
        next((os.environ[name] for name in DIRECT if name in os.environ), "").lower().split(",")
    )
    host = coordinator_host().lower()
    near = host and any(host.endswith(end.strip()) for end in direct if end.strip())
    return "" if near or _in_networks(host, direct) else proxy


def _in_networks(host, entries):
    """Whether an address is in one of the networks that entries such as 10.0.0.0/8 name."""
    for entry in entries:
        with suppress(ValueError):
            if "/" in entry and ipaddress.ip_address(host) in ipaddress.ip_network(
                entry.strip(), strict=False
            ):
                return True
    return False


def _output(*command):
    with suppress(OSError, subprocess.TimeoutExpired):
        process = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return process.stdout if process.returncode == 0 else ""
    return ""


def cards():
    """The GPUs that this process may use: those that the driver lists, less those that variables
    hide.

    Returns:
      A dict: "vendor", "nvidia" or "amd"; "visible", the identifiers of the GPUs (or of the parts
      made by MIG); "unknown", names in a variable that the driver does not list; "hidden", the
      variable that hides all; "driver", its version; "near", for each visible GPU the cores on its
      NUMA node, where Linux says.
    """
    text = _output("nvidia-smi", "-L")
    listed = [
        (gpu or mig) for gpu, mig in re.findall(r"UUID: (?:(GPU-[^)\s]+)|(MIG-[^)\s]+))\)", text)
    ]
    parts = {}
    for name in listed:  # a GPU, and below it its parts
        parts.update({name: []} if name.startswith("GPU-") else {})
        if name.startswith("MIG-"):
            parts[list(parts)[-1]].append(name)
    vendor, driver, near = "nvidia", "", {}
    asked = "--query-gpu=uuid,pci.bus_id,driver_version", "--format=csv,noheader"
    for uuid, bus, number in _rows(_output("nvidia-smi", *asked), 3):
        near[uuid], driver = _cores_near(bus), number
    # apart from the others: a driver before 510 does not know it
    of_each = _output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    least = min(
        (one for (one,) in _rows(of_each, 1) if re.fullmatch(r"\d+\.\d+", one)),
        key=float,
        default="",
    )
    if not parts and (
        amd := re.findall(
            r"^card\d+, *(\S+)$", _output("rocm-smi", "--showuniqueid", "--csv"), re.M
        )
    ):
        vendor, parts = "amd", {name: [] for name in amd}
        driver = "".join(
            re.findall(
                r"Driver version, *(\S+)", _output("rocm-smi", "--showdriverversion", "--csv")
            )
        )
    found = {"vendor": vendor, "unknown": [], "hidden": "", "driver": driver, "capability": least}
    # CUDA takes one part of a GPU
    visible = [mig for gpu in parts for mig in parts[gpu][:1] or [gpu]]
    every = [*visible, *(name for gpu in parts for name in [gpu, *parts[gpu]])]
    for variable in HIDES[vendor]:
        if (value := os.environ.get(variable)) is None:
            continue
        chosen, before = [name.strip() for name in value.split(",") if name.strip()], visible
        visible = [
            before[int(name)] for name in chosen if name.isdigit() and int(name) < len(before)
        ]
        for name in chosen:
            same = [one for one in dict.fromkeys(every) if one.startswith(name)]
            if not name.isdigit() and parts:
                visible += same[:1]
                found["unknown"] += [] if same else [name]
        if parts and not visible:
            found["hidden"] = f"{variable}={value}"
    of = {mig: gpu for gpu in parts for mig in parts[gpu]}
    return found | {
        "visible": visible,
        "near": [near.get(of.get(name, name), []) for name in visible],
    }


def _rows(text, columns):
    """The rows of a table of values between commas; what else a program has said is none."""
    rows = ([word.strip() for word in line.split(",")] for line in text.splitlines())
    return [row for row in rows if len(row) == columns]


def _cores_near(bus, devices="/sys/bus/pci/devices"):
    """The cores on the NUMA node of a device, by its address on the PCI bus; [] where Linux does
    not say.
    """
    domain, _, rest = bus.lower().partition(":")
    with suppress(OSError, ValueError):
        text = Path(devices, f"{domain[-4:]}:{rest}", "local_cpulist").read_text()
        ends = [part.split("-") for part in text.strip().split(",")]
        return [core for end in ends for core in range(int(end[0]), int(end[-1]) + 1)]
    return []


def transport(platform, log):
    """How NCCL says that it sends, from its log; gloo on CPUs."""
    if platform == "cpu":
        return "gloo"
    text = "".join(file.read_text(errors="replace") for file in log.parent.glob(f"{log.name}*"))
    ways = Counter(
        re.findall(r"\[(?:send|receive)\] via (NET/[\w/ ]+?|P2P[\w/]*|SHM[\w/]*)(?:/\d+)*\s", text)
    )
    using = re.findall(r"Using network (\S+)", text)
    return ", ".join([*(f"network {name}" for name in dict.fromkeys(using)), *ways]) or "NCCL"


def _package_versions(seen):
    """The versions of what JAX needs on this host, the driver's among them."""
    versions = {"python": sys.version.split()[0]}
    for distribution in importlib.metadata.distributions():
        read = {}  # where an installation was interrupted: None, or newer libraries raise
        with suppress(FileNotFoundError):
            read = distribution.metadata or {}
        name = str(read.get("Name")).lower()
        if name in PACKAGES or re.fullmatch(LIBRARIES, name):
            # Python imports the first one
            versions.setdefault(name, read.get("Version", "of no version"))
    return versions | ({"driver": seen["driver"]} if seen["driver"] else {})


def _own_address():
    """The address to which this host's own name resolves, or ""."""
    with suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return ""


def _facts():
    """What this process sees."""
    import jax

    seen = cards()
    visible = seen["visible"]
    local = jax.local_devices()
    numbers = [d.local_hardware_id for d in local if d.platform == "gpu"]
    gpus = [visible[number] for number in numbers if number in range(len(visible))]
    cores = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    return {
        "process": jax.process_index(),
        "host": socket.gethostname(),
        "address": _own_address(),
        "platform": local[0].platform,
        "kind": local[0].device_kind,
        "devices": len(local),
        "gpus": gpus,
        "visible": visible,
        "vendor": seen["vendor"],
        "unknown": seen["unknown"],
        "hidden": seen["hidden"],
        "capability": seen["capability"],
        "platforms": jax.config.jax_platforms,
        "near": seen["near"][numbers[0]] if len(numbers) == 1 and numbers[0] < len(visible) else [],
        "cores": sorted(cores),
        "versions": _package_versions(seen),
        "proxies": [uses_proxy()] if uses_proxy() and jax.process_count() > 1 else [],
    }


def _measured():
    """Seconds of an all-reduce of `MEGABYTES` MiB among all devices: the fastest of five."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    n, floats = jax.device_count(), MEGABYTES * 2**18
    mesh = jax.make_mesh((n,), ("d",), axis_types=(AxisType.Auto,))
    by_device, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
    x = jax.make_array_from_callback(
        (n, floats), by_device, lambda index: np.ones((1, floats), np.float32)
    )
    total = jax.jit(lambda x: x.sum(0), out_shardings=whole)
    if float(total(x).addressable_data(0)[0]) != n:
        raise SystemExit(f"the sum of {n} ones is {float(total(x).addressable_data(0)[0])}")
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        total(x).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


class _Patience:
    """Ends this process, with words, a cure and stacks, if what it does takes longer than a limit
    in seconds.
    """

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
        message = (
            f"preflight: {who} has waited {self.limit} s {self.doing}\n     cure: {self.cure}\n"
        )
        print(message, end="", flush=True)
        faulthandler.dump_traceback()
        os._exit(2)


def _at_least(least, kind=int):
    """A reader of numbers from `least` on, for argparse."""

    def number(text):
        value = kind(text)
        if not least <= value <= 10**6:
            raise ValueError(text)
        return value

    number.__name__ = f"number from {least} to {10**6}"
    return number


def _folder_name(text):
    if not text:
        raise argparse.ArgumentTypeError("its name is empty: is its variable set?")
    return text


def _options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="how many processes there should be",
    )
    parser.add_argument(
        "--devices",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="how many devices there should be in all",
    )
    parser.add_argument(
        "--folder",
        type=_folder_name,
        metavar="PATH",
        help="a folder that all processes should share",
    )
    parser.add_argument(
        "--gbit",
        type=_at_least(0, float),
        default=0,
        metavar="G",
        help="Gbit/s that the network should give each",
    )
    parser.add_argument(
        "--limit",
        type=_at_least(1),
        default=60,
        metavar="S",
        help="seconds, once JAX is imported, until a hang is ended (60)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the checks and all facts as JSON"
    )
    return parser.parse_args()


def main():
    """Join the job, check it, and print what was found; returns the exit status."""
    options = _options()
    cpus = os.environ.get("JAX_PLATFORMS") == "cpu"
    launcher = next((name for name, rank in LAUNCHERS.items() if rank in os.environ), "none")
    log = Path(tempfile.mkdtemp(prefix="preflight-")) / "nccl"
    atexit.register(shutil.rmtree, log.parent, ignore_errors=True)
    nccl = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH",
        "NCCL_DEBUG_FILE": f"{log}.%h",
    }
    os.environ.update({name: value for name, value in nccl.items() if name not in os.environ})

    import jax

    rank = os.environ.get(LAUNCHERS.get(launcher, ""), "0")
    patience = _Patience(rank, options.limit)
    proxy = uses_proxy()
    waits = (
        f"connections go through {proxy}, which may not know the nodes: {UNSET}"
        if proxy
        else UNREACHED
    )
    patience.over("for the others in jax.distributed.initialize", waits)
    begin = time.perf_counter()
    try:
        join(any_platform=True, any_program=True, initialization_timeout=options.limit + 60)
    except (RuntimeError, ValueError, OSError, SystemExit) as error:
        cause, cure = _cause_and_cure(error)
        print(
            f"preflight: process {rank} (launcher {launcher}) cannot start: {cause}\n     cure: "
            f"{cure}\n",
            end="",
            flush=True,
        )
        return 2
    started = time.perf_counter() - begin
    patience.over(
        "for what the other processes see",
        "look at the processes that print nothing: did they all start?",
    )
    facts = _facts() | {"joined": started, "reads": None}
    if options.folder and "://" not in options.folder:
        facts |= try_folder(options.folder, "preflight")
    every = [json.loads(text) for text in exchange("preflight/facts", json.dumps(facts))]
    every[0]["all_devices"] = sum(facts_of_one["devices"] for facts_of_one in every)
    if every[0]["all_devices"] > 1:
        every[0]["seconds"] = _behind_loopback(every) or "the processes have different platforms"
        same = len({facts_of_one["platform"] for facts_of_one in every}) == 1
        if same and not _behind_loopback(every):
            cure = (
                OWN_NAME
                if facts["platform"] == "cpu"
                else "the network of the collectives hangs: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME"
            )
            cure += "; is a port blocked?"
            patience.over("in an all-reduce", cure)
            try:
                every[0]["seconds"] = _measured()
            except (RuntimeError, ValueError) as error:
                every[0]["seconds"] = str(error).splitlines()[0]
        every[0]["transport"] = transport(facts["platform"], log)
    patience.stop()
    asked = {
        "cpus": cpus,
        "processes": options.processes,
        "devices": options.devices,
        "gbit": options.gbit,
    }
    checks = judge(every, **asked)
    if options.folder and "://" in options.folder:
        checks.append(Check("folder", None, f"{options.folder} is an address, and was not checked"))
    checks.insert(0, Check("launcher", True, f"{launcher}, joined in {started:.1f} s"))
    if jax.process_index() == 0:
        both = {"checks": [asdict(check) for check in checks], "processes": every}
        text = json.dumps(both) if options.json else _table(checks)
        # one write, so that lines of several processes do not mix
        print(f"{text}\n", end="", flush=True)
    if jax.process_count() > 1:
        jax.distributed.shutdown()  # all have the same status
    return 1 if any(check.ok is False for check in checks) else 0


def _table(checks):
    lines = []
    for check in checks:
        word = {True: "ok  ", False: "FAIL", None: "warn" if check.cure else "skip"}[check.ok]
        lines.append(f"{word} {check.name}: {check.detail}")
        lines += [f"     cure: {check.cure}"] if check.cure else []
    failed = sum(check.ok is False for check in checks)
    return "\n".join([*lines, f"{failed} of {len(checks)} checks failed" if failed else "ready"])


def _cause_and_cure(error):
    """What an error at the start says, and what to do about it."""
    cause, _, cure = str(error).rpartition(": ")
    both = "the coordinator's", "COORDINATOR", "NUM_PROCESSES", "PROCESS_ID"  # join says both
    return (cause, cure) if any(what in cause for what in both) else (error, _cure_of(error))


def _cure_of(error):
    """What to do about an error at the start."""
    text = str(error)
    if "interactive step" in text:
        return "start it by srun in this shell: srun python -u ..."
    if "DEADLINE_EXCEEDED" in text:
        return UNREACHED
    if "no device" in text:
        import jax

        seen = cards()
        asks = str(jax.config.read("jax_cuda_visible_devices"))
        sees = seen["visible"]
        if sees and asks.isdigit() and int(asks) >= len(sees):
            return (
                f"this task sees {_many(len(sees), 'GPU')}, but JAX asks for number {asks}: "
                "request GPUs per node (--gres=gpu:4), or set JAX_LOCAL_DEVICE_IDS=0"
            )
        return _why_cpus(seen | {"platforms": "", "versions": _package_versions(seen)})
    return (
        "start it by srun, mpirun, or with COORDINATOR, NUM_PROCESSES and PROCESS_ID set, as "
        "ssh.sh does"
    )


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
