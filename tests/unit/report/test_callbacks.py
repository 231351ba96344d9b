"""explain() on steps that call back to the host."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec as P
from steps import grid, line, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

AUTO, EXPLICIT = grid((8,), ("data",)), grid((8,), ("data",), AxisType.Explicit)


def updated(shown, w, x, y):
    def loss(w):
        hidden = jnp.tanh(x @ w)
        shown(w, hidden)
        return jnp.mean((hidden - y) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


def prints(w, x, y):
    return updated(lambda w, h: jax.debug.print("{h}", h=h), w, x, y)  # here


def records(w, x, y):
    return updated(lambda w, h: jax.debug.callback(len, h), w, x, y)  # here


def prints_weights(w, x, y):
    return updated(lambda w, h: jax.debug.print("{w}", w=w), w, x, y)  # here


def prints_a_sum(w, x, y):
    return updated(lambda w, h: jax.debug.print("{h}", h=h.sum()), w, x, y)


def prints_own_shards(w, x, y):
    own = jax.shard_map(lambda h: jax.debug.print("{h}", h=h), in_specs=P("data"), out_specs=None)
    return updated(lambda w, h: own(h), w, x, y)


def prints_each_row(w, x, y):
    def row(x):
        hidden = jnp.tanh(x @ w)
        jax.debug.print("{}", jnp.mean(hidden))  # here
        return hidden

    return jnp.mean(jax.vmap(row)(x) - y)


def records_each_row(w, x, y):
    def row(x):
        hidden = jnp.tanh(x @ w)
        jax.debug.callback(len, hidden)  # here
        return hidden

    return jnp.mean(jax.vmap(row)(x) - y)


def looks_up_each_row(w, x, y):
    def row(x):
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(abs, like, x, vmap_method="sequential")  # here

    return jnp.mean(jax.vmap(row)(x) @ w - y)


def prints_one_row(w, x, y):
    hidden = jax.vmap(lambda x: jnp.tanh(x @ w))(x)
    jax.debug.print("{}", jnp.mean(hidden))
    return jnp.mean(hidden - y)


def first(f, mesh, backend, rows=1024):
    w = struct(mesh, (256, 512), "data") if mesh is AUTO else struct(mesh, (256, 512))
    x, y = struct(mesh, (rows, 256), "data"), struct(mesh, (rows, 512), "data")
    with jax.set_mesh(mesh):
        report = explain(jax.jit(f, donate_argnums=0), w, x, y, mesh=pod_of(backend))
    memory = ("bf16 widened", "donation not used", "replicated", "largest temporaries")
    return next((one for one in report.findings if one.title not in memory), None)


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("f", [prints, records, prints_weights])
def test_a_callback_that_gathers_an_array_names_its_line_and_what_to_hand_it(f, mesh, backend):
    finding = first(f, mesh, backend)
    if f is prints_weights and (mesh is EXPLICIT or backend == "cpu"):  # whole there, or needed so
        assert finding is None
        return
    assert finding.title == "avoidable communication" and line(f, "# here") in finding.says
    assert "hand it a sum or a few elements. Where it works on each shard by itself" in finding.says
    assert "where it needs all of the array, gather that once, outside of loops" in finding.says


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("f", [prints_a_sum, prints_own_shards])
def test_a_callback_that_gets_a_sum_or_its_own_shard_is_not_told(f, mesh, backend):
    assert first(f, mesh, backend) is None


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("f", [prints_each_row, records_each_row, looks_up_each_row])
def test_a_callback_of_each_member_of_a_vmap_is_told_as_that(f, backend):
    finding = first(f, AUTO, backend, 64)  # on Explicit axes JAX refuses it
    often = "in a loop" if f is looks_up_each_row else "64 times"
    assert finding.title == "avoidable communication" and line(f, "# here") in finding.says
    assert f"vmap calls the host for each of its members, {often}" in finding.says
    assert "call it outside vmap, once for the whole array" in finding.says


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
def test_one_callback_after_a_vmap_is_not_told(backend):
    assert first(prints_one_row, AUTO, backend, 64) is None


def called(x):
    return jax.pure_callback(abs, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # here


def plane(x, at):
    """One plane of an array in shards."""
    return jnp.where(jnp.arange(len(x))[:, None, None] == at, x, 0).sum(0)


def on_one(x, at):
    return x + called(plane(x, at))


def on_each(x, at):
    return x + jax.shard_map(called, mesh=AUTO, in_specs=P(), out_specs=P())(plane(x, at))


def of_products(x, at):
    return x + called(jnp.einsum("xab,xac->bc", x, x))


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("f", [on_one, of_products, on_each])
def test_a_sum_that_a_callback_gets_is_none_of_its_own_and_its_result_has_another_remedy(
    f, backend
):
    """A shard_map with P() sends nothing but the sum."""
    x = struct(AUTO, (64, 128, 128), "data")
    report = explain(jax.jit(f), x, struct(AUTO, (), dtype="int32"), mesh=pod_of(backend))
    told = [one.says for one in report.findings if one.title == "avoidable communication"]
    sums = [one.cause for one in report.moves if "callback" not in one.cause]
    assert len(sums) == 1 and ("a sum" in sums[0] or "partial sums" in sums[0]), report
    assert len(report.moves) == 2 - (f is on_each) and len(told) == (f is not on_each)
    for says in told:
        assert line(called, "# here") in says and "hand it" not in says
        assert "let it return no more than is needed, or call it in a shard_map" in says
