"""What readers copy from `remote_dma`, interpreted: equal to NumPy, no race, no semaphore left."""

from functools import cache

import jax
import numpy as np
from contract import DEVICES, KINDS, bound, close, contract, mesh_of, reads, refusal, values
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from shardlab import races

pytestmark = reads("remote_dma")


AXES = (1, 1, 1, 1, 1, 2)  # of the mesh
ROWS = P("x")


@cache
def interpreted(f, devices, axes=1, specs=(ROWS,), out=ROWS):
    """A program with `f` on each device, whose kernels are interpreted."""
    mesh = mesh_of(*[1] * (axes - 1), devices, names="yx"[2 - axes :])
    mapped = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False))

    def run(*args):
        with pltpu.force_tpu_interpret_mode():
            y = jax.block_until_ready(mapped(*args))
        return y

    return run, mapped


def named(kind, shape, dtype):
    return values("ones" if dtype == "int32" else kind, shape, dtype)


@contract(
    "remote_dma", "gather", "gather_kernel", "local", draws=16,
    devices=DEVICES, rows=[0, 1, 5], kind=KINDS, dtype=["float32", "bfloat16", "int32"], axes=AXES,
)  # fmt: skip
def test_gather(gather, devices, rows, kind, dtype, axes):
    """`gather` takes a shard of any type, inside a `shard_map` over a mesh with a single axis, `x`.
    It refuses an empty shard and any other mesh.
    """
    x = named(kind, (devices * rows, 3), dtype)
    with refusal(not rows or axes > 1, *((rows, 3) if not rows else "yx")):
        run, mapped = interpreted(gather, devices, axes)
        whole = x.reshape(devices, rows, 3)
        close(run(x), np.tile(whole, (devices, 1, 1)), 0)
        assert races(mapped, x) == []


@contract(
    "remote_dma", "all_to_all", "all_to_all_kernel", draws=16,
    devices=DEVICES, more=[0, 0, 1], rows=[0, 1, 5], kind=KINDS,
    dtype=["float32", "bfloat16", "int32"], axes=AXES,
)  # fmt: skip
def test_all_to_all(all_to_all, devices, more, rows, kind, dtype, axes):
    """`all_to_all` takes an array of any type that holds one entry for each device, inside a
    `shard_map` over a mesh with a single axis, `x`. It refuses too few or too many entries, empty
    entries, and any other mesh.
    """
    entries = devices + more
    x = named(kind, (devices * entries, rows, 3), dtype)
    wrong = more or not rows
    with refusal(wrong or axes > 1, *((devices, entries, rows) if wrong else "yx")):
        run, mapped = interpreted(all_to_all, devices, axes)
        whole = x.reshape(devices, entries, rows, 3).swapaxes(0, 1)
        close(run(x), whole.reshape(x.shape), 0)
        assert races(mapped, x) == []


@contract(
    "remote_dma", "vmem", "reduce_scatter", draws=24,
    devices=DEVICES, more=[0, 0, 0, 1], rows=[0, 1, 5], kind=KINDS,
    dtype=["float32", "bfloat16", "int32"], axes=AXES,
)  # fmt: skip
def test_reduce_scatter(reduce_scatter, devices, more, rows, kind, dtype, axes):
    """`reduce_scatter` takes an array that holds one matrix for each device, inside a `shard_map`
    over a mesh with a single axis, `x`. It refuses too few or too many matrices, empty matrices,
    and any other mesh.
    """
    entries = devices + more
    x = named(kind, (devices * entries, rows, 3), dtype)
    wrong = more or not rows
    with refusal(wrong or axes > 1, *((devices, entries, rows) if wrong else "yx")):
        run, mapped = interpreted(reduce_scatter, devices, axes)
        whole = x.reshape(devices, entries, rows, 3).astype("float64")
        with np.errstate(invalid="ignore"):
            expected = whole.sum(0).reshape(-1, 3)
        found = np.asarray(run(x))
        assert found.dtype == x.dtype
        finite = np.isfinite(whole).all(0).reshape(-1, 3)
        scale = abs(np.where(np.isfinite(whole), whole, 0)).max() * devices
        error = np.where(finite, found.astype("float64") - np.where(finite, expected, 0), 0)
        assert abs(error).max() <= scale * (0.02 if dtype == "bfloat16" else 1e-6)
        np.testing.assert_array_equal(np.isfinite(found.astype("float64")), finite)
        assert races(mapped, x) == []


@contract(
    "remote_dma", "gather_matmul", draws=24,
    devices=DEVICES, rows=[0, 1, 5], wrong=[0, 0, 0, 1], kind=["normal", "zeros", "tiny", "nan"],
    dtype=["float32", "float32", "bfloat16", "int32"], axes=AXES,
)  # fmt: skip
def test_gather_matmul(gather_matmul, devices, rows, wrong, kind, dtype, axes):
    """`gather_matmul` takes a device's rows of one matrix and its columns of another, inside a
    `shard_map` over a mesh with a single axis, `x`. Both matrices must have the same float type.
    `gather_matmul` refuses matrices that cannot be multiplied, empty matrices, and any other mesh.
    """
    x, w = named(kind, (devices * rows, 4), dtype), named("normal", (4 + wrong, devices * 2), dtype)
    refused = wrong or not rows or dtype == "int32"
    with refusal(refused or axes > 1, *((rows, 4 + wrong) if refused else "yx")):
        f = interpreted(gather_matmul, devices, axes, (P("x"), P(None, "x")), P(None, None, "x"))
        run, mapped = f
        found = np.asarray(run(x, w))
        assert found.dtype == x.dtype and found.shape == (devices, rows, devices * 2)
        expected = x.astype("float64") @ w.astype("float64")
        close(found.reshape(expected.shape), expected, 0.02 if dtype == "bfloat16" else 1e-5)
        assert races(mapped, x, w) == []


@contract(
    "remote_dma", "heat", draws=24,
    devices=DEVICES, shape=[(0, 3), (1, 1), (1, 3), (5, 3)],
    kind=["normal", "zeros", "huge", "nan"],
    dtype=["float32", "float32", "bfloat16", "int32"], steps=[0, 1, 4], axes=AXES,
)  # fmt: skip
def test_heat(heat, devices, shape, kind, dtype, steps, axes):
    """`heat` takes a device's rows of a periodic matrix of floats, inside a `shard_map` over a mesh
    with a single axis, `x`. It refuses other types, an empty matrix, and any other mesh.
    """
    u = named(kind, (devices * shape[0], shape[1]), dtype)
    refused = not u.size or dtype == "int32"
    with refusal(refused or axes > 1, *(shape if refused else "yx")):
        run, mapped = interpreted(bound(heat, steps=steps), devices, axes)
        found, expected = run(u), u.astype("float64")
        for _ in range(steps):
            beside = sum(np.roll(expected, by, axis) for by in (1, -1) for axis in (0, 1))
            expected = expected + 0.1 * (beside - 4 * expected)
        assert found.dtype == u.dtype
        close(found, expected, 0.05 if dtype == "bfloat16" else 1e-5)
        assert races(mapped, u) == []
