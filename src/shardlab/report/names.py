"""Names of arguments and results, as the user of a program knows them, and the types of arrays as
text.
"""

import inspect
import itertools
import operator
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from shardlab.arrays.layout import short_dtype
from shardlab.programs.hlo import metadata

__all__ = [
    "in_common",
    "keys_of",
    "own_names",
    "parameter_names",
    "path_text",
    "pattern",
    "renamed",
    "stacked",
    "type_text",
    "wrapper_of",
]

# What compiles a function under names of its own, and a name that only it gives.
_WRAPPERS = (
    ("equinox", r"dynamic_(no)?donate\b", all),
    ("pmap", r"flat_args\[", all),
    ("nnx", r"\w+\.states\[\d+\]", any),
)


def path_text(path: tuple) -> str:
    """A path in a tree as text, such as "['layers'][0]"."""
    return jax.tree_util.keystr(path)


def keys_of(name: str) -> list[str]:
    """The keys of an array's name, the last one first: of "state[0]['w']" w, 0 and state."""
    return re.findall(r"\w+", name)[::-1]


def in_common(one: Iterable[str], other: Iterable[str]) -> int:
    """How many keys two names have in common before the first in which they differ.

    Args:
      one, other: the keys, as `keys_of` returns them.
    """
    return sum(1 for _ in itertools.takewhile(bool, map(operator.eq, one, other)))


def type_text(shape: Sequence[int], dtype: Any) -> str:
    """The type of an array as text.

    >>> from shardlab.report.names import type_text
    >>> type_text((64, 256), "float32")
    'f32[64,256]'

    Args:
      shape, dtype: of the array.
    """
    return f"{short_dtype(str(dtype))}[{','.join(map(str, shape))}]"


def pattern(name: str, stacks: Iterable[str] = ()) -> str:
    """A name with * for numbers of layers.

    >>> from shardlab.report.names import pattern
    >>> pattern("params['layers'][3]['block_2']"), pattern("state[0][1]"), pattern("layers[1]", {"layers"})
    ("params['layers'][*]['block_*']", 'state[0][*]', 'layers[*]')

    Args:
      name: of an argument or a result.
      stacks: the names whose first number is that of a layer too, as `stacked` returns them.
    """  # noqa: E501
    head, path = re.match(r"(\w*)(.*)", name, re.DOTALL).groups()
    first = "" if head in stacks else (re.match(r"\[\d+\]", path) or [""])[0]
    path = re.sub(r"\[\d+\]", "[*]", path.removeprefix(first))
    return head + first + re.sub(r"(?<=[A-Za-z]_)\d+\b", "*", path)


def stacked(names: Iterable[str]) -> set[str]:
    """The names with so many numbered parts that these are layers, and not, for example, parameters
    and moments.
    """
    numbers = {
        re.match(r"(\w+)(\[\d+\])?", name).groups() for name in names if re.match(r"\w", name)
    }
    counts = Counter(head for head, number in numbers if number and head != "args")
    return {head for head, count in counts.items() if count > 3}


def wrapper_of(names: Sequence[str]) -> str:
    """What has given the arguments names of its own: "equinox", "nnx", "pmap" or ""."""
    for wrapper, form, several in _WRAPPERS:
        if names and several(re.match(form, name) for name in names):
            return wrapper
    return ""


def own_names(
    compiled: Any, f: Any, args: tuple, kwargs: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """The names of a program's arguments by the function's parameters: ([], {}) where they cannot
    be told.

    Args:
      compiled: the `jax.stages.Compiled` program.
      f, args, kwargs: the function that it was compiled from, with its arguments.

    Returns:
      The names of the arguments that the program takes, in order; and those of all of them by their
      paths in `compiled.args_info`.
    """
    try:
        bound = inspect.signature(inspect.unwrap(f)).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return [], {}
    info, tree = jax.tree_util.tree_flatten_with_path(getattr(compiled, "args_info", None))
    kinds = [
        type_text(aval.shape, aval.dtype)
        for aval in (getattr(one, "_aval", None) or one for _, one in info)
    ]
    every = [
        (f"{name}{path_text(path)}".removesuffix(".value"), leaf)
        for name, value in bound.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]
    ]
    for kept in (
        _is_array,
        lambda leaf: _is_array(leaf) or isinstance(leaf, bool | int | float | complex),
    ):
        leaves = [(name, _type_of(leaf)) for name, leaf in every if kept(leaf)]
        if kinds == [kind for _, kind in leaves]:
            break
    else:
        return [], {}  # some were left out, or come in another order
    if not info:
        return [], {}
    used = [sharding is not None for sharding in tree.flatten_up_to(compiled.input_shardings)]
    by_path = {path_text(path): name for (path, _), (name, _) in zip(info, leaves, strict=True)}
    return [name for (name, _), is_used in zip(leaves, used, strict=True) if is_used], by_path


def _is_array(leaf):
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _type_of(leaf):
    return (
        type_text(leaf.shape, leaf.dtype)
        if _is_array(leaf)
        else type_text((), jax.numpy.result_type(leaf))
    )


def renamed(text: str, own: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The text of a program with other names of its arguments, and the new names by the old ones.

    Args:
      text: of the compiled program.
      own: the names that its arguments get, in order; if they are not as many as the arguments,
        nothing changes.
    """
    old_names = parameter_names(text)
    if len(old_names) != len(own):
        return text, {}
    new_names = dict(zip(old_names, own, strict=True))
    for name, new in new_names.items():
        text = text.replace(f'op_name="{_quoted(name)}"', f'op_name="{_quoted(new)}"')
    return text, new_names


def _quoted(name):
    return name.replace("\\", "\\\\").replace("'", "\\'").replace('"', '\\"')


def parameter_names(text: str) -> list[str]:
    """JAX's names of the parameters of a program's entry, in order."""
    entry = text.partition("\nENTRY ")[2]
    lines = (line for line in entry.splitlines() if "op_name=" in line)
    names = {
        int(n[1]): metadata(line)["op_name"]
        for line in lines
        if (n := re.search(r"\bparameter\((\d+)\)", line))
    }
    return [names[number] for number in sorted(names)]
