#!/usr/bin/env python3
"""Train the dropless step of book/experts.md, in bfloat16 on eight emulated devices, for hundreds
of steps, with and without the loss of balance, and record its loss and the load of its experts.

The recording is book/recordings/balance.json, which experts.md quotes. It takes a few minutes: run
it again when the chapter's step changes, which a test notices.
"""

import argparse
import ast
import datetime
import hashlib
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "book" / "recordings" / "balance.json"
WEIGHTS, STEPS, LAST = (0.0, 0.01, 0.1), 300, 50
NEEDED = {"fsdp_step", "create_in_shards", "put", "WEIGHT"}  # of the chapter


def statements():
    """The statements of the chapter that make the step, its state and its batches."""
    from bookbinder.read.book import load
    from bookbinder.read.statements import depended_on, makes_of

    cells = load(ROOT).chapter("experts").cells
    every = [statement for cell in cells for statement in ast.parse(cell.source).body]
    roots = [s for s in every if makes_of(s) & NEEDED or ast.unparse(s).startswith("emulate(")]
    chosen = depended_on(every, roots)
    return [statement for statement in every if statement in chosen]


def digest(program):
    """What the recording depends on, as 64 digits."""
    return hashlib.sha256("\n".join(map(ast.unparse, program)).encode()).hexdigest()


def trained(names, weight):
    """The losses and the loads of the experts, [steps, layers, experts], of a run."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    names["WEIGHT"] = weight
    grid, rows = names["grid"], names["P"](names["both"])
    step = jax.jit(names["fsdp_step"](grid, jnp.bfloat16), donate_argnums=0)
    state, losses, loads = names["create_in_shards"](names["key"]), [], []
    for number in range(STEPS):
        batch = names["put"](names["sums"](names["B"], seed=number), rows, grid)
        state, value, reports = step(state, batch)
        assert not reports["dropped"].sum()
        losses.append(float(value) - weight * float(reports["balance"].sum()) / grid.size)
        loads.append(np.asarray(reports["load"]).sum(1))
    return np.array(losses), np.array(loads)


def row_of(names, weight):
    """What is recorded of a run: its loss at both ends, and in each layer how even loads are."""
    losses, loads = trained(names, weight)
    mean = loads[-LAST:].mean(0)
    print(f"weight {weight}: loss {losses[-LAST:].mean():.3f}", file=sys.stderr)
    return {
        "weight": weight,
        "first loss": round(float(losses[0]), 3),
        "last loss": round(float(losses[-LAST:].mean()), 3),
        "busiest": [round(float(a), 2) for a in mean.max(1) / mean.mean(1)],
        "nearly unused": [int(n) for n in (mean < 0.1 * mean.mean(1, keepdims=True)).sum(1)],
    }


def main():
    """Record every run."""
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    ).parse_args()
    program, names = statements(), {"__name__": "__main__"}
    exec(compile(ast.Module(program, []), "book/experts.md", "exec"), names)
    import jax

    about = {
        "what": "The dropless step of book/experts.md, trained in bfloat16 on eight CPU devices.",
        "command": "python scripts/record_balance.py",
        "date": str(datetime.date.today()),
        "machine": f"{os.cpu_count()} cores, JAX {jax.__version__}",
        "program": digest(program),
        "steps": STEPS,
        "mean of the last": LAST,
        "runs": [row_of(names, weight) for weight in WEIGHTS],
    }
    RECORDING.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
