"""A stencil and a Fourier transform on two nodes: the bytes that a node sends in a step, and the
time of the step.

srun python grid.py --levels 1024 --lines 128       (two nodes with four processes each)

Each result is compared with NumPy's. The bytes are read from the counters of the network
interfaces, which count all traffic except RDMA; those of an empty step are subtracted.
"""

import argparse
import json
import socket
import time
from pathlib import Path

import jax
from join import exchange, join

options = argparse.ArgumentParser()
options.add_argument(
    "--levels", type=int, default=1024, help="numbers at each point of the stencil's grid"
)
options.add_argument(
    "--lines", type=int, default=128, help="points in the third direction of the transform's grid"
)
options.add_argument("--repeat", type=int, default=20)
options = options.parse_args()

join()

import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

STEPS = 4  # of the stencil, in one compiled loop
SPACE, WAVES = P("rows", "columns", None), P(None, "rows", "columns")
# of this step, which may have fewer nodes than its job
hosts = exchange("host", socket.gethostname())
nodes = [
    [d for d in jax.devices() if hosts[d.process_index] == host] for host in dict.fromkeys(hosts)
]
if list(map(len, nodes)) != [4, 4]:
    raise SystemExit(
        f"devices of the nodes: {', '.join(str(len(node)) for node in nodes)}; start 4 on "
        "each of 2 nodes"
    )
by_node = [*nodes[0], *nodes[1]]
# as with --distribution=cyclic
in_turns = [device for pair in zip(*nodes, strict=True) for device in pair]
checkered = in_turns[:4] + in_turns[4:][::-1]


def stencil(u):
    """Steps of the heat equation: a point, and the four beside it."""

    def neighbours(u, dim, axis):
        n, size = lax.axis_size(axis), u.shape[dim]
        onward = [(i, (i + 1) % n) for i in range(n)]
        back = [(target, source) for source, target in onward]
        before = lax.ppermute(lax.slice_in_dim(u, size - 1, size, axis=dim), axis, onward)
        after = lax.ppermute(lax.slice_in_dim(u, 0, 1, axis=dim), axis, back)
        wide = lax.concatenate([before, u, after], dim)
        return lax.slice_in_dim(wide, 0, size, axis=dim) + lax.slice_in_dim(
            wide, 2, size + 2, axis=dim
        )

    def step(_, u):
        return u + 0.1 * (neighbours(u, 0, "rows") + neighbours(u, 1, "columns") - 4 * u)

    return lax.fori_loop(0, STEPS, step, u)


def fft(a):
    """A three-dimensional transform by pencils; with one column, by slabs."""
    a = jax.numpy.fft.fft(a, axis=2)
    a = lax.all_to_all(a, "columns", 2, 1, tiled=True)
    a = jax.numpy.fft.fft(a, axis=1)
    a = lax.all_to_all(a, "rows", 1, 0, tiled=True)
    return jax.numpy.fft.fft(a, axis=0)


def stencil_of_numpy(u):
    for _ in range(STEPS):
        around = sum(np.roll(u, by, dim) for dim in (0, 1) for by in (1, -1))
        u = u + np.float32(0.1) * (around - 4 * u)
    return u


def sent():
    """Bytes that this node has sent so far through its network interfaces, except the loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split()[9]) for line in lines if not line.strip().startswith("lo:"))


def measured(run, steps):
    """What a node sends in a step, and the seconds of the fastest one; `run` is None in a process
    that rests.
    """
    here = []
    for _ in range(options.repeat + 1):
        multihost_utils.sync_global_devices("begin")
        before, begin = sent(), time.perf_counter()
        if run:
            jax.block_until_ready(run())
        seconds = time.perf_counter() - begin
        multihost_utils.sync_global_devices("end")
        here.append([sent() - before, seconds])
    # the first one warms up
    bytes_sent, seconds = multihost_utils.process_allgather(np.array(here[1:])).max(axis=0).T
    return np.array([np.median(bytes_sent), seconds.min()]) / steps


def trial(program, shape, devices, mesh_shape):
    """Run a program on a grid of this shape; returns MiB that a node sends in a step, and ms."""
    run = None
    if jax.local_devices()[0] in devices:
        mesh = Mesh(
            np.reshape(devices, mesh_shape), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2
        )
        random = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        if program is fft:
            whole, wanted, end = random.astype(np.complex64), np.fft.fftn(random), WAVES
        else:
            whole, wanted, end = random, stencil_of_numpy(random), SPACE
        x = jax.make_array_from_callback(
            shape, NamedSharding(mesh, SPACE), lambda index: whole[index]
        )
        compiled = (
            jax.jit(jax.shard_map(program, mesh=mesh, in_specs=SPACE, out_specs=end))
            .lower(x)
            .compile()
        )
        for shard in compiled(x).addressable_shards:
            error = abs(np.asarray(shard.data) - wanted[shard.index]).max() / abs(wanted).max()
            assert error < 1e-5, f"{program.__name__} on {mesh_shape}: off by {error:.1e}"

        def run():
            return compiled(x)

    steps = STEPS if program is stencil else 1
    bytes_sent, seconds = measured(run, steps) - [empty[0] / steps, 0]
    return {
        "MiB sent by a node": round(max(0, bytes_sent) / 2**20, 3),
        "ms": round(1000 * seconds, 1),
    }


def grid(program, rows, columns):
    """The grid of a mesh on which every device has a shard of this program's size."""
    if program is stencil:
        return 32 * rows, 16 * columns, options.levels
    return 64 * rows, 32 * columns, options.lines


orders = {"by node": by_node, "in turns": in_turns, "checkered": checkered}
cases = {
    stencil: [
        ("slabs", "by node"),
        ("slabs", "in turns"),
        ("blocks", "by node"),
        ("blocks", "in turns"),
    ]
}
cases[fft] = [("slabs", "by node"), ("pencils", "by node"), ("pencils", "checkered")]
found, empty = {}, measured(None, 1)
for program, ways in cases.items():
    large = grid(program, 2, 4)
    here = found[program.__name__] = {"grid": large}
    for way, order in ways:
        here[f"{way}, {order}"] = trial(
            program, large, orders[order], (8, 1) if way == "slabs" else (2, 4)
        )
    tiny = (64, 64, 1) if program is stencil else (16, 16, 16)
    here["ms of a tiny grid"] = trial(program, tiny, by_node, (2, 4))["ms"]
    one, node = by_node[:1], by_node[:4]
    for name, on_one, on_node in (
        ("strong", large, large),
        ("weak", grid(program, 1, 1), grid(program, 2, 2)),
    ):
        times = trial(program, on_one, one, (1, 1)), trial(program, on_node, node, (2, 2))
        here[f"ms on 1 and 4 devices, {name}"] = [time["ms"] for time in times]
if jax.process_index() == 0:
    print(json.dumps({"nodes": 2, "processes": jax.process_count(), **found}, indent=2), flush=True)
