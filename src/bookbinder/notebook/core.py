"""A path through the core of the book as one notebook: its sections, and folded, the code of other
sections that theirs needs.
"""

import ast
import re
from dataclasses import dataclass, replace
from functools import cached_property

from bookbinder.read import core
from bookbinder.read.book import CELL
from bookbinder.read.statements import depended_on

_GATED = re.compile(r"^```\{(exercise|solution)-start\}.*?^```\{\1-end\}\n```$", re.S | re.M)
_PROCESSES = "%%processes"
# What a cell changes besides variables: the devices, the processes, the mesh of all that follows.
_EFFECT = re.compile(
    r"^(?:\w+ = )?(?:emulate|start|(?:jax\.)?set_mesh|jax\.config\.update)\(", re.M
)


def chapters(book, path):
    """The chapters of a path, each with its sections of the path alone."""
    stops = core.path(book, path)
    names = dict.fromkeys(stop.chapter for stop in stops)
    return [_excerpt(book.chapter(name), [s for s in stops if s.chapter == name]) for name in names]


def _excerpt(chapter, stops):
    own = {stop.first: stop for stop in stops}
    pieces = core.sections(chapter.text)
    cells = [
        (place, cell)
        for place, (_, _, first, _, text) in enumerate(pieces)
        for cell in _cells(text, first in own)
    ]
    kept = needed([cell for _, cell in cells])
    head = chapter.text.split("\n")[: pieces[0][2] - 1]
    parts = ["\n".join(head)]
    for place, (level, _, first, _, text) in enumerate(pieces):
        if first in own:
            heading, _, rest = text.partition("\n")
            bridge = own[first].bridge
            parts.append("\n".join([heading, f"\n> {bridge}\n" if bridge else "", rest]))
            continue
        if level == 1:
            parts.append(text.partition("\n")[0])
        for n, (where, cell) in enumerate(cells):
            if where == place and n in kept:
                parts.append(f"```{{code-cell}} ipython3\n:tags: [hide-cell]\n\n{cell.code}```")
    excerpt = replace(chapter)
    excerpt.__dict__["text"] = "\n\n".join(parts) + "\n"  # in place of the file's
    return excerpt


@dataclass(frozen=True)
class Cell:
    """A code cell: its code, and whether it is shown."""

    code: str
    is_shown: bool

    @property
    def is_of_processes(self):
        """Whether its variables are those of processes, and not of the notebook."""
        return self.code.startswith(_PROCESSES)

    @cached_property
    def statements(self):
        """Its statements, without magics; none if it is in another language."""
        try:
            return ast.parse(re.sub(r"^%.*$", "", self.code, flags=re.M)).body
        except SyntaxError:
            return []


def _cells(text, is_on_path):
    """The code cells of a part of a chapter, without those of exercises."""
    text = _GATED.sub("", text)
    return [Cell(match["code"].lstrip("\n"), is_on_path) for match in CELL.finditer(text)]


def needed(cells):
    """The places of the cells that are shown, and of those on which these depend."""
    last = max((place for place, cell in enumerate(cells) if cell.is_shown), default=-1)
    kept = {
        place
        for place, cell in enumerate(cells[: last + 1])
        if cell.is_shown or _EFFECT.search(cell.code)
    }
    for where in (True, False):
        own = [n for n in range(last + 1) if cells[n].is_of_processes == where]
        statements = [statement for n in own for statement in cells[n].statements]
        more = kept & set(own)
        while more:  # a cell that is needed for one statement runs with all of them
            kept |= more
            roots = [statement for n in kept & set(own) for statement in cells[n].statements]
            chosen = {id(statement) for statement in depended_on(statements, roots)}
            more = {n for n in own if chosen & set(map(id, cells[n].statements))} - kept
    return kept
