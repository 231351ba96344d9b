"""Draw arrays, meshes, products, programs, memory and time: every device has one colour and its
number printed.

A picture is made in two steps: `shardlab.describe` or `shardlab.follow` says in plain data which
device holds what, and this module turns that into inline SVG for notebooks and into text for
consoles.

How to read a picture of an array: the last dimension runs to the right, the one before it down,
earlier ones from slab to slab. Each tile is the shard of one device, each replica of an array is
drawn separately because each takes memory, and shards of partial sums are hatched. The arrows
beside the tiles are the mesh axes over which a dimension is sharded.

How to read a picture of a collective: the devices stand side by side, each above what it holds.
Data keeps the colour of the device that it came from, a sum is hatched in the colours of all its
terms, what changed since the last frame has a bold outline, and an empty slot a dotted one. An
arrow leads from each device that sent something to the device that got it, with what was sent on
it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from shardlab.arrays.layout import MeshLayout, describe
from shardlab.pictures.arrays import array_of, array_panel, mesh_panel, options_by_name
from shardlab.pictures.backward import draw_backward
from shardlab.pictures.charts import bars, timeline
from shardlab.pictures.chunks import draw_all_reduce, flow_panel
from shardlab.pictures.films import film
from shardlab.pictures.interactive import interactive_bars
from shardlab.pictures.mapped import draw_shard_map
from shardlab.pictures.products import draw_matmul
from shardlab.pictures.svg import PALETTE, Picture, row
from shardlab.pictures.torus import draw_torus
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
    "film",
    "interactive_bars",
    "timeline",
]


def draw(
    *things: Any,
    shape: Sequence[int] | None = None,
    dims: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    partial: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    **named: Any,
) -> Picture:
    """Draw layouts: which device stores which shard.

    `draw(x)` draws one array, `draw(before=x, after=y)` two side by side with their names, and
    `draw(mesh)` a mesh. `draw(sharding, shape=(4, 16))` draws an array that does not exist, and
    `draw(follow(program, mesh))` what a program communicates, step by step. Below each array stand
    its type and its local shape: on a mesh of 2 x 4 devices with axes x and y, `f32[4@x, 16]` has
    the local shape (4/2, 16) = (2, 16).

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
      dims: names of the dimensions, such as `{"A": "MJ", "B": "JN"}`; for a single thing also
        `"MJ"` alone.
      partial: arrays of which every device along a mesh axis holds partial sums, and that axis (or
        a tuple of axes), such as `{"C": "d"}`; for a single thing also `"d"` alone. Their tiles are
        hatched. An array whose spec has unreduced axes needs no entry.
      **named: the same as *things, each drawn with its name.

    Returns:
      A `Picture`. As the last expression of a cell it is shown as SVG; printed, it is box drawing.

    Raises:
      TypeError, ValueError: as `describe` does; or `dims` or `partial` name an array that is not
        drawn, have not one name for each dimension, or name an axis that the mesh does not have or
        that already shards the array.
    """
    if not things and not named:
        raise TypeError("draw() needs something to draw, such as draw(x) or draw(mesh)")
    labelled = [("", array) for array in things] + list(named.items())
    dims = options_by_name("dims", dims, labelled, 'such as dims={"A": "MJ"}')
    partial = options_by_name("partial", partial, labelled, 'such as partial={"C": "d"}')
    panels = []
    for name, array in labelled:
        if isinstance(array, Flow):
            if shape is not None:
                raise TypeError("shape= is for shardings; a Flow has its own")
            panel = flow_panel(name, array)
        elif isinstance(array, (Mesh, AbstractMesh, MeshLayout)):
            panel = mesh_panel(name, describe(array))
        else:
            panel = array_panel(
                array_of(name, array, shape, dims.pop(name, None), partial.pop(name, None))
            )
        panels.append(panel)
    for option, left in (("dims", dims), ("partial", partial)):
        if left:
            raise TypeError(
                f"{option}= is for arrays, and {next(iter(left)) or 'what is drawn'!r} is none"
            )
    return Picture(
        row("".join(html for html, _ in panels)), "\n\n".join(words for _, words in panels)
    )
