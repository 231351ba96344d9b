"""One small decoder-only transformer with Adam, as pure functions, to be trained in every way.

    state, batch = adam_state(init(jax.random.key(0))), sums(16)
    state, value = jax.jit(train_step)(state, batch)

Dimensions: B batch, T and S tokens, D model, L layers, N heads, K key-value heads, H head, F
hidden, V vocabulary. The functions read every size from the arrays that they get, so that inside a
`shard_map` they compute with a device's shards. Where a way to train has to act, it passes `Hooks`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["Config", "Hooks", "adam", "adam_state", "attention", "block", "forward", "init", "loss",
    "mlp", "norm",
           "read", "rotate", "sums", "token_losses", "train_step"]  # fmt: skip

_SYMBOLS = "0123456789+=\n"
_LINE = len("04+38=042\n")


# --- The model ------------------------------------------------------------------------------------


def norm(x: jax.Array, scale: Any = 1.0) -> jax.Array:
    """RMS norm: each token's vector, divided by the root of its mean square. A vector (3, 4)
    becomes (0.849, 1.131).
    """
    wide = x.astype(jnp.float32)  # the mean of squares in bfloat16 would be off by a hundredth
    return (scale * wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary positions: pairs of elements of each head, f32[B, T, N, H], turned by angles that grow
    with position.
    """
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    # [T, 1, H/2]: the same for all heads
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array) -> jax.Array:
    """Causal attention: each token takes the weighted mean of the values at its own and at earlier
    positions.

    Args:
      q: queries, f32[B, T, N, H].
      k, v: keys and values, f32[B, T, K, H]; N / K heads of the queries share each head of theirs.
      positions: of the tokens, i32[T].
    """
    k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
    scores = (
        jnp.einsum("btnh,bsnh->bnts", q, k, preferred_element_type=jnp.float32)
        * q.shape[-1] ** -0.5
    )
    scores = jnp.where(positions[:, None] >= positions, scores, -jnp.inf)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, -1).astype(v.dtype), v)


def mlp(x: jax.Array, layer: dict) -> jax.Array:
    """The MLP of a layer: from D to F, a nonlinearity, and back to D."""
    return jax.nn.gelu(x @ layer["up"]) @ layer["down"]


def token_losses(x: jax.Array, unembed: jax.Array, targets: jax.Array) -> jax.Array:
    """The cross-entropy of each next token, in nats, f32[B, T], from x, f32[B, T, D]."""
    logits = jnp.matmul(x, unembed, preferred_element_type=jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - picked


def _same(x):
    return x


def _looked_up(embed, tokens):
    return embed[tokens]


@dataclass(frozen=True)
class Hooks:
    """Where a way to train acts on the model. By default nothing happens, or what one device
    computes.

    >>> from shardlab.networks.transformer import Hooks
    >>> hooks = Hooks(residual=lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("x"))))

    Attributes:
      remat: takes the function of one layer, (x, layer) -> (x, None), and returns the one to run,
        as `jax.checkpoint` does.
      weights: takes a layer's parameters just before their use, and returns those to compute with.
      residual: takes the activations between blocks, f32[B, T, D], whenever they have changed.
      enter: takes the normed activations that go into attention, the MLP or the unembedding.
      leave: takes what comes out of attention or the MLP, before it is added to the residual
        stream.
      embed: (embed, tokens) -> activations.
      attention: (q, k, v, positions) -> values, see `attention`.
      mlp: (x, layer) -> x, see `mlp`.
      token_losses: (x, unembed, targets) -> f32[B, T], see `token_losses`.
    """  # noqa: E501

    remat: Callable = _same
    weights: Callable = _same
    residual: Callable = _same
    enter: Callable = _same
    leave: Callable = _same
    embed: Callable = _looked_up
    attention: Callable = attention
    mlp: Callable = mlp
    token_losses: Callable = token_losses


_ONE_DEVICE = Hooks()


def block(x: jax.Array, layer: dict, positions: jax.Array, hooks: Hooks = _ONE_DEVICE) -> jax.Array:
    """One layer: attention, then the MLP, each added to the residual stream x, f32[B, T, D]."""
    layer = hooks.weights(layer)
    inner = hooks.enter(norm(x, layer["norms"][0]))
    q = rotate(jnp.einsum("btd,dnh->btnh", inner, layer["q"]), positions)
    k, v = jnp.einsum("btd,cdkh->cbtkh", inner, layer["kv"])
    mixed = hooks.attention(q, rotate(k, positions), v, positions)
    x = hooks.residual(x + hooks.leave(jnp.einsum("btnh,nhd->btd", mixed, layer["o"])))
    inner = hooks.enter(norm(x, layer["norms"][1]))
    return hooks.residual(x + hooks.leave(hooks.mlp(inner, layer)))


def forward(
    parameters: dict,
    tokens: jax.Array,
    hooks: Hooks = _ONE_DEVICE,
    positions: jax.Array | None = None,
) -> jax.Array:
    """The normed activations after all layers, f32[B, T, D], of tokens, i32[B, T], at positions 0,
    1, ... or others.
    """
    positions = jnp.arange(tokens.shape[1]) if positions is None else positions
    x = hooks.residual(hooks.embed(parameters["embed"], tokens))
    layers = hooks.remat(lambda x, layer: (block(x, layer, positions, hooks), None))
    x, _ = lax.scan(layers, x, parameters["layers"])
    return hooks.enter(norm(x))


def loss(
    parameters: dict, batch: dict, hooks: Hooks = _ONE_DEVICE, positions: jax.Array | None = None
) -> jax.Array:
    """The loss of a batch, in nats: the sum of its tokens' losses times their weights.

    The weights of the whole batch sum to 1, so the losses of its shards sum to that of the batch.
    """
    x = forward(parameters, batch["tokens"], hooks, positions)
    return jnp.sum(
        batch["weights"] * hooks.token_losses(x, parameters["unembed"], batch["targets"])
    )


# --- Parameters, Adam, and a step -----------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """The sizes of the model. By default 8 (4 · 64² + 2 · 64 · 256 + 2 · 64) + 2 · 16 · 64 =
    396,288 parameters.

    >>> from shardlab.networks.transformer import Config, init
    >>> sum(leaf.size for leaf in jax.tree.leaves(init(jax.random.key(0), Config())))
    396288
    """

    layers: int = 8
    model: int = 64
    heads: int = 8
    kv_heads: int = 8
    hidden: int = 256
    vocabulary: int = 16


@partial(jax.jit, static_argnames="config")
def init(key: jax.Array, config: Config = Config()) -> dict:
    """The parameters, in float32: a tree of eight arrays; those of the layers are stacked along
    their dimension 0.
    """
    L, D, N, H = config.layers, config.model, config.heads, config.model // config.heads
    K, F, V = config.kv_heads, config.hidden, config.vocabulary
    deep = 2 * L  # so many are added to the residual stream
    matrices = {  # with the inverse of each one's variance
        "embed": ((V, D), D),
        "q": ((L, D, N, H), D),
        "kv": ((L, 2, D, K, H), D),
        "o": ((L, N, H, D), D * deep),
        "up": ((L, D, F), D),
        "down": ((L, F, D), F * deep),
        "unembed": ((D, V), D),
    }
    ends = list(accumulate(math.prod(shape) for shape, _ in matrices.values()))
    # at once, because each draw is much to compile
    drawn = jnp.split(jax.random.normal(key, ends[-1:]), ends[:-1])
    parameters = {
        name: array.reshape(shape) * inverse**-0.5
        for (name, (shape, inverse)), array in zip(matrices.items(), drawn, strict=True)
    }
    outer = {name: parameters.pop(name) for name in ("embed", "unembed")}
    return outer | {"layers": {"norms": jnp.ones((L, 2, D)), **parameters}}


def adam_state(parameters: dict) -> dict:
    """The parameters with what Adam keeps for them: two moments of the same size, and the number of
    steps.
    """
    zeros = (jax.tree.map(jnp.zeros_like, parameters) for _ in range(2))
    return {
        "parameters": parameters,
        "first": next(zeros),
        "second": next(zeros),
        "step": jnp.zeros((), jnp.int32),
    }


def adam(state: dict, gradients: dict, rate: float = 3e-3) -> dict:
    """The state after one update with Adam [Kingma & Ba, 2015](https://arxiv.org/abs/1412.6980).

    Epsilon is 1e-5: with a smaller one, parameters whose gradient is all rounding would move by the
    full rate, and no two layouts would agree.
    """
    step = state["step"] + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g**2, state["second"], gradients)

    def moved(p, m, v):
        return p - rate * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.95**step)) + 1e-5)

    parameters = jax.tree.map(moved, state["parameters"], first, second)
    return {"parameters": parameters, "first": first, "second": second, "step": step}


def train_step(state: dict, batch: dict, hooks: Hooks = _ONE_DEVICE) -> tuple[dict, jax.Array]:
    """The new state after a step, and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(state["parameters"], batch, hooks)
    return adam(state, gradients), value


# --- The task -------------------------------------------------------------------------------------


def sums(count: int, length: int = 64, seed: int = 0) -> dict:
    """A batch of `count` sequences of lines such as 04+38=042, as NumPy arrays of shape (count,
    length).

    >>> from shardlab.networks.transformer import sums
    >>> batch = sums(2, length=16)
    >>> sorted(batch), batch["tokens"].shape, float(batch["weights"].sum())
    (['targets', 'tokens', 'weights'], (2, 16), 1.0)

    Args:
      count: of sequences.
      length: in tokens.
      seed: other seeds, other sums.

    Returns:
      tokens, the next token of each as targets, and weights, which are equal where the target is a
      digit of an answer, 0 elsewhere, because nothing says what is asked next, and together 1.
    """
    random = np.random.default_rng(seed)
    lines = -(-(length + 1) // _LINE)
    pairs = random.integers(0, 100, (count, lines, 2))
    texts = ["".join(f"{a:02}+{b:02}={a + b:03}\n" for a, b in row) for row in pairs]
    tokens = np.array(
        [[_SYMBOLS.index(symbol) for symbol in text[: length + 1]] for text in texts], np.int32
    )
    place = np.arange(1, length + 1) % _LINE  # of the target in its line
    answers = np.broadcast_to((place >= 6) & (place <= 8), (count, length))
    weights = (answers / answers.sum()).astype(np.float32)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}


def read(tokens: Any) -> str:
    """The text of tokens, such as those of one sequence of `sums`."""
    return "".join(_SYMBOLS[token] if token < len(_SYMBOLS) else "?" for token in np.ravel(tokens))
