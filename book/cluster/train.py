"""Train on all devices of a job; resume from the latest checkpoint if there is one.

srun python train.py --folder /shared/run --steps 20

On SIGTERM all processes save the same step and stop. With --requeue the job then goes back into
Slurm's queue. A watchdog (watchdog.py) ends a process in which a step takes longer than --limit
seconds, because it waits for another one. The exit status is 0 when training is done or was stopped
so, and another one if it failed.
"""

import argparse
import os
import signal
import subprocess
import time

import jax
from join import join, restore_newest, shared_folder

options = argparse.ArgumentParser()
options.add_argument(
    "--folder", required=True, help="folder of the checkpoints, on a disk that all nodes share"
)
options.add_argument("--steps", type=int, default=20)
options.add_argument(
    "--every", type=int, default=2, help="steps between two checkpoints; the last step is saved too"
)
options.add_argument(
    "--requeue", action="store_true", help="after SIGTERM, put the Slurm job back into the queue"
)
options.add_argument(
    "--pause", type=float, default=0, help="seconds to wait after each step, to have time to watch"
)
options.add_argument(
    "--limit", type=float, default=600, help="seconds that a step may take before the job is ended"
)
options = options.parse_args()
if options.requeue and "SLURM_JOB_ID" not in os.environ:
    raise SystemExit(
        "--requeue is for jobs of Slurm; elsewhere start train.py again, and it resumes"
    )

join(heartbeat_timeout_seconds=20)
if 64 % jax.device_count():
    raise SystemExit(
        f"64 examples cannot be sharded over {jax.device_count()} devices; use 1, 2, 4, ... or 64"
    )
# whether SIGTERM came, where there is one process; several agree on a step by JAX's preemption
# service
told = []
if jax.process_count() == 1:
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))

import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from watchdog import Watchdog

watchdog = Watchdog(options.limit + options.pause, first=max(600, options.limit))
first = jax.process_index() == 0
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
adam = optax.adam(1e-2)


def create():
    one, two = jax.random.split(jax.random.key(0))
    params = {"W1": jax.random.normal(one, (8, 64)), "W2": jax.random.normal(two, (64, 8)) / 8}
    return {"params": params, "adam": adam.init(params)}


def loss(params, x):
    return jnp.mean((jnp.tanh(x @ params["W1"]) @ params["W2"] - x) ** 2)


@jax.jit
def train(state, x):
    value, grads = jax.value_and_grad(loss)(state["params"], x)
    updates, moments = adam.update(grads, state["adam"])
    return {"params": optax.apply_updates(state["params"], updates), "adam": moments}, value


def batch(step):
    """64 examples that depend on the step alone; each process makes only the rows of its own
    devices.
    """

    def make_rows(index):
        rows = [
            np.random.default_rng((step, row)).normal(size=8)
            for row in range(*index[0].indices(64))
        ]
        return np.stack(rows).astype("float32")

    return jax.make_array_from_callback((64, 8), NamedSharding(mesh, P("data")), make_rows)


replicated = NamedSharding(mesh, P())
target = jax.tree.map(lambda leaf: leaf.update(sharding=replicated), jax.eval_shape(create))
if first:
    counts = {"process": jax.process_count(), "device": jax.device_count()}
    plural = {"process": "processes", "device": "devices"}
    print(
        ", ".join(f"{n} {noun if n == 1 else plural[noun]}" for noun, n in counts.items()),
        flush=True,
    )

keep = ocp.CheckpointManagerOptions(save_interval_steps=options.every, max_to_keep=2)
handler, folder = ocp.StandardCheckpointHandler(), shared_folder(options.folder)
with ocp.CheckpointManager(folder, item_handlers=handler, options=keep) as manager:
    begin, state = restore_newest(manager, target)
    state = state or jax.jit(create, out_shardings=replicated)()
    stopped = None
    if first and begin:
        print(f"resumes after step {begin}", flush=True)
    for step in range(begin + 1, options.steps + 1):
        watchdog.step(f"step {step}")
        state, value = train(state, batch(step))
        if first:
            print(f"step {step} loss {float(value):.6f}", flush=True)
        # A manager saves at the preemption sync point of JAX as well; then we leave.
        stop = bool(told)
        manager.save(step, args=ocp.args.StandardSave(state), force=stop or step == options.steps)
        if stop or manager.reached_preemption(step):
            stopped = step
            break
        time.sleep(options.pause)
    watchdog.step("the last checkpoint", max(600, options.limit))
if first and stopped:
    print(f"SIGTERM: saved step {stopped} and stopped", flush=True)
    if options.requeue and stopped > begin:  # without progress it would come back for ever
        job = os.environ["SLURM_JOB_ID"]
        ask = ["squeue", "--noheader", "--format=%T", "--jobs", job]
        state = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
        if state == "RUNNING":  # and nobody has cancelled it
            subprocess.run(["scontrol", "requeue", job], check=True)
elif first:
    total = sum(float(np.abs(np.asarray(leaf)).sum()) for leaf in jax.tree.leaves(state["params"]))
    print(f"done, sum of the absolute weights {total:.4f}", flush=True)
