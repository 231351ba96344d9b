"""explain() on what looks through a dimension that is in shards: sorts, the largest elements."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P, reshard
from steps import grid, line, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

MESH = grid((4, 2), ("data", "model"))
EXPLICIT = grid((4, 2), ("data", "model"), AxisType.Explicit)


def told(f, mesh, backend):
    h, w = struct(mesh, (64, 256), "data"), struct(mesh, (256, 8192), None, "model")
    with jax.set_mesh(mesh):
        report = explain(f, h, w, mesh=pod_of(backend))
    if f is largest and backend != "cpu":
        assert all(move.cause.startswith("candidates that each") for move in report.moves), report
    return [one for one in report.findings if one.title not in ("bf16 widened", "replicated")]


def largest(h, w):
    return lax.top_k(h @ w, 8)  # here


def ordered(h, w):
    return jnp.argsort(h @ w, -1)  # here


def nucleus(h, w):
    return jnp.sort(jax.nn.softmax(h @ w), -1)  # here


def largest_of_shards(h, w):
    """What the finding says to write."""

    def own(logits):
        values, places = lax.top_k(logits, 8)
        places += lax.axis_index("model") * logits.shape[-1]
        gather = lambda one: lax.all_gather(one, "model", axis=1, tiled=True)  # noqa: E731
        values, chosen = lax.top_k(gather(values), 8)
        return values, jnp.take_along_axis(gather(places), chosen, -1)

    mapped = jax.shard_map(
        own, in_specs=P("data", "model"), out_specs=(P("data"), P("data")), check_vma=False
    )
    return mapped(h @ w)


def ordered_rows(h, w):
    return jnp.argsort(h @ w, 0)[:, :8].sum() + jnp.argmax(h @ w, -1).sum()


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("f", [largest, ordered, nucleus])
def test_what_looks_through_a_whole_dimension_names_the_form_that_stays_local(f, backend):
    if f is largest and backend != "cpu":  # that compiler writes the local form by itself
        assert told(f, MESH, backend) == []
        return
    finding = told(f, MESH, backend)[0]
    assert finding.title == "avoidable communication" and line(f, "# here") in finding.says
    assert "lax.top_k of each shard in a shard_map" in finding.says


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("mesh", [MESH, EXPLICIT])
def test_the_largest_of_each_shard_and_then_of_these_are_not_told(mesh, backend):
    assert told(largest_of_shards, mesh, backend) == []


def test_the_largest_of_each_shard_and_then_of_these_are_the_largest():
    h = jax.random.normal(jax.random.key(0), (64, 256))
    w = jax.random.normal(jax.random.key(1), (256, 8192))
    with jax.set_mesh(MESH):
        mine, places = jax.jit(largest_of_shards)(h, w)
    values, right = lax.top_k(h @ w, 8)
    assert jnp.allclose(mine, values, atol=1e-3) and (places == right).mean() > 0.99


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("search", [partial(lax.top_k, k=8), jnp.sort, jnp.argsort])
def test_on_explicit_axes_the_local_form_is_told_and_no_spec_that_they_refuse(search, backend):
    def whole(h, w):
        return search(reshard(h @ w, P("data", None)))  # here

    finding = told(whole, EXPLICIT, backend)[0]
    assert line(whole, "# here") in finding.says, finding
    assert "lax.top_k of each shard in a shard_map" in finding.says
    assert 'write P("data", "model")' not in finding.says and "not known" not in finding.says
