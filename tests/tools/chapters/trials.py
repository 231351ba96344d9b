"""Try wrong answers to a chapter's exercises where a reader would type them: between the task and
its solution. When all cells have run, the solutions are tried again, the last one first.

    .venv/bin/python tests/tools/chapters/trials.py arrays

runs a chapter with the Python that builds the book, and prints what the check of each exercise said
to the stub, to each wrong answer, and to its solution when it was run again at the end.
`test_colab.py` does the same in Colab's environment, when a notebook runs the second time.
"""

import ast
import copy
import json
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from nbformat.v4 import new_code_cell, new_notebook

from bookbinder import disk
from bookbinder.notebook import notebooks
from bookbinder.progress import for_this_terminal
from bookbinder.read import address, package
from bookbinder.read.book import load
from bookbinder.run import environments, runs, stale
from bookbinder.stopping import stoppable

ROOT = Path(__file__).resolve().parents[3]  # run by itself, this finds nothing of other rooms
# For each exercise, answers that its check must refuse.
FILES = sorted((ROOT / "tests" / "book" / "wrong_answers").glob("*.toml"))
WRONG_ANSWERS = {
    label: answers
    for file in FILES
    for label, answers in tomllib.loads(file.read_text("utf-8")).items()
}

# Runs in the kernel, with `shell`, `label`, `strict` and `answers`; prints the verdicts as JSON.
TRIAL = """
import io, json
from contextlib import redirect_stderr, redirect_stdout

def verdict(code):
    code = shell.input_transformer_manager.transform_cell(code)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            exec(compile(code, "<answer>", "exec"), shell.user_ns)
    except Exception as error:
        name = type(error).__name__
        if name != "ProcessFailure":
            return name
        said = {outcome.error.split(":")[0] for outcome in error.outcomes}  # what the processes say, if all the same
        return said.pop() if len(said) == 1 else str(error)
    return "accepted"

verdicts = {title: verdict(answer + strict) for title, answer in answers.items()}
print(json.dumps({"label": label, "strict": strict, "verdicts": verdicts}))
"""  # noqa: E501


AGAIN = "again"  # the label of the trial at the end


def sections(chapter):
    """The chapter's cells, each with what it belongs to: ("exercise" or "solution", label), or
    (None, None).
    """
    lines = chapter.text.splitlines()
    labels = {
        n: (kind, label)
        for n, line in enumerate(lines, 1)
        for kind, label in re.findall(r"^`{3,}\{(exercise|solution)-start\}(?: ([\w-]+)$)?", line)
    }
    for n, (kind, _) in labels.items():
        if kind == "exercise":
            labels[n] = (kind, re.match(r":label: (\S+)", lines[n])[1])
    ends = [
        n for n, line in enumerate(lines, 1) if re.match(r"`{3,}\{(exercise|solution)-end\}", line)
    ]
    for cell in chapter.cells:
        start = max((n for n in labels if n < cell.line), default=None)
        inside = start is not None and not any(start < end < cell.line for end in ends)
        yield cell, labels[start] if inside else (None, None)


def is_of_chapter(cell):
    """Whether it is a cell of code that the chapter has too, and not only the assertions of the
    cell before it.
    """
    return (
        cell.cell_type == "code"
        and cell.source.strip()
        and notebooks.CHECKS not in cell.metadata.get("tags", ())
    )


def with_trials(chapter, notebook):
    """A copy of a chapter's notebook that tries the stub and the wrong answers before each
    solution, and all solutions once more at the end, in the last pass.

    The notebook may begin with cells that the chapter has not.
    """
    notebook = copy.deepcopy(notebook)
    codes = [cell for cell in notebook.cells if is_of_chapter(cell)]
    places = dict(zip(chapter.cells, codes[len(codes) - len(chapter.cells) :], strict=True))
    solutions = {}
    for cell, (kind, label) in sections(chapter):
        if kind == "solution":
            solutions.setdefault(label, []).append(cell)
    for label, cells in solutions.items():
        # The solution's own strict check, put to the stub and to the wrong answers first. A cell
        # that readers copy has none: it stands in the next one.
        cell, strict = cells[0], ""
        for each in cells:
            magic, source = re.match(r"(%%processes[^\n]*\n)?(.*)", each.source, re.DOTALL).groups(
                default=""
            )
            statements = map(ast.unparse, ast.parse(source).body)
            strict = strict or "\n".join(
                s for s in statements if re.match(r"(with .*:\n\s+)?check\(.*strict=True", s)
            )
            if strict:
                break
        answers = {"stub": magic} | {
            title: f"{magic}{code}\n" for title, code in WRONG_ANSWERS.get(label, {}).items()
        }
        at = next(n for n, other in enumerate(notebook.cells) if other is places[cell])
        notebook.cells.insert(at, _trial(label, strict, answers))
    again = {
        f"{label} {number}": cell.source
        for label, cells in reversed(solutions.items())
        for number, cell in enumerate(cells)
    }
    notebook.cells.append(_trial(AGAIN, "", again))
    return notebook


def _trial(label, strict, answers):
    names = f"shell=get_ipython(), label={label!r}, strict={strict!r}, answers={answers!r}"
    return new_code_cell(f"exec({TRIAL!r}, dict({names}))", metadata={"last_run_only": True})


def verdicts(chapter, executed):
    """What came of each exercise of a notebook that was run with trials.

    Returns:
      For each label: `printed`, what its own cells printed; `strict`, the check that was put to the
      answers; `stub`, what that came to; `wrong`, the same for each wrong answer: "WrongAnswer", or
      "accepted"; `again`, the same for each cell of its solution at the end.
    """
    found, codes, again = {}, [], {}
    for cell in executed.cells:
        if not is_of_chapter(cell):
            continue
        text = "".join(
            output.get("text", "") for output in cell.outputs if output.output_type == "stream"
        )
        if cell.metadata.get("last_run_only"):
            trial = json.loads(text)
            if trial["label"] == AGAIN:
                again = trial["verdicts"]
                continue
            found.setdefault(trial["label"], {"printed": ""}).update(
                strict=trial["strict"], stub=trial["verdicts"].pop("stub"), wrong=trial["verdicts"]
            )
        else:
            codes.append(text)
    for (_, (kind, label)), text in zip(
        sections(chapter), codes[len(codes) - len(chapter.cells) :], strict=True
    ):
        if kind == "exercise":
            found.setdefault(label, {"printed": ""})["printed"] += text
    for label, one in found.items():
        one["again"] = [said for name, said in again.items() if name.split()[0] == label]
    return found


def notebook_key(book, chapter):
    """A digest of what the run of a chapter's notebook as in Colab depends on and that is known
    before.

    That is its set-up, its code, the wrong answers to its exercises, Colab's packages, and what
    installs shardlab.
    """
    code = [cell for cell in chapter.notebook.cells if cell.cell_type == "code"]
    code = with_trials(chapter, new_notebook(cells=code)).cells
    imported = package.of(ROOT)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return disk.digest(
        notebooks.set_up(chapter, address.of(book.config), "a commit"),
        *(cell.source for cell in code),
        stale.RUNNER.read_text("utf-8"),
        environments.COLAB.read_text("utf-8"),
        json.dumps(
            [
                imported.not_in_colab,
                project["project"],
                project["build-system"],
                project["tool"]["hatch"],
            ]
        ),
        imported.data_files(ROOT),
    )


def run_here(book, chapter):
    """The run of a chapter with trials, with the Python that builds the book."""
    plain = runs.of_chapter(book, chapter, column="exercises")
    notebook = with_trials(chapter, plain.notebook)
    key = disk.digest(plain.key, *(cell.source for cell in notebook.cells))
    return replace(plain, notebook=notebook, key=key)


def main(name):
    book = load(ROOT)
    chapter = book.chapter(name)
    with stoppable() as stop:
        one = run_here(book, chapter)
        (report,) = runs.run([one], progress=for_this_terminal(), stop=stop)
    if not report.ok:
        sys.exit(f"{report.data['error']}: {report.data['message']}\n{report.data['traceback']}")
    print(json.dumps(verdicts(chapter, runs.outputs(report)), indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
