"""Draw arrays, meshes and collectives: a device is a place with one colour everywhere, its number always printed.

A picture is made in two steps: `shardlab.layout.describe` or `shardlab.follow.follow` says in plain data who
holds what, and this module turns that into inline SVG for notebooks and into text for consoles.

How to read a picture of an array: the last dimension runs to the right, the one before it down, earlier
ones from slab to slab. Each rectangle is what one device holds. An array of which several devices hold
copies is drawn once for each copy, because each takes memory.

How to read a picture of a collective: the devices stand side by side, each over what it holds. A piece has the
colour of the device that it came from, a sum is hatched in the colours of all that are in it, what changed
since the last frame has a bold outline, and an empty place a dotted one.
"""

from dataclasses import dataclass
from html import escape
from itertools import product

from shardlab.follow import Flow
from shardlab.layout import MeshLayout, describe, index_text

__all__ = ["PALETTE", "Picture", "draw"]

# Okabe and Ito's eight colours, told apart by colour-blind readers too. Device i has colour i modulo 8.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")

_DRAWN_IN_FULL = 64  # devices; a larger layout is summarised
_TILE_W, _TILE_H = 26, 22  # the smallest tile, in px, in which a three-digit number is legible
_WRAP = 12  # tiles in a row before it is continued below, so that pictures fit a phone
_GAP = 10
_WIDTH = 316  # px: what fits beside the margins of a phone
_SKIP = None  # stands for blocks left out of a summary


@dataclass(frozen=True)
class Picture:
    """A drawing: `html` is what notebooks show, `text` what consoles print."""

    html: str
    text: str

    def _repr_html_(self):
        return self.html

    def __repr__(self):
        return self.text


def draw(*things, shape=None, **named):
    """Draw where arrays lie: which device holds which piece.

    `draw(x)` draws one array, `draw(before=x, after=y)` two side by side with their names, and
    `draw(mesh)` a mesh. `draw(sharding, shape=(4, 16))` draws an array that does not exist, and
    `draw(follow(program, mesh))` what a program moves, moment by moment.

    Args:
      *things: what `shardlab.layout.describe` takes: arrays, shardings, meshes; a `Layout`; or a `Flow`.
      shape: the shape of the array, where a thing is a sharding.
      **named: the same, each drawn with its name.

    Returns:
      A `Picture`. At the end of a cell it shows itself; printed, it is box drawing.

    Raises:
      TypeError, ValueError: as `describe` does.
    """
    if not things and not named:
        raise TypeError("draw() needs something to draw, such as draw(x) or draw(mesh)")
    labelled = [("", thing) for thing in things] + list(named.items())
    panels = []
    for name, thing in labelled:
        if isinstance(thing, Flow):
            if shape is not None:
                raise TypeError("shape= is for shardings; a Flow has its own")
            panels.append(_flow_panel(name, thing))
            continue
        layout = describe(thing, shape)
        panels.append(_mesh_panel(name, layout) if isinstance(layout, MeshLayout) else _array_panel(name, layout))
    return Picture(_row("".join(html for html, _ in panels)), "\n\n".join(text for _, text in panels))


def _row(figures, attributes='class="shardlab"', align="flex-end"):
    """Figures side by side, on narrow screens below each other; nothing here depends on a page's style sheet."""
    style = f"display:flex;flex-wrap:wrap;gap:1rem 2rem;align-items:{align}"
    return f'<div {attributes} style="{style}">{figures}</div>'


# --- What to draw: slabs of blocks -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """One rectangle: the device in it, and its extent down and right in elements."""

    device: int
    down: int
    right: int
    index: tuple


def _slabs(layout):
    """The array as slabs of rows of blocks: [(leading slices, [copy][row][column] -> _Block)]; _SKIP is left out."""
    blocks, slices = {}, {}
    for shard in layout.shards:
        *_, down, right = ((0, 1), (0, 1), *shard.index)
        *leading, row, column = (0, 0, *shard.tile)[-max(2, len(shard.tile)) :]
        block = _Block(shard.device, down[1] - down[0], right[1] - right[0], shard.index)
        blocks[shard.copy, tuple(leading), row, column] = block
        slices[tuple(leading)] = shard.index[: len(leading)]
    copies, leading, rows, columns = (sorted({key[i] for key in blocks}) for i in range(4))
    # A summary shows the first blocks and the last along each dimension, and the first copy alone.
    if len(layout.shards) > _DRAWN_IN_FULL:
        copies = copies[:1]
        leading, rows, columns = map(_first_and_last, (leading, rows, columns))

    def grid(copy, slab):
        return [[blocks.get((copy, slab, row, column)) for column in columns] for row in rows]

    return [
        (slices.get(slab, _SKIP), _SKIP if slab is _SKIP else [grid(copy, slab) for copy in copies]) for slab in leading
    ]


def _first_and_last(values):
    return values if len(values) <= 3 else [values[0], _SKIP, values[-1]]


# --- SVG -------------------------------------------------------------------------------------------------


def _array_panel(name, layout):
    slabs = _slabs(layout)
    copies = slabs[0][1]
    rows, columns = len(copies[0]), len(copies[0][0])
    tile_w, tile_h = _tile_size(layout, len(copies), len(slabs), rows, columns)
    depth = 7 if len(layout.shape) > 2 else 0

    # A row of copies, or of the slabs of one copy: as many as fit, the rows of equal length.
    sheets = [(copy, index, grids) for copy in range(len(copies)) for index, grids in slabs]
    abreast = len(copies) if len(slabs) == 1 else len(slabs)
    across = max(1, int((_WIDTH + _GAP) // (min(columns, _WRAP) * tile_w + depth + _GAP)))
    across = -(-abreast // -(-abreast // across))
    parts, width, top = [], 0, 0
    for first in range(0, len(sheets), abreast):
        for start in range(first, first + abreast, across):
            left, height = 0, 0
            for copy, index, grids in sheets[start : min(start + across, first + abreast)]:
                if grids is _SKIP:
                    parts.append(_svg_text(left + 8, top + rows * tile_h / 2 + 4, "…"))
                    left += 16 + _GAP
                    continue
                body, w, h = _grid(grids[copy], left, top + depth, tile_w, tile_h, depth)
                parts.append(body)
                label = index_text(index)
                if index and 6 * len(label) <= w + 8:  # the tiles' tips say it in any case
                    parts.append(_svg_text(left + w / 2, top + depth + h + 13, label, size=11))
                left += w + depth + _GAP
                height = max(height, h + depth + (16 if index else 0))
            width = max(width, left - _GAP)
            top += height + _GAP

    title = f"{_prefix(name)}{layout.type} on {len(layout.shards):,} device{'s' * (len(layout.shards) > 1)}"
    of_copy = f" of copy 1 of {layout.copies:,}" if layout.copies > 1 else ""
    left_out = f" Drawn: the first and the last tiles{of_copy}." if len(layout.shards) > _DRAWN_IN_FULL else ""
    summary = str(layout).split(": ", 1)[1] + "." + left_out
    caption = f"{_name_html(name)}<code>{escape(layout.type)}</code><br>{escape(summary)}"
    text = f"{_prefix(name)}{layout.type}\n{_text_slabs(layout)}\n{summary}"
    return _figure(parts, width, top - _GAP, title, _describe_shards(layout), caption), text


def _mesh_panel(name, mesh):
    sizes = (1, 1, *mesh.shape)[-max(2, len(mesh.shape)) :]
    names = [axis for axis, _ in mesh.axes]
    summarised = len(mesh.devices) > _DRAWN_IN_FULL
    device = dict(zip(product(*map(range, sizes)), mesh.devices, strict=True))
    places = [_first_and_last(range(size)) if summarised else range(size) for size in sizes]

    tile, margin_top = 36 if summarised else 30, 18
    margin_left = 7 * len(names[-2]) + 22 if len(names) > 1 else 0
    slab_width, slab_height = margin_left + len(places[-1]) * tile + _GAP, margin_top + len(places[-2]) * tile + 24
    across = max(1, _WIDTH // slab_width)

    parts, lines, width, height = [], [], 0, 0
    slabs = [slab for slab in product(*places[:-2]) if _SKIP not in slab]
    for number, slab in enumerate(slabs):
        left, top = (number % across) * slab_width, (number // across) * slab_height
        grid = [
            [
                _SKIP if _SKIP in (row, column) else _Block(device[(*slab, row, column)], 1, 1, ())
                for column in places[-1]
            ]
            for row in places[-2]
        ]
        body, w, h = _grid(grid, left + margin_left, top + margin_top, tile, tile, 0)
        parts.append(body)
        if names:
            parts.append(_svg_text(left + margin_left + w / 2, top + 12, f"{names[-1]} →", size=12))
        if len(names) > 1:
            middle = top + margin_top + h / 2 + 4
            parts.append(_svg_text(left + margin_left - 6, middle, f"{names[-2]} ↓", size=12, anchor="end"))
        where = ", ".join(f"{axis}={place}" for axis, place in zip(names, slab, strict=False))
        if where:
            parts.append(_svg_text(left + margin_left + w / 2, top + margin_top + h + 14, where, size=11))
            lines.append(where)
        lines += _text_grid([[[block.device] if block else None for block in row] for row in grid])
        width = max(width, left + margin_left + w)
        height = max(height, top + margin_top + h + (18 if where else 0))

    shape = " x ".join(f"{axis}={size}" for axis, size in mesh.axes)
    title = f"{_prefix(name)}mesh {shape}, {len(mesh.devices):,} devices"
    listed = _listed(
        f"device {id} at ({', '.join(map(str, place[-len(names) :] if names else ()))})" for place, id in device.items()
    )
    caption = f"{_name_html(name)}mesh <code>{escape(shape)}</code>, {len(mesh.devices):,} devices"
    return _figure(parts, width, height, title, listed, caption), "\n".join([title, *lines])


def _flow_panel(name, flow):
    """A figure for each frame; what is marked as steps a page may show one by one."""
    frames = [_frame_figure(name, flow, number) for number in range(len(flow.frames))]
    steps = f'data-steps="{len(frames)}"' if len(frames) > 2 else ""
    lines = [_frame_text(flow, frame) for frame in flow.frames]
    return _row("".join(frames), steps, "flex-start"), "\n".join([f"{name}:"] * bool(name) + lines)


def _frame_figure(name, flow, number):
    frame, earlier = flow.frames[number], flow.frames[number - 1] if number else None
    n, across, height, gap = len(flow.devices), 46 if len(flow.devices) <= 6 else 34, 26, 6
    slots = max(map(len, frame.slots))
    parts = []
    for place, (device, held) in enumerate(zip(flow.devices, frame.slots, strict=True)):
        left, colour = place * (across + gap), PALETTE[device % len(PALETTE)]
        parts.append(
            f'<circle cx="{left + across / 2:g}" cy="11" r="11" fill="{colour}" stroke="currentColor"/>'
            + _svg_text(left + across / 2, 15.5, str(device), size=13, fill=_ink(colour))
        )
        before = earlier.slots[place] if earlier else held
        for row, content in enumerate(held):
            changed = content not in before if len(before) != len(held) else before[row] != content
            parts.append(_slot(flow, content, left, 30 + row * (height + 3), across, height, changed and content))
    width, tall = n * (across + gap) - gap, 30 + slots * (height + 3)
    title = f"{_prefix(name)}{frame.title}, {n} device{'s' * (n > 1)}"
    caption = f"{_name_html(name)}{escape(frame.title)}"
    description = _listed(
        f"device {device} holds {_held_text(flow, held)}"
        for device, held in zip(flow.devices, frame.slots, strict=True)
    )
    return _figure(parts, width, tall, title, description, caption)


def _slot(flow, content, left, top, width, height, changed):
    """One place of a device: empty, a piece, or a sum hatched in the colours of what is in it."""
    box = f'x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
    if not content:
        return f'<rect {box} fill="none" stroke="currentColor" stroke-dasharray="2 3" opacity=".6"/>'
    name = flow.name(content)
    owners = list(dict.fromkeys(owner for owner, *_ in content))
    colours = [PALETTE[flow.devices[owner] % len(PALETTE)] for owner in owners]
    size = round(min(12, (width - 9) / (0.62 * len(name))), 1)
    label = _svg_text(left + width / 2, top + height / 2 + 4.5, name, size=size, fill=_ink(colours[0]))
    ground, hatch = colours[0], ""
    if len(content) > 1 or content[0][2] > 1:
        # An inner svg clips its stripes without an id. Each colour has every k-th stripe.
        # Eight colours get narrower ones, so that each shows.
        stripe, stripes = 7 if len(colours) < 7 else 5, []
        for i, colour in enumerate(colours):
            starts = range(i * stripe, int(width + height + stripe), stripe * len(colours))
            path = "".join(f"M{x + 3} -1l-{height + 2} {height + 2}" for x in starts)
            stripes.append(f'<path d="{path}" stroke="{colour}" stroke-width="{stripe / 2**0.5 + 0.3:.1f}"/>')
        ground, hatch = "#fff", f"<svg {box}>{''.join(stripes)}</svg>"
        # Letters on stripes need a ground of their own.
        label = _svg_text(left + width / 2, top + height / 2 + 4.5, name, size=size, fill="#000").replace(
            "<text ", '<text paint-order="stroke" stroke="#fff" stroke-width="4" '
        )
    stroke = ' stroke-width="3"' if changed else ""
    outline = f'<rect {box} fill="none" stroke="currentColor"{stroke}/>'
    return f'<g><rect {box} fill="{ground}"/>{hatch}{outline}{label}</g>'


def _tile_size(layout, copies, slabs, rows, columns):
    """Tile width and height in px: the array's proportions, within what is legible and what fits."""
    down, right = (1, 1, *layout.shape)[-2:]
    sheets = copies * slabs
    longer = next(px for most, px in ((1, 230), (2, 150), (4, 110), (8, 70), (sheets, 0)) if sheets <= most)
    proportion = min(3.0, max(1 / 3, max(right, 1) / max(down, 1)))
    width, height = (longer, longer / proportion) if proportion >= 1 else (longer * proportion * 0.8, longer * 0.8)
    # Rows and columns continued after _WRAP tiles share the same area; slabs share the width.
    width, height = width / -(-rows // _WRAP), height / -(-columns // _WRAP)
    if slabs > 1:
        width = min(width, _WIDTH / min(slabs, 4) - _GAP - 7)
    legible = _TILE_W if max(layout.devices) < 1000 else _TILE_W + 8
    return round(max(legible, width / min(columns, _WRAP)), 1), round(max(_TILE_H, height / min(rows, _WRAP)), 1)


def _grid(grid, left, top, tile_w, tile_h, depth):
    """One sheet of tiles as SVG, rows and columns continued below or beside after _WRAP of them."""
    parts, far_right, far_down = [], 0, 0
    rows, columns = len(grid), len(grid[0])
    band_height = min(rows, _WRAP) * tile_h + _GAP / 2
    stack_width = min(columns, _WRAP) * tile_w + _GAP / 2
    widest = max((b.right for row in grid for b in row if b), default=1) or 1
    tallest = max((b.down for row in grid for b in row if b), default=1) or 1
    if depth:  # the two visible sides of a slab
        w, h = columns * tile_w, rows * tile_h
        side = f"M{left:g} {top:g}l{depth} -{depth}h{w:g}v{h:g}l-{depth} {depth}M{left + w:g} {top:g}l{depth} -{depth}"
        parts.append(f'<path d="{side}" fill="none" stroke="currentColor"/>')
    for r, row in enumerate(grid):
        for c, block in enumerate(row):
            x = left + (c % _WRAP) * tile_w + (r // _WRAP) * stack_width
            y = top + (r % _WRAP) * tile_h + (c // _WRAP) * band_height
            far_right, far_down = max(far_right, x + tile_w - left), max(far_down, y + tile_h - top)
            if block is None:
                parts.append(_svg_text(x + tile_w / 2, y + tile_h / 2 + 4, "…"))
                continue
            w, h = tile_w * block.right / widest, tile_h * block.down / tallest
            if not w or not h:  # an empty piece of an uneven layout: a place, but no area
                parts.append(
                    f'<rect x="{x:g}" y="{y:g}" width="{tile_w:g}" height="{tile_h:g}" fill="none" '
                    'stroke="currentColor" stroke-dasharray="2 3"/>'
                )
                parts.append(_svg_text(x + tile_w / 2, y + tile_h / 2 + 4, str(block.device), size=12))
                continue
            colour = PALETTE[block.device % len(PALETTE)]
            tip = f"<title>device {block.device}: {index_text(block.index)}</title>" if block.index else ""
            parts.append(
                f'<g><rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{colour}" stroke="currentColor"/>'
                + _svg_text(x + w / 2, y + h / 2 + 4.5, str(block.device), size=13, fill=_ink(colour))
                + f"{tip}</g>"
            )
    return "".join(parts), far_right, far_down


def _figure(parts, width, height, title, description, caption):
    # One px of room around, so that outlines are not cut. No ids: the same picture may stand twice on a page.
    w, h = width + 2, height + 2
    svg = (
        f'<svg role="img" width="{w:g}" height="{h:g}" viewBox="-1 -1 {w:g} {h:g}" style="max-width:100%;height:auto" '
        'font-family="system-ui,sans-serif" text-anchor="middle">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )
    words = f'<figcaption style="font-size:.85em;font-weight:400;text-align:left;color:inherit">{caption}</figcaption>'
    return f'<figure style="margin:0 0 .5rem;max-width:20rem">{svg}{words}</figure>'


def _svg_text(x, y, text, *, size=14, fill="currentColor", anchor=None):
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}"{anchor}>{escape(text)}</text>'


def _ink(colour):
    """Black or white, whichever stands out more from a colour (WCAG's relative luminance)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#fff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000"


def _prefix(name):
    return f"{name}: " if name else ""


def _name_html(name):
    return f"<strong>{escape(name)}</strong> " if name else ""


# --- Words -----------------------------------------------------------------------------------------------


def _describe_shards(layout):
    if not layout.shape:
        return f"A single number, on each of {len(layout.shards):,} devices."
    return _listed(
        f"device {shard.device} holds {index_text(shard.index)}"
        + (f" (copy {shard.copy + 1})" if layout.copies > 1 else "")
        for shard in layout.shards
    )


def _held_text(flow, held):
    piece = "" if flow.pieces > 1 else "the piece of "
    names = [flow.name(content) if content else "" for content in held]
    return ", ".join((piece if name.isdigit() else "") + name or "nothing" for name in names)


def _frame_text(flow, frame):
    cells = [[flow.name(content) if content else "·" for content in held] for held in frame.slots]
    width = max(len(cell) for row in cells for cell in row)
    rows = [
        f"  {device}: {' '.join(f'{cell:<{width}}' for cell in row)}".rstrip()
        for device, row in zip(flow.devices, cells, strict=True)
    ]
    return "\n".join([frame.title, *rows])


def _listed(sentences):
    """At most sixteen of them, the rest counted; for readers who hear the picture."""
    sentences = list(sentences)
    more = len(sentences) - 16
    text = "; ".join(sentences[:16]) + (f"; and {more:,} more devices" if more > 0 else "")
    return text[:1].upper() + text[1:] + "."


# --- Text ------------------------------------------------------------------------------------------------


def _text_slabs(layout):
    """Each tile once, with all devices that hold it."""
    owners = {}
    for shard in layout.shards:
        owners.setdefault(shard.tile, []).append(shard.device)
    tile_of = {shard.device: shard.tile for shard in layout.shards}
    lines = []
    for index, grids in _slabs(layout):
        if grids is _SKIP:
            lines.append("…")
            continue
        if index:
            lines.append(index_text(index))
        lines += _text_grid([[owners[tile_of[block.device]] if block else None for block in row] for row in grids[0]])
    return "\n".join(lines)


def _text_grid(cells):
    """Box drawing around lists of device numbers; None stands for what a summary leaves out."""
    if len(cells[0]) > 2 * _WRAP:  # a long row is continued below
        return _text_grid([row[:_WRAP] for row in cells]) + _text_grid([row[_WRAP:] for row in cells])
    texts = [["…" if ids is None else _ids_text(ids) for ids in row] for row in cells]
    widths = [max(len(row[c]) for row in texts) for c in range(len(texts[0]))]

    def rule(left, middle, right):
        return left + middle.join("─" * (w + 2) for w in widths) + right

    lines = [rule("┌", "┬", "┐")]
    for i, row in enumerate(texts):
        if i:
            lines.append(rule("├", "┼", "┤"))
        lines.append("│" + "│".join(f" {text:^{w}} " for text, w in zip(row, widths, strict=True)) + "│")
    return [*lines, rule("└", "┴", "┘")]


def _ids_text(ids):
    return " ".join(map(str, ids)) if len(ids) <= 8 else f"{ids[0]} {ids[1]} … {ids[-1]} ({len(ids):,} devices)"
