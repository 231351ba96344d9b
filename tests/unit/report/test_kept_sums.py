"""explain() on sums over devices in every iteration of a loop that keeps only some of them."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P
from steps import grid, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

TITLE, TYPES = "summed in a loop", (AxisType.Auto, AxisType.Explicit)
MICRO, ROWS, WIDTH = 6, 256, 64


def said(report):
    return [one.says for one in report.findings if one.title == TITLE]


def write(outs, at, y):
    return outs.at[at].set(y)


def update(outs, at, y):
    return lax.dynamic_update_index_in_dim(outs, y.astype(outs.dtype), at, 0)


def pipelined(at_each, put=write, wrap=lambda tick: tick, take=lambda outs, t: 0.0, axis="stage"):
    """A pipeline whose outputs leave the last stage: summed `at_each` tick, or once after all."""

    def run(w, xs):
        n, me = lax.axis_size(axis), lax.axis_index(axis)

        def tick(carry, t):
            held, outs = carry
            held = jnp.where(me == 0, xs[jnp.minimum(t, len(xs) - 1)], held)
            y = jnp.tanh(held @ w[0]) + take(outs, t)
            last = jnp.where(me == n - 1, y, jnp.zeros_like(y))
            last = lax.psum(last, axis) if at_each else last  # here
            outs = put(outs, jnp.maximum(t - (n - 1), 0), last)
            on = [(i, (i + 1) % n) for i in range(n)]
            return (lax.ppermute(y, axis, on), outs), None

        start, outs = lax.pcast(jnp.zeros_like(xs[0]), axis, to="varying"), jnp.zeros_like(xs)
        outs = outs if at_each else lax.pcast(outs, axis, to="varying")
        (_, outs), _ = lax.scan(wrap(tick), (start, outs), jnp.arange(len(xs) + n - 1))
        return outs if at_each else lax.psum(outs, axis)

    return run


def stacked(at_each, is_cut=True, axis="stage"):
    """The same with outputs of the scan, of which those of the first ticks are left out."""

    def run(w, xs):
        n, me = lax.axis_size(axis), lax.axis_index(axis)

        def tick(held, t):
            held = jnp.where(me == 0, xs[jnp.minimum(t, len(xs) - 1)], held)
            y = jnp.tanh(held @ w[0])
            last = jnp.where(me == n - 1, y, jnp.zeros_like(y))
            last = lax.psum(last, axis) if at_each else last
            return lax.ppermute(y, axis, [(i, (i + 1) % n) for i in range(n)]), last

        start = lax.pcast(jnp.zeros_like(xs[0]), axis, to="varying")
        outs = lax.scan(tick, start, jnp.arange(len(xs) + n - 1))[1]
        outs = outs[n - 1 :] if is_cut else outs
        return outs if at_each else lax.psum(outs, axis)

    return run


def explained(run, names=("stage",), kind=AxisType.Auto, grad=False, dtype="float32", pod=None):
    *others, stage = names
    mesh = grid((2, 4) if others else (8,), names, kind)
    specs = {"in_specs": (P(stage), P(None, *others)), "out_specs": P(None, *others)}
    mapped = jax.shard_map(run, mesh=mesh, **specs)
    step = jax.grad(lambda w, xs: jnp.mean(mapped(w, xs) ** 2)) if grad else mapped
    w = struct(mesh, (mesh.shape[stage], WIDTH, WIDTH), stage, dtype=dtype)
    xs = struct(mesh, (MICRO, ROWS, WIDTH), None, *others, dtype=dtype)
    return explain(jax.jit(step), w, xs, mesh=pod and pod_of(pod))


def chosen(outs, at, y):
    return jnp.where(at > 2, write(outs, at, y / 2), outs)


@pytest.mark.parametrize(("kind", "grad"), [*zip(TYPES, (False, True), strict=True)])
@pytest.mark.parametrize(
    "run",
    [
        pipelined(at_each=True),
        pipelined(at_each=True, put=update),
        pipelined(at_each=True, wrap=jax.checkpoint),
        pipelined(at_each=True, put=chosen),
        stacked(at_each=True),
    ],
)
def test_a_pipeline_that_sums_its_outputs_in_each_tick(run, kind, grad):
    (told,) = said(explained(run, kind=kind, grad=grad))
    assert f"{MICRO + 7} iterations an all-reduce along stage adds 65.5 kB" in told, told
    assert "only keeps 393 kB" in told, told


def test_along_one_of_two_axes_in_bfloat16_and_for_a_chip():
    ticks = pipelined(at_each=True, axis="s")
    run = lambda w, xs: ticks(lax.pcast(w, "d", to="varying"), xs)  # noqa: E731
    for options in ({}, {"dtype": "bfloat16"}, {"pod": "v5e:2x4"}):
        (told,) = said(explained(run, names=("d", "s"), grad=True, **options))
        size = "16.4" if "dtype" in options else "32.8"
        assert f"{MICRO + 3} iterations an all-reduce along s adds {size} kB" in told, told


@pytest.mark.parametrize(
    "run",
    [
        pipelined(at_each=False),
        stacked(at_each=False),
        # as many are kept as there are iterations
        stacked(at_each=True, is_cut=False),
        # an iteration computes with what an earlier one has added
        pipelined(at_each=True, take=lambda outs, t: outs[0]),
        # no sum of parts is the same after the loop
        pipelined(at_each=True, put=lambda outs, at, y: write(outs, at, jnp.tanh(y))),
        pipelined(at_each=True, put=lambda outs, at, y: jnp.maximum(outs, write(outs, at, y))),
    ],
)
@pytest.mark.parametrize("kind", TYPES)
def test_sums_that_are_needed_in_each_iteration(run, kind):
    assert not said(explained(run, kind=kind))
    assert not said(explained(run, kind=kind, grad=True))


def test_what_it_advises_sends_less():
    each, once = (explained(pipelined(at_each), grad=True) for at_each in (True, False))
    assert once.bytes < 0.9 * each.bytes
    each, once = (explained(stacked(at_each)) for at_each in (True, False))
    assert once.bytes < 0.9 * each.bytes
