"""Load a model's weights from the files of another library, each shard straight to its device.

    table = {"layers/{}/up/kernel": Stored("layers.{}.fc1.weight", ((1,), (0,))), ...}
    files = open_weights("folder")  # safetensors, in one file or many
    print(compare_weights(table, shapes, files))
    params = load_weights(table, target(shapes, specs, mesh), files)

One table says where each parameter stands: its name in the files, the order of its dimensions there
and, of an array that several parameters share, its part.
"""

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardlab.arrays.rules import paths_of

__all__ = [
    "Fused",
    "Stored",
    "WeightReport",
    "compare_weights",
    "equal_part",
    "export_weights",
    "heads_part",
    "load_weights",
    "open_weights",
]


@dataclass(frozen=True)
class Fused:
    """Which part of an array of the files is ours. See `heads_part` and `equal_part`.

    The array's dimension `dim` consists of `of` blocks of the same size, and element i of the
    first of our dimensions that make it up is block `blocks[i]`.

    Attributes:
      blocks: the number of a block for each of our elements.
      of: all blocks of the array.
      dim: the array's dimension that is divided: 0 as PyTorch's `nn.Linear` stores it, 1 where it
        is stored [in, out].
    """

    blocks: tuple[int, ...]
    of: int
    dim: int = 0


@dataclass(frozen=True)
class Stored:
    """Where one of our parameters stands in the files.

    >>> query = Stored("layers.{}.q_proj.weight", ((1, 2), (0,)))  # ours is [D, N, H]
    >>> query.shape_in_file((64, 8, 4))
    (32, 64)

    Attributes:
      name: of the array in the files, with {} for each number of a layer or an expert.
      dims: for each dimension of the array, the numbers of our dimensions that make it up; () for
        a dimension of size 1 that we do not have.
      part: which part of the array is ours; None for all of it.
    """

    name: str
    dims: tuple[tuple[int, ...], ...]
    part: Fused | None = None

    def shape_in_file(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the array in the files, by the shape of our parameter without stacks."""
        sizes = _sizes_of_part(self, shape)
        if self.part:
            sizes[self.part.dim] = self.part.of * self.block(shape)
        return tuple(sizes)

    def block(self, shape: tuple[int, ...]) -> int:
        """How many of the array's rows (or columns) a block has."""
        return prod(shape[d] for d in self.dims[self.part.dim][1:]) if self.part else 1


def heads_part(part: str, heads: int, groups: int, order: str, dim: int = 0) -> Fused:
    """The part of a fused array of queries, keys and values.

    >>> heads_part("key", heads=4, groups=2, order="blocked").blocks  # q q q q k k v v
    (4, 5)
    >>> heads_part("key", heads=4, groups=2, order="by group").blocks  # q q k v q q k v
    (2, 6)

    Args:
      part: "query", "key" or "value".
      heads: query heads.
      groups: heads of keys and values, each of which serves `heads / groups` query heads.
      order: "blocked" (all queries, then all keys, then all values) or "by group" (the queries of a
        group, its key and its value, then the next group), which with `groups=heads` is head by
        head.
      dim: the array's dimension that is divided; see `Fused`.

    Raises:
      ValueError: the groups do not divide the heads, or a part or an order that does not exist.
    """
    known = {"part": ("query", "key", "value"), "order": ("blocked", "by group")}
    for kind, given in (("part", part), ("order", order)):
        if given not in known[kind]:
            near = difflib.get_close_matches(str(given), known[kind], 1, 0)[0]
            raise ValueError(f"no {kind} {given!r}: choose {near!r}, or another of {known[kind]}")
    if groups < 1 or heads % groups:
        raise ValueError(f"{groups} groups do not divide {heads} heads: take both from the config")
    each = heads // groups  # query heads of a group
    if order == "blocked":
        first = {"query": 0, "key": heads, "value": heads + groups}[part]
        blocks = range(first, first + (heads if part == "query" else groups))
    elif part == "query":
        blocks = [g * (each + 2) + n for g in range(groups) for n in range(each)]
    else:
        blocks = [g * (each + 2) + each + (part == "value") for g in range(groups)]
    return Fused(tuple(blocks), heads + 2 * groups, dim)


def equal_part(number: int, size: int, parts: int = 2, dim: int = 0) -> Fused:
    """One of several parts of the same size, one after the other, as gate and up of a SwiGLU.

    >>> equal_part(1, size=3)  # up: the second half of [2 F, D] with F = 3
    Fused(blocks=(3, 4, 5), of=6, dim=0)

    Args:
      number: which part, from 0.
      size: elements of our dimension.
      parts: how many there are.
      dim: the array's dimension that is divided; see `Fused`.

    Raises:
      ValueError: there is no part of that number.
    """
    if not 0 <= number < parts:
        raise ValueError(f"no part {number} of {parts}: they are 0 to {parts - 1}")
    return Fused(tuple(range(number * size, (number + 1) * size)), parts * size, dim)


def open_weights(folder: str | Path) -> dict[str, Any]:
    """The arrays of a folder of safetensors files, none of which is read yet.

    Args:
      folder: with `model.safetensors.index.json`, or with safetensors files and no index.

    Returns:
      For each name what safetensors' `get_slice` returns: indexing it reads that slice alone.

    Raises:
      ValueError: there are no files, the index names a file or an array that is not there, or two
        files without an index have an array of the same name.
      ImportError: safetensors is not installed.
    """
    from safetensors import safe_open

    folder = Path(folder)
    files = {file.name: file for file in sorted(folder.glob("*.safetensors"))}
    if not files:
        raise ValueError(f"{folder} has no file *.safetensors: give the folder that has them")
    indices = sorted(folder.glob("*.safetensors.index.json"))
    home = json.loads(indices[0].read_text("utf-8"))["weight_map"] if indices else None
    if home and (absent := sorted({*home.values()} - {*files})):
        raise ValueError(f"{indices[0].name} names {absent[0]}, which is not in {folder}")
    found: dict[str, Any] = {}
    for file in sorted({*home.values()}) if home else files:
        handle = safe_open(files[file], framework="numpy")
        names = handle.keys()  # a handle is no mapping
        for name in names:
            if home and home.get(name) != file:
                continue
            if name in found:
                raise ValueError(f"{name} is in {file} and in a file before it: keep one of them")
            found[name] = handle.get_slice(name)
    if home and (absent := sorted({*home} - {*found})):
        raise ValueError(
            f"{indices[0].name} says that {home[absent[0]]} has {absent[0]}: it hasn't"
        )
    return found


@dataclass(frozen=True)
class WeightReport:
    """What `compare_weights` returns: what a table maps wrongly, and what shapes cannot tell.

    Attributes:
      unmapped: our parameters that the table does not have.
      missing: for names that the files do not have, our parameter.
      unused: names that no parameter reads.
      shapes: for parameters whose array has another shape, the shape it has and the expected one.
      shared: for arrays that several parameters read, what is wrong: rows that two of them read,
        or none.
      by_values: what has the same shapes if it is wrong, so only logits can tell.
    """

    unmapped: tuple[str, ...]
    missing: dict[str, str]
    unused: tuple[str, ...]
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...] | str]]
    shared: dict[str, str]
    by_values: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether every parameter finds its array, and every array is read exactly once."""
        return not (self.unused or self.wrong)

    @property
    def wrong(self) -> bool:
        """Whether something would be read wrongly or not found."""
        return bool(self.unmapped or self.missing or self.shapes or self.shared)

    def __str__(self) -> str:
        """What has to be looked at, a line for each."""
        lines = [f"the table has no {path}" for path in self.unmapped]
        for name, path in self.missing.items():
            near = difflib.get_close_matches(name, self.unused, 1)
            hint = f"; the nearest name that nothing reads is {near[0]}" if near else ""
            lines.append(f"the files have no {name} for {path}{hint}")
        lines += [f"nothing reads {name}" for name in self.unused]
        for path, (has, expected) in self.shapes.items():
            lines.append(f"{path}: its array is {has}, and the table expects {expected}")
        lines += [f"{name}: {wrong}" for name, wrong in self.shared.items()]
        lines = lines or ["every array is found and read once"]
        return "\n".join([*lines, *(f"only values can tell: {text}" for text in self.by_values)])


def compare_weights(
    table: Mapping[str, Stored], tree: Any, files: Mapping[str, Any]
) -> WeightReport:
    """Compare a model with files before anything is read.

    >>> table = {"gate": Stored("gate_up", ((1,), (0,)), equal_part(0, 3)),
    ...          "up": Stored("gate_up", ((1,), (0,)), equal_part(0, 3))}
    >>> shapes = {"gate": jnp.ones((4, 3)), "up": jnp.ones((4, 3))}
    >>> print(compare_weights(table, shapes, {"gate_up": np.ones((6, 4))}))
    gate_up: gate and up both read 0:3 of dimension 0
    only values can tell: gate and up exchanged in gate_up

    Args:
      table: for each path of a parameter where it stands; a layer's number in a path is written
        {}. If a name has more {} than its path, the parameter's first dimensions count them: a
        stack of layers, or of experts.
      tree: our parameters, or what `jax.eval_shape` returns.
      files: arrays by name, as `open_weights` returns them.

    Returns:
      The report. Its `by_values` names what only a comparison of logits can find.
    """
    unmapped, missing, shapes, readers = [], {}, {}, {}
    for path, leaf in _by_path(tree).items():
        try:
            stored, names = _source(table, path, leaf.shape)
        except KeyError:
            unmapped.append(path)
            continue
        own = leaf.shape[names.ndim :]
        for name in names.flat:
            readers.setdefault(name, []).append((path, stored, own))
            if name not in files:
                missing[name] = path
                continue
            has, expected = _shape(files[name]), _expected(stored, own)
            if has != expected:
                shapes[path] = has, expected
    unused = tuple(sorted({*files} - {*readers}))
    shared = {
        name: wrong
        for name, entries in readers.items()
        if not any(path in shapes for path, *_ in entries) and (wrong := _misread(entries))
    }
    return WeightReport(tuple(unmapped), missing, unused, shapes, shared, _by_values(readers))


def load_weights(table: Mapping[str, Stored], goal: Any, files: Mapping[str, Any]) -> Any:
    """Read weights shard by shard: each process reads what its devices store, and each byte once.

    >>> table = {"up": Stored("fc1.weight", ((1,), (0,)))}
    >>> goal = target({"up": jnp.ones((64, 32))}, {"up": P("x", "y")}, mesh)
    >>> weights = load_weights(table, goal, {"fc1.weight": np.ones((32, 64))})
    >>> describe(weights["up"]).type
    'f32[64@x, 32@y]'

    Args:
      table: where each parameter stands; see `compare_weights`.
      goal: a tree of `jax.ShapeDtypeStruct` with shardings, as `target` returns it: its mesh, its
        layout and its dtypes are those of the result.
      files: arrays by name, as `open_weights` returns them.

    Returns:
      A tree like `goal` of arrays.

    Raises:
      ValueError: the table does not fit the files (see `compare_weights`; arrays that nothing reads
        are no error), or a layout shards a dimension that is not contiguous in the files.
    """
    report = compare_weights(table, goal, files)
    if report.wrong:
        raise ValueError(str(report))
    arrays = []
    for path, leaf in _by_path(goal).items():
        stored, names = _source(table, path, leaf.shape)
        handles = np.empty(names.shape, object)
        for position, name in np.ndenumerate(names):
            handles[position] = files[name]
        arrays.append(_load(path, leaf, stored, handles))
    return jax.tree.unflatten(jax.tree.structure(goal), arrays)


def export_weights(
    table: Mapping[str, Stored], tree: Any, names: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """The arrays of the files from our parameters: `load_weights` backwards.

    >>> table = {"up": Stored("fc1.weight", ((1,), (0,)))}
    >>> export_weights(table, {"up": jnp.ones((64, 32))})["fc1.weight"].shape
    (32, 64)

    Args:
      table: where each parameter stands; see `compare_weights`.
      tree: our parameters, which are gathered to this host one by one.
      names: the arrays wanted, for example those of one file; None for all.

    Returns:
      Arrays by name; fused ones with all their parts.

    Raises:
      ValueError: the table has no entry for a parameter, or a fused array lacks a part.
    """
    made: dict[str, np.ndarray] = {}
    readers: dict[str, list[Any]] = {}
    for path, leaf in _by_path(tree).items():
        try:
            stored, found = _source(table, path, leaf.shape)
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        own = leaf.shape[found.ndim :]
        wanted = [(p, n) for p, n in np.ndenumerate(found) if names is None or n in names]
        whole = np.asarray(leaf) if wanted else None
        for position, name in wanted:
            readers.setdefault(name, []).append((path, stored, own))
            array = made.setdefault(name, np.empty(stored.shape_in_file(own), whole.dtype))
            _write(stored, array, whole[position])
    for name, entries in readers.items():
        if wrong := _misread(entries):
            raise ValueError(f"{name}: {wrong}")
    return made


def _by_path(tree):
    """The leaves of a tree by their paths, without the "/value" of an nnx.State."""
    paths = [path.removesuffix("/value") for path in paths_of(tree)]
    return dict(zip(paths, jax.tree.leaves(tree), strict=True))


def _source(table, path, shape):
    """A parameter's entry, and an array of the names that it is read from, one for each place of
    its stack.
    """
    key = path if path in table else re.sub(r"(?<![^/])\d+(?![^/])", "{}", path)
    if key not in table:
        near = difflib.get_close_matches(key, table, 1)
        raise KeyError(f"the table has no {key}" + (f"; the nearest is {near[0]}" if near else ""))
    stored = table[key]
    numbers = re.findall(r"(?<![^/])\d+(?![^/])", path) if key != path else []
    stacked = max(stored.name.count("{}") - len(numbers), 0)
    names = np.empty(shape[:stacked], object)
    for position in np.ndindex(names.shape):
        names[position] = stored.name.format(*numbers, *position)
    return stored, names


def _shape(handle):
    return tuple(handle.get_shape() if hasattr(handle, "get_shape") else handle.shape)


def _expected(stored, shape):
    """The shape that a parameter's array should have, or what of the entry is for another one."""
    order = sorted(d for dim in stored.dims for d in dim)
    if order != list(range(len(shape))):
        return f"dimensions {order} for a parameter {shape}"
    part = stored.part
    if part and shape[stored.dims[part.dim][0]] != len(part.blocks):
        return f"{len(part.blocks)} blocks for a parameter {shape}"
    return stored.shape_in_file(shape)


def _misread(entries):
    """What is wrong with an array that these parameters read; "" if each row is read once."""
    paths = [path for path, *_ in entries]
    parts = [(path, stored.part, stored.block(shape)) for path, stored, shape in entries]
    if any(part is None for _, part, _ in parts):
        return f"{' and '.join(paths)} both read all of it" if len(paths) > 1 else ""
    dim = parts[0][1].dim
    if any(part.dim != dim for _, part, _ in parts):
        return f"{' and '.join(paths)} divide different dimensions of it"
    readers = np.full(max(part.of * block for _, part, block in parts), -1)
    for number, (path, part, block) in enumerate(parts):
        rows = (block * np.array(part.blocks)[:, None] + np.arange(block)).ravel()
        twice = rows[readers[rows] >= 0]
        if twice.size:
            before = paths[readers[twice[0]]]
            return f"{before} and {path} both read {_span(twice)} of dimension {dim}"
        if np.unique(rows).size < rows.size:
            return f"{path} reads some of its rows twice"
        readers[rows] = number
    unread = np.flatnonzero(readers < 0)
    return f"nothing reads {_span(unread)} of dimension {dim}" if unread.size else ""


def _span(rows):
    """The first run of consecutive numbers, as a slice."""
    rows = np.sort(rows)
    breaks = np.flatnonzero(np.diff(rows) != 1)
    last = rows[breaks[0]] if breaks.size else rows[-1]
    return f"{rows[0]}:{last + 1}"


def _by_values(readers):
    """What could be exchanged without any shape telling, of one layer each."""
    square, exchanged, seen = [], [], set()
    for name, entries in readers.items():
        kind = re.sub(r"\d+", "{}", name)
        if kind in seen:
            continue
        seen.add(kind)
        for path, stored, shape in entries:
            sizes = [size for size in _sizes_of_part(stored, shape) if size > 1]
            if len(sizes) > len({*sizes}):
                square.append(path)
        sizes = {}
        for path, stored, _ in entries:
            sizes.setdefault(stored.part and len(stored.part.blocks), []).append(path)
        exchanged += [
            f"{' and '.join(same)} exchanged in {name}" for same in sizes.values() if len(same) > 1
        ]
    if square:
        exchanged.insert(0, f"two dimensions of the same size exchanged in {', '.join(square)}")
    return tuple(exchanged)


def _sizes_of_part(stored, shape):
    """The sizes of a parameter's part of its array."""
    return [prod(shape[d] for d in dim) for dim in stored.dims]


def _load(path, leaf, stored, handles):
    """One parameter, shard by shard; replicas are read once."""
    shards = {}

    def shard(index):
        key = str(index)
        if key not in shards:
            read = _read_stack(stored, handles, leaf.shape, index)
            shards[key] = read.astype(leaf.dtype)
        return shards[key]

    try:
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, shard)
    except ValueError as error:
        raise ValueError(f"{path} from {stored.name}: {error}") from error


def _read_stack(stored, handles, shape, index):
    """A shard of a parameter whose first dimensions are those of `handles`."""
    own, places = shape[handles.ndim :], index[: handles.ndim]
    chosen = handles[tuple(places)] if handles.ndim else handles
    read = [_read(stored, handle, own, index[handles.ndim :]) for handle in chosen.flat]
    return np.stack(read).reshape((*chosen.shape, *read[0].shape))


def _read(stored, handle, shape, index):
    """The elements of a shard, and nothing else, from one array of the files."""
    spans = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    wanted, order = [], [d for dim in stored.dims for d in dim]
    for number, dim in enumerate(stored.dims):
        fused = stored.part is not None and stored.part.dim == number
        lead = next((d for d in dim if shape[d] > 1 or fused), None)  # what may be sharded
        inner = prod(shape[d] for d in dim) // (shape[lead] if lead is not None else 1)
        for d in dim:
            if d != lead and spans[d] != (0, shape[d]):
                raise ValueError(
                    f"dimension {d} of {shape} is sharded, whose elements are not contiguous in "
                    f"the file: shard dimension {lead} instead"
                )
        first, end = spans[lead] if lead is not None else (0, 1)
        blocks = stored.part.blocks[first:end] if fused else range(first, end)
        wanted.append([slice(inner * a, inner * b) for a, b in _runs(blocks)])
    read = _pieces(handle, wanted)
    sizes = [spans[d][1] - spans[d][0] for d in order]
    return read.reshape(sizes).transpose(np.argsort(order))


def _write(stored, array, ours):
    """Put a parameter where it stands in an array of the files."""
    order = [d for dim in stored.dims for d in dim]
    sizes = _sizes_of_part(stored, ours.shape)
    turned = ours.transpose(order).reshape(sizes)
    pick = [slice(None)] * len(sizes)
    if stored.part:
        block = stored.block(ours.shape)
        rows = block * np.array(stored.part.blocks)[:, None] + np.arange(block)
        pick[stored.part.dim] = rows.ravel()
    array[tuple(pick)] = turned


def _runs(blocks):
    """Runs of consecutive numbers, as (first, end)."""
    blocks = np.asarray(blocks)
    breaks = np.flatnonzero(np.diff(blocks) != 1) + 1
    return [(run[0], run[-1] + 1) for run in np.split(blocks, breaks) if run.size]


def _pieces(handle, wanted):
    """The slices of an array that each dimension asks for; at most one asks for several."""
    if not wanted:
        return np.asarray(handle[...])
    dim = max(range(len(wanted)), key=lambda d: len(wanted[d]))
    others = [slices[0] for slices in wanted]
    pieces = [
        np.asarray(handle[(*others[:dim], piece, *others[dim + 1 :])]) for piece in wanted[dim]
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=dim)
