"""The calculators of the book's page "Explorer" as they are before its scripts run: pictures, tables, forms and data.

Each function here makes the initial state of one calculator. In a notebook that is a picture and its numbers. On the
page, scripts (book/static/explorer) put a form around it and compute everything anew on each change, with the formulas
of `shardlab.layout` and `shardlab.cost` in JavaScript. tests/test_explorer.py compares the two.
"""

import json
from dataclasses import dataclass
from html import escape

from jax.sharding import NamedSharding

from shardlab import cost, hardware, models
from shardlab._svg import figure, ink, rect, row
from shardlab._tables import aligned, html_table
from shardlab.draw import PALETTE, Picture, draw
from shardlab.layout import describe, index_text, itemsize, short_dtype

__all__ = ["Part", "data", "fit", "layout", "matmul"]

SCRIPTS = ("layout.js", "draw.js", "matmul.js", "fit.js", "parts.js", "explorer.js")  # in the order of loading
_FILES = " ".join(f"explorer/{name}" for name in ("explorer.css", *SCRIPTS))
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int32", "int8")
PRECISIONS = {"bf16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8"}  # of shardlab.cost, and JAX's names
RESERVES = (0, 5, 10, 20, 30)  # per cent of a chip's memory
OWN = "own"
REMATERIALISED = dict(zip(cost.REMAT, ("nothing", "attention scores", "attention", "whole layers"), strict=True))


@dataclass(frozen=True)
class Part:
    """A calculator of the explorer in its initial state.

    Attributes:
      name: "layout", "matmul" or "fit".
      start: the address of the initial state, without the "#name?".
      form: the HTML of its controls.
      picture: a `Picture` of the initial state, with its numbers.
    """

    name: str
    start: str
    form: str
    picture: Picture

    def _repr_html_(self):
        output = _OUTPUT if self.name != "fit" else _OUTPUT.replace(_COPY_CODE, "")  # it has no program
        blob = json.dumps(data()).replace("<", "\\u003c")
        return (
            f'<div class="explorer" data-explorer="{self.name}" data-start="{escape(self.start)}" data-load="{_FILES}">'
            f"<template>{self.form}{output}</template>{self.picture.html}</div>"
            + (
                f'<script type="application/json" class="explorer-data">{blob}</script>'
                if self.name == "layout"
                else ""
            )
        )

    def __repr__(self):
        return self.picture.text


def data():
    """The dtypes, chips and models that the scripts use, ready for JSON: those of `shardlab` when the book is built."""
    fields = (
        "hbm_bytes", "hbm_bytes_per_second", "link_bytes_per_second", "link_seconds", "node_chips",
        "network_bytes_per_second", "network_seconds",
    )  # fmt: skip
    return {
        "palette": [[colour, ink(colour)] for colour in PALETTE],
        "dtypes": {name: [itemsize(name), short_dtype(name)] for name in DTYPES},
        "bytes": {name: [cost.BYTES[name], dtype] for name, dtype in PRECISIONS.items()},
        "chips": {
            name: {
                "flops_per_second": dict(chip.flops_per_second),
                "torus": list(chip.torus),
                **{field: getattr(chip, field) for field in fields},
            }
            for name, chip in hardware.CHIPS.items()
        },
        "models": {
            name: {size: getattr(model, size) for size in (*models.SIZES, "gated", "tied")}
            for name, model in models.MODELS.items()
        },
    }


# --- Controls ----------------------------------------------------------------------------------------------------

_COPY_CODE = '<button type="button" name="code">Copy code</button>'
_OUTPUT = (
    '<p class="explorer-words" aria-live="polite"></p><div class="explorer-output"></div><div class="explorer-bar">'
    f'<button type="button" name="link">Copy link</button>{_COPY_CODE}'
    '<button type="button" name="again">Start again</button><span role="status"></span></div>'
)


def _label(words, control, shown=""):
    shown = f' data-if="{shown}"' if shown else ""
    return f"<label{shown}><span>{words}</span>{control}</label>"


def _number(name, words, value, most, shown=""):
    control = f'<input type="number" name="{name}" value="{value}" min="1" max="{most}" required '
    return _label(words, control + f'title="a whole number from 1 to {most:,}">', shown)


def _select(name, words, options, shown="", attributes=""):
    # Options are values, or a dict from each value to the words that the page shows for it.
    named = options if isinstance(options, dict) else {option: option for option in options}
    options = "".join(f'<option value="{value}">{escape(str(text))}</option>' for value, text in named.items())
    return _label(words, f'<select name="{name}"{attributes}>{options}</select>', shown)


def _mesh_controls(most):
    axes = ""
    for i in range(most):
        named = f'<input name="name{i}" value="{"xyz"[i]}" pattern="[A-Za-z_][A-Za-z0-9_]*" maxlength="10" required '
        named += 'title="letters, digits and _, no digit first" autocomplete="off" spellcheck="false">'
        axes += _label(f"Axis {i + 1}, name", named, f"axes {i}")
        axes += _number(f"size{i}", f"Axis {i + 1}, devices", 2, 64, f"axes {i}")
    return _select("axes", "Axes", range(1, most + 1)) + axes


def _sharded(name, words, most, shown=""):
    """A choice of mesh axes, at most so many, for one dimension; the scripts fill in the axes that there are."""
    return _select(name, words, (), shown, f' data-axes="{most}"')


def _form(name, groups):
    fields = "".join(f"<fieldset><legend>{legend}</legend>{controls}</fieldset>" for legend, controls in groups.items())
    return f'<form aria-label="{name}">{fields}</form>'


def _mesh_address(mesh):
    return "mesh=" + ",".join(f"{name}:{size}" for name, size in mesh.shape.items())


def _spec_address(spec, ndim):
    dims = [entry if isinstance(entry, tuple) else () if entry is None else (entry,) for entry in spec]
    return ",".join(".".join(axes) or "-" for axes in [*dims, *[()] * (ndim - len(dims))])


def _picture(drawn, head, rows):
    return Picture(drawn.html + html_table(head, rows), f"{drawn.text}\n\n{aligned([head, *rows])}")


# --- The calculators ---------------------------------------------------------------------------------------------


def layout(sharding, shape, dtype="float32"):
    """Which device holds which shard of an array.

    On a mesh of 2 x 4 devices with axes x and y, `layout(NamedSharding(mesh, P("x", "y")), (8, 16))` starts with eight
    shards of shape (8/2, 16/4) = (4, 4).

    Args:
      sharding: a `NamedSharding` on a mesh of up to three axes and 64 devices.
      shape: the global shape of the array, of up to three dimensions.
      dtype: one of those in `data()["dtypes"]`.

    Returns:
      A `Part`. As the last expression of a cell it is shown.

    Raises:
      ValueError: JAX refuses this layout.
    """
    held = describe(sharding, shape, dtype)
    rows = [
        (f"device {shard.device}", index_text(shard.index), f"{shard.replica + 1} of {held.replicas}", f"{each:,}")
        for shard, each in zip(held.shards, held.bytes_per_device.values(), strict=True)
    ]
    spec = _spec_address(sharding.spec, len(shape))
    start = f"{_mesh_address(sharding.mesh)}&shape={','.join(map(str, shape))}&spec={spec}&dtype={dtype}"
    array = _select("dims", "Dimensions", range(4)) + _select("dtype", "Type of an element", DTYPES)
    for i in range(3):
        array += _number(f"dim{i}", f"Dimension {i}, size", 8, 2**20, f"dims {i}")
        array += _sharded(f"axes{i}", f"Dimension {i} is sharded over", 3, f"dims {i}")
    form = _form("Sharding of an array", {"Mesh": _mesh_controls(3), "Array": array})
    return Part("layout", start, form, _picture(draw(held), ("device", "slice", "replica", "bytes"), rows))


def matmul(mesh, sizes, a, b, c, chip, dtype="bf16"):
    """What the product A[I, J] · B[J, K] = C[I, K] sends and how long it takes, by the shardings of all three.

    Args:
      mesh: of up to two axes and 64 devices.
      sizes: (I, J, K).
      a, b, c: the `PartitionSpec`s of both operands and of the result; at most one axis for each dimension.
      chip: the name of a chip in `shardlab.hardware.CHIPS`.
      dtype: a precision for which the chip has a peak.

    Returns:
      A `Part`. Its picture draws the three shardings. The page's scripts work out what is sent, and so do the cells of
      the chapter.
    """
    shapes = {"A": sizes[:2], "B": sizes[1:], "C": (sizes[0], sizes[2])}
    held = {
        name: describe(NamedSharding(mesh, spec), shape, PRECISIONS[dtype])
        for (name, shape), spec in zip(shapes.items(), (a, b, c), strict=True)
    }
    rows = [(name, str(layout)) for name, layout in held.items()]
    specs = "&".join(f"{name}={_spec_address(spec, 2)}" for name, spec in zip("abc", (a, b, c), strict=True))
    start = f"{_mesh_address(mesh)}&sizes={','.join(map(str, sizes))}&{specs}&chip={chip}&dtype={dtype}"
    product = "".join(_number(name, f"Size of {name}", 8, 2**20) for name in "IJK")
    for of, dims in (("A", "IJ"), ("B", "JK"), ("C", "IK")):
        product += "".join(_sharded(f"{of.lower()}{i}", f"{of}: {dim} sharded over", 1) for i, dim in enumerate(dims))
    chips = _select("chip", "Chip", tuple(hardware.CHIPS)) + _select("dtype", "Precision", tuple(PRECISIONS))
    groups = {"Mesh": _mesh_controls(2), "A[I, J] · B[J, K] = C[I, K]": product, "Hardware": chips}
    return Part("matmul", start, _form("Matrix product", groups), _picture(draw(**held), ("array", "sharding"), rows))


def fit(model, chip, parallelism, batch_tokens, sequence=4096, remat="block", reserve=0.1):
    """Whether a training step fits in the memory of its chips, and how long it takes.

    Args:
      model: the name of a model in `shardlab.models.MODELS`.
      chip: the name of a chip in `shardlab.hardware.CHIPS`.
      parallelism: a `shardlab.cost.Parallelism` of whole numbers.
      batch_tokens: tokens of the whole batch.
      sequence: tokens that each token attends to.
      remat: what the backward pass rematerialises, one of `shardlab.cost.REMAT`.
      reserve: the share of a chip's memory that is left for the compiler's buffers, as in `shardlab.plan.plan`; one of
        0, 0.05, 0.1, 0.2 and 0.3.

    Returns:
      A `Part`, with the memory of a chip as a bar and both as a table.

    Raises:
      ValueError: another reserve; or as `shardlab.cost.step_cost` does.
    """
    percent = round(100 * reserve)
    if percent not in RESERVES:
        raise ValueError(f"reserve={reserve} is not offered; use one of {', '.join(str(n / 100) for n in RESERVES)}")
    sizes, chips = models.model(model), int(parallelism.chips)
    step = cost.step_cost(sizes, chip, parallelism, batch_tokens, sequence, chips, remat)
    kinds = ("parameter", "gradient", "moment", "activation", "working", "gathered", "logits")
    names = ("parameters", "gradients", "moments", "activations", *kinds[4:])
    held = {n: float(getattr(step.memory, f"{kind}_bytes")) for n, kind in zip(names, kinds, strict=True)}
    total, has = float(step.memory.total_bytes), hardware.chip(chip).hbm_bytes
    verdict = "fits" if total <= (1 - percent / 100) * has else "does not fit"
    rows = [(f"{i} {name}", f"{size / 1e9:.2f} GB") for i, (name, size) in enumerate(held.items(), 1)]
    rows += [("total", f"{total / 1e9:.2f} GB of {has / 1e9:.2f} GB, {percent} % reserved: {verdict}")]
    rows += [("a step", f"{float(step.seconds):.3f} s; the longest part is {step.bound}")]
    axes = "&".join(f"{axis}={getattr(parallelism, axis)}" for axis in cost.AXES)
    start = f"model={model}&chip={chip}&chips={chips}&batch={batch_tokens}&sequence={sequence}&{axes}&remat={remat}"
    start += f"&reserve={percent}"
    own = "".join(_number(name, name, getattr(sizes, name), 10**7, f"model {OWN}") for name in models.SIZES)
    own += _select("gated", "Gated MLP", ("yes", "no"), f"model {OWN}")
    own += _select("tied", "Tied embedding", ("no", "yes"), f"model {OWN}")
    groups = {
        "Model": _select("model", "Model", (*models.MODELS, OWN)) + own,
        "Chips": _select("chip", "Chip", tuple(hardware.CHIPS)) + _number("chips", "Chips", chips, 10**6),
        "Step": _number("batch", "Tokens in a batch", batch_tokens, 10**9)
        + _number("sequence", "Tokens of a sequence", sequence, 10**7)
        + _select("remat", "Rematerialised", REMATERIALISED)
        + _select("reserve", "Memory reserve, %", RESERVES),
        f"Mesh: {' × '.join(cost.AXES)} = chips": "".join(_number(axis, axis, 1, 10**6) for axis in cost.AXES),
    }
    text = f"{total / 1e9:.1f} GB on each chip"
    drawn = Picture(_bar(held, has, percent), text)
    return Part("fit", start, _form("Training step", groups), _picture(drawn, ("part", "on each chip"), rows))


def _bar(held, has, percent):
    """The memory of a chip as one bar, with a line where it ends and a dashed one where its reserve begins."""
    total, left, shapes = sum(held.values()), 0.0, []
    scale = 300 / max(total, has)
    for colour, size in zip(PALETTE, held.values(), strict=False):
        shapes.append(rect(round(left, 1), 16, round(size * scale, 1), 34, colour))
        left += size * scale
    reserve = has * (1 - percent / 100) * scale
    shapes.append(f'<path d="M{reserve:.1f} 10v46" stroke="currentColor" stroke-width="2" stroke-dasharray="4 3"/>')
    shapes.append(f'<path d="M{has * scale:.1f} 10v46" stroke="currentColor" stroke-width="3"/>')
    title = (
        f"{total / 1e9:.1f} GB on each chip; the solid line marks its {has / 1e9:.1f} GB, the dashed line the reserve"
    )
    words = "; ".join(f"{name} {size / 1e9:.2f} GB" for name, size in held.items())
    return row(figure(shapes, 300, 56, title, f"{words}.", title))
