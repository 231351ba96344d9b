"""The time to expect of a step: formulas, with what of them was fitted to published runs."""

import numpy as np

from shardlab.costs.rates import fitted
from shardlab.costs.steps.parallelism import MESH_AXES


def expected_seconds(setting, parallelism, tokens, flops, in_layers, sent, update):
    """(the expected time of a step, what of it is communication that nothing hides).

    Hidden are: the gathers and scatters of FSDP behind the products of other layers; the gradients'
    all-reduce behind the backward pass of the last micro-batch; the ring of context parallelism
    behind attention; what goes to the host behind the forward pass, a quarter of the products if
    layers are computed again, and what returns behind the backward pass. Tensor and expert
    parallelism wait for their collectives, and the FSDP and data parallelism of a first and a last
    layer have nothing to hide behind.

    With "tensor" in `overlap` its collectives are sent in as many chunks as there are chips, each
    behind the product of another (Wang and others, "Overlap Communication with Dependent
    Computation via Decomposition in Large Deep Learning Models", ASPLOS 2023), and one chunk is
    exposed. With "expert" they hide behind another micro-batch.

    FSDP that gathers once in a step hides behind all micro-batches too. If only one of them hid it,
    the five pipelines of Megatron-Core would be expected to take 9 to 20 per cent longer than they
    took; so it is from 4 per cent less to 9 more.
    """
    model, chip = setting.model, setting.chip
    rates, (near, far, late, host) = fitted(chip), sent
    share = next(
        (part for name, part in rates.products.items() if chip.name.startswith(name)), rates.other
    )
    tensor, micro = (
        np.asarray(parallelism.tensor, float),
        np.asarray(parallelism.microbatches, float),
    )
    rows = np.maximum(tokens / micro, 1e-9)
    precision = "bf16" if setting.products == "bf16" else "narrow"
    half = rates.half[precision]
    parts = []  # (share of the layers' products, their smallest dimension)
    attention, ff = model.attention_parameters, model.ff_matmul_parameters
    parts.append(
        (
            attention,
            np.minimum(rows, np.minimum(model.d_model, model.heads * model.head_dim / tensor)),
        )
    )
    if model.experts:
        routed = rows * model.experts_per_token * parallelism.expert / model.experts
        width = (model.expert_d_ff or model.d_ff) / tensor
        reached = rates.grouped[precision]
        ff_slower = (1 + reached.half / width + half / routed) / reached.share
        parts.append((ff * ff_slower, np.inf))
    else:
        parts.append((ff, np.minimum(rows, np.minimum(model.d_model, model.d_ff / tensor))))
    slower = sum(many * (1 + half / smallest) for many, smallest in parts) / (attention + ff)
    peak, plain_peak = chip.peak(setting.products), chip.peak("bf16")
    if "expert" in setting.overlap:  # what sends tokens meanwhile computes no products
        share = share * np.where(np.asarray(parallelism.expert) > 1, rates.while_sending, 1.0)
    # heads are a dimension of scores; those of 128 elements are in the fitted shares
    output = (
        (4 if setting.lora else 6)
        * model.vocab
        * model.d_model
        * tokens
        / (tensor * parallelism.pipeline)
    )
    headed = (1 + rates.half["bf16"] / model.head_dim) / (1 + rates.half["bf16"] / 128)
    scores = (flops - in_layers - output) * headed
    work = (in_layers / peak * slower + (scores + output) / plain_peak) / share
    took = {
        axis: np.maximum(near[axis] / rates.links, far[axis] / rates.network) + late[axis]
        for axis in MESH_AXES
    }
    if setting.dispatch == "node":
        apart = far["expert"] / rates.dispatched
        took["expert"] = np.maximum(near["expert"] / rates.links, apart) + late["expert"]
    layers = model.layers / np.asarray(parallelism.pipeline, float)
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
    # in as many chunks as there are chips, of which one has nothing to hide behind
    if "tensor" in setting.overlap:
        alone["tensor"] = np.maximum(took["tensor"] - products_seconds, took["tensor"] / tensor)
    # behind another micro-batch, which the first and the last do not have
    if "expert" in setting.overlap:
        alone["expert"] = np.maximum(took["expert"] - work, took["expert"] / micro)
    exposed = sum(alone[axis] for axis in MESH_AXES)
    exposed = exposed + np.maximum(host / 2 - work / 4, 0) + np.maximum(host / 2 - work * 3 / 4, 0)
    update = update / chip.hbm_bytes_per_second
    return (work + exposed) * (1 + parallelism.idle) + update, exposed
