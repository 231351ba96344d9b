"""Report which chapters are running: a live table on a terminal, plain lines elsewhere."""

import re
import resource
import sys
import threading
import time
from contextlib import contextmanager

# How to read what other programs write: any bytes, of which those that are no UTF-8 are shown as
# such.
AS_TEXT = {"encoding": "utf-8", "errors": "replace"}


def plain(text):
    """A text without the codes that colour it on a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def printable(text, most=None):
    """A text without what a terminal would obey, except for colours; if it is too long, its
    beginning and its end.
    """
    if most and len(text) > most:
        text = (
            f"{text[: most // 2]} ... ({len(text) - most:,} characters more) ... "
            f"{text[-most // 2 :]}"
        )
    text = re.sub(
        r"\x1b(?!\[[0-9;]*m)(\][^\x07\x1b]{0,1000}(\x07|\x1b\\)|\[[0-?]*[ -/]*[@-~])?", "", text
    )
    text = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]", "", text)
    return text.encode("utf-8", "replace").decode()


class Progress:
    """Reports nothing; the base class of the two that report."""

    @contextmanager
    def watching(self, count):
        """While `count` chapters run."""
        yield

    def cell(self, name, number, total):
        """Cell `number` of `total` of a chapter starts; 0 while its kernel starts."""

    def finished(self, result):
        """A chapter has ended."""
        self.say(f"{result.name}: {result.status} in {result.seconds:.1f} s")

    def say(self, text):
        """Report a line of text."""


class Lines(Progress):
    """Plain lines: when a chapter starts and ends, and every ten seconds which cell runs."""

    def __init__(self, stream=None, every=10.0):
        """Print to `stream`, by default standard error."""
        self._stream, self._every = stream or sys.stderr, every
        self._began, self._spoke, self._lock = {}, {}, threading.Lock()

    def say(self, text):
        print(text, file=self._stream, flush=True)

    def cell(self, name, number, total):
        with self._lock:
            now = time.monotonic()
            began = self._began.setdefault(name, now)
            if number == 0:
                self.say(f"{name}: running {total} cells")
            elif now - self._spoke.setdefault(name, began) >= self._every:
                self._spoke[name] = now
                self.say(f"{name}: cell {number} of {total}, {now - began:.0f} s")

    def finished(self, result):
        with self._lock:
            super().finished(result)


class Live(Progress):
    """A table that is redrawn in place: each running chapter, its cell, its seconds."""

    def __init__(self):
        """Draw on standard error."""
        from rich.console import Console

        self._console = Console(stderr=True)
        self._running, self._done, self._count, self._lock = {}, 0, 0, threading.Lock()

    def say(self, text):
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def watching(self, count):
        from rich.live import Live as RichLive

        self._count = count
        if not count:
            yield
            return
        with RichLive(
            get_renderable=self._table, console=self._console, refresh_per_second=4, transient=True
        ):
            yield

    def _table(self):
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        with self._lock:
            for name, (began, number, total) in self._running.items():
                seconds = f"{time.monotonic() - began:.0f} s"
                where = f"cell {number} of {total}" if number else "starting"
                table.add_row(
                    name, ProgressBar(total, max(0, number - 1), width=24), where, seconds
                )
            table.add_row(f"{self._done} of {self._count} chapters done")
        return table

    def cell(self, name, number, total):
        with self._lock:
            began = self._running[name][0] if name in self._running else time.monotonic()
            self._running[name] = (began, number, total)

    def finished(self, result):
        with self._lock:
            self._running.pop(result.name, None)
            self._done += 1
        super().finished(result)


def for_this_terminal():
    """Live on a terminal, lines in a log."""
    return Live() if sys.stderr.isatty() else Lines()


def table(results):
    """The closing table: each chapter, its cells, its result, and the seconds of its run, also of
    processor time.
    """
    rows = [("chapter", "cells", "result", "seconds", "processor seconds")]
    for result in results:
        if result.status == "no code":
            rows.append((result.name, "", result.status, "", ""))
        else:
            seconds = (f"{result.seconds:.1f}", f"{result.processor_seconds:.1f}")
            rows.append((result.name, f"{result.cells}", result.status, *seconds))
    return "\n".join(aligned(rows, "<><>>"))


def processor_time(results):
    """What this process and all that it has started have used, and the part of it that the runs of
    chapters were.
    """
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in used)
    chapters = sum(result.processor_seconds for result in results if result.status == "ran")
    return f"processor time: {total:,.0f} s, of which {chapters:,.0f} s ran chapters"


def aligned(rows, sides):
    """Rows of texts as lines whose columns are aligned: `sides` has < (left) or > (right) for each
    column.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        [f"{text:{side}{w}}" for text, side, w in zip(row, sides, widths, strict=True)]
        for row in rows
    )
    return ["  ".join(line).rstrip() for line in lines]
