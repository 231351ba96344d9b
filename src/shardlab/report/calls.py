"""Judge what the arguments of a program become in its next call.

Each function that begins with `of_` yields a `Finding` for each fault, as those of
`shardlab.report.findings` do.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from shardlab.arrays.layout import bytes_text
from shardlab.exercises.differences import what_differs
from shardlab.programs.inherited import LAYOUT
from shardlab.programs.kernels import inner_jaxprs
from shardlab.report.findings import Finding, unused_donations

__all__ = [
    "of_later_call",
    "of_next_call",
    "of_returned_on_a_mesh",
    "of_unplaced_data",
    "of_unused_donations",
]

_SHOWN = 4  # differences that a finding lists


def of_next_call(
    arguments: Sequence[Any], results: Sequence[Any], jaxpr: Any, found: Sequence[Finding]
) -> Iterator[Finding]:
    """What the next call meets, beside what has been found of it.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      jaxpr: the traced function; None if unknown.
      found: the findings so far.
    """
    if not any(finding.title == "donation not used" for finding in found):
        yield from of_unused_donations(arguments, results)
    if jaxpr is not None:
        yield from of_returned_on_a_mesh(arguments, results, jaxpr)


def of_later_call(f: Any, call: tuple, later: tuple) -> Iterator[Finding]:
    """A later call for which jit compiles again, with the arguments that differ.

    Args:
      f: the function, jitted or not.
      call, later: the arguments of the two calls, and those given by name.
    """
    differing, values = what_differs(f, call, later)
    if values and not differing and hasattr(f, "trace"):
        # JAX keeps what it has traced: a number that is no static argument traces nothing anew
        one, other = (f.trace(*args, **kwargs).jaxpr for args, kwargs in (call, later))
        differing = values if one is not other else []
    if differing:
        more = len(differing) - _SHOWN
        yield Finding(
            "compiles again",
            f"for the later call jit compiles again: {'; '.join(differing[:_SHOWN])}"
            + (f"; and {more} more" if more > 0 else ""),
        )


def of_unused_donations(arguments: Sequence[Any], results: Sequence[Any]) -> Iterator[Finding]:
    """Donated arrays that no result can replace, although they are small, where they are most of
    those that are donated.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
    """
    donated = [array for array in arguments if array.donated]
    unused = unused_donations(arguments, results)
    if unused and 2 * len(unused) >= len(donated):
        first = max(unused, key=lambda array: array.bytes)
        yield Finding(
            "donation not used",
            f"of {len(donated)} donated arrays {len(unused)}, the largest {first.name} of "
            f"{bytes_text(first.bytes)}, have the type and sharding of no result, so nothing can "
            "take their memory, and the caller cannot use them again: donate what a result "
            "replaces, as an argument of its own",
        )


def of_unplaced_data(
    arguments: Sequence[Any], results: Sequence[Any], moves: Sequence[Any], values: Sequence[Any]
) -> Iterator[Finding]:
    """Arguments on no mesh that no result replaces, beside others that are on one: arrays on one
    device, which each call sends to the others, and those of which the compiler chooses a sharding
    with which the program gathers them.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      moves: the `shardlab.report.explain.Move`s.
      values: all that the program was traced with, in order.
    """
    abstract = {n for n, value in enumerate(values) if getattr(value, "sharding", "") is None}
    loose = [one for one in arguments if one.placed is False or one.number in abstract]
    gathered = {move.array for move in moves if move.kind == "all-gather"}
    replaced = {array.type for array in results}
    if not any(array.spec for array in arguments if array not in loose):
        return
    data, by_number = [one for one in loose if one.type not in replaced], dict(enumerate(values))
    on_one = [
        array
        for array in data
        if isinstance(value := by_number.get(array.number), jax.Array)
        and len(value.sharding.device_set) == 1
        and not array.type.endswith(("[]", "u32[2]"))  # numbers and keys
    ]
    total = sum(array.whole for array in on_one)
    if total >= 1024 or len(on_one) >= _SHOWN:
        is_single = len(on_one) == 1
        names = on_one[0].name if is_single else f"{len(on_one)} arrays, first {on_one[0].name},"
        yield Finding(
            "not placed",
            f"{names} {'is' if is_single else 'are'} on one device, so each call sends "
            f"{bytes_text(total)} to the others: place {'it' if is_single else 'them'} once, with "
            "jax.device_put and a sharding on the mesh",
        )
    for array in data:
        is_chosen = array.spec not in ("", "P()") and array not in on_one
        if is_chosen and array.name in gathered:
            yield Finding(
                "not placed",
                f"{array.name} is on no mesh, so the compiler chose its sharding, {array.spec}, "
                "and the program gathers it. For one that comes with another sharding jit compiles "
                "again: say with which it comes, by jax.device_put or a jax.ShapeDtypeStruct with "
                "a sharding",
            )


def of_returned_on_a_mesh(
    arguments: Sequence[Any], results: Sequence[Any], jaxpr: Any
) -> Iterator[Finding]:
    """Arguments on no mesh that all come back changed, and on one.

    Only of numbers and donated arrays: other functions that take what is on no mesh may be called
    once.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      jaxpr: the traced function.
    """
    are_loose = all(array.placed is False for array in arguments)
    are_states = all(array.donated or array.type.endswith("[]") for array in arguments)
    same = Counter(one.type for one in arguments) == Counter(one.type for one in results)
    if not arguments or not (are_loose and are_states and same and _changes(jaxpr)):
        return
    on_mesh = [array for array in results if array.spec]
    if on_mesh:
        yield Finding(
            "not placed",
            f"{arguments[0].name} is on no mesh, and {on_mesh[0].name} has the sharding "
            f"{on_mesh[0].spec}: if it is the argument of the next call, jit compiles again; make "
            "the first one with jax.device_put or out_shardings",
        )


def _changes(jaxpr):
    """Whether a traced function does more than place its arguments."""
    for equation in jaxpr.eqns:
        inner = list(inner_jaxprs(equation))
        if any(map(_changes, inner)) or (not inner and equation.primitive.name not in LAYOUT):
            return True
    return False
