"""Prefill, decode steps and sampling."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, struct

from reports import public


def on(mesh, x, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


@public(
    "vllm-project/tpu-inference#3511",
    "In each decode step the logits of the whole vocabulary are gathered before the sampler looks "
    "for the largest; the best of each shard would do.",
    r"(constraint without an axis|avoidable communication): .*(vocab|model|top_k)",
    row="all-gather.*model",
)
def gathered_logits():
    mesh = grid((2, 4), ("data", "model"))

    def sample(head, hidden, key):
        logits = on(mesh, hidden @ head, "data", "model")
        logits = on(mesh, logits, "data", None)
        best, tokens = lax.top_k(logits, 64)
        chosen = jax.random.categorical(key, best)
        return jnp.take_along_axis(tokens, chosen[:, None], 1)[:, 0]

    arguments = (
        struct(mesh, (256, 32768), None, "model"),
        struct(mesh, (64, 256), "data"),
        struct(mesh, (2,), dtype="uint32"),
    )
    return sample, arguments


def attention(params, x, groups):
    q = jnp.einsum("btd,dnh->btnh", x, params["q"])
    k = jnp.einsum("btd,dkh->btkh", x, params["k"])
    v = jnp.einsum("btd,dkh->btkh", x, params["v"])
    q = q.reshape(*q.shape[:2], groups, -1, q.shape[-1])
    scores = jax.nn.softmax(jnp.einsum("btkgh,bskh->bkgts", q, k))
    mixed = jnp.einsum("bkgts,bskh->btkgh", scores, v)
    return jnp.einsum("btnh,nhd->btd", mixed.reshape(*x.shape[:2], -1, q.shape[-1]), params["o"])


@public(
    "vllm-project/tpu-inference#2585",
    "Keys and values, of which there are fewer heads than devices, are sharded over the dimension "
    "of a head, which costs all-to-alls.",
    r"\bheads?\b",
    row="all-to-all|all-gather.*model",
)
def shards_of_a_head():
    mesh = grid((2, 4), ("data", "model"))

    def attend(params, x):
        return jnp.sum(attention(params, x, 2) ** 2, -1)

    params = {
        "q": struct(mesh, (256, 8, 64), None, "model"),
        "k": struct(mesh, (256, 2, 64), None, None, "model"),
        "v": struct(mesh, (256, 2, 64), None, None, "model"),
        "o": struct(mesh, (8, 64, 256), "model"),
    }
    return attend, (params, struct(mesh, (8, 128, 256), "data"))


@public(
    "vllm-project/tpu-inference#2661",
    "The output of the joined projection is split over more devices than there are heads of keys, "
    "so single heads are cut and exchanged; a step takes twice as long.",
    r"\bheads?\b|reshape of shards",
    row="all-to-all|all-gather|collective-permute",
)
def cut_heads():
    mesh = grid((8,), ("model",))

    def attend(params, x):
        batch, length, _ = x.shape
        q, k, v = jnp.split(x @ params["qkv"], (1024, 1152), -1)
        q = q.reshape(batch, length, 2, 8, 64)
        k, v = (a.reshape(batch, length, 2, 64) for a in (k, v))
        scores = jax.nn.softmax(jnp.einsum("btkgh,bskh->bkgts", q, k))
        mixed = jnp.einsum("bkgts,bskh->btkgh", scores, v).reshape(batch, length, 1024)
        return jnp.sum((mixed @ params["o"]) ** 2, -1)

    params = {
        "qkv": struct(mesh, (256, 1280), None, "model"),
        "o": struct(mesh, (1024, 256), "model"),
    }
    return attend, (params, struct(mesh, (8, 64, 256)))


@public(
    "vllm-project/tpu-inference#2988",
    "Tokens are split over more axes than the offsets of their sequences, so a device looks for "
    "tokens that others have: a TPU halts.",
    r"(different data|offsets|other axes|axes differ)",
)
def tokens_and_offsets():
    mesh = grid((4, 2), ("attn_dp", "model"))

    def kernel(q, offsets):
        rows = offsets[:, None] + jnp.arange(8)
        return jnp.take(q, rows, axis=0, mode="clip").sum(1)

    f = jax.shard_map(
        kernel,
        mesh=mesh,
        in_specs=(P(("attn_dp", "model")), P("attn_dp")),
        out_specs=P(("attn_dp", "model")),
    )
    q = struct(mesh, (1024, 64), ("attn_dp", "model"))
    return f, (q, struct(mesh, (64,), "attn_dp", dtype="int32"))


@public(
    "apple/axlearn#972",
    "A cache is updated at four arrays of computed indices: prefill takes 2.2 s, and 71 ms with a "
    "mask in their place.",
    r"indices gathered",
    row="computed ind",
)
def scattered_cache():
    mesh = grid((4, 2), ("data", "model"))

    def write(cache, time, keys):
        batch, _, heads, size = cache.shape
        at = (
            jnp.arange(batch)[:, None, None],
            time[:, None, None],
            jnp.arange(heads)[None, :, None],
            jnp.arange(size)[None, None, :],
        )
        return cache.at[at].set(keys)

    arguments = (
        struct(mesh, (32, 512, 8, 64), "data", None, "model", None),
        struct(mesh, (32,), "data", dtype="int32"),
        struct(mesh, (32, 8, 64), "data", "model", None),
    )
    return jax.jit(write, donate_argnums=0), arguments
