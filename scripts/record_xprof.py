#!/usr/bin/env python3
"""Run XProf's command line on traces of four processes, and record what it says:
book/cluster/recordings/xprof.txt, which the page `watch` shows.

    .venv/bin/python scripts/record_xprof.py

The processes run the cells of book/watch.md; XProf is installed for that alone.
"""

import datetime
import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from bookbinder.progress import Progress
from bookbinder.run.environments import Environment, make
from shardlab.cluster.worker import free_ports

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = ROOT / "book" / "watch.md"
FILE = ROOT / "book" / "cluster" / "recordings" / "xprof.txt"
PROCESSES, SHOWN = 4, (0, 2)
FIELDS = ("event", "count", "total_duration_ps")
EVENTS = "^(load|all-reduce)$"
JOIN = f"""
import sys
from pathlib import Path
import jax
rank, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{{port}}", {PROCESSES}, rank)
"""


def program():
    """The chapter's cells that train and that trace, behind the lines that join the processes."""
    cells = re.findall(
        r"(?ms)^```\{code-cell\} ipython3\n%%processes\n(.*?)^```$", CHAPTER.read_text()
    )
    (trains,) = (cell for cell in cells if "def train(W, x)" in cell)
    (traces,) = (cell for cell in cells if "trace(folder / str(rank))" in cell)
    return JOIN + trains + traces


def traced(folder):
    """Traces of the processes, each in a folder with its number."""
    (port,) = free_ports(1)
    command = [sys.executable, "-c", program()]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(port), f"{folder}/traces"], stdout=subprocess.DEVNULL
        )
        for rank in range(PROCESSES)
    ]
    ends = [one.wait(120) for one in running]
    if any(ends):
        raise SystemExit("a process of the trace failed")


def asked(xprof, folder, rank):
    """The lines about the trace of a process: the command, and of each event some fields."""
    words = ["aggregate_xplane_events", f"traces/{rank}", f"--event_regex={EVENTS}"]
    said = subprocess.run([xprof, *words], cwd=folder, capture_output=True, text=True, check=True)
    found = json.loads(said.stdout[said.stdout.index("{") :])["aggregates"]
    lines = [json.dumps({field: one[field] for field in FIELDS}) for one in found]
    return [f"$ xprof {words[0]} {words[1]} --event_regex='{EVENTS}'", *lines]


def main():
    """Record."""
    with TemporaryDirectory() as folder:
        python = Path(make(Environment("xprof", ("3.13",), ("xprof",)), Path(folder), Progress()))
        code = "from importlib.metadata import version; print(version('xprof'))"
        version = subprocess.check_output([python, "-c", code], text=True).strip()
        traced(folder)
        lines = [line for rank in SHOWN for line in asked(python.with_name("xprof"), folder, rank)]
    versions = f"JAX {jax.__version__}, Python {platform.python_version()}, XProf {version}"
    head = f"# {datetime.date.today()}, {versions}: four processes on one machine"
    FILE.write_text("\n".join([head, *lines]) + "\n", "utf-8")
    print(FILE.read_text("utf-8"))


if __name__ == "__main__":
    main()
