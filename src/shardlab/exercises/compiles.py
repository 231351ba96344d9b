"""Assert that a jitted function compiles once for several calls, and say which argument makes it
compile again.

    assert_compiles_once(step, (state, batch), (state, next_batch))
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardlab._arguments import short

__all__ = ["assert_compiles_once", "what_differs"]

_COUNTS = []  # of the calls in progress, each a list of one number
_LISTENS = []  # whether JAX tells us of compilations, as it does from the first use on
_SHOWN = 8  # differences that a message lists


def assert_compiles_once(f: Callable, *calls: tuple | Mapping[str, Any]) -> int:
    """Assert that `f` compiles at most once in these calls, which it runs in order.

    `jax.jit` keeps a program for each combination of shapes, dtypes, weak types, shardings, static
    arguments and trees of arguments that it is called with, and for whether arrays are committed to
    their devices. A call with another combination compiles again.

    >>> f = jax.jit(lambda x, scale: x * scale)
    >>> assert_compiles_once(f, (jnp.ones(8), 2.0), (jnp.zeros(8), 3.0))
    1
    >>> assert_compiles_once(f, (jnp.ones(8), 2.0), (jnp.ones(6), 2.0))
    Traceback (most recent call last):
        ...
    AssertionError: <lambda> compiles again in call 2 of 2. Compared with call 1:
      x: shape (8,), now (6,): pad it to one of a few shapes

    Args:
      f: a function that `jax.jit` has made, or one that it can be given.
      *calls: for each call its arguments, as a tuple; or as a mapping of their names. What `f`
        donates is gone afterwards.

    Returns:
      How often it compiled: 1, or 0 if it had compiled for such arguments before. A program that
      comes from the compilation cache on disk counts.

    Raises:
      AssertionError: a later call compiles again; the message says which arguments differ from an
        earlier call, and how.
      ValueError: there are fewer than two calls, or an argument was donated in an earlier one.
      TypeError: a call is neither a tuple nor a mapping.
    """
    __tracebackhide__ = True
    if len(calls) < 2:
        raise ValueError(
            f"assert_compiles_once() got {len(calls)} call(s) to compare; give at least two, such "
            "as (state, batch), (state, next_batch)"
        )
    for number, call in enumerate(calls, 1):
        if not isinstance(call, tuple | Mapping):
            raise TypeError(
                f"call {number} is of type {type(call).__name__}; give its arguments as a tuple, "
                "such as (x,), or as a mapping of their names"
            )
    jitted = f if hasattr(f, "lower") else jax.jit(f)
    name, seen, total = getattr(f, "__name__", repr(f)), [], 0
    for number, call in enumerate(calls, 1):
        leaves = _leaves(f, _parts(call), number)
        compiled = _compilations(jitted, call)
        total += compiled
        if compiled and number > 1:
            each = (_differences(one, leaves) for one in seen)
            earlier, found = min(
                ((n, found or values) for n, (found, values) in enumerate(each, 1)),
                key=lambda pair: len(pair[1]),
            )
            raise AssertionError(_message(name, number, len(calls), earlier, found))
        seen.append(leaves)
    return total


def what_differs(f: Callable, call: Any, later: Any) -> tuple[list[str], list[str]]:
    """What differs between two calls of which neither runs: for this `f` compiles again.

    >>> x = jax.ShapeDtypeStruct((8,), "float32")
    >>> what_differs(jnp.tanh, ((x,), {}), ((jnp.ones(6),), {}))[0]
    ['x: shape (8,), now (6,): pad it to one of a few shapes']

    Args:
      f: the function.
      call, later: the arguments of each call, and those given by name. They may be
        `jax.ShapeDtypeStruct`s: one with a sharding is committed to its devices.

    Returns:
      The differences for which it compiles in any case, each with what to do; and those of numbers
      and of what is no array, which only matter where they are static.

    Raises:
      ValueError: an argument is deleted, as donated arrays are.
    """
    return _differences(_leaves(f, call, 1), _leaves(f, later, 2))


def _parts(call):
    """The arguments of a call, and those by name."""
    return ((), dict(call)) if isinstance(call, Mapping) else (call, {})


def _compilations(jitted, call):
    """How many programs are compiled while a call runs."""
    if not _LISTENS:
        _LISTENS.append(True)
        jax.monitoring.register_event_duration_secs_listener(_heard)
    _COUNTS.append([0])
    try:
        args, kwargs = _parts(call)
        results = jitted(*args, **kwargs)
        jax.block_until_ready(results)
    finally:
        count = _COUNTS.pop()[0]
    return count


def _heard(event, seconds, **_):
    if "backend_compile" in event:
        for count in _COUNTS:
            count[0] += 1


@dataclass(frozen=True)
class _Leaf:
    """What `jit` looks at in an array or a number."""

    value: Any
    shape: tuple | None  # None: no array, such as a static argument
    dtype: str
    weak: bool
    committed: bool | None  # None: not of JAX
    sharding: Any
    layout: str


def _leaves(f, call, number):
    """The arrays and numbers of a call by name, such as "batch['x']"."""
    args, kwargs = call
    named = _named(f, args, kwargs) if args else dict(kwargs)
    leaves = {}
    for name, value in named.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            place = f"{name}{jax.tree_util.keystr(path)}"
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise ValueError(
                    f"call {number}: {place} is deleted, perhaps because an earlier call donated "
                    "it; give each call an array of its own"
                )
            leaves[place] = _leaf(leaf)
        leaves[f"the tree of {name}"] = str(jax.tree.structure(value))
    return leaves


def _named(f, args, kwargs):
    try:
        return dict(inspect.signature(f).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # no signature, or another number of arguments
        return {f"argument {number}": value for number, value in enumerate(args)} | kwargs


def _leaf(value):
    try:
        like = jax.eval_shape(lambda one: one, value)
    except TypeError:
        return _Leaf(value, None, "", False, None, None, "")
    is_array = isinstance(value, jax.Array | jax.ShapeDtypeStruct)
    form = getattr(value, "format", None) if isinstance(value, jax.Array) else None
    order = getattr(getattr(form, "layout", None), "major_to_minor", "")
    return _Leaf(
        value if like.shape == () and not is_array else None,
        like.shape,
        str(like.dtype),
        bool(getattr(like, "weak_type", False)),
        getattr(value, "committed", value.sharding is not None) if is_array else None,
        value.sharding if is_array else None,
        str(order),
    )


def _differences(before, after):
    """What differs between two calls, with what to do; and the values of numbers and of what is no
    array that differ.
    """
    found, values = [], []
    for place in [*before, *(place for place in after if place not in before)]:
        one, other = before.get(place), after.get(place)
        if isinstance(one, str) or isinstance(other, str):  # a tree
            if one != other and one and other:
                found.append(f"{place}: {short(one)}, now {short(other)}: give it the same tree")
            continue
        if one is None or other is None:
            found.append(f"{place} is in {'this' if one is None else 'that'} call alone")
            continue
        found += [f"{place}: {how}" for how in _of_leaves(one, other)]
        if type(one.value) is not type(other.value) or not _equal(one.value, other.value):
            values.append(
                f"{place}: {short(one.value)}, now {short(other.value)}: if it is static, each "
                "value has a program of its own; give a number that changes as an array"
            )
    return found, values


def _equal(one, other):
    try:
        return bool(np.all(one == other))
    except Exception:  # a value of any class
        return one is other


def _of_leaves(one, other):
    if one.shape != other.shape and None not in (one.shape, other.shape):
        yield f"shape {one.shape}, now {other.shape}: pad it to one of a few shapes"
    if one.dtype != other.dtype:
        yield f"dtype {one.dtype}, now {other.dtype}: convert it before the call"
    elif one.weak != other.weak:
        kinds = ["of its own dtype", "weakly typed, as a Python number is"]
        yield f"{kinds[one.weak]}, now {kinds[other.weak]}: give it a dtype, as jnp.float32(x) does"
    if bool(one.committed) != bool(other.committed):
        kinds = ["on no device that it must stay on", "committed to its devices"]
        yield (
            f"{kinds[bool(one.committed)]}, now {kinds[bool(other.committed)]}: place it by "
            "jax.device_put in every call"
        )
    elif one.committed and not _same_sharding(one, other):
        yield (
            f"sharding {_written(one.sharding)}, now {_written(other.sharding)}: place it by "
            "jax.device_put, or return it so by out_shardings"
        )
    elif (
        "" not in (one.layout, other.layout)  # as that of a jax.ShapeDtypeStruct is
        and one.layout != other.layout
        and one.shape == other.shape
        and one.committed
    ):
        yield f"layout {one.layout}, now {other.layout}: keep one order of its dimensions"


def _same_sharding(one, other):
    """Whether shardings are one to a compiler: P("d") and P("d", None) are."""
    if one.shape != other.shape:
        return _written(one.sharding) == _written(other.sharding)
    meshes = [getattr(leaf.sharding, "mesh", None) for leaf in (one, other)]
    types = [getattr(mesh, "axis_types", None) for mesh in meshes]
    return types[0] == types[1] and one.sharding.is_equivalent_to(other.sharding, len(one.shape))


def _written(sharding):
    if not isinstance(sharding, NamedSharding):
        return f"on {', '.join(sorted(map(str, sharding.device_set)))}"
    axes = ", ".join(f"{name}: {size}" for name, size in sharding.mesh.shape.items())
    kinds = ", ".join(str(getattr(kind, "name", kind)) for kind in sharding.mesh.axis_types)
    return f"P{tuple(sharding.spec)} on a mesh of {axes} ({kinds})"


def _message(name, number, count, earlier, found):
    lines = [f"  {one}" for one in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more")
    if not found:
        lines = ["  no argument differs: it compiles for something that it closes over, or reads"]
    head = f"{name} compiles again in call {number} of {count}. Compared with call {earlier}:"
    return "\n".join([head, *lines])
