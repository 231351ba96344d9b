#!/usr/bin/env python3
"""Compile programs of the book at the sizes of Llama 3 8B for slices of TPUs, and record what
`shardlab.Pod` cannot tell a chapter's own cell.

- pretrain: book/recipes/pretrain.py, its memory and its communication beside the planner's;
  together.md quotes book/recordings/pretrain.json.
- hsdp: the step of book/zero.md on two slices, in bfloat16: what crosses from slice to slice;
  zero.md quotes book/recordings/hsdp.json.

It needs libtpu, but no TPU, and takes a minute or two for each program: run it again when the
recipe or the chapter's step changes, which a test notices.
"""

import argparse
import ast
import datetime
import hashlib
import json
import os
import re
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "book" / "recordings"
RECIPE = ROOT / "book" / "recipes" / "pretrain.py"
SIZES = {
    "LAYERS": 32, "D": 4096, "HEADS": 32, "KV_HEADS": 8, "HIDDEN": 14336, "VOCABULARY": 128256,
}  # fmt: skip
LENGTH, AXES = 4096, ("data", "fsdp", "context", "tensor")
CASES = (  # a slice, sizes of the mesh, and sequences
    ("v5e:4x4", (1, 16, 1, 1), 16),
    ("v5p:2x2x4", (1, 4, 4, 1), 16),
    ("v5p:2x2x4", (1, 4, 1, 4), 16),
)
SLICE, TOKENS = "v5e:2x4", 2048  # of HSDP: two such slices, and a sequence on each chip
NEEDED = {"hsdp_step", "gather_layer", "to_varying", "shard_matrices", "state_specs"}


def compiled(slice_, sizes, sequences):
    """The recipe's step, as compiled for a slice."""
    import jax
    import pretrain
    from jax.sharding import NamedSharding, PartitionSpec as P

    from shardlab import Pod, apply_rules, shardings, target

    for name, size in SIZES.items():
        setattr(pretrain, name, size)
    pod, shapes = Pod(slice_), jax.eval_shape(pretrain.create)
    mesh, specs = pod.mesh(sizes, AXES), apply_rules(pretrain.RULES, shapes).specs
    rows = NamedSharding(mesh, P(pretrain.ROWS))
    tokens = jax.ShapeDtypeStruct((sequences, LENGTH + 1), "int32", sharding=rows)
    step = jax.jit(
        partial(pretrain.update, specs=specs["params"], micro=1, groups=sizes[0]),
        donate_argnums=0,
        out_shardings=(shardings(specs, mesh), None),
    )
    with jax.set_mesh(mesh):
        return pod.compile(step, target(shapes, specs, mesh), tokens, name="pretrain", cache=False)


def row_of(slice_, sizes, sequences):
    """What is recorded of a case: bytes by axes, kind and dtype, and what the planner says."""
    from shardlab import plan

    program, sent = compiled(slice_, sizes, sequences), {}
    for row in program.traffic:
        dtypes = ",".join(sorted({array.split("[")[0] for array in row.arrays}))
        key = f"{'+'.join(row.axes or ['other'])} {row.kind} {dtypes}"
        sent[key] = sent.get(key, 0) + row.times * row.bytes
    made = plan(
        "llama-3-8b", slice_.split(":")[0], program.devices, sequences * LENGTH, axes=AXES,
        sequence=LENGTH, remat="block", microbatches=1, gathers=2,
    )  # fmt: skip
    planned = next(
        c for c in made.choices if tuple(getattr(c, axis) for axis in AXES) == tuple(sizes)
    )
    print(f"{slice_} {sizes}: {program.seconds:.0f} s, fits={program.fits}", file=sys.stderr)
    return {
        "slice": slice_,
        "mesh": dict(zip(AXES, sizes, strict=True)),
        "sequences": sequences,
        "fits": program.fits,
        "message": program.message.splitlines()[0] if program.message else "",
        "peak": program.peak_bytes,
        "planned peak": int(planned.total_bytes),
        "sent": {key: count for key, count in sorted(sent.items()) if count > 1e6},
        "planned sent": {axis: int(planned.sent_bytes[axis]) for axis in AXES},
        "versions": list(program.provenance.values())[:2],
    }


def statements():
    """The statements of book/zero.md that make the step of HSDP."""
    from bookbinder.read.book import load
    from bookbinder.read.statements import depended_on, makes_of

    cells = load(ROOT).chapter("zero").cells
    every = [statement for cell in cells for statement in ast.parse(cell.source).body]
    roots = [s for s in every if makes_of(s) & NEEDED or ast.unparse(s).startswith("emulate(")]
    chosen = depended_on(every, roots)
    return [statement for statement in every if statement in chosen]


def digest(program):
    """What the recording depends on, as 64 digits."""
    return hashlib.sha256("\n".join(map(ast.unparse, program)).encode()).hexdigest()


def two_slices():
    """A mesh of two slices, a replica in each."""
    import jax
    import numpy as np
    from jax.experimental import mesh_utils, topologies

    from shardlab import Pod

    Pod(SLICE).mesh((8,), "shard")  # loads libtpu as shardlab does
    chips = topologies.get_topology_desc(platform="tpu", topology_name=SLICE, num_slices=2).devices
    halves = [[chip for chip in chips if chip.slice_index == number] for number in (0, 1)]
    rings = [mesh_utils.create_device_mesh((len(half),), half) for half in halves]
    types = (jax.sharding.AxisType.Auto,) * 2
    return jax.sharding.Mesh(np.stack(rings), ("replica", "shard"), axis_types=types)


def crossing(program, cast_first):
    """What crosses from slice to slice, and what is reduce-scattered within one, in the layers.

    Args:
      program: the chapter's statements.
      cast_first: cast shards to varying before they are gathered, as the chapter does.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from shardlab import target
    from shardlab.networks import transformer

    names = {"__name__": "__main__"}
    exec(compile(ast.Module(program, []), "book/zero.md", "exec"), names)
    to_varying, gather_layer = names["to_varying"], names["gather_layer"]

    def low(p):
        return p.astype(jnp.bfloat16)

    def gather_low(layer, specs, axis, stacked=1):
        full = gather_layer(layer, specs, axis, stacked)
        full = {
            name: p if axis in specs[name] else to_varying(p, ("replica", "shard"))
            for name, p in full.items()
        }
        return {name: p if name == "embed" else low(p) for name, p in full.items()}

    def swiglu(x, layer):
        return (jax.nn.silu(x @ layer["gate"]) * (x @ layer["up"])) @ layer["down"]

    def create():
        sizes = [SIZES[name] for name in ("D", "HEADS", "KV_HEADS", "HIDDEN")]
        config = transformer.Config(2, *sizes)
        parameters = transformer.init(jax.random.key(0), config)
        parameters["layers"]["gate"] = parameters["layers"]["up"]
        return transformer.adam_state(parameters)

    names["gather_layer"] = gather_low
    if not cast_first:
        names["to_varying"] = lambda p, axes: p
    names["Hooks"] = partial(
        transformer.Hooks,
        remat=jax.checkpoint,
        mlp=swiglu,
        embed=lambda table, tokens: low(table[tokens]),
    )
    mesh, shapes = two_slices(), jax.eval_shape(create)
    specs = names["shard_matrices"](shapes["parameters"], mesh, "shard")
    rows = transformer.sums(mesh.size, TOKENS)
    args = (
        target(shapes, names["state_specs"](specs, specs), mesh),
        target(rows, dict.fromkeys(rows, P(mesh.axis_names)), mesh),
    )
    step = jax.jit(names["hsdp_step"](specs, mesh), donate_argnums=0)
    return step.lower(*args).compile().as_text()


def arrays_of(text, instruction):
    """How often a kind of instruction has which array as its first, such as {"f32[4096,16]": 1}."""
    found = re.findall(rf" = \(?(\w+\[[\d,]*\])\S* .*?\b{instruction}\(", text)
    return {array: found.count(array) for array in sorted(set(found))}


def pretrained():
    """The recording of the recipe."""
    from shardlab import emulate

    emulate(1)
    sys.path.insert(0, str(RECIPE.parent))
    return {
        "what": "book/recipes/pretrain.py at the sizes of Llama 3 8B, compiled for slices of TPUs.",
        "recipe": hashlib.sha256(RECIPE.read_bytes()).hexdigest(),
        "cases": [row_of(*case) for case in CASES],
    }


def replicated():
    """The recording of HSDP."""
    program = statements()
    orders = {"cast to varying, then gather": True, "gather alone": False}
    cases = []
    for order, cast_first in orders.items():
        text = crossing(program, cast_first)
        kinds = {"crosses": "send", "scattered": "reduce-scatter", "summed": "all-reduce"}
        rows = {name: arrays_of(text, instruction) for name, instruction in kinds.items()}
        cases.append({"order": order} | rows)
        print(f"{order}: {rows}", file=sys.stderr)
    return {
        "what": f"The step of HSDP in book/zero.md, in bfloat16, compiled for two {SLICE}.",
        "program": digest(program),
        "versions": [f"{name} {version(name)}" for name in ("libtpu", "jax")],
        "cases": cases,
    }


def main():
    """Record every case of one program."""
    makers = {"pretrain": pretrained, "hsdp": replicated}
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("program", nargs="?", choices=makers, default="pretrain")
    program = parser.parse_args().program
    made = makers[program]()
    about = {
        "what": made.pop("what"),
        "command": "python scripts/record_pretrain.py" + " hsdp" * (program == "hsdp"),
        "date": str(datetime.date.today()),
        "machine": f"{os.cpu_count()} cores, no TPU",
    }
    (RECORDINGS / f"{program}.json").write_text(json.dumps(about | made, indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
