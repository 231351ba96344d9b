"""What readers copy from `global_arrays`, against NumPy's slices of complete arrays."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from contract import DEVICES, KINDS, contract, copied, mesh_of, reads, refusal, values
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

pytestmark = reads("global_arrays")
LAYOUTS = {
    "rows": P("x"), "columns": P(None, "x"), "tiles": P("x", "y"), "both": P(("y", "x")),
    "replicated": P(), "replicas of columns": P(None, "y"),
}  # fmt: skip
MESHES = [(1, 1), (2, 1), (3, 1), (4, 1), (1, 8), (2, 4), (4, 2)]
RANGE = st.tuples(st.integers(0, 9), st.integers(0, 9))


def sharded(a, sizes, layout):
    return jax.device_put(a, NamedSharding(mesh_of(*sizes), LAYOUTS[layout]))


@contract("global_arrays", "overlap", draws=200, quick=True, wanted=RANGE, stored=RANGE)
def test_overlap(overlap, wanted, stored):
    """`overlap` takes two ranges of whole numbers, (first, last + 1)."""
    wanted, stored = tuple(sorted(wanted)), tuple(sorted(stored))
    into, out = overlap(wanted, stored)
    both = sorted({*range(*wanted)} & {*range(*stored)})
    assert list(range(*wanted))[into] == list(range(*stored))[out] == both


@contract(
    "global_arrays", "save_shards", draws=60,
    sizes=MESHES, layout=list(LAYOUTS), rows=[24, 0], kind=KINDS, ndim=[2, 1, 3, 0],
    dtype=["float32", "bfloat16", "int32", "bool"],
)  # fmt: skip
def test_save_shards(save_shards, sizes, layout, rows, kind, ndim, dtype):
    """`save_shards` takes an array of numbers with at least one dimension, in any sharding, and an
    empty folder that all processes share.
    """
    if dtype not in ("float32", "bfloat16") and kind in ("nan", "inf", "huge"):
        kind = "normal"
    layout = layout if ndim >= len(LAYOUTS[layout]) else "replicated"
    a = values(kind, (rows, 48, 2)[:ndim], dtype)
    with tempfile.TemporaryDirectory() as folder, refusal(not ndim, "()"[:0]):
        save_shards(sharded(a, sizes, layout), folder)
        files = list(Path(folder).iterdir())
        assert sum(np.load(file).nbytes for file in files) == a.nbytes
        for file in files:
            part = np.load(file)
            at = tuple(
                slice(int(f), int(f) + n)
                for f, n in zip(file.stem.split("-"), part.shape, strict=True)
            )
            assert part.tobytes() == a[at].tobytes()


@contract(
    "global_arrays", "read_block", draws=200,
    before=MESHES, layout=list(LAYOUTS), after=MESHES, into=list(LAYOUTS), rows=[24, 24, 24, 0],
    kind=KINDS, dtype=["float32", "bfloat16", "int32", "int16"],
    wrong=["", "", "missing", "stale", "dtype", "int16", "larger", "smaller", "dimension"],
    block=st.tuples(*[st.one_of(st.none(), st.integers(-30, 30))] * 4),
)  # fmt: skip
def test_read_block(read_block, before, layout, after, into, rows, kind, dtype, wrong, block):
    """`read_block` takes a folder that `save_shards` has filled, the array's shape and dtype, and
    the index of a block. It refuses a folder in which an element of the block is missing or is
    there twice, or a file has another dtype.
    """
    if "float" not in dtype and kind in ("nan", "inf", "huge"):
        kind = "normal"
    a = values(kind, (rows, 48), dtype)
    if not rows:
        wrong = ""
    with tempfile.TemporaryDirectory() as folder:
        copied("global_arrays", "save_shards")(sharded(a, before, layout), folder)
        shape, asked = a.shape, dtype
        files = sorted(Path(folder).glob("*.npy"))
        named = ""
        if wrong == "missing":
            files[0].unlink()
            named = folder
        elif wrong == "stale":  # of a run with other shards
            np.save(Path(folder) / f"{rows - 1}-47.npy", np.asarray(a[-1:, -1:]))
            named = "47"
            if any(f.stem == f"{rows - 1}-47" for f in files):
                wrong = ""
        elif wrong in ("dtype", "int16"):
            asked = "int8" if wrong == "dtype" else "int16"
            wrong = wrong if asked != dtype else ""
            named = asked
        elif wrong == "larger":
            shape, named = (rows + 12, 48), folder
        elif wrong == "smaller":
            shape, named = (rows - 12, 48), f"{rows - 12}"
        elif wrong == "dimension":
            shape, named = (rows, 48, 2), "48"
        layout_after = NamedSharding(mesh_of(*after), LAYOUTS[into])
        with refusal(bool(wrong), *([named] if wrong and named.isalnum() else [])):
            whole = tuple(slice(None) for _ in shape)
            found = read_block(folder, shape, asked, whole)
            assert not wrong
            assert found.tobytes() == a.tobytes() and found.dtype == a.dtype
            moved = jax.make_array_from_callback(
                shape, layout_after, lambda index: read_block(folder, shape, asked, index)
            )
            assert np.asarray(moved).tobytes() == a.tobytes()
            at = slice(*block[:2]), slice(*block[2:])
            touched = []
            part = read_block(folder, shape, asked, at, touched)
            assert part.shape == a[at].shape and part.tobytes() == a[at].tobytes()
            assert bool(touched) == bool(part.size)


@contract(
    "global_arrays", "shuffled", draws=100, quick=True,
    samples=st.integers(-1, 40), batch=st.integers(-1, 50), epoch=st.integers(0, 3),
)  # fmt: skip
def test_shuffled(shuffled, seed, samples, batch, epoch):
    """`shuffled` takes the number of samples and the size of a batch, each at least 1, a seed and
    an epoch.
    """
    with refusal(samples < 1 or batch < 1, samples, batch):
        order = shuffled(samples, batch, seed, epoch)
        assert samples >= 1 and batch >= 1
        assert len(order) % batch == 0 and samples <= len(order) < samples + batch
        assert sorted(order[:samples]) == list(range(samples)) and (order[samples:] == -1).all()
        assert (order == shuffled(samples, batch, seed, epoch)).all()
        if samples > 12:
            assert (order != shuffled(samples, batch, seed, epoch + 1)).any()
            assert (order != shuffled(samples, batch, seed + 1, epoch)).any()


def woven(order, layout):
    """A sharding over eight devices in another order, of which some belong to a process."""
    mesh = Mesh(np.array(jax.devices())[list(order)].reshape(4, 2), ("x", "y"))
    return NamedSharding(mesh, P(*layout))


FIRST = [("x",), (("x", "y"),), (("y", "x"),), ("y",), (), (None,)]


class Part:
    """A sharding as one of several processes sees it."""

    def __init__(self, whole, devices):
        self.whole, self.devices = whole, devices

    def addressable_devices_indices_map(self, shape):
        return {d: i for d, i in self.whole.devices_indices_map(shape).items() if d in self.devices}


@contract(
    "global_arrays", "positions_here", draws=60,
    order=st.permutations(list(range(8))), first=FIRST, batch=[1, 2, 4, 8, 16, 40],
    processes=[1, 2, 4, 8],
)  # fmt: skip
def test_positions_here(positions_here, order, first, batch, processes):
    """`positions_here` takes the sharding of a batch's first dimension, over any mesh, and the size
    of the batch, which the number of shards must divide.
    """
    sharding = woven(order, first)
    count = np.prod([{"x": 4, "y": 2}[a] for axes in first if axes for a in np.ravel(axes)])
    with refusal(batch % count != 0, batch):
        found = [
            positions_here(Part(sharding, jax.devices()[p::processes]), batch)
            for p in range(processes)
        ]
        assert batch % count == 0
        assert {*np.concatenate(found).tolist()} == {*range(batch)}
        a = jax.device_put(np.arange(batch), sharding)
        for p, here in enumerate(found):
            own = {
                int(n) for s in a.addressable_shards if s.device in jax.devices()[p::processes]
                for n in np.asarray(s.data)
            }  # fmt: skip
            assert here.tolist() == sorted(own)


@contract(
    "global_arrays", "Loader", draws=40,
    samples=[0, 1, 7, 8, 9, 33], batch=[0, 8, 16, 24], order=st.permutations(list(range(8))),
    first=FIRST, stop=st.integers(0, 6), step=[0, 0, 0, 1, 5], dtype=["float32", "int32"],
)  # fmt: skip
def test_loader(Loader, seed, samples, batch, order, first, stop, step, dtype):
    """`Loader` takes a function that reads samples by their numbers, and the arguments of
    `shuffled` and `positions_here`. It refuses a state whose step is beyond the end of an epoch, as
    it can be in the state of a run with smaller batches.
    """

    def read(numbers):
        return np.stack([numbers, numbers**2], 1).astype(dtype)

    steps = -(-samples // batch) if batch else 0
    with refusal(samples < 1 or not batch or step >= steps, samples, batch):
        mesh = mesh_of(8, names="x")
        loader = Loader(read, samples, batch, NamedSharding(mesh, P("x")), seed, step=step)
        assert samples and batch and step < steps
        loader = Loader(read, samples, batch, NamedSharding(mesh, P("x")), seed)
        states, seen = [], []
        for _ in range(2 * steps):
            states.append(loader.state())
            numbers, data = loader.next()
            assert numbers.shape == (batch,) and data.shape == (batch, 2) and data.dtype == dtype
            real = np.maximum(np.asarray(numbers), 0)
            np.testing.assert_array_equal(data, read(real))
            seen.append(np.asarray(numbers))
        for epoch in (seen[:steps], seen[steps:]):
            numbers = np.concatenate(epoch)
            assert sorted(numbers[numbers >= 0]) == list(range(samples))
        assert loader.state() == {"seed": seed, "epoch": 2, "step": 0}
        state = states[stop % len(states)]
        again = Loader(read, samples, batch, woven(order, first), **state)
        for expected in seen[stop % len(states) :]:
            np.testing.assert_array_equal(again.next()[0], expected)


@contract(
    "global_arrays", "masked_mean", draws=40,
    devices=DEVICES, kind=KINDS, dtype=["float32", "bfloat16", "float16", "int32"],
    real=[0.0, 0.1, 0.9, 1.0], shape=[(), (3,), (2, 2)], filler=[0, np.nan, np.inf],
)  # fmt: skip
def test_masked_mean(masked_mean, seed, devices, kind, dtype, real, shape, filler):
    """`masked_mean` takes sample numbers, negative for fillers, and real data of any type with a
    row for each number. It returns the mean in float32, and the number of samples. If there are
    only fillers, the mean is zero.
    """
    too_large = {"float16": ("huge",), "int32": ("nan", "inf", "huge")}
    if kind in too_large.get(dtype, ()):
        kind = "normal"
    chosen = np.random.default_rng(seed).random(24) < real
    numbers = np.where(chosen, np.arange(24), -1)
    data = values(kind, (24, *shape), dtype)
    if "float" in dtype:
        data[~chosen] = filler
    put = NamedSharding(mesh_of(devices), P("x"))
    mean, count = masked_mean(jax.device_put(numbers, put), jax.device_put(data, put))
    assert mean.dtype == jnp.float32 and int(count) == chosen.sum()
    kept = data[chosen].astype("float64")
    with np.errstate(invalid="ignore"):
        right = kept.mean(0) if len(kept) else np.zeros(shape)
    scale = np.abs(kept[np.isfinite(kept)]).max(initial=0)
    np.testing.assert_allclose(np.asarray(mean), right, rtol=1e-5, atol=1e-5 * scale)
