"""Judge the specs of a program: axes that a constraint or a shard_map drops, and their order.

Each function that begins with `of_` yields a `Finding` for each fault, as those of
`shardlab.report.findings` do, from what `shardlab.programs.inherited.inherited_axes` has shown.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardlab.arrays.layout import bytes_text
from shardlab.programs.hlo import type_bytes
from shardlab.programs.inherited import Inheritance, Loss, Moved, Site, corrected, text_of
from shardlab.programs.origins import where
from shardlab.report.causes import ASKED_FOR
from shardlab.report.findings import (
    LOCAL_SEARCH,
    Finding,
    bytes_of,
    elements_of_each,
    is_at,
    listed,
)
from shardlab.report.remedies import MovedAxis, OtherConstraints, OtherSpecs, entries_of

__all__ = [
    "corrections",
    "lost_axes",
    "of_batch_axes",
    "of_casts",
    "of_columns",
    "of_contested",
    "of_held",
    "of_lost_axes",
    "of_mapped",
    "of_merged",
    "of_moved",
    "of_order",
    "of_picked",
    "of_regained",
    "of_replaced",
    "of_small_weights",
    "of_stored",
    "of_taken_rows",
]

_LEAST = 1 / 20  # of all FLOPs, or of all bytes sent: less is not worth a finding
_MUCH = 1 / 4  # of all bytes sent
_EXCHANGES = ("all-to-all", "collective-permute")


def lost_axes(
    inheritance: Inheritance,
    moves: Sequence[Any],
    again: Mapping[tuple[str, int], tuple[int, int]],
    batch: Collection[str] = (),
) -> dict[tuple, list]:
    """The losses of constraints that cost something, by their place and spec.

    A loss counts if products without its axis follow, and if the compiled program gathers for the
    constraint or repeats these products: the partitioner may have found another way.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      again: FLOPs of all devices and of one by the (file, line) of products that several devices
        compute.
      batch: the axes along which data are in shards in their first dimension: where a batch loses
        one, weights with it count as products without it.
    """
    costly, enough = {}, _LEAST * inheritance.flops
    # of what a shard_map has returned, each device's own largest are gathered as a search wants it
    only_reduced = [loss for loss in inheritance.reduced if loss not in inheritance.entered]
    for loss in [*inheritance.searched, *only_reduced]:
        sent = bytes_of(
            move
            for move in moves
            if is_at(move, loss.place)
            and move.kind == "all-gather"
            and loss.axis in (move.axes or move.within or ())
        )
        if sent > max(_MUCH * bytes_of(moves), 1024) and loss not in inheritance.candidates:
            costly.setdefault(loss)
    for loss, product in inheritance.produced.items():
        flops_done, flops = again.get((product.file, product.line), (0, 0))
        if flops_done - flops > enough:
            costly.setdefault(loss)
    of_batch = {loss: n for loss, n in inheritance.by_weights.items() if loss.axis in batch}
    for loss, places in (*inheritance.repeated.items(), *of_batch.items()):
        if places.total() < enough:
            continue
        along = [move for move in moves if loss.axis in (move.axes or move.within or ())]
        is_gathered = any(is_at(move, loss.place) for move in along)
        # A constraint in a helper: the compiler has gathered the product's weight in its own line.
        is_gathered |= any(
            (move.file, move.line) in loss.place.callers[:1]
            and (move.kind, move.phase) == ("all-gather", "forward")
            for move in along
        )
        if is_gathered or any((one.file, one.line) in again for one in places):
            costly.setdefault(loss)
    groups = {}
    for loss in costly:
        if loss.kind != "in_specs":
            groups.setdefault((loss.place, loss.spec, loss.type), []).append(loss)
    return groups


def of_lost_axes(
    inheritance: Inheritance,
    groups: Mapping[tuple, list],
    again: Collection[tuple[str, int]],
    mesh: Mapping,
) -> Iterator[Finding]:
    """Constraints without an axis which their operand has, so that devices compute or store more.

    Args:
      inheritance: what following the program has shown.
      groups: the losses that cost something, as `lost_axes` returns them.
      again: the (file, line) of products that several devices compute.
      mesh: sizes by axis.
    """
    seen = set()
    for (place, spec, kind), losses in groups.items():
        axes = tuple(axis for axis in mesh if any(loss.axis == axis for loss in losses))
        key = place.file, place.line, place.callers[:1], axes
        if key in seen:  # the backward pass has the constraints of the forward pass once more
            continue
        seen.add(key)
        searches = inheritance.reduced | inheritance.searched
        known = (*inheritance.repeated, *inheritance.by_weights, *searches, *inheritance.produced)
        # what a loop began with says along which dimension its arrays are in shards
        known = *known, *inheritance.carried
        better = corrections(known, place.file, place.line, axes)
        products = sum((inheritance.repeated.get(loss, Counter()) for loss in losses), Counter())
        produced = (inheritance.produced[loss] for loss in losses if loss in inheritance.produced)
        products = products or Counter(one for one in produced if (one.file, one.line) in again)
        searched = [searches[loss] for loss in losses if loss in searches]
        of_weights = (inheritance.by_weights.get(loss, Counter()) for loss in losses)
        of_weights = sum(of_weights, Counter())
        shown = products or of_weights
        first = max(shown, key=shown.get) if shown else searched[0]
        ways = math.prod(mesh[axis] for axis in axes)
        what = (
            f"its operand {kind} is in shards"
            if losses[0].kind == "constraint"
            else f"the product's operands leave {kind} in shards"
        )
        is_refused = not shown and inheritance.refused.issuperset(losses)
        done = (
            "and each looks through all of it"
            + (f" in {where(first.file, first.line)}" if first.line else "")
            if not shown
            else f"and the products of {where(first.file, first.line)} get it from weights alone"
            if not products
            else f"and repeat the products of {where(first.file, first.line)}"
            if any((one.file, one.line) in again for one in products)
            else f"and nothing in the products of {where(first.file, first.line)} has the axis"
        )
        yield Finding(
            "constraint without an axis",
            f"{_at(place)}: the {losses[0].kind} {text_of(spec)} lacks "
            f"{' and '.join(axes)}, along which {what}: the {ways} "
            f"devices along {' and '.join(axes)} all hold the whole of it, {done}; "
            + (LOCAL_SEARCH if is_refused else f"write {better[kind, text_of(spec)]}"),
            None
            if is_refused
            else OtherConstraints(
                place.file, place.line, tuple((*key, new) for key, new in better.items()), axes
            ),
        )


def _at(place):
    """A constraint's line, and that of the call which asked for it."""
    called = f", called in {where(*place.callers[0])}" if place.callers else ""
    return f"{where(place.file, place.line)}{called}"


def of_batch_axes(
    inheritance: Inheritance, names: Mapping[int, str], data: Collection[str]
) -> Iterator[Finding]:
    """Data in shards along another axis than that for which all constraints of the batch ask.

    One constraint that differs from its operand is at fault itself; where there are several, and
    none names an axis of the data, the data are.

    Args:
      inheritance: what following the program has shown.
      names: those of the program's arguments, by their numbers.
      data: the names of arguments that no result replaces.
    """
    asked = {*inheritance.leading.values()}
    if len(asked) != 1 or len(inheritance.leading) < 2:
        return
    (axes,) = asked
    wrong = {
        number: specs
        for number, specs in inheritance.arguments.items()
        if names.get(number) in data and specs and specs[0]
    }
    theirs = {specs[0] for specs in wrong.values()}
    if len(theirs) != 1 or {*axes} & {axis for specs in wrong.values() for axis in sum(specs, ())}:
        return
    said, (own,) = " and ".join(axes), theirs
    better = tuple((n, text_of((axes, *specs[1:]))) for n, specs in wrong.items())
    yield Finding(
        "order of axes",
        f"{listed([names[n] for n in wrong])} {'are' if len(wrong) > 1 else 'is'} in shards along "
        f"{' and '.join(own)}, but "
        f"the {len(inheritance.leading)} constraints that divide the first dimension of what is "
        f"computed from data ask for {said}, so it moves to other devices: shard the data "
        f"{better[0][1]}",
        OtherSpecs(better),
    )


def of_regained(
    inheritance: Inheritance, moves: Sequence[Any], told: Collection[tuple]
) -> Iterator[Finding]:
    """Constraints without an axis which their operand has, and which the next one gives back, or
    with which a loop began.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      told: the constraints of other findings, as keys of `lost_axes`.
    """
    again = {}  # where what lacks the axis is divided along it again
    for loss, next_place in inheritance.regained.items():
        if loss not in inheritance.needed and loss.kind == "constraint":
            is_helper = (loss.place.file, loss.place.line) == (next_place.file, next_place.line)
            callers = next_place.callers if is_helper else ()
            divided = where(*callers[0] if callers else (next_place.file, next_place.line))
            divided = divided if next_place.line else "the sharding of a result"
            again[loss] = (
                f"{divided} divides it along {loss.axis} again, although nothing between needs it "
                "whole: leave it out, or write"
            )
    for loss in inheritance.carried:
        again[loss] = (
            "the next iteration of the loop gets the whole array, where the first one gets shards "
            f"along {loss.axis}: write"
        )
    for loss, why in again.items():
        place, spec = loss.place, text_of(loss.spec)
        sent = bytes_of(
            move
            for move in moves
            if is_at(move, place) and move.kind == "all-gather" and loss.axis in (move.axes or ())
        )
        is_told = (place, loss.spec, loss.type) in told
        if is_told or sent < max(_LEAST * bytes_of(moves), 1024):
            continue
        better = corrected([loss])
        yield Finding(
            "constraint without an axis",
            f"{_at(place)}: the constraint {spec} lacks {loss.axis}, along "
            f"which its operand {loss.type} is in shards, so {bytes_text(sent)} are gathered, and "
            f"{why} {better}",
            OtherConstraints(place.file, place.line, ((loss.type, spec, better),), (loss.axis,)),
        )


def of_moved(
    inheritance: Inheritance, moves: Sequence[Any], again: Collection[tuple[str, int]]
) -> Iterator[tuple[Finding, Moved]]:
    """Constraints that move an axis to a dimension which a product contracts with a whole array:
    for it shards are gathered, so that devices repeat the product, or partial sums are added. Each
    with the `Moved`.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      again: the (file, line) of products that several devices compute.
    """
    seen = set()
    for moved, product in inheritance.moved.items():
        place, axis = moved.place, moved.axis
        here = [one for one in moves if is_at(one, product) and axis in (one.axes or ())]
        gathers, sums = (
            [one for one in here if one.kind == kind] for kind in ("all-gather", "all-reduce")
        )
        sent = bytes_of(gathers or sums)
        is_repeated = bool(gathers) and (product.file, product.line) in again
        key = place.file, place.line, place.callers[:1], axis
        if key in seen or (not is_repeated and sent < max(_LEAST * bytes_of(moves), 1024)):
            continue
        seen.add(key)
        finding = Finding(
            "repeated work" if is_repeated else "order of axes",
            f"{_at(place)}: the constraint {moved.spec} moves {axis} from dimension "
            f"{moved.before} of {moved.type} to dimension {moved.after}, which the product of "
            f"{where(product.file, product.line)} contracts with an array that is whole along "
            f"{axis}, so "
            + (
                f"it is gathered, and the devices along {axis} repeat the product"
                if is_repeated
                else f"{bytes_text(sent)} are {'gathered' if gathers else 'added'} for it"
            )
            + f": write {moved.better}",
            OtherConstraints(
                place.file, place.line, ((moved.type, moved.spec, moved.better),), (axis,)
            ),
        )
        yield finding, moved


def of_replaced(inheritance: Inheritance, moves: Sequence[Any]) -> Iterator[Finding]:
    """Constraints that name another axis for a dimension than that along which it is in shards.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
    """
    places = set()
    for loss in inheritance.replaced:
        here = [one for one in moves if is_at(one, loss.place) and one.cause.startswith(ASKED_FOR)]
        sent, place = bytes_of(here), (loss.place.file, loss.place.line)
        are_others = any(one.kind == "collective-permute" for one in here)  # than before
        if place in places or not are_others or sent < max(_LEAST * bytes_of(moves), 1024):
            continue
        places.add(place)
        place, spec = loss.place, list(loss.spec)
        better = [loss.order if d == loss.dimension else axes for d, axes in enumerate(spec)]
        yield Finding(
            "order of axes",
            f"{_at(place)}: the constraint {text_of(spec)} divides "
            f"dimension {loss.dimension} of {loss.type} along {' and '.join(spec[loss.dimension])}"
            f", but its operand is in shards along {loss.axis}, so shards go to other devices, "
            f"{bytes_text(sent)}: write {text_of(better)}, or the first spec in both places",
            OtherConstraints(
                place.file, place.line, ((loss.type, text_of(spec), text_of(better)),), (loss.axis,)
            ),
        )


def corrections(
    losses: Iterable[Loss], file: str, line: int, axes: Collection[str]
) -> dict[tuple[str, str], str]:
    """The specs that the constraints of a line should have, by their types and their specs.

    Where a helper's line constrains several arrays, those of one type and spec get one spec.

    Args:
      losses: as `Inheritance.repeated` and `searched` have them.
      file, line: of the constraints.
      axes: that they lack.
    """
    alike = {}
    for loss in losses:
        is_here = (loss.place.file, loss.place.line) == (file, line)
        if loss.kind != "in_specs" and is_here and loss.axis in axes:
            alike.setdefault((loss.type, text_of(loss.spec)), []).append(loss)
    return {key: corrected(group) for key, group in alike.items()}


def of_held(
    inheritance: Inheritance,
    names: Mapping[int, str],
    data: Collection[str],
    mesh: Mapping[str, int],
    stored: int,
) -> Iterator[Finding]:
    """Constraints on gradients without an axis of the parameters or moments which they meet.

    Each device then adds up, and holds, more of them than it stores of these.

    Args:
      inheritance: what following the program has shown.
      names: those of the program's arguments, by their numbers.
      data: the names of arguments that no result replaces.
      mesh: sizes by axis.
      stored: bytes of all arguments on each device.
    """
    groups = {}
    for held in inheritance.held:
        if names.get(held.argument, "") and names[held.argument] not in data:
            groups.setdefault((held.place.file, held.place.line), []).append(held)
    for place, group in groups.items():
        # one array may meet its parameter, and both of its moments
        each = {(one.type, one.spec, one.better): one for one in group}
        arrays = {names[one.argument]: one for one in group}
        known = [one for one in arrays.values() if one.spec and one.better]
        larger = wide = 0
        for one in known:
            size = type_bytes(one.type)
            now, then = (
                size
                / math.prod(
                    mesh.get(a, 1)
                    for axes in entries_of(spec, one.type.count(",") + 1)
                    for a in axes
                )
                for spec in (one.spec, one.better)
            )
            larger, wide = larger + now, wide + then
        if larger - wide < max(_MUCH * stored, 1024):
            continue
        first = max(group, key=lambda one: type_bytes(one.type))
        axes = " and ".join(dict.fromkeys(axis for one in group for axis in one.axes))
        more = len(arrays) - 1
        others = f" and {more} other array{'s' * (more > 1)}" if more else ""
        yield Finding(
            "constraint without an axis",
            f"{_at(first.place)}: the constraint {first.spec} lacks {axes}, along which "
            f"{names[first.argument]}{others} that its operand meets are in shards: each device "
            f"holds {bytes_text(int(larger))} of the operands, where {bytes_text(int(wide))} "
            f"would do, and sums over devices are whole. Write the spec of what it meets, "
            f"{first.better}",
            OtherConstraints(*place, tuple((*key,) for key in each)),
        )


def of_picked(inheritance: Inheritance, moves: Sequence[Any]) -> Iterator[Finding]:
    """Arrays that a constraint gathers whole, and of which only an index into them is used.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
    """
    total, places = bytes_of(moves), {}
    for loss, pick in inheritance.picked.items():
        if loss.argument is None and pick.share <= _MUCH:
            key = loss.place.file, loss.place.line, pick
            places.setdefault(key, []).append(loss)
    for (file, line, pick), losses in places.items():
        axes = {loss.axis for loss in losses}
        sent = bytes_of(
            move
            for move in moves
            if (move.file, move.line) in ((file, line), (pick.place.file, pick.place.line))
            and move.kind in ("all-gather", "all-reduce")
            and axes & {*(move.axes or move.within or ())}
        )
        if sent >= max(_LEAST * total, 1024):
            yield Finding(
                "gathered before an index",
                f"{where(file, line)}: the constraint {text_of(losses[0].spec)} gathers "
                f"{losses[0].type} along {' and '.join(sorted(axes))}, {bytes_text(sent)}, and "
                f"only {pick.share:.2g} of it is used, by {where(pick.place.file, pick.place.line)}"
                ": index first, and gather what is left",
            )


def of_mapped(
    inheritance: Inheritance, mesh: Mapping[str, int], names: Mapping[int, str]
) -> Iterator[Finding]:
    """Products in shard_maps whose operands are equal on several devices.

    Args:
      inheritance: what following the program has shown.
      mesh: sizes by axis.
      names: those of the program's arguments, by their numbers.
    """
    by_place = {}
    for (axis, place), flops in inheritance.mapped.items():
        by_place.setdefault((place.file, place.line), {})[axis] = flops
    groups = {}
    for place, axes in by_place.items():
        groups.setdefault(tuple(sorted(axes)), {})[place] = max(axes.values())
    for axes, places in groups.items():
        ways = math.prod(mesh.get(axis, 1) for axis in axes)
        if ways < 2 or sum(places.values()) * (1 - 1 / ways) < _LEAST * max(inheritance.flops, 1):
            continue
        first = max(places, key=places.get)
        lines = where(*first) if len(places) == 1 else f"{len(places)} lines, first {where(*first)}"
        remedies, remaining = [], set(axes)
        for loss in inheritance.repeated:
            if loss.kind != "in_specs" or loss.axis not in remaining:
                continue
            name = names.get(loss.argument) or f"its argument {loss.number}"
            remaining.discard(loss.axis)
            remedies.append(
                f"{name}, {loss.type}, arrives in shards along {loss.axis}, and in_specs gather "
                f"it: write {corrected([loss])} in place of {text_of(loss.spec)}"
            )
        if remaining:
            along = " and ".join(sorted(remaining))
            remedies.append(f"name {along} for a dimension of an operand in in_specs")
        yield Finding(
            "repeated work",
            f"{lines}: in this shard_map the {ways} devices along {' and '.join(axes)} have equal "
            f"operands, so each of them computes the whole product: {'; '.join(remedies)}; "
            "out_specs then name the axis too, or a psum adds what the devices have",
        )


def of_order(
    inheritance: Inheritance,
    moves: Sequence[Any],
    names: Mapping[int, str],
    moved: Collection[str] = (),
) -> Iterator[Finding]:
    """Specs in which the same axes stand in another order than in what the array meets.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      names: those of the program's arguments, by their numbers.
      moved: axes that a constraint of another finding moves: then what is computed has them there.
    """
    total = bytes_of(moves)
    seen, places = set(), set()
    for order in inheritance.orders:
        exchanged = bytes_of(
            move
            for move in moves
            if (move.kind in _EXCHANGES or is_at(move, order.place))
            and {*(move.axes or move.within or ("",))} <= {*order.axes}
        )
        key = frozenset((order.spec, order.other)), order.argument
        if order.argument is None and {*moved} & {*order.axes}:
            continue
        if key in seen or exchanged < max(_LEAST * total, 1):
            continue
        seen.add(key)
        name = names.get(order.argument) or "an array"
        place = order.place.file, order.place.line
        if order.is_result and place in places:
            continue  # an argument is at fault
        places.add(place)
        if order.is_result:
            yield Finding(
                "order of axes",
                f"{_at(order.place)}: this result is in shards by {order.spec}, and asked for in "
                f"{order.other}: {bytes_text(exchanged)} are exchanged along "
                f"{' and '.join(order.axes)}. With out_shardings of {order.spec} its shards "
                "already are where they are needed; or let its operands divide it in that order",
            )
            continue
        yield Finding(
            "order of axes",
            f"{_at(order.place)}: {name} is in shards by {order.spec} and meets {order.other}, "
            f"which divides it in another order: {bytes_text(exchanged)} are exchanged along "
            f"{' and '.join(order.axes)}. With {order.better} for {name}, or the first order for "
            "both, its shards are already where they are needed",
            OtherConstraints(order.place.file, order.place.line, (("", order.other, order.spec),))
            if order.argument is None
            else OtherSpecs(((order.argument, order.better),), with_copies=True),
        )


def of_stored(
    inheritance: Inheritance, moves: Sequence[Any], names: Mapping[int, str]
) -> Iterator[Finding]:
    """Arguments that a shard_map takes along another axis than that along which they are stored.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      names: those of the program's arguments, by their numbers.
    """
    groups = {}
    for loss in inheritance.dropped:
        stored = inheritance.arguments.get(loss.argument, ())
        others = {axis for axes in loss.spec for axis in axes} - {
            a for axes in stored for a in axes
        }
        if others and loss.argument in names:
            key = loss.place, text_of(stored), text_of(loss.spec)
            groups.setdefault(key, {})[loss.argument] = names[loss.argument]
    for (place, stored, taken), arguments in groups.items():
        arrays = {*arguments.values()}
        sent = bytes_of(one for one in moves if one.array in arrays and one.phase != "update")
        if sent < max(_LEAST * bytes_of(moves), 1024):
            continue
        yield Finding(
            "stored in other shards",
            f"{_at(place)}: the in_specs take {listed(sorted(arrays))} in {taken}, stored in "
            f"{stored}, so each call sends {bytes_text(sent)} before the shard_map, and as much "
            f"again for each array of its layout that comes back: store it in {taken}, and its "
            "moments",
            OtherSpecs(tuple((number, taken) for number in arguments), with_copies=True),
        )


def of_taken_rows(
    inheritance: Inheritance, moves: Sequence[Any], names: Mapping[int, str], data: Collection[str]
) -> Iterator[Finding]:
    """Rows of data in shards that computed indices take, as to shuffle a batch within the step.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      names: those of the program's arguments, by their numbers.
      data: the names of arguments that no result replaces.
    """
    places = {}
    for file, line, axis, argument in inheritance.taken:
        if names.get(argument) in data:
            places.setdefault((file, line), {})[argument] = axis
    for place, arguments in places.items():
        sent = bytes_of(move for move in moves if is_at(move, Site(*place)))
        if sent < max(_LEAST * bytes_of(moves), 1024):
            continue
        axes = " and ".join(dict.fromkeys(arguments.values()))
        several = "are" if len(arguments) > 1 else "is"
        yield Finding(
            "avoidable communication",
            f"{where(*place)}: computed indices take rows of "
            f"{listed([names[one] for one in arguments])}, which {several} in shards along {axes}, "
            f"so that devices need each other's rows: {bytes_text(sent)} are sent. Shuffle where "
            "the batch is loaded; or take rows of each shard alone, in a shard_map",
        )


def of_columns(
    inheritance: Inheritance,
    moves: Sequence[Any],
    names: Mapping[int, str],
    data: Collection[str],
    batch: Collection[str] = (),
) -> Iterator[Finding]:
    """Weights in shards along the dimension that a product keeps, where its other operand is in
    shards along the dimension that it contracts: columns after columns.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      names: those of the program's arguments, by their numbers.
      data: the names of arguments that no result replaces.
      batch: the axes that divide the batch.
    """
    gathers = [move for move in moves if move.kind == "all-gather"]
    gathered = {axis for move in gathers for axis in move.axes or move.within or ()}
    for (argument, axis), column in inheritance.columns.items():
        name = names.get(argument, "")
        if not name or name in data or axis not in gathered or axis in batch:
            continue
        # what moves of a result in shards is gathered again after the product
        is_gathered_after = any(
            axis in (move.axes or move.within or ())
            and not move.array
            and column.shard in map(elements_of_each, move.types)
            for move in gathers
        )
        saved = column.operand + column.result * is_gathered_after
        head = (
            f"{where(column.place.file, column.place.line)}: this product contracts the dimension "
            f"of {column.contracted:,}, along which its other operand is in shards along {axis}, "
            f"but {name} is in shards along {axis} in the dimension of {column.divided:,}: one of "
            "the two is gathered. "
        )
        if 2 * column.result <= saved:  # as a ring sends for a sum and for a gather
            which, remedy = "", MovedAxis(argument, axis, column.contracted)
            if column.contracted == column.divided and column.better:  # the size does not tell them
                which = f", dimension {column.dimension}, as in {column.better}"
                remedy = OtherSpecs(((argument, column.better),), with_copies=True)
            yield Finding(
                "columns after columns",
                f"{head}Shard the dimension of {column.contracted:,} of {name}{which}: then each "
                "device multiplies what it has, and one sum of the results is enough",
                remedy,
            )
            continue
        # Where sums leave activations in shards, they are gathered before a product anyway.
        are_scattered = any(
            move.kind == "reduce-scatter" and axis in (move.axes or move.within or ())
            for move in moves
            if not move.array
        )
        giver = column.givers[0] if len(column.givers) == 1 and not are_scattered else None
        contracted, result = inheritance.makers.get((giver, axis), (0, 0))
        if contracted and giver in names and 2 * result < column.operand:
            yield Finding(
                "columns after columns",
                f"{head}The other operand has {axis} from {names[giver]}: shard the dimension of "
                f"{contracted:,} of that instead; then one sum of its product is added, which is "
                "smaller than what is gathered here, and than sums of this product would be",
                MovedAxis(giver, axis, contracted),
            )


def of_small_weights(
    inheritance: Inheritance,
    moves: Sequence[Any],
    names: Mapping[int, str],
    data: Collection[str],
    batch: Collection[str] = (),
) -> Iterator[Finding]:
    """Small weights, as routers, for which an activation is gathered that is in shards along the
    axis of their results.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      names: those of the program's arguments, by their numbers.
      data: the names of arguments that no result replaces.
      batch: the axes that divide the batch.
    """
    total = bytes_of(moves)
    for (argument, axis), small in inheritance.smalls.items():
        name, met = names.get(argument, ""), names.get(small.met, "")
        if not name or name in data or axis in batch:
            continue
        if (axis, small.operand) in inheritance.wholes:
            continue  # another product needs it whole, too
        sent = bytes_of(
            move
            for move in moves
            if is_at(move, small.place)
            and move.kind == "all-gather"
            and axis in (move.axes or ())
            and move.array in ("", met)
        )
        if sent < max(_LEAST * total, 1024):
            continue
        added = int(sent * 2 * small.result / small.operand)
        yield Finding(
            "gathered for a small weight",
            f"{where(small.place.file, small.place.line)}: this product contracts the dimension of "
            f"{small.contracted:,}, along which {met or 'its other operand'} is in shards along "
            f"{axis}, but {name}, which is smaller, is in shards along {axis} in the dimension of "
            f"{small.divided:,}: {met or 'the other operand'} is gathered, {bytes_text(sent)}. "
            f"Shard the dimension of {small.contracted:,} of {name} instead: then partial sums of "
            f"the result are added, about {bytes_text(added)}",
            MovedAxis(argument, axis, small.contracted),
        )


def of_contested(
    inheritance: Inheritance,
    moves: Sequence[Any],
    again: Mapping[tuple[str, int], tuple[int, int]],
    names: Mapping[int, str],
    mesh: Mapping[str, int],
    is_in_specs: bool = False,
) -> Iterator[Finding]:
    """Results that get one axis along two dimensions, from the batch and from a weight.

    The compiler can keep it along one of them; if it keeps that of the weight, the batch is
    gathered from there on. Told if devices repeat products that have their axes by the program, or
    send mostly activations along it, and if nothing that follows decides it.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      again: FLOPs of all devices and of one by the (file, line) of products that several devices
        compute.
      names: those of the program's arguments, by their numbers.
      mesh: sizes by axis.
      is_in_specs: whether specs are at fault: then sums of activations come from these.
    """
    total, first = bytes_of(moves), {}
    for contest in inheritance.contested:
        if contest not in inheritance.decided:
            first.setdefault(contest.axis, contest)
    repeats = {
        place: flops_done
        / max(flops, 1)
        / math.prod(mesh.get(axis, 1) for axis in inheritance.products.get(place, ((), ()))[0])
        for place, (flops_done, flops) in again.items()
    }
    for axis, contest in first.items():
        sent = bytes_of(
            move
            for move in moves
            if not move.array
            and axis in (move.axes or ())
            and move.kind in ("all-gather", *_EXCHANGES)
            # a constraint without the axis wants it whole
            and not (move.kind == "all-gather" and move.cause.startswith(ASKED_FOR))
        )
        is_of_batch = contest.dimension == 0 and not is_in_specs
        is_repeated = any(ways > 1.01 for ways in repeats.values())
        if is_repeated or 2 * sent > total or (is_of_batch and _adds_activations(moves, axis)):
            name = names.get(contest.argument, "a weight")
            which = f"dimension {contest.dimension}" if contest.dimension else "the batch"
            yield Finding(
                "axis on two dimensions",
                f"{where(contest.place.file, contest.place.line)}: {contest.type} gets {axis} "
                f"along {which}, and along another dimension from {name}, and can keep one of the "
                f"two. A constraint {contest.better} on it lets {which} keep it, and the weight is "
                "gathered instead",
            )


def _adds_activations(moves, axis):
    """Whether most of what the forward pass sends are sums of activations along an axis of the
    batch: with FSDP it gathers weights, in a loop also without their names.
    """
    forward = [move for move in moves if move.phase == "forward"]
    sums = (
        move
        for move in forward
        if axis in (move.axes or ())
        and (not move.array or move.array.startswith("result"))
        and move.cause.startswith("the contracting dimension")
    )
    return 2 * bytes_of(sums) > max(bytes_of(forward), 2048)


def of_merged(
    inheritance: Inheritance, moves: Sequence[Any], again: Collection[tuple[str, int]], devices: int
) -> Iterator[Finding]:
    """Reshapes after which the shards along an axis are not contiguous.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      again: the (file, line) of products that several devices compute.
      devices: how many devices.
    """
    total, seen = bytes_of(moves), set()
    for place, axis, before, after in inheritance.merged:
        if (place, axis) in seen:
            continue
        sent = bytes_of(
            move
            for move in moves
            if not move.array
            and move.kind in ("all-gather", *_EXCHANGES)
            and axis in (move.axes or move.within or ())
            and devices * max(map(elements_of_each, move.types)) >= elements_of_each(before)
        )
        if sent <= total / 50 and not (again and elements_of_each(before) > 2**14):
            continue
        seen.add((place, axis))
        yield Finding(
            "reshape of shards",
            f"{where(place.file, place.line)}: {before} is in shards along {axis}, and in the "
            f"reshape to {after} this dimension is not the first of those that become one: the "
            "shards are no longer contiguous, so it is "
            + (f"exchanged, {bytes_text(sent)}" if sent else "computed whole on each device")
            + "; put the dimension first, or keep it apart",
        )


def of_casts(inheritance: Inheritance, moves: Sequence[Any], backend: str) -> Iterator[Finding]:
    """Arrays that are gathered in a larger type than the one in which they are used.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      backend: what the program is compiled for.
    """
    total, places = bytes_of(moves), {}
    for place, kind, narrow in inheritance.casts:
        if (place, kind) in inheritance.uncast & inheritance.computed:
            continue  # something else needs it as it was gathered
        key = place.file, place.line, place.callers[:1]
        places.setdefault(key, (place, []))[1].append((kind, narrow))
    for place, kinds in places.values():
        wide = kinds[0][0].partition("[")[0]
        sent = bytes_of(
            move
            for move in moves
            if is_at(move, place)
            and move.kind == "all-gather"
            and (backend == "cpu" or any(f"{wide}[" in one for one in move.types))
        )
        if sent > _LEAST * total:
            is_asked = any(one == place for one, _ in inheritance.computed)
            after = ", with the constraint after the cast" * is_asked
            here = _at(place) if is_asked else where(place.file, place.line)
            what = kinds[0][0] if len(kinds) == 1 else f"{len(kinds)} arrays, first {kinds[0][0]},"
            yield Finding(
                "gathered before a cast",
                f"{here}: {what} {'is' if len(kinds) == 1 else 'are'} gathered, "
                f"{bytes_text(sent)}, and cast to {kinds[0][1]} afterwards: cast the shards first, "
                f"and gather what is smaller{after}",
            )
