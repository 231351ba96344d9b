"""Bring the outputs of a book's chapters up to date, and where Jupyter Book reads them: into a
jupyter-cache.

`bookbinder.run.runs` runs the chapters and keeps what they put out; the jupyter-cache is filled
from there, and can be made again at any time.
"""

import re
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from bookbinder import disk
from bookbinder.progress import Progress, printable
from bookbinder.read.book import SOURCES, BookError
from bookbinder.run import runs, stale
from bookbinder.stopping import stoppable

LEFT_OUT = "left out"  # the status of a chapter that was not to run, and has no outputs
# a variable: `make book` has called Sphinx, which shows what is known, and runs nothing
CALLED = "BOOKBINDER_CALLED"
# chapters that run before all others, from the beginning of the book on: people read these first
FIRST = 8


@dataclass(frozen=True)
class Failure:
    """What went wrong in a chapter, and where."""

    path: str
    line: int
    error: str  # "ValueError: what it says", on one line
    traceback: str = ""

    def __str__(self):
        return f"{self.path}:{self.line}: {self.error}"


@dataclass(frozen=True)
class Result:
    """The result of one chapter."""

    name: str
    status: str  # "ran", "reused", "failed", "left out", or "no code"
    cells: int = 0
    seconds: float = 0.0  # of the run that made the outputs
    processor_seconds: float = 0.0  # of it, and of all processes that it started
    failure: Failure | None = None
    day: str = ""  # of that run, such as "2026-11-21"
    outputs: str = ""  # changes whenever the outputs do


def run(
    book,
    cache_folder=None,
    *,
    chapters=None,
    without=(),
    jobs=None,
    progress=None,
    stop=None,
    before=None,
    ended=None,
):
    """Bring the outputs of chapters up to date.

    A chapter whose outputs are still valid is skipped; the others run. One that fails does not stop
    the others.

    Args:
      book: the `bookbinder.read.book.Book`.
      cache_folder: where the jupyter-cache is, or will be, that is filled with them; by default
        none is.
      chapters: those to look at; all by default.
      without: names of chapters that do not run; one without valid outputs has none.
      jobs: how many at once; see `bookbinder.run.runs.run`.
      progress: a `bookbinder.progress.Progress`, which reports what is going on.
      stop: the `bookbinder.stopping.Stop` of the caller; by default signals stop this run alone.
      before: called before chapters run, if any must run.
      ended: called with the name of a chapter as soon as its outputs are there: at once, if they
        were before.

    Returns:
      A `Result` for each chapter, in the order given.

    Raises:
      Stopped: the builder was told to stop; no kernel is left.
    """
    if stop is None:
        with stoppable() as stop:
            options = {"chapters": chapters, "without": without, "jobs": jobs, "progress": progress}
            return run(book, cache_folder, **options, stop=stop, before=before, ended=ended)
    chapters = book.chapters if chapters is None else chapters
    progress = progress or Progress()
    programs = [chapter for chapter in chapters if chapter.runs]
    planned = [runs.of_chapter(book, chapter) for chapter in programs]
    left_out = {
        planned_run.name: planned_run.notebook
        for planned_run in planned
        if planned_run.name in without and not runs.known(planned_run)
    }
    planned = [planned_run for planned_run in planned if planned_run.name not in left_out]
    saved = _sources(book)
    at = {planned_run.place: book.chapter(planned_run.name) for planned_run in planned}

    def finished(planned_run, report):
        if not report.reused:
            progress.finished(_result(at[planned_run.place], report))
        if ended and report.ok:
            ended(planned_run.name)

    with _nothing_gone(book, saved):
        reports = runs.run(
            planned,
            first=[chapter.name for chapter in book.chapters][:FIRST],
            jobs=jobs,
            progress=progress,
            stop=stop,
            before=before,
            finished=finished,
        )
    for name, when in sorted(_sources(book).items()):
        if saved.get(name, when) != when:
            progress.say(f"{name} changed while chapters ran; the next build will include it")
        if name not in saved:
            where = "if a cell made it, have that write to a folder that tempfile makes"
            progress.say(
                f"{name} appeared while chapters ran; the next build will include it; {where}"
            )
    results = {
        planned_run.name: _result(at[planned_run.place], report)
        for planned_run, report in zip(planned, reports, strict=True)
    }
    results |= {
        name: Result(name, LEFT_OUT, len(book.chapter(name).cells), outputs=LEFT_OUT)
        for name in left_out
    }
    outputs_of = {
        planned_run.name: partial(runs.outputs, report)
        for planned_run, report in zip(planned, reports, strict=True)
        if report.ok
    }
    outputs_of |= {name: lambda notebook=notebook: notebook for name, notebook in left_out.items()}
    if cache_folder:
        _fill(
            cache_folder,
            [(book.chapter(name), results[name], outputs) for name, outputs in outputs_of.items()],
        )
    return [results.get(chapter.name, Result(chapter.name, "no code")) for chapter in chapters]


@contextmanager
def _nothing_gone(book, saved):
    """Raise BookError if sources, or the folder of what is built, are gone after chapters ran."""
    advice = "if a cell deleted it, have that use a folder that tempfile makes, and build again"
    with disk.watched(book.build_folder) as still:
        try:
            yield
        finally:
            if not still():
                name = book.build_folder.relative_to(book.root)
                raise BookError(
                    str(name), None, f"was deleted or replaced while chapters ran; {advice}"
                )
            if gone := sorted(saved.keys() - _sources(book).keys()):
                more = f", as were {len(gone) - 1} more" if len(gone) > 1 else ""
                raise BookError(
                    gone[0],
                    None,
                    f"was deleted while chapters ran{more}; restore what git knows with "
                    f"git checkout -- {gone[0].split('/')[0]}; {advice}",
                )


def _result(chapter, report):
    # none if the runner died
    cells, used = len(chapter.cells), report.data.get("processor_seconds", 0.0)
    if not report.ok:
        failure = failure_of(chapter, report.data)
        return Result(chapter.name, "failed", cells, report.seconds, used, failure=failure)
    status = "reused" if report.reused else "ran"
    return Result(
        chapter.name, status, cells, report.seconds, used, day=report.day, outputs=report.version
    )


def telling(progress):
    """What `bookbinder.run.runs.run` calls when a run has ended, to say so if it ran now."""

    def finished(planned_run, report):
        if not report.reused:
            status = "ran" if report.ok else "failed"
            progress.finished(Result(planned_run.name, status, seconds=report.seconds))

    return finished


def failure_of(chapter, report):
    """The `Failure` that a report of run_notebook.py tells of, at the line that its cell has in the
    chapter now.
    """
    message = f"{report['error']}: {report['message']}" if report["message"] else report["error"]
    if report["error"] == "CellTimeoutError":
        message += " (timeout: in _config.yml)"
    words, traceback = (
        " ".join(printable(message, 4_000).split())[:400],
        printable(report["traceback"] or "", 20_000),
    )
    return Failure(chapter.path, line_of(chapter, report), words, traceback)


def line_of(chapter, place):
    """The line in the chapter of a place in a report: the number of a code cell and a line in it,
    from 1.
    """
    # Runs have the code cells alone, also empty ones, which `chapter.cells` has not.
    codes = [n for n, cell in enumerate(chapter.notebook.cells) if cell.cell_type == "code"]
    position = codes[place["cell"] or 0]
    cell = next((cell for cell in chapter.cells if cell.position == position), chapter.cells[0])
    return cell.line + (place["line"] or 1) - 1


def _sources(book):
    """Each source file with the time of its last change, except those that editors and Python make
    beside them.
    """
    times = {}
    for file in (
        file for name in SOURCES for file in [book.root / name, *(book.root / name).rglob("*")]
    ):
        name = str(file.relative_to(book.root))
        if file.is_file() and not re.search(r"(^|/)([.#]|__pycache__/)|~$", name):
            with suppress(FileNotFoundError):  # gone meanwhile
                times[name] = file.stat().st_mtime_ns
    return times


def _fill(folder, executed):
    """Have the jupyter-cache in a folder hold outputs: chapters, their `Result`s and functions that
    read them.
    """
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    def fill():
        cache = get_cache(folder)
        try:
            for chapter, result, outputs in executed:
                notebook = outputs()
                for cell in notebook.cells:
                    cell.outputs = as_a_terminal_shows(cell.outputs)
                with suppress(KeyError, OSError, ValueError):  # there is none, or half of one
                    record = cache.match_cache_notebook(chapter.notebook)
                    kept = cache.get_cache_bundle(record.pk).nb
                    if record.data.get("version") == result.outputs and _shown(kept) == _shown(
                        notebook
                    ):
                        continue
                uri = str(chapter.root / chapter.path)
                data = {"version": result.outputs, "execution_seconds": result.seconds}
                bundle = CacheBundleIn(notebook, uri, data=data)
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
        finally:
            cache.db.dispose()

    try:
        fill()
    except Exception as error:  # any error of its database, of which it uses several kinds
        if disk.refused(error):  # a new one could not be written either
            raise
        shutil.rmtree(folder, ignore_errors=True)
        fill()


def _shown(notebook):
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def outputs(book):
    """The outputs of all chapters whose last run is valid, as their pages show them.

    Returns:
      For each such chapter, by its name, a list for each code cell, with its outputs as nbformat
      has them.
    """
    found = {}
    for chapter in book.chapters:
        if chapter.runs and (report := runs.known(runs.of_chapter(book, chapter))):
            found[chapter.name] = [
                as_a_terminal_shows(cell.outputs) for cell in runs.outputs(report).cells
            ]
    return found


def facts(chapters, results):
    """What pages must know of chapters that have run, by name, ready for JSON."""
    return {
        chapter.name: {
            "devices": chapter.devices,
            "day": result.day,
            "outputs": result.outputs,
            "text": stale.text(chapter),
        }
        for chapter, result in zip(chapters, results, strict=True)
    }


def as_a_terminal_shows(outputs):
    """Printed output joined into one text; of a line that was overwritten, as by a progress bar,
    its final state.
    """
    shown = []
    for output in outputs:
        last = shown[-1] if shown else output
        if (
            output.output_type == last.output_type == "stream"
            and output.name == last.name
            and shown
        ):
            last.text += output.text
        else:
            shown.append(output)
    for output in shown:
        if output.output_type == "stream":
            lines = (line.rstrip("\r").rpartition("\r")[2] for line in output.text.split("\n"))
            output.text = printable("\n".join(map(_without_backspaces, lines)))
        elif "text/plain" in output.get("data", ()):
            output.data["text/plain"] = printable(output.data["text/plain"])
        elif "traceback" in output:
            output.traceback, output.evalue = (
                list(map(printable, output.traceback)),
                printable(output.evalue),
            )
    return shown


def _without_backspaces(line):
    """A line as it looks when each backspace has been followed by what overwrites."""
    first, *parts = line.split("\b")
    for part in parts:
        first = first[:-1] + part
    return first
