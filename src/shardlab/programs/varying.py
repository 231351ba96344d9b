"""Which values of a `jax.shard_map` differ between devices, followed through its jaxpr.

JAX checks this itself, but not with `check_vma=False`. Then a result that is declared replicated
may hold another value on each device, and nothing says so.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from shardlab.arrays.layout import axes_named
from shardlab.costs.communication.kinds import KINDS, OPERATIONS
from shardlab.programs.kernels import inner_jaxprs
from shardlab.programs.origins import is_in_backward, own_places

__all__ = [
    "Mismatch",
    "are_checked",
    "by_dimension",
    "communicated",
    "communicated_along",
    "differing_results",
    "function_of",
    "is_backward",
    "mismatches",
    "opened",
    "own_frames",
    "parts_of_scan",
    "place_of",
]

_EQUAL = [
    operation
    for kind in ("all-gather", "all-reduce", "collective-broadcast")
    for operation in KINDS[kind].calls
]
_SPREAD = [*(OPERATIONS.keys() - {*_EQUAL}), "axis_index"]
_COMBINE = {"add", "mul", "select_n", "sub"}
_SAME_VALUES = (
    "broadcast_in_dim", "convert_element_type", "copy", "pcast", "pvary", "reshape", "squeeze",
    "transpose",
)  # fmt: skip
_KEYS = ("random_fold_in", "random_seed")
_OF_A_SUM = {"add", "convert_element_type", "copy", "max", "mul", "neg", "pcast", "pvary"}
_NONE = frozenset()


@dataclass(frozen=True)
class Mismatch:
    """A value of a shard_map that does not differ between devices as its author must mean.

    Attributes:
      kind: "result" if it is declared replicated and differs, "exchanged" if it may differ, or be
        equal again since devices have exchanged values, as at the end of a ring, "noise" if random
        numbers are the same on devices whose data differ, "samples" if gradients of single samples
        are added over devices, "indices" if devices look up the same places, each in its own shard,
        "decisions" if each device draws for itself whether it takes what another one has sent,
        "branches" if each decides for itself whether it takes the branch that has a collective,
        "backward branches" if it is the backward pass that has put the collective there, "branch"
        if the result of a branch that each device chooses does not vary by its type, and is
        declared replicated, and "gradient" if a gradient is, because of such a branch,
        "quotients" if quotients by each device's own sum are added, "backward" if the backward pass
        of a sum over devices adds what is equal on them, and "defensive" if that of a whole
        shard_map does; "again" if a sum adds what has been added along the same axes, and "rows" if
        one adds the rows of each device's shard, and out_specs puts what is equal then in shards.
      axes: the mesh axes along which that is so.
      number: which result of the shard_map, from 0; of "again" how many values are equal; 0 for
        the others.
      function: the name of the function that is mapped.
      file, line: of the source: of the operation, or else of the function; "" and 0 if unknown.
    """

    kind: str
    axes: tuple[str, ...]
    number: int
    function: str
    file: str
    line: int


def mismatches(jaxpr: Any) -> Iterator[Mismatch]:
    """The mismatches in all `jax.shard_map`s of a program.

    >>> from shardlab.programs.varying import mismatches
    >>> own = lambda x: jax.shard_map(jnp.sum, in_specs=P("y"), out_specs=P(), mesh=mesh, check_vma=False)(x)
    >>> [(one.kind, one.axes) for one in mismatches(jax.make_jaxpr(own)(jnp.ones(8)).jaxpr)]
    [('result', ('y',))]

    Args:
      jaxpr: as `jax.make_jaxpr(f)(...).jaxpr` is.
    """  # noqa: E501
    for equation in jaxpr.eqns:
        if equation.primitive.name == "shard_map":
            yield from _of_a_map(equation)
        else:
            for inner in inner_jaxprs(equation):
                yield from mismatches(inner)


def are_checked(jaxpr: Any) -> bool:
    """Whether JAX checks all shard_maps of a program: none has `check_vma=False`.

    >>> from shardlab.programs.varying import are_checked
    >>> are_checked(jax.make_jaxpr(jnp.sin)(1.0).jaxpr)
    True
    """
    for equation in jaxpr.eqns:
        if equation.primitive.name == "shard_map" and not equation.params.get("check_vma", True):
            return False
        if not all(map(are_checked, inner_jaxprs(equation))):
            return False
    return True


def differing_results(equation: Any) -> list[frozenset[str]]:
    """The axes along which each result of a shard_map differs.

    Args:
      equation: of the shard_map.
    """
    return [axes for axes, _ in _Body(equation.params["mesh"].shape).mapped(equation)]


def _of_a_map(equation):
    """The mismatches of one shard_map."""
    body, specs = opened(equation.params["jaxpr"]), equation.params.get("out_specs")
    sizes = equation.params["mesh"].shape
    if specs is None or len(specs) != len(body.outvars):
        return  # written in a way that we do not read
    walk = _Body(sizes)
    results = walk.mapped(equation)
    function, file, line = function_of(body)
    if not equation.params.get("check_vma", True):
        for number, ((axes, _), spec) in enumerate(zip(results, specs, strict=True)):
            if differing := {axis for axis in axes - _named(spec) if sizes[axis] > 1}:
                kind = "exchanged" if differing <= walk.exchanged else "result"
                yield Mismatch(kind, tuple(sorted(differing)), number, function, file, line)
    else:
        yield from _of_branches(equation, walk.mistyped, results, specs, function)
    kinds = (
        ("noise", walk.noisy),
        ("samples", walk.samples),
        ("indices", walk.elsewhere),
        ("quotients", walk.averaged),
        ("decisions", [] if walk.is_grouped else walk.decided),
        ("branches", walk.parted),
        ("backward branches", walk.parted_backward),
    )
    marked = [(kind, places[:1]) for kind, places in kinds]
    if not equation.params.get("check_vma", True):
        is_whole = is_backward(equation)
        equal = [
            (axes, place) for axes, place, in_backward in walk.equal if is_whole or in_backward
        ]
        marked += [("defensive" if is_whole else "backward", equal[:1])]
    for kind, places in marked:
        for axes, place in places:
            where = place if place[1] else (file, line)
            yield Mismatch(kind, tuple(sorted(axes)), 0, function, *where)


def _of_branches(equation, mistyped, results, specs, function):
    """The mismatch of a shard_map in which JAX takes for equal what differs, because the result of
    a `lax.cond` has the axes of what goes into it, and not those of the predicate.
    """
    is_gradient, stack = is_backward(equation), str(equation.source_info.name_stack)
    if "jvp(" in stack and not is_gradient:
        return  # results that the backward pass gets are declared nowhere
    for along, place in mistyped[:1]:
        for number, ((axes, _), spec) in enumerate(zip(results, specs, strict=True)):
            if differing := (axes & along) - _named(spec):
                kind = "gradient" if is_gradient else "branch"
                yield Mismatch(kind, tuple(sorted(differing)), number, function, *place)
                return


class _Body:
    """The values in the body of a shard_map: each a pair, the axes along which it differs, and
    whether it is noise.
    """

    def __init__(self, sizes):
        # Where noise meets data that differ, where gradients of single samples are added, and where
        # what is equal is: pairs of axes and place.
        self.noisy, self.samples, self.equal, self.elsewhere = [], [], [], []
        # Decisions by each device's own random numbers, and what comes from another device, with
        # the axes along which that is so; and where one decides about the other.
        self.coins, self.received, self.decided = {}, {}, []
        self.parted = []  # where devices part, and a branch has a collective between them
        # the same in a backward pass; and where they part, and the result is equal by its type
        self.parted_backward, self.mistyped, self.is_backward = [], [], False
        # Numbers of devices, and whether one is computed with: two devices may have one key then.
        self.numbers, self.is_grouped = {}, False
        self.divided = {}  # for each dimension the axes, of what is an argument of the shard_map
        self.sizes, self.cast, self.means, self.stack = sizes, set(), set(), ""
        # Axes along which devices pass values on, or exchange parts of what is equal
        self.exchanged = set()
        # Numbers that are each device's own sum, quotients by these, and where they are added
        self.sums, self.quotients, self.averaged = set(), {}, []

    def mapped(self, equation):
        """The results of a shard_map."""
        self.is_backward = is_backward(equation)
        body, specs = opened(equation.params["jaxpr"]), equation.params["in_specs"]
        self.divided |= {
            variable: by_dimension(spec, len(getattr(variable.aval, "shape", ())), self.sizes)
            for variable, spec in zip(body.invars, specs, strict=True)
            if isinstance(spec, jax.sharding.PartitionSpec)
        }
        return self.run(body, [(_named(spec), False) for spec in specs])

    def run(self, jaxpr, inputs):
        """The results of a jaxpr for the values of its inputs."""
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        read = lambda atom: (  # noqa: E731
            (_NONE, False) if hasattr(atom, "val") else known.get(atom, (_NONE, False))
        )
        outer = self.stack
        for equation in jaxpr.eqns:
            # what jax.checkpoint computes in the backward pass only has the name of the call
            self.stack = f"{outer}/{equation.source_info.name_stack}"
            values = [read(atom) for atom in equation.invars]
            known |= dict(zip(equation.outvars, self._results(equation, values), strict=True))
        self.stack = outer
        return [read(atom) for atom in jaxpr.outvars]

    def _results(self, equation, values):
        name, params, count = equation.primitive.name, equation.params, len(equation.outvars)
        together = frozenset().union(*(axes for axes, _ in values))
        self._note(equation, values)
        if name == "ppermute" or (
            name == "all_to_all" and not communicated_along(equation) & together
        ):
            self.exchanged |= communicated_along(equation)
        if name in (*_EQUAL, *_SPREAD):
            each = [together] * count
            if name in _EQUAL and len(values) == count:
                each = [axes for axes, _ in values]
            return [(communicated(equation, axes), False) for axes in each]
        if name == "scan":
            return self._scan(equation, values)
        if name == "while":
            return self._while(params, values)
        if name == "cond":
            branches = [self.run(opened(branch), values[1:]) for branch in params["branches"]]
            chosen = values[0][0]
            self._note_branches(equation, chosen)
            return [
                (chosen.union(*(axes for axes, _ in results)), all(noise for _, noise in results))
                for results in zip(*branches, strict=True)
            ]
        inner = [
            one
            for one in inner_jaxprs(equation)
            if len(one.invars) == len(values) and len(one.outvars) == count
        ]
        if inner and name != "shard_map":
            for atom, variable in zip(equation.invars, inner[0].invars, strict=True):
                self.divided[variable] = self._axes_of(atom)
            self._pass_on(equation.invars, inner[0].invars)
            results = self.run(inner[0], values)
            self._pass_on(inner[0].outvars, equation.outvars)
            return results
        return [(together, self._is_noise(equation, values))] * count

    def _note(self, equation, values):
        """Notes sums over devices that a backward pass adds and should not."""
        name = equation.primitive.name
        shapes = [getattr(one.aval, "shape", ()) for one in equation.invars]
        if name in ("pvary", "pcast"):
            self.cast |= set(shapes)
        if name in ("pvary", "pcast", "convert_element_type", "copy"):
            for atom, variable in zip(equation.invars, equation.outvars, strict=True):
                self.divided[variable] = self._axes_of(atom)
        if name == "gather":
            self._note_indices(equation, values)
        self._note_decisions(equation, values)
        self._note_quotients(equation, values)
        # What is divided by a number of devices before it is added is the gradient of a mean.
        if name in ("div", "mul") and any(hasattr(atom, "val") for atom in equation.invars):
            self.means |= set(equation.outvars)
        if not name.startswith("psum"):
            return
        along = frozenset(communicated(equation, frozenset(self.sizes)) ^ frozenset(self.sizes))
        along = frozenset(axis for axis in along if self.sizes[axis] > 1)
        in_backward = is_in_backward(self.stack)
        # vmap(transpose(...)): each element of a batch has a gradient of its own. The parameter has
        # one dimension less, so it is shared by all of them.
        is_of_samples = re.search(r"(^|/)vmap\(transpose\(", self.stack) and any(
            shape not in self.cast and shape[1:] in self.cast for shape in shapes
        )
        if along and is_of_samples:
            self.samples.append((along, place_of(equation)))
        for atom, (axes, _) in zip(equation.invars, values, strict=False):
            if equal := along - axes:
                if in_backward and not hasattr(atom, "val") and atom in self.means:
                    continue
                self.equal.append((equal, place_of(equation), in_backward))

    def _pass_on(self, atoms, variables):
        """Other names of what decides, and of what was received."""
        for known in (self.coins, self.received, self.numbers):
            known |= {
                variable: known[atom]
                for atom, variable in zip(atoms, variables, strict=True)
                if not hasattr(atom, "val") and atom in known
            }

    def _note_decisions(self, equation, values):
        """Notes where each device decides by a random number of its own whether it takes what
        another device has: the other one decides for itself.
        """
        name, atoms, out = equation.primitive.name, equation.invars, equation.outvars
        if name == "axis_index":
            self.numbers[out[0]] = communicated_along(equation)
        elif any(not hasattr(atom, "val") and atom in self.numbers for atom in atoms):
            self.is_grouped |= name not in (*_SAME_VALUES, *_KEYS)
        if name in ("lt", "le", "gt", "ge"):
            if own := frozenset().union(*(axes for axes, noise in values if noise)):
                self.coins[out[0]] = own
        elif name == "ppermute":
            along = communicated_along(equation)
            self.received |= dict.fromkeys(out, along)
        elif name in ("and", "or", "not", *_SAME_VALUES):
            for known in (self.coins, self.received, self.numbers):
                axes = [known[a] for a in atoms if not hasattr(a, "val") and a in known]
                if axes:
                    known[out[0]] = frozenset().union(*axes)
        elif name == "select_n" and not hasattr(atoms[0], "val") and atoms[0] in self.coins:
            taken = [
                frozenset() if hasattr(a, "val") else self.received.get(a, frozenset())
                for a in atoms[1:]
            ]
            along = self.coins[atoms[0]] & frozenset().union(*taken)
            along = {axis for axis in along if self.sizes[axis] > 1}
            if along and not all(taken):
                self.decided.append((along, place_of(equation)))

    def _note_branches(self, equation, chosen):
        """Notes a lax.cond about which devices decide for themselves, although a branch has a
        collective between them, or a result does not vary along their axis by its type.
        """
        branches = map(opened, equation.params["branches"])
        along = chosen & frozenset().union(*map(_sent_along, branches))
        varying = _varying(equation.invars[0])
        typed = varying - frozenset.intersection(varying, *map(_varying, equation.outvars))
        along, typed = (
            {axis for axis in axes if self.sizes.get(axis, 1) > 1} for axes in (along, typed)
        )
        if along:
            is_backward = self.is_backward or is_in_backward(self.stack)
            parted = self.parted_backward if is_backward else self.parted
            parted.append((along, place_of(equation)))
        elif typed:
            self.mistyped.append((typed, place_of(equation)))

    def _note_quotients(self, equation, values):
        """Notes numbers that are quotients by a sum of each device's own, as of a mask, and where
        devices add them: the mean of quotients is not the quotient of the sums.
        """
        name, atoms = equation.primitive.name, equation.invars
        if name.startswith("psum"):
            for atom, (axes, _) in zip(atoms, values, strict=False):
                along = axes - communicated(equation, axes)
                if not hasattr(atom, "val") and atom in self.quotients and along:
                    self.averaged.append((along, self.quotients[atom]))
            return
        if [getattr(one.aval, "shape", None) for one in equation.outvars] != [()]:
            return  # also of an operation without a result, such as jax.debug.print
        result, own = equation.outvars[0], [a for a in atoms if not hasattr(a, "val")]
        if name == "reduce_sum" or (name in _OF_A_SUM and any(one in self.sums for one in own)):
            self.sums.add(result)
        if name == "div" and len(own) == 2 and own[1] in self.sums:
            if values[0][0] & values[1][0]:
                self.quotients[result] = place_of(equation)
        elif name in _OF_A_SUM and len(own) == 1 and own[0] in self.quotients:
            self.quotients[result] = self.quotients[own[0]]

    def _axes_of(self, atom):
        return () if hasattr(atom, "val") else self.divided.get(atom, ())

    def _note_indices(self, equation, values):
        """Notes indices of data that devices share along an axis of the dimension that they index:
        each of them has another part of it.
        """
        own, indices = self._axes_of(equation.invars[0]), values[1][0]
        indexed = equation.params["dimension_numbers"].start_index_map
        along = {axis for d in indexed if d < len(own) for axis in own[d]}
        if indices and along - indices and along & indices:
            self.elsewhere.append((along - indices, place_of(equation)))

    def _scan(self, equation, values):
        body = opened(equation.params["jaxpr"])
        consts, carried = parts_of_scan(equation, body)
        carry = values[consts : consts + carried]
        for _ in range(len(self.sizes) + 1):
            results = self.run(body, [*values[:consts], *carry, *values[consts + carried :]])
            carry = list(map(_either, carry, results))
        return [*carry, *results[carried:]]

    def _while(self, params, values):
        tests, consts = params["cond_nconsts"], params["body_nconsts"]
        carry = values[tests + consts :]
        for _ in range(len(self.sizes) + 1):
            (ends,) = self.run(opened(params["cond_jaxpr"]), [*values[:tests], *carry])
            results = self.run(
                opened(params["body_jaxpr"]), [*values[tests : tests + consts], *carry]
            )
            carry = [
                _either(_either(old, new), (ends[0], old[1]))
                for old, new in zip(carry, results, strict=True)
            ]
        return carry

    def _is_noise(self, equation, values):
        """Whether a result is random bits, or computed from these alone; notes where noise meets
        data that differ.
        """
        name = equation.primitive.name
        own = frozenset().union(*(axes for axes, noise in values if noise))
        data = frozenset().union(*(axes for axes, noise in values if not noise))
        if not any(noise for _, noise in values):
            return name == "random_bits"
        differing = {axis for axis in data - own if self.sizes[axis] > 1}
        if name in _COMBINE and differing:
            self.noisy.append((differing, place_of(equation)))
        # A vector that is repeated for each row is a bias, not noise.
        ranks = [getattr(one.aval, "ndim", 0) for one in (*equation.invars, *equation.outvars)]
        return not data and name != "dot_general" and ranks[-1] <= max(ranks[:-1])


def communicated(equation: Any, axes: frozenset[str]) -> frozenset[str]:
    """The axes along which a result of a collective, or of an axis index, differs.

    Args:
      equation: of a jaxpr; of another operation the axes stay as they are.
      axes: along which the operand differs.
    """
    name, params = equation.primitive.name, equation.params
    along = communicated_along(equation)
    if name in _SPREAD:
        return axes | along
    is_equal = name in _EQUAL and params.get("axis_index_groups") is None
    return axes - along if is_equal else axes


def _sent_along(jaxpr):
    """The axes along which a jaxpr has collectives."""
    own = [communicated_along(one) for one in jaxpr.eqns if one.primitive.name in OPERATIONS]
    inner = [_sent_along(one) for equation in jaxpr.eqns for one in inner_jaxprs(equation)]
    return frozenset().union(*own, *inner)


def communicated_along(equation: Any) -> frozenset[str]:
    """The axes that a collective of a jaxpr names.

    Args:
      equation: the collective, such as a ppermute.
    """
    params = equation.params
    along = params.get("axes", params.get("axis_name", params.get("axis", ())))
    along = along if isinstance(along, tuple | list) else (along,)
    return frozenset(axis for axis in along if isinstance(axis, str))


def parts_of_scan(equation: Any, body: Any) -> tuple[int, int]:
    """How many operands of a scan are constant, and how many are carried; the others are stacked.

    Args:
      equation, body: the scan, and the jaxpr of its iterations.
    """
    rank = lambda atom: getattr(atom.aval, "ndim", 0)  # noqa: E731
    carried = sum(
        rank(out) == rank(one) for out, one in zip(equation.outvars, body.outvars, strict=True)
    )
    inputs = zip(equation.invars, body.invars, strict=True)
    stacked = sum(rank(stack) > rank(one) for stack, one in inputs)
    return len(equation.invars) - carried - stacked, carried


def _either(one, other):
    return one[0] | other[0], one[1] and other[1]


def _varying(atom):
    """The axes along which a value of a jaxpr differs by its type; none without `check_vma`."""
    kind = getattr(atom.aval, "manual_axis_type", None)  # from JAX 0.10
    return frozenset(getattr(kind or atom.aval, "varying" if kind else "vma", ()))


def is_backward(equation: Any) -> bool:
    """Whether an equation of a jaxpr belongs to a backward pass."""
    return "transpose(" in str(equation.source_info.name_stack)


def opened(jaxpr: Any) -> Any:
    """The jaxpr of one that is closed over its constants; another one itself.

    Args:
      jaxpr: as the parameters of equations have them.
    """
    return getattr(jaxpr, "jaxpr", jaxpr)


def _named(spec):
    """The axes that a `PartitionSpec` names; none for what is no spec."""
    return frozenset(axes_named(spec) if isinstance(spec, jax.sharding.PartitionSpec) else ())


def by_dimension(
    spec: Any, rank: int, sizes: Mapping[str, int] | None = None
) -> tuple[tuple[str, ...], ...]:
    """For each dimension the axes of a spec; with `sizes` those that have several devices.

    Args:
      spec: a `PartitionSpec`, or its entries.
      rank: how many dimensions the array has.
      sizes: of the mesh, by axis.
    """
    entries = list(getattr(spec, "partitions", spec))[:rank]
    entries += [None] * (rank - len(entries))
    tuples = [
        () if not isinstance(one, str | tuple) else (one,) if isinstance(one, str) else one
        for one in entries
    ]
    if sizes is None:
        return tuple(tuples)
    return tuple(tuple(axis for axis in one if sizes.get(axis, 1) > 1) for one in tuples)


def own_frames(equation: Any) -> list[tuple[str, int]]:
    """The (file, line) of an equation's frames that are in no installed package, the innermost
    first, up to the call of `explain`.

    Args:
      equation: of a jaxpr.
    """
    frames = getattr(equation.source_info.traceback, "frames", None) or ()
    # code such as a dataclass's is in a file named "<string>"
    named = (frame for frame in frames if not frame.file_name.startswith("<"))
    return own_places((frame.file_name, frame.line_num) for frame in named)


def place_of(equation: Any) -> tuple[str, int]:
    """The (file, line) of an equation, by the innermost of its frames; ("", 0) if unknown.

    Args:
      equation: of a jaxpr.
    """
    return next(iter(own_frames(equation)), ("", 0))


def function_of(body: Any) -> tuple[str, str, int]:
    """The name, file and line of the function that a shard_map maps.

    Args:
      body: its jaxpr.
    """
    words = getattr(getattr(body, "debug_info", None), "func_src_info", None) or ""
    match = re.fullmatch(r"(\S+) at (.*):(\d+)", words)
    return (match[1], match[2], int(match[3])) if match else (words or "the function", "", 0)
