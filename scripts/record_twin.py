#!/usr/bin/env python3
"""Run the PyTorch program of book/from_torch.md in eight processes, and write its losses there.

    python scripts/record_twin.py [--check]

It needs an environment with torch and NumPy, and nothing of the book. With --check it writes
nothing, and fails if the losses differ from the page's by more than rounding.
"""

import datetime
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parent.parent / "book" / "from_torch.md"
PROGRAM = re.compile(r"^```python\n(.*?import torch\n.*?)^```$", re.MULTILINE | re.DOTALL)
LOSSES = re.compile(
    r"^# recorded by scripts/record_twin\.py.*?^TWIN = \[(.*?)\]$", re.MULTILINE | re.DOTALL
)
TOLERANCE = 1e-6  # of a loss: another version of torch adds in another order


def run(program):
    """The losses that the program prints in eight processes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "twin.py"
        file.write_text(program, "utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "8", file]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"record_twin: the program failed:\n{done.stderr[-2000:]}")
    return [float(line) for line in done.stdout.split()]


def recorded(page):
    """The losses on the page."""
    return [float(number) for number in LOSSES.search(page)[1].replace(",", " ").split()]


def cell(losses):
    """The lines of the page's cell, with the versions and the date."""
    texts = [f"{loss:.9f}" for loss in losses]
    rows = [", ".join(texts[i : i + 4]) for i in range(0, len(texts), 4)]
    made = f"{datetime.date.today()}, PyTorch {version('torch').partition('+')[0]}, gloo, CPUs"
    return (
        f"# recorded by scripts/record_twin.py: {made}\nTWIN = [" + ",\n        ".join(rows) + "]"
    )


def main(arguments):
    """Record, or compare; returns the exit status."""
    page = PAGE.read_text("utf-8")
    losses = run(PROGRAM.search(page)[1])
    if "--check" in arguments:
        apart = max(abs(now / then - 1) for now, then in zip(losses, recorded(page), strict=True))
        print(f"record_twin: apart by at most {apart:.1g}")
        return int(apart > TOLERANCE)
    PAGE.write_text(LOSSES.sub(lambda _: cell(losses), page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
