"""What serving a model costs: the prefill of prompts, the decode of tokens, and the KV cache between the two.

Prefill processes all tokens of a prompt at once, and its products are compute-bound like those of training. A decode
step makes one token for each sequence of a batch: it reads all parameters and the whole KV cache, and is memory-bound
unless the batch is large and the contexts are short. Arguments that are `Numbers` may be NumPy arrays, which broadcast.
"""

from dataclasses import dataclass

import numpy as np

from shardlab import costs
from shardlab._arguments import Numbers, amount, first, one_of, whole
from shardlab.machines import hardware
from shardlab.machines.hardware import Chip
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
    """What formulas cannot know of servers, fitted to those that others published: `shardlab.published.SERVERS`.

    `python scripts/fit_planner.py` fits it again and tests it on the servers that were left out.

    Attributes:
      products, links: the share of the chip's peak that products reach, and of its links' bandwidth that all-reduces
        reach.
      layer_seconds: what each layer takes besides, such as the launch of its kernels.
      sequence_seconds: what each sequence takes besides in each step, such as the choice of its token.
      spread: by which factor expected times are off, at most, for nine in ten of the servers that were left out.
    """

    products: float
    links: float
    layer_seconds: float
    sequence_seconds: float
    spread: float


SERVED = Served(0.71, 0.22, 246e-6, 4.7e-6, 1.32)  # of GPUs; too few servers of TPUs are published


def _size(name, dtype):
    return costs.BYTES[one_of(name, dtype, tuple(costs.BYTES))]


def cache_bytes(model: str | Model, context: Numbers, cache: str = "bf16") -> Numbers:
    """Bytes of the KV cache of one sequence, before sharding.

    Grouped-query attention caches the keys and values of its few kv heads; multi-head latent attention caches one
    latent for all heads.

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
    return amount("context", context) * known_model(model).cached_elements * _size("cache", cache)


def _checked(model, chip, tensor):
    """(the model, the chip, the chips that share it)."""
    model, chip, tensor = known_model(model), hardware.chip(chip), whole("tensor", tensor)
    if np.any(model.heads % tensor):
        raise ValueError(f"tensor={first(tensor, model.heads % tensor != 0)} does not divide {model.heads} heads")
    return model, chip, tensor


def _touched(model, tokens):
    """The matrices of which a step reads every element: of the routed experts, those that some token is sent to.

    Each token chooses its experts evenly and independently of the others.
    """
    idle = (1 - model.experts_per_token / model.experts) ** tokens if model.experts else 0.0
    routed = model.expert_layers * model.experts_per_token * model.expert_parameters  # those of one token
    return model.matmul_parameters - routed + model.routed_parameters * (1 - idle)


def _sums(model, chip, tokens, tensor, torus_axes, dtype):
    """The time of the two all-reduces of activations in each layer, over the chips that share it."""
    activations = amount("tokens", tokens) * model.d_model * float(_size("dtype", dtype))
    near = np.minimum(tensor, np.asarray(tensor if chip.torus else chip.node_chips))
    far = np.ceil(tensor / near)
    calls = 2 * model.layers
    if chip.torus:
        axes = np.maximum(np.asarray(torus_axes, float), 1)
        seconds = 2 * (near - 1) / near * activations / (2 * np.asarray(torus_axes, float)) / chip.link_bytes_per_second
        hops = 2 * axes * near ** (1 / axes) / 2 * (near > 1)
        seconds = np.maximum(seconds, hops * chip.link_seconds)
    else:
        seconds = np.maximum(
            2 * (near - 1) / near * activations / chip.link_bytes_per_second, 2 * (near - 1) * chip.link_seconds
        )
    across = costs.hierarchical_seconds("all-reduce", activations / near, 1, far, chip, algorithm="tree")
    return calls * np.maximum(seconds, across)


@dataclass(frozen=True)
class DecodeCost:
    """What it costs to generate one token for each sequence of a batch, on each chip, by part.

    Attributes:
      parameter_seconds: the time to read the parameters: in a mixture of experts, of those that the batch uses.
      cache_seconds: the time to read the KV cache of all sequences.
      compute_seconds: the time of the products with the parameters.
      attention_seconds: the time of attention's own products, with the cached keys and values.
      tensor_seconds: the time of two all-reduces of activations in each layer, over the chips.
      besides_seconds: what the layers and the sequences of a published server take besides; see `SERVED`.
      cache_bytes, total_bytes: a chip's bytes of KV cache, and with the parameters.
      fits: whether the total is no more than the chip's HBM.
    """

    parameter_seconds: Numbers
    cache_seconds: Numbers
    compute_seconds: Numbers
    attention_seconds: Numbers
    tensor_seconds: Numbers
    besides_seconds: Numbers
    cache_bytes: Numbers
    total_bytes: Numbers
    fits: bool | np.ndarray

    @property
    def seconds(self) -> Numbers:
        """Reading the cache or attention's products, plus the larger of reading parameters and multiplying with them.

        The all-reduces, if they take longer.
        """
        attention = np.maximum(self.cache_seconds, self.attention_seconds)
        return np.maximum(attention + np.maximum(self.parameter_seconds, self.compute_seconds), self.tensor_seconds)

    @property
    def serial_seconds(self) -> Numbers:
        """The same with the all-reduces added, which stand between one product and the next."""
        attention = np.maximum(self.cache_seconds, self.attention_seconds)
        return attention + np.maximum(self.parameter_seconds, self.compute_seconds) + self.tensor_seconds

    @property
    def expected_seconds(self) -> Numbers:
        """The time to expect of a published server on GPUs: products and links at their shares, and what is besides."""
        attention = np.maximum(self.cache_seconds, self.attention_seconds / SERVED.products)
        matrices = np.maximum(self.parameter_seconds, self.compute_seconds / SERVED.products)
        return attention + matrices + self.tensor_seconds / SERVED.links + self.besides_seconds

    @property
    def bound(self) -> str | np.ndarray:
        """The name of the largest part: "parameters", "cache", "compute", "attention" or "tensor"."""
        names = np.array(["parameters", "cache", "compute", "attention", "tensor"])
        parts = np.broadcast_arrays(
            self.parameter_seconds, self.cache_seconds, self.compute_seconds, self.attention_seconds,
            self.tensor_seconds,
        )  # fmt: skip
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
) -> DecodeCost:
    """What one decoding step costs: a token for each of `batch` sequences.

    Each step reads all parameters and the KV cache, for 2 FLOPs with each parameter and sequence. Small batches are
    therefore memory-bound on the parameters, and long contexts memory-bound on the cache.

    >>> step = inference.decode_cost("llama-3-8b", "v5e", 8, 4096, tensor=4)
    >>> print(f"{step.seconds * 1e3:.1f} ms, most of them for the {step.bound}")
    5.9 ms, most of them for the parameters

    Args:
      model: a `shardlab.models.Model`, or the name of one.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      batch: sequences.
      context: tokens of each sequence so far.
      tensor: chips that share parameters, experts and cache evenly (beyond kv_heads, the cache is sharded along batch
        or context).
      weights, cache, dtype: dtypes of the parameters, of the KV cache, of activations and FLOPs.
      torus_axes: over how many torus axes these chips are spread, as rings; for TPUs.

    Returns:
      `DecodeCost`. With MLA, attention's products are those with the latent itself ("absorbed" matrices).

    Raises:
      ValueError: a number, name or dtype is wrong, or `tensor` does not divide the heads.

    Source: Scaling Book, "All About Transformer Inference", "Theoretical estimates for LLM latency and throughput".
    """
    model, chip, tensor = _checked(model, chip, tensor)
    batch, context = amount("batch", batch), amount("context", context)
    cached = batch * cache_bytes(model, context, cache) / tensor
    read = _touched(model, batch) * _size("weights", weights) / tensor
    width = model.kv_rank * 2 + model.rope_dim if model.kv_rank else 2 * model.head_dim
    total = cached + model.parameters * _size("weights", weights) / tensor
    return DecodeCost(
        parameter_seconds=read / chip.hbm_bytes_per_second,
        cache_seconds=cached / chip.hbm_bytes_per_second,
        compute_seconds=2.0 * batch * model.matmul_parameters / tensor / chip.peak(dtype),
        attention_seconds=2.0 * batch * context * model.layers * model.heads * width / tensor / chip.peak(dtype),
        tensor_seconds=_sums(model, chip, batch, tensor, torus_axes, dtype),
        besides_seconds=model.layers * SERVED.layer_seconds + batch * SERVED.sequence_seconds,
        cache_bytes=cached,
        total_bytes=total,
        fits=total <= chip.hbm_bytes,
    )


@dataclass(frozen=True)
class PrefillCost:
    """What it costs to process prompts, on each chip, by part.

    Attributes:
      compute_seconds: the time of all FLOPs, those of attention included.
      hbm_seconds: the time to read the parameters and to write the KV cache.
      tensor_seconds: the time of two all-reduces of activations in each layer, over the chips.
      besides_seconds: what the layers of a published server take besides; see `SERVED`.
      cache_bytes: bytes of the KV cache that the prompts leave, on all chips together.
    """

    compute_seconds: Numbers
    hbm_seconds: Numbers
    tensor_seconds: Numbers
    besides_seconds: Numbers
    cache_bytes: Numbers

    @property
    def seconds(self) -> Numbers:
        """The larger of compute and HBM, plus the all-reduces, which stand between the products."""
        return np.maximum(self.compute_seconds, self.hbm_seconds) + self.tensor_seconds

    @property
    def expected_seconds(self) -> Numbers:
        """The time to expect of a published server on GPUs, as `DecodeCost` has it."""
        work = np.maximum(self.compute_seconds / SERVED.products, self.hbm_seconds)
        return work + self.tensor_seconds / SERVED.links + self.besides_seconds

    @property
    def bound(self) -> str | np.ndarray:
        """The name of the largest part: "compute", "hbm" or "tensor"."""
        parts = np.broadcast_arrays(self.compute_seconds, self.hbm_seconds, self.tensor_seconds)
        return np.array(["compute", "hbm", "tensor"])[np.stack(parts).argmax(0)]


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
) -> PrefillCost:
    """What the prefill of some prompts costs; for one prompt it is the least time to the first token.

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
      torus_axes: over how many torus axes these chips are spread, as rings; for TPUs.

    Returns:
      `PrefillCost`.

    Raises:
      ValueError: a number, name or dtype is wrong, or `tensor` does not divide the heads.

    Source: Scaling Book, "All About Transformer Inference", "Prefill".
    """
    model, chip, tensor = _checked(model, chip, tensor)
    prompt, batch = amount("prompt", prompt), amount("batch", batch)
    tokens = prompt * batch
    flops = costs.training_flops(model, tokens, prompt) / 3  # a forward pass is a third of a step
    cached = batch * cache_bytes(model, prompt, cache)
    read = _touched(model, tokens) * _size("weights", weights) + cached
    return PrefillCost(
        compute_seconds=flops / tensor / chip.peak(dtype),
        hbm_seconds=read / tensor / chip.hbm_bytes_per_second,
        tensor_seconds=_sums(model, chip, tokens, tensor, torus_axes, dtype),
        besides_seconds=model.layers * SERVED.layer_seconds,
        cache_bytes=cached,
    )


def disaggregated(prefill: PrefillCost, decode: DecodeCost, prompts: Numbers, batch: Numbers, tokens: Numbers) -> float:
    """How many prefill servers keep one decode server busy, if each does only its own phase.

    A decode server finishes `batch` sequences in `tokens` of its steps. In that time as many prompts must be prefilled.

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

    Source: Scaling Book, "Serving LLaMA 3-70B on TPUs", its question on the ratio of prefill to decode.
    """
    return prefill.seconds * batch / prompts / (tokens * decode.serial_seconds)
