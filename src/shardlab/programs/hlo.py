"""Read the text of a compiled program (HLO): its instructions, their types, what they call, and how
often.

XLA prints a program as computations, each a list of instructions; one of them is the entry, and the
others are called by instructions: the bodies of loops, the branches of conditions, fused
operations. What a text means for communication is the job of `shardlab.programs.collectives`, and
what it means for FLOPs that of `shardlab.programs.flops`.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from shardlab.costs.communication.kinds import KINDS

__all__ = [
    "CALLS",
    "COLLECTIVES",
    "Computation",
    "Instruction",
    "Program",
    "UnreadableProgram",
    "array_types",
    "dimensions",
    "metadata",
    "promised",
    "type_bytes",
]

# in the lines of instructions that run another computation
CALLS = r"(calls|to_apply|body|computations?)="
COLLECTIVES = tuple(KINDS)
MOST = 2**20  # devices of a program, and steps of a walk through one
_COMMENT = re.compile(r"/\*[^*]*\*/")
_TEXT = r'"(?:[^"\\]|\\.?)*(?:"|$)'  # quoted; where the text ends before it is closed, to the end
_BYTES = {"pred": 1, "token": 0, "s4": 0.5, "u4": 0.5, "s2": 0.25, "u2": 0.25, "f4e2m1fn": 0.5}


class UnreadableProgram(ValueError):
    """A line of the program's text has an unknown form; the message shows the line."""


@contextmanager
def promised() -> Iterator[None]:
    """Whatever fails while the text of a program is read, fails as `UnreadableProgram`.

    >>> from shardlab.programs.hlo import promised
    >>> with promised():
    ...     int("a size")
    Traceback (most recent call last):
    shardlab.programs.hlo.UnreadableProgram: this text is incomplete or changed, or has an unknown form (ValueError: ...
    """  # noqa: E501
    try:
        yield
    except UnreadableProgram:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise UnreadableProgram(
            "this text is incomplete or changed, or has an unknown form "
            f"({type(error).__name__}: {str(error)[:200]}); pass all that compiled.as_text() "
            "returns"
        ) from error


def array_types(text: str) -> tuple[str, ...]:
    """Every array type in a text, without layouts and in order: `array_types("(bf16[8,4]{1,0},
    f32[4])")` has two.

    Looking for a type among them is safe where looking into the text is not: "f32[8,4]" is not in
    this tuple, although the text "bf16[8,4]" ends with it.

    >>> array_types("(bf16[8,4]{1,0}, f32[4])")
    ('bf16[8,4]', 'f32[4]')

    Args:
      text: a type, a line or the whole text of a compiled program.

    Returns:
      A tuple of texts such as "f32[4,4]".
    """
    return tuple(re.findall(r"\b([a-z]\w*\[[\d,<=]*\])", _COMMENT.sub("", text)))


def metadata(line: str) -> dict[str, str]:
    """What the line of an instruction says of its origin, by name.

    >>> from shardlab.programs.hlo import metadata
    >>> metadata('%y = f32[4] add(%a, %b), metadata={op_name="jit(f)/add" source_file="f.py" source_line=3}')
    {'op_name': 'jit(f)/add', 'source_file': 'f.py', 'source_line': '3'}
    """  # noqa: E501
    found = re.search(r"\bmetadata=\{", line)
    inside = line[found.end() :].rpartition("}")[0] if found else ""
    pairs = re.findall(r'\b(\w+)=(?:"((?:[^"\\]|\\.)*)"|([^"\s},]+))', inside)
    return {name: re.sub(r"\\(.)", r"\1", quoted) or number for name, quoted, number in pairs}


def type_bytes(array_type: str) -> float:
    """Bytes of an array of a type: `type_bytes("bf16[8,4]")` is 8 * 4 * 2 = 64.

    >>> from shardlab.programs.hlo import type_bytes
    >>> type_bytes("bf16[8,4]")
    64.0
    """
    kind = re.fullmatch(r"(\w+)\[[\d,<=]*\]", array_type)[1]
    size = _BYTES.get(kind)
    if size is None:
        bits = re.search(r"\d+", kind)
        size = int(bits[0]) / 8 if bits else 0
    return math.prod(dimensions(array_type)) * size


def dimensions(array_type: str) -> list[int]:
    """The sizes of an array's type, also where a layout follows it.

    >>> from shardlab.programs.hlo import dimensions
    >>> dimensions("bf16[8,4]{1,0}")
    [8, 4]
    """
    sizes = re.search(r"\[([\d,<=]*)\]", array_type)
    if not sizes:
        raise UnreadableProgram(f"no array type: {array_type[:300]!r}")
    return [int(size.lstrip("<=")) for size in sizes[1].split(",") if size]


@dataclass(frozen=True)
class Instruction:
    """One instruction of a computation.

    Attributes:
      name: its name, without "%".
      kind: its operation, such as "all-reduce", "while" or "fusion".
      line: all of its text.
      result: the type of its result.
      inside: what stands in its parentheses: its operands, or the value of a constant.
      operands: the types of its operands.
      names: the names of its operands.
      attributes: the text after the parentheses.
      home: the `Computation` that it is part of.
    """

    name: str
    kind: str
    line: str
    result: str
    inside: str
    operands: tuple[str, ...]
    names: tuple[str, ...]
    attributes: str
    home: "Computation" = field(repr=False, compare=False)

    @property
    def unquoted(self) -> str:
        """Its attributes without the quoted text in them: names that a person chose can look like
        attributes.
        """
        return re.sub(_TEXT, '""', self.attributes)

    @cached_property
    def _values(self) -> dict[str, str]:
        parts = (part.partition("=") for part in _split(self.attributes, _QUOTED))
        return {name: value.strip('"') for name, equals, value in parts if equals}

    def attribute(self, name: str) -> str:
        """The value of an attribute, such as "{1}" of "lhs_contracting_dims"; "" if it has none of
        this name.
        """
        return self._values.get(name, "")

    def numbers(self, name: str) -> list[int]:
        """The whole numbers in the value of an attribute, in order."""
        return [int(number) for number in re.findall(r"\d+", self.attribute(name))]

    @property
    def channel(self) -> str | None:
        """The number of a collective's channel, the same wherever a program for TPUs repeats it;
        None without one.
        """
        return self.attribute("channel_id") or None

    def channels(self, end: str) -> list[str]:
        """The channels of the collectives that a fusion starts or waits for, as programs for TPUs
        write it.

        Args:
          end: "Start" or "Done".
        """
        numbers, target = [], f"AsyncCollective{end}"
        for call in self.called().matching(target) if self.kind == "fusion" else ():
            if call.kind == "custom-call" and call.attribute("custom_call_target") == target:
                operands = (call.home[name] for name in call.names)
                numbers += [
                    operand.channel
                    for operand in operands
                    if operand.kind in COLLECTIVES and operand.channel
                ]
        return numbers

    def called(self, role: str = "calls") -> "Computation":
        """The computation that it calls in a role, such as "calls" for a fusion or "body" for a
        loop.
        """
        names = _names(self.attribute(role))
        if not names:
            raise UnreadableProgram(f"no {role}= in this instruction: {self.line.strip()[:300]}")
        return self.home.program[names[0]]

    def calls(self) -> "list[tuple[Computation, int, int | None]]":
        """The computations that it runs, each with how often: at least, and at most.

        Both are the same number where the program says it. A branch of a conditional runs 0 to 1
        times, the body of a loop of unknown length 0 to None times: there is no bound.
        """
        if self.kind.endswith(("-update", "-done")):
            return []  # of an operation that was started before
        if self.kind == "while":
            repeat = _trips(self)
            least, most = (0, None) if repeat is None else (repeat, repeat)
            ends = None if most is None else most + 1  # the condition also runs when the loop ends
            return [(self.called("body"), least, most), (self.called("condition"), least + 1, ends)]
        roles, least = ("calls", "to_apply", "called_computations"), 1
        if self.kind == "conditional":
            roles, least = ("branch_computations", "true_computation", "false_computation"), 0
        return [
            (self.home.program[name], least, 1)
            for role in roles
            for name in _names(self.attribute(role))
        ]


class Computation:
    """The instructions of a computation, by name; parsed when first asked for, because few matter.

    Attributes:
      name: its name, without "%".
      program: the `Program` that it is part of.
      lines: the text of each instruction, by name, in order.
    """

    def __init__(self, name: str, program: "Program") -> None:
        """Start empty; `Program` adds the lines."""
        self.name, self.program, self.lines, self._parsed, self._types, self._root = (
            name,
            program,
            {},
            {},
            {},
            None,
        )

    @property
    def root(self) -> str:
        """The name of the instruction whose result is the computation's."""
        if self._root is None:
            raise UnreadableProgram(
                f"the computation {self.name} has no ROOT; pass all that compiled.as_text() returns"
            )
        return self._root

    def __getitem__(self, name: str) -> Instruction:
        if name not in self._parsed:
            self._parsed[name] = self._parse(name)
        return self._parsed[name]

    def _parse(self, name):
        tuple_, element, place = name.partition("#")
        if element:  # dumped files write %loop#1 for an element of a tuple
            typed, attributes = self._typed(name)[0], f", index={place}"
            line = f"%{name} = {typed} get-tuple-element(%{tuple_}){attributes}"
            operands = (self._typed(tuple_)[0],)
            return Instruction(
                name,
                "get-tuple-element",
                line,
                typed,
                f"%{tuple_}",
                operands,
                (tuple_,),
                attributes,
                self,
            )
        if name not in self.lines:
            raise UnreadableProgram(
                f"no instruction {name} in this computation: {list(self.lines.values())[:3]}"
            )
        line = self.lines[name]
        result, remainder = self._typed(name)
        operation = re.match(r"\s*([a-z][\w\-]*)\(", remainder)
        if not operation:
            raise UnreadableProgram(f"cannot read this instruction: {line.strip()[:300]}")
        inside, attributes = _take_parentheses(remainder[operation.end() - 1 :])
        operands, names = [], []
        for operand in _split(_COMMENT.sub("", inside)):
            # Types are written before the operands' names, or known from where they were made.
            written, _, operand = operand.rpartition(" ")
            names.append(operand.lstrip("%"))
            known = names[-1].partition("#")[0] in self.lines
            operands.append(written or (self._typed(names[-1])[0] if known else ""))
        if operation[1] == "parameter" and not re.fullmatch("[0-9]{1,9}", inside):
            raise UnreadableProgram(f"no number of a parameter: {line.strip()[:300]}")
        return Instruction(
            name,
            operation[1],
            line,
            result,
            inside,
            tuple(operands),
            tuple(names),
            attributes,
            self,
        )

    def _typed(self, name):
        """Its type, and the rest of its line."""
        if name not in self._types:
            whole, element, place = name.partition("#")
            if element:
                self._types[name] = _split(self._typed(whole)[0][1:-1])[int(place)], ""
            else:
                self._types[name] = _take_type(self.lines[name].partition(" = ")[2])
        return self._types[name]

    def matching(self, pattern: str) -> Iterator[Instruction]:
        """The instructions in whose lines a regular expression is found, in order: new objects with
        each call.
        """
        return (self._parse(name) for name, line in self.lines.items() if re.search(pattern, line))


class Program:
    """The computations of a compiled program, by name.

    >>> compiled = jax.jit(jnp.dot).lower(jnp.ones((4, 8)), jnp.ones((8, 2))).compile()
    >>> program = Program(compiled.as_text())
    >>> [made.kind for here in program for made in here.matching(" dot")]
    ['dot']

    Attributes:
      entry: the `Computation` that a call of the program runs.
      devices: for how many devices the program is: its partitions, times the replicas of older
        programs of `jax.pmap`.

    Raises:
      UnreadableProgram: the text has no entry, or ends within a computation.
    """

    def __init__(self, text: str) -> None:
        """Read what `compiled.as_text()` returns."""
        head = re.search(r"^HloModule .*", text, re.MULTILINE)
        counts = re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", head[0] if head else "")
        self.devices = math.prod(int(count[:12]) for count in counts)
        if not 0 < self.devices <= MOST:
            raise UnreadableProgram(
                f"a program for {self.devices:,} devices; pass one for 1 to {MOST:,}"
            )
        self.entry, self._computations = None, {}
        is_open = self._read(text.splitlines())
        if is_open:
            raise UnreadableProgram(
                f"this text ends within the computation {is_open}, so some of it is missing; "
                "pass all that compiled.as_text() returns"
            )
        if self.entry is None:
            early = (
                " (this is StableHLO: XLA has not compiled it yet)"
                if re.match(r"\s*(#|module)", text)
                else ""
            )
            raise UnreadableProgram(
                f"no ENTRY in this text: {text.strip()[:200]!r}{early}; pass what "
                "compiled.as_text() returns"
            )

    def _read(self, lines):
        """Sort the lines into computations; returns the name of the one that is not closed, or
        None.
        """
        here, last, is_open, more = None, None, None, []
        for line in (*lines, ""):
            name, is_entry = _head(line)
            match = None if name or here is None else re.match(r"\s+(ROOT )?%?([\w.\-]+) = ", line)
            if more and (name or match or line == ""):
                # the attributes of some kernels take several lines
                here.lines[last] += "".join(more)
                more = []
            if name:
                here, is_open = Computation(name, self), name
                self._computations[name] = here
                self.entry = here if is_entry else self.entry
            elif match:
                last = match[2]
                here.lines[last] = line
                here._root = last if match[1] else here._root
            elif re.fullmatch(r'\}(, execution_thread="[^"]*")?', line):
                is_open = None
            elif here is not None and here.lines and not re.fullmatch(r"\s*\}?", line):
                more.append(line)
        return is_open

    def __getitem__(self, name: str) -> Computation:
        if name not in self._computations:
            raise UnreadableProgram(f"this program calls {name}, which is not in its text")
        return self._computations[name]

    def __iter__(self) -> Iterator[Computation]:
        return iter(self._computations.values())


# --- A line of text -------------------------------------------------------------------------------


def _head(line):
    """The name of the computation that a line begins, and whether it is the entry; (None, False) if
    it begins none.
    """
    match = re.match(r"(ENTRY )?%?([\w.\-]+) (?=[({])", line) if line.endswith("{") else None
    if not match or not (
        line[match.end() :] == "{" or re.match(r"\(.*\) -> ", line[match.end() :])
    ):
        return None, False
    return match[2], bool(match[1])


def _take_type(text):
    """A type at the start of a text, and what follows: tuples have parentheses."""
    if text.startswith("("):
        inside, remainder = _take_parentheses(text)
        return f"({inside})", remainder
    head, _, remainder = text.partition(" ")
    return head, remainder


def _take_parentheses(text):
    depth = 0
    for i, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return text[1:i], text[i + 1 :]
    raise UnreadableProgram(f"a parenthesis is not closed: {text[:200]}")


def _names(value):
    """The computations that the value of an attribute names: "%add", or "{%a, %b}"."""
    return re.findall(r"[\w.\-]+", value)


_BRACKETS = re.compile(r"[(){}\[\],]")
# names that a person chose can have brackets and commas
_QUOTED = re.compile(rf"[(){{}}\[\],]|{_TEXT}")


def _split(text, tokens=_BRACKETS):
    """Split at commas that are in no bracket and, with the tokens `_QUOTED`, in no quoted text."""
    parts, depth, start = [], 0, 0
    for token in tokens.finditer(text):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(token[0], 0)
        if token[0] == "," and depth == 0:
            parts.append(text[start : token.start()])
            start = token.end()
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


# --- Loops ----------------------------------------------------------------------------------------


def _trips(loop):
    """How often a loop's body runs, if the compiler says so, or if the loop only counts; else
    None.
    """
    if match := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attribute("backend_config")):
        return int(match[1])
    # TPU programs do not say it. A loop of JAX's scan or fori_loop carries a number to which its
    # body adds a constant, as long as it compares with another constant (or with a number that is
    # carried along unchanged).
    body, condition, known = loop.called("body"), loop.called("condition"), {}
    test, before, after = condition[condition.root], loop.home[loop.names[0]], body[body.root]
    if test.kind != "compare" or before.kind != "tuple" or after.kind != "tuple":
        return None

    def first_and_step(side):
        place, more = _number(side, condition, known) or (None, None)
        if more is None or place is None:
            return more, 0
        first, then = (_number(made.names[place], made.home, known) for made in (before, after))
        counts = first and then and first[0] is None and then[0] == place
        return (first[1] + more, then[1]) if counts else (None, None)

    try:
        (left, left_step), (right, right_step) = map(first_and_step, test.names)
    except RecursionError:
        return None  # computed in more steps than any counter is
    if left is None or right is None:
        return None
    direction = test.attribute("direction")
    distance, step = right - left, left_step - right_step
    if direction in ("GT", "GE") or (direction == "NE" and distance < 0):
        distance, step = -distance, -step
    if direction in ("LE", "GE"):
        distance += 1
    if direction == "EQ" or (direction == "NE" and step > 0 and distance % step):
        return None
    return 0 if distance <= 0 else math.ceil(distance / step) if step > 0 else None


def _number(name, where, known, value=None):
    """A whole number in a computation as (k, n): element k of what a loop carries, plus n; or
    (None, n): just n.

    None if it is neither, or computed in a way that we do not follow. `value` has the inputs, as
    such pairs, of a computation that is no part of a loop; `known` has what was found, since a
    chain of sums can need it often.
    """
    key = (where.name, name, value)
    if key not in known:
        known[key] = _computed(where[name], where, known, value)
    return known[key]


def _computed(instruction, where, known, value):
    def operand(i):
        return _number(instruction.names[i], where, known, value)

    if instruction.kind == "constant":
        return (
            (None, int(instruction.inside))
            if re.fullmatch(r"-?\d{1,20}", instruction.inside)
            else None
        )
    if instruction.kind == "parameter":
        return value[int(instruction.inside)] if value else None
    if instruction.kind in ("bitcast", "copy", "copy-start", "copy-done"):
        return operand(0)
    if instruction.kind == "get-tuple-element":
        place, source = int(instruction.attribute("index")), where[instruction.names[0]]
        if source.kind == "tuple":
            return _number(source.names[place], where, known, value)
        return (place, 0) if source.kind == "parameter" and value is None else None
    if instruction.kind == "fusion":
        callee = instruction.called()
        return _number(
            callee.root, callee, known, tuple(map(operand, range(len(instruction.names))))
        )
    if instruction.kind in ("add", "subtract"):
        left, right = operand(0), operand(1)
        if left and right and instruction.kind == "add" and left[0] is None:
            left, right = right, left
        if left and right and right[0] is None:
            return left[0], left[1] + (right[1] if instruction.kind == "add" else -right[1])
    return None
