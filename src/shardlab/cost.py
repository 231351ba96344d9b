"""What a program costs on hardware that we do not have: bytes, FLOPs, seconds and memory, by formula.

A device computes, moves data between its memory (HBM) and its compute units, and communicates with other devices. Each
of the three has a speed, so each gives a time, and the largest of the three is a lower bound for all of them together:
the roofline. This module applies it to collectives, matrix products, transformer layers and training steps;
`shardlab.inference` to serving. Arguments that are `Numbers` may be NumPy arrays, which broadcast: a function that
takes one `Parallelism` also takes 100,000.

Bytes. `array_bytes` of a collective is the larger of its operand and its result on *one device*: the result of an
all-gather, the operand of a reduce-scatter, either of an all-reduce, an all-to-all or a permute.
`collective_bytes` computes from it what a device sends on a ring, which is `shardlab.comms.Collective.bytes`: (n-1)/n
of the array for an all-gather. Dividing that by what a device can send along the ring in both directions, W, is the
form (array size) / W of the book *How To Scale Your Model* (https://jax-ml.github.io/scaling-book/, "Scaling Book"
below), which leaves the (n-1)/n out. For an all-to-all that book's array is the global one, n times ours.

Dtypes have short names: "f32", "bf16", "fp8", "int8", "fp4", "int4".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from shardlab import hardware
from shardlab._arguments import Numbers, amount, first, nearest, one_of, whole
from shardlab._placement import Place, place
from shardlab.hardware import Chip, Machine
from shardlab.models import Model
from shardlab.models import model as known_model

__all__ = [
    "ALGORITHMS", "AXES", "BYTES", "FITTED", "MESH_AXES", "PARTS", "REMAT", "SCHEDULES", "Fitted", "Memory", "Numbers",
    "Parallelism", "Roofline", "StepCost", "activation_bytes", "collective_bytes", "collective_seconds",
    "crossover_bytes", "hierarchical_seconds", "latency_seconds", "layer", "matmul", "node_bytes", "parallelisms",
    "send_seconds", "step_cost", "training_flops", "training_memory",
]  # fmt: skip

AXES = ("data", "fsdp", "tensor")  # of the mesh of a dense model's training step
MESH_AXES = (*AXES, "pipeline", "context", "expert")  # all that a step can have
PARTS = ("compute", "hbm", "host", *MESH_AXES)  # of the time of a training step
SCHEDULES = ("gpipe", "1f1b")  # of a pipeline; 1f1b with several stages on each device is the interleaved one
ALGORITHMS = ("ring", "tree", "in-network")  # of a collective between nodes

BYTES = {"f32": 4, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 0.5, "int4": 0.5}
REMAT = ("none", "matmuls", "mlp", "block", "offload")
_WHOLE = ("block", "offload")  # of these, what computes whole layers again
_GATHERS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}
_KINDS = (*_GATHERS, "all-to-all", "collective-permute")


def _size(name, dtype):
    return BYTES[one_of(name, dtype, tuple(BYTES))]


# --- Collectives -----------------------------------------------------------------------------------------------


def collective_bytes(kind: str, array_bytes: Numbers, devices: Numbers) -> Numbers:
    """Bytes that a device sends, on a ring: what `shardlab.comms` counts in a compiled program.

    To all-gather an array of 1,024 bytes over 8 devices, each sends 7/8 of it, 896 bytes.

    >>> print(cost.collective_bytes("all-gather", 1024, 8), "bytes")
    896.0 bytes

    Args:
      kind: "all-gather", "reduce-scatter", "all-reduce", "all-to-all" or "collective-permute".
      array_bytes: the larger of a device's operand and result, in bytes.
      devices: how many take part.

    Returns:
      Bytes: (n-1)/n of the array; twice that for an all-reduce; the array for a permute; 0 for one device.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
    sections 4.1 to 4.5.
    """
    n, array_bytes = whole("devices", devices), amount("array_bytes", array_bytes)
    if one_of("kind", kind, _KINDS) == "collective-permute":
        return np.where(n > 1, array_bytes, 0.0)[()]
    return _GATHERS.get(kind, 1) * (n - 1) / n * array_bytes


def collective_seconds(
    kind: str,
    array_bytes: Numbers,
    sizes: Numbers | tuple[Numbers, ...],
    chip: str | Chip,
    ring: bool | tuple[bool, ...] | None = None,
    ways: int = 2,
) -> Numbers:
    """The time of a collective over the links of a slice or node: the larger of its bandwidth and its latency.

    To all-gather 34 MB along an axis of four v5e chips takes 3/4 of 34 MB / 45 GB/s = 567 microseconds: four chips of
    a v5e do not form a ring, so the chip at an end receives the other three quarters over its only link. Sixteen chips
    do, and it takes 15/16 of 34 MB / 90 GB/s = 354 microseconds.

    >>> for chips in (4, 16):
    ...     seconds = cost.collective_seconds("all-gather", 34e6, chips, "v5e")
    ...     print(f"{seconds * 1e6:.0f} microseconds")
    567 microseconds
    354 microseconds

    An algorithm that passes everything on to the same neighbour, as one written with `ppermute` does, uses a ring one
    way only, and takes twice as long; an all-to-all takes four times as long.

    >>> seconds = cost.collective_seconds("all-gather", 34e6, 16, "v5e", ways=1)
    >>> print(f"{seconds * 1e6:.0f} microseconds")
    708 microseconds

    Args:
      kind: as for `collective_bytes`.
      array_bytes: the larger of a device's operand and result, in bytes; of a ragged all-to-all only what is filled.
      sizes: how many chips take part; for several axes of a torus a tuple, such as (16, 16).
      chip: a `shardlab.hardware.Chip`, or the name of one.
      ring: whether the axes form rings, a bool or one for each; by default `chip.rings(sizes)`.
      ways: in how many directions at once a ring is used: 2 or 1. On a switch there is no direction.

    Returns:
      Seconds: the bytes on the busiest link divided by its bandwidth, or the hops times their latency, if that is
      more. Several axes are used at once, each for its share of the array.

    Source: Scaling Book, "Sharded matrices" ("How long does this take?", "What happens when we AllGather over
    multiple axes?", and for the all-to-all its footnote: n²/4 chunks of 1/n² of the array); on a switch its part on
    GPUs ("Intra-node collectives").
    """
    share, hops = _load(kind, sizes, hardware.chip(chip), ring, ways)
    speed = hardware.chip(chip).link_bytes_per_second
    return np.maximum(share * amount("array_bytes", array_bytes) / speed, hops * hardware.chip(chip).link_seconds)


def latency_seconds(
    kind: str,
    sizes: Numbers | tuple[Numbers, ...],
    chip: str | Chip,
    ring: bool | tuple[bool, ...] | None = None,
    ways: int = 2,
) -> Numbers:
    """The time of a collective of no bytes: its hops, one after the other.

    An all-gather takes n/2 hops on a ring, in both directions at once, and n-1 on a line or a switch; an all-reduce
    takes twice as many.

    >>> print(f"{cost.latency_seconds('all-gather', 16, 'v5e') * 1e6:.0f} microseconds")
    8 microseconds

    Args:
      kind, sizes, chip, ring, ways: as for `collective_seconds`.

    Source: Scaling Book, "Sharded matrices", "A note on ICI latency".
    """
    return _load(kind, sizes, hardware.chip(chip), ring, ways)[1] * hardware.chip(chip).link_seconds


def send_seconds(array_bytes: Numbers, hops: Numbers | tuple[Numbers, ...], chip: str | Chip) -> Numbers:
    """The time of a message from one chip to another of its slice or node, until its last byte has arrived.

    Along each torus axis on which the chips differ goes an equal part. From one corner of a v5e 4x4 to the opposite one
    16 MiB take two links for 186 microseconds, and the last byte six hops of a microsecond each.

    >>> print(f"{cost.send_seconds(16 * 2**20, (3, 3), 'v5e') * 1e6:.0f} microseconds")
    192 microseconds

    Args:
      array_bytes: the size of the message, in bytes.
      hops: how many links the chips are apart; for several axes of a torus a tuple, such as (3, 3). On a switch 1.
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
        raise ValueError(f"hops along {len(hops)} axes, but {chip.name} has {max(len(chip.torus), 1)}")
    paths = sum(np.greater(hop, 0) * 1 for hop in hops)
    seconds = amount("array_bytes", array_bytes) / (np.maximum(paths, 1) * chip.link_bytes_per_second)
    return np.where(paths > 0, seconds + sum(hops) * chip.link_seconds, 0.0)[()]


def crossover_bytes(
    kind: str, sizes: Numbers | tuple[Numbers, ...], chip: str | Chip, ring: bool | tuple[bool, ...] | None = None
) -> Numbers:
    """The `array_bytes` below which a collective is latency-bound, and above which bandwidth-bound; 0 for one device.

    An all-reduce over a ring of n has n hops, and (n-1)/n of the array on each link. On a v5p the two take the same
    time at n²/(n-1) times 90 GB/s times one microsecond: 90 kB for each chip, and a little more.

    >>> print(f"{cost.crossover_bytes('all-reduce', 16, 'v5p') / 1e3:.0f} kB")
    1536 kB

    Args:
      kind, sizes, chip, ring: as for `collective_seconds`.
    """
    share, hops = _load(kind, sizes, hardware.chip(chip), ring)
    made = hops * hardware.chip(chip).link_seconds * hardware.chip(chip).link_bytes_per_second
    return np.where(share > 0, made / np.where(share > 0, share, 1), 0.0)[()]


def hierarchical_seconds(
    kind: str,
    array_bytes: Numbers,
    inner: Numbers | tuple[Numbers, ...],
    outer: Numbers,
    chip: str | Chip,
    overlap: bool = True,
    algorithm: str = "ring",
) -> Numbers:
    """The time of a collective over `outer` nodes or slices of `inner` chips: within each, and between them.

    An all-reduce is a reduce-scatter within each node, an all-reduce between nodes of 1/inner of the array over each
    chip's own network card, and an all-gather within each node. An all-to-all sends each chunk to its destination.

    >>> seconds = cost.hierarchical_seconds("all-reduce", 1e9, 8, 4, "H100")
    >>> print(f"{seconds * 1e3:.1f} ms")
    3.9 ms

    Args:
      kind: as for `collective_bytes`.
      array_bytes: the larger of a device's operand and result, in bytes.
      inner: chips of a node or slice that take part; for several torus axes a tuple.
      outer: nodes or slices that take part.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      overlap: whether the two levels run at the same time; otherwise their times are added.
      algorithm: between the nodes: "ring"; "tree", whose messages grow with the logarithm of the nodes; "in-network",
        where switches add up an all-reduce (NVIDIA calls it SHARP), so that each chip sends its share only once. So do
        then the switches within nodes of GPUs, as NVIDIA's can from Hopper on.

    Returns:
      Seconds.

    Source: Scaling Book, part on GPUs, "Cross-node collectives"; for TPUs "Scaling Across Pods"; for trees Sanders,
    Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
    """
    near, far = _two_levels(kind, array_bytes, inner, outer, hardware.chip(chip), algorithm)
    return np.maximum(near, far) if overlap else near + far


def node_bytes(kind: str, array_bytes: Numbers, inner: Numbers, outer: Numbers, hierarchical: bool = True) -> Numbers:
    """Bytes that a node of `inner` devices sends to other nodes, over the slow links.

    An all-reduce of 4 MiB over two nodes of four devices: a flat ring through all eight leaves each node once, with
    2 * 7/8 * 4 = 7 MiB; in two levels it is 2 * 1/2 * 4 = 4 MiB. Where several groups cross at once, each with one
    device on a node, inner is 1, and each group sends as much.

    >>> for hierarchical in (False, True):
    ...     sent = cost.node_bytes("all-reduce", 4 * 2**20, 4, 2, hierarchical)
    ...     print(sent / 2**20, "MiB")
    7.0 MiB
    4.0 MiB

    Args:
      kind: as for `collective_bytes`; a permute is one along a ring through all devices.
      array_bytes: the larger of a device's operand and result, in bytes.
      inner: devices of a node that take part in one collective.
      outer: nodes that take part.
      hierarchical: whether gathers and sums are done within the node first; otherwise in one ring through all devices.

    Returns:
      Bytes.
    """
    inner, outer = whole("inner", inner), whole("outer", outer)
    if one_of("kind", kind, _KINDS) == "all-to-all":
        return inner * amount("array_bytes", array_bytes) * (outer - 1) / outer
    sent = collective_bytes(kind, array_bytes, outer if hierarchical else inner * outer)
    return np.where(outer > 1, sent, 0.0 * inner)[()]


def _load(kind, sizes, chip, ring=None, directions=2):
    """(what crosses the busiest link one way, as a share of `array_bytes`; hops one after the other)."""
    one_of("kind", kind, _KINDS)
    if directions not in (1, 2):
        raise ValueError(f"ways={directions!r}; a ring is used in 2 directions at once, or in 1")
    sizes = tuple(whole("sizes", size) for size in (sizes if isinstance(sizes, tuple | list) else (sizes,)))
    total = reduce(np.multiply, sizes)
    if not chip.torus:
        if np.any(total > chip.node_chips):
            many = first(total, total > chip.node_chips)
            raise ValueError(
                f"{many:g} {chip.name} are in several nodes of {chip.node_chips}, between which there is no NVLink; "
                f"use cost.hierarchical_seconds with inner={chip.node_chips} and outer={-(-many // chip.node_chips):g}"
            )
        if kind == "collective-permute":
            return np.where(total > 1, 1.0, 0.0)[()], np.where(total > 1, 1.0, 0.0)[()]
        times = _GATHERS.get(kind, 1)
        return times * (total - 1) / total, times * (total - 1)
    for size in sizes:
        if np.any(size > max(chip.torus)):
            raise ValueError(
                f"{first(size, size > max(chip.torus))} chips do not fit along an axis of {chip.name}, whose largest "
                f"slice is {' x '.join(map(str, chip.torus))}; pass a tuple with a size for each axis, such as (16, 16)"
            )
    if len(sizes) > len(chip.torus):
        raise ValueError(f"{len(sizes)} axes for {chip.name}, whose torus has {len(chip.torus)}: join some of them")
    in_use = tuple(np.where(size == 1, max(chip.torus), size) for size in sizes)  # an axis of one device
    rings = chip.rings(in_use) if ring is None else ring if isinstance(ring, tuple | list) else (ring,) * len(sizes)
    if kind == "collective-permute":  # to the next chip along an axis
        return np.where(total > 1, 1.0, 0.0)[()], np.where(total > 1, 1.0, 0.0)[()]
    ways = [np.where(ring, directions, 1) for ring in rings]
    hops = sum(np.where(way == 2, size // 2, size - 1) for way, size in zip(ways, sizes, strict=True))
    if kind == "all-to-all":  # routed along one axis after the other; the busiest link is in the middle of the longest
        around = directions == 1  # each chunk travels up to n-1 links of a ring, and all links carry as much
        chunks = (np.where(ring & around, n * (n - 1) / 2, n * n // 4) for n, ring in zip(sizes, rings, strict=True))
        return reduce(np.maximum, (many / n / w for many, n, w in zip(chunks, sizes, ways, strict=True))), hops
    times, out = _GATHERS[kind], sum(w * (n > 1) for n, w in zip(sizes, ways, strict=True))
    return times * (total - 1) / total / np.maximum(out, 1), times * hops


def _two_levels(kind, array_bytes, inner, outer, chip, algorithm):
    array_bytes, outer = amount("array_bytes", array_bytes), whole("outer", outer)
    sizes = inner if isinstance(inner, tuple | list) else (inner,)
    chips = reduce(np.multiply, (whole("inner", size) for size in sizes))
    if kind == "all-to-all":  # within the node a share of 1/outer, the rest to other nodes
        near = collective_seconds(kind, array_bytes / outer, inner, chip)
        return near, _network(kind, array_bytes, outer, chip, algorithm)
    near = collective_seconds(kind, array_bytes, inner, chip)
    if algorithm == "in-network" and kind == "all-reduce" and not chip.torus:  # to the switch and back
        added = np.maximum(array_bytes / chip.link_bytes_per_second, 2 * chip.link_seconds)
        near = np.where(chips > 1, added, 0.0)[()]
    part = array_bytes if kind == "collective-permute" else array_bytes / chips
    return near, _network(kind, part, outer, chip, algorithm)


def _network(kind, array_bytes, outer, chip, algorithm="ring", count=1, waits=1):
    """The time between slices or nodes of `count` collectives of arrays of these bytes together, over `outer` of them.

    `waits` of the collectives begin only when the one before has ended; the latencies of the others overlap.
    """
    sent = collective_bytes(kind, array_bytes, outer)
    times = _GATHERS.get(kind, 1)
    steps = np.where(outer > 1, 1, 0) if kind == "collective-permute" else times * (outer - 1)
    if one_of("algorithm", algorithm, ALGORITHMS) != "ring" and kind in _GATHERS:
        steps = times * np.ceil(np.log2(outer))
        if algorithm == "in-network" and kind == "all-reduce":
            sent = np.where(outer > 1, array_bytes, 0.0)
    return np.maximum(sent / chip.network_bytes_per_second, np.minimum(count, waits) * steps * chip.network_seconds)


# --- Parallelism -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parallelism:
    """How a training step is parallelised: the sizes of the axes of its mesh, whole numbers or arrays of them.

    >>> print(cost.Parallelism(data=4, fsdp=16, tensor=8).chips, "chips")
    512 chips

    Attributes:
      data: data-parallel replicas of the model, each with examples of its own.
      fsdp: chips of a replica with examples of their own, each with a shard of parameters, gradients and moments.
      tensor: chips that share the heads and the MLP of each layer.
      pipeline: groups of chips with layers of their own.
      context: chips that share each sequence, with attention in a ring. They shard the state too, as fsdp does.
      expert: chips that share the experts of each layer. They have examples of their own, as data and fsdp have.
      microbatches: into how many the batch of each data group is split: those of a pipeline, or, with pipeline=1, those
        of gradient accumulation.
      stages: stages on each chip of a pipeline; more than one is an interleaved schedule.
      schedule: of the pipeline, one of `SCHEDULES`.
    """

    data: Numbers = 1
    fsdp: Numbers = 1
    tensor: Numbers = 1
    pipeline: Numbers = 1
    context: Numbers = 1
    expert: Numbers = 1
    microbatches: Numbers = 1
    stages: Numbers = 1
    schedule: str = "1f1b"

    def __post_init__(self) -> None:
        for axis in MESH_AXES:
            whole(f"the {axis} axis", getattr(self, axis))
        whole("microbatches", self.microbatches)
        whole("stages", self.stages)
        one_of("schedule", self.schedule, SCHEDULES)

    @property
    def chips(self) -> Numbers:
        """The product of the axes."""
        return reduce(np.multiply, (getattr(self, axis) for axis in MESH_AXES))

    @property
    def groups(self) -> Numbers:
        """How many groups of chips have sequences of their own: data x fsdp x expert."""
        return np.multiply(np.multiply(self.data, self.fsdp), self.expert)

    @property
    def shards(self) -> Numbers:
        """Over how many chips the state of a layer is sharded: fsdp x context x expert x tensor."""
        return reduce(np.multiply, (self.fsdp, self.context, self.expert, self.tensor))

    @property
    def idle(self) -> Numbers:
        """The bubble: the time that a pipeline waits, as a share of the time that it works."""
        return (np.asarray(self.pipeline, float) - 1) / (np.asarray(self.microbatches, float) * self.stages)


def parallelisms(chips: int, model: Model | None = None) -> Parallelism:
    """Every way to divide a number of chips into data, fsdp and tensor axes, as one `Parallelism` of arrays.

    As (data, fsdp, tensor), four chips can be (4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2) or (1, 1, 4).

    >>> ways = cost.parallelisms(4)
    >>> list(zip(ways.data.tolist(), ways.fsdp.tolist(), ways.tensor.tolist()))
    [(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2), (1, 1, 4)]

    Args:
      chips: how many.
      model: if given, tensor axes that do not divide its heads are left out.

    Returns:
      A `Parallelism`.
    """
    chips = int(whole("chips", chips))
    divisors = [n for n in range(1, chips + 1) if chips % n == 0]
    fitting = [t for t in divisors if model is None or model.splits(t)]
    found = [(chips // (f * t), f, t) for t in fitting for f in divisors if chips // t % f == 0]
    return Parallelism(*np.array(sorted(found, reverse=True)).T)


def _check_split(model, tensor):
    tensor = whole("the tensor axis", tensor)
    if not np.all(model.splits(tensor)):
        raise ValueError(
            f"a tensor axis of {first(tensor, ~model.splits(tensor))} cannot split {model.heads} heads and "
            f"{model.kv_heads} kv_heads evenly; use a divisor of {model.heads} that divides {model.kv_heads} or is a "
            "multiple of it"
        )


# --- Rooflines -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roofline:
    """The FLOPs of an operation, its bytes to and from HBM, and the time that each of the two takes.

    Attributes:
      flops, hbm_bytes: how many.
      compute_seconds, memory_seconds: those, divided by the chip's FLOP/s and bytes/s.
    """

    flops: float
    hbm_bytes: float
    compute_seconds: float
    memory_seconds: float

    @property
    def intensity(self) -> Numbers:
        """Arithmetic intensity: FLOPs per byte."""
        return self.flops / self.hbm_bytes

    @property
    def seconds(self) -> Numbers:
        """The larger of the two times, because a chip computes while it loads."""
        return np.maximum(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> str | np.ndarray:
        """ "compute" or "memory", whichever takes longer."""
        return np.where(np.greater_equal(self.compute_seconds, self.memory_seconds), "compute", "memory")[()]


def _roofline(flops, hbm_bytes, chip, dtype):
    return Roofline(flops, hbm_bytes, flops / chip.peak(dtype), hbm_bytes / chip.hbm_bytes_per_second)


def matmul(
    m: Numbers, k: Numbers, n: Numbers, chip: str | Chip, dtype: str = "bf16", weights: str | None = None
) -> Roofline:
    """The roofline of (m, k) @ (k, n): 2 m k n FLOPs, and each matrix read or written once.

    On a v5e, with bf16 and large k and n, it is compute-bound from m = 240 on.

    >>> product = cost.matmul(1024, 8192, 8192, "v5e")
    >>> print(f"{product.seconds * 1e6:.0f} microseconds, {product.bound}-bound")
    698 microseconds, compute-bound
    >>> print(f"{product.intensity:.0f} FLOPs per byte")
    819 FLOPs per byte

    Args:
      m, k, n: the sizes of the dimensions.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      dtype: of the FLOPs, the first matrix and the result.
      weights: dtype of the second matrix; by default the same.

    Returns:
      A `Roofline`.

    Source: Scaling Book, "Rooflines", "Matrix multiplication".
    """
    m, k, n = (whole(name, size) for name, size in (("m", m), ("k", k), ("n", n)))
    m, k, n = (np.asarray(size, float) for size in (m, k, n))  # products of large ints would overflow
    size, weight_size = _size("dtype", dtype), _size("weights", weights or dtype)
    return _roofline(2 * m * k * n, size * m * (k + n) + weight_size * k * n, hardware.chip(chip), dtype)


def layer(
    model: Model,
    chip: str | Chip,
    tokens: Numbers,
    sequence: Numbers,
    tensor: Numbers = 1,
    dtype: str = "bf16",
    sequences: Numbers | None = None,
) -> dict[str, Roofline]:
    """The rooflines of one transformer layer's forward pass, on each of the chips that share it, by part.

    >>> parts = cost.layer(model("llama-3-8b"), "v5p", tokens=4096, sequence=4096)
    >>> for name, part in parts.items():
    ...     print(f"{name}: {part.seconds * 1e6:.0f} microseconds")
    ...
    attention projections: 749 microseconds
    attention: 599 microseconds
    mlp: 3144 microseconds

    Args:
      model: a `shardlab.models.Model`.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      tokens: in the batch of those chips.
      sequence: tokens that each token attends to (not halved for causal masks, which not every kernel uses).
      tensor: chips that share the layer.
      dtype: of parameters, activations and FLOPs.
      sequences: how many of that length their keys and values belong to; by default tokens / sequence, as in training
        and prefill. In a decode step each token has a sequence of its own: give the same number as `tokens`.

    Returns:
      A dict: "attention projections" (Q, K, V and output), "attention" (scores and their product with the values; the
      scores are never written to HBM), "mlp".

    Source: Scaling Book, "Transformer math", tables of MLPs and attention and question 4.
    """
    _check_split(model, tensor)
    chip, size, tensor = hardware.chip(chip), _size("dtype", dtype), whole("tensor", tensor)
    tokens, sequence = amount("tokens", tokens), amount("sequence", sequence)
    cached = tokens if sequences is None else amount("sequences", sequences) * sequence  # tokens with keys and values
    d, f = model.d_model, model.hidden
    queries, keys = (n * model.head_dim / tensor for n in (model.heads, model.kv_heads))
    wide = (3 if model.gated else 2) * f / tensor

    def product(parameters, width):
        return _roofline(2.0 * tokens * parameters / tensor, size * (parameters / tensor + tokens * width), chip, dtype)

    return {
        "attention projections": product(model.attention_parameters, 2 * d + 2 * queries + 2 * keys),
        "attention": _roofline(
            4.0 * tokens * sequence * queries, size * 2 * (tokens * queries + cached * keys), chip, dtype
        ),
        "mlp": product(model.ff_matmul_parameters, 2 * d + wide),
    }


def training_flops(model: Model, batch_tokens: Numbers, sequence: Numbers = 0, remat: str = "none") -> Numbers:
    """FLOPs of one training step, on all chips together: about six for each parameter and token.

    For each token, an element of a matrix takes two FLOPs in the forward pass and four in the backward pass, and
    attention takes 12 * sequence * heads * head_dim in each layer.

    >>> flops = cost.training_flops(model("llama-3-70b"), batch_tokens=1)
    >>> print(f"{flops / 1e9:.0f} GFLOPs for each token")
    417 GFLOPs for each token

    Args:
      model: a `shardlab.models.Model`.
      batch_tokens: tokens in the batch.
      sequence: tokens that each token attends to.
      remat: what the backward pass rematerialises: "none", nothing; "matmuls", the scores of attention; "mlp", all of
        attention; "block" and "offload", every layer but its last product, whose result the backward pass does not
        need, unless it is of routed experts.

    Returns:
      FLOPs.

    Source: Scaling Book, "Transformer math"; for "block" a compiled step (tests/test_cost.py). That book's "Gradient
    checkpointing" counts the last product too, and has 8 FLOPs for each parameter instead of 6, where this has 7.5.
    """
    forwards, again = _forward_flops(model, amount("batch_tokens", batch_tokens), sequence, remat)
    return 3 * forwards + again


def _score_flops(model, sequence):
    """FLOPs of a token's scores and their product with the values, in one layer's forward pass."""
    return amount("sequence", sequence) * model.heads * (4.0 * model.head_dim + 2.0 * model.rope_dim)


def _forward_flops(model, tokens, sequence, remat):
    """(FLOPs of a forward pass, FLOPs of what is rematerialised)."""
    scores = _score_flops(model, sequence)
    attention, mlp = 2.0 * model.attention_parameters, 2.0 * model.ff_matmul_parameters
    share = 2 / 3 if model.gated else 1 / 2  # nothing needs the MLP's last product again, so the compiler leaves it out
    if model.experts:  # that of the routed experts is needed, for the gradient of the router
        routed = 2.0 * model.experts_per_token * model.expert_parameters * model.expert_layers / model.layers
        mlp = routed + (mlp - routed) * share
    else:
        mlp *= share
    layer = attention + mlp + scores
    again = {"none": 0.0, "matmuls": scores, "mlp": attention + scores, "block": layer, "offload": layer}
    again = model.layers * again[one_of("remat", remat, REMAT)]
    return tokens * (2.0 * model.matmul_parameters + model.layers * scores), tokens * again


# --- Memory ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """The memory of a chip in a training step, in bytes.

    Attributes:
      parameter_bytes, gradient_bytes, moment_bytes, master_bytes: the state, sharded over fsdp and tensor.
      activation_bytes: what the forward pass keeps for the backward pass.
      working_bytes: the temporary activations of a layer that is rematerialised.
      gathered_bytes: the gathered parameters of two layers, the one in use and the next, where fsdp gathers them.
      logits_bytes: the logits of the chip's tokens over its part of the vocabulary.
      host_bytes: with "offload" the inputs of the layers, in the host's memory, and no part of the sums.
    """

    parameter_bytes: float
    gradient_bytes: float
    moment_bytes: float
    master_bytes: float
    activation_bytes: float
    working_bytes: float
    gathered_bytes: float
    logits_bytes: float
    host_bytes: float = 0.0

    @property
    def state_bytes(self) -> Numbers:
        """Parameters, gradients, moments and master weights."""
        return self.parameter_bytes + self.gradient_bytes + self.moment_bytes + self.master_bytes

    @property
    def total_bytes(self) -> Numbers:
        """The sum of all parts in the chip's memory, as if all were held at once."""
        return self.state_bytes + self.activation_bytes + self.working_bytes + self.gathered_bytes + self.logits_bytes


def activation_bytes(model: Model, tokens: Numbers, remat: str = "none", dtype: str = "bf16") -> Numbers:
    """Bytes of activations that the forward pass keeps for the backward pass, in all layers, before sharding.

    >>> kept = cost.activation_bytes(model("llama-3-8b"), 4096, remat="block")
    >>> print(f"{kept / 1e9:.2f} GB")
    1.07 GB

    Args:
      model: a `shardlab.models.Model`.
      tokens: how many.
      remat: what is kept: "none", all inputs of products, norms and the activation function, but no scores (as in
        fused attention); "matmuls", the results of all products; "mlp", those of the MLP; "block", each layer's input;
        "offload" the same, but in the host's memory.
      dtype: of what is kept.

    Returns:
      Bytes.

    Source: counted from the layer's operations; the Scaling Book has about 20 d_model for "none" ("Transformer math",
    "Gradient checkpointing"), and d_model + 2 d_ff for "mlp" ("Training", question 2).
    """
    return amount("tokens", tokens) * model.layers * _kept_width(model, remat) * _size("dtype", dtype)


def _kept_width(model, remat):
    """Elements that one layer keeps for a token."""
    d, f, ins = model.d_model, model.hidden, 2 if model.gated else 1
    queries, keys = model.heads * (model.head_dim + model.rope_dim), model.kv_heads * model.head_dim
    return {
        # x, its norm, q, k, v, attention's result; x after attention, its norm, the MLP's products, and out's input
        "none": 2 * d + 2 * queries + 2 * keys + 2 * d + (ins + 1 + (1 if model.gated else 0)) * f,
        "matmuls": queries + 2 * keys + d + ins * f + d,
        "mlp": ins * f + d,
        "block": d,
        "offload": d,
    }[one_of("remat", remat, REMAT)]


def training_memory(
    model: Model,
    parallelism: Parallelism,
    batch_tokens: Numbers,
    remat: str = "block",
    parameters: str | None = "bf16",
    gradients: str | None = "bf16",
    moments: str | None = "f32",
    master: str | None = None,
    activations: str | None = "bf16",
    logits: str | None = "f32",
    gathers: int = 2,
) -> Memory:
    """The memory of each chip in a training step with Adam.

    Llama 3 70B in bf16 with moments in f32 takes 2 + 2 + 8 = 12 bytes for each parameter, its gradient and its two
    moments: 847 GB, sharded over fsdp times tensor chips.

    >>> fsdp = cost.Parallelism(fsdp=512)
    >>> memory = cost.training_memory(model("llama-3-70b"), fsdp, 4 * 2**20)
    >>> print(f"{memory.state_bytes / 1e9:.2f} GB of {memory.total_bytes / 1e9:.2f} GB")
    1.65 GB of 22.73 GB

    Args:
      model: a `shardlab.models.Model`.
      parallelism: a `Parallelism`, of numbers or arrays.
      batch_tokens: tokens in the global batch, of all micro-batches together.
      remat: what the backward pass rematerialises; see `activation_bytes`. With "offload" a chip holds the inputs of
        two layers, of which one is on its way.
      parameters, gradients, moments, master, activations, logits: their dtypes; None for what does not exist. Adam has
        two moments for each parameter, and master weights are one more value in higher precision.
      gathers: as for `step_cost`; with 1, the gathered parameters and gradients of all layers are held at once.

    Returns:
      `Memory`, of the first stage of a pipeline: it keeps the activations of as many micro-batches as there are
      stages, or of all of them with "gpipe". Activations are sharded over tensor too, as in sequence parallelism; norms
      are counted as if sharded like matrices; the compiler's own buffers are not included.

    Source: ZeRO (Rajbhandari and others, 2020), sections 3 and 5; Korthikanti and others, "Reducing Activation
    Recomputation in Large Transformer Models", 2022, section 4, for activations over tensor and sequence.
    """
    _check_split(model, parallelism.tensor)
    tensor, pipeline, expert, context = (
        np.asarray(getattr(parallelism, axis), float) for axis in ("tensor", "pipeline", "expert", "context")
    )
    micro = np.asarray(parallelism.microbatches, float)
    tokens = amount("batch_tokens", batch_tokens) / (parallelism.groups * context * micro)  # of a micro-batch
    size = {
        name: _size(name, dtype) if dtype else 0
        for name, dtype in (
            ("parameters", parameters), ("gradients", gradients), ("moments", moments), ("master", master),
            ("activations", activations), ("logits", logits),
        )
    }  # fmt: skip
    layers = model.parameters - model.embedding_parameters
    held = (layers / pipeline + model.embedding_parameters / np.minimum(pipeline, 2)) / parallelism.shards
    at_once = np.minimum(micro, micro if parallelism.schedule == "gpipe" else pipeline)
    at_once = at_once * np.where((parallelism.stages > np.asarray(1)) & (micro > 1), 1 + (pipeline - 1) / (
        pipeline * parallelism.stages), 1)  # fmt: skip
    gathered = model.attention_parameters + (
        model.mlp_parameters
        if not model.experts
        else model.shared_experts * model.expert_parameters + model.experts * model.expert_parameters / expert
    )
    whole_bytes = 2 * size["parameters"] * gathered
    if gathers == 1:
        whole_bytes = (size["parameters"] + size["gradients"]) * model.layers / pipeline * gathered
    working = _kept_width(model, "none") if remat != "none" else 0
    here = at_once * model.layers / pipeline  # layers whose activations are kept
    there = 0.0 * here
    if remat == "offload":
        here, there = np.minimum(here, 2.0), here
    kept = size["activations"] * tokens * _kept_width(model, remat) / tensor
    return Memory(
        parameter_bytes=size["parameters"] * held,
        gradient_bytes=size["gradients"] * held,
        moment_bytes=2 * size["moments"] * held,
        master_bytes=size["master"] * held,
        activation_bytes=here * kept,
        working_bytes=size["activations"] * tokens * working / tensor,
        gathered_bytes=np.where(np.asarray(parallelism.shards) > tensor * expert, whole_bytes / tensor, 0.0)[()],
        logits_bytes=size["logits"] * tokens * model.vocab / tensor,
        host_bytes=there * kept,
    )  # fmt: skip


# --- Steps -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    """What formulas cannot know of chips, fitted to runs that others published: `shardlab.published`.

    `python scripts/fit_planner.py` fits it again and tests it on the runs that were left out.

    Attributes:
      products: for each chip the share of its peak that large matrix products reach in a whole step. Fitted.
      other: that share for a chip without a published run: the geometric mean of the others.
      half: the smallest dimension of a product at which it reaches half of that share: 128, the tile of a matrix unit.
      links, network: the share of their bandwidth that collectives reach within a slice or node, and between them.
        Measured by others: NCCL 0.8 on NVLink and 0.75 on eight network cards, TPUs all of their links (of 90 GB/s) and
        a third of their cards.
      call_seconds, hop_seconds, network_hop_seconds: what each collective takes besides: to begin, and for each hop
        within a node and between nodes. NCCL's own numbers for large messages; none for TPUs, whose `Chip` has them.
      spread: by which factor expected times are off, at most, for nine in ten of the runs that were left out.

    Source: https://github.com/stas00/ml-engineering, network/benchmarks, and https://github.com/NVIDIA/nccl,
    src/graph/tuning.cc (ring and tree, protocol "Simple"), for NCCL;
    https://github.com/AI-Hypercomputer/tpu-recipes, microbenchmarks, for TPUs; `shardlab.published` for the rest.
    """

    products: Mapping[str, float]
    other: float
    half: float
    links: float
    network: float
    call_seconds: float
    hop_seconds: float
    network_hop_seconds: float
    spread: float


FITTED = {
    "gpu": Fitted({"A100": 0.61, "H100": 0.56}, 0.58, 128.0, 0.8, 0.75, 8.4e-6, 3.4e-6, 14e-6, 1.34),
    "tpu": Fitted({"v4": 0.73, "v5e": 0.74, "v5p": 0.89, "v6e": 0.6}, 0.73, 128.0, 1.0, 0.33, 0.0, 0.0, 0.0, 1.26),
}


@dataclass(frozen=True)
class StepCost:
    """What a training step costs on each chip, by part.

    Attributes:
      flops: of one chip, with what is rematerialised.
      compute_seconds, hbm_seconds: the time of its FLOPs, and of its bytes to and from HBM.
      host_seconds: the time of its bytes to and from the host's memory, with "offload".
      data_seconds, fsdp_seconds, tensor_seconds, pipeline_seconds, context_seconds, expert_seconds: the time of the
        collectives along each axis.
      data_bytes, fsdp_bytes, tensor_bytes, pipeline_bytes, context_bytes, expert_bytes: what a chip sends along each
        axis, on rings, as `shardlab.comms` counts.
      bubble: the time that a pipeline waits, as a share of the time that it works.
      memory: a `Memory`.
      fits: whether its total is no more than the chip's HBM, less the reserve.
      mfu: model FLOPs utilisation: the share of the peak that useful FLOPs reach, if all communication is overlapped.
      expected_seconds: the time to expect: products at the share of the peak that their sizes reach, communication at
        the share of the bandwidth that collectives reach, and what of it cannot overlap added; see `FITTED`.
      exposed_seconds: of that, the communication that nothing hides.
    """

    flops: float
    compute_seconds: float
    hbm_seconds: float
    host_seconds: float
    data_seconds: float
    fsdp_seconds: float
    tensor_seconds: float
    pipeline_seconds: float
    context_seconds: float
    expert_seconds: float
    data_bytes: float
    fsdp_bytes: float
    tensor_bytes: float
    pipeline_bytes: float
    context_bytes: float
    expert_bytes: float
    bubble: float
    memory: Memory
    fits: bool
    mfu: float
    expected_seconds: float
    exposed_seconds: float

    def _parts(self):
        return np.stack(np.broadcast_arrays(*(getattr(self, f"{part}_seconds") for part in PARTS)))

    @property
    def seconds(self) -> Numbers:
        """The time of the largest part, and of the bubble: a lower bound, if everything else overlaps with it."""
        return (self._parts().max(0) * (1 + self.bubble))[()]

    @property
    def serial_seconds(self) -> Numbers:
        """The time if nothing overlaps: compute or HBM, whichever is more, plus all that is sent, plus the bubble."""
        sent = sum(getattr(self, f"{axis}_seconds") for axis in ("host", *MESH_AXES))
        return (np.maximum(self.compute_seconds, self.hbm_seconds) + sent) * (1 + self.bubble)

    @property
    def expected_mfu(self) -> Numbers:
        """The share of the peak that useful FLOPs reach in the expected time."""
        return self.mfu * self.seconds / self.expected_seconds

    @property
    def bound(self) -> str | np.ndarray:
        """The name of the largest part: "compute", "hbm", "host" or an axis of the mesh."""
        return np.array(PARTS)[self._parts().argmax(0)]


def step_cost(
    model: str | Model,
    machine: str | Chip | Machine,
    parallelism: Parallelism,
    batch_tokens: Numbers,
    sequence: Numbers = 4096,
    remat: str = "block",
    *,
    torus_axes: Mapping[str, Numbers] | None = None,
    efficiency: float = 1.0,
    gathers: int = 2,
    products: str = "bf16",
    parameters: str = "bf16",
    gradients: str = "bf16",
    moments: str | None = "f32",
    master: str | None = None,
    activations: str = "bf16",
    logits: str | None = "f32",
) -> StepCost:
    """What a training step costs, by part, for one `Parallelism` or many.

    Data parallelism sends an all-reduce of a chip's gradients. FSDP all-gathers parameters, once in the forward and
    once in the backward pass of each micro-batch, and reduce-scatters gradients. Tensor parallelism all-gathers the
    activations of its group before attention and before the MLP and reduce-scatters the results, in the forward and the
    backward pass, and for "block" all but the last in the rematerialised forward pass too. A pipeline sends the
    activations of each micro-batch from stage to stage, and their gradients back. Context parallelism sends keys and
    values around a ring, and in the backward pass them and their gradients; expert parallelism sends each token to its
    experts and back, in both passes. With "offload" the inputs of the layers go to the host's memory in the forward
    pass and return in the backward pass.

    >>> fsdp = cost.Parallelism(fsdp=512)
    >>> step = cost.step_cost("llama-3-70b", "v5p", fsdp, 4 * 2**20)
    >>> print(f"{step.seconds:.2f} s, {step.bound}-bound, MFU {step.mfu:.0%}")
    9.98 s, compute-bound, MFU 80%

    Args:
      model: a `shardlab.models.Model`, or the name of one.
      machine: a `shardlab.hardware.Machine`; or a `Chip` or the name of one, for the machine that as many of them form
        as the parallelism has.
      parallelism: a `Parallelism`, of numbers or arrays: one step for each, broadcast with `batch_tokens`.
      batch_tokens: tokens in the global batch.
      sequence: tokens that each token attends to.
      remat: as for `training_flops`. "offload" needs a chip whose `host_bytes_per_second` is known.
      torus_axes: instead of the places of a machine, how many of a TPU's torus axes each axis runs over, all of them as
        rings: a dict such as {"fsdp": 2, "tensor": 1}.
      efficiency: share of the peak FLOP/s that products reach, in all times but the expected ones.
      gathers: how often fsdp gathers a parameter: 2, in both passes of each micro-batch; or 1, once in a step, if the
        gathered parameters and their gradients are kept until its end (ZeRO-1).
      products: dtype of the matrix products of the layers; attention and the output matrix stay in bf16.
      parameters, gradients, moments, master, activations, logits: dtypes, as for `training_memory`.

    Returns:
      `StepCost`, with arrays if there were arrays.

    Raises:
      ValueError: an axis is not a whole number, or their product is not the number of chips; there is no such machine;
        the tensor axis does not divide the heads; an unknown chip, axis, remat or dtype. The message names the value.

    Source: Scaling Book, "Training": data, FSDP, tensor, mixed, "Scaling Across Pods", and its last table, of which
    this counts attention too. Where an axis leaves the node or slice: `hierarchical_seconds`.
    """
    model = known_model(model)
    chip = machine.chip if isinstance(machine, Machine) else hardware.chip(machine)
    if not isinstance(parallelism, Parallelism):
        raise ValueError(f"a shardlab.cost.Parallelism is needed, not {parallelism!r}")
    total = np.asarray(parallelism.chips)
    if isinstance(machine, Machine) and np.any(total != machine.chips):
        wrong = first(total, total != machine.chips)
        raise ValueError(
            f"the axes of this mesh have {wrong:g} chips, their product; {machine.name} has {machine.chips}"
        )
    if not 0 < efficiency <= 1:
        raise ValueError(f"efficiency={efficiency} is no share of the peak; use a number above 0 and up to 1")
    if remat == "offload" and not chip.host_bytes_per_second:
        known = ", ".join(name for name, one in hardware.CHIPS.items() if one.host_bytes_per_second)
        raise ValueError(
            f"the bandwidth between {chip.name} and its host is not known, so what offloading takes is not either; "
            f"it is for {known}"
        )
    if isinstance(gathers, bool) or not isinstance(gathers, int) or gathers not in (1, 2):
        raise ValueError(f"gathers={gathers!r}; use 2, or 1 if gathered parameters are kept")
    _check_layers(model, parallelism)
    memory = training_memory(
        model, parallelism, batch_tokens, remat, parameters, gradients, moments, master, activations, logits, gathers
    )
    size = {axis: np.asarray(getattr(parallelism, axis), float) for axis in MESH_AXES}
    tensor, pipeline, context, expert = (size[axis] for axis in ("tensor", "pipeline", "context", "expert"))
    micro, layers = np.asarray(parallelism.microbatches, float), model.layers / pipeline
    batch = amount("batch_tokens", batch_tokens)
    tokens = batch / (parallelism.groups * context)  # of a tensor group, in all micro-batches

    # Compute. The backward pass takes twice the FLOPs of the forward pass.
    forwards, again = (flops / pipeline for flops in _forward_flops(model, tokens / tensor, sequence, remat))
    flops = 3 * forwards + again
    scores = _score_flops(model, sequence)
    in_layers = 2.0 * model.layers * model.layer_matmul_parameters * tokens / (tensor * pipeline)
    in_layers = 3 * in_layers + again - np.where(remat != "none", scores * layers * tokens / tensor, 0)
    seconds = {"compute": (in_layers / chip.peak(products) + (flops - in_layers) / chip.peak("bf16")) / efficiency}

    # HBM. Each pass reads the matrices, and the backward pass writes gradients; activations are written and read;
    # the optimiser reads and writes its state.
    routed, dense = (part / (tensor * pipeline) for part in (model.routed_parameters / expert,
                     model.parameters - model.routed_parameters))  # fmt: skip
    gathered = routed + dense
    reads = 3 if remat in _WHOLE else 2
    passes = micro * (reads * _size("parameters", parameters) + _size("gradients", gradients)) * gathered
    update = 2 * (memory.state_bytes - memory.gradient_bytes) + memory.gradient_bytes
    kept = _kept_width(model, remat) * tokens * model.layers / (tensor * pipeline) * _size("activations", activations)
    seconds["hbm"] = (passes + update + (4 if remat == "offload" else 2) * kept) / chip.hbm_bytes_per_second
    seconds["host"] = 2 * kept / chip.host_bytes_per_second if remat == "offload" else 0.0 * kept

    # Communication: for each axis a list of (kind, how often, bytes of all its arrays together).
    places = _places(machine, chip, parallelism, torus_axes)
    held = tokens * model.d_model * _size("activations", activations)  # the activations of a layer, in a tensor group
    repeated = 1.5 if remat in _WHOLE else 0.5 if remat == "mlp" else 0  # a gather and a scatter are one each
    pairs = layers * (4 + repeated) + 2  # and two for the embedding and the output matrix
    keys = (model.kv_rank + model.rope_dim) if model.kv_rank else 2 * model.kv_heads * model.head_dim / tensor
    blocks = (3 + (remat != "none")) * layers * micro  # of keys and values around the ring
    # If layers are computed again, to the experts and back once more: the router's gradient needs what comes back.
    chosen = model.experts_per_token * model.expert_layers / pipeline * (4 + 2 * (remat in _WHOLE))
    crossings = 2 * parallelism.stages * np.where(pipeline > 1, 1, 0)
    sent_parameters, sent_gradients = _size("parameters", parameters), _size("gradients", gradients)

    gather, scatter = (2 * micro, micro) if gathers == 2 else (1, 1)

    def sharded(parameters, count):
        return (
            ("all-gather", gather * count, gather * parameters * sent_parameters),
            ("reduce-scatter", scatter * count, scatter * parameters * sent_gradients),
        )

    summed = (dense + routed * expert) * tensor / parallelism.shards * sent_gradients
    arrays = {
        "data": (("data", (("all-reduce", layers, summed),)),),
        "fsdp": (("sharded", sharded(dense, layers)), ("routed", sharded(routed, layers) if model.experts else ())),
        "tensor": (("tensor", (("all-reduce", micro * pairs, pairs * held),)),),
        "pipeline": (("pipeline", (("collective-permute", crossings * micro, crossings * held / tensor),)),),
        "context": (("context", (("collective-permute", blocks * (context - 1), (context - 1) * blocks / micro * tokens
                                  * keys * _size("activations", activations)),)),),
        "expert": (("expert", (("all-to-all", chosen * micro / np.maximum(model.experts_per_token, 1),
                                chosen * held / tensor),)),),
    }  # fmt: skip
    near, far, sent, late = {}, {}, {}, {}
    for axis, parts in arrays.items():
        near[axis] = far[axis] = sent[axis] = late[axis] = np.asarray(0.0)
        waits = axis not in ("data", "fsdp") or not chip.torus
        for where, kinds in parts:
            for kind, count, size_ in kinds:
                one, other = _axis_seconds(kind, count, size_, places[where], waits, chip)
                near[axis], far[axis] = near[axis] + one, far[axis] + other
                late[axis] = late[axis] + count * _latency(kind, places[where], chip)
                of = places[where].near * places[where].far
                sent[axis] = sent[axis] + np.where(of > 1, collective_bytes(kind, size_, of), 0.0)
        seconds[axis] = np.maximum(near[axis], far[axis])

    took = (near, far, late, seconds["host"])
    expected, exposed = _expected(model, chip, parallelism, tokens, flops, in_layers, products, took, update, scatter)
    named = {"flops": flops} | {f"{part}_seconds": seconds[part] for part in PARTS}
    named |= {f"{axis}_bytes": sent[axis] for axis in MESH_AXES}
    usable = machine.usable_bytes if isinstance(machine, Machine) else Machine(chip, ()).usable_bytes
    named |= {
        "bubble": parallelism.idle,
        "fits": memory.total_bytes <= usable,
        "mfu": 3 * forwards / chip.peak(products),
    }
    named |= {"expected_seconds": expected, "exposed_seconds": exposed}
    named = {name: array[()] for name, array in zip(named, np.broadcast_arrays(*named.values()), strict=True)}
    cost = StepCost(memory=memory, **named)
    return replace(cost, mfu=cost.mfu / cost.seconds)


def _check_layers(model, parallelism):
    """Whether stages and experts can be shared evenly."""
    stages = np.multiply(parallelism.pipeline, parallelism.stages)
    if np.any(stages > model.layers):
        raise ValueError(f"{first(stages, stages > model.layers):g} stages are more than the {model.layers} layers")
    expert = np.asarray(parallelism.expert)
    uneven = (expert > 1) & (model.experts % expert != 0 if model.experts else True)
    if np.any(uneven):
        wrong = first(expert, uneven)
        has = f"{model.experts} experts" if model.experts else "a model without experts"
        raise ValueError(f"an expert axis of {wrong:g} cannot share {has}; use a divisor of them")


def _places(machine, chip, parallelism, torus_axes):
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
    found = dict(zip(order, place(of, [size[axis] for axis in order]), strict=True))
    rest = [size["pipeline"], size["data"]]
    found["sharded"] = place(of, [size["tensor"], joint, *rest])[1]
    found["routed"] = place(of, [size["tensor"], size["expert"], np.multiply(size["context"], size["fsdp"]), *rest])[2]
    return found


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
    found = {}
    for axis, size in sizes.items():
        axes = np.asarray(torus_axes.get("fsdp" if axis in ("sharded", "routed") else axis, 1), float)
        side = size ** (1 / np.maximum(axes, 1))  # chips along each torus axis
        hops = np.maximum(axes, 1) * side / 2 * (size > 1)
        found[axis] = Place(size, np.asarray(1), 2 * axes, hops, side / 8, np.asarray(1))
    return found


def _axis_seconds(kind, count, all_bytes, place, waits, chip):
    """(the time within a slice or node, that between them) of `count` collectives of these bytes together."""
    if kind == "all-to-all":
        within, between = all_bytes / place.far, all_bytes
        near = place.routed * within / chip.link_bytes_per_second
    elif kind == "collective-permute":  # one of the near chips of an axis sends to another slice or node
        between = np.where(place.far > 1, all_bytes, 0.0)
        near = np.where(place.near > 1, place.crowd * all_bytes / chip.link_bytes_per_second, 0.0)
    else:
        between = all_bytes / place.near
        near = collective_bytes(kind, all_bytes, place.near) / (place.ways * chip.link_bytes_per_second)
    hops = {"all-to-all": place.hops, "collective-permute": place.near > 1}.get(
        kind, _GATHERS.get(kind, 1) * place.hops
    )
    near = np.maximum(near, count * hops * chip.link_seconds)
    # Libraries take whichever is faster, rings or trees.
    waiting = count if waits else np.asarray(1.0)
    far = [_network(kind, between, place.far, chip, way, count, waiting) for way in ("ring", "tree")]
    return near, np.minimum(*far)


def _latency(kind, place, chip):
    """What a collective takes on GPUs besides its bytes: NCCL's own model, for the faster of a ring and a tree."""
    fitted = _fitted(chip)
    times, of = _GATHERS.get(kind, 1), place.near * place.far
    if kind in ("collective-permute", "all-to-all"):
        hops, across = np.minimum(place.near - 1, 1), np.minimum(place.far - 1, 1)
    else:
        hops, across = times * (of - place.far), times * (place.far - 1)
    seconds = hops * fitted.hop_seconds + across * fitted.network_hop_seconds
    if kind == "all-reduce":
        tree = 2 * ((place.near - 1) * fitted.hop_seconds + np.log2(place.far) * fitted.network_hop_seconds)
        seconds = np.minimum(seconds, tree)
    return np.where(of > 1, fitted.call_seconds + seconds, 0.0)


def _fitted(chip):
    return FITTED["tpu" if chip.torus else "gpu"]


def _expected(model, chip, parallelism, tokens, flops, in_layers, products, sent, update, scatters):
    """(the expected time of a step, what of it is communication that nothing hides).

    Hidden are: the gathers and scatters of FSDP behind the products of other layers; the gradients' all-reduce behind
    the backward pass of the last micro-batch; the ring of context parallelism behind attention; what goes to the host
    behind the forward pass, a quarter of the products if layers are computed again, and what returns behind the
    backward pass. Tensor and expert parallelism wait for their collectives, and the FSDP and data parallelism of a
    first and a last layer have nothing to hide behind.

    `scatters` is how often FSDP reduce-scatters in a step. FSDP that gathers once in a step hides behind all
    micro-batches too. If only one of them hid it, five published runs would be expected to take 14 to 36 per cent
    longer than they took; so it is 9 to 15.
    """
    fitted, (near, far, late, host) = _fitted(chip), sent
    share = next((part for name, part in fitted.products.items() if chip.name.startswith(name)), fitted.other)
    tensor, micro = np.asarray(parallelism.tensor, float), np.asarray(parallelism.microbatches, float)
    rows = np.maximum(tokens / micro, 1e-9)
    parts = []  # (share of the layers' products, their smallest dimension)
    attention, ff = model.attention_parameters, model.ff_matmul_parameters
    parts.append((attention, np.minimum(rows, np.minimum(model.d_model, model.heads * model.head_dim / tensor))))
    if model.experts:
        routed = rows * model.experts_per_token * parallelism.expert / model.experts
        parts.append((ff, np.minimum(routed, (model.expert_d_ff or model.d_ff) / tensor)))
    else:
        parts.append((ff, np.minimum(rows, np.minimum(model.d_model, model.d_ff / tensor))))
    slower = sum(many * (1 + fitted.half / smallest) for many, smallest in parts) / (attention + ff)
    work = (in_layers / chip.peak(products) * slower + (flops - in_layers) / chip.peak("bf16")) / share
    took = {axis: np.maximum(near[axis] / fitted.links, far[axis] / fitted.network) + late[axis] for axis in MESH_AXES}
    layers = model.layers / np.asarray(parallelism.pipeline, float)
    scores = flops - in_layers
    exposed = took["tensor"] + took["expert"] + took["pipeline"] / micro
    exposed = exposed + np.maximum(took["fsdp"] - work, 0) + took["fsdp"] / (layers * scatters)
    exposed = exposed + np.maximum(took["data"] - 2 / 3 * work / micro, 0) + took["data"] / layers
    exposed = exposed + np.maximum(took["context"] - scores / chip.peak("bf16") / share, 0)
    exposed = exposed + np.maximum(host / 2 - work / 4, 0) + np.maximum(host / 2 - work * 3 / 4, 0)
    update = update / chip.hbm_bytes_per_second
    return (work + exposed) * (1 + parallelism.idle) + update, exposed
