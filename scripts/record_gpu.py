#!/usr/bin/env python3
"""Measure the GPU of this machine, and record what the book says of it. Needs JAX with CUDA and one
GPU.

    PYTHONPATH=src python scripts/record_gpu.py               # all, in about eight minutes
    PYTHONPATH=src python scripts/record_gpu.py --only adam steps --out gpu

Writes src/shardlab/machines/measured/h200.json, after the name of the GPU, and
book/cluster/recordings/gpu.txt, which is what the programs of readers print there: the cells of the
first chapter, the script of the recipes, and the cluster chapter's two. Each time is the best of
five rounds of calls that are dispatched together and waited for once; each measurement is printed
and written when it is made.
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

# What is measured: a function of this file, which yields dicts, and its arguments. Each runs in a
# Python of its own, because a process keeps the GPU memory that it has once taken, and because
# peaks are those of a process.
MEASUREMENTS = [
    ("square",),
    ("tokens",),
    ("copy",),
    ("dispatch",),
    ("decode", "llama-3-8b", "list", ((1, 8192), (8, 8192), (32, 8192), (64, 8192), (256, 1024))),
    ("decode", "llama-3-8b", "scan", ((1, 8192), (32, 8192))),
    ("attention", (2048, 8192)),
    ("steps", "llama-3-8b", 32, 1, 2048, "block"),
    ("steps", "llama-3-8b", 32, 4, 2048, "block"),
    ("steps", "llama-3-8b", 32, 8, 2048, "block"),
    ("steps", "llama-3-8b", 8, 4, 2048, "block"),
    ("steps", "llama-3-8b", 8, 4, 2048, "none"),
    ("steps", "llama-3-8b", 8, 1, 8192, "block"),
    ("steps", "llama-3-8b", 8, 4, 2048, "offload"),
    ("steps", "llama-3-8b", 8, 4, 2048, "block", 4),
    ("transfer",),
    ("adam", "device"),
    ("adam", "pinned_host"),
]
NAMES = list(dict.fromkeys(name for name, *_ in MEASUREMENTS))


def seconds(call, rounds=5, least=0.05):
    """The time of one call, in seconds: the best of some rounds, each of as many calls as take
    `least` together.
    """
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
    """So many tokens times one matrix of 8,192 by 8,192, in bf16: from memory-bound to
    compute-bound.
    """
    weights = normal(8192, 8192)
    for count in (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096):
        x, product = normal(count, 8192), jax.jit(jnp.matmul)
        yield {
            "tokens": count,
            "seconds": seconds(lambda x=x, product=product: product(x, weights)),
        }


def copy():
    """Read an array and write another of its size: two bytes of traffic for each byte of the
    array.
    """
    for log in range(16, 33, 2):
        x, add = normal(2**log // 4, dtype=jnp.float32), jax.jit(lambda x: x + 1)
        yield {"bytes": x.nbytes, "seconds": seconds(lambda x=x, add=add: add(x))}


def dispatch():
    """What a call costs that computes next to nothing: until it returns, and until its result is
    there.
    """
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


def decode(name, layers, cases):
    """A decode step of a decoder in bf16, a token for each sequence, by (sequences, context), its
    cache full.

    The layers are a list, or stacked and scanned; the cache is donated, and each step writes the
    new token's keys and values into its last place.
    """
    sizes = model(name)
    mesh = jax.make_mesh((1, 1, 1), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    leaves = training_step(sizes, mesh, 1, 512)[1][0]["params"]
    params = {
        name: 0.02 * normal(*leaf.shape)
        for name, leaf in leaves.items()
        if name not in ("embed", "out", "norm")
    }
    embed, out = (0.02 * normal(*leaves[name].shape) for name in ("embed", "out"))
    if layers == "list":
        split = jax.jit(lambda w: list(w))
        split = {name: split(params.pop(name)) for name in list(params)}
        params = [{name: split[name][n] for name in split} for n in range(sizes.layers)]
    groups = sizes.heads // sizes.kv_heads

    def norm(x, scale):
        x = x.astype(jnp.float32)
        return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)).astype(
            jnp.bfloat16
        ) * scale

    def layer(x, w, keys, values):
        inner = norm(x, w["norms"][0])
        q = (inner @ w["q"]).reshape(len(x), sizes.kv_heads, groups, sizes.head_dim)
        k, v = (
            (inner @ w["kv"][n]).reshape(len(x), sizes.kv_heads, sizes.head_dim) for n in (0, 1)
        )
        keys, values = keys.at[:, -1].set(k), values.at[:, -1].set(v)
        scores = (
            jnp.einsum("bhgd,bkhd->bhgk", q, keys, preferred_element_type=jnp.float32)
            * sizes.head_dim**-0.5
        )
        weights = jax.nn.softmax(scores, -1).astype(jnp.bfloat16)
        x = x + jnp.einsum("bhgk,bkhd->bhgd", weights, values).reshape(len(x), -1) @ w["o"]
        inner = norm(x, w["norms"][1])
        x = x + (jax.nn.silu(inner @ w["up"][0]) * (inner @ w["up"][1])) @ w["down"]
        return x, keys, values

    def step(params, ends, caches, tokens):
        x = ends[0][tokens]
        if layers == "list":
            caches = list(caches)
            for n, w in enumerate(params):
                x, *caches[n] = layer(x, w, *caches[n])
        else:

            def scanned(x, leaves):
                x, *cache = layer(x, leaves[0], *leaves[1])
                return x, cache

            x, caches = jax.lax.scan(scanned, x, (params, caches))
        return caches, jnp.argmax(norm(x, jnp.bfloat16(1)) @ ends[1], -1)

    for sequences, context in cases:
        shape = (sequences, context, sizes.kv_heads, sizes.head_dim)
        if layers == "list":
            caches = [[normal(*shape), normal(*shape)] for _ in range(sizes.layers)]
        else:
            caches = [
                jax.jit(lambda shape=shape: jnp.zeros((sizes.layers, *shape), jnp.bfloat16))()
                for _ in range(2)
            ]
        tokens = jnp.zeros(sequences, jnp.int32)
        compiled = (
            jax.jit(step, donate_argnums=2).lower(params, (embed, out), caches, tokens).compile()
        )
        best = float("inf")
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(20):
                caches, tokens = compiled(params, (embed, out), caches, tokens)
            jax.block_until_ready(tokens)
            best = min(best, (time.perf_counter() - begin) / 20)
        row = {
            "model": name,
            "layers": layers,
            "sequences": sequences,
            "context": context,
            "seconds": best,
        }
        yield row | {"temp_bytes": compiled.memory_analysis().temp_size_in_bytes}
        del caches


def attention(lengths):
    """Causal attention of 16,384 tokens, 32 heads of 128, 8 of keys, in bf16: forward, and with its
    gradients.
    """
    for length in lengths:
        q, k, v = (normal(16384 // length, length, heads, 128) for heads in (32, 8, 8))
        for implementation in ("xla", "cudnn"):

            def forward(q, k, v, implementation=implementation):
                return jax.nn.dot_product_attention(
                    q, k, v, is_causal=True, implementation=implementation
                )

            def total(q, k, v, forward=forward):
                return forward(q, k, v).astype(jnp.float32).sum()

            for what, function in (("forward", forward), ("gradients", jax.grad(total, (0, 1, 2)))):
                compiled = jax.jit(function).lower(q, k, v).compile()
                row = {"implementation": implementation, "length": length, "what": what}
                row["temp_bytes"] = compiled.memory_analysis().temp_size_in_bytes
                yield row | {
                    "seconds": seconds(lambda compiled=compiled, q=q, k=k, v=v: compiled(q, k, v))
                }


def steps(name, layers, sequences, sequence, remat, microbatches=1):
    """A decoder's training step with donated state: its time, and its memory beside what the
    compiler says.
    """
    sizes = dataclasses.replace(model(name), layers=layers)
    mesh = jax.make_mesh((1, 1, 1), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    step, (state, batch) = training_step(sizes, mesh, sequences, sequence, remat, microbatches)
    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    memory = compiled.memory_analysis()
    keys = iter(jax.random.split(jax.random.key(0), 64))

    def create(leaf):
        scale = leaf.shape[-2] ** -0.5 if len(leaf.shape) > 1 else 1.0
        return jax.jit(lambda key: (scale * jax.random.normal(key, leaf.shape)).astype(leaf.dtype))(
            next(keys)
        )

    params = {name: create(leaf) for name, leaf in state["params"].items()}
    zeros = [
        jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state[part])
        for part in ("first", "second")
    ]
    state = {"params": params, "first": zeros[0], "second": zeros[1]}
    batch = jax.random.randint(jax.random.key(1), batch.shape, 0, sizes.vocab)
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        state = jax.block_until_ready(compiled(state, batch))
        times.append(time.perf_counter() - begin)
    row = {
        "model": name,
        "layers": layers,
        "sequences": sequences,
        "sequence": sequence,
        "remat": remat,
    }
    row["microbatches"] = microbatches
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
    yield {
        "to": "device",
        "bytes": x.nbytes,
        "seconds": seconds(lambda: jax.device_put(away, near)),
    }


def adam(where):
    """Adam on one parameter of 2^30 elements in float32, its moments in the memory `where` between
    the steps.
    """
    device = SingleDeviceSharding(jax.devices()[0])
    home = device.with_memory_kind(where)
    chunks = [(2**26,)] * 16
    create = jax.jit(lambda value: [jnp.full(shape, value, jnp.float32) for shape in chunks])
    parameters, first, second = (
        create(1.0),
        *(jax.device_put(create(value), home) for value in (0.0, 0.0)),
    )

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
        raise SystemExit(
            f"this machine's device is a {device.device_kind}, no GPU; run it where JAX finds CUDA"
        )
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    packages = {
        package: version(package) for package in ("jax", "jaxlib", "optax", "orbax-checkpoint")
    }
    row = {"device": device.device_kind, "date": str(datetime.date.today()), "packages": packages}
    row["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    yield row | {"memory_bytes": device.memory_stats()["bytes_limit"]}


def rows(name, *arguments):
    """What a function of this file yields in another Python; if that fails, its last lines, as an
    error.
    """
    program = (
        f"import json, record_gpu\nfor row in record_gpu.{name}(*{arguments!r}): print('ROW', "
        "json.dumps(row))"
    )
    path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT / "src")])
    environment = os.environ | {"PYTHONPATH": path, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"{name}{arguments}: {done.stderr[-3000:]}")
    return [json.loads(row) for row in re.findall(r"^ROW (.*)$", done.stdout, re.MULTILINE)]


def cells(chapter):
    """The code of a chapter's cells, as one program."""
    text = (ROOT / "book" / f"{chapter}.md").read_text()
    return "\n".join(
        re.findall(
            r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```$", text, re.MULTILINE | re.DOTALL
        )
    )


def programs(head, file):
    """Run the readers' programs as one process each, and record what they print."""
    cluster, recipes = ROOT / "book" / "cluster", ROOT / "book" / "recipes"
    environment = os.environ | {"JAX_PLATFORMS": "cuda", "MPLBACKEND": "agg"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    )
    lines, failed = [f"# {head}"], []
    with tempfile.TemporaryDirectory() as folder:
        start, run, resumed = Path(folder, "start.py"), Path(folder, "run"), Path(folder, "resumed")
        start.write_text(cells("start"))
        for place, *command in (
            (Path(folder), start),
            (recipes, "train.py", resumed, 4),
            (recipes, "train.py", resumed, 8),
            (cluster, "hello.py"),
            (cluster, "train.py", "--folder", run, "--steps", 4),
            (cluster, "train.py", "--folder", run, "--steps", 8),
        ):
            words = [str(word) for word in command]
            done = subprocess.run(
                [sys.executable, *words],
                cwd=place,
                capture_output=True,
                text=True,
                env=environment,
                timeout=120,
            )
            shown = " ".join(words).replace(f"{folder}/", "")
            lines += [
                f"# python {shown}",
                *re.sub(r" on \S+:", " on host:", done.stdout).splitlines(),
            ]
            if done.returncode:
                failed.append(shown)
                print(f"{shown}: {done.stderr[-3000:]}", flush=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    return failed


def main():
    """Measure, and write both files; what fails is told at the end, and the rest is kept."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--only", nargs="+", choices=NAMES, help="these alone, and not the readers' programs"
    )
    options.add_argument(
        "--out", type=Path, help="write both files here instead of into the checkout"
    )
    options = options.parse_args()
    try:
        (measured,), failed = rows("facts"), []
    except RuntimeError as error:
        raise SystemExit(str(error).splitlines()[-1]) from None
    print(json.dumps(measured), flush=True)
    chip = measured["device"].lower().removeprefix("nvidia ").split()[0]
    file = (options.out or ROOT / "src" / "shardlab" / "machines" / "measured") / f"{chip}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    if not options.only:
        packages = ", ".join(f"{name} {number}" for name, number in measured["packages"].items())
        head = f"{measured['date']}, {measured['device']}, driver {measured['driver']}, {packages}"
        failed += programs(
            head, (options.out or ROOT / "book" / "cluster" / "recordings") / "gpu.txt"
        )
    for name, *arguments in MEASUREMENTS:
        if name not in (options.only or NAMES):
            continue
        try:
            for row in rows(name, *arguments):
                measured.setdefault(name, []).append(row)
                print(name, json.dumps(row), flush=True)
        except RuntimeError as error:
            print(error, flush=True)
            failed.append((name, *arguments))
        file.write_text(json.dumps(measured, indent=1) + "\n")
    if failed:
        raise SystemExit(f"failed: {failed}")


if __name__ == "__main__":
    main()
