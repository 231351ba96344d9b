"""shardlab.draw: what a reader can count in a picture must be what the layout says."""

import gzip
import re
from itertools import pairwise
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from test_layout import MESH, make_mesh, shardings

from shardlab.draw import PALETTE, bars, draw, draw_matmul, draw_shard_map, timeline
from shardlab.layout import describe


def svgs(picture):
    """The drawings in a picture, parsed: an error if the markup is not well-formed."""
    parsed = ElementTree.fromstring(re.sub(r"<br>", "<br/>", picture.html)).iter("svg")
    return [svg for svg in parsed if svg.get("role")]  # an svg inside them clips stripes


def tiles(svg):
    """(device number as printed, x, y, width, height, fill) for every tile."""
    found = []
    for group in svg.iter("g"):
        rect, text = group.find("rect"), group.find("text")
        if rect is None or group.get("transform"):  # a group of tiles
            continue
        box = [float(rect.get(name)) for name in ("x", "y", "width", "height")]
        found.append((int(text.text), *box, rect.get("fill")))
    return found


def assert_words_stay_inside(svg):
    left, top, width, height = map(float, svg.get("viewBox").split())
    for text in svg.iter("text"):
        if not text.get("x"):
            continue
        length = 0.5 * float(text.get("font-size")) * len(text.text)
        start = float(text.get("x")) - length * {"start": 0, None: 0.5, "end": 1}[text.get("text-anchor")]
        assert start >= left - 2 and start + length <= left + width + 2, text.text
        assert top < float(text.get("y")) <= top + height, text.text
        assert float(text.get("font-size")) >= 12, text.text


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
    first_replica = {shard.device: shard for shard in layout.shards if shard.replica == 0}
    at = {device: (x, y) for device, x, y, *_ in tiles(svg) if device in first_replica}
    for a in first_replica.values():
        for b in first_replica.values():
            (down_a, right_a), (down_b, right_b) = a.index, b.index
            assert (at[a.device][1] < at[b.device][1]) == (down_a < down_b)
            assert (at[a.device][0] < at[b.device][0]) == (right_a < right_b)


def test_title_description_and_caption_come_from_the_data():
    (svg,) = svgs(draw(weights=describe(NamedSharding(MESH, P("x", None)), (4, 16))))
    assert svg.get("role") == "img"
    assert svg.find("title").text == "weights: f32[4@x, 16] on 8 devices"
    said = svg.find("desc").text
    assert said.startswith("Device 0 holds [0:2, 0:16] (replica 1); device 1 holds [0:2, 0:16] (replica 2);")
    assert said.endswith("device 7 holds [2:4, 0:16] (replica 4).")
    picture = draw(describe(NamedSharding(MESH, P("x", None)), (4, 16)))
    assert "local shape (2, 16), 2 shards × 4 replicas on 8 devices, 128 bytes each." in picture.html
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
    assert "x=2" in words and "y=4" in words
    assert svg.find("title").text == "mesh x=2 x y=4, 8 devices"
    (svg,) = svgs(draw(make_mesh((2, 2, 2))))
    assert sorted(device for device, *_ in tiles(svg)) == list(range(8))
    assert {"a=0", "a=1", "b=2", "c=2"} <= {text.text for text in svg.iter("text")}
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
    assert "the first and the last tiles of replica 1 of 4,096" in replicated.html


def test_uneven_shards_are_drawn_in_their_size():
    layout = describe(NamedSharding(make_mesh((4,)), P("a")), (9,), uneven=True)
    picture = draw(layout)
    widths = [w for _, _, _, w, *_ in tiles(svgs(picture)[0])]
    assert len(widths) == 3 and widths[0] == widths[1] == widths[2]  # 3, 3, 3 and nothing
    assert "stroke-dasharray" in picture.html  # the fourth, empty, is still shown
    seven = tiles(svgs(draw(describe(NamedSharding(make_mesh((4,)), P("a")), (7,), uneven=True)))[0])
    assert [round(w / seven[0][3], 2) for _, _, _, w, *_ in seven] == [1, 1, 1, 0.5]


def test_shards_without_elements_have_a_place_too():
    for shape, count in (((3,), 8), ((2,), 64), ((0,), 8)):
        picture = draw(describe(NamedSharding(make_mesh((count,)), P("a")), shape, uneven=True))
        (svg,) = svgs(picture)
        numbers = [int(text.text) for text in svg.iter("text") if text.text.isdigit()]
        assert sorted(numbers) == list(range(count))
    (svg,) = svgs(draw(describe(NamedSharding(MESH, P("x", "y")), (0, 0))))
    numbers = [int(text.text) for text in svg.iter("text") if text.text.isdigit()]
    assert sorted(numbers) == list(range(8))


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
    ids=["64 rows", "64 columns", "8 replicas", "64 replicas", "slabs", "64 slabs", "mesh", "3-D mesh", "long names"],
)
def test_64_devices_are_drawn_in_full_and_legibly(picture):
    (svg,) = svgs(picture)
    assert sorted(device for device, *_ in tiles(svg)) == list(range(64))
    assert float(svg.get("width")) <= 330  # on a phone it need not be scaled, and digits keep their 13 px
    assert_words_stay_inside(svg)


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
        "local shape (2, 4), 8 shards on 8 devices, 32 bytes each.",
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


# --- Names, partial sums, products, shard_map, bars and time -----------------------------------------------------

LINE = make_mesh((8,), "d")


def struct(shape, spec, mesh=MESH):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))


def words_of(svg):
    return [text.text for text in svg.iter("text")]


def hatched(svg):
    """The devices whose tiles are hatched."""
    return {int(group.find("text").text) for group in svg.iter("g") if group.find("svg") is not None}


def test_dimensions_carry_their_names_sizes_and_axes():
    picture = draw(A=struct((16, 32), P("x", "y")), B=struct((32, 24), P("y")), dims={"A": "MJ", "B": ["J", "N"]})
    a, b = svgs(picture)
    assert {"M=16@x", "J=32@y"} <= set(words_of(a)) and {"J=32@y", "N=24"} <= set(words_of(b))
    assert "replicas over x →" in words_of(b) and not [word for word in words_of(a) if "over" in word]
    # An arrow for each dimension that an axis shards, and only for those.
    assert [sum(1 for path in svg.iter("path")) for svg in (a, b)] == [2, 1]
    assert {"J=32", "M=16@x"} <= set(words_of(svgs(draw(struct((16, 32), P("x", None)), dims="MJ"))[0]))
    for svg in (a, b):
        assert_words_stay_inside(svg)


def test_partial_sums_are_hatched_and_said():
    (svg,) = svgs(draw(C=struct((16, 24), P("x")), partial={"C": "y"}))
    assert hatched(svg) == set(range(8)) and "partial sums over y →" in words_of(svg)
    assert "partial sums of [0:8, 0:24] (partial sum 1)" in svg.find("desc").text
    both = draw(C=struct((16, 24), P()), partial={"C": ("x", "y")})
    assert "1 shard × 8 partial sums on 8 devices" in both.html and "│ 0+1+2+3+4+5+6+7 │" in both.text
    some = draw(struct((16, 24), P()), partial="x")
    assert "1 shard × 2 partial sums × 4 replicas on 8 devices, 1,536 bytes each" in some.text
    plain = svgs(draw(struct((16, 24), P())))[0]
    assert not hatched(plain) and "replicas over (x,y) →" in words_of(plain)


def test_unreduced_arrays_are_drawn_as_partial_sums():
    grid = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    picture = draw(C=struct((16, 24), P("x", unreduced={"y"}), grid))
    assert hatched(svgs(picture)[0]) == set(range(8)) and picture.text.startswith("C: f32[16@x, 24]{U:y}\n")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"dims": {"A": "MJN"}}, ValueError, "A of shape .16, 32. needs 2 names of dimensions, not 3"),
        ({"dims": {"a": "MJ"}}, ValueError, "dims= names 'a', but drawn are .'A', 'B'.; did you mean 'A'"),
        ({"dims": "MJ"}, TypeError, "dims= must say which of .'A', 'B'. it is for"),
        ({"dims": {"A": 2}}, TypeError, "a text or a sequence of texts"),
        ({"partial": {"A": "z"}}, ValueError, "the mesh has no axis 'z' for partial sums, only .'x', 'y'"),
        ({"partial": {"A": "x"}}, ValueError, "sharded over 'x'"),
        ({"partial": {"C": "x"}}, ValueError, "partial= names 'C'"),
    ],
)
def test_wrong_names_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        draw(A=struct((16, 32), P("x")), B=struct((32, 24), P()), **options)


def test_meshes_and_arrays_without_a_mesh_have_no_dims_or_partial_sums():
    with pytest.raises(TypeError, match="dims= is for arrays, and 'mesh' is none"):
        draw(mesh=MESH, dims={"mesh": "xy"})
    with pytest.raises(ValueError, match="placed on no mesh"):
        draw(jnp.ones(3), partial="x")


MATMULS = {
    "rows": (LINE, P("d"), P(), P("d"), None),
    "inner": (LINE, P(None, "d"), P("d"), P(), "d"),
    "both outer": (LINE, P("d"), P(None, "d"), P(None, "d"), None),
    "two axes": (MESH, P("x"), P(None, "y"), P("x", "y"), None),
    "inner over y": (MESH, P("x", "y"), P("y"), P("x"), "y"),
    "replicated": (MESH, P(), P(), P(), None),
    "64": (make_mesh((8, 8)), P("a", None), P(None, "b"), P("a", "b"), None),
}


@pytest.mark.parametrize("case", MATMULS)
def test_a_product_is_drawn_in_one_row_with_its_contracting_dimension(case):
    mesh, *specs, partial = MATMULS[case]
    shapes = [(16, 32), (32, 24), (16, 24)]
    arrays = [struct(shape, spec, mesh) for shape, spec in zip(shapes, specs, strict=True)]
    picture = draw_matmul(*arrays, partial=partial)
    drawn = svgs(picture)
    for svg, array in zip(drawn, arrays, strict=True):
        layout = describe(array)
        found = {device: box for device, *box, _ in tiles(svg)}
        assert sorted(found) == sorted(layout.devices)
        # Every device stands where its slice is: the order of slices is that of places, down and right.
        shards = {shard.device: shard for shard in layout.shards}
        for a in found:
            for b in found:
                for dim, (at, extent) in enumerate(((1, 3), (0, 2))):
                    if shards[a].index[dim] < shards[b].index[dim]:
                        assert found[a][at] + found[a][extent] <= found[b][at] + 0.5
        assert_words_stay_inside(svg)
        assert layout.type in svg.find("title").text
    bold = [[text.text for text in svg.iter("text") if text.get("font-weight")] for svg in drawn]
    assert [names and names[0][0] for names in bold] == ["J", "J", []]
    assert "The contracting dimension is J." in picture.text
    assert hatched(drawn[2]) == (set(range(mesh.size)) if partial else set())
    for array in arrays:
        assert f"local shape {describe(array).shard_shape}" in picture.html


def test_products_that_do_not_fit_are_refused():
    a, b, c = struct((16, 32), P("x")), struct((32, 24), P()), struct((16, 24), P("x"))
    with pytest.raises(ValueError, match=r"A of shape .16, 32. has 32 columns but B of shape .16, 24. has 16 rows"):
        draw_matmul(a, c, c)
    with pytest.raises(ValueError, match=r"has shape .16, 24., but C has shape .32, 24."):
        draw_matmul(a, b, b)
    with pytest.raises(ValueError, match="needs 3 names of dimensions, not 2"):
        draw_matmul(a, b, c, dims="MN")
    with pytest.raises(ValueError, match="matrices, but A has shape"):
        draw_matmul(struct((16,), P("x")), b, c)
    with pytest.raises(TypeError, match="a NumPy array is stored on no device"):
        draw_matmul(np.ones((16, 32)), b, c)
    with pytest.raises(ValueError, match="sharded over 'x'"):
        draw_matmul(a, b, c, partial="x")
    with pytest.raises(ValueError, match="at most 16 shards along a dimension, but A has more"):
        line = make_mesh((64,))
        draw_matmul(*(struct((64, 64), P("a"), line) for _ in range(3)))
    pod = AbstractMesh((16, 16), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(ValueError, match="at most 64 devices, not 256"):
        draw_matmul(*(struct((64, 64), P("x"), pod) for _ in range(3)))


def test_shard_map_shows_each_device_before_and_after_its_body():
    sums = jax.shard_map(lambda x: jax.lax.psum(x.sum(0), "x"), mesh=MESH, in_specs=P("x", "y"), out_specs=P("y"))
    x = jnp.arange(128.0).reshape(8, 16)
    picture = draw_shard_map(x, P("x", "y"), P("y"), sums(x), mesh=MESH, body="psum(x.sum(0))")
    (svg,) = svgs(picture)
    # In the argument, as arguments, as what they return, and in the result.
    assert sorted(device for device, *_ in tiles(svg)) == sorted(4 * list(range(8)))
    said = svg.find("desc").text
    assert "splits the argument into shards of (4, 4), one for each device." in said
    assert "runs psum(x.sum(0)) on its own and returns (4,)." in said
    assert "joins them along y into the result; along x, which it does not name, they must be equal." in said
    assert 'in_specs = P("x", "y")' in words_of(svg) and "result f32[16@y]" in words_of(svg)
    assert_words_stay_inside(svg)
    # Without mesh= it is that of the result; several arguments have a spec each.
    both = draw_shard_map((x, x), (P("d"), P(None, "d")), P(), struct((16,), P(), LINE), body=jnp.dot)
    assert "(1, 16) and (8, 2)" in both.text and "Each device runs dot" in both.text
    assert "into the result; along d, which it does not name" in both.text


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"in_specs": ("x", "y")}, TypeError, "in_specs must be a PartitionSpec such as"),
        ({"in_specs": (P("x"), P("y"))}, ValueError, "in_specs has 2 specs, but the number of arguments is 1"),
        ({"in_specs": P("x", None, "y")}, ValueError, "3 entries|rank"),
        ({"x": jnp.ones((3, 16))}, ValueError, "use a multiple of 2"),
        ({"x": 3.0}, TypeError, "the argument must be an array"),
        ({"x": jnp.ones((2, 4, 4))}, ValueError, "up to two dimensions"),
        ({"mesh": None}, TypeError, "needs a mesh"),
        ({"mesh": 8}, TypeError, "mesh must be a Mesh, not int"),
        ({"mesh": make_mesh((16,), "x"), "in_specs": P("x")}, ValueError, "16 devices, but .* at most 8"),
    ],
)
def test_a_shard_map_that_cannot_be_is_refused(given, error, words):
    right = {"x": jnp.ones((8, 16)), "in_specs": P("x", "y"), "out_specs": P(), "result": jnp.ones(4), "mesh": MESH}
    with pytest.raises(error, match=words):
        draw_shard_map(**{**right, **given})


MEMORY = {
    "data parallel": {"parameters": 4 * 2**20, "gradients": 4 * 2**20, "moments": 8 * 2**20},
    "FSDP": {"parameters": 2**19, "gradients": 2**19, "moments": 2**20},
}


def test_bars_are_as_long_as_their_values():
    picture = bars(MEMORY)
    (svg,) = svgs(picture)
    boxes = [[float(group.find("rect").get(key)) for key in ("x", "y", "width")] for group in svg.iter("g")]
    values = [value for held in MEMORY.values() for value in held.values()]
    scale = boxes[2][2] / values[2]
    assert all(abs(width - value * scale) <= 0.1 for (*_, width), value in zip(boxes, values, strict=True))
    for (x, y, width), (x2, y2, _) in pairwise(boxes):  # each begins where the one before it ends
        assert y < y2 or abs(x + width - x2) <= 0.1
    words = words_of(svg)
    assert "16 MiB" in words and "2 MiB = 0.5 + 0.5 + 1" in words and {"4", "8", "parameters"} <= set(words)
    assert "FSDP: parameters 0.5 + gradients 0.5 + moments 1 = 2 MiB" in svg.find("desc").text
    assert_words_stay_inside(svg)
    lines = picture.text.splitlines()
    assert lines[1].count("▒") == 30 and lines[2].count("▒") == 4  # 8 of 16 MiB in 60 columns, and 1 of 16
    assert "parameters 4 + gradients 4 + moments 8 = 16 MiB" in lines[1]


def test_bars_take_plain_numbers_too():
    picture = bars({"float32": 224, "bfloat16": np.float32(112)}, unit="")
    assert words_of(svgs(picture)[0]) == ["float32", "224", "bfloat16", "112"]
    assert bars({"nothing": 0, "none": {}}).text.splitlines()[0].strip() == "nothing   0 MiB"
    for value, shown in ((1536, "1.5 KiB"), (10 * 1024, "10 KiB"), (2**20, "1,024 KiB"), (1, "0.000977 KiB")):
        assert bars({"x": value}, unit="KiB").text.endswith(shown)


@pytest.mark.parametrize(
    ("rows", "unit", "error", "words"),
    [
        ({}, "MiB", ValueError, "at least one row"),
        ([1, 2], "MiB", TypeError, "takes a dict"),
        ({"a": 1}, "MB", ValueError, "unit must be one of .*did you mean 'MiB'"),
        ({"a": {"b": -1}}, "B", ValueError, "a, b: a value must be finite and not negative, not -1"),
        ({"a": float("nan")}, "B", ValueError, "a: a value must be finite"),
        ({"a": {"b": "4"}}, "B", TypeError, "a, b: a value must be a number of bytes, not '4'"),
        ({"a": dict.fromkeys("abcdefghi", 1)}, "B", ValueError, "tells 8 kinds apart, but there are 9"),
    ],
)
def test_bars_that_mean_nothing_are_refused(rows, unit, error, words):
    with pytest.raises(error, match=words):
        bars(rows, unit)


LANES = {
    "process 0": [("compute", 0, 1), ("waits for process 3", 1, 3), ("all-reduce", 3, 3.2)],
    "process 3": [("compute", 0, 3), ("all-reduce", 3, 3.2)],
}


def test_a_timeline_is_to_scale_and_hatches_what_waits():
    picture = timeline(LANES)
    (svg,) = svgs(picture)
    groups = list(svg.iter("g"))
    drawn = [(float(g.find("rect").get("x")), float(g.find("rect").get("width"))) for g in groups]
    segments = [segment for lane in LANES.values() for segment in lane]
    scale = max(x + width for x, width in drawn) / 3.2
    for (x, width), (_, start, end) in zip(drawn, segments, strict=True):
        assert abs(x - start * scale) <= 0.1 and abs(width - (end - start) * scale) <= 0.1
    assert [g.find("svg") is not None for g in groups] == [label.startswith("waits") for label, *_ in segments]
    fills = {label: g.find("rect").get("fill") for (label, *_), g in zip(segments, groups, strict=True)}
    assert fills["compute"] != fills["all-reduce"] and fills["waits for process 3"] == "none"
    assert {"process 0", "process 3", "compute", "all-reduce", "0", "3.2 s"} <= set(words_of(svg))
    assert "waits for process 3 1 to 3 s" in svg.find("desc").text
    assert_words_stay_inside(svg)
    assert picture.text.splitlines()[0].startswith("process 0  |compute····")
    assert timeline({"a": [("x", 5, 5)]}, unit="").text  # a moment


@pytest.mark.parametrize(
    ("lanes", "error", "words"),
    [
        ({}, ValueError, "at least one segment"),
        ({"a": []}, ValueError, "at least one segment"),
        ([("x", 0, 1)], TypeError, "takes a dict"),
        ({"a": [("x", 1)]}, TypeError, "a: a segment is .label, start, end."),
        ({"a": [("x", "0", 1)]}, TypeError, "a text and two numbers"),
        ({"a": [("x", 2, 1)]}, ValueError, "a: 'x' starts at 2 and ends at 1"),
        ({"a": [("x", 0, 2), ("y", 1, 3)]}, ValueError, "a: 'y' starts at 1.0, before 'x' ends at 2.0"),
        ({"a": [(f"{i}", i, i + 1) for i in range(9)]}, ValueError, "tells 8 labels apart, but there are 9"),
    ],
)
def test_timelines_that_mean_nothing_are_refused(lanes, error, words):
    with pytest.raises(error, match=words):
        timeline(lanes)


def test_pictures_are_small_and_have_no_ids():
    for picture in (bars(MEMORY), timeline(LANES), draw(struct((8, 8), P())), draw(A=struct((8, 8), P("x", "y")))):
        assert len(gzip.compress(picture.html.encode())) < 1500 and " id=" not in picture.html
        (svg,) = svgs(picture)
        assert svg.get("role") == "img" and len(svg.find("title").text) > 10 and len(svg.find("desc").text) > 10
        assert float(svg.get("width")) <= 330
