"""Judge what a training step captures: keys that no argument changes."""

from collections.abc import Iterator
from typing import Any

from shardlab.arrays.layout import counted
from shardlab.programs.kernels import inner_jaxprs
from shardlab.programs.origins import where
from shardlab.programs.varying import own_frames, parts_of_scan
from shardlab.report.findings import Finding

__all__ = ["of_fixed_keys"]

_DRAWS = ("random_bits", "random_gamma")


def of_fixed_keys(jaxpr: Any) -> Iterator[Finding]:
    """Random numbers that are the same at every call, because no argument changes their key.

    Args:
      jaxpr: the traced step, which has a backward pass.
    """
    places: dict[tuple[str, int], None] = {}
    _follow(jaxpr, [True] * len(jaxpr.invars), places, ("", 0))
    if places:
        first, *others = places
        rest = f" (with {counted(len(others), 'other line')})" if others else ""
        yield Finding(
            "fixed key",
            f"{where(*first)}: draws from a key that no argument changes{rest}, so every call "
            "draws the same numbers, such as one dropout mask for all steps: pass the key as an "
            "argument, or fold in the step's number with jax.random.fold_in",
        )


def _follow(jaxpr, given, fixed, place):
    """Which results of a jaxpr depend on the arguments, where `given` says it of its inputs.

    The lines of draws from keys that do not are added to `fixed`; `place` is the line of the call,
    since JAX traces the functions of jax.random once for all of their calls.
    """
    known = dict(zip(jaxpr.invars, given, strict=True))

    def depends(atom):
        return not hasattr(atom, "val") and known.get(atom, False)

    for equation in jaxpr.eqns:
        here = next(iter(own_frames(equation)), place)
        inputs = [depends(atom) for atom in equation.invars]
        results = [any(inputs)] * len(equation.outvars)
        inner = [*inner_jaxprs(equation)]
        name = equation.primitive.name
        if name in _DRAWS and not inputs[0]:
            fixed[here] = None
        elif name == "scan" and len(inner) == 1:
            results = _follow_scan(equation, inner[0], inputs, fixed, here)
        elif name == "cond" and all(len(one.invars) == len(inputs) - 1 for one in inner):
            branches = [_follow(one, inputs[1:], fixed, here) for one in inner]
            results = [inputs[0] or any(one) for one in zip(*branches, strict=True)]
        elif len(inner) == 1 and len(inner[0].invars) == len(inputs):
            found = _follow(inner[0], inputs, fixed, here)
            results = found if len(found) == len(results) else results
        known |= zip(equation.outvars, results, strict=True)
    return [depends(atom) for atom in jaxpr.outvars]


def _follow_scan(equation, body, inputs, fixed, place):
    """As `_follow`: what is carried depends on the arguments as soon as one iteration makes it."""
    first, carried = parts_of_scan(equation, body)
    end = first + carried
    while True:
        draws: dict[tuple[str, int], None] = {}
        results = _follow(body, inputs, draws, place)
        carry = [one or other for one, other in zip(inputs[first:end], results, strict=False)]
        if carry == inputs[first:end]:
            fixed |= draws
            return results
        inputs = [*inputs[:first], *carry, *inputs[end:]]
