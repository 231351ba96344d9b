"""Judge a compiled program: what to change, and what is wrong although it runs.

Each function that begins with `of_` yields a `Finding` for each fault that it finds;
`shardlab.report.explain` calls them all.
"""

import itertools
import math
import re
import types
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardlab.arrays.layout import bytes_text, counted
from shardlab.costs.communication.kinds import KINDS, OPERATIONS
from shardlab.programs.collectives import Collective
from shardlab.programs.hlo import Instruction, Program, array_types, metadata, type_bytes
from shardlab.programs.inherited import text_of
from shardlab.programs.liveness import most_alive
from shardlab.programs.origins import Origin, Origins, where
from shardlab.programs.uses import is_constant
from shardlab.programs.varying import Mismatch
from shardlab.report.causes import (
    ASKED_FOR,
    AT_INDICES,
    FROM_ONE_TO_OTHER,
    GOES_ALONG,
    HALO,
    MEMBERS_CALLED,
    OF_ROWS,
    SAME,
    is_agreed,
    is_manual,
)
from shardlab.report.names import in_common, keys_of, pattern, stacked
from shardlab.report.remedies import (
    Donation,
    OtherConstraints,
    OtherSpecs,
    Remedy,
    Trial,
    entries_of,
    with_axis,
)
from shardlab.report.stored import better_specs

__all__ = [
    "LOCAL_SEARCH",
    "Finding",
    "axes_of_batch",
    "by_harm",
    "bytes_of",
    "bytes_of_one_call",
    "constant_sizes",
    "elements_of_each",
    "gathered_dimensions",
    "in_line",
    "is_at",
    "kept_for_backward",
    "layout_of",
    "listed",
    "of_added",
    "of_apart",
    "of_arrays",
    "of_avoidable",
    "of_batch",
    "of_constants",
    "of_donation",
    "of_exchanged",
    "of_indices",
    "of_loops",
    "of_many",
    "of_partitioner",
    "of_repeated_operations",
    "of_repeated_products",
    "of_replacement",
    "of_stacks",
    "of_sums",
    "of_temporaries",
    "of_unplaced",
    "of_unsummed",
    "of_varying",
    "of_widening",
    "repeated_products",
    "replacements",
    "unreplaced",
    "unused_donations",
]  # fmt: skip

_LEAST = 1 / 20  # of the memory of all arguments: smaller arrays are not worth a finding
_MUCH = 1 / 4  # of all bytes: to send less takes memory
_SMALL = 2**14  # bytes of a collective whose time is mostly latency
_MANY = 50  # collectives
_CONSTANT = 2**16  # bytes of a constant that is worth a finding
_LARGE = 2**20  # bytes of temporaries that are worth a finding
_CHECKPOINTS = {  # by whether one computes again what is held, and whether a loop stacks it
    (False, False): "if several layers run it, jax.checkpoint around a layer keeps only its "
    "input, and lax.scan over stacked layers reuses their memory",
    (False, True): "jax.checkpoint around the body of the loop keeps only what the loop carries",
    (True, False): "if one jax.checkpoint has several layers inside, another around each of them "
    "holds those of one layer at a time",
    (True, True): "jax.checkpoint around the body of the loop, too, holds those of one iteration "
    "at a time",
}
_MEMORY = 2**27  # bytes for which to compute a forward pass again is worth its time
_REPEATED = "the matrix products of"
_TIME = " each time, and how often, only the run decides"
_CHOSEN = "so the compiler chose its sharding"
_NOR = ", nor are other data, so the batch is in shards along no axis of the weights"
_PASS = (
    "all-reduce-done",
    "bitcast",
    "convert",
    "copy",
    "get-tuple-element",
    "negate",
    "opt-barrier",
    "reshape",
    "transpose",
)
_SCALES = (
    r" "
    r"(bitcast|broadcast|constant|convert|copy|divide|multiply|negate|parameter|reshape|transpose)\("
)


@dataclass(frozen=True)
class Finding:
    """Something to change.

    Attributes:
      title: its kind.
      says: where it is, and what to do.
      remedy: what to do in a form that can be compiled; None if there is none.
      tried: what compiling the remedy has shown; None if it was not asked for.
      arguments: the numbers of the arguments that it is about, where another finding may be why.
      elements: of the arrays that it is about, where an argument of these sizes may be why.
      sent: bytes of what it is about, where these tell which of several findings is first.
    """

    title: str
    says: str
    remedy: Remedy | None = field(default=None, compare=False)
    tried: Trial | None = field(default=None, compare=False)
    arguments: tuple[int, ...] = field(default=(), compare=False)
    elements: tuple[int, ...] = field(default=(), compare=False)
    sent: int = field(default=0, compare=False)


# The titles of findings, what costs most or is wrong first.
_HARM = (
    "compiles again",  # which is asked for
    "replicated but different", "gradients not summed", "gradient of one branch",
    "added over samples", "added twice",
    "rows of devices added",
    "same noise", "fixed key", "decided by each device", "indices into other shards",
    "mean of quotients",
    "constraint without an axis", "constraint with an axis too many", "heads split",
    "axis on two dimensions", "axes swapped",
    "order of axes", "gathered by in_specs",
    "columns after columns", "gathered for a small weight", "reshape of shards",
    "gathered before a cast", "gathered before an index", "full rematerialisation",
    "data without an axis", "repeated work", "replicated, perhaps different",
    ("summed in a loop", "gathered in a loop"), "summed apart", "gathered several times",
    "sum larger than its operand", "loop that devices share", "indices gathered",
    "avoidable communication", "float32 products",
    "many small collectives", "result on one device",
    "gathered before a loop", "stored in other shards",
    "other sharding", "not placed",
    "largest temporaries",
    ("replicated", "replicated result"), "closed-over constant",
    "donation not used", "not donated", "bf16 widened",
)  # fmt: skip


def by_harm(
    found: Iterable[Finding],
    spare: Collection[str] = (),
    stored: Mapping[int, int] = types.MappingProxyType({}),
) -> list[Finding]:
    """Findings in the order in which to look at them: wrong results, repeated work, communication,
    memory; of those that are equal in words the first.

    Args:
      found: the findings.
      spare: the mesh axes along which no argument is in shards: where most of the arguments could
        be, their replication is why devices repeat products, and comes before that.
      stored: the elements that a device stores of each argument, by its number.
    """
    found = list(dict.fromkeys(found))
    shares = (
        int(share[1])
        for one in found
        if one.title == "replicated"
        and any(f"in shards along {axis}," in one.says for axis in spare)
        if (share := re.search(r"(\d+)% of the arguments", one.says))
    )
    is_spared = sum(shares) >= 50
    places = {
        title: place
        for place, titles in enumerate(_HARM)
        for title in ((titles,) if isinstance(titles, str) else titles)
    }
    # Devices repeat products where a loop or a reshape has gathered what they multiply.
    whole = {
        n for one in found if one.title == "replicated" and one.remedy for n, _ in one.remedy.specs
    }
    elements = {stored.get(number) for number in whole}
    is_before = re.compile(r": (a loop \(scan, map\)|a reshape \(as)").search

    def place(finding):
        if finding.title == "avoidable communication" and is_before(finding.says):
            return places["reshape of shards"]
        if finding.title == "not placed" and _CHOSEN in finding.says:
            return places["data without an axis"] - 1 / 2
        if finding.title == "other sharding" and whole & {*finding.arguments}:
            return places["replicated"] + 1 / 2
        if finding.elements and {*finding.elements} <= elements:
            return places["replicated"] + 1 / 2
        if is_spared and finding.says.startswith(_REPEATED):
            return places["replicated"] + 1 / 2
        return places[finding.title]

    return sorted(found, key=lambda finding: (place(finding), -finding.sent))


def of_arrays(
    arguments: Sequence[Any],
    results: Sequence[Any],
    mesh: Mapping[str, int],
    devices: int,
    forward: Collection[str] = (),
    gathered: Mapping[tuple, int] = types.MappingProxyType({}),
    is_differentiated: bool = False,
    made: Sequence[Collection[int]] | None = None,
    computed: Sequence[tuple[tuple, Collection[str]]] = (),
    entered: Mapping[tuple[int, str], Any] = types.MappingProxyType({}),
    peak: int = 0,
) -> Iterator[Finding]:
    """Replicated arguments and results that could be sharded, or results on one device.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      mesh: sizes by axis.
      devices: how many devices the program is for.
      forward: the names of the arguments that the forward pass uses: others, such as an optimiser's
        state, come before these where they take as much.
      gathered: the dimension of gathers, by the sizes of what they make and their axis: a result
        has been in shards there.
      is_differentiated: whether the program has a backward pass: then data are whole on purpose
        along the axes of weights that do not divide a batch, as with tensor parallelism.
      made: what the results are made from; None if unknown: then their types decide.
      computed: of each result the axes, and those along which a constraint asks for all of it, as
        `Inheritance.results` has them; () if unknown.
      entered: where a shard_map gets an argument whole along an axis, by its number and the axis.
      peak: bytes that a device holds at once, of which what is whole has to be a part that counts.
    """
    if devices == 1 < math.prod(mesh.values()):
        for array in results:
            if array.bytes >= 1024:
                yield Finding(
                    "result on one device",
                    (
                        f"{array.name}, {bytes_text(array.bytes)}, is on one device, although "
                        f"arguments are on a mesh of {math.prod(mesh.values()):,}: the program "
                        "uses none of their values, so it is compiled for one; say where its "
                        "results belong with out_shardings"
                    ),
                )
        return
    total = sum(array.bytes for array in arguments)
    data_names, used = unreplaced(arguments, results, made), set()
    for array in arguments:
        if array.name not in data_names:
            used |= set(mesh) - {*array.replicated}
    on_purpose = used - axes_of_batch(arguments, data_names) if is_differentiated else set()
    advised = [  # not data in shards that are replicated along the axes of weights
        array
        for array in arguments
        if array.name not in data_names
        or array.bytes == array.whole
        or not used >= {axis for axis in array.replicated if axis in mesh}
    ]
    advised = [
        replace(array, replicated=tuple(a for a in array.replicated if a not in on_purpose))
        if array.name in data_names
        else array
        for array in advised
    ]
    # of a program without a backward pass nothing tells parameters from caches
    state = [array for array in arguments if is_differentiated and array.name not in data_names]
    better = better_specs(arguments, results, computed, made, mesh)
    kind = "replicated", advised, total, "the arguments"
    beside = forward, {}, state, better, entered, peak
    rows = [*_replicated(*kind, mesh, *beside)]
    known = Counter(map(layout_of, arguments))
    # of the others the argument tells
    asked = dict(zip((one.name for one in results), (lost for _, lost in computed), strict=False))
    unknown_results = [  # without the axes along which a constraint asks for all of them
        replace(
            one, replicated=tuple(a for a in one.replicated if a not in asked.get(one.name, ()))
        )
        for one in results
        if layout_of(one) not in known
    ]
    total += sum(array.bytes for array in results)
    whose = "arguments and results"
    kind = "replicated result", unknown_results, total, whose
    rows += _replicated(*kind, mesh, gathered=gathered, better=better)
    yield from (finding for _, finding in sorted(rows, key=lambda row: -row[0]))


def layout_of(array: Any) -> tuple[str, str, str]:
    """The type of a `shardlab.report.explain.Array`, and how it is stored: equal for specs that
    mean the same.
    """
    return array.type, array.shard, re.sub(r"(?:(?:, |(?<=\())None)+\)$", ")", array.spec)


def unreplaced(
    arguments: Sequence[Any], results: Sequence[Any], made: Sequence[Collection[int]] | None = None
) -> frozenset[str]:
    """The names of the arguments that no result can replace, as it replaces parameters.

    What is donated is meant to be replaced, unless no result has its type, nor is made from it.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      made: what the results are made from; None if unknown: then their types decide, as they do
        for results that are new values of no argument.
    """
    replaced, types_of_results = set(), {one.type for one in results}
    for number, result in enumerate(results):
        alike = {one.number for one in arguments if one.type == result.type}
        new = {n for n in alike if made is not None and n in made[number]}
        replaced |= new or alike  # a gradient is a new value of none
    kept = {one.number for one in arguments if made is None or one.type in types_of_results}
    kept |= set().union(*(made or ()))
    replaced |= {one.number for one in arguments if one.donated and one.number in kept}
    return frozenset(array.name for array in arguments if array.number not in replaced)


def axes_of_batch(arguments: Sequence[Any], data: Collection[str]) -> frozenset[str]:
    """The axes that divide the batch: those of the first dimension of data that is in shards.

    Args:
      arguments: as `shardlab.report.explain.Array`s.
      data: the names of those that no result replaces, as `unreplaced` returns them.
    """
    specs = (entries_of(one.spec, 0) for one in arguments if one.name in data and one.spec)
    return frozenset(axis for spec in specs for axis in next(filter(None, spec), ()))


def _roots(arrays):
    """The argument that each array is part of, by its name, such as "state[0]" for
    "state[0]['layers'][0]['up']".
    """
    stacks = stacked(array.name for array in arrays)
    return {
        array.name: pattern(re.match(r"\w*(\[\d+\])?", array.name)[0], stacks) for array in arrays
    }


def _replicated(
    title, arrays, total, whose, mesh, forward=(), gathered=None, state=(), better=None,
    entered=(), peak=0,
):  # fmt: skip
    groups, least, roots, ends = {}, {}, _roots(arrays), _by_ends(arrays)
    usual, names_of_state = _usual_axes(state, mesh), {array.name for array in state}
    for array in arrays:
        least[array.type] = min(array.bytes, least.get(array.type, array.bytes))
    for array in arrays:
        is_state = array.name in names_of_state
        free = _divided(array, mesh, is_state)
        if array.bytes < array.whole and array.bytes == least[array.type]:
            # in shards, and no array of its type in smaller ones: then only the axes of most others
            is_large = is_state and array.bytes >= _LEAST / 3 * total
            free = {axis: d for axis, d in free.items() if axis in usual and is_large}
        if free:
            shape = _shape(array.type)
            free |= {axis: (gathered or {}).get((shape, axis), d) for axis, d in free.items()}
            own = (better or {}).get(array.name)
            if own and {*own.axes} & {*free} and not _likes([(array, free)], ends):
                free = {axis: d for axis, d in own.axes.items() if axis in array.replicated}
            else:
                own = None
            spec = own and own.spec
            groups.setdefault((roots[array.name], tuple(free), spec), []).append((array, free))
    rows = [
        (
            sum(array.bytes for array, _ in group),
            max(free, key=lambda axis: mesh[axis]),
            root,
            free,
            group,
            spec,
        )
        for (root, free, spec), group in groups.items()
    ]
    saved = lambda row: row[0] * (1 - 1 / mesh[row[1]])  # noqa: E731
    rows = sorted(
        (row for row in rows if row[0] >= _LEAST * total and saved(row) >= 1024),
        key=saved,
        reverse=True,
    )
    for total_bytes, axis, root, free, group, spec in rows:
        names = _named([array.name for array, _ in group], root)
        likes, own = _likes(group, ends), [better[array.name] for array, _ in group if spec]
        if likes:
            remedy = OtherSpecs(tuple((array.number, like.spec) for array, like in likes))
        elif own:
            remedy = OtherSpecs(tuple((array.number, spec) for array, _ in group))
        else:
            remedy = _in_shards(group, axis)
        are_divided = all(array.bytes < array.whole for array, _ in group)
        if total_bytes < _LEAST * peak and not likes and not are_divided:
            continue  # and nothing tells that shards were meant
        often = ", along which most of what the step keeps is in shards" if are_divided else ""
        is_used = any(array.name in forward for array, _ in group)
        yield (
            saved((total_bytes, axis)) * (1 if is_used else 1.01),
            Finding(
                title,
                (
                    f"{names}, {bytes_text(total_bytes)} on each device, "
                    f"{total_bytes / total:.0%} of {whose}, stored whole along "
                    f"{' and '.join(free)}{often}; "
                    + (
                        _as_likes(likes, total_bytes)
                        if likes
                        else f"with the spec {spec}, {own[0].why}, it would be "
                        f"{bytes_text(sum(one.bytes for one in own))}"
                        if own and (len(free) > 1 or own[0].is_of_argument)
                        else _in_words(group, axis, total_bytes // mesh[axis])
                    )
                    + _kept_by_in_specs(group, axis, entered)
                ),
                remedy if title == "replicated" else None,
            ),
        )


def _in_words(group, axis, size):
    """The advice that arrays are in shards along an axis, and what they would take."""
    dimensions = " or ".join(map(str, sorted({divided[axis] for _, divided in group})))
    return (
        f"in shards along {axis}, which divides dimension {dimensions}, it would be "
        f"{bytes_text(size)}"
    )


def _kept_by_in_specs(group, axis, entered):
    """What has to change with the specs of arrays that a shard_map gets whole along an axis."""
    places = [entered[key] for one, _ in group if (key := (one.number, axis)) in entered]
    if not places:
        return ""
    return (
        f"; in_specs of the shard_map{in_line(places[0])} keep "
        f"{'it' if len(group) == 1 else 'them'} whole: let these name {axis} too, and gather in "
        "the function what it needs whole"
    )


def in_line(place: Any) -> str:
    """Where something is, as in "the shard_map in step.py:12"; "" if it is not known."""
    return f" in {where(place.file, place.line)}" if place.line else ""


def _named(names, root):
    """The names of a group of arrays in words: all if they are few, those of alike layers as one,
    or else what they have in common.
    """
    if len(names) == 1:
        return names[0]
    patterns = sorted({pattern(name, stacked(names)) for name in names})
    several = f"{len(names)} arrays"
    if len(patterns) <= 3:
        return f"{listed(patterns)} ({several})" if len(names) > len(patterns) else listed(patterns)
    keys = [re.findall(r"\w+|\[[^]]*\]|\.\w+", name) for name in patterns]
    shared = "".join(
        same[0]
        for same in itertools.takewhile(lambda one: len(set(one)) == 1, zip(*keys, strict=False))
    )
    return f"{several} of {shared or root}, such as {listed(patterns[:2])}"


def _in_shards(group, axis):
    """The remedy that arrays, each with a dimension by axis, are in shards along an axis."""
    return OtherSpecs(
        tuple(
            (array.number, with_axis(array.spec, _shape(array.type), axis, divided[axis]))
            for array, divided in group
        )
    )


def _shape(kind):
    return tuple(map(int, re.findall(r"\d+(?=[,\]])", kind.partition("[")[2])))


def _usual_axes(state, mesh):
    """The axes along which most of what a step keeps is in shards."""
    whole = sum(array.whole for array in state)
    along = {
        axis: sum(array.whole for array in state if axis not in array.replicated) for axis in mesh
    }
    return {axis for axis, size in along.items() if 2 * size > whole}


def _by_ends(arrays):
    """The arrays, each with the keys of its name, by their types and the last of these keys."""
    ends = {}
    for array in arrays:
        keys = keys_of(array.name)
        ends.setdefault((array.type, *keys[:1]), []).append((array, keys))
    return ends


def _likes(group, ends):
    """The arrays of a group, each with one in smaller shards that has its type and the end of its
    name, as the parameter of a moment; none unless most of the group have one.
    """
    likes = []
    for array, _ in group:
        own = keys_of(array.name)
        alike = [
            (in_common(own, keys), one)
            for one, keys in ends.get((array.type, *own[:1]), ())
            if own and one.bytes < array.bytes
        ]
        if alike:
            likes.append((array, max(alike, key=lambda pair: pair[0])[1]))
    of_these = sum(array.bytes for array, _ in likes)
    return likes if of_these >= 0.9 * sum(array.bytes for array, _ in group) else []


def _as_likes(likes, total):
    """The advice that arrays get the specs of others."""
    array, like = max(likes, key=lambda pair: pair[0].bytes)
    saved = sum(array.bytes - like.bytes for array, like in likes)
    return (
        "give each the spec of the array of the same type and name, such as "
        f"{like.spec}, that of {like.name}, to {array.name}: then it would be "
        f"{bytes_text(total - saved)}"
    )


def _divided(array, mesh, is_state=False):
    """The mesh axes along which an array is replicated and could be sharded, each with a dimension
    that it divides: of data the first, of parameters the largest, as a scan takes layers apart.
    """
    whole, local = map(_shape, (array.type, array.shard))
    rows = {}
    for axis in array.replicated:
        dimensions = [
            d for d, size in enumerate(local) if size and size % mesh.get(axis, size + 1) == 0
        ]
        if dimensions:
            # rather one that is not yet in shards
            rows[axis] = min(
                dimensions, key=lambda d: (local[d] != whole[d], -local[d] if is_state else 0)
            )
    return rows


def gathered_dimensions(
    moves: list[tuple[Collective, Instruction, Origin]],
) -> dict[tuple[tuple[int, ...], str], int]:
    """The dimension along which arrays are gathered, by their sizes and the axis.

    Args:
      moves: a list of (`shardlab.Collective`, the instruction that starts it, its `Origin`).
    """
    found = {}
    for move, start, _ in moves:
        dimensions = start.numbers("dimensions")
        if move.kind == "all-gather" and len(move.axes or ()) == len(dimensions) == 1:
            for kind in move.results:
                found[_shape(kind), move.axes[0]] = dimensions[0]
    return found


def of_replacement(
    arguments: Sequence[Any],
    results: Sequence[Any],
    forward: Collection[str] = (),
    made: Sequence[Collection[int]] | None = None,
) -> Iterator[Finding]:
    """Results with another sharding than the argument that they replace in the next call.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      forward: the names of the arguments that the forward pass uses. Of others, such as an
        optimiser's state, their own sharding may be why.
      made: what the results are made from; None if unknown: then their types decide.
    """
    if pairs := replacements(arguments, results, made):
        result, array = pairs[0]
        what = f"{result.name} has the type of {array.name}"
        if len(pairs) > 1:
            roots = _roots([array for _, array in pairs])
            what = (
                f"{len(pairs)} results, first {result.name}, have the types of "
                f"{listed(sorted(set(roots.values())))}"
            )
        yield Finding(
            "other sharding",
            (
                f"{what}, but the sharding {result.spec} instead of {array.spec}: if it replaces "
                "the argument in the next call, jit compiles again, and the argument's memory "
                "cannot be reused; give both the same, with out_shardings or where the argument "
                "is made"
            ),
            arguments=tuple(array.number for _, array in pairs if array.name not in forward),
        )


def replacements(
    arguments: Sequence[Any],
    results: Sequence[Any],
    made: Sequence[Collection[int]] | None = None,
) -> list[tuple[Any, Any]]:
    """The results of a step with another sharding than the argument that they replace: pairs of
    both.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      made: what the results are made from; None if unknown: then their types decide.
    """
    pairs = [] if made is None else _by_making(arguments, results, made)
    known = {id(one) for pair in pairs for one in pair}
    arguments_left, results_left = (
        sorted((one for one in arrays if id(one) not in known), key=lambda array: array.name)
        for arrays in (arguments, results)
    )
    same = Counter(map(layout_of, arguments_left)) & Counter(map(layout_of, results_left))
    old, new = {}, {}
    for arrays, unmatched in ((arguments_left, old), (results_left, new)):
        left = same.copy()
        for array in arrays:
            if left[layout_of(array)]:
                left[layout_of(array)] -= 1
            else:
                unmatched.setdefault(array.type, []).append(array)
    pairs += [pair for kind in new for pair in zip(new[kind], old.get(kind, ()), strict=False)]
    is_step = _is_step(arguments, results)
    return [
        (result, array)
        for result, array in sorted(pairs, key=lambda pair: pair[0].name)
        if layout_of(result) != layout_of(array) and (array.donated or is_step)
        if array.whole >= 1024 and array.spec and result.spec
    ]


def _by_making(arguments, results, made):
    """Pairs of a result and the argument of its type from which it is made: of what is made from
    several, as parameters are from their moments, those that no other result is made from.
    """
    numbers, possible = {array.number: array for array in arguments}, []
    for result, sources in zip(results, made, strict=True):
        alike = [numbers[n] for n in sources if n in numbers and numbers[n].type == result.type]
        possible += [
            (
                (
                    len(alike),
                    _path(result.name) != _path(array.name),
                    layout_of(result) != layout_of(array),
                    result.name,
                    array.name,
                ),
                result,
                array,
            )
            for array in alike
        ]
    pairs, known = [], set()
    for _, result, array in sorted(possible, key=lambda one: one[0]):
        if known.isdisjoint((id(result), id(array))):
            known |= {id(result), id(array)}
            pairs.append((result, array))
    return pairs


def listed(names: Sequence[str]) -> str:
    """Some names as words: at most three, and how many more there are."""
    return " and ".join(names if len(names) <= 3 else [*names[:3], f"{len(names) - 3} more"])


def of_batch(
    arguments: Sequence[Any],
    results: Sequence[Any],
    moves: Sequence[Any],
    mesh: Mapping[str, int],
    repeats: float,
    trained: Collection[str],
    tensor: Collection[str] = (),
    multiplied: Collection[str] = (),
) -> Iterator[Finding]:
    """Data that are in shards, but not along an axis along which parameters are.

    Devices along this axis then compute the same, or exchange what they compute.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      moves: the `shardlab.report.explain.Move`s.
      mesh: sizes by axis.
      repeats: how many times the FLOPs of the program's products all devices compute together.
      trained: the names of the arguments with respect to which it is differentiated, or else of
        those that the forward pass uses.
      tensor: axes of tensor parallelism, along which data are replicated on purpose.
      multiplied: axes along which weights are in shards in a product. In a program without a
        backward pass none, since what is whole may be a weight.
    """
    roots = _roots(arguments)
    known, named_axes = Counter(map(layout_of, results)), set()
    data = [
        array
        for array in sorted(arguments, key=lambda array: -array.bytes)
        if array.spec and not array.donated and not known[layout_of(array)] and array.bytes >= 1024
    ]
    batch = axes_of_batch(arguments, [array.name for array in data] if multiplied else ())
    for array in data:
        is_whole = array.spec == "P()"
        for axis in sorted({*_divided(array, mesh)} - named_axes):
            if axis in tensor and axis not in batch:
                continue
            # a table beside the batch, or what pipelines replicate
            is_batch = axis in multiplied and all(axis in one.replicated for one in data)
            if is_whole and not is_batch:
                continue
            ways = mesh[axis]
            stored = [one for one in arguments if one is not array and axis not in one.replicated]
            stored = [one for one in stored if one.name in trained and one.bytes < one.whole]
            if any(roots[one.name] == roots[array.name] for one in stored):
                continue  # it is a weight itself
            keep = f". Keep {axis} with a constraint on what is first computed from it"
            # in both passes, and their gradients in an all-reduce
            gathered = 4 * sum(one.whole - one.bytes for one in stored)
            sent = bytes_of(
                move
                for move in moves
                if move.axes and axis in move.axes and not move.array
                if not is_manual(move.cause)  # as between the stages of a pipeline
            )
            is_repeated = repeats > 0.9 * ways and not sent
            is_repeated |= is_whole and repeats > 1.5 and sent <= gathered
            if not stored or not (is_repeated or sent > 1.25 * gathered):
                continue
            named_axes.add(axis)
            yield Finding(
                "data without an axis",
                (
                    f"{array.name} is not sharded over {axis}{_NOR * is_whole}: "
                    f"{bytes_text(array.bytes)} on each "
                    f"device would be {bytes_text(array.bytes // ways)}; "
                )
                + (
                    f"devices along {axis} compute the same"
                    if is_repeated
                    else f"what is computed from it sends {bytes_text(sent)} along {axis}; "
                    "gathering the arguments in "
                    "shards along it whole, for both passes, and adding their gradients would send "
                    f"{bytes_text(gathered)}"
                )
                + keep * is_whole,
                _in_shards([(array, {axis: _of_the_batch(array, axis, mesh)})], axis),
            )


def _of_the_batch(array, axis, mesh):
    """The dimension of data that an axis can divide: rather one that is in shards already."""
    whole, local = map(_shape, (array.type, array.shard))
    divided = [d for d, size in enumerate(local) if size != whole[d] and size % mesh[axis] == 0]
    return divided[0] if divided else _divided(array, mesh)[axis]


def _is_step(arguments, results):
    """Whether there are several large results, and each has an argument that it can replace."""
    types = Counter(array.type for array in arguments)
    large = Counter(result.type for result in results if result.whole >= 1024)
    return sum(large.values()) > 1 and large <= types


def of_unplaced(arguments: Sequence[Any], results: Sequence[Any]) -> Iterator[Finding]:
    """Arguments on no mesh, in the place of which a step returns arrays that are on one.

    Of small arguments, such as a counter of steps, only the path tells which result replaces them.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
    """
    known = Counter(map(layout_of, results))
    same_path = {
        (path, result.type) for result in results if result.spec and (path := _path(result.name))
    }
    loose = [
        array
        for array in arguments
        if array.placed is False
        and known[layout_of(array)] > 0
        and (array.whole >= 1024 or (_path(array.name), array.type) in same_path)
    ]
    are_placed = any(array.placed or (array.placed is None and array.spec) for array in arguments)
    replaced = {(_path(array.name), array.type) for array in arguments} & same_path
    is_step = _is_step(arguments, results) or len(replaced) > 1
    if loose and is_step and are_placed:
        first = loose[0]
        names = first.name if len(loose) == 1 else f"{len(loose)} arguments, first {first.name},"
        yield Finding(
            "not placed",
            (
                f"{names} {'is' if len(loose) == 1 else 'are'} on no mesh, and what replaces it "
                f"has the sharding {first.spec}: the first call moves it to all devices, and the "
                "second has to compile again; make it with jax.device_put or out_shardings"
            ),
        )


def _path(name):
    """The keys of an array's name below its root: ['step'] for state['step'] and result[0]['step'];
    None where it has none.
    """
    keys = re.search(r"(\[['\"].*|\.\w.*)$", name)
    return keys and keys[1]


def of_donation(
    arguments: Sequence[Any],
    results: Sequence[Any],
    shared: int,
    wrapper: str = "",
    made: Sequence[Collection[int]] | None = None,
) -> Iterator[Finding]:
    """Donations that cannot be used, and results that could take an argument's memory.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
      shared: bytes of the arguments whose memory results take.
      wrapper: "equinox", "nnx" or "pmap", if one of them compiles the program instead of `jax.jit`.
      made: what the results are made from; None if unknown: then their types decide.
    """
    donated = sum(array.bytes for array in arguments if array.donated)
    if donated - shared > _LEAST * donated:
        unused = unused_donations(arguments, results)
        example = _unlike(max(unused, key=lambda one: one.bytes), results) if unused else ""
        yield Finding(
            "donation not used",
            (
                f"{bytes_text(donated)} are donated, but results take only {bytes_text(shared)} "
                "of it: a result takes the memory of an argument with the same type and sharding"
                f"{example}"
            ),
        )
    could, total = Counter(), sum(array.bytes for array in arguments)
    for array in _replaced(arguments, results, made):
        could[_whole(array.name)] += array.bytes
    if could.total() > max(_LEAST * total, 1024):
        roots = [
            root or "them"
            for root, size in could.most_common()
            if size >= max(_LEAST * total, 1024)
        ]
        root = (roots or ["them"])[0]
        equinox = wrapper == "equinox"
        # of *args
        numbers = [
            int(one[1]) for one in (re.fullmatch(r"args\[(\d+)\]", root) for root in roots) if one
        ]
        several = sorted(numbers) if len(numbers) == len(roots) else roots
        chosen = several[0] if len(several) == 1 else tuple(several)
        option = "donate_argnums" if several != roots else "donate_argnames"
        which = f"{option}={chosen!r}".replace("'", '"')
        which = "donate_argnums" if "them" in roots or not roots else which  # without a name
        remedy = 'eqx.filter_jit(..., donate="all")' if equinox else f"jax.jit(..., {which})"
        remedies = {"pmap": "donate_argnums of jax.pmap", "nnx": f"nnx.jit(..., {which})"}
        remedy = remedies.get(wrapper, remedy)
        where = (
            "arguments"
            if equinox
            else root
            if len(could) == 1
            else f"arguments, most of them in {root}"
        )
        yield Finding(
            "not donated",
            (
                f"results have the types and shardings of {bytes_text(could.total())} of {where}; "
                f"if they replace it, {remedy} lets them take its memory"
            ),
            Donation(
                tuple(
                    sorted(
                        array.number
                        for array in arguments
                        if "them" in roots or _whole(array.name) in roots
                    )
                )
            ),
        )


def unused_donations(arguments: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The donated arguments for which there is no result of their type and sharding.

    Args:
      arguments, results: as `shardlab.report.explain.Array`s.
    """
    left, unused = Counter((one.type, one.shard) for one in results), []
    for array in (one for one in arguments if one.donated):
        if left[array.type, array.shard]:
            left[array.type, array.shard] -= 1
        else:
            unused.append(array)
    return unused


def _unlike(array, results):
    """How a donated array differs from the result that would replace it, as words."""
    alike = [one for one in results if _shape(one.type) == _shape(array.type) and _shape(one.type)]
    if not alike:
        return (
            f". No result is like {array.name}, {array.type}, and the caller cannot use it again: "
            "do not donate it"
        )
    keys = keys_of(array.name)
    nearest = max(alike, key=lambda one: (len({*keys} & {*keys_of(one.name)}), -one.number))
    if nearest.type != array.type:
        dtype = array.type.partition("[")[0]
        return f". {array.name} is {array.type}, but {nearest.name} {nearest.type}: return {dtype}"
    return (
        f". {array.name} is in {array.spec or 'no spec'}, but {nearest.name} in "
        f"{nearest.spec or 'no spec'}: give both the same, with out_shardings"
    )


def _replaced(arguments, results, made):
    """The arguments that are not donated, and that results could replace: each result one."""
    left = dict(enumerate(results))
    every = {array.number for array in arguments}
    sources = made if made is not None else [every] * len(results)
    for array in sorted(arguments, key=lambda array: not array.donated):
        fitting = [n for n, result in left.items() if layout_of(result) == layout_of(array)]
        new = [n for n in fitting if array.number in sources[n]]
        if not array.donated:
            fitting = new
            if len(results) == 1 and any(
                other != array
                and layout_of(other) == layout_of(array)
                and other.number in sources[0]
                for other in arguments
            ):
                continue  # which of them?
        if fitting:
            path = _path(array.name)
            best = max(
                fitting,  # rather one that is made from no other argument
                key=lambda n: (n in new, _path(results[n].name) == path, -len(sources[n])),
            )
            del left[best]
            if not array.donated:
                yield array


def _whole(name):
    """The argument of a function that an array is part of, by its name."""
    return re.match(r"args\[\d+\]|\w*", name)[0]


def of_partitioner(
    moves: list[tuple[Collective, Instruction, Origin]], origins: Origins, said: Sequence[str]
) -> Iterator[Finding]:
    """Arrays that XLA's partitioner replicates to change their layout, by its own words or by the
    program.

    Args:
      moves: a list of (`shardlab.Collective`, the instruction that starts it, its `Origin`).
      origins: the program's `Origins`.
      said: the lines that the compiler wrote.
    """
    least = _LEAST * _sent(moves)
    # Of a stand-in the partitioner only asks what it would cost, and a callback's device is meant.
    left_out = r"%fake_parameter|maximal device=|single_device"
    seen = [
        line
        for line in said
        if "full rematerialization" in line
        and not re.search(left_out, line)
        and _gathered_for(line, moves) >= max(least, 1)
    ]
    advice = "put a sharding constraint between the two that differs from each in one axis only"
    if seen:
        places = {line: _place_said(line, moves, origins) for line in seen}
        first = max(seen, key=lambda line: bool(places[line]))  # rather one with a place
        parts = _SAID.search(first)
        name = metadata(first).get("op_name", "(")
        what = (
            f"{f'{name}, ' * ('(' not in name)}{parts[3]}, from {_shards_said(parts[1])} to "
            f"{_shards_said(parts[2])}"
            if parts
            else first.rpartition("] ")[2][:200]
        )
        yield Finding(
            "full rematerialisation",
            (
                f"{places[first]}XLA's partitioner replicates {counted(len(seen), 'array')} to "
                f"change the layout, for example {what}; "
                f"{_too_few(parts) or _between(parts) or advice}"
            ),
        )
        return
    gathers = [
        (move.results[-1], origin)
        for move, start, origin in moves
        if (move.times or 1) * (move.bytes or 0) >= least
        and origins.is_sliced_again(start, is_own=False)
    ]
    if gathers:
        largest, origin = max(gathers, key=lambda gather: type_bytes(gather[0]))
        remedy = None
        if origin.operation == "sharding_constraint" and origin.phase != "forward":
            advice = (
                "this is the backward pass of a constraint, which holds for the gradient too; "
                "leave the constraint out if the compiler gathers the array by itself, or give it "
                "a jax.custom_vjp whose backward pass keeps the shards"
            )
            remedy = OtherConstraints(origin.file, origin.line)
        elif origin.phase == "backward" and any(
            operation.startswith("scatter") for operation in (origin.operation, origin.use)
        ):
            advice = (
                "this is the gradient of a lookup in a table that has an axis of the indices, too; "
                "if the table is smaller than the rows that are looked up, constrain it before the "
                "lookup to a spec without this axis"
            )
        yield Finding(
            "full rematerialisation",
            (
                f"{_place(origin)}{largest} is gathered, and each device keeps only a shard of "
                f"it: XLA's partitioner knows no other way from one layout to the other; {advice}"
            ),
            remedy,
        )


_SAID = re.compile(r"from sharding (.*) to (.*) efficiently for HLO operation %?\S+ = ([^\s{]*)")


def _shard_counts(sharding):
    """The number of shards of each dimension, of a sharding as XLA's partitioner writes it; None
    where it is written in another way.
    """
    if sizes := re.match(r"\{devices=\[([\d,]+)\]", sharding):
        counts = list(map(int, sizes[1].split(",")))
        return counts[:-1] if "last_tile_dim_replicate" in sharding else counts
    named = _axes_said(sharding)
    return named and [math.prod(map(named[0].get, axes)) for axes in named[1]]


def _too_few(parts):
    """What to do where the layout after divides a dimension into single elements, of which there
    are fewer than devices, as of the heads of keys; "" elsewhere.
    """
    before, after = (_shard_counts(one) for one in parts.groups()[:2]) if parts else (None, None)
    if not before or not after or len(before) != len(after):
        return ""
    devices, shards = math.prod(before), math.prod(after)
    for d, (size, one, count) in enumerate(zip(_shape(parts[3]), before, after, strict=True)):
        if 1 < count == size * one and devices % shards == 0 < shards < devices:
            return (
                f"dimension {d} has {count} elements for {devices} devices, and several devices "
                f"get the same one: where the array is created, repeat each element, "
                f"jnp.repeat(array, {devices // shards}, {d}), and shard this dimension, which "
                f"stores {devices // shards} times as much; or shard no dimension of it"
            )
    return ""


def _between(parts):
    """What to write between two shardings that the partitioner names by axes: a spec that has moved
    one axis from the first towards the second; "" where there is none.
    """
    ways = parts and [_axes_said(one) for one in parts.groups()[:2]]
    if not ways or None in ways or len(ways[0][1]) != len(ways[1][1]):
        return ""
    (sizes, before), (_, after) = ways
    local = _shape(parts[3])
    whole = [n * math.prod(map(sizes.get, axes)) for n, axes in zip(local, before, strict=True)]
    for axis in (axis for axes in after for axis in axes):
        middle = [[one for one in axes if one != axis] for axes in before]
        target = next(d for d, axes in enumerate(after) if axis in axes)
        middle[target].append(axis)
        is_begun = middle[target] == after[target][: len(middle[target])]
        divides = whole[target] % math.prod(map(sizes.get, middle[target])) == 0
        if is_begun and divides and middle not in (before, after):
            spec = text_of([tuple(axes) for axes in middle])
            return f"put a constraint {spec} between the two: each step then moves one axis"
    return ""


def _axes_said(sharding):
    """The sizes of a mesh, and for each dimension the axes, of a sharding that XLA's partitioner
    writes with the names of axes; None where it is written in another way.
    """
    named = re.fullmatch(r"\{mesh\[([^]]*)\], \[(.*)\]\}", sharding)
    if not named or "):" in named[2]:  # ... or a part of an axis
        return None
    sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
    axes = [re.findall(r"'([^']+)'", one) for one in re.findall(r"\{([^}]*)\}", named[2])]
    return sizes, axes


def _shards_said(sharding):
    """A sharding of XLA's partitioner in words, such as "4 shards of dimension 3"; as it is, where
    it is written in another way.
    """
    counts = _shard_counts(sharding)
    if counts is None:
        return sharding
    shards = [f"{count} shards of dimension {n}" for n, count in enumerate(counts) if count > 1]
    return " and ".join(shards) or "whole arrays"


def _gathered_for(line, moves):
    """The bytes of gathers of the array that the partitioner says it replicates: of what it tries
    first, often an all-to-all is left, or a gather of little. Infinite where its line is unknown.
    """
    parts = _SAID.search(line)
    counts = parts and _shard_counts(parts[1])
    if not counts:
        return math.inf
    local = _shape(parts[3])
    whole = [size * count for size, count in zip(local, counts, strict=True)]
    # one dimension after the other, or all shards along a dimension of their own
    gathered = [sorted(one) for one in (whole, (*local, math.prod(counts)))]
    return _sent(
        one for one in moves if any(sorted(_shape(kind)) in gathered for kind in one[0].results)
    )


def _sent(moves):
    return sum((move.times or 1) * (move.bytes or 0) for move, *_ in moves)


def _place(origin, calls=False):
    """Where it is, as the beginning of a sentence, and where that line is called, if it is known
    and asked for.
    """
    called = (
        f", called in {where(*origin.callers[0][0])}" if calls and len(origin.callers) == 1 else ""
    )
    return f"in {where(origin.file, origin.line)}{called}: " if origin.line else ""


def _place_said(line, moves, origins):
    """The place of an instruction that the compiler shows: it names the operation, or the
    argument.
    """
    file, number = origins.place(line)
    if number:
        return f"in {where(file, number)}: "
    name = metadata(line).get("op_name")
    return next(
        (
            _place(origin)
            for *_, origin in moves
            if origin.line and name in (origin.stack, origin.argument)
        ),
        "",
    )


def of_repeated_operations(
    causes: Iterable[tuple[Origin, str]], transforms: Mapping[tuple[str, int], str]
) -> Iterator[Finding]:
    """Operations that every device computes whole.

    Args:
      causes: pairs of an `Origin` and what `cause` says.
      transforms: as `shardlab.programs.inherited.Inheritance` has them.
    """
    seen = {}
    for origin, why in causes:
        if why.endswith(SAME):
            seen.setdefault((origin.file, origin.line), why)
    for place, why in list(seen.items())[:3]:
        remedy = "call it for a batch of arrays, or program it in a shard_map"
        if place in transforms:
            why = (
                f"the dimensions of this Fourier transform are whole, but XLA gives its result "
                f"another layout than {transforms[place]}, that of its operand, as a later line "
                f"asks for it: {SAME}"
            )
            remedy = f"constrain the result to {transforms[place]} before anything else"
        yield Finding("repeated work", f"{where(*place)}: {why}; {remedy}")


def repeated_products(
    whole: Counter | None, each: Counter | None, devices: int
) -> dict[tuple[str, int], tuple[int, int]]:
    """The lines whose matrix products several devices repeat: FLOPs of all, and of one.

    Args:
      whole: FLOPs by (file, line) of the program before it was partitioned; None if unknown.
      each: the same of the program of each device.
      devices: how many devices.
    """
    if not whole or not each:
        return {}
    whole, each = _matched(whole, each, devices)
    # such as what TPUs' compiler makes of the triangular solves in a gradient has no line
    return {
        place: (devices * each[place], flops)
        for place, flops in whole.items()
        if place[1] and devices * each[place] >= 1.5 * flops
    }


def of_repeated_products(
    again: Mapping[tuple[str, int], tuple[int, int]],
    total: float,
    products: Mapping[tuple[str, int], tuple[set, set]] = types.MappingProxyType({}),
    names: Mapping[int, str] = types.MappingProxyType({}),
) -> Iterator[Finding]:
    """Lines whose matrix products several devices repeat.

    Args:
      again: FLOPs of all devices and of one by line, as `repeated_products` returns them.
      total: FLOPs of all products on all devices.
      products: as `Inheritance.products`.
      names: those of the program's arguments, by their numbers.
    """
    more = sum(flops_done - flops for flops_done, flops in again.values())
    if more > _LEAST * total:
        flops_done, flops = map(sum, zip(*again.values(), strict=True))
        first = max(again, key=lambda place: again[place][0])
        lines = where(*first) if len(again) == 1 else f"{len(again)} lines, first {where(*first)}"
        lacking = [products.get(place, (set(), set()))[0] for place in again]
        axes = " and ".join(sorted(set.intersection(*lacking)))
        used = {number for place in again for number in products.get(place, ((), ()))[1]}
        lists = stacked(names.values())
        own = listed(sorted({pattern(names[one], lists) for one in used if one in names}))
        yield Finding(
            "repeated work",
            f"{_REPEATED} {lines} are computed by several devices: together they do "
            f"{flops_done / flops:.3g} times the FLOPs that one would; "
            + (
                f"no array in them is in shards along {axes}"
                + (f": shard a dimension of {own} along it" if own else "")
                if axes
                else "an array in them is replicated along an axis along which no dimension of the "
                "product is sharded"
            ),
        )


def _matched(whole, each, devices):
    """FLOPs by place, where what only one of the two programs names is one place, that of most
    FLOPs. What the compiled program gives no place may also be what other places lack, and what
    other places have too much of, what this one lacks.
    """
    only = {place: flops for place, flops in whole.items() if place not in each}
    unplaced = sum(flops for place, flops in each.items() if place not in whole)
    if not only or not unplaced:
        return whole, each
    most = max(only, key=only.get)
    lacking = (flops / devices - each[place] for place, flops in whole.items() if place in each)
    unplaced = max(unplaced - sum(size for size in lacking if size > 0), 0)
    each = dict(each)
    missing = sum(only.values()) / devices - unplaced
    for place in whole:
        moved = min(each.get(place, 0) - whole[place] / devices, missing)
        if moved > 0:
            each[place], unplaced, missing = each[place] - moved, unplaced + moved, missing - moved
    whole = {place: flops for place, flops in whole.items() if place in each}
    whole |= {most: sum(only.values())}
    each = {place: flops for place, flops in each.items() if place in whole}
    return whole, Counter(each | {most: unplaced})


def of_sums(moves: list[tuple[Collective, Instruction, Origin]]) -> Iterator[Finding]:
    """Sums over devices of what is equal on these devices because it has been added already;
    `moves` as above.
    """
    for move, start, origin in moves:
        before = _sum_before(start)
        first = next((other for other in moves if before and other[1].line == before.line), None)
        if not first or not (_adds(start) and _adds(before)):
            continue
        had = {device: n for n, group in enumerate(first[0].groups) for device in group}
        times = min(
            n
            for group in move.groups
            for n in Counter(had.get(device) for device in group).values()
        )
        if times > 1:
            along = (
                f"along {', '.join(move.axes)}"
                if move.axes
                else f"in groups of {max(map(len, move.groups))}"
            )
            yield Finding(
                "added twice",
                (
                    f"{_place(origin)}an all-reduce {along} adds what an "
                    f"all-reduce{_place(first[2]).rstrip(': ') and ' '}{_place(first[2]).rstrip(': ')} has added already: {times} equal values, so the result is {times} times too large, unless it is a mean; leave out one of the two (JAX adds the gradient of what devices share by itself)"  # noqa: E501
                ),
            )


def of_loops(
    moves: list[tuple[Collective, Instruction, Origin]], origins: Origins
) -> Iterator[Finding]:
    """Sums over devices in every iteration of a loop that only adds them up, or keeps them; arrays
    that are gathered anew in every iteration; and loops for which devices agree in each whether to
    go on. `moves` as above.
    """
    yield from _summed_in_loops(moves, origins)
    yield from _gathered_in_loops(moves, origins)
    seen = set()
    for move, _, origin in moves:
        place = origin.file, origin.line
        if move.times is None and is_agreed(move.operands, origin) and place not in seen:
            seen.add(place)
            along = f" along {' and '.join(move.axes)}" if move.axes else ""
            yield Finding(
                "loop that devices share",
                f"{_place(origin)}in each iteration the devices{along} agree whether one of them "
                "has to go on, so each waits for all, and the loop runs until the last is done; "
                "how often, only the run decides. This is what jax.vmap makes of a while_loop: "
                "put a shard_map over the batch around it, and each device stops by itself",
            )


def _gathered_in_loops(moves, origins):
    """Arrays that are the same in each iteration of a loop, and gathered in each."""
    total = sum((move.times or 0) * (move.bytes or 0) for move, *_ in moves)
    arrays = {}
    for move, start, origin in moves:
        is_gather = move.kind == "all-gather" and move.times != 1 and move.bytes
        if is_gather and origins.is_same_in_loop(start):
            key = origin.file, origin.line, move.times
            arrays.setdefault(key, []).append((move, start, origin))
    for (file, line, times), gathers in arrays.items():
        once = sum(move.bytes for move, *_ in gathers)
        if once * (times or 1) < max(_MUCH * total * (times is not None), 1024):
            continue
        size = sum(int(type_bytes(move.results[-1])) for move, *_ in gathers)
        names = [origin.argument or move.results[-1] for move, _, origin in gathers]
        what = listed(sorted({*names}))
        often = f"{times:,} times, once in each iteration" if times else "in each iteration"
        sent = f"{bytes_text(times * once)} are sent" if times else f"{bytes_text(once)} are sent"
        own = {origin.operation for *_, origin in gathers}
        yield Finding(
            "gathered in a loop",
            f"{where(file, line)}: {what} {'is' if len({*names}) == 1 else 'are'} gathered "
            f"{often}, although no iteration changes it: {sent}{_TIME * (not times)}. With "
            f"{'its lax.all_gather' if own <= {*OPERATIONS} else 'a constraint that gathers it'} "
            f"before the loop it would be {bytes_text(once)}, and each device would hold "
            f"{bytes_text(size)} until the end of the loop",
            sent=(times or 1) * once,
        )


def _summed_in_loops(moves, origins):
    """Sums over devices in every iteration of a loop that only adds them up, or keeps them."""
    sums = {}
    for move, start, origin in moves:
        if not KINDS[move.kind].adds or move.times in (0, 1) or not move.bytes:
            continue
        if not _is_sum_of_parts(start):
            continue
        usage = origins.in_loop(start)
        is_small = move.bytes < _SMALL and move.kind == "all-reduce"
        if usage == "added" or (usage == "stacked" and is_small and move.times):
            is_mapped = origin.operation in OPERATIONS and origin.phase == "backward"
            known = move.times is not None
            key = usage, origin.file, origin.line, move.axes if is_mapped else None, known
            times, size, kinds, is_kept = sums.get(key, (0, 0, (), False))
            sums[key] = (
                times + (move.times or 1),
                size + (move.times or 1) * move.bytes,
                (*kinds, move.kind),
                is_kept or origins.is_kept_in_shards(start, max(map(len, move.groups))),
            )
    all_times = sum(move.times or 0 for move, _, _ in moves)
    all_bytes = sum((move.times or 0) * (move.bytes or 0) for move, _, _ in moves)
    for (usage, file, line, axes, known), (times, size, kinds, is_kept) in sums.items():
        if known and size < _LEAST * all_bytes and times < 2 * _LEAST * all_times:
            continue
        if is_kept and size < _MUCH * all_bytes:  # shards of a sum take less memory
            continue
        if not known and size < 1024:  # such as a number that the loop's end depends on
            continue
        place = f"{where(file, line)}: " if line else ""
        if usage == "added":
            often = "at least one in every iteration" if known else "in every iteration"
            yield Finding(
                "summed in a loop",
                (
                    f"{place}{counted(times, min(kinds))}, {often}, "
                    f"send{'s' * (times == 1)} {bytes_text(size)}{_TIME * (not known)}, "
                    "although the loop only adds their results up: let "
                    "each device add up its own part, and sum over devices once after the loop"
                    + (
                        ""
                        if not axes
                        else ": in a shard_map, lax.all_gather before the loop, whose backward "
                        "pass this is"
                        if "reduce-scatter" in kinds
                        else ": in a shard_map, jax.lax.pcast(parameter, "
                        f'{axes!r}, to="varying") before the loop, of what is differentiated'
                    )
                    + (", which takes memory for the whole sum" if is_kept else "")
                ),
                sent=size,
            )
        else:
            yield Finding(
                "summed in a loop",
                (
                    f"{place}{counted(times, 'all-reduce')} of {bytes_text(size // times)} each, "
                    "at least one in every iteration, for results that are only used after the "
                    "loop: keep each device's part, and sum all of them at once after the loop"
                ),
                sent=size,
            )


def of_apart(
    moves: list[tuple[Collective, Instruction, Origin]], origins: Origins
) -> Iterator[Finding]:
    """Sums that a shard_map writes and only adds up, as in a Python loop over micro-batches: the
    parts could be added first; `moves` as above.
    """
    places, total = {}, sum((move.times or 0) * (move.bytes or 0) for move, *_ in moves)
    for move, start, origin in moves:
        # what a backward pass adds, compilers for TPUs add up before they send it
        is_written = origin.operation in OPERATIONS and origin.phase != "backward"
        if is_written and move.bytes and _adds(start):
            sums = places.setdefault((start.home.name, move.axes), [])
            sums.append((move, start, origin))
    for (_, axes), sums in places.items():
        starts = [start for _, start, _ in sums]
        devices = max(len(group) for move, *_ in sums for group in move.groups)
        if any(origins.is_kept_in_shards(start, devices) for start in starts):
            continue  # shards of each sum take less memory than the whole of one
        terms, once = origins.added_up(starts)
        sent = sum((move.times or 0) * move.bytes for move, *_ in sums)
        saved = sent * (1 - once / terms) if terms else 0
        if saved < max(_LEAST * total, 1024):
            continue
        along = f" along {' and '.join(axes)}" if axes else ""
        yield Finding(
            "summed apart",
            f"{_place(sums[0][2])}{terms} sums{along} are only added up to {once}: let each device "
            f"add its own parts first, and sum over devices once, which sends "
            f"{bytes_text(round(sent - saved))} for {bytes_text(sent)}",
        )


def of_stacks(
    moves: list[tuple[Collective, Instruction, Origin]], origins: Origins
) -> Iterator[Finding]:
    """Stacks gathered whole before the loop that uses one part of them in each iteration; `moves`
    as above.
    """
    for move, start, origin in moves:
        if not move.kind.startswith("all-gather") or (parts := origins.sliced_in_loop(start)) < 2:
            continue
        gathered = move.results[-1]
        size = int(type_bytes(gathered))
        yield Finding(
            "gathered before a loop",
            (
                f"{_place(origin, calls=True)}{origin.argument or gathered} is gathered whole, "
                f"{bytes_text(size)} on each device, before a loop that uses one of its {parts} "
                "parts in each iteration: gather the part in the body of the loop, which needs "
                f"{bytes_text(size // parts)} at once"
            ),
        )


def kept_for_backward(
    moves: list[tuple[Collective, Instruction, Origin]], origins: Origins
) -> dict[str, int]:
    """Bytes on each device of arguments that are gathered in the forward pass and kept for the
    backward pass, by the type of what one gather makes.
    """
    kept = Counter()
    for move, start, origin in moves:
        is_gather = move.kind.startswith("all-gather") and origin.argument
        if is_gather and origins.is_kept_for_backward(start):
            kind = move.results[-1]
            kept[kind] += int(type_bytes(kind)) * (move.times or 1)
    return dict(kept)


def saved_by_gathering_again(kept: Mapping[str, int], program: Program, origins: Origins) -> int:
    """Bytes that a device would hold less at its peak if it gathered arguments once more for the
    backward pass: without one of them, or without whole gradients of their shapes, which it holds
    at the end of the backward pass where it now holds gathered arguments at the beginning.

    Args:
      kept: as `kept_for_backward` returns it.
      program: the compiled one.
      origins: of its instructions.
    """
    shapes = {tuple(sorted(_shape(kind))) for kind in kept}

    def is_gradient(instruction, kind):
        shape = _shape(kind)
        is_alike = not shapes.isdisjoint((tuple(sorted(shape)), tuple(sorted(shape[1:]))))
        is_gather = instruction.kind.startswith("all-gather")
        return is_alike and not is_gather and origins.made(instruction)[1] == "backward"

    one = max(map(type_bytes, kept), default=0)
    held = most_alive(program, is_gradient) if kept else 0
    return int(sum(kept.values()) - max(one, held))


def of_varying(found: Iterable[Mismatch], function: str = "") -> Iterator[Finding]:
    """Results of a shard_map that are declared replicated but differ, and noise that is the same
    for other data.

    Args:
      found: `shardlab.programs.varying.Mismatch`es.
      function: the name of the function, if `jax.pmap` maps it, which makes a shard_map of its own.
    """
    groups = {}
    for one in found:
        groups.setdefault((one.kind, one.axes, one.function, one.file, one.line), []).append(
            one.number
        )
    for (kind, axes, mapped, file, line), numbers in groups.items():
        along, place = " and ".join(axes), where(file, line)
        if kind in ("result", "exchanged"):
            several = len(numbers) > 1
            which = (
                f"{len(numbers)} results, first result {numbers[0]},"
                if several
                else f"result {numbers[0]}"
            )
            verb = "are" if several else "is"
            owner = f"the pmap of `{function}`" if function else f"the shard_map of `{mapped}`"
            if kind == "exchanged":
                yield Finding(
                    "replicated, perhaps different",
                    f"{place}: {which} of {owner} {verb} declared replicated along {along}. "
                    "Devices exchange values there, by ppermute or all_to_all, and whether they "
                    f"have the same in the end, this does not tell. Name {along} in out_specs and "
                    "compare the parts of one run; if a psum is missing, they differ",
                )
                continue
            yield Finding(
                "replicated but different",
                (
                    f"{'' if function else f'{place}: '}{which} of {owner} {verb} declared "
                    f"replicated along {along}, but each device computes its own value: a psum or "
                    "pmean is missing, or an axis in "
                    f"{'out_axes' if function else 'out_specs; check_vma=True makes it an error'}"
                ),
            )
        elif kind == "samples":
            yield Finding(
                "added over samples",
                f"{place}: under vmap each sample has a gradient of its own, but the shard_map of "
                f"`{mapped}` adds them along {along}: devices share the parameter, and the "
                "gradient of what is shared is a sum over devices, here over samples that have "
                f"nothing to do with each other. Make the parameter each device's own first: "
                f'jax.lax.pcast(parameter, {axes!r}, to="varying")',
            )
        elif kind == "indices":
            yield Finding(
                "indices into other shards",
                f"{place}: devices along {along} look up the same indices in the shard_map of "
                f"`{mapped}`, each in its own shard of the data: data and indices are in shards "
                f"along other axes. Name {along} for both in in_specs, or subtract where each "
                "device's shard begins, by jax.lax.axis_index",
            )
        elif kind == "decisions":
            yield Finding(
                "decided by each device",
                f"{place}: devices along {along} draw random numbers of their own in the shard_map "
                f"of `{mapped}`, and each decides by them whether it takes what another device has "
                "sent: of two that exchange, one may take and the other keep, so a value is "
                "doubled or lost. Draw for both from one key, which is the same on both, or send "
                "the decision of one to the other",
            )
        elif kind == "branches":
            yield Finding(
                "decided by each device",
                f"{place}: devices along {along} decide for themselves in the shard_map of "
                f"`{mapped}` which branch of a lax.cond they take, and a branch has a collective "
                f"along {along}: a device that takes another branch never joins it, and the "
                "program hangs. Let all of them decide alike, by a random key that is the same on "
                "all, or by jax.lax.pmax of the decision; or take the collective out of the branch",
            )
        elif kind in ("branch", "gradient"):
            is_gradient = kind == "gradient"
            yield Finding(
                "gradient of one branch" if is_gradient else "replicated but different",
                f"{place}: devices along {along} decide for themselves in the shard_map of "
                f"`{mapped}` which branch of this lax.cond they take, but what goes into it does "
                f"not vary along {along}, so JAX takes its result for equal on all of them: "
                + (
                    "the gradients of all devices are added too early, and each device has that "
                    "of its own branch alone"
                    if is_gradient
                    else f"result {numbers[0]} is declared replicated, and each device has its own"
                )
                + f". {_before_cond(axes)}",
            )
        elif kind == "backward branches":
            yield Finding(
                "decided by each device",
                f"{place}: devices along {along} decide for themselves in the shard_map of "
                f"`{mapped}` which branch of this lax.cond they take. What goes into it does not "
                f"vary along {along}, so the backward pass of a branch adds along {along}, but a "
                "device that takes another branch never joins it: the program hangs, or the "
                f"gradient is wrong. {_before_cond(axes)}",
            )
        elif kind == "quotients":
            yield Finding(
                "mean of quotients",
                f"{place}: in the shard_map of `{mapped}` each device divides by a sum of its own, "
                f"and the quotients are added along {along}: where the divisors differ, as those "
                "of masks do, their mean is not the quotient of the sums. Add the divisor along "
                f"{along} first, with jax.lax.psum, and add up the parts of the quotient, not "
                "their mean",
            )
        elif kind == "backward":
            yield Finding(
                "added twice",
                f"{place}: the backward pass of a psum in the shard_map of `{mapped}` adds along "
                f"{along} what is equal on its devices, because with check_vma=False a psum is the "
                "transpose of a psum: the gradient is too large by their number. Differentiate "
                "each device's own part, before the psum, or use check_vma=True",
            )
        elif kind == "defensive":
            yield Finding(
                "avoidable communication",
                f"{place}: with check_vma=False the backward pass of the shard_map of `{mapped}` "
                f"adds along {along} what is equal on its devices already; with check_vma=True JAX "
                "knows that, and adds nothing",
            )
        else:
            yield Finding(
                "same noise",
                (
                    f"{place}: devices along {along} have different data in the shard_map of "
                    f"`{mapped}`, but the same random numbers, because their key is the same: "
                    "fold in jax.lax.axis_index, if each should draw its own"
                ),
            )


def _before_cond(axes):
    """What makes the operands of a lax.cond vary along axes."""
    return (
        f'Write jax.lax.pcast(x, {axes!r}, to="varying") before the lax.cond for each x that goes '
        "into it, also where its branches close over x"
    )


def of_added(found: Iterable[Mismatch], told: Sequence[Finding]) -> Iterator[Finding]:
    """Sums in a shard_map of what has been added already, and of rows of different devices.

    Args:
      found: `shardlab.programs.varying.Mismatch`es, as `shardlab.programs.repeated.repeated`
        returns them.
      told: the findings so far: what the compiled program shows is not told again.
    """
    is_told = any(one.title == "added twice" for one in told)
    for one in dict.fromkeys(found):
        along, place = " and ".join(one.axes), where(one.file, one.line)
        if one.kind == "again" and not is_told:
            yield Finding(
                "added twice",
                f"{place}: a sum along {along} in the shard_map of `{one.function}` adds what has "
                f"been added along {along} already, and only been added up since: {one.number} "
                f"equal values, so the result is {one.number} times too large, unless it is a "
                "mean; leave out one of the two. JAX adds the gradient of what devices share by "
                f'itself: jax.lax.pcast(parameter, {one.axes!r}, to="varying"), before it is '
                "differentiated, leaves only the last sum",
            )
        elif one.kind == "rows":
            yield Finding(
                "rows of devices added",
                f"{place}: result {one.number} of the shard_map of `{one.function}` is equal on "
                f"all devices along {along}, because a sum adds the rows of each device's shard to "
                f"those of the others, but out_specs puts it in shards along {along}: all of them "
                "repeat the same rows. If rows of different devices are different ones, as tokens "
                f"are, leave {along} out of their in_specs and out_specs, so that each device has "
                "all of them; if every device is meant to get the sum, out_specs without "
                f"{along} stores it once",
            )


def of_unsummed(
    moves: Sequence[Any], arguments: Sequence[Any], results: Sequence[Any]
) -> Iterator[Finding]:
    """A differentiated step of `jax.pmap` that adds up nothing as large as the largest argument
    that it replaces.

    Args:
      moves: the `shardlab.report.explain.Move`s.
      arguments, results: as `shardlab.report.explain.Array`s.
    """
    old = Counter(map(_elements_stored, arguments))
    replaced = [result for result in results if old[_elements_stored(result)]]
    largest = max(replaced, key=_elements_stored, default=None)
    sums = (move for move in moves if KINDS[move.kind].adds)
    added = max((sum(map(_elements_of, move.types)) for move in sums), default=0)
    if largest is not None and added < _elements_stored(largest):
        what = "sends nothing" if not moves else f"adds up nothing as large as {largest.name}"
        yield Finding(
            "gradients not summed",
            (
                f"this pmap has a backward pass and {what}, so each device has the gradient of "
                "its own data alone. Parameters that it updates differ from device to device "
                "after the first step: a psum or pmean is missing"
            ),
        )


def _elements_stored(array):
    return _elements_of(array.shard)


def _elements_of(kind):
    """Elements of a type such as "f32[8,4]", or of several such as "2 × f32[8,4]"."""
    count = kind.rpartition(" × ")[0]
    return int(count or 1) * elements_of_each(kind)


def elements_of_each(kind: str) -> int:
    """Elements of a type such as "f32[8,4]", or of each of several such as "2 × f32[8,4]"."""
    return math.prod(map(int, re.findall(r"\d+", kind.partition("[")[2])))


def is_at(move: Any, place: Any) -> bool:
    """Whether a `shardlab.report.explain.Move` belongs to the line of a place in the source."""
    return (move.file, move.line) == (place.file, place.line)


def bytes_of(moves: Iterable[Any]) -> int:
    """Bytes that a device sends in `shardlab.report.explain.Move`s of which they are known."""
    return sum(move.total or 0 for move in moves)


def bytes_of_one_call(moves: Iterable[Any]) -> int:
    """Bytes that a device sends in `shardlab.report.explain.Move`s of which only the run decides
    how often they run, each time.
    """
    return sum(move.bytes or 0 for move in moves if move.times is None)


LOCAL_SEARCH = (
    "where only the largest are used, take lax.top_k of each shard in a shard_map, with "
    "jax.lax.axis_index times the shard's size added to the indices, then lax.all_gather of "
    "these candidates and lax.top_k of them"
)
# What causes communication that other code does without, by words of `cause`, and what to write.
_CALLBACK = "a callback runs on one device"
_RETURNED = (  # where all devices get its result, and it no shards
    "let it return no more than is needed, or call it in a shard_map: each device then calls the "
    "host by itself, for its own shard or, with P(), for the whole result, and nothing is sent"
)
_REMEDIES = {
    "a concatenation along a sharded dimension":
        "concatenate along another dimension, or before the arrays are in shards",
    "a reshape (as in ravel and vdot)":
        "in a dimension that is merged, the one that is in shards has to come first; or reshape "
        "each shard in a shard_map",
    OF_ROWS: "call it in a shard_map over these rows, where each device searches its own",
    **dict.fromkeys(
        [f"{of} {GOES_ALONG}" for of in ("sort", "top_k")],
        f"{LOCAL_SEARCH}; else let another dimension be in shards",
    ),
    GOES_ALONG:
        "let another dimension be in shards there, with a constraint before the line, or combine "
        "the shards' own results in a shard_map",
    "a loop (scan, map) goes along the dimension that is sharded":
        "shard another dimension of what the loop takes apart",
    "a slice along a dimension that is sharded":
        "let another dimension be in shards there, with a constraint before the line; or, of one "
        "element, add up what jnp.where(jnp.arange(n) == i, array, 0) keeps: only sums of its size "
        "are sent",
    "jnp.roll by a computed number":
        "let another dimension be in shards there, with constraints before the line and on its "
        "result",
    "a split along a dimension that is sharded":
        "give each part a weight of its own; or interleave the parts, so that each device's shard "
        "has some of every part",
    _CALLBACK:
        "hand it a sum or a few elements. Where it works on each shard by itself, call it in a "
        "shard_map, where each device hands over its shard; where it needs all of the array, "
        "gather that once, outside of loops",
    MEMBERS_CALLED:
        "call it outside vmap, once for the whole array, with a sum or a few elements of it",
    "random numbers, which JAX does not draw in shards":
        'set jax.config.update("jax_threefry_partitionable", True)',
    "two arrays with specs that clash": "give both the same spec",
    "a computed index into a sharded dimension: any device may need any of it":
        "let another dimension be in shards there; or compare the index with jnp.arange, select "
        "and add up, which sends sums alone",
}  # fmt: skip
_AVOIDABLE = 1 / 50  # of all bytes


def of_avoidable(moves: Sequence[Any]) -> Iterator[Finding]:
    """Communication of an operation that another way of writing the same does not need.

    Args:
      moves: the `shardlab.report.explain.Move`s.
    """
    total, groups = bytes_of(moves), {}
    along = f"top_k {GOES_ALONG}"
    # where XLA, or a constraint, gathers the last dimension, too, a search of each shard needs none
    searched = {
        (move.file, move.line)
        for move in moves
        if along in move.cause or (move.kind == "all-gather" and ASKED_FOR in move.cause)
    }
    for move in moves:
        is_both = OF_ROWS in move.cause and (move.file, move.line) in searched
        cause = along if is_both else move.cause
        words = next((words for words in _REMEDIES if words in cause), "")
        if words.startswith("two arrays") and move.phase != "forward":
            continue  # as an update with sharded moments does on purpose
        # an embedding in shards is looked up on purpose, and other shards send more than a halo
        if (
            not words
            or move.cause.startswith(HALO)
            or (words.startswith("a computed index") and move.array)
        ):
            continue
        groups.setdefault((move.file, move.line, words), []).append((move, cause))
    for (file, line, words), group in groups.items():
        here = [move for move, _ in group]
        kinds, most = [move.kind for move in here], max(bytes_of(here), bytes_of_one_call(here))
        cause = re.split("[:;]", group[-1][1])[0]
        # the few bytes of each member cost their latency
        if words == MEMBERS_CALLED or most >= max(_AVOIDABLE * total, 1024):
            is_returned = words == _CALLBACK and {*kinds} == {"all-reduce"}
            remedy = _RETURNED if is_returned else _REMEDIES[words]
            several = listed([f"{kind}s" for kind in sorted(set(kinds))])
            yield Finding(
                "avoidable communication",
                f"{where(file, line)}: {cause}: {several} send {_amount(here, total)}; {remedy}",
                elements=tuple(
                    move.group * elements_of_each(kind)
                    for move in here
                    for kind in move.types
                    if words.startswith("two arrays")
                ),
            )


def _amount(moves, total):
    """The bytes of moves, and of those of which only the run decides how often they run."""
    sent, once = bytes_of(moves), bytes_of_one_call(moves)
    known = f"{bytes_text(sent)}, {sent / total:.0%} of all" if sent else ""
    often = f"{bytes_text(once)}{_how_often(moves)}" if once else ""
    return ", and ".join(filter(None, (known, often))) or bytes_text(0)


def _how_often(moves):
    """How often moves run of which only the run decides that, after their bytes."""
    is_chosen = all(move.is_chosen for move in moves if move.times is None)
    return " each time the branch is taken" if is_chosen else _TIME


def of_exchanged(moves: Sequence[Any], arguments: Sequence[Any]) -> Iterator[Finding]:
    """Arguments that are stored in shards of one dimension and used in shards of another, so that
    each call exchanges them.

    Args:
      moves: the `shardlab.report.explain.Move`s.
      arguments: as `shardlab.report.explain.Array`s.
    """
    total, lists = bytes_of(moves), stacked(array.name for array in arguments)
    specs = {pattern(array.name, lists): array.spec for array in arguments}
    kept = {pattern(array.name, lists) for array in arguments if array.donated}
    for move in moves:
        if move.kind != "all-to-all" or move.phase == "update" or move.array not in specs:
            continue
        is_for_use = FROM_ONE_TO_OTHER in move.cause or (
            move.array in kept and move.cause == ASKED_FOR
        )
        if (move.total or 0) >= max(_LEAST * total, 1024) and is_for_use:
            along = f" along {' and '.join(move.axes)}" if move.axes else ""
            yield Finding(
                "stored in other shards",
                f"{where(move.file, move.line)}: {move.array} is stored in shards by "
                f"{specs[move.array]}, but used here in shards of another dimension, so each call "
                f"exchanges {bytes_text(move.total)}{along}: give it the spec with which it is "
                "used",
            )


def of_indices(
    moves: Sequence[Any],
    windows: Mapping[tuple[str, int], bool] = types.MappingProxyType({}),
) -> Iterator[Finding]:
    """Updates at computed indices in the forward pass, for which indices or values are gathered.

    Args:
      moves: the `shardlab.report.explain.Move`s.
      windows: the (file, line) of updates of a slice of a dimension that is in shards, and whether
        the slices are known to be in one shard each.
    """
    total, places = bytes_of(moves), {}
    for move in moves:
        if move.kind == "all-gather" and move.phase != "backward" and AT_INDICES in move.cause:
            places.setdefault((move.file, move.line), []).append(move)
    for place, here in places.items():
        sent, once = bytes_of(here), bytes_of_one_call(here)
        axes = dict.fromkeys(axis for move in here for axis in move.axes or ())
        if max(sent, once) >= max(_LEAST * total, 1024):
            along = f" along {' and '.join(axes)}" if axes else ""
            amount = bytes_text(sent) if sent else f"{bytes_text(once)}{_how_often(here)}"
            yield Finding(
                "indices gathered",
                f"{where(*place)}: the shards of an array are gathered{along}, {amount}, "
                "because XLA does not split an update of a fixed slice, as in .at[a:b].set. "
                + ("lax.dynamic_update_slice, or " if windows[place] else "")
                + ".at[jnp.arange(a, b)].set writes the same values, and each device those of its "
                "own shard"
                if place in windows
                else f"{where(*place)}: {amount} of indices and values are gathered"
                f"{along}, because an update at computed indices may write to any device's shard. "
                "If each row of a sharded dimension writes to itself, say so: jax.vmap over that "
                "dimension of lax.dynamic_update_slice, or jnp.where with a mask, sends nothing",
            )


def of_many(moves: Sequence[Any]) -> Iterator[Finding]:
    """Many small collectives, whose time is latency.

    Args:
      moves: the `shardlab.report.explain.Move`s.
    """
    others = [move for move in moves if not move.cause.startswith(MEMBERS_CALLED)]
    known = [move for move in others if move.seconds is not None and move.times]
    small = [move for move in known if move.bytes < _SMALL]
    times = sum(move.times for move in small)
    seconds, total = (sum(move.seconds for move in group) for group in (small, known))
    if times >= _MANY and seconds > total / 2:
        most = max(move.bytes for move in small)
        first = max(small, key=lambda move: move.seconds)
        yield Finding(
            "many small collectives",
            (
                f"{times:,} collectives that send at most {bytes_text(most)} each take "
                f"{seconds / total:.0%} of the predicted time, almost all of it latency; those of "
                f"{where(first.file, first.line)} take longest: send several at once, or less "
                "often"
            ),
        )


def _adds(instruction):
    return instruction.kind.startswith("all-reduce") and _is_sum_of_parts(instruction)


def _is_sum_of_parts(instruction):
    """Whether a collective adds; TPUs' compiler writes a reduce-scatter as a fusion around an
    all-reduce.
    """
    if instruction.kind == "fusion":
        inside = instruction.called()
        return any(
            _is_sum_of_parts(inside[name])
            for name in inside.lines
            if inside[name].kind.startswith("all-reduce")
        )
    return any(" add(" in callee.lines[callee.root] for callee, *_ in instruction.calls())


def _sum_before(instruction):
    """The all-reduce whose result is the operand of another, up to a factor; None if there is
    none.
    """
    here, name = instruction.home, instruction.names[0] if instruction.names else None
    for _ in range(30):
        if name not in here.lines:
            return None
        producer = here[name]
        if producer.kind.startswith("all-reduce") and not producer.kind.endswith("-done"):
            return producer
        varying = [
            operand
            for operand in producer.names
            if operand in here.lines and not is_constant(here, operand)
        ]
        scaled = producer.kind in ("divide", "multiply") or (
            producer.kind == "fusion"
            and all(re.search(_SCALES, line) for line in producer.called().lines.values())
        )
        if len(varying) != 1 or not (scaled or producer.kind in _PASS):
            return None
        name = varying[0]
    return None


def of_temporaries(
    temporaries: Sequence[Any],
    sizes: Mapping[str, int],
    is_differentiated: bool,
    results: Sequence[Any] = (),
    saved: int = 0,
) -> Iterator[Finding]:
    """Temporaries that are most of what a device holds at once, and how to hold less.

    Args:
      temporaries: the `shardlab.report.storage.Temporary`s, the most bytes first.
      sizes: bytes of a device's memory, as `shardlab.report.storage.memory` returns them.
      is_differentiated: whether the program has a backward pass.
      results: as `shardlab.report.explain.Array`s: what has the sizes of one is no temporary that
        another way of computing it would not hold.
      saved: bytes of gathered arguments that a device would hold less if it gathered them again.
    """
    kept = [
        row
        for row in temporaries
        if is_differentiated
        and (row.phase == "forward" or row.is_recomputed)
        and not re.match(r"[su]\d", row.type)  # no gradient goes through integers
        and (row.is_stack or row.count > 2)
    ]
    # what a loop carries has no operation that makes it, unlike what its body computes
    carried = [row for row in temporaries if is_differentiated and row.is_stack and not row.phase]
    sizes_of_results = {_shape(array.shard) for array in results}
    others = (row for row in temporaries if _shape(row.type) not in sizes_of_results)
    first = next(others, None)
    peak, least = sizes["peak"], max(2 * sizes["arguments"], _LARGE)
    if first is None:
        return
    single = first.bytes // first.count
    kept_bytes = sum(row.bytes for row in kept)
    stacks = [row for row in kept if row.is_stack]
    is_stacked = sum(row.bytes for row in stacks) > max(peak / 2, least, _MEMORY)
    gathered = sizes.get("gathered", 0)
    is_gathered = gathered > max(peak / 4, _LARGE)
    # a jax.checkpoint asks for little memory, not for little work: half is much for it
    share = 1 / 2 if kept and kept[0].is_recomputed else 2 / 3
    if is_gathered and saved > peak / 8:
        kept_bytes = gathered
        yield Finding(
            "largest temporaries",
            f"{bytes_text(kept_bytes)} of arguments are gathered in the forward pass and kept for "
            f"the backward pass, {kept_bytes / peak:.0%} of what a device holds at once: "
            "jax.checkpoint around each layer, with what gathers its weights inside, gathers them "
            "again instead",
        )
    elif not is_stacked and is_gathered:
        return  # to gather again would save nothing
    elif is_stacked or sizes["temporaries"] >= kept_bytes > max(share * peak, least):
        row = stacks[0] if is_stacked else kept[0]
        what = " of each iteration of a loop" if row.is_stack else ""
        way = "computed again for the backward pass and held together"
        way = way if row.is_recomputed else "kept for the backward pass"
        yield Finding(
            "largest temporaries",
            f"{where(row.file, row.line)}: {bytes_text(kept_bytes)}{what} are {way}, "
            f"{kept_bytes / peak:.0%} of what a device holds at once, most of them "
            f"{row.count} × {row.type}, made by {row.operation or 'it'}; "
            f"{_CHECKPOINTS[row.is_recomputed, row.is_stack]}",
        )
    elif first in carried and single > max(2 / 3 * peak, least):
        yield Finding(
            "largest temporaries",
            f"{bytes_text(single)} are kept for the backward pass, {single / peak:.0%} of what a "
            f"device holds at once: {first.type} is what a loop carries, once for each of its "
            f"{_shape(first.type)[0]} iterations. Two nested loops, with jax.checkpoint around the "
            "inner one, keep about the square root of as many",
        )
    elif single > max(0.3 * peak, least) and not first.is_stack:
        made = f", made by {first.operation}" if first.operation else ""
        chunks = (
            "with jax.checkpoint around its body holds one part at a time, also for the backward "
            "pass"
            if is_differentiated
            else "holds one part at a time"
        )
        yield Finding(
            "largest temporaries",
            f"{where(first.file, first.line)}: {first.type}{made}, {bytes_text(single)} on each "
            f"device, {single / peak:.0%} of what it holds at once; a lax.scan over chunks of a "
            f"dimension {chunks}",
        )


def constant_sizes(text: str) -> list[float]:
    """Bytes of each large array that is part of the program."""
    sizes = [type_bytes(kind) for kind in re.findall(r" = (\w+\[[\d,]+\])\S* constant\(", text)]
    return [size for size in sizes if size >= _CONSTANT]


def of_constants(text: str) -> Iterator[Finding]:
    """Arrays that are part of the program."""
    if large := constant_sizes(text):
        yield Finding(
            "closed-over constant",
            (
                f"{counted(len(large), 'constant')} of {bytes_text(int(sum(large)))}, whole on "
                "every device and part of the program; pass the array as an argument, with a "
                "sharding"
            ),
        )


def of_widening(text: str, backend: str) -> Iterator[Finding]:
    """The compiler for CPUs computes in f32 what the program has in bf16."""
    wide = [
        kind
        for line in text.splitlines()
        if re.search(r" (all-|reduce-scatter|collective-)[\w-]*\(", line)
        for kind in array_types(line.partition(" = ")[2].partition("(")[0])
        if kind.startswith("f32")
    ]
    if backend == "cpu" and wide and re.search(r"\bbf16\[", text):
        yield Finding(
            "bf16 widened",
            (
                "the program has arrays in bf16, with which the compiler for CPUs computes in "
                f"f32; of the results of its collectives {counted(len(wide), 'array')} "
                f"{'is' if len(wide) == 1 else 'are'} in f32, and a chip sends up to half as "
                "much: pass mesh=Pod(...) to ask its compiler"
            ),
        )
