"""The collectives of a compiled program, as data: their kinds, devices, number and bytes.

We read the text of the program that XLA compiled (HLO), because that is the program that runs: it
shows the communication that the compiler added, merged or left out.

The bytes that a collective sends depend on the algorithm. We count those of a ring, the usual
model: in an all-reduce of S bytes over n devices, each device sends 2 (n-1)/n S bytes; in an
all-gather whose result has S bytes, in a reduce-scatter whose operand has S bytes, and in an
all-to-all of S bytes on each device, (n-1)/n S; in a permute, its operand. Source: Thakur,
Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
sections 4.1 to 4.5.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, count, pairwise, product
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardlab._tables import aligned, html_table
from shardlab.costs.communication.kinds import KINDS
from shardlab.programs.hlo import (
    CALLS,
    COLLECTIVES,
    MOST,
    Instruction,
    Program,
    UnreadableProgram,
    array_types,
    promised,
    type_bytes,
)
from shardlab.programs.kernels import communicates

__all__ = [
    "Collective",
    "Collectives",
    "collectives",
    "compile_for",
    "find",
    "meshes_named_in",
    "meshes_of",
    "read_program",
    "stages",
]

_COLUMNS = ("collective", "between", "each device", "times", "bytes sent each time")
_MOST = 100_000  # collectives of a program
_COMMUNICATE = r"\b(all-|collective-|ragged-|reduce-scatter|send|recv|custom-call)"


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("y", None)))
    >>> move = collectives(lambda a: a.sum(0), a).moves[0]
    >>> move.kind, move.axes, move.operands, move.times, move.bytes
    ('all-reduce', ('y',), ('f32[16]',), 1, 96)

    Attributes:
      kind: HLO's name: "all-reduce", "all-gather", "reduce-scatter", "all-to-all",
        "collective-permute".
      operands: the types of each device's operands, such as `("f32[4,4]",)`; several, if merged.
      results: the types of each device's results.
      groups: which devices communicate with each other, as positions in the flattened mesh; for a
        permute the pairs (source, target).
      axes: the mesh axes along which they communicate, such as `("x",)`; None if the mesh is
        unknown, or if the groups are not exactly those along some of its axes.
      at_least: how often it runs in one call of the program, at least: 0 in a branch of a
        conditional, and in a loop whose length only the run decides.
      at_most: how often it runs, at most: once in a branch of a conditional; None if only the run
        decides.
      asynchronous: whether the program may compute while the collective is in progress.
      within: the fewest mesh axes such that every group stays within the devices along them:
        `("y",)` for groups of two of the four devices along y, which have no `axes`. Otherwise the
        same as `axes`.
      branches: for each conditional around it, from the outermost to the innermost: the number of
        the conditional, the position of the branch, and how many branches there are.
    """

    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    axes: tuple[str, ...] | None = None
    at_least: int = 1
    at_most: int | None = 1
    asynchronous: bool = False
    within: tuple[str, ...] | None = None
    branches: tuple[tuple[int, int, int], ...] = ()

    @property
    def times(self) -> int | None:
        """How often it runs in one call of the program; None if only the run decides."""
        return self.at_most if self.at_least == self.at_most else None

    @property
    def bytes(self) -> int | None:
        """Bytes that a device sends, on a ring, each time it runs; of the busiest device, where
        they differ.

        None for a ragged all-to-all, whose sizes only the run decides.
        """
        if self.kind == "ragged-all-to-all":
            return None
        array_bytes, kind = sum(map(type_bytes, self.operands)), KINDS[self.kind]
        n = max((len(set(group)) for group in self.groups), default=1)
        return math.ceil(kind.sent(array_bytes * n if kind.grows else array_bytes, n))


@dataclass(frozen=True, eq=False)
class Collectives(Mapping[str, int | None]):
    """The communication of a program: a mapping from each kind of collective to how often it runs.

    A program whose only communication is one all-reduce `== {"all-reduce": 1}`; a program without
    communication `== {}`. A number is None if only the run decides it; then `at_least` and
    `at_most` bound it.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("y", None)))
    >>> found = collectives(lambda a: a.sum(0), a)
    >>> dict(found), found.bytes
    ({'all-reduce': 1}, 96)

    Attributes:
      moves: every `Collective` of the program, in the order of its text.
    """

    moves: tuple[Collective, ...]
    _bounds: dict = field(init=False, repr=False)

    def __post_init__(self) -> None:
        together = {}
        for move in self.moves:
            together.setdefault(move.kind, []).append(move)
        bounds = {kind: _total(moves, lambda move: 1) for kind, moves in together.items()}
        object.__setattr__(self, "_bounds", bounds)

    def __getitem__(self, kind: str) -> int | None:
        return _same(*self._bounds[kind])

    def __iter__(self) -> Iterator[str]:
        return iter(self._bounds)

    def __len__(self) -> int:
        return len(self._bounds)

    @property
    def at_least(self) -> dict[str, int]:
        """How often each kind runs, at least: `{"all-reduce": 0}` for one in a branch of a
        conditional.
        """
        return {kind: least for kind, (least, _) in self._bounds.items()}

    @property
    def at_most(self) -> dict[str, int | None]:
        """How often each kind runs, at most; None if there is no bound: in a loop whose length only
        the run decides.

        Of the branches of a conditional one runs, so the branch with the most of a kind counts, not
        their sum.
        """
        return {kind: most for kind, (_, most) in self._bounds.items()}

    @property
    def bytes(self) -> int | None:
        """Bytes that a device sends in one call, on rings; None if only the run decides."""
        return _same(*self._bytes)

    @property
    def bytes_at_least(self) -> int:
        """Bytes that a device sends in one call, on rings, at least."""
        return self._bytes[0]

    @property
    def bytes_at_most(self) -> int | None:
        """Bytes that a device sends in one call, on rings, at most; None if there is no bound."""
        return self._bytes[1]

    @property
    def _bytes(self):
        return _total(self.moves, lambda move: move.bytes)

    def _rows(self):
        for move in self.moves:
            who = f"groups {_groups_text(move.groups)}"
            if move.axes is not None:
                who = "along " + ", ".join(move.axes)
            elif move.within:
                who = f"within {', '.join(move.within)}: {who}"
            what = f"{', '.join(move.operands)} → {', '.join(move.results)}"
            yield (
                move.kind + (" (async)" if move.asynchronous else ""),
                who,
                what,
                _between(move.at_least, move.at_most),
                _between(move.bytes or 0, move.bytes),
            )

    def __repr__(self) -> str:
        if not self.moves:
            return "no communication"
        total = f"bytes sent by each device in total (ring model): {_between(*self._bytes)}"
        return f"{aligned([_COLUMNS, *self._rows()])}\n{total}"

    def _repr_html_(self):
        if not self.moves:
            return "<p>no communication</p>"
        total = f"<p>Bytes sent by each device in total (ring model): {_between(*self._bytes)}.</p>"
        return html_table(_COLUMNS, self._rows(), code=_COLUMNS.index("each device")) + total


def _total(moves, size, depth=0):
    """The least and the most that collectives of some sizes sum up to; None where there is no
    bound.
    """
    least, most, conditionals = 0, 0, {}
    for move in moves:
        if len(move.branches) > depth:
            number, branch, count = move.branches[depth]
            conditionals.setdefault((number, count), {}).setdefault(branch, []).append(move)
            continue
        each = size(move)
        # Once its branch is chosen, a collective runs as often as the loops say: exactly, or as
        # often as they like.
        least += (each or 0) * ((move.at_most or 0) if move.branches else move.at_least)
        most = _plus(most, _product(each, move.at_most))
    for (_, count), branches in conditionals.items():
        bounds = [_total(inside, size, depth + 1) for inside in branches.values()]
        least += min(low for low, _ in bounds) if len(branches) == count else 0
        most = _plus(
            most,
            None if any(high is None for _, high in bounds) else max(high for _, high in bounds),
        )
    return least, most


def _plus(a, b):
    return None if None in (a, b) else a + b


def _product(a, b):
    return 0 if 0 in (a, b) else None if None in (a, b) else a * b


def _same(least, most):
    return most if least == most else None


def _between(least, most):
    """Two bounds in words: "3", "at most 1", "1 to 4", "at least 1", "unknown"."""
    if most is None:
        return f"at least {least:,}" if least else "unknown"
    return (
        f"{most:,}" if least == most else f"{least:,} to {most:,}" if least else f"at most {most:,}"
    )


def collectives(
    f: Any, *args: Any, mesh: Mesh | AbstractMesh | None = None, **kwargs: Any
) -> Collectives:
    """The communication of `f(*args)`, compiled for the shardings of its arguments.

    On a mesh with 4 devices along y, `collectives(lambda a: a.sum(0), a)` for a float32 array `a`
    of shape (8, 16), sharded as `P("y", None)`, is `{"all-reduce": 1}` with 2 * 3/4 * 16 * 4 = 96
    bytes: each device adds its own rows, and an all-reduce adds the 16 partial sums along y.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("y", None)))
    >>> collectives(lambda a: a.sum(0), a)
    collective  between  each device        times  bytes sent each time
    all-reduce  along y  f32[16] → f32[16]  1      96
    bytes sent by each device in total (ring model): 96
    >>> collectives(lambda a: a.sum(1), a)
    no communication

    Args:
      f: a function; or a jitted one: of `jax.jit`, `flax.nnx.jit` or `equinox.filter_jit`. Or, then
        without `args`, what their `lower(...)` or `lower(...).compile()` returns, or the text of a
        compiled program.
      *args, **kwargs: arrays, or `jax.ShapeDtypeStruct`s with shardings, which need no memory.
      mesh: the mesh whose axes name the groups; by default the meshes of the shardings of arguments
        and results, and those that the program names.

    Returns:
      `Collectives`: equal to a dict from kind to count, with the details in `moves`, the bytes in
      `bytes`.

    Raises:
      shardlab.UnreadableProgram: the program contains a line of unknown form; the message shows it.
      TypeError: `f` is none of these; or it is lowered, compiled or a text, and there are `args`.
    """
    lowered, compiled = stages(f, args, kwargs)
    if compiled is None:
        return read_program(f, mesh)
    text = compiled.as_text()
    program = Program(text)
    if mesh is not None:
        return _read(program, mesh)
    meshes = [*meshes_of(compiled, args, kwargs), *meshes_named_in(text, program.devices)]
    report = _read(program, meshes)
    if lowered is not None and any(move.axes is None for move in report.moves):
        report = _read(program, meshes + meshes_named_in(lowered.as_text(), program.devices))
    return report


def compile_for(f: Any, *args: Any, **kwargs: Any) -> jax.stages.Compiled:
    """A function compiled for the shardings of its arguments.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("y", None)))
    >>> compiled = compile_for(lambda a: a.sum(0), a)
    >>> compiled.memory_analysis().argument_size_in_bytes
    128

    Args:
      f: as for `collectives`, but no text.
      *args, **kwargs: as for `collectives`.

    Returns:
      What `jax.jit(f).lower(...).compile()` returns.

    Raises:
      TypeError: as `collectives` does, and for a text.
    """
    compiled = stages(f, args, kwargs)[1]
    if compiled is None:
        raise TypeError(
            "a text cannot be compiled; pass the function, or what its lower(...) returns"
        )
    return compiled


def stages(
    f: Any, args: tuple, kwargs: dict[str, Any]
) -> tuple[jax.stages.Lowered | None, jax.stages.Compiled | None]:
    """A function as JAX's `Lowered` and `Compiled`, each None where it came without.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("y", None)))
    >>> from shardlab.programs.collectives import stages
    >>> lowered, compiled = stages(jnp.sum, (a,), {})
    >>> dict(collectives(compiled))
    {'all-reduce': 1}

    Args:
      f: as for `collectives`.
      args, kwargs: its arguments, as a tuple and a dict.

    Raises:
      TypeError: as `collectives` does.
      ValueError: an argument is on an `AbstractMesh` with more devices than there are; or `f` uses
        several sets of devices, for which there is `shardlab.transfers`.
      NotImplementedError: the compiler for CPUs does not know an operation, such as a ragged
        all-to-all.
    """
    # Equinox and Flax wrap what JAX returns.
    stage_parts = (getattr(f, name, None) for name in ("compiled", "lowered"))
    stage = next((inner for inner in stage_parts if isinstance(inner, _STAGES)), f)
    if isinstance(stage, (str, *_STAGES)):
        if args or kwargs:
            raise TypeError(
                f"a {type(f).__name__} is a program for arguments that it knows, and takes no "
                "others; pass it alone, or pass the function with its arguments"
            )
        if isinstance(stage, str):
            return None, None
        return (None, stage) if isinstance(stage, jax.stages.Compiled) else (stage, stage.compile())
    if not callable(f) and not hasattr(f, "lower"):
        raise TypeError(
            "collectives() takes a function and its arguments, a lowered or compiled "
            f"function, or the text of a compiled program, not {type(f).__name__}; wrap what "
            "you compute: collectives(lambda a: a.sum(), a)"
        )
    if not hasattr(f, "lower") and hasattr(getattr(f, "func", None), "lower"):
        # A jitted method is a partial: its object is the first argument.
        f, args, kwargs = f.func, (*f.args, *args), {**f.keywords, **kwargs}
    args, kwargs = _on_devices(args, kwargs)
    try:
        lowered = (f if hasattr(f, "lower") else jax.jit(f)).lower(*args, **kwargs)
        lowered = getattr(lowered, "lowered", lowered)
        return lowered, lowered.compile()
    except ValueError as error:
        if "incompatible devices" in str(error):
            error.add_note(
                "One compiled program has one set of devices. Where jax.device_put moves arrays "
                "from one mesh to another between programs, shardlab.transfers(f, *args) lists "
                "what each program and each device_put sends."
            )
        raise
    except jax.errors.JaxRuntimeError as error:
        if unknown := re.search(r"HLO opcode `([\w-]+)` is not supported by XLA:CPU", str(error)):
            raise NotImplementedError(
                f"XLA's compiler for CPUs has no {unknown[1]}; ask that of another chip, as "
                "in explain(f, *args, "
                'mesh=Pod("v5e:2x4"))'
            ) from error
        raise


def _on_devices(args, kwargs):
    """The arguments, where structs on an `AbstractMesh` are on a mesh of this process's devices
    instead.
    """
    if not jax.sharding.get_abstract_mesh().empty:
        return args, kwargs

    def placed(leaf):
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(leaf, jax.ShapeDtypeStruct) or not isinstance(
            getattr(sharding, "mesh", None), AbstractMesh
        ):
            return leaf
        mesh = sharding.mesh
        if mesh.size > jax.device_count():
            raise ValueError(
                f"an argument is on an AbstractMesh of {mesh.size:,} devices, and "
                f"{jax.device_count():,} are here: begin with emulate({mesh.size}), or "
                "compile for a Pod"
            )
        types = {} if mesh.axis_types is None else {"axis_types": mesh.axis_types}
        devices = np.array(jax.devices()[: mesh.size]).reshape(mesh.axis_sizes)
        return jax.ShapeDtypeStruct(
            leaf.shape,
            leaf.dtype,
            sharding=NamedSharding(Mesh(devices, mesh.axis_names, **types), sharding.spec),
        )

    return jax.tree.map(placed, (args, kwargs))


_STAGES = (jax.stages.Lowered, jax.stages.Compiled)


def meshes_of(compiled: jax.stages.Compiled, *placed: Any) -> list[Mesh | AbstractMesh]:
    """The meshes of a compiled program, for `find`.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("y", None)))
    >>> compiled = jax.jit(lambda a: a.sum(0)).lower(a).compile()
    >>> from shardlab.programs.collectives import meshes_of
    >>> meshes_of(compiled)[0] == mesh
    True

    Args:
      compiled: what `jax.jit(f).lower(...).compile()` returns.
      *placed: arrays or shardings whose meshes come first.

    Returns:
      A list: the meshes of `placed`, and of the program's arguments and results.
    """
    placed = (*placed, compiled.output_shardings, compiled.input_shardings)
    shardings = [getattr(leaf, "sharding", leaf) for leaf in jax.tree.leaves(placed)]
    return [s.mesh for s in shardings if isinstance(s, NamedSharding) and s.mesh.size > 1]


def meshes_named_in(text: str, devices: int) -> list[AbstractMesh]:
    """The meshes that a program names, with all of its devices in order: in StableHLO, or in HLO of
    newer versions.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("y", None)))
    >>> text = jax.jit(lambda a: a.sum(0)).lower(a).as_text()
    >>> from shardlab.programs.collectives import meshes_named_in
    >>> [dict(found.shape) for found in meshes_named_in(text, 8)]
    [{'x': 2, 'y': 4}]

    Args:
      text: of the program.
      devices: how many devices it has.

    Returns:
      A list of `AbstractMesh`es.
    """
    known = re.findall(r"^\s*sdy\.mesh @\S+ = <\[([^\]]*)\]>", text, re.MULTILINE)
    # in no quoted text
    known += re.findall(r'^[^"\n]*\breplica_groups=mesh\[([^\]\[]*)\] ', text, re.MULTILINE)
    meshes = []
    for axes in dict.fromkeys(axis.replace('"', "'") for axis in known):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", axes)}
        invented = all(re.fullmatch(r"axis_\d+", name) for name in sizes)  # by XLA
        if math.prod(sizes.values()) == devices > 1 and not invented:
            meshes.append(AbstractMesh(tuple(sizes.values()), tuple(sizes)))
    return meshes


def read_program(text: str, mesh: Mesh | AbstractMesh | None = None) -> Collectives:
    """The communication in the text of a compiled program (HLO); see `collectives`.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("y", None)))
    >>> text = jax.jit(lambda a: a.sum(0)).lower(a).compile().as_text()
    >>> read_program(text, mesh).moves[0].axes
    ('y',)

    Args:
      text: what `compiled.as_text()` returns.
      mesh: a `Mesh` or `AbstractMesh` whose axes name the groups; by default those that the text
        names. If it names none, the groups stay lists of positions.

    Returns:
      `Collectives`.

    Raises:
      shardlab.UnreadableProgram: the text has no entry, or a collective in it cannot be read.
    """
    program = Program(text)
    if mesh is None:
        with promised():
            mesh = meshes_named_in(text, program.devices)
    return _read(program, mesh)


def _read(program, mesh):
    return Collectives(tuple(move for move, _ in find(program, mesh)))


def find(
    program: Program,
    mesh: Mesh | AbstractMesh | Sequence[Mesh | AbstractMesh] | None = None,
    kernels: list[Instruction] | None = None,
) -> Iterator[tuple[Collective, Instruction]]:
    """Every collective of a program, with the instruction that starts it: a fusion, where it is
    part of one.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("y", None)))
    >>> from shardlab.programs.collectives import find
    >>> program = Program(compile_for(lambda a: a.sum(0), a).as_text())
    >>> [(move.axes, start.kind) for move, start in find(program, mesh)]
    [(('y',), 'all-reduce')]

    Args:
      program: a `shardlab.Program`.
      mesh: the mesh whose axes name the groups; or several, of which the first that fits is taken;
        or None.
      kernels: a list for the calls of kernels that communicate; without it they are an error.

    Yields:
      Each `Collective` and a `shardlab.programs.hlo.Instruction`, in the order of the program's
      text; but none whose groups are of one device each, because they send nothing.

    Raises:
      shardlab.UnreadableProgram: a collective cannot be read.
    """
    axes_of = _axes_of_groups(
        [] if mesh is None else mesh if isinstance(mesh, (list, tuple)) else [mesh]
    )
    numbers, silent = count(), set()  # the computations that send nothing, and whether in a fusion

    def walk(here, least, most, branches, asynchronous, fusion, outer):
        for instruction in here.matching(f"{_COMMUNICATE}|{CALLS}"):
            kind, starts = instruction.kind, instruction.kind.endswith("-start")
            if kind.removesuffix("-start") in COLLECTIVES:
                move = _collective(instruction, program.devices, axes_of, asynchronous or starts)
                if all(len(set(group)) == 1 for group in move.groups):
                    continue
                move = replace(move, at_least=least, at_most=most, branches=branches)
                move = move if fusion is None else _in_a_fusion(move, instruction, fusion, started)
                if move:
                    yield move, outer or instruction
                continue
            if kernels is not None and communicates(instruction):
                kernels.append(instruction)
                continue
            _refuse_other_communication(instruction)
            calls, number = instruction.calls(), next(numbers)
            for place, (callee, low, high) in enumerate(calls):
                within = instruction if kind == "fusion" else fusion
                if (callee.name, within is None) in silent:
                    continue
                inside = walk(
                    callee,
                    least * low,
                    _product(most, high),
                    (*branches, (number, place, len(calls))) if kind == "conditional" else branches,
                    asynchronous or starts,
                    within,
                    (outer or instruction) if kind == "fusion" or starts else outer,
                )
                heard = len(kernels or ())
                if (first := next(inside, None)) is not None:
                    yield first
                    yield from inside
                elif len(kernels or ()) == heard:
                    silent.add((callee.name, within is None))

    with promised():
        started = _started_in_fusions(program)
        for n, found in enumerate(walk(program.entry, 1, 1, (), False, None, None)):
            if n == _MOST:
                raise UnreadableProgram(
                    f"more than {_MOST:,} collectives, counted again for each call around them"
                )
            yield found


# --- A collective ---------------------------------------------------------------------------------


def _collective(instruction, devices, axes_of, asynchronous):
    kind = instruction.kind.removesuffix("-start")
    operands = tuple(t for operand in instruction.operands for t in array_types(operand))
    results = array_types(instruction.result)
    if not operands or not results:
        raise UnreadableProgram(
            f"cannot read the types of this collective: {instruction.line.strip()[:300]}"
        )
    if asynchronous and len(results) > len(operands):
        # The result of a started operation holds its operands, its future results, and sometimes
        # handles.
        results = results[len(operands) : 2 * len(operands)]
    groups = _groups(kind, instruction, devices)
    axes, within = axes_of(groups)
    axes = within if kind == "collective-permute" else axes
    return Collective(
        kind, operands, results, groups, axes, asynchronous=asynchronous, within=within
    )


def _started_in_fusions(program):
    """The collectives that fusions start and do not wait for, by (computation, name), and by (kind,
    channel).
    """
    started = set()
    for here in program:
        for start in here.matching('custom_call_target="AsyncCollectiveStart"'):
            for name in start.names:
                started |= {(here.name, name), (here[name].kind, here[name].channel)}
    return started


def _in_a_fusion(move, instruction, fusion, started):
    """A collective that is part of a fusion, as it should be counted; None if it was counted
    already.

    In programs for TPUs, fusions contain collectives in two ways. One fusion starts a collective,
    others continue it while they compute, a last one ends it, and all of them repeat its line: only
    the start counts. And a reduce-scatter is written as an all-reduce, fused with the slice that
    each device keeps.
    """
    if "chain_id=" in instruction.unquoted:
        if (instruction.home.name, instruction.name) in started:
            return replace(move, asynchronous=True)
        if (instruction.kind, instruction.channel) in started:
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
    to_host = kind in ("send", "recv") and instruction.attribute("is_host_transfer") == "true"
    to_host = to_host and "megascale" not in text  # a callback
    unknown = re.match(
        r"all-|collective-|ragged-|reduce-scatter|(send|recv)$", kind
    ) and not kind.endswith("-done")
    if (unknown and not to_host) or communicates(instruction):
        raise UnreadableProgram(
            "this program communicates in a way that we cannot read, such as between TPU "
            f"slices or inside a kernel: {instruction.line.strip()[:300]}"
        )


def _groups(kind, instruction, devices):
    if kind == "collective-permute":
        pairs = instruction.attribute("source_target_pairs")
        if not re.fullmatch(r"\{(\{\d+,\d+\},?)*\}", pairs):
            raise UnreadableProgram(f"no source_target_pairs in: {instruction.line.strip()[:300]}")
        return tuple(
            tuple(map(int, pair.split(","))) for pair in re.findall(r"\{(\d+,\d+)\}", pairs)
        )
    text = instruction.attribute("replica_groups")
    # Three spellings: lists {{0,4},{1,5}}; an iota [4,2]<=[2,4]T(1,0); a mesh with the axes along
    # which to communicate.
    if re.fullmatch(r"\{(\{[\d,]*\},?)*\}", text):
        groups = tuple(tuple(_numbers(group)) for group in re.findall(r"\{([\d,]+)\}", text))
        return groups or (tuple(range(devices)),)
    if iota := re.fullmatch(r"\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        size, flat = int(iota[2]), _iota(iota[3], iota[4])
        return tuple(tuple(flat[start : start + size]) for start in range(0, len(flat), size))
    order = r"(?:, device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\))?"
    named = re.search(
        rf"replica_groups=mesh\[([^\]\[]*)\]{order} \{{([^}}]*)\}}(?=,|$)", instruction.unquoted
    )
    axis = r"'[^']*'=\d+"
    part = r"'[^']*'(?::\(\d+\)\d+)?"
    known = named and all(
        re.fullmatch(rf"({form}(,{form})*)?", text)
        for form, text in ((axis, named[1]), (part, named[5]))
    )
    if known:
        groups = _groups_of_mesh(named[1], named[5])  # no axes: every device is alone
        listed = _numbers(named[4]) if named[4] else range(devices)
        seats = _iota(named[2], named[3]) if named[2] else listed
        return tuple(tuple(seats[place] for place in group) for group in groups)
    raise UnreadableProgram(
        f"cannot read the groups of this collective: {instruction.line.strip()[:300]}"
    )


def _iota(dims, order):
    """0, 1, 2, ... as an array of some shape, transposed, and flattened again."""
    dims = _numbers(dims)
    if math.prod(dims) > MOST:
        raise UnreadableProgram(
            f"groups of {math.prod(dims):,} devices; at most {MOST:,} can be read"
        )
    order = _numbers(order) if order else range(len(dims))
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    places = product(*(range(dims[axis]) for axis in order))
    return [
        sum(i * strides[axis] for i, axis in zip(place, order, strict=True)) for place in places
    ]


def _groups_of_mesh(mesh, talking):
    """The groups along axes, or parts of axes, of a mesh that the compiler names: "'x'=2,'y'=4" and
    "'y':(2)2".

    The part (2)2 of an axis of size 4 is its second factor of two: 4 = 2 * 2, the first factor
    being the major one.
    """
    parts = [
        (name, int(before or 1), int(size) if size else None)
        for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", talking)
    ]
    _iota(",".join(re.findall(r"=(\d+)", mesh)) or "1", None)  # which refuses too many
    sizes, chosen = {}, {}
    for axis, size in re.findall(r"'([^']*)'=(\d+)", mesh):
        wanted_axes = [
            (before, before * (part or int(size))) for name, before, part in parts if name == axis
        ]
        bounds = sorted({1, int(size)}.union(*wanted_axes))
        for low, high in pairwise(bounds):
            sizes[axis, low] = high // low
            for start, end in wanted_axes:
                if start <= low and high <= end:
                    chosen[axis, low] = parts.index(
                        next(p for p in parts if p[0] == axis and p[1] == start)
                    )
    return _groups_along(sizes, sorted(chosen, key=lambda key: (chosen[key], key[1])))


def _numbers(text):
    return [int(number) for number in text.split(",") if number]


def _groups_along(sizes, axes):
    """The groups of devices, by position in the flattened mesh, that differ along some axes
    only.
    """
    strides, stride = {}, 1
    for axis in reversed(sizes):
        strides[axis] = stride
        stride *= sizes[axis]
    other_axes = [axis for axis in sizes if axis not in axes]

    def offsets(names):
        places = product(*(range(sizes[axis]) for axis in names))
        return [
            sum(i * strides[axis] for i, axis in zip(place, names, strict=True)) for place in places
        ]

    return tuple(tuple(base + offset for offset in offsets(axes)) for base in offsets(other_axes))


def _as_sets(groups):
    return frozenset(map(frozenset, groups))


def _axes_of_groups(meshes):
    """A function from groups to the axes along which they go, and to the fewest axes within which
    they stay.

    Either is None if there is none. The axes are those of the first mesh that fits, without axes of
    size 1.
    """
    exact, homes = {}, []
    for shape in dict.fromkeys(tuple(mesh.shape.items()) for mesh in meshes):
        sizes = {str(axis): int(size) for axis, size in shape}
        if math.prod(sizes.values()) << len(sizes) > 4 * MOST:
            continue  # the groups along all of its axes are too many to list
        for many in range(1, len(sizes) + 1):
            for axes in combinations(sizes, many):
                whole = _groups_along(sizes, axes)
                exact.setdefault(_as_sets(whole), axes)
                homes.append(
                    (axes, {device: i for i, group in enumerate(whole) for device in group})
                )

    def stays(group, home):
        seats = {home.get(device) for device in group}
        return len(seats) == 1 and None not in seats

    @cache
    def axes_of(groups):
        possible = (axes for axes, home in homes if all(stays(group, home) for group in groups))
        axes = exact.get(_as_sets(groups))
        return axes, axes or next(possible, None)

    return axes_of


def _groups_text(groups):
    text = str([list(group) for group in groups[:4]])
    return text if len(groups) <= 4 else f"{text[:-1]}, …] ({len(groups)})"
