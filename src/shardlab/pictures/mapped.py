"""Draw `shard_map`: the global arrays, what each device gets, and what the results are put together
from.
"""

from collections.abc import Callable
from textwrap import wrap
from typing import Any

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardlab.arrays.layout import counted, describe, spec_text
from shardlab.pictures.arrays import DrawnArray, describe_shards, sharding_of, text_grid, text_slabs
from shardlab.pictures.products import MOST_SHEETS, array_sheet, pixels, sheets_of, sheets_within
from shardlab.pictures.svg import WIDTH, Picture, device_tile, escape, figure, rect, row, text

__all__ = ["draw_shard_map"]


def draw_shard_map(
    x: Any,
    in_specs: PartitionSpec | tuple[PartitionSpec, ...],
    out_specs: PartitionSpec | tuple[PartitionSpec, ...],
    result: Any,
    mesh: Mesh | AbstractMesh | None = None,
    body: str | Callable = "f",
) -> Picture:
    """Draw a `jax.shard_map`: in_specs splits the argument into shards, each device runs the body,
    out_specs joins.

    On a mesh of 2 x 4 devices with axes x and y, `draw_shard_map(a, P("x", "y"), P("y"), sums,
    mesh=mesh)` with `a` of shape (8, 16) shows eight shards of shape (8/2, 16/4) = (4, 4); each
    device returns 16/4 = 4 column sums, which are joined along y, and the two devices along x must
    return the same.

    >>> a, columns = jnp.ones((8, 16)), lambda a: a.sum(0)
    >>> specs = {"in_specs": P(None, "y"), "out_specs": P("y")}
    >>> sums = jax.shard_map(columns, mesh=mesh, **specs)(a)
    >>> draw_shard_map(a, **specs, result=sums, mesh=mesh, body="sum(0)")
    argument f32[8, 16@y]
    ┌─────┬─────┬─────┬─────┐
    │ 0 4 │ 1 5 │ 2 6 │ 3 7 │
    └─────┴─────┴─────┴─────┘
    in_specs = P(None, "y") splits the argument into shards of (8, 4), one for each device.
    ┌───┬───┬───┬───┬───┬───┬───┬───┐
    │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │
    └───┴───┴───┴───┴───┴───┴───┴───┘
    Each device runs sum(0) on its own and returns (4,).
    out_specs = P("y") joins them along y into the result; along x, which it does not name, they must be equal.
    result f32[16@y]
    ┌─────┬─────┬─────┬─────┐
    │ 0 4 │ 1 5 │ 2 6 │ 3 7 │
    └─────┴─────┴─────┴─────┘

    Args:
      x: the argument, or a tuple of arguments: anything with a shape and a dtype.
      in_specs: the `PartitionSpec` of the argument, or a tuple of them.
      out_specs: the same for the result.
      result: the result, or a tuple of results: anything with a (global) shape and a dtype.
      mesh: a mesh of at most 8 devices; without it that of the result's or the argument's sharding.
      body: what each device runs: a few letters, or the function itself.

    Returns:
      A `Picture`.

    Raises:
      TypeError: an argument has no shape and dtype, a spec is no `PartitionSpec`, or no mesh is
        given or found.
      ValueError: a spec does not fit its array or the mesh, there is not one spec for each array,
        or the mesh has more than 8 devices.
    """  # noqa: E501
    given = [_tuple(x), _tuple(result)]
    if mesh is None:
        meshes = [
            one.sharding.mesh
            for one in given[1] + given[0]
            if isinstance(sharding_of(one), NamedSharding)
        ]
        if not meshes:
            example = "jax.make_mesh((8,), ('d',), axis_types=(AxisType.Auto,))"
            raise TypeError(f"draw_shard_map() needs a mesh, such as mesh={example}")
        mesh = meshes[0]
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(f"mesh must be a Mesh, not {type(mesh).__name__}; jax.make_mesh makes one")
    devices = describe(mesh).devices
    if len(devices) > 8:
        raise ValueError(
            f"the mesh has {len(devices)} devices, but draw_shard_map() shows at most 8"
        )
    body = body if isinstance(body, str) else getattr(body, "__name__", type(body).__name__)
    sides = []
    for what, arrays, specs in (("argument", given[0], in_specs), ("result", given[1], out_specs)):
        option = "in_specs" if what == "argument" else "out_specs"
        specs = _specs(option, specs, len(arrays), what)
        sides.append(
            [_placed(what, array, spec, mesh) for array, spec in zip(arrays, specs, strict=True)]
        )
        sides.append(f"{option} = {', '.join(map(spec_text, specs))}")
    arguments, in_text, results, out_text = sides
    split = (
        f"splits the {_plural('argument', arguments)} into shards of {_shapes(arguments)}, one "
        "for each device."
    )
    runs = f"Each device runs {body} on its own and returns {_shapes(results)}."
    joins = f"joins them {_joined(results)}."
    return _shard_map_picture(
        arguments, results, devices, body, (in_text, split, runs, out_text, joins)
    )


def _shard_map_picture(arguments, results, devices, body, words):
    in_text, split, runs, out_text, joins = words
    n = len(devices)
    pitch = min(52, WIDTH / n)
    row_left = (WIDTH - n * pitch) / 2
    parts, top = [], 0

    def say(line, bold=False):
        nonlocal top
        for part in wrap(line, 44 if not bold else 40):
            top += 16
            parts.append(text(WIDTH / 2, top - 4, part, size=12, bold=bold))

    def arrows(length=14):
        nonlocal top
        path = "".join(
            f"M{pixels(row_left + (i + 0.5) * pitch):g} {top + 2:g}v{length - 4}m-3 -4l3 4l3 -4"
            for i in range(n)
        )
        parts.append(f'<path d="{path}" fill="none" stroke="currentColor"/>')
        top += length

    def whole(arrays):
        nonlocal top
        share = (WIDTH - 12 * (len(arrays) - 1)) / len(arrays)
        drawn, tallest = [], 0
        for number, array in enumerate(arrays):
            body, width, height, _ = array_sheet(
                array, _sheet_px(array, min(200, share - 50)), 0, top
            )
            drawn.append((body, number * (share + 12) + (share - width) / 2))
            tallest = max(tallest, height)
        parts.extend(
            f'<g transform="translate({pixels(left):g})">{"".join(body)}</g>'
            for body, left in drawn
        )
        top = tallest + 16
        for number, array in enumerate(arrays):
            words = array.type if len(arrays) > 1 else f"{array.name} {array.type}"
            parts.append(text(number * (share + 12) + share / 2, top - 3, words, size=12))

    def on_each_device(arrays):
        nonlocal top
        for array in arrays:
            for i, device in enumerate(devices):
                left = pixels(row_left + i * pitch + 2)
                box = left, top, pixels(pitch - 4), 24
                parts.append(device_tile(box, device, partial=bool(array.partial)))
            top += 27
        top -= 3

    whole(arguments)
    top += 6
    say(in_text, bold=True)
    say(split)
    top += 4
    arrows()
    on_each_device(arguments)
    arrows()
    parts.append(rect(row_left, top, n * pitch, 24, more=' rx="5"'))
    parts.append(text(WIDTH / 2, top + 16.5, body, size=13, bold=True))
    top += 24
    arrows()
    on_each_device(results)
    say(runs)
    top += 6
    say(out_text, bold=True)
    say(joins)
    top += 6
    whole(results)
    title = f"shard_map of {body} on {counted(n, 'device')}"
    description = f"{in_text} {split} {runs} {out_text} {joins} " + " ".join(
        f"{array.name} {array.type}: {describe_shards(array)}" for array in (*arguments, *results)
    )
    caption = f"<code>{escape(in_text)}</code>, <code>{escape(out_text)}</code>"
    lines = []
    for array in arguments:
        lines += [f"{array.name} {array.type}", *text_slabs(array)]
    lines += [f"{in_text} {split}", *text_grid([[[device] for device in devices]]), f"{runs}"]
    lines.append(f"{out_text} {joins}")
    for array in results:
        lines += [f"{array.name} {array.type}", *text_slabs(array)]
    return Picture(row(figure(parts, WIDTH, top, title, description, caption)), "\n".join(lines))


def _sheet_px(array, room):
    """Px of the rows and columns of a global array in a picture of shard_map."""
    sheets, rows, columns = sheets_of(array)
    down, right = (1, 1, *array.layout.shape)[-2:]
    proportion = min(3.0, max(0.8, right / max(down, 1)))
    width = max(room, 26 * columns)
    height = max(width / proportion / 1.6, 22 * rows)
    while len(sheets) <= MOST_SHEETS and not sheets_within(
        len(sheets), rows, columns, width, height
    ):
        height *= 1.1
    return {1: width, 0: height}


def _tuple(value):
    return (
        tuple(value)
        if isinstance(value, (tuple, list)) and not isinstance(value, PartitionSpec)
        else (value,)
    )


def _specs(option, specs, count, what):
    specs = _tuple(specs)
    for spec in specs:
        if not isinstance(spec, PartitionSpec):
            raise TypeError(
                f"{option} must be a PartitionSpec such as P('x', None) or a tuple of them, "
                f"not {spec!r}"
            )
    if len(specs) == 1:
        specs *= count
    if len(specs) != count:
        raise ValueError(f"{option} has {len(specs)} specs, but the number of {what}s is {count}")
    return specs


def _placed(what, array, spec, mesh):
    """An array as a spec of shard_map lays it out, wherever it is stored."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(
            f"the {what} must be an array or have a shape and a dtype, not {type(array).__name__}"
        )
    if len(array.shape) > 2:
        raise ValueError(
            f"draw_shard_map() draws up to two dimensions, but the {what} has shape "
            f"{tuple(array.shape)}"
        )
    layout = describe(NamedSharding(mesh, spec), array.shape, array.dtype)
    return DrawnArray(what, layout, (), (), layout.type)


def _plural(noun, arrays):
    return noun + "s" * (len(arrays) > 1)


def _shapes(arrays):
    return " and ".join(str(array.layout.shard_shape) for array in arrays)


def _joined(arrays):
    """How out_specs joins: along which axes, and along which the devices must agree."""
    sizes = dict(arrays[0].layout.mesh.axes)
    named = [{axis for axes in array.layout.spec for axis in axes} for array in arrays]
    along = [axis for axis in sizes if any(axis in used for used in named)]
    equal = [
        axis for axis, size in sizes.items() if size > 1 and any(axis not in used for used in named)
    ]
    words = f"along {' and '.join(along)} " if along else ""
    words += f"into the {_plural('result', arrays)}"
    return words + (
        f"; along {' and '.join(equal)}, which it does not name, they must be equal"
        if equal
        else ""
    )
