"""shardlab.draw: what a reader can count in a picture must be what the layout says."""

import re
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from test_layout import MESH, make_mesh, shardings

from shardlab.draw import PALETTE, draw
from shardlab.layout import describe


def svgs(picture):
    """The drawings in a picture, parsed: an error if the markup is not well-formed."""
    return list(ElementTree.fromstring(re.sub(r"<br>", "<br/>", picture.html)).iter("svg"))


def tiles(svg):
    """(device number as printed, x, y, width, height, fill) for every tile."""
    found = []
    for group in svg.iter("g"):
        rect, text = group.find("rect"), group.find("text")
        box = [float(rect.get(name)) for name in ("x", "y", "width", "height")]
        found.append((int(text.text), *box, rect.get("fill")))
    return found


@settings(max_examples=120, deadline=None)
@given(shardings(even=True).filter(lambda case: 0 not in case[1]))
def test_each_device_is_drawn_once_in_its_colour_and_no_tile_covers_another(case):
    layout = describe(*case)
    (svg,) = svgs(draw(layout))
    drawn = tiles(svg)
    assert sorted(tile[0] for tile in drawn) == sorted(layout.devices)
    assert all(fill == PALETTE[device % 8] for device, *_, fill in drawn)
    for i, (_, x, y, w, h, _) in enumerate(drawn):
        assert w >= 26 and h >= 22  # room for a number
        for _, x2, y2, w2, h2, _ in drawn[:i]:
            assert x + w <= x2 + 0.5 or x2 + w2 <= x + 0.5 or y + h <= y2 + 0.5 or y2 + h2 <= y + 0.5
    # Nothing sticks out of the drawing.
    left, top, width, height = map(float, svg.get("viewBox").split())
    assert all(x >= left and y >= top and x + w <= left + width and y + h <= top + height for _, x, y, w, h, _ in drawn)
    # All tiles of an even layout have the same size: the inked area is the memory in use.
    assert len({(w, h) for _, _, _, w, h, _ in drawn}) == 1


@pytest.mark.parametrize(
    ("spec", "shape"),
    [(P("x", "y"), (8, 16)), (P("y", "x"), (8, 16)), (P(("y", "x")), (8, 16)), (P(None, "y"), (8, 16))],
)
def test_a_tile_stands_where_its_slice_is(spec, shape):
    layout = describe(NamedSharding(MESH, spec), shape)
    (svg,) = svgs(draw(layout))
    first_copy = {shard.device: shard for shard in layout.shards if shard.copy == 0}
    at = {device: (x, y) for device, x, y, *_ in tiles(svg) if device in first_copy}
    for a in first_copy.values():
        for b in first_copy.values():
            (down_a, right_a), (down_b, right_b) = a.index, b.index
            assert (at[a.device][1] < at[b.device][1]) == (down_a < down_b)
            assert (at[a.device][0] < at[b.device][0]) == (right_a < right_b)


def test_title_description_and_caption_come_from_the_data():
    (svg,) = svgs(draw(weights=describe(NamedSharding(MESH, P("x", None)), (4, 16))))
    assert svg.get("role") == "img"
    assert svg.find("title").text == "weights: f32[4@x, 16] on 8 devices"
    said = svg.find("desc").text
    assert said.startswith("Device 0 holds [0:2, 0:16] (copy 1); device 1 holds [0:2, 0:16] (copy 2);")
    assert said.endswith("device 7 holds [2:4, 0:16] (copy 4).")
    picture = draw(describe(NamedSharding(MESH, P("x", None)), (4, 16)))
    assert "2 tiles of (2, 16) × 4 copies on 8 devices, 128 bytes each" in picture.html
    assert "id=" not in picture.html  # the same picture may stand twice on a page
    assert picture._repr_html_() == picture.html and repr(picture) == picture.text


def test_names_are_escaped():
    picture = draw(**{"<a & b>": jnp.ones(3)})
    assert "<a &" not in picture.html and "&lt;a &amp; b&gt;" in picture.html
    assert svgs(picture)[0].find("title").text == "<a & b>: f32[3] on 1 device"


def test_meshes_show_their_axes_and_places():
    (svg,) = svgs(draw(MESH))
    at = {device: (x, y) for device, x, y, *_ in tiles(svg)}
    assert at[0][1] == at[3][1] < at[4][1] and at[0][0] == at[4][0] < at[1][0]
    words = [text.text for text in svg.iter("text")]
    assert "x ↓" in words and "y →" in words
    assert svg.find("title").text == "mesh x=2 x y=4, 8 devices"
    (svg,) = svgs(draw(make_mesh((2, 2, 2))))
    assert sorted(device for device, *_ in tiles(svg)) == list(range(8))
    assert {"a=0", "a=1", "b ↓", "c →"} <= {text.text for text in svg.iter("text")}
    assert sorted(device for device, *_ in tiles(svgs(draw(make_mesh((64,))))[0])) == list(range(64))


def test_a_pod_is_summarised():
    pod = AbstractMesh((16, 16, 16), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)
    for picture in (draw(pod), draw(NamedSharding(pod, P("x", "y", "z")), shape=(32, 32, 32))):
        (svg,) = svgs(picture)
        numbers = {device for device, *_ in tiles(svg)}
        assert {0, 15, 240, 3840, 4095} <= numbers and len(numbers) == 8
        assert "…" in {text.text for text in svg.iter("text")} and "4,096 devices" in picture.html
        assert len(picture.html) < 8_000
        assert svg.find("desc").text.endswith("and 4,080 more devices.")
    replicated = draw(NamedSharding(pod, P()), shape=(8,))
    assert "the first and the last tiles of copy 1 of 4,096" in replicated.html


def test_uneven_pieces_are_drawn_in_their_size():
    layout = describe(NamedSharding(make_mesh((4,)), P("a")), (9,), uneven=True)
    picture = draw(layout)
    widths = [w for _, _, _, w, *_ in tiles(svgs(picture)[0])]
    assert len(widths) == 3 and widths[0] == widths[1] == widths[2]  # 3, 3, 3 and nothing
    assert "stroke-dasharray" in picture.html  # the fourth, empty, is still shown
    seven = tiles(svgs(draw(describe(NamedSharding(make_mesh((4,)), P("a")), (7,), uneven=True)))[0])
    assert [round(w / seven[0][3], 2) for _, _, _, w, *_ in seven] == [1, 1, 1, 0.5]


def test_pieces_without_elements_have_a_place_too():
    for shape, count in (((3,), 8), ((2,), 64), ((0,), 8)):
        picture = draw(describe(NamedSharding(make_mesh((count,)), P("a")), shape, uneven=True))
        (svg,) = svgs(picture)
        numbers = [int(text.text) for text in svg.iter("text") if text.text.isdigit()]
        assert sorted(numbers) == list(range(count))
    (svg,) = svgs(draw(describe(NamedSharding(MESH, P("x", "y")), (0, 0))))
    assert sorted(int(text.text) for text in svg.iter("text")) == list(range(8))


@pytest.mark.parametrize(
    "picture",
    [
        draw(describe(NamedSharding(make_mesh((64,)), P("a")), (64, 64))),
        draw(describe(NamedSharding(make_mesh((64,)), P(None, "a")), (64, 64))),
        draw(describe(NamedSharding(make_mesh((8, 8)), P("a")), (64, 64))),
        draw(describe(NamedSharding(make_mesh((8, 8)), P()), (64, 64))),
        draw(describe(NamedSharding(make_mesh((4, 4, 4)), P("b", "c", "a")), (8, 8, 8))),
        draw(describe(NamedSharding(make_mesh((64,)), P("a")), (64, 4, 4))),
        draw(make_mesh((8, 8))),
        draw(make_mesh((4, 4, 4))),
        draw(make_mesh((16, 2, 2), ["batch", "sequence", "model"])),
    ],
    ids=["64 rows", "64 columns", "8 copies", "64 copies", "slabs", "64 slabs", "mesh", "3-D mesh", "long names"],
)
def test_64_devices_are_drawn_in_full_and_legibly(picture):
    (svg,) = svgs(picture)
    assert sorted(device for device, *_ in tiles(svg)) == list(range(64))
    assert float(svg.get("width")) <= 330  # on a phone it need not be scaled, and digits keep their 13 px
    # Words stay inside the drawing.
    for text in svg.iter("text"):
        half = 0.25 * float(text.get("font-size")) * len(text.text) * (2 if text.get("text-anchor") == "end" else 1)
        assert float(text.get("x")) - half >= -2, text.text


def test_numbers_stand_out_from_every_colour():
    def luminance(colour):
        full = colour if len(colour) == 7 else "#" + "".join(2 * c for c in colour[1:])
        linear = [
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
            for c in (int(full[i : i + 2], 16) / 255 for i in (1, 3, 5))
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    (svg,) = svgs(draw(MESH))
    for group in svg.iter("g"):
        fill, ink = group.find("rect").get("fill"), group.find("text").get("fill")
        light, dark = sorted((luminance(fill), luminance(ink)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_consoles_get_box_drawing():
    assert draw(x=describe(NamedSharding(MESH, P("x", "y")), (4, 16))).text.splitlines() == [
        "x: f32[4@x, 16@y]",
        "┌───┬───┬───┬───┐",
        "│ 0 │ 1 │ 2 │ 3 │",
        "├───┼───┼───┼───┤",
        "│ 4 │ 5 │ 6 │ 7 │",
        "└───┴───┴───┴───┘",
        "8 tiles of (2, 4) × 1 copy on 8 devices, 32 bytes each.",
    ]
    assert "│ 0 1 2 3 │" in draw(describe(NamedSharding(MESH, P("x")), (4, 16))).text


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="needs something to draw"):
        draw()
    with pytest.raises(TypeError, match="needs the shape"):
        draw(NamedSharding(MESH, P("x")))
    with pytest.raises(ValueError, match="use a multiple of 2"):
        draw(NamedSharding(MESH, P("x")), shape=(3,))


def test_no_data_leaves_its_device():
    """Drawing asks only for the sharding: an array that was deleted can still be drawn."""
    x = jax.device_put(jnp.ones((4, 8)), NamedSharding(MESH, P("x", "y")))
    x.delete()
    assert len(tiles(svgs(draw(x))[0])) == 8
