"""The time to expect of a step: formulas, with what of them was fitted to published runs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardlab.costs.collectives import collective_bytes, network_seconds
from shardlab.costs.kinds import KINDS
from shardlab.costs.parallelism import MESH_AXES

__all__ = ["FITTED", "Band", "Fitted"]


@dataclass(frozen=True)
class Band:
    """How far off expected times were for one kind of plan or server, on published ones that nothing was fitted to.

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
            return f"not tested on any published measurement; a factor of {self.factor:.2f} is a guess"
        return f"within a factor of {self.factor:.2f} for nine in ten of {self.tested} published measurements left out"


@dataclass(frozen=True)
class Fitted:
    """What formulas cannot know of chips, fitted to runs that others published: `shardlab.published`.

    `python scripts/fit_planner.py` fits it again and tests it on the runs that were left out.

    Attributes:
      products: for each chip the share of its peak that large matrix products reach in a whole step. Fitted.
      other: that share for a chip without a published run: the geometric mean of the others.
      half: the smallest dimension of a product at which it reaches half of that share: 128, the tile of a matrix unit.
      grouped: of that share, what the MLPs of a mixture of experts reach, with routing, sorting and uneven experts.
        Fitted.
      links, network: the share of their bandwidth that collectives reach within a slice or node, and between them.
        Measured by others: NCCL 0.8 on NVLink and 0.75 on eight network cards, TPUs all of their links (of 90 GB/s) and
        a third of their cards.
      call_seconds, hop_seconds, network_hop_seconds: what each collective takes besides: to begin, and for each hop
        within a node and between nodes. NCCL's own numbers for large messages; none for TPUs, whose `Chip` has them.
      bands: for each kind of plan how far off expected times were, on the runs that were left out.

    Source: https://github.com/stas00/ml-engineering, network/benchmarks, and https://github.com/NVIDIA/nccl,
    src/graph/tuning.cc (ring and tree, protocol "Simple"), for NCCL;
    https://github.com/AI-Hypercomputer/tpu-recipes, microbenchmarks, for TPUs; `shardlab.published` for the rest.
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
        {"A100": 0.62, "H100": 0.52}, 0.57, 128.0, 0.38, 0.8, 0.75, 8.4e-6, 3.4e-6, 14e-6,
        {
            "mixture": Band(1.46, 10, 0.94),
            "long": Band(1.37, 13, 1.19),
            "narrow": Band(1.25, 9, 1.11),
            "pipeline": Band(1.27, 16, 1.07),
            "dense": Band(1.36, 39, 1.08),
        },
    ),
    "tpu": Fitted(
        {"v4": 0.73, "v5e": 0.74, "v5p": 0.89, "v6e": 0.58}, 0.73, 128.0, 0.5, 1.0, 0.33, 0.0, 0.0, 0.0,
        {
            "mixture": Band(1.93, 7, 1.17),
            "long": Band(1.2, 2, 1.17),
            "narrow": Band(1.77, 5, 1.26),
            "chip": Band(1.1, 3, 1.09),
            "dense": Band(1.22, 26, 1.03),
        },
    ),
}  # fmt: skip


def axis_seconds(kind, count, all_bytes, place, waits, chip, experts=0):
    """(the time within a slice or node, that between them) of `count` collectives of these bytes together.

    If tokens are sent once to each node, `experts` is how many each has: of as many nodes, chosen at random, some are
    the same. Within the node they are passed on to its experts.
    """
    if kind == "all-to-all":
        within, between = all_bytes / place.far, all_bytes
        if experts:
            nodes = place.far * (1 - (1 - 1 / place.far) ** experts)
            within, between = all_bytes, all_bytes * nodes / experts
        near = place.routed * within / chip.link_bytes_per_second
    elif kind == "collective-permute":  # one of the near chips of an axis sends to another slice or node
        between = np.where(place.far > 1, all_bytes, 0.0)
        near = np.where(place.near > 1, place.crowd * all_bytes / chip.link_bytes_per_second, 0.0)
    else:
        between = all_bytes / place.near
        near = collective_bytes(kind, all_bytes, place.near) / (place.ways * chip.link_bytes_per_second)
    hops = {"all-to-all": place.hops, "collective-permute": place.near > 1}.get(kind, KINDS[kind].rounds * place.hops)
    near = np.maximum(near, count * hops * chip.link_seconds)
    # Libraries take whichever is faster, rings or trees.
    waiting = count if waits else np.asarray(1.0)
    far = [network_seconds(kind, between, place.far, chip, way, count, waiting) for way in ("ring", "tree")]
    return near, np.minimum(*far)


def call_seconds(kind, place, chip):
    """What a collective takes on GPUs besides its bytes: NCCL's own model, for the faster of a ring and a tree."""
    rates = fitted(chip)
    times, devices = KINDS[kind].rounds, place.near * place.far
    if not times:
        hops, across = np.minimum(place.near - 1, 1), np.minimum(place.far - 1, 1)
    else:
        hops, across = times * (devices - place.far), times * (place.far - 1)
    seconds = hops * rates.hop_seconds + across * rates.network_hop_seconds
    if kind == "all-reduce":
        tree = 2 * ((place.near - 1) * rates.hop_seconds + np.log2(place.far) * rates.network_hop_seconds)
        seconds = np.minimum(seconds, tree)
    return np.where(devices > 1, rates.call_seconds + seconds, 0.0)


def fitted(chip):
    """What was fitted to chips of its kind."""
    return FITTED["tpu" if chip.torus else "gpu"]


def expected_seconds(setting, parallelism, tokens, flops, in_layers, sent, update):
    """(the expected time of a step, what of it is communication that nothing hides).

    Hidden are: the gathers and scatters of FSDP behind the products of other layers; the gradients' all-reduce behind
    the backward pass of the last micro-batch; the ring of context parallelism behind attention; what goes to the host
    behind the forward pass, a quarter of the products if layers are computed again, and what returns behind the
    backward pass. Tensor and expert parallelism wait for their collectives, and the FSDP and data parallelism of a
    first and a last layer have nothing to hide behind.

    With "tensor" in `overlap` its collectives are sent in as many chunks as there are chips, each behind the product
    of another (Wang and others, "Overlap Communication with Dependent Computation via Decomposition in Large Deep
    Learning Models", ASPLOS 2023), and one chunk is exposed. With "expert" they hide behind another micro-batch.

    FSDP that gathers once in a step hides behind all micro-batches too. If only one of them hid it,
    the five pipelines of Megatron-Core would be expected to take 9 to 20 per cent longer than they
    took; so it is from 4 per cent less to 9 more.
    """
    model, chip = setting.model, setting.chip
    rates, (near, far, late, host) = fitted(chip), sent
    share = next((part for name, part in rates.products.items() if chip.name.startswith(name)), rates.other)
    tensor, micro = np.asarray(parallelism.tensor, float), np.asarray(parallelism.microbatches, float)
    rows = np.maximum(tokens / micro, 1e-9)
    parts = []  # (share of the layers' products, their smallest dimension)
    attention, ff = model.attention_parameters, model.ff_matmul_parameters
    parts.append((attention, np.minimum(rows, np.minimum(model.d_model, model.heads * model.head_dim / tensor))))
    if model.experts:
        routed = rows * model.experts_per_token * parallelism.expert / model.experts
        parts.append((ff / rates.grouped, np.minimum(routed, (model.expert_d_ff or model.d_ff) / tensor)))
    else:
        parts.append((ff, np.minimum(rows, np.minimum(model.d_model, model.d_ff / tensor))))
    slower = sum(many * (1 + rates.half / smallest) for many, smallest in parts) / (attention + ff)
    peak, plain_peak = chip.peak(setting.products), chip.peak("bf16")
    work = (in_layers / peak * slower + (flops - in_layers) / plain_peak) / share
    took = {axis: np.maximum(near[axis] / rates.links, far[axis] / rates.network) + late[axis] for axis in MESH_AXES}
    layers = model.layers / np.asarray(parallelism.pipeline, float)
    scores = flops - in_layers
    products_seconds = in_layers / peak * slower / share
    _, scatters = setting.rounds(micro)
    alone = {  # of each axis, what has nothing to hide behind
        "data": np.maximum(took["data"] - 2 / 3 * work / micro, 0) + took["data"] / layers,
        "fsdp": np.maximum(took["fsdp"] - work, 0) + took["fsdp"] / (layers * scatters),
        "tensor": took["tensor"],
        "pipeline": took["pipeline"] / micro,
        "context": np.maximum(took["context"] - scores / plain_peak / share, 0),
        "expert": took["expert"],
    }
    if "tensor" in setting.overlap:  # in as many chunks as there are chips, of which one has nothing to hide behind
        alone["tensor"] = np.maximum(took["tensor"] - products_seconds, took["tensor"] / tensor)
    if "expert" in setting.overlap:  # behind another micro-batch, which the first and the last do not have
        alone["expert"] = np.maximum(took["expert"] - work, took["expert"] / micro)
    exposed = sum(alone[axis] for axis in MESH_AXES)
    exposed = exposed + np.maximum(host / 2 - work / 4, 0) + np.maximum(host / 2 - work * 3 / 4, 0)
    update = update / chip.hbm_bytes_per_second
    return (work + exposed) * (1 + parallelism.idle) + update, exposed
