"""The transfers of a function that uses several meshes, with the collectives of its programs.

A compiled program has one set of devices. A function with two meshes is therefore several programs,
with `jax.device_put`s between them. We trace it, compile each program for the layouts that reach
it, and list the `device_put`s with the layouts before and after. Nothing runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from shardlab._tables import aligned, html_table
from shardlab.programs.collectives import Collectives, collectives, compile_for

__all__ = ["Transfer", "Transfers", "transfers"]

_COLUMNS = ("program or array", "sends", "from", "to", "bytes")


@dataclass(frozen=True)
class Transfer:
    """An array that `jax.device_put` moves into another layout, or to another mesh.

    Attributes:
      array: its type, such as "f32[8,16]".
      before, after: its shardings.
      bytes: what the device that lacks most of its new shard has to receive: the bytes of the new
        shard without those that the device stores already.
      through_host: whether JAX fetches the whole array to the host and sends it out again. It does
        where the array is on several devices and none of them stores exactly the shard that
        another one needs.
    """

    array: str
    before: Sharding
    after: Sharding
    bytes: int
    through_host: bool


@dataclass(frozen=True)
class Transfers:
    """What a function of several meshes sends: within its programs, and between them.

    Attributes:
      steps: in the order of the function: a `Transfer`, or a pair of the name of a program and its
        `Collectives`. Programs without communication are left out.
    """

    steps: tuple[Transfer | tuple[str, Collectives], ...]

    @property
    def moves(self) -> tuple[Transfer, ...]:
        """The transfers alone."""
        return tuple(step for step in self.steps if isinstance(step, Transfer))

    @property
    def programs(self) -> tuple[tuple[str, Collectives], ...]:
        """The programs that communicate, each by its name and its `Collectives`."""
        return tuple(step for step in self.steps if not isinstance(step, Transfer))

    @property
    def bytes(self) -> int:
        """The bytes of all transfers, without those of collectives."""
        return sum(move.bytes for move in self.moves)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for step in self.steps:
            if isinstance(step, Transfer):
                word = "device_put" + (", through the host" if step.through_host else "")
                ends = map(_layout, (step.before, step.after))
                yield step.array, word, *ends, f"{step.bytes:,}"
            else:
                name, found = step
                kinds = ", ".join(
                    f"{kind} {'?' if times is None else times}x" for kind, times in found.items()
                )
                size = "only the run decides" if found.bytes is None else f"{found.bytes:,}"
                yield name, kinds, "", "", size

    def __str__(self) -> str:
        return aligned([_COLUMNS, *self._rows()]) if self.steps else "no communication"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(_COLUMNS, self._rows(), code=0) if self.steps else str(self)


def transfers(f: Callable, *args: Any, **kwargs: Any) -> Transfers:
    """The transfers between the layouts and meshes of `f(*args)`, and its collectives.

    Below, an array of 512 bytes goes to four other devices, of which each wants a quarter of its
    columns: 512 / 4 = 128 bytes. `change` makes these shards first, on the devices that store the
    rows, so that `jax.device_put` finds each of them. Without it the array goes through the host.

    >>> auto, by_rows, by_columns = (AxisType.Auto,), P("d"), P(None, "d")
    >>> first = jax.make_mesh((4,), ("d",), axis_types=auto, devices=jax.devices()[:4])
    >>> second = jax.make_mesh((4,), ("d",), axis_types=auto, devices=jax.devices()[4:])
    >>> a = jax.device_put(jnp.ones((8, 16)), NamedSharding(first, by_rows))
    >>> change = jax.jit(lambda a: 2 * a, out_shardings=NamedSharding(first, by_columns))
    >>> transfers(lambda a: jax.device_put(change(a), NamedSharding(second, by_columns)), a)
    program or array  sends          from                           to                             bytes
    <lambda>          all-to-all 1x                                                                96
    f32[8,16]         device_put     P(None, 'd') on devices 0 to 3  P(None, 'd') on devices 4 to 7  128
    >>> transfers(lambda a: jax.device_put(a, NamedSharding(second, by_columns)), a).moves[0].through_host
    True

    Args:
      f: a function in Python, whose parts are jitted, and which calls `jax.device_put` between
        them.
      *args, **kwargs: arrays, or `jax.ShapeDtypeStruct`s with shardings, which need no memory. Of
        arrays that are committed to no device, such as NumPy's, no transfer is listed.

    Returns:
      `Transfers`: printed, a row for each array that moves, and for each program that communicates.

    Raises:
      TypeError: `f` is no function.
      ValueError: a program gets arrays on different devices, or moves one to other devices inside.
    """  # noqa: E501
    if not callable(f):
        raise TypeError(
            f"transfers() takes a function and its arguments, not {type(f).__name__}; for example "
            "transfers(sync, weights)"
        )
    closed = jax.make_jaxpr(f)(*args, **kwargs)
    program, inputs = closed.jaxpr, jax.tree.leaves((args, kwargs))
    layouts = dict(zip(program.invars, map(_committed, inputs), strict=True))
    layouts |= zip(program.constvars, map(_committed, closed.consts), strict=True)
    steps = []
    for equation in program.eqns:
        before = [None if _is_literal(atom) else layouts.get(atom) for atom in equation.invars]
        after = [None] * len(equation.outvars)
        if equation.primitive.name == "device_put":
            after = [
                old if new is None else new
                for old, new in zip(before, map(_sharding, equation.params["devices"]), strict=True)
            ]
            for atom, *ends in zip(equation.invars, before, after, strict=True):
                steps += [] if ends[0] is None else _moved(atom.aval, *ends)
        elif any(before) or any(map(_names_devices, jax.tree.leaves([*equation.params.values()]))):
            found, after = _compiled(closed, equation, layouts)
            name = str(equation.params.get("name", equation.primitive.name))
            steps += [(name, found)] if found else []
        layouts |= zip(equation.outvars, after, strict=True)
    return Transfers(tuple(steps))


def _is_literal(atom):
    return isinstance(atom, jax.extend.core.Literal)


def _committed(leaf):
    """The sharding of an argument, if it is committed to its devices."""
    if isinstance(leaf, jax.Array):
        return leaf.sharding if leaf.committed else None
    return getattr(leaf, "sharding", None) if isinstance(leaf, jax.ShapeDtypeStruct) else None


def _sharding(device):
    """The target of a `device_put` as a sharding; None if it names no devices."""
    return SingleDeviceSharding(device) if isinstance(device, jax.Device) else device


def _names_devices(value):
    return isinstance(value, (Sharding, Mesh))


def _compiled(closed, equation, layouts):
    """The collectives of the program of an equation, and the shardings of its results."""
    values = list(dict.fromkeys(atom for atom in equation.invars if not _is_literal(atom)))
    alone = closed.jaxpr.replace(
        constvars=[],
        invars=values,
        outvars=equation.outvars,
        eqns=[equation],
        debug_info=closed.jaxpr.debug_info._replace(
            arg_names=("",) * len(values), result_paths=("",) * len(equation.outvars)
        ),
    )
    structs = [
        jax.ShapeDtypeStruct(value.aval.shape, value.aval.dtype, sharding=layouts.get(value))
        for value in values
    ]
    run = jax.extend.core.jaxpr_as_fun(closed.replace(jaxpr=alone, consts=[]))
    compiled = compile_for(run, *structs)
    return collectives(compiled), jax.tree.leaves(compiled.output_shardings)


def _moved(aval, before, after):
    """The transfer of one array, in a list; an empty one if nothing moves."""
    shape = aval.shape
    has, needs = (
        {device: _ranges(index, shape) for device, index in one.devices_indices_map(shape).items()}
        for one in (before, after)
    )
    lacks = max(_size(new) - _size(_common(new, has.get(device))) for device, new in needs.items())
    is_known = len(has) == 1 or set(needs.values()) <= set(has.values())
    if not lacks and is_known:
        return []
    size = lacks * np.dtype(aval.dtype).itemsize if hasattr(aval.dtype, "itemsize") else lacks
    return [
        Transfer(
            jax.core.ShapedArray(shape, aval.dtype).str_short(True),
            before,
            after,
            size,
            not is_known,
        )
    ]


def _ranges(index, shape):
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _common(new, own):
    """The ranges that two shards have in common; none of them if a device stores no shard."""
    if own is None:
        return ((0, 0), *new)
    starts = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(new, own, strict=True)]
    return tuple((start, max(start, stop)) for start, stop in starts)


def _size(ranges):
    return int(np.prod([stop - start for start, stop in ranges], dtype=object))


def _layout(sharding):
    """Words such as "P('d') on devices 0 to 3"."""
    numbers = sorted(device.id for device in sharding.device_set)
    spec = str(sharding.spec) if isinstance(sharding, NamedSharding) else "whole"
    spec = spec.replace("PartitionSpec", "P").replace(",)", ")")
    if len(numbers) == 1:
        return f"{spec} on device {numbers[0]}"
    if numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{spec} on devices {numbers[0]} to {numbers[-1]}"
    return f"{spec} on {len(numbers)} devices"
