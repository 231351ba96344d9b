"""The planner's JavaScript, run in a browser, compared with shardlab's plans, servers,
configurations and commands.
"""

import contextlib
import io
import json
import math
import random
import re
from collections import Counter
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from explorer_cases import SIZES_OF, bare_page, compare_plans, plan_cases, planned_for, solve
from playwright.sync_api import expect

from shardlab import (
    CHIPS,
    MODELS,
    Model,
    costs,
    inference,
    machine,
    models,
    plan as planned,
    planner,
    serving,
)
from shardlab.book.planner import FILES, TYPES, data
from shardlab.cli import main

pytestmark = pytest.mark.reads(
    "src/shardlab", "src/bookbinder", "book/static/explorer", "book/planner.md"
)
CHAPTER = "planner"


@pytest.fixture(scope="module")
def bare(browser, tmp_path_factory):
    """The planner on a page by itself, opened from a file."""
    scripts = [name for name in FILES if name[-2:] == "js"]
    page = bare_page(
        browser, tmp_path_factory.mktemp("bare") / "bare.html", planner(), scripts=scripts
    )
    assert page.evaluate("Object.keys(explorer.parts)") == ["planner"]
    return page


# --- Plans: against shardlab.plan -----------------------------------------------------------------


def test_meshes_are_ranked_as_by_shardlab_plan(bare):
    kinds = compare_plans(plan_cases(), solve(bare, "plan", plan_cases()))
    assert (
        min(kinds[kind] for kind in ("fits", "remedy", "uneven", "micro-batches", "nodes")) >= 5
    ), kinds
    assert min(kinds["gathered once"], kinds["interleaved"]) >= 3, kinds
    assert min(kinds.values()) >= 1 and len(kinds) >= 8, kinds


def test_policies_of_maxtext_and_megatron_are_planned_by_their_names(bare):
    cases = [
        case | {"remat": name}
        for name, case in zip(costs.POLICIES, plan_cases()[40:], strict=False)
    ]
    assert len(cases) == len(costs.POLICIES)
    compare_plans(cases, solve(bare, "plan", cases))


def test_a_sliding_window_saves_what_it_saves_in_the_command(bare):
    cases = [
        case | {"name": replace(model, name="own"), "model": sizes, "sequence": sequence}
        for case, sequence in zip(plan_cases()[40:], (2048, 8192, 32_768), strict=False)
        for config in CONFIGS
        if (model := models.from_config(config)).local_layers
        for sizes in [{n: s for n, s in asdict(model).items() if n != "name"}]
    ]
    assert len(cases) >= 12
    answers = solve(bare, "plan", [{n: s for n, s in c.items() if n != "name"} for c in cases])
    compare_plans(cases, answers)


def size_of(text):
    """The bytes that the page writes with two digits."""
    number, unit = text.split()
    return float(number) * {"MB": 1e6, "GB": 1e9}[unit]


def test_each_mesh_says_what_it_loses_against_the_first(bare):
    script = """cases => cases.map((given) => {
        const { choices } = explorer.plan(given);
        const usable = explorer.data.chips[given.chip].hbm_bytes * (1 - given.reserve / 100);
        return choices?.map((choice) => explorer.why(choice, choices[0], usable));
    })"""
    kinds = Counter()
    for case, words in zip(plan_cases(), bare.evaluate(script, plan_cases()), strict=True):
        if not words:
            continue
        made = planned_for(case)
        first = made.choices[0]
        for said, choice in zip(words, made.choices, strict=True):
            loses = choice.expected_seconds / first.expected_seconds - 1
            if not choice.fits:
                much = size_of(re.fullmatch(r"does not fit: (.*) too much", said)[1])
                assert much == pytest.approx(
                    choice.total_bytes - made.machine.usable_bytes, rel=0.06
                )
                kinds["does not fit"] += 1
            elif choice is first:
                assert said == "the first"
            elif loses < 0:
                assert re.search(
                    rf"% faster, but has {len(choice.mesh)} axes instead of {len(first.mesh)}$",
                    said,
                ), said
                assert len(choice.mesh) > len(first.mesh) and loses > -0.011
                kinds["faster"] += 1
            elif said == "as fast":
                assert loses < 1e-9
            else:
                slower, why = re.fullmatch(r"([\d.e-]+) % slower: (.*)", said).groups()
                assert float(slower) == pytest.approx(100 * loses, rel=0.5, abs=0.5)
                if sends := re.fullmatch(r"sends (.*) more along (\w+)", why):
                    more = choice.sent_bytes[sends[2]] - first.sent_bytes[sends[2]]
                    assert size_of(sends[1]) == pytest.approx(more, rel=0.06)
                    kinds["sends more"] += 1
                elif waits := re.fullmatch(r"waits ([\d.e-]+) % in the bubble", why):
                    assert float(waits[1]) == pytest.approx(100 * choice.bubble, rel=0.1, abs=0.51)
                    kinds["bubble"] += 1
                elif updates := re.fullmatch(r"updates (.*) more of state", why):
                    assert size_of(updates[1]) == pytest.approx(
                        choice.state_bytes - first.state_bytes, rel=0.06
                    )
                    kinds["updates more"] += 1
                else:
                    assert why.startswith(
                        ("its products are smaller", "hides less of what it sends along ")
                    )
                    kinds[why[:12]] += 1
    assert len(kinds) == 7 and min(kinds.values()) >= 3, kinds


def test_rates_days_and_what_no_run_tests_are_those_of_a_plan(bare):
    script = """cases => cases.map((given) => {
        const { choices } = explorer.plan(given);
        return choices && [explorer.beyond(choices[0], given), explorer.bandOf(choices[0], given),
            explorer.rates(given, choices[0].expected_seconds, 1e12), choices[0].expected_mfu];
    })"""
    kinds = Counter()
    for case, answer in zip(plan_cases(), bare.evaluate(script, plan_cases()), strict=True):
        if not answer:
            continue
        made, (lines, band, rates, mfu) = planned_for(case), answer
        first = made.choices[0]
        assert lines == made._beyond().splitlines()[1:], case
        assert (band["kind"], band["words"]) == (
            made.kind,
            " ".join(costs.band_words(made.chip, made.kind).split()),
        )
        each = case["batch"] / first.expected_seconds / case["chips"]
        assert rates == pytest.approx({"speed": each, "days": 1e12 / each / case["chips"] / 86_400})
        assert mfu == pytest.approx(first.mfu, rel=1e-9)
        kinds.update(
            [
                bool(lines),
                made.kind,
                *re.findall(r"fp8 products|sequences of|the \w+", "".join(lines)),
            ]
        )
    assert kinds[True] > 10 and kinds[False] > 5, kinds
    assert min(kinds[kind] for kind in ("mixture", "long", "narrow", "chip", "dense")) > 1, kinds


def test_the_code_of_a_mixture_makes_its_mesh(bare):
    made, made_names = planned("mixtral-8x7b", "H100", 64, 2**21), set()
    for choice in made.choices[:40]:
        sizes = {axis: getattr(choice, axis) for axis in costs.MESH_AXES}
        how = {name: getattr(choice, name) for name in ("microbatches", "stages", "gathers")}
        names = {}
        exec(
            bare.evaluate(
                "(given) => explorer.planCode(...given)", [SIZES_OF["mixtral-8x7b"], sizes, how]
            ),
            names,
        )
        assert {
            axis: n for axis, n in names["mesh"].shape.items() if n > 1
        } == choice.mesh and "specs" not in names
        assert (
            prod(names["mesh"].shape[axis] for axis in names["tokens"][0])
            == choice.data * choice.fsdp * choice.expert
        )
        made_names.update(choice.mesh)
    assert {"expert", "fsdp", "tensor"} <= made_names


# --- Servers: against shardlab.serving ------------------------------------------------------------


def server_cases():
    chance = random.Random(77)
    cases = []
    while len(cases) < 60:
        name = chance.choice(list(SIZES_OF))
        cases.append({
            "name": name, "model": SIZES_OF[name], "chip": list(CHIPS)[len(cases) % len(CHIPS)],
            "chips": chance.choice((1, 2, 4, 8, 16, 24, 64)),
            "prompt": chance.choice((1, 100, 2048, 131_072)),
            "output": chance.choice((1, 256, 4096)),
            "weights": chance.choice(("bf16", "int8", "fp4")),
            "cache": chance.choice(("bf16", "fp8")), "reserve": chance.choice((0, 10, 30)),
            "latency": chance.choice((0, 0, 30, 60)), "first": chance.choice((0, 0, 500)),
        })  # fmt: skip
    return cases


def test_servers_take_what_shardlab_serving_says(bare):
    cases, kinds = server_cases(), Counter()
    for case, answer in zip(cases, solve(bare, "serve", cases), strict=True):
        try:
            on = machine(case["chip"], case["chips"], reserve=case["reserve"] / 100)
        except ValueError as error:
            assert answer == {"error": {"words": str(error)}}
            kinds["refused"] += 1
            continue
        plans = serving.server_plan(
            MODELS[case["name"]],
            on,
            case["prompt"],
            case["output"],
            weights=case["weights"],
            cache=case["cache"],
            slow_token_seconds=case["latency"] / 1e3 or math.inf,
            first_token_seconds=case["first"] / 1e3 or math.inf,
        )
        assert answer["usable"] == pytest.approx(on.usable_bytes)
        axes = ("replicas", "pipeline", "expert", "tensor")
        assert [tuple(layout[axis] for axis in axes) for layout in answer["layouts"]] == [
            tuple(getattr(plan_.layout, axis) for axis in axes) for plan_ in plans
        ]
        for layout, cost in zip(answer["layouts"], plans, strict=True):
            best, times = layout["best"], cost.expected
            assert (best["requests"], best["fits"], best["bound"]) == (
                cost.concurrency,
                cost.fits,
                cost.bound,
            )
            found = [
                best["expected"]["token"],
                best["expected"]["slow"],
                best["expected"]["first"],
                best["expected"]["burst"],
                best["speed"],
                best["requests_per_second"],
            ]
            found += [
                best["least"]["token"],
                best["least"]["first"],
                best["total_bytes"],
                best["expected"]["prompts"],
            ]
            wanted = [
                times.token_seconds,
                times.slow_token_seconds,
                times.first_token_seconds,
                times.burst_first_token_seconds,
                times.tokens_per_second_per_chip,
            ]
            wanted += [
                times.requests_per_second,
                cost.least.token_seconds,
                cost.least.first_token_seconds,
            ]
            assert found == pytest.approx([*wanted, cost.total_bytes, cost.prefill_share], rel=1e-9)
            bands = [layout["bands"].get(name) for name in ("first", "token", "throughput")]
            of_cost = (cost.bands.first_token, cost.bands.token, cost.bands.throughput)
            assert bands == [band and asdict(band) | {"words": str(band)} for band in of_cost]
            kinds.update([
                cost.bound, best["meets"], "torus" if on.chip.torus else "switch",
                "nodes" * (on.slices > 1),
                "experts" * (cost.layout.expert > 1), "stages" * (cost.layout.pipeline > 1),
                "tested" if any(of_cost) else "untested",
            ])  # fmt: skip
    many = (
        True,
        False,
        "torus",
        "switch",
        "nodes",
        "refused",
        "experts",
        "stages",
        "tested",
        "untested",
    )
    assert min(kinds[kind] for kind in many) > 5, kinds


# --- Configurations: against shardlab.models ------------------------------------------------------

DENSE = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
MIXED = {
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "head_dim": 128,
}
LATENT = {
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
}  # fmt: skip
CONFIGS = [
    DENSE | {"model_type": "llama", "tie_word_embeddings": False},
    DENSE | {"model_type": "qwen3", "head_dim": 128, "tie_word_embeddings": True},
    {name: size for name, size in DENSE.items() if "key" not in name}
    | {"model_type": "llama", "tie_word_embeddings": False},
    DENSE | {"model_type": "mistral", "head_dim": None, "tie_word_embeddings": False},
    DENSE | {"model_type": "qwen2", "tie_word_embeddings": False},
    DENSE
    | {
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    },
    DENSE | MIXED | {"model_type": "qwen3_moe", "tie_word_embeddings": False},
    DENSE
    | LATENT
    | {"model_type": "deepseek_v3", "tie_word_embeddings": False, "num_key_value_heads": 32},
    *(
        DENSE | {"model_type": kind, "tie_word_embeddings": False}
        for kind in ("olmo", "olmo2", "granite", "smollm3")
    ),
    DENSE
    | {"model_type": "olmoe", "num_experts": 64, "num_experts_per_tok": 8}
    | {"tie_word_embeddings": False},
    DENSE | {"model_type": "granite", "tie_word_embeddings": True},
    DENSE | {"model_type": "mistral", "sliding_window": 4096, "tie_word_embeddings": False},
    DENSE
    | {"model_type": "mistral", "sliding_window": 64, "tie_word_embeddings": False}
    | {"layer_types": ["sliding_attention", "full_attention"] * 16},
    *(
        DENSE | {"model_type": "qwen2", "sliding_window": 4096, "tie_word_embeddings": False} | more
        for more in (
            {"use_sliding_window": False},
            {"use_sliding_window": True},
            {"use_sliding_window": True, "max_window_layers": 20},
            {"use_sliding_window": True, "max_window_layers": 64},
        )
    ),
    DENSE | {"model_type": "seed_oss", "head_dim": 128, "num_attention_heads": 40},
    DENSE
    | {"model_type": "minimax_m2", "num_local_experts": 256, "num_experts_per_tok": 8}
    | {"head_dim": 128, "tie_word_embeddings": False},
    {
        name: size
        for name, size in (DENSE | LATENT).items()
        if "rank" not in name and "qk" not in name
    }
    | {"model_type": "glm4_moe", "head_dim": 128, "tie_word_embeddings": False},
]


def test_configurations_are_read_as_by_shardlab_models(bare):
    answers = solve(bare, "fromConfig", [json.dumps(config) for config in CONFIGS])
    for config, sizes in zip(CONFIGS, answers, strict=True):
        assert Model(**sizes) == replace(models.from_config(config), name=""), config
        parameters, active = bare.evaluate(
            (
                "(model) => { const { parameters, active } = explorer.sizesOf(model); return "
                "[parameters, active]; }"
            ),
            sizes,
        )
        assert (parameters, active) == (Model(**sizes).parameters, Model(**sizes).active_parameters)
    assert {config["model_type"] for config in CONFIGS} == set(TYPES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "this is no JSON"),
        ("[1]", "no table of sizes"),
        ("null", "no table of sizes"),
        ("{}", "model_type is “”; this page reads llama"),
        (json.dumps(DENSE | {"model_type": "jamba"}), "shardlab plan with the path"),
        (json.dumps(DENSE | {"model_type": "qwen2_moe"}), "did you mean “qwen3_moe”?"),
        (
            json.dumps(DENSE | {"model_type": "llama", "hidden_size": "4096"}),
            'hidden_size is "4096"; it should be',
        ),
        (json.dumps(DENSE | {"model_type": "llama", "vocab_size": 1.5}), "vocab_size is 1.5"),
        *(
            (
                json.dumps(
                    DENSE | {"model_type": "mistral", "sliding_window": 64, "layer_types": kinds}
                ),
                "write a list of 32 types",
            )
            for kinds in ("full_attention", ["sliding_attention"], {}, 3)
        ),
        (
            json.dumps({"model_type": "llama", "hidden_size": 64}),
            "the configuration has no layers: num_hidden_layers",
        ),
    ],
)
def test_what_is_no_such_configuration_is_said(bare, text, said):
    assert said in solve(bare, "fromConfig", [text])[0]["error"]["words"]


def test_the_data_is_that_of_shardlab():
    known = data()
    assert {name: Model(**sizes, name=name) for name, sizes in known["models"].items()} == dict(
        MODELS
    )
    assert known["served"]["rates"] == {
        kind: asdict(served) for kind, served in inference.SERVED.items()
    }


# --- The page -------------------------------------------------------------------------------------


def settled(page):
    """The page, when its answer is there."""
    page.locator("[data-explorer=planner]:not([aria-busy])").wait_for(state="attached")
    return page


def words(page):
    settled(page)
    return page.locator(".explorer-words").inner_text()


def control(page, label):
    """The control that a screen reader calls so."""
    select, number = (
        page.get_by_role(role, name=label, exact=True) for role in ("combobox", "spinbutton")
    )
    return select.or_(number)


def tiles(page):
    """{name: [what stands there, the line below]}."""
    found = (
        settled(page)
        .locator(".planner-tiles > div")
        .evaluate_all("all => all.map((one) => one.innerText.split('\\n'))")
    )
    return {name: [line for line in rest if line] for name, *rest in found}


def command(page):
    return settled(page).get_by_role("group", name="Command").inner_text()


def printed(line):
    """What the command prints."""
    name, *arguments = line.split()
    assert name == "shardlab"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(arguments)
    return out.getvalue()


def quantity(text):
    number, unit = text.replace(",", "").split()
    return float(number) * {"µs": 1e-6, "ms": 1e-3, "s": 1, "%": 0.01}[unit]


def test_the_first_screen_has_the_question_and_the_answer(visit):
    made = planned("llama-3-8b", "H100", 64)
    first = made.choices[0]
    for width, height in ((1440, 900), (390, 844)):
        page = visit(viewport={"width": width, "height": height})
        asked = ["I want to", "Model", "Chip", "Chips", "Tokens in a batch", "Tokens of a sequence"]
        boxes = [control(page, label).bounding_box() for label in asked]
        boxes += [
            page.locator(where).bounding_box() for where in (".explorer-words", ".planner-tiles")
        ]
        # below a chapter's line of links
        assert max(box["y"] + box["height"] for box in boxes) < height - 70
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = tiles(page)
        assert words(page).startswith(
            f"Best mesh: {first}. Expect 8.34 s for a step.".replace(" x ", " × ")
        )
        spread = costs.band_of(made.chip, made.kind).factor
        step, band = found["Step"]
        assert quantity(step) == pytest.approx(first.expected_seconds, rel=0.006)
        assert [quantity(end) for end in band.split(" to ")] == pytest.approx(
            [first.expected_seconds / spread, first.expected_seconds * spread], rel=0.006
        )
        each = 2**22 / first.expected_seconds / 64
        assert float(found["Tokens/s per chip"][0].replace(",", "")) == pytest.approx(each, abs=0.6)
        assert quantity(found["MFU"][0]) == pytest.approx(first.mfu, abs=0.0006)
        assert found["Memory"] == [
            f"{first.total_bytes / 1e9:.1f} of 80 GB",
            "✓ fits, 10 % reserved",
        ]
        assert float(found["Days for 1 trillion tokens"][0]) == pytest.approx(
            1e12 / each / 64 / 86_400, abs=0.6
        )
        assert found["Days for 161 billion"][1] == "20 for each parameter"


@pytest.mark.parametrize(
    "address",
    [
        "#planner?model=llama-3-70b&chip=v5p&chips=256&batch=1048576&remat=mlp&reserve=20",
        "#planner?model=mixtral-8x7b&chip=H100&chips=32&batch=1048576&sequence=2048&products=fp8",
        "#planner?model=llama-3-70b&chip=H100&chips=64&batch=2097152&remat=none&products=fp8",
        "#planner?model=mixtral-8x7b&chip=H100&chips=32&batch=1048576&dispatch=node&overlap=expert",
        "#planner?model=own&chip=A100&chips=16&layers=16&batch=262144&experts=8&experts_per_token=2",
        "#planner?model=llama-3-8b&chip=v6e&chips=128&slices=2&batch=1048576",
    ],
)
def test_the_command_gives_the_same_plan(visit, address):
    page = visit(address)
    report, rows = (
        printed(command(page)),
        page.get_by_role("region", name="Meshes, ranked").locator("tbody tr"),
    )
    shown = rows.evaluate_all(
        "all => all.map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    lines = re.findall(r"^ *[1-9].*%$", report, re.MULTILINE)
    assert len(shown) == len(lines) == min(10, int(re.search(r"of (\d+) meshes", report)[1]))
    for (fits, _, expected, *_), line in zip(shown, lines, strict=True):
        assert ("too much" in line) == (fits == "✗ too much")
        milliseconds = quantity(expected) * 1e3
        assert any(
            float(n.replace(",", "")) == pytest.approx(milliseconds, rel=0.006, abs=0.6)
            for n in line.split()
            if re.fullmatch(r"[\d,]+", n)
        ), (expected, line)
    beyond = page.locator(".planner-beyond")
    said = " ".join(report.split())
    assert beyond.count() == bool(re.search(r"No published run on \w+ tests (?!such plans)", said))
    assert page.locator(".planner-range").inner_text() in said
    if beyond.count():
        assert beyond.inner_text().removeprefix("Extrapolated. ") in said
        assert tiles(page)["Step"][1].startswith("untested: ")


@pytest.mark.parametrize(
    "address",
    [
        "model=llama-3-70b&chip=H100&chips=64&prompt=3840&output=256&latency=40&cache=fp8",
        "model=llama-3-70b&chip=v5e&chips=16&weights=int8",
        "model=deepseek-v3&chip=B200&chips=16&first=2000",
    ],
)
def test_the_command_serves_the_same(visit, address):
    page = visit(f"#planner?use=serve&{address}")
    told, found = json.loads(printed(f"{command(page)} --json")), tiles(page)
    best = told["layouts"][0]
    times = best["expected"]
    assert told["able"] and best["fast_enough"]
    assert quantity(found["Time per token"][0]) == pytest.approx(times["token_seconds"], rel=0.006)
    ends = [times["first_token_seconds"], times["burst_first_token_seconds"]]
    assert [*map(quantity, found["First token"][0].split(" to "))] == pytest.approx(
        ends if best["concurrency_requests"] > best["layout"]["replicas"] else ends[:1], rel=0.006
    )
    requests = re.search(r"([\d,]+) requests at a time", words(page))[1].replace(",", "")
    assert int(requests) == best["concurrency_requests"]
    untested = not any(best["tested_servers"].values())
    assert page.locator(".planner-beyond").count() == untested
    for name, of in (("Time per token", "token_seconds"), ("First token", "first_token_seconds")):
        if best["range"][of]:
            ends = found[name][1].split(" to ")
            assert [quantity(end) for end in ends] == pytest.approx(best["range"][of], rel=0.006)
        else:
            assert found[name][1] == "no range is known" and not best["tested_servers"][of]


def test_what_fits_stays_in_sight(visit):
    page = visit(
        "#planner?model=llama-3-405b&chip=H100&chips=512", viewport={"width": 390, "height": 844}
    )
    region = page.get_by_role("region", name="Meshes, ranked")
    assert page.get_by_role("columnheader").first.inner_text() == "fits"
    region.evaluate("(box) => box.scrollTo(10_000, 0)")
    cell, box = region.locator("tbody tr").first.locator("th").bounding_box(), region.bounding_box()
    assert region.evaluate("(box) => box.scrollLeft") > 0 and abs(cell["x"] - box["x"]) < 2
    ground = region.locator("tbody th").first.evaluate(
        "(cell) => getComputedStyle(cell).backgroundColor"
    )
    assert "0)" not in ground.replace("rgb(0", "")  # opaque: what scrolls passes below it


def test_a_link_shows_the_same_page(visit):
    page = visit()
    control(page, "Model").select_option("deepseek-v3")
    control(page, "Chip").select_option("H800")
    control(page, "Chips").fill("128")
    page.keyboard.press("Tab")
    page.get_by_text("More: dtypes").click()
    control(page, "Gradients").select_option("f32")
    control(page, "Master weights").select_option("f32")
    control(page, "Training tokens, billions").fill("14800")
    page.keyboard.press("Tab")
    expect(page.locator(".explorer-output")).to_contain_text("14.8 trillion")
    page.locator("[data-choose]").nth(2).click()
    expect(page.locator("[data-choose]").nth(2)).to_have_attribute("aria-pressed", "true")
    third = visit(page.url[page.url.index("#") :])
    expect(third.locator("[data-choose]").nth(2)).to_have_attribute("aria-pressed", "true")
    assert (
        tiles(third) == tiles(page)
        and words(third) == words(page)
        and command(third) == command(page)
    )
    assert "Days for 14.8 trillion tokens" in tiles(third)
    assert "master weights" in third.locator("[data-explorer] figcaption").all_inner_texts()[-1]
    assert "--gradients f32 --master f32" in command(third)
    control(page, "Chips").fill("256")  # another question begins with its own first mesh
    page.keyboard.press("Tab")
    expect(page).not_to_have_url(re.compile("choice="))
    page.go_back()
    assert words(page) == words(third)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("chip=H1000&chips=128", "“Chip” cannot be “H1000”, only v4, "),
        ("chip=h100&chips=128", "did you mean “H100”?"),
        ("model=lama-3-70b&chips=128", "did you mean “llama-3-70b”?"),
        (
            "chips=128&batch=0",
            (
                "“Tokens in a batch” cannot be “0”, only a whole number from 1 to 1,000,000,000; "
                "the nearest is 1"
            ),
        ),
        ("chips=128&sequence=12.4", "the nearest is 12"),
        ("chips=128&tokens=many", "“Training tokens, billions” cannot be “many”"),
        ("chips=128&reserve=11", "“Memory reserve, %” cannot be “11”, only 0, 5, 10, 20, 30"),
        ("chips=128&colour=red", "“colour” is not known"),
        ("chips=128&bacth=8192", "did you mean “batch”?"),
    ],
)
def test_what_a_link_gets_wrong_is_said_and_the_rest_is_kept(visit, address, said):
    page = visit(f"#planner?{address}")
    assert words(page).startswith("Not as the address asks: ") and said in words(page)
    assert "The rest of it is shown. Best mesh: " in words(page)
    assert control(page, "Chips").input_value() == "128" and " 128 " in command(page)
    assert page.locator("[data-explorer] img").count() == 0


def test_a_machine_or_a_batch_that_is_not_possible_says_the_nearest(visit):
    page = visit("#planner?chip=H100&chips=60")
    assert words(page) == "60 H100 do not fill hosts of 8; use 56 or 64."
    assert command(page).startswith("shardlab plan llama-3-8b H100 60")
    control(page, "Chips").fill("64")
    control(page, "Tokens in a batch").fill("5000")
    assert "is not a whole number of sequences of 4096 tokens; use 4096 or 8192" in words(page)
    page = visit("#planner?model=llama-3-70b&chip=v5p&chips=8&batch=1048576")
    (what, choice), *_ = planned("llama-3-70b", "v5p", 8, 2**20).remedies
    assert f"No mesh fits. What would fit: {what}: {choice.total_bytes / 1e9:.2f} GB" in words(page)
    assert tiles(page)["Memory"][1].startswith("✗ ")
    page = visit("#planner?choice=data-3.fsdp-2")
    assert words(page).startswith(
        "“data-3.fsdp-2” is no mesh of this plan; here is the first. Best mesh: "
    )


def test_a_configuration_is_pasted_or_chosen(visit, tmp_path):
    page = visit()
    page.get_by_text("More: dtypes").click()
    page.get_by_role("textbox", name="Or its text").fill(json.dumps(CONFIGS[6]))
    page.keyboard.press("Tab")
    model = models.from_config(CONFIGS[6])
    assert (
        f"Read: {model.parameters / 1e9:.3g} billion parameters."
        == page.locator("[data-config]").inner_text()
    )
    assert control(page, "Model").input_value() == "own" and "experts=128" in page.url
    expect(page.locator(".explorer-output")).to_contain_text(
        f"has {model.parameters:,} parameters, of which a token uses {model.active_parameters:,}."
    )
    assert words(visit(page.url[page.url.index("#") :])) == words(page)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(DENSE | {"model_type": "mamba"}))
    page.get_by_label("File").set_input_files(file)
    page.locator("[data-config]").filter(has_text="model_type is “mamba”").wait_for()


def test_speed_and_latency_are_drawn_against_the_batch(visit):
    page = visit("#planner?chips=16&batch=1048576")
    page.locator(".planner-plots").evaluate("(box) => box.scrollIntoView()")  # drawn when seen
    figures = page.locator(".planner-plots figure")
    figures.nth(1).wait_for()
    assert figures.count() == 2
    said = figures.nth(1).locator("desc").text_content().split("; ")
    for entry in said:
        batch, seconds = entry.removesuffix(", does not fit").split(": ")
        tokens = int(float(batch[:-1]) * {"k": 2**10, "M": 2**20}[batch[-1]])
        best = planned("llama-3-8b", "H100", 16, tokens).choices[0]
        assert quantity(seconds) == pytest.approx(best.expected_seconds, rel=0.006)
        assert best.fits != entry.endswith("does not fit")
    assert len(said) == 7


def test_paper_has_the_names_of_meshes_and_lines_that_nobody_has_scrolled_to(visit):
    page = visit("#planner?chips=16&batch=1048576")
    page.locator(".planner-plots").wait_for(state="attached")
    assert page.locator(".planner-plots figure").count() == 0
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".planner-plots figure").count() == 2
    page.emulate_media(media="print")
    assert page.locator(".planner-table td [data-choose]:visible").count() == 10


def test_everything_is_reached_by_keyboard(visit):
    page = visit()
    reached = set()
    page.get_by_text("More: dtypes").focus()
    page.keyboard.press("Enter")
    page.locator("[name=use]").focus()
    for _ in range(60):
        reached.add(
            page.evaluate(
                "document.activeElement.name || document.activeElement.dataset.choose || ''"
            )
        )
        page.keyboard.press("Tab")
    assert {"use", "model", "chip", "chips", "batch", "sequence", "remat", "tokens", "master",
        "reserve", "link",
            "code", "fsdp-64"} <= reached  # fmt: skip
    assert page.locator(".explorer-words").get_attribute("aria-live") == "polite"


def test_without_scripts_there_is_a_plan_and_a_command(visit):
    page = visit(java_script_enabled=False)
    text = page.locator("[data-explorer=planner]").inner_text()
    assert (
        "run a command such as shardlab plan llama-3-8b H100 64" in text
        and page.locator("form").count() == 0
    )
    assert page.get_by_role("table").is_visible()


def test_it_requests_nothing_and_works_under_a_policy_without_inline_scripts(
    browser, bare, tmp_path
):
    body = Path(unquote(urlsplit(bare.url).path)).read_text()
    policy = "default-src 'none'; script-src file:; style-src 'unsafe-inline'"
    strict = tmp_path / "strict.html"
    strict.write_text(
        body.replace(
            "<title>", f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>'
        )
    )
    page, asked = browser.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(strict.as_uri())
    assert page.locator("[data-explorer] form").count() == 1 and "Best mesh" in words(page)
    assert {urlsplit(url).scheme for url in asked} == {"file"}
    page.close()
