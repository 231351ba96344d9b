"""Kinds of rematerialisation as data: what a layer keeps and where, and what is computed again,
reads and sends.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shardlab._arguments import one_of
from shardlab.machines.models import Model

__all__ = ["POLICIES", "REMAT", "Remat"]

# The arrays of a layer that can be kept, and their widths: of the model, queries, keys or values,
# the MLP's products. Nothing in the backward pass needs the result of the MLP, so JAX keeps none of
# it where a policy names it.
_WIDTHS = {
    "inputs": 0,
    "query": 1,
    "key": 2,
    "value": 2,
    "context": 1,
    "out": 0,
    "up": 3,
    "down": None,
}


@dataclass(frozen=True)
class Remat:
    """What the forward pass of a training step keeps for the backward pass, and what that computes
    again.

    >>> costs.REMAT["mlp"].recomputes
    ('query', 'key', 'value', 'out', 'scores')

    Attributes:
      label: what is computed again, in words.
      keeps: for each token and layer, how many arrays as wide as the model, as the queries, as the
        keys or values, and as the inputs of the MLP's first products the chip keeps.
      recomputes: what is computed again, of the projections "query", "key", "value" and "out",
        "mlp" (all but its last product) and "scores".
      reads: how often each micro-batch reads a parameter.
      pairs: the gathers and scatters that a tensor group does again in each layer, in pairs.
      hosts: as `keeps`, what goes to the host's memory and comes back.

    Source: counted from the layer's operations; see `activation_bytes`, `training_flops` and
    `step_cost`.
    """

    label: str
    keeps: tuple[int, int, int, int]
    recomputes: tuple[str, ...] = ()
    reads: int = 2
    pairs: float = 0
    hosts: tuple[int, int, int, int] = (0, 0, 0, 0)

    @classmethod
    def of(cls, device: Iterable[str] = ("inputs",), host: Iterable[str] = ()) -> "Remat":
        """The kind that keeps some arrays of a layer on the chip and others in the host's memory,
        and no more.

        The names are those of MaxText's `remat_policy: custom`, without "_proj": "inputs"
        (`decoder_layer_input`), "query", "key", "value", "context" (the result of attention),
        "out", "up" (`mlpwi`) and "down" (`mlpwo`).

        >>> costs.Remat.of(host=["inputs", "query", "key", "value"]).recomputes
        ('out', 'mlp', 'scores')

        Args:
          device: what stays on the chip.
          host: what goes to the host's memory, and comes back for the backward pass.

        Raises:
          ValueError: an unknown name, with the nearest; or the inputs of the layers are in neither.
        """
        host = tuple(one_of("host", name, tuple(_WIDTHS)) for name in host)
        device = tuple(
            name for name in device if one_of("device", name, tuple(_WIDTHS)) not in host
        )
        if "inputs" not in (*device, *host):
            raise ValueError(
                "a layer is computed again from its inputs, and "
                f"{', '.join((*device, *host)) or 'nothing'} has none; add 'inputs' to device "
                "or host"
            )
        widths = (
            [sum(_WIDTHS[name] == width for name in kept) for width in range(4)]
            for kept in (device, host)
        )
        kept = {*device, *host}
        again = tuple(part for part in ("query", "key", "value", "out") if part not in kept)
        again += ("mlp",) * ("up" not in kept) + ("scores",) * ("context" not in kept)
        scattered = (
            ("out" not in kept) + ("up" not in kept) + (not kept >= {"query", "key", "value"})
        )
        where = " and ".join(
            f"{', '.join(kept)} {place}"
            for kept, place in ((device, "kept"), (host, "offloaded"))
            if kept
        )
        keeps, hosts = widths
        return cls(
            where, tuple(keeps), again, 3 if "mlp" in again else 2, scattered / 2, tuple(hosts)
        )

    @property
    def whole_layers(self) -> bool:
        """Whether whole layers are computed again."""
        return "mlp" in self.recomputes

    @property
    def offloads(self) -> bool:
        """Whether something goes to the host's memory."""
        return any(self.hosts)

    def kept_width(self, model: Model) -> int:
        """Elements that one layer of a model keeps for a token on the chip."""
        return _width(self.keeps, model)

    def narrow_width(self, model: Model) -> float:
        """As `kept_width`, with products in fp8 on GPUs, in elements of 16 bits.

        TransformerEngine keeps the inputs of such products in fp8, attention's result in 16 bits
        besides, and computes a gated activation in one kernel, for which it keeps no product of its
        own. Every other kind keeps results and not inputs, so that nothing changes.

        Source: https://github.com/NVIDIA/TransformerEngine at 0004dbd,
        transformer_engine/pytorch/module/layernorm_mlp.py: what `save_for_backward` is given.
        """
        if self.keeps != REMAT["none"].keeps:
            return self.kept_width(model)
        return _width((3, 2.5, 2, 1.25 if model.gated else 1.5), model)

    def host_width(self, model: Model) -> int:
        """Elements that one layer of a model keeps for a token in the host's memory."""
        return _width(self.hosts, model)


def _width(counts, model):
    """Elements of so many arrays of each width."""
    queries, keys = model.heads * (model.head_dim + model.rope_dim), model.kv_heads * model.head_dim
    widths = model.d_model, queries, keys, (2 if model.gated else 1) * model.hidden
    return sum(count * width for count, width in zip(counts, widths, strict=True))


_ATTENTION = ("query", "key", "value", "out")
_LAYER = (*_ATTENTION, "mlp", "scores")
REMAT = {
    # x, its norm, q, k, v, attention's result; x after attention, its norm, the MLP's products, and
    # its output's input
    "none": Remat("nothing", (4, 2, 2, 2)),
    "matmuls": Remat("attention scores", (2, 1, 2, 1), ("scores",)),
    "mlp": Remat("attention", (1, 0, 0, 1), (*_ATTENTION, "scores"), pairs=0.5),
    "block": Remat("whole layers", (1, 0, 0, 0), _LAYER, reads=3, pairs=1.5),
    "offload": Remat(
        "layers, offloaded", (0, 0, 0, 0), _LAYER, reads=3, pairs=1.5, hosts=(1, 0, 0, 0)
    ),
}


_PROJECTIONS = ("inputs", "query", "key", "value")
# What MaxText calls its `remat_policy` (src/maxtext/layers/decoders.py at e591f30,
# get_remat_policy), and Megatron-LM its `--recompute-granularity`: "full" is that of both. Of each,
# the inputs of the layers stay on the chip.
POLICIES = {
    "full": REMAT["block"],
    "selective": REMAT["matmuls"],
    "minimal_with_context": Remat.of((*_PROJECTIONS, "context", "out", "up", "down")),
    "minimal": Remat.of((*_PROJECTIONS, "out", "up", "down")),
    "save_dot_with_context_except_mlp": Remat.of((*_PROJECTIONS, "context", "out")),
    "save_dot_except_mlpwi": Remat.of((*_PROJECTIONS, "out", "down")),
    "save_dot_except_mlp": Remat.of((*_PROJECTIONS, "out")),
    "save_qkv_proj": Remat.of(_PROJECTIONS),
    "save_out_proj": Remat.of(("inputs", "out")),
    "qkv_proj_offloaded": Remat.of(host=("query", "key", "value")),
    "minimal_offloaded": Remat.of(host=("query", "key", "value", "out", "up", "down")),
}


def remat_of(kind: str | Remat) -> Remat:
    """The kind that is called so, here or in `POLICIES`; ValueError for others, with the
    nearest.
    """
    if isinstance(kind, Remat):
        return kind
    named = REMAT | POLICIES
    return named[one_of("remat", kind, tuple(named))]
