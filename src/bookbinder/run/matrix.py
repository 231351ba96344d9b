"""Run every chapter on every JAX that readers have: a table of chapters by versions."""

import json
import os
import platform
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from packaging.version import Version

from bookbinder import disk
from bookbinder.progress import Progress, aligned
from bookbinder.run import environments, execute, runs, stale
from bookbinder.stopping import stoppable


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
        return not any(column.error for column in self.columns) and not any(
            outcome.failure for outcome in self.outcomes
        )


def run(book, versions, *, chapters=None, jobs=None, fresh=False, progress=None):
    """Run those chapters on versions of JAX that have no valid result yet.

    Args:
      book: the `bookbinder.read.book.Book`.
      versions: `bookbinder.run.environments.Environment`s.
      chapters: those to run; by default all that have code.
      jobs: how many at once; see `bookbinder.run.runs.run`.
      fresh: whether to run again what has a result.
      progress: a `bookbinder.progress.Progress`, which reports what is going on.

    Returns:
      A `Matrix`.

    Raises:
      Stopped: it was told to stop; no process is left, and the results so far are kept.
    """
    progress = progress or Progress()
    book.check()
    chapters = [chapter for chapter in chapters or book.chapters if chapter.runs]
    with stoppable() as stop, disk.alone(book.build_folder / "matrix", progress, stop, "matrix"):
        columns = tuple(_column(version, book, progress, stop) for version in versions)
        outcomes, planned = {}, []
        for column in columns:
            for chapter in chapters:
                place = chapter.name, column.name
                if column.error:
                    outcomes[place] = Outcome(*place, "not run")
                elif (
                    chapter.jax_floor
                    and column.jax
                    and Version(column.jax) < Version(chapter.jax_floor)
                ):
                    outcomes[place] = Outcome(*place, f"needs {chapter.jax_floor}")
                else:
                    planned.append(
                        (place, runs.of_chapter(book, chapter, column.python, column.name))
                    )
        reports = runs.run(
            [planned_run for _, planned_run in planned],
            jobs=jobs,
            fresh=fresh,
            progress=progress,
            stop=stop,
            finished=execute.telling(progress),
        )
        for (place, _), report in zip(planned, reports, strict=True):
            outcomes[place] = _outcome(book.chapter(place[0]), place[1], report)
        return Matrix(
            columns,
            tuple(
                outcomes[chapter.name, column.name] for column in columns for chapter in chapters
            ),
        )


def save(matrix, file):
    """Write a finished table as JSON, for other programs to show."""
    columns, chapters = [], {}
    for column in matrix.columns:
        versions = {name: column.packages.get(name) for name in ("jax", "jaxlib", "flax")}
        columns.append(
            {
                "name": column.name,
                "python": column.version,
                **versions,
                "error": column.error or None,
            }
        )
    for outcome in matrix.outcomes:
        chapters.setdefault(outcome.chapter, {})[outcome.column] = {
            "status": outcome.status,
            "seconds": round(outcome.seconds, 1),
            "deprecations": list(outcome.deprecations),
            "error": str(outcome.failure) if outcome.failure else None,
        }
    date = datetime.now(UTC).isoformat(timespec="seconds")
    disk.write(
        file, json.dumps({"date": date, "columns": columns, "chapters": chapters}, indent=1) + "\n"
    )


def record(matrix, file):
    """Write a finished table as Markdown, for the book's page that shows the results at the last
    release. Columns of versions that were not run stay as they were recorded, with their day.
    """
    kept = _recorded(file)
    names = [column.name for column in matrix.columns]
    columns = list(dict.fromkeys([*kept.get("", ()), *names]))
    chapters = [f"{{doc}}`{one}`" for one in dict.fromkeys(one.chapter for one in matrix.outcomes)]
    today = str(datetime.now(UTC).date())
    cells = {
        (f"{{doc}}`{one.chapter}`", one.column): _cell(replace(one, deprecations=()))
        for one in matrix.outcomes
    }
    for column in matrix.columns:
        about = {"recorded": today, "JAX": column.jax, "Python": column.version}
        cells |= {(title, column.name): text for title, text in about.items()}
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    for title in ("recorded", "JAX", "Python", *chapters):
        older = kept.get(title, {})
        rows.append([title, *(cells.get((title, c), older.get(c, "–")) for c in columns)])
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    head = (
        f"Recorded by `make matrix ARGS=--record`; {machine}, shared with other work. A dash: no "
        "result is recorded."
    )
    lines = [head, "", *(f"| {' | '.join(row)} |" for row in rows)]
    file.parent.mkdir(exist_ok=True)
    disk.write(file, "\n".join(lines) + "\n")


def _recorded(file):
    """What a file of `record` has: for each title of a row, and "" for the first, its texts by
    column.
    """
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    return {title: dict(zip(table[0][1:], texts, strict=False)) for title, *texts in table}


def table(matrix):
    """The table as text, with the errors and the deprecation warnings below it."""
    rows = [["chapter", *(column.name for column in matrix.columns)]]
    for title, value in (("  JAX", "jax"), ("  Python", "version")):
        rows.append(
            [title, *("" if column.error else getattr(column, value) for column in matrix.columns)]
        )
    chapters = dict.fromkeys(outcome.chapter for outcome in matrix.outcomes)
    cells = {(outcome.chapter, outcome.column): _cell(outcome) for outcome in matrix.outcomes}
    rows += [
        [chapter, *(cells[chapter, column.name] for column in matrix.columns)]
        for chapter in chapters
    ]
    lines = aligned(rows, "<" * len(rows[0]))
    below = [
        f"{outcome.column}: {outcome.failure}" for outcome in matrix.outcomes if outcome.failure
    ]
    below += [
        column.error or column.note for column in matrix.columns if column.error or column.note
    ]
    below += [
        f"{outcome.column}: {where} (DeprecationWarning)"
        for outcome in matrix.outcomes
        for where in outcome.deprecations
    ]
    return "\n".join([*lines, *([""] if below else []), *below])


def _cell(outcome):
    if outcome.status != "ok":
        return outcome.status
    count = len(outcome.deprecations)
    return f"{outcome.seconds:.1f} s" + (f", {count} deprecated" if count else "")


def _column(version, book, progress, stop):
    """The environment of a version, and what is in it."""
    try:
        python = environments.make(version, book.build_folder / "environments", progress, stop)
    except environments.EnvironmentFault as fault:
        return Column(version.name, error=str(fault))
    environment = json.loads(stale.environment(python))
    number = environment["python"].split()[-1]  # after "CPython"
    # A folder such as orbax_checkpoint-0.11.dist-info is of orbax-checkpoint.
    parts = (package.rpartition("-") for package in environment["packages"])
    packages = {name.replace("_", "-").lower(): version for name, _, version in parts}
    note = ""
    if version.pythons and not number.startswith(f"{version.pythons[0]}."):
        note = f"{version.name}: on Python {number}, for lack of {version.pythons[0]} here"
    return Column(version.name, python, number, packages, note)


def _outcome(chapter, column, report):
    """What a report says, with the lines that its cells have in the chapter now."""
    deprecations = []
    for warning in report.data["deprecations"]:
        theirs = warning["path"] and f"{warning['path']}:{warning['line']}"
        place = theirs or f"{chapter.path}:{execute.line_of(chapter, warning)}"
        deprecations.append(f"{place}: {' '.join(warning['message'].split())[:300]}")
    failure = None if report.ok else execute.failure_of(chapter, report.data)
    status = "failed" if failure else "ok"
    return Outcome(
        chapter.name, column, status, report.seconds, tuple(deprecations), failure, report.reused
    )
