"""A program that names a mesh inside computes the same on another mesh of the same axes, and leaves
the first alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab.pods.transfer import transferred

pytestmark = pytest.mark.reads("src/shardlab")

SCALE = jnp.arange(64.0) / 64


def meshes(kind):
    return [
        jax.make_mesh((4,), ("x",), axis_types=(kind,), devices=jax.devices()[n : n + 4])
        for n in (0, 4)
    ]


def programs(mesh, kind):
    """By name: functions that name a mesh in each way that there is."""
    on = lambda *spec: NamedSharding(mesh, P(*spec))  # noqa: E731
    put = lax.with_sharding_constraint if kind == AxisType.Auto else jax.sharding.reshard
    mapped = jax.shard_map(
        lambda a: lax.psum(jnp.sin(a), "x"), mesh=mesh, in_specs=P("x"), out_specs=P()
    )
    yield "constraint", lambda a: put(a * 2 + SCALE, on())
    yield "scan", lambda a: lax.scan(lambda c, row: (jnp.tanh(c + row), row), SCALE, put(a, on()))
    yield "shard_map", mapped
    yield "out_shardings", jax.jit(lambda a: a + 1, out_shardings=on())
    yield "inner jit", lambda a: jax.jit(lambda b: 2 * b, in_shardings=on("x"))(a)
    yield (
        "branches",
        lambda a: lax.cond(SCALE.sum() > 0, lambda: put(2 * a, on()), lambda: put(a, on())),
    )
    if kind == AxisType.Auto:
        yield "gradient", jax.value_and_grad(lambda a: mapped(a).sum())
        yield "checkpoint", jax.grad(jax.checkpoint(lambda a: jnp.sin(put(a, on()) ** 2).sum()))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_each_way_to_name_a_mesh_is_replaced(kind):
    first, other = meshes(kind)
    values = np.arange(64.0 * 64, dtype=np.float32).reshape(64, 64) / 999
    here, there = (jax.device_put(values, NamedSharding(mesh, P("x"))) for mesh in (first, other))
    for name, f in programs(first, kind):
        results = transferred(f, (here,), {}, other)(there)
        for result, expected in zip(
            jax.tree.leaves(results), jax.tree.leaves(f(here)), strict=True
        ):
            assert result.sharding.device_set == set(other.devices.flat), name
            np.testing.assert_allclose(result, expected, rtol=1e-5, err_msg=name)
            assert expected.sharding.device_set <= set(first.devices.flat), name


def test_donation_and_static_arguments_stay():
    first, other = meshes(AxisType.Auto)
    here, there = (
        jax.device_put(jnp.ones(8), NamedSharding(mesh, P("x"))) for mesh in (first, other)
    )
    step = jax.jit(lambda a, factor, b: factor * a + b, donate_argnums=2, static_argnums=1)
    moved = transferred(step, (here, 3, here), {}, other)
    assert [leaf.donated for leaf in jax.tree.leaves(moved.trace(there, 3, there).args_info)] == [
        False,
        True,
    ]
    np.testing.assert_array_equal(moved(there, 3, there + 0), np.full(8, 4.0))


def test_a_mesh_with_other_axes_is_an_error():
    first, _ = meshes(AxisType.Auto)
    pair = jax.make_mesh(
        (2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )
    here = jax.device_put(jnp.ones((8, 8)), NamedSharding(pair, P("a")))

    def both(a):
        return lax.with_sharding_constraint(a, NamedSharding(first, P("x")))

    with pytest.raises(
        ValueError, match=r"axes \{'x': 4\}, and its arguments are on one with the axes \{'a': 2"
    ):
        transferred(both, (here,), {}, pair)
