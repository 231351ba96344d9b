"""Judge the dtypes of a step's products: weights in bfloat16 that meet float32, and partial sums
that are sent in float32.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardlab.arrays.layout import bytes_text
from shardlab.programs.kernels import BRANCHING, flat_equations, inner_jaxprs
from shardlab.programs.origins import where
from shardlab.programs.repeated import SUMS
from shardlab.programs.varying import is_backward, own_frames, parts_of_scan, place_of
from shardlab.report.findings import Finding, bytes_of, listed
from shardlab.report.kept import reached

__all__ = ["of_promoted", "of_sent_wide"]

_MUCH = 1 / 4  # of the FLOPs of all products with weights
_LOW = ("bfloat16", "float16")
_SAME = (  # as much a weight as their operand
    "broadcast_in_dim", "copy", "dynamic_slice", "reshape", "sharding_constraint", "slice",
    "squeeze", "transpose",
)  # fmt: skip
_LEAST = 1 / 20  # of all bytes: less is not worth a finding
_ADDS = (*SUMS, "psum_scatter", "reduce_scatter")
_HANDED_ON = {*_SAME, *_ADDS, "add", "neg", "optimization_barrier", "pvary", "reshard", "sub"}


@dataclass(frozen=True)
class _Value:
    """What is known of a value: whether it is an argument or a part of one, whether it has been
    cast to a smaller dtype since, and the (file, line) where a value of a smaller dtype became this
    float32.
    """

    is_weight: bool = False
    is_low: bool = False
    widened: tuple[str, int] | None = None


def of_promoted(jaxpr: Any) -> Iterator[Finding]:
    """Products in float32 whose weight was cast to a smaller dtype, because the activation that it
    meets has become float32 again.

    Where the weight is cast up on purpose, as for logits, nothing is told.

    Args:
      jaxpr: the traced step.
    """
    flops, wide = Counter(), {}
    _follow(jaxpr, [_Value(True)] * len(jaxpr.invars), flops, wide, 1)
    of_wide = sum(count for count, *_ in wide.values())
    if of_wide < _MUCH * flops.total() or not wide:
        return
    (_, low, widened), first = next(iter(wide.values())), next(iter(wide))
    at = f" since {where(*widened)}" if widened else ""
    yield Finding(
        "float32 products",
        f"{where(*first)}: {of_wide / flops.total():.0%} of the FLOPs of products with weights are "
        f"in float32, although the weights were cast to {low}: what they meet is float32{at}. "
        f"NumPy's scalars and float32 arrays, such as np.sqrt(d) or a table, make {low} float32; "
        f"write a Python number, or cast them, or the result, to {low}",
    )


def _follow(jaxpr, given, flops, wide, times):
    """The values of a jaxpr's results, where `given` has those of its inputs; its products go to
    `flops` and `wide`.
    """
    known = dict(zip(jaxpr.invars, given, strict=True))
    read = lambda atom: _Value() if hasattr(atom, "val") else known.get(atom, _Value())  # noqa: E731
    for equation in jaxpr.eqns:
        values, name = [read(atom) for atom in equation.invars], equation.primitive.name
        inner = [*inner_jaxprs(equation)]
        computed = _Value(widened=next((one.widened for one in values if one.widened), None))
        results = [computed] * len(equation.outvars)
        if name == "convert_element_type":
            results = [_cast(equation, values[0])]
        elif name in _SAME:
            results = [values[0]]
        elif name == "dot_general":
            _note(equation, values, flops, wide, times)
        elif name == "scan" and len(inner) == 1:
            results = _scanned(equation, inner[0], values, flops, wide, times)
        elif len(inner) == 1 and len(inner[0].invars) == len(values):
            results = _follow(inner[0], values, flops, wide, times)
        known |= zip(
            equation.outvars,
            [
                one if _kind(out) == "float32" else replace(one, widened=None)
                for one, out in zip(results, equation.outvars, strict=True)
            ],
            strict=True,
        )
    return [read(atom) for atom in jaxpr.outvars]


def _kind(atom):
    return str(getattr(atom.aval, "dtype", ""))


def _cast(equation, value):
    before, after = _kind(equation.invars[0]), _kind(equation.outvars[0])
    if value.is_weight:
        return replace(value, is_low=value.is_low or after in _LOW)
    is_wider = before in _LOW and after == "float32"
    place = next(iter(own_frames(equation)), None)
    return _Value(widened=place if is_wider else value.widened)


def _note(equation, values, flops, wide, times):
    """A product of a weight: its FLOPs, and whether it is in float32 after a cast."""
    _, (batch, _) = equation.params["dimension_numbers"]
    weights = [value for value in values[:2] if value.is_weight]
    if batch or len(weights) != 1 or is_backward(equation):
        return
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    count = 2 * times * math.prod(equation.outvars[0].aval.shape)
    count *= math.prod(shape[d] for d in contracted)
    flops["all"] += count
    weight, other = (0, 1) if values[0].is_weight else (1, 0)
    low, kind = (_kind(equation.invars[n]) for n in (weight, other))
    if values[weight].is_low and low in _LOW and kind == "float32":
        place = place_of(equation)
        before, *_ = wide.get(place, (0,))
        wide[place] = (before + count, low, values[other].widened)


def _scanned(equation, body, values, flops, wide, times):
    consts, carried = parts_of_scan(equation, body)
    # what is carried is computed in the first iteration at the latest
    start = [replace(one, is_weight=False) for one in values[consts : consts + carried]]
    values = [*values[:consts], *start, *values[consts + carried :]]
    return _follow(body, values, flops, wide, times * equation.params["length"])


def of_sent_wide(jaxpr: Any, moves: Sequence[Any]) -> Iterator[Finding]:
    """Sums over devices in float32 of the parts of a product of smaller numbers, which is rounded
    to these before anything else is computed with it.

    Args:
      jaxpr: the traced step.
      moves: the `shardlab.report.moves.Move`s; those of a compiler for chips, because that for CPUs
        adds in float32 whatever the program has.
    """
    total, places = bytes_of(moves), {}
    for move in moves:
        is_sum = move.kind in ("all-reduce", "reduce-scatter") and move.phase == "forward"
        if is_sum and move.bytes and all("f32[" in one for one in move.types):
            places.setdefault((move.file, move.line), []).append(move)
    low = {}
    for place, kind, sums in _narrowed(jaxpr) if places else ():
        low |= dict.fromkeys((place, *sums), (place, kind))
    for place in (one for one in places if one in low):
        here, (product, kind) = places[place], low[place]
        sent = bytes_of(here)
        if sent / 2 < max(_LEAST * total, 1024):
            continue
        axes = dict.fromkeys(axis for move in here for axis in move.axes or ())
        along = f" along {listed([*axes])}" if axes else ""
        yield Finding(
            "avoidable communication",
            f"{where(*product)}: the product's preferred_element_type is float32, so its parts are "
            f"added{along} in float32, {bytes_text(sent)}, and what they add up to is then cast to "
            f"{kind}: without it, or with the cast before the sum, half as many bytes are sent; "
            f"each device's part is rounded to {kind} then before it is added",
        )


def _narrowed(jaxpr):
    """The products of small numbers with a float32 result that is only cast back: their place, the
    dtype, and the places of sums over devices between.
    """
    for product in filter(_is_wide, flat_equations(jaxpr)):
        sums, casts = [], set()

        def passes(equation, places, sums=sums, casts=casts):
            name = equation.primitive.name
            if name == "convert_element_type":
                kind = _kind(equation.outvars[0])
                casts.add(kind)
                return False if kind in _LOW else None
            if name in _ADDS:
                sums.append(place_of(equation))
            is_scaled = len(places) == 1 and (name == "mul" or (name == "div" and places == {0}))
            is_chosen = name == "select_n" and 0 not in places
            return True if name in _HANDED_ON or is_scaled or is_chosen else None

        if reached(jaxpr, (), product, passes) == [] and casts:
            yield place_of(product), min(casts), sums
    for inner in _regions(jaxpr):
        yield from _narrowed(inner)


def _is_wide(equation):
    """Whether an equation is a forward pass's product of small numbers with a float32 result."""
    if equation.primitive.name != "dot_general" or is_backward(equation):
        return False
    kinds = {_kind(atom) for atom in equation.invars[:2]}
    return kinds <= {*_LOW} and _kind(equation.outvars[0]) == "float32"


def _regions(jaxpr):
    """The jaxprs of loops, of branches and of what shard_maps map."""
    for equation in jaxpr.eqns:
        for inner in inner_jaxprs(equation):
            if equation.primitive.name in BRANCHING:
                yield inner
            else:
                yield from _regions(inner)
