"""Train on all devices; stop and resume on any number of them: python train.py FOLDER STEPS"""

import sys
from pathlib import Path

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import apply_rules, shardings, target
from shardlab.cluster.join import restore_newest

RULES = [  # the first that matches an array's path gives its layout; moments have such paths too
    (r"(hidden|out)/kernel", P("data")),  # FSDP: each device stores its rows
    (r"", P()),  # the rest, replicated
]
SCHEDULE = optax.cosine_decay_schedule(3e-3, 1000)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(SCHEDULE))


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


def loss_of(model, batch):  # a mean over the batch
    x, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(model(x), labels).mean()


def parts(model):  # its definition, its parameters, and statistics, keys and counters
    return nnx.split(model, nnx.Param, ...)


def create():  # the whole state of a run
    _, params, other = parts(new())
    return {"params": params, "other": other, "optimizer": OPTIMIZER.init(params), "ema": params}


def batch_of(step):  # the step alone decides, so a resumed run reads what it would have read
    x = np.random.default_rng(step).normal(size=(64, 32)).astype(np.float32)
    return x, x[:, :8].argmax(1)


def main(folder, steps):
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    definition, *_ = parts(nnx.eval_shape(new))
    applied = apply_rules(RULES, shapes := jax.eval_shape(create))
    assert not applied.idle, applied  # a rule that matches no array is mistyped
    goal, layout = target(shapes, applied.specs, mesh), shardings(applied.specs, mesh)

    def update(state, batch):
        def with_other(params):
            model = nnx.merge(definition, params, state["other"], copy=True)
            return loss_of(model, batch), parts(model)[2]

        (loss, other), grads = jax.value_and_grad(with_other, has_aux=True)(state["params"])
        changes, optimizer = OPTIMIZER.update(grads, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], changes)
        ema = optax.incremental_update(params, state["ema"], 0.01)
        return {"params": params, "other": other, "optimizer": optimizer, "ema": ema}, loss

    update = jax.jit(update, donate_argnums=0, out_shardings=(layout, None))
    options = ocp.CheckpointManagerOptions(save_interval_steps=10, max_to_keep=2)
    handler = ocp.StandardCheckpointHandler()  # else Orbax looks into the newest, maybe damaged one
    with ocp.CheckpointManager(folder, item_handlers=handler, options=options) as manager:
        last, state = restore_newest(manager, goal)
        state = state or jax.jit(create, out_shardings=layout)()  # no device ever stores it whole
        for step in range(last + 1, steps + 1):
            batch = jax.device_put(batch_of(step), NamedSharding(mesh, P("data")))
            state, loss = update(state, batch)
            print(f"step {step}: loss {loss:.6f}", flush=True)
            manager.save(step, args=ocp.args.StandardSave(state), force=step == steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]))
