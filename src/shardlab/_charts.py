"""Stacked bars of memory and lanes of time, for `shardlab.draw`. Colours stand for kinds here, as the labels say."""

from collections.abc import Mapping
from itertools import pairwise
from math import isfinite
from numbers import Real

from shardlab._arguments import nearest
from shardlab._svg import (
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

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "": 1}
_LETTERS = 60  # the width of a bar in consoles
_SHADES = "█▓▒░▚▞▤▥"  # for each kind, in consoles


def bars(rows, unit="MiB"):
    """Draw stacked bars, such as the memory of several layouts by kind, with every value printed.

    `bars({"data parallel": {"parameters": 4 * 2**20, "gradients": 4 * 2**20}, "FSDP": {"parameters": 2**19,
    "gradients": 2**19}})` draws two rows: 4 + 4 = 8 MiB and 0.5 + 0.5 = 1 MiB, to one scale.

    Args:
      rows: for each row its parts, as a dict from kind to bytes, or a single number of bytes.
      unit: in which they are printed: "B", "KiB", "MiB", "GiB", or "" for numbers that are no bytes.

    Returns:
      A `Picture`.

    Raises:
      TypeError: `rows` is no dict of dicts or numbers.
      ValueError: there is no row, a value is negative or not finite, the unit is unknown, or there are more than
        eight kinds, which is as many as can be told apart.
    """
    if unit not in _UNITS:
        raise ValueError(f"unit must be one of {list(_UNITS)}, not {unit!r}{nearest(unit, _UNITS)}")
    if not isinstance(rows, Mapping):
        raise TypeError(f'bars() takes a dict such as {{"FSDP": {{"parameters": 4e6}}}}, not {type(rows).__name__}')
    if not rows:
        raise ValueError('bars() needs at least one row, such as {"FSDP": {"parameters": 4e6}}')
    parts = {str(name): dict(held) if isinstance(held, Mapping) else {"": held} for name, held in rows.items()}
    for name, held in parts.items():
        for kind, value in held.items():
            where = f"{name}, {kind}" if kind else name
            if not _is_number(value):
                raise TypeError(f"{where}: a value must be a number of bytes, not {value!r}")
            if not isfinite(value) or value < 0:
                raise ValueError(f"{where}: a value must be finite and not negative, not {value}")
    kinds = list(dict.fromkeys(str(kind) for held in parts.values() for kind in held))
    if len(kinds) > len(PALETTE):
        raise ValueError(f"bars() tells {len(PALETTE)} kinds apart, but there are {len(kinds)}: {kinds}")
    colour = dict(zip(kinds, PALETTE, strict=False))
    scaled = {
        name: {str(kind): float(value) / _UNITS[unit] for kind, value in held.items()} for name, held in parts.items()
    }
    totals = {name: sum(held.values()) for name, held in scaled.items()}
    suffix = f" {unit}" if unit else ""
    shown = {name: number_text(total) + suffix for name, total in totals.items()}

    room = WIDTH - max(text_width(words) for words in shown.values()) - 8
    scale = room / (max(totals.values()) or 1)
    shapes, top = _legend([kind for kind in kinds if kind], colour)
    below = []  # rows whose values have no room in the picture
    for name, held in scaled.items():
        shapes.append(text(0, top + 12, name, size=12, anchor="start", bold=True))
        left, top, unlabelled = 0.0, top + 17, False
        for kind, value in held.items():
            width = round(value * scale, 1)
            if not width:
                continue
            tip = f"{kind}: {number_text(value)}{suffix}" if kind else number_text(value) + suffix
            shapes.append(f"<g>{rect(round(left, 1), top, width, 24, colour[kind])}")
            words = number_text(value)
            if kind and text_width(words) + 4 <= width:
                shapes.append(text(round(left + width / 2, 1), top + 16.5, words, size=12, fill=ink(colour[kind])))
            elif kind and len(held) > 1:
                unlabelled = True
            shapes.append(f"<title>{escape(tip)}</title></g>")
            left += width
        words, each = shown[name], " + ".join(number_text(value) for value in held.values() if value)
        if unlabelled and left + 8 + text_width(f"{words} = {each}") <= WIDTH:
            words = f"{words} = {each}"
        elif unlabelled:
            below.append(f"<strong>{escape(name)}</strong>: {escape(_sum_text(held, suffix))}")
        shapes.append(text(round(left + 6, 1), top + 16.5, words, size=12, anchor="start"))
        top += 34
    title = f"Bars: {', '.join(f'{name} {total}' for name, total in shown.items())}"
    said = [f"{name}: {_sum_text(held, suffix)}" for name, held in scaled.items()]
    html = row(figure(shapes, WIDTH, top - 8, title, listed(said, 16, "rows"), "<br>".join(below)))
    return Picture(html, _bars_text(scaled, shown, kinds, suffix))


def timeline(lanes, unit="s"):
    """Draw what happens when, with a lane for each device or process.

    `timeline({"process 0": [("compute", 0, 2), ("waits", 2, 5)], "process 1": [("compute", 0, 5)]})` shows that
    process 0 waits for 5 - 2 = 3 s. What waits is hatched, and so stands out from what works.

    Args:
      lanes: for each lane its segments, as (label, start, end); labels that start with "waits" are hatched.
      unit: the unit of time that is printed, such as "s" or "ms".

    Returns:
      A `Picture`.

    Raises:
      TypeError: `lanes` is no dict of lists of (label, start, end).
      ValueError: there is nothing to draw, a segment ends before it starts or begins before the one before has
        ended, or there are more than eight labels besides waiting, which is as many as can be told apart.
    """
    if not isinstance(lanes, Mapping):
        raise TypeError(f'timeline() takes a dict such as {{"process 0": [("compute", 0, 1)]}}, not {lanes!r}')
    lanes = {str(lane): [_segment(lane, segment) for segment in segments] for lane, segments in lanes.items()}
    if not any(lanes.values()):
        raise ValueError('timeline() needs at least one segment, such as {"process 0": [("compute", 0, 1)]}')
    for lane, segments in lanes.items():
        segments.sort(key=lambda segment: segment[1:])
        for (label, _, end), (following, start, _) in pairwise(segments):
            if start < end:
                raise ValueError(f"{lane}: {following!r} starts at {start}, before {label!r} ends at {end}")
    labels = list(dict.fromkeys(label for segments in lanes.values() for label, _, _ in segments))
    working = [label for label in labels if not _waits(label)]
    if len(working) > len(PALETTE):
        raise ValueError(f"timeline() tells {len(PALETTE)} labels apart, but there are {len(working)}: {working}")
    colour = dict(zip(working, PALETTE, strict=False))
    first = min(start for segments in lanes.values() for _, start, _ in segments)
    last = max(end for segments in lanes.values() for _, _, end in segments)
    scale = WIDTH / ((last - first) or 1)

    def fits(label, start, end):
        return text_width(label) + 6 <= (end - start) * scale

    # What does not fit into one of its segments is explained once, above.
    unfit = [label for label in labels if any(s[0] == label and not fits(*s) for held in lanes.values() for s in held)]
    shapes, top = _legend(unfit, colour)
    for lane, segments in lanes.items():
        shapes.append(text(0, top + 12, lane, size=12, anchor="start", bold=True))
        top += 17
        for label, start, end in segments:
            left, width = round((start - first) * scale, 1), max(1, round((end - start) * scale, 1))
            tip = f"{label}: {number_text(start)} to {number_text(end)} {unit}".rstrip()
            shapes.append(f"<g>{_box(left, top, width, 24, label, colour)}")
            if fits(label, start, end):
                middle = round(left + width / 2, 1)
                if _waits(label):
                    shapes.append(haloed(middle, top + 16.5, label, 12, on_page=True))
                else:
                    shapes.append(text(middle, top + 16.5, label, size=12, fill=ink(colour[label])))
            shapes.append(f"<title>{escape(tip)}</title></g>")
        top += 32
    ticks = [first + (last - first) * k / 4 for k in range(5)] if last > first else [first]
    shapes.append(f'<path d="M0 {top}h{WIDTH}{"".join(f"M{WIDTH * k / 4:g} {top}v5" for k in range(5))}" '
                  'stroke="currentColor"/>')  # fmt: skip
    for k, tick in enumerate(ticks):
        words = number_text(tick) + (f" {unit}" if unit and k == len(ticks) - 1 else "")
        anchor = "start" if k == 0 else "end" if k == len(ticks) - 1 else None
        shapes.append(text(round((tick - first) * scale, 1), top + 18, words, size=12, anchor=anchor))
    title = f"Timeline of {', '.join(lanes)}, {number_text(first)} to {number_text(last)} {unit}".rstrip()
    said = [f"{lane}: {_lane_text(segments, unit)}" for lane, segments in lanes.items()]
    html = row(figure(shapes, WIDTH, top + 22, title, listed(said, 16, "lanes"), ""))
    return Picture(html, _timeline_text(lanes, first, last, unit))


def _segment(lane, segment):
    try:
        label, start, end = segment
    except (TypeError, ValueError):
        raise TypeError(f"{lane}: a segment is (label, start, end), not {segment!r}") from None
    if not isinstance(label, str) or not _is_number(start) or not _is_number(end):
        raise TypeError(f"{lane}: a segment is (label, start, end), a text and two numbers, not {segment!r}")
    if not isfinite(start) or not isfinite(end) or end < start:
        raise ValueError(f"{lane}: {label!r} starts at {start} and ends at {end}; it must end after it starts")
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
    """A small box and the name for each kind, in as many lines as they need: shapes, and where they end."""
    shapes, left, top = [], 0.0, 0
    for label in labels:
        width = 17 + text_width(label) + 12
        if left and left + width - 12 > WIDTH:
            left, top = 0.0, top + 19
        shapes.append(_box(round(left, 1), top, 12, 12, label, colour))
        shapes.append(text(round(left + 17, 1), top + 10.5, label, size=12, anchor="start"))
        left += width
    return shapes, top + 24 if labels else 0


def _sum_text(held, suffix):
    parts = " + ".join(f"{kind} {number_text(value)}".strip() for kind, value in held.items())
    total = number_text(sum(held.values())) + suffix
    return f"{parts} = {total}" if len(held) > 1 else f"{parts}{suffix}"


def _lane_text(segments, unit):
    return ", ".join(
        f"{label} {number_text(start)} to {number_text(end)} {unit}".rstrip() for label, start, end in segments
    )


def _bars_text(scaled, shown, kinds, suffix):
    most = max(sum(held.values()) for held in scaled.values()) or 1
    width = max(map(len, scaled))
    lines = [", ".join(f"{shade} {kind}" for shade, kind in zip(_SHADES, kinds, strict=False) if kind)]
    for name, held in scaled.items():
        bar, total = "", 0.0
        for kind, value in held.items():
            total += value
            bar += _SHADES[kinds.index(kind)] * (round(total / most * _LETTERS) - len(bar))
        lines.append(f"{name:<{width}}  {bar} {_sum_text(held, suffix)}")
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
    return "\n".join([*lines, *(f"{lane}: {_lane_text(segments, unit)}" for lane, segments in lanes.items())])
