"""What all tests share: 64 emulated devices in this process, and the book itself."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache

import pytest
from places import ROOT

os.environ.setdefault("MPLBACKEND", "agg")

# LLVM optimises little here, which saves processor time: XLA's own optimisations, which decide what is communicated and
# held, stay on. Tests mostly compile, chapters run what they compile: `zero` took 131 s without LLVM's optimisations
# and 103 s with the first level of them. JAX 0.7.2, on which notebooks run, also compiles faster without fusion
# emitters (152 s became 104 s); a newer jaxlib does not know that flag. Pages that people read are made without any of
# these, and so is the site of the tests, unless CI builds it from nothing.
COMPILE_ONLY = "--xla_backend_optimization_level=0"
COMPILE_AND_RUN = "--xla_backend_optimization_level=1"
IN_COLAB = f"{COMPILE_AND_RUN} --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {COMPILE_ONLY}".strip()
if os.environ.get("CI"):
    os.environ["CHAPTERS_XLA_FLAGS"] = COMPILE_AND_RUN

from shardlab import emulate  # noqa: E402  (before anything starts JAX)

emulate(64)

import oracle  # noqa: E402
import proofs  # noqa: E402
import retry  # noqa: E402
import run_exercises  # noqa: E402

from bookbinder.read.book import load  # noqa: E402
from bookbinder.run import runs  # noqa: E402

oracle.watch()

BOOK = load(ROOT)  # read once for all files: several name a test after each chapter


@pytest.fixture(scope="session")
def book():
    """The book of this repository."""
    return BOOK


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


@pytest.fixture
def tiny(tmp_path):
    """A small book, to build and to break."""
    from tiny_book import TinyBook

    return TinyBook(tmp_path)


# The rooms of tests in the order in which they begin: the longest first, so that at the end no process waits for
# another's last file. Chapters of Colab's notebooks and of the book, which the browser's tests need built, run at the
# same time. `make check` leaves out those that need the book to be built, a browser, a cluster, or many processes.
ROOMS = ("book", "cluster", "browser", "build", "repo", "unit")
SLOW_ROOMS = {"cluster", "browser", "build"}

# Chapters that run quickly, and whose pages tests look at by name.
EXAMPLES = {"index", "arrays", "auto", "collectives", "explicit", "explorer", "from_old_jax", "manual"}


def pytest_addoption(parser):
    text = (
        "what `make check` runs: no tests that need the book, or a runner's steps; chapters only if they have changed"
    )
    parser.addoption("--quick", action="store_true", help=text)
    text = "of unchanged chapters too: run the notebook twice in one kernel, and compile what is recorded for pods"
    parser.addoption("--again", action="store_true", help=text)
    retry.add_options(parser)
    proofs.add_options(parser)


def pytest_xdist_auto_num_workers():
    """Two more than there are processors, as memory allows: two wait for chapters, or for jobs, kills and pages."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else runs.at_once() + 1  # None: what that says


@cache
def changed_files():
    """The files that differ from the main branch, as lines: here, or in commits that it has not."""
    git = ["git", "-c", "safe.directory=*"]
    done = subprocess.run([*git, "merge-base", "HEAD", "origin/main"], cwd=ROOT, capture_output=True, text=True)
    base = done.stdout.strip() or "HEAD"  # without a remote, what is not committed
    listed = [[*git, "diff", "--name-only", base], [*git, "ls-files", "--others", "--exclude-standard"]]
    return "".join(subprocess.run(one, cwd=ROOT, capture_output=True, text=True, check=True).stdout for one in listed)


@cache
def changed_chapters():
    """The names of chapters that differ from the main branch."""
    return re.findall(r"^book/(\w+)\.md$", changed_files(), re.MULTILINE)


def room(item):
    """The room of a test: the first folder below tests."""
    return item.path.relative_to(ROOT / "tests").parts[0]


def is_quick(item):
    """Whether `make check` runs a test."""
    if mark := item.get_closest_marker("of_chapter"):
        return mark.args[0] in changed_chapters()
    if mark := item.get_closest_marker("if_changed"):
        assert all((ROOT / file).is_file() for file in mark.args), mark
        return not {proofs.file_of(item), *mark.args}.isdisjoint(changed_files().split("\n"))
    return room(item) not in SLOW_ROOMS and not item.get_closest_marker("slow")


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: ROOMS.index(room(item)))
    if config.option.quick:
        chosen = [item for item in items if is_quick(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


class SaysAtOnce:
    """Says what failed when it fails: a run takes long, and one that is stopped has no end at which to say it."""

    def __init__(self, terminal):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.terminal.write_line(f"\n{report.nodeid} ({report.when}):\n{report.longreprtext[-4000:]}")


@pytest.hookimpl(trylast=True)  # after the terminal's own
def pytest_configure(config):
    if terminal := config.pluginmanager.getplugin("terminalreporter"):  # workers have none
        config.pluginmanager.register(SaysAtOnce(terminal))
    markers = (
        "slow: `make check` leaves it out",
        "of_chapter(name): `make check` runs it if this chapter differs from the main branch",
        "if_changed(*files): `make check` runs it if its file or one of these differs from the main branch",
    )
    for marker in markers:
        config.addinivalue_line("markers", marker)
    retry.configure(config)
    proofs.configure(config, known)


def known(unit):
    """What is known of a chapter before it runs, as a digest: of the units "page NAME" and "notebook NAME"."""
    kind, _, name = unit.partition(" ")
    if kind == "page":
        return runs.chapter_key(BOOK, BOOK.chapter(name))
    return run_exercises.notebook_key(BOOK, BOOK.chapter(name)) if kind == "notebook" else None


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


def build(config):
    """Build the site as the tests of this run need it; returns the ended process."""
    plugin = config.pluginmanager.getplugin("proofs")
    proved = {unit.removeprefix("page ") for unit in plugin.left_out if unit.startswith("page ")} if plugin else set()
    left_out = sorted(proved - EXAMPLES)
    command = [sys.executable, "-m", "bookbinder", "build", *(["--without", *left_out] if left_out else [])]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="session")
def site(request):
    """The folder of the built site; builds it, as `make book` does, if it is not up to date.

    Chapters whose runs are proved are left out, but for the EXAMPLES: where no outputs of one are kept from before, its
    page has none. `complete` says which pages have all that they should.
    """
    run = build(request.config)
    assert run.returncode == 0, run.stdout + run.stderr
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def complete(site):
    """The chapters whose pages have their outputs, or need none."""
    results = json.loads((site.parent / "state.json").read_text())["results"]
    return [BOOK.chapter(result["name"]) for result in results if result["status"] != "left out"]


@pytest.fixture(scope="module")
def home(site):
    """The address of the served site, with a slash at its end: compressed and below "/book/", as GitHub Pages would."""
    from host import serving

    with serving(site, below="/book/") as address:
        yield address
