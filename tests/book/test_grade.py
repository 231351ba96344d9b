"""Notebooks for a class: nothing in them shows an answer, and a class of right and wrong answers is
graded rightly.
"""

import json
import re
import subprocess
import sys
import tomllib

import nbformat
import pytest
from places import ROOT
from repository import BOOK

from bookbinder.notebook import notebooks
from shardlab.cli import grade

pytestmark = [
    pytest.mark.slow,
    pytest.mark.reads("book", "src", "_config.yml", "_toc.yml", "pyproject.toml", "tests/book"),
]

CHAPTER = "arrays"
WRONG = tomllib.loads(
    (ROOT / "tests" / "book" / "wrong_answers" / f"{CHAPTER}.toml").read_text("utf-8")
)


@pytest.fixture(scope="module")
def handed_out():
    """The notebook of a chapter for a class."""
    return notebooks.make(BOOK, [BOOK.chapter(CHAPTER)])[f"{notebooks.CLASS}/{CHAPTER}.ipynb"]


def solutions():
    """The chapter's own answers, by exercise, each with the call that checks it as a reader's."""
    found, solution = {}, r"^```\{solution-start\} (\S+)\n(.*?)^```\{solution-end\}"
    for label, text in re.findall(solution, BOOK.chapter(CHAPTER).text, re.MULTILINE | re.DOTALL):
        code = re.search(r"^```\{code-cell\} ipython3\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[
            1
        ]
        found[label] = code.replace(", strict=True", "")
    return found


def returned(handed_out, answers):
    """The notebook as a participant returns it, with code in place of some stubs."""
    notebook = nbformat.reads(handed_out, as_version=4)
    for label, (cell,) in grade.answers(notebook).items():
        if label in answers:
            first, _, stub = cell.source.partition("\n")
            check = re.search(r"^check\(.*\)$", stub, re.MULTILINE)[0]
            code = answers[label]
            cell.source = "\n".join([first, code] if "check(" in code else [first, code, check])
    return notebook


def test_a_notebook_for_a_class_shows_no_answer_and_all_the_rest(handed_out):
    """Of each solution no line of code is left but those of the stub, and the texts are those of
    the other notebook.
    """
    own = nbformat.reads(handed_out, as_version=4)
    other = nbformat.reads(
        notebooks.make(BOOK, [BOOK.chapter(CHAPTER)])[f"{CHAPTER}.ipynb"], as_version=4
    )
    code = "\n".join(cell.source for cell in own.cells if cell.cell_type == "code")
    for label, solution in solutions().items():
        stub = grade.answers(own)[label][0].source
        for line in {line.strip() for line in solution.splitlines() if len(line.strip()) > 12} - {
            *map(str.strip, stub.splitlines())
        }:
            assert line not in stub and (
                line in BOOK.chapter(CHAPTER).text.split("## Exercises")[0] or line not in code
            ), line
    assert not any("Solution of exercise" in cell.source for cell in own.cells)
    assert not re.search(r"\bExercise\($", code, re.MULTILINE) and "Exercise(value" not in code
    texts = [
        cell.source
        for cell in other.cells
        if cell.cell_type == "markdown" and "Solution of exercise" not in cell.source
    ]
    assert [cell.source for cell in own.cells if cell.cell_type == "markdown"][1:] == texts[
        1:
    ]  # the first has its own button


def test_every_chapter_with_exercises_has_one():
    made = notebooks.make(BOOK)
    with_exercises = {c.name for c in BOOK.chapters if c.runs and "{exercise-start}" in c.text}
    assert {
        name.removesuffix(".ipynb").partition("/")[2] for name in made if "/" in name
    } == with_exercises
    for name in with_exercises:
        labels = re.findall(
            r"^`{3,}\{exercise-start\}.*\n:label: (\S+)$", BOOK.chapter(name).text, re.MULTILINE
        )
        assert (
            list(grade.answers(nbformat.reads(made[f"class/{name}.ipynb"], as_version=4))) == labels
        )


def test_a_class_is_graded_as_it_should_be(handed_out, tmp_path):
    right, labels = solutions(), list(WRONG)
    first_wrong = {label: next(iter(answers.values())) for label, answers in WRONG.items()}
    deleted = returned(handed_out, right)
    deleted.cells = [
        cell
        for cell in deleted.cells
        if not cell.source.startswith(f"{notebooks.ANSWER} {labels[0]}:")
    ]
    cheat = returned(handed_out, first_wrong)
    for cell in cheat.cells:  # a participant who changes what checks the answer
        if "b85decode" in cell.source:
            cell.source += (
                "\nfrom shardlab import check as honest\ndef check(*args): print('Right: of "
                "course.')"
            )
    failing = right | {labels[0]: "answer = 1 / 0", labels[1]: "raise SystemExit"}
    answers = {"right": right, "wrong": first_wrong, "empty": {}, "failing": failing}
    participants = {name: returned(handed_out, given) for name, given in answers.items()}
    participants |= {"cheat": cheat, "deleted": deleted}
    (tmp_path / "original.ipynb").write_text(handed_out)
    for name, notebook in participants.items():
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    command = [sys.executable, "-m", "shardlab", "grade", "--json", "--original", "original.ipynb"]
    done = subprocess.run(
        [*command, *(f"{name}.ipynb" for name in participants)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    graded = json.loads(done.stdout)
    verdicts = {
        name.removesuffix(".ipynb"): {k: v["verdict"] for k, v in of.items()}
        for name, of in graded.items()
    }
    every = dict.fromkeys(right, grade.RIGHT)
    assert verdicts["right"] == every and len(every) == 5
    assert verdicts["wrong"] == verdicts["cheat"] == dict.fromkeys(every, grade.WRONG)
    assert verdicts["empty"] == dict.fromkeys(every, grade.OPEN)
    assert verdicts["deleted"] == every | {labels[0]: grade.OPEN}
    assert verdicts["failing"] == every | {labels[0]: grade.ERROR, labels[1]: grade.ERROR}
    assert graded["failing.ipynb"][labels[0]]["why"] == "ZeroDivisionError: division by zero"
    assert all(graded["wrong.ipynb"][label]["why"] for label in every)
    text = grade.table(graded)
    assert (
        f"right.ipynb  {'   +' * len(every)}   {len(every)} of {len(every)}" in text
        and grade.LEGEND in text
    )
