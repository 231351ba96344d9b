"""The numbers in a chapter's prose, and what each stands on.

A number with two digits or a decimal (but 10), or one in words and a unit ("thirty seconds"), is
one that code, outputs or assertions of its own section have, up to rounding and a unit's scale. The
opening, the summary, the exercises and "Where to read on" may use the whole chapter. What neither
has, a comment says in the Markdown, above the paragraph, the list or the table, where no reader
sees it:

    % 4.7 = 188 / 40                        an expression, of numbers and of what shardlab exports
    % 1,024 here                            another section of this chapter
    % 5.9 in memory                         another chapter
    % 312 source: data sheet of the A100    somebody else, or a measurement

Of a cell's outputs the numbers are kept in `tests/book/outputs`, so that prose can be held against
them without a run. They are of the code that `code` is a digest of. A new run is recorded by the
tests, as soon as there is one: after `make chapter FILE=book/x.md` by `make check`.
"""

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
import numpy as np

import shardlab
from bookbinder import disk
from bookbinder.run import runs

ROOT = Path(__file__).resolve().parents[3]  # as in `places`, which is in another room
FOLDER = ROOT / "tests" / "book" / "outputs"
# sections that may use all that the chapter has; "": opening
WHOLE = ("", "Summary", "Exercises", "Where to read on")
NUMBER = re.compile(
    r"(?<![\w.,/#-])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?!\d|\.\d)", re.IGNORECASE
)
IN_CODE = re.compile(
    r"(?<![A-Za-z_\d.])\d+(?:[,_]\d{3})*(?:\.\d*)?(?:e[+-]?\d+)?(?!\.\d)", re.IGNORECASE
)
MARK = re.compile(
    r"% (?P<number>[\d,.e+-]+) (?:= (?P<expression>.+)|(?P<here>here)|in "
    r"(?P<chapter>\w+)|source: (?P<source>.+))"
)
UNIT = re.compile(r"[%B]|per cent|bit|bytes|\b[mµ]?s\b|second|FLOP|illion|thousand|share")
MEASURED = re.compile(
    r" ?(?:per "
    r"cent|percent|%|[kMGT]i?B\b|m?s\b|µs|(?:milli|micro)?seconds|minutes|hours|days|times|bytes|tokens)"
)
ONES = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SPELLED = {word: n for n, word in enumerate(ONES, 1)} | {
    word: 10 * n for n, word in enumerate(TENS, 2)
}
IN_WORDS = re.compile(
    rf"\b(?P<first>{'|'.join(SPELLED)})(?:-(?P<second>{'|'.join(ONES[:9])}))?(?P<half> and a half)?"
    r"(?= (?:times|\w*seconds|minutes|hours|days|bytes|per cent|[kMGT]i?B|FLOPs)\b)",
    re.IGNORECASE,
)
YEAR = re.compile(r"(19|20)\d\d")
SCALES = sorted({1000.0**n for n in range(-4, 5)} | {1024.0**n for n in range(-4, 4)} | {100, 0.01})
# What an expression in a mark may use.
NAMES = {
    name: getattr(shardlab, name)
    for name in ("costs", "hardware", "inference", "models", "published")
}
NAMES |= {"__builtins__": {}, "math": math, "max": max, "min": min, "round": round, "sum": sum}


@dataclass(frozen=True)
class Claim:
    """A number in prose.

    Attributes:
      text: as it is written.
      line: its line in the file.
      section: which section it is in.
      marks: the comments above its paragraph, as matches of `MARK`.
      scaled: whether a unit follows that may have a prefix, or a percentage.
      written: the number in words, if it is.
    """

    text: str
    line: int
    section: int
    marks: tuple = ()
    scaled: bool = True
    written: str = ""

    @property
    def value(self):
        return float(self.text.replace(",", ""))

    @property
    def half(self):
        """Half of its last digit; in a whole number, of the last that is not zero, and at most a
        twentieth of it.
        """
        mantissa, _, exponent = self.text.replace(",", "").lower().partition("e")
        whole, point, decimals = mantissa.partition(".")
        last = -len(decimals) if point else len(whole) - len(whole.rstrip("0"))
        half = 0.5 * 10.0 ** (last + int(exponent or 0))
        return half if point else min(half, max(0.05 * self.value, 0.5))

    def is_close(self, number):
        """Whether a number, rounded, is what it says."""
        return np.abs(number - self.value) <= self.half * (1 + 1e-9)

    def stands_on(self, numbers):
        """Whether one of some numbers, rounded and in some unit, is what it says."""
        return bool(
            np.any(self.is_close(np.multiply.outer([*numbers], SCALES if self.scaled else [1.0])))
        )


@dataclass
class Section:
    """What stands below a heading of the second level; `numbers` are those of its code and
    outputs.
    """

    title: str
    line: int
    numbers: set


def numbers_in(text):
    """The numbers in code or in an output."""
    numbers = (float(re.sub(r"[,_]|\.$", "", number)) for number in IN_CODE.findall(text))
    return {number for number in numbers if math.isfinite(number)}


def output_texts(cell):
    """What a cell prints, shows and raises, as texts."""
    for output in cell.get("outputs", ()):
        yield output.get("text", "")
        yield output.get("evalue", "")
        for kind, data in output.get("data", {}).items():
            if kind in ("text/html", "image/svg+xml"):
                yield re.sub(r"(?s)<(style|script)\b.*?</\1>|<[^>]*>", " ", data)
            elif kind in ("text/plain", "text/markdown", "text/latex"):
                yield data


def code_of(chapter):
    """A digest of a chapter's code."""
    return disk.digest(json.dumps([cell.source for cell in chapter.cells]))


def numbers_of(notebook):
    """The numbers in the outputs of a notebook's file, for each of its code cells."""
    cells = nbformat.read(notebook, as_version=4).cells
    return [numbers_in(" ".join(output_texts(cell))) for cell in cells if cell.cell_type == "code"]


def record(chapter, outputs):
    """Keep the numbers of a chapter's outputs, a line for each cell."""
    lines = ",\n".join(json.dumps(sorted(numbers)) for numbers in outputs)
    disk.write(
        FOLDER / f"{chapter.name}.json",
        f'{{"code": "{code_of(chapter)}", "outputs": [\n{lines}\n]}}\n',
    )


def recorded(book, chapter):
    """The numbers of the outputs of a chapter's present code, for each cell: as recorded, or of a
    run; else None.
    """
    if not chapter.runs:
        return []
    file = FOLDER / f"{chapter.name}.json"
    kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if kept.get("code") == code_of(chapter):
        return [set(numbers) for numbers in kept["outputs"]]
    report = runs.known(runs.of_chapter(book, chapter))
    if not report:
        return None
    outputs = numbers_of(report.outputs)
    record(chapter, outputs)
    return outputs


def all_numbers(book):
    """A function that returns all numbers of the code and the outputs of a chapter, by its name."""

    @cache
    def numbers_of_chapter(name):
        chapter = book.chapter(name)
        return set().union(
            *(part.numbers for part in sections(chapter, recorded(book, chapter) or []))
        )

    return numbers_of_chapter


def prose(chapter, code="code-cell|code-block|literalinclude|raw"):
    """The lines of a chapter outside its front matter and its code, with their numbers; and
    alternative texts.

    `code` are the directives that are left out; fences with the name of a language are too.
    """
    fence, front, in_alt = None, chapter.text.startswith("---\n"), False
    for n, line in enumerate(chapter.text.splitlines(), 1):
        if front:
            front = n == 1 or line.strip() != "---"
            continue
        mark = re.match(rf"(`{{3,}})(\{{(?:{code})\}}|\w*$)?", line)
        if fence is None and mark and mark[2]:
            fence = mark[1]
        elif fence and line.strip() == fence:
            fence = None
        elif fence:
            in_alt = re.match(r"\s+alt: ", line) or (in_alt and not re.match(r"---|\s+\w+: ", line))
            if in_alt:
                yield n, line
        else:
            yield n, line


def sections(chapter, outputs):
    """The sections of a chapter, the first without a title; `outputs` has the numbers of its code
    cells' outputs.
    """
    parts = [Section("", 0, set())]
    parts += [
        Section(line[3:].strip(), n, set()) for n, line in prose(chapter) if line.startswith("## ")
    ]
    positions = [n for n, cell in enumerate(chapter.notebook.cells) if cell.cell_type == "code"]
    printed = dict(zip(positions, outputs, strict=bool(outputs)))
    for cell in chapter.cells:
        numbers = numbers_in(cell.source) | printed.get(cell.position, set())
        parts[section_at(parts, cell.line)].numbers |= numbers
    return parts


def section_at(parts, line):
    """Which section a line is in."""
    return max(n for n, section in enumerate(parts) if section.line <= line)


def visible(line):
    """What readers see of a line: no targets of links, roles and labels; nor code, versions and
    numbers of issues.
    """
    if re.match(r":(label|name):|\([\w-]+\)=", line):
        return ""
    line = re.sub(
        (
            r"^\s*:?alt: "
            r"|(?<!!)\[[^\]]*\]\([^)]*\)|(?<=\])\([^)]*\)|\{[\w:]+\}`[^`]*`|https?://\S+|`[^`]*`"
        ),
        " ",
        line,
    )
    return re.sub(r"\b(JAX|Python|CUDA|Flax|jaxlib|[Vv]ersions?) \d+\.[\d.]*\d", " ", line)


def claims(chapter, parts):
    """The numbers in prose that are checked: not years, and not in the wrong answers of a
    question.
    """
    marks, above, after_blank = (), (), False
    for n, line in prose(chapter):
        if mark := MARK.fullmatch(line):
            above = (*above, mark)
        elif not line.strip():
            after_blank = True
        else:
            # else further down in the list
            if above or (after_blank and not line.startswith((" ", "- ["))):
                marks, above = above, ()
            after_blank = False
            text = "" if line.lstrip().startswith("- [ ]") else visible(line)
            for match in NUMBER.finditer(text):
                number, rest = match[0], text[match.end() :][:40].strip(" .")
                digits = len(re.sub(r"\D", "", number))
                if (digits >= 2 or "." in number) and number != "10" and not YEAR.fullmatch(number):
                    measured = digits > 2 or "." in number or MEASURED.match(text[match.end() :])
                    scaled = bool(measured) and (not rest or UNIT.search(rest) is not None)
                    yield Claim(number, n, section_at(parts, n), marks, scaled)
            for match in IN_WORDS.finditer(text):
                value = SPELLED[match["first"].lower()] + SPELLED.get(
                    (match["second"] or "").lower(), 0
                )
                if value > 2:
                    number = f"{value}.5" if match["half"] else str(value)
                    yield Claim(number, n, section_at(parts, n), marks, written=match[0])


def is_marked(claim, everything, numbers_of_chapter):
    """Whether a mark says what a number stands on, and it does; `everything` are the numbers of its
    chapter.
    """
    for mark in claim.marks:
        name, expression = mark["chapter"], mark["expression"]
        if mark["number"] == claim.text and (
            (mark["here"] and claim.stands_on(everything))
            or (name and claim.stands_on(numbers_of_chapter(name)))
            or (expression and claim.is_close(float(eval(expression, dict(NAMES)))))
            or mark["source"]
        ):
            return True
    return False


def faults(chapter, outputs, numbers_of_chapter):
    """What is wrong with the numbers of a chapter and their marks, a line of text for each.

    Args:
      chapter: a `bookbinder.read.book.Chapter`.
      outputs: the numbers of its outputs, for each code cell.
      numbers_of_chapter: gives the numbers of another chapter, by its name.
    """
    parts, used = sections(chapter, outputs), set()
    everything = set().union(*(section.numbers for section in parts))
    for claim in claims(chapter, parts):
        used |= {mark[0] for mark in claim.marks if mark["number"] == claim.text}
        section = parts[claim.section]
        numbers = everything if section.title in WHOLE else section.numbers
        if not claim.stands_on(numbers) and not is_marked(claim, everything, numbers_of_chapter):
            elsewhere = (
                f", such as `% {claim.text} here`: another section has it"
                if claim.stands_on(everything)
                else ""
            )
            yield (
                f"{chapter.path}:{claim.line}: no code or output of its section has "
                f"{claim.written or claim.text}; correct it, or say above the paragraph what "
                f"it stands on (tests/tools/chapters/claims.py){elsewhere}"
            )
    for n, line in prose(chapter):
        if re.match(r"\s*% [\d.,]+ ", line) and line not in used:
            yield (
                f"{chapter.path}:{n}: {line.strip()!r} is the mark of no number in what stands "
                "below it"
            )
