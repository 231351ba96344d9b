"""Adapters of low rank on a frozen model: LoRA, and QLoRA's frozen model in four bits."""

from dataclasses import dataclass

from shardlab._arguments import one_of, short
from shardlab.costs.dtypes import FROZEN
from shardlab.machines.models import Model

ADAPTED = ("all", "attention")  # on which matrices


@dataclass(frozen=True)
class Adapters:
    """How many parameters the adapters of a model have, in all layers.

    Attributes:
      shared, routed: without those of routed experts, and those.
      used: of those that a token passes through.
    """

    shared: int
    routed: int
    used: int

    @property
    def total(self) -> int:
        """All."""
        return self.shared + self.routed


def check_adapters(model: Model, lora: int, parameters: str | None, adapted: str = "all") -> None:
    """ValueError for a rank or matrices that are none, or parameters that cannot be trained."""
    if isinstance(lora, bool) or not isinstance(lora, int) or not 0 <= lora <= model.d_model:
        raise ValueError(
            f"lora is {short(lora)}; use the rank of the adapters, a whole number up to "
            f"{model.d_model:,}, or 0 to train all parameters"
        )
    if one_of("adapted", adapted, ADAPTED) != "all" and not lora:
        raise ValueError(
            f"adapted={adapted!r} has no effect without adapters; add their rank, such as lora=16"
        )
    if parameters in FROZEN and not lora:
        raise ValueError(
            f"parameters in {parameters} cannot be trained; add adapters on them, such as lora=16"
        )


def adapters_of(model: Model, lora: int, adapted: str = "all") -> Adapters:
    """The `Adapters` of this rank: of each matrix from m to n elements, rank times m + n.

    Source: Hu and others, "LoRA: Low-Rank Adaptation of Large Language Models", 2021, section 4.1;
    on all matrices of the layers, as QLoRA's section 4 finds to be needed.
    """
    d, ways = model.d_model, 3 if model.gated else 2
    shared = model.layers * lora * _attention_sides(model)
    if adapted == "attention":
        return Adapters(shared, 0, shared)
    one = lora * ways * (d + (model.expert_d_ff or model.d_ff))  # expert
    mixed = model.expert_layers
    shared += (model.layers - mixed) * lora * ways * (d + model.d_ff)
    shared += mixed * model.shared_experts * one
    return Adapters(
        shared, mixed * model.experts * one, shared + mixed * model.experts_per_token * one
    )


def _attention_sides(model):
    """The sum of m + n over the matrices of a layer's attention."""
    d, values = model.d_model, model.heads * model.head_dim
    if not model.kv_rank:
        return 2 * (d + values) + 2 * (d + model.kv_heads * model.head_dim)
    queries = model.heads * (model.head_dim + model.rope_dim)
    sides = d + queries + 2 * model.q_rank  # through a latent, if there is one
    return sides + d + 2 * model.kv_rank + model.rope_dim + 3 * values + d


def mean_bytes(model: Model, size: float, dtype: str | None) -> float:
    """Bytes of a parameter on average: in a frozen dtype the embedding and the output matrix, which
    have 16 bits, are none of the layers' matrices.
    """
    if dtype not in FROZEN:
        return size
    embedding = model.embedding_parameters
    return (size * (model.parameters - embedding) + 2 * embedding) / model.parameters


def largest_matrix(model: Model) -> int:
    """Elements of the largest matrix of an MLP or of an expert."""
    plain = not model.experts or model.dense_layers
    return model.d_model * (model.d_ff if plain else model.expert_d_ff or model.d_ff)
