"""`make benchmark`: a build with stock Jupyter Book beside one by `make book`, the whole way on a tiny book."""

import re
import subprocess
import sys

import pytest
from places import ROOT
from tiny_book import TinyBook
from waiting import PATIENCE

pytestmark = pytest.mark.reads("scripts/benchmark.py", "src/bookbinder", "src/shardlab/_tables.py")

SCRIPT = ROOT / "scripts" / "benchmark.py"


def benchmark(*arguments):
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=6 * PATIENCE)  # of a dozen builds


def test_each_case_is_measured_for_both(tmp_path):
    tiny = TinyBook(tmp_path)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "a book"]):
        who = ["-c", "user.name=A", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command], cwd=tiny.root, check=True)
    done = benchmark("--book", tiny.root)
    assert not done.stdout or "Traceback" not in done.stderr, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split("  ")[0] == "what has changed", done.stdout + done.stderr
    chapters = {}
    for row in rows:
        what, stock, ours, *_, ran = re.split(r"  +", row)
        assert float(stock) > 0 and float(ours) > 0
        chapters[what] = ran
    # Stock is forced to run all after a change elsewhere; `make book` runs what it concerns, here the second chapter.
    assert chapters == {
        "nothing was built before": "2 and 2",
        "nothing has changed": "0 and 0",
        "a sentence in one chapter": "0 and 0",
        "a line of code in one chapter": "1 and 1",
        "a line of src/shardlab": "2 and 1",
        "another package": "2 and 2",
    }
    # On so small a book a target may be missed, which is said, and is the only reason for another status than 0.
    missed = re.findall(r"^missed: .* of stock's time, the target is at most [\d.]+$", done.stderr, re.MULTILINE)
    assert done.returncode == bool(missed), done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["wram"], "unknown case wram; known are cold, nothing, prose"), (["--runs", "0"], "--runs must be 1 or more")],
)
def test_what_cannot_be_measured_is_refused(arguments, said):
    done = benchmark(*arguments)
    assert done.returncode == 2 and said in done.stderr
