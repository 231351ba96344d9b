"""The batch scripts and programs of clusters.md, run by a real Slurm on two nodes.

`scripts/record_cluster.py` writes the recordings that the chapter shows; these tests hold fresh runs against them.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import Cluster, missing, on_cpus

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "book" / "cluster"
RECORDINGS = FOLDER / "recordings"


@pytest.fixture(scope="module")
def cluster():
    if reason := missing():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with Cluster() as cluster:
        yield cluster
    assert not list(Path("/run/netns").glob("node*"))


def said(output):
    """What a job printed, in the order of the processes, without the transport's noise and what varies."""
    lines = [line for line in output.splitlines() if "[Gloo]" not in line and not line.startswith("srun:")]
    ranked = sorted(lines, key=lambda line: int(line.split(":")[0]) if re.match(r"\d+: ", line) else -1)
    return [re.sub(r"^job \d+", "job N", line) for line in ranked]


def recorded(name):
    """A recording's lines, without its head."""
    lines = (RECORDINGS / name).read_text().splitlines()
    assert lines[0].startswith("# ") and re.search(r"\d{4}-\d\d-\d\d", lines[0]) and "JAX" in lines[0]
    return [line for line in lines if not line.startswith("# ")]


def numbers_apart(line):
    """A line's words, and its numbers with a fraction, which may differ in the last digits."""
    return re.sub(r"\d+\.\d+", "#", line), [float(number) for number in re.findall(r"\d+\.\d+", line)]


def same(one, other):
    """Whether two outputs say the same, but for rounding."""
    assert [numbers_apart(line)[0] for line in one] == [numbers_apart(line)[0] for line in other]
    for a, b in zip(one, other, strict=True):
        assert numbers_apart(a)[1] == pytest.approx(numbers_apart(b)[1], rel=1e-3)


def alone(*arguments, devices=8):
    """Run a program of the chapter in one process, without Slurm; returns its lines."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=FOLDER, env=clean | on_cpus(devices), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_one_node_one_process_sees_four_devices(cluster):
    job = cluster.wait(cluster.submit(FOLDER / "one-node.sbatch", JAX_NUM_CPU_DEVICES="4"))
    assert job.state == "COMPLETED", job.output
    same(said(job.output), recorded("one-node.txt"))
    assert "1 on node1: 4 of 4 devices, may see GPUs 0,1,2,3, takes all" in said(job.output)[1]


def test_two_nodes_eight_processes_find_each_other_without_arguments(cluster):
    job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch"))
    assert job.state == "COMPLETED", job.output
    lines = said(job.output)
    same(lines, recorded("two-nodes.txt"))
    for place, line in enumerate(lines[1:]):
        node, local = divmod(place, 4)
        assert f"process {place} of 8 on node{node + 1}: 1 of 8 devices" in line
        assert f"may see GPUs 0,1,2,3, takes {local}, sum 28" in line


def test_a_gpu_of_its_own_for_each_task_is_a_mistake(cluster):
    """With --gpus-per-task each task sees a single GPU, and JAX takes the third of it."""
    script = cluster.folder / "gpus-per-task.sbatch"
    text = (FOLDER / "two-nodes.sbatch").read_text()
    script.write_text(text.replace("--gres=gpu:4", "--gpus-per-task=1"))
    job = cluster.wait(cluster.submit(script))
    sees = re.findall(r"may see GPUs (\S+), takes (\d)", job.output)
    assert sorted(takes for _, takes in sees) == sorted("01230123")
    assert {len(gpus.split(",")) for gpus, _ in sees} == {1}


def test_without_srun_jax_says_what_it_misses(cluster):
    script = cluster.folder / "no-srun.sbatch"
    text = (FOLDER / "two-nodes.sbatch").read_text()
    script.write_text(text.replace("srun --kill-on-bad-exit=1 --label ", ""))
    job = cluster.wait(cluster.submit(script))
    assert job.state == "FAILED" and "ValueError: coordinator_address should be defined" in job.output, job.output


def test_training_on_two_nodes_is_training_on_one_and_goes_on_there(cluster, tmp_path):
    run = cluster.folder / "run"
    job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", "train.py", "--folder", run, "--steps", 6))
    assert job.state == "COMPLETED", job.output
    same(said(job.output), recorded("train.txt"))
    mine = alone("train.py", "--folder", tmp_path / "mine", "--steps", 6)
    same([line.removeprefix("0: ") for line in said(job.output)[2:]], mine[1:])

    # Saved by eight processes on two nodes, restored by one process on one.
    more = "train.py", "--folder", run, "--steps", 8
    job = cluster.wait(cluster.submit(FOLDER / "one-node.sbatch", *more, JAX_NUM_CPU_DEVICES="4"))
    assert job.state == "COMPLETED" and "1 processes, 4 devices" in job.output, job.output
    assert "goes on after step 6" in job.output and "step 6 loss" not in job.output
    mine = alone("train.py", "--folder", tmp_path / "whole", "--steps", 8)
    same(said(job.output)[-3:], mine[-3:])


def lose_a_node(cluster):
    """Train on two nodes, lose one after a checkpoint, bring it back; returns the job, and what it printed first."""
    run = cluster.folder / "lost"
    what = "train.py", "--folder", run, "--steps", 12, "--every", 2, "--pause", 0.5
    job = cluster.submit(FOLDER / "two-nodes.sbatch", *what)
    wait_until(lambda: any((run / step).exists() for step in "46"), 120, cluster, job)
    cluster.kill("node2")
    # Ten seconds until Slurm misses the node, twenty until JAX does.
    wait_until(lambda: cluster.show(job)["JobState"] not in ("RUNNING", "COMPLETING"), 120, cluster, job)
    wait_until(lambda: "node2" in cluster.output(job), 30, cluster, job)
    first_run = cluster.output(job)

    # Slurm starts a lost job again when its credentials have expired: after 120 s, or 70 s as we have set it. It tries
    # once more to end the first start 60 s after it could not, and must not find the second one then.
    cluster.start_node("node2")
    cluster.wait_for_nodes()
    if cluster.show(job)["JobState"] == "FAILED":  # its processes had ended before Slurm missed the node
        cluster.run("scontrol", "requeue", job)
    return cluster.wait(job), first_run


def test_a_lost_node_ends_the_job_in_bounded_time_and_the_requeued_one_goes_on(cluster):
    done, first_run = lose_a_node(cluster)
    assert "Node failure on node2" in first_run or "heartbeat timeout" in first_run
    assert "step 12 loss" not in first_run
    assert done.state == "COMPLETED", done.output
    again = done.output.split("start 1")[1]
    assert int(re.search(r"goes on after step (\d+)", again)[1]) >= 4
    assert "step 12 loss" in again and "step 3 loss" not in again
    shown = "\n".join(recorded("lost-node.txt"))
    for words in ("start 0", "step 4 loss", "Node failure on node2", "start 1", "goes on after step", "step 12 loss"):
        assert words in shown and words in done.output


def wait_until(true, seconds, cluster, job):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{cluster.show(job)}\n{cluster.output(job)}\n{cluster.log()}"
        time.sleep(0.1)


def test_bytes_between_nodes_are_those_of_the_formulas_and_of_the_recording(cluster):
    cluster.slow("200mbit")
    try:
        job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", "links.py"))
    finally:
        cluster.slow(None)
    assert job.state == "COMPLETED", job.output
    found = json.loads("\n".join(line.removeprefix("0: ") for line in said(job.output)[1:]))
    expected = json.loads("\n".join(recorded("links.txt")))
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
        assert measured == pytest.approx(expected[pattern]["MiB sent by a node"], rel=0.1, abs=0.1), pattern


def test_ipyparallel_starts_engines_through_slurm(cluster):
    """shardlab.processes, with one argument changed: eight processes on two nodes."""
    program = """
from shardlab.processes import start
with start(8, cluster="slurm", limit=120) as group:
    group.run("import jax, socket")
    print(group)
    print(group["jax.process_index(), jax.process_count(), jax.device_count(), socket.gethostname()"])
"""
    settings = cluster.environment | {"SLURM_EXPORT_ENV": "ALL"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=cluster.folder, env=settings, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{done.stderr}\n{cluster.log()}"
    who, seen = done.stdout.splitlines()
    assert who == "8 processes on 2 hosts"
    assert eval(seen) == [(i, 8, 8, f"node{1 + i // 4}") for i in range(8)]
    wait_until(lambda: "ipengine" not in cluster.run("squeue", "--noheader", "--format=%j"), 20, cluster, "1")


@pytest.mark.parametrize("chapter", ["clusters", "costs"])
def test_the_numbers_of_the_chapter_are_those_of_the_recording(chapter):
    text = (ROOT / "book" / f"{chapter}.md").read_text()
    names = {}
    exec(re.search(r"^# Recorded .*?^}$", text, re.DOTALL | re.MULTILINE)[0], names)
    links = json.loads("\n".join(recorded("links.txt")))
    assert names["recorded"] == {name: tuple(links[name].values()) for name in names["recorded"]}
    day = (RECORDINGS / "links.txt").read_text().split()[1]
    assert day.rstrip(",") in text


def test_files_that_need_other_clusters_can_at_least_be_read():
    import yaml

    for script in FOLDER.glob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)
    for document in yaml.safe_load_all((FOLDER / "jobset.yaml").read_text()):
        assert document["kind"] == "JobSet"
