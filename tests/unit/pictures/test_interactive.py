"""shardlab.interactive_bars: the picture is of one combination of the inputs, and its data has the
numbers of all.
"""

import gzip
import json
import math
import re
from itertools import product
from xml.etree import ElementTree

import numpy as np
import pytest

from shardlab import PALETTE, interactive_bars

pytestmark = pytest.mark.reads("src/shardlab")

STAGES, DEVICES, DTYPES = (0, 1, 2, 3), (1, 2, 8, 64), ("float32", "bfloat16")
KINDS = ("moments", "gradients", "parameters")


def state(stage, devices, dtype):
    parts = dict(
        zip(KINDS, (64.0, 32.0, 32.0) if dtype == "float32" else (64.0, 16.0, 16.0), strict=True)
    )
    for part in KINDS[:stage]:
        parts[part] /= devices
    return {"state": parts, "sent": 64 * (devices - 1) / devices}, {
        "share": f"1/{devices}",
        "bytes": 1e9 / devices,
    }


def drawn(**options):
    options = {"unit": "GB", "limit": {"state": 50}} | options
    return interactive_bars(state, stage=STAGES, devices=DEVICES, dtype=DTYPES, **options)


def parsed(picture):
    """(the box, its data, its svg)."""
    box = ElementTree.fromstring(re.sub("<br>", "<br/>", picture.html))
    return box, json.loads(box.get("data-choices")), box.find("figure/svg")


def values_of(texts):
    return [float(value.replace(",", "")) for value in texts.lstrip("!").split()]


def test_the_data_has_the_numbers_of_all_combinations_in_order():
    _, data, _ = parsed(drawn())
    assert [name for name, *_ in data["inputs"]] == ["stage", "devices", "dtype"]
    assert [ascends for *_, ascends in data["inputs"]] == [True, True, False]
    assert [row[0] for row in data["rows"]] == ["state", "sent"] and data["words"] == [
        "share",
        "bytes",
    ]
    assert data["rows"][0][3] == list(KINDS) and [row[4] for row in data["rows"]] == ["50", ""]
    cases = list(product(STAGES, DEVICES, DTYPES))
    assert len(cases) == len(data["cases"]) == 32
    for case, (of_state, sent, share, count) in zip(cases, data["cases"], strict=True):
        rows, words = state(*case)
        parts = list(rows["state"].values())
        assert values_of(of_state) == pytest.approx([sum(parts), *parts], rel=5e-3)
        assert of_state.startswith("!") == (sum(parts) > 50)
        assert values_of(sent) == pytest.approx([rows["sent"]], rel=5e-3)
        assert share == words["share"] and values_of(count) == pytest.approx(
            [words["bytes"]], rel=5e-3
        )


def boxes(svg):
    """For each row its bars, as (x, width, colour)."""
    bars = [
        [r for r in group.iter("rect") if r.get("data-part") is not None] for group in svg.iter("g")
    ]
    return [
        [(float(r.get("x")), float(r.get("width")), r.get("fill")) for r in row] for row in bars
    ]


@pytest.mark.parametrize("start", [{}, {"stage": 2, "devices": 8}, {"dtype": "bfloat16"}])
def test_the_picture_shows_where_it_starts(start):
    box, data, svg = parsed(drawn(start=start))
    case = {"stage": 0, "devices": 1, "dtype": "float32"} | start
    assert data["start"] == [
        STAGES.index(case["stage"]),
        DEVICES.index(case["devices"]),
        DTYPES.index(case["dtype"]),
    ]
    rows, words = state(**case)
    scale, parts = data["rows"][0][2], list(rows["state"].values())
    assert scale == data["rows"][1][2]  # of the same unit
    (bars, sent), left = boxes(svg), 0.0
    for (x, width, colour), value, expected in zip(bars, parts, PALETTE, strict=False):
        assert (x, width, colour) == (
            pytest.approx(left, abs=0.1),
            pytest.approx(min(value * scale, 314 - left), abs=0.1),
            expected,
        )
        left += width
    assert sent[0][1] == pytest.approx(rows["sent"] * scale, abs=0.1)
    chosen = f"stage {case['stage']}, devices {case['devices']}, dtype {case['dtype']}"
    total, mark = f"{sum(parts):g} GB", "over" if sum(parts) > 50 else "limit"
    assert svg.get("role") == "img" and svg.find("title").text.startswith(
        f"{chosen}: state {total} ({mark} 50 GB), "
    )
    assert f"parameters {parts[2]:g} = {total} ({mark} 50 GB); " in svg.find("desc").text
    caption = list(box.find("figure/figcaption").itertext())
    assert caption[:2] == [chosen, f"share: {words['share']}"]
    assert "--choices:3;" in box.get("style") and box.find("p").text.startswith(
        "One of 32 combinations; start="
    )


def test_a_limit_is_a_dashed_line_and_longer_bars_are_cut_off_at_twice_it():
    def one(count):
        return {"memory": count}

    for count, shown in ((1, "hidden"), (100, "hidden"), (300, "visible")):
        picture = interactive_bars(
            one, unit="GB", limit={"memory": 50}, start={"count": count}, count=(1, 100, 300)
        )
        svg = parsed(picture)[2]
        paths = {path.get("stroke-dasharray"): path for path in svg.iter("path")}
        assert (
            paths["4 3"].get("d").startswith("M157.0 ") and paths[None].get("visibility") == shown
        )
        ((_, width, _),) = boxes(svg)[0]
        assert width == pytest.approx(min(3.14 * count, 314), abs=0.1)
    # A bar that is never long leaves room for the line.
    svg = parsed(interactive_bars(one, limit={"memory": 50}, count=(1, 2)))[2]
    assert (
        290
        < float(
            next(p for p in svg.iter("path") if p.get("stroke-dasharray")).get("d")[1:].split()[0]
        )
        < 310
    )


def test_rows_of_other_units_have_scales_of_their_own():
    def cost(batch):
        return {"time": batch, "memory": 100 * batch, "none": 0}

    picture = interactive_bars(cost, unit={"time": "ms", "memory": "GB"}, batch=np.array([1, 2, 4]))
    scales = [row[2] for row in parsed(picture)[1]["rows"]]
    assert scales[:2] == [78.5, 0.785] and scales[2] == 314
    assert picture.text.splitlines()[1:] == [
        "1      1 ms  100 GB  0",
        "2      2 ms  200 GB  0",
        "4      4 ms  400 GB  0",
    ]


def test_words_stay_inside_and_long_totals_have_a_line_of_their_own():
    name = "the memory of one of the chips"
    long = interactive_bars(
        lambda n: {name: 1000 * n}, unit="gigabytes", limit={name: 1234}, n=(1, 2)
    )
    for picture in (long, drawn()):
        svg = parsed(picture)[2]
        _, _, width, height = map(float, svg.get("viewBox").split())
        lines = {}
        for text in svg.iter("text"):
            x, length = float(text.get("x")), 0.5 * 12 * len(text.text)
            left = x - length if text.get("text-anchor") == "end" else x
            assert left >= -1 and left + length <= width and float(text.get("y")) <= height - 1, (
                text.text
            )
            for start, end in lines.setdefault(text.get("y"), []):
                assert left >= end or left + length <= start, text.text
            lines[text.get("y")].append((left, left + length))


def test_a_picture_is_small_and_has_no_script_and_no_ids():
    html = drawn().html
    assert " id=" not in html and "<script" not in html and len(gzip.compress(html.encode())) < 2000
    tricky = interactive_bars(lambda a: {"<b>": {'"&': 1, "x": 2}}, unit="<i>", a=("<u>", "'"))
    _, data, svg = parsed(tricky)
    assert (
        data["inputs"] == [["a", ["<u>", "'"], False]]
        and svg.find("title").text == "a <u>: <b> 3 <i>"
    )


def test_text_is_a_table_of_the_first_combinations():
    lines = drawn().text.splitlines()
    assert (
        lines[0].split("  ")[0] == "stage" and "state: moments + gradients + parameters" in lines[0]
    )
    assert len(lines) == 33
    assert re.fullmatch(
        r"2 +8 +float32 +8 \+ 4 \+ 32 = 44 GB \(limit 50 GB\) +56 GB +1/8 +125,000,000", lines[21]
    )
    many = interactive_bars(lambda a, b: {"x": a * b}, a=range(10), b=range(10))
    assert len(many.text.splitlines()) == 34 and many.text.endswith("and 68 more combinations")


def test_values_that_do_not_ascend_make_a_list():
    data = parsed(interactive_bars(lambda n, on: {"x": n}, n=(8, 4), on=(False, True)))[1]
    assert data["inputs"] == [["n", ["8", "4"], False], ["on", ["False", "True"], False]]


def x_of(n):
    return {"x": n}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: interactive_bars({"x": 1}, n=(1, 2)),
            TypeError,
            r"takes a function .* not \{'x': 1\}",
        ),
        (lambda: interactive_bars(x_of), TypeError, "at least one input"),
        (lambda: interactive_bars(x_of, n=3), TypeError, "n=3 must be a sequence of values"),
        (lambda: interactive_bars(x_of, n="abc"), TypeError, "n='abc' must be a sequence"),
        (lambda: interactive_bars(x_of, n=()), ValueError, "n has no values"),
        (lambda: interactive_bars(x_of, n=(1, 2, 1)), ValueError, "n has the value 1 2 times"),
        (
            lambda: interactive_bars(x_of, n=(1, None)),
            TypeError,
            "n: a value must be a number or a text, not None",
        ),
        (
            lambda: interactive_bars(x_of, n=range(1001)),
            ValueError,
            "the inputs have 1,001 combinations",
        ),
        (
            lambda: interactive_bars(x_of, n=(1, -2)),
            ValueError,
            "n=-2: x must be finite and not negative, not -2",
        ),
        (
            lambda: interactive_bars(lambda n: {"x": {"y": math.nan}}, n=(1,)),
            ValueError,
            "n=1: x, y must be finite",
        ),
        (
            lambda: interactive_bars(lambda n: {"x": "4"}, n=(1,)),
            TypeError,
            "n=1: x must be a number, not '4'",
        ),
        (
            lambda: interactive_bars(lambda n: n, n=(1,)),
            TypeError,
            "n=1: the function must return rows, .* not 1",
        ),
        (
            lambda: interactive_bars(lambda n: {}, n=(1,)),
            TypeError,
            r"must return rows, .* not \{\}",
        ),
        (
            lambda: interactive_bars(lambda n: {n: 1}, n=(1, 2)),
            ValueError,
            r"rows .* \['2'\] for n=2 and \['1'\] for n=1",
        ),
        (
            lambda: interactive_bars(lambda n: ({"x": 1}, {n: ""}), n=(1, 2)),
            ValueError,
            "the words must be the same",
        ),
        (
            lambda: interactive_bars(lambda n: {"x": dict.fromkeys("abcdefghi", 1)}, n=(1,)),
            ValueError,
            "tells 8 kinds apart, but there are 9",
        ),
        (
            lambda: interactive_bars(x_of, limit={"X": 1}, n=(1,)),
            ValueError,
            "limit= names 'X', .*did you mean 'x'",
        ),
        (
            lambda: interactive_bars(x_of, limit={"x": 0}, n=(1,)),
            ValueError,
            "limit of 'x' must be a positive number",
        ),
        (
            lambda: interactive_bars(x_of, unit={"y": "GB"}, n=(1,)),
            ValueError,
            "unit= names 'y', but the rows are",
        ),
        (
            lambda: interactive_bars(x_of, start={"m": 1}, n=(1,)),
            ValueError,
            "start= names 'm', but the inputs are",
        ),
        (
            lambda: interactive_bars(x_of, start={"n": 3}, n=(1, 2)),
            ValueError,
            r"start= has n=3, but .* are \[1, 2\]",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_an_error_of_the_function_says_for_which_inputs():
    with pytest.raises(ZeroDivisionError) as caught:
        interactive_bars(lambda n, m: {"x": n / m}, n=(1, 2), m=(1, 0))
    assert caught.value.__notes__ == ["interactive_bars() called it with n=1, m=0"]
