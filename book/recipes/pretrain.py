"""Pretrain a decoder on data x fsdp x context x tensor devices, in bf16 with a float32 state."""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.lax import with_sharding_constraint as constrained
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import apply_rules, explain, shardings, target
from shardlab.cluster.join import restore_newest, shared_folder

# Llama 3 8B: 32, 4096, 32, 8, 14336, 128256
LAYERS, D, HEADS, KV_HEADS, HIDDEN, VOCABULARY = 4, 128, 8, 4, 256, 64
BATCH, LENGTH, DTYPE = 16, 64, jnp.bfloat16
# keeps nothing; jax.checkpoint_policies.dots_with_no_batch_dims_saveable keeps the products
POLICY = None
ATTENTION = None  # the backend's own; "cudnn" on GPUs, which stores no scores
ROWS = ("data", "fsdp")  # the axes that shard the batch; context shards its sequences
# inside loss_of, the devices along data are a dimension that jax.vmap maps over
RULES = [  # the stacked layers have a leading dimension; moments have the same paths
    (r"layers/(query|key|value|gate|up)", P(None, "fsdp", "tensor")),  # by columns
    (r"layers/(out|down)", P(None, "tensor", "fsdp")),  # by rows
    (r"unembed", P("fsdp", "tensor")),
    (r"embed", P("tensor", "fsdp")),
    (r"norm|count|position", P()),
]
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, 1000)
OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(SCHEDULE, b2=0.95, weight_decay=0.1)
)


def create():  # each array is drawn by itself, so that a device draws its own shard only
    width = D // HEADS * KV_HEADS
    layer = {"query": (D, D), "key": (D, width), "value": (D, width), "out": (D, D),
             "gate": (D, HIDDEN), "up": (D, HIDDEN), "down": (HIDDEN, D)}  # fmt: skip
    keys = iter(jax.random.split(jax.random.key(0), 2 + len(layer)))
    params = {
        name: 0.02 * jax.random.normal(next(keys), shape)
        for name, shape in {"embed": (VOCABULARY, D), "unembed": (D, VOCABULARY)}.items()
    }
    layers = {
        name: 0.02 * jax.random.normal(next(keys), (LAYERS, *shape))
        for name, shape in layer.items()
    }
    params |= {"norm": jnp.ones(D), "layers": layers | {"norms": jnp.ones((LAYERS, 2, D))}}
    # the position is the number of rows that the run has read
    return {"params": params, "optimizer": OPTIMIZER.init(params), "position": jnp.int32(0)}


def full(w, spec):  # FSDP: an array is gathered along fsdp where it is used
    return constrained(w, P(*(None if axis == "fsdp" else axis for axis in spec))).astype(DTYPE)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x, w, spec):  # x @ w, or the rows of w for tokens; float32 sums make its gradient
    return full(w, spec)[x] if x.ndim == 2 else x @ full(w, spec)


def product_forward(x, w, spec):
    return product(x, w, spec), (x, w)


def product_backward(spec, kept, g):
    x, w = kept
    if x.ndim == 2:
        return None, constrained(jnp.zeros_like(w).at[x].add(g), spec)
    sums = jnp.einsum("btd,btf->df", x, g, preferred_element_type=jnp.float32)
    return g @ full(w, spec).T, constrained(sums, spec)


product.defvjp(product_forward, product_backward)


def norm(x, scale):
    x = x.astype(jnp.float32)
    return (x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale).astype(DTYPE)


def rotated(x):  # rotary positions, on [batch, tokens, heads, head]
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None, None] * 10_000.0 ** (-jnp.arange(half) / half)
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(DTYPE)


def attention(x, w):
    query, key, value = (
        w(x, name).reshape(*x.shape[:2], -1, D // HEADS) for name in ("query", "key", "value")
    )
    query = constrained(rotated(query), P("fsdp", "context", "tensor"))
    # gathered along context
    key, value = (constrained(y, P("fsdp", None, "tensor")) for y in (rotated(key), value))
    mixed = jax.nn.dot_product_attention(
        query, key, value, is_causal=True, implementation=ATTENTION
    )
    return w(mixed.reshape(x.shape), "out")


def loss_of(params, tokens, specs):
    # the backward pass gathers a layer again, and computes what is not kept
    @partial(jax.checkpoint, policy=POLICY)
    def block(x, layer):
        def w(x, name):
            return product(x, layer[name], P(*specs["layers"][name][1:]))

        x = constrained(x + attention(norm(x, layer["norms"][0]), w), P("fsdp", "context"))
        y = norm(x, layer["norms"][1])
        x = constrained(x + w(jax.nn.silu(w(y, "gate")) * w(y, "up"), "down"), P("fsdp", "context"))
        return x, None

    x = product(tokens[:, :-1], params["embed"], specs["embed"])
    x = constrained(x, P("fsdp", "context"))
    x, _ = jax.lax.scan(block, x, params["layers"])
    logits = product(norm(x, params["norm"]), params["unembed"], specs["unembed"])
    logits = constrained(logits, P("fsdp", "context", "tensor")).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def update(state, tokens, specs, micro, groups):
    def own_sums(tree):  # a gradient of its own for each device along data
        return jax.tree.map(lambda g, spec: constrained(g, P("data", *spec)), tree, specs)

    def add(sums, rows):  # gradients are in float32, sharded like the parameters
        loss, grads = grad_of_each(state["params"], rows, specs)
        total = jax.tree.map(lambda total, g: total + g / (micro * groups), sums[1], grads)
        return (sums[0] + loss.mean() / micro, own_sums(total)), None

    grad_of_each = jax.vmap(
        jax.value_and_grad(loss_of), in_axes=(None, 0, None), spmd_axis_name="data"
    )
    # dealt out in turn: each device keeps its own
    rows = tokens.reshape(groups, -1, micro, tokens.shape[-1])
    rows = constrained(jnp.moveaxis(rows, 2, 0), P(None, "data", "fsdp"))
    zeros = jax.tree.map(lambda p: jnp.zeros((groups, *p.shape)), state["params"])
    (loss, grads), _ = jax.lax.scan(add, (jnp.float32(0), own_sums(zeros)), rows)
    # sent along data once a step, however many micro-batches there are
    grads = jax.tree.map(lambda g, spec: constrained(g.sum(0), spec), grads, specs)
    changes, optimizer = OPTIMIZER.update(grads, state["optimizer"], state["params"])
    params = optax.apply_updates(state["params"], changes)
    position = state["position"] + len(tokens)
    metrics = {"loss": loss, "norm": optax.global_norm(grads)}
    return {"params": params, "optimizer": optimizer, "position": position}, metrics


def rows_of(first, end):  # put your data here: rows by their numbers; a resumed run reads on
    start = [np.random.default_rng(row).integers(0, VOCABULARY, 1) for row in range(first, end)]
    return (np.array(start) + 3 * np.arange(LENGTH + 1)) % VOCABULARY  # counting by threes


def log(step, metrics):
    names = sorted(metrics, key=lambda name: name != "loss")  # the loss first
    texts = (f"{name} {metrics[name]:.6f}" for name in names)
    if jax.process_index() == 0:
        print(f"step {step}:", *texts, flush=True)


def batch_of(first, sharding):  # each process makes its own rows of the batch, and no others
    mine = [
        rows[0].indices(BATCH)
        for rows in sharding.addressable_devices_indices_map((BATCH,)).values()
    ]
    local = rows_of(
        first + min(start for start, *_ in mine), first + max(stop for _, stop, _ in mine)
    )

    def whole(a):
        return jax.make_array_from_process_local_data(sharding, a, (BATCH, *a.shape[1:]))

    return jax.tree.map(whole, local)


def prepare(sizes, micro=1):
    """The mesh, the step, the layout of its state, and what to restore a checkpoint as."""
    axes, groups = ("data", "fsdp", "context", "tensor"), sizes[0] * sizes[1]
    mesh = jax.make_mesh(tuple(sizes), axes, axis_types=(AxisType.Auto,) * 4)
    applied = apply_rules(RULES, shapes := jax.eval_shape(create))
    assert not applied.idle and not applied.unmatched, applied
    goal, layout = target(shapes, applied.specs, mesh), shardings(applied.specs, mesh)
    if BATCH % (groups * micro):
        raise ValueError(
            f"{BATCH} sequences are not shared evenly by {groups} groups of devices, {micro} "
            f"times a step; use a BATCH that is a multiple of {groups * micro}"
        )
    step = partial(update, specs=applied.specs["params"], micro=micro, groups=sizes[0])
    return mesh, jax.jit(step, donate_argnums=0, out_shardings=(layout, None)), layout, goal


def main(folder, steps, sizes, report, micro=1):
    mesh, step_of, layout, goal = prepare(sizes, micro)
    rows = NamedSharding(mesh, P(ROWS))
    options = ocp.CheckpointManagerOptions(save_interval_steps=10, max_to_keep=2)
    # else Orbax looks into the newest checkpoint, which may be damaged
    handler = ocp.StandardCheckpointHandler()
    folder = shared_folder(folder)  # or an error, where a save would hang
    manager = ocp.CheckpointManager(folder, item_handlers=handler, options=options)
    with jax.set_mesh(mesh), manager:
        if report:
            print(explain(step_of, goal, batch_of(0, rows)))
        last, state = restore_newest(manager, goal)
        state = state or jax.jit(create, out_shardings=layout)()  # no device ever stores it whole
        first, before = int(state["position"]), None
        for number, step in enumerate(range(last + 1, steps + 1)):
            state, metrics = step_of(state, batch_of(first + number * BATCH, rows))
            if before:  # reading the metrics of this step would wait for it
                log(*before)
            before = step, metrics
            manager.save(step, args=ocp.args.StandardSave(state), force=step == steps)
        if before:
            log(*before)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", help="of the checkpoints; a run that was stopped goes on from the last one"
    )
    parser.add_argument("steps", type=int)
    parser.add_argument(
        "--mesh",
        type=int,
        nargs=4,
        metavar=("DATA", "FSDP", "CONTEXT", "TENSOR"),
        default=(1, jax.device_count(), 1, 1),
        help="sizes of the four axes",
    )
    parser.add_argument(
        "--micro",
        type=int,
        default=1,
        help="micro-batches of a step, whose gradients are summed (1)",
    )
    parser.add_argument(
        "--report", action="store_true", help="first say what a step sends, and what it stores"
    )
    given = parser.parse_args()
    main(given.folder, given.steps, given.mesh, given.report, given.micro)
