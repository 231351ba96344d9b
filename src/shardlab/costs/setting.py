"""What is asked about: the setting of a training step, and that of a server's replica, each checked
once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from shardlab._arguments import Numbers, first, one_of, whole
from shardlab.costs.communication.places import replica_places
from shardlab.costs.dtypes import dtype_bytes
from shardlab.costs.steps.adapters import Adapters, adapters_of, check_adapters, mean_bytes
from shardlab.costs.steps.remat import Remat
from shardlab.machines import hardware
from shardlab.machines.hardware import Chip, Machine
from shardlab.machines.models import Model
from shardlab.machines.placement import Place

__all__ = ["DISPATCHES", "OVERLAPS", "Dtypes", "ServingSetting", "TrainingSetting"]

# How often a token is sent to a node: once for each of its experts there, or once.
DISPATCHES = ("expert", "node")
# the axes whose collectives only some frameworks overlap with products
OVERLAPS = ("tensor", "expert")


@dataclass(frozen=True)
class Dtypes:
    """The dtypes of what a training step holds; None for what does not exist."""

    parameters: str | None = "bf16"
    gradients: str | None = "bf16"
    moments: str | None = "f32"
    master: str | None = None
    activations: str | None = "bf16"
    logits: str | None = "f32"

    @property
    def sizes(self) -> dict[str, float]:
        """Bytes of an element of each."""
        return {
            name: dtype_bytes(name, dtype) if dtype else 0 for name, dtype in asdict(self).items()
        }


@dataclass(frozen=True)
class TrainingSetting:
    """All that a training step's cost depends on, but its `Parallelism`.

    Attributes:
      model: a `Model`.
      chip: the kind of chip.
      machine: the `Machine`; None for the one that as many chips form as a parallelism has.
      batch_tokens, sequence, remat, torus_axes, efficiency, gathers, products, dispatch, overlap,
        lora, adapted: as for `step_cost`, but the remat as a `Remat`.
      dtypes: the `Dtypes`.
    """

    model: Model
    chip: Chip
    machine: Machine | None
    batch_tokens: Numbers
    sequence: Numbers
    remat: Remat
    torus_axes: Mapping[str, Numbers] | None = None
    efficiency: float = 1.0
    gathers: int = 2
    products: str = "bf16"
    dtypes: Dtypes = Dtypes()
    dispatch: str = "expert"
    overlap: Sequence[str] = ()
    lora: int = 0
    adapted: str = "all"

    def check(self) -> None:
        """ValueError if a part of it is wrong, whatever the mesh, which is to be checked first."""
        if not 0 < self.efficiency <= 1:
            raise ValueError(
                f"efficiency={self.efficiency} is no share of the peak; use a number above 0 "
                "and up to 1"
            )
        if self.remat.offloads and not self.chip.host_bytes_per_second:
            known = ", ".join(
                name for name, chip in hardware.CHIPS.items() if chip.host_bytes_per_second
            )
            raise ValueError(
                f"the bandwidth between {self.chip.name} and its host is not known, so what "
                f"offloading takes is not either; it is for {known}"
            )
        gathers = self.gathers
        if isinstance(gathers, bool) or not isinstance(gathers, int) or gathers not in (1, 2):
            raise ValueError(f"gathers={gathers!r}; use 2, or 1 if gathered parameters are kept")
        for axis in self.overlap:
            one_of("overlap", axis, OVERLAPS)
        check_adapters(self.model, self.lora, self.dtypes.parameters, self.adapted)
        _ = self.dtypes.sizes
        # Without these there is no step, though `training_memory` may leave them out.
        for name in ("parameters", "gradients", "activations"):
            dtype_bytes(name, getattr(self.dtypes, name))
        one_of("dispatch", self.dispatch, DISPATCHES)

    @property
    def usable_bytes(self) -> float:
        """The memory of a chip, less the reserve."""
        return (self.machine or Machine(self.chip, ())).usable_bytes

    @property
    def adapters(self) -> Adapters:
        """How many parameters the adapters have."""
        return adapters_of(self.model, self.lora, self.adapted)

    @property
    def parameter_bytes(self) -> float:
        """Bytes of a parameter of the model, on average."""
        return mean_bytes(self.model, self.dtypes.sizes["parameters"], self.dtypes.parameters)

    def rounds(self, microbatches):
        """How often FSDP gathers in a step, and how often it reduce-scatters."""
        return (2 * microbatches, microbatches) if self.gathers == 2 else (1, 1)


@dataclass(frozen=True)
class ServingSetting:
    """All that a replica's cost depends on, but what is asked of it: sequences and tokens.

    Attributes:
      model: a `Model`.
      chip: the kind of chip.
      tensor, expert, pipeline: the sizes of the replica's axes.
      weights, cache, dtype: dtypes of the parameters, of the KV cache, of activations and FLOPs.
      torus_axes, machine: as for `decode_cost`.

    Raises:
      ValueError: an axis or a dtype is wrong.
    """

    model: Model
    chip: Chip
    tensor: Numbers = 1
    expert: Numbers = 1
    pipeline: Numbers = 1
    weights: str = "bf16"
    cache: str = "bf16"
    dtype: str = "bf16"
    torus_axes: Numbers = 1
    machine: Machine | None = None

    def __post_init__(self) -> None:
        for axis in ("tensor", "expert", "pipeline"):  # as NumPy has them, also where they are ints
            object.__setattr__(self, axis, whole(axis, getattr(self, axis)))
        model, tensor, expert, pipeline = self.model, self.tensor, self.expert, self.pipeline
        if np.any(model.heads % tensor):
            wrong = first(tensor, model.heads % tensor != 0)
            raise ValueError(f"tensor={wrong} does not divide {model.heads} heads")
        if np.any(expert > 1) and (not model.experts or np.any(model.experts % expert)):
            wrong = first(expert, expert > 1)
            raise ValueError(f"expert={wrong} does not divide {model.experts} experts")
        if np.any(model.layers < pipeline):
            wrong = first(pipeline, model.layers < pipeline)
            raise ValueError(f"pipeline={wrong} exceeds {model.layers} layers")
        for name in ("cache", "weights", "dtype"):
            dtype_bytes(name, getattr(self, name))

    @cached_property
    def places(self) -> tuple[Place, Place, Place]:
        """The `Place` of each axis: of "tensor", "expert" and "pipeline"."""
        return replica_places(self)

    def size(self, name: str) -> float:
        """Bytes of an element: of "weights", of "cache", or as "dtype" says."""
        return dtype_bytes(name, getattr(self, name))
