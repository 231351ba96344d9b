"""How the functions that readers take are tested.

In a page the line `% contracts of the book` is replaced by a table: for each chapter with cells to
copy, how many functions they define, how many of these have a contract, and how many inputs are
drawn for them. The contracts are read from the tests (`tests/contracts/test_NAME_contract.py`),
which are not run for it.
"""

import ast
from dataclasses import dataclass

from bookbinder.read import excerpts

FOLDER = "tests/contracts"
_TABLE = "% contracts of the book"


@dataclass(frozen=True)
class Contract:
    """A test of functions that readers take.

    Attributes:
      chapter: where they stand.
      names: of the functions.
      draws: how many inputs a run of the test tries.
      says: what the functions take, as the test says it.
    """

    chapter: str
    names: tuple[str, ...]
    draws: int
    says: str


def setup(app):
    """Called by the extension."""
    app.connect("source-read", _replace)


def _replace(app, docname, source):
    if _TABLE not in source[0]:
        return
    book = app.bookbinder_book
    for path in (book.root / chapter.path for chapter in book.chapters):
        app.env.note_dependency(str(path))
    for path in files(book.root):
        app.env.note_dependency(str(path))
    source[0] = source[0].replace(_TABLE, table(book))


def files(root):
    """The tests that state the contracts of a book, in order."""
    return sorted((root / FOLDER).glob("test_*.py"))


def of_book(root):
    """The contracts that the tests of a book state, in the order of their files."""
    return [
        contract
        for path in files(root)
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
        for contract in _of_test(node)
    ]


def _of_test(node):
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "contract":
            chapter, *names = map(ast.literal_eval, call.args)
            draws = next(ast.literal_eval(k.value) for k in call.keywords if k.arg == "draws")
            says = " ".join((ast.get_docstring(node) or "").split())
            yield Contract(chapter, tuple(names), draws, says)


def table(book):
    """The table of the page, with a sum in its last row."""
    contracts, rows = of_book(book.root), []
    for chapter in book.chapters:
        functions = {
            (chapter.name, name) for cell in excerpts.of_chapter(chapter) for name in cell.names
        }
        if functions:
            own = [c for c in contracts if c.chapter == chapter.name]
            tested = functions & {(c.chapter, name) for c in own for name in c.names}
            row = len(functions), len(tested), sum(c.draws for c in own)
            rows.append((f"{{doc}}`{chapter.name}`", *row))
    sums = [sum(numbers) for numbers in zip(*(row[1:] for row in rows), strict=True)] or [0, 0, 0]
    head = ["chapter | functions to copy | with a contract | inputs drawn", "-|-:|-:|-:"]
    return "\n".join(head + [" | ".join(map(str, row)) for row in [*rows, ("all", *sums)]])
