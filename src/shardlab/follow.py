"""Follow chunks of data through the program of a device: which device holds which chunk, step by step.

Every device gets chunks that are marked with its position, the program runs, and the marks then say what each device
holds: a chunk of another device, or a sum of several. `shardlab.draw` makes the picture.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from string import ascii_lowercase

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

__all__ = ["Flow", "Frame", "follow"]

_MOST = 8  # devices, and chunks of each: as many as a picture can show


@dataclass(frozen=True)
class Frame:
    """What every device holds at one moment.

    Attributes:
      title: "before", "after", "start", "step 1" and so on.
      slots: for each device its slots, and for each slot its terms, as (device, chunk, how
        often): `((2, 0, 1),)` is the first chunk of the device at position 2, and `()` an empty slot.
    """

    title: str
    slots: tuple[tuple[tuple[tuple[int, int, int], ...], ...], ...]


@dataclass(frozen=True)
class Flow:
    """What a program communicates, as frames.

    Attributes:
      devices: the ids of the devices, by their position in the flattened mesh.
      chunks: how many chunks each device had at the start.
      frames: a `Frame` for each moment.
    """

    devices: tuple[int, ...]
    chunks: int
    frames: tuple[Frame, ...]

    def name(self, parts):
        """What a slot holds, in a few letters: "b2" is the second chunk of device 2, "Σb" its sum over all devices."""
        owners, letters = [owner for owner, _, _ in parts], {chunk for _, chunk, _ in parts}
        letter = ascii_lowercase[parts[0][1]] if len(letters) == 1 and self.chunks > 1 else ""
        if len(letters) > 1 or any(times > 1 for *_, times in parts):
            if len(parts) > 3:
                return f"{len(parts)} parts"
            return "+".join(f"{times}×" * (times > 1) + self.name(((owner, p, 1),)) for owner, p, times in parts)
        if len(owners) == len(self.devices) > 1:
            return f"Σ{letter}"
        if len(owners) > 3:
            return f"{letter} {len(owners)}/{len(self.devices)}".strip()
        return letter + "+".join(str(self.devices[owner]) for owner in owners)


def follow(program, mesh, *, chunks=1, steps=None):
    """Run a device's program on marked chunks, and find out which device then holds which chunk.

    On a mesh of 4 devices, `follow(lambda x: lax.all_gather(x, "d", tiled=True), mesh)` has a frame "before",
    in which each device holds its own chunk, and a frame "after", in which each holds all four.

    Args:
      program: what one device does with its chunks, as `jax.shard_map` takes it: a function from an array whose
        rows are the chunks to an array whose rows are what the device holds afterwards. It may move and add rows,
        and must treat all chunks alike: no maximum, no square. If `steps` is given it is called as
        `program(x, steps=k)` and must stop after k steps.
      mesh: a mesh of at most 8 devices.
      chunks: how many chunks each device has, from 1 to 8.
      steps: show the moments after 0, 1, ..., `steps` steps; without it those before and after the program.

    Returns:
      A `Flow`; `shardlab.draw.draw` draws it.

    Raises:
      TypeError: the program is not a function, the mesh not a mesh, or a number not a whole number.
      ValueError: there are too many devices or chunks, or the program does more with chunks than move and add them.
    """
    if not isinstance(program, Callable):
        raise TypeError(f"program must be a function of one device's chunks, not {type(program).__name__}")
    if not isinstance(mesh, jax.sharding.Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, not {type(mesh).__name__}; jax.make_mesh makes one")
    for number, what, least, most in (
        (mesh.size, "devices", 1, _MOST), (chunks, "chunks", 1, _MOST), (0 if steps is None else steps, "steps", 0, 64),
    ):  # fmt: skip
        if not isinstance(number, Integral):
            raise TypeError(f"{what} must be a whole number, not {number!r}")
        if not least <= number <= most:
            raise ValueError(f"{number} {what}, but a picture shows {least} to {most}; fewer show the same pattern")

    n, spec = mesh.size, P(tuple(mesh.axis_names))
    marks = np.eye(n * chunks, dtype=np.int32)
    # A program that only moves and adds rows does to any rows what it does to the marks.
    others = np.random.default_rng(0).integers(0, 100, marks.shape, dtype=np.int32)
    marked, probed = (jax.device_put(rows, NamedSharding(mesh, spec)) for rows in (marks, others))

    def frame(title, f):
        # Unchecked, because a picture shows every device, also where all of them hold the same.
        held = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        run = jax.jit(held)
        made = jax.eval_shape(run, marked)
        if not hasattr(made, "shape") or len(made.shape) != 2 or made.shape[1] != n * chunks or not made.shape[0]:
            have = (made.shape[0] // n, *made.shape[1:]) if getattr(made, "shape", ()) else type(made).__name__
            raise ValueError(
                f"from chunks of shape {(chunks, n * chunks)} the program made {have}; "
                "it may change the number of rows, but not their length"
            )
        rows, check = np.asarray(run(marked)), np.asarray(run(probed))
        if (rows != rows.round()).any() or (rows < 0).any() or (check != rows @ others).any():
            raise ValueError("the program does more with the chunks than move and add them, and cannot be followed")
        slots = [_parts(row, chunks) for row in rows]
        each = len(slots) // n
        return Frame(title, tuple(tuple(slots[each * place : each * (place + 1)]) for place in range(n)))

    if steps is None:
        frames = [frame("before", jnp.asarray), frame("after", program)]
    else:
        frames = [frame(f"step {k}" if k else "start", lambda x, k=k: program(x, steps=k)) for k in range(steps + 1)]
    return Flow(tuple(device.id for device in mesh.devices.flat), chunks, tuple(frames))


def _parts(row, chunks):
    """The terms of a slot: the marks in it, and how often each was added."""
    return tuple((int(mark) // chunks, int(mark) % chunks, int(row[mark])) for mark in np.flatnonzero(row))
