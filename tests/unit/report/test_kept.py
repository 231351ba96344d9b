"""explain() on what a step keeps for its backward pass, and on square weights in columns."""

import operator
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

ROW = grid((8,), ("data",))


def said(report, title="largest temporaries"):
    return [one.says for one in report.findings if one.title == title]


def gathering(layers, form, axis="data", dtype="float32", backend="cpu"):
    """A step in a shard_map, whose weights are gathered in each layer."""
    mesh = grid((8,), (axis,))

    def layer(w, x):
        return jnp.tanh(x @ lax.all_gather(w, axis, axis=0, tiled=True))

    def local(w, x):
        def loss(w):
            y = x
            for one in w:
                y = (jax.checkpoint(layer) if form == "checkpoint" else layer)(one, y)
            return jnp.mean(y.astype("float32") ** 2)

        return jax.tree.map(lambda a, b: a - b, w, jax.grad(loss)(w))

    specs = {"in_specs": (P(axis), P(axis)), "out_specs": P(axis)}
    w = [struct(mesh, (1024, 1024), axis, dtype=dtype) for _ in range(layers)]
    f = jax.jit(jax.shard_map(local, mesh=mesh, **specs), donate_argnums=0)
    x = struct(mesh, (64, 1024), axis, dtype=dtype)
    return explain(f, w, x, mesh=pod_of(backend))


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layers", [1, 2, 8])
def test_gathered_weights_are_advised_to_be_gathered_again_where_several_are_kept(
    layers, dtype, backend
):
    kept, again = (
        gathering(layers, form, "rows", dtype, backend) for form in ("kept", "checkpoint")
    )
    told = [one for one in said(kept) if "gathered in the forward pass" in one]
    assert not [one for one in said(again) if "gathered in the forward pass" in one], again
    if backend == "cpu":  # whose compiler gathers all of them at the beginning in both programs
        assert bool(told) == (layers == 8), kept
    else:
        assert not told or again.memory["peak"] < 0.8 * kept.memory["peak"]


def test_gathered_weights_whose_gradients_are_as_large_are_not_told():
    def local(w, x, y):
        def loss(w):
            u, d = (lax.all_gather(w[k], "data", axis=0, tiled=True) for k in "ud")
            return jnp.mean((jax.nn.gelu(x @ u) @ d - y) ** 2)

        return jax.tree.map(lambda a, b: a - 0.1 * b, w, jax.grad(loss)(w))

    f = jax.shard_map(local, mesh=ROW, in_specs=(P("data"),) * 3, out_specs=P("data"))
    w = {"u": struct(ROW, (512, 2048), "data"), "d": struct(ROW, (2048, 512), "data")}
    x = struct(ROW, (512, 512), "data")
    assert not said(explain(jax.jit(f, donate_argnums=0), w, x, x))


@pytest.mark.parametrize("form", ["kept", "checkpoint"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stacks_of_a_loop_that_are_most_together_are_told(form, dtype, layers=4):
    report = stacking(form, dtype, layers)
    told = [one for one in said(report) if "of each iteration of a loop" in one]
    assert bool(told) == (form == "kept"), report
    assert all("jax.checkpoint around the body of the loop" in one for one in told)


def stacking(form, dtype, layers):
    mesh = grid((2, 4), ("data", "model"))

    def layer(x, w):
        h = jnp.tanh(jnp.sin(jnp.exp(jnp.cos(x @ w["up"]))))
        x = x + h @ w["down"]
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P("data"))), None

    def loss(w, x):
        body = jax.checkpoint(layer) if form == "checkpoint" else layer
        x, _ = lax.scan(body, x, {"up": w["up"], "down": w["down"]})
        z = jnp.exp(jnp.sin(x @ w["out"]))
        return jnp.mean(jax.nn.logsumexp(z.astype("float32"), -1))

    w = {
        "up": struct(mesh, (layers, 256, 1024), None, "data", "model", dtype=dtype),
        "down": struct(mesh, (layers, 1024, 256), None, "model", "data", dtype=dtype),
        "out": struct(mesh, (256, 256), "data", "model", dtype=dtype),
    }
    return explain(jax.grad(loss), w, struct(mesh, (128, 256, 256), "data", dtype=dtype))


@pytest.mark.parametrize("form", ["kept", "checkpoint"])
@pytest.mark.parametrize("layers", [4, 9])
def test_layers_of_a_python_loop_are_told_by_what_they_keep(layers, form):
    def layer(x, w):
        return jnp.tanh(jnp.sin(jnp.exp(x @ w)) @ w)

    def loss(w, x):
        for _ in range(layers):
            x = (jax.checkpoint(layer) if form == "checkpoint" else layer)(x, w)
        return jnp.mean(x**2)

    report = explain(jax.grad(loss), struct(ROW, (128, 128)), struct(ROW, (65536, 128), "data"))
    told = [one for one in said(report) if "if several layers run it" in one]
    assert bool(told) == (form == "kept"), report
    assert all(int(re.search(r"(\d+)% of what", one)[1]) <= 100 for one in told), told


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("samples", [8192, 50000])
@pytest.mark.parametrize("name", ["normal", "bernoulli"])
def test_random_bits_of_samples_are_not_kept_for_the_backward_pass(name, samples, backend):
    draw = {"normal": jax.random.normal, "bernoulli": lambda k, s: jax.random.bernoulli(k, 0.4, s)}

    def loss(price, key):
        keys = lax.with_sharding_constraint(
            jax.random.split(key, samples), NamedSharding(ROW, P("data"))
        )

        def path(key):
            z = draw[name](key, (64,))
            return jnp.maximum((price * jnp.exp(jnp.cumsum(z * 0.1))).mean() - 1, 0)

        return jax.vmap(path)(keys).mean()

    key = struct(ROW, (2,), dtype="uint32")
    report = explain(jax.value_and_grad(loss), struct(ROW, ()), key, mesh=pod_of(backend))
    assert not any("for the backward pass" in one for one in said(report)), report


@pytest.mark.parametrize("form", ["plain", "scan"])
@pytest.mark.parametrize("own", [("data", "model"), (None, "model"), ("model", "data")])
def test_a_square_weight_is_told_with_its_dimension_and_spec(own, form):
    mesh = grid((2, 4), ("data", "model"))

    def layer(x, w):
        x = x + jnp.tanh(x @ w["up"]) @ w["down"]
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P("data"))), None

    def loss(w, x):
        if form == "scan":
            x, _ = lax.scan(jax.checkpoint(layer), x, w)
        else:
            x, _ = layer(x, w)
        return jnp.mean(x**2)

    first = (None,) if form == "scan" else ()
    shape = (3, 256, 256) if form == "scan" else (256, 256)
    w = {
        "up": struct(mesh, shape, *first, "data", "model"),
        "down": struct(mesh, shape, *first, *own),
    }
    report = explain(jax.grad(loss), w, struct(mesh, (32, 64, 256), "data"), try_remedies=True)
    found = [one for one in report.findings if one.title == "columns after columns"]
    assert bool(found) == (own[0] != "model"), report
    for one in found:
        spec = [*first, "model", *([own[0]] if own[0] else [])]
        text = "P(" + ", ".join("None" if e is None else f'"{e}"' for e in spec) + ")"
        assert f"dimension {len(first)}, as in {text}: then" in one.says
        assert one.tried.bytes[1] <= one.tried.bytes[0], one.tried


def mlps(form, layers=8, width=256, dtype="float32", backend="cpu"):
    """The report on gradients of layers of two products, with a jax.checkpoint of a form."""

    def mlp(x, w):
        return x + jax.nn.silu(x @ w[0]) @ w[1]

    each = jax.checkpoint(mlp)
    one = each if form in ("each", "nested", "each in a loop") else mlp

    def some(x, w, count=layers):
        for i in range(count):
            x = one(x, jax.tree.map(operator.itemgetter(i), w))
        return x

    def loop(x, w):
        return lax.scan(lambda x, w: (one(x, w), None), x, w)[0]

    def fours(x, w):
        fours = jax.tree.map(lambda a: a.reshape(layers // 4, 4, *a.shape[1:]), w)
        return lax.scan(jax.checkpoint(lambda x, w: (some(x, w, 4), None)), x, fours)[0]

    model = {
        "all": jax.checkpoint(some),
        "each": some,
        "all of a loop": jax.checkpoint(loop),
        "each in a loop": jax.checkpoint(loop),
        "fours": fours,
        "nested": fours,
    }[form]
    mesh = grid((8,), ("rows",))
    w = (
        struct(mesh, (layers, width, 4 * width), None, None, "rows", dtype=dtype),
        struct(mesh, (layers, 4 * width, width), None, None, "rows", dtype=dtype),
    )
    x = struct(mesh, (64, 512, width), "rows", dtype=dtype)
    loss = lambda w, x: jnp.mean(model(x, w).astype("float32") ** 2)  # noqa: E731
    f = jax.jit(jax.grad(loss), out_shardings=jax.tree.map(lambda a: a.sharding, w))
    return explain(f, w, x, mesh=pod_of(backend))


@pytest.mark.parametrize(
    ("form", "better", "advice"),
    [
        ("all", "each", "another around each of them"),
        ("fours", "nested", "another around each of them"),
        ("all of a loop", "each in a loop", "around the body of the loop, too"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_checkpoint_of_several_layers_is_advised_to_have_one_of_each(
    form, better, advice, dtype
):
    report, twin = (mlps(one, dtype=dtype) for one in (form, better))
    (told,) = said(report)
    assert advice in told and "computed again for the backward pass" in told
    assert not said(twin), twin
    assert twin.memory["temporaries"] < report.memory["temporaries"] / 2


def test_one_checkpoint_of_several_layers_is_found_for_a_tpu():
    report, twin = (mlps(form, backend="v5e:2x4") for form in ("all", "each"))
    assert "another around each of them" in said(report)[0]
    assert not said(twin) and twin.memory["peak"] < 0.8 * report.memory["peak"]
