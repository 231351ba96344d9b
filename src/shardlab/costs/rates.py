"""What chips reach, fitted to published runs, and how far off expected times were."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FITTED", "Band", "Fitted"]


@dataclass(frozen=True)
class Band:
    """How far off expected times were for one kind of plan or server, on published ones that
    nothing was fitted to.

    >>> costs.Band(1.5, 20).range(30.0)
    (20.0, 45.0)

    Attributes:
      factor: by which the expected times are off, at most, for nine in ten of them.
      tested: how many they are; 0 where nothing published has what decides it.
      median: of the measured times over the expected ones; None where it is not recorded.
    """

    factor: float
    tested: int
    median: float | None = None

    def range(self, value: float) -> tuple[float, float]:
        """The range of an expected value."""
        return value / self.factor, value * self.factor

    def __str__(self) -> str:
        if not self.tested:
            return (
                f"not tested on any published measurement; a factor of {self.factor:.2f} is a guess"
            )
        return (
            f"within a factor of {self.factor:.2f} for nine in ten of {self.tested} published "
            "measurements left out"
        )


@dataclass(frozen=True)
class Fitted:
    """What formulas cannot know of chips, fitted to runs that others published:
    `shardlab.published`.

    `python scripts/fit_planner.py` fits it again and tests it on the runs that were left out.

    Attributes:
      products: for each chip the share of its peak that large matrix products reach in a whole
        step. Fitted.
      other: that share for a chip without a published run: the geometric mean of the others.
      half: the smallest dimension of a product at which it reaches half of that share: 128, the
        tile of a matrix unit.
      grouped: of that share, what the MLPs of a mixture of experts reach, with routing, sorting and
        uneven experts. Fitted.
      links, network: the share of their bandwidth that collectives reach within a slice or node,
        and between them. Measured by others: NCCL 0.8 on NVLink and 0.75 on eight network cards,
        TPUs all of their links (of 90 GB/s) and a third of their cards.
      call_seconds, hop_seconds, network_hop_seconds: what each collective takes besides: to begin,
        and for each hop within a node and between nodes. NCCL's own numbers for large messages;
        none for TPUs, whose `Chip` has them.
      bands: for each kind of plan how far off expected times were, on the runs that were left out.

    Source: https://github.com/stas00/ml-engineering, network/benchmarks, and
    https://github.com/NVIDIA/nccl, src/graph/tuning.cc (ring and tree, protocol "Simple"), for
    NCCL; https://github.com/AI-Hypercomputer/tpu-recipes, microbenchmarks, for TPUs;
    `shardlab.published` for the rest.
    """

    products: Mapping[str, float]
    other: float
    half: float
    grouped: float
    links: float
    network: float
    call_seconds: float
    hop_seconds: float
    network_hop_seconds: float
    bands: Mapping[str, Band]


FITTED = {
    "gpu": Fitted(
        {"A100": 0.62, "H100": 0.52},
        0.57,
        128.0,
        0.38,
        0.8,
        0.75,
        8.4e-6,
        3.4e-6,
        14e-6,
        {
            "mixture": Band(1.46, 10, 0.94),
            "long": Band(1.37, 13, 1.19),
            "narrow": Band(1.25, 9, 1.11),
            "pipeline": Band(1.27, 16, 1.07),
            "dense": Band(1.36, 39, 1.08),
        },
    ),
    "tpu": Fitted(
        {"v4": 0.73, "v5e": 0.74, "v5p": 0.89, "v6e": 0.58},
        0.73,
        128.0,
        0.5,
        1.0,
        0.33,
        0.0,
        0.0,
        0.0,
        {
            "mixture": Band(1.93, 7, 1.17),
            "long": Band(1.2, 2, 1.17),
            "narrow": Band(1.77, 5, 1.26),
            "chip": Band(1.1, 3, 1.09),
            "dense": Band(1.22, 26, 1.03),
        },
    ),
}


def fitted(chip):
    """What was fitted to chips of its kind."""
    return FITTED["tpu" if chip.torus else "gpu"]
