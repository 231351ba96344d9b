"""explain() on sums over devices that could be fewer, or more exact."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from steps import grid, line, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

MESH = grid((8,), ("data",))
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])


def titles(report):
    return [one.title for one in report.findings]


def square(weights, rows):
    for w in weights:
        rows = jnp.tanh(rows @ w)
    return jnp.mean(rows**2)


def mean(grads):
    return jax.tree.map(lambda g: lax.pmean(g, "data"), grads)  # the sums


def accumulated(weights, x, each_time, batches=4):
    """The gradient of micro-batches in a Python loop, in a shard_map."""

    def local(weights, x):
        own = jax.tree.map(lambda w: lax.pcast(w, "data", to="varying"), weights)
        total = None
        for rows in jnp.split(x, batches):
            grads = jax.grad(square)(own, rows)
            grads = mean(grads) if each_time else grads
            total = jax.tree.map(jnp.add, total, grads) if total else grads
        return total if each_time else mean(total)

    return jax.shard_map(local, mesh=MESH, in_specs=(P(), P("data")), out_specs=P())(weights, x)


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("batches", [1, 2, 4])
@pytest.mark.parametrize("each_time", [True, False])
def test_sums_of_micro_batches_in_a_python_loop_could_be_one(each_time, batches, dtype, backend):
    weights = [struct(MESH, (256, 256), dtype=dtype) for _ in range(3)]
    x = struct(MESH, (64, 256), "data", dtype=dtype)
    step = jax.jit(lambda w, x: accumulated(w, x, each_time, batches))
    report = explain(step, weights, x, mesh=pod_of(backend))
    apart = [one.says for one in report.findings if one.title == "summed apart"]
    if not each_time or batches == 1 or backend != "cpu":  # v5e's compiler adds first
        assert not apart
        assert sum(move.total for move in report.moves) <= 2 * 7 / 8 * 3 * 256**2 * 4
        return
    (says,) = apart
    assert f"{3 * batches} sums along data are only added up to 3" in says
    assert line(mean, "# the sums") in says


@BOTH
def test_sums_that_the_compiler_leaves_apart_are_not_told(backend):
    """Those of three products of one array, and of automatic micro-batches: v5e's adds first."""

    def step(weights, x):
        loss = lambda w, x: jnp.mean(sum(jnp.tanh(x @ one) for one in w) ** 2)  # noqa: E731
        grads = [jax.grad(loss)(weights, rows) for rows in x]
        return jax.tree.map(lambda w, *g: w - 0.1 * sum(g), weights, *grads)

    weights = [struct(MESH, (256, 256)) for _ in range(3)]
    x = struct(MESH, (4, 64, 256), None, "data")
    report = explain(jax.jit(step, donate_argnums=0), weights, x, mesh=pod_of(backend))
    assert report.moves and "summed apart" not in titles(report)


def needed_apart(w, x, y):
    """The norm of each gradient is an answer."""
    one, other = (lax.psum(rows.T @ rows @ w, "data") for rows in (x, y))
    return one + other, jnp.linalg.norm(one), jnp.linalg.norm(other)


def added_to_a_residual(w, x, y):
    """Each sum is a layer's, and the next layer gets it."""
    for _ in range(2):
        x = x + lax.psum(jnp.tanh(x) @ w, "data")
    return x, x, y


def clipped(w, x, y):
    """Each gradient is divided by its own norm."""
    one, other = (lax.psum(rows.T @ rows @ w, "data") for rows in (x, y))
    return one / jnp.linalg.norm(one) + other / jnp.linalg.norm(other), x, y


@BOTH
@pytest.mark.parametrize("f", [needed_apart, added_to_a_residual, clipped])
def test_sums_that_are_needed_one_by_one_are_not_told(f, backend):
    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": P(), "check_vma": False}
    step = jax.jit(jax.shard_map(f, mesh=MESH, **specs))
    w, x = struct(MESH, (256, 256)), struct(MESH, (2048, 256), "data")
    report = explain(step, w, x, x, mesh=pod_of(backend))
    assert report.moves
    assert "summed apart" not in titles(report)
