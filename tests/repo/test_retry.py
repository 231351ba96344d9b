"""A run of tests that holds: what failed once runs once more, alone (tests/tools/runs/retry.py)."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from places import ROOT

RETRY = ROOT / "tests" / "tools" / "runs" / "retry.py"
CONFTEST = """
import retry

def pytest_addoption(parser):
    retry.add_options(parser)

def pytest_configure(config):
    retry.configure(config)
"""
ONCE = """
import pytest
from pathlib import Path

def fails_once(name):
    print("output of", name)
    file = Path("ran-" + name)
    if not file.exists():
        file.touch()
        raise AssertionError(name + " came late")

def test_that_passes():
    pass

def test_that_fails_once():
    fails_once("a")
"""
ALWAYS = "\ndef test_that_always_fails():\n    assert 1 + 1 == 3\n"
IN_ITS_SET_UP = """
@pytest.fixture(scope="session")
def site():
    print("pid", __import__("os").getpid())
    fails_once("site")

@pytest.mark.parametrize("number", range(5))
def test_of_the_site(site, number):
    pass
"""
AT_ITS_END = """
@pytest.fixture
def browser():
    yield
    fails_once("browser")

def test_that_fails_at_its_end(browser):
    pass
"""
MANY = "".join(f"\ndef test_{name}():\n    fails_once({name!r})\n" for name in "bcde")
CRASH = """
def test_whose_process_dies():
    import os
    file = Path("ran-dead")
    if not file.exists():
        file.touch()
        os._exit(3)
"""


def run(folder, text, *options):
    """Run a file of tests with `--retry`; returns pytest's exit status, and what it printed."""
    shutil.copy(RETRY, folder)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "--retry", "-ra", "--rootdir", str(folder), *options]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_test_that_fails_once_is_named_with_both_outputs_and_fails_nothing(tmp_path, processes):
    status, said = run(
        tmp_path,
        ONCE + IN_ITS_SET_UP + AT_ITS_END,
        "--numprocesses",
        processes,
        "--dist",
        "loadfile",
    )
    assert status == 0, said
    flaky = set(re.findall(r"^flaky: \S+", said, re.MULTILINE))
    names = {
        "test_that_fails_once",
        "test_that_fails_at_its_end",
        *(f"test_of_the_site[{n}]" for n in range(5)),
    }
    assert flaky == {f"flaky: test_some.py::{name}" for name in names}
    assert (
        "a came late" in said
        and said.count("output of a") >= 2
        and "7 that failed run once more, alone" in said
    )
    last = said.splitlines()[-1]
    assert "7 flaky" in last and "failed" not in last and "error" not in last, last


def test_a_test_that_always_fails_is_a_failure(tmp_path):
    status, said = run(tmp_path, ONCE + ALWAYS)
    assert status == 1 and "1 failed, 1 passed, 1 flaky" in said.splitlines()[-1], said
    assert (
        "flaky: test_some.py::test_that_fails_once" in said
        and "FAILED test_some.py::test_that_always_fails" in said
    )


def test_more_than_three_are_a_failure_and_none_runs_again(tmp_path):
    status, said = run(tmp_path, ONCE + MANY)
    assert status == 1 and "5 failed, 1 passed" in said.splitlines()[-1], said
    assert (
        "5 tests failed, more than the 3 that may be flaky: none runs again" in said
        and "\nflaky: " not in said
    )


def test_a_test_whose_process_dies_once_is_flaky(tmp_path):
    status, said = run(tmp_path, ONCE + CRASH, "--numprocesses", "2")
    assert status == 0 and "flaky: test_some.py::test_whose_process_dies" in said, said


def test_a_file_that_cannot_be_read_is_a_failure(tmp_path):
    status, said = run(tmp_path, "import nothing_of_this_name")
    assert status == 2 and "flaky: " not in said and "retry: " not in said
    status, said = run(tmp_path, "import nothing_of_this_name", "--numprocesses", "2")
    assert status == 1 and "flaky: " not in said and "retry: " not in said, said
