"""Run a chapter as its reader would, and every wrong answer to its exercises as well.

Used by test_book.py, in a process of its own because a chapter asks for devices of its own:
`python run_exercises.py arrays` prints, as JSON, for each exercise what its stub printed and what the strict
check said to the stub, to each wrong answer, and to the solution.
"""

import ast
import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell
from wrong_answers import WRONG_ANSWERS

from bookbinder.book import load
from shardlab.processes import ProcessFailure

ROOT = Path(__file__).parent.parent


def sections(chapter):
    """The chapter's cells, each with what it belongs to: ("exercise" or "solution", label), or (None, None)."""
    lines = chapter.text.splitlines()
    labels = {
        n: (kind, label)
        for n, line in enumerate(lines, 1)
        for kind, label in re.findall(r"^`{3,}\{(exercise|solution)-start\}(?: ([\w-]+)$)?", line)
    }
    for n, (kind, _) in labels.items():
        if kind == "exercise":
            labels[n] = (kind, re.match(r":label: (\S+)", lines[n])[1])
    ends = [n for n, line in enumerate(lines, 1) if re.match(r"`{3,}\{(exercise|solution)-end\}", line)]
    for cell in chapter.cells:
        start = max((n for n in labels if n < cell.line), default=None)
        inside = start is not None and not any(start < end < cell.line for end in ends)
        yield cell, labels[start] if inside else (None, None)


def run(code, names):
    """Run code; returns what it printed."""
    printed, code = io.StringIO(), TransformerManager().transform_cell(code)
    with redirect_stdout(printed):
        exec(compile(code, "<cell>", "exec"), names)
    return printed.getvalue()


def verdict(code, names):
    """What running code comes to: "accepted", or the name of the error."""
    try:
        run(code, names)
    except ProcessFailure as error:  # what the processes say, if they all say the same
        said = {outcome.error.split(":")[0] for outcome in error.outcomes}
        return said.pop() if len(said) == 1 else str(error)
    except Exception as error:
        return type(error).__name__
    return "accepted"


def main(name):
    InteractiveShell.instance()  # before the first cell, so that start() has something to offer %%processes to
    names, found = {"__name__": "__main__", "get_ipython": InteractiveShell.instance}, {}
    cells = list(sections(load(ROOT).chapter(name)))
    for cell, (kind, label) in cells:
        if kind == "solution" and "strict" not in found[label]:
            # The solution's own strict check, put to the stub and to the wrong answers first.
            magic, source = re.match(r"(%%processes[^\n]*\n)?(.*)", cell.source, re.DOTALL).groups(default="")
            statements = map(ast.unparse, ast.parse(source).body)
            checks = [s for s in statements if re.match(r"(with .*:\n\s+)?check\(.*strict=True", s)]
            strict = "\n".join(checks)
            found[label]["strict"] = strict
            found[label]["stub"] = verdict(magic + strict, names)
            found[label]["wrong"] = {
                title: verdict(f"{magic}{answer}\n{strict}", names)
                for title, answer in WRONG_ANSWERS.get(label, {}).items()
            }
            found[label]["solution"] = verdict(cell.source, names)
            continue
        printed = run(cell.source, names)
        if kind == "exercise":
            found.setdefault(label, {"printed": ""})["printed"] += printed
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
