"""Programs of libraries on Auto and on Explicit axes: what the page `status` shows is what runs."""

import importlib.util
import inspect
import json
import re
import subprocess
import sys
from importlib.metadata import version

import jax
import numpy as np
import pytest
from places import ROOT

from bookbinder.progress import Progress
from bookbinder.run.environments import EnvironmentFault

pytestmark = pytest.mark.reads("scripts", "book/recordings/libraries.txt", "src/bookbinder")


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases, script = load("library_cases"), load("record_libraries")
SHOWN = script.FILE.read_text("utf-8")
LOCKED = [name for name, one in cases.CASES.items() if all(map(script.locked, one))]
WANTED = """Flax NNX, Flax Linen, Equinox, Optax, Orbax, Grain, BlackJAX, NumPyro, Diffrax, Haliax,
tokamax, EasyDeL""".replace("\n", " ").split(", ")


def test_every_library_has_a_row_for_each_program_in_the_order_of_the_cases():
    assert list(cases.CASES) == WANTED and WANTED[:6] == LOCKED
    programs = [(name, case.does) for name, some in cases.CASES.items() for case in some]
    assert list(script.recorded(SHOWN)) == programs
    assert len(set(programs)) == len(programs)


@pytest.mark.slow
def test_libraries_of_the_lock_do_what_the_page_says():
    rows = script.rows_of(LOCKED, newest=False, progress=Progress())
    assert len(rows) == sum(len(cases.CASES[name]) for name in LOCKED)
    if f"| {jax.__version__} |" not in SHOWN:
        pytest.skip("recorded with another JAX")
    recorded = script.recorded(SHOWN)
    for row in rows:
        assert row["version"] == version(cases.CASES[row["library"]][0].package)
        found = {mode: script.cell(row[mode]) for mode in cases.MODES}
        assert found == recorded[row["library"], row["does"]], (
            f"{row}; if that is right, record it: make libraries"
        )
        for mode in cases.MODES:
            assert found[mode] != "error" or script.code(row[mode]) in SHOWN


def test_what_cannot_be_installed_is_a_row_that_says_so(monkeypatch):
    def refuse(environment, folder, progress):
        raise EnvironmentFault(f"library: cannot be installed: no {environment.requirements[0]}")

    monkeypatch.setattr(script, "make", refuse)
    rows = script.rows_of(["Haliax", "tokamax"], newest=False, progress=Progress())
    assert [row["library"] for row in rows] == ["Haliax", "Haliax", "tokamax"]
    text = script.recording(rows)
    assert (
        "| tokamax |  |  | attention in XLA, batch and heads sharded | not run | not run |" in text
    )
    assert "Auto and Explicit\n: `not run: cannot be installed: no tokamax`\n" in text


def test_a_program_that_ends_early_costs_only_the_rows_that_it_did_not_print(tmp_path, monkeypatch):
    line = {"library": "Optax", "does": "x", "version": "1", "jax": "2", "Auto": "equal"}
    ends = f"import sys; print({json.dumps(line)!r}); sys.exit('Killed')"
    (tmp_path / "ends.py").write_text(ends)
    monkeypatch.setattr(script, "PROGRAMS", tmp_path / "ends.py")
    first, second = script.ran(sys.executable, ["Optax:0", "Grain:0"])
    assert first == line and second["library"] == "Grain" and second["Auto"] == "not run: Killed"


@pytest.mark.parametrize(("apart", "said"), [(0, "equal"), (5e-5, "equal"), (1e-3, "differs")])
def test_a_result_is_compared_with_one_device(apart, said):
    case = """
import sys
sys.path.insert(0, 'scripts')
import os
os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'
import library_cases, numpy
program = lambda mesh: 10 * numpy.ones(3) * (1 + APART * (mesh.size > 1))
print(library_cases.outcomes(library_cases.Case('jax', '', program)))
def fails(mesh):
    if mesh.size > 1 and 'Explicit' in str(mesh.axis_types):
        raise ValueError('/x/site-packages/jax/a.py | first\\nsecond')
    return numpy.ones(3)
print(library_cases.outcomes(library_cases.Case('jax', '', fails)))
"""
    command = [sys.executable, "-c", case.replace("APART", str(apart))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    numbers, error = map(eval, done.stdout.splitlines())
    assert {text.split(" by")[0] for text in numbers.values()} == {said}
    assert error == {"Auto": "equal", "Explicit": "ValueError: jax/a.py | first"}


def test_a_worse_result_is_told_and_a_better_one_is_no_fault():
    old = {
        ("A", "x"): {"Auto": "equal", "Explicit": "error"},
        ("B", "y"): dict.fromkeys(cases.MODES, "equal"),
    }
    now = [
        {
            "library": "A",
            "version": "2",
            "does": "x",
            "Auto": "differs by 0.1",
            "Explicit": "equal",
        },
        {"library": "B", "version": "", "does": "y", "Auto": "equal", "Explicit": "not run: B"},
        {"library": "C", "version": "1", "does": "z", "Auto": "equal", "Explicit": "equal"},
    ]
    worse, other = script.compared(old, now)
    assert [re.search(r"\d: .*", line)[0] for line in worse] == [
        "1: A 2, x: Auto was equal, is differs by 0.1",
        "1: B , y: Explicit was equal, is not run: B",
    ]
    assert len(other) == 3 and "Explicit was error, is equal" in other[0]


def test_errors_are_shown_as_they_are():
    said = "ShardingTypeError: use `out_sharding` | a_b *c*"
    row = {"library": "A", "version": "2", "jax": "1", "does": "x", "Auto": "equal"}
    text = script.recording([row | {"Explicit": said}])
    assert f"\nA, x, Explicit\n: `` {said} ``\n" in text
    assert script.recorded(text) == {("A", "x"): {"Auto": "equal", "Explicit": "error"}}
    with pytest.raises(ValueError):  # a program whose words would break the table
        script.recorded(text.replace("| x |", "| x | y |"))


def test_the_batch_is_sharded_and_gradients_reach_the_weights():
    """The MLP's losses fall, so the table compares something that was computed."""
    devices = jax.devices()[:1]
    mesh = jax.make_mesh(
        (1, 1), ("data", "model"), devices=devices, axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    for name in ("Flax NNX", "Flax Linen", "Equinox"):
        for case in cases.CASES[name]:
            model, first, second = case.program(mesh)
            assert float(second) < float(first) and len(jax.tree.leaves(model)) == 2
    assert all(np.isfinite(one).all() for one in jax.tree.leaves(cases.optax(mesh)))


def test_of_the_three_only_flax_nnx_passes_an_output_sharding_on():
    """As the page says."""
    import equinox
    from flax import linen, nnx

    calls = nnx.Linear.__call__, linen.Dense.__call__, linen.Dense, equinox.nn.Linear.__call__
    takes = ["out_sharding" in inspect.signature(call).parameters for call in calls]
    assert takes == [True, False, False, False]
