"""Assert that a jitted function compiles once for several calls, and say which argument makes it
compile again.

    assert_compiles_once(step, (state, batch), (state, next_batch))
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from shardlab.exercises.differences import differences, leaves_of

__all__ = ["assert_compiles_once"]

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
        leaves = leaves_of(f, _parts(call), number)
        compiled = _compilations(jitted, call)
        total += compiled
        if compiled and number > 1:
            each = (differences(one, leaves) for one in seen)
            earlier, found = min(
                ((n, found or values) for n, (found, values) in enumerate(each, 1)),
                key=lambda pair: len(pair[1]),
            )
            raise AssertionError(_message(name, number, len(calls), earlier, found))
        seen.append(leaves)
    return total


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


def _message(name, number, count, earlier, found):
    lines = [f"  {one}" for one in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more")
    if not found:
        lines = ["  no argument differs: it compiles for something that it closes over, or reads"]
    head = f"{name} compiles again in call {number} of {count}. Compared with call {earlier}:"
    return "\n".join([head, *lines])
