"""What files beside the book say in words is what the code has: versions, minutes, options,
defaults.
"""

import re
import tomllib

import pytest
from places import ROOT

from shardlab.exercises import testing

pytestmark = pytest.mark.reads(
    "README.md", "CONTRIBUTING.md", "Makefile", "scripts", "src", "pyproject.toml", "tests/tools"
)

SCRIPTS = sorted([*(ROOT / "scripts").glob("*.py"), *(ROOT / "tests" / "tools").glob("*/*.py")])


def read(name):
    return (ROOT / name).read_text("utf-8")


def test_the_set_up_takes_the_oldest_python_that_the_project_names():
    requires = tomllib.loads(read("pyproject.toml"))["project"]["requires-python"]
    oldest = re.search(r"^oldest=(\d+) ", read("scripts/setup.sh"), re.MULTILINE)
    assert requires == f">=3.{oldest[1]}"


def test_a_check_takes_as_long_wherever_it_is_said():
    said = [
        re.search(r"make check\b[^\n]*?(about \w+ minutes)", read(name))
        for name in ("README.md", "CONTRIBUTING.md")
    ]
    assert said[0][1] == said[1][1]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_options_in_the_description_of_a_script_exist(path):
    described, _, program = (
        path.read_text("utf-8").removeprefix("#!/usr/bin/env python3\n").partition('"""\n\n')
    )
    for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", described):
        assert f'"{option}"' in program, f"{path.name} describes {option}, which it does not have"


def test_versions_that_a_maintainer_is_told_to_run_are_columns_of_the_matrix():
    told = re.findall(r'ARGS="--only (\w+)"', read("CONTRIBUTING.md"))
    assert told and all(f'"{name}"' in read("src/bookbinder/run/environments.py") for name in told)


def test_the_default_tolerances_are_those_of_the_docstring():
    text = " ".join(testing.assert_equal_to_one_device.__doc__.split())
    for dtype in ("bfloat16", "float16"):
        assert f"{testing._RTOL[dtype]:.0e}".replace("e-0", "e-") + f" for {dtype}" in text
