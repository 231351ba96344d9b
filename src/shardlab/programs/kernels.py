"""Kernels that communicate by themselves: a compiled program shows that they run, but not what they
send.
"""

import re
from collections.abc import Iterator
from typing import Any

import jax

from shardlab.programs.hlo import Instruction, metadata

__all__ = [
    "BRANCHING",
    "called_jaxprs",
    "calls",
    "communicates",
    "declared_bytes",
    "flat_equations",
    "inner_jaxprs",
    "name",
    "title",
    "written",
]

BRANCHING = ("cond", "scan", "shard_map", "while")  # what runs a jaxpr otherwise than once as it is
_CALLS = ("pallas_call", "mpmd_map")  # as `pl.pallas_call` and `pl.kernel` are named in a jaxpr


def communicates(instruction: Instruction) -> bool:
    """Whether an instruction of a compiled program calls a kernel that communicates, for TPUs or
    GPUs.
    """
    marks = r'"has_communication":\s*true|uses_xla_collective_metadata = true'
    return (
        instruction.kind == "custom-call" and re.search(marks, instruction.attributes) is not None
    )


def name(instruction: Instruction) -> str:
    """The name of the kernel that an instruction calls, as `pl.pallas_call(name=...)` gives it."""
    parts = metadata(instruction.line).get("op_name", "").split("/")
    return next((part for part in reversed(parts) if part and part not in _CALLS), instruction.name)


def declared_bytes(instruction: Instruction) -> int | None:
    """The bytes that a kernel says it sends, in its `pl.CostEstimate`; None if it does not say."""
    found = re.search(r'remote_bytes_transferred\\?":\s*\\?"?(\d+)', instruction.attributes)
    return int(found[1]) if found else None


def written(jaxpr: Any) -> Iterator[tuple[str, int | None]]:
    """The kernels in a jaxpr that communicate, also those that are interpreted: each name, and its
    declared bytes.

    >>> from shardlab.programs.kernels import written
    >>> list(written(jax.make_jaxpr(jnp.sin)(1.0).jaxpr))
    []

    Args:
      jaxpr: as `jax.make_jaxpr(f)(...).jaxpr` is.
    """
    for equation in calls(jaxpr):
        if any(map(_is_remote, _equations(equation))):
            estimate = equation.params.get("cost_estimate")
            yield title(equation), getattr(estimate, "remote_bytes_transferred", 0) or None


def calls(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr that call a Pallas kernel, in order, also those in loops, branches
    and functions.
    """
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS:
            yield equation
            continue
        for inner in inner_jaxprs(equation):
            yield from calls(inner)


def title(equation: Any) -> str:
    """The name of the kernel that an equation calls: what `pl.pallas_call(name=...)` gives it, or
    its function's.
    """
    given = equation.params.get("name") or equation.params.get("name_and_src_info")
    body = equation.params["jaxpr" if "jaxpr" in equation.params else "jaxprs"]
    first = body[0] if isinstance(body, tuple) else body
    known = given or getattr(first.debug_info, "func_name", None) or "kernel"
    return str(known).split()[0]


def _equations(equation):
    for inner in inner_jaxprs(equation):
        for one in inner.eqns:
            yield one
            yield from _equations(one)


def _is_remote(equation):
    """Whether an operation in a kernel names another device."""
    operation, params = equation.primitive.name, equation.params
    if operation not in ("dma_start", "semaphore_signal"):
        return "remote" in operation
    tree = params.get("tree", params.get("args_tree"))
    parts = jax.tree.unflatten(tree, equation.invars) if tree is not None else ()
    # A copy has the other device as its last operand; a signal has it before the core.
    return len(parts) > 3 and parts[-1 if operation == "dma_start" else 3] is not None


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs in the parameters of an equation."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(one, "jaxpr", one)
            if hasattr(inner, "eqns") and hasattr(inner, "invars"):
                yield inner


def called_jaxprs(equation: Any) -> list[Any]:
    """The jaxprs that an equation calls with its operands for its results."""
    return [
        one
        for one in inner_jaxprs(equation)
        if len(one.invars) == len(equation.invars) and len(one.outvars) == len(equation.outvars)
    ]


def flat_equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of those that it calls, in order, not those of what `BRANCHING`
    runs.
    """
    for equation in jaxpr.eqns:
        inner = [] if equation.primitive.name in BRANCHING else called_jaxprs(equation)
        if not inner:
            yield equation
        for one in inner:
            yield from flat_equations(one)
