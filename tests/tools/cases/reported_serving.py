"""Prefill, decode steps and sampling."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from reports import public
from steps import grid, struct


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
    "so single heads are split and exchanged; a step takes twice as long.",
    r"\bheads?\b|reshape of shards",
    row="all-to-all|all-gather|collective-permute",
    pod="v5e:2x4",
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


@public(
    "vllm-project/tpu-inference#1719",
    "The in_specs of a shard_map have a None where the scales of quantised experts are sharded, so "
    "they are gathered: 2,100 tokens a second instead of 2,500.",
    r"in_specs",
    row="all-gather.*model",
    pod="v5e:2x4",
)
def gathered_scales():
    mesh = grid((2, 4), ("expert", "model"))

    def experts(x, w, scales):
        return jnp.einsum("ebd,edf->ebf", x, w * scales[:, :, None])

    def layer(x, w, scales):
        f = jax.shard_map(
            lambda x, w, s: lax.psum(experts(x, w, part(s)), "model"),
            mesh=mesh,
            in_specs=(P("expert", None, "model"), P("expert", "model"), P("expert", None)),
            out_specs=P("expert"),
        )
        return f(x, w, scales)

    def part(scales):
        size = scales.shape[1] // 4
        return lax.dynamic_slice_in_dim(scales, lax.axis_index("model") * size, size, 1)

    arguments = (
        struct(mesh, (4, 64, 512), "expert", None, "model"),
        struct(mesh, (4, 512, 256), "expert", "model"),
        struct(mesh, (4, 512), "expert", "model"),
    )
    return layer, arguments


@public(
    "vllm-project/tpu-inference#1859",
    "Two weights of latent attention are not sharded over heads, as the queries are, so they or "
    "activations are exchanged in each layer: 34 ms a step instead of 30.",
    r"stored in other shards: .*w_u|columns after columns|"
    r"(constraint without|replicated|gather).*(w_uk|heads?)",
    row=r"all-to-all.*(w_uk|w_uv)",
    pod="v5e:2x4",
)
def latent_attention():
    mesh = grid((8,), ("model",))

    def absorb(params, q):
        latent = jnp.einsum("bnd,ndr->bnr", q, params["w_uk"])
        latent = on(mesh, latent, None, "model", None)
        return jnp.sum(jnp.einsum("bnr,nrd->bnd", latent, params["w_uv"]) ** 2, -1)

    params = {
        "w_uk": struct(mesh, (16, 64, 512), None, None, "model"),
        "w_uv": struct(mesh, (16, 512, 64), None, "model", None),
    }
    return absorb, (params, struct(mesh, (64, 16, 64), None, "model"))


@public(
    "sgl-project/sglang-jax#1063",
    "For the largest probabilities of a draft all logits are replicated first, over the axes of "
    "the data and of the vocabulary.",
    r"(constraint without an axis|avoidable communication): .*(tensor|data|top_k)",
    row="all-gather.*(data|tensor)",
)
def replicated_logits():
    mesh = grid((2, 4), ("data", "tensor"))

    def draft(head, hidden):
        logits = on(mesh, hidden @ head, "data", "tensor")
        logits = on(mesh, logits)
        best, tokens = lax.top_k(logits, 4)
        return jnp.exp(best - jax.nn.logsumexp(logits, -1, keepdims=True)), tokens

    arguments = struct(mesh, (128, 16384), None, "tensor"), struct(mesh, (256, 128), "data")
    return draft, arguments


@public(
    "vllm-project/tpu-inference#2012",
    "A constraint stands before a top_k instead of after it, so each device looks for the largest "
    "of all tokens, and not of its own.",
    r"(constraint without an axis|repeated work): .*(data|top_k)",
    row="asked for.* data",
)
def constraint_before_top_k():
    mesh = grid((4, 2), ("data", "expert"))

    def route(router, x):
        scores = jax.nn.sigmoid(x @ router)
        scores = on(mesh, scores)
        weights, experts = lax.top_k(scores, 8)
        return weights / weights.sum(-1, keepdims=True), experts

    arguments = struct(mesh, (128, 256)), struct(mesh, (4096, 128), ("data", "expert"))
    return route, arguments


@public(
    "vllm-project/tpu-inference#2938",
    "The output projection of attention is sharded over the dimension of a head instead of the "
    "heads, and an all-to-all goes before it; cured, 7.7% more tokens a second.",
    r"columns after columns|(order of axes|axis on two dimensions|\bheads?\b).*o",
    row="all-to-all|all-gather.*model",
    pod="v5e:2x4",
)
def projection_over_head_size():
    mesh = grid((8,), ("model",))

    def project(o, mixed):
        mixed = jnp.tanh(on(mesh, mixed, None, "model", None))
        return jnp.sum(jnp.einsum("tnh,nhd->td", mixed, o) ** 2, -1)

    o, mixed = (
        struct(mesh, (16, 64, 512), None, "model"),
        struct(mesh, (512, 16, 64), None, "model"),
    )
    return project, (o, mixed)


@public(
    "vllm-project/tpu-inference#1843",
    "The activations of a linear layer are annotated without the axis of data-parallel attention, "
    "which costs an all-gather in each layer: 37 ms a step instead of 34.",
    r"constraint without an axis: .*attn_dp",
    row="all-gather.*attn_dp",
)
def linear_without_its_batch():
    mesh = grid((4, 2), ("attn_dp", "model"))

    def linear(x, w):
        return on(mesh, on(mesh, x) @ w, None, "model")

    def block(params, x):
        hidden = jnp.tanh(linear(x, params["up"]))
        return on(mesh, hidden @ params["down"], "attn_dp")

    params = {
        "up": struct(mesh, (256, 1024), None, "model"),
        "down": struct(mesh, (1024, 256), "model", None),
    }
    return block, (params, struct(mesh, (2048, 256), "attn_dp"))


@public(
    "sgl-project/sglang-jax#230",
    "A whole batch is donated for the sake of its cache, and JAX warns that most of what is "
    "donated cannot be used.",
    r"donation not used",
)
def donated_batch():
    mesh = grid((8,), ("data",))

    def decode(batch, keys):
        rows = jax.vmap(lambda c, k, t: lax.dynamic_update_slice(c, k[None], (t, 0)))
        cache = rows(batch["cache"], keys, batch["lengths"])
        return cache, jnp.sum(batch["hidden"] * keys, -1)

    batch = {
        "cache": struct(mesh, (64, 256, 32), "data"),
        "hidden": struct(mesh, (64, 32), "data"),
        "lengths": struct(mesh, (64,), "data", dtype="int32"),
    }
    return jax.jit(decode, donate_argnums=0), (batch, struct(mesh, (64, 32), "data"))


@public(
    "sgl-project/sglang-jax#65",
    "Each decode step copies the whole cache of keys and values to change one token of it; a "
    "donated cache is changed where it is.",
    r"not donated: .*cache",
)
def copied_cache():
    mesh = grid((8,), ("data",))

    def decode(cache, keys, lengths):
        write = jax.vmap(lambda c, k, t: lax.dynamic_update_slice(c, k[None], (t, 0)))
        return write(cache, keys, lengths)

    arguments = (
        struct(mesh, (64, 256, 32), "data"),
        struct(mesh, (64, 32), "data"),
        struct(mesh, (64,), "data", dtype="int32"),
    )
    return decode, arguments


@public(
    "vllm-project/tpu-inference#73",
    "Each step of decoding returns the logits whole, although only the next token is used: a "
    "gather of batch by vocabulary per step.",
    r"replicated result: result\[1\].* along model, which divides dimension 1",
    row="all-gather.*model",
)
def whole_logits_returned():
    mesh = grid((8,), ("model",))

    def step(params, hidden):
        h = jax.nn.silu(hidden @ params["gate"]) * (hidden @ params["up"])
        hidden = hidden + h @ params["down"]
        logits = hidden @ params["unembed"]
        return jnp.argmax(logits, -1), logits

    params = {
        "gate": struct(mesh, (1024, 4096), None, "model", dtype="bfloat16"),
        "up": struct(mesh, (1024, 4096), None, "model", dtype="bfloat16"),
        "down": struct(mesh, (4096, 1024), "model", None, dtype="bfloat16"),
        "unembed": struct(mesh, (1024, 32768), None, "model", dtype="bfloat16"),
    }
    whole = NamedSharding(mesh, P())
    return jax.jit(step, out_shardings=(whole, whole)), (
        params,
        struct(mesh, (256, 1024), dtype="bfloat16"),
    )


@public(
    "google-deepmind/gemma#648",
    "The cache of keys and values is replicated over the devices that share the heads of the "
    "weights: each holds all of it.",
    r"replicated: cache\['k'\] and cache\['v'\].* along model",
    row="cache",
)
def replicated_cache():
    mesh = grid((4,), ("model",))
    batch, length, heads, groups, size, width = 4, 4096, 8, 4, 64, 512

    def layer(x, args):
        w, k_cache, v_cache, at = args
        q = jnp.einsum("bd,dhk->bhk", x, w["q"]).reshape(batch, groups, heads // groups, size)
        k, v = (jnp.einsum("bd,dgk->bgk", x, w[n]) for n in "kv")
        k_cache = lax.dynamic_update_slice(k_cache, k[:, None], (0, at, 0, 0))
        v_cache = lax.dynamic_update_slice(v_cache, v[:, None], (0, at, 0, 0))
        scores = jnp.einsum("bgqk,bsgk->bgqs", q, k_cache) / 8
        scores = jnp.where(jnp.arange(length) <= at, scores, -1e9)
        mixed = jnp.einsum("bgqs,bsgk->bgqk", jax.nn.softmax(scores), v_cache)
        x = x + jnp.einsum("bhk,hkd->bd", mixed.reshape(batch, heads, size), w["o"])
        return x, (k_cache, v_cache)

    def decode(params, cache, x, at):
        ats = jnp.full(params["q"].shape[0], at)
        x, (k, v) = lax.scan(layer, x, (params, cache["k"], cache["v"], ats))
        return x, {"k": k, "v": v}

    bf16 = functools.partial(struct, mesh, dtype="bfloat16")
    params = {
        "q": bf16((4, width, heads, size), None, None, "model"),
        "k": bf16((4, width, groups, size), None, None, "model"),
        "v": bf16((4, width, groups, size), None, None, "model"),
        "o": bf16((4, heads, size, width), None, "model"),
    }
    cache = {n: bf16((4, batch, length, groups, size)) for n in "kv"}
    outs = NamedSharding(mesh, P()), jax.tree.map(lambda c: c.sharding, cache)
    return jax.jit(decode, donate_argnums=1, out_shardings=outs), (
        params,
        cache,
        bf16((batch, width)),
        struct(mesh, (), dtype="int32"),
    )


@public(
    "vllm-project/tpu-inference#3597",
    "A step of decoding looks for the largest logit in shards of the vocabulary, and then gathers "
    "the same logits whole for sampling: one of these collectives is enough.",
    r"(constraint without an axis|avoidable communication): .*model",
    row="all-gather.*model",
)
def largest_and_then_gathered():
    mesh = grid((2, 4), ("data", "model"))

    def sample(head, hidden, temperature, key):
        logits = on(mesh, hidden @ head, "data", "model")
        greedy = jnp.argmax(logits, -1)
        whole = on(mesh, logits, "data", None)
        noise = jax.random.gumbel(key, whole.shape)
        drawn = jnp.argmax(whole / temperature[:, None] + noise, -1)
        return jnp.where(temperature < 1e-3, greedy, drawn)

    return jax.jit(sample), (
        struct(mesh, (256, 32768), None, "model"),
        struct(mesh, (64, 256), "data"),
        struct(mesh, (64,), "data"),
        struct(mesh, (2,), dtype="uint32"),
    )


@public(
    "sgl-project/sglang-jax#1094",
    "The slopes of each layer's attention are made on one device and passed with the model, so "
    "each step copies each of them to the others: 28 hidden transfers.",
    r"not placed: .*slopes",
)
def slopes_on_one_device():
    mesh = grid((2, 4), ("data", "tensor"))

    def step(model, state, q, k, v):
        new = []
        for slopes, one in zip(model["slopes"], state, strict=True):
            one = one * jnp.exp(-slopes)[:, None, None] + jnp.einsum("bhk,bhv->bhkv", k, v)
            q = q + jnp.einsum("bhk,bhkv->bhv", q, one)
            new.append(one)
        return new, q

    model = {"slopes": [jnp.linspace(0.1, 1, 32) for _ in range(4)]}
    state = [struct(mesh, (16, 32, 32, 32), "data", "tensor") for _ in range(4)]
    x = struct(mesh, (16, 32, 32), "data", "tensor")
    return jax.jit(step, donate_argnums=1), (model, state, x, x, x)


@public(
    "vllm-project/tpu-inference#1897",
    "Logits are asked for without the axis of data-parallel attention, so each of its groups of "
    "devices samples for all requests: 78 ms instead of 8.",
    r"(constraint without an axis|repeated work|data without an axis): .*attn_dp",
    row="attn_dp",
)
def sampler_without_its_batch():
    mesh = grid((4, 2), ("attn_dp", "model"))

    def sample(head, hidden, temperature, key):
        logits = on(mesh, hidden @ head, None, "model") / temperature[:, None]
        best, tokens = lax.top_k(logits, 64)
        likely = jnp.cumsum(jax.nn.softmax(best), -1) < 0.9
        best = jnp.where(likely, best, -1e9).at[:, 0].set(best[:, 0])
        chosen = jax.random.categorical(key, best)
        return jnp.take_along_axis(tokens, chosen[:, None], 1)[:, 0]

    return jax.jit(sample), (
        struct(mesh, (256, 16384), None, "model"),
        struct(mesh, (256, 256), "attn_dp"),
        struct(mesh, (256,)),
        struct(mesh, (2,), dtype="uint32"),
    )
