"""The core of the book: the sections that are read in an evening, and those of them in an hour, as
`book/core.yml` lists them.

The file has the chapters in order, each with its sections by their headings:

    start:
      - heading: A step on one device
        hour: true
        bridge: What one has to know of what is left out before it.
        bridge_in_hour: What readers of the hour have to know besides.

A heading stands for the text down to the next heading of whatever level. An empty one is the
chapter's opening. A subsection follows the section that it is in.
"""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches

import yaml

from bookbinder.read.book import FOLDER, BookError, reading_minutes, slug

FILE = f"{FOLDER}/core.yml"
TITLES = {"evening": "The evening", "hour": "The hour"}
# of the files that scripts/pdf.py makes of a path, NAME.pdf and NAME.epub
FILES = {"evening": "The book in an evening", "hour": "The book in an hour"}
KEYS = "heading", "hour", "bridge", "bridge_in_hour"
_HEADING = re.compile(r"^(#{1,4}) (.+?)\s*$")
_SHORTEST = 10  # letters of a title that is less than its heading
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")


@dataclass(frozen=True)
class Stop:
    """A section of the core.

    Attributes:
      chapter: the name of its chapter.
      heading: as the chapter has it; "" for the opening.
      anchor: where it is on the page; "" for the opening.
      text: its source, without subsections.
      first: the first line of that in the chapter, from 1.
      is_in_hour: whether the shorter path has it too.
      bridge: what one has to know of sections that are left out before it; "" if nothing.
      bridge_in_hour: what readers of the hour have to know besides.
    """

    chapter: str
    heading: str
    anchor: str
    text: str
    first: int
    is_in_hour: bool = False
    bridge: str = ""
    bridge_in_hour: str = ""

    @property
    def minutes(self):
        """To read it and what bridges to it, not rounded."""
        return reading_minutes(f"{self.text}\n{self.bridge}")

    @property
    def title(self):
        """The heading without marks, shortened to what stands before its colon if that says
        something.
        """
        whole = re.sub(r"[`*]", "", self.heading) or "Opening"
        short = whole.partition(": ")[0]
        return short if len(short) > _SHORTEST else whole


def stops(book):
    """The sections of the core in order; none if the book has no such file.

    Raises:
      BookError: a chapter or a heading that is not there, with the nearest one.
    """
    file = book.root / FILE
    if not file.exists():
        return ()
    listed = _listed(file)
    known = {chapter.name: chapter for chapter in book.chapters}
    found = []
    for name, entries in listed.items():
        if name not in known:
            raise BookError(FILE, None, f"there is no chapter {name}{_near(name, known)}")
        pieces, last = sections(known[name].text), -1
        headings = [heading for _, heading, *_ in pieces]
        for entry in entries:
            heading = entry["heading"]
            if heading not in headings:
                message = f"{name} has no section {heading!r}{_near(heading, headings)}"
                raise BookError(FILE, None, message)
            place = headings.index(heading)
            level, _, first, _, text = pieces[place]
            if place <= last:
                raise BookError(FILE, None, f"{name}: {heading!r} stands before what it follows")
            above = [n for n in range(place) if pieces[n][0] < level]
            if level > 2 and not any(one.first == pieces[above[-1]][2] for one in found):
                message = f"{name}: {heading!r} needs the section that it is in, listed before it"
                raise BookError(FILE, None, message)
            last = place
            said = (" ".join(entry.get(key, "").split()) for key in ("bridge", "bridge_in_hour"))
            is_in_hour = entry.get("hour", False)
            found.append(Stop(name, heading, slug(heading), text, first, is_in_hour, *said))
    return tuple(found)


def _listed(file):
    """The content of the file: chapters with their sections."""
    try:
        listed = yaml.safe_load(file.read_text("utf-8"))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise BookError(FILE, None, f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(listed, dict):
        raise BookError(FILE, None, "write chapters with their sections: start: [{heading: ...}]")
    for name, entries in listed.items():
        if not isinstance(entries, list):
            raise BookError(FILE, None, f"{name}: write a list of sections: - heading: ...")
        for entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("heading"), str):
                raise BookError(
                    FILE, None, f"{name}: a section has a heading, not {str(entry)[:60]}"
                )
            if unknown := set(entry) - set(KEYS):
                word = min(unknown)
                raise BookError(FILE, None, f"{name}: {word} is not known{_near(word, KEYS)}")
    return listed


def sections(text):
    """The parts of a chapter between its headings: (level, heading, first line, last line, text);
    the first one is the title's, whose heading is "".
    """
    lines, starts, fence = text.split("\n"), [], ""
    for number, line in enumerate(lines, 1):
        mark = _FENCE.match(line)
        if fence:
            fence = "" if mark and line.strip() == fence else fence
        elif mark:
            fence = mark[1]
        elif heading := _HEADING.match(line):
            starts.append((len(heading[1]), heading[2] if len(heading[1]) > 1 else "", number))
    ends = [number - 1 for _, _, number in starts[1:]] + [len(lines)]
    # a label belongs to the heading below it
    ends = [end - (end < len(lines) and lines[end - 1].startswith("(")) for end in ends]
    return [
        (level, heading, first, end, "\n".join(lines[first - 1 : end]))
        for (level, heading, first), end in zip(starts, ends, strict=True)
    ]


def path(book, name):
    """The sections of one of the two paths, "evening" or "hour", each with all that bridges to it
    there.
    """
    if name == "evening":
        return stops(book)
    return tuple(
        replace(stop, bridge=f"{stop.bridge} {stop.bridge_in_hour}".strip())
        for stop in stops(book)
        if stop.is_in_hour
    )


def _near(name, names):
    near = get_close_matches(name, names, 1, 0.3)
    return f"; did you mean {near[0]!r}?" if near else ""
