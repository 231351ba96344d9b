"""explain() on weights whose spec has an activation gathered."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from steps import grid, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

MESH = grid((2, 4), ("batch", "model"))
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])


def told(report, title):
    return [one for one in report.findings if one.title == title]


# --- Columns after columns ------------------------------------------------------------------------


def modulated(x, c, w):
    """The columns of a small product give the axis to a large activation."""
    scale = (c @ w["mod"])[:, None]
    return jax.nn.gelu((x * scale) @ w["up"]) @ w["down"]


def in_layers(x, c, w):
    body = jax.checkpoint(lambda x, _: (modulated(x, c, w), None))
    return lax.scan(body, x, None, length=3)[0]


def weights(mod, up=(None, "model"), dtype="float32"):
    shapes = {"mod": (512, 256), "up": (256, 1024), "down": (1024, 256)}
    specs = {"mod": mod, "up": up, "down": ("model",)}
    return {name: struct(MESH, shapes[name], *specs[name], dtype=dtype) for name in shapes}


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("f", [modulated, in_layers])
def test_columns_whose_rows_would_add_more_get_the_advice_that_sends_less(f, dtype, backend):
    x = struct(MESH, (8, 128, 256), "batch", dtype=dtype)
    c = struct(MESH, (8, 512), "batch", dtype=dtype)
    wrong, right = weights((None, "model"), dtype=dtype), weights(("model",), dtype=dtype)
    report = explain(f, x, c, wrong, mesh=pod_of(backend), try_remedies=backend == "cpu")
    if f is in_layers and backend != "cpu":  # whose compiler leaves what the loop carries in shards
        assert not told(report, "columns after columns")
        return
    (one,) = told(report, "columns after columns")
    assert "shard the dimension of 512 of that instead" in one.says, one
    if backend == "cpu":
        assert one.tried.bytes[1] < one.tried.bytes[0], one
    twin = explain(f, x, c, right, mesh=pod_of(backend))
    assert not told(twin, "columns after columns") and twin.bytes < report.bytes


@BOTH
@pytest.mark.parametrize("is_wide", [True, False])
def test_rows_after_columns_are_advised_where_their_sum_is_smaller(is_wide, backend):
    """Or where nothing else sends less: nothing is said."""
    width = 1024 if is_wide else 128
    x = struct(MESH, (8, 128, 256), "batch")
    w = [struct(MESH, (256, width), None, "model"), struct(MESH, (width, 256), None, "model")]
    f = lambda x, a, b: x + jnp.tanh(jnp.tanh(x @ a) @ b)  # noqa: E731
    report = explain(f, x, *w, mesh=pod_of(backend), try_remedies=backend == "cpu")
    for one in told(report, "columns after columns"):
        assert is_wide and "Shard the dimension of 1,024 of b" in one.says
        assert backend != "cpu" or one.tried.bytes[1] < one.tried.bytes[0], one
    assert bool(told(report, "columns after columns")) == is_wide, report


# --- Small weights --------------------------------------------------------------------------------

SMALL = "gathered for a small weight"


def routed(x, w):
    return jax.nn.softmax(jnp.einsum("bse,en->bsn", jnp.tanh(x), w["router"])), x * w["scale"]


def routed_as_it_is(x, w):
    return jax.nn.softmax(x @ w["router"]), x * w["scale"]


def routed_and_projected(x, w):
    """The other product needs the activation whole anyway."""
    return jnp.tanh(x) @ w["up"], jax.nn.softmax(jnp.tanh(x) @ w["router"])


def gradient(f):
    return jax.jit(
        lambda x, w: jax.tree.map(
            lambda a, b: a - b, w, jax.grad(lambda w: sum(jnp.sum(one**2) for one in f(x, w)))(w)
        ),
        donate_argnums=1,
    )


def router(spec, f, dtype="float32"):
    w = {"router": struct(MESH, (1024, 16), *spec, dtype=dtype)}
    if f is routed_and_projected:
        return w | {"up": struct(MESH, (1024, 4096), None, "model", dtype=dtype)}
    return w | {"scale": struct(MESH, (1024,), "model", dtype=dtype)}


@BOTH
@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("f", [routed, routed_as_it_is])
def test_a_small_weight_for_which_an_activation_is_gathered(f, dtype, is_gradient, backend):
    x = struct(MESH, (4, 512, 1024), "batch", None, "model", dtype=dtype)
    program, pod = gradient(f) if is_gradient else f, pod_of(backend)
    report = explain(program, x, router((None, "model"), f, dtype), mesh=pod)
    assert told(report, SMALL), report
    assert "Shard the dimension of 1,024 of w['router']" in told(report, SMALL)[0].says
    gathers = [move for move in report.moves if move.kind == "all-gather"]
    assert all("FSDP" not in move.cause for move in gathers if move.array == "x"), report
    for spec in (("model",), ()):
        twin = explain(program, x, router(spec, f, dtype), mesh=pod)
        assert not told(twin, SMALL) and twin.bytes < report.bytes / 4, twin


@BOTH
@pytest.mark.parametrize("is_gradient", [False, True])
def test_an_activation_that_another_product_needs_whole_is_not_told(is_gradient, backend):
    x = struct(MESH, (4, 512, 1024), "batch", None, "model")
    f = gradient(routed_and_projected) if is_gradient else routed_and_projected
    report = explain(f, x, router((None, "model"), routed_and_projected), mesh=pod_of(backend))
    assert report.moves and not told(report, SMALL), report


@BOTH
@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("shape", [(8, 256), (8, 16, 256)])
def test_weights_that_fsdp_gathers_for_a_small_batch_are_on_purpose(shape, is_gradient, backend):
    mesh = grid((8,), ("data",))
    f = lambda x, w: (jnp.tanh(x @ w["a"]) @ w["b"],)  # noqa: E731
    w = {"a": struct(mesh, (256, 4096), "data"), "b": struct(mesh, (4096, 256), "data")}
    f = gradient(f) if is_gradient else f
    report = explain(f, struct(mesh, shape, "data"), w, mesh=pod_of(backend))
    assert report.moves and not told(report, SMALL), report
