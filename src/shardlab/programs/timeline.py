"""A step as a timeline of two lanes, compute and communication, read from the text of a compiled
program.

The instructions of a compiled program stand in the order in which a device runs them. An
asynchronous collective is two of them, one that starts it and one that waits for its end, or a
chain of fusions that begins and ends so; what stands between them runs while the collective is
under way. We walk through the program, a loop's body as often as it runs, and give every
instruction a time by formula:

- compute takes the larger of FLOPs / peak and bytes / bandwidth of the memory. The FLOPs are those
  of matrix products; the bytes are what it reads and writes in HBM, and of a slice only the slice;
- a collective among all chips of a `shardlab.Pod` takes the time of
  `shardlab.costs.collective_seconds` over all axes of its torus at once, the best that its links
  allow. One of fewer chips, or in a program's text, of which we do not know the torus, takes the
  time over one axis where it fits, and over the fewest axes elsewhere;
- collectives run one after the other, since they share the links;
- an array that is copied ahead of its use, as into the fast memory of a TPU, takes no time;
- of the branches of a condition, the longest runs.

So the order is the compiler's, and the lengths are a model: nothing here was measured.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import jax

from shardlab import costs
from shardlab.costs.communication.kinds import KINDS
from shardlab.machines import hardware
from shardlab.programs import collectives
from shardlab.programs.collectives import Collective
from shardlab.programs.flops import MatmulFlops
from shardlab.programs.hlo import (
    COLLECTIVES,
    MOST,
    Computation,
    Instruction,
    Program,
    UnreadableProgram,
    array_types,
    promised,
    type_bytes,
)

__all__ = ["Flight", "Timeline", "predicted_seconds", "step_timeline", "steps_of"]

_FREE = ("after-all", "bitcast", "constant", "get-tuple-element", "iota", "opt-barrier",
    "parameter", "partition-id",
         "replica-id", "tuple")  # fmt: skip
_AHEAD = re.compile(r"(copy|slice|dynamic-slice|dynamic-update-slice)-(start|done)$")
_ELSEWHERE = (
    "this waits for a collective that starts elsewhere, such as in an earlier trip of a loop: "
)
_ON_CHIP = re.compile(r"(\w+\[[\d,]*\])\{[^}]*S\(1\)\}")  # in the fast memory of a TPU


@dataclass(frozen=True)
class Flight:
    """One run of a collective.

    Attributes:
      kind: HLO's name, such as "all-gather".
      bytes: that a device sends, on a ring.
      start: when the links begin with it, in seconds.
      end: when it has arrived, in seconds.
      waited: for how many of these seconds the device computes nothing, because it needs this or a
        later result.
    """

    kind: str
    bytes: int
    start: float
    end: float
    waited: float

    @property
    def hidden(self) -> float:
        """The bytes that are sent while the device computes; the others are exposed."""
        length = self.end - self.start
        return self.bytes * (1 - min(self.waited / length, 1)) if length else self.bytes


@dataclass(frozen=True, eq=False)
class Timeline:
    """What a device does when, in seconds from the start of a step, by the model of this module.

    Attributes:
      compute: the spans (start, end) in which it computes.
      waiting: the spans in which it waits for collectives.
      flights: every run of a collective, as `Flight`s, in order.
      loops: for each loop that is entered, in order, the spans of its trips.
      seconds: when the step ends.
    """

    compute: tuple[tuple[float, float], ...]
    waiting: tuple[tuple[float, float], ...]
    flights: tuple[Flight, ...]
    loops: tuple[tuple[tuple[float, float], ...], ...] = field(repr=False)
    seconds: float

    def hidden(self, kind: str | None = None) -> int:
        """Bytes that a device sends while it computes, of one kind of collective or of all."""
        return round(sum(flight.hidden for flight in self._of(kind)))

    def exposed(self, kind: str | None = None) -> int:
        """Bytes that a device sends while it waits for them, of one kind of collective or of
        all.
        """
        return sum(flight.bytes for flight in self._of(kind)) - self.hidden(kind)

    @property
    def waits(self) -> float:
        """Seconds in which the device waits for collectives."""
        return sum(end - start for start, end in self.waiting)

    def _of(self, kind):
        return [flight for flight in self.flights if kind in (None, flight.kind)]

    def lanes(
        self, start: float = 0.0, end: float | None = None
    ) -> dict[str, list[tuple[str, float, float]]]:
        """Two lanes for `shardlab.timeline`, from one time to another: compute with its waits, and
        communication.

        Args:
          start, end: in seconds; by default all.

        Returns:
          A dict of lists of (label, start, end), in microseconds since `start`.
        """
        end = self.seconds if end is None else end
        device = [("compute", *span) for span in self.compute] + [
            ("waits", *span) for span in self.waiting
        ]
        links = [(flight.kind, flight.start, flight.end) for flight in self.flights]

        def part(segments):
            cut = ((label, max(a, start), min(b, end)) for label, a, b in segments)
            return [
                (label, round((a - start) * 1e6, 3), round((b - start) * 1e6, 3))
                for label, a, b in cut
                if a < b
            ]

        return {"compute": part(device), "communication": part(links)}


def step_timeline(program: Any, chip: str | hardware.Chip | None = None) -> Timeline:
    """The timeline of one call of a compiled program.

    On this backend, a collective is one instruction, so nothing hides this all-reduce of 3,072 B.
    Four v5e in a line take 6 µs for it, since it goes three hops in each of two passes.

    >>> A = jax.device_put(jnp.ones((8, 512)), NamedSharding(mesh, P("y", None)))
    >>> made = step_timeline(compile_for(lambda a: (a * 2).sum(0), A), "v5e")
    >>> [(flight.kind, flight.bytes) for flight in made.flights], made.hidden()
    ([('all-reduce', 3072)], 0)
    >>> f"waits for {made.waits * 1e6:.0f} microseconds"
    'waits for 6 microseconds'

    Args:
      program: a `shardlab.PodProgram` that was compiled with `schedule=True`; or what
        `jax.jit(f).lower(...) .compile()` returns, or the text of that.
      chip: the chip of the model, a name or a `shardlab.hardware.Chip`; for a `PodProgram` it is
        known.

    Returns:
      `Timeline`.

    Raises:
      TypeError: `program` is nothing of this.
      ValueError: a `PodProgram` was compiled without its schedule, or there is no chip.
      shardlab.UnreadableProgram: only the run decides how often a loop runs or how much is sent, or
        the program's instructions are in no order yet.
    """
    if hasattr(program, "schedule"):  # a PodProgram
        if chip is not None and hardware.chip(chip).name.lower() != program.pod.partition(":")[0]:
            raise ValueError(
                f"this program is for {program.pod}, and its times are; pass its text for "
                "another chip"
            )
        if program.schedule is None:
            raise ValueError(
                f"{program.name!r} was compiled without its schedule: pass schedule=True to "
                "Pod.compile"
            )
        return _run(program.schedule)
    if isinstance(program, jax.stages.Compiled):
        program = program.as_text()
    if not isinstance(program, str):
        raise TypeError(
            f"step_timeline() takes a PodProgram, a compiled program or its text, not {program!r}"
        )
    if chip is None:
        raise ValueError('whose speed? Pass a chip, such as step_timeline(compiled, "v5e")')
    return _run(steps_of(program, chip))


def predicted_seconds(
    move: Collective, chip: hardware.Chip, torus: Sequence[int] = ()
) -> float | None:
    """The time of one run of a collective on a chip, by formula; None where there is none.

    >>> from shardlab.programs.timeline import predicted_seconds
    >>> gather = Collective("all-gather", ("bf16[1000000]",), ("bf16[8000000]",), (tuple(range(8)),))
    >>> f"{predicted_seconds(gather, hardware.chip('v5e')) * 1e6:.0f} microseconds"
    '311 microseconds'
    >>> f"{predicted_seconds(gather, hardware.chip('v5e'), (2, 4)) * 1e6:.0f} microseconds"
    '156 microseconds'

    Args:
      move: a `shardlab.Collective`.
      chip: a `shardlab.hardware.Chip`.
      torus: the chips along each axis of the slice, such as (2, 4). A group of all of them uses the
        links of all axes. Any other group is taken to be one axis of the torus, if that is long
        enough.

    Source: `shardlab.costs.collective_seconds`.
    """  # noqa: E501
    if move.bytes is None or not KINDS[move.kind].priced:
        return None
    group = max(map(len, move.groups), default=1)
    array_bytes = max(sum(map(type_bytes, move.operands)), sum(map(type_bytes, move.results)))
    sizes, most = [], max(chip.torus) if chip.torus else group
    if chip.torus and group == math.prod(torus):
        sizes, group = [size for size in torus if size > 1], 1
    while group > 1:
        sizes.append(max(size for size in range(1, min(group, most) + 1) if group % size == 0))
        if sizes[-1] == 1:
            return None  # a prime number of chips that is longer than an axis of the torus
        group //= sizes[-1]
    if chip.torus and len(sizes) > len(chip.torus):
        return None
    return float(costs.collective_seconds(move.kind, array_bytes, tuple(sizes) or 1, chip))


def steps_of(text: str, chip: str | hardware.Chip, torus: Sequence[int] = ()) -> list:
    """What a device does, in order and with its times: plain lists, as a recording stores them.

    >>> A = jax.device_put(jnp.ones((8, 512)), NamedSharding(mesh, P("y", None)))
    >>> from shardlab.programs.timeline import steps_of
    >>> text = compile_for(lambda a: a.sum(0), A).as_text()
    >>> [step[0] for step in steps_of(text, "v5e")]
    ['compute', 'start', 'done']

    Args:
      text: what `compiled.as_text()` returns.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      torus: as for `predicted_seconds`.

    Returns:
      A list of ["compute", seconds], ["start", number, kind, bytes, seconds], ["done", number] and
      ["loop", trips, list]. A collective that is one instruction is a start with its end right
      behind it.

    Raises:
      shardlab.UnreadableProgram: as for `step_timeline`.
    """
    if "is_scheduled=true" not in text.partition("\n")[0]:
        raise UnreadableProgram(
            "the instructions of this program are in no order yet: no is_scheduled=true"
        )
    program, chip = Program(text), hardware.chip(chip)
    moves, first = {}, {}
    # which comes again for every call of a computation
    for move, start in collectives.find(program):
        if first.setdefault((start.home.name, start.name), start) is start:
            moves.setdefault((start.home.name, start.name), []).append(move)
    with promised():
        return _Reader(moves, chip, tuple(torus)).steps(program.entry)


class _Reader:
    """Walks through the computations of a program, and notes what each instruction does and how
    long it takes.
    """

    def __init__(self, moves, chip, torus):
        self.moves, self.chip, self.torus, self.flops, self.count = (
            moves,
            chip,
            torus,
            MatmulFlops(),
            0,
        )
        self.quiet = {}  # the steps of computations that start no collective, by name

    def steps(self, here):
        """What a computation does, in order."""
        if here.name in self.quiet:
            return self.quiet[here.name]
        before = self.count
        found = self._steps(here)
        if self.count == before:
            self.quiet[here.name] = found
        return found

    def _steps(self, here):
        # numbers of collectives under way, by the names of what they return and by channel
        schedule, flying = [], {}
        started = set()  # the channels of those that fusions start
        for name, line in here.lines.items():
            instruction = here[name]
            if instruction.kind in _FREE:
                continue
            moves, ends = self.moves.get((here.name, name)), instruction.channels("Done")
            starts = instruction.channels("Start")
            started.update(starts)
            if instruction.kind == "while":
                (body, least, most), _ = instruction.calls()
                if least != most:
                    raise UnreadableProgram(
                        f"only the run decides how often this loop runs: {line.strip()[:300]}"
                    )
                schedule.append(["loop", least, self.steps(body)])
            elif instruction.kind == "call":
                schedule += self.steps(instruction.called("to_apply"))
            elif instruction.kind == "conditional":
                schedule += max(
                    (self.steps(branch) for branch, *_ in instruction.calls()),
                    key=lambda s: _run(s).seconds,
                )
            elif moves or ends:  # or both: a fusion that ends one collective and starts another
                if not started.issuperset(ends):
                    raise UnreadableProgram(_ELSEWHERE + line.strip()[:300])
                schedule += [
                    ["done", number] for channel in ends for number in flying.pop(channel, ())
                ]
                if moves:
                    self._starts(schedule, flying, instruction, moves, starts)
            elif instruction.kind.endswith("-update") and instruction.names[0] in flying:
                # the same collective goes on under another name
                flying[name] = flying[instruction.names[0]]
            elif instruction.kind.endswith("-done") and instruction.names[0] in flying:
                ended = flying[instruction.names[0]]
                schedule += [["done", number] for number in ended]
                flying = {key: numbers for key, numbers in flying.items() if numbers is not ended}
            elif instruction.kind.removesuffix("-done") in (
                *COLLECTIVES,
                "async",
            ) and instruction.kind.endswith("-done"):
                if not here[instruction.names[0]].kind.endswith(("-start", "-update")):
                    raise UnreadableProgram(_ELSEWHERE + line.strip()[:300])
            else:
                schedule.append(["compute", self._seconds(instruction)])
        left = {number: None for numbers in flying.values() for number in numbers}
        return _joined([*schedule, *(["done", number] for number in left)])

    def _starts(self, schedule, flying, instruction, moves, channels):
        numbers = []
        for move in moves:
            seconds = predicted_seconds(move, self.chip, self.torus)
            if seconds is None:
                raise UnreadableProgram(
                    f"no formula says how long this takes: {instruction.line.strip()[:300]}"
                )
            numbers.append(self.count)
            schedule.append(["start", self.count, move.kind, move.bytes, seconds])
            self.count += 1
        if len(channels) == len(numbers):
            flying.update(
                (channel, [number]) for channel, number in zip(channels, numbers, strict=True)
            )
        elif channels:
            raise UnreadableProgram(
                f"which of its collectives does this fusion start? {instruction.line.strip()[:300]}"
            )
        elif instruction.kind.endswith("-start"):
            flying[instruction.name] = numbers
        else:  # one instruction
            schedule += [["done", number] for number in numbers]

    def _seconds(self, instruction):
        """Of an instruction that computes."""
        if _AHEAD.match(instruction.kind) or instruction.kind.endswith(
            ("-start", "-done", "-update")
        ):
            return 0.0
        if instruction.kind == "custom-call" and "Bitcast" in instruction.attributes:
            return 0.0
        flops = self.flops.one(instruction)
        if flops is None:
            raise UnreadableProgram(
                f"the FLOPs of {instruction.name} are not in the program's text, so its time "
                "is unknown: compile the step without this kernel, or read its time from a "
                f"profile: {instruction.line.strip()[:300]}"
            )
        return max(
            flops / self.chip.peak(), _hbm_bytes(instruction) / self.chip.hbm_bytes_per_second
        )


def _hbm_bytes(instruction: Instruction) -> float:
    """Bytes that an instruction reads and writes in HBM: of an operand of which it takes a slice,
    only the slice.
    """
    if instruction.kind == "fusion":
        return _of_fusion(instruction, instruction.called())
    if instruction.kind in ("dynamic-slice", "slice"):
        return 2 * _in_hbm(instruction.result)
    if instruction.kind == "dynamic-update-slice":
        return 2 * _in_hbm(instruction.operands[1])
    return _in_hbm(instruction.result) + sum(map(_in_hbm, instruction.operands))


def _of_fusion(fusion: Instruction, inner: Computation) -> float:
    lines = {name: inner[name] for name in inner.lines}
    root = lines[inner.root]
    results = [lines[name] for name in root.names] if root.kind == "tuple" else [root]
    users, total = {}, 0.0
    for line in lines.values():
        for name in (
            set(line.names)
            if line.kind != "tuple" and not line.kind.startswith(COLLECTIVES)
            else ()
        ):
            users.setdefault(name, []).append(line)
    # what a fusion hands through, such as the buffers of a collective, is not touched
    for result in results:
        if result.kind == "dynamic-update-slice":
            total += _in_hbm(result.operands[1])
        elif result.kind != "parameter" and not result.kind.startswith(COLLECTIVES):
            total += _in_hbm(result.result)
    for parameter in (line for line in lines.values() if line.kind == "parameter"):
        using = users.get(parameter.name, [])
        slices = [
            line
            for line in using
            if line.kind in ("dynamic-slice", "slice") and line.names[0] == parameter.name
        ]
        updated = [
            line
            for line in using
            if line.kind == "dynamic-update-slice" and line.names[0] == parameter.name
        ]
        if len(slices) + len(updated) == len(using):
            read = _in_hbm(parameter.result)
            total += min(read, sum(map(_whole, slices)))
        else:
            total += _in_hbm(parameter.result)
    return total


def _in_hbm(typed: str) -> float:
    """Bytes of the arrays of a type, or of a tuple of types, that are not in the fast memory of the
    chip.
    """
    return sum(map(type_bytes, array_types(_ON_CHIP.sub("", typed))))


def _whole(instruction: Instruction) -> float:
    return sum(map(type_bytes, array_types(instruction.result)))


def _joined(steps: Sequence[list]) -> list:
    """The same steps, those of computing joined where nothing stands between them."""
    schedule = []
    for is_compute, group in groupby(steps, key=lambda step: step[0] == "compute"):
        if not is_compute:
            schedule += group
        elif seconds := sum(seconds for _, seconds in group):
            schedule.append(["compute", float(f"{seconds:.4g}")])
    return schedule


def _run(steps: Sequence) -> Timeline:
    """Let a device and its links run through the steps."""
    if _length(steps) > MOST:
        raise UnreadableProgram(
            f"more than {MOST:,} steps, with every trip of the loops, are too many to show"
        )
    now = free = 0.0  # of the device, and of the links
    compute, waiting, flights, loops, flying = [], [], [], [], {}

    def spend(spans, end):
        nonlocal now
        if end > now:
            begin = spans.pop()[0] if spans and spans[-1][1] == now else now
            spans.append((begin, end))
            now = end

    def do(steps):
        nonlocal free
        for what, *step in steps:
            if what == "compute":
                spend(compute, now + step[0])
            elif what == "start":
                number, kind, sent, seconds = step
                begin = max(now, free)
                free = flying[number] = begin + seconds
                flights.append((kind, sent, begin, free))
            elif what == "done":
                spend(waiting, flying.pop(step[0]))
            else:
                spans = []
                loops.append(spans)
                for _ in range(step[0]):
                    begin = now
                    do(step[1])
                    spans.append((begin, now))

    do(steps)
    flown = [Flight(*flight, _shared(flight[2], flight[3], waiting)) for flight in flights]
    return Timeline(tuple(compute), tuple(waiting), tuple(flown), tuple(map(tuple, loops)), now)


def _length(steps: Sequence) -> int:
    """How many steps are done, with every trip of the loops."""
    return sum(step[1] * (1 + _length(step[2])) if step[0] == "loop" else 1 for step in steps)


def _shared(start: float, end: float, spans: Sequence[tuple[float, float]]) -> float:
    """How much of a span falls within these."""
    return sum(max(0.0, min(end, b) - max(start, a)) for a, b in spans)
