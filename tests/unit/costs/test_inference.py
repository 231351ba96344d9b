"""costs.inference: prefill, decode and caches by formula, against arithmetic by hand and what must
always hold.
"""

import numpy as np
import pytest

from shardlab import CHIPS, MODELS, costs
from shardlab.costs.inference import cache_bytes, decode_cost, disaggregated, prefill_cost

pytestmark = pytest.mark.reads("src/shardlab")

LLAMA, MIXTRAL, DEEPSEEK = (MODELS[name] for name in ("llama-3-70b", "mixtral-8x7b", "deepseek-v3"))


def test_the_cache_of_grouped_queries_and_of_latents():
    """Llama 3 70B: 80 layers, 8 kv heads of 128, keys and values. DeepSeek-V3: 512 + 64 elements in
    61 layers.
    """
    assert cache_bytes(LLAMA, 1) == 80 * 2 * 8 * 128 * 2 == 327_680
    assert cache_bytes("deepseek-v3", 1) == 61 * (512 + 64) * 2 == 70_272
    assert cache_bytes(LLAMA, 8192, "int4") == 8192 * 327_680 / 4


def test_prefill_takes_the_flops_of_a_forward_pass():
    found = prefill_cost(LLAMA, "v5p", 8192, tensor=8)
    products = 2 * 8192 * LLAMA.matmul_parameters
    attention = 4 * 8192 * 8192 * 64 * 128 * 80
    assert found.compute_seconds == pytest.approx((products + attention) / 8 / 459e12)
    assert found.bound == "compute" and found.cache_bytes == cache_bytes(LLAMA, 8192)
    assert found.seconds == pytest.approx(found.compute_seconds + found.tensor_seconds)
    # a short prompt reads the parameters
    assert prefill_cost(LLAMA, "v5p", 8, tensor=8).bound != "compute"


def test_int8_weights_halve_what_a_decode_step_reads():
    bf16, int8 = (decode_cost(LLAMA, "v6e", 1, 128, 8, weights=dtype) for dtype in ("bf16", "int8"))
    assert (
        int8.parameter_seconds == bf16.parameter_seconds / 2
        and int8.cache_seconds == bf16.cache_seconds
    )


def test_a_small_batch_reads_few_experts_and_a_large_one_all():
    """One token is sent to 2 of 8 experts; hundreds of tokens reach all of them."""
    one, many = (decode_cost(MIXTRAL, "H100", batch, 1, 8).parameter_seconds for batch in (1, 512))
    speed = 8 * CHIPS["H100"].hbm_bytes_per_second / 2
    assert one * speed == pytest.approx(MIXTRAL.matmul_parameters)
    every = MIXTRAL.matmul_parameters + 6 / 8 * MIXTRAL.routed_parameters
    assert many * speed == pytest.approx(every, rel=1e-6) and many > 3 * one
    few, full = (decode_cost(LLAMA, "H100", batch, 1, 8).parameter_seconds for batch in (1, 512))
    assert few == full


def test_latent_attention_does_more_flops_for_each_byte_of_its_cache():
    """With one latent for 128 heads: 2 x 128 heads x (512 + 64 + 512) over 576 elements of two
    bytes, about 242.
    """
    found = decode_cost(DEEPSEEK, "H100", 64, 8192, 8)
    chip = CHIPS["H100"]
    flops = found.attention_seconds * chip.peak()
    read = found.cache_seconds * chip.hbm_bytes_per_second
    assert flops / read == pytest.approx(2 * 128 * (512 + 64 + 512) / (576 * 2))
    llama = decode_cost(LLAMA, "H100", 64, 8192, 8)
    assert llama.attention_seconds < 0.03 * llama.cache_seconds


def test_all_reduces_of_a_step_over_two_nodes_use_the_network():
    near, far = (decode_cost(LLAMA, "A100", 1, 1024, tensor) for tensor in (8, 64))
    assert (
        far.tensor_seconds > near.tensor_seconds and far.parameter_seconds < near.parameter_seconds
    )
    assert far.serial_seconds == pytest.approx(
        far.cache_seconds + far.parameter_seconds + far.tensor_seconds
    )


def test_twice_as_long_prompts_or_half_the_answers_need_twice_the_prefill_servers():
    prefill = prefill_cost(LLAMA, "v5e", 8192, tensor=16, torus_axes=2)
    decode = decode_cost(LLAMA, "v5e", 32, 8192, tensor=16, torus_axes=2)
    ratio = disaggregated(prefill, decode, 1, 32, 512)
    assert disaggregated(prefill, decode, 1, 32, 256) == pytest.approx(2 * ratio)
    assert ratio == pytest.approx(prefill.seconds * 32 / (512 * decode.serial_seconds))


@pytest.mark.parametrize("name", CHIPS)
def test_on_every_chip_more_costs_more(name):
    batch = 2 ** np.arange(10)
    found = decode_cost(LLAMA, name, batch, 4096, 8)
    assert np.all(np.diff(found.seconds) > 0) and np.all(np.diff(found.seconds / batch) < 1e-9)
    assert np.all(found.seconds <= found.serial_seconds) and np.all(np.diff(found.total_bytes) > 0)
    assert np.all(np.diff(prefill_cost(LLAMA, name, batch * 512, tensor=8).seconds) > 0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: decode_cost("llama-3-7b", "v5e", 1, 1), "did you mean 'llama-3-70b'"),
        (lambda: decode_cost(LLAMA, "v5", 1, 1), "no chip is called 'v5'"),
        (lambda: decode_cost(LLAMA, "v5e", -1, 1), "batch is -1"),
        (lambda: prefill_cost(LLAMA, "v5e", 8192, tensor=7), "tensor=7 does not divide 64 heads"),
        (
            lambda: prefill_cost(LLAMA, "v5e", 8192, cache="fp16"),
            "cache='fp16' is not known; use one of f32, bf16",
        ),
        (lambda: cache_bytes(LLAMA, "many"), "context must be a number"),
    ],
)
def test_errors_name_the_value(wrong, says):
    with pytest.raises(ValueError, match=says):
        wrong()


def test_dtypes_are_those_of_costs():
    for dtype, size in costs.BYTES.items():
        assert cache_bytes(LLAMA, 1, dtype) == LLAMA.cached_elements * size
