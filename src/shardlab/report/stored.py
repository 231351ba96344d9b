"""The specs in which whole arguments and results could be stored, as the program itself shows."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.programs.inherited import text_of
from shardlab.report.remedies import entries_of

__all__ = ["Better", "better_specs"]


@dataclass(frozen=True)
class Better:
    """A spec in which an array takes less.

    Attributes:
      spec: as text.
      bytes: of the array on each device then.
      why: where the program has this spec, in words.
      axes: for each of its axes the dimension.
      is_of_argument: whether it is the spec of an argument.
    """

    spec: str
    bytes: int
    why: str
    axes: Mapping[str, int]
    is_of_argument: bool = False


def better_specs(
    arguments: Sequence[Any],
    results: Sequence[Any],
    computed: Sequence[tuple[tuple, Collection[str]]],
    made: Sequence[Collection[int]] | None,
    mesh: Mapping[str, int],
) -> dict[str, Better]:
    """The specs of arguments that are replaced, and of results that replace them, by their names.

    A result could have the spec of the argument that it replaces, or the one in which it is
    computed; and the argument the latter, too.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      computed: the axes of each result, as `Inheritance.results` has them.
      made: the arguments of which each result is a new value; None if unknown.
      mesh: sizes by axis.
    """
    found = {}
    for number, result in enumerate(results if len(computed) == len(results) else ()):
        axes, _ = computed[number]
        old = [
            one
            for one in arguments
            if made is not None and one.number in made[number] and one.type == result.type
        ]
        likes = [one for one in old if one.bytes < result.bytes and one.spec]
        own = _better(result, axes, mesh, "in which it is computed")
        if likes:
            like = min(likes, key=lambda one: one.bytes)
            rank = result.type.count(",") + 1
            why = f"that of {like.name}, which it replaces"
            own = _better(result, entries_of(like.spec, rank), mesh, why, True) or own
        if own:
            found[result.name] = own
        why = f"in which {result.name}, which replaces it, is computed"
        if len(old) == 1 and (one := _better(old[0], axes, mesh, why)):
            found[old[0].name] = one
    return found


def _better(array, axes, mesh, why, is_of_argument=False):
    """The `Better` of an array with some axes; None where it has all of them, or does not divide by
    them.
    """
    whole = [int(size) for size in array.type.partition("[")[2][:-1].split(",") if size]
    ways = [math.prod(mesh.get(axis, 0) for axis in one) for one in axes]
    has_all = len(axes) == len(whole) and all(
        one and not size % one for size, one in zip(whole, ways, strict=True)
    )
    if not has_all or array.whole // math.prod(ways) >= array.bytes:
        return None
    named = {axis: d for d, one in enumerate(axes) for axis in one}
    kept = {axis for one in entries_of(array.spec, len(whole)) for axis in one}
    if not kept <= {*named}:
        return None
    return Better(text_of(axes), array.whole // math.prod(ways), why, named, is_of_argument)
