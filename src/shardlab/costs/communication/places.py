"""Where the axes of a mesh are placed on a machine: within a slice or node, or between them."""

from collections.abc import Mapping

import numpy as np

from shardlab._arguments import first, nearest
from shardlab.costs.steps.parallelism import MESH_AXES
from shardlab.machines import hardware
from shardlab.machines.placement import Place, place


def mesh_places(setting, parallelism):
    """The `Place` of each axis of a training step's mesh.

    And of those together over which states are sharded: "sharded"; of experts "routed".
    """
    size = {axis: np.asarray(getattr(parallelism, axis)) for axis in MESH_AXES}
    joint = np.multiply(np.multiply(size["fsdp"], size["context"]), size["expert"])
    if setting.torus_axes is not None:
        joint = {"sharded": joint, "routed": np.multiply(size["context"], size["fsdp"])}
        return _stated_places(setting.chip, size | joint, setting.torus_axes)
    known = {}

    def machine_of(chips):
        if chips not in known:
            known[chips] = setting.machine or hardware.machine(setting.chip, chips)
        return known[chips]

    order = ("tensor", "context", "expert", "fsdp", "pipeline", "data")  # the innermost first
    by_axis = dict(zip(order, place(machine_of, [size[axis] for axis in order]), strict=True))
    outer = [size["pipeline"], size["data"]]
    by_axis["sharded"] = place(machine_of, [size["tensor"], joint, *outer])[1]
    sharers = np.multiply(size["context"], size["fsdp"])
    by_axis["routed"] = place(machine_of, [size["tensor"], size["expert"], sharers, *outer])[2]
    return by_axis


def _stated_places(chip, sizes, torus_axes):
    """Places of axes that run over stated numbers of torus axes, as rings within one slice."""
    if not isinstance(torus_axes, Mapping):
        raise ValueError(
            f"torus_axes={torus_axes!r}; use a dict such as {{'fsdp': 2, 'tensor': 1}}"
        )
    for axis, number in torus_axes.items():
        if axis not in MESH_AXES:
            raise ValueError(
                f"torus_axes has an axis {axis!r}; known are "
                f"{', '.join(MESH_AXES)}{nearest(axis, MESH_AXES)}"
            )
        if not np.all((np.asarray(number) > 0) & (np.asarray(number) <= 3)):
            raise ValueError(
                f"torus_axes[{axis!r}] is {number!r}; use a number above 0 and up to 3, the "
                "axes of a torus"
            )
    if not chip.torus:
        raise ValueError(f"torus_axes is given, but a switch connects {chip.name}: leave it out")
    stated = {}
    for axis, size in sizes.items():
        axes = np.asarray(
            torus_axes.get("fsdp" if axis in ("sharded", "routed") else axis, 1), float
        )
        side = size ** (1 / np.maximum(axes, 1))  # chips along each torus axis
        hops = np.maximum(axes, 1) * side / 2 * (size > 1)
        stated[axis] = Place(size, np.asarray(1), 2 * axes, hops, side / 8, np.asarray(1))
    return stated


def replica_places(setting):
    """The `Place` of each axis of a server's replica: "tensor", "expert" and "pipeline".

    On a machine, or of "tensor" alone over stated torus axes of a slice of its own.
    """
    chip, machine = setting.chip, setting.machine
    tensor, expert, pipeline = setting.tensor, setting.expert, setting.pipeline
    one = np.asarray(1)
    if machine is not None:
        chips = np.multiply(np.multiply(tensor, expert), pipeline)
        if np.any(machine.chips % chips):
            wrong = first(chips, machine.chips % chips != 0)
            raise ValueError(
                f"replicas of {wrong} chips do not fill {machine.name} evenly; use a divisor"
            )
        replicas = machine.chips // chips
        return place(lambda _: machine, [tensor, expert, pipeline, replicas])[:3]
    if np.any(np.multiply(expert, pipeline) > 1):
        raise ValueError(
            "expert and pipeline need a machine, on which their axes are placed; give machine="
        )
    alone = Place(one, one, 1.0, 0, 0.0, one)
    if not chip.torus:
        near = np.minimum(tensor, chip.node_chips)
        links = Place(near, np.ceil(tensor / near), 1.0, near - 1, (near - 1) / near, one)
        return links, alone, alone
    axes = np.asarray(setting.torus_axes, float)
    around = np.maximum(axes, 1)
    hops = around * tensor ** (1 / around) / 2 * np.greater(tensor, 1)
    return Place(np.asarray(tensor), one, 2 * axes, hops, tensor / 8, one), alone, alone
