"""shardlab.costs against compiled programs, and against what must always hold.

tests/unit/costs/test_published_problems.py holds it against the published answers of *How To Scale
Your Model*.
"""

import inspect
import math
import re
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from scaling_book import of_many

from shardlab import (
    CHIPS,
    MODELS,
    Chip,
    Model,
    chip,
    collectives,
    costs,
    hardware,
    machine,
    training_step,
)
from shardlab.costs import (
    REMAT,
    Parallelism,
    Remat,
    activation_bytes,
    collective_bytes,
    collective_seconds,
    crossover_bytes,
    hierarchical_seconds,
    latency_seconds,
    layer,
    matmul,
    node_bytes,
    parallelisms,
    send_seconds,
    step_cost,
    training_flops,
    training_memory,
)
from shardlab.costs.inference import DecodeCost, decode_cost
from shardlab.pods import pod as pods

pytestmark = pytest.mark.reads("src/shardlab", "book/static")

LLAMA2, LLAMA3 = MODELS["llama-2-13b"], MODELS["llama-3-70b"]
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")


def test_a_compiled_step_leaves_out_a_rematerialised_layers_last_product():
    """The difference that rematerialisation makes to the FLOPs of a layer's loop body is ours
    within 3 %.
    """
    model = Model(4, 256, 1024, 8, 4, 32, 1024)
    place = jax.make_mesh(
        (1, 1, 1), costs.AXES, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:1]
    )

    def flops(remat):
        step, arguments = training_step(model, place, 2, 128, remat)
        return jax.jit(step).lower(*arguments).compile().cost_analysis()["flops"]

    again = model.layers * (flops("block") - flops("none"))  # a loop body is counted once
    ours = training_flops(model, 256, 128, "block") - training_flops(model, 256, 128, "none")
    assert again == pytest.approx(ours, rel=0.03)
    whole = 2.0 * model.layers * 256 * (model.attention_parameters + model.mlp_parameters)
    assert again < 0.85 * whole


def test_the_parameters_of_a_published_model_are_exact():
    """https://huggingface.co/meta-llama/Meta-Llama-3-70B lists its parameters."""
    assert LLAMA3.parameters == 70_553_706_496


# --- Compiled programs ----------------------------------------------------------------------------


def mesh(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def manual(f, mesh, in_specs, out_specs, **how):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **how))


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_bytes_of_each_collective_are_those_of_the_compiled_program(n):
    """On an array of 960 n floats, of which each device has 960."""
    ring, held = [(i, (i + 1) % n) for i in range(n)], 960 * 4
    programs = {
        "all-gather": (lambda x: lax.all_gather(x, "d", tiled=True), held * n),
        "reduce-scatter": (lambda x: lax.psum_scatter(x, "d", tiled=True), held),
        "all-reduce": (lambda x: lax.psum(x, "d"), held),
        "all-to-all": (lambda x: lax.all_to_all(x, "d", 0, 0, tiled=True), held),
        "collective-permute": (lambda x: lax.ppermute(x, "d", ring), held),
    }
    x = jax.ShapeDtypeStruct((960 * n,), jnp.float32)
    for kind, (f, array) in programs.items():
        found = collectives(manual(f, mesh(d=n), P("d"), P("d"), check_vma=False), x)
        assert found.bytes == collective_bytes(kind, array, n), kind
        assert set(found) <= {kind} and (found or n == 1)


def test_the_four_matmuls():
    """Of book/auto.md: A (16, 32) times B (32, 24) on eight devices, in four layouts."""
    line = mesh(d=8)

    def sent(left, right):
        shapes = (((16, 32), left), ((32, 24), right))
        arrays = [
            jax.ShapeDtypeStruct(s, jnp.float32, sharding=NamedSharding(line, P(*p)))
            for s, p in shapes
        ]
        return collectives(jnp.matmul, *arrays).bytes

    assert sent(("d", None), ()) == sent((), (None, "d")) == 0
    assert sent((None, "d"), ("d", None)) == collective_bytes("all-reduce", 16 * 24 * 4, 8)
    assert sent((None, "d"), ()) == collective_bytes("all-reduce", 16 * 24 * 4, 8)
    assert sent(("d", None), (None, "d")) == collective_bytes("all-gather", 16 * 32 * 4, 8)


SMALL = Model(layers=3, d_model=64, d_ff=128, heads=8, kv_heads=4, head_dim=16, vocab=256)
BATCH, SEQUENCE = 16, 16
F32 = {"parameters": "f32", "gradients": "f32", "moments": "f32", "activations": "f32"}


def small_parameters():
    d, f, v = SMALL.d_model, SMALL.d_ff, SMALL.vocab
    heads, kv, h = SMALL.heads, SMALL.kv_heads, SMALL.head_dim
    one = {"q": (d, heads, h), "k": (d, kv, h), "v": (d, kv, h), "o": (heads, h, d)}
    one |= {"gate": (d, f), "up": (d, f), "down": (f, d), "norm1": (d,), "norm2": (d,)}
    tree = {
        "layers": [dict(one) for _ in range(SMALL.layers)],
        "in": (v, d),
        "out": (d, v),
        "norm": (d,),
    }
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, jnp.float32), tree, is_leaf=lambda s: isinstance(s, tuple)
    )


def small_specs(fsdp, tensor):
    one = {
        "q": P(fsdp, tensor),
        "k": P(fsdp, tensor),
        "v": P(fsdp, tensor),
        "o": P(tensor, None, fsdp),
    }
    one |= {
        "gate": P(fsdp, tensor),
        "up": P(fsdp, tensor),
        "down": P(tensor, fsdp),
        "norm1": P(fsdp),
        "norm2": P(fsdp),
    }
    return {
        "layers": [dict(one) for _ in range(SMALL.layers)],
        "in": P(tensor, fsdp),
        "out": P(fsdp, tensor),
        "norm": P(fsdp),
    }


def small_step(specs, batch_axes, fsdp, tensor, rate=0.1):
    """A training step of a decoder-only transformer, for one device, with the collectives that its
    axes need.
    """

    def varying(x, axes):
        """The same numbers, but gradients are added up over these axes here, once for all uses."""
        zeros = [lax.axis_index(axis) * jnp.zeros((), x.dtype) for axis in axes if axis]
        return sum(zeros, x)

    def whole(p, spec):
        """A parameter as the layers use it; its gradient is scattered over fsdp, and then added up
        over data.
        """
        p = varying(p, [axis for axis in batch_axes if axis not in spec])
        cut = fsdp is not None and fsdp in tuple(spec)
        return lax.all_gather(p, fsdp, axis=tuple(spec).index(fsdp), tiled=True) if cut else p

    def summed(x):
        return x if tensor is None else lax.psum(x, tensor)

    def norm(x, scale):
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    def loss(p, tokens):
        here = 0 if tensor is None else lax.axis_index(tensor) * p["in"].shape[0]
        local = tokens - here
        inside = (local >= 0) & (local < p["in"].shape[0])
        x = summed(
            jnp.where(inside[..., None], p["in"][jnp.clip(local, 0, p["in"].shape[0] - 1)], 0)
        )
        for one in p["layers"]:
            h = varying(norm(x, one["norm1"]), [tensor])
            q, k, v = (jnp.einsum("btd,dnh->btnh", h, one[name]) for name in "qkv")
            q = q.reshape(*k.shape[:3], -1, SMALL.head_dim)
            scores = jnp.einsum("btkgh,bskh->bkgts", q, k)
            causal = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
            weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
            mixed = jnp.einsum("bkgts,bskh->btkgh", weights, v).reshape(
                *x.shape[:2], -1, SMALL.head_dim
            )
            x = x + summed(jnp.einsum("btnh,nhd->btd", mixed, one["o"]))
            h = varying(norm(x, one["norm2"]), [tensor])
            x = x + summed((jax.nn.silu(h @ one["gate"]) * (h @ one["up"])) @ one["down"])
        logits = varying(norm(x, p["norm"]), [tensor]) @ p["out"]
        total = jnp.log(summed(jnp.exp(logits).sum(-1)))
        wanted = jnp.roll(tokens, -1, 1) - here
        inside = (wanted >= 0) & (wanted < logits.shape[-1])
        hit = jnp.take_along_axis(logits, jnp.clip(wanted, 0, logits.shape[-1] - 1)[..., None], -1)[
            ..., 0
        ]
        return (total - summed(jnp.where(inside, hit, 0))).mean()

    def step(p, tokens):
        def mean_loss(p):
            value = loss(jax.tree.map(whole, p, specs), tokens)
            return lax.pmean(value, batch_axes) if batch_axes else value

        value, grads = jax.value_and_grad(mean_loss)(p)
        return jax.tree.map(lambda p, g: p - rate * g, p, grads), value

    return step


@cache
def small_program(data, fsdp, tensor):
    """(the compiled step, what a device sends along each axis)."""
    place = mesh(data=data, fsdp=fsdp, tensor=tensor)
    axes = [axis for axis, size in (("data", data), ("fsdp", fsdp)) if size > 1]
    names = "fsdp" if fsdp > 1 else None, "tensor" if tensor > 1 else None
    specs, batch = small_specs(*names), P(tuple(axes) or None)
    f = manual(small_step(specs, tuple(axes), *names), place, (specs, batch), (specs, P()))
    tokens = jax.ShapeDtypeStruct((BATCH, SEQUENCE), jnp.int32)
    compiled = f.lower(small_parameters(), tokens).compile()
    sent = {"data": 0, "fsdp": 0, "tensor": 0}
    for move in collectives(compiled, mesh=place).moves:
        along = [axis for axis in move.axes if place.shape[axis] > 1]
        share = {axis: 1 / len(along) for axis in along}
        for axis in along:
            sent[axis] += move.times * move.bytes * share[axis]
    return compiled, sent


@pytest.mark.parametrize("cut", [(1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 4), (2, 2, 2)])
def test_a_compiled_training_step(cut):
    """Bytes along each axis within 1 % (the loss; norms, which tensor does not cut), operations
    within 8 %.
    """
    compiled, sent = small_program(*cut)
    ours = step_cost(
        SMALL,
        "v5e",
        Parallelism(*cut),
        BATCH * SEQUENCE,
        SEQUENCE,
        remat="none",
        gathers=1,
        logits="f32",
        **F32,
    )
    for axis in sent:
        assert sent[axis] == pytest.approx(ours.axes[axis].bytes, rel=0.01), axis
    assert compiled.cost_analysis()["flops"] == pytest.approx(ours.flops, rel=0.08)
    tokens = BATCH * SEQUENCE * 4 / (cut[0] * cut[1])
    held = compiled.memory_analysis().argument_size_in_bytes - tokens
    norms = (2 * SMALL.layers + 1) * SMALL.d_model * 4  # every chip of a tensor group has them
    assert 0 <= held - ours.memory.parameter_bytes <= norms


def test_data_parallelism_and_fsdp_send_what_the_formula_says():
    """But for the loss, one number, exactly."""
    _, sent = small_program(8, 1, 1)
    ours = step_cost(SMALL, "v5e", Parallelism(8), BATCH * SEQUENCE, **F32)
    assert sent["data"] == ours.axes["data"].bytes + collective_bytes("all-reduce", 4, 8)
    _, sent = small_program(1, 8, 1)
    ours = step_cost(SMALL, "v5e", Parallelism(1, 8), BATCH * SEQUENCE, gathers=1, **F32)
    assert sent["fsdp"] == ours.axes["fsdp"].bytes + collective_bytes("all-reduce", 4, 8)


# --- What must always hold ------------------------------------------------------------------------

amounts = st.integers(0, 10**12)
devices = st.integers(1, 8)
chips = st.sampled_from(sorted(CHIPS))


@settings(deadline=None)
@given(kind=st.sampled_from(KINDS), few=amounts, more=amounts, n=devices, name=chips)
def test_more_bytes_take_no_less_time(kind, few, more, n, name):
    few, more = sorted((few, more))
    assert collective_seconds(kind, few, n, name) <= collective_seconds(kind, more, n, name)
    assert collective_bytes(kind, few, n) <= collective_bytes(kind, more, n)
    assert hierarchical_seconds(kind, few, n, 2, name) <= hierarchical_seconds(
        kind, more, n, 2, name
    )


@given(array=amounts, n=devices, name=chips, ring=st.booleans())
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(array, n, name, ring):
    def seconds(kind):
        return collective_seconds(kind, array, n, name, ring)

    assert seconds("all-reduce") == pytest.approx(seconds("reduce-scatter") + seconds("all-gather"))
    assert collective_bytes("all-reduce", array, n) == pytest.approx(
        2 * collective_bytes("all-gather", array, n)
    )


@given(kind=st.sampled_from(KINDS), n=st.integers(2, 8), name=chips, times=st.floats(0.001, 1000))
def test_latency_decides_below_the_crossover(kind, n, name, times):
    array = crossover_bytes(kind, n, name) * times
    seconds, latency = collective_seconds(kind, array, n, name), latency_seconds(kind, n, name)
    assert seconds == pytest.approx(latency * max(times, 1))
    assert collective_seconds(kind, 10**12, 1, name) == crossover_bytes(kind, 1, name) == 0


@given(
    array=amounts, inner=devices, outer=devices, kind=st.sampled_from(["all-gather", "all-reduce"])
)
def test_two_levels_never_send_more_over_the_slow_link(array, inner, outer, kind):
    flat = node_bytes(kind, array, inner, outer, hierarchical=False)
    assert node_bytes(kind, array, inner, outer) <= flat
    assert node_bytes(kind, array, 1, outer) == node_bytes(
        kind, array, 1, outer, hierarchical=False
    )
    assert inner * collective_bytes(kind, array / inner, outer) == pytest.approx(
        node_bytes(kind, array, inner, outer)
    )


def test_a_ring_is_twice_a_line_and_axes_add_up():
    for kind in ("all-gather", "all-to-all"):
        assert collective_seconds(kind, 1e9, 8, "v5p", ring=False) == pytest.approx(
            2 * collective_seconds(kind, 1e9, 8, "v5p", ring=True)
        )
    line = of_many(collective_seconds("all-gather", 1e9, 8, "v5p"), 8)
    assert of_many(collective_seconds("all-gather", 1e9, (8, 8, 8), "v5p"), 512) == pytest.approx(
        line / 3
    )
    assert of_many(collective_seconds("all-gather", 1e9, (8, 1, 1), "v5p"), 8) == pytest.approx(
        line
    )


def routed(shape):
    """Messages over the busiest link when every chip of a torus sends one to every other, the
    shortest way.
    """
    links = {}
    for start in np.ndindex(shape):
        for end in np.ndindex(shape):
            here = list(start)
            for axis, n in enumerate(shape):
                ahead = (end[axis] - here[axis]) % n
                ways = (
                    [(1, 1.0)]
                    if ahead < n - ahead
                    else [(-1, 1.0)]
                    if ahead > n - ahead
                    else [(1, 0.5), (-1, 0.5)]
                )
                for way, share in ways:
                    at = here[axis]
                    for _ in range(min(ahead, n - ahead)):
                        link = (*here[:axis], at, *here[axis + 1 :], axis, way)
                        links[link] = links.get(link, 0) + share
                        at = (at + way) % n
                here[axis] = end[axis]
    return max(links.values())


@pytest.mark.parametrize("shape", [(4,), (8,), (4, 4), (4, 8)])
def test_the_busiest_link_of_an_all_to_all_is_that_of_a_simulation(shape):
    total = math.prod(shape)
    ours = collective_seconds("all-to-all", 1e12, shape, "v5p", ring=True) * 90e9
    assert ours == pytest.approx(routed(shape) * 1e12 / total)


@pytest.mark.parametrize("name", CHIPS)
def test_a_step_on_each_chip(name):
    found = step_cost(LLAMA3, name, Parallelism([1, 4], 16, [8, 2]), 1e6)
    assert np.all(found.seconds <= found.serial_seconds) and np.all(
        found.seconds >= found.compute_seconds
    )
    assert np.all((found.mfu > 0) & (found.mfu <= 1))
    assert found.axes["data"].seconds[0] == 0 < found.axes["data"].seconds[1]
    bound = [found.parts[part][i] for i, part in enumerate(found.bound)]
    assert np.array_equal(bound, found.seconds)


def test_a_step_over_nodes_and_slices_takes_longer():
    near = step_cost(LLAMA2, "H100", Parallelism(1, 8, 1), 1e6)
    far = step_cost(
        LLAMA2, "H100", Parallelism(1, 64, 1), 8e6
    )  # over two nodes it would take no longer: gpus, quiz 4.5
    assert (
        far.axes["fsdp"].seconds > near.axes["fsdp"].seconds
        and far.compute_seconds == near.compute_seconds
    )
    one, two = (
        step_cost(LLAMA2, machine("v5p", 128, slices=slices), Parallelism(2, 64), 1e5)
        for slices in (1, 2)
    )
    assert (
        two.axes["data"].seconds > 2 * one.axes["data"].seconds
        and two.axes["fsdp"].seconds <= one.axes["fsdp"].seconds
    )
    assert one.axes["data"].bytes == two.axes["data"].bytes


def test_a_line_of_chips_is_no_ring():
    """A v5e closes axes of 16 chips; on 4x4 the same bytes take twice as long as rings would."""
    ring = step_cost(LLAMA2, "v5e", Parallelism(1, 16), 1e5, torus_axes={"fsdp": 2})
    line = step_cost(LLAMA2, "v5e", Parallelism(1, 16), 1e5)
    assert (
        line.axes["fsdp"].seconds == pytest.approx(2 * ring.axes["fsdp"].seconds)
        and line.axes["fsdp"].bytes == ring.axes["fsdp"].bytes
    )
    whole = step_cost(LLAMA2, "v5e", Parallelism(1, 256), 1e5)
    assert whole.axes["fsdp"].seconds == pytest.approx(
        step_cost(LLAMA2, "v5e", Parallelism(1, 256), 1e5, torus_axes={"fsdp": 2})
        .axes["fsdp"]
        .seconds
    )


def test_an_axis_between_slices_takes_no_axis_of_the_torus():
    one = step_cost(LLAMA3, machine("v5e", 256), Parallelism(1, 256), 1e6)
    two = step_cost(LLAMA3, machine("v5e", 512, slices=2), Parallelism(2, 256), 2e6)
    assert two.axes["fsdp"].seconds == pytest.approx(one.axes["fsdp"].seconds)


def test_tensor_parallelism_between_nodes_is_slower_than_within_one():
    within, between = (step_cost(LLAMA3, "H100", Parallelism(1, 64 // n, n), 4e6) for n in (8, 16))
    assert between.axes["tensor"].seconds > 1.9 * within.axes["tensor"].seconds
    assert between.expected_seconds > 1.2 * within.expected_seconds


def test_more_gpus_than_a_node_have_no_nvlink_together():
    for price in (collective_seconds, lambda kind, size, *rest: latency_seconds(kind, *rest)):
        for many in (57, 64):
            with pytest.raises(
                ValueError, match=rf"{many} H100 are in several nodes of 8.*inner=8 and outer=8"
            ):
                price("all-gather", 1e9, many, "H100")


def test_a_message_takes_its_bytes_over_the_paths_and_then_its_hops():
    assert send_seconds(9e9, (1, 0), "v5p") == 9e9 / 90e9 + 1e-6 == send_seconds(9e9, 1, "v5p")
    assert send_seconds(9e9, (2, 3, 1), "v5p") == pytest.approx(9e9 / 270e9 + 6e-6)
    assert (
        send_seconds(45e9, 1, "H100") == pytest.approx(0.1 + 0.6e-6)
        and send_seconds(1e9, 0, "v5e") == 0
    )
    assert send_seconds(np.ones((2, 1)), (np.arange(3), 1), "v5e").shape == (2, 3)


def test_switches_that_add_up_send_an_array_once_within_and_between_nodes():
    """Without them NVLink carries it almost twice; a torus has no switches."""
    for name, ring, once in (("H100", 2 * 7 / 8, 1), ("v5e", 2 * 7 / 8, 2 * 7 / 8)):
        speed = chip(name).link_bytes_per_second
        for algorithm, times in (("ring", ring), ("in-network", once)):
            found = hierarchical_seconds("all-reduce", 1e9, 8, 1, name, algorithm=algorithm)
            assert found == pytest.approx(times * 1e9 / speed)
    assert hierarchical_seconds("all-reduce", 1e9, 1, 1, "H100", algorithm="in-network") == 0
    assert (
        hierarchical_seconds("all-gather", 1e9, 8, 1, "H100", algorithm="in-network")
        == 7 / 8 * 1e9 / 450e9
    )


def test_algorithms_between_nodes():
    """A tree has fewer messages one after the other, and switches that add up halve an all-reduce's
    bytes.
    """
    many = {
        way: hierarchical_seconds("all-reduce", 8.0, 8, 256, "H100", algorithm=way)
        for way in costs.ALGORITHMS
    }
    assert (
        many["tree"] == many["in-network"] == pytest.approx(2 * 8 * 2.7e-6)
        and many["ring"] > 30 * many["tree"]
    )
    large = {
        way: hierarchical_seconds("all-reduce", 1e11, 1, 256, "H100", algorithm=way)
        for way in costs.ALGORITHMS
    }
    assert large["ring"] == large["tree"] == pytest.approx(2 * 255 / 256 * 1e11 / 50e9)
    assert large["in-network"] == pytest.approx(1e11 / 50e9)
    with pytest.raises(ValueError, match=r"algorithm='butterfly'.*ring, tree"):
        hierarchical_seconds("all-reduce", 1e9, 8, 2, "H100", algorithm="butterfly")


def test_data_parallelism_over_the_dcn_hides_from_the_published_tokens_per_slice():
    """training, "Scaling Across Pods": C/W is 73,440 tokens for a slice of any size; latencies do
    not add up.
    """
    tokens, slices = np.arange(20_000, 200_000, 100), 2
    model = Model(100, 8192, 65_536, 64, 64, 128, 1)
    v5p = machine("v5p", 256 * slices, slices=slices)
    found = step_cost(
        model, v5p, Parallelism(slices, 256), tokens * float(slices), sequence=0, remat="none"
    )
    # the backward pass
    hides = tokens[found.axes["data"].seconds <= found.compute_seconds * 2 / 3][0]
    assert hides == pytest.approx(73_440 * (slices - 1) / slices, rel=0.02)


def test_fp8_halves_the_products_only():
    bf16, fp8 = (
        step_cost(LLAMA3, "H100", Parallelism(1, 64), 4e6, products=dtype)
        for dtype in ("bf16", "fp8")
    )
    assert 0.5 < fp8.compute_seconds / bf16.compute_seconds < 0.6


def test_in_decode_each_sequence_has_keys_and_values_of_its_own():
    """Grouped-query attention does 2 FLOPs x 8 heads for each byte of a bf16 cache; training reads
    the cache once.
    """
    decode = layer(LLAMA3, "v5p", 64, 8192, sequences=64)["attention"]
    assert decode.intensity == pytest.approx(2 * 64 / 8 / 2, rel=0.01) and decode.bound == "memory"
    assert layer(LLAMA3, "v5p", 8192, 8192)["attention"].bound == "compute"


def test_a_pipeline_is_idle_as_its_schedule_says():
    """(p-1)/m of the work, or 1/v of that with v stages on each device; GPipe keeps all
    micro-batches.
    """

    def of(**how):
        return step_cost(LLAMA3, "H100", Parallelism(1, 8, 1, 8, microbatches=16, **how), 4e6)

    plain, interleaved, gpipe = of(), of(stages=2), of(schedule="gpipe")
    assert plain.bubble == 7 / 16 and interleaved.bubble == 7 / 32 and gpipe.bubble == 7 / 16
    assert gpipe.memory.activation_bytes == 2 * plain.memory.activation_bytes
    assert (
        plain.memory.activation_bytes
        < interleaved.memory.activation_bytes
        < gpipe.memory.activation_bytes
    )
    assert interleaved.axes["pipeline"].bytes == 2 * plain.axes["pipeline"].bytes > 0
    tokens = 4e6 / 8
    # there and back, in bf16
    assert plain.axes["pipeline"].bytes == 2 * tokens * LLAMA3.d_model * 2


def test_micro_batches_hold_fewer_activations_and_gather_more():
    one, four = (step_cost(LLAMA3, "H100", Parallelism(1, 64, microbatches=n), 4e6) for n in (1, 4))
    assert four.memory.activation_bytes == one.memory.activation_bytes / 4
    assert (
        four.axes["fsdp"].bytes == 4 * one.axes["fsdp"].bytes
        and four.compute_seconds == one.compute_seconds
    )
    kept = step_cost(LLAMA3, "H100", Parallelism(1, 64, microbatches=4), 4e6, gathers=1)
    assert kept.axes["fsdp"].bytes == pytest.approx(one.axes["fsdp"].bytes * 2 / 3)
    assert kept.memory.gathered_bytes > 100 * four.memory.gathered_bytes / 4


def test_context_parallelism_sends_keys_and_values_around():
    """The chapter on context parallelism: 6 (n-1) shards in a layer, for keys, values and their
    gradients.
    """
    n, tokens = 8, 1e6
    found = step_cost(LLAMA3, "v5p", Parallelism(1, 8, 1, 1, n), tokens, remat="none")
    shard = tokens / 64 * LLAMA3.kv_heads * LLAMA3.head_dim * 2
    assert found.axes["context"].bytes == pytest.approx(6 * (n - 1) * shard * LLAMA3.layers)
    alone = step_cost(LLAMA3, "v5p", Parallelism(1, 64), tokens, remat="none")
    assert found.memory.state_bytes == alone.memory.state_bytes  # sharded over context too


def test_expert_parallelism_sends_each_token_to_its_experts_and_back():
    """The chapter on experts: four all-to-alls in a layer's step, of k copies of each token."""
    mixture = MODELS["mixtral-8x7b"]
    found = step_cost(mixture, "H100", Parallelism(1, 1, 1, 1, 1, 8), 1e6, remat="none")
    array = 1e6 / 8 * 2 * mixture.d_model * 2
    assert found.axes["expert"].bytes == pytest.approx(4 * mixture.layers * array * 7 / 8)
    sharded = step_cost(mixture, "H100", Parallelism(1, 8), 1e6, remat="none")
    assert found.memory.state_bytes == sharded.memory.state_bytes
    # experts stay where they are
    assert found.axes["fsdp"].bytes < 0.1 * sharded.axes["fsdp"].bytes
    dense = step_cost(
        Model(32, 4096, 28_672, 32, 8, 128, 32_000), "H100", Parallelism(1, 8), 1e6, remat="none"
    )
    # two experts are as much as one of twice the width
    assert sharded.flops == pytest.approx(dense.flops, rel=1e-3)


def test_tensor_parallelism_sends_what_the_chapter_counts():
    """Four all-reduces in a layer; with rematerialised layers all but the last scatter of the
    forward pass again.
    """
    none, block = (
        step_cost(LLAMA3, "v5p", Parallelism(1, 8, 8), 1e6, remat=remat)
        for remat in ("none", "block")
    )
    one = collective_bytes("all-reduce", 1e6 / 8 * LLAMA3.d_model * 2, 8)
    assert none.axes["tensor"].bytes == pytest.approx((4 * 80 + 2) * one)
    assert block.axes["tensor"].bytes == pytest.approx((5.5 * 80 + 2) * one)


def test_a_step_of_every_kind_of_mesh_takes_at_least_its_parts():
    for model, machine_, axes in (
        ("llama-3-405b", machine("H100", 512), (2, 4, 8, 4, 2, 1)),
        ("deepseek-v3", machine("H100", 512), (1, 4, 2, 8, 1, 8)),
        ("mixtral-8x7b", machine("v5p", 64), (1, 8, 1, 1, 1, 8)),
    ):
        found = step_cost(model, machine_, Parallelism(*axes, microbatches=8), 2**22)
        parts = list(found.parts.values())
        assert found.seconds == pytest.approx(max(parts) * (1 + found.bubble))
        assert found.seconds <= found.serial_seconds and 0 < found.expected_mfu < found.mfu <= 1
        assert found.exposed_seconds < found.expected_seconds


def test_a_small_collective_between_slices_or_nodes_takes_its_messages():
    for name, message in (("v5p", 25e-6), ("H100", 2.7e-6)):
        assert hierarchical_seconds("all-gather", 1, 4, 5, name) == pytest.approx(4 * message)
        assert hierarchical_seconds("all-reduce", 1, 4, 5, name) == pytest.approx(8 * message)


def test_where_a_step_is_bound_is_where_the_chapter_derives_it():
    """FSDP alone on a ring: from C/W tokens for a chip on; without attention, and without the
    embedding.
    """
    model = Model(100, 8192, 65_536, 64, 64, 128, 1)
    tokens = np.arange(1000, 4000)
    found = step_cost(
        model,
        "v5p",
        Parallelism(1, 4096),
        tokens * 4096.0,
        sequence=0,
        remat="none",
        torus_axes={"fsdp": 1},
    )
    assert tokens[found.bound == "compute"][0] == pytest.approx(
        chip("v5p").intensity(over="links"), rel=0.01
    )


@pytest.mark.parametrize("remat", REMAT)
def test_memory_is_cut_and_remat_keeps_less(remat):
    one, cut = (
        training_memory(LLAMA3, how, 1e6, remat) for how in (Parallelism(), Parallelism(2, 4, 8))
    )
    for part in ("parameter_bytes", "gradient_bytes", "moment_bytes"):
        assert getattr(cut, part) == getattr(one, part) / 32
    assert cut.activation_bytes == pytest.approx(one.activation_bytes / 64)
    where = "host_bytes" if remat == "offload" else "activation_bytes"
    assert getattr(one, where) == activation_bytes(LLAMA3, 1e6, remat) == 64 * getattr(cut, where)
    on_chip = (getattr(one, field.name) for field in fields(one) if field.name != "host_bytes")
    assert one.total_bytes == pytest.approx(sum(on_chip))
    kept = [activation_bytes(LLAMA3, 1, r) for r in REMAT]
    work = [training_flops(LLAMA3, 1, 4096, r) for r in REMAT]
    assert kept == sorted(kept, reverse=True) and work == sorted(work)


def test_offloaded_inputs_of_layers_cost_the_links_to_the_hosts_and_no_flops():
    """512 v5p, 8,192 tokens each: 80 inputs of 8,192 x 8,192 in bf16, down and up at 16 GB/s."""
    block, offload = (
        step_cost(LLAMA3, "v5p", Parallelism(1, 512), 2**22, remat=r) for r in ("block", "offload")
    )
    one = 2.0 * 8192 * 8192
    assert (offload.memory.host_bytes, block.memory.host_bytes) == (80 * one, 0)
    # two layers' inputs stay
    assert block.memory.total_bytes - offload.memory.total_bytes == 78 * one
    assert (offload.host_seconds, block.host_seconds) == (pytest.approx(2 * 80 * one / 16e9), 0)
    assert (offload.flops, offload.axes["fsdp"].bytes) == (block.flops, block.axes["fsdp"].bytes)
    assert offload.hbm_seconds - block.hbm_seconds == pytest.approx(2 * 80 * one / 2765e9)
    assert offload.expected_seconds == block.expected_seconds  # 1.3 s, behind 9.98 s of products
    assert offload.serial_seconds == pytest.approx(block.serial_seconds + offload.host_seconds)


def test_a_policy_by_the_names_of_its_arrays_is_the_kind_that_keeps_the_same():
    """As MaxText's `remat_policy: custom`; "down" is named by its recipes, and nothing needs it."""
    for name, of in (
        ("block", {}),
        ("offload", {"host": ["inputs"]}),
        ("block", {"device": ["inputs", "down"]}),
    ):
        assert replace(Remat.of(**of), label=REMAT[name].label) == REMAT[name]
    kept = Remat.of(device=["inputs", "query", "key", "value", "context", "out", "up"])
    assert (
        kept.recomputes == ()
        and kept.kept_width(LLAMA3) == 2 * 8192 + 2 * 8192 + 2 * 1024 + 2 * 28_672
    )


def test_what_is_offloaded_by_name_leaves_the_chip_and_is_not_computed_again():
    """Llama 3 70B on 256 v6e, as its recipe has it: inputs, queries, keys and values in the memory
    of the host.
    """
    asked = (LLAMA3, "v6e", Parallelism(1, 256), 2**20)
    block, named = (
        step_cost(*asked, remat=how)
        for how in ("block", Remat.of([], ["inputs", "query", "key", "value"]))
    )
    width, tokens = 8192 + 8192 + 2 * 1024, 4096
    assert named.memory.host_bytes == 80 * width * tokens * 2
    assert named.memory.activation_bytes == 2 * width * tokens * 2  # of two layers
    projections = 2 * 8192 * (8192 + 2 * 1024) * 80 * tokens
    assert block.flops - named.flops == pytest.approx(projections)
    assert named.host_seconds == pytest.approx(
        2 * named.memory.host_bytes / chip("v6e").host_bytes_per_second
    )


def test_a_policy_without_inputs_or_with_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"from its inputs, and query has none; add 'inputs'"):
        Remat.of(device=["query"])
    with pytest.raises(ValueError, match=r"host='qurey' is not known.*did you mean 'query'"):
        Remat.of(host=["qurey"])


def test_a_slow_link_to_the_host_is_what_an_offloaded_step_waits_for():
    fast, slow = (replace(chip("v6e"), host_bytes_per_second=speed) for speed in (1e15, 1e9))
    hidden, waits = (
        step_cost(LLAMA3, c, Parallelism(1, 256), 2**20, remat="offload") for c in (fast, slow)
    )
    assert waits.bound == "host" and hidden.bound != "host"
    update = (
        waits.expected_seconds
        - waits.exposed_seconds
        - (work := waits.host_seconds - waits.exposed_seconds)
    )
    assert 0 < update < work  # of the transfers all but the time of the products


def test_offloading_is_refused_where_no_source_states_the_link_to_the_host():
    with pytest.raises(
        ValueError, match=r"between B200 and its host is not known.*it is for v4, .*H100"
    ):
        step_cost(LLAMA3, "B200", Parallelism(1, 64), 2**20, remat="offload")


# --- Arrays in, arrays out ------------------------------------------------------------------------


def test_one_call_takes_a_hundred_thousand_configurations():
    random, n = np.random.default_rng(0), 100_000
    many = Parallelism(
        2 ** random.integers(0, 4, n), 2 ** random.integers(2, 8, n), 2 ** random.integers(0, 3, n)
    )
    batch = random.integers(1, 100, n) * 1e5
    found = step_cost(LLAMA3, "v5p", many, batch)
    for name in ("seconds", "serial_seconds", "bound", "fits", "mfu"):
        assert getattr(found, name).shape == (n,), name
    assert all(cost.seconds.shape == cost.bytes.shape == (n,) for cost in found.axes.values())
    assert found.memory.total_bytes.shape == (n,)
    for i in random.integers(0, n, 20):
        one = Parallelism(*(int(getattr(many, axis)[i]) for axis in ("data", "fsdp", "tensor")))
        alone = step_cost(LLAMA3, "v5p", one, batch[i])
        assert alone.seconds == pytest.approx(found.seconds[i]) and alone.bound == found.bound[i]
        assert alone.memory.total_bytes == pytest.approx(found.memory.total_bytes[i])


def test_everything_broadcasts():
    rows, columns = np.array([1e6, 1e9])[:, None], np.array([2, 4, 8])
    for kind in KINDS:
        assert collective_bytes(kind, rows, columns).shape == (2, 3)
        assert collective_seconds(kind, rows, columns, "v5p").shape == (2, 3)
        assert collective_seconds(kind, rows, (columns, columns), "v5p").shape == (2, 3)
        assert hierarchical_seconds(kind, rows, columns, 2, "H100").shape == (2, 3)
        assert node_bytes(kind, rows, columns, 2).shape == (2, 3)
        assert (
            crossover_bytes(kind, columns, "H100").shape
            == latency_seconds(kind, columns, "v4").shape
            == (3,)
        )
    assert matmul(columns, 64, rows, "B200").seconds.shape == (2, 3)
    assert layer(LLAMA3, "v5p", rows, 4096, columns)["mlp"].seconds.shape == (2, 3)
    assert training_flops(LLAMA3, rows, columns).shape == (2, 3)
    assert decode_cost(LLAMA3, "v5e", rows, 4096, columns).bound.shape == (2, 3)
    assert step_cost(LLAMA3, "v5p", Parallelism(4, 1, columns), rows).seconds.shape == (2, 3)


def test_every_parallelism_of_some_chips_is_there_once():
    found = parallelisms(24, LLAMA3)
    triples = set(zip(found.data.tolist(), found.fsdp.tolist(), found.tensor.tolist(), strict=True))
    every = {(d, f, 24 // (d * f)) for d in range(1, 25) for f in range(1, 25) if 24 % (d * f) == 0}
    assert len(found.data) == len(triples) and triples == {t for t in every if 64 % t[2] == 0}
    assert len(parallelisms(24).data) == len(every) and set(parallelisms(24).chips) == {24}


# --- Arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: chip("v7"), "'v7'.*known are v4, v5e"),
        (lambda: collective_seconds("all-reduce", 1, 2, "v99"), "'v99'"),
        (lambda: chip("v5p").intensity("fp4"), "v5p has no peak for 'fp4'; it has bf16, int8"),
        (lambda: chip("v5p").intensity(over="air"), "over='air'.*hbm"),
        (lambda: collective_bytes("all-sum", 1, 2), "kind='all-sum'.*all-gather"),
        (lambda: collective_bytes("all-reduce", -1, 2), "array_bytes is -1"),
        (lambda: collective_bytes("all-reduce", 1, 0), "devices is 0"),
        (lambda: collective_bytes("all-reduce", 1, [2, 2.5]), "devices is 2.5"),
        (lambda: collective_bytes("all-reduce", 1, "two"), "devices must be a whole number"),
        (lambda: collective_bytes("all-reduce", True, 2), "array_bytes must be a number"),
        (lambda: collective_bytes("all-reduce", math.nan, 2), "array_bytes is nan"),
        (
            lambda: collective_seconds("all-reduce", 1, 256, "v5e"),
            r"256 chips.*16 x 16.*\(16, 16\)",
        ),
        (lambda: collective_seconds("all-reduce", 1, (4, 4, 4), "v5e"), "3 axes for v5e"),
        (lambda: send_seconds(1, (1, 1, 1), "v5e"), "along 3 axes, but v5e has 2"),
        (lambda: send_seconds(1, (1, 1), "H100"), "along 2 axes, but H100 has 1"),
        (lambda: send_seconds(1, -1, "v5e"), "hops is -1"),
        (lambda: Parallelism(0), "the data axis is 0"),
        (lambda: Parallelism(1, -2), "the fsdp axis is -2"),
        (lambda: Parallelism(1, 1, 1.5), "the tensor axis is 1.5"),
        (lambda: Parallelism(1, 1, np.array([1, 2, 0])), "the tensor axis is 0"),
        (
            lambda: step_cost(LLAMA3, machine("v5p", 8), Parallelism(2, 2), 1e6),
            "have 4 chips.*v5p:2x2x2 has 8",
        ),
        (lambda: step_cost(LLAMA3, machine("v5p", 8), Parallelism(2, [4, 2]), 1e6), "have 4 chips"),
        (
            lambda: step_cost(LLAMA3, "v5p", Parallelism(4, tensor=3), 1e6),
            "tensor axis of 3 cannot split 64 heads",
        ),
        (
            lambda: step_cost(LLAMA3, "v5p", Parallelism(3), 1e6),
            "no slice of v5p has 3 chips.*use 1 or 4 chips",
        ),
        (
            lambda: step_cost("llama-3-7b", "v5p", Parallelism(), 1e6),
            "'llama-3-7b'.*did you mean 'llama-3-70b'",
        ),
        (
            lambda: step_cost(LLAMA3, "v5p", Parallelism(), 1, torus_axes={"model": 2}),
            "an axis 'model'; known are data",
        ),
        (
            lambda: step_cost(LLAMA3, "v5p", Parallelism(), 1, torus_axes={"fsdp": 0}),
            r"torus_axes\['fsdp'\] is 0",
        ),
        (
            lambda: step_cost(LLAMA3, "v5p", Parallelism(), 1, torus_axes=2),
            "torus_axes=2; use a dict",
        ),
        (
            lambda: step_cost(LLAMA3, "H100", Parallelism(), 1, torus_axes={"fsdp": 1}),
            "a switch connects H100",
        ),
        (lambda: step_cost(LLAMA3, "v5p", Parallelism(), 1, gathers=-3), "gathers=-3; use 2, or 1"),
        (
            lambda: step_cost(LLAMA3, "v5p", (1, 512, 1), 1),
            r"Parallelism is needed, not \(1, 512, 1\)",
        ),
        (
            lambda: step_cost(LLAMA3, "v5p", Parallelism(4, expert=2), 1),
            "expert axis of 2 cannot share a model without",
        ),
        (
            lambda: step_cost("mixtral-8x7b", "v5p", Parallelism(expert=16), 1),
            "expert axis of 16 cannot share 8 experts",
        ),
        (
            lambda: step_cost(LLAMA3, "v5p", Parallelism(pipeline=128), 1),
            "128 stages are more than the 80 layers",
        ),
        (lambda: Parallelism(schedule="dualpipe"), "schedule='dualpipe'.*gpipe, 1f1b"),
        (lambda: Parallelism(microbatches=0), "microbatches is 0"),
        (lambda: step_cost(LLAMA3, "v5p", Parallelism(), -5), "batch_tokens is -5"),
        (lambda: step_cost(LLAMA3, "v5p", Parallelism(), 1, remat="all"), "remat='all'.*block"),
        (lambda: step_cost(LLAMA3, "v5p", Parallelism(), 1, efficiency=1.5), "efficiency=1.5"),
        (
            lambda: step_cost(LLAMA3, "v5p", Parallelism(), 1, parameters="float16"),
            "parameters='float16'.*bf16",
        ),
        (lambda: decode_cost(LLAMA3, "v5e", 1, 1, tensor=7), "tensor=7 does not divide 64 heads"),
        (lambda: Model(1, 8, 8, 6, 4, 2, 8), "6 heads cannot share 4 kv_heads"),
        (lambda: Model(1, 8, 0, 4, 4, 2, 8), "d_ff is 0"),
    ],
)
def test_errors_name_the_value(wrong, says):
    with pytest.raises(ValueError, match=says):
        wrong()


def test_units_are_in_names():
    """Attributes that are neither counts nor names say bytes, seconds, flops; so do functions."""
    units = ("bytes", "seconds", "flops", "per_second")
    plain = {"memory", "axes", "fits", "mfu", "bubble", "kind", "layers", "sequences"}
    for thing in (costs.Memory, costs.StepCost, DecodeCost, costs.Roofline):
        assert {f.name for f in fields(thing) if not f.name.endswith(units)} <= plain
    chip_fields = {f.name for f in fields(Chip) if not f.name.endswith(units)}
    assert chip_fields == {"name", "torus", "node_chips", "host_chips", "peers"}


def test_chips_name_their_sources():
    source = inspect.getsource(hardware)
    for name in CHIPS:
        assert re.search(rf"^#   \[{name}\] +https://\S+", source, re.MULTILINE), (
            f"no source for {name}"
        )


@pytest.mark.parametrize("name", hardware.COMPILED_GPUS)
def test_compilers_are_told_the_bandwidth_that_costs_assume(name):
    described = re.search(r"memory_bandwidth: (\d+)", pods._target(name, "jax-cuda13-pjrt 0.12"))[1]
    assert int(described) == CHIPS[name.upper()].hbm_bytes_per_second


def test_no_other_module_or_script_of_the_site_knows_a_number_of_a_chip():
    """Bandwidths and peaks, as Python and JavaScript write them: 8000e9, 8_000_000_000_000, 2.25e15
    and so on.
    """
    numbers = {chip.hbm_bytes_per_second for chip in CHIPS.values()}
    numbers |= {peak for chip in CHIPS.values() for peak in chip.flops_per_second.values()}
    package = Path(costs.__file__).parent
    for file in [*package.rglob("*.py"), *(package.parents[1] / "book" / "static").rglob("*.js")]:
        written = {
            float(text)
            for text in re.findall(r"\b\d+(?:_\d+)*(?:\.\d+)?(?:e\d+)?", file.read_text())
        }
        found = {n for n in numbers if any(abs(n - w) < 0.05 * n for w in written)}
        if file.name != "published.py":  # which has the speeds of runs
            assert bool(found) == (file.name == "hardware.py"), f"{file.name} has {sorted(found)}"
