"""Perturb the assertions of chapters, one literal or operator at a time, and print what still
passes.

    .venv/bin/python scripts/perturb.py                   all chapters
    .venv/bin/python scripts/perturb.py memory tensor     some

An assertion that holds for another number guards nothing that its number says. So `assert n == 12`
is also tried with 13 and with `!=`, and `assert ratio > 4` with 8, where it stands and right after
it has held. What passes in every run of its line is printed, as `book/x.md:12: assert ratio > 4: 4
to 8`. `tests/book/loose_assertions.txt` has those that were known; exits with 1 where there are
others, and `--write` writes the file anew. Cells that run in several processes are left out.
"""

import argparse
import ast
import copy
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from nbformat.v4 import new_code_cell

from bookbinder.progress import Lines
from bookbinder.read.book import load
from bookbinder.run import runs
from bookbinder.stopping import stoppable

ROOT = Path(__file__).parent.parent
KNOWN = Path("tests") / "book" / "loose_assertions.txt"
_PAIRS = (
    (ast.Eq, ast.NotEq),
    (ast.In, ast.NotIn),  # codespell:ignore
    (ast.Is, ast.IsNot),
)
# The opposite of each operator but the inequalities, whose bounds are perturbed.
OTHER = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
TOLERANCES = ("rtol", "atol", "rel", "abs")
FIRST = """
import builtins
builtins.__passes__ = {}
def __perturbed__(number, tests):
    for n, test in enumerate(tests):
        key = f"{number} {n}"
        if __passes__.get(key, True):
            try:
                __passes__[key] = bool(test())
            except Exception:
                __passes__[key] = False
builtins.__perturbed__ = __perturbed__
"""
LAST = (
    "import json\nprint('perturbed:' + json.dumps([key for key, passes in __passes__.items() if "
    "passes]))"
)


def perturbed(test):
    """Other conditions than an assertion's, each as (what has changed, the condition); `test` is
    its AST.
    """
    others = []

    def change(place, key, value, words):
        """Note the condition with another value at one place: an attribute of a node, or an item of
        a list.
        """
        holder = place if isinstance(place, list) else vars(place)
        old, holder[key] = holder[key], value
        others.append((words, ast.unparse(test)))
        holder[key] = old

    tolerances = {
        id(child)
        for node in ast.walk(test)
        if isinstance(node, ast.keyword) and node.arg in TOLERANCES
        for child in ast.walk(node)
    }
    bounds = {}  # literals of an inequality, with the factor that makes it stricter
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for n, operator in enumerate(node.ops):
                if type(operator) not in OTHER:
                    less = isinstance(operator, ast.Lt | ast.LtE)
                    bounds |= {
                        id(sides[n]): 2 if less else 0.5,
                        id(sides[n + 1]): 0.5 if less else 2,
                    }
    for node in list(ast.walk(test)):
        if isinstance(node, ast.Compare):
            for n, operator in enumerate(node.ops):
                if other := OTHER.get(type(operator)):
                    change(node.ops, n, other(), f"{type(operator).__name__} to {other.__name__}")
        elif (
            isinstance(node, ast.Constant)
            and type(node.value) in (int, float)
            and id(node) not in tolerances
        ):
            if id(node) in bounds:
                value = node.value * bounds[id(node)]
            else:
                value = node.value + 1 if isinstance(node.value, int) else node.value * 1.1
            if value != node.value:
                change(node, "value", value, f"{node.value} to {value:g}")
    return others


def with_perturbations(source, number):
    """A cell's source with the other conditions beside its assertions; and by key what each is:
    (line, text).
    """
    if source.lstrip().startswith("%%"):
        return source, {}
    lines = re.sub(r"(?m)^([%!])", r"#\1", source)  # magics of one line
    kept, texts = source.encode().split(b"\n"), {}
    nodes = [node for node in ast.walk(ast.parse(lines)) if isinstance(node, ast.Assert)]
    # the last first
    nodes.sort(key=lambda node: (node.end_lineno, node.end_col_offset), reverse=True)
    for place, node in enumerate(nodes):
        if any(
            isinstance(inner, ast.NamedExpr | ast.Await | ast.Yield) for inner in ast.walk(node)
        ):
            continue
        others = perturbed(copy.deepcopy(node.test))
        key = f"{number}:{place}"
        for n, (words, _) in enumerate(others):
            statement = " ".join(ast.unparse(node.test).split())
            texts[f"{key} {n}"] = node.lineno, f"assert {statement}: {words}"
        tests = ", ".join(f"lambda: {condition}" for _, condition in others)
        line = kept[node.end_lineno - 1]
        end = node.end_col_offset
        kept[node.end_lineno - 1] = (
            line[:end] + f"; __perturbed__({key!r}, [{tests}])".encode() + line[end:]
        )
    return b"\n".join(kept).decode(), texts


def planned(book, chapter):
    """The run of a chapter with its perturbed assertions; and what each is, by key: (line,
    text).
    """
    run = runs.of_chapter(book, chapter)
    places = {cell.source: cell.line for cell in chapter.cells}
    cells, texts = [new_code_cell(FIRST)], {}
    for number, cell in enumerate(run.notebook.cells):
        source, more = with_perturbations(cell.source, number)
        first = places.get(cell.source, 1) - 1 - (len(cell.source) - len(cell.source.lstrip("\n")))
        texts |= {key: (first + line, text) for key, (line, text) in more.items()}
        cells.append(new_code_cell(source, metadata=cell.metadata))
    notebook = copy.deepcopy(run.notebook)
    notebook.cells = [*cells, new_code_cell(LAST)]
    place = run.place.parent.with_name("perturbed") / chapter.name
    name, key = f"{chapter.name}, perturbed", f"perturbed {run.key}"
    return replace(run, name=name, place=place, notebook=notebook, key=key), texts


def survivors(report, texts):
    """What still passed, as (line, text), in order."""
    cells = runs.outputs(report).cells
    output = "".join(part.get("text", "") for part in cells[-1].outputs)
    keys = json.loads(output.partition("perturbed:")[2])
    return sorted(texts[key] for key in keys)


def main(arguments=None):
    """Print what still passes; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chapters", nargs="*", help="names of chapters, such as memory")
    parser.add_argument("--write", action="store_true", help=f"write {KNOWN}")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder of another book")
    options = parser.parse_args(arguments)
    book = load(options.root)
    chapters = [chapter for chapter in book.chapters if chapter.runs]
    if unknown := set(options.chapters) - {chapter.name for chapter in chapters}:
        names = ", ".join(chapter.name for chapter in chapters)
        parser.error(f"no chapter with code is called {min(unknown)!r}; there are {names}")
    chosen = [
        chapter for chapter in chapters if not options.chapters or chapter.name in options.chapters
    ]
    plans = [planned(book, chapter) for chapter in chosen]
    with stoppable() as stop:
        reports = runs.run([run for run, _ in plans], progress=Lines(), stop=stop, fresh=True)
    file = options.root / KNOWN
    known = set(file.read_text("utf-8").splitlines()) if file.exists() else set()
    passing, failed = [], []
    for chapter, report, (_, texts) in zip(chosen, reports, plans, strict=True):
        if not report.ok:
            failed.append(
                f"{chapter.path}: does not run with its assertions perturbed: "
                f"{report.data['message']}"
            )
            continue
        for line, text in survivors(report, texts):
            passing.append(f"{chapter.path}: {text}")
            if passing[-1] not in known or options.write:
                print(f"{chapter.path}:{line}: {text}")
    print(*failed, sep="\n", end="\n" * bool(failed))
    new = [entry for entry in passing if entry not in known]
    print(f"{len(passing)} other conditions pass, {len(new)} of them not in {KNOWN.name}")
    if options.write:
        file.write_text("".join(f"{entry}\n" for entry in sorted(set(passing))), "utf-8")
    return 1 if failed or (new and not options.write) else 0


if __name__ == "__main__":
    sys.exit(main())
