"""explain() on gradients that lack an axis along which their parameters are in shards."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
MESHES = pytest.mark.parametrize(
    ("mesh", "whole", "cut"),
    [
        (grid((4, 2), ("fsdp", "tp")), "fsdp", "tp"),
        (grid((2, 4), ("rows", "columns")), "rows", "columns"),
        (grid((2, 2, 2), ("copies", "a", "b")), "a", "b"),
    ],
    ids=["fsdp", "rows", "copies"],
)


def said(report, title="replicated result"):
    return [one.says for one in report.findings if one.title == title]


def layers(mesh, whole, cut, dtype="float32"):
    """Stacked layers, FSDP along one axis and tensor parallelism along the other."""

    def on(x, *spec):
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def layer(x, w):
        h = on(jax.nn.relu(x @ w["up"]), whole, None, cut)
        return on(x + h @ w["down"], whole), None

    def loss(w, x):
        return jnp.mean(lax.scan(jax.checkpoint(layer), x, w)[0].astype("float32") ** 2)

    w = {
        "up": struct(mesh, (4, 128, 512), None, whole, cut, dtype=dtype),
        "down": struct(mesh, (4, 512, 128), None, cut, whole, dtype=dtype),
    }
    return loss, w, struct(mesh, (8, 64, 128), whole, dtype=dtype)


@BOTH
@MESHES
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["grad", "value and grad"])
def test_gradients_of_a_scan_that_lack_an_axis_get_the_specs_of_their_parameters(
    form, dtype, mesh, whole, cut, backend
):
    if backend != "cpu" and (form, dtype) != ("grad", "float32"):
        pytest.skip("one of them is enough")
    loss, w, x = layers(mesh, whole, cut, dtype)
    f = jax.grad(loss) if form == "grad" else jax.value_and_grad(loss)
    report = explain(f, w, x, mesh=pod_of(backend))
    (says,) = said(report)
    name = "result" if form == "grad" else "result[1]"
    assert f"{name}['down'] and {name}['up']" in says and f"stored whole along {whole}" in says
    assert f"""the spec of w['down'], to {name}['down']""" in says
    assert f'P(None, "{cut}", "{whole}")' in says
    assert report.findings[0].says == says or len(mesh.shape) == 3  # along copies all is repeated
    own = jax.tree.map(lambda one: one.sharding, w)
    layouts = own if form == "grad" else (NamedSharding(mesh, P()), own)
    better = explain(jax.jit(f, out_shardings=layouts), w, x, mesh=pod_of(backend))
    assert said(better) == []
    assert (
        better.memory["results"] < 0.6 * report.memory["results"] and better.bytes <= report.bytes
    )


@BOTH
def test_gradients_in_two_specs_that_only_their_order_tells_apart(backend):
    mesh = grid((4, 2), ("data", "model"))

    def on(x, *spec):
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def loss(up, down, x):
        return jnp.mean(on(jax.nn.relu(on(x @ up, "data", "model")) @ down, "data") ** 2)

    up = struct(mesh, (512, 512), "data", "model")
    down = struct(mesh, (512, 512), "model", "data")
    x = struct(mesh, (64, 512), "data")
    report = explain(jax.grad(loss, argnums=(0, 1)), up, down, x, mesh=pod_of(backend))
    for says in said(report):
        names = {"result[0]": "up", "result[1]": "down"}
        first = says.partition(",")[0]
        assert "result[0] and result[1]" in says or f"the spec of {names[first]}" in says
    assert said(report), report


@MESHES
def test_other_results_of_a_type_are_not_told(mesh, whole, cut):
    """Those of a step, of a parameter that is whole along the batch's axis, and without a backward
    pass.
    """
    loss, w, x = layers(mesh, whole, cut)

    def step(w, x):
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w, x))

    layouts = jax.tree.map(lambda one: one.sharding, w)
    f = jax.jit(step, donate_argnums=0, out_shardings=layouts)
    assert said(explain(f, w, x)) == []
    by_columns = {
        "up": struct(mesh, (4, 128, 512), None, None, cut),
        "down": struct(mesh, (4, 512, 128), None, cut),
    }
    assert said(explain(jax.grad(loss), by_columns, x)) == []
    gathered = NamedSharding(mesh, P(None, None, cut))
    gather = jax.jit(lambda w: 1.0 * w, out_shardings=gathered)
    assert said(explain(gather, w["up"])) == []
