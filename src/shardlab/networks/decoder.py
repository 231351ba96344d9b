"""The decoder of Part III: a small transformer of Flax NNX's own layers, whose weights are sharded
by names.

    axes = {"batch": "data", "embed": "data", "hidden": "model"}
    with jax.set_mesh(mesh):
        decoder = create_sharded(lambda: Decoder(Config(), axes, rngs=nnx.Rngs(0)))

Needs Flax 0.11.2 or newer, which shardlab does not install. `shardlab.networks.transformer` is the
model of Part IV, which needs JAX alone. Both learn the same task.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from shardlab.networks.transformer import token_losses

__all__ = ["Config", "Decoder", "Layer", "create_sharded", "loss"]

Axes = Mapping[str, str | tuple[str, ...] | None]


@dataclass(frozen=True)
class Config:
    """The sizes of the decoder. By default it has 206,208 parameters.

    >>> from flax import nnx
    >>> from shardlab.networks.decoder import Config, Decoder
    >>> decoder = nnx.eval_shape(lambda: Decoder(Config(), rngs=nnx.Rngs(0)))
    >>> sum(leaf.size for leaf in jax.tree.leaves(nnx.state(decoder, nnx.Param)))
    206208

    Attributes:
      layers: number of layers.
      model: width of the residual stream.
      heads: of the attention; they divide `model`.
      hidden: width of the MLP.
      vocabulary: number of different tokens.
      length: of a sequence, in tokens, at most.
      dropout: the share of activations that a training step sets to zero, from 0 to 1.
      dtype: what matrices are multiplied in; parameters are float32.
    """

    layers: int = 4
    model: int = 64
    heads: int = 8
    hidden: int = 256
    vocabulary: int = 16
    length: int = 64
    dropout: float = 0.0
    dtype: Any = jnp.float32


def _annotated(initializer, axes, *names):
    if not axes:  # since Flax 0.12 an annotation needs a mesh, even if it names no axis
        return initializer
    return nnx.with_partitioning(initializer, tuple(axes.get(name) for name in names))


class Layer(nnx.Module):
    """One layer: causal attention, then an MLP, each added to the residual stream, f32[B, T, D]."""

    def __init__(self, config: Config, axes: Axes, *, rngs: nnx.Rngs) -> None:
        """The weights of a layer; the arguments are those of `Decoder`."""
        matrix, zeros = nnx.initializers.lecun_normal(), nnx.initializers.zeros_init()
        norm = {
            "scale_init": _annotated(nnx.initializers.ones_init(), axes, None),
            "bias_init": _annotated(zeros, axes, None),
            "rngs": rngs,
        }
        self.norm1, self.norm2 = (
            nnx.LayerNorm(config.model, **norm),
            nnx.LayerNorm(config.model, **norm),
        )
        self.attention = nnx.MultiHeadAttention(
            config.heads,
            config.model,
            dtype=config.dtype,
            dropout_rate=config.dropout,
            kernel_init=_annotated(matrix, axes, "embed", "heads", None),
            bias_init=_annotated(zeros, axes, "heads", None),
            out_kernel_init=_annotated(matrix, axes, "heads", None, "embed"),
            out_bias_init=_annotated(zeros, axes, None),
            decode=False,
            rngs=rngs,
        )
        self.up = nnx.Linear(
            config.model,
            config.hidden,
            dtype=config.dtype,
            kernel_init=_annotated(matrix, axes, "embed", "hidden"),
            bias_init=_annotated(zeros, axes, "hidden"),
            rngs=rngs,
        )
        self.down = nnx.Linear(
            config.hidden,
            config.model,
            dtype=config.dtype,
            kernel_init=_annotated(matrix, axes, "hidden", "embed"),
            bias_init=_annotated(zeros, axes, None),
            rngs=rngs,
        )
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The residual stream after the layer."""
        causal = nnx.make_causal_mask(x[..., 0])
        x = x + self.dropout(self.attention(self.norm1(x), mask=causal))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm2(x)))))


class Decoder(nnx.Module):
    """A decoder-only transformer: embeddings of tokens and positions, layers, a norm and an
    unembedding.
    """

    def __init__(self, config: Config, axes: Axes | None = None, *, rngs: nnx.Rngs) -> None:
        """The weights, each annotated by its names.

        Args:
          config: its sizes.
          axes: the mesh axis, or several, over which the dimensions of each name are sharded; a
            name that is left out is replicated. The names are "embed" (D), "heads" (N), "hidden"
            (F) and "vocabulary" (V) for weights, and "batch" for activations.
          rngs: the random streams: "params" for weights, "dropout" for training with dropout.
        """
        axes = axes or {}
        vectors = nnx.initializers.normal(config.model**-0.5)
        self.batch = axes.get("batch")
        # Vectors that are looked up stay whole: if D were sharded over the axis of the batch, the
        # compiler would have to gather all activations ("Involuntary full rematerialization").
        self.embed = nnx.Embed(
            config.vocabulary,
            config.model,
            dtype=config.dtype,
            embedding_init=_annotated(vectors, axes, "vocabulary", None),
            rngs=rngs,
        )
        self.positions = nnx.Embed(
            config.length,
            config.model,
            dtype=config.dtype,
            embedding_init=_annotated(vectors, axes, None, None),
            rngs=rngs,
        )
        layers = [Layer(config, axes, rngs=rngs) for _ in range(config.layers)]
        # a plain list since Flax 0.12 is an error
        self.layers = nnx.List(layers) if hasattr(nnx, "List") else layers
        self.norm = nnx.LayerNorm(
            config.model,
            scale_init=_annotated(nnx.initializers.ones_init(), axes, None),
            bias_init=_annotated(nnx.initializers.zeros_init(), axes, None),
            rngs=rngs,
        )
        self.unembed = nnx.Linear(
            config.model,
            config.vocabulary,
            use_bias=False,
            dtype=config.dtype,
            kernel_init=_annotated(nnx.initializers.lecun_normal(), axes, "embed", "vocabulary"),
            rngs=rngs,
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """The normed activations after all layers, f32[B, T, D], of tokens, i32[B, T]."""
        x = self._constrained(self.embed(tokens) + self.positions(jnp.arange(tokens.shape[1])))
        for layer in self.layers:
            x = self._constrained(layer(x))
        return self.norm(x)

    def _constrained(self, x):
        return jax.lax.with_sharding_constraint(x, P(self.batch)) if self.batch else x


def loss(decoder: Decoder, batch: Mapping[str, jax.Array]) -> jax.Array:
    """The loss in nats of a batch of `transformer.sums`: its tokens' losses times their weights,
    summed.
    """
    x = decoder(batch["tokens"])
    losses = token_losses(x.astype(jnp.float32), decoder.unembed.kernel[...], batch["targets"])
    return jnp.sum(batch["weights"] * losses)


def create_sharded(build: Callable[[], nnx.Module]) -> nnx.Module:
    """What `build` returns, with each array created on the devices that hold a shard of it and
    nowhere whole.

    It must be called under `jax.set_mesh`. Flax 0.12 and newer apply the annotations while they
    build; older ones need the constraint here.

    >>> from flax import nnx
    >>> from shardlab.networks.decoder import Config, Decoder, create_sharded
    >>> with jax.set_mesh(jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))):
    ...     decoder = create_sharded(lambda: Decoder(Config(), {"hidden": "x"}, rngs=nnx.Rngs(0)))
    >>> decoder.layers[0].up.kernel[...].addressable_shards[0].data.shape
    (64, 32)
    """

    @nnx.jit
    def create():
        module = build()
        state = nnx.state(module)
        nnx.update(module, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
        return module

    return create()
