"""Find sums in a `jax.shard_map` that add too much: what an earlier sum has added already, or rows
of other devices that are different ones.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from jax.sharding import PartitionSpec

from shardlab.costs.communication.kinds import OPERATIONS
from shardlab.programs.kernels import BRANCHING, called_jaxprs, inner_jaxprs
from shardlab.programs.origins import is_in_backward
from shardlab.programs.varying import (
    Mismatch,
    by_dimension,
    communicated_along,
    differing_results,
    function_of,
    opened,
    parts_of_scan,
    place_of,
)

__all__ = ["SUMS", "dimensions_before", "repeated"]

SUMS = ("psum", "psum_invariant")
_SCATTERED = ("psum_scatter", "reduce_scatter")
_LINEAR = {  # of one operand
    "broadcast_in_dim", "convert_element_type", "copy", "cumsum", "dynamic_slice", "name", "neg",
    "pcast", "pvary", "reduce_precision", "reduce_sum", "reshape", "rev", "slice", "split",
    "squeeze", "stop_gradient", "tile", "transpose", "unstack",
}  # fmt: skip
_ADD = ("add", "add_any", "concatenate", "stack", "sub")
_NONE = frozenset()
_ZERO = ("", True)  # what is zero is a sum along every axis


def repeated(jaxpr: Any) -> Iterator[Mismatch]:
    """The sums in all `jax.shard_map`s of a program that add too much.

    >>> from shardlab.programs.repeated import repeated
    >>> rows = lambda x: jax.lax.psum(2 * x, "y")
    >>> f = jax.shard_map(rows, mesh=mesh, in_specs=P("y"), out_specs=P("y"))
    >>> [(one.kind, one.axes) for one in repeated(jax.make_jaxpr(f)(jnp.ones(16)).jaxpr)]
    [('rows', ('y',))]

    Args:
      jaxpr: as `jax.make_jaxpr(f)(...).jaxpr` is.

    Yields:
      `Mismatch`: of the kind "again", with the number of equal values in place of that of a result,
      or "rows".
    """
    for equation in jaxpr.eqns:
        if equation.primitive.name == "shard_map":
            yield from _added_again(equation)
            yield from _added_rows(equation)
        else:
            for inner in inner_jaxprs(equation):
                yield from repeated(inner)


def _added_again(equation):
    """Sums of what has been added along the same axes already, and only added up since."""
    body = opened(equation.params["jaxpr"])
    sums = _Sums(equation.params["mesh"].shape)
    sums.run(body, [_NONE] * len(body.invars), str(equation.source_info.name_stack))
    function, file, line = function_of(body)
    for axes, place in sums.again.values():
        times = math.prod(sums.sizes[axis] for axis in axes)
        where = place if place[1] else (file, line)
        yield Mismatch("again", tuple(sorted(axes)), times, function, *where)


class _Sums:
    """The sums over devices in the body of a shard_map. Each value has the axes along which all of
    it is such a sum, as pairs of the axis and whether a backward pass has added it.
    """

    def __init__(self, sizes: Mapping[str, int]):
        self.sizes = {axis: size for axis, size in sizes.items() if size > 1}
        self.zero = frozenset(itertools.product(self.sizes, (False, True))) | {_ZERO}
        self.again = {}  # by the equation, and by whom it is called: axes and place
        self.made = {}  # the results of these, and whether a backward pass has added before

    def run(self, jaxpr, inputs, outer):
        """What the results of a jaxpr are sums of, for its inputs."""
        known = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom):
            if not hasattr(atom, "val"):
                return known.get(atom, _NONE)
            return self.zero if _number(atom) == 0 else _NONE

        for equation in jaxpr.eqns:
            stack = f"{outer}/{equation.source_info.name_stack}"
            values = [read(atom) for atom in equation.invars]
            results = self._results(equation, values, stack)
            known |= dict(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _results(self, equation, values, stack):
        name, count = equation.primitive.name, len(equation.outvars)
        if name in SUMS or name in _SCATTERED:
            return self._summed(equation, values, stack)
        if name == "scan":
            return self._scan(equation, values, stack)
        inner = [] if name in BRANCHING else called_jaxprs(equation)
        if inner:
            return self.run(inner[0], values, stack)
        if name == "optimization_barrier":
            return values
        if name in _LINEAR:
            return [values[0]] * count
        if name in _ADD:
            return [frozenset.intersection(*values)]
        if name in ("div", "mul"):
            return [self._scaled(equation, values)]
        return [_NONE] * count

    def _summed(self, equation, values, stack):
        """The results of a sum over devices, which is noted where it adds a sum again."""
        if equation.params.get("axis_index_groups") is not None:
            return [_NONE] * len(equation.outvars)
        along = communicated_along(equation) & self.sizes.keys()
        in_backward, key = is_in_backward(stack), (stack, id(equation))
        again = [
            frozenset(axis for axis in along if (axis, False) in value and _ZERO not in value)
            for value in values
        ]
        axes = frozenset().union(*again)
        self.again.pop(key, None)
        if axes and not in_backward:
            self.again[key] = axes, place_of(equation)
            pairs = zip(again, values, strict=True)
            by_backward = all((axis, True) in value for own, value in pairs for axis in own)
            self.made |= dict.fromkeys(equation.outvars, (key, by_backward))
        if equation.primitive.name in _SCATTERED:
            return [_NONE] * len(equation.outvars)
        new = frozenset(itertools.product(along, {False, in_backward}))
        return [value if _ZERO in value else value | new for value in values]

    def _scaled(self, equation, values):
        """A product with a number; none of two arrays, and no mean over devices."""
        if equation.primitive.name == "mul" and any(_ZERO in value for value in values):
            return self.zero
        one, other = equation.invars
        if equation.primitive.name == "mul" and hasattr(one, "val"):
            one, other, values = other, one, values[::-1]
        number = _number(other)
        if hasattr(one, "val") or number is None:
            return _NONE
        sizes = self.sizes.values()
        counts = {
            math.prod(some)
            for n in range(len(sizes))
            for some in itertools.combinations(sizes, n + 1)
        }
        if any(math.isclose(abs(number), one) for n in counts for one in (n, 1 / n)):
            key, by_backward = self.made.get(one, (None, True))
            if not by_backward:  # the mean of equal values
                self.again.pop(key, None)
            return _NONE
        return values[0]

    def _scan(self, equation, values, stack):
        body = opened(equation.params["jaxpr"])
        consts, carried = parts_of_scan(equation, body)
        carry, old = values[consts : consts + carried], None
        while carry != old:  # which only loses axes
            old = carry
            inputs = [*values[:consts], *carry, *values[consts + carried :]]
            results = self.run(body, inputs, stack)
            carry = [one & other for one, other in zip(carry, results, strict=False)]
        return [*carry, *results[carried:]]


def _added_rows(equation):
    """Results that are in shards along an axis by out_specs, but equal along it because a sum has
    added the rows of each device's shard of an argument to those of the others.
    """
    body, params = opened(equation.params["jaxpr"]), equation.params
    sizes, specs = params["mesh"].shape, (params["in_specs"], params.get("out_specs") or ())
    are_read = all(isinstance(spec, PartitionSpec) for spec in itertools.chain(*specs))
    if not are_read or [len(s) for s in specs] != [len(body.invars), len(body.outvars)]:
        return  # written in a way that we do not read
    given, asked = (
        [
            by_dimension(s, len(getattr(v.aval, "shape", ())), sizes)
            for s, v in zip(a, b, strict=True)
        ]
        for a, b in zip(specs, (body.invars, body.outvars), strict=True)
    )
    function, file, line = function_of(body)
    for number, (axes, spec, out) in enumerate(
        zip(differing_results(equation), asked, body.outvars, strict=True)
    ):
        for dimension, names in enumerate(spec):
            for axis in names:
                if axis in axes or out.aval.shape[dimension] < 2:
                    continue
                rows = _sources(body, out, dimension, axis)
                if any(is_sum and axis in given[n][d] for n, d, is_sum in rows):
                    yield Mismatch("rows", (axis,), number, function, file, line)


def _sources(jaxpr, atom, dimension, axis, is_sum=False):
    """The inputs of a jaxpr, by number and dimension, from which the rows of a value come, each
    with whether a sum along an axis is between.
    """
    makers = {v: (one, n) for one in jaxpr.eqns for n, v in enumerate(one.outvars)}
    numbers = {variable: n for n, variable in enumerate(jaxpr.invars)}
    todo, seen, found = [(atom, dimension, is_sum)], set(), set()
    while todo:
        atom, *rest = one = todo.pop()
        if hasattr(atom, "val") or one in seen:
            continue
        seen.add(one)
        if atom in numbers:
            found.add((numbers[atom], *rest))
        elif atom in makers:
            todo += _before(*makers[atom], *rest, axis)
    return found


def _before(equation, number, dimension, is_sum, axis):
    """The operands of an equation from which the rows of a result come, as `_sources` has them."""
    name, atoms = equation.primitive.name, equation.invars
    if name in SUMS:
        # what a backward pass adds is a gradient, as of single samples, and has another remedy
        is_written = not is_in_backward(str(equation.source_info.name_stack))
        is_along = is_written and axis in communicated_along(equation)
        return [(atoms[number], dimension, is_sum or is_along)]
    if name == "scan":
        return _before_scan(equation, number, dimension, is_sum, axis)
    if name in OPERATIONS or name in BRANCHING:
        return []
    if inner := called_jaxprs(equation):
        found = _sources(inner[0], inner[0].outvars[number], dimension, axis, is_sum)
        return [(atoms[n], *rest) for n, *rest in found]
    places = dimensions_before(equation, dimension)
    return [(atom, d, is_sum) for atom, d in zip(atoms, places, strict=False) if d is not None]


def _before_scan(equation, number, dimension, is_sum, axis):
    """The same of a scan, whose iterations pass on what they carry."""
    body = opened(equation.params["jaxpr"])
    consts, carried = parts_of_scan(equation, body)
    if number >= carried and dimension == 0:
        return []  # one row for each iteration
    todo, seen, before = [(number, dimension - (number >= carried), is_sum)], set(), []
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        out, at, so_far = one
        for n, d, is_so in _sources(body, body.outvars[out], at, axis, so_far):
            before.append((equation.invars[n], d + (n >= consts + carried), is_so))
            if consts <= n < consts + carried:
                todo.append((n - consts, d, is_so))
    return before


def dimensions_before(equation: Any, dimension: int) -> list[int | None]:
    """For each operand the dimension from which that of the result comes; None for none.

    Args:
      equation: of a jaxpr, with one result.
      dimension: of the result.
    """
    name, params = equation.primitive.name, equation.params
    shapes = [getattr(atom.aval, "shape", ()) for atom in equation.invars]
    shape = equation.outvars[0].aval.shape
    if name == "transpose":
        return [params["permutation"][dimension]]
    if name == "broadcast_in_dim":
        dims = list(map(int, params["broadcast_dimensions"]))
        at = dims.index(dimension) if dimension in dims else None
        return [at if at is not None and shapes[0][at] == shape[dimension] else None]
    if name == "reshape":
        before = math.prod(shape[:dimension])
        sizes = shapes[0]
        return [
            next((d for d, n in enumerate(sizes) if n > 1 and math.prod(sizes[:d]) == before), None)
        ]
    if name == "squeeze" or "axes" in params:  # of a reduction
        gone = params.get("dimensions", params.get("axes", ()))
        kept = [d for d in range(len(shapes[0])) if d not in gone]
        return [kept[dimension]] if len(kept) == len(shape) else [None]
    if name == "dot_general":
        return _of_a_product(params["dimension_numbers"], shapes, dimension)
    return [dimension if one == shape else None for one in shapes]


def _of_a_product(numbers, shapes, dimension):
    contracted, batch = numbers
    if dimension < len(batch[0]):
        return [batch[0][dimension], batch[1][dimension]]
    free = [
        [(side, d) for d in range(len(shapes[side])) if d not in (*contracted[side], *batch[side])]
        for side in (0, 1)
    ]
    side, at = [*free[0], *free[1]][dimension - len(batch[0])]
    return [at if side == n else None for n in (0, 1)]


def _number(atom):
    """The value of a literal number; None for others."""
    try:
        return float(atom.val)
    except (AttributeError, TypeError, ValueError):
        return None
