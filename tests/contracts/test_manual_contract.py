"""What readers copy from `manual`, against one device."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from contract import close, contract, mesh_of, reads, refusal, values
from jax.sharding import PartitionSpec as P

pytestmark = reads("manual")


def loss(parameters, x, y):
    return (jnp.tanh(x @ parameters["W"] + parameters["b"]) * y).mean()


@cache
def of_shards(mean_gradient, sizes, axes, data, sharded, check_vma):
    """The mean gradient, of parameters of which b is sharded or not."""
    where = {"W": P(), "b": P("x") if sharded else P()}
    mean = mean_gradient(loss, axes)

    def program(parameters, x, y):
        value, gradient = mean(parameters, x, y)
        return value, gradient

    return jax.jit(jax.shard_map(
        program, mesh=mesh_of(*sizes), in_specs=(where, P(data), P(data)), out_specs=P(),
        check_vma=check_vma,
    ))  # fmt: skip


@contract(
    "manual", "varies", "mean_gradient", draws=40,
    sizes=[(1,), (2,), (3,), (8,), (2, 3)], all_axes=[True, True, True, False],
    sharded=[False, False, False, True], rows=[1, 3],
    kind=["normal", "zeros", "tiny", "nan"], dtype=["float32", "bfloat16"],
    check_vma=[True, False],
)  # fmt: skip
def test_mean_gradient(mean_gradient, sizes, all_axes, sharded, rows, kind, dtype, check_vma):
    """`mean_gradient` takes a loss, its mesh axis or axes, and parameters that all devices share.
    It works with `check_vma` on or off. If `check_vma` is on, it refuses a sharded parameter, and a
    loss that varies along another axis.
    """
    count, names = int(np.prod(sizes)), tuple("xy"[: len(sizes)])
    axes = names if all_axes else "x"
    forgotten = axes == "x" and len(sizes) > 1
    if (sharded or forgotten) and not check_vma:
        return  # not to be noticed without types, as the page says
    x, y = values(kind, (count * rows, 6), dtype), values("normal", (count * rows, 5), dtype, 1)
    parameters = {"W": values("normal", (6, 5), dtype, 2), "b": values("normal", (5,), dtype, 3)}
    if sharded:
        parameters["b"] = values("normal", (5 * sizes[0],), dtype, 3)
    named = ["x"] if sharded else ["y"] if forgotten else []
    with refusal(sharded or forgotten, *named):
        run = of_shards(mean_gradient, sizes, axes, names, sharded, check_vma)
        value, gradient = run(parameters, x, y)
        wide = jax.tree.map(lambda a: np.asarray(a, "float32"), (parameters, x, y))
        right = jax.value_and_grad(loss)(*wide)
        # relative to the terms of the mean, which may cancel
        terms = np.abs(wide[2]).mean() * max(1, np.nanmax(np.abs(wide[1])))
        for one, other in zip(
            jax.tree.leaves((value, gradient)), jax.tree.leaves(right), strict=True
        ):
            assert one.dtype == dtype
            largest = np.abs(np.asarray(other)).max()
            share = terms / largest if np.isfinite(largest) and largest else 1
            close(one, other, (3e-2 if dtype == "bfloat16" else 1e-5) * max(1, share))
