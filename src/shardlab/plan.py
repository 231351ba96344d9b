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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from shardlab import cost, hardware, models
from shardlab._tables import aligned
from shardlab.cost import AXES, PARTS

__all__ = ["Choice", "Plan", "Verdict", "plan", "pod_name", "verify"]


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
    parts: dict[str, float]
    sent_bytes: dict[str, float]
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

    model: models.Model
    chip: hardware.Chip
    chips: int
    batch_tokens: int
    sequence: int
    remat: str
    memory_bytes: float
    choices: tuple[Choice, ...]
    uneven: int

    @property
    def fitting(self) -> tuple[Choice, ...]:
        """The choices that fit."""
        return tuple(choice for choice in self.choices if choice.fits)

    def table(self, most: int = 10) -> str:
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
        return aligned([head, *rows], ">")

    def report(self, most: int = 10) -> str:
        """The table with a heading, and, where no mesh fits, what the smallest needs and what may help."""
        fitting, sequences = len(self.fitting), self.batch_tokens // self.sequence
        uneven = f"; {self.uneven} more cannot share {sequences} sequences evenly" if self.uneven else ""
        said = (
            f"{self.model.name or 'model'}: {self.model.parameters / 1e9:.1f} billion parameters, on {self.chips} "
            f"{self.chip.name}\n{fitting} of {len(self.choices)} meshes fit in {self.memory_bytes / 1e9:.1f} GB{uneven}"
            f"\n\n{self.table(most)}"
        )
        if fitting:
            return said
        least = self.choices[0]
        remedies = "Use more chips, or gradient accumulation over smaller micro-batches" + (
            ", or --remat block" * (self.remat != "block")
        )
        return (
            f"{said}\n\nNo mesh fits. The smallest needs {least.total_bytes / 1e9:.1f} GB on each chip, of which "
            f"{least.state_bytes / 1e9:.1f} GB are parameters, gradients and moments. {remedies}."
        )

    def plot(self, file: str, most: int = 10) -> None:
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


def plan(
    model: str | models.Model,
    chip: str | hardware.Chip,
    chips: int,
    batch_tokens: int,
    *,
    sequence: int = 4096,
    remat: str = "block",
    reserve: float = 0.1,
    efficiency: float = 1.0,
) -> Plan:
    """Predict the cost of every mesh for a model on a number of chips.

    `plan("llama-3-70b", "v5p", 512, 4 * 2**20).choices[0]` is the fastest mesh that fits.

    >>> made = plan("llama-3-70b", "v5p", 512, 4 * 2**20)
    >>> print(made.table(3))
    data  fsdp  tensor  step ms  if serial  bound by  memory GB  MFU
       1   512       1   10,652     11,435   compute       22.7  75%
       2   256       1   10,652     11,827   compute       24.4  75%
       4   128       1   10,652     11,828   compute       27.7  75%

    Args:
      model: a `shardlab.models.Model`, or the name of a known one.
      chip: a `shardlab.hardware.Chip`, or the name of a known one.
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
    model, chip = models.model(model), hardware.chip(chip)
    for name, value in (("chips", chips), ("batch_tokens", batch_tokens), ("sequence", sequence)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} is {value!r}; use a whole number of at least 1")
    if not 0 <= reserve < 1:
        raise ValueError(f"reserve={reserve} is not a share of the memory; use a number from 0 to below 1, such as 0.1")
    if batch_tokens % sequence:
        raise ValueError(
            f"a batch of {batch_tokens} tokens is not a whole number of sequences of {sequence} tokens; use a multiple"
        )

    every = cost.parallelisms(chips, model)
    even = (batch_tokens // sequence) % (every.data * every.fsdp) == 0
    uneven = int((~even).sum())
    if not even.any():
        raise ValueError(
            f"{batch_tokens // sequence} sequences cannot be shared evenly by {chips} chips in any mesh whose "
            f"tensor axis fits {model.heads} heads; use another batch or fewer chips"
        )
    data, fsdp, tensor = (getattr(every, axis)[even] for axis in AXES)
    priced = cost.step_cost(
        model, chip, cost.Parallelism(data, fsdp, tensor), batch_tokens, sequence, chips=chips, remat=remat,
        efficiency=efficiency,
    )  # fmt: skip
    limit = chip.hbm_bytes * (1 - reserve)
    parts = {part: np.broadcast_to(getattr(priced, f"{part}_seconds"), data.shape) for part in PARTS}
    sent = {axis: np.broadcast_to(getattr(priced, f"{axis}_bytes"), data.shape) for axis in AXES}
    choices = [
        Choice(
            int(data[n]), int(fsdp[n]), int(tensor[n]),
            float(priced.seconds[n]), float(priced.serial_seconds[n]), str(priced.bound[n]),
            {part: float(values[n]) for part, values in parts.items()},
            {axis: float(values[n]) for axis, values in sent.items()},
            float(priced.memory.total_bytes[n]), float(priced.memory.state_bytes[n]),
            bool(priced.memory.total_bytes[n] <= limit), float(priced.mfu[n]),
        )
        for n in range(len(data))
    ]  # fmt: skip
    choices.sort(key=lambda c: (not c.fits, c.seconds if c.fits else c.total_bytes, c.serial_seconds))
    return Plan(model, chip, chips, batch_tokens, sequence, remat, limit, tuple(choices), uneven)


# --- Compared with a compiler ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """A choice, and the program that a compiler made for it.

    Attributes:
      choice: the `Choice`.
      program: the `shardlab.pods.PodProgram`.
    """

    choice: Choice
    program: Any

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that a chip sends, as compiled; None if only the run decides."""
        return self.program.sent()

    @property
    def ratios(self) -> dict[str, float | None]:
        """Compiled over predicted, of all bytes sent and of the memory; None where one is unknown."""
        predicted = sum(self.choice.sent_bytes.values())
        sent = self.sent_bytes / predicted if predicted and self.sent_bytes is not None else None
        memory = self.program.peak_bytes
        return {"sent": sent, "memory": memory / self.choice.total_bytes if memory else None}

    def __str__(self) -> str:
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


def verify(made: Plan, best: int = 3, **options: Any) -> Iterator[Verdict]:
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
    from shardlab.training import training_step

    pod = Pod(pod_name(made.chip, made.chips))

    for choice in made.choices[:best]:
        mesh = pod.mesh((choice.data, choice.fsdp, choice.tensor), AXES, split=not pod.is_gpu)
        step, arguments = training_step(made.model, mesh, made.batch_tokens // made.sequence, made.sequence, made.remat)
        name = f"{made.model.name or 'model'}-{choice.data}x{choice.fsdp}x{choice.tensor}"
        yield Verdict(choice, pod.compile(step, *arguments, name=name, donate_argnums=0, **options))


def pod_name(chip: str | hardware.Chip, chips: int) -> str:
    """The name of the most cubic slice with a number of chips, as `shardlab.pods.Pod` takes it: "v5p:8x8x8" for 512.

    >>> pod_name("v5p", 512), pod_name("H100", 64)
    ('v5p:8x8x8', 'h100:8x8')

    Args:
      chip: a `shardlab.hardware.Chip`, or the name of a known one.
      chips: how many.

    Raises:
      ValueError: no slice has that many.
    """
    chip = hardware.chip(chip)
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


# --- The command line -------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Print a plan; returns the exit status: 0, 1 if no mesh fits, 2 for bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m shardlab.plan", description=__doc__.split("\n\n")[0])
    sizes = ",".join(f"{size}=N" for size in models.SIZES)
    parser.add_argument("model", help=f"{', '.join(models.MODELS)}, or sizes: {sizes}")
    parser.add_argument("chip", help=", ".join(hardware.CHIPS))
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
            models.parse(options.model), options.chip, options.chips, options.batch_tokens, sequence=options.sequence,
            remat=options.remat, reserve=options.reserve, efficiency=options.efficiency,
        )  # fmt: skip
        if options.top < 1 or options.verify < 0:
            raise ValueError(f"--top {options.top} --verify {options.verify}: use numbers of at least 1 and 0")
    except ValueError as error:
        parser.error(str(error))
    print(made.report(options.top))
    fitting = len(made.fitting)
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


if __name__ == "__main__":
    sys.exit(main())
