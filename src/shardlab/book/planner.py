"""The book's page "Planner" as it is before its scripts run: its form, one plan as a table, and the
data.

On the page, scripts (book/static/explorer) plan anew on each change, with the formulas of
`shardlab.costs`, `shardlab.plan` and `shardlab.serving` in JavaScript.
tests/browser/test_planner.py compares the two.
"""

from dataclasses import asdict
from html import escape

from shardlab.book import explorer
from shardlab.book.forms import Part, form, label, number, select
from shardlab.costs import inference, serving
from shardlab.costs.bands import KINDS_OF_PLANS, band_of, band_words
from shardlab.costs.dtypes import BYTES, FROZEN
from shardlab.costs.plan import MOST_CHIPS, ORDER, plan
from shardlab.costs.published import RUNS
from shardlab.costs.setting import DISPATCHES, OVERLAPS
from shardlab.costs.steps.parallelism import MESH_AXES
from shardlab.costs.steps.remat import POLICIES, REMAT
from shardlab.machines import hardware, models
from shardlab.pictures.svg import Picture

__all__ = ["data", "planner"]

FILES = (
    "explorer.css", "planner.css", "words.js", "svg.js", "names.js", "fit.js", "plan.js",
    "serve.js", "config.js",
    "show.js", "planner.js", "explorer.js",
)  # fmt: skip  # in the order of loading
OWN = "own"
RESERVE = 10  # per cent of a chip's memory, as in `shardlab.plan`
USES = {"train": "train it", "serve": "serve it"}
STATE = {
    "parameters": ("bf16", "f32", *FROZEN),
    "gradients": ("bf16", "f32"),
    "moments": ("f32", "bf16"),
}
MASTER = ("none", "f32")
# axes whose collectives a framework overlaps with products, and how it sends tokens to experts
OVERLAPPED = {"": "no axis", **{axis: axis for axis in OVERLAPS}, ",".join(OVERLAPS): "both"}
DISPATCHED = dict(zip(DISPATCHES, ("once for each expert", "once to each node"), strict=True))
PRODUCTS = tuple(
    dict.fromkeys(dtype for chip in hardware.CHIPS.values() for dtype in chip.flops_per_second)
)
# dtypes of weights and caches that are served
STORED = tuple(name for name in BYTES if name != "f32")
OPTIONAL = (
    "experts",
    "experts_per_token",
    "shared_experts",
    "expert_d_ff",
    "dense_layers",
    "kv_rank",
    "q_rank",
    "rope_dim",
    "window",
    "local_layers",
)
# What the page reads of a config.json of these types; `shardlab.models.from_config` reads more of
# them.
TYPES = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "glm4_moe",
    "granite", "minimax_m2", "olmo", "olmo2", "olmoe", "seed_oss", "smollm3",
)  # fmt: skip
KEYS = {
    "layers": ["num_hidden_layers"],
    "d_model": ["hidden_size"],
    "d_ff": ["intermediate_size"],
    "heads": ["num_attention_heads"],
    "kv_heads": ["num_key_value_heads", "num_attention_heads"],
    "head_dim": ["qk_nope_head_dim", "head_dim"],
    "vocab": ["vocab_size"],
    "experts": ["n_routed_experts", "num_local_experts", "num_experts"],
    "experts_per_token": ["num_experts_per_tok"],
    "shared_experts": ["n_shared_experts"],
    "expert_d_ff": ["moe_intermediate_size"],
    "dense_layers": ["first_k_dense_replace"],
    "kv_rank": ["kv_lora_rank"],
    "q_rank": ["q_lora_rank"],
    "rope_dim": ["qk_rope_head_dim"],
    "window": ["sliding_window"],
}


def data() -> dict:
    """What the scripts use, ready for JSON: the explorer's chips and formulas, all models, what
    runs test, and more.
    """
    used = ("palette", "chips", "rounds", "widths", "remat", "fitted", "most")
    known = {name: value for name, value in explorer.data().items() if name in used}
    sizes = (*models.SIZES, "gated", "tied", *OPTIONAL)
    return known | {
        "remat": {name: asdict(remat) for name, remat in (REMAT | POLICIES).items()},
        "models": {
            name: {size: getattr(model, size) for size in sizes}
            for name, model in models.MODELS.items()
        },
        "order": ORDER,
        "tested": {"tpu": _tested(torus=True), "gpu": _tested(torus=False)},
        "bands": {"tpu": _bands("v5e"), "gpu": _bands("H100")},
        "prefill": serving.PREFILL_TOKENS,
        "served": {
            "rates": {kind: asdict(served) for kind, served in inference.SERVED.items()},
            "bands": {
                name: asdict(band) | {"words": str(band)}
                for name in serving.BANDS
                if (band := serving.band_of(name))
            },
            "many": serving.MANY,
            "slow": serving.SLOW,
            "alike": serving.ALIKE,
            "tested_chips": serving.TESTED_CHIPS,
            "powers": serving.POWERS,
        },
        "types": {kind: models.layers_with_window(kind) for kind in TYPES},
        "keys": KEYS,
    }


def _bands(chip):
    """For each kind of plan on such chips: by which factor times are off, whether that is its own,
    and words.
    """
    kinds = {}
    for kind in KINDS_OF_PLANS:
        band = band_of(hardware.chip(chip), kind)
        words = " ".join(band_words(hardware.chip(chip), kind).split())
        kinds[kind] = {"factor": band.factor if band else None, "words": words}
    return kinds


def _tested(torus):
    """What published runs on TPUs or on GPUs test: the longest axes and sequences, dtypes and
    chips.
    """
    runs = [run for run in RUNS.values() if bool(run.machine.chip.torus) == torus]
    names = [run.machine.chip.name for run in runs]
    return {
        "axes": {
            axis: max(int(getattr(run.parallelism, axis)) for run in runs) for axis in MESH_AXES
        },
        "sequence": max(run.sequence for run in runs),
        "products": sorted({run.how.get("products", "bf16") for run in runs}),
        "chips": [chip for chip in hardware.CHIPS if any(name.startswith(chip) for name in names)],
    }


def _count(name, words, value, least, shown=""):
    """A whole number of at least 0 or 1."""
    control = (
        f'<input type="number" name="{name}" value="{value}" min="{least}" max="1000000000" '
        "required "
    )
    return label(words, control + f'title="a whole number from {least} to 1,000,000,000">', shown)


def _any(name, words, value, shown, needed=""):
    """A number above 0, of which nothing means none where it is not needed."""
    control = (
        f'<input type="number" name="{name}" value="{value}" min="0.001" max="1000000000" '
        f'step="any"{needed} '
    )
    return label(words, control + 'title="a number from 0.001 to 1,000,000,000">', shown)


def _controls(model, chip, chips, batch_tokens, sequence, remat):
    """The form: what is asked first, and below it what else can be chosen."""
    tpus = " ".join(name for name, kind in hardware.CHIPS.items() if kind.torus)
    first_fields = (
        select("use", "I want to", USES)
        + select("model", "Model", (*models.MODELS, OWN))
        + select("chip", "Chip", tuple(hardware.CHIPS))
        + number("chips", "Chips", chips, MOST_CHIPS)
        + number("batch", "Tokens in a batch", batch_tokens, 10**9, "use train")
        + number("sequence", "Tokens of a sequence", sequence, 10**7, "use train")
        + number("prompt", "Tokens of a prompt", 2048, 10**7, "use serve")
        + number("output", "Tokens of an answer", 256, 10**7, "use serve")
    )
    step = (
        number("slices", "Slices", 1, 2**9, f"chip {tpus}")
        + select(
            "remat", "Rematerialised", explorer.REMATERIALISED | {name: name for name in POLICIES}
        )
        + _any("tokens", "Training tokens, billions", 1000, "", " required")
        + select("products", "Products of the layers", PRODUCTS)
        + select("overlap", "Overlapped with products", OVERLAPPED)
        + select("dispatch", "Tokens sent to experts", DISPATCHED)
        + _count("lora", "LoRA rank, 0 for none", 0, 0)
        + select("adapted", "LoRA on matrices of", {"all": "all layers", "attention": "attention"})
    )
    state = "".join(select(name, name.capitalize(), dtypes) for name, dtypes in STATE.items())
    state += select("master", "Master weights", MASTER)
    bounds = _any("latency", "ms for 95 of 100 tokens, at most", "", "")
    bounds += _any("first", "ms to the first token, at most", "", "")
    served = select("weights", "Weights", STORED) + select("cache", "KV cache", STORED)
    sizes = models.model(model)
    own = "".join(_count(name, name, getattr(sizes, name), 1) for name in models.SIZES)
    own += "".join(_count(name, name, 0, 0) for name in OPTIONAL)
    own += select("gated", "Gated MLP", ("yes", "no")) + select(
        "tied", "Tied embedding", ("no", "yes")
    )
    config = (
        "<p>The page reads it here and sends it nowhere.</p><label><span>File</span><input "
        'type="file" '
    )
    config += (
        'accept=".json,application/json"></label><label><span>Or its text</span><textarea rows="2" '
    )
    config += 'spellcheck="false"></textarea></label><p role="status" data-config></p>'
    groups = {
        ("Training", "use train"): step, ("Dtypes of the state", "use train"): state,
        ("Bounds", "use serve"): bounds, ("Dtypes in serving", "use serve"): served,
        ("Memory", ""): select("reserve", "Memory reserve, %", explorer.RESERVES),
        ("A model's config.json", ""): config, ("Own model", f"model {OWN}"): own,
    }  # fmt: skip
    more = ""
    for (legend, shown), controls in groups.items():
        shown = f' data-if="{shown}"' if shown else ""
        more += f"<fieldset{shown}><legend>{escape(legend)}</legend>{controls}</fieldset>"
    return form("Planner", {"What do you have?": first_fields}).replace(
        "</form>",
        '<input type="hidden" name="choice" value=""><details '
        'class="planner-more"><summary>More: dtypes, remat, '
        f"slices, your config.json</summary>{more}</details></form>",
    )


_OUTPUT = (
    '<div class="explorer-result"><p class="explorer-words" aria-live="polite"></p><div '
    'class="explorer-bar"><button type="button" name="link">Copy link</button><button '
    'type="button" name="code">Copy command</button><button type="button" name="again">Start '
    'again</button><span role="status"></span></div><div class="explorer-output"></div></div>'
)


def planner(
    model: str = "llama-3-8b",
    chip: str = "H100",
    chips: int = 64,
    batch_tokens: int = 4 * 2**20,
    sequence: int = 4096,
    remat: str = "block",
) -> Part:
    """The planner: a plan as a table; on the page, with a form for all others.

    >>> made = planner("llama-3-70b", "v5p", 512)
    >>> made.start
    'use=train&model=llama-3-70b&chip=v5p&slices=1&chips=512&batch=4194304&sequence=4096&remat=block&reserve=10'

    Args:
      model: the name of one in `shardlab.models.MODELS`.
      chip: the name of a chip in `shardlab.hardware.CHIPS`.
      chips: how many.
      batch_tokens: tokens of a batch.
      sequence: tokens of a sequence.
      remat: what the backward pass rematerialises, one of `shardlab.costs.REMAT`.

    Returns:
      A `Part`. As the last expression of a cell it is shown.

    Raises:
      ValueError: as `shardlab.plan` does.
    """
    made = plan(model, chip, chips, batch_tokens, sequence=sequence, remat=remat)
    slices = "&slices=1" if made.chip.torus else ""
    start = f"use=train&model={model}&chip={chip}{slices}&chips={chips}&batch={batch_tokens}&sequence={sequence}"  # noqa: E501
    start += f"&remat={remat}&reserve={RESERVE}"
    command = (
        f"shardlab plan {model} {chip} {chips} --batch-tokens {batch_tokens} --sequence {sequence}"
    )
    command += f" --remat {remat}"
    without = (
        '<p class="planner-plain">Without JavaScript this page shows one plan. For another, '
        "install "
        '<a href="shardlab.html">shardlab</a> and run a command such as '
        f"<code>{escape(command)}</code>; for serving, "
        "add <code>--serve</code>.</p>"
    )
    picture = Picture(without + made._repr_html_(), made.report(10))
    controls = _controls(model, chip, chips, batch_tokens, sequence, remat)
    return Part("planner", start, controls, picture, FILES, data(), _OUTPUT)
