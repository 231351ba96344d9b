"""The script that readers copy: on other numbers of devices, killed, and resumed on another number."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.reads("book/recipes", "src/shardlab/arrays")]

SCRIPT = ROOT / "book" / "recipes" / "train.py"
STEP = re.compile(r"step (\d+): loss (\S+)")


def start(folder, count, steps):
    """The script on `count` emulated devices, as a process whose lines can be read."""
    flags = f"--xla_force_host_platform_device_count={count}"
    environment = os.environ | {"XLA_FLAGS": flags, "NPROC": "32", "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    command = [sys.executable, SCRIPT, folder, str(steps)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def losses(process):
    """{step: loss} of a run that ends by itself."""
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return {int(step): float(loss) for step, loss in STEP.findall(out)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return losses(start(tmp_path_factory.mktemp("alone"), 1, 40))


def test_it_learns_and_is_short_enough_to_read(alone):
    assert list(alone) == list(range(1, 41)) and alone[40] < 0.7 * alone[1]
    assert len(SCRIPT.read_text().splitlines()) <= 80


@pytest.mark.parametrize("count", [2, 4, 8])
def test_any_number_of_devices_learns_the_same(tmp_path, alone, count):
    found = losses(start(tmp_path, count, 40))
    assert list(found) == list(alone)
    np.testing.assert_allclose(list(found.values()), list(alone.values()), rtol=1e-4)


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 8), (8, 1)])
def test_a_killed_run_resumes_on_another_number_of_devices(tmp_path, alone, before, after):
    process = start(tmp_path, before, 10_000)
    for line in process.stdout:
        if line.startswith("step 25:"):
            break
    process.send_signal(signal.SIGKILL)
    rest = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL, rest
    found = losses(start(tmp_path, after, 40))
    first = min(found)
    assert first in (1, 11, 21, 31) and max(found) == 40  # the last checkpoint that was complete
    np.testing.assert_allclose([found[n] for n in found], [alone[n] for n in found], rtol=1e-4)


def test_a_run_that_has_ended_goes_on_where_it_ended(tmp_path, alone):
    assert list(losses(start(tmp_path, 2, 14))) == list(range(1, 15))  # 14 is no multiple of the interval
    assert list(losses(start(tmp_path, 2, 14))) == []
    rest = losses(start(tmp_path, 2, 17))
    assert list(rest) == [15, 16, 17]
    np.testing.assert_allclose(list(rest.values()), [alone[n] for n in rest], rtol=1e-4)


def test_a_size_that_the_devices_do_not_divide_is_named(tmp_path):
    process = start(tmp_path, 3, 1)
    out, _ = process.communicate()
    assert process.returncode == 1 and "hidden/kernel" in out and "the 3 devices of 'data' do not divide" in out
