"""Predictions and takeaways that somebody has read together with the cells that they are about.

No machine sees whether the marked choice of a prediction is the true one, or whether a takeaway is. So
`tests/book/readings.json` has a digest of each together with its cells: those below a prediction, as far as the next
one or the next heading, and those of a takeaway's section. When the text or a cell changes, `make check` asks for a
reading. Whoever has read writes the digests anew:

    .venv/bin/python tests/tools/readings.py
"""

import json
import re

import claims
from places import ROOT

from bookbinder import disk
from bookbinder.read.book import load

FILE = ROOT / "tests" / "book" / "readings.json"


def units(chapter):
    """What is to be read: (line, what it is, its text, the code of its cells)."""
    lines = [*chapter.text.split("\n"), ""]
    headings = [n for n, line in claims.prose(chapter) if re.match(r"##+ ", line)]
    asked = [n for n, line in enumerate(lines, 1) if line.startswith("**Predict.**")]
    for n in asked:
        end = min((m for m in (*headings, *asked) if m > n), default=len(lines))
        first_cell = min((cell.line for cell in chapter.cells if n < cell.line < end), default=end)
        text = "\n".join(line for line in lines[n - 1 : first_cell - 1] if not line.startswith(("%", "```")))
        yield n, "prediction", text, [cell.source for cell in chapter.cells if n < cell.line < end]
    for n in (n for n, line in enumerate(lines, 1) if re.match(r"[:`]{3,}\{admonition\} Takeaway", line)):
        end = next(m for m in range(n + 1, len(lines) + 1) if lines[m - 1].startswith((":::", "```")))
        tops = [m for m in headings if lines[m - 1].startswith("## ")]
        first, last = max((m for m in tops if m < n), default=0), min((m for m in tops if m > n), default=len(lines))
        cells = [cell.source for cell in chapter.cells if first < cell.line < last]
        yield n, "takeaway", "\n".join(lines[n : end - 1]), cells


def digests(chapter):
    """For each unit of a chapter its line, what it is, and a digest of it and its cells."""
    return [(n, what, disk.digest(" ".join(text.split()), *cells)[:12]) for n, what, text, cells in units(chapter)]


def changed(chapter, known):
    """The places of a chapter that nobody has read since they changed, as lines of text."""
    for n, what, digest in digests(chapter):
        if digest not in known:
            yield (
                f"{chapter.path}:{n}: this {what} or a cell that it is about has changed: read them together, and then "
                f"run .venv/bin/python tests/tools/readings.py"
            )


def write(book):
    """Write down that all has been read."""
    rows = {chapter.name: [digest for *_, digest in digests(chapter)] for chapter in book.chapters}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in rows.items() if found)
    disk.write(FILE, f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    write(load(ROOT))
