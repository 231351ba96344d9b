"""The mesh axes along which the values of a traced program can be in shards.

Before XLA's partitioner decides anything, a program says much of its layouts: its arguments are in
shards, constraints name specs, and most operations keep the dimensions of their operands. So the
axes of each value are followed through the jaxpr, from the arguments on. Where a constraint, or the
`in_specs` of a shard_map, lacks an axis which its operand has, what is computed from it is followed
too: the matrix products in which no operand has the axis, every device along it repeats.
"""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardlab.arrays.layout import axes_named, short_dtype, spec_text
from shardlab.programs.hlo import type_bytes
from shardlab.programs.kernels import BRANCHING, called_jaxprs, inner_jaxprs
from shardlab.programs.varying import (
    by_dimension,
    communicated,
    is_backward,
    opened,
    own_frames,
    parts_of_scan,
)

__all__ = [
    "LAYOUT",
    "Added",
    "Clash",
    "Column",
    "Contest",
    "Held",
    "Inheritance",
    "Loss",
    "Moved",
    "Order",
    "Pick",
    "Site",
    "Sum",
    "Swap",
    "corrected",
    "inherited_axes",
    "is_refused",
    "text_of",
]

_CONSTRAINTS = ("sharding_constraint", "reshard")
_SMALL = 4  # times as large is what is gathered for a small weight
_REST = "'s rest"  # of an axis, after a reshape that splits the dimension which it divides
_SEARCHES = ("approx_top_k", "argmax", "argmin", "sort", "top_k")
LAYOUT = {
    "broadcast_in_dim", "convert_element_type", "copy", "copy_p", "name", "optimization_barrier",
    "pbroadcast", "pcast", "pvary", "reduce_precision", "reshape", "squeeze", "stop_gradient",
    "transpose", *_CONSTRAINTS,
}  # fmt: skip
_ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "clamp", "clz", "complex", "conj",
    "convert_element_type", "copy", "copy_p", "cos", "cosh", "device_put", "digamma", "div", "eq",
    "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma", "igammac",
    "imag", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "log2", "logistic", "lt",
    "max", "min", "mul", "mulhi", "name", "ne", "neg", "nextafter", "not", "or", "pcast",
    "polygamma", "population_count", "pow", "pvary", "real", "reduce_precision", "rem", "round",
    "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign",
    "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor", "zeta",
    *_CONSTRAINTS,
}  # fmt: skip
_PARTS = ("concatenate", "split", "stack", "tile", "unstack")
_PICKS = ("dynamic_slice", "gather", "slice")
_REDUCTIONS = {
    "argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod",
    "reduce_sum", "reduce_xor",
}  # fmt: skip
_ALONG = {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "rev"}


@dataclass(frozen=True)
class Site:
    """Where an equation stands: the (file, line) of the user's innermost frame, and of its callers.

    Attributes:
      file, line: of the source; "" and 0 if unknown.
      callers: the (file, line) of the calls that lead there, the innermost first.
    """

    file: str = ""
    line: int = 0
    callers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Loss:
    """A spec that lacks an axis which its operand has.

    Attributes:
      kind: "constraint" (a sharding constraint or a reshard), "out_sharding" (of a product) or
        "in_specs" (of a shard_map).
      axis: the mesh axis.
      place: of the constraint or of the shard_map.
      number: which argument of the shard_map, from 0; 0 for a constraint.
      spec: for each dimension the axes of the spec.
      dimension: the dimension of the operand that is in shards along the axis.
      order: all axes of this dimension.
      type: of the whole operand, such as "f32[64,256]".
      argument: the number of the argument that is the operand; None for a computed one.
    """

    kind: str
    axis: str
    place: Site
    number: int
    spec: tuple[tuple[str, ...], ...]
    dimension: int
    order: tuple[str, ...]
    type: str
    argument: int | None


@dataclass(frozen=True)
class Order:
    """An array that is divided along the same axes as what it meets, but in another order.

    Attributes:
      place: of the operation in which they meet.
      spec, other: the specs of the array and of what it meets, as text.
      better: a spec of the array with which nothing would be exchanged, as text.
      argument: the number of the argument that is the array; None for a computed one.
      axes: the axes whose order differs.
      is_result: whether the array is a result of the program, which is asked for in `other`.
    """

    place: Site
    spec: str
    other: str
    better: str
    argument: int | None
    axes: tuple[str, ...]
    is_result: bool = False


@dataclass(frozen=True)
class Column:
    """An argument that a product contracts along one dimension, and that is in shards along
    another, by the axis of the computed array that it meets.

    Attributes:
      axis: along which the computed array is in shards in the dimension that is contracted.
      contracted: the size of this dimension.
      divided: the size of the dimension of the argument that is in shards along the axis.
      place: of the product.
      operand, result: bytes of the computed array, and of the result, on a device that has all of
        it along the axis.
      shard: elements of a shard of the result along the axis.
      givers: the numbers of the arguments from which the computed array has the axis.
      met: the number of the argument that is no computed array, but met as one; else None.
      dimension: of the argument, that is contracted; None if it is not known.
      better: the spec of the argument with the axis there, and what was there in its place.
    """

    axis: str
    contracted: int
    divided: int
    place: Site
    operand: int = 0
    result: int = 0
    shard: int = 0
    givers: tuple[int, ...] = ()
    met: int | None = None
    dimension: int | None = None
    better: str = ""


@dataclass(frozen=True)
class Contest:
    """A result that gets an axis along two dimensions, of which it can keep one.

    Attributes:
      axis: the mesh axis.
      place: of the product, or of the lookup.
      type: of the whole result.
      dimension: the first of the two.
      argument: the number of the argument from which one of them comes.
      better: the spec that leaves the axis to the first dimension, with all other axes.
    """

    axis: str
    place: Site
    type: str
    dimension: int
    argument: int
    better: str


@dataclass(frozen=True)
class Sum:
    """A product that contracts a dimension in which both operands are in shards along one axis, one
    of them an argument: each device has a part of the sum.

    Attributes:
      place: of the product.
      contracted: the size of the dimension.
      kept: the size of the largest dimension of the argument that the axis could divide instead.
      operand, result: elements of the other operand, and of the result.
    """

    place: Site
    contracted: int
    kept: int
    operand: int
    result: int


@dataclass(frozen=True)
class Clash:
    """A product whose operands are in shards along one axis in dimensions that do not meet.

    Attributes:
      place: of the product.
      axis: the mesh axis.
      contracted: the size of the dimension that the product contracts, in which one operand is in
        shards along the axis.
      met: the size of the dimension of this operand that meets the shards of the other one.
      argument: the number of the argument that has the axis there: the operand, or a weight that it
        is a product of.
      is_operand: whether the argument is the operand itself.
      is_cut: whether the shards of that dimension are what a reshape has left of larger ones.
      without: the spec of the argument without the axis, as text.
    """

    place: Site
    axis: str
    contracted: int
    met: int
    argument: int
    is_operand: bool
    is_cut: bool
    without: str


@dataclass(frozen=True)
class Swap:
    """An argument with two axes: the product keeps the dimension of the one that divides its other
    operand, and contracts that of the one that does not.

    Attributes:
      place: of the product.
      argument: its number.
      axes: both, the one of the kept dimension first.
      spec, better: its spec, and that with the two axes swapped, as text.
    """

    place: Site
    argument: int
    axes: tuple[str, str]
    spec: str
    better: str


@dataclass(frozen=True)
class Added:
    """A constraint that divides a dimension by a further axis, and a product that takes what it
    made as it is, although an argument in it has the axis for the result.

    Attributes:
      place: of the constraint.
      axis: the axis that it adds.
      spec, better: its spec, and that without the axis, as text.
      product: the place of the product.
      argument: the number of the argument.
    """

    place: Site
    axis: str
    spec: str
    better: str
    product: Site
    argument: int


@dataclass(frozen=True)
class Moved:
    """A constraint that moves an axis to another dimension, and a product that contracts this one
    with an array which is whole along the axis.

    Attributes:
      place: of the constraint.
      axis: the axis that it moves.
      before, after: the dimensions that have it.
      type: of the whole array.
      spec, better: its spec, and that with the axis where it was, as text.
    """

    place: Site
    axis: str
    before: int
    after: int
    type: str
    spec: str
    better: str


@dataclass(frozen=True)
class Held:
    """A computed array that a constraint makes larger on each device than the argument which it
    meets element by element, as a gradient meets its parameter or moments.

    Attributes:
      place: of the constraint.
      type: of the whole array, such as "f32[64,256]".
      spec, better: that of the constraint, and that of the argument, as text.
      axes: those of the argument that the constraint lacks.
      argument: the number of the argument.
    """

    place: Site
    type: str
    spec: str
    better: str
    axes: tuple[str, ...]
    argument: int


@dataclass(frozen=True)
class Pick:
    """An index into, or a slice of, what a constraint has made whole, and that nothing else uses.

    Attributes:
      place: of the index.
      share: elements that are taken, of all.
    """

    place: Site
    share: float


@dataclass
class Inheritance:
    """What following a program has shown.

    Attributes:
      flops: of all matrix products, on all devices together, each once.
      repeated: FLOPs of the products in which no operand has the axis of a `Loss`, by the `Loss`
        and the `Site` of the product.
      by_weights: the same of products in which only an argument has the axis, and the `Loss` is
        one of the first dimension of a computed array, as of the batch that FSDP's weights should
        meet in shards. Not where the result has the axis from a dimension of the argument's own:
        then the array enters tensor parallelism.
      searched: where what lacks the axis of a `Loss` is sorted or searched, by the `Loss`.
      reduced: where what lacks it is summed up, or its maximum taken, along the dimension that the
        axis divided, by the `Loss`.
      entered: the losses of what a product has used.
      produced: the product whose result a constraint makes whole, by the `Loss`.
      candidates: the losses of what a shard_map has returned, as each device's own largest.
      refused: those of `searched` that an explicit axis must lack, as sorts along it refuse it.
      regained: where a constraint gives the axis of a `Loss` back, and only element-wise operations
        stand between, by the `Loss`.
      needed: the losses of what other operations have used.
      carried: the losses of what an iteration of a loop hands to the next one, where the first
        iteration gets an array that has the axis, with the dimension in which it has it.
      replaced: the losses by constraints of the forward pass that name another axis in the place of
        the lost one.
      arguments: for each dimension of each argument its axes, by number.
      mapped: FLOPs of the products in shard_maps that all devices along an axis repeat, by (axis,
        `Site` of the product).
      orders: the `Order`s, each once, in the order of the program.
      casts: how often a gathered array is cast to a smaller type afterwards, by the `Site` of the
        gather, its type, and the smaller type.
      columns: the `Column`s, by (argument, axis).
      makers: of the weights that a product keeps in shards along an axis: the size of the dimension
        that it contracts, and the bytes of its result on a device that has all of it along the
        axis, by (argument, axis).
      smalls: `Column`s of small weights, with small results, by which an activation that is in
        shards for another reason is gathered, by (argument, axis).
      wholes: axes along which a product needs a large operand whole for other reasons, with the
        bytes of the operand.
      merged: reshapes after which shards along an axis are not contiguous, each by its `Site`, the
        axis, and the types before and after.
      contested: the `Contest`s, in the program's order.
      decided: those of which what follows says along which dimension they keep the axis: a
        constraint, or an operand that they meet element by element.
      tensor: the axes along which an argument is in shards in a dimension that a product with a
        computed array keeps, or contracts where that array has the axis too, as in tensor
        parallelism.
      multiplied: the axes along which an argument is in shards in a product with a computed array.
      gathered: (argument, axis) where the argument meets in a product what has this axis in
        another dimension than the contracting one: as FSDP's weights meet the batch.
      sums: the `Sum`s, by (argument, axis).
      clashes: the `Clash`es, by (argument, axis).
      swaps: the `Swap`s, by the argument.
      added: the `Added`s, by the axis.
      moved: the products that contract what a constraint has moved an axis to, by the `Moved`.
      dropped: all losses by in_specs, also those after which no product is repeated.
      alike: those of them along whose axis all devices compute the same in the shard_map, element
        by element or as sums.
      entered_whole: the `Site` of the shard_map that gets an argument whole along an axis by its
        in_specs, by (argument, axis).
      contiguous: the (file, line) of reshapes of arrays in shards, after which these are still
        contiguous.
      windows: the (file, line) of updates of a slice of a dimension that is in shards, and whether
        the slices are known to be in one shard each.
      products: the axes that no operand of the products of a (file, line) has, and the numbers of
        the arguments among their operands.
      held: the `Held`s, each once.
      picked: the `Pick`s, by the `Loss` of the constraint.
      leading: the axes of the first dimension of computed arrays, by the `Site` of a constraint of
        the forward pass that has some.
      transforms: the spec of the operand of a Fourier transform whose dimensions are whole in it,
        while others are in shards, by (file, line).
      taken: where computed indices take rows of an argument, an axis along which these are in
        shards, and its number.
      results: for each result its axes before a sharding is asked for, () if they are not known,
        and those along which a constraint that drops an axis asks for all of it.
      computed: the places of constraints that make computed arrays whole, with their types.
      uncast: those of them whose arrays are used before a cast.
    """

    flops: int = 0
    repeated: dict[Loss, Counter] = field(default_factory=dict)
    by_weights: dict[Loss, Counter] = field(default_factory=dict)
    searched: dict[Loss, Site] = field(default_factory=dict)
    reduced: dict[Loss, Site] = field(default_factory=dict)
    entered: set[Loss] = field(default_factory=set)
    produced: dict[Loss, Site] = field(default_factory=dict)
    candidates: set[Loss] = field(default_factory=set)
    refused: set[Loss] = field(default_factory=set)
    regained: dict[Loss, Site] = field(default_factory=dict)
    needed: set[Loss] = field(default_factory=set)
    carried: set[Loss] = field(default_factory=set)
    replaced: dict[Loss, None] = field(default_factory=dict)
    arguments: dict[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    mapped: Counter = field(default_factory=Counter)
    orders: dict[Order, None] = field(default_factory=dict)
    casts: Counter = field(default_factory=Counter)
    columns: dict[tuple[int, str], Column] = field(default_factory=dict)
    makers: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    smalls: dict[tuple[int, str], Column] = field(default_factory=dict)
    wholes: set[tuple[str, int]] = field(default_factory=set)
    merged: dict[tuple[Site, str, str, str], None] = field(default_factory=dict)
    contested: dict[Contest, None] = field(default_factory=dict)
    decided: set[Contest] = field(default_factory=set)
    tensor: set[str] = field(default_factory=set)
    multiplied: set[str] = field(default_factory=set)
    gathered: set[tuple[int, str]] = field(default_factory=set)
    sums: dict[tuple[int, str], Sum] = field(default_factory=dict)
    clashes: dict[tuple[int, str], Clash] = field(default_factory=dict)
    swaps: dict[int, Swap] = field(default_factory=dict)
    added: dict[str, Added] = field(default_factory=dict)
    moved: dict[Moved, Site] = field(default_factory=dict)
    dropped: set[Loss] = field(default_factory=set)
    alike: set[Loss] = field(default_factory=set)
    entered_whole: dict[tuple[int, str], Site] = field(default_factory=dict)
    contiguous: set[tuple[str, int]] = field(default_factory=set)
    windows: dict[tuple[str, int], bool] = field(default_factory=dict)
    products: dict[tuple[str, int], tuple[set, set]] = field(default_factory=dict)
    held: dict[Held, None] = field(default_factory=dict)
    picked: dict[Loss, Pick] = field(default_factory=dict)
    leading: dict[Site, tuple[str, ...]] = field(default_factory=dict)
    transforms: dict[tuple[str, int], str] = field(default_factory=dict)
    taken: dict[tuple[str, int, str, int], None] = field(default_factory=dict)
    results: list[tuple[tuple, frozenset[str]]] = field(default_factory=list)
    computed: set[tuple[Site, str]] = field(default_factory=set)
    uncast: set[tuple[Site, str]] = field(default_factory=set)

    def products_without(self, loss: Loss) -> tuple[Site, ...]:
        """The products that a `Loss` leaves without its axis: those after its constraint, and the
        one whose result the constraint makes whole.
        """
        made = (self.produced[loss],) if loss in self.produced else ()
        return *self.repeated.get(loss, ()), *made

    @property
    def of_tensors(self) -> set[str]:
        """The axes of tensor parallelism: without those along which the sums of partial products
        are larger than what is multiplied, and none is smaller. There weights are in shards as
        FSDP stores them, and no data meet them in shards.
        """
        larger, smaller = (
            {axis for (_, axis), one in self.sums.items() if is_so(one.operand, one.result)}
            for is_so in (operator.lt, operator.gt)
        )
        return self.tensor - (larger - smaller)


@dataclass(frozen=True)
class _Value:
    """A value: for each dimension its axes; the argument that it is, if nothing but its layout
    changes; the losses that it descends from; in a shard_map the axes along which it differs;
    whether its axes are known; where it was gathered, and its type then, if it is only that; the
    `Contest` of which it is the result, or computed element by element from it; the arguments from
    which it has axes, as weights of the products that made it; the axes by which a constraint has
    further divided a dimension of it, if it is only that; the axes of which the compiler alone
    decides the dimension, because what it is computed from has them twice; the
    constraint that it is, up to a factor, if nothing else is stored; the argument that it is, up to
    a factor; the losses that a constraint makes of what only an index uses; those after which it
    is only computed element by element; the axes that an operation other than a product or a sum,
    such as a split, has left out; whether it is the result of a shard_map; the product that it
    is, up to its type and layout; and the `Moved`s of the constraint that it is, up to them.
    """

    axes: tuple[tuple[str, ...], ...] = ()
    argument: int | None = None
    lost: frozenset = frozenset()
    differs: frozenset = frozenset()
    is_known: bool = True
    gathered: tuple | None = None
    contested: Contest | None = None
    given: frozenset = frozenset()
    added: tuple = ()
    undecided: frozenset = frozenset()
    held: tuple | None = None
    scaled: int | None = None
    unused: frozenset = frozenset()
    spread: frozenset = frozenset()
    mixed: frozenset = frozenset()
    is_mapped: bool = False
    product: Site | None = None
    moved: tuple[Moved, ...] = ()

    @property
    def named(self):
        return {axis for axes in self.axes for axis in axes}


def inherited_axes(
    jaxpr: Any, shardings: Sequence[Any], results: Sequence[Any] = ()
) -> Inheritance:
    """Follow the axes of a program's arguments through it.

    >>> from shardlab.programs.inherited import corrected, inherited_axes
    >>> def f(x, w):
    ...     x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P()))
    ...     return x @ w
    >>> sharding = NamedSharding(mesh, P("y"))
    >>> traced = jax.jit(f).trace(jnp.ones((16, 8)), jnp.ones((8, 8)))
    >>> shown = inherited_axes(traced.jaxpr.jaxpr, [sharding, None])
    >>> [(loss.axis, corrected([loss]), flops.total()) for loss, flops in shown.repeated.items()]
    [('y', 'P("y")', 2048)]

    Args:
      jaxpr: as `jax.jit(f).trace(...).jaxpr.jaxpr` is.
      shardings: of its arguments, in order; None where there is none that names axes.
      results: of its results, as they are asked for; without them their order is not looked at.
    """
    follower = _Follower()
    values = follower.follow(jaxpr, shardings)
    follower.shown.arguments = {value.argument: value.axes for value in follower.arguments}
    follower.ended(values, results)
    follower.shown.results = [
        (
            value.axes if value.is_known else (),
            frozenset(follower.sizes).difference(*(sum(one.spec, ()) for one in asked))
            if (asked := [loss for loss in value.lost if loss.kind == "constraint"])
            else frozenset(),
        )
        for value in values
    ]
    follower.shown.uncast.update(value.gathered for value in values if value.gathered)
    if len(results) == len(values):
        for value, sharding, variable in zip(values, results, jaxpr.outvars, strict=True):
            asked = _of_sharding(sharding, variable.aval).axes
            for loss in value.spread:
                if loss.axis in asked[loss.dimension]:
                    follower.shown.regained.setdefault(loss, Site())
        makers = {variable: one for one in jaxpr.eqns for variable in one.outvars}
        for variable, value, sharding in zip(jaxpr.outvars, values, results, strict=True):
            if not hasattr(variable, "val") and variable in makers:
                follower.returned(makers[variable], variable, value, sharding)
    return follower.shown


def _of_sharding(sharding, aval, number=None):
    rank = len(getattr(aval, "shape", ()))
    if not isinstance(sharding, NamedSharding):
        return _Value(((),) * rank, number)
    return _Value(by_dimension(sharding.spec, rank, sharding.mesh.shape), number)


def is_refused(
    jaxpr: Any, shardings: Sequence[Any], file: str, line: int, specs: Mapping[tuple, str]
) -> bool:
    """Whether JAX may refuse a program on Explicit axes in which constraints have other specs.

    It does where a product, or an element-wise operation, gets an axis along two dimensions, or
    contracts one along it; of other operations that are not known, it may.

    Args:
      jaxpr, shardings: as those of `inherited_axes`.
      file, line: of the constraints.
      specs: the new axes of each dimension, by the type and the spec of the constraint as texts.
    """
    follower = _Supposed(file, line, specs)
    follower.follow(jaxpr, shardings)
    return follower.is_refused


class _Follower:
    """Runs jaxprs on values; `times` is how often a computation runs, `within` the axes along which
    the branch or loop that it is in differs, `manual` the axes of the shard_map around it.
    """

    def __init__(self):
        self.shown = Inheritance()
        self.sizes = {}
        self.arguments = []
        self.places = {}
        self.caller = Site()

    def follow(self, jaxpr, shardings):
        """The values of a program's results, for the shardings of its arguments."""
        for sharding in shardings:
            if isinstance(sharding, NamedSharding):
                self.sizes |= {str(axis): int(n) for axis, n in sharding.mesh.shape.items()}
        self.arguments = [
            _of_sharding(sharding, variable.aval, number)
            for number, (variable, sharding) in enumerate(zip(jaxpr.invars, shardings, strict=True))
        ]
        return self.run(jaxpr, self.arguments, 1, frozenset(), None)

    def run(self, jaxpr, inputs, times, within, manual):
        """The values of a jaxpr's results."""
        known = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom):
            rank = len(getattr(atom.aval, "shape", ()))
            if hasattr(atom, "val"):
                return _Value(((),) * rank)
            return known.get(atom) or _Value(((),) * rank)

        uses = Counter(
            atom for one in jaxpr.eqns for atom in one.invars if not hasattr(atom, "val")
        )
        uses.update(atom for atom in jaxpr.outvars if not hasattr(atom, "val"))
        makers = {variable: one for one in jaxpr.eqns for variable in one.outvars}
        for equation in jaxpr.eqns:
            values = [read(atom) for atom in equation.invars]
            results = self._results(equation, values, times, within, manual)
            if equation.primitive.name == "scatter" and manual is None:
                self._window(equation, values[0], _numbers(equation.invars[1], makers))
            if equation.primitive.name in _CONSTRAINTS and uses[equation.outvars[0]] == 1:
                results = [replace(results[0], unused=results[0].lost)]
            known |= dict(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _results(self, equation, values, times, within, manual):
        name = equation.primitive.name
        contested = self._still_contested(equation, values)
        inside = self._of_what_it_contains(equation, values, times, within, manual)
        is_simple = name in {*_ELEMENTWISE, "one_minus_square"} or (  # of the gradient of tanh
            inside is not None and name not in BRANCHING
        )
        if not is_simple and not is_backward(equation):
            self.shown.needed.update(*(value.spread for value in values))
        if inside is not None:
            return inside
        if name == "optimization_barrier":
            return values
        try:
            axes = self._axes(name, equation, values) if manual is None and values else None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            axes = None  # an operation in a form that this version of JAX alone has
        is_known = all(value.is_known for value in values)
        is_known &= axes is not None or manual is not None or not values
        results = self._simple(equation, values, axes, is_known, times, within, manual)
        if name == "reshape" and axes is not None:
            types = _type(equation.invars[0].aval), _type(equation.outvars[0].aval)
            kept = {axis for one in axes for axis in one}
            for axis in (one for one in values[0].named - kept if not one.endswith(_REST)):
                self.shown.merged.setdefault((self._place(equation), axis, *types))
            if kept and kept == values[0].named:
                place = self._place(equation)
                self.shown.contiguous.add((place.file, place.line))
        if name == "gather" and manual is None and values[0].argument is not None:
            place = self._place(equation)
            collapsed = equation.params["dimension_numbers"].collapsed_slice_dims
            for axis in (axis for d in collapsed for axis in values[0].axes[d]):
                self.shown.taken[place.file, place.line, axis, values[0].argument] = None
        if name in ("gather", "dot_general") and is_known and len(results) == 1:
            results = [replace(results[0], contested=self._contested(equation, values, results[0]))]
        if name in _CONSTRAINTS:
            results = [self._constrained(equation, values[0], results[0])]
            if contested and contested.axis in results[0].named:
                self.shown.decided.add(contested)
        elif contested:
            self._goes_on(contested, results)
        return results

    def _still_contested(self, equation, values):
        """The `Contest` that an operation hands on, as one element by element does; notes one
        that it ends.
        """
        name, handed = equation.primitive.name, None
        is_inner = name not in BRANCHING and any(True for _ in inner_jaxprs(equation))
        for value in values:
            if value.contested is None or is_inner:
                continue
            if _is_decided(value, equation, values):
                self.shown.decided.add(value.contested)
            elif name in _ELEMENTWISE or name in LAYOUT:
                handed = value.contested
            else:
                self.shown.contested.setdefault(value.contested)
        return handed

    def ended(self, values, shardings=()):
        """Notes what is still contested where a loop, a branch or the program ends; there it is
        decided by a sharding that is asked for.
        """
        shardings = shardings if len(shardings) == len(values) else [None] * len(values)
        for value, sharding in zip(values, shardings, strict=True):
            if value.contested is None or value.product is not None:
                continue
            spec = sharding.spec if isinstance(sharding, NamedSharding) else ()
            if value.contested.axis in axes_named(spec):
                self.shown.decided.add(value.contested)
            self.shown.contested.setdefault(value.contested)

    def _goes_on(self, contested, results):
        """Marks results of what is contested; one that has the axis but once is decided by the
        compiler.
        """
        for number, result in enumerate(results):
            if sum(contested.axis in axes for axes in result.axes) > 1:
                results[number] = replace(result, contested=contested)
            else:
                self.shown.contested.setdefault(contested)

    def _of_what_it_contains(self, equation, values, times, within, manual):
        """The results of an equation that contains jaxprs; None for another one."""
        name, params = equation.primitive.name, equation.params
        if name == "shard_map":
            return self._mapped(equation, values, times, within)
        if name == "scan":
            return self._scan(equation, values, times, within, manual)
        if name == "while":
            return self._while(params, values, times, within, manual)
        if name == "cond":
            inside = within | values[0].differs
            branches = [
                self.run(opened(branch), values[1:], times, inside, manual)
                for branch in params["branches"]
            ]
            for results in branches:
                self.ended(results)
            return [_joined(results, inside) for results in zip(*branches, strict=True)]
        if not (inner := called_jaxprs(equation)):
            return None
        caller, self.caller = self.caller, self._place(equation)
        results = self.run(inner[0], values, times, within, manual)
        self.caller = caller
        return results

    def _simple(self, equation, values, axes, is_known, times, within, manual):
        """The results of an equation that contains no jaxpr."""
        name, params = equation.primitive.name, equation.params
        operand = getattr(equation.invars[0].aval, "shape", ()) if equation.invars else ()
        lost = frozenset().union(*(value.lost for value in values))
        differs = frozenset().union(*(value.differs for value in values))
        differs = communicated(equation, differs)
        undecided = frozenset().union(*(value.undecided for value in values))
        if name in ("dot_general", "conv_general_dilated"):
            lost = self._product(equation, values, lost, differs | within, times, manual)
        if name in _REDUCTIONS and name not in _SEARCHES and manual is None:
            for loss in values[0].lost:
                is_along = loss.dimension in params["axes"] and len(loss.spec) == len(operand)
                if is_along and loss.axis not in values[0].named and not is_backward(equation):
                    self.shown.reduced.setdefault(loss, self._place(equation))
        if name in _SEARCHES and manual is None:
            for loss in values[0].lost:
                if loss.axis not in values[0].named:
                    self.shown.searched.setdefault(loss, self._place(equation))
                    mesh = getattr(getattr(equation.invars[0].aval, "sharding", None), "mesh", None)
                    if loss.axis in getattr(mesh, "explicit_axes", ()) and "arg" not in name:
                        self.shown.refused.add(loss)
        if name == "fft" and manual is None:
            self._transformed(equation, values[0])
        if name in _PICKS and manual is None and values[0].unused:
            self._picked(equation, values[0])
        moved = values[0] if name in LAYOUT and values else _Value()
        is_each = name in _ELEMENTWISE
        held, scaled = self._meeting(equation, values) if is_each else (None, None)
        spread = frozenset().union(*(value.spread for value in values if is_each))
        gathered = self._gathered(equation, values, moved, times)
        results = []
        for variable in equation.outvars:
            rank = len(getattr(variable.aval, "shape", ()))
            own = axes if axes is not None and len(axes) == rank else ((),) * rank
            own = self._typed(variable.aval, own)
            named = {axis for one in own for axis in one}
            lost |= self._left_out(equation, axes, own)
            left = frozenset(loss for loss in lost if is_known and loss.axis not in named)
            given = frozenset(one for one in self._given(equation, values) if one[0] in named)
            twice = {axis for axis, n in Counter(a for one in own for a in one).items() if n > 1}
            mixed = frozenset().union(*(value.mixed for value in values))
            if name not in (*_REDUCTIONS, "dot_general"):
                mixed |= frozenset().union(*(value.named for value in values)) - named
            results.append(
                _Value(
                    own,
                    moved.argument,
                    left,
                    differs,
                    is_known,
                    gathered,
                    given=given,
                    added=moved.added,
                    moved=moved.moved,
                    undecided=(undecided | twice) & named,
                    held=held,
                    scaled=scaled,
                    spread=spread,
                    mixed=mixed - named,
                    product=self._place(equation) if name == "dot_general" else moved.product,
                )
            )
        return results

    def _transformed(self, equation, value):
        """Notes a Fourier transform of dimensions that are whole, where others are in shards."""
        rest = len(value.axes) - len(equation.params["fft_lengths"])
        if value.is_known and any(value.axes[:rest]) and not any(value.axes[rest:]):
            place = self._place(equation)
            self.shown.transforms[place.file, place.line] = text_of(value.axes)

    def _gathered(self, equation, values, moved, times):
        """Where the result of an equation was gathered, as a `_Value` has it; notes casts of what
        is gathered to a smaller type, and what else uses it.
        """
        name = equation.primitive.name
        if name == "all_gather":
            return self._place(equation), _type(equation.outvars[0].aval)
        known = [value.gathered for value in values if value.gathered]
        if name in _ELEMENTWISE and name not in LAYOUT:
            return next((one for one in known if one in self.shown.computed), None)
        if name not in LAYOUT:
            self.shown.uncast.update(known)
        gathered = moved.gathered
        if name == "convert_element_type" and gathered and _narrows(equation, gathered[1]):
            self.shown.casts[(*gathered, str(equation.params["new_dtype"]))] += max(times, 1)
            return None if gathered in self.shown.computed else gathered
        return gathered

    def _window(self, equation, value, starts):
        """Notes an update of a slice of a dimension that is in shards, and if it is within one."""
        numbers, shape = equation.params["dimension_numbers"], equation.invars[0].aval.shape
        gone = {*numbers.inserted_window_dims, *getattr(numbers, "operand_batching_dims", ())}
        kept = [d for d in range(len(shape)) if d not in gone]
        update = equation.invars[2].aval.shape
        sizes = {d: update[n] for d, n in zip(kept, numbers.update_window_dims, strict=True)}
        places = [*enumerate(numbers.scatter_dims_to_operand_dims)]
        cut = [(n, d) for n, d in places if d in sizes and value.axes[d]]
        if not cut:
            return
        is_within = starts is not None and len(starts) == len(places)
        for n, d in cut if is_within else ():
            shard = shape[d] // self._ways(value.axes[d])
            is_within &= starts[n] // shard == (starts[n] + sizes[d] - 1) // shard
        place = self._place(equation)
        key = place.file, place.line
        self.shown.windows[key] = is_within and self.shown.windows.get(key, True)

    def _typed(self, aval, axes):
        return _explicit(aval, axes)

    def _picked(self, equation, value):
        """Notes an index into what a constraint has made whole, and that nothing else uses."""
        whole, part = (
            math.prod(one.aval.shape) for one in (equation.invars[0], equation.outvars[0])
        )
        for loss in value.unused:
            if loss.axis not in value.named:
                share = part / max(whole, 1)
                self.shown.picked.setdefault(loss, Pick(self._place(equation), share))

    def _meeting(self, equation, values):
        """The constraint, and the argument, of which the result of an element-wise operation is a
        multiple; notes where one meets the other.
        """
        shape = getattr(equation.outvars[0].aval, "shape", ())
        large = [
            (value, atom)
            for value, atom in zip(values, equation.invars, strict=True)
            if getattr(atom.aval, "shape", ()) != ()
        ]
        stands = [value.argument if value.scaled is None else value.scaled for value, _ in large]
        for (value, _), number in itertools.product(large, stands):
            if value.held is None or number is None or not shape:
                continue
            place, kind, spec, axes = value.held
            own = self.arguments[number].axes
            lacking = tuple(a for one in own for a in one if a not in {b for c in axes for b in c})
            is_wider = len(own) == len(axes) and all(
                {*mine} <= {*its} for mine, its in zip(axes, own, strict=True)
            )
            if lacking and is_wider and self._ways(lacking) > 1:
                held = Held(place, kind, spec, text_of(own), lacking, number)
                self.shown.held.setdefault(held)
        if len(large) != 1:
            return None, None
        return large[0][0].held, stands[0]

    def _given(self, equation, values):
        """The axes that the result of an equation has from weights, each with the weight: none
        that something else has brought, too.
        """
        is_product = equation.primitive.name == "dot_general"
        contracted = equation.params["dimension_numbers"][0] if is_product else [()] * len(values)
        known, others = set(), set()
        for value, dims in zip(values, contracted, strict=True):
            kept = {a for d, axes in enumerate(value.axes) if d not in dims for a in axes}
            own = {one for one in value.given if one[0] in kept}
            if is_product and value.argument is not None:
                own |= {(axis, value.argument) for axis in kept}
            known |= own
            others |= kept - {axis for axis, _ in own}
        return frozenset(one for one in known if one[0] not in others)

    def _axes(self, name, equation, values):
        """For each dimension of the first result its axes; None where the operation mixes them."""
        out = equation.outvars[0].aval
        shape, params = getattr(out, "shape", ()), equation.params
        first = values[0].axes
        operand = getattr(equation.invars[0].aval, "shape", ())
        if name == "transpose":
            return tuple(first[d] for d in params["permutation"])
        if name == "broadcast_in_dim":
            places = dict(zip(params["broadcast_dimensions"], range(len(first)), strict=True))
            return tuple(
                first[places[d]] if d in places and operand[places[d]] == size else ()
                for d, size in enumerate(shape)
            )
        if name == "reshape":
            return _reshaped(operand, first, shape, self.sizes)
        if name == "squeeze":
            gone = {d % len(operand) for d in params["dimensions"]}
            return tuple(axes for d, axes in enumerate(first) if d not in gone)
        if name in _REDUCTIONS:
            return tuple(axes for d, axes in enumerate(first) if d not in params["axes"])
        if name == "dot_general":
            return _of_product(params["dimension_numbers"], values)
        if name == "conv_general_dilated":
            numbers = params["dimension_numbers"]
            axes = [()] * len(shape)
            axes[numbers.out_spec[0]] = first[numbers.lhs_spec[0]]
            axes[numbers.out_spec[1]] = values[1].axes[numbers.rhs_spec[0]]
            for d, n in zip(numbers.out_spec[2:], numbers.lhs_spec[2:], strict=True):
                axes[d] = first[n] if shape[d] == operand[n] else ()  # with a halo
            return tuple(axes)
        if name == "gather":
            return _looked_up(params, values, operand, shape)
        if name == "dynamic_update_slice":  # an array that is whole gets the shards of its update
            update, other = equation.invars[1].aval.shape, values[1].axes
            used = values[0].named
            return tuple(
                axes or tuple(a for a in new if a not in used and part == size)
                for axes, new, part, size in zip(first, other, update, shape, strict=True)
            )
        if name in ("slice", "dynamic_slice", "pad") or name in _ALONG:
            along = {params.get("axis", params.get("dimension"))} if name in _ALONG else set()
            along |= set(params.get("dimensions", ()) if name in _ALONG else ())
            return tuple(
                axes if size == before and d not in along else ()
                for d, (axes, size, before) in enumerate(zip(first, shape, operand, strict=True))
            )
        if name in _PARTS:
            return self._of_parts(name, equation, values)
        if name in _ELEMENTWISE and all(
            not one or _spreads(one, shape)
            for one in (getattr(atom.aval, "shape", ()) for atom in equation.invars)
        ):
            return self._met(equation, values, shape)
        # whatever mixes arrays that never had axes, such as random bits of a key, has none
        had = any(value.named or value.lost for value in values)
        return None if had else ((),) * len(shape)

    def _of_parts(self, name, equation, values):
        """The same of an operation that joins arrays, or parts one."""
        params, first = equation.params, values[0].axes
        axis = params.get("axis", params.get("dimension"))
        if name in ("concatenate", "stack"):
            merged = self._met(equation, values, equation.invars[0].aval.shape)
            is_new = name == "stack"
            return (*merged[:axis], (), *merged[axis + (not is_new) :])
        if name == "unstack":
            return tuple(axes for d, axes in enumerate(first) if d != axis)
        if name == "tile":
            return tuple(() if n > 1 else one for n, one in zip(params["reps"], first, strict=True))
        parts = [one.aval.shape[axis] for one in equation.outvars]
        ways = self._ways(first[axis])
        return None if any(part % ways for part in parts) else first

    def _ways(self, axes):
        """Into how many parts axes divide a dimension."""
        return math.prod(self.sizes.get(axis, 1) for axis in axes)

    def _met(self, equation, values, shape):
        """The axes of arrays of one shape that meet, and where their orders differ."""
        merged = ((),) * len(shape)
        # An array and its transpose meet in no order that another spec would fix.
        is_own = len({value.argument for value in values}) == 1 < len(values)
        undecided = frozenset().union(*(value.undecided for value in values))
        for value in values:
            if len(value.axes) != len(shape):
                continue
            if (
                not (is_own and values[0].argument is not None)
                and merged != value.axes
                and sorted(sum(merged, ())) == sorted(sum(value.axes, ()))
            ):
                self._ordered(equation, value, merged, merged, undecided)
            merged = tuple(
                mine if len(mine) >= len(theirs) else theirs
                for mine, theirs in zip(merged, value.axes, strict=True)
            )
        return merged

    def returned(self, equation, variable, value, sharding):
        """Notes a result that is asked for with the axes of its dimensions exchanged."""
        rank = len(getattr(variable.aval, "shape", ()))
        if not isinstance(sharding, NamedSharding) or not value.is_known:
            return
        asked = by_dimension(sharding.spec, rank, sharding.mesh.shape)
        moved = [axes for axes, new in zip(value.axes, asked, strict=True) if axes != new]
        are_exchanged = len({*moved} - {()}) > 1 and sorted(value.axes) == sorted(asked)
        if value.argument is None and are_exchanged:
            self._ordered(equation, value, asked, asked, is_result=True)

    def _ordered(self, equation, value, other, better, undecided=frozenset(), is_result=False):
        if any(axis.endswith(_REST) for axes in (*value.axes, *other) for axis in axes):
            return
        moved = {
            axis
            for before, after in zip(value.axes, better, strict=True)
            if before != after
            for axis in (*before, *after)
        }
        if moved & (undecided | value.undecided):
            return  # as a gradient, to which FSDP's weights and the batch both give one axis
        specs = (text_of(axes) for axes in (value.axes, other, better))
        axes = tuple(sorted(moved))
        order = Order(self._place(equation), *specs, value.argument, axes, is_result)
        self.shown.orders.setdefault(order)

    def _product(self, equation, values, lost, differs, times, manual):
        """Notes the FLOPs of a product; returns the losses that its result descends from."""
        flops = times * _flops(equation)
        sides = values[:2]
        if manual is not None:
            alike = [axis for axis, size in manual.items() if size > 1 and axis not in differs]
            devices = math.prod(manual.values())
            together = flops * devices // math.prod(manual[axis] for axis in alike)
            self.shown.flops += together
            for axis in alike:
                self.shown.mapped[axis, self._place(equation)] += together
            return lost
        self.shown.flops += flops
        named = set().union(*(value.named for value in sides))
        place = self._place(equation)
        without = {axis for axis, size in self.sizes.items() if size > 1} - named
        lacking, used = self.shown.products.setdefault((place.file, place.line), (without, set()))
        lacking &= without
        used |= {value.argument for value in sides} - {None}
        for value, other in (sides, sides[::-1]):
            if value.argument is not None:
                self.shown.gathered |= {
                    (value.argument, axis) for axis in value.named & other.named
                }
        if equation.primitive.name == "dot_general":
            self._add(equation, *sides)
            self._swapped(equation, *sides)
            self._swapped(equation, *sides[::-1], is_turned=True)
        if not all(value.is_known for value in sides):
            return frozenset()
        if equation.primitive.name == "dot_general":
            self._columns(equation, sides)
            self._clashing(equation, *sides)
        computed = set().union(*(value.named for value in sides if value.argument is None))
        kept = set().union(*self._kept(equation, sides))  # as the columns of tensor parallelism
        self.shown.entered |= lost
        for loss in sorted(lost, key=_order):  # a set has another one in each process
            by_loss = self.shown.repeated
            if loss.axis in named:
                is_of_batch = not loss.dimension and loss.argument is None
                if loss.axis in computed | kept or not is_of_batch or loss.kind == "in_specs":
                    continue
                by_loss = self.shown.by_weights
            by_loss.setdefault(loss, Counter())[self._place(equation)] += flops
        return frozenset(loss for loss in lost if loss.axis not in named)

    def _left_out(self, equation, before, after):
        """The losses of a product whose `out_sharding` lacks axes that its operands have."""
        sharding, is_product = equation.params.get("out_sharding"), "dot" in equation.primitive.name
        is_asked = isinstance(sharding, NamedSharding) and not is_backward(equation)
        if before is None or not is_product or not is_asked:
            return frozenset()
        named, aval = {axis for axes in after for axis in axes}, equation.outvars[0].aval
        spec, place = by_dimension(sharding.spec, len(before)), self._place(equation)
        return frozenset(
            Loss("out_sharding", axis, place, 0, spec, d, axes, _type(aval), None)
            for d, axes in enumerate(before)
            for axis in axes
            if axis not in named and self.sizes.get(axis, 1) > 1
        )

    def _kept(self, equation, sides):
        """The axes of the dimensions of each operand that the other one has not."""
        numbers = equation.params["dimension_numbers"]
        if equation.primitive.name == "dot_general":
            met = [sum(both, ()) for both in zip(*numbers, strict=True)]
        else:
            met = (numbers.lhs_spec[1],), (numbers.rhs_spec[1],)
        return [
            {axis for d, axes in enumerate(value.axes) if d not in dims for axis in axes}
            for value, dims in zip(sides, met, strict=True)
        ]

    def _contested(self, equation, values, result):
        """The `Contest` of a result that has an axis along two dimensions, one of them a weight's;
        None where a product's other operand is the smaller one: to gather that sends less.
        """
        flat = [axis for axes in result.axes for axis in axes]
        is_lookup = equation.primitive.name == "gather"
        pairs = list(zip(values[:2], equation.invars[:2], strict=True))
        (weight, of_weight), (batch, of_batch) = pairs if is_lookup else pairs[::-1]
        for axis in flat:
            if flat.count(axis) < 2 or weight.argument is None or axis not in batch.named:
                continue
            whole = [
                self._elements_whole(atom.aval, value.named, axis) * atom.aval.dtype.itemsize
                for value, atom in ((weight, of_weight), (batch, of_batch))
            ]
            if not is_lookup and whole[0] >= whole[1]:
                continue
            first = next(d for d, axes in enumerate(result.axes) if axis in axes)
            own = [
                tuple(one for one in axes if one != axis or d == first)
                for d, axes in enumerate(result.axes)
            ]
            kind = _type(equation.outvars[0].aval)
            return Contest(axis, self._place(equation), kind, first, weight.argument, text_of(own))
        return None

    def _columns(self, equation, sides):
        """Notes an argument whose shards do not meet those of what it is multiplied by."""
        contracted, _ = equation.params["dimension_numbers"]
        shapes = [atom.aval.shape for atom in equation.invars[:2]]
        for n, m in ((0, 1), (1, 0)):  # the numbers of one operand and of the other
            one, other = sides[n], sides[m]
            dims, others, shape = contracted[n], contracted[m], shapes[m]
            self._smalls(equation, sides, n)
            if other.argument is not None:
                self._makers(equation, sides, n)
            if one.argument is not None or other.argument is None:
                continue
            self.shown.multiplied |= other.named
            kept = {a for k, axes in enumerate(other.axes) if k not in others for a in axes}
            self.shown.tensor |= kept - one.named
            for d, e in zip(dims, others, strict=True):
                together = set(one.axes[d]) & set(other.axes[e])
                self.shown.tensor |= together
                free = [k for k, axes in enumerate(other.axes) if not axes and k not in others]
                for axis in together if free and equation.outvars else ():
                    kept = max(shape[k] for k in free)
                    elements = math.prod(equation.outvars[0].aval.shape)
                    own = math.prod(shapes[n])
                    summed = Sum(self._place(equation), shape[e], kept, own, elements)
                    self.shown.sums.setdefault((other.argument, axis), summed)
                # Where no weight has given the axis, what is gathered before a product is scattered
                # after the last one, as an activation that is in shards between the layers.
                by_weights = {axis for axis, _ in one.given}
                for axis in (by_weights & {*one.axes[d]}) - {*other.axes[e]}:
                    free = [
                        k for k, axes in enumerate(other.axes) if axis in axes and k not in others
                    ]
                    if free:
                        sizes = self._bytes_whole(equation, sides, n, axis)
                        givers = tuple(sorted(giver for own, giver in one.given if own == axis))
                        place = self._place(equation)
                        where_it_is = self._turned(other, e, free[0], axis)
                        known = (axis, shape[e], shape[free[0]], place, *sizes, givers, None)
                        column = Column(*known, *where_it_is)
                        self.shown.columns.setdefault((other.argument, axis), column)

    def _elements_whole(self, aval, named, axis):
        """Elements of an array in shards along axes, on a device that has all of it along one."""
        return math.prod(aval.shape) // self._ways(named - {axis})

    def _bytes_whole(self, equation, sides, n, axis):
        """Of a product: bytes of operand n and of the result on a device that has all of them along
        an axis, and elements of a shard of the result.
        """
        operand, out = equation.invars[n].aval, equation.outvars[0].aval
        axes = _of_product(equation.params["dimension_numbers"], [*sides])
        whole = self._elements_whole(operand, sides[n].named, axis)
        result = self._elements_whole(out, {a for own in axes for a in own}, axis)
        shard = result // self.sizes.get(axis, 1)
        return whole * operand.dtype.itemsize, result * out.dtype.itemsize, shard

    def _makers(self, equation, sides, n):
        """Notes operand 1 - n, a weight that a product keeps in shards, and whose other dimension
        is whole.
        """
        other, (contracted, _) = sides[1 - n], equation.params["dimension_numbers"]
        others, shape = contracted[1 - n], equation.invars[1 - n].aval.shape
        if len(others) != 1 or other.axes[others[0]]:
            return
        for d, axes in enumerate(other.axes):
            for axis in {*axes} - sides[n].named if d not in others else ():
                result = self._bytes_whole(equation, sides, n, axis)[1]
                self.shown.makers.setdefault((other.argument, axis), (shape[others[0]], result))

    def _smalls(self, equation, sides, n):
        """Notes operand 1 - n, if it is a small weight in shards along an axis which operand n has
        for the contracted dimension, and which no weight has given that.
        """
        if is_backward(equation):
            return
        one, other = sides[n], sides[1 - n]
        mine, weight = equation.invars[n].aval, equation.invars[1 - n].aval
        contracted, _ = equation.params["dimension_numbers"]
        by_weights = {axis for axis, _ in one.given}
        for d, e in zip(contracted[n], contracted[1 - n], strict=True):
            for axis in {*one.axes[d]} - {*other.axes[e]} - by_weights:
                others = contracted[1 - n]
                kept = [k for k, axes in enumerate(other.axes) if axis in axes and k not in others]
                operand, *sizes = self._bytes_whole(equation, sides, n, axis)
                # FSDP gathers weights for a batch, which is in shards in its first dimension
                is_weight = (
                    other.argument is not None
                    and kept[:1] > [0]
                    and mine.ndim >= weight.ndim
                    and _SMALL * math.prod(weight.shape) <= math.prod(mine.shape)
                )
                if kept and is_weight and 2 * _SMALL * sizes[0] <= operand:
                    column = Column(
                        axis,
                        weight.shape[e],
                        weight.shape[kept[0]],
                        self._place(equation),
                        operand,
                        *sizes,
                        met=one.argument,
                    )
                    self.shown.smalls.setdefault((other.argument, axis), column)
                elif kept:
                    self.shown.wholes.add((axis, operand))

    def _turned(self, value, contracted, divided, axis):
        """The dimension of an argument that a product contracts, and its spec with an axis there;
        nothing where the product gets it in another layout than as it is, or a part of it.
        """
        own = self.arguments[value.argument].axes
        first = len(own) - len(value.axes)
        if first < 0 or own[first:] != value.axes:
            return ()
        new = list(own)
        new[first + divided] = tuple(one for one in own[first + divided] if one != axis)
        new[first + divided] += own[first + contracted]
        new[first + contracted] = (axis,)
        return first + contracted, text_of(new)

    def _clashing(self, equation, left, right):
        """Notes operands that are in shards along an axis in dimensions that do not meet."""
        pairs = [
            list(zip(*both, strict=True)) for both in equation.params["dimension_numbers"]
        ]  # contracted, and of the batch
        turned = [[pair[::-1] for pair in both] for both in pairs]
        sides = (
            (left, right, *pairs, equation.invars[1]),
            (right, left, *turned, equation.invars[0]),
        )
        for one, other, contracted, batch, variable in sides:
            meets = dict((*contracted, *batch))
            for d, e in contracted:
                for named in other.axes[e]:
                    axis = named.removesuffix(_REST)
                    here = [n for n, axes in enumerate(one.axes) if axis in axes and n in meets]
                    # a sum over the heads of a group has the rest of an axis on both sides
                    is_met = {axis, named} & {*one.axes[d]}
                    if not here or is_met or self.sizes.get(axis, 1) < 2:
                        continue
                    is_operand = other.argument is not None
                    if is_operand and not any(n in dict(contracted) for n in here):
                        continue  # as FSDP's weights meet the batch
                    weights = [number for own, number in sorted(other.given) if own == axis]
                    argument = other.argument if is_operand else next(iter(weights), None)
                    if argument is None or (not is_operand and one.argument is not None):
                        continue
                    if not is_operand and is_backward(equation):
                        continue  # the forward pass has met both, as tokens and experts
                    shape = variable.aval.shape
                    clash = Clash(
                        self._place(equation),
                        axis,
                        shape[e],
                        shape[meets[here[0]]],
                        argument,
                        is_operand,
                        named.endswith(_REST),
                        text_of(_without(self.arguments[argument].axes, axis)),
                    )
                    self.shown.clashes.setdefault((argument, axis), clash)

    def _add(self, equation, left, right):
        """Notes constraints by which an operand has an axis that the other has for the result, or
        for the dimension that is contracted, where the other one is whole.
        """
        contracted = equation.params["dimension_numbers"][0]
        turned = contracted[::-1]
        for one, other, own, dims in ((left, right, *contracted), (right, left, *turned)):
            kept = {a for d, axes in enumerate(other.axes) if d not in dims for a in axes}
            for place, axis, *specs in one.added if other.argument is not None else ():
                if axis in kept:
                    added = Added(place, axis, *specs, self._place(equation), other.argument)
                    self.shown.added.setdefault(axis, added)
            along = {a for d in own for a in one.axes[d]} - other.named
            for moved in (moved for moved in one.moved if moved.axis in along):
                self.shown.moved.setdefault(moved, self._place(equation))

    def _swapped(self, equation, one, other, is_turned=False):
        """Notes an argument whose axes are those of a weight, but swapped."""
        if other.argument is None:
            return
        contracted, batch = (
            list(zip(*both[:: -1 if is_turned else 1], strict=True))
            for both in equation.params["dimension_numbers"]
        )
        met = {e for _, e in (*contracted, *batch)}
        own = {a for d, axes in enumerate(one.axes) if d not in dict(contracted) for a in axes}
        for d, e in contracted:
            for n in (n for n in range(len(other.axes)) if n not in met):
                if len(other.axes[n]) == len(other.axes[e]) == 1:
                    kept, inner = other.axes[n][0], other.axes[e][0]
                    lost = {loss.axis for loss in one.lost}  # by a constraint, which is at fault
                    is_lost = inner in one.named | one.mixed | lost or one.axes[d]
                    if kept in own and not is_lost:
                        better = list(other.axes)
                        better[n], better[e] = better[e], better[n]
                        specs = text_of(other.axes), text_of(better)
                        swap = Swap(self._place(equation), other.argument, (kept, inner), *specs)
                        self.shown.swaps.setdefault(other.argument, swap)

    def _constrained(self, equation, value, result):
        """The value after a constraint: the axes of its spec, and of the dimensions that it leaves
        open those of the operand.
        """
        params = equation.params
        sharding = params.get("sharding", params.get("dst_sharding"))
        aval = equation.invars[0].aval
        if not isinstance(sharding, NamedSharding):
            return result
        rank, sizes = len(aval.shape), sharding.mesh.shape
        free = set(params.get("unconstrained_dims") or ())
        new = by_dimension(sharding.spec, rank, sizes)
        new = tuple(value.axes[d] if d in free else axes for d, axes in enumerate(new))
        kept = {axis for axes in new for axis in axes}
        lost = {loss for loss in value.lost if loss.axis not in kept}
        flat = [axis for axes in value.axes for axis in axes]
        moved = [d for d in range(rank) if value.axes[d] and value.axes[d] != new[d]]
        # one axis that goes to another dimension, as in Ulysses, is an exchange that was asked for
        if len(moved) > 1 and len({*flat}) > 1 and sorted(value.axes) == sorted(new):
            self._ordered(equation, value, new, new)
        for d, (before, after) in enumerate(zip(value.axes, new, strict=True)):
            missing = [axis for axis in before if axis not in kept and sizes.get(axis, 1) > 1]
            if set(after) <= set(before) and after and before[: len(after)] != after:
                better = list(value.axes)
                better[d] = after + tuple(axis for axis in before if axis not in after)
                self._ordered(equation, value, new, tuple(better))
            for axis in missing:
                loss = Loss(
                    "constraint",
                    axis,
                    self._place(equation),
                    0,
                    by_dimension(sharding.spec, rank),
                    d,
                    before,
                    _type(aval),
                    value.argument,
                )
                lost.add(loss)
                if value.is_mapped:
                    self.shown.candidates.add(loss)
                if value.product is not None and not is_backward(equation):
                    self.shown.produced.setdefault(loss, value.product)
                if after and value.argument is None and not is_backward(equation):
                    self.shown.replaced.setdefault(loss)
        is_known = value.is_known or not free
        gathered = result.gathered
        if lost and value.argument is not None:
            gathered = self._place(equation), _type(aval)
        elif lost - value.lost and not is_backward(equation):
            gathered = self._place(equation), _type(aval)
            self.shown.computed.add(gathered)
        given = frozenset(one for one in value.given if one[0] in kept)
        added = tuple(
            (self._place(equation), axis, text_of(new), text_of(_without(new, axis)))
            for axes in new
            for axis in axes
            if len(axes) > 1 and axis not in value.named and value.named & {*axes}
        )
        lost = frozenset(lost)
        # not the backward pass of one, as that of the weights which FSDP gathers
        is_written = not is_backward(equation)
        for loss in value.spread if is_written else ():
            if loss.axis in new[loss.dimension]:
                self.shown.regained.setdefault(loss, self._place(equation))
        if is_written and value.argument is None and rank > 1 and 0 not in free and new[0]:
            self.shown.leading[self._place(equation)] = new[0]
        is_computed = value.argument is None and value.scaled is None and not free and is_written
        return _Value(
            new,
            value.argument,
            lost,
            value.differs,
            is_known,
            gathered,
            given=given,
            added=added,
            moved=self._moved(equation, value, new) if is_written and not free else (),
            undecided=value.undecided & {axis for d in free for axis in new[d]},
            held=(self._place(equation), _type(aval), text_of(new), new) if is_computed else None,
            spread=lost - value.lost | value.spread & lost if is_written else frozenset(),
        )

    def _moved(self, equation, value, new):
        """The axes that a constraint moves to another dimension of a computed array."""
        old = {axis: d for d, axes in enumerate(value.axes) for axis in axes}
        found = []
        for after, axes in enumerate(new):
            for axis in axes:
                before = old.get(axis, after)
                if before == after or value.axes[before][: len(new[before])] != new[before]:
                    continue
                better = _without(new, axis)
                better[before] = value.axes[before]
                if equation.invars[0].aval.shape[before] % self._ways(better[before]):
                    continue
                kind, specs = _type(equation.invars[0].aval), (text_of(new), text_of(better))
                if len({*sum(better, ())}) == len(sum(better, ())):
                    found.append(Moved(self._place(equation), axis, before, after, kind, *specs))
        return tuple(found)

    def _mapped(self, equation, values, times, within):
        params = equation.params
        body, mesh = opened(params["jaxpr"]), params["mesh"]
        ins, outs = params.get("in_specs"), params.get("out_specs")
        ranks = [len(getattr(one.aval, "shape", ())) for one in equation.outvars]
        if ins is None or outs is None or len(ins) != len(values):
            return [_Value(((),) * rank) for rank in ranks]
        sizes = dict(mesh.shape)
        manual = params.get("manual_axes") or frozenset(sizes)
        manual = {axis: int(size) for axis, size in sizes.items() if axis in manual}
        inputs, lost = [], set()
        for number, (value, spec, variable) in enumerate(
            zip(values, ins, equation.invars, strict=True)
        ):
            rank = len(getattr(variable.aval, "shape", ()))
            named = {axis for axes in by_dimension(spec, rank, sizes) for axis in axes}
            inputs.append(_Value(((),) * rank, None, value.lost, frozenset(named)))
            argument = value.scaled if value.argument is None else value.argument
            for axis in manual.keys() - named if argument is not None else ():
                self.shown.entered_whole.setdefault((argument, axis), self._place(equation))
            for d, axes in enumerate(value.axes):
                lost |= {
                    Loss(
                        "in_specs",
                        axis,
                        self._place(equation),
                        number,
                        by_dimension(spec, rank),
                        d,
                        axes,
                        _type(variable.aval),
                        value.argument,
                    )
                    for axis in axes
                    if axis in manual and axis not in named
                }
        self.shown.dropped |= lost
        together = {axis for one in inputs for axis in one.differs}
        alike = {one for one in lost if one.axis not in together and _is_each(body, one.axis)}
        self.shown.alike |= alike
        before = Counter(self.shown.mapped)
        results = self.run(body, inputs, times, within, manual)
        for loss in lost:
            again = {
                place: flops - before[axis, place]
                for (axis, place), flops in self.shown.mapped.items()
                if axis == loss.axis and flops > before[axis, place]
            }
            if again:
                self.shown.repeated.setdefault(loss, Counter()).update(again)
        kinds = [_type(one.aval) for one in equation.outvars]
        return [
            _Value(
                by_dimension(spec, rank, sizes),
                None,
                result.lost,
                spread=frozenset(one for one in alike if one.type == kind),
                is_mapped=True,
            )
            for result, spec, rank, kind in zip(results, outs, ranks, kinds, strict=True)
        ]

    def _scan(self, equation, values, times, within, manual):
        params = equation.params
        body, length = opened(params["jaxpr"]), params["length"]
        consts, carried = parts_of_scan(equation, body)
        start, stacked = values[consts : consts + carried], values[consts + carried :]
        rows = [
            # along the dimension of the iterations nothing can be in shards
            replace(one, axes=one.axes[1:], moved=tuple(m for m in one.moved if m.before))
            for one in stacked
        ]
        carry, after_first = start, None
        shown = self.shown
        for _ in range(3):  # until what is carried stays as it is
            self.shown = Inheritance()
            results = self.run(body, [*values[:consts], *carry, *rows], 0, within, manual)
            after_first = after_first or results[:carried]
            new = [_either(one, two) for one, two in zip(carry, results[:carried], strict=True)]
            if new == carry:
                break
            carry = new
        self.shown = shown
        self._carried(start, after_first)
        results = self.run(body, [*values[:consts], *carry, *rows], times * length, within, manual)
        self.ended(results[:carried])
        stacks = [replace(one, axes=((), *one.axes), argument=None) for one in results[carried:]]
        return [*carry, *stacks]

    def _carried(self, start, results):
        """Notes what a loop carries on without an axis with which it began."""
        for first, after in zip(start, results, strict=True):
            self.shown.carried |= {
                replace(loss, dimension=d, order=axes)
                for loss in after.spread - first.lost
                if loss.axis not in after.named
                for d, axes in enumerate(first.axes)
                if loss.axis in axes
            }

    def _while(self, params, values, times, within, manual):
        tests, consts = params["cond_nconsts"], params["body_nconsts"]
        fixed, carry = values[tests : tests + consts], values[tests + consts :]
        body, after_first = opened(params["body_jaxpr"]), None
        shown = self.shown
        for _ in range(3):
            self.shown = Inheritance()
            (goes_on,) = self.run(
                opened(params["cond_jaxpr"]), [*values[:tests], *carry], 0, within, manual
            )
            inside = within | goes_on.differs
            results = self.run(body, [*fixed, *carry], 0, inside, manual)
            after_first = after_first or results
            carry = [_either(one, two) for one, two in zip(carry, results, strict=True)]
        self.shown = shown
        self._carried(values[tests + consts :], after_first)
        self.ended(self.run(body, [*fixed, *carry], times, inside, manual))
        return [replace(one, differs=one.differs | inside) for one in carry]

    def _place(self, equation):
        traceback = equation.source_info.traceback
        if id(traceback) not in self.places:
            frames = own_frames(equation)
            place = Site(*frames[0], tuple(frames[1:])) if frames else Site()
            self.places[id(traceback)] = traceback, place
        # what a jitted function of a library contains has frames in the library alone
        place = self.places[id(traceback)][1]
        return place if place.line else self.caller


class _Supposed(_Follower):
    """Follows a program in which the constraints of a line have other specs, up to what would be
    refused then.
    """

    def __init__(self, file, line, specs):
        super().__init__()
        self._line, self._specs, self.is_refused = (file, line), specs, False

    def _typed(self, aval, axes):
        return axes

    def _simple(self, equation, values, axes, is_known, *others):
        flat = [axis for one in axes or () for axis in one]
        name = equation.primitive.name
        is_free = name in _CONSTRAINTS or equation.params.get("out_sharding") is not None
        is_free |= is_backward(equation)  # whose types JAX derives from those of the forward pass
        if not is_free and any(value.named for value in values):
            self.is_refused |= not is_known or len({*flat}) < len(flat)
        if name == "dot_general" and not is_free:
            (left, right), batch = equation.params["dimension_numbers"]
            one, other = values[0].axes, values[1].axes
            self.is_refused |= any(
                one[d] and other[e] for d, e in zip(left, right, strict=True)
            ) or any(one[d] != other[e] for d, e in zip(*batch, strict=True))
        if name in _ELEMENTWISE and not is_free:
            shape = getattr(equation.outvars[0].aval, "shape", ())
            same = [value.axes for value in values if len(value.axes) == len(shape)]
            self.is_refused |= any(len({*axes} - {()}) > 1 for axes in zip(*same, strict=True))
        return super()._simple(equation, values, axes, is_known, *others)

    def _scan(self, equation, values, *others):
        results = super()._scan(equation, values, *others)
        consts, carried = parts_of_scan(equation, opened(equation.params["jaxpr"]))
        carry = values[consts : consts + carried]
        self.is_refused |= any(
            before.axes != after.axes
            for before, after in zip(carry, results, strict=False)
            if not is_backward(equation)
        )
        return results

    def _constrained(self, equation, value, result):
        new, place = super()._constrained(equation, value, result), self._place(equation)
        key = _type(equation.invars[0].aval), text_of(new.axes)
        is_here = (place.file, place.line) == self._line and key in self._specs
        return replace(new, axes=self._specs[key]) if is_here else new


def _is_each(jaxpr, axis):
    """Whether a jaxpr of a shard_map computes only element by element, and sums, some of them over
    devices, and nothing along an axis of the mesh.
    """
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        named = params.get("axes", ()), params.get("axis_name", ())
        if axis in (*named, *(one for each in named if isinstance(each, tuple) for one in each)):
            return False
        inner = called_jaxprs(equation) if name not in BRANCHING else ()
        is_known = name in {*_ELEMENTWISE, *LAYOUT, *_REDUCTIONS} - {*_SEARCHES} or any(
            name.startswith(one) for one in ("psum", "pmax", "pmin")
        )
        if not (all(_is_each(one, axis) for one in inner) if inner else is_known):
            return False
    return True


def _is_decided(value, equation, values):
    """Whether the other operand of an element-wise operation, such as what a residual is added to,
    has the axis that a value gets along two dimensions along the first of them alone: so that
    operand decides.
    """
    axis = value.contested.axis
    first = next(d for d, axes in enumerate(value.axes) if axis in axes)
    return equation.primitive.name in _ELEMENTWISE and any(
        other.is_known
        and axis not in other.undecided  # it is computed from the value itself
        and [d for d, axes in enumerate(other.axes) if axis in axes] == [first]
        for other in values
    )


def _without(entries, *without):
    """The axes of each dimension without some of them."""
    return [tuple(axis for axis in axes if axis not in without) for axes in entries]


def _explicit(aval, axes):
    """The axes of a value, by its own type where this names them."""
    sharding = getattr(aval, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return axes
    own = by_dimension(sharding.spec, len(axes), sharding.mesh.shape)
    typed = getattr(sharding.mesh, "explicit_axes", ())
    left = _without(axes, *typed)
    return tuple(mine or theirs for mine, theirs in zip(own, left, strict=True))


def _joined(results, differs):
    first, *others = results
    for other in others:
        first = _either(first, other)
    return _Value(first.axes, None, first.lost, first.differs | differs, first.is_known)


def _either(one, two):
    """A value that is either of two: the axes that both have, the losses of both."""
    axes = tuple(
        mine if mine == theirs else () for mine, theirs in zip(one.axes, two.axes, strict=True)
    )
    is_known = one.is_known and two.is_known and one.axes == two.axes
    return _Value(axes, None, one.lost | two.lost, one.differs | two.differs, is_known)


def _spreads(shape, other):
    """Whether an array of a shape is repeated, along dimensions of one element, to another one."""
    return len(shape) == len(other) and all(
        size in (1, whole) for size, whole in zip(shape, other, strict=True)
    )


def _reshaped(old, axes, new, sizes):
    """The axes after a reshape: those of a dimension that is kept, or that leads a merged or split
    one. Where an axis of some size is larger than the first of the dimensions into which one is
    split, the second has the rest of it.
    """
    result, i, j = [()] * len(new), 0, 0
    while i < len(old) and j < len(new):
        first_old, first_new, a, b = i, j, old[i], new[j]
        i, j = i + 1, j + 1
        while a != b and (i < len(old) or j < len(new)):
            if a < b and i < len(old):
                a, i = a * old[i], i + 1
            elif b < a and j < len(new):
                b, j = b * new[j], j + 1
            else:
                break
        result[first_new] = tuple(axis for axis in axes[first_old] if not axis.endswith(_REST))
        ways = math.prod(sizes.get(axis, 1) for axis in axes[first_old])
        if i - first_old == 1 < j - first_new and axes[first_old] and new[first_new] % ways:
            result[first_new + 1] = (axes[first_old][-1] + _REST,)
        if old[first_old] == 1 and i - first_old > 1:
            result[first_new] = next((axes[d] for d in range(first_old, i) if axes[d]), ())
    return tuple(result)


def _of_product(numbers, values):
    (left_contracted, right_contracted), (left_batch, right_batch) = numbers
    left, right = (value.axes for value in values[:2])
    batch = [left[d] or right[e] for d, e in zip(left_batch, right_batch, strict=True)]
    free = [a for d, a in enumerate(left) if d not in (*left_contracted, *left_batch)]
    free += [a for d, a in enumerate(right) if d not in (*right_contracted, *right_batch)]
    return tuple(batch + free)


def _looked_up(params, values, operand, shape):
    """Of a lookup: the axes of the indices, and of the dimensions that are taken whole."""
    numbers = params["dimension_numbers"]
    gone = {*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ())}
    offsets = [d for d in range(len(operand)) if d not in gone]
    axes, indices = [()] * len(shape), list(values[1].axes[:-1])
    for place, d in zip(numbers.offset_dims, offsets, strict=True):
        axes[place] = values[0].axes[d] if params["slice_sizes"][d] == operand[d] else ()
    rest = [d for d in range(len(shape)) if d not in numbers.offset_dims]
    for place, one in zip(rest, indices, strict=False):
        axes[place] = one
    return tuple(axes)


def _numbers(atom, makers):
    """The whole numbers that a vector of indices has, where the program itself names them; else
    None.
    """
    if hasattr(atom, "val"):
        return (int(atom.val),) if getattr(atom.aval, "shape", None) == () else None
    made = makers.get(atom)
    name = made.primitive.name if made is not None else ""
    is_one = name == "broadcast_in_dim" and atom.aval.shape == (1,)
    is_one |= name == "stack" and atom.aval.ndim == 1
    if not is_one and name not in ("concatenate", "convert_element_type"):
        return None
    parts = [_numbers(one, makers) for one in made.invars]
    return None if None in parts else sum(parts, ())


def _narrows(equation, gathered):
    """Whether a cast makes numbers smaller than they were when they were gathered, by their type
    then.
    """
    old, new = (jnp.dtype(one.aval.dtype) for one in (equation.invars[0], equation.outvars[0]))
    size = type_bytes(f"{gathered.partition('[')[0]}[1]")
    return jnp.issubdtype(old, jnp.floating) and new.itemsize < min(old.itemsize, size)


def _flops(equation):
    """FLOPs of a matrix product or a convolution, of the shapes that it has."""
    out = math.prod(equation.outvars[0].aval.shape)
    left, right = (atom.aval.shape for atom in equation.invars[:2])
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2 * out * math.prod(left[d] for d in contracted)
    numbers = equation.params["dimension_numbers"]
    return 2 * out * math.prod(right) // max(right[numbers.rhs_spec[0]], 1)


def _order(loss):
    return loss.place.file, loss.place.line, loss.axis, loss.dimension, loss.number


def corrected(losses: Sequence[Loss]) -> str:
    """The spec that some `Loss`es of one operand are about, with all their axes, as text."""
    entries = list(losses[0].spec)
    for loss in sorted(losses, key=lambda loss: loss.dimension):
        if any(loss.axis in axes for axes in entries):  # of several dimensions the first
            continue
        here = {*entries[loss.dimension], loss.axis}
        ordered = tuple(axis for axis in loss.order if axis in here)
        entries[loss.dimension] = (
            *(axis for axis in entries[loss.dimension] if axis not in ordered),
            *ordered,
        )
    return text_of(entries)


def text_of(entries: Sequence[Any]) -> str:
    """A spec as text, without the dimensions at its end that are whole."""
    entries = [
        None if not entry or not isinstance(entry, str | tuple) else entry for entry in entries
    ]
    entries = [e[0] if isinstance(e, tuple) and len(e) == 1 else e for e in entries]
    while entries and entries[-1] is None:
        entries.pop()
    return spec_text(PartitionSpec(*entries))


def _type(aval):
    return f"{short_dtype(str(aval.dtype))}[{','.join(map(str, aval.shape))}]"
