"""What readers copy from `stencils`, against `jnp.pad` and `np.roll` on one device."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from contract import DEVICES, KINDS, bound, close, contract, mapped, mesh_of, reads, refusal, values
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

pytestmark = reads("stencils")
ANY = ("float32", "bfloat16", "int32")


@contract(
    "stencils", "widen", draws=60, quick=True,
    devices=DEVICES, points=[0, 1, 2, 5], k=[0, 1, 2], kind=KINDS, dtype=ANY, check=[True, False],
    mode=["wrap", "constant", "edge", "symmetric", "reflect", "mean"],
)  # fmt: skip
def test_widen(widen, devices, points, k, kind, dtype, check, mode):
    """`widen` takes shards of any type, on any number of devices. A shard needs at least `k` points
    along `dim`, and one more for the mode `reflect`. The five modes mean the same as in `jnp.pad`;
    other modes are refused.
    """
    if dtype == "int32" and kind in ("nan", "inf", "huge"):
        kind = "normal"
    u = values(kind, (devices * points,), dtype)
    few = points < k + (mode == "reflect") or k < 1
    with refusal(mode == "mean" or few, *([mode] if mode == "mean" else [points, k])):
        f = bound(widen, dim=-1, axis="x", k=k, mode=mode)
        wide = mapped(f, mesh_of(devices), P("x"), P("x"), check)(u)
        padded = np.asarray(jnp.pad(u, k, mode))
        close(
            wide, np.concatenate([padded[n * points :][: points + 2 * k] for n in range(devices)])
        )


@contract(
    "stencils", "with_halo", draws=20,
    sizes=[(1, 1), (1, 4), (3, 1), (2, 4), (4, 2), (3, 2)], k=[1, 2], kind=KINDS,
    mode=["wrap", "constant", "edge", "symmetric", "reflect"],
    types=[AxisType.Auto.name, AxisType.Explicit.name],
)  # fmt: skip
def test_with_halo(with_halo, sizes, k, kind, mode, types):
    """`with_halo` takes shards as `widen` does. `axes` names, for each dimension, the mesh axis
    that shards it.
    """
    rows, columns = 3, 2
    u = values(kind, (sizes[0] * rows, sizes[1] * columns))
    mesh = mesh_of(*sizes, names="yx", types=AxisType[types])
    with refusal(columns < k + (mode == "reflect"), columns, k):
        f = bound(with_halo, k=k, mode=mode)
        u_sharded = jax.device_put(u, NamedSharding(mesh, P("y", "x")))
        wide = mapped(f, mesh, P("y", "x"), P("y", "x"))(u_sharded)
        padded = np.asarray(jnp.pad(u, k, mode))
        parts = [
            [
                padded[y * rows :, x * columns :][: rows + 2 * k, : columns + 2 * k]
                for x in range(sizes[1])
            ]
            for y in range(sizes[0])
        ]
        close(wide, np.block(parts))


@contract(
    "stencils", "roll_in_zeros", draws=30,
    devices=[1, 2, 3, 8], points=[1, 5], by=[-9, -2, -1, 0, 1, 2, 9], dim=[0, 1, -1], kind=KINDS,
    dtype=["float32", "bfloat16"],
)  # fmt: skip
def test_roll_in_zeros(roll_in_zeros, devices, points, by, dim, kind, dtype):
    """`roll_in_zeros` takes arrays of any sharding, under `jit`, and any number of points to roll
    by.
    """
    u = values(kind, (devices * points, 3), dtype)
    rolled = program(roll_in_zeros, by, dim)(
        jax.device_put(u, NamedSharding(mesh_of(devices), P("x")))
    )
    at = np.arange(u.shape[dim])
    source = at - by
    inside = (source >= 0) & (source < len(at))
    expected = np.take(u, np.clip(source, 0, len(at) - 1), dim)
    expected[~inside if dim == 0 else (slice(None), ~inside)] = 0
    assert rolled.dtype == u.dtype
    close(rolled, expected)


@cache
def program(f, by, dim):
    return jax.jit(partial(f, by=by, dim=dim))


@contract(
    "stencils", "widen_padded", draws=60,
    devices=DEVICES, points=[0, 1, 2, 7, 8, 13, 61], more=[0, 1], k=[0, 1, 2], kind=KINDS,
)  # fmt: skip
def test_widen_padded(widen_padded, devices, points, more, k, kind):
    """`widen_padded` takes shards of a periodic grid that has `points` points along `dim`. Behind
    these points may be any padding. The last device with points of the grid must have at least `k`
    of them.
    """
    size = -(-points // devices) + more
    u = np.full(devices * size, np.nan, "float32")  # what nothing may use
    u[:points] = values(kind, (points,))
    used = -(-points // size) if size else 0
    rest = points - (used - 1) * size
    with refusal(not 1 <= k <= rest or not used, points, k, size):
        f = bound(widen_padded, dim=0, axis="x", points=points, k=k)
        wide = np.asarray(mapped(f, mesh_of(devices), P("x"), P("x"))(u))
        wide = wide.reshape(devices, size + 2 * k)
        for device in range(used):
            here = size if device < used - 1 else rest
            at = np.arange(-k, here + k) + device * size
            close(wide[device, : here + 2 * k], u[at % points])
