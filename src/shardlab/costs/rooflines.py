"""Rooflines of one chip: FLOPs against bytes, of a matrix product and of a transformer layer."""

from dataclasses import dataclass

import numpy as np

from shardlab._arguments import Numbers, amount, whole
from shardlab.costs.dtypes import dtype_bytes
from shardlab.costs.steps.parallelism import check_split
from shardlab.machines import hardware
from shardlab.machines.hardware import Chip
from shardlab.machines.models import Model

__all__ = ["Roofline", "layer", "matmul"]


@dataclass(frozen=True)
class Roofline:
    """The FLOPs of an operation, its bytes to and from HBM, and the time that each of the two
    takes.

    Attributes:
      flops, hbm_bytes: how many.
      compute_seconds, memory_seconds: those, divided by the chip's FLOP/s and bytes/s.
    """

    flops: Numbers
    hbm_bytes: Numbers
    compute_seconds: Numbers
    memory_seconds: Numbers

    @property
    def intensity(self) -> Numbers:
        """Arithmetic intensity: FLOPs per byte."""
        return self.flops / self.hbm_bytes

    @property
    def seconds(self) -> Numbers:
        """The larger of the two times, because a chip computes while it loads."""
        return np.maximum(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> str | np.ndarray:
        """ "compute" or "memory", whichever takes longer."""
        return np.where(
            np.greater_equal(self.compute_seconds, self.memory_seconds), "compute", "memory"
        )[()]


def _roofline(flops, hbm_bytes, chip, dtype):
    return Roofline(
        flops, hbm_bytes, flops / chip.peak(dtype), hbm_bytes / chip.hbm_bytes_per_second
    )


def matmul(
    m: Numbers,
    k: Numbers,
    n: Numbers,
    chip: str | Chip,
    dtype: str = "bf16",
    weights: str | None = None,
) -> Roofline:
    """The roofline of (m, k) @ (k, n): 2 m k n FLOPs, and each matrix read or written once.

    On a v5e, with bf16 and large k and n, it is compute-bound from m = 240 on.

    >>> product = costs.matmul(1024, 8192, 8192, "v5e")
    >>> print(f"{product.seconds * 1e6:.0f} microseconds, {product.bound}-bound")
    698 microseconds, compute-bound
    >>> print(f"{product.intensity:.0f} FLOPs per byte")
    819 FLOPs per byte

    Args:
      m, k, n: the sizes of the dimensions.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      dtype: of the FLOPs, the first matrix and the result.
      weights: dtype of the second matrix; by default the same.

    Returns:
      A `Roofline`.

    Source: Scaling Book, "Rooflines", "Matrix multiplication".
    """
    m, k, n = (whole(name, size) for name, size in (("m", m), ("k", k), ("n", n)))
    # products of large ints would overflow
    m, k, n = (np.asarray(size, float) for size in (m, k, n))
    size, weight_size = dtype_bytes("dtype", dtype), dtype_bytes("weights", weights or dtype)
    return _roofline(
        2 * m * k * n, size * m * (k + n) + weight_size * k * n, hardware.chip(chip), dtype
    )


def layer(
    model: Model,
    chip: str | Chip,
    tokens: Numbers,
    sequence: Numbers,
    tensor: Numbers = 1,
    dtype: str = "bf16",
    sequences: Numbers | None = None,
) -> dict[str, Roofline]:
    """The rooflines of one transformer layer's forward pass, on each of the chips that share it, by
    part.

    >>> parts = costs.layer(model("llama-3-8b"), "v5p", tokens=4096, sequence=4096)
    >>> for name, part in parts.items():
    ...     print(f"{name}: {part.seconds * 1e6:.0f} microseconds")
    ...
    attention projections: 749 microseconds
    attention: 599 microseconds
    mlp: 3144 microseconds

    Args:
      model: a `shardlab.models.Model`.
      chip: a `shardlab.hardware.Chip`, or the name of one.
      tokens: in the batch of those chips.
      sequence: tokens that each token attends to (not halved for causal masks, which not every
        kernel uses).
      tensor: chips that share the layer.
      dtype: of parameters, activations and FLOPs.
      sequences: how many of that length their keys and values belong to; by default tokens /
        sequence, as in training and prefill. In a decode step each token has a sequence of its own:
        give the same number as `tokens`.

    Returns:
      A dict: "attention projections" (Q, K, V and output), "attention" (scores and their product
      with the values; the scores are never written to HBM), "mlp".

    Source: Scaling Book, "Transformer math", tables of MLPs and attention and question 4.
    """
    check_split(model, tensor)
    chip, size, tensor = hardware.chip(chip), dtype_bytes("dtype", dtype), whole("tensor", tensor)
    tokens, sequence = amount("tokens", tokens), amount("sequence", sequence)
    # tokens with keys and values
    cached = tokens if sequences is None else amount("sequences", sequences) * sequence
    d, f = model.d_model, model.hidden
    queries, keys = (n * model.head_dim / tensor for n in (model.heads, model.kv_heads))
    wide = (3 if model.gated else 2) * f / tensor

    def product(parameters, width):
        return _roofline(
            2.0 * tokens * parameters / tensor,
            size * (parameters / tensor + tokens * width),
            chip,
            dtype,
        )

    return {
        "attention projections": product(
            model.attention_parameters, 2 * d + 2 * queries + 2 * keys
        ),
        "attention": _roofline(
            4.0 * tokens * sequence * queries,
            size * 2 * (tokens * queries + cached * keys),
            chip,
            dtype,
        ),
        "mlp": product(model.ff_matmul_parameters, 2 * d + wide),
    }
