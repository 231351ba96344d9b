"""What no machine can judge, and who has read it.

Whether the marked choice of a prediction is the true one, no test can say. Nor whether a takeaway,
a summary, a hint, a table made by hand or an entry of the glossary is right, an amount in words
("a quarter more") or of one digit, a citation, a link to a section, or a published run. Each of
these is a unit. Somebody reads it and signs it, and what is signed is a digest: of a prediction
together with the cells below it, as far as the next one or the next heading; of a takeaway with
the cells of its section. When the text or a cell changes, `make check` asks for a new reading.

    .venv/bin/python tests/tools/chapters/readings.py

lists what nobody has read. With places it signs the units there, those and no others:

    .venv/bin/python tests/tools/chapters/readings.py book/arrays.md:120 book/arrays.md:344

A place is a file and a line in the unit. Where units lie in each other, the one that begins
nearest above the line is meant, or all that begin there. Units of a chapter with the same words
are signed together. The name is that of --who, or that of `git config user.name`.

The signatures of `book/arrays.md` are in `tests/book/readings/arrays.txt`, a line each: digest,
day, name and kind, with two spaces in between. Git merges such files by keeping the lines of both
sides, so two people may sign in one chapter. Whoever signs next in it drops what is left over.
"""

import argparse
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple

import claims
from claims import ROOT

from bookbinder import disk
from bookbinder.read.book import BookError, load

COMMAND = f".venv/bin/python {Path(__file__).resolve().relative_to(ROOT)}"
FOLDER = "tests/book/readings"
PUBLISHED = "src/shardlab/costs/published.toml"
WORDS = "half|thirds?|quarters?|fifths?|tenths?|twice|double[ds]?|times"
AMOUNT = re.compile(rf"\b({WORDS})\b|\b\d [kKMGT]i?B\b")
CITED = re.compile(r"\{cite|\]\(#")
SIGNATURE = re.compile(r"([0-9a-f]{12})  (\d{4}-\d\d-\d\d)  (\S+(?: \S+)*)  (\S+(?: \S+)*)")


class Fault(Exception):
    """What is wrong with a command or with a file of signatures, in one line."""


class Unit(NamedTuple):
    """Something to read: its first and last line, its kind, its text, and the code of its cells."""

    line: int
    end: int
    kind: str
    text: str
    cells: tuple = ()

    @property
    def digest(self):
        """A digest of the text, however its lines are broken, and of the cells."""
        return disk.digest(" ".join(self.text.split()), *self.cells)[:12]


class Signature(NamedTuple):
    """Who has read a unit: the unit's digest, the day, the name and the unit's kind."""

    digest: str
    day: str
    who: str
    kind: str


# The units


def units(chapter):
    """The units of a chapter."""
    lines = [*chapter.text.split("\n"), ""]
    headings = [n for n, line in claims.prose(chapter) if re.match(r"##+ ", line)]
    yield from predictions(chapter, lines, headings)
    tops = [n for n in headings if lines[n - 1].startswith("## ")]
    for n, line in enumerate(lines, 1):
        if re.match(r"[:`]{3,}\{admonition\} Takeaway", line):
            first = max((m for m in tops if m < n), default=0)
            last = min((m for m in tops if m > n), default=len(lines))
            yield directive(lines, n, "takeaway", cells_between(chapter, first, last))
    for n, line in enumerate(lines, 1):
        if re.match(r"[:`]{3,}\{hint\}", line):
            yield directive(lines, n, "hint")
    text = dict(claims.prose(chapter))
    yield from of_prose(chapter, text)
    yield from sentences(text)


def cells_between(chapter, first, last):
    """The code of the cells between two lines."""
    return tuple(cell.source for cell in chapter.cells if first < cell.line < last)


def predictions(chapter, lines, headings):
    """The predictions, each with the cells below it."""
    asked = [n for n, line in enumerate(lines, 1) if line.startswith("**Predict.**")]
    for n in asked:
        end = min((m for m in (*headings, *asked) if m > n), default=len(lines))
        cell = min((cell.line for cell in chapter.cells if n < cell.line < end), default=end)
        kept = [line for line in lines[n - 1 : cell - 1] if not line.startswith(("%", "```"))]
        cells = cells_between(chapter, n, end)
        yield Unit(n, cell - 1, "prediction", "\n".join(kept), cells)


def directive(lines, n, kind, cells=()):
    """The directive that line `n` opens; its text is what stands in it."""
    rest = range(n + 1, len(lines) + 1)
    end = next(m for m in rest if lines[m - 1].startswith((":::", "```")))
    return Unit(n, end, kind, "\n".join(lines[n : end - 1]), cells)


def of_prose(chapter, text):
    """The summary, the tables and the entries of the glossary; `text` has the lines of prose."""
    is_glossary = chapter.name == "glossary"
    for n, line in text.items():
        above = text.get(n - 1, "")
        following = range(n, n + 1000)
        if line == "## Summary":
            tops = (m for m in text if m > n and text[m].startswith("## "))
            end = next(tops, max(text) + 1)
            yield Unit(n, end - 1, "summary", "\n".join(text[m] for m in text if n < m < end))
        elif line.startswith("|") and not above.startswith("|"):
            end = next(m for m in following if not text.get(m, "").startswith("|"))
            yield Unit(n, end - 1, "table", "\n".join(text[m] for m in range(n, end)))
        elif is_glossary and line.startswith("  ") and above and not above.startswith("  "):
            ends = (m for m in following if not text.get(m))
            end = next(m for m in ends if not text.get(m + 1, "").startswith("  "))
            yield Unit(n - 1, end - 1, "entry", "\n".join(text[m] for m in range(n - 1, end)))


def sentences(text):
    """The sentences with a citation, a link to a section or an amount."""
    paragraphs = "\n".join(text.get(n, "") for n in range(1, max(text) + 1)).split("\n\n")
    n = 1
    for paragraph in paragraphs:
        for sentence in re.split(r"(?<=[.:?!)])\s", paragraph):
            line = n + paragraph[: paragraph.find(sentence)].count("\n")
            end = line + sentence.count("\n")
            if CITED.search(sentence):
                yield Unit(line, end, "citation or link", sentence)
            elif AMOUNT.search(sentence):
                yield Unit(line, end, "amount", sentence)
        n += paragraph.count("\n") + 2


def published(root=ROOT):
    """The published runs, a unit for each line of data."""
    lines = enumerate((root / PUBLISHED).read_text("utf-8").splitlines(), 1)
    for n, line in lines:
        if " = " in line and not line.startswith("#"):
            yield Unit(n, n, "published run", line.strip())


def sources(root=ROOT):
    """The files that have units, by their paths, and for each what gives its units."""
    found = {chapter.path: partial(units, chapter) for chapter in load(root).chapters}
    return found | {PUBLISHED: partial(published, root)}


# The signatures


def signature_file(path, root=ROOT):
    """The file with the signatures of a source."""
    return root / FOLDER / f"{Path(path).stem}.txt"


def signatures(path, root=ROOT):
    """The signatures of a source by their digests; of several for one digest the newest."""
    file, found = signature_file(path, root), {}
    if not file.exists():
        return found
    for n, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        parts = SIGNATURE.fullmatch(line)
        if not parts:
            name = file.relative_to(root)
            form = "digest  day  name  kind, with two spaces in between"
            raise Fault(f"{name}:{n}: {line!r} is no signature; it should be {form}")
        one = Signature(*parts.groups())
        found[one.digest] = max(found.get(one.digest, one), one, key=lambda either: either.day)
    return found


def unread(path, found, root=ROOT):
    """Those of the units `found` in a source that nobody has read as they are now."""
    known = signatures(path, root)
    return sorted(unit for unit in found if unit.digest not in known)


def command_for(path, found):
    """The command that signs some units of a source."""
    return " ".join([COMMAND, *dict.fromkeys(f"{path}:{unit.line}" for unit in found)])


def asked(path, found):
    """What to tell somebody about unread units of a source, a text of several lines."""
    why = "is new, or it or a cell that it is about has changed"
    said = [f"{path}:{unit.line}: this {unit.kind} {why}" for unit in found]
    remedy = "read each with its cells or its source; correct what is wrong; sign what is right:"
    return "\n".join([*said, remedy, f"  {command_for(path, found)}"])


def named(place, known):
    """The path and the units that a place names; `known` has the sources, as from `sources`."""
    path, _, line = place.rpartition(":")
    if not path or not re.fullmatch(r"[1-9][0-9]*", line):
        raise Fault(f"{place!r} is no place; write a file and a line, such as book/arrays.md:120")
    if path not in known:
        close = get_close_matches(path, known, 1)
        hint = f"; is it {close[0]}?" if close else f"; it is a chapter, or {PUBLISHED}"
        raise Fault(f"{place}: there is no such file with anything to sign{hint}")
    line, found = int(line), list(known[path]())
    around = [unit for unit in found if unit.line <= line <= unit.end]
    if around:
        nearest = max(unit.line for unit in around)
        return path, [unit for unit in around if unit.line == nearest]
    before = max((unit.line for unit in found if unit.line < line), default=None)
    after = min((unit.line for unit in found if unit.line > line), default=None)
    near = [f"{path}:{n}" for n in (before, after) if n]
    nearest = f"the nearest begin at {' and '.join(near)}" if near else "the file has none"
    raise Fault(f"{place}: nothing to sign is on this line; {nearest}")


def signer(who, root):
    """The name to sign with: `who`, or the one that git has; in one line, with single spaces."""
    if who is None:
        command = ["git", "-c", "safe.directory=*", "config", "user.name"]
        try:
            who = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout
        except OSError:
            who = ""
    if not who.split():
        raise Fault('nobody to sign: add --who "Your Name", or set it by git config user.name')
    return " ".join(who.split())


def sign(places, who=None, root=ROOT):
    """Sign the units that some places name; returns a line of text for each.

    Nothing is written if there is a fault in any place. In the files that are written, no line is
    left of what is no longer there, and none twice.
    """
    known, chosen = sources(root), {}
    for place in places:
        path, found = named(place, known)
        chosen[path] = chosen.get(path, []) + found
    who, day, written, said = signer(who, root), f"{datetime.now(UTC).date()}", {}, []
    for path, found in chosen.items():
        there = {unit.digest for unit in known[path]()}
        kept = {key: one for key, one in signatures(path, root).items() if key in there}
        for unit in sorted(set(found)):
            kept[unit.digest] = Signature(unit.digest, day, who, unit.kind)
            said.append(f"{path}:{unit.line}: {unit.kind}, signed by {who}")
        written[path] = "".join("  ".join(one) + "\n" for one in sorted(kept.values()))
    for path, text in written.items():
        file = signature_file(path, root)
        file.parent.mkdir(parents=True, exist_ok=True)
        disk.write(file, text)
    return said


def listed(root=ROOT):
    """What nobody has read, as lines of text: the places, and for each source the command."""
    total = 0
    for path, find in sources(root).items():
        found = unread(path, find(), root)
        total += len(found)
        if found:
            yield from (f"{path}:{unit.line}  {unit.kind}" for unit in found)
            yield f"  {command_for(path, found)}"
    yield f"{total} to read" if total else "all has been read"


def main(arguments=None, root=ROOT):
    """Sign what the arguments name, or list what is unread; returns the exit status."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    text = "a file and a line in what you have read, such as book/arrays.md:120; without: list"
    parser.add_argument("places", nargs="*", metavar="FILE:LINE", help=text)
    parser.add_argument("--who", metavar="NAME", help="who has read it; by default git's user.name")
    options = parser.parse_intermixed_args(arguments)
    try:
        if options.who is not None and not options.places:
            raise Fault("--who signs nothing by itself: name what you have read, as book/x.md:LINE")
        said = sign(options.places, options.who, root) if options.places else listed(root)
        for line in said:
            print(line)
    except (Fault, BookError) as fault:
        print(fault, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename}: {os.strerror(error.errno)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
