"""A simulation as a film: an image of each moment, which a page shows one after another."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import numpy as jnp

from shardlab._arguments import whole
from shardlab.pictures.svg import Picture, escape, figure, row

__all__ = ["film"]

# px: the longer side of a frame in a row of all; a page that shows one at a time enlarges it
_SIDE = 198
_MOST = 64  # frames
_COLOURS = 255  # besides that of NaN


def film(
    frames: Sequence[Any],
    titles: Sequence[str],
    description: str,
    *,
    cmap: Any = "RdBu",
    limits: tuple[float, float] | None = None,
    shards: tuple[int, int] = (1, 1),
) -> Picture:
    """Show grids of a simulation as a film, one pixel for each number.

    On a page the reader plays it, or goes from frame to frame; a notebook shows all frames side by
    side. Few colours, as of `plt.get_cmap("RdBu", 9)`, make a small page.

    >>> calm, wave = np.zeros((4, 8)), np.eye(4, 8)
    >>> film([calm, wave], ["step 0", "step 1"], "A wave on a pond.", shards=(2, 4))
    A film of 2 frames, each a grid of 4 × 8 in 2 × 4 shards: step 0, step 1.
    A wave on a pond.

    Args:
      frames: grids of the same shape (height, width), from top to bottom; NaN has the map's colour
        for bad values.
      titles: for each frame the words below it, such as "step 60".
      description: what the film shows, for those who do not see it.
      cmap: a colormap of Matplotlib, or its name; one with a name is reduced to 16 colours.
      limits: the values of its first and last colour; by default the smallest and largest finite
        ones of all frames.
      shards: into how many shards height and width are divided, whose edges are drawn as lines.

    Returns:
      A `Picture`.

    Raises:
      ImportError: Matplotlib is not installed.
      TypeError: `frames` are no numbers.
      ValueError: there are fewer than 2 or more than 64 frames, they are not grids of one shape,
        there is not a title for each, no number is finite or all are equal, the map is unknown or
        has more than 255 colours, or shards do not divide the grid.
    """
    grids = _checked(frames, titles)
    height, width = grids.shape[1:]
    for name, parts, size in zip(("height", "width"), shards, (height, width), strict=True):
        if size % whole("shards", parts):
            raise ValueError(
                f"shards={tuple(shards)} do not divide a grid of {height} × {width}: {parts} "
                f"and {name}"
            )
    finite = grids[np.isfinite(grids)]
    if not finite.size:
        raise ValueError("no frame has a finite number")
    low, high = limits or (finite.min(), finite.max())
    if not low < high:
        raise ValueError(
            f"a film of values from {low:g} to {high:g} has one colour; pass limits=(lowest, "
            "highest)"
        )
    colours = _colours(cmap)
    numbers = np.minimum(
        (np.clip(grids, low, high) - low) / (high - low) * (len(colours) - 1), len(colours) - 2
    )
    numbers = np.where(np.isnan(grids), len(colours) - 1, np.nan_to_num(numbers)).astype("uint8")
    scale = _SIDE / max(height, width)
    box = f'width="{scale * width:g}" height="{scale * height:g}"'
    edges = [
        f"M0 {scale * height * i / shards[0]:g}h{scale * width:g}" for i in range(1, shards[0])
    ]
    edges += [
        f"M{scale * width * i / shards[1]:g} 0v{scale * height:g}" for i in range(1, shards[1])
    ]
    lines = (
        [f'<path d="{"".join(edges)}" stroke="#4d4d4d" stroke-width=".5" fill="none"/>']
        if edges
        else []
    )
    drawn = [
        figure(
            [
                f'<image {box} href="{_png(pixels, colours)}" style="image-rendering:pixelated"/>',
                *lines,
            ],
            scale * width,
            scale * height,
            f"{title}, frame {number} of {len(grids)}",
            description,
            escape(title),
            growth=2.4,
        )
        for number, (pixels, title) in enumerate(zip(numbers, titles, strict=True), 1)
    ]
    divided = f" in {shards[0]} × {shards[1]} shards" if max(shards) > 1 else ""
    about = (
        f"A film of {len(grids)} frames, each a grid of {height} × {width}{divided}: "
        f"{', '.join(titles)}."
    )
    return Picture(
        row("".join(drawn), f'class="shardlab" data-steps="{len(grids)}"'),
        f"{about}\n{description}",
    )


def _checked(frames, titles):
    """The frames as one array of floats."""
    if not 2 <= len(frames) <= _MOST:
        raise ValueError(f"a film has from 2 to {_MOST} frames, not {len(frames)}")
    if len(titles) != len(frames):
        raise ValueError(
            f"there are {len(frames)} frames and {len(titles)} titles; a film has a title for "
            "each frame"
        )
    grids = [np.asarray(frame) for frame in frames]
    for number, grid in enumerate(grids):
        if not any(jnp.issubdtype(grid.dtype, kind) for kind in (jnp.floating, jnp.integer, bool)):
            raise TypeError(f"frame {number} is of {grid.dtype}; a film shows real numbers")
        if grid.ndim != 2 or grid.shape != grids[0].shape or not grid.size:
            raise ValueError(
                f"frame {number} has shape {grid.shape}; all need one shape, such as {(192, 192)}"
            )
    return np.stack(grids).astype("float64")


def _colours(cmap):
    """The colours of a map as rows of red, green, blue and alpha from 0 to 255, the last of them
    for NaN.
    """
    try:
        import matplotlib
    except ImportError:
        raise ImportError("a film needs matplotlib: pip install matplotlib") from None
    if isinstance(cmap, str):
        if cmap not in matplotlib.colormaps:
            raise ValueError(
                f"Matplotlib has no colormap {cmap!r}; use one such as 'RdBu', 'viridis' or 'magma'"
            )
        cmap = matplotlib.colormaps[cmap].resampled(16)
    if cmap.N > _COLOURS:
        raise ValueError(
            f"the colormap {cmap.name!r} has {cmap.N} colours, more than {_COLOURS}; use "
            ".resampled(16)"
        )
    return np.concatenate([cmap(np.arange(cmap.N), bytes=True), [cmap(np.nan, bytes=True)]])


def _png(pixels, colours):
    """An image with a palette, as an address that holds it."""
    from PIL import Image

    image = Image.fromarray(pixels, "P")
    image.putpalette(colours.astype("uint8").tobytes(), "RGBA")
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
