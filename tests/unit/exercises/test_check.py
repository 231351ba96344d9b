"""shardlab.exercises.check: accepts what is right, says what is wrong."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from meshes import MESH

from shardlab import Exercise, NotSolved, WrongAnswer, check, raises, start

pytestmark = pytest.mark.reads("src/shardlab")

A = np.arange(64.0, dtype=np.float32).reshape(4, 16)
TILES = NamedSharding(MESH, P("x", "y"))
BOTH = Exercise(value=A, layout=TILES)


def put(values, spec):
    return jax.device_put(values, NamedSharding(MESH, spec))


def test_a_right_answer_is_praised(capsys):
    check(put(A, P("x", "y")), BOTH, strict=True)
    assert (
        capsys.readouterr().out
        == "Right: the values agree and every device stores the right shard.\n"
    )
    check(put(A, P("x", "y")), Exercise(layout=P("x", "y")), strict=True)
    check(
        {"loss": 1.0, "where": (2, 4)},
        Exercise(value={"loss": 1.0 + 1e-7, "where": (2, 4)}),
        strict=True,
    )


def test_an_answer_is_checked_on_the_mesh_that_was_current_when_its_exercise_was_made(capsys):
    line = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])
    with jax.set_mesh(line):
        rows = Exercise(args=(A.reshape(8, 8),), reference=lambda a: 2 * a, communication={})
    none = Exercise(args=(A,), value=A)

    def answer(a):
        return 2 * jax.lax.with_sharding_constraint(a, P("d"))

    with jax.set_mesh(MESH):
        check(answer, rows, strict=True)
        with pytest.raises(Exception, match=r"(?i)mesh"):
            check(lambda a: jax.lax.with_sharding_constraint(a, P("x")), none)
        assert rows.mesh == line and jax.sharding.get_abstract_mesh().axis_names == ("x", "y")
    with pytest.raises(Exception, match=r"(?i)mesh"):
        check(answer, Exercise(args=(A.reshape(8, 8),), value=A, mesh=MESH))
    assert capsys.readouterr().out.startswith("Right")


def test_slips_of_python_are_told_by_the_check(capsys):
    double = Exercise(args=(A,), reference=lambda a: 2 * a)
    with pytest.raises(WrongAnswer, match=r"called with 1 argument, and takes \(a, b\): missing"):
        check(lambda a, b: a, double)
    with pytest.raises(WrongAnswer, match=r"called with 1 argument, and takes \(\): too many"):
        check(lambda: A, double)
    check(lambda a: None, double)
    assert "return a result" in capsys.readouterr().out
    by_device = dict.fromkeys(jax.devices()[:2], (0, 4))
    with pytest.raises(WrongAnswer, match=r"keys of a dict .* device\.id"):
        check(by_device, BOTH)
    with pytest.raises(WrongAnswer, match=r"keys of a dict .* device\.id"):
        check(lambda a: by_device, double)


def donated():
    array = put(A, P("x"))
    array.delete()
    return array


def leaked():
    seen = []
    jax.jit(lambda a: seen.append(2 * a))(A)
    return seen[0]


DEVICES = jax.devices()[:2]
ODD = {  # in place of any answer, and what the message says of them
    "a dict by device": (lambda: dict.fromkeys(DEVICES, A), r"device\.id"),
    "a defaultdict by device": (
        lambda: collections.defaultdict(list, dict.fromkeys(DEVICES, 1)),
        r"device\.id",
    ),
    "one below a list": (lambda: [dict.fromkeys(DEVICES, A)], r"device\.id"),
    "a string": (lambda: "x", "'x'"),
    "a set": (lambda: {1, 2}, "set"),
    "one spec": (lambda: P("x", "y"), "P"),
    "lists of unequal length": (lambda: [[1, 2], [3]], "list of 2|got 1"),
    "a function": (lambda: put, "the function put in place of its result"),
    "a jitted function": (lambda: jax.jit(put), "the function put in place of its result"),
    "a donated array": (donated, "was deleted"),
    "a traced value": (leaked, "traced value"),
    "a shape": (lambda: jax.ShapeDtypeStruct((4, 16), np.float32), "ShapeDtypeStruct"),
    "random keys": (lambda: jax.random.key(0), "random keys|shape|key<fry>|differ"),
    "an exercise": (lambda: BOTH, "Exercise"),
    "a module": (lambda: np, "module"),
    "a date": (lambda: np.datetime64("2020-01-01"), "date"),
    "records": (lambda: np.zeros(2, dtype=[("a", "i4")]), r"shape|values\[0\]"),
    "objects": (lambda: np.array([A, "x"], dtype=object), r"shape|values\[0\]"),
}
WANTED = {
    "an array and its layout": BOTH,
    "a jax.Array": Exercise(value=jnp.asarray(A)),
    "a number": Exercise(value=3.5),
    "a text": Exercise(value="float32[8@x]"),
    "several texts": Exercise(value=np.array(["a", "b"])),
    "a spec": Exercise(value=P("y")),
    "several specs": Exercise(value=(P("x"), P("y"))),
    "several arrays": Exercise(value=(A, A, A)),
    "keys": Exercise(value=jax.random.key(1)),
    "a layout": Exercise(layout=P("x", "y")),
    "several layouts": Exercise(layout=(P("x"), P("y"), P())),
    "layouts by name": Exercise(layout={"a": P("x")}),
    "few bytes": Exercise(max_held=0),
}


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_answer_at_all_gets_a_message_and_not_pythons_traceback(odd, wanted):
    make, says = ODD[odd]
    with pytest.raises(WrongAnswer, match=says if wanted != "few bytes" else None):
        check(make(), WANTED[wanted])


@pytest.mark.parametrize("odd", ODD)
def test_nor_does_what_a_function_returns_or_a_dict_holds(odd):
    make, _ = ODD[odd]
    by_name = Exercise(value={"a": {"b": 1}})
    for answer in (make(), {"a": make()}, {"a": {"b": make()}}):
        with pytest.raises(WrongAnswer):
            check(answer, by_name)
    for limits in ({}, {"communication": {}}) if odd != "a traced value" else ():
        with pytest.raises(WrongAnswer):
            check(lambda a: make(), Exercise(args=(A,), reference=lambda a: 2 * a, **limits))


def test_one_spec_in_place_of_several_is_told_as_one():
    specs = Exercise(value=(P("x"), P("y")))
    with pytest.raises(WrongAnswer, match=r"expected a tuple of 2, got P.*'x', 'y'"):
        check(P("x", "y"), specs)


def test_a_nan_is_shown_where_it_is():
    with pytest.raises(WrongAnswer, match=r"64 of 64 differ, the first at \[0, 0\]: .* got nan"):
        check(put(np.nan * A, P("x", "y")), BOTH)
    with pytest.raises(WrongAnswer, match="expected 3, got nan"):
        check(float("nan"), Exercise(value=3))


@pytest.mark.parametrize("stub", [..., None, (..., ...), {"a": ..., "b": [..., (...,)]}])
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
    # as from a function that calls the stub for two inputs
    check(lambda a: (None, {"b": None}), column_sum)
    assert capsys.readouterr().out.count("Not solved yet") == 2
    with pytest.raises(WrongAnswer, match=r"expected an array of shape \(16,\), got"):
        check(lambda a: (None, a), column_sum)
    check(jax.jit(lambda a: a.sum(0)), column_sum, strict=True)
    with pytest.raises(NotSolved):
        check(lambda a: ..., column_sum, strict=True)
    with pytest.raises(WrongAnswer, match="must be a function, not 3"):
        check(3, column_sum)
    with pytest.raises(ZeroDivisionError):
        check(lambda a: 1 / 0, column_sum)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            A + np.eye(4, 16, dtype=np.float32),
            r"values: 4 of 64 differ, the first at \[0, 0\]: expected 0.0, got 1.0",
        ),
        (8 * A, "every value is 8 times what it should be"),
        (A / 4, "every value is 1/4 of what it should be"),
        (A[:2], r"values: expected shape \(4, 16\), got \(2, 16\)"),
        ((A, A), r"expected an array of shape \(4, 16\), got a tuple of 2"),
        (A, "which is stored on no device"),
        (
            jnp.asarray(A),
            (
                r"expected f32\[4@x, 16@y\] on 8 devices, got f32\[4, 16\] on 1; device 0 stores "
                r"\[0:4, 0:16\]"
            ),
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
    with pytest.raises(WrongAnswer, match="the key 'b' is not asked for; expected only 'a'"):
        check({"a": 1, "b": 2}, Exercise(value={"a": 1}))
    with pytest.raises(WrongAnswer, match="the key 0 is missing; there are "):
        check({jax.devices()[0]: 1, jax.devices()[1]: 2}, Exercise(value={0: 1, 1: 2}))
    with pytest.raises(
        WrongAnswer, match=r"values\['a'\]: expected a tuple of 2, got a tuple of 3, \(2, 16, 4\)"
    ):
        check({"a": (2, 16, 4)}, Exercise(value={"a": ((2, 16), 4)}))
    with pytest.raises(
        WrongAnswer, match="expected a dict with the key 'a', got an array of shape"
    ):
        check(A, Exercise(value={"a": A}))
    with pytest.raises(WrongAnswer, match=r"expected .*y.*, got .*x"):
        check((P("x"),), Exercise(value=(P("y"),)))
    state = jax.tree_util.Partial(max, A)  # a structure of JAX's own
    check(state, Exercise(value=state), strict=True)
    with pytest.raises(WrongAnswer, match=r"values\[0\]: 64 of 64 differ"):
        check(jax.tree_util.Partial(max, A + 1), Exercise(value=state))
    with pytest.raises(WrongAnswer, match="expected the structure of Partial, got 3"):
        check(3, Exercise(value=state))
    check(jnp.bfloat16(2.0), Exercise(value=2.0), strict=True)
    check(jnp.float32(np.nan), Exercise(value=np.nan), strict=True)
    with pytest.raises(WrongAnswer):
        check(jnp.float32(np.nan), Exercise(value=1.0))
    check(jax.random.key(1), Exercise(value=jax.random.key(1)), strict=True)


def test_a_key_where_none_is_asked_for_is_refused_in_words():
    with pytest.raises(WrongAnswer, match="the key 'b' is not asked for; expected an empty dict"):
        check({"b": 1}, Exercise(value={}))


@pytest.mark.parametrize(("wanted", "off"), [(1.0, 1e-5), (1000.0, 1e-2), (0.0, 1e-6)])
def test_the_default_tolerances_are_those_that_are_documented(wanted, off):
    """1e-5 of the value, and 1e-6 where it is zero."""
    check(np.float64(wanted + 0.9 * off), Exercise(value=np.float64(wanted)), strict=True)
    with pytest.raises(WrongAnswer):
        check(np.float64(wanted + 1.2 * off), Exercise(value=np.float64(wanted)))


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
    with pytest.raises(WrongAnswer, match=r"layout: expected a dict with 'w', got a tuple of 1$"):
        check((put(A, P()),), Exercise(layout={"w": TILES}))
    check({"w": put(A, P("x", "y")), "n": 3}, Exercise(layout={"w": TILES, "n": None}), strict=True)


def test_counts_are_exact_and_none_can_be_an_answer():
    with pytest.raises(WrongAnswer, match="expected 1000000, got 1000001"):
        check(1_000_001, Exercise(value=1_000_000))
    check(("x", None), Exercise(value=("x", None)), strict=True)
    for answer, says in [
        (("x", None), r"\[1\]: expected 'y', got None"),
        ((None, "y"), r"\[0\]: expected 'x', got None"),
    ]:
        with pytest.raises(WrongAnswer, match=f"^values{says}$") as error:
            check(answer, Exercise(value=("x", "y")))
        assert not isinstance(error.value, NotSolved)


def test_a_right_result_with_too_much_communication_is_wrong():
    tiles = put(A, P("x", "y"))
    once = Exercise(
        args=(tiles,), value=A.sum(0), layout=P("y"), communication={"all-reduce": 1}, max_bytes=16
    )
    check(lambda a: a.sum(0), once, strict=True)

    def twice(a):  # right value, right layout, one detour
        everywhere = jax.lax.with_sharding_constraint(a, NamedSharding(MESH, P()))
        return jax.lax.with_sharding_constraint(everywhere.sum(0), NamedSharding(MESH, P("y")))

    with pytest.raises(
        WrongAnswer, match=r"may run at most 1 all-reduce, but compiled it has\n.*\nall-gather"
    ):
        check(jax.jit(twice), once)
    with pytest.raises(WrongAnswer, match="each device may send 15 bytes"):
        check(lambda a: a.sum(0), Exercise(args=(tiles,), max_bytes=15))
    with pytest.raises(WrongAnswer, match="your program may not communicate"):
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
    # it would never be found
    with pytest.raises(ValueError, match=r"'f32\[4, 16\]' is no type.*f32\[64,48\]"):
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
    with (
        pytest.raises(AssertionError, match="expected ValueError, but nothing was raised"),
        raises(ValueError),
    ):
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
        raise TypeError(
            "true_fun is <lambda> at /tmp/a folder/ipykernel_1/2.py:3 but step at /x.py:1, at "
            "the end"
        )
    assert error.message == "true_fun is <lambda> but step, at the end"
    assert "ipykernel" not in capsys.readouterr().out


# --- One program, judged as a whole ---------------------------------------------------------------


def test_layout_and_limits_are_those_of_one_compiled_program(capsys):
    rows = put(A, P("x", "y"))
    replicated = NamedSharding(MESH, P())
    asked = {"value": A, "args": (rows,), "layout": replicated}
    with pytest.raises(
        WrongAnswer, match=r"layout: expected f32\[4, 16\] on 8 devices, got f32\[4@x, 16@y\]"
    ):
        check(lambda a: a + 0, Exercise(**asked, communication={}, max_bytes=0))
    check(
        lambda a: jax.lax.with_sharding_constraint(a, replicated),
        Exercise(**asked, max_bytes=224),
        strict=True,
    )
    calls = []
    check(
        lambda a: calls.append(1) or a + 1,
        Exercise(value=A + 1, args=(rows,), communication={}),
        strict=True,
    )
    assert calls == [1]


def test_what_cannot_be_compiled_as_a_whole_is_a_wrong_answer_only_where_there_are_limits():
    rows = put(A, P("x"))
    limited, free = (
        Exercise(value=A, args=(rows,), communication={}),
        Exercise(value=A, args=(rows,)),
    )
    for answer in (
        np.asarray,
        lambda a: a if a.sum() > 0 else -a,
        lambda a: a[a > -1].reshape(a.shape),
    ):
        check(answer, free, strict=True)
        with pytest.raises(
            WrongAnswer, match=r"runs, but jax\.jit cannot compile it as a whole: \w+Error: "
        ):
            check(answer, limited)
    with pytest.raises(WrongAnswer, match="expected an array, got 'text'"):
        check(lambda a: "text", limited)
    check(
        lambda a: (a, 3, 0.5),
        Exercise(value=(A, 3, 0.5), args=(rows,), communication={}),
        strict=True,
    )
    with pytest.raises(NotSolved):
        check(
            lambda a: (..., ...),
            Exercise(value=(A, A), args=(rows,), communication={}),
            strict=True,
        )
    with pytest.raises(ZeroDivisionError):
        check(lambda a: 1 / 0, limited)


def test_answers_that_are_jitted_already_keep_their_options(capsys):
    rows = put(A, P("x"))
    powers = jax.jit(lambda a, n: sum(a**i for i in range(n)), static_argnums=1)
    check(powers, Exercise(value=1 + A + A**2, args=(rows, 3), communication={}), strict=True)
    printing = jax.jit(lambda a: print("traced") or a * 2)
    check(printing, Exercise(value=2 * A, args=(rows,), max_bytes=0), strict=True)
    assert capsys.readouterr().out.count("traced") == 1
    spread = jax.jit(lambda a: a, out_shardings=NamedSharding(MESH, P()))
    check(
        spread,
        Exercise(value=A, args=(rows,), layout=P(), communication={"all-gather": 1}),
        strict=True,
    )


def test_an_answer_may_donate_what_it_gets():
    rows, key, host = put(A, P("x")), jax.random.key(3), np.ones(3)
    for limits in ({}, {"communication": {}}):
        exercise = Exercise(
            reference=lambda a, k, h: a + 1, args=(rows, key, host), layout=P("x"), **limits
        )
        for _ in range(2):
            check(jax.jit(lambda a, k, h: a + 1, donate_argnums=(0, 1)), exercise, strict=True)
    assert jax.random.bits(key) and not rows.is_deleted() and rows.sum() == A.sum()


def test_the_current_mesh_changes_nothing_of_the_arguments():
    # two of them on one device, uncommitted
    seen, args = [], (jnp.ones(8), jax.random.key(3), put(A, P("x")))
    with jax.set_mesh(MESH):
        exercise = Exercise(reference=lambda *args: seen.append(args) or 1.0, args=args)
        check(jax.jit(lambda a, k, b: 1.0), exercise, strict=True)
    for given in seen:
        assert [one.sharding for one in given] == [one.sharding for one in args]
        assert [one.committed for one in given] == [False, False, True]


def test_no_flops_are_zero():
    rows = put(A, P("x"))
    assert "flops" not in jax.jit(lambda a: a).lower(rows).compile().cost_analysis()
    check(lambda a: a, Exercise(value=A, args=(rows,), max_flops=0), strict=True)


def test_arrays_are_too_large_by_their_elements_not_by_the_spelling_of_their_type():
    rows = put(A, P("y"))

    def whole(a, *shape):
        return jnp.cumsum(
            jax.lax.with_sharding_constraint(a, NamedSharding(MESH, P())).reshape(shape)
        )[-1]

    for shape in ((4, 16), (16, 4), (64,), (1, 4, 16)):
        with pytest.raises(
            WrongAnswer, match=r"no device may hold f32\[8,8\] or as many elements in another shape"
        ):
            check(
                lambda a, shape=shape: whole(a, *shape), Exercise(args=(rows,), never=("f32[8,8]",))
            )
        check(
            lambda a, shape=shape: whole(a, *shape),
            Exercise(args=(rows,), never=("s32[8,8]",)),
            strict=True,
        )
    check(lambda a: whole(a, 64), Exercise(args=(rows,), never=("f32[65]",)), strict=True)


# --- Three dots, None, and what was filled in partly ----------------------------------------------


@pytest.mark.parametrize(
    ("answer", "wanted", "says"),
    [
        (
            (1, ...),
            (1, 2),
            r"values\[1\]: these are still three dots, so put your answer in their place",
        ),
        ([1, [2, ...]], [1, [2, 3]], r"values\[1\]\[1\]: these are still three dots"),
        ({"a": 3, "b": ...}, {"a": 4, "b": 5}, r"values\['a'\]: expected 4, got 3"),
        ({"a": None}, {"a": A}, r"values\['a'\]: expected an array of shape \(4, 16\), got None"),
        ((None, None), ("x", None), r"values\[0\]: expected 'x', got None"),
        ((P(None, "y"),), (P("x"),), r"values\[0\]: expected P.*'x'.*, got P.*None, 'y'"),
        (3, (None,), "values: expected a tuple of 1, got 3"),
        (("x",), (None,), r"values\[0\]: expected None, got 'x'"),
    ],
)
def test_only_an_untouched_stub_is_not_solved(answer, wanted, says):
    with pytest.raises(WrongAnswer, match=f"^{says}") as error:
        check(answer, Exercise(value=wanted))
    assert not isinstance(error.value, NotSolved)


def test_none_and_dots_can_be_right(capsys):
    for right in (
        (None, "y"),
        (..., 0),
        [..., ...],
        {"none": None, "dots": [0, ...]},
        P(None, "y"),
    ):
        check(right, Exercise(value=right), strict=True)
    check(..., Exercise(layout=P("x")))
    assert capsys.readouterr().out.count("Right") == 5


def test_a_function_that_returns_one_value_and_three_dots_is_told_where():
    rows = put(A, P("x"))
    for limits in ({}, {"communication": {}}):
        exercise = Exercise(value=(A, A), args=(rows,), **limits)
        with pytest.raises(WrongAnswer, match=r"^values\[1\]: these are still three dots"):
            check(lambda a: (a, ...), exercise)
        check(lambda a: (..., ...), exercise)


# --- The same answer in another style -------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (P("x", None), P("x")),
        (P(("x",)), P("x", None, None)),
        (P(("x", "y"), None), P(("x", "y"))),
        (NamedSharding(MESH, P("x", None)), P("x")),
        (P("x", None), ("x", None)),
        ([P(None)], (P(),)),
        ("float32[8@x, 32@y]", "float32[8@x,32@y]"),
        ("f32[8@x,32@y]", "float32[8@x, 32@y]"),
        (" bfloat16 [8 ,32]", "bf16[8, 32]"),
        (np.array([8, 4]), (8, 4)),
        ([8, 4], jnp.array([8, 4])),
        (((1.0, 2), [3, 4]), np.array([[1.0, 2.0], [3.0, 4.0]])),
        (range(3), [0, 1, 2]),
        (75_631_689_728.00001, 75_631_689_728),
        (np.float32(2**30), 2**30),
        ({"b": 1, "a": np.int32(2)}, {"a": 2, "b": 1.0}),
        (np.True_, True),
    ],
)
def test_another_style_is_as_right(answer, wanted):
    check(answer, Exercise(value=wanted), strict=True)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (P(None, "x"), P("x")),
        (P(("x", "y")), P("x", "y")),
        (P(("y", "x")), P(("x", "y"))),
        (NamedSharding(MESH, P("y")), P("x")),
        ("x", P("x")),
        ("float32[8@x,32@y]", "float32[8@y,32@x]"),
        ("f16[8]", "f32[8]"),
        ("eachtime", "each time"),
        (np.array([8, 5]), (8, 4)),
        ([8, 4, 2], jnp.array([8, 4])),
        # 6 bytes, by 2.5e-6: the tolerance of measured numbers, not of counted ones
        (2_376_198.0, 2_376_204),
        (287.4, 287),
    ],
)
def test_a_style_is_no_excuse(answer, wanted):
    with pytest.raises(WrongAnswer, match=r"^values.*: expected "):
        check(answer, Exercise(value=wanted))


def test_whole_numbers_keep_a_tolerance_that_the_exercise_names():
    check({"batch": 286.6}, Exercise(value={"batch": 287}, rtol=0.02), strict=True)


def test_a_list_of_layouts_is_a_tuple_of_them():
    pair = [put(A, P("x")), put(A, P("y"))]
    check(pair, Exercise(layout=(P("x", None), P("y"))), strict=True)
    check({"pair": pair}, Exercise(layout={"pair": (None, P("y"))}), strict=True)
    check({"pair": pair}, Exercise(layout={"pair": None}), strict=True)
    with pytest.raises(WrongAnswer, match=r"layout\['pair'\]\[1\]: expected f32\[4@x, 16\]"):
        check({"pair": pair}, Exercise(layout={"pair": P("x")}))
    with pytest.raises(WrongAnswer, match=r"layout: expected a tuple of 1, got a list of 2$"):
        check(pair, Exercise(layout=(P("x"),)))


# --- What the messages say ------------------------------------------------------------------------


def test_a_requirement_is_told_in_its_own_words():
    wanted = Exercise(value={"at most 4 MiB stored": True, "replicated": False, "bytes": 0})
    said = r"^values: 'at most 4 MiB stored' should hold for your answer, and does not$"
    with pytest.raises(WrongAnswer, match=said):
        check({"at most 4 MiB stored": False, "replicated": False, "bytes": 0}, wanted)
    with pytest.raises(
        WrongAnswer, match=r"^values: 'replicated' should not hold for your answer, and does$"
    ):
        check({"at most 4 MiB stored": True, "replicated": np.True_, "bytes": 0}, wanted)
    jobs = Exercise(value={"sum": {"does the job": True, "within the limit": True}})
    with pytest.raises(
        WrongAnswer,
        match=r"^values: at \['sum'\], 'does the job' should hold for your answer, and does not$",
    ):
        check({"sum": {"does the job": False}}, jobs)


def test_messages_show_what_was_written_if_it_is_short():
    for answer, says in [
        ((2, 16, 4), r"expected a tuple of 2, got a tuple of 3, \(2, 16, 4\)$"),
        ("auto", "expected a tuple of 2, got 'auto'$"),
        ([A, A, A], "expected a tuple of 2, got a list of 3$"),
        (list(range(100)), "expected a tuple of 2, got a list of 100$"),
    ]:
        with pytest.raises(WrongAnswer, match=says):
            check(answer, Exercise(value=(1, 2)))
    # not 64 numbers
    with pytest.raises(WrongAnswer, match=r"expected an array of shape \(4, 16\), got 'rows'$"):
        check("rows", Exercise(value=A))
    with pytest.raises(WrongAnswer, match=r"expected a dict with the keys 'a', 'b', got 5$"):
        check(5, Exercise(value={"a": 1, "b": 2}))


def test_a_program_that_may_not_communicate_is_told_so():
    exercise = Exercise(value=A.sum(), args=(put(A, P("x")),), communication={})
    with pytest.raises(
        WrongAnswer,
        match=r"^communication: your program may not communicate, but compiled it has\n",
    ):
        check(lambda a: a.sum(), exercise)


# --- jax.device_put in an answer ------------------------------------------------------------------

SENDS_NOTHING = {
    "args": (A,),
    "value": 2 * A,
    "layout": NamedSharding(MESH, P("x", None)),
    "communication": {},
}


def test_a_device_put_in_the_answer_counts_as_what_it_does_when_the_answer_runs(capsys):
    def parallel(a):
        return 2 * jax.device_put(a, NamedSharding(MESH, P("x")))

    check(parallel, Exercise(**SENDS_NOTHING, max_flops=32), strict=True)
    said = capsys.readouterr().out
    assert said.startswith("Right: the values agree, every device stores the right shard")
    assert "calls jax.device_put" in said and "jax.lax.with_sharding_constraint" in said

    with jax.set_mesh(MESH):  # as the chapter on automatic sharding writes it
        check(lambda a: 2 * jax.device_put(a, P("x")), Exercise(**SENDS_NOTHING), strict=True)
    two = Exercise(**{**SENDS_NOTHING, "value": {"a": 2 * A, "b": 3 * A}})
    check(
        lambda a: {"a": parallel(a), "b": jax.jit(lambda a: 1.5 * a)(parallel(a))}, two, strict=True
    )
    capsys.readouterr()
    check(
        lambda a: 2 * jax.lax.with_sharding_constraint(a, SENDS_NOTHING["layout"]),
        Exercise(**SENDS_NOTHING),
    )
    assert "device_put" not in capsys.readouterr().out


def test_what_a_device_put_sends_is_counted():
    replicated = NamedSharding(MESH, P())
    asked = {"value": A, "args": (put(A, P("x", "y")),), "layout": replicated}
    check(lambda a: jax.device_put(a, replicated), Exercise(**asked), strict=True)
    check(lambda a: jax.device_put(a, replicated), Exercise(**asked, max_bytes=224), strict=True)
    with pytest.raises(WrongAnswer, match=r"^communication: each device may send 223 bytes"):
        check(lambda a: jax.device_put(a, replicated), Exercise(**asked, max_bytes=223))


def test_only_an_answer_with_device_put_is_told_about_it():
    whole = NamedSharding(MESH, P())
    moved = lambda a: 2 * jax.device_put(a, NamedSharding(MESH, P("x")))  # noqa: E731
    # compiled by the reader, who sees no layout change
    for answer in (jax.jit(moved), lambda a: jax.jit(moved)(a)):
        with pytest.raises(
            WrongAnswer, match=r"^layout: .*\nYour answer calls jax\.device_put inside jax\.jit"
        ):
            check(answer, Exercise(**SENDS_NOTHING))
    for answer in (lambda a: 2 * a, lambda a: 2 * jax.lax.with_sharding_constraint(a, whole)):
        with pytest.raises(WrongAnswer, match=r"^layout: ") as error:
            check(answer, Exercise(**SENDS_NOTHING))
        assert "device_put" not in str(error.value)


def test_on_explicit_axes_device_put_is_not_to_blame():
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    rows, columns = (NamedSharding(mesh, spec) for spec in (P("x"), P(None, "y")))
    exercise = Exercise(args=(jax.device_put(A, rows),), value=A, layout=columns, max_bytes=10_000)
    check(lambda a: jax.device_put(a, columns), exercise, strict=True)
    with pytest.raises(WrongAnswer, match=r"^layout: ") as error:
        check(lambda a: jax.device_put(a, NamedSharding(mesh, P())), exercise)
    assert "device_put" not in str(error.value)


# --- A second input -------------------------------------------------------------------------------


def sgd(params, batch):
    return {"W": params["W"] - 0.1 * batch, "b": params["b"] - 0.1 * batch.sum(0)}


START = {"W": jnp.zeros((4, 16)), "b": jnp.zeros(16)}


@pytest.mark.parametrize("limits", [{}, {"max_flops": 1e6}])
def test_an_answer_that_is_right_for_one_input_only_is_wrong(limits, capsys):
    batch = put(A, P("x"))
    exercise = Exercise(reference=sgd, args=(START, batch), **limits)
    check(sgd, exercise, strict=True)
    check(jax.jit(sgd, donate_argnums=0), exercise, strict=True)
    assert capsys.readouterr().out.startswith("Right: the values agree on two inputs")
    known = sgd(START, A)
    for wrong in (
        lambda *_: known,
        # drops the old weights, which are 0
        lambda params, batch: {"W": -0.1 * batch, "b": -0.1 * batch.sum(0)},
    ):
        with pytest.raises(
            WrongAnswer, match=r"with a second, random input: values\['W'\]: 64 of 64 differ"
        ):
            check(wrong, exercise)
    with pytest.raises(ValueError, match="a value or a reference"):
        check(sgd, Exercise(value=A, reference=sgd, args=(START, batch)))
    with pytest.raises(ValueError, match="give Exercise args"):
        check(sgd, Exercise(reference=sgd))


def test_the_second_input_is_like_the_first():
    seen = []
    args = (
        put(A, P("x", "y")), 0.001 * jnp.ones(1000), jnp.arange(5), np.array([True, False] * 8),
        jax.random.key(7),
        jnp.bfloat16(3) * jnp.ones(4, "bfloat16"), {"n": 3, "word": "text", "none": None},
        -1j * jnp.ones(3),
        jnp.zeros((0, 2)), jnp.asarray(2.0), -A,
    )  # fmt: skip
    check(
        lambda *args: 1.0,
        Exercise(reference=lambda *args: seen.append(args) or 1.0, args=args),
        strict=True,
    )
    first, second = seen
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert type(one) is type(other)
        if hasattr(one, "dtype"):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            is_key = one.dtype == args[4].dtype
            same = (
                jax.random.key_data(one) == jax.random.key_data(other) if is_key else one == other
            )
            assert not same.size or not same.all() or getattr(one, "weak_type", False)
        else:
            assert one == other
        if isinstance(one, jax.Array):
            assert one.sharding == other.sharding and one.committed == other.committed
    tiles, small, whole, *_, negative = second
    assert (
        (np.asarray(tiles) > 0).all()
        and 0.0005 < np.asarray(small).std() < 0.001
        and (negative > 0).any()
    )
    assert set(whole.tolist()) <= set(range(5))


# --- dtypes, memories, processes ------------------------------------------------------------------


def test_dtypes_are_compared_where_the_wanted_value_has_one():
    wanted = Exercise(value=jnp.arange(4.0))
    for right in (jnp.arange(4.0), np.arange(4.0), np.arange(4, dtype=np.float32)):
        check(right, wanted, strict=True)
    for name, wrong in {
        "int32": jnp.arange(4),
        "bfloat16": jnp.bfloat16([0, 1, 2, 3]),
        "int": np.arange(4),
    }.items():
        with pytest.raises(WrongAnswer, match=f"values: expected dtype float32, got {name}"):
            check(wrong, wanted)
        # NumPy's dtypes say nothing of JAX's
        check(wrong, Exercise(value=np.arange(4.0)), strict=True)
        check(wrong, Exercise(value=np.arange(4.0), dtype=jnp.asarray(wrong).dtype), strict=True)
    check(jnp.bfloat16(2), Exercise(value=jnp.asarray(2.0)), strict=True)  # 2.0 is a Python number
    check(3.0, Exercise(value=jnp.float32(3)), strict=True)
    with pytest.raises(WrongAnswer, match=r"values\['w'\]: expected dtype bfloat16, got float32"):
        check({"w": jnp.ones(3)}, Exercise(value={"w": np.ones(3)}, dtype="bfloat16"))


def test_the_kind_of_memory_is_part_of_a_layout():
    there = NamedSharding(MESH, P("x"), memory_kind="pinned_host")
    here = NamedSharding(MESH, P("x"))
    on_device, on_host = (
        "the memory 'device', but it is in 'pinned_host'",
        "the memory 'pinned_host'",
    )
    for have, want, says in [(there, here, on_device), (here, there, on_host)]:
        check(jax.device_put(A, have), Exercise(value=A, layout=have), strict=True)
        with pytest.raises(WrongAnswer, match=says):
            check(jax.device_put(A, have), Exercise(value=A, layout=want))
    with pytest.raises(WrongAnswer, match="but it is in 'pinned_host'"):
        check(jax.device_put(A, there), Exercise(layout=P("x")))


def test_a_numpy_answer_is_a_wrong_answer_wherever_a_layout_is_asked():
    with pytest.raises(WrongAnswer, match=r"values: expected P.*x.*, got"):
        check(np.ones(3), Exercise(value=P("x")))
    with pytest.raises(WrongAnswer, match=r"expected a jax\.Array, got an array of shape"):
        check(A, Exercise(layout=P("x")))
    with pytest.raises(WrongAnswer, match=r"expected a jax\.Array, got an array of shape"):
        check(lambda a: np.asarray(a), Exercise(args=(put(A, P("x")),), layout=P("x")))
    with pytest.raises(
        WrongAnswer, match="layout: expected a dict with 'w', got an array of shape"
    ):
        check(A, Exercise(layout={"w": P("x")}))


PROCESSES = """
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from shardlab import Exercise, WrongAnswer, check
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
rows, A = NamedSharding(mesh, P("d")), np.arange(8.0, dtype=np.float32)
def whole(values):
    return jax.make_array_from_callback((8,), rows, lambda index: values[index])
def verdict(*args):
    try:
        return check(*args, strict=True)
    except (WrongAnswer, ValueError) as error:
        return type(error).__name__, str(error)
wrong = A.copy()
wrong[6] = 9
verdicts = [
    verdict(whole(A), Exercise(value=A, layout=rows, max_held=16)),
    verdict(whole(wrong), Exercise(value=A)),
    verdict(whole(A), Exercise(value=A[:4])),
    verdict(whole(A), Exercise(value=whole(A))),
    verdict(lambda a: 2 * a, Exercise(value=2 * A, args=(whole(A),), communication={})),
    verdict(lambda a: a, Exercise(reference=lambda a: A, args=(whole(A),))),
]
"""


def test_arrays_of_several_processes_are_compared_by_the_shards_of_each():
    with start(2, devices=2) as group:
        outcomes = group.run(PROCESSES)
        first, second = group["verdicts"]
    right, differs, shape, value, doubled, drawn = second
    assert right is doubled is None and all(
        "Right: the values agree" in outcome.text for outcome in outcomes
    )
    said = (
        "values: in the shard of device 3, 1 of 2 differ, the first at [0]: expected 6.0, got 9.0"
    )
    assert differs == ("WrongAnswer", said) and first[1] is None
    assert shape == ("WrongAnswer", "values: expected shape (4,), got (8,)")
    assert (
        value[0] == drawn[0] == "ValueError"
        and "NumPy array" in value[1]
        and "give Exercise a value" in drawn[1]
    )


def test_a_cell_that_shows_an_exercise_shows_no_answer():
    shown = repr(Exercise(value={"x": (2, 16, 4321)}, max_bytes=12))
    assert "4321" not in shown and "max_bytes=12" in shown
