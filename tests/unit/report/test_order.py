"""The order in which explain() says what it has found."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, pod_of, struct

from shardlab.report.explain import explain
from shardlab.report.findings import Finding, by_harm
from shardlab.report.remedies import OtherSpecs

pytestmark = pytest.mark.reads("src/shardlab")

MESH, ROW = grid((2, 4), ("data", "model")), grid((8,), ("fsdp",))
CLASH = "two arrays with specs that clash"


def ordered(report, *titles):
    return [one.title for one in report.findings if one.title in titles]


@pytest.mark.parametrize("is_same", [False, True])
def test_a_later_call_for_which_jit_compiles_again_comes_first(is_same):
    """Before what the call sends, which may be the larger fault: it is asked for."""
    put = lambda *spec: jax.device_put(jnp.zeros((16, 4096)), NamedSharding(MESH, P(*spec)))  # noqa: E731
    first, later = put("data", "model"), put("data", *["model"] * is_same)
    report = explain(jax.jit(lambda x: lax.top_k(x, 8)), first, later=(later,))
    titles = ordered(report, "compiles again", "avoidable communication")
    assert titles == ["compiles again"] * (not is_same) + ["avoidable communication"], report


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize(("width", "rows"), [(512, 64), (1024, 64)])
def test_of_two_findings_in_a_loop_the_one_that_sends_more_comes_first(width, rows, backend):
    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def step(weights, batch):
        def micro(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, x)), None

        grads, _ = lax.scan(micro, jax.tree.map(jnp.zeros_like, weights), batch)
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, grads)

    weights = [struct(ROW, (width, width), "fsdp") for _ in range(3)]
    f = jax.jit(step, donate_argnums=0, out_shardings=[w.sharding for w in weights])
    batch = struct(ROW, (8, rows, width), None, "fsdp")
    report = explain(f, weights, batch, mesh=pod_of(backend))
    both = [one for one in report.findings if one.title.endswith("in a loop")]
    assert [one.sent for one in both] == sorted((one.sent for one in both), reverse=True)
    assert both and (backend == "cpu" or both[0].title == "gathered in a loop"), report


def test_of_findings_that_are_equal_in_words_the_first_is_kept():
    one, other = Finding("not donated", "a", sent=1), Finding("not donated", "a", sent=2)
    last = Finding("added twice", "a")
    assert by_harm([one, other, last]) == [last, one]
    assert by_harm([one, other])[0].sent == 1


@pytest.mark.parametrize("is_replicated", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mesh", [ROW, grid((2, 4), ("copies", "fsdp"))])
def test_a_clash_comes_after_what_names_the_arrays_that_clash(mesh, dtype, is_replicated):
    """Where both are in shards, of other dimensions, there is no such finding."""

    def step(params, moments, grads):
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments

    sharded = {
        "w": struct(mesh, (1024, 512), "fsdp", dtype=dtype),
        "v": struct(mesh, (512, 1024), None, "fsdp", dtype=dtype),
    }
    other = {"w": (None, "fsdp"), "v": ("fsdp",)} if not is_replicated else {"w": (), "v": ()}
    moments = {
        name: struct(mesh, w.shape, *other[name], dtype=dtype) for name, w in sharded.items()
    }
    layouts = jax.tree.map(lambda w: w.sharding, (sharded, moments))
    f = jax.jit(step, donate_argnums=(0, 1), out_shardings=layouts)
    report = explain(f, sharded, moments, sharded)
    titles = [
        one.title for one in report.findings if one.title == "replicated" or CLASH in one.says
    ]
    assert titles[:1] == ["replicated"] * is_replicated, report
    if is_replicated:
        assert titles[1:] in ([], ["avoidable communication"])
        assert report.findings[0].title == "replicated"


@pytest.mark.parametrize(("elements", "is_why"), [(64, True), (32, False)])
def test_a_clash_of_other_arrays_than_the_replicated_ones_stays_before_them(elements, is_why):
    clash = Finding("avoidable communication", "a: two arrays", elements=(64,))
    whole = Finding("replicated", "b", OtherSpecs(((0, 'P("data")'),)))
    assert by_harm([clash, whole], stored={0: elements}) == (
        [whole, clash] if is_why else [clash, whole]
    )
