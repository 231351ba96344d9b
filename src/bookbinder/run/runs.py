"""Run notebooks, several at once, and keep what became of them: what was run under a key is not run
again under it.

Everything that runs a chapter does it here: the build, the matrix of versions, the tests of
exercises and of Colab's notebooks. `run_notebook.py` runs one notebook in a process of the Python
that is asked for. Below `_build/runs` each run has a report, such as
`lock/arrays.1f0c3a.84d1be.json`, and beside it the notebook with its outputs. Clones may share the
folder (as .ci/run's do, by a link): what one has run under a key, no other runs again.

A run is valid as long as its key is the same, and each file that its cells have read, modules among
them.
The key holds the code, the way of running it, Python and its packages. The last runs of each
chapter are kept, so that an edit that is undone costs nothing; what failed runs again.
"""

import base64
import errno
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from signal import Signals

import psutil

from bookbinder import disk
from bookbinder.progress import AS_TEXT
from bookbinder.read import package
from bookbinder.read.book import SOURCES
from bookbinder.run import run_notebook, stale
from bookbinder.stopping import Stopped

MEMORY = 2 << 30  # bytes that a chapter may need
FOR_CHAPTERS = "CHAPTERS_"  # how variables begin that are meant for chapters
KEPT = 6  # runs of one chapter in one environment
# bytes of compiled programs that are kept; one way to run all chapters takes some 80 MB
PROGRAMS = 2 << 30
MOST_KEPT = 200 << 20  # bytes of a notebook with its outputs
MOST_SECONDS = 10**7  # that a run may have taken
CHANGED = ("installed", "removed")  # in a report: packages
MOST_SAID = 100_000  # bytes that are read of what a runner says at its end
GUARD = Path(__file__).with_name("protect.py")
BUILD = "_build"
# What commands say of what is bound read-only, and how they name it: quoted, or just before that.
REFUSED = re.compile(r"Read-only file system|Device or resource busy")
NAMED = re.compile(rf"['‘]([^'’]+)['’]|([^\s':]+): (?:{REFUSED.pattern})")  # of GNU too
NOT_THERE = (
    "{name} is part of the book, where no cell may write or delete; write to a folder that "
    "tempfile makes"
)
END_SECONDS = 30  # how long a runner may take to end what its cells have started


@dataclass(frozen=True)
class Run:
    """A notebook, and the way to run it.

    Attributes:
      name: for people, such as "arrays" or "arrays on colab".
      place: where its reports are kept, such as `_build/runs/lock/arrays`.
      notebook: an nbformat notebook.
      key: a digest of all that the run depends on and that is known before.
      root: the folder that has `book`; files below it that cells read are part of what the run
        depends on.
      python: the interpreter.
      cwd: the folder in which cells run.
      variables: the environment variables.
      options: further options of run_notebook.py.
      programs: the archive in which its compiled programs are kept; None if they are not.
    """

    name: str
    place: Path
    notebook: dict
    key: str
    root: Path
    python: str = sys.executable
    cwd: Path = Path()
    variables: dict = field(default_factory=dict)
    options: tuple[str, ...] = ()
    programs: Path | None = None

    @property
    def cells(self):
        """How many code cells it has."""
        return sum(
            cell.cell_type == "code" and bool(cell.source.strip()) for cell in self.notebook.cells
        )


@dataclass(frozen=True)
class Report:
    """What became of a run.

    Attributes:
      data: the report of run_notebook.py, as a dict.
      seconds: how long the run took that gave it.
      read: digests of the files below the root that its cells have read, by name.
      day: of that run, such as "2026-11-21".
      version: changes whenever the outputs do; "" for a run that failed.
      outputs: the file of the notebook with its outputs; None for a run that failed.
      notebook: what that file held when the report was made; others may delete it.
      reused: whether it is of an earlier run.
    """

    data: dict
    seconds: float
    day: str
    read: dict = field(default_factory=dict)
    version: str = ""
    outputs: Path | None = None
    notebook: str = ""
    reused: bool = False

    @property
    def ok(self):
        """Whether every cell came to its end."""
        return self.data["ok"]


def of_chapter(book, chapter, python=sys.executable, column="lock"):
    """The run of a chapter as the book has it; on another Python for a column of the matrix.

    A variable such as CHAPTERS_XLA_FLAGS is XLA_FLAGS to chapters: with it, tests compile them in
    another way.
    """
    from nbformat.v4 import new_notebook

    code = [cell for cell in chapter.notebook.cells if cell.cell_type == "code"]
    key, imported = stale.chapter(book, chapter, python), package.of(book.root)
    # Settings of whoever runs this would give chapters other programs or no pictures. And each
    # kernel would compile all modules again if the first must not keep what it compiles.
    foreign = "|".join(
        filter(None, (imported.unset, "MPLBACKEND$|PYTHON(HOME|WARNINGS|PATH|DONTWRITEBYTECODE)$"))
    )
    inherited = {name: value for name, value in os.environ.items() if not re.match(foreign, name)}
    ours = {
        name: value for name, value in inherited.items() if name.startswith(FOR_CHAPTERS) and value
    }
    for_chapters = {name.removeprefix(FOR_CHAPTERS): value for name, value in ours.items()}
    return Run(
        chapter.name if column == "lock" else f"{chapter.name} on {column}",
        book.build_folder / "runs" / column / chapter.name,
        new_notebook(
            cells=code,
            metadata={"kernelspec": dict(chapter.notebook.metadata.get("kernelspec", {}))},
        ),
        disk.digest(key, stale.settings(for_chapters)) if for_chapters else key,
        book.root,
        python,
        (book.root / chapter.path).parent,
        {**inherited, "PYTHONPATH": str(book.root / "src"), **imported.variables, **for_chapters},
        (
            "--timeout",
            str(int(book.cell_seconds)),
            *watched(book.root),
            "--sources",
            *SOURCES,
            BUILD,
        ),
        programs(book.root, chapter.name, column, python, for_chapters),
    )


def programs(root, name, column, python=sys.executable, settings=()):
    """Where compiled programs of a chapter are kept, so that an edit compiles again what it has
    changed, and no more.

    In the folder of the chapter each column of the matrix, and each way to compile, has an archive:
    a run begins with all of them. Other versions of the compiler, and other processors, have
    folders of their own.
    """
    kept = package.of(root).programs
    if kept is None:
        return None
    way = f"-{stale.settings(settings)[:6]}" if settings else ""
    folder = root / "_build" / "programs" / stale.compiler(kept.packages, python)
    return folder / name / f"{column}{way}.zip"


def watched(root):
    """The options of run_notebook.py by which it notes what cells read below a root, and warnings
    of the package.
    """
    name = package.of(root).name
    return ("--root", str(root), *(("--package", name) if name else ()))


def outputs(report):
    """The notebook of a run that went well, with its outputs."""
    import nbformat

    return nbformat.reads(report.notebook, as_version=4)


def known(run):
    """The valid `Report` of an earlier run; None if there is none."""
    for file in _earlier(run, run.key[:12]):
        record = _read(file)
        if (
            record
            and record["key"] == run.key
            and all(stale.file(run.root, name) == old for name, old in record["read"].items())
        ):
            notebook = file.with_suffix(".ipynb")
            with suppress(OSError, UnicodeDecodeError):  # another build has deleted it
                content = _content(notebook)
                text = content.decode()
                if disk.bytes_digest(content) == record["version"] and _is_of(run, text):
                    facts = (record[name] for name in _FACTS)
                    return Report(*facts, outputs=notebook, notebook=text, reused=True)
    return None


def _earlier(run, key="*"):
    """The reports of its chapter, of one key or of all, the newest first."""
    times = {}
    for file in run.place.parent.glob(f"{run.place.name}.{key}.*.json"):
        with suppress(OSError):  # another build has deleted it
            status = file.stat()
            if stat.S_ISREG(status.st_mode):
                times[file] = status.st_mtime_ns
    return sorted(times, key=lambda file: -times[file])


_FACTS = ("data", "seconds", "day", "read", "version")


def _is_number(value):
    return type(value) in (int, float) and 0 <= value <= MOST_SECONDS  # no NaN


def _is_warning(value):
    kinds = {"cell": int | None, "path": str | None, "line": int, "message": str}
    return isinstance(value, dict) and all(
        name in value and isinstance(value[name], kind) for name, kind in kinds.items()
    )


# What a record has, each with what it must be: others may have written it.
_FORM = {
    "key": lambda value: isinstance(value, str),
    "seconds": _is_number,
    "day": lambda value: re.fullmatch(r"\d{4}-\d\d-\d\d", value),
    "version": lambda value: re.fullmatch("[0-9a-f]{64}", value),
    "read": lambda value: all(
        isinstance(old, str) and not Path(name).is_absolute() and ".." not in Path(name).parts
        for name, old in value.items()
    ),
    "data": lambda value: value["ok"] is True and all(good(value[name]) for name, good in _REPORT),
}
_REPORT = (
    ("seconds", _is_number),
    ("processor_seconds", _is_number),
    ("cells", lambda value: type(value) is int),
    ("deprecations", lambda value: [*value] == value and all(map(_is_warning, value))),
    *((name, lambda value: all(isinstance(one, str) for one in value)) for name in CHANGED),
)


def _read(file):
    """A record on disk; None if it cannot be read or has another form."""
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        record = json.loads(_content(file))
        if all(good(record[name]) for name, good in _FORM.items()):
            return record
    return None


def _content(file):
    """What a file holds; OSError for what is no file, and for more than any run has put out."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_KEPT:
        raise OSError(errno.EFBIG, "no file of a run")
    return file.read_bytes()


def _is_of(run, text):
    """Whether a text is a notebook with the cells of a run, and outputs."""
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        cells = json.loads(text)["cells"]
        shown = [output for cell in cells for output in cell.get("outputs", ())]
        return ["".join(cell["source"]) for cell in cells] == [
            cell.source for cell in run.notebook.cells
        ] and all(isinstance(output["output_type"], str) for output in shown)
    return False


def at_once(quotas=Path("/sys/fs/cgroup")):
    """How many chapters run at once: one for each processor that we may use and one more, as memory
    allows.

    A container's quotas count; `quotas` is the folder where Linux tells them.
    """
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    memory = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # no container, or no quota
        quota, period = (quotas / "cpu.max").read_text().split()
        processors = min(processors, -(-int(quota) // int(period)))
    with suppress(OSError, ValueError):
        limit, used = (int((quotas / f"memory.{name}").read_text()) for name in ("max", "current"))
        memory = min(memory, limit - used)
    return max(1, min(processors + 1, memory // MEMORY))  # each waits now and then


def run(runs, *, first=(), jobs=None, fresh=False, progress, stop, before=None, finished=None):
    """Run those notebooks that have no valid report, the longest first. One that fails does not
    stop the others.

    Args:
      runs: the `Run`s.
      first: the names of those that begin before all others, in this order.
      jobs: how many at once, of all processes that run chapters of this book; by default
        `at_once()`.
      fresh: whether to run again what has a valid report.
      progress: a `bookbinder.progress.Progress`, which is told of cells.
      stop: a `bookbinder.stopping.Stop`.
      before: called once before notebooks run, if any must run.
      finished: called with a run and its `Report` as soon as it is there: at once, if it is of an
        earlier run.

    Returns:
      A `Report` for each run, in the order given.

    Raises:
      Stopped: `stop` was set; no process is left, and what has ended is kept.
    """
    reports, waiting = {}, []
    for number, planned in enumerate(runs):
        report = None if fresh else known(planned)
        if report:
            reports[number] = report
            if finished:
                finished(planned, report)
        else:
            last = next((record for record in map(_read, _earlier(planned)) if record), {})
            waiting.append((last.get("seconds", planned.cells), number, planned))
    if waiting and before:
        before()
    places = {name: place for place, name in enumerate(first)}
    waiting.sort(key=lambda item: (places.get(item[2].name, len(places)), -item[0]))
    processes, jobs = set(), jobs or at_once()

    def slot_and_run(planned):
        # others may run chapters too, such as tests
        with disk.one_of(jobs, planned.place.parent.parent, stop):
            # another build may have run it while this one waited
            if not fresh and (report := known(planned)):
                return report
            return _run(planned, progress, stop, processes)

    with progress.watching(len(waiting)), ThreadPoolExecutor(jobs) as pool:
        jobs_of = {
            pool.submit(slot_and_run, planned): (number, planned) for _, number, planned in waiting
        }
        left = set(jobs_of)
        while left:
            ended, left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED)
            if stop.signal:
                pool.shutdown(wait=False, cancel_futures=True)
                _end(processes, left)
                raise Stopped(stop.signal)
            # what one of them did may be why another could not end
            for future in sorted(ended, key=lambda future: future.exception() is not None):
                number, planned = jobs_of[future]
                reports[number] = future.result()
                if finished:
                    finished(planned, reports[number])
    return [reports[number] for number in range(len(runs))]


def _end(processes, futures):
    """End runners, and wait for those who look after them."""
    for process in list(processes):
        process.terminate()  # it ends what it has started
    wait(futures, timeout=END_SECONDS)
    for process in list(processes):
        process.kill()


def _run(run, progress, stop, processes):
    """Run a notebook in a process of its own, and keep the report."""
    import nbformat

    if stop.signal:
        return None
    run.place.parent.mkdir(parents=True, exist_ok=True)
    guarded = "--sources" in run.options
    if run.programs:
        run.programs.parent.mkdir(parents=True, exist_ok=True)  # which the guard leaves writable
    command = _guard(run) if guarded else []
    command += [run.python, stale.RUNNER, "-", "--cwd", run.cwd, "--outputs", *run.options]
    variables = run.variables
    if run.programs:
        kept = package.of(run.root).programs
        command += [
            "--programs",
            run.programs,
            "--programs-in",
            kept.folder,
            "--programs-change",
            kept.change,
        ]
        variables = {**variables, **kept.variables}
    progress.cell(run.name, 0, run.cells)
    began, began_ns = time.monotonic(), time.time_ns()
    saved, lost = sources(run.root) if guarded else {}, {}
    with tempfile.TemporaryFile("w+b") as stderr, run_notebook.a_folder() as folder:
        process = subprocess.Popen(
            [*command, "--folder", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            **AS_TEXT,
            env=variables,
            start_new_session=True,  # so that Ctrl-C reaches it through us alone
        )
        processes.add(process)
        if stop.signal:
            process.terminate()
        with process, suppress(BrokenPipeError):
            with process.stdin as stdin:
                stdin.write(nbformat.writes(run.notebook))
            line, begun = "", [(0, 0)]
            for line in process.stdout:
                with suppress(ValueError, KeyError):
                    now = json.loads(line)
                    progress.cell(run.name, now["cell"], now["of"])
                    _note_lost(run.root, saved, lost, len(begun) - 1)
                    begun.append((now["at"], now["cell"]))
        processes.discard(process)
        if process.returncode < 0:
            _end_what_uses(folder)
        if stop.signal:
            return None
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - MOST_SAID))
        result = _found(line, process.returncode, stderr.read().decode(**AS_TEXT).strip())
    _note_lost(run.root, saved, lost, len(begun) - 1)
    _judge(run, result, saved, {name: _cell_of(*went, begun) for name, went in lost.items()})
    if run.programs:
        _forget_programs(run.programs.parents[2])
    report = Report(result, time.monotonic() - began, f"{datetime.now(UTC).date()}")
    if not report.ok:
        return report  # and run again the next time
    read = _read_before(run, result, began_ns)
    name = f"{run.place.name}.{run.key[:12]}.{disk.digest(json.dumps(read))[:6]}"
    notebook = run.place.with_name(f"{name}.ipynb")
    # no half of a surrogate pair
    text = result.pop("notebook").encode("utf-8", "replace").decode()
    disk.write(notebook, text)
    version = disk.bytes_digest(text.encode())
    report = replace(report, read=read, version=version, outputs=notebook, notebook=text)
    record = {
        "key": run.key,
        "read": read,
        "seconds": report.seconds,
        "day": report.day,
        "version": report.version,
    }
    disk.write(notebook.with_suffix(".json"), json.dumps({**record, "data": result}))
    # Whatever a clock says, this one is the newest.
    for file in [file for file in _earlier(run) if file != notebook.with_suffix(".json")][
        KEPT - 1 :
    ]:
        for old in (file, file.with_suffix(".ipynb")):
            with suppress(IsADirectoryError, PermissionError):  # a folder in its place
                old.unlink(missing_ok=True)
    return report


def _guard(run):
    """The beginning of a runner's command, by which its cells neither write nor delete sources."""
    build = run.root / BUILD
    places = [
        path
        for path in sorted(run.root.iterdir())
        if (path.name == ".git" or not path.name.startswith(".")) and not path.is_symlink()
    ]
    writable = [build / "environments", *([run.programs.parent] if run.programs else [])]
    places = [os.path.realpath(path) for path in places]
    places += [f"+{os.path.realpath(path)}" for path in writable if path.exists()]
    # -S: it needs no packages, and starts sooner
    return [run.python, "-I", "-S", GUARD, *places, "--"]


def sources(root):
    """Each source file with the time of its last change, except those that editors and Python make
    beside them; and the folder of what is built, with its number.
    """
    times = {}
    for file in (file for name in SOURCES for file in [root / name, *(root / name).rglob("*")]):
        name = str(file.relative_to(root))
        if not re.search(r"(^|/)([.#]|__pycache__/)|~$", name):
            with suppress(OSError):  # gone meanwhile
                status = file.stat()
                if stat.S_ISREG(status.st_mode):
                    times[name] = status.st_mtime_ns
    with suppress(OSError):
        times[BUILD] = (root / BUILD).stat().st_ino
    return times


def lost_since(root, saved):
    """The names of sources that are gone; with the folder of what is built, if it is another."""

    def is_there(name):
        place = os.path.join(root, name)
        if name != BUILD:
            return os.path.isfile(place)
        with suppress(OSError):
            return os.stat(place).st_ino == saved[BUILD]
        return False

    return sorted(name for name in saved if not is_there(name))


def _note_lost(root, saved, lost, number):
    """Note the sources that are gone, each with the number of cells that were known to have begun,
    and the time at which it went: the next cells may run by now.
    """
    for name in lost_since(root, saved) if saved else ():
        if name not in lost:
            lost[name] = number, min(_last_change_above(root / name), time.time_ns())


def _last_change_above(path):
    """When the nearest folder above a path that is still there was changed, in ns; 0 if none is."""
    for folder in path.parents:
        with suppress(OSError):
            status = folder.stat()
            if stat.S_ISDIR(status.st_mode):
                return status.st_mtime_ns
    return 0


def _cell_of(number, went, begun):
    """The cell that ran when a source went: the last that had begun by then, and none before the
    one that was known to run.

    Args:
      number, went: as `_note_lost` has noted them.
      begun: when each cell began, in ns, and its number, in order; before all others a 0.
    """
    return [cell for n, (at, cell) in enumerate(begun) if n <= number or at <= went][-1]


def _judge(run, result, saved, lost):
    """Have a run fail if one of its cells has deleted sources, or was refused to."""
    # an editor may have replaced a file at that moment
    gone = [name for name in lost_since(run.root, saved) if name in lost] if lost else []
    places = [n for n, cell in enumerate(run.notebook.cells) if cell.source.strip()]
    if gone:
        more = f", and so were {len(gone) - 1} more" if len(gone) > 1 else ""
        message = (
            f"{gone[0]} was deleted or moved while this cell ran{more}; "
            + ("" if gone[0] == BUILD else f"git checkout -- {gone[0].split('/')[0]} restores it; ")
            + "have the cell use a folder that tempfile makes"
        )
        cell, error = places[max(lost[gone[0]], 1) - 1], "FileNotFoundError"
    elif refused := _refused(run, result):
        cell, name = refused
        error, message = "PermissionError", NOT_THERE.format(name=name)
    elif unreadable := _unreadable(result):
        cell, kind = unreadable
        error, message = "ValueError", f"this cell shows an {kind} that is not in base64"
    else:
        return
    told = {"error": error, "message": message, "traceback": "", "cell": cell, "line": 1}
    result.update(told, ok=False, lost=bool(gone))


def _refused(run, result):
    """The place of the cell whose output says that a source may not be written, and the source."""
    if "notebook" not in result or "--sources" not in run.options:
        return None
    for n, cell in enumerate(json.loads(result["notebook"])["cells"]):
        shown = "".join("".join(output.get("text", "")) for output in cell.get("outputs", ()))
        lines = [line for line in shown.splitlines() if REFUSED.search(line)]
        named = [run.cwd / "".join(place) for line in lines for place in NAMED.findall(line)]
        paths = [Path(os.path.relpath(os.path.realpath(path), run.root)) for path in named]
        paths = [path for path in paths if path.parts[:1] and path.parts[0] in {*SOURCES, BUILD}]
        if paths:  # what Python has compiled is named if there is nothing else
            return n, min(paths, key=lambda path: "__pycache__" in path.parts)
    return None


def _unreadable(result):
    """The place of the cell that shows an image which no page can hold, and the image's kind."""
    for n, cell in enumerate(json.loads(result.get("notebook", '{"cells": []}'))["cells"]):
        for output in cell.get("outputs", ()):
            for kind, data in output.get("data", {}).items():
                if re.fullmatch("image/(png|jpeg|gif|webp)|application/pdf", kind):
                    try:
                        base64.b64decode("".join("".join(data).split()), validate=True)
                    except ValueError:  # binascii's too
                        return n, kind
    return None


def _forget_programs(folder):
    """Delete the archives of compiled programs that were not used for the longest, until the others
    are few enough.
    """
    sizes = {}
    # os.walk passes over folders that another build has deleted, as rglob does not
    files = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    for file in (file for file in files if file.suffix == ".zip"):
        with suppress(OSError):  # another build has deleted it
            status = file.stat()
            sizes[file] = status.st_mtime_ns, status.st_size
    total = sum(size for _, size in sizes.values())
    for file in sorted(sizes, key=sizes.get):
        if total <= PROGRAMS:
            break
        total -= sizes[file][1]
        file.unlink(missing_ok=True)


def _end_what_uses(folder):
    """End what a runner has started that could not end it: all have a variable that names its
    folder.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("IPYTHONDIR", "").startswith(f"{folder}{os.sep}"):
                process.kill()


def _read_before(run, result, began_ns):
    """Digests of the files that cells have read; one that changed meanwhile has none, so that it is
    run again.

    Whoever looks for a recorded program reads all recordings; those of other chapters change
    nothing.
    """

    def digest(name):
        with suppress(OSError):
            # no date that is still to come
            if began_ns <= (run.root / name).stat().st_mtime_ns <= time.time_ns():
                return ""
        return stale.file(run.root, name)

    recordings = Path(package.of(run.root).recordings or "none")
    others = (name for name in map(Path, result.get("read", ())) if name.stem != run.place.name)
    read = {*result.get("read", ())} - {str(name) for name in others if name.parent == recordings}
    return {name: digest(name) for name in sorted(read)}


def _found(line, status, stderr):
    """The report that a runner printed in its last line; or one that says how it ended without."""
    with suppress(ValueError, KeyError):
        result = json.loads(line)
        if not result["ok"] and not result["traceback"]:
            result["traceback"] = "\n".join(stderr.splitlines()[-20:])
        return result
    ending = f"killed by {Signals(-status).name}" if status < 0 else f"exit status {status}"
    message = f"{ending}: {stderr.splitlines()[-1] if stderr else 'it printed nothing'}"
    result = {
        "ok": False,
        "cell": None,
        "line": None,
        "error": "run_notebook.py",
        "message": message,
    }
    return {**result, "traceback": "\n".join(stderr.splitlines()[-20:]), "deprecations": []}
