"""Transformers by their sizes, and how many parameters those make; some published ones by name."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

import numpy as np

from shardlab._arguments import Numbers, file_bytes, nearest, plain, short

__all__ = ["MODELS", "SIZES", "Model", "from_config", "model", "parse"]

# the attributes that every model has
SIZES = ("layers", "d_model", "d_ff", "heads", "kv_heads", "head_dim", "vocab")
_OPTIONAL = (
    "experts", "experts_per_token", "shared_experts", "expert_d_ff", "dense_layers", "kv_rank",
    "q_rank", "rope_dim",
    "window", "local_layers",
)  # fmt: skip
# of anything that is counted; and its square, of parameters, is still a whole number of 64 bits
_MOST = 10**9


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer by its sizes, called L, D, F, N, K, H, V in *How To Scale Your
    Model*.

    >>> sizes = {"layers": 2, "d_model": 64, "d_ff": 256, "vocab": 1000}
    >>> small = Model(**sizes, heads=4, kv_heads=2, head_dim=16)
    >>> small.attention_parameters, small.parameters
    (12288, 251200)

    In a mixture of experts each token uses some of the experts, so fewer parameters are active than
    there are.

    >>> mixture = model("mixtral-8x7b")
    >>> f"{mixture.parameters / 1e9:.1f} billion, {mixture.active_parameters / 1e9:.1f} of them active"
    '46.7 billion, 12.9 of them active'

    Attributes:
      layers, d_model, d_ff, heads, kv_heads, head_dim, vocab: whole numbers.
      gated: whether the MLP has two input matrices (as SwiGLU) or one; it has one output matrix
        either way.
      tied: whether the embedding is also the output matrix.
      name: any text.
      experts: routed experts of a layer, each an MLP; 0 for a dense model.
      experts_per_token: how many of them a token uses.
      shared_experts: further experts that every token uses.
      expert_d_ff: hidden units of an expert; 0 for as many as `d_ff`.
      dense_layers: how many layers have a plain MLP of `d_ff` instead of experts, such as the first
        of DeepSeek-V3 or every second of Llama 4 Maverick.
      kv_rank: with multi-head latent attention (MLA), the size of the latent from which keys and
        values are made, and which is cached instead of them; 0 without.
      q_rank: with MLA, the size of the latent of the queries; 0 for none.
      rope_dim: with MLA, the size of the part of queries and keys that has rotary positions, in
        addition to `head_dim`; this part of the keys is shared by all heads.
      window, local_layers: tokens that each token attends to at most in the layers with a sliding
        window, and how many layers have one. They save FLOPs of attention; the KV cache is counted
        as without.
    """  # noqa: E501

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
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_d_ff: int = 0
    dense_layers: int = 0
    kv_rank: int = 0
    q_rank: int = 0
    rope_dim: int = 0
    window: int = 0
    local_layers: int = 0

    def __post_init__(self) -> None:
        for size in (*SIZES, *_OPTIONAL):
            value, least = getattr(self, size), int(size in SIZES)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ValueError(
                    f"{size} is {short(value)}; use a whole number of at least {least}"
                )
            if value > _MOST:
                raise ValueError(
                    f"{size} is {short(value)}; use a whole number of at most {_MOST:,}"
                )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly; use a divisor"
            )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token is {self.experts_per_token}; use a number from 1 to "
                f"{self.experts}, the experts"
            )
        if not 0 <= self.dense_layers <= self.layers:
            raise ValueError(
                f"dense_layers is {self.dense_layers}; use a number from 0 to {self.layers}, "
                "the layers"
            )
        if not 0 <= self.local_layers <= self.layers * (self.window > 0):
            raise ValueError(
                f"local_layers is {self.local_layers} with a window of {self.window}; use a "
                f"number from 0 to {self.layers}, the layers, and 0 without a window"
            )
        if self.parameters > _MOST**2:
            raise ValueError(
                f"{self.parameters:,} parameters are too many; use sizes of at most "
                f"{_MOST**2:,} in all"
            )

    @property
    def expert_layers(self) -> int:
        """Layers that have experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention: queries and output for each head, keys and values
        for each kv head.
        """
        if not self.kv_rank:
            return 2 * self.d_model * self.head_dim * (self.heads + self.kv_heads)
        weights = self.heads * (self.head_dim + self.rope_dim)  # queries
        queries = self.q_rank * (self.d_model + weights) if self.q_rank else self.d_model * weights
        latent = self.d_model * (self.kv_rank + self.rope_dim)
        return queries + latent + self.heads * self.head_dim * (2 * self.kv_rank + self.d_model)

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one layer's MLP, where it is no mixture of experts."""
        return (3 if self.gated else 2) * self.d_model * self.d_ff

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert."""
        return (3 if self.gated else 2) * self.d_model * (self.expert_d_ff or self.d_ff)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding and the output matrix together."""
        return (1 if self.tied else 2) * self.vocab * self.d_model

    @property
    def routed_parameters(self) -> int:
        """Parameters of all routed experts of all layers: those that expert parallelism shards."""
        return self.expert_layers * self.experts * self.expert_parameters

    @property
    def parameters(self) -> int:
        """All parameters, with two norms in each layer and one at the end. Llama 3 70B:
        70,553,706,496.
        """
        dense = self.layers - self.expert_layers
        # and the router
        always = self.shared_experts * self.expert_parameters + self.d_model * self.experts
        layers = (
            self.layers * (self.attention_parameters + 2 * self.d_model)
            + dense * self.mlp_parameters
        )
        return (
            layers
            + self.expert_layers * always
            + self.routed_parameters
            + self.embedding_parameters
            + self.d_model
        )

    @property
    def active_parameters(self) -> int:
        """Those that a token uses: all but the routed experts that it is not sent to."""
        idle = self.experts - self.experts_per_token
        return self.parameters - self.expert_layers * idle * self.expert_parameters

    @property
    def matmul_parameters(self) -> int:
        """Those that every token is multiplied with: no norms, and the embedding once, as the
        output matrix.
        """
        return self.layers * self.layer_matmul_parameters + self.vocab * self.d_model

    @property
    def layer_matmul_parameters(self) -> float:
        """Those of a layer, on average over the layers."""
        return self.attention_parameters + self.ff_matmul_parameters

    @property
    def ff_matmul_parameters(self) -> float:
        """Those of a layer's MLP, or of the experts that a token uses and their router, on average
        over the layers.
        """
        if not self.experts:
            return self.mlp_parameters
        used = (
            self.experts_per_token + self.shared_experts
        ) * self.expert_parameters + self.d_model * self.experts
        return (self.expert_layers * used + self.dense_layers * self.mlp_parameters) / self.layers

    @property
    def hidden(self) -> float:
        """Hidden units of the MLPs that a token passes through in a layer, on average over the
        layers.
        """
        if not self.experts:
            return self.d_ff
        used = (self.experts_per_token + self.shared_experts) * (self.expert_d_ff or self.d_ff)
        return (self.expert_layers * used + self.dense_layers * self.d_ff) / self.layers

    @property
    def cached_elements(self) -> int:
        """Elements that the KV cache holds for a token, in all layers: keys and values, or with MLA
        their latent.
        """
        each = self.kv_rank + self.rope_dim if self.kv_rank else 2 * self.kv_heads * self.head_dim
        return self.layers * each

    def attended(self, sequence: Numbers) -> Numbers:
        """Tokens that a token attends to in a sequence, on average over the layers.

        Of gpt-oss-120b's 36 layers 18 attend to at most 128 tokens: (128 + 8,192) / 2.
        """
        if not self.local_layers:
            return sequence
        near = np.minimum(sequence, self.window) * self.local_layers
        return (near + np.multiply(sequence, self.layers - self.local_layers)) / self.layers

    def splits(self, chips: Numbers) -> bool | np.ndarray:
        """Whether so many chips, a number or an array, can share the heads and the kv heads of a
        layer evenly.

        More chips than kv heads are fine if each head is on a whole number of them.
        """
        return np.equal(self.heads % chips, 0) & (
            np.equal(self.kv_heads % chips, 0) | np.equal(chips % self.kv_heads, 0)
        )


# Sizes: Scaling Book, "Training LLaMA 3 on TPUs"; for Llama 2 "Training", "Some Problems to Work";
# for Llama 3 8B and 405B Llama Team, "The Llama 3 Herd of Models", 2024, table 3,
# https://arxiv.org/abs/2407.21783; for GPT-3 Brown and others, 2020, table 2.1,
# https://arxiv.org/abs/2005.14165. The others from the config.json that is published with them:
# https://huggingface.co/mistralai/Mixtral-8x7B-v0.1,
# https://huggingface.co/mistralai/Mixtral-8x22B-v0.1,
# https://huggingface.co/deepseek-ai/DeepSeek-V3, https://huggingface.co/google/gemma-7b, and
# gemma-2-27b there.
MODELS = {
    model.name: model
    for model in (
        Model(40, 5120, 13824, 40, 40, 128, 32_000, name="llama-2-13b"),
        Model(32, 4096, 14_336, 32, 8, 128, 128_256, name="llama-3-8b"),
        Model(80, 8192, 28_672, 64, 8, 128, 128_256, name="llama-3-70b"),
        Model(126, 16_384, 53_248, 128, 8, 128, 128_256, name="llama-3-405b"),
        Model(96, 12_288, 49_152, 96, 96, 128, 50_257, gated=False, tied=True, name="gpt-3-175b"),
        Model(28, 3072, 24_576, 16, 16, 256, 256_000, tied=True, name="gemma-7b"),
        Model(46, 4608, 36_864, 32, 16, 128, 256_000, tied=True, name="gemma-2-27b"),
        Model(
            32,
            4096,
            14_336,
            32,
            8,
            128,
            32_000,
            experts=8,
            experts_per_token=2,
            name="mixtral-8x7b",
        ),
        Model(
            56,
            6144,
            16_384,
            48,
            8,
            128,
            32_768,
            experts=8,
            experts_per_token=2,
            name="mixtral-8x22b",
        ),
        Model(
            61,
            7168,
            18_432,
            128,
            128,
            128,
            129_280,
            experts=256,
            experts_per_token=8,
            shared_experts=1,
            expert_d_ff=2048,
            dense_layers=3,
            kv_rank=512,
            q_rank=1536,
            rope_dim=64,
            name="deepseek-v3",
        ),
    )
}


def _plain(name):
    """A name without what people write differently: "Llama3 70B" and "llama-3-70b" are both
    "llama370b".
    """
    return re.sub(r"[^a-z0-9]", "", re.sub(r"^.*/|^meta-", "", str(name).lower()))


def model(name: str | Model) -> Model:
    """The model of a name.

    >>> model("llama-3-70b").layers
    80
    >>> f"{model('Llama3 70B').parameters:,} parameters"
    '70,553,706,496 parameters'

    Args:
      name: one of `MODELS`, however it is spaced and hyphenated, or a `Model`, which is returned as
        it is.

    Raises:
      ValueError: there is no such model; the message lists the known ones.
    """
    if isinstance(name, Model):
        return name
    known = {_plain(key): key for key in MODELS}
    if _plain(name) not in known:
        raise ValueError(
            f"no model is called {name!r}; known are {', '.join(MODELS)}; or give its sizes, "
            f"or the file of its config.json{nearest(name, MODELS)}"
        )
    return MODELS[known[_plain(name)]]


_CONFIG = {  # what Hugging Face's configurations call each size
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "d_model": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "d_ff": ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "num_attention_heads",
        "n_head",
        "n_heads",
    ),
    "head_dim": ("qk_nope_head_dim", "head_dim"),
    "vocab": ("vocab_size",),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "experts_per_token": ("num_experts_per_tok", "experts_per_token"),
    "shared_experts": ("n_shared_experts",),
    "expert_d_ff": ("moe_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
    "kv_rank": ("kv_lora_rank",),
    "q_rank": ("q_lora_rank",),
    "rope_dim": ("qk_rope_head_dim",),
    "window": ("sliding_window", "attention_chunk_size"),
    "local_layers": (),
}


@dataclass(frozen=True)
class _Type:
    """What a `model_type` has where its configuration does not say, as in transformers 4.57.1,
    or of younger types at 008e574.
    """

    tied: bool = False
    gated: bool = True
    sizes: Mapping[str, int] = field(default_factory=dict)
    # which layers have a window: "all", "half", "pattern", "upper", or all but every "fourth"
    local: str = ""


_TYPES = {
    "bloom": _Type(tied=True, gated=False),
    "cohere": _Type(tied=True),
    "deepseek_v2": _Type(),
    "deepseek_v3": _Type(),
    "falcon": _Type(tied=True, gated=False),
    "gemma": _Type(tied=True, sizes={"head_dim": 256}),
    "gemma2": _Type(tied=True, sizes={"head_dim": 256}, local="half"),
    "gemma3_text": _Type(
        tied=True,
        sizes={"head_dim": 256, "heads": 8, "kv_heads": 4, "vocab": 262_208},
        local="pattern",
    ),
    "glm4_moe": _Type(sizes={"head_dim": 128}),
    "granite": _Type(),
    "gpt2": _Type(tied=True, gated=False),
    "gpt_bigcode": _Type(tied=True, gated=False),
    "gpt_neox": _Type(gated=False),
    "gpt_oss": _Type(sizes={"head_dim": 64}, local="half"),
    "gptj": _Type(gated=False),
    "kimi_k2": _Type(),
    "llama": _Type(),
    "llama4_text": _Type(sizes={"head_dim": 128}, local="fourth"),
    "minimax_m2": _Type(sizes={"head_dim": 128}),
    "mistral": _Type(local="all"),
    "mixtral": _Type(local="all"),
    "mpt": _Type(tied=True, gated=False),
    "nemotron": _Type(gated=False),
    "olmo": _Type(),
    "olmo2": _Type(),
    "olmo3": _Type(local="fourth"),
    "olmoe": _Type(),
    "opt": _Type(tied=True, gated=False),
    "phi": _Type(gated=False),
    "phi3": _Type(local="all"),
    "phimoe": _Type(local="all"),
    "qwen2": _Type(local="upper"),
    "qwen2_moe": _Type(local="upper"),
    "qwen3": _Type(sizes={"head_dim": 128}, local="upper"),
    "qwen3_moe": _Type(local="upper"),
    "seed_oss": _Type(sizes={"head_dim": 128}),
    "smollm3": _Type(tied=True),
    "starcoder2": _Type(tied=True, gated=False, local="all"),
}
# whose language model may have no type of its own
_WITH_PICTURES = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
}
# Models whose attention or layers are counted by no formula here, and what to do instead.
_UNCOUNTED = {
    "deepseek_v32": "selects tokens for attention with an indexer; write deepseek_v3 for a plan "
    "with all of them and without the indexer",
    "gemma4": "has layers whose heads have two widths, and embeddings of its own for each layer; "
    "give the sizes that come nearest, such as layers=32,d_model=4096",
}
_UNCOUNTED["gemma4_text"] = _UNCOUNTED["gemma4"]
# Their layers are not all attention and an MLP, so that nothing here counts them.
_HYBRID = (
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "mamba", "mamba2",
    "minimax",
    "nemotron_h", "qwen3_next", "recurrent_gemma", "rwkv", "zamba", "zamba2",
)  # fmt: skip


def from_config(config: str | Path | Mapping) -> Model:
    """The model that a `config.json` describes, as Hugging Face publishes one with each model.

    >>> config = {
    ...     "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...     "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    ... }
    >>> models.from_config(config).parameters == model("mixtral-8x7b").parameters
    True

    Args:
      config: the path of the file, or what is in it. Its `model_type` says what the sizes mean and
        what a size is that it does not name; without one it is read like Llama's.

    Returns:
      A `Model`. Biases and learned positions are not counted, and neither is what sees pictures.

    Raises:
      ValueError: it is no JSON, its `model_type` is not understood, or a size is missing or no such
        number; the message names it.
      OSError: the file cannot be read.
    """  # noqa: E501
    name = ""
    if not isinstance(config, Mapping):
        name = Path(config).resolve().parent.name
        try:
            config = json.loads(file_bytes(file := config).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{file} is no JSON: {error}; give the config.json of a model"
            ) from None
    # of a model that sees pictures too
    if isinstance(config, Mapping) and config.get("text_config") is not None:
        inner = config["text_config"]
        config = {**config, **inner} if isinstance(inner, Mapping) else inner
    if not isinstance(config, Mapping):
        raise ValueError(
            f"a configuration is a table of sizes, not {short(config)}; give the config.json "
            "of a model"
        )
    kind, known = _type_of(config)
    sizes = {}
    for size, keys in _CONFIG.items():
        key = next((key for key in keys if config.get(key) is not None), None)
        if key is not None:
            sizes[size] = _size(key, config[key])
    sizes = {**known.sizes, **sizes}
    if "head_dim" not in sizes and {"d_model", "heads"} <= sizes.keys():
        sizes["head_dim"] = sizes["d_model"] // max(sizes["heads"], 1)
    if "d_ff" not in sizes and "d_model" in sizes:
        ratio = (
            _size("expansion_ratio", config["expansion_ratio"])
            if config.get("expansion_ratio") is not None
            else 4
        )
        sizes["d_ff"] = ratio * sizes["d_model"]
    if missing := [size for size in SIZES if size not in sizes]:
        looked = " or ".join(_CONFIG[missing[0]])
        raise ValueError(f"the configuration has no {missing[0]}: looked for {looked}; add it")
    sizes |= _of_type(kind, config, sizes)
    sizes["local_layers"] = _local_layers(known, config, sizes)
    sizes["window"] = sizes.get("window", 0) if sizes["local_layers"] else 0
    name = str(config.get("_name_or_path") or name)
    tied = _flag(config, "tie_word_embeddings", known.tied)
    return Model(**sizes, gated=known.gated, tied=tied, name=plain(name.split("/")[-1], 80))


def _family(kind):
    """The name before the version of a `model_type`."""
    return re.match(r"[a-z]*", kind.lower())[0]


def _type_of(config):
    """(the `model_type` of a configuration, what is known of it)."""
    kind = config.get("model_type")
    if kind is None:
        return "", _Type()
    if not isinstance(kind, str):
        raise ValueError(f"model_type is {short(kind)}; write a name such as 'llama'")
    kind = _WITH_PICTURES.get(kind, kind)
    if kind in _HYBRID:
        raise ValueError(
            f"model_type {kind!r} has layers without attention, such as those of a "
            "state-space model, which are not counted here; give a model whose layers are "
            "all attention and an MLP, or experts"
        )
    if kind in _UNCOUNTED:
        raise ValueError(f"model_type {kind!r} {_UNCOUNTED[kind]}")
    if kind not in _TYPES:
        # another version of a model is not what was meant
        others = [known for known in _TYPES if _family(known) != _family(kind)]
        raise ValueError(
            f"model_type {short(kind)} is not understood{nearest(kind, others)}; give the "
            "sizes instead, such as layers=32,d_model=4096, or leave model_type out for "
            "layers like Llama's"
        )
    return kind, _TYPES[kind]


def _of_type(kind, config, sizes):
    """The sizes that a type calls by names of its own."""
    layers, own = sizes["layers"], {}
    if (
        kind == "falcon" and not _flag(config, "new_decoder_architecture", False)
    ) or kind == "gpt_bigcode":
        own["kv_heads"] = 1 if _flag(config, "multi_query", True) else sizes["heads"]
    if kind == "llama4_text":
        step = max(_sized(config, "interleave_moe_layer_step", 1), 1)
        own |= {"expert_d_ff": _sized(config, "intermediate_size", 8192), "shared_experts": 1}
        own["dense_layers"] = layers - layers // step
    if kind in ("qwen2_moe", "qwen3_moe") and sizes.get("experts"):
        step, plain = (
            max(_sized(config, "decoder_sparse_step", 1), 1),
            config.get("mlp_only_layers") or (),
        )
        if not isinstance(plain, list | tuple):
            raise ValueError(
                f"mlp_only_layers is {short(plain)} in the configuration; write a list of layers"
            )
        own["dense_layers"] = sum(
            (layer + 1) % step > 0 or layer in plain for layer in range(min(layers, 10_000))
        )
        if kind == "qwen2_moe" and sizes.get("expert_d_ff"):
            shared = _sized(config, "shared_expert_intermediate_size", 0)
            if shared % sizes["expert_d_ff"]:
                raise ValueError(
                    f"shared_expert_intermediate_size is {shared}, which is no multiple of "
                    f"moe_intermediate_size, {sizes['expert_d_ff']}; give the sizes instead"
                )
            own["shared_experts"] = shared // sizes["expert_d_ff"]
    if kind in ("deepseek_v2", "deepseek_v3", "kimi_k2"):
        values = _sized(config, "v_head_dim", sizes["head_dim"])
        if values != sizes["head_dim"] or _sized(config, "moe_layer_freq", 1) != 1:
            raise ValueError(
                f"v_head_dim is {values} beside heads of {sizes['head_dim']}, or "
                "moe_layer_freq is not 1; neither is counted here: give the sizes instead"
            )
    return own


def layers_with_window(kind: str) -> str:
    """Which layers of a `model_type` have a sliding window if its configuration has one: "all",
    "half", and so on; "" for none.
    """
    return _TYPES[kind].local


def _local_layers(known, config, sizes):
    """How many layers have a sliding window."""
    layers, types = sizes["layers"], config.get("layer_types")
    if not sizes.get("window") or not known.local:
        return 0
    if known.local == "upper" and not _flag(config, "use_sliding_window", False):
        return 0
    if types is not None:
        if not isinstance(types, list | tuple) or len(types) != layers:
            raise ValueError(
                f"layer_types is {short(types)} in the configuration; write a list of "
                f"{layers} types"
            )
        return sum(kind in ("sliding_attention", "chunked_attention") for kind in types)
    pattern = max(_sized(config, "sliding_window_pattern", 6), 1)
    return {
        "all": layers,
        "half": layers - layers // 2,
        "pattern": layers - layers // pattern,
        "upper": layers - min(_sized(config, "max_window_layers", 28), layers),
        "fourth": layers - layers // 4,
    }[known.local]


def _flag(config, key, default):
    """A value of a configuration that is true or false."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key} is {short(value)} in the configuration; write true or false")
    return default if value is None else value


def _sized(config, key, default):
    """A size of a configuration, or what it is if that does not say."""
    return default if config.get(key) is None else _size(key, config[key])


def _size(key, value):
    """A size in a configuration, which may have been written as 4096.0."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(
            f"{key} is {short(value)} in the configuration; write a whole number of at most "
            f"{_MOST:,}"
        )
    return value


def parse(text: str) -> Model:
    """The model that a command line names: a known one, a file, or sizes such as
    `layers=32,d_model=4096,...`.

    >>> sizes = "layers=2,d_model=64,d_ff=256,heads=4,kv_heads=2,head_dim=16,vocab=9"
    >>> models.parse(sizes).d_ff, models.parse("llama-3-8b").d_ff
    (256, 14336)

    Args:
      text: a name from `MODELS`; the path of a config.json; or all of `SIZES` with their values,
        and those of `Model`'s other attributes that differ from none.

    Returns:
      A `Model`.

    Raises:
      ValueError: there is no such model, or a size is missing, unknown or no whole number.
    """
    if text.endswith(".json"):
        try:
            return from_config(text)
        except OSError as error:
            raise ValueError(f"{text} cannot be read: {error.strerror}") from None
    if "=" not in text:
        return model(text)
    pairs = [pair.partition("=") for pair in text.split(",")]
    sizes = {name.strip(): value.strip() for name, _, value in pairs}
    if len(sizes) < len(pairs):
        twice = next(name for name in sizes if [pair[0].strip() for pair in pairs].count(name) > 1)
        raise ValueError(f"{twice} is given twice; give each size once")
    wrong = [size for size in SIZES if size not in sizes] + [
        size for size in sizes if size not in _CONFIG
    ]
    if wrong:
        raise ValueError(
            f"a model has the sizes {', '.join(SIZES)}; missing or unknown: {', '.join(wrong)}"
        )
    for name, value in sizes.items():
        if not re.fullmatch("[0-9]{1,40}", value):
            raise ValueError(f"{name} is {short(value)}; use a whole number of at least 1")
    return Model(**{name: int(value) for name, value in sizes.items()})
