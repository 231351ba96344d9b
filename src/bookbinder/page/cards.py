"""Pictures for previews of links: a page's title and its key figure, as a PNG of 1200 by 630
pixels.

Social sites and messengers show no SVG, so resvg draws a card that is one: it needs no browser, and
the same figure gives the same bytes on every machine. The letters are those of Matplotlib's own
font.
"""

import hashlib
import html
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import resvg_py

WIDTH, HEIGHT = 1200, 630  # pixels, as all sites take them
_MARGIN, _GAP = 60, 44
_BESIDE = 460  # pixels for a title that stands beside a figure
_LARGEST = 2.4  # times the size that a figure has on a phone
_HEARD = 250  # characters
_TITLE, _CAPTION, _FOOT = 46, 20, 24  # px of letters
_DARK, _GREY = "#1b1f26", "#565f6c"
_FAMILY = "DejaVu Sans"


class Unreadable(Exception):
    """A figure has something that is not drawn here; the message says what."""


def write(folder, name, figure, title, book, colours, part=None):
    """Write the card of a page, `NAME-DIGEST.png`, and delete earlier ones of the page.

    Args:
      folder: where cards are.
      name: the page's.
      figure: the HTML of its key figure; "" if it has none, and so no card.
      title: of the page.
      book: the title of the book.
      colours: those of the style sheet by their names, `{"device-0": "#0072b2"}`.
      part: the number of the page's part; None if it is in none.

    Returns:
      The name of the file; None without a figure, without Matplotlib, or if the figure has what is
      not drawn here.
    """
    file = None
    if figure and _fonts():
        drawn = (
            figure,
            title,
            book,
            part,
            sorted(colours.items()),
            Path(__file__).read_text("utf-8"),
        )
        file = folder / f"{name}-{hashlib.sha256(repr(drawn).encode()).hexdigest()[:8]}.png"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            try:
                file.write_bytes(_pixels(_card(figure, title, book, colours, part)))
            except Unreadable:
                file = None
    for earlier in folder.glob(f"{name}-{'[0-9a-f]' * 8}.png"):
        if earlier != file:
            earlier.unlink()
    return file and file.name


@cache
def _fonts():
    """The files of Matplotlib's font, plain and bold; none without it: chapters need it, pages do
    not.
    """
    if (matplotlib := find_spec("matplotlib")) is None:
        return ()
    folder = Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf"
    return tuple(str(folder / f"DejaVuSans{bold}.ttf") for bold in ("", "-Bold"))


def _pixels(svg):
    """A drawing as the bytes of a PNG."""
    try:
        return resvg_py.svg_to_bytes(
            svg,
            skip_system_fonts=True,
            font_files=list(_fonts()),
            font_family=_FAMILY,
            sans_serif_family=_FAMILY,
            image_rendering="optimize_speed",  # pixels stay pixels
        )
    except ValueError as error:
        raise Unreadable(f"it cannot be drawn: {error}") from None


def _card(markup, title, book, colours, part):
    """The card as SVG: the title above the figures, or beside them where they are larger then."""
    accent = colours.get(f"part-{part}", colours["device-0"])
    figures = _figures(markup)
    right, bottom = WIDTH - _MARGIN, HEIGHT - 36 - _FOOT - 32
    ways = []
    for edge, most in ((right, 2), (_MARGIN + _BESIDE, 7)):
        lines, size = _wrapped(title, _TITLE, edge - _MARGIN, most)
        down = _MARGIN + size * 1.2 * len(lines)
        above = (_MARGIN, down + 40, right, bottom)
        frame = above if most == 2 else (edge + _GAP, _MARGIN, right, HEIGHT - _MARGIN)
        ways.append((_fitted(figures, frame)[0], lines, size, frame))
    _, lines, size, frame = ways[ways[1][0] > 1.1 * ways[0][0]]
    return "".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
                f'color="{_DARK}">'
            ),
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            f'<rect width="{WIDTH}" height="12" fill="{accent}"/>',
            _letters(book, _MARGIN, HEIGHT - 36, _FOOT, fill=_GREY),
            *(
                _letters(line, _MARGIN, _MARGIN + n * size * 1.2, size, bold=True)
                for n, line in enumerate(lines, 1)
            ),
            *_placed(figures, frame, colours),
            "</svg>",
        ]
    )


def _placed(figures, frame, colours):
    """Figures side by side, as large as fits, each with its first line of words below it."""
    scale, words, boxes = _fitted(figures, frame)
    left, top, _, bottom = frame
    foot = (top + bottom + scale * max(box[3] for box in boxes) - 2 * _CAPTION * any(words)) / 2
    for number, ((svg, caption), box, length) in enumerate(zip(figures, boxes, words, strict=True)):
        width, height = scale * box[2], scale * box[3]
        svg.attrib |= {
            "x": f"{left}",
            "y": f"{foot - height}",
            "width": f"{width}",
            "height": f"{height}",
        }
        yield _drawn(svg, f"figure-{number}-", colours)
        if length:
            yield _letters(caption, left, foot + 1.5 * _CAPTION, _CAPTION)
        left += max(width, length) + _GAP


def _drawn(svg, prefix, colours):
    """A figure as a part of the card: its ids are its own, and its colours those of the page in the
    light.
    """
    for element in svg.iter():
        element.tag = element.tag.rpartition("}")[2]
        if element.tag == "foreignObject":
            raise Unreadable("HTML in it")
        element.attrib.pop("font-family", None)
        for name, value in [*element.items()]:
            if name.endswith("href"):
                if not re.match("#|data:image/png;", value):
                    raise Unreadable(f"the image {value[:80]}")
                del element.attrib[name]
                name, value = "href", re.sub("^#", f"#{prefix}", value)
            if name == "id":
                value = prefix + value
            value = value.replace("url(#", f"url(#{prefix}")
            # Of a font its size is taken: the family is ours, and a renderer shows no letters of
            # one that is not there.
            value = re.sub(r"font-family:[^;]*|\bfont:[^;]*?\b([\d.]+px)[^;]*", _font_size, value)
            element.set(
                name,
                re.sub(r"var\(--([\w-]+)[^()]*\)", lambda named: _colour(named[1], colours), value),
            )
    return ElementTree.tostring(svg, "unicode")


def _font_size(font):
    return f"font-size: {font[1]}" if font[1] else ""


def _colour(name, colours):
    if name not in colours:
        raise Unreadable(f"the colour {name}")
    return colours[name]


def _letters(words, x, y, size, *, bold=False, fill=_DARK):
    weight = ' font-weight="bold"' if bold else ""
    look = f'font-size="{size}" font-family="{_FAMILY}" fill="{fill}"{weight}'
    return f'<text x="{x}" y="{y}" {look}>{html.escape(words)}</text>'


def _fitted(figures, frame):
    """How large figures may be side by side in a frame, how long their words are, if there is room,
    and their boxes.
    """
    left, top, right, bottom = frame
    boxes = [[float(number) for number in svg.get("viewBox").split()] for svg, _ in figures]
    words, room = (
        [_width(caption, _CAPTION) for _, caption in figures],
        right - left - _GAP * (len(figures) - 1),
    )
    if sum(words) > room:
        words = [0] * len(words)
    scale = min(_LARGEST, (bottom - top - 2 * _CAPTION * any(words)) / max(box[3] for box in boxes))
    while sum(max(scale * box[2], one) for box, one in zip(boxes, words, strict=True)) > room:
        scale *= 0.98
    return scale, words, boxes


def _figures(markup):
    """The drawings of a figure's HTML, each with the first line of the words below it; the first
    and last of steps.
    """
    try:
        root = ElementTree.fromstring(f"<div>{re.sub('<br */?>', '<br/>', markup)}</div>")
    except ElementTree.ParseError as error:
        raise Unreadable(f"it is not XML: {error}") from None
    boxes = [one for one in root.iter() if _tag(one) == "figure"]
    if len(boxes) > 2 and any(one.get("data-steps") for one in root.iter()):
        boxes = [boxes[0], boxes[-1]]
    found = []
    for box in boxes or [root]:
        svg = next((one for one in box.iter() if _tag(one) == "svg" and one.get("viewBox")), None)
        if svg is not None:
            words = next((one for one in box.iter() if _tag(one) == "figcaption"), None)
            found.append((svg, "" if words is None else _first_line(words)))
    if not found:
        raise Unreadable("it has no drawing with a viewBox")
    return found


def words_for(figure):
    """What a figure shows, for those who hear the card: what its first drawing says, in short if
    that is long.
    """
    title, described = (
        re.search(rf"<{tag}>(.*?)</{tag}>", figure, re.DOTALL) for tag in ("title", "desc")
    )
    texts = [" ".join(html.unescape(found[1]).split()) for found in (described, title) if found]
    return next(
        (text for text in texts if text and len(text) <= _HEARD), texts[-1] if texts else ""
    )


def _first_line(words):
    """The words of an element up to its first line break."""
    text = words.text or ""
    for child in words:
        if _tag(child) == "br":
            break
        text += "".join(child.itertext()) + (child.tail or "")
    return " ".join(text.split())


def _tag(element):
    return element.tag.rpartition("}")[2]


@cache
def _width(words, size, bold=False):
    """How many px a line takes."""
    from PIL import ImageFont  # which Matplotlib needs

    return ImageFont.truetype(_fonts()[bold], 100).getlength(words) * size / 100


def _wrapped(words, size, room, most):
    """Words in as few lines as fit, at most so many; smaller if they need more. Returns the lines
    and their size.
    """
    room = max(room, max(_width(word, size * 0.6, True) for word in words.split()))
    while True:
        lines = [""]
        for word in words.split():
            longer = f"{lines[-1]} {word}".strip()
            if _width(longer, size, True) <= room:
                lines[-1] = longer
            else:
                lines.append(word)
        if len(lines) <= most:
            return lines, size
        size *= 0.95
