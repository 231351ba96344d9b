"""What readers copy from `kernels`, against plain JAX and NumPy."""

from functools import cache, partial

import jax
import numpy as np
from contract import (
    DEVICES,
    KINDS,
    bound,
    close,
    contract,
    copied,
    mapped,
    mesh_of,
    reads,
    refusal,
    values,
)
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

pytestmark = reads("kernels")
FLOATS = {"float32": 1e-5, "bfloat16": 2e-2}


def rms(x, w=1):
    x = np.asarray(x, "float64")
    with np.errstate(invalid="ignore"):
        return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * w


@contract(
    "kernels", "norm", "norm_kernel", draws=30,
    rows=[0, 1, 7, 8, 13], columns=[1, 5], kind=KINDS, dtype=[*FLOATS, "int32"],
)  # fmt: skip
def test_norm(norm, rows, columns, kind, dtype):
    """`norm` takes a matrix of floats with any number of rows. It refuses an empty matrix, and any
    array that is not a matrix of floats.
    """
    is_float = dtype in FLOATS
    x = values(kind if is_float else "ones", (rows, columns), dtype)
    with refusal(not is_float or not x.size, dtype, rows, columns):
        close(norm(x), rms(x), FLOATS.get(dtype))


@contract(
    "kernels", "fused_norm", draws=30,
    devices=DEVICES, rows=[1, 5, 8], kind=KINDS, dtype=FLOATS, jitted=[True, False],
    layout=["rows", "columns", "replicated"], types=["Auto", "Explicit"],
)  # fmt: skip
def test_fused_norm(fused_norm, devices, rows, kind, dtype, jitted, layout, types):
    """`fused_norm` takes a matrix of floats. On explicit axes, the matrix's rows may be sharded in
    any way, and `fused_norm` refuses sharded columns.
    """
    spec = {"rows": P("x", None), "columns": P(None, "x"), "replicated": P(None, None)}[layout]
    mesh = mesh_of(devices, types=AxisType[types])
    X = values(kind, (rows * (devices if layout == "rows" else 1), 3 * devices), dtype)
    x = jax.device_put(X, NamedSharding(mesh, spec))
    with refusal(types == "Explicit" and layout == "columns"):
        close((jax.jit(fused_norm) if jitted else fused_norm)(x), rms(X), FLOATS[dtype])


def attention(q, k, v):
    q, k, v = (np.asarray(a, "float64") for a in (q, k, v))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        scores = np.einsum("htd,hsd->hts", q, k) * q.shape[-1] ** -0.5
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = weights.sum(-1, keepdims=True)
        lse = np.log(total) + np.where(np.isfinite(top), top, 0)
        return np.einsum("hts,hsd->htd", np.exp(scores - lse), v), lse


# Without infinities, whose place in the order of sums decides between infinity and NaN.
FINITE = [kind for kind in KINDS if kind != "inf"]


@contract(
    "kernels", "forward", draws=25,
    queries=[1, 6, 16, 48], keys=[0, 1, 7, 40], size=[8, 32], groups=[1, 2], kind=FINITE,
    dtype=FLOATS,
)  # fmt: skip
def test_forward(forward, queries, keys, size, groups, kind, dtype):
    """`forward` takes queries, keys and values of any float type, with any number of tokens. There
    must be as many values as keys. The keys must have as many heads as the queries, and the same
    width. `forward` refuses anything else.
    """
    q = values(kind, (2, queries, 4), dtype)
    k, v = (values(kind, (2 // groups, keys, 4), dtype, seed) for seed in (1, 2))
    with refusal(not keys or groups > 1, queries, keys):
        close(forward(q, k, v, size=size), attention(q, k, v), FLOATS[dtype])


def loss(attend, q, k, v):
    out, lse = attend(q, k, v)
    return (out.astype("float32") ** 2).sum() + jax.numpy.sin(lse).sum()


def plain(q, k, v):
    scores = jax.numpy.einsum("htd,hsd->hts", q, k) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores, -1)
    lse = jax.nn.logsumexp(scores, -1, keepdims=True)
    return jax.numpy.einsum("hts,hsd->htd", weights, v), lse


@cache
def gradient(attend):
    return jax.jit(jax.grad(partial(loss, attend), (0, 1, 2)))


@contract(
    "kernels", "flash", "flash_forward", "flash_backward", draws=12,
    queries=[1, 6, 40], keys=[1, 7, 40], kind=["normal", "zeros", "ones", "tiny"], dtype=FLOATS,
)  # fmt: skip
def test_flash(flash, queries, keys, kind, dtype):
    """`flash` is `forward` with a gradient. It accepts and refuses the same queries, keys and
    values.
    """
    q = values(kind, (2, queries, 4), dtype)
    k, v = (values(kind, (2, keys, 4), dtype, seed) for seed in (1, 2))
    exact = gradient(plain)(*(a.astype("float32") for a in (q, k, v)))
    for own, a, expected in zip(gradient(flash)(q, k, v), (q, k, v), exact, strict=True):
        assert own.dtype == a.dtype
        scale = max(abs(np.asarray(e)).max() for e in exact)
        off = abs(np.asarray(own, "float32") - expected).max()
        assert off <= 3 * FLOATS[dtype] * scale


@contract(
    "kernels", "flash_ring", "join", draws=16,
    devices=DEVICES, tokens=[1, 6, 48], kind=FINITE, dtype=FLOATS, axis=["x", "y"],
)  # fmt: skip
def test_flash_ring(flash_ring, devices, tokens, kind, dtype, axis):
    """`flash_ring` takes the arguments of `flash`, but with the tokens sharded over one mesh axis,
    on any number of devices. It returns float32, and every query attends to every key.
    """
    qkv = [values(kind, (2, devices * tokens, 4), dtype, seed) for seed in range(3)]
    spec = P(None, axis)
    ring = mapped(
        bound(flash_ring, axis=axis), mesh_of(devices, names=axis), spec, spec, check_vma=False
    )
    out, lse = ring(*qkv)
    assert out.dtype == lse.dtype == "float32"
    close((out, lse), attention(*qkv), FLOATS[dtype])


def on_chip(x):
    """A kernel's call as on a chip, with a declared type."""
    from jax.experimental import pallas as pl

    def double(x_ref, y_ref):
        y_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(double, out_shape=copied("kernels", "varying")(x.shape, x.dtype, {"x"}))(
        x
    )


@contract("kernels", "varying", draws=10, devices=DEVICES, dtype=FLOATS)
def test_varying(varying, devices, dtype):
    """`varying` takes the shape and type of a kernel's result and the mesh axes over which the
    result varies. It passes these axes under the name that the installed JAX expects.
    """
    assert varying((8, 128), dtype, {"x"}).dtype == dtype
    f = mapped(on_chip, mesh_of(devices), P("x"), P("x"))
    lowered = f.trace(np.ones((8 * devices, 128), dtype)).lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()


@cache
def squares(f, mesh):
    g = jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False)
    return jax.jit(jax.grad(lambda x, w: (g(x, w) ** 2).sum(), (0, 1)))


def square(x, w):
    scale = jax.lax.rsqrt((x * x).mean(1, keepdims=True) + 1e-6)
    return ((x * scale * w) ** 2).sum()


@contract(
    "kernels", "scaled", "scaled_forward", "scaled_backward", draws=16,
    devices=DEVICES, rows=[1, 5, 8], kind=["normal", "zeros", "ones", "tiny", "nan"],
    weights=[3, 4],
)  # fmt: skip
def test_scaled(scaled, devices, rows, kind, weights):
    """`scaled` takes a matrix that `norm` accepts, in float32, and one weight for each column."""
    x, w = values(kind, (devices * rows, 4)), values("normal", (weights,), seed=1)
    with refusal(weights != 4, 4, weights):
        own = squares(scaled, mesh_of(devices))(x, w)
        close(own, jax.grad(square, (0, 1))(x, w), 1e-4)


def hashed(n):
    """The finaliser of MurmurHash3, in Python's integers."""
    n = (n ^ (n >> 16)) * 0x85EBCA6B % 2**32
    n = (n ^ (n >> 13)) * 0xC2B2AE35 % 2**32
    return n ^ (n >> 16)


@contract(
    "kernels", "dropout", "keep", "mix", "dropout_kernel", draws=25,
    rows=[0, 1, 5, 8], columns=[1, 3, 16], start=[(0, 0), (3, 2), (10**6, 5)],
    key=[0, 1, 7, 8, 2**32 - 1, -1], kind=KINDS, dtype=[*FLOATS, "int32"],
)  # fmt: skip
def test_dropout(dropout, keep, rows, columns, start, key, kind, dtype):
    """`dropout` takes a shard of a matrix, of any type, and a seed from 0 to 2³² - 1. The whole
    matrix must have fewer than 2³² elements, and `dropout` refuses an empty shard.
    """
    x = values("ones" if dtype == "int32" else kind, (rows, columns), dtype)
    width = start[1] + columns
    with refusal(key < 0, key), refusal(not rows, rows, columns):
        y = np.asarray(dropout(x, *start, width, seed=key))
        places = [
            [(start[0] + i) * width + start[1] + j for j in range(columns)] for i in range(rows)
        ]
        kept = [[hashed(hashed(p) ^ hashed(key)) < 2**31 for p in row] for row in places]
        close(y, np.where(kept, 2 * x, 0), 1e-6)
    if key >= 0:
        near = np.arange(4096, dtype="uint32")
        one, other = keep(near, key), keep(near, (key + 1) % 2**32)
        for by in (-1, 0, 1):
            assert abs((np.roll(one, by) == other).mean() - 0.5) < 0.06
