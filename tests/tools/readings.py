"""What no machine can judge, and somebody has read.

Whether the marked choice of a prediction is the true one, whether a takeaway, a summary, a hint, a table made by hand
or an entry of the glossary is, whether an amount in words ("a quarter more") or of one digit is right, whether a
sentence cites the right work or links to the right section, whether a published run is what its source says, and
whether a message of shardlab gives good advice. So `tests/book/readings.json` has a digest of each: of a prediction
together with the cells below it, as far as the next one or the next heading, and of a takeaway with the cells of its
section. When the text or a cell changes, `make check` asks for a reading. Whoever has read writes the digests anew:

    .venv/bin/python tests/tools/readings.py
"""

import ast
import json
import re

import claims
from places import ROOT

from bookbinder import disk
from bookbinder.read.book import load

FILE = ROOT / "tests" / "book" / "readings.json"
AMOUNT = re.compile(r"\b(half|thirds?|quarters?|fifths?|tenths?|twice|double[ds]?|times)\b|\b\d [kKMGT]i?B\b")
PUBLISHED = ROOT / "src" / "shardlab" / "costs" / "published.toml"


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
        tops = [m for m in headings if lines[m - 1].startswith("## ")]
        first, last = max((m for m in tops if m < n), default=0), min((m for m in tops if m > n), default=len(lines))
        cells = [cell.source for cell in chapter.cells if first < cell.line < last]
        yield n, "takeaway", body(lines, n), cells
    for n in (n for n, line in enumerate(lines, 1) if re.match(r"[:`]{3,}\{hint\}", line)):
        yield n, "hint", body(lines, n), []
    yield from of_prose(chapter)


def body(lines, n):
    """What stands in the directive that line `n` opens."""
    end = next(m for m in range(n + 1, len(lines) + 1) if lines[m - 1].startswith((":::", "```")))
    return "\n".join(lines[n : end - 1])


def of_prose(chapter):
    """The summary, tables, entries of the glossary, and sentences with a citation, a link to a section or an amount."""
    text = dict(claims.prose(chapter))
    for n, line in text.items():
        if line == "## Summary":
            end = next((m for m in text if m > n and text[m].startswith("## ")), max(text) + 1)
            yield n, "summary", "\n".join(text[m] for m in text if n < m < end), []
        elif line.startswith("|") and not text.get(n - 1, "").startswith("|"):
            end = next(m for m in range(n, n + 1000) if not text.get(m, "").startswith("|"))
            yield n, "table", "\n".join(text[m] for m in range(n, end)), []
        elif chapter.name == "glossary" and line.startswith("  ") and not text[n - 1].startswith("  ") and text[n - 1]:
            end = next(m for m in range(n, n + 1000) if not text.get(m) and not text.get(m + 1, "").startswith("  "))
            yield n, "entry", "\n".join([text[n - 1], *(text[m] for m in range(n, end))]), []
    paragraphs = "\n".join(text.get(n, "") for n in range(1, max(text) + 1)).split("\n\n")
    n = 1
    for paragraph in paragraphs:
        for sentence in re.split(r"(?<=[.:?!)])\s", paragraph):
            line = n + paragraph[: paragraph.find(sentence)].count("\n")
            if re.search(r"\{cite|\]\(#", sentence):
                yield line, "citation or link", sentence, []
            elif AMOUNT.search(sentence):
                yield line, "amount", sentence, []
        n += paragraph.count("\n") + 2


def digests(chapter):
    """For each unit of a chapter its line, what it is, and a digest of it and its cells."""
    return [(n, what, disk.digest(" ".join(text.split()), *cells)[:12]) for n, what, text, cells in units(chapter)]


def published():
    """For each line of data of the published runs the same."""
    lines = enumerate(PUBLISHED.read_text("utf-8").splitlines(), 1)
    return [(n, "published run", disk.digest(line)[:12]) for n, line in lines if " = " in line and line[0] != "#"]


def messages():
    """For each text with values or of five words that shardlab's code may print or raise the same, by its file."""
    for path in sorted((ROOT / "src" / "shardlab").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        others = {id(part) for node in joined for part in node.values}
        others |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        rows = []
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in others:
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)
                if isinstance(node, ast.JoinedStr) or len(text.split()) >= 5:
                    rows.append((node.lineno, "message", disk.digest(text)[:12]))
        yield path.relative_to(ROOT).as_posix(), rows


def changed(path, rows, known):
    """The places of a file that nobody has read since they changed, as lines of text; `rows` are its digests."""
    for n, what, digest in rows:
        if digest not in known:
            yield (
                f"{path}:{n}: this {what}, or a cell that it is about, has changed: read it with its cells or its "
                f"source, and then run .venv/bin/python tests/tools/readings.py"
            )


def write(book):
    """Write down that all has been read."""
    rows = {chapter.name: [digest for *_, digest in digests(chapter)] for chapter in book.chapters}
    rows[PUBLISHED.name] = [digest for *_, digest in published()]
    rows |= {path: [digest for *_, digest in found] for path, found in messages()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in rows.items() if found)
    disk.write(FILE, f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    write(load(ROOT))
