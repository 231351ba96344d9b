"""explain() on the rows at the edges of shards that a stencil sends to its neighbours."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from steps import grid, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])


def laplacian(field):
    return field[2:] - 2 * field[1:-1] + field[:-2]


def padded(field):
    return field + 0.1 * jnp.pad(laplacian(field), ((1, 1), (0, 0)))


def rolled(field):
    return field + 0.1 * (jnp.roll(field, 1, 0) + jnp.roll(field, -1, 0) - 2 * field)


def in_a_loop(field):
    return lax.fori_loop(0, 5, lambda _, one: padded(one), field)


def rolled_in_a_loop(field):
    body = jax.checkpoint(lambda one, _: (rolled(one), None))
    return lax.scan(body, field, None, length=5)[0]


def of_a_batch(field):
    return jax.vmap(padded, 1, 1)(field[..., None])[..., 0]


STENCILS = [padded, rolled, in_a_loop, rolled_in_a_loop, of_a_batch]


@BOTH
@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("f", STENCILS)
def test_a_halo_is_not_avoidable(f, is_gradient, backend):
    mesh = grid((4, 2), ("rows", "columns"))
    field = struct(mesh, (1024, 256), "rows", "columns", dtype="bfloat16")
    f = jax.jit(jax.grad(lambda one, f=f: jnp.sum(f(one) ** 2)) if is_gradient else f)
    report = explain(f, field, mesh=pod_of(backend))
    assert report.moves and report.bytes < 64 * 2 * 128 * 4
    assert not [one for one in report.findings if one.title == "avoidable communication"], report
    assert all("data parallelism" not in move.cause for move in report.moves), report
    permutes = [move for move in report.moves if move.kind == "collective-permute"]
    assert permutes and all(move.cause.startswith("a halo") for move in permutes), report


@BOTH
def test_the_halves_of_a_projection_are_no_halo(backend):
    """Each device sends much of its shard."""
    mesh = grid((8,), ("model",), AxisType.Auto)

    def gated(x, w):
        up, gate = jnp.split(x @ w, 2, axis=-1)
        return up * jax.nn.silu(gate)

    x, w = struct(mesh, (256, 512)), struct(mesh, (512, 4096), None, "model")
    report = explain(gated, x, w, mesh=pod_of(backend))
    told = [one.says for one in report.findings if one.title == "avoidable communication"]
    assert told and "a split along a dimension that is sharded" in told[0], report


@BOTH
def test_gradients_that_devices_add_are_still_of_data_parallelism(backend):
    """Also those of the rows of a stacked weight, whose transposes pad them."""
    mesh = grid((8,), ("data",))

    def loss(w, x):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) ** 2)

    w, x = struct(mesh, (2, 256, 256)), struct(mesh, (64, 256), "data")
    step = jax.jit(lambda w, x: w - jax.grad(loss)(w, x), donate_argnums=0)
    report = explain(step, w, x, mesh=pod_of(backend))
    large = [move for move in report.moves if move.total > 2**16]
    assert large and all("data parallelism" in move.cause for move in large), report
