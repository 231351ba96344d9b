"""The collectives of a compiled program, as data: which, between whom, how often, and how many bytes.

We read the text of the program that XLA compiled (HLO), because that is what will run: communication which
the compiler added, merged or left out is seen as it is.

How many bytes a collective moves depends on the algorithm. Ours is a ring, the usual one: to add up S bytes
over n devices, each device sends 2 (n-1)/n S; to gather pieces into S bytes, or to scatter a sum of S bytes,
(n-1)/n S; to exchange S bytes all-to-all, (n-1)/n S; to permute, what it holds. Source: Thakur, Rabenseifner
and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, sections 4.1 to 4.5.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """A line of the program's text is not of a form that we know; the message shows it."""


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
      kind: HLO's name: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute".
      operands: the types of what each device puts in, such as `("f32[4,4]",)`; several, if merged.
      results: the types of what each device gets.
      groups: which devices talk to each other, as positions in the flattened mesh; for a permute the pairs
        (from, to).
      axes: the mesh axes along which they talk, such as `("x",)`; None if the mesh is unknown, or if the
        groups do not follow its axes.
      times: how often it runs in one call of the program; None if that is decided while it runs.
      asynchronous: whether the program may compute while it is under way.
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
        """Bytes that a device sends, on a ring, each time it runs; of the busiest device, where they differ."""
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

    A program that adds up once along a mesh axis, and sends nothing else, `== {"all-reduce": 1}`; one that
    does not communicate `== {}`. A number is None if it is decided while the program runs.

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
        """Bytes that a device sends in one call, on rings; None if a number of repetitions is unknown."""
        if any(move.times is None for move in self.moves):
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
        return "\n".join([*lines, f"bytes that a device sends in all: {_known(self.bytes)}"])

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
            f"<p>Bytes that a device sends in all: {_known(self.bytes)}.</p>"
        )


def _known(number):
    return "unknown" if number is None else f"{number:,}"


def collectives(f, *args, mesh=None, **kwargs):
    """The communication of `f(*args)`, compiled for where its arguments lie.

    On a mesh with 4 devices along x, `collectives(lambda a: a.sum(0), a)` for a float32 array `a` of shape
    (8, 16), cut as `P("x", None)`, is `{"all-reduce": 1}` with 2 * 3/4 * 16 * 4 = 96 bytes: each device
    adds its own rows, and the 16 partial sums are added along x.

    Args:
      f: a function, jitted or not; or something compiled, as `jax.jit(f).lower(...).compile()` returns it
        (then without `args`).
      *args, **kwargs: arrays, or `jax.ShapeDtypeStruct`s with shardings, which need no memory.
      mesh: the mesh whose axes name the groups; by default the one on which the arguments or results lie.

    Returns:
      `Collectives`: equal to a dict from kind to count, with the details in `moves`, the bytes in `bytes`.

    Raises:
      UnreadableProgram: the compiler wrote something that we do not understand; the message shows the line.
    """
    compiled = f if _is_compiled(f) else compile_for(f, *args, **kwargs)
    if mesh is None:
        placed = (args, kwargs, compiled.output_shardings, compiled.input_shardings)
        shardings = [getattr(leaf, "sharding", leaf) for leaf in jax.tree.leaves(placed)]
        mesh = next((s.mesh for s in shardings if isinstance(s, NamedSharding) and s.mesh.size > 1), None)
    return read_program(compiled.as_text(), mesh)


def compile_for(f, *args, **kwargs):
    """A function, jitted or not, compiled for where its arguments lie."""
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
      UnreadableProgram: the text has no entry, or a collective in it cannot be understood.
    """
    computations, entry = _computations(text)
    if entry is None:
        raise UnreadableProgram(f"no ENTRY in this text: {text.strip()[:200]!r}; pass what compiled.as_text() returns")
    partitions = re.search(r"num_partitions=(\d+)", text)
    devices = int(partitions[1]) if partitions else 1
    axis_names = _axes_by_groups(mesh) if mesh is not None else {}
    moves = []

    def walk(name, times, asynchronous):
        for kind, instruction in computations[name]:
            if kind in _KINDS or (kind.removesuffix("-start") in _KINDS and kind.endswith("-start")):
                started = kind.endswith("-start")
                moves.append(
                    _collective(
                        kind.removesuffix("-start"), instruction, devices, axis_names, times, started or asynchronous
                    )
                )
                continue
            for callee, repeat in _calls(kind, instruction):
                if callee in computations:
                    walk(
                        callee,
                        None if times is None or repeat is None else times * repeat,
                        asynchronous or kind == "async-start",
                    )

    walk(entry, 1, False)
    return Collectives(tuple(moves))


# --- The text of a program -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Instruction:
    line: str
    result: str  # its type
    operands: tuple[str, ...]  # their types
    attributes: str


def _computations(text):
    """{name: [(kind, instruction)]} and the name of the entry, for instructions that matter here."""
    computations, entry, types, name = {}, None, {}, None
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.\-]+) (?:\([^=]*\) -> .*)?\{$", line)
        if head and not line.startswith(" "):
            name, types = head[2], {}
            computations[name] = []
            entry = name if head[1] else entry
        elif name is not None and " = " in line:
            parsed = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = ", line)
            if not parsed:
                continue
            result, rest = _take_type(line[parsed.end() :])
            types[parsed[1]] = result
            operation = re.match(r"\s*([a-z][\w\-]*)\(", rest)
            if not operation:
                continue
            kind = operation[1]
            matters = (
                kind.removesuffix("-start") in _KINDS or "calls=" in rest or kind in ("while", "conditional", "call")
            )
            if matters:
                inside, attributes = _take_parentheses(rest[operation.end() - 1 :])
                computations[name].append((kind, _Instruction(line, result, _operand_types(inside, types), attributes)))
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
    raise UnreadableProgram(f"a parenthesis is never closed: {text[:200]}")


def _split(text):
    """Split at commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _operand_types(inside, types):
    """The operands' types: written before their names, or known from where they were made."""
    found = []
    for operand in _split(re.sub(r"/\*.*?\*/", "", inside)):
        written, _, name = operand.rpartition(" ")
        found.append(written or types.get(name.lstrip("%"), ""))
    return tuple(found)


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


def _calls(kind, instruction):
    """The computations that an instruction runs, each with how often; None if that is decided while it runs."""
    text = instruction.attributes
    if kind == "while":
        trips = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', text)
        repeat = int(trips[1]) if trips else None
        body, condition = re.search(r"\bbody=%?([\w.\-]+)", text), re.search(r"\bcondition=%?([\w.\-]+)", text)
        return [(body[1], repeat), (condition[1], None if repeat is None else repeat + 1)]
    if kind == "conditional":
        branches = re.search(r"branch_computations=\{([^}]*)\}", text)
        names = branches[1].split(",") if branches else re.findall(r"(?:true|false)_computation=([%\w.\-]+)", text)
        return [(name.strip().lstrip("%"), None) for name in names]
    called = re.search(r"\b(?:calls|to_apply)=%?([\w.\-]+)", text)
    return [(called[1], 1)] if called else []


# --- A collective ----------------------------------------------------------------------------------------


def _collective(kind, instruction, devices, axis_names, times, asynchronous):
    operands = tuple(t for operand in instruction.operands for t in _plain(operand))
    results = _plain(instruction.result)
    if not operands or not results:
        raise UnreadableProgram(f"cannot read the types of this collective: {instruction.line.strip()[:300]}")
    if asynchronous and len(results) > len(operands):
        # A started operation results in what went in, what will come out, and sometimes handles.
        results = results[len(operands) : 2 * len(operands)]
    groups = _groups(kind, instruction, devices)
    axes = axis_names.get(_as_sets(groups)) if kind != "collective-permute" else _axes_of_pairs(groups, axis_names)
    return Collective(kind, operands, results, groups, axes, times, asynchronous)


def _groups(kind, instruction, devices):
    text = instruction.attributes
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", text)
        if not pairs:
            raise UnreadableProgram(f"no source_target_pairs in: {instruction.line.strip()[:300]}")
        return tuple(tuple(map(int, pair.split(","))) for pair in re.findall(r"\{(\d+,\d+)\}", pairs[1]))
    # Three spellings: lists {{0,4},{1,5}}; an iota [4,2]<=[2,4]T(1,0); a mesh with the axes along which to talk.
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
        cuts = sorted({1, int(size)}.union(*wanted))
        for low, high in pairwise(cuts):
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
