"""What readers copy from `context`, against attention on one device."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from contract import bound, close, contract, copied, mesh_of, reads, refusal, values
from jax.sharding import PartitionSpec as P

pytestmark = reads("context")

KINDS = ("normal", "zeros", "nan", "large")  # with infinities attention is nothing but NaN
ALONG = P(None, "context")


def operands(kind, length, heads, kv_heads, dtype, width=4):
    """Queries, keys and values; of large scores the largest decides alone."""
    drawn = "normal" if kind == "large" else kind
    shapes = (2, length, heads, width), *[(2, length, kv_heads, width)] * 2
    arrays = [values(drawn, shape, dtype, n) for n, shape in enumerate(shapes)]
    return [arrays[0] * np.asarray(1e32, dtype), *arrays[1:]] if kind == "large" else arrays


def on_one_device(q, k, v, at, group=1):
    """In float32; of a query that sees no key, zeros."""
    q, k, v = (jnp.asarray(a, "float32") for a in (q, k, v))
    k, v = (jnp.repeat(a, group, 2) for a in (k, v))
    scores = jnp.einsum("btnh,bsnh->btns", q, k) * q.shape[-1] ** -0.5
    mask = (at[:, None] >= at)[:, None]
    scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("btns,bsnh->btnh", jax.nn.softmax(scores, -1), v)


@cache
def program(attend, devices, has_gradient, check=True, **options):
    """The output, or the gradients of its squares."""
    mesh = mesh_of(devices, names=("context",))
    attend = partial(attend, **options)

    def first(*args):
        output = attend(*args)
        return output[0] if isinstance(output, tuple) else output

    sharded = jax.shard_map(
        first, mesh=mesh, in_specs=(ALONG, ALONG, ALONG, P("context")), out_specs=ALONG,
        check_vma=check,
    )  # fmt: skip
    if not has_gradient:
        return jax.jit(sharded)

    def squares(*args):
        return (sharded(*args).astype("float32") ** 2).sum()

    return jax.jit(jax.grad(squares, (0, 1, 2)))


def try_attention(attend, kind, dtype, devices, each, heads, kv_heads, order, has_gradient, **rest):
    length = devices * each
    if has_gradient and kind in ("nan", "large"):
        kind = "normal"
    if dtype == "bfloat16" and kind == "large":  # scores are rounded, so another key is the largest
        kind = "normal"
    q, k, v = operands(kind, length, heads, kv_heads, dtype)
    at = np.arange(length)
    if order == "shuffled":
        at = np.random.default_rng(length).permutation(at)
    group = heads // kv_heads
    actual = program(attend, devices, has_gradient, **rest)(q, k, v, at)
    expected = on_one_device(q, k, v, at, group)
    if has_gradient:

        def squares(q, k, v):
            return (on_one_device(q, k, v, at, group) ** 2).sum()

        expected = jax.grad(squares, (0, 1, 2))(*(jnp.asarray(a, "float32") for a in (q, k, v)))
    close(actual, expected, 3e-2 if dtype == "bfloat16" else 2e-5)


DRAWN = {
    "devices": [1, 2, 3, 8], "each": [1, 3, 4], "kind": KINDS, "dtype": ["float32", "bfloat16"],
    "order": ["in order", "shuffled"], "has_gradient": [False, True], "check": [True, False],
}  # fmt: skip


@contract(
    "context", "empty", "absorb", "finish", draws=40, quick=True,
    keys=[0, 1, 5], queries=[1, 3], heads=[2, 4], kind=KINDS, dtype=["float32", "bfloat16"],
    sees=["all", "none", "some"],
)  # fmt: skip
def test_absorb(empty, absorb, finish, keys, queries, heads, kind, dtype, sees, seed):
    """`empty`, `absorb` and `finish` take blocks of any length, in float32 or bfloat16, with as
    many heads of keys as of queries. A query that sees no key gets zeros.
    """
    kind = "normal" if kind == "large" and dtype == "bfloat16" else kind
    q, k, v = operands(kind, max(2 * keys, queries), heads, 2, dtype)
    q, k, v = q[:, :queries], k[:, : 2 * keys], v[:, : 2 * keys]
    mask = {
        "all": np.ones((queries, 2 * keys), bool),
        "none": np.zeros((queries, 2 * keys), bool),
        "some": np.random.default_rng(seed).random((queries, 2 * keys)) < 0.3,
    }[sees]
    with refusal(heads != 2, heads, 2):
        state = empty(q)
        for half in (slice(keys), slice(keys, 2 * keys)):
            if keys or heads != 2:  # no keys, nothing to absorb
                state = absorb(state, q, k[:, half], v[:, half], mask[:, half])
        scores = np.einsum("btnh,bsnh->btns", q.astype("f"), k.astype("f")) / 2
        scores = np.where(mask[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-3e38))
        total = weights.sum(-1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
        expected = np.einsum("btns,bsnh->btnh", weights, v.astype("f"))
        lost = np.isnan(q).any((1, 2, 3)) | np.isnan(k).any((1, 2, 3)) | np.isnan(v).any((1, 2, 3))
        actual = np.asarray(finish(state))
        close(actual[~lost], expected[~lost], 3e-2 if dtype == "bfloat16" else 2e-5)


@contract("context", "ring_attention", draws=20, **DRAWN)
def test_ring_attention(ring_attention, **case):
    """`ring_attention` takes shards of equal length, on any number of devices along `axis`. The
    tokens may be in any order, as long as `at` gives their positions.
    """
    try_attention(ring_attention, heads=2, kv_heads=2, **case)


@contract("context", "balanced", draws=20, **DRAWN)
def test_balanced(balanced, **case):
    """`balanced` takes the same arguments as `ring_attention`, but needs an even number of tokens
    on each device. Besides the result it returns how many pairs it has not skipped.
    """
    with refusal(case["each"] % 2, case["each"]):
        try_attention(balanced, heads=2, kv_heads=2, **case)


@contract("context", "absorb_in_chunks", draws=20, size=[0, 1, 2, 3, 64], **DRAWN)
def test_absorb_in_chunks(absorb_in_chunks, size, **case):
    """`absorb_in_chunks` takes the same arguments as `absorb`. The number of keys must be a
    multiple of `size`.
    """
    ring = copied("context", "ring_attention")
    with refusal(size == 0 or case["each"] % size, case["each"], size):
        absorb = bound(absorb_in_chunks, size=size)
        try_attention(ring, heads=2, kv_heads=2, absorb=absorb, **case)


@contract("context", "ulysses", draws=30, heads=[2, 6, 8], kv_heads=[1, 2], **DRAWN)
def test_ulysses(ulysses, heads, kv_heads, devices, **case):
    """`ulysses` takes shards of equal length. The number of devices along `axis` must divide both
    numbers of heads.
    """
    with refusal(heads % devices or kv_heads % devices, heads, kv_heads, devices):
        try_attention(ulysses, devices=devices, heads=heads, kv_heads=kv_heads, **case)
