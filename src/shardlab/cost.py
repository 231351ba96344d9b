"""What a program costs on hardware that we do not have: bytes, FLOPs, seconds and memory, by formula.

A device computes, moves data between its memory (HBM) and its compute units, and communicates with other devices. Each
of the three has a speed, so each gives a time, and the largest of the three is a lower bound for all of them together:
the roofline. This module applies it to collectives, matrix products, transformer layers, training steps and decoding
steps. Arguments that are `Numbers` may be NumPy arrays, which broadcast: a function that takes one `Parallelism` also
takes 100,000.

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
from shardlab._arguments import Numbers, amount, first, one_of, whole
from shardlab.hardware import Chip
from shardlab.models import Model

__all__ = [
    "AXES", "BYTES", "PARTS", "REMAT", "DecodeCost", "Memory", "Numbers", "Parallelism", "Roofline", "StepCost",
    "activation_bytes", "collective_bytes", "collective_seconds", "crossover_bytes", "decode_cost",
    "hierarchical_seconds", "latency_seconds", "layer", "matmul", "node_bytes", "parallelisms", "step_cost",
    "training_flops", "training_memory",
]  # fmt: skip

AXES = ("data", "fsdp", "tensor")  # of a training step's mesh
PARTS = ("compute", "hbm", *AXES)  # of the time of a training step

BYTES = {"f32": 4, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 0.5, "int4": 0.5}
REMAT = ("none", "matmuls", "mlp", "block")
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

    Args:
      kind: as for `collective_bytes`.
      array_bytes: the larger of a device's operand and result, in bytes.
      sizes: how many chips take part; for several axes of a torus a tuple, such as (16, 16).
      chip: a `shardlab.hardware.Chip`, or the name of one.
      ring: whether the axes form rings, a bool or one for each; by default `chip.rings(sizes)`.

    Returns:
      Seconds: the bytes on the busiest link divided by its bandwidth, or the hops times their latency, if that is
      more. Several axes are used at once, each for its share of the array.

    Source: Scaling Book, "Sharded matrices" ("How long does this take?", "What happens when we AllGather over
    multiple axes?", and for the all-to-all its footnote: n²/4 chunks of 1/n² of the array); on a switch its part on
    GPUs ("Intra-node collectives").
    """
    share, hops = _load(kind, sizes, hardware.chip(chip), ring)
    speed = hardware.chip(chip).link_bytes_per_second
    return np.maximum(share * amount("array_bytes", array_bytes) / speed, hops * hardware.chip(chip).link_seconds)


def latency_seconds(
    kind: str, sizes: Numbers | tuple[Numbers, ...], chip: str | Chip, ring: bool | tuple[bool, ...] | None = None
) -> Numbers:
    """The time of a collective of no bytes: its hops, one after the other.

    An all-gather takes n/2 hops on a ring, in both directions at once, and n-1 on a line or a switch; an all-reduce
    takes twice as many.

    >>> print(f"{cost.latency_seconds('all-gather', 16, 'v5e') * 1e6:.0f} microseconds")
    8 microseconds

    Args:
      kind, sizes, chip, ring: as for `collective_seconds`.

    Source: Scaling Book, "Sharded matrices", "A note on ICI latency".
    """
    return _load(kind, sizes, hardware.chip(chip), ring)[1] * hardware.chip(chip).link_seconds


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

    Returns:
      Seconds.

    Source: Scaling Book, part on GPUs, "Cross-node collectives"; for TPUs "Scaling Across Pods".
    """
    near, far = _two_levels(kind, array_bytes, inner, outer, hardware.chip(chip))
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


def _load(kind, sizes, chip, ring=None):
    """(what crosses the busiest link one way, as a share of `array_bytes`; hops one after the other)."""
    one_of("kind", kind, _KINDS)
    sizes = tuple(whole("sizes", size) for size in (sizes if isinstance(sizes, tuple | list) else (sizes,)))
    total = reduce(np.multiply, sizes)
    if not chip.torus:
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
    ways = [np.where(ring, 2, 1) for ring in rings]
    hops = sum(np.where(ring, size // 2, size - 1) for ring, size in zip(rings, sizes, strict=True))
    if kind == "all-to-all":  # routed along one axis after the other; the busiest link is in the middle of the longest
        return reduce(np.maximum, ((n * n // 4) / n / w for n, w in zip(sizes, ways, strict=True))), hops
    times, out = _GATHERS[kind], sum(w * (n > 1) for n, w in zip(sizes, ways, strict=True))
    return times * (total - 1) / total / np.maximum(out, 1), times * hops


def _two_levels(kind, array_bytes, inner, outer, chip):
    array_bytes, outer = amount("array_bytes", array_bytes), whole("outer", outer)
    sizes = inner if isinstance(inner, tuple | list) else (inner,)
    chips = reduce(np.multiply, (whole("inner", size) for size in sizes))
    if kind == "all-to-all":  # within the node a share of 1/outer, the rest to other nodes
        near = collective_seconds(kind, array_bytes / outer, inner, chip)
        return near, _network(array_bytes * (outer - 1) / outer, outer - 1, chip)
    near = collective_seconds(kind, array_bytes, inner, chip)
    steps = 0 + (outer > 1) if kind == "collective-permute" else _GATHERS.get(kind, 1) * (outer - 1)
    part = array_bytes if kind == "collective-permute" else array_bytes / chips
    return near, _network(collective_bytes(kind, part, outer), steps, chip)


def _network(sent_bytes, steps, chip):
    return np.maximum(sent_bytes / chip.network_bytes_per_second, steps * chip.network_seconds)


# --- Parallelism -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parallelism:
    """How a training step is parallelised: sizes of the data, fsdp and tensor axes, whole numbers or arrays of them.

    >>> print(cost.Parallelism(data=4, fsdp=16, tensor=8).chips, "chips")
    512 chips

    Attributes:
      data: data-parallel replicas of the model, each with examples of its own.
      fsdp: chips of a replica with examples of their own, each with a shard of parameters, gradients and moments.
      tensor: chips that share the heads and the MLP of each layer.
      slices: ICI slices over which the chips are spread evenly, the data axis first; for TPUs.
    """

    data: Numbers = 1
    fsdp: Numbers = 1
    tensor: Numbers = 1
    slices: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            whole(f"the {axis} axis", getattr(self, axis))
        whole("slices", self.slices)

    @property
    def chips(self) -> Numbers:
        """The product of the axes."""
        return np.multiply(np.multiply(self.data, self.fsdp), self.tensor)


def parallelisms(chips: int, model: Model | None = None, slices: int = 1) -> Parallelism:
    """Every way to parallelise a step over a number of chips, as one `Parallelism` of arrays.

    As (data, fsdp, tensor), four chips can be (4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2) or (1, 1, 4).

    >>> ways = cost.parallelisms(4)
    >>> list(zip(ways.data.tolist(), ways.fsdp.tolist(), ways.tensor.tolist()))
    [(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2), (1, 1, 4)]

    Args:
      chips: how many.
      model: if given, tensor axes that do not divide its heads are left out.
      slices: as in `Parallelism`.

    Returns:
      A `Parallelism`.
    """
    chips = int(whole("chips", chips))
    divisors = [n for n in range(1, chips + 1) if chips % n == 0]
    fitting = [t for t in divisors if model is None or model.splits(t)]
    found = [(chips // (f * t), f, t) for t in fitting for f in divisors if chips // t % f == 0]
    return Parallelism(*np.array(sorted(found, reverse=True)).T, slices)


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
    model: Model, chip: str | Chip, tokens: Numbers, sequence: Numbers, tensor: Numbers = 1, dtype: str = "bf16"
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

    Returns:
      A dict: "attention projections" (Q, K, V and output), "attention" (scores and their product with the values; the
      scores are never written to HBM), "mlp".

    Source: Scaling Book, "Transformer math", tables of MLPs and attention and question 4.
    """
    _check_split(model, tensor)
    chip, size, tensor = hardware.chip(chip), _size("dtype", dtype), whole("tensor", tensor)
    tokens, sequence = amount("tokens", tokens), amount("sequence", sequence)
    d, f = model.d_model, model.d_ff
    queries, keys = (n * model.head_dim / tensor for n in (model.heads, model.kv_heads))
    wide = (3 if model.gated else 2) * f / tensor

    def product(parameters, width):
        return _roofline(2.0 * tokens * parameters / tensor, size * (parameters / tensor + tokens * width), chip, dtype)

    return {
        "attention projections": product(model.attention_parameters, 2 * d + 2 * queries + 2 * keys),
        "attention": _roofline(4.0 * tokens * sequence * queries, size * tokens * 2 * (queries + keys), chip, dtype),
        "mlp": product(model.mlp_parameters, 2 * d + wide),
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
        attention; "block", every layer.

    Returns:
      FLOPs.

    Source: Scaling Book, "Transformer math"; for "block" there "Gradient checkpointing" (8 instead of 6).
    """
    forwards, again = _forward_flops(model, amount("batch_tokens", batch_tokens), sequence, remat)
    return 3 * forwards + again


def _forward_flops(model, tokens, sequence, remat):
    """(FLOPs of a forward pass, FLOPs of what is rematerialised)."""
    scores = 4.0 * amount("sequence", sequence) * model.heads * model.head_dim
    attention, mlp = 2.0 * model.attention_parameters, 2.0 * model.mlp_parameters
    again = {"none": 0.0, "matmuls": scores, "mlp": attention + scores, "block": attention + mlp + scores}
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
    """

    parameter_bytes: float
    gradient_bytes: float
    moment_bytes: float
    master_bytes: float
    activation_bytes: float
    working_bytes: float
    gathered_bytes: float
    logits_bytes: float

    @property
    def state_bytes(self) -> Numbers:
        """Parameters, gradients, moments and master weights."""
        return self.parameter_bytes + self.gradient_bytes + self.moment_bytes + self.master_bytes

    @property
    def total_bytes(self) -> Numbers:
        """The sum of all parts, as if all were held at once."""
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
        fused attention); "matmuls", the results of all products; "mlp", those of the MLP; "block", each layer's input.
      dtype: of what is kept.

    Returns:
      Bytes.

    Source: counted from the layer's operations; the Scaling Book has about 20 d_model for "none" ("Transformer math",
    "Gradient checkpointing"), and d_model + 2 d_ff for "mlp" ("Training", question 2).
    """
    return amount("tokens", tokens) * model.layers * _kept_width(model, remat) * _size("dtype", dtype)


def _kept_width(model, remat):
    """Elements that one layer keeps for a token."""
    d, f, ins = model.d_model, model.d_ff, 2 if model.gated else 1
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return {
        # x, its norm, q, k, v, attention's result; x after attention, its norm, the MLP's products, and out's input
        "none": 2 * d + 2 * queries + 2 * keys + 2 * d + (ins + 1 + (1 if model.gated else 0)) * f,
        "matmuls": queries + 2 * keys + d + ins * f + d,
        "mlp": ins * f + d,
        "block": d,
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
      batch_tokens: tokens in the global batch; with gradient accumulation, those of one micro-batch.
      remat: what the backward pass rematerialises; see `activation_bytes`.
      parameters, gradients, moments, master, activations, logits: their dtypes; None for what does not exist. Adam has
        two moments for each parameter, and master weights are one more value in higher precision.

    Returns:
      `Memory`. Activations are sharded over tensor too, as in sequence parallelism; norms are counted as if sharded
      like matrices; the compiler's own buffers are not included.

    Source: ZeRO (Rajbhandari and others, 2020), sections 3 and 5; Korthikanti and others, "Reducing Activation
    Recomputation in Large Transformer Models", 2022, section 4, for activations over tensor and sequence.
    """
    _check_split(model, parallelism.tensor)
    data, fsdp, tensor = (np.asarray(a, float) for a in (parallelism.data, parallelism.fsdp, parallelism.tensor))
    tokens = amount("batch_tokens", batch_tokens) / (data * fsdp)
    size = {
        name: _size(name, dtype) if dtype else 0
        for name, dtype in (
            ("parameters", parameters), ("gradients", gradients), ("moments", moments), ("master", master),
            ("activations", activations), ("logits", logits),
        )
    }  # fmt: skip
    sharded = model.parameters / (fsdp * tensor)
    layer_parameters = model.attention_parameters + model.mlp_parameters
    working = _kept_width(model, "none") if remat != "none" else 0
    return Memory(
        parameter_bytes=size["parameters"] * sharded,
        gradient_bytes=size["gradients"] * sharded,
        moment_bytes=2 * size["moments"] * sharded,
        master_bytes=size["master"] * sharded,
        activation_bytes=size["activations"] * tokens * model.layers * _kept_width(model, remat) / tensor,
        working_bytes=size["activations"] * tokens * working / tensor,
        gathered_bytes=np.where(fsdp > 1, 2 * size["parameters"] * layer_parameters / tensor, 0.0)[()],
        logits_bytes=size["logits"] * tokens * model.vocab / tensor,
    )


# --- Steps -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepCost:
    """What a training step costs on each chip, by part.

    Attributes:
      flops: of one chip, with what is rematerialised.
      compute_seconds, hbm_seconds: the time of its FLOPs, and of its bytes to and from HBM.
      data_seconds, fsdp_seconds, tensor_seconds: the time of the collectives along each axis.
      data_bytes, fsdp_bytes, tensor_bytes: what a chip sends along each axis, on rings, as `shardlab.comms` counts.
      memory: a `Memory`.
      fits: whether its total is no more than the chip's HBM.
      mfu: model FLOPs utilisation: the share of the peak that useful FLOPs reach, if all communication is overlapped.
    """

    flops: float
    compute_seconds: float
    hbm_seconds: float
    data_seconds: float
    fsdp_seconds: float
    tensor_seconds: float
    data_bytes: float
    fsdp_bytes: float
    tensor_bytes: float
    memory: Memory
    fits: bool
    mfu: float

    def _parts(self):
        return np.stack(np.broadcast_arrays(*(getattr(self, f"{part}_seconds") for part in PARTS)))

    @property
    def seconds(self) -> Numbers:
        """The time of the largest part, a lower bound: everything else overlaps with it."""
        return self._parts().max(0)

    @property
    def serial_seconds(self) -> Numbers:
        """The time if nothing overlaps: compute or HBM, whichever is more, plus all collectives."""
        sent = self.data_seconds + self.fsdp_seconds + self.tensor_seconds
        return np.maximum(self.compute_seconds, self.hbm_seconds) + sent

    @property
    def bound(self) -> str | np.ndarray:
        """The name of the largest part: "compute", "hbm", "data", "fsdp" or "tensor"."""
        return np.array(PARTS)[self._parts().argmax(0)]


def step_cost(
    model: Model,
    chip: str | Chip,
    parallelism: Parallelism,
    batch_tokens: Numbers,
    sequence: Numbers = 4096,
    chips: int | None = None,
    remat: str = "block",
    torus_axes: Mapping[str, Numbers] | None = None,
    ring: bool = True,
    efficiency: float = 1.0,
    gathers: int = 2,
    parameters: str = "bf16",
    gradients: str = "bf16",
    moments: str | None = "f32",
    master: str | None = None,
    activations: str = "bf16",
    logits: str | None = "f32",
) -> StepCost:
    """What a training step costs, by part, for one `Parallelism` or many.

    Data parallelism sends an all-reduce of a chip's gradients. FSDP all-gathers parameters, once in the forward and
    once in the backward pass, and reduce-scatters gradients. Tensor parallelism all-gathers the activations of its
    group before attention and before the MLP and reduce-scatters the results, in the forward and the backward pass, and
    for "block" in the rematerialised forward pass too.

    >>> fsdp = cost.Parallelism(fsdp=512)
    >>> step = cost.step_cost(model("llama-3-70b"), "v5p", fsdp, 4 * 2**20)
    >>> print(f"{step.seconds:.2f} s, {step.bound}-bound, MFU {step.mfu:.0%}")
    10.65 s, compute-bound, MFU 75%

    Args:
      model: a `shardlab.models.Model`.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      parallelism: a `Parallelism`, of numbers or arrays: one step for each, broadcast with `batch_tokens`.
      batch_tokens: tokens in the global batch.
      sequence: tokens that each token attends to.
      chips: if given, every one must have this many.
      remat: as for `training_flops`.
      torus_axes: how many of a TPU's torus axes each axis runs over, a dict with "data", "fsdp" and "tensor". By
        default each axis larger than 1 has one, and those left over go to fsdp, or else data, or else tensor; if there
        are more than the torus has, they share.
      ring: whether these form rings.
      efficiency: share of the peak FLOP/s that products reach.
      gathers: how often fsdp gathers a parameter in a step: 2, or 1 if the forward pass's gathered parameters are kept.
      parameters, gradients, moments, master, activations, logits: dtypes, as for `training_memory`.

    Returns:
      `StepCost`, with arrays if there were arrays.

    Raises:
      ValueError: an axis is not a whole number, or the product is not `chips`; the tensor axis does not divide the
        heads; slices do not divide the chips; an unknown chip, remat or dtype. The message names the value.

    Source: Scaling Book, "Training": data, FSDP, tensor, mixed, "Scaling Across Pods", and its last table, of which
    this counts attention too. Where an axis leaves the node or slice: `hierarchical_seconds`.
    """
    chip = hardware.chip(chip)
    total = np.asarray(parallelism.chips, float)
    if chips is not None and np.any(total != chips):
        wrong = first(total, total != chips)
        raise ValueError(f"the axes of this mesh have {wrong:g} chips, their product, but chips={chips}")
    if np.any(total % parallelism.slices):
        wrong = first(total, total % parallelism.slices != 0)
        raise ValueError(f"{wrong:g} chips cannot be spread evenly over {parallelism.slices} slices")
    if not 0 < efficiency <= 1:
        raise ValueError(f"efficiency={efficiency} is no share of the peak; use a number above 0 and up to 1")
    memory = training_memory(
        model, parallelism, batch_tokens, remat, parameters, gradients, moments, master, activations, logits
    )
    data, fsdp, tensor = (np.asarray(a, float) for a in (parallelism.data, parallelism.fsdp, parallelism.tensor))
    tokens = amount("batch_tokens", batch_tokens) / (data * fsdp)  # of a tensor group

    forwards, again = _forward_flops(model, tokens / tensor, sequence, remat)
    flops = 3 * forwards + again
    compute = flops / (chip.peak("bf16") * efficiency)

    # Each pass reads the matrices, and the backward pass writes gradients; activations are written and read;
    # the optimiser reads and writes its state.
    gathered = model.parameters / tensor
    reads = 3 if remat == "block" else 2
    passes = reads * _size("parameters", parameters) * gathered + _size("gradients", gradients) * gathered
    update = 2 * (memory.state_bytes - memory.gradient_bytes) + memory.gradient_bytes
    hbm = (passes + update + 2 * memory.activation_bytes) / chip.hbm_bytes_per_second

    repeated = {"none": 0, "matmuls": 0, "mlp": 1, "block": 2}[remat]
    pairs = model.layers * (4 + repeated) + 2  # a gather and a scatter; two for the embedding and the output matrix
    held = tokens * model.d_model * _size("activations", activations)
    kept = gathered * _size("gradients", gradients) / fsdp
    calls = model.layers
    arrays = {  # for each axis: how often each kind, and the bytes of all its arrays together
        "data": (("all-reduce", calls, kept),),
        "fsdp": (
            ("all-gather", gathers * calls, gathers * gathered * _size("parameters", parameters)),
            ("reduce-scatter", calls, gathered * _size("gradients", gradients)),
        ),
        "tensor": (("all-reduce", pairs, pairs * held),),
    }
    axes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    torus_axes = _torus_axes(axes, chip) if torus_axes is None else torus_axes
    node = total / parallelism.slices if chip.torus else np.asarray(float(chip.node_chips))
    stride = {"tensor": np.asarray(1.0), "fsdp": tensor, "data": tensor * fsdp}
    seconds, sent = {}, {}
    for axis, kinds in arrays.items():
        inner = np.minimum(axes[axis], np.maximum(node // stride[axis], 1))
        outer = np.ceil(axes[axis] / inner)
        seconds[axis] = sum(
            _axis_seconds(kind, count, size, inner, outer, torus_axes.get(axis, 1), ring, chip)
            for kind, count, size in kinds
        )
        sent[axis] = sum(_GATHERS[kind] * (axes[axis] - 1) / axes[axis] * size for kind, count, size in kinds)

    named = {"flops": flops, "compute_seconds": compute, "hbm_seconds": hbm}
    named |= {f"{axis}_seconds": seconds[axis] for axis in axes} | {f"{axis}_bytes": sent[axis] for axis in axes}
    named |= {"fits": memory.total_bytes <= chip.hbm_bytes, "mfu": 3 * forwards / chip.peak("bf16")}
    named = {name: array[()] for name, array in zip(named, np.broadcast_arrays(*named.values()), strict=True)}
    cost = StepCost(memory=memory, **named)
    return replace(cost, mfu=cost.mfu / cost.seconds)


def _torus_axes(axes, chip):
    """How many torus axes each mesh axis gets: one each, the rest to the first of fsdp, data, tensor that is in use."""
    used = {axis: size > 1 for axis, size in axes.items()}
    number, has = sum(np.asarray(one, int) for one in used.values()), len(chip.torus)
    spare, share = np.maximum(has - number, 0), np.minimum(has / np.maximum(number, 1), 1)
    first = np.where(used["fsdp"], "fsdp", np.where(used["data"], "data", "tensor"))
    return {axis: share + spare * (first == axis) for axis in axes}


def _axis_seconds(kind, count, all_bytes, inner, outer, torus_axes, ring, chip):
    """The time of `count` collectives along a mesh axis of inner chips on each of outer nodes."""
    if chip.torus:
        side = inner ** (1 / np.maximum(torus_axes, 1))  # chips along each torus axis
        hops = np.maximum(torus_axes, 1) * (side / 2 if ring else side - 1) * (inner > 1)
        ways = torus_axes * (2 if ring else 1)
    else:
        hops, ways = inner - 1, 1
    times = _GATHERS[kind]
    sent = times * (inner - 1) / inner * all_bytes
    near = np.maximum(sent / ways / chip.link_bytes_per_second, count * times * hops * chip.link_seconds)
    far = _network(times * (outer - 1) / outer * all_bytes / inner, count * times * (outer - 1), chip)
    return np.maximum(near, far)


@dataclass(frozen=True)
class DecodeCost:
    """What it costs to generate one token for each sequence of a batch, on each chip, by part.

    Attributes:
      parameter_seconds: the time to read the parameters.
      cache_seconds: the time to read the KV cache of all sequences.
      compute_seconds: the time of the products with the parameters.
      tensor_seconds: the time of two all-reduces of activations in each layer, over the chips.
      cache_bytes, total_bytes: a chip's bytes of KV cache, and with the parameters.
      fits: whether the total is no more than the chip's HBM.
    """

    parameter_seconds: float
    cache_seconds: float
    compute_seconds: float
    tensor_seconds: float
    cache_bytes: float
    total_bytes: float
    fits: bool

    @property
    def seconds(self) -> Numbers:
        """Reading the cache, plus the larger of reading parameters and multiplying; the all-reduces, if longer."""
        work = self.cache_seconds + np.maximum(self.parameter_seconds, self.compute_seconds)
        return np.maximum(work, self.tensor_seconds)

    @property
    def bound(self) -> str | np.ndarray:
        """The name of the largest part: "parameters", "cache", "compute" or "tensor"."""
        parts = self.parameter_seconds, self.cache_seconds, self.compute_seconds, self.tensor_seconds
        names = np.array(["parameters", "cache", "compute", "tensor"])
        return names[np.stack(np.broadcast_arrays(*parts)).argmax(0)]


def decode_cost(
    model: Model,
    chip: str | Chip,
    batch: Numbers,
    context: Numbers,
    tensor: Numbers = 1,
    weights: str = "bf16",
    cache: str = "bf16",
    dtype: str = "bf16",
    torus_axes: Numbers = 1,
) -> DecodeCost:
    """What one decoding step costs: a token for each of `batch` sequences.

    Each step reads all parameters and the KV cache, for 2 FLOPs with each parameter and sequence. Small batches are
    therefore memory-bound on the parameters, and long contexts memory-bound on the cache.

    >>> step = cost.decode_cost(model("llama-3-8b"), "v5e", 8, 4096, tensor=4)
    >>> print(f"{step.seconds * 1e3:.1f} ms, most of them for the {step.bound}")
    5.9 ms, most of them for the parameters

    Args:
      model: a `shardlab.models.Model`.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      batch: sequences.
      context: tokens of each sequence so far.
      tensor: chips that share parameters and cache evenly (beyond kv_heads, the cache is sharded along batch or
        context).
      weights, cache, dtype: dtypes of the parameters, of the KV cache, of activations and FLOPs.
      torus_axes: over how many torus axes these chips are spread, as rings; for TPUs.

    Returns:
      `DecodeCost`. The FLOPs of attention are not included: 2 heads / kv_heads for each byte of an int8 cache, which is
      far below the intensity of these chips for grouped-query attention. They can exceed the time of reading the cache
      for multi-query attention (one kv head) with a very small cache dtype.

    Source: Scaling Book, "All About Transformer Inference", "Theoretical estimates for LLM latency and throughput".
    """
    chip, tensor = hardware.chip(chip), whole("tensor", tensor)
    if np.any(model.heads % tensor):
        raise ValueError(f"tensor={first(tensor, model.heads % tensor != 0)} does not divide {model.heads} heads")
    batch, context = amount("batch", batch), amount("context", context)
    cached = 2.0 * context * model.layers * model.kv_heads * model.head_dim * _size("cache", cache)
    cached, read = batch * cached / tensor, model.matmul_parameters * _size("weights", weights) / tensor
    held = batch * model.d_model * float(_size("dtype", dtype))
    node = np.asarray(chip.node_chips if not chip.torus else tensor)
    inner = np.minimum(tensor, node)
    calls = 2 * model.layers
    sums = _axis_seconds("all-reduce", calls, calls * held, inner, np.ceil(tensor / inner), torus_axes, True, chip)
    total = cached + model.parameters * _size("weights", weights) / tensor
    return DecodeCost(
        parameter_seconds=read / chip.hbm_bytes_per_second,
        cache_seconds=cached / chip.hbm_bytes_per_second,
        compute_seconds=2.0 * batch * model.matmul_parameters / tensor / chip.peak(dtype),
        tensor_seconds=sums,
        cache_bytes=cached,
        total_bytes=total,
        fits=total <= chip.hbm_bytes,
    )
