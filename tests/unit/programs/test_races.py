"""Kernels that communicate, with and without the wait that they need."""

import logging

import jax
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import races

pytestmark = pytest.mark.reads("src/shardlab")

MESH = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
X = np.arange(64 * 128, dtype="float32").reshape(64, 128)


def shift(waits):
    """A jitted function that sends each device's rows to the next one, and may read them without a
    wait.
    """

    def kernel(x_ref, y_ref, sent, arrived):
        to = lax.rem(lax.axis_index("x") + 1, 8)
        copy = pltpu.make_async_remote_copy(x_ref, y_ref, sent, arrived, device_id=(to,))
        copy.start()
        copy.wait() if waits else copy.wait_send()

    return jax.jit(
        jax.shard_map(called(kernel), mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    )


def called(kernel):
    def call(x):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((8, 128), "float32"),
            in_specs=[anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
            interpret=pltpu.InterpretParams(),
        )(x)

    return call


def test_a_missing_wait_is_found_and_leaves_nothing_behind(capfd):
    x = jax.device_put(X, NamedSharding(MESH, P("x")))
    handlers = [*logging.getLogger().handlers]
    found = races(shift(False), x)
    assert found and all(text.startswith("RACE DETECTED\n") and "kernel)" in text for text in found)
    assert len({text.splitlines()[1] for text in found}) > 1, "one text for each race"
    assert races(shift(True), x) == []
    # no error of an earlier call comes back
    np.testing.assert_array_equal(shift(True)(x), np.roll(X, 8, axis=0))
    assert capfd.readouterr() == ("", "") and logging.getLogger().handlers == handlers


def test_a_jitted_function_that_ran_before_is_interpreted_again():
    x = jax.device_put(X, NamedSharding(MESH, P("x")))
    wrong = shift(False)
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
