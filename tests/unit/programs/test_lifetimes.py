"""programs.lifetimes: the walk through a program agrees with its collectives, and with what it must
do with a layer.
"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from meshes import make_mesh

from shardlab import UnreadableProgram, collectives, lifetimes
from shardlab.pictures.draw import timeline

pytestmark = pytest.mark.reads("src/shardlab")

LINE, LAYERS = make_mesh((8,), "d"), 5
STACK, X = jnp.ones((LAYERS, 32, 32)), jnp.ones((64, 32))
SPECS = {"mesh": LINE, "in_specs": (P(None, "d"), P("d")), "out_specs": P(None, "d")}


def layer(h, W_shard):
    return jnp.tanh(h @ lax.all_gather(W_shard, "d", tiled=True)), None


def gradient(layer, unroll=1):
    def loss(stack, x):
        return lax.pmean((lax.scan(layer, x, stack, unroll=unroll)[0] ** 2).mean(), "d")

    return jax.jit(jax.shard_map(jax.grad(loss), **SPECS))


ONCE, TWICE = gradient(layer), gradient(jax.checkpoint(layer))


def labels(lane):
    return [label for label, *_ in lane]


@pytest.mark.parametrize("program", [ONCE, TWICE, gradient(jax.checkpoint(layer), LAYERS)])
def test_every_collective_is_a_step_of_its_layer(program):
    sent, made = collectives(program, STACK, X), lifetimes(program, STACK, X)
    assert list(made.lanes) == [f"layer {i}" for i in range(LAYERS)]
    for kind, count in sent.items():
        assert sum(labels(lane).count(kind) for lane in made.lanes.values()) == count
    for lane in made.lanes.values():
        assert labels(lane)[0] == "all-gather" and labels(lane)[-1] == "reduce-scatter"
    at = [
        step
        for lane in made.lanes.values()
        for label, step, _ in lane
        if not label.startswith("waits")
    ]
    assert sorted(at) == list(range(made.steps))  # each step is that of one layer
    timeline(made.lanes, unit="steps")


def test_layers_run_in_order_and_backwards_again():
    made = lifetimes(TWICE, STACK, X)
    gathered = sorted(
        (start, lane)
        for lane, held in made.lanes.items()
        for what, start, _ in held
        if what[4:] == "gather"
    )
    forward = [f"layer {i}" for i in range(LAYERS)]
    assert [lane for _, lane in gathered] == forward + forward[::-1]


def test_a_layer_that_is_gathered_twice_is_dropped_in_between():
    once, twice = lifetimes(ONCE, STACK, X), lifetimes(TWICE, STACK, X)
    assert (once.most_held, twice.most_held) == (LAYERS, 1)
    # Two products of the gradient, and the product of the forward pass once or, recomputed, twice.
    assert {labels(lane).count("product") for lane in once.lanes.values()} == {3}
    assert {labels(lane).count("product") for lane in twice.lanes.values()} == {4}
    waiting = {
        lane: sum(end - start for what, start, end in held if what.startswith("waits"))
        for lane, held in once.lanes.items()
    }
    assert [waiting[f"layer {i}"] for i in range(LAYERS)] == sorted(waiting.values(), reverse=True)
    assert not any("waits in memory" in labels(lane) for lane in twice.lanes.values())


def test_what_cannot_be_followed_is_refused():
    with pytest.raises(ValueError, match="gathers no layer"):
        lifetimes(lambda x: x @ x.T, X)

    def until(x):
        return lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x.T @ x, x)

    with pytest.raises(UnreadableProgram, match="how often this loop runs"):
        lifetimes(until, X)
