"""Explain a compiled program: what it sends for which line, its memory, and what to change.

    from shardlab import explain

    explain(train_step, state, batch)

prints, for the shardings of the arguments, the communication by source line, the memory by array,
and findings such as a replicated optimiser state. Nothing runs: the program is compiled, and its
text read.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardlab._arguments import harmless
from shardlab.machines import hardware
from shardlab.pods.pod import Pod
from shardlab.pods.transfer import transferred
from shardlab.programs import collectives, kernels
from shardlab.programs.hlo import promised
from shardlab.programs.inherited import Inheritance, inherited_axes
from shardlab.programs.repeated import repeated
from shardlab.programs.varying import are_checked, mismatches
from shardlab.report import (
    accepted,
    calls,
    captured,
    carried,
    findings,
    gradients,
    kept,
    matrices,
    promoted,
    scattered,
    storage,
)
from shardlab.report.judgement import judge
from shardlab.report.moves import Move, summed
from shardlab.report.names import own_names, renamed, wrapper_of
from shardlab.report.program import Compiled, locate
from shardlab.report.reports import Comparison, Report
from shardlab.report.states import states
from shardlab.report.storage import Array
from shardlab.report.trials import Tried, with_trials

__all__ = ["Array", "Comparison", "Move", "Report", "compare", "explain"]


def explain(
    f: Any,
    *args: Any,
    mesh: Mesh | AbstractMesh | Pod | None = None,
    chip: str | hardware.Chip = "v5p",
    try_remedies: bool = False,
    later: tuple | Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Report:
    """Explain the program that `f(*args)` is compiled to: nothing runs.

    >>> w = jax.device_put(jnp.ones((256, 256)), NamedSharding(mesh, P("y", None)))
    >>> x = jax.device_put(jnp.ones((16, 256)), NamedSharding(mesh, P("y", None)))
    >>> report = explain(jnp.dot, x, w)
    >>> report.moves[0].kind, report.moves[0].axes, report.moves[0].array
    ('all-gather', ('y',), 'b')
    >>> report.bytes, report.memory["arguments"]
    (196608, 69632)

    Args:
      f: a function, jitted or not; a `Lowered` or `Compiled` program, or the text of one (then
        without arguments).
      *args, **kwargs: arrays, or `jax.ShapeDtypeStruct`s with shardings, which need no memory.
      mesh: the mesh whose axes name the groups, by default that of the arguments; or a
        `shardlab.Pod`: then the program is compiled by the compiler of those chips, for a mesh with
        the axes of the arguments, which also takes the place of a mesh that the function names
        inside.
      chip: the chip of the predicted times, a name or a `shardlab.hardware.Chip`; with a `Pod`
        always that of the pod.
      try_remedies: whether to compile the program once more for each finding with a remedy that can
        be compiled, such as another spec of an argument, a corrected constraint or a donation. The
        finding then says what the program sends and holds with it, also where it is no better;
        `Finding.tried` has the numbers.
      later: the arguments of a later call of the same function, as a tuple, to which `**kwargs` are
        added, or as a mapping of their names. If jit compiles again for it, a finding says which
        argument differs, and whether by its shape, dtype, weak type, sharding, or in that one of
        the two is committed to devices.

    Returns:
      `Report`.

    Raises:
      TypeError: `f` is nothing that can be compiled, or `later` no tuple or mapping.
      ValueError: with a `Pod`: its compiler is not installed, or the function names a mesh with
        other axes.
      NotImplementedError: the compiler for CPUs does not know an operation, such as a ragged
        all-to-all.
      shardlab.UnreadableProgram: the program contains a line of unknown form; the message shows it.
    """
    chip = hardware.chip(mesh.chip if isinstance(mesh, Pod) else chip)
    if isinstance(f, str):
        with promised():
            compiled = Compiled(harmless(f), () if mesh is None else (mesh,))
            return _report(compiled, chip, "program")[0]
    if not callable(f) and not hasattr(f, "as_text"):
        raise TypeError(
            "explain() takes a function, a Lowered or Compiled program or the text of one, "
            f"not {type(f).__name__}; for example explain(step, state, batch)"
        )
    again = [] if later is None else _later(f, args, kwargs, later)
    names_pod = isinstance(mesh, Pod)
    backend = mesh.name if names_pod else jax.default_backend()
    with _words_of_the_compiler() as messages:
        if names_pod:
            f, args, lowered, compiled, mesh = _compiled_for(mesh, f, args, kwargs)
        else:
            lowered, compiled = collectives.stages(f, args, kwargs)
            backend = _other_backend(compiled) or backend
    text = compiled.as_text()
    own, own_by_path = own_names(compiled, f, args, kwargs)
    arrays = storage.arguments(compiled, text, args, kwargs, own)
    results = storage.results(compiled, lowered)
    wrapper = wrapper_of([array.name for array in arrays])
    placed = () if wrapper == "pmap" else (args, kwargs)  # which may be on a mesh of another name
    meshes = [mesh] if mesh is not None else collectives.meshes_of(compiled, *placed)
    if wrapper and own:
        text, new_names = renamed(text, own)
        arrays = [replace(array, name=new_names.get(array.name, array.name)) for array in arrays]
    if wrapper == "nnx":  # whose functions return the changed arguments first
        results = [replace(array, name=_of_changed(array.name, own_by_path)) for array in results]
    jaxpr = _traced(f, args, kwargs, mesh if names_pod else None)
    shardings = storage.shardings(compiled, args, kwargs)
    is_followed = jaxpr is not None and len(shardings) == len(jaxpr.invars)
    asked = jax.tree.leaves(compiled.output_shardings) if is_followed else ()
    made = states(jaxpr) if is_followed and len(results) == len(jaxpr.outvars) else None
    program = Compiled(
        text,
        meshes,
        backend,
        {array.name: array.whole for array in results},
        lowered,
        messages,
        is_checked=jaxpr is None or are_checked(jaxpr),
        is_pmap=wrapper == "pmap",
        inheritance=inherited_axes(jaxpr, shardings, asked) if is_followed else None,
        names={array.number: array.name for array in arrays},
        data=findings.unreplaced(arrays, results, made),
        stored=sum(array.bytes for array in arrays),
    )
    report, located, judgement = _report(program, chip, _name(f))
    is_gradient, is_trained = located.origins.is_gradient, located.origins.is_differentiated
    sizes = storage.memory(compiled, backend, text) | (
        {"gathered": judgement.kept} if judgement.kept else {}
    )
    # an axis that a constraint drops is not lacking in the arguments
    mesh_left = {axis: size for axis, size in report.mesh.items() if axis not in judgement.lost}
    followed = program.inheritance or Inheritance()
    gathered = findings.gathered_dimensions(located.collectives)
    likes = gradients.lacking(arrays, results, made, is_gradient) if is_trained else {}
    found = [
        *again,
        *gradients.of_lacking(likes, arrays, results, mesh_left),
        *findings.of_arrays(
            arrays,
            gradients.without(results, likes),
            mesh_left,
            report.devices,
            judgement.forward,
            gathered,
            is_trained,
            made,
            followed.results,
            followed.entered_whole,
            sizes["peak"],
        ),
    ]
    if jaxpr is not None:
        name = _name(f) if wrapper == "pmap" else ""
        found += _of_the_trace(jaxpr, report, name, is_trained, arrays, sizes["peak"])
    # Of a program without a backward pass nothing tells weights from data.
    if not judgement.is_in_specs and (is_trained or judgement.repeats > 1.5):
        weights = {one.type for one in results} if is_gradient else set()
        found += findings.of_batch(
            [one for one in arrays if one.type not in weights],
            results,
            report.moves,
            mesh_left,
            judgement.repeats,
            judgement.forward,
            followed.of_tensors,
            followed.multiplied if is_trained else (),
        )
    if wrapper == "pmap" and is_trained:
        found += findings.of_unsummed(report.moves, arrays, results)
    if not is_gradient:  # which replaces no argument
        found += findings.of_replacement(arrays, results, judgement.forward, made)
        found += findings.of_unplaced(arrays, results)
    values = jax.tree.leaves((args, kwargs))
    chosen = [*calls.of_unplaced_data(arrays, results, report.moves, values)]
    if chosen and not _with_own_shardings(f, args, kwargs)[1]:
        found += chosen
    returned = [] if is_gradient else results
    found += findings.of_donation(arrays, returned, sizes["donated"], wrapper, made)
    found += calls.of_next_call(arrays, results, jaxpr, found)
    temporaries = tuple(storage.temporaries(located))
    found += [] if judgement.is_in_specs else findings.of_exchanged(report.moves, arrays)
    found += findings.of_temporaries(temporaries, sizes, is_trained, results, judgement.saved)
    found += report.findings
    if is_followed:
        found = accepted.with_accepted_specs(found, jaxpr, shardings)
    found = _by_harm(found, report, arrays)
    idle = jax.device_count() - 1 if (report.devices, backend) == (1, jax.default_backend()) else 0
    report = replace(
        report,
        findings=found,
        idle=idle,
        kernels=_declared(report, jaxpr),
        arrays=tuple(arrays),
        memory=sizes,
        temporaries=temporaries,
    )
    if not try_remedies:
        return report
    entered = followed.entered_whole
    tried = Tried(f, args, kwargs, shardings, results, located.meshes, chip, wrapper, entered)
    with _words_of_the_compiler(are_shown=False):  # of other programs than this one
        return with_trials(report, tried)


def _by_harm(found, report, arrays):
    """The findings, the most harmful first."""
    stored = {array.number: findings.elements_of_each(array.shard) for array in arrays}
    return tuple(findings.by_harm(found, _spare_axes(report, arrays), stored))


def _of_the_trace(jaxpr, report, name, is_trained, arrays, peak):
    """The findings of the traced function; `name` is that of one that pmap calls."""
    yield from findings.of_varying(mismatches(jaxpr), name)
    yield from findings.of_added(repeated(jaxpr), report.findings)
    yield from promoted.of_promoted(jaxpr)
    if report.compiled_for != "cpu":
        yield from promoted.of_sent_wide(jaxpr, report.moves)
    yield from scattered.of_sliced_sums(jaxpr)
    yield from matrices.of_gathered_stacks(jaxpr, report.moves, report.mesh)
    yield from kept.of_kept_sums(jaxpr, report.bytes, report.findings)
    if is_trained:
        yield from captured.of_fixed_keys(jaxpr)
        yield from carried.of_wide_sums(jaxpr, arrays, peak)


def _later(f, args, kwargs, later):
    """The finding of a later call."""
    if not isinstance(later, tuple | Mapping):
        raise TypeError(
            f"explain() got a later call of type {type(later).__name__}; give its arguments as a "
            "tuple, such as later=(state, next_batch), or as a mapping of their names"
        )
    second = ((), dict(later)) if isinstance(later, Mapping) else (later, kwargs)
    return [*calls.of_later_call(f, (args, kwargs), second)]


def _declared(report, jaxpr):
    """The bytes of each kernel: as the program declares them, else as it was traced."""
    declared = dict(kernels.written(jaxpr)) if jaxpr is not None else {}
    for kernel, size in report.kernels.items():
        declared[kernel] = size or declared.get(kernel, size)
    return declared


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
            sort = type(report).__name__
            raise TypeError(f"compare() takes two reports of explain(), not {sort}")
    return Comparison(before, after)


explain.compare = compare


def _report(compiled, chip, name):
    """The `Report` of a program's text, with the program as it was located, and its `Judgement`."""
    located = locate(compiled)
    moves = summed(located, chip)
    judgement = judge(located, moves)
    shape = located.meshes[0].shape if located.meshes else {}
    report = Report(
        name,
        located.program.devices,
        {str(axis): int(size) for axis, size in shape.items()},
        compiled.backend,
        chip.name,
        tuple(moves),
        findings=judgement.findings,
        kernels={kernels.name(call): kernels.declared_bytes(call) for call in located.kernels},
    )
    return report, located, judgement


def _spare_axes(report, arrays):
    """The mesh axes along which no argument is in shards."""
    return {axis for axis in report.mesh if all(axis in one.replicated for one in arrays)}


def _traced(f, args, kwargs, pod_mesh=None):
    """The jaxpr of a function; None if it is none, or a wrapper that cannot be traced."""
    if not callable(f) or (isinstance(f, jax.stages.Wrapped) and not hasattr(f, "trace")):
        return None
    try:
        with nullcontext() if pod_mesh is None else _mesh_of(pod_mesh):
            return (f if hasattr(f, "trace") else jax.jit(f)).trace(*args, **kwargs).jaxpr.jaxpr
    except Exception:
        return None


def _with_own_shardings(f, args, kwargs):
    """Arguments with the shardings that a jitted function gives them by `in_shardings`, and whether
    it gives any: they name a mesh of these devices.
    """
    if not hasattr(f, "trace"):
        return args, False
    try:
        equations = jax.make_jaxpr(f)(*args, **kwargs).jaxpr.eqns
    except Exception:  # static arguments, or what no trace can take: the compiler will say it
        return args, False
    leaves, tree = jax.tree.flatten(args)
    own = equations[0].params.get("in_shardings", ()) if len(equations) == 1 else ()
    own = [one if isinstance(one, NamedSharding) else None for one in own][: len(leaves)]
    if not any(own) or len(own) != len(leaves):
        return args, False
    given = [
        leaf if one is None else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one)
        for leaf, one in zip(leaves, own, strict=True)
    ]
    return jax.tree.unflatten(tree, given), True


def _compiled_for(pod, f, args, kwargs):
    """A function, its arguments, its program and the mesh, all for a pod."""
    given, names_mesh = _with_own_shardings(f, args, kwargs)
    args = pod.like(*given)
    shardings = (leaf.sharding for leaf in jax.tree.leaves(args))
    mesh = next(one.mesh for one in shardings if isinstance(one, NamedSharding))
    if not isinstance(mesh, Mesh):
        needs = "TPUs need libtpu, GPUs JAX's CUDA plug-in"
        raise ValueError(f"no compiler for {pod.name} is installed here; {needs}")

    def stages(f):
        with _mesh_of(mesh):
            return collectives.stages(f, args, kwargs)

    f = transferred(f, given, kwargs, mesh) if names_mesh else f
    try:
        lowered, compiled = stages(f)
    except ValueError as error:
        words = r"incompatible devices|should match the (aval mesh|mesh passed)"
        if names_mesh or not re.search(words, str(error)):
            raise
        f = transferred(f, given, kwargs, mesh)  # it names a mesh of these devices inside
        lowered, compiled = stages(f)
    if other := _other_backend(compiled, mesh.devices.flat[0].platform):
        raise ValueError(
            f"the program was compiled for {other}, not for {pod.name}, because it names a mesh of "
            "other devices; leave its shardings out, and give them to the arguments"
        )
    return f, args, lowered, compiled, mesh


def _mesh_of(mesh):
    """Sets the mesh of a pod in the place of one that is set; nothing where none is."""
    return nullcontext() if jax.sharding.get_abstract_mesh().empty else jax.set_mesh(mesh)


def _other_backend(compiled, wanted=None):
    """The kind of devices that the shardings of a program name, if they are not the wanted ones (by
    default those of this process); else None.
    """
    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    devices = (
        one.mesh.devices.flat[0]
        for one in shardings
        if isinstance(one, NamedSharding) and isinstance(one.mesh, Mesh)
    )
    wanted = wanted or jax.default_backend()
    return next((one.device_kind for one in devices if one.platform != wanted), None)


def _name(f):
    return getattr(f, "__name__", None) or "program"


@contextmanager
def _words_of_the_compiler(are_shown=True):
    """Collects what the compiler writes to standard error; at the end it is written again, if it is
    to be shown.
    """
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
            os.write(2, text if are_shown else b"")
            messages += text.decode("utf-8", "replace").splitlines()


def _of_changed(name, own_by_path):
    """The name of a result of a Flax NNX function: that of the argument which it replaces."""
    own = own_by_path.get(name.removeprefix("result"))
    return f"result {own}" if own else name
