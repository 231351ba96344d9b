"""Draw arrays and meshes: tiles, slabs, shards of partial sums, and what consoles print of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from shardlab._arguments import nearest
from shardlab.arrays.layout import axes_text, counted, describe, index_text, spec_text
from shardlab.pictures.svg import (
    WIDTH,
    arrow_down,
    arrow_right,
    device_tile,
    escape,
    figure,
    listed,
    rect,
    text,
    text_width,
)

_DRAWN_IN_FULL = 64  # devices; a larger layout is summarised
_TILE_W, _TILE_H = 26, 22  # the smallest tile, in px, in which a three-digit number is legible
_WRAP = 12  # tiles in a row, at most, before it is continued below, so that pictures fit a phone
_GAP = 10
_SKIP = None  # stands for tiles left out of a summary


@dataclass(frozen=True)
class DrawnArray:
    """An array to draw: its layout, the names of its dimensions, and the mesh axes of its partial
    sums.
    """

    name: str
    layout: object
    dims: tuple
    partial: tuple
    type: str

    @property
    def terms(self):
        """How many partial sums make an element."""
        return (
            math.prod(size for axis, size in self.layout.mesh.axes if axis in self.partial)
            if self.partial
            else 1
        )

    @property
    def summary(self):
        """The local shape, and how many shards, replicas, partial sums, devices and bytes there
        are.
        """
        words = str(self.layout).split(": ", 1)[1]
        if not self.partial:
            return words
        replicas = self.layout.replicas // self.terms
        shards, copied = words.split(" × ", 1)
        copies = f" × {replicas:,} replicas" if replicas > 1 else ""
        return (
            f"{shards} × {self.terms:,} {self.layout.partials}{copies} on "
            f"{copied.split(' on ', 1)[1]}"
        )

    @property
    def short(self):
        """The local shape alone, and what the devices hold if not each its own shard."""
        replicas = self.layout.replicas // self.terms
        words = f"local shape {self.layout.shard_shape}"
        words += f", {self.terms:,} {self.layout.partials}" if self.partial else ""
        return words + (f", {replicas:,} replicas" if replicas > 1 else "")

    def labels(self):
        """For the last two dimensions what stands beside them, and whether an axis shards them:
        (rows, columns).
        """
        spec = self.layout.spec or ((),) * len(self.layout.shape)
        named = self.dims or ("",) * len(self.layout.shape)
        texts = []
        for size, axes, dim in zip(self.layout.shape, spec, named, strict=True):
            over = axes_text(axes)
            words = f"{dim}={size}" + (f"@{over}" if axes else "") if dim else over
            texts.append((words, bool(axes)))
        return (("", False), ("", False), *texts)[-2:]


def array_of(name, thing, shape, dims, partial):
    """What `draw` and `draw_matmul` were given, checked."""
    described = describe(thing, shape)
    kind, unreduced = described.type, described.unreduced
    layout = replace(
        described, unreduced=()
    )  # `DrawnArray` counts the partial sums, also those that only the caller knows
    if dims is not None:
        dims = names_of_dims(
            dims, len(layout.shape), f"{name or 'the array'} of shape {layout.shape}"
        )
    partial = (
        tuple(partial)
        if isinstance(partial, (tuple, list, set, frozenset))
        else (partial,)
        if partial
        else ()
    )
    partial = tuple(dict.fromkeys((*unreduced, *partial)))
    if partial and layout.mesh is None:
        raise ValueError(
            f"partial sums are held along a mesh axis, but {name or 'the array'} is placed on "
            "no mesh"
        )
    for axis in partial:
        known = [axis_name for axis_name, _ in layout.mesh.axes]
        if axis not in known:
            raise ValueError(
                f"the mesh has no axis {axis!r} for partial sums, only "
                f"{known}{nearest(axis, known)}"
            )
        if axis in [axis_name for axes in layout.spec for axis_name in axes]:
            raise ValueError(
                f"{name or 'the array'} of type {layout.type} is sharded over {axis!r}, so "
                f"its devices along {axis!r} hold different elements, not partial sums of the "
                "same"
            )
    return DrawnArray(name, layout, dims, partial, kind)


def options_by_name(option, given, labelled, example):
    """What an option says of each array, by name."""
    if given is None:
        return {}
    names = [name for name, _ in labelled]
    if not isinstance(given, Mapping):
        if len(labelled) > 1:
            raise TypeError(f"{option}= must say which of {names} it is for, {example}")
        return {names[0]: given}
    for name in given:
        if name not in names:
            raise ValueError(
                f"{option}= names {name!r}, but drawn are {names}{nearest(name, names)}"
            )
    return dict(given)


def names_of_dims(dims, count, array):
    """The names of an array's dimensions, as a tuple of texts; ValueError if there are more or
    fewer.
    """
    try:
        names = tuple(str(dim) for dim in dims)
    except TypeError:
        raise TypeError(
            f"the names of dimensions are a text or a sequence of texts, not {dims!r}"
        ) from None
    if len(names) != count or not all(names):
        raise ValueError(f"{array} needs {count} names of dimensions, not {len(names)}: {dims!r}")
    return names


def check_drawable(layout, what):
    """Refuse what has too many devices for a picture in full."""
    if len(layout.shards) > _DRAWN_IN_FULL:
        raise ValueError(
            f"{what} on at most {_DRAWN_IN_FULL} devices, not {len(layout.shards):,}; draw() "
            "summarises"
        )


def sharding_of(thing):
    """The sharding of an array; None for what has none."""
    return getattr(thing, "sharding", None)


@dataclass(frozen=True)
class _Block:
    """One tile: its device, and its extent down and to the right in elements."""

    device: int
    down: int
    right: int
    index: tuple


def _slabs(layout):
    """The array as slabs of rows of tiles: [(leading slices, [replica][row][column] -> _Block)];
    _SKIP is left out.
    """
    blocks, slices = {}, {}
    for shard in layout.shards:
        *_, down, right = ((0, 1), (0, 1), *shard.index)
        *leading, row, column = (0, 0, *shard.position)[-max(2, len(shard.position)) :]
        block = _Block(shard.device, down[1] - down[0], right[1] - right[0], shard.index)
        blocks[shard.replica, tuple(leading), row, column] = block
        slices[tuple(leading)] = shard.index[: len(leading)]
    replicas, leading, rows, columns = (sorted({key[i] for key in blocks}) for i in range(4))
    # A summary shows the first tiles and the last along each dimension, and the first replica
    # alone.
    if len(layout.shards) > _DRAWN_IN_FULL:
        replicas = replicas[:1]
        leading, rows, columns = map(_first_and_last, (leading, rows, columns))

    def grid(replica, slab):
        return [[blocks.get((replica, slab, row, column)) for column in columns] for row in rows]

    return [
        (
            slices.get(slab, _SKIP),
            _SKIP if slab is _SKIP else [grid(replica, slab) for replica in replicas],
        )
        for slab in leading
    ]


def _first_and_last(values):
    return values if len(values) <= 3 else [values[0], _SKIP, values[-1]]


def array_panel(array):
    """An array as (SVG, text for consoles)."""
    layout = array.layout
    slabs = _slabs(layout)
    replicas = slabs[0][1]
    rows, columns = len(replicas[0]), len(replicas[0][0])
    depth = 7 if len(layout.shape) > 2 else 0
    (down, _), (right, _) = array.labels()
    margin = round(text_width(down)) + 15 if down else 0
    tile_w, tile_h, wrapped = _tile_size(
        layout, len(replicas), len(slabs), rows, columns, WIDTH - margin, depth
    )

    # A line of replicas, or of the slabs of one replica: as many as fit, the lines of equal length.
    sheets = [(replica, index, grids) for replica in range(len(replicas)) for index, grids in slabs]
    abreast = len(replicas) if len(slabs) == 1 else len(slabs)
    across = max(1, int((WIDTH - margin + _GAP) // (wrapped[1] * tile_w + depth + _GAP)))
    across = -(-abreast // -(-abreast // across))
    heading = _heading(array, len(replicas), len(slabs))
    parts, width, top = [], 0, 16 if heading else 0
    if heading:
        parts.append(text(0, 11, heading, size=12, anchor="start"))
        width = text_width(heading)
    says = {shard.device: _shard_text(array, number) for number, shard in enumerate(layout.shards)}
    labelled = False
    for first in range(0, len(sheets), abreast):
        for start in range(first, first + abreast, across):
            left, height = margin, 0
            above = 16 if right and not labelled else 0
            for replica, index, grids in sheets[start : min(start + across, first + abreast)]:
                if grids is _SKIP:
                    parts.append(text(left + 8, top + above + rows * tile_h / 2 + 4, "…"))
                    left += 16 + _GAP
                    continue
                corner, tile, partial = (
                    (left, top + above + depth),
                    (tile_w, tile_h),
                    bool(array.partial),
                )
                body, w, h = _grid(grids[replica], corner, tile, depth, wrapped, says, partial)
                parts.append(body)
                if not labelled:
                    parts += _labels(
                        left, top + above + depth, w, h, wrapped, (tile_w, tile_h), rows, array
                    )
                    labelled = True
                label = index_text(index)
                if index and 6 * len(label) <= w + 8:  # the tips of the tiles say it in any case
                    parts.append(text(left + w / 2, top + above + depth + h + 13, label, size=12))
                left += w + depth + _GAP
                height = max(height, above + h + depth + (16 if index else 0))
            width = max(width, left - _GAP)
            top += height + _GAP

    title = f"{name_text(array.name)}{array.type} on {counted(len(layout.shards), 'device')}"
    of_replica = f" of replica 1 of {layout.replicas:,}" if layout.replicas > 1 else ""
    left_out = (
        f" Drawn: the first and the last tiles{of_replica}."
        if len(layout.shards) > _DRAWN_IN_FULL
        else ""
    )
    summary = f"{array.summary}.{left_out}"
    caption = f"{name_html(array.name)}<code>{escape(array.type)}</code><br>{escape(summary)}"
    description = "\n".join([f"{name_text(array.name)}{array.type}", *text_slabs(array), summary])
    return figure(parts, width, top - _GAP, title, describe_shards(array), caption), description


def _heading(array, replicas, slabs):
    """What stands side by side, and along which mesh axes."""
    spec, mesh = array.layout.spec, array.layout.mesh
    used = {axis for axes in spec or () for axis in axes}
    spare = tuple(axis for axis, size in mesh.axes if axis not in used and size > 1) if mesh else ()
    words = []
    if slabs > 1:
        over = tuple(axis for axes in (spec or ())[:-2] for axis in axes)
        words.append(f"slabs over {axes_text(over)} →" if over else "slabs →")
    if replicas > 1:
        replicating = tuple(axis for axis in spare if axis not in array.partial)
        arrow = "↓" if slabs > 1 else "→"
        for what, axes in ((array.layout.partials, array.partial), ("replicas", replicating)):
            if axes or (what == "replicas" and not spare):
                words.append(
                    f"{what} over {axes_text(axes)} {arrow}" if axes else f"{what} {arrow}"
                )
    return ", ".join(words)


def _labels(left, top, width, height, wrapped, tile, rows, array):
    """Names of dimensions and mesh axes beside a sheet; an arrow where an axis shards the
    dimension.
    """
    (down, down_arrow), (right, right_arrow) = array.labels()
    depth = 7 if len(array.layout.shape) > 2 else 0
    texts = []
    if right:
        length = min(width, wrapped[1] * tile[0])
        if right_arrow:
            texts.append(arrow_right(left + depth, top - depth - 8, length, right))
        else:
            texts.append(text(left + depth + length / 2, top - depth - 4, right, size=12))
    if down:
        length = min(height, wrapped[0] * tile[1])
        if down_arrow:
            texts.append(arrow_down(left - 7, top, length, down))
        else:
            texts.append(text(left - 8, top + length / 2 + 4, down, size=12, anchor="end"))
    return texts


def _tile_size(layout, replicas, slabs, rows, columns, room, depth):
    """Tile width and height in px, and rows and columns before a sheet is continued: legible, and
    as wide as fits.
    """
    legible = _TILE_W if max(layout.devices) < 1000 else _TILE_W + 8
    most = max(1, min(_WRAP, (room - depth) // legible))
    wrapped = -(-rows // -(-rows // _WRAP)), -(-columns // -(-columns // most))
    down, right = (1, 1, *layout.shape)[-2:]
    sheets = replicas * slabs
    across = next((n for limit, n in ((1, 1), (4, 2), (8, 4)) if sheets <= limit), 0)
    longer = (room + _GAP) / across - _GAP - depth if across else 0
    proportion = min(3.0, max(1 / 3, max(right, 1) / max(down, 1)))
    width = min(longer, 220 * proportion)
    height = width / proportion
    # Rows and columns continued below or beside share the same area.
    width, height = width / -(-rows // _WRAP), height / -(-columns // most)
    width, height = max(legible, width / wrapped[1]), max(_TILE_H, height / wrapped[0])
    return math.floor(10 * width) / 10, math.floor(10 * height) / 10, wrapped


def _grid(grid, corner, tile, depth, wrapped, says, partial=False):
    """One sheet of tiles as SVG, rows and columns continued beside or below where they are too
    many.
    """
    (left, top), (tile_w, tile_h) = corner, tile
    parts, far_right, far_down = [], 0, 0
    rows, columns = len(grid), len(grid[0])
    band_height = wrapped[0] * tile_h + _GAP / 2
    stack_width = wrapped[1] * tile_w + _GAP / 2
    widest = max((b.right for row in grid for b in row if b), default=1) or 1
    tallest = max((b.down for row in grid for b in row if b), default=1) or 1
    if depth:  # the two visible sides of a slab
        w, h = columns * tile_w, rows * tile_h
        side = (
            f"M{left:g} {top:g}l{depth} -{depth}h{w:g}v{h:g}l-{depth} {depth}M{left + w:g} "
            f"{top:g}l{depth} -{depth}"
        )
        parts.append(f'<path d="{side}" fill="none" stroke="currentColor"/>')
    for r, line in enumerate(grid):
        for c, block in enumerate(line):
            x = left + (c % wrapped[1]) * tile_w + (r // wrapped[0]) * stack_width
            y = top + (r % wrapped[0]) * tile_h + (c // wrapped[1]) * band_height
            far_right, far_down = max(far_right, x + tile_w - left), max(far_down, y + tile_h - top)
            if block is None:
                parts.append(text(x + tile_w / 2, y + tile_h / 2 + 4, "…"))
                continue
            w, h = tile_w * block.right / widest, tile_h * block.down / tallest
            if not w or not h:  # an empty shard of an uneven layout: a place, but no area
                parts.append(rect(x, y, tile_w, tile_h, more=' stroke-dasharray="2 3"'))
                parts.append(text(x + tile_w / 2, y + tile_h / 2 + 4, block.device, size=12))
                continue
            tip = f"device {block.device}: {index_text(block.index)}" if block.index else ""
            parts.append(
                device_tile(
                    (x, y, w, h), block.device, tip, partial=partial, says=says[block.device]
                )
            )
    return "".join(parts), far_right, far_down


def mesh_panel(name, mesh):
    """A mesh as (SVG, text for consoles)."""
    sizes = (1, 1, *mesh.shape)[-max(2, len(mesh.shape)) :]
    names = [axis for axis, _ in mesh.axes]
    summarised = len(mesh.devices) > _DRAWN_IN_FULL
    device = dict(zip(product(*map(range, sizes)), mesh.devices, strict=True))
    places = [_first_and_last(range(size)) if summarised else range(size) for size in sizes]

    down = f"{names[-2]}={sizes[-2]}" if len(names) > 1 else ""
    margin_top, margin_left = 18, round(text_width(down)) + 15 if down else 0
    least = 36 if summarised else 26
    wrapped = len(places[-2]), min(len(places[-1]), max(1, (WIDTH - margin_left) // least))
    wrapped = wrapped[0], -(-len(places[-1]) // -(-len(places[-1]) // wrapped[1]))
    slabs = [slab for slab in product(*places[:-2]) if _SKIP not in slab]
    abreast = 1 if len(slabs) == 1 else 2
    tile = ((WIDTH + _GAP) / abreast - _GAP - margin_left) / wrapped[1]
    tile = min(64, max(least, math.floor(10 * tile) / 10))
    bands = -(-len(places[-1]) // wrapped[1])
    slab_width = margin_left + wrapped[1] * tile + _GAP
    slab_height = margin_top + bands * (wrapped[0] * tile + _GAP / 2) + 24
    across = max(1, int((WIDTH + _GAP) // slab_width))

    says = {id: f"device {id}{_place_text(mesh, number)}" for number, id in enumerate(mesh.devices)}
    parts, lines, width, height = [], [], 0, 0
    for number, slab in enumerate(slabs):
        left, top = (number % across) * slab_width, (number // across) * slab_height
        grid = [
            [
                _SKIP if _SKIP in (row, column) else _Block(device[(*slab, row, column)], 1, 1, ())
                for column in places[-1]
            ]
            for row in places[-2]
        ]
        body, w, h = _grid(
            grid, (left + margin_left, top + margin_top), (tile, tile), 0, wrapped, says
        )
        parts.append(body)
        if names:
            parts.append(arrow_right(left + margin_left, top + 8, w, f"{names[-1]}={sizes[-1]}"))
        if down:
            parts.append(arrow_down(left + margin_left - 7, top + margin_top, h, down))
        where = ", ".join(f"{axis}={place}" for axis, place in zip(names, slab, strict=False))
        if where:
            parts.append(
                text(left + margin_left + w / 2, top + margin_top + h + 14, where, size=12)
            )
            lines.append(where)
        lines += text_grid([[[block.device] if block else None for block in row] for row in grid])
        width = max(width, left + margin_left + w)
        height = max(height, top + margin_top + h + (18 if where else 0))

    shape = " x ".join(f"{axis}={size}" for axis, size in mesh.axes)
    title = f"{name_text(name)}mesh {shape}, {len(mesh.devices):,} devices"
    description = listed(
        f"device {id} at ({', '.join(map(str, place[-len(names) :] if names else ()))})"
        for place, id in device.items()
    )
    caption = f"{name_html(name)}mesh <code>{escape(shape)}</code>, {len(mesh.devices):,} devices"
    return figure(parts, width, height, title, description, caption), "\n".join([title, *lines])


def name_text(name):
    """A name before what it names, in a text."""
    return f"{name}: " if name else ""


def name_html(name):
    """A name before what it names, on a page."""
    return f"<strong>{escape(name)}</strong> " if name else ""


def describe_shards(array):
    """What is said below a picture: the local shape, the shards and their bytes."""
    layout = array.layout
    if not layout.shape:
        return f"A single number, on each of {len(layout.shards):,} devices."
    one = {"max": "partial maximum", "min": "partial minimum"}.get(
        layout.unreduced_kind, "partial sum"
    )
    copy = one if array.terms == layout.replicas else "replica"
    prefix = f"{layout.partials} of " if array.partial else ""
    return listed(
        f"device {shard.device} holds {prefix}{index_text(shard.index)}"
        + (f" ({copy} {shard.replica + 1})" if layout.replicas > 1 else "")
        for shard in layout.shards
    )


def _shard_text(array, number):
    """What a device holds and why: where it is in the mesh, its slice, and its block along each
    sharded dimension.
    """
    layout, shard = array.layout, array.layout.shards[number]
    usual = {1: ("elements",), 2: ("rows", "columns")}
    count = len(layout.shape)
    names = array.dims or usual.get(count) or tuple(f"dimension {dim}" for dim in range(count))
    ranges = ", ".join(
        f"{name} {start}:{stop}" for name, (start, stop) in zip(names, shard.index, strict=True)
    )
    words = f"device {shard.device}{_place_text(layout.mesh, number)}: {ranges or 'the number'}"
    if layout.spec:
        sizes = dict(layout.mesh.axes)
        blocks = ", ".join(
            (
                f"{name} over {axes_text(axes)} → block {block} of "
                f"{math.prod(sizes[axis] for axis in axes)}"
            )
            for name, axes, block in zip(names, layout.spec, shard.position, strict=True)
            if axes
        )
        spec = (axes if len(axes) > 1 else axes[0] if axes else None for axes in layout.spec)
        words += f" ({spec_text(spec)}: {blocks or 'not sharded'})"
    copies = layout.partials if array.terms == layout.replicas else "replicas"
    return words + (f", one of {layout.replicas} {copies}" if layout.replicas > 1 else "")


def _place_text(mesh, number):
    """Where the device with that number in the flattened mesh is."""
    if mesh is None or not mesh.axes:
        return ""
    places, left = [], number
    for axis, size in reversed(mesh.axes):
        left, place = divmod(left, size)
        places.insert(0, f"{axis}={place}")
    return f", at {', '.join(places)}"


def text_slabs(array):
    """Each tile once, with all devices that hold it; + between the devices of partial sums, | of
    maxima.
    """
    layout = array.layout
    owners = {}
    for shard in layout.shards:
        owners.setdefault(shard.position, []).append(shard.device)
    at = {shard.device: shard.position for shard in layout.shards}
    lines = []
    for index, grids in _slabs(layout):
        if grids is _SKIP:
            lines.append("…")
            continue
        if index:
            lines.append(index_text(index))
        holders = [
            [owners[at[block.device]] if block else None for block in line] for line in grids[0]
        ]
        lines += text_grid(
            holders, ("+" if layout.unreduced_kind == "sum" else "|") if array.partial else " "
        )
    return lines


def text_grid(cells, between=" "):
    """Box drawing around lists of device numbers; None stands for what a summary leaves out."""
    if len(cells[0]) > 2 * _WRAP:  # a long row is continued below
        return text_grid([line[:_WRAP] for line in cells], between) + text_grid(
            [line[_WRAP:] for line in cells], between
        )
    texts = [["…" if ids is None else _ids_text(ids, between) for ids in line] for line in cells]
    widths = [max(len(line[c]) for line in texts) for c in range(len(texts[0]))]

    def rule(left, middle, right):
        return left + middle.join("─" * (w + 2) for w in widths) + right

    lines = [rule("┌", "┬", "┐")]
    for i, line in enumerate(texts):
        if i:
            lines.append(rule("├", "┼", "┤"))
        lines.append(
            "│" + "│".join(f" {text:^{w}} " for text, w in zip(line, widths, strict=True)) + "│"
        )
    return [*lines, rule("└", "┴", "┘")]


def _ids_text(ids, between):
    if len(ids) > 8:
        return f"{ids[0]} {ids[1]} … {ids[-1]} ({len(ids):,} devices)"
    return between.join(map(str, ids))
