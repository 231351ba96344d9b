"""Where the axes of a mesh are on a machine: over which links of a torus, switch or network each of
them sends.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from shardlab.machines.hardware import Machine


@dataclass(frozen=True)
class Place:
    """What a mesh axis has of the links, as numbers or arrays of them.

    Attributes:
      near: devices of the axis within one slice or node.
      far: slices or nodes over which it reaches.
      ways: links over which a chip sends at the same time; a link that other groups of the axis use
        too counts as a share of one.
      hops: from a device to the farthest one within the slice or node, one after the other.
      routed: in an all-to-all within the slice or node, what crosses the busiest link, as a share
        of a device's array.
      crowd: groups of the axis that use the same link to a neighbour; without a switch, a chip's
        links over that one.
    """

    near: np.ndarray
    far: np.ndarray
    ways: np.ndarray
    hops: np.ndarray
    routed: np.ndarray
    crowd: np.ndarray


def place(machine_of: Callable[[int], Machine], sizes: list) -> list[Place]:
    """The places of mesh axes, of which the first is the innermost: neighbours along it are
    neighbours in the machine.

    Axes take whole axes of the torus where their sizes allow; else several share one, as
    `split=True` allows in `shardlab.Pod.mesh`. An axis that does not close around the torus has no
    ring.

    Args:
      machine_of: what gives the `shardlab.hardware.Machine` of a number of chips.
      sizes: for each axis an int or an array; their product is that number.

    Returns:
      A `Place` for each.
    """
    shape = np.broadcast_shapes(*(np.shape(size) for size in sizes))
    rows = np.stack([np.broadcast_to(size, shape).ravel() for size in sizes], 1).astype(np.int64)
    unique, index = np.unique(rows, axis=0, return_inverse=True)
    index = index.reshape(shape)
    meshes = [tuple(map(int, row)) for row in unique]
    # meshes x axes x 6
    placements = np.array([_placed(machine_of(math.prod(mesh)), mesh) for mesh in meshes], float)
    return [
        Place(*(placements[:, axis, part][index] for part in range(6)))
        for axis in range(len(sizes))
    ]


def _placed(machine, sizes):
    """For each axis the six numbers of a `Place`."""
    near, stride = [], 1
    for size in sizes:
        near.append(min(size, max(machine.near // stride, 1)))
        stride *= size
    far = [-(-size // n) for size, n in zip(sizes, near, strict=True)]
    if not machine.chip.torus:
        one = float(machine.chip.link_share(2))  # of a chip's links, that to a neighbour
        shares = [float(machine.chip.link_share(n)) for n in near]
        links = [
            (share, n - 1, (n - 1) / n / share, 1 / one)
            for n, share in zip(near, shares, strict=True)
        ]
    else:
        links = [_along(parts) for parts in _parts(machine.shape, machine.rings, near)]
    return [(n, f, *link) for n, f, link in zip(near, far, links, strict=True)]


def _parts(shape, rings, sizes):
    """For each mesh axis its parts of axes of the torus: (chips, distance between them, whether
    they close to a ring).

    Whole axes of the torus first, as many as make the size; what is left is dealt out by common
    factors.
    """
    free, parts = list(range(len(shape))), [None] * len(sizes)
    for axis, size in enumerate(sizes):
        for count in range(len(free), 0, -1):
            fitting = (
                some
                for some in combinations(free, count)
                if math.prod(shape[i] for i in some) == size
            )
            if size > 1 and (some := next(fitting, None)):
                parts[axis] = [(shape[i], 1, rings[i]) for i in some]
                free = [i for i in free if i not in some]
                break
    taken = dict.fromkeys(free, 1)
    for axis, size in enumerate(sizes):
        if parts[axis] is None:
            parts[axis] = []
            for i in free:
                part = math.gcd(size, shape[i] // taken[i])
                if part > 1:
                    parts[axis].append((part, taken[i], rings[i] and part * taken[i] == shape[i]))
                    taken[i] *= part
                    size //= part
    return parts


def _along(parts):
    """(ways, hops, what an all-to-all routes over the busiest link, groups on a link) of the parts
    of an axis.
    """
    parts = [part for part in parts if part[0] > 1]
    if not parts:
        return 1.0, 0, 0.0, 1
    each = [(n, stride, 2 if ring else 1) for n, stride, ring in parts]
    return (
        sum(way / stride for _, stride, way in each),
        sum(stride * (n // 2 if way == 2 else n - 1) for n, stride, way in each),
        max(n * n // 4 / n / way * stride for n, stride, way in each),
        min(stride for _, stride, _ in each),
    )
