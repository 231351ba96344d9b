"""shardlab.check: accepts what is right, says what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from test_layout import MESH

from shardlab.check import Exercise, NotSolved, WrongAnswer, check, raises

A = np.arange(64.0, dtype=np.float32).reshape(4, 16)
TILES = NamedSharding(MESH, P("x", "y"))
BOTH = Exercise(value=A, layout=TILES)


def put(values, spec):
    return jax.device_put(values, NamedSharding(MESH, spec))


def test_a_right_answer_is_praised(capsys):
    check(put(A, P("x", "y")), BOTH, strict=True)
    assert capsys.readouterr().out == "Right: the values agree and every device stores the right shard.\n"
    check(put(A, P("x", "y")), Exercise(layout=P("x", "y")), strict=True)
    check({"loss": 1.0, "where": (2, 4)}, Exercise(value={"loss": 1.0 + 1e-7, "where": (2, 4)}), strict=True)


@pytest.mark.parametrize("stub", [..., None, (1, ...), {"a": None}])
def test_a_stub_is_no_failure_until_strict(stub, capsys):
    check(stub, Exercise(value=A))
    assert capsys.readouterr().out.startswith("Not solved yet")
    with pytest.raises(NotSolved):
        check(stub, Exercise(value=A), strict=True)


def test_functions_are_called_with_the_arguments(capsys):
    column_sum = Exercise(args=(put(A, P("x", "y")),), value=A.sum(0), layout=P("y"))
    check(lambda a: ..., column_sum)
    assert "Not solved yet" in capsys.readouterr().out
    check(lambda a: None, column_sum)
    check(jax.jit(lambda a: a.sum(0)), column_sum, strict=True)
    with pytest.raises(NotSolved):
        check(lambda a: ..., column_sum, strict=True)
    with pytest.raises(WrongAnswer, match="must be a function, not int"):
        check(3, column_sum)
    with pytest.raises(ZeroDivisionError):
        check(lambda a: 1 / 0, column_sum)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (A + np.eye(4, 16, dtype=np.float32), r"values: 4 of 64 differ, the first at \[0, 0\]: expected 0.0, got 1.0"),
        (8 * A, "every value is 8 times what it should be"),
        (A / 4, "every value is 1/4 of what it should be"),
        (A[:2], r"expected shape \(4, 16\), got \(2, 16\)"),
        ((A, A), r"expected an array of shape \(4, 16\), got a tuple of 2"),
        (A, "which is stored on no device"),
        (
            jnp.asarray(A),
            r"expected f32\[4@x, 16@y\] on 8 devices, got f32\[4, 16\] on 1; device 0 stores \[0:4, 0:16\]",
        ),
        (put(A, P("x")), r"device 0 stores \[0:2, 0:16\] and should store \[0:2, 0:4\]"),
        (put(A, P("y", "x")), "device 0 stores"),
    ],
)
def test_a_wrong_answer_is_told_in_what(answer, says):
    for strict in (False, True):
        with pytest.raises(WrongAnswer, match=says):
            check(answer, BOTH, strict=strict)


def test_words_numbers_and_structures():
    with pytest.raises(WrongAnswer, match=r"values\['n'\]: expected 'auto', got 'manual'"):
        check({"n": "manual"}, Exercise(value={"n": "auto"}))
    with pytest.raises(WrongAnswer, match=r"values\[1\]: expected 4, got 5"):
        check((2, 5), Exercise(value=(2, 4)))
    with pytest.raises(WrongAnswer, match=r"the keys should be \['a'\]; 'b' is not expected"):
        check({"a": 1, "b": 2}, Exercise(value={"a": 1}))
    with pytest.raises(WrongAnswer, match="; 0 is missing"):
        check({jax.devices()[0]: 1, jax.devices()[1]: 2}, Exercise(value={0: 1, 1: 2}))
    with pytest.raises(WrongAnswer, match=r"values\['a'\]: expected a tuple of 2, got a tuple of 3"):
        check({"a": (2, 16, 4)}, Exercise(value={"a": ((2, 16), 4)}))
    with pytest.raises(WrongAnswer, match="expected a dict, got an array"):
        check(A, Exercise(value={"a": A}))
    with pytest.raises(WrongAnswer, match=r"expected .*y.*, got .*x"):
        check((P("x"),), Exercise(value=(P("y"),)))
    state = jax.tree_util.Partial(max, A)  # a structure of JAX's own
    check(state, Exercise(value=state), strict=True)
    with pytest.raises(WrongAnswer, match=r"values\[0\]: 64 of 64 differ"):
        check(jax.tree_util.Partial(max, A + 1), Exercise(value=state))
    with pytest.raises(WrongAnswer, match="expected the structure of Partial, got int"):
        check(3, Exercise(value=state))
    check(jnp.bfloat16(2.0), Exercise(value=2.0), strict=True)
    check(jnp.float32(np.nan), Exercise(value=np.nan), strict=True)
    with pytest.raises(WrongAnswer):
        check(jnp.float32(np.nan), Exercise(value=1.0))
    check(jax.random.key(1), Exercise(value=jax.random.key(1)), strict=True)


def test_layouts_of_structures():
    pair = {"w": put(A, P("x", "y")), "b": put(A[0], P())}
    wanted = {"w": TILES, "b": NamedSharding(MESH, P())}
    check(pair, Exercise(layout=wanted), strict=True)
    with pytest.raises(WrongAnswer, match=r"layout\['b'\]"):
        check(pair | {"b": put(A[0], P("y"))}, Exercise(layout=wanted))
    with pytest.raises(WrongAnswer, match="is on no mesh"):
        check(jnp.ones(3), Exercise(layout=P()))
    half = NamedSharding(jax.sharding.Mesh(MESH.devices[:1], ("x", "y")), P())
    with pytest.raises(WrongAnswer, match="more than asked"):
        check(put(A, P()), Exercise(layout=half))


def test_wrong_shapes_and_meshes_are_wrong_answers_not_errors():
    with pytest.raises(WrongAnswer, match="use a multiple of 2"):
        check(put(A[:3], P()), Exercise(layout=TILES))
    with pytest.raises(WrongAnswer, match="has 2 entries, but the array has 1"):
        check(put(A[0], P()), Exercise(layout=TILES))
    other = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with pytest.raises(WrongAnswer, match="x"):
        check(jax.device_put(A, NamedSharding(other, P("a"))), Exercise(layout=P("x")))
    with pytest.raises(WrongAnswer, match="expected the structure"):
        check((put(A, P()),), Exercise(layout={"w": TILES}))
    check({"w": put(A, P("x", "y")), "n": 3}, Exercise(layout={"w": TILES, "n": None}), strict=True)


def test_counts_are_exact_and_none_can_be_an_answer():
    with pytest.raises(WrongAnswer, match="expected 1000000, got 1000001"):
        check(1_000_001, Exercise(value=1_000_000))
    check(("x", None), Exercise(value=("x", None)), strict=True)
    with pytest.raises(NotSolved):
        check(("x", None), Exercise(value=("x", "y")), strict=True)


def test_a_right_result_with_too_much_communication_is_wrong():
    tiles = put(A, P("x", "y"))
    once = Exercise(args=(tiles,), value=A.sum(0), layout=P("y"), communication={"all-reduce": 1}, max_bytes=16)
    check(lambda a: a.sum(0), once, strict=True)

    def twice(a):  # right value, right layout, one detour
        everywhere = jax.lax.with_sharding_constraint(a, NamedSharding(MESH, P()))
        return jax.lax.with_sharding_constraint(everywhere.sum(0), NamedSharding(MESH, P("y")))

    with pytest.raises(WrongAnswer, match=r"at most \{'all-reduce': 1\} is allowed, but .*\n.*\nall-gather"):
        check(jax.jit(twice), once)
    with pytest.raises(WrongAnswer, match="each device may send 15 bytes"):
        check(lambda a: a.sum(0), Exercise(args=(tiles,), max_bytes=15))
    with pytest.raises(WrongAnswer, match="at most none is allowed"):
        check(lambda a: a.sum(0), Exercise(args=(tiles,), communication={}))
    check(lambda a: a + 1, Exercise(args=(tiles,), communication={}), strict=True)
    check(lambda a: a + 1, Exercise(args=(tiles,), max_flops=8), strict=True)
    with pytest.raises(WrongAnswer, match="FLOPs: each device may do 8, but does 64"):
        check(lambda a: a + 1, Exercise(args=(put(A, P()),), max_flops=8))


def test_copies_that_differ_are_wrong_even_if_the_first_is_right():
    def apart(a):  # JAX is told that the devices along y agree, and they do not
        return a + jax.lax.axis_index("y")

    specs = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
    lying = jax.shard_map(apart, mesh=MESH, **specs)(A)
    assert (np.asarray(lying) == A).all()
    with pytest.raises(WrongAnswer, match="devices 0 and 1 should store replicas"):
        check(lying, Exercise(value=A))
    check(put(A, P("x")), Exercise(value=A), strict=True)
    # Sums in another order, and what is not a number, are no lies.
    nearly = jax.shard_map(lambda a: a + 1e-9 * jax.lax.axis_index("y"), mesh=MESH, **specs)(A)
    check(nearly, Exercise(value=A), strict=True)
    check(put(A * np.nan, P()), Exercise(value=A * np.nan), strict=True)
    check(put(jax.random.key(0), P()), Exercise(value=jax.random.key(0)), strict=True)


def test_what_no_device_may_hold(capsys):
    rows = put(A, P("y"))
    never = Exercise(value=A.sum(), args=(rows,), never=("f32[4,16]",))
    check(lambda a: a.sum(), never, strict=True)
    assert "no device holds an array that it must not hold" in capsys.readouterr().out

    def gathered(a):
        return jnp.sort(jax.lax.with_sharding_constraint(a, NamedSharding(MESH, P())), axis=0).sum()

    with pytest.raises(WrongAnswer, match=r"f32\[4,16\]"):
        check(gathered, never)
    with pytest.raises(ValueError, match="give Exercise args"):
        check(1.0, Exercise(value=1.0, never=("f32[4,16]",)))


def test_a_type_is_not_another_whose_name_ends_with_it():
    def doubled(a):
        return 2 * a

    rows = put(A, P()).astype(jnp.bfloat16)  # each device holds bf16[4,16]
    check(doubled, Exercise(value=2 * A, args=(rows,), never=("f16[4,16]",)), strict=True)
    with pytest.raises(WrongAnswer, match=r"bf16\[4,16\]"):
        check(doubled, Exercise(value=2 * A, args=(rows,), never=("bf16[4,16]",)))
    with pytest.raises(ValueError, match=r"'f32\[4, 16\]' is no type.*f32\[64,48\]"):  # it would never be found
        check(doubled, Exercise(value=2 * A, args=(rows,), never=("f32[4, 16]",)))


def test_an_exercise_that_accepts_anything_is_a_mistake():
    with pytest.raises(ValueError, match="give Exercise args"):
        check(A, Exercise(value=A, communication={}))
    with pytest.raises(ValueError, match="accepts anything"):
        check(1, Exercise())


def test_raises_shows_the_error_and_goes_on(capsys):
    with raises(ZeroDivisionError) as error:
        print("before")
        1 / 0  # noqa: B018
    assert error.message == "division by zero"
    assert capsys.readouterr().out == "before\nZeroDivisionError: division by zero\n"
    with pytest.raises(AssertionError, match="expected ValueError, but nothing was raised"), raises(ValueError):
        pass
    with pytest.raises(KeyError), raises(ValueError):
        {}["other"]


def test_raises_leaves_out_names_of_temporary_files(capsys):
    with raises(ValueError) as error:
        put(np.ones(3), P("x"))
    assert "partitioned 2 times" in error.message
    assert ".py" not in capsys.readouterr().out + error.message


def test_raises_does_not_show_where_a_lambda_is(capsys):
    with raises(TypeError) as error:
        raise TypeError("true_fun is <lambda> at /tmp/a folder/ipykernel_1/2.py:3 but step at /x.py:1, at the end")
    assert error.message == "true_fun is <lambda> but step, at the end"
    assert "ipykernel" not in capsys.readouterr().out
