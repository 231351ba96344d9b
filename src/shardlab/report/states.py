"""Tell which arguments are a state: the results that replace them are made from them.

What replaces a parameter, a moment or a cache is made from it element by element, or by writing
into it.
"""

from dataclasses import dataclass
from typing import Any

from shardlab.programs.kernels import inner_jaxprs
from shardlab.programs.varying import is_backward, parts_of_scan

__all__ = ["states"]

_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general", "triangular_solve")
_ENDS = ("argmax", "argmin", "argsort", "iota", "top_k")  # what follows is no new value of it
_WRITES = ("dynamic_update_slice", "scatter", "swap")
_READS = ("dynamic_slice", "gather")
_SUMS = ("add", "add_any", "sub")


@dataclass(frozen=True)
class _Made:
    """The arguments of which a value is a new value, and those that a product has brought."""

    new: frozenset = frozenset()
    product: frozenset = frozenset()

    def __or__(self, other):
        return _Made(self.new | other.new, self.product | other.product)


def states(jaxpr: Any) -> list[frozenset[int]]:
    """For each result of a traced program the arguments of which it is a new value.

    Without a backward pass a sum of an argument and of a product with it is no new value of it, but
    what a residual block makes of its input.

    Args:
      jaxpr: as `jax.jit(f).trace(...).jaxpr.jaxpr` is.
    """
    inputs = [_Made(frozenset({number})) for number in range(len(jaxpr.invars))]
    results = _run(jaxpr, inputs, _is_differentiated(jaxpr))
    return [one.new for one in results]


def _is_differentiated(jaxpr):
    return any(
        is_backward(equation) or any(map(_is_differentiated, inner_jaxprs(equation)))
        for equation in jaxpr.eqns
    )


def _run(jaxpr, inputs, is_differentiated):
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom):
        return _Made() if hasattr(atom, "val") else known.get(atom, _Made())

    for equation in jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        known |= zip(equation.outvars, _results(equation, values, is_differentiated), strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _results(equation, values, is_differentiated):
    name, params = equation.primitive.name, equation.params
    run = lambda jaxpr, inputs: _run(jaxpr, inputs, is_differentiated)  # noqa: E731
    inner = [*inner_jaxprs(equation)]
    if name == "scan":
        consts, carried = parts_of_scan(equation, inner[0])
        end = consts + carried
        return _until_stable(
            lambda carry: run(inner[0], [*values[:consts], *carry, *values[end:]]),
            values[consts:end],
        )
    if name == "while":
        first = params["cond_nconsts"]
        fixed = first + params["body_nconsts"]
        body = getattr(params["body_jaxpr"], "jaxpr", params["body_jaxpr"])
        return _until_stable(
            lambda carry: run(body, [*values[first:fixed], *carry]), values[fixed:]
        )
    if name == "cond":
        branches = [run(one, values[1:]) for one in inner]
        return [_any(results) for results in zip(*branches, strict=True)]
    fitting = (
        one
        for one in inner
        if len(one.invars) == len(values) and len(one.outvars) == len(equation.outvars)
    )
    if (one := next(fitting, None)) is not None:
        return run(one, values)
    return [_of_operation(name, values, is_differentiated)] * len(equation.outvars)


def _of_operation(name, values, is_differentiated):
    """What an operation that contains no other makes."""
    together = _any(values)
    if name in _PRODUCTS:
        return _Made(product=together.new | together.product)
    if name in _ENDS or name.startswith("reduce_"):
        return _Made(product=together.product)
    new = together.new
    if name.startswith(_WRITES) or name in _READS:
        new = values[0].new
    elif name == "select_n":
        new = _any(values[1:]).new
    elif name in _SUMS and len(values) == 2 and not is_differentiated:
        one, other = values
        new = (one.new - other.product) | (other.new - one.product)
    return _Made(new, together.product)


def _until_stable(run, carry):
    """The results of a loop: of what it carries also what it begins with."""
    while True:
        results = run(carry)
        after = [one | other for one, other in zip(carry, results, strict=False)]
        if after == list(carry):
            return [*carry, *results[len(carry) :]]
        carry = after


def _any(values):
    made = _Made()
    for value in values:
        made |= value
    return made
