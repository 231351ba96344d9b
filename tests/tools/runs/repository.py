"""The repository under test: the book in it, its files and their history, and the site built from
it.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import cache

import proofs
import pytest
from places import ROOT

from bookbinder.read.book import load

BOOK = load(ROOT)  # read once for all files: several name a test after each chapter


# Chapters that run quickly, and whose pages tests look at by name.
EXAMPLES = {
    "index",
    "arrays",
    "auto",
    "collectives",
    "explicit",
    "explorer",
    "from_old_jax",
    "manual",
}


def copy_sources(folder):
    """Copy the sources as they are here, committed or not, without what is ignored."""
    for name in proofs.source_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def git(root, *arguments):
    who = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "safe.directory=*"]
    done = subprocess.run(["git", *who, *arguments], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def changed_files():
    """The files that differ from the main branch, as lines: here, or in commits that it has not."""
    git = ["git", "-c", "safe.directory=*"]
    done = subprocess.run(
        [*git, "merge-base", "HEAD", "origin/main"], cwd=ROOT, capture_output=True, text=True
    )
    base = done.stdout.strip() or "HEAD"  # without a remote, what is not committed
    listed = [
        [*git, "diff", "--name-only", base],
        [*git, "ls-files", "--others", "--exclude-standard"],
    ]
    return "".join(
        subprocess.run(one, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for one in listed
    )


@cache
def changed_chapters():
    """The names of chapters that differ from the main branch."""
    return re.findall(r"^book/(\w+)\.md$", changed_files(), re.MULTILINE)


def missing(what, remedy=None):
    """Skip a test for want of a program, or of something else with its remedy; in CI, fail it."""
    remedy = remedy or f"Debian: apt-get install {what}"
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {what} ({remedy})")


def build(config):
    """Build the site as the tests of this run need it; returns the ended process."""
    plugin = config.pluginmanager.getplugin("proofs")
    proved = (
        {unit.removeprefix("page ") for unit in plugin.left_out if unit.startswith("page ")}
        if plugin
        else set()
    )
    left_out = sorted(proved - EXAMPLES)
    command = [
        sys.executable,
        "-m",
        "bookbinder",
        "build",
        *(["--without", *left_out] if left_out else []),
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
