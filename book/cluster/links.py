"""What five patterns of communication send between nodes, and how long they take.

srun python links.py --megabytes 4       (two nodes with the same number of processes each)

Bytes are read from the network interfaces, where everything counts that passes.
"""

import argparse
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path

import jax

options = argparse.ArgumentParser()
options.add_argument("--megabytes", type=float, default=4, help="MiB on each device")
options.add_argument("--repeat", type=int, default=3)
options = options.parse_args()

jax.distributed.initialize()

import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
each = jax.device_count() // nodes
mesh = jax.make_mesh((nodes, each), ("node", "local"), axis_types=(AxisType.Auto,) * 2)
both = ("node", "local")
floats = int(options.megabytes * 2**20 / 4)
rows = NamedSharding(mesh, P(both))
x = jax.make_array_from_callback((jax.device_count(), floats), rows, lambda index: np.ones((1, floats), np.float32))


def flat(x):
    return lax.psum(x, both)


def hierarchical(x):
    part = lax.psum_scatter(x, "local", scatter_dimension=1, tiled=True)
    part = lax.psum(part, "node")
    return lax.all_gather(part, "local", axis=1, tiled=True)


def all_to_all(x):
    return lax.all_to_all(x, both, split_axis=1, concat_axis=0, tiled=True)


def within(x):
    return lax.psum(x, "local")


def between(x):
    return lax.psum(x, "node")


def sent():
    """Bytes that this node has sent through its interfaces, as the kernel counts; RDMA is not in it."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split()[9]) for line in lines if not line.strip().startswith("lo:"))


found = {}
for pattern in (flat, hierarchical, all_to_all, within, between):
    run = jax.jit(partial(jax.shard_map, mesh=mesh, in_specs=P(both), out_specs=P(both))(pattern, check_vma=False))
    jax.block_until_ready(run(x))
    bytes_sent, seconds = [], []
    for _ in range(options.repeat):
        multihost_utils.sync_global_devices(pattern.__name__)
        before, begin = sent(), time.perf_counter()
        jax.block_until_ready(run(x))
        seconds.append(time.perf_counter() - begin)
        multihost_utils.sync_global_devices(pattern.__name__)
        bytes_sent.append(sent() - before)
    mine = np.array([statistics.median(bytes_sent), statistics.median(seconds)])
    all_of_them = multihost_utils.process_allgather(mine)
    found[pattern.__name__] = {
        "MiB sent by a node": round(float(all_of_them[:, 0].max()) / 2**20, 2),
        "ms": round(1000 * float(all_of_them[:, 1].max()), 1),
    }
if jax.process_index() == 0:
    about = {"nodes": nodes, "processes": jax.process_count(), "MiB on a device": options.megabytes}
    print(json.dumps({**about, **found}, indent=2), flush=True)
