"""Remedies of findings in a form that can be compiled, and what compiling one has shown."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.arrays.layout import bytes_text
from shardlab.programs.inherited import text_of

__all__ = [
    "Donation",
    "MovedAxis",
    "OtherConstraints",
    "OtherSpecs",
    "Remedy",
    "Trial",
    "entries_of",
    "with_axis",
]


@dataclass(frozen=True)
class OtherSpecs:
    """Arguments that get other specs; results that replace them get these too.

    Attributes:
      specs: (number of the argument, its new spec as text).
      with_copies: whether the moments of such a parameter get the spec too.
    """

    specs: tuple[tuple[int, str], ...]
    with_copies: bool = False


@dataclass(frozen=True)
class MovedAxis:
    """An argument that gets an axis along another dimension, and its moments with it.

    Attributes:
      argument: its number.
      axis: the mesh axis.
      size: of the dimension that gets the axis.
    """

    argument: int
    axis: str
    size: int


@dataclass(frozen=True)
class Donation:
    """Arguments that are donated.

    Attributes:
      arguments: their numbers.
    """

    arguments: tuple[int, ...]


@dataclass(frozen=True)
class OtherConstraints:
    """Sharding constraints of one line that get other specs, or are left out.

    Attributes:
      file, line: of the source.
      specs: (type of the array, spec, new spec), as texts; the type is "" for any. Where it is (),
        all constraints of the line are left out.
      axes: those that the constraints lack. With the new specs further ones of the line may lack
        them, which get them too.
    """

    file: str
    line: int
    specs: tuple[tuple[str, str, str], ...] = ()
    axes: tuple[str, ...] = ()


Remedy = OtherSpecs | MovedAxis | Donation | OtherConstraints


@dataclass(frozen=True)
class Trial:
    """What a program sends and holds with the remedy of a finding, by the compiled programs.

    Attributes:
      change: what was changed, as text.
      bytes: that a device sends, before and after; None where only the run decides.
      seconds: predicted for its communication, before and after; None where unknown.
      peak: bytes of a device at once, before and after.
      failure: why it was not tried, or does not compile: then all numbers are (None, None).
    """

    change: str = ""
    bytes: tuple[int | None, int | None] = (None, None)
    seconds: tuple[float | None, float | None] = (None, None)
    peak: tuple[int | None, int | None] = (None, None)
    failure: str = ""

    @property
    def is_better(self) -> bool:
        """Whether it sends less, in less time, or holds less, and nothing of the three is more."""
        pairs = [pair for pair in self._pairs() if None not in pair]
        return any(b < a for a, b in pairs) and all(b <= a for a, b in pairs)

    def __str__(self) -> str:
        if self.failure:
            return self.failure
        (sent, sends), (took, takes), (held, holds) = self._pairs()
        if None in (sent, sends):
            says = "what it sends is decided in the run"
        elif bytes_text(sent) == bytes_text(sends):
            says = f"it sends {bytes_text(sends)} as before"
        else:
            more = "more, " if sends > sent else ""
            says = f"it sends {more}{bytes_text(sends)} in place of {bytes_text(sent)}"
        if None not in (took, takes) and f"{took:.3g}" != f"{takes:.3g}":
            says += f", {takes * 1e3:.3g} ms for {took * 1e3:.3g} ms"
        if bytes_text(held) == bytes_text(holds):
            says += f", and holds {bytes_text(holds)} at once as before"
        else:
            more = "more, " if holds > held else ""
            says += f", and holds {more}{bytes_text(holds)} at once for {bytes_text(held)}"
        gains = [b < a for a, b in self._pairs() if None not in (a, b) and a != b]
        verdict = "" if any(gains) else "no better, " if gains else "nothing changes, "
        return f"tried: {verdict}with {self.change} {says}"

    def _pairs(self):
        return self.bytes, self.seconds, self.peak


def entries_of(spec: str, rank: int) -> list[tuple[str, ...]]:
    """For each dimension the axes of a spec that is written as text.

    >>> from shardlab.report.remedies import entries_of
    >>> entries_of('P("data", None, ("x", "y"))', 4)
    [('data',), (), ('x', 'y'), ()]

    Args:
      spec: such as 'P("data")'; "" is one without axes.
      rank: how many dimensions the array has.

    Raises:
      ValueError: the spec names something else than axes.
    """
    inside = spec.partition("(")[2].rpartition(")")[0]
    entries = list(ast.literal_eval(f"({inside},)")) if inside else []
    entries += [None] * (rank - len(entries))
    return [(one,) if isinstance(one, str) else tuple(one or ()) for one in entries]


def with_axis(spec: str, shape: Sequence[int], axis: str, dimension: int) -> str:
    """A spec as text with one more axis, along a dimension, after those that it has there.

    >>> from shardlab.report.remedies import with_axis
    >>> with_axis('P(None, "model")', (8, 8), "data", 1)
    'P(None, ("model", "data"))'

    Args:
      spec: as text.
      shape: of the array.
      axis: the mesh axis; elsewhere in the spec it goes.
      dimension: which gets it.
    """
    entries = [tuple(one for one in axes if one != axis) for axes in entries_of(spec, len(shape))]
    entries[dimension] += (axis,)
    return text_of(entries)
