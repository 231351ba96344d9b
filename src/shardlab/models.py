"""Transformers by their sizes, and how many parameters those make; some published ones by name."""

from dataclasses import dataclass

import numpy as np

from shardlab._arguments import Numbers, nearest, whole

__all__ = ["MODELS", "SIZES", "Model", "model", "parse"]

SIZES = ("layers", "d_model", "d_ff", "heads", "kv_heads", "head_dim", "vocab")  # the attributes that are numbers


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer by its sizes, called L, D, F, N, K, H, V in *How To Scale Your Model*.

    >>> sizes = {"layers": 2, "d_model": 64, "d_ff": 256, "vocab": 1000}
    >>> small = Model(**sizes, heads=4, kv_heads=2, head_dim=16)
    >>> small.attention_parameters, small.parameters
    (12288, 251200)

    Attributes:
      layers, d_model, d_ff, heads, kv_heads, head_dim, vocab: whole numbers.
      gated: whether the MLP has two input matrices (as SwiGLU) or one; it has one output matrix either way.
      tied: whether the embedding is also the output matrix.
      name: any text.
    """

    layers: int
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated: bool = True
    tied: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        for size in SIZES:
            whole(size, getattr(self, size))
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly; use a divisor")

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention: queries and output for each head, keys and values for each kv head."""
        return 2 * self.d_model * self.head_dim * (self.heads + self.kv_heads)

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one layer's MLP."""
        return (3 if self.gated else 2) * self.d_model * self.d_ff

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding and the output matrix together."""
        return (1 if self.tied else 2) * self.vocab * self.d_model

    @property
    def parameters(self) -> int:
        """All parameters, with two norms in each layer and one at the end. Llama 3 70B: 70,553,706,496."""
        layer = self.attention_parameters + self.mlp_parameters + 2 * self.d_model
        return self.layers * layer + self.embedding_parameters + self.d_model

    @property
    def matmul_parameters(self) -> int:
        """Those that every token is multiplied with: no norms, and the embedding once, as the output matrix."""
        return self.layers * (self.attention_parameters + self.mlp_parameters) + self.vocab * self.d_model

    def splits(self, chips: Numbers) -> bool | np.ndarray:
        """Whether so many chips, a number or an array, can share the heads and the kv heads of a layer evenly.

        More chips than kv heads are fine if each head is on a whole number of them.
        """
        return np.equal(self.heads % chips, 0) & (
            np.equal(self.kv_heads % chips, 0) | np.equal(chips % self.kv_heads, 0)
        )


# Sizes: Scaling Book, "Training LLaMA 3 on TPUs"; for Llama 2 "Training", "Some Problems to Work"; for Llama 3 8B
# Llama Team, "The Llama 3 Herd of Models", 2024, table 3, https://arxiv.org/abs/2407.21783.
MODELS = {
    model.name: model
    for model in (
        Model(40, 5120, 13824, 40, 40, 128, 32_000, name="llama-2-13b"),
        Model(32, 4096, 14_336, 32, 8, 128, 128_256, name="llama-3-8b"),
        Model(80, 8192, 28_672, 64, 8, 128, 128_256, name="llama-3-70b"),
    )
}


def model(name: str | Model) -> Model:
    """The model of a name.

    >>> model("llama-3-70b").layers
    80
    >>> f"{model('llama-3-70b').parameters:,} parameters"
    '70,553,706,496 parameters'

    Args:
      name: one of `MODELS`, or a `Model`, which is returned as it is.

    Raises:
      ValueError: there is no such model; the message lists the known ones.
    """
    if isinstance(name, Model):
        return name
    if name not in MODELS:
        known = ", ".join(MODELS)
        raise ValueError(f"no model is called {name!r}; known are {known}, or give its sizes{nearest(name, MODELS)}")
    return MODELS[name]


def parse(text: str) -> Model:
    """The model that a command line names: a known one, or sizes such as `layers=32,d_model=4096,...`.

    >>> sizes = "layers=2,d_model=64,d_ff=256,heads=4,kv_heads=2,head_dim=16,vocab=9"
    >>> models.parse(sizes).d_ff, models.parse("llama-3-8b").d_ff
    (256, 14336)

    Args:
      text: a name from `MODELS`, or all of `SIZES` with their values.

    Returns:
      A `Model`.

    Raises:
      ValueError: there is no such model, or a size is missing, unknown or no whole number.
    """
    if "=" not in text:
        return model(text)
    pairs = [pair.partition("=") for pair in text.split(",")]
    sizes = {name.strip(): value.strip() for name, _, value in pairs}
    if sorted(sizes) != sorted(SIZES):
        wrong = sorted(set(sizes) ^ set(SIZES))
        raise ValueError(f"a model has the sizes {', '.join(SIZES)}; missing or unknown: {', '.join(wrong)}")
    for name, value in sizes.items():
        if not value.isdigit():
            raise ValueError(f"{name} is {value!r}; use a whole number of at least 1")
    return Model(**{name: int(value) for name, value in sizes.items()})
