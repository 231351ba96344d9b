"""What readers copy from `stencils`, against one device."""

from functools import cache, partial

import numpy as np
from contract import DEVICES, KINDS, close, contract, mapped, mesh_of, reads, refusal, values
from jax.sharding import PartitionSpec as P

pytestmark = reads("stencils")


@cache
def wider(widen, k):
    return partial(widen, dim=0, axis="x", k=k)


@contract(
    "stencils", "widen", draws=30, quick=True,
    devices=DEVICES, points=[0, 1, 2, 5], k=[1, 2], kind=KINDS, dtype=["float32", "bfloat16"],
)  # fmt: skip
def test_widen(widen, devices, points, k, kind, dtype):
    """`widen` takes shards of any type with at least `k` points along `dim`, on any number of
    devices.
    """
    u = values(kind, (devices * points,), dtype)
    shards = [np.arange(-k, points + k) + n * points for n in range(devices)]
    with refusal(points < k, points, k):
        wide = mapped(wider(widen, k), mesh_of(devices), P("x"), P("x"))(u)
        close(wide, u[np.concatenate(shards) % len(u)])
