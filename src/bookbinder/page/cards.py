"""Pictures for previews of links: a page's title and its key figure, as a PNG of 1200 by 630 pixels.

Social sites and messengers show no SVG, so Matplotlib draws the shapes of the figure once more: it needs no browser,
and the same figure gives the same bytes on every machine. This reads as much SVG as pictures of shardlab and plots of
Matplotlib have.
"""

import base64
import hashlib
import html
import io
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

WIDTH, HEIGHT = 1200, 630  # pixels, as all sites take them
_MARGIN, _GAP = 60, 44
_BESIDE = 460  # pixels for a title that stands beside a figure
_LARGEST = 2.4  # times the size that a figure has on a phone
_HEARD = 250  # characters
_TITLE, _CAPTION, _FOOT = 46, 20, 24  # px of letters
_LIGHT = {"currentColor": "#1b1f26", "inherit": "#1b1f26", "none": None}
_STYLED = (
    "fill", "stroke", "stroke-width", "stroke-dasharray", "font", "font-size", "font-weight", "text-anchor", "opacity",
    "fill-opacity", "stroke-opacity", "stroke-linecap", "paint-order",
)  # fmt: skip
_START = {"fill": "#000000", "stroke": "none", "stroke-width": "1", "font-size": "16", "text-anchor": "start"}


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
      The name of the file; None without a figure, without Matplotlib, or if the figure has what is not drawn here.
    """
    file = None
    if figure and _matplotlib():
        drawn = (figure, title, book, part, sorted(colours.items()), Path(__file__).read_text("utf-8"))
        file = folder / f"{name}-{hashlib.sha256(repr(drawn).encode()).hexdigest()[:8]}.png"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            try:
                _Card(colours).save(file, figure, title, book, part)
            except Unreadable:
                file = None
    for earlier in folder.glob(f"{name}-{'[0-9a-f]' * 8}.png"):
        if earlier != file:
            earlier.unlink()
    return file and file.name


@cache
def _matplotlib():
    """Whether Matplotlib is installed; chapters need it, the tool that makes pages does not."""
    try:
        import matplotlib.textpath  # noqa: F401
    except ImportError:
        return False
    return True


class _Card:
    """A card while it is drawn. Coordinates are pixels, to the right and down."""

    def __init__(self, colours):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._colours = colours
        self._figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100, facecolor="white")
        FigureCanvasAgg(self._figure)
        self._axes = self._figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(HEIGHT, 0))
        self._axes.set_axis_off()

    def save(self, file, figure, title, book, part):
        """Draw everything and write the file."""
        from matplotlib.transforms import Affine2D

        accent = self._colours.get(f"part-{part}", self._colours["device-0"])
        self._shape(_box(0, 0, WIDTH, 12), Affine2D(), {"fill": accent})
        self._letters(book, _MARGIN, HEIGHT - 36, _FOOT, fill="#565f6c")
        figures, right, bottom = _figures(figure), WIDTH - _MARGIN, HEIGHT - 36 - _FOOT - 32
        ways = []
        for edge, most in ((right, 2), (_MARGIN + _BESIDE, 7)):  # the title above the figures, or beside them
            lines, size = _wrapped(title, _TITLE, edge - _MARGIN, most)
            down = _MARGIN + size * 1.2 * len(lines)
            frame = (
                (_MARGIN, down + 40, right, bottom) if most == 2 else (edge + _GAP, _MARGIN, right, HEIGHT - _MARGIN)
            )
            ways.append((_fitted(figures, frame)[0], lines, size, frame))
        _, lines, size, frame = ways[ways[1][0] > 1.1 * ways[0][0]]
        for number, line in enumerate(lines, 1):
            self._letters(line, _MARGIN, _MARGIN + number * size * 1.2, size, bold=True)
        self._place(figures, frame)
        self._figure.savefig(file, format="png", dpi=100, metadata={"Software": None})

    def _place(self, figures, frame):
        """Figures side by side, as large as fits, each with its first line of words below it."""
        from matplotlib.transforms import Affine2D

        scale, words, boxes = _fitted(figures, frame)
        left, top, _, bottom = frame
        foot = (top + bottom + scale * max(box[3] for box in boxes) - 2 * _CAPTION * any(words)) / 2
        for (svg, caption), (x, y, width, height), one in zip(figures, boxes, words, strict=True):
            defined = {element.get("id"): element for element in svg.iter() if element.get("id")}
            place = Affine2D().translate(-x, -y - height).scale(scale).translate(left, foot)
            style = _START | _styles(svg)
            for child in svg:
                self._draw(child, place, style, None, defined)
            if one:
                self._letters(caption, left, foot + 1.5 * _CAPTION, _CAPTION)
            left += max(scale * width, one) + _GAP

    def _draw(self, element, place, style, clip, defined):
        """Draw an element of SVG and what is in it."""
        from matplotlib.path import Path as Outline
        from matplotlib.transforms import Affine2D

        tag = _tag(element)
        if tag in ("title", "desc", "defs", "style", "metadata", "clipPath"):
            return
        style = style | _styles(element)
        number = lambda name: float(element.get(name, "0"))  # noqa: E731
        place = _transform(element.get("transform", "")) + place
        if clipped := re.search(r"url\(#(.*?)\)", element.get("clip-path", "")):
            (outline,) = defined[clipped[1]]
            clip = place.transform_path(_outline(outline))
        if tag == "svg":  # inside another one, which clips it
            place = Affine2D().translate(number("x"), number("y")) + place
            clip = place.transform_path(_box(0, 0, number("width"), number("height")))
        if tag in ("svg", "g"):
            for child in element:
                self._draw(child, place, style, clip, defined)
        elif tag == "use":
            link = next(value for name, value in element.items() if name.endswith("href"))
            place = Affine2D().translate(number("x"), number("y")) + place
            self._draw(defined[link[1:]], place, style, clip, defined)
        elif tag == "text":
            self._text(element, place, style)
        elif tag == "circle":
            self._shape(Outline.circle((number("cx"), number("cy")), number("r")), place, style, clip)
        elif tag == "image":
            self._image(element, place, clip)
        else:
            self._shape(_outline(element), place, style, clip)

    def _image(self, element, place, clip):
        """An image whose pixels stand in the drawing."""
        from matplotlib.image import AxesImage, imread

        kind, _, data = next(value for name, value in element.items() if name.endswith("href")).partition(";base64,")
        if kind != "data:image/png":
            raise Unreadable(f"the image {kind[:80]}")
        x, y, width, height = (float(element.get(name, "0")) for name in ("x", "y", "width", "height"))
        image = AxesImage(self._axes, extent=(x, x + width, y + height, y), interpolation="nearest", zorder=1)
        image.set_data(imread(io.BytesIO(base64.b64decode(data)), format="png"))
        image.set_transform(place + self._axes.transData)
        self._axes.add_artist(image)
        if clip is not None:
            image.set_clip_path(clip, self._axes.transData)

    def _text(self, element, place, style):
        """A line of text, or the parts of which it is made: a formula's have places and sizes of their own."""
        from matplotlib.transforms import Affine2D

        for span in [span for span in element if _tag(span) == "tspan"] or [element]:
            words, look = span.text or "", style | _styles(span)
            size = _size(look)
            bold = look.get("font-weight") in ("700", "bold")
            x, y = (float((span.get(name) or element.get(name) or "0").split()[0]) for name in "xy")
            x -= _width(words, size, bold) * {"start": 0, "middle": 0.5, "end": 1}[look["text-anchor"]]
            self._shape(_letters(words, size, bold), Affine2D().scale(1, -1).translate(x, y) + place, look)

    def _letters(self, words, x, y, size, *, bold=False, fill="currentColor"):
        from matplotlib.transforms import Affine2D

        self._shape(_letters(words, size, bold), Affine2D().scale(1, -1).translate(x, y), {"fill": fill})

    def _shape(self, outline, place, style, clip=None):
        """Fill an outline and draw its line, in this order unless the style has the other."""
        from matplotlib.patches import PathPatch

        fill, stroke = (self._colour(style.get(name, "none")) for name in ("fill", "stroke"))
        (a, b, _), (c, d, _), _ = place.get_matrix()
        scale = abs(a * d - b * c) ** 0.5
        width = float(style.get("stroke-width", "1").removesuffix("px")) * scale * 0.72  # points
        dashes = [
            float(part) * scale * 0.72 / width for part in re.findall(r"[\d.]+", style.get("stroke-dasharray", ""))
        ]
        opacity = {
            name: float(style.get(f"{name}-opacity", "1")) * float(style.get("opacity", "1"))
            for name in ("fill", "stroke")
        }
        parts = [("fill", fill), ("stroke", stroke)]
        for what, colour in parts[:: -1 if style.get("paint-order") == "stroke" else 1]:
            if colour is None:
                continue
            look = (
                {"facecolor": colour, "linewidth": 0}
                if what == "fill"
                else {"fill": False, "edgecolor": colour, "linewidth": width}
            )
            if what == "stroke" and dashes:
                look["linestyle"] = (0, dashes)
            patch = PathPatch(
                place.transform_path(outline), alpha=opacity[what], capstyle="butt", joinstyle="round", **look
            )
            self._axes.add_patch(patch)
            if clip is not None:
                patch.set_clip_path(clip, self._axes.transData)

    def _colour(self, value):
        """A colour as Matplotlib knows it: those of the page as they are in the light."""
        if named := re.match(r"var\(--([\w-]+)", value):
            if named[1] not in self._colours:
                raise Unreadable(f"the colour {value}")
            return self._colours[named[1]]
        return _LIGHT.get(value, value)


def _fitted(figures, frame):
    """How large figures may be side by side in a frame, how long their words are, if there is room, and their boxes."""
    left, top, right, bottom = frame
    boxes = [[float(number) for number in svg.get("viewBox").split()] for svg, _ in figures]
    words, room = [_width(caption, _CAPTION) for _, caption in figures], right - left - _GAP * (len(figures) - 1)
    if sum(words) > room:
        words = [0] * len(words)
    scale = min(_LARGEST, (bottom - top - 2 * _CAPTION * any(words)) / max(box[3] for box in boxes))
    while sum(max(scale * box[2], one) for box, one in zip(boxes, words, strict=True)) > room:
        scale *= 0.98
    return scale, words, boxes


def _figures(markup):
    """The drawings of a figure's HTML, each with the first line of the words below it; the first and last of steps."""
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
    """What a figure shows, for those who hear the card: what its first drawing says, in short if that is long."""
    title, described = (re.search(rf"<{tag}>(.*?)</{tag}>", figure, re.DOTALL) for tag in ("title", "desc"))
    texts = [" ".join(html.unescape(found[1]).split()) for found in (described, title) if found]
    return next((text for text in texts if text and len(text) <= _HEARD), texts[-1] if texts else "")


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


def _styles(element):
    """What an element says of its look, as attributes or in `style`."""
    found = {name: value for name, value in element.items() if name in _STYLED}
    for name, value in re.findall(r"([\w-]+):\s*([^;]+)", element.get("style", "")):
        if name in _STYLED:
            found[name] = value.strip()
    if "font-size" in found:
        found.setdefault("font", "")  # this is nearer than a font of what is around it
    return found


def _size(look):
    """The size of letters in px, of `font: 10px sans` or `font-size`."""
    return float(next(re.finditer(r"([\d.]+)px", look.get("font", "")), [0, look["font-size"].removesuffix("px")])[1])


def _transform(text):
    """The transformation that an attribute describes."""
    from matplotlib.transforms import Affine2D

    whole = Affine2D()
    for name, inner in reversed(re.findall(r"(\w+)\(([^)]*)\)", text)):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", inner)]
        if name == "translate":
            whole.translate(*[*numbers, 0][:2])
        elif name == "scale":
            whole.scale(*[*numbers, numbers[0]][:2])
        elif name == "rotate":
            whole.rotate_deg_around(*([*numbers[1:], 0, 0][:2]), numbers[0])
        elif name == "matrix":
            whole = Affine2D((whole + Affine2D.from_values(*numbers)).get_matrix())
        else:
            raise Unreadable(f"the transformation {name}")
    return whole


def _box(x, y, width, height):
    from matplotlib.path import Path as Outline

    right, bottom = x + width, y + height
    return Outline([(x, y), (right, y), (right, bottom), (x, bottom), (x, y)], closed=True)


def _outline(element):
    """A rectangle or a path as Matplotlib's."""
    if _tag(element) == "rect":
        return _box(*(float(element.get(name, "0")) for name in ("x", "y", "width", "height")))
    if _tag(element) != "path":
        raise Unreadable(f"the element {_tag(element)}")
    return _path(element.get("d") or "")


_TAKES = {"m": 2, "l": 2, "h": 1, "v": 1, "c": 6, "q": 4, "z": 0}  # numbers at a time


def _path(text):
    """A path from its commands: lines and curves, absolute and relative."""
    from matplotlib.path import Path as Outline

    points, codes, now, start = [], [], (0.0, 0.0), (0.0, 0.0)
    curves = {"l": Outline.LINETO, "c": Outline.CURVE4, "q": Outline.CURVE3}
    for command, rest in re.findall(r"([A-Za-df-z])([^A-Za-df-z]*)", text):
        numbers = [float(number) for number in re.findall(r"-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?", rest)]
        kind = command.lower()
        if kind not in _TAKES:
            raise Unreadable(f"the command {command} of a path")
        if kind == "z":
            points.append(start)
            codes.append(Outline.CLOSEPOLY)
            now = start
            continue
        for i in range(0, len(numbers), _TAKES[kind]):
            values, (x, y) = numbers[i : i + _TAKES[kind]], now if command.islower() else (0.0, 0.0)
            if kind in "hv":
                values = [values[0] + x, now[1]] if kind == "h" else [now[0], values[0] + y]
                x = y = 0.0
            new = [(values[k] + x, values[k + 1] + y) for k in range(0, len(values), 2)]
            now = new[-1]
            if kind == "m" and i == 0:
                start = now
                codes.append(Outline.MOVETO)
            else:
                codes += [curves.get(kind, Outline.LINETO)] * len(new)
            points += new
    return Outline(points or [(0, 0)], codes or None)


@cache
def _font(bold):
    """DejaVu Sans, which comes with Matplotlib."""
    import matplotlib
    from matplotlib.font_manager import FontProperties

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return FontProperties(fname=str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name))


@cache
def _letters(words, size, bold=False):
    """The outlines of letters, whose baseline is 0 and which stand above it."""
    from matplotlib.path import Path as Outline
    from matplotlib.textpath import TextPath

    plain = words.replace("$", r"\$")
    return TextPath((0, 0), plain, size=size, prop=_font(bold)) if words.strip() else Outline([(0, 0)])


@cache
def _width(words, size, bold=False):
    """How many px a line takes."""
    from matplotlib.textpath import text_to_path

    return text_to_path.get_text_width_height_descent(words, _font_of(size, bold), False)[0] if words.strip() else 0


def _font_of(size, bold):
    font = _font(bold).copy()
    font.set_size(size)
    return font


def _wrapped(words, size, room, most):
    """Words in as few lines as fit, at most so many; smaller if they need more. Returns the lines and their size."""
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
