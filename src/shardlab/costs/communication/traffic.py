"""What collectives cost on rings, in tori, behind switches and between nodes: bytes and seconds."""

from functools import reduce

import numpy as np

from shardlab._arguments import Numbers, amount, first, one_of, whole
from shardlab.costs.communication.kinds import KINDS
from shardlab.machines import hardware
from shardlab.machines.hardware import Chip

__all__ = [
    "ALGORITHMS", "collective_bytes", "collective_seconds", "crossover_bytes",
    "hierarchical_seconds",
    "latency_seconds", "node_bytes", "send_seconds",
]  # fmt: skip

ALGORITHMS = ("ring", "tree", "in-network")  # of a collective between nodes
PRICED = tuple(name for name, kind in KINDS.items() if kind.priced)


def collective_bytes(kind: str, array_bytes: Numbers, devices: Numbers) -> Numbers:
    """Bytes that a device sends, on a ring: what `shardlab.programs.collectives` counts in a
    compiled program.

    To all-gather an array of 1,024 bytes over 8 devices, each sends 7/8 of it, 896 bytes.

    >>> print(costs.collective_bytes("all-gather", 1024, 8), "bytes")
    896.0 bytes

    Args:
      kind: "all-gather", "reduce-scatter", "all-reduce", "all-to-all" or "collective-permute".
      array_bytes: the larger of a device's operand and result, in bytes.
      devices: how many take part.

    Returns:
      Bytes: (n-1)/n of the array; twice that for an all-reduce; the array for a permute; 0 for one
      device.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
    MPICH", 2005, sections 4.1 to 4.5.
    """
    n, array_bytes = whole("devices", devices), amount("array_bytes", array_bytes)
    return KINDS[one_of("kind", kind, PRICED)].sent(array_bytes, n)


def collective_seconds(
    kind: str,
    array_bytes: Numbers,
    sizes: Numbers | tuple[Numbers, ...],
    chip: str | Chip,
    ring: bool | tuple[bool, ...] | None = None,
    ways: int = 2,
) -> Numbers:
    """The time of a collective over the links of a slice or node: the larger of its bandwidth and
    its latency.

    To all-gather 34 MB along an axis of four v5e chips takes 3/4 of 34 MB / 45 GB/s = 567
    microseconds: four chips of a v5e do not form a ring, so the chip at an end receives the other
    three quarters over its only link. Sixteen chips do, and it takes 15/16 of 34 MB / 90 GB/s = 354
    microseconds.

    >>> for chips in (4, 16):
    ...     seconds = costs.collective_seconds("all-gather", 34e6, chips, "v5e")
    ...     print(f"{seconds * 1e6:.0f} microseconds")
    567 microseconds
    354 microseconds

    An algorithm that passes everything on to the same neighbour, as one written with `ppermute`
    does, uses a ring one way only, and takes twice as long; an all-to-all takes four times as long.

    >>> seconds = costs.collective_seconds("all-gather", 34e6, 16, "v5e", ways=1)
    >>> print(f"{seconds * 1e6:.0f} microseconds")
    708 microseconds

    Args:
      kind: as for `collective_bytes`.
      array_bytes: the larger of a device's operand and result, in bytes; of a ragged all-to-all
        only what is filled.
      sizes: how many chips take part; for several axes of a torus a tuple, such as (16, 16).
      chip: a `shardlab.hardware.Chip`, or the name of one.
      ring: whether the axes form rings, a bool or one for each; by default `chip.rings(sizes)`.
      ways: in how many directions at once a ring is used: 2 or 1. On a switch there is no
        direction.

    Returns:
      Seconds: the bytes on the busiest link divided by its bandwidth, or the hops times their
      latency, if that is more. Several axes are used at once, each for its share of the array.

    Source: Scaling Book, "Sharded matrices" ("How long does this take?", "What happens when we
    AllGather over multiple axes?", and for the all-to-all its footnote: n²/4 chunks of 1/n² of the
    array); on a switch its part on GPUs ("Intra-node collectives").
    """
    share, hops = _load(kind, sizes, hardware.chip(chip), ring, ways)
    speed = hardware.chip(chip).link_bytes_per_second
    return np.maximum(
        share * amount("array_bytes", array_bytes) / speed, hops * hardware.chip(chip).link_seconds
    )


def latency_seconds(
    kind: str,
    sizes: Numbers | tuple[Numbers, ...],
    chip: str | Chip,
    ring: bool | tuple[bool, ...] | None = None,
    ways: int = 2,
) -> Numbers:
    """The time of a collective of no bytes: its hops, one after the other.

    An all-gather takes n/2 hops on a ring, in both directions at once, and n-1 on a line or a
    switch; an all-reduce takes twice as many.

    >>> print(f"{costs.latency_seconds('all-gather', 16, 'v5e') * 1e6:.0f} microseconds")
    8 microseconds

    Args:
      kind, sizes, chip, ring, ways: as for `collective_seconds`.

    Source: Scaling Book, "Sharded matrices", "A note on ICI latency".
    """
    return _load(kind, sizes, hardware.chip(chip), ring, ways)[1] * hardware.chip(chip).link_seconds


def send_seconds(
    array_bytes: Numbers, hops: Numbers | tuple[Numbers, ...], chip: str | Chip
) -> Numbers:
    """The time of a message from one chip to another of its slice or node, until its last byte has
    arrived.

    Along each torus axis on which the chips differ goes an equal part. From one corner of a v5e 4x4
    to the opposite one 16 MiB take two links for 186 microseconds, and the last byte six hops of a
    microsecond each.

    >>> print(f"{costs.send_seconds(16 * 2**20, (3, 3), 'v5e') * 1e6:.0f} microseconds")
    192 microseconds

    Args:
      array_bytes: the size of the message, in bytes.
      hops: how many links the chips are apart; for several axes of a torus a tuple, such as (3, 3).
        On a switch 1.
      chip: a `shardlab.hardware.Chip`, or the name of one.

    Returns:
      Seconds.

    Raises:
      ValueError: a number is negative, or there are more axes than the chip's torus has.

    Source: Scaling Book, "How to think about TPUs", question 5.
    """
    chip = hardware.chip(chip)
    hops = [amount("hops", hop) for hop in (hops if isinstance(hops, tuple | list) else (hops,))]
    if len(hops) > max(len(chip.torus), 1):
        raise ValueError(
            f"hops along {len(hops)} axes, but {chip.name} has {max(len(chip.torus), 1)}"
        )
    paths = sum(np.greater(hop, 0) * 1 for hop in hops)
    paths_bytes = np.maximum(paths, 1) * chip.link_bytes_per_second * chip.link_share(2)
    seconds = amount("array_bytes", array_bytes) / paths_bytes
    return np.where(paths > 0, seconds + sum(hops) * chip.link_seconds, 0.0)[()]


def crossover_bytes(
    kind: str,
    sizes: Numbers | tuple[Numbers, ...],
    chip: str | Chip,
    ring: bool | tuple[bool, ...] | None = None,
) -> Numbers:
    """The `array_bytes` below which a collective is latency-bound, and above which bandwidth-bound;
    0 for one device.

    An all-reduce over a ring of n has n hops, and (n-1)/n of the array on each link. On a v5p the
    two take the same time at n²/(n-1) times 90 GB/s times one microsecond: 90 kB for each chip, and
    a little more.

    >>> print(f"{costs.crossover_bytes('all-reduce', 16, 'v5p') / 1e3:.0f} kB")
    1536 kB

    Args:
      kind, sizes, chip, ring: as for `collective_seconds`.
    """
    share, hops = _load(kind, sizes, hardware.chip(chip), ring)
    crossover = hops * hardware.chip(chip).link_seconds * hardware.chip(chip).link_bytes_per_second
    return np.where(share > 0, crossover / np.where(share > 0, share, 1), 0.0)[()]


def hierarchical_seconds(
    kind: str,
    array_bytes: Numbers,
    inner: Numbers | tuple[Numbers, ...],
    outer: Numbers,
    chip: str | Chip,
    overlap: bool = True,
    algorithm: str = "ring",
) -> Numbers:
    """The time of a collective over `outer` nodes or slices of `inner` chips: within each, and
    between them.

    An all-reduce is a reduce-scatter within each node, an all-reduce between nodes of 1/inner of
    the array over each chip's own network card, and an all-gather within each node. An all-to-all
    sends each chunk to its destination.

    >>> seconds = costs.hierarchical_seconds("all-reduce", 1e9, 8, 4, "H100")
    >>> print(f"{seconds * 1e3:.1f} ms")
    3.9 ms

    Args:
      kind: as for `collective_bytes`.
      array_bytes: the larger of a device's operand and result, in bytes.
      inner: chips of a node or slice that take part; for several torus axes a tuple.
      outer: nodes or slices that take part.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      overlap: whether the two levels run at the same time; otherwise their times are added.
      algorithm: between the nodes: "ring"; "tree", whose messages grow with the logarithm of the
        nodes; "in-network", where switches add up an all-reduce (NVIDIA calls it SHARP), so that
        each chip sends its share only once. So do then the switches within nodes of GPUs, as
        NVIDIA's can from Hopper on.

    Returns:
      Seconds.

    Source: Scaling Book, part on GPUs, "Cross-node collectives"; for TPUs "Scaling Across Pods";
    for trees Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
    and scan", 2009.
    """
    near, far = _two_levels(kind, array_bytes, inner, outer, hardware.chip(chip), algorithm)
    return np.maximum(near, far) if overlap else near + far


def node_bytes(
    kind: str, array_bytes: Numbers, inner: Numbers, outer: Numbers, hierarchical: bool = True
) -> Numbers:
    """Bytes that a node of `inner` devices sends to other nodes, over the slow links.

    An all-reduce of 4 MiB over two nodes of four devices: a flat ring through all eight leaves each
    node once, with 2 * 7/8 * 4 = 7 MiB; in two levels it is 2 * 1/2 * 4 = 4 MiB. Where several
    groups cross at once, each with one device on a node, inner is 1, and each group sends as much.

    >>> for hierarchical in (False, True):
    ...     sent = costs.node_bytes("all-reduce", 4 * 2**20, 4, 2, hierarchical)
    ...     print(sent / 2**20, "MiB")
    7.0 MiB
    4.0 MiB

    Args:
      kind: as for `collective_bytes`; a permute is one along a ring through all devices.
      array_bytes: the larger of a device's operand and result, in bytes.
      inner: devices of a node that take part in one collective.
      outer: nodes that take part.
      hierarchical: whether gathers and sums are done within the node first; otherwise in one ring
        through all devices.

    Returns:
      Bytes.
    """
    inner, outer = whole("inner", inner), whole("outer", outer)
    if one_of("kind", kind, PRICED) == "all-to-all":
        return inner * amount("array_bytes", array_bytes) * (outer - 1) / outer
    sent = collective_bytes(kind, array_bytes, outer if hierarchical else inner * outer)
    return np.where(outer > 1, sent, 0.0 * inner)[()]


def _load(kind, sizes, chip, ring=None, directions=2):
    """(what crosses the busiest link one way, as a share of `array_bytes`; hops one after the
    other).
    """
    one_of("kind", kind, PRICED)
    if directions not in (1, 2):
        raise ValueError(f"ways={directions!r}; a ring is used in 2 directions at once, or in 1")
    sizes = tuple(
        whole("sizes", size) for size in (sizes if isinstance(sizes, tuple | list) else (sizes,))
    )
    total = reduce(np.multiply, sizes)
    if not chip.torus:
        if np.any(total > chip.node_chips):
            many = first(total, total > chip.node_chips)
            raise ValueError(
                f"{many:g} {chip.name} are in several nodes of {chip.node_chips}, between "
                "which there is no NVLink; use costs.hierarchical_seconds with "
                f"inner={chip.node_chips} and outer={-(-many // chip.node_chips):g}"
            )
        if kind == "collective-permute":
            return np.where(total > 1, 1 / chip.link_share(2), 0.0)[()], np.where(
                total > 1, 1.0, 0.0
            )[()]
        times = max(KINDS[kind].rounds, 1)
        return times * (total - 1) / total / chip.link_share(total), times * (total - 1)
    for size in sizes:
        if np.any(size > max(chip.torus)):
            raise ValueError(
                f"{first(size, size > max(chip.torus))} chips do not fit along an axis of "
                f"{chip.name}, whose largest slice is {' x '.join(map(str, chip.torus))}; "
                "pass a tuple with a size for each axis, such as (16, 16)"
            )
    if len(sizes) > len(chip.torus):
        raise ValueError(
            f"{len(sizes)} axes for {chip.name}, whose torus has {len(chip.torus)}: join some "
            "of them"
        )
    # an axis of one device
    in_use = tuple(np.where(size == 1, max(chip.torus), size) for size in sizes)
    rings = (
        chip.rings(in_use)
        if ring is None
        else ring
        if isinstance(ring, tuple | list)
        else (ring,) * len(sizes)
    )
    if kind == "collective-permute":  # to the next chip along an axis
        return np.where(total > 1, 1.0, 0.0)[()], np.where(total > 1, 1.0, 0.0)[()]
    ways = [np.where(ring, directions, 1) for ring in rings]
    hops = sum(
        np.where(way == 2, size // 2, size - 1) for way, size in zip(ways, sizes, strict=True)
    )
    # routed along one axis after the other; the busiest link is in the middle of the longest
    if kind == "all-to-all":
        # each chunk travels up to n-1 links of a ring, and all links carry as much
        around = directions == 1
        chunks = (
            np.where(ring & around, n * (n - 1) / 2, n * n // 4)
            for n, ring in zip(sizes, rings, strict=True)
        )
        return reduce(
            np.maximum, (many / n / w for many, n, w in zip(chunks, sizes, ways, strict=True))
        ), hops
    times, out = KINDS[kind].rounds, sum(w * (n > 1) for n, w in zip(sizes, ways, strict=True))
    return times * (total - 1) / total / np.maximum(out, 1), times * hops


def _two_levels(kind, array_bytes, inner, outer, chip, algorithm):
    array_bytes, outer = amount("array_bytes", array_bytes), whole("outer", outer)
    sizes = inner if isinstance(inner, tuple | list) else (inner,)
    chips = reduce(np.multiply, (whole("inner", size) for size in sizes))
    if kind == "all-to-all":  # within the node a share of 1/outer, the rest to other nodes
        near = collective_seconds(kind, array_bytes / outer, inner, chip)
        return near, network_seconds(kind, array_bytes, outer, chip, algorithm)
    near = collective_seconds(kind, array_bytes, inner, chip)
    # to the switch and back
    if algorithm == "in-network" and kind == "all-reduce" and not chip.torus:
        speed = chip.link_bytes_per_second * chip.link_share(chips)
        added = np.maximum(array_bytes / speed, 2 * chip.link_seconds)
        near = np.where(chips > 1, added, 0.0)[()]
    part = array_bytes if kind == "collective-permute" else array_bytes / chips
    return near, network_seconds(kind, part, outer, chip, algorithm)


def network_seconds(kind, array_bytes, outer, chip, algorithm="ring", count=1, waits=1):
    """The time between slices or nodes of `count` collectives of arrays of these bytes together,
    over `outer` of them.

    `waits` of the collectives begin only when the one before has ended; the latencies of the others
    overlap.
    """
    sent = collective_bytes(kind, array_bytes, outer)
    times = max(KINDS[kind].rounds, 1)
    steps = np.where(outer > 1, 1, 0) if kind == "collective-permute" else times * (outer - 1)
    if one_of("algorithm", algorithm, ALGORITHMS) != "ring" and KINDS[kind].rounds:
        steps = times * np.ceil(np.log2(outer))
        if algorithm == "in-network" and kind == "all-reduce":
            sent = np.where(outer > 1, array_bytes, 0.0)
    return np.maximum(
        sent / chip.network_bytes_per_second,
        np.minimum(count, waits) * steps * chip.network_seconds,
    )
