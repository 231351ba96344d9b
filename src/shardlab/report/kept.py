"""Judge sums over devices in a loop of a shard_map of whose results the loop keeps only some."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax.numpy as jnp

from shardlab.arrays.layout import bytes_text
from shardlab.programs.kernels import BRANCHING, called_jaxprs, flat_equations, inner_jaxprs
from shardlab.programs.origins import where
from shardlab.programs.repeated import SUMS
from shardlab.programs.varying import (
    communicated_along,
    is_backward,
    opened,
    parts_of_scan,
    place_of,
)
from shardlab.report.findings import Finding, listed

__all__ = ["of_kept_sums", "reached"]

_LEAST = 1 / 20  # of all bytes: less is not worth a finding
# What takes and hands on values as they are, by which of its operands may be such.
_ONE = {
    "broadcast_in_dim", "convert_element_type", "copy", "dynamic_slice", "gather", "name", "neg",
    "pcast", "pvary", "reduce_precision", "reshape", "slice", "squeeze", "stop_gradient",
    "transpose",
}  # fmt: skip
_OPERANDS = {"dynamic_update_slice": {0, 1}, "scatter": {0, 2}} | {name: {0} for name in _ONE}


def of_kept_sums(jaxpr: Any, total: int | None, known: tuple[Finding, ...]) -> Iterator[Finding]:
    """Sums in every iteration of a loop that writes them to fewer places than it has iterations,
    and computes nothing with them, as of what leaves the last stage of a pipeline.

    Args:
      jaxpr: the traced step.
      total: bytes that a device sends in a call; None if they are not known.
      known: other findings, perhaps of the same sums.
    """
    for place, axes, times, size, kept in dict.fromkeys(_kept_sums(jaxpr, {})):
        saved = 2 * (times * size - kept)
        is_known = any(
            one.title == "summed in a loop" and one.says.startswith(where(*place)) for one in known
        )
        if is_known or saved < max(_LEAST * (total or 0), 1024):
            continue
        yield Finding(
            "summed in a loop",
            f"{where(*place)}: in each of the {times} iterations an all-reduce along "
            f"{listed([*axes])} adds {bytes_text(size)}, and the loop only keeps "
            f"{bytes_text(kept)} of them for after it: let each device keep its own part, from "
            "zeros, and sum what it has kept once after the loop",
            sent=times * size,
        )


def _kept_sums(jaxpr, mesh):
    """The place of each such sum, its axes, how often it runs, its bytes, and those that are kept;
    `mesh` are the sizes of the axes of the shard_map around the jaxpr.
    """
    for equation in jaxpr.eqns:
        around = getattr(equation.params.get("mesh"), "shape", mesh)
        if equation.primitive.name == "scan":
            users = [one for one in jaxpr.eqns if {*_variables(one)} & {*equation.outvars}]
            for one in filter(_is_sum, flat_equations(opened(equation.params["jaxpr"]))):
                axes = sorted(a for a in communicated_along(one) if around.get(a, 1) > 1)
                times, size = equation.params["length"], sum(_bytes(v) for v in one.outvars)
                kept = _kept_by(equation, one, users, jaxpr.outvars)
                if axes and kept is not None and 0 < kept < times * size:
                    yield place_of(one), tuple(axes), times, size, kept
        for inner in inner_jaxprs(equation):
            yield from _kept_sums(inner, around)


def _is_sum(equation):
    """Whether an equation adds over all devices along its axes, in a forward pass."""
    is_whole = equation.params.get("axis_index_groups") is None
    return equation.primitive.name in SUMS and is_whole and not is_backward(equation)


def _kept_by(scan, start, users, results):
    """Bytes in which a scan keeps a sum for after it; None if an iteration computes with it."""
    body = opened(scan.params["jaxpr"])
    consts, carried = parts_of_scan(scan, body)
    outs, old = [], None
    while outs != old:
        old = outs
        inputs = {body.invars[consts + n] for n in outs if n < carried}
        outs = reached(body, inputs, start, _is_kept)
        if outs is None:
            return None
    kept = 0
    for n in outs:
        variable = scan.outvars[n]
        after = [one for one in users if variable in _variables(one)]
        is_cut = n >= carried and len(after) == 1 and variable not in _atoms(results)
        if is_cut and after[0].primitive.name in ("dynamic_slice", "slice"):
            variable = after[0].outvars[0]
        kept += _bytes(variable)
    return kept


def reached(
    jaxpr: Any,
    marked: Iterable[Any],
    start: Any,
    passes: Callable[[Any, set[int]], bool | None],
) -> list[int] | None:
    """The results, by number, that some variables and what an equation makes are handed on to.

    Args:
      jaxpr: the jaxpr.
      marked: the variables.
      start: the equation, of this jaxpr or of one that it calls.
      passes: whether another equation hands on those of its operands which are given by number,
        to all its results; None if it uses them, and then the function returns None.
    """
    marked = set(marked)
    for equation in jaxpr.eqns:
        made = equation.outvars
        places = {n for n, a in enumerate(equation.invars) if not hasattr(a, "val") and a in marked}
        inner = [] if equation.primitive.name in BRANCHING else called_jaxprs(equation)
        if inner:
            results = reached(inner[0], {inner[0].invars[n] for n in places}, start, passes)
            if results is None:
                return None
            made = [equation.outvars[n] for n in results]
        elif equation is start:
            if places:
                return None
        elif not places:
            continue
        elif (is_passed := passes(equation, places)) is None:
            return None
        elif not is_passed:
            continue
        marked |= {*made}
    return [n for n, one in enumerate(jaxpr.outvars) if not hasattr(one, "val") and one in marked]


def _is_kept(equation, places):
    """Whether an equation hands values on as they are, or scaled; else None."""
    name = equation.primitive.name
    if name in ("div", "mul"):
        is_scaled = places == {0} and hasattr(equation.invars[1], "val")
    elif name == "select_n":
        is_scaled = 0 not in places
    else:
        is_scaled = places <= _OPERANDS.get(name, set())
    return is_scaled or None


def _variables(equation):
    return _atoms(equation.invars)


def _atoms(atoms):
    return {atom for atom in atoms if not hasattr(atom, "val")}


def _bytes(variable):
    shape, dtype = variable.aval.shape, variable.aval.dtype
    is_number = jnp.issubdtype(dtype, jnp.number)
    return math.prod(shape) * dtype.itemsize if is_number else 0
