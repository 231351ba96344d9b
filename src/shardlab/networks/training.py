"""A decoder's training step with Adam on a mesh: the program with which a compiler is asked what a
plan costs.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec as P

from shardlab._arguments import nearest
from shardlab.costs import AXES, MESH_AXES
from shardlab.machines.models import Model

__all__ = ["training_step"]

# the axes over which a layer's state is sharded, besides tensor
SHARDS = ("fsdp", "context", "expert")


def training_step(
    model: Model,
    mesh: Any,
    sequences: int,
    sequence: int,
    remat: str = "block",
    microbatches: int = 1,
    dtype: Any = jnp.bfloat16,
    capacity: float = 1.0,
) -> tuple[Callable, tuple]:
    """A decoder's training step with Adam, and abstract arguments for it, sharded over a mesh.

    Data and tensor parallelism and FSDP are left to the compiler, by shardings; a pipeline (GPipe),
    attention in a ring and the exchange between experts are written out, each in a `jax.shard_map`
    along its own axes.

    Args:
      model: a `shardlab.models.Model` with gated MLP or experts, untied embedding, and without
        latent attention.
      mesh: a mesh with the axes "data", "fsdp" and "tensor", and perhaps "pipeline", "context" and
        "expert".
      sequences: how many are in the batch.
      sequence: tokens of each.
      remat: "none"; "block", the backward pass rematerialises each layer; or "offload", it does,
        and the layers' inputs wait for it in the host's memory.
      microbatches: of the pipeline; or, without one, of gradient accumulation.
      dtype: of parameters, gradients and activations. With bfloat16, the CPU's compiler of JAX
        0.12.0 aborts at sums over part of a mesh's axes, as with pipeline and expert; chips'
        compilers do not.
      capacity: how many tokens an expert takes of each chip, in multiples of its even share; it
        drops the others.

    Returns:
      (the function, its arguments as `jax.ShapeDtypeStruct`s): for
      `jax.jit(function).lower(*arguments)`.

    Raises:
      ValueError: a model or an axis that no step is written for; sequences that the mesh does not
        divide.
    """
    _check(model, mesh, sequences, remat, microbatches)
    step = _Step(model, mesh, sequence, remat, microbatches, dtype, capacity)
    state = {
        "params": step.abstract(dtype),
        "first": step.abstract(jnp.float32),
        "second": step.abstract(jnp.float32),
    }
    tokens = jax.ShapeDtypeStruct(
        (sequences, sequence), jnp.int32, sharding=step.placed(step.batch, None)
    )
    return step.step, (state, tokens)


def _check(model, mesh, sequences, remat, microbatches):
    """ValueError for a step that is not written here."""
    if remat not in ("none", "block", "offload"):
        raise ValueError(
            f"a step with remat {remat!r} is not compiled here; use none, block or offload"
        )
    has = {
        "no gated MLP": not model.gated,
        "a tied embedding": model.tied,
        "latent attention": model.kv_rank > 0,
        "dense layers beside its experts": model.dense_layers > 0,
        "sliding windows": model.local_layers > 0,
    }
    if any(has.values()):
        raise ValueError(
            f"{model.name or 'this model'} has "
            f"{' and '.join(what for what in has if has[what])}, for which no step is written "
            "here; use a gated, untied model without latent attention, dense layers or "
            "sliding windows"
        )
    size = {axis: mesh.shape.get(axis, 1) for axis in MESH_AXES}
    for axis in (*AXES, *mesh.axis_names):
        if axis not in mesh.axis_names or axis not in MESH_AXES:
            raise ValueError(
                f"a mesh with the axes {', '.join(AXES)}, and perhaps "
                f"{', '.join(MESH_AXES[3:])}, is needed, not "
                f"{', '.join(mesh.axis_names)}{nearest(axis, MESH_AXES)}"
            )
    if size["pipeline"] > 1 and size["expert"] > 1:
        raise ValueError(
            "a step with both pipeline and expert axes is not compiled here; use one of them"
        )
    for what, count in (("layers", model.layers), ("micro-batches", microbatches)):
        if count % size["pipeline"]:
            raise ValueError(
                f"{size['pipeline']} stages do not share {count} {what} evenly; use a divisor "
                f"of {count}"
            )
    if sequences % (microbatches * size["data"] * size["fsdp"] * size["expert"]):
        raise ValueError(
            f"{sequences} sequences are no multiple of {microbatches} micro-batches on "
            f"{size['data']} x {size['fsdp']} x {size['expert']} groups of devices; change "
            "one of them"
        )


@dataclass(frozen=True, eq=False)
class _Step:
    """A training step: what `training_step` was asked for, and the parts of the step as methods."""

    model: Model
    mesh: Any
    sequence: int
    remat: str
    microbatches: int
    dtype: Any
    capacity: float

    # --- Axes and shardings ---

    def present(self, *axes):
        """Those of the axes that the mesh has."""
        return tuple(axis for axis in axes if axis in self.mesh.axis_names)

    def size(self, axis):
        """How many devices an axis has; 1 for one that the mesh has not."""
        return self.mesh.shape.get(axis, 1)

    @property
    def batch(self):
        """The axes that have sequences of their own."""
        return self.present("data", "fsdp", "expert")

    @property
    def length(self):
        """The axis that shards sequences, if there is one."""
        return self.present("context")

    @property
    def stage(self):
        """The axis of a pipeline's stages, if there is one."""
        return "pipeline" if "pipeline" in self.mesh.axis_names else None

    @property
    def routed(self):
        """The axes over which each expert is sharded, besides tensor."""
        return self.present("fsdp", "context")

    @property
    def expert(self):
        """The axis that shares experts, if there is one."""
        return self.present("expert") or None

    @property
    def heads_axis(self):
        """The axis of keys and values; None where several chips share a head, so that they are
        replicated.
        """
        return "tensor" if self.model.kv_heads % self.size("tensor") == 0 else None

    @functools.cached_property
    def shapes(self):
        """The global shape and the spec of each parameter; those of layers are stacked."""
        m, stage, shards = self.model, self.stage, self.present(*SHARDS)
        # all stages share the embedding and the output matrix
        ends = self.present(*SHARDS, "pipeline")
        queries, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
        return {
            "embed": ((m.vocab, m.d_model), P("tensor", ends)),
            "out": ((m.d_model, m.vocab), P(ends, "tensor")),
            "norm": ((m.d_model,), P()),
            "norms": ((m.layers, 2, m.d_model), P(stage) if stage else P()),
            "q": ((m.layers, m.d_model, queries), P(stage, shards, "tensor")),
            "kv": ((m.layers, 2, m.d_model, keys), P(stage, None, shards, self.heads_axis)),
            "o": ((m.layers, queries, m.d_model), P(stage, "tensor", shards)),
            **(self._expert_shapes() if m.experts else self._dense_shapes("up", "down", m.d_ff)),
        }

    def _dense_shapes(self, up, down, hidden):
        m, shards = self.model, self.present(*SHARDS)
        return {
            up: ((m.layers, 2, m.d_model, hidden), P(self.stage, None, shards, "tensor")),
            down: ((m.layers, hidden, m.d_model), P(self.stage, "tensor", shards)),
        }

    def _expert_shapes(self):
        m, hidden = self.model, self.model.expert_d_ff or self.model.d_ff
        own = {
            "router": ((m.layers, m.d_model, m.experts), P(self.stage)),
            "up": (
                (m.layers, m.experts, 2, m.d_model, hidden),
                P(self.stage, self.expert, None, self.routed, "tensor"),
            ),
            "down": (
                (m.layers, m.experts, hidden, m.d_model),
                P(self.stage, self.expert, "tensor", self.routed),
            ),
        }
        if m.shared_experts:
            own |= self._dense_shapes("shared_up", "shared_down", hidden * m.shared_experts)
        return own

    def abstract(self, dtype):
        """The parameters, or arrays of their shapes, as `jax.ShapeDtypeStruct`s."""
        return {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=self.placed(*spec))
            for name, (shape, spec) in self.shapes.items()
        }

    def manual(self, function, axes, ins, outs):
        """A function as a `jax.shard_map` along some axes."""
        outer = jax.sharding.get_abstract_mesh()  # not empty within another shard_map
        where = self.mesh if outer.empty else outer
        return jax.shard_map(function, mesh=where, in_specs=ins, out_specs=outs, axis_names={*axes})

    def placed(self, *spec):
        """The sharding of a spec."""
        return NamedSharding(self.mesh, P(*spec))

    def constrained(self, x, *spec):
        """An array whose sharding is constrained to a spec."""
        within = not jax.sharding.get_abstract_mesh().empty
        return lax.with_sharding_constraint(x, P(*spec) if within else self.placed(*spec))

    # Within attention and the MLP sequences are not sharded over tensor; between them they are,
    # which is Megatron's sequence parallelism. `scattered(gathered(y))` is for the backward pass,
    # which then gathers the cotangent before a product uses it.
    def gathered(self, x):
        """Activations as attention and the MLP take them."""
        return self.constrained(x, self.batch, self.length)

    def scattered(self, x):
        """Activations as they are between attention and the MLP."""
        return self.constrained(x, self.batch, (*self.length, "tensor"))

    # --- A layer ---

    def norm(self, x, scale):
        """RMS norm."""
        x = x.astype(jnp.float32)
        return (x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)).astype(self.dtype) * scale

    @property
    def own(self):
        """Tokens of a sequence that a chip has."""
        return self.sequence // self.size("context")

    @property
    def block(self):
        """Queries whose scores are held at once."""
        return next(n for n in range(min(self.own, 512), 0, -1) if self.own % n == 0)

    def scores_of(self, q, k):
        """The scores of queries with keys."""
        return (
            jnp.einsum("bqhgd,bkhd->bhgqk", q, k, preferred_element_type=jnp.float32)
            * self.model.head_dim**-0.5
        )

    def attend_all(self, q, k, v):
        """Attention, a block of queries at a time, so that never all scores are held at once."""

        @jax.checkpoint
        def attend(start, q):
            scores = self.scores_of(q, k)
            seen = jnp.arange(self.sequence) <= start + jnp.arange(self.block)[:, None]
            weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1).astype(self.dtype)
            return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v)

        starts = jnp.arange(0, self.sequence, self.block)
        result = lax.map(lambda pair: attend(*pair), (starts, jnp.moveaxis(q, 1, 0)))
        return jnp.moveaxis(result, 0, 1)

    def attend_in_a_ring(self, q, k, v):
        """Attention, manual along context: the queries, keys and values of a chip."""
        hops, here, own, block = (
            self.size("context"),
            lax.axis_index("context"),
            self.own,
            self.block,
        )
        starts = here * own + jnp.arange(0, own, block)

        def part(k, v, source):
            @jax.checkpoint
            def attend(start, q):
                seen = source * own + jnp.arange(own) <= start + jnp.arange(block)[:, None]
                scores = jnp.where(seen, self.scores_of(q, k), -1e30)
                top = jnp.max(scores, -1, keepdims=True)
                weights = jnp.exp(scores - top)
                value = jnp.einsum("bhgqk,bkhd->bhgqd", weights.astype(self.dtype), v)
                return top, weights.sum(-1, keepdims=True), value.astype(jnp.float32)

            return lax.map(lambda pair: attend(*pair), (starts, jnp.moveaxis(q, 1, 0)))

        def turn(carry, hop):
            k, v, top, total, value = carry
            k, v = (
                lax.ppermute(x, "context", [(n, (n + 1) % hops) for n in range(hops)])
                for x in (k, v)
            )
            new_top, new_total, new_value = part(k, v, (here - hop) % hops)
            most = jnp.maximum(top, new_top)
            old, new = jnp.exp(top - most), jnp.exp(new_top - most)
            return (k, v, most, total * old + new_total * new, value * old + new_value * new), None

        (_, _, _, total, value), _ = lax.scan(turn, (k, v, *part(k, v, here)), jnp.arange(1, hops))
        # [blocks, b, h, g, q, d] before
        return jnp.moveaxis((value / total).astype(self.dtype), (0, 4), (1, 2))

    def attention(self, x, w):
        """Attention with its projections."""
        m, count, sequence = self.model, len(x), self.sequence
        groups = m.heads // m.kv_heads
        q = (x @ w["q"]).reshape(
            count, sequence // self.block, self.block, m.kv_heads, groups, m.head_dim
        )
        k, v = ((x @ w["kv"][n]).reshape(count, sequence, m.kv_heads, m.head_dim) for n in (0, 1))
        # Each chip has some of the heads, and full sequences, or with context its share of each.
        q = self.constrained(q, self.batch, self.length, None, self.heads_axis)
        k, v = (
            self.constrained(array, self.batch, self.length, self.heads_axis) for array in (k, v)
        )
        if self.length:
            # Checkpointed, so that the backward pass sends keys and values once more, instead of
            # holding those of all.
            ring = jax.checkpoint(self.attend_in_a_ring)
            result = self.manual(ring, self.length, P(None, "context"), P(None, "context"))(q, k, v)
        else:
            result = self.attend_all(q, k, v)
        return result.reshape(count, sequence, m.heads * m.head_dim) @ w["o"]

    def swiglu(self, x, up, down):
        """A gated MLP."""
        gate, wide = x @ up[0], x @ up[1]
        return (jax.nn.silu(gate) * wide) @ down

    def to_experts(self, x, router, up, down):
        """The tokens of a chip to their experts and back, manual along all axes but tensor and
        pipeline.
        """
        m, routed, expert = self.model, self.routed, self.expert
        tokens, each = x.reshape(-1, m.d_model), m.experts_per_token
        weights, chosen = lax.top_k((tokens @ router).astype(jnp.float32), each)
        weights = jax.nn.softmax(weights).astype(self.dtype)
        chosen = chosen.reshape(-1)
        room = math.ceil(self.capacity * len(chosen) / m.experts)
        place = jnp.cumsum(jax.nn.one_hot(chosen, m.experts, dtype=jnp.int32), 0)
        place = jnp.take_along_axis(place, chosen[:, None], 1)[:, 0] - 1
        rows = jnp.zeros((m.experts, room, m.d_model), self.dtype)
        rows = rows.at[chosen, place].set(jnp.repeat(tokens, each, 0), mode="drop")
        if routed:
            up, down = (lax.all_gather(w, routed, axis=2, tiled=True) for w in (up, down))
        if expert:
            rows = lax.all_to_all(rows, "expert", 0, 1, tiled=True)
        hidden = jnp.einsum("ecd,endf->necf", rows, up)
        rows = jnp.einsum("ecf,efd->ecd", jax.nn.silu(hidden[0]) * hidden[1], down)
        if expert:
            rows = lax.all_to_all(rows, "expert", 1, 0, tiled=True)
        back = rows.at[chosen, place].get(mode="fill", fill_value=0).reshape(-1, each, m.d_model)
        return jnp.einsum("tkd,tk->td", back, weights).reshape(x.shape)

    def mixture(self, x, w):
        """A mixture of experts in place of the MLP."""
        axes, whole = self.present("data", *SHARDS), P(self.batch, self.length)
        ins = (whole, P(), P(self.expert, None, self.routed), P(self.expert, None, self.routed))
        y = self.manual(self.to_experts, axes, ins, whole)(x, w["router"], w["up"], w["down"])
        return (
            y + self.swiglu(x, w["shared_up"], w["shared_down"]) if self.model.shared_experts else y
        )

    def layer(self, x, w):
        """A layer, as `lax.scan` calls it."""
        x = checkpoint_name(x, "input") if self.remat == "offload" else x
        x = x + self.scattered(
            self.gathered(self.attention(self.gathered(self.norm(x, w["norms"][0])), w))
        )
        inner = self.gathered(self.norm(x, w["norms"][1]))
        y = self.mixture(inner, w) if self.model.experts else self.swiglu(inner, w["up"], w["down"])
        return x + self.scattered(self.gathered(y)), None

    @property
    def kept_layer(self):
        """A layer that keeps what the backward pass may have of it."""
        if self.remat == "none":
            return self.layer
        if self.remat == "block":
            return jax.checkpoint(self.layer)
        return jax.checkpoint(
            self.layer,
            policy=jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=["input"],
                offload_src="device",
                offload_dst="pinned_host",
            ),
        )

    # --- The step ---

    def in_turn(self, x):
        """[sequences, ...] to [micro-batches, sequences of each, ...]; no sequence moves."""
        return x.reshape(-1, self.microbatches, *x.shape[1:]).swapaxes(0, 1)

    def spread(self, x):
        """Activations of all micro-batches, along all axes but the pipeline's."""
        return self.constrained(x, None, self.batch, (*self.length, "tensor"))

    def through_stages(self, x, w):
        """All micro-batches through the stages (GPipe), manual along pipeline: a stage's layers."""
        stages, here = self.size("pipeline"), lax.axis_index("pipeline")
        layer = self.kept_layer

        def tick(passed, coming):
            outputs, _ = lax.scan(layer, self.scattered(jnp.where(here == 0, coming, passed)), w)
            return lax.ppermute(
                outputs, "pipeline", [(n, n + 1) for n in range(stages - 1)]
            ), outputs

        idle = jnp.zeros((stages - 1, *x.shape[1:]), x.dtype)
        first = self.scattered(lax.pcast(x[0] * 0, self.stage, to="varying"))
        _, outputs = lax.scan(tick, first, self.spread(jnp.concatenate([x, idle])))
        # Of the collectives in a shard_map along some of the axes, the compilers keep an array
        # sharded along the others in permutes and all-reduces, but not in all-gathers and
        # all-to-alls.
        return lax.psum(
            jnp.where(here == stages - 1, self.spread(outputs[stages - 1 :]), 0), "pipeline"
        )

    def loss(self, w, tokens):
        """The mean loss of a batch, or of a micro-batch without a pipeline."""
        stage, length = self.stage, self.length
        lead = (stage, self.batch) if stage else (self.batch,)
        tokens = self.constrained(self.in_turn(tokens), *lead) if stage else tokens
        x = self.constrained(w["embed"][tokens], *lead, (*length, "tensor"))
        layers = {name: w[name] for name in self.shapes if name not in ("embed", "out", "norm")}
        if stage:
            x = self.spread(
                self.manual(self.through_stages, {stage}, (P(), P(stage)), P())(
                    self.spread(x), layers
                )
            )
        else:
            x, _ = lax.scan(self.kept_layer, x, layers)
        logits = (self.constrained(self.norm(x, w["norm"]), *lead, length) @ w["out"]).astype(
            jnp.float32
        )
        logits = self.constrained(logits, *lead, length, "tensor")
        targets = jnp.roll(tokens, -1, -1)
        picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    def gradients_of(self, w, tokens):
        """The gradients of a batch, accumulated over micro-batches where there is no pipeline."""
        if self.stage or self.microbatches == 1:
            return jax.grad(self.loss)(w, tokens)

        def add(sums, tokens):
            return jax.tree.map(jnp.add, sums, jax.grad(self.loss)(w, tokens)), None

        zeros = {
            name: self.constrained(jnp.zeros_like(w[name]), *spec)
            for name, (_, spec) in self.shapes.items()
        }
        sums, _ = lax.scan(add, zeros, self.in_turn(tokens))
        return jax.tree.map(lambda g: g / self.microbatches, sums)

    def step(self, state, tokens):
        """The step: state and tokens in, state out."""
        gradients = self.gradients_of(state["params"], tokens)
        first = jax.tree.map(
            lambda m, g: 0.9 * m + 0.1 * g.astype(jnp.float32), state["first"], gradients
        )
        second = jax.tree.map(
            lambda v, g: 0.95 * v + 0.05 * g.astype(jnp.float32) ** 2, state["second"], gradients
        )
        new = jax.tree.map(
            lambda w, m, v: (w - 1e-4 * m / (jnp.sqrt(v) + 1e-8)).astype(w.dtype),
            state["params"],
            first,
            second,
        )
        return {"params": new, "first": first, "second": second}
