"""How a training step is parallelised: the axes of its mesh and their sizes."""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from shardlab._arguments import Numbers, first, one_of, whole
from shardlab.machines.models import Model

__all__ = ["AXES", "MESH_AXES", "SCHEDULES", "Parallelism", "parallelisms"]

AXES = ("data", "fsdp", "tensor")  # of the mesh of a dense model's training step
MESH_AXES = (*AXES, "pipeline", "context", "expert")  # all that a step can have
# of a pipeline; 1f1b with several stages on each device is the interleaved one
SCHEDULES = ("gpipe", "1f1b")


@dataclass(frozen=True)
class Parallelism:
    """How a training step is parallelised: the sizes of the axes of its mesh, whole numbers or
    arrays of them.

    >>> print(costs.Parallelism(data=4, fsdp=16, tensor=8).chips, "chips")
    512 chips

    Attributes:
      data: data-parallel replicas of the model, each with examples of its own.
      fsdp: chips of a replica with examples of their own, each with a shard of parameters,
        gradients and moments.
      tensor: chips that share the heads and the MLP of each layer.
      pipeline: groups of chips with layers of their own.
      context: chips that share each sequence, with attention in a ring. They shard the state too,
        as fsdp does.
      expert: chips that share the experts of each layer. They have examples of their own, as data
        and fsdp have.
      microbatches: into how many the batch of each data group is split: those of a pipeline, or,
        with pipeline=1, those of gradient accumulation.
      stages: stages on each chip of a pipeline; more than one is an interleaved schedule.
      schedule: of the pipeline, one of `SCHEDULES`.
    """

    data: Numbers = 1
    fsdp: Numbers = 1
    tensor: Numbers = 1
    pipeline: Numbers = 1
    context: Numbers = 1
    expert: Numbers = 1
    microbatches: Numbers = 1
    stages: Numbers = 1
    schedule: str = "1f1b"

    def __post_init__(self) -> None:
        for axis in MESH_AXES:
            whole(f"the {axis} axis", getattr(self, axis))
        whole("microbatches", self.microbatches)
        whole("stages", self.stages)
        one_of("schedule", self.schedule, SCHEDULES)

    @property
    def chips(self) -> Numbers:
        """The product of the axes."""
        return reduce(np.multiply, (getattr(self, axis) for axis in MESH_AXES))

    @property
    def groups(self) -> Numbers:
        """How many groups of chips have sequences of their own: data x fsdp x expert."""
        return np.multiply(np.multiply(self.data, self.fsdp), self.expert)

    @property
    def shards(self) -> Numbers:
        """Over how many chips the state of a layer is sharded: fsdp x context x expert x tensor."""
        return reduce(np.multiply, (self.fsdp, self.context, self.expert, self.tensor))

    @property
    def idle(self) -> Numbers:
        """The bubble: the time that a pipeline waits, as a share of the time that it works."""
        return (np.asarray(self.pipeline, float) - 1) / (
            np.asarray(self.microbatches, float) * self.stages
        )


def parallelisms(chips: int, model: Model | None = None) -> Parallelism:
    """Every way to divide a number of chips into data, fsdp and tensor axes, as one `Parallelism`
    of arrays.

    As (data, fsdp, tensor), four chips can be (4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2)
    or (1, 1, 4).

    >>> ways = costs.parallelisms(4)
    >>> list(zip(ways.data.tolist(), ways.fsdp.tolist(), ways.tensor.tolist()))
    [(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2), (1, 1, 4)]

    Args:
      chips: how many.
      model: if given, tensor axes that do not divide its heads are left out.

    Returns:
      A `Parallelism`.
    """
    chips = int(whole("chips", chips))
    divisors = [n for n in range(1, chips + 1) if chips % n == 0]
    fitting = [t for t in divisors if model is None or model.splits(t)]
    meshes = [(chips // (f * t), f, t) for t in fitting for f in divisors if chips // t % f == 0]
    return Parallelism(*np.array(sorted(meshes, reverse=True)).T)


def check_split(model, tensor):
    tensor = whole("the tensor axis", tensor)
    if not np.all(model.splits(tensor)):
        raise ValueError(
            f"a tensor axis of {first(tensor, ~model.splits(tensor))} cannot split "
            f"{model.heads} heads and {model.kv_heads} kv_heads evenly; use a divisor of "
            f"{model.heads} that divides {model.kv_heads} or is a multiple of it"
        )


def check_layers(model, parallelism):
    """Whether stages and experts can be shared evenly."""
    stages = np.multiply(parallelism.pipeline, parallelism.stages)
    if np.any(stages > model.layers):
        raise ValueError(
            f"{first(stages, stages > model.layers):g} stages are more than the "
            f"{model.layers} layers"
        )
    expert = np.asarray(parallelism.expert)
    uneven = (expert > 1) & (model.experts % expert != 0 if model.experts else True)
    if np.any(uneven):
        wrong = first(expert, uneven)
        has = f"{model.experts} experts" if model.experts else "a model without experts"
        raise ValueError(f"an expert axis of {wrong:g} cannot share {has}; use a divisor of them")
