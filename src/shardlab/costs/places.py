"""Where the axes of a mesh are placed on a machine: within a slice or node, or between them."""

from collections.abc import Mapping

import numpy as np

from shardlab._arguments import nearest
from shardlab.costs.parallelism import MESH_AXES
from shardlab.machines import hardware
from shardlab.machines.hardware import Machine
from shardlab.machines.placement import Place, place


def places(machine, chip, parallelism, torus_axes):
    """The `Place` of each axis, and of those together over which states are sharded: "sharded"; of experts "routed"."""
    size = {axis: np.asarray(getattr(parallelism, axis)) for axis in MESH_AXES}
    joint = np.multiply(np.multiply(size["fsdp"], size["context"]), size["expert"])
    if torus_axes is not None:
        joint = {"sharded": joint, "routed": np.multiply(size["context"], size["fsdp"])}
        return _stated_places(chip, size | joint, torus_axes)
    known = {}

    def of(chips):
        if chips not in known:
            known[chips] = machine if isinstance(machine, Machine) else hardware.machine(chip, chips)
        return known[chips]

    order = ("tensor", "context", "expert", "fsdp", "pipeline", "data")  # the innermost first
    by_axis = dict(zip(order, place(of, [size[axis] for axis in order]), strict=True))
    rest = [size["pipeline"], size["data"]]
    by_axis["sharded"] = place(of, [size["tensor"], joint, *rest])[1]
    sharers = np.multiply(size["context"], size["fsdp"])
    by_axis["routed"] = place(of, [size["tensor"], size["expert"], sharers, *rest])[2]
    return by_axis


def _stated_places(chip, sizes, torus_axes):
    """Places of axes that run over stated numbers of torus axes, as rings within one slice."""
    if not isinstance(torus_axes, Mapping):
        raise ValueError(f"torus_axes={torus_axes!r}; use a dict such as {{'fsdp': 2, 'tensor': 1}}")
    for axis, number in torus_axes.items():
        if axis not in MESH_AXES:
            raise ValueError(
                f"torus_axes has an axis {axis!r}; known are {', '.join(MESH_AXES)}{nearest(axis, MESH_AXES)}"
            )
        if not np.all((np.asarray(number) > 0) & (np.asarray(number) <= 3)):
            raise ValueError(
                f"torus_axes[{axis!r}] is {number!r}; use a number above 0 and up to 3, the axes of a torus"
            )
    if not chip.torus:
        raise ValueError(f"torus_axes is given, but a switch connects {chip.name}: leave it out")
    stated = {}
    for axis, size in sizes.items():
        axes = np.asarray(torus_axes.get("fsdp" if axis in ("sharded", "routed") else axis, 1), float)
        side = size ** (1 / np.maximum(axes, 1))  # chips along each torus axis
        hops = np.maximum(axes, 1) * side / 2 * (size > 1)
        stated[axis] = Place(size, np.asarray(1), 2 * axes, hops, side / 8, np.asarray(1))
    return stated
