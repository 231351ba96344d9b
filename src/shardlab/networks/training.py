"""A decoder's training step with Adam on a mesh: the program with which a compiler is asked what a plan costs."""

import math
from collections.abc import Callable
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

SHARDS = ("fsdp", "context", "expert")  # the axes over which a layer's state is sharded, besides tensor


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

    Data and tensor parallelism and FSDP are left to the compiler, by shardings; a pipeline (GPipe), attention in a
    ring and the exchange between experts are written out, each in a `jax.shard_map` along its own axes.

    Args:
      model: a `shardlab.models.Model` with gated MLP or experts, untied embedding, and without latent attention.
      mesh: a mesh with the axes "data", "fsdp" and "tensor", and perhaps "pipeline", "context" and "expert".
      sequences: how many are in the batch.
      sequence: tokens of each.
      remat: "none"; "block", the backward pass rematerialises each layer; or "offload", it does, and the layers' inputs
        wait for it in the host's memory.
      microbatches: of the pipeline; or, without one, of gradient accumulation.
      dtype: of parameters, gradients and activations. With bfloat16, the CPU's compiler of JAX 0.12.0 aborts at sums
        over part of a mesh's axes, as with pipeline and expert; chips' compilers do not.
      capacity: how many tokens an expert takes of each chip, in multiples of its even share; it drops the others.

    Returns:
      (the function, its arguments as `jax.ShapeDtypeStruct`s): for `jax.jit(function).lower(*arguments)`.

    Raises:
      ValueError: a model or an axis that no step is written for; sequences that the mesh does not divide.
    """
    if remat not in ("none", "block", "offload"):
        raise ValueError(f"a step with remat {remat!r} is not compiled here; use none, block or offload")
    has = {"no gated MLP": not model.gated, "a tied embedding": model.tied, "latent attention": model.kv_rank > 0,
           "dense layers before its experts": model.dense_layers > 0}  # fmt: skip
    if any(has.values()):
        raise ValueError(
            f"{model.name or 'this model'} has {' and '.join(what for what in has if has[what])}, for which no step is "
            "written here; use a gated, untied model without latent attention or dense layers"
        )
    size = {axis: mesh.shape.get(axis, 1) for axis in MESH_AXES}
    for axis in (*AXES, *mesh.axis_names):
        if axis not in mesh.axis_names or axis not in MESH_AXES:
            raise ValueError(
                f"a mesh with the axes {', '.join(AXES)}, and perhaps {', '.join(MESH_AXES[3:])}, is needed, not "
                f"{', '.join(mesh.axis_names)}{nearest(axis, MESH_AXES)}"
            )
    if size["pipeline"] > 1 and size["expert"] > 1:
        raise ValueError("a step with both pipeline and expert axes is not compiled here; use one of them")
    for what, count in (("layers", model.layers), ("micro-batches", microbatches)):
        if count % size["pipeline"]:
            raise ValueError(f"{size['pipeline']} stages do not share {count} {what} evenly; use a divisor of {count}")
    if sequences % (microbatches * size["data"] * size["fsdp"] * size["expert"]):
        raise ValueError(
            f"{sequences} sequences are no multiple of {microbatches} micro-batches on {size['data']} x {size['fsdp']} "
            f"x {size['expert']} groups of devices; change one of them"
        )
    m = model

    def present(*axes):
        return tuple(axis for axis in axes if axis in mesh.axis_names)

    batch, shards, length = present("data", "fsdp", "expert"), present(*SHARDS), present("context")
    ends = present(*SHARDS, "pipeline")  # all stages share the embedding and the output matrix
    stage = "pipeline" if "pipeline" in mesh.axis_names else None
    routed = present("fsdp", "context")
    queries, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
    shapes = {
        "embed": ((m.vocab, m.d_model), P("tensor", ends)),
        "out": ((m.d_model, m.vocab), P(ends, "tensor")),
        "norm": ((m.d_model,), P()),
        "norms": ((m.layers, 2, m.d_model), P(stage) if stage else P()),
        "q": ((m.layers, m.d_model, queries), P(stage, shards, "tensor")),
        "kv": ((m.layers, 2, m.d_model, keys), P(stage, None, shards, "tensor")),
        "o": ((m.layers, queries, m.d_model), P(stage, "tensor", shards)),
    }
    if m.experts:
        hidden = m.expert_d_ff or m.d_ff
        expert = present("expert") or None
        shapes |= {
            "router": ((m.layers, m.d_model, m.experts), P(stage)),
            "up": ((m.layers, m.experts, 2, m.d_model, hidden), P(stage, expert, None, routed, "tensor")),
            "down": ((m.layers, m.experts, hidden, m.d_model), P(stage, expert, "tensor", routed)),
        }
        if m.shared_experts:
            hidden *= m.shared_experts
            shapes["shared_up"] = (m.layers, 2, m.d_model, hidden), P(stage, None, shards, "tensor")
            shapes["shared_down"] = (m.layers, hidden, m.d_model), P(stage, "tensor", shards)
    else:
        shapes["up"] = (m.layers, 2, m.d_model, m.d_ff), P(stage, None, shards, "tensor")
        shapes["down"] = (m.layers, m.d_ff, m.d_model), P(stage, "tensor", shards)
    heads_axis = "tensor" if m.kv_heads % size["tensor"] == 0 else None
    if not heads_axis:  # several chips share a head: keys and values are replicated over tensor
        shapes["kv"] = (shapes["kv"][0], P(stage, None, shards, None))

    def manual(function, axes, ins, outs):
        outer = jax.sharding.get_abstract_mesh()  # not empty within another shard_map
        where = mesh if outer.empty else outer
        return jax.shard_map(function, mesh=where, in_specs=ins, out_specs=outs, axis_names={*axes})

    def placed(*spec):
        return NamedSharding(mesh, P(*spec))

    def constrained(x, *spec):
        within = not jax.sharding.get_abstract_mesh().empty
        return lax.with_sharding_constraint(x, P(*spec) if within else placed(*spec))

    # Within attention and the MLP sequences are not sharded over tensor; between them they are, which is Megatron's
    # sequence parallelism. `scattered(gathered(y))` is for the backward pass, which then gathers the cotangent before a
    # product uses it.
    def gathered(x):
        return constrained(x, batch, length)

    def scattered(x):
        return constrained(x, batch, (*length, "tensor"))

    def norm(x, scale):
        x = x.astype(jnp.float32)
        return (x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)).astype(dtype) * scale

    own = sequence // size["context"]
    block = next(n for n in range(min(own, 512), 0, -1) if own % n == 0)

    def scores_of(q, k):
        return jnp.einsum("bqhgd,bkhd->bhgqk", q, k, preferred_element_type=jnp.float32) * m.head_dim**-0.5

    def attend_all(q, k, v):  # a block of queries at a time, so that never all scores are held at once
        @jax.checkpoint
        def attend(start, q):
            scores = scores_of(q, k)
            seen = jnp.arange(sequence) <= start + jnp.arange(block)[:, None]
            weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1).astype(dtype)
            return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v)

        starts = jnp.arange(0, sequence, block)
        result = lax.map(lambda pair: attend(*pair), (starts, jnp.moveaxis(q, 1, 0)))
        return jnp.moveaxis(result, 0, 1)

    @jax.checkpoint  # so that the backward pass sends keys and values once more, instead of holding those of all
    def attend_in_a_ring(q, k, v):  # manual along context: the queries, keys and values of a chip
        hops, here = size["context"], lax.axis_index("context")
        starts = here * own + jnp.arange(0, own, block)

        def part(k, v, source):
            @jax.checkpoint
            def attend(start, q):
                seen = source * own + jnp.arange(own) <= start + jnp.arange(block)[:, None]
                scores = jnp.where(seen, scores_of(q, k), -1e30)
                top = jnp.max(scores, -1, keepdims=True)
                weights = jnp.exp(scores - top)
                value = jnp.einsum("bhgqk,bkhd->bhgqd", weights.astype(dtype), v)
                return top, weights.sum(-1, keepdims=True), value.astype(jnp.float32)

            return lax.map(lambda pair: attend(*pair), (starts, jnp.moveaxis(q, 1, 0)))

        def turn(carry, hop):
            k, v, top, total, value = carry
            k, v = (lax.ppermute(x, "context", [(n, (n + 1) % hops) for n in range(hops)]) for x in (k, v))
            new_top, new_total, new_value = part(k, v, (here - hop) % hops)
            most = jnp.maximum(top, new_top)
            old, new = jnp.exp(top - most), jnp.exp(new_top - most)
            return (k, v, most, total * old + new_total * new, value * old + new_value * new), None

        (_, _, _, total, value), _ = lax.scan(turn, (k, v, *part(k, v, here)), jnp.arange(1, hops))
        return jnp.moveaxis((value / total).astype(dtype), (0, 4), (1, 2))  # [blocks, b, h, g, q, d] before

    def attention(x, w):
        groups = m.heads // m.kv_heads
        count = len(x)
        q = (x @ w["q"]).reshape(count, sequence // block, block, m.kv_heads, groups, m.head_dim)
        k, v = ((x @ w["kv"][n]).reshape(count, sequence, m.kv_heads, m.head_dim) for n in (0, 1))
        # Each chip has some of the heads, and full sequences, or with context its share of each.
        q = constrained(q, batch, length, None, heads_axis)
        k, v = (constrained(array, batch, length, heads_axis) for array in (k, v))
        if length:
            result = manual(attend_in_a_ring, length, P(None, "context"), P(None, "context"))(q, k, v)
        else:
            result = attend_all(q, k, v)
        return result.reshape(count, sequence, queries) @ w["o"]

    def swiglu(x, up, down):
        gate, wide = x @ up[0], x @ up[1]
        return (jax.nn.silu(gate) * wide) @ down

    def to_experts(x, router, up, down):  # manual along all axes but tensor and pipeline: the tokens of a chip
        tokens, each = x.reshape(-1, m.d_model), m.experts_per_token
        weights, chosen = lax.top_k((tokens @ router).astype(jnp.float32), each)
        weights = jax.nn.softmax(weights).astype(dtype)
        chosen = chosen.reshape(-1)
        room = math.ceil(capacity * len(chosen) / m.experts)
        place = jnp.cumsum(jax.nn.one_hot(chosen, m.experts, dtype=jnp.int32), 0)
        place = jnp.take_along_axis(place, chosen[:, None], 1)[:, 0] - 1
        rows = jnp.zeros((m.experts, room, m.d_model), dtype)
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

    def mixture(x, w):
        axes = present("data", *SHARDS)
        whole = P(batch, length)
        ins = (whole, P(), P(expert, None, routed), P(expert, None, routed))
        y = manual(to_experts, axes, ins, whole)(x, w["router"], w["up"], w["down"])
        return y + swiglu(x, w["shared_up"], w["shared_down"]) if m.shared_experts else y

    def layer(x, w):
        x = checkpoint_name(x, "input") if remat == "offload" else x
        x = x + scattered(gathered(attention(gathered(norm(x, w["norms"][0])), w)))
        inner = gathered(norm(x, w["norms"][1]))
        y = mixture(inner, w) if m.experts else swiglu(inner, w["up"], w["down"])
        return x + scattered(gathered(y)), None

    if remat == "block":
        layer = jax.checkpoint(layer)
    elif remat == "offload":
        layer = jax.checkpoint(layer, policy=jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=["input"], offload_src="device",
            offload_dst="pinned_host"))  # fmt: skip
    stacked = [name for name in shapes if name not in ("embed", "out", "norm")]

    def in_turn(x):  # [sequences, ...] to [micro-batches, sequences of each, ...]; no sequence moves
        return x.reshape(-1, microbatches, *x.shape[1:]).swapaxes(0, 1)

    def spread(x):  # activations of all micro-batches, along all axes but the pipeline's
        return constrained(x, None, batch, (*length, "tensor"))

    def through_stages(x, w):  # manual along pipeline: all micro-batches, and a stage's layers
        stages, here = size["pipeline"], lax.axis_index("pipeline")

        def tick(passed, coming):
            done, _ = lax.scan(layer, scattered(jnp.where(here == 0, coming, passed)), w)
            return lax.ppermute(done, "pipeline", [(n, n + 1) for n in range(stages - 1)]), done

        idle = jnp.zeros((stages - 1, *x.shape[1:]), x.dtype)
        first = scattered(lax.pcast(x[0] * 0, stage, to="varying"))
        _, done = lax.scan(tick, first, spread(jnp.concatenate([x, idle])))
        # Of the collectives in a shard_map along some of the axes, the compilers keep an array sharded along the others
        # in permutes and all-reduces, but not in all-gathers and all-to-alls.
        return lax.psum(jnp.where(here == stages - 1, spread(done[stages - 1 :]), 0), "pipeline")

    def loss(w, tokens):
        lead = (stage, batch) if stage else (batch,)
        tokens = constrained(in_turn(tokens), *lead) if stage else tokens
        x = constrained(w["embed"][tokens], *lead, (*length, "tensor"))
        layers = {name: w[name] for name in stacked}
        if stage:
            x = spread(manual(through_stages, {stage}, (P(), P(stage)), P())(spread(x), layers))
        else:
            x, _ = lax.scan(layer, x, layers)
        logits = (constrained(norm(x, w["norm"]), *lead, length) @ w["out"]).astype(jnp.float32)
        logits = constrained(logits, *lead, length, "tensor")
        targets = jnp.roll(tokens, -1, -1)
        picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    def gradients_of(w, tokens):
        if stage or microbatches == 1:
            return jax.grad(loss)(w, tokens)

        def add(sums, tokens):
            return jax.tree.map(jnp.add, sums, jax.grad(loss)(w, tokens)), None

        zeros = {name: constrained(jnp.zeros_like(w[name]), *spec) for name, (_, spec) in shapes.items()}
        sums, _ = lax.scan(add, zeros, in_turn(tokens))
        return jax.tree.map(lambda g: g / microbatches, sums)

    def step(state, tokens):
        gradients = gradients_of(state["params"], tokens)
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

    state = {"params": abstract(dtype), "first": abstract(jnp.float32), "second": abstract(jnp.float32)}
    tokens = jax.ShapeDtypeStruct((sequences, sequence), jnp.int32, sharding=placed(batch, None))
    return step, (state, tokens)
