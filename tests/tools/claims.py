"""The numbers in a chapter's prose, and what each stands on.

A number with three digits or a decimal is one that code, outputs or assertions of its own section have, up to rounding
and a unit's scale. The opening, the summary, the exercises and what one may read on may use the whole chapter. What
neither has, a comment in the Markdown says, above the paragraph or the table, which no reader sees:

    % 4.7 = 188 / 40                          an expression, of numbers and of what shardlab exports
    % 1,024 here                              another section of this chapter
    % 5.9 in memory                           another chapter
    % 312 source: NVIDIA A100 datasheet       somebody else
"""

import math
import re
from dataclasses import dataclass

NUMBER = re.compile(r"(?<![\w.,/-])(?<!\d[ ,])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\d]|\.\d)", re.IGNORECASE)
IN_CODE = re.compile(
    r"(?<![A-Za-z_\d.])\d+(?:[,_]\d{3})*(?:\.\d*)?(?:e[+-]?\d+)?(?!\.\d)|(?<=[A-Za-z_])\d{3,}", re.IGNORECASE
)
MARK = re.compile(r"^% (\S+) (?:(=) (.*)|(here)|(in) (\w+)|(source:) (.+))$")
WHOLE = ("Summary", "Exercises", "Where to read on")  # sections that may use all that the chapter has
SCALES = tuple(sorted({base**power for base, powers in ((1000, range(-5, 6)), (1024, range(-4, 5))) for power in powers}
                      | {100, 0.01, 8, 1 / 8}))  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """A number in prose: as it is written, its line in the file, its section, and the marks above its paragraph."""

    text: str
    line: int
    section: int
    marks: tuple

    @property
    def value(self):
        return float(self.text.replace(",", ""))

    @property
    def half(self):
        """Half of its last digit: of the last that is not zero, in a whole number."""
        digits = self.text.replace(",", "").lower()
        mantissa, _, exponent = digits.partition("e")
        whole, point, decimals = mantissa.partition(".")
        power = -len(decimals) if point else len(whole) - len(whole.rstrip("0"))
        return 0.5 * 10.0 ** (power + int(exponent or 0))


@dataclass
class Section:
    """What stands below a heading of the second level."""

    title: str
    line: int
    proved: set  # numbers of its code and outputs


def numbers_in(text, pattern=IN_CODE):
    """The numbers in code or in an output."""
    values = set()
    for found in pattern.findall(text):
        try:
            values.add(abs(float(re.sub("[,_]", "", found))))
        except ValueError:
            continue
    return values


def stands_on(claim, values):
    """Whether one of some numbers, rounded and in some unit, is what a claim says."""
    value, half = claim.value, claim.half * (1 + 1e-9)
    return any(abs(known * scale - value) <= half for known in values for scale in SCALES)


def sections(chapter, outputs):
    """The sections of a chapter, the first without a title; `outputs` are texts by the position of their cell."""
    found = [Section("", 0, set())]
    for n, line in prose_lines(chapter):
        if line.startswith("## "):
            found.append(Section(line[3:].strip(), n, set()))
    for cell in chapter.cells:
        here = section_at(found, cell.line)
        found[here].proved |= numbers_in(cell.source) | numbers_in(outputs.get(cell.position, ""))
    return found


def section_at(found, line):
    return max(n for n, section in enumerate(found) if section.line <= line)


def prose_lines(chapter):
    """The lines of a chapter outside its front matter and its fenced code, with their numbers."""
    fence, front = None, chapter.text.startswith("---\n")
    for n, line in enumerate(chapter.text.splitlines(), 1):
        if front:
            front = n == 1 or line.strip() != "---"
            continue
        mark = re.match(r"(`{3,})(\{(?:code-cell|code-block|literalinclude|raw|image)\}|\w*$)?", line)
        if fence is None and mark and mark[2] is not None and (mark[2] or line.strip() == mark[1]):
            fence = mark[1]
        elif fence and line.strip() == fence:
            fence = None
        elif fence is None:
            yield n, line


def words_of(line):
    """What readers see of a line, without targets of links, roles, labels and names that have digits."""
    line = re.sub(r"^(:label:|:name:|\([\w-]+\)=).*|^:alt:", "", line)
    line = re.sub(r"\]\([^)]*\)|\{cite[^}]*\}`[^`]*`|https?://\S+|\{(?:doc|ref|numref|term)\}`[^`]*`", " ", line)
    line = re.sub(r"`[^`]*`", " ", line)
    return re.sub(r"\b\d+\.\d+\.\d+\S*|\b(?:JAX|Python|CUDA|Flax|jaxlib|version) \d+\.\d+\S*", " ", line)


def claims(chapter, found):
    """The numbers in prose that have three digits or a decimal."""
    marks, waiting = (), []
    for n, line in prose_lines(chapter):
        if mark := MARK.match(line):
            waiting.append(mark)
            continue
        if line.strip() == "":
            marks = ()
            continue
        if waiting:
            marks, waiting = tuple(waiting), []
        for match in NUMBER.finditer(words_of(line)):
            text = match[0].rstrip(",.")
            if len(re.sub(r"\D", "", text)) >= 3 or "." in text:
                yield Claim(text, n, section_at(found, n), marks)
