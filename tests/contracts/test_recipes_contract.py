"""What readers copy from `recipes`, against NumPy and the gradient of the whole batch."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from contract import KINDS, bound, close, contract, reads, refusal, values
from hypothesis import strategies as st

pytestmark = reads("recipes")


@contract(
    "recipes", "pad", draws=100, quick=True,
    rows=st.integers(0, 20), other=[0, 0, 0, 1], n=[1, 2, 3, 4, 8],
    kind=KINDS, dtype=["float32", "int32", "uint8", "bool"],
)  # fmt: skip
def test_pad(pad, rows, other, n, kind, dtype):
    """`pad` takes a tree of NumPy arrays, which must all have the same number of rows, at least
    one.
    """
    with np.errstate(invalid="ignore"):
        second = values(kind, (rows + other,), "float64", 1).astype(dtype)
    batch = {"x": values(kind, (rows, 3, 2)), "y": [second]}
    with refusal(other or not rows, rows):
        padded, weights = pad(batch, n)
        for a, b in zip(jax.tree.leaves(padded), jax.tree.leaves(batch), strict=True):
            assert a.dtype == b.dtype and a.shape[1:] == b.shape[1:]
            assert len(a) == len(weights) == -(-rows // n) * n
            np.testing.assert_array_equal(a[:rows], b)
            assert not a[rows:].any()
        assert weights.dtype == "float32" and weights.tolist() == [1] * rows + [0] * (
            len(weights) - rows
        )


def mean_loss(w, batch):
    x, y = batch
    return jnp.mean((jnp.tanh(x @ w["a"]) + w["b"] - y) ** 2)


@contract(
    "recipes", "accumulated", draws=25,
    rows=[0, 1, 12, 15, 24], parts=[1, 2, 3, 4, 5], groups=[1, 2, 3],
    kind=["normal", "zeros", "tiny", "nan"], of=[None, "loss", "metrics"],
)  # fmt: skip
def test_accumulated(accumulated, rows, parts, groups, kind, of):
    """`accumulated` takes a loss that is a mean over the rows of a batch, the parameters, a batch,
    a number of parts and a number of groups; parts times groups must divide the number of rows.
    With `of=jax.value_and_grad`, `accumulated` also returns the mean loss, and with
    `of=partial(jax.value_and_grad, has_aux=True)` it returns the means of all metrics too.
    """
    w = {"a": values("normal", (3, 2), seed=1), "b": values("normal", (2,), seed=2)}
    batch = values(kind, (rows, 3)), values("normal", (rows, 2), seed=3)
    loss, derived = (with_metrics if of == "metrics" else mean_loss), WAYS[of]
    with refusal(not rows or rows % (parts * groups), rows, parts):
        options = {"of": derived} if of else {}
        given = bound(accumulated, loss=loss, parts=parts, groups=groups, **options)
        found = jitted(given)(params=w, batch=batch)
        close(found, derived(loss)(w, batch), 1e-5)


def with_metrics(params, batch):
    return mean_loss(params, batch), {"size": abs(batch[0]).sum(1).mean()}


WAYS = {
    None: jax.grad,
    "loss": jax.value_and_grad,
    "metrics": partial(jax.value_and_grad, has_aux=True),
}


@cache
def jitted(f):
    return jax.jit(f)
