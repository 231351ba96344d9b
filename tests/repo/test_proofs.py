"""What was proved before is not run again, and is not counted as passed (tests/tools/proofs.py)."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import date, timedelta

import proofs
import pytest
from proofs import ROOT, TURNS

CONFTEST = """
import proofs

def pytest_addoption(parser):
    proofs.add_options(parser)

def pytest_configure(config):
    proofs.configure(config, lambda unit: unit == "chapter one" and "the code of one" or None)
"""
ONE = """
import pytest

@pytest.mark.unit("chapter one")
@pytest.mark.parametrize("number", range(2))
def test_of_a_chapter(number, request):
    request.node.user_properties.append(("read", {"data.txt": "DIGEST"}))

def test_beside_it():
    pass
"""
MARKED = (
    'import pytest\n\npytestmark = pytest.mark.reads("data.txt")\n\ndef test_marked():\n    open("data.txt").close()\n'
)


class Repository:
    """A small repository with tests, in which pytest runs as `make test` has it run."""

    def __init__(self, root):
        self.root, self.day = root, "2026-11-25"
        (root / "tests" / "tools").mkdir(parents=True)
        for name in ("places.py", "proofs.py", "retry.py"):
            shutil.copy(ROOT / "tests" / "tools" / name, root / "tests" / "tools")
        self.write("pytest.ini", "[pytest]\npythonpath = tests/tools\n")
        self.write("tests/conftest.py", CONFTEST)
        self.write("data.txt", "1\n")
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)

    def write(self, name, text):
        (self.root / name).write_text(text)

    def run(self, *options, status=0):
        """Run the tests; returns pytest's closing line without its time."""
        command = [sys.executable, "-m", "pytest", "--rootdir", ".", "-p", "no:cacheprovider", *options]
        environment = os.environ | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "xdist,_hypothesis_pytestplugin",
        }
        environment |= {proofs.DAY: self.day, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        self.said = done.stdout
        return re.fullmatch(r"=+ (.*) in [\d.]+s.* =+", done.stdout.splitlines()[-1])[1]

    def records(self):
        return json.loads((self.root / "tests" / "proofs.json").read_text())

    def wait_for_a_turn(self, unit, turn):
        """Choose a day on which it is a unit's turn to run again, or on which it is no unit's."""
        units = self.records() if unit is None else [unit]
        days = (f"{date(2026, 12, 1) + timedelta(n)}" for n in range(TURNS))
        self.day = next(day for day in days if any(proofs.its_turn(one, day) for one in units) == turn)


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


@pytest.mark.parametrize("processes", ["0", "2"])
def test_what_was_proved_is_said_with_its_day_and_not_run(repository, processes):
    digest = proofs.disk.file_digest(repository.root / "data.txt")
    repository.write("tests/test_one.py", ONE.replace("DIGEST", digest))
    parallel = ("--numprocesses", processes, "--proofs", "use")
    assert repository.run(*parallel) == "3 passed"
    assert repository.records() == {
        "chapter one": {"day": "2026-11-25", "key": repository.records()["chapter one"]["key"], "read": ["data.txt"]},
        "tests/test_one.py": {"day": "2026-11-25", "key": repository.records()["tests/test_one.py"]["key"]},
    }
    repository.wait_for_a_turn(None, False)
    assert repository.run(*parallel) == "3 proved on 2026-11-25"
    repository.write("tests/test_two.py", "def test_two():\n    pass\n")  # test_one.py depends on everything
    first = repository.day
    assert repository.run(*parallel) == "2 passed, 2 proved on 2026-11-25"
    repository.wait_for_a_turn(None, False)
    assert repository.run(*parallel) == f"4 proved from 2026-11-25 to {first}"
    repository.write("data.txt", "2\n")  # which the chapter has read
    assert repository.run(*parallel) == "4 passed"


def test_a_unit_that_is_proved_runs_again_when_it_is_its_turn(repository):
    repository.write("tests/test_one.py", "def test_one():\n    pass\n")
    assert repository.run("--proofs", "use") == "1 passed"
    repository.wait_for_a_turn("tests/test_one.py", True)
    assert repository.run("--proofs", "use") == "1 passed"
    assert repository.records()["tests/test_one.py"]["day"] == repository.day
    days = [f"{date(2026, 1, 1) + timedelta(n)}" for n in range(TURNS)]
    assert sum(proofs.its_turn("page arrays", day) for day in days) == 1
    units = [f"page {name}" for name in "abcdefghijklmnopqrstuvwxyz"]
    assert 2 <= sum(proofs.its_turn(unit, "2026-11-25") for unit in units) <= 10


def test_a_proof_that_is_old_or_made_up_proves_nothing(repository):
    repository.write("tests/test_one.py", "def test_one():\n    pass\n")
    repository.run("--proofs", "use")
    repository.wait_for_a_turn(None, False)
    for key in ("0" * 16, None):
        repository.write("tests/proofs.json", json.dumps({"tests/test_one.py": {"day": "2026-11-25", "key": key}}))
        assert repository.run("--proofs", "use") == "1 passed"
    repository.write("tests/proofs.json", "no JSON")
    assert repository.run("--proofs", "use") == "1 passed"
    repository.write("tests/test_one.py", "def test_one():\n    assert 1 == 2\n")
    assert repository.run("--proofs", "use", status=1) == "1 failed"


def test_what_failed_was_skipped_or_did_not_all_run_is_not_proved(repository):
    text = "import pytest\n\ndef test_good():\n    pass\n\ndef test_bad():\n    {}\n"
    for bad, status in (("assert 1 == 2", 1), ("pytest.skip('for want of a browser')", 0)):
        repository.write("tests/test_one.py", text.format(bad))
        repository.run("--proofs", "use", status=status)
        assert repository.records() == {}
    repository.write("tests/test_one.py", text.format("pass"))
    assert repository.run("--proofs", "use", "-k", "good") == "1 passed, 1 deselected"
    assert repository.run("--proofs", "use", "tests/test_one.py::test_good") == "1 passed"
    assert repository.records() == {}
    assert repository.run("--proofs", "renew", "tests/test_one.py") == "2 passed"
    repository.wait_for_a_turn(None, False)
    assert repository.run("--proofs", "renew", "tests/test_one.py") == "2 passed"
    assert repository.run("tests/test_one.py") == "2 passed"


def test_what_changes_while_its_tests_run_is_not_proved(repository):
    repository.write("tests/test_one.py", "def test_one():\n    open('data.txt', 'w').write('3')\n")
    assert repository.run("--proofs", "use") == "1 passed" and repository.records() == {}


def test_a_file_with_a_mark_depends_on_what_it_names_and_may_read_nothing_else(repository):
    repository.write("tests/test_marked.py", MARKED)
    repository.write("other.txt", "1\n")
    assert repository.run("--proofs", "use") == "1 passed"
    repository.wait_for_a_turn(None, False)
    repository.write("other.txt", "2\n")
    assert repository.run("--proofs", "use") == "1 proved on 2026-11-25"
    repository.write("data.txt", "2\n")
    assert repository.run("--proofs", "use") == "1 passed"
    start = "import subprocess\nsubprocess.run(['cat', './other.txt'])"
    for reading in ("open('other.txt').close()", start):
        text = "".join(f"    {line}\n" for line in reading.split("\n"))
        repository.write("tests/test_marked.py", MARKED + text)
        assert repository.run("--proofs", "use", status=1) == "1 passed, 1 error"
        assert "tests/test_marked.py reads other.txt, which its mark `reads` does not name" in repository.said


MARKS = {
    str(file.relative_to(ROOT)): re.findall(r'"([^"]+)"', mark[1])
    for file in sorted((ROOT / "tests").rglob("test_*.py"))
    if (
        mark := re.search(r"^pytestmark = \[?pytest\.mark\.reads\((.*?)\)(?:,|$)", file.read_text("utf-8"), re.M | re.S)
    )
}


@pytest.mark.parametrize("name", MARKS)
def test_a_mark_names_what_its_file_imports(name):
    text = re.sub("^@.*$", "", (ROOT / name).read_text("utf-8"), flags=re.M)  # of a chapter that names a test
    assert all((ROOT / place).exists() for place in MARKS[name])
    needed = {f"src/{package}" for package in re.findall(r"^ *(?:from|import) (shardlab|bookbinder)\b", text, re.M)}
    needed |= {"book"} if re.search(r"\bBOOK\.|^def .*\b(book|site|home|sources)\b.*\):$", text, re.M) else set()
    assert all(proofs.below(place, MARKS[name]) or place in MARKS[name] for place in needed), needed
