"""The links of a TPU slice, coloured by the mesh axis that uses them, for
`shardlab.pictures.draw`.
"""

from dataclasses import dataclass
from itertools import product

from jax.sharding import AbstractMesh, Mesh

from shardlab.arrays.layout import counted
from shardlab.machines.hardware import CHIPS
from shardlab.pictures.svg import (
    PALETTE,
    WIDTH,
    Picture,
    escape,
    figure,
    rect,
    row,
    text,
    text_width,
)
from shardlab.pods.pod import Pod

__all__ = ["draw_torus"]

_NAMES = "xyz"  # of the torus axes


def draw_torus(pod: Pod, mesh: Mesh | AbstractMesh) -> Picture:
    """Draw the chips of a TPU slice and their links, each in the colour of the mesh axis whose
    devices it joins.

    `draw_torus(pod, pod.mesh((4, 4), ("data", "model")))` with `pod = Pod("v5e:4x4")` draws 16
    chips in 4 rows of 4, each with its place in the mesh. Each row has 4 - 1 = 3 links along one
    mesh axis, each column 3 along the other. Where a torus axis closes to a ring, a wrap-around
    link is an arc from its last chip to its first one; that rule is `shardlab.hardware.Chip.rings`.
    A wide line joins neighbours on the mesh axis, a thin one other devices of the axis, and a grey
    one devices that differ along several mesh axes.

    Args:
      pod: a `shardlab.Pod` of TPUs with one device for each chip.
      mesh: a mesh of that pod, as `pod.mesh` returns it.

    Returns:
      A `Picture`. A slice with three axes is drawn as slabs; the links between slabs are said in
      words.

    Raises:
      ValueError: the pod is of GPUs or of chips with several devices, has more than 256 chips, or
        the mesh does not belong to it.
    """
    places = pod.places(mesh)
    if len(set(places)) < len(places) or pod.chip not in CHIPS:
        raise ValueError(
            f"draw_torus() draws chips that are one device each, unlike those of {pod.name}"
        )
    if len(places) > 256:
        raise ValueError(
            f"draw_torus() draws at most 256 chips, but {pod.name} has {len(places):,}"
        )
    sizes = {str(axis): int(size) for axis, size in mesh.shape.items()}
    at = dict(zip(places, product(*map(range, sizes.values())), strict=True))
    links = _links(at, pod.shape, CHIPS[pod.chip].rings(pod.shape), sizes)
    used = [axis for axis in sizes if sizes[axis] > 1]
    colour = dict(zip(used, PALETTE, strict=False))
    parts, top = _key(used, sizes, colour, any(link.axis is None for link in links))
    slabs = range(pod.shape[2]) if len(pod.shape) == 3 else [None]
    abreast = 1 if len(slabs) == 1 else 2
    pitch = (WIDTH / abreast - 40) / max(1, pod.shape[0] - 1)
    pitch = pitch, min(pitch, 40 if abreast == 1 else 34)
    height = (pod.shape[1] - 1) * pitch[1] + 62
    for number, slab in enumerate(slabs):
        left, down = number % abreast * WIDTH / abreast + 20, top + number // abreast * height + 26
        if slab is not None:
            parts.append(
                text(
                    left + (pod.shape[0] - 1) * pitch[0] / 2,
                    down + height - 38,
                    f"z={slab}",
                    size=12,
                )
            )
        parts += _slab(slab, at, links, colour, left, down, pitch)
    bottom = top + -(-len(slabs) // abreast) * height - (0 if abreast == 2 else 16)
    words = f"{_words(links, used)} {_short(links)}."
    title = (
        f"Links of {pod.name}, {len(places)} chips, mesh "
        f"{' x '.join(f'{a}={n}' for a, n in sizes.items())}"
    )
    rows = _rows(at, pod.shape)
    caption = f"<code>{escape(pod.name)}</code>: {escape(_short(links))}"
    html = row(figure(parts, WIDTH, bottom, title, f"{words} {' '.join(rows)}", caption))
    return Picture(html, "\n".join([title, *rows, words]))


@dataclass(frozen=True)
class _Link:
    """A link between the chips at two places of the torus, and the mesh axis along which alone they
    differ.
    """

    start: tuple
    end: tuple
    along: int
    wraps: bool
    axis: str | None
    neighbours: bool


def _links(at, shape, rings, sizes):
    """Every link once: from each chip to the next along each torus axis, and from the last to the
    first of a ring.
    """
    links = []
    for start in at:
        for along, (size, ring) in enumerate(zip(shape, rings, strict=True)):
            wraps = start[along] == size - 1
            if size == 1 or (wraps and not (ring and size > 2)):
                continue
            end = tuple((c + (i == along)) % size if i == along else c for i, c in enumerate(start))
            differ = [
                (axis, a, b) for axis, a, b in zip(sizes, at[start], at[end], strict=True) if a != b
            ]
            axis, neighbours = None, False
            if len(differ) == 1:
                axis, a, b = differ[0]
                neighbours = (a - b) % sizes[axis] in (1, sizes[axis] - 1)
            links.append(_Link(start, end, along, wraps, axis, neighbours))
    return links


def _slab(slab, at, links, colour, left, top, pitch):
    """The chips with a coordinate z, or all, with the links between them."""

    def xy(place):
        return left + place[0] * pitch[0], top + place[1] * pitch[1]

    parts, chips = [], []
    for link in links:
        if link.along == 2 or (slab is not None and link.start[2] != slab):
            continue
        (x, y), (x2, y2) = xy(link.start), xy(link.end)
        path = f"M{x:g} {y:g}L{x2:g} {y2:g}"
        if link.wraps:  # an arc over the row, or beside the column
            bow = 0.42 * pitch[1 - link.along] if link.along == 0 else 0.42 * pitch[0]
            bow = min(bow, 17) * 1.33
            path = f"M{x:.1f} {y:.1f}C" + (
                f"{x + 6:.1f} {y - bow:.1f} {x2 - 6:.1f} {y2 - bow:.1f} {x2:.1f} {y2:.1f}"
                if link.along == 0
                else f"{x - bow:.1f} {y + 6:.1f} {x2 - bow:.1f} {y2 - 6:.1f} {x2:.1f} {y2:.1f}"
            )
        stroke = colour.get(link.axis, "currentColor")
        wide = 4 if pitch[0] > 26 else 2.4
        look = f'stroke="{stroke}" stroke-width="{wide if link.neighbours else wide / 2}"' + (
            "" if link.axis else ' opacity=".4"'
        )
        parts.append(
            f'<path class="{"wrap" if link.wraps else "link"}" d="{path}" fill="none" {look}/>'
        )
    for place, of_mesh in at.items():
        if slab is not None and place[2] != slab:
            continue
        (x, y), words = xy(place), ",".join(map(str, of_mesh))
        width = text_width(words) + 4
        tip = (
            f"<title>chip at ({', '.join(map(str, place))}): mesh position "
            f"({', '.join(map(str, of_mesh))})</title>"
        )
        ground = ' style="fill:var(--ground,Canvas)" rx="4"'
        if width > pitch[0] - 6:
            chips.append(f"<g>{rect(x - 3.5, y - 3.5, 7, 7, more=ground)}{tip}</g>")
        else:
            box = rect(x - width / 2, y - 9, width, 18, more=ground)
            chips.append(f"<g>{box}{text(x, y + 4.5, words, size=12)}{tip}</g>")
    return [*parts, *chips]


def _key(used, sizes, colour, others):
    """A line in the colour of each mesh axis, with its name and size."""
    parts, left = [], 0.0
    for words, stroke, more in (
        *((f"{axis}={sizes[axis]}", colour[axis], "") for axis in used),
        *([("no mesh axis", "currentColor", ' opacity=".4"')] if others else []),
    ):
        parts.append(f'<path d="M{left:g} 6h22" stroke="{stroke}" stroke-width="4"{more}/>')
        parts.append(text(left + 28, 10.5, words, size=12, anchor="start"))
        left += 28 + text_width(words) + 14
    return parts, 22


def _words(links, used):
    """How many links each mesh axis has, on which torus axes, and how many of them wrap around."""
    words = []
    for axis in [*used, None]:
        mine = [link for link in links if link.axis == axis]
        if not mine:
            continue
        along = sorted({link.along for link in mine})
        on = (
            f"torus {'axis' if len(along) == 1 else 'axes'} "
            f"{' and '.join(_NAMES[n] for n in along)}"
        )
        whose = (
            f"{counted(len(mine), 'link')} along {axis}"
            if axis
            else f"{counted(len(mine), 'link')} of no mesh axis"
        )
        words.append(
            f"{whose}, on {on}, {sum(link.wraps for link in mine)} of them wrapping around"
        )
    return "; ".join(words) + "."


def _short(links):
    wraps, between = sum(link.wraps for link in links), sum(link.along == 2 for link in links)
    words = (
        f"{counted(len(links), 'link')}, {wraps or 'none'} wrap{'' if wraps > 1 else 's'} around"
    )
    return words + (
        f"; the {between} along z run between the slabs and are not drawn" if between else ""
    )


def _rows(at, shape):
    """The mesh positions of the chips, one row of the torus after the other."""
    lines = []
    for z in range(shape[2]) if len(shape) == 3 else [None]:
        for y in range(shape[1]):
            places = [(x, y) if z is None else (x, y, z) for x in range(shape[0])]
            where = f"y={y}" if z is None else f"y={y}, z={z}"
            lines.append(f"{where}: {' '.join(','.join(map(str, at[place])) for place in places)}.")
    return lines
