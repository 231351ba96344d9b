#!/usr/bin/env python3
"""Compile book/recipes/pretrain.py at the sizes of Llama 3 8B for slices of TPUs, and record its
memory and its communication beside the planner's.

The recording is book/recordings/pretrain.json, which together.md quotes. It needs libtpu, but no
TPU, and takes a minute or two for each slice: run it again when pretrain.py changes, which a test
notices.
"""

import argparse
import datetime
import hashlib
import json
import os
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "book" / "recordings" / "pretrain.json"
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


def main():
    """Record every case."""
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    ).parse_args()
    from shardlab import emulate

    emulate(1)
    sys.path.insert(0, str(RECIPE.parent))
    about = {
        "what": "book/recipes/pretrain.py at the sizes of Llama 3 8B, compiled for slices of TPUs.",
        "command": "python scripts/record_pretrain.py",
        "date": str(datetime.date.today()),
        "machine": f"{os.cpu_count()} cores, no TPU",
        "recipe": hashlib.sha256(RECIPE.read_bytes()).hexdigest(),
        "cases": [row_of(*case) for case in CASES],
    }
    RECORDING.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
