"""Chips and their links: the numbers of data sheets, each with its source, and what compilers must know of GPUs.

Whatever the book, its planner and its calculators say of hardware comes from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from shardlab._arguments import Numbers, nearest, one_of

__all__ = ["CHIPS", "COMPILED_GPUS", "COMPILED_TPUS", "TPU_KINDS", "Chip", "GpuDescription", "chip"]


@dataclass(frozen=True)
class Chip:
    """A chip and its links, by its data sheet. The source of each number stands beside it in the code.

    >>> chip("v5e").torus, chip("v5e").link_bytes_per_second
    ((16, 16), 45000000000.0)

    Attributes:
      name: as in `CHIPS`.
      flops_per_second: peak FLOP/s by precision, dense (without sparsity).
      hbm_bytes: size of the memory, in bytes.
      hbm_bytes_per_second: bandwidth between that memory and the chip, in bytes/s.
      link_bytes_per_second: one-way bandwidth, of one ICI link of a TPU or of all NVLinks of a GPU together.
      link_seconds: latency of one hop over that link, in seconds.
      torus: the largest slice, in chips along each axis; () where a switch connects the chips of a node.
      node_chips: chips on a host (TPU) or in an NVLink node (GPU).
      network_bytes_per_second: one-way bandwidth of each chip between slices (DCN) or nodes (InfiniBand).
      network_seconds: latency of a message over that network, in seconds.
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

    def rings(self, shape: tuple[Numbers, ...]) -> tuple[bool | np.ndarray, ...]:
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

    def peak(self, dtype: str = "bf16") -> float:
        """FLOP/s in a precision; ValueError if the data sheet has none.

        >>> chip("v5e").peak("int8")
        393000000000000.0
        """
        if dtype not in self.flops_per_second:
            raise ValueError(f"{self.name} has no peak for {dtype!r}; it has {', '.join(self.flops_per_second)}")
        return self.flops_per_second[dtype]

    def intensity(self, dtype: str = "bf16", over: str = "hbm", axes: Numbers = 1, chips: Numbers = 1) -> Numbers:
        """The FLOPs that take as long as moving one byte: the ridge of the roofline. For a v5p over a ring, 2,550.

        >>> round(chip("v5e").intensity())
        241
        >>> chip("v5p").intensity(over="links")
        2550.0

        Args:
          dtype: precision of the FLOPs.
          over: "hbm"; "links", in both directions along rings; "network".
          axes: for "links", the number of torus axes used at once.
          chips: for "network", how many chips hold a shard of the array; each sends its own.

        Returns:
          FLOPs per byte. With two bytes per element, it is also the number of tokens per chip from which a
          data-parallel or FSDP step is compute-bound (Scaling Book, "Training").
        """
        ways = 2 if self.torus else 1
        speed = {
            "hbm": self.hbm_bytes_per_second,
            "links": ways * self.link_bytes_per_second * axes,
            "network": self.network_bytes_per_second * chips,
        }
        return self.peak(dtype) / speed[one_of("over", over, tuple(speed))]


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

# For each kind of TPU that there is a compiler for: the axes of its torus, and how many JAX devices a chip is.
# Source: https://docs.cloud.google.com/tpu/docs/tpu7x for tpu7x, which has no row above.
COMPILED_TPUS = {name: (len(CHIPS[name].torus), 1) for name in ("v5e", "v5p", "v6e")} | {"tpu7x": (3, 2)}

# What JAX calls these chips, by the `device_kind` of their devices.
TPU_KINDS = {"v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "tpu7x": "TPU7x"}


@dataclass(frozen=True)
class GpuDescription:
    """What XLA's compiler needs to know about a GPU besides its bandwidth, which is `Chip.hbm_bytes_per_second`.

    Attributes:
      chip: the `Chip`.
      capability: the CUDA compute capability, such as "9.0".
      cores: streaming multiprocessors; each has `units` FPUs.
      units: FPUs of a core.
      shared_bytes_per_core, shared_bytes_per_block: bytes of shared memory.
      l2_bytes: bytes of the L2 cache.
      clock_ghz: the clock rate.
      memory_bytes: what the driver reports. A data sheet's 80 GB are about 80 GiB, less what the GPU keeps for itself.
    """

    chip: Chip
    capability: str
    cores: int
    units: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    l2_bytes: int
    clock_ghz: float
    memory_bytes: int


# Source: the descriptions of these GPUs that come with XLA,
# https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs. Their bandwidths are those of the data
# sheets, within 0.1 per cent, except that of B200: 7.67 TB/s, where the data sheet above has 8.
COMPILED_GPUS = {
    gpu.chip.name.lower(): gpu
    for gpu in (
        GpuDescription(CHIPS["A100"], "8.0", 108, 64, 167_936, 166_912, 41_943_040, 1.41, 85_100_068_864),
        GpuDescription(CHIPS["H100"], "9.0", 132, 128, 233_472, 232_448, 52_428_800, 1.98, 84_942_979_072),
        GpuDescription(CHIPS["H200"], "9.0", 132, 128, 233_472, 232_448, 52_428_800, 1.98, 151_397_597_184),
        GpuDescription(CHIPS["B200"], "10.0", 148, 128, 233_472, 232_448, 132_644_864, 1.965, 191_514_411_008),
    )
}


def chip(name: str | Chip) -> Chip:
    """The chip of a name.

    >>> chip("v5p").hbm_bytes
    95000000000.0

    Args:
      name: one of `CHIPS`, in upper or lower case, or a `Chip`, which is returned as it is.

    Raises:
      ValueError: there is no such chip; the message lists the known ones.
    """
    if isinstance(name, Chip):
        return name
    name = next((one for one in CHIPS if one.lower() == str(name).lower()), name)
    if name not in CHIPS:
        known = ", ".join(CHIPS)
        raise ValueError(f"no chip is called {name!r}; known are {known}, or pass your own Chip{nearest(name, CHIPS)}")
    return CHIPS[name]
