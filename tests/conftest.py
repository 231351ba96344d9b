"""What all tests share: 64 emulated devices in this process, and the book itself."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

os.environ.setdefault("MPLBACKEND", "agg")

# Without LLVM's optimisations the notebook of `context` took 43 s of processor time instead of 69. XLA's own, which
# decide what is communicated and held, stay on. The pages are made without this flag.
FAST_TO_COMPILE = "--xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST_TO_COMPILE}".strip()

from shardlab.devices import emulate  # noqa: E402  (before anything starts JAX)

emulate(64)

import oracle  # noqa: E402

oracle.watch()


@pytest.fixture(scope="session")
def book():
    """The book of this repository."""
    from bookbinder.book import load

    return load(ROOT)


def copy_sources(folder):
    """Copy the sources as they are here, committed or not, without what is ignored."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


@pytest.fixture
def tiny(tmp_path):
    """A small book, to build and to break."""
    from tiny_book import TinyBook

    return TinyBook(tmp_path)


# Files whose tests need the book to be built, other versions of JAX, a browser, or more than a few seconds.
SLOW = ("bookbinder", "browser", "faults", "home", "matrix", "notebooks", "pages", "pdf", "questions", "search",
        "setup", "site", "slurm")  # fmt: skip

# Tests of one chapter that run or compile it whole, and how their names go on with its name.
OF_A_CHAPTER = {"test_colab.py": "[{}-", "test_a_chapter_compiles_what_is_recorded": "[{}]"}

# The longest files begin first, so that at the end no process waits for another's last file. The chapters of Colab's
# notebooks and of the book, which the browser's tests need built, run at the same time, so many as there are places.
LONGEST = ("colab", "slurm", "workflows", "browser", "faults", "bookbinder", "matrix", "site", "notebooks", "pods",
           "processes", "explorer", "authors", "pages", "plan")  # fmt: skip


def pytest_addoption(parser):
    text = (
        "what `make check` runs: no tests that need the book, or a runner's steps; chapters only if they have changed"
    )
    parser.addoption("--quick", action="store_true", help=text)
    parser.addoption("--again", action="store_true", help="run every notebook twice in one kernel, unchanged ones too")


def pytest_xdist_auto_num_workers():
    """Two more than there are processors, as memory allows: two wait for chapters, or for jobs, kills and pages."""
    from bookbinder.runs import at_once

    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else at_once() + 1  # None: what that says


def changed_chapters():
    """The names of chapters that differ from the main branch: here, or in commits that it has not."""
    git = ["git", "-c", "safe.directory=*"]
    done = subprocess.run([*git, "merge-base", "HEAD", "origin/main"], cwd=ROOT, capture_output=True, text=True)
    base = done.stdout.strip() or "HEAD"  # without a remote, what is not committed
    listed = [[*git, "diff", "--name-only", base], [*git, "ls-files", "--others", "--exclude-standard"]]
    names = "".join(subprocess.run(one, cwd=ROOT, capture_output=True, text=True, check=True).stdout for one in listed)
    return re.findall(r"^book/(\w+)\.md$", names, re.MULTILINE)


def is_quick(item, changed):
    """Whether `make check` runs a test."""
    for where, name in OF_A_CHAPTER.items():
        if where in (item.path.name, item.originalname):
            return item.name.startswith(tuple(item.originalname + name.format(chapter) for chapter in changed))
    return item.path.name not in {f"test_{name}.py" for name in SLOW} and "runner" not in item.fixturenames


def pytest_collection_modifyitems(config, items):
    order = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    if config.option.quick:
        changed = changed_chapters()
        chosen = [item for item in items if is_quick(item, changed)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def missing(what, remedy=None):
    """Skip a test for want of a program, or of something else with its remedy; in CI, fail it."""
    remedy = remedy or f"Debian: apt-get install {what}"
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {what} ({remedy})")


@pytest.fixture(scope="module")
def browser():
    """The system's Chromium."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None) or missing("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def npm(tmp_path_factory):
    """The folder of the packages that tests/browser/package-lock.json names."""
    if not shutil.which("npm"):
        missing("npm")
    folder = tmp_path_factory.mktemp("npm")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / "tests" / "browser" / name, folder)
    command = ["npm", "ci", "--ignore-scripts", "--silent", "--no-audit", "--no-fund"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return folder / "node_modules"


@pytest.fixture(scope="session")
def site():
    """The folder of the built site; builds it, as `make book` does, if it is not up to date."""
    run = subprocess.run([sys.executable, "-m", "bookbinder", "build"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return ROOT / "_build" / "html"


@pytest.fixture(scope="module")
def home(site):
    """The address of the served site, with a slash at its end: compressed and below "/book/", as GitHub Pages would."""
    from host import serving

    with serving(site, below="/book/") as address:
        yield address
