"""Runs and servers that others published, and what `shardlab.costs` expects of them: for fitting it
and testing it.

Each run has its source, and a step's time in seconds, which is what is compared, as "model FLOPs"
have several definitions. Where a source states tokens or FLOPs per second instead, the time is
derived from them, with the definition that fits its other numbers. A run is used for fitting or for
testing, never for both; `scripts/fit_planner.py` fits. The runs are in `published.toml`, the
servers in `servers.toml`.
"""

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shardlab import costs
from shardlab.costs import Parallelism, inference, serving
from shardlab.costs.bands import kind_of_plan
from shardlab.costs.setting import ServingSetting
from shardlab.machines import hardware, models
from shardlab.machines.models import Model

__all__ = ["RUNS", "SERVERS", "Run", "Server"]


@dataclass(frozen=True)
class Run:
    """A published run.

    >>> run = published.RUNS["torchtitan, 70B on 64 A100"]
    >>> f"measured {run.seconds} s, at least {run.cost().seconds:.1f} s"
    'measured 24.75 s, at least 15.8 s'

    Attributes:
      name: of the run.
      model: a `shardlab.models.Model`.
      machine: a `shardlab.hardware.Machine`.
      parallelism: a `shardlab.costs.Parallelism`.
      sequences: in the global batch.
      sequence: tokens of each.
      seconds: measured, for a step.
      source: where it is published.
      fit: whether `shardlab.costs.FITTED` is fitted to it; otherwise it tests that.
      over: why it ran, if its memory by formula is more than its chips have without the reserve of
        a tenth; else empty.
      axes: of a mesh, that its framework had; none if it had all of them.
      how: further arguments of `shardlab.costs.step_cost`.
    """

    name: str
    model: Model
    machine: hardware.Machine
    parallelism: Parallelism
    sequences: int
    sequence: int
    seconds: float
    source: str
    fit: bool = False
    over: str = ""
    axes: tuple[str, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mesh(self) -> dict[str, int]:
        """The sizes of its axes."""
        return {axis: int(getattr(self.parallelism, axis)) for axis in costs.MESH_AXES}

    @property
    def kind(self) -> str:
        """The kind of plan that it is, one of `shardlab.costs.bands.KINDS_OF_PLANS`."""
        given = {name: self.how[name] for name in ("lora", "parameters") if name in self.how}
        products = self.how.get("products", "bf16")
        return kind_of_plan(
            self.model, self.machine.chip, self.mesh, self.sequence, products, **given
        )

    def cost(self) -> costs.StepCost:
        """What `shardlab.costs.step_cost` says of it."""
        return costs.step_cost(
            self.model,
            self.machine,
            self.parallelism,
            self.sequences * self.sequence,
            self.sequence,
            **self.how,
        )


def _read(file):
    """The runs of a TOML file, whose head says what its keys mean."""
    data = tomllib.loads(file.read_text("utf-8"))
    like = {name: dict(keys) for name, keys in data["chips"].items()}
    chips = {
        name: replace(hardware.chip(keys.pop("like")), name=name, **keys)
        for name, keys in like.items()
    }
    sizes = {name: Model(**keys) for name, keys in data["models"].items()}
    for table in data["tables"]:
        runs = table.pop("runs")
        for keys in runs:
            yield run_of({**table, **keys}, chips, sizes)


def run_of(keys, chips, sizes):
    """The `Run` of some keys; those that are left over are arguments of `step_cost`."""
    parallelism = Parallelism(
        **{axis.name: keys.pop(axis.name) for axis in fields(Parallelism) if axis.name in keys}
    )
    chip, name = keys.pop("chip"), keys.pop("model")
    machine = hardware.machine(
        chips.get(chip, chip), int(parallelism.chips), slices=keys.pop("slices", None)
    )
    model = sizes.get(name) or models.model(name)
    sequences, sequence = keys.pop("sequences"), keys.pop("sequence")
    flops_per_second = keys.pop("peak_share", 0) * machine.chip.peak() or keys.pop(
        "flops_per_second", 0
    )
    if flops_per_second:
        flops = costs.training_flops(model, sequences * sequence, sequence)
        keys["seconds"] = float(flops / flops_per_second / parallelism.chips)
    tokens_per_second = keys.pop("tokens_per_second", 0)
    tokens_per_second = tokens_per_second or int(parallelism.chips) * keys.pop(
        "tokens_per_second_chip", 0
    )
    if tokens_per_second:
        keys["seconds"] = sequences * sequence / tokens_per_second
    keys |= {name: tuple(keys[name]) for name in ("axes", "overlap") if name in keys}
    if isinstance(keys.get("remat"), dict):
        keys["remat"] = costs.Remat.of(**keys["remat"])
    known = {field.name: keys.pop(field.name) for field in fields(Run) if field.name in keys}
    return Run(
        model=model,
        machine=machine,
        parallelism=parallelism,
        sequences=sequences,
        sequence=sequence,
        how=keys,
        **known,
    )


@dataclass(frozen=True)
class Server:
    """A published measurement of a server.

    >>> server = next(s for s in published.SERVERS if s.model.name == "Llama 70B")
    >>> f"{server.batch} sequences on {server.tensor} {server.chip}: {server.measured:,.0f} tokens/s on each"
    '1024 sequences on 2 H100: 2,657 tokens/s on each'

    Attributes:
      model: a `shardlab.models.Model`.
      chip: the name of a `shardlab.hardware.Chip`; `tensor`: how many of them share the model.
      batch: sequences at a time.
      prompt, answer: tokens of each.
      kind: what was measured: "throughput", in generated tokens per second and chip; "first_token",
        in seconds, of a prompt alone, or "loaded", while others are served; or "token", in seconds
        for each.
      measured: the number.
      source: where it is published.
      fit: whether `shardlab.inference.SERVED` is fitted to it; otherwise it tests that.
      how: the dtypes "weights", "cache" and "dtype".
      chunk: tokens of prompts that are prefilled with each step; None if they are prefilled between
        steps.
    """  # noqa: E501

    model: Model
    chip: str
    tensor: int
    batch: int
    prompt: int
    answer: int
    kind: str
    measured: float
    source: str
    fit: bool
    how: Mapping[str, Any]
    chunk: int | None = None

    @property
    def on_gpus(self) -> bool:
        """Whether a switch connects its chips; what is fitted to servers differs."""
        return inference.kind_of(hardware.chip(self.chip)) == "gpu"

    @property
    def band(self) -> str:
        """Which of `shardlab.serving.BANDS` it tests, if it is left out."""
        family = serving.family(hardware.chip(self.chip), self.model, self.how["dtype"])
        return family if self.kind == "throughput" else f"{family}, {self.kind}"

    def parts(self) -> serving.Parts:
        """What its time is composed of."""
        machine = hardware.machine(self.chip, self.tensor)
        setting = ServingSetting(
            self.model, machine.chip, tensor=self.tensor, machine=machine, **self.how
        )
        return serving.parts_of(setting, self.prompt, self.answer, self.batch, self.chunk)

    def slower(self, expected: bool = True) -> float:
        """The measured time over the expected one, or over the lower bound."""
        way = self.parts().ways()[expected]
        first, burst, token, _, _, rate, _ = serving.composed(
            way, self.batch, self.prompt, self.answer, self.chunk
        )
        if self.kind == "throughput":
            return float(rate * self.answer / self.tensor / self.measured)
        if self.kind == "first_token":  # which waits for no other
            return float(self.measured / way.first)
        if self.kind == "loaded":  # 1 between the two times
            nearest = min(max(self.measured, first), burst) if expected else first
            return float(self.measured / nearest)
        return float(self.measured / token)

    def ends(self) -> tuple[float, float]:
        """The expected times to a first token: of independent requests, and of a burst."""
        first, burst, *_ = serving.composed(
            self.parts().ways()[1], self.batch, self.prompt, self.answer, self.chunk
        )
        return float(first), float(burst)


def _rows(table):
    """(kind, a row) of a table; columns become rows, per chip."""
    for kind in ("throughput", "first_token", "token", "loaded"):
        for row in table.get(kind, ()):
            yield kind, row
    for model, tensor, column in table.get("columns", ()):
        for (prompt, answer), measured in zip(table["lengths"], column, strict=True):
            if measured:
                yield "throughput", (model, tensor, None, prompt, answer, measured / tensor)


def _servers(file):
    """The servers of a TOML file; of each four on GPUs, or on TPUs, the second and third are left
    out of the fit; of times between tokens every second.
    """
    data, count = tomllib.loads(file.read_text("utf-8")), Counter()
    sizes = {name: Model(**keys, name=name) for name, keys in data["models"].items()}
    for table in data["tables"]:
        chip, dtype = hardware.chip(table["chip"]), table["dtype"]
        dtypes = {
            "weights": table.get("weights", dtype),
            "cache": table.get("cache", dtype),
            "dtype": dtype,
        }
        for kind, (name, tensor, batch, prompt, answer, measured) in _rows(table):
            most = serving.most_sequences(
                sizes[name], chip, tensor, prompt + answer, dtypes["weights"], dtypes["cache"]
            )
            if batch is None or "static" not in table:
                batch = max(min(batch or table["most"], most), 1)
            chunk = table["budget"] - batch if "budget" in table else None
            fits = kind != "loaded" and not table.get("test")
            fits = fits and (kind != "token" or not chip.torus)  # of TPUs too few are known
            counted = inference.kind_of(chip), kind == "token"
            fit = fits and count[counted] % 4 in ((0, 2) if kind == "token" else (0, 3))
            count[counted] += fits
            yield Server(
                sizes[name],
                table["chip"],
                tensor,
                batch,
                prompt,
                answer,
                kind,
                measured,
                table["source"],
                fit,
                dtypes,
                chunk,
            )


RUNS = {run.name: run for run in _read(Path(__file__).with_suffix(".toml"))}
SERVERS = tuple(_servers(Path(__file__).with_name("servers.toml")))
