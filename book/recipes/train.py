"""Train on all devices; stop and resume on any number of them: python train.py FOLDER STEPS"""

import sys

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import apply_rules, shardings, target
from shardlab.cluster.join import restore_newest, shared_folder

RULES = [  # the first that matches an array's path gives its layout; moments have such paths too
    (r"(hidden|out)/kernel", P("data")),  # FSDP: each device stores its rows
    (r"", P()),  # the rest, replicated
]
SCHEDULE = optax.cosine_decay_schedule(3e-3, 1000)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(SCHEDULE))
BATCH = 64


class Network(nnx.Module):  # put yours here; this one has statistics and random numbers too
    def __init__(self, rngs):
        self.hidden = nnx.Linear(32, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(128, 8, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(jax.nn.relu(self.norm(self.hidden(x)))))


def new():  # the model, with a stream for each kind of random numbers
    return Network(nnx.Rngs(params=0, dropout=1))


def loss_of(model, batch):  # a mean over the batch, and what else is logged
    x, labels = batch
    logits = model(x)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, {"accuracy": (logits.argmax(1) == labels).mean()}


def log(step, metrics):  # the loss, the norm of the gradient, and what loss_of returns beside it
    names = sorted(metrics, key=lambda name: name != "loss")  # the loss first
    texts = (f"{name} {metrics[name]:.6f}" for name in names)
    if jax.process_index() == 0:
        print(f"step {step}:", *texts, flush=True)


def rows_of(first, end):  # rows of your data by their numbers; a resumed run reads on
    x = [np.random.default_rng(row).normal(size=32) for row in range(first, end)]
    x = np.array(x, np.float32)
    return x, x[:, :8].argmax(1)


def parts(model):  # its definition, its parameters, its statistics, and keys and counters
    return nnx.split(model, nnx.Param, nnx.BatchStat, ...)


def specs_of(shapes):  # the layout of all arrays of the state
    applied = apply_rules(RULES, shapes)
    assert not applied.idle, applied  # a rule that matches no array is mistyped
    return applied.specs


def create():  # the whole state of a run; its position is the number of rows it has read
    _, params, *other = parts(new())
    state = {"params": params, "other": tuple(other), "optimizer": OPTIMIZER.init(params)}
    return state | {"ema": (params, other[0]), "position": jax.numpy.int32(0)}


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


def main(folder, steps):
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    definition, *_ = parts(nnx.eval_shape(new))
    specs = specs_of(shapes := jax.eval_shape(create))
    goal, layout = target(shapes, specs, mesh), shardings(specs, mesh)

    def update(state, batch):
        def with_other(params):
            model = nnx.merge(definition, params, *state["other"], copy=True)
            loss, metrics = loss_of(model, batch)
            return loss, (metrics, parts(model)[2:])

        found, grads = jax.value_and_grad(with_other, has_aux=True)(state["params"])
        loss, (metrics, other) = found
        changes, optimizer = OPTIMIZER.update(grads, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], changes)
        # statistics are averaged too: those of other parameters would not fit the average
        ema = optax.incremental_update((params, other[0]), state["ema"], 0.01)
        state = {"params": params, "other": other, "optimizer": optimizer, "ema": ema,
                 "position": state["position"] + BATCH}  # fmt: skip
        return state, {"loss": loss, "norm": optax.global_norm(grads)} | metrics

    update = jax.jit(update, donate_argnums=0, out_shardings=(layout, None))
    options = ocp.CheckpointManagerOptions(save_interval_steps=10, max_to_keep=2)
    handler = ocp.StandardCheckpointHandler()  # else Orbax looks into the newest, maybe damaged one
    folder = shared_folder(folder)  # or an error, where a save would hang
    with ocp.CheckpointManager(folder, item_handlers=handler, options=options) as manager:
        last, state = restore_newest(manager, goal)
        state = state or jax.jit(create, out_shardings=layout)()  # no device ever stores it whole
        first, before = int(state["position"]), None
        for number, step in enumerate(range(last + 1, steps + 1)):
            batch = batch_of(first + number * BATCH, NamedSharding(mesh, P("data")))
            state, metrics = update(state, batch)
            if before:  # reading the metrics of this step would wait for it
                log(*before)
            before = step, metrics
            manager.save(step, args=ocp.args.StandardSave(state), force=step == steps)
        if before:
            log(*before)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
