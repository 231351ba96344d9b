"""assert_compiles_once: what compiles again, by JAX's own count, and what its message names."""

import itertools
import re
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

from shardlab import assert_compiles_once
from shardlab.exercises.differences import what_differs

pytestmark = pytest.mark.reads("src/shardlab")

X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.fixture(scope="module")
def mesh(devices):
    return jax.make_mesh((8,), ("d",), devices=devices(8), axis_types=(AxisType.Auto,))


def put(mesh, *spec):
    return jax.device_put(X, NamedSharding(mesh, P(*spec)))


def said(f, *calls):
    with pytest.raises(AssertionError) as caught:
        assert_compiles_once(f, *calls)
    return str(caught.value)


def double():
    return jax.jit(lambda x: jax.tree.map(lambda one: one * 2, x))


AGAIN = {
    "shape": (X, X[:6], "x: shape (8, 8), now (6, 8): pad it"),
    "dtype": (X, X.astype(np.int32), "x: dtype float32, now int32: convert it"),
    "a Python number": (jnp.float32(1), 1.0, "x: of its own dtype, now weakly typed"),
    "another Python number": (1, 1.0, "x: dtype int32, now float32"),
    "a weak array": (
        jnp.asarray(1.0),
        np.float32(1),
        "x: weakly typed, as a Python number is, now",
    ),
    "a truth value": (True, 1, "x: dtype bool, now int32"),
    "the tree": ((X,), [X], "the tree of x: 'PyTreeDef((*,))', now 'PyTreeDef([*])'"),
    "another key": ({"a": X}, {"b": X}, "x['a'] is in that call alone"),
    "inside": ({"a": [X, X]}, {"a": [X, X[:4]]}, "x['a'][1]: shape (8, 8), now (4, 8)"),
    "nothing there": ((X, None), (X, X), "the tree of x"),
}


@pytest.mark.parametrize("case", AGAIN)
def test_what_compiles_again_is_named(case):
    one, other, how = AGAIN[case]
    text = said(double(), (one,), (other,))
    assert text.startswith("<lambda> compiles again in call 2 of 2. Compared with call 1:\n")
    assert how in text


ONCE = {
    "other values": (X, X + 1),
    "other numbers": (1, 2),
    "NaN and zero": (jnp.float32(np.nan), jnp.float32(0)),
    "an array of NumPy": (X, jnp.asarray(X)),
    "an empty tree": ((), ()),
    "NumPy's number": (np.float32(1), jnp.float32(2)),
    "bfloat16": (jnp.ones(3, jnp.bfloat16), jnp.zeros(3, jnp.bfloat16)),
}


@pytest.mark.parametrize("case", ONCE)
def test_what_compiles_once_passes(case):
    f = double()
    calls = [(one,) for one in ONCE[case]]
    assert assert_compiles_once(f, *calls) <= 1 and assert_compiles_once(f, *calls) == 0


def test_shardings(mesh):
    f = double()
    assert assert_compiles_once(f, (put(mesh, "d"),), (put(mesh, "d", None),)) == 1
    assert assert_compiles_once(f, (put(mesh, "d"),), (put(mesh, ("d",)),)) == 0
    text = said(double(), (put(mesh, "d"),), (put(mesh),))
    assert "x: sharding P('d',) on a mesh of d: 8 (Auto), now P() on a mesh of d: 8 (Auto)" in text
    loose = jnp.asarray(X)
    there = jax.device_put(X, loose.devices().pop())
    text = said(double(), (loose,), (there,))
    assert "x: on no device that it must stay on, now committed to its devices: place it" in text
    assert "place it by jax.device_put" in said(double(), (loose,), (put(mesh, "d"),))


def test_devices_and_kinds_of_axes(mesh, devices):
    one, other = (jax.device_put(X, device) for device in devices(2))
    assert "x: sharding on " in said(double(), (one,), (other,))
    typed = jax.make_mesh((8,), ("d",), devices=devices(8), axis_types=(AxisType.Explicit,))
    text = said(double(), (put(mesh, "d"),), (put(typed, "d"),))
    assert "(Auto), now P('d',) on a mesh of d: 8 (Explicit)" in text


def test_other_meshes_and_memories_compile_again_and_their_words_differ(mesh, devices):
    """As JAX counts it, also where each device has the same shard."""
    eight, auto = np.array(devices(8)), AxisType.Auto
    on = lambda order, names, *spec, **options: NamedSharding(  # noqa: E731
        Mesh(order, names, axis_types=(auto,) * len(names)), P(*spec), **options
    )
    rows = NamedSharding(mesh, P("d"))
    swapped = eight[[0, 1, 2, 4, 3, 5, 6, 7]]
    cases = [
        (rows, on(eight, ("e",), "e"), "now P('e',) on a mesh of e: 8"),
        (rows, on(eight.reshape(8, 1), ("d", "e"), "d"), "on a mesh of d: 8, e: 1"),
        (rows, on(eight.reshape(2, 4), ("a", "b"), ("a", "b")), "now P(('a', 'b'),) on a mesh"),
        (NamedSharding(mesh, P()), on(eight.reshape(2, 4), ("a", "b")), "mesh of a: 2, b: 4"),
        (rows, on(swapped, ("d",), "d"), f"device 3 of which is {eight[4]}: place it"),
        (rows, on(eight, ("d",), "d", memory_kind="pinned_host"), "in pinned_host memory: place"),
        (rows, on(eight, ("d",), None, memory_kind="pinned_host"), "in pinned_host memory: place"),
    ]
    for one, other, words in cases:
        calls = [(jax.device_put(X, sharding),) for sharding in (one, other, one)]
        text = said(double(), *calls[:2])
        assert words in text, text
        before, now = re.fullmatch(r".* sharding (.*), now (.*): place it .*", text, re.S).groups()
        assert before != now
        (((told,), _), (nothing, _)) = [
            what_differs(double(), (calls[0], {}), (call, {})) for call in calls[1:]
        ]
        assert words in told and not nothing
    assert assert_compiles_once(double(), (put(mesh, "d"),), (jax.device_put(X, rows),)) <= 1


def test_of_an_abstract_mesh_its_devices_are_not_compared(mesh):
    auto = (AxisType.Auto,)
    d, e = (NamedSharding(AbstractMesh((8,), (n,), axis_types=auto), P(n)) for n in "de")
    one, other = (jax.ShapeDtypeStruct((8, 8), "float32", sharding=s) for s in (d, e))
    placed = jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(mesh, P("d", None)))
    differ = lambda a, b: what_differs(double(), ((a,), {}), ((b,), {}))[0]  # noqa: E731
    assert not differ(one, one) and not differ(one, placed) and not differ(placed, one)
    assert "now P('e',) on a mesh of e: 8" in differ(one, other)[0]
    assert "now P('e',) on a mesh of e: 8" in differ(placed, other)[0]


def test_static_arguments_and_calls_by_name():
    f = jax.jit(lambda x, n: x * n, static_argnames="n")
    assert assert_compiles_once(f, {"x": X, "n": 2}, {"x": X + 1, "n": 2}) == 1
    text = said(f, {"x": X, "n": 2}, {"x": X, "n": 3})
    assert "n: 2, now 3: if it is static, each value has a program of its own" in text
    words = jax.jit(lambda x, how: x if how == "a" else 2 * x, static_argnums=1)
    assert "how: 'a', now 'b': if it is static" in said(words, (X, "a"), (X, "b"))


def test_a_donated_argument_is_named(mesh):
    f = jax.jit(lambda state, x: state + x, donate_argnums=0)
    calls = [(put(mesh, "d"), 1.0) for _ in range(3)]
    assert assert_compiles_once(f, *calls) == 1
    state = put(mesh, "d")
    with pytest.raises(ValueError, match="call 2: state is deleted, perhaps because an earlier"):
        assert_compiles_once(f, (state, 1.0), (state, 2.0))


def test_it_is_compared_with_the_nearest_call():
    f = jax.jit(lambda x, y: x.sum() + y.sum())
    text = said(double(), (X,), (X,), (X[:4],))
    assert "in call 3 of 3. Compared with call 1:\n  x: shape (8, 8), now (4, 8)" in text
    assert assert_compiles_once(f, (X, X), (X, X + 1)) == 1


def test_what_no_argument_shows_is_said():
    scale = [1.0]

    def reads(x):
        return x * scale[0]

    def program(x):  # a new function in every call
        return jax.jit(lambda x: reads(x))(x)

    program.lower = None  # as if it were jitted
    assert "no argument differs: it compiles for something that it closes over" in said(
        program, (X,), (X,)
    )


def test_a_plain_function_and_a_method_are_jitted():
    def plain(x, *, scale=2.0):
        return x * scale

    assert assert_compiles_once(plain, (X,), (X + 1,)) == 1
    assert "plain compiles again" in said(plain, (X,), (X[:2],))
    assert "scale: dtype float32, now int32" in said(
        plain, {"x": X, "scale": 1.0}, {"x": X, "scale": 1}
    )


@pytest.mark.parametrize(
    ("calls", "error", "says"),
    [
        ((), ValueError, r"got 0 call\(s\) to compare; give at least two"),
        (((X,),), ValueError, r"got 1 call\(s\)"),
        ((X, X), TypeError, "call 1 is .*; give its arguments as a tuple"),
        (((X,), [X]), TypeError, "call 2 is"),
    ],
)
def test_wrong_calls_are_refused(calls, error, says):
    with pytest.raises(error, match=says):
        assert_compiles_once(double(), *calls)


def test_an_error_of_the_function_is_its_own():
    with pytest.raises(TypeError, match=r"missing|argument"):
        assert_compiles_once(double(), (X, X, X), (X,))


def test_pairs_of_arguments_agree_with_the_cache_of_jit(mesh):
    """Whatever differs or not: it fails exactly where JAX counts another compilation."""
    counts = []

    def heard(event, seconds, **_):
        if "backend_compile" in event:
            counts.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    other = jax.make_mesh((8,), ("e",), devices=mesh.devices.flat, axis_types=(AxisType.Auto,))
    values = [
        X, put(mesh, "d"), put(mesh, "d", None), put(mesh), jnp.asarray(X), 1, 1.0, True,
        put(other, "e"), put(other),
    ]  # fmt: skip
    for one, other in itertools.combinations_with_replacement(values, 2):
        f = double()
        jax.block_until_ready(f(one))
        counts.clear()
        jax.block_until_ready(f(other))
        expected = bool(counts)
        fails = (
            pytest.raises(AssertionError, match=r"\n  (x|the tree)") if expected else nullcontext()
        )
        with fails:
            assert_compiles_once(double(), (one,), (other,))
