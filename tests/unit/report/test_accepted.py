"""explain() advises no spec on Explicit axes with which JAX refuses the program."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P, reshard
from steps import grid, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")


def orthogonal(x):
    """Its product with its own transpose would have the axis of the rows twice."""
    x = x / (jnp.linalg.norm(x) + 1e-7)
    for _ in range(2):
        s = x @ x.T
        x = 1.5 * x - 0.5 * s @ x
    return x


def in_a_loop(x):
    return lax.fori_loop(0, 3, lambda _, x: 1.5 * x - 0.5 * (x @ x.T) @ x, x)


def by_columns(x):
    """Contracted with itself, an axis of the columns is refused, too."""
    return x - 0.1 * (x.T @ x)[None, 0, 0]


def of_rows(x):
    """Nothing in it is refused."""
    return jnp.tanh(x @ jnp.ones((x.shape[1], x.shape[1]), x.dtype))


CASES = [(orthogonal, False), (in_a_loop, False), (by_columns, False), (of_rows, True)]


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("names", [("data", "expert"), ("a", "z")])
@pytest.mark.parametrize("experts", [8, 4])
@pytest.mark.parametrize(("f", "is_whole"), CASES)
def test_an_advised_spec_is_accepted(f, is_whole, experts, names, backend):
    """What it advises compiles, and sends less."""
    rows, first = names
    mesh = grid((2, 4), names, AxisType.Explicit)

    def step(spec, w, g):
        x = reshard(0.95 * w + g, spec)  # here
        return w - 0.02 * reshard(jax.vmap(f)(x), P(first, rows, None))

    w = struct(mesh, (experts, 256, 512), first, rows, None, dtype="bfloat16")
    with jax.set_mesh(mesh):
        report = explain(jax.jit(lambda w, g: step(P(), w, g)), w, w, mesh=pod_of(backend))
        told = [one for one in report.findings if one.title == "constraint without an axis"]
        assert told, report
        advised = re.search(r"write (P\(.*?\))(, as with|;|$)", told[0].says)[1]
        other = f'P(("{first}", "{rows}"))' if experts == 8 else f'P("{first}")'
        assert advised == (f'P("{first}", "{rows}")' if is_whole else other), told
        assert told[0].remedy.specs[0][2] == advised
        twin = jax.jit(lambda w, g: step(eval(advised), w, g))
        mended = explain(twin, w, w, mesh=pod_of(backend))
    assert mended.bytes < report.bytes
    again = [one for one in mended.findings if one.title == "constraint without an axis"]
    assert not again or (experts == 4 and "a reshard of its own" in again[0].says), again


def test_where_no_axis_is_accepted_no_spec_is_advised():
    mesh = grid((8,), ("x",), AxisType.Explicit)

    def f(m):
        m = reshard(jnp.tanh(m), P())
        return m @ m.T

    with jax.set_mesh(mesh):
        report = explain(jax.jit(f), struct(mesh, (512, 256), "x", None))
    told = [one for one in report.findings if one.title == "constraint without an axis"]
    assert told and "write P(" not in told[0].says and told[0].remedy is None, told
    assert "a reshard of its own" in told[0].says
