"""A compiled program as it is explained: its text, its collectives, and their origins."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shardlab.programs import collectives
from shardlab.programs.collectives import Collective
from shardlab.programs.flops import MatmulFlops, whole_flops
from shardlab.programs.hlo import Instruction, Program, array_types, dimensions
from shardlab.programs.inherited import Inheritance
from shardlab.programs.origins import Origin, Origins
from shardlab.report.causes import cause, members_called

__all__ = ["Compiled", "Located", "Unpartitioned", "locate"]


_OF_SHARD = 1 / 4  # a halo is no larger
_AS_IT_IS = ("bitcast", "convert", "copy", "get-tuple-element", "reshape", "transpose")


@dataclass(frozen=True)
class Compiled:
    """The text of a compiled program, and what is known of it beside its text.

    Attributes:
      text: of the program.
      meshes: meshes whose axes name the groups, before those that the text names itself.
      backend: for which it is compiled, such as "cpu" or "v5e:2x4".
      results: the bytes of each whole result, by its name, in order; {} if unknown.
      lowered: the `jax.stages.Lowered` that was compiled; None if unknown.
      messages: the lines that the compiler wrote.
      is_checked: whether the program has no `jax.shard_map` with `check_vma=False`.
      is_pmap: whether `jax.pmap` compiles it.
      inheritance: what following the axes of its arguments through its jaxpr has shown; None if
        unknown.
      names: those of its arguments, by their numbers; {} if unknown.
      data: the names of the arguments that no result can replace.
      stored: bytes of its arguments on each device; 0 if unknown.
    """

    text: str
    meshes: Sequence[Any] = ()
    backend: str = "an unknown backend"
    results: dict[str, int] = field(default_factory=dict)
    lowered: Any = None
    messages: Sequence[str] = ()
    is_checked: bool = True
    is_pmap: bool = False
    inheritance: Inheritance | None = None
    names: dict[int, str] = field(default_factory=dict)
    data: frozenset[str] = frozenset()
    stored: int = 0


@dataclass(frozen=True)
class Unpartitioned:
    """The program before XLA's partitioner: its `text`, and what is read from it."""

    text: str
    program: Program
    origins: Origins


@dataclass(frozen=True)
class Located:
    """A compiled program whose collectives have their origins and causes.

    Attributes:
      compiled: the `Compiled`.
      program: read from its text.
      before: the program before it was partitioned; None if unknown, and for one device.
      origins: of its instructions.
      meshes: all meshes whose axes name groups.
      collectives: each `Collective` with the instruction that starts it and its `Origin`.
      causes: for each of them what causes it, in words.
      kernels: the calls of kernels that communicate.
      flops: of its matrix products.
    """

    compiled: Compiled
    program: Program
    before: Unpartitioned | None
    origins: Origins
    meshes: list[Any]
    collectives: list[tuple[Collective, Instruction, Origin]]
    causes: list[str]
    kernels: list[Instruction]
    flops: MatmulFlops = field(default_factory=MatmulFlops)

    @cached_property
    def products(self):
        """FLOPs of matrix products by line: of the program before partitioning, and of each device.

        Both are None where the former program is unknown, or where their FLOPs are.
        """
        if self.before is None:
            return None, None
        before = self.before
        at_once = whole_flops(_place_by(before.origins), before.program, before.text)
        return at_once, self.flops.by(_place_by(self.origins), self.program.entry)

    @property
    def repeats(self) -> float:
        """How many times the FLOPs of its products all devices compute together; 1 if unknown."""
        at_once, each = self.products
        if not at_once or not each:
            return 1.0
        return self.program.devices * sum(each.values()) / sum(at_once.values())


def _place_by(origins):
    return lambda instruction: origins.place(instruction.line)


def locate(compiled: Compiled) -> Located:
    """Find the collectives of a program, and for each its line and its cause."""
    program = Program(compiled.text)
    meshes = [*compiled.meshes, *collectives.meshes_named_in(compiled.text, program.devices)]
    before = _unpartitioned(compiled) if program.devices > 1 else None
    origins_before = before.origins if before else None
    origins = Origins(program, compiled.text, list(compiled.results), origins_before)
    kernels = []
    located = [
        (move, start, origins.of(start, move.axes or move.within))
        for move, start in collectives.find(program, meshes, kernels)
    ]
    flags = compiled.is_checked, compiled.is_pmap, _weights(compiled)
    kept, members = _contiguous(compiled), origins_before.mapped_callbacks if before else {}
    causes = [
        members_called(members[place])
        if (place := (origin.file, origin.line)) in members
        else cause(move, origin, *flags, place in kept, _is_halo(move, start))
        for move, start, origin in located
    ]
    return Located(compiled, program, before, origins, meshes, located, causes, kernels)


def _is_halo(move, start):
    """Whether what a device sends is a small part of the array from which it is taken."""
    if move.kind != "collective-permute" or len(start.names) != 1:
        return False
    here, maker = start.home, start.home[start.names[0]]
    while maker.kind in _AS_IT_IS and len(maker.names) == 1:
        maker = here[maker.names[0]]
    largest = max(map(_elements, maker.operands), default=0)
    return maker.kind in ("fusion", "slice", "call") and (
        _elements(start.operands[0]) <= _OF_SHARD * largest
    )


def _elements(kind):
    return max((math.prod(dimensions(one)) for one in array_types(kind)), default=0)


def _weights(compiled):
    """The names of the arguments that meet in a product what has an axis of theirs, as weights that
    FSDP gathers meet the batch; None if unknown.
    """
    if compiled.inheritance is None or not compiled.names:
        return None
    activations = {small.met for small in compiled.inheritance.smalls.values()}
    return {
        compiled.names[number]
        for number, _ in compiled.inheritance.gathered
        if number in compiled.names and number not in activations
    }


def _contiguous(compiled):
    """The (file, line) of reshapes, all of which keep the shards of their operands contiguous."""
    inheritance = compiled.inheritance
    if inheritance is None:
        return frozenset()
    return inheritance.contiguous - {(one.file, one.line) for one, *_ in inheritance.merged}


def _unpartitioned(compiled):
    """The program before it was partitioned; None if it is unknown."""
    text = compiled.lowered and compiled.lowered.as_text(dialect="hlo", debug_info=True)
    if not text:
        return None
    program = Program(text)
    return Unpartitioned(text, program, Origins(program, text))
