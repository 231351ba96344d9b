"""explain() on loops that gather the matrices of a stack in every iteration."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])


def told(report):
    return [one.says for one in report.findings if "matrices of a stack" in one.says]


def one_step(x):
    a = x @ jnp.swapaxes(x, -1, -2)
    return 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x


def orthogonal(m, put, by=one_step, times=5):
    x = m / (jnp.linalg.norm(m, axis=(-2, -1), keepdims=True) + 1e-7)
    return lax.scan(lambda x, _: (put(by(x)), None), put(x), None, length=times)[0]


def in_a_fori_loop(m, put):
    return lax.fori_loop(0, 6, lambda _, x: put(jax.vmap(one_step)(x)), put(m))


def muon(
    shape=(8, 96, 64), sizes=(8,), names=("s",), at=1, by=None, loop=orthogonal, backend="cpu"
):
    """An update in shards of one dimension, orthogonalised in shards of another one."""
    mesh = grid(sizes, names)
    spec = lambda d: P(*[None] * d, names[-1])  # noqa: E731
    put = lambda x, d: lax.with_sharding_constraint(x, NamedSharding(mesh, spec(d)))  # noqa: E731

    def step(w, m):
        return w - 0.1 * put(loop(m, lambda x: put(x, at if by is None else by)), at)

    one = struct(mesh, shape, *spec(at))
    return explain(jax.jit(step, donate_argnums=0), one, one, mesh=pod_of(backend))


@BOTH
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loop": in_a_fori_loop},
        {"shape": (16, 64, 64), "sizes": (2, 4), "names": ("d", "f")},
        {"loop": lambda m, put: orthogonal(m, put, jax.checkpoint(jax.vmap(one_step)))},
        {"loop": lambda m, put: jax.jit(orthogonal, static_argnums=1)(m, put), "at": 2},
    ],
)
def test_newton_schulz_on_shards_of_rows(options, backend):
    report = muon(**options, backend=backend)
    (said,) = told(report)
    axis = options.get("names", "s")[-1]
    does = "add parts of the products" if "at" in options else "gather them"
    assert f"devices {does} along {axis}" in said and f'a constraint to P("{axis}") before' in said
    right = muon(**options, by=0, backend=backend)
    assert not told(right) and right.bytes < report.bytes / 2, (right.bytes, report.bytes)


def test_no_stack_that_can_be_divided():
    assert not told(muon(shape=(6, 96, 64)))
    assert not told(muon(shape=(64, 64), at=0))


def mixes_the_stack(x):
    return one_step(x) + x.mean(0)


def with_another(x):
    return one_step(x) @ jnp.ones((64, 64)) + x


@pytest.mark.parametrize("by", [mixes_the_stack, with_another])
def test_matrices_that_meet_others(by):
    assert not told(muon(loop=lambda m, put: orthogonal(m, put, by)))


def test_layers_whose_weights_are_gathered():
    mesh = grid((8,), ("s",))

    def step(ws, x):
        put = lambda x: lax.with_sharding_constraint(x, NamedSharding(mesh, P("s")))  # noqa: E731
        return lax.scan(lambda x, w: (put(jnp.tanh(x @ w)), None), x, ws)[0]

    assert not told(
        explain(jax.jit(step), struct(mesh, (5, 64, 64), None, "s"), struct(mesh, (16, 8, 64), "s"))
    )
