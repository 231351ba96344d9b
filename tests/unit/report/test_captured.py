"""explain() on keys that a training step captures, so that every call draws the same numbers."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

GRID = grid((8,), ("data",))
W, X, STEP = struct(GRID, (32, 32)), struct(GRID, (64, 32), "data"), struct(GRID, (), dtype="int32")
KEY, RAW = jax.random.key(0), jax.random.PRNGKey(0)


def train(draw, w, x, step):
    """A step of SGD, whose loss multiplies by what draw(shape, step) returns."""

    def loss(w):
        return jnp.mean(jnp.tanh((x * draw(x.shape, step)) @ w) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


def scanned(shape, step, key):
    def body(key, _):
        key, mine = jax.random.split(key)
        return key, jax.random.bernoulli(mine, 0.5, shape)

    return lax.scan(body, key, None, 3)[1].sum(0)


def carried(shape, step):
    """The key is fixed at first, and the second iteration folds in what the step has brought."""

    def body(key, _):
        drawn = jax.random.bernoulli(jax.random.fold_in(key, step), 0.5, shape)
        return jax.random.fold_in(key, step), drawn

    return lax.scan(body, KEY, None, 3)[1].sum(0)


def in_each_device(shape, step):
    def mine(key):
        return jax.random.normal(jax.random.fold_in(key, lax.axis_index("data")), (8, 32))

    return jax.shard_map(mine, mesh=GRID, in_specs=P(), out_specs=P("data"))(KEY)


FIXED = {
    "captured": lambda shape, step: jax.random.bernoulli(KEY, 0.5, shape),
    "raw": lambda shape, step: jax.random.bernoulli(RAW, 0.5, shape),
    "made in the step": lambda shape, step: jax.random.normal(jax.random.key(1), shape),
    "folded with a constant": lambda shape, step: jax.random.normal(
        jax.random.fold_in(KEY, 3), shape
    ),
    "gamma": lambda shape, step: jax.random.gamma(KEY, 2.0, shape),
    "split in a scan": partial(scanned, key=KEY),
    "in a branch": lambda shape, step: lax.cond(
        step > 3, lambda: jax.random.normal(KEY, shape), lambda: jnp.ones(shape)
    ),
    "rematerialised": lambda shape, step: jax.checkpoint(lambda: jax.random.normal(KEY, shape))(),
    "on each device": in_each_device,
}
CHANGED = {
    "folded with the step": lambda shape, step: jax.random.normal(
        jax.random.fold_in(KEY, step), shape
    ),
    "seeded by the step": lambda shape, step: jax.random.normal(jax.random.key(step), shape),
    "split in a scan": lambda shape, step: scanned(shape, step, jax.random.fold_in(KEY, step)),
    "changed in the carry": carried,
    "none": lambda shape, step: 1.0,
}


def said(report):
    return [finding.says for finding in report.findings if finding.title == "fixed key"]


@pytest.mark.parametrize("draw", FIXED)
def test_a_key_that_no_argument_changes_is_told_with_its_line(draw):
    (says,) = said(explain(partial(train, FIXED[draw]), W, X, STEP))
    assert says.startswith("test_captured.py:") and "fold_in" in says


@pytest.mark.parametrize("draw", CHANGED)
def test_a_key_that_the_step_changes_is_right(draw):
    assert not said(explain(partial(train, CHANGED[draw]), W, X, STEP))


def test_a_key_that_is_an_argument_is_right():
    def step(w, x, key):
        return train(lambda shape, key: jax.random.normal(key, shape), w, x, key)

    assert not said(explain(step, W, X, jax.device_put(KEY, NamedSharding(GRID, P()))))


def test_initial_weights_are_no_step():
    assert not said(explain(lambda x: x @ jax.random.normal(KEY, (32, 4)), X))


def test_several_lines_are_one_finding():
    def draw(shape, step):
        first = jax.random.bernoulli(KEY, 0.5, shape)
        second = jax.random.normal(KEY, shape)
        return first * second

    (says,) = said(explain(partial(train, draw), W, X, STEP))
    assert "with 1 other line" in says
