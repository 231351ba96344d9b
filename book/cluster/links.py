"""Bytes that five patterns of communication send between nodes, and the time that they take.

srun python links.py --megabytes 4       (two nodes with the same number of processes each)

The bytes are read from the counters of the network interfaces, which count all traffic except RDMA.
"""

import argparse
import json
import socket
import statistics
import time
from pathlib import Path

import jax
from join import exchange, join

options = argparse.ArgumentParser()
options.add_argument("--megabytes", type=float, default=4, help="MiB on each device")
options.add_argument("--repeat", type=int, default=3)
options = options.parse_args()

join()

import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

# of this step, which may have fewer nodes than its job
hosts = exchange("host", socket.gethostname())
rows = [
    [d for d in jax.devices() if hosts[d.process_index] == host] for host in dict.fromkeys(hosts)
]
if len(set(map(len, rows))) > 1:
    raise SystemExit(
        f"the nodes have {', '.join(str(len(row)) for row in rows)} devices; give each as "
        "many processes"
    )
nodes, both_axes = len(rows), ("node", "local")
# make_mesh would take the order of the processes
mesh = Mesh(rows, both_axes, axis_types=(AxisType.Auto,) * 2)
# shared evenly by devices
floats = max(1, round(options.megabytes * 2**18 / jax.device_count())) * jax.device_count()
sharding = NamedSharding(mesh, P(both_axes))
x = jax.make_array_from_callback(
    (jax.device_count(), floats), sharding, lambda index: np.ones((1, floats), np.float32)
)


def flat(x):
    return lax.psum(x, both_axes)


def hierarchical(x):
    x_shard = lax.psum_scatter(x, "local", scatter_dimension=1, tiled=True)
    x_shard = lax.psum(x_shard, "node")
    return lax.all_gather(x_shard, "local", axis=1, tiled=True)


def all_to_all(x):
    return lax.all_to_all(x, both_axes, split_axis=1, concat_axis=0, tiled=True)


def within(x):
    return lax.psum(x, "local")


def between(x):
    return lax.psum(x, "node")


def sent():
    """Bytes that this node has sent so far through its network interfaces, except the loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split()[9]) for line in lines if not line.strip().startswith("lo:"))


found = {}
for pattern in (flat, hierarchical, all_to_all, within, between):
    specs = {"in_specs": P(both_axes), "out_specs": P(both_axes)}
    run = jax.jit(jax.shard_map(pattern, mesh=mesh, **specs, check_vma=False))
    jax.block_until_ready(run(x))
    bytes_sent, seconds = [], []
    for _ in range(options.repeat):
        multihost_utils.sync_global_devices(pattern.__name__)
        before, begin = sent(), time.perf_counter()
        jax.block_until_ready(run(x))
        seconds.append(time.perf_counter() - begin)
        multihost_utils.sync_global_devices(pattern.__name__)
        bytes_sent.append(sent() - before)
    medians = np.array([statistics.median(bytes_sent), statistics.median(seconds)])
    by_process = multihost_utils.process_allgather(medians)
    found[pattern.__name__] = {
        "MiB sent by a node": round(float(by_process[:, 0].max()) / 2**20, 2),
        "ms": round(1000 * float(by_process[:, 1].max()), 1),
    }
if jax.process_index() == 0:
    about = {"nodes": nodes, "processes": jax.process_count(), "MiB on a device": options.megabytes}
    print(json.dumps({**about, **found}, indent=2), flush=True)
