"""Cells with the tag `copy`: functions that readers take into their own programs, each with all
that it needs.

Such a cell holds definitions alone, and what they use is an import, a definition or a constant of
its chapter, never a value of the chapter's run: what is copied works where it is pasted. The
paragraph above the cell begins with "**To copy:**" and says what the functions take.
"""

import ast
import builtins
import re
import symtable
from dataclasses import dataclass

from bookbinder.read.book import BookError

COPY = "copy"  # the tag of a cell
LEAD = "**To copy:**"  # how the paragraph above the cell begins
# What may be called to make a constant: it makes a function of functions.
_OF_FUNCTIONS = (
    "partial", "functools.partial", "jax.jit", "jax.custom_vjp", "jax.custom_jvp", "jax.vmap",
    "jax.checkpoint", "namedtuple", "collections.namedtuple",
)  # fmt: skip
_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Excerpt:
    """What a reader takes from a cell.

    Attributes:
      position: the cell's, among the notebook's cells.
      line: of the cell's first line of code, in the chapter.
      names: of the functions and classes that the cell defines.
      takes: what they take, as the paragraph above the cell says it.
      statements: what they use of other cells: the imports, then one definition after another.
      source: the cell's own code.
    """

    position: int
    line: int
    names: tuple[str, ...]
    takes: str
    statements: tuple[tuple[str, ...], ...]
    source: str

    @property
    def needs(self):
        """The code of what they use of other cells."""
        return "\n\n".join(map("\n".join, self.statements))

    @property
    def code(self):
        """The program that a reader pastes."""
        return f"{self.needs}\n\n{self.source}".strip() + "\n"


@dataclass(frozen=True)
class _Statement:
    """A statement of the chapter: its place, its code, and the names of others that it uses."""

    place: tuple[int, int]
    node: ast.stmt
    code: str
    uses: frozenset[str]


def of_chapter(chapter):
    """The excerpts of a chapter, in its order.

    Raises `BookError` for a cell that cannot be copied: one that runs something, one that uses a
    value of the chapter's run, or one without its paragraph.
    """
    tagged = [
        cell
        for cell in chapter.cells
        if COPY in chapter.notebook.cells[cell.position].metadata.get("tags", ())
    ]
    if not tagged:
        return []
    found, known = [], {}
    for cell in chapter.cells:
        own = _statements(cell)
        for statement in own:
            _bind(statement, known)
        if cell in tagged:
            found.append(_excerpt(chapter, cell, own, known))
    return found


def _excerpt(chapter, cell, own, known):
    def wrong(line, message):
        return BookError(chapter.path, cell.line + line - 1, message)

    for statement in own:
        if not _is_definition(statement.node):
            raise wrong(
                statement.node.lineno,
                "a cell with the tag `copy` only defines functions; what it runs belongs into "
                "another cell",
            )
    names = tuple(s.node.name for s in own if isinstance(s.node, _DEFINITIONS))
    if not names:
        raise wrong(1, "a cell with the tag `copy` defines no function")
    before = "\n".join(chapter.text.split("\n")[: cell.line - 1]).rpartition("```{code-cell}")[0]
    paragraph = " ".join(before.rstrip().rpartition("\n\n")[2].split())
    if not paragraph.startswith(LEAD):
        raise wrong(1, f'above a cell with the tag `copy` one paragraph begins with "{LEAD}"')
    needed, asked = set(), {name for statement in own for name in statement.uses}
    while asked:
        name = asked.pop()
        if name not in known and not hasattr(builtins, name):
            raise wrong(1, f"{names[0]} uses {name}, which no cell above defines")
        for statement in known.get(name, ()):
            if statement in own or statement in needed:
                continue
            if not _is_definition(statement.node):
                raise wrong(
                    1,
                    f"{names[0]} uses {name}, a value of this chapter's run, which readers do not "
                    "copy; make it an argument",
                )
            needed.add(statement)
            asked |= statement.uses
    used = {name for statement in needed.union(own) for name in statement.uses}
    rest = sorted(needed, key=lambda statement: statement.place)
    imports = tuple(_trimmed(s.node, used) for s in rest if _is_import(s.node))
    groups = [imports, *((s.code,) for s in rest if not _is_import(s.node))]
    takes = paragraph.removeprefix(LEAD).strip()
    statements = tuple(filter(None, groups))
    return Excerpt(cell.position, cell.line, names, takes, statements, _python(cell).strip("\n"))


def _python(cell):
    """A cell's code, without the line that runs it in all processes."""
    return re.sub(r"\A%%processes\b.*", "", cell.source)


def _statements(cell):
    """The statements of a cell; none of a cell with another magic than `%%processes`."""
    source = _python(cell)
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    lines = source.split("\n")
    statements = []
    for node in tree.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        code = "\n".join(lines[first - 1 : node.end_lineno])
        statements.append(_Statement((cell.position, first), node, code, _globals(code)))
    return statements


def _globals(code):
    """The names that code takes from around it."""
    names = set()

    def visit(table):
        for symbol in table.get_symbols():
            is_top = table.get_type() == "module"
            if symbol.is_referenced() and (is_top or symbol.is_global()):
                names.add(symbol.get_name())
        for child in table.get_children():
            visit(child)

    visit(symtable.symtable(code, "<cell>", "exec"))
    return frozenset(names)


def _bind(statement, known):
    """Add a statement to the names that it binds, or to which it adds something, as
    `f.defvjp(forward, backward)` does.
    """
    node = statement.node
    if isinstance(node, _DEFINITIONS):
        bound = [node.name]
    elif _is_import(node):
        bound = [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    elif base := _completed(node):
        known[base] = (*known.get(base, ()), statement)
        return
    else:
        bound = [
            name.id
            for name in ast.walk(node)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        ]
    for name in bound:
        known[name] = (statement,)


def _is_import(node):
    return isinstance(node, ast.Import | ast.ImportFrom)


def _completed(node):
    """The name of the function to which `f.defvjp(...)` and the like give something; or None."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(base), method))) if method.startswith("def"):
            return base
    return None


def _is_definition(node):
    """Whether it is the same in every program: no value of a run."""
    if isinstance(node, _DEFINITIONS) or _is_import(node) or _completed(node):
        return True
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return _is_constant(node.value)


def _is_constant(value):
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in _OF_FUNCTIONS
    # a number, a text, or what is made of such: `WAYS = (1, -1)`, `LOG2E = 1 / math.log(2)`
    return all(
        _is_number(part) if isinstance(part, ast.Call) else isinstance(part, _LITERAL)
        for part in ast.walk(value)
    )


_LITERAL = (
    ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.operator,
    ast.unaryop, ast.expr_context, ast.Name, ast.Attribute,
)  # fmt: skip


def _is_number(call):
    """Whether it is a call such as `math.sqrt(2)`, `np.float32(3)` or `P("x")`."""
    return ast.unparse(call.func).partition(".")[0] in ("math", "np", "P", "float", "int")


def _trimmed(node, used):
    """An import, with those of its names alone that are used."""
    names = [a for a in node.names if (a.asname or a.name).partition(".")[0] in used]
    kind = ast.Import(names) if isinstance(node, ast.Import) else None
    text = ast.unparse(kind or ast.ImportFrom(node.module, names, node.level))
    if len(text) <= 79:
        return text
    head, _, tail = text.partition(" import ")
    return f"{head} import (\n    " + ",\n    ".join(tail.split(", ")) + ",\n)"
