"""What causes a collective: what the program says, and what it does not say is called not known."""

import re
from collections.abc import Collection, Sequence

import jax

from shardlab._arguments import source_line
from shardlab.costs.communication.kinds import KINDS, OPERATIONS
from shardlab.programs.collectives import Collective
from shardlab.programs.hlo import dimensions
from shardlab.programs.origins import CALLBACKS, Origin, is_in_backward

__all__ = [
    "ASKED_FOR", "AT_INDICES", "FROM_ONE_TO_OTHER", "GOES_ALONG", "HALO", "MEMBERS_CALLED",
    "OF_ROWS", "SAME", "cause", "is_agreed", "is_expected", "is_manual", "members_called",
]  # fmt: skip

SAME = "every device computes the same"
FROM_ONE_TO_OTHER = "the shards go from one dimension of the array to another"
AT_INDICES = "an update at computed indices"
MEMBERS_CALLED = "vmap calls the host for each of its members"
OF_ROWS = " of rows in shards, which XLA gathers"
HALO = "a halo"
ASKED_FOR = "asked for: a sharding constraint or a reshard"

_RESHARDS = ("sharding_constraint", "reshard", "device_put", "with_sharding_constraint")
# A function of jnp.linalg in the name of an operation, or else what it calls.
_FACTORISATIONS = (
    r"\bjit\((cholesky|det|eigh?|eigvalsh?|eigvals|inv|lstsq|lu|pinv|qr|slogdet|solve|svd)\)"
    r"|\b(cholesky|eigh?|geqrf|householder_product|lu|svd|triangular_solve)\b"
)
_ALONG = r"\b(cum\w+|sort|argsort|top_k|reduce_window\w*|approx_top_k)\b"
GOES_ALONG = "goes along the whole dimension, which is sharded"
_RANDOM = r"\b(jit\(_?(bernoulli|bits|gumbel|normal|randint|uniform)\)|random_bits|threefry2x32)"
_SHIFTS = {
    "concatenate": "a concatenation", "conv_general_dilated": "the window of a convolution",
    "pad": "padding",
    "reduce_window": "a window", "rev": "an array is reversed", "slice": "a slice",
    "split": "a split",
}  # fmt: skip
_EXPECTED = (
    "a gradient:",
    HALO,
    "a sum that is written",
    "a sum, mean or maximum",
    "added by the backward pass of a shard_map:",
    "the backward pass of a collective in a shard_map",
    "the contracting dimension",
    "written in a shard_map",
)
_MASKED = ("concatenate", "dynamic_slice", "pad", "rev", "slice", "split")
_PRODUCTS = ("dot_general", "conv_general_dilated")
_OF_TWO = (
    "add",
    "atan2",
    "div",
    "eq",
    "ge",
    "gt",
    "le",
    "lt",
    "max",
    "min",
    "mul",
    "ne",
    "pow",
    "rem",
    "select_n",
    "sub",
)


def cause(
    move: Collective,
    origin: Origin,
    is_checked: bool = True,
    is_pmap: bool = False,
    weights: Collection[str] | None = None,
    is_contiguous: bool = False,
    is_halo: bool = False,
) -> str:
    """What causes a collective, in words.

    Args:
      move: its `shardlab.Collective`.
      origin: its `shardlab.programs.origins.Origin`.
      is_checked: whether the program has no `jax.shard_map` with `check_vma=False`.
      is_pmap: whether `jax.pmap` compiles the program: then the function has all its collectives.
      weights: the arguments that meet, in a product, a batch in shards along an axis of theirs;
        None if unknown.
      is_contiguous: whether the reshapes of its line, if any, keep shards contiguous.
      is_halo: whether what each device sends is a small part of its shard.
    """
    if is_pmap and KINDS[move.kind].adds:
        several = ", or several that the compiler has joined" if len(move.operands) > 1 else ""
        backward = ", or the backward pass of one" if origin.phase == "backward" else ""
        return f"a sum that is written in the function which pmap maps{several}{backward}"
    if origin.operation in OPERATIONS:
        return _by_hand(move, origin, is_checked)
    # a sum that a callback gets is a sum as any other
    is_handed = KINDS[move.kind].adds and origin.operation.startswith(("reduce", "dot_general"))
    if not (is_handed and origin.use in CALLBACKS) and (reason := _of_what_is_special(origin)):
        return reason
    if move.kind == "all-gather" and origin.use == "result":
        return (
            "a result that is stored whole: by out_shardings, or because the devices do not "
            "divide it"
        )
    if move.kind == "all-gather":
        return _along(origin, is_contiguous, _is_of_last(move)) or _of_a_gather(origin, weights)
    if KINDS[move.kind].adds:
        if is_agreed(move.operands, origin):
            return "a while_loop under vmap: devices agree whether one of them has to go on"
        return _of_a_sum(origin)
    if move.kind == "all-to-all":
        return _of_an_exchange(origin)
    if move.kind == "collective-permute":
        for operation in (origin.operation, origin.use):
            if operation in _SHIFTS and is_halo:
                return (
                    f"{HALO}, for {_SHIFTS[operation]} along a dimension that is sharded: a few "
                    "rows of each shard go to other devices"
                )
            if operation in _SHIFTS:
                return (
                    f"{_SHIFTS[operation]} along a dimension that is sharded: rows go to other "
                    "devices"
                )
        return f"shards go to other devices; {_not_known(origin)}"
    return ""


def members_called(members: int) -> str:
    """What causes the communication of a callback under `jax.vmap`, in words.

    Args:
      members: how many calls vmap makes of the callback; 0 if they are in a loop.
    """
    often = f"{members} times" if members else "in a loop"
    return f"{MEMBERS_CALLED}, {often}: the values of each go to the one device that calls"


def is_agreed(operands: Sequence[str], origin: Origin) -> bool:
    """Whether a collective tells the devices of a `while_loop` under `jax.vmap` whether one of them
    has to go on.

    Args:
      operands: the types of its operands.
      origin: where it comes from.
    """
    in_vmap = re.search(r"vmap\([^/]*\)/(.*/)?while(/cond\b.*)?$", origin.stack) is not None
    return in_vmap and bool(operands) and {*operands} <= {"pred[]", "u32[]", "s32[]"}


def is_manual(words: str) -> bool:
    """Whether a cause is that of a collective which stands in a shard_map.

    Args:
      words: of `cause`.
    """
    return words.startswith(("written in a shard_map", "the backward pass of a collective in"))


def is_expected(words: str) -> bool:
    """Whether a cause is one of those that most correct programs have: sums of parts, parameters
    that FSDP gathers, and what stands in a shard_map.

    Args:
      words: of `cause`.
    """
    return words.startswith(_EXPECTED) or words.endswith("on purpose)")


def _by_hand(move, origin, is_checked):
    if origin.phase != "backward":
        return "written in a shard_map"
    if move.kind != "all-reduce":
        return "the backward pass of a collective in a shard_map"
    if not is_checked:
        return (
            "added by the backward pass of a shard_map with check_vma=False, even where "
            "devices have equal gradients already; with check_vma=True JAX adds only what is "
            "needed"
        )
    return (
        "added by the backward pass of a shard_map: each device has a part of the gradient of "
        "what they share"
    )


def _of_what_is_special(origin):
    operations = {origin.operation, origin.use}
    if origin.operation in _RESHARDS:
        return ASKED_FOR
    if operations & CALLBACKS:
        return (
            "a callback runs on one device: it gets the whole array, and its result goes to all "
            "devices"
        )
    if "ffi_call" in operations:
        return f"XLA does not split a call into foreign code: {SAME}"
    if not jax.config.jax_threefry_partitionable and re.search(
        _RANDOM, origin.stack.partition("/")[2]
    ):
        return (
            "random numbers, which JAX does not draw in shards while jax_threefry_partitionable "
            "is False"
        )
    return ""


def _of_a_sum(origin):
    if origin.operation in _MASKED:
        what = _SHIFTS.get(origin.operation, "a slice")
        return (
            f"{what} along a dimension that is sharded: the rows of one device go to all, as a sum "
            "in which the others have zeros"
        )
    if origin.phase == "backward" and origin.results:
        return "a gradient: devices with other data add theirs (data parallelism)"
    if origin.operation == "dot_general":
        return "the contracting dimension is sharded: partial sums are added"
    if "gather" in (origin.operation, origin.use):
        return (
            "a computed index into a sharded dimension: each device looks up what it has, and "
            "they add"
        )
    return "a sum, mean or maximum over a sharded dimension"


def _of_an_exchange(origin):
    if origin.operation == "concatenate":
        what = (
            "the gradient of a split along a dimension that is sharded"
            if is_in_backward(origin.stack)
            else "a concatenation along a sharded dimension"
        )
        return f"{what}: its rows belong to other devices than before"
    for operation in (origin.operation, origin.use):
        if operation in ("approx_top_k", "sort", "top_k"):
            return f"{operation} {GOES_ALONG}"
    return FROM_ONE_TO_OTHER


def _is_of_last(move):
    """Whether an all-gather is along the last dimension of what it gathers, as far as is known."""
    before, after = (list(map(dimensions, types)) for types in (move.operands, move.results))
    return any(
        len(one) == len(whole) and one[:-1] == whole[:-1]
        for one, whole in zip(before, after, strict=False)
    )


def _along(origin, is_contiguous, is_last):
    """Operations that need a whole dimension, whatever they are given."""
    operations = (origin.operation, origin.use)
    inside = origin.stack.partition("/")[2]  # without the function's own name
    if factored := re.search(_FACTORISATIONS, inside):
        return f"XLA has no distributed {factored[1] or factored[2]}: {SAME}"
    if re.search(r"\bfft\b", inside):
        return f"a Fourier transform needs the whole dimension: {SAME}"
    if any(operation.startswith("scatter") for operation in operations):
        return (
            "an update at computed indices (.at[].set): any device may have to write; vmap "
            "lax.dynamic_update_slice over the sharded dimension"
        )
    if "gather" in operations:
        return "a computed index into a sharded dimension: any device may need any of it"
    # newer programs do not name the former
    is_reshape = "reshape" in operations and not is_contiguous
    if is_reshape or "vdot(" in source_line(origin.file, origin.line):
        return "a reshape (as in ravel and vdot) that does not keep the shards contiguous"
    if along := re.search(_ALONG, f"{inside} {origin.use}"):
        if origin.maker == along[1]:  # TPUs' compiler takes the largest of each shard first
            return "candidates that each device has found in its own shard are compared"
        if "top_k" in along[1] and not is_last:
            return f"{along[1]}{OF_ROWS}: each device searches all of them"
        return f"{along[1]} {GOES_ALONG}"
    if origin.operation in ("argmax", "argmin", "reduce"):
        return (
            "a maximum and its index over a sharded dimension: the devices' candidates are compared"
        )
    if "roll" in inside:
        return (
            "jnp.roll by a computed number, along a dimension that is sharded: any device may "
            "have its rows"
        )
    if origin.is_loop:
        return (
            "a loop (scan, map) goes along the dimension that is sharded, so every device "
            "needs all of it: shard another dimension, or use vmap"
        )
    if "slice" in origin.operation:
        return "a slice along a dimension that is sharded: any device may have its rows"
    return ""


def _of_a_gather(origin, weights):
    if origin.argument and origin.phase == "update":
        return (
            "the update needs whole what is stored in shards: optimiser and parameters have other "
            "specs"
        )
    if origin.operation == "conv_general_dilated" and origin.is_grouped:
        return f"a convolution in groups, for which XLA gathers this operand: {SAME}"
    # the heads of attention are merged by a reshape before a product that needs all of them
    is_product = origin.operation in _PRODUCTS or (
        origin.use in _PRODUCTS and (origin.argument or origin.operation == "reshape")
    )
    if is_product:
        if origin.argument:
            on_purpose = weights is None or origin.argument in weights
            return "an argument that is sharded along a dimension that this product needs whole" + (
                " (FSDP gathers parameters so on purpose)" if on_purpose else ""
            )
        return "a product needs this operand whole along a dimension that is sharded"
    if origin.argument:
        return (
            "an argument that is sharded along a dimension that this line needs whole; "
            f"{_not_known(origin)}"
        )
    if origin.operation in _OF_TWO:
        return "two arrays with specs that clash: one of them is gathered"
    return _not_known(origin)


def _not_known(origin):
    return f"cause not known; used by {origin.use}" if origin.use else "cause not known"
