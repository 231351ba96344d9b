"""Specs that JAX accepts where axes are Explicit: there a spec is part of the types."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import AxisType, NamedSharding

from shardlab.programs.hlo import dimensions
from shardlab.programs.inherited import is_refused, text_of
from shardlab.report.findings import Finding
from shardlab.report.remedies import OtherConstraints, entries_of

__all__ = ["with_accepted_specs"]

_MOST = 4  # axes that a constraint lacks


def with_accepted_specs(
    found: Sequence[Finding], jaxpr: Any, shardings: Sequence[Any]
) -> list[Finding]:
    """Findings of constraints without an axis, whose advice on Explicit axes leaves out those with
    which JAX may refuse what follows.

    Args:
      found: the findings.
      jaxpr, shardings: as `shardlab.programs.inherited.inherited_axes` gets them.
    """
    meshes = [one.mesh for one in shardings if isinstance(one, NamedSharding)]
    if not any(AxisType.Explicit in mesh.axis_types for mesh in meshes):
        return [*found]
    sizes = {str(axis): int(size) for mesh in meshes[:1] for axis, size in mesh.shape.items()}
    return [_accepted(finding, jaxpr, shardings, sizes) for finding in found]


def _accepted(finding, jaxpr, shardings, sizes):
    remedy = finding.remedy
    is_written = isinstance(remedy, OtherConstraints) and any(
        f"write {better}" in finding.says for *_, better in remedy.specs
    )
    if finding.title != "constraint without an axis" or not is_written:
        return finding
    for specs in _candidates(remedy.specs, sizes):
        rows = {
            (kind, before): tuple(entries_of(after, kind.count(",") + 1))
            for kind, before, after in specs
        }
        if is_refused(jaxpr, shardings, remedy.file, remedy.line, rows):
            continue
        if specs == remedy.specs:
            return finding
        says = finding.says
        for (*_, refused), (*_, better) in zip(remedy.specs, specs, strict=True):
            says = says.replace(
                f"write {refused}",
                f"write {better}, as with {refused} JAX may refuse an operation that follows",
            )
        return replace(finding, says=says, remedy=replace(remedy, specs=specs))
    says = finding.says
    for *_, refused in remedy.specs:
        says = says.replace(
            f"; write {refused}",
            f"; with {refused} JAX may refuse an operation that follows, which then needs an "
            "out_sharding or a reshard of its own",
        )
    return replace(finding, says=says, remedy=None)


def _candidates(specs, sizes: Mapping[str, int]) -> Iterator[tuple]:
    """The specs, those with all added axes in one dimension, and those with fewer of them."""
    yield specs
    entries = [
        [entries_of(spec, kind.count(",") + 1) for spec in (before, after)]
        for kind, before, after in specs
    ]
    added = {axis for before, after in entries for axis in _named(after) - _named(before)}
    shapes = [dimensions(kind) for kind, *_ in specs]
    for d in range(min(map(len, shapes))):
        new = []
        for before, after in entries:
            other = [axis for axes in after for axis in axes if axis in added]
            here = (*before[d], *(axis for axis in other if axis not in before[d]))
            new.append([here if n == d else axes for n, axes in enumerate(before)])
        if all(
            shape[d] % math.prod(sizes.get(axis, 1) for axis in one[d]) == 0
            for shape, one in zip(shapes, new, strict=True)
        ):
            yield tuple((*row[:2], text_of(one)) for row, one in zip(specs, new, strict=True))
    for n in range(1, len(added)) if len(added) <= _MOST else ():
        for gone in itertools.combinations(sorted(added), n):
            yield tuple(
                (kind, before, _without(after, kind.count(",") + 1, gone))
                for kind, before, after in specs
            )


def _named(entries):
    return {axis for axes in entries for axis in axes}


def _without(spec, rank, gone):
    return text_of([tuple(a for a in axes if a not in gone) for axes in entries_of(spec, rank)])
