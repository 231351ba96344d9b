"""Specs that do not fit together, and constraints that lack an axis."""

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
    "sgl-project/sglang-jax#1083",
    "An embedding layer asks for an output without the axis of the batch: all devices gather the "
    "whole batch, and the next layer scatters it again.",
    r"constraint without an axis: .* lacks data",
    row="all-gather.*data",
)
def embedding_without_batch():
    mesh = grid((2, 4), ("data", "tensor"))

    def embed(params, ids):
        x = params["table"][ids]
        x = on(mesh, x, None, None)
        return jnp.tanh(x @ params["q"])

    params = {
        "table": struct(mesh, (8192, 256), "tensor", None),
        "q": struct(mesh, (256, 512), None, "tensor"),
    }
    return embed, (params, struct(mesh, (2048,), "data", dtype="int32"))


@public(
    "AI-Hypercomputer/maxtext#4005",
    "The rule for the activations of a mixture of experts lacks the axis `expert`, the only one "
    "larger than 1, and training takes 2.5 times as long.",
    r"constraint without an axis: .* lacks expert",
    row="all-gather.*expert",
)
def rule_without_experts():
    mesh = grid((1, 1, 8), ("data", "fsdp", "expert"))
    rules = {"batch": ("data", "fsdp", "expert"), "batch_moe": ("data", "fsdp")}

    def logical(x, *names):
        return on(mesh, x, *(rules.get(name) for name in names))

    def mlp(params, x):
        x = logical(x, "batch", None, None)
        hidden = logical(jnp.tanh(x @ params["router"]), "batch_moe", None, None)
        hidden = jnp.einsum("bsd,df->bsf", hidden, params["up"])
        return logical(hidden, "batch", None, None)

    params = {"router": struct(mesh, (128, 256)), "up": struct(mesh, (256, 512))}
    return mlp, (params, struct(mesh, (16, 64, 128), ("data", "fsdp", "expert")))


@public(
    "goodfire-ai/spd#927",
    "The optimiser's copy of the weights is sharded over two axes in the order that costs "
    "permutations of all of it in each step; the other order sends none, and a step takes 14% less "
    "time.",
    r"order of axes: .*fsdp.*replicate",
    row="collective-permute",
)
def replicate_major():
    mesh = grid((2, 4), ("replicate", "fsdp"))
    both = ("replicate", "fsdp")

    def step(master, x, y):
        def loss(master):
            weights = on(mesh, master, "fsdp")
            return jnp.mean((x @ weights - y) ** 2)

        return master - 0.1 * jax.grad(loss)(master)

    master = struct(mesh, (512, 512), both)
    data = struct(mesh, (64, 512), both)
    return jax.jit(step, out_shardings=master.sharding, donate_argnums=0), (master, data, data)


@public(
    "keras-team/keras-hub#2827",
    "The layout of Llama's query, key and value kernels has the axes of data and of the model "
    "swapped: no error, and the wrong sharding.",
    r"(order of axes|columns after columns|axis on two dimensions|swapped)",
    row="all-to-all",
)
def swapped_axes():
    mesh = grid((2, 4), ("batch", "model"))

    def attend(params, x):
        q = jnp.einsum("btd,dnh->btnh", x, params["query"])
        k = jnp.einsum("btd,dnh->btnh", x, params["key"])
        scores = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k))
        mixed = jnp.einsum("bnts,bsnh->btnh", scores, k)
        out = jnp.einsum("btnh,nhd->btd", mixed, params["output"])
        return jnp.mean(out**2)

    params = {
        "query": struct(mesh, (256, 8, 32), "model", "batch", None),
        "key": struct(mesh, (256, 8, 32), "model", "batch", None),
        "output": struct(mesh, (8, 32, 256), "model", None, "batch"),
    }
    return attend, (params, struct(mesh, (16, 64, 256), "batch"))


@public(
    "jax-ml/jax#21562",
    "Between two layouts that differ in several axes XLA gathers the whole array, and warns of an "
    "involuntary full rematerialisation.",
    r"full rematerialisation",
    row="all-gather|all-to-all",
)
def far_layouts():
    mesh = grid((4, 2), ("x", "y"))
    first, second = ("y", None, "x"), (None, ("x", "y"), None)

    def add(a, b, c):
        return c + on(mesh, a + b, *second)

    shape = (64, 64, 64)
    near = struct(mesh, shape, *first)
    return add, (near, near, struct(mesh, shape, *second))


@public(
    "apple/axlearn#993",
    "Micro-batches are sharded over all axes, although the batch is not: their layout is changed "
    "in each step of the accumulation.",
    r"^(constraint|order of axes|axis on two|data without).*model",
    row="(all-to-all|collective-permute).*asked for",
)
def microbatches_over_all_axes():
    mesh = grid((4, 2), ("data", "model"))

    def step(params, x):
        micro = x.reshape(4, 16, 64, 128)
        micro = on(mesh, micro, None, ("data", "model"))

        def body(_, x):
            hidden = jnp.tanh(on(mesh, x @ params["up"], "data", None, "model"))
            return None, jnp.mean(on(mesh, hidden @ params["down"], "data") ** 2, (1, 2))

        return lax.scan(body, None, micro)[1]

    params = {
        "up": struct(mesh, (128, 512), None, "model"),
        "down": struct(mesh, (512, 128), "model", None),
    }
    return step, (params, struct(mesh, (64, 64, 128), "data"))


@public(
    "openxla/xla#19166",
    "The reshape that splits a sharded batch into micro-batches divides its sharding, too, which "
    "costs all-to-alls and permutes around the loop.",
    r"reshape of shards|(avoidable communication|repeated work): .*(reshape|along the dimension)",
    row="reshape|scan, map",
)
def microbatches_by_reshape():
    mesh = grid((8,), ("data",))

    def accumulate(w, x):
        micro = x.reshape(4, 16, 128)

        def body(total, x):
            return total + jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), None

        return lax.scan(body, jnp.zeros_like(w), micro)[0]

    return accumulate, (struct(mesh, (128, 128)), struct(mesh, (64, 128), "data"))


@public(
    "AI-Hypercomputer/maxtext#4174",
    "The training step is compiled ahead of time for a batch without a sharding, and once more for "
    "the real batch.",
    r"(not placed|repeated work|without).*batch",
)
def batch_on_no_mesh():
    mesh = grid((8,), ("data",))

    def step(w, batch):
        w_whole = on(mesh, w)
        grads = jax.grad(lambda w: jnp.mean((batch["x"] @ w) ** 2))(w_whole)
        return w - 0.1 * on(mesh, grads, "data")

    batch = {"x": jax.ShapeDtypeStruct((512, 256), "float32")}
    return jax.jit(step, donate_argnums=0), (struct(mesh, (256, 256), "data"), batch)


@public(
    "marin-community/marin#8911",
    "The counter of steps starts without the sharding with which the step returns it, so the "
    "second step compiles again.",
    r"not placed: .*step",
)
def counter_on_no_mesh():
    mesh = grid((8,), ("data",))

    def step(state, x):
        grads = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w["up"]) @ w["down"]) ** 2)(state["w"])
        rate = 0.1 / (1 + state["step"])
        new = jax.tree.map(lambda w, g: w - rate * g, state["w"], grads)
        return {"w": new, "step": state["step"] + 1}

    def put(shape):
        return jax.device_put(jnp.ones(shape), NamedSharding(mesh, P("data")))

    w = {"up": put((256, 512)), "down": put((512, 256))}
    state = {"w": w, "step": jnp.zeros((), jnp.int32)}
    return jax.jit(step, donate_argnums=0), (state, put((64, 256)))


@public(
    "Physical-Intelligence/openpi#193",
    "The batch lies over `batch` and `fsdp`, but the constraint of the activations names `batch` "
    "alone: each device computes the activations of all devices of its `fsdp` group.",
    r"constraint without an axis: .* lacks fsdp",
    row="all-gather.*fsdp",
)
def activations_over_one_axis():
    mesh = grid((2, 4), ("batch", "fsdp"))

    def constrained(x):
        return on(mesh, x, "batch")

    def layer(x, w):
        h = jax.nn.gelu(x @ w["up"])
        return constrained(x + h @ w["down"]), None

    def loss(params, images, actions):
        x = constrained(images @ params["embed"])
        x, _ = lax.scan(jax.checkpoint(layer), x, params["layers"])
        return jnp.mean((x @ params["head"] - actions) ** 2)

    def step(params, images, actions):
        value, grads = jax.value_and_grad(loss)(params, images, actions)
        return jax.tree.map(lambda p, g: p - 1e-4 * g, params, grads), value

    params = {
        "embed": struct(mesh, (768, 1024), "fsdp"),
        "layers": {
            "up": struct(mesh, (6, 1024, 4096), None, "fsdp"),
            "down": struct(mesh, (6, 4096, 1024), None, "fsdp"),
        },
        "head": struct(mesh, (1024, 32), "fsdp"),
    }
    both = ("batch", "fsdp")
    data = struct(mesh, (32, 256, 768), both), struct(mesh, (32, 256, 32), both)
    shardings = jax.tree.map(lambda p: p.sharding, params), NamedSharding(mesh, P())
    return jax.jit(step, donate_argnums=0, out_shardings=shardings), (params, *data)


@public(
    "AI-Hypercomputer/maxtext#5060",
    "The kernels are traced without the logical rules, so that every constraint does nothing, and "
    "the compiler shards activations by the weights: 2.7 times as slow.",
    r"axis on two dimensions: .* gets fsdp along the batch",
    row="(all-gather|all-to-all|all-reduce).*fsdp",
)
def constraints_without_rules():
    mesh = grid((8,), ("fsdp",))
    rules = {}

    def logical(x, *names):
        spec = [rules.get(name) for name in names]
        return on(mesh, x, *spec) if any(spec) else x

    def layer(x, w):
        x = logical(x, "batch", "length", "embed")
        h = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])
        h = logical(h, "batch", "length", "mlp")
        return logical(x + h @ w["down"], "batch", "length", "embed"), None

    def loss(params, tokens):
        x = logical(params["embed"][tokens], "batch", "length", "embed")
        x, _ = lax.scan(jax.checkpoint(layer), x, params["layers"])
        logits = logical(x @ params["embed"].T, "batch", "length", "vocab")
        wanted = jax.nn.one_hot(tokens, 32768, dtype=logits.dtype)
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * wanted, -1))

    def step(params, tokens):
        value, grads = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 1e-4 * g, params, grads), value

    bf16 = functools.partial(struct, mesh, dtype="bfloat16")
    params = {
        "embed": bf16((32768, 1024), None, "fsdp"),
        "layers": {
            "gate": bf16((4, 1024, 4096), None, "fsdp"),
            "up": bf16((4, 1024, 4096), None, "fsdp"),
            "down": bf16((4, 4096, 1024), None, None, "fsdp"),
        },
    }
    shardings = jax.tree.map(lambda p: p.sharding, params), NamedSharding(mesh, P())
    return jax.jit(step, donate_argnums=0, out_shardings=shardings), (
        params,
        struct(mesh, (16, 512), "fsdp", dtype="int32"),
    )


@public(
    "vllm-project/tpu-inference#3499",
    "A linear attention stores its recurrent state in shards of the keys, and its projections in "
    "shards of the heads: each step exchanges the state.",
    r"stored in other shards: .*: state is stored .* along model",
    row="all-to-all.*(model|state)",
)
def recurrent_state_over_keys():
    mesh = grid((2, 4), ("data", "model"))

    def step(params, state, x):
        q, k, v = (jnp.einsum("bd,dhk->bhk", x, params[n]) for n in "qkv")
        decay = jax.nn.sigmoid(x @ params["decay"])
        state = on(mesh, state, "data", "model", None, None)
        state = state * decay[..., None, None] + jnp.einsum("bhk,bhv->bhkv", k, v)
        out = jnp.einsum("bhk,bhkv->bhv", q, state)
        return jnp.einsum("bhv,hvd->bd", out, params["o"]), state

    bf16 = functools.partial(struct, mesh, dtype="bfloat16")
    params = {n: bf16((1024, 16, 128), None, "model", None) for n in "qkv"}
    params |= {"decay": bf16((1024, 16), None, "model"), "o": bf16((16, 128, 1024), "model")}
    state = struct(mesh, (64, 16, 128, 128), "data", None, "model")
    outs = NamedSharding(mesh, P("data")), state.sharding
    return jax.jit(step, donate_argnums=1, out_shardings=outs), (
        params,
        state,
        bf16((64, 1024), "data"),
    )


@public(
    "sgl-project/sglang-jax#1096",
    "Gate and up projection are one matrix, sharded over its joined columns, and each layer "
    "exchanges shards to split its result into halves; interleaved by shard, they need none.",
    r"(heads split|reshape of shards|avoidable communication|stored in other shards): "
    r".*(split|halves|parts|interleav|joined)",
    row="(all-to-all|collective-permute).*(split|slice)",
)
def merged_gate_and_up():
    mesh = grid((2, 4), ("data", "tensor"))

    def mlp(w, x):
        def layer(x, w):
            gate, up = jnp.split(x @ w["gate_up"], 2, -1)
            return x + (jax.nn.silu(gate) * up) @ w["down"], None

        return lax.scan(layer, x, w)[0]

    w = {
        "gate_up": struct(mesh, (4, 256, 2048), None, None, "tensor"),
        "down": struct(mesh, (4, 1024, 256), None, "tensor"),
    }
    x = struct(mesh, (512, 256), "data")
    return jax.jit(mlp, out_shardings=x.sharding), (w, x)


@public(
    "climate-analytics-lab/jax-gcm#526",
    "The physics of an atmosphere joins longitude and latitude to one dimension of columns; with "
    "both in shards, shards are exchanged at each change to physics and back.",
    r"(reshape of shards|avoidable communication): .*(reshape|flatten)",
    row="all-gather.* lat",
)
def columns_of_an_atmosphere():
    mesh = grid((4, 2), ("lon", "lat"))

    def column(t):
        return jnp.tanh(jnp.cumsum(t, 0)) - t[::-1]

    def physics(state, mix):
        t = jnp.einsum("kl,lxy->kxy", mix, state)
        columns = t.reshape(16, 128 * 64)
        return state + jax.vmap(column, 1, 1)(columns).reshape(16, 128, 64)

    state = struct(mesh, (16, 128, 64), None, "lon", "lat")
    f = jax.jit(physics, donate_argnums=0, out_shardings=state.sharding)
    return f, (state, struct(mesh, (16, 16)))


@public(
    "openxla/xla#4062",
    "The result of a product is asked for with the axes of its rows and columns exchanged: both "
    "operands are gathered, and each device computes more than its part.",
    r"(order of axes|axis on two dimensions|repeated work|full rematerialisation): .*x and y",
    row="all-gather.*product",
)
def crossed_result():
    mesh = grid((4, 2), ("x", "y"))
    f = jax.jit(lambda a, b: a @ b, out_shardings=NamedSharding(mesh, P("y", "x")))
    return f, (struct(mesh, (2048, 512), "x"), struct(mesh, (512, 2048), None, "y"))
