"""What a training step computes and keeps: its FLOPs, its activations and the memory of each chip,
by formula.
"""

from dataclasses import dataclass

import numpy as np

from shardlab._arguments import Numbers, amount, one_of
from shardlab.costs.dtypes import BYTES, FROZEN, dtype_bytes
from shardlab.costs.setting import Dtypes
from shardlab.costs.steps.adapters import adapters_of, check_adapters, largest_matrix
from shardlab.costs.steps.parallelism import Parallelism, check_split
from shardlab.costs.steps.remat import REMAT, Remat, remat_of
from shardlab.machines.models import Model

__all__ = ["Memory", "activation_bytes", "training_flops", "training_memory"]


def training_flops(
    model: Model, batch_tokens: Numbers, sequence: Numbers = 0, remat: str | Remat = "none"
) -> Numbers:
    """FLOPs of one training step, on all chips together: about six for each parameter and token.

    For each token, an element of a matrix takes two FLOPs in the forward pass and four in the
    backward pass, and attention takes 12 * sequence * heads * head_dim in each layer.

    >>> flops = costs.training_flops(model("llama-3-70b"), batch_tokens=1)
    >>> print(f"{flops / 1e9:.0f} GFLOPs for each token")
    417 GFLOPs for each token

    Args:
      model: a `shardlab.models.Model`.
      batch_tokens: tokens in the batch.
      sequence: tokens that each token attends to.
      remat: what the backward pass rematerialises: "none", nothing; "matmuls", the scores of
        attention; "mlp", all of attention; "block" and "offload", every layer but its last product,
        whose result the backward pass does not need, unless it is of routed experts.

    Returns:
      FLOPs.

    Source: Scaling Book, "Transformer math"; for "block" a compiled step, in tests/unit/costs. That
    book's "Gradient checkpointing" counts the last product too, and has 8 FLOPs for each parameter
    instead of 6, where this has 7.5.
    """
    forwards, again = forward_flops(model, amount("batch_tokens", batch_tokens), sequence, remat)
    return 3 * forwards + again


def score_flops(model, sequence):
    """FLOPs of a token's scores and their product with the values, in the forward pass of a layer
    on average.
    """
    return (
        model.attended(amount("sequence", sequence))
        * model.heads
        * (4.0 * model.head_dim + 2.0 * model.rope_dim)
    )


def forward_flops(model, tokens, sequence, remat):
    """(FLOPs of a forward pass, FLOPs of what is rematerialised)."""
    scores = score_flops(model, sequence)
    attention, mlp = 2.0 * model.attention_parameters, 2.0 * model.ff_matmul_parameters
    # nothing needs the MLP's last product again, so the compiler leaves it out
    share = 2 / 3 if model.gated else 1 / 2
    if model.experts:  # that of the routed experts is needed, for the gradient of the router
        routed = (
            2.0
            * model.experts_per_token
            * model.expert_parameters
            * model.expert_layers
            / model.layers
        )
        mlp = routed + (mlp - routed) * share
    else:
        mlp *= share
    out = 2.0 * model.d_model * model.heads * model.head_dim
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    # of the projections, for each element of their results
    one = (attention - out) / (queries + 2 * keys)
    parts = {
        "query": one * queries,
        "key": one * keys,
        "value": one * keys,
        "out": out,
        "mlp": mlp,
        "scores": scores,
    }
    again = model.layers * sum((parts[part] for part in remat_of(remat).recomputes), 0.0)
    return tokens * (2.0 * model.matmul_parameters + model.layers * scores), tokens * again


@dataclass(frozen=True)
class Memory:
    """The memory of a chip in a training step, in bytes.

    Attributes:
      parameter_bytes, gradient_bytes, moment_bytes, master_bytes: the state, sharded over fsdp and
        tensor.
      activation_bytes: what the forward pass keeps for the backward pass.
      working_bytes: the temporary activations of a layer that is rematerialised.
      gathered_bytes: the gathered parameters of two layers, the one in use and the next, where fsdp
        gathers them.
      logits_bytes: the logits of the chip's tokens over its part of the vocabulary.
      host_bytes: what is offloaded, such as the inputs of the layers, in the host's memory; no part
        of the sums.
      frozen_bytes: of the parameters, those of a frozen model under adapters.
    """

    parameter_bytes: Numbers
    gradient_bytes: Numbers
    moment_bytes: Numbers
    master_bytes: Numbers
    activation_bytes: Numbers
    working_bytes: Numbers
    gathered_bytes: Numbers
    logits_bytes: Numbers
    host_bytes: Numbers = 0.0
    frozen_bytes: Numbers = 0.0

    @property
    def state_bytes(self) -> Numbers:
        """Parameters, gradients, moments and master weights."""
        return self.parameter_bytes + self.gradient_bytes + self.moment_bytes + self.master_bytes

    @property
    def total_bytes(self) -> Numbers:
        """The sum of all parts in the chip's memory, as if all were held at once."""
        return (
            self.state_bytes
            + self.activation_bytes
            + self.working_bytes
            + self.gathered_bytes
            + self.logits_bytes
        )


def activation_bytes(
    model: Model, tokens: Numbers, remat: str | Remat = "none", dtype: str = "bf16"
) -> Numbers:
    """Bytes of activations that the forward pass keeps for the backward pass, in all layers, before
    sharding.

    >>> kept = costs.activation_bytes(model("llama-3-8b"), 4096, remat="block")
    >>> print(f"{kept / 1e9:.2f} GB")
    1.07 GB

    Args:
      model: a `shardlab.models.Model`.
      tokens: how many.
      remat: what is kept: a `shardlab.costs.Remat`, or the name of one: "none", all inputs of
        products, norms and the activation function, but no scores (as in fused attention);
        "matmuls", the results of all products; "mlp", those of the MLP; "block", each layer's
        input; "offload" the same, but in the host's memory.
      dtype: of what is kept.

    Returns:
      Bytes.

    Source: counted from the layer's operations; the Scaling Book has about 20 d_model for "none"
    ("Transformer math", "Gradient checkpointing"), and d_model + 2 d_ff for "mlp" ("Training",
    question 2).
    """
    kind = remat_of(remat)
    width = kind.kept_width(model) + kind.host_width(model)
    return amount("tokens", tokens) * model.layers * width * dtype_bytes("dtype", dtype)


def training_memory(
    model: Model,
    parallelism: Parallelism,
    batch_tokens: Numbers,
    remat: str | Remat = "block",
    parameters: str | None = "bf16",
    gradients: str | None = "bf16",
    moments: str | None = "f32",
    master: str | None = None,
    activations: str | None = "bf16",
    logits: str | None = "f32",
    gathers: int = 2,
    products: str = "bf16",
    lora: int = 0,
    adapted: str = "all",
) -> Memory:
    """The memory of each chip in a training step with Adam.

    Llama 3 70B in bf16 with moments in f32 takes 2 + 2 + 8 = 12 bytes for each parameter, its
    gradient and its two moments: 847 GB, sharded over fsdp times tensor chips.

    >>> fsdp = costs.Parallelism(fsdp=512)
    >>> memory = costs.training_memory(model("llama-3-70b"), fsdp, 4 * 2**20)
    >>> print(f"{memory.state_bytes / 1e9:.2f} GB of {memory.total_bytes / 1e9:.2f} GB")
    1.65 GB of 22.73 GB

    Args:
      model: a `shardlab.models.Model`.
      parallelism: a `Parallelism`, of numbers or arrays.
      batch_tokens: tokens in the global batch, of all micro-batches together.
      remat: what the backward pass rematerialises; see `activation_bytes`. Of what is offloaded, a
        chip holds two layers' arrays, of which one's are on their way.
      parameters, gradients, moments, master, activations, logits: their dtypes; None for what does
        not exist. Adam has two moments for each parameter, and master weights are one more value in
        higher precision.
      gathers: as for `step_cost`; with 1, the gathered parameters and gradients of all layers are
        held at once.
      products: the dtype of the layers' products. With "fp8" and nothing rematerialised their
        inputs are kept in fp8, as TransformerEngine does on GPUs.
      lora, adapted: the rank of adapters on a frozen model, and on which matrices they are, as for
        `step_cost`; 0 trains all parameters.

    Returns:
      `Memory`, of the first stage of a pipeline: it keeps the activations of as many micro-batches
      as there are stages, or of all of them with "gpipe". Activations are sharded over tensor too,
      as in sequence parallelism; norms are counted as if sharded like matrices; the compiler's own
      buffers are not included.

    Source: ZeRO (Rajbhandari and others, 2020), sections 3 and 5; Korthikanti and others, "Reducing
    Activation Recomputation in Large Transformer Models", 2022, section 4, for activations over
    tensor and sequence.
    """
    dtypes = Dtypes(parameters, gradients, moments, master, activations, logits)
    batch_tokens = amount("batch_tokens", batch_tokens)
    narrow = one_of("products", products, tuple(BYTES)) == "fp8"
    check_adapters(model, lora, parameters, adapted)
    adapters = adapters_of(model, lora, adapted)
    return memory_of(
        model, parallelism, batch_tokens, remat_of(remat), dtypes, gathers, narrow, adapters
    )


def memory_of(model, parallelism, batch_tokens, remat, dtypes, gathers, narrow, adapters):
    """What `training_memory` gives, with the remat as a `Remat` and all `Dtypes` together."""
    check_split(model, parallelism.tensor)
    tensor, pipeline, expert, context = (
        np.asarray(getattr(parallelism, axis), float)
        for axis in ("tensor", "pipeline", "expert", "context")
    )
    micro = np.asarray(parallelism.microbatches, float)
    tokens = batch_tokens / (parallelism.groups * context * micro)  # of a micro-batch
    size = dtypes.sizes
    in_layers = model.parameters - model.embedding_parameters
    embedded = model.embedding_parameters / np.minimum(pipeline, 2)
    trained = (in_layers / pipeline + embedded) / parallelism.shards
    frozen_bytes, lora = 0.0, adapters.total > 0
    if lora:  # an adapter is as wide as its gradient
        wide = 2 if dtypes.parameters in FROZEN else size["parameters"]
        frozen_bytes = (size["parameters"] * in_layers / pipeline + wide * embedded) / (
            parallelism.shards
        )
        trained = adapters.total / pipeline / parallelism.shards
    parameter_bytes = frozen_bytes + (size["gradients"] if lora else size["parameters"]) * trained
    # 1F1B starts a backward pass as soon as one can start, so the first stage has as many
    # micro-batches on their way as there are stages; GPipe has all of them.
    at_once = np.minimum(micro, micro if parallelism.schedule == "gpipe" else pipeline)
    at_once = at_once * np.where(
        (parallelism.stages > np.asarray(1)) & (micro > 1),
        1 + (pipeline - 1) / (pipeline * parallelism.stages),
        1,
    )
    gathered = model.attention_parameters + (
        model.mlp_parameters
        if not model.experts
        else model.shared_experts * model.expert_parameters
        + model.experts * model.expert_parameters / expert
    )
    # Parameters that are wider than activations are cast before they are gathered.
    once = min(size["parameters"], size["activations"] or size["parameters"])
    whole_bytes = 2 * once * gathered
    if gathers == 1:
        whole = (adapters.shared + adapters.routed / expert) / model.layers if lora else gathered
        kept_bytes = once * gathered + size["gradients"] * whole
        whole_bytes = kept_bytes * model.layers / pipeline
    working = REMAT["none"].kept_width(model) if remat.recomputes else 0
    # the largest matrix, in 16 bits again while it is multiplied with
    restored = 2 * largest_matrix(model) / tensor if dtypes.parameters in FROZEN else 0.0
    layers = at_once * model.layers / pipeline  # whose activations are kept
    kept, offloaded = (
        size["activations"] * tokens * width / tensor
        for width in (
            remat.narrow_width(model) if narrow else remat.kept_width(model),
            remat.host_width(model),
        )
    )
    return Memory(
        parameter_bytes=parameter_bytes,
        gradient_bytes=size["gradients"] * trained,
        moment_bytes=2 * size["moments"] * trained,
        master_bytes=size["master"] * trained,
        activation_bytes=layers * kept + np.minimum(layers, 2.0) * offloaded,
        working_bytes=size["activations"] * tokens * working / tensor + restored,
        gathered_bytes=np.where(
            np.asarray(parallelism.shards) > tensor * expert, whole_bytes / tensor, 0.0
        )[()],
        logits_bytes=size["logits"] * tokens * model.vocab / tensor,
        host_bytes=layers * offloaded,
        frozen_bytes=frozen_bytes,
    )
