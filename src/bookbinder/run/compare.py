"""Compare the outputs of chapters with those of new runs, whose programs are compiled anew.

What earlier runs have compiled is used again (`bookbinder.run.runs.programs`). This shows that
nothing on a page depends on that: `make compare`, each week.
"""

import json
import re
from dataclasses import dataclass, replace

from bookbinder.progress import Progress
from bookbinder.run import execute, runs
from bookbinder.stopping import stoppable

VARIES = "varies"  # the tag of cells whose outputs differ from run to run, such as times
# What differs from run to run beside that: addresses in memory, names of temporary folders, the
# times of logs.
_NAMES = re.compile(r"0x[0-9a-f]{6,}|\btmp[a-z0-9_]{8}\b|\b[EIW]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+\b")


@dataclass(frozen=True)
class Difference:
    """A cell that shows something else when it runs again.

    Attributes:
      path, line: where the cell is.
      kept: what it shows on the page, from the first line that differs on.
      new: what it shows now.
    """

    path: str
    line: int
    kept: str
    new: str

    def __str__(self):
        return (
            f"{self.path}:{self.line}: shows something else when it runs again:\n- {self.kept}\n+ "
            f"{self.new}"
        )


def run(book, *, chapters=None, jobs=None, progress=None):
    """Run chapters as the book does, and once more with programs that are compiled anew, and
    compare what they show.

    Args:
      book: the `bookbinder.read.book.Book`.
      chapters: those to compare; by default all that have code.
      jobs: how many at once; see `bookbinder.run.runs.run`.
      progress: a `bookbinder.progress.Progress`, which reports what is going on.

    Returns:
      (how many cells were compared, a list of `Difference`s, a list of
      `bookbinder.run.execute.Failure`s).
    """
    progress = progress or Progress()
    chapters = [chapter for chapter in chapters or book.chapters if chapter.runs]
    kept = [runs.of_chapter(book, chapter) for chapter in chapters]
    anew = [
        replace(runs.of_chapter(book, chapter, column="anew"), programs=None)
        for chapter in chapters
    ]
    with stoppable() as stop:
        reports = [
            runs.run(
                planned,
                fresh=fresh,
                jobs=jobs,
                progress=progress,
                stop=stop,
                finished=execute.telling(progress),
            )
            for planned, fresh in ((kept, False), (anew, True))
        ]
    compared, differences, failures = 0, [], []
    for chapter, *pair in zip(chapters, *reports, strict=True):
        failed = [execute.failure_of(chapter, report.data) for report in pair if not report.ok]
        failures += failed
        if failed:
            continue
        before, after = (
            [cell for cell in runs.outputs(report).cells if cell.source.strip()] for report in pair
        )
        for cell, old, new in zip(chapter.cells, before, after, strict=True):
            if VARIES not in old.metadata.get("tags", ()):
                compared += 1
                differences += _difference(chapter, cell, shown(old), shown(new))
    return compared, differences, failures


def shown(cell):
    """What a page shows below a cell that has run, as a text without what differs in each run."""
    tags = cell.metadata.get("tags", ())
    if {"remove-output", "remove-cell"} & {*tags}:
        return ""
    outputs = [output for output in cell.outputs if f"remove-{output.get('name')}" not in tags]
    texts = (
        output.get("text") or output.get("traceback") or output.get("data")
        for output in execute.as_a_terminal_shows(outputs)
    )
    return _NAMES.sub(
        "...",
        "\n".join(text if isinstance(text, str) else json.dumps(text, indent=1) for text in texts),
    )


def _difference(chapter, cell, before, after):
    lines = [text.split("\n") for text in (before, after)]
    at = next(
        (n for n, pair in enumerate(zip(*lines, strict=False)) if pair[0] != pair[1]),
        min(map(len, lines)),
    )
    if before != after:
        yield Difference(
            chapter.path, cell.line, *("\n  ".join(part[at : at + 3])[:300] for part in lines)
        )
