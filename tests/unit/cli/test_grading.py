"""`shardlab grade` on a bad day: what one participant returns costs nobody else a mark."""

import csv
import json
import os
import subprocess
import sys

import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook, writes

from shardlab._arguments import MOST_SAID
from shardlab.cli import grade

pytestmark = [
    pytest.mark.reads("src/shardlab"),
    # of jupyter_client, in this process
    pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning"),
]

# Checks of a class of this size need no JAX.
CHECK = "def check(answer):\n    print('Right: it is 4.' if answer == 4 else 'Not solved yet')"
RIGHT = {"verdict": "right", "why": ""}
FLOOD = "while True: print('x' * 10_000)"


def of(*answers):
    """A notebook with a check, and an answer to each of the exercises e0, e1 and so on."""
    cells = [f"# Your answer to exercise e{n}\n{code}" for n, code in enumerate(answers)]
    return new_notebook(cells=[new_code_cell(code) for code in (CHECK, *cells)])


@pytest.fixture
def graded(run, tmp_path, monkeypatch):
    """Grade notebooks, each a notebook or the text of a file, beside a good one that comes last."""
    monkeypatch.chdir(tmp_path)

    def of_class(*options, status=0, **notebooks):
        notebooks |= {"zoe": of("check(4)")}
        for name, notebook in notebooks.items():
            text = notebook if isinstance(notebook, str) else writes(notebook)
            (tmp_path / f"{name}.ipynb").write_text(text)
        files = [f"{name}.ipynb" for name in notebooks]
        got, out, err = run("grade", "--json", *options, *files)
        assert (got, err) == (status, "") and json.loads(out)["zoe.ipynb"] == {"e0": RIGHT}
        return {name.removesuffix(".ipynb"): of for name, of in json.loads(out).items()}

    return of_class


def changed(change):
    """The text of a good notebook after a change of its JSON."""
    notebook = json.loads(writes(of("check(4)")))
    change(notebook)
    return json.dumps(notebook)


SENDS = (
    "from IPython import get_ipython as ip; k = ip().kernel; "
    "k.session.send(k.iopub_socket, {!r}, {!r}, parent=k.get_parent())\ncheck(4)"
)


@pytest.mark.parametrize(
    "notebook",
    [
        of(SENDS.format("stream", {"name": "stdout"})),
        of(SENDS.format("stream", {"name": "stdout", "text": None})),
        of(SENDS.format("error", {"ename": 5})),
        of(SENDS.format("display_data", {})),
        of(SENDS.format("status", {})),
        changed(lambda n: n["cells"].append(n["cells"][0] | {"source": None})),
        changed(lambda n: n["cells"].append({"source": "1"})),
        changed(lambda n: n["cells"].append(5)),
        changed(lambda n: n["cells"][1]["source"].append("\n'\ud800'")),
        changed(lambda n: n["cells"][1]["metadata"].update(tags=5)),
        changed(lambda n: n["cells"][1].update(metadata=None)),
        changed(lambda n: n.update(metadata={"kernelspec": 5})),
        "\ufeff" + writes(of("check(4)")),
    ],
)
def test_what_is_broken_beside_an_answer_costs_no_mark(graded, notebook):
    assert graded(bob=notebook)["bob"] == {"e0": RIGHT}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no notebook"),
        ("[" * 100_000, "is no notebook"),
        ('{"cells": 5}', "is no notebook"),
        ("{}", "is no notebook"),
        (writes(new_notebook()), "has no cell that begins with"),
    ],
)
def test_a_notebook_that_cannot_be_read_is_a_row(graded, text, says):
    whole = graded(bob=text, status=1)["bob"][grade.WHOLE]
    assert whole["verdict"] == grade.ERROR and says in whole["why"]


def test_what_is_no_file_is_a_row_and_does_not_wait(graded, tmp_path):
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "folder.ipynb").mkdir()
    rows = graded("pipe.ipynb", "folder.ipynb", "none.ipynb", "/dev/zero", status=1)
    whys = [row[grade.WHOLE]["why"] for row in rows.values() if grade.WHOLE in row]
    assert len(whys) == 4 and sum("not a file" in why for why in whys) == 3


def test_output_has_a_limit(graded):
    row = graded(bob=of("check(4)", FLOOD, "check(4)"))["bob"]
    assert row["e0"] == RIGHT
    assert "1,000,000 characters" in row["e1"]["why"] and "no cell after it" in row["e2"]["why"]


# by the descriptor, past what Python writes, from a child that outlives its parent's cell
PAST_PYTHON = """
import os
if not (child := os.fork()):
    for _ in range(100): os.write(1, b"z" * 65536), os.write(2, b"z" * 65536)
    os._exit(0)
os.waitpid(child, 0)
check(4)
"""


@pytest.mark.parametrize("flood", [FLOOD, PAST_PYTHON], ids=["printed", "past Python"])
def test_a_flood_reaches_neither_output_of_the_command(tmp_path, flood):
    """In a process of its own, whose outputs a kernel would inherit."""
    (tmp_path / "flood.ipynb").write_text(writes(of(flood)))
    command = [sys.executable, "-m", "shardlab", "grade", "--json", "flood.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == "" and list(json.loads(done.stdout)["flood.ipynb"]) == ["e0"]


def test_what_an_answer_leaves_running_is_ended(graded, tmp_path):
    leaves = (
        "import subprocess, sys, socket\n"
        "code = 'import socket, time; s = socket.create_server((\"\", 0)); time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-c', code, 'left-by-an-answer', "
        f"{str(tmp_path)!r}], start_new_session=True, env={{}})\n"
        "check(4)"
    )
    assert graded(bob=of(leaves))["bob"] == {"e0": RIGHT}
    marks = ["left-by-an-answer", str(tmp_path)]
    left = [p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [])[-2:] == marks]
    assert not left


HIDES = "from IPython import get_ipython as ip\n"


@pytest.mark.parametrize(
    ("raises", "name"),
    [
        ("def __str__(self): raise SystemExit", "SystemExit"),
        ("def __str__(self): raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def __str__(self): return '\\ud800'", "UnicodeEncodeError"),
        (f"{HIDES}    ip().showtraceback = lambda *a, **k: None", "Bad"),
        (f"{HIDES}    ip().set_custom_exc((Exception,), lambda *a, **k: None)", "Bad"),
    ],
)
def test_an_error_that_cannot_be_shown_is_an_error(graded, raises, name):
    verdict = graded(bob=of(f"class Bad(Exception):\n    {raises}\nraise Bad"))["bob"]["e0"]
    assert verdict["verdict"] == "error" and verdict["why"].startswith(name)


def test_a_group_of_errors_is_an_error(graded):
    says = "raise ExceptionGroup('two', [ValueError(1)])"
    verdict = graded(bob=of(says))["bob"]["e0"]
    assert verdict == {"verdict": "error", "why": "ExceptionGroup: two (1 sub-exception)"}


def test_kernels_open_no_ports(graded):
    listens = "import ipykernel\ncheck(4 if '\"ipc\"' in ipykernel.get_connection_info() else 0)"
    assert graded(bob=of(listens))["bob"] == {"e0": RIGHT}


def test_a_table_grows_and_only_what_is_new_or_changed_runs_again(graded, tmp_path):
    counts = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')\ncheck(4)"
    ran = tmp_path / "ran"
    bob = writes(of(counts))
    first = graded("--out", "marks.csv", bob=bob)
    assert graded("--out", "marks.csv", bob=bob) == first and ran.read_text() == "x"
    graded("--out", "marks.csv", bob=bob + " ")
    assert ran.read_text() == "xx"
    with open(tmp_path / "marks.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted((row["notebook"], row["exercise"], row["verdict"]) for row in rows) == [
        ("bob.ipynb", "e0", "right"),
        ("zoe.ipynb", "e0", "right"),
    ]


def test_an_answer_that_ends_the_grader_does_so_once(tmp_path):
    (tmp_path / "bob.ipynb").write_text(writes(of("import os; os.kill(os.getppid(), 9)")))
    (tmp_path / "zoe.ipynb").write_text(writes(of("check(4)")))
    command = [sys.executable, "-m", "shardlab", "grade", "--json", "--out", "marks.csv"]
    command += ["bob.ipynb", "zoe.ipynb"]
    ends = [subprocess.run(command, cwd=tmp_path, capture_output=True) for _ in range(2)]
    assert [end.returncode for end in ends] == [-9, 1]
    rows = json.loads(ends[1].stdout)
    assert "grading ended" in rows["bob.ipynb"][grade.WHOLE]["why"]
    assert rows["zoe.ipynb"] == {"e0": RIGHT}


def test_a_table_that_a_spreadsheet_has_saved_is_continued(graded, tmp_path):
    first = graded("--out", "marks.csv")
    table = (tmp_path / "marks.csv").read_bytes()
    (tmp_path / "marks.csv").write_bytes(b"\xef\xbb\xbf" + table)
    assert graded("--out", "marks.csv", bob=of("check(4)"))["zoe"] == first["zoe"]


@pytest.mark.parametrize("options", [(), ("--original", "original.ipynb")])
@pytest.mark.parametrize("codes", [("check(4)", "..."), ("check(3)", "check(4)")])
def test_of_two_cells_for_one_exercise_the_best_counts(graded, tmp_path, options, codes):
    """As when a participant has copied the cell to try something in it."""
    (tmp_path / "original.ipynb").write_text(writes(of("check(...)")))
    bob = of(*codes)
    bob.cells[2].source = bob.cells[2].source.replace("e1", "e0")
    assert graded(*options, bob=bob)["bob"] == {"e0": RIGHT}


def test_the_name_of_an_exercise_is_short_in_a_table(graded):
    label = "e" * 10_000
    bob = of("check(4)")
    bob.cells[1].source = bob.cells[1].source.replace("e0", label)
    assert graded(bob=bob)["bob"] == {label: RIGHT}
    text = grade.table({"bob.ipynb": {label: RIGHT | {"verdict": grade.WRONG, "why": "no"}}})
    assert max(map(len, text.splitlines())) < 2 * MOST_SAID


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("name,points\n", "its columns are not notebook, exercise"),
        ("notebook,exercise,verdict,why,digest\na,b\n", "marks.csv:2: "),
        ("notebook,exercise,verdict,why,digest\na,b,good,,c\n", "'good' is no verdict"),
    ],
)
def test_a_table_that_is_none_is_refused_and_kept(refused, tmp_path, monkeypatch, table, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "marks.csv").write_text(table)
    (tmp_path / "zoe.ipynb").write_text(writes(of("check(4)")))
    assert says in refused("grade", "--out", "marks.csv", "zoe.ipynb")
    assert (tmp_path / "marks.csv").read_text() == table


def test_reasons_are_plain_and_short_and_no_formula(graded, tmp_path):
    says = "class NotSolved(Exception): pass\nraise NotSolved('=1+1\\x1b[2J\\x07' + 'long' * 9999)"
    why = graded("--out", "marks.csv", bob=of(says))["bob"]["e0"]["why"]
    assert why.startswith("=1+1") and why.isprintable() and len(why) == MOST_SAID
    assert ",'=1+1" in (tmp_path / "marks.csv").read_text()
    again = graded("--out", "marks.csv", bob=of(says))["bob"]["e0"]["why"]
    assert again == why


def test_names_are_as_long_as_makes_them_unique():
    right = {"e0": RIGHT}
    text = grade.table({"a/x/n.ipynb": right, "b/x/n.ipynb": right, "m\x1b[2J.ipynb": right})
    rows = [line.split()[0] for line in text.splitlines() if line.endswith("1 of 1")]
    assert rows == ["a/x/n.ipynb", "b/x/n.ipynb", "m.ipynb"]


def test_an_answer_to_another_chapters_exercise_costs_no_mark(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "original.ipynb").write_text(writes(of("check(...)")))
    (tmp_path / "bob.ipynb").write_text(writes(of("check(4)", "check(4)")))
    other = of("check(4)")
    other.cells[1].source = other.cells[1].source.replace("e0", "f0")
    (tmp_path / "other.ipynb").write_text(writes(other))
    files = ["bob.ipynb", "other.ipynb"]
    status, out, err = run("grade", "--json", "--original", "original.ipynb", *files)
    rows = json.loads(out)
    assert status == 1 and rows["bob.ipynb"] == {"e0": RIGHT}
    says = "the original has no exercise 'e1'; did you mean 'e0'?; its cell does not run"
    assert err == f"bob.ipynb: {says}\n"
    assert "no exercise 'f0'" in rows["other.ipynb"][grade.WHOLE]["why"]


def test_a_terminal_in_ascii_shows_the_table(tmp_path):
    (tmp_path / "zoë.ipynb").write_text(writes(of("raise ValueError('ä')")))
    end = subprocess.run(
        [sys.executable, "-m", "shardlab", "grade", "zoë.ipynb"],
        cwd=tmp_path,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert end.returncode == 0 and rb"zo\xeb.ipynb" in end.stdout, end
