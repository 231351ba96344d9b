"""What a program costs on hardware that we do not have: bytes, operations, seconds and memory, by formula.

A device computes, moves numbers between its memory and its units, and talks to others. Each of the three has a
speed, so each gives a time, and the largest is a bound for all: the roofline. Everything here is that, for
collectives, matrix products, transformer layers, training steps and decoding steps. Arguments may be NumPy arrays,
which broadcast: what takes one layout takes 100,000.

Bytes. `array_bytes` of a collective is the larger of what *one device* puts in and gets: the result of an
all-gather, the operand of a reduce-scatter, either of an all-reduce, an all-to-all or a permute.
`collective_bytes` makes of it what a device sends on a ring, which is `shardlab.comms.Collective.bytes`: (n-1)/n of
the array for a gather. Dividing that by what a device can send along the ring in both directions, W, is the form
(array size) / W of the book *How To Scale Your Model* (https://jax-ml.github.io/scaling-book/, "Scaling Book"
below), which leaves the (n-1)/n out. For an all-to-all that book's array is the whole one, n times ours.

Dtypes have short names: "f32", "bf16", "fp8", "int8", "fp4", "int4".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

__all__ = [
    "BYTES", "CHIPS", "MODELS", "REMAT", "Chip", "DecodeCost", "Layout", "Memory", "Model", "Roofline", "StepCost",
    "activation_bytes", "chip", "collective_bytes", "collective_seconds", "crossover_bytes", "decode_cost",
    "hierarchical_seconds", "latency_seconds", "layer", "layouts", "matmul", "node_bytes", "step_cost",
    "training_flops", "training_memory",
]  # fmt: skip

BYTES = {"f32": 4, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 0.5, "int4": 0.5}
REMAT = ("none", "matmuls", "mlp", "block")
_GATHERS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}
_KINDS = (*_GATHERS, "all-to-all", "collective-permute")


# --- Arguments -------------------------------------------------------------------------------------------------


def _first(values, wrong):
    values, wrong = np.broadcast_arrays(values, wrong)
    return values[wrong].flat[0].item()


def _whole(name, value):
    """Whole numbers of at least one."""
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be a whole number or an array of them, not {value!r}")
    wrong = ~((numbers >= 1) & (numbers == np.floor(numbers)))
    if wrong.any():
        raise ValueError(f"{name} is {_first(numbers, wrong)}; use a whole number of at least 1")
    return numbers[()]


def _amount(name, value):
    """Finite numbers that are not negative, as floats: products of them do not wrap around."""
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be a number or an array of them, not {value!r}")
    wrong = ~((numbers >= 0) & np.isfinite(numbers))
    if wrong.any():
        raise ValueError(f"{name} is {_first(numbers, wrong)}; use a number that is not negative")
    return numbers.astype(float)[()]


def _one_of(name, value, known):
    if value not in known:
        raise ValueError(f"{name}={value!r} is not known; use one of {', '.join(known)}")
    return value


def _size(name, dtype):
    return BYTES[_one_of(name, dtype, tuple(BYTES))]


def _fit(model, tensor):
    tensor = _whole("the tensor axis", tensor)
    if np.any(_unfit(model, tensor)):
        raise ValueError(
            f"a tensor axis of {_first(tensor, _unfit(model, tensor))} cannot cut {model.heads} heads and "
            f"{model.kv_heads} kv_heads evenly; use a divisor of {model.heads} that divides {model.kv_heads} or is a "
            "multiple of it"
        )


# --- Hardware --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chip:
    """What a data sheet says of a chip and its links. Where a number comes from stands beside it in the source.

    Attributes:
      name: as in `CHIPS`.
      flops_per_second: peak by precision, dense (without sparsity).
      hbm_bytes: memory.
      hbm_bytes_per_second: between that memory and the chip.
      link_bytes_per_second: one way; of one ICI link of a TPU, of all NVLinks of a GPU together.
      link_seconds: a hop over that link, however small the message.
      torus: the largest slice, in chips along each axis; () where a switch joins the chips of a node.
      node_chips: chips on a host (TPU) or in an NVLink node (GPU).
      network_bytes_per_second: one way, for each chip, between slices (DCN) or nodes (InfiniBand).
      network_seconds: a message over that network, however small.
    """

    name: str
    flops_per_second: Mapping[str, float]
    hbm_bytes: float
    hbm_bytes_per_second: float
    link_bytes_per_second: float
    link_seconds: float
    torus: tuple[int, ...]
    node_chips: int
    network_bytes_per_second: float
    network_seconds: float

    def rings(self, shape):
        """Which axes of a slice of this shape close to a ring, as a tuple; on a switch any order is one.

        A v5e or v6e closes axes of 16 chips; v4 and v5p all axes, if the slice is made of full 4x4x4 cubes.
        Source: Scaling Book, "TPU Networking".
        """
        if not self.torus:
            return (True,) * len(shape)
        if len(self.torus) == 2:
            return tuple(np.equal(size, 16) for size in shape)
        cubes = reduce(np.logical_and, (np.mod(size, 4) == 0 for size in shape))
        return (cubes,) * len(shape)

    def peak(self, dtype="bf16"):
        """FLOP/s in a precision; ValueError if the data sheet has none."""
        if dtype not in self.flops_per_second:
            raise ValueError(f"{self.name} has no peak for {dtype!r}; it has {', '.join(self.flops_per_second)}")
        return self.flops_per_second[dtype]

    def intensity(self, dtype="bf16", over="hbm", axes=1, chips=1):
        """Operations that take as long as moving a byte: where a roofline bends. For a v5p over a ring, 2,550.

        Args:
          dtype: of the operations.
          over: "hbm"; "links", in both directions along rings; "network".
          axes: torus axes that are used at once, for "links".
          chips: that share the array, for "network", each sending its part of it.

        Returns:
          FLOPs per byte. With two bytes for a number, the tokens per chip from which a data-parallel or FSDP step
          is bound by compute (Scaling Book, "Training").
        """
        ways = 2 if self.torus else 1
        speed = {
            "hbm": self.hbm_bytes_per_second,
            "links": ways * self.link_bytes_per_second * axes,
            "network": self.network_bytes_per_second * chips,
        }
        return self.peak(dtype) / speed[_one_of("over", over, tuple(speed))]


# TPUs. Looked up on 2026-11-21.
#   [v4]  https://docs.cloud.google.com/tpu/docs/v4:  275 TFLOP/s bf16 or int8; 32 GiB, 1200 GB/s
#   [v5e] https://docs.cloud.google.com/tpu/docs/v5e: 197 TFLOP/s, 393 TOP/s int8; 16 GB, 819 GB/s; 8 chips a host with
#         2 x 100 Gbit/s; ICI 400 GB/s in both directions on 4 ports, so 50 GB/s one way
#   [v5p] https://docs.cloud.google.com/tpu/docs/v5p: 459 TFLOP/s; 95 GB, 2765 GB/s; DCN 50 Gbit/s a chip; ICI 1200 GB/s
#         in both directions on 6 ports, so 100 GB/s one way
#   [v6e] https://docs.cloud.google.com/tpu/docs/v6e: 918 TFLOP/s, 1836 TOP/s int8; 32 GB, 1600 GB/s; 8 chips a host
#         with 4 x 200 Gbit/s; ICI 3200 Gbit/s on 4 ports, so 100 GB/s one way
#   These pages change. Other versions of them have 1638 GB/s for v6e, and for v5p 95 GiB, which is 102 GB, at 2575
#   GiB/s, which is the same speed.
#   [SB]  https://jax-ml.github.io/scaling-book/tpus/, commit 54e2c43 of github.com/jax-ml/scaling-book: 45 or 90 GB/s
#         one way for a link, "slightly different" from the data sheets, and used here; int8 of v5p; shapes of pods and
#         hosts; DCN of v4 ("typically" 6.25 GB/s). Its part on sharding: "typically around 1us" for a hop.
#   [DCN] https://research.google/pubs/pub49448/ (Kumar and others, "Swift: Delay is Simple and Effective for Congestion
#         Control in the Datacenter", SIGCOMM 2020): measured between Google's servers at 100 Gbit/s each, a load of
#         nearly 100 %, short calls take 50 us at the tail. A call is a message and its answer, so 25 us for one, and
#         the tail, as a collective waits for its slowest message. The way from a TPU to its host is not in it.
# GPUs. Looked up on 2026-11-21.
#   [A100] https://www.nvidia.com/en-us/data-center/a100/: 312 TFLOP/s bf16, 624 TOP/s int8; 80 GB, 2039 GB/s; NVLink
#          600 GB/s in both directions. DGX A100: 8 x 200 Gbit/s InfiniBand for 8 GPUs
#   [H100] https://www.nvidia.com/en-us/data-center/h100/ (SXM): 1979 TFLOP/s bf16 and 3958 fp8 and int8 with sparsity,
#          half of it without; 80 GB, 3.35 TB/s; NVLink 900 GB/s in both directions
#   [H200] https://www.nvidia.com/en-us/data-center/h200/: as H100, with 141 GB at 4.8 TB/s; so says NVIDIA, too, in
#          https://github.com/NVIDIA/TensorRT-LLM/blob/main/docs/source/blogs/H200launch.md
#   [B200] https://www.nvidia.com/en-us/data-center/dgx-b200/: 8 GPUs have 72 PFLOP/s fp8 with sparsity, half without,
#          72 PFLOP/s fp4 without; 1440 GB, 64 TB/s; NVLink 14.4 TB/s. bf16 is half of fp8, as in the Scaling Book's
#          table, https://jax-ml.github.io/scaling-book/gpus/
#   [POD]  https://docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-enterprise-ai/latest/
#          core-components.html: H100, H200 and B200 nodes have 8 x 400 Gbit/s InfiniBand for 8 GPUs
#   [NCCL] https://github.com/NVIDIA/nccl, hwLatencies of ncclTunerConstantsDefaults: a hop of a ring with the protocol
#          for small messages (LL) takes 0.6 us on NVLink and 2.7 us on a network. NCCL counts 6.6 us besides for each
#          call, which are not counted here.
_TPU = {"link_seconds": 1e-6, "network_seconds": 25e-6}  # [SB], [DCN]
_GPU = {"link_seconds": 0.6e-6, "network_seconds": 2.7e-6}  # [NCCL]
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", {"bf16": 275e12, "int8": 275e12}, 32 * 2**30, 1200e9, 45e9, torus=(16, 16, 16), node_chips=4,
             network_bytes_per_second=6.25e9, **_TPU),  # [v4], [SB]
        Chip("v5e", {"bf16": 197e12, "int8": 393e12}, 16e9, 819e9, 45e9, torus=(16, 16), node_chips=8,
             network_bytes_per_second=3.125e9, **_TPU),  # [v5e], links [SB]
        Chip("v5p", {"bf16": 459e12, "int8": 918e12}, 95e9, 2765e9, 90e9, torus=(16, 20, 28), node_chips=4,
             network_bytes_per_second=6.25e9, **_TPU),  # [v5p], links and int8 [SB]
        Chip("v6e", {"bf16": 918e12, "int8": 1836e12}, 32e9, 1600e9, 90e9, torus=(16, 16), node_chips=8,
             network_bytes_per_second=12.5e9, **_TPU),  # [v6e], links [SB]
        Chip("A100", {"bf16": 312e12, "int8": 624e12}, 80e9, 2039e9, 300e9, torus=(), node_chips=8,
             network_bytes_per_second=25e9, **_GPU),  # [A100], [NCCL]
        Chip("H100", {"bf16": 989.5e12, "fp8": 1979e12, "int8": 1979e12}, 80e9, 3350e9, 450e9, torus=(), node_chips=8,
             network_bytes_per_second=50e9, **_GPU),  # [H100], [POD], [NCCL]
        Chip("H200", {"bf16": 989.5e12, "fp8": 1979e12, "int8": 1979e12}, 141e9, 4800e9, 450e9, torus=(), node_chips=8,
             network_bytes_per_second=50e9, **_GPU),  # [H200], [POD], [NCCL]
        Chip("B200", {"bf16": 2250e12, "fp8": 4500e12, "fp4": 9000e12}, 180e9, 8000e9, 900e9, torus=(), node_chips=8,
             network_bytes_per_second=50e9, **_GPU),  # [B200], [POD], [NCCL]
    )
}  # fmt: skip


def chip(name):
    """The `Chip` of that name, such as `chip("v5p")`; ValueError names those that are known."""
    if isinstance(name, Chip):
        return name
    if name not in CHIPS:
        raise ValueError(f"no chip is called {name!r}; known are {', '.join(CHIPS)}, or pass a Chip of your own")
    return CHIPS[name]


_chip = chip  # functions have an argument of that name


# --- Collectives -----------------------------------------------------------------------------------------------


def collective_bytes(kind, array_bytes, devices):
    """Bytes that a device sends, on a ring: what `shardlab.comms` counts in a compiled program.

    To gather an array of 1,024 bytes over 8 devices each sends 7/8 of it, 896.

    Args:
      kind: "all-gather", "reduce-scatter", "all-reduce", "all-to-all" or "collective-permute".
      array_bytes: the larger of what a device puts in and gets.
      devices: how many take part.

    Returns:
      (n-1)/n of the array; twice that for an all-reduce; the array for a permute; nothing for one device.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
    sections 4.1 to 4.5.
    """
    n, array_bytes = _whole("devices", devices), _amount("array_bytes", array_bytes)
    if _one_of("kind", kind, _KINDS) == "collective-permute":
        return np.where(n > 1, array_bytes, 0.0)[()]
    return _GATHERS.get(kind, 1) * (n - 1) / n * array_bytes


def collective_seconds(kind, array_bytes, sizes, chip, ring=None):
    """The time of a collective over the links of a slice or node: the larger of its bandwidth and its latency.

    To gather 34 MB along an axis of four v5e takes 3/4 of 34 MB / 45 GB/s = 567 microseconds: four chips of a v5e do
    not close to a ring, so the chip at an end gets the other three quarters over its only link. Along 16 they do, and
    it takes 15/16 of 34 MB / 90 GB/s = 354.

    Args:
      kind: as for `collective_bytes`.
      array_bytes: the larger of what a device puts in and gets.
      sizes: how many chips take part; for several axes of a torus a tuple, such as (16, 16).
      chip: a `Chip`, or the name of one.
      ring: whether the axes close to rings, a bool or one for each; by default `chip.rings(sizes)`.

    Returns:
      Seconds: the bytes of the busiest link divided by its speed, or the hops times their latency, if that is more.
      Several axes are used at once, each for its share of the array.

    Source: Scaling Book, "Sharded matrices" ("How long does this take?", "What happens when we AllGather over
    multiple axes?", and for the all-to-all its footnote: n²/4 chunks of 1/n² of the whole); on a switch its part on
    GPUs ("Intra-node collectives").
    """
    share, hops = _load(kind, sizes, _chip(chip), ring)
    speed = _chip(chip).link_bytes_per_second
    return np.maximum(share * _amount("array_bytes", array_bytes) / speed, hops * _chip(chip).link_seconds)


def latency_seconds(kind, sizes, chip, ring=None):
    """The time of a collective of no bytes: its hops, one after the other.

    A gather takes n/2 hops on a ring, in both directions at once; n-1 on a line or a switch; an all-reduce twice that.

    Args:
      kind, sizes, chip, ring: as for `collective_seconds`.

    Source: Scaling Book, "Sharded matrices", "A note on ICI latency".
    """
    return _load(kind, sizes, _chip(chip), ring)[1] * _chip(chip).link_seconds


def crossover_bytes(kind, sizes, chip, ring=None):
    """The `array_bytes` below which latency decides, and above which bandwidth does; zero for one device.

    An all-reduce over a ring of n has n hops, and (n-1)/n of the array on each link. On a v5p the two take the same
    time at n²/(n-1) times 90 GB/s times one microsecond: 90 kB for each chip, and a little more.

    Args:
      kind, sizes, chip, ring: as for `collective_seconds`.
    """
    share, hops = _load(kind, sizes, _chip(chip), ring)
    made = hops * _chip(chip).link_seconds * _chip(chip).link_bytes_per_second
    return np.where(share > 0, made / np.where(share > 0, share, 1), 0.0)[()]


def hierarchical_seconds(kind, array_bytes, inner, outer, chip, overlap=True):
    """The time of a collective over `outer` nodes or slices of `inner` chips: within each, and between them.

    A sum is scattered within a node, added up between nodes with 1/inner of the array on each chip's own network
    card, and gathered within the node again. An all-to-all sends each piece where it must go.

    Args:
      kind: as for `collective_bytes`.
      array_bytes: the larger of what a device puts in and gets.
      inner: chips of a node or slice that take part; for several torus axes a tuple.
      outer: nodes or slices that take part.
      chip: a `Chip`, or the name of one.
      overlap: whether one level works while the other does; otherwise their times are added.

    Returns:
      Seconds.

    Source: Scaling Book, part on GPUs, "Cross-node collectives"; for TPUs "Scaling Across Pods".
    """
    near, far = _two_levels(kind, array_bytes, inner, outer, _chip(chip))
    return np.maximum(near, far) if overlap else near + far


def node_bytes(kind, array_bytes, inner, outer, hierarchical=True):
    """Bytes that a node of `inner` devices sends to other nodes: what crosses the slow links.

    To add up 4 MiB on each of two nodes with four devices: a flat ring through all eight leaves each node once, with
    7 MiB; in two levels it is 4 MiB. Where several groups cross at once, each with one device on a node, inner is 1,
    and each group sends that.

    Args:
      kind: as for `collective_bytes`; a permute is one along a ring through all devices.
      array_bytes: the larger of what a device puts in and gets.
      inner: devices of a node that take part in one collective.
      outer: nodes that take part.
      hierarchical: whether gathers and sums are done within the node first, or in one ring through all devices.
    """
    inner, outer = _whole("inner", inner), _whole("outer", outer)
    if _one_of("kind", kind, _KINDS) == "all-to-all":
        return inner * _amount("array_bytes", array_bytes) * (outer - 1) / outer
    sent = collective_bytes(kind, array_bytes, outer if hierarchical else inner * outer)
    return np.where(outer > 1, sent, 0.0 * inner)[()]


def _load(kind, sizes, chip, ring=None):
    """(what crosses the busiest link one way, as a share of `array_bytes`; hops one after the other)."""
    _one_of("kind", kind, _KINDS)
    sizes = tuple(_whole("sizes", size) for size in (sizes if isinstance(sizes, tuple | list) else (sizes,)))
    total = reduce(np.multiply, sizes)
    if not chip.torus:
        if kind == "collective-permute":
            return np.where(total > 1, 1.0, 0.0)[()], np.where(total > 1, 1.0, 0.0)[()]
        times = _GATHERS.get(kind, 1)
        return times * (total - 1) / total, times * (total - 1)
    for size in sizes:
        if np.any(size > max(chip.torus)):
            raise ValueError(
                f"{_first(size, size > max(chip.torus))} chips do not fit along an axis of {chip.name}, whose largest "
                f"slice is {' x '.join(map(str, chip.torus))}; pass a tuple with a size for each axis, such as (16, 16)"
            )
    if len(sizes) > len(chip.torus):
        raise ValueError(f"{len(sizes)} axes for {chip.name}, whose torus has {len(chip.torus)}: join some of them")
    in_use = tuple(np.where(size == 1, max(chip.torus), size) for size in sizes)  # an axis of one is not cut
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
    array_bytes, outer = _amount("array_bytes", array_bytes), _whole("outer", outer)
    sizes = inner if isinstance(inner, tuple | list) else (inner,)
    chips = reduce(np.multiply, (_whole("inner", size) for size in sizes))
    if kind == "all-to-all":  # within the node a share of 1/outer, the rest to other nodes
        near = collective_seconds(kind, array_bytes / outer, inner, chip)
        return near, _network(array_bytes * (outer - 1) / outer, outer - 1, chip)
    near = collective_seconds(kind, array_bytes, inner, chip)
    steps = 0 + (outer > 1) if kind == "collective-permute" else _GATHERS.get(kind, 1) * (outer - 1)
    part = array_bytes if kind == "collective-permute" else array_bytes / chips
    return near, _network(collective_bytes(kind, part, outer), steps, chip)


def _network(sent_bytes, steps, chip):
    return np.maximum(sent_bytes / chip.network_bytes_per_second, steps * chip.network_seconds)


# --- Models and layouts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer by its sizes; those of *How To Scale Your Model* are L, D, F, N, K, H, V.

    Attributes:
      layers, d_model, d_ff, heads, kv_heads, head_dim, vocab: whole numbers.
      gated: whether the MLP has two matrices in, and one out, or one in.
      tied: whether the embedding is also the last matrix.
      name: for you.
    """

    layers: int
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated: bool = True
    tied: bool = False
    name: str = ""

    def __post_init__(self):
        for size in ("layers", "d_model", "d_ff", "heads", "kv_heads", "head_dim", "vocab"):
            _whole(size, getattr(self, size))
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly; use a divisor")

    @property
    def attention_parameters(self):
        """Of one layer: queries and output for each head, keys and values for each kv head."""
        return 2 * self.d_model * self.head_dim * (self.heads + self.kv_heads)

    @property
    def mlp_parameters(self):
        """Of one layer."""
        return (3 if self.gated else 2) * self.d_model * self.d_ff

    @property
    def embedding_parameters(self):
        """Of the embedding and the last matrix together."""
        return (1 if self.tied else 2) * self.vocab * self.d_model

    @property
    def parameters(self):
        """All of them, with two norms for each layer and one at the end. Llama 3 70B: 70,553,706,496."""
        layer = self.attention_parameters + self.mlp_parameters + 2 * self.d_model
        return self.layers * layer + self.embedding_parameters + self.d_model

    @property
    def matmul_parameters(self):
        """Those that every token is multiplied with: without norms, and the embedding once, as the last matrix."""
        return self.layers * (self.attention_parameters + self.mlp_parameters) + self.vocab * self.d_model


# Sizes: Scaling Book, "Training LLaMA 3 on TPUs"; for Llama 2 "Training", "Some Problems to Work"; for Llama 3 8B
# Llama Team, "The Llama 3 Herd of Models", 2024, table 3, https://arxiv.org/abs/2407.21783.
MODELS = {
    model.name: model
    for model in (
        Model(40, 5120, 13824, 40, 40, 128, 32_000, name="llama-2-13b"),
        Model(32, 4096, 14_336, 32, 8, 128, 128_256, name="llama-3-8b"),
        Model(80, 8192, 28_672, 64, 8, 128, 128_256, name="llama-3-70b"),
    )
}


@dataclass(frozen=True)
class Layout:
    """How many ways a training step is cut: its batch, its parameters, its layers. Whole numbers, or arrays of them.

    Attributes:
      data: groups of chips with examples of their own and copies of what the group holds.
      fsdp: chips of a group with examples of their own, each with a part of parameters, gradients and moments.
      tensor: chips that share the heads and the MLP of each layer.
      slices: ICI slices over which the chips are spread evenly, the data axis first; for TPUs.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    slices: int = 1

    def __post_init__(self):
        for axis in ("data", "fsdp", "tensor", "slices"):
            _whole(f"the {axis} axis" if axis != "slices" else axis, getattr(self, axis))

    @property
    def chips(self):
        """The product of the axes."""
        return np.multiply(np.multiply(self.data, self.fsdp), self.tensor)


def layouts(chips, model=None, slices=1):
    """Every way to cut a step over so many chips, as one `Layout` of arrays.

    Four chips can be (4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2) or (1, 1, 4).

    Args:
      chips: how many.
      model: leaves out tensor axes that do not divide its heads.
      slices: as in `Layout`.
    """
    chips = int(_whole("chips", chips))
    divisors = [n for n in range(1, chips + 1) if chips % n == 0]
    fitting = [t for t in divisors if model is None or not _unfit(model, np.asarray(t)).any()]
    found = [(chips // (f * t), f, t) for t in fitting for f in divisors if chips // t % f == 0]
    return Layout(*np.array(sorted(found, reverse=True)).T, slices)


def _unfit(model, tensor):
    return (model.heads % tensor != 0) | ((model.kv_heads % tensor != 0) & (tensor % model.kv_heads != 0))


# --- Rooflines -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roofline:
    """What an operation does, and the time that its operations and its traffic with the memory take.

    Attributes:
      flops, hbm_bytes: how many.
      compute_seconds, memory_seconds: those, divided by the chip's speed.
    """

    flops: float
    hbm_bytes: float
    compute_seconds: float
    memory_seconds: float

    @property
    def intensity(self):
        """FLOPs per byte."""
        return self.flops / self.hbm_bytes

    @property
    def seconds(self):
        """The larger of the two times: the chip computes while it loads."""
        return np.maximum(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self):
        """ "compute" or "memory", whichever takes longer."""
        return np.where(np.greater_equal(self.compute_seconds, self.memory_seconds), "compute", "memory")[()]


def _roofline(flops, hbm_bytes, chip, dtype):
    return Roofline(flops, hbm_bytes, flops / chip.peak(dtype), hbm_bytes / chip.hbm_bytes_per_second)


def matmul(m, k, n, chip, dtype="bf16", weights=None):
    """The roofline of (m, k) @ (k, n): 2 m k n operations, and each matrix once over the memory's bus.

    On a v5e, with bf16 and large k and n, it is bound by compute from m = 240 on.

    Args:
      m, k, n: shapes.
      chip: a `Chip`, or the name of one.
      dtype: of the operations, the first matrix and the result.
      weights: of the second matrix; by default the same.

    Source: Scaling Book, "Rooflines", "Matrix multiplication".
    """
    m, k, n = (_whole(name, size) for name, size in (("m", m), ("k", k), ("n", n)))
    m, k, n = (np.asarray(size, float) for size in (m, k, n))  # products of large ints would wrap around
    size, weight_size = _size("dtype", dtype), _size("weights", weights or dtype)
    return _roofline(2 * m * k * n, size * m * (k + n) + weight_size * k * n, _chip(chip), dtype)


def layer(model, chip, tokens, sequence, tensor=1, dtype="bf16"):
    """The rooflines of one transformer layer on its way forwards, on each of the chips that share it, by part.

    Args:
      model: a `Model`.
      chip: a `Chip`, or the name of one.
      tokens: in the batch of those chips.
      sequence: tokens that each attends to (not halved for causal masks, which not every kernel uses).
      tensor: chips that share the layer.
      dtype: of everything.

    Returns:
      A dict: "attention projections" (Q, K, V and output), "attention" (scores and their use, never written to
      memory), "mlp".

    Source: Scaling Book, "Transformer math", tables of MLPs and attention and question 4.
    """
    _fit(model, tensor)
    chip, size, tensor = _chip(chip), _size("dtype", dtype), _whole("tensor", tensor)
    tokens, sequence = _amount("tokens", tokens), _amount("sequence", sequence)
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


def training_flops(model, batch_tokens, sequence=0, remat="none"):
    """Operations of one training step, on all chips together: about six for each parameter and token.

    Two for each number of a matrix on the way forwards, four on the way back, and 12 times sequence, heads and head_dim
    for attention in each layer.

    Args:
      model: a `Model`.
      batch_tokens: in the batch.
      sequence: tokens that each attends to.
      remat: what is computed again on the way back: nothing; "matmuls", the scores of attention; "mlp", all of
        attention; "block", every layer.

    Source: Scaling Book, "Transformer math"; for "block" there "Gradient checkpointing" (8 instead of 6).
    """
    forwards, again = _forward_flops(model, _amount("batch_tokens", batch_tokens), sequence, remat)
    return 3 * forwards + again


def _forward_flops(model, tokens, sequence, remat):
    """(of a way forwards, of what is computed again)."""
    scores = 4.0 * _amount("sequence", sequence) * model.heads * model.head_dim
    attention, mlp = 2.0 * model.attention_parameters, 2.0 * model.mlp_parameters
    again = {"none": 0.0, "matmuls": scores, "mlp": attention + scores, "block": attention + mlp + scores}
    again = model.layers * again[_one_of("remat", remat, REMAT)]
    return tokens * (2.0 * model.matmul_parameters + model.layers * scores), tokens * again


# --- Memory ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """What a chip holds in a training step, in bytes.

    Attributes:
      parameter_bytes, gradient_bytes, moment_bytes, master_bytes: the state, cut over fsdp and tensor.
      activation_bytes: kept from the way forwards for the way back.
      working_bytes: what a layer that is computed again needs for a moment.
      gathered_bytes: two layers of whole parameters, the one in use and the next, where fsdp gathers them.
      logits_bytes: of all tokens, over the vocabulary.
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
    def state_bytes(self):
        """Parameters, gradients, moments and master copies."""
        return self.parameter_bytes + self.gradient_bytes + self.moment_bytes + self.master_bytes

    @property
    def total_bytes(self):
        """All of it, as if all were there at once."""
        return self.state_bytes + self.activation_bytes + self.working_bytes + self.gathered_bytes + self.logits_bytes


def activation_bytes(model, tokens, remat="none", dtype="bf16"):
    """Bytes that a training step keeps of so many tokens for its way back, in all layers, before they are cut.

    Args:
      model: a `Model`.
      tokens: how many.
      remat: "none", all inputs of products, norms and the activation function, but no scores (as fused attention has
        it); "matmuls", the results of all products; "mlp", those of the MLP's; "block", each layer's input.
      dtype: of what is kept.

    Source: counted from the layer's operations; the Scaling Book has about 20 d_model for "none" ("Transformer math",
    "Gradient checkpointing"), and d_model + 2 d_ff for "mlp" ("Training", question 2).
    """
    return _amount("tokens", tokens) * model.layers * _kept_width(model, remat) * _size("dtype", dtype)


def _kept_width(model, remat):
    """Numbers that one layer keeps of a token."""
    d, f, ins = model.d_model, model.d_ff, 2 if model.gated else 1
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return {
        # x, its norm, q, k, v, attention's result; x after attention, its norm, the MLP's products, and what enters out
        "none": 2 * d + 2 * queries + 2 * keys + 2 * d + (ins + 1 + (1 if model.gated else 0)) * f,
        "matmuls": queries + 2 * keys + d + ins * f + d,
        "mlp": ins * f + d,
        "block": d,
    }[_one_of("remat", remat, REMAT)]


def training_memory(
    model, layout, batch_tokens, remat="block", parameters="bf16", gradients="bf16", moments="f32", master=None,
    activations="bf16", logits="f32",
):  # fmt: skip
    """What each chip holds in a training step with Adam, by layout.

    Llama 3 70B in bf16 with moments in f32 has 12 bytes for each parameter: 2 for itself, 2 for its gradient, 8 for
    its moments, or 847 GB, over fsdp times tensor chips.

    Args:
      model: a `Model`.
      layout: a `Layout`, of numbers or arrays.
      batch_tokens: in the whole batch, all at once (for accumulation in k parts, a k-th of it).
      remat: what the way back computes again; see `activation_bytes`.
      parameters, gradients, moments, master, activations, logits: their dtypes; None for what is not there. Adam has
        two moments for each parameter, and a master copy is one more in higher precision.

    Returns:
      `Memory`. Activations are cut over tensor too, as where norms and sums are cut along the sequence; norms count as
      cut like matrices; buffers of the compiler are not in it.

    Source: ZeRO (Rajbhandari and others, 2020), sections 3 and 5; Korthikanti and others, "Reducing Activation
    Recomputation in Large Transformer Models", 2022, section 4, for activations over tensor and sequence.
    """
    _fit(model, layout.tensor)
    data, fsdp, tensor = (np.asarray(a, float) for a in (layout.data, layout.fsdp, layout.tensor))
    tokens = _amount("batch_tokens", batch_tokens) / (data * fsdp)
    size = {
        name: _size(name, dtype) if dtype else 0
        for name, dtype in (
            ("parameters", parameters), ("gradients", gradients), ("moments", moments), ("master", master),
            ("activations", activations), ("logits", logits),
        )
    }  # fmt: skip
    cut = model.parameters / (fsdp * tensor)
    layer_parameters = model.attention_parameters + model.mlp_parameters
    working = _kept_width(model, "none") if remat != "none" else 0
    return Memory(
        parameter_bytes=size["parameters"] * cut,
        gradient_bytes=size["gradients"] * cut,
        moment_bytes=2 * size["moments"] * cut,
        master_bytes=size["master"] * cut,
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
      flops: of one chip, with what is computed again.
      compute_seconds, hbm_seconds: operations, and traffic with the memory.
      data_seconds, fsdp_seconds, tensor_seconds: the collectives along each axis.
      data_bytes, fsdp_bytes, tensor_bytes: what a chip sends along it, on rings, as `shardlab.comms` counts.
      memory: a `Memory`.
      fits: whether that is no more than the chip has.
      mfu: model FLOPs utilisation: the share of the peak that useful operations reach, if all is overlapped.
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
        named = ("compute", "hbm", "data", "fsdp", "tensor")
        return named, np.stack(np.broadcast_arrays(*(getattr(self, f"{name}_seconds") for name in named)))

    @property
    def seconds(self):
        """The time of the largest part: everything else is hidden behind it. No step is faster."""
        return self._parts()[1].max(0)

    @property
    def serial_seconds(self):
        """The sum of compute or memory, whichever is more, and the collectives: nothing is hidden."""
        sent = self.data_seconds + self.fsdp_seconds + self.tensor_seconds
        return np.maximum(self.compute_seconds, self.hbm_seconds) + sent

    @property
    def bound(self):
        """The name of the largest part: "compute", "hbm", "data", "fsdp" or "tensor"."""
        named, parts = self._parts()
        return np.array(named)[parts.argmax(0)]


def step_cost(
    model, chip, layout, batch_tokens, sequence=4096, chips=None, remat="block", torus_axes=None, ring=True,
    efficiency=1.0, gathers=2, parameters="bf16", gradients="bf16", moments="f32", master=None, activations="bf16",
    logits="f32",
):  # fmt: skip
    """What a training step costs, by part, in each of many layouts.

    Data adds up gradients: an all-reduce of what a chip holds of them. FSDP gathers parameters, once for each way, and
    scatters the sums of gradients. Tensor parallelism gathers the activations of its group before attention and before
    the MLP, and scatters their sums afterwards, on both ways, and for "block" on the way that is repeated.

    Args:
      model: a `Model`.
      chip: a `Chip`, or the name of one.
      layout: a `Layout`, of numbers or arrays: one step for each, broadcast with `batch_tokens`.
      batch_tokens: in the whole batch.
      sequence: tokens that each attends to.
      chips: if given, every layout must have so many.
      remat: as for `training_flops`.
      torus_axes: how many of a TPU's torus axes each axis runs over, a dict with "data", "fsdp" and "tensor". By
        default each axis that is cut has one, and those left over go to fsdp, or else data, or else tensor; if there
        are more than the torus has, they share.
      ring: whether these close to rings.
      efficiency: share of the peak FLOP/s that products reach.
      gathers: how often fsdp gathers a parameter in a step: 2, or 1 if the way back still has it.
      parameters, gradients, moments, master, activations, logits: dtypes, as for `training_memory`.

    Returns:
      `StepCost`, with arrays if there were arrays.

    Raises:
      ValueError: an axis is not a whole number, or the product not `chips`; heads cannot be cut over tensor; slices do
        not divide the chips; an unknown chip, remat or dtype. The message names the value.

    Source: Scaling Book, "Training": data, FSDP, tensor, mixed, "Scaling Across Pods", and its last table, of which
    this counts attention too. Where an axis leaves the node or slice: `hierarchical_seconds`.
    """
    chip = _chip(chip)
    total = np.asarray(layout.chips, float)
    if chips is not None and np.any(total != chips):
        wrong = _first(total, total != chips)
        raise ValueError(f"the axes of this layout have {wrong:g} chips, their product, but chips={chips}")
    if np.any(total % layout.slices):
        wrong = _first(total, total % layout.slices != 0)
        raise ValueError(f"{wrong:g} chips cannot be spread evenly over {layout.slices} slices")
    if not 0 < efficiency <= 1:
        raise ValueError(f"efficiency={efficiency} is no share of the peak; use a number above 0 and up to 1")
    memory = training_memory(
        model, layout, batch_tokens, remat, parameters, gradients, moments, master, activations, logits
    )
    data, fsdp, tensor = (np.asarray(a, float) for a in (layout.data, layout.fsdp, layout.tensor))
    tokens = _amount("batch_tokens", batch_tokens) / (data * fsdp)  # of a tensor group

    forwards, again = _forward_flops(model, tokens / tensor, sequence, remat)
    flops = 3 * forwards + again
    compute = flops / (chip.peak("bf16") * efficiency)

    # Each way reads the matrices, and the way back writes gradients; activations are written and read;
    # the optimiser reads and writes its state.
    whole = model.parameters / tensor
    ways = 3 if remat == "block" else 2
    passes = ways * _size("parameters", parameters) * whole + _size("gradients", gradients) * whole
    update = 2 * (memory.state_bytes - memory.gradient_bytes) + memory.gradient_bytes
    hbm = (passes + update + 2 * memory.activation_bytes) / chip.hbm_bytes_per_second

    repeated = {"none": 0, "matmuls": 0, "mlp": 1, "block": 2}[remat]
    pairs = model.layers * (4 + repeated) + 2  # a gather and a scatter; two for the embedding and the last matrix
    held = tokens * model.d_model * _size("activations", activations)
    kept = whole * _size("gradients", gradients) / fsdp
    calls = model.layers
    arrays = {  # for each axis: how often each kind, and the bytes of all its arrays together
        "data": (("all-reduce", calls, kept),),
        "fsdp": (
            ("all-gather", gathers * calls, gathers * whole * _size("parameters", parameters)),
            ("reduce-scatter", calls, whole * _size("gradients", gradients)),
        ),
        "tensor": (("all-reduce", pairs, pairs * held),),
    }
    axes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    torus_axes = _torus_axes(axes, chip) if torus_axes is None else torus_axes
    node = total / layout.slices if chip.torus else np.asarray(float(chip.node_chips))
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
    """How many torus axes each mesh axis gets: one each, the rest to the first of fsdp, data, tensor that is cut."""
    cut = {axis: size > 1 for axis, size in axes.items()}
    number, has = sum(np.asarray(c, int) for c in cut.values()), len(chip.torus)
    spare, share = np.maximum(has - number, 0), np.minimum(has / np.maximum(number, 1), 1)
    first = np.where(cut["fsdp"], "fsdp", np.where(cut["data"], "data", "tensor"))
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
      parameter_seconds: to read the parameters.
      cache_seconds: to read the keys and values of all sequences.
      compute_seconds: the products with the parameters.
      tensor_seconds: two sums of activations in each layer, over the chips.
      cache_bytes, total_bytes: what a chip holds of the cache, and with the parameters.
      fits: whether that is no more than the chip has.
      batch: as given.
    """

    parameter_seconds: float
    cache_seconds: float
    compute_seconds: float
    tensor_seconds: float
    cache_bytes: float
    total_bytes: float
    fits: bool
    batch: float

    @property
    def seconds(self):
        """Reading the cache, and then the larger of reading parameters and multiplying; or the sums over chips."""
        work = self.cache_seconds + np.maximum(self.parameter_seconds, self.compute_seconds)
        return np.maximum(work, self.tensor_seconds)

    @property
    def bound(self):
        """The name of the largest part: "parameters", "cache", "compute" or "tensor"."""
        parts = self.parameter_seconds, self.cache_seconds, self.compute_seconds, self.tensor_seconds
        names = np.array(["parameters", "cache", "compute", "tensor"])
        return names[np.stack(np.broadcast_arrays(*parts)).argmax(0)]

    @property
    def tokens_per_second(self):
        """Of all sequences together."""
        return self.batch / self.seconds


def decode_cost(model, chip, batch, context, tensor=1, weights="bf16", cache="bf16", dtype="bf16", torus_axes=1):
    """What one decoding step costs: a token for each of `batch` sequences.

    Each step reads all parameters and all keys and values, for 2 operations with each parameter and sequence. So small
    batches are bound by reading parameters, and long contexts by reading the cache.

    Args:
      model: a `Model`.
      chip: a `Chip`, or the name of one.
      batch: sequences.
      context: tokens that each has so far.
      tensor: chips that share parameters and cache evenly (beyond kv_heads, a cache is cut along batch or context).
      weights, cache, dtype: of the parameters, of keys and values, of activations and operations.
      torus_axes: over how many torus axes these chips are spread, as rings; for TPUs.

    Returns:
      `DecodeCost`; the work of attention itself is not in it, as it is always less than reading the cache.

    Source: Scaling Book, "All About Transformer Inference", "Theoretical estimates for LLM latency and throughput".
    """
    chip, tensor = _chip(chip), _whole("tensor", tensor)
    if np.any(model.heads % tensor):
        raise ValueError(f"tensor={_first(tensor, model.heads % tensor != 0)} does not divide {model.heads} heads")
    batch, context = _amount("batch", batch), _amount("context", context)
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
        batch=batch,
    )
