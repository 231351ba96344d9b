"""shardlab.film: what its images hold, pixel by pixel, and what it refuses."""

import base64
import gzip
import io
import re
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays
from matplotlib.colors import ListedColormap
from PIL import Image

from shardlab import PALETTE, film

pytestmark = pytest.mark.reads("src/shardlab")

RAMP = np.arange(32.0).reshape(4, 8)
TWO = [RAMP, RAMP[::-1]]
GRIDS = arrays.arrays(st.sampled_from(["float32", "int8", "bool", "complex64"]), (3, 2))


def images(picture):
    """The images of a film as arrays (height, width, 4), and its lines."""
    root = ElementTree.fromstring(picture.html)
    data = [image.get("href").partition(",")[2] for image in root.iter("image")]
    decoded = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(one))).convert("RGBA")) for one in data
    ]
    return decoded, [path.get("d") for path in root.iter("path")]


def test_each_number_is_a_pixel_of_its_colour():
    colours = ListedColormap(PALETTE[:4])
    frames = [np.array([[0.0, 1, 2, 3], [3, 2, 1, np.nan]]), np.zeros((2, 4))]
    (first, second), lines = images(
        film(frames, ["before", "after"], "Devices.", cmap=colours, limits=(0, 4))
    )
    expected = [tuple(bytes.fromhex(colour[1:])) for colour in PALETTE[:4]]
    assert [*map(tuple, first[0, :, :3])] == expected
    assert [*map(tuple, first[1, :3, :3])] == expected[:0:-1]
    assert first[1, 3, 3] == 0, "NaN is transparent, as the map's colour for bad values is"
    assert {tuple(pixel) for pixel in second[..., :3].reshape(-1, 3)} == {expected[0]} and not lines


def test_by_default_the_limits_are_those_of_all_frames():
    (first, second), _ = images(film([RAMP, 2 * RAMP], ["a", "b"], "Ramps.", cmap="viridis"))
    map_of_all = plt.get_cmap("viridis", 16)
    assert tuple(first[0, 0]) == map_of_all(0, bytes=True) and tuple(second[-1, -1]) == map_of_all(
        15, bytes=True
    )
    assert tuple(first[-1, -1]) == map_of_all(8, bytes=True), "31 of 62 is in the middle"


def test_the_edges_of_shards_are_lines():
    _, lines = images(film(TWO, ["a", "b"], "Ramps.", shards=(2, 4)))
    height = 198 / 2
    assert lines == [f"M0 {height / 2:g}h198M49.5 0v99M99 0v99M148.5 0v99"] * 2


def test_arrays_of_devices_and_of_short_floats_are_shown():
    mesh = jax.make_mesh((2, 4), ("y", "x"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharded = jax.device_put(RAMP, jax.NamedSharding(mesh, jax.P("y", "x")))
    plain = film(TWO, ["a", "b"], "Ramps.").html
    assert film([sharded, jnp.asarray(RAMP[::-1], "bfloat16")], ["a", "b"], "Ramps.").html == plain


def test_a_film_is_told_in_words_and_is_shown_in_steps():
    picture = film(TWO, ["step 0", "step <1>"], "Ramps & more.", shards=(1, 2))
    expected = (
        "A film of 2 frames, each a grid of 4 × 8 in 1 × 2 shards: step 0, step <1>.\nRamps & more."
    )
    assert repr(picture) == expected
    root = ElementTree.fromstring(picture.html)
    assert root.get("data-steps") == "2" and [one.text for one in root.iter("figcaption")] == [
        "step 0",
        "step <1>",
    ]
    assert [one.text for one in root.iter("title")] == [
        "step 0, frame 1 of 2",
        "step <1>, frame 2 of 2",
    ]
    assert [one.text for one in root.iter("desc")] == [
        "Ramps & more."
    ] * 2 and " id=" not in picture.html


def test_a_film_of_a_wave_is_small():
    y, x = np.mgrid[:192, :192]
    waves = [np.sin(np.hypot(x - 96, y - 96) / 6 - turn) for turn in range(12)]
    html = film(
        waves, [f"step {turn}" for turn in range(12)], "Rings.", cmap=plt.get_cmap("RdBu", 9)
    ).html
    assert len(gzip.compress(html.encode())) < 12 * 5 * 1024


@pytest.mark.parametrize(
    ("frames", "titles", "options", "error", "words"),
    [
        ([RAMP], ["a"], {}, ValueError, "from 2 to 64 frames, not 1"),
        (
            TWO,
            ["a"],
            {},
            ValueError,
            "there are 2 frames and 1 titles; a film has a title for each frame",
        ),
        ([RAMP, RAMP[:2]], ["a", "b"], {}, ValueError, r"frame 1 has shape (2, 8)"),
        ([RAMP[0], RAMP[0]], ["a", "b"], {}, ValueError, r"frame 0 has shape (8,)"),
        (
            [RAMP, RAMP * 1j],
            ["a", "b"],
            {},
            TypeError,
            "frame 1 is of complex128; a film shows real numbers",
        ),
        ([RAMP, RAMP.astype(str)], ["a", "b"], {}, TypeError, "frame 1 is of <U"),
        (
            TWO,
            ["a", "b"],
            {"shards": (3, 1)},
            ValueError,
            "shards=(3, 1) do not divide a grid of 4 × 8: 3 and height",
        ),
        (TWO, ["a", "b"], {"cmap": "RdBlu"}, ValueError, "no colormap 'RdBlu'"),
        (
            TWO,
            ["a", "b"],
            {"cmap": plt.get_cmap("RdBu")},
            ValueError,
            "'RdBu' has 256 colours, more than 255",
        ),
        ([RAMP * 0] * 2, ["a", "b"], {}, ValueError, "from 0 to 0 has one colour"),
        (
            TWO,
            ["a", "b"],
            {"limits": (1, 1)},
            ValueError,
            "from 1 to 1 has one colour; pass limits=(lowest, highest)",
        ),
        ([RAMP * np.nan] * 2, ["a", "b"], {}, ValueError, "no frame has a finite number"),
    ],
)
def test_what_is_no_film_is_refused(frames, titles, options, error, words):
    with pytest.raises(error, match=re.escape(words)):
        film(frames, titles, "Nothing.", **options)


@settings(max_examples=50, deadline=None)
@given(st.lists(GRIDS, max_size=3), st.data())
def test_any_frames_are_shown_or_refused_with_a_reason(frames, data):
    titles = data.draw(
        st.lists(st.text(alphabet="ab <&", max_size=3), min_size=len(frames), max_size=len(frames))
    )
    try:
        shown, _ = images(film(frames, titles, "Anything."))
    except (TypeError, ValueError) as error:
        assert str(error)
    else:
        assert [image.shape for image in shown] == [(3, 2, 4)] * len(frames)
