"""Judge what a program gathers, and the sums for which it could gather less.

Each function that begins with `of_` yields a `Finding` for each fault, as those of
`shardlab.report.findings` do.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardlab.arrays.layout import bytes_text, counted
from shardlab.programs.collectives import Collective
from shardlab.programs.hlo import Instruction, array_types, type_bytes
from shardlab.programs.inherited import Inheritance
from shardlab.programs.origins import Origin, Origins, where
from shardlab.report.findings import Finding, bytes_of, elements_of_each
from shardlab.report.remedies import MovedAxis

__all__ = ["of_gathered_again", "of_large_sums"]

_LEAST = 1 / 10  # of all bytes: to send less takes memory
_MUCH = 1 / 4  # of all bytes
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
        _, start, origin = max(gathers, key=lambda gather: gather[0].bytes)
        whole = array_types(start.result)[-1]
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
    inheritance: Inheritance, moves: Sequence[Any], names: Mapping[int, str]
) -> Iterator[Finding]:
    """Products whose partial sums are much larger than the operand that could be gathered instead.

    Args:
      inheritance: what following the program has shown.
      moves: the `shardlab.report.explain.Move`s.
      names: those of the program's arguments, by their numbers.
    """
    total = bytes_of(moves)
    for (argument, axis), summed in inheritance.sums.items():
        here = [
            move
            for move in moves
            if (move.file, move.line) == (summed.place.file, summed.place.line)
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
