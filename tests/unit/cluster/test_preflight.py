"""The check before a job: each fault of a launch is found and its cure named. test_slurm.py runs it
on two nodes.
"""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from places import ROOT
from waiting import PATIENCE

FOLDER = ROOT / "book" / "cluster"
sys.path.insert(0, str(FOLDER))

import join  # noqa: E402
import preflight  # noqa: E402
from preflight import judge  # noqa: E402

pytestmark = pytest.mark.reads("src/shardlab", "book/cluster")

VERSIONS = {"python": "3.13.0", "jax": "0.12.0.1"}


def fact(process=0, host="node1", **changed):
    """What a healthy process of a job with four GPUs on each node finds."""
    plain = {
        "process": process, "host": host, "platform": "gpu", "kind": "NVIDIA H100", "devices": 1,
        "visible": [f"GPU-{host}-{n}" for n in range(4)],
        "gpus": [f"GPU-{host}-{process % 4}"],
        "cores": list(range(4 * (process % 4), 4 * (process % 4) + 4)),
        "versions": VERSIONS, "reads": True, "proxies": [],
    }  # fmt: skip
    return plain | changed


def job(**changed):
    """Eight processes on two nodes; `changed` holds what one of them, number 5, finds instead."""
    facts = [fact(process, f"node{1 + process // 4}") for process in range(8)]
    facts[0] |= {"all_devices": 8, "seconds": 0.01, "transport": "network IB"}
    facts[5] |= changed
    return facts


def failures(facts, **options):
    return {check.name: check for check in judge(facts, **options) if not check.ok}


def test_a_healthy_job_is_ready():
    checks = judge(job(), processes=8, devices=8)
    assert all(check.ok and not check.cure for check in checks)
    assert [check.name for check in checks] == [
        "processes",
        "platform",
        "GPUs",
        "cores",
        "versions",
        "folder",
        "network",
    ]
    said = {check.name: check.detail for check in checks}
    assert said["processes"] == "8 processes on 2 hosts, 8 devices"
    assert said["GPUs"] == "8 GPUs, each used by one process"
    # 2 · 7/8 of 16 MiB in a hundredth of a second
    assert (
        "23.49 Gbit/s for each of 8 devices (16 MiB all-reduced in 10.0 ms by network IB)"
        in said["network"]
    )


@pytest.mark.parametrize(
    ("changed", "name", "found", "cure"),
    [
        (
            {"platform": "cpu", "kind": "cpu", "gpus": []},
            "platform",
            "process 5 fell back to CPUs",
            "pip install 'jax[cuda12]'",
        ),
        (
            {"platform": "cpu", "kind": "cpu", "gpus": []},
            "platform",
            "process 5 fell back",
            "pip install",
        ),
        ({"kind": "NVIDIA A100"}, "platform", "NVIDIA A100) in 1 process", "--constraint"),
        (
            {"gpus": ["GPU-node2-0"]},
            "GPUs",
            "processes 4 and 5 on node2 use one GPU",
            "JAX_LOCAL_DEVICE_IDS=0",
        ),
        ({"gpus": []}, "GPUs", "1 GPU is used by no process", "one task per GPU"),
        ({"cores": [4]}, "cores", "process 5 on node2 has 1 core", "--cpus-per-task"),
        (
            {"cores": [0, 1, 2, 3]},
            "cores",
            "tasks on node2 are bound to cores that overlap",
            "--hint=nomultithread",
        ),
        (
            {"versions": VERSIONS | {"jax": "0.7.2"}},
            "versions",
            "jax: 0.12.0.1 in processes 0, 1, 2 and 4 more; 0.7.2",
            "one environment",
        ),
        ({"versions": {"python": "3.13.0"}}, "versions", "missing in process 5", "one environment"),
        ({"reads": False}, "folder", "process 5 cannot read", "all nodes mount"),
        ({"proxies": ["http_proxy"]}, "proxies", "go through http_proxy", "no_proxy"),
        (
            {"reads": False, "errno": "EROFS", "error": "Read-only file system"},
            "folder",
            "process 5 cannot write there: EROFS, Read-only file system",
            "take another",
        ),
        ({"errno": "ENOSPC", "error": "No space"}, "folder", "ENOSPC", "df -h"),
        ({"errno": "EDQUOT", "error": "Quota"}, "folder", "EDQUOT", "quota"),
        ({"errno": "EIO", "error": "Input/output error"}, "folder", "EIO", "on node2"),
        (
            {"near": [64, 65, 66, 67, 80]},
            "cores",
            "process 5: no core near the GPU, 4-7 instead of 64-67,80 on node2",
            "closest",
        ),
        (
            {"versions": VERSIONS | {"driver": "535.54"}},
            "versions",
            "driver: missing in processes 0, 1, 2 and 4 more; 535",
            "one environment",
        ),
    ],
)
def test_each_fault_is_found_alone_and_its_cure_is_named(changed, name, found, cure):
    failed = failures(job(**changed))
    assert list(failed) == [name]
    assert found in failed[name].detail and cure in failed[name].cure


def test_a_job_of_another_size_or_a_slow_network_is_found():
    few = failures(job()[:1], processes=8)
    assert "1 process on 1 host, 1 device, but --processes 8" in few["processes"].detail
    assert "srun" in few["processes"].cure
    assert "--devices 32" in failures(job(), devices=32)["processes"].detail
    slow = failures(job(), gbit=200)["network"]
    assert "less than half of 200" in slow.detail and "NCCL_SOCKET_IFNAME" in slow.cure
    assert not failures(job(), gbit=46) and failures(job(), gbit=48)  # it has 23.49
    for one in (few := job()[:4]):
        one["host"] = "node1"
    assert "NVLink" in failures(few, gbit=200)["network"].cure
    few[0]["transport"] = "gloo"
    assert "the host's own name resolves" in failures(few, gbit=200)["network"].cure


def test_cpus_are_no_fault_where_they_are_meant():
    """Where the driver lists no GPU, the cure is another."""
    cpus = {"platform": "cpu", "kind": "cpu", "gpus": [], "visible": []}
    four = [fact(process) | cpus for process in range(4)]
    assert not failures(four, cpus=True)
    assert "nvidia-smi" in failures(four)["platform"].cure


# What NCCL 2 writes with NCCL_DEBUG=INFO, as in nccl issues 1066 and 307.
NCCL = """\
n1:1:9 [0] NCCL INFO Using network IB
n1:1:9 [0] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [receive] via NET/IB/0
n1:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0
"""


def test_the_transport_is_read_from_the_log_of_nccl(tmp_path):
    (tmp_path / "nccl.7.n1").write_text(NCCL)
    assert preflight.transport("gpu", tmp_path / "nccl.7") == "network IB, NET/IB"
    assert preflight.transport("gpu", tmp_path / "nothing") == "NCCL"
    assert preflight.transport("cpu", tmp_path / "nccl.7") == "gloo"


# what the drivers' programs print, as in NVIDIA's guide to MIG and the documentation of rocm-smi
LISTS = {
    "four": "".join(f"GPU {n}: NVIDIA H100 (UUID: GPU-{n}-abc)\n" for n in range(4)),
    "MIG": """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77ba0d01)
""",
    "AMD": "device,Unique ID\ncard0,0x1a\ncard1,0x2b\ncard2,0x3c\n",
}


@pytest.fixture
def drivers(tmp_path, monkeypatch):
    """A function that puts stand-ins for the drivers' programs in front of others, and clears what
    hides GPUs.
    """
    (tmp_path / "bin").mkdir()
    for name in [name for names in preflight.HIDES.values() for name in names]:
        monkeypatch.delenv(name, raising=False)

    def place(case):
        name = "rocm-smi" if case == "AMD" else "nvidia-smi"
        option = "--showuniqueid" if case == "AMD" else "-L"
        text = f"#!/bin/sh\n[ $1 = {option} ] && cat <<'END'\n{LISTS[case]}END\ntrue\n"
        if case == "four":
            text += (
                "[ $1 != -L ] && for n in 0 1 2 3; do echo GPU-$n-abc, 0000000$n:17:00.0, 580.65; "
                "done\ntrue\n"
            )
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    return place


CUDA, ROCR, HIP = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("case", "variables", "visible", "other"),
    [
        (
            "four",
            {},
            ["GPU-0-abc", "GPU-1-abc", "GPU-2-abc", "GPU-3-abc"],
            {"vendor": "nvidia", "driver": "580.65"},
        ),
        ("four", {CUDA: ""}, [], {"hidden": f"{CUDA}=", "unknown": []}),
        ("four", {CUDA: "2"}, ["GPU-2-abc"], {"hidden": ""}),
        ("four", {CUDA: "3,1"}, ["GPU-3-abc", "GPU-1-abc"], {}),
        ("four", {CUDA: "GPU-2"}, ["GPU-2-abc"], {"unknown": []}),
        ("four", {CUDA: "0,9"}, ["GPU-0-abc"], {}),
        ("four", {CUDA: "GPU-7,GPU-1"}, ["GPU-1-abc"], {"unknown": ["GPU-7"]}),
        ("MIG", {}, ["MIG-c6d4f1ef", "GPU-77ba0d01"], {"driver": ""}),
        ("MIG", {CUDA: "MIG-cba663e8"}, ["MIG-cba663e8"], {"unknown": []}),
        ("MIG", {CUDA: "0"}, ["MIG-c6d4f1ef"], {}),
        ("AMD", {}, ["0x1a", "0x2b", "0x3c"], {"vendor": "amd"}),
        ("AMD", {ROCR: "1,2", HIP: "1"}, ["0x3c"], {}),
        ("AMD", {HIP: ""}, [], {"hidden": f"{HIP}="}),
    ],
)
def test_the_gpus_that_a_task_sees_are_those_that_no_variable_hides(
    drivers, monkeypatch, case, variables, visible, other
):
    drivers(case)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen = preflight.cards()
    assert seen["visible"] == visible and other.items() <= seen.items()


def test_without_a_driver_no_variable_is_to_blame(monkeypatch):
    monkeypatch.setattr(preflight, "_output", lambda *_: "")
    monkeypatch.setenv(CUDA, "0,1,GPU-2")
    assert preflight.cards() | {"vendor": ""} == {
        "vendor": "",
        "visible": [],
        "unknown": [],
        "hidden": "",
        "driver": "",
        "capability": "",
        "near": [],
    }


def test_cores_near_a_gpu_are_those_that_linux_lists(tmp_path):
    (tmp_path / "0000:c1:00.0").mkdir()
    (tmp_path / "0000:c1:00.0" / "local_cpulist").write_text("0-2,64\n")
    assert preflight._cores_near("00000000:C1:00.0", tmp_path) == [0, 1, 2, 64]
    assert preflight._cores_near("00000000:C2:00.0", tmp_path) == []
    assert preflight._ranges([64, 0, 2, 1]) == "0-2,64"


CUDA12 = {"jax-cuda12-plugin": "0.12.0", "jax-cuda12-pjrt": "0.12.0", "jaxlib": "0.12.0"}


@pytest.mark.parametrize(
    ("changed", "cure", "never"),
    [
        ({"visible": []}, "ask for GPUs (--gres=gpu:4), look at nvidia-smi", "plugin"),
        (
            {"visible": [], "hidden": "CUDA_VISIBLE_DEVICES="},
            "CUDA_VISIBLE_DEVICES= hides all GPUs",
            "plugin",
        ),
        ({"visible": [], "vendor": "amd"}, "look at rocm-smi", "nvidia"),
        (
            {"unknown": ["MIG-1"], "visible": []},
            "MIG-1 is among the visible devices, but nvidia-smi does not",
            "--gres",
        ),
        (
            {"platforms": "cpu,cuda", "versions": CUDA12},
            "JAX_PLATFORMS=cpu,cuda asks for CPUs",
            "pip",
        ),
        (
            {"versions": {"jaxlib": "0.12.0"}},
            "JAX lacks its plugin: pip install 'jax[cuda12]'",
            "ROCm",
        ),
        (
            {"versions": {"jaxlib": "0.12.0"}, "vendor": "amd"},
            "JAX lacks its plugin: ROCm's plugin",
            "cuda12",
        ),
        (
            {"versions": CUDA12, "vendor": "amd"},
            "(jax-cuda12-plugin is for other GPUs): ROCm's",
            "'jax[cuda12]'",
        ),
        (
            {"versions": CUDA12 | {"jaxlib": "0.11.2"}},
            "0.12.0 is not of the version of jaxlib, 0.11.2",
            "driver",
        ),
        (
            {"versions": CUDA12 | {"jax-cuda12-pjrt": "0.9"}},
            "pjrt 0.9 is not of the version",
            "driver",
        ),
        (
            {"versions": {**CUDA12, "jaxlib": "0.12.0", "driver": "470.1"}},
            "compare its CUDA or ROCm with driver 470.1",
            "nvidia-smi",
        ),
    ],
)
def test_why_a_process_fell_back_to_cpus_is_told_by_evidence(changed, cure, never):
    versions = {"versions": VERSIONS | {"jaxlib": "0.12.0"}}
    facts = [fact(0) | versions | {"platform": "cpu", "kind": "cpu", "gpus": []} | changed]
    text = failures(facts)["platform"].cure
    assert cure in text and never not in text


@pytest.mark.parametrize(
    ("variables", "used"),
    [
        ({"http_proxy": "p:1"}, "http_proxy"),
        ({"http_proxy": "p:1", "grpc_proxy": "p:2"}, "grpc_proxy"),
        ({"all_proxy": "p:1", "HTTP_PROXY": "p:1"}, ""),
        ({"http_proxy": "p:1", "no_proxy": "x, .cluster"}, ""),
        ({"http_proxy": "p:1", "no_proxy": "localhost"}, "http_proxy"),
        ({"http_proxy": "p:1", "no_grpc_proxy": "y", "no_proxy": ".cluster"}, "http_proxy"),
        ({"https_proxy": "p:1", "COORDINATOR": "10.1.2.3:99", "no_proxy": "10.0.0.0/8"}, ""),
        (
            {"https_proxy": "p:1", "COORDINATOR": "11.1.2.3:99", "no_proxy": "10.0.0.0/8"},
            "https_proxy",
        ),
        (
            {
                "http_proxy": "p:1",
                "COORDINATOR": "",
                "SLURM_STEP_NODELIST": "n[07-12],m1",
                "no_proxy": "n07",
            },
            "",
        ),
        (
            {
                "http_proxy": "p:1",
                "COORDINATOR": "",
                "SLURM_STEP_NODELIST": "m1,n[07-12]",
                "no_proxy": "n07",
            },
            "http_proxy",
        ),
    ],
)
def test_a_proxy_counts_if_grpc_takes_it_for_the_coordinator(monkeypatch, variables, used):
    """Which variables gRPC reads: its guide to the default proxy mapper."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("JAX_COORD", "SLURM")):
            monkeypatch.delenv(name)
    for name, value in ({"COORDINATOR": "n1.cluster:99"} | variables).items():
        monkeypatch.setenv(name, value)
    assert preflight.uses_proxy() == used


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_why_a_folder_cannot_be_used_is_told_by_the_error_of_the_system(
    monkeypatch, tmp_path, number
):
    def write(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(preflight.Path, "write_text", write)
    facts = preflight.try_folder(tmp_path, f"a folder with {number}")
    code = errno.errorcode[number]
    expected = {"host": os.uname().nodename, "reads": False, "errno": code}
    assert facts == expected | {"error": os.strerror(number)}
    assert preflight._folder([fact() | facts]).cure == join.OF_A_FOLDER[code]


def test_a_folder_below_a_file_is_none(tmp_path):
    (tmp_path / "file").touch()
    assert preflight.try_folder(tmp_path / "file" / "run", "below a file")["errno"] == "ENOTDIR"
    whole = {"host": os.uname().nodename, "reads": True}
    assert preflight.try_folder(tmp_path / "run", "new") == whole
    assert not list((tmp_path / "run").iterdir())


def begin(folder, *arguments, index=None, processes=2, port=0, **environment):
    """Start the file alone, as somebody who has copied it would."""
    for name in ("preflight.py", "join.py"):
        shutil.copy(FOLDER / name, folder)
    drop = ("SLURM", "OMPI", "JAX_", "XLA_", "PYTHON", "CUDA_VISIBLE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    clean |= {"NPROC": "32", **environment}
    if index is not None:
        clean |= {
            "COORDINATOR": f"localhost:{port}",
            "NUM_PROCESSES": str(processes),
            "PROCESS_ID": str(index),
        }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "preflight.py", *map(str, arguments)], cwd=folder, env=clean, **pipes
    )


def end(process):
    out, err = process.communicate(timeout=PATIENCE)
    return (
        process.returncode,
        "\n".join(line for line in out.splitlines() if "[Gloo]" not in line),
        err,
    )


def a_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


@pytest.mark.slow
def test_two_processes_are_checked_by_a_copy_of_the_file(tmp_path):
    port, run = a_port(), tmp_path / "run"
    options = ("--processes", 2, "--devices", 4, "--folder", run, "--json")
    on_cpus = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    both = [begin(tmp_path, *options, index=i, port=port, **on_cpus) for i in (0, 1)]
    (status, text, said), (other, nothing, _) = map(end, both)
    assert (status, other, nothing) == (0, 0, ""), said
    found = json.loads(text)
    checks = {check["name"]: check for check in found["checks"]}
    assert all(check["ok"] for check in checks.values()), checks
    assert checks["launcher"]["detail"].startswith("by hand, joined in ")
    assert checks["processes"]["detail"] == "2 processes on 1 host, 4 devices"
    assert "ms by gloo" in checks["network"]["detail"]
    assert [process["process"] for process in found["processes"]] == [0, 1]
    assert list(run.iterdir()) == []


@pytest.mark.slow
def test_it_is_a_module_of_shardlab_too(tmp_path):
    command = [sys.executable, "-m", "shardlab.cluster.preflight"]
    given = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": PATIENCE}
    done = subprocess.run(
        command, env=os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "32", "XLA_FLAGS": ""}, **given
    )
    assert done.returncode == 0 and done.stdout.endswith("ready\n"), done.stderr


@pytest.mark.slow
def test_logs_of_other_processes_stay(tmp_path):
    """A process with the number 12 is no owner of the log of 123."""
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("preflight.py", "join.py"):
        shutil.copy(FOLDER / name, tmp_path)
    command = f'echo kept > "$TMPDIR/preflight-nccl.$$0.host"; exec {sys.executable} preflight.py'
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "NPROC": "32",
        "XLA_FLAGS": "",
        "TMPDIR": str(logs),
    }
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout
    assert [file.read_text() for file in logs.iterdir() if file.is_file()] == ["kept\n"]
    assert not [
        file for file in logs.iterdir() if file.name.startswith("preflight-") and file.is_dir()
    ]


@pytest.mark.slow
def test_a_silent_fall_back_to_cpus_is_a_failure(tmp_path):
    status, text, _ = end(begin(tmp_path))
    assert status == 1 and "FAIL platform: process 0 fell back to CPUs" in text
    assert "     cure: ask for GPUs" in text and text.endswith("1 of 5 checks failed")


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_process_that_waits_in_vain_ends_and_names_the_cure(tmp_path, index):
    status, text, said = end(
        begin(tmp_path, "--limit", 5, index=index, port=a_port(), JAX_PLATFORMS="cpu")
    )
    assert status == 2, said
    where = f"preflight: process {index} on {socket.gethostname()}"
    assert f"{where} has waited 5 s for the others in jax.distributed.initialize" in text
    assert "     cure: the processes do not reach process 0" in text and "in initialize" in said


def test_an_all_reduce_that_cannot_be_made_is_told_beside_the_other_faults():
    facts = [fact(0), fact(1) | {"platform": "cpu", "kind": "cpu"}]
    facts[0] |= {
        "all_devices": 2,
        "transport": "NCCL",
        "seconds": "the processes have different platforms",
    }
    assert (
        failures(facts)["network"].detail
        == "an all-reduce by NCCL failed: the processes have different platforms"
    )
    assert "fell back to CPUs" in failures(facts)["platform"].detail


def test_gpus_that_nvidia_smi_does_not_list_are_not_called_well():
    facts = [fact(process) | {"visible": [], "gpus": []} for process in range(4)]
    (check,) = [check for check in judge(facts) if check.name == "GPUs"]
    assert check.ok is None and preflight._table([check]).startswith(
        "skip GPUs: nvidia-smi lists none"
    )


@pytest.mark.parametrize(
    ("sees", "asks", "plugins", "cure"),
    [
        (1, "2", ["jax-cuda13-plugin"], "this task sees 1 GPU, but JAX asks for number 2"),
        (0, "0", ["jax-cuda13-plugin"], "ask for GPUs (--gres=gpu:4), look at nvidia-smi"),
        (4, "2", [], "JAX lacks its plugin"),
        (
            4,
            "2",
            ["jax-cuda13-plugin", "jax-cuda13-pjrt"],
            "jax-cuda13-plugin is there: compare its CUDA",
        ),
    ],
)
def test_why_jax_finds_no_device_is_told_by_what_is_there(monkeypatch, sees, asks, plugins, cure):
    import jax

    seen = {"visible": [f"GPU-{n}" for n in range(sees)], "vendor": "nvidia", "driver": ""}
    monkeypatch.setattr(preflight, "cards", lambda: seen)
    monkeypatch.setattr(jax.config, "read", {"jax_cuda_visible_devices": asks}.get)
    made = [
        SimpleNamespace(metadata={"Name": name, "Version": "1.0"}) for name in ["numpy", *plugins]
    ]
    monkeypatch.setattr(preflight.importlib.metadata, "distributions", lambda: made)
    assert cure in preflight._cure_of(
        SystemExit("JAX finds no device for JAX_PLATFORMS=cuda: AssertionError()")
    )


@pytest.mark.parametrize(
    ("driver", "extra"), [("580.65.06", "cuda13"), ("575.57", "cuda12"), ("", "cuda12")]
)
def test_the_driver_decides_which_plugin_to_install(driver, extra):
    seen = {"visible": ["GPU-1"], "versions": {"driver": driver} if driver else {}}
    assert preflight._why_cpus(seen).endswith(f"pip install 'jax[{extra}]' in this environment")


@pytest.mark.parametrize(
    ("capability", "extra"), [("7.0", "cuda12"), ("7.5", "cuda13"), ("10.0", "cuda13")]
)
def test_a_v100_needs_cuda_12_whatever_its_driver(drivers, monkeypatch, capability, extra):
    drivers("four")
    program = shutil.which("nvidia-smi")
    with open(program, "a") as file:
        file.write(f"[ $1 = --query-gpu=compute_cap ] && echo {capability}\ntrue\n")
    seen = preflight.cards()
    assert (seen["capability"], seen["driver"]) == (capability, "580.65")
    facts = seen | {"versions": {"driver": seen["driver"]}}
    assert f"'jax[{extra}]'" in preflight._why_cpus(facts)


def test_what_nvidia_smi_says_beside_its_table_is_no_gpu(drivers):
    drivers("four")
    with open(shutil.which("nvidia-smi"), "a") as file:
        file.write("echo 'Unable to determine the device handle: GPU is lost'\n")
    seen = preflight.cards()
    assert (len(seen["visible"]), seen["driver"], seen["capability"]) == (4, "580.65", "")


def test_an_installed_package_without_a_version_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "jaxlib-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxlib\n")
    (tmp_path / "x.dist-info").mkdir()  # of an installation that was interrupted
    monkeypatch.syspath_prepend(str(tmp_path))
    assert preflight._package_versions({"driver": ""})["jaxlib"] == "of no version"
    assert preflight.judge([fact(versions=preflight._package_versions({"driver": ""}))])


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--gbit", "nan", "invalid number from 0 to 1000000 value: 'nan'"),
        ("--gbit", "inf", "invalid number from 0 to 1000000 value: 'inf'"),
        ("--limit", "0", "invalid number from 1 to 1000000 value: '0'"),
        ("--limit", "-5", "invalid number from 1 to 1000000 value: '-5'"),
        ("--processes", "-1", "invalid number from 0 to 1000000 value: '-1'"),
        ("--devices", "8.5", "invalid number from 0 to 1000000 value: '8.5'"),
        ("--folder", "", "--folder: its name is empty: is its variable set?"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(monkeypatch, capsys, option, value, says):
    monkeypatch.setattr(sys, "argv", ["preflight.py", f"{option}={value}"])
    with pytest.raises(SystemExit):
        preflight._options()
    assert says in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_an_address_is_no_folder_of_this_host(tmp_path):
    status, text, _ = end(begin(tmp_path, "--folder", "gs://bucket/run", JAX_PLATFORMS="cpu"))
    assert status == 0 and "skip folder: gs://bucket/run is an address, and was not" in text, text
    assert not (tmp_path / "gs:").exists()


def test_a_host_s_own_name_matters_where_gloo_joins_several_hosts():
    facts = [
        fact(n, host) | {"platform": "cpu", "address": address}
        for n, (host, address) in enumerate((("node1", "10.0.0.1"), ("node2", "127.0.1.1")))
    ]
    said = "no other host reaches process 1: there the name node2 is 127.0.1.1, a loopback address"
    assert preflight._behind_loopback(facts) == said
    assert not preflight._behind_loopback([one | {"platform": "gpu"} for one in facts])
    assert not preflight._behind_loopback([one | {"host": "node1"} for one in facts])


def test_of_two_versions_the_one_that_python_imports_is_told(tmp_path, monkeypatch):
    for version in ("0.9.2", "0.8.0"):
        folder = tmp_path / version / f"jax-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jax\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(tmp_path / version))
    assert preflight._package_versions({"driver": ""})["jax"] == "0.8.0"


def test_processes_with_unequal_numbers_of_devices_are_not_ready():
    facts = [fact(process, devices=devices) for process, devices in enumerate((1, 3))]
    found = failures(facts, devices=4)["processes"]
    assert found.detail == "devices differ: 1 in process 0; 3 in process 1"


def test_several_processes_with_one_core_are_named_with_their_own_host():
    hosts = ("node1", "node1", "node2")
    facts = [fact(process, host, cores=[0]) for process, host in enumerate(hosts)]
    assert failures(facts)["cores"].detail == "processes 0 and 1 on node1 have 1 core"


@pytest.mark.slow
def test_a_platform_that_is_not_there_is_said_with_its_cure(tmp_path):
    status, text, _ = end(begin(tmp_path, JAX_PLATFORMS="cuda"))
    assert status == 2 and "JAX finds no device for JAX_PLATFORMS=cuda" in text
    assert "     cure: ask for GPUs" in text


@pytest.mark.slow
def test_a_shell_of_salloc_is_not_a_task(tmp_path):
    """The step in which salloc opens a shell has one process, however many tasks the job has."""
    shell = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "4294967290",
        "SLURM_NTASKS": "8",
        "SLURM_PROCID": "0",
    }
    nodes = {"SLURM_STEP_NODELIST": "localhost", "SLURM_LOCALID": "0", "JAX_PLATFORMS": "cpu"}
    status, text, _ = end(begin(tmp_path, **shell, **nodes))
    assert status == 2 and "8 tasks, but this is the interactive step of salloc" in text
    assert "cure: start it by srun in this shell" in text
    alone = shell | nodes | {"SLURM_NTASKS": "1"}
    status, text, _ = end(begin(tmp_path, **alone))
    assert status == 0 and text.endswith("ready")


@pytest.mark.slow
def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("localhost", 0)) as other:
        port = other.getsockname()[1]
        status, text, _ = end(begin(tmp_path, index=0, port=port, JAX_PLATFORMS="cpu"))
    assert (
        status == 2
        and f"port {port} of {socket.gethostname()}, the coordinator's, is already in use" in text
        and "     cure: choose a free one, JAX_COORDINATOR_ADDRESS=name:port (PORT=..." in text
    )


@pytest.mark.slow
def test_a_proxy_is_named_where_processes_wait_in_vain(tmp_path):
    given = {"JAX_PLATFORMS": "cpu", "http_proxy": "http://localhost:9", "no_proxy": ""}
    status, text, _ = end(begin(tmp_path, "--limit", 5, index=1, port=a_port(), **given))
    assert (
        status == 2
        and "cure: connections go through http_proxy, which may not know the nodes" in text
    )


@pytest.mark.slow
def test_cpus_beside_cuda_are_a_fall_back(tmp_path):
    status, text, _ = end(begin(tmp_path, JAX_PLATFORMS="cuda,cpu"))
    assert status == 1 and "FAIL platform: process 0 fell back to CPUs" in text


@pytest.mark.slow
def test_help_says_how_to_start_it(tmp_path):
    status, text, _ = end(begin(tmp_path, "--help"))
    assert status == 0 and "srun python preflight.py" in text and "--gbit G" in text
