"""Check the answer to an exercise: its values, its layout, its communication and its memory.

An exercise specifies a right answer by its properties, so every way of writing it is accepted:

    exercise = Exercise(value=A, layout=NamedSharding(mesh, P("x", "y")))
    answer = ...                            # the reader's line
    check(answer, exercise)                 # prints "Not solved yet" until there is one

The folded solution ends with `check(answer, exercise, strict=True)`, which raises unless the answer is right, so
building the book proves every solution.
"""

import io
import re
import textwrap
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from shardlab.comms import collectives, compile_for
from shardlab.hlo import array_types
from shardlab.layout import describe, device_number, index_text, same_layout

__all__ = ["Exercise", "NotSolved", "WrongAnswer", "check", "raises"]


class WrongAnswer(AssertionError):
    """The answer is not what the exercise asks for; the message says how it differs."""


class NotSolved(WrongAnswer):
    """There is no answer yet: the stub still contains its three dots."""


@dataclass(frozen=True)
class Exercise:
    """The specification of a right answer.

    `Exercise(value=A, layout=NamedSharding(mesh, P("x", "y")))` asks for an array equal to A, whose rows are
    sharded over mesh axis x and whose columns are sharded over y.

    Attributes:
      value: what the answer must equal: an array, a number, or any tuple, list or dict of them.
        Arrays may be of any kind; their layout is not compared here.
      layout: the layout that the answer's arrays must have: a sharding (or a `PartitionSpec`, read on the
        answer's own mesh) for all of them, or a structure like the answer's; None where any layout will do.
      args: if given, the answer is a function, and its result for these arguments is checked.
      communication: how often the compiled function may run each collective, such as `{"all-reduce": 1}`;
        no others are allowed, and none at all if `{}`. For answers that are functions.
      max_bytes: how many bytes each device may send in one call, by the ring model of `shardlab.comms`. For answers
        that are functions.
      max_flops: how many floating-point operations each device may do in one call, as the compiler counts
        them: a loop's body once. For answers that are functions.
      max_held: how many bytes of the answer each device may store.
      never: types of arrays that no device may hold while the function runs, such as `("f32[64,48]",)`.
      rtol, atol: the relative and the absolute tolerance of a comparison.
    """

    value: Any = None
    layout: Any = None
    args: tuple | None = None
    communication: dict | None = None
    max_bytes: int | None = None
    max_flops: float | None = None
    max_held: int | None = None
    never: tuple[str, ...] = ()
    rtol: float = 1e-5
    atol: float = 1e-6


def check(answer, exercise, *, strict=False):
    """Check an answer and print what was found.

    With `exercise = Exercise(value=np.arange(4.0))`, `check(..., exercise)` prints "Not solved yet",
    `check(jnp.arange(4.0), exercise)` prints "Right: the values agree.", and
    `check(4 * jnp.arange(4.0), exercise)` raises, because every value is 4 times what it should be.

    Args:
      answer: the reader's answer; `...`, None, or a function that returns one of them, if there is none.
      exercise: the specification of a right answer, an `Exercise`.
      strict: raise if there is no answer, instead of printing so.

    Raises:
      WrongAnswer: the answer is wrong (an `AssertionError`).
      NotSolved: there is none, and `strict` is set.
      Exception: whatever the answer itself raises, if it is a function.
    """
    function = None
    if exercise.args is not None and isinstance(answer, Callable):
        function, answer = answer, answer(*exercise.args)
    elif exercise.args is not None and not _is_stub(answer, ...):
        raise WrongAnswer(f"the answer must be a function, not {_kind(answer)}")
    if _is_stub(answer, exercise.value if exercise.value is not None else ...):
        message = "Not solved yet: replace the three dots, and run the cell again."
        if strict:
            raise NotSolved(message)
        print(message)
        return

    found = []
    if exercise.value is not None:
        _check_values(exercise.value, answer, exercise)
        found.append("the values agree")
    if exercise.layout is not None:
        _check_layout(answer, exercise.layout)
        found.append("every device stores the right shard")
    if exercise.max_held is not None:
        held = _fullest(answer)
        if held > exercise.max_held:
            raise WrongAnswer(
                f"memory: a device may store {exercise.max_held:,} bytes of the answer, but one stores {held:,}"
            )
        found.append("no device stores more than allowed")
    if (exercise.communication, exercise.max_bytes, exercise.max_flops, exercise.never) != (None, None, None, ()):
        if function is None:
            raise ValueError(
                "communication, max_bytes, max_flops and never are for answers that are functions: give Exercise args"
            )
        compiled = compile_for(function, *exercise.args)
    if exercise.communication is not None or exercise.max_bytes is not None:
        _check_communication(collectives(compiled), exercise)
        found.append("the communication is within the limit")
    if exercise.max_flops is not None:
        work = compiled.cost_analysis()["flops"]
        if work > exercise.max_flops:
            raise WrongAnswer(f"FLOPs: each device may do {exercise.max_flops:,.0f}, but does {work:,.0f}")
        found.append("no device does more FLOPs than allowed")
    if exercise.never:
        types = array_types(compiled.as_text())
        for held in exercise.never:
            if array_types(held) != (held,):
                raise ValueError(f"never: {held!r} is no type of an array as programs print it, such as f32[64,48]")
            if held in types:
                raise WrongAnswer(f"memory: no device may hold {held}, but each does in the compiled program")
        found.append("no device holds an array that it must not hold")
    if not found:
        raise ValueError("this exercise accepts anything: give Exercise a value, a layout, or both")
    print(f"Right: {', '.join(found[:-1])}{' and ' * (len(found) > 1)}{found[-1]}.")


@contextmanager
def raises(kind):
    """Show an error on purpose: print its message and continue; fail if there is no error.

        with raises(ZeroDivisionError) as error:
            1 / 0

    prints "ZeroDivisionError: division by zero", and after the block `error.message` can be asserted on.

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
    # Some versions of JAX print, and add to the message, the file and line of the error; in a notebook
    # that is the name of a temporary file, of no use to a reader.
    print(re.sub(r"^(\S+|.*\.py):\d+:\d+ \(.*\)\n", "", printed.getvalue(), flags=re.MULTILINE), end="")
    if caught is None:
        raise AssertionError(f"expected {kind.__name__}, but nothing was raised")
    message = re.sub(r"\s*This error occurs at source:.*", "", str(caught), flags=re.DOTALL)
    seen.message = re.sub(r"(<\w+>|\b\w+) at /.*?\.py:\d+", r"\1", message)
    print(textwrap.fill(f"{type(caught).__name__}: {' '.join(seen.message.split())}", 80))


def _is_stub(answer, want):
    """Whether there are still three dots somewhere, or None where something is expected."""
    if isinstance(answer, dict):
        inside = want if isinstance(want, dict) else {}
        return any(_is_stub(item, inside.get(key, ...)) for key, item in answer.items())
    if isinstance(answer, (tuple, list)) and not isinstance(answer, jax.sharding.PartitionSpec):
        inside = want if isinstance(want, (tuple, list)) and len(want) == len(answer) else [...] * len(answer)
        return any(_is_stub(item, part) for item, part in zip(answer, inside, strict=True))
    return answer is ... or (answer is None and want is not None)


def _check_values(want, have, exercise, where=""):
    """Compare one value after the other, so that the message can say which one is wrong."""
    if isinstance(want, jax.sharding.PartitionSpec):  # in some versions of JAX a tuple, but one value here
        if want != have:
            raise WrongAnswer(f"values{where}: expected {want}, got {have}")
    elif isinstance(want, dict):
        if not isinstance(have, dict):
            raise WrongAnswer(f"values{where}: expected a dict, got {_kind(have)}")
        keys = [f"{key!r} is missing" for key in want if key not in have]
        keys += [f"{key!r} is not expected" for key in have if key not in want]
        if keys:
            raise WrongAnswer(f"values{where}: the keys should be {list(want)!r}; {keys[0]}")
        for key in want:
            _check_values(want[key], have[key], exercise, f"{where}[{key!r}]")
    elif isinstance(want, (tuple, list)):
        if not isinstance(have, (tuple, list)) or len(have) != len(want):
            raise WrongAnswer(f"values{where}: expected {_kind(want)}, got {_kind(have)}")
        for place, (one, other) in enumerate(zip(want, have, strict=True)):
            _check_values(one, other, exercise, f"{where}[{place}]")
    elif not jax.tree_util.all_leaves([want]):  # a training state, or another structure known to JAX
        if jax.tree.structure(want) != jax.tree.structure(have):
            raise WrongAnswer(f"values{where}: expected the structure of {_kind(want)}, got {_kind(have)}")
        _check_values(jax.tree.leaves(want), jax.tree.leaves(have), exercise, where)
    elif problem := _difference(want, have, exercise):
        raise WrongAnswer(f"values{where}: {problem}")


def _difference(want, have, exercise):
    """What is wrong with one value, or None."""
    if isinstance(have, (tuple, list, dict)):
        return f"expected {_kind(want)}, got {_kind(have)}"
    if isinstance(have, jax.Array) and (apart := _replicas_that_differ(have, exercise)):
        return apart
    want, have = _numpy(want), _numpy(have)
    if want.dtype.kind in "OUS" or have.dtype.kind in "OUS":  # text, not numbers
        return None if np.array_equal(want, have) else f"expected {want.tolist()!r}, got {have.tolist()!r}"
    if want.shape != have.shape:
        return f"expected shape {want.shape}, got {have.shape}"
    if want.dtype.kind in "iub" and have.dtype.kind in "iub":
        close = have == want  # counts and bytes are exact
    else:
        close = np.isclose(have, want, rtol=exercise.rtol, atol=exercise.atol, equal_nan=True)
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


def _replicas_that_differ(array, exercise):
    """A program with check_vma=False can make an array whose replicas differ; NumPy would read only one of them."""
    seen = {}
    for shard in array.addressable_shards:
        first = seen.setdefault(str(shard.index), shard)
        one, other = _numpy(first.data), _numpy(shard.data)
        if first is not shard and not np.allclose(one, other, exercise.rtol, exercise.atol, equal_nan=True):
            return (
                f"devices {device_number(first.device)} and {device_number(shard.device)} should store replicas of "
                "the same shard, but their values differ"
            )
    return None


def _times(want, have, exercise):
    """The usual mistake in parallel programs: the result is off by a factor that is a number of devices."""
    if want.dtype.kind not in "fc":
        return ""
    for n in range(2, 65):
        if np.allclose(have, n * want, rtol=exercise.rtol, atol=exercise.atol):
            return f" (every value is {n} times what it should be: was it summed over too many devices?)"
        if np.allclose(n * have, want, rtol=exercise.rtol, atol=exercise.atol):
            return f" (every value is 1/{n} of what it should be: is a sum over devices missing?)"
    return ""


def _check_layout(answer, layout):
    leaves, structure = jax.tree.flatten(answer)
    if _is_layout(layout):
        layouts = [layout] * len(leaves)
    else:
        layouts, layout_structure = jax.tree.flatten(layout, is_leaf=_is_layout)
        if layout_structure != structure:
            raise WrongAnswer(f"layout: expected the structure {layout_structure}, got {structure}")
    for place, want, have in zip(_places(answer), layouts, leaves, strict=True):
        if want is None:  # any layout
            continue
        if not isinstance(have, jax.Array):
            raise WrongAnswer(f"layout{place}: expected a jax.Array, got {_kind(have)}, which is stored on no device")
        try:
            if isinstance(want, jax.sharding.PartitionSpec):
                if not isinstance(have.sharding, jax.sharding.NamedSharding):
                    raise WrongAnswer(
                        f"layout{place}: expected {want} on a mesh, but the array is on no mesh: {describe(have)}"
                    )
                want = jax.sharding.NamedSharding(have.sharding.mesh, want)
            same = same_layout(have, want)
        except ValueError as error:  # another shape than the layout is for, or another mesh
            raise WrongAnswer(f"layout{place}: {error}") from None
        if not same:
            raise WrongAnswer(f"layout{place}: {_first_misplaced(have, want)}")


def _check_communication(found, exercise):
    allowed = exercise.communication
    for kind, count in found.items() if allowed is not None else ():
        if count is None or count > allowed.get(kind, 0):
            raise WrongAnswer(
                f"communication: at most {allowed or 'none'} is allowed, but the compiled program has\n{found}"
            )
    if exercise.max_bytes is not None and (found.bytes is None or found.bytes > exercise.max_bytes):
        raise WrongAnswer(f"communication: each device may send {exercise.max_bytes:,} bytes, but\n{found}")


def _fullest(answer):
    """Bytes of the answer's arrays on the device that stores most of them."""
    held = {}
    for leaf in jax.tree.leaves(answer):
        if not isinstance(leaf, jax.Array):
            raise WrongAnswer(f"memory: expected JAX arrays, got {_kind(leaf)}, which is stored on no device")
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values(), default=0)


def _first_misplaced(have, want):
    wanted, got = describe(want, have.shape, have.dtype), describe(have)
    held = {shard.device: shard.index for shard in got.shards}
    for shard in wanted.shards:
        if held.get(shard.device) != shard.index:
            mine = f"stores {index_text(held[shard.device])}" if shard.device in held else "stores nothing"
            return (
                f"expected {wanted.type} on {len(wanted.shards)} devices, got {got.type} on {len(got.shards)}; "
                f"device {shard.device} {mine} and should store {index_text(shard.index)}"
            )
    return f"expected {len(wanted.shards)} devices, got {len(got.shards)}, more than asked for"


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


def _kind(value):
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"an array of shape {value.shape}" if hasattr(value, "shape") else type(value).__name__
