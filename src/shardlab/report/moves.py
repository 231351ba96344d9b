"""What a program sends: its collectives, added up by what they do, and for which line."""

import itertools
from collections import Counter
from dataclasses import dataclass, replace

from shardlab.arrays.layout import counted
from shardlab.costs.communication.kinds import KINDS, OPERATIONS
from shardlab.machines.hardware import Chip
from shardlab.programs.collectives import Collective
from shardlab.programs.hlo import Instruction
from shardlab.programs.origins import Origin, where
from shardlab.programs.timeline import predicted_seconds
from shardlab.report.names import parameter_names, pattern, stacked
from shardlab.report.program import Located

__all__ = ["Move", "Row", "summed"]

MOST_CALLERS = 3  # frames that lead to a line, or lines that call it
MOST_SOURCES = 3  # arguments from which something was computed


@dataclass(frozen=True)
class Move:
    """Collectives that do the same for the same line of the source.

    Attributes:
      kind: HLO's name, such as "all-gather".
      axes: the mesh axes along which devices communicate; None if the groups do not follow mesh
        axes.
      within: the fewest mesh axes such that every group stays within the devices along them; None
        if there are none.
      group: how many devices communicate with each other.
      types: the types of a device's operands, such as `("bf16[64,1792]",)`.
      times: how often they run in one call, in total; None if only the run decides.
      bytes: bytes that a device sends each time, on a ring; None if only the run decides.
      seconds: predicted for all of them on the named chip; None if unknown.
      overlap: "waits" (one instruction), "hidden" (matrix products run between start and end) or
        "exposed" (none do).
      phase: "forward", "backward" or "update"; "" if the program does not say.
      file, line: of the source; "" and 0 if the program does not say.
      operation: JAX's operation there, such as "dot_general".
      array: the argument that they move, or the result for which they add, with * for the numbers
        of layers; else "".
      cause: what usually causes such a collective.
      made: where the array was made, such as "step.py:9", if that is another line of the source;
        else "".
      callers: the calls that lead to the line, if there are several in the program: one with at
        most three frames, such as `("block.py:9 from step.py:4",)`, or the lines in which several
        differ first.
      others: how many results beside `array` they add for, where the compiler has joined several.
      is_chosen: whether they run only where a branch is taken, as of a `jax.lax.cond`.
    """

    kind: str
    axes: tuple[str, ...] | None
    within: tuple[str, ...] | None
    group: int
    types: tuple[str, ...]
    times: int | None
    bytes: int | None
    seconds: float | None
    overlap: str
    phase: str
    file: str
    line: int
    operation: str
    array: str
    cause: str
    made: str = ""
    callers: tuple[str, ...] = ()
    others: int = 0
    is_chosen: bool = False

    @property
    def total(self) -> int | None:
        """Bytes that a device sends in one call; None if only the run decides."""
        return None if None in (self.times, self.bytes) else self.times * self.bytes


@dataclass(frozen=True)
class Row:
    """A `Move` to which others are added, and the calls that lead to its line.

    Attributes:
      move: of the collectives so far; its `callers` stay () until all rows of the line are known.
      chains: the calls, each as the (file, line) of its frames, the innermost first.
    """

    move: Move
    chains: tuple[tuple[tuple[str, int], ...], ...] = ()

    @property
    def key(self) -> Move:
        """What rows that are added up have in common: the move without its sums."""
        return replace(self.move, times=0, seconds=0, others=0)

    def plus(self, other: "Row") -> "Row":
        """The row of both, which have the same key; a sum is None where a part is unknown."""
        mine, its = self.move, other.move
        move = replace(
            mine,
            times=_sum(mine.times, its.times),
            seconds=_sum(mine.seconds, its.seconds),
            others=max(mine.others, its.others),
        )
        return Row(move, tuple(dict.fromkeys((*self.chains, *other.chains))))


def _sum(one, other):
    return None if None in (one, other) else one + other


def summed(located: Located, chip: Chip) -> list[Move]:
    """The communication of a program as `Move`s, the longest predicted time first.

    Args:
      located: the program's collectives with their origins.
      chip: the chip of the predicted times.
    """
    lists = stacked((*parameter_names(located.compiled.text), *located.compiled.results))
    rows = {}
    for (collective, start, origin), why in zip(located.collectives, located.causes, strict=True):
        sizes = _sizes_of_arrays(origin, located.compiled.results, lists)
        array = max(sorted(sizes), key=sizes.get, default="")
        if why and not array and _is_open(collective, origin):
            why += _sources(located, start, lists)
        row = Row(
            replace(
                _move(located, collective, start, chip),
                phase=origin.phase,
                file=origin.file,
                line=origin.line,
                operation=origin.operation,
                array=array,
                cause=why,
                made=where(*origin.made) if origin.made[1] and not array else "",
                others=max(len(sizes) - 1, 0),
            ),
            tuple(dict.fromkeys(origin.callers)),
        )
        rows[row.key] = rows[row.key].plus(row) if row.key in rows else row
    moves = _with_callers(rows.values())
    return sorted(
        moves,
        key=lambda move: (move.seconds is not None, -(move.seconds or 0), -(move.total or 0)),
    )


def _move(located, collective, start, chip):
    """What a collective alone says of its `Move`; nothing of its line."""
    hidden = located.flops.beside(start) if collective.asynchronous else None
    once, times = predicted_seconds(collective, chip), collective.times
    types = Counter(collective.operands)
    return Move(
        kind=collective.kind,
        axes=collective.axes,
        within=collective.within,
        group=max(map(len, collective.groups), default=1),
        types=tuple(f"{count} × {kind}" if count > 1 else kind for kind, count in types.items()),
        times=times,
        bytes=collective.bytes,
        seconds=None if None in (once, times) else once * times,
        overlap="waits" if not collective.asynchronous else "hidden" if hidden else "exposed",
        phase="",
        file="",
        line=0,
        operation="",
        array="",
        cause="",
        is_chosen=bool(collective.branches),
    )


def _sizes_of_arrays(origin, results, lists):
    """The argument that a collective moves, or the results for which it adds: their bytes."""
    sizes = Counter()
    for name in [origin.argument] if origin.argument else origin.results:
        sizes[pattern(name, lists)] += results.get(name, 0)
    return sizes


def _is_open(collective: Collective, origin: Origin) -> bool:
    """Whether a line leaves open what is moved: nothing is added, and the user did not write it."""
    return not KINDS[collective.kind].adds and origin.operation not in OPERATIONS


def _sources(located: Located, start: Instruction, lists):
    """The end of a cause: the arguments from which an operand is computed, if they are few."""
    sources = sorted({pattern(name, lists) for name in located.origins.sources(start)})
    return f"; computed from {' and '.join(sources)}" if 1 <= len(sources) <= MOST_SOURCES else ""


def _with_callers(rows):
    """The moves of rows, with the calls that lead to them, where several lead to a line."""
    lines = {}
    for row in rows:
        lines.setdefault((row.move.file, row.move.line), []).append(row)
    texts = {}
    for same_line in lines.values():
        every = {chain for row in same_line for chain in row.chains}
        if len(every) > 1:
            shared = _common(every)  # such as the frames of a library
            texts |= {row.key: _callers(row.chains, shared) for row in same_line}
    return [replace(row.move, callers=texts.get(row.key, ())) for row in rows]


def _callers(chains, shared):
    """The calls of a row as texts; `shared` frames are common to all calls of its line."""
    if len(chains) == 1:
        chain = chains[0]
        frames = chain[min(shared, len(chain) - 1) :][:MOST_CALLERS]
        return (" from ".join(where(*place) for place in frames),)
    level = _common(chains)
    lines = list(dict.fromkeys(where(*chain[min(level, len(chain) - 1)]) for chain in chains))
    more = len(lines) - MOST_CALLERS
    return (*lines[:MOST_CALLERS], *([counted(more, "other line")] if more > 0 else []))


def _common(chains):
    """How many of the innermost frames several calls have in common."""
    levels = zip(*chains, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda frames: len(set(frames)) == 1, levels))
