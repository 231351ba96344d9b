"""The judgement of a program: its findings, and what else its collectives tell of its arguments."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.programs.origins import where
from shardlab.report import findings, gathers, specs
from shardlab.report.causes import MEMBERS_CALLED
from shardlab.report.findings import Finding
from shardlab.report.moves import Move
from shardlab.report.program import Located

__all__ = ["Judgement", "judge"]


@dataclass(frozen=True)
class Judgement:
    """What a program's text says beside its moves.

    Attributes:
      findings: what to change in what it sends and computes.
      kept: bytes of gathered arguments that are kept for the backward pass.
      saved: bytes that a device would hold less if it gathered them again.
      repeats: how many times the FLOPs of the unpartitioned program's products all devices compute
        together, beside what `lost` explains.
      forward: the names of the arguments that the forward pass uses.
      lost: the axes that constraints lack, which their operands have.
      is_in_specs: whether specs are at fault: then it is not the data.
    """

    findings: tuple[Finding, ...]
    kept: int
    saved: int
    repeats: float
    forward: frozenset[str]
    lost: frozenset[str]
    is_in_specs: bool


def judge(located: Located, moves: Sequence[Move]) -> Judgement:
    """Judge a program by its text: what it sends, and what its devices repeat.

    Args:
      located: the program, and its collectives with their origins.
      moves: the rows of its report, in which each line of the source stands once.
    """
    sent, origins, compiled = located.collectives, located.origins, located.compiled
    causes = [(origin, why) for (*_, origin), why in zip(sent, located.causes, strict=True)]
    whole, each = located.products
    devices, lost, mesh = located.program.devices, {}, {}
    again = findings.repeated_products(whole, each, devices)
    found, at_fault, clashes, regained, by_specs, moved, asked = [], [], [], [], [], [], set()
    # without a backward pass nothing tells weights from data
    data = compiled.data if origins.is_differentiated else frozenset()
    if compiled.inheritance is not None:
        mesh = {
            str(axis): int(size) for one in located.meshes[:1] for axis, size in one.shape.items()
        }
        firsts = _axes_of_batch(compiled)
        batch = firsts if origins.is_differentiated else set()
        lost = specs.lost_axes(compiled.inheritance, moves, again, firsts)
        of_data = [*specs.of_batch_axes(compiled.inheritance, compiled.names, data)]
        found += of_data or specs.of_lost_axes(compiled.inheritance, lost, again, mesh)
        held = [
            *specs.of_held(
                compiled.inheritance, compiled.names, compiled.data, mesh, compiled.stored
            )
        ]
        found += held
        places = {one.says.partition(": ")[0] for one in held}
        regained = [
            one
            for one in specs.of_regained(compiled.inheritance, moves, lost)
            if one.says.partition(": ")[0] not in places
        ]
        found += regained
        found += specs.of_picked(compiled.inheritance, moves)
        found += specs.of_stored(compiled.inheritance, moves, compiled.names)
        found += specs.of_taken_rows(compiled.inheritance, moves, compiled.names, data)
        moved = [*specs.of_moved(compiled.inheritance, moves, again)]
        found += [one for one, _ in moved]
        found += specs.of_mapped(compiled.inheritance, mesh, compiled.names)
        axes = {one.axis for _, one in moved}
        at_fault = [*specs.of_order(compiled.inheritance, moves, compiled.names, axes)] or [
            *specs.of_columns(compiled.inheritance, moves, compiled.names, data, batch)
        ]
        found += specs.of_small_weights(compiled.inheritance, moves, compiled.names, data, batch)
        found += at_fault
        if not at_fault and not of_data:
            found += specs.of_replaced(compiled.inheritance, moves)
        # what a constraint makes whole is computed whole in its own line
        asked = {(loss.place.file, loss.place.line) for loss in compiled.inheritance.picked}
        found += specs.of_contested(
            compiled.inheritance,
            moves,
            {place: flops for place, flops in again.items() if place not in asked},
            compiled.names,
            mesh,
            bool(at_fault),
        )
        found += specs.of_merged(compiled.inheritance, moves, again, devices)
        found += specs.of_casts(compiled.inheritance, moves, compiled.backend)
        clashes = [
            *gathers.of_clashes(compiled.inheritance, moves, compiled.names, mesh),
            *gathers.of_added_axes(compiled.inheritance, moves, compiled.names),
            *gathers.of_swaps(compiled.inheritance, moves, compiled.names),
        ]
        found += clashes
        found += gathers.of_large_sums(compiled.inheritance, moves, compiled.names, batch)
        by_specs = gathers.gathered_by_specs(compiled.inheritance, sent, origins, compiled.names)
        found += gathers.of_in_specs(by_specs, compiled.names, compiled.inheritance)
    explained = {
        (place.file, place.line)
        for losses in lost.values()
        for loss in losses
        for place in compiled.inheritance.products_without(loss)
    }
    explained |= {
        place
        for place, (lacking, _) in (compiled.inheritance.products if moved else {}).items()
        if lacking & {one.axis for _, one in moved}
    }
    for _, one in moved:
        product = compiled.inheritance.moved[one]
        explained.add((product.file, product.line))
    again = {place: flops for place, flops in again.items() if place not in explained}
    if any(one.title == "gathered before an index" for one in found):
        again = {place: flops for place, flops in again.items() if place not in asked}
    transforms = compiled.inheritance.transforms if compiled.inheritance is not None else {}
    by_cause = zip(sent, located.causes, strict=True)
    loops = [one for one, why in by_cause if not why.startswith(MEMBERS_CALLED)]
    titles = ("avoidable communication", "reshape of shards")
    told = {one.says.partition(": ")[0] for one in found if one.title in titles}
    known = [one for one, _ in by_specs]
    others = [one for one in sent if one not in known]
    partitioner = findings.of_partitioner(others, origins, compiled.messages)
    told_places = {where(place.file, place.line) for place, *_ in lost}
    told_places |= {re.split(r", called in |: ", one.says)[0] for one in (*clashes, *regained)}
    found = (
        *found,
        *findings.of_sums(sent),
        *findings.of_repeated_operations(causes, transforms),
        *findings.of_loops(loops, origins),
        *findings.of_apart(sent, origins),
        *findings.of_stacks(sent, origins),
        *gathers.of_gathered_again(sent, origins),
        *findings.of_many(moves),
        *findings.of_indices(moves, compiled.inheritance.windows if compiled.inheritance else {}),
        *(one for one in findings.of_avoidable(moves) if one.says.partition(": ")[0] not in told),
        *findings.of_repeated_products(
            again,
            devices * sum((each or {}).values()),
            compiled.inheritance.products if compiled.inheritance else {},
            compiled.names,
        ),
        *(
            one
            for one in partitioner
            if not any(f"in {place}: " in one.says for place in told_places)
        ),
        *findings.of_constants(compiled.text),
        *findings.of_widening(compiled.text, compiled.backend),
    )
    kept = findings.kept_for_backward(sent, origins)
    axes = frozenset(loss.axis for losses in lost.values() for loss in losses)
    forward = origins.forward_arguments()
    repeats = located.repeats / math.prod(mesh[axis] for axis in axes)
    saved = findings.saved_by_gathering_again(kept, located.program, origins)
    kept = sum(kept.values())
    found = tuple(dict.fromkeys(found))
    return Judgement(found, kept, saved, repeats, forward, axes, bool(at_fault))


def _axes_of_batch(compiled):
    """The axes along which the arguments that no result replaces are in shards in dimension 0."""
    return {
        axis
        for number, axes in compiled.inheritance.arguments.items()
        if compiled.names.get(number) in compiled.data
        for first in axes[:1]
        for axis in first
    }
