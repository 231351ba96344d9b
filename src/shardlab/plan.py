"""Which mesh for which model on which chips: a table of those that fit, by predicted step time.

    python -m shardlab.plan llama-70b --chip v5p --chips 512 --batch 256 --sequence 4096
    python -m shardlab.plan 32,4096,14336,32,8,128,128256 --chip v5e --chips 16 --batch 32 --verify 1

Meshes have three axes: data (copies), fsdp (weights cut) and tensor (layers cut). Pipelines, experts and several slices
are left out. Times are `shardlab.cost`'s, bounds by formula; `--verify` compiles the best by `shardlab.pods`, and
says how far the formulas are from the compiler's numbers.
"""

import argparse
import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab import cost
from shardlab.pods import NoCompiler, Pod

__all__ = ["Plan", "plan", "verify"]

# Sizes: the published configurations of Llama 3.
MODELS = {
    "llama-8b": cost.Model(32, 4096, 14_336, 32, 8, 128, 128_256, name="llama-8b"),
    "llama-70b": cost.Model(80, 8192, 28_672, 64, 8, 128, 128_256, name="llama-70b"),
}
_PARTS = ("compute", "hbm", "data", "fsdp", "tensor")


@dataclass(frozen=True)
class Plan:
    """One mesh for a training step, and what is predicted of it. Bytes and seconds are those of one chip and step.

    Attributes:
      data, fsdp, tensor: sizes of the mesh axes.
      seconds: predicted, if nothing overlaps.
      best_seconds: predicted, if everything does.
      bound: the largest part: "compute", "hbm", "data", "fsdp" or "tensor".
      parts: seconds by part, by these names.
      memory_bytes: predicted.
      sent: bytes that a chip sends along each axis, on rings.
      flops: of matrix products.
    """

    data: int
    fsdp: int
    tensor: int
    seconds: float
    best_seconds: float
    bound: str
    parts: dict[str, float]
    memory_bytes: float
    sent: dict[str, float]
    flops: float


def plan(model, chip, chips, batch, sequence=4096, remat="block"):
    """The meshes of so many chips on which a training step fits, best first.

    `plan(MODELS["llama-70b"], "v5p", 512, 256)[0]` is the mesh with the least predicted time, if nothing overlaps.

    Args:
      model: a `shardlab.cost.Model`.
      chip: such as "v5p" or "H100".
      chips: how many.
      batch: sequences in the whole batch; each chip along data and fsdp gets as many as the others.
      sequence: tokens of each.
      remat: what the way back computes again, as in `shardlab.cost`.

    Returns:
      A list of `Plan`, empty if none fits. Weights and gradients are bf16, Adam's moments f32.

    Raises:
      ValueError: an unknown chip, or a number that is not a whole one of at least 1.
    """
    for name, value in (("chips", chips), ("batch", batch), ("sequence", sequence)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
    chip = cost.chip(chip)
    ways = cost.layouts(chips, model)
    step = cost.step_cost(model, chip, ways, batch * sequence, sequence, remat=remat)
    found = []
    for i, (data, fsdp, tensor) in enumerate(zip(ways.data, ways.fsdp, ways.tensor, strict=True)):
        if step.fits[i] and batch % (data * fsdp) == 0 and model.kv_heads % tensor == 0:
            found.append(
                Plan(
                    int(data), int(fsdp), int(tensor),
                    seconds=float(step.serial_seconds[i]),
                    best_seconds=float(step.seconds[i]),
                    bound=str(step.bound[i]),
                    parts={name: float(getattr(step, f"{name}_seconds")[i]) for name in _PARTS},
                    memory_bytes=float(step.memory.total_bytes[i]),
                    sent={axis: float(getattr(step, f"{axis}_bytes")[i]) for axis in ("data", "fsdp", "tensor")},
                    flops=float(step.flops[i]),
                )
            )  # fmt: skip
    return sorted(found, key=lambda p: p.seconds)


# --- A program to hold it against ---------------------------------------------------------------------------


def _weights(m):
    """Shape and spec of each array of weights."""
    d, layers = m.d_model, m.layers
    return {
        "embed": ((m.vocab, d), P("tensor", "fsdp")),
        "unembed": ((d, m.vocab), P("fsdp", "tensor")),
        "norm": ((d,), P()),
        "layers": {
            "norms": ((layers, 2, d), P()),
            "q": ((layers, d, m.heads, m.head_dim), P(None, "fsdp", "tensor")),
            "kv": ((layers, 2, d, m.kv_heads, m.head_dim), P(None, None, "fsdp", "tensor")),
            "out": ((layers, m.heads, m.head_dim, d), P(None, "tensor", None, "fsdp")),
            "up": ((layers, 2 if m.gated else 1, d, m.d_ff), P(None, None, "fsdp", "tensor")),
            "down": ((layers, m.d_ff, d), P(None, "tensor", "fsdp")),
        },
    }


def _norm(x, scale):
    return x * (lax.rsqrt((x.astype("float32") ** 2).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def _step(mesh, remat):
    """A training step of a decoder: causal attention, MLP, cross-entropy, Adam. Positions are left out."""
    cut = NamedSharding(mesh, P(("data", "fsdp")))

    def block(x, w):
        h = _norm(x, w["norms"][0])
        q = jnp.einsum("bsd,dhk->bshk", h, w["q"])
        k, v = jnp.einsum("bsd,cdgk->cbsgk", h, w["kv"])
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + jnp.einsum("bshk,hkd->bsd", mixed, w["out"])
        gate, *up = jnp.einsum("bsd,cdf->cbsf", _norm(x, w["norms"][1]), w["up"])
        gate = jax.nn.silu(gate) * up[0] if up else jax.nn.silu(gate)
        return lax.with_sharding_constraint(x + gate @ w["down"], cut), None

    block = jax.checkpoint(block) if remat == "block" else block

    def loss(params, tokens):
        x = lax.with_sharding_constraint(params["embed"][tokens[:, :-1]], cut)
        x, _ = lax.scan(block, x, params["layers"])
        scores = jax.nn.log_softmax((_norm(x, params["norm"]) @ params["unembed"]).astype("float32"))
        return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()

    def adam(p, mean, square, g):
        g = g.astype("float32")
        mean, square = 0.9 * mean + 0.1 * g, 0.95 * square + 0.05 * g * g
        return (p - 1e-4 * mean / (jnp.sqrt(square) + 1e-8)).astype(p.dtype), mean, square

    def step(state, tokens):
        leaves = zip(*map(jax.tree.leaves, (*state, jax.grad(loss)(state[0], tokens))), strict=True)
        moved = zip(*(adam(*four) for four in leaves), strict=True)
        return tuple(jax.tree.structure(state[0]).unflatten(new) for new in moved)

    return step


def verify(found, model, pod, batch, sequence=4096, remat="block", **how):
    """Compile a plan's step for a pod, and hold the predictions against the compiler's numbers.

    Args:
      found: a `Plan`.
      model: a `shardlab.cost.Model`.
      pod: a `shardlab.pods.Pod` of as many chips.
      batch: sequences in the whole batch.
      sequence: tokens of each.
      remat: "block" or "none".
      **how: for `Pod.compile`, such as `fresh=True`.

    Returns:
      The `PodProgram`, and {name: (predicted, compiled)} of "FLOPs", "memory" and, for each axis that is cut, of the
      bytes sent along it.

    Raises:
      ValueError: remat is not one of these, or the plan does not have the pod's number of devices.
      NoCompiler: there is no compiler here, and no recording.
    """
    if remat not in ("block", "none"):
        raise ValueError(f'remat={remat!r} cannot be compiled here; use "block" or "none"')
    mesh = pod.mesh((found.data, found.fsdp, found.tensor), ("data", "fsdp", "tensor"), split=True)

    def stand_in(leaf, dtype):
        return jax.ShapeDtypeStruct(leaf[0], dtype, sharding=NamedSharding(mesh, leaf[1]))

    trees = [
        jax.tree.map(lambda leaf, dtype=dtype: stand_in(leaf, dtype), _weights(model), is_leaf=_is_leaf)
        for dtype in ("bfloat16", "float32", "float32")
    ]
    tokens = stand_in(((batch, sequence + 1), P(("data", "fsdp"))), "int32")
    name = f"plan {model.name} remat={remat}"
    program = pod.compile(_step(mesh, remat), tuple(trees), tokens, name=name, donate_argnums=0, **how)
    if program.fits is False:
        return program, {"memory": (found.memory_bytes, None)}
    held = {"FLOPs": (found.flops, program.flops), "memory": (found.memory_bytes, program.peak_bytes)}
    sizes = {"data": found.data, "fsdp": found.fsdp, "tensor": found.tensor}
    for axis, size in sizes.items():
        if size > 1:
            rows = [row for row in program.traffic if row.axes and row.axes[0] == axis]
            unknown = any(row.times is None or row.bytes is None for row in rows)
            sent = None if unknown else sum(row.times * row.bytes for row in rows)
            held[f"sent along {axis}"] = found.sent[axis], sent
    return program, held


def _is_leaf(x):
    return isinstance(x, tuple)


# --- The command --------------------------------------------------------------------------------------------


def _model(text):
    if text in MODELS:
        return MODELS[text]
    if text in cost.MODELS:
        return cost.MODELS[text]
    try:
        return cost.Model(*map(int, text.split(",")), name=text)
    except (TypeError, ValueError) as error:
        known = ", ".join([*MODELS, *cost.MODELS])
        form = "layers,d_model,d_ff,heads,kv_heads,head_dim,vocab"
        raise argparse.ArgumentTypeError(f"{text!r} is neither a model ({known}) nor {form}: {error}") from None


def _torus(chip, chips):
    """The name of a pod with so many chips: hosts of eight GPUs, or a torus as even as it can be."""
    if not cost.chip(chip).torus:
        return f"{chip.lower()}:{max(1, chips // 8)}x{min(8, chips)}"
    axes = len(cost.chip(chip).torus)
    best = None
    for a in range(1, chips + 1):
        for b in range(a, chips // a + 1) if chips % a == 0 else ():
            c = chips // (a * b)
            if a * b * c == chips and c >= b and (axes == 3 or a == 1):
                best = (a, b, c) if best is None or c < best[2] else best
    return f"{chip}:{'x'.join(map(str, best[3 - axes :]))}"


def _table(plans, limit):
    head = ("data", "fsdp", "tensor", "seconds", "overlapped", "bound by", "GB a chip", "GB sent a step")
    rows = [head] + [
        (
            str(p.data), str(p.fsdp), str(p.tensor), f"{p.seconds:.3f}", f"{p.best_seconds:.3f}", p.bound,
            f"{p.memory_bytes / 1e9:.1f}", f"{sum(p.sent.values()) / 1e9:.2f}",
        )
        for p in plans[:limit]
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines + ([f"and {len(plans) - limit} more that fit"] if len(plans) > limit else []))


def _plot(plans, path):
    try:
        import matplotlib
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 0.4 * len(plans) + 1.2))
    names, start = [f"{p.data} × {p.fsdp} × {p.tensor}" for p in plans], [0.0] * len(plans)
    for part in _PARTS:
        widths = [p.parts[part] for p in plans]
        axis.barh(names, widths, left=start, label=part)
        start = [s + w for s, w in zip(start, widths, strict=True)]
    axis.invert_yaxis()
    axis.set(xlabel="seconds by part, if nothing overlaps", ylabel="data × fsdp × tensor")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path)


def main(arguments=None):
    """Read the command's arguments, print the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m shardlab.plan", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    sizes = "or layers,d_model,d_ff,heads,kv_heads,head_dim,vocab"
    parser.add_argument("model", type=_model, help=f"{', '.join([*MODELS, *cost.MODELS])}, {sizes}")
    parser.add_argument("--chip", required=True, help=", ".join(cost.CHIPS))
    parser.add_argument("--chips", type=int, required=True, help="how many")
    parser.add_argument("--batch", type=int, required=True, help="sequences in the whole batch")
    parser.add_argument("--sequence", type=int, default=4096, help="tokens of each (4096)")
    parser.add_argument("--remat", choices=cost.REMAT, default="block", help="what is computed again (block)")
    parser.add_argument("--top", type=int, default=10, help="how many to show (10)")
    parser.add_argument("--plot", metavar="FILE", help="also draw them, as a picture")
    parser.add_argument("--verify", type=int, default=0, metavar="N", help="compile the best N for a pod")
    parser.add_argument("--pod", help='the pod to compile for, such as "v5p:8x8x8"; by default an even torus')
    wanted = parser.parse_args(arguments)
    try:
        plans = plan(wanted.model, wanted.chip, wanted.chips, wanted.batch, wanted.sequence, wanted.remat)
    except ValueError as error:
        parser.error(str(error))
    if wanted.top < 1:
        parser.error(f"--top {wanted.top}: show at least 1")
    if not plans:
        print(
            f"No mesh of {wanted.chips} {wanted.chip} fits {wanted.batch} sequences of {wanted.sequence} tokens. "
            "Use more chips, a smaller batch in more steps, or --remat block."
        )
        return 1
    print(_table(plans, wanted.top))
    if wanted.plot:
        _plot(plans[: wanted.top], wanted.plot)
    if not wanted.verify:
        return 0
    try:
        pod = Pod(wanted.pod or _torus(wanted.chip, wanted.chips))
        for found in plans[: wanted.verify]:
            program, held = verify(found, wanted.model, pod, wanted.batch, wanted.sequence, wanted.remat)
            print(f"\n{found.data} x {found.fsdp} x {found.tensor} on {pod.name}, {program.source}:")
            if program.fits is False:
                print(f"  the compiler refuses: {program.message.splitlines()[0]}")
            for name, (predicted, compiled) in held.items():
                error = "" if not compiled else f"{100 * (predicted / compiled - 1):+.0f} %"
                said = "unknown" if compiled is None else f"{compiled:.4g}"
                print(f"  {name:18} predicted {predicted:.4g}, compiled {said}  {error}")
    except (ValueError, NoCompiler) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
