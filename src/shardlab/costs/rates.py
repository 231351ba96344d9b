"""What chips reach, fitted to published runs, and how far off expected times were."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["FITTED", "Band", "Fitted", "Grouped"]


@dataclass(frozen=True)
class Band:
    """How far off expected times were for one kind of plan or server, on published ones that
    nothing was fitted to.

    >>> band = costs.Band.of([0.9, 1.0, 1.0, 1.1, 1.0, 1.2, 1.0, 1.0, 1.1, 1.5])
    >>> band.factor, band.tested, band.median, band.inside
    (1.51, 10, 1.0, 1.0)

    Attributes:
      factor: by which the expected times are off, at most, for nine in ten of as many and one more,
        so that nine in ten of new ones are expected within it too.
      tested: how many they are.
      median: of the measured times over the expected ones.
      inside: the share of the tested ones within the factor.
    """

    factor: float
    tested: int
    median: float
    inside: float

    @classmethod
    def of(cls, took: Sequence[float]) -> "Band":
        """The band of tested runs or servers, of their measured times over the expected ones.

        Source: Vovk and others, "Algorithmic Learning in a Random World", 2005, chapter 2: of n
        and one more that are alike, the last is within the k-th of n errors with a chance of
        k / (n + 1).
        """
        off = np.sort(np.exp(np.abs(np.log(took))))
        nine_in_ten = min(math.ceil(0.9 * (len(off) + 1)), len(off))
        factor = math.floor(100 * off[nine_in_ten - 1] + 1) / 100
        return cls(
            factor,
            len(off),
            round(float(np.median(took)), 2),
            round(float(np.mean(off <= factor)), 3),
        )

    def range(self, value: float) -> tuple[float, float]:
        """The range of an expected value."""
        return value / self.factor, value * self.factor

    def __str__(self) -> str:
        return (
            f"within a factor of {self.factor:.2f} for {self.inside:.0%} of {self.tested} "
            "published measurements left out"
        )


@dataclass(frozen=True)
class Grouped:
    """What the products of a mixture's experts reach of the share that large products reach.

    >>> reached = costs.FITTED["gpu"].grouped["narrow"]
    >>> wide, thin = (reached.share / (1 + reached.half / width) for width in (16_384, 768))
    >>> wide > 1.5 * thin
    True

    Attributes:
      share: of experts with a wide hidden layer.
      half: the width, on a chip, at which they reach half of that: what permutes, casts and
        activates takes time for each token, and the narrower an expert is, the less it computes.
    """

    share: float
    half: float


@dataclass(frozen=True)
class Fitted:
    """What formulas cannot know of chips, fitted to runs that others published:
    `shardlab.published`.

    `python scripts/fit_planner.py` fits it again and tests it on the runs that were left out.

    Attributes:
      products: for each chip the share of its peak that large matrix products reach in a whole
        step. Fitted.
      other: that share for a chip without a published run: the geometric mean of the others.
      half: the smallest dimension of a product at which it reaches half of that share: for "bf16"
        128, the tile of a matrix unit; for "narrow" dtypes, which are cast first, fitted on GPUs.
      grouped: of that share, what the MLPs of a mixture of experts reach, with routing, sorting and
        casts: a `Grouped` for products in "bf16", and one for "narrow" dtypes. Fitted.
      links, network: the share of their bandwidth that collectives reach within a slice or node,
        and between them. Measured by others: NCCL 0.8 on NVLink and 0.75 on eight network cards,
        TPUs all of their links (of 90 GB/s) and a third of their cards.
      call_seconds, hop_seconds, network_hop_seconds: what each collective takes besides: to begin,
        and for each hop within a node and between nodes. NCCL's own numbers for large messages;
        none for TPUs, whose `Chip` has them.
      dispatched: of the bandwidth between nodes, what a dispatcher reaches that sends a token once
        to a node. DeepEP's own numbers: 58 and 51 GB/s on cards of 50 with 32 and 64 GPUs, of which
        a quarter and an eighth stay in the node; so 43.5 and 44.6.
      while_sending: the share of a chip that is left for products while tokens are sent to their
        experts: all but 20 of 132 multiprocessors in DeepSeek-V3's step.
      bands: for each kind of plan how far off expected times were, on the runs that were left out.

    Source: https://github.com/stas00/ml-engineering, network/benchmarks, and
    https://github.com/NVIDIA/nccl, src/graph/tuning.cc (ring and tree, protocol "Simple"), for
    NCCL; https://github.com/AI-Hypercomputer/tpu-recipes, microbenchmarks, for TPUs;
    https://github.com/deepseek-ai/DeepEP, docs/legacy.md at 0297fc8 (its first version), and
    https://arxiv.org/abs/2412.19437, sections 3.2.2 and 3.5.1, for dispatchers;
    `shardlab.published` for the rest.
    """

    products: Mapping[str, float]
    other: float
    half: Mapping[str, float]
    grouped: Mapping[str, Grouped]
    links: float
    network: float
    call_seconds: float
    hop_seconds: float
    network_hop_seconds: float
    dispatched: float
    while_sending: float
    bands: Mapping[str, Band]


FITTED = {
    "gpu": Fitted(
        products={"A100": 0.62, "H100": 0.52},
        other=0.57,
        half={"bf16": 128.0, "narrow": 1310.0},
        grouped={"bf16": Grouped(1.0, 10.0), "narrow": Grouped(0.76, 510.0)},
        links=0.8,
        network=0.75,
        call_seconds=8.4e-6,
        hop_seconds=3.4e-6,
        network_hop_seconds=14e-6,
        dispatched=0.88,
        while_sending=112 / 132,
        bands={
            "adapters": Band(1.24, 9, 1.07, 1.0),
            "narrow mixture": Band(1.49, 9, 0.98, 1.0),
            "mixture": Band(1.61, 9, 1.07, 1.0),
            "long": Band(1.37, 27, 0.97, 0.963),
            "narrow": Band(1.27, 13, 1.03, 1.0),
            "pipeline": Band(1.3, 16, 1.07, 1.0),
            "dense": Band(1.34, 41, 1.06, 0.927),
        },
    ),
    "tpu": Fitted(
        products={"v4": 0.72, "v5e": 0.73, "v5p": 0.87, "v6e": 0.58},
        other=0.72,
        half={"bf16": 128.0, "narrow": 128.0},
        grouped={"bf16": Grouped(0.51, 128.0), "narrow": Grouped(0.51, 128.0)},
        links=1.0,
        network=0.33,
        call_seconds=0.0,
        hop_seconds=0.0,
        network_hop_seconds=0.0,
        dispatched=0.33,
        while_sending=1.0,
        bands={
            "narrow mixture": Band(1.6, 1, 1.6, 1.0),
            "mixture": Band(1.72, 6, 1.12, 1.0),
            "long": Band(1.19, 2, 1.15, 1.0),
            "narrow": Band(1.77, 5, 1.24, 1.0),
            "chip": Band(1.09, 3, 1.07, 1.0),
            "dense": Band(1.27, 26, 1.03, 0.962),
        },
    ),
}


def fitted(chip):
    """What was fitted to chips of its kind."""
    return FITTED["tpu" if chip.torus else "gpu"]
