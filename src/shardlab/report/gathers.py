"""Judge what a program gathers, and the sums for which it could gather less.

Each function that begins with `of_` yields a `Finding` for each fault, as those of
`shardlab.report.findings` do.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from shardlab.arrays.layout import bytes_text, counted
from shardlab.programs.collectives import Collective
from shardlab.programs.hlo import Instruction, type_bytes
from shardlab.programs.inherited import Inheritance, corrected, text_of
from shardlab.programs.origins import Origin, Origins, where
from shardlab.report.findings import Finding, bytes_of, elements_of_each, is_at
from shardlab.report.remedies import MovedAxis, OtherSpecs

__all__ = [
    "gathered_by_specs",
    "of_added_axes",
    "of_clashes",
    "of_gathered_again",
    "of_in_specs",
    "of_large_sums",
    "of_swaps",
]

_LEAST = 1 / 10  # of all bytes: to send less takes memory
_MUCH = 1 / 4  # of all bytes
_SOME = 1 / 20  # of all bytes
_EXCHANGES = ("all-gather", "all-to-all", "collective-permute")
_TIMES = 4  # as many bytes as a gather would send


def of_gathered_again(
    moves: list[tuple[Collective, Instruction, Origin]], origins: Origins
) -> Iterator[Finding]:
    """Arrays that are gathered several times in one pass, and each time whole.

    What `jax.checkpoint` gathers once more for the backward pass is meant.

    Args:
      moves: a list of (`shardlab.Collective`, the instruction that starts it, its `Origin`).
      origins: the program's `Origins`.
    """
    total = sum((move.times or 0) * (move.bytes or 0) for move, *_ in moves)
    groups = {}
    for move, start, origin in moves:
        if move.kind != "all-gather" or move.times != 1 or not move.bytes:
            continue
        if len(start.names) != 1:  # several in one, of which this does not tell what each is
            continue
        if source := origins.source(start):
            key = source, origins.recomputed(start, origin), move.axes
            groups.setdefault(key, []).append((move, start, origin))
    for (_, _, axes), gathers in groups.items():
        sent, once = (of(move.bytes for move, *_ in gathers) for of in (sum, max))
        if len(gathers) < 2 or sent - once < max(_LEAST * total, 1024):
            continue
        largest, _, origin = max(gathers, key=lambda gather: gather[0].bytes)
        whole = largest.results[-1]
        places = Counter(where(one.file, one.line) for *_, one in gathers if one.line)
        lines = " and ".join(
            f"{place} ({counted(times, 'time')})" if times > 1 else place
            for place, times in list(places.items())[:4]
        )
        along = f" along {' and '.join(axes)}" if axes else ""
        yield Finding(
            "gathered several times",
            f"{lines or 'this program'}: {origin.argument or whole} is gathered "
            f"{len(gathers)} times{along} in one pass, "
            f"{bytes_text(sent)}, and is the same each time. Gathered once, with a constraint "
            "before the first of these uses and outside of every jax.checkpoint, it would be "
            f"{bytes_text(once)}, and each device would hold {bytes_text(int(type_bytes(whole)))} "
            "until the last",
        )


def of_large_sums(
    inheritance: Inheritance,
    moves: Sequence[Any],
    names: Mapping[int, str],
    batch: Collection[str] = (),
) -> Iterator[Finding]:
    """Products whose partial sums are much larger than the operand that could be gathered instead.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      names: those of the program's arguments, by their numbers.
      batch: the axes that divide the batch, which should have kept them there.
    """
    total = bytes_of(moves)
    for (argument, axis), summed in inheritance.sums.items():
        if axis in batch:
            continue
        here = [
            move
            for move in moves
            if is_at(move, summed.place)
            and move.kind == "all-reduce"
            and move.axes == (axis,)
            and move.cause.startswith("the contracting dimension")
        ]
        # the gradient of the operand is such a sum too
        largest = max((elements_of_each(move.types[0]) for move in here), default=0)
        here = [move for move in here if elements_of_each(move.types[0]) == largest]
        sent = bytes_of(here)
        # a ring sends twice as much for an all-reduce as for an all-gather of the same
        gathered = int(sent / 2 * summed.operand / summed.result)
        if argument not in names or sent < max(_MUCH * total, 1024, _TIMES * gathered):
            continue
        name = names[argument]
        yield Finding(
            "sum larger than its operand",
            f"{where(summed.place.file, summed.place.line)}: this product contracts the dimension "
            f"of {summed.contracted:,}, along which {name} and its other operand are in shards "
            f"along {axis}, so partial sums of the whole result, {here[0].types[0]}, are added: "
            f"{bytes_text(sent)}. Shard the dimension of {summed.kept:,} of {name} instead: then "
            f"the other operand is gathered, {bytes_text(gathered)}, and the result stays in "
            "shards",
            MovedAxis(argument, axis, summed.kept),
        )


def of_clashes(
    inheritance: Inheritance,
    moves: Sequence[Any],
    names: Mapping[int, str],
    mesh: Mapping[str, int],
) -> Iterator[Finding]:
    """Products whose operands are in shards along one axis in dimensions that do not meet, as where
    shards of a head meet whole heads.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      names: those of the program's arguments, by their numbers.
      mesh: sizes by axis.
    """
    total, cut = bytes_of(moves), set()
    for clash in inheritance.clashes.values():
        place, axis, name = clash.place, clash.axis, names.get(clash.argument)
        sent = bytes_of(
            move
            for move in moves
            if axis in (move.axes or move.within or ())
            and move.kind in _EXCHANGES
            and move.array in ("", name)
        )
        is_known = axis in cut and clash.is_cut  # the backward pass has its products too
        if name is None or is_known or sent < max(_SOME * total, 1024):
            continue
        ways, met, contracted = mesh.get(axis, 1), f"{clash.met:,}", f"{clash.contracted:,}"
        here, exchanged = where(place.file, place.line), f"{bytes_text(sent)} are exchanged"
        divides = clash.met % ways == 0
        if clash.is_operand:
            title = "axis on two dimensions"
            says = (
                f"of the dimensions that this product contracts, {name} has {axis} along that of "
                f"{contracted}, and its other operand along that of {met}: {exchanged}. Shard the "
                f"dimension of {met} of {name}"
            )
        elif clash.is_cut:
            title = "heads split"
            cut.add(axis)
            says = (
                f"of {name} in {ways} shards along {axis} a reshape makes {met} times "
                f"{contracted}, as heads: {axis} is no divisor of {met}, so single heads are "
                f"split, and {exchanged}. Give what makes these heads a weight of its own, whole "
                f"along {axis}, or repeat its heads until {axis} divides them"
            )
        else:
            title = "heads split"
            says = (
                f"{name} is in shards along {axis} in a dimension of {contracted} that this "
                f"product contracts, as that of a head, and the other operand in that of {met}, "
                f"as heads: {exchanged}. "
            ) + (
                f"Shard the dimension of {met} of {name}"
                if divides
                else f"{met} is no multiple of the {ways} devices, so store {name} by "
                f"{clash.without}, or repeat its heads until {axis} divides them"
            )
        remedy = None
        if not clash.is_cut:
            remedy = (
                MovedAxis(clash.argument, axis, clash.met)
                if divides
                else OtherSpecs(((clash.argument, clash.without),))
            )
        yield Finding(title, f"{here}: {says}", remedy)


def of_added_axes(
    inheritance: Inheritance, moves: Sequence[Any], names: Mapping[int, str]
) -> Iterator[Finding]:
    """Constraints that divide the batch by an axis of a weight, and what is gathered again for it.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      names: those of the program's arguments, by their numbers.
    """
    total = bytes_of(moves)
    for axis, added in inheritance.added.items():
        sent = bytes_of(
            move
            for move in moves
            if any(is_at(move, place) for place in (added.product, added.place))
            and move.kind == "all-gather"
            and not move.array
            and axis in (move.axes or ())
        )
        if added.argument in names and sent >= max(_SOME * total, 1024):
            called = added.place.callers
            yield Finding(
                "constraint with an axis too many",
                f"{where(added.place.file, added.place.line)}"
                f"{f', called in {where(*called[0])}' if called else ''}: the constraint "
                f"{added.spec} divides the batch along {axis}, too, but the product of "
                f"{where(added.product.file, added.product.line)} gathers it again, "
                f"{bytes_text(sent)}, because {names[added.argument]} has {axis} for another "
                f"dimension of the result: write {added.better}",
            )


def of_swaps(
    inheritance: Inheritance, moves: Sequence[Any], names: Mapping[int, str]
) -> Iterator[Finding]:
    """Weights of which two axes are swapped: the product keeps the dimension of the batch's axis.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      names: those of the program's arguments, by their numbers.
    """
    total, groups = bytes_of(moves), {}
    for swap in inheritance.swaps.values():
        sent = bytes_of(
            move
            for move in moves
            if is_at(move, swap.place)
            and (
                (not move.array and move.kind in _EXCHANGES and {*swap.axes} & {*(move.axes or ())})
                or (move.kind == "all-reduce" and move.axes == swap.axes[1:])
            )
        )
        if swap.argument in names and sent:
            groups.setdefault((swap.axes, swap.spec, swap.better), []).append((swap, sent))
    for ((kept, inner), spec, better), swaps in groups.items():
        first, sent = swaps[0][0], sum(sent for _, sent in swaps)
        if sent < max(_SOME * total, 1024):
            continue
        several = " and ".join(names[swap.argument] for swap, _ in swaps)
        yield Finding(
            "axes swapped",
            f"{where(first.place.file, first.place.line)}: {several} "
            f"{'is' if len(swaps) == 1 else 'are'} in shards by {spec}: along {kept}, which "
            f"divides the batch that it meets, in a dimension that this product keeps, and along "
            f"{inner} in the one that it contracts, so {bytes_text(sent)} of results are "
            f"exchanged or added. With {better} each device computes its own part",
            OtherSpecs(tuple((swap.argument, better) for swap, _ in swaps), with_copies=True),
        )


def gathered_by_specs(
    inheritance: Inheritance,
    moves: list[tuple[Collective, Instruction, Origin]],
    origins: Origins,
    names: Mapping[int, str],
) -> list[tuple]:
    """Gathers for a shard_map whose in_specs lack an axis, where each device then takes its own
    shard, or all compute the same, and what they return is divided again or a sum: pairs of the
    move as in `moves`, and the `Loss`.

    Args:
      inheritance: what following the program has shown.
      moves: a list of (`shardlab.Collective`, the instruction that starts it, its `Origin`).
      origins: the program's `Origins`.
      names: those of the program's arguments, by their numbers.
    """
    found = []
    for one in moves:
        move, start, origin = one
        for loss in inheritance.dropped if move.kind == "all-gather" else ():
            if loss.axis not in (move.axes or ()) or not (
                _is_again(inheritance, loss) or origins.is_sliced_again(start)
            ):
                continue
            whole = elements_of_each(move.results[-1])
            is_same = names.get(loss.argument, "") == origin.argument or (
                # XLA may gather what it is computed from, element by element
                loss.argument is None and _is_again(inheritance, loss)
            )
            if is_same and elements_of_each(loss.type) % max(whole, 1) == 0:
                found.append((one, loss))
                break
    return found


def _is_again(inheritance, loss):
    """Whether devices compute the same of what in_specs gather, and it is divided afterwards."""
    return loss in inheritance.alike & {*inheritance.regained} - inheritance.needed


def of_in_specs(
    gathered: Sequence[tuple], names: Mapping[int, str], inheritance: Inheritance
) -> Iterator[Finding]:
    """Arrays that are gathered for a shard_map in which each device only uses its own shard, or
    computes what others compute, too.

    Args:
      gathered: as `gathered_by_specs` returns it.
      names: those of the program's arguments, by their numbers.
      inheritance: what following the program has shown.
    """
    seen = set()
    for (move, *_), loss in gathered:
        key = loss.place.file, loss.place.line, loss.place.callers[:1], loss.number, loss.axis
        if key in seen:  # the backward pass has its own
            continue
        seen.add(key)
        name = names.get(loss.argument) or f"its argument {loss.number}"
        if _is_again(inheritance, loss):
            yield Finding(
                "gathered by in_specs",
                f"{where(loss.place.file, loss.place.line)}: {name}, {loss.type}, is in shards "
                f"along {loss.axis}, and in_specs gather it, {bytes_text(move.bytes or 0)}, so the "
                f"devices along {loss.axis} compute the same, and what is returned is divided "
                f"along {loss.axis} again: write {corrected([loss])} in place of "
                f"{text_of(loss.spec)}, in out_specs too, and reduce over {loss.axis} as well what "
                f"is reduced along dimension {loss.dimension}",
            )
            continue
        yield Finding(
            "gathered by in_specs",
            f"{where(loss.place.file, loss.place.line)}: {name}, {loss.type}, is in shards along "
            f"{loss.axis}, and in_specs gather it, {bytes_text(move.bytes or 0)}, although each "
            f"device only uses a shard of it: write {corrected([loss])} in place of "
            f"{text_of(loss.spec)}, and use what arrives as it is",
        )
