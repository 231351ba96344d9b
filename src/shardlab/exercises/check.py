"""Check the answer to an exercise: its values, its layout, its communication and its memory.

An exercise specifies a right answer by its properties, so every way of writing it is accepted:

    exercise = Exercise(value=A, layout=NamedSharding(mesh, P("x", "y")))
    answer = ...                            # the reader's line
    check(answer, exercise)                 # prints "Not solved yet" until there is one

The folded solution ends with `check(answer, exercise, strict=True)`, which raises unless the answer
is right, so building the book proves every solution.

Where an exercise limits what a function may send, compute or hold, the function is compiled once,
as `jax.jit` compiles it, and its values, its layout and the limits are all read from this one
program. Otherwise it is called as it is.
"""

import functools
import inspect
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from shardlab.arrays.layout import (
    counted,
    describe,
    device_number,
    index_text,
    same_layout,
    short_dtype,
)
from shardlab.programs.collectives import collectives
from shardlab.programs.hlo import array_types

__all__ = ["Exercise", "NotSolved", "WrongAnswer", "check", "raises"]


class WrongAnswer(AssertionError):
    """The answer is not what the exercise asks for; the message says how it differs."""


class NotSolved(WrongAnswer):
    """There is no answer yet: the stub still contains its three dots."""


class _Misplaced(WrongAnswer):
    """The values may be right, but an array is not stored as the exercise asks."""


_RTOL = 1e-5
_EXACT = 1e-9  # how far a whole number that was computed in floats may be off
_NOT_SOLVED = "Not solved yet: replace the three dots, and run the cell again."
_NO_RESULT = "Not solved yet: replace the three dots, return a result, and run the cell again."


@dataclass(frozen=True)
class Exercise:
    """The specification of a right answer.

    `Exercise(value=A, layout=NamedSharding(mesh, P("x", "y")))` asks for an array equal to A, whose
    rows are sharded over mesh axis x and whose columns are sharded over y.

    >>> exercise = Exercise(value=np.arange(8.0), layout=NamedSharding(mesh, P("y")))
    >>> check(jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("y"))), exercise)
    Right: the values agree and every device stores the right shard.

    Attributes:
      value: what the answer must equal: an array, a number, or any tuple, list or dict of them.
        Arrays may be of any kind; their layout is not compared here. Where one is a `jax.Array`, so
        is its dtype.
      reference: instead of `value`, a function that computes it from `args`. The answer is then
        compared with it on `args` and on a second input, drawn at random: arrays of the same
        shapes, dtypes and shardings, floats of the same size as the first and nowhere zero (not
        negative where the first are not), integers in the same range.
      layout: the layout that the answer's arrays must have: a sharding (or a `PartitionSpec`, read
        on the answer's own mesh) for all of them, or a structure like the answer's; None where any
        layout will do.
      args: if given, the answer is a function, and its result for these arguments is checked. Its
        arrays are copied first, so it may donate them.
      communication: how often the compiled function may run each collective, such as
        `{"all-reduce": 1}`; no others are allowed, and none at all if `{}`. For answers that are
        functions.
      max_bytes: how many bytes each device may send in one call, by the ring model of
        `shardlab.programs.collectives`. For answers that are functions.
      max_flops: how many floating-point operations each device may do in one call, as the compiler
        counts them: a loop's body once. For answers that are functions.
      max_held: how many bytes of the answer each device may store.
      never: types of arrays that no device may hold while the function runs, such as
        `("f32[64,48]",)`: none of this type, and none of this dtype with as many elements or more,
        whatever its shape.
      dtype: the dtype that the answer's arrays must have; by default that of `value`, where it is a
        `jax.Array`.
      rtol, atol: the relative and the absolute tolerance of a comparison. With the default `rtol`,
        whole numbers are compared exactly, up to the rounding of an answer that is a float.
      mesh: the current mesh while an answer is checked, as `jax.set_mesh` sets it; by default the
        one that is current when the exercise is made, so an answer can be checked again after cells
        that set another.
    """

    value: Any = field(default=None, repr=False)  # a cell that shows an exercise shows no answer
    reference: Callable | None = None
    layout: Any = None
    args: tuple | None = None
    communication: dict | None = None
    max_bytes: int | None = None
    max_flops: float | None = None
    max_held: int | None = None
    never: tuple[str, ...] = ()
    dtype: Any = None
    rtol: float = _RTOL
    atol: float = 1e-6
    mesh: Mesh | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.mesh is None:
            object.__setattr__(self, "mesh", _current_mesh())


def _current_mesh():
    """The mesh of `jax.set_mesh`; one without devices if none is set."""
    get = getattr(jax.sharding, "get_mesh", None)  # from JAX 0.8.1 on
    if get is None:
        from jax._src.mesh import get_concrete_mesh as get
    return get() or Mesh(np.empty((), dtype=object), ())


def check(answer: Any, exercise: Exercise, *, strict: bool = False) -> None:
    """Check an answer and print what was found.

    A stub, whose three dots are untouched, is no answer yet. A wrong answer raises, and so does a
    stub that was filled in partly:

    >>> exercise = Exercise(value=np.arange(4.0))
    >>> check(..., exercise)
    Not solved yet: replace the three dots, and run the cell again.
    >>> check(jnp.arange(4.0), exercise)
    Right: the values agree.
    >>> check(4 * jnp.arange(4.0), exercise)
    Traceback (most recent call last):
        ...
    shardlab.exercises.check.WrongAnswer: values: 3 of 4 differ, the first at [1]: expected 1.0, got 4.0 (...)

    Answers in another style are as right: a list for a tuple, NumPy for JAX, `P("x", None)` for
    `P("x")`, a type with spaces. A function that is limited in what it may send is compiled.
    `jax.device_put` changes no layout in a compiled program, so where it stands in the function
    itself, its moves are compiled as sharding constraints.

    Args:
      answer: the reader's answer; `...`, a tuple, list or dict of nothing else, None, or a function
        that returns one of them, if there is none.
      exercise: the specification of a right answer, an `Exercise`.
      strict: raise if there is no answer, instead of printing so.

    Raises:
      WrongAnswer: the answer is wrong (an `AssertionError`).
      NotSolved: there is none, and `strict` is set.
      ValueError: the exercise cannot be checked, such as one with limits but without args.
      Exception: whatever the answer itself raises, if it is a function.
    """  # noqa: E501
    with jax.set_mesh(exercise.mesh):
        _check(answer, exercise, strict)


def _check(answer, exercise, strict):
    want = _wanted(exercise)
    try:
        found, run, compiled, traced = _answered(answer, exercise, want)
    except NotSolved:
        if strict:
            raise
        print(_NO_RESULT if isinstance(answer, Callable) else _NOT_SOLVED)
        return
    if exercise.args is not None and run is None:
        raise WrongAnswer(f"the answer must be a function, not {_kind(answer)}")
    note = ""
    try:
        passed = [*_passed(found, run, compiled, want, exercise)]
    except _Misplaced as error:
        if traced is None or not _moves(traced.jaxpr.jaxpr):
            raise WrongAnswer(str(error)) from None
        moved = _with_moves(answer, exercise)
        if moved is None:
            raise WrongAnswer(f"{error}\n{_IN_JIT}") from None
        run, compiled = moved
        passed, note = (
            [*_passed(run(*_copied(exercise.args)), run, compiled, want, exercise)],
            f"\n{_ALONE}",
        )
    if not passed:
        raise ValueError("this exercise accepts anything: give Exercise a value, a layout, or both")
    print(f"Right: {', '.join(passed[:-1])}{' and ' * (len(passed) > 1)}{passed[-1]}.{note}")


def _is_limited(exercise):
    """Whether the program that an answer compiles to is looked at."""
    return (exercise.communication, exercise.max_bytes, exercise.max_flops, exercise.never) != (
        None,
        None,
        None,
        (),
    )


def _wanted(exercise):
    """The right answer, or what it returns; None if there is none. ValueError for a senseless
    exercise.
    """
    if exercise.args is None and (_is_limited(exercise) or exercise.reference is not None):
        raise ValueError(
            "communication, max_bytes, max_flops, never and reference are for answers that "
            "are functions: give Exercise args"
        )
    if exercise.reference is None:
        return exercise.value
    if exercise.value is not None:
        raise ValueError("give Exercise a value or a reference, not both")
    return exercise.reference(*_copied(exercise.args))


def _answered(answer, exercise, want):
    """(the answer or what it returns, the function, and if it has limits its program and its
    trace); or NotSolved.
    """
    run = compiled = traced = None
    _readable(answer, want)
    if exercise.args is not None and isinstance(answer, Callable):
        run = answer
        _takes(answer, exercise.args)
        if _is_limited(exercise):
            run, compiled, traced = _compiled_once(answer, exercise.args)
        answer = run(*_copied(exercise.args))
        _readable(answer, want)
    if (_is_stub(answer) and (want is None or not _are_dots(want))) or (
        run and _are_nones(answer, want)
    ):
        raise NotSolved(_NOT_SOLVED)
    return answer, run, compiled, traced


def _takes(function, args):
    """WrongAnswer unless a function can be called with so many arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that does not say
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        raise WrongAnswer(
            f"the function is called with {counted(len(args), 'argument')}, and takes "
            f"{signature}: {error}"
        ) from None


def _readable(answer, want):
    """WrongAnswer for what no check can read: a dict with keys that JAX cannot sort, such as
    devices, and arrays that were donated. If a dict is wanted, its keys are compared later.
    """
    try:
        leaves = jax.tree.leaves(answer)
    except (ValueError, TypeError) as error:
        if "sorting" not in str(error) and "not supported between" not in str(error):
            raise
        if isinstance(want, dict) and isinstance(answer, dict):
            return
        raise WrongAnswer(
            "the keys of a dict must have an order, and these have none; use strings or numbers, "
            "such as device.id for a device"
        ) from None
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise WrongAnswer(
            "the answer has a traced value, which has none outside of the function that is "
            "traced; return it from there"
        )
    if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves):
        raise WrongAnswer(
            "an array of the answer was deleted, as by a call that donates it; create it again"
        )


def _passed(answer, run, compiled, want, exercise):
    """What of an answer is right, in words, one check after the other; WrongAnswer for the first
    that is not.
    """
    if want is not None:
        _check_values(want, answer, exercise)
        if exercise.reference is None:
            yield "the values agree"
        else:
            _check_second_input(run, exercise)
            yield "the values agree on two inputs"
    if exercise.layout is not None:
        _check_layout(answer, exercise.layout)
        yield "every device stores the right shard"
    if exercise.max_held is not None:
        fullest = _fullest(answer)
        if fullest > exercise.max_held:
            raise WrongAnswer(
                f"memory: a device may store {exercise.max_held:,} bytes of the answer, but "
                f"one stores {fullest:,}"
            )
        yield "no device stores more than allowed"
    if exercise.communication is not None or exercise.max_bytes is not None:
        _check_communication(collectives(compiled), exercise)
        yield "the communication is within the limit"
    if exercise.max_flops is not None:
        # XLA leaves it out of programs that do none
        work = (compiled.cost_analysis() or {}).get("flops", 0)
        if work > exercise.max_flops:
            raise WrongAnswer(
                f"FLOPs: each device may do {exercise.max_flops:,.0f}, but does {work:,.0f}"
            )
        yield "no device does more FLOPs than allowed"
    if exercise.never:
        _check_never(array_types(compiled.as_text()), exercise.never)
        yield "no device holds an array that it must not hold"


def _check_second_input(run, exercise):
    """Compare with the reference on random input, too."""
    second = _drawn(exercise.args)
    try:
        _check_values(exercise.reference(*_copied(second)), run(*_copied(second)), exercise)
    except WrongAnswer as error:
        raise WrongAnswer(f"with a second, random input: {error}") from None


@contextmanager
def raises(kind: type[Exception]) -> Iterator[SimpleNamespace]:
    """Show an error on purpose: print its message and continue; fail if there is no error.

    After the block, `error.message` can be asserted on.

    >>> with raises(ZeroDivisionError) as error:
    ...     1 / 0
    ...
    ZeroDivisionError: division by zero
    >>> error.message
    'division by zero'

    Args:
      kind: the expected exception, or one of its base classes.

    Returns:
      An object whose `message` holds the text once the block has ended.

    Raises:
      AssertionError: the block ended without an error.
      Exception: an error of another kind is not caught.
    """
    seen, printed, caught = SimpleNamespace(message=None), io.StringIO(), None
    try:
        with redirect_stdout(printed):
            yield seen
    except kind as error:
        caught = error
    # Some versions of JAX print, and add to the message, the file and line of the error; in a
    # notebook that is the name of a temporary file, of no use to a reader.
    print(
        re.sub(r"^(\S+|.*\.py):\d+:\d+ \(.*\)\n", "", printed.getvalue(), flags=re.MULTILINE),
        end="",
    )
    if caught is None:
        raise AssertionError(f"expected {kind.__name__}, but nothing was raised")
    message = re.sub(r"\s*This error occurs at source:.*", "", str(caught), flags=re.DOTALL)
    seen.message = re.sub(r"(<\w+>|\b\w+) at /.*?\.py:\d+", r"\1", message)
    print(textwrap.fill(f"{type(caught).__name__}: {' '.join(seen.message.split())}", 80))


def _compiled_once(function, args):
    """A function as jitted, the program that it runs on these arguments, and its trace. A call
    compiles nothing new.
    """

    @functools.wraps(function)
    def whole(*args):
        answer = function(*args)
        if _is_stub(answer):
            raise NotSolved(_NOT_SOLVED)
        for place, leaf in zip(_places(answer), jax.tree.leaves(answer), strict=True):
            if leaf is ...:
                raise WrongAnswer(f"values{place}: {_DOTS}")
            if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
                raise WrongAnswer(f"values{place}: expected an array, got {_kind(leaf)}")
        return answer

    jitted = function if hasattr(function, "lower") else jax.jit(whole)
    try:
        if not hasattr(jitted, "trace"):  # such as eqx.filter_jit
            return jitted, jitted.lower(*_copied(args)).compile(), None
        traced = jitted.trace(*_copied(args))
        return jitted, traced.lower().compile(), traced
    except (NotSolved, WrongAnswer):
        raise
    except Exception as error:
        function(*_copied(args))  # raises the same error, if it is the answer's own
        reason = (
            f"{type(error).__name__}: {str(error).splitlines()[0]}"
            if str(error)
            else type(error).__name__
        )
        raise WrongAnswer(
            f"the answer runs, but jax.jit cannot compile it as a whole: {reason}"
        ) from error


# --- jax.device_put in an answer: it moves arrays in a function that runs as it is, and none in a
# compiled one -------

_IN_JIT = (
    "Your answer calls jax.device_put inside jax.jit, where it changes no layout on auto axes. Use "
    "jax.lax.with_sharding_constraint there instead, or jax.sharding.reshard on explicit axes."
)
_ALONE = (
    "Your answer calls jax.device_put, which moves the array as long as your function is not "
    "compiled. Inside jax.jit it would change no layout: use jax.lax.with_sharding_constraint "
    "there."
)


def _moves(jaxpr):
    """The shardings to which a program's `device_put`s would move arrays, but do not once it is
    compiled.
    """
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "device_put":
            found += [to for to in eqn.params["devices"] if to is not None and not _is_explicit(to)]
        for inner in jax.tree.leaves(list(eqn.params.values())):
            inner = getattr(inner, "jaxpr", inner)
            found += _moves(inner) if hasattr(inner, "eqns") else []
    return found


def _is_explicit(sharding):
    types = sharding.mesh.axis_types if isinstance(sharding, jax.sharding.NamedSharding) else ()
    return any(kind == jax.sharding.AxisType.Explicit for kind in types)


def _with_moves(answer, exercise):
    """The function and its program with a sharding constraint for each `jax.device_put`; None if
    that is not the same.

    It is the same where the function, as it is written, stores its result as the exercise asks.
    """

    def constrain(x, device=None, **_):
        return jax.lax.with_sharding_constraint(x, device)

    args = _copied(exercise.args)
    try:
        _check_layout(answer(*_copied(exercise.args)), exercise.layout)
        with mock.patch.object(jax, "device_put", constrain):
            jitted = jax.jit(lambda *args: answer(*args))
            return jitted, jitted.lower(*args).compile()
    except Exception:  # what cannot be compiled in this way is explained instead
        return None


def _copied(args):
    """The arguments with their arrays copied, because a function may donate what it gets."""

    def copy(leaf):
        if not isinstance(leaf, jax.Array):
            return leaf
        if not leaf.is_fully_addressable:
            return leaf.copy()
        # stays where it is, also if there is a current mesh
        return jax.device_put(leaf, may_alias=False)

    return jax.tree.map(copy, args)


def _drawn(args):
    """Arguments like these with other values, always the same; what is no array stays."""
    random = np.random.default_rng(1)

    def draw(leaf):
        if (
            not isinstance(leaf, (jax.Array, np.ndarray))
            or not leaf.size
            or getattr(leaf, "weak_type", False)
        ):
            return leaf
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise ValueError(
                "a second input cannot be drawn for arrays of several processes: give "
                "Exercise a value"
            )
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            shape = jax.random.key_data(leaf).shape
            bits = jax.device_put(random.integers(0, 2**32, shape, np.uint32))
            drawn = jax.random.wrap_key_data(bits, impl=jax.random.key_impl(leaf))
            return jax.device_put(drawn, leaf.sharding if leaf.committed else None)
        values = _numpy(leaf)
        if values.dtype.kind in "fc":
            size = np.sqrt(np.mean(np.abs(values) ** 2))
            drawn = random.standard_normal(leaf.shape) * (size if 0 < size < np.inf else 1)
            if values.dtype.kind == "c":
                drawn = drawn * np.exp(2j * np.pi * random.random(leaf.shape))
            elif (values >= 0).all():
                # such as second moments, of which an optimiser takes the root
                drawn = np.abs(drawn)
        elif values.dtype.kind == "b":
            drawn = random.random(leaf.shape) < 0.5
        elif values.dtype.kind in "iu":
            drawn = random.integers(
                values.min(), values.max(), leaf.shape, values.dtype, endpoint=True
            )
        else:
            return leaf
        drawn = np.asarray(drawn).astype(leaf.dtype)
        if isinstance(leaf, np.ndarray):
            return drawn
        return jax.device_put(drawn, leaf.sharding if leaf.committed else None)

    return jax.tree.map(draw, args)


def _is_stub(answer):
    """Whether these are the three dots of a stub, or what a function returns that has no other
    body: None.
    """
    return answer is None or _are_dots(answer)


def _are_nones(value, want):
    """Whether a function that called a stub, once or several times, returned what the calls did,
    and more is wanted.
    """

    def nones(tree):
        return all(
            leaf is None for leaf in jax.tree.leaves(tree, is_leaf=lambda leaf: leaf is None)
        )

    return (
        isinstance(value, (tuple, list, dict))
        and len(value)
        and nones(value)
        and (want is None or not nones(want))
    )


def _are_dots(value):
    """Whether these are three dots, or a tuple, list or dict of nothing else."""
    if isinstance(value, dict):
        return bool(value) and all(map(_are_dots, value.values()))
    if isinstance(value, (tuple, list)) and not isinstance(value, jax.sharding.PartitionSpec):
        return bool(value) and all(map(_are_dots, value))
    return value is ...


_DOTS = "these are still three dots, so put your answer in their place"


def _check_values(want, have, exercise, where=""):
    """Compare one value after the other, so that the message can say which one is wrong."""
    if have is ... and want is not ...:
        raise WrongAnswer(f"values{where}: {_DOTS}")
    # in some versions of JAX a tuple, but one value here
    if isinstance(want, jax.sharding.PartitionSpec):
        spec = have.spec if isinstance(have, jax.sharding.NamedSharding) else have
        if not isinstance(spec, jax.sharding.PartitionSpec) or _plain(want) != _plain(spec):
            raise WrongAnswer(f"values{where}: expected {want}, got {_kind(have)}")
    elif isinstance(want, dict):
        _check_items(want, have, exercise, where)
    elif isinstance(want, (tuple, list)):
        if isinstance(have, jax.sharding.PartitionSpec) or (
            isinstance(have, (np.ndarray, jax.Array)) and have.ndim
        ):
            items = tuple(have)
        else:
            items = have if isinstance(have, (tuple, list, range)) else None
        specs = jax.sharding.PartitionSpec
        if isinstance(have, specs) and any(isinstance(one, specs) for one in want):
            items = None  # one spec where several are wanted
        if items is None or len(items) != len(want):
            raise WrongAnswer(
                f"values{where}: expected {_kind(want, shown=False)}, got {_kind(have)}"
            )
        for place, (value, other) in enumerate(zip(want, items, strict=True)):
            _check_values(value, other, exercise, f"{where}[{place}]")
    elif want is None:
        if have is not None:
            raise WrongAnswer(f"values{where}: expected None, got {_kind(have)}")
    elif not jax.tree_util.all_leaves([want]):
        # a training state, or another structure known to JAX
        if jax.tree.structure(want) != jax.tree.structure(have):
            raise WrongAnswer(
                f"values{where}: expected the structure of {_kind(want)}, got {_kind(have)}"
            )
        _check_values(jax.tree.leaves(want), jax.tree.leaves(have), exercise, where)
    elif problem := _difference(want, have, exercise):
        raise WrongAnswer(f"values{where}: {problem}")


def _check_items(want, have, exercise, where):
    """Compare two dicts: first what both have, so that one requirement that is not met is told
    before one not tried.
    """
    if not isinstance(have, dict):
        keys = f"the {'key' if len(want) == 1 else 'keys'} {', '.join(map(repr, want))}"
        raise WrongAnswer(f"values{where}: expected a dict with {keys}, got {_kind(have)}")
    for key in want:
        if key not in have:
            continue
        if (
            isinstance(want[key], bool)
            and isinstance(have[key], (bool, np.bool_))
            and isinstance(key, str)
        ):
            if want[key] != have[key]:
                verb = ("should hold", "does not") if want[key] else ("should not hold", "does")
                at = f"at {where}, " if where else ""
                raise WrongAnswer(f"values: {at}{key!r} {verb[0]} for your answer, and {verb[1]}")
        else:
            _check_values(want[key], have[key], exercise, f"{where}[{key!r}]")
    for key in want:
        if key not in have:
            raise WrongAnswer(
                f"values{where}: the key {key!r} is missing; there are "
                f"{', '.join(map(repr, have)) or 'none'}"
            )
    for key in have:
        if key not in want:
            raise WrongAnswer(
                f"values{where}: the key {key!r} is not asked for; expected "
                + (f"only {', '.join(map(repr, want))}" if want else "an empty dict")
            )


def _plain(spec):
    """What a spec says, however it is spelled: `P("x", None)`, `P(("x",))` and `P("x")` are the
    same.
    """
    entries = [entry if not isinstance(entry, (tuple, list)) else tuple(entry) for entry in spec]
    entries = [
        entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry or None
        for entry in entries
    ]
    while entries and entries[-1] is None:
        entries.pop()
    return entries, *(
        getattr(spec, name, frozenset()) or frozenset() for name in ("unreduced", "reduced")
    )


def _plain_text(text):
    """A text without its spaces if it is an array's type, whose dtype is then its short name."""
    if isinstance(text, str) and (
        match := re.fullmatch(r"\s*~?([a-z]+\d+\w*|bool)\s*\[(.*)", text, re.DOTALL)
    ):
        return f"{short_dtype(match[1])}[{''.join(match[2].split())}"
    return text


def _difference(want, have, exercise):
    """What is wrong with one value, or None."""
    if isinstance(have, (tuple, list)) and _are_numbers(have) and _shape(have) == np.shape(want):
        have = np.asarray(have)
    if isinstance(have, (tuple, list, dict)):
        return f"expected {_kind(want, shown=False)}, got {_kind(have)}"
    if isinstance(have, jax.Array) and (apart := _replicas_that_differ(have, exercise)):
        return apart
    if isinstance(want, jax.Array) and not want.is_fully_addressable:
        raise ValueError(
            "the wanted value is an array of several processes, of which this one stores a "
            "part: give Exercise all of it, as a NumPy array"
        )
    if isinstance(have, jax.Array) and not have.is_fully_addressable:
        return _difference_of_shards(_numpy(want), have, exercise)
    given, wanted, want, have = have, want, _numpy(want), _numpy(have)
    if _is_other(want) or _is_other(have):  # text, not numbers
        want, have = _plain_text(want.tolist()), _plain_text(have.tolist())
        same = not _has_arrays(have) and want == have
        return None if same else f"expected {_kind(wanted)}, got {_kind(given)}"
    if want.shape != have.shape:
        return f"expected shape {want.shape}, got {have.shape}"
    if problem := _difference_of_dtypes(wanted, given, exercise):
        return problem
    close = _are_close(want, have, exercise)
    if close.all():
        return None
    if not want.shape:
        return f"expected {want.item()}, got {have.item()}{_times(want, have, exercise)}"
    wrong = np.argwhere(~close)
    place = tuple(wrong[0].tolist())
    return (
        f"{len(wrong)} of {want.size} differ, the first at {list(place)}: "
        f"expected {want[place].item()}, got {have[place].item()}{_times(want, have, exercise)}"
    )


def _is_other(array):
    """Whether an array holds no numbers, but text, dates, records or objects."""
    return array.dtype.kind in "OUSMm" or array.dtype.names is not None


def _are_close(want, have, exercise):
    """For each element whether it is right: whole numbers, such as counts and bytes, are exact."""
    if want.dtype.kind not in "iub":
        return np.isclose(have, want, rtol=exercise.rtol, atol=exercise.atol, equal_nan=True)
    if have.dtype.kind in "iub":
        return have == want
    if exercise.rtol != _RTOL:  # this exercise allows more, or less
        return np.isclose(have, want, rtol=exercise.rtol, atol=exercise.atol)
    rounding = 2 * np.finfo(have.dtype).eps if have.dtype.kind in "fc" else 0
    return np.isclose(have, want, rtol=max(_EXACT, rounding), atol=exercise.atol)


def _are_numbers(items):
    kinds = (bool, int, float, complex, np.generic)
    return all(
        _are_numbers(item) if isinstance(item, (tuple, list)) else isinstance(item, kinds)
        for item in items
    )


def _shape(items):
    """The shape of nested lists of numbers; None where their lengths differ."""
    try:
        return np.shape(items)
    except ValueError:
        return None


def _difference_of_dtypes(want, have, exercise):
    """Whether an array has the wrong dtype; a Python number, and a wanted value made of one, have
    none of their own.
    """
    dtype = None if exercise.dtype is None else jnp.dtype(exercise.dtype)
    # keys have none
    if dtype is None and isinstance(want, jax.Array) and not getattr(want, "weak_type", False):
        dtype = want.dtype
    if dtype is None or not hasattr(have, "dtype"):
        return None
    # NumPy computes in 64 bits what JAX keeps in 32: its arrays count as what JAX makes of them.
    got = have.dtype if isinstance(have, jax.Array) else jnp.result_type(have)
    return None if got == dtype else f"expected dtype {dtype.name}, got {got.name}"


def _difference_of_shards(want, have, exercise):
    """What is wrong with the shards that this process stores of an array of several processes, or
    None.
    """
    if want.shape != have.shape:
        return f"expected shape {want.shape}, got {have.shape}"
    for shard in have.addressable_shards:
        if problem := _difference(want[shard.index], shard.data, exercise):
            return f"in the shard of device {device_number(shard.device)}, {problem}"
    return None


def _replicas_that_differ(array, exercise):
    """A program with check_vma=False can make an array whose replicas differ; NumPy would read only
    one of them.
    """
    seen = {}
    for shard in array.addressable_shards:
        first = seen.setdefault(str(shard.index), shard)
        replica, other = _numpy(first.data), _numpy(shard.data)
        if first is not shard and not np.allclose(
            replica, other, exercise.rtol, exercise.atol, equal_nan=True
        ):
            return (
                f"devices {device_number(first.device)} and {device_number(shard.device)} "
                "should store replicas of the same shard, but their values differ"
            )
    return None


def _times(want, have, exercise):
    """The usual mistake in parallel programs: the result is off by a factor that is a number of
    devices.
    """
    if want.dtype.kind not in "fc":
        return ""
    for n in range(2, 65):
        if np.allclose(have, n * want, rtol=exercise.rtol, atol=exercise.atol):
            return (
                f" (every value is {n} times what it should be: was it summed over too many "
                "devices?)"
            )
        if np.allclose(n * have, want, rtol=exercise.rtol, atol=exercise.atol):
            return f" (every value is 1/{n} of what it should be: is a sum over devices missing?)"
    return ""


def _check_layout(answer, layout, where=""):
    """Compare the layouts of an answer's arrays with one layout for all of them, or with a
    structure of layouts.
    """
    if _is_layout(layout):
        for place, leaf in zip(_places(answer), jax.tree.leaves(answer), strict=True):
            _check_one_layout(leaf, layout, where + place)
    elif isinstance(layout, dict):
        if not isinstance(answer, dict) or answer.keys() != layout.keys():
            keys = f"a dict with {', '.join(map(repr, layout))}"
            raise _Misplaced(f"layout{where}: expected {keys}, got {_kind(answer)}")
        for key in layout:
            _check_layout(answer[key], layout[key], f"{where}[{key!r}]")
    elif isinstance(layout, (tuple, list)):
        if not isinstance(answer, (tuple, list)) or len(answer) != len(layout):
            raise _Misplaced(
                f"layout{where}: expected {_kind(layout, shown=False)}, got {_kind(answer)}"
            )
        for place, (want, have) in enumerate(zip(layout, answer, strict=True)):
            _check_layout(have, want, f"{where}[{place}]")
    else:
        leaves, structure = jax.tree.flatten(answer)
        layouts, layout_structure = jax.tree.flatten(layout, is_leaf=_is_layout)
        if layout_structure != structure:
            raise _Misplaced(
                f"layout{where}: expected the structure of {_kind(layout)}, got {_kind(answer)}"
            )
        for place, want, have in zip(_places(answer), layouts, leaves, strict=True):
            _check_one_layout(have, want, where + place)


def _check_one_layout(have, want, place):
    if want is None:  # any layout
        return
    if have is ...:
        raise WrongAnswer(f"layout{place}: {_DOTS}")
    if not isinstance(have, jax.Array):
        raise _Misplaced(
            f"layout{place}: expected a jax.Array, got {_kind(have)}, which is stored on no "
            "device; place it, such as with jax.device_put"
        )
    try:
        if isinstance(want, jax.sharding.PartitionSpec):
            if not isinstance(have.sharding, jax.sharding.NamedSharding):
                raise _Misplaced(
                    f"layout{place}: expected {want} on a mesh, but the array is on no mesh: "
                    f"{describe(have)}"
                )
            want = jax.sharding.NamedSharding(have.sharding.mesh, want)
        usual = next(iter(have.devices())).default_memory().kind
        memory, wanted_memory = have.sharding.memory_kind or usual, want.memory_kind or usual
        if memory != wanted_memory:
            raise _Misplaced(
                f"layout{place}: expected the array in the memory {wanted_memory!r}, but it "
                f"is in {memory!r}"
            )
        same = same_layout(have, want)
    except ValueError as error:  # another shape than the layout is for, or another mesh
        raise _Misplaced(f"layout{place}: {error}") from None
    if not same:
        raise _Misplaced(f"layout{place}: {_first_misplaced(have, want)}")


def _check_communication(moves, exercise):
    allowed = exercise.communication
    for kind, count in moves.items() if allowed is not None else ():
        if count is None or count > allowed.get(kind, 0):
            most = " and ".join(counted(number, kind) for kind, number in allowed.items())
            limit = f"run at most {most}" if most else "not communicate"
            raise WrongAnswer(
                f"communication: your program may {limit}, but compiled it has\n{moves}"
            )
    if exercise.max_bytes is not None and (moves.bytes is None or moves.bytes > exercise.max_bytes):
        raise WrongAnswer(
            f"communication: each device may send {exercise.max_bytes:,} bytes, but\n{moves}"
        )


def _check_never(types, never):
    """Whether a program has an array that is too large, in this shape or in another."""
    for banned in never:
        if array_types(banned) != (banned,):
            raise ValueError(
                f"never: {banned!r} is no type of an array as programs print it, such as f32[64,48]"
            )
        dtype, limit = _elements(banned)
        for other in types:
            kind, count = _elements(other)
            if kind == dtype and count >= limit:
                also = (
                    ""
                    if other == banned
                    else f" or as many elements in another shape, but each holds {other}"
                )
                raise WrongAnswer(
                    f"memory: no device may hold {banned}{also or ', but each does'} in the "
                    "compiled program"
                )


def _elements(array_type):
    """A type's dtype and number of elements: those of "f32[64,48]" are "f32" and 3072."""
    dtype, dims = array_type.rstrip("]").split("[")
    return dtype, math.prod(int(dim.lstrip("<=")) for dim in dims.split(",") if dim)


def _fullest(answer):
    """Bytes of the answer's arrays on the device that stores most of them."""
    sizes = {}
    for leaf in jax.tree.leaves(answer):
        if not isinstance(leaf, jax.Array):
            raise WrongAnswer(
                f"memory: expected JAX arrays, got {_kind(leaf)}, which is stored on no device"
            )
        for shard in leaf.addressable_shards:
            sizes[shard.device] = sizes.get(shard.device, 0) + shard.data.nbytes
    return max(sizes.values(), default=0)


def _first_misplaced(have, want):
    expected, got = describe(want, have.shape, have.dtype), describe(have)
    indices = {shard.device: shard.index for shard in got.shards}
    for shard in expected.shards:
        if indices.get(shard.device) != shard.index:
            mine = (
                f"stores {index_text(indices[shard.device])}"
                if shard.device in indices
                else "stores nothing"
            )
            return (
                f"expected {expected.type} on {len(expected.shards)} devices, got {got.type} "
                f"on {len(got.shards)}; device {shard.device} {mine} and should store "
                f"{index_text(shard.index)}"
            )
    if len(expected.shards) == len(got.shards):  # partial sums, which only the types say
        return f"expected {expected.type}, got {got.type}"
    return f"expected {len(expected.shards)} devices, got {len(got.shards)}, more than asked for"


def _is_layout(leaf):
    return isinstance(leaf, (jax.sharding.Sharding, jax.sharding.PartitionSpec)) or leaf is None


def _numpy(value):
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name.startswith(("bfloat", "float8")) else array


def _places(tree):
    """Where each leaf is, such as "['loss']"; empty for a tree that is one leaf."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _kind(value, *, shown=True):
    """A value in words: what the reader wrote where that is short, and otherwise what sort of value
    it is.
    """
    if isinstance(value, jax.sharding.PartitionSpec):
        return str(value)
    if isinstance(value, (tuple, list, dict)):
        sort, text = f"a {type(value).__name__} of {len(value)}", repr(value)
        short = shown and value and len(text) <= 60 and "\n" not in text and not _has_arrays(value)
        return f"{sort}, {text}" if short else sort
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return f"random keys of shape {value.shape}"
        if value.shape:
            return f"an array of shape {value.shape}"
        value = value.item()
    if isinstance(value, jax.ShapeDtypeStruct):
        return "a jax.ShapeDtypeStruct without values"
    if isinstance(value, (str, bool, int, float, complex)) or value is None or value is ...:
        return repr(value)
    if inspect.isroutine(value) or (callable(value) and hasattr(value, "__wrapped__")):
        return f"the function {value.__name__} in place of its result"
    return type(value).__name__


def _has_arrays(value):
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (tuple, list)):
        return any(map(_has_arrays, value))
    return hasattr(value, "shape")
