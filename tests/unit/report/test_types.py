"""The tools on Auto, explicit and mixed meshes, and for arrays with partial sums or reduced copies
in their types.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import (
    assert_equal_to_one_device,
    collectives,
    describe,
    draw,
    draw_backward,
    draw_shard_map,
    explain,
    same_layout,
)

pytestmark = pytest.mark.reads("src/shardlab")

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
LEFT, RIGHT = np.arange(128, dtype=np.float32).reshape(8, 16), np.ones((16, 8), np.float32)


@pytest.fixture(
    params=[(AUTO, AUTO), (EXPLICIT, EXPLICIT), (EXPLICIT, AUTO)], ids=["auto", "explicit", "mixed"]
)
def mesh(request):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=request.param)
    with jax.set_mesh(mesh):
        yield mesh


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def test_each_tool_takes_arrays_of_each_type_of_mesh(mesh):
    rows = NamedSharding(mesh, P("x", None))
    w, x = jax.device_put(RIGHT, NamedSharding(mesh, P())), jax.device_put(LEFT, rows)
    report = explain(jax.grad(loss), w, x)
    assert [move.kind for move in report.moves] == ["all-reduce"] and "replicated" not in repr(
        report
    ).split("\n")[0]
    assert collectives(jax.grad(loss), w, x) == {"all-reduce": 1}
    assert describe(x).spec == (("x",), ()) and len(draw(x=x)._repr_html_()) > 1000
    assert_equal_to_one_device(loss, (w, x), (w.sharding, rows))
    body = lambda w, x: lax.pmean(jnp.mean(x @ w), "x")  # noqa: E731
    lines = draw_backward(body, (P(), P("x")), P(), w, x, mesh=mesh).text.splitlines()
    assert lines[1].endswith("forward cast to varying x, backward psum x.")
    assert draw_shard_map(x, P("x"), P("x"), x, mesh=mesh)._repr_html_()


@pytest.fixture
def explicit():
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(EXPLICIT,) * 2)
    if not hasattr(P(), "unreduced"):
        pytest.skip("this JAX has no unreduced types")
    with jax.set_mesh(mesh):
        yield mesh


def test_explain_takes_partial_sums_as_argument_and_as_result(explicit):
    a, b = jax.device_put(LEFT, P(None, "x")), jax.device_put(RIGHT, P("x", None))

    def product(a, b):
        return jnp.matmul(a, b, out_sharding=P(None, None, unreduced={"x"}))

    sums = jax.jit(product)(a, b)
    assert explain(product, a, b).moves == ()
    report = explain(lambda sums: jax.sharding.reshard(sums, P()), sums)
    assert [move.kind for move in report.moves] == ["all-reduce"]
    assert report.arrays[0].spec == "P(None, None, unreduced={'x'})" and report.arrays[
        0
    ].replicated == ("y",)
    assert "unreduced" in repr(report)


def test_explain_takes_reduced_copies(explicit):
    copies = jax.device_put(LEFT, P(None, None, reduced={"x"}))
    assert explain(lambda v: 2 * v, copies).arrays[0].spec == "P(None, None, reduced={'x'})"


def test_the_backward_pass_of_a_reduced_cast_and_of_a_gather_to_reduced_is_drawn(explicit):
    def cast(w, x):
        return lax.psum(jnp.sum(x @ lax.pcast(w, "x", to="reduced")), "x")

    def gathered(w, x):
        return lax.psum(jnp.sum(x @ lax.all_gather(w, "x", tiled=True, to="reduced")), "x")

    for body, spec, forward, backward in (
        (cast, P(), "cast to reduced x", "psum x"),
        (gathered, P("x"), "all_gather x", "psum_scatter x"),
    ):
        w, x = jax.device_put(RIGHT, spec), jax.device_put(LEFT, P("x"))
        line = draw_backward(body, (spec, P("x")), P(), w, x).text.splitlines()[1]
        assert line.endswith(f"forward {forward}, backward {backward}.")


def test_an_operation_across_devices_that_is_not_known_is_refused(explicit, monkeypatch):
    from shardlab.pictures import backward

    monkeypatch.setattr(backward, "_DRAWN", {})
    with pytest.raises(ValueError, match=r"does not know JAX's operation .*would leave it out"):
        draw_backward(
            lambda x: lax.psum(x, "x"), P("x"), P(), jax.ShapeDtypeStruct((8,), "float32")
        )


def test_the_kind_of_what_is_not_yet_reduced_and_reduced_axes_are_written():
    kinds = getattr(jax.sharding, "UnreducedKind", None)
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(EXPLICIT, EXPLICIT))
    spec = P("x", None, reduced={"y"})
    layout = describe(NamedSharding(mesh, spec), (8, 4))
    assert layout.type == "f32[8@x, 4]{R:y}" and "f32[8@x, 4]{R:y}" in repr(
        draw(NamedSharding(mesh, spec), shape=(8, 4))
    )
    if kinds is None:
        pytest.skip("this version of JAX has sums alone")
    most = NamedSharding(mesh, P("x", None, unreduced={"y"}, unreduced_kind=kinds.max))
    assert "2 partial maxima" in str(describe(most, (8, 4))) and "partial maxima" in repr(
        draw(most, shape=(8, 4))
    )
    assert not same_layout(
        describe(most, (8, 4)), NamedSharding(mesh, P("x", None, unreduced={"y"}))
    )
