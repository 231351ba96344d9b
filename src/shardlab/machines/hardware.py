"""Chips, their links and the machines that they form: data sheets with sources, shapes that exist,
hosts, rings.

Whatever the book, its planner and its calculators say of hardware comes from here.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from pathlib import Path

import numpy as np

from shardlab._arguments import Numbers, nearest, one_of, whole

__all__ = [
    "CHIPS", "COMPILED_GPUS", "COMPILED_TPUS", "TPU_KINDS", "Chip", "GpuDescription", "Machine",
    "chip", "machine",
    "measured", "shapes",
]  # fmt: skip


@dataclass(frozen=True)
class Chip:
    """A chip and its links, by its data sheet. The source of each number stands beside it in the
    code.

    >>> chip("v5e").torus, chip("v5e").link_bytes_per_second
    ((16, 16), 45000000000.0)

    Attributes:
      name: as in `CHIPS`.
      flops_per_second: peak FLOP/s by precision, dense (without sparsity).
      hbm_bytes: size of the memory, in bytes.
      hbm_bytes_per_second: bandwidth between that memory and the chip, in bytes/s.
      link_bytes_per_second: one-way bandwidth, of one ICI link of a TPU or of all NVLinks of a GPU
        together.
      link_seconds: latency of one hop over that link, in seconds.
      torus: the largest slice, in chips along each axis; () where a switch connects the chips of a
        node.
      node_chips: chips on a host (TPU), or in a node (GPU): those that one NVLink switch connects.
      network_bytes_per_second: one-way bandwidth of each chip between slices (DCN) or nodes
        (InfiniBand).
      network_seconds: latency of a message over that network, in seconds.
      host_chips: chips on a host, where that is less than `node_chips`; 0 where it is the same.
      host_bytes_per_second: one-way bandwidth of each chip to its host's memory (PCIe); 0 where no
        source states it.
      peers: where no switch connects the chips of a node, the others to which each has a link of
        its own; else 0.
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
    host_chips: int = 0
    host_bytes_per_second: float = 0.0
    peers: int = 0

    def link_share(self, chips: Numbers) -> Numbers:
        """The share of its links that a chip uses in a group of so many of its node: all, if a
        switch connects them.

        A link of an MI300X reaches one other, so in a pair it uses one of its seven links.

        >>> chip("H100").link_share(2), f"{chip('MI300X').link_share(2):.3f}"
        (1.0, '0.143')

        Source: https://github.com/stas00/ml-engineering, network/README.md at 744d01e, "Infinity
        Fabric / xGMI".
        """
        if not self.peers:
            return 1.0
        return np.clip((np.asarray(chips, float) - 1) / self.peers, 1 / self.peers, 1.0)[()]

    def rings(self, shape: tuple[Numbers, ...]) -> tuple[bool | np.ndarray, ...]:
        """Which axes of a slice of this shape close to a ring, as a tuple; on a switch any order is
        one.

        A v5e or v6e closes axes of 16 chips; v4 and v5p all axes, if the slice is made of full
        4x4x4 cubes. Source: Scaling Book, "TPU Networking".
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
            raise ValueError(
                f"{self.name} has no peak for {dtype!r}; it has {', '.join(self.flops_per_second)}"
            )
        return self.flops_per_second[dtype]

    def intensity(
        self, dtype: str = "bf16", over: str = "hbm", axes: Numbers = 1, chips: Numbers = 1
    ) -> Numbers:
        """The FLOPs that take as long as moving one byte: the ridge of the roofline. For a v5p over
        a ring, 2,550.

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
          FLOPs per byte. With two bytes per element, it is also the number of tokens per chip from
          which a data-parallel or FSDP step is compute-bound (Scaling Book, "Training").
        """
        ways = 2 if self.torus else 1
        speed = {
            "hbm": self.hbm_bytes_per_second,
            "links": ways * self.link_bytes_per_second * axes,
            "network": self.network_bytes_per_second * chips,
        }
        return self.peak(dtype) / speed[one_of("over", over, tuple(speed))]


# TPUs. Looked up on 2026-11-21.
#   [v4] https://docs.cloud.google.com/tpu/docs/v4: 275 TFLOP/s bf16 or int8; 32 GiB, 1200 GB/s
#   [v5e] https://docs.cloud.google.com/tpu/docs/v5e: 197 TFLOP/s, 393 TOP/s int8; 16 GB, 819 GB/s;
#   8 chips a host with
#         2 x 100 Gbit/s; ICI 400 GB/s in both directions on 4 ports, so 50 GB/s one way
#   [v5p] https://docs.cloud.google.com/tpu/docs/v5p: 459 TFLOP/s; 95 GB, 2765 GB/s; DCN 50 Gbit/s a
#         chip; ICI 1200 GB/s in both directions on 6 ports, so 100 GB/s one way
#   [v6e] https://docs.cloud.google.com/tpu/docs/v6e: 918 TFLOP/s, 1836 TOP/s int8; 32 GB, 1600
#         GB/s; 8 chips a host with 4 x 200 Gbit/s; ICI 3200 Gbit/s on 4 ports, so 100 GB/s one way
#   [tpu7x] https://docs.cloud.google.com/tpu/docs/tpu7x, looked up on 2026-11-24: 2307 TFLOP/s
#         bf16, 4614 fp8; 192 GiB, 7380 GB/s; ICI 1200 GB/s in both directions on 6 ports, of which
#         we take 90 GB/s one way as for v5p (a gather over two links reached 178.8 GB/s:
#         https://github.com/AI-Hypercomputer/tpu-recipes, microbenchmarks/ironwood); DCN 100 Gbit/s
#         a chip; 4 chips a host; pods of 9,216 chips, of which the largest slice listed in
#         https://github.com/AI-Hypercomputer/maxtext, accelerator_to_spec_map.py, is 16x24x24
#   These pages change. Other versions of them have 1638 GB/s for v6e, and for v5p 95 GiB, which is
#   102 GB, at 2575 GiB/s, which is the same speed.
#   [SB] https://jax-ml.github.io/scaling-book/tpus/, commit 54e2c43 of
#         github.com/jax-ml/scaling-book: 45 or 90 GB/s one way for a link, "slightly different"
#         from the data sheets, and used here; int8 of v5p; shapes of pods and hosts; DCN of v4
#         ("typically" 6.25 GB/s). Its part on sharding: "typically around 1us" for a hop. PCIe, one
#         way for each chip, in its edition of June 2026: "typically around" 16 GB/s, 32 for v6e;
#         none for tpu7x.
#   [DCN] https://research.google/pubs/pub49448/ (Kumar and others, "Swift: Delay is Simple and
#         Effective for Congestion Control in the Datacenter", SIGCOMM 2020): measured between
#         Google's servers at 100 Gbit/s each, a load of nearly 100 %, short calls take 50 us at the
#         tail. A call is a message and its answer, so 25 us for one, and the tail, as a collective
#         waits for its slowest message. The way from a TPU to its host is not in it.
# GPUs. Looked up on 2026-11-21. PCIe, on the data sheets in both directions together: A100 64 GB/s,
# H100, H200 and MI300X 128 GB/s.
#   [A100] https://www.nvidia.com/en-us/data-center/a100/: 312 TFLOP/s bf16, 624 TOP/s int8; 80 GB,
#          2039 GB/s; NVLink 600 GB/s in both directions. DGX A100: 8 x 200 Gbit/s InfiniBand for 8
#          GPUs
#   [H100] https://www.nvidia.com/en-us/data-center/h100/ (SXM): 1979 TFLOP/s bf16 and 3958 fp8 and
#          int8 with sparsity, half of it without; 80 GB, 3.35 TB/s; NVLink 900 GB/s in both
#          directions
#   [H200] https://www.nvidia.com/en-us/data-center/h200/: as H100, with 141 GB at 4.8 TB/s; so says
#          NVIDIA, too, in
#          https://github.com/NVIDIA/TensorRT-LLM/blob/main/docs/source/blogs/H200launch.md
#   [B200] https://www.nvidia.com/en-us/data-center/dgx-b200/: 8 GPUs have 72 PFLOP/s fp8 with
#          sparsity, half without, 72 PFLOP/s fp4 without; 1440 GB, 64 TB/s; NVLink 14.4 TB/s. bf16
#          is half of fp8, as in the Scaling Book's table,
#          https://jax-ml.github.io/scaling-book/gpus/
#   [GB200] https://www.nvidia.com/en-us/data-center/gb200-nvl72/: 72 GPUs in one NVLink domain, 18
#          trays of 4; they have 360 PFLOP/s bf16, 720 fp8 and 1440 fp4 with sparsity, half of it
#          without; 13.4 TB, 576 TB/s; NVLink 130 TB/s in both directions. 400 Gbit/s a GPU between
#          racks, as in the DGX GB200 guide. Looked up on 2026-11-24.
#   [H800] https://arxiv.org/abs/2412.19437 (DeepSeek-V3, section 3.2): as H100, with an NVLink of
#          which 160 GB/s are reached, here 200 one way, and InfiniBand of 50 GB/s. No data sheet of
#          NVIDIA was seen.
#   [H20] https://github.com/stas00/ml-engineering, compute/accelerator: 148 TFLOP/s bf16, 296 fp8
#          and int8; 96 GB, 4.0 TB/s; NVLink as H100. No data sheet of NVIDIA was seen.
#   [MI300X] https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html: 1307.4 TFLOP/s
#          bf16, 2614.9 fp8 and int8; 192 GB, 5.3 TB/s; to each of 7 others 64 GB/s one way, without
#          a switch, 448 together. Network cards are the builder's choice; 400 Gbit/s a GPU are
#          common.
# Looked up on 2026-11-27 in [ML], https://github.com/stas00/ml-engineering at 744d01e,
# compute/accelerator/README.md and network/README.md, which names the maker's page for each number:
#   [A100-40GB] https://huggingface.co/RajBhope/gpu-runtime-predictor, gpu_catalog.json: 40 GB at
#          1555 GB/s, else as A100; no data sheet of NVIDIA was seen. That nodes have 1600 Gbit/s is
#          in llm-foundry's table of MPT.
#   [L40S] https://www.nvidia.com/en-us/data-center/l40s/: 362 TFLOP/s bf16, 733 fp8 and int8; 48
#          GB, 864 GB/s; no NVLink, so GPUs of a node reach each other over PCIe 4.0 x16, 64 GB/s in
#          both directions. Nodes are the builder's choice; AWS g6e.48xlarge has 8 with 400 Gbit/s
#          together.
#   [B300] https://www.nvidia.com/en-us/data-center/dgx-b300/ and hgx/: as B200, with 12.6 PFLOP/s
#          fp4; 8 GPUs have 2.1 TB, 14.4 TB/s of NVLink in both directions, and 800 Gbit/s each
#   [GB300] https://www.nvidia.com/en-us/data-center/gb300-nvl72/, as
#          https://verda.com/blog/gb300-nvl72-architecture has it: 72 GPUs have 180 PFLOP/s bf16,
#          360 fp8 and 1080 fp4 without sparsity; 20 TB, 576 TB/s; NVLink 130 TB/s in both
#          directions. 800 Gbit/s a GPU between racks, [ML].
#   [MI325X] https://www.amd.com/en/products/accelerators/instinct/mi300/mi325x.html: as MI300X, 256
#          GB at 6 TB/s
#   [MI355X] https://www.amd.com/en/products/accelerators/instinct/mi350/mi355x.html: 2.5 PFLOP/s
#          bf16, 5 fp8 and int8, 10.1 fp4; 288 GB, 8 TB/s; to each of 7 others 153 GB/s in both
#          directions; PCIe 5.0 x16. Network cards are the builder's choice; 400 Gbit/s a GPU are
#          common.
#   Between Grace and a GPU [ML] knows "no public spec of the speed"; tpu-recipes,
#   microbenchmarks/ironwood/host_device at c8cfe2f, has none for tpu7x yet. AWS does not say how
#   Trainium2's 1.28 TB/s divide among its links, and Google has no page with the links of the TPUs
#   after tpu7x, so neither is here. [POD]
#   https://docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-enterprise-ai/latest/
#          core-components.html: H100, H200 and B200 nodes have 8 x 400 Gbit/s InfiniBand for 8 GPUs
#   [NCCL] https://github.com/NVIDIA/nccl, hwLatencies of ncclTunerConstantsDefaults: a hop of a
#          ring with the protocol for small messages (LL) takes 0.6 us on NVLink and 2.7 us on a
#          network. NCCL counts 6.6 us besides for each call, which are not counted here.
# Cards that people own or rent singly, looked up on 2026-11-29. All are on PCIe without NVLink;
# where a driver lets no card read another's memory (RTX 4090 and 5090), what is sent goes over the
# host's, and takes longer than this. Nodes and networks are the builder's choice: here eight cards,
# as AWS has of A10G and L4, with 100 Gbit/s together. Products in bf16 add up in f32, at half the
# rate of the larger numbers that are stated for GeForce cards.
#   [GA102] NVIDIA Ampere GA102 GPU Architecture, whitepaper, appendix A: RTX 3090: 71 TFLOP/s bf16,
#          284 int8; 24 GB, 936 GB/s; PCIe 4.0
#   [AD102] NVIDIA Ada GPU Architecture, whitepaper, appendix A: RTX 4090: 165.2 TFLOP/s bf16, 330.3
#          fp8, 660.6 int8; 24 GB, 1008 GB/s; PCIe 4.0
#   [GB202] NVIDIA RTX Blackwell GPU Architecture, whitepaper, appendix A: RTX 5090: 209.5 TFLOP/s
#          bf16, 419 fp8, 838 int8, 1676 fp4; 32 GB, 1792 GB/s; PCIe 5.0
#   [L4] https://www.nvidia.com/en-us/data-center/l4/: with sparsity 242 TFLOP/s bf16, 485 fp8 and
#          int8; 24 GB, 300 GB/s; PCIe 4.0 x16
#   [A10G] NVIDIA A10G, data sheet by NVIDIA and AWS, 2022-02: 70 TFLOP/s bf16, 140 int8; 24 GB, 600
#          GB/s; PCIe 4.0
#   [T4] https://www.nvidia.com/en-us/data-center/tesla-t4/: 65 TFLOP/s fp16, 130 int8, 260 int4; 16
#          GB, 300 GB/s; PCIe 3.0 x16. It multiplies no bf16: what is called so here is fp16 there,
#          as wide and with a loss that has to be scaled.
_TPU = {"link_seconds": 1e-6, "network_seconds": 25e-6}  # [SB], [DCN]
_GPU = {"link_seconds": 0.6e-6, "network_seconds": 2.7e-6}  # [NCCL]
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", {"bf16": 275e12, "int8": 275e12}, 32 * 2**30, 1200e9, 45e9, torus=(16, 16, 16),
             node_chips=4, network_bytes_per_second=6.25e9, host_bytes_per_second=16e9,
             **_TPU),  # [v4], [SB]
        Chip("v5e", {"bf16": 197e12, "int8": 393e12}, 16e9, 819e9, 45e9, torus=(16, 16),
             node_chips=8, network_bytes_per_second=3.125e9, host_bytes_per_second=16e9,
             **_TPU),  # [v5e], links [SB]
        Chip("v5p", {"bf16": 459e12, "int8": 918e12}, 95e9, 2765e9, 90e9, torus=(16, 20, 28),
             node_chips=4, network_bytes_per_second=6.25e9, host_bytes_per_second=16e9,
             **_TPU),  # [v5p], links and int8 [SB]
        Chip("v6e", {"bf16": 918e12, "int8": 1836e12}, 32e9, 1600e9, 90e9, torus=(16, 16),
             node_chips=8, network_bytes_per_second=12.5e9, host_bytes_per_second=32e9,
             **_TPU),  # [v6e], links [SB]
        Chip("tpu7x", {"bf16": 2307e12, "fp8": 4614e12}, 192 * 2**30, 7380e9, 90e9,
             torus=(16, 24, 24), node_chips=4, network_bytes_per_second=12.5e9, **_TPU),  # [tpu7x]
        Chip("A100", {"bf16": 312e12, "int8": 624e12}, 80e9, 2039e9, 300e9, torus=(), node_chips=8,
             network_bytes_per_second=25e9, host_bytes_per_second=32e9, **_GPU),  # [A100], [NCCL]
        Chip("H100", {"bf16": 989.5e12, "fp8": 1979e12, "int8": 1979e12}, 80e9, 3350e9, 450e9,
             torus=(), node_chips=8, network_bytes_per_second=50e9, host_bytes_per_second=64e9,
             **_GPU),  # [H100], [POD], [NCCL]
        Chip("H200", {"bf16": 989.5e12, "fp8": 1979e12, "int8": 1979e12}, 141e9, 4800e9, 450e9,
             torus=(), node_chips=8, network_bytes_per_second=50e9, host_bytes_per_second=64e9,
             **_GPU),  # [H200], [POD], [NCCL]
        Chip("B200", {"bf16": 2250e12, "fp8": 4500e12, "fp4": 9000e12}, 180e9, 8000e9, 900e9,
             torus=(), node_chips=8, network_bytes_per_second=50e9,
             **_GPU),  # [B200], [POD], [NCCL]
        Chip("GB200", {"bf16": 2500e12, "fp8": 5000e12, "fp4": 10e15}, 186e9, 8000e9, 900e9,
             torus=(), node_chips=72, host_chips=4, network_bytes_per_second=50e9,
             **_GPU),  # [GB200], [NCCL]
        Chip("H800", {"bf16": 989.5e12, "fp8": 1979e12, "int8": 1979e12}, 80e9, 3350e9, 200e9,
             torus=(), node_chips=8, network_bytes_per_second=50e9, **_GPU),  # [H800], [NCCL]
        Chip("H20", {"bf16": 148e12, "fp8": 296e12, "int8": 296e12}, 96e9, 4000e9, 450e9, torus=(),
             node_chips=8, network_bytes_per_second=50e9, **_GPU),  # [H20], [NCCL]
        Chip("MI300X", {"bf16": 1307.4e12, "fp8": 2614.9e12, "int8": 2614.9e12}, 192e9, 5300e9,
             448e9, torus=(), node_chips=8, network_bytes_per_second=50e9,
             host_bytes_per_second=64e9, peers=7, **_GPU),  # [MI300X]; latencies as [NCCL]
        Chip("A100-40GB", {"bf16": 312e12, "int8": 624e12}, 40e9, 1555e9, 300e9, torus=(),
             node_chips=8, network_bytes_per_second=25e9, host_bytes_per_second=32e9,
             **_GPU),  # [A100-40GB], [A100], [NCCL]
        Chip("L40S", {"bf16": 362e12, "fp8": 733e12, "int8": 733e12}, 48e9, 864e9, 32e9, torus=(),
             node_chips=8, network_bytes_per_second=6.25e9, host_bytes_per_second=32e9,
             **_GPU),  # [L40S], [NCCL]
        Chip("B300", {"bf16": 2250e12, "fp8": 4500e12, "fp4": 12.6e15}, 262.5e9, 8000e9, 900e9,
             torus=(), node_chips=8, network_bytes_per_second=100e9, **_GPU),  # [B300], [NCCL]
        Chip("GB300", {"bf16": 2500e12, "fp8": 5000e12, "fp4": 15e15}, 277.8e9, 8000e9, 900e9,
             torus=(), node_chips=72, host_chips=4, network_bytes_per_second=100e9,
             **_GPU),  # [GB300], [NCCL]
        Chip("MI325X", {"bf16": 1307.4e12, "fp8": 2614.9e12, "int8": 2614.9e12}, 256e9, 6000e9,
             448e9, torus=(), node_chips=8, network_bytes_per_second=50e9,
             host_bytes_per_second=64e9, peers=7,
             **_GPU),  # [MI325X], [MI300X]; latencies as [NCCL]
        Chip("MI355X", {"bf16": 2500e12, "fp8": 5000e12, "int8": 5000e12, "fp4": 10.1e15}, 288e9,
             8000e9, 535.5e9, torus=(), node_chips=8, network_bytes_per_second=50e9,
             host_bytes_per_second=64e9, peers=7, **_GPU),  # [MI355X]; latencies as [NCCL]
    )
}  # fmt: skip
_CARD = dict(torus=(), node_chips=8, network_bytes_per_second=1.5625e9, **_GPU)
_CARDS = {
    card.name: card
    for card in (
        Chip("RTX 3090", {"bf16": 71e12, "int8": 284e12}, 24e9, 936e9, 32e9,
             host_bytes_per_second=32e9, **_CARD),  # [GA102], [NCCL]
        Chip("RTX 4090", {"bf16": 165.2e12, "fp8": 330.3e12, "int8": 660.6e12}, 24e9, 1008e9, 32e9,
             host_bytes_per_second=32e9, **_CARD),  # [AD102], [NCCL]
        Chip("RTX 5090", {"bf16": 209.5e12, "fp8": 419e12, "int8": 838e12, "fp4": 1676e12}, 32e9,
             1792e9, 64e9, host_bytes_per_second=64e9, **_CARD),  # [GB202], [NCCL]
        Chip("L4", {"bf16": 121e12, "fp8": 242.5e12, "int8": 242.5e12}, 24e9, 300e9, 32e9,
             host_bytes_per_second=32e9, **_CARD),  # [L4], [NCCL]
        Chip("A10G", {"bf16": 70e12, "int8": 140e12}, 24e9, 600e9, 32e9,
             host_bytes_per_second=32e9, **_CARD),  # [A10G], [NCCL]
        Chip("T4", {"bf16": 65e12, "int8": 130e12, "int4": 260e12}, 16e9, 300e9, 16e9,
             host_bytes_per_second=16e9, **_CARD),  # [T4], [NCCL]
    )
}  # fmt: skip

# For each kind of TPU that there is a compiler for: the axes of its torus, and how many JAX devices
# a chip is.
COMPILED_TPUS = {
    name: (len(CHIPS[name].torus), 2 if name == "tpu7x" else 1)
    for name in ("v5e", "v5p", "v6e", "tpu7x")
}

# What JAX calls these chips, by the `device_kind` of their devices.
TPU_KINDS = {"v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "tpu7x": "TPU7x"}


@dataclass(frozen=True)
class GpuDescription:
    """What XLA's compiler needs to know about a GPU besides its bandwidth, which is
    `Chip.hbm_bytes_per_second`.

    Attributes:
      chip: the `Chip`.
      capability: the CUDA compute capability, such as "9.0".
      cores: streaming multiprocessors; each has `units` FPUs.
      units: FPUs of a core.
      shared_bytes_per_core, shared_bytes_per_block: bytes of shared memory.
      l2_bytes: bytes of the L2 cache.
      clock_ghz: the clock rate.
      memory_bytes: what the driver reports. A data sheet's 80 GB are about 80 GiB, less what the
        GPU keeps for itself.
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
# https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs. Their bandwidths
# are those of the data sheets, within 0.1 per cent, except that of B200: 7.67 TB/s, where the data
# sheet above has 8.
COMPILED_GPUS = {
    gpu.chip.name.lower(): gpu
    for gpu in (
        GpuDescription(
            CHIPS["A100"], "8.0", 108, 64, 167_936, 166_912, 41_943_040, 1.41, 85_100_068_864
        ),
        GpuDescription(
            CHIPS["H100"], "9.0", 132, 128, 233_472, 232_448, 52_428_800, 1.98, 84_942_979_072
        ),
        GpuDescription(
            CHIPS["H200"], "9.0", 132, 128, 233_472, 232_448, 52_428_800, 1.98, 151_397_597_184
        ),
        GpuDescription(
            CHIPS["B200"], "10.0", 148, 128, 233_472, 232_448, 132_644_864, 1.965, 191_514_411_008
        ),
    )
}


def chip(name: str | Chip) -> Chip:
    """The chip of a name.

    >>> chip("v5p").hbm_bytes
    95000000000.0

    Args:
      name: one of `CHIPS`, in upper or lower case; a card that people own: "RTX 3090", "RTX 4090",
        "RTX 5090", "L4", "A10G" or "T4", also as "4090"; or a `Chip`, which is returned as it is.

    Raises:
      ValueError: there is no such chip; the message lists the known ones.
    """
    if isinstance(name, Chip):
        return name
    every = CHIPS | _CARDS
    brief = _brief(name)
    name = next((key for key in every if _brief(key) == brief), name)
    if name not in every:
        known = ", ".join(every)
        raise ValueError(
            f"no chip is called {name!r}; known are {known}, or pass your own "
            f"Chip{_near(str(name))}"
        )
    return every[name]


# Google's names of slices: of v4 and v5p they count TensorCores, two of each chip; of the others
# chips. Source: https://docs.cloud.google.com/tpu/docs/v4 and /v5p; [v5e], [v6e] above.
_SLICE = re.compile(r"(v4|v5p|v5e|v5litepod|v6e)-([0-9]{1,6})", re.IGNORECASE)
# cards that others of similar names must not stand for
_OTHER_CARD = re.compile(r"(a|l|t|v|p|mi)\d{1,3}[a-z]?|(gtx|rtx)?(\d{4})(ti|super|d|laptop)*")


def _brief(name):
    """A chip's name without its maker's words, spaces and capitals."""
    name = re.sub(r"\b(nvidia|geforce|amd|instinct|tesla)\b|[\s_]", "", str(name).lower())
    return re.sub(r"^rtx-?(?=\d{4})", "", name)


def slice_of(name: str) -> tuple[str, int] | None:
    """The chip and the number of chips of a slice in Google's names, such as "v5p-256", whose 256
    are cores, two of each chip; None for other names, and for odd numbers of cores.
    """
    found = _SLICE.fullmatch(str(name))
    if not found:
        return None
    kind, many = found[1].lower().replace("v5litepod", "v5e"), int(found[2])
    each = 2 if kind in ("v4", "v5p") else 1
    return (kind, many // each) if many and many % each == 0 else None


def _near(name):
    """What a name that no chip has may mean: a slice in Google's names, or the nearest chip."""
    if found := slice_of(name):
        kind, chips = found
        many = int(name.rpartition("-")[2])
        counts = f"has {many} chips" if many == chips else f"counts {many} cores, two of each chip"
        return f"; {name} {counts}: write {kind} {chips}"
    if _brief(name) == "t4":
        return "; a T4 multiplies no bf16, which every plan assumes"
    if _OTHER_CARD.fullmatch(_brief(name)):
        return f"; {name} is another card, whose numbers are not known here"
    return nearest(name, CHIPS)


# --- Machines -------------------------------------------------------------------------------------

# Slices of the TPUs with two axes; a host of eight chips is 2x4. Source: [v5e] and [v6e] above.
_FLAT_SLICES = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
# Of those with three axes, what is smaller than a cube of 4x4x4; larger ones are made of such
# cubes. Source: [v5p].
_PARTS_OF_A_CUBE = ((1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))


def measured(name: str | Chip) -> dict:
    """What was measured on a chip of this kind: by whoever ran `scripts/record_gpu.py` there, one
    chip, one day.

    >>> h200 = hardware.measured("H200")
    >>> h200["device"], h200["date"]
    ('NVIDIA H200', '2026-11-26')
    >>> big = next(row for row in h200["square"] if (row["size"], row["dtype"]) == (16384, "bfloat16"))
    >>> print(f"{2 * big['size'] ** 3 / big['seconds'] / 1e12:.0f} TFLOP/s in {big['dtype']}")
    781 TFLOP/s in bfloat16

    Args:
      name: a `Chip`, or the name of one.

    Returns:
      "device", "date", "driver" and "packages" say on what; each other key is a measurement, as a
      list of rows. All times are seconds, and all sizes bytes.

    Raises:
      ValueError: the name is not known, or nothing was measured on such a chip.
    """  # noqa: E501
    folder, known_name = Path(__file__).parent / "measured", chip(name).name
    kinds = [kind for kind in CHIPS if (folder / f"{kind.lower()}.json").is_file()]
    if known_name not in kinds:
        raise ValueError(
            f"nothing was measured on {known_name}; there are measurements of {', '.join(kinds)}"
        )
    return json.loads((folder / f"{known_name.lower()}.json").read_text("utf-8"))


@dataclass(frozen=True)
class Machine:
    """The chips that run one program: which, how many, how they are connected, and what their
    memory has room for.

    >>> pods = machine("v5e", 512, slices=2)
    >>> pods.shape, pods.rings, pods.hosts
    ((16, 16), (True, True), 64)
    >>> f"{pods.usable_bytes / 1e9:.1f} GB"
    '14.4 GB'

    Attributes:
      chip: a `Chip`.
      shape: chips along each axis of the torus of a slice, or (chips of a node,) for GPUs.
      slices: how many slices, connected by the DCN, or how many nodes.
      reserve: the share of the chips' memory that is left for the compiler's buffers.
    """

    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1
    reserve: float = 0.1

    @property
    def near(self) -> int:
        """Chips of a slice or node, which fast links connect."""
        return math.prod(self.shape)

    @property
    def chips(self) -> int:
        """All chips."""
        return self.near * self.slices

    @property
    def hosts(self) -> int:
        """How many hosts: JAX runs a process on each."""
        return self.slices * max(self.near // (self.chip.host_chips or self.chip.node_chips), 1)

    @property
    def rings(self) -> tuple[bool, ...]:
        """Which axes of a slice have links that wrap around; on a switch any order of the chips is
        a ring.
        """
        return tuple(bool(ring) for ring in self.chip.rings(self.shape))

    @property
    def usable_bytes(self) -> float:
        """Bytes of a chip's memory, less the reserve."""
        return self.chip.hbm_bytes * (1 - self.reserve)

    @property
    def name(self) -> str:
        """As `shardlab.Pod` takes it: "v5p:8x8x8", "h100:8x8"; for several slices with their number
        in front.
        """
        if not self.chip.torus:
            return f"{self.chip.name.lower()}:{self.slices}x{self.near}"
        return (
            f"{self.slices} x " * (self.slices > 1)
            + f"{self.chip.name}:{'x'.join(map(str, self.shape))}"
        )


def shapes(name: str | Chip) -> dict[int, list[tuple[int, ...]]]:
    """The shapes of all slices of a chip, or of its nodes, by the number of their chips.

    >>> from shardlab.machines.hardware import shapes
    >>> shapes("v5e")[8], shapes("H100")[8]
    ([(2, 4)], [(8,)])

    Args:
      name: as for `chip`.

    Returns:
      A dict from numbers of chips to shapes, each in one order.
    """
    kind = chip(name)
    return _slices_of(kind.torus, kind.node_chips, kind.host_chips or kind.node_chips)


@cache
def _slices_of(torus, node, host):
    if not torus:
        shapes = [(n,) for n in range(1, node + 1) if host % n == 0 or n % host == 0]
    elif len(torus) == 2:
        shapes = [shape for shape in _FLAT_SLICES if shape <= tuple(torus)]
    else:
        most = sorted(torus)
        sides = (range(4, size + 1, 4) for size in most)
        shapes = [
            *_PARTS_OF_A_CUBE,
            *(shape for shape in product(*sides) if list(shape) == sorted(shape)),
        ]
    slices = {}
    for shape in shapes:
        slices.setdefault(math.prod(shape), []).append(shape)
    return slices


def _around(number, known):
    """The known numbers next to one, as text."""
    below, above = [n for n in known if n < number], [n for n in known if n > number]
    return " or ".join(
        f"{n:,}" for n in ([max(below)] if below else []) + ([min(above)] if above else [])
    )


def machine(
    name: "str | Chip | Machine",
    chips: int | None = None,
    *,
    slices: int | None = None,
    shape: Sequence[int] | None = None,
    reserve: float = 0.1,
) -> Machine:
    """The machine that so many chips form, if there is one.

    Of the slices of a TPU with that many chips it is the most cubic. GPUs fill their nodes.

    >>> machine("v5p", 512).name, machine("H100", 64).name, machine("v5e:4x4").rings
    ('v5p:8x8x8', 'h100:8x8', (False, False))

    Args:
      name: as for `chip`, or with its shape, such as "v5p:8x8x8" or, for 2 nodes of 8, "h100:2x8";
        a slice in Google's names, such as "v5p-256", which has 128 chips; a `Chip`; or a `Machine`,
        which is returned as it is.
      chips: how many, in all slices together.
      slices: over how many slices of a TPU they are spread evenly; by default 1. Of GPUs, how many
        nodes.
      shape: chips along each axis of a slice, in any order.
      reserve: the share of a chip's memory that is left for the compiler's buffers.

    Returns:
      A `Machine`.

    Raises:
      ValueError: there is no such chip or no such machine; the message names the nearest that
        exist.

    Source: the pages about each TPU that are named in the code.
    """
    if isinstance(name, Machine):
        if chips not in (None, name.chips):
            raise ValueError(f"{name.name} has {name.chips} chips, not {chips}")
        return name
    if isinstance(name, str) and ":" in name:
        name, _, sizes = name.partition(":")
        if not re.fullmatch(r"\d+(x\d+)*", sizes):
            raise ValueError(
                f"{sizes!r} is no shape; write it as in v5p:8x8x8, or for nodes x GPUs h100:2x8"
            )
        shape = tuple(map(int, sizes.split("x")))
        kind = chip(name)
        if not kind.torus:
            if len(shape) != 2:
                raise ValueError(
                    f"{kind.name}:{sizes} is no shape; write nodes x GPUs, such as h100:2x8"
                )
            slices, shape = shape[0], shape[1:]
    if isinstance(name, str) and (found := slice_of(name)) and chips in (None, found[1]):
        name, chips = found
    kind = chip(name)
    if not 0 <= reserve < 1:
        raise ValueError(
            f"reserve={reserve} is not a share of the memory; use a number from 0 to below 1, "
            "such as 0.1"
        )
    if slices is not None:
        slices = int(whole("slices", slices))
    return (
        _shaped(kind, shape, slices or 1, chips, reserve)
        if shape
        else _sized(kind, chips, slices, reserve)
    )


def _shaped(chip, shape, slices, chips, reserve):
    """The machine of slices of a shape."""
    shape = tuple(int(whole("shape", size)) for size in shape)
    sizes, known = math.prod(shape), shapes(chip)
    if sorted(shape) not in map(sorted, known.get(sizes, ())):
        what = "node" if not chip.torus else "slice"
        alike = [
            known_shape
            for every in known.values()
            for known_shape in every
            if len(known_shape) == len(shape)
        ] or [(1,)]

        def apart(known_shape):
            return sum(
                abs(a - b)
                for a, b in zip(
                    sorted(known_shape), sorted(shape), strict=len(known_shape) == len(shape)
                )
            )

        near = min(alike, key=apart)
        raise ValueError(
            f"there is no {what} {'x'.join(map(str, shape))} of {chip.name}; the nearest is "
            f"{'x'.join(map(str, near))}"
        )
    if chips not in (None, sizes * slices):
        raise ValueError(
            f"{slices} x {'x'.join(map(str, shape))} are {sizes * slices} chips, not {chips}"
        )
    return Machine(chip, shape, slices, reserve)


def _nodes(chip, chips):
    """The fewest nodes over which so many GPUs can be spread evenly, on whole hosts; 0 if there is
    no such number.
    """
    host, known = chip.host_chips or chip.node_chips, shapes(chip)
    fewest = -(-chips // chip.node_chips)
    if fewest == 1:
        return int(chips in known)
    able = (
        n for n in range(fewest, chips // host + 1) if chips % n == 0 and chips // n % host == 0
    )
    return next(able, 0)


def _sized(chip, chips, slices, reserve):
    """The machine of a number of chips."""
    chips = 1 if chips is None else int(whole("chips", chips))
    known = shapes(chip)
    if not chip.torus:
        nodes = slices or _nodes(chip, chips)
        if not nodes or chips % nodes or chips // nodes not in known:
            host = chip.host_chips or chip.node_chips
            several = f" on {nodes} nodes" if slices else ""
            possible = [n for n in known if n <= host] + [
                host * n for n in range(1, chips // host + 2)
            ]
            possible = (
                [n * slices for n in known] if slices else [n for n in possible if _nodes(chip, n)]
            )
            raise ValueError(
                f"{chips} {chip.name} do not fill hosts of {host}{several}; use "
                f"{_around(chips, possible)}"
            )
        return Machine(chip, (chips // nodes,), nodes, reserve)
    slices = slices or 1
    if chips % slices:
        raise ValueError(
            f"{chips} chips cannot be spread evenly over {slices} slices; use a multiple of "
            f"{slices}"
        )
    each = chips // slices
    if each not in known:
        largest = max(known)
        enough = next((n for n in range(2, 1000) if chips % n == 0 and chips // n in known), None)
        several = f", or slices={enough}" if slices == 1 and each > largest and enough else ""
        near = _around(chips, [n * slices for n in known])
        raise ValueError(
            f"no slice of {chip.name} has {each:,} chips, the largest has {largest:,}; use "
            f"{near} chips{several}"
        )
    return Machine(chip, min(known[each], key=sum), slices, reserve)
