"""shardlab.programs.flows, and how draw shows it: held against collectives done on sets, by
hand.
"""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings, strategies as st
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh
from meshes import make_mesh

from shardlab.pictures.draw import PALETTE, draw, draw_all_reduce
from shardlab.programs.flows import Flow, Frame, follow

pytestmark = pytest.mark.reads("src/shardlab")


def line(n):
    return make_mesh((n,), ("d",))


def everything(n, chunks):
    """At the start: every device has its own chunks."""
    return tuple(tuple(((owner, chunk, 1),) for chunk in range(chunks)) for owner in range(n))


def total(n, chunk):
    return tuple((owner, chunk, 1) for owner in range(n))


# name: (the program, chunks for n devices, what device i has in the end)
KNOWN = {
    "psum": (lambda x: lax.psum(x, "d"), lambda n: 3, lambda n, i: [total(n, p) for p in range(3)]),
    "all_gather": (
        lambda x: lax.all_gather(x, "d", tiled=True), lambda n: 1, lambda n,
        i: [((o, 0, 1),) for o in range(n)],
    ),
    "psum_scatter": (lambda x: lax.psum_scatter(x, "d", tiled=True), lambda n: n, lambda n,
        i: [total(n, i)]),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "d", 0, 0, tiled=True), lambda n: n, lambda n,
        i: [((o, i, 1),) for o in range(n)],
    ),
    "nothing": (lambda x: x, lambda n: 2, lambda n, i: [((i, p, 1),) for p in range(2)]),
    "twice": (lambda x: x + x, lambda n: 1, lambda n, i: [((i, 0, 2),)]),
    "thrown away": (lambda x: 0 * x, lambda n: 1, lambda n, i: [()]),
}  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("name", KNOWN)
def test_what_each_device_holds(name, n):
    program, chunks, expected = KNOWN[name]
    flow = follow(program, line(n), chunks=chunks(n))
    before, after = flow.frames
    assert (before.title, after.title, flow.devices) == ("before", "after", tuple(range(n)))
    assert before.slots == everything(n, chunks(n))
    assert after.slots == tuple(tuple(expected(n, i)) for i in range(n))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_permutes_move_what_the_pairs_say(data):
    n = data.draw(st.integers(2, 8))
    sources = data.draw(st.lists(st.integers(0, n - 1), unique=True))
    targets = data.draw(st.permutations(range(n)))[: len(sources)]
    pairs = list(zip(sources, targets, strict=True))
    flow = follow(lambda x: lax.ppermute(x, "d", pairs), line(n))
    arrived = {target: source for source, target in pairs}
    assert flow.frames[1].slots == tuple(
        ((((arrived[i], 0, 1),) if i in arrived else ()),) for i in range(n)
    )
    moved = {((source, 0), (target, 0)) for source, target in pairs if source != target}
    assert set(flow.frames[1].sends) == moved and flow.frames[0].sends == ()


def around(x, steps):
    for _ in range(steps):
        x = lax.ppermute(x, "d", [(i, (i + 1) % 4) for i in range(4)])
    return x


def test_steps_are_frames():
    flow = follow(around, line(4), steps=5)
    assert [frame.title for frame in flow.frames] == ["start", *(f"step {k}" for k in range(1, 6))]
    for k, frame in enumerate(flow.frames):
        assert frame.slots == tuple(((((i - k) % 4, 0, 1),),) for i in range(4))


def ring_pairs(n):
    return [(i, (i + 1) % n) for i in range(n)]


def ring_all_reduce(held, steps):
    """As the book's: first a block is passed on and added to, then its sum is passed on."""
    n, i = len(held), lax.axis_index("d")
    for s in range(steps):
        out, into = (i - 1 - s) % n, (i - 2 - s) % n
        arrived = lax.ppermute(held[out], "d", ring_pairs(n))
        if s >= n - 1:
            held = held.at[into].set(arrived)
            continue
        held = held.at[out].set(0).at[into].add(arrived)
    return held


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_in_a_ring_each_device_sends_one_block_to_the_next_in_each_step(n):
    flow = follow(ring_all_reduce, line(n), chunks=n, steps=2 * (n - 1))
    assert flow.frames[-1].slots == (tuple(total(n, chunk) for chunk in range(n)),) * n
    for s, frame in enumerate(flow.frames[1:]):
        slot = {i: (i - 1 - s) % n for i in range(n)}
        assert set(frame.sends) == {((i, slot[i]), ((i + 1) % n, slot[i])) for i in range(n)}


def test_the_lines_that_sent_and_that_used_it_are_known():
    flow = follow(ring_all_reduce, line(3), chunks=3, steps=4)
    source = Path(__file__).read_text("utf-8").split("\n")
    assert flow.frames[0].lines == ()
    for frame, used in zip(flow.frames[1:], ["add"] * 2 + ["set"] * 2, strict=True):
        assert all(source[number - 1].strip() == words for number, words in frame.lines)
        sending, using = [words for _, words in frame.lines]
        assert (
            sending == 'arrived = lax.ppermute(held[out], "d", ring_pairs(n))'
            and f"{used}(arrived)" in using
        )


def swap_along_y(x):
    return lax.ppermute(x, "y", [(0, 1), (1, 0)])


def in_a_loop(x, steps):
    return lax.fori_loop(0, steps, lambda _, x: lax.ppermute(x, "d", ring_pairs(4)), x)


def test_sends_along_one_of_two_axes_in_loops_and_what_is_sent_to_many():
    swapped = follow(swap_along_y, make_mesh((2, 2), "xy")).frames[1]
    assert set(swapped.sends) == {((a, 0), (b, 0)) for a, b in [(0, 1), (1, 0), (2, 3), (3, 2)]}
    (looped,) = {frame.sends for frame in follow(in_a_loop, line(4), steps=3).frames[1:]}
    assert set(looped) == {((i, 0), ((i + 1) % 4, 0)) for i in range(4)}
    # What a built-in collective sends is not known, and what stays is not sent.
    for program in (lambda x: lax.psum(x, "d"), lambda x: x, lambda x: x + x):
        assert follow(program, line(4)).frames[1].sends == ()


def test_a_mesh_of_two_axes_an_explicit_one_and_devices_in_another_order():
    along_x = follow(lambda x: lax.psum(x, "x"), make_mesh((2, 2), "xy"))
    assert along_x.frames[1].slots == tuple((((a, 0, 1), (a + 2, 0, 1)),) for a in (0, 1, 0, 1))
    explicit = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
    assert follow(around, explicit, steps=1) == follow(around, line(4), steps=1)
    backwards = Mesh(line(4).devices[::-1], ("d",))
    flow = follow(lambda x: x, backwards)
    assert flow.devices == (3, 2, 1, 0)
    assert [flow.name(held[0]) for held in flow.frames[0].slots] == ["3", "2", "1", "0"]


@pytest.mark.parametrize(
    ("parts", "chunks", "name"),
    [
        (((2, 0, 1),), 1, "2"),
        (((2, 1, 1),), 4, "b2"),
        (((0, 2, 1), (3, 2, 1)), 4, "c0+3"),
        (total(4, 3), 4, "Σd"),
        (total(4, 0), 1, "Σ"),
        (((0, 0, 1), (1, 1, 1)), 2, "a0+b1"),
        (((1, 0, 2),), 1, "2×1"),
        (((0, 0, 1), (1, 0, 3)), 2, "a0+3×a1"),
        (tuple((owner, chunk, 1) for owner in range(4) for chunk in range(2)), 2, "8 parts"),
    ],
)
def test_names_of_what_is_held(parts, chunks, name):
    assert Flow((0, 1, 2, 3), chunks, ()).name(parts) == name


def test_long_sums_are_counted():
    assert Flow(tuple(range(8)), 2, ()).name(total(8, 0)[:5]) == "a 5/8"


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: follow(3, line(2)), TypeError, "function"),
        (lambda: follow(around, 4), TypeError, "make_mesh"),
        (lambda: follow(around, line(2), chunks=0), ValueError, "0 chunks"),
        (lambda: follow(around, line(2), chunks=9), ValueError, "9 chunks"),
        (lambda: follow(around, AbstractMesh((2,), ("d",))), TypeError, "AbstractMesh"),
        (
            lambda: follow(around, line(4), chunks="a"),
            TypeError,
            "chunks must be a whole number, not 'a'",
        ),
        (lambda: follow(around, line(4), steps=-1), ValueError, "-1 steps"),
        (lambda: follow(around, line(4), steps=1.5), TypeError, "steps must be a whole number"),
        (lambda: follow(lambda x: x / 2, line(2)), ValueError, "more with the chunks"),
        (lambda: follow(lambda x: -x, line(2)), ValueError, "more with the chunks"),
        (lambda: follow(lambda x: x + 1, line(2)), ValueError, "more with the chunks"),
        (lambda: follow(lambda x: lax.pmax(x, "d"), line(2)), ValueError, "more with the chunks"),
        (
            lambda: follow(lambda x: lax.psum(x, "d") ** 2, line(2)),
            ValueError,
            "more with the chunks",
        ),
        (lambda: follow(lambda x: x[:, ::-1], line(2)), ValueError, "more with the chunks"),
        (lambda: follow(lambda x: None, line(2)), ValueError, "made NoneType"),
        (lambda: follow(lambda x: x[:0], line(2)), ValueError, "but not their length"),
        (lambda: draw(follow(lambda x: x, line(2)), shape=(2,)), TypeError, "shape="),
        (lambda: follow(lambda x: x[:, :1], line(2)), ValueError, "but not their length"),
        (lambda: follow(lambda x: x.sum(0), line(2)), ValueError, "but not their length"),
    ],
)
def test_what_cannot_be_followed_is_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


# --- Pictures -------------------------------------------------------------------------------------


def svgs(picture):
    """The drawing of each frame."""
    return [figure.find("svg") for figure in ElementTree.fromstring(picture.html).iter("figure")]


def slots(svg):
    """(name, fill or None if striped, stripes' colours, bold) of every slot with something in
    it.
    """
    found = []
    for group in svg.iter("g"):
        if group.get("data-slot") is None:  # an arrow
            continue
        stripes = [path.get("stroke") for path in group.iter("path")]
        ground, outline = group.findall("rect")
        found.append(
            (
                group.find("text").text,
                None if stripes else ground.get("fill"),
                stripes,
                outline.get("stroke-width"),
            )
        )
    return found


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize(
    "name", ["psum", "all_gather", "psum_scatter", "all_to_all", "thrown away"]
)
def test_chunks_have_the_colour_of_their_owner_and_sums_are_striped(name, n):
    program, chunks, _ = KNOWN[name]
    flow = follow(program, line(n), chunks=chunks(n))
    frames = svgs(draw(flow))
    assert len(frames) == 2
    for svg, frame, earlier in zip(
        frames, flow.frames, (flow.frames[0], flow.frames[0]), strict=True
    ):
        expected = []
        for held, before in zip(frame.slots, earlier.slots, strict=True):
            for row, parts in enumerate(held):
                colours = [PALETTE[owner % 8] for owner, *_ in parts]
                new = parts not in before if len(before) != len(held) else before[row] != parts
                bold = "3" if new else None
                if parts:
                    one = len(parts) == 1
                    expected.append(
                        (
                            flow.name(parts),
                            colours[0] if one else None,
                            [] if one else colours,
                            bold,
                        )
                    )
        assert slots(svg) == expected
        dotted = [rect for rect in svg.iter("rect") if rect.get("stroke-dasharray")]
        assert len(dotted) == sum(not parts for held in frame.slots for parts in held)
        heads = [circle.get("fill") for circle in svg.iter("circle")]
        assert heads == [PALETTE[i % 8] for i in range(n)]
        # It fits a phone, nothing sticks out, and the description says who holds what.
        left, top, width, height = map(float, svg.get("viewBox").split())
        assert width <= 330
        for rect in svg.iter("rect"):
            x, y, w, h = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
            assert x >= left and y >= top and x + w <= left + width and y + h <= top + height
        for i, held in enumerate(frame.slots):
            names = [flow.name(parts) if parts else "nothing" for parts in held]
            if chunks(n) == 1:
                names = [f"the chunk of {name}" if name.isdigit() else name for name in names]
            assert f"evice {i} holds {', '.join(names)}" in svg.find("desc").text


def test_every_colour_of_a_sum_shows():
    """The stripes of each colour cross the slot: along its diagonal they are at least a few px
    long.
    """
    for n in (2, 4, 7, 8):
        svg = svgs(draw(follow(lambda x: lax.psum(x, "d"), line(n))))[1]
        inner = next(part for part in svg.iter("svg") if part is not svg)
        width, height = float(inner.get("width")), float(inner.get("height"))
        for path in inner.iter("path"):
            starts = [float(x) for x in re.findall(r"M([\d.]+) ", path.get("d"))]
            assert any(8 < start < width + height - 8 for start in starts)


def test_stripes_do_not_leave_their_slot():
    """They are in an svg of their own, of the slot's size, which clips them."""
    picture = draw(follow(lambda x: lax.psum(x, "d"), line(4)))
    inner = list(svgs(picture)[1].iter("svg"))[1:]
    assert len(inner) == 4 and all(
        svg.get("width") == "46" and svg.get("height") == "26" for svg in inner
    )
    assert " id=" not in picture.html and "url(" not in picture.html  # it may stand twice on a page


def test_only_pictures_in_steps_ask_for_the_stepper():
    assert "data-steps" not in draw(follow(around, line(4), steps=1)).html
    assert 'data-steps="4"' in draw(follow(around, line(4), steps=3)).html
    outer = ElementTree.fromstring(draw(follow(around, line(4), steps=3)).html)
    (box,) = outer.findall("div")
    assert box.get("data-steps") == "4" and [child.tag for child in box] == ["figure"] * 4


def arrows(svg):
    """(from, to, what) for every arrow above the devices: by the device nearest to each of its
    ends.
    """
    heads = [float(circle.get("cx")) for circle in svg.iter("circle")]

    def device(x):
        return min(range(len(heads)), key=lambda i: abs(heads[i] - x))

    found = []
    for group in svg.iter("g"):
        if group.get("data-sent") is None:
            continue
        path = group.find("path").get("d")
        left, right = (
            float(x) for x in re.match(r"M([\d.]+) [\d.]+V[-\d.]+H([\d.]+)V", path).groups()
        )
        sent = [(float(chip.find("rect").get("x")), chip) for chip in group.findall("g")]
        labels = [
            chip.find("text").text if chip.find("text") is not None else None
            for _, chip in sorted(sent)
        ]
        to_right, to_left = (
            "m-3 -4l3 4l3 -4" in path,
            path.count("l3 4l3 -4") > ("m-3 -4l3 4l3 -4" in path),
        )
        found += [(device(left), device(right), labels[0])] * to_right
        found += [(device(right), device(left), labels[-1])] * to_left
    return found


def exchange(held, steps):
    n, i = len(held), lax.axis_index("d")
    for s in range(1, steps + 1):
        arrived = lax.ppermute(held[i ^ s], "d", [(j, j ^ s) for j in range(n)])
        held = held.at[i ^ s].set(arrived)
    return held


@pytest.mark.parametrize(
    ("program", "n", "chunks", "steps"),
    [(ring_all_reduce, 4, 4, 2), (exchange, 4, 4, 3), (around, 4, 1, 2)],
)
def test_arrows_show_which_device_sent_what_to_which(program, n, chunks, steps):
    flow = follow(program, line(n), chunks=chunks, steps=steps)
    drawn = svgs(draw(flow))
    assert len({svg.get("height") for svg in drawn}) == 1  # nothing jumps from frame to frame
    for svg, frame, before in zip(drawn[1:], flow.frames[1:], flow.frames, strict=False):
        sent = [(a, b, flow.name(before.slots[a][slot])) for (a, slot), (b, _) in frame.sends]
        shown = arrows(svg)
        assert sorted(arrow[:2] for arrow in shown) == sorted(arrow[:2] for arrow in sent) and shown
        assert all(label is None or (a, b, label) in sent for a, b, label in shown)
        for a, b, what in sent:
            assert re.search(
                rf"evice {a} sent (the chunk of )?{re.escape(what)} to device {b}",
                svg.find("desc").text,
            )
    assert arrows(drawn[0]) == []


def test_arrows_of_one_frame_do_not_run_over_each_other():
    def far(x, steps):
        return lax.ppermute(x, "d", [(i, i ^ 4) for i in range(8)]) if steps == 2 else x

    for svg in svgs(draw(follow(far, line(8), steps=2)))[1:]:
        spans = [
            tuple(
                map(
                    float,
                    re.match(
                        r"M([\d.]+) [\d.]+V([-\d.]+)H([\d.]+)", group.find("path").get("d")
                    ).groups(),
                )
            )
            for group in svg.iter("g")
            if group.get("data-sent") is not None
        ]
        for i, (left, height, right) in enumerate(spans):
            assert height > 0
            for other_left, other_height, other_right in spans[:i]:
                assert height != other_height or right <= other_left or other_right <= left


def test_a_page_gets_the_data_of_the_frames():
    flow = follow(ring_all_reduce, line(4), chunks=4, steps=6)
    box = ElementTree.fromstring(draw(flow).html).find("div")
    (data,) = json.loads(box.get("data-flow"))
    assert [device for device, _, _ in data["devices"]] == [0, 1, 2, 3]
    for made, frame in zip(data["frames"], flow.frames, strict=True):
        assert made["title"] == frame.title and made["lines"] == [list(one) for one in frame.lines]
        assert [tuple(one) for one in made["sends"]] == [
            (*source, *target) for source, target in frame.sends
        ]
        for held, expected in zip(made["slots"], frame.slots, strict=True):
            for number, content in zip(held, expected, strict=True):
                name, owners = data["blocks"][number]
                assert name == (flow.name(content) if content else "")
                assert owners == list(dict.fromkeys(owner for owner, *_ in content))


def all_reduces(*sizes):
    return [follow(ring_all_reduce, line(n), chunks=n, steps=2 * (n - 1)) for n in sizes]


def test_an_all_reduce_on_several_numbers_of_devices_counts_its_bytes():
    picture = draw_all_reduce(all_reduces(4, 2, 3), 4096)
    box = ElementTree.fromstring(picture.html)
    assert box.get("data-bytes") == "4096" and box.get("data-steps") == "7"
    assert [len(flow["devices"]) for flow in json.loads(box.get("data-flow"))] == [4, 2, 3]
    words = (
        "Each of 4 devices sends 6 blocks of 1,024 bytes: 6,144 bytes, which is 2 × (4 - 1) / 4 × "
        "4,096."
    )
    assert box.find("p").text == words and picture.text.endswith(words)


@pytest.mark.parametrize(
    ("flows", "nbytes", "error", "words"),
    [
        (lambda: ["no flow"], 8, TypeError, "not str"),
        (lambda: all_reduces(2), 8, ValueError, "different numbers"),
        (lambda: all_reduces(2, 2, 3), 8, ValueError, "different numbers"),
        (lambda: all_reduces(2, 3), 0.5, ValueError, "nbytes"),
        (
            lambda: [follow(around, line(4), chunks=4, steps=6)],
            8,
            ValueError,
            "all-reduce on 4 devices has 4 blocks",
        ),
        (
            lambda: [follow(lambda x: lax.psum(x, "d"), line(2), chunks=2)],
            8,
            ValueError,
            "this flow does not",
        ),
    ],
)
def test_what_is_no_ring_all_reduce_is_refused(flows, nbytes, error, words):
    with pytest.raises(error, match=words):
        draw_all_reduce(flows(), nbytes)


def test_flows_in_text_and_with_names():
    picture = draw(shift=follow(around, line(4), steps=1))
    assert repr(picture).splitlines() == [
        "shift:",
        "start",
        "  0: 0",
        "  1: 1",
        "  2: 2",
        "  3: 3",
        "step 1",
        "  0: 3",
        "  1: 0",
        "  2: 1",
        "  3: 2",
    ]
    assert "<strong>shift</strong> start" in picture.html
    assert re.search(r"<title>shift: step 1, 4 devices</title>", picture.html)
    gathered = repr(draw(follow(lambda x: jnp.concatenate([0 * x, x]), line(2), chunks=1)))
    assert gathered.splitlines()[-2:] == ["  0: · 0", "  1: · 1"]


def test_a_flow_can_be_written_down_by_hand():
    flow = Flow((5,), 1, (Frame("now", ((((0, 0, 1),), ()),)),))
    (svg,) = svgs(draw(flow))
    assert slots(svg) == [("5", PALETTE[5], [], None)]


def test_lines_below_the_slots_of_each_device():
    held = (((0, 0, 1),), ()), (((1, 0, 1),), ())
    frames = [
        Frame(title, held, notes=(("arrived 1 0", "free 1"), ("arrived 0 0",))) for title in "abc"
    ]
    picture = draw(Flow((0, 1), 1, tuple(frames)))
    assert repr(picture).splitlines()[:3] == [
        "a",
        "  0: 0 ·  arrived 1 0, free 1",
        "  1: 1 ·  arrived 0 0",
    ]
    assert picture.html.count(">arrived 1 0</text>") == 3
    assert (
        "Device 0 holds the chunk of 0, nothing (arrived 1 0, free 1); device 1 holds"
        in picture.html
    )
    assert (
        "&quot;notes&quot;:[[&quot;arrived 1 0&quot;,&quot;free 1&quot;],[&quot;arrived 0 0&quot;]]"
        in picture.html
    )
    without = draw(Flow((0, 1), 1, tuple(Frame(title, held) for title in "abc")))
    assert "notes" not in without.html
    with pytest.raises(ValueError, match="argument"):
        draw(Flow((0, 1), 1, (Frame("a", held, notes=(("free 1",),)),)))
