"""What `jax.jit` looks at in the arguments of a call, and what of it differs between two calls."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardlab._arguments import short

__all__ = ["differences", "leaves_of", "what_differs"]


def what_differs(f: Callable, call: Any, later: Any) -> tuple[list[str], list[str]]:
    """What differs between two calls of which neither runs: for this `f` compiles again.

    Args:
      f: the function.
      call, later: the arguments of each call, and those given by name. They may be
        `jax.ShapeDtypeStruct`s: one with a sharding is committed to its devices.

    Returns:
      The differences for which it compiles in any case, each with what to do; and those of numbers
      and of what is no array, which only matter where they are static.

    Raises:
      ValueError: an argument is deleted, as donated arrays are.
    """
    return differences(leaves_of(f, call, 1), leaves_of(f, later, 2))


@dataclass(frozen=True)
class _Leaf:
    """What `jit` looks at in an array or a number."""

    value: Any
    shape: tuple | None  # None: no array, such as a static argument
    dtype: str
    weak: bool
    committed: bool | None  # None: not of JAX
    sharding: Any
    layout: str


def leaves_of(f: Callable, call: Any, number: int) -> dict[str, Any]:
    """The arrays and numbers of a call by name, such as "batch['x']".

    Args:
      f: the function.
      call: its arguments, and those given by name.
      number: which call it is, for messages.

    Raises:
      ValueError: an argument is deleted, as donated arrays are.
    """
    args, kwargs = call
    named = _named(f, args, kwargs) if args else dict(kwargs)
    leaves = {}
    for name, value in named.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            place = f"{name}{jax.tree_util.keystr(path)}"
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise ValueError(
                    f"call {number}: {place} is deleted, perhaps because an earlier call donated "
                    "it; give each call an array of its own"
                )
            leaves[place] = _leaf(leaf)
        leaves[f"the tree of {name}"] = str(jax.tree.structure(value))
    return leaves


def _named(f, args, kwargs):
    try:
        return dict(inspect.signature(f).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # no signature, or another number of arguments
        return {f"argument {number}": value for number, value in enumerate(args)} | kwargs


def _leaf(value):
    try:
        like = jax.eval_shape(lambda one: one, value)
    except TypeError:
        return _Leaf(value, None, "", False, None, None, "")
    is_array = isinstance(value, jax.Array | jax.ShapeDtypeStruct)
    form = getattr(value, "format", None) if isinstance(value, jax.Array) else None
    order = getattr(getattr(form, "layout", None), "major_to_minor", "")
    return _Leaf(
        value if like.shape == () and not is_array else None,
        like.shape,
        str(like.dtype),
        bool(getattr(like, "weak_type", False)),
        getattr(value, "committed", value.sharding is not None) if is_array else None,
        value.sharding if is_array else None,
        str(order),
    )


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What differs between two calls, with what to do; and the values of numbers and of what is no
    array that differ.

    Args:
      before, after: as `leaves_of` returns them.
    """
    found, values = [], []
    for place in [*before, *(place for place in after if place not in before)]:
        one, other = before.get(place), after.get(place)
        if isinstance(one, str) or isinstance(other, str):  # a tree
            if one != other and one and other:
                found.append(f"{place}: {short(one)}, now {short(other)}: give it the same tree")
            continue
        if one is None or other is None:
            found.append(f"{place} is in {'this' if one is None else 'that'} call alone")
            continue
        found += [f"{place}: {how}" for how in _of_leaves(one, other)]
        if type(one.value) is not type(other.value) or not _equal(one.value, other.value):
            values.append(
                f"{place}: {short(one.value)}, now {short(other.value)}: if it is static, each "
                "value has a program of its own; give a number that changes as an array"
            )
    return found, values


def _equal(one, other):
    try:
        return bool(np.all(one == other))
    except Exception:  # a value of any class
        return one is other


def _of_leaves(one, other):
    if one.shape != other.shape and None not in (one.shape, other.shape):
        yield f"shape {one.shape}, now {other.shape}: pad it to one of a few shapes"
    if one.dtype != other.dtype:
        yield f"dtype {one.dtype}, now {other.dtype}: convert it before the call"
    elif one.weak != other.weak:
        kinds = ["of its own dtype", "weakly typed, as a Python number is"]
        yield f"{kinds[one.weak]}, now {kinds[other.weak]}: give it a dtype, as jnp.float32(x) does"
    if bool(one.committed) != bool(other.committed):
        kinds = ["on no device that it must stay on", "committed to its devices"]
        yield (
            f"{kinds[bool(one.committed)]}, now {kinds[bool(other.committed)]}: place it by "
            "jax.device_put in every call"
        )
    elif one.committed and not _same_sharding(one, other):
        before, now = _both_written(one.sharding, other.sharding)
        yield (
            f"sharding {before}, now {now}: place it by jax.device_put, or return it so by "
            "out_shardings"
        )
    elif (
        "" not in (one.layout, other.layout)  # as that of a jax.ShapeDtypeStruct is
        and one.layout != other.layout
        and one.shape == other.shape
        and one.committed
    ):
        yield f"layout {one.layout}, now {other.layout}: keep one order of its dimensions"


def _same_sharding(one, other):
    """Whether shardings are one to a compiler: P("d") and P("d", None) are, on one mesh."""
    if one.shape != other.shape:
        return len({*_both_written(one.sharding, other.sharding)}) == 1
    pair = [leaf.sharding for leaf in (one, other)]
    meshes = [getattr(sharding, "mesh", None) for sharding in pair]
    if None not in meshes and any(isinstance(mesh, AbstractMesh) for mesh in meshes):
        pair = [_without_devices(sharding) for sharding in pair]  # they are not known
        meshes = [sharding.mesh for sharding in pair]
    # jit compiles for the names and the order of a mesh, also where the shards are the same
    return meshes[0] == meshes[1] and pair[0].is_equivalent_to(pair[1], len(one.shape))


def _without_devices(sharding):
    mesh = sharding.mesh
    abstract = AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types)
    return NamedSharding(abstract, sharding.spec)


def _both_written(one, other):
    """The words of two shardings, with what else of them differs: where their bytes are, and the
    order of their devices.
    """
    words, pair = [_written(one), _written(other)], (one, other)
    if one.memory_kind != other.memory_kind and None not in (one.memory_kind, other.memory_kind):
        words = [f"{w} in {s.memory_kind} memory" for w, s in zip(words, pair, strict=True)]
    if words[0] == words[1] and all(isinstance(s, NamedSharding) for s in pair):
        orders = [_devices(s.mesh) for s in pair]
        places = (n for n, (a, b) in enumerate(zip(*orders, strict=False)) if a != b)
        if (place := next(places, None)) is not None:
            words = [
                f"{w}, device {place} of which is {order[place]}"
                for w, order in zip(words, orders, strict=True)
            ]
    return words


def _devices(mesh):
    """The devices of a mesh in its order; none of an abstract one."""
    return list(mesh.devices.flat) if isinstance(mesh, Mesh) else []


def _written(sharding):
    if not isinstance(sharding, NamedSharding):
        return f"on {', '.join(sorted(map(str, sharding.device_set)))}"
    axes = ", ".join(f"{name}: {size}" for name, size in sharding.mesh.shape.items())
    kinds = ", ".join(str(getattr(kind, "name", kind)) for kind in sharding.mesh.axis_types)
    return f"P{tuple(sharding.spec)} on a mesh of {axes} ({kinds})"
