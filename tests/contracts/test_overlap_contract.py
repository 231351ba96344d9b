"""What readers copy from `overlap`, against a loop over the layers on one device."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from contract import DEVICES, close, contract, mesh_of, reads, refusal, values
from jax import lax
from jax.sharding import PartitionSpec as P

pytestmark = reads("overlap")

SPECS = {"w": P(None, "x"), "b": P(None, "x")}
WAYS = {
    "devices": DEVICES, "layers": [0, 1, 2, 3, 5], "other": [0, 0, 0, 1], "pairs": [True, False],
    "kind": ["normal", "zeros", "tiny", "nan"], "dtype": ["float32", "bfloat16"],
    "check_vma": [True, False],
}  # fmt: skip


def gather(shards):
    return jax.tree.map(lambda p: lax.all_gather(p, "x", tiled=True), shards)


def run(x, layer):
    """A layer, of an array or of a pair of arrays."""
    return jax.tree.map(lambda a: jnp.tanh(a @ layer["w"]) + a * layer["b"], x)


def plain(layers, x):
    for n in range(len(layers["w"])):
        x = run(x, jax.tree.map(lambda p: p[n], layers))  # noqa: B023
    return x


@cache
def gradients(make, devices, check_vma):
    """The results, and the gradients of their sum over all devices."""

    def of_shards(layers, x):
        stack = make(run, gather)

        def total(layers, x):
            y = stack(layers, x)
            return sum(a.astype("float32").sum() for a in jax.tree.leaves(y)), y

        return jax.grad(total, (0, 1), has_aux=True, allow_int=True)(layers, x)

    outs = ((SPECS, P("x")), P("x"))
    return jax.jit(jax.shard_map(
        of_shards, mesh=mesh_of(devices), in_specs=(SPECS, P("x")), out_specs=outs,
        check_vma=check_vma,
    ))  # fmt: skip


@jax.jit
def on_one(layers, x):
    def total(layers, x):
        y = plain(layers, x)
        return sum(a.sum() for a in jax.tree.leaves(y)), y

    return jax.grad(total, (0, 1), has_aux=True)(layers, x)


def is_right(make, devices, layers, other, pairs, kind, dtype, check_vma, integer=False):
    w = 0.4 * values("normal", (layers, 24, 24), dtype, 1).astype("float32")
    stacked = {"w": w.astype(dtype), "b": values("normal", (layers + other, 24), dtype, 2)}
    if integer:
        stacked["b"] = stacked["b"].astype("int32")
    x = values(kind, (devices * 2, 24), dtype)
    x = (x, values("normal", (devices, 24), dtype, 3)) if pairs else x
    named = ["int32"] if integer else [layers]
    with refusal(not layers or other or integer, *named):
        found = gradients(make, devices, check_vma)(stacked, x)
        wide = jax.tree.map(lambda a: np.asarray(a, "float32"), (stacked, x))
        close(found, on_one(*wide), 6e-2 if dtype == "bfloat16" else 2e-5)


@contract("overlap", "in_carry", "run_ahead", "take", "number_of", draws=15, **WAYS)
def test_in_carry(in_carry, devices, layers, other, pairs, kind, dtype, check_vma):
    """`in_carry` takes the function that a layer computes and the function that gathers a layer.
    The stack that it returns takes the layers, at least one, as a tree of arrays that all stack the
    same number of layers.
    """
    is_right(in_carry, devices, layers, other, pairs, kind, dtype, check_vma)


@contract("overlap", "in_both_passes", draws=20, integer=[False, False, True], **WAYS)
def test_in_both_passes(
    in_both_passes, devices, layers, other, pairs, kind, dtype, check_vma, integer
):
    """`in_both_passes` takes the same arguments as `in_carry`. The layers must be arrays of floats,
    `gather` must be linear, because we transpose it, and `run` may use only its arguments and
    constants.
    """
    is_right(in_both_passes, devices, layers, other, pairs, kind, dtype, check_vma, integer)
