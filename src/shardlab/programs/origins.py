"""Where an instruction of a compiled program comes from: its source line, its pass, and the
argument that it moves.

JAX writes into each instruction the operation and the source line that made it, and XLA keeps that
in the program's text. What XLA's partitioner inserts carries the line of the operation that needed
it, the line of what made its operand or, since 2026, the name of the argument that it moves. In the
last two cases the line is that of the first operation that needs the array whole, or of the
constraint that asks for it, which only the program before partitioning shows.
"""

import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from shardlab._arguments import plain
from shardlab.costs.communication.kinds import KINDS, OPERATIONS
from shardlab.programs.hlo import (
    COLLECTIVES,
    Instruction,
    Program,
    array_types,
    dimensions,
    metadata,
    promised,
)
from shardlab.programs.uses import Uses, is_in_loop

__all__ = ["CALLBACKS", "Origin", "Origins", "is_in_backward", "own_places", "where"]

# XLA puts these between an argument and its gather. Without them one that is cast to bfloat16 on
# the way would count as computed, and have no name.
_PASS_ON = (
    "bitcast",
    "convert",
    "copy",
    "copy-start",
    "copy-done",
    "dynamic-slice",
    "opt-barrier",
    "reshape",
    "slice",
    "transpose",
)
CALLBACKS = {"debug_callback", "debug_print", "io_callback", "pure_callback"}
_UNSLICED = set(_PASS_ON) - {"dynamic-slice", "slice"}
# JAX's own machinery has operations of these names: a scan takes its rows with dynamic_slice and
# squeeze. To name one of them as the use would blame what stands in no program of the user.
_ON_THE_WAY = ("while", "body", "closed_call", "dynamic_slice", "squeeze", "convert_element_type",
    "broadcast_in_dim",
               "checkpoint", "remat", "remat2", "rematted_computation")  # fmt: skip
_LAYOUTS = ("broadcast_in_dim", "copy", "reshape", "squeeze", "transpose")
# A line of Flax or Optax is none that the reader can change; the one that calls it is.
_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python3|/src/shardlab/")
# Frames go on to the script or the cell that calls `explain`, which is no part of the program.
_EXPLAIN = re.compile(r"/shardlab/(programs/collectives|report/explain)\.py$")
# A program unrolled over many layers has 10^5 instructions, and each collective is followed anew.
_MOST = 3_000


@dataclass(frozen=True)
class Origin:
    """Where an instruction comes from.

    Attributes:
      operation: JAX's name of the operation, such as "dot_general"; "" if the program does not say.
      phase: "forward", "backward" or "update" (after the backward pass); "" if the program does not
        say.
      file: the source file; "" if the program does not say.
      line: the line in it; 0 if the program does not say.
      argument: the argument of the program that the instruction moves, such as "params['w']"; "" if
        it is computed.
      results: the results of the program that depend on it, such as `("result[0]['w']",)`, where
        these are at most three for each of its operands, and not all; () else, and for an argument.
      stack: JAX's whole name of the operation, such as "jit(step)/transpose(jvp())/dot_general".
      use: JAX's operation that uses the result first, such as "scatter"; "" if the program does not
        say, and "result" if nothing uses it.
      is_loop: whether that operation takes the array apart in a loop, as a scan and `jax.lax.map`
        do.
      is_grouped: whether that operation is a convolution in groups.
      maker: JAX's operation that made the operand; "" if the program does not say.
      made: the (file, line) of what made the array, if it is another line; else ("", 0).
      callers: the calls that lead to this line, each as the (file, line) of its frames, the
        innermost first; several where the program does not say which of them it is.
    """

    operation: str = ""
    phase: str = ""
    file: str = ""
    line: int = 0
    argument: str = ""
    results: tuple[str, ...] = ()
    stack: str = ""
    use: str = ""
    is_loop: bool = False
    is_grouped: bool = False
    maker: str = ""
    made: tuple[str, int] = ("", 0)
    callers: tuple[tuple[tuple[str, int], ...], ...] = ()


class _Use(NamedTuple):
    """The first use of an array: JAX's whole name, or "unknown" without one, and the place."""

    stack: str = ""
    place: tuple[str, int] = ("", 0)
    is_loop: bool = False
    is_grouped: bool = False

    @property
    def site(self):
        """The name and the place; None where the place is unknown."""
        return (self.stack, self.place) if self.place[1] else None

    @property
    def operation(self):
        """JAX's operation, as `Origin.use` has it."""
        return "" if self.stack == "unknown" else _operation(self.stack)


class Origins:
    """The origins of a program's instructions.

    Args:
      program: a `shardlab.Program`.
      text: the text that it was read from.
      results: the names of the program's results, in order; without them they are numbered.
      before: the `Origins` of the program before it was partitioned, if known.

    Attributes:
      is_differentiated: whether the program has a backward pass.
      is_gradient: whether the program computes nothing after its backward pass: its results are
        gradients.
    """

    def __init__(
        self,
        program: Program,
        text: str,
        results: Sequence[str] | None = None,
        before: "Origins | None" = None,
    ) -> None:
        """Read the tables of files and stack frames, where the text has them."""
        self._program, self._results, self._parts, self._before = program, results, {}, before
        self._text = text
        self._uses, self._found = Uses(), {}
        # The sizes of axes are needed before partitioning, where shardings name axes and no groups.
        self._mesh = (re.search(r"xla\.sdy\.meshes=\{[^\n]*", text) or [""])[0]
        # Older texts have source_file and source_line in each line; where XLA keeps whole frames,
        # lines have numbers into these tables.
        files = dict(re.findall(r'^(\d+) "(.*)"$', _table(text, "FileNames"), re.M))
        functions = dict(re.findall(r'^(\d+) "(.*)"$', _table(text, "FunctionNames"), re.M))
        locations = r"^(\d+) \{file_name_id=(\d+) function_name_id=(\d+) line=(\d+)"
        places = re.findall(locations, _table(text, "FileLocations"), re.M)
        self._places = {
            number: (files.get(file, ""), int(line)) for number, file, _, line in places
        }
        self._functions = {number: functions.get(function, "") for number, _, function, _ in places}
        frames = re.findall(
            r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?",
            _table(text, "StackFrames"),
            re.M,
        )
        # XLA writes a parent's number plus one, so a frame that names itself has none.
        self._frames = {
            int(number): (place, int(parent or 1) - 1) for number, place, parent in frames
        }
        self._root = program.entry[program.entry.root]
        self.is_differentiated = re.search(r'op_name="[^"]*transpose\(', text) is not None
        # The names of differentiated operations contain jvp( or transpose(. An update has plain
        # ones: what remains beside plumbing and layouts is work after the gradients.
        outside = set(
            re.findall(
                r'op_name="\w+\([^"]*\)/(\w+)"', re.sub(r'op_name="[^"]*jvp\([^"]*"', "", text)
            )
        )
        self.is_gradient = self.is_differentiated and outside <= {*_ON_THE_WAY, "copy", "transpose"}
        self._callers = {}
        for here in program:
            for name, line in here.lines.items():
                for called in re.findall(r"\b(?:calls|to_apply|body)=%?([\w.\-]+)", line):
                    self._callers.setdefault(called, (here, name))

    @cached_property
    def mapped_callbacks(self) -> Mapping[tuple[str, int], int]:
        """How many times `jax.vmap` makes a callback's line call the host, by (file, line), where
        it does for each of its members; 0 for calls in a loop.
        """
        calls = Counter()
        for here in self._program:
            for line in here.matching(r" (custom-call|send)\("):
                stack, place = self._metadata(line.line)
                if _operation(stack) in CALLBACKS and "vmap(" in stack:
                    calls[place] += 0 if "while" in stack else 1
        return {place: times for place, times in calls.items() if times != 1}

    @promised()
    def of(self, instruction: Instruction, axes: Sequence[str] | None = None) -> Origin:
        """The `Origin` of an instruction; for a collective with the mesh `axes` along which it
        communicates.
        """
        argument = self._argument(instruction)
        # Other work is scheduled between start and end, so only the end's uses are those of the
        # result.
        instruction = _end(instruction)
        makers = self._made(instruction)
        made = makers[0]
        own = self._own_site(instruction, makers)
        use = self._use(instruction, makers)
        stack, place, *callers = self._site(instruction, own, makers, use, argument, axes)
        if _is_stored(stack, use, argument) and made[1][1]:
            (stack, place), use = made, _Use("result")
        elif (stack, place) == made and not argument and self._is_only_stored(instruction):
            use = _Use("result")
        # JAX's names begin with "jit(...)". Newer partitioners write an argument's name in their
        # place, which is no operation, and would be taken for a forward pass below.
        if "(" not in stack:
            stack, place = "", ("", 0)
        made = ("", 0) if argument or made[1] == place or not made[1][1] else made[1]
        phase = self._phase(stack)
        # The gradient of w in sum(x * w) is x: the operand is an argument, yet what is sent is a
        # part of a gradient.
        if _adds(instruction) and phase == "backward":
            argument = ""
        return Origin(
            _operation(stack),
            phase,
            *place,
            argument,
            () if argument else self._reached(instruction, phase),
            stack,
            use.operation,
            use.is_loop,
            use.is_grouped,
            "" if argument else _operation(makers[0][0]),
            made,
            tuple(callers) or self._callers_of(instruction, stack, place),
        )

    def _own_site(self, instruction, makers):
        """The name and place that a collective carries itself."""
        site = self._metadata(self._own_line(instruction))
        # XLA's combiner joins collectives, and keeps the name of any one of them.
        if len(instruction.names) > 1 and site not in makers:
            names = instruction.names
            others = [maker for name in names for maker in self._made(instruction, name)[:10]]
            site = makers[0] if site in others else site
        # The compiler for TPUs leaves the name out where it has made a sum and a slice one.
        if "(" not in site[0] and _adds(instruction) and "(" in makers[0][0]:
            site = makers[0]
        # A callback runs on one device. Its result reaches the others as an all-reduce in which
        # they add zeros, and which has the name of whatever follows the callback.
        foreign = self._foreign(instruction) if instruction.kind == "all-reduce" else None
        return foreign or site

    def _site(self, instruction, own, makers, use, argument, axes):
        """The name and place of what needs a collective, and the calls that lead to a
        constraint.
        """
        if use.operation in CALLBACKS and not _adds(instruction):
            return use.site or own
        if not self._is_elsewhere(instruction, own, makers, axes):
            return own
        constraint = self._constraint_site(instruction, [own, *makers[:10]], argument, axes)
        if constraint and constraint[:2] == (f"jit()/{_operation(own[0])}", own[1]):
            return own  # the same operation, with the names of the functions around it
        return constraint or use.site or own

    def _is_elsewhere(self, instruction, own, makers, axes):
        """Whether another line than its own needs a collective."""
        stack, place = own
        operation = _operation(stack)
        # The partitioner gives what it inserts the metadata of the operand: that line made the
        # array, and a later one needs it. A sum is part of its own line, and so is what a shard_map
        # contains.
        is_of_operand = own in makers or ("(" in stack and not place[1])
        inserted = is_of_operand and not _adds(instruction) and operation not in OPERATIONS
        inserted = inserted or self._is_kept(instruction, stack, place, axes)
        return inserted or "(" not in stack or operation in _ON_THE_WAY

    def _phase(self, stack):
        """The pass that an operation belongs to, by its whole name."""
        if "transpose(" in stack:
            return "backward"
        if stack and self.is_differentiated and "jvp(" not in stack:
            return "update"
        return "forward" if stack else ""

    @promised()
    def in_loop(self, instruction: Instruction) -> str:
        """As `shardlab.programs.uses.Uses.in_loop`; "" also for an instruction that is in no loop's
        body.
        """
        # Bodies of fusions and branches have callers too, but what they compute is added up in no
        # loop.
        here, name = self._callers.get(instruction.home.name, (None, ""))
        return (
            self._uses.in_loop(instruction)
            if here is not None and here[name].kind == "while"
            else ""
        )

    @promised()
    def added_up(self, sums: Sequence[Instruction]) -> tuple[int, int]:
        """How many of the arrays that collectives of a computation add over devices are only added
        to one another, as one or with a factor each, and to how many sums they are added up.
        """
        here = sums[0].home
        names, groups = [], []
        for end in map(_end, sums):
            users = self._uses.users(here).get(end.name, ())
            parts = [name for name in users if here[name].kind == "get-tuple-element"]
            names += parts or [end.name]
        for _, terms in self._uses.added_up(here, names):
            joined = [group for group in groups if group & terms]
            groups = [group for group in groups if not group & terms]
            groups.append(terms.union(*joined))
        return sum(map(len, groups)), len(groups)

    def made(self, instruction: Instruction) -> tuple[str, str, bool, str, int]:
        """The operation and the pass of what makes a value, whether it computes again what a
        `jax.checkpoint` has not kept, and its file and line: that of the instruction, or the last
        known one in its fusion, or of its operand.
        """
        for _ in range(20):
            lines = [instruction.line]
            if instruction.kind == "fusion":
                lines += reversed(instruction.called().lines.values())
            for stack, place in map(self._metadata, lines):
                if "(" in stack and place[1]:
                    again = "rematted_computation" in stack
                    return _operation(stack), self._phase(stack), again, *place
            names = [name for name in instruction.names if name in instruction.home.lines]
            if instruction.kind not in (*_PASS_ON, *COLLECTIVES) or not names:
                break
            instruction = instruction.home[names[0]]
        return "", "", False, "", 0

    @promised()
    def is_kept_in_shards(self, instruction: Instruction, devices: int) -> bool:
        """Whether each of the devices that add keeps a shard of the sum: of a reduce-scatter, or by
        slices of most of it.
        """
        # TPUs' compiler writes a reduce-scatter as a fusion
        if instruction.kind.startswith(("reduce-scatter", "fusion")):
            return True
        here, whole, sliced = instruction.home, 0, 0
        users = lambda name: self._uses.users(here).get(name, ())  # noqa: E731
        parts = [name for name in users(instruction.name) if here[name].kind == "get-tuple-element"]
        for name in parts or [instruction.name]:
            size = _elements(here, name)
            whole += size
            uses = list(users(name))
            for user in uses:  # compilers for CPUs add bf16 in f32, and convert the sum
                uses += users(user) if _is_layout(here[user]) else ()
            sliced += size * any(0 < devices * _elements(here, user) <= size for user in uses)
        return 2 * sliced > whole

    @promised()
    def is_same_in_loop(self, instruction: Instruction) -> bool:
        """Whether the first operand of an instruction in the body of a loop is the same in each
        iteration, up to its type and layout.
        """
        here, name = instruction.home, instruction.names[0] if instruction.names else None
        for _ in range(100):
            maker = here[name] if name in here.lines else None
            if maker is None:
                return False
            if maker.kind == "fusion":
                if not _is_layout(maker):
                    return False
                name = maker.names[0]
            elif maker.kind == "get-tuple-element":
                place = int(maker.attribute("index"))
                if here[maker.names[0]].kind != "parameter":
                    return False
                return self._carried(here, place) is not None
            elif maker.kind in _UNSLICED:
                name = maker.names[0]
            else:
                return False
        return False

    @promised()
    def source(self, instruction: Instruction) -> tuple[str, str] | None:
        """What the first operand of an instruction is up to its type and layout: the computation
        and the name of what makes it, followed out of loops that carry it unchanged; None if
        unknown.
        """
        here, name = instruction.home, instruction.names[0] if instruction.names else None
        for _ in range(100):
            maker = here[name] if name in here.lines else None
            if maker is None:
                return None
            if maker.kind == "fusion" and len(maker.names) == 1:
                if not _is_layout(maker):
                    break
                name = maker.names[0]
            elif maker.kind == "get-tuple-element" and maker.names[0] in here.lines:
                place, source = int(maker.attribute("index")), here[maker.names[0]]
                if source.kind == "opt-barrier":
                    source = here[source.names[0]]
                if source.kind == "parameter" and (outer := self._carried(here, place)):
                    here, source = outer
                if source.kind != "tuple":
                    break
                name = source.names[place]
            elif maker.kind in _UNSLICED:
                name = maker.names[0]
            else:
                break
        return here.name, name

    def recomputed(self, instruction: Instruction, origin: Origin) -> tuple[bool, int]:
        """Which pass an instruction belongs to: whether it is the backward one, and in how many
        `jax.checkpoint`s around one another it computes again what the forward pass has computed.
        """
        stack = self._metadata(self._own_line(_end(instruction)))[0]
        inside = re.split(r"rematted_computation|remat2", stack)
        again = inside[0].count("checkpoint") + 1 if len(inside) > 1 else 0
        return "transpose(" in stack or origin.phase == "backward", again

    @promised()
    def sliced_in_loop(self, instruction: Instruction) -> int:
        """In how many iterations of loops a gathered array is used, one part in each, and nowhere
        else; else 0.
        """
        end = instruction.name.replace("-start", "-done")
        along = (
            instruction.numbers("dimensions") if instruction.kind.startswith("all-gather") else []
        )
        return (
            self._uses.sliced_in_loop(instruction.home, end, along[0])
            if along and end in instruction.home.lines
            else 0
        )

    @promised()
    def is_kept_for_backward(self, instruction: Instruction) -> bool:
        """Whether the backward pass uses a result of the forward pass as it is."""
        if "transpose(" in self._metadata(self._own_line(instruction))[0]:
            return False
        callers, caller = [], self._callers.get(instruction.home.name)
        # A scan keeps what its backward pass needs in stacks that leave the loop: the use is
        # outside.
        while caller is not None:
            callers.insert(0, caller)
            caller = self._callers.get(caller[0].name)
        end = _waiting(instruction)
        ends = self._uses.ends(end.home, end.name, tuple(callers))
        return any("transpose(" in self._metadata(user.line)[0] for user in ends)

    @promised()
    def forward_arguments(self) -> frozenset[str]:
        """The names of the program's arguments that its forward pass uses; of all, if it has no
        backward pass.
        """
        if not self.is_differentiated:
            return frozenset(self._arguments)
        # Moments of an optimiser are arguments too, but only the update, which has a plain name,
        # uses them.
        is_used = lambda user: re.search(r"jvp\(|transpose\(", self._metadata(user.line)[0])  # noqa: E731
        return frozenset(
            own
            for own, places in self._arguments.items()
            if any(is_used(user) for here, name in places for user in self._uses.ends(here, name))
        )

    @promised()
    def sources(self, instruction: Instruction) -> set[str]:
        """The arguments of the program from which an instruction's operands are computed, outside
        of loops.
        """
        entry, names, seen, found = self._program.entry, list(instruction.names), set(), set()
        while names and instruction.home is entry and len(seen) < _MOST:
            name = names.pop()
            if name in seen or name not in entry.lines:
                continue
            seen.add(name)
            maker = entry[name]
            if maker.kind == "parameter":
                found.add(metadata(maker.line).get("op_name") or f"argument {maker.inside}")
            names += maker.names
        return found

    def _is_only_stored(self, instruction):
        """Whether no operation uses what is gathered: it is a result, gathered for its sharding."""
        made = _operation(self._made(instruction)[0][0])  # a reshape may need it whole
        is_gather = instruction.kind.startswith("all-gather") and made not in _LAYOUTS
        return is_gather and not any(self._uses.first(instruction.home, instruction.name))

    def _use(self, instruction, makers):
        """The first operation that needs a result whole, as a `_Use`."""
        gathered = (
            instruction.numbers("dimensions") if instruction.kind.startswith("all-gather") else []
        )
        first, is_needed = _Use(), False
        for user, needs in self._uses.first(instruction.home, instruction.name, *gathered[:1]):
            used, where = self._metadata(user.line)
            # XLA pads what the devices do not divide; the slice that takes the padding off is no
            # use.
            is_needed = is_needed or (needs and user.kind != "slice")
            if "(" in used and where[1]:
                is_loop = user.kind == "dynamic-slice" and is_in_loop(user)
                if needs and (is_loop or _operation(used) not in _ON_THE_WAY):
                    groups = re.search(r"_group_count=(?!1\b)", user.attributes)
                    return _Use(used, where, is_loop, groups is not None)
                first = first if first.stack else _Use(used, where)
        # Some of XLA's passes write new operations without metadata. The program before
        # partitioning still has the name and the line.
        if is_needed and not first.stack and self._before is not None:
            for here, name in self._before._made_by(makers):
                for user, needs in self._before._uses.first(here, name):
                    used, where = self._before._metadata(user.line)
                    if needs and where[1]:
                        return _Use(_whole(used), where)
        return first if first.stack or not is_needed else _Use("unknown")

    def _made(self, instruction, name=None):
        """The names and places of what made a collective's operand, the last operation first; at
        least one pair.

        Of several operands it is the largest, unless another one is named.
        """
        here = instruction.home
        name = name or max(instruction.names, key=lambda name: _elements(here, name), default="")
        passed = []
        for _ in range(20):
            if name not in here.lines:
                break
            maker = here[name]
            # XLA joins neighbours into one kernel with several results; its computation has their
            # names.
            if maker.kind == "get-tuple-element" and here[maker.names[0]].kind == "fusion":
                maker = here[maker.names[0]]
            if maker.kind not in _PASS_ON:
                inside = maker.called().lines.values() if maker.kind == "fusion" else ()
                makers = [
                    self._metadata(maker.line),
                    *passed,
                    *reversed([self._metadata(line) for line in inside]),
                ]
                known = [one for one in makers if "(" in one[0] and one[1][1]]
                # A fusion in which nothing has a name was made for a conversion or a copy.
                if known or maker.kind != "fusion":
                    return known or makers[:1]
            passed.append(self._metadata(maker.line))
            name = max(maker.names, key=lambda name: _elements(here, name), default="")
        return [("", ("", 0))]

    def _foreign(self, instruction):
        """The name and the place of the callback whose result a collective sends from one device to
        the others.
        """
        here, names = instruction.home, list(instruction.names)
        for _ in range(20):
            if not names:
                break
            maker = here[names.pop()]
            # Programs for TPUs send to the host and receive; others call it in a branch that one
            # device of several takes.
            if maker.kind == "recv-done":
                return self._metadata(maker.line)
            if maker.kind == "conditional":
                calls = (
                    call
                    for callee, *_ in maker.calls()
                    for call in callee.matching(r" custom-call\(")
                )
                return next((self._metadata(call.line) for call in calls), None)
            names += maker.names if maker.kind in (*_PASS_ON, "fusion", "get-tuple-element") else ()
        return None

    def _constraint_site(self, instruction, makers, argument, axes):
        """The name and place of the constraint that asks for a collective, and its callers, if any;
        or None.
        """
        if self._before is None or not axes:
            return None
        before = self._before
        if argument:
            starts = before._arguments.get(argument, [])
        else:
            starts = self._of_this_call(instruction, *makers[0])
            names = {(_operation(stack), place): (stack, place) for stack, place in makers}
            starts += before._made_by(list(names.values())[1:])
        for here, name in starts if argument else ():
            if split := before._split(here, name, axes):
                return split
        gathers = instruction.kind.startswith("all-gather")
        for here, name in starts[:20]:
            for user, _ in before._uses.first(here, name, elementwise=True):
                # A dimension with "?" is open: there the partitioner may choose, so nothing is
                # asked for.
                spec = user.attribute("frontend_attributes")
                if user.attribute("custom_call_target") == "Sharding" and "?" not in spec:
                    names = _axes_named(spec)
                    used, where = before._metadata(user.line)
                    if where[1] and not (gathers and names & set(axes)):
                        return _whole(used), where, *before._callers_of(user, used, where)
        return None

    def _is_kept(self, instruction, stack, place, axes):
        """Whether a collective has the line of a constraint that keeps its axes: then something
        after it needs them.
        """
        operation = _operation(stack)
        if operation not in ("reshard", "sharding_constraint") or not (self._before and axes):
            return False
        constraints = self._of_this_call(instruction, stack, place)
        specs = [here[name].attribute("frontend_attributes") for here, name in constraints]
        return bool(specs) and all(set(axes) <= _axes_named(spec) for spec in specs)

    def _split(self, here, name, axes):
        """The name and the place of the reshape of an argument after which its shards are not
        contiguous, or None.
        """
        argument = here[name]
        entries = re.findall(
            r"\{(.*?)\}", argument.attribute("frontend_attributes").partition("[")[2]
        )
        sizes = dict(re.findall(r'"([^"\\]+)\\?"=(\d+)', self._mesh))
        for dimension, inside in enumerate(entries):
            names = re.findall(r'\\"([^"\\]+)\\"', inside)
            if not set(names) & set(axes):
                continue
            # XLA reshapes shards in place where they stay contiguous, and gathers the array
            # elsewhere.
            shards = math.prod(int(sizes.get(axis, 1)) for axis in names)
            for user in self._uses.users(here).get(name, ()):
                reshape = here[user]
                if reshape.kind != "reshape":
                    continue
                before, after = (
                    dimensions(array_types(kind)[0]) for kind in (argument.result, reshape.result)
                )
                kept = (
                    before[:dimension] == after[:dimension]
                    and after[dimension:]
                    and after[dimension] % shards == 0
                )
                used, where = self._metadata(reshape.line)
                if not kept and where[1]:
                    return _whole(used), where
        return None

    def _made_by(self, makers):
        """Where operations of these names and places are, if there are some in the same pass only
        these: pairs of computation and name.
        """
        keys = dict.fromkeys(
            (_operation(stack), place, is_in_backward(stack)) for stack, place in makers
        )
        return [
            found
            for operation, place, passed in keys
            for found in self._in_pass(self._operations.get((operation, place), ()), passed)
        ]

    def _in_pass(self, places, passed):
        """Those of a pass, as the gradient of a product is a product of the same line; or all."""
        alike = [
            (here, name)
            for here, name in places
            if is_in_backward(self._metadata(here.lines[name])[0]) == passed
        ]
        return alike or [*places]

    def _of_this_call(self, instruction, stack, place):
        """Where the operation of an instruction is before partitioning: of a helper, which has one
        line for all who call it, in the calls that lead to the instruction.
        """
        key = _operation(stack), place
        by_call = self._before._by_call(*key)
        calls = self._callers_of(instruction, stack, place)
        own = [found for call in calls for found in by_call.get(call, ())]
        every = own or self._before._operations.get(key, ())
        return self._before._in_pass(every, is_in_backward(stack))

    def _by_call(self, operation, place):
        """Where instructions of an operation and a place are, by the calls that lead to them."""
        if (operation, place) not in self._found:
            found = self._found[operation, place] = {}
            for here, name in self._operations.get((operation, place), ()):
                stack, _ = self._metadata(here.lines[name])
                for call in self._callers_of(here[name], stack, place):
                    found.setdefault(call, []).append((here, name))
        return self._found[operation, place]

    @cached_property
    def _operations(self):
        """Where instructions are, by JAX's operation and place: lists of (computation, name)."""
        places = {}
        for here in self._program:
            for name, line in here.lines.items():
                stack, place = self._metadata(line)
                if place[1]:
                    places.setdefault((_operation(stack), place), []).append((here, name))
        return places

    @cached_property
    def _arguments(self):
        """Where the arguments of the program are, by their names: lists of (computation, name)."""
        places, entry = {}, self._program.entry
        for name, line in entry.lines.items():
            if " parameter(" in line:
                places.setdefault(metadata(line).get("op_name"), []).append((entry, name))
        return places

    @promised()
    def place(self, line: str) -> tuple[str, int]:
        """The source file and line number of an instruction's text: ("", 0) if the program does not
        say.
        """
        return self._metadata(line)[1]

    def _own_line(self, instruction):
        """The line of the collective itself, where it is part of a fusion."""
        if instruction.kind == "fusion":
            for line in instruction.called().lines.values():
                if re.search(rf" (?:{'|'.join(COLLECTIVES)})(?:-start)?\(", line):
                    return line
        return instruction.line

    def _metadata(self, line):
        """The operation's whole name, and (file, line), as far as they are known."""
        origin, place = metadata(line), ("", 0)
        if "source_file" in origin and "source_line" in origin:
            place = origin["source_file"], int(origin["source_line"])
        elif "stack_frame_id" in origin:
            place = self._place(int(origin["stack_frame_id"]), origin.get("op_name", ""))
        # XLA joins the names of operations that it merges with ";", but keeps one place.
        return origin.get("op_name", "").partition(";")[0], place

    def _place(self, frame, stack=""):
        """The innermost place that is not in an installed package, or else the innermost."""
        chain = self._chain(frame)
        own = _own(chain)
        if own and (call := self._called_now(stack, chain)):
            return call
        return own[0] if own else chain[0][0] if chain else ("", 0)

    def _chain(self, frame):
        """The places and functions of a frame and of those that called it, the innermost first."""
        chain = []
        while frame in self._frames:
            number, parent = self._frames[frame]
            chain.append((self._places.get(number, ("", 0)), self._functions.get(number, "")))
            # Parents stand before their children; in a changed text a circle would never end.
            frame = parent if parent < frame else 0
        return chain

    @cached_property
    def _calls(self):
        """The calls that lead to each place, by JAX's whole name of an operation and the place."""
        calls = {}
        frames = re.findall(r'op_name="([^";]*)[^\n]*stack_frame_id=(\d+)', self._text)
        for stack, frame in dict.fromkeys(frames):
            place, *callers = _own(self._chain(int(frame))) or [("", 0)]
            chains = calls.setdefault((stack, place), [])
            if callers and tuple(callers) not in chains:
                chains.append(tuple(callers))
        return calls

    def _callers_of(self, instruction, stack, place):
        """The calls that lead to a place: those of the instruction, where it is its own place."""
        own = metadata(self._own_line(instruction))
        if own.get("op_name", "").partition(";")[0] == stack and "stack_frame_id" in own:
            first, *callers = _own(self._chain(int(own["stack_frame_id"]))) or [("", 0)]
            if first == place:
                return (tuple(callers),) if callers else ()
        return tuple(self._calls.get((stack, place), ()))

    def _called_now(self, stack, chain):
        """The place of a call whose function has its lines from another program, in which JAX
        traced it first.

        The frames of a call follow those of the function. In the first program they begin with the
        same place again.
        """
        places = [place for place, _ in chain]
        parts = stack.split("/") if self._before is not None else []
        for n, part in enumerate(parts[1:], 1):
            if not (jitted := re.fullmatch(r"jit\((.*)\)", part)):
                continue
            calls = self._before._jitted_calls
            now = calls.get("/".join(parts[: n + 1])) or calls.get(part) or ()
            call = next((place for place in places if place in now), None)
            # JAX caches the trace of a jitted function such as jnp.nonzero with the line of the
            # program that called it first; this program's call follows it. But a line inside of the
            # function itself is right, whoever calls it.
            is_old = call and places.index(call) == 1
            if is_old and chain[0][1].rpartition(".")[2] != jitted[1]:
                return call
        return None

    @cached_property
    def _jitted_calls(self):
        """The places of the calls of jitted functions, by their names."""
        calls = {}
        for here in self._program:
            for line in here.lines.values():
                if " call(" in line:
                    stack, place = self._metadata(line)
                    if place[1]:
                        calls.setdefault(stack, set()).add(place)
        return calls

    def _argument(self, instruction):
        """The name of the program's argument that an instruction has as its first operand, or
        "".
        """
        here, name = instruction.home, instruction.names[0] if instruction.names else None
        for _ in range(100):
            parameter = here[name] if name in here.lines else None
            if parameter is None:
                return ""
            if parameter.kind == "parameter":
                if here is self._program.entry:
                    return self._metadata(parameter.line)[0] or f"argument {parameter.inside}"
                caller = self._callers.get(here.name)
                if caller is None or (called := caller[0][caller[1]]).kind != "fusion":
                    return ""
                here, name = called.home, called.names[int(parameter.inside)]
            elif parameter.kind == "fusion":
                here = parameter.called()
                name = here.root
            elif parameter.kind == "get-tuple-element":
                place = int(parameter.attribute("index"))
                source = here[parameter.names[0]]
                # What a scan only reads, such as the stacked weights of its layers, is carried
                # unchanged through XLA's loop: it is the argument still, inside and after it.
                if source.kind == "parameter" and (outer := self._carried(here, place)):
                    here, source = outer
                elif source.kind == "while" and self._is_carried(source, place):
                    source = here[source.names[0]]
                if source.kind != "tuple":
                    return ""
                name = source.names[place]
            elif parameter.kind in _PASS_ON:
                name = parameter.names[0]
            else:
                return ""
        return ""

    def _carried(self, body, place):
        """What a loop carries unchanged at a place: the computation of the loop, and the tuple that
        it starts with.
        """
        caller = self._callers.get(body.name)
        loop = caller[0][caller[1]] if caller else None
        if loop is None or loop.kind != "while" or not self._is_carried(loop, place):
            return None
        return loop.home, loop.home[loop.names[0]]

    def _is_carried(self, loop, place):
        """Whether a loop carries what is at a place unchanged, also through loops in its body."""
        body = self._program[loop.attribute("body").lstrip("%")]
        if (after := body[body.root]).kind != "tuple":
            return False
        same = body[after.names[place]]
        while same.kind == "get-tuple-element" and (inner := body[same.names[0]]).kind == "while":
            index, start = int(same.attribute("index")), body[inner.names[0]]
            if start.kind != "tuple" or not self._is_carried(inner, index):
                return False
            same = body[start.names[index]]
        return (
            same.kind == "get-tuple-element"
            and body[same.names[0]].kind == "parameter"
            and int(same.attribute("index")) == place
        )

    def _followed(self, instruction, ends=None):
        """The lines that depend on an instruction, nearest first; `ends` collects the numbers of
        results.
        """
        seen, waiting = set(), [(instruction.home, instruction.name)]
        while waiting and len(seen) < _MOST:
            here, name = waiting.pop(0)
            for user in self._uses.users(here).get(name, ()):
                line = here.lines[user]
                if user == here.root and re.search(r" tuple\(", line):
                    places = self._places_in(here, name)
                    if here is self._program.entry:
                        ends is None or ends.update(places)
                    elif here.name in self._callers:
                        outer, loop = self._callers[here.name]
                        waiting += [
                            (outer, taken)
                            for taken in self._uses.users(outer).get(loop, ())
                            if (index := re.search(r"\bindex=(\d+)", outer.lines[taken]))
                            and int(index[1]) in places
                        ]
                    continue
                if (here.name, user) not in seen:
                    seen.add((here.name, user))
                    waiting.append((here, user))
                    if ends is None and " fusion(" in line:
                        yield from self._inside(here[user], name)
                    yield line
                    if user == here.root and here is self._program.entry and ends is not None:
                        ends.add(0)

    def _inside(self, fusion, name):
        """The lines in a fusion that depend on one of its operands."""
        callee = fusion.called()
        number = fusion.names.index(name)
        for inner, line in callee.lines.items():
            if f" parameter({number})" in line:
                yield from self._followed(callee[inner])

    def _places_in(self, here, name):
        """At which places of its result, a tuple, a computation has an instruction."""
        if here.name not in self._parts:
            places = self._parts[here.name] = {}
            for n, element in enumerate(here[here.root].names):
                places.setdefault(element, []).append(n)
        return self._parts[here.name].get(name, ())

    def _reached(self, instruction, phase):
        root = self._root
        count = len(root.names) if root.kind == "tuple" else 1
        gradient = _adds(instruction) and phase == "backward"
        # A gathered activation reaches every gradient that follows; only sums belong to certain
        # results.
        if not _adds(instruction) and not self._is_root(instruction):
            return ()
        # Everything leads to a single result, such as a loss, so its name would say nothing.
        if count == 1 and not gradient and not self._is_root(instruction):
            return ()
        ends, most = (
            {0} if count == 1 and instruction.name == root.name else set(),
            3 * len(instruction.names),
        )
        for line in self._followed(instruction, ends=ends):
            # What goes on into a product is a sum of activations' gradients for the layer below.
            gradient = gradient and "/dot_general" not in line
            if len(ends) > most:
                return ()
        everything = len(ends) == count and len(instruction.names) == 1
        if len(ends) > most or (everything and not gradient and not self._is_root(instruction)):
            return ()
        # The sum of a normalisation's statistics reaches gradients too, and is a part of none.
        if gradient and root.kind == "tuple":
            ends = {n for n in ends if self._is_part_of(instruction, root.operands[n])}
        names = self._results
        return tuple(names[n] if names and n < len(names) else f"result {n}" for n in sorted(ends))

    @staticmethod
    def _is_part_of(instruction, result):
        """Whether what a collective adds up can be a gradient of a result, by the number of
        elements.
        """
        count = math.prod(dimensions(array_types(result)[0])) if array_types(result) else 0
        sums = [math.prod(dimensions(kind)) for kind in array_types(" ".join(instruction.operands))]
        return bool(count) and any(size >= count and size % count == 0 for size in sums)

    def _is_root(self, instruction):
        """Whether an instruction's result is that of the program, without further operations."""
        here, names, most = self._program.entry, [self._program.entry.root], _MOST
        while names and (most := most - 1):
            name = names.pop()
            root_instruction = self._root if name == here.root else here[name]
            if root_instruction.name == instruction.name:
                return True
            names += (
                root_instruction.names
                if root_instruction.kind in (*_PASS_ON, "tuple", "get-tuple-element")
                else ()
            )
        return False

    @promised()
    def is_sliced_again(self, instruction: Instruction, is_own: bool = True) -> bool:
        """Whether all that devices use of a gathered array is a slice of it, in the entry of the
        program.

        Args:
          instruction: the gather.
          is_own: whether a slice that the program itself takes counts, beside the partitioner's.
        """
        if instruction.kind != "all-gather" or instruction.home is not self._program.entry:
            return False
        # Where the partitioner knows no way between two layouts, it gathers the array, and lets
        # each device slice its new shard off.
        waiting, seen, sliced = [(instruction.home, instruction.name, None)], set(), False
        while waiting and len(waiting) < _MOST:
            here, name, outer = waiting.pop()
            if (here.name, name, outer and outer[1]) in seen:
                continue
            seen.add((here.name, name, outer and outer[1]))
            if name == here.root and outer:
                waiting.append((*outer, None))
            for user in self._uses.users(here).get(name, ()):
                user_instruction = here[user]
                if user_instruction.kind == "dynamic-slice" and user_instruction.names[0] == name:
                    maker = "" if is_own else metadata(user_instruction.line).get("op_name", "")
                    if maker.endswith("dynamic_slice"):
                        return False
                    sliced = True
                elif user_instruction.kind == "fusion" and outer is None:
                    callee = user_instruction.called()
                    inside = {
                        f"parameter({n})"
                        for n, operand in enumerate(user_instruction.names)
                        if operand == name
                    }
                    waiting += [
                        (callee, inner, (here, user))
                        for inner, line in callee.lines.items()
                        if any(f" {parameter}" in line for parameter in inside)
                    ]
                elif user_instruction.kind in (
                    "all-gather",
                    "bitcast",
                    "copy",
                    "reshape",
                    "transpose",
                ):
                    waiting.append((here, user, outer))
                else:
                    return False
        return sliced


def own_places(places: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those of the (file, line) of frames that are in no installed package, up to the call of
    `explain`.

    Args:
      places: the innermost first.
    """
    inside = itertools.takewhile(lambda place: not _EXPLAIN.search(place[0]), places)
    return [place for place in inside if place[0] and not _INSTALLED.search(place[0])]


def _own(chain):
    return own_places(place for place, _ in chain)


def where(file: str, line: int) -> str:
    """A place in the source in words: "step.py:9", and "In[3]:9" in a notebook, whose cells are
    temporary files.

    Args:
      file: the file; "" if unknown.
      line: the line in it.
    """
    if not line:
        return "not known"
    # IPython alone knows which cell a temporary file is, and may be another version, or not there.
    compiler = getattr(
        getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "compile", None
    )
    # a pair such as ("Cell", "In[3]")
    cell = getattr(compiler, "format_code_name", lambda _: None)(file)
    unknown = re.search(r"/ipykernel[_]\d", file) or file.startswith("<ipython")
    return f"{cell[1] if cell else 'cell' if unknown else plain(Path(file).name, 80)}:{line}"


def _end(instruction):
    """Where the result of an asynchronous collective is there; another instruction itself."""
    end = instruction.name.replace("-start", "-done")
    is_split = "-start" in instruction.name and end in instruction.home.lines
    return instruction.home[end] if is_split else instruction


def _waiting(instruction):
    """The fusion that waits for what another one starts, as in programs for TPUs; another
    instruction itself.
    """
    here, started = instruction.home, {*instruction.channels("Start")}
    ends = (here[name] for name, line in here.lines.items() if started and " fusion(" in line)
    return next((end for end in ends if started.intersection(end.channels("Done"))), instruction)


def _is_stored(stack, use, argument):
    """Whether nothing uses a computed array, whose collective has no name: it is a result."""
    return "(" not in stack and not use.stack and not argument


def _adds(instruction):
    """Whether it may add up what devices have."""
    if instruction.kind == "fusion":  # as TPUs' compiler writes a reduce-scatter
        lines = instruction.called().lines.values()
        return any(re.search(r" (all-reduce|reduce-scatter)(-start)?\(", line) for line in lines)
    kind = KINDS.get(instruction.kind.removesuffix("-start"))
    return kind is not None and kind.adds


def _is_layout(instruction):
    """Whether an instruction changes nothing but the type and the layout of its one operand."""
    if instruction.kind != "fusion":
        return instruction.kind in _UNSLICED
    body = instruction.called()
    kinds = {body[name].kind for name in body.lines}
    return len(instruction.names) == 1 and kinds <= {*_UNSLICED, "parameter"}


def _elements(here, name):
    """How many elements the first array of a result has; 0 for what is not in the computation."""
    kinds = array_types(here[name].result)[:1] if name in here.lines else ()
    return sum(math.prod(dimensions(kind)) for kind in kinds)


def _axes_named(attributes):
    """The mesh axes that the sharding of an instruction names, before the program is
    partitioned.
    """
    return set(re.findall(r'\\"([^"\\]+)\\"', attributes.partition("sdy.sharding")[2]))


def is_in_backward(stack: str) -> bool:
    """Whether an operation belongs to a backward pass, and does not compute again what the forward
    pass has not kept.

    Args:
      stack: its name, with those of the calls around it.
    """
    return "transpose(" in stack and "rematted_computation" not in stack


def _whole(operation):
    """The name of an operation in a function that is called by its own name alone, as one in the
    program has it.
    """
    # Before partitioning functions are computations of their own, named "jit(f)" only at their
    # calls; `of` takes a name without parenthesis for an argument's.
    return operation if "(" in operation else f"jit()/{operation}"


def _operation(stack):
    return re.sub(r"\W+$", "", stack.rpartition("/")[2])


def _table(text, name):
    """The lines of a table that stands before the computations."""
    match = re.search(rf"^{name}\n((?:\d+ .*\n)*)", text, re.MULTILINE)
    return match[1] if match else ""
