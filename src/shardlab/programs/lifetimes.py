"""Follow the parameters of each layer through a compiled program: gathered, used, held, dropped,
and scattered again.

The instructions of a compiled program stand in the order in which it runs them. We walk through
them, through the body of a loop as often as it runs, and note for every array only where it came
from: out of which layer of a stack of layers it was taken, which all-gather made it, or which
product. Loops that `lax.scan` makes count their own trips, so we know which layer a trip takes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shardlab.programs.collectives import compile_for
from shardlab.programs.hlo import COLLECTIVES, MOST, Program, UnreadableProgram, promised

__all__ = ["Lifetimes", "lifetimes"]

_PASS_ON = ("bitcast", "convert", "copy", "opt-barrier", "reshape", "transpose", "all-gather-done",
    "copy-done",
            "reduce-scatter-done", "all-reduce-done", "copy-start")  # fmt: skip
_COMPUTE = {
    "add": int.__add__,
    "subtract": int.__sub__,
    "multiply": int.__mul__,
    "minimum": min,
    "maximum": max,
}
_COMPARE = {
    "LT": int.__lt__,
    "LE": int.__le__,
    "GT": int.__gt__,
    "GE": int.__ge__,
    "EQ": int.__eq__,
    "NE": int.__ne__,
}


@dataclass(frozen=True)
class Lifetimes:
    """What a program does with the parameters of each layer, in the order of its instructions.

    Attributes:
      lanes: for each layer its segments (label, start, end), as `shardlab.timeline` draws them.
        Time is counted in steps: each collective and each matrix product takes one. The labels are
        "all-gather", "product", "reduce-scatter", and "waits in memory" between two uses of what
        was gathered.
      steps: how many collectives and matrix products a device runs in one call of the program.
      most_held: how many layers are held gathered at once, at most.
    """

    lanes: dict[str, list[tuple[str, int, int]]]
    steps: int
    most_held: int


def lifetimes(f: Callable, *args: Any) -> Lifetimes:
    """When a program gathers, uses, drops and scatters the parameters of each layer.

    For a program that gathers two layers one after the other, uses each in one product, and needs
    neither again, `lanes` is `{"layer 0": [("all-gather", 0, 1), ("product", 1, 2)], "layer 1":
    [("all-gather", 2, 3), ("product", 3, 4)]}`, and `most_held` is 1.

    Args:
      f: a function, jitted or not, one of whose arguments is a stack of layers along its first
        dimension.
      *args: its arguments: arrays, or `jax.ShapeDtypeStruct`s with shardings.

    Returns:
      `Lifetimes`.

    Raises:
      ValueError: the program gathers no layer of a stack.
      shardlab.UnreadableProgram: only the run decides how often a loop runs, or which layer it
        takes.
    """
    program = Program(compile_for(f, *args).as_text())
    with promised():
        walk = _Walk(program)
    layers = walk.layers()
    if not layers:
        raise ValueError(
            "this program gathers no layer: one of its arguments must be a stack of layers, "
            "taken by scan"
        )
    lanes = {f"layer {layer}": walk.lane(layer) for layer in layers}
    live = [walk.held(layer) for layer in layers]
    most = max(
        sum(any(a <= step < b for a, b in spans) for spans in live)
        for step in range(len(walk.events))
    )
    return Lifetimes(lanes, len(walk.events), most)


@dataclass
class _Event:
    """A collective or a product: its label, the layer that it is about, if known, and the last step
    that needs it.
    """

    label: str
    layer: int | None
    last: int


class _Walk:
    """A run of a program on origins instead of numbers.

    An array is a dict from an index of its first dimension, or None for all of it, to the origins
    of what is there: a pair ("parameter", None) or ("layer", index) or ("event", step). A number is
    an int where it is known.
    """

    def __init__(self, program):
        # of each step: the products among its operands
        self.events, self._adds, self._left = [], {}, MOST // 4
        arguments = [
            self._array(("parameter", None))
            for line in program.entry.lines.values()
            if " parameter(" in line
        ]
        self._scatter(self._run(program.entry, arguments))

    def layers(self):
        return sorted(
            {e.layer for e in self.events if e.label == "all-gather" and e.layer is not None}
        )

    def held(self, layer):
        """The spans of steps from each all-gather of a layer to the last use of what it
        gathered.
        """
        return [
            (step, max(e.last, step) + 1)
            for step, e in enumerate(self.events)
            if e.label == "all-gather" and e.layer == layer
        ]

    def lane(self, layer):
        """The segments of a layer: what happens, and in between, while what was gathered is held,
        waiting.
        """
        busy, waits = (
            [(e.label, step, step + 1) for step, e in enumerate(self.events) if e.layer == layer],
            set(),
        )
        for start, end in self.held(layer):
            inside = [segment for segment in busy if start <= segment[1] < end]
            waits |= {("waits in memory", a[2], b[1]) for a, b in pairwise(inside) if a[2] < b[1]}
        return sorted([*busy, *waits], key=lambda segment: segment[1])

    # --- Arrays ---

    @staticmethod
    def _array(*origins):
        return {None: frozenset(origins)}

    def _origins(self, value):
        """All origins of an array, of a part of it, or of several."""
        if isinstance(value, tuple):
            return frozenset().union(*map(self._origins, value))
        return frozenset() if not isinstance(value, dict) else frozenset().union(*value.values())

    def _taken(self, array, index):
        """A layer out of a stack: of a parameter, or of what was put together layer by layer."""
        if not isinstance(array, dict) or index is None:
            return self._array(*self._origins(array))
        elements = array.get(None, frozenset()) | array.get(index, frozenset())
        return self._array(
            *(("layer", index) if origin == ("parameter", None) else origin for origin in elements)
        )

    def _scatter(self, result):
        """Tell reduce-scatters, and the products that they add up, whose layer it is: where the
        result puts them.
        """
        leaves = result if isinstance(result, tuple) else (result,)
        for leaf in leaves:
            for index, origins in leaf.items() if isinstance(leaf, dict) else ():
                for kind, step in origins:
                    if (
                        kind == "event"
                        and index is not None
                        and self.events[step].label == "reduce-scatter"
                    ):
                        self.events[step].layer = index
        for step, event in enumerate(self.events):
            for product in self._adds.get(step, ()) if event.label == "reduce-scatter" else ():
                if self.events[product].layer is None:
                    self.events[product].layer = event.layer

    # --- Instructions ---

    def _happens(self, label, operands):
        """A collective or product: the next step. It uses what was gathered, and belongs to the
        layer that it uses.
        """
        step = len(self.events)
        origins = self._origins(operands)
        events = [number for kind, number in origins if kind == "event"]
        gathers = [event for event in events if self.events[event].label == "all-gather"]
        layers = set()
        if label == "all-gather":
            layers = {number for kind, number in origins if kind == "layer"}
        elif label == "product":
            layers = {self.events[gather].layer for gather in gathers}
        self.events.append(_Event(label, layers.pop() if len(layers) == 1 else None, step))
        for gather in gathers:
            self.events[gather].last = step
        self._adds[step] = [event for event in events if self.events[event].label == "product"]
        return self._array(("event", step))

    def _run(self, here, arguments):
        values, self._left = {}, self._left - len(here.lines) - 1
        if self._left < 0:
            raise UnreadableProgram(
                f"more than {MOST // 4:,} instructions, with every trip of the loops, are too many"
            )
        for name in here.lines:
            instruction = here[name]
            values[name] = self._value(
                instruction, [values.get(operand) for operand in instruction.names], arguments
            )
        return values[here.root]

    def _value(self, instruction, operands, arguments):
        kind = instruction.kind.removesuffix("-start")
        if kind == "parameter":
            return arguments[int(instruction.inside)]
        if kind == "constant":
            return int(instruction.inside) if re.fullmatch(r"-?\d+", instruction.inside) else None
        if kind == "tuple":
            return tuple(operands)
        if kind == "get-tuple-element":
            place = int(instruction.attribute("index"))
            return operands[0][place] if isinstance(operands[0], tuple) else operands[0]
        if instruction.kind in _PASS_ON:
            return operands[0]
        if kind in COLLECTIVES:
            return self._happens(kind, tuple(operands))
        if kind in ("dot", "convolution") or (
            kind == "custom-call"
            and re.search("matmul|gemm", instruction.attribute("custom_call_target"))
        ):
            return self._happens("product", tuple(operands))
        if kind == "while":
            return self._loop(instruction, operands[0])
        if kind in ("fusion", "call"):
            return self._run(
                instruction.called("calls" if kind == "fusion" else "to_apply"), operands
            )
        if kind == "dynamic-slice":
            return self._taken(operands[0], operands[1] if isinstance(operands[1], int) else None)
        if kind == "slice":
            start, end = instruction.numbers("slice")[:2]
            return self._taken(operands[0], start if end == start + 1 else None)
        if kind == "concatenate" and instruction.attribute("dimensions") == "{0}":
            return self._joined(instruction, operands)
        if kind == "dynamic-update-slice":
            whole, part, index = operands[0], self._origins(operands[1]), operands[2]
            if not isinstance(index, int):
                return self._array(*self._origins(whole), *part)
            return {**(whole if isinstance(whole, dict) else {}), index: part}
        return self._computed(instruction, operands)

    def _joined(self, instruction, operands):
        """A stack out of parts, one below the other; those of length 1 are layers."""
        stack, index = {}, 0
        for part, of_type in zip(operands, instruction.operands, strict=True):
            length = int(re.search(r"\[(\d+)", of_type)[1])
            for row in range(index, index + length):
                stack[row] = self._origins(part)
            index += length
        return stack

    def _computed(self, instruction, operands):
        """A number, if all that it is computed from is known; else an array, computed from others
        one by one.
        """
        if all(isinstance(operand, int) for operand in operands) and operands:
            if instruction.kind in _COMPUTE and len(operands) == 2:
                return _COMPUTE[instruction.kind](*operands)
            if instruction.kind == "compare":
                return int(_COMPARE[instruction.attribute("direction")](*operands))
            if instruction.kind == "select":
                return operands[1] if operands[0] else operands[2]
        reused = set()
        for kind, number in self._origins(tuple(operands)):
            if kind == "event" and self.events[number].label == "all-gather":
                self.events[number].last = max(self.events[number].last, len(self.events) - 1)
            else:
                reused.add((kind, number))
        return self._array(*reused)

    def _loop(self, instruction, carried):
        (body, _, times), _ = instruction.calls()
        if times is None:
            raise UnreadableProgram(
                f"only the run decides how often this loop runs: {instruction.line.strip()[:300]}"
            )
        for _ in range(times):
            carried = self._run(body, [carried])
        return carried
