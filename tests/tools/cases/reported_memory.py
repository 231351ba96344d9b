"""Programs that store more than they need."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from reports import public
from steps import grid, struct


@public(
    "AI-Hypercomputer/maxtext#2242",
    "The logits of a large vocabulary take most of the memory of a step; computed a chunk of the "
    "batch at a time they do not.",
    r"(logits|largest temporar|alive at the peak|chunk)",
)
def whole_logits():
    mesh = grid((8,), ("data",))

    def loss(params, tokens, targets):
        hidden = params["embed"][tokens]
        hidden = lax.with_sharding_constraint(hidden, NamedSharding(mesh, P("data")))
        logits = hidden @ params["embed"].T
        wanted = jnp.where(jnp.arange(8192) == targets[..., None], logits, 0).sum(-1)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - wanted)

    def step(params, tokens, targets):
        grads = jax.grad(loss)(params, tokens, targets)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = {"embed": struct(mesh, (8192, 64), None, "data")}
    tokens = struct(mesh, (64, 256), "data", dtype="int32")
    layouts = jax.tree.map(lambda p: p.sharding, params)
    return jax.jit(step, donate_argnums=0, out_shardings=layouts), (params, tokens, tokens)


@public(
    "apple/axlearn#1068",
    "To write many steps into a cache of keys, a one-hot array of batch x steps x length is made, "
    "too large to store.",
    r"(one.hot|largest temporar|alive at the peak)",
)
def one_hot_of_steps():
    mesh = grid((8,), ("data",))

    def write(cache, time, keys):
        at = time[:, None] + jnp.arange(keys.shape[1])
        hot = jax.nn.one_hot(at, cache.shape[1], dtype=keys.dtype)
        new = jnp.einsum("bst,bsnh->btnh", hot, keys)
        return jnp.where((hot.sum(1) > 0)[..., None, None], new, cache)

    cache, keys = (struct(mesh, (8, length, 2, 32), "data") for length in (2048, 1024))
    arguments = cache, struct(mesh, (8,), "data", dtype="int32"), keys
    return jax.jit(write, donate_argnums=0), arguments


@public(
    "google-deepmind/optax#548",
    "The state of the optimiser is made on a single device, although the parameters are sharded.",
    r"result on one device",
)
def optimiser_on_one_device():
    mesh = grid((8,), ("data",))

    def init(params):
        return {"first": jax.tree.map(jnp.zeros_like, params), "count": jnp.zeros((), jnp.int32)}

    params = {"w": struct(mesh, (512, 512), "data"), "b": struct(mesh, (512,))}
    return init, (params,)


@public(
    "google/flax#5172",
    "Where the optimiser's state is sharded in another way than the model, a step returns the "
    "model in the optimiser's layout.",
    r"other sharding",
)
def model_takes_the_layout_of_its_optimiser():
    mesh = grid((2, 4), ("x", "y"))

    def step(params, moments, x, y):
        def loss(w):
            return jnp.sum((y - jax.nn.relu(x @ w["up"]) @ w["down"]) ** 2)

        grads = jax.grad(loss)(params)
        moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, grads)
        layout = NamedSharding(mesh, P("x", "y"))
        moments = lax.with_sharding_constraint(moments, {"up": layout, "down": layout})
        return jax.tree.map(lambda p, m: p - 1e-3 * m, params, moments), moments

    shapes = {"up": (128, 256), "down": (256, 128)}
    params = {name: struct(mesh, shape) for name, shape in shapes.items()}
    moments = {name: struct(mesh, shape, "x", "y") for name, shape in shapes.items()}
    data = struct(mesh, (2048, 128), ("x", "y"))
    return jax.jit(step, donate_argnums=(0, 1)), (params, moments, data, data)


@public(
    "jax-ml/jax#16278",
    "A jitted loop that closes over a large array runs out of memory; as an argument the same "
    "array is no problem.",
    r"closed-over constant",
)
def closed_over():
    mesh = grid((8,), ("data",))
    big = jnp.sin(jnp.arange(16 * 256 * 256, dtype=jnp.float32)).reshape(16, 256, 256)

    def step(x):
        return lax.fori_loop(0, 16, lambda i, x: jnp.tanh(x @ big[i]), x)

    return jax.jit(step, donate_argnums=0), (struct(mesh, (512, 256), "data"),)


@public(
    "jax-ml/jax#31250",
    "A function traces and compiles twice: its argument is on no mesh in the first call and on one "
    "in the second.",
    r"not placed|compiles? again",
)
def result_on_a_mesh():
    mesh = grid((8,), ("data",))

    def step(x):
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P())) + 1

    return step, (jnp.zeros((), jnp.int32),)


@public(
    "marin-community/marin#1936",
    "The activations that a loop over the layers keeps for the backward pass take 2.5 GB; two "
    "nested loops would keep the square root of as many.",
    r"(kept|largest temporar|alive at the peak).*(loop|scan|layer|line)",
)
def kept_by_each_layer():
    mesh = grid((8,), ("data",))

    def step(w, x):
        def loss(w):
            layer = jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None))
            return jnp.mean(lax.scan(layer, x, w)[0] ** 2)

        return w - 0.1 * jax.grad(loss)(w)

    w = struct(mesh, (64, 64, 64), None, "data")
    f = jax.jit(step, donate_argnums=0, out_shardings=w.sharding)
    return f, (w, struct(mesh, (512, 128, 64), "data"))


@public(
    "jax-ml/jax#18263",
    "An array larger than a device is made on one device before it is sharded.",
    r"result on one device|replicated result|closed-over constant",
)
def made_on_one_device():
    mesh = grid((8,), ("data",))

    def buffer(example):
        return jnp.zeros((4096, *example.shape), example.dtype)

    return buffer, (struct(mesh, (64, 8), "data"),)


@public(
    "vllm-project/tpu-inference#3004",
    "The sharding configuration is not found while a model is loaded, so each chip holds all of "
    "it: 9 GB instead of 2.2.",
    r"^replicated: ",
)
def replicated_model():
    mesh = grid((2, 4), ("data", "model"))

    def decode(params, x):
        hidden = jax.nn.gelu(x @ params["up"]) @ params["down"]
        return jnp.argmax(hidden @ params["head"], -1)

    shapes = {"up": (256, 1024), "down": (1024, 256), "head": (256, 8192)}
    params = {name: struct(mesh, shape) for name, shape in shapes.items()}
    return decode, (params, struct(mesh, (64, 256), "data"))


@public(
    "AI-Hypercomputer/maxtext#4409",
    "The log-probabilities of sampled tokens need one array of logits in f32, 112 GB of it, which "
    "rematerialisation cannot shrink; computed a chunk of the sequence at a time they fit.",
    r"(logits|largest temporar|alive at the peak|chunk)",
)
def whole_log_probabilities():
    mesh = grid((8,), ("data",))

    def log_probabilities(head, hidden, tokens):
        logits = hidden @ head
        wanted = jnp.where(jnp.arange(16384) == tokens[..., None], logits, 0).sum(-1)
        return wanted - jax.nn.logsumexp(logits, -1)

    hidden = struct(mesh, (16, 512, 64), "data")
    tokens = struct(mesh, (16, 512), "data", dtype="int32")
    f = jax.jit(log_probabilities, out_shardings=tokens.sharding)
    return f, (struct(mesh, (64, 16384), "data"), hidden, tokens)


@public(
    "jax-ml/jax#24332",
    "`meshgrid` of two small vectors makes whole arrays on every device.",
    r"replicated result",
)
def grid_of_coordinates():
    mesh = grid((4, 2), ("x", "y"))

    def coordinates(length):
        line = jnp.linspace(0, 1, 2048) * length
        return jnp.meshgrid(line, line)

    return coordinates, (struct(mesh, ()),)


@public(
    "jax-ml/jax#25010",
    "The weights that are gathered in the forward pass are kept for the backward pass; they should "
    "be gathered twice.",
    r"kept for the backward|gathered.*checkpoint",
)
def gathered_and_kept():
    mesh = grid((8,), ("data",))

    def loss(params, x):
        whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
        for w in params:
            w = lax.with_sharding_constraint(w, whole)
            x = lax.with_sharding_constraint(jnp.tanh(x @ w), rows)
        return jnp.mean(x**2)

    def step(params, x):
        grads = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = [struct(mesh, (512, 512), "data")] * 3
    f = jax.jit(step, donate_argnums=0, out_shardings=[p.sharding for p in params])
    return f, (params, struct(mesh, (64, 512), "data"))


@public(
    "AI-Hypercomputer/maxtext#5104",
    "A setting that shards the optimiser over data-parallel devices does nothing: each device "
    "holds all moments.",
    r"^replicated: .*state",
)
def moments_on_every_device():
    mesh = grid((8,), ("data",))

    def step(params, state, x):
        grads = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w["up"]) @ w["down"]) ** 2)(params)
        state = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state, grads)
        return jax.tree.map(lambda p, m: p - 1e-3 * m, params, state), state

    shapes = {"up": (128, 512), "down": (512, 128)}
    params, state = ({n: struct(mesh, s) for n, s in shapes.items()} for _ in range(2))
    x = struct(mesh, (1024, 128), "data")
    return jax.jit(step, donate_argnums=(0, 1)), (params, state, x)


@public(
    "AI-Hypercomputer/maxtext#4909",
    "The scores of the indexer, batch by heads by sequence by sequence, are whole on each device "
    "of the tensor axis, and the step does not fit.",
    r"(repeated work: .*tensor|replicated: params\['index_k'\].* along tensor)",
    row="all-(gather|reduce).*tensor",
)
def indexer_whole_on_tensor():
    mesh = grid((2, 4), ("data", "tensor"))

    def layer(params, x):
        q = jnp.einsum("btd,dhk->bthk", x, params["index_q"])
        k = x @ params["index_k"]
        scores = jax.nn.relu(jnp.einsum("bthk,bsk->bhts", q, k))
        index = jnp.einsum("bhts,bth->bts", scores, x @ params["index_weight"])
        chosen = index >= lax.top_k(index, 64)[0][..., -1:]
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[n]) for n in "qkv")
        scores = jnp.where(chosen[:, None], jnp.einsum("bthk,bshk->bhts", q, k), -1e9)
        mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), v)
        return jnp.einsum("bthk,hkd->btd", mixed, params["o"])

    heads = {n: struct(mesh, (512, 8, 64), None, "tensor", None, dtype="bfloat16") for n in "qkv"}
    params = heads | {
        "o": struct(mesh, (8, 64, 512), "tensor", dtype="bfloat16"),
        "index_q": struct(mesh, (512, 16, 64), dtype="bfloat16"),
        "index_k": struct(mesh, (512, 64), dtype="bfloat16"),
        "index_weight": struct(mesh, (512, 16), dtype="bfloat16"),
    }
    return layer, (params, struct(mesh, (4, 1024, 512), "data", dtype="bfloat16"))


@public(
    "AI-Hypercomputer/maxtext#5039",
    "The sum of gradients over microbatches is kept in float32, although bfloat16 is asked for: "
    "half of what accumulation holds could go.",
    r"largest temporaries: .*f32.*(accumulat|sum)",
    pod="v5e:2x4",
)
def accumulation_in_float32():
    mesh = grid((8,), ("fsdp",))

    def loss(params, x):
        def layer(x, w):
            return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

        x, _ = lax.scan(jax.checkpoint(layer), x, params)
        return jnp.mean(x.astype("float32") ** 2)

    def step(params, batch):
        def micro(total, x):
            grads = jax.grad(loss)(params, x)
            total = jax.tree.map(lambda t, g: t + g.astype("float32"), total, grads)
            return total, None

        zero = jax.tree.map(lambda p: jnp.zeros(p.shape, "float32"), params)
        total, _ = lax.scan(micro, zero, batch)
        return jax.tree.map(lambda p, g: (p - 1e-4 * g / 4).astype(p.dtype), params, total)

    params = {
        "up": struct(mesh, (4, 1024, 4096), None, "fsdp", dtype="bfloat16"),
        "down": struct(mesh, (4, 4096, 1024), None, "fsdp", dtype="bfloat16"),
    }
    shardings = jax.tree.map(lambda p: p.sharding, params)
    batch = struct(mesh, (4, 64, 128, 1024), None, "fsdp", dtype="bfloat16")
    return jax.jit(step, donate_argnums=0, out_shardings=shardings), (params, batch)


@public(
    "jax-ml/jax#35906",
    "The logits of a large vocabulary, which only the loss uses, take most of the memory of a "
    "training step; computed and summed in chunks they would not.",
    r"largest temporaries: .*chunks",
)
def logits_before_the_loss():
    mesh = grid((8,), ("data",))

    def step(w, x, labels):
        def loss(w):
            logits = (x @ w.T).astype("float32")
            chosen = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
            return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

        return w - 0.1 * jax.grad(loss)(w)

    return jax.jit(step, donate_argnums=0), (
        struct(mesh, (32768, 256)),
        struct(mesh, (8192, 256), "data"),
        struct(mesh, (8192,), "data", dtype="int32"),
    )


@public(
    "jax-ml/jax#25844",
    "The derivative of each element, taken from `jacfwd`, is on every device whole although the "
    "array is in shards; the gradient under `vmap` keeps them.",
    r"replicated result|result on one device|repeated work",
)
def diagonal_of_a_jacobian():
    mesh = grid((8,), ("x",))

    def slopes(x):
        return jnp.diagonal(jax.jacfwd(lambda x: jnp.sin(x) ** 3)(x))

    return jax.jit(slopes), (struct(mesh, (4096,), "x"),)


@public(
    "vllm-project/tpu-inference#2270",
    "After loading, weights of experts are joined by a function without out_shardings, so each "
    "chip holds all of them and has no memory left.",
    r"replicated result|result on one device|not placed",
)
def joined_weights_of_experts():
    mesh = grid((8,), ("model",))

    def joined(w1, w3, w2):
        return {"w13": jnp.concatenate([w1, w3], 1).swapaxes(1, 2), "w2": w2.swapaxes(1, 2)}

    shapes = (8, 1024, 512), (8, 1024, 512), (8, 512, 1024)
    return jax.jit(joined), [struct(mesh, shape) for shape in shapes]


@public(
    "marin-community/marin#7513",
    "Weights of attention and their moments are sharded over `data` alone, which has one device "
    "where all are on `expert`: each chip holds them whole and has no memory left.",
    r"^replicated: .*(attn|head).*expert",
)
def attention_on_every_expert():
    mesh = grid((1, 8), ("data", "expert"))
    width, hidden, experts = 256, 512, 8

    def on(x, *spec):
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def loss(p, x):
        h = on(x @ p["attn"], ("data", "expert"))
        gates = jax.nn.softmax(h @ p["router"])
        sent = on(jnp.einsum("tx,td->xtd", gates, h), "expert")
        back = jnp.einsum("etd,edf->etf", sent, p["up"])
        back = on(jnp.einsum("etf,efd->etd", jax.nn.gelu(back), p["down"]), "expert")
        return jnp.mean((on(h + back.sum(0), ("data", "expert")) @ p["head"]) ** 2)

    def step(s, x):
        m = jax.tree.map(lambda m, g: 0.9 * m + g, s["m"], jax.grad(loss)(s["params"], x))
        return {"params": jax.tree.map(lambda p, m: p - 0.1 * m, s["params"], m), "m": m}

    params = {
        "attn": struct(mesh, (width, width), "data"),
        "router": struct(mesh, (width, experts)),
        "up": struct(mesh, (experts, width, hidden), "expert", "data"),
        "down": struct(mesh, (experts, hidden, width), "expert", None, "data"),
        "head": struct(mesh, (width, 2048), "data"),
    }
    state = {"params": params, "m": params}
    layouts = jax.tree.map(lambda a: a.sharding, state)
    f = jax.jit(step, donate_argnums=0, out_shardings=layouts)
    return f, (state, struct(mesh, (512, width), ("data", "expert")))
