"""Judge what the loops of a training step carry: sums in a larger type than the parameters."""

from collections.abc import Iterator, Sequence
from typing import Any

from shardlab.arrays.layout import bytes_text
from shardlab.programs.kernels import inner_jaxprs
from shardlab.programs.origins import where
from shardlab.programs.varying import opened, parts_of_scan, place_of
from shardlab.report.findings import Finding
from shardlab.report.names import type_text

__all__ = ["of_wide_sums"]

_MUCH = 1 / 8  # of what a device holds at once


def of_wide_sums(jaxpr: Any, arguments: Sequence[Any], peak: int) -> Iterator[Finding]:
    """Sums that a loop carries in a larger type than both what it adds and the argument of their
    shape, as gradients of bfloat16 parameters in float32.

    Where a parameter or a moment of the shape has the larger type, the sum has its precision, and
    nothing is told.

    Args:
      jaxpr: the traced step.
      arguments: as `shardlab.report.explain.Array`s.
      peak: bytes that a device holds at once.
    """
    own = {}
    for array in arguments:
        kind, _, shape = array.type.partition("[")
        own.setdefault(shape, {}).setdefault(kind, array)
    sums = {}
    for aval, narrow, place in _added(jaxpr):
        wide, _, shape = type_text(aval.shape, aval.dtype).partition("[")
        narrow, arrays = type_text((), narrow).partition("[")[0], own.get(shape, {})
        if narrow in arrays and wide not in arrays:
            sums.setdefault((place, wide, narrow), []).append(2 * arrays[narrow].bytes)
    for (place, wide, narrow), sizes in sums.items():
        if sum(sizes) > _MUCH * peak:
            yield Finding(
                "largest temporaries",
                f"{where(*place)}: a loop carries sums in {wide}, {bytes_text(sum(sizes))} on each "
                f"device, {sum(sizes) / peak:.0%} of what it holds at once, although what it adds "
                f"and the parameters are {narrow}: accumulated in {narrow} the sums would take "
                f"{bytes_text(sum(sizes) // 2)}, and be rounded in each iteration",
            )


def _added(jaxpr):
    """What scans only add up after making it larger: the type of the sum, the type of what is
    added, and the (file, line) of the addition.
    """
    for equation in jaxpr.eqns:
        for inner in inner_jaxprs(equation):
            yield from _added(inner)
        if equation.primitive.name != "scan":
            continue
        body = opened(equation.params["jaxpr"])
        consts, carried = parts_of_scan(equation, body)
        makers = {out: one for one in body.eqns for out in one.outvars}
        inputs = body.invars[consts : consts + carried]
        for variable, result in zip(inputs, body.outvars, strict=False):
            adds = makers.get(result) if not hasattr(result, "val") else None
            if adds is None or adds.primitive.name not in ("add", "add_any"):
                continue
            others = [
                atom for atom in adds.invars if atom is not variable and not hasattr(atom, "val")
            ]
            cast = makers.get(others[0]) if len(others) == 1 else None
            if cast is None or cast.primitive.name != "convert_element_type":
                continue
            before = cast.invars[0].aval.dtype
            if str(before) in ("bfloat16", "float16") and result.aval.dtype == "float32":
                yield result.aval, before, place_of(adds)
