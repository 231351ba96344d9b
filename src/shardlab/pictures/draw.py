"""Draw arrays, meshes, products, programs, memory and time: every device has one colour and its number printed.

A picture is made in two steps: `shardlab.describe` or `shardlab.follow` says in plain data which device
holds what, and this module turns that into inline SVG for notebooks and into text for consoles.

How to read a picture of an array: the last dimension runs to the right, the one before it down, earlier ones from slab
to slab. Each tile is the shard of one device, each replica of an array is drawn separately because each takes memory,
and shards of partial sums are hatched. The arrows beside the tiles are the mesh axes over which a dimension is sharded.

How to read a picture of a collective: the devices stand side by side, each above what it holds. Data keeps the colour
of the device that it came from, a sum is hatched in the colours of all its terms, what changed since the last frame
has a bold outline, and an empty slot a dotted one. An arrow leads from each device that sent something to the device
that got it, with what was sent on it.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from textwrap import wrap
from typing import Any

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardlab._arguments import nearest, whole
from shardlab.arrays.layout import MeshLayout, axes_text, counted, describe, index_text, spec_text
from shardlab.pictures.backward import draw_backward
from shardlab.pictures.charts import bars, timeline
from shardlab.pictures.svg import (
    PALETTE,
    WIDTH,
    Picture,
    arrow_down,
    arrow_right,
    device_tile,
    escape,
    figure,
    haloed,
    ink,
    listed,
    number_text,
    rect,
    row,
    side_by_side,
    stripes,
    text,
    text_width,
)
from shardlab.pictures.torus import draw_torus
from shardlab.programs.collectives import Collectives
from shardlab.programs.flows import Flow

__all__ = [
    "PALETTE",
    "Picture",
    "bars",
    "draw",
    "draw_all_reduce",
    "draw_backward",
    "draw_matmul",
    "draw_shard_map",
    "draw_torus",
    "timeline",
]

_DRAWN_IN_FULL = 64  # devices; a larger layout is summarised
_TILE_W, _TILE_H = 26, 22  # the smallest tile, in px, in which a three-digit number is legible
_WRAP = 12  # tiles in a row, at most, before it is continued below, so that pictures fit a phone
_GAP = 10
_SKIP = None  # stands for tiles left out of a summary


def draw(
    *things: Any,
    shape: Sequence[int] | None = None,
    dims: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    partial: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    **named: Any,
) -> Picture:
    """Draw layouts: which device stores which shard.

    `draw(x)` draws one array, `draw(before=x, after=y)` two side by side with their names, and `draw(mesh)` a mesh.
    `draw(sharding, shape=(4, 16))` draws an array that does not exist, and `draw(follow(program, mesh))` what a
    program communicates, step by step. Below each array stand its type and its local shape: on a mesh of 2 x 4
    devices with axes x and y, `f32[4@x, 16]` has the local shape (4/2, 16) = (2, 16).

    >>> a = jax.device_put(jnp.zeros((4, 16)), NamedSharding(mesh, P("x", "y")))
    >>> draw(a)
    f32[4@x, 16@y]
    ┌───┬───┬───┬───┐
    │ 0 │ 1 │ 2 │ 3 │
    ├───┼───┼───┼───┤
    │ 4 │ 5 │ 6 │ 7 │
    └───┴───┴───┴───┘
    local shape (2, 4), 8 shards on 8 devices, 32 bytes each.

    Args:
      *things: what `shardlab.describe` takes: arrays, shardings, meshes; a `Layout`; or a `Flow`.
      shape: the global shape of the array, where a thing is a sharding.
      dims: names of the dimensions, such as `{"A": "MJ", "B": "JN"}`; for a single thing also `"MJ"` alone.
      partial: arrays of which every device along a mesh axis holds partial sums, and that axis (or a tuple of axes),
        such as `{"C": "d"}`; for a single thing also `"d"` alone. Their tiles are hatched. An array whose spec has
        unreduced axes needs no entry.
      **named: the same as *things, each drawn with its name.

    Returns:
      A `Picture`. As the last expression of a cell it is shown as SVG; printed, it is box drawing.

    Raises:
      TypeError, ValueError: as `describe` does; or `dims` or `partial` name an array that is not drawn, have not one
        name for each dimension, or name an axis that the mesh does not have or that already shards the array.
    """
    if not things and not named:
        raise TypeError("draw() needs something to draw, such as draw(x) or draw(mesh)")
    labelled = [("", thing) for thing in things] + list(named.items())
    dims = _by_name("dims", dims, labelled, 'such as dims={"A": "MJ"}')
    partial = _by_name("partial", partial, labelled, 'such as partial={"C": "d"}')
    panels = []
    for name, thing in labelled:
        if isinstance(thing, Flow):
            if shape is not None:
                raise TypeError("shape= is for shardings; a Flow has its own")
            panel = _flow_panel(name, thing)
        elif isinstance(thing, (Mesh, AbstractMesh, MeshLayout)):
            panel = _mesh_panel(name, describe(thing))
        else:
            panel = _array_panel(_array(name, thing, shape, dims.pop(name, None), partial.pop(name, None)))
        panels.append(panel)
    for option, left in (("dims", dims), ("partial", partial)):
        if left:
            raise TypeError(f"{option}= is for arrays, and {next(iter(left)) or 'what is drawn'!r} is none")
    return Picture(row("".join(html for html, _ in panels)), "\n\n".join(words for _, words in panels))


def draw_matmul(
    A: Any,
    B: Any,
    C: Any,
    dims: Sequence[str] = "MJN",
    partial: Sequence[str] | None = None,
    sends: Collectives | None = None,
) -> Picture:
    """Draw a matrix product `A[M, J] · B[J, N] = C[M, N]` in one row, with the contracting dimension marked.

    Each array is drawn to one scale. A tile of one device has the device's colour; in a tile of which several devices
    hold replicas, or partial sums, each of them has a small tile of its own. With `A` of type `f32[16, 32@d]` and `B`
    of type `f32[32@d, 24]` on eight devices, each device multiplies (16, 32/8) by (32/8, 24) and obtains partial sums
    of the local shape (16, 24). With `sends=collectives(jnp.matmul, A, B)`, the collectives of the compiled product are
    arrows: from an operand down to what an all-gather makes of it, and from the partial sums of C down to C.

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
      A, B, C: arrays, or anything else with a shape, a dtype and a sharding; or `Layout`s. Of two dimensions each.
      dims: the names of the three dimensions, such as "MJN"; the second is the contracting dimension.
      partial: the mesh axis, or a tuple of axes, along which every device holds partial sums of C.
      sends: what `shardlab.collectives` says of the product.

    Returns:
      A `Picture`.

    Raises:
      TypeError: an argument is no array or has no sharding.
      ValueError: the shapes do not fit a product, `dims` has not three names, there are more than 64 devices or more
        than 16 shards along a dimension, or `partial` is not an axis that may hold partial sums.
    """
    names = _dim_names(dims, 3, "A[M, J] · B[J, N] = C[M, N]")
    rows, inner, columns = names
    of = {"A": (rows, inner), "B": (inner, columns), "C": (rows, columns)}
    arrays = []
    for (name, pair), thing in zip(of.items(), (A, B, C), strict=True):
        if len(getattr(thing, "shape", "MN")) != 2:
            raise ValueError(f"draw_matmul() multiplies matrices, but {name} has shape {tuple(thing.shape)}")
        arrays.append(_array(name, thing, None, pair, partial if name == "C" else None))
        _check_drawable(arrays[-1].layout, f"draw_matmul() draws {name}")
    a, b, c = (array.layout.shape for array in arrays)
    if a[1] != b[0]:
        raise ValueError(f"A of shape {a} has {a[1]} columns but B of shape {b} has {b[0]} rows; both are {inner}")
    if c != (a[0], b[1]):
        raise ValueError(f"A of shape {a} times B of shape {b} has shape {(a[0], b[1])}, but C has shape {c}")
    stages, said = _stages(arrays, map(_sharding, (A, B, C)), sends)
    across = _extents([array for held, _ in stages for array in held], {rows: a[0], inner: a[1], columns: b[1]})
    signs = ("", "·", "=")
    figures = [_product_figure(*stage, sign, across, inner) for stage, sign in zip(stages, signs, strict=True)]
    formula = f"A[{rows}, {inner}] · B[{inner}, {columns}] = C[{rows}, {columns}]"
    multiplied = [stages[0][0][-1], stages[1][0][-1], stages[2][0][0]]
    sums = multiplied[2].partial
    held = f" Each device holds partial sums of C over {axes_text(sums)}." if sums else ""
    words = " ".join([f"{formula}. The contracting dimension is {inner}.{held}", *said])
    html = f'<div style="flex:0 0 100%;font-size:.85em">{escape(words)}</div>'
    blocks = ["\n".join([array.type, *_text_slabs(array), array.short]) for array in multiplied]
    align = "flex-end" if len(stages[2][0]) == 1 else "flex-start"
    return Picture(row("".join(figures) + html, gap=1, align=align), f"{side_by_side(blocks, '·=')}\n{words}")


def draw_shard_map(
    x: Any,
    in_specs: PartitionSpec | tuple[PartitionSpec, ...],
    out_specs: PartitionSpec | tuple[PartitionSpec, ...],
    result: Any,
    mesh: Mesh | AbstractMesh | None = None,
    body: str | Callable = "f",
) -> Picture:
    """Draw a `jax.shard_map`: in_specs splits the argument into shards, each device runs the body, out_specs joins.

    On a mesh of 2 x 4 devices with axes x and y, `draw_shard_map(a, P("x", "y"), P("y"), sums, mesh=mesh)` with `a` of
    shape (8, 16) shows eight shards of shape (8/2, 16/4) = (4, 4); each device returns 16/4 = 4 column sums, which are
    joined along y, and the two devices along x must return the same.

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
      TypeError: an argument has no shape and dtype, a spec is no `PartitionSpec`, or no mesh is given or found.
      ValueError: a spec does not fit its array or the mesh, there is not one spec for each array, or the mesh has more
        than 8 devices.
    """
    given = [_tuple(x), _tuple(result)]
    if mesh is None:
        found = [one.sharding.mesh for one in given[1] + given[0] if isinstance(_sharding(one), NamedSharding)]
        if not found:
            raise TypeError("draw_shard_map() needs a mesh, such as mesh=jax.make_mesh((8,), ('d',))")
        mesh = found[0]
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(f"mesh must be a Mesh, not {type(mesh).__name__}; jax.make_mesh makes one")
    devices = describe(mesh).devices
    if len(devices) > 8:
        raise ValueError(f"the mesh has {len(devices)} devices, but draw_shard_map() shows at most 8")
    body = body if isinstance(body, str) else getattr(body, "__name__", type(body).__name__)
    sides = []
    for what, arrays, specs in (("argument", given[0], in_specs), ("result", given[1], out_specs)):
        option = "in_specs" if what == "argument" else "out_specs"
        specs = _specs(option, specs, len(arrays), what)
        sides.append([_placed(what, array, spec, mesh) for array, spec in zip(arrays, specs, strict=True)])
        sides.append(f"{option} = {', '.join(map(spec_text, specs))}")
    arguments, in_text, results, out_text = sides
    split = f"splits the {_plural('argument', arguments)} into shards of {_shapes(arguments)}, one for each device."
    runs = f"Each device runs {body} on its own and returns {_shapes(results)}."
    joins = f"joins them {_joined(results)}."
    return _shard_map_picture(arguments, results, devices, body, (in_text, split, runs, out_text, joins))


def draw_all_reduce(flows: Iterable[Flow], nbytes: int) -> Picture:
    """Draw ring all-reduces on several numbers of devices, and count the bytes that each device sends.

    With an array of 4,096 bytes on 4 devices each device has 4 blocks of 1,024 bytes and sends 2 (4 - 1) = 6 of them,
    together 6,144 bytes. On a page the reader chooses the number of devices and the bytes of the array, and goes from
    step to step; a notebook shows the first flow.

    Args:
      flows: for each number of devices n what `follow(program, mesh, chunks=n, steps=2 * (n - 1))` returned.
      nbytes: how many bytes the array has at first.

    Returns:
      A `Picture`.

    Raises:
      TypeError: an element of `flows` is no `Flow`.
      ValueError: there are not at least two flows, two have the same number of devices, one is no ring all-reduce in
        which each device sends one block in each step, or `nbytes` is not a whole number of at least 1.
    """
    flows, nbytes = list(flows), int(whole("nbytes", nbytes))
    for flow in flows:
        if not isinstance(flow, Flow):
            raise TypeError(f"draw_all_reduce() draws flows, which follow() returns, not {type(flow).__name__}")
        _check_all_reduce(flow)
    if len({len(flow.devices) for flow in flows}) < max(2, len(flows)):
        raise ValueError("draw_all_reduce() compares different numbers of devices, such as flows of 2, 4 and 8 devices")
    html, words = _flow_panel("", flows[0], flows[1:])
    n = len(flows[0].devices)
    block, total = number_text(nbytes / n), number_text(2 * (n - 1) * nbytes / n)
    sent = f"Each of {n} devices sends {2 * (n - 1)} blocks of {block} bytes: {total} bytes"
    sent += f", which is 2 × ({n} - 1) / {n} × {nbytes:,}."
    note = f'<p data-counter="" style="flex:0 0 100%;margin:0;font-size:.85em">{sent}</p>'
    html = html.replace("data-steps=", f'data-bytes="{nbytes}" data-steps=', 1).removesuffix("</div>") + note + "</div>"
    return Picture(html, f"{words}\n\n{sent}")


def _check_all_reduce(flow):
    n = len(flow.devices)
    everyone = [(place, slot) for place in range(n) for slot in range(flow.chunks)]
    done = flow.chunks == n and all(
        flow.frames[-1].slots[place][slot] == tuple((owner, slot, 1) for owner in range(n)) for place, slot in everyone
    )
    senders = [sorted(source for (source, _), _ in frame.sends) for frame in flow.frames[1:]]
    if not done or senders != [list(range(n))] * (2 * (n - 1)):
        raise ValueError(
            f"a ring all-reduce on {n} devices has {n} blocks on each, whose sums are complete after "
            f"{2 * (n - 1)} steps, and in each step every device sends one block; this flow does not"
        )


# --- What is drawn: arrays with names, dimensions and partial sums -----------------------------------------------


@dataclass(frozen=True)
class _Array:
    """An array to draw: its layout, the names of its dimensions, and the mesh axes of its partial sums."""

    name: str
    layout: object
    dims: tuple
    partial: tuple
    type: str

    @property
    def terms(self):
        """How many partial sums make an element."""
        return math.prod(size for axis, size in self.layout.mesh.axes if axis in self.partial) if self.partial else 1

    @property
    def summary(self):
        """The local shape, and how many shards, replicas, partial sums, devices and bytes there are."""
        words = str(self.layout).split(": ", 1)[1]
        if not self.partial:
            return words
        replicas = self.layout.replicas // self.terms
        shards, rest = words.split(" × ", 1)
        kept = f" × {replicas:,} replicas" if replicas > 1 else ""
        return f"{shards} × {self.terms:,} partial sums{kept} on {rest.split(' on ', 1)[1]}"

    @property
    def short(self):
        """The local shape alone, and what the devices hold if not each its own shard."""
        replicas = self.layout.replicas // self.terms
        words = f"local shape {self.layout.shard_shape}"
        words += f", {self.terms:,} partial sums" if self.partial else ""
        return words + (f", {replicas:,} replicas" if replicas > 1 else "")

    def labels(self):
        """For the last two dimensions what stands beside them, and whether an axis shards them: (rows, columns)."""
        spec = self.layout.spec or ((),) * len(self.layout.shape)
        named = self.dims or ("",) * len(self.layout.shape)
        found = []
        for size, axes, dim in zip(self.layout.shape, spec, named, strict=True):
            over = axes_text(axes)
            words = f"{dim}={size}" + (f"@{over}" if axes else "") if dim else over
            found.append((words, bool(axes)))
        return (("", False), ("", False), *found)[-2:]


def _array(name, thing, shape, dims, partial):
    """What `draw` and `draw_matmul` were given, checked."""
    given = describe(thing, shape)
    kind, unreduced = given.type, given.unreduced
    layout = replace(given, unreduced=())  # `_Array` counts the partial sums, also those that only the caller knows
    if dims is not None:
        dims = _dim_names(dims, len(layout.shape), f"{name or 'the array'} of shape {layout.shape}")
    partial = tuple(partial) if isinstance(partial, (tuple, list, set, frozenset)) else (partial,) if partial else ()
    partial = tuple(dict.fromkeys((*unreduced, *partial)))
    if partial and layout.mesh is None:
        raise ValueError(f"partial sums are held along a mesh axis, but {name or 'the array'} is placed on no mesh")
    for axis in partial:
        known = [one for one, _ in layout.mesh.axes]
        if axis not in known:
            raise ValueError(f"the mesh has no axis {axis!r} for partial sums, only {known}{nearest(axis, known)}")
        if axis in [one for axes in layout.spec for one in axes]:
            raise ValueError(
                f"{name or 'the array'} of type {layout.type} is sharded over {axis!r}, so its devices along {axis!r} "
                "hold different elements, not partial sums of the same"
            )
    return _Array(name, layout, dims, partial, kind)


def _by_name(option, given, labelled, example):
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
            raise ValueError(f"{option}= names {name!r}, but drawn are {names}{nearest(name, names)}")
    return dict(given)


def _dim_names(dims, count, of):
    try:
        names = tuple(str(dim) for dim in dims)
    except TypeError:
        raise TypeError(f"the names of dimensions are a text or a sequence of texts, not {dims!r}") from None
    if len(names) != count or not all(names):
        raise ValueError(f"{of} needs {count} names of dimensions, not {len(names)}: {dims!r}")
    return names


def _check_drawable(layout, what):
    if len(layout.shards) > _DRAWN_IN_FULL:
        raise ValueError(f"{what} on at most {_DRAWN_IN_FULL} devices, not {len(layout.shards):,}; draw() summarises")


def _sharding(thing):
    return getattr(thing, "sharding", None)


@dataclass(frozen=True)
class _Block:
    """One tile: its device, and its extent down and to the right in elements."""

    device: int
    down: int
    right: int
    index: tuple


def _slabs(layout):
    """The array as slabs of rows of tiles: [(leading slices, [replica][row][column] -> _Block)]; _SKIP is left out."""
    blocks, slices = {}, {}
    for shard in layout.shards:
        *_, down, right = ((0, 1), (0, 1), *shard.index)
        *leading, row, column = (0, 0, *shard.position)[-max(2, len(shard.position)) :]
        block = _Block(shard.device, down[1] - down[0], right[1] - right[0], shard.index)
        blocks[shard.replica, tuple(leading), row, column] = block
        slices[tuple(leading)] = shard.index[: len(leading)]
    replicas, leading, rows, columns = (sorted({key[i] for key in blocks}) for i in range(4))
    # A summary shows the first tiles and the last along each dimension, and the first replica alone.
    if len(layout.shards) > _DRAWN_IN_FULL:
        replicas = replicas[:1]
        leading, rows, columns = map(_first_and_last, (leading, rows, columns))

    def grid(replica, slab):
        return [[blocks.get((replica, slab, row, column)) for column in columns] for row in rows]

    return [
        (slices.get(slab, _SKIP), _SKIP if slab is _SKIP else [grid(replica, slab) for replica in replicas])
        for slab in leading
    ]


def _first_and_last(values):
    return values if len(values) <= 3 else [values[0], _SKIP, values[-1]]


# --- SVG of arrays and meshes ------------------------------------------------------------------------------------


def _array_panel(array):
    layout = array.layout
    slabs = _slabs(layout)
    replicas = slabs[0][1]
    rows, columns = len(replicas[0]), len(replicas[0][0])
    depth = 7 if len(layout.shape) > 2 else 0
    (down, _), (right, _) = array.labels()
    margin = round(text_width(down)) + 15 if down else 0
    tile_w, tile_h, wrapped = _tile_size(layout, len(replicas), len(slabs), rows, columns, WIDTH - margin, depth)

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
                body, w, h = _grid(
                    grids[replica], left, top + above + depth, tile_w, tile_h, depth, wrapped, says, array
                )
                parts.append(body)
                if not labelled:
                    parts += _labels(left, top + above + depth, w, h, wrapped, (tile_w, tile_h), rows, array)
                    labelled = True
                label = index_text(index)
                if index and 6 * len(label) <= w + 8:  # the tips of the tiles say it in any case
                    parts.append(text(left + w / 2, top + above + depth + h + 13, label, size=12))
                left += w + depth + _GAP
                height = max(height, above + h + depth + (16 if index else 0))
            width = max(width, left - _GAP)
            top += height + _GAP

    title = f"{_prefix(array.name)}{array.type} on {counted(len(layout.shards), 'device')}"
    of_replica = f" of replica 1 of {layout.replicas:,}" if layout.replicas > 1 else ""
    left_out = f" Drawn: the first and the last tiles{of_replica}." if len(layout.shards) > _DRAWN_IN_FULL else ""
    summary = f"{array.summary}.{left_out}"
    caption = f"{_name_html(array.name)}<code>{escape(array.type)}</code><br>{escape(summary)}"
    said = "\n".join([f"{_prefix(array.name)}{array.type}", *_text_slabs(array), summary])
    return figure(parts, width, top - _GAP, title, _describe_shards(array), caption), said


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
        kept = tuple(axis for axis in spare if axis not in array.partial)
        arrow = "↓" if slabs > 1 else "→"
        for what, axes in (("partial sums", array.partial), ("replicas", kept)):
            if axes or (what == "replicas" and not spare):
                words.append(f"{what} over {axes_text(axes)} {arrow}" if axes else f"{what} {arrow}")
    return ", ".join(words)


def _labels(left, top, width, height, wrapped, tile, rows, array):
    """Names of dimensions and mesh axes beside a sheet; an arrow where an axis shards the dimension."""
    (down, down_arrow), (right, right_arrow) = array.labels()
    depth = 7 if len(array.layout.shape) > 2 else 0
    found = []
    if right:
        length = min(width, wrapped[1] * tile[0])
        if right_arrow:
            found.append(arrow_right(left + depth, top - depth - 8, length, right))
        else:
            found.append(text(left + depth + length / 2, top - depth - 4, right, size=12))
    if down:
        length = min(height, wrapped[0] * tile[1])
        if down_arrow:
            found.append(arrow_down(left - 7, top, length, down))
        else:
            found.append(text(left - 8, top + length / 2 + 4, down, size=12, anchor="end"))
    return found


def _tile_size(layout, replicas, slabs, rows, columns, room, depth):
    """Tile width and height in px, and rows and columns before a sheet is continued: legible, and as wide as fits."""
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


def _grid(grid, left, top, tile_w, tile_h, depth, wrapped, says, array=None):
    """One sheet of tiles as SVG, rows and columns continued beside or below where they are too many."""
    parts, far_right, far_down = [], 0, 0
    rows, columns = len(grid), len(grid[0])
    band_height = wrapped[0] * tile_h + _GAP / 2
    stack_width = wrapped[1] * tile_w + _GAP / 2
    widest = max((b.right for row in grid for b in row if b), default=1) or 1
    tallest = max((b.down for row in grid for b in row if b), default=1) or 1
    if depth:  # the two visible sides of a slab
        w, h = columns * tile_w, rows * tile_h
        side = f"M{left:g} {top:g}l{depth} -{depth}h{w:g}v{h:g}l-{depth} {depth}M{left + w:g} {top:g}l{depth} -{depth}"
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
            partial = bool(array and array.partial)
            parts.append(device_tile(x, y, w, h, block.device, tip, partial=partial, says=says[block.device]))
    return "".join(parts), far_right, far_down


def _mesh_panel(name, mesh):
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
        body, w, h = _grid(grid, left + margin_left, top + margin_top, tile, tile, 0, wrapped, says)
        parts.append(body)
        if names:
            parts.append(arrow_right(left + margin_left, top + 8, w, f"{names[-1]}={sizes[-1]}"))
        if down:
            parts.append(arrow_down(left + margin_left - 7, top + margin_top, h, down))
        where = ", ".join(f"{axis}={place}" for axis, place in zip(names, slab, strict=False))
        if where:
            parts.append(text(left + margin_left + w / 2, top + margin_top + h + 14, where, size=12))
            lines.append(where)
        lines += _text_grid([[[block.device] if block else None for block in row] for row in grid])
        width = max(width, left + margin_left + w)
        height = max(height, top + margin_top + h + (18 if where else 0))

    shape = " x ".join(f"{axis}={size}" for axis, size in mesh.axes)
    title = f"{_prefix(name)}mesh {shape}, {len(mesh.devices):,} devices"
    said = listed(
        f"device {id} at ({', '.join(map(str, place[-len(names) :] if names else ()))})" for place, id in device.items()
    )
    caption = f"{_name_html(name)}mesh <code>{escape(shape)}</code>, {len(mesh.devices):,} devices"
    return figure(parts, width, height, title, said, caption), "\n".join([title, *lines])


# --- SVG of products and of shard_map ----------------------------------------------------------------------------


def _holders(array):
    """The devices of each tile: {(row, column): [devices]}, and how many rows and columns of tiles there are."""
    held = {}
    for shard in array.layout.shards:
        held.setdefault((0, 0, *shard.position)[-2:], []).append(shard.device)
    return held, max(r for r, _ in held) + 1, max(c for _, c in held) + 1


def _extents(arrays, sizes):
    """Px for each dimension, the same in every array: in proportion, and enough for the numbers of the devices."""
    largest = max(sizes.values()) or 1
    px = {dim: max(70.0, 112 * (size / largest) ** 0.5) for dim, size in sizes.items()}
    for array in arrays:
        held, rows, columns = _holders(array)
        if max(rows, columns) > 16:
            raise ValueError(f"draw_matmul() draws at most 16 shards along a dimension, but {array.name} has more")
        down, right = array.dims
        least = 22 if max(array.layout.devices) < 10 else 26
        px[down], px[right] = max(px[down], 22 * rows), max(px[right], least * columns)
        each = max(map(len, held.values()))
        while each <= 16 and not _arrangement(each, px[right] / columns, px[down] / rows):
            px[down], px[right] = 1.1 * px[down], 1.1 * px[right]
    return px


def _arrangement(count, width, height):
    """Columns and rows of small tiles, as square as fits, with room for a number in each; None if they do not fit."""
    if count == 1:
        return 1, 1
    fits = []
    for columns in range(1, count + 1):
        rows = -(-count // columns)
        w, h = (width - 4) / columns, (height - 4) / rows
        if w >= 22 and h >= 18:
            fits.append((columns * rows - count, abs(w / h - 1.3), columns, rows))
    return min(fits)[2:] if fits else None


def _sheet(array, px, margin=0, top=0, marked=""):
    """An array drawn once, its replicas as small tiles inside a tile: parts, width, height, and the middle line."""
    held, rows, columns = _holders(array)
    (down, down_arrow), (right, right_arrow) = array.labels()
    named = array.dims or ("", "")
    row_dim, column_dim = named[-2:] if len(named) > 1 else ("", named[-1])
    width, height = px[column_dim or 1], px[row_dim or 0]
    left = margin + (round(text_width(down)) + 17 if down else 0)
    y0 = top + (18 if right else 0)
    parts = []
    for words, is_arrow, dim, draw_arrow, start, length in (
        (right, right_arrow, column_dim, arrow_right, (left, y0 - 9), width),
        (down, down_arrow, row_dim, arrow_down, (left - 8, y0), height),
    ):
        bold = bool(marked) and dim == marked
        if not words:
            continue
        if is_arrow:
            parts.append(draw_arrow(*start, length, words, bold=bold))
        elif draw_arrow is arrow_right:
            parts.append(text(left + length / 2, y0 - 5, words, size=12, bold=bold))
        else:
            parts.append(text(left - 9, y0 + length / 2 + 4, words, size=12, anchor="end", bold=bold))
        if bold:
            edge = (
                f"M{left:g} {y0 - 2:g}h{length:g}" if draw_arrow is arrow_right else f"M{left - 2:g} {y0:g}v{length:g}"
            )
            parts.append(f'<path d="{edge}" stroke="currentColor" stroke-width="4"/>')
    w, h = width / columns, height / rows
    for (r, c), devices in sorted(held.items()):
        x, y = left + c * w, y0 + r * h
        partial = bool(array.partial)
        if len(devices) == 1:
            parts.append(device_tile(x, y, w, h, devices[0], partial=partial))
            continue
        parts.append(rect(x, y, w, h))
        arrangement = _arrangement(len(devices), w, h) if len(devices) <= 16 else None
        if not arrangement:
            parts.append(text(x + w / 2, y + h / 2 + 4, f"{len(devices)}×", size=12))
            continue
        across, lines = arrangement
        small_w, small_h = (w - 4) / across, (h - 4) / lines
        for n, device in enumerate(devices):
            small = x + 2 + n % across * small_w + 1, y + 2 + n // across * small_h + 1
            parts.append(device_tile(*map(_px, (*small, small_w - 2, small_h - 2)), device, partial=partial, size=12))
    return parts, max(left + width, left + text_width(right) if right else 0), y0 + height, y0 + height / 2


def _product_figure(held, moves, sign, across, inner):
    """An array of a product; below it, behind an arrow for each collective, what the collective makes of it."""
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
                parts.append(text(margin + 26, bottom + 21 + 16 * line, words, size=12, anchor="start", bold=not line))
                width = max(width, margin + 26 + text_width(words))
            bottom += length + 6
        sheet, right, bottom, middle = _sheet(array, across, margin, bottom, marked=inner)
        parts += sheet
        width = max(width, right)
        if sign and number == (0 if sign == "=" else len(held) - 1):
            parts.append(text(10, middle + 8, sign, size=24))
    last = held[-1]
    types = ", then ".join(array.type for array in held)
    title = f"{last.name}: {types} on {counted(len(last.layout.shards), 'device')}"
    caption = f"{_name_html(last.name)}<code>{escape(last.type)}</code><br>{escape(last.short)}"
    said = " Then: ".join(map(_describe_shards, held))
    return figure(parts, width, bottom, title, said, caption, narrow=190, growth=1.2)


def _stages(arrays, shardings, sends):
    """What is held of A, B and C one after the other, with the collectives in between; and the collectives in words."""
    stages, said = [([array], []) for array in arrays], []
    if sends is None:
        return stages, said
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
        said.append(f"{words}; each device sends {'an unknown number of' if move.bytes is None else f'{move.bytes:,}'} "
                    f"bytes{times}.")  # fmt: skip
    for move in reversed(sums):
        held, moves = stages[2]
        held.insert(0, _over_fewer(held[0], meshes[2], move.axes, (*held[0].partial, *move.axes)))
        moves.insert(0, move)
    return stages, said or ["Nothing is sent."]


def _dims_of(types):
    return [tuple(int(size) for size in one.partition("[")[2].rstrip("]").split(",") if size) for one in types]


def _over_fewer(array, mesh, axes, partial=()):
    """An array that is no longer sharded over some axes; along `partial` its devices hold partial sums."""
    spec = [tuple(axis for axis in over if axis not in axes) or None for over in array.layout.spec]
    layout = describe(NamedSharding(mesh, PartitionSpec(*spec)), array.layout.shape, array.layout.dtype)
    return _Array(array.name, layout, array.dims, partial, layout.type)


def _gathered(stages, meshes, move):
    """Which operand an all-gather is of, by shapes and axes, with the result appended to its stages; else None."""
    if move.kind != "all-gather" or not move.axes or move.times != 1:
        return None
    for place in (0, 1):
        held, moves = stages[place]
        if meshes[place] is None or not any(axis in over for over in held[-1].layout.spec for axis in move.axes):
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
    adds = move.kind in ("all-reduce", "reduce-scatter") and move.axes and move.times == 1
    return bool(adds and mesh is not None and _dims_of(move.results) == [c.layout.shard_shape])


def _px(number):
    return round(number, 1)


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
            f"M{_px(row_left + (i + 0.5) * pitch):g} {top + 2:g}v{length - 4}m-3 -4l3 4l3 -4" for i in range(n)
        )
        parts.append(f'<path d="{path}" fill="none" stroke="currentColor"/>')
        top += length

    def whole(arrays):
        nonlocal top
        share = (WIDTH - 12 * (len(arrays) - 1)) / len(arrays)
        drawn, tallest = [], 0
        for number, array in enumerate(arrays):
            body, width, height, _ = _sheet(array, _sheet_px(array, min(200, share - 50)), 0, top)
            drawn.append((body, number * (share + 12) + (share - width) / 2))
            tallest = max(tallest, height)
        parts.extend(f'<g transform="translate({_px(left):g})">{"".join(body)}</g>' for body, left in drawn)
        top = tallest + 16
        for number, array in enumerate(arrays):
            words = array.type if len(arrays) > 1 else f"{array.name} {array.type}"
            parts.append(text(number * (share + 12) + share / 2, top - 3, words, size=12))

    def on_each_device(arrays):
        nonlocal top
        for array in arrays:
            for i, device in enumerate(devices):
                left = _px(row_left + i * pitch + 2)
                parts.append(device_tile(left, top, _px(pitch - 4), 24, device, partial=bool(array.partial)))
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
        f"{array.name} {array.type}: {_describe_shards(array)}" for array in (*arguments, *results)
    )
    caption = f"<code>{escape(in_text)}</code>, <code>{escape(out_text)}</code>"
    lines = []
    for array in arguments:
        lines += [f"{array.name} {array.type}", *_text_slabs(array)]
    lines += [f"{in_text} {split}", *_text_grid([[[device] for device in devices]]), f"{runs}"]
    lines.append(f"{out_text} {joins}")
    for array in results:
        lines += [f"{array.name} {array.type}", *_text_slabs(array)]
    return Picture(row(figure(parts, WIDTH, top, title, description, caption)), "\n".join(lines))


def _sheet_px(array, room):
    """Px of the rows and columns of a global array in a picture of shard_map."""
    held, rows, columns = _holders(array)
    down, right = (1, 1, *array.layout.shape)[-2:]
    proportion = min(3.0, max(0.8, right / max(down, 1)))
    width = max(room, 26 * columns)
    height = max(width / proportion / 1.6, 22 * rows)
    each = max(map(len, held.values()))
    while not _arrangement(each, width / columns, height / rows):
        height *= 1.1
    return {1: width, 0: height}


def _tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) and not isinstance(value, PartitionSpec) else (value,)


def _specs(option, specs, count, what):
    specs = _tuple(specs)
    for spec in specs:
        if not isinstance(spec, PartitionSpec):
            raise TypeError(f"{option} must be a PartitionSpec such as P('x', None) or a tuple of them, not {spec!r}")
    if len(specs) == 1:
        specs *= count
    if len(specs) != count:
        raise ValueError(f"{option} has {len(specs)} specs, but the number of {what}s is {count}")
    return specs


def _placed(what, array, spec, mesh):
    """An array as a spec of shard_map lays it out, wherever it is stored."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(f"the {what} must be an array or have a shape and a dtype, not {type(array).__name__}")
    if len(array.shape) > 2:
        raise ValueError(f"draw_shard_map() draws up to two dimensions, but the {what} has shape {tuple(array.shape)}")
    layout = describe(NamedSharding(mesh, spec), array.shape, array.dtype)
    return _Array(what, layout, (), (), layout.type)


def _plural(noun, arrays):
    return noun + "s" * (len(arrays) > 1)


def _shapes(arrays):
    return " and ".join(str(array.layout.shard_shape) for array in arrays)


def _joined(arrays):
    """How out_specs joins: along which axes, and along which the devices must agree."""
    sizes = dict(arrays[0].layout.mesh.axes)
    named = [{axis for axes in array.layout.spec for axis in axes} for array in arrays]
    along = [axis for axis in sizes if any(axis in used for used in named)]
    equal = [axis for axis, size in sizes.items() if size > 1 and any(axis not in used for used in named)]
    words = f"along {' and '.join(along)} " if along else ""
    words += f"into the {_plural('result', arrays)}"
    return words + (f"; along {' and '.join(equal)}, which it does not name, they must be equal" if equal else "")


# --- SVG of collectives ------------------------------------------------------------------------------------------


def _flow_panel(name, flow, more=()):
    """A figure for each frame; a page may show those marked as steps one by one, also on a ring, and more flows."""
    arrows = [_arrows(flow, number) for number in range(len(flow.frames))]
    lanes = max((1 + lane for of_frame in arrows for *_, lane in of_frame), default=0)  # the same room in each frame
    frames = [_frame_figure(name, flow, number, arrows[number], lanes) for number in range(len(flow.frames))]
    data = json.dumps([_flow_data(one) for one in (flow, *more)], separators=(",", ":"), ensure_ascii=False)
    steps = f'class="shardlab" data-steps="{len(frames)}" data-flow="{escape(data)}"' if len(frames) > 2 else ""
    lines = [_frame_text(flow, frame) for frame in flow.frames]
    return row("".join(frames), steps, "flex-start"), "\n".join([f"{name}:"] * bool(name) + lines)


def _flow_data(flow):
    """A flow for steps.js: its devices with their colours, all blocks once, and the frames with the blocks' numbers."""
    blocks = {(): 0}
    for content in (content for frame in flow.frames for held in frame.slots for content in held):
        blocks.setdefault(content, len(blocks))
    colours = [PALETTE[device % len(PALETTE)] for device in flow.devices]
    return {
        "devices": [[device, colour, ink(colour)] for device, colour in zip(flow.devices, colours, strict=True)],
        "blocks": [[flow.name(content), _owners(content)] if content else ["", []] for content in blocks],
        "frames": [
            {
                "title": frame.title,
                "slots": [[blocks[content] for content in held] for held in frame.slots],
                "sends": [[*source, *target] for source, target in frame.sends],
                "lines": frame.lines,
            }
            for frame in flow.frames
        ],
    }


def _owners(content):
    """The positions of the devices whose chunks are in it."""
    return list(dict.fromkeys(owner for owner, *_ in content))


def _arrows(flow, number):
    """The arrows above the devices of a frame, as (left, right, there, back, lane): what goes each way, how high."""
    spans = {}
    for (source, slot), (target, _) in flow.frames[number].sends:
        if source != target:
            both = spans.setdefault((min(source, target), max(source, target)), ([], []))
            both[source > target].append(flow.frames[number - 1].slots[source][slot])
    found = []
    for (left, right), (there, back) in sorted(spans.items(), key=lambda item: (item[0][1] - item[0][0], item[0])):
        # Above all those between the same devices: the lowest lane in which it meets no other.
        taken = {lane for other, end, _, _, lane in found if other < right and left < end}
        found.append((left, right, there, back, next(lane for lane in range(len(spans)) if lane not in taken)))
    return found


_LANE = 17  # px: from one arrow to the next one above it


def _frame_figure(name, flow, number, arrows, lanes):
    frame, earlier = flow.frames[number], flow.frames[number - 1] if number else None
    n, across, height, gap = len(flow.devices), 46 if len(flow.devices) <= 6 else 34, 26, 6
    slots = max(map(len, frame.slots))
    head = lanes * _LANE + 5 if lanes else 0
    centres = [place * (across + gap) + across / 2 for place in range(n)]
    parts = []
    for left, right, there, back, lane in arrows:
        parts.append(_arrow(flow, centres[left], centres[right], there, back, head - 12 - lane * _LANE, head, lane))
    for place, (device, held) in enumerate(zip(flow.devices, frame.slots, strict=True)):
        left, colour = place * (across + gap), PALETTE[device % len(PALETTE)]
        parts.append(
            f'<circle cx="{left + across / 2:g}" cy="{head + 11:g}" r="11" fill="{colour}" stroke="currentColor"/>'
            + text(left + across / 2, head + 15.5, str(device), size=13, fill=ink(colour))
        )
        before = earlier.slots[place] if earlier else held
        for slot, content in enumerate(held):
            changed = content not in before if len(before) != len(held) else before[slot] != content
            box = left, head + 30 + slot * (height + 3), across, height
            parts.append(_slot(flow, content, *box, changed and content, ' data-slot=""'))
    width, tall = n * (across + gap) - gap, head + 30 + slots * (height + 3)
    title = f"{_prefix(name)}{frame.title}, {counted(n, 'device')}"
    caption = f"{_name_html(name)}{escape(frame.title)}"
    description = listed(
        f"device {device} holds {_held_text(flow, held)}"
        for device, held in zip(flow.devices, frame.slots, strict=True)
    )
    if frame.sends:
        description = f"{_sent_text(flow, frame, earlier)} {description}"
    return figure(parts, width, tall, title, description, caption)


def _arrow(flow, left, right, there, back, y, head, lane):
    """An arrow above the devices, both ways if both send, with what is sent on it, nearest to its sender."""
    aside = max(8 - 4 * lane, 0)  # of the middle of a device: several arrows may begin and end there
    left, right = left + aside, right - aside
    path = f"M{left:g} {head:g}V{y:g}H{right:g}V{head:g}"
    path += "m-3 -4l3 4l3 -4" * bool(there) + f"M{left - 3:g} {head - 4:g}l3 4l3 -4" * bool(back)
    parts = [f'<path d="{path}" fill="none" stroke="currentColor"/>']
    both = bool(there and back)
    width = min(26, (right - left - 8) / (1 + both))
    for contents, part in ((there, 0.27 if both else 0.5), (back, 0.73 if both else 0.5)):
        if len(contents) == 1:
            middle = left + (right - left) * part
            parts.append(_slot(flow, contents[0], _px(middle - width / 2), y - 7, _px(width), 14, False, room=3))
    return f'<g data-sent="">{"".join(parts)}</g>'


def _slot(flow, content, left, top, width, height, changed, more="", room=9):
    """One slot of a device, or what is sent: empty, data of one device, or a sum hatched in its terms' colours."""
    if not content:
        return rect(left, top, width, height, more=f' stroke-dasharray="2 3" opacity=".6"{more}')
    name = flow.name(content)
    colours = [PALETTE[flow.devices[owner] % len(PALETTE)] for owner in _owners(content)]
    several = len(content) > 1 or content[0][2] > 1
    size = round(min(12, (width - room - 5 * several * (room < 9)) / (0.62 * len(name))), 1)
    middle, down = left + width / 2, top + height / 2 + 4.5
    ground, hatch, label = colours[0], "", text(middle, down, name, size=size, fill=ink(colours[0]))
    if several:
        # Each colour has every k-th stripe. Eight colours get narrower ones, so that each shows.
        hatch = stripes(left, top, width, height, colours, 7 if len(colours) < 7 else 5)
        ground, label = "#fff", haloed(middle, down, name, size)
    label = label if size >= 7 else ""
    outline = rect(left, top, width, height, more=' stroke-width="3"' if changed else "")
    box = f'x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
    return f'<g{more}><rect {box} fill="{ground}"/>{hatch}{outline}{label}</g>'


# --- Words -------------------------------------------------------------------------------------------------------


def _prefix(name):
    return f"{name}: " if name else ""


def _name_html(name):
    return f"<strong>{escape(name)}</strong> " if name else ""


def _describe_shards(array):
    layout = array.layout
    if not layout.shape:
        return f"A single number, on each of {len(layout.shards):,} devices."
    copy = "partial sum" if array.terms == layout.replicas else "replica"
    held = "partial sums of " if array.partial else ""
    return listed(
        f"device {shard.device} holds {held}{index_text(shard.index)}"
        + (f" ({copy} {shard.replica + 1})" if layout.replicas > 1 else "")
        for shard in layout.shards
    )


def _shard_text(array, number):
    """What a device holds and why: where it is in the mesh, its slice, and its block along each sharded dimension."""
    layout, shard = array.layout, array.layout.shards[number]
    usual = {1: ("elements",), 2: ("rows", "columns")}
    count = len(layout.shape)
    names = array.dims or usual.get(count) or tuple(f"dimension {dim}" for dim in range(count))
    held = ", ".join(f"{name} {start}:{stop}" for name, (start, stop) in zip(names, shard.index, strict=True))
    words = f"device {shard.device}{_place_text(layout.mesh, number)}: {held or 'the number'}"
    if layout.spec:
        sizes = dict(layout.mesh.axes)
        blocks = ", ".join(
            f"{name} over {axes_text(axes)} → block {block} of {math.prod(sizes[axis] for axis in axes)}"
            for name, axes, block in zip(names, layout.spec, shard.position, strict=True)
            if axes
        )
        spec = (axes if len(axes) > 1 else axes[0] if axes else None for axes in layout.spec)
        words += f" ({spec_text(spec)}: {blocks or 'not sharded'})"
    copies = "partial sums" if array.terms == layout.replicas else "replicas"
    return words + (f", one of {layout.replicas} {copies}" if layout.replicas > 1 else "")


def _place_text(mesh, number):
    """Where the device with that number in the flattened mesh is."""
    if mesh is None or not mesh.axes:
        return ""
    places, rest = [], number
    for axis, size in reversed(mesh.axes):
        rest, place = divmod(rest, size)
        places.insert(0, f"{axis}={place}")
    return f", at {', '.join(places)}"


def _held_text(flow, held):
    owner = "" if flow.chunks > 1 else "the chunk of "
    names = [flow.name(content) if content else "" for content in held]
    return ", ".join((owner if name.isdigit() else "") + name or "nothing" for name in names)


def _sent_text(flow, frame, earlier):
    sent = (
        f"device {flow.devices[source]} sent {_held_text(flow, [earlier.slots[source][slot]])} "
        f"to device {flow.devices[target]}"
        for (source, slot), (target, _) in frame.sends
    )
    return listed(sent, noun="blocks")


def _frame_text(flow, frame):
    cells = [[flow.name(content) if content else "·" for content in held] for held in frame.slots]
    width = max(len(cell) for row in cells for cell in row)
    rows = [
        f"  {device}: {' '.join(f'{cell:<{width}}' for cell in row)}".rstrip()
        for device, row in zip(flow.devices, cells, strict=True)
    ]
    return "\n".join([frame.title, *rows])


# --- Text --------------------------------------------------------------------------------------------------------


def _text_slabs(array):
    """Each tile once, with all devices that hold it; + between the devices of partial sums."""
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
        held = [[owners[at[block.device]] if block else None for block in line] for line in grids[0]]
        lines += _text_grid(held, "+" if array.partial else " ")
    return lines


def _text_grid(cells, between=" "):
    """Box drawing around lists of device numbers; None stands for what a summary leaves out."""
    if len(cells[0]) > 2 * _WRAP:  # a long row is continued below
        return _text_grid([line[:_WRAP] for line in cells], between) + _text_grid(
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
        lines.append("│" + "│".join(f" {text:^{w}} " for text, w in zip(line, widths, strict=True)) + "│")
    return [*lines, rule("└", "┴", "┘")]


def _ids_text(ids, between):
    if len(ids) > 8:
        return f"{ids[0]} {ids[1]} … {ids[-1]} ({len(ids):,} devices)"
    return between.join(map(str, ids))
