"""scripts/perturb.py: which other conditions an assertion is tried with, and what is said of a
small book.
"""

import ast
import importlib.util
import subprocess
import sys

import pytest
from places import ROOT
from tiny_book import TinyBook, chapter

pytestmark = pytest.mark.reads("src", "scripts/perturb.py")

SCRIPT = ROOT / "scripts" / "perturb.py"
spec = importlib.util.spec_from_file_location("perturb", SCRIPT)
perturb = importlib.util.module_from_spec(spec)
spec.loader.exec_module(perturb)


@pytest.mark.parametrize(
    ("condition", "others"),
    [
        ("n == 12", {"n != 12", "n == 13"}),
        ("x > 4", {"x > 8"}),
        ("4 < x", {"8 < x"}),
        ("1.5 < x <= 3", {"3.0 < x <= 3", "1.5 < x <= 1.5"}),
        ("x < 0.5", {"x < 0.25"}),
        ("a in b and not c", {"a not in b and (not c)"}),
        ("np.allclose(a, 2.0 * b, rtol=1e-5)", {"np.allclose(a, 2.2 * b, rtol=1e-05)"}),
        ("ok", set()),
    ],
)
def test_the_conditions_that_are_tried(condition, others):
    assert {text for _, text in perturb.perturbed(ast.parse(condition, mode="eval").body)} == others


def test_lines_stay_where_they_are_and_the_rest_of_a_cell_too():
    source = (
        'x = "é"; assert len(x) == 1, "no"  # one\nif x:\n    assert (x ==\n            '
        '"é")\n%time x\n'
    )
    text, others = perturb.with_perturbations(source, 3)
    assert [line.partition("; __perturbed__")[0] for line in text.split("\n")] == [
        'x = "é"; assert len(x) == 1, "no"',
        "if x:",
        "    assert (x ==",
        '            "é")',
        "%time x",
        "",
    ]
    assert text.split("\n")[0].endswith("  # one")
    assert {line for line, _ in others.values()} == {1, 3} and len(others) == 3
    assert perturb.with_perturbations("%%processes\nassert 1 == 1", 0) == (
        "%%processes\nassert 1 == 1",
        {},
    )


CELL = """
    for n in (1, 2):
        assert n <= 2
        assert n >= 0 * 5
        assert n == 1 or n == 2
"""


@pytest.mark.slow
def test_what_passes_in_every_run_of_its_line_is_printed_and_is_a_fault_once_it_is_new(tmp_path):
    book = TinyBook(tmp_path)
    book.write("book/two.md", chapter("Two", CELL, "assert len({n}) == 1"))

    def run(*options):
        command = [sys.executable, SCRIPT, "--root", tmp_path, "two", *options]
        return subprocess.run(command, capture_output=True, text=True)

    done = run()
    line = next(
        n
        for n, text in enumerate((tmp_path / "book/two.md").read_text().split("\n"), 1)
        if "0 * 5" in text
    )
    assert done.stdout.splitlines() == [
        f"book/two.md:{line}: assert n >= 0 * 5: 5 to 6",
        "1 other conditions pass, 1 of them not in loose_assertions.txt",
    ], done.stderr
    assert done.returncode == 1
    (tmp_path / "tests/book").mkdir(parents=True)
    assert run("--write").returncode == 0 and run().returncode == 0
    assert (
        tmp_path / "tests/book/loose_assertions.txt"
    ).read_text() == "book/two.md: assert n >= 0 * 5: 5 to 6\n"
    book.write("book/two.md", chapter("Two", "assert 1 == 2"))
    broken = run()
    assert broken.returncode == 1 and "book/two.md: does not run" in broken.stdout
    assert "no chapter with code is called 'three'; there are one, two" in run("three").stderr
