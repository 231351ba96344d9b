"""What your_centre.md says of a job that has ended is what a Slurm with accounting prints."""

import os
import re

import pytest
from places import ROOT
from slurm_cluster import ACCOUNTING, PROGRAMS, Cluster, missing
from waiting import wait_until

pytestmark = pytest.mark.reads("src/shardlab", "book/cluster", "book/your_centre.md")


def test_sacct_says_what_a_job_used():
    if reason := missing(PROGRAMS + ACCOUNTING):
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    text = (ROOT / "book" / "your_centre.md").read_text()
    (options,) = re.findall(r"^sacct -j NUMBER (\S+)$", text, re.MULTILINE)
    with Cluster(accounting=True) as cluster:
        what = "train.py", "--folder", cluster.folder / "run", "--steps", 3
        job = cluster.submit(ROOT / "book/cluster/two-nodes.sbatch", *what)
        assert cluster.wait(job).state == "COMPLETED", cluster.told(job)

        def used():
            said = cluster.run("sacct", "-j", job, options, "--noheader", "--parsable2")
            rows = [line.split("|") for line in said.splitlines()]
            return len(rows) == 3 and all(row[1] == "COMPLETED" for row in rows) and rows

        of_job, batch, step = wait_until(used, cluster.log)
    assert [of_job[0], batch[0], step[0]] == [job, f"{job}.batch", f"{job}.0"]
    assert "cpu=32,gres/gpu=8,node=2" in of_job[5] and of_job[4] == ""  # memory is a step's
    assert int(re.fullmatch(r"(\d+)K", step[4])[1]) > 100_000  # KiB: a task imports JAX
