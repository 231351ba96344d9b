"""Describe, in plain data, which device stores which shard of an array.

Everything here is arithmetic on names and numbers. No array is moved, and a layout over 4,096 chips
can be described on a laptop that has none of them.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Any, overload

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from jax.typing import DTypeLike

from shardlab._arguments import MOST, short

__all__ = [
    "Layout",
    "MeshLayout",
    "Shard",
    "describe",
    "device_number",
    "index_text",
    "same_layout",
]


@dataclass(frozen=True)
class MeshLayout:
    """A mesh as plain data: its axes, and the devices in row-major order.

    A 2x4 mesh with axes x and y has `axes == (("x", 2), ("y", 4))` and eight `devices`;
    the device at x=1, y=2 is `devices[1 * 4 + 2]`.

    >>> describe(mesh)
    MeshLayout(axes=(('x', 2), ('y', 4)), devices=(0, 1, 2, 3, 4, 5, 6, 7))
    """

    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of devices along each axis, such as `(2, 4)`."""
        return tuple(size for _, size in self.axes)


@dataclass(frozen=True)
class Shard:
    """The part of an array that one device stores.

    >>> describe(NamedSharding(mesh, P("x", "y")), (4, 16)).shards[6]
    Shard(device=6, index=((2, 4), (8, 12)), replica=0, position=(1, 2))

    Attributes:
      device: the device's number, see `device_number`.
      index: a `(start, stop)` pair for each dimension of the array.
      replica: 0 for the first device that stores this slice, or a partial sum of it, 1 for the
        second, and so on.
      position: which shard it is along each dimension, such as (0, 2): the first along rows, the
        third along columns.
    """

    device: int
    index: tuple[tuple[int, int], ...]
    replica: int
    position: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the shard: stop minus start, for each dimension."""
        return tuple(stop - start for start, stop in self.index)


@dataclass(frozen=True)
class Layout:
    """Which device stores which shard of one array.

    >>> held = describe(NamedSharding(mesh, P("x", None)), (4, 16))
    >>> held.type, held.shard_shape, held.replicas, held.nbytes
    ('f32[4@x, 16]', (2, 16), 4, 256)
    >>> held.bytes_per_device[5]
    128

    Attributes:
      shape: the global shape of the array.
      dtype: the name of its element type, such as `"float32"`.
      mesh: the mesh that it is placed on, or None if its sharding names none.
      spec: for each dimension the mesh axes over which it is sharded, such as `(("x",), ())`;
        None if the sharding names no mesh.
      shards: one `Shard` for each device, in the order of the mesh.
      unreduced: the mesh axes along which the devices store partial sums: an element is the sum of
        theirs.
      unreduced_kind: "sum", or "max" or "min" where an element is the maximum or the minimum of
        theirs.
      reduced: the mesh axes along which its gradient is unreduced.
      memory: the kind of memory that stores it, such as "pinned_host"; None for the devices' own
        memory.
    """

    shape: tuple[int, ...]
    dtype: str
    mesh: MeshLayout | None
    spec: tuple[tuple[str, ...], ...] | None
    shards: tuple[Shard, ...]
    unreduced: tuple[str, ...] = ()
    memory: str | None = None
    unreduced_kind: str = "sum"
    reduced: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        """The numbers of the devices, in the order of the mesh."""
        return tuple(shard.device for shard in self.shards)

    @cached_property  # drawing asks it for each device
    def replicas(self) -> int:
        """How many devices store each element, or each partial sum of it: 1 if nothing is
        replicated.
        """
        return (1 + max(shard.replica for shard in self.shards)) // self.partial_sums

    @property
    def partial_sums(self) -> int:
        """How many partial sums, on as many devices, make an element: 1 if the array is not
        unreduced.
        """
        return (
            math.prod(size for axis, size in self.mesh.axes if axis in self.unreduced)
            if self.unreduced
            else 1
        )

    @property
    def distinct_shards(self) -> int:
        """How many slices there are; `distinct_shards * partial_sums * replicas` is the number of
        devices.
        """
        return len(self.shards) // (self.partial_sums * self.replicas)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The local shape: that of one device's shard; of the largest, where they differ."""
        return tuple(map(max, zip(*(shard.shape for shard in self.shards), strict=True)))

    @property
    def itemsize(self) -> float:
        """Bytes in one element; 0.5 for types of four bits, such as int4, of which JAX stores two
        in a byte.
        """
        return itemsize(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the array itself, each element counted once."""
        return math.ceil(math.prod(self.shape) * self.itemsize)

    @property
    def bytes_per_device(self) -> dict[int, int]:
        """Bytes that each device stores, by device number."""
        return {
            shard.device: math.ceil(math.prod(shard.shape) * self.itemsize) for shard in self.shards
        }

    @property
    def total_bytes(self) -> int:
        """Bytes on all devices together: `nbytes` for each replica of each partial sum."""
        return sum(self.bytes_per_device.values())

    @property
    def owners(self) -> dict[tuple[tuple[int, int], ...], tuple[int, ...]]:
        """The numbers of the devices that store each slice, as a dict from index to numbers."""
        owners = {}
        for shard in self.shards:
            owners.setdefault(shard.index, []).append(shard.device)
        return {index: tuple(ids) for index, ids in owners.items()}

    @property
    def type(self) -> str:
        """The array's type with its layout: `f32[16, 32@x]` has 32 columns, sharded over mesh axis
        x.

        `f32[16, 32]{U:x}` is unreduced over x, and `{R:x}` reduced, as JAX writes it.
        """
        spec = self.spec or ((),) * len(self.shape)
        dims = (
            f"{size}@{axes_text(axes)}" if axes else f"{size}"
            for size, axes in zip(self.shape, spec, strict=True)
        )
        marks = ", ".join(
            f"{mark}:{','.join(axes)}"
            for mark, axes in (("U", self.unreduced), ("R", self.reduced))
            if axes
        )
        return f"{short_dtype(self.dtype)}[{', '.join(dims)}]" + (f"{{{marks}}}" if marks else "")

    @property
    def partials(self) -> str:
        """What devices store of an unreduced array, in words: "partial sums", "partial maxima" or
        "partial minima".
        """
        return f"partial { {'max': 'maxima', 'min': 'minima'}.get(self.unreduced_kind, 'sums') }"

    def __str__(self) -> str:
        """One line, such as "f32[4@x, 16]: local shape (2, 16), 2 shards × 4 replicas on 8 devices,
        128 bytes each".
        """
        sizes = self.bytes_per_device.values()
        each = "" if len(self.shards) == 1 else " each" if len(set(sizes)) == 1 else " at most"
        replicas = f" × {self.partial_sums:,} {self.partials}" if self.unreduced else ""
        replicas += f" × {self.replicas:,} replicas" if self.replicas > 1 else ""
        return (
            f"{self.type}: local shape {self.shard_shape}, "
            f"{counted(self.distinct_shards, 'shard')}{replicas} on "
            f"{counted(len(self.shards), 'device')}, {counted(max(sizes), 'byte')}{each}"
        ) + (f", in {self.memory} memory" if self.memory else "")


@overload
def describe(thing: Mesh | AbstractMesh | MeshLayout) -> MeshLayout: ...
@overload
def describe(
    thing: Any,
    shape: Sequence[int] | None = None,
    dtype: DTypeLike = "float32",
    *,
    uneven: bool = False,
) -> Layout: ...
def describe(
    thing: Any,
    shape: Sequence[int] | None = None,
    dtype: DTypeLike = "float32",
    *,
    uneven: bool = False,
) -> Layout | MeshLayout:
    """Describe the layout of an array, of a sharding with a shape, or of a mesh.

    On a 2x4 mesh with axes x and y, a float32 array of shape (4, 16) sharded as `PartitionSpec("x",
    "y")` has 8 shards of local shape (4/2, 16/4) = (2, 4), 2 * 4 * 4 = 32 bytes on each device, and
    no replicas. Sharded as `PartitionSpec("x", None)` it has 2 shards of local shape (2, 16), 128
    bytes on each device, and 4 replicas of each shard.

    >>> a = jax.device_put(jnp.zeros((4, 16)), NamedSharding(mesh, P("x", "y")))
    >>> print(describe(a))
    f32[4@x, 16@y]: local shape (2, 4), 8 shards on 8 devices, 32 bytes each
    >>> describe(NamedSharding(mesh, P("x", None)), (4, 16)).replicas
    4

    Args:
      thing: a `jax.Array` or anything else with a shape, a dtype and a sharding (such as a
        `jax.ShapeDtypeStruct`); or a `jax.sharding.Sharding`; or a `Mesh` or `AbstractMesh`. Inside
        `jax.jit` also an array whose type says its sharding, because all axes of the mesh are
        explicit.
      shape: the array's global shape, where `thing` is a sharding.
      dtype: its element type, where `thing` is a sharding; only bytes depend on it.
      uneven: where the size of a dimension is no multiple of its number of devices, describe what
        XLA does inside a compiled program (shards of the rounded-up size, the last ones shorter or
        empty) instead of raising the error that JAX raises for arrays.

    Returns:
      A `Layout`, or a `MeshLayout` for a mesh. The devices of an `AbstractMesh`, which has none of
      its own, are numbered from 0.

    Raises:
      ValueError: the array cannot be sharded like this; JAX refuses the same cases. Or a size is no
        whole number.
      TypeError: `thing` is none of these, or its sharding is not known; the message names the next
        step.
    """
    if isinstance(thing, (Layout, MeshLayout)):
        return thing
    if isinstance(thing, (Mesh, AbstractMesh)):
        return _mesh_layout(thing)
    if isinstance(thing, Sharding):
        if shape is None:
            raise TypeError(
                "describe(sharding, shape) needs the shape of the array, such as (4, 16)"
            )
        sharding, shape = thing, _sizes(shape)
    else:
        sharding = _sharding_of(thing)
        if sharding is None:
            raise TypeError(_no_layout(thing))
        shape, dtype = tuple(thing.shape), thing.dtype
    dtype = _dtype_name(dtype)
    if isinstance(sharding, NamedSharding):
        return _named(sharding, shape, dtype, uneven)
    return _other(sharding, shape, dtype)


def _sizes(shape):
    """A shape, whose sizes are whole numbers."""
    if not isinstance(shape, Iterable) or isinstance(shape, str):
        raise TypeError(f"the shape is {short(shape)}; use a tuple of sizes, such as (4, 16)")
    sizes = tuple(shape)
    for size in sizes:
        try:
            good = 0 <= operator.index(size) <= MOST
        except TypeError:
            good = False
        if not good:
            raise ValueError(
                f"the shape has the size {short(size)}; use whole numbers from 0 to {MOST:,}, "
                "such as (4, 16)"
            )
    return tuple(map(int, sizes))


def same_layout(array: Any, other: Any) -> bool:
    """Whether two layouts store the same slice on every device.

    `same_layout(z, PartitionSpec("y"))` asks whether `z` is sharded over mesh axis y of the mesh
    that it is placed on. Shardings are compared by what they do, not by how they print: on a 2x4
    mesh, `P("x")` and `P("x", None)` are the same layout of a matrix.

    Two layouts with the same slices differ if they are in different kinds of memory, or if one of
    them stores partial sums. A `PartitionSpec` says nothing about memory.

    >>> a = jax.device_put(jnp.zeros((4, 16)), NamedSharding(mesh, P("x")))
    >>> same_layout(a, P("x", None)), same_layout(a, P("y"))
    (True, False)

    Args:
      array: a `jax.Array`, or anything else that `describe` takes without a shape.
      other: a `PartitionSpec` (read on the array's own mesh), a sharding, or an array.

    Returns:
      True or False.

    Raises:
      TypeError: `array` or `other` has no layout, as in `describe`; or `other` is a
        `PartitionSpec`, but the sharding of `array` names no mesh.
    """
    mine = describe(array)
    if isinstance(other, PartitionSpec):
        sharding = _sharding_of(array)
        if not isinstance(sharding, NamedSharding):
            raise TypeError(
                f"{other} needs a mesh to be read on, but the array has a "
                f"{type(sharding or array).__name__}; compare with a NamedSharding instead"
            )
        other = NamedSharding(sharding.mesh, other, memory_kind=sharding.memory_kind)
    if isinstance(other, Sharding):
        other = describe(other, mine.shape, mine.dtype)
    return _stored(mine) == _stored(describe(other))


def _stored(layout):
    if isinstance(layout, MeshLayout):
        raise TypeError(
            f"same_layout() compares arrays and shardings, not a mesh of shape {layout.shape}"
        )
    where = {shard.device: shard.index for shard in layout.shards}
    return layout.shape, where, set(layout.unreduced), layout.unreduced_kind, layout.memory


def _sharding_of(thing):
    """The sharding of an array, or of anything like one; of a type or a traced array, if all its
    axes are explicit.
    """
    if isinstance(thing, (jax.core.Tracer, jax.core.ShapedArray)):
        sharding = (
            jax.typeof(thing).sharding if isinstance(thing, jax.core.Tracer) else thing.sharding
        )
        return sharding if set(sharding.mesh.axis_types) == {AxisType.Explicit} else None
    sharding = getattr(thing, "sharding", None)
    return sharding if isinstance(sharding, Sharding) else None


def _no_layout(thing):
    """Why a thing has no layout, and what to do next."""
    kind = type(thing).__name__
    if isinstance(thing, jax.core.Tracer):
        aval = jax.typeof(thing)
        if AxisType.Manual in aval.sharding.mesh.axis_types:
            return (
                f"describe() was called inside shard_map, where {aval.str_short()} is what "
                "one device stores; describe the array that is passed to shard_map, or its "
                "result"
            )
        return (
            f"describe() was called on {aval.str_short()} inside jax.jit or another "
            "transformation, where the compiler has not chosen a layout yet; describe the "
            "result outside, pass a callback to jax.debug.inspect_array_sharding, or use a "
            "mesh with explicit axes"
        )
    if isinstance(thing, jax.core.ShapedArray):
        return (
            f"the type {thing.str_short()} says no sharding, because not all axes of its mesh "
            "are explicit; describe the array itself"
        )
    if isinstance(thing, jax.ShapeDtypeStruct):
        name = (
            jax.numpy.dtype(thing.dtype).name if str(thing.dtype) not in _KEY_BYTES else thing.dtype
        )
        return (
            f"ShapeDtypeStruct({thing.shape}, {name}) has no sharding; make it with "
            "sharding=NamedSharding(mesh, PartitionSpec(...)), or use describe(sharding, shape)"
        )
    words = f"describe() takes a jax.Array, a sharding with a shape, or a mesh, not {kind}"
    if isinstance(thing, np.ndarray):
        return f"{words}; a NumPy array is stored on no device: jax.device_put it first"
    if isinstance(thing, PartitionSpec):
        return (
            f"{words}; a spec has a layout on a mesh: describe(NamedSharding(mesh, {thing}), shape)"
        )
    leaves = jax.tree.leaves(thing)
    if any(hasattr(leaf, "sharding") for leaf in leaves) and leaves[0] is not thing:
        return (
            f"{words} of {len(leaves):,} arrays; for a layout of each of them: "
            "jax.tree.map(describe, ...)"
        )
    return words


def index_text(index: tuple[tuple[int, int], ...]) -> str:
    """A shard's index as NumPy writes slices.

    >>> from shardlab.arrays.layout import index_text
    >>> index_text(((0, 2), (4, 8)))
    '[0:2, 4:8]'
    """
    return f"[{', '.join(f'{start}:{stop}' for start, stop in index)}]"


def device_number(device: jax.Device) -> int:
    """The number that a device has in pictures and layouts: its position among `jax.devices()`, in
    the order of ids.

    On GPUs and TPUs that is the id. CPU devices of several processes have ids that are far apart:
    the first of process 3 is 6144, and its number is 3 if each process has one.

    >>> from shardlab.arrays.layout import device_number
    >>> device_number(mesh.devices[1, 2])
    6
    """
    return _places().get(device, int(device.id))


@cache
def _places():
    return {
        device: place
        for place, device in enumerate(sorted(jax.devices(), key=lambda device: device.id))
    }


def _mesh_layout(mesh):
    axes = tuple((str(name), int(size)) for name, size in mesh.shape.items())
    if isinstance(mesh, Mesh):
        devices = tuple(device_number(device) for device in mesh.devices.flat)
    else:
        devices = tuple(range(math.prod(size for _, size in axes)))
    return MeshLayout(axes, devices)


def _named(sharding, shape, dtype, uneven):
    mesh = _mesh_layout(sharding.mesh)
    sizes = dict(mesh.axes)
    spec = _axes_of(sharding.spec, len(shape))

    # For each dimension, the slice that each position along its mesh axes holds.
    intervals = []
    for dim, (size, axes) in enumerate(zip(shape, spec, strict=True)):
        parts = math.prod(sizes[axis] for axis in axes)
        if size % parts and not uneven:
            raise ValueError(
                f"mesh axis {axes_text(axes)} has {parts} devices but dimension {dim} of "
                f"shape {shape} has size {size}; use a multiple of {parts}, or leave this "
                "dimension unsharded"
            )
        step = -(-size // parts)
        intervals.append([(min(i * step, size), min((i + 1) * step, size)) for i in range(parts)])

    # A device's position along a sharded dimension, from its coordinates: the first axis is the
    # major one.
    names = [name for name, _ in mesh.axes]
    over = [[(names.index(axis), sizes[axis]) for axis in axes] for axes in spec]
    used = {axis for axes in spec for axis in axes}
    spare = [
        (position, size) for position, (name, size) in enumerate(mesh.axes) if name not in used
    ]

    shards = []
    for device, place in zip(mesh.devices, product(*map(range, mesh.shape)), strict=True):
        position = tuple(_row_major(place, axes) for axes in over)
        index = tuple(slices[at] for slices, at in zip(intervals, position, strict=True))
        shards.append(Shard(device, index, _row_major(place, spare), position))
    unreduced, reduced = (
        tuple(name for name in names if name in (getattr(sharding.spec, kind, None) or ()))
        for kind in ("unreduced", "reduced")
    )
    kind = getattr(getattr(sharding.spec, "unreduced_kind", None), "name", "sum")
    return Layout(
        shape, dtype, mesh, spec, tuple(shards), unreduced, _memory(sharding), kind, reduced
    )


def _memory(sharding):
    """The kind of memory, if it is not the one that arrays are stored in by default."""
    kind = sharding.memory_kind
    if kind in (None, "device"):
        return None
    real = not isinstance(getattr(sharding, "mesh", None), AbstractMesh)
    usual = (
        next((device.default_memory().kind for device in sharding.addressable_devices), None)
        if real
        else None
    )
    return None if kind == usual else kind


def _axes_of(spec, ndim):
    """A PartitionSpec as one tuple of axis names for each dimension."""
    # newer specs with unreduced axes refuse to be iterated over
    entries = tuple(getattr(spec, "partitions", spec))
    if len(entries) > ndim:
        raise ValueError(
            f"{spec} has {len(entries)} entries, but the array has {ndim} dimension(s); drop "
            "the last ones"
        )
    dims = []
    for entry in entries:
        if entry is PartitionSpec.UNCONSTRAINED:
            raise ValueError(
                f"{spec} leaves a dimension unconstrained; a layout needs None or axis names there"
            )
        dims.append(() if entry is None else tuple(entry) if isinstance(entry, tuple) else (entry,))
    return tuple(dims) + ((),) * (ndim - len(dims))


def _other(sharding, shape, dtype):
    """Any sharding that names no mesh, by JAX's own map from devices to slices."""
    slices_of_device = {
        device_number(device): tuple(
            part.indices(size)[:2] for part, size in zip(parts, shape, strict=True)
        )
        for device, parts in sharding.devices_indices_map(shape).items()
    }
    slices = [
        sorted({index[dim] for index in slices_of_device.values()}) for dim in range(len(shape))
    ]
    shards, seen = [], {}
    for device, index in slices_of_device.items():
        position = tuple(slices[dim].index(part) for dim, part in enumerate(index))
        shards.append(Shard(device, index, seen.get(index, 0), position))
        seen[index] = seen.get(index, 0) + 1
    return Layout(shape, dtype, None, None, tuple(shards), memory=_memory(sharding))


def counted(number, noun):
    """A number of things in words: "1 device", "4,096 devices"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def bytes_text(count, exact=10_000):
    """Bytes in words, with three digits: "393 kB"; fewer than `exact` exactly: "2,048 bytes"; None
    is unknown.
    """
    if count is None:
        return "an unknown number of bytes"
    if count < exact:
        return f"{count:,} bytes"
    size, unit = next(
        (s, u)
        for s, u in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
        if count >= 0.9995 * s
    )
    return f"{count / size:,.3g} {unit}"


def _row_major(place, axes):
    position = 0
    for axis, size in axes:
        position = position * size + place[axis]
    return position


def axes_text(axes):
    """Mesh axes as they stand in a type: "x", or "(x,y)"; "" for none."""
    return axes[0] if len(axes) == 1 else f"({','.join(axes)})" if axes else ""


# Typed PRNG keys are no NumPy dtype: threefry keys are two 32-bit words, the others four.
_KEY_BYTES = {"key<fry>": 8, "key<rbg>": 16, "key<urbg>": 16}


def _dtype_name(dtype):
    return str(dtype) if str(dtype) in _KEY_BYTES else jax.numpy.dtype(dtype).name


def itemsize(dtype):
    """Bytes of an element, by the name of its type: 2 for "bfloat16", 0.5 for "int4", 8 for the key
    type "key<fry>".
    """
    if dtype in _KEY_BYTES:
        return _KEY_BYTES[dtype]
    kind = jax.numpy.dtype(dtype)
    bits = 8 * kind.itemsize
    for family, info in (
        (jax.numpy.integer, jax.numpy.iinfo),
        (jax.numpy.floating, jax.numpy.finfo),
    ):
        if jax.numpy.issubdtype(kind, family):
            bits = info(kind).bits  # NumPy gives each element of four bits a byte
    return bits // 8 if bits % 8 == 0 else bits / 8


def short_dtype(dtype):
    """The name of an element's type as JAX prints it in types: "bf16" for "bfloat16"."""
    for name, letters in (
        ("bfloat", "bf"),
        ("float", "f"),
        ("uint", "u"),
        ("int", "i"),
        ("complex", "c"),
    ):
        if dtype.startswith(name):
            return dtype.replace(name, letters, 1)
    return dtype


def axes_named(spec):
    """The mesh axes that a `PartitionSpec` shards over or has yet to add up along: `P("x", None)`
    names x.
    """
    entries = getattr(spec, "partitions", spec)
    axes = {
        axis for axes in entries if axes for axis in ((axes,) if isinstance(axes, str) else axes)
    }
    return axes | {*(getattr(spec, "unreduced", None) or ())}


def spec_text(spec):
    """A `PartitionSpec`, or its tuple, as Python: `P("data", None)`, or `P(None,
    unreduced={'data'})`.
    """

    def entry(axes):
        if axes is None:
            return "None"
        return (
            f'"{axes}"'
            if isinstance(axes, str)
            else "(" + ", ".join(f'"{axis}"' for axis in axes) + ")"
        )

    entries = list(map(entry, getattr(spec, "partitions", spec)))
    for kind in ("unreduced", "reduced"):
        if axes := sorted(getattr(spec, kind, None) or ()):
            entries.append(f"{kind}={{{', '.join(repr(axis) for axis in axes)}}}")
    if (unreduced := getattr(getattr(spec, "unreduced_kind", None), "name", "sum")) != "sum":
        entries.append(f"unreduced_kind={unreduced}")
    return f"P({', '.join(entries)})"
