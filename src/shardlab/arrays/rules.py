"""Shard a whole state by rules on the paths of its arrays: parameters, moments, statistics, keys
and counters.

    rules = [("kernel", P("data")), ("bias|scale", P())]
    applied = apply_rules(rules, shapes)
    state = jax.jit(create, out_shardings=shardings(applied.specs, mesh))()

Works with the pytrees of any library: dicts, Flax, Equinox, Optax.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardlab.arrays.layout import describe

__all__ = ["AppliedRules", "apply_rules", "paths_of", "shardings", "stored_bytes", "target"]


@dataclass(frozen=True)
class AppliedRules:
    """What `apply_rules` returns: a spec for each array, and where the rules may be wrong.

    >>> params = {"out": {"kernel": jnp.ones((64, 8)), "bias": jnp.ones(8)}}
    >>> print(apply_rules([("kernel", P("x")), ("biases", P())], params))
    2 rules, 2 arrays
    no rule matches out/bias: replicated
    no array matches the rule 'biases'; the nearest name is 'bias'

    Attributes:
      specs: a tree like the one given, with a PartitionSpec in the place of each array.
      unmatched: the paths that no rule matches; their arrays are replicated.
      idle: the rules' patterns that no path needed: nothing matches them, or an earlier rule always
        does.
      several: for each path that more than one rule matches, all of their patterns; the first one
        counts.
    """

    specs: Any
    unmatched: tuple[str, ...]
    idle: tuple[str, ...]
    several: dict[str, tuple[str, ...]]
    matches: dict[str, str]  # for each path its pattern

    def __str__(self) -> str:
        """What has to be looked at, a line for each."""
        paths = [*self.matches, *self.unmatched]
        lines = [f"{len({*self.matches.values(), *self.idle})} rules, {len(paths)} arrays"]
        lines += [f"no rule matches {path}: replicated" for path in self.unmatched]
        for pattern in self.idle:
            if any(pattern in patterns for patterns in self.several.values()):
                lines.append(
                    f"the rule {pattern!r} is never the first that matches: move it up, or "
                    "remove it"
                )
            else:
                lines.append(f"no array matches the rule {pattern!r}{_hint(pattern, paths)}")
        for path, (first, *others) in self.several.items():
            lines.append(
                f"{path} is matched by {first!r}, which counts, and by "
                f"{', '.join(map(repr, others))}"
            )
        return "\n".join(lines)


def paths_of(tree: Any) -> list[str]:
    """The path of each leaf of a tree, in the order of `jax.tree.leaves`.

    >>> paths_of({"layers": [{"kernel": 1.0, "bias": 2.0}]})
    ['layers/0/bias', 'layers/0/kernel']

    Args:
      tree: any pytree.

    Returns:
      Texts such as "layers/0/kernel"; "" if the tree is a single leaf.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]


def apply_rules(rules: Iterable[tuple[str, PartitionSpec]], tree: Any) -> AppliedRules:
    """Give each array of a tree the spec of the first rule that matches its path.

    >>> params = {"out": {"kernel": jnp.ones((64, 8)), "bias": jnp.ones(8)}}
    >>> applied = apply_rules([("kernel$", P("x", None))], params)
    >>> applied.specs["out"]["kernel"] == P("x", None), applied.unmatched
    (True, ('out/bias',))

    Since Optax keeps moments in trees like the parameters', the rule for "out/kernel" matches
    "0/mu/out/kernel" too.

    Args:
      rules: pairs of a regular expression, which is searched for in the path (see `paths_of`), and
        a spec.
      tree: a pytree of arrays, or of what `jax.eval_shape` returns; a number is an array without
        dimensions.

    Returns:
      The specs, and which paths and rules stay without a partner.

    Raises:
      ValueError: a rule's spec has more entries than an array that it matches has dimensions, or a
        pattern is not a regular expression; the message names the path and the rule.
      TypeError: a rule is not a pair of a text and a PartitionSpec.
    """
    compiled = [(*rule, _compile(rule)) for rule in map(_checked, rules)]
    specs, unmatched, several, matches = [], [], {}, {}
    for path, leaf in zip(paths_of(tree), jax.tree.leaves(tree), strict=True):
        hits = [(pattern, spec) for pattern, spec, search in compiled if search(path)]
        if not hits:
            unmatched.append(path)
            specs.append(PartitionSpec())
            continue
        pattern, spec = hits[0]
        if len(spec) > np.ndim(leaf):
            raise ValueError(
                f"the rule {pattern!r} gives {path} the spec {spec}, which is for at least "
                f"{len(spec)} dimensions, but its shape is {np.shape(leaf)}: put a rule for "
                "this path before it"
            )
        specs.append(spec)
        matches[path] = pattern
        if len(hits) > 1:
            several[path] = tuple(pattern for pattern, _ in hits)
    used = set(matches.values())
    idle = tuple(pattern for pattern, _, _ in compiled if pattern not in used)
    made = jax.tree.unflatten(jax.tree.structure(tree), specs)
    return AppliedRules(made, tuple(unmatched), idle, several, matches)


def _hint(pattern, paths):
    """How a rule that matches no path may have been meant."""
    if any(re.search(pattern, path.removesuffix("/value")) for path in paths):
        return "; the paths of an nnx.State end in '/value', so leave out the '$'"
    near = difflib.get_close_matches(
        pattern, sorted({name for path in paths for name in path.split("/")}), 1
    )
    return f"; the nearest name is {near[0]!r}" if near else ""


def _checked(rule):
    """The rule, if it is one."""
    is_pair = isinstance(rule, Sequence) and not isinstance(rule, str) and len(rule) == 2
    if not is_pair or not isinstance(rule[0], str) or not isinstance(rule[1], PartitionSpec):
        raise TypeError(f"a rule is a pair such as ('kernel$', P('data')), not {rule!r}")
    return rule


def _compile(rule):
    try:
        return re.compile(rule[0]).search
    except re.error as error:
        raise ValueError(f"the rule {rule[0]!r} is not a regular expression: {error}") from None


def shardings(specs: Any, mesh: Mesh | AbstractMesh) -> Any:
    """The specs of a tree as shardings on a mesh, for `in_shardings`, `out_shardings` and
    `jax.device_put`.

    >>> shardings({"w": P("x")}, mesh)["w"] == NamedSharding(mesh, P("x"))
    True

    Args:
      specs: a pytree of PartitionSpecs.
      mesh: the mesh whose axes they name.

    Returns:
      A tree like `specs` of NamedShardings.

    Raises:
      ValueError: a spec names an axis that the mesh does not have.
    """
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=_is_spec)


def target(tree: Any, specs: Any, mesh: Mesh | AbstractMesh) -> Any:
    """What a checkpoint is to be restored as: the shape, the dtype and the sharding of each array.

    >>> goal = target({"w": jnp.ones((64, 8))}, {"w": P("x")}, mesh)["w"]
    >>> goal.shape, goal.sharding == NamedSharding(mesh, P("x"))
    ((64, 8), True)

    The mesh may have other devices than the one on which the state was saved.

    Args:
      tree: a pytree of arrays, or of what `jax.eval_shape` returns.
      specs: a tree like it of PartitionSpecs, such as `apply_rules(...).specs`.
      mesh: the mesh to restore onto.

    Returns:
      A tree like both of `jax.ShapeDtypeStruct`.

    Raises:
      ValueError: a mesh axis does not divide a dimension that it shards; the message names the path
        and both sizes.
    """
    paths, leaves = paths_of(tree), jax.tree.leaves(tree)
    places = jax.tree.leaves(shardings(specs, mesh))
    if len(leaves) != len(places):
        raise ValueError(f"the tree has {len(leaves)} arrays, but there are {len(places)} specs")
    structs = []
    for path, leaf, place in zip(paths, leaves, places, strict=True):
        shape = np.shape(leaf)
        for dimension, (size, entry) in enumerate(zip(shape, place.spec, strict=False)):
            names = (
                entry if isinstance(entry, tuple) else (entry,) if isinstance(entry, str) else ()
            )
            count = prod(mesh.shape[name] for name in names)
            if size % count:
                raise ValueError(
                    f"{path}: dimension {dimension} has size {size}, which the {count} "
                    f"devices of {entry!r} do not divide: shard another dimension, replicate it "
                    "(None in its place), or choose a size that they divide"
                )
        structs.append(jax.ShapeDtypeStruct(shape, jax.dtypes.result_type(leaf), sharding=place))
    return jax.tree.unflatten(jax.tree.structure(tree), structs)


def stored_bytes(tree: Any) -> int:
    """The bytes that the fullest device stores of all arrays of a tree.

    >>> w = jax.device_put(jnp.ones((64, 8)), NamedSharding(mesh, P("x", "y")))  # on 8 devices
    >>> stored_bytes({"w": w, "b": jnp.ones(4)})
    272

    Args:
      tree: a pytree of `jax.Array`; leaves of other types, such as functions, count nothing.

    Returns:
      Bytes. Keys of random numbers count with the integers that they consist of.
    """
    totals: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            for device, size in describe(leaf).bytes_per_device.items():
                totals[device] = totals.get(device, 0) + size
    return max(totals.values(), default=0)


def _is_spec(leaf):
    return isinstance(leaf, PartitionSpec)
