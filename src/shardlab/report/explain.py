"""Explain a compiled program: what it sends and for which line, where its memory is, and what to change.

    from shardlab import explain

    explain(train_step, state, batch)

prints, for the shardings of the arguments, the communication by source line, the memory by array, and findings such as
a replicated optimiser state. Nothing runs: the program is compiled, and its text read.
"""

import itertools
import json
import math
import os
import re
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from html import escape
from linecache import getline
from textwrap import wrap
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardlab._tables import aligned, html_table
from shardlab.arrays.layout import axes_named, bytes_text, counted, itemsize, spec_text
from shardlab.costs.communication.kinds import KINDS, OPERATIONS
from shardlab.machines import hardware
from shardlab.pods.pod import Pod
from shardlab.pods.transfer import transferred
from shardlab.programs import collectives, kernels
from shardlab.programs.flops import MatmulFlops, whole_flops
from shardlab.programs.hlo import Program, promised
from shardlab.programs.origins import Origins, where
from shardlab.programs.timeline import predicted_seconds
from shardlab.programs.varying import are_checked, mismatches
from shardlab.report import findings
from shardlab.report.causes import cause
from shardlab.report.findings import Finding
from shardlab.report.names import (
    own_names,
    parameter_names,
    path_text,
    pattern,
    renamed,
    stacked,
    type_text,
    wrapper_of,
)

__all__ = ["Array", "Comparison", "Move", "Report", "compare", "explain"]

MOST = 10  # rows that are printed; the others are added up
MOST_CALLERS = 3  # frames that lead to a line, or lines that call it
MOST_SOURCES = 3  # arguments from which something was computed
WIDE = 88  # columns
LINES = 60  # of a report that is printed


@dataclass(frozen=True)
class Move:
    """Collectives that do the same for the same line of the source.

    Attributes:
      kind: HLO's name, such as "all-gather".
      axes: the mesh axes along which devices communicate; None if the groups do not follow mesh axes.
      within: the fewest mesh axes such that every group stays within the devices along them; None if there are none.
      group: how many devices communicate with each other.
      types: the types of a device's operands, such as `("bf16[64,1792]",)`.
      times: how often they run in one call, in total; None if only the run decides.
      bytes: bytes that a device sends each time, on a ring; None if only the run decides.
      seconds: predicted for all of them on the named chip; None if unknown.
      overlap: "waits" (one instruction), "hidden" (matrix products run between start and end) or "exposed" (none do).
      phase: "forward", "backward" or "update"; "" if the program does not say.
      file, line: of the source; "" and 0 if the program does not say.
      operation: JAX's operation there, such as "dot_general".
      array: the argument that they move, or the result for which they add, with * for the numbers of layers; else "".
      cause: what usually causes such a collective.
      made: where the array was made, such as "step.py:9", if that is another line of the source; else "".
      callers: the calls that lead to the line, if there are several in the program: one with at most three frames,
        such as `("block.py:9 from step.py:4",)`, or the lines in which several differ first.
      others: how many results beside `array` they add for, where the compiler has joined several.
    """

    kind: str
    axes: tuple[str, ...] | None
    within: tuple[str, ...] | None
    group: int
    types: tuple[str, ...]
    times: int | None
    bytes: int | None
    seconds: float | None
    overlap: str
    phase: str
    file: str
    line: int
    operation: str
    array: str
    cause: str
    made: str = ""
    callers: tuple[str, ...] = ()
    others: int = 0

    @property
    def total(self) -> int | None:
        """Bytes that a device sends in one call; None if only the run decides."""
        return None if None in (self.times, self.bytes) else self.times * self.bytes


@dataclass(frozen=True)
class Array:
    """An argument or a result of the program, as each device stores it.

    Attributes:
      name: such as "state[0]['layers'][0]['up']".
      type: of the whole array, such as "f32[64,256]".
      shard: the type of what each device stores, such as "f32[16,256]".
      spec: its `PartitionSpec` as text; "" if it is on no mesh.
      bytes: on each device.
      whole: bytes of the whole array.
      replicated: the mesh axes along which devices store the same.
      donated: whether its memory may be used for a result; None if unknown, and for a result.
      placed: whether it is on devices by name; False for a NumPy array, and for one that JAX put on the default device;
        None if unknown, and for a result.
    """

    name: str
    type: str
    shard: str
    spec: str
    bytes: int
    whole: int
    replicated: tuple[str, ...]
    donated: bool | None
    placed: bool | None = None


@dataclass(frozen=True, eq=False)
class Report:
    """What a program sends, what it stores, and what to change; printed as text, and as HTML in a notebook.

    Attributes:
      name: of the function.
      devices: how many devices it is for.
      mesh: sizes by axis; {} if unknown.
      compiled_for: the backend, such as "cpu" or "v5e:2x4".
      chip: the chip of the predicted times.
      moves: its communication as `Move`s, the longest predicted time first.
      arrays: its arguments as `Array`s, the largest first; () for a text.
      memory: bytes of each device: "arguments", "results", "temporaries", "donated", where the program has large ones
        "constants", and "peak", the most at once: the peak of a TPU's compiler, or else the sum; "gathered" are
        arguments among the temporaries that are gathered in the forward pass and kept for the backward pass; {} if
        unknown.
      findings: what to change, as `Finding`s.
      idle: how many devices of this backend a program for one device leaves idle; 0 for all other programs.
      kernels: kernels that communicate by themselves, by name, each with the bytes that it declares, or None: what they
        send is not in the program, and not in `bytes`.
    """

    name: str
    devices: int
    mesh: dict[str, int]
    compiled_for: str
    chip: str
    moves: tuple[Move, ...]
    arrays: tuple[Array, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    idle: int = 0
    kernels: dict[str, int | None] = field(default_factory=dict)

    @property
    def bytes(self) -> int | None:
        """Bytes that a device sends in one call, on rings; None if only the run decides."""
        totals = [move.total for move in self.moves]
        return None if None in totals else sum(totals)

    @property
    def seconds(self) -> float | None:
        """Predicted time of its communication, one after the other; None if unknown."""
        times = [move.seconds for move in self.moves]
        return None if None in times else sum(times)

    def to_json(self) -> str:
        """The report as JSON, for other programs."""
        return json.dumps({**asdict(self), "bytes": self.bytes, "seconds": self.seconds}, indent=1)

    def __repr__(self) -> str:
        lines = [*_wrapped(self._head()), "", *_wrapped(self._sum())]
        if self.moves:
            shown = self.moves[:MOST]
            under = [_details(move) for move in shown]
            sentences = [
                "; ".join(filter(None, (code and f"`{_shortened(code, 60)}`", _shortened(about, 110), cause)))
                for code, about, cause in under
            ]
            blocks = _under([_COLUMNS, *map(_cells, shown)], "><", ["", *sentences])
            fitting = _fitting(blocks, LINES // 2)
            lines += [line for block in blocks[:fitting] for line in block]
            lines += self._rest(fitting - 1)
        rows = self._stored()
        lines += ["", *_wrapped(self._memory())]
        if rows:
            blocks = _table([_STORED, *rows[:MOST]], "><")
            fitting = _fitting(blocks, LINES // 5)
            lines += [line for block in blocks[:fitting] for line in block]
            left = len(rows) - fitting + 1
            lines += [f"and {left} {'kinds' if left > 1 else 'kind'} of smaller ones"] if left else []
        blocks = [["", *_wrapped(f"{n}. {one.title}: {one.says}")] for n, one in enumerate(self.findings, 1)]
        fitting = _fitting(blocks, LINES - len(lines))
        lines += [line for block in blocks[:fitting] for line in block]
        left = len(blocks) - fitting
        lines += ["", f"and {counted(left, 'finding')} more: findings of the report has them"] if left else []
        return "\n".join(lines)

    def _repr_html_(self):
        paragraph = lambda text: f"<p>{escape(text)}</p>"  # noqa: E731
        parts = [paragraph(self._head()), paragraph(self._sum())]
        if self.moves:
            shown = self.moves[:MOST]
            under = [(code, "; ".join(filter(None, about))) for code, *about in map(_details, shown)]
            parts += [html_table(_COLUMNS, map(_cells, shown), under=under), *map(paragraph, self._rest(MOST))]
        rows = self._stored()
        parts.append(paragraph(self._memory()))
        parts += [html_table(_STORED, rows[:MOST])] if rows else []
        parts += [paragraph(f"and {len(rows) - MOST} kinds of smaller ones")] if len(rows) > MOST else []
        places = {where(move.file, move.line) for move in self.moves[:MOST] if move.line}
        items = ""
        for finding in self.findings:  # a page of the book lights the rows of its line, when one points at it
            place = next((place for place in sorted(places) if re.search(rf"\b{re.escape(place)}\b", finding.says)), "")
            own = f' data-place="{escape(place)}" tabindex="0"' if place else ""
            items += f"<li{own}><strong>{escape(finding.title)}</strong>: {escape(finding.says)}</li>"
        return "".join(parts) + (f"<ol>{items}</ol>" if items else "")

    def _head(self):
        mesh = " × ".join(f"{axis} {size}" for axis, size in self.mesh.items())
        on = counted(self.devices, "device") + (f" ({mesh})" if mesh else "")
        return f"{self.name}, for {on}, compiled for {self.compiled_for}"

    def _sum(self):
        if self.idle and not self.moves:
            of = counted(self.idle + 1, "device")
            return f"It sends nothing, and leaves {self.idle} of {of} idle: no argument is placed on a mesh of several."
        beside = f"Beside {'its kernel' if len(self.kernels) == 1 else 'its kernels'} it" if self.kernels else "It"
        told = "".join(
            f" Kernel `{name}` communicates; "
            + (f"it declares {bytes_text(size)}." if size else "its bytes are not in the program.")
            for name, size in self.kernels.items()
        ).lstrip()
        if not self.moves:
            return f"{told} {beside} sends nothing.".lstrip()
        sent = f"{beside} sends {bytes_text(self.bytes)} from each device, {_ms(self.seconds)} on {self.chip}:"
        return f"{told} {sent}".lstrip()

    def _rest(self, shown):
        rest = Report(self.name, self.devices, self.mesh, self.compiled_for, self.chip, self.moves[shown:])
        count = len(rest.moves)
        return [f"and {count} shorter ones: {bytes_text(rest.bytes)}, {_ms(rest.seconds)}"] if count else []

    def _memory(self):
        if not self.memory:
            return "Its memory is unknown: this is only the text of a program."
        kinds = [kind for kind in ("arguments", "results", "temporaries", "constants") if kind in self.memory]
        gathered = self.memory.get("gathered")
        words = {"temporaries": f"temporaries, of which {bytes_text(gathered)} are gathered arguments kept for the "
                                "backward pass"} if gathered else {}  # fmt: skip
        parts = ", ".join(f"{bytes_text(self.memory[kind])} {words.get(kind, kind)}" for kind in kinds)
        what = "all of it" if self.memory["peak"] == _all_of(self.memory) else "the compiler's peak"
        peak = f"at most {bytes_text(self.memory['peak'])} at once, {what}"
        return f"Each device stores {parts} ({bytes_text(self.memory['donated'])} shared by donation); {peak}."

    def _stored(self):
        together, lists = {}, stacked(array.name for array in self.arrays)
        for array in self.arrays:
            key = pattern(array.name, lists), array.type, array.spec
            count, total = together.get(key, (0, 0))
            together[key] = count + 1, total + array.bytes
        return [
            (bytes_text(total), f"{count} ×" if count > 1 else "", name, kind, spec)
            for (name, kind, spec), (count, total) in sorted(together.items(), key=lambda entry: -entry[1][1])
        ]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What changed between two programs, `before` and `after`: `Report`s; as text, and as HTML in a notebook."""

    before: Report
    after: Report

    @property
    def gone(self) -> tuple[Move, ...]:
        """The `Move`s that only the first program has, or has more bytes of."""
        return _more(self.before, self.after)

    @property
    def new(self) -> tuple[Move, ...]:
        """The `Move`s that only the second program has, or has more bytes of."""
        return _more(self.after, self.before)

    def __repr__(self) -> str:
        lines = aligned([("", "before", "after"), *self._sums()], "<>").splitlines()
        if moves := self._moves():
            lines += ["", *(line for block in _table([("", *_COLUMNS, "array"), *moves], "<><") for line in block)]
        changes = self._changes()
        lines += [""] if changes else []
        for sign, finding in changes:
            lines += _wrapped(f"{sign} {finding.title}: {finding.says}")
        return "\n".join(lines)

    def _repr_html_(self):
        parts = [html_table(("", "before", "after"), self._sums())]
        if moves := self._moves():
            parts.append(html_table(("", *_COLUMNS, "array"), moves))
        items = "".join(
            f"<li>{sign} <strong>{escape(finding.title)}</strong>: {escape(finding.says)}</li>"
            for sign, finding in self._changes()
        )
        return "".join(parts) + (f"<ul>{items}</ul>" if items else "")

    def _sums(self):
        """What is sent, and what is stored that differs: rows of a name, before, and after."""
        earlier, other = self.before, self.after
        rows = [("sent", bytes_text(earlier.bytes), bytes_text(other.bytes))]
        on = earlier.chip if earlier.chip == other.chip else f"{earlier.chip} and {other.chip}"
        rows.append((f"predicted on {on}", _ms(earlier.seconds), _ms(other.seconds)))
        for part in dict.fromkeys((*earlier.memory, *other.memory)) if earlier.memory and other.memory else ():
            sizes = earlier.memory.get(part, 0), other.memory.get(part, 0)
            if sizes[0] != sizes[1]:
                rows.append((part, *map(bytes_text, sizes)))
        return rows

    def _moves(self):
        """The rows of communication that is gone, with "-", and that is new, with "+"."""
        moves = [("-", move) for move in self.gone[:MOST]] + [("+", move) for move in self.new[:MOST]]
        return [(sign, *_cells(move), move.array) for sign, move in moves]

    def _changes(self):
        """The findings that only one of the programs has, each with its sign."""
        before, after = ([(f.title, f.says) for f in report.findings] for report in (self.before, self.after))
        gone = [("-", finding) for finding in self.before.findings if (finding.title, finding.says) not in after]
        return gone + [("+", finding) for finding in self.after.findings if (finding.title, finding.says) not in before]


def explain(
    f: Any, *args: Any, mesh: Mesh | AbstractMesh | Pod | None = None, chip: str | hardware.Chip = "v5p", **kwargs: Any
) -> Report:
    """Explain the program that `f(*args)` is compiled to: nothing runs.

    On a mesh of 8 devices along d, for weights sharded as `P("d")` and replicated moments of Adam,
    `explain(step, state, batch)` says that the weights are gathered in line 9 for the forward pass and in line 9 for
    the backward pass, how many bytes that sends, and that the moments take eight times the memory that they need.

    >>> w = jax.device_put(jnp.ones((256, 256)), NamedSharding(mesh, P("y", None)))
    >>> x = jax.device_put(jnp.ones((16, 256)), NamedSharding(mesh, P("y", None)))
    >>> report = explain(jnp.dot, x, w)
    >>> report.moves[0].kind, report.moves[0].axes, report.moves[0].array
    ('all-gather', ('y',), 'b')
    >>> report.bytes, report.memory["arguments"]
    (196608, 69632)

    Args:
      f: a function, jitted or not; a `Lowered` or `Compiled` program, or the text of one (then without arguments).
      *args, **kwargs: arrays, or `jax.ShapeDtypeStruct`s with shardings, which need no memory.
      mesh: the mesh whose axes name the groups, by default that of the arguments; or a `shardlab.Pod`: then the
        program is compiled by the compiler of those chips, for a mesh with the axes of the arguments, which also takes
        the place of a mesh that the function names inside.
      chip: the chip of the predicted times, a name or a `shardlab.hardware.Chip`; with a `Pod` always that of the pod.

    Returns:
      `Report`.

    Raises:
      TypeError: `f` is nothing that can be compiled.
      ValueError: with a `Pod`: its compiler is not installed, or the function names a mesh with other axes.
      NotImplementedError: the compiler for CPUs does not know an operation, such as a ragged all-to-all.
      shardlab.UnreadableProgram: the program contains a line of unknown form; the message shows it.
    """
    chip = hardware.chip(mesh.chip if isinstance(mesh, Pod) else chip)
    if isinstance(f, str):
        with promised():
            return _of_text(f, None if mesh is None else [mesh], chip, name="program")[0]
    if not callable(f) and not hasattr(f, "as_text"):
        raise TypeError(
            f"explain() takes a function, a Lowered or Compiled program or the text of one, not {type(f).__name__}; "
            "for example explain(step, state, batch)"
        )
    backend, pod = jax.default_backend(), mesh
    if isinstance(pod, Pod):
        given, (backend, args) = args, (mesh.name, mesh.like(*args))
        mesh = next(s.mesh for leaf in jax.tree.leaves(args) if isinstance(s := leaf.sharding, NamedSharding))
        if not isinstance(mesh, Mesh):
            raise ValueError(f"no compiler for {backend} is installed here; TPUs need libtpu, GPUs JAX's CUDA plug-in")
    on_a_pod = isinstance(pod, Pod) and not jax.sharding.get_abstract_mesh().empty
    with _words_of_the_compiler() as messages, jax.set_mesh(mesh) if on_a_pod else nullcontext():
        try:
            lowered, compiled = collectives.stages(f, args, kwargs)
        except ValueError as error:
            if not isinstance(pod, Pod) or "incompatible devices" not in str(error):
                raise
            f = transferred(f, given, kwargs, mesh)  # it names a mesh of these devices inside
            lowered, compiled = collectives.stages(f, args, kwargs)
    text = compiled.as_text()
    own, own_by_path = own_names(compiled, f, args, kwargs)
    arrays, results = _arguments(compiled, text, args, kwargs, own), _results(compiled, lowered)
    wrapper = wrapper_of([array.name for array in arrays])
    placed = () if wrapper == "pmap" else (args, kwargs)  # which may be on a mesh of another name
    meshes = [mesh] if mesh is not None else collectives.meshes_of(compiled, *placed)
    if wrapper and own:
        text, new_names = renamed(text, own)
        arrays = [replace(array, name=new_names.get(array.name, array.name)) for array in arrays]
    if wrapper == "nnx":  # whose functions return the changed arguments first
        results = [replace(array, name=_of_changed(array.name, own_by_path)) for array in results]
    names = {array.name: array.whole for array in results}
    jaxpr = _traced(f, args, kwargs)
    is_checked = jaxpr is None or are_checked(jaxpr)
    how = {"is_checked": is_checked, "is_pmap": wrapper == "pmap"}
    report, known = _of_text(text, meshes, chip, _name(f), backend, names, lowered, messages, **how)
    sizes = _memory(compiled, backend, text) | ({"gathered": known.kept} if known.kept else {})
    all_findings = [*findings.of_arrays(arrays, results, report.mesh, report.devices)]
    told = dict(kernels.written(jaxpr)) if jaxpr is not None else {}
    told |= {name: size for name, size in report.kernels.items() if size or name not in told}
    if jaxpr is not None:
        all_findings += findings.of_varying(mismatches(jaxpr), _name(f) if wrapper == "pmap" else "")
    all_findings += findings.of_batch(arrays, results, report.moves, report.mesh, known.repeats, known.forward)
    if wrapper == "pmap" and known.is_differentiated:
        all_findings += findings.of_unsummed(report.moves, arrays, results)
    if not known.is_gradient:  # which replaces no argument
        all_findings += [*findings.of_replacement(arrays, results), *findings.of_unplaced(arrays, results)]
    results = [] if known.is_gradient else results
    all_findings += [*findings.of_donation(arrays, results, sizes["donated"], wrapper), *report.findings]
    idle = jax.device_count() - 1 if report.devices == 1 and backend == jax.default_backend() else 0
    all_findings = tuple(findings.by_harm(all_findings))
    return replace(report, arrays=tuple(arrays), memory=sizes, findings=all_findings, idle=idle, kernels=told)


def compare(before: Report, after: Report) -> Comparison:
    """What changed between two programs.

    >>> w = jax.device_put(jnp.ones((256, 256)), NamedSharding(mesh, P("y", None)))
    >>> x = jax.device_put(jnp.ones((16, 256)), NamedSharding(mesh, P("y", None)))
    >>> replicated = jax.device_put(w, NamedSharding(mesh, P()))
    >>> changed = compare(explain(jnp.dot, x, w), explain(jnp.dot, x, replicated))
    >>> [move.kind for move in changed.gone], changed.new
    (['all-gather'], ())

    Args:
      before, after: `Report`s, as `explain` returns them.

    Returns:
      `Comparison`: printed, it shows what is gone (-), what is new (+), and the sums of both.
    """
    for report in (before, after):
        if not isinstance(report, Report):
            raise TypeError(f"compare() takes two reports of explain(), not {type(report).__name__}")
    return Comparison(before, after)


explain.compare = compare


# --- Compile ------------------------------------------------------------------------------------------------------


def _traced(f, args, kwargs):
    """The jaxpr of a function; None if it is none, or a wrapper that cannot be traced."""
    if not callable(f) or (isinstance(f, jax.stages.Wrapped) and not hasattr(f, "trace")):
        return None
    try:
        return (f if hasattr(f, "trace") else jax.jit(f)).trace(*args, **kwargs).jaxpr.jaxpr
    except Exception:
        return None


def _name(f):
    return getattr(f, "__name__", None) or "program"


@contextmanager
def _words_of_the_compiler():
    """Collects the lines that the compiler writes to standard error, which are written again at the end."""
    messages = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        stderr_copy = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield messages
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            file.seek(0)
            text = file.read()
            os.write(2, text)
            messages += text.decode("utf-8", "replace").splitlines()


# --- What it sends ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Known:
    """What a program's text says beside the report.

    Attributes:
      is_gradient: whether its results are gradients.
      is_differentiated: whether it has a backward pass.
      kept: bytes of gathered arguments that are kept for the backward pass.
      repeats: how many times the FLOPs of the unpartitioned program's products all devices compute together.
      forward: the names of the arguments that the forward pass uses.
    """

    is_gradient: bool
    is_differentiated: bool
    kept: int
    repeats: float
    forward: frozenset[str]


def _of_text(
    text, meshes, chip, name, backend="an unknown backend", results=None, lowered=None, said=(),
    is_checked=True, is_pmap=False,
):  # fmt: skip
    program = Program(text)
    named = collectives.meshes_named_in(text, program.devices)
    meshes = named if meshes is None else [*meshes, *named]
    whole = lowered.as_text(dialect="hlo", debug_info=True) if lowered is not None and program.devices > 1 else None
    before = Program(whole) if whole else None
    old = Origins(before, whole) if whole else None
    origins, flops, rows, called = Origins(program, text, list(results or ()), old), MatmulFlops(), {}, []
    calls, others = {}, {}  # by place, and by row: those that lead to it; by row: results that are not named
    lists = stacked((*parameter_names(text), *(results or ())))
    located = [
        (move, start, origins.of(start, move.axes or move.within))
        for move, start in collectives.find(program, meshes, called)
    ]
    causes = [(origin, cause(move, origin, is_checked, is_pmap)) for move, _, origin in located]
    for (move, start, origin), (_, why) in zip(located, causes, strict=True):
        hidden = flops.beside(start) if move.asynchronous else None
        overlap = "waits" if not move.asynchronous else "hidden" if hidden else "exposed"
        named = Counter()  # bytes of arguments or results
        for each in [origin.argument] if origin.argument else origin.results:
            named[pattern(each, lists)] += (results or {}).get(each, 0)
        group = max(map(len, move.groups), default=1)
        operands = tuple(f"{count} × {kind}" if count > 1 else kind for kind, count in Counter(move.operands).items())
        array = max(sorted(named), key=named.get, default="")
        if not array and why and not KINDS[move.kind].adds and origin.operation not in OPERATIONS:
            sources = sorted({pattern(name, lists) for name in origins.sources(start)})
            why += f"; computed from {' and '.join(sources)}" if 1 <= len(sources) <= MOST_SOURCES else ""
        key = (
            move.kind, move.axes, move.within, group, operands, move.bytes, overlap,
            origin.phase, origin.file, origin.line, origin.operation, array, why,
            where(*origin.made) if origin.made[1] and not array else "",
        )  # fmt: skip
        others[key] = max(others.get(key, 0), len(named) - 1)
        calls.setdefault((origin.file, origin.line), {}).setdefault(key, {}).update(dict.fromkeys(origin.callers))
        times, seconds = rows.get(key, (0, 0))
        once = predicted_seconds(move, chip)
        rows[key] = (
            None if None in (times, move.times) else times + move.times,
            None if None in (seconds, once, move.times) else seconds + once * move.times,
        )
    callers = _callers(calls)
    moves = [
        Move(kind, axes, within, group, types, times, sent, seconds, *place, callers.get(key, ()), max(others[key], 0))
        for key, (times, seconds) in rows.items()
        for kind, axes, within, group, types, sent, *place in [key]
    ]
    moves.sort(key=lambda move: (move.seconds is not None, -(move.seconds or 0), -(move.total or 0)))
    mesh = {str(axis): int(size) for axis, size in meshes[0].shape.items()} if meshes else {}
    judged = [*findings.of_sums(located), *findings.of_repeated_operations(causes)]
    judged += [*findings.of_loops(located, origins), *findings.of_stacks(located, origins), *findings.of_many(moves)]
    repeats = 1.0
    if whole:
        at_once = whole_flops(lambda instruction: old.place(instruction.line), before, whole)
        each = flops.by(lambda instruction: origins.place(instruction.line), program.entry)
        judged += findings.of_repeated_products(at_once, each, program.devices)
        repeats = program.devices * sum(each.values()) / sum(at_once.values()) if at_once and each else 1.0
    judged += findings.of_partitioner(located, origins, said)
    judged += [*findings.of_constants(text), *findings.of_widening(text, backend)]
    told = {kernels.name(call): kernels.declared_bytes(call) for call in called}
    report = Report(name, program.devices, mesh, backend, chip.name, tuple(moves), findings=tuple(judged), kernels=told)
    kept, forward = findings.kept_for_backward(located, origins), origins.forward_arguments()
    return report, _Known(origins.is_gradient, origins.is_differentiated, kept, repeats, forward)


def _callers(calls):
    """For each row of a line to which several calls lead: these, as texts."""
    texts = {}
    for by_row in calls.values():
        every = {chain for chains in by_row.values() for chain in chains}
        if len(every) < 2:
            continue
        same = _common(every)  # frames in which they agree, such as those of a library
        for key, chains in by_row.items():
            if len(chains) == 1:
                chain = next(iter(chains))
                frames = chain[min(same, len(chain) - 1) :][:MOST_CALLERS]
                texts[key] = (" from ".join(where(*place) for place in frames),)
                continue
            level = _common(chains)
            lines = list(dict.fromkeys(where(*chain[min(level, len(chain) - 1)]) for chain in chains))
            more = len(lines) - MOST_CALLERS
            texts[key] = (*lines[:MOST_CALLERS], *([counted(more, "other line")] if more > 0 else []))
    return texts


def _common(chains):
    """How many of the innermost frames several calls have in common."""
    return sum(1 for _ in itertools.takewhile(lambda frames: len(set(frames)) == 1, zip(*chains, strict=False)))


# --- Arguments and results ----------------------------------------------------------------------------------------


def _results(compiled, lowered):
    """The results as `Array`s, in order."""
    try:
        info = getattr(compiled, "out_info", None)
    except AssertionError:  # JAX 0.7: a program with callbacks, such as interpreted kernels, gives results no layouts
        info = getattr(lowered, "out_info", None)
    results = jax.tree_util.tree_flatten_with_path(info)[0]
    placed = jax.tree.leaves(compiled.output_shardings)
    if len(placed) != len(results):
        return []
    return [
        _array(f"result{path_text(path)}", tuple(result.shape), result.dtype, sharding, None)
        for (path, result), sharding in zip(results, placed, strict=True)
    ]


def _of_changed(name, own_by_path):
    """The name of a result of a Flax NNX function: that of the argument which it replaces, where it does."""
    own = own_by_path.get(name.removeprefix("result"))
    return f"result {own}" if own else name


def _arguments(compiled, text, args, kwargs, own):
    """The arguments as `Array`s, the largest first."""
    info, tree = jax.tree_util.tree_flatten_with_path(getattr(compiled, "args_info", None))
    values = jax.tree.leaves((args, kwargs))
    values = values if len(values) == len(info) else [None] * len(info)
    placed = tree.flatten_up_to(compiled.input_shardings) if info else []
    used = [n for n, sharding in enumerate(placed) if sharding is not None]  # the program takes only what it uses
    info, values, placed = ([them[n] for n in used] for them in (info, values, placed))
    names = parameter_names(text)
    arguments = []
    for number, (path, argument) in enumerate(info):
        aval = getattr(argument, "_aval", None) or argument
        # The compiler decides where an array goes that is on no mesh.
        both = placed[number], getattr(values[number], "sharding", None)
        sharding = next((s for s in both if isinstance(s, NamedSharding)), both[0] or both[1])
        name = names[number] if len(names) == len(info) else own[number] if own else path_text(path)
        array = _array(name, tuple(aval.shape), aval.dtype, sharding, argument.donated)
        is_placed = False if isinstance(values[number], np.ndarray) else getattr(values[number], "committed", None)
        arguments.append(replace(array, placed=is_placed))
    return sorted(arguments, key=lambda array: -array.bytes)


def _memory(compiled, backend, text):
    """Bytes of each device, by what stores them; the peak is a bound."""
    analysis = compiled.memory_analysis()
    sizes = {
        "arguments": analysis.argument_size_in_bytes,
        "results": analysis.output_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
        "donated": analysis.alias_size_in_bytes,
    }
    if constants := sum(findings.constant_sizes(text)):
        sizes["constants"] = int(constants)
    # The temporaries of CPUs and GPUs are one block of memory, which newer compilers leave out of their peak.
    peak = getattr(analysis, "peak_memory_in_bytes", 0) if re.match(r"tpu|v\d", backend) else 0
    return {**sizes, "peak": peak or _all_of(sizes)}


def _all_of(memory):
    stored = memory["arguments"] + memory["results"] + memory["temporaries"] + memory.get("constants", 0)
    return stored - memory["donated"]


def _array(name, shape, dtype, sharding, donated):
    local_shape = sharding.shard_shape(shape) if sharding is not None else shape
    element = itemsize(str(dtype))
    spec, replicated = "", ()
    if isinstance(sharding, NamedSharding):
        spec = spec_text(sharding.spec)
        used = axes_named(sharding.spec)  # partial sums differ from device to device too
        replicated = tuple(axis for axis, n in sharding.mesh.shape.items() if n > 1 and axis not in used)
    stored, whole = (math.ceil(math.prod(sizes) * element) for sizes in (local_shape, shape))
    return Array(name, type_text(shape, dtype), type_text(local_shape, dtype), spec, stored, whole, replicated, donated)


# --- Print --------------------------------------------------------------------------------------------------------


_COLUMNS = ("bytes", "ms", "times", "collective", "along", "overlap", "pass", "line")
_STORED = ("stored", "", "argument", "type", "spec")


def _cells(move):
    along = f"{move.group} within {', '.join(move.within)}" if move.within else f"groups of {move.group}"
    along = along if move.axes is None else ", ".join(move.axes)
    times = "?" if move.times is None else f"{move.times:,}"
    ms = "?" if move.seconds is None else f"{move.seconds * 1e3:.3g}"
    size = "?" if move.total is None else f"{move.total:,}"
    return size, ms, times, move.kind, along, move.overlap, move.phase, where(move.file, move.line)


def _details(move):
    """The code of a line, the array with the types, and the usual cause."""
    code = " ".join(getline(move.file, move.line).split()) if move.line else ""
    made = move.made and f"made in {move.made}"
    called = move.callers and f"called in {', '.join(move.callers)}"
    array = f"{move.array} and {counted(move.others, 'other')}" if move.others else move.array
    return code, ", ".join(filter(None, (array, " ".join(move.types), made, called))), move.cause


def _wrapped(text, indent=""):
    return wrap(text, WIDE, initial_indent=indent, subsequent_indent=indent + "   ")


def _shortened(text, most):
    """A text, with a mark where its end is left out."""
    return text if len(text) <= most else f"{text[: most - 2]} …"


def _under(rows, align, texts):
    """The lines of each row of a table, with a text under it; what is too long goes on below; nothing is left out."""
    lines = aligned(rows, align).splitlines()
    return [
        [*(_wrapped(line) if len(line) > WIDE else [line]), *_wrapped(text, "      ")]
        for line, text in zip(lines, texts, strict=True)
    ]


def _fitting(blocks, most):
    """How many blocks of lines fit, together: at least four, such as a heading and three rows."""
    lines = itertools.accumulate(map(len, blocks))
    return max(min(4, len(blocks)), sum(total <= most for total in lines))


def _table(rows, align):
    """The lines of each row of a table; if it is too wide, the last column stands under the others."""
    lines = aligned(rows, align).splitlines()
    if max(map(len, lines)) <= WIDE:
        return [[line] for line in lines]
    return _under([row[:-1] for row in rows], align, [row[-1] for row in rows])


def _ms(seconds):
    return "unknown ms" if seconds is None else f"{seconds * 1e3:.3g} ms"


def _more(one, other):
    key = lambda move: (move.kind, move.axes, move.phase, move.line, move.array, move.types)  # noqa: E731
    had = Counter()
    for move in other.moves:
        had[key(move)] += move.total or 0
    return tuple(move for move in one.moves if (move.total or 0) > had[key(move)] or key(move) not in had)
