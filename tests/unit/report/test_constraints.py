"""explain() on constraints between layers that name other axes than what they get."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, line, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

MESH = grid((4, 2), ("data", "model"))


def put(x, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


def layers_on_the_other_axis(ws, x):
    def layer(x, w):
        x = put(x + jnp.tanh(x @ w["up"]) @ w["down"], "data")
        return put(x, "model"), None  # here

    return jnp.mean(lax.scan(layer, x, ws)[0] ** 2)


def layers(ws, x):
    def layer(x, w):
        return put(x + jnp.tanh(x @ w["up"]) @ w["down"], "data"), None

    return jnp.mean(lax.scan(layer, x, ws)[0] ** 2)


def sequences_to_heads_and_back(ws, x):
    """As in Ulysses, where an all-to-all is meant."""

    def layer(x, w):
        h = put(jnp.tanh(x @ w["up"]), "data", None, "model")
        h = jnp.cumsum(h, 1)
        return put(x + put(h, "data", "model") @ w["down"], "data", "model"), None

    return jnp.mean(lax.scan(layer, x, ws)[0] ** 2)


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("f", [layers_on_the_other_axis, layers, sequences_to_heads_and_back])
def test_a_constraint_that_names_another_axis_is_told_with_that_of_its_operand(
    f, backend, is_gradient
):
    ws = {
        "up": struct(MESH, (4, 256, 1024), None, "data", "model"),
        "down": struct(MESH, (4, 1024, 256), None, "model", "data"),
    }
    x = struct(MESH, (16, 128, 256), "data")
    f, program = f, jax.grad(f) if is_gradient else f
    report = explain(jax.jit(program), ws, x, mesh=pod_of(backend))
    told = [one for one in report.findings if one.title == "order of axes"]
    assert len(told) == (f is layers_on_the_other_axis), report
    for one in told:
        assert line(f, "# here") in one.says and 'write P("data")' in one.says, report


def two_halves(ws, batch):
    def layer(x, w):
        x = put(x + jnp.tanh(x @ w["up"]) @ w["down"], "data")
        return put(x + jnp.sin(x @ w["up"]) @ w["down"], "data"), None

    x = put(jnp.sin(batch["x"]), "data")
    return jnp.mean((lax.scan(layer, x, ws)[0] - batch["y"]) ** 2)


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("axis", ["data", "model"])
def test_data_on_another_axis_than_all_constraints_ask_for_are_told_themselves(axis, backend):
    ws = {
        "up": struct(MESH, (4, 256, 1024), None, "data", "model"),
        "down": struct(MESH, (4, 1024, 256), None, "model", "data"),
    }
    batch = {name: struct(MESH, (16, 128, 256), axis) for name in "xy"}
    report = explain(jax.jit(jax.grad(two_halves)), ws, batch, mesh=pod_of(backend))
    if axis == "data":
        assert report.findings == (), report
        return
    first = report.findings[0]
    assert first.title == "order of axes", report
    assert "batch['x'] and batch['y'] are in shards along model" in first.says
    assert 'shard the data P("data")' in first.says
    specs = {spec for _, spec in first.remedy.specs}
    assert len(first.remedy.specs) == 2 and specs == {'P("data")'}
    assert len([one for one in report.findings if "constraint" in one.title]) == 0, report
