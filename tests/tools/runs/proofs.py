"""What was proved before need not run again: below `_build/proofs` is a file for whatever has
passed, with its key.

A unit passes as a whole:

- `page arrays`: the run of a chapter from which its page is made;
- `notebook arrays`: its notebook in the replica of Colab, with wrong answers to its exercises;
- `tests/test_x.py`: the other tests of a file.

A unit's key is a digest of what its tests depend on: of a chapter its code, Python's packages, and
the files that its cells have read, modules of `shardlab` among them; of other tests every file of
the repository, or those that the file names in its mark, `pytestmark =
pytest.mark.reads("src/bookbinder")`. A test that reads more than its mark says fails.

With `--proofs use` (`make test`) units with a proof of their key are left out. They do not count as
passed: pytest's closing line counts them apart, with their days. `--proofs renew` (`make test
ARGS=...`) leaves out nothing. Both keep what has passed, as soon as it has: a run that is
stopped is not lost. A unit with a test that was flaky or skipped is not proved.

Proofs are no part of the repository, so that no change can bring its own: they are what this
machine has seen. Clones may share the folder, as with `_build/runs`; on GitHub it is kept by runs
on main alone.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from places import ROOT

from bookbinder import disk
from bookbinder.run import runs, stale

FOLDER = ROOT / "_build" / "proofs"
KEPT = 20  # proofs of a unit, of other states of the repository
# a variable: when a run began, in ns; all its processes know the proofs that were there then
BEGAN = "PROOFS_BEGAN"
EVERYTHING = ("",)  # what tests read whose file does not say


@cache
def source_files(root=ROOT):
    """The names of the files in a clone as they are here, committed or not, without what is
    ignored.
    """
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "-z",
    ]
    listed = subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return [name for name in sorted({*filter(None, listed)}) if (root / name).is_file()]


def below(name, places):
    """Whether a file is one of some files, or in one of some folders."""
    return any(place in ("", name) or name.startswith(f"{place}/") for place in places)


@cache
def helpers():
    """What every test depends on: the tools of tests, and the project's settings."""
    return tuple(
        name
        for name in source_files()
        if re.fullmatch(r"tests/(conftest|tools/\w+/\w+)\.py|pyproject\.toml", name)
    )


def unit_of(item):
    """The unit of a test."""
    mark = item.get_closest_marker("unit")
    return mark.args[0] if mark else file_of(item)


def file_of(item):
    """The file of a test, relative to the repository."""
    return str(item.path.relative_to(ROOT))


def places_of(item):
    """The files and folders that a test depends on."""
    mark = item.get_closest_marker("reads")
    return (*mark.args, file_of(item), *helpers()) if mark else EVERYTHING


@cache
def key_of_files(places):
    """A digest of Python, its packages and the files in some places."""
    return _digest(places)


def _digest(places):
    found = hashlib.sha256(stale.environment().encode())
    for name in source_files():
        if below(name, places):
            found.update(f"{name} {disk.file_digest(ROOT / name)}\n".encode())
    return found.hexdigest()[:16]


def key_of_chapter(known, read):
    """A digest of what a chapter's run depends on: what is known before, and the files that it
    read, with digests.
    """
    return disk.digest(known, *(f"{name} {content}" for name, content in sorted(read.items())))[:16]


def proofs_of(unit, folder):
    """The files with proofs of a unit, the newest first."""
    files = {}
    for file in folder.glob(f"{re.sub(r'[^a-z0-9_]+', '-', unit)}.*.json"):
        with suppress(OSError):  # another run has deleted it
            files[file] = -file.stat().st_mtime_ns
    return sorted(files, key=files.get)


def read_proof(file):
    """A proof: its unit, its day, its key and the files that a chapter has read; none if it cannot
    be read.
    """
    try:
        proof = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    kinds = {"unit": str, "day": str, "key": str, "read": list | None}
    good = isinstance(proof, dict) and all(
        isinstance(proof.get(name, 0), kind) for name, kind in kinds.items()
    )
    return proof if good else {}


class Proofs:
    """The plugin: leaves out tests where they are collected, and records what passed in the process
    that reports.
    """

    def __init__(self, use, known, folder=FOLDER):
        """Leave out what is proved only if `use` is true; `known` tells what is known of a chapter
        before it runs.
        """
        self.use, self.known, self.folder, self.is_whole = use, known, folder, True
        self.began = int(os.environ.setdefault(BEGAN, f"{time.time_ns()}"))
        # what is known of each unit
        self.found = {"tests": {}, "places": {}, "known": {}, "left_out": {}}
        self.passed, self.bad, self.read, self.recorded = Counter(), set(), {}, set()

    @property
    def left_out(self):
        """The units that are left out, with the days of their proofs."""
        return self.found["left_out"]

    def proof(self, unit, known):
        """The day of a proof that holds for what is here now; "" if there is none."""
        for file in proofs_of(unit, self.folder):
            proof, key = read_proof(file), known
            if proof.get("unit") != unit or file.stat().st_mtime_ns > self.began:
                continue
            if proof["read"] is not None:
                key = key_of_chapter(
                    known, {name: disk.file_digest(ROOT / name) for name in proof["read"]}
                )
            if proof["key"] == key:
                return proof["day"]
        return ""

    def pytest_sessionstart(self, session):
        # else not all tests of a file are collected
        self.is_whole = not any("::" in argument for argument in session.config.args)

    # before -k and the like: a unit of which some tests are left out is not proved
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        tests, places, known = Counter(), {}, {}
        for item in items:
            unit = unit_of(item)
            item.user_properties.append(("unit", unit))
            tests[unit] += 1
            if unit not in known:
                known[unit] = self.known(unit)
                places[unit] = () if known[unit] else places_of(item)
                known[unit] = known[unit] or key_of_files(places[unit])
        days = {unit: self.proof(unit, known[unit]) for unit in tests if self.use}
        left_out = {unit: day for unit, day in days.items() if day}
        self.found = {"tests": dict(tests), "places": places, "known": known, "left_out": left_out}
        items[:] = [item for item in items if unit_of(item) not in left_out]

    def pytest_runtest_logreport(self, report):
        properties = dict(report.user_properties)
        unit = properties.get("unit")
        if "read" in properties:
            self.read[unit] = properties["read"]
        if report.failed or report.skipped:
            self.bad.add(unit)
        elif report.when == "call":
            self.passed[unit] += 1
        elif report.when == "teardown":  # a run that is stopped has no end at which to record it
            self.record([unit])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """A process has ended that has collected all tests and run some."""
        self.found = getattr(node, "workeroutput", {}).get("proofs", self.found)

    def pytest_sessionfinish(self, session):
        config = session.config
        if hasattr(config, "workerinput"):
            config.workeroutput["proofs"] = self.found
            return
        if self.left_out:
            first, last = (one(self.left_out.values()) for one in (min, max))
            kind = f"proved on {first}" if first == last else f"proved from {first} to {last}"
            reporter = config.pluginmanager.getplugin("terminalreporter")
            # Other plugins look into each report; these have nothing in them.
            tests = [unit for unit in self.left_out for _ in range(self.found["tests"][unit])]
            reporter.stats[kind] = [SimpleNamespace(nodeid=unit) for unit in tests]
            if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
                session.exitstatus = pytest.ExitCode.OK
        self.record(self.passed)  # those too of which several processes have run some tests

    def record(self, units):
        """Keep a proof of each of some units that has passed, unless a file that it depends on has
        changed meanwhile.
        """
        if self.is_whole:
            with suppress(OSError):  # such as a full disk: the tests have passed all the same
                self._record(units)

    def _record(self, units):
        as_it_is, day = cache(_digest), f"{datetime.now(UTC).date()}"
        for unit in units:
            count = self.found["tests"].get(unit)
            if unit in self.bad or unit in self.recorded or self.passed[unit] != count:
                continue
            self.recorded.add(unit)
            self.folder.mkdir(parents=True, exist_ok=True)
            key, places, read = self.found["known"][unit], self.found["places"][unit], None
            if not places:
                read = self.read.get(unit, {})
                key, read = key_of_chapter(key, read), sorted(read)
            elif as_it_is(tuple(places)) != key:
                continue
            name = f"{re.sub(r'[^a-z0-9_]+', '-', unit)}.{key}.json"
            disk.write(
                self.folder / name, json.dumps({"unit": unit, "day": day, "key": key, "read": read})
            )
            for old in proofs_of(unit, self.folder)[KEPT:]:
                old.unlink(missing_ok=True)


class Reads:
    """The plugin that fails the last test of a file whose tests read more than the file's mark
    says.

    It sees what this process opens, and the files and modules that the commands name which it
    starts.
    """

    def __init__(self):
        """Listen, for as long as the process lives."""
        self.seen = None  # the files read by the tests of a file with a mark, or None
        self.places = set()  # what its tests name
        sys.addaudithook(self.hear)

    def hear(self, event, arguments):
        if self.seen is None:
            return
        if (
            event == "open"
            and isinstance(arguments[0], str)
            and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        ):
            if not _is_hypothesis_looking():
                self.note(arguments[0])
        elif event == "subprocess.Popen" and not isinstance(arguments[1], (str, bytes)):
            words = [
                os.fsdecode(word)
                for word in arguments[1]
                if isinstance(word, (str, bytes, os.PathLike))
            ]
            if runs.GUARD.name in map(os.path.basename, words):  # what it protects it does not read
                del words[: words.index("--") + 1]
            for word, following in zip(words, [*words[1:], ""], strict=True):
                # a path, or perhaps a file in the folder where it starts
                if os.sep in word or arguments[2]:
                    self.note(os.path.join(arguments[2] or "", word))
                if word == "-m":
                    self.note(str(ROOT / "src" / following))

    def note(self, path):
        path = os.path.abspath(path)
        if path.startswith(f"{ROOT}{os.sep}"):
            name = os.path.relpath(path, ROOT)
            folder, file = os.path.split(name)
            if os.path.basename(folder) == "__pycache__":
                name = os.path.join(os.path.dirname(folder), f"{file.partition('.')[0]}.py")
            self.seen.add(name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        if item.get_closest_marker("reads"):
            self.seen = self.seen or set()
            self.places |= set(places_of(item))
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item, nextitem):
        if self.seen is None or (nextitem and nextitem.path == item.path):
            return
        seen, places, self.seen, self.places = self.seen, self.places, None, set()
        ours = set(source_files()) | {str(Path(name).parent) for name in source_files()}
        holds = {str(folder) for place in places for folder in (Path(place), *Path(place).parents)}
        unnamed = sorted(
            name for name in seen & ours if not below(name, places) and name not in holds
        )
        assert not unnamed, (
            f"{file_of(item)} reads {', '.join(unnamed)}, which its mark `reads` does not name"
        )


def _is_hypothesis_looking():
    """Whether Hypothesis looks through our modules for numbers to try, which is nothing that a test
    depends on.
    """
    frame = sys._getframe()
    while frame and frame.f_code.co_name != "constants_from_module":
        frame = frame.f_back
    return frame is not None


def add_options(parser):
    """The options of this plugin."""
    text = "leave out what was proved before (use), or nothing (renew); keep what passes"
    parser.addoption("--proofs", choices=("use", "renew"), help=text)


def configure(config, known):
    """Register the plugins; `known` tells what is known of a chapter before it runs."""
    config.addinivalue_line(
        "markers", "unit(name): what this test is a part of, which passes as a whole"
    )
    config.addinivalue_line(
        "markers", "reads(*places): the files and folders on which the tests of a file depend"
    )
    config.pluginmanager.register(Reads())
    if config.option.proofs:
        config.pluginmanager.register(Proofs(config.option.proofs == "use", known), "proofs")
