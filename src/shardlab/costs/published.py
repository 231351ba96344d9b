"""Training runs that others published, and what `shardlab.costs` expects of them: for fitting it, and for testing it.

Each run has its source, and a step's time in seconds, which is what is compared, as "model FLOPs" have several
definitions. Where a source states tokens or FLOPs per second instead, the time is derived from them, with the
definition that fits its other numbers. A run is used for fitting or for testing, never for both;
`scripts/fit_planner.py` fits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardlab import costs
from shardlab.costs import Parallelism
from shardlab.machines import hardware, models
from shardlab.machines.models import Model

__all__ = ["RUNS", "Run"]


@dataclass(frozen=True)
class Run:
    """A published run.

    >>> run = published.RUNS["torchtitan, 70B on 64 A100"]
    >>> f"measured {run.seconds} s, at least {run.cost().seconds:.1f} s"
    'measured 24.75 s, at least 15.8 s'

    Attributes:
      name: of the run.
      model: a `shardlab.models.Model`.
      machine: a `shardlab.hardware.Machine`.
      parallelism: a `shardlab.costs.Parallelism`.
      sequences: in the global batch.
      sequence: tokens of each.
      seconds: measured, for a step.
      source: where it is published.
      fit: whether `shardlab.costs.FITTED` is fitted to it; otherwise it tests that.
      how: further arguments of `shardlab.costs.step_cost`.
    """

    name: str
    model: Model
    machine: hardware.Machine
    parallelism: Parallelism
    sequences: int
    sequence: int
    seconds: float
    source: str
    fit: bool = False
    how: Mapping[str, Any] = field(default_factory=dict)

    def cost(self) -> costs.StepCost:
        """What `shardlab.costs.step_cost` says of it."""
        return costs.step_cost(
            self.model, self.machine, self.parallelism, self.sequences * self.sequence, self.sequence, **self.how
        )


# --- Sources -----------------------------------------------------------------------------------------------------
# Looked up on 2026-11-24. Commits are those of the repositories' files.

_T24 = "https://github.com/pytorch/torchtitan, docs/performance.md at 3faaa1a, 2024-08"
_T12 = "https://github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, 2024-12"
_T06 = "https://github.com/pytorch/torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md, 2025-06"
_A3 = "https://github.com/AI-Hypercomputer/maxtext, src/maxtext/configs/gpu/a3/llama_2_7b/README.md"
_GPU = "https://github.com/AI-Hypercomputer/gpu-recipes, training/a3ultra/llama3-1-70b, 2026-05"
_TPU = "https://github.com/AI-Hypercomputer/tpu-recipes, training/trillium and training/v5p, 2025"
_MAX = "https://github.com/AI-Hypercomputer/maxtext, MaxText/configs at 76bd53b, 2023-12"
_MEG = "https://github.com/NVIDIA/Megatron-LM, README.md of Megatron-Core 0.8, 2024-07"
_NAR = "Narayanan and others, 2021, https://arxiv.org/abs/2104.04473, table 1"
_KOR = "Korthikanti and others, 2022, https://arxiv.org/abs/2205.05198, table 5"
_LLA = "Llama Team, 2024, https://arxiv.org/abs/2407.21783, table 4"
_PAL = "Chowdhery and others, 2022, https://arxiv.org/abs/2204.02311, section 4"
_TEN = "https://github.com/huggingface/nanotron, scripts/scaling_benchmarks.py, 2025-03"
_NAN = "https://github.com/huggingface/nanotron, docs/benchmark_summary.svg, 2025-03"

_8B, _70B, _405B = (models.model(f"llama-3-{size}") for size in ("8b", "70b", "405b"))
_7B = Model(32, 4096, 11_008, 32, 32, 128, 32_000, name="llama-2-7b")
_13B = models.model("llama-2-13b")
_L70 = Model(80, 8192, 28_672, 64, 8, 128, 32_000, name="llama-2-70b")

# The H100s of torchtitan's later tables are not those of the data sheet: "Each H100 GPU is equipped with 96GB HBM2e
# with 2.4 TB/sec", "the default 500W power limit"; it takes 835 TFLOP/s for an H100 NVL elsewhere. They stay out of the
# fit, and are priced with these numbers.
_LOW = hardware.Chip(
    "H100, 500 W", {"bf16": 835e12, "fp8": 1670e12}, 96e9, 2400e9, 450e9, 0.6e-6, (), 8, 50e9, 2.7e-6
)  # fmt: skip


def _plain(layers, width, heads, vocab, **how):
    """A model of Megatron's tables: an MLP of four times the width with one input matrix, a key head for each head."""
    return Model(layers, width, 4 * width, heads, heads, width // heads, vocab, gated=False, tied=True, **how)


def _runs():
    machine = hardware.machine
    none, block, matmuls = ({"remat": remat} for remat in ("none", "block", "matmuls"))
    f32 = {"gradients": "f32", "master": "f32"}

    def run(name, model, chips, mesh, batch, sequence, seconds, source, fit=False, **how):
        return Run(name, model, chips, mesh, batch, sequence, seconds, source, fit, how)

    a64 = machine("A100", 64)
    yield run("torchtitan, 8B on 64 A100", _8B, a64, Parallelism(1, 64), 64, 8192, 2.755, _T24, True, **matmuls | f32)
    yield run("torchtitan, 70B on 64 A100", _70B, a64, Parallelism(1, 64), 64, 8192, 24.75, _T24, True, **block | f32)
    yield run("torchtitan, Llama 2 13B on 64 A100", _13B, a64, Parallelism(1, 64), 128, 4096, 3.789, _T24, True,
              **none | f32)  # fmt: skip
    yield run("torchtitan, Llama 2 13B on 64 A100, selective", _13B, a64, Parallelism(1, 64), 128, 4096, 4.303, _T24,
              **matmuls | f32)  # fmt: skip
    yield run("torchtitan, Llama 2 70B on 64 A100, selective", _L70, a64, Parallelism(1, 64), 64, 4096, 11.54, _T24,
              **matmuls | f32)  # fmt: skip
    yield run("torchtitan, Llama 2 70B on 64 A100", _L70, a64, Parallelism(1, 64), 128, 4096, 23.21, _T24,
              **block | f32)  # fmt: skip
    low = {chips: machine(_LOW, chips) for chips in (8, 64, 128, 256)}
    yield run("torchtitan, 405B on 128 H100 (500 W)", _405B, low[128], Parallelism(1, 16, 8), 32, 8192, 18.79, _T24,
              **block | f32)  # fmt: skip
    for chips, batch, seconds in ((8, 16, 2.457), (128, 256, 2.515)):
        yield run(f"torchtitan, 8B on {chips} H100 (500 W)", _8B, low[chips], Parallelism(1, chips), batch, 8192,
                  seconds, _T12, **matmuls | f32)  # fmt: skip
    yield run("torchtitan, 70B on 256 H100 (500 W)", _70B, low[256], Parallelism(1, 32, 8), 512, 8192, 27.43, _T06,
              **block | f32)  # fmt: skip
    yield run("torchtitan, 8B on 64 H100 (500 W), tensor 8", _8B, low[64], Parallelism(1, 8, 8), 96, 8192, 2.807, _T06,
              **matmuls | f32)  # fmt: skip

    slow = hardware.Chip(**{**vars(hardware.CHIPS["H100"]), "name": "H100 (A3)", "network_bytes_per_second": 25e9})
    for nodes, seconds in ((1, 1.535), (2, 1.79), (4, 1.86), (8, 1.85), (16, 2.01)):
        yield run(f"MaxText, Llama 2 7B on {8 * nodes} H100 (A3)", _7B, machine(slow, 8 * nodes), Parallelism(nodes, 8),
                  32 * nodes, 4096, seconds, _A3, nodes == 1, **none)  # fmt: skip
    yield run("MaxText, 70B on 256 H200", _70B, machine("H200", 256), Parallelism(2, 128), 512, 8192, 15.516, _GPU,
              True, **matmuls)  # fmt: skip

    for name, chips, mesh, batch, micro, stages, seconds in (
        ("8,192", 8192, (64, 1, 8, 16), 2048, 32, 7, 12.5), ("16,384", 16_384, (128, 1, 8, 16), 2048, 16, 7, 6.7),
    ):  # fmt: skip
        how = Parallelism(*mesh, microbatches=micro, stages=stages)
        yield run(f"Llama 3, 405B on {name} H100", _405B, machine("H100", chips), how, batch, 8192, seconds, _LLA,
                  remat="none", gradients="f32", gathers=1)  # fmt: skip

    for size, heads, width, layers, tensor, pipeline, batch, seconds, fit in (
        ("1.7B", 16, 2048, 24, 1, 1, 192, 0.452, False), ("7.1B", 32, 4096, 30, 2, 1, 192, 0.800, True),
        ("16B", 48, 6144, 32, 4, 1, 192, 0.850, False), ("32B", 56, 7168, 48, 8, 1, 192, 0.892, True),
        ("70B", 64, 8192, 84, 8, 2, 384, 2.177, False), ("119B", 80, 10_240, 92, 8, 4, 768, 3.648, False),
        ("177B", 96, 12_288, 96, 8, 6, 1152, 5.259, True), ("314B", 128, 16_384, 96, 8, 8, 1536, 8.399, False),
        ("462B", 144, 18_432, 112, 8, 16, 3072, 12.72, False),
    ):  # fmt: skip
        chips, model = 48 * tensor * pipeline, _plain(layers, width, heads, 131_072)
        how = Parallelism(1, 48, tensor, pipeline, microbatches=batch // 48 if pipeline > 1 else 1,
                          stages=2 if pipeline > 1 else 1)  # fmt: skip
        yield run(f"Megatron-Core, {size} on {chips} H100", model, machine("H100", chips), how, batch, 4096, seconds,
                  _MEG, fit, remat="none", gradients="f32", gathers=1)  # fmt: skip

    for size, heads, width, layers, tensor, pipeline, chips, batch, seconds in (
        ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 3.53), ("3.6B", 32, 3072, 30, 2, 1, 64, 512, 3.70),
        ("7.5B", 32, 4096, 36, 4, 1, 128, 512, 3.70), ("18B", 48, 6144, 40, 8, 1, 256, 1024, 9.40),
        ("39B", 64, 8192, 48, 8, 2, 512, 1536, 14.45), ("76B", 80, 10_240, 60, 8, 4, 1024, 1792, 16.06),
        ("146B", 96, 12_288, 80, 8, 8, 1536, 2304, 24.82), ("310B", 128, 16_384, 96, 8, 16, 1920, 2160, 37.61),
        ("530B", 128, 20_480, 105, 8, 35, 2520, 2520, 54.08), ("1T", 160, 25_600, 128, 8, 64, 3072, 3072, 102.6),
    ):  # fmt: skip
        data = chips // (tensor * pipeline)
        how = Parallelism(data, 1, tensor, pipeline, microbatches=batch // data if pipeline > 1 else batch // data // 4,
                          stages=2 if 1 < pipeline <= 16 else 1)  # fmt: skip
        yield run(f"Megatron-LM 2021, {size} on {chips:,} A100", _plain(layers, width, heads, 51_200),
                  machine("A100", chips), how, batch, 2048, seconds, _NAR, remat="block")  # fmt: skip
    for size, heads, width, layers, pipeline, batch, micro, stages, seconds, fit in (
        ("22B", 64, 6144, 48, 1, 4, 1, 1, 1.10, True), ("175B", 96, 12_288, 96, 8, 64, 64, 3, 13.75, True),
        ("530B", 128, 20_480, 105, 35, 280, 280, 3, 37.83, False),
        ("1T", 160, 25_600, 128, 64, 512, 512, 1, 71.49, False),
    ):  # fmt: skip
        how = Parallelism(1, 1, 8, pipeline, microbatches=micro, stages=stages)
        yield run(f"Megatron-LM 2022, {size} on {8 * pipeline} A100", _plain(layers, width, heads, 51_200),
                  machine("A100", 8 * pipeline), how, batch, 2048, seconds, _KOR, fit, remat="matmuls")  # fmt: skip

    for size, layers, width, hidden, chips, axes, percent in (  # the figure has the utilisation of the peak
        ("8.9B", 32, 4096, 14_336, 16, (4, 1, 4, 1, 16), 43.94),
        ("8.9B", 32, 4096, 14_336, 128, (16, 1, 8, 1, 2), 36.33),
        ("8.9B", 32, 4096, 14_336, 256, (32, 1, 8, 1, 1), 32.71),
        ("80B", 80, 8192, 28_672, 128, (1, 1, 4, 32, 256), 34.29),
    ):
        heads = 32 if width == 4096 else 64
        model = Model(layers, width, hidden, heads, heads, 128, 131_072)
        speed = chips * hardware.chip("H100").peak() * percent / 100
        seconds = float(costs.training_flops(model, 256 * 4096, 4096) / speed)
        how = Parallelism(*axes[:4], microbatches=axes[4])
        yield run(f"nanotron, {size} on {chips} H100", model, machine("H100", chips), how, 256, 4096, seconds, _NAN,
                  remat="none", gradients="f32")  # fmt: skip
    small = Model(28, 3072, 8192, 32, 32, 96, 131_072, tied=True, name="3.6B")
    for tensor, batch, flops in ((2, 3, 363.66e12), (4, 9, 345.51e12), (8, 18, 279.50e12), (16, 40, 158.10e12),
                                 (32, 90, 92.66e12)):  # fmt: skip
        seconds = costs.training_flops(small, batch * 4096, 4096) / flops / tensor
        how = Parallelism(1, 1, tensor)
        yield run(f"nanotron, 3.6B on {tensor} H100, tensor alone", small, machine("H100", tensor), how, batch, 4096,
                  float(seconds), _TEN, remat="none", gradients="f32")  # fmt: skip

    for name, model, chips, each, seconds, fit in (
        ("8B on 8", _8B, 8, 3, 3.443, True), ("8B on 32", _8B, 32, 3, 3.495, False),
        ("8B on 256", _8B, 256, 4, 4.546, False),
        ("70B on 64", _70B, 64, 2, 18.688, True), ("70B on 128", _70B, 128, 4, 34.786, False),
        ("70B on 256", _70B, 256, 5, 42.656, True),
    ):  # fmt: skip
        yield run(f"MaxText, {name} v6e", model, machine("v6e", chips), Parallelism(1, chips), each * chips, 8192,
                  seconds, _TPU, fit, remat="block", parameters="f32", moments="f32")  # fmt: skip
    yield run("MaxText, 405B on 2 x 256 v6e", _405B, machine("v6e", 512, slices=2), Parallelism(2, 256), 512, 8192,
              54.803, _TPU, remat="block")  # fmt: skip
    yield run("MaxText, Mixtral 8x7B on 256 v6e", models.model("mixtral-8x7b"), machine("v6e", 256),
              Parallelism(1, 256), 3072, 4096, 13.484, _TPU, remat="block")  # fmt: skip
    yield run("MaxText, 405B on 512 v5p", _405B, machine("v5p", 512), Parallelism(1, 512), 1024, 8192, 131.474, _TPU,
              True, remat="block")  # fmt: skip

    sizes = {"16B": (32, 5120, 32_768, 32), "32B": (32, 10_240, 32_768, 32), "64B": (64, 10_240, 32_768, 32),
             "128B": (64, 10_240, 65_536, 64), "256B": (64, 20_480, 65_536, 64), "512B": (128, 20_480, 65_536, 64),
             "1024B": (128, 20_480, 131_072, 128), "22B": (48, 6144, 24_576, 24)}  # fmt: skip
    for kind, size, slices, fsdp, tensor, each, remat, seconds, fit in (
        ("v5p", "32B", 1, 16, 4, 8, "matmuls", 9.92, True), ("v5p", "32B", 2, 16, 4, 8, "matmuls", 10.20, False),
        ("v5p", "64B", 1, 16, 4, 4, "matmuls", 10.02, True), ("v5p", "64B", 2, 16, 4, 4, "matmuls", 10.47, False),
        ("v5p", "128B", 1, 32, 8, 2, "matmuls", 10.21, False), ("v5p", "128B", 2, 32, 8, 2, "matmuls", 11.78, False),
        ("v5p", "256B", 1, 64, 8, 2, "matmuls", 20.79, False), ("v5p", "512B", 1, 32, 16, 2, "block", 43.50, False),
        ("v5p", "1024B", 1, 128, 16, 2, "block", 86.06, False),
        ("v5e", "16B", 1, 256, 1, 6, "block", 10.33, False), ("v5e", "16B", 32, 256, 1, 6, "block", 11.48, False),
        ("v5e", "32B", 1, 256, 1, 4, "block", 12.32, True), ("v5e", "32B", 8, 256, 1, 4, "block", 13.01, False),
        ("v5e", "64B", 1, 256, 1, 2, "block", 13.71, False), ("v5e", "64B", 32, 256, 1, 2, "block", 16.34, True),
        ("v5e", "128B", 1, 16, 16, 1, "block", 14.67, False), ("v5e", "128B", 16, 16, 16, 1, "block", 16.14, False),
        ("v4", "22B", 1, 64, 1, 16, "block", 28.42, True), ("v4", "22B", 8, 64, 1, 16, "block", 30.36, False),
    ):  # fmt: skip
        layers, width, hidden, heads = sizes[size]
        model = Model(layers, width, hidden, heads, heads, 256, 32_768, gated=False, tied=True, name=size)
        chips = slices * fsdp * tensor
        where = f"{slices} x {fsdp * tensor} {kind}" if slices > 1 else f"{chips} {kind}"
        yield run(f"MaxText, {size} on {where}", model, machine(kind, chips, slices=slices),
                  Parallelism(slices, fsdp, tensor), each * chips, 2048, seconds, _MAX, fit, remat=remat)  # fmt: skip

    palm = Model(118, 18_432, 73_728, 48, 1, 256, 256_000, tied=True, name="palm-540b")
    yield run("PaLM, 540B on 2 x 3,072 v4", palm, machine("v4", 6144, slices=2), Parallelism(2, 256, 12), 2048, 2048,
              17.60, _PAL, remat="mlp")  # fmt: skip


RUNS = {run.name: run for run in _runs()}
