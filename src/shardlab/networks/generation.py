"""The transformer as a server runs it: one function for prefill and decode, with a KV cache, and a
task for it.

    parameters, value = train(Config(layers=2, kv_heads=2))
    logits, cache = extend(parameters, cache, tokens, at)

Dimensions: L layers, B sequences, T new tokens of each, S positions of a cache, N heads, K
key-value heads, H elements of a head. Inside a `shard_map` the functions compute with a device's
shards, as those of `transformer` do.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardlab.networks.transformer import (
    Config,
    adam,
    adam_state,
    init,
    loss,
    mlp,
    norm,
    read,
    rotate,
)

__all__ = [
    "attend",
    "attend_by_batch",
    "chains",
    "extend",
    "generate",
    "look_back",
    "step",
    "train",
    "write",
]

_SYMBOLS = read(range(13))


# --- The task, and a model that has learnt it -----------------------------------------------------


def chains(count: int, lines: int = 9, seed: int = 0) -> np.ndarray:
    """Sequences of sums of two digits, each of which the sum before determines, as tokens,
    int[count, 7 · lines].

    >>> from shardlab.networks.generation import chains
    >>> from shardlab.networks.transformer import read
    >>> read(chains(1, lines=2)[0])
    '8+6=14\\n6+4=10\\n'

    Args:
      count: of sequences.
      lines: sums in each.
      seed: other seeds, other sums.
    """
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 10, (2, count))
    texts = [""] * count
    for _ in range(lines):
        sums = [f"{x}+{y}={x + y:02}\n" for x, y in zip(a, b, strict=True)]
        texts = [text + line for text, line in zip(texts, sums, strict=True)]
        a, b = b, (a + b) % 10
    return np.array([[_SYMBOLS.index(symbol) for symbol in text] for text in texts])


def train(config: Config, steps: int = 200) -> tuple[dict, float]:
    """Parameters that continue `chains`, and the last loss in nats per token; on one device, in
    some seconds.

    >>> from shardlab.networks.generation import train
    >>> from shardlab.networks.transformer import Config
    >>> train(Config(layers=1, kv_heads=2), steps=2)[1] > 1
    True

    Args:
      config: the sizes of the model.
      steps: of Adam, each with a batch of its own.
    """

    def learn(state, tokens):
        known = jnp.arange(1, tokens.shape[1]) >= 4  # what follows the first =
        lesson = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
        lesson["weights"] = known / known.sum() / len(tokens)
        value, gradients = jax.value_and_grad(loss)(state["parameters"], lesson)
        warm = jnp.minimum(1, (state["step"] + 1) / 20)
        cosine = 0.5 + 0.5 * jnp.cos(jnp.pi * state["step"] / steps)
        return adam(state, gradients, 1e-2 * warm * cosine), value

    start = adam_state(jax.tree.map(lambda p: p / 2, init(jax.random.key(0), config)))
    lessons = np.stack([chains(12, seed=n) for n in range(steps)])
    state, values = jax.jit(partial(lax.scan, learn))(start, lessons)
    return state["parameters"], float(values[-1])


# --- Attention to a cache, and the model around it ------------------------------------------------


def write(cache: Any, kv: jax.Array, at: jax.Array) -> jax.Array:
    """A layer's cache with new keys and values.

    Args:
      cache: f32[2, B, S, K, H].
      kv: f32[2, B, T, K, H].
      at: their positions, i32[B, T].
    """
    rows = jnp.arange(at.shape[0])[:, None]
    return cache.at[:, rows, at].set(kv, mode="drop")  # none beyond S


def look_back(q: jax.Array, cache: jax.Array, at: jax.Array) -> jax.Array:
    """Attention to a cache: each query sees its own and earlier positions.

    Args:
      q: f32[B, T, N, H]; N / K queries share each key-value head.
      cache: f32[2, B, S, K, H].
      at: positions of the queries, i32[B, T].
    """
    k, v = jnp.repeat(cache, q.shape[2] // cache.shape[3], axis=3)
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5
    seen = jnp.arange(k.shape[1]) <= at[:, None, :, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


def attend(
    q: jax.Array, kv: jax.Array, cache: jax.Array, at: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Write, then look back; returns the values, and the longer cache.

    Args:
      q, kv, cache, at: as in `write` and `look_back`.
    """
    cache = write(cache, kv, at)
    return look_back(q, cache, at), cache


def attend_by_batch(
    q: jax.Array, kv: jax.Array, cache: jax.Array, at: jax.Array, axes: Any
) -> tuple[jax.Array, jax.Array]:
    """`attend` on a device that has all sequences and its share of the heads, and a cache by batch.

    Args:
      q, kv, cache, at: as in `attend`; of q only this device's heads, of the cache only its
        sequences.
      axes: of the mesh, over which both are sharded.
    """

    def own(array, axis):
        start = lax.axis_index(axes) * cache.shape[1]
        return lax.dynamic_slice_in_dim(array, start, cache.shape[1], axis)

    q = lax.all_to_all(q, axes, 0, 2, tiled=True)  # all heads, own sequences
    mixed, cache = attend(q, own(kv, 1), cache, own(at, 0))
    return lax.all_to_all(mixed, axes, 2, 0, tiled=True), cache


def _turn(x, at):
    """Rotary positions that differ between sequences."""
    return jax.vmap(lambda x, at: rotate(x[None], at)[0])(x, at)


def extend(
    parameters: dict,
    cache: Any,
    tokens: jax.Array,
    at: jax.Array,
    attend: Callable = attend,
    leave: Callable = lambda x: x,
) -> tuple[jax.Array, Any]:
    """Logits after each of tokens, i32[B, T], at positions i32[B, T], and the longer cache, f32[L,
    2, B, S, K, H].

    Args:
      parameters: as `shardlab.networks.transformer.init` makes them.
      cache: an array, or a tree that `attend` understands, with a first dimension for the layers.
      tokens: the new tokens of each sequence: a prompt, a chunk of one, or one token.
      at: their positions; nothing is written for a position beyond S.
      attend: (q, kv, cache, at) -> (values, cache), for one layer.
      leave: takes what comes out of attention or the MLP, before it is added to the residual
        stream.
    """

    def layer(x, both):
        weights, cache = both
        inner = norm(x, weights["norms"][0])
        q = _turn(jnp.einsum("btd,dnh->btnh", inner, weights["q"]), at)
        k, v = jnp.einsum("btd,cdkh->cbtkh", inner, weights["kv"])
        kv = jnp.stack([_turn(k, at), v])
        mixed, cache = attend(q, kv, cache, at)
        x += leave(jnp.einsum("btnh,nhd->btd", mixed, weights["o"]))
        inner = norm(x, weights["norms"][1])
        return x + leave(mlp(inner, weights)), cache

    x = parameters["embed"][tokens]
    x, cache = lax.scan(layer, x, (parameters["layers"], cache))
    return norm(x) @ parameters["unembed"], cache


@jax.jit
def step(parameters: dict, cache: Any, tokens: jax.Array, at: jax.Array) -> tuple[jax.Array, Any]:
    """The token that follows each sequence, i32[B], and the longer cache.

    Args:
      parameters, cache, tokens, at: as in `extend`.
    """
    logits, cache = extend(parameters, cache, tokens, at)
    return logits[:, -1].argmax(-1), cache


def generate(
    parameters: dict, cache: Any, prompts: Any, count: int, step: Callable = step
) -> np.ndarray:
    """The next tokens of each prompt, greedily, int[B, count].

    Args:
      parameters, cache: as in `extend`.
      prompts: int[B, T], all of one length.
      count: of tokens.
      step: as the default; takes prompts, then single tokens.
    """
    B, T = prompts.shape
    at = jnp.broadcast_to(jnp.arange(T), (B, T))
    token, cache = step(parameters, cache, prompts, at)
    answer = [token]
    for n in range(T, T + count - 1):
        at = jnp.full((B, 1), n)
        token, cache = step(parameters, cache, answer[-1][:, None], at)
        answer.append(token)
    return np.stack(answer, 1)
