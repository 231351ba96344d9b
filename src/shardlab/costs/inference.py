"""What serving a model costs: the prefill of prompts, the decode of tokens, and the KV cache
between the two.

Prefill processes all tokens of a prompt at once, and its products are compute-bound like those of
training. A decode step makes one token for each sequence of a batch: it reads all parameters and
the whole KV cache, and is memory-bound unless the batch is large and the contexts are short.
`shardlab.serving` composes both into what a server does. Arguments that are `Numbers` may be NumPy
arrays, which broadcast.
"""

from dataclasses import dataclass

import numpy as np

from shardlab import costs
from shardlab._arguments import Numbers, amount
from shardlab.costs.communication.axes import axis_seconds
from shardlab.costs.dtypes import dtype_bytes
from shardlab.costs.setting import ServingSetting
from shardlab.machines import hardware
from shardlab.machines.hardware import Chip, Machine
from shardlab.machines.models import Model, model as known_model

__all__ = [
    "SERVED",
    "DecodeCost",
    "PrefillCost",
    "Served",
    "cache_bytes",
    "decode_cost",
    "disaggregated",
    "prefill_cost",
]


@dataclass(frozen=True)
class Served:
    """What formulas cannot know of servers, fitted to those that others published:
    `shardlab.published.SERVERS`.

    `python scripts/fit_planner.py` fits it again and tests it on the servers that were left out.

    Attributes:
      products, hbm, links: the share of the chip's peak that products reach, of its memory's
        bandwidth that reading parameters and caches reaches, and of its links' bandwidth that
        collectives reach.
      layer_seconds: what each layer takes besides, such as the launch of its kernels, in servers of
        many requests, of which throughputs are published.
      token_layer_seconds: the same in servers of which times between tokens are published.
      sequence_seconds: what each sequence takes besides in each step, such as the choice of its
        token.
    """

    products: float
    hbm: float
    links: float
    layer_seconds: float
    sequence_seconds: float
    token_layer_seconds: float


# GPUs and TPUs are fitted apart: their kernels, collectives and servers are different software.
SERVED = {
    "gpu": Served(
        products=0.63,
        hbm=1.0,
        links=0.36,
        layer_seconds=244.4e-6,
        sequence_seconds=11.1e-6,
        token_layer_seconds=125.72e-6,
    ),
    "tpu": Served(
        products=0.39,
        hbm=0.73,
        links=0.46,
        layer_seconds=102.86e-6,
        sequence_seconds=28.43e-6,
        token_layer_seconds=102.86e-6,
    ),
}


def kind_of(chip: Chip) -> str:
    """Which of `SERVED` was fitted to servers on such chips: "tpu" for a torus of them, "gpu" for a
    switch.
    """
    return "tpu" if chip.torus else "gpu"


def cache_bytes(model: str | Model, context: Numbers, cache: str = "bf16") -> Numbers:
    """Bytes of the KV cache of one sequence, before sharding.

    Grouped-query attention caches the keys and values of its few kv heads; multi-head latent
    attention caches one latent for all heads.

    >>> for name in ("llama-2-13b", "llama-3-70b", "deepseek-v3"):
    ...     print(f"{name}: {inference.cache_bytes(name, 4096) / 1e9:.2f} GB")
    llama-2-13b: 3.36 GB
    llama-3-70b: 1.34 GB
    deepseek-v3: 0.29 GB

    Args:
      model: a `shardlab.models.Model`, or the name of one.
      context: tokens of the sequence.
      cache: dtype of the cache. The scales of "int8" and "int4" are not counted.

    Returns:
      Bytes.
    """
    return (
        amount("context", context)
        * known_model(model).cached_elements
        * dtype_bytes("cache", cache)
    )


def _touched(model, tokens):
    """Of the matrices, the share of those of routed experts that some of the tokens are sent to.

    Each token chooses its experts evenly and independently of the others.
    """
    # An expert is read as soon as one token needs it, so a large batch reads nearly all of them.
    return 1 - (1 - model.experts_per_token / model.experts) ** tokens if model.experts else 1.0


def _matrices(model):
    """(elements of the matrices that every token is multiplied with, those of the routed experts
    that a token uses).
    """
    routed = model.expert_layers * model.experts_per_token * model.expert_parameters
    return model.matmul_parameters - routed, routed


def _stored(setting):
    """Parameters on each chip."""
    # The expert axis shards the routed experts alone: each group has a copy of everything else.
    routed, shared_by = setting.model.routed_parameters, setting.tensor * setting.pipeline
    return ((setting.model.parameters - routed) + routed / setting.expert) / shared_by


def _sums(setting, tokens):
    """The time of the two all-reduces of activations in each layer, over the chips that share it.

    As a pair: with what is within nodes hidden behind what is between them, or the reverse; and
    what that hides.
    """
    # One after attention and one after the MLP: each chip has a partial sum, of its heads or of its
    # part of the hidden layer. The next product needs the sum, so each call waits for the one
    # before.
    calls = 2 * setting.model.layers
    activations = tokens * setting.model.d_model * float(setting.size("dtype"))
    place, chip = setting.places[0], setting.chip
    near, far = axis_seconds("all-reduce", calls, calls * activations, place, True, chip)
    return np.maximum(near, far), np.minimum(near, far)


def _dispatch(setting, tokens):
    """The time of the two all-to-alls of each layer with experts: tokens to their experts, and
    back.
    """
    model, place = setting.model, setting.places[1]
    # The other layers have no routed experts. A token goes to each of its experts by itself, also
    # where two of them are on the same node.
    calls = 2 * model.expert_layers
    sent = tokens * model.experts_per_token * model.d_model * float(setting.size("dtype"))
    return np.maximum(*axis_seconds("all-to-all", calls, calls * sent, place, True, setting.chip))


def _hand_on(setting, tokens):
    """The time in which a micro-batch's activations pass from each stage to the next."""
    pipeline, place, chip = setting.pipeline, setting.places[2], setting.chip
    sent = tokens * setting.model.d_model * float(setting.size("dtype"))
    near, far = axis_seconds("collective-permute", pipeline, pipeline * sent, place, True, chip)
    return np.where(pipeline > 1, np.maximum(near, far), 0.0)[()]


class _Sends:
    """What costs of both phases have: communication by axis."""

    tensor_seconds: Numbers
    expert_seconds: Numbers
    pipeline_seconds: Numbers

    @property
    def sent_seconds(self) -> Numbers:
        """The time of all communication."""
        return self.tensor_seconds + self.expert_seconds + self.pipeline_seconds


@dataclass(frozen=True)
class DecodeCost(_Sends):
    """What it costs to generate one token for each sequence of a batch, on each chip, by part.

    Attributes:
      parameter_seconds: the time to read the parameters: in a mixture of experts, of those that the
        batch uses.
      cache_seconds: the time to read the KV cache of all sequences.
      compute_seconds: the time of the products with the parameters.
      attention_seconds: the time of attention's own products, with the cached keys and values.
      tensor_seconds: the time of two all-reduces of activations in each layer, over the chips.
      cache_bytes, total_bytes: a chip's bytes of KV cache, and with the parameters.
      fits: whether the total is no more than the chip's HBM.
      kind: which of `SERVED` was fitted to servers on such chips.
      layers, sequences: what takes time besides in a published server: all layers, and the
        sequences of a group.
      expert_seconds: the time in which tokens are sent to their experts and back.
      pipeline_seconds: the time in which activations are sent from stage to stage.
      hidden_seconds: what of the all-reduces over several nodes is hidden only if their parts
        within and between the nodes overlap, which is not expected.
    """

    parameter_seconds: Numbers
    cache_seconds: Numbers
    compute_seconds: Numbers
    attention_seconds: Numbers
    tensor_seconds: Numbers
    cache_bytes: Numbers
    total_bytes: Numbers
    fits: bool | np.ndarray
    kind: str
    layers: Numbers
    sequences: Numbers
    expert_seconds: Numbers = 0.0
    pipeline_seconds: Numbers = 0.0
    hidden_seconds: Numbers = 0.0

    @property
    def seconds(self) -> Numbers:
        """Reading the cache or attention's products, plus the larger of reading parameters and
        multiplying with them.

        The communication, if it takes longer.
        """
        # In each layer attention is followed by the products with the parameters. Each of the two
        # may be memory-bound or compute-bound by itself, so there are two maxima, and they add up.
        attention = np.maximum(self.cache_seconds, self.attention_seconds)
        return np.maximum(
            attention + np.maximum(self.parameter_seconds, self.compute_seconds), self.sent_seconds
        )

    @property
    def serial_seconds(self) -> Numbers:
        """The same with the communication added, which stands between one product and the next."""
        attention = np.maximum(self.cache_seconds, self.attention_seconds)
        return (
            attention + np.maximum(self.parameter_seconds, self.compute_seconds) + self.sent_seconds
        )

    @property
    def expected_seconds(self) -> Numbers:
        """The time to expect of a published server: products, memory and links at their shares, and
        what is besides.
        """
        rates = SERVED[self.kind]
        attention = np.maximum(
            self.cache_seconds / rates.hbm, self.attention_seconds / rates.products
        )
        matrices = np.maximum(
            self.parameter_seconds / rates.hbm, self.compute_seconds / rates.products
        )
        # More chips share the bytes and the FLOPs, but not these: each chip launches all kernels.
        besides = self.layers * rates.layer_seconds + self.sequences * rates.sequence_seconds
        return (
            attention + matrices + (self.sent_seconds + self.hidden_seconds) / rates.links + besides
        )

    @property
    def token_seconds(self) -> Numbers:
        """The time to expect where latency counts: `expected_seconds` with the time of a layer that
        is fitted to times between tokens.
        """
        rates = SERVED[self.kind]
        return self.expected_seconds - self.layers * (
            rates.layer_seconds - rates.token_layer_seconds
        )

    @property
    def bound(self) -> str | np.ndarray:
        """The largest part: "parameters", "cache", "compute", "attention", "tensor", "expert" or
        "pipeline".
        """
        names = np.array(
            ["parameters", "cache", "compute", "attention", "tensor", "expert", "pipeline"]
        )
        parts = np.broadcast_arrays(
            self.parameter_seconds,
            self.cache_seconds,
            self.compute_seconds,
            self.attention_seconds,
            self.tensor_seconds,
            self.expert_seconds,
            self.pipeline_seconds,
        )
        return names[np.stack(parts).argmax(0)]


def decode_cost(
    model: str | Model,
    chip: str | Chip,
    batch: Numbers,
    context: Numbers,
    tensor: Numbers = 1,
    weights: str = "bf16",
    cache: str = "bf16",
    dtype: str = "bf16",
    torus_axes: Numbers = 1,
    *,
    expert: Numbers = 1,
    pipeline: Numbers = 1,
    machine: Machine | None = None,
    chunk: Numbers = 0,
    prompt: Numbers = 0,
) -> DecodeCost:
    """What one decoding step costs: a token for each of `batch` sequences.

    Each step reads all parameters and the KV cache, for 2 FLOPs with each parameter and sequence.
    Small batches are therefore memory-bound on the parameters, and long contexts memory-bound on
    the cache.

    >>> step = inference.decode_cost("llama-3-8b", "v5e", 8, 4096, tensor=4)
    >>> print(f"{step.seconds * 1e3:.1f} ms, most of them for the {step.bound}")
    5.9 ms, most of them for the parameters

    Args:
      model: a `shardlab.models.Model`, or the name of one.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      batch: sequences.
      context: tokens of each sequence so far.
      tensor: chips that share parameters, experts and cache evenly (beyond kv_heads, the cache is
        sharded along batch or context).
      weights, cache, dtype: dtypes of the parameters, of the KV cache, of activations and FLOPs.
      torus_axes: over how many torus axes these chips are spread, as rings; for TPUs without a
        `machine`.
      expert: over how many groups of such chips the routed experts are sharded. Each group serves
        its share of the sequences with all other parameters, and sends tokens to their experts.
      pipeline: over how many stages of such groups the layers are sharded; as many micro-batches
        are on their way.
      machine: a `shardlab.hardware.Machine` of these chips or of a multiple of them, on which
        "tensor" is innermost, then "expert", then "pipeline". Links that it does not have are not
        used.
      chunk: tokens of prompts that the same step prefills, which all groups and micro-batches
        share.
      prompt: tokens of each of these prompts.

    Returns:
      `DecodeCost`. With MLA, attention's products are those with the latent itself ("absorbed"
      matrices).

    Raises:
      ValueError: a number, name or dtype is wrong, `tensor` does not divide the heads, or `expert`
        the experts.

    Source: Scaling Book, "All About Transformer Inference", "Theoretical estimates for LLM latency
    and throughput"; for chunks Agrawal and others, "Taming Throughput-Latency Tradeoff in LLM
    Inference with Sarathi-Serve", 2024.
    """
    model, chip = known_model(model), hardware.chip(chip)
    setting = ServingSetting(
        model, chip, tensor, expert, pipeline, weights, cache, dtype, torus_axes, machine
    )
    return decode_step(setting, batch, context, chunk, prompt)


def decode_step(setting, batch, context, chunk=0, prompt=0):
    """The `DecodeCost` of a `ServingSetting`: what `decode_cost` gives."""
    batch, context = amount("batch", batch), amount("context", context)
    chunk, prompt = amount("chunk", chunk), amount("prompt", prompt)
    model, chip, dtype = setting.model, setting.chip, setting.dtype
    tensor, expert, pipeline = setting.tensor, setting.expert, setting.pipeline
    # A token passes through all stages, one after the other, so the times are of all layers. While
    # it does, the other stages work for other micro-batches: there are as many as stages.
    groups = np.multiply(expert, pipeline)
    # The fullest group decides, and has whole sequences. A single group may have a mean number of
    # them, as `shardlab.serving` has for steps with chunks.
    # sequences of a micro-batch in a group
    rows = np.where(groups > 1, np.ceil(batch / groups), batch)[()]
    extra = chunk / groups  # of the chunk's tokens, with each micro-batch of a group
    tokens = rows + extra
    always, routed = _matrices(model)
    # What a micro-batch reads in all stages is also what a stage holds for all micro-batches.
    cached = rows * cache_bytes(model, context, setting.cache) / tensor
    # A chunk attends to the prompt's earlier chunks: to half of the prompt, on average over chunks.
    earlier = cache_bytes(model, prompt / 2, setting.cache) / tensor / pipeline
    earlier = np.where(chunk > 0, earlier, 0.0)
    # The experts of a chip get tokens from all groups, not only from its own.
    used = model.routed_parameters * _touched(model, tokens * expert) / expert
    read = (always + used) * setting.size("weights") / tensor
    # With MLA a query is multiplied with the latent and the positions' part, and the scores with
    # the latent: its key and value projections are absorbed into the matrices before and after.
    width = model.kv_rank * 2 + model.rope_dim if model.kv_rank else 2 * model.head_dim
    # attention of the prompt is counted in full, as in `prefill_cost`
    seen = rows * context + extra * prompt
    flops = 2.0 * (always + routed) * tokens
    total = cached + _stored(setting) * setting.size("weights")
    tensor_seconds, hidden = _sums(setting, tokens)
    return DecodeCost(
        parameter_seconds=read / chip.hbm_bytes_per_second,
        cache_seconds=(cached + earlier) / chip.hbm_bytes_per_second,
        compute_seconds=flops / tensor / chip.peak(dtype),
        attention_seconds=2.0
        * seen
        * model.layers
        * model.heads
        * width
        / tensor
        / chip.peak(dtype),
        tensor_seconds=tensor_seconds,
        cache_bytes=cached,
        total_bytes=total,
        fits=total <= chip.hbm_bytes,
        kind=kind_of(chip),
        layers=model.layers,
        sequences=batch / expert,
        expert_seconds=_dispatch(setting, tokens),
        pipeline_seconds=_hand_on(setting, tokens),
        hidden_seconds=hidden,
    )


@dataclass(frozen=True)
class PrefillCost(_Sends):
    """What it costs to process prompts, on each chip, by part.

    Attributes:
      compute_seconds: the time of all FLOPs, those of attention included.
      hbm_seconds: the time to read the parameters and to write the KV cache.
      tensor_seconds: the time of two all-reduces of activations in each layer, over the chips.
      cache_bytes: bytes of the KV cache that the prompts leave, on all chips together.
      kind: which of `SERVED` was fitted to servers on such chips.
      layers: what takes time besides in a published server.
      expert_seconds: the time in which tokens are sent to their experts and back.
      pipeline_seconds: the time in which activations are sent from stage to stage.
      hidden_seconds: what of the all-reduces over several nodes is hidden only if their parts
        within and between the nodes overlap, which is not expected.
    """

    compute_seconds: Numbers
    hbm_seconds: Numbers
    tensor_seconds: Numbers
    cache_bytes: Numbers
    kind: str
    layers: Numbers
    expert_seconds: Numbers = 0.0
    pipeline_seconds: Numbers = 0.0
    hidden_seconds: Numbers = 0.0

    @property
    def seconds(self) -> Numbers:
        """The larger of compute and HBM, plus the communication, which stands between the
        products.
        """
        return np.maximum(self.compute_seconds, self.hbm_seconds) + self.sent_seconds

    @property
    def expected_seconds(self) -> Numbers:
        """The time to expect of a published server, as `DecodeCost` has it."""
        rates = SERVED[self.kind]
        work = np.maximum(self.compute_seconds / rates.products, self.hbm_seconds / rates.hbm)
        return (
            work
            + (self.sent_seconds + self.hidden_seconds) / rates.links
            + self.layers * rates.layer_seconds
        )

    @property
    def bound(self) -> str | np.ndarray:
        """The name of the largest part: "compute", "hbm", "tensor", "expert" or "pipeline"."""
        parts = np.broadcast_arrays(
            self.compute_seconds,
            self.hbm_seconds,
            self.tensor_seconds,
            self.expert_seconds,
            self.pipeline_seconds,
        )
        return np.array(["compute", "hbm", "tensor", "expert", "pipeline"])[
            np.stack(parts).argmax(0)
        ]


def prefill_cost(
    model: str | Model,
    chip: str | Chip,
    prompt: Numbers,
    batch: Numbers = 1,
    tensor: Numbers = 1,
    weights: str = "bf16",
    cache: str = "bf16",
    dtype: str = "bf16",
    torus_axes: Numbers = 1,
    *,
    expert: Numbers = 1,
    pipeline: Numbers = 1,
    machine: Machine | None = None,
) -> PrefillCost:
    """What the prefill of some prompts costs; for one prompt it is the least time to the first
    token.

    >>> first = inference.prefill_cost("llama-3-70b", "v5p", 8192, tensor=8)
    >>> print(f"{first.seconds:.2f} s, {first.bound}-bound; leaves {first.cache_bytes / 1e9:.2f} GB of cache")
    0.57 s, compute-bound; leaves 2.68 GB of cache

    Args:
      model: a `shardlab.models.Model`, or the name of one.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      prompt: tokens of each prompt. Attention is counted in full, as causal kernels may halve it.
      batch: prompts.
      tensor: chips that share the model.
      weights, cache, dtype: dtypes of the parameters, of the KV cache, of activations and FLOPs.
      torus_axes: over how many torus axes these chips are spread, as rings; for TPUs without a
        `machine`.
      expert, pipeline, machine: as for `decode_cost`. Each group of `expert` takes its share of the
        prompts. The time is that from the first stage to the last; while a stage works for these
        prompts, the others work for more.

    Returns:
      `PrefillCost`.

    Raises:
      ValueError: a number, name or dtype is wrong, `tensor` does not divide the heads, or `expert`
        the experts.

    Source: Scaling Book, "All About Transformer Inference", "Prefill".
    """  # noqa: E501
    model, chip = known_model(model), hardware.chip(chip)
    setting = ServingSetting(
        model, chip, tensor, expert, pipeline, weights, cache, dtype, torus_axes, machine
    )
    return prefill_of(setting, prompt, batch)


def prefill_of(setting, prompt, batch=1):
    """The `PrefillCost` of a `ServingSetting`: what `prefill_cost` gives."""
    prompt, batch = amount("prompt", prompt), amount("batch", batch)
    model, chip, tensor, expert = setting.model, setting.chip, setting.tensor, setting.expert
    # Stages do not divide the prompts: the first token comes when a prompt has left the last one.
    rows = np.where(expert > 1, np.ceil(batch / expert), batch)[()]  # prompts of a group
    tokens = prompt * rows
    always, routed = _matrices(model)
    flops = costs.training_flops(model, tokens, prompt) / 3  # a forward pass is a third of a step
    # Routing spreads the tokens of all groups over all experts, however the prompts are divided:
    # the fullest group has no more products with experts than the others.
    flops = flops - 2.0 * routed * (tokens - prompt * batch / expert)
    cached = rows * cache_bytes(model, prompt, setting.cache)
    # All tokens of all prompts are processed at once, so parameters are read once; and the cache is
    # written once.
    used = model.routed_parameters * _touched(model, prompt * batch) / expert
    read = (always + used) * setting.size("weights") + cached
    tensor_seconds, hidden = _sums(setting, tokens)
    return PrefillCost(
        compute_seconds=flops / tensor / chip.peak(setting.dtype),
        hbm_seconds=read / tensor / chip.hbm_bytes_per_second,
        tensor_seconds=tensor_seconds,
        cache_bytes=batch * cache_bytes(model, prompt, setting.cache),
        kind=kind_of(chip),
        layers=model.layers,
        expert_seconds=_dispatch(setting, tokens),
        pipeline_seconds=_hand_on(setting, tokens),
        hidden_seconds=hidden,
    )


def disaggregated(
    prefill: PrefillCost, decode: DecodeCost, prompts: Numbers, batch: Numbers, tokens: Numbers
) -> float:
    """How many prefill servers keep one decode server busy, if each does only its own phase.

    A decode server finishes `batch` sequences in `tokens` of its steps. In that time as many
    prompts must be prefilled.

    >>> first = inference.prefill_cost("llama-3-70b", "v5p", 8192, tensor=8)
    >>> step = inference.decode_cost("llama-3-70b", "v5p", 32, 8192 + 256, tensor=8)
    >>> print(f"{inference.disaggregated(first, step, 1, 32, 512):.1f} prefill servers for each decode server")
    3.1 prefill servers for each decode server

    Args:
      prefill: a `PrefillCost`, of `prompts` prompts.
      decode: a `DecodeCost`, of a step of `batch` sequences.
      prompts, batch: how many prompts and sequences those are.
      tokens: how many tokens a sequence generates.

    Returns:
      Prefill servers for each decode server.

    Source: Scaling Book, "Serving LLaMA 3-70B on TPUs", its question on the ratio of prefill to
    decode.
    """  # noqa: E501
    return prefill.seconds * batch / prompts / (tokens * decode.serial_seconds)
