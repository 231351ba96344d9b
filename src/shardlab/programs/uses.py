"""What uses a value of a program first: followed through tuples, fusions, calls, loops and
branches.

A collective that XLA's partitioner inserts often carries the source line of what *made* its
operand. The line to change is that of the first operation that needs the value as the collective
leaves it.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator

from shardlab.programs.hlo import (
    COLLECTIVES,
    Computation,
    Instruction,
    array_types,
    dimensions,
    metadata,
    type_bytes,
)

__all__ = ["Uses", "is_constant", "is_in_loop"]

# In a large unrolled program a value that everything depends on would be followed to its end.
_MOST = 3_000
# What only moves values needs none of them: another operation after it does. So it is with
# collectives, which XLA's partitioner puts where layouts change, and not where the program asks for
# them.
_SAME = {
    "bitcast", "bitcast-convert", "broadcast", "convert", "copy", "copy-done", "copy-start",
    "dynamic-update-slice",
    "opt-barrier", "reduce-precision", "reshape", "transpose",
    *(f"{kind}{end}" for kind in COLLECTIVES for end in ("", "-start", "-done")),
}  # fmt: skip
# Each element of a result needs one of each operand, so a shard is enough, whatever the layout.
_ELEMENTWISE = {
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "cosine", "divide", "erf",
    "exponential",
    "exponential-minus-one", "floor", "is-finite", "log", "log-plus-one", "logistic", "maximum",
    "minimum", "multiply",
    "negate", "not", "or", "power", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt",
    "select", "sign",
    "sine", "sqrt", "subtract", "tan", "tanh", "xor",
}  # fmt: skip
# Every device makes its own part of these, so they force no layout on what they are combined with.
_CONSTANT = {"broadcast", "constant", "iota", "partition-id"}


class Uses:
    """The uses of the values of one program, compiled or only lowered.

    >>> from shardlab.programs.uses import Uses
    >>> program = Program(jax.jit(lambda a: jnp.sin(a) @ a).lower(jnp.ones((8, 8))).as_text(dialect="hlo"))
    >>> [(user.kind, needs) for user, needs in Uses().first(program.entry, "a.1")][-1]
    ('dot', True)
    """  # noqa: E501

    def __init__(self) -> None:
        """Begin with no computation looked at."""
        self._users = {}

    def users(self, here: Computation) -> dict[str, list[str]]:
        """For each name in a computation the names of the instructions that have it as an
        operand.
        """
        if here.name not in self._users:
            users = self._users[here.name] = {}
            for name, line in here.lines.items():
                # Names of arguments in the metadata can equal those of instructions.
                text = line.partition(" = ")[2].partition(", metadata=")[0]
                # Compiled programs mark names with %. Lowered ones do not: there only what stands
                # around a word tells it from an attribute, an operation and a literal.
                marked = (
                    r"%([\w.\-]+)" if "%" in line else r"(?<![\w.\-=@\"])([\w.\-]+)(?![\w.\-(=\[])"
                )
                for used in re.findall(marked, text):
                    if used in here.lines and name not in users.setdefault(used, []):
                        users[used].append(name)
        return self._users[here.name]

    def first(
        self, here: Computation, name: str, dimension: int | None = None, elementwise: bool = False
    ) -> Iterator[tuple[Instruction, bool]]:
        """The first operations that use a value, nearest first, each with whether it needs it as a
        whole.

        An elementwise operation of one array needs no other element; what uses its result is looked
        at in its place.

        Args:
          here, name: the computation, and the name of the value in it.
          dimension: the dimension of the value that was gathered, so that a slice of another one
            does not count.
          elementwise: whether no elementwise operation counts, whatever its other operands are.
        """
        whole = array_types(here[name].result)[:1]

        # Behind a reshape or a transpose the number of the dimension means another one.
        def needs(user, place):
            along = dimension if array_types(user.operands[place])[:1] == whole else None
            return _needs(user, place, along, elementwise)

        for user, is_needed in self._reached(here, name, needs):
            if is_needed or user.kind in _ELEMENTWISE:
                yield user, is_needed

    def ends(
        self, here: Computation, name: str, callers: tuple[tuple[Computation, str], ...] = ()
    ) -> Iterator[Instruction]:
        """What uses a value, nearest first, and does not only pass it on.

        Args:
          here, name: the computation, and the name of the value in it.
          callers: the instructions that call the computation, as pairs of computation and name, the
            outermost first; without them no use after a loop counts.
        """
        reached = self._reached(here, name, lambda user, place: user.kind not in _SAME, callers)
        return (user for user, is_end in reached if is_end)

    def sliced_in_loop(self, here: Computation, name: str, dimension: int) -> int:
        """How many parts of a value the iterations of loops take, one each, where nothing else uses
        it; else 0.

        Args:
          here, name: the computation, and the name of the value in it.
          dimension: one along which the parts must be whole.
        """
        whole, parts = next(map(dimensions, array_types(here[name].result)), []), set()
        for user in self.ends(here, name):
            part = _sizes(user.result) if user.kind == "dynamic-slice" and is_in_loop(user) else []
            sizes = zip(part, whole, strict=False)
            along = [n for n, (size, whole_size) in enumerate(sizes) if size != whole_size]
            # A part along the gathered dimension is on one device alone, so no gather in the loop
            # could replace the whole one.
            if (
                len(part) != len(whole)
                or len(along) != 1
                or along[0] == dimension
                or part[along[0]] != 1
            ):
                return 0
            parts.add(whole[along[0]])
        return max(parts, default=0)

    def added_up(
        self, here: Computation, names: Iterable[str]
    ) -> list[tuple[Instruction, frozenset[str]]]:
        """The additions that add several values of a computation, or multiples of these, and are
        their only uses: each with the names of all that it adds.

        Args:
          here: the computation.
          names: of the values.
        """
        reached, direct = {}, {}

        def is_end(user, place):
            return user.kind not in _LINEAR or (user.kind == "divide" and place > 0)

        for value in names:

            def is_end_of_sum(user, place, value=value):
                if user.kind == "add":
                    key = user.home.name, user.name
                    reached.setdefault(key, (user, ({}, {})))[1][place][value] = None
                return user.kind != "add" and is_end(user, place)

            uses = self._reached(here, value, is_end)
            direct[value] = {(user.home.name, user.name) for user, ends in uses if ends}
            deque(self._reached(here, value, is_end_of_sum), maxlen=0)
        sums = {
            key: (user, frozenset({*left, *right}))
            for key, (user, (left, right)) in reached.items()
            if left and right and not left.keys() & right.keys()
        }
        only = {value for value, uses in direct.items() if uses and uses <= sums.keys()}
        return [(user, terms & only) for user, terms in sums.values() if len(terms & only) > 1]

    def _reached(self, here, name, stops, callers=()):
        """What uses a value, nearest first, each with what `stops` says; if that is False, its
        result is followed.
        """
        waiting, seen = deque([(here, name, (), callers)]), set()
        while waiting and len(seen) < _MOST:
            here, name, path, callers = waiting.popleft()
            # Several instructions may call a computation; behind another call it is another value.
            if name == here.root and callers:
                waiting.append((*callers[-1], path, callers[:-1]))
            for user_name in self.users(here).get(name, ()):
                if (here.name, user_name, path) in seen:
                    continue
                seen.add((here.name, user_name, path))
                user = here[user_name]
                for place, operand in enumerate(user.names):
                    if operand != name:
                        continue
                    inside = _entered(user, place)
                    # A loop carries all of its state in one tuple. Without the path, whatever takes
                    # any element of it would count as a use.
                    if user.kind == "tuple":
                        waiting.append((here, user_name, (place, *path), callers))
                    elif user.kind == "get-tuple-element":
                        if path and int(user.attribute("index")) == path[0]:
                            waiting.append((here, user_name, path[1:], callers))
                    elif inside:
                        waiting += [(*one, path, (*callers, (here, user_name))) for one in inside]
                    # A copy and a barrier pass whole tuples on, so the path holds behind them too.
                    elif path:
                        waiting.append((here, user_name, path, callers))
                    else:
                        is_end = stops(user, place)
                        yield user, is_end
                        if not is_end:
                            waiting.append((here, user_name, (), callers))

    def in_loop(self, instruction: Instruction) -> str:
        """How the loop that an instruction is part of uses its result.

        Args:
          instruction: one whose home is the body of a loop.

        Returns:
          "added" if iterations only add it to what the loop carries, "stacked" if they only keep it
          for after the loop, scaled or not; "" if an iteration computes anything else with it.
        """
        body, usage = instruction.home, ""
        waiting, seen, factors = (
            deque([(body, instruction.name, ())]),
            {(body.name, instruction.name)},
            set(),
        )
        while waiting:
            here, name, callers = waiting.popleft()
            if name == here.root and callers:
                waiting.append((*callers[-1], callers[:-1]))
            for user_name in self.users(here).get(name, ()):
                user = here[user_name]
                # The root's tuple is the next iteration's state: what reaches it is kept, not
                # computed with.
                if (here.name, user_name) in seen or (
                    here is body and user_name == here.root and user.kind == "tuple"
                ):
                    continue
                seen.add((here.name, user_name))
                for place in (n for n, operand in enumerate(user.names) if operand == name):
                    others = [operand for operand in user.names if operand != name]
                    inside = _entered(user, place) if user.kind in ("fusion", "call") else []
                    if inside:
                        waiting += [(*one, (*callers, (here, user_name))) for one in inside]
                        seen |= {(callee.name, parameter) for callee, parameter in inside}
                        continue
                    carried = _carried(here, others[0], callers) if others else None
                    if user.kind == "add" and carried is not None:
                        if not self._is_only_added(body, carried):
                            return ""
                        usage = "added"
                    elif user.kind == "dynamic-update-slice" and place == 1:
                        usage = usage or "stacked"
                    # Sums over devices and over iterations can change places where all that stands
                    # between them is linear; a quotient by the sum is not.
                    elif user.kind not in _LINEAR or (user.kind == "divide" and place):
                        return ""
                    elif user.kind in ("divide", "multiply"):
                        factors |= {(here.name, other) for other in others or [name]}
                    waiting.append((here, user_name, callers))
        # A result times itself is no longer linear in it: the sum must come first.
        return "" if factors & seen else usage

    def _is_only_added(self, body, place):
        """Whether a loop only adds to an element of its state: another use, as of what a layer gets
        from the one before, needs the sum in each iteration.
        """
        state = next(name for name, line in body.lines.items() if " parameter(0)" in line)
        parts = (body[name] for name in self.users(body).get(state, ()))
        parts = (part for part in parts if part.kind == "get-tuple-element")
        same = (part for part in parts if int(part.attribute("index")) == place)
        ends = (user for part in same for user in self.ends(body, part.name))
        # TPUs' compiler selects between zeros and the sum before it adds
        return all(user.kind in ("add", "select") for user in ends)


# A device that keeps its shard of a sum takes a slice of it.
_LINEAR = {
    *_SAME, "divide", "dynamic-slice", "get-tuple-element", "multiply", "negate", "slice",
} - {"dynamic-update-slice"}  # fmt: skip


def _carried(here, name, callers):
    """Where in the state of a loop a value is that it carries from one iteration to the next; None
    if it is no part of it.
    """
    for _ in range(20):
        value = here[name]
        if value.kind == "parameter" and callers:
            (here, caller), callers = callers[-1], callers[:-1]
            name = here[caller].names[int(value.inside)]
        elif value.kind == "get-tuple-element":
            is_state = here[value.names[0]].kind == "parameter"
            return int(value.attribute("index")) if is_state else None
        elif value.kind in _SAME and value.names:
            name = value.names[0]
        # TPUs' compiler starts a sum in the first iteration: it selects zeros or what is carried.
        elif value.kind == "select" and (kept := _of_selection(here, value)):
            name = kept
        else:
            return None
    return None


def _of_selection(here, value):
    """The only branch of a selection that is no constant; "" if there is none."""
    branches = [name for name in value.names[1:] if not is_constant(here, name)]
    return branches[0] if len(branches) == 1 else ""


def is_constant(here: Computation, name: str) -> bool:
    """Whether a value is a constant, or made of one.

    Args:
      here, name: the computation, and the name of the value in it.
    """
    value = here[name]
    while value.kind in ("bitcast", "broadcast", "convert", "copy", "reshape") and value.names:
        value = here[value.names[0]]
    return value.kind == "constant"


def _entered(user, place):
    """Where an operand is in the computations that an instruction runs: pairs of computation and
    name.
    """
    # A while loop has one operand, its whole state. A conditional's first operand chooses the
    # branch, and each of the others goes into one of them.
    if user.kind in ("fusion", "call"):
        number, bodies = place, [user.called("calls" if user.kind == "fusion" else "to_apply")]
    elif user.kind == "while":
        number, bodies = 0, [user.called("body")]
    elif user.kind == "conditional" and place:
        branches = [callee for callee, *_ in user.calls()]
        number, bodies = 0, branches[place - 1 : place]
    else:
        return []
    return [
        (body, name)
        for body in bodies
        for name, line in body.lines.items()
        if re.search(rf" parameter\({number}\)", line)
    ]


def _needs(user, place, dimension, elementwise):
    """Whether an instruction needs its operand whole along a dimension; along any, if the dimension
    is not known.
    """
    # XLA inserts reshapes for layouts, which need nothing. One that JAX wrote, which XLA may turn
    # into a bitcast, keeps shards contiguous only if the sizes up to the gathered dimension stay.
    if user.kind in ("reshape", "bitcast") and metadata(user.line).get("op_name", "").endswith(
        "/reshape"
    ):
        before, after = (_sizes(kind) for kind in (user.operands[place], user.result))
        return dimension is not None and before[: dimension + 1] != after[: dimension + 1]
    if user.kind in _SAME:
        return False
    if user.kind in _ELEMENTWISE:
        # Operands must be stored alike, and to move the smaller one is cheaper: a large one is
        # gathered only for another that is as large.
        others = (
            n for n in range(len(user.names)) if n != place and user.names[n] != user.names[place]
        )
        size = _bytes(user.operands[place])
        return not elementwise and any(
            _bytes(user.operands[n]) >= size and user.home[user.names[n]].kind not in _CONSTANT
            for n in others
        )
    if user.kind in ("dynamic-slice", "slice"):
        before, after = (_sizes(kind) for kind in (user.operands[place], user.result))
        # A scan takes its rows by slices, one in each iteration, which is no use of all of them.
        return (dimension is None and not is_in_loop(user)) or (
            dimension is not None and (before[dimension] != after[dimension])
        )
    return True


def is_in_loop(instruction: Instruction) -> bool:
    """Whether JAX wrote an operation as part of the loop of a scan, a map or a fori_loop."""
    # The name tells it: XLA puts operations of a loop into fusions, which do not show the loop.
    return "while/body" in metadata(instruction.line).get("op_name", "")


def _sizes(kind):
    return next(map(dimensions, array_types(kind)), [])


def _bytes(kind):
    return sum(map(type_bytes, array_types(kind)))
