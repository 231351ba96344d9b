"""What readers copy from `remote_dma`, interpreted: equal to NumPy, no race, no semaphore left."""

from functools import cache

import jax
import numpy as np
from contract import DEVICES, KINDS, close, contract, mesh_of, reads, refusal, values
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from shardlab import races

pytestmark = reads("remote_dma")


@cache
def interpreted(f, devices):
    """A program with `f` on each device, whose kernels are interpreted."""
    mapped = jax.jit(
        jax.shard_map(f, mesh=mesh_of(devices), in_specs=P("x"), out_specs=P("x"), check_vma=False)
    )

    def run(x):
        with pltpu.force_tpu_interpret_mode():
            y = jax.block_until_ready(mapped(x))
        return y

    return run, mapped


@contract(
    "remote_dma", "gather", "gather_kernel", "local", draws=12,
    devices=DEVICES, rows=[0, 1, 5], kind=KINDS, dtype=["float32", "bfloat16", "int32"],
)  # fmt: skip
def test_gather(gather, devices, rows, kind, dtype):
    """`gather` takes a shard of any type, inside a `shard_map` over a mesh of one axis `x`, and
    refuses an empty shard.
    """
    x = values("ones" if dtype == "int32" else kind, (devices * rows, 3), dtype)
    with refusal(not rows, rows, 3):
        run, mapped = interpreted(gather, devices)
        whole = x.reshape(devices, rows, 3)
        close(run(x), np.tile(whole, (devices, 1, 1)), 0)
        assert races(mapped, x) == []


@contract(
    "remote_dma", "all_to_all", "all_to_all_kernel", draws=12,
    devices=DEVICES, more=[0, 0, 1], rows=[0, 1, 5], kind=KINDS,
    dtype=["float32", "bfloat16", "int32"],
)  # fmt: skip
def test_all_to_all(all_to_all, devices, more, rows, kind, dtype):
    """`all_to_all` takes one entry for each device, of any type, inside a `shard_map` over a mesh
    of one axis `x`, and refuses other numbers of entries and empty ones.
    """
    entries = devices + more
    x = values("ones" if dtype == "int32" else kind, (devices * entries, rows, 3), dtype)
    with refusal(more or not rows, devices, entries, rows):
        run, mapped = interpreted(all_to_all, devices)
        whole = x.reshape(devices, entries, rows, 3).swapaxes(0, 1)
        close(run(x), whole.reshape(x.shape), 0)
        assert races(mapped, x) == []
