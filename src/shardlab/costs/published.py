"""Training runs that others published, and what `shardlab.costs` expects of them: for fitting it, and for testing it.

Each run has its source, and a step's time in seconds, which is what is compared, as "model FLOPs" have several
definitions. Where a source states tokens or FLOPs per second instead, the time is derived from them, with the
definition that fits its other numbers. A run is used for fitting or for testing, never for both;
`scripts/fit_planner.py` fits. The runs are in `published.toml`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shardlab import costs
from shardlab.costs import Parallelism
from shardlab.machines import hardware, models
from shardlab.machines.models import Model

__all__ = ["RUNS", "Run"]


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
            yield _run({**table, **keys}, chips, sizes)


def _run(keys, chips, sizes):
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


RUNS = {run.name: run for run in _read(Path(__file__).with_suffix(".toml"))}
