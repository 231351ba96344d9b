"""What a training step costs on each chip, by part: compute, memory, and the collectives along each
axis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardlab._arguments import Numbers, amount, first
from shardlab.costs.communication.axes import axis_seconds, call_seconds
from shardlab.costs.communication.places import mesh_places
from shardlab.costs.communication.traffic import collective_bytes
from shardlab.costs.dtypes import FROZEN
from shardlab.costs.setting import Dtypes, TrainingSetting
from shardlab.costs.steps.expected import expected_seconds
from shardlab.costs.steps.memory import Memory, forward_flops, memory_of, score_flops
from shardlab.costs.steps.parallelism import MESH_AXES, Parallelism, check_layers
from shardlab.costs.steps.remat import Remat, remat_of
from shardlab.machines import hardware
from shardlab.machines.hardware import Chip, Machine
from shardlab.machines.models import Model, model as known_model

__all__ = ["PARTS", "AxisCost", "StepCost", "step_cost"]

PARTS = ("compute", "hbm", "host", *MESH_AXES)  # of the time of a training step
_OF_TOKENS = ("tensor", "pipeline", "context")  # the axes that share a sequence and the layers


@dataclass(frozen=True)
class AxisCost:
    """What a training step sends along an axis of the mesh.

    Attributes:
      seconds: the time of its collectives.
      bytes: what a chip sends, on rings, as `shardlab.programs.collectives` counts.
    """

    seconds: Numbers
    bytes: Numbers


@dataclass(frozen=True)
class StepCost:
    """What a training step costs on each chip, by part.

    Attributes:
      flops: of one chip, with what is rematerialised.
      compute_seconds, hbm_seconds: the time of its FLOPs, and of its bytes to and from HBM.
      host_seconds: the time of its bytes to and from the host's memory, with "offload".
      axes: the `AxisCost` of each axis by its name: "data", "fsdp", "tensor", "pipeline",
        "context", "expert".
      bubble: the time that a pipeline waits, as a share of the time that it works.
      memory: a `Memory`.
      fits: whether its total is no more than the chip's HBM, less the reserve.
      mfu: model FLOPs utilisation: the share of the peak that useful FLOPs reach, if all
        communication is overlapped.
      expected_seconds: the time to expect: products at the share of the peak that their sizes
        reach, communication at the share of the bandwidth that collectives reach, and what of it
        cannot overlap added; see `FITTED`.
      exposed_seconds: of that, the communication that nothing hides.
    """

    flops: Numbers
    compute_seconds: Numbers
    hbm_seconds: Numbers
    host_seconds: Numbers
    axes: Mapping[str, AxisCost]
    bubble: Numbers
    memory: Memory
    fits: bool | np.ndarray
    mfu: Numbers
    expected_seconds: Numbers
    exposed_seconds: Numbers

    @property
    def parts(self) -> dict[str, Numbers]:
        """The time of each part, in seconds: of "compute", "hbm", "host" and each axis."""
        of_chip = {
            "compute": self.compute_seconds,
            "hbm": self.hbm_seconds,
            "host": self.host_seconds,
        }
        return of_chip | {axis: cost.seconds for axis, cost in self.axes.items()}

    def _parts(self):
        return np.stack(np.broadcast_arrays(*self.parts.values()))

    @property
    def seconds(self) -> Numbers:
        """The time of the largest part, and of the bubble: a lower bound, if everything else
        overlaps with it.
        """
        return (self._parts().max(0) * (1 + self.bubble))[()]

    @property
    def serial_seconds(self) -> Numbers:
        """The time if nothing overlaps: compute or HBM, whichever is more, plus all that is sent,
        plus the bubble.
        """
        sent = self.host_seconds + sum(cost.seconds for cost in self.axes.values())
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
    remat: str | Remat = "block",
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
    dispatch: str = "expert",
    overlap: Sequence[str] = (),
    lora: int = 0,
    adapted: str = "all",
) -> StepCost:
    """What a training step costs, by part, for one `Parallelism` or many.

    Data parallelism sends an all-reduce of a chip's gradients. FSDP all-gathers parameters, once in
    the forward and once in the backward pass of each micro-batch, and reduce-scatters gradients.
    Tensor parallelism all-gathers the activations of its group before attention and before the MLP
    and reduce-scatters the results, in the forward and the backward pass, and for "block" all but
    the last in the rematerialised forward pass too. A pipeline sends the activations of each
    micro-batch from stage to stage, and their gradients back. Context parallelism sends keys and
    values around a ring, and in the backward pass them and their gradients; expert parallelism
    sends each token to its experts and back, in both passes. With "offload" the inputs of the
    layers go to the host's memory in the forward pass and return in the backward pass.

    >>> fsdp = costs.Parallelism(fsdp=512)
    >>> step = costs.step_cost("llama-3-70b", "v5p", fsdp, 4 * 2**20)
    >>> print(f"{step.seconds:.2f} s, {step.bound}-bound, MFU {step.mfu:.0%}")
    9.98 s, compute-bound, MFU 80%

    Args:
      model: a `shardlab.models.Model`, or the name of one.
      machine: a `shardlab.hardware.Machine`; or a `Chip` or the name of one, for the machine that
        as many of them form as the parallelism has.
      parallelism: a `Parallelism`, of numbers or arrays: one step for each, broadcast with
        `batch_tokens`.
      batch_tokens: tokens in the global batch.
      sequence: tokens that each token attends to.
      remat: as for `training_flops`. What offloads needs a chip whose `host_bytes_per_second` is
        known.
      torus_axes: instead of the places of a machine, how many of a TPU's torus axes each axis runs
        over, all of them as rings: a dict such as {"fsdp": 2, "tensor": 1}.
      efficiency: share of the peak FLOP/s that products reach, in all times but the expected ones.
      gathers: how often fsdp gathers a parameter: 2, in both passes of each micro-batch; or 1, once
        in a step, if the gathered parameters and their gradients are kept until its end (ZeRO-1).
      products: dtype of the matrix products of the layers; attention and the output matrix stay in
        bf16.
      parameters, gradients, moments, master, activations, logits: dtypes, as for `training_memory`.
      dispatch: how a token reaches its experts on other nodes: "expert", once for each of them, as
        an all-to-all sends it; or "node", once for each node, which passes it on, as DeepEP does.
      overlap: of "tensor" and "expert", the axes whose collectives the framework overlaps with
        products: in Megatron Core `tp_comm_overlap` and `overlap_moe_expert_parallel_comm`. It
        changes the expected time alone.
      lora: the rank of adapters on a model that is frozen; 0 trains all parameters. No product
        gives a gradient of a frozen matrix, and an adapter is as wide as its gradient.
        With `parameters="nf4"` the layers' matrices have four bits, as in QLoRA, or with "int8"
        eight, and are read and written in 16 bits besides, one before each product with it. What
        adapters keep of a token, the rank for each, is not counted.
      adapted: which matrices have adapters: "all" of the layers but routers, or "attention".

    Returns:
      `StepCost`, with arrays if there were arrays.

    Raises:
      ValueError: an axis is not a whole number, or their product is not the number of chips; there
        is no such machine; the tensor axis does not divide the heads; an unknown chip, axis, remat
        or dtype. The message names the value.

    Source: Scaling Book, "Training": data, FSDP, tensor, mixed, "Scaling Across Pods", and its last
    table, of which this counts attention too. Where an axis leaves the node or slice:
    `hierarchical_seconds`. For "node": DeepSeek-V3 (https://arxiv.org/abs/2412.19437), section
    3.2.2, whose tokens go to at most four nodes; that limit is not counted. For adapters
    the sources are in `shardlab.costs.steps.adapters`.
    """
    model, remat = known_model(model), remat_of(remat)
    on_machine = isinstance(machine, Machine)
    setting = TrainingSetting(
        model,
        machine.chip if on_machine else hardware.chip(machine),
        machine if on_machine else None,
        amount("batch_tokens", batch_tokens),
        amount("sequence", sequence),
        remat,
        torus_axes=torus_axes,
        efficiency=efficiency,
        gathers=gathers,
        products=products,
        dtypes=Dtypes(parameters, gradients, moments, master, activations, logits),
        dispatch=dispatch,
        overlap=overlap,
        lora=lora,
        adapted=adapted,
    )
    return cost_on(setting, parallelism)


def cost_on(setting, parallelism):
    """The `StepCost` of a `TrainingSetting` on one mesh or many: what `step_cost` gives."""
    _check_mesh(setting, parallelism)
    setting.check()
    check_layers(setting.model, parallelism)
    model, chip, remat = setting.model, setting.chip, setting.remat
    narrow = setting.products == "fp8" and not chip.torus
    memory = memory_of(
        model, parallelism, setting.batch_tokens, remat, setting.dtypes, setting.gathers, narrow,
        setting.adapters,
    )  # fmt: skip
    bytes_of = setting.dtypes.sizes
    tensor, pipeline, context = (
        np.asarray(getattr(parallelism, axis), float) for axis in _OF_TOKENS
    )
    micro = np.asarray(parallelism.microbatches, float)
    tokens = setting.batch_tokens / (parallelism.groups * context)  # of a tensor group, in all

    # Compute. The backward pass takes twice the FLOPs of the forward pass.
    forward = forward_flops(model, tokens / tensor, setting.sequence, remat)
    forwards, again = (flops / pipeline for flops in forward)
    useful = 3 * forwards
    of_adapters = 3 * 2.0 * setting.adapters.used * tokens / (tensor * pipeline)
    if setting.lora:  # a frozen matrix has no gradient, which takes a third of its FLOPs
        useful = useful - 2.0 * model.matmul_parameters * tokens / (tensor * pipeline)
        useful = useful + of_adapters
    flops = useful + again
    scores = score_flops(model, setting.sequence)
    in_layers = 2.0 * model.layers * model.layer_matmul_parameters * tokens / (tensor * pipeline)
    scores_again = 0.0
    if "scores" in remat.recomputes:
        scores_again = scores * (model.layers / pipeline) * tokens / tensor
    in_layers = (2 if setting.lora else 3) * in_layers + of_adapters + again - scores_again
    products_seconds = in_layers / chip.peak(setting.products) + (flops - in_layers) / chip.peak(
        "bf16"
    )
    seconds = {"compute": products_seconds / setting.efficiency}

    # HBM. Each pass reads the matrices, and the backward pass writes gradients; activations are
    # written and read; the optimiser reads and writes its state.
    here = sum(_model_here(model, parallelism))
    trained = sum(_adapters_here(setting, parallelism)) if setting.lora else here
    passes = remat.reads * setting.parameter_bytes * here + bytes_of["gradients"] * trained
    held = memory.state_bytes - memory.gradient_bytes - memory.frozen_bytes
    update = 2 * held + memory.gradient_bytes
    if setting.dtypes.parameters in FROZEN:  # written and read in 16 bits, with each pass
        used = model.expert_layers * model.experts_per_token * model.expert_parameters
        # of experts all, as each has some of the tokens
        matrices = model.layers * model.layer_matmul_parameters - used
        matrices = matrices + model.routed_parameters / np.asarray(parallelism.expert, float)
        update = update + micro * remat.reads * 4 * matrices / (tensor * pipeline)
    passes = micro * passes
    # of one element of its width
    for_token = tokens * model.layers / (tensor * pipeline) * bytes_of["activations"]
    kept, offloaded = remat.kept_width(model) * for_token, remat.host_width(model) * for_token
    seconds["hbm"] = (passes + update + 2 * kept + 4 * offloaded) / chip.hbm_bytes_per_second
    seconds["host"] = 0.0 * offloaded
    if remat.offloads:
        seconds["host"] = 2 * offloaded / chip.host_bytes_per_second

    near, far, late, sent = _sent(setting, parallelism, _arrays(setting, parallelism, tokens))
    seconds |= {axis: np.maximum(near[axis], far[axis]) for axis in MESH_AXES}
    all_sent = near, far, late, seconds["host"]
    expected, exposed = expected_seconds(
        setting, parallelism, tokens, flops, in_layers, all_sent, update
    )
    parts = {
        "flops": flops,
        **{f"{part}_seconds": seconds[part] for part in ("compute", "hbm", "host")},
        **{f"{axis} seconds": seconds[axis] for axis in MESH_AXES},
        **{f"{axis} bytes": sent[axis] for axis in MESH_AXES},
        "bubble": parallelism.idle,
        "fits": memory.total_bytes <= setting.usable_bytes,
        "mfu": useful / chip.peak(setting.products),
        "expected_seconds": expected,
        "exposed_seconds": exposed,
    }
    parts = {
        name: array[()]
        for name, array in zip(parts, np.broadcast_arrays(*parts.values()), strict=True)
    }
    axes = {
        axis: AxisCost(parts.pop(f"{axis} seconds"), parts.pop(f"{axis} bytes"))
        for axis in MESH_AXES
    }
    step = StepCost(memory=memory, axes=axes, **parts)
    return replace(step, mfu=step.mfu / step.seconds)


def _check_mesh(setting, parallelism):
    """ValueError for a mesh on which there is no such step."""
    machine = setting.machine
    if not isinstance(parallelism, Parallelism):
        raise ValueError(f"a shardlab.Parallelism is needed, not {parallelism!r}")
    total = np.asarray(parallelism.chips)
    if machine and np.any(total != machine.chips):
        wrong = first(total, total != machine.chips)
        raise ValueError(
            f"the axes of this mesh have {wrong:g} chips, their product; {machine.name} has "
            f"{machine.chips}"
        )


def _here(routed, others, parallelism):
    """Of the parameters (of the routed experts, of all others) those that a chip multiplies with:
    its part of its stage's layers.
    """
    tensor, pipeline, expert = (
        np.asarray(getattr(parallelism, axis), float) for axis in ("tensor", "pipeline", "expert")
    )
    return routed / expert / (tensor * pipeline), others / (tensor * pipeline)


def _model_here(model, parallelism):
    routed = model.routed_parameters
    return _here(routed, model.parameters - routed, parallelism)


def _adapters_here(setting, parallelism):
    return _here(setting.adapters.routed, setting.adapters.shared, parallelism)


def _arrays(setting, parallelism, tokens):
    """What is sent along each axis: lists of (place, kind, how many collectives, bytes of all their
    arrays).
    """
    model, remat, bytes_of = setting.model, setting.remat, setting.dtypes.sizes
    tensor, pipeline, context, expert = (
        np.asarray(getattr(parallelism, axis), float) for axis in (*_OF_TOKENS, "expert")
    )
    micro, layers = np.asarray(parallelism.microbatches, float), model.layers / pipeline
    routed, dense = _model_here(model, parallelism)
    gather, scatter = setting.rounds(micro)
    # wider parameters are cast before they are gathered
    once = min(setting.parameter_bytes, bytes_of["activations"])
    # the activations of a layer, in a tensor group
    activations = tokens * model.d_model * bytes_of["activations"]
    # of a gather and a scatter; two for the embedding and the output matrix
    pairs = layers * (4 + remat.pairs) + 2
    keys = (
        (model.kv_rank + model.rope_dim)
        if model.kv_rank
        else 2 * model.kv_heads * model.head_dim / tensor
    )
    # of keys and values around the ring
    blocks = (3 + ("scores" in remat.recomputes)) * layers * micro
    # If layers are computed again, to the experts and back once more: the router's gradient needs
    # what comes back.
    chosen = model.experts_per_token * model.expert_layers / pipeline * (4 + 2 * remat.whole_layers)
    crossings = 2 * parallelism.stages * np.where(pipeline > 1, 1, 0)

    on_routed, on_dense = _adapters_here(setting, parallelism)

    def sharded(place, parameters, adapters):
        trained = adapters if setting.lora else parameters
        gathered = parameters * once + adapters * bytes_of["gradients"]
        return [
            (place, "all-gather", gather * layers, gather * gathered),
            (place, "reduce-scatter", scatter * layers, scatter * trained * bytes_of["gradients"]),
        ]

    trained = on_dense + on_routed * expert if setting.lora else dense + routed * expert
    summed = trained * tensor / parallelism.shards * bytes_of["gradients"]
    around = (context - 1) * blocks / micro * tokens * keys * bytes_of["activations"]
    calls = chosen * micro / np.maximum(model.experts_per_token, 1)
    return {
        "data": [("data", "all-reduce", layers, summed)],
        "fsdp": sharded("sharded", dense, on_dense)
        + (sharded("routed", routed, on_routed) if model.experts else []),
        "tensor": [("tensor", "all-reduce", micro * pairs, pairs * activations)],
        "pipeline": [
            ("pipeline", "collective-permute", crossings * micro, crossings * activations / tensor)
        ],
        "context": [("context", "collective-permute", blocks * (context - 1), around)],
        "expert": [("expert", "all-to-all", calls, chosen * activations / tensor)],
    }


def _sent(setting, parallelism, arrays):
    """For each axis: the time within a slice or node, that between them, what calls take besides,
    and the bytes.
    """
    chip, placed = setting.chip, mesh_places(setting, parallelism)
    experts = setting.model.experts_per_token if setting.dispatch == "node" else 0
    near, far, late, sent = {}, {}, {}, {}
    for axis, calls in arrays.items():
        near[axis] = far[axis] = sent[axis] = late[axis] = np.asarray(0.0)
        waits = axis not in ("data", "fsdp") or not chip.torus
        for where, kind, count, nbytes in calls:
            place = placed[where]
            within, between = axis_seconds(kind, count, nbytes, place, waits, chip, experts)
            near[axis], far[axis] = near[axis] + within, far[axis] + between
            late[axis] = late[axis] + count * call_seconds(kind, place, chip)
            devices = place.near * place.far
            sent[axis] = sent[axis] + np.where(
                devices > 1, collective_bytes(kind, nbytes, devices), 0.0
            )
    return near, far, late, sent
