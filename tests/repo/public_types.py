"""What a type checker must say of programs that use shardlab: `make lint` checks this file, and
nothing runs it.
"""

from typing import Any, assert_type

import jax
import numpy as np

from shardlab import (
    CHIPS,
    Chip,
    Collectives,
    Exercise,
    Layout,
    Machine,
    Model,
    Parallelism,
    Picture,
    Plan,
    Pod,
    Report,
    Timeline,
    bars,
    check,
    chip,
    collectives,
    costs,
    describe,
    draw,
    emulate,
    explain,
    interactive_bars,
    machine,
    model,
    plan,
    same_layout,
    step_timeline,
    timeline,
)

assert_type(emulate(8), list[jax.Device])
assert_type(CHIPS["v5e"], Chip)
assert_type(chip("v5e"), Chip)
assert_type(machine("v5e", 16), Machine)
assert_type(model("llama-3-8b"), Model)


def layouts(x: jax.Array) -> None:
    layout = describe(x)
    assert_type(layout, Layout)
    assert_type(layout.bytes_per_device, dict[int, int])
    assert_type(same_layout(x, x), bool)
    assert_type(draw(x, dims="MJ"), Picture)
    assert_type(bars({"FSDP": {"parameters": 4e6}}), Picture)
    assert_type(interactive_bars(lambda devices: {"state": 4e6 / devices}, devices=(1, 8)), Picture)


def programs(compiled: jax.stages.Compiled) -> None:
    assert_type(collectives(compiled), Collectives)
    assert_type(explain(compiled), Report)
    made = step_timeline(compiled, "v5e")
    assert_type(made, Timeline)
    assert_type(timeline(made.lanes(), unit="µs"), Picture)


def plans() -> None:
    made = plan("llama-3-70b", "v5p", 512, 2**22)
    assert_type(made, Plan)
    assert_type(made.choices[0].expected_seconds, float)
    step = costs.step_cost("llama-3-8b", "v5e", Parallelism(fsdp=16), 2**18)
    assert_type(step, costs.StepCost)
    assert_type(step.seconds, float | np.ndarray)
    assert_type(step.memory.total_bytes, float | np.ndarray)
    assert_type(Pod("v5e:2x4").size, int)


def answers(answer: Any) -> None:
    check(answer, Exercise(value=np.arange(4.0)), strict=True)
