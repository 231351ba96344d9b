"""explain() on steps whose bfloat16 has become float32 again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import grid, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

MESH = grid((8,), ("data",))
WEIGHTS = {
    "embed": struct(MESH, (512, 256)),
    "up": struct(MESH, (4, 256, 512)),
    "down": struct(MESH, (4, 512, 256)),
    "head": struct(MESH, (256, 512)),
}
TOKENS = struct(MESH, (64, 16), "data", dtype="int32")
TABLE = np.linspace(0, 1, 256, dtype="float32")


def rms(h):
    wide = h.astype("float32")
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True))).astype(h.dtype)


def block(h, w):
    return h + jnp.tanh(rms(h) @ w["up"]) @ w["down"], None


def step(scale=lambda h: h, dtype="bfloat16", head=lambda h, w: h @ w["head"].astype(h.dtype)):
    def loss(w, tokens):
        low = jax.tree.map(lambda a: a.astype(dtype), w)
        layers = {name: low[name] for name in ("up", "down")}
        h, _ = jax.lax.scan(jax.checkpoint(block), scale(low["embed"][tokens]), layers)
        return jax.nn.logsumexp(head(h, w).astype("float32"), -1).mean()

    return jax.grad(loss)


def told(f):
    found = explain(f, WEIGHTS, TOKENS).findings
    return [one.says for one in found if one.title == "float32 products"]


@pytest.mark.parametrize("scale", [lambda h: h * np.sqrt(256), lambda h: h + TABLE])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_float32_number_that_makes_all_products_float32_is_told_with_its_line(scale, dtype):
    (says,) = told(step(scale, dtype))
    line = scale.__code__.co_firstlineno
    assert f"the weights were cast to {dtype}" in says
    assert f"float32 since test_promoted.py:{line}" in says
    assert says.startswith(
        f"test_promoted.py:{block.__code__.co_firstlineno + 1}: 95% of"
    )  # all but those of the head


CORRECT = {
    "a Python number": step(lambda h: h * 16.0),
    "a table that is cast": step(lambda h: h + TABLE.astype(h.dtype)),
    "all in float32": step(lambda h: h * np.sqrt(256), dtype="float32"),
    "logits": step(head=lambda h, w: h.astype("float32") @ w["head"]),
    "a router": step(head=lambda h, w: h @ jnp.asarray(w["head"], "bfloat16").astype("float32")),
}


@pytest.mark.parametrize("name", CORRECT)
def test_what_is_float32_on_purpose_is_not_told(name):
    assert told(CORRECT[name]) == []
