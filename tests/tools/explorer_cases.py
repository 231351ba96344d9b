"""Steps and plans that the explorer's scripts work out: cases, and the comparison of answers with `shardlab`."""

import random
import re
from collections import Counter
from functools import cache
from itertools import product
from math import prod

import pytest
from places import ROOT

from shardlab import CHIPS, MODELS, Model, costs, explorer, machine, plan as planned

STATIC = ROOT / "book" / "static" / "explorer"


SIZES_OF = {
    name: {size: getattr(MODELS[name], size) for size in explorer.data()["models"][name]} for name in explorer.MODELS
}


def machine_of(case):
    """The machine of a case, or ValueError."""
    slices = case["slices"] if CHIPS[case["chip"]].torus else None
    return machine(case["chip"], case["chips"], slices=slices, reserve=case["reserve"] / 100)


@cache
def fit_cases():
    chance = random.Random(512)
    cases = []
    for chip, remat in product(CHIPS, costs.REMAT):
        wanted = len(cases) + 60
        while len(cases) < wanted:
            if chance.random() < 0.6:
                model = chance.choice(list(SIZES_OF.values()))
            else:
                kv = chance.choice((1, 2, 3, 4, 8))
                model = {
                    "layers": chance.randrange(1, 100), "d_model": chance.randrange(64, 9000),
                    "d_ff": chance.randrange(64, 30_000),
                    "heads": kv * chance.choice((1, 2, 4, 8)) + (chance.random() < 0.05), "kv_heads": kv,
                    "head_dim": chance.choice((64, 100, 128)), "vocab": chance.randrange(100, 200_000),
                    "gated": chance.random() < 0.5, "tied": chance.random() < 0.5,
                }  # fmt: skip
            sizes = [
                2 ** chance.randrange(6) * chance.choice((1, 1, 1, 3)) if chance.random() < often else 1
                for often in (0.6, 0.7, 0.6, 0.3, 0.3)
            ]
            case = {
                "model": model, "chip": chip, "slices": chance.choice((1, 1, 1, 2, 4)), "remat": remat,
                "batch": 2 ** chance.randrange(12, 23) + chance.choice((0, 0, 17)),
                "sequence": chance.choice((512, 4096, 32_768)), "reserve": explorer.RESERVES[len(cases) % 5],
                **dict(zip(explorer.STEP_AXES, sizes, strict=True)), "microbatches": 2 ** chance.randrange(8),
                "stages": chance.choice((1, 1, 1, 2, 4)), "gathers": chance.choice((1, 2, 2)), "chips": prod(sizes),
            }  # fmt: skip
            try:
                machine_of(case)
            except ValueError:
                if chance.random() < 0.9:  # of impossible machines a few
                    continue
            cases.append(case)
    return cases


def compare_steps(cases, answers):
    """Hold the page's steps to those of `step_cost`; returns how many cases of which kind there were."""
    kinds = Counter()
    for case, answer in zip(cases, answers, strict=True):
        axes = {axis: case[axis] for axis in (*explorer.STEP_AXES, "microbatches", "stages")}
        try:
            made, model = machine_of(case), Model(**case["model"])
            step = costs.step_cost(
                model, made, costs.Parallelism(**axes), case["batch"], case["sequence"], case["remat"],
                gathers=case["gathers"],
            )  # fmt: skip
        except ValueError as error:
            assert answer == {"error": {"words": str(error)}}, case
            kinds["refused"] += 1
            continue
        memory = step.memory
        held = ("parameter", "gradient", "moment", "activation", "working", "gathered", "logits")
        names = (
            "flops",
            "seconds",
            "serial_seconds",
            "expected_seconds",
            "exposed_seconds",
            "bubble",
            "mfu",
            "expected_mfu",
        )
        parts = ("compute", "hbm", "host", *explorer.STEP_AXES)
        expected = [
            *(getattr(memory, f"{kind}_bytes") for kind in (*held, "total", "state", "host")),
            *(getattr(step, name) for name in names), *(step.parts[part] for part in parts),
            *(step.axes[axis].bytes for axis in explorer.STEP_AXES),
        ]  # fmt: skip
        found = [
            *answer["memory"].values(), answer["total_bytes"], answer["state_bytes"], answer["host_bytes"],
            *(answer[name] for name in names),
            *(answer["parts"][part] for part in parts), *(answer["sent_bytes"][axis] for axis in explorer.STEP_AXES),
        ]  # fmt: skip
        assert found == pytest.approx(list(map(float, expected)), rel=1e-9), case
        assert (answer["parameters"], answer["hbm_bytes"]) == (model.parameters, made.chip.hbm_bytes)
        assert (answer["fits"], answer["bound"]) == (bool(step.fits), str(step.bound)), case
        assert sum(answer["exposed"].values()) == pytest.approx(answer["exposed_seconds"], rel=1e-9, abs=1e-15)
        work = answer["work_seconds"] + answer["exposed_seconds"]
        assert answer["expected_seconds"] == pytest.approx(
            work * (1 + answer["bubble"]) + answer["update_seconds"], rel=1e-9
        )
        full = memory.total_bytes <= made.chip.hbm_bytes
        kinds["fits without a reserve only"] += bool(full and not step.fits)
        kinds.update([answer["bound"], answer["fits"], *(axis for axis in axes if axes[axis] > 1)])
    return kinds


@cache
def plan_cases():
    chance = random.Random(24)
    cases = []
    while len(cases) < 104:
        chip, name = list(CHIPS)[len(cases) % len(CHIPS)], chance.choice(list(SIZES_OF))
        case = {
            "name": name, "model": SIZES_OF[name], "chip": chip, "slices": chance.choice((1, 1, 2)),
            "chips": chance.choice((1, 4, 8, 12, 16, 32, 64, 128, 256, 512)),
            "remat": chance.choice(tuple(costs.REMAT)),
            "batch": chance.choice((1, 1, 9, 15)) * 2 ** chance.randrange(13, 23),
            "sequence": chance.choice((2048, 4096, 6144, 8192, 32_768)),
            "reserve": chance.choice(explorer.RESERVES),
        }  # fmt: skip
        try:
            machine_of(case)
        except ValueError:
            if chance.random() < 0.8:
                continue
        cases.append(case)
    return cases


def planned_for(case):
    options = {name: case[name] for name in ("sequence", "remat")} | {"reserve": case["reserve"] / 100}
    slices = case["slices"] if CHIPS[case["chip"]].torus else None
    return planned(case["name"], case["chip"], case["chips"], case["batch"], slices=slices, **options)


def same_choice(found, choice):
    assert [found["mesh"][axis] for axis in explorer.STEP_AXES] == [getattr(choice, a) for a in explorer.STEP_AXES]
    same = ("microbatches", "stages", "gathers", "fits", "bound")
    assert [found[name] for name in same] == [getattr(choice, name) for name in same]
    names = ("expected_seconds", "exposed_seconds", "seconds", "serial_seconds", "total_bytes", "bubble")
    assert [found[name] for name in names] == pytest.approx([getattr(choice, name) for name in names], rel=1e-9)


def compare_plans(cases, answers):
    """Hold the page's plans to those of `plan`; returns how many cases of which kind there were."""
    kinds = Counter()
    for case, answer in zip(cases, answers, strict=True):
        try:
            made = planned_for(case)
        except ValueError as error:
            assert answer == {"error": {"words": str(error)}}, case
            kinds[re.sub(r"[\d,]+", "", str(error))[:12]] += 1
            continue
        assert len(answer["choices"]) == len(made.choices), case
        for found, choice in zip(answer["choices"], made.choices, strict=True):
            same_choice(found, choice)
        assert (answer["fitting"], answer["uneven"]) == (len(made.fitting), made.uneven)
        assert [what for what, _ in answer["remedies"]] == [what for what, _ in made.remedies], case
        for (_, found), (_, choice) in zip(answer["remedies"], made.remedies, strict=True):
            same_choice(found, choice)
        first = made.choices[0]
        top = made.choices[:10]
        kinds.update(
            {"fits": first.fits, "remedy": bool(made.remedies), "uneven": made.uneven > 0,
             "micro-batches": first.microbatches > 1, "nodes": any(choice.context > 1 for choice in made.choices),
             "gathered once": any(c.gathers == 1 for c in top), "interleaved": any(c.stages > 1 for c in top)}
        )  # fmt: skip
    return kinds
