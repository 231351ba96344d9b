"""Follow chunks of data through the program of a device: which device holds which chunk, step by
step.

Every device gets chunks that are marked with its position, the program runs, and the marks then say
what each device holds: a chunk of another device, or a sum of several. Which device sent to which
is read from the `ppermute`s of the traced program, and so are the lines of code that did it.
`shardlab.pictures.draw` makes the picture.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from string import ascii_lowercase

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from shardlab._arguments import source_line

__all__ = ["Flow", "Frame", "follow"]

_MOST = 8  # devices, and chunks of each: as many as a picture can show


@dataclass(frozen=True)
class Frame:
    """What every device holds at one moment.

    Attributes:
      title: "before", "after", "start", "step 1" and so on.
      slots: for each device its slots, and for each slot its terms, as (device, chunk, how often):
        `((2, 0, 1),)` is the first chunk of the device at position 2, and `()` an empty slot.
      sends: what was sent by a `ppermute` since the frame before, as (device, slot) there and
        (device, slot) here: `((0, 3), (1, 3))` went from the last of four slots of the device at
        position 0 to the same slot of the next device. What a built-in collective sends is not
        known.
      lines: the lines of code that sent it and that used what arrived, as (number, text): the
        number counts from 1 in the cell, or the file.
      notes: for each device short lines that stand below its slots, such as `("arrived 1 0", "free
        1")` for what its semaphores count. `follow` makes none.
    """

    title: str
    slots: tuple[tuple[tuple[tuple[int, int, int], ...], ...], ...]
    sends: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = ()
    lines: tuple[tuple[int, str], ...] = ()
    notes: tuple[tuple[str, ...], ...] = ()


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

    def name(self, parts: tuple[tuple[int, int, int], ...]) -> str:
        """What a slot holds, in a few letters: "b2" is the second chunk of device 2, "Σb" its sum
        over all devices.
        """
        owners, letters = [owner for owner, _, _ in parts], {chunk for _, chunk, _ in parts}
        letter = ascii_lowercase[parts[0][1]] if len(letters) == 1 and self.chunks > 1 else ""
        if len(letters) > 1 or any(times > 1 for *_, times in parts):
            if len(parts) > 3:
                return f"{len(parts)} parts"
            return "+".join(
                f"{times}×" * (times > 1) + self.name(((owner, p, 1),)) for owner, p, times in parts
            )
        if len(owners) == len(self.devices) > 1:
            return f"Σ{letter}"
        if len(owners) > 3:
            return f"{letter} {len(owners)}/{len(self.devices)}".strip()
        return letter + "+".join(str(self.devices[owner]) for owner in owners)


def follow(program: Callable, mesh: Mesh, *, chunks: int = 1, steps: int | None = None) -> Flow:
    """Run a device's program on marked chunks, and find out which device then holds which chunk.

    On a mesh of 4 devices, `follow(lambda x: lax.all_gather(x, "d", tiled=True), mesh)` has a frame
    "before", in which each device holds its own chunk, and a frame "after", in which each holds all
    four.

    >>> line = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    >>> flow = follow(lambda x: jax.lax.all_gather(x, "d", tiled=True), line)
    >>> [[flow.name(slot) for slot in frame.slots[0]] for frame in flow.frames]
    [['0'], ['0', '1', '2', '3']]

    Args:
      program: what one device does with its chunks, as `jax.shard_map` takes it: a function from an
        array whose rows are the chunks to an array whose rows are what the device holds afterwards.
        It may move and add rows, and must treat all chunks alike: no maximum, no square. If `steps`
        is given it is called as `program(x, steps=k)` and must stop after k steps.
      mesh: a mesh of at most 8 devices.
      chunks: how many chunks each device has, from 1 to 8.
      steps: show the moments after 0, 1, ..., `steps` steps; without it those before and after the
        program.

    Returns:
      A `Flow`; `shardlab.draw` draws it.

    Raises:
      TypeError: the program is not a function, the mesh not a mesh, or a number not a whole number.
      ValueError: there are too many devices or chunks, or the program does more with chunks than
        move and add them.
    """
    _check(program, mesh, chunks, steps)
    n, spec = mesh.size, P(tuple(mesh.axis_names))
    marks = np.eye(n * chunks, dtype=np.int32)
    # A program that only moves and adds rows does to any rows what it does to the marks.
    others = np.random.default_rng(0).integers(0, 100, marks.shape, dtype=np.int32)
    marked, probed = (jax.device_put(rows, NamedSharding(mesh, spec)) for rows in (marks, others))

    if steps is None:
        programs = {"before": jnp.asarray, "after": program}
    else:
        programs = {
            f"step {k}" if k else "start": lambda x, k=k: program(x, steps=k)
            for k in range(steps + 1)
        }
    # Unchecked, because a picture shows every device, also where all of them hold the same.
    each = [
        jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        for f in programs.values()
    ]
    permutes = []
    for f in each:
        traced = jax.jit(f).trace(marked)
        outputs = traced.out_info
        if (
            not hasattr(outputs, "shape")
            or len(outputs.shape) != 2
            or outputs.shape[1] != n * chunks
            or not outputs.shape[0]
        ):
            have = (
                (outputs.shape[0] // n, *outputs.shape[1:])
                if getattr(outputs, "shape", ())
                else type(outputs).__name__
            )
            raise ValueError(
                f"from chunks of shape {(chunks, n * chunks)} the program made {have}; "
                "it may change the number of rows, but not their length"
            )
        permutes.append(_permutes(traced.jaxpr.jaxpr, mesh))

    def run_all(rows):
        outputs = []
        for f in each:
            # one after the other, because messages of two programs at once may wait for each other
            if outputs:
                rows, _ = lax.optimization_barrier((rows, outputs[-1]))
            outputs.append(f(rows))
        return outputs

    run_all = jax.jit(run_all)
    frames = []
    for number, (title, rows, check) in enumerate(
        zip(programs, run_all(marked), run_all(probed), strict=True)
    ):
        rows, check = np.asarray(rows), np.asarray(check)
        if (rows != rows.round()).any() or (rows < 0).any() or (check != rows @ others).any():
            raise ValueError(
                "the program does more with the chunks than move and add them, and cannot be "
                "followed"
            )
        slots, many = [_parts(row, chunks) for row in rows], len(rows) // n
        slots = tuple(tuple(slots[many * place : many * (place + 1)]) for place in range(n))
        sends = lines = ()
        if number:
            # After k steps the program has done what it did after k - 1, and more; a loop always
            # has the same.
            new = permutes[number][len(permutes[number - 1]) :] or permutes[number]
            sends = _sends(frames[-1].slots, slots, [pair for pairs, _ in new for pair in pairs])
            lines = tuple(dict.fromkeys(line for _, used in new for line in used)) if sends else ()
        frames.append(Frame(title, slots, sends, lines))
    return Flow(tuple(device.id for device in mesh.devices.flat), chunks, tuple(frames))


def _check(program, mesh, chunks, steps):
    """TypeError or ValueError for what `follow` cannot show."""
    if not isinstance(program, Callable):
        raise TypeError(
            f"program must be a function of one device's chunks, not {type(program).__name__}"
        )
    if not isinstance(mesh, jax.sharding.Mesh):
        raise TypeError(
            f"mesh must be a jax.sharding.Mesh, not {type(mesh).__name__}; jax.make_mesh makes one"
        )
    for number, what, least, most in (
        (mesh.size, "devices", 1, _MOST),
        (chunks, "chunks", 1, _MOST),
        (0 if steps is None else steps, "steps", 0, 64),
    ):
        if not isinstance(number, Integral):
            raise TypeError(f"{what} must be a whole number, not {number!r}")
        if not least <= number <= most:
            raise ValueError(
                f"{number} {what}, but a picture shows {least} to {most}; fewer show the same "
                "pattern"
            )


def _parts(row, chunks):
    """The terms of a slot: the marks in it, and how often each was added."""
    return tuple(
        (int(mark) // chunks, int(mark) % chunks, int(row[mark])) for mark in np.flatnonzero(row)
    )


def _sends(before, after, pairs):
    """Which slots of one frame arrived in which of the next, where pairs say which device sent to
    which.
    """
    sends = []
    for place, values in enumerate(after):
        was = before[place] if len(before[place]) == len(values) else ((),) * len(values)
        for slot, (content, old) in enumerate(zip(values, was, strict=True)):
            if not content or content == old or (was != before[place] and content in before[place]):
                continue
            arrived = (_without(content, old), content)  # added to what was there, or in its place
            places = (
                (source, row)
                for source, target in pairs
                for row, value in enumerate(before[source])
                if target == place and value in arrived
            )
            if origin := next(places, None):
                sends.append((origin, (place, slot)))
    return tuple(sorted(sends))


def _without(content, old):
    """The terms of a sum that remain when those of another one are taken away."""
    left = {(owner, chunk): times for owner, chunk, times in content}
    for owner, chunk, times in old:
        left[owner, chunk] = left.get((owner, chunk), 0) - times
    return tuple((*mark, times) for mark, times in left.items() if times)


def _permutes(jaxpr, mesh):
    """The `ppermute`s of a program, in order: which position sends to which, and the lines of
    code.
    """
    permutes = []
    for number, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name == "ppermute":
            (arrived,) = equation.outvars
            after = jaxpr.eqns[number + 1 :]
            using = next(
                (user for user in after if any(used is arrived for used in user.invars)), equation
            )
            lines = filter(None, (_line(equation), _line(using)))
            permutes.append((_positions(equation.params, mesh), tuple(dict.fromkeys(lines))))
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                permutes += _permutes(inner, mesh) if hasattr(inner, "eqns") else []
    return permutes


def _positions(params, mesh):
    """The pairs of a `ppermute` along some axes, as positions in the flattened mesh."""
    axes = params["axis_name"]
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    places = np.arange(mesh.size).reshape(mesh.devices.shape)
    places = np.moveaxis(places, [mesh.axis_names.index(axis) for axis in axes], range(len(axes)))
    places = places.reshape(np.prod(places.shape[: len(axes)], dtype=int), -1)
    return [
        (int(a), int(b))
        for i, j in params["perm"]
        for a, b in zip(places[i], places[j], strict=True)
    ]


def _line(equation):
    """The line of the reader's code that an equation comes from: (number, text), or None if it has
    no text.
    """
    trace, library = equation.source_info.traceback, str(Path(jax.__file__).parent)
    for frame in trace.frames if trace else ():  # the innermost one first
        if not frame.file_name.startswith(library):
            text = source_line(frame.file_name, frame.line_num).strip()
            return (frame.line_num, text) if text else None
    return None
