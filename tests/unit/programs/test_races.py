"""Kernels that communicate, with and without the wait that they need."""

import functools
import logging

import jax
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import races
from shardlab.programs.kernels import written

pytestmark = pytest.mark.reads("src/shardlab")

MESH = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
X = np.arange(64 * 128, dtype="float32").reshape(64, 128)


def shift(waits=lambda copy: copy.wait(), extra=0, barrier=None):
    """A jitted function that sends each device's rows to the next one, waits in some way, and
    signals the next device's semaphores besides.
    """

    def kernel(x_ref, y_ref, sent, arrived, counter):
        me = lax.axis_index("x")
        to = lax.rem(me + 1, 8)
        if barrier is not None:
            for device in range(8):
                pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1, device_id=(device,))
            pl.semaphore_wait(pltpu.get_barrier_semaphore(), 8 - barrier)
        copy = pltpu.make_async_remote_copy(x_ref, y_ref, sent, arrived, device_id=(to,))
        copy.start()
        waits(copy)
        if extra:
            pl.when(me == 2)(lambda: pl.semaphore_signal(counter, extra, device_id=(to,)))

    return jax.jit(
        jax.shard_map(
            called(kernel, None if barrier is None else 0),
            mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False,
        )
    )  # fmt: skip


def called(kernel, collective_id=None):
    def call(x):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((8, 128), "float32"),
            in_specs=[anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2 + [pltpu.SemaphoreType.REGULAR],
            compiler_params=pltpu.CompilerParams(collective_id=collective_id),
            interpret=pltpu.InterpretParams(),
        )(x)

    return call


def no_receive(copy):
    copy.wait_send()


@pytest.mark.parametrize(
    ("wrong", "left", "devices"),
    [
        ({"extra": 3}, 3, [3]),
        ({"waits": lambda copy: copy.wait_recv()}, 8 * 128 * 4, range(8)),
        ({"barrier": 1}, 1, range(8)),
    ],
    ids=["a signal too many", "no wait for the send", "a barrier left"],
)
def test_semaphores_that_are_left_are_named_with_their_devices(wrong, left, devices):
    x = jax.device_put(X, NamedSharding(MESH, P("x")))
    found = races(shift(**wrong), x)
    assert [text.split(" at ")[1] for text in found] == [f"{left} on device {d}" for d in devices]
    assert all(text.startswith("SEMAPHORE LEFT kernels end with semaphore ") for text in found)
    assert races(shift(barrier=0), x) == []


@pytest.mark.skipif(not hasattr(pl, "kernel"), reason="this JAX has no pl.kernel")
def test_kernels_of_pl_kernel_are_watched_and_named():
    def shifted(x_ref, y_ref, sent, arrived):
        to = lax.rem(lax.axis_index("x") + 1, 8)
        copy = pltpu.make_async_remote_copy(x_ref, y_ref, sent, arrived, device_id={"x": to})
        copy.start()
        copy.wait_recv()

    def call(x, **costs):
        return pl.kernel(
            shifted,
            out_type=jax.ShapeDtypeStruct((8, 128), "float32"),
            mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=1),
            scratch_types=[pltpu.SemaphoreType.DMA] * 2,
            **costs,
        )(x)

    x = jax.device_put(X, NamedSharding(MESH, P("x")))
    sizes = {"flops": 0, "transcendentals": 0, "bytes_accessed": 0}
    declared = pl.CostEstimate(**sizes, remote_bytes_transferred=4096)
    for costs, size in ({}, None), ({"cost_estimate": declared}, 4096):
        f = jax.shard_map(
            functools.partial(call, **costs),
            mesh=MESH,
            in_specs=P("x"),
            out_specs=P("x"),
            check_vma=False,
        )
        assert list(written(jax.jit(f).trace(x).jaxpr.jaxpr)) == [("shifted", size)]


def test_a_missing_wait_is_found_and_leaves_nothing_behind(capfd):
    x = jax.device_put(X, NamedSharding(MESH, P("x")))
    handlers = [*logging.getLogger().handlers]
    found = [text for text in races(shift(no_receive), x) if not text.startswith("SEMAPHORE")]
    assert found and all(text.startswith("RACE DETECTED\n") and "kernel)" in text for text in found)
    assert len({text.splitlines()[1] for text in found}) > 1, "one text for each race"
    assert races(shift(), x) == []
    # no error of an earlier call comes back
    np.testing.assert_array_equal(shift()(x), np.roll(X, 8, axis=0))
    assert capfd.readouterr() == ("", "") and logging.getLogger().handlers == handlers


def test_a_jitted_function_that_ran_before_is_interpreted_again():
    x = jax.device_put(X, NamedSharding(MESH, P("x")))
    wrong = shift(no_receive)
    jax.block_until_ready(wrong(x))
    assert races(wrong, x)


def test_what_a_function_raises_is_its_own():
    with pytest.raises(ZeroDivisionError):
        races(lambda x: 1 // 0, np.ones(4))


def test_kernels_that_are_not_watched_are_an_error():
    def double(x_ref, y_ref):
        y_ref[...] = 2 * x_ref[...]

    before = pl.pallas_call(
        double, out_shape=jax.ShapeDtypeStruct((8, 128), "float32"), interpret=True
    )
    with pytest.raises(
        ValueError, match=r"the kernel double was made with interpret=True.*inside the function"
    ):
        races(before, np.ones((8, 128), "float32"))
    with pytest.raises(ValueError, match=r"calls no kernel.*pl\.pallas_call"):
        races(lambda x: x + 1, np.ones(4))
