"""Runs and servers that others published, and what `shardlab.costs` expects of them: for fitting it and testing it.

Each run has its source, and a step's time in seconds, which is what is compared, as "model FLOPs" have several
definitions. Where a source states tokens or FLOPs per second instead, the time is derived from them, with the
definition that fits its other numbers. A run is used for fitting or for testing, never for both;
`scripts/fit_planner.py` fits. The runs are in `published.toml`, the servers in `servers.toml`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shardlab import costs
from shardlab.costs import Parallelism, inference
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
      over: why it ran, if its memory by formula is more than its chips have; else empty.
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
    how: Mapping[str, Any] = field(default_factory=dict)

    def cost(self) -> costs.StepCost:
        """What `shardlab.costs.step_cost` says of it."""
        return costs.step_cost(
            self.model, self.machine, self.parallelism, self.sequences * self.sequence, self.sequence, **self.how
        )


def _read(file):
    """The runs of a TOML file, whose head says what its keys mean."""
    data = tomllib.loads(file.read_text("utf-8"))
    like = {name: dict(keys) for name, keys in data["chips"].items()}
    chips = {name: replace(hardware.chip(keys.pop("like")), name=name, **keys) for name, keys in like.items()}
    sizes = {name: Model(**keys) for name, keys in data["models"].items()}
    for table in data["tables"]:
        runs = table.pop("runs")
        for keys in runs:
            yield run_of({**table, **keys}, chips, sizes)


def run_of(keys, chips, sizes):
    """The `Run` of some keys; those that are left over are arguments of `step_cost`."""
    parallelism = Parallelism(**{axis.name: keys.pop(axis.name) for axis in fields(Parallelism) if axis.name in keys})
    chip, name = keys.pop("chip"), keys.pop("model")
    machine = hardware.machine(chips.get(chip, chip), int(parallelism.chips), slices=keys.pop("slices", None))
    model = sizes.get(name) or models.model(name)
    sequences, sequence = keys.pop("sequences"), keys.pop("sequence")
    flops_per_second = keys.pop("peak_share", 0) * machine.chip.peak() or keys.pop("flops_per_second", 0)
    if flops_per_second:
        flops = costs.training_flops(model, sequences * sequence, sequence)
        keys["seconds"] = float(flops / flops_per_second / parallelism.chips)
    if isinstance(keys.get("remat"), dict):
        keys["remat"] = costs.Remat.of(**keys["remat"])
    known = {field.name: keys.pop(field.name) for field in fields(Run) if field.name in keys}
    return Run(
        model=model, machine=machine, parallelism=parallelism, sequences=sequences, sequence=sequence, how=keys, **known
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
      kind: what was measured: "throughput", in generated tokens per second and chip, or "first_token", in seconds.
      measured: the number.
      dtype: of parameters, cache and products.
      source: where it is published.
      fit: whether `shardlab.inference.SERVED` is fitted to it; otherwise it tests that.
    """

    model: Model
    chip: str
    tensor: int
    batch: int
    prompt: int
    answer: int
    kind: str
    measured: float
    dtype: str
    source: str
    fit: bool

    def slower(self, expected: bool = True) -> float:
        """The measured time over the expected one, or over the lower bound."""
        torus = hardware.chip(self.chip).torus
        how = dict.fromkeys(("weights", "cache", "dtype"), self.dtype) | {"torus_axes": 2 if torus else 1}
        first = inference.prefill_cost(self.model, self.chip, self.prompt, self.batch, self.tensor, **how)
        step = inference.decode_cost(
            self.model, self.chip, self.batch, self.prompt + self.answer / 2, self.tensor, **how
        )
        begins, takes = (
            (first.expected_seconds, step.expected_seconds) if expected else (first.seconds, step.serial_seconds)
        )
        if self.kind == "first_token":
            return float(self.measured / begins)
        return float((self.batch * self.answer / (begins + self.answer * takes) / self.tensor) / self.measured)


def _servers(file):
    """The servers of a TOML file: of each four on GPUs the second and third test, the others are fitted to."""
    data, count = tomllib.loads(file.read_text("utf-8")), 0
    sizes = {name: Model(**keys, name=name) for name, keys in data["models"].items()}
    for table in data["tables"]:
        for kind in ("throughput", "first_token"):
            for model, tensor, batch, prompt, answer, measured in table.get(kind, ()):
                fit = count % 4 in (0, 3) and not hardware.chip(table["chip"]).torus
                count += 1
                yield Server(
                    sizes[model], table["chip"], tensor, batch, prompt, answer, kind, measured, table["dtype"],
                    table["source"], fit,
                )  # fmt: skip


RUNS = {run.name: run for run in _read(Path(__file__).with_suffix(".toml"))}
SERVERS = tuple(_servers(Path(__file__).with_name("servers.toml")))
