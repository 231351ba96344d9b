"""A decoder's training step with Adam on a mesh: the program with which a compiler is asked what a plan costs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab.models import Model

__all__ = ["training_step"]


def training_step(
    model: Model, mesh: Any, sequences: int, sequence: int, remat: str = "block"
) -> tuple[Callable, tuple]:
    """A decoder's training step with Adam, and abstract arguments for it, sharded over a mesh of data, fsdp and tensor.

    Args:
      model: a `shardlab.models.Model` with gated MLP and untied embedding.
      mesh: a mesh with the axes "data", "fsdp" and "tensor".
      sequences: how many are in the batch.
      sequence: tokens of each.
      remat: "none" or "block": whether the backward pass rematerialises each layer.

    Returns:
      (the function, its arguments as `jax.ShapeDtypeStruct`s): for `jax.jit(function).lower(*arguments)`.
    """
    if remat not in ("none", "block") or not model.gated or model.tied:
        raise ValueError(f"only gated, untied models with remat none or block are compiled here, not {model}, {remat}")
    m, batch = model, ("data", "fsdp")
    queries, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
    shapes = {
        "embed": ((m.vocab, m.d_model), P("tensor", "fsdp")),
        "out": ((m.d_model, m.vocab), P("fsdp", "tensor")),
        "norm": ((m.d_model,), P()),
        "norms": ((m.layers, 2, m.d_model), P()),
        "q": ((m.layers, m.d_model, queries), P(None, "fsdp", "tensor")),
        "kv": ((m.layers, 2, m.d_model, keys), P(None, None, "fsdp", "tensor")),
        "o": ((m.layers, queries, m.d_model), P(None, "tensor", "fsdp")),
        "up": ((m.layers, 2, m.d_model, m.d_ff), P(None, None, "fsdp", "tensor")),
        "down": ((m.layers, m.d_ff, m.d_model), P(None, "tensor", "fsdp")),
    }
    heads_axis = "tensor" if m.kv_heads % mesh.shape["tensor"] == 0 else None
    if not heads_axis:  # several chips share a head: keys and values are replicated over tensor
        shapes["kv"] = (shapes["kv"][0], P(None, None, "fsdp", None))

    def placed(*spec):
        return NamedSharding(mesh, P(*spec))

    # Within attention and the MLP sequences are not sharded; between them they are sharded over tensor too, which is
    # Megatron's sequence parallelism. `scattered(gathered(y))` is for the backward pass, which then gathers the
    # cotangent before a product uses it.
    gathered = partial(lax.with_sharding_constraint, shardings=placed(batch))
    scattered = partial(lax.with_sharding_constraint, shardings=placed(batch, "tensor"))

    def norm(x, scale):
        x = x.astype(jnp.float32)
        return (x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)).astype(jnp.bfloat16) * scale

    block = next(n for n in range(min(sequence, 512), 0, -1) if sequence % n == 0)

    def attention(x, w):
        groups = m.heads // m.kv_heads
        q = (x @ w["q"]).reshape(sequences, sequence // block, block, m.kv_heads, groups, m.head_dim)
        k, v = ((x @ w["kv"][n]).reshape(sequences, sequence, m.kv_heads, m.head_dim) for n in (0, 1))
        # Each chip has full sequences and some of the heads, so attention itself sends nothing.
        q = lax.with_sharding_constraint(q, placed(batch, None, None, heads_axis))
        k, v = (lax.with_sharding_constraint(array, placed(batch, None, heads_axis)) for array in (k, v))

        @jax.checkpoint
        def attend(start, q):  # a block of queries at a time, so that never all scores are held at once
            scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k, preferred_element_type=jnp.float32) * m.head_dim**-0.5
            seen = jnp.arange(sequence) <= start + jnp.arange(block)[:, None]
            weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1).astype(jnp.bfloat16)
            return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v)

        starts = jnp.arange(0, sequence, block)
        result = lax.map(lambda pair: attend(*pair), (starts, jnp.moveaxis(q, 1, 0)))
        return jnp.moveaxis(result, 0, 1).reshape(sequences, sequence, queries) @ w["o"]

    def layer(x, w):
        x = x + scattered(gathered(attention(gathered(norm(x, w["norms"][0])), w)))
        inner = gathered(norm(x, w["norms"][1]))
        gate, wide = inner @ w["up"][0], inner @ w["up"][1]
        return x + scattered(gathered((jax.nn.silu(gate) * wide) @ w["down"])), None

    layer = jax.checkpoint(layer) if remat == "block" else layer
    stacked = ("norms", "q", "kv", "o", "up", "down")

    def loss(w, tokens):
        x = scattered(w["embed"][tokens])
        x, _ = lax.scan(layer, x, {name: w[name] for name in stacked})
        logits = (gathered(norm(x, w["norm"])) @ w["out"]).astype(jnp.float32)
        logits = lax.with_sharding_constraint(logits, placed(batch, None, "tensor"))
        targets = jnp.roll(tokens, -1, 1)
        picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    def step(state, tokens):
        gradients = jax.grad(loss)(state["params"], tokens)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(jnp.float32), state["first"], gradients)
        second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g.astype(jnp.float32) ** 2, state["second"], gradients)
        new = jax.tree.map(
            lambda w, m, v: (w - 1e-4 * m / (jnp.sqrt(v) + 1e-8)).astype(w.dtype), state["params"], first, second
        )
        return {"params": new, "first": first, "second": second}

    def abstract(dtype):
        return {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=placed(*spec)) for name, (shape, spec) in shapes.items()
        }

    state = {"params": abstract(jnp.bfloat16), "first": abstract(jnp.float32), "second": abstract(jnp.float32)}
    tokens = jax.ShapeDtypeStruct((sequences, sequence), jnp.int32, sharding=placed(batch, None))
    return step, (state, tokens)
