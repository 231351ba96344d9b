"""What was proved before is not run again, and is not counted as passed
(tests/tools/runs/proofs.py).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime

import proofs
import pytest
from proofs import ROOT

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
    'import pytest\n\npytestmark = pytest.mark.reads("data.txt")\n\ndef test_marked():\n    '
    'open("data.txt").close()\n'
)


class Repository:
    """A small repository with tests, in which pytest runs as `make test` has it run."""

    def __init__(self, root):
        self.root = root
        (root / "tests" / "tools" / "runs").mkdir(parents=True)
        for name in ("places.py", "proofs.py", "retry.py"):
            shutil.copy(ROOT / "tests/tools/runs" / name, root / "tests/tools/runs")
        self.write("pytest.ini", "[pytest]\npythonpath = tests/tools/runs\n")
        self.write("tests/conftest.py", CONFTEST)
        self.write("data.txt", "1\n")
        self.write(".gitignore", "_build/\n__pycache__/\n")
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)

    def write(self, name, text):
        (self.root / name).write_text(text)

    def run(self, *options, status=0):
        """Run the tests; returns pytest's closing line without its time."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--rootdir",
            ".",
            "-p",
            "no:cacheprovider",
            *options,
        ]
        environment = os.environ | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "xdist,_hypothesis_pytestplugin",
        }
        environment |= {"PYTHONPATH": str(ROOT / "src")}
        environment.pop(proofs.BEGAN, None)
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True
        )
        assert done.returncode == status, done.stdout + done.stderr
        self.said = done.stdout
        return re.fullmatch(r"=+ (.*) in [\d.]+s.* =+", done.stdout.splitlines()[-1])[1]

    def proofs(self):
        """What is proved, with the files that were read."""
        files = (self.root / "_build" / "proofs").glob("*.json")
        return {proof["unit"]: proof["read"] for proof in map(proofs.read_proof, files)}


KILLS = """
import os, signal, time
from pathlib import Path

def test_two():
    end = time.monotonic() + 60
    while not list(Path("_build/proofs").glob("*.json")) and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(PROCESS, signal.SIGKILL)
"""
TODAY = f"{datetime.now(UTC).date()}"


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


@pytest.mark.parametrize("processes", ["0", "2"])
def test_what_was_proved_is_said_with_its_day_and_not_run(repository, processes):
    digest = proofs.disk.file_digest(repository.root / "data.txt")
    repository.write("tests/test_one.py", ONE.replace("DIGEST", digest))
    parallel = ("--numprocesses", processes, "--proofs", "use")
    assert repository.run(*parallel) == "3 passed"
    assert repository.proofs() == {"chapter one": ["data.txt"], "tests/test_one.py": None}
    assert repository.run(*parallel) == f"3 proved on {TODAY}"
    # test_one.py depends on everything
    repository.write("tests/test_two.py", "def test_two():\n    pass\n")
    assert repository.run(*parallel) == f"2 passed, 2 proved on {TODAY}"
    for file in proofs.proofs_of("chapter one", repository.root / "_build" / "proofs"):
        file.write_text(file.read_text().replace(TODAY, "2026-11-25"))
    assert repository.run(*parallel) == f"4 proved from 2026-11-25 to {TODAY}"
    repository.write("data.txt", "2\n")  # which the chapter has read
    assert repository.run(*parallel) == "4 passed"
    repository.write("data.txt", "1\n")  # as it was, which is proved too
    assert repository.run(*parallel) == f"4 proved on {TODAY}"


def test_a_proof_that_is_old_or_damaged_proves_nothing(repository):
    repository.write("tests/test_one.py", "def test_one():\n    pass\n")
    repository.run("--proofs", "use")
    (file,) = proofs.proofs_of("tests/test_one.py", repository.root / "_build" / "proofs")
    good = json.loads(file.read_text())
    for bad in (
        good | {"key": "0" * 16},
        good | {"key": None},
        good | {"unit": "tests/test_two.py"},
        [good],
        "",
        5,
    ):
        file.write_text(json.dumps(bad))
        assert repository.run("--proofs", "use") == "1 passed", bad
    file.write_text("no JSON")
    assert repository.run("--proofs", "use") == "1 passed"
    assert repository.run("--proofs", "use") == f"1 proved on {TODAY}"
    repository.write("tests/test_one.py", "def test_one():\n    assert 1 == 2\n")
    assert repository.run("--proofs", "use", status=1) == "1 failed"


def test_no_change_brings_its_own_proofs(repository):
    """What is in the repository is no proof, wherever it is and whatever it says."""
    repository.write("tests/test_one.py", "def test_one():\n    pass\n")
    repository.run("--proofs", "use")
    (file,) = proofs.proofs_of("tests/test_one.py", repository.root / "_build" / "proofs")
    (repository.root / "proofs").mkdir()
    shutil.copy(file, repository.root / "proofs")
    repository.write("tests/proofs.json", file.read_text())
    shutil.rmtree(repository.root / "_build")
    assert repository.run("--proofs", "use") == "1 passed"
    ignored = (ROOT / ".gitignore").read_text().split()
    assert "/_build/" in ignored and not any(
        name.endswith("proofs.json") for name in proofs.source_files()
    )


def test_a_run_knows_what_was_proved_when_it_began_and_a_unit_has_so_many_proofs(
    repository, monkeypatch
):
    repository.write("tests/test_one.py", "def test_one():\n    pass\n")
    repository.run("--proofs", "use")
    folder = repository.root / "_build" / "proofs"
    monkeypatch.setenv(proofs.BEGAN, "1")  # its processes may look at different times
    assert proofs.Proofs(True, None, folder).proof("tests/test_one.py", "any") == ""
    (file,) = proofs.proofs_of("tests/test_one.py", folder)
    for n in range(proofs.KEPT + 5):
        shutil.copy(file, file.with_name(f"tests-test_one-py.{n}.json"))
    repository.write("data.txt", "3\n")
    assert repository.run("--proofs", "use") == "1 passed"
    assert len(proofs.proofs_of("tests/test_one.py", folder)) == proofs.KEPT
    assert repository.run("--proofs", "use") == f"1 proved on {TODAY}"


def test_what_failed_was_skipped_or_did_not_all_run_is_not_proved(repository):
    text = "import pytest\n\ndef test_good():\n    pass\n\ndef test_bad():\n    {}\n"
    for bad, status in (("assert 1 == 2", 1), ("pytest.skip('for want of a browser')", 0)):
        repository.write("tests/test_one.py", text.format(bad))
        repository.run("--proofs", "use", status=status)
        assert repository.proofs() == {}
    repository.write("tests/test_one.py", text.format("pass"))
    assert repository.run("--proofs", "use", "-k", "good") == "1 passed, 1 deselected"
    assert repository.run("--proofs", "use", "tests/test_one.py::test_good") == "1 passed"
    assert repository.proofs() == {}
    assert repository.run("--proofs", "renew", "tests/test_one.py") == "2 passed"
    assert repository.run("--proofs", "renew", "tests/test_one.py") == "2 passed"
    assert repository.run("tests/test_one.py") == "2 passed"


@pytest.mark.parametrize(("processes", "killed"), [("0", "os.getpid()"), ("2", "os.getppid()")])
def test_a_run_that_is_killed_has_proved_what_had_passed(repository, processes, killed):
    repository.write("tests/test_one.py", "def test_one():\n    pass\n")
    repository.write("tests/test_two.py", KILLS.replace("PROCESS", killed))
    with pytest.raises(AssertionError):
        repository.run("--proofs", "use", "--numprocesses", processes, "--dist", "loadfile")
    assert "tests/test_one.py" in repository.proofs()


def test_what_changes_while_its_tests_run_is_not_proved(repository):
    repository.write("tests/test_one.py", "def test_one():\n    open('data.txt', 'w').write('3')\n")
    assert repository.run("--proofs", "use") == "1 passed" and repository.proofs() == {}


def test_a_file_with_a_mark_depends_on_what_it_names_and_may_read_nothing_else(repository):
    repository.write("tests/test_marked.py", MARKED)
    repository.write("other.txt", "1\n")
    assert repository.run("--proofs", "use") == "1 passed"
    repository.write("other.txt", "2\n")
    assert repository.run("--proofs", "use") == f"1 proved on {TODAY}"
    repository.write("data.txt", "2\n")
    assert repository.run("--proofs", "use") == "1 passed"
    start = "import subprocess\nsubprocess.run(['cat', './other.txt'])"
    for reading in ("open('other.txt').close()", start):
        text = "".join(f"    {line}\n" for line in reading.split("\n"))
        repository.write("tests/test_marked.py", MARKED + text)
        assert repository.run("--proofs", "use", status=1) == "1 passed, 1 error"
        assert (
            "tests/test_marked.py reads other.txt, which its mark `reads` does not name"
            in repository.said
        )


def test_a_file_with_a_mark_depends_on_what_tests_share_too(repository):
    tool = "tests/tools/runs/tool.py"
    repository.write(tool, "VALUE = 1\n")
    repository.write("tests/test_marked.py", f"import tool\n{MARKED}")
    assert repository.run("--proofs", "use") == "1 passed"
    assert repository.run("--proofs", "use") == f"1 proved on {TODAY}"
    repository.write(tool, "VALUE = 2\n")
    assert repository.run("--proofs", "use") == "1 passed"
    shared = {str(file.relative_to(ROOT)) for file in (ROOT / "tests/tools").rglob("*.py")}
    assert {*proofs.helpers()} == {"pyproject.toml", "tests/conftest.py", *shared}


MARKS = {
    str(file.relative_to(ROOT)): re.findall(r'"([^"]+)"', mark[1])
    for file in sorted((ROOT / "tests").rglob("test_*.py"))
    if (
        mark := re.search(
            r"^pytestmark = \[?pytest\.mark\.reads\((.*?)\)(?:,|$)",
            file.read_text("utf-8"),
            re.M | re.S,
        )
    )
}


@pytest.mark.parametrize("name", MARKS)
def test_a_mark_names_what_its_file_imports(name):
    # of a chapter that names a test
    text = re.sub("^@.*$", "", (ROOT / name).read_text("utf-8"), flags=re.M)
    assert all((ROOT / place).exists() for place in MARKS[name])
    needed = {
        f"src/{package}"
        for package in re.findall(r"^ *(?:from|import) (shardlab|bookbinder)\b", text, re.M)
    }
    needed |= (
        {"book"}
        if re.search(r"\bBOOK\.|^def .*\b(book|site|home|sources)\b.*\):$", text, re.M)
        else set()
    )
    assert all(proofs.below(place, MARKS[name]) or place in MARKS[name] for place in needed), needed
