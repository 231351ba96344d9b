"""explain() tells a state, which results replace, from data that only have the type of a result."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from steps import grid, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

MESH = grid((8,), ("x",))
SQUARE = struct(MESH, (256, 256), "x")


def donated(f, *arguments):
    """The numbers of the arguments that the finding would donate; None without the finding."""
    found = [one for one in explain(f, *arguments).findings if one.title == "not donated"]
    return found[0].remedy.arguments if found else None


def trained(x, w):
    gradient = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - x) ** 2))(w)
    return w - 0.1 * gradient, jnp.sum(gradient**2)


def scanned(x, w):
    return lax.scan(lambda w, x: (trained(x, w)[0], None), w, x[None])[0], jnp.sum(x)


def mapped(x, w):
    own = jax.shard_map(
        lambda x, w: w - lax.psum(x.T @ x, "x"), mesh=MESH, in_specs=(P("x"), P()), out_specs=P()
    )
    return own(x, w), jnp.sum(x)


def applied(x, w):
    return jnp.tanh(x @ w), jnp.sum(x)


def added_to(x, w):
    """A residual block."""
    return x + jnp.tanh(x @ w) @ w, jnp.sum(x)


def decayed(x, h):
    return 0.9 * h + x @ x, jnp.sum(x)


def written(x, cache):
    return lax.dynamic_update_slice(cache, x[:1], (3, 0)), jnp.sum(x)


@pytest.mark.parametrize(
    "f, numbers",
    [
        (trained, (1,)),
        (scanned, (1,)),
        (mapped, (1,)),
        (decayed, (1,)),
        (written, (1,)),
        (applied, None),
        (added_to, None),
    ],
)
def test_what_only_has_the_type_of_a_result_is_no_state(f, numbers):
    arguments = (SQUARE, struct(MESH, (256, 256)) if f is mapped else SQUARE)
    assert donated(f, *arguments) == numbers
    turned = numbers and tuple(1 - n for n in numbers)
    assert donated(lambda w, x: f(x, w), *arguments[::-1]) == turned
    if numbers:  # the state is donated already
        assert donated(jax.jit(f, donate_argnums=1), *arguments) is None


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_data_with_the_type_of_a_weight_are_data(kind):
    """They lack an axis, although a result has their type."""
    mesh = grid((2, 4), ("i", "x"), kind)

    def step(w, x):
        def loss(w):
            h = jax.sharding.reshard(w, P()) if kind == AxisType.Explicit else w
            return jnp.mean((jnp.tanh(x @ h) @ h.T - x) ** 2)

        return w - 0.1 * jax.grad(loss)(w)

    w, x = struct(mesh, (256, 256), None, "i"), struct(mesh, (256, 256), "i")
    with jax.set_mesh(mesh):
        report = explain(jax.jit(step, donate_argnums=0), w, x)
    assert "not donated" not in [one.title for one in report.findings], report


def test_products_that_the_compiler_gives_no_line_are_not_repeated():
    """One head on each device: products of a single one lose their names."""
    mesh = grid((8,), ("t",))

    def step(w, x):
        def loss(w):
            q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w["qkv"][i]) for i in range(3))
            p = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k))
            mixed = jnp.einsum("bhst,bthk,hkd->bsd", p, v, w["o"])
            return jnp.mean((mixed - x) ** 2)

        return jax.tree.map(lambda w, g: w - g, w, jax.grad(loss)(w))

    w = {
        "qkv": struct(mesh, (3, 128, 8, 16), None, None, "t"),
        "o": struct(mesh, (8, 16, 128), "t"),
    }
    report = explain(jax.jit(step, donate_argnums=0), w, struct(mesh, (8, 32, 128)))
    assert report.findings == (), report


@pytest.mark.parametrize("axis", ["x", "i", "fsdp", "replica", "data"])
def test_the_name_of_an_axis_decides_nothing(axis):
    """Weights as FSDP stores them lack their batch; those of tensor parallelism do not."""
    mesh = grid((8,), (axis,))

    def step(w, x):
        def loss(w):
            h = jnp.tanh(x @ w["up"]) @ w["down"]
            return jnp.mean((jnp.tanh(h @ w["up"]) @ w["down"] - x) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    def titles(up, down):
        layer = {"up": struct(mesh, (128, 512), *up), "down": struct(mesh, (512, 128), *down)}
        shardings = jax.tree.map(lambda one: one.sharding, layer)
        data = struct(mesh, (8192, 128))
        step_in_place = jax.jit(step, donate_argnums=0, out_shardings=shardings)
        return [one.title for one in explain(step_in_place, layer, data).findings]

    assert titles((axis,), (None, axis))[:1] == ["data without an axis"]
    assert titles((None, axis), (axis,)) == []


# --- Which result replaces a donated argument -----------------------------------------------------


def added(x, y):
    return x + 1, y * 2


def written_into(x, y):
    return lax.dynamic_update_slice(x, jnp.ones((1, 256), x.dtype), (3, 0)), y * 2


def summed(x, y):
    """The second argument is not donated, and both results are made from it."""
    return x + jnp.tanh(y), y * 2


def carried_on(x, y):
    return lax.scan(lambda x, row: (x.at[row].add(1.0), None), x, jnp.arange(4))[0], y * 2


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("f", [added, summed, written_into, carried_on])
def test_of_results_of_one_type_the_one_that_is_made_from_it_replaces_an_argument(
    f, dtype, is_turned, kind
):
    mesh = grid((2, 4), ("i", "x"), kind)
    x, y = struct(mesh, (256, 256), dtype=dtype), struct(mesh, (256, 256), "x", dtype=dtype)
    step = (lambda x, y: f(x, y)[::-1]) if is_turned else f
    with jax.set_mesh(mesh):
        for spec in (("x",), ()):
            layouts = NamedSharding(mesh, P(*spec)), y.sharding
            layouts = layouts[::-1] if is_turned else layouts
            report = explain(jax.jit(step, donate_argnums=0, out_shardings=layouts), x, y)
            says = [one.says for one in report.findings if one.title == "other sharding"]
            assert len(says) == (spec == ("x",)), report
            name = f"result[{int(is_turned)}] has the type of x, but the sharding"
            assert all(one.startswith(name) for one in says), says


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("is_other", [False, True])
def test_moments_are_paired_before_the_parameters_that_are_made_from_them(is_other):
    mesh = grid((8,), ("x",))

    def step(w, m, v, x):
        g = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        m, v = 0.9 * m + g, 0.9 * v + g * g
        return w - m / (jnp.sqrt(v) + 1), m, v

    w, x = struct(mesh, (256, 256), "x"), struct(mesh, (512, 256), "x")
    other = NamedSharding(mesh, P(None, "x")) if is_other else w.sharding
    layouts = w.sharding, w.sharding, other
    f = jax.jit(step, donate_argnums=(0, 1, 2), out_shardings=layouts)
    report = explain(f, w, w, w, x)
    says = [one.says for one in report.findings if one.title == "other sharding"]
    assert len(says) == is_other, report
    assert all(one.startswith("result[2] has the type of v, but") for one in says)
