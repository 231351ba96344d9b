"""What readers copy from `collectives`, against NumPy."""

from functools import cache

import numpy as np
from contract import DEVICES, KINDS, bound, close, contract, mapped, mesh_of, reads, refusal, values
from jax.sharding import PartitionSpec as P

pytestmark = reads("collectives")

DTYPES = ["float32", "bfloat16", "int32"]
CHECKS = [True, False]


def numbers(kind, shape, dtype):
    """Whole numbers where the type has no others."""
    if dtype == "int32":
        return (values("normal", shape) * 100).astype(dtype)
    return values(kind, shape, dtype)


@cache
def first_of(f):
    """`f` on the block x[i] of device i, with its result as row i."""
    return lambda x: f(x[0], axis="x")[None]


def on_each(f, devices, x, check_vma):
    return mapped(first_of(f), mesh_of(devices), P("x"), P("x"), check_vma)(x)


def total(x):
    """The sum over devices, in the type of x, and how far rounding may take it."""
    wide = x.astype("float64")
    with np.errstate(invalid="ignore"):
        return wide.sum(0), np.abs(np.where(np.isfinite(wide), wide, 0)).sum(0).max(initial=0)


def close_sum(actual, x):
    expected, size = total(x)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    eps = {"int32": 0, "float32": 1e-6}.get(str(x.dtype), 2e-2)
    # relative to what was added, which may cancel
    close(actual, expected, eps * size / scale if scale else 0)


@contract(
    "collectives", "broadcast_by_doubling", draws=25, quick=True,
    devices=DEVICES, size=[0, 1, 5], kind=KINDS, dtype=DTYPES, check_vma=CHECKS,
)  # fmt: skip
def test_broadcast(broadcast_by_doubling, devices, size, kind, dtype, check_vma):
    """`broadcast_by_doubling` takes an array of numbers on each device, and returns the array of
    device 0 on all of them. It works on any number of devices.
    """
    x = numbers(kind, (devices, size), dtype)
    found = on_each(broadcast_by_doubling, devices, x, check_vma)
    assert found.dtype == x.dtype
    close(found, np.stack([x[0]] * devices), 0)


@contract(
    "collectives", "check_blocks", "own_slot_only", "pass_on", "ring_all_gather",
    "gather_by_hand", draws=25, quick=True,
    devices=DEVICES, shape=[(), (0,), (1,), (3, 2)], more=[0, 0, 0, 1, -1], kind=KINDS,
    dtype=DTYPES, check_vma=CHECKS,
)  # fmt: skip
def test_gather(ring_all_gather, gather_by_hand, devices, shape, more, kind, dtype, check_vma):
    """`gather_by_hand` takes a shard of any shape and type, and returns all shards in a new first
    dimension. `ring_all_gather` takes an array with one slot for each device, in which only the
    device's own slot is filled. It refuses any other number of slots.
    """
    x = numbers(kind, (devices, *shape), dtype)
    close(on_each(gather_by_hand, devices, x, check_vma), np.stack([x] * devices), 0)
    slots = devices + more
    held = np.zeros((devices, slots, *shape), x.dtype)
    if not more:
        held[range(devices), range(devices)] = x
    with refusal(more != 0, slots, devices):
        found = on_each(ring_all_gather, devices, held, check_vma)
        close(found, np.stack([x] * devices), 0)


@contract(
    "collectives", "add_on", "ring_reduce_scatter", "scatter_by_hand", draws=30, quick=True,
    devices=DEVICES, shape=[(), (0,), (3, 2)], more=[0, 0, 0, 1, -1], kind=KINDS, dtype=DTYPES,
    check_vma=CHECKS,
)  # fmt: skip
def test_scatter(scatter_by_hand, devices, shape, more, kind, dtype, check_vma):
    """`scatter_by_hand` takes one block of partial sums for each device, and returns the device's
    own block of the sum. It adds in the type of the blocks, and refuses any other number of blocks.
    """
    x = numbers(kind, (devices, devices + more, *shape), dtype)
    with refusal(more != 0, devices + more, devices):
        found = on_each(scatter_by_hand, devices, x, check_vma)
        assert found.dtype == x.dtype
        close_sum(found, x)


@contract(
    "collectives", "ring_all_reduce", draws=30, quick=True,
    devices=DEVICES, shape=[(), (0,), (3, 2)], more=[0, 0, 0, 1, -1], kind=KINDS, dtype=DTYPES,
    check_vma=CHECKS,
)  # fmt: skip
def test_all_reduce(ring_all_reduce, devices, shape, more, kind, dtype, check_vma):
    """`ring_all_reduce` takes one block of partial sums for each device, and returns all blocks of
    the sum. It adds in the type of the blocks, and refuses any other number of blocks.
    """
    x = numbers(kind, (devices, devices + more, *shape), dtype)
    with refusal(more != 0, devices + more, devices):
        found = on_each(ring_all_reduce, devices, x, check_vma)
        assert found.dtype == x.dtype
        for one in np.asarray(found):
            close(one, np.asarray(found)[0], 0)  # the replicas agree to the bit
            close_sum(one, x)


@contract(
    "collectives", "exchange", draws=25, quick=True,
    devices=DEVICES, shape=[(), (0,), (3,)], more=[0, 0, 0, 1], kind=KINDS, dtype=DTYPES,
    check_vma=CHECKS,
)  # fmt: skip
def test_exchange(exchange, devices, shape, more, kind, dtype, check_vma):
    """`exchange` takes one block of any type for each device, and refuses any other number of
    blocks. The number of devices must be a power of two.
    """
    x = numbers(kind, (devices, devices + more, *shape), dtype)
    with refusal(more != 0 or devices == 3, devices):
        close(on_each(exchange, devices, x, check_vma), np.swapaxes(x, 0, 1), 0)


@contract(
    "collectives", "collective_matmul", draws=30, quick=True,
    devices=DEVICES, rows=[0, 1, 2], inner=[1, 5], columns=[1, 3], kind=KINDS, dtype=DTYPES,
    check_vma=CHECKS,
)  # fmt: skip
def test_matmul(collective_matmul, devices, rows, inner, columns, kind, dtype, check_vma):
    """`collective_matmul` takes matrices of any type, on any number of devices. Each device has
    rows of the left matrix and columns of the right one.
    """
    a = numbers(kind, (devices * rows, inner), dtype)
    b = numbers("normal", (inner, devices * columns), dtype)
    specs = (P("x"), P(None, "x")), P(None, "x")
    found = mapped(bound(collective_matmul, axis="x"), mesh_of(devices), *specs, check_vma)(a, b)
    assert found.dtype == a.dtype
    with np.errstate(invalid="ignore"):
        expected = a.astype("float64") @ b.astype("float64")
    if dtype == "int32":
        expected = expected.astype("int32")
    close(found, expected, {"bfloat16": 3e-2}.get(dtype, 1e-5))


@contract(
    "collectives", "with_halo", draws=25, quick=True,
    devices=DEVICES, points=[0, 1, 4], dim=[0, 1], kind=KINDS, dtype=DTYPES, check_vma=CHECKS,
)  # fmt: skip
def test_halo(with_halo, devices, points, dim, kind, dtype, check_vma):
    """`with_halo` takes shards of any type along `dim`, on any number of devices. Each shard must
    have at least one point.
    """
    x = numbers(kind, (devices * points, 3), dtype)
    spec = P(*[None] * dim, "x")
    with refusal(points < 1, points):
        f = bound(with_halo, axis="x", dim=dim)
        wide = mapped(f, mesh_of(devices), spec, spec, check_vma)(x if dim == 0 else x.T)
        padded = np.pad(x, ((1, 1), (0, 0)))
        shards = [padded[n * points : (n + 1) * points + 2] for n in range(devices)]
        close(wide if dim == 0 else wide.T, np.concatenate(shards), 0)
