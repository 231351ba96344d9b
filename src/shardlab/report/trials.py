"""Compile a program again with the remedies of its findings, and say what each gives."""

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.extend
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shardlab.arrays.layout import counted
from shardlab.machines.hardware import Chip
from shardlab.pods.transfer import rewritten
from shardlab.programs import collectives
from shardlab.programs.inherited import inherited_axes, text_of
from shardlab.programs.origins import where
from shardlab.programs.varying import own_frames
from shardlab.report.findings import in_line
from shardlab.report.moves import summed
from shardlab.report.names import type_text
from shardlab.report.program import Compiled, locate
from shardlab.report.remedies import (
    Donation,
    MovedAxis,
    OtherConstraints,
    OtherSpecs,
    Remedy,
    Trial,
    entries_of,
    with_axis,
)
from shardlab.report.reports import Report
from shardlab.report.specs import corrections
from shardlab.report.storage import Array, memory

__all__ = ["Tried", "with_trials"]


_MOST_ROUNDS = 8  # of correcting constraints that the corrected ones lead to


class _NotTried(Exception):
    """A remedy that cannot be compiled here, and why."""


@dataclass(frozen=True)
class Tried:
    """The program whose remedies are tried, as `explain` has compiled it.

    Attributes:
      f, args, kwargs: the function and its arguments.
      shardings: of its arguments, in the order of the traced program; None where unknown.
      results: its results as `Array`s.
      meshes: whose axes name the groups of its collectives.
      chip: the chip of the predicted times.
      wrapper: what compiles it instead of `jax.jit`: "equinox", "nnx" or "pmap"; else "".
      entered: where a shard_map gets an argument whole along an axis, by its number and the axis.
    """

    f: Any
    args: tuple
    kwargs: dict[str, Any]
    shardings: Sequence[Any]
    results: Sequence[Array]
    meshes: Sequence[Any]
    chip: Chip
    wrapper: str = ""
    entered: Mapping[tuple[int, str], Any] = field(default_factory=dict)


def with_trials(report: Report, program: Tried) -> Report:
    """A report in which each finding that has a remedy says what the program sends and holds with
    it: compiled once for each remedy, for the same arguments.

    Args:
      report: of the program.
      program: which it is about.
    """
    trials, found = {}, []
    for number, finding in enumerate(report.findings, 1):
        remedy, says = finding.remedy, finding.says
        if remedy is None:
            found.append(finding)
            continue
        if remedy in trials:
            first, trial = trials[remedy]
            says += f"; tried: see finding {first}"
        else:
            trial = _trial(remedy, report, program)
            trials[remedy] = number, trial
            says += f"; {trial}"
        found.append(replace(finding, says=says, tried=trial))
    return replace(report, findings=tuple(found))


def _trial(remedy, report, program):
    try:
        changed = _Changed(remedy, report.arrays, program)
        lowering = changed.lowering()
    except _NotTried as reason:
        return Trial(failure=f"not tried: {reason}")
    change = changed.text()
    try:
        with (
            warnings.catch_warnings(),
            changed.on_its_mesh(),
        ):  # the findings say more of donations than JAX's warnings
            warnings.simplefilter("ignore")
            compiled = lowering()
    except Exception as error:  # whatever the program or the compiler says
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return Trial(change, failure=f"tried: with {change} it does not compile: {reason}")
    text = compiled.as_text()
    located = locate(Compiled(text, program.meshes, report.compiled_for))
    after = replace(report, moves=tuple(summed(located, program.chip)))
    holds = memory(compiled, report.compiled_for, text)["peak"]
    return Trial(
        change,
        (report.bytes, after.bytes),
        (report.seconds, after.seconds),
        (report.memory["peak"], holds),
    )


class _Changed:
    """A program with a remedy."""

    def __init__(self, remedy: Remedy, arguments: Sequence[Array], program: Tried):
        self._remedy, self._program, self._constraints = remedy, program, False
        self._arguments = {array.number: array for array in arguments}
        self._meshes = [one.mesh for one in program.shardings if isinstance(one, NamedSharding)]
        self._specs = {}
        if isinstance(remedy, MovedAxis):
            self._specs = self._moved(remedy)
        elif isinstance(remedy, OtherSpecs):
            self._specs = {n: spec for n, spec in remedy.specs if n in self._arguments}
            copies = self._copies(self._specs) if remedy.with_copies else {}
            self._specs |= copies

    def on_its_mesh(self):
        """The mesh of the arguments set, if one is set here: a pod's devices are not this one's."""
        mesh = next((one for one in self._meshes if isinstance(one, Mesh)), None)
        is_set = not jax.sharding.get_abstract_mesh().empty
        return jax.set_mesh(mesh) if is_set and mesh is not None else nullcontext()

    def text(self) -> str:
        """What is changed."""
        remedy = self._remedy
        if isinstance(remedy, Donation):
            names = [self._arguments[n].name for n in remedy.arguments if n in self._arguments]
            return f"{names[0] if len(names) == 1 else counted(len(names), 'array')} donated"
        if isinstance(remedy, OtherConstraints):
            what = "corrected" if remedy.specs else "left out"
            return f"the constraint of {where(remedy.file, remedy.line)} {what}"
        number, spec = next(iter(self._specs.items()))
        first = f"{spec} for {self._arguments[number].name}"
        others = len(self._specs) - 1
        return first + (f" and other specs for {counted(others, 'array')} more" if others else "")

    def lowering(self):
        """A function without arguments that compiles the program with the remedy."""
        program, remedy = self._program, self._remedy
        if program.wrapper:
            raise _NotTried(f"{program.wrapper} compiles this program, and not jax.jit")
        if not callable(program.f) or isinstance(program.f, jax.stages.Compiled):
            raise _NotTried("this is a compiled program; pass the function and its arguments")
        if isinstance(remedy, OtherSpecs | MovedAxis) and not self._specs:
            raise _NotTried("several dimensions of the argument could be meant")
        if (place := self._kept_whole()) is not None:
            raise _NotTried(f"in_specs of the shard_map{in_line(place)} have to change with it")
        is_explicit = any(AxisType.Explicit in mesh.axis_types for mesh in self._meshes)
        if is_explicit and isinstance(remedy, OtherConstraints):
            raise _NotTried("on Explicit axes a spec is part of the types in the program")
        if is_explicit and self._specs:
            return self._with_other_arguments()
        f = program.f if hasattr(program.f, "trace") else jax.jit(program.f)
        traced = f.trace(*program.args, **program.kwargs)
        info = jax.tree.leaves(traced.args_info)
        if not len(program.shardings) == len(info) == len(traced.jaxpr.in_avals):
            raise _NotTried("JAX does not say which arguments the program has")
        donated = {n for n, leaf in enumerate(info) if leaf.donated}
        donated |= set(remedy.arguments) if isinstance(remedy, Donation) else set()
        closed = traced.jaxpr
        if isinstance(remedy, OtherConstraints):
            closed = self._with_other_constraints(closed)
        run = jax.extend.core.jaxpr_as_fun(closed)
        jitted = jax.jit(
            run, donate_argnums=tuple(sorted(donated)), out_shardings=self._results(traced)
        )
        structs = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=self._sharding(number))
            for number, aval in enumerate(traced.jaxpr.in_avals)
        ]
        return lambda: jitted.lower(*structs).compile()

    def _kept_whole(self):
        """Where a shard_map gets an argument whole along an axis that its new spec adds."""
        for number, spec in self._specs.items():
            added = _axes(spec) - _axes(self._arguments[number].spec)
            for axis in added:
                if (number, axis) in self._program.entered:
                    return self._program.entered[number, axis]
        return None

    def _with_other_constraints(self, closed):
        remedy, specs, seen = self._remedy, self._remedy.specs, set()
        for _ in range(_MOST_ROUNDS):
            new = rewritten(
                closed, lambda equation, specs=specs: self._constrained(equation, specs)
            )
            if not specs:
                break
            seen |= {*specs}
            closed = new
            losses = inherited_axes(closed.jaxpr, self._program.shardings).repeated
            better = corrections(losses, remedy.file, remedy.line, remedy.axes)
            specs = tuple((*key, spec) for key, spec in better.items())
            if {*specs} <= seen:
                break
        if not self._constraints:
            raise _NotTried("the traced program has no such constraint")
        return new

    def _with_other_arguments(self):
        """Of a program whose types name axes: it is traced again."""
        leaves, tree = jax.tree.flatten((self._program.args, self._program.kwargs))
        if len(leaves) != len(self._program.shardings):
            raise _NotTried("it has static arguments, on Explicit axes")
        for number in self._specs:
            leaf = leaves[number]
            leaves[number] = jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=self._sharding(number)
            )
        args, kwargs = jax.tree.unflatten(tree, leaves)
        return lambda: collectives.stages(self._program.f, args, kwargs)[1]

    def _sharding(self, number):
        own = self._program.shardings[number]
        own = own if isinstance(own, NamedSharding) else None
        return self._by(self._specs[number], own) if number in self._specs else own

    def _by(self, spec, own):
        """A sharding by a spec as text, on the mesh of another one, or that of the arguments."""
        entries = entries_of(spec, 0)
        kind = {} if own is None else {"memory_kind": own.memory_kind}
        mesh = self._meshes[0] if own is None else own.mesh
        return NamedSharding(mesh, PartitionSpec(*entries), **kind)

    def _results(self, traced):
        """The shardings of the results that the program names; of those that replace an argument,
        its new one.
        """
        asked = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(traced.out_info)]
        asked = [one if isinstance(one, NamedSharding) else None for one in asked]
        for result, number in self._replacing().items():
            if asked[result] is not None:
                asked[result] = self._by(self._specs[number], asked[result])
        return asked

    def _replacing(self):
        """The numbers of results that replace arguments with new specs, each with its argument's:
        the paths, types and specs are equal.
        """
        olds, news = {}, {}
        for array in sorted(self._arguments.values(), key=lambda array: array.number):
            olds.setdefault(_likeness(array), []).append(array)
        for number, array in enumerate(self._program.results):
            news.setdefault(_likeness(array), []).append(number)
        pairs = {}
        for key, results in news.items():
            arrays = olds.get(key, [])
            if len(arrays) != len(results):
                arrays = [array for array in arrays if array.donated]
            if len(arrays) == len(results):
                pairs |= {
                    result: array.number
                    for result, array in zip(results, arrays, strict=True)
                    if array.number in self._specs
                }
        return pairs

    def _copies(self, specs):
        """The arguments with the path, type and spec of one that gets a new spec: its moments."""
        new = {}
        for number, spec in specs.items():
            mine = self._arguments[number]
            keys = _keys(mine.name)
            tail = keys[2:] or keys[1:]
            for other in self._arguments.values():
                theirs = _keys(other.name)
                is_alike = (mine.type, mine.spec) == (other.type, other.spec)
                is_sibling = len(keys) == 2 and theirs[0] == keys[0]
                if tail and is_alike and not is_sibling and theirs[-len(tail) :] == tail:
                    new[other.number] = spec
        return new

    def _moved(self, remedy):
        array = self._arguments.get(remedy.argument)
        shape = tuple(map(int, re.findall(r"\d+(?=[,\]])", array.type))) if array else ()
        entries = entries_of(array.spec, len(shape)) if array else []
        free = [
            d
            for d, (size, axes) in enumerate(zip(shape, entries, strict=True))
            if size == remedy.size and remedy.axis not in axes
        ]
        if len(free) != 1:
            return {}
        specs = {remedy.argument: with_axis(array.spec, shape, remedy.axis, free[0])}
        return specs | self._copies(specs)

    def _constrained(self, equation, specs):
        remedy, own = self._remedy, equation.params["sharding"]
        if not isinstance(own, NamedSharding):
            return own
        if own_frames(equation)[:1] != [(remedy.file, remedy.line)]:
            return own
        aval = equation.invars[0].aval
        kind = type_text(aval.shape, aval.dtype)
        spec = text_of([*getattr(own.spec, "partitions", own.spec)])
        if not specs:
            self._constraints = True
            return None
        for of, before, after in specs:
            if of in ("", kind) and before == spec:
                self._constraints = True
                return self._by(after, own)
        return own


def _keys(name):
    """The parts of a name: "state[0]['w']" is state, [0] and ['w']."""
    return re.findall(r"^\w+|\[[^\]]*\]|\.\w+", name)


def _axes(spec):
    """The axes that a spec as text names."""
    return {axis for axes in entries_of(spec, 0) for axis in axes}


def _likeness(array):
    """What an argument and the result that replaces it have in common."""
    path = re.search(r"(\[['\"].*|\.\w.*)$", array.name)
    return path and path[0], array.type, text_of(entries_of(array.spec, 0))
