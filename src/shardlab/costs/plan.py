"""Plan a training run: which meshes fit, and which is fastest, for a model, a kind of chip and a
number of chips.

    shardlab plan llama-3-70b v5p 512 --batch-tokens 4M
    shardlab plan llama-3-70b v5p 512 --batch-tokens 4M --verify 3 --plot plan.svg

`shardlab.costs` predicts the cost of every mesh, each with the number of micro-batches that is
fastest. The meshes have data, fsdp and tensor axes; on several nodes of GPUs pipeline and context
axes too, for long sequences a context axis, and for a mixture of experts an expert axis. A context
axis must be faster by more than one per cent than as much fsdp, which shards the state as well. The
meshes are ranked by the time to expect, of which `shardlab.costs.FITTED` says what is fitted, and
how far off it may be. `--verify` compiles the best meshes with the chips' own compiler
(`shardlab.pods`), without the chips, and compares bytes.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape

import numpy as np

from shardlab import costs
from shardlab._arguments import MOST, one_of, short, whole
from shardlab._tables import aligned, html_table
from shardlab.costs import AXES, MESH_AXES, PARTS
from shardlab.costs.bands import band_of, band_words, kind_of_plan
from shardlab.costs.published import RUNS
from shardlab.costs.setting import DISPATCHES, OVERLAPS, Dtypes, TrainingSetting
from shardlab.costs.steps.remat import remat_of
from shardlab.costs.steps.step import cost_on
from shardlab.machines import hardware, models

__all__ = ["Choice", "Plan", "plan", "whole_number"]

MOST_CHIPS = 2**17  # more than any machine whose runs are published
# groups of a pipeline and chips of a ring; longer ones are not tried
MOST_PIPELINE, MOST_CONTEXT = 64, 16
# of micro-batches, and of sequences in one and in those that are served
POWERS = tuple(2**n for n in range(13))
STAGES = (1, 2, 4, 8)  # on each chip of a pipeline; more than one are an interleaved schedule
# that a plan may state
DTYPES = ("parameters", "gradients", "moments", "master", "activations", "logits")
# a step must take this share of the time, or less, for which it interleaves or keeps what it
# gathers
FASTER = 0.99

# of a mesh's axes, the outermost first
ORDER = ("data", "pipeline", "fsdp", "expert", "context", "tensor")


@dataclass(frozen=True)
class Choice:
    """A mesh, and what a step costs on it.

    Attributes:
      data, fsdp, tensor, pipeline, context, expert: sizes of the mesh's axes.
      microbatches: into how many the batch of a data group is split.
      stages: stages on each chip of a pipeline; with more than one its schedule is interleaved.
      gathers: how often fsdp gathers a parameter: 2, in both passes of each micro-batch; or 1, once
        in a step.
      expected_seconds: the time to expect for a step; `exposed_seconds`: the communication in it
        that nothing hides.
      seconds: at least, with everything overlapped; `serial_seconds`: with nothing overlapped.
      bound: the part that takes longest: "compute", "hbm" (memory-bound), "host" (its link, with
        offloading) or an axis (communication-bound along it).
      bubble: the time that a pipeline waits, as a share of the time that it works.
      parts: seconds of each of these parts.
      sent_bytes: what a chip sends in a step along each axis of the mesh, as
        `shardlab.programs.collectives` counts.
      total_bytes: bytes of memory on each chip; `state_bytes`: those of parameters, gradients and
        moments.
      host_bytes: bytes of the host's memory for each of its chips, with offloading; they are not
        part of `fits`, as hosts of the same chip differ.
      fits: whether that is no more than the chip's memory, less the reserve.
      mfu: useful FLOPs as a share of the peak, in the expected time.
      flops: FLOPs of matrix products on a chip in a step, with those of rematerialisation.
    """

    data: int
    fsdp: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    microbatches: int
    stages: int
    gathers: int
    expected_seconds: float
    exposed_seconds: float
    seconds: float
    serial_seconds: float
    bound: str
    bubble: float
    parts: dict[str, float]
    sent_bytes: dict[str, float]
    total_bytes: float
    state_bytes: float
    host_bytes: float
    fits: bool
    mfu: float
    flops: float

    @property
    def parallelism(self) -> costs.Parallelism:
        """The same as a `shardlab.costs.Parallelism`."""
        axes = (getattr(self, axis) for axis in MESH_AXES)
        return costs.Parallelism(*axes, microbatches=self.microbatches, stages=self.stages)

    @property
    def can_compile(self) -> bool:
        """Whether the step of `shardlab.networks.training`, which `verify` compiles, can compute it
        in this way.
        """
        return self.stages == 1 and self.gathers == 2 and 1 in (self.pipeline, self.expert)

    @property
    def mesh(self) -> dict[str, int]:
        """The axes of more than one chip with their sizes, the outermost first; {"data": 1} on one
        chip.
        """
        return {axis: getattr(self, axis) for axis in ORDER if getattr(self, axis) > 1} or {
            "data": 1
        }

    @property
    def code(self) -> str:
        """The call that makes this mesh, ready to copy where `jax.make_mesh` makes it;
        `Plan.report` says where not.
        """
        sizes, names = tuple(self.mesh.values()), tuple(self.mesh)
        return (
            f"jax.make_mesh({sizes}, {names}, axis_types=(jax.sharding.AxisType.Auto,) * "
            f"{len(names)})"
        )

    def __str__(self) -> str:
        words = " x ".join(f"{axis} {size}" for axis, size in self.mesh.items())
        words += f", {self.microbatches} micro-batches" if self.microbatches > 1 else ""
        words += f", {self.stages} stages on each chip" if self.stages > 1 else ""
        return words + (", gathered once" if self.gathers == 1 else "")


@dataclass(frozen=True)
class Plan:
    """All meshes for a model on a machine: those that fit first, the fastest first.

    Expected times are compared in steps of one per cent; of meshes in the same step, those with
    fewer axes come first.

    Attributes:
      model, machine, batch_tokens, sequence, remat, products, dtypes, overlap, dispatch, lora,
        adapted: as asked.
      choices: a tuple of `Choice`.
      uneven: how many meshes were left out because they cannot share the sequences of a batch
        evenly.
      remedies: if nothing fits, the smallest changes that do, each as (what, the best `Choice` with
        it).
    """

    model: models.Model
    machine: hardware.Machine
    batch_tokens: int
    sequence: int
    remat: str | costs.Remat
    choices: tuple[Choice, ...]
    uneven: int
    remedies: tuple[tuple[str, Choice], ...] = ()
    products: str = "bf16"
    dtypes: Mapping[str, str | None] = field(default_factory=dict)
    overlap: tuple[str, ...] = ()
    dispatch: str = "expert"
    lora: int = 0
    adapted: str = "all"

    @property
    def chip(self) -> hardware.Chip:
        """The chip of the machine."""
        return self.machine.chip

    @property
    def chips(self) -> int:
        """How many chips the machine has."""
        return self.machine.chips

    @property
    def fitting(self) -> tuple[Choice, ...]:
        """The choices that fit."""
        return tuple(choice for choice in self.choices if choice.fits)

    @property
    def kind(self) -> str:
        """The kind of plan that the first choice is, one of
        `shardlab.costs.bands.KINDS_OF_PLANS`.
        """
        return kind_of_plan(
            self.model,
            self.chip,
            self.choices[0].mesh,
            self.sequence,
            self.products,
            self.lora,
            self.dtypes.get("parameters"),
        )

    def table(self, most: int = 10) -> str:
        """The first choices as a table in text."""
        return aligned(self._rows(most), ">")

    def _repr_html_(self):
        before, _, after = self.report(10).partition(f"{self.table(10)}\n")
        head, *rows = self._rows(10)
        paragraphs = [
            "".join(f"<p>{escape(line)}</p>" for line in text.splitlines() if line.strip())
            for text in (before, after)
        ]
        return paragraphs[0] + html_table(head, rows) + paragraphs[1]

    def _rows(self, most):
        """The headings of the table, and its first rows."""
        shown = self.choices[:most]
        axes = [
            axis
            for axis in MESH_AXES
            if axis in AXES or any(getattr(choice, axis) > 1 for choice in shown)
        ]
        for column, plain in (("microbatches", 1), ("stages", 1), ("gathers", 2)):
            axes += [column] * any(getattr(choice, column) != plain for choice in shown)
        short = {"microbatches": "micro"}
        head = [
            *(short.get(axis, axis) for axis in axes),
            "expected ms",
            "at least",
            "serial",
            "exposed",
            "bound by",
            "GB",
        ]
        offloads = any(choice.host_bytes for choice in shown)
        head += ["host GB"] * offloads + ["MFU"]
        rows = [
            (
                *(str(getattr(choice, axis)) for axis in axes),
                f"{choice.expected_seconds * 1e3:,.0f}",
                f"{choice.seconds * 1e3:,.0f}",
                f"{choice.serial_seconds * 1e3:,.0f}",
                f"{choice.exposed_seconds / choice.expected_seconds:.0%}",
                choice.bound,
                f"{choice.total_bytes / 1e9:.1f}" + ("" if choice.fits else " too much"),
                *[f"{choice.host_bytes / 1e9:.1f}"] * offloads,
                f"{choice.mfu:.0%}",
            )
            for choice in shown
        ]
        return [head, *rows]

    def report(self, most: int = 10) -> str:
        """The table with a heading, how far to trust it, and, where no mesh fits, what the smallest
        needs and helps.
        """
        fitting, sequences = len(self.fitting), self.batch_tokens // self.sequence
        uneven = (
            f"; {self.uneven} more cannot share {sequences} sequences evenly" if self.uneven else ""
        )
        summary = (
            f"{self.model.name or 'model'}: {self.model.parameters / 1e9:.1f} billion "
            f"parameters, on {self.chips} {self.chip.name} ({self.machine.name})\n{fitting} "
            f"of {len(self.choices)} meshes fit in {self.machine.usable_bytes / 1e9:.1f} "
            f"GB{uneven}\n\n{self.table(most)}"
        )
        if fitting:
            micro = "micro: micro-batches.\n" if "micro" in self._rows(most)[0] else ""
            return (
                f"{summary}\n\n{micro}{band_words(self.chip, self.kind)}{self._beyond()}\n"
                f"The first mesh: {self.choices[0].code}{self._other_call()}"
            )
        least = self.choices[0]
        helps = "".join(
            (
                f"\n  {what}: {choice.total_bytes / 1e9:.1f} GB, "
                f"{choice.expected_seconds * 1e3:,.0f} ms on {choice}"
            )
            for what, choice in self.remedies
        )
        nothing = "Neither sixteen times the chips nor more rematerialisation fits."
        return (
            f"{summary}\n\nNo mesh fits. The smallest needs {least.total_bytes / 1e9:.1f} GB "
            f"on each chip, of which {least.state_bytes / 1e9:.1f} GB are parameters, "
            "gradients and moments. "
        ) + (f"What would fit:{helps}" if helps else nothing)

    def _beyond(self) -> str:
        """What of the first mesh no published run on such chips tests; nothing if they test it
        all.
        """
        kind, first, missing = "TPUs" if self.chip.torus else "GPUs", self.choices[0], []
        runs = [
            run for run in RUNS.values() if bool(run.machine.chip.torus) == bool(self.chip.torus)
        ]
        longest = {
            axis: max(int(getattr(run.parallelism, axis)) for run in runs) for axis in MESH_AXES
        }
        for axis, size in first.mesh.items():
            if size > longest[axis]:
                missing.append(
                    f"{axis} over {size:,}" + f" (at most {longest[axis]:,})" * (longest[axis] > 1)
                )
        if self.sequence > (most := max(run.sequence for run in runs)):
            missing.append(f"sequences of {self.sequence:,} tokens (at most {most:,})")
        if self.products not in {run.how.get("products", "bf16") for run in runs}:
            missing.append(f"{self.products} products")
        if not any(run.machine.chip.name.startswith(self.chip.name) for run in runs):
            missing.append(f"the {self.chip.name}")
        return f"\nNo published run on {kind} tests {'; '.join(missing)}." * bool(missing)

    def _other_call(self) -> str:
        """What makes the first mesh instead, on a TPU where `jax.make_mesh` refuses it; else
        nothing.
        """
        if not self.chip.torus:
            return ""
        if hardware.COMPILED_TPUS.get(self.chip.name, (0, 1))[1] == 2:
            return (
                f"\nJAX has two devices for each {self.chip.name}; this mesh takes half of them, "
                "so double an axis."
            )
        if self.machine.slices > 1:
            return (
                "\njax.make_mesh refuses several slices; use "
                "jax.experimental.mesh_utils.create_hybrid_device_mesh."
            )
        if self.chip.name == "v5e" or _follows(
            tuple(self.choices[0].mesh.values()), self.machine.shape
        ):
            # of all kinds of TPU, jax.make_mesh lets axes share an axis of the torus only on v5e
            return ""
        return (
            "\nIts axes share an axis of the torus, which jax.make_mesh refuses on this chip: "
            "make a jax.sharding.Mesh of\njax.experimental.mesh_utils.create_device_mesh(..., "
            "allow_split_physical_axes=True)."
        )

    def to_json(self, most: int | None = None) -> str:
        """All of it as JSON, or only the first choices."""
        about = {
            "model": asdict(self.model), "chip": self.chip.name, "machine": self.machine.name,
            "chips": self.chips,
            "batch_tokens": self.batch_tokens, "sequence": self.sequence,
            "remat": getattr(self.remat, "label", self.remat), "dtypes": dict(self.dtypes),
            "products": self.products, "overlap": self.overlap, "dispatch": self.dispatch,
            "lora": self.lora, "adapted": self.adapted,
            "usable_bytes": self.machine.usable_bytes, "meshes": len(self.choices),
            "fitting": len(self.fitting),
            "uneven": self.uneven, "kind": self.kind,
            "band": asdict(band) if (band := band_of(self.chip, self.kind)) else None,
            "choices": [asdict(row) | {"code": row.code} for row in self.choices[:most]],
            "remedies": [{"change": what, "choice": asdict(choice)} for what,
                choice in self.remedies],
        }  # fmt: skip
        return json.dumps(about, indent=1)

    def plot(self, file: str, most: int = 10) -> None:
        """Draw the time of each part of a step, for the first choices, as bars into an image
        file.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise ImportError("the plot needs matplotlib: pip install matplotlib") from None
        shown = self.choices[:most]
        parts = [part for part in PARTS if any(choice.parts[part] for choice in shown)]
        figure, axes = plt.subplots(figsize=(8, 1 + 0.45 * len(shown)), layout="constrained")
        width = 0.8 / len(parts)
        for n, part in enumerate(parts):
            heights = [choice.parts[part] * 1e3 for choice in shown]
            places = [place + width * (n - (len(parts) - 1) / 2) for place in range(len(shown))]
            axes.barh(places, heights, height=width, label=part)
        axes.plot(
            [choice.expected_seconds * 1e3 for choice in shown],
            range(len(shown)),
            "|k",
            ms=14,
            label="expected step",
        )
        axes.set_yticks(range(len(shown)), [str(choice) for choice in shown])
        axes.invert_yaxis()
        axes.set(xlabel="ms in a step, without overlap")
        axes.legend(title=f"{self.model.name or 'model'} on {self.chips} {self.chip.name}")
        figure.savefig(file)
        plt.close(figure)


def plan(
    model: str | models.Model,
    chip: str | hardware.Chip | hardware.Machine,
    chips: int | None = None,
    batch_tokens: int = 4 * 2**20,
    *,
    slices: int | None = None,
    sequence: int = 4096,
    remat: str | costs.Remat = "block",
    reserve: float = 0.1,
    products: str = "bf16",
    axes: Sequence[str] | None = None,
    microbatches: int | None = None,
    stages: int | None = None,
    gathers: int | None = None,
    dtypes: Mapping[str, str | None] | None = None,
    overlap: Sequence[str] = (),
    dispatch: str = "expert",
    lora: int = 0,
    adapted: str = "all",
    nearest_batch: bool = False,
) -> Plan:
    """Predict the cost of every mesh for a model on a machine.

    `plan("llama-3-70b", "v5p", 512).choices[0]` is the mesh that fits with the least time to
    expect.

    >>> made = plan("llama-3-70b", "v5p", 512, 4 * 2**20)
    >>> made.choices[0].mesh, made.choices[0].bound
    ({'fsdp': 512}, 'compute')

    Args:
      model: a `shardlab.models.Model`, or the name of a known one.
      chip: a `shardlab.hardware.Machine`; or a `Chip`, or the name of a known one.
      chips: how many, in all slices or nodes together.
      batch_tokens: tokens of a batch, a multiple of `sequence`.
      slices: over how many slices of a TPU the chips are spread; by default one.
      sequence: tokens of a sequence.
      remat: what the backward pass rematerialises: the name of one of `shardlab.costs.REMAT` or
        `POLICIES`, those of MaxText and Megatron-LM; or a `Remat`.
      reserve: the share of a chip's memory that is left for the compiler's buffers.
      products: dtype of the matrix products of the layers, such as "fp8".
      axes: which axes to try, of `shardlab.costs.MESH_AXES`. By default data, fsdp and tensor; on
        several nodes of GPUs pipeline and context too; for sequences of 32,768 tokens or more
        context; for a mixture of experts expert. Of the default meshes, those are left out whose
        context axis is no faster than as much fsdp, by one per cent.
      microbatches: how many; by default for each mesh the number with which it fits and is fastest,
        of powers of two and of those that leave each a power of two of sequences.
      stages: stages on each chip of a pipeline; by default 1, 2, 4 or 8, whichever is faster by
        more than one per cent.
      gathers: how often fsdp gathers a parameter, as for `shardlab.costs.step_cost`; by default 2,
        in both passes of each micro-batch, or 1, once in a step, where that fits and is faster by
        more than one per cent.
      dtypes: of "parameters", "gradients", "moments", "master", "activations" and "logits", as for
        `shardlab.costs.step_cost`. By default a parameter takes 12 bytes with its gradient and
        moments; with float32 for "parameters" and "gradients" 16, as in MaxText.
      overlap, dispatch: what the framework does with collectives, as for
        `shardlab.costs.step_cost`.
      lora, adapted: the rank of adapters on a frozen model, and on which matrices they are, as for
        `shardlab.costs.step_cost`; 0 trains all parameters.
      nearest_batch: whether a batch that no mesh shares evenly is replaced by the nearest that one
        does.

    Returns:
      A `Plan`.

    Raises:
      ValueError: a number is out of range, a name is unknown, or there is no such machine; the
        message says what is allowed.
    """
    model = models.model(model)
    for name, value in (("chips", chips), ("batch_tokens", batch_tokens), ("sequence", sequence)):
        if name == "chips" and isinstance(chip, hardware.Machine) and value is None:
            continue
        _check_count(name, value)
    if (many := chip.chips if isinstance(chip, hardware.Machine) else chips) > MOST_CHIPS:
        raise ValueError(
            f"{many:,} chips are more than the planner tries; use at most {MOST_CHIPS:,}"
        )
    machine = hardware.machine(chip, chips, slices=slices, reserve=reserve)
    if batch_tokens % sequence:
        below = batch_tokens - batch_tokens % sequence
        near = f"{below} or {below + sequence}" if below else f"{sequence}"
        raise ValueError(
            f"a batch of {batch_tokens} tokens is not a whole number of sequences of "
            f"{sequence} tokens; use {near}"
        )
    for name, value in (("microbatches", microbatches), ("stages", stages)):
        if value is not None:
            _check_count(name, value)
    if gathers is not None and (isinstance(gathers, bool) or gathers not in (1, 2)):
        raise ValueError(f"gathers is {gathers!r}; use 2, or 1 to keep gathered parameters")
    remat_of(remat)
    machine.chip.peak(products)
    for axis in axes or ():
        one_of("axes", axis, MESH_AXES)
    dtypes = dict(dtypes or {})
    for name in dtypes:
        one_of("dtypes", name, DTYPES)
    if nearest_batch:
        near = _nearest_batch(
            model, machine, axes, batch_tokens // sequence, sequence, microbatches
        )
        batch_tokens = near * sequence or batch_tokens
    overlap = tuple(one_of("overlap", axis, OVERLAPS) for axis in overlap)
    one_of("dispatch", dispatch, DISPATCHES)
    setting = TrainingSetting(
        model,
        machine.chip,
        machine,
        batch_tokens,
        sequence,
        remat_of(remat),
        products=products,
        dtypes=Dtypes(**dtypes),
        dispatch=dispatch,
        overlap=overlap,
        lora=lora,
        adapted=adapted,
    )
    setting.check()
    search = _Search(axes, microbatches, stages, gathers)
    choices, uneven = _choices(setting, search)
    if not choices:
        raise ValueError(
            _uneven(model, machine, axes, batch_tokens // sequence, sequence, microbatches)
        )
    proposal = Plan(
        model,
        machine,
        batch_tokens,
        sequence,
        remat,
        choices,
        uneven,
        products=products,
        dtypes=dtypes,
        overlap=overlap,
        dispatch=dispatch,
        lora=lora,
        adapted=adapted,
    )
    if proposal.fitting:
        return proposal
    return replace(proposal, remedies=tuple(_remedies(proposal, setting, search)))


@dataclass(frozen=True)
class _Search:
    """Among which ways to compute a step `plan` chooses; None for all that it knows."""

    axes: Sequence[str] | None
    microbatches: int | None
    stages: int | None
    gathers: int | None


def _tried(model, machine, axes, sequence):
    """The axes that are asked for, or those that are tried by default."""
    if axes is not None:
        return axes
    several = not machine.chip.torus and machine.slices > 1
    axes = AXES + ("pipeline",) * several + ("context",) * (several or sequence >= costs.LONG)
    return axes + ("expert",) * (model.experts > 0)


def _check_count(name, value):
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} is {short(value)}; use a whole number of at least 1")
    whole(name, value)


def _uneven(model, machine, axes, sequences, sequence, microbatches):
    """Why there is no mesh at all, and what to change."""
    tried = _tried(model, machine, axes, sequence)
    every = _meshes(machine, model, tried, sequence)
    if not np.size(every.chips):
        missing = " or ".join(axis for axis in ("fsdp", "data") if axis not in tried)
        return (
            f"{machine.chips} chips form no mesh with only the axes {', '.join(tried)}; add "
            f"{missing}"
        )
    groups = every.groups * (microbatches or 1)
    enough = int((-(-sequences // groups) * groups).min())
    split = f" in {microbatches} micro-batches" if microbatches else ""
    only = (
        f" whose tensor axis fits {model.heads} heads"
        if axes is None
        else f" with only the axes {', '.join(tried)}"
    )
    change = ", other axes" * (axes is not None) + ", another number of micro-batches" * bool(
        microbatches
    )
    return (
        f"{sequences} sequences{split} cannot be shared evenly by {machine.chips} chips in "
        f"any mesh{only}; use {enough} sequences ({enough * sequence} tokens){change}, or "
        "fewer chips"
    )


def _nearest_batch(model, machine, axes, sequences, sequence, microbatches):
    """The number of sequences, nearest to one, that some mesh shares evenly; 0 if there is no
    mesh.
    """
    every = _meshes(machine, model, _tried(model, machine, axes, sequence), sequence)
    groups = np.unique(every.groups) * (microbatches or 1)
    near = np.maximum(np.rint(sequences / groups), 1) * groups
    return int(near[np.abs(near - sequences).argmin()]) if len(groups) else 0


def _choices(setting, search):
    """(the choices for a machine in their order, how many meshes cannot share the sequences
    evenly).
    """
    model, machine, sequence = setting.model, setting.machine, setting.sequence
    every = _meshes(machine, model, _tried(model, machine, search.axes, sequence), sequence)
    even = setting.batch_tokens // sequence % every.groups == 0
    uneven = int((~even).sum())
    if not even.any():
        return (), uneven
    every = costs.Parallelism(*(getattr(every, axis)[even] for axis in MESH_AXES))
    choices = _priced(setting, search, every)
    return (choices if search.axes else _earning(choices)), uneven


def _earning(choices):
    """The choices without those whose context axis gains nothing: as much fsdp instead fits as well
    and is as fast.

    Both axes shard the state, so many meshes differ in them alone.
    """
    shorter, kept = {}, set()
    for choice in sorted(choices, key=lambda choice: choice.context):
        worth = choice.fits, choice.expected_seconds if choice.fits else choice.total_bytes
        alike = shorter.setdefault((choice.data, choice.pipeline, choice.expert, choice.tensor), [])
        if all(_better(worth, other, FASTER) for other in alike):
            alike.append(worth)
            kept.add(id(choice))
    return tuple(choice for choice in choices if id(choice) in kept)


def _remedies(proposal, setting, search):
    """The smallest changes with which something fits: (what, the best choice)."""
    machine = proposal.machine
    levels = list(costs.REMAT)
    least_level = levels.index(proposal.remat) if proposal.remat in levels else 0
    for name, remat in costs.REMAT.items():
        if not remat.whole_layers or (remat.offloads and not machine.chip.host_bytes_per_second):
            continue
        if levels.index(name) <= least_level:
            continue
        choices, _ = _choices(replace(setting, remat=remat), search)
        if choices[0].fits:
            yield f"remat {name}", choices[0]
            break
    # more slices, not larger ones
    shape = machine.shape if machine.slices > 1 and machine.chip.torus else None
    for times in (2, 4, 8, 16):
        try:
            larger = hardware.machine(
                machine.chip,
                machine.chips * times,
                slices=machine.slices * times if shape else None,
                shape=shape,
                reserve=machine.reserve,
            )
        except ValueError:
            continue
        choices, _ = _choices(replace(setting, machine=larger), search)
        if choices and choices[0].fits:
            yield f"{larger.chips} chips", choices[0]
            return


def _follows(sizes, torus):
    """Whether each size is the product of axes of the torus of its own."""
    if not sizes:
        return True
    for mask in range(2 ** len(torus)):
        taken = math.prod(size for n, size in enumerate(torus) if mask >> n & 1)
        left = tuple(size for n, size in enumerate(torus) if not mask >> n & 1)
        if taken == sizes[0] and _follows(sizes[1:], left):
            return True
    return False


def _meshes(machine, model, axes, sequence):
    """Every mesh of these axes, as one `Parallelism` of arrays.

    On GPUs tensor parallelism stays within a node. Between slices of TPUs are only data and
    pipeline axes, if they can.
    """
    chips, most = machine.chips, machine.chips if machine.chip.torus else machine.near
    divisors = [n for n in range(1, chips + 1) if chips % n == 0]
    allowed = {
        "tensor": [n for n in divisors if n <= most and model.splits(n)],
        "pipeline": [n for n in divisors if n <= min(model.layers, MOST_PIPELINE)],
        "context": [n for n in divisors if n <= MOST_CONTEXT and sequence % n == 0],
        "expert": [n for n in divisors if model.experts and model.experts % n == 0],
        "fsdp": divisors,
    }
    meshes = [{}]
    for axis, sizes in allowed.items():
        sizes = sizes if axis in axes else [1]
        left = [(mesh, chips // int(np.prod([*mesh.values()], dtype=np.int64))) for mesh in meshes]
        meshes = [mesh | {axis: size} for mesh, free in left for size in sizes if free % size == 0]
    for mesh in meshes:
        mesh["data"] = chips // int(np.prod([*mesh.values()], dtype=np.int64))
    if "data" not in axes:
        meshes = [mesh for mesh in meshes if mesh["data"] == 1]
    if machine.chip.torus and machine.slices > 1:
        apart = [mesh for mesh in meshes if mesh["data"] * mesh["pipeline"] % machine.slices == 0]
        meshes = apart or meshes
    return costs.Parallelism(*(np.array([mesh[axis] for mesh in meshes]) for axis in MESH_AXES))


def _priced(setting, search, every):
    """The choices for some meshes in their order, each with the micro-batches, stages and gathers
    best for it.
    """
    stages, gathers = search.stages, search.gathers
    each = setting.batch_tokens // setting.sequence // every.groups  # sequences of a data group
    numbers = [search.microbatches] if search.microbatches else _microbatches(each)
    best = {}
    piped, sharded = every.pipeline > 1, every.shards > every.tensor * every.expert
    for many in sorted({1, stages}) if stages else STAGES:
        for rounds in (2, 1):
            able = every.pipeline * many <= setting.model.layers
            able = able & (np.where(piped, stages, 1) == many if stages else piped | (many == 1))
            able = able & (
                np.where(sharded, gathers, 2) == rounds if gathers else sharded | (rounds == 2)
            )
            best_of = _best(replace(setting, gathers=rounds), every, numbers, many, able)
            for place, candidate in best_of.items():
                if place not in best or _better(candidate, best[place], FASTER):
                    best[place] = candidate
    choices = []
    for place, (fits, _, priced, n, *counts) in best.items():

        def at(array, n=n, like=priced.expected_seconds):
            return float(np.broadcast_to(array, like.shape)[n])

        choices.append(
            Choice(
                *(int(getattr(every, axis)[place]) for axis in MESH_AXES),
                *counts,
                at(priced.expected_seconds),
                at(priced.exposed_seconds),
                at(priced.seconds),
                at(priced.serial_seconds),
                str(priced.bound[n]),
                at(priced.bubble),
                {part: at(seconds) for part, seconds in priced.parts.items()},
                {axis: at(cost.bytes) for axis, cost in priced.axes.items()},
                at(priced.memory.total_bytes),
                at(priced.memory.state_bytes),
                at(priced.memory.host_bytes),
                fits,
                at(priced.expected_mfu),
                at(priced.flops),
            )
        )

    def order(choice):  # meshes in the same step of one per cent are equally fast: fewer axes first
        rank = (
            math.floor(100 * math.log(choice.expected_seconds))
            if choice.fits
            else choice.total_bytes
        )
        return (
            not choice.fits,
            rank,
            len(choice.mesh),
            choice.expected_seconds,
            choice.serial_seconds,
        )

    return tuple(sorted(choices, key=order))


def _microbatches(each):
    """Numbers of micro-batches to try: powers of two, and those that leave each a power of two of
    sequences.
    """
    shared = {int(many) // n for many in np.unique(each) for n in POWERS if many % n == 0}
    return sorted(n for n in {*POWERS, *shared} if n <= POWERS[-1])


def _best(setting, every, numbers, stages, able):
    """For each mesh the best of some numbers of micro-batches.

    {the place of a mesh: (whether it fits, seconds or else bytes, its `StepCost`, its place there,
    micro-batches, stages, gathers)}.

    An interleaved pipeline takes its micro-batches in groups of as many as it has chips, as
    Megatron-LM's does.
    """
    each = setting.batch_tokens // setting.sequence // every.groups  # sequences of a data group
    best = {}
    for number in numbers:
        some = able & (each % number == 0)
        if len(numbers) > 1 and number not in POWERS:  # for another mesh
            some = some & np.isin(each // number, POWERS)
        if stages > 1:
            some = some & (number % every.pipeline == 0)
        places = np.nonzero(some)[0]
        if not len(places):
            continue
        meshes = costs.Parallelism(
            *(getattr(every, axis)[places] for axis in MESH_AXES),
            microbatches=number,
            stages=stages,
        )
        priced = cost_on(setting, meshes)
        totals = np.broadcast_to(priced.memory.total_bytes, places.shape)
        for n, place in enumerate(places):
            fits = bool(totals[n] <= setting.usable_bytes)
            worth = float(priced.expected_seconds[n]) if fits else float(totals[n])
            candidate = (fits, worth, priced, n, number, stages, setting.gathers)
            if place not in best or _better(candidate, best[place]):
                best[place] = candidate
    return best


def _better(candidate, other, share=1.0):
    """Whether a way to compute a step fits where another does not, or takes less than a share of
    its time or memory.
    """
    (fits, worth, *_), (fitted, before, *_) = candidate, other
    return fits > fitted or (fits == fitted and worth < (share if fits else 1.0) * before)


def whole_number(text: str) -> int:
    """A number as people write it.

    >>> from shardlab.costs.plan import whole_number
    >>> whole_number("4M"), whole_number("512k"), whole_number("1_048_576")
    (4194304, 524288, 1048576)

    Args:
      text: digits, perhaps with k, M or G, which are powers of 1024.

    Raises:
      ValueError: it is none.
    """
    match = re.fullmatch(r"([0-9_,]+(?:\.[0-9]+)?)\s*([kmg]?)i?", text.strip().lower())
    digits = re.sub("[_,]", "", match[1]) if match else ""
    value = float(digits) * 1024 ** " kmg".index(match[2] or " ") if digits else 0.5
    if value > MOST:
        raise ValueError(f"{short(text)} is too large; use a whole number of at most {MOST:,}")
    if value != int(value):
        raise ValueError(
            f"{short(text)} is no whole number; write it as 4194304, 4_194_304 or 4M (4 x "
            "1024 x 1024)"
        )
    return int(value)
