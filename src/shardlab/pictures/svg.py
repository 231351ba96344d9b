"""What every picture of `shardlab.pictures.draw` is made of: its colours, its text, its outlines
and its hatching.
"""

import math
from dataclasses import dataclass
from html import escape

__all__ = ["PALETTE", "Picture"]

# Okabe and Ito's eight colours, which colour-blind readers can tell apart. Device i has colour i
# modulo 8.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")

# px: a phone's column without the outlines; pictures are made for it, and grow on wider pages
WIDTH = 314
_GROWTH = 1.55  # at most so many times that size, which fills 60 % of a wide column
_NARROW = 200  # px: a narrow drawing still leaves this much room for the words below it


@dataclass(frozen=True)
class Picture:
    """A drawing: notebooks show `html`, consoles print `text`."""

    html: str
    text: str

    def _repr_html_(self):
        return self.html

    def __repr__(self) -> str:
        return self.text


def row(figures, attributes='class="shardlab"', align="flex-end", gap=2):
    """Figures side by side, on narrow screens below each other; no style sheet of a page is
    needed.
    """
    style = f"display:flex;flex-wrap:wrap;gap:1rem {gap}rem;align-items:{align}"
    return f'<div {attributes} style="{style}">{figures}</div>'


def figure(parts, width, height, title, description, caption, narrow=_NARROW, growth=_GROWTH):
    """A drawing with its title and description for screen readers, and the words below it."""
    # One px of room all round for the outlines. No ids, because the same picture may appear twice
    # on a page.
    w, h = width + 2, height + 2
    basis = max(w, narrow)
    size = f"width:{100 * w / basis:.3g}%" if w < basis else "width:100%"
    svg = (
        f'<svg role="img" width="{w:g}" height="{h:g}" viewBox="-1 -1 {w:g} {h:g}" '
        f'style="{size};height:auto" '
        'font-family="system-ui,sans-serif" text-anchor="middle">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )
    words = (
        "<figcaption "
        f'style="font-size:.85em;font-weight:400;text-align:left;color:inherit">{caption}</figcaption>'
    )
    words = words if caption else ""
    # Figures of one row grow by the same factor, so their letters keep the same size.
    grow = f"flex:{basis:g} 1 {basis:g}px;min-width:0;max-width:{growth * basis:.0f}px"
    return f'<figure style="margin:0 0 .5rem;{grow}">{svg}{words}</figure>'


def text(x, y, words, *, size=14, fill="currentColor", anchor=None, bold=False):
    """A line of text whose baseline is at y."""
    more = (f' text-anchor="{anchor}"' if anchor else "") + (' font-weight="700"' if bold else "")
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" '
        f'fill="{fill}"{more}>{escape(str(words))}</text>'
    )


# The widths of DejaVu Sans, a wide face, in em: too much room for a label is better than too
# little.
_EM = {
    **dict.fromkeys(" .,:;'|![]()ijlftrI/", 0.4),
    **dict.fromkeys("mwMWGOQ%+=<>", 0.88),
    **dict.fromkeys("@→…↓", 1.0),
}


def text_width(words, size=12):
    """About how many px a text takes, a little too many rather than too few."""
    return size * sum(_EM.get(letter, 0.64) for letter in str(words))


def rect(x, y, width, height, fill="none", more=""):
    """A rectangle outlined in the colour of the page's text."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
        f'stroke="currentColor"{more}/>'
    )


def _clipped(x, y, width, height, parts):
    """Parts with the origin at (x, y), clipped at the edges: an inner svg does it, and so needs no
    id.
    """
    return f'<svg x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}">{parts}</svg>'


def stripes(x, y, width, height, colours, stripe=7):
    """Diagonal stripes, each colour every k-th."""
    paths = []
    for i, colour in enumerate(colours):
        starts = range(i * stripe, int(width + height + stripe), stripe * len(colours))
        path = "".join(f"M{start + 3} -1l-{height + 2:g} {height + 2:g}" for start in starts)
        paths.append(
            f'<path d="{path}" stroke="{colour}" stroke-width="{stripe / 2**0.5 + 0.3:.1f}"/>'
        )
    return _clipped(x, y, width, height, "".join(paths))


def hatching(x, y, width, height, colour="#fff", thickness=2.5):
    """Diagonal lines over a tile: white ones say that its values are partial sums."""
    path = "".join(
        f"M{start} 0l-{height:g} {height:g}" for start in range(4, int(width + height), 9)
    )
    return _clipped(
        x, y, width, height, f'<path d="{path}" stroke="{colour}" stroke-width="{thickness:g}"/>'
    )


def haloed(x, y, words, size, on_page=False):
    """Letters with a rim, legible on stripes: black on white, or in the page's colours where the
    page shows through.
    """
    rim = 'style="stroke:var(--ground,Canvas)"' if on_page else 'stroke="#fff"'
    return text(x, y, words, size=size, fill="currentColor" if on_page else "#000").replace(
        "<text ", f'<text paint-order="stroke" {rim} stroke-width="4" '
    )


def device_tile(box, device, tip="", *, partial=False, size=13, says=""):
    """A rectangle in the colour of a device, with its number; hatched if it holds partial sums.

    Its box is (x, y, width, height). A page shows `says`.
    """
    x, y, width, height = box
    colour = PALETTE[device % len(PALETTE)]
    middle, down = x + width / 2, y + height / 2 + 0.35 * size
    number = (
        haloed(middle, down, device, size)
        if partial
        else text(middle, down, device, size=size, fill=ink(colour))
    )
    hatch = hatching(x, y, width, height) if partial else ""
    outline = rect(x, y, width, height) if partial else ""
    tip = f"<title>{escape(tip)}</title>" if tip else ""
    words = f' data-device="{device}" data-says="{escape(says)}"' if says else ""
    return f"<g{words}>{rect(x, y, width, height, colour)}{hatch}{outline}{number}{tip}</g>"


def arrow_right(x, y, length, label, *, bold=False):
    """An arrow over a mesh axis or a dimension: its label stands in the middle of the line."""
    room = text_width(label) + 6
    words = text(x + length / 2, y + 4, label, size=12, bold=bold)
    if length < room + 24:  # too short for a line on both sides
        if room <= length:
            return words
        return text(x, y + 4, label, size=12, anchor="start", bold=bold)
    left, right = (length - room) / 2, x + length
    path = f"M{x:g} {y:g}h{left:g}M{x + left + room:g} {y:g}H{right:g}m-6 -4l6 4l-6 4"
    return f'{words}<path d="{path}" fill="none" stroke="currentColor"/>'


def arrow_down(x, y, length, label, *, bold=False):
    """An arrow beside the rows: its label stands to the left, and x is where the arrow itself
    runs.
    """
    words = text(x - 7, y + length / 2 + 4, label, size=12, anchor="end", bold=bold)
    path = f"M{x:g} {y:g}v{length:g}m-4 -6l4 6l4 -6"
    return f'{words}<path d="{path}" fill="none" stroke="currentColor"/>'


def ink(colour):
    """Black or white, whichever stands out more from a colour (WCAG's relative luminance)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#fff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000"


def number_text(value):
    """A number in a few digits, such as "1,536", "30.5", "2.67" and "0.0125"."""
    if value and abs(value) < 1:
        digits = 2 - math.floor(math.log10(abs(value)))
        return f"{value:.{min(digits, 12)}f}".rstrip("0").rstrip(".")
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    shown = f"{value:,.{digits}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def listed(sentences, most=16, noun="devices"):
    """At most sixteen sentences, the rest counted; for readers who hear the picture."""
    sentences = list(sentences)
    more = len(sentences) - most
    sentence = "; ".join(sentences[:most]) + (f"; and {more:,} more {noun}" if more > 0 else "")
    return sentence[:1].upper() + sentence[1:] + "."


def side_by_side(blocks, between):
    """Blocks of text beside each other, with a sign such as "·" between them at half height."""
    blocks = [block.splitlines() for block in blocks]
    height = max(map(len, blocks))
    lines = [""] * height
    for number, block in enumerate(blocks):
        if number:
            sign = f" {between[number - 1]} "
            lines = [
                line + (sign if i == height // 2 else " " * len(sign))
                for i, line in enumerate(lines)
            ]
        above = (height - len(block)) // 2
        width = max(map(len, block))
        padded = [""] * above + block + [""] * (height - above - len(block))
        lines = [line + f"{part:<{width}}" for line, part in zip(lines, padded, strict=True)]
    return "\n".join(line.rstrip() for line in lines)
