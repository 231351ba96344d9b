"""shardlab.arrays.layout against JAX's own index map, and against what programs and arrays really
hold.
"""

import re
from itertools import product
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec as P,
    SingleDeviceSharding,
)
from meshes import MESH, make_mesh, shardings

from shardlab import compare_specs, draw, explorer
from shardlab.arrays.layout import bytes_text, describe, index_text, same_layout

pytestmark = pytest.mark.reads("src/shardlab")


@settings(max_examples=400, deadline=None)
@given(shardings(even=True))
def test_every_device_holds_what_jax_says(case):
    sharding, shape = case
    layout = describe(sharding, shape)
    truth = {
        device.id: tuple(part.indices(size)[:2] for part, size in zip(slices, shape, strict=True))
        for device, slices in sharding.devices_indices_map(shape).items()
    }
    assert {shard.device: shard.index for shard in layout.shards} == truth
    assert layout.devices == tuple(device.id for device in sharding.mesh.devices.flat)
    assert layout.shard_shape == sharding.shard_shape(shape)
    assert layout.distinct_shards * layout.replicas == len(layout.shards)
    assert sum(map(len, layout.owners.values())) == len(layout.shards)
    if 0 not in shape:
        assert layout.distinct_shards == len(set(truth.values()))
        # Copies are counted along the mesh: 0, 1, 2 ... for the devices with one slice.
        for ids in layout.owners.values():
            numbers = {shard.device: shard.replica for shard in layout.shards}
            assert [numbers[device] for device in ids] == list(range(layout.replicas))
    assert (
        layout.total_bytes == layout.replicas * layout.nbytes == 4 * prod(shape) * layout.replicas
    )


@settings(max_examples=200, deadline=None)
@given(shardings(even=False))
def test_it_refuses_a_shape_just_when_jax_does(case):
    sharding, shape = case
    try:
        expected = sharding.shard_shape(shape)
    except ValueError:
        with pytest.raises(ValueError, match="use a multiple of"):
            describe(sharding, shape)
        uneven = describe(sharding, shape, uneven=True)
        # nothing is lost or counted twice
        assert uneven.nbytes * uneven.replicas == uneven.total_bytes
    else:
        assert describe(sharding, shape).shard_shape == expected


@settings(max_examples=25, deadline=None)
@given(shardings(even=True).filter(lambda case: prod(case[1]) > 0))
def test_a_real_array_is_described_as_it_lies(case):
    sharding, shape = case
    array = jax.device_put(np.arange(prod(shape), dtype=np.int16).reshape(shape), sharding)
    layout = describe(array)
    held = {
        shard.device.id: (np.asarray(shard.data), shard.replica_id)
        for shard in array.addressable_shards
    }
    for shard in layout.shards:
        data, replica = held[shard.device]
        assert data.shape == shard.shape and replica == shard.replica
        assert (data == np.asarray(array)[tuple(slice(*part) for part in shard.index)]).all()
        assert data.nbytes == layout.bytes_per_device[shard.device]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 9])
def test_uneven_pieces_are_those_of_the_compiled_program(size):
    """XLA rounds the piece up: the local shape that stands in the program it makes."""
    sharding = NamedSharding(make_mesh((4,)), P("a"))

    def program(x):
        return jax.lax.with_sharding_constraint(jnp.sin(x), sharding).sum()

    text = jax.jit(program).lower(jnp.arange(float(size))).compile().as_text()
    local = {int(n) for n in re.findall(r"f32\[(\d+)\]\S* sine\(", text)}
    assert local == {describe(sharding, (size,), uneven=True).shard_shape[0]}


def test_a_description_is_what_the_book_says():
    layout = describe(NamedSharding(MESH, P("x", "y")), (4, 16))
    assert layout.type == "f32[4@x, 16@y]"
    assert str(layout) == "f32[4@x, 16@y]: local shape (2, 4), 8 shards on 8 devices, 32 bytes each"
    assert (
        describe(NamedSharding(MESH, P(None, ("x", "y"))), (4, 16), "bfloat16").type
        == "bf16[4, 16@(x,y)]"
    )
    assert (
        str(describe(jnp.ones(3, jnp.int8)))
        == "i8[3]: local shape (3,), 1 shard on 1 device, 3 bytes"
    )
    assert describe(NamedSharding(MESH, P()), ()).replicas == 8
    assert index_text(((0, 2), (4, 8))) == "[0:2, 4:8]" and index_text(()) == "[]"


def test_meshes_real_and_abstract():
    mesh = describe(MESH)
    assert (
        mesh.axes == (("x", 2), ("y", 4))
        and mesh.shape == (2, 4)
        and mesh.devices == tuple(range(8))
    )
    backwards = Mesh(np.array(jax.devices()[:8])[::-1].reshape(2, 4), ("x", "y"))
    assert describe(backwards).devices == tuple(range(7, -1, -1))
    abstract = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    assert describe(abstract) == mesh
    assert describe(NamedSharding(abstract, P("y")), (8,)) == describe(
        NamedSharding(MESH, P("y")), (8,)
    )


def test_a_pod_of_4096_devices():
    sizes = (16, 16, 16)
    pod = AbstractMesh(sizes, ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)
    layout = describe(NamedSharding(pod, P("x", ("z", "y"))), (32, 512))
    assert (layout.distinct_shards, layout.replicas, layout.shard_shape) == (4096, 1, (2, 2))
    for device, (x, y, z) in zip(layout.devices, product(*map(range, sizes)), strict=True):
        start = 2 * (z * 16 + y)
        assert layout.shards[device].index == ((2 * x, 2 * x + 2), (start, start + 2))


def test_arrays_without_a_mesh_and_things_like_arrays():
    layout = describe(jnp.ones((2, 3)))
    assert (
        layout.mesh is None and layout.spec is None and layout.shards[0].index == ((0, 2), (0, 3))
    )
    assert describe(SingleDeviceSharding(jax.devices()[5]), (4,)).devices == (5,)
    promised = jax.ShapeDtypeStruct((8,), jnp.bfloat16, sharding=NamedSharding(MESH, P("x")))
    assert describe(promised).type == "bf16[8@x]"
    keys = jax.random.split(jax.random.key(0), 8)
    assert describe(keys).total_bytes == jax.random.key_data(keys).nbytes
    assert describe(layout) is layout


@pytest.mark.parametrize(
    ("spec", "shape", "says"),
    [
        (
            P("x", "y"),
            (3, 16),
            (
                "mesh axis x has 2 devices but dimension 0 of shape (3, 16) has size 3; use a "
                "multiple of 2"
            ),
        ),
        (
            P(("x", "y")),
            (12,),
            "mesh axis (x,y) has 8 devices but dimension 0 of shape (12,) has size 12",
        ),
        (P("x", "y"), (4,), "has 2 entries, but the array has 1 dimension(s)"),
        (P(P.UNCONSTRAINED), (4,), "leaves a dimension unconstrained"),
    ],
)
def test_errors_name_the_values_and_the_next_step(spec, shape, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        describe(NamedSharding(MESH, spec), shape)


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (np.ones(3), "a NumPy array is stored on no device"),
        ([1, 2], "not list$"),
        (3.5, "not float$"),
        (
            {"W": jnp.ones(3), "b": [jnp.ones(2)]},
            r"not dict of 2 arrays; .* jax.tree.map\(describe, ...\)",
        ),
        (P("x", ("y", "z")), r"describe\(NamedSharding\(mesh, P.*\('x', \('y', 'z'\)\)\), shape\)"),
        (P("x", unreduced={"y"}), r"unreduced=\{'y'\}.*\), shape\)"),
        (
            jax.ShapeDtypeStruct((4, 8), jnp.bfloat16),
            r"ShapeDtypeStruct\(\(4, 8\), bfloat16\) has no sharding; make it with",
        ),
        (NamedSharding(MESH, P("x")), "needs the shape"),
    ],
)
def test_other_things_are_refused_by_name(thing, says):
    with pytest.raises(TypeError, match=says):
        describe(thing)


def test_partial_sums_are_said():
    sharding = NamedSharding(make_mesh_of(AxisType.Explicit), P("y", unreduced={"x"}))
    layout = describe(sharding, (8,))
    assert (
        str(layout)
        == "f32[8@y]{U:x}: local shape (2,), 4 shards × 2 partial sums on 8 devices, 8 bytes each"
    )
    assert (layout.unreduced, layout.partial_sums, layout.replicas, layout.distinct_shards) == (
        ("x",),
        2,
        1,
        4,
    )
    assert layout.total_bytes == 2 * layout.nbytes
    three = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Explicit,) * 3)
    some = describe(NamedSharding(three, P("c", unreduced={"a"})), (8,))
    assert (some.distinct_shards, some.partial_sums, some.replicas) == (2, 2, 2)
    assert "2 shards × 2 partial sums × 2 replicas on 8 devices" in str(some)
    promised = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)
    assert same_layout(promised, sharding) and not same_layout(promised, P("y"))
    with pytest.raises(
        ValueError, match=r"the explorer shows slices, not the partial sums of f32\[8@y\]"
    ):
        explorer.layout(sharding, (8,))
    product = P(None, None, unreduced={"x"})
    with jax.set_mesh(sharding.mesh):
        a, b = (
            jax.device_put(jnp.ones((4, 8)), P(None, "x")),
            jax.device_put(jnp.ones((8, 4)), P("x")),
        )
        c = jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=product))(a, b)
    assert describe(c).type == "f32[4, 4]{U:x}" and describe(c).replicas == 4
    with pytest.raises(
        ValueError,
        match=r"compare_specs\(\) draws slices, not the partial sums of f32\[4, 4\]{U:x}",
    ):
        compare_specs(c)


def test_reduced_arrays_are_slices():
    """Only their gradient is unreduced."""
    mesh = make_mesh_of(AxisType.Explicit)
    reduced = describe(NamedSharding(mesh, P("y", reduced={"x"})), (8,))
    assert same_layout(reduced, NamedSharding(mesh, P("y"))) and reduced.replicas == 2


def test_other_memory_is_said():
    sharding = NamedSharding(MESH, P("x"), memory_kind="pinned_host")
    on_host = jax.device_put(jnp.ones((4, 16)), sharding)
    plain = jax.device_put(jnp.ones((4, 16)), NamedSharding(MESH, P("x")))
    says = "f32[4@x, 16]: local shape (2, 16), 2 shards × 4 replicas on 8 devices, 128 bytes each"
    assert (
        str(describe(on_host)) == says + ", in pinned_host memory" and str(describe(plain)) == says
    )
    assert describe(on_host).memory == "pinned_host" and describe(plain).memory is None
    assert describe(
        jax.device_put(1, SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host"))
    ).memory
    abstract = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    for kind, memory in (("pinned_host", "pinned_host"), ("device", None), (None, None)):
        assert describe(NamedSharding(abstract, P("x"), memory_kind=kind), (4,)).memory == memory
    assert not same_layout(on_host, plain) and not same_layout(plain, sharding)
    # a spec says nothing about memory
    assert same_layout(on_host, P("x")) and same_layout(on_host, sharding)
    assert "in pinned_host memory" in draw(on_host).text


@pytest.mark.parametrize(
    "name", ["int4", "uint4", "int8", "bool", "float8_e4m3fn", "bfloat16", "complex64"]
)
def test_elements_have_the_bytes_that_the_compiler_counts(name):
    sharding = NamedSharding(make_mesh((4,)), P("a"))
    dtype = jnp.dtype(name)
    compiled = (
        jax.jit(lambda a: a)
        .lower(jax.ShapeDtypeStruct((8, 16), dtype, sharding=sharding))
        .compile()
    )
    layout = describe(sharding, (8, 16), name)
    assert layout.bytes_per_device[0] == compiled.memory_analysis().argument_size_in_bytes
    assert layout.itemsize == {"int4": 0.5, "uint4": 0.5}.get(name, dtype.itemsize)
    assert layout.nbytes == 128 * layout.itemsize and type(layout.nbytes) is int
    # three elements of half a byte
    assert describe(sharding, (12,), "int4").bytes_per_device[0] == 2


def test_inside_a_program():
    mesh = make_mesh_of(AxisType.Explicit)
    seen = []

    def look(a):
        seen.append(describe(a))
        assert same_layout(a, P("x")) and not same_layout(a, P("y"))
        return a

    with jax.set_mesh(mesh):
        a = jax.device_put(jnp.ones((4, 8)), P("x"))
        jax.jit(look)(a)
        jax.grad(lambda a: look(a).sum())(a)
    assert [layout.type for layout in seen] == ["f32[4@x, 8]"] * 2 and seen[0] == describe(a)

    assert describe(jax.typeof(a)) == describe(a)
    automatic = jax.device_put(jnp.ones((4, 8)), NamedSharding(MESH, P("x")))
    says = (
        r"float32\[4,8\] inside jax.jit .* describe the result outside, .* or use a mesh with "
        r"explicit axes"
    )
    for f in (describe, lambda a: same_layout(a, P("x"))):
        with pytest.raises(TypeError, match=says):
            jax.jit(f)(automatic)
    with pytest.raises(
        TypeError, match=r"the type float32\[4,8\] says no sharding, .* describe the array itself"
    ):
        describe(jax.typeof(automatic))
    with pytest.raises(
        TypeError,
        match=r"inside shard_map, where float32\[2,8\].* describe the array that is passed",
    ):
        jax.shard_map(describe, mesh=MESH, in_specs=P("x"), out_specs=P("x"))(automatic)


def make_mesh_of(kind):
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind,) * 2)


@given(
    st.integers(1, 100),
    st.integers(1, 100),
    st.sampled_from(["x", "y", ("x", "y"), ("y", "x")]),
    st.booleans(),
)
def test_a_size_that_a_message_proposes_can_be_sharded(rows, columns, axes, first):
    sharding = NamedSharding(MESH, P(axes) if first else P(None, axes))
    try:
        describe(sharding, (rows, columns))
    except ValueError as error:
        dimension, multiple = map(
            int, re.search(r"dimension (\d) .*; use a multiple of (\d+),", str(error)).groups()
        )
        assert dimension == (0 if first else 1)
        for times in (1, 3):
            shape = [rows, columns]
            shape[dimension] = times * multiple
            assert describe(sharding, tuple(shape)).shard_shape[dimension] == times
        # or leave this dimension unsharded
        whole = describe(NamedSharding(MESH, P()), (rows, columns))
        assert whole.shard_shape == (rows, columns)
    else:
        parts = prod(
            dict(MESH.shape)[axis] for axis in (axes if isinstance(axes, tuple) else (axes,))
        )
        assert (rows if first else columns) % parts == 0


def test_same_layout_compares_what_shardings_do():
    rows = jax.device_put(jnp.ones((4, 8)), NamedSharding(MESH, P("x")))
    assert (
        same_layout(rows, P("x", None))
        and same_layout(rows, NamedSharding(MESH, P("x")))
        and same_layout(rows, rows)
    )
    assert not same_layout(rows, P("y")) and not same_layout(rows, P(None, "x"))
    assert not same_layout(rows, jnp.ones((4, 8))) and not same_layout(rows, rows[:, :4])
    other_names = make_mesh((2, 4))
    assert same_layout(rows, NamedSharding(other_names, P("a")))
    backwards = Mesh(MESH.devices[::-1], ("x", "y"))
    assert not same_layout(rows, NamedSharding(backwards, P("x")))
    with pytest.raises(TypeError, match="needs a mesh to be read on"):
        same_layout(jnp.ones(4), P("x"))
    with pytest.raises(
        TypeError, match=r"compares arrays and shardings, not a mesh of shape \(2, 4\)"
    ):
        same_layout(rows, MESH)
    with pytest.raises(TypeError, match="has no sharding"):
        same_layout(rows, jax.ShapeDtypeStruct((4, 8), jnp.float32))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "an unknown number of bytes"),
        (896, "896 bytes"),
        (9_999, "9,999 bytes"),
        (393_216, "393 kB"),
        (999_700, "1 MB"),
        (2_774_023, "2.77 MB"),
        (1.5e9, "1.5 GB"),
        (2.5e12, "2.5 TB"),
    ],
)
def test_bytes_have_three_digits_or_all(count, text):
    assert bytes_text(count) == text


def test_bytes_can_be_exact_for_longer():
    assert bytes_text(393_216, exact=1_000_000) == "393,216 bytes"


@pytest.mark.parametrize("size", [-8, 2.5, "8", None, 10**4999, float("nan")], ids=range(6))
def test_a_shape_has_whole_numbers(size):
    sharding = NamedSharding(AbstractMesh((2,), ("x",)), P())
    with pytest.raises(
        ValueError, match=r"use whole numbers from 0 to 1,000,000,000,000,000"
    ) as error:
        describe(sharding, (8, size))
    assert len(str(error.value)) < 200
    with pytest.raises(TypeError, match=r"use a tuple of sizes, such as \(4, 16\)"):
        describe(sharding, 8)
