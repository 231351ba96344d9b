"""shardlab.pictures.draw: what a reader can count in a picture must be what the layout says."""

import gzip
import re
from itertools import pairwise
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P
from meshes import MESH, make_mesh, shardings
from places import ROOT

from shardlab import Pod, collectives, describe
from shardlab.pictures.draw import (
    PALETTE,
    bars,
    draw,
    draw_backward,
    draw_matmul,
    draw_shard_map,
    draw_torus,
    timeline,
)

pytestmark = pytest.mark.reads("src/shardlab", "src/bookbinder/page/theme/static")

THEME = ROOT / "src" / "bookbinder" / "page" / "theme" / "static"


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
        start = (
            float(text.get("x"))
            - length * {"start": 0, None: 0.5, "end": 1}[text.get("text-anchor")]
        )
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
            assert (
                x + w <= x2 + 0.5 or x2 + w2 <= x + 0.5 or y + h <= y2 + 0.5 or y2 + h2 <= y + 0.5
            )
    # Nothing sticks out of the drawing.
    left, top, width, height = map(float, svg.get("viewBox").split())
    assert all(
        x >= left and y >= top and x + w <= left + width and y + h <= top + height
        for _, x, y, w, h, _ in drawn
    )
    # All tiles of an even layout have the same size: the inked area is the memory in use.
    assert len({(w, h) for _, _, _, w, h, _ in drawn}) == 1


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (P("x", "y"), (8, 16)),
        (P("y", "x"), (8, 16)),
        (P(("y", "x")), (8, 16)),
        (P(None, "y"), (8, 16)),
    ],
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
    assert said.startswith(
        "Device 0 holds [0:2, 0:16] (replica 1); device 1 holds [0:2, 0:16] (replica 2);"
    )
    assert said.endswith("device 7 holds [2:4, 0:16] (replica 4).")
    picture = draw(describe(NamedSharding(MESH, P("x", None)), (4, 16)))
    assert (
        "local shape (2, 16), 2 shards × 4 replicas on 8 devices, 128 bytes each." in picture.html
    )
    assert "id=" not in picture.html  # the same picture may stand twice on a page
    assert picture._repr_html_() == picture.html and repr(picture) == picture.text


def said(picture):
    """{device: what a page says of its tiles} for each drawing."""
    found = []
    for svg in svgs(picture):
        tiles = [group for group in svg.iter("g") if group.get("data-says")]
        found.append({int(tile.get("data-device")): tile.get("data-says") for tile in tiles})
        assert all(tile.find("text").text == tile.get("data-device") for tile in tiles)
    return found


@settings(max_examples=60, deadline=None)
@given(shardings(even=True).filter(lambda case: 0 not in case[1]))
def test_each_tile_says_what_its_device_holds_and_why(case):
    """Held against JAX's own index map."""
    sharding, shape = case
    (words,) = said(draw(describe(sharding, shape)))
    mesh, spec = sharding.mesh, [*sharding.spec, *[None] * (len(shape) - len(sharding.spec))]
    assert len(words) == mesh.size
    for device, index in sharding.devices_indices_map(shape).items():
        at = dict(
            zip(mesh.axis_names, map(int, np.argwhere(mesh.devices == device)[0]), strict=True)
        )
        place = ", ".join(f"{axis}={value}" for axis, value in at.items())
        assert words[device.id].startswith(f"device {device.id}, at {place}: ")
        for size, part, axes in zip(shape, index, spec, strict=True):
            start, stop, _ = part.indices(size)
            assert f" {start}:{stop}" in words[device.id]
            if axes:
                axes = (axes,) if isinstance(axes, str) else axes
                blocks = np.prod([mesh.shape[axis] for axis in axes])
                block = start * blocks // size
                assert f"→ block {block} of {blocks}" in words[device.id]
        assert (len(words[device.id].split("→")) > 1) == any(spec)


def test_what_a_tile_says_in_full():
    assert said(draw(describe(NamedSharding(MESH, P("x", "y")), (8, 16))))[0][5] == (
        'device 5, at x=1, y=1: rows 4:8, columns 4:8 (P("x", "y"): rows over x → block 1 of 2, '
        "columns over y → block 1 of 4)"
    )
    assert said(draw(describe(NamedSharding(MESH, P()), (4, 16))))[0][0] == (
        "device 0, at x=0, y=0: rows 0:4, columns 0:16 (P(None, None): not sharded), one of 8 "
        "replicas"
    )
    partial = draw(
        C=describe(NamedSharding(MESH, P("x")), (4, 16)), partial={"C": "y"}, dims={"C": "MN"}
    )
    assert said(partial)[0][6] == (
        'device 6, at x=1, y=2: M 2:4, N 0:16 (P("x", None): M over x → block 1 of 2), one of '
        "4 partial sums"
    )
    assert said(draw(MESH))[0][7] == "device 7, at x=1, y=3"
    assert said(draw(jnp.ones(3))) == [{0: "device 0: elements 0:3"}]


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
    assert sorted(device for device, *_ in tiles(svgs(draw(make_mesh((64,))))[0])) == list(
        range(64)
    )


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
    seven = tiles(
        svgs(draw(describe(NamedSharding(make_mesh((4,)), P("a")), (7,), uneven=True)))[0]
    )
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
    ids=[
        "64 rows",
        "64 columns",
        "8 replicas",
        "64 replicas",
        "slabs",
        "64 slabs",
        "mesh",
        "3-D mesh",
        "long names",
    ],
)
def test_64_devices_are_drawn_in_full_and_legibly(picture):
    (svg,) = svgs(picture)
    assert sorted(device for device, *_ in tiles(svg)) == list(range(64))
    # on a phone it need not be scaled, and digits keep their 13 px
    assert float(svg.get("width")) <= 330
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


# --- Names, partial sums, products, shard_map, bars and time --------------------------------------

LINE = make_mesh((8,), "d")


def struct(shape, spec, mesh=MESH):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))


def words_of(svg):
    return [text.text for text in svg.iter("text")]


def hatched(svg):
    """The devices whose tiles are hatched."""
    return {
        int(group.find("text").text) for group in svg.iter("g") if group.find("svg") is not None
    }


def test_dimensions_carry_their_names_sizes_and_axes():
    picture = draw(
        A=struct((16, 32), P("x", "y")),
        B=struct((32, 24), P("y")),
        dims={"A": "MJ", "B": ["J", "N"]},
    )
    a, b = svgs(picture)
    assert {"M=16@x", "J=32@y"} <= set(words_of(a)) and {"J=32@y", "N=24"} <= set(words_of(b))
    assert "replicas over x →" in words_of(b) and not [
        word for word in words_of(a) if "over" in word
    ]
    # An arrow for each dimension that an axis shards, and only for those.
    assert [sum(1 for path in svg.iter("path")) for svg in (a, b)] == [2, 1]
    assert {"J=32", "M=16@x"} <= set(
        words_of(svgs(draw(struct((16, 32), P("x", None)), dims="MJ"))[0])
    )
    for svg in (a, b):
        assert_words_stay_inside(svg)


def test_partial_sums_are_hatched_and_said():
    (svg,) = svgs(draw(C=struct((16, 24), P("x")), partial={"C": "y"}))
    assert hatched(svg) == set(range(8)) and "partial sums over y →" in words_of(svg)
    assert "partial sums of [0:8, 0:24] (partial sum 1)" in svg.find("desc").text
    both = draw(C=struct((16, 24), P()), partial={"C": ("x", "y")})
    assert (
        "1 shard × 8 partial sums on 8 devices" in both.html and "│ 0+1+2+3+4+5+6+7 │" in both.text
    )
    some = draw(struct((16, 24), P()), partial="x")
    assert "1 shard × 2 partial sums × 4 replicas on 8 devices, 1,536 bytes each" in some.text
    plain = svgs(draw(struct((16, 24), P())))[0]
    assert not hatched(plain) and "replicas over (x,y) →" in words_of(plain)


def test_unreduced_arrays_are_drawn_as_partial_sums():
    grid = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    picture = draw(C=struct((16, 24), P("x", unreduced={"y"}), grid))
    assert hatched(svgs(picture)[0]) == set(range(8)) and picture.text.startswith(
        "C: f32[16@x, 24]{U:y}\n"
    )


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"dims": {"A": "MJN"}},
            ValueError,
            "A of shape .16, 32. needs 2 names of dimensions, not 3",
        ),
        (
            {"dims": {"a": "MJ"}},
            ValueError,
            "dims= names 'a', but drawn are .'A', 'B'.; did you mean 'A'",
        ),
        ({"dims": "MJ"}, TypeError, "dims= must say which of .'A', 'B'. it is for"),
        ({"dims": {"A": 2}}, TypeError, "a text or a sequence of texts"),
        (
            {"partial": {"A": "z"}},
            ValueError,
            "the mesh has no axis 'z' for partial sums, only .'x', 'y'",
        ),
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
        # In each replica every device stands where its slice is: the order of slices is that of
        # places.
        shards = {shard.device: shard for shard in layout.shards}
        for a in found:
            for b in (b for b in found if shards[a].replica == shards[b].replica):
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


# For each product: what is gathered before it, what is added up after it, and the bytes of a ring
# in total.
SENT = {
    "rows": (LINE, P("d"), P(), P("d"), [], "", 0),
    "inner": (LINE, P(None, "d"), P("d"), P(), [], "all-reduce", 2 * 7 / 8 * 16 * 24 * 4),
    "scattered": (LINE, P(None, "d"), P("d"), P("d"), [], "reduce-scatter", None),
    "both outer": (LINE, P("d"), P(None, "d"), P(None, "d"), ["A"], "", 7 / 8 * 16 * 32 * 4),
    "two axes": (
        MESH,
        P(None, "x"),
        P("y"),
        P(),
        ["A", "B"],
        "",
        (1 / 2 * 16 * 32 + 3 / 4 * 32 * 24) * 4,
    ),
}


@pytest.mark.parametrize("case", SENT)
def test_the_collectives_of_a_product_are_arrows_from_what_was_to_what_is(case):
    mesh, *specs, gathered, adds, sent_bytes = SENT[case]
    a, b, c = (
        struct(s, spec, mesh) for s, spec in zip([(16, 32), (32, 24), (16, 24)], specs, strict=True)
    )
    if case == "scattered":  # XLA's compiler for CPUs makes none of its own
        product = jax.shard_map(
            lambda a, b: jax.lax.psum_scatter(a @ b, "d", tiled=True),
            mesh=mesh,
            in_specs=(*specs[:2],),
            out_specs=specs[2],
        )
    else:
        product = jax.jit(jnp.matmul, out_shardings=c.sharding)
    sent = collectives(product, a, b)
    assert sent_bytes is None or sent.bytes == sent_bytes
    picture = draw_matmul(a, b, c, sends=sent)
    for name, array, svg in zip("ABC", (a, b, c), svgs(picture), strict=True):
        steps = [
            text.text for text in svg.iter("text") if text.get("font-weight") and "-" in text.text
        ]
        changed = name in gathered or (name == "C" and adds)
        assert len(steps) == bool(changed)
        if changed:
            move = next(m for m in sent.moves if f"{m.kind} {m.axes[0]}" == steps[0])
            assert f"{move.bytes:,} bytes each" in words_of(svg)
            # What was sharded stands above what is replicated: each device is drawn in both.
            assert sorted(device for device, *_ in tiles(svg)) == sorted(2 * list(range(8)))
            assert f"local shape {describe(array).shard_shape}" in (
                words_of(svg) if name in gathered else picture.html
            )
        assert (name == "C" and bool(adds)) == bool(hatched(svg))
        assert_words_stay_inside(svg)
    assert ("Nothing is sent." in picture.text) == (not sent)
    assert picture.text.count("each device sends") == len(sent.moves)


def test_products_that_do_not_fit_are_refused():
    a, b, c = struct((16, 32), P("x")), struct((32, 24), P()), struct((16, 24), P("x"))
    with pytest.raises(
        ValueError, match=r"A of shape .16, 32. has 32 columns but B of shape .16, 24. has 16 rows"
    ):
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
    sums = jax.shard_map(
        lambda x: jax.lax.psum(x.sum(0), "x"), mesh=MESH, in_specs=P("x", "y"), out_specs=P("y")
    )
    x = jnp.arange(128.0).reshape(8, 16)
    picture = draw_shard_map(x, P("x", "y"), P("y"), sums(x), mesh=MESH, body="psum(x.sum(0))")
    (svg,) = svgs(picture)
    # In the argument, as arguments, as what they return, and in the result.
    assert sorted(device for device, *_ in tiles(svg)) == sorted(4 * list(range(8)))
    said = svg.find("desc").text
    assert "splits the argument into shards of (4, 4), one for each device." in said
    assert "runs psum(x.sum(0)) on its own and returns (4,)." in said
    assert (
        "joins them along y into the result; along x, which it does not name, they must be equal."
        in said
    )
    assert 'in_specs = P("x", "y")' in words_of(svg) and "result f32[16@y]" in words_of(svg)
    assert_words_stay_inside(svg)
    # Without mesh= it is that of the result; several arguments have a spec each.
    both = draw_shard_map(
        (x, x), (P("d"), P(None, "d")), P(), struct((16,), P(), LINE), body=jnp.dot
    )
    assert "(1, 16) and (8, 2)" in both.text and "Each device runs dot" in both.text
    assert "into the result; along d, which it does not name" in both.text


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"in_specs": ("x", "y")}, TypeError, "in_specs must be a PartitionSpec such as"),
        (
            {"in_specs": (P("x"), P("y"))},
            ValueError,
            "in_specs has 2 specs, but the number of arguments is 1",
        ),
        ({"in_specs": P("x", None, "y")}, ValueError, "3 entries|rank"),
        ({"x": jnp.ones((3, 16))}, ValueError, "use a multiple of 2"),
        ({"x": 3.0}, TypeError, "the argument must be an array"),
        ({"x": jnp.ones((2, 4, 4))}, ValueError, "up to two dimensions"),
        ({"mesh": None}, TypeError, "needs a mesh"),
        ({"mesh": 8}, TypeError, "mesh must be a Mesh, not int"),
        (
            {"mesh": make_mesh((16,), "x"), "in_specs": P("x")},
            ValueError,
            "16 devices, but .* at most 8",
        ),
    ],
)
def test_a_shard_map_that_cannot_be_is_refused(given, error, words):
    right = {
        "x": jnp.ones((8, 16)),
        "in_specs": P("x", "y"),
        "out_specs": P(),
        "result": jnp.ones(4),
        "mesh": MESH,
    }
    with pytest.raises(error, match=words):
        draw_shard_map(**{**right, **given})


MEMORY = {
    "data parallel": {"parameters": 4 * 2**20, "gradients": 4 * 2**20, "moments": 8 * 2**20},
    "FSDP": {"parameters": 2**19, "gradients": 2**19, "moments": 2**20},
}


def test_bars_are_as_long_as_their_values():
    picture = bars(MEMORY)
    (svg,) = svgs(picture)
    boxes = [
        [float(group.find("rect").get(key)) for key in ("x", "y", "width")]
        for group in svg.iter("g")
    ]
    values = [value for held in MEMORY.values() for value in held.values()]
    scale = boxes[2][2] / values[2]
    assert all(
        abs(width - value * scale) <= 0.1 for (*_, width), value in zip(boxes, values, strict=True)
    )
    for (x, y, width), (x2, y2, _) in pairwise(boxes):  # each begins where the one before it ends
        assert y < y2 or abs(x + width - x2) <= 0.1
    words = words_of(svg)
    assert (
        "16 MiB" in words
        and "2 MiB = 0.5 + 0.5 + 1" in words
        and {"4", "8", "parameters"} <= set(words)
    )
    assert "FSDP: parameters 0.5 + gradients 0.5 + moments 1 = 2 MiB" in svg.find("desc").text
    assert_words_stay_inside(svg)
    lines = picture.text.splitlines()
    # 8 of 16 MiB in 60 columns, and 1 of 16
    assert lines[1].count("▒") == 30 and lines[2].count("▒") == 4
    assert "parameters 4 + gradients 4 + moments 8 = 16 MiB" in lines[1]


def test_bars_take_plain_numbers_too():
    picture = bars({"float32": 224, "bfloat16": np.float32(112)}, unit="")
    assert words_of(svgs(picture)[0]) == ["float32", "224", "bfloat16", "112"]
    assert bars({"nothing": 0, "none": {}}).text.splitlines()[0].strip() == "nothing   0 MiB"
    for value, shown in (
        (1536, "1.5 KiB"),
        (10 * 1024, "10 KiB"),
        (2**20, "1,024 KiB"),
        (1, "0.000977 KiB"),
    ):
        assert bars({"x": value}, unit="KiB").text.endswith(shown)


@pytest.mark.parametrize(
    ("rows", "unit", "error", "words"),
    [
        ({}, "MiB", ValueError, "at least one row"),
        ([1, 2], "MiB", TypeError, "takes a dict"),
        ({"a": 1}, "MB", ValueError, "unit must be one of .*did you mean 'MiB'"),
        (
            {"a": {"b": -1}},
            "B",
            ValueError,
            "a, b: a value must be finite and not negative, not -1",
        ),
        ({"a": float("nan")}, "B", ValueError, "a: a value must be finite"),
        ({"a": {"b": "4"}}, "B", TypeError, "a, b: a value must be a number of bytes, not '4'"),
        (
            {"a": dict.fromkeys("abcdefghi", 1)},
            "B",
            ValueError,
            "tells 8 kinds apart, but there are 9",
        ),
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
    assert [g.find("svg") is not None for g in groups] == [
        label.startswith("waits") for label, *_ in segments
    ]
    fills = {
        label: g.find("rect").get("fill") for (label, *_), g in zip(segments, groups, strict=True)
    }
    assert fills["compute"] != fills["all-reduce"] and fills["waits for process 3"] == "none"
    assert {"process 0", "process 3", "compute", "all-reduce", "0", "3.2 s"} <= set(words_of(svg))
    assert "waits for process 3 1 to 3 s" in svg.find("desc").text
    assert_words_stay_inside(svg)
    assert picture.text.splitlines()[0].startswith("process 0  |compute····")
    assert timeline({"a": [("x", 5, 5)]}, unit="").text  # a moment


SKIPPED = {
    "process 0": [
        ("compute", 0, 1),
        ("all-reduce", 1, 3),
        ("compute", 3, 4),
        ("waits for the sum", 4, 20),
    ],
    "process 1": [("compute", 0, 2), ("all-reduce", 2, 3), ("compute", 3, 5)],
    "process 2": [("compute", 0, 3), ("compute", 4, 6), ("waits for the sum", 6, 20)],
}


def test_the_same_collective_is_joined_from_lane_to_lane_and_a_missing_one_crossed():
    """Lane 1 is not at the second collective, and lane 2 is at one only."""
    picture = timeline(SKIPPED, meets=("all-reduce", "waits for the sum"))
    (svg,) = svgs(picture)
    assert_words_stay_inside(svg)
    words, said = words_of(svg), svg.find("desc").text
    assert {"1", "2", "does not reach 2"} <= set(words) and "does not reach 1" not in words
    assert (
        "Collective 1: process 0 at 1 s, process 1 at 2 s, process 2 at 6 s; every lane arrives."
        in said
    )
    assert (
        "Collective 2: process 0 at 4 s; process 1, process 2 do not arrive." in said
        and said.endswith(".")
    )
    assert (
        picture.text.splitlines()[-1]
        == "Collective 2: process 0 at 4 s; process 1, process 2 do not arrive."
    )
    # Each line leaves a lane where that lane arrives. Where one is missing, the line is dashed.
    lines = [path for path in svg.iter("path") if "L" in path.get("d")]
    assert [bool(path.get("stroke-dasharray")) for path in lines] == [False, False, True, True]
    from_first = [float(re.match(r"M([\d.]+)", path.get("d"))[1]) for path in lines][::2]
    first_lane = [float(group.find("rect").get("x")) for group in svg.iter("g")][:4]
    assert from_first == [first_lane[1], first_lane[3]]
    assert timeline({"a": [("x", 0, 1)], "b": [("x", 0, 1)]}, meets="x").text.endswith(
        "every lane arrives."
    )


def test_many_lanes_have_their_names_beside_them():
    many = {f"layer {i}": [("gather", i, i + 1), ("waits", i + 1, 20 - i)] for i in range(8)}
    (svg,) = svgs(timeline(many, unit="steps"))
    assert_words_stay_inside(svg)
    at = {
        text.text: float(text.get("y"))
        for text in svg.iter("text")
        if text.text.startswith("layer")
    }
    tops = [float(group.find("rect").get("y")) for group in svg.iter("g")][::2]
    assert all(top < y < top + 20 for top, y in zip(tops, at.values(), strict=True))
    assert float(svg.get("height")) < 8 * 20 + 60


@pytest.mark.parametrize(
    ("lanes", "error", "words"),
    [
        ({}, ValueError, "at least one segment"),
        ({"a": []}, ValueError, "at least one segment"),
        ([("x", 0, 1)], TypeError, "takes a dict"),
        ({"a": [("x", 1)]}, TypeError, "a: a segment is .label, start, end."),
        ({"a": [("x", "0", 1)]}, TypeError, "a text and two numbers"),
        ({"a": [("x", 2, 1)]}, ValueError, "a: 'x' starts at 2 and ends at 1"),
        (
            {"a": [("x", 0, 2), ("y", 1, 3)]},
            ValueError,
            "a: 'y' starts at 1.0, before 'x' ends at 2.0",
        ),
        (
            {"a": [(f"{i}", i, i + 1) for i in range(9)]},
            ValueError,
            "tells 8 labels apart, but there are 9",
        ),
    ],
)
def test_timelines_that_mean_nothing_are_refused(lanes, error, words):
    with pytest.raises(error, match=words):
        timeline(lanes)


def test_a_collective_that_no_lane_has_is_refused():
    with pytest.raises(
        ValueError,
        match=r"meets= names 'all-redcue', but the labels are .*did you mean 'all-reduce'",
    ):
        timeline(LANES, meets="all-redcue")


def test_pictures_are_small_and_have_no_ids():
    for picture in (
        bars(MEMORY),
        timeline(LANES),
        draw(struct((8, 8), P())),
        draw(A=struct((8, 8), P("x", "y"))),
    ):
        assert len(gzip.compress(picture.html.encode())) < 1500 and " id=" not in picture.html
        (svg,) = svgs(picture)
        assert (
            svg.get("role") == "img"
            and len(svg.find("title").text) > 10
            and len(svg.find("desc").text) > 10
        )
        assert float(svg.get("width")) <= 330


# --- The links of a torus -------------------------------------------------------------------------

# Of each slice and mesh: the links along each mesh axis, those along none, and those that wrap
# around.
TORUSES = {
    "rows and columns": ("v5e:4x4", (4, 4), 12, 12, 0, 0),
    "one axis": ("v5e:4x4", (16, 1), 24, 0, 0, 0),
    "halves": ("v5e:4x4", (8, 2), 12, 8, 4, 0),
    "rings of 16": ("v6e:16x16", (16, 16), 256, 256, 0, 32),
    "a cube": ("v5p:4x4x4", (16, 4), 128, 64, 0, 48),
    # model along z, where 4 chips are in a line
    "no cube": ("v5p:2x2x4", (4, 4), 4 * 4, 3 * 4, 0, 0),
}


@pytest.mark.parametrize("case", TORUSES)
def test_each_link_of_a_torus_has_the_colour_of_its_mesh_axis(case):
    name, shape, data, model, neither, wraps = TORUSES[case]
    pod, mesh = Pod(name), AbstractMesh(shape, ("data", "model"))
    picture = draw_torus(pod, mesh)
    (svg,) = svgs(picture)
    links = [path for path in svg.iter("path") if path.get("class")]
    between = sum(int(n) for n in re.findall(r"the (\d+) along z", picture.text))
    assert len(links) + between == data + model + neither
    drawn = [path.get("stroke") for path in links]
    assert drawn.count("currentColor") == neither
    if not between:
        assert drawn.count(PALETTE[0]) == data and drawn.count(PALETTE[1]) == model
    arcs = [path for path in links if path.get("class") == "wrap"]
    assert all("C" in path.get("d") for path in arcs)
    assert (f"{wraps} wrap around" if wraps else "none wraps around") in picture.text
    # Each chip is drawn once, and says where it is and what its position in the mesh is.
    tips = [re.findall(r"\(([\d, ]+)\)", group.find("title").text) for group in svg.iter("g")]
    said = {
        tuple(map(int, place.split(","))): tuple(map(int, position.split(",")))
        for place, position in tips
    }
    assert said == dict(zip(pod.places(mesh), np.ndindex(shape), strict=True)) and len(tips) == len(
        said
    )
    assert picture.text.splitlines()[-1] in svg.find("desc").text
    assert_words_stay_inside(svg)


def test_a_torus_that_cannot_be_drawn_is_refused():
    for name, shape, words in (
        ("tpu7x:2x2x1", (4, 2), "chips that are one device each"),
        ("v5p:8x8x8", (64, 8), "at most 256 chips, but v5p:8x8x8 has 512"),
        ("h100:1x8", (1, 8), "no torus"),
    ):
        with pytest.raises(ValueError, match=words):
            draw_torus(Pod(name), AbstractMesh(shape, ("data", "model")))


# --- The backward pass of shard_map ---------------------------------------------------------------


def vary(value):
    return (
        jax.lax.pcast(value, "d", to="varying")
        if hasattr(jax.lax, "pcast")
        else jax.lax.pvary(value, "d")
    )


# Of each operation: the specs of its argument and result, and its transpose.
TRANSPOSES = {
    "cast to varying": (vary, P(), P("d"), "psum"),
    "psum": (lambda v: jax.lax.psum(v, "d"), P("d"), P(), "cast to varying"),
    "all_gather": (
        lambda v: jax.lax.all_gather(v, "d", tiled=True),
        P("d"),
        P("d"),
        "psum_scatter",
    ),
    "psum_scatter": (
        lambda v: jax.lax.psum_scatter(v, "d", tiled=True),
        P("d"),
        P("d"),
        "all_gather",
    ),
    "ppermute": (lambda v: jax.lax.ppermute(v, "d", [(0, 1), (1, 2)]), P("d"), P("d"), "ppermute"),
    "all_to_all": (
        lambda v: jax.lax.all_to_all(v, "d", 0, 0, tiled=True),
        P("d"),
        P("d"),
        "all_to_all",
    ),
}
SENDING = {"psum": "all-reduce", "all_gather": "all-gather", "psum_scatter": "reduce-scatter",
           "ppermute": "collective-permute", "all_to_all": "all-to-all"}  # fmt: skip


@pytest.mark.parametrize("name", TRANSPOSES)
def test_each_collective_is_drawn_with_its_transpose(name):
    f, spec, out, transpose = TRANSPOSES[name]
    v = jax.ShapeDtypeStruct((128,), jnp.float32)
    line = draw_backward(f, spec, out, v, mesh=LINE).text.splitlines()[1]
    assert line.endswith(f"forward {name} d, backward {transpose} d.")

    # The compiled program of both passes sends just these.
    def both_passes(v):
        result, pull_back = jax.vjp(f, v)
        return pull_back(result)[0]

    sent = collectives(
        jax.shard_map(both_passes, mesh=LINE, in_specs=spec, out_specs=spec),
        np.ones(128, "float32"),
    )
    assert set(sent) == {SENDING[one] for one in (name, transpose) if one in SENDING}


def mean_loss(W, x):
    return jax.lax.pmean(jnp.tanh(x @ W).mean(), "d")


def gathered_loss(W, x):
    return mean_loss(jax.lax.all_gather(W, "d", tiled=True), x)


@pytest.mark.parametrize(
    ("body", "spec", "forward", "backward"),
    [
        (mean_loss, P(), "cast to varying d", "psum d"),
        (gathered_loss, P("d"), "all_gather d", "psum_scatter d"),
    ],
)
def test_the_spec_of_an_argument_decides_how_its_gradient_comes_back(body, spec, forward, backward):
    W, x = jax.ShapeDtypeStruct((16, 4), jnp.float32), jax.ShapeDtypeStruct((64, 16), jnp.float32)
    picture = draw_backward(body, (spec, P("d")), P(), W, x, mesh=LINE)
    (svg,) = svgs(picture)
    words = words_of(svg)
    assert_words_stay_inside(svg)
    down, up = ([word[2:] for word in words if word.startswith(arrow)] for arrow in "↓↑")
    assert down == [forward, "as it is", "psum d"] and up == [
        backward,
        "as it is",
        "cast to varying d",
    ]
    assert {"W: P()" if spec == P() else 'W: P("d")', body.__name__} <= set(words)
    assert f"f32[{16 // (8 if spec == P('d') else 1)},4]" in " ".join(words)
    # Arrows that send are solid: each label has a line and a head, in the order of the labels.
    lines = [path for path in svg.iter("path") if path.get("stroke-width") == "3"][::2]
    labels = [word[2:] for word in words if word[0] in "↓↑"]
    assert [path.get("stroke-dasharray") is None for path in lines] == [
        label.split()[0] in SENDING for label in labels
    ]
    assert svg.find("desc").text.count("forward") == 3


def test_numbers_without_a_cotangent_are_refused():
    with pytest.raises(TypeError, match="one of type int32 has no cotangent"):
        draw_backward(lambda v: v, P("d"), P("d"), jnp.arange(8), mesh=LINE)


def test_the_style_sheet_has_the_colours_of_the_devices():
    """The theme knows nothing of shardlab, so the eight colours stand in it too."""
    colours = re.findall(r"--device-(\d): (#\w{6});", (THEME / "book.css").read_text("utf-8"))
    assert [colour.upper() for _, colour in sorted(set(colours))] == [
        colour.upper() for colour in PALETTE
    ]
    assert {
        colour.upper()
        for colour in re.findall(r'fill="(#\w{6})"', (THEME / "icon.svg").read_text("utf-8"))
    } == {
        *(colour.upper() for colour in PALETTE),
        "#14213D",  # the ground
    }
