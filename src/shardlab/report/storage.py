"""What a program stores: its arguments and results on each device, and its memory."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardlab.arrays.layout import axes_named, itemsize, spec_text
from shardlab.programs.liveness import alive_at_peak
from shardlab.report import findings
from shardlab.report.names import parameter_names, path_text, type_text
from shardlab.report.program import Located

__all__ = [
    "Array",
    "Temporary",
    "arguments",
    "memory",
    "results",
    "shardings",
    "temporaries",
    "whole_memory",
]


@dataclass(frozen=True)
class Array:
    """An argument or a result of the program, as each device stores it.

    Attributes:
      name: such as "state[0]['layers'][0]['up']".
      type: of the whole array, such as "f32[64,256]".
      shard: the type of what each device stores, such as "f32[16,256]".
      spec: its `PartitionSpec` as text; "" if it is on no mesh.
      bytes: on each device.
      whole: bytes of the whole array.
      replicated: the mesh axes along which devices store the same.
      donated: whether its memory may be used for a result; None if unknown, and for a result.
      placed: whether it is on devices by name; False for a NumPy array, and for one that JAX put on
        the default device; None if unknown, and for a result.
      number: its place among all arguments of the traced program, from 0; -1 for a result.
    """

    name: str
    type: str
    shard: str
    spec: str
    bytes: int
    whole: int
    replicated: tuple[str, ...]
    donated: bool | None
    placed: bool | None = None
    number: int = -1


@dataclass(frozen=True)
class Temporary:
    """Temporaries of a type that one line makes, and that are alive where a device holds most.

    Attributes:
      type: of each on a device, such as "f32[4,32,512]".
      count: how many are alive at once.
      bytes: on each device, of all of them.
      is_stack: whether a loop writes them part by part.
      operation: JAX's name of what makes them, such as "dot_general"; "" if unknown.
      phase: "forward", "backward" or "update"; "" if the program does not say.
      is_recomputed: whether a backward pass computes it again, as a `jax.checkpoint` asks it to.
      file, line: of the source; "" and 0 if unknown.
    """

    type: str
    count: int
    bytes: int
    is_stack: bool
    operation: str
    phase: str
    is_recomputed: bool
    file: str
    line: int


def temporaries(located: Located) -> list[Temporary]:
    """What is alive at the peak of a program beside its arguments, the most bytes first.

    Args:
      located: the program with the origins of its instructions.
    """
    groups = {}
    for one in alive_at_peak(located.program):
        key = one.type, one.is_stack, *located.origins.made(one.instruction)
        count, size = groups.get(key, (0, 0))
        groups[key] = count + 1, size + one.bytes
    rows = [Temporary(kind, *sums, *place) for (kind, *place), sums in groups.items()]
    return sorted((row for row in rows if row.bytes), key=lambda row: -row.bytes)


def results(compiled: Any, lowered: Any) -> list[Array]:
    """The results as `Array`s, in order.

    Args:
      compiled, lowered: the program, as JAX's ahead-of-time compilation returns it.
    """
    try:
        info = getattr(compiled, "out_info", None)
    except AssertionError:
        # JAX 0.7 gives the results of a program with callbacks (interpreted kernels) no layouts.
        info = getattr(lowered, "out_info", None)
    infos = jax.tree_util.tree_flatten_with_path(info)[0]
    placed = jax.tree.leaves(compiled.output_shardings)
    if len(placed) != len(infos):
        return []
    return [
        _array(f"result{path_text(path)}", tuple(result.shape), result.dtype, sharding, None)
        for (path, result), sharding in zip(infos, placed, strict=True)
    ]


def arguments(
    compiled: Any, text: str, args: Sequence[Any], kwargs: Mapping[str, Any], own: Sequence[str]
) -> list[Array]:
    """The arguments as `Array`s, the largest first.

    Args:
      compiled, text: the program, and its text, which may name them.
      args, kwargs: the values with which it was compiled.
      own: their names as the function has them; () where it has none.
    """
    info, values, placed = _passed(compiled, args, kwargs)
    # jit drops from a program what it does not use; for this it has no sharding.
    used = [n for n, sharding in enumerate(placed) if sharding is not None]
    info, values, placed = ([them[n] for n in used] for them in (info, values, placed))
    names = parameter_names(text)
    found = []
    for number, (path, argument) in enumerate(info):
        aval = getattr(argument, "_aval", None) or argument
        sharding = _sharding(placed[number], values[number])
        name = names[number] if len(names) == len(info) else own[number] if own else path_text(path)
        array = _array(name, tuple(aval.shape), aval.dtype, sharding, argument.donated)
        is_committed = getattr(values[number], "committed", None)
        is_placed = False if isinstance(values[number], np.ndarray) else is_committed
        found.append(replace(array, placed=is_placed, number=used[number]))
    return sorted(found, key=lambda array: -array.bytes)


def shardings(compiled: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The sharding of each argument, also of those that the program does not use; None if unknown.

    Args:
      compiled: the program.
      args, kwargs: the values with which it was compiled.
    """
    _, values, placed = _passed(compiled, args, kwargs)
    return list(map(_sharding, placed, values))


def _passed(compiled, args, kwargs):
    """What JAX says of each argument with its path, its value (None if unknown), and where the
    program wants it (None where it does not use it).
    """
    info, tree = jax.tree_util.tree_flatten_with_path(getattr(compiled, "args_info", None))
    values = jax.tree.leaves((args, kwargs))
    values = values if len(values) == len(info) else [None] * len(info)
    return info, values, tree.flatten_up_to(compiled.input_shardings) if info else []


def _sharding(placed, value):
    """The sharding of an argument: the compiler decides where an array goes that is on no mesh."""
    both = placed, getattr(value, "sharding", None)
    return next((s for s in both if isinstance(s, NamedSharding)), both[0] or both[1])


def memory(compiled: Any, backend: str, text: str) -> dict[str, int]:
    """Bytes of each device, by what stores them; the peak is a bound.

    Args:
      compiled: the program, which says what its arguments, results and temporaries take.
      backend: what it is compiled for, such as "cpu" or "v5e": only TPUs' peaks are taken as said.
      text: its text, which has its constants.
    """
    analysis = compiled.memory_analysis()
    sizes = {
        "arguments": analysis.argument_size_in_bytes,
        "results": analysis.output_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
        "donated": analysis.alias_size_in_bytes,
    }
    if constants := sum(findings.constant_sizes(text)):
        sizes["constants"] = int(constants)
    # The temporaries of CPUs and GPUs are one block, which newer compilers leave out of their peak.
    peak = getattr(analysis, "peak_memory_in_bytes", 0) if re.match(r"tpu|v\d", backend) else 0
    return {**sizes, "peak": peak or whole_memory(sizes)}


def whole_memory(sizes: Mapping[str, int]) -> int:
    """Bytes of all that a device stores, at once; `sizes` are those of `memory`."""
    stored = sizes["arguments"] + sizes["results"] + sizes["temporaries"]
    return stored + sizes.get("constants", 0) - sizes["donated"]


def _array(name, shape, dtype, sharding, donated):
    local_shape = sharding.shard_shape(shape) if sharding is not None else shape
    element = itemsize(str(dtype))
    spec, replicated = "", ()
    if isinstance(sharding, NamedSharding):
        spec = spec_text(sharding.spec)
        used = axes_named(sharding.spec)  # partial sums differ from device to device too
        sizes = sharding.mesh.shape.items()
        replicated = tuple(axis for axis, size in sizes if size > 1 and axis not in used)
    stored, whole = (math.ceil(math.prod(sizes) * element) for sizes in (local_shape, shape))
    return Array(
        name,
        type_text(shape, dtype),
        type_text(local_shape, dtype),
        spec,
        stored,
        whole,
        replicated,
        donated,
    )
