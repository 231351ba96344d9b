"""What the explorer's scripts work out, on a page by themselves: cases, and a comparison of answers
with shardlab.
"""

import random
import re
from collections import Counter
from dataclasses import asdict
from functools import cache
from itertools import product
from math import prod

import pytest
from places import ROOT

from shardlab import CHIPS, MODELS, Model, costs, explorer, machine, plan as planned

STATIC = ROOT / "book" / "static" / "explorer"


SIZES_OF = {
    name: {size: value for size, value in asdict(model).items() if size != "name"}
    for name, model in MODELS.items()
}
STATE = ("parameters", "gradients", "moments", "master")


def write_page(file, *parts, scripts=explorer.SCRIPTS):
    """A page of what cells emit, with the scripts and nothing else."""
    scripts = "".join(
        f'<script src="{(STATIC / name).as_uri()}" defer></script>' for name in scripts
    )
    body = "".join(part._repr_html_() for part in parts)
    file.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>t</title>{body}{scripts}"
    )


def bare_page(browser, file, *parts, **scripts):
    """Such a page, opened from a file; its scripts raised no error."""
    write_page(file, *parts, **scripts)
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    assert page.evaluate("Object.keys(explorer.parts).length") and not errors
    return page


def solve(page, name, cases):
    """The page's own function, on every case."""
    return page.evaluate(f"cases => cases.map((given) => explorer.{name}(given))", cases)


def machine_of(case):
    """The machine of a case, or ValueError."""
    slices = case["slices"] if CHIPS[case["chip"]].torus else None
    return machine(case["chip"], case["chips"], slices=slices, reserve=case["reserve"] / 100)


def dtypes(chance):
    """Those of the state, or none for the usual ones; and of the products."""
    found = (
        {"products": chance.choice(("bf16", "bf16", "fp8", "int8"))}
        if chance.random() < 0.3
        else {}
    )
    if chance.random() < 0.5:
        found |= {
            "overlap": chance.choice(([], ["tensor"], ["expert"], ["tensor", "expert"])),
            "dispatch": chance.choice(("expert", "node")),
        }
    if chance.random() < 0.4:
        found |= {name: chance.choice(("f32", "bf16")) for name in STATE[:3]} | {
            "master": chance.choice(("f32", "none"))
        }
    return found


def adapters(chance):
    """Adapters, for some cases, of a rank that is possible for most, and not always on all."""
    if chance.random() > 0.2:
        return {}
    lora = chance.choice((0, 8, 64, 64, 10_000))
    found = {"lora": lora} | ({"adapted": "attention"} if lora and chance.random() < 0.4 else {})
    frozen = chance.choice((None, "nf4", "nf4", "int8"))
    return found | ({"parameters": frozen} if frozen else {})


def arguments_of(case):
    """The dtypes of a case as arguments of `step_cost`."""
    return {
        name: None if case[name] == "none" else case[name]
        for name in (*STATE, "products", "overlap", "dispatch", "lora", "adapted")
        if name in case
    }


def mixture(chance, model):
    """What makes a mixture of experts of a dense model, perhaps with latent attention."""
    experts = chance.choice((4, 6, 8, 64))
    found = {
        "experts": experts,
        "experts_per_token": chance.choice((1, 2, 4)) + 5 * (chance.random() < 0.05),
        "shared_experts": chance.choice((0, 0, 1)), "expert_d_ff": chance.choice((0, 512, 2048)),
        "dense_layers": min(chance.choice((0, 0, 1, 3)),
            model["layers"] + (chance.random() < 0.05)),
    }  # fmt: skip
    if chance.random() < 0.4:
        found |= {"kv_rank": 512, "q_rank": chance.choice((0, 1536)), "rope_dim": 64}
    return model | found


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
                    "heads": kv * chance.choice((1, 2, 4, 8)) + (chance.random() < 0.05),
                    "kv_heads": kv,
                    "head_dim": chance.choice((64, 100, 128)),
                    "vocab": chance.randrange(100, 200_000),
                    "gated": chance.random() < 0.5, "tied": chance.random() < 0.5,
                }  # fmt: skip
                if chance.random() < 0.3:
                    model = mixture(chance, model)
            sizes = [
                2 ** chance.randrange(6) * chance.choice((1, 1, 1, 3))
                if chance.random() < often
                else 1
                for often in (0.6, 0.7, 0.6, 0.3, 0.3)
            ]
            ways = [
                n
                for n in (1, 2, 4, 8)
                if n <= model.get("experts", 0) and model["experts"] % n == 0
            ] or [1]
            sizes.append(chance.choice(ways) if chance.random() < 0.97 else 3)
            case = {
                "model": model, "chip": chip, "slices": chance.choice((1, 1, 1, 2, 4)),
                "remat": remat,
                "batch": 2 ** chance.randrange(12, 23) + chance.choice((0, 0, 17)),
                "sequence": chance.choice((512, 4096, 32_768)),
                "reserve": explorer.RESERVES[len(cases) % 5],
                **dict(zip(costs.MESH_AXES, sizes, strict=True)), **dtypes(chance),
                "microbatches": 2 ** chance.randrange(8),
                "stages": chance.choice((1, 1, 1, 2, 4)), "gathers": chance.choice((1, 2, 2)),
                "chips": prod(sizes), "name": "this model", **adapters(chance),
            }  # fmt: skip
            try:
                machine_of(case)
            except ValueError:
                if chance.random() < 0.9:  # of impossible machines a few
                    continue
            cases.append(case)
    return cases


def compare_steps(cases, answers):
    """Hold the page's steps to those of `step_cost`; returns how many cases of which kind there
    were.
    """
    kinds = Counter()
    for case, answer in zip(cases, answers, strict=True):
        axes = {axis: case[axis] for axis in (*costs.MESH_AXES, "microbatches", "stages")}
        try:
            made, model = machine_of(case), Model(**case["model"])
            step = costs.step_cost(
                model,
                made,
                costs.Parallelism(**axes),
                case["batch"],
                case["sequence"],
                case["remat"],
                gathers=case["gathers"],
                **arguments_of(case),
            )
        except ValueError as error:
            assert answer == {"error": {"words": str(error)}}, case
            kinds["refused"] += 1
            continue
        memory = step.memory
        held = (
            "parameter",
            "gradient",
            "moment",
            *["master"] * bool(memory.master_bytes),
            "activation",
            "working",
            "gathered",
            "logits",
        )
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
        parts = ("compute", "hbm", "host", *costs.MESH_AXES)
        expected = [
            *(getattr(memory, f"{kind}_bytes") for kind in (*held, "total", "state", "host")),
            *(getattr(step, name) for name in names),
            *(step.parts[part] for part in parts),
            *(step.axes[axis].bytes for axis in costs.MESH_AXES),
        ]
        found = [
            *answer["memory"].values(), answer["total_bytes"], answer["state_bytes"],
            answer["host_bytes"],
            *(answer[name] for name in names),
            *(answer["parts"][part] for part in parts),
            *(answer["sent_bytes"][axis] for axis in costs.MESH_AXES),
        ]  # fmt: skip
        assert found == pytest.approx(list(map(float, expected)), rel=1e-9), case
        assert (answer["parameters"], answer["hbm_bytes"]) == (
            model.parameters,
            made.chip.hbm_bytes,
        )
        assert (answer["fits"], answer["bound"]) == (bool(step.fits), str(step.bound)), case
        assert sum(answer["exposed"].values()) == pytest.approx(
            answer["exposed_seconds"], rel=1e-9, abs=1e-15
        )
        work = answer["work_seconds"] + answer["exposed_seconds"]
        assert answer["expected_seconds"] == pytest.approx(
            work * (1 + answer["bubble"]) + answer["update_seconds"], rel=1e-9
        )
        full = memory.total_bytes <= made.chip.hbm_bytes
        kinds["fits without a reserve only"] += bool(full and not step.fits)
        kinds.update([answer["bound"], answer["fits"], *(axis for axis in axes if axes[axis] > 1)])
        kinds["latents"] += model.kv_rank > 0
        kinds.update([name for name in (*STATE, "products", "lora", "adapted") if case.get(name)])
        kinds[case.get("parameters")] += 1
        kinds["adapted experts"] += bool(
            case.get("lora") and model.experts and "adapted" not in case
        )
    return kinds


@cache
def plan_cases():
    chance = random.Random(24)
    cases = []
    while len(cases) < 104:
        chip, name = list(CHIPS)[len(cases) % len(CHIPS)], chance.choice(list(SIZES_OF))
        case = {
            "name": name,
            "model": SIZES_OF[name],
            "chip": chip,
            "slices": chance.choice((1, 1, 2)),
            "chips": chance.choice((1, 4, 8, 12, 16, 32, 64, 128, 256, 512)),
            "remat": chance.choice(tuple(costs.REMAT)),
            "batch": chance.choice((1, 1, 9, 15)) * 2 ** chance.randrange(13, 23),
            "sequence": chance.choice((2048, 4096, 6144, 8192, 32_768)),
            "reserve": chance.choice(explorer.RESERVES),
        } | ({"products": "fp8"} if chance.random() < 0.1 else {})
        case |= adapters(chance)
        try:
            machine_of(case)
        except ValueError:
            if chance.random() < 0.8:
                continue
        cases.append(case)
    return cases


def planned_for(case):
    options = {name: case[name] for name in ("sequence", "remat")} | {
        "reserve": case["reserve"] / 100
    }
    options |= {"products": case.get("products", "bf16"), "lora": case.get("lora", 0)}
    options |= {"adapted": case.get("adapted", "all")}
    options |= {"dtypes": {"parameters": case.get("parameters", "bf16")}}
    slices = case["slices"] if CHIPS[case["chip"]].torus else None
    return planned(
        case["name"], case["chip"], case["chips"], case["batch"], slices=slices, **options
    )


def same_choice(found, choice):
    assert [found["mesh"][axis] for axis in costs.MESH_AXES] == [
        getattr(choice, axis) for axis in costs.MESH_AXES
    ]
    same = ("microbatches", "stages", "gathers", "fits", "bound")
    assert [found[name] for name in same] == [getattr(choice, name) for name in same]
    names = (
        "expected_seconds",
        "exposed_seconds",
        "seconds",
        "serial_seconds",
        "total_bytes",
        "bubble",
    )
    assert [found[name] for name in names] == pytest.approx(
        [getattr(choice, name) for name in names], rel=1e-9
    )


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
             "micro-batches": first.microbatches > 1,
             "nodes": any(choice.context > 1 for choice in made.choices),
             "expert": any(c.expert > 1 for c in top),
             "gathered once": any(c.gathers == 1 for c in top),
             "interleaved": any(c.stages > 1 for c in top)}
        )  # fmt: skip
    return kinds
