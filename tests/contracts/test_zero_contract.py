"""What readers copy from `zero`, against a step on one device."""

import re
from functools import cache

import jax
import numpy as np
from contract import (
    DEVICES,
    bound,
    close,
    contract,
    copied,
    mapped,
    mesh_of,
    reads,
    refusal,
    values,
)  # fmt: skip
from jax.sharding import NamedSharding, PartitionSpec as P

from shardlab.networks.transformer import Config, adam_state, init, mlp, sums, train_step

pytestmark = reads("zero")


@contract(
    "zero", "shard_matrices", "name_of", draws=100, quick=True,
    devices=DEVICES, shape=[
        (), (5,), (0,), (0, 9), (3, 0), (2, 40, 24), (3, 40, 25), (2, 41, 25), (2, 9, 250),
        (48, 48), (1, 1009),
    ],
)  # fmt: skip
def test_shard_matrices(shard_matrices, devices, shape):
    """`shard_matrices` takes a tree of arrays of any shapes. It refuses an array that has at least
    1,000 elements in each layer, if the number of devices divides none of its dimensions after the
    first.
    """
    tree = {"layers": {"up": jax.ShapeDtypeStruct(shape, "float32")}}
    large = len(shape) > 1 and np.prod(shape) >= 1000 * shape[0]
    fit = [n for n in shape[1:] if n % devices == 0]
    with refusal(large and not fit, "layers/up", devices, *shape):
        mesh = mesh_of(devices)
        spec = shard_matrices(tree, mesh, "x")["layers"]["up"]
        assert large == ("x" in spec)
        shard = NamedSharding(mesh, spec).shard_shape(shape)
        assert np.prod(shard) * (devices if large else 1) == np.prod(shape)
        if large:
            assert shape[len(spec) - 1] == max(fit)


@contract(
    "zero", "scatter", "to_varying", "varies", draws=60,
    devices=DEVICES, rows=[0, 1, 24, 20], sharded=[True, False], already=[False, False, True],
    kind=["normal", "ones", "tiny", "huge", "nan", "inf"], dtype=["float32", "bfloat16"],
    check_vma=[True, False],
)  # fmt: skip
def test_scatter(scatter, devices, rows, sharded, already, kind, dtype, check_vma):
    """`scatter` takes a device's own gradient and the spec of its parameter, with `check_vma` on or
    off. It refuses an empty gradient, a size that the devices do not divide and, with the check on,
    a gradient already summed.
    """
    if already and not check_vma:
        return  # without types nothing shows it
    uneven = sharded and (not rows or rows % devices != 0)
    own = values(kind, (devices, rows, 3), dtype)
    spec = P("x") if sharded else P()
    with refusal(already or uneven, *([] if already else [devices, rows])):
        if already:
            run = mapped(bound(scatter, spec=spec, axis="x"), mesh_of(devices), P(), spec)
            run(own[0])
            raise AssertionError("summed twice")
        run = mapped(of_one(scatter, spec), mesh_of(devices), P("x"), spec, check_vma)
        with np.errstate(all="ignore"):
            total = own.astype("float64").sum(0)
        close(run(own), total, 6e-2 if dtype == "bfloat16" else 1e-5)


@cache
def of_one(scatter, spec):
    return lambda own: scatter(own[0], spec, "x")


@contract(
    "zero", "init_each", draws=10,
    devices=[1, 3, 8], dimension=[None, 1],
)  # fmt: skip
def test_init_each(init_each, seed, devices, dimension):
    """`init_each` takes a key and creates the same arrays as `init`, each matrix with a standard
    deviation of 0.02. In any layout it draws the same numbers.
    """
    key = jax.random.key(seed)
    expected = jax.eval_shape(init, key)
    mesh = mesh_of(devices)

    def layout(a):
        fits = dimension is not None and a.ndim > dimension and a.shape[dimension] % devices == 0
        return NamedSharding(mesh, P(*[None] * dimension, "x") if fits else P())

    found = jax.jit(init_each, out_shardings=jax.tree.map(layout, expected))(key)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), found) == jax.tree.map(
        lambda a: (a.shape, a.dtype), expected
    )
    close(found, jax.jit(init_each)(key), 1e-6)
    layers = dict(found["layers"])
    assert (np.asarray(layers.pop("norms")) == 1).all()
    drawn = [np.ravel(a) for a in jax.tree.leaves(found | {"layers": layers})]
    for a in drawn:
        assert abs(a.mean()) < 6 * 0.02 / len(a) ** 0.5
        assert abs(a.std() / 0.02 - 1) < 6 / len(a) ** 0.5
    assert len({float(a[0]) for a in drawn}) == len(drawn)  # each has a key of its own


# --- Steps ----------------------------------------------------------------------------------------

SIZES = {  # a model that 1, 2, 3 and 8 devices divide, and one that only 1, 2 and 4 do
    "even": Config(layers=2, model=48, heads=4, kv_heads=4, hidden=96),
    "odd": Config(layers=2, model=44, heads=2, kv_heads=2, hidden=76),
}
STEPS = {
    "size": ["even", "even", "even", "odd"], "rows": [24, 24, 24, 25, 1],
    "fault": ["none", "none", "none", "nan", "integer"], "tables": [False, False, True],
}  # fmt: skip


@cache
def state_of(size):
    return jax.device_get(adam_state(init(jax.random.key(1), SIZES[size])))


alone = jax.jit(train_step)


@cache
def stepping(chapter, name, sizes, names, size, tables, *first, **hooks):
    """A step, jitted; where `tables`, the embedding is sharded as well."""
    mesh, shapes = mesh_of(*sizes, names=names), state_of(size)["parameters"]
    specs = copied(chapter, "shard_matrices")(shapes, mesh, names[-1])
    if tables:
        specs |= {"embed": P(None, names[-1]), "unembed": P(names[-1])}
    axes = {"shard": "s", "replica": "r"} if name == "hsdp_step" else {"axis": "x"}
    return jax.jit(copied(chapter, name)(*first, specs, mesh, **axes, **hooks))


def step_is_right(name, sizes, size, rows, fault, tables, *first, tolerance=2e-4):
    """One step is the same as on one device, or it is refused."""
    devices, names = int(np.prod(sizes)), "rs"[-len(sizes) :] if len(sizes) > 1 else "x"
    shards, config = sizes[-1], SIZES[size]
    state, batch = state_of(size), sums(rows, 11)
    if fault == "nan":
        batch["weights"][rows // 2, 3] = np.nan
    if fault == "integer":
        state = state | {"parameters": state["parameters"] | {"ids": np.arange(8)}}
    uneven = config.model % shards or config.hidden % shards
    named = ["ids"] if fault == "integer" else [devices] if rows % devices else [shards]
    with refusal(fault == "integer" or rows % devices or uneven, *named):
        if fault == "integer":
            specs = jax.tree.map(lambda _: P(), state["parameters"])
            run = copied("zero", name)(*first, specs, mesh_of(*sizes, names=names), **(
                {"shard": "s", "replica": "r"} if name == "hsdp_step" else {"axis": "x"}
            ))  # fmt: skip
        else:
            run = stepping("zero", name, sizes, names, size, tables, *first)
        after, value = run(state, batch)
        right, expected = alone(state, batch)
        if fault == "nan":
            assert np.isnan(value) and np.isnan(expected)
            return
        close(value, expected, tolerance)
        assert jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype, after, right))
        for part in ("first", "second"):
            close(after[part], right[part], 2 * tolerance)
        if tolerance < 1e-3:
            close(after["parameters"], right["parameters"], 1e-3)


@contract("zero", "zero2_step", draws=12, devices=DEVICES, **STEPS)
def test_zero2_step(devices, size, rows, fault, tables):
    """`zero2_step` takes the parameters' specs, and a mesh of any number of devices that divides
    the batch. It refuses sizes that this number does not divide, and an integer among the
    parameters.
    """
    step_is_right("zero2_step", (devices,), size, rows, fault, tables)


@contract("zero", "fsdp_step", "gather_layer", draws=12, devices=DEVICES, **STEPS)
def test_fsdp_step(devices, size, rows, fault, tables):
    """`fsdp_step` takes the same arguments as `zero2_step`. Any parameter may be sharded, except
    along the dimension over which the scan loops.
    """
    step_is_right("fsdp_step", (devices,), size, rows, fault, tables)


@contract(
    "zero", "hsdp_step", draws=12,
    sizes=[(1, 1), (1, 4), (3, 1), (2, 4), (2, 2)], **STEPS,
)  # fmt: skip
def test_hsdp_step(sizes, size, rows, fault, tables):
    """`hsdp_step` takes the same arguments as `fsdp_step`, but a mesh of two axes. The batch is
    sharded over both.
    """
    step_is_right("hsdp_step", sizes, size, rows, fault, tables)


@contract(
    "zero", "mixed_step", "cast_first", "cast_last", draws=12,
    cast=["cast_first", "cast_last"], devices=DEVICES, **STEPS,
)  # fmt: skip
def test_mixed_step(cast, devices, size, rows, fault, tables):
    """`mixed_step` takes `cast_last` and the same arguments as `fsdp_step`, with a state in
    float32. With `cast_first` instead, it sums the gradients of sharded arrays in bfloat16. Further
    hooks, such as `mlp`, go on to the model.
    """
    cast, name = copied("zero", cast), cast
    step_is_right("mixed_step", (devices,), size, rows, fault, tables, cast, tolerance=4e-2)
    if fault == "none" and rows % devices == 0 and not SIZES[size].model % devices:
        blocks = []
        run = stepping(
            "zero", "mixed_step", (devices,), "x", size, tables, cast,
            mlp=lambda x, layer: blocks.append(x) or mlp(x, layer),
        )  # fmt: skip
        program = str(jax.make_jaxpr(run)(state_of(size), sums(rows, 11)))
        products = re.findall(r"(\w+)\[[\d,]*\](?:\{[^}]*\})? = dot_general", program)
        assert "bf16" in products, "the products are in float32"
        summed = re.findall(r"(\w+)\[[\d,]*\](?:\{[^}]*\})? = reduce_scatter", program)
        assert {*summed} == {"bf16" if name == "cast_first" else "f32"}
        assert blocks, "the hook was not called"
