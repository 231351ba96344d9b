"""What all tests share: 64 emulated devices in this process, and the book itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

os.environ.setdefault("MPLBACKEND", "agg")

from shardlab.devices import emulate  # noqa: E402  (before anything starts JAX)

emulate(64)


@pytest.fixture(scope="session")
def book():
    """The book of this repository."""
    from bookbinder.book import load

    return load(ROOT)


@pytest.fixture(scope="session")
def site():
    """The folder of the built site; builds it, as `make book` does, if it is not up to date."""
    run = subprocess.run([sys.executable, "-m", "bookbinder", "build"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return ROOT / "_build" / "html"
