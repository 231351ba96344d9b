"""The watchdog that readers copy: it ends a process whose step hangs, says where, and leaves all
others alone.
"""

import os
import subprocess
import sys
import time

import pytest
from places import ROOT
from repository import BOOK
from waiting import PATIENCE

pytestmark = pytest.mark.reads("book", "_config.yml")


FILE = ROOT / "book" / "cluster" / "watchdog.py"

START = """\
import ctypes, os, time
import jax
from watchdog import Watchdog

watchdog = Watchdog(limit=1, first=20, grace=0.1)
for step in range(2):
    watchdog.step(f"step {step}")
"""
LINE = f"process 0 on {os.uname().nodename}: "


def run(folder, program, limit=1):
    """The exit status of a program, what it wrote to stderr, and the seconds that it took."""
    (folder / "train.py").write_text(START.replace("limit=1", f"limit={limit}") + program)
    begin, command = time.monotonic(), [sys.executable, folder / "train.py"]
    environment = {"PYTHONPATH": str(FILE.parent), "JAX_PLATFORMS": "cpu", "PATH": ""}
    done = subprocess.run(
        command, env=environment, stderr=subprocess.PIPE, text=True, timeout=PATIENCE
    )
    return done.returncode, done.stderr, time.monotonic() - begin


@pytest.mark.parametrize(
    ("program", "says"),
    {
        "a call that gives up the GIL": (
            "time.sleep(100)\n",
            "step 1 has not ended within 1 s; it is at line 8 of train.py",
        ),
        "a function of the program": (
            "def load():\n    time.sleep(100)\nwatchdog.step('loading')\nload()\n",
            "loading has not ended within 1 s; it is at line 9 of train.py",
        ),
        "JAX": (
            "wait = lambda: jax.pure_callback(lambda: time.sleep(100), "
            "None)\njax.jit(wait)()\njax.effects_barrier()\n"
            "import threading\nthreading.Event().wait()\n",
            "it is at line 12 of train.py",
        ),
        "an exit that hangs": (
            "import atexit\natexit.register(time.sleep, 100)\n",
            "step 1 has not ended within 1 s; it is at the end of train.py",
        ),
        "a limit of its own": (
            "watchdog.step('a checkpoint', 2)\ntime.sleep(100)\n",
            "a checkpoint has not ended within 2 s; it is at line 9 of train.py",
        ),
    }.values(),
    ids=lambda value: value[:30],
)
def test_a_process_that_hangs_says_where_and_ends(tmp_path, program, says):
    status, said, seconds = run(tmp_path, program)
    assert status == 124, said
    assert f"{LINE}{says}\n" in said if says.startswith(("step", "a", "loading")) else says in said
    assert said.count("has not ended") == 1 and "(most recent call first)" in said and seconds < 100
    assert 'train.py", line' in said or "the end" in says


def test_code_that_holds_the_gil_is_ended_by_the_timer(tmp_path):
    status, said, seconds = run(tmp_path, "time.sleep(0.7)\nctypes.PyDLL(None).sleep(100)\n")
    assert (
        status == 1
        and "Timeout (0:00:03)!" in said
        and 'train.py", line 9' in said
        and seconds < 100
    )


def test_steps_within_their_limits_and_a_long_first_one_are_left_alone(tmp_path):
    steps = (
        "    time.sleep([6, 0.1][step])\nfor step in range(10):\n    watchdog.step(step)\n    "
        "time.sleep(0.1)\n"
    )
    steps += "watchdog.step('a checkpoint', 30)\ntime.sleep(6)\n"
    # which 0.1 s are not on the busiest machine
    status, said, seconds = run(tmp_path, steps, limit=5)
    assert (status, said) == (0, "") and seconds > 13


def test_it_is_short_and_the_chapter_has_it_as_it_is():
    text = FILE.read_text()
    cells = [cell.source for cell in BOOK.chapter("watch").cells if "/watchdog.py\n" in cell.source]
    parts = [cell.partition("\n")[2].rstrip("\n") for cell in cells]
    assert len(text.splitlines()) <= 40 and "\n".join(parts) + "\n" == text
