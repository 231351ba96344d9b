"""The batch scripts and programs of clusters.md: run by ssh.sh and alone, and by a real Slurm on
two nodes.

`scripts/record_cluster.py` writes the recordings that the chapter shows; these tests compare fresh
runs with them.
"""

import ast
import contextlib
import copy
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jsonschema
import numpy as np
import psutil
import pytest
import yaml
from places import ROOT
from slurm_cluster import Cluster, missing, on_cpus
from waiting import PATIENCE, wait_until

pytestmark = pytest.mark.reads(
    "src/shardlab",
    "book/cluster",
    "book/clusters.md",
    "book/costs.md",
    "book/your_centre.md",
    "tests/cluster/kubernetes.json",
)

ENDLESS = 10**6  # steps: until the test ends them, however late it comes to that
FOLDER = ROOT / "book" / "cluster"
ROOMS = ("tests/tools/replicas", "tests/tools/runs")  # where slurm_cluster is, and what it imports
RECORDINGS = FOLDER / "recordings"
PACKAGED = ROOT / "src" / "shardlab" / "cluster" / "recordings"  # chapters read them in Colab too


@pytest.fixture(scope="module")
def cluster():
    if reason := missing():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    killed = (
        "import os; from slurm_cluster import Cluster; Cluster().__enter__(); "
        "os.kill(os.getpid(), 9)"
    )
    rooms = f"import sys; sys.path += {[str(ROOT / room) for room in ROOMS]}; "
    done = subprocess.run([sys.executable, "-c", rooms + killed], timeout=PATIENCE)
    # what such a run has left must not disturb the next one
    assert done.returncode == -signal.SIGKILL
    with Cluster() as cluster:
        yield cluster
    assert (
        not list(Path("/run/netns").glob("node*")) and "node1" not in Path("/etc/hosts").read_text()
    )


# What others print, Orbax only if a disk is slow.
NOT_SAID = r"\[Gloo\]|slurmstepd|^srun:|^\d+: *$|WARNING:absl:Waiting for previous save"


def said(output):
    """What a job printed, ordered by process, without empty lines, those of others, and the job's
    number.
    """
    lines = [line for line in output.splitlines() if not re.search(NOT_SAID, line)]
    ranked = sorted(
        lines, key=lambda line: int(line.split(":")[0]) if re.match(r"\d+: ", line) else -1
    )
    return [re.sub(r"^job \d+", "job N", line) for line in ranked]


def recorded(file):
    """The lines of a recording, without its header."""
    lines = (RECORDINGS / file).read_text().splitlines()
    assert (
        lines[0].startswith("# ") and re.search(r"\d{4}-\d\d-\d\d", lines[0]) and "JAX" in lines[0]
    )
    return [line for line in lines if not line.startswith("# ")]


def numbers_apart(line):
    """A line's words, and its numbers with a fraction, which may differ in the last digits."""
    return re.sub(r"\d+\.\d+", "#", line), [
        float(number) for number in re.findall(r"\d+\.\d+", line)
    ]


def same(one, other):
    """Assert that two outputs are equal up to rounding."""
    assert [numbers_apart(line)[0] for line in one] == [numbers_apart(line)[0] for line in other]
    for a, b in zip(one, other, strict=True):
        assert numbers_apart(a)[1] == pytest.approx(numbers_apart(b)[1], rel=1e-3)


def outside_slurm():
    """This environment without Slurm's variables, by which JAX would take a program for a task."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}


def alone(*arguments, devices=8):
    """Run a program of the chapter in one process, without Slurm; returns its lines."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=FOLDER,
        env=outside_slurm() | on_cpus(devices),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def login(cluster):
    """A function that starts a script on node1, from which ssh reaches both nodes, as on a login
    node.
    """
    path = cluster.serve_ssh()
    of_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    settings = (
        outside_slurm()
        | on_cpus(1)
        | of_root
        | {"VENV": sys.prefix, "HOSTS": "node1 node2", "PATH": path}
    )

    with contextlib.ExitStack() as stack:

        def begin(script, *arguments, **environment):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            command = cluster.on("node1", "bash", script, *map(str, arguments))
            run = stack.enter_context(
                subprocess.Popen(command, cwd=FOLDER, env=settings | environment, **pipes)
            )
            stack.callback(run.kill)
            return run

        yield begin


def processes_of(cluster, program):
    """The processes of a program on the nodes: their node and their index."""
    found = []
    for node in cluster.names:
        for pid in cluster.run("ip", "netns", "pids", node).split():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(int(pid))
                if str(program) in process.cmdline()[1:] and "python" in process.name():
                    found.append((node, process))
    return found


def end(run):
    """Wait for a program to end without an error; returns what it said, without gloo's words in
    between.
    """
    output, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, output
    return re.findall(
        r"\d+ process(?:es)?, .*|process \d+ of .*|step \d+ .*|resumes .*|done, .*|SIGTERM: .*",
        output,
    )


def test_ssh_starts_one_program_of_two_processes_on_two_nodes(login):
    lines = sorted(end(login("ssh.sh", "hello.py")))
    assert len(lines) == 2
    for process, line in enumerate(lines):
        assert line.startswith(f"process {process} of 2 on node{process + 1}: 1 of 2 devices")
        assert line.endswith("sum 1")


def test_programs_by_ssh_on_the_nodes_of_a_job_leave_its_training_alone(cluster, login):
    """Where a site lets ssh in, it may set the number of the job, and no more."""
    program, folder = cluster.folder / "trains.py", cluster.folder / "beside-ssh"
    program.write_text(TRAINS)
    folder.mkdir()
    job = cluster.submit(FOLDER / "two-nodes.sbatch", program, folder, PYTHONPATH=str(FOLDER))
    joined = lambda: len(list(folder.glob("joined-*"))) == 8  # noqa: E731
    try:
        wait_until(joined, partial(cluster.told, job))
        (folder / "by-ssh.sh").write_text(
            f'ssh node2 "cd {FOLDER} && env $SAYS JAX_PLATFORMS=cpu {sys.executable} -u hello.py"'
        )
        for says in ("", f"SLURM_JOB_ID={job} SLURM_JOB_NODELIST=node[1-2]"):
            (line,) = end(login(folder / "by-ssh.sh", SAYS=says))
            assert line.startswith("process 0 of 1 on node2")
        beside = sorted(end(login("ssh.sh", "hello.py")))
        assert len(beside) == 2 and all(line.endswith("sum 1") for line in beside)
    finally:
        (folder / "end").touch()  # else the job keeps the nodes until its limit
        done = cluster.wait(job)
    assert done.state == "COMPLETED" and done.output.count("trained, sum 28") == 8, done.output


def test_mpirun_starts_one_program_of_eight_processes_on_two_nodes(login):
    lines = sorted(end(login("mpirun.sh", "hello.py")))
    assert len(lines) == 8
    for process, line in enumerate(lines):
        assert line.startswith(f"process {process} of 8 on node{1 + process // 4}: 1 of 8 devices")
        assert f"JAX uses {process % 4}, " in line and line.endswith("sum 28")


@pytest.mark.parametrize("script", ["ssh.sh", "mpirun.sh"])
def test_where_gpus_are_meant_no_launcher_ends_in_a_success_on_cpus(login, script):
    run = login(script, "hello.py", JAX_PLATFORMS="", EACH="1")
    output, _ = run.communicate(timeout=PATIENCE)
    assert (
        run.returncode
        and "JAX finds no device for JAX_PLATFORMS=cuda" in output
        and "sum" not in output
    )


def test_a_program_alone_does_not_fall_back_to_cpus():
    done = subprocess.run(
        [sys.executable, "hello.py"],
        cwd=FOLDER,
        env=os.environ | on_cpus(1) | {"JAX_PLATFORMS": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (
        done.returncode == 1
        and "JAX finds no GPU or TPU and uses CPUs" in done.stderr
        and not done.stdout
    )


def test_a_line_of_hello_is_one_write_so_that_lines_of_processes_do_not_mix():
    # which keeps writes apart
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with reader, writer:
        command = [sys.executable, "-u", "hello.py"]
        subprocess.run(
            command,
            cwd=FOLDER,
            env=os.environ | on_cpus(2),
            stdout=writer,
            check=True,
            timeout=PATIENCE,
        )
        assert re.fullmatch(rb"process 0 of 1 .* sum 0\n", reader.recv(4096))


@pytest.mark.parametrize(("script", "processes"), [("ssh.sh", 2), ("mpirun.sh", 4)])
def test_they_train_one_model_in_one_folder(login, tmp_path, script, processes):
    lines = end(login(script, "train.py", "--folder", tmp_path / "run", "--steps", 3, EACH="2"))
    assert lines[0] == f"{processes} processes, {processes} devices"
    same(lines[1:], alone("train.py", "--folder", tmp_path / "alone", "--steps", 3)[1:])


@pytest.mark.parametrize(
    ("script", "launcher", "processes"), [("ssh.sh", "by hand", 2), ("mpirun.sh", "Open MPI", 4)]
)
def test_preflight_finds_them_ready(login, tmp_path, script, launcher, processes):
    what = (
        "preflight.py",
        "--processes",
        processes,
        "--folder",
        tmp_path / "shared",
        "--limit",
        PATIENCE,
    )
    output, _ = (run := login(script, *what, EACH="2")).communicate(timeout=PATIENCE)
    assert run.returncode == 0 and re.search(r"^ready\r?$", output, re.MULTILINE), output
    assert f"launcher: {launcher}, " in output and f"{processes} processes on 2 hosts" in output


@pytest.mark.parametrize(
    ("script", "rank"), [("ssh.sh", "PROCESS_ID"), ("mpirun.sh", "OMPI_COMM_WORLD_RANK")]
)
def test_they_end_all_processes_if_one_fails(cluster, login, tmp_path, script, rank):
    program = tmp_path / "program.py"
    program.write_text(
        f"import os, sys, time\nos.environ['{rank}'] == '1' and sys.exit(3)\ntime.sleep(3600)\n"
    )
    run = login(script, program, EACH="1")
    run.communicate(timeout=PATIENCE)
    assert run.returncode in (1, 3)
    wait_until(
        lambda: not processes_of(cluster, program), lambda: str(processes_of(cluster, program))
    )


def endless(folder):
    """A training that ends by a signal alone, and saves nothing before."""
    return "train.py", "--folder", folder, "--steps", ENDLESS, "--every", 1000, "--pause", 0.05


def test_sigterm_to_one_process_stops_training_at_one_saved_step(cluster, login, tmp_path):
    what = endless(tmp_path / "run")
    run = login("ssh.sh", *what)
    seen = []
    while not seen or "step 3 " not in seen[-1]:
        seen.append(run.stdout.readline())
        assert seen[-1], seen
    (second,) = [process for node, process in processes_of(cluster, "train.py") if node == "node2"]
    os.kill(second.pid, signal.SIGTERM)
    last = end(run)[-1]
    step = int(re.fullmatch(r"SIGTERM: saved step (\d+) and stopped", last)[1])
    assert 3 <= step < ENDLESS and (tmp_path / "run" / str(step)).is_dir()
    again = alone("train.py", "--folder", tmp_path / "run", "--steps", step + 1)
    assert again[1] == f"resumes after step {step}" and again[2].startswith(f"step {step + 1} loss")


def test_sigterm_stops_a_single_process_too(tmp_path):
    what = endless(tmp_path / "run")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, "-u", *map(str, what)]
    with subprocess.Popen(command, cwd=FOLDER, env=outside_slurm() | on_cpus(4), **pipes) as run:
        seen = ""
        while "step 3 " not in seen:
            seen = run.stdout.readline()
            assert seen
        run.send_signal(signal.SIGTERM)
        last = end(run)[-1]
    step = int(re.fullmatch(r"SIGTERM: saved step (\d+) and stopped", last)[1])
    again = alone("train.py", "--folder", tmp_path / "run", "--steps", step + 1)
    assert again[1] == f"resumes after step {step}"


def test_devices_that_do_not_divide_the_batch_are_refused(tmp_path):
    command = [sys.executable, "train.py", "--folder", tmp_path]
    done = subprocess.run(
        command,
        cwd=FOLDER,
        env=os.environ | on_cpus(3),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1 and "64 examples cannot be sharded over 3 devices" in done.stderr


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("two-nodes.sbatch", "before sbatch"),
        ("one-node.sbatch", "before sbatch"),
        ("ssh.sh", ""),
        ("mpirun.sh", ""),
    ],
)
def test_a_script_without_its_environment_says_so(script, says):
    clean = {name: value for name, value in os.environ.items() if name != "VENV"}
    done = subprocess.run(
        ["bash", script, "hello.py"], cwd=FOLDER, env=clean, capture_output=True, text=True
    )
    assert (
        done.returncode
        and f"VENV: export VENV=/path/to/your/environment {says}".strip() in done.stderr
    )


def test_the_last_step_is_saved_although_it_is_not_due(tmp_path):
    lines = alone("train.py", "--folder", tmp_path / "run", "--steps", 7)
    assert lines[-1].startswith("done")
    assert sorted(int(step.name) for step in (tmp_path / "run").iterdir()) == [6, 7]
    again = alone("train.py", "--folder", tmp_path / "run", "--steps", 7)
    assert again[1:] == ["resumes after step 7", lines[-1]]


def test_a_process_makes_only_the_examples_of_its_own_devices():
    """Calls `batch` of train.py as the second of eight processes with a device each, and counts the
    numbers drawn.
    """
    drawn = []

    class Generator:
        def normal(self, size):
            drawn.append(np.prod(size))
            return np.zeros(size)

    class FakeNumpy:
        stack, random = np.stack, type("random", (), {"default_rng": lambda seed: Generator()})

    class FakeJax:
        @staticmethod
        def make_array_from_callback(shape, sharding, rows):
            assert shape == (64, 8)
            return rows((slice(8, 16), slice(None)))

    tree = ast.parse((FOLDER / "train.py").read_text())
    (batch,) = [node for node in tree.body if getattr(node, "name", "") == "batch"]
    names = {
        "np": FakeNumpy,
        "jax": FakeJax,
        "NamedSharding": lambda *_: None,
        "P": lambda *_: None,
        "mesh": None,
    }
    exec(compile(ast.Module([batch], []), "train.py", "exec"), names)
    assert names["batch"](1).shape == (8, 8) and sum(drawn) == 8 * 8


def test_hello_names_the_platform_and_the_kind_of_device():
    (line,) = alone("hello.py", devices=4)
    assert "process 0 of 1" in line and "4 of 4 devices (platform cpu, kind cpu)" in line


def problems(document, schemas):
    """What Kubernetes would refuse in a document of jobset.yaml: wrong types, missing and unknown
    fields.
    """

    def close(schema):
        """Refuse fields that a schema does not list, as kubectl does with a custom resource."""
        if isinstance(schema, list):
            return [close(part) for part in schema]
        if not isinstance(schema, dict):
            return schema
        closed = {key: close(part) for key, part in schema.items()}
        if schema.get("x-kubernetes-int-or-string"):
            closed.pop("type", None)
        known = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
        return closed | (
            {"additionalProperties": False}
            if known and "additionalProperties" not in schema
            else {}
        )

    schema = close(schemas[document["kind"]])
    return [
        f"{error.json_path}: {error.message}"
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]


def test_kubernetes_would_take_jobset_yaml():
    schemas = json.loads(Path(__file__).with_name("kubernetes.json").read_text())
    documents = list(yaml.safe_load_all((FOLDER / "jobset.yaml").read_text()))
    assert [document["kind"] for document in documents] == [
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "JobSet",
    ]
    assert [problems(document, schemas) for document in documents] == [[]] * 4

    account, role, binding, jobset = documents
    (job,) = jobset["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # What the schemas cannot know: names that must agree, and what JAX reads
    # (jax/_src/clusters/k8s_cluster.py).
    assert {pod["serviceAccountName"], binding["subjects"][0]["name"]} == {
        account["metadata"]["name"]
    }
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {rights for rule in role["rules"] for rights in rule["resources"]} == {
        "pods",
        "services",
        "jobs",
    }
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert (
        int(env["NUM_PROCESSES"])
        == job["template"]["spec"]["parallelism"]
        == job["template"]["spec"]["completions"]
    )
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert (FOLDER / container["command"][2]).exists()

    for path, wrong in [
        ("parallel", {"parallel": 2}),
        ("completions", {"completions": "two"}),
        ("template", {"template": None}),
    ]:
        broken = copy.deepcopy(jobset)
        broken["spec"]["replicatedJobs"][0]["template"]["spec"] |= wrong
        assert path in str(problems(broken, schemas)), path


def lose_a_node(cluster):
    """Train on two nodes, lose one after a checkpoint, and bring it back.

    Slurm starts the job again about a minute later: see cred_expire in slurm_cluster.py.

    Returns the job, what its first start printed, and the state in which that start ended."""
    run = cluster.folder / "lost"
    what = "train.py", "--folder", run, "--steps", 12, "--every", 2, "--pause", 0.5
    job = cluster.submit(FOLDER / "two-nodes.sbatch", *what)
    told = partial(cluster.told, job)
    wait_until(lambda: any((run / step).exists() for step in "46"), told)
    cluster.kill("node2")
    # Ten seconds until Slurm misses the node, twenty until JAX does.
    wait_until(lambda: cluster.show(job)["JobState"] not in ("RUNNING", "COMPLETING"), told)
    wait_until(lambda: "node2" in cluster.output(job), told)
    first_run = cluster.output(job)
    shutil.copytree(run, cluster.folder / "left")  # what the loss has left, for a smaller job
    cluster.start_node("node2")
    cluster.wait_for_nodes()
    first_state = cluster.show(job)["JobState"]
    # its processes had ended before Slurm missed the node: Slurm leaves it at that
    if first_state == "FAILED":
        cluster.run("scontrol", "requeue", job)
    # no node is lost from here on; on a busy machine one may answer late
    cluster.miss_nodes_after(PATIENCE)
    return job, first_run, first_state


@pytest.fixture(scope="module")
def lost(cluster):
    """A job that has lost a node, and what it printed until then; it starts again while other tests
    run.
    """
    job, first_run, _ = lose_a_node(cluster)
    return job, first_run


def test_a_lost_node_ends_the_job(lost):
    _, first_run = lost
    assert "Node failure on node2" in first_run or "heartbeat timeout" in first_run
    assert "step 12 loss" not in first_run


def test_one_node_one_process_sees_four_devices(cluster):
    job = cluster.wait(cluster.submit(FOLDER / "one-node.sbatch", JAX_NUM_CPU_DEVICES="4"))
    assert job.state == "COMPLETED", job.output
    same(said(job.output), recorded("one-node.txt"))
    seen = (
        "1 on node1: 4 of 4 devices (platform cpu, kind cpu), CUDA_VISIBLE_DEVICES=0,1,2,3, JAX "
        "uses all"
    )
    assert seen in said(job.output)[1]


def test_two_nodes_eight_processes_find_each_other_without_arguments(cluster):
    proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", **proxy))
    assert job.state == "COMPLETED", job.output
    lines = said(job.output)
    same(lines, recorded("two-nodes.txt"))
    for process, line in enumerate(lines[1:]):
        node, local = divmod(process, 4)
        assert f"process {process} of 8 on node{node + 1}: 1 of 8 devices" in line
        assert f"CUDA_VISIBLE_DEVICES=0,1,2,3, JAX uses {local}, sum 28" in line


def test_two_nodes_run_the_script_for_apptainer_with_a_stand_in_for_the_container(cluster):
    programs, image = cluster.folder / "bin", cluster.folder / "jax.sif"
    programs.mkdir(exist_ok=True), image.touch()
    (programs / "apptainer").write_text(
        '#!/bin/bash\n[[ "$1 $2 $3 $5" == "exec --nv --bind --pwd" && -e $7 ]] || { echo '
        '"arguments: $*"; exit 2; }\n'
        'cd "$6" && shift 7 && exec "$@"\n'
    )
    (programs / "apptainer").chmod(0o755)
    path = f"{programs}:{sys.prefix}/bin:{cluster.environment['PATH']}"
    job = cluster.wait(
        cluster.submit(FOLDER / "two-nodes-apptainer.sbatch", SIF=str(image), PATH=path)
    )
    assert job.state == "COMPLETED", job
    same(said(job.output), recorded("two-nodes.txt"))


@pytest.mark.parametrize("script", ["one-node.sbatch", "two-nodes.sbatch"])
def test_a_job_that_finds_no_gpus_fails_and_does_not_run_on_cpus(cluster, script):
    job = cluster.wait(cluster.submit(FOLDER / script, JAX_PLATFORMS=""))
    assert job.state == "FAILED" and "sum" not in job.output, job.output
    assert "JAX finds no device for JAX_PLATFORMS=cuda" in job.output, job.output


def test_one_process_per_node_drives_all_of_its_gpus(cluster):
    script = cluster.folder / "one-process-a-node.sbatch"
    text = (FOLDER / "two-nodes.sbatch").read_text()
    text = text.replace("--ntasks-per-node=4", "--ntasks-per-node=1").replace(
        "--cpus-per-task=4", "--cpus-per-task=16"
    )
    script.write_text(text)
    environment = {"JAX_LOCAL_DEVICE_IDS": "0,1,2,3", "JAX_NUM_CPU_DEVICES": "4"}
    job = cluster.wait(cluster.submit(script, **environment))
    assert job.state == "COMPLETED", job.output
    # gloo writes between them, in pieces
    lines = sorted(re.findall(r"process \d of 2 on .*", job.output))
    assert len(lines) == 2
    for process, line in enumerate(lines):
        assert line.startswith(f"process {process} of 2 on node{process + 1}: 4 of 8 devices")
        assert "JAX uses 0,1,2,3" in line


def test_an_interactive_allocation_runs_the_same_program(cluster):
    options = "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4", f"--chdir={FOLDER}"
    command = "salloc", *options, "srun", sys.executable, "-u", "hello.py"
    lines = [
        line
        for line in cluster.run(*command, **on_cpus(1)).splitlines()
        if line.startswith("process")
    ]
    assert len(lines) == 8 and all(line.endswith("sum 28") for line in lines)


def variant(cluster, name, **changes):
    """A copy of two-nodes.sbatch in which some words are others."""
    text = (FOLDER / "two-nodes.sbatch").read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    script = cluster.folder / f"{name}.sbatch"
    script.write_text(text)
    return script


def with_python(cluster, name, before):
    """A batch script that runs a line of bash in each task, in a mount namespace of its own, before
    Python.
    """
    inside = f"unshare --mount bash -c '{before}; exec \"$@\"' bash python -u"
    return variant(cluster, name, **{"python -u": inside})


def test_a_folder_that_the_nodes_do_not_share_ends_the_job_before_the_first_save(cluster):
    run = cluster.folder / "not-shared"
    for name in ("run", *cluster.names):
        (run / name).mkdir(parents=True)
    mount = f"mount --bind {run}/$(hostname) {run}/run"
    script = with_python(cluster, "not-shared", mount)
    job = cluster.wait(cluster.submit(script, "train.py", "--folder", run / "run"))
    assert job.state == "FAILED" and "step 1 loss" not in job.output, job.output
    assert (
        f"{run}/run is not one folder for all hosts: processes 4, 5, 6 and 7 on node2 cannot read "
        "what process 0 on node1 has written there"
    ) in job.output
    assert not list((run / "node1").iterdir())


LEAVES = """
import sys, time
import jax
from join import join
join()
from jax.experimental.multihost_utils import sync_global_devices
for step in range(20):
    sync_global_devices(f"step {step}")
    if jax.process_index() == 5 and step == 3:
        open(sys.argv[0] + ".left", "w").close()
        HOW
"""


@pytest.mark.parametrize("how", ["sys.exit('bad data')", "raise SystemExit('bad data')"])
def test_an_exit_of_one_process_ends_the_job_as_an_exception_does(cluster, how):
    program = cluster.folder / "leaves.py"
    program.write_text(LEAVES.replace("HOW", how))
    job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", program, PYTHONPATH=str(FOLDER)))
    seconds = time.time() - program.with_name("leaves.py.left").stat().st_mtime
    # what others say of lost connections comes later
    (first, *_) = re.findall(r"^\d: .*(?:Error|SystemExit|Traceback).*", job.output, re.MULTILINE)
    assert first == "5: process 5 on node2: SystemExit: bad data", job.output
    assert job.state == "FAILED" and seconds < 60, seconds  # it waited for 62 more


def test_a_process_that_leaves_a_loop_early_says_so(cluster):
    """Nobody can know whether it has left too early: JAX waits a minute for the others."""
    program = cluster.folder / "breaks.py"
    program.write_text(LEAVES.replace("HOW", "break"))
    job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", program, PYTHONPATH=str(FOLDER)))
    assert job.state == "FAILED", job.output
    assert "5: process 5 on node2: has come to its end, and not all others have" in job.output
    assert len(re.findall("has come to its end", job.output)) == 1


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("node9:61500", "cannot resolve node9, the coordinator's name"),  # whoever is first
        ("node2:61500", "the coordinator's address node2:61500 is not on node1, where process 0 "),
        ("node1:16818", "port 16818 of node1, the coordinator's, is already in use"),  # of slurmd
    ],
)
@pytest.mark.parametrize("program", ["hello.py", "preflight.py"])
def test_an_address_that_cannot_be_the_coordinator_s_is_told_at_once(
    cluster, address, says, program
):
    begin, script = time.monotonic(), FOLDER / "two-nodes.sbatch"
    job = cluster.wait(cluster.submit(script, program, JAX_COORDINATOR_ADDRESS=address))
    assert job.state == "FAILED" and says in job.output, job.output
    assert "Segmentation fault" not in job.output
    # JAX waits for 300 s; a busy machine takes long to start Python eight times
    assert time.monotonic() - begin < 200


def test_preflight_names_a_host_whose_own_name_is_a_loopback_address(cluster):
    """As Debian's installer writes it into /etc/hosts; gloo would wait there for the others."""
    for node in cluster.names:
        others = Path("/etc/hosts").read_text().replace("10.77.0.2 node2", "127.0.1.1 node2")
        text = others if node == "node2" else Path("/etc/hosts").read_text()
        (cluster.folder / f"hosts-{node}").write_text(text)
    mount = f"mount --bind {cluster.folder}/hosts-$(hostname) /etc/hosts"
    script = with_python(cluster, "loopback", mount)
    job = cluster.wait(cluster.submit(script, "preflight.py", "--processes", 8))
    assert job.state == "FAILED" and "has waited" not in job.output, job.output
    assert (
        "0: FAIL network: no other host reaches processes 4, 5, 6 and 7: there the name node2 is "
        "127.0.1.1, a loopback address"
    ) in job.output
    assert "0:      cure: gloo listens at the address to which" in job.output


def test_preflight_names_the_process_that_came_late(cluster):
    late = '[ "$SLURM_PROCID" = 5 ] && sleep 30'
    script = variant(
        cluster, "late", **{"python -u": f"bash -c '{late}; exec python -u \"$@\"' bash"}
    )
    job = cluster.wait(cluster.submit(script, "preflight.py"))
    (said_of_it,) = re.findall("0: warn start: (.*)", job.output) or [job.output]
    assert re.match(r"process 5 on node2 came \d\d s after the first", said_of_it)
    assert job.state == "COMPLETED" and "0: ready" in job.output, job.output


OVERLAPS = """
srun --overlap --output={folder}/trains-%t.txt python -u {program} {folder} & FIRST=$!
until [ "$(ls {folder} | grep -c joined)" = 8 ] || ! kill -0 $FIRST; do sleep 0.1; done
srun --overlap --label python -u preflight.py --processes 8
srun --overlap --nodes=1 --ntasks=1 bash -c "python -u hello.py"
srun --overlap --ntasks=8 python -u hello.py
python -c "import pty, sys; pty.spawn(sys.argv[1:])" \\
  srun --jobid=$SLURM_JOB_ID --overlap --nodes=1 --ntasks=1 --pty bash -c "tty; python -u hello.py"
JAX_COORDINATOR_ADDRESS=node1:61000 srun --overlap --ntasks=8 python -u {folder}/plain.py
touch {folder}/end
wait $FIRST
"""
PLAIN = "import jax; jax.distributed.initialize(); print('plain JAX', jax.process_count())"


def test_preflight_and_shells_in_a_running_job_leave_its_training_alone(cluster):
    program, folder = cluster.folder / "trains.py", cluster.folder / "overlaps"
    program.write_text(TRAINS)
    folder.mkdir()
    (folder / "plain.py").write_text(PLAIN)
    script = variant(
        cluster,
        "overlap",
        **{
            'srun --kill-on-bad-exit=1 --label python -u "${@:-hello.py}"': OVERLAPS.format(
                folder=folder, program=program
            )
        },
    )
    job = cluster.wait(cluster.submit(script, PYTHONPATH=str(FOLDER)))
    assert job.state == "COMPLETED" and "0: ready" in job.output, job.output
    assert job.output.count("sum 28") == 8 and job.output.count("process 0 of 1 on node1") == 2
    assert "/dev/pts/" in job.output and job.output.count("plain JAX 8") == 8
    trained = [file.read_text() for file in sorted(folder.glob("trains-*.txt"))]
    assert len(trained) == 8 and all("trained, sum 28" in text for text in trained), trained


def test_two_parts_of_a_heterogeneous_job_are_one_program(cluster):
    chapter = (ROOT / "book" / "your_centre.md").read_text()
    (lines,) = re.findall(
        r"^```bash\n(#SBATCH [^`]*#SBATCH hetjob[^`]*)```$", chapter, re.MULTILINE
    )
    head = (FOLDER / "two-nodes.sbatch").read_text()
    asks, rest = head[: head.index("set -eo")], head[head.index("set -eo") :]
    asks = re.sub(r"#SBATCH --(nodes|ntasks-per-node|gres|cpus-per-task)=.*\n", "", asks)
    *asked, starts = lines.strip().splitlines()
    starts = starts.replace("python -u", "--kill-on-bad-exit=1 --label python -u")
    script = cluster.folder / "heterogeneous.sbatch"
    rest = re.sub(r"^srun .*$", starts, rest, flags=re.MULTILINE)
    rest = re.sub(r"^export SRUN_CPUS_PER_TASK.*\n", "", rest, flags=re.MULTILINE)
    script.write_text(asks + "\n".join(asked) + "\n" + rest)
    job = cluster.wait(cluster.submit(script))
    assert job.state == "COMPLETED" and job.output.count("sum 15") == 6, job.output


def test_the_script_for_jean_zay_starts_eight_processes(cluster):
    """Without what this cluster has not: modules, accounts, features, and 24 CPUs for a task."""
    chapter = (ROOT / "book" / "your_centre.md").read_text()
    (text,) = re.findall(r"^```bash\n(#!/bin/bash\n[^`]*)```$", chapter, re.MULTILINE)
    text = re.sub(r"#SBATCH --(account|constraint|qos)=.*\n", "", text)
    text = text.replace("--cpus-per-task=24", "--cpus-per-task=4").replace("=cuda", "=cpu")
    script, work = cluster.folder / "jean-zay.sbatch", cluster.folder / "work"
    (work / "venv").parent.mkdir()
    (work / "venv").symlink_to(sys.prefix)
    script.write_text(text.replace("set -eo", "module() { :; }\nset -eo"))
    proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    job = cluster.wait(cluster.submit(script, WORK=str(work), **proxy))
    assert job.state == "COMPLETED" and job.output.count("sum 28") == 8, job.output


def test_the_watchdog_of_train_py_ends_a_job_that_waits_for_one_process(cluster):
    """A process that is stopped keeps its connections; its heartbeats are missed only later."""
    what = "train.py", "--folder", cluster.folder / "stopped", "--steps", ENDLESS
    job = cluster.submit(FOLDER / "two-nodes.sbatch", *what, "--pause", 0.1, "--limit", 4)
    wait_until(lambda: "step 3 loss" in cluster.output(job), partial(cluster.told, job))
    (last,) = [process for node, process in processes_of(cluster, "train.py") if node == "node2"][
        :1
    ]
    last.suspend()
    done = cluster.wait(job)
    assert done.state == "FAILED", done.output
    assert re.search(
        r"process \d on node1: step \d+ has not ended within 4.1 s; it is at line \d+ of train.py",
        done.output,
    )


TRAINS = """
import sys, time
from pathlib import Path
import jax
from jax.experimental.multihost_utils import process_allgather
from join import join
join()
(Path(sys.argv[1]) / f"joined-{jax.process_index()}").touch()
while not (Path(sys.argv[1]) / "end").exists():
    time.sleep(0.1)
print("trained, sum", process_allgather(jax.process_index()).sum(), flush=True)
"""


def test_a_second_program_in_a_running_job_leaves_the_first_alone(cluster):
    """Its step has a coordinator with a port of its own."""
    program, folder = cluster.folder / "trains.py", cluster.folder / "two-steps"
    program.write_text(TRAINS)
    folder.mkdir()
    steps = f"""
srun --overlap {sys.executable} -u {program} {folder} & FIRST=$!
until [ "$(ls {folder} | wc -l)" = 8 ] || ! kill -0 $FIRST; do sleep 0.1; done
srun --overlap {sys.executable} -u hello.py
touch {folder}/end
wait $FIRST
"""
    options = "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4", f"--chdir={FOLDER}"
    environment = on_cpus(1) | {"PYTHONPATH": str(FOLDER)}
    lines = cluster.run("salloc", *options, "bash", "-c", steps, **environment).splitlines()
    assert sum(line.startswith("process") and line.endswith("sum 28") for line in lines) == 8
    assert lines.count("trained, sum 28") == 8


def test_tasks_have_several_cpus_each(cluster):
    program = "import os; print(os.environ['SLURM_CPUS_PER_TASK'])"
    script = cluster.folder / "cpus.py"
    script.write_text(program)
    job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", script))
    assert said(job.output)[1:] == [f"{task}: 4" for task in range(8)]


def test_a_gpu_of_its_own_for_each_task_is_a_mistake(cluster):
    """With --gpus-per-task each task sees a single GPU, and most tasks tell JAX to use one that
    they do not see.
    """
    script = cluster.folder / "gpus-per-task.sbatch"
    text = (FOLDER / "two-nodes.sbatch").read_text()
    script.write_text(text.replace("--gres=gpu:4", "--gpus-per-task=1"))
    job = cluster.wait(cluster.submit(script))
    sees = re.findall(r"CUDA_VISIBLE_DEVICES=(\S+), JAX uses (\d)", job.output)
    assert sorted(uses for _, uses in sees) == sorted("01230123")
    assert {len(gpus.split(",")) for gpus, _ in sees} == {1}


def test_with_gpu_bind_none_slurm_does_not_say_which_gpus_are_the_jobs(cluster):
    """Manuals advise it where a site binds GPUs to tasks; then only the site's cgroups keep jobs
    apart.
    """
    script, program = cluster.folder / "bind-none.sbatch", cluster.folder / "visible.py"
    program.write_text("import os; print('visible:', os.environ.get('CUDA_VISIBLE_DEVICES'))")
    text = (FOLDER / "two-nodes.sbatch").read_text()
    script.write_text(text.replace("srun ", "srun --gpu-bind=none "))
    job = cluster.wait(cluster.submit(script, program))
    assert said(job.output)[1:] == [f"{task}: visible: None" for task in range(8)]


def test_without_srun_jax_raises_value_error(cluster):
    script = cluster.folder / "no-srun.sbatch"
    text = (FOLDER / "two-nodes.sbatch").read_text()
    script.write_text(text.replace("srun --kill-on-bad-exit=1 --label ", ""))
    job = cluster.wait(cluster.submit(script))
    assert (
        job.state == "FAILED" and "ValueError: coordinator_address should be defined" in job.output
    ), job.output


def test_training_on_two_nodes_equals_training_on_one_and_resumes_there(cluster, tmp_path):
    run = cluster.folder / "run"
    job = cluster.wait(
        cluster.submit(FOLDER / "two-nodes.sbatch", "train.py", "--folder", run, "--steps", 6)
    )
    assert job.state == "COMPLETED", job.output
    same(said(job.output), recorded("train.txt"))
    one = alone("train.py", "--folder", tmp_path / "alone", "--steps", 6)
    same([line.removeprefix("0: ") for line in said(job.output)[2:]], one[1:])

    # Saved by eight processes on two nodes, restored by one process on one.
    more = "train.py", "--folder", run, "--steps", 8
    job = cluster.wait(cluster.submit(FOLDER / "one-node.sbatch", *more, JAX_NUM_CPU_DEVICES="4"))
    assert job.state == "COMPLETED" and "1 process, 4 devices" in job.output, job.output
    assert "resumes after step 6" in job.output and "step 6 loss" not in job.output
    one = alone("train.py", "--folder", tmp_path / "without a pause", "--steps", 8)
    same(said(job.output)[-3:], one[-3:])


def test_sigterm_from_slurm_saves_and_the_next_job_resumes(cluster):
    """As `#SBATCH --signal=TERM@120` sends it: to all tasks, not to the batch script."""
    run = cluster.folder / "told"
    what = "train.py", "--folder", run, "--every", 1000, "--pause", 0.1, "--steps"
    job = cluster.submit(FOLDER / "two-nodes.sbatch", *what, ENDLESS)
    wait_until(lambda: "step 3 loss" in cluster.output(job), partial(cluster.told, job))
    cluster.run("scancel", "--signal=TERM", job)
    done = cluster.wait(job)
    assert done.state == "COMPLETED", done.output
    step = int(re.search(r"SIGTERM: saved step (\d+) and stopped", done.output)[1])
    again = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", *what, step + 1))
    assert f"resumes after step {step}" in again.output and f"step {step + 1} loss" in again.output


def test_sigterm_with_requeue_brings_the_job_back(cluster):
    run = cluster.folder / "comes back"
    what = (
        "train.py",
        "--folder",
        run,
        "--every",
        1000,
        "--pause",
        0.1,
        "--steps",
        ENDLESS,
        "--requeue",
    )
    job = cluster.submit(FOLDER / "two-nodes.sbatch", *what)
    told = partial(cluster.told, job)
    wait_until(lambda: "step 3 loss" in cluster.output(job), told)
    cluster.run("scancel", "--signal=TERM", job)
    wait_until(
        lambda: cluster.show(job)["Restarts"] == "1" and cluster.show(job)["JobState"] == "PENDING",
        told,
    )
    step = int(re.search(r"SIGTERM: saved step (\d+) and stopped", cluster.output(job))[1])
    # else it waits until credentials have expired
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_until(lambda: f"resumes after step {step}" in cluster.output(job), told)
    cluster.run("scancel", job)
    done = cluster.wait(job)
    assert done.state == "CANCELLED", told()  # who cancels a job ends it


def test_a_job_that_failed_is_not_requeued_by_slurm_but_by_the_line_of_the_chapter(cluster):
    program = cluster.folder / "fails.py"
    program.write_text("raise SystemExit(3)")
    job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", program))
    assert job.state == "FAILED" and "start 1" not in job.output

    lines = (FOLDER / "two-nodes.sbatch").read_text().rstrip().splitlines()
    chapter = (ROOT / "book" / "clusters.md").read_text()
    (block,) = re.findall(r"^```bash\n(srun [^`]*scontrol requeue[^`]*)```$", chapter, re.MULTILINE)
    assert block.startswith(lines[-1])
    script = cluster.folder / "again.sbatch"
    script.write_text("\n".join([*lines[:-1], block]))
    job = cluster.submit(script, program)
    wait_until(lambda: cluster.show(job)["Restarts"] == "1", partial(cluster.told, job))
    assert cluster.show(job)["JobState"] in ("PENDING", "COMPLETING", "REQUEUED")
    cluster.run("scancel", job)
    failures = FOLDER / f"failures-{job}"
    assert len(failures.read_text().splitlines()) == 1
    failures.unlink()


def test_a_job_array_is_several_jobs_with_a_number_each(cluster):
    program = cluster.folder / "numbered.py"
    program.write_text(
        "import os; print('number', os.environ['SLURM_ARRAY_TASK_ID'], os.environ['SLURM_NTASKS'])"
    )
    output = f"--output={cluster.folder}/array-%a.out"
    script = FOLDER / "one-node.sbatch"
    settings = {"VENV": sys.prefix} | on_cpus(1)
    job = cluster.run(
        "sbatch", "--parsable", "--array=0-1", output, script, program, **settings
    ).strip()
    files = [cluster.folder / f"array-{number}.out" for number in (0, 1)]
    wait_until(
        lambda: all(f.exists() and "number" in f.read_text() for f in files),
        partial(cluster.told, job),
    )
    first, second = (f.read_text().splitlines() for f in files)
    # two numbers of jobs
    assert [first[-1], second[-1]] == ["number 0 1", "number 1 1"] and first[0] != second[0]


def measured_on_a_slow_link(cluster, *program):
    """The JSON that a program prints on two nodes with 200 Mbit/s between them."""
    cluster.slow("200mbit")
    try:
        job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", *program))
    finally:
        cluster.slow(None)
    assert job.state == "COMPLETED", job.output
    return json.loads("\n".join(line.removeprefix("0: ") for line in said(job.output)[1:]))


def test_bytes_between_nodes_are_those_of_the_formulas_and_of_the_recording(cluster):
    found = measured_on_a_slow_link(cluster, "links.py")
    expected = json.loads("\n".join(recorded(PACKAGED / "links.txt")))
    mib = found["MiB on a device"]
    formulas = {
        "flat": 2 * 7 / 8 * mib,  # a ring of eight crosses the link once each way
        "hierarchical": mib,
        "all_to_all": 4 * mib * 4 / 8,
        "within": 0,
        "between": 4 * mib,
    }
    for pattern, theory in formulas.items():
        measured = found[pattern]["MiB sent by a node"]
        assert measured == pytest.approx(theory, rel=0.1, abs=0.1), pattern
        assert measured == pytest.approx(
            expected[pattern]["MiB sent by a node"], rel=0.1, abs=0.1
        ), pattern


def test_a_stencil_and_a_transform_send_the_bytes_of_the_formulas_and_of_the_recording(cluster):
    # which compares its results with NumPy's
    found = measured_on_a_slow_link(cluster, "grid.py", "--repeat", 2)
    # bytes; a column of the square grid has as many
    row = math.prod(found["stencil"]["grid"][1:]) * 4
    half = math.prod(found["fft"]["grid"]) * 8 / 2  # of the grid: a node's part
    formulas = {
        "stencil": {
            "slabs, by node": 2 * row,  # each half of the grid has two sides
            "slabs, in turns": 8 * row,  # each of four shards has two
            "blocks, by node": 2 * row,
            "blocks, in turns": 4 * row,  # both sides of half a column, for each of four shards
        },
        "fft": {  # each all-to-all across the link sends half of what a node has
            "slabs, by node": half / 2,
            "pencils, by node": half / 2,
            "pencils, checkered": half,
        },
    }
    for name in ("grid.txt", "grid-slow.txt"):
        expected = json.loads("\n".join(recorded(PACKAGED / name)))
        for program, ways in formulas.items():
            assert found[program].keys() == expected[program].keys()
            for way, theory in ways.items():
                measured = found[program][way]["MiB sent by a node"]
                assert measured == pytest.approx(theory / 2**20, rel=0.1, abs=0.05), (program, way)
                assert measured == pytest.approx(
                    expected[program][way]["MiB sent by a node"], rel=0.1, abs=0.05
                )


def test_preflight_finds_two_nodes_ready_and_a_slow_link(cluster):
    what = "preflight.py", "--processes", 8, "--devices", 8, "--folder", cluster.folder / "checked"
    job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", *what))
    assert job.state == "COMPLETED", job.output

    def words(lines):
        return [numbers_apart(line)[0] for line in lines]

    assert words(said(job.output)) == words(recorded("preflight.txt"))
    cluster.slow("200mbit")
    try:
        job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", *what, "--gbit", 1))
    finally:
        cluster.slow(None)
    assert job.state == "FAILED", job.output
    assert words(said(job.output)) == words(recorded("preflight-slow.txt"))
    assert "less than half of 1" in job.output and "0: 1 of 7 checks failed" in job.output


def test_watchdogs_end_a_job_that_hangs_and_say_where(cluster):
    job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", "hang.py"))
    assert job.state == "FAILED" and "Exited with exit code 124" in job.output, job.output
    lines = {line for line in job.output.splitlines() if "has not ended" in line}
    expected = {line for line in recorded("hang.txt") if "has not ended" in line}
    # on a busy machine some come too late
    assert len(expected) == 8 and lines <= expected and len(lines) >= 4
    assert [line[0] for line in expected if "at the end" in line] == ["5"]


def test_ipyparallel_starts_engines_through_slurm(cluster):
    """shardlab.start with one argument changed: eight processes, at most four on a node in this
    partition.
    """
    program = f"""
from shardlab import start
with start(8, cluster="slurm", limit={PATIENCE}) as group:
    group.run("import jax, socket")
    print(group)
    print(group["jax.process_index(), jax.process_count(), jax.device_count(), socket.gethostname()"])
"""  # noqa: E501
    settings = cluster.environment | {"SLURM_EXPORT_ENV": "ALL", "SBATCH_PARTITION": "four"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=cluster.folder, env=settings, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, f"{done.stderr}\n{cluster.log()}"
    who, seen = done.stdout.splitlines()
    assert who == "8 processes on 2 hosts"
    assert eval(seen) == [(i, 8, 8, f"node{1 + i // 4}") for i in range(8)]
    wait_until(
        lambda: "ipengine" not in cluster.run("squeue", "--noheader", "--format=%j"), cluster.log
    )


def test_a_job_that_lost_a_node_resumes_when_slurm_starts_it_again(cluster, lost):
    job, _ = lost
    done = cluster.wait(job)
    assert done.state == "COMPLETED", done.output
    again = re.split(r"^job \d+ on .*, start [1-9]\d*$", done.output, flags=re.MULTILINE)[-1]
    assert int(re.search(r"resumes after step (\d+)", again)[1]) >= 4
    assert "step 12 loss" in again and "step 3 loss" not in again
    shown = "\n".join(recorded("lost-node.txt"))
    for words in ("start 0", "step 4 loss", "start 1", "resumes after step", "step 12 loss"):
        assert words in shown and words in done.output
    # On a busy machine JAX may miss the node before Slurm does.
    assert "Node failure on node2" in shown
    assert "Node failure on node2" in done.output or "heartbeat timeout" in done.output


def test_the_numbers_in_costs_are_those_of_the_recording():
    text = (ROOT / "book" / "costs.md").read_text()
    names = {}
    exec(re.search(r"^# Recorded .*?^}$", text, re.DOTALL | re.MULTILINE)[0], names)
    links = json.loads("\n".join(recorded(PACKAGED / "links.txt")))
    assert names["recorded"] == {name: tuple(links[name].values()) for name in names["recorded"]}
    day = (PACKAGED / "links.txt").read_text().split()[1]
    assert day.rstrip(",") in text


def test_scripts_for_other_clusters_can_at_least_be_read():
    for script in FOLDER.glob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)


def test_after_a_loss_a_smaller_job_goes_on_from_the_same_checkpoint(cluster, lost, tmp_path):
    """Eight processes on two nodes lose a node, and one process on one node goes on, with the same
    losses.
    """
    _, first_run = lost
    what = "train.py", "--folder", cluster.folder / "left", "--steps", 12
    job = cluster.wait(cluster.submit(FOLDER / "one-node.sbatch", *what, JAX_NUM_CPU_DEVICES="4"))
    assert job.state == "COMPLETED" and "1 process, 4 devices" in job.output, job.output
    step = int(re.search(r"resumes after step (\d+)", job.output)[1])
    one = alone("train.py", "--folder", tmp_path / "undisturbed", "--steps", 12)
    before = [
        line.removeprefix("0: ")
        for line in first_run.splitlines()
        if re.match(r"0: step \d+ loss", line)
    ]
    assert 4 <= step <= len(before) < 12
    same(before[:step] + said(job.output)[3:], one[1:])
