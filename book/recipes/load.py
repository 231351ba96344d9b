"""Load a model like Llama or Phi-3, each shard to its device: python load.py FOLDER DATA MODEL"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AxisType, PartitionSpec as P

from shardlab import (
    Stored,
    apply_rules,
    compare_weights,
    equal_part,
    heads_part,
    load_weights,
    open_weights,
    stored_bytes,
    target,
)


@dataclass(frozen=True)
class Config:  # what no array holds stands here too: both constants decide values, not shapes
    layers: int
    model: int
    heads: int
    groups: int
    head: int
    hidden: int
    vocabulary: int
    epsilon: float
    theta: float
    tied: bool


def config_of(folder):
    """The sizes and constants in a folder's config.json; what this model does not do is refused."""
    given = json.loads((Path(folder) / "config.json").read_text())
    rope = given.get("rope_parameters") or given
    scaling = given.get("rope_scaling") or (rope if rope is not given else {})
    known = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    odd = {name: given[name] for name, value in known.items() if given.get(name, value) != value}
    if scaling.get("rope_type", "default") != "default":
        odd["rope_scaling"] = scaling
    odd |= {name: given[name] for name in ("sliding_window",) if given.get(name)}
    if odd:
        raise ValueError(f"config.json says {odd}, which Layer does not compute: add it there")
    model, heads = given["hidden_size"], given["num_attention_heads"]
    groups, head = given.get("num_key_value_heads", heads), given.get("head_dim") or model // heads
    return Config(
        given["num_hidden_layers"], model, heads, groups, head, given["intermediate_size"],
        given["vocab_size"], given["rms_norm_eps"], rope.get("rope_theta", 1e4),
        given.get("tie_word_embeddings", False),
    )  # fmt: skip


def rotary(x, theta):  # element i turns with element i + H / 2: halves, not neighbouring pairs
    angle = theta ** -(jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    angle = (jnp.arange(x.shape[1])[:, None] * angle)[:, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = first * jnp.cos(angle) - second * jnp.sin(angle)
    return jnp.concatenate(
        [turned, second * jnp.cos(angle) + first * jnp.sin(angle)], axis=-1
    ).astype(x.dtype)


class Layer(nnx.Module):
    def __init__(self, c, dtype, rngs):
        options = {"use_bias": False, "dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        norm = {"epsilon": c.epsilon, "dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.norm1, self.norm2 = nnx.RMSNorm(c.model, **norm), nnx.RMSNorm(c.model, **norm)
        self.query = nnx.LinearGeneral(c.model, (c.heads, c.head), **options)
        self.key = nnx.LinearGeneral(c.model, (c.groups, c.head), **options)
        self.value = nnx.LinearGeneral(c.model, (c.groups, c.head), **options)
        self.out = nnx.LinearGeneral((c.heads, c.head), c.model, axis=(-2, -1), **options)
        self.gate = nnx.Linear(c.model, c.hidden, **options)
        self.up = nnx.Linear(c.model, c.hidden, **options)
        self.down = nnx.Linear(c.hidden, c.model, **options)
        self.theta = c.theta

    def __call__(self, x):
        y = self.norm1(x)
        q, k = (rotary(project(y), self.theta) for project in (self.query, self.key))
        x = x + self.out(jax.nn.dot_product_attention(q, k, self.value(y), is_causal=True))
        y = self.norm2(x)
        return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))


class Llama(nnx.Module):
    def __init__(self, c, dtype=jnp.bfloat16, *, rngs, layer=Layer):
        options = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.embed = nnx.Embed(c.vocabulary, c.model, **options)
        make = nnx.vmap(lambda rngs: layer(c, dtype, rngs))  # one stack of layers, [L, ...]
        self.layers = nnx.split_rngs(splits=c.layers)(make)(rngs)
        self.norm = nnx.RMSNorm(c.model, epsilon=c.epsilon, **options)
        if not c.tied:
            self.unembed = nnx.Linear(c.model, c.vocabulary, use_bias=False, **options)

    def __call__(self, tokens):  # the logits, [B, T, V]
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def run(layer, x):
            return jax.lax.with_sharding_constraint(layer(x), P("data"))

        x = self.norm(run(self.layers, self.embed(tokens)))
        return self.unembed(x) if hasattr(self, "unembed") else self.embed.attend(x)


def rules_of(c, mesh):
    """Layouts by path; key-value heads that the axis "model" does not divide are replicated."""
    shared = "model" if c.groups % mesh.shape["model"] == 0 else None
    return [
        (r"layers/query/kernel", P(None, "data", "model", None)),
        (r"layers/(key|value)/kernel", P(None, "data", shared, None)),
        (r"layers/out/kernel", P(None, "model", None, "data")),
        (r"layers/(gate|up)/kernel", P(None, "data", "model")),
        (r"layers/down/kernel", P(None, "model", "data")),
        (r"\bembed/embedding", P("model", None)),
        (r"unembed/kernel", P("data", "model")),
        (r"norm", P()),
    ]


def table_of(c, files):
    """Where each parameter stands: in arrays of its own (Llama), or in fused ones (Phi-3)."""
    turned, heads, layer = ((1,), (0,)), ((1, 2), (0,)), "model.layers.{}."
    table = {
        "embed/embedding": Stored("model.embed_tokens.weight", ((0,), (1,))),
        "norm/scale": Stored("model.norm.weight", ((0,),)),
        "layers/norm1/scale": Stored(layer + "input_layernorm.weight", ((0,),)),
        "layers/norm2/scale": Stored(layer + "post_attention_layernorm.weight", ((0,),)),
        "layers/out/kernel": Stored(layer + "self_attn.o_proj.weight", ((2,), (0, 1))),
        "layers/down/kernel": Stored(layer + "mlp.down_proj.weight", turned),
    } | ({} if c.tied else {"unembed/kernel": Stored("lm_head.weight", turned)})
    fused = any(name.endswith("qkv_proj.weight") for name in files)
    for part in ("query", "key", "value"):
        name = layer + f"self_attn.{'qkv' if fused else part[0]}_proj.weight"
        of = heads_part(part, c.heads, c.groups, "blocked") if fused else None
        table[f"layers/{part}/kernel"] = Stored(name, heads, of)
    for number, part in enumerate(("gate", "up")):
        name = layer + f"mlp.{'gate_up' if fused else part}_proj.weight"
        of = equal_part(number, c.hidden) if fused else None
        table[f"layers/{part}/kernel"] = Stored(name, turned, of)
    return table


def load(folder, mesh, dtype=jnp.bfloat16):
    """The config of a folder, and its model on a mesh; call it again for another mesh."""
    config, files = config_of(folder), open_weights(folder)
    abstract = nnx.eval_shape(lambda: Llama(config, dtype, rngs=nnx.Rngs(0)))
    definition, shapes = nnx.split(abstract)  # parameters alone: no dropout, no statistics
    table, applied = table_of(config, files), apply_rules(rules_of(config, mesh), shapes)
    report = compare_weights(table, shapes, files)
    assert report.clean and not applied.unmatched, f"{report}\n{applied}"
    params = load_weights(table, target(shapes, applied.specs, mesh), files)
    return config, nnx.merge(definition, params)


def main(folder, data, model):
    mesh = jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        _, llama = load(folder, mesh)
        print(f"a device stores {stored_bytes(nnx.state(llama)):,} bytes")
        logits = nnx.jit(lambda model, tokens: model(tokens))(llama, jnp.ones((data, 8), int))
        print("after eight tokens of 1, the most likely is", int(logits[0, -1].argmax()))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
