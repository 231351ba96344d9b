"""One array in several layouts, side by side: which slice of it each device stores, and how many
bytes that takes.

Notebooks show one picture for each layout. On the page "One Program, Many Devices" a script
(book/static/home.js) shows one at a time, lets the tiles move from the array to their devices, and
shows the other layouts to readers who type a spec of their own.
"""

import json
from collections.abc import Iterable
from functools import partial

from jax import Array

from shardlab.arrays.layout import counted, describe, index_text
from shardlab.pictures.svg import (
    PALETTE,
    Picture,
    arrow_down,
    arrow_right,
    device_tile,
    escape,
    figure,
    haloed,
    ink,
    listed,
    rect,
    row,
    stripes,
    text,
)

__all__ = ["compare_specs"]

# What the page loads for this picture, in the order of loading.
FILES = (
    "explorer/words.js", "explorer/layout.js", "explorer/names.js", "explorer/spec.js", "home.js",
)  # fmt: skip
_ARRAY = (46, 22, 160, 80)  # px: where the array is drawn, and its size
_MESH = (30, 138, 78, 70)  # where the first device is, and the size of each
_GAP = 6
_SLICE = (7, 24, 64, 32)  # in a device: where the array's outline is, and its size
_WIDTH = 360


def compare_specs(*arrays: Array, others: Iterable[Array] = ()) -> Picture:
    """Draw the same array in several layouts, each with the slice and the bytes of every device.

    A float32 array of shape (8, 16) takes 8 * 16 * 4 = 512 bytes. On a mesh of 2 x 4 devices,
    `P(None, None)` stores all 512 on each device, `P("x", None)` stores 512 / 2 = 256, and `P("x",
    "y")` stores 512 / 8 = 64.

    >>> a = jnp.zeros((8, 16))
    >>> specs = P(None, None), P("x", None), P("x", "y")
    >>> compare_specs(*(jax.device_put(a, NamedSharding(mesh, spec)) for spec in specs))
    P(None, None)    f32[8, 16]: local shape (8, 16), 1 shard × 8 replicas on 8 devices, 512 bytes each
    P("x", None)     f32[8@x, 16]: local shape (4, 16), 2 shards × 4 replicas on 8 devices, 256 bytes each
    P("x", "y")      f32[8@x, 16@y]: local shape (4, 4), 8 shards on 8 devices, 64 bytes each

    Args:
      arrays: the array in each layout: of two dimensions, on one mesh of two axes and at most 4
        devices in a row.
      others: the array in further layouts, which are drawn and not shown: the home page shows one
        of them when a reader types its spec.

    Returns:
      A `Picture`.

    Raises:
      TypeError: an argument is no `jax.Array`.
      ValueError: there is no array, or they differ in shape, dtype or mesh, or these cannot be
        drawn.
    """  # noqa: E501
    if not arrays:
        raise ValueError("compare_specs() needs an array in each layout that it compares")
    for array in (*arrays, *others):
        if not isinstance(array, Array):
            raise TypeError(
                "compare_specs() takes arrays that are placed on a mesh, not "
                f"{type(array).__name__}"
            )
    arrays, shown = (*arrays, *others), len(arrays)
    layouts = [describe(array) for array in arrays]
    first = layouts[0]
    for layout in layouts:
        if layout.unreduced:
            raise ValueError(
                f"compare_specs() draws slices, not the partial sums of {layout.type}; add "
                "them up first, with jax.sharding.reshard, or draw() them"
            )
        if (
            layout.mesh is None
            or len(layout.shape) != 2
            or len(layout.mesh.axes) != 2
            or layout.mesh.shape[1] > 4
        ):
            raise ValueError(
                "compare_specs() draws matrices on a mesh of two axes with at most 4 devices "
                f"in a row, not {layout}"
            )
        if (layout.shape, layout.dtype, layout.mesh) != (first.shape, first.dtype, first.mesh):
            raise ValueError(
                f"compare_specs() compares layouts of one array on one mesh, not {first} and "
                f"{layout}"
            )
    pictures = [_picture(layout) for layout in layouts]
    pictures[shown:] = [
        picture.replace("<figure ", '<figure hidden data-other="" ', 1)
        for picture in pictures[shown:]
    ]
    given = {"mesh": first.mesh.axes, "shape": first.shape}
    attributes = (
        f'class="shardlab specs" data-specs="{shown}" data-given="{escape(json.dumps(given))}" '
        f'data-load="{" ".join(FILES)}"'
    )
    words = "\n".join(f"{_spec(layout):16s} {layout}" for layout in layouts[:shown])
    return Picture(row("".join(pictures), attributes, align="flex-start"), words)


def _spec(layout):
    """The spec as one writes it: `P("x", None)`."""
    entries = (
        "None"
        if not axes
        else f'"{axes[0]}"'
        if len(axes) == 1
        else "(" + ", ".join(f'"{axis}"' for axis in axes) + ")"
        for axes in layout.spec
    )
    return f"P({', '.join(entries)})"


def _picture(layout):
    spec, each = _spec(layout), max(layout.bytes_per_device.values())
    parts = [*_array(layout), *_numbers(layout, each), *_devices(layout)]
    height = _MESH[1] + layout.mesh.shape[0] * (_MESH[3] + _GAP) - _GAP
    copies = f"{counted(layout.distinct_shards, 'shard')} × {counted(layout.replicas, 'replica')}"
    if layout.replicas == 1:
        copies = f"{counted(layout.distinct_shards, 'shard')}, no replicas"
    compact = partial(json.dumps, separators=(",", ":"))  # as scripts write it
    title = f"{spec}: {layout.type} on {counted(len(layout.shards), 'device')}"
    sentence = listed(
        f"device {shard.device} stores {index_text(shard.index)}" for shard in layout.shards
    )
    words = (
        f"Local shape {layout.shard_shape}, {each:,} bytes per device, {layout.total_bytes:,} "
        f"bytes in all. {sentence}"
    )
    caption = f"<code>{escape(spec)}</code> {copies}"
    return figure(parts, _WIDTH, height, title, words, caption, growth=1.75).replace(
        "<figure ",
        f'<figure data-spec="{escape(spec)}" data-axes="{escape(compact(layout.spec))}" '
        f'data-nbytes="{layout.nbytes}" data-replicas="{layout.replicas}" ',
        1,
    )


def _array(layout):
    """The array itself: the colours of a tile are those of the devices that store it."""
    x, y, width, height = _ARRAY
    across, down = (
        f"{size}@{'·'.join(axes)}" if axes else f"{size}"
        for size, axes in zip(layout.shape[::-1], layout.spec[::-1], strict=True)
    )
    parts = [arrow_right(x, y - 11, width, across), arrow_down(x - 10, y, height, down)]
    for index, owners in layout.owners.items():
        box = _place(layout, index, *_ARRAY)
        if len(owners) == 1:
            parts.append(device_tile(box, owners[0]))
        else:
            left, top, wide, high = box
            parts += [stripes(*box, [_colour(device) for device in owners]), rect(*box)]
            parts.append(
                haloed(left + wide / 2, top + high / 2 + 5, " ".join(map(str, owners)), 13)
            )
    return [*parts, _grid(layout, *_ARRAY)]


def _numbers(layout, each):
    """Beside the array, its type and what the layout costs; the script counts the bytes."""
    left = _ARRAY[0] + _ARRAY[2] + 16
    kind = text(left, 18, layout.type, size=13, anchor="start", bold=True).replace(
        "<text ", '<text style="font-family:ui-monospace,monospace" ', 1
    )
    return [
        kind,
        text(left, 37, f"local shape {layout.shard_shape}", size=12, anchor="start"),
        text(left, 68, f"{each:,}", size=28, anchor="start", bold=True),
        text(left, 84, "bytes per device", size=12, anchor="start"),
        text(left, 102, f"{layout.total_bytes:,}", size=12, anchor="start", bold=True)
        .replace("</text>", '<tspan font-weight="400"> bytes in all</tspan></text>')
        .replace("<text ", '<text data-total="" ', 1),
    ]


def _devices(layout):
    """The mesh; the tiles come last, so that they move over all else."""
    x, y, width, height = _MESH
    (down, rows), (across, columns) = layout.mesh.axes
    parts = [
        arrow_right(x, y - 10, columns * (width + _GAP) - _GAP, f"mesh axis {across}"),
        arrow_down(x - 10, y, rows * (height + _GAP) - _GAP, down),
    ]
    tiles = []
    for place, shard in enumerate(layout.shards):
        left, top = x + place % columns * (width + _GAP), y + place // columns * (height + _GAP)
        colour, stored = _colour(shard.device), layout.bytes_per_device[shard.device]
        inner = (left + _SLICE[0], top + _SLICE[1], *_SLICE[2:])
        number = text(left + 15, top + 17, shard.device, size=12, fill=ink(colour), bold=True)
        share = _SLICE[2] * stored / layout.nbytes
        parts += [
            rect(left, top, width, height, more=' rx="4" opacity=".4"'),
            (
                f'<rect x="{left + 7:g}" y="{top + 6:g}" width="16" height="15" rx="2" '
                f'fill="{colour}"/>{number}'
            ),
            text(left + width - 7, top + 18, f"{stored:,} B", size=12, anchor="end").replace(
                "<text ", f'<text data-bytes="{stored}" ', 1
            ),
            _grid(layout, *inner, 0.35),
            rect(left + 7, top + 59, _SLICE[2], 5, more=' stroke-width=".5" opacity=".5"'),
            (
                f'<rect data-bar="" x="{left + 7:g}" y="{top + 59:g}" width="{share:g}" '
                f'height="5" fill="{colour}"/>'
            ),
        ]
        box = _place(layout, shard.index, *inner)
        source = " ".join(f"{value:g}" for value in _place(layout, shard.index, *_ARRAY))
        tile = rect(*box, colour, f' data-from="{source}"')
        tiles.append(tile)
    return [*parts, *tiles]


def _place(layout, index, x, y, width, height):
    """Where a slice is in a drawing of the whole array."""
    (top, bottom), (left, right) = index
    rows, columns = layout.shape
    return (
        x + width * left / columns,
        y + height * top / rows,
        width * (right - left) / columns,
        height * (bottom - top) / rows,
    )


def _grid(layout, x, y, width, height, opacity=0.3):
    """A line between any two elements."""
    rows, columns = layout.shape
    across = "".join(f"M{x:g} {y + height * i / rows:g}h{width:g}" for i in range(rows + 1))
    down = "".join(f"M{x + width * i / columns:g} {y:g}v{height:g}" for i in range(columns + 1))
    return f'<path d="{across}{down}" stroke="currentColor" stroke-width=".5" opacity="{opacity}"/>'


def _colour(device):
    return PALETTE[device % len(PALETTE)]
