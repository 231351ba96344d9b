"""What a compiled program holds at once: the temporaries that are alive at its peak.

The text of a compiled program has the order in which a device runs it. We walk through it, note
where each temporary is made and used last, and where their sum is largest. Compilers reuse memory
in more ways than that, so the sum is an estimate; what is alive then is not.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shardlab.programs.hlo import (
    Computation,
    Instruction,
    Program,
    array_types,
    promised,
    type_bytes,
)

__all__ = ["Alive", "alive_at_peak", "most_alive"]

# These hand on the memory of their operands.
_ALIASES = ("bitcast", "opt-barrier", "while")
_ARRAY = re.compile(r"(\w+\[[\d,<=]*\])(\{[^}]*\})?")
_NO_MEMORY = ("constant", "iota", "parameter", "partition-id", "replica-id", "after-all")


@dataclass(frozen=True)
class Alive:
    """A temporary that is alive at the peak.

    Attributes:
      instruction: what makes it, or in a loop one of its parts.
      type: of the array, such as "f32[4,32,512]".
      bytes: on each device; 0 for what TPUs keep on the chip itself.
      is_stack: whether its parts are written one by one.
    """

    instruction: Instruction
    type: str
    bytes: int
    is_stack: bool = False


@promised()
def alive_at_peak(program: Program) -> list[Alive]:
    """The temporaries of a program that a device holds where it holds most, the largest first;
    without its results.

    >>> from shardlab.programs.liveness import alive_at_peak
    >>> f = lambda a: jnp.dot(jnp.dot(a, a.T), a)  # in between 256 by 256
    >>> text = jax.jit(f).lower(jnp.ones((256, 4))).compile().as_text()
    >>> [(one.type, one.bytes) for one in alive_at_peak(Program(text))][:1]
    [('f32[256,256]', 262144)]

    Args:
      program: a compiled one, whose instructions stand in the order in which they run.
    """
    walk = _Walk()
    _, alive = walk.peak(program.entry, [])
    alive = [(key, one) for key, one in alive if key not in walk.results]
    parts = walk.writers
    alive = [
        replace(one, instruction=parts[key], is_stack=True) if key in parts else one
        for key, one in alive
    ]
    return sorted(alive, key=lambda one: -one.bytes)


@promised()
def most_alive(program: Program, is_wanted: Callable[[Instruction, str], bool]) -> int:
    """The most bytes that a program holds at once of some of its temporaries and results.

    Args:
      program: the compiled program.
      is_wanted: says of an instruction and the type of one of its results, such as "f32[4,8]",
        whether it is one of them.
    """
    return _Walk(is_wanted).peak(program.entry, [])[0]


class _Walk:
    """A walk through a program. A value is the set of the temporaries that hold it, each named by
    its computation, its instruction and its place in the result, or a tuple of values.
    """

    def __init__(self, is_wanted=lambda instruction, kind: True):
        self.is_wanted = is_wanted
        self.writers = {}  # what writes a part of a temporary, by its name
        self.results = frozenset()  # the names of what the program returns
        self.counted = set()  # the names of the temporaries that are wanted

    def peak(self, here: Computation, arguments: list, in_loop: bool = False) -> tuple[int, list]:
        """The most bytes of temporaries that a computation holds at once, and these by name; of the
        body of a loop beside what it carries.
        """
        order = [here[name] for name in here.lines]
        values, last, made = {}, {}, {}
        for step, instruction in enumerate(order):
            used = [values.get(name, frozenset()) for name in instruction.names]
            last |= dict.fromkeys(frozenset().union(*map(_leaves, used)), step)
            if instruction.kind == "parameter" and arguments:
                value = arguments[int(instruction.inside)]
            else:
                value = self._value(instruction, used)
            values[instruction.name] = value
            made[instruction.name] = [
                (key, Alive(instruction, kind, _bytes(kind, layout)))
                for place, (kind, layout) in enumerate(_ARRAY.findall(instruction.result))
                if (key := (here.name, instruction.name, place)) in _leaves(value)
                and self.is_wanted(instruction, kind)
            ]
            self.counted |= {key for key, _ in made[instruction.name]}
        kept = _leaves(values.get(here.root, frozenset()))
        carried = self._in_memory_of_carried(values.get(here.root), arguments) if in_loop else ()
        most, at_most, held = 0, [], {}
        for step, instruction in enumerate(order):
            held |= (row for row in made[instruction.name] if row[0] not in carried)
            used = [values.get(name, frozenset()) for name in instruction.names]
            inside = [self.peak(*entered) for entered in _entered(instruction, used)]
            inner_bytes, inner = max(inside, key=lambda peak: peak[0], default=(0, []))
            total = sum(one.bytes for one in held.values()) + inner_bytes
            if total > most:
                most, at_most = total, [*held.items(), *inner]
            for key in [key for key in held if last.get(key, step) <= step and key not in kept]:
                del held[key]
        self.results = kept  # at last those of the program itself
        return most, at_most

    def _in_memory_of_carried(self, root, arguments):
        """The results of a loop's body that are in the memory of what the loop carries, where this
        is counted: compilers copy before the loop what cannot be written over.
        """
        before = arguments[0] if arguments else ()
        if not (isinstance(root, tuple) and isinstance(before, tuple)):
            return frozenset()
        pairs = zip(root, before, strict=False)
        return frozenset().union(*(_leaves(r) for r, b in pairs if _leaves(b) & self.counted))

    def _value(self, instruction, used):
        kind, here = instruction.kind, instruction.home.name
        if kind in _NO_MEMORY:
            return frozenset()
        if kind == "tuple":
            return tuple(used)
        if kind == "get-tuple-element":
            place = int(instruction.attribute("index"))
            return used[0][place] if isinstance(used[0], tuple) else used[0]
        if kind in _ALIASES:
            return used[0] if used else frozenset()
        if kind.endswith("-done"):
            return frozenset().union(*map(_leaves, used))
        if kind == "dynamic-update-slice":  # writes into the memory of the whole
            return self._written(instruction.home[instruction.names[1]], used[0])
        types = array_types(instruction.result)
        if kind.endswith("-start"):  # its operands are in the result too, and a counter
            sizes = list(map(type_bytes, types))
            largest = max(range(len(types)), key=sizes.__getitem__)
            return frozenset({(here, instruction.name, largest)})
        outputs = [frozenset({(here, instruction.name, place)}) for place in range(len(types))]
        if kind == "fusion":
            for place, (number, part) in _updated(instruction.called()).items():
                if part.kind == "parameter":
                    part = instruction.home[instruction.names[int(part.inside)]]
                outputs[place] = self._written(part, used[number])
        return tuple(outputs) if instruction.result.startswith("(") else outputs[0]

    def _written(self, part, value):
        """A value, into which an instruction's result is written as a part."""
        self.writers |= dict.fromkeys(_leaves(value), part)
        return value


def _entered(instruction, used) -> Iterator[tuple]:
    """The computations that run for an instruction with temporaries of their own, and the values of
    their arguments.
    """
    callees = [callee for callee, *_ in instruction.calls()]
    if instruction.kind in ("while", "call"):
        yield from ((callee, used, instruction.kind == "while") for callee in callees)
    elif instruction.kind == "conditional":
        yield from zip(callees, ([value] for value in used[1:]), strict=False)


def _bytes(kind, layout):
    """Bytes of an array in a device's large memory: TPUs' compilers mark the others by a space."""
    return 0 if re.search(r"S\([1-9]", layout) else int(type_bytes(kind))


def _updated(inside):
    """Which results of a fusion are an operand in which a part is updated: by the place of the
    result the operand's number, and what makes the part.
    """
    root, operands = inside[inside.root], {}
    for place, name in enumerate(root.names if root.kind == "tuple" else [root.name]):
        update = _before(inside, name)
        if update.kind == "dynamic-update-slice":
            whole = _before(inside, update.names[0])
            if whole.kind == "parameter":
                operands[place] = int(whole.inside), _before(inside, update.names[1])
    return operands


def _before(here, name):
    """What makes a value, up to its layout."""
    value = here[name]
    while value.kind in ("bitcast", "broadcast", "copy", "reshape"):
        value = here[value.names[0]]
    return value


def _leaves(value):
    """All temporaries of a value."""
    if isinstance(value, tuple):
        return frozenset().union(*map(_leaves, value))
    return value
