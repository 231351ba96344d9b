"""Adapters of low rank on a frozen model: LoRA, and QLoRA's frozen model in four bits."""

from shardlab._arguments import short
from shardlab.costs.dtypes import FROZEN
from shardlab.machines.models import Model


def check_adapters(model: Model, lora: int, parameters: str | None) -> None:
    """ValueError for a rank that is none, or a model on which no adapters are counted here."""
    if isinstance(lora, bool) or not isinstance(lora, int) or not 0 <= lora <= model.d_model:
        raise ValueError(
            f"lora is {short(lora)}; use the rank of the adapters, a whole number up to "
            f"{model.d_model:,}, or 0 to train all parameters"
        )
    if lora and (model.experts or model.kv_rank):
        what = "a mixture of experts" if model.experts else "latent attention"
        raise ValueError(
            f"adapters are counted for dense models alone, and {model.name or 'this model'} has "
            f"{what}; leave lora out"
        )
    if parameters in FROZEN and not lora:
        raise ValueError(
            f"parameters in {parameters} cannot be trained; add adapters on them, such as lora=16"
        )


def adapter_parameters(model: Model, lora: int) -> int:
    """Those of the adapters of a layer: of each matrix from m to n elements, rank times m + n.

    Source: Hu and others, "LoRA: Low-Rank Adaptation of Large Language Models", 2021, section 4.1;
    on all matrices of the layers, as QLoRA's section 4 finds to be needed.
    """
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    attention = 2 * (model.d_model + queries) + 2 * (model.d_model + keys)
    return lora * (attention + (3 if model.gated else 2) * (model.d_model + model.d_ff))


def mean_bytes(model: Model, size: float, dtype: str | None) -> float:
    """Bytes of a parameter on average: in a frozen dtype the embedding and the output matrix, which
    have 16 bits, are none of the layers' matrices.
    """
    if dtype not in FROZEN:
        return size
    embedding = model.embedding_parameters
    return (size * (model.parameters - embedding) + 2 * embedding) / model.parameters
