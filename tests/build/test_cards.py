"""Pictures for previews of links: a key figure's SVG as pixels."""

import base64
import io

import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure

from bookbinder.page import cards, pages

COLOURS = pages.colours()
FRAME = (
    '<svg viewBox="0 0 100 50" xmlns:xlink="x" text-anchor="middle" fill="currentColor">{}</svg>'
)


def card(folder, markup, title="A title", part=1):
    """The pixels of a card from 0 to 255: [down, right, red green blue]."""
    name = cards.write(folder, "one", markup, title, "The book", COLOURS, part)
    return np.round(image.imread(folder / name)[..., :3] * 255).astype(int)


def drawn(folder, parts):
    """The pixels of a figure of 100 by 50 units, which is 240 by 120 pixels large."""
    found = card(folder, FRAME.format(parts))
    below = 130  # the title
    down, right = np.argwhere((found[below:520] != 255).any(-1)).min(0)
    return found[below + down :, right:]


def colour(pixel):
    return "#" + "".join(f"{channel:02x}" for channel in pixel)


FRAMED = '<rect x="0" y="0" width="100" height="50" fill="#0072B2"/>'


def test_a_rectangle_is_where_it_is_as_large_as_fits(tmp_path):
    found = drawn(tmp_path, FRAMED + '<rect x="50" y="25" width="25" height="25" fill="#E69F00"/>')
    assert colour(found[60, 60]) == "#0072b2" and colour(found[90, 150]) == "#e69f00"
    assert colour(found[90, 230]) == "#0072b2" and colour(found[130, 60]) == "#ffffff"


def png(*rows):
    """An image of rows of colours, as an address that holds it."""
    file = io.BytesIO()
    pixels = [[[int(one[i : i + 2], 16) for i in (1, 3, 5)] for one in row] for row in rows]
    image.imsave(file, np.array(pixels, "uint8"), format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


ORANGE, BLUE = "#E69F00", "#0072B2"
SHAPES = {
    "an image": f'<image x="50" y="25" width="25" height="25" href="{png([ORANGE])}"/>',
    "an image upside down": '<image width="2" height="2" transform="matrix(25 0 0 -25 50 50)" '
    f'xlink:href="{png([ORANGE, BLUE], [BLUE, BLUE])}"/>',
    "a path, relative": '<path d="M50 25h25v25h-25z" fill="#E69F00"/>',
    "a path, absolute": '<path d="M 50 25 H 75 V 50 L 50 50 z" fill="#E69F00"/>',
    "a path with curves": (
        '<path d="M50 25C60 25 70 25 75 25Q75 40 75 50c-5 0 -10 0 -25 0z" style="fill: #E69F00"/>'
    ),
    "a line": '<path d="M50 37.5h25" stroke="#E69F00" stroke-width="24" fill="none"/>',
    "a circle": '<circle cx="62" cy="37" r="12" fill="#E69F00"/>',
    "a path with an arc": (
        '<path d="M50 37.5a12.5 12.5 0 0 0 25 0a12.5 12.5 0 0 0 -25 0z" fill="#E69F00"/>'
    ),
    "an ellipse": '<ellipse cx="62" cy="37" rx="12" ry="11" fill="#E69F00"/>',
    "moved": '<g transform="translate(50 25)"><rect width="25" height="25" fill="#E69F00"/></g>',
    "scaled and moved": (
        '<g transform="translate(50,25) scale(5)"><rect width="5" height="5" fill="#E69F00"/></g>'
    ),
    "turned": (
        '<g transform="rotate(180 62.5 37.5)"><rect x="50" y="25" width="25" height="25" '
        'fill="#E69F00"/></g>'
    ),
    "clipped by an svg": '<svg x="50" y="25" width="25" height="25">'
    '<path d="M-99 -99h999v999h-999z" fill="#E69F00"/></svg>',
    "clipped by a path": '<defs><clipPath id="c"><rect x="50" y="25" width="25" '
    'height="25"/></clipPath></defs>'
    '<path clip-path="url(#c)" d="M0 0h100v50h-100z" fill="#E69F00"/>',
    "used": (
        '<defs><path id="p" d="M0 0h25v25h-25z"/></defs><use xlink:href="#p" x="50" y="25" '
        'fill="#E69F00"/>'
    ),
    "in a colour of the page": (
        '<rect x="50" y="25" width="25" height="25" style="fill: var(--device-1, red)"/>'
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_each_kind_of_shape_is_drawn(tmp_path, name):
    found = drawn(tmp_path, FRAMED + SHAPES[name])
    assert colour(found[90, 150]) == "#e69f00"
    assert all(
        colour(found[down, right]) == "#0072b2" for down, right in ((90, 110), (90, 190), (50, 150))
    )


def test_letters_are_drawn_where_their_anchor_says(tmp_path):
    found = drawn(tmp_path, FRAMED + '<text x="50" y="30" font-size="20" fill="#fff">HH</text>')
    right = np.argwhere((found[20:100, 2:230] == 255).all(-1))[:, 1]
    assert abs((right.min() + right.max()) / 2 + 2 - 120) < 4 and 40 < np.ptp(right) < 90


def test_the_pieces_of_a_formula_have_places_and_sizes_of_their_own(tmp_path):
    tall = '<tspan x="10 20" y="40" style="font: 30px sans">H</tspan>'
    small = '<tspan x="70" y="20" style="font-size: 9px">H</tspan>'
    text = f'<text style="font: 12px sans; text-anchor: start" fill="#ffffff">{tall}{small}</text>'
    found = (drawn(tmp_path, FRAMED + text)[2:118, 2:230] == 255).all(-1)
    heights = [
        np.ptp(np.argwhere(found[:, sides].any(1))) for sides in (slice(0, 120), slice(150, 228))
    ]
    assert abs(heights[0] - 2.4 * 30 * 0.73) < 4 and abs(heights[1] - 2.4 * 9 * 0.73) < 3


def test_a_dark_line_is_as_dark_as_text_and_half_transparent_is_lighter(tmp_path):
    found = drawn(tmp_path, FRAMED + '<path d="M0 25h100" stroke="currentColor" stroke-width="9"/>')
    assert colour(found[60, 100]) == "#1b1f26"
    found = drawn(
        tmp_path, FRAMED + '<rect x="50" width="50" height="50" fill="#ffffff" fill-opacity="0.5"/>'
    )
    assert colour(found[60, 200]) in ("#80b8d8", "#80b9d9")


def test_a_plot_of_matplotlib_is_read(tmp_path):
    figure = Figure(figsize=(4, 2), layout="constrained")
    axis = figure.subplots()
    axis.loglog([1, 10], [1, 10], "o--", label="one $2^3$")
    axis.fill_between([1, 10], [1, 3], [2, 9], alpha=0.2)
    axis.set(xlabel="seconds", ylabel="bytes")
    axis.legend()
    file = io.StringIO()
    figure.savefig(file, format="svg")
    found = card(tmp_path, pages.plot(file.getvalue(), "words", "plot-1-"))
    # the line, in the first colour of the page
    assert ((found == (0, 0x72, 0xB2)).all(-1)).sum() > 100


def test_the_same_figure_gives_the_same_bytes_and_another_one_another_name(tmp_path):
    names = []
    for parts in (FRAMED, FRAMED, ""):
        names.append(cards.write(tmp_path, "one", FRAME.format(parts), "T", "B", COLOURS))
        # what was there before is gone
        assert [file.name for file in tmp_path.iterdir()] == names[-1:]
    assert names[0] == names[1] != names[2]
    again = tmp_path / "again"
    cards.write(again, "one", FRAME.format(""), "T", "B", COLOURS)
    assert (again / names[2]).read_bytes() == (tmp_path / names[2]).read_bytes()


@pytest.mark.parametrize(
    "parts",
    [
        '<rect fill="var(--none)"/>',
        "<foreignObject/>",
        '<image href="https://a.b/c.png"/>',
        '<image href="/etc/x"/>',
        "<g>",
    ],
)
def test_what_cannot_be_drawn_leaves_a_page_without_a_card(tmp_path, parts):
    assert cards.write(tmp_path, "one", FRAME.format(parts), "T", "B", COLOURS) is None
    assert cards.write(tmp_path, "one", "", "T", "B", COLOURS) is None
    assert not [*tmp_path.glob("*.png")]


def test_of_steps_the_first_and_the_last_are_shown():
    figures = "".join(
        f"<figure>{FRAME.format('')}<figcaption>{n}<br>more</figcaption></figure>" for n in range(4)
    )
    assert [words for _, words in cards._figures(f'<div data-steps="4">{figures}</div>')] == [
        "0",
        "3",
    ]
    assert [words for _, words in cards._figures(f"<div>{figures}</div>")] == ["0", "1", "2", "3"]


def test_a_long_title_is_in_smaller_letters_and_a_tall_figure_stands_beside_it(tmp_path):
    tall = '<svg viewBox="0 0 100 300"><rect width="100" height="300" fill="#0072B2"/></svg>'
    found = card(tmp_path, tall, "A word and another one " * 3)
    blue = np.argwhere((found[100:] == (0, 0x72, 0xB2)).all(-1))
    assert blue[:, 1].min() > 500 and np.ptp(blue[:, 0]) > 400
    assert (found[20:, 1160:] == 255).all()  # below the line in the colour of the part


def test_words_for_a_figure_are_short():
    figure = "<title>A: 8 &amp; 9</title><desc>{}</desc>"
    assert cards.words_for(figure.format("a plot\nof it")) == "a plot of it"
    assert cards.words_for(figure.format("long " * 80)) == "A: 8 & 9" and cards.words_for("") == ""
