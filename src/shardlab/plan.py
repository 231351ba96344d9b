"""Plan a training run: which meshes fit, and which is fastest, for a model, a kind of chip and a number of chips.

    python -m shardlab.plan llama-3-70b v5p 512 --batch-tokens 4194304
    python -m shardlab.plan llama-3-70b v5p 512 --batch-tokens 4194304 --verify 3 --plot plan.svg

`shardlab.cost` predicts the cost of every mesh of data, fsdp and tensor parallelism; pipeline and expert parallelism
are not considered. The predicted time of a step assumes the data sheet's speeds and full overlap, so it is a lower
bound. `--verify` compiles the best meshes with the chips' own compiler (`shardlab.pods`), without the chips, and
compares bytes.
"""

import argparse
import sys
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product

import numpy as np

from shardlab import cost

__all__ = ["Choice", "Plan", "Verdict", "plan", "pod_name", "training_step", "verify"]

AXES = ("data", "fsdp", "tensor")


@dataclass(frozen=True)
class Choice:
    """A mesh, and what a step costs on it.

    Attributes:
      data, fsdp, tensor: sizes of the mesh's axes.
      seconds: predicted for a step, with everything overlapped; `serial_seconds`: with nothing overlapped.
      bound: the part that takes longest: "compute", "hbm", "data", "fsdp" or "tensor" (compute-bound, memory-bound, or
        communication-bound along that axis).
      parts: seconds of each of these parts.
      sent_bytes: what a chip sends in a step along each axis of the mesh, as `shardlab.comms` counts.
      total_bytes: bytes of memory on each chip; `state_bytes`: those of parameters, gradients and moments.
      fits: whether that is no more than the chip's memory, less the reserve.
      mfu: useful FLOPs as a share of the peak, if everything is overlapped.
    """

    data: int
    fsdp: int
    tensor: int
    seconds: float
    serial_seconds: float
    bound: str
    parts: dict
    sent_bytes: dict
    total_bytes: float
    state_bytes: float
    fits: bool
    mfu: float


@dataclass(frozen=True)
class Plan:
    """All meshes for a model on some chips: those that fit first, the fastest first.

    Attributes:
      model, chip, chips, batch_tokens, sequence, remat: as asked.
      memory_bytes: bytes of a chip's memory, less the reserve.
      choices: a tuple of `Choice`.
      uneven: how many meshes were left out because they cannot share the sequences of a batch evenly.
    """

    model: cost.Model
    chip: cost.Chip
    chips: int
    batch_tokens: int
    sequence: int
    remat: str
    memory_bytes: float
    choices: tuple
    uneven: int

    @property
    def fitting(self):
        """The choices that fit."""
        return tuple(choice for choice in self.choices if choice.fits)

    def table(self, most=10):
        """The first choices as a table in text."""
        head = ("data", "fsdp", "tensor", "step ms", "if serial", "bound by", "memory GB", "MFU")
        rows = [
            (
                *(str(getattr(choice, axis)) for axis in AXES),
                f"{choice.seconds * 1e3:,.0f}",
                f"{choice.serial_seconds * 1e3:,.0f}",
                choice.bound,
                f"{choice.total_bytes / 1e9:.1f}" + ("" if choice.fits else " too much"),
                f"{choice.mfu:.0%}",
            )
            for choice in self.choices[:most]
        ]
        widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
        lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in [head, *rows]]
        return "\n".join(line.rstrip() for line in lines)

    def plot(self, file, most=10):
        """Draw the time of each part of a step, for the first choices, as bars into an image file."""
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise ImportError("the plot needs matplotlib: pip install matplotlib") from None
        shown = self.choices[:most]
        figure, axes = plt.subplots(figsize=(8, 1 + 0.45 * len(shown)), layout="constrained")
        for n, part in enumerate(shown[0].parts):
            heights = [choice.parts[part] * 1e3 for choice in shown]
            places = [place + 0.16 * (n - 2) for place in range(len(shown))]
            axes.barh(places, heights, height=0.16, label=part)
        names = [f"{choice.data} × {choice.fsdp} × {choice.tensor}" for choice in shown]
        axes.set_yticks(range(len(shown)), names)
        axes.invert_yaxis()
        axes.set(xlabel="ms in a step, without overlap", ylabel="data × fsdp × tensor")
        axes.legend(title=f"{self.model.name or 'model'} on {self.chips} {self.chip.name}")
        figure.savefig(file)
        plt.close(figure)


def plan(model, chip, chips, batch_tokens, *, sequence=4096, remat="block", reserve=0.1, efficiency=1.0):
    """Predict the cost of every mesh for a model on a number of chips.

    `plan("llama-3-70b", "v5p", 512, 4 * 2**20).choices[0]` is the fastest mesh that fits.

    Args:
      model: a `shardlab.cost.Model`, or the name of a known one.
      chip: a `shardlab.cost.Chip`, or the name of a known one.
      chips: how many.
      batch_tokens: tokens of a batch, a multiple of `sequence`.
      sequence: tokens of a sequence.
      remat: what the backward pass rematerialises: one of `shardlab.cost.REMAT`.
      reserve: the share of a chip's memory that is left for the compiler's buffers.
      efficiency: the share of the peak that matrix products reach.

    Returns:
      A `Plan`.

    Raises:
      ValueError: a number is out of range, or a name unknown; the message says what is allowed.
    """
    if isinstance(model, str):
        if model not in cost.MODELS:
            raise ValueError(f"no model is called {model!r}; known are {', '.join(cost.MODELS)}, or give its sizes")
        model = cost.MODELS[model]
    chip = cost.chip(chip)
    for name, value in (("chips", chips), ("batch_tokens", batch_tokens), ("sequence", sequence)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} is {value!r}; use a whole number of at least 1")
    if not 0 <= reserve < 1:
        raise ValueError(f"reserve={reserve} is not a share of the memory; use a number from 0 to below 1, such as 0.1")
    if batch_tokens % sequence:
        raise ValueError(
            f"a batch of {batch_tokens} tokens is not a whole number of sequences of {sequence} tokens; use a multiple"
        )

    layouts = cost.layouts(chips, model)
    even = (batch_tokens // sequence) % (layouts.data * layouts.fsdp) == 0
    uneven = int((~even).sum())
    if not even.any():
        raise ValueError(
            f"{batch_tokens // sequence} sequences cannot be shared evenly by {chips} chips in any mesh whose "
            f"tensor axis fits {model.heads} heads; use another batch or fewer chips"
        )
    layouts = cost.Layout(layouts.data[even], layouts.fsdp[even], layouts.tensor[even])
    priced = cost.step_cost(
        model, chip, layouts, batch_tokens, sequence, chips=chips, remat=remat, efficiency=efficiency
    )
    limit = chip.hbm_bytes * (1 - reserve)
    parts = {part: np.broadcast_to(getattr(priced, f"{part}_seconds"), layouts.data.shape) for part in PARTS}
    sent = {axis: np.broadcast_to(getattr(priced, f"{axis}_bytes"), layouts.data.shape) for axis in AXES}
    choices = [
        Choice(
            int(layouts.data[n]), int(layouts.fsdp[n]), int(layouts.tensor[n]),
            float(priced.seconds[n]), float(priced.serial_seconds[n]), str(priced.bound[n]),
            {part: float(values[n]) for part, values in parts.items()},
            {axis: float(values[n]) for axis, values in sent.items()},
            float(priced.memory.total_bytes[n]), float(priced.memory.state_bytes[n]),
            bool(priced.memory.total_bytes[n] <= limit), float(priced.mfu[n]),
        )
        for n in range(len(layouts.data))
    ]  # fmt: skip
    choices.sort(key=lambda c: (not c.fits, c.seconds if c.fits else c.total_bytes, c.serial_seconds))
    return Plan(model, chip, chips, batch_tokens, sequence, remat, limit, tuple(choices), uneven)


PARTS = ("compute", "hbm", *AXES)


# --- Compared with a compiler ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """A choice, and the program that a compiler made for it.

    Attributes:
      choice: the `Choice`.
      program: the `shardlab.pods.PodProgram`.
    """

    choice: Choice
    program: object

    @property
    def sent_bytes(self):
        """Bytes that a chip sends, as compiled; None if only the run decides."""
        return self.program.sent()

    @property
    def ratios(self):
        """Compiled over predicted, of all bytes sent and of the memory; None where one is unknown."""
        predicted = sum(self.choice.sent_bytes.values())
        sent = self.sent_bytes / predicted if predicted and self.sent_bytes is not None else None
        memory = self.program.peak_bytes
        return {"sent": sent, "memory": memory / self.choice.total_bytes if memory else None}

    def __str__(self):
        choice, ratios = self.choice, self.ratios
        mesh = f"{choice.data} x {choice.fsdp} x {choice.tensor}"
        if self.program.fits is False:
            return f"{mesh}: does not fit: {self.program.message.splitlines()[0][:200]}"
        predicted = sum(choice.sent_bytes.values())
        said = [
            f"{what} {compiled / 1e9:.2f} GB compiled, {expected / 1e9:.2f} GB predicted ({ratio:.2f} times)"
            for what, compiled, expected, ratio in (
                ("sends", self.sent_bytes, predicted, ratios["sent"]),
                ("holds", self.program.peak_bytes, choice.total_bytes, ratios["memory"]),
            )
            if ratio is not None
        ]
        return f"{mesh}: {'; '.join(said)}; {self.program.source}, {self.program.seconds:.0f} s"


def verify(made, best=3, **options):
    """Compile the training step of the best choices for the chips of a plan, without the chips.

    Args:
      made: a `Plan`.
      best: how many choices.
      **options: for `shardlab.pods.Pod.compile`, such as `cache=False`.

    Yields:
      A `Verdict` for each, as soon as it is compiled: half a minute or more for large models.

    Raises:
      ValueError: there is no such pod, such as 7 chips in a torus.
      shardlab.pods.NoCompiler: the compiler for these chips is not installed.
    """
    from shardlab.pods import Pod

    pod = Pod(pod_name(made.chip, made.chips))

    for choice in made.choices[:best]:
        mesh = pod.mesh((choice.data, choice.fsdp, choice.tensor), AXES, split=not pod.is_gpu)
        step, arguments = training_step(made.model, mesh, made.batch_tokens // made.sequence, made.sequence, made.remat)
        name = f"{made.model.name or 'model'}-{choice.data}x{choice.fsdp}x{choice.tensor}"
        yield Verdict(choice, pod.compile(step, *arguments, name=name, donate_argnums=0, **options))


def pod_name(chip, chips):
    """The name of the most cubic slice with a number of chips, as `shardlab.pods.Pod` takes it: "v5p:8x8x8" for 512.

    Args:
      chip: a `shardlab.cost.Chip`, or the name of a known one.
      chips: how many.

    Raises:
      ValueError: no slice has that many.
    """
    chip = cost.chip(chip)
    if not chip.torus:
        each = min(chips, chip.node_chips)
        if chips % each:
            raise ValueError(f"{chips} {chip.name} do not fill nodes of {each}; use a multiple of {each}")
        return f"{chip.name.lower()}:{chips // each}x{each}"
    sizes = [n for n in range(1, max(chip.torus) + 1) if n in (1, 2) or n % 4 == 0]
    shapes = [
        shape
        for shape in product(sizes, repeat=len(chip.torus))
        if reduce(int.__mul__, shape) == chips
        and list(shape) == sorted(shape)
        and all(size <= most for size, most in zip(shape, sorted(chip.torus), strict=True))
    ]
    if not shapes:
        largest = " x ".join(map(str, chip.torus))
        raise ValueError(
            f"no slice of {chip.name} has {chips} chips; use a product of 1, 2 and multiples of 4 within {largest}"
        )
    return f"{chip.name}:{'x'.join(map(str, min(shapes, key=sum)))}"


def training_step(model, mesh, sequences, sequence, remat="block"):
    """A decoder's training step with Adam, and abstract arguments for it, sharded over a mesh of data, fsdp and tensor.

    Args:
      model: a `shardlab.cost.Model` with gated MLP and untied embedding.
      mesh: a mesh with the axes "data", "fsdp" and "tensor".
      sequences: how many are in the batch.
      sequence: tokens of each.
      remat: "none" or "block": whether the backward pass rematerialises each layer.

    Returns:
      (the function, its arguments as `jax.ShapeDtypeStruct`s): for `jax.jit(function).lower(*arguments)`.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    if remat not in ("none", "block") or not model.gated or model.tied:
        raise ValueError(f"only gated, untied models with remat none or block are compiled here, not {model}, {remat}")
    m, batch = model, ("data", "fsdp")
    queries, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
    shapes = {
        "embed": ((m.vocab, m.d_model), P("tensor", "fsdp")),
        "out": ((m.d_model, m.vocab), P("fsdp", "tensor")),
        "norm": ((m.d_model,), P()),
        "norms": ((m.layers, 2, m.d_model), P()),
        "q": ((m.layers, m.d_model, queries), P(None, "fsdp", "tensor")),
        "kv": ((m.layers, 2, m.d_model, keys), P(None, None, "fsdp", "tensor")),
        "o": ((m.layers, queries, m.d_model), P(None, "tensor", "fsdp")),
        "up": ((m.layers, 2, m.d_model, m.d_ff), P(None, None, "fsdp", "tensor")),
        "down": ((m.layers, m.d_ff, m.d_model), P(None, "tensor", "fsdp")),
    }
    heads_axis = "tensor" if m.kv_heads % mesh.shape["tensor"] == 0 else None
    if not heads_axis:  # several chips share a head: keys and values are replicated over tensor
        shapes["kv"] = (shapes["kv"][0], P(None, None, "fsdp", None))

    def placed(*spec):
        return NamedSharding(mesh, P(*spec))

    # Within attention and the MLP sequences are not sharded; between them they are sharded over tensor too, which is
    # Megatron's sequence parallelism. `scattered(gathered(y))` is for the backward pass, which then gathers the
    # cotangent before a product uses it.
    gathered = partial(lax.with_sharding_constraint, shardings=placed(batch))
    scattered = partial(lax.with_sharding_constraint, shardings=placed(batch, "tensor"))

    def norm(x, scale):
        x = x.astype(jnp.float32)
        return (x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)).astype(jnp.bfloat16) * scale

    block = next(n for n in range(min(sequence, 512), 0, -1) if sequence % n == 0)

    def attention(x, w):
        groups = m.heads // m.kv_heads
        q = (x @ w["q"]).reshape(sequences, sequence // block, block, m.kv_heads, groups, m.head_dim)
        k, v = ((x @ w["kv"][n]).reshape(sequences, sequence, m.kv_heads, m.head_dim) for n in (0, 1))
        # Each chip has full sequences and some of the heads, so attention itself sends nothing.
        q = lax.with_sharding_constraint(q, placed(batch, None, None, heads_axis))
        k, v = (lax.with_sharding_constraint(array, placed(batch, None, heads_axis)) for array in (k, v))

        @jax.checkpoint
        def attend(start, q):  # a block of queries at a time, so that never all scores are held at once
            scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k, preferred_element_type=jnp.float32) * m.head_dim**-0.5
            seen = jnp.arange(sequence) <= start + jnp.arange(block)[:, None]
            weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1).astype(jnp.bfloat16)
            return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v)

        starts = jnp.arange(0, sequence, block)
        result = lax.map(lambda pair: attend(*pair), (starts, jnp.moveaxis(q, 1, 0)))
        return jnp.moveaxis(result, 0, 1).reshape(sequences, sequence, queries) @ w["o"]

    def layer(x, w):
        x = x + scattered(gathered(attention(gathered(norm(x, w["norms"][0])), w)))
        inner = gathered(norm(x, w["norms"][1]))
        gate, wide = inner @ w["up"][0], inner @ w["up"][1]
        return x + scattered(gathered((jax.nn.silu(gate) * wide) @ w["down"])), None

    layer = jax.checkpoint(layer) if remat == "block" else layer
    stacked = ("norms", "q", "kv", "o", "up", "down")

    def loss(w, tokens):
        x = scattered(w["embed"][tokens])
        x, _ = lax.scan(layer, x, {name: w[name] for name in stacked})
        logits = (gathered(norm(x, w["norm"])) @ w["out"]).astype(jnp.float32)
        logits = lax.with_sharding_constraint(logits, placed(batch, None, "tensor"))
        targets = jnp.roll(tokens, -1, 1)
        picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    def step(state, tokens):
        gradients = jax.grad(loss)(state["params"], tokens)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(jnp.float32), state["first"], gradients)
        second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g.astype(jnp.float32) ** 2, state["second"], gradients)
        new = jax.tree.map(
            lambda w, m, v: (w - 1e-4 * m / (jnp.sqrt(v) + 1e-8)).astype(w.dtype), state["params"], first, second
        )
        return {"params": new, "first": first, "second": second}

    def abstract(dtype):
        return {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=placed(*spec)) for name, (shape, spec) in shapes.items()
        }

    state = {"params": abstract(jnp.bfloat16), "first": abstract(jnp.float32), "second": abstract(jnp.float32)}
    tokens = jax.ShapeDtypeStruct((sequences, sequence), jnp.int32, sharding=placed(batch, None))
    return step, (state, tokens)


# --- The command line -------------------------------------------------------------------------------------


def main(arguments=None):
    """Print a plan; returns the exit status: 0, 1 if no mesh fits, 2 for bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m shardlab.plan", description=__doc__.split("\n\n")[0])
    sizes = ",".join(f"{size}=N" for size in SIZES)
    parser.add_argument("model", help=f"{', '.join(cost.MODELS)}, or sizes: {sizes}")
    parser.add_argument("chip", help=", ".join(cost.CHIPS))
    parser.add_argument("chips", type=int, help="how many chips")
    parser.add_argument("--batch-tokens", type=int, default=4 * 2**20, metavar="N", help="tokens in a batch (4194304)")
    parser.add_argument("--sequence", type=int, default=4096, metavar="N", help="tokens of a sequence (4096)")
    parser.add_argument(
        "--remat", default="block", choices=cost.REMAT, help="what the backward pass rematerialises (block)"
    )
    parser.add_argument(
        "--reserve", type=float, default=0.1, metavar="SHARE", help="share of memory kept for the compiler (0.1)"
    )
    parser.add_argument("--efficiency", type=float, default=1.0, metavar="SHARE", help="share of the peak FLOP/s (1)")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows to show (10)")
    parser.add_argument("--plot", metavar="FILE", help="draw the plan too, into a file such as plan.svg")
    parser.add_argument(
        "--verify", type=int, default=0, metavar="N", help="compile the best N meshes, and compare bytes"
    )
    options = parser.parse_args(arguments)
    try:
        made = plan(
            _model(options.model), options.chip, options.chips, options.batch_tokens, sequence=options.sequence,
            remat=options.remat, reserve=options.reserve, efficiency=options.efficiency,
        )  # fmt: skip
        if options.top < 1 or options.verify < 0:
            raise ValueError(f"--top {options.top} --verify {options.verify}: use numbers of at least 1 and 0")
    except ValueError as error:
        parser.error(str(error))
    fitting, model = len(made.fitting), made.model
    print(f"{model.name or 'model'}: {model.parameters / 1e9:.1f} billion parameters, on {made.chips} {made.chip.name}")
    print(f"{fitting} of {len(made.choices)} meshes fit in {made.memory_bytes / 1e9:.1f} GB", end="")
    sequences = made.batch_tokens // made.sequence
    print(f"; {made.uneven} more cannot share {sequences} sequences evenly" if made.uneven else "")
    print(f"\n{made.table(options.top)}")
    if not fitting:
        least = made.choices[0]
        remedies = "Use more chips, or gradient accumulation over smaller micro-batches" + (
            ", or --remat block" * (made.remat != "block")
        )
        print(
            f"\nNo mesh fits. The smallest needs {least.total_bytes / 1e9:.1f} GB on each chip, of which "
            f"{least.state_bytes / 1e9:.1f} GB are parameters, gradients and moments. {remedies}."
        )
    if options.plot:
        made.plot(options.plot, options.top)
        print(f"\nthe plot is in {options.plot}")
    if options.verify and fitting:
        from shardlab.pods import NoCompiler

        print("\ncompared with the compiler:")
        try:
            for verdict in verify(made, min(options.verify, fitting)):
                print(verdict, flush=True)
        except (NoCompiler, ValueError) as error:
            print(f"cannot compile: {error}", file=sys.stderr)
            return 1
    return 0 if fitting else 1


SIZES = ("layers", "d_model", "d_ff", "heads", "kv_heads", "head_dim", "vocab")


def _model(text):
    """A known model's name, or sizes such as layers=32,d_model=4096,..."""
    if "=" not in text:
        return text
    pairs = [pair.partition("=") for pair in text.split(",")]
    sizes = {name.strip(): value.strip() for name, _, value in pairs}
    if sorted(sizes) != sorted(SIZES):
        wrong = sorted(set(sizes) ^ set(SIZES))
        raise ValueError(f"a model has the sizes {', '.join(SIZES)}; missing or unknown: {', '.join(wrong)}")
    for name, value in sizes.items():
        if not value.isdigit():
            raise ValueError(f"{name} is {value!r}; use a whole number of at least 1")
    return cost.Model(**{name: int(value) for name, value in sizes.items()})


if __name__ == "__main__":
    sys.exit(main())
