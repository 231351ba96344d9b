"""explain() on partial sums that are sent in float32 and rounded afterwards."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

LOW, WORDS = jnp.bfloat16, "preferred_element_type is float32"
ROWS, WIDTH, HIDDEN = 512, 256, 1024


def told(step, mesh, *more, grad=False, pod="v5e:2x4", dtype="bfloat16", layers=None):
    data, model = mesh.axis_names
    lead, shape = ((None,), (layers,)) if layers else ((), ())
    up = struct(mesh, (*shape, WIDTH, HIDDEN), *lead, None, model, dtype=dtype)
    down = struct(mesh, (*shape, HIDDEN, WIDTH), *lead, model, dtype=dtype)
    x = struct(mesh, (ROWS, WIDTH), data, dtype=dtype)
    run = step
    if grad:
        run = jax.grad(lambda ws, x: jnp.mean(step(ws, x).astype(jnp.float32) ** 2))
    report = explain(jax.jit(run), (up, down), x, mesh=pod and pod_of(pod))
    return [one.says for one in report.findings if WORDS in one.says]


def block(wide, after=lambda y: y.astype(LOW), product=jnp.matmul):
    def run(ws, x):
        h = jax.nn.gelu(x @ ws[0])
        return x + after(product(h, ws[1], preferred_element_type=jnp.float32 if wide else None))

    return run


def scanned(wide):
    def run(ws, x):
        layer = jax.checkpoint(lambda x, ws: (block(wide)(ws, x), None))
        return lax.scan(layer, x, ws)[0]

    return run


def einsum(h, w, preferred_element_type):
    return jnp.einsum("bf,fd->bd", h, w, preferred_element_type=preferred_element_type)


def mapped(mesh, wide):
    def local(ws, x):
        h = jax.nn.gelu(x @ ws[0])
        y = jnp.dot(h, ws[1], preferred_element_type=jnp.float32 if wide else None)
        return x + lax.psum(y, "m").astype(LOW)

    specs = {"in_specs": ((P(None, "m"), P("m")), P("d")), "out_specs": P("d")}
    return jax.shard_map(local, mesh=mesh, **specs)


MESH = grid((2, 4), ("d", "m"))
RUNS = {
    "cast": (block, {}),
    "einsum": (lambda wide: block(wide, product=einsum), {"grad": True}),
    "dropped": (
        lambda wide: block(wide, lambda y: jnp.where(y.shape[0] > 3, y / 0.9, 0).astype(LOW)),
        {},
    ),
    "constrained": (
        lambda wide: block(
            wide, lambda y: lax.with_sharding_constraint(y, NamedSharding(MESH, P("d"))).astype(LOW)
        ),
        {},
    ),
    "shard_map": (lambda wide: mapped(MESH, wide), {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_sum_over_the_model_axis_that_is_rounded_afterwards(name):
    make, options = RUNS[name]
    (said,) = told(make(True), MESH, **options)
    assert "along m in float32" in said and "cast to bfloat16" in said, said
    assert not told(make(False), MESH, **options)
    assert not told(make(True), MESH, pod=None, **options)


def test_what_computes_in_float32_with_the_sum_is_not_told():
    norm = lambda y: (y / jnp.sqrt(jnp.mean(y**2, -1, keepdims=True))).astype(LOW)  # noqa: E731
    for after in (norm, lambda y: jax.nn.gelu(y).astype(LOW), lambda y: y):
        assert not told(block(True, after), MESH)
    assert not told(block(True, lambda y: y), MESH, dtype="float32")
    # in this loop the compiler casts before the sum by itself
    assert not told(scanned(wide=True), MESH, layers=3)
    # the columns of a product are added on no other device
    assert not told(
        lambda ws, x: jnp.dot(x, ws[0], preferred_element_type=jnp.float32).astype(LOW), MESH
    )
