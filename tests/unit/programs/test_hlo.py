"""programs.hlo: every recorded program is read as XLA itself reads it, and a reader with a fault would be found.

conftest.py compares in the same way every program that other tests compile and read.
"""

import os
import re
import subprocess
import sys

import oracle
import pytest
from tpu_programs import recordings

from shardlab.programs import collectives, hlo

pytestmark = pytest.mark.reads("src/shardlab")

RECORDED = recordings()


@pytest.mark.parametrize("file", sorted({file for file, _ in RECORDED}))
def test_recorded_programs_are_read_as_xla_reads_them(file):
    programs = {name: text for (there, name), text in RECORDED.items() if there == file}
    assert programs
    assert {name: found for name, text in programs.items() if (found := oracle.differences(text))} == {}


@pytest.mark.parametrize(
    ("pattern", "wrong", "shown"),
    [
        (r"all-gather\(", "all-reduce(", "kind='all-reduce'"),
        (r"ROOT ", "", "root=False"),
        (r"fusion\(%?([\w.-]+), %?([\w.-]+)", r"fusion(\2, \1", "operands="),
        (r"= f32\[", "= bf16[", "types=('bf16["),
        (r"body=%?[\w.-]+", "body=elsewhere", "calls="),
        (r"\n[^\n]* all-gather\([^\n]*", "", "None, XLA says"),
    ],
)
def test_a_fault_in_our_reader_would_be_found(monkeypatch, pattern, wrong, shown):
    text = next(text for text in RECORDED.values() if re.search(pattern, text) and " while(" in text)
    read = hlo.Program
    changed = re.sub(pattern, wrong, text, count=1)
    changed += "\nelsewhere {\n  ROOT nothing = s32[] constant(0)\n}\n" * ("elsewhere" in wrong)
    monkeypatch.setattr(hlo, "Program", lambda _: read(changed))
    assert any(shown in difference for difference in oracle.differences(text))


DUMPED = """
from shardlab import emulate

emulate(8)

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))


def repeat(W, x):
    return lax.fori_loop(0, 5, lambda _, c: (jnp.tanh(c[0] @ W), c[1] + (c[0] @ W).sum()), (x, 0.0))


shapes = [jax.ShapeDtypeStruct((16, 16), "float32", sharding=NamedSharding(mesh, P("d"))) for _ in range(2)]
print(jax.jit(repeat).lower(*shapes).compile().as_text())
"""


def test_a_dumped_program_reads_as_the_one_that_jax_shows(tmp_path):
    """XLA's dumps write an element of a tuple as %loop#1, where other text has a get-tuple-element."""
    settings = os.environ | {"XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    done = subprocess.run([sys.executable, "-c", DUMPED], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (dumped,) = tmp_path.glob("*repeat*after_optimizations.txt")
    text = dumped.read_text()
    assert re.search(r"%[\w.-]+#\d", text), "dumps are written otherwise now: is there still anything to test?"
    assert not oracle.differences(text)
    shown, read = ([move for move, _ in collectives.find(hlo.Program(one))] for one in (done.stdout, text))
    assert read == shown and len(read) >= 2
