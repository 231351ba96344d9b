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
from itertools import combinations, pairwise, product

import jax
from jax.sharding import NamedSharding

from shardlab._tables import aligned, html_table
from shardlab.hlo import CALLS, Program, UnreadableProgram, array_types, type_bytes

__all__ = ["Collective", "Collectives", "collectives", "find", "read_program"]

_KINDS = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
    "reduce-scatter",
)  # fmt: skip
_COLUMNS = ("collective", "between", "each device", "times", "bytes sent each time")
_COMMUNICATE = r"\b(all-|collective-|ragged-|reduce-scatter|send|recv|custom-call)"


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
        held = sum(map(type_bytes, self.operands))
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
        total = f"bytes sent by each device in total (ring model): {_known(self.bytes)}"
        return f"{aligned([_COLUMNS, *self._rows()])}\n{total}"

    def _repr_html_(self):
        if not self.moves:
            return "<p>no communication</p>"
        total = f"<p>Bytes sent by each device in total (ring model): {_known(self.bytes)}.</p>"
        return html_table(_COLUMNS, self._rows(), code=_COLUMNS.index("each device")) + total


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
      shardlab.hlo.UnreadableProgram: the program contains a line of unknown form; the message shows it.
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
      shardlab.hlo.UnreadableProgram: the text has no entry, or a collective in it cannot be read.
    """
    return Collectives(tuple(move for move, _ in find(Program(text), mesh)))


def find(program, mesh=None):
    """Every collective of a program, with the instruction that starts it: a fusion, where it is part of one.

    Args:
      program: a `shardlab.hlo.Program`.
      mesh: as for `read_program`.

    Yields:
      A `Collective` and a `shardlab.hlo.Instruction`, in the order of the program's text.

    Raises:
      shardlab.hlo.UnreadableProgram: a collective cannot be read.
    """
    axis_names = _axes_by_groups(mesh) if mesh is not None else {}
    started = _started_in_fusions(program)

    def walk(here, times, asynchronous, fusion, outer):
        for instruction in here.matching(f"{_COMMUNICATE}|{CALLS}"):
            kind, starts = instruction.kind, instruction.kind.endswith("-start")
            if kind.removesuffix("-start") in _KINDS:
                move = _collective(instruction, program.devices, axis_names, times, asynchronous or starts)
                move = move if fusion is None else _in_a_fusion(move, instruction, fusion, started)
                if move:
                    yield move, outer or instruction
                continue
            _refuse_other_communication(instruction)
            for callee, repeat in instruction.calls():
                yield from walk(
                    callee,
                    None if times is None or repeat is None else times * repeat,
                    asynchronous or starts,
                    instruction if kind == "fusion" else fusion,
                    (outer or instruction) if kind == "fusion" or starts else outer,
                )

    yield from walk(program.entry, 1, False, None, None)


# --- A collective ----------------------------------------------------------------------------------------


def _collective(instruction, devices, axis_names, times, asynchronous):
    kind = instruction.kind.removesuffix("-start")
    operands = tuple(t for operand in instruction.operands for t in array_types(operand))
    results = array_types(instruction.result)
    if not operands or not results:
        raise UnreadableProgram(f"cannot read the types of this collective: {instruction.line.strip()[:300]}")
    if asynchronous and len(results) > len(operands):
        # The result of a started operation holds its operands, its future results, and sometimes handles.
        results = results[len(operands) : 2 * len(operands)]
    groups = _groups(kind, instruction, devices)
    axes = axis_names.get(_as_sets(groups)) if kind != "collective-permute" else _axes_of_pairs(groups, axis_names)
    return Collective(kind, operands, results, groups, axes, times, asynchronous)


def _started_in_fusions(program):
    """The collectives that fusions start and do not wait for, by (computation, name), and by (kind, channel)."""
    found = set()
    for here in program:
        for start in here.matching('custom_call_target="AsyncCollectiveStart"'):
            for name in start.names:
                found |= {(here.name, name), (here[name].kind, _channel(here[name]))}
    return found


def _channel(instruction):
    channel = re.search(r"channel_id=(\d+)", instruction.attributes)
    return channel and channel[1]


def _in_a_fusion(move, instruction, fusion, started):
    """A collective that is part of a fusion, as it should be counted; None if it was counted already.

    In programs for TPUs, fusions contain collectives in two ways. One fusion starts a collective, others continue it
    while they compute, a last one ends it, and all of them repeat its line: only the start counts. And a reduce-scatter
    is written as an all-reduce, fused with the slice that each device keeps.
    """
    if "chain_id=" in instruction.attributes:
        if (instruction.home.name, instruction.name) in started:
            return replace(move, asynchronous=True)
        if (instruction.kind, _channel(instruction)) in started:
            return None
    elif move.kind == "all-reduce":
        parts, n = array_types(fusion.result), max(map(len, move.groups))
        if list(map(type_bytes, move.operands)) == [n * type_bytes(part) for part in parts]:
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
