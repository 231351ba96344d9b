"""What readers copy from `checkpoints`: in this process, and in two that see different damage."""

import itertools
import shutil
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from contract import DEVICES, KINDS, contract, excerpts_of, mesh_of, pasted, reads, refusal, values
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec as P

pytestmark = reads("checkpoints")
STEPS = (10, 20, 30)
FILES = st.dictionaries(st.text("ab", min_size=1, max_size=3), st.binary(max_size=3), max_size=3)


def tree_of(kind, dtype, seed=0):
    """A state: arrays, moments in Optax's own classes, a counter, a key."""
    w = {"W": jnp.asarray(values(kind, (8, 3), dtype, seed))}
    return {"w": w, "adam": optax.adam(1e-3).init(w), "step": np.int32(3), "key": jax.random.key(1)}


@contract(
    "checkpoints", "same_bits", "to_bits", draws=60,
    kind=KINDS, dtype=["float32", "bfloat16", "int32"], devices=DEVICES,
    change=[None, "bit", "negative zero", "dtype", "shape", "class", "name", "missing", "key",
            "None", "number", "list"],
)  # fmt: skip
def test_same_bits(same_bits, kind, dtype, devices, change):
    """`same_bits` takes two trees of arrays, numbers and random keys, each on devices of this
    process.
    """
    if dtype == "int32" and kind in ("nan", "inf", "huge"):
        kind = "normal"
    tree, other = tree_of(kind, dtype), tree_of(kind, dtype)
    w = np.array(other["w"]["W"])
    if change == "bit":
        w.view("u1")[2, 1] ^= 1
    elif change == "negative zero":
        tree["w"]["W"] = jnp.zeros((8, 3))
        w = np.full((8, 3), -0.0, "float32")
    elif change == "dtype":
        w = w.view("u2" if dtype == "bfloat16" else "u4")
    elif change == "shape":
        w = w.reshape(3, 8)
    elif change == "class":
        other["adam"] = tuple(other["adam"][0]), other["adam"][1]
    elif change == "name":
        other["W"] = other.pop("w")
    elif change == "missing":
        del other["step"]
    elif change == "key":
        other["key"] = jax.random.key(2)
    elif change == "None":
        tree["none"], other["none"] = None, {}
    elif change == "number":
        other["step"] = np.int32(4)
    elif change == "list":
        tree["list"], other["list"] = [1, 2], (1, 2)
    if "w" in other:
        # another layout of the same bits is the same
        put = NamedSharding(mesh_of(devices), P("x" if w.shape[0] % devices == 0 else None))
        other["w"]["W"] = jax.device_put(w, put)
    assert same_bits(tree, other) is (change is None)
    assert same_bits(other, tree) is (change is None)


@contract(
    "checkpoints", "digest", draws=60, quick=True,
    files=FILES, others=FILES, nested=[True, False],
)  # fmt: skip
def test_digest(digest, files, others, nested):
    """`digest` takes a folder; its result changes with the name or a byte of any file below the
    folder.
    """
    with tempfile.TemporaryDirectory() as name:
        digests = []
        for folder, each in zip(("x", "y"), (files, others), strict=True):
            inner = Path(name) / folder / ("in" if nested else "")
            inner.mkdir(parents=True)
            for file, content in each.items():
                (inner / file).write_bytes(content)
            digests.append(digest(Path(name) / folder))
        # a boundary that moves between a name and its content
        assert (digests[0] == digests[1]) == (files == others)


def saved(root, states):
    """A manager of checkpoints."""
    manager = ocp.CheckpointManager(root)
    for step, state in states.items():
        manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    return manager


def damage(folder, how):
    """Make the checkpoint in a folder one that cannot be read."""
    if how == "gone":
        shutil.rmtree(folder)
    elif how == "empty":
        shutil.rmtree(folder)
        folder.mkdir()
    elif how == "unfinished":
        folder.rename(folder.with_name(f"{folder.name}.orbax-checkpoint-tmp"))
    elif how == "truncated":
        file = max((f for f in folder.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


HOW = ("sound", "truncated", "empty", "unfinished", "gone")


@contract(
    "checkpoints", "last_good", "least", draws=16,
    devices=DEVICES, to=DEVICES, dtype=["float32", "bfloat16", "int32"], kind=KINDS,
    damages=st.tuples(*[st.sampled_from(HOW)] * 3), target=["same", "shape", "name", "dtype"],
)  # fmt: skip
def test_last_good(last_good, devices, to, dtype, kind, damages, target):
    """`last_good` takes a manager and a target, and all processes call it; it converts to the
    target's types, and raises an error in all processes if there is no step that all of them can
    read.
    """
    if dtype == "int32" and kind in ("nan", "inf", "huge"):
        kind = "normal"
    rows = NamedSharding(mesh_of(devices), P("x"))
    states = {
        step: {"W": jax.device_put(values(kind, (24, 64), dtype, step), rows)} for step in STEPS
    }
    shape = (25, 64) if target == "shape" else (24, 64)
    wanted_dtype = "float32" if target == "dtype" else dtype
    layout = NamedSharding(mesh_of(to), P("x" if target != "shape" else None))
    wanted = {
        "V" if target == "name" else "W": jax.ShapeDtypeStruct(shape, wanted_dtype, sharding=layout)
    }
    with tempfile.TemporaryDirectory() as name:
        saved(Path(name), states).close()
        for step, how in zip(STEPS, damages, strict=True):
            damage(Path(name) / str(step), how)
        fits = target in ("same", "dtype")
        good = [s for s, how in zip(STEPS, damages, strict=True) if how == "sound" and fits]
        with (
            ocp.CheckpointManager(name, item_handlers=ocp.StandardCheckpointHandler()) as manager,
            refusal(not good),
        ):
            step, state = last_good(manager, wanted)
            assert step == good[-1]
            assert state["W"].sharding == layout and state["W"].dtype == wanted_dtype
            right = np.asarray(states[step]["W"]).astype(wanted_dtype)
            np.testing.assert_array_equal(np.asarray(state["W"]), right)


def _code():
    """The cell of `last_good`, and names for the draws."""
    own = next(e for e in excerpts_of("checkpoints") if "last_good" in e.names)
    return own.code + "\nfrom jax.sharding import AxisType, NamedSharding, PartitionSpec as P\n"


group, _ends = pasted(2, _code)


@contract(
    "checkpoints", "last_good", draws=12,
    broken=st.tuples(*[st.sampled_from(["", "0", "1", "gone 0", "gone 1", "01"])] * 3),
)  # fmt: skip
def test_last_good_of_two(broken):
    """`last_good` takes a manager and a target, and all processes call it; it converts to the
    target's types, and raises an error in all processes if there is no step that all of them can
    read.
    """
    with tempfile.TemporaryDirectory() as name:
        # each process has a disk of its own
        states = {step: {"W": np.arange(64, dtype="float32") + step} for step in STEPS}
        for rank in "01":
            saved(Path(name) / rank, states).close()
        for (step, what), rank in itertools.product(zip(STEPS, broken, strict=True), "01"):
            if rank in what:
                how = "gone" if "gone" in what else "truncated"
                damage(Path(name) / rank / str(step), how)
        group().run(f"""
mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
target = {{"W": jax.ShapeDtypeStruct((64,), "float32", sharding=NamedSharding(mesh, P("x")))}}
me = jax.process_index()
alone = ocp.options.MultiprocessingOptions(
    primary_host=me, active_processes={{me}}, barrier_sync_key_prefix=f"of {{me}}")
options = ocp.CheckpointManagerOptions(create=False, multiprocessing_options=alone)
manager = ocp.CheckpointManager(f"{name}/{{me}}", options=options)
try:
    step, state = last_good(manager, target)
    shard = state["W"].addressable_shards[0]
    right = bool((shard.data == np.arange(64)[shard.index] + step).all())
except FileNotFoundError as error:
    step, right = str(error), True
manager.close()
""")
        good = [s for s, what in zip(STEPS, broken, strict=True) if not what]
        assert group()["right"] == [True, True]
        if good:
            assert group()["step"] == [good[-1]] * 2
        else:
            assert all("no checkpoint" in said for said in group()["step"])
