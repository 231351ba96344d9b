"""Draw products of matrices: which device multiplies what, and what must be gathered or summed."""

from collections.abc import Sequence
from math import log
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from shardlab.arrays.layout import axes_text, counted, describe
from shardlab.costs.communication.kinds import KINDS
from shardlab.pictures.arrays import (
    DrawnArray,
    array_of,
    check_drawable,
    describe_shards,
    name_html,
    names_of_dims,
    sharding_of,
    text_slabs,
)
from shardlab.pictures.svg import (
    Picture,
    arrow_down,
    arrow_right,
    device_tile,
    escape,
    figure,
    rect,
    row,
    side_by_side,
    text,
    text_width,
)
from shardlab.programs.collectives import Collectives

__all__ = ["draw_matmul"]

GAP = 6  # px between two sheets
MOST_SHEETS = 16  # that are drawn; of more, one with their number


def draw_matmul(
    A: Any,
    B: Any,
    C: Any,
    dims: Sequence[str] = "MJN",
    partial: Sequence[str] | None = None,
    sends: Collectives | None = None,
) -> Picture:
    """Draw a matrix product `A[M, J] · B[J, N] = C[M, N]` in one row, with the contracting
    dimension marked.

    Each tile is the shard of one device, in that device's colour. Replicas of an array, and its
    partial sums, are drawn separately, each as a small sheet, as `draw` does. With `A` of type
    `f32[16, 32@d]` and `B` of type `f32[32@d, 24]` on eight devices, each device multiplies (16,
    32/8) by (32/8, 24) and obtains partial sums of the local shape (16, 24). With
    `sends=collectives(jnp.matmul, A, B)`, the collectives of the compiled product are arrows: from
    an operand down to what an all-gather makes of it, and from the partial sums of C down to C.

    >>> line = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    >>> a = jax.device_put(jnp.ones((4, 8)), NamedSharding(line, P(None, "d")))
    >>> b = jax.device_put(jnp.ones((8, 6)), NamedSharding(line, P("d", None)))
    >>> draw_matmul(a, b, a @ b, partial="d")
                         f32[8@d, 6]
    f32[4, 8@d]          ┌───┐                f32[4, 6]
    ┌───┬───┐            │ 0 │                ┌─────┐
    │ 0 │ 1 │          · ├───┤              = │ 0+1 │
    └───┴───┘            │ 1 │                └─────┘
    local shape (4, 4)   └───┘                local shape (4, 6), 2 partial sums
                         local shape (4, 6)
    A[M, J] · B[J, N] = C[M, N]. The contracting dimension is J. Each device holds partial sums of C over d.

    Args:
      A, B, C: arrays, or anything else with a shape, a dtype and a sharding; or `Layout`s. Of two
        dimensions each.
      dims: the names of the three dimensions, such as "MJN"; the second is the contracting
        dimension.
      partial: the mesh axis, or a tuple of axes, along which every device holds partial sums of C.
      sends: what `shardlab.collectives` says of the product.

    Returns:
      A `Picture`.

    Raises:
      TypeError: an argument is no array or has no sharding.
      ValueError: the shapes do not fit a product, `dims` has not three names, there are more than
        64 devices or more than 16 shards along a dimension, or `partial` is not an axis that may
        hold partial sums.
    """  # noqa: E501
    names = names_of_dims(dims, 3, "A[M, J] · B[J, N] = C[M, N]")
    rows, inner, columns = names
    pairs = {"A": (rows, inner), "B": (inner, columns), "C": (rows, columns)}
    arrays = []
    for (name, pair), thing in zip(pairs.items(), (A, B, C), strict=True):
        if len(getattr(thing, "shape", "MN")) != 2:
            raise ValueError(
                f"draw_matmul() multiplies matrices, but {name} has shape {tuple(thing.shape)}"
            )
        arrays.append(array_of(name, thing, None, pair, partial if name == "C" else None))
        check_drawable(arrays[-1].layout, f"draw_matmul() draws {name}")
    a, b, c = (array.layout.shape for array in arrays)
    if a[1] != b[0]:
        raise ValueError(
            f"A of shape {a} has {a[1]} columns but B of shape {b} has {b[0]} rows; both are "
            f"{inner}"
        )
    if c != (a[0], b[1]):
        raise ValueError(
            f"A of shape {a} times B of shape {b} has shape {(a[0], b[1])}, but C has shape {c}"
        )
    stages, sentences = _stages(arrays, map(sharding_of, (A, B, C)), sends)
    across = _extents(
        [array for sheets, _ in stages for array in sheets],
        {rows: a[0], inner: a[1], columns: b[1]},
    )
    signs = ("", "·", "=")
    figures = [
        _product_figure(*stage, sign, across, inner)
        for stage, sign in zip(stages, signs, strict=True)
    ]
    formula = f"A[{rows}, {inner}] · B[{inner}, {columns}] = C[{rows}, {columns}]"
    multiplied = [stages[0][0][-1], stages[1][0][-1], stages[2][0][0]]
    sums = multiplied[2].partial
    sheets = f" Each device holds partial sums of C over {axes_text(sums)}." if sums else ""
    words = " ".join([f"{formula}. The contracting dimension is {inner}.{sheets}", *sentences])
    html = f'<div style="flex:0 0 100%;font-size:.85em">{escape(words)}</div>'
    blocks = ["\n".join([array.type, *text_slabs(array), array.short]) for array in multiplied]
    align = "flex-end" if len(stages[2][0]) == 1 else "flex-start"
    return Picture(
        row("".join(figures) + html, gap=1, align=align), f"{side_by_side(blocks, '·=')}\n{words}"
    )


def sheets_of(array):
    """Replicas or partial sums of an array, each as {(row, column) of a tile: device}; and its rows
    and columns.
    """
    sheets = {}
    for shard in array.layout.shards:
        sheets.setdefault(shard.replica, {})[(0, 0, *shard.position)[-2:]] = shard.device
    places = [place for sheet in sheets.values() for place in sheet]
    return (
        [sheets[n] for n in sorted(sheets)],
        max(r for r, _ in places) + 1,
        max(c for _, c in places) + 1,
    )


def _extents(arrays, sizes):
    """Px for each dimension, the same in every array: in proportion, and enough for the numbers of
    the devices.
    """
    largest = max(sizes.values()) or 1
    px = {dim: max(70.0, 112 * (size / largest) ** 0.5) for dim, size in sizes.items()}
    for array in arrays:
        sheets, rows, columns = sheets_of(array)
        if max(rows, columns) > 16:
            raise ValueError(
                f"draw_matmul() draws at most 16 shards along a dimension, but {array.name} "
                "has more"
            )
        down, right = array.dims
        least = 22 if max(array.layout.devices) < 10 else 26
        px[down], px[right] = max(px[down], 22 * rows), max(px[right], least * columns)
        while len(sheets) <= MOST_SHEETS and not sheets_within(
            len(sheets), rows, columns, px[right], px[down]
        ):
            px[down], px[right] = 1.1 * px[down], 1.1 * px[right]
    return px


def sheets_within(count, rows, columns, width, height):
    """How many sheets stand side by side and one below the other, in the array's proportions, with
    room for a number in each tile; None if they do not fit."""
    if count == 1:
        return 1, 1
    fits = []
    for across in range(1, count + 1):
        lines = -(-count // across)
        w, h = (width - GAP * (across - 1)) / across, (height - GAP * (lines - 1)) / lines
        if w >= 20 * columns and h >= 16 * rows:
            distortion, empty = abs(log(w / h * height / width)), across * lines - count
            fits.append((distortion + 0.2 * empty, across, lines))
    return min(fits)[1:] if fits else None


def array_sheet(array, px, margin=0, top=0, marked=""):
    """An array, each replica or partial sum of it a sheet of its own: parts, width, height, and the
    middle line.
    """
    sheets, rows, columns = sheets_of(array)
    (down, down_arrow), (right, right_arrow) = array.labels()
    named = array.dims or ("", "")
    row_dim, column_dim = named[-2:] if len(named) > 1 else ("", named[-1])
    width, height = px[column_dim or 1], px[row_dim or 0]
    left = margin + (round(text_width(down)) + 17 if down else 0)
    drawn_in_full = len(sheets) <= MOST_SHEETS
    across, lines = (
        sheets_within(len(sheets), rows, columns, width, height) if drawn_in_full else (1, 1)
    )
    sheet_w, sheet_h = (width - GAP * (across - 1)) / across, (height - GAP * (lines - 1)) / lines
    parts, y0 = [], top + (18 if right else 0)
    if len(sheets) > 1:
        what = "partial sums" if array.terms == len(sheets) else "replicas"
        parts.append(text(left, top + 11, f"{len(sheets)} {what}", size=12, anchor="start"))
        y0 += 16
    for words, is_arrow, dim, draw_arrow, start, length in (
        (right, right_arrow, column_dim, arrow_right, (left, y0 - 9), sheet_w),
        (down, down_arrow, row_dim, arrow_down, (left - 8, y0), sheet_h),
    ):
        bold = bool(marked) and dim == marked
        if not words:
            continue
        if is_arrow:
            parts.append(draw_arrow(*start, length, words, bold=bold))
        elif draw_arrow is arrow_right:
            parts.append(text(left + length / 2, y0 - 5, words, size=12, bold=bold))
        else:
            parts.append(
                text(left - 9, y0 + length / 2 + 4, words, size=12, anchor="end", bold=bold)
            )
        if bold:
            edge = (
                f"M{left:g} {y0 - 2:g}h{length:g}"
                if draw_arrow is arrow_right
                else f"M{left - 2:g} {y0:g}v{length:g}"
            )
            parts.append(f'<path d="{edge}" stroke="currentColor" stroke-width="4"/>')
    w, h = sheet_w / columns, sheet_h / rows
    small = {"size": 12} if len(sheets) > 1 else {}
    for number, sheet in enumerate(sheets if drawn_in_full else sheets[:1]):
        x0, y = left + number % across * (sheet_w + GAP), y0 + number // across * (sheet_h + GAP)
        for (r, c), device in sorted(sheet.items()):
            box = [*map(pixels, (x0 + c * w, y + r * h, w, h))]
            if drawn_in_full:
                parts.append(device_tile(box, device, partial=bool(array.partial), **small))
            else:
                parts.append(rect(*box))
                parts.append(
                    text(x0 + (c + 0.5) * w, y + (r + 0.5) * h + 4, f"{len(sheets)}×", size=12)
                )
    return (
        parts,
        max(left + width, left + text_width(right) if right else 0),
        y0 + height,
        y0 + height / 2,
    )


def _product_figure(held, moves, sign, across, inner):
    """An array of a product; below it, behind an arrow for each collective, what the collective
    makes of it.
    """
    margin, parts, width, bottom = 26 if sign else 0, [], 0, 0
    for number, array in enumerate(held):
        if number:
            move, length = moves[number - 1], 50
            before = held[number - 1]
            for line, words in enumerate((before.type, f"local shape {before.layout.shard_shape}")):
                parts.append(text(margin, bottom + 15 + 15 * line, words, size=12, anchor="start"))
            bottom += 38
            path = f"M{margin + 12} {bottom}v{length}m-6 -8l6 8l6 -8"
            parts.append(f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="3"/>')
            labels = (f"{move.kind} {axes_text(move.axes)}", f"{move.bytes:,} bytes each")
            for line, words in enumerate(labels):
                parts.append(
                    text(
                        margin + 26,
                        bottom + 21 + 16 * line,
                        words,
                        size=12,
                        anchor="start",
                        bold=not line,
                    )
                )
                width = max(width, margin + 26 + text_width(words))
            bottom += length + 6
        sheet, right, bottom, middle = array_sheet(array, across, margin, bottom, marked=inner)
        parts += sheet
        width = max(width, right)
        if sign and number == (0 if sign == "=" else len(held) - 1):
            parts.append(text(10, middle + 8, sign, size=24))
    last = held[-1]
    types = ", then ".join(array.type for array in held)
    title = f"{last.name}: {types} on {counted(len(last.layout.shards), 'device')}"
    caption = f"{name_html(last.name)}<code>{escape(last.type)}</code><br>{escape(last.short)}"
    description = " Then: ".join(map(describe_shards, held))
    return figure(parts, width, bottom, title, description, caption, narrow=190, growth=1.2)


def _stages(arrays, shardings, sends):
    """What is held of A, B and C one after the other, with the collectives in between; and the
    collectives in words.
    """
    stages, sentences = [([array], []) for array in arrays], []
    if sends is None:
        return stages, sentences
    meshes = [getattr(sharding, "mesh", None) for sharding in shardings]
    sums = []
    for move in sends.moves:
        words = f"{'An' if move.kind.startswith('a') else 'A'} {move.kind}"
        words += f" along {' and '.join(move.axes)}" if move.axes else ""
        place = _gathered(stages, meshes, move)
        if place is not None:
            before, after = stages[place][0][-2:]
            words += f" turns {after.name} from {before.type} into {after.type}"
        elif _adds_up(arrays[2], meshes[2], move):
            sums.append(move)
            words += " adds up the partial sums of C"
        times = "" if move.times == 1 else " each time"
        sent = "an unknown number of" if move.bytes is None else f"{move.bytes:,}"
        sentences.append(f"{words}; each device sends {sent} bytes{times}.")
    for move in reversed(sums):
        partial_arrays, moves = stages[2]
        partial_arrays.insert(
            0,
            _over_fewer(
                partial_arrays[0], meshes[2], move.axes, (*partial_arrays[0].partial, *move.axes)
            ),
        )
        moves.insert(0, move)
    return stages, sentences or ["Nothing is sent."]


def _dims_of(types):
    return [
        tuple(int(size) for size in type_text.partition("[")[2].rstrip("]").split(",") if size)
        for type_text in types
    ]


def _over_fewer(array, mesh, axes, partial=()):
    """An array that is no longer sharded over some axes; along `partial` its devices hold partial
    sums.
    """
    spec = [tuple(axis for axis in over if axis not in axes) or None for over in array.layout.spec]
    layout = describe(
        NamedSharding(mesh, PartitionSpec(*spec)), array.layout.shape, array.layout.dtype
    )
    return DrawnArray(array.name, layout, array.dims, partial, layout.type)


def _gathered(stages, meshes, move):
    """Which operand an all-gather is of, by shapes and axes, with the result appended to its
    stages; else None.
    """
    if not KINDS[move.kind].grows or not move.axes or move.times != 1:
        return None
    for place in (0, 1):
        held, moves = stages[place]
        if meshes[place] is None or not any(
            axis in over for over in held[-1].layout.spec for axis in move.axes
        ):
            continue
        after = _over_fewer(held[-1], meshes[place], move.axes)
        shapes = [held[-1].layout.shard_shape], [after.layout.shard_shape]
        if shapes == (_dims_of(move.operands), _dims_of(move.results)):
            held.append(after)
            moves.append(move)
            return place
    return None


def _adds_up(c, mesh, move):
    """Whether a collective adds up partial sums of C, by its result's shape."""
    adds = KINDS[move.kind].adds and move.axes and move.times == 1
    return bool(adds and mesh is not None and _dims_of(move.results) == [c.layout.shard_shape])


def pixels(number):
    return round(number, 1)
