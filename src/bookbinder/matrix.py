"""Run every chapter on every JAX that readers have: a table of chapters by versions.

Each result is kept as `_build/matrix/VERSION/CHAPTER.json`, and is reused as long as the chapter's code, what it uses
of the project, and the environment's Python and packages are the same. Failed chapters always run again.
"""

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
from packaging.version import Version

from bookbinder import environments, execute, site
from bookbinder.book import FOLDER

RUNNER = Path(__file__).with_name("run_notebook.py")
RUNNING = ".running"  # a folder for the files of chapters that run
MEMORY = 2 << 30  # bytes that a chapter may need


@dataclass(frozen=True)
class Column:
    """An environment, or the reason why there is none."""

    name: str
    python: str = ""  # the interpreter
    version: str = ""  # of Python
    packages: dict = field(default_factory=dict)
    note: str = ""  # its Python, if that is not the best one
    error: str = ""

    @property
    def jax(self):
        """Its version of JAX."""
        return self.packages.get("jax", "")


@dataclass(frozen=True)
class Outcome:
    """The result of one chapter on one version."""

    chapter: str
    column: str
    status: str  # "ok", "failed", "needs 0.8.2", or "not run" since there is no environment
    seconds: float = 0.0
    deprecations: tuple[str, ...] = ()  # "book/x.md:12: message"
    failure: execute.Failure | None = None
    reused: bool = False


@dataclass(frozen=True)
class Matrix:
    """The finished table: columns, and for each an outcome for each chapter."""

    columns: tuple[Column, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def good(self):
        """Whether every version is there and no chapter failed."""
        return not any(column.error for column in self.columns) and not any(one.failure for one in self.outcomes)


def run(book, versions, *, chapters=None, jobs=None, fresh=False, progress=None):
    """Run those chapters on versions of JAX that have no valid result yet.

    Args:
      book: the `bookbinder.book.Book`.
      versions: `bookbinder.environments.Environment`s.
      chapters: those to run; by default all that have code.
      jobs: how many at once; by default one for each processor, and for each 2 GB of memory that are free.
      fresh: whether to run again what has a result.
      progress: a `bookbinder.progress.Progress`, which reports what is going on.

    Returns:
      A `Matrix`.

    Raises:
      execute.Stopped: it was told to stop; no process is left, and the results so far are kept.
    """
    progress = progress or execute.Progress()
    book.check()
    chapters = [chapter for chapter in chapters or book.chapters if chapter.runs]
    folder = book.build_folder / "matrix"
    with execute.stoppable() as stop, site.alone(folder, progress, stop, "matrix"):
        shutil.rmtree(folder / RUNNING, ignore_errors=True)  # of one that was killed
        (folder / RUNNING).mkdir()
        columns = tuple(_column(version, book, progress, stop) for version in versions)
        outcomes, waiting = {}, []
        for column in columns:
            for chapter in chapters:
                place = chapter.name, column.name
                file = folder / column.name / f"{chapter.name}.json"
                kept = _read(file)
                now = not column.error and _fingerprint(book, chapter, column)
                if column.error:
                    outcomes[place] = Outcome(*place, "not run")
                elif chapter.jax_floor and column.jax and Version(column.jax) < Version(chapter.jax_floor):
                    outcomes[place] = Outcome(*place, f"needs {chapter.jax_floor}")
                elif kept.get("fingerprint") == now and not fresh:
                    outcomes[place] = _outcome(chapter, column, kept, reused=True)
                else:
                    waiting.append((kept.get("seconds", len(chapter.cells)), chapter, column, file, now))
        waiting.sort(key=lambda item: -item[0])  # the longest first

        def one(chapter, column, file, now):
            progress.started(f"{chapter.name} on {column.name}")
            report = _run(book, chapter, column, stop)
            if report["ok"] or not stop.signal:
                # What failed has no fingerprint, so that it runs again.
                site.write(file, json.dumps({"fingerprint": now if report["ok"] else None, **report}))
            return _outcome(chapter, column, report)

        jobs = jobs or max(1, min(os.cpu_count() or 1, psutil.virtual_memory().available // MEMORY))
        with progress.watching(len(waiting)), ThreadPoolExecutor(jobs) as pool:
            for *_, file, _ in waiting:
                file.parent.mkdir(parents=True, exist_ok=True)
            pending = {pool.submit(one, *job) for _, *job in waiting}
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                if stop.signal:
                    pool.shutdown(cancel_futures=True)
                    raise execute.Stopped(stop.signal)
                for outcome in (future.result() for future in done):
                    outcomes[outcome.chapter, outcome.column] = outcome
                    said = "failed" if outcome.failure else "ran"
                    name = f"{outcome.chapter} on {outcome.column}"
                    progress.finished(execute.Result(name, said, seconds=outcome.seconds))
        matrix = Matrix(
            columns, tuple(outcomes[chapter.name, column.name] for column in columns for chapter in chapters)
        )
        return matrix


def save(matrix, file):
    """Write a finished table as JSON, for other programs to show."""
    columns, chapters = [], {}
    for column in matrix.columns:
        versions = {name: column.packages.get(name) for name in ("jax", "jaxlib", "flax")}
        columns.append({"name": column.name, "python": column.version, **versions, "error": column.error or None})
    for one in matrix.outcomes:
        chapters.setdefault(one.chapter, {})[one.column] = {
            "status": one.status,
            "seconds": round(one.seconds, 1),
            "deprecations": list(one.deprecations),
            "error": str(one.failure) if one.failure else None,
        }
    date = datetime.now(UTC).isoformat(timespec="seconds")
    site.write(file, json.dumps({"date": date, "columns": columns, "chapters": chapters}, indent=1) + "\n")


def record(matrix, file):
    """Write a finished table as Markdown, for the book's page that shows the results at the last release."""
    rows = [["", *(column.name for column in matrix.columns)], ["---"] * (len(matrix.columns) + 1)]
    for title, value in (("JAX", "jax"), ("Python", "version")):
        rows.append([title, *("" if column.error else getattr(column, value) for column in matrix.columns)])
    cells = {(one.chapter, one.column): _cell(one) for one in matrix.outcomes}
    for chapter in dict.fromkeys(one.chapter for one in matrix.outcomes):
        rows.append([f"{{doc}}`{chapter}`", *(cells[chapter, column.name] for column in matrix.columns)])
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    head = f"Recorded on {datetime.now(UTC).date()} by `make matrix ARGS=--record`; {machine}, shared with other work."
    lines = [head, "", *(f"| {' | '.join(row)} |" for row in rows)]
    file.parent.mkdir(exist_ok=True)
    site.write(file, "\n".join(lines) + "\n")


def table(matrix):
    """The table as text, with the errors and the deprecation warnings below it."""
    rows = [["chapter", *(column.name for column in matrix.columns)]]
    for title, value in (("  JAX", "jax"), ("  Python", "version")):
        rows.append([title, *("" if column.error else getattr(column, value) for column in matrix.columns)])
    chapters = dict.fromkeys(one.chapter for one in matrix.outcomes)
    cells = {(one.chapter, one.column): _cell(one) for one in matrix.outcomes}
    rows += [[chapter, *(cells[chapter, column.name] for column in matrix.columns)] for chapter in chapters]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    below = [f"{one.column}: {one.failure}" for one in matrix.outcomes if one.failure]
    below += [column.error or column.note for column in matrix.columns if column.error or column.note]
    below += [
        f"{one.column}: {where} (DeprecationWarning)"
        for one in matrix.outcomes for where in one.deprecations
    ]  # fmt: skip
    return "\n".join([*lines, *([""] if below else []), *below])


def _cell(one):
    if one.status != "ok":
        return one.status
    count = len(one.deprecations)
    return f"{one.seconds:.1f} s" + (f", {count} deprecated" if count else "")


def _column(version, book, progress, stop):
    """The environment of a version, and what is in it."""
    try:
        python = environments.make(version, book.build_folder / "environments", progress, stop)
    except environments.EnvironmentFault as fault:
        return Column(version.name, error=str(fault))
    number = subprocess.check_output([python, "-c", "import platform; print(platform.python_version())"], text=True)
    number = number.strip()
    status, frozen, said = environments.uv("pip", "freeze", "--python", python, stop=stop)
    if status:
        return Column(version.name, error=f"{version.name}: cannot tell what is installed: {' '.join(said.split())}")
    packages = dict(line.partition("==")[::2] for line in frozen.splitlines())
    note = ""
    if version.pythons and not number.startswith(f"{version.pythons[0]}."):
        note = f"{version.name}: on Python {number}, for lack of {version.pythons[0]} here"
    return Column(version.name, python, number, packages, note)


def _fingerprint(book, chapter, column):
    """A digest of all that a result depends on."""
    code = [(cell.source, cell.metadata) for cell in chapter.notebook.cells if cell.cell_type == "code"]
    parts = [
        json.dumps(code),
        execute.folder_digest(book.root / "src" / "shardlab"),
        RUNNER.read_text("utf-8"),
        column.version,
        json.dumps(column.packages),
    ]
    for folder in sorted(path for path in (book.root / FOLDER).iterdir() if path.is_dir()):
        if any(f"{folder.name}/" in source for source, _ in code):  # cells that read files beside the chapters
            parts.append(execute.folder_digest(folder))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _run(book, chapter, column, stop):
    """Run one chapter in an environment. Returns the report of run_notebook.py, with code cells by their number."""
    import nbformat

    notebook = nbformat.from_dict(chapter.notebook)
    notebook.metadata.pop("source_map", None)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONWARNINGS")}
    environment["PYTHONPATH"] = str(book.root / "src")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=book.build_folder / "matrix" / RUNNING) as folder:
        file, out, err = (Path(folder) / name for name in ("chapter.ipynb", "out", "err"))
        nbformat.write(notebook, file)
        command = [column.python, RUNNER, file, "--cwd", book.root / FOLDER, "--timeout", str(int(book.cell_seconds))]
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                start_new_session=True,  # so that Ctrl-C reaches it through us alone
            )
        while process.poll() is None:
            if stop.signal:
                process.terminate()  # it ends what it has started
                with suppress(subprocess.TimeoutExpired):
                    process.wait(15)
                process.kill()
                process.wait()
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        said = err.read_text(errors="replace").strip()
        try:
            report = json.loads(out.read_text().splitlines()[-1])
        except (IndexError, ValueError):
            status = process.returncode
            how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            message = f"{how}: {said.splitlines()[-1] if said else 'it printed nothing'}"
            report = {"ok": False, "cell": None, "line": None, "error": "run_notebook.py", "message": message}
            report |= {"traceback": None, "deprecations": []}
    report["seconds"] = time.monotonic() - began
    if not report["ok"] and not report["traceback"]:
        report["traceback"] = "\n".join(said.splitlines()[-20:])
    # Prose may change around the code: the number of a code cell stays.
    numbers = {cell.position: number for number, cell in enumerate(chapter.cells)}
    for place in (report, *report["deprecations"]):
        place["cell"] = numbers.get(place["cell"])
    return report


def _outcome(chapter, column, report, reused=False):
    """What a report says, with the lines that its cells have in the chapter now."""

    def line(place):
        return chapter.cells[place["cell"] or 0].line + (place["line"] or 1) - 1

    deprecations = []
    for found in report["deprecations"]:
        path = f"{FOLDER}/{chapter.name}.md" if not found["path"] else f"src/shardlab/{Path(found['path']).name}"
        message = " ".join(found["message"].split())
        deprecations.append(f"{path}:{found['line'] if found['path'] else line(found)}: {message[:300]}")
    failure = None
    if not report["ok"]:
        error = " ".join(f"{report['error']}: {report['message']}".split())[:400]
        failure = execute.Failure(chapter.path, line(report), error, report["traceback"])
    status = "failed" if failure else "ok"
    return Outcome(chapter.name, column.name, status, report["seconds"], tuple(deprecations), failure, reused)


def _read(file):
    try:
        kept = json.loads(file.read_text("utf-8"))
        return kept if isinstance(kept, dict) else {}
    except (OSError, ValueError):
        return {}
