"""Assertions for tests of parallel programs: their communication, their layouts, and agreement with
one device.

    def test_step(devices):
        mesh = jax.make_mesh((8,), ("data",), devices=devices(8), axis_types=(AxisType.Auto,))
        w, batch = jax.device_put((w0, batch0), (NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))))
        assert_collectives(step, w, batch, at_most={"all-reduce": 2}, max_bytes=200_000)
        assert_layout(step(w, batch), P())
        assert_equal_to_one_device(loss, (w0, batch0), (P(), P("data")), mesh=mesh, gradient=True)

The fixture `devices` comes with shardlab, see `shardlab.exercises.pytest_plugin`. The assertions
also work without pytest.
"""  # noqa: E501

import io
import math
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import (
    AbstractMesh,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from shardlab._arguments import nearest
from shardlab.arrays.layout import counted
from shardlab.exercises.check import Exercise, WrongAnswer, check
from shardlab.programs.collectives import Collectives, collectives, compile_for
from shardlab.programs.hlo import COLLECTIVES, Program, array_types, metadata

__all__ = ["Agreement", "assert_collectives", "assert_equal_to_one_device", "assert_layout"]

_SHOWN = 8  # wrong leaves that a message lists
# Sums in another order differ in the last bits. About 80 times the distance of neighbouring
# numbers, and less for the short types, whose sums are made in float32.
_RTOL = {"float64": 1e-12, "complex128": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}


def assert_collectives(
    f: Any,
    *args: Any,
    at_most: Mapping[str, int] | None = None,
    max_bytes: int | None = None,
    never: str | tuple[str, ...] = (),
    mesh: Mesh | AbstractMesh | None = None,
    **kwargs: Any,
) -> Collectives:
    """Assert that `f(*args)`, compiled for the shardings of its arguments, communicates no more
    than allowed.

    On 4 devices along y, `lambda a: a.sum(0)` for a float32 array of shape (8, 16), sharded as
    `P("y", None)`, runs one all-reduce in which each device sends 2 * 3/4 * 16 * 4 = 96 bytes.
    `at_most={"all-reduce": 1}, max_bytes=96` passes, and `at_most={}` fails with the list of the
    program's collectives.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("y", None)))
    >>> rows = lambda a: a.sum(0)
    >>> found = assert_collectives(rows, a, at_most={"all-reduce": 1}, max_bytes=96)
    >>> found = assert_collectives(rows, a, max_bytes=64)
    Traceback (most recent call last):
        ...
    AssertionError: bytes: each device may send 64, but it sends 96
    The program compiled for cpu communicates:
    collective  between  each device        times  bytes sent each time
    all-reduce  along y  f32[16] → f32[16]  1      96
    bytes sent by each device in total (ring model): 96

    Args:
      f: a function, jitted or not; or a lowered or compiled one, or the text of a program (then
        without `args`).
      *args, **kwargs: arrays, or `jax.ShapeDtypeStruct`s with shardings, which need no memory.
      at_most: how often each kind of collective may run in one call, such as `{"all-gather": 2}`.
        Kinds that it does not name may not run at all, so `{}` allows no communication. Of a
        conditional the branch with most counts.
      max_bytes: how many bytes each device may send in one call, by the ring model of
        `shardlab.programs.collectives`.
      never: types of arrays that no device may hold, such as `"f32[4096,1024]"` for a parameter
        that should stay sharded. They are compared by the number of elements, because compilers
        transpose, reshape and convert; so choose sizes that no other array has. What only exists
        inside a fusion is not held.
      mesh: the mesh whose axes name the groups in messages; by default that of the shardings.

    Returns:
      The program's `shardlab.Collectives`, for further assertions.

    Raises:
      AssertionError: the program communicates more, or a device holds such an array; the message
        lists what it does.
      ValueError: nothing is asserted, or `at_most` or `never` names what does not exist.
      shardlab.UnreadableProgram: the program contains a line of unknown form; the message shows it.
    """
    __tracebackhide__ = True
    never = (never,) if isinstance(never, str) else tuple(never)
    if at_most is None and max_bytes is None and not never:
        raise ValueError("assert_collectives() asserts nothing: give at_most, max_bytes or never")
    for kind in at_most or ():
        if kind not in COLLECTIVES:
            raise ValueError(
                f"at_most: no collective is called {kind!r}{nearest(kind, COLLECTIVES)}"
            )
    for banned in never:
        if array_types(banned) != (banned,):
            raise ValueError(
                f"never: {banned!r} is no type of an array as programs print it, such as f32[64,48]"
            )

    program = f if isinstance(f, str) else compile_for(f, *args, **kwargs)
    moves = collectives(program, mesh=mesh)
    wrong = []
    for kind, count in moves.at_most.items() if at_most is not None else ():
        allowed = at_most.get(kind, 0)
        if count is None:
            wrong.append(
                f"{kind}: at most {allowed} allowed, but only the run decides how often it runs"
            )
        elif count > allowed:
            wrong.append(f"{kind}: at most {allowed} allowed, but it runs {counted(count, 'time')}")
    sent = moves.bytes_at_most
    if max_bytes is not None and (sent is None or sent > max_bytes):
        how_many = (
            "only the run decides how many it sends" if sent is None else f"it sends {sent:,}"
        )
        wrong.append(f"bytes: each device may send {max_bytes:,}, but {how_many}")
    wrong += _held(program if isinstance(program, str) else program.as_text(), never)
    if wrong:
        backend = "" if isinstance(f, str) else f" compiled for {jax.default_backend()}"
        raise AssertionError("\n".join([*wrong, f"The program{backend} communicates:", str(moves)]))
    return moves


def assert_layout(array: Any, layout: Any) -> None:
    """Assert that arrays are stored as a layout says, on the same devices, whatever their shardings
    print like.

    On a mesh of 2 x 4 devices, `P("x")` and `P("x", None)` store the same rows of a matrix on every
    device, and are the same layout.

    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("x")))
    >>> assert_layout(a, P("x", None))
    >>> assert_layout({"w": a}, P("y"))
    Traceback (most recent call last):
        ...
    AssertionError: 1 of 1 array is not stored as expected:
      ['w']: expected f32[8@y, 16] on 8 devices, got f32[8@x, 16] on 8; device 0 stores ...

    Args:
      array: a `jax.Array`, or a tree of them, such as the parameters of a model.
      layout: a sharding, or a `PartitionSpec`, read on the array's own mesh; for a tree, one for
        all of it, or a tree of them that may end earlier, such as `{"layers": P("model"), "norm":
        P()}`. None where any layout will do.

    Raises:
      AssertionError: an array is stored otherwise; the message names each, and the first device
        that stores another slice.
      ValueError: the tree of layouts does not fit that of the arrays.
    """
    __tracebackhide__ = True
    wrong, count = [], 0
    for path, leaf, expected in _with_layouts(array, layout, "array"):
        count += 1
        if problem := expected is not None and _problem(leaf, Exercise(layout=expected)):
            wrong.append((jax.tree_util.keystr(path), problem))
    _raise(wrong, f"of {counted(count, 'array')}", "not stored as expected")


@dataclass(frozen=True)
class Agreement:
    """How well many devices agreed with one, as `assert_equal_to_one_device` found.

    A difference of 0.001 in an array whose largest element is 2 counts as 0.0005.

    Attributes:
      devices: how many there were.
      arrays: how many arrays of floating-point numbers were compared.
      worst: the largest difference, relative to the largest magnitude in the same array on one
        device.
      where: the array with this difference, such as `gradient of argument 0['embed']`; empty if
        nothing differed.
    """

    devices: int
    arrays: int
    worst: float
    where: str
    # of the call: args, how it ran, and its results
    _on_one: tuple = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        """One sentence."""
        place = f", in {self.where}" if self.where else ""
        return (
            f"{counted(self.arrays, 'array')} on {self.devices} devices as on one; "
            f"largest relative difference {self.worst:.1e}{place}"
        )


def assert_equal_to_one_device(
    f: Callable,
    args: tuple,
    layouts: tuple,
    *,
    gradient: bool | int | tuple[int, ...] = False,
    steps: int = 1,
    state: bool = True,
    reference: Callable | Agreement | None = None,
    mesh: Mesh | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Agreement:
    """Assert that `f` computes the same on many devices as on one: the values, their dtypes, and
    the gradient.

    `assert_equal_to_one_device(loss, (w, x), (P(), P("data")), mesh=mesh, gradient=0)` runs
    `loss(w, x)` with `x` sharded over the mesh and then on its first device, and compares results
    and the gradients with respect to `w`. If the gradient was summed over 8 devices too many, the
    message says that every value is 8 times what it should be.

    For the run on one device, the mesh of the layouts is replaced by one with the same axes, each
    of size 1; if a mesh is current (`jax.set_mesh`), it is replaced too. A function that names a
    mesh of many devices itself, such as one made by `shard_map` with `mesh=`, cannot run there, and
    needs a `reference`.

    >>> w, x = jnp.ones((4, 3)), jnp.ones((8, 4))
    >>> loss = lambda w, x: ((x @ w) ** 2).mean()
    >>> print(assert_equal_to_one_device(loss, (w, x), (P(), P("x")), mesh=mesh, gradient=0))
    2 arrays on 8 devices as on one; largest relative difference ...

    A training step is compared over several steps: `assert_equal_to_one_device(step, (state,
    batch), layouts, steps=5)` passes each new state to the next step, and compares the losses of
    all steps and the last state. Adam divides by numbers near zero, so two correct runs may end in
    different parameters; after Adam, compare the losses alone, with `state=False`.

    Args:
      f: a function of arrays and trees of them; it is jitted, if it is not. It may donate its
        arguments: it gets new arrays, never those that you pass.
      args: its arguments, as a tuple; NumPy arrays, or arrays on any devices.
      layouts: for each argument a sharding or a `PartitionSpec`, or a tree of them that may end
        earlier than the argument's; None leaves an argument where JAX puts it.
      gradient: compare gradients too: with respect to the argument of a number, or of several, or
        True for all that have floating-point leaves. Results that are not scalars are weighted,
        element by element, by the same fixed numbers in both runs.
      steps: how often to call `f`. In each call but the first, the first argument is what the call
        before returned, or the first of several results; the others of each call are compared too.
      state: whether the first of several results is compared, which for a training step is the new
        state. If False, only the others are, such as losses.
      reference: the function to run on one device, if that is not `f`; or what an earlier call with
        the same arguments returned, whose results on one device are then used again.
      mesh: the mesh for the layouts that are `PartitionSpec`s.
      rtol: the relative tolerance; by default 1e-5 for float32, 3e-2 for bfloat16, 4e-3 for float16
        and 1e-12 for float64. Integers must be equal.
      atol: the absolute tolerance; by default `rtol` times the largest expected magnitude in the
        same array.

    Returns:
      The largest difference and where it was, as an `Agreement`.

    Raises:
      AssertionError: something differs; the message names every leaf, and its first wrong index.
      ValueError: the layouts do not fit the arguments, or use one device only; or `f` cannot run on
        one device; or several steps are asked for, of a function without arguments or with its
        gradient; or `state` is False and `f` returns nothing beside it; or `reference` comes from a
        call with other arguments.
    """
    __tracebackhide__ = True
    if not isinstance(args, tuple) or not isinstance(layouts, tuple) or len(args) != len(layouts):
        raise ValueError(
            "args and layouts must be tuples of the same length, one layout for each "
            "argument, such as (w, x) and "
            f'(P(), P("data")); got {_sort(args)} and {_sort(layouts)}'
        )
    many = [leaf for leaf in jax.tree.leaves(layouts, is_leaf=_is_layout) if leaf is not None]
    meshes = (
        [mesh]
        if mesh is not None
        else [leaf.mesh for leaf in many if isinstance(leaf, NamedSharding)]
    )
    if mesh is None and any(isinstance(leaf, PartitionSpec) for leaf in many):
        raise ValueError("a PartitionSpec among the layouts needs a mesh to be read on; give mesh=")
    shardings = [
        NamedSharding(mesh, leaf) if isinstance(leaf, PartitionSpec) else leaf for leaf in many
    ]
    count = max((sharding.num_devices for sharding in shardings), default=1)
    if count == 1:
        raise ValueError(
            "these layouts use one device only, so there is nothing to compare; use a mesh of "
            "several"
        )

    chosen = _chosen(gradient, args)
    if steps != 1 and (steps < 1 or chosen or not args):
        raise ValueError(
            f"steps={steps!r}: give a number from 1 on; to compare more than one step, f "
            "needs an argument to begin with, and gradients are compared in a call of their "
            "own"
        )
    if not state and (chosen or not args):
        raise ValueError(
            "state=False: f needs an argument to begin with, and gradients are compared in a "
            "call of their own"
        )
    manner = (chosen, steps, state)
    results = _results(f, lambda: _placed(args, layouts, mesh, one=False), *manner)
    if isinstance(reference, Agreement):
        expected = _seen(reference, args, manner)
    else:
        expected = _alone_results(
            f, reference, lambda: _placed(args, layouts, mesh, one=True), manner, meshes
        )

    wrong, leaves, differences = [], 0, {}
    for title, want, have in zip(("", "gradient of argument "), expected, results, strict=True):
        if jax.tree.structure(want) != jax.tree.structure(have):
            raise AssertionError(
                f"{_name(f)} returns another structure than on one device: expected "
                f"{jax.tree.structure(want)}, got {jax.tree.structure(have)}"
            )
        pairs = zip(
            jax.tree_util.tree_flatten_with_path(want)[0], jax.tree.leaves(have), strict=True
        )
        for (path, value), other in pairs:
            leaves += 1
            place = jax.tree_util.keystr(path)
            if title:  # the first step of the path is the place among the chosen arguments
                place = f"{title}{chosen[path[0].idx]}{jax.tree_util.keystr(path[1:])}"
            if problem := _difference(value, other, rtol, atol):
                wrong.append((place, problem))
            elif _is_inexact(value):
                differences[place or "the result"] = _relative(value, other)
    unlike = f"not the same on {count} devices as on one"
    # if f returns a state and something else
    of_state = f"['after {steps} steps']" if steps > 1 else "[0]"
    in_state = [place.startswith(of_state) for place, _ in wrong]
    if wrong and all(in_state) and not all(place.startswith(of_state) for place in differences):
        unlike += (
            " (only the new state differs; if that is after Adam, which divides by numbers "
            "near zero, compare what the step returns beside it, with state=False)"
        )
    _raise(wrong, f"of {counted(leaves, 'result')} of {_name(f)}", unlike)
    where = max(differences, key=differences.get, default="")
    worst = differences.get(where, 0.0)
    return Agreement(
        count, len(differences), worst, where if worst else "", (args, manner, expected)
    )


def _seen(earlier, args, manner):
    """The results on one device of an earlier comparison, if it had the same arguments."""
    before, earlier_manner, expected = earlier._on_one or ((), None, None)
    leaves = [jax.tree.leaves(tree) for tree in (before, args)]
    if (
        earlier_manner != manner
        or len(leaves[0]) != len(leaves[1])
        or any(map(operator.is_not, *leaves))
    ):
        raise ValueError(
            "reference= is the result of a comparison with other arguments, gradients or "
            "steps; pass the same ones, or the function to run on one device"
        )
    return expected


def _alone_results(f, reference, place, manner, meshes):
    """What `reference`, or else `f`, returns on one device."""
    alone = jax.set_mesh(_alone(meshes[0])) if meshes and not _no_current_mesh() else nullcontext()
    try:
        with alone:
            expected = _results(reference or f, place, *manner)
    except ValueError as error:
        if reference is not None:
            raise
        raise ValueError(
            f"{_name(f)} cannot run on one device, perhaps because it names a mesh itself; "
            "give reference=, a function that computes the same without it. JAX says: "
            f"{str(error).splitlines()[0]}"
        ) from error
    used = max(
        (
            len(leaf.sharding.device_set)
            for leaf in jax.tree.leaves(expected)
            if isinstance(leaf, jax.Array)
        ),
        default=1,
    )
    if used > 1:
        raise ValueError(
            f"the run of {_name(reference or f)} on one device used {used}, because it places "
            "arrays itself; give reference=, a function that does not"
        )
    return expected


# --- Communication --------------------------------------------------------------------------------


def _held(text, never):
    """For each of some types, the first instruction outside of fusions whose result has as many
    elements.
    """
    if not never:
        return []
    program = Program(text)
    fused = {fusion.called().name for here in program for fusion in here.matching(r" fusion\(")}
    held = {}
    for here in program:
        for instruction in here.matching("") if here.name not in fused else ():
            for kind in array_types(instruction.result):
                held.setdefault(_elements(kind), (kind, instruction))
    wrong = []
    for kind in never:
        if _elements(kind) in held:
            found, instruction = held[_elements(kind)]
            source = metadata(instruction.line).get("op_name")
            by = f"{instruction.kind} {instruction.name}" + (f" of {source}" if source else "")
            size = "" if found == kind else f", which has as many elements as {kind}"
            wrong.append(
                f"memory: no device may hold {kind}, but each holds {found}{size}; made by {by}"
            )
    return wrong


def _elements(kind):
    return math.prod(
        int(size.lstrip("<=")) for size in kind.partition("[")[2].rstrip("]").split(",") if size
    )


# --- One device and many --------------------------------------------------------------------------


def _chosen(gradient, args):
    """The numbers of the arguments with respect to which gradients are compared."""
    if gradient is True:
        return tuple(n for n, arg in enumerate(args) if any(map(_is_inexact, jax.tree.leaves(arg))))
    if gradient is False or gradient is None:
        return ()
    numbers = (gradient,) if isinstance(gradient, int) else tuple(gradient)
    for number in numbers:
        if not 0 <= number < len(args):
            raise ValueError(
                f"gradient={gradient!r}: there is no argument {number}; use 0 to {len(args) - 1}"
            )
    return numbers


def _results(f, place, chosen, steps, state):
    """What f returns, and its gradients for the chosen arguments; `place` makes new arrays of the
    arguments.
    """
    f = f if hasattr(f, "lower") else jax.jit(f)
    if steps > 1 or not state:
        return _after(f, place(), steps, state), ()
    value = f(*place())
    if not chosen:
        return value, ()
    args = place()

    def of_chosen(*some):
        full = list(args)
        for number, arg in zip(chosen, some, strict=True):
            full[number] = arg
        return f(*full)

    result, back = jax.vjp(of_chosen, *(args[number] for number in chosen))
    return value, back(jax.tree.map(_weights, result))


def _after(f, args, steps, with_state):
    """What f has returned after several steps: what each returned beside the state, and the last
    state if asked for.
    """
    state, *others = args
    expected = {}
    for step in range(1, steps + 1):
        # a step at a time: emulated devices may deadlock
        result = jax.block_until_ready(f(state, *others))
        state, *outputs = result if isinstance(result, tuple) else (result,)
        expected[f"step {step}"] = outputs
    if not with_state and not jax.tree.leaves(expected):
        raise ValueError(
            f"state=False: {_name(f)} returns its new state and nothing beside it, so nothing "
            "is compared"
        )
    return {f"after {steps} steps": state, **expected} if with_state else expected


def _weights(result):
    """What the elements of a result are multiplied by in the sum whose gradient is compared."""
    if not _is_inexact(result):
        return np.zeros(result.shape, jax.dtypes.float0)
    numbers = (
        np.random.default_rng(0).uniform(0.5, 1.5, result.shape) if result.shape else np.ones(())
    )
    return jax.device_put(numbers.astype(result.dtype), result.sharding)


def _placed(args, layouts, mesh, *, one):
    """The arguments as new arrays, in their layouts or on one device."""

    def put(leaf, layout):
        if layout is None or not hasattr(leaf, "shape"):
            return leaf if not hasattr(leaf, "shape") else jax.numpy.array(leaf)
        sharding = NamedSharding(mesh, layout) if isinstance(layout, PartitionSpec) else layout
        if one and isinstance(sharding, NamedSharding):
            sharding = NamedSharding(
                _alone(sharding.mesh), sharding.spec, memory_kind=sharding.memory_kind
            )
        elif one:
            sharding = SingleDeviceSharding(min(sharding.device_set, key=lambda device: device.id))
        return jax.device_put(leaf, sharding, may_alias=False)

    placed = []
    for number, (arg, layout) in enumerate(zip(args, layouts, strict=True)):
        leaves = [
            put(leaf, one_layout)
            for _, leaf, one_layout in _with_layouts(arg, layout, f"argument {number}")
        ]
        placed.append(jax.tree.unflatten(jax.tree.structure(arg), leaves))
    return placed


def _alone(mesh):
    """A mesh with the same axes, of the first device."""
    first = mesh.devices.reshape(-1)[:1].reshape((1,) * mesh.devices.ndim)
    return Mesh(first, mesh.axis_names, axis_types=mesh.axis_types)


def _no_current_mesh():
    return jax.sharding.get_abstract_mesh().empty


def _difference(want, have, rtol, atol):
    """How a result differs from the one of one device, or None."""
    if want.dtype != have.dtype:
        return f"expected dtype {want.dtype}, got {have.dtype}"
    if want.dtype == jax.dtypes.float0:
        return None
    if _is_inexact(want):
        rtol = _RTOL.get(want.dtype.name, 1e-5) if rtol is None else rtol
        atol = rtol * _largest(_wide(want)) if atol is None else atol
    return _problem(have, Exercise(value=want, rtol=rtol or 0, atol=atol or 0))


def _relative(want, have):
    """The largest difference of two arrays that agree, relative to the largest magnitude in the
    first.
    """
    want, have = _wide(want), _wide(have)
    finite = np.isfinite(want)
    return _largest(want[finite] - have[finite]) / (_largest(want) or 1)


def _wide(array):
    return np.asarray(array).astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _largest(array):
    """The largest magnitude of an array's finite elements."""
    return float(np.max(np.abs(array), initial=0, where=np.isfinite(array)))


# --- Trees and messages ---------------------------------------------------------------------------


def _is_layout(leaf):
    return isinstance(leaf, (Sharding, PartitionSpec)) or leaf is None


def _is_inexact(leaf):
    return hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)


def _with_layouts(tree, layout, what):
    """The path, the leaf and the layout of each leaf; a layout holds for all below it."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    flat = []
    try:
        jax.tree.map(
            lambda spec, below: flat.extend([spec] * len(jax.tree.leaves(below))),
            layout,
            tree,
            is_leaf=_is_layout,
        )
    except (ValueError, TypeError, KeyError):
        tree_of_layout = jax.tree.structure(layout, is_leaf=_is_layout)
        raise ValueError(
            f"{what}: the layouts {tree_of_layout} do not fit the arrays {structure}"
        ) from None
    return [(path, leaf, spec) for (path, leaf), spec in zip(leaves, flat, strict=True)]


def _problem(have, exercise):
    """What `shardlab.exercises.check` finds wrong, without the heading that it begins with; None if
    it is right.
    """
    try:
        with redirect_stdout(io.StringIO()):
            check(have, exercise, strict=True)
    except WrongAnswer as error:
        return re.sub(r"^(values|layout): ", "", str(error))
    return None


def _raise(wrong, total, heading):
    __tracebackhide__ = True
    if wrong:
        lines = [
            f"  {place}: {problem}" if place else f"  {problem}"
            for place, problem in wrong[:_SHOWN]
        ]
        lines += [f"  and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        raise AssertionError(
            "\n".join(
                [f"{len(wrong)} {total} {'is' if len(wrong) == 1 else 'are'} {heading}:", *lines]
            )
        )


def _name(f):
    return getattr(f, "__name__", type(f).__name__)


def _sort(value):
    return (
        f"a {type(value).__name__} of {len(value)}"
        if isinstance(value, (tuple, list))
        else type(value).__name__
    )
