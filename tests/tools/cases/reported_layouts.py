"""Specs that do not fit together, and constraints that lack an axis."""

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
