"""What readers copy from `transforms`, against NumPy on one device."""

from functools import cache

import numpy as np
from contract import DEVICES, KINDS, bound, contract, mapped, mesh_of, reads, refusal, values
from jax.sharding import PartitionSpec as P

pytestmark = reads("transforms")
SPACE, WAVES = P("rows", "columns"), P(None, "rows", "columns")
MESHES = ((1, 1), (2, 4), (3, 2), (8, 1), (1, 3))
SHAPES = ((1, 1, 1), (5, 7, 6), (6, 8, 12), (2, 3, 1), (9, 1, 5))


def grid_mesh(sizes):
    return mesh_of(*sizes, names=("rows", "columns"))


def stored(grid, sizes):
    """The grid with zeros behind it, so that the mesh divides it."""
    missing = [-n % size for n, size in zip(grid.shape, (*sizes, 1), strict=True)]
    return np.pad(grid, [(0, m) for m in missing])


def cut(grid, shape):
    return np.asarray(grid)[: shape[0], : shape[1], : shape[2]]


def whole(transform, grid):
    """What NumPy makes of a grid: of one with NaN or infinities, without its warnings."""
    with np.errstate(all="ignore"):
        return transform(grid)


def same(found, expected):
    """To 2e-6 of the largest; a NaN or an infinity anywhere is one everywhere."""
    if np.isfinite(expected).all():
        scale = abs(expected).max(initial=1e-30)
        np.testing.assert_allclose(found / scale, expected / scale, atol=2e-6)
    else:
        assert not np.isfinite(found).any()


@contract(
    "transforms", "swap", "check_z", "pencils", draws=30,
    sizes=MESHES, shape=SHAPES, kind=KINDS, more=[0, 0, 0, 50], check=[True, False],
    z=[0, 0, 0, 2],
)  # fmt: skip
def test_pencils(pencils, sizes, shape, kind, more, check, z):
    """`pencils` takes a device's shard of any grid. If the mesh does not divide a dimension, pad
    that dimension at its end, and pass the shape without padding as `shape`. A `shape` that the
    shards do not hold is refused.
    """
    grid = values(kind, shape) + 1j * values("normal", shape, seed=1)
    asked = (shape[0], shape[1] + more, shape[2])
    with refusal(more or z, shape[2] if z else asked[1]):
        f = bound(pencils, shape=asked)
        a = np.pad(stored(grid.astype("complex64"), sizes), [(0, 0), (0, 0), (0, z)])
        found = mapped(f, grid_mesh(sizes), SPACE, WAVES, check)(a)
        same(cut(found, shape), whole(np.fft.fftn, grid))


@contract(
    "transforms", "forward", "backward", draws=25,
    sizes=MESHES, shape=SHAPES, kind=KINDS, more=[0, 0, 0, 50], check=[True, False],
    z=[0, 0, 0, 2],
)  # fmt: skip
def test_forward(forward, backward, sizes, shape, kind, more, check, z):
    """`forward` takes a device's shard of any real grid in float32, and `backward` a shard of its
    transform. If the mesh does not divide a dimension, end it with zeros, and pass the shape
    without these zeros as `shape`. A `shape` that the shards do not hold is refused.
    """
    grid = values(kind, shape)
    asked = (shape[0] + more, shape[1], shape[2])
    mesh = grid_mesh(sizes)
    with refusal(more or z, shape[2] if z else asked[0]):
        there = mapped(bound(forward, shape=asked), mesh, SPACE, WAVES, check)
        found = there(np.pad(stored(grid, sizes), [(0, 0), (0, 0), (0, z)]))
        half = (shape[0], shape[1], shape[2] // 2 + 1)
        same(cut(found, half), whole(np.fft.rfftn, grid))
        again = mapped(bound(backward, shape=asked), mesh, WAVES, SPACE, check)(found)
        if np.isfinite(grid).all():
            same(cut(again, shape), grid)


@contract(
    "transforms", "frequencies", "squares", "poisson_on", draws=40,
    sizes=MESHES, shape=SHAPES, kind=KINDS, mean=[0, 0, -1, 1e4, 1e7, 1e30],
)  # fmt: skip
def test_poisson_on(poisson_on, sizes, shape, kind, mean):
    """`poisson_on` takes a mesh with the axes `rows` and `columns`, and the shape of any grid of
    period 2π. Pad the grid as for `forward`. The solver ignores the grid's mean, however large it
    is.
    """
    f = values(kind, shape) + np.float32(mean)
    found = cut(solver(poisson_on, sizes, shape)(stored(f, sizes)), shape)
    if not np.isfinite(f).all():
        assert not np.isfinite(found).any()
        return
    f = f.astype("float64")
    k2 = sum(k**2 for k in np.meshgrid(*(np.fft.fftfreq(n, 1 / n) for n in shape), indexing="ij"))
    u = np.fft.fftn(f - f.mean()) / np.where(k2 == 0, np.inf, k2)
    # of the waves, not of the mean, down to what float32 holds beside it
    scale = max(abs(f - f.mean()).max(), 1e-7 * abs(f).max(), 1e-30)
    np.testing.assert_allclose(found / scale, np.fft.ifftn(u).real / scale, atol=2e-6)


@cache
def solver(poisson_on, sizes, shape):
    return poisson_on(grid_mesh(sizes), shape)


@contract(
    "transforms", "sample_sort", draws=80,
    devices=DEVICES, keys=[0, 1, 3, 41], room=[0, 1, 2, 8],
    kind=[*KINDS, "few", "sorted", "zero signs"],
    dtype=["float32", "bfloat16", "int32", "uint8", "complex64"],
)  # fmt: skip
def test_sample_sort(sample_sort, devices, keys, room, kind, dtype, seed):
    """`sample_sort` takes a device's real keys, the same number on each device, and sorts NaN last,
    as `np.sort` does; it refuses other types, and keys are lost exactly if the third result is
    larger than `capacity`.
    """
    rng = np.random.default_rng(seed)
    size = devices * keys
    if kind in ("few", "sorted", "zero signs"):
        x = rng.integers(0, 3, size) if kind == "few" else np.sort(rng.normal(size=size) * 99)
        x = np.where(x > 0, 0.0, -0.0) if kind == "zero signs" else x
    else:
        x = values(kind, (size,), "float64")
        if kind == "nan" and size > 1:  # with an infinity as well
            x[rng.integers(size)] = np.inf
    if dtype in ("int32", "uint8"):
        limits = np.iinfo(dtype)
        x = np.clip(np.nan_to_num(x * 1e3), limits.min, limits.max)
    x = x.astype(dtype)
    capacity = max(keys, 1) if room == 8 else room * keys // max(devices, 1)
    refused = dtype == "complex64" or capacity < 1
    with refusal(refused, dtype if dtype == "complex64" else capacity):
        f = bound(sample_sort, capacity=capacity)
        out = (P("d"), P("d"), P())
        found, counts, fullest = mapped(f, mesh_of(devices, names="d"), P("d"), out)(x)
        blocks = np.split(np.asarray(found), devices)
        assert sum(counts) == size
        joined = np.concatenate([b[:n] for b, n in zip(blocks, counts, strict=True)])
        expected = np.sort(x.astype("float64"))
        assert room != 8 or fullest <= capacity
        fine = joined.shape == x.shape and np.array_equal(
            joined.astype("float64"), expected, equal_nan=True
        )
        assert joined.dtype == x.dtype
        if fullest <= capacity:
            assert fine
        elif kind in ("normal", "sorted", "tiny", "zeros", "ones"):  # no key is the filling
            assert not fine
