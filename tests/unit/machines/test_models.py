"""models: whatever a configuration holds, it is read, or refused with the one error that is promised."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings, strategies as st

from shardlab.machines import models

pytestmark = pytest.mark.reads("src/shardlab")

MIXTRAL = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
KEYS = sorted({*sum(models._CONFIG.values(), ()), "model_type", "text_config", "_name_or_path"})
NUMBERS = st.sampled_from([0, -1, 1, 1.5, 2.0, float("inf"), float("nan"), 10**30, 10**400, True]) | st.integers()
VALUES = st.none() | NUMBERS | st.text(max_size=4) | st.lists(st.none(), max_size=1) | st.just({"hidden_size": []})


@settings(max_examples=400, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_a_configuration_is_read_or_refused(changes):
    try:
        made = models.from_config(MIXTRAL | changes)
    except ValueError as error:
        assert len(str(error)) < 300 and "\n" not in str(error)
        return
    sizes = [asdict(made)[size] for size in models._CONFIG]
    assert all(type(size) is int for size in sizes) and 0 < made.active_parameters <= made.parameters < 2**63


@pytest.mark.parametrize("text", ["[1]", "3", '"x"', "[" * 100_000, "{", "\0", '{"text_config": []}', "{}"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"give the config\.json|has no layers"):
        models.parse(str(tmp_path / "config.json"))


def test_a_file_of_other_bytes_is_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(ValueError, match="is no JSON"):
        models.from_config(tmp_path / "config.json")


def test_a_size_may_be_written_with_a_point():
    assert models.from_config(json.loads(json.dumps(MIXTRAL | {"vocab_size": 32000.0}))).vocab == 32000


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
