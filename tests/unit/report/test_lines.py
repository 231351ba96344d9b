"""`explain` names the line that needs an array whole, not the line that made it: an operation on a line of its own."""

import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import explain

MESH = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))


def struct(shape, *spec, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, P(*spec)))


# What each program does with h, whose 512 rows are sharded, on the third of four lines; and a word of the cause.
OPERATIONS = {
    "with_sharding_constraint": ("lax.with_sharding_constraint(h, NamedSharding(MESH, P()))", "asked for"),
    "cumsum": ("jnp.cumsum(h, 0)", "cumsum"),
    "cumprod of a product": ("jnp.cumprod(1 + h * 1e-3, 0)", "cumprod"),
    "scan": ("lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(256), h)[1]", "a loop"),
    "map": ("lax.map(lambda r: jnp.tanh(r) * r.sum(), h)", "a loop"),
    "flip": ("jnp.flip(h, 0)", "reversed"),
    "dynamic_slice": ("lax.dynamic_slice_in_dim(h, i, 100)", "a slice"),
    "sort": ("jnp.sort(h, 0)", ""),
    "argsort": ("jnp.argsort(h, 0)", ""),
    "nonzero": ("jnp.nonzero(h > 0, size=64)[0]", ""),
    "top_k": ("lax.top_k(h.T, 5)[0]", ""),
    "callback": (
        "jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(h.shape, h.dtype), h, vmap_method='broadcast_all')",
        "a callback",
    ),
    "segment_sum": ("jax.ops.segment_sum(h, jnp.arange(512) // 3, 200)", ""),
    "roll": ("jnp.roll(h, 3, 0)", ""),
    "concatenate": ("jnp.concatenate([h, h[:8]])", ""),
    "fft": ("jnp.abs(jnp.fft.fft(h, axis=0))", "a Fourier transform"),
    "qr": ("jnp.linalg.qr(h)[0]", "no distributed"),
    "inv": ("jnp.linalg.inv(h[:256])", ""),
    "median": ("jnp.median(h, 0)", ""),
    "take": ("h[j]", ""),
    "product with itself": ("h @ h.T", ""),
    "loop of cumsums": ("lax.fori_loop(0, 3, lambda k, a: jnp.cumsum(a, 0) * 1e-3, h)", ""),
}


def program(operation, folder):
    """A function whose third line alone is the culprit, in a file of its own."""
    source = f"def f(x, w, i, j):\n    h = jnp.tanh(x @ w)\n    y = {operation}\n    return jnp.exp(y) * 2\n"
    file = folder / "program.py"
    file.write_text(source)
    linecache.checkcache()
    names = {"jax": jax, "jnp": jnp, "np": np, "lax": lax, "NamedSharding": NamedSharding, "P": P, "MESH": MESH}
    exec(compile(source, str(file), "exec"), names)
    return names["f"]


ARGUMENTS = (
    struct((512, 256), "d"), struct((256, 256)), struct((), dtype="int32"), struct((512,), dtype="int32"),
)  # fmt: skip


@pytest.mark.parametrize(("operation", "word"), OPERATIONS.values(), ids=OPERATIONS)
def test_the_line_that_needs_an_array_whole_is_named(operation, word, tmp_path):
    moves = explain(program(operation, tmp_path), *ARGUMENTS).moves
    assert moves and {move.line for move in moves} == {3}
    assert any(word in move.cause for move in moves), [move.cause for move in moves]
    assert not any("clash" in move.cause or "on purpose" in move.cause for move in moves)
