"""What readers copy from `particles`, against sums over all pairs and a mesh in NumPy."""

from functools import cache, partial
from itertools import product

import jax
import numpy as np
from contract import DEVICES, KINDS, bound, close, contract, mapped, mesh_of, reads, refusal, values
from jax.sharding import PartitionSpec as P

pytestmark = reads("particles")
SIDE_BY_SIDE = P("d")


@cache
def program(f, **keywords):
    """A jitted function, compiled once."""
    return jax.jit(partial(f, **keywords))


@contract(
    "particles", "ring_pull", draws=30,
    devices=DEVICES, bodies=[0, 1, 5], kind=KINDS, masses=KINDS, check=[True, False],
)  # fmt: skip
def test_ring_pull(ring_pull, devices, bodies, kind, masses, check):
    """`ring_pull` takes a device's positions and masses in float32. The devices must share the
    bodies evenly. No two bodies may be further apart than 10¹², because 1/r³ must still be a
    float32.
    """
    if kind == "huge" and masses == "tiny":
        masses = "normal"  # below what float32 holds
    x = values(kind, (devices * bodies, 3)) * np.float32(1e-4 if kind == "huge" else 1)
    m = values(masses, (devices * bodies,), seed=1)
    found = mapped(ring_pull, mesh_of(devices, names="d"), SIDE_BY_SIDE, SIDE_BY_SIDE, check)(x, m)
    with np.errstate(all="ignore"):
        d = x.astype("float64") - x.astype("float64")[:, None]
        over_r = 1 / np.sqrt((d**2).sum(-1) + 0.1**2)
        close(found, ((m * over_r**2)[..., None] * (d * over_r[..., None])).sum(1), 1e-4)


def corners(x, n):
    low = np.floor(x)
    for step in product((0, 1), repeat=3):
        weight = np.where(step, x - low, 1 - (x - low)).prod(1)
        yield tuple(((low + step) % n).astype(int).T), weight


def one_mesh(x, m, n):
    """The forces of a particle mesh, in float64."""
    x = x.astype("float64")
    grid = np.zeros((n, n, n))
    for at, weight in corners(x, n):
        np.add.at(grid, at, weight * m)
    k = 2 * np.pi * np.fft.fftfreq(n)
    ks = np.meshgrid(k, k, k, indexing="ij")
    k2 = sum(k**2 for k in ks)
    potential = np.where(k2 == 0, 0, -4 * np.pi * np.fft.fftn(grid) / np.where(k2 == 0, 1, k2))
    fields = [np.fft.ifftn(-1j * np.sin(k) * potential).real for k in ks]
    return np.stack([sum(w * f[at] for at, w in corners(x, n)) for f in fields], 1)


@contract(
    "particles", "swap", "mesh_pull", draws=25,
    devices=DEVICES, n=[0, 1, 4, 6, 9], bodies=[0, 1, 4], kind=KINDS, check=[True, False],
)  # fmt: skip
def test_mesh_pull(mesh_pull, devices, n, bodies, kind, check):
    """`mesh_pull` takes a device's bodies, as many as you like. Its grid has `n` points in each
    direction, and `n` must be a multiple of the number of devices; other grids are refused.
    """
    x = values(kind, (devices * bodies, 3)) * np.float32(7)
    m = abs(values("normal", (devices * bodies,), seed=1))
    with refusal(n < 1 or n % devices, n, devices):
        f = mapped(
            bound(mesh_pull, n=n), mesh_of(devices, names="d"), SIDE_BY_SIDE, SIDE_BY_SIDE, check
        )
        found = np.asarray(f(x, m))
        if np.isfinite(x).all():
            np.testing.assert_allclose(found, one_mesh(x, m, n), atol=2e-5 * max(1, m.sum()))
        elif n > 1:
            assert np.isnan(found).all()


@contract(
    "particles", "corners", "deposit", "interpolate", draws=30,
    n=[1, 5, 8], bodies=[0, 6], kind=KINDS, dtype=["float32", "bfloat16"],
)  # fmt: skip
def test_deposit(deposit, interpolate, n, bodies, kind, dtype):
    """`deposit` and `interpolate` take positions anywhere, also beyond the box. If a position is
    not finite, its mass on the grid is NaN, and so is what it reads.
    """
    x = values(kind, (bodies, 3), dtype)
    m = values("normal", (bodies,), dtype, seed=1)
    fields = values("normal", (2, n**3), "float32", seed=2)
    grid = np.asarray(program(deposit, n=n)(x, m), "float64")
    read = program(interpolate, n=n)(fields, x)
    coarse = 1e-5 if dtype == "float32" else 0.1
    expected, at_bodies = np.zeros((n, n, n)), 0
    finite = np.isfinite(x.astype("float64")).all(1)
    sure, masses = x.astype("float64")[finite], m.astype("float64")[finite]
    for at, weight in corners(sure, n):
        np.add.at(expected, at, weight * masses)
        at_bodies = at_bodies + weight * fields.reshape(2, n, n, n)[:, *at]
    if finite.all():
        np.testing.assert_allclose(grid, expected, atol=coarse * 5)
        assert abs(grid.sum() - masses.sum()) < coarse * 20
    else:
        assert np.isnan(grid.sum())
    np.testing.assert_allclose(np.asarray(read, "float64")[finite], at_bodies.T, atol=coarse * 10)
    assert np.isnan(np.asarray(read, "float64")[~finite]).all()


@contract(
    "particles", "pack", draws=80,
    rows=[0, 1, 12], count=[1, 5, 300], capacity=[1, 3],
    dtype=["float32", "bfloat16", "int32", "uint32", "bool"],
    of_bins=["int32", "int32", "int8", "uint8", "uint32", "float32"],
)  # fmt: skip
def test_pack(pack, rows, count, capacity, dtype, of_bins, seed):
    """`pack` takes arrays with a row for each particle, and an integer `bins` for each. It drops
    particles whose bin is not in `range(count)`. If the second result is larger than `capacity`,
    and only then, it has dropped others too. It refuses types that have no −1.
    """
    rng = np.random.default_rng(seed)
    bins = rng.integers(-2, min(count, 250) + 2, rows).astype(of_bins)
    particles = {"id": np.arange(rows, dtype="int32"), "x": values("normal", (rows, 2), dtype)}
    refused = of_bins if of_bins == "float32" else dtype
    with refusal(refused in ("uint32", "bool") or of_bins == "float32", refused):
        packed, fullest = program(pack, count=count, capacity=capacity)(bins, particles)
        bins = bins.astype("int64")
        valid = (bins >= 0) & (bins < count)
        assert fullest == np.bincount(bins[valid], minlength=1).max()
        for number in range(count):
            ids = np.flatnonzero(bins == number)[:capacity]
            found = np.asarray(packed["id"][number])
            np.testing.assert_array_equal(
                found, np.pad(ids, (0, capacity - len(ids)), constant_values=-1)
            )
            close(packed["x"][number][: len(ids)], particles["x"][ids])


BOXES = ((1, 3, 3), (1, 2, 3), (2, 2, 5), (3, 1, 4), (8, 1, 3), (3, 3, 2))


@contract(
    "particles", "step", draws=50,
    shape=BOXES, capacity=[1, 6], count=[0, 1, 5, 30], kind=[*KINDS, "edge", "edge"],
)  # fmt: skip
def test_step(step, shape, capacity, count, kind, seed):
    """`step` takes cells of side 1, at least three in each direction of the box, with float32
    positions in their cells. Its report says whether it has dropped particles: it has if a message
    or a cell needed more slots than it has, or if there was a stray, and not otherwise.
    """
    devices, columns, rows = shape
    slots, dt = 4, np.float32(0.1)
    sides = np.array([devices * columns, rows], "float32")
    rng = np.random.default_rng(seed)
    count = 1 if kind == "edge" else count  # one that is pushed by no other
    x = (rng.random((count, 2), "float32") * sides).astype("float32")
    v = values("normal" if kind == "edge" else kind, (count, 2))
    if kind == "edge":  # at the ends of the box, hardly moving
        ends = np.stack([np.zeros(2, "float32"), np.nextafter(sides, np.float32(0))])
        x = ends[rng.integers(0, 2, (count, 2)), [0, 1]]
        v = (v * rng.choice([1e-8, 1e-30, 1], (count, 1))).astype("float32")
    x = np.minimum(x, np.nextafter(sides, np.float32(0)))
    cells = {
        "x": np.full((devices * columns, rows, slots, 2), -1, "float32"),
        "v": np.full((devices * columns, rows, slots, 2), -1, "float32"),
        "id": np.full((devices * columns, rows, slots), -1, "int32"),
    }
    present = []
    for i in range(count):
        column, row = x[i].astype(int)
        slot = (cells["id"][column, row] >= 0).sum()
        if slot < slots:
            for name, value in (("x", x[i]), ("v", v[i]), ("id", i)):
                cells[name][column, row, slot] = value
            present.append(i)
    with refusal(min(sides) < 3, int(sides[0]), rows):
        f = bound(step, capacity=capacity, dt=dt)
        out = (SIDE_BY_SIDE, P())
        end, report = mapped(f, mesh_of(devices, names="d"), SIDE_BY_SIDE, out, devices != 2)(cells)
        end = {name: np.asarray(a) for name, a in end.items()}
        message, crowd, strays = (int(n) for n in report)
        real = end["id"] >= 0
        ids = end["id"][real]
        assert len(np.unique(ids)) == len(ids) and set(ids) <= set(present)
        fine = message <= capacity and crowd <= slots and strays == 0
        assert fine == (len(ids) == len(present)), (report, len(ids), len(present))
        at = np.stack(np.nonzero(real), 1)[:, :2]
        np.testing.assert_array_equal(end["x"][real].astype(int), at)
        if kind == "huge":
            return
        now, speed = x[present].astype("float64"), v[present].astype("float64")
        d = now[:, None] - now
        d -= sides * np.round(d / sides)
        r = np.sqrt((d**2).sum(-1))
        size = np.where((r > 0) & (r < 1), 20 / np.where(r > 0, r, 1) - 20, 0)
        with np.errstate(all="ignore"):
            moved = now + dt * (speed + dt * (size[..., None] * d).sum(1))
        places = dict(zip(present, moved, strict=True))
        off = end["x"][real] - np.array([places[i] for i in ids]).reshape(-1, 2)
        off -= sides * np.round(off / sides)
        assert abs(off).max(initial=0) < 1e-4
        bad = ~np.isfinite(moved).all(1)
        assert strays >= bad.sum()
