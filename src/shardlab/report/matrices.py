"""Judge loops that gather the matrices of a stack in every iteration, or add parts of what they
multiply, although each device could have whole ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardlab.arrays.layout import bytes_text
from shardlab.programs.inherited import text_of
from shardlab.programs.kernels import BRANCHING, called_jaxprs, flat_equations, inner_jaxprs
from shardlab.programs.origins import where
from shardlab.programs.repeated import dimensions_before
from shardlab.programs.varying import opened, parts_of_scan, place_of
from shardlab.report.findings import Finding, bytes_of, listed

__all__ = ["of_gathered_stacks"]

_DOES = {
    "all-gather": "gather them",
    "all-reduce": "add parts of the products",
    "reduce-scatter": "add parts of the products",
}
_LEAST = 1 / 20  # of all bytes: less is not worth a finding
_INDEPENDENT = {
    "abs", "add", "add_any", "broadcast_in_dim", "convert_element_type", "copy", "div",
    "dot_general", "exp", "integer_pow", "log", "max", "min", "mul", "neg", "pow", "reduce_max",
    "reduce_sum", "rsqrt", "select_n", "sqrt", "square", "squeeze", "stop_gradient", "sub", "tanh",
    "transpose",
}  # fmt: skip


def of_gathered_stacks(
    jaxpr: Any, moves: Sequence[Any], mesh: Mapping[str, int]
) -> Iterator[Finding]:
    """Loops that multiply matrices of a stack with each other, each with those of its own number,
    and gather them in every iteration, or add parts, as Newton-Schulz in Muon does with FSDP's
    shards.

    Args:
      jaxpr: the traced step.
      moves: the `shardlab.report.moves.Move`s.
      mesh: sizes by axis.
    """
    sends = [one for one in moves if one.kind in _DOES and one.bytes and one.times != 1]
    for scan in _scans(jaxpr) if sends else ():
        body = opened(scan.params["jaxpr"])
        products = (one for one in flat_equations(body) if one.primitive.name == "dot_general")
        places, number = {*map(place_of, products)}, _stacked(scan, body)
        here = [one for one in sends if (one.file, one.line) in places and one.axes]
        axes = {one.axes for one in here}
        if number is None or len(axes) != 1 or len(*axes) != 1:
            continue
        ((axis,),), size = axes, number[1]
        sent = bytes_of(here)
        if size % mesh.get(axis, size + 1) or sent < max(_LEAST * bytes_of(moves), 1024):
            continue
        spec = text_of([*[None] * number[0], axis])
        does = listed(sorted({_DOES[one.kind] for one in here}))
        yield Finding(
            "gathered in a loop",
            f"{where(here[0].file, here[0].line)}: the loop multiplies {size} matrices of a stack "
            f"each only with what it has computed of it, and devices {does} along {axis}, in its "
            f"{scan.params['length']} iterations {bytes_text(sent)}: a constraint to {spec} before "
            "the loop, and the same on what it carries, exchanges them once, so that each device "
            "has whole matrices, and another constraint after it brings the shards back",
            sent=sent,
        )


def _scans(jaxpr):
    """The scans of a jaxpr, not those that shard_maps map."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        if equation.primitive.name != "shard_map":
            for inner in inner_jaxprs(equation):
                yield from _scans(inner)


def _stacked(scan, body):
    """The dimension of the one array that a loop carries along which all that it computes is
    independent, and its size; None if there is none, or if the loop computes with other arrays.
    """
    consts, carried = parts_of_scan(scan, body)
    arrays = [n for n in range(carried) if getattr(body.invars[consts + n].aval, "ndim", 0) > 2]
    if len(arrays) != 1:
        return None
    variable = body.invars[consts + arrays[0]]
    for dimension in range(variable.aval.ndim - 2):
        results = _followed(body, {variable: dimension})
        if results and results[arrays[0]] == dimension:
            return dimension, variable.aval.shape[dimension]
    return None


def _followed(jaxpr, known):
    """For each result of a jaxpr where it has the dimension that some variables have; None if it
    has none of it. No list at all if a product multiplies others, or mixes along it.
    """
    known = dict(known)
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        given = [None if hasattr(a, "val") else known.get(a) for a in equation.invars]
        inner = [] if name in BRANCHING else called_jaxprs(equation)
        if inner:
            own = zip(inner[0].invars, given, strict=True)
            results = _followed(inner[0], {v: d for v, d in own if d is not None})
            if results is None:
                return None
        elif name == "dot_general" and None in given[:2]:
            return None
        elif all(d is None for d in given):
            continue
        elif name in BRANCHING or len(equation.outvars) != 1:
            return None
        else:
            results = [_dimension(equation, given)]
            if results == [None]:
                return None
        known |= {v: d for v, d in zip(equation.outvars, results, strict=True) if d is not None}
    return [None if hasattr(one, "val") else known.get(one) for one in jaxpr.outvars]


def _dimension(equation, given):
    """The dimension of a result that is that of all operands which have it; None if none is."""
    name, shape = equation.primitive.name, equation.outvars[0].aval.shape
    if name in ("sharding_constraint", "reshard"):
        return given[0]
    if name not in _INDEPENDENT:
        return None
    for dimension in range(len(shape)):
        before = dimensions_before(equation, dimension)
        pairs = [*zip(given, before, strict=False)]
        if len(pairs) == len(given) and all(d is None or d == b for d, b in pairs):
            return dimension
    return None
