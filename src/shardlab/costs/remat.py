"""Kinds of rematerialisation as data: what a layer keeps, what is computed again, and what that reads and sends."""

from dataclasses import dataclass

from shardlab._arguments import one_of
from shardlab.machines.models import Model

__all__ = ["REMAT", "Remat"]


@dataclass(frozen=True)
class Remat:
    """What the forward pass of a training step keeps for the backward pass, and what that computes again.

    >>> costs.REMAT["mlp"].recomputes
    ('attention', 'scores')

    Attributes:
      label: what is computed again, in words.
      keeps: for each token and layer, how many arrays as wide as the model, as the queries, as the keys or values, and
        as the inputs of the MLP's first products.
      recomputes: what is computed again, of "attention" (its projections), "mlp" (all but its last product), "scores".
      reads: how often each micro-batch reads a parameter.
      pairs: the gathers and scatters that a tensor group does again in each layer, in pairs.
      offloads: whether what is kept goes to the host's memory.

    Source: counted from the layer's operations; see `activation_bytes`, `training_flops` and `step_cost`.
    """

    label: str
    keeps: tuple[int, int, int, int]
    recomputes: tuple[str, ...] = ()
    reads: int = 2
    pairs: float = 0
    offloads: bool = False

    @property
    def whole_layers(self) -> bool:
        """Whether whole layers are computed again."""
        return "mlp" in self.recomputes

    def kept_width(self, model: Model) -> int:
        """Elements that one layer of a model keeps for a token."""
        queries, keys = model.heads * (model.head_dim + model.rope_dim), model.kv_heads * model.head_dim
        widths = model.d_model, queries, keys, (2 if model.gated else 1) * model.hidden
        return sum(count * width for count, width in zip(self.keeps, widths, strict=True))


_LAYER = ("attention", "mlp", "scores")
REMAT = {
    # x, its norm, q, k, v, attention's result; x after attention, its norm, the MLP's products, and its output's input
    "none": Remat("nothing", (4, 2, 2, 2)),
    "matmuls": Remat("attention scores", (2, 1, 2, 1), ("scores",)),
    "mlp": Remat("attention", (1, 0, 0, 1), ("attention", "scores"), pairs=0.5),
    "block": Remat("whole layers", (1, 0, 0, 0), _LAYER, reads=3, pairs=1.5),
    "offload": Remat("layers, offloaded", (1, 0, 0, 0), _LAYER, reads=3, pairs=1.5, offloads=True),
}


def remat_of(name: str) -> Remat:
    """The kind that is called so; ValueError for others, with the nearest."""
    return REMAT[one_of("remat", name, tuple(REMAT))]
