"""Adapters on a frozen model: what they train, keep, send and take, against counts by hand."""

from dataclasses import replace

import numpy as np
import pytest

from shardlab import costs, hardware, model, plan
from shardlab.costs.bands import band_of, band_words
from shardlab.costs.published import RUNS

LLAMA = model("llama-3-8b")
RANK = 16
# of each layer: query and output 4096 x 4096, key and value 4096 x 1024, three matrices of the MLP
ADAPTERS = 32 * RANK * (2 * 8192 + 2 * (4096 + 1024) + 3 * (4096 + 14_336))
# PEFT prints "trainable params: 41,943,040" for Llama 3 8B with rank 16 on these matrices


def step(parameters="bf16", lora=RANK, mesh=None, size=LLAMA, **how):
    mesh = mesh or costs.Parallelism(fsdp=8)
    return costs.step_cost(size, "H100", mesh, 2**17, 4096, lora=lora, parameters=parameters, **how)


def test_rank_16_on_all_matrices_trains_as_many_parameters_as_peft_prints():
    assert ADAPTERS == 41_943_040
    memory = step().memory
    assert memory.gradient_bytes * 8 == 2 * ADAPTERS
    assert memory.moment_bytes * 8 == 8 * ADAPTERS
    assert memory.frozen_bytes * 8 == 2 * LLAMA.parameters
    assert memory.parameter_bytes * 8 == 2 * LLAMA.parameters + 2 * ADAPTERS
    wide = step(gradients="f32", master="f32").memory
    assert wide.parameter_bytes * 8 == 2 * LLAMA.parameters + 4 * ADAPTERS
    assert wide.master_bytes * 8 == 4 * ADAPTERS


def test_four_bits_take_0_127_bits_more_and_leave_the_embeddings_wide():
    """QLoRA, section 3: "an average of 0.127 bits per parameter" for the constants."""
    embedding = 2 * 128_256 * 4096
    frozen = step("nf4").memory.frozen_bytes * 8
    bits = 8 * (frozen - 2 * embedding) / (LLAMA.parameters - embedding)
    assert bits == pytest.approx(4.127, abs=5e-4)
    # the largest matrix is there in 16 bits too
    both = [step(dtype).memory.working_bytes for dtype in ("bf16", "nf4")]
    assert both[1] - both[0] == 2 * 4096 * 14_336
    assert step("nf4").expected_seconds > step("bf16").expected_seconds


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-3-175b", "gemma-7b"])
@pytest.mark.parametrize(
    "mesh", [{"fsdp": 8}, {"data": 2, "tensor": 4}, {"pipeline": 2, "tensor": 4}]
)
def test_a_frozen_matrix_takes_two_thirds_of_the_flops(name, mesh):
    size, mesh = model(name), costs.Parallelism(**mesh)
    all_of_it = step(lora=0, mesh=mesh, size=size, remat="none").flops * 8
    frozen = step(mesh=mesh, size=size, remat="none").flops * 8
    rank = costs.steps.adapters.adapter_parameters(size, RANK) * size.layers
    assert frozen == pytest.approx(all_of_it - 2**18 * size.matmul_parameters + 3 * 2**18 * rank)


def test_only_adapters_have_gradients_that_are_sent():
    for axis, kinds in (("data", 2), ("fsdp", 1)):
        mesh = costs.Parallelism(**{axis: 8})
        all_of_it, frozen = (step(lora=lora, mesh=mesh).axes[axis].bytes for lora in (0, RANK))
        if axis == "data":
            assert frozen == pytest.approx(kinds * 7 / 8 * 2 * ADAPTERS)
        else:  # gathered in both passes, and the gradients scattered
            gathers = 2 * (2 * LLAMA.parameters + 2 * ADAPTERS)
            assert frozen == pytest.approx(7 / 8 * (gathers + 2 * ADAPTERS))
        assert frozen < all_of_it
    four_bits = step("nf4").axes["fsdp"].bytes
    assert four_bits < 0.5 * step().axes["fsdp"].bytes


@pytest.mark.parametrize(
    ("name", "how", "says"),
    [
        ("mixtral-8x7b", {"lora": 16}, "mixtral-8x7b has a mixture of experts; leave lora out"),
        (
            "llama-3-8b",
            {"lora": 4097},
            "lora is 4097; use the rank of the adapters, .* up to 4,096",
        ),
        ("llama-3-8b", {"lora": -1}, "lora is -1"),
        ("llama-3-8b", {"lora": True}, "lora is True"),
        ("llama-3-8b", {"lora": 1.5}, "lora is 1.5"),
        ("llama-3-8b", {"parameters": "nf4"}, "nf4 cannot be trained; add adapters"),
        ("llama-3-8b", {"lora": 16, "gradients": "nf4"}, "gradients"),
    ],
)
def test_errors_name_the_value(name, how, says):
    size, mesh = model(name), costs.Parallelism(fsdp=8)
    with pytest.raises(ValueError, match=says):
        costs.step_cost(size, "H100", mesh, 2**17, **how)
    with pytest.raises(ValueError, match=says):
        costs.training_memory(size, mesh, 2**17, **how)
    latent = replace(LLAMA, kv_rank=512, rope_dim=64)
    with pytest.raises(ValueError, match="has latent attention"):
        costs.training_memory(latent, mesh, 2**17, lora=8)


def test_published_runs_with_adapters_test_their_kind_and_nothing_is_fitted_to_them():
    took = {
        name: run.seconds / float(run.cost().expected_seconds)
        for name, run in RUNS.items()
        if run.kind == "adapters"
    }
    assert len(took) == 9 and not any(RUNS[name].fit for name in took)
    assert min(took.values()) > 0.8 and max(took.values()) < 1.2
    assert costs.FITTED["gpu"].bands["adapters"] == costs.Band.of([*took.values()])


def test_what_no_run_tests_has_no_number():
    """Four bits, TPUs, and cards to which no share was fitted."""
    four = plan("llama-3-8b", "RTX 4090", 4, 2**16, lora=16, dtypes={"parameters": "nf4"})
    assert four.kind == "quantised" and band_of(four.chip, four.kind) is None
    assert four.fitting and four.choices[0].total_bytes < 24e9
    assert "No published run on GPUs tests such plans" in four.report(1).replace("\n", " ")
    card = plan("llama-3-8b", "RTX 4090", 4, 2**16, lora=16)
    assert card.kind == "chip" and band_of(card.chip, card.kind) is None
    known = plan("llama-3-8b", "H100", 4, 2**16, lora=16)
    assert known.kind == "adapters" and "within a factor of 1.24" in known.report(1).replace(
        "\n", " "
    )
    tpu = plan("llama-3-8b", "v5p", 4, 2**16, lora=16)
    assert tpu.kind == "adapters" and band_of(tpu.chip, tpu.kind) is None
    assert "tests such plans" in band_words(hardware.chip("v5p"), "adapters")


def test_rank_zero_trains_everything_as_before():
    whole, none = step(lora=0), costs.step_cost(LLAMA, "H100", costs.Parallelism(fsdp=8), 2**17)
    assert np.allclose([*whole.parts.values()], [*none.parts.values()], rtol=0)
    assert whole.memory == none.memory and whole.memory.frozen_bytes == 0
