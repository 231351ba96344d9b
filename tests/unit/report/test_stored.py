"""explain() on results that are whole: what gathers them, and the spec that they could have."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, line, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

MESH = grid((2, 4), ("data", "model"))
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])


def on(*spec):
    return NamedSharding(MESH, P(*spec))


def put(x, *spec):
    return lax.with_sharding_constraint(x, on(*spec))


def told(report, title):
    return [one for one in report.findings if one.title == title]


# --- A constraint before a cast -------------------------------------------------------------------


def quantised(x):
    x = put(jnp.tanh(x))  # here
    return (jnp.clip(x * 0.5 + 0.5, 0, 1) * 255).astype("uint8")


def in_halves(x):
    """Under vmap and in a checkpoint."""
    x = put(jnp.tanh(x))  # here
    return jax.vmap(jax.checkpoint(lambda row: jnp.sin(row).astype("bfloat16")))(x)


def in_a_loop(x):
    def body(_, x):
        h = lax.with_sharding_constraint(jnp.tanh(x), on())  # here
        return None, h.astype("bfloat16")

    return lax.scan(body, None, x)[1]


def cast_first(x):
    x = (jnp.tanh(x) * 255).astype("uint8")
    return put(x)


def used_as_it_is(x):
    x = put(jnp.tanh(x))
    return x.astype("bfloat16"), jnp.cumsum(x, 0)


def returned_as_it_is(x):
    x = put(jnp.tanh(x))
    return x.astype("bfloat16"), x


def widened_and_back(x):
    x = put(jnp.tanh(x).astype("bfloat16"))
    return jnp.sin(x.astype("float32")).astype("bfloat16")


@BOTH
@pytest.mark.parametrize("shape", [(16, 8192), (16, 1024, 8)])
@pytest.mark.parametrize(
    "f",
    [
        quantised,
        in_halves,
        in_a_loop,
        cast_first,
        used_as_it_is,
        returned_as_it_is,
        widened_and_back,
    ],
)
def test_a_constraint_before_a_cast_stands_better_after_it(f, shape, backend):
    f_whole = jax.jit(f, out_shardings=on())
    report = explain(f_whole, struct(MESH, shape, None, "model"), mesh=pod_of(backend))
    found = told(report, "gathered before a cast")
    is_wrong = f in (quantised, in_halves, in_a_loop)
    if backend != "cpu" and not found:  # its compiler casts the shards itself
        assert (
            not any("f32" in kind for move in report.moves for kind in move.types) or not is_wrong
        )
        return
    assert bool(found) == is_wrong, report
    for one in found:
        assert line(f, "# here") in one.says and "the constraint after the cast" in one.says


# --- Caches and results that are whole ------------------------------------------------------------

CACHE = (8, 1024, 8, 64)


def decode(w, k, x, at):
    q, key = ((x @ one).reshape(len(x), 8, 64) for one in (w["q"], w["k"]))
    k = lax.dynamic_update_slice(k, key[:, None], (0, at, 0, 0))  # here
    p = jax.nn.softmax(jnp.einsum("bhd,bshd->bhs", q, k))
    return jnp.einsum("bhs,bshd->bhd", p, k).reshape(len(x), 512) @ w["o"], k


def decoded(cache, dtype, backend):
    columns = struct(MESH, (512, 512), None, "model", dtype=dtype)
    w = {"q": columns, "k": columns, "o": struct(MESH, (512, 512), "model", dtype=dtype)}
    x, at = struct(MESH, (8, 512), "data", dtype=dtype), struct(MESH, (), dtype="int32")
    f = jax.jit(decode, donate_argnums=1, out_shardings=(on("data"), on(*cache)))
    return explain(f, w, struct(MESH, CACHE, *cache, dtype=dtype), x, at, mesh=pod_of(backend))


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cache_that_is_whole_gets_the_spec_of_what_is_written_into_it(dtype, backend):
    wrong = decoded((), dtype, backend)
    first = wrong.findings[0]
    assert first.title == "replicated" and first.says.startswith("k, "), wrong
    assert 'the spec P("data", None, "model"), in which result[1], which repla' in first.says
    assert [spec for _, spec in first.remedy.specs] == ['P("data", None, "model")']
    gathers = [move for move in wrong.moves if move.kind == "all-gather"]
    assert gathers and all("stored whole" in move.cause for move in gathers), wrong
    right = decoded(("data", None, "model"), dtype, backend)
    assert not {"replicated", "avoidable communication"} & {one.title for one in right.findings}


@BOTH
def test_a_slice_along_a_sharded_dimension_is_still_told(backend):
    """Into which another update wrote before."""

    def f(cache, new, at):
        for n in range(2):
            cache = lax.dynamic_update_slice(cache, new + n, (at + n, 0))
        return cache, lax.dynamic_slice(cache, (at, 0), (64, 256))

    cache = struct(MESH, (1024, 256), "model")
    f = jax.jit(f, donate_argnums=0, out_shardings=(cache.sharding, on()))
    report = explain(f, cache, struct(MESH, (4, 256)), struct(MESH, (), dtype="int32"))
    assert any("slice along a dimension" in move.cause for move in report.moves), report


@BOTH
def test_a_result_that_is_whole_gets_the_spec_of_the_argument_that_it_replaces(backend):
    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

    w, x = struct(MESH, (512, 1024), "data", "model"), struct(MESH, (64, 512), "data")
    wrong = explain(jax.jit(step, out_shardings=on()), w, x, mesh=pod_of(backend))
    (one,) = told(wrong, "replicated result")
    assert 'the spec P("data", "model"), that of w, which it replaces, it would be' in one.says
    right = explain(jax.jit(step, out_shardings=w.sharding), w, x, mesh=pod_of(backend))
    assert not told(right, "replicated result")


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_result_that_a_constraint_makes_whole_is_no_advice(is_asked):
    def f(x):
        x = jnp.sin(put(jnp.tanh(x)) if is_asked else jnp.tanh(x))
        return x.astype("int8")

    report = explain(jax.jit(f, out_shardings=on()), struct(MESH, (512, 256), None, "model"))
    assert len(told(report, "replicated result")) == (not is_asked), report
