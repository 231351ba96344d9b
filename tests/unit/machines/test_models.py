"""models: whatever a configuration holds, it is read, or refused with the one error that is
promised.
"""

import json
import re
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from shardlab.machines import models

pytestmark = pytest.mark.reads("src/shardlab")

MIXTRAL = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
PUBLISHED = tomllib.loads((Path(__file__).parent / "configs.toml").read_text("utf-8"))
TYPES = st.sampled_from([*models._TYPES, *models._HYBRID, "llama3"])
OTHERS = {
    "text_config", "_name_or_path", "layer_types", "tie_word_embeddings", "use_sliding_window",
    "sliding_window_pattern", "max_window_layers", "multi_query", "new_decoder_architecture",
    "interleave_moe_layer_step", "decoder_sparse_step", "mlp_only_layers",
    "shared_expert_intermediate_size",
    "v_head_dim", "moe_layer_freq", "expansion_ratio",
}  # fmt: skip
KEYS = sorted({*sum(models._CONFIG.values(), ()), "model_type"} | OTHERS)
NUMBERS = (
    st.sampled_from([0, -1, 1, 1.5, 2.0, float("inf"), float("nan"), 10**30, 10**400, True])
    | st.integers()
)
VALUES = (
    st.none()
    | NUMBERS
    | st.text(max_size=4)
    | st.lists(st.none(), max_size=1)
    | st.just({"hidden_size": []})
)


@settings(max_examples=800, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3), kind=st.none() | TYPES)
def test_a_configuration_is_read_or_refused(changes, kind):
    try:
        made = models.from_config(MIXTRAL | {"model_type": kind} | changes)
    except ValueError as error:
        assert len(str(error)) < 300 and "\n" not in str(error)
        return
    sizes = [asdict(made)[size] for size in models._CONFIG]
    assert (
        all(type(size) is int for size in sizes)
        and 0 < made.active_parameters <= made.parameters < 2**63
    )


@pytest.mark.parametrize(
    "text", ["[1]", "3", '"x"', "[" * 100_000, "{", "\0", '{"text_config": []}', "{}"]
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"give the config\.json|has no layers"):
        models.parse(str(tmp_path / "config.json"))


def test_a_file_of_other_bytes_is_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(ValueError, match="is no JSON"):
        models.from_config(tmp_path / "config.json")


def test_a_size_may_be_written_with_a_point():
    assert (
        models.from_config(json.loads(json.dumps(MIXTRAL | {"vocab_size": 32000.0}))).vocab == 32000
    )


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("²", "use a whole number"),
        ("9" * 30, "at most 1,000,000,000"),
        ("9" * 5000, "use a whole number"),
        ("1,layers=2", "layers is given twice"),
    ],
)
def test_a_size_that_is_none_is_named(size, says):
    with pytest.raises(ValueError, match=says) as error:
        models.parse(f"d_model=64,d_ff=256,heads=4,kv_heads=2,head_dim=16,vocab=9,layers={size}")
    assert "layers" in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_published_parameters(name):
    entry = PUBLISHED[name]
    made = models.from_config(entry["config"])
    assert made.parameters == pytest.approx(entry["parameters"], rel=0.01)
    assert all(
        re.search(r" at [0-9a-f]{12}\b|https://|index file \d", entry[place])
        for place in ("source", "count")
    )
    assert (made.window, made.local_layers) == (
        entry.get("window", 0),
        entry.get("local_layers", 0),
    )
    if "active" in entry:
        assert made.active_parameters == pytest.approx(entry["active"], rel=0.02)


def test_configurations_are_read_with_the_keys_that_their_owners_write():
    """BLOOM's has names of its own, and that of Gemma 3 4B leaves out what transformers fills
    in.
    """
    bloom = models.from_config(
        {
            "model_type": "bloom",
            "n_embed": 14_336,
            "n_layer": 70,
            "num_attention_heads": 112,
            "vocab_size": 250_880,
        }
    )
    assert (
        bloom == replace(models.from_config(PUBLISHED["bloom"]["config"]), name="")
        and bloom.heads == 112
    )
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    gemma = models.from_config({"model_type": "gemma3", "text_config": text})
    assert (gemma.heads, gemma.kv_heads, gemma.head_dim, gemma.vocab, gemma.window) == (
        8,
        4,
        256,
        262_208,
        1024,
    )
    assert (
        models.from_config(
            {"text_config": {**text, "num_attention_heads": 16, "vocab_size": 1000}}
        ).heads
        == 16
    )


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_a_model_that_sees_pictures_is_read_with_or_without_a_table_of_its_text(kind):
    plain = {"qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe"}.get(kind, "qwen2")
    config = next(
        entry["config"] for entry in PUBLISHED.values() if entry["config"]["model_type"] == plain
    )
    flat = models.from_config(config | {"model_type": kind, "vision_config": {"depth": 32}})
    text = {**config, "model_type": f"{kind}_text"}
    inner = models.from_config({"model_type": kind, "text_config": text})
    assert flat == inner == models.from_config(config)


def test_every_type_that_is_understood_is_tested_on_a_published_model():
    tested = {
        entry["config"].get("text_config", entry["config"])["model_type"]
        for entry in PUBLISHED.values()
    }
    assert tested == models._TYPES.keys()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("jamba", "'jamba' has layers without attention"),
        ("mamba2", "'mamba2' has layers without attention"),
        ("nemotron_h", "'nemotron_h' has layers without attention"),
        ("qwen3_next", "'qwen3_next' has layers without attention"),
        ("qwen4", "model_type 'qwen4' is not understood; give the sizes"),
        ("gwen3", "model_type 'gwen3' is not understood; did you mean 'qwen2'|'qwen3'"),
        ("gemma4", "'gemma4' has layers whose heads have two widths"),
        ("gemma4_text", "'gemma4_text' has layers whose heads have two widths"),
        ("deepseek_v32", "'deepseek_v32' selects tokens.*write deepseek_v3 for a plan"),
        ("bert", "model_type 'bert' is not understood"),
        (3, "model_type is 3; write a name"),
        (["llama"], "model_type is .*; write a name"),
    ],
)
def test_a_type_that_is_not_understood_is_refused_by_its_name(kind, says):
    with pytest.raises(ValueError, match=says):
        models.from_config(MIXTRAL | {"model_type": kind})


@pytest.mark.parametrize(
    ("kind", "key", "value", "says"),
    [
        ("mixtral", "hidden_size", "4096", "hidden_size is '4096'"),
        (
            "mixtral",
            "tie_word_embeddings",
            "false",
            "tie_word_embeddings is 'false'.*; write true or false",
        ),
        ("qwen3_moe", "mlp_only_layers", 3, "mlp_only_layers is 3"),
        ("gemma3_text", "layer_types", ["sliding_attention"], "write a list of 32 types"),
        ("deepseek_v3", "v_head_dim", 64, "v_head_dim is 64"),
        (
            "qwen2_moe",
            "shared_expert_intermediate_size",
            100,
            "no multiple of moe_intermediate_size",
        ),
        ("falcon", "multi_query", 1, "multi_query is 1"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(kind, key, value, says):
    config = MIXTRAL | {
        "model_type": kind,
        "sliding_window": 8,
        "moe_intermediate_size": 64,
        key: value,
    }
    with pytest.raises(ValueError, match=says):
        models.from_config(config)


def test_a_window_saves_what_is_computed_for_scores_beyond_it():
    """Counted token by token, where half of the layers attend to at most 128."""
    made = models.from_config(PUBLISHED["gpt-oss-20b"]["config"])
    for sequence in (64, 128, 129, 8192):
        layers = [min(sequence, 128) if layer % 2 == 0 else sequence for layer in range(24)]
        assert made.attended(sequence) == pytest.approx(sum(layers) / 24)
    with pytest.raises(ValueError, match="local_layers is 3 with a window of 0"):
        replace(made, window=0, local_layers=3)


def test_the_name_of_a_configuration_is_plain():
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "vocab_size": 512, "_name_or_path": "a/b\x1b[2J\nc"}
    assert models.from_config(sizes).name == "b c"
