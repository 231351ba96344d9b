"""Bars that a reader of a page can change: one picture for each combination of some inputs, all
computed beforehand.

The picture shows one combination, and carries the numbers of all as data. On a page of the book a
script (choose.js in the theme) adds a slider or a list for each input and redraws the bars; a
notebook shows the picture, and the argument `start` chooses another combination there.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import isfinite, prod
from numbers import Real
from typing import Any

from shardlab._arguments import nearest
from shardlab._tables import aligned
from shardlab.pictures.svg import (
    PALETTE,
    WIDTH,
    Picture,
    escape,
    figure,
    listed,
    number_text,
    rect,
    row,
    text,
    text_width,
)

__all__ = ["interactive_bars"]

_MOST = 1000  # combinations: a page has to carry them
_LINES = 32  # of the table in consoles
_BAR = 22  # px: its height


def interactive_bars(
    f: Callable[..., Any],
    *,
    unit: str | Mapping[str, str] = "",
    limit: Mapping[str, float] | None = None,
    start: Mapping[str, Any] | None = None,
    **inputs: Iterable[Any],
) -> Picture:
    """Draw the stacked bars that a function returns, for inputs that the reader of a page chooses.

    `f` is called with every combination of the inputs, when the picture is made. Below, 3 stages
    and 2 numbers of devices make 6 combinations. At stage 2 each of 8 devices has 32 + 32/8 +
    64/8 = 44 GB, which is under the limit.

    >>> def state(stage, devices):
    ...     parts = {"parameters": 32, "gradients": 32, "moments": 64}
    ...     for part in ("moments", "gradients")[:stage]:
    ...         parts[part] /= devices
    ...     return {"state": parts}
    >>> interactive_bars(state, unit="GB", limit={"state": 80}, stage=(0, 1, 2), devices=(1, 8))
    stage  devices  state: parameters + gradients + moments
    0      1        32 + 32 + 64 = 128 GB (over 80 GB)
    0      8        32 + 32 + 64 = 128 GB (over 80 GB)
    1      1        32 + 32 + 64 = 128 GB (over 80 GB)
    1      8        32 + 32 + 8 = 72 GB (limit 80 GB)
    2      1        32 + 32 + 64 = 128 GB (over 80 GB)
    2      8        32 + 4 + 8 = 44 GB (limit 80 GB)

    Args:
      f: takes the inputs by name. It returns rows: a dict from the name of a bar to its parts, as a
        dict from kind to value, or to a single value. It may return a pair of rows and a dict of
        further numbers or words, such as `{"throughput": "427 tokens/s"}`, which stand below the
        bars. Names are the same for all combinations.
      unit: what is printed after each value, such as "GB", or a dict from rows to units. Rows with
        the same unit have one scale, for all combinations.
      limit: for some rows the most that there is room for, such as the memory of a chip. A dashed
        line marks it. The scale may end at twice the limit; a longer bar then has a gap at its end.
      start: which combination is shown first; of an input that is not in it, the first value.
      **inputs: for each input its values: numbers or texts. Numbers in ascending order make a
        slider, others a list.

    Returns:
      A `Picture`. Printed, it is a table of the combinations.

    Raises:
      TypeError: `f` cannot be called, there is no input, a value of an input is neither a number
        nor a text, or `f` returns something else than rows of numbers.
      ValueError: an input has no values or one of them twice, there are more than 1,000
        combinations or eight kinds, names differ between combinations, a number is negative or not
        finite, or `unit`, `limit` or `start` name what does not exist.
    """
    if not callable(f):
        raise TypeError(f"interactive_bars() takes a function of its inputs first, not {f!r}")
    values = _checked_inputs(inputs)
    cases = [_called(f, dict(zip(values, case, strict=True))) for case in product(*values.values())]
    _check_names(cases)
    rows, words = cases[0][1:]
    kinds = list(
        dict.fromkeys(kind for case in cases for parts in case[1].values() for kind in parts)
    )
    if len(kinds) > len(PALETTE):
        raise ValueError(
            f"interactive_bars() tells {len(PALETTE)} kinds apart, but there are "
            f"{len(kinds)}: {kinds}"
        )
    limit, units = _checked_limit(limit, rows), _checked_units(unit, rows)
    first = _checked_start(start, values)
    drawn = [
        _Row(name, units[name], limit.get(name), [case[1][name] for case in cases], kinds)
        for name in rows
    ]
    for one in drawn:
        one.scale = WIDTH / (_longest([other for other in drawn if other.unit == one.unit]) or 1)

    number = 0
    for name, at in first.items():
        number = number * len(values[name]) + at
    parts, top = [], 0.0
    for one in drawn:
        group, top = one.draw(number, top)
        parts.append(group)
    chosen = ", ".join(f"{_label(name)} {_shown(values[name][at])}" for name, at in first.items())
    title = f"{chosen}: {', '.join(f'{one.name} {one.total(number)}' for one in drawn)}"
    notes = [f"{label}: {note}" for label, note in cases[number][2].items()]
    description = listed([*(f"{one.name}: {one.sum(number)}" for one in drawn), *notes], 16, "rows")
    caption = "<br>".join(map(escape, [chosen, *notes]))
    html = figure(parts, WIDTH, top - 8, title, description, caption)
    data = {
        "inputs": [
            [_label(name), list(map(_shown, each)), _ascends(each)] for name, each in values.items()
        ],
        "start": list(first.values()),
        "rows": [one.data() for one in drawn],
        "words": list(words),
        "cases": [
            [*(one.numbers(n) for one in drawn), *case[2].values()] for n, case in enumerate(cases)
        ],
    }
    data = escape(json.dumps(data, separators=(",", ":"), ensure_ascii=False))
    # a page with a script hides it
    still = f"One of {len(cases):,} combinations; start= chooses another."
    html += f'<p data-still="" style="flex:0 0 100%;margin:0;font-size:.85em">{still}</p>'
    html = row(html, f'class="shardlab" data-choices="{data}"', "flex-start")
    # so many controls need room above it
    html = html.replace(' style="', f' style="--choices:{len(values)};', 1)
    return Picture(html, _table(values, drawn, cases))


class _Row:
    """One bar with its numbers in all combinations."""

    def __init__(self, name, unit, limit, cases, kinds):
        self.name, self.unit, self.limit, self.scale = name, f" {unit}" if unit else "", limit, 1.0
        self.kinds = list(dict.fromkeys(kind for parts in cases for kind in parts))
        self.colours = [PALETTE[kinds.index(kind)] for kind in self.kinds]
        self.cases = [[parts.get(kind, 0.0) for kind in self.kinds] for parts in cases]

    def texts(self, number):
        """The total, and each part if there are several."""
        each = self.cases[number]
        return [number_text(sum(each)), *(map(number_text, each) if len(each) > 1 else ())]

    def is_over(self, number):
        return self.limit is not None and sum(self.cases[number]) > self.limit

    def total(self, number):
        words = f"{self.texts(number)[0]}{self.unit}"
        if self.limit is None:
            return words
        return (
            f"{words} ({'over' if self.is_over(number) else 'limit'} "
            f"{number_text(self.limit)}{self.unit})"
        )

    def sum(self, number, names=True):
        _, *each = self.texts(number)
        kinds = [f"{kind} " for kind in self.kinds] if names else [""] * len(each)
        terms = " + ".join(kind + value for kind, value in zip(kinds, each, strict=False))
        return f"{terms} = {self.total(number)}" if each else self.total(number)

    def data(self):
        limit = "" if self.limit is None else number_text(self.limit)
        return [self.name, self.unit, round(self.scale, 5), self.kinds, limit]

    def numbers(self, number):
        """A combination's total and parts, after a "!" if it is over the limit."""
        return "!" * self.is_over(number) + " ".join(self.texts(number))

    def draw(self, number, top):
        """The row as a group, and where the next one begins."""
        longest = max((self.total(case) for case in range(len(self.cases))), key=text_width)
        shapes = [text(0, top + 12, self.name, size=12, anchor="start", bold=True)]
        # the total stands in a line of its own
        if text_width(self.name) * 1.1 + text_width(longest) + 6 > WIDTH:
            top += 17
        total = text(WIDTH, top + 12, self.total(number), size=12, anchor="end")
        shapes.append(total.replace("<text ", '<text data-total="" ', 1))
        top, left = top + 17, 0.0
        shapes.append(rect(0, top, WIDTH, _BAR, more=' opacity=".3"'))  # where an empty bar is
        for value, colour in zip(self.cases[number], self.colours, strict=True):
            width = round(min(value * self.scale, WIDTH - left), 1)
            shapes.append(rect(round(left, 1), top, width, _BAR, colour, ' data-part=""'))
            left += width
        beyond = "visible" if sum(self.cases[number]) * self.scale > WIDTH + 0.5 else "hidden"
        shapes.append(
            f'<path data-beyond="" visibility="{beyond}" d="M{WIDTH - 13} {top - 2:g}l-6 9l6 '
            '8l-6 9" fill="none" style="stroke:var(--ground,Canvas)" stroke-width="4"/>'
        )
        if self.limit is not None:
            path = f"M{self.limit * self.scale:.1f} {top - 1:g}v{_BAR + 7}"
            shapes.append(
                f'<path d="{path}" stroke="currentColor" stroke-width="2" stroke-dasharray="4 3"/>'
            )
        top += _BAR
        if len(self.kinds) > 1:
            keys, top = self._key(number, top + 8)
            shapes += keys
        return f'<g data-row="">{"".join(shapes)}</g>', top + 12

    def _key(self, number, top):
        """A small box for each kind with its name and value, with room for its longest value."""
        shapes, left = [], 0.0
        for place, (kind, colour) in enumerate(zip(self.kinds, self.colours, strict=True)):
            value, *others = (
                f"{kind} {number_text(case[place])}" for case in (self.cases[number], *self.cases)
            )
            width = 17 + max(map(text_width, others)) + 8
            if left and left + width - 8 > WIDTH:
                left, top = 0.0, top + 18
            label = text(round(left + 17, 1), top + 10.5, value, size=12, anchor="start")
            shapes += [
                rect(round(left, 1), top, 12, 12, colour),
                label.replace("<text ", '<text data-value="" ', 1),
            ]
            left += width
        return shapes, top + 18


def _longest(rows):
    """The value at the right edge of rows of the same unit: of bars with a limit, at most twice
    that.
    """
    longest = 0.0
    for one in rows:
        most = max(map(sum, one.cases))
        longest = max(
            longest, most if one.limit is None else max(min(most, 2 * one.limit), 1.05 * one.limit)
        )
    return longest


def _label(name):
    return name.replace("_", " ")


def _shown(value):
    return (
        value if isinstance(value, str) else str(value) if isinstance(value, bool) else f"{value:,}"
    )


def _ascends(values):
    """Whether they are numbers in ascending order: then a slider chooses among them."""
    return not any(isinstance(value, (str, bool)) for value in values) and values == sorted(values)


def _called(f, case):
    """(the combination in words, its rows, its further words)."""
    where = ", ".join(f"{name}={value!r}" for name, value in case.items())
    try:
        found = f(**case)
    except Exception as error:
        error.add_note(f"interactive_bars() called it with {where}")
        raise
    rows, words = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    if not isinstance(rows, Mapping) or not rows or not isinstance(words, Mapping):
        raise TypeError(
            f'{where}: the function must return rows, such as {{"memory": {{"parameters": '
            f"32}}}}, alone or in a pair "
            f"with a dict of words, not {found!r}"
        )
    checked = {}
    for name, parts in rows.items():
        parts = parts if isinstance(parts, Mapping) else {"": parts}
        checked[str(name)] = {
            str(kind): _number(value, where, name, kind) for kind, value in parts.items()
        }
    return where, checked, {str(label): _note(value) for label, value in words.items()}


def _number(value, where, name, kind):
    what = f"{where}: {name}, {kind}" if kind else f"{where}: {name}"
    if not isinstance(value, Real) and getattr(value, "shape", None) != ():
        raise TypeError(f"{what} must be a number, not {value!r}")
    if not isfinite(value) or value < 0:
        raise ValueError(f"{what} must be finite and not negative, not {value}")
    return float(value)


def _note(value):
    return value if isinstance(value, str) else number_text(float(value))


def _check_names(cases):
    where, rows, words = cases[0]
    for other, *found in cases[1:]:
        for what, names, expected in zip(("rows", "words"), found, (rows, words), strict=True):
            if list(names) != list(expected):
                raise ValueError(
                    f"the {what} must be the same for all combinations, but are {list(names)} "
                    f"for {other} and {list(expected)} for {where}"
                )


def _checked_inputs(inputs):
    if not inputs:
        raise TypeError(
            "interactive_bars() needs at least one input with its values, such as devices=(1, "
            "2, 4, 8)"
        )
    checked = {}
    for name, values in inputs.items():
        if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
            raise TypeError(
                f"{name}={values!r} must be a sequence of values, such as {name}=(1, 2, 4)"
            )
        values = [value.item() if hasattr(value, "item") else value for value in values]
        for value in values:
            if not isinstance(value, (str, Real)):
                raise TypeError(f"{name}: a value must be a number or a text, not {value!r}")
            if values.count(value) > 1:
                raise ValueError(f"{name} has the value {value!r} {values.count(value)} times")
        if not values:
            raise ValueError(f"{name} has no values; use some, such as {name}=(1, 2, 4)")
        checked[name] = values
    count = prod(map(len, checked.values()))
    if count > _MOST:
        raise ValueError(
            f"the inputs have {count:,} combinations; use fewer values, for at most {_MOST:,}"
        )
    return checked


def _checked_limit(limit, rows):
    limit = dict(limit or {})
    for name, value in limit.items():
        if name not in rows:
            raise ValueError(
                f"limit= names {name!r}, but the rows are {list(rows)}{nearest(name, rows)}"
            )
        if not isinstance(value, Real) or not isfinite(value) or value <= 0:
            raise ValueError(f"the limit of {name!r} must be a positive number, not {value!r}")
    return limit


def _checked_units(unit, rows):
    if not isinstance(unit, Mapping):
        return dict.fromkeys(rows, str(unit))
    for name in unit:
        if name not in rows:
            raise ValueError(
                f"unit= names {name!r}, but the rows are {list(rows)}{nearest(name, rows)}"
            )
    return {name: str(unit.get(name, "")) for name in rows}


def _checked_start(start, values):
    """Where each input begins: the position of its value."""
    start = dict(start or {})
    for name, value in start.items():
        if name not in values:
            raise ValueError(
                f"start= names {name!r}, but the inputs are {list(values)}{nearest(name, values)}"
            )
        if value not in values[name]:
            raise ValueError(
                f"start= has {name}={value!r}, but the values of {name} are {values[name]}"
            )
    return {name: each.index(start[name]) if name in start else 0 for name, each in values.items()}


def _table(values: Mapping[str, Sequence], drawn, cases):
    """A line for each combination, in columns."""
    heads = [
        f"{one.name}: {' + '.join(one.kinds)}" if len(one.kinds) > 1 else one.name for one in drawn
    ]
    lines = [[*map(_label, values), *heads, *cases[0][2]]]
    for number, case in enumerate(product(*values.values())):
        sums = (one.sum(number, names=False) for one in drawn)
        lines.append([*map(_shown, case), *sums, *cases[number][2].values()])
    shown = lines[: _LINES + 1]
    table = aligned(shown).splitlines()
    if len(lines) > len(shown):
        table.append(f"and {len(lines) - len(shown):,} more combinations")
    return "\n".join(table)
