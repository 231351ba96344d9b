"""Judge sums in a shard_map of which each device keeps only its own shard."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from shardlab.programs.kernels import inner_jaxprs
from shardlab.programs.origins import where
from shardlab.programs.repeated import SUMS
from shardlab.programs.varying import is_backward, place_of
from shardlab.report.findings import Finding

__all__ = ["of_sliced_sums"]

_SAME = ("convert_element_type", "copy", "div", "mul", "pcast", "pvary")
_STEPS = 20  # of the computation of an index that are followed


def of_sliced_sums(jaxpr: Any) -> Iterator[Finding]:
    """Sums over an axis of which each device keeps the shard of its own `axis_index`, so that a
    reduce-scatter would do.

    Args:
      jaxpr: the traced step.
    """
    for place, axis, dimension in dict.fromkeys(_sliced(jaxpr, {})):
        yield Finding(
            "avoidable communication",
            f"{where(*place)}: of a sum over {axis} each device keeps the shard of its own index: "
            f'jax.lax.psum_scatter(array, "{axis}", scatter_dimension={dimension}, tiled=True) '
            "sends half as much as the all-reduce",
        )


def _sliced(jaxpr, mesh):
    """The place of each such sum, its axis, and the dimension of which a shard is kept; `mesh` are
    the sizes of the axes of the shard_map around the jaxpr.
    """
    makers = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    used = Counter(atom for one in jaxpr.eqns for atom in one.invars if not hasattr(atom, "val"))
    used.update(atom for atom in jaxpr.outvars if not hasattr(atom, "val"))
    for equation in jaxpr.eqns:
        around = getattr(equation.params.get("mesh"), "shape", mesh)
        for inner in inner_jaxprs(equation):
            yield from _sliced(inner, around)
        if equation.primitive.name != "dynamic_slice" or is_backward(equation):
            continue
        array, *starts = equation.invars
        total = _maker(array, makers, used)
        axes = total.params.get("axes", ()) if total is not None else ()
        shape, sizes = array.aval.shape, equation.params["slice_sizes"]
        cut = [d for d, size in enumerate(sizes) if size < shape[d]]
        if len(axes) != 1 or len(cut) != 1 or total.params.get("axis_index_groups"):
            continue
        (axis,), (d,) = axes, cut
        is_shard = shape[d] == sizes[d] * mesh.get(axis, 0)
        if is_shard and axis in _indices(starts[d], makers):
            yield place_of(total), axis, d


def _maker(atom, makers, used):
    """The sum that an array is, which nothing else uses; or None."""
    for _ in range(_STEPS):
        if hasattr(atom, "val") or used[atom] != 1 or atom not in makers:
            return None
        equation = makers[atom]
        if equation.primitive.name in SUMS:
            return equation
        if equation.primitive.name not in _SAME:
            return None
        atom = equation.invars[0]
    return None


def _indices(atom, makers):
    """The axes on whose `axis_index` a number depends, as far as it is followed."""
    found, left, seen = set(), [atom], set()
    while left and len(seen) < _STEPS:
        atom = left.pop()
        if hasattr(atom, "val") or atom in seen or atom not in makers:
            continue
        seen.add(atom)
        equation = makers[atom]
        if equation.primitive.name == "axis_index":
            name = equation.params["axis_name"]
            found |= {name} if isinstance(name, str) else {*name}
        left += equation.invars
    return found
