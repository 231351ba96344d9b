"""Stacked bars of memory and lanes of time. Colours stand for kinds here, as the labels say."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import isfinite
from numbers import Real

from shardlab._arguments import nearest
from shardlab.pictures.svg import (
    PALETTE,
    WIDTH,
    Picture,
    escape,
    figure,
    haloed,
    hatching,
    ink,
    listed,
    number_text,
    rect,
    row,
    text,
    text_width,
)

__all__ = ["bars", "timeline"]

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "": 1}
_LETTERS = 60  # the width of a bar in consoles
_SHADES = "█▓▒░▚▞▤▥"  # for each kind, in consoles


def bars(rows: Mapping[str, float | Mapping[str, float]], unit: str = "MiB") -> Picture:
    """Draw stacked bars, such as the memory of several layouts by kind, with every value printed.

    `bars({"data parallel": {"parameters": 4 * 2**20, "gradients": 4 * 2**20}, "FSDP":
    {"parameters": 2**19, "gradients": 2**19}})` draws two rows: 4 + 4 = 8 MiB and 0.5 + 0.5 = 1
    MiB, to one scale.

    >>> replicated = {"parameters": 4 * 2**20, "gradients": 4 * 2**20}
    >>> sharded = {"parameters": 2**19, "gradients": 2**19}
    >>> bars({"data parallel": replicated, "FSDP": sharded})
    █ parameters, ▓ gradients
    data parallel  ██████████████████████████████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ parameters 4 + gradients 4 = 8 MiB
    FSDP           ████▓▓▓▓ parameters 0.5 + gradients 0.5 = 1 MiB

    Args:
      rows: for each row its parts, as a dict from kind to bytes, or a single number of bytes.
      unit: in which they are printed: "B", "KiB", "MiB", "GiB", or "" for numbers that are no
        bytes.

    Returns:
      A `Picture`.

    Raises:
      TypeError: `rows` is no dict of dicts or numbers.
      ValueError: there is no row, a value is negative or not finite, the unit is unknown, or there
        are more than eight kinds, which is as many as can be told apart.
    """  # noqa: E501
    if unit not in _UNITS:
        raise ValueError(f"unit must be one of {list(_UNITS)}, not {unit!r}{nearest(unit, _UNITS)}")
    parts = _checked_rows(rows)
    kinds = list(dict.fromkeys(str(kind) for segments in parts.values() for kind in segments))
    if len(kinds) > len(PALETTE):
        raise ValueError(
            f"bars() tells {len(PALETTE)} kinds apart, but there are {len(kinds)}: {kinds}"
        )
    colour = dict(zip(kinds, PALETTE, strict=False))
    scaled = {
        name: {str(kind): float(value) / _UNITS[unit] for kind, value in segments.items()}
        for name, segments in parts.items()
    }
    totals = {name: sum(segments.values()) for name, segments in scaled.items()}
    suffix = f" {unit}" if unit else ""
    shown = {name: number_text(total) + suffix for name, total in totals.items()}

    room = WIDTH - max(text_width(words) for words in shown.values()) - 8
    scale = room / (max(totals.values()) or 1)
    shapes, top = _legend([kind for kind in kinds if kind], colour)
    below = []  # rows whose values have no room in the picture
    for name, segments in scaled.items():
        shapes.append(text(0, top + 12, name, size=12, anchor="start", bold=True))
        left, top, unlabelled = 0.0, top + 17, False
        for kind, value in segments.items():
            width = round(value * scale, 1)
            if not width:
                continue
            tip = f"{kind}: {number_text(value)}{suffix}" if kind else number_text(value) + suffix
            shapes.append(f"<g>{rect(round(left, 1), top, width, 24, colour[kind])}")
            words = number_text(value)
            if kind and text_width(words) + 4 <= width:
                shapes.append(
                    text(
                        round(left + width / 2, 1),
                        top + 16.5,
                        words,
                        size=12,
                        fill=ink(colour[kind]),
                    )
                )
            elif kind and len(segments) > 1:
                unlabelled = True
            shapes.append(f"<title>{escape(tip)}</title></g>")
            left += width
        words, each = (
            shown[name],
            " + ".join(number_text(value) for value in segments.values() if value),
        )
        if unlabelled and left + 8 + text_width(f"{words} = {each}") <= WIDTH:
            words = f"{words} = {each}"
        elif unlabelled:
            below.append(f"<strong>{escape(name)}</strong>: {escape(_sum_text(segments, suffix))}")
        shapes.append(text(round(left + 6, 1), top + 16.5, words, size=12, anchor="start"))
        top += 34
    title = f"Bars: {', '.join(f'{name} {total}' for name, total in shown.items())}"
    sentences = [f"{name}: {_sum_text(segments, suffix)}" for name, segments in scaled.items()]
    html = row(
        figure(shapes, WIDTH, top - 8, title, listed(sentences, 16, "rows"), "<br>".join(below))
    )
    return Picture(html, _bars_text(scaled, shown, kinds, suffix))


def _checked_rows(rows):
    """The rows of bars, each as a dict from kind to number; an error for what is none."""
    if not isinstance(rows, Mapping):
        raise TypeError(
            f'bars() takes a dict such as {{"FSDP": {{"parameters": 4e6}}}}, not '
            f"{type(rows).__name__}"
        )
    if not rows:
        raise ValueError('bars() needs at least one row, such as {"FSDP": {"parameters": 4e6}}')
    parts = {
        str(name): dict(segments) if isinstance(segments, Mapping) else {"": segments}
        for name, segments in rows.items()
    }
    for name, segments in parts.items():
        for kind, value in segments.items():
            where = f"{name}, {kind}" if kind else name
            if not _is_number(value):
                raise TypeError(f"{where}: a value must be a number of bytes, not {value!r}")
            if not isfinite(value) or value < 0:
                raise ValueError(f"{where}: a value must be finite and not negative, not {value}")
    return parts


def timeline(
    lanes: Mapping[str, Iterable[tuple[str, float, float]]],
    unit: str = "s",
    meets: str | Iterable[str] = (),
) -> Picture:
    """Draw what happens when, with a lane for each device, process or layer.

    `timeline({"process 0": [("compute", 0, 2), ("waits", 2, 5)], "process 1": [("compute", 0,
    5)]})` shows that process 0 waits for 5 - 2 = 3 s. What waits is hatched, and so stands out from
    what works. With `meets="waits"` it also shows that process 1 does not arrive where process 0
    waits.

    >>> first = [("compute", 0, 2), ("waits", 2, 5)]
    >>> timeline({"process 0": first, "process 1": [("compute", 0, 5)]})
    process 0  |compute················|waits//////////////////////////////|
    process 1  |compute····················································|
               0                                                       5 s
    process 0: compute 0 to 2 s, waits 2 to 5 s
    process 1: compute 0 to 5 s

    Args:
      lanes: for each lane its segments, as (label, start, end); labels that start with "waits" are
        hatched.
      unit: the unit of time that is printed, such as "s" or "ms"; or "steps", where time is an
        order.
      meets: the label of a collective, or several labels. The first segment with such a label in
        each lane is the same collective, the second the next one, and so on. A line joins the
        arrivals at each, from lane to lane; a lane that does not arrive has a cross instead.

    Returns:
      A `Picture`.

    Raises:
      TypeError: `lanes` is no dict of lists of (label, start, end).
      ValueError: there is nothing to draw, a segment ends before it starts or begins before the one
        before has ended, no segment has a label in `meets`, or there are more than eight labels
        besides waiting, which is as many as can be told apart.
    """
    if not isinstance(lanes, Mapping):
        raise TypeError(
            f'timeline() takes a dict such as {{"process 0": [("compute", 0, 1)]}}, not {lanes!r}'
        )
    lanes = {
        str(lane): [_segment(lane, segment) for segment in segments]
        for lane, segments in lanes.items()
    }
    if not any(lanes.values()):
        raise ValueError(
            'timeline() needs at least one segment, such as {"process 0": [("compute", 0, 1)]}'
        )
    for lane, segments in lanes.items():
        segments.sort(key=lambda segment: segment[1:])
        for (label, _, end), (following, start, _) in pairwise(segments):
            if start < end:
                raise ValueError(
                    f"{lane}: {following!r} starts at {start}, before {label!r} ends at {end}"
                )
    labels = list(dict.fromkeys(label for segments in lanes.values() for label, _, _ in segments))
    meetings = _meetings(lanes, (meets,) if isinstance(meets, str) else tuple(meets), labels)
    working = [label for label in labels if not _waits(label)]
    if len(working) > len(PALETTE):
        raise ValueError(
            f"timeline() tells {len(PALETTE)} labels apart, but there are {len(working)}: {working}"
        )
    colour = dict(zip(working, PALETTE, strict=False))
    first = min(start for segments in lanes.values() for _, start, _ in segments)
    last = max(end for segments in lanes.values() for _, _, end in segments)
    # Many lanes are low, with their names beside them; so are lanes with lines from one to the
    # next.
    beside = len(lanes) > 5 or bool(meetings)
    height, pitch = (24, 49) if not beside else (22, 36) if meetings else (16, 20)
    margin = max(map(text_width, lanes)) + 6 if beside else 0
    scale = (WIDTH - margin) / ((last - first) or 1)

    def at(time):
        return round(margin + (time - first) * scale, 1)

    def fits(label, start, end):
        return text_width(label) + 6 <= (end - start) * scale

    # What does not fit into one of its segments is explained once, above.
    unfit = [
        label
        for label in labels
        if any(
            s[0] == label and not fits(*s)
            for segments_of_lane in lanes.values()
            for s in segments_of_lane
        )
    ]
    shapes, top = _legend(unfit, colour)
    top += 20 if meetings else 0
    tops = {}
    for lane, segments in lanes.items():
        if beside:
            shapes.append(text(0, top + height / 2 + 4, lane, size=12, anchor="start"))
        else:
            shapes.append(text(0, top + 12, lane, size=12, anchor="start", bold=True))
        tops[lane] = place = top + (0 if beside else 17)
        for label, start, end in segments:
            left, width = at(start), max(1, round((end - start) * scale, 1))
            tip = f"{label}: {number_text(start)} to {number_text(end)} {unit}".rstrip()
            shapes.append(f"<g>{_box(left, place, width, height, label, colour)}")
            if fits(label, start, end):
                middle, down = round(left + width / 2, 1), place + height / 2 + 4.5
                if _waits(label):
                    shapes.append(haloed(middle, down, label, 12, on_page=True))
                else:
                    shapes.append(text(middle, down, label, size=12, fill=ink(colour[label])))
            shapes.append(f"<title>{escape(tip)}</title></g>")
        top += pitch
    shapes += _meeting_lines(meetings, lanes, tops, height, at)
    ticks = [first + (last - first) * k / 4 for k in range(5)] if last > first else [first]
    marks = "".join(f"M{at(tick):g} {top}v5" for tick in ticks)
    shapes.append(f'<path d="M{margin:g} {top}H{WIDTH}{marks}" stroke="currentColor"/>')
    for k, tick in enumerate(ticks):
        words = number_text(tick) + (f" {unit}" if unit and k == len(ticks) - 1 else "")
        anchor = "start" if k == 0 else "end" if k == len(ticks) - 1 else None
        shapes.append(text(at(tick), top + 18, words, size=12, anchor=anchor))
    title = (
        f"Timeline of {', '.join(lanes)}, {number_text(first)} to {number_text(last)} {unit}"
    ).rstrip()
    sentences = [f"{lane}: {_lane_text(segments, unit)}" for lane, segments in lanes.items()]
    met = [_meeting_text(number, arrivals, unit) for number, arrivals in enumerate(meetings, 1)]
    html = row(
        figure(shapes, WIDTH, top + 22, title, " ".join([listed(sentences, 16, "lanes"), *met]), "")
    )
    return Picture(html, "\n".join([_timeline_text(lanes, first, last, unit), *met]))


def _meetings(lanes, meets, labels):
    """For each collective when each lane arrives, None where it does not: the n-th arrivals are one
    collective.
    """
    for label in meets:
        if label not in labels:
            raise ValueError(
                f"meets= names {label!r}, but the labels are {labels}{nearest(label, labels)}"
            )
    arrivals = {
        lane: [start for label, start, _ in starts if label in meets]
        for lane, starts in lanes.items()
    }
    count = max(map(len, arrivals.values()))
    return [
        {lane: (starts[n] if n < len(starts) else None) for lane, starts in arrivals.items()}
        for n in range(count)
    ]


def _meeting_lines(meetings, lanes, tops, height, at):
    """A line through the arrivals at each collective, with its number above, and a cross where a
    lane is missing.
    """
    shapes = []
    for number, arrivals in enumerate(meetings, 1):
        ends = {
            lane: at(max((end for *_, end in segments), default=0))
            for lane, segments in lanes.items()
        }
        x = {lane: ends[lane] + 12 if time is None else at(time) for lane, time in arrivals.items()}
        for (a, b), missing in (
            (pair, None in map(arrivals.get, pair)) for pair in pairwise(arrivals)
        ):
            dashes = ' stroke-dasharray="3 3"' if missing else ""
            line = f"M{x[a]:g} {tops[a] + height}L{x[b]:g} {tops[b]:g}"
            shapes.append(f'<path d="{line}" stroke="currentColor" stroke-width="1.5"{dashes}/>')
        for lane, time in arrivals.items():
            middle = tops[lane] + height / 2
            if time is None:
                cross = f"M{x[lane] - 6:g} {middle - 6:g}l12 12m0 -12l-12 12"
                shapes.append(f'<path d="{cross}" stroke="currentColor" stroke-width="3"/>')
                if x[lane] + 14 + text_width(f"does not reach {number}") <= WIDTH:
                    shapes.append(
                        text(
                            x[lane] + 12,
                            middle + 4.5,
                            f"does not reach {number}",
                            size=12,
                            anchor="start",
                        )
                    )
            else:
                line = f"M{x[lane]:g} {tops[lane]:g}v{height}"
                shapes.append(f'<path d="{line}" stroke="currentColor" stroke-width="3"/>')
        top = next(iter(arrivals))
        shapes.append(text(x[top], tops[top] - 6, number, size=13, bold=True))
    return shapes


def _meeting_text(number, arrivals, unit):
    came = [
        f"{lane} at {number_text(time)} {unit}".rstrip()
        for lane, time in arrivals.items()
        if time is not None
    ]
    missing = [lane for lane, time in arrivals.items() if time is None]
    words = f"Collective {number}: {', '.join(came)}"
    absent = f"{', '.join(missing)} {'does' if len(missing) == 1 else 'do'} not arrive."
    return f"{words}; {absent}" if missing else f"{words}; every lane arrives."


def _segment(lane, segment):
    try:
        label, start, end = segment
    except (TypeError, ValueError):
        raise TypeError(f"{lane}: a segment is (label, start, end), not {segment!r}") from None
    if not isinstance(label, str) or not _is_number(start) or not _is_number(end):
        raise TypeError(
            f"{lane}: a segment is (label, start, end), a text and two numbers, not {segment!r}"
        )
    if not isfinite(start) or not isfinite(end) or end < start:
        raise ValueError(
            f"{lane}: {label!r} starts at {start} and ends at {end}; it must end after it starts"
        )
    return label, float(start), float(end)


def _is_number(value):
    return isinstance(value, Real) or getattr(value, "shape", None) == ()


def _waits(label):
    return label.startswith("waits")


def _box(left, top, width, height, label, colour):
    if not _waits(label):
        return rect(left, top, width, height, colour[label])
    return hatching(left, top, width, height, "currentColor", 1) + rect(left, top, width, height)


def _legend(labels, colour):
    """A small box and the name for each kind, in as many lines as they need: shapes, and where they
    end.
    """
    shapes, left, top = [], 0.0, 0
    for label in labels:
        width = 17 + text_width(label) + 12
        if left and left + width - 12 > WIDTH:
            left, top = 0.0, top + 19
        shapes.append(_box(round(left, 1), top, 12, 12, label, colour))
        shapes.append(text(round(left + 17, 1), top + 10.5, label, size=12, anchor="start"))
        left += width
    return shapes, top + 24 if labels else 0


def _sum_text(segments, suffix):
    parts = " + ".join(f"{kind} {number_text(value)}".strip() for kind, value in segments.items())
    total = number_text(sum(segments.values())) + suffix
    return f"{parts} = {total}" if len(segments) > 1 else f"{parts}{suffix}"


def _lane_text(segments, unit):
    return ", ".join(
        f"{label} {number_text(start)} to {number_text(end)} {unit}".rstrip()
        for label, start, end in segments
    )


def _bars_text(scaled, shown, kinds, suffix):
    most = max(sum(segments.values()) for segments in scaled.values()) or 1
    width = max(map(len, scaled))
    lines = [
        ", ".join(f"{shade} {kind}" for shade, kind in zip(_SHADES, kinds, strict=False) if kind)
    ]
    for name, segments in scaled.items():
        bar, total = "", 0.0
        for kind, value in segments.items():
            total += value
            bar += _SHADES[kinds.index(kind)] * (round(total / most * _LETTERS) - len(bar))
        lines.append(f"{name:<{width}}  {bar} {_sum_text(segments, suffix)}")
    return "\n".join(line for line in lines if line)


def _timeline_text(lanes, first, last, unit):
    width, scale = max(map(len, lanes)), _LETTERS / ((last - first) or 1)
    lines = []
    for lane, segments in lanes.items():
        bar = ""
        for label, start, end in segments:
            bar = bar.ljust(round((start - first) * scale))
            cells = max(1, round((end - first) * scale) - len(bar))
            bar += "|" + f"{label[: cells - 1]:{'/' if _waits(label) else '·'}<{cells - 1}}"
        lines.append(f"{lane:<{width}}  {bar}|")
    ends = f"{number_text(first):<{_LETTERS - 4}}{number_text(last)} {unit}".rstrip()
    lines.append(" " * (width + 2) + ends)
    return "\n".join(
        [*lines, *(f"{lane}: {_lane_text(segments, unit)}" for lane, segments in lanes.items())]
    )
