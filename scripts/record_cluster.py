"""Record what clusters.md and stencils.md show, by running batch scripts on a real Slurm of two
nodes on this machine.

    sudo .venv/bin/python scripts/record_cluster.py     # or with the word "grid": only grid.py

Needs root and Debian's slurm-wlm and munge. Writes book/cluster/recordings/ and
src/shardlab/cluster/recordings/; tests/cluster/test_slurm.py compares new runs with them. Times are
better on a machine with nothing else to do.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("tests/tools/replicas", "tests/tools/runs", "tests/cluster")
sys.path[:0] = [str(ROOT / room) for room in ROOMS]

from slurm_cluster import Cluster, missing, on_cpus  # noqa: E402
from test_slurm import FOLDER, PACKAGED, RECORDINGS, lose_a_node, said  # noqa: E402
from waiting import wait_until  # noqa: E402


def main():
    """Run the jobs and write the recordings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "only", nargs="?", choices=["grid"], help="record only grid.py; by default all"
    )
    only = parser.parse_args().only
    if reason := missing():
        sys.exit(reason)
    RECORDINGS.mkdir(exist_ok=True)
    if not only:
        record_jobs()
    with Cluster() as cluster:
        slurm = version_of_slurm(cluster)
        for rate, where, name in (
            ("200mbit", "200 Mbit/s", "grid-slow.txt"),
            (None, "an unlimited link", "grid.txt"),
        ):
            cluster.slow(rate)
            record(cluster, slurm, PACKAGED / name, "two-nodes.sbatch", "grid.py", between=where)


def version_of_slurm(cluster):
    """Such as "Slurm 22.05.8"."""
    return cluster.run("sinfo", "--version").strip().replace("slurm-wlm", "Slurm")


def record_jobs():
    """Run the jobs of clusters.md, and train under Ray."""
    with Cluster() as cluster:
        slurm = version_of_slurm(cluster)
        record(cluster, slurm, "one-node.txt", "one-node.sbatch", JAX_NUM_CPU_DEVICES="4")
        record(cluster, slurm, "two-nodes.txt", "two-nodes.sbatch")
        run = "train.py", "--folder", cluster.folder / "run", "--steps", 6
        record(cluster, slurm, "train.txt", "two-nodes.sbatch", *run)
        preflight = (
            "preflight.py",
            "--processes",
            8,
            "--devices",
            8,
            "--folder",
            cluster.folder / "run",
        )
        record(cluster, slurm, "preflight.txt", "two-nodes.sbatch", *preflight)
        cluster.slow("200mbit")
        record(
            cluster,
            slurm,
            "preflight-slow.txt",
            "two-nodes.sbatch",
            *preflight,
            "--gbit",
            1,
            state="FAILED",
        )
        cluster.slow(None)
        record_hang(cluster, slurm)
        print("lost-node.txt: running", flush=True)
        story = (
            r"start \d|processes,|step \d+ loss|resumes|Gloo \w+ failed|heartbeat timeout|Node "
            r"failure|NODE FAILURE"
        )
        job, _, state = lose_a_node(cluster)
        done = cluster.wait(job)
        lines = [line[:100] for line in done.output.splitlines() if re.search(story, line)]
        lines = [
            line
            for line in lines
            if line.startswith(("0:", "job", "srun", "slurm")) or "Gloo" in line
        ]
        command = (
            f"sbatch two-nodes.sbatch train.py …, selected lines; the first start ended as {state}"
        )
        write(slurm, "lost-node.txt", list(dict.fromkeys(lines)), command)
        cluster.slow("200mbit")
        record(
            cluster,
            slurm,
            PACKAGED / "links.txt",
            "two-nodes.sbatch",
            "links.py",
            between="200 Mbit/s",
        )
    with Cluster() as cluster:
        record_ray(cluster)


def record_ray(cluster):
    """Train under Ray on the two nodes, and lose the second one; Ray comes into an environment of
    its own.
    """
    print("ray.txt: running", flush=True)
    names = "jax", "jaxlib", "numpy", "optax", "orbax-checkpoint"
    with tempfile.TemporaryDirectory() as folder:
        bin = Path(folder, "bin")
        uv = Path(sys.executable).with_name("uv")
        cluster.run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder)
        pins = [f"{name}=={version(name)}" for name in names]
        cluster.run(uv, "pip", "install", "--quiet", "--python", bin / "python", "ray", *pins)
        settings = (
            os.environ | on_cpus(1) | {"RAY_DEDUP_LOGS": "0", "PATH": f"{bin}:{os.environ['PATH']}"}
        )
        settings |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_health_check_period_ms": "2000"}
        head = (
            "--head",
            "--node-ip-address=10.77.0.1",
            "--include-dashboard=false",
            f"--temp-dir={cluster.folder}/ray",
        )
        second = "--address=10.77.0.1:6379", "--node-ip-address=10.77.0.2"
        for name, how in (("node1", head), ("node2", second)):
            cluster.run(*cluster.on(name, bin / "ray", "start", "--num-cpus=4", *how), **settings)
        run = cluster.folder / "run"
        what = (
            "--processes",
            4,
            "train.py",
            "--folder",
            run,
            "--steps",
            12,
            "--every",
            2,
            "--pause",
            0.5,
        )
        command = cluster.on("node1", bin / "python", "on_ray.py", *map(str, what))
        output = Path(folder, "output.txt")
        with output.open("w") as file:
            training = subprocess.Popen(
                command, cwd=FOLDER, env=settings, stdout=file, stderr=subprocess.STDOUT
            )
            wait_until(lambda: any((run / step).exists() for step in "46"), output.read_text)
            cluster.kill("node2")
            if training.wait(timeout=300):
                sys.exit(f"on_ray.py failed:\n{output.read_text()}")
        story = r"\d+ processes, .*|step \d+ loss .*|resumes .*|done, .*|start \d+ failed: .*"
        lines = [line[:100] for line in re.findall(story, output.read_text())]
        # here the nodes share /tmp, where each looks for Ray's logs
        lines = [line for line, _ in groupby(lines)]
        ray = cluster.run(bin / "python", "-c", "import ray; print(ray.__version__)").strip()
    write(f"Ray {ray}", "ray.txt", lines, "python on_ray.py --processes 4 train.py …")


def record(cluster, slurm, name, script, *arguments, between="", state="COMPLETED", **environment):
    """Run a job, which should end in a state, and write its output.

    `between`: the link between the nodes, of a job that measures it; without labels and the line on
    the job.
    """
    print(f"{Path(name).name}: running", flush=True)
    job = cluster.wait(cluster.submit(FOLDER / script, *arguments, **environment))
    if job.state != state:
        sys.exit(f"{script} ended as {job.state}:\n{job.output}")
    lines = (
        [line.removeprefix("0: ") for line in said(job.output)[1:]] if between else said(job.output)
    )
    command = " ".join(
        str(word).replace(str(cluster.folder), "/shared") for word in ("sbatch", script, *arguments)
    )
    write(slurm, name, lines, command, f", {between} between them" if between else "")


def record_hang(cluster, slurm):
    """Run a job that hangs and is ended by its watchdogs, and write what they and srun say of
    it.
    """
    print("hang.txt: running", flush=True)
    job = cluster.wait(cluster.submit(FOLDER / "two-nodes.sbatch", "hang.py"))
    lines = sorted(line for line in job.output.splitlines() if "has not ended" in line)
    lines += [
        line for line in job.output.splitlines() if re.search("srun: error: .* exit code", line)
    ]
    write(
        slurm,
        "hang.txt",
        lines,
        f"sbatch two-nodes.sbatch hang.py, selected lines; the job ended as {job.state}",
    )


def write(slurm, name, lines, command, where=""):
    """Write a recording below a head with date, versions, machine and command."""
    versions = f"JAX {version('jax')}, Python {sys.version.split()[0]}, {slurm}"
    where = f"two nodes emulated on one machine{where}"
    head = f"# {datetime.date.today()}, {versions}: {where}\n# {command}\n"
    (RECORDINGS / name).write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
