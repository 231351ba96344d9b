"""The first chapter on other machines than ours: its cells on 1, 2, 3, 4 and 8 devices and on both kinds of axes."""

import os
import re
import subprocess
import sys

import pytest
from conftest import BOOK
from places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.reads("book", "src", "_config.yml", "_toc.yml", "pyproject.toml")]

AXES = re.compile(r",\s*axis_types=\(AxisType\.Auto,\)")


@pytest.mark.parametrize("axes", ["Auto", "default"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_the_first_chapter_runs_to_its_end(tmp_path, count, axes):
    """Three divides the batch and no parameter. By default, axes are explicit since JAX 0.9."""
    source = "\n\n".join(cell.source for cell in BOOK.chapter("start").cells)
    assert source.count("emulate(8, ") == 1 and len(AXES.findall(source)) == 1
    program = source.replace("emulate(8, ", f"emulate({count}, ")
    program = AXES.sub("", program) if axes == "default" else program
    (tmp_path / "start.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "start.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{count} x cpu on cpu" in done.stdout and done.stdout.count("Right: ") == 2
