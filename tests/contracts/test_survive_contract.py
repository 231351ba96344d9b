"""What readers copy from `survive`, in four processes: the mesh that is left leaves some of them
out, as a death would.
"""

import jax
import jax.numpy as jnp
import numpy as np
from contract import DEVICES, KINDS, contract, excerpts_of, mesh_of, pasted, reads, refusal
from hypothesis import strategies as st
from jax.sharding import AxisType

pytestmark = reads("survive")
RANKS = range(4)

IN_EACH = '''
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

def over(ranks, kind="Auto"):
    devices = np.array([d for r in ranks for d in jax.devices() if d.process_index == r])
    return NamedSharding(Mesh(devices, ("w",), axis_types=(AxisType[kind],)), P("w"))

def put(whole, sharding):
    return jax.make_array_from_callback(whole.shape, sharding, lambda at: whole[at])

def told(f, *args):
    """What f returns, or its error."""
    try:
        return f(*args)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"

def arrays(seed, step, rows, kind, dtype):
    """The state after a step."""
    rng = np.random.default_rng([seed, step])
    a = rng.normal(size=(rows, 3))
    a *= {"tiny": 1e-18, "huge": 1e15, "zeros": -0.0}.get(kind, 1)
    a[rng.random(a.shape) < 0.2] = {"nan": np.nan, "inf": -np.inf}.get(kind, -0.0)
    if dtype == "int32":
        a = rng.integers(-2**31, 2**31, a.shape)
    return {"a": a.astype(jnp.dtype(dtype)), "b": [np.arange(rows, dtype="int32") + step]}
'''


# four processes that have pasted all cells
group, _ends = pasted(4, lambda: "\n\n".join([IN_EACH, *(e.code for e in excerpts_of("survive"))]))


@contract(
    "survive", "agreed", draws=12, devices=DEVICES, fails=[True, False], kind=["Auto", "Explicit"]
)
def test_agreed_alone(agreed, devices, fails, kind):
    """`agreed` takes a mesh, a function that saves, and its arguments. Every process of the mesh
    must call it. If the function sends data, it must not raise an error before it has sent them,
    because the other processes wait for these data.
    """
    calls = []

    def save(*args):
        calls.append(args)
        if fails:
            raise OSError(28, "No space left on device")

    shape = (2, devices // 2) if devices % 2 == 0 else (1, devices)
    assert agreed(mesh_of(*shape, types=AxisType[kind]), save, 7, "x") is not fails
    assert calls == [(7, "x")]


@contract(
    "survive", "agreed", draws=15,
    full=st.sets(st.sampled_from(list(RANKS))), left=st.permutations(list(RANKS)),
    count=[1, 2, 3, 4], kind=["Auto", "Explicit"],
)  # fmt: skip
def test_agreed(full, left, count, kind):
    """`agreed` takes a mesh, a function that saves, and its arguments. Every process of the mesh
    must call it. If the function sends data, it must not raise an error before it has sent them,
    because the other processes wait for these data.
    """
    left = left[:count]
    group().run(f"""
def save(step):
    if jax.process_index() in {full}:
        raise OSError(28, "No space left on device", step)
mesh = over({left}, {kind!r}).mesh
done = agreed(mesh, save, 3) if jax.process_index() in {left} else None
""")
    expected = not full & set(left)
    assert group()["done"] == [expected if r in left else None for r in RANKS]


@contract(
    "survive", "adding", "rebuild", draws=50,
    rows=[0, 1, 5, 6], dtype=["float32", "bfloat16", "int32"], kind=KINDS, size=[1, 2, 3, 4, 4],
    left=st.permutations(list(RANKS)), count=[1, 2, 3, 3, 4],
    steps=st.integers(1, 5), agreed_at=st.integers(1, 5), types=["Auto", "Explicit"],
)  # fmt: skip
def test_rebuild(seed, rows, dtype, kind, size, left, count, steps, agreed_at, types):
    """`rebuild` takes what `keep` has kept, and a mesh of the remaining devices. It raises an error
    if a shard is lost, if the step is not in memory, if a process is new, or if a leaf's rows do
    not divide evenly among the devices.
    """
    ring, left = [2, 0, 3, 1][:size], left[:count]
    group().run(f"""
before, memory, saved = over({ring}, {types!r}), {{}}, None
case = {size * rows}, {kind!r}, {dtype!r}
for step in range(1, {steps} + 1):
    if jax.process_index() in {ring}:
        state = jax.tree.map(lambda a: put(a, before), arrays({seed}, step, *case))
        keep(memory, step, state, before, saved)
    if step <= {agreed_at}:
        saved = step, list(before.mesh.devices.flat)
held = sorted(memory)
here = jax.process_index() in {left}
found = told(rebuild, memory, saved, over({left}, {types!r})) if here else "elsewhere"
right = isinstance(found, str) or found[0] == saved[0] and all(
    got.addressable_data(0).dtype == whole.dtype
    and np.asarray(got.addressable_data(0)).tobytes()
    == whole[got.addressable_shards[0].index].tobytes() and got.shape == whole.shape
    for got, whole in zip(jax.tree.leaves(found[1]),
                          jax.tree.leaves(arrays({seed}, saved[0], *case))))
found = found if isinstance(found, str) else "found"
""")
    newest = min(steps, agreed_at)
    # the step before is kept until the next one is agreed on
    kept = sorted({steps, newest if steps > newest else max(steps - 1, 1)})
    assert group()["held"] == [kept if r in ring else [] for r in RANKS]
    assert group()["right"] == [True] * 4
    giver = [
        next((r for r in (ring[i], ring[(i + 1) % size]) if r in left), None) for i in range(size)
    ]
    for rank, said in enumerate(group()["found"]):
        if rank not in left:
            assert said == "elsewhere"
        elif None in giver or set(left) - set(ring):
            assert f"step {newest}" in said and f"{left} find its shards in {giver}" in said
        elif size * rows % count:
            assert f"{size * rows} rows" in said and f"{count} devices" in said
        else:
            assert said == "found"


@contract(
    "survive", "keep", "passing", draws=10,
    wrong=["replicated", "scalar", "columns", "other mesh", "bool", "complex64", "two axes",
           "agreed"],
)  # fmt: skip
def test_keep_refuses(wrong):
    """`keep` takes a tree of arrays of real numbers. All must have the same sharding, of their
    first dimension, over a mesh with one device in each process; other arrays and meshes are
    refused. It also takes the step on which all agreed last, and refuses to overwrite the backup of
    that step.
    """
    group().run(f"""
sharding, wrong, memory = over([0, 1, 2, 3]), {wrong!r}, {{}}
layout = dict(replicated=P(), scalar=P(), columns=P(None, "w")).get(wrong, P("w"))
mesh = over([3, 1, 2, 0]).mesh if wrong == "other mesh" else sharding.mesh
if wrong == "two axes":
    mesh = Mesh(mesh.devices.reshape(2, 2), ("v", "w"), axis_types=(AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, P("w"))
dtype = wrong if wrong in ("bool", "complex64") else "float32"
whole = np.ones(() if wrong == "scalar" else (4, 4), dtype)
state = {{"odd one": put(whole, NamedSharding(mesh, layout))}}
saved = (1, list(mesh.devices.flat)) if wrong == "agreed" else None
said = told(keep, memory, 1, state, sharding, saved)
kept = len(memory)
""")
    for said in group()["said"]:
        own = "agreed on step 1" if wrong == "agreed" else "is not a real array"
        assert said.startswith("ValueError") and own in said, said
        assert wrong == "agreed" or "odd one" in said
    assert group()["kept"] == [0] * 4


@contract("survive", "keep", draws=10, devices=[1, 2, 4], rows=[1, 5])
def test_keep_in_one_process(keep, devices, rows):
    """`keep` takes a tree of arrays of real numbers. All must have the same sharding, of their
    first dimension, over a mesh with one device in each process; other arrays and meshes are
    refused. It also takes the step on which all agreed last, and refuses to overwrite the backup of
    that step.
    """
    sharding = jax.sharding.NamedSharding(mesh_of(devices), jax.sharding.PartitionSpec("x"))
    a, memory = jnp.arange(devices * rows), {}
    with refusal(devices > 1, *[0] * devices):
        keep(memory, 3, {"a": jax.device_put(a, sharding)}, sharding, None)
        assert list(memory) == [3] and list(memory[3]) == [0]
        np.testing.assert_array_equal(memory[3][0]["a"], a)


@contract(
    "survive", "givers", draws=200, quick=True,
    count=st.integers(1, 9), order=st.permutations(list(range(9))),
    alive=st.sets(st.integers(0, 8)),
)  # fmt: skip
def test_givers(givers, count, order, alive):
    """`givers` takes the owner of each shard, a process, in the order of the mesh, and the
    processes that are alive.
    """
    owners = order[:count]
    for i, giver in enumerate(givers(owners, alive)):
        holders = {owners[i], owners[(i + 1) % count]} & alive
        assert giver in holders if holders else giver is None
        assert giver == owners[i] or owners[i] not in alive
