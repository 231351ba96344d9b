"""What all tests share: 64 emulated devices in this process, and the book itself."""

import json
import os
import re
import shutil
import subprocess
from functools import partial

import pytest
from compilers import COMPILE_AND_RUN, COMPILE_ONLY
from places import ROOT

os.environ.setdefault("MPLBACKEND", "agg")

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {COMPILE_ONLY}".strip()
if os.environ.get("CI"):
    os.environ["CHAPTERS_XLA_FLAGS"] = COMPILE_AND_RUN

from shardlab import emulate  # before anything starts JAX

emulate(64)

import contract  # noqa: E402
import oracle  # noqa: E402
import proofs  # noqa: E402
import retry  # noqa: E402
import trials  # noqa: E402
from repository import BOOK, build, changed_chapters, changed_files, missing  # noqa: E402

from bookbinder import disk  # noqa: E402
from bookbinder.run import runs, stale  # noqa: E402

oracle.watch()


@pytest.fixture(scope="session")
def book():
    """The book of this repository."""
    return BOOK


@pytest.fixture
def tiny(tmp_path):
    """A small book, to build and to break."""
    from tiny_book import TinyBook

    return TinyBook(tmp_path)


# The rooms of tests in the order in which they begin: the longest first, so that at the end no
# process waits for another's last file. Chapters of Colab's notebooks and of the book, which the
# browser's tests need built, run at the same time. `make check` leaves out those that need the book
# to be built, a browser, a cluster, or many processes.
ROOMS = ("book", "cluster", "contracts", "unit/report", "browser", "build", "repo", "unit")
SLOW_ROOMS = {"cluster", "browser", "build"}


def pytest_addoption(parser):
    text = (
        "what `make check` runs: no tests that need the book, or a runner's steps; chapters only "
        "if they have changed"
    )
    parser.addoption("--quick", action="store_true", help=text)
    text = (
        "of unchanged chapters too: run the notebook twice in one kernel, and compile what is "
        "recorded for pods"
    )
    parser.addoption("--again", action="store_true", help=text)
    contract.add_options(parser)
    retry.add_options(parser)
    proofs.add_options(parser)


def pytest_xdist_auto_num_workers():
    """Two more than there are processors, as memory allows: two wait for chapters, or for jobs,
    kills and pages.
    """
    # None: what that says
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else runs.at_once() + 1


def room(item):
    """The room of a test: of the folders above it below tests the innermost that is one."""
    folders = item.path.relative_to(ROOT / "tests").parents
    return next(str(folder) for folder in folders if str(folder) in ROOMS)


def is_quick(item):
    """Whether `make check` runs a test."""
    if mark := item.get_closest_marker("of_chapter"):
        return mark.args[0] in changed_chapters()
    if mark := item.get_closest_marker("if_changed"):
        assert all((ROOT / file).is_file() for file in mark.args), mark
        return not {proofs.file_of(item), *mark.args}.isdisjoint(changed_files().split("\n"))
    return room(item) not in SLOW_ROOMS and not item.get_closest_marker("slow")


def concerns_changes(item):
    """Whether a test is of no changes in particular, or of some that there are."""
    mark = item.get_closest_marker("of_changes")
    return not mark or re.search(rf"^({mark.args[0]})$", changed_files(), re.MULTILINE)


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: ROOMS.index(room(item)))
    chosen, left_out = [], []
    for item in items:
        is_current = config.option.again or concerns_changes(item)
        is_chosen = is_current and (not config.option.quick or is_quick(item))
        (chosen if is_chosen else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


class SaysAtOnce:
    """Says what failed when it fails: a run takes long, and one that is stopped has no end at which
    to say it.
    """

    def __init__(self, terminal):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.terminal.write_line(
                f"\n{report.nodeid} ({report.when}):\n{report.longreprtext[-4000:]}"
                f"{contract.last_words(report.nodeid)}"
            )


@pytest.hookimpl(trylast=True)  # after the terminal's own
def pytest_configure(config):
    if terminal := config.pluginmanager.getplugin("terminalreporter"):  # workers have none
        config.pluginmanager.register(SaysAtOnce(terminal))
    markers = (
        "slow: `make check` leaves it out",
        "of_changes(pattern): left out if no file that differs from the main branch matches",
        "of_chapter(name): `make check` runs it if this chapter differs from the main branch",
        (
            "if_changed(*files): `make check` runs it if its file or one of these differs from "
            "the main branch"
        ),
    )
    for marker in markers:
        config.addinivalue_line("markers", marker)
    contract.configure(config)
    retry.configure(config)
    proofs.configure(config, partial(known, is_again=config.option.again))


def known(unit, is_again):
    """What is known of a chapter before it runs, as a digest: of the units "page NAME" and
    "notebook NAME".
    """
    kind, _, name = unit.partition(" ")
    if kind == "page":
        return stale.chapter(BOOK, BOOK.chapter(name))
    if kind == "notebook":
        return disk.digest(trials.notebook_key(BOOK, BOOK.chapter(name)), "again" * is_again)
    return None


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
def site(request):
    """The folder of the built site; builds it, as `make book` does, if it is not up to date.

    Chapters whose runs are proved are left out, but for the EXAMPLES: where no outputs of one are
    kept from before, its page has none. `complete` says which pages have all that they should.
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
    """The address of the served site, with a slash at its end: compressed and below "/book/", as
    GitHub Pages would.
    """
    from servers import serving

    with serving(site, below="/book/") as address:
        yield address
