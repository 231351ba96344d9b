"""The collectives of a compiled program, as data: their kinds, devices, number and bytes.

We read the text of the program that XLA compiled (HLO), because that is the program that runs: it shows the
communication that the compiler added, merged or left out.

The bytes that a collective sends depend on the algorithm. We count those of a ring, the usual model: in an all-reduce
of S bytes over n devices, each device sends 2 (n-1)/n S bytes; in an all-gather whose result has S bytes, in a
reduce-scatter whose operand has S bytes, and in an all-to-all of S bytes on each device, (n-1)/n S; in a permute, its
operand. Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
sections 4.1 to 4.5.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from itertools import combinations, pairwise, product

import jax
from jax.sharding import NamedSharding

__all__ = ["Collective", "Collectives", "UnreadableProgram", "collectives", "read_program"]

_KINDS = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
    "reduce-scatter",
)  # fmt: skip
_COLUMNS = ("collective", "between", "each device", "times", "bytes sent each time")
_BYTES = {"pred": 1, "token": 0, "s4": 0.5, "u4": 0.5, "s2": 0.25, "u2": 0.25, "f4e2m1fn": 0.5}


class UnreadableProgram(ValueError):
    """A line of the program's text has an unknown form; the message shows the line."""


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
      kind: HLO's name: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute".
      operands: the types of each device's operands, such as `("f32[4,4]",)`; several, if merged.
      results: the types of each device's results.
      groups: which devices communicate with each other, as positions in the flattened mesh; for a permute the pairs
        (source, target).
      axes: the mesh axes along which they communicate, such as `("x",)`; None if the mesh is unknown, or if the
        groups do not follow its axes.
      times: how often it runs in one call of the program; None if only the run decides.
      asynchronous: whether the program may compute while the collective is in progress.
    """

    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    axes: tuple[str, ...] | None = None
    times: int | None = 1
    asynchronous: bool = False

    @property
    def bytes(self):
        """Bytes that a device sends, on a ring, each time it runs; of the busiest device, where they differ.

        None for a ragged all-to-all, whose sizes only the run decides.
        """
        if self.kind == "ragged-all-to-all":
            return None
        held = sum(map(_type_bytes, self.operands))
        n = max(map(len, self.groups), default=1)
        if self.kind in ("collective-permute", "collective-broadcast"):
            moving = any(len(set(group)) > 1 for group in self.groups)
            return math.ceil(held) if moving else 0
        share = {"all-gather": n - 1, "all-reduce": 2 * (n - 1) / n}.get(self.kind, (n - 1) / n)
        return math.ceil(share * held)


@dataclass(frozen=True, eq=False)
class Collectives(Mapping):
    """The communication of a program: a mapping from each kind of collective to how often it runs.

    A program whose only communication is one all-reduce `== {"all-reduce": 1}`; a program without
    communication `== {}`. A number is None if only the run decides it.

    Attributes:
      moves: every `Collective` of the program, in the order of its text.
    """

    moves: tuple[Collective, ...]
    _counts: dict = field(init=False, repr=False)

    def __post_init__(self):
        counts = {}
        for move in self.moves:
            known = move.times is not None and counts.get(move.kind, 0) is not None
            counts[move.kind] = counts.get(move.kind, 0) + move.times if known else None
        object.__setattr__(self, "_counts", counts)

    def __getitem__(self, kind):
        return self._counts[kind]

    def __iter__(self):
        return iter(self._counts)

    def __len__(self):
        return len(self._counts)

    @property
    def bytes(self):
        """Bytes that a device sends in one call, on rings; None if only the run decides."""
        if any(move.times is None or move.bytes is None for move in self.moves):
            return None
        return sum(move.times * move.bytes for move in self.moves)

    def _rows(self):
        for move in self.moves:
            who = "along " + ", ".join(move.axes) if move.axes is not None else f"groups {_groups_text(move.groups)}"
            what = f"{', '.join(move.operands)} → {', '.join(move.results)}"
            yield (
                move.kind + (" (async)" if move.asynchronous else ""),
                who,
                what,
                _known(move.times),
                _known(move.bytes),
            )

    def __repr__(self):
        if not self.moves:
            return "no communication"
        rows = [_COLUMNS, *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, f"bytes sent by each device in total (ring model): {_known(self.bytes)}"])

    def _repr_html_(self):
        if not self.moves:
            return "<p>no communication</p>"
        head = "".join(f"<th>{h}</th>" for h in _COLUMNS)
        body = "".join(
            f"<tr><td>{escape(kind)}</td><td>{escape(who)}</td><td><code>{escape(what)}</code></td>"
            f"<td>{times}</td><td>{sent}</td></tr>"
            for kind, who, what, times, sent in self._rows()
        )
        return (
            f'<table class="dataframe"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
            f"<p>Bytes sent by each device in total (ring model): {_known(self.bytes)}.</p>"
        )


def _known(number):
    return "unknown" if number is None else f"{number:,}"


def collectives(f, *args, mesh=None, **kwargs):
    """The communication of `f(*args)`, compiled for the shardings of its arguments.

    On a mesh with 4 devices along x, `collectives(lambda a: a.sum(0), a)` for a float32 array `a` of shape
    (8, 16), sharded as `P("x", None)`, is `{"all-reduce": 1}` with 2 * 3/4 * 16 * 4 = 96 bytes: each device
    adds its own rows, and an all-reduce adds the 16 partial sums along x.

    Args:
      f: a function, jitted or not; or a compiled one, as `jax.jit(f).lower(...).compile()` returns it
        (then without `args`).
      *args, **kwargs: arrays, or `jax.ShapeDtypeStruct`s with shardings, which need no memory.
      mesh: the mesh whose axes name the groups; by default that of the shardings of arguments or results.

    Returns:
      `Collectives`: equal to a dict from kind to count, with the details in `moves`, the bytes in `bytes`.

    Raises:
      UnreadableProgram: the program contains a line of unknown form; the message shows it.
    """
    compiled = f if _is_compiled(f) else compile_for(f, *args, **kwargs)
    if mesh is None:
        placed = (args, kwargs, compiled.output_shardings, compiled.input_shardings)
        shardings = [getattr(leaf, "sharding", leaf) for leaf in jax.tree.leaves(placed)]
        mesh = next((s.mesh for s in shardings if isinstance(s, NamedSharding) and s.mesh.size > 1), None)
    return read_program(compiled.as_text(), mesh)


def compile_for(f, *args, **kwargs):
    """A function, jitted or not, compiled for the shardings of its arguments."""
    jitted = f if hasattr(f, "lower") else jax.jit(f)
    return jitted.lower(*args, **kwargs).compile()


def _is_compiled(f):
    return hasattr(f, "as_text") and hasattr(f, "input_shardings")


def read_program(text, mesh=None):
    """The communication in the text of a compiled program (HLO); see `collectives`.

    Args:
      text: what `compiled.as_text()` returns.
      mesh: a `Mesh` or `AbstractMesh` whose axes name the groups; without it they stay lists of positions.

    Returns:
      `Collectives`.

    Raises:
      UnreadableProgram: the text has no entry, or a collective in it cannot be read.
    """
    return Collectives(tuple(move for move, _, _ in _moves(text, mesh)))


def _moves(text, mesh):
    """Each collective, with the computation and the instruction that start it: a fusion, if it is part of one."""
    computations, entry = _computations(text)
    if entry is None:
        raise UnreadableProgram(f"no ENTRY in this text: {text.strip()[:200]!r}; pass what compiled.as_text() returns")
    partitions = re.search(r"num_partitions=(\d+)", text)
    devices = int(partitions[1]) if partitions else 1
    axis_names = _axes_by_groups(mesh) if mesh is not None else {}
    started = _started_in_fusions(computations)

    def walk(name, times, asynchronous, fusion, outer):
        if name not in computations:
            raise UnreadableProgram(f"this program calls {name}, which is not in its text")
        here = computations[name]
        for instruction in here.that_matter():
            kind, place = instruction.kind, outer or (name, instruction.name)
            if kind.removesuffix("-start") in _KINDS:
                background = asynchronous or kind.endswith("-start")
                move = _collective(kind.removesuffix("-start"), instruction, devices, axis_names, times, background)
                move = move if fusion is None else _in_a_fusion(move, instruction, name, fusion, started)
                if move:
                    yield move, *place
                continue
            _refuse_other_communication(instruction)
            for callee, repeat in _calls(instruction, here, computations):
                yield from walk(
                    callee,
                    None if times is None or repeat is None else times * repeat,
                    asynchronous or kind.endswith("-start"),
                    instruction if kind == "fusion" else fusion,
                    place if kind == "fusion" or kind.endswith("-start") else outer,
                )

    yield from walk(entry, 1, False, None, None)


# --- The text of a program -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Instruction:
    name: str
    kind: str
    line: str
    result: str  # its type
    inside: str  # the parentheses, in which the operands are
    operands: tuple[str, ...]  # their types
    names: tuple[str, ...]  # of the operands
    attributes: str


class _Computation:
    """The instructions of a computation, by name; parsed when asked for, because few matter."""

    def __init__(self):
        self.lines, self.root = {}, None

    def __getitem__(self, name):
        if name not in self.lines:
            raise UnreadableProgram(f"no instruction {name} in this computation: {list(self.lines.values())[:3]}")
        line = self.lines[name]
        result, rest = self._typed(name)
        operation = re.match(r"\s*([a-z][\w\-]*)\(", rest)
        if not operation:
            raise UnreadableProgram(f"cannot read this instruction: {line.strip()[:300]}")
        inside, attributes = _take_parentheses(rest[operation.end() - 1 :])
        operands, names = [], []
        for operand in _split(re.sub(r"/\*.*?\*/", "", inside)):
            # Types are written before the operands' names, or known from where they were made.
            written, _, operand = operand.rpartition(" ")
            names.append(operand.lstrip("%"))
            operands.append(written or (self._typed(names[-1])[0] if names[-1] in self.lines else ""))
        return _Instruction(name, operation[1], line, result, inside, tuple(operands), tuple(names), attributes)

    def _typed(self, name):
        return _take_type(self.lines[name].partition(" = ")[2])

    def that_matter(self):
        """The instructions that may communicate, or run another computation."""
        for name, line in self.lines.items():
            communicates = re.search(r"\b(all-|collective-|ragged-|reduce-scatter|send|recv|custom-call)", line)
            if communicates or re.search(r"(calls|to_apply|body|computations?)=", line):
                yield self[name]


def _computations(text):
    """{name: computation} and the name of the entry."""
    computations, entry, here = {}, None, None
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$", line)
        if head:
            here = computations[head[2]] = _Computation()
            entry = head[2] if head[1] else entry
        elif here is not None:
            made = re.match(r"\s+(ROOT )?%?([\w.\-]+) = ", line)
            if made:
                name = made[2]
                here.lines[name] = line
                here.root = name if made[1] else here.root
            elif here.lines and line.strip() not in ("", "}"):  # the attributes of some kernels take several lines
                here.lines[name] += line
    return computations, entry


def _take_type(text):
    """A type at the start of a text, and what follows: tuples have parentheses."""
    if text.startswith("("):
        inside, rest = _take_parentheses(text)
        return f"({inside})", rest
    head, _, rest = text.partition(" ")
    return head, rest


def _take_parentheses(text):
    depth = 0
    for i, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return text[1:i], text[i + 1 :]
    raise UnreadableProgram(f"a parenthesis is not closed: {text[:200]}")


def _split(text):
    """Split at commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _plain(type_text):
    """The array types in a type, without their layouts: "(f32[4,4]{1,0}, f32[4])" has two."""
    return tuple(re.findall(r"\b([a-z]\w*\[[\d,<=]*\])", re.sub(r"/\*.*?\*/", "", type_text)))


def _type_bytes(type_text):
    kind, dims = re.fullmatch(r"(\w+)\[([\d,<=]*)\]", type_text).groups()
    size = _BYTES.get(kind)
    if size is None:
        bits = re.search(r"\d+", kind)
        size = int(bits[0]) / 8 if bits else 0
    return math.prod(int(dim.lstrip("<=")) for dim in dims.split(",") if dim) * size


def _calls(instruction, here, computations):
    """The computations that an instruction runs, each with how often; None if only the run decides."""
    text = re.sub(r'"[^"]*"', "", instruction.attributes)
    if instruction.kind.endswith(("-update", "-done")):
        return []  # of a collective that was started before
    if instruction.kind == "while":
        repeat = _trips(instruction, here, computations)
        again = None if repeat is None else repeat + 1
        return [(_callee("body", instruction), repeat), (_callee("condition", instruction), again)]
    if instruction.kind == "conditional":
        branches = re.search(r"branch_computations=\{([^}]*)\}", text)
        names = branches[1].split(",") if branches else re.findall(r"(?:true|false)_computation=([%\w.\-]+)", text)
        return [(name.strip().lstrip("%"), None) for name in names]
    called = re.findall(r"\b(?:calls|to_apply|called_computations)=\{?([%\w.\-]+(?:, ?%[\w.\-]+)*)", text)
    return [(name.strip().lstrip("%"), 1) for names in called for name in names.split(",")]


def _trips(loop, here, computations):
    """How often a loop's body runs, if the compiler says so, or if the loop only counts; else None."""
    said = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
    if said:
        return int(said[1])
    # TPU programs do not say it. A loop of JAX's scan or fori_loop carries a number to which its body adds a constant,
    # as long as it compares with another constant (or with a number that is carried along unchanged).
    body, condition = computations[_callee("body", loop)], computations[_callee("condition", loop)]
    test, before, after = condition[condition.root], here[loop.names[0]], body[body.root]
    if test.kind != "compare" or before.kind != "tuple" or after.kind != "tuple":
        return None

    def first_and_step(side):
        place, more = _number(side, condition, computations) or (None, None)
        if more is None or place is None:
            return more, 0
        first = _number(before.names[place], here, computations)
        then = _number(after.names[place], body, computations)
        known = first and then and first[0] is None and then[0] == place
        return (first[1] + more, then[1]) if known else (None, None)

    (left, left_step), (right, right_step) = map(first_and_step, test.names)
    if left is None or right is None:
        return None
    direction = re.search(r"direction=(\w+)", test.attributes)[1]
    distance, step = right - left, left_step - right_step
    if direction in ("GT", "GE") or (direction == "NE" and distance < 0):
        distance, step = -distance, -step
    if direction in ("LE", "GE"):
        distance += 1
    if direction == "EQ" or (direction == "NE" and step > 0 and distance % step):
        return None
    return 0 if distance <= 0 else math.ceil(distance / step) if step > 0 else None


def _callee(role, instruction):
    return re.search(rf"\b{role}=%?([\w.\-]+)", instruction.attributes)[1]


def _number(name, where, computations, given=None):
    """A whole number in a computation as (k, n): element k of what a loop carries, plus n; or (None, n): just n.

    None if it is neither, or computed in a way that we do not follow. `given` are the inputs, as such pairs, of a
    computation that is no part of a loop.
    """
    made = where[name]

    def operand(i):
        return _number(made.names[i], where, computations, given)

    if made.kind == "constant":
        return (None, int(made.inside)) if re.fullmatch(r"-?\d+", made.inside) else None
    if made.kind == "parameter":
        return given[int(made.inside)] if given else None
    if made.kind in ("bitcast", "copy", "copy-start", "copy-done"):
        return operand(0)
    if made.kind == "get-tuple-element":
        place, source = int(re.search(r"\bindex=(\d+)", made.attributes)[1]), where[made.names[0]]
        if source.kind == "tuple":
            return _number(source.names[place], where, computations, given)
        return (place, 0) if source.kind == "parameter" and given is None else None
    if made.kind == "fusion":
        callee = computations[_callee("calls", made)]
        return _number(callee.root, callee, computations, [operand(i) for i in range(len(made.names))])
    if made.kind in ("add", "subtract"):
        left, right = operand(0), operand(1)
        if left and right and made.kind == "add" and left[0] is None:
            left, right = right, left
        if left and right and right[0] is None:
            return left[0], left[1] + (right[1] if made.kind == "add" else -right[1])
    return None


# --- A collective ----------------------------------------------------------------------------------------


def _collective(kind, instruction, devices, axis_names, times, asynchronous):
    operands = tuple(t for operand in instruction.operands for t in _plain(operand))
    results = _plain(instruction.result)
    if not operands or not results:
        raise UnreadableProgram(f"cannot read the types of this collective: {instruction.line.strip()[:300]}")
    if asynchronous and len(results) > len(operands):
        # The result of a started operation holds its operands, its future results, and sometimes handles.
        results = results[len(operands) : 2 * len(operands)]
    groups = _groups(kind, instruction, devices)
    axes = axis_names.get(_as_sets(groups)) if kind != "collective-permute" else _axes_of_pairs(groups, axis_names)
    return Collective(kind, operands, results, groups, axes, times, asynchronous)


def _started_in_fusions(computations):
    """The collectives that fusions start and do not wait for, by (computation, name), and by (kind, channel)."""
    found = set()
    for name, here in computations.items():
        for made, line in here.lines.items():
            if 'custom_call_target="AsyncCollectiveStart"' in line:
                for collective in map(here.__getitem__, here[made].names):
                    found |= {(name, collective.name), (collective.kind, _channel(collective))}
    return found


def _channel(instruction):
    channel = re.search(r"channel_id=(\d+)", instruction.attributes)
    return channel and channel[1]


def _in_a_fusion(move, instruction, computation, fusion, started):
    """A collective that is part of a fusion, as it should be counted; None if it was counted already.

    In programs for TPUs, fusions contain collectives in two ways. One fusion starts a collective, others continue it
    while they compute, a last one ends it, and all of them repeat its line: only the start counts. And a reduce-scatter
    is written as an all-reduce, fused with the slice that each device keeps.
    """
    if "chain_id=" in instruction.attributes:
        if (computation, instruction.name) in started:
            return replace(move, asynchronous=True)
        if (instruction.kind, _channel(instruction)) in started:
            return None
    elif move.kind == "all-reduce":
        parts, n = _plain(fusion.result), max(map(len, move.groups))
        if list(map(_type_bytes, move.operands)) == [n * _type_bytes(part) for part in parts]:
            return replace(move, kind="reduce-scatter", results=parts)
    raise UnreadableProgram(
        f"a collective in a fusion of unknown form: {instruction.line.strip()[:300]}\n"
        f"in the fusion: {fusion.line.strip()[:300]}"
    )


def _refuse_other_communication(instruction):
    """Raise if an instruction communicates in a way that we cannot count."""
    kind, text = instruction.kind, instruction.attributes
    to_host = kind in ("send", "recv") and "is_host_transfer=true" in text and "megascale" not in text  # callbacks
    unknown = re.match(r"all-|collective-|ragged-|reduce-scatter|(send|recv)$", kind) and not kind.endswith("-done")
    if (unknown and not to_host) or (kind == "custom-call" and re.search(r'"has_communication":\s*true', text)):
        raise UnreadableProgram(
            "this program communicates in a way that we cannot read, such as between TPU slices or inside a kernel: "
            f"{instruction.line.strip()[:300]}"
        )


def _groups(kind, instruction, devices):
    text = instruction.attributes
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", text)
        if not pairs:
            raise UnreadableProgram(f"no source_target_pairs in: {instruction.line.strip()[:300]}")
        return tuple(tuple(map(int, pair.split(","))) for pair in re.findall(r"\{(\d+,\d+)\}", pairs[1]))
    # Three spellings: lists {{0,4},{1,5}}; an iota [4,2]<=[2,4]T(1,0); a mesh with the axes along which to communicate.
    listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", text)
    if listed:
        groups = tuple(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", listed[1]))
        return groups or (tuple(range(devices)),)
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota:
        size, flat = int(iota[2]), _iota(iota[3], iota[4])
        return tuple(tuple(flat[start : start + size]) for start in range(0, len(flat), size))
    order = r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?"
    named = re.search(rf"replica_groups=mesh\[([^\]]*)\]{order} \{{([^}}]*)\}}(?=,|$)", text)
    axis = r"'[^']*'=\d+"
    part = r"'[^']*'(?::\(\d+\)\d+)?"
    if named and re.fullmatch(rf"{axis}(,{axis})*", named[1]) and re.fullmatch(rf"{part}(,{part})*", named[4]):
        groups = _groups_of_mesh(named[1], named[4])
        seats = _iota(named[2], named[3]) if named[2] else range(devices)
        return tuple(tuple(seats[place] for place in group) for group in groups)
    raise UnreadableProgram(f"cannot read the groups of this collective: {instruction.line.strip()[:300]}")


def _iota(dims, order):
    """0, 1, 2, ... as an array of some shape, transposed, and flattened again."""
    dims = _numbers(dims)
    order = _numbers(order) if order else range(len(dims))
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    places = product(*(range(dims[axis]) for axis in order))
    return [sum(i * strides[axis] for i, axis in zip(place, order, strict=True)) for place in places]


def _groups_of_mesh(mesh, talking):
    """The groups along axes, or parts of axes, of a mesh that the compiler names: "'x'=2,'y'=4" and "'y':(2)2".

    The part (2)2 of an axis of size 4 is its second factor of two: 4 = 2 * 2, the first factor being the major one.
    """
    parts = [
        (name, int(before or 1), int(size) if size else None)
        for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", talking)
    ]
    sizes, chosen = {}, {}
    for axis, size in re.findall(r"'([^']*)'=(\d+)", mesh):
        wanted = [(before, before * (part or int(size))) for name, before, part in parts if name == axis]
        bounds = sorted({1, int(size)}.union(*wanted))
        for low, high in pairwise(bounds):
            sizes[axis, low] = high // low
            for start, end in wanted:
                if start <= low and high <= end:
                    chosen[axis, low] = parts.index(next(p for p in parts if p[0] == axis and p[1] == start))
    return _groups_along(sizes, sorted(chosen, key=lambda key: (chosen[key], key[1])))


def _numbers(text):
    return [int(number) for number in text.split(",")]


def _groups_along(sizes, axes):
    """The groups of devices, by position in the flattened mesh, that differ along some axes only."""
    strides, stride = {}, 1
    for axis in reversed(sizes):
        strides[axis] = stride
        stride *= sizes[axis]
    rest = [axis for axis in sizes if axis not in axes]

    def offsets(names):
        places = product(*(range(sizes[axis]) for axis in names))
        return [sum(i * strides[axis] for i, axis in zip(place, names, strict=True)) for place in places]

    return tuple(tuple(base + offset for offset in offsets(axes)) for base in offsets(rest))


def _as_sets(groups):
    return frozenset(map(frozenset, groups))


def _axes_by_groups(mesh):
    """For every choice of mesh axes, the groups along them; the shortest choice where axes have size 1."""
    sizes = {str(axis): int(size) for axis, size in mesh.shape.items()}
    found = {}
    for count in range(1, len(sizes) + 1):
        for axes in combinations(sizes, count):
            found.setdefault(_as_sets(_groups_along(sizes, axes)), axes)
    return found


def _axes_of_pairs(pairs, axis_names):
    """The fewest axes such that every message stays within a group along them."""
    for groups, axes in axis_names.items():
        if all(any(a in group and b in group for group in groups) for a, b in pairs):
            return axes
    return None


def _groups_text(groups):
    text = str([list(group) for group in groups[:4]])
    return text if len(groups) <= 4 else f"{text[:-1]}, …] ({len(groups)})"
