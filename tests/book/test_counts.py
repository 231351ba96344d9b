"""Chapters on other machines than ours: on other numbers of devices, and the first one on both kinds of axes."""

import os
import re
import subprocess
import sys

import pytest
from conftest import BOOK
from places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.reads("book", "src", "_config.yml", "_toc.yml", "pyproject.toml")]

AXES = re.compile(r",\s*axis_types=\(AxisType\.Auto,\)")
ON_FOUR = ["arrays", "auto", "explicit", "manual", "collectives", "training"]


def run_on(folder, source, count):
    """What a chapter's code prints as a program on `count` emulated devices; its assertions have to hold."""
    program, replaced = re.subn(r"\bemulate\(8\b", f"emulate({count}", source)
    assert replaced == 1
    (folder / "chapter.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg"}
    command = [sys.executable, "chapter.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def source_of(name):
    return "\n\n".join(cell.source for cell in BOOK.chapter(name).cells)


@pytest.mark.parametrize("axes", ["Auto", "default"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_the_first_chapter_runs_to_its_end(tmp_path, count, axes):
    """Three divides the batch and no parameter. By default, axes are explicit since JAX 0.9."""
    source = source_of("start")
    assert len(AXES.findall(source)) == 1
    output = run_on(tmp_path, AXES.sub("", source) if axes == "default" else source, count)
    assert f"{count} x cpu on cpu" in output and output.count("Right: ") == 2


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_recipes_run_to_their_end(tmp_path, count):
    output = run_on(tmp_path, source_of("recipes"), count)
    assert f"{count} devices, 33,024 parameters" in output


@pytest.mark.parametrize("name", ON_FOUR)
def test_on_four_devices(tmp_path, name):
    """Every cell runs, every solution is right, and every assertion that is not guarded holds."""
    source = source_of(name)
    output = run_on(tmp_path, source, 4)
    assert output.count("Right: ") == source.count("strict=True)")
