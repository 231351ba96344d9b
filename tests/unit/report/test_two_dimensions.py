"""explain() on results that get one axis along two dimensions, and on what decides between them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, pod_of, struct

from shardlab.programs.inherited import inherited_axes
from shardlab.report.explain import explain
from shardlab.report.specs import of_contested

pytestmark = pytest.mark.reads("src/shardlab")

TITLE = "axis on two dimensions"
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])


def told(f, arguments, backend="cpu"):
    report = explain(f, *arguments, mesh=pod_of(backend))
    return [one.says for one in report.findings if one.title == TITLE], report


def to(mesh, x, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def dropout(x):
    return jnp.where(jnp.cos(x.astype("float32")) > 0, x / 0.9, 0)


def layers_with_dropout(rows, columns, form, dtype="float32"):
    """Weights in shards along both axes, and one that is whole along the second one on purpose."""
    mesh = grid((2, 4), (rows, columns))

    def layer(x, w):
        k = jnp.tanh(x @ w["k"])
        x = to(mesh, x + dropout(jnp.tanh(x @ w["up"]) @ w["down"]), rows)
        return to(mesh, x * k, rows), None

    def loss(w, x):
        if form == "plain":
            for n in range(2):
                x, _ = layer(x, {name: one[n] for name, one in w.items()})
        else:
            x, _ = lax.scan(jax.checkpoint(layer) if form == "checkpoint" else layer, x, w)
        return jnp.mean(x.astype("float32") ** 2)

    w = {
        "k": struct(mesh, (2, 256, 256), None, rows, dtype=dtype),
        "up": struct(mesh, (2, 256, 512), None, rows, columns, dtype=dtype),
        "down": struct(mesh, (2, 512, 256), None, columns, rows, dtype=dtype),
    }
    return jax.grad(loss), (w, struct(mesh, (32, 64, 256), rows, dtype=dtype))


@BOTH
@pytest.mark.parametrize("form", ["plain", "scan", "checkpoint"])
def test_a_batch_that_the_next_constraint_keeps_is_not_told(form, backend):
    says, report = told(*layers_with_dropout("data", "model", form), backend)
    assert not says, report


def test_names_and_types_do_not_matter_to_what_the_next_constraint_keeps():
    says, report = told(*layers_with_dropout("rows", "columns", "checkpoint", "bfloat16"))
    assert not says, report


def logits(spec, vocabulary, is_gradient):
    """Of activations that are in shards along the sequence, and whose keys are gathered."""
    mesh = grid((2, 4), ("data", "model"))

    def loss(w, x):
        for n in range(2):
            keys = to(mesh, x @ w["keys"][n], "data")
            scores = jax.nn.softmax(jnp.einsum("bsd,btd->bst", x, keys) / 16, -1)
            x = to(mesh, x + jnp.einsum("bst,btd->bsd", scores, keys), "data", "model")
        z = x @ w["head"]
        z = to(mesh, z, *spec) if spec else z
        return jnp.mean(jax.nn.logsumexp(z, -1))

    w = {
        "keys": struct(mesh, (2, 256, 256)),
        "head": struct(mesh, (256, vocabulary), None, "model"),
    }
    f = jax.grad(loss) if is_gradient else loss
    return f, (w, struct(mesh, (8, 256, 256), "data", "model"))


@BOTH
@pytest.mark.parametrize("is_gradient", [False, True], ids=["forward", "gradient"])
def test_a_sequence_that_is_gathered_for_a_larger_weight_is_not_told(is_gradient, backend):
    says, report = told(*logits((), 4096, is_gradient), backend)
    assert not says, report
    if backend == "cpu":
        _, by_advice = told(*logits(("data", "model"), 4096, is_gradient))
        assert report.bytes <= by_advice.bytes


# --- The batch is lost ----------------------------------------------------------------------------


def looked_up(own, is_kept):
    mesh = grid((8,), ("data",))

    def loss(params, tokens):
        x = params["embed"][tokens] / 0.9
        x = to(mesh, x, *own) if is_kept else x
        h = jax.nn.silu(x @ params["up"]) @ params["down"]
        return jnp.mean(jax.nn.logsumexp(h @ params["embed"].T, -1))

    params = {
        "embed": struct(mesh, (4096, 256), None, "data"),
        "up": struct(mesh, (256, 1024), None, "data"),
        "down": struct(mesh, (1024, 256), None, "data"),
    }
    return jax.grad(loss), (params, struct(mesh, (64, 128), *own, dtype="int32"))


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_batch_that_is_lost_is_told_where_no_constraint_follows(is_kept):
    says, report = told(*looked_up(("data",), is_kept))
    assert bool(says) != is_kept, report
    if says:
        assert "gets data along the batch, and along another dimension from params" in says[0]
        assert 'A constraint P("data") on it lets the batch keep it' in says[0]


def test_a_dimension_that_is_not_the_first_is_told_by_its_number():
    f, arguments = looked_up((None, "data"), False)
    jaxpr = jax.jit(f).trace(*arguments).jaxpr.jaxpr
    shown = inherited_axes(jaxpr, [one.sharding for one in jax.tree.leaves(arguments)])
    (says,) = (
        one.says for one in of_contested(shown, [], {("f.py", 1): (8, 1)}, {2: "up"}, {"data": 8})
    )
    assert "gets data along dimension 1, and along another dimension from" in says
    assert 'A constraint P(None, "data") on it lets dimension 1 keep it' in says
    lacking = {("f.py", 1): ({"data"}, set())}
    shown = replace(shown, products=lacking)
    assert not [*of_contested(shown, [], {("f.py", 1): (8, 1)}, {2: "up"}, {"data": 8})]
