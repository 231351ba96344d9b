"""A path through the core of the book as one notebook: its sections, and folded, the code of other
sections that theirs needs.
"""

import ast
import re
import symtable
from dataclasses import dataclass, field, replace

from bookbinder.read import core
from bookbinder.read.book import CELL

_GATED = re.compile(r"^```\{(exercise|solution)-start\}.*?^```\{\1-end\}\n```$", re.S | re.M)
_CHANGES = {"add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}
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


@dataclass
class Cell:
    """A code cell: whether it is shown, and for each of its statements the names that it binds and
    those that it loads.
    """

    code: str
    is_shown: bool
    statements: list = field(default_factory=list)
    functions: dict = field(default_factory=dict)  # what each function loads

    def __post_init__(self):
        # variables of processes are others than those of the notebook
        self.space = "in a process: " if self.code.startswith(_PROCESSES) else ""
        source = re.sub(r"^%.*$", "", self.code, flags=re.M)
        try:
            tree = ast.parse(source)
        except SyntaxError:  # another magic
            return
        for statement in tree.body:
            self._read(statement, ast.unparse(statement))

    def _read(self, statement, source):
        table = symtable.symtable(source, "cell", "exec")
        own = table.get_symbols()
        binds = {one.get_name() for one in own if one.is_assigned() or one.is_imported()}
        loads = _globals(table) | {one.get_name() for one in own if one.is_referenced()}
        for scope in table.get_children():
            self.functions.setdefault(self.space + scope.get_name(), set()).update(
                self.space + name for name in _globals(scope)
            )
        if isinstance(statement, (ast.For, ast.With)):  # which bind before they load
            loads -= binds
        binds |= (changed := _changed(statement))
        loads |= changed
        if isinstance(statement, (ast.If, ast.Try)):  # it may not bind them
            loads |= binds
        self.statements.append(
            ({self.space + name for name in binds}, {self.space + name for name in loads})
        )

    @property
    def binds(self):
        """All names that it binds."""
        return set().union(*(binds for binds, _ in self.statements))


def _globals(table):
    """The variables of the notebook that a scope, and those within it, refer to."""
    names = set()
    if table.get_type() != "module":
        names = {one.get_name() for one in table.get_symbols() if one.is_global()}
    return names.union(*map(_globals, table.get_children()))


def _changed(statement):
    """The variables that x[0] = 1, x.y = 1 and x.append(1) change."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return set()
    parts = [
        node
        for node in ast.walk(statement)
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store)
    ]
    parts += [
        node.func
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _CHANGES
    ]
    return {one.id for part in parts for one in ast.walk(part.value) if isinstance(one, ast.Name)}


def _cells(text, is_on_path):
    """The code cells of a part of a chapter, without those of exercises."""
    text = _GATED.sub("", text)
    return [Cell(match["code"].lstrip("\n"), is_on_path) for match in CELL.finditer(text)]


def needed(cells):
    """The places of the cells that are shown, and of those that bind what these need."""
    kept, wanted, functions = set(), set(), {}
    for cell in cells:
        for name, loads in cell.functions.items():
            functions.setdefault(name, set()).update(loads)
    last = max((place for place, cell in enumerate(cells) if cell.is_shown), default=-1)
    for place in reversed(range(last + 1)):
        cell = cells[place]
        if cell.is_shown or _EFFECT.search(cell.code) or cell.binds & wanted:
            kept.add(place)
            for binds, loads in reversed(cell.statements):
                wanted -= binds - loads
                _add(wanted, loads, functions)
    return kept


def _add(wanted, names, functions):
    """Add names, and all that functions of these names load when they are called."""
    for name in names - wanted:
        wanted.add(name)
        _add(wanted, functions.get(name, set()), functions)
