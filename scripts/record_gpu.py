#!/usr/bin/env python3
"""Measure the GPU of this machine, and record what the book says of it. Needs JAX with CUDA and one GPU.

    PYTHONPATH=src python scripts/record_gpu.py               # all, in about five minutes; into the checkout
    PYTHONPATH=src python scripts/record_gpu.py --only adam steps --out gpu

Writes src/shardlab/machines/measured/h200.json, after the name of the GPU, and book/cluster/recordings/gpu.txt, which
is what the cluster chapter's programs print there. No page shows either, as no GPU was at hand. Each time is the best
of five rounds of calls that are dispatched together and waited for once; each measurement is printed when it is made,
and all are written at the end.
"""

import argparse
import dataclasses
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, SingleDeviceSharding

from shardlab import model, training_step

ROOT = Path(__file__).parent.parent

# What is measured: a function of this file, which yields dicts, and its arguments. Each runs in a Python of its own,
# because a process keeps the GPU memory that it has once taken, and because peaks are those of a process.
MEASUREMENTS = [
    ("square",),
    ("tokens",),
    ("copy",),
    ("dispatch",),
    ("steps", "llama-3-8b", 32, 1, 2048, "block"),
    ("steps", "llama-3-8b", 32, 4, 2048, "block"),
    ("steps", "llama-3-8b", 32, 8, 2048, "block"),
    ("steps", "llama-3-8b", 8, 4, 2048, "block"),
    ("steps", "llama-3-8b", 8, 4, 2048, "none"),
    ("steps", "llama-3-8b", 8, 1, 8192, "block"),
    ("transfer",),
    ("adam", "device"),
    ("adam", "pinned_host"),
]
NAMES = list(dict.fromkeys(name for name, *_ in MEASUREMENTS))


def seconds(call, rounds=5, least=0.05):
    """The time of one call, in seconds: the best of some rounds, each of as many calls as take `least` together."""
    jax.block_until_ready(call())
    begin = time.perf_counter()
    jax.block_until_ready(call())
    calls = max(1, round(least / max(time.perf_counter() - begin, 1e-6)))
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            result = call()
        jax.block_until_ready(result)
        best = min(best, (time.perf_counter() - begin) / calls)
    return best


def normal(*shape, dtype=jnp.bfloat16):
    """Random elements: a product of zeros draws less power, and runs faster."""
    return jax.jit(lambda: jax.random.normal(jax.random.key(0), shape, dtype))()


def square():
    """The product of two square matrices, by size and precision."""
    for dtype in (jnp.bfloat16, jnp.float32):
        for size in (256, 512, 1024, 2048, 4096, 8192, 16384):
            a, b = normal(size, size, dtype=dtype), normal(size, size, dtype=dtype)
            product = jax.jit(jnp.matmul)
            took = seconds(lambda a=a, b=b, product=product: product(a, b))
            yield {"size": size, "dtype": jnp.dtype(dtype).name, "seconds": took}


def tokens():
    """So many tokens times one matrix of 8,192 by 8,192, in bf16: from memory-bound to compute-bound."""
    weights = normal(8192, 8192)
    for count in (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096):
        x, product = normal(count, 8192), jax.jit(jnp.matmul)
        yield {"tokens": count, "seconds": seconds(lambda x=x, product=product: product(x, weights))}


def copy():
    """Read an array and write another of its size: two bytes of traffic for each byte of the array."""
    for log in range(16, 33, 2):
        x, add = normal(2**log // 4, dtype=jnp.float32), jax.jit(lambda x: x + 1)
        yield {"bytes": x.nbytes, "seconds": seconds(lambda x=x, add=add: add(x))}


def dispatch():
    """What a call costs that computes next to nothing: until it returns, and until its result is there."""
    x, add = normal(8, dtype=jnp.float32), jax.jit(lambda x: x + 1)
    jax.block_until_ready(add(x))
    begin = time.perf_counter()
    for _ in range(2000):
        y = add(x)
    returned = (time.perf_counter() - begin) / 2000
    jax.block_until_ready(y)
    waits = []
    for _ in range(500):
        begin = time.perf_counter()
        jax.block_until_ready(add(x))
        waits.append(time.perf_counter() - begin)
    yield {"returns": returned, "done": sorted(waits)[250]}


def peak_bytes():
    """The most memory that this process's arrays and programs have held at once."""
    return jax.devices()[0].memory_stats()["peak_bytes_in_use"]


def steps(name, layers, sequences, sequence, remat):
    """A decoder's training step with donated state: its time, and its memory beside what the compiler says."""
    sizes = dataclasses.replace(model(name), layers=layers)
    mesh = jax.make_mesh((1, 1, 1), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    step, (state, batch) = training_step(sizes, mesh, sequences, sequence, remat)
    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    memory = compiled.memory_analysis()
    keys = iter(jax.random.split(jax.random.key(0), 64))

    def create(leaf):
        scale = leaf.shape[-2] ** -0.5 if len(leaf.shape) > 1 else 1.0
        return jax.jit(lambda key: (scale * jax.random.normal(key, leaf.shape)).astype(leaf.dtype))(next(keys))

    params = {name: create(leaf) for name, leaf in state["params"].items()}
    zeros = [jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state[part]) for part in ("first", "second")]
    state = {"params": params, "first": zeros[0], "second": zeros[1]}
    batch = jax.random.randint(jax.random.key(1), batch.shape, 0, sizes.vocab)
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        state = jax.block_until_ready(compiled(state, batch))
        times.append(time.perf_counter() - begin)
    row = {"model": name, "layers": layers, "sequences": sequences, "sequence": sequence, "remat": remat}
    parts = ("argument", "output", "alias", "temp")
    row |= {f"{part}_bytes": getattr(memory, f"{part}_size_in_bytes") for part in parts}
    yield row | {"peak_bytes": peak_bytes(), "seconds": min(times[1:]), "all_seconds": times}


def transfer():
    """Copies between the GPU and pinned memory of its host."""
    device = SingleDeviceSharding(jax.devices()[0])
    host, near = device.with_memory_kind("pinned_host"), device.with_memory_kind("device")
    x = normal(2**28, dtype=jnp.float32)
    away = jax.device_put(x, host)
    yield {"to": "host", "bytes": x.nbytes, "seconds": seconds(lambda: jax.device_put(x, host))}
    yield {"to": "device", "bytes": x.nbytes, "seconds": seconds(lambda: jax.device_put(away, near))}


def adam(where):
    """Adam on one parameter of 2^30 elements in float32, its moments in the memory `where` between the steps."""
    device = SingleDeviceSharding(jax.devices()[0])
    home = device.with_memory_kind(where)
    chunks = [(2**26,)] * 16
    create = jax.jit(lambda value: [jnp.full(shape, value, jnp.float32) for shape in chunks])
    parameters, first, second = create(1.0), *(jax.device_put(create(value), home) for value in (0.0, 0.0))

    def update(p, m, v):
        m, v = (jax.device_put(x, device.with_memory_kind("device")) for x in (m, v))
        gradient = 0.001 * p
        m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient**2
        return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), jax.device_put(m, home), jax.device_put(v, home)

    @jax.jit
    def step(parameters, first, second):
        done = [update(*leaves) for leaves in zip(parameters, first, second, strict=True)]
        return tuple(list(part) for part in zip(*done, strict=True))

    compiled = jax.jit(step, donate_argnums=(0, 1, 2)).lower(parameters, first, second).compile()
    memory = compiled.memory_analysis()
    state, times = (parameters, first, second), []
    for _ in range(6):
        begin = time.perf_counter()
        state = jax.block_until_ready(compiled(*state))
        times.append(time.perf_counter() - begin)
    held = jax.devices()[0].memory_stats()["bytes_in_use"]
    row = {"moments": where, "elements": 2**30, "seconds": min(times[1:]), "held_bytes": held}
    row["temp_bytes"] = memory.temp_size_in_bytes
    row["host_temp_bytes"] = getattr(memory, "host_temp_size_in_bytes", None)
    yield row | {"argument_bytes": memory.argument_size_in_bytes, "peak_bytes": peak_bytes()}


def facts():
    """Which GPU this is, and with which software."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        raise SystemExit(f"this machine's device is a {device.device_kind}, no GPU; run it where JAX finds CUDA")
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    packages = {package: version(package) for package in ("jax", "jaxlib", "optax", "orbax-checkpoint")}
    row = {"device": device.device_kind, "date": str(datetime.date.today()), "packages": packages}
    row["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    yield row | {"memory_bytes": device.memory_stats()["bytes_limit"]}


def rows(name, *arguments):
    """What a function of this file yields in another Python; if that fails, its last lines, as an error."""
    program = f"import json, record_gpu\nfor row in record_gpu.{name}(*{arguments!r}): print('ROW', json.dumps(row))"
    path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT / "src")])
    environment = os.environ | {"PYTHONPATH": path, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{name}{arguments}: {done.stderr[-3000:]}")
    return [json.loads(row) for row in re.findall(r"^ROW (.*)$", done.stdout, re.MULTILINE)]


def cluster_programs(versions, file):
    """Run the cluster chapter's two programs as one process, and record what they print."""
    folder, python = ROOT / "book" / "cluster", sys.executable
    lines = [f"# {versions}", "# JAX_PLATFORMS=cuda python hello.py; python train.py --folder run --steps 4, then 8"]
    environment = os.environ | {"JAX_PLATFORMS": "cuda"}
    with tempfile.TemporaryDirectory() as run:
        train = ["train.py", "--folder", run, "--steps"]
        for command in (["hello.py"], [*train, "4"], [*train, "8"]):
            done = subprocess.run([python, *command], cwd=folder, capture_output=True, text=True, env=environment)
            if done.returncode:
                raise SystemExit(f"{command[0]} failed:\n{done.stdout}\n{done.stderr[-3000:]}")
            lines += re.sub(r" on \S+:", " on host:", done.stdout).splitlines()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)


def main():
    """Measure, and write both files; what fails is told at the end, and the rest is kept."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", choices=NAMES, help="these alone, and not the two programs")
    options.add_argument("--out", type=Path, help="write both files here instead of into the checkout")
    options = options.parse_args()
    try:
        (made,), failed = rows("facts"), []
    except RuntimeError as error:
        raise SystemExit(str(error).splitlines()[-1]) from None
    print(json.dumps(made), flush=True)
    for name, *arguments in MEASUREMENTS:
        if name not in (options.only or NAMES):
            continue
        try:
            for row in rows(name, *arguments):
                made.setdefault(name, []).append(row)
                print(name, json.dumps(row), flush=True)
        except RuntimeError as error:
            print(error, flush=True)
            failed.append((name, *arguments))
    chip = made["device"].lower().removeprefix("nvidia ").split()[0]
    file = (options.out or ROOT / "src" / "shardlab" / "machines" / "measured") / f"{chip}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(made, indent=1) + "\n")
    if not options.only:
        packages = ", ".join(f"{name} {number}" for name, number in made["packages"].items())
        head = f"{made['date']}, {made['device']}, driver {made['driver']}, {packages}"
        cluster_programs(head, (options.out or ROOT / "book" / "cluster" / "recordings") / "gpu.txt")
    if failed:
        raise SystemExit(f"failed: {failed}")


if __name__ == "__main__":
    main()
