"""explain() on what is whole on each device: where it counts, and where it is data."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

ROW = grid((8,), ("rows",))
TWO = grid((2, 4), ("data", "model"))
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])


def said(report, title="replicated"):
    return [one.says for one in report.findings if one.title == title]


# --- What counts ----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("points, samples, is_told", [(256, 16384, False), (8192, 64, True)])
def test_data_that_are_whole_are_told_where_they_count(points, samples, is_told, dtype, backend):
    """A variational bound by samples in shards, each of which reads all points."""

    def bound(mean, points, noise):
        w = mean + noise
        z = jnp.sin(jnp.exp(w @ points.T)) @ points
        return jnp.mean(jax.nn.log_sigmoid(z @ points.T).astype("float32"))

    mean, noise = struct(ROW, (64,), dtype=dtype), struct(ROW, (samples, 64), "rows", dtype=dtype)
    data = struct(ROW, (points, 64), dtype=dtype)
    f = jax.jit(jax.value_and_grad(bound))
    report = explain(f, mean, data, noise, mesh=pod_of(backend))
    assert bool(said(report)) == is_told, report


@pytest.mark.parametrize("form", ["shard_map", "compiler"])
@pytest.mark.parametrize("width, nodes, is_told", [(64, 16384, False), (512, 2048, True)])
def test_weights_that_are_whole_are_told_where_they_count(width, nodes, is_told, form):
    """Layers of a graph network, whose messages are most of what a device holds."""

    def layer(h, w):
        messages = jnp.roll(h, 1, -1)[:, None] * jnp.sin(jnp.arange(8.0))[:, None]
        return jax.nn.relu(messages @ w).max(1), None

    def layers(w, h):
        return lax.scan(layer, h, w)[0]

    specs = {"in_specs": (P(), P("rows")), "out_specs": P("rows")}
    f = jax.shard_map(layers, mesh=ROW, **specs) if form == "shard_map" else layers
    report = explain(f, struct(ROW, (3, width, width)), struct(ROW, (nodes, width), "rows"))
    assert any(one.startswith("w, ") for one in said(report)) == is_told, report


@pytest.mark.parametrize("of_moments", [(), ("rows",)])
def test_moments_that_are_whole_beside_sharded_weights_are_told_however_small(of_moments):
    """The weights tell that shards were meant."""

    def loss(w, x):
        for _ in range(12):
            x = jnp.tanh(jnp.sin(x @ w) @ w.T)
        return jnp.mean(x**2)

    def step(state, x):
        m = 0.9 * state["m"]["up"] + jax.grad(loss)(state["w"]["up"], x)
        return {"w": {"up": state["w"]["up"] - m}, "m": {"up": m}}

    w, m = struct(ROW, (128, 128), "rows"), struct(ROW, (128, 128), *of_moments)
    state = {"w": {"up": w}, "m": {"up": m}}
    shardings = jax.tree.map(lambda a: a.sharding, state)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=shardings)
    report = explain(jitted, state, struct(ROW, (8192, 128), "rows"))
    assert report.memory["peak"] > 20 * 128 * 128 * 4
    assert bool(said(report)) == (not of_moments), report


# --- What is data ---------------------------------------------------------------------------------


def of_two_axes(donated, form, dtype="float32"):
    """A step of tensor parallelism: the state in shards along model, the batch along data."""

    def step(state, batch):
        def loss(w):
            y = jnp.tanh(batch["x"] @ w["up"]) @ w["down"]
            y = lax.with_sharding_constraint(y, NamedSharding(TWO, P("data")))
            return jnp.mean((y - batch["y"]).astype("float32") ** 2)

        grads = jax.grad(loss)(state["w"])
        m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
        w = jax.tree.map(lambda w, m: w - 0.1 * m, state["w"], m)
        if form == "narrow":  # the results replace no argument by their types
            w, m = jax.tree.map(lambda a: a.astype("float16"), (w, m))
        return {"w": w, "m": m}

    w = {
        "up": struct(TWO, (256, 1024), None, "model", dtype=dtype),
        "down": struct(TWO, (1024, 256), "model", dtype=dtype),
    }
    x = struct(TWO, (512, 256), "data", dtype=dtype)
    return jax.jit(step, donate_argnums=donated), ({"w": w, "m": w}, {"x": x, "y": x})


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("donated", [0, 1, (0, 1)])
def test_a_donated_batch_is_no_state(donated, dtype, backend):
    jitted, arguments = of_two_axes(donated, "plain", dtype)
    report = explain(jitted, *arguments, mesh=pod_of(backend))
    assert not said(report), report
    if donated != 0:
        assert report.findings[0].title == "donation not used" and "batch" in str(report)
    assert bool(said(report, "not donated")) == (donated == 1), report


@pytest.mark.parametrize("form", ["plain", "narrow"])
def test_a_donated_state_in_shards_along_one_axis_is_state(form):
    """Also where its new values have another type: then the moments are to be in shards along
    model as well."""
    jitted, (state, batch) = of_two_axes(0, form)
    m = {"up": struct(TWO, (256, 1024), "data"), "down": struct(TWO, (1024, 256), "data")}
    told = said(explain(jitted, {**state, "m": m}, batch))
    assert any("state['m']['up']" in one for one in told), told
