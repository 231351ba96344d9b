"""Judge the gradients that a program returns: those that lack an axis of their parameters."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardlab.arrays.layout import bytes_text
from shardlab.report.findings import Finding, layout_of, listed, replacements
from shardlab.report.names import in_common, keys_of, pattern, stacked
from shardlab.report.remedies import entries_of

__all__ = ["lacking", "of_lacking", "without"]

_LEAST = 1 / 20  # of the memory of all arguments and results


def lacking(
    arguments: Sequence[Any],
    results: Sequence[Any],
    made: Sequence[Collection[int]] | None,
    is_gradient: bool,
) -> dict[str, Any]:
    """The arguments whose specs results of a differentiated program lack an axis of, by the names
    of the results; those are told elsewhere that replace an argument.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      made: the arguments of which each result is a new value; None if unknown.
      is_gradient: whether the results replace no argument.
    """
    in_order = sorted(arguments, key=lambda one: one.number)
    known = {layout_of(one) for one in arguments}
    told = {} if is_gradient else {one.name for one, _ in replacements(arguments, results, made)}
    found = {}
    for n, result in enumerate(results):
        is_new = made is not None and not is_gradient and bool(made[n])
        if result.name in told or layout_of(result) in known or not result.spec:
            continue
        if is_new and result.bytes == result.whole:
            continue
        alike = [one for one in in_order if one.type == result.type]
        same = [one for one in results if one.type == result.type]
        if like := _like(result, alike, same.index(result) if len(same) == len(alike) else None):
            found[result.name] = like
    return found


def _like(result, alike, place):
    """The argument whose gradient a result is, by its name or else by its place among those of its
    type, if it is in smaller shards that go on from those of the result; None if there is none.
    """
    own = keys_of(result.name)
    common = [in_common(own, keys_of(one.name)) for one in alike]
    most = max(common, default=0)
    nearest = [one for one, many in zip(alike, common, strict=True) if many == most]
    if len({one.spec for one in nearest}) > 1:
        nearest = [alike[place]] if place is not None and not most else []
    rank = result.type.count(",") + 1
    for one in nearest:
        shards = entries_of(one.spec, rank) if one.spec and one.bytes < result.bytes else []
        mine = entries_of(result.spec, rank)
        if shards and all({*axes} <= {*more} for axes, more in zip(mine, shards, strict=True)):
            return one
    return None


def of_lacking(
    likes: Mapping[str, Any],
    arguments: Sequence[Any],
    results: Sequence[Any],
    mesh: Mapping[str, int],
) -> Iterator[Finding]:
    """Gradients that devices store whole along an axis along which their parameters are in shards.

    Args:
      likes: as `lacking` returns it.
      arguments, results: as `shardlab.report.explain.Array`s.
      mesh: sizes by axis, of those that no constraint has dropped.
    """
    total = sum(one.bytes for one in (*arguments, *results))
    groups, lists = {}, stacked(likes)
    for result in results:
        if like := likes.get(result.name):
            axes = tuple(axis for axis in result.replicated if axis not in like.replicated)
            axes = tuple(axis for axis in axes if axis in mesh)
            groups.setdefault(axes, []).append((result, like))
    for axes, pairs in groups.items():
        if not axes:
            continue
        size, after = (sum(pair[n].bytes for pair in pairs) for n in (0, 1))
        if size - after < max(_LEAST * total, 1024):
            continue
        result, like = max(pairs, key=lambda pair: pair[0].bytes - pair[1].bytes)
        names = listed(sorted({pattern(one.name, lists) for one, _ in pairs}))
        spec = f"{like.spec}, the spec of {like.name}"
        yield Finding(
            "replicated result",
            f"{names}, {bytes_text(size)} on each device, {size / total:.0%} of arguments and "
            f"results, stored whole along {' and '.join(axes)}, "
            + (
                f"along which {like.name} is in shards; give it {spec}, in out_shardings"
                if len(pairs) == 1
                else "along which the arguments of the same types are in shards; give each the "
                f"spec of its own in out_shardings, such as {spec}, to {result.name}"
            )
            + f": then it would be {bytes_text(after)}",
        )


def without(results: Sequence[Any], likes: Mapping[str, Any]) -> list[Any]:
    """Results as those that have all axes, where they have been told.

    Args:
      results: as `shardlab.report.explain.Array`s.
      likes: as `lacking` returns it.
    """
    return [replace(one, replicated=()) if one.name in likes else one for one in results]
