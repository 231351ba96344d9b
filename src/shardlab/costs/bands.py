"""How far off expected times were, by kind of plan: on published runs that nothing was fitted
to.
"""

import textwrap
from collections.abc import Mapping

from shardlab._arguments import one_of
from shardlab.costs.dtypes import FROZEN
from shardlab.costs.rates import FITTED, Band
from shardlab.costs.steps.parallelism import MESH_AXES
from shardlab.machines.hardware import Chip
from shardlab.machines.models import Model

__all__ = ["KINDS_OF_PLANS", "LONG", "band_of", "band_words", "kind_of_plan"]

LONG = 32_768  # tokens of a sequence from which on a plan counts as one for long sequences
ENOUGH = 8  # runs of which a band is made

# In the order in which they are asked, so that each plan is of one kind.
KINDS_OF_PLANS = {
    "quantised": "adapters on a frozen model in four or eight bits (QLoRA)",
    "adapted mixture": "adapters on a frozen mixture of experts",
    "adapters": "adapters on a frozen model (LoRA)",
    "narrow mixture": "mixtures of experts with products in fp8 or int8",
    "mixture": "mixtures of experts with bf16 products",
    "long": f"a context axis, or sequences of {LONG:,} tokens or more",
    "narrow": "products in fp8 or int8",
    "chip": "chips to which no share of the peak is fitted",
    "pipeline": "a pipeline in a mesh of three or more axes",
    "dense": "dense models with bf16 products",
}


def kind_of_plan(
    model: Model,
    chip: Chip,
    mesh: Mapping[str, int],
    sequence: int,
    products: str = "bf16",
    lora: int = 0,
    parameters: str | None = "bf16",
) -> str:
    """The kind of a plan, one of `KINDS_OF_PLANS`: what of it makes an expected time uncertain.

    >>> costs.kind_of_plan(model("mixtral-8x7b"), chip("H100"), {"fsdp": 64}, 4096)
    'mixture'

    Args:
      model: a `shardlab.models.Model`.
      chip: a `shardlab.hardware.Chip`.
      mesh: the sizes of its axes; those that are missing have one chip.
      sequence: tokens of a sequence.
      products: dtype of the products of the layers.
      lora: the rank of adapters on a frozen model; 0 if there are none.
      parameters: dtype of the model's parameters.
    """
    untested = not any(chip.name.startswith(name) for name in FITTED[_family(chip)].products)
    if lora and untested and parameters not in FROZEN and not model.experts:
        return "chip"
    long_axes = [axis for axis in MESH_AXES if mesh.get(axis, 1) > 1]
    has = {
        "quantised": lora > 0 and parameters in FROZEN,
        "adapted mixture": lora > 0 and model.experts > 0,
        "adapters": lora > 0,
        "narrow mixture": model.experts > 0 and products != "bf16",
        "mixture": model.experts > 0,
        "long": "context" in long_axes or sequence >= LONG,
        "narrow": products != "bf16",
        "chip": untested,
        "pipeline": "pipeline" in long_axes and len(long_axes) >= 3,
        "dense": True,
    }
    return next(kind for kind in KINDS_OF_PLANS if has[kind])


def _family(chip):
    return "tpu" if chip.torus else "gpu"


def band_of(chip: Chip, kind: str) -> Band | None:
    """The band of a kind of plan on such chips; None if fewer than eight published runs test it.

    >>> band = costs.band_of(chip("H100"), "dense")
    >>> band.tested >= 8, band.inside >= 0.9
    (True, True)

    Args:
      chip: a `shardlab.hardware.Chip`.
      kind: one of `KINDS_OF_PLANS`.

    Returns:
      A `Band`, or None.
    """
    band = FITTED[_family(chip)].bands.get(one_of("kind", kind, tuple(KINDS_OF_PLANS)))
    return band if band and band.tested >= ENOUGH else None


def band_words(chip: Chip, kind: str) -> str:
    """What a report says of the band of a kind.

    >>> print(costs.band_words(chip("v5p"), "pipeline"))
    No published run on TPUs tests such plans: a pipeline in a mesh of three or more axes.
    Eight are needed to say how far off the expected time may be.

    Args:
      chip: a `shardlab.hardware.Chip`.
      kind: one of `KINDS_OF_PLANS`.
    """
    band = band_of(chip, kind)
    where, few = f"{_family(chip).upper()}s", FITTED[_family(chip)].bands.get(kind)
    words = KINDS_OF_PLANS[kind]
    if band:
        text = (
            f"Of {band.tested} published runs on {where} of this kind ({words}), to which "
            f"nothing was fitted, half took more than {band.median:.2f} times as long as "
            f"expected; {band.inside:.0%} were within a factor of {band.factor:.2f}."
        )
    else:
        tested = (
            f"Only {few.tested} published runs on {where} test"
            if few
            else f"No published run on {where} tests"
        )
        text = f"{tested} such plans: {words}. "
        text += "Eight are needed to say how far off the expected time may be."
    return textwrap.fill(text, 86)
