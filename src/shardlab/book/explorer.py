"""The calculators of the book's page "Explorer" as they are before its scripts run: pictures,
tables, forms and data.

Each function here makes the initial state of one calculator. In a notebook that is a picture and
its numbers. On the page, scripts (book/static/explorer) put a form around it and compute everything
anew on each change, with the formulas of `shardlab.arrays.layout` and `shardlab.costs` in
JavaScript. tests/browser/test_explorer.py compares the two.
"""

from dataclasses import asdict

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardlab import costs
from shardlab._arguments import nearest
from shardlab._tables import aligned, html_table
from shardlab.arrays.layout import describe, index_text, itemsize, short_dtype
from shardlab.book.forms import Part, form, label, number, pulled, select
from shardlab.costs.communication.kinds import KINDS
from shardlab.costs.dtypes import FROZEN
from shardlab.costs.plan import FASTER, MOST_CHIPS, MOST_CONTEXT, MOST_PIPELINE, POWERS, STAGES
from shardlab.machines import hardware, models
from shardlab.pictures.draw import draw
from shardlab.pictures.svg import (
    PALETTE,
    Picture,
    figure,
    hatching,
    ink,
    rect,
    row,
    text,
    text_width,
)

__all__ = ["Part", "data", "fit", "layout", "matmul"]

SCRIPTS = (
    "words.js", "layout.js", "svg.js", "draw.js", "matmul.js", "fit.js", "names.js", "show.js",
    "parts.js",
    "compare.js", "explorer.js",
)  # fmt: skip  # in the order of loading
STYLES = ("explorer.css", "calculators.css")
_OF_FIT = ("fit.js",)  # what no other calculator needs
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int32", "int8")
# of shardlab.costs, and JAX's names
PRECISIONS = {"bf16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8"}
RESERVES = (0, 5, 10, 20, 30)  # per cent of a chip's memory
OWN = "own"
MOST_DEVICES = 64
# The explorer's steps are those of dense models, on meshes of these axes.
MODELS = {
    name: model for name, model in models.MODELS.items() if not (model.experts or model.kv_rank)
}
STEP_AXES = tuple(axis for axis in costs.MESH_AXES if axis != "expert")
GATHERED = {2: "in both passes of each micro-batch", 1: "once in a step"}
REACH = {"stages": 2**4}  # of a slider, if it is not 4096
REMATERIALISED = {name: remat.label for name, remat in costs.REMAT.items()}


# What each calculator needs of the data, so that it can stand on a page by itself.
_USES = {
    "layout": ("palette", "dtypes"),
    "matmul": ("palette", "dtypes", "bytes", "chips", "rounds"),
    "fit": ("palette", "chips", "models", "rounds", "widths", "remat", "fitted", "most"),
}


def data() -> dict:
    """The dtypes, chips and models that the scripts use, ready for JSON: those of `shardlab` when
    the book is built.

    For each chip "slices" has, for each number of chips in a slice or node, its shape and which
    axes are rings.
    """
    fields = (
        "hbm_bytes", "hbm_bytes_per_second", "link_bytes_per_second", "link_seconds", "node_chips",
        "host_chips",
        "network_bytes_per_second", "network_seconds", "host_bytes_per_second", "peers",
    )  # fmt: skip

    def slices(chip):
        machines = [hardware.machine(chip, n) for n in hardware.shapes(chip)]
        return {machine.near: [list(machine.shape), list(machine.rings)] for machine in machines}

    return {
        "palette": [[colour, ink(colour)] for colour in PALETTE],
        "dtypes": {name: [itemsize(name), short_dtype(name)] for name in DTYPES},
        "bytes": {name: [costs.BYTES[name], dtype] for name, dtype in PRECISIONS.items()},
        "chips": {
            name: {
                "flops_per_second": dict(chip.flops_per_second),
                "torus": list(chip.torus),
                "slices": slices(chip),
                **{field: getattr(chip, field) for field in fields},
            }
            for name, chip in hardware.CHIPS.items()
        },
        "models": {
            name: {size: getattr(model, size) for size in (*models.SIZES, "gated", "tied")}
            for name, model in MODELS.items()
        },
        "rounds": {name: kind.rounds for name, kind in KINDS.items() if kind.rounds},
        "widths": costs.BYTES | FROZEN,
        "remat": {name: asdict(remat) for name, remat in costs.REMAT.items()},
        "fitted": {kind: asdict(fitted) for kind, fitted in costs.FITTED.items()},
        "most": {
            "chips": MOST_CHIPS,
            "pipeline": MOST_PIPELINE,
            "context": MOST_CONTEXT,
            "long": costs.LONG,
            "stages": STAGES,
            "microbatches": POWERS,
            "faster": FASTER,
            "remat": list(costs.REMAT),
        },
    }


def _part(name, start, controls, picture):
    """A calculator with the scripts and the data that it uses."""
    known = {key: value for key, value in data().items() if key in _USES[name]}
    files = [file for file in (*STYLES, *SCRIPTS) if name == "fit" or file not in _OF_FIT]
    return Part(name, start, controls, picture, tuple(files), known)


def _known(kind, name, known):
    """The name, if it is known; else a ValueError with the nearest one."""
    if name not in known:
        raise ValueError(
            f"no {kind} is called {name!r}; known are {', '.join(known)}{nearest(name, known)}"
        )
    return name


# --- Controls -------------------------------------------------------------------------------------


def _total(name, words, value, most, reach=None):
    """How many devices there are, which follows from the mesh."""
    return pulled(name, words, value, most, "", " data-follows", reach)


def _meshes():
    """The meshes of so many devices, to choose from; the scripts fill them in."""
    return select("", "Possible meshes", (), "", " data-meshes")


def _mesh_controls(most):
    axes = ""
    for i in range(most):
        named = (
            f'<input name="name{i}" value="{"xyz"[i]}" pattern="[A-Za-z_][A-Za-z0-9_]*" '
            'maxlength="10" required '
        )
        named += (
            'title="letters, digits and _, no digit first" autocomplete="off" spellcheck="false">'
        )
        axes += label(f"Axis {i + 1}, name", named, f"axes {i}")
        axes += pulled(f"size{i}", f"Axis {i + 1}, devices", 2, MOST_DEVICES, f"axes {i}")
    total = _total("devices", "Devices", 4, MOST_DEVICES)
    return select("axes", "Axes", range(1, most + 1)) + total + axes + _meshes()


def _sharded(name, words, most, shown=""):
    """A choice of mesh axes, at most so many, for one dimension; the scripts fill in the axes that
    there are.
    """
    return select(name, words, (), shown, f' data-axes="{most}"')


def _mesh_address(mesh):
    return "mesh=" + ",".join(f"{name}:{size}" for name, size in mesh.shape.items())


def _spec_address(spec, ndim):
    dims = [
        entry if isinstance(entry, tuple) else () if entry is None else (entry,) for entry in spec
    ]
    return ",".join(".".join(axes) or "-" for axes in [*dims, *[()] * (ndim - len(dims))])


def _picture(drawn, head, rows):
    return Picture(drawn.html + html_table(head, rows), f"{drawn.text}\n\n{aligned([head, *rows])}")


# --- The calculators ------------------------------------------------------------------------------


def layout(sharding: NamedSharding, shape: tuple[int, ...], dtype: str = "float32") -> Part:
    """Which device holds which shard of an array.

    On a mesh of 2 x 4 devices with axes x and y, `layout(NamedSharding(mesh, P("x", "y")), (8,
    16))` starts with eight shards of shape (8/2, 16/4) = (4, 4).

    Args:
      sharding: a `NamedSharding` on a mesh of up to three axes and 64 devices.
      shape: the global shape of the array, of up to three dimensions.
      dtype: one of those in `data()["dtypes"]`.

    Returns:
      A `Part`. As the last expression of a cell it is shown.

    Raises:
      ValueError: JAX refuses this layout, or the dtype is another one; the message suggests the
        nearest.
    """
    described = describe(sharding, shape, _known("dtype", dtype, DTYPES))
    if described.unreduced:
        raise ValueError(
            f"the explorer shows slices, not the partial sums of {described.type}; draw() "
            "shows them"
        )
    rows = [
        (
            f"device {shard.device}",
            index_text(shard.index),
            f"{shard.replica + 1} of {described.replicas}",
            f"{each:,}",
        )
        for shard, each in zip(described.shards, described.bytes_per_device.values(), strict=True)
    ]
    spec = _spec_address(sharding.spec, len(shape))
    start = f"{_mesh_address(sharding.mesh)}&shape={','.join(map(str, shape))}&spec={spec}&dtype={dtype}"  # noqa: E501
    array = select("dims", "Dimensions", range(4)) + select("dtype", "Type of an element", DTYPES)
    for i in range(3):
        array += pulled(f"dim{i}", f"Dimension {i}, size", 8, 2**20, f"dims {i}", reach=2**10)
        array += _sharded(f"axes{i}", f"Dimension {i}, axes", 3, f"dims {i}")
    controls = form("Sharding of an array", {"Mesh": _mesh_controls(3), "Array": array})
    return _part(
        "layout",
        start,
        controls,
        _picture(draw(described), ("device", "slice", "replica", "bytes"), rows),
    )


def matmul(
    mesh: Mesh | AbstractMesh,
    sizes: tuple[int, int, int],
    a: PartitionSpec,
    b: PartitionSpec,
    c: PartitionSpec,
    chip: str,
    dtype: str = "bf16",
) -> Part:
    """What the product A[I, J] · B[J, K] = C[I, K] sends and how long it takes, by the shardings of
    all three.

    Args:
      mesh: of up to two axes and 64 devices.
      sizes: (I, J, K).
      a, b, c: the `PartitionSpec`s of both operands and of the result; at most one axis for each
        dimension.
      chip: the name of a chip in `shardlab.hardware.CHIPS`.
      dtype: a precision for which the chip has a peak.

    Returns:
      A `Part`. Its picture draws the three shardings. The page's scripts work out what is sent, and
      so do the cells of the chapter.

    Raises:
      ValueError: JAX refuses one of the layouts, or no chip or precision has that name; the message
        suggests the nearest.
    """
    chip, dtype = _known("chip", chip, hardware.CHIPS), _known("precision", dtype, PRECISIONS)
    shapes = {"A": sizes[:2], "B": sizes[1:], "C": (sizes[0], sizes[2])}
    settings = {
        name: describe(NamedSharding(mesh, spec), shape, PRECISIONS[dtype])
        for (name, shape), spec in zip(shapes.items(), (a, b, c), strict=True)
    }
    rows = [(name, str(layout)) for name, layout in settings.items()]
    specs = "&".join(
        f"{name}={_spec_address(spec, 2)}" for name, spec in zip("abc", (a, b, c), strict=True)
    )
    start = (
        f"{_mesh_address(mesh)}&sizes={','.join(map(str, sizes))}&{specs}&chip={chip}&dtype={dtype}"
    )
    product = "".join(pulled(name, f"Size of {name}", 8, 2**20) for name in "IJK")
    sharded = "".join(
        _sharded(f"{array.lower()}{i}", f"{dim} of {array}", 1)
        for array, dims in (("A", "IJ"), ("B", "JK"), ("C", "IK"))
        for i, dim in enumerate(dims)
    )
    product += select("dtype", "Precision", tuple(PRECISIONS))
    chips = select("chip", "Chip", tuple(hardware.CHIPS))
    groups = {
        "Mesh and chip": _mesh_controls(2) + chips,
        "A[I, J] · B[J, K] = C[I, K]": product,
        "Sharded over": sharded,
    }
    return _part(
        "matmul",
        start,
        form("Matrix product", groups),
        _picture(draw(**settings), ("array", "sharding"), rows),
    )


def fit(
    model: str,
    chip: str,
    parallelism: costs.Parallelism,
    batch_tokens: int,
    sequence: int = 4096,
    remat: str = "block",
    reserve: float = 0.1,
    slices: int = 1,
    gathers: int = 2,
) -> Part:
    """Whether a training step fits in the memory of its chips and how long it takes.

    On 16 chips of a v5e FSDP alone holds too much for 64 sequences of 4,096 tokens of Llama 3 8B:

    >>> explorer.fit("llama-3-8b", "v5e", costs.Parallelism(fsdp=16), 2**18).start[:45]
    'model=llama-3-8b&chip=v5e&slices=1&batch=2621'

    Args:
      model: the name of a dense model in `shardlab.models.MODELS`: one without experts or latent
        attention.
      chip: the name of a chip in `shardlab.hardware.CHIPS`.
      parallelism: a `shardlab.costs.Parallelism` of whole numbers, of 1f1b and without experts.
      batch_tokens: tokens of the whole batch.
      sequence: tokens that each token attends to.
      remat: what the backward pass rematerialises, one of `shardlab.costs.REMAT`.
      reserve: the share of a chip's memory that is left for the compiler's buffers, as in
        `shardlab.plan`; one of 0, 0.05, 0.1, 0.2 and 0.3.
      slices: over how many slices of a TPU the chips are spread.
      gathers: how often fsdp gathers a parameter, as for `shardlab.costs.step_cost`.

    Returns:
      A `Part`, with the memory of a chip as a bar and both as a table.

    Raises:
      ValueError: another reserve or parallelism; no model or chip has that name, and the message
        suggests the nearest; or as `shardlab.hardware.machine` and `shardlab.costs.step_cost` do.
    """
    percent = round(100 * reserve)
    if percent not in RESERVES:
        raise ValueError(
            f"reserve={reserve} is not offered; use one of "
            f"{', '.join(str(n / 100) for n in RESERVES)}"
        )
    if (parallelism.expert, parallelism.schedule) != (1, "1f1b"):
        raise ValueError(f"the explorer has no experts, and pipelines of 1f1b, not {parallelism}")
    model, chip = _known("model", model, MODELS), _known("chip", chip, hardware.CHIPS)
    sizes, chips, is_tpu = (
        models.model(model),
        int(parallelism.chips),
        bool(hardware.chip(chip).torus),
    )
    machine = hardware.machine(chip, chips, slices=slices if is_tpu else None, reserve=reserve)
    step = costs.step_cost(
        sizes, machine, parallelism, batch_tokens, sequence, remat, gathers=gathers
    )
    kinds = ("parameter", "gradient", "moment", "activation", "working", "gathered", "logits")
    names = ("parameters", "gradients", "moments", "activations", *kinds[4:])
    bytes_of = {
        n: float(getattr(step.memory, f"{kind}_bytes"))
        for n, kind in zip(names, kinds, strict=True)
    }
    total, has = float(step.memory.total_bytes), machine.chip.hbm_bytes
    verdict = "fits" if step.fits else "does not fit"
    rows = [
        (f"{i} {name}", f"{size / 1e9:.2f} GB")
        for i, (name, size) in enumerate(bytes_of.items(), 1)
    ]
    rows += [
        ("total", f"{total / 1e9:.2f} GB of {has / 1e9:.2f} GB, {percent} % reserved: {verdict}")
    ]
    rows += [("a step, expected", f"{float(step.expected_seconds):.3f} s")]
    rows += [("at least", f"{float(step.seconds):.3f} s; the longest part is {step.bound}")]
    mesh = {
        name: int(getattr(parallelism, name)) for name in (*STEP_AXES, "microbatches", "stages")
    }
    start = (
        f"model={model}&chip={chip}"
        + f"&slices={slices}" * is_tpu
        + f"&batch={batch_tokens}&sequence={sequence}"
    )
    start += "".join(f"&{name}={size}" for name, size in mesh.items())
    start += f"&gathers={gathers}&remat={remat}&reserve={percent}"
    own = "".join(
        number(name, name, getattr(sizes, name), 10**7, f"model {OWN}") for name in models.SIZES
    )
    own += select("gated", "Gated MLP", ("yes", "no"), f"model {OWN}")
    own += select("tied", "Tied embedding", ("no", "yes"), f"model {OWN}")
    tpus = " ".join(name for name, chip_type in hardware.CHIPS.items() if chip_type.torus)
    words = {"microbatches": "Micro-batches", "stages": "Stages on each chip"}
    groups = {
        "Model and machine": select("model", "Model", (*MODELS, OWN))
        + select("chip", "Chip", tuple(hardware.CHIPS))
        + own
        + _total("chips", "Chips", chips, MOST_CHIPS, reach=2**14)
        + pulled("slices", "Slices", slices, 2**9, f"chip {tpus}"),
        "Step": pulled("batch", "Tokens in a batch", batch_tokens, 10**9, reach=2**24)
        + pulled("sequence", "Tokens of a sequence", sequence, 10**7, reach=2**20)
        + select("remat", "Rematerialised", REMATERIALISED)
        + select("reserve", "Memory reserve, %", RESERVES),
        "Mesh": "".join(
            pulled(name, words.get(name, name), size, MOST_CHIPS, reach=REACH.get(name, 2**12))
            for name, size in mesh.items()
        )
        + select("gathers", "Parameters are gathered", GATHERED),
    }
    sentence = f"{total / 1e9:.1f} GB on each chip"
    drawn = Picture(_bar(bytes_of, has, percent), sentence)
    return _part(
        "fit", start, form("Training step", groups), _picture(drawn, ("part", "on each chip"), rows)
    )


def _gigabytes(size):
    return f"{size / 1e9:.2f} GB"


def _bar(sizes, has, percent):
    """The memory of a chip as one bar: a line where it ends, a dashed one where its reserve begins,
    and a legend.

    What is beyond the chip's memory is hatched.
    """
    width, top, height = 312, 20, 36
    total, left = sum(sizes.values()), 0.0
    scale = width / max(total, has)
    end, usable = has * scale, has * (1 - percent / 100) * scale
    shapes, numbers = [], []
    for n, (colour, size) in enumerate(zip(PALETTE, sizes.values(), strict=False), 1):
        wide = size * scale
        shapes.append(rect(round(left, 1), top, round(wide, 1), height, colour))
        if wide > 12:
            rim = f'<text paint-order="stroke" stroke="{colour}" stroke-width="5" '
            placed = text(round(left + wide / 2, 1), top + 23, n, size=13, fill=ink(colour))
            numbers.append(placed.replace("<text ", rim))
        left += wide
    shapes.append(rect(0, top, round(end, 1), height))  # the chip's memory, full or not
    if total > has:
        shapes.append(hatching(round(end, 1), top, round(left - end, 1), height, "#000", 2))
        line = f'd="M{end:.1f} {top + height + 5}H{left:.1f}"'
        shapes.append(f'<path {line} style="stroke:var(--bad,#b3261e)" stroke-width="5"/>')
    shapes += numbers
    words = f"{_gigabytes(has)} of the chip"
    side = "end" if end > text_width(words) else "start"
    shapes.append(text(round(end, 1), 11, words, size=12, anchor=side))
    for place, thick, more in ((usable, 2, ' stroke-dasharray="4 3"'), (end, 4, "")):
        line = f'd="M{place:.1f} {top - 5}v{height + 14}"'
        shapes.append(f'<path {line} stroke="currentColor" stroke-width="{thick}"{more}/>')
    over = f"; {_gigabytes(total - has)} more than it has, hatched" if total > has else ""
    title = f"{_gigabytes(total)} on each chip{over}"
    marks = "the solid line is the end of the chip's memory" + (
        f", the dashed line the beginning of the {percent} % that are reserved" if percent else ""
    )
    sentence = "; ".join(f"{name} {_gigabytes(size)}" for name, size in sizes.items())
    style = "display:inline-block;margin-right:1em;white-space:nowrap"
    keys = " ".join(
        f'<span style="{style}"><b style="padding:0 '
        f'.4em;color:{ink(colour)};background:{colour}">{n}</b> '
        f"{name} {_gigabytes(size)}</span>"
        for n, (colour, (name, size)) in enumerate(zip(PALETTE, sizes.items(), strict=False), 1)
    )
    return row(
        figure(shapes, width, 66, title, f"{sentence}; {marks}.", f"{keys}<br>{title}; {marks}.")
    )
