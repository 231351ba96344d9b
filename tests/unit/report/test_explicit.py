"""explain() finds on Explicit axes what it finds on Auto axes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec as P, reshard
from steps import grid, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")


def updated(w, x, of):
    """A step of a weight in shards along both axes, which is gathered for its product."""

    def loss(w):
        h = jnp.tanh(jnp.einsum("bd,df->bf", x, reshard(w, P(None, "x")), out_sharding=P("i", "x")))
        return jnp.mean(h**2)

    return w - 0.1 * of(jax.grad(loss)(w))


def gradients_whole(w, x):
    return updated(w, x, lambda g: reshard(g, P()))


def gradients_in_shards(w, x):
    return updated(w, x, lambda g: reshard(g, P("i", "x")))


def last_of_all(w, x):
    h = jnp.einsum("bd,df->bf", x, reshard(w, P(None, "x")), out_sharding=P("i", "x"))
    return reshard(h, P())[-1].sum()


def last_alone(w, x):
    h = jnp.einsum("bd,df->bf", x, reshard(w, P(None, "x")), out_sharding=P("i", "x"))
    return h.reshape(4, 16, -1, out_sharding=P("i", None, "x"))[:, -1].sum()


def batch_on_no_axis(w, x):
    whole = reshard(x, P())
    return w - jax.grad(lambda w: jnp.mean(jnp.tanh(whole @ reshard(w, P(None, "x"))) ** 2))(w)


def sums_of_logits(w, x):
    """Where the hidden units could be gathered, which are a sixteenth."""
    h = jnp.tanh(reshard(x, P("i", "x")))
    return jnp.einsum("bd,df->bf", h, w, out_sharding=P("i")).max()


def two_products(w, x, *spec):
    """Two layers of one weight, up and down; the hidden units get a spec of their own."""

    def loss(w):
        up, down = reshard(w, P(None, "x")), reshard(w, P("x", None))
        h = jnp.tanh(jnp.einsum("bd,df->bf", x, up, out_sharding=P("i", *spec)))
        down = down if spec else reshard(down, P())
        return jnp.mean(jnp.einsum("bf,fd->bd", h, down, out_sharding=P("i")) ** 2)

    return w - 0.1 * reshard(jax.grad(loss)(w), P("i", "x"))


def hidden_units_whole(w, x):
    return two_products(w, x)


def hidden_units_in_shards(w, x):
    return two_products(w, x, "x")


CASES = [
    (hidden_units_whole, "constraint without an axis", 'the out_sharding P("i") lacks x'),
    (hidden_units_in_shards, "", ""),
    (gradients_whole, "constraint without an axis", "Write the spec of what it meets"),
    (gradients_in_shards, "", ""),
    (last_of_all, "gathered before an index", "index first"),
    (last_alone, "", ""),
    (batch_on_no_axis, "constraint without an axis", "lacks i"),
    (sums_of_logits, "sum larger than its operand", "Shard the dimension of 8,192 of w"),
]


FORWARD = (last_of_all, last_alone, sums_of_logits)


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize(("f", "title", "words"), CASES)
def test_on_explicit_axes(f, title, words, backend):
    mesh = grid((4, 2), ("i", "x"), AxisType.Explicit)
    w, x = struct(mesh, (512, 512), "i", "x"), struct(mesh, (64, 512), "i", None)
    if f is sums_of_logits:
        w, x = struct(mesh, (512, 8192), "x", None), struct(mesh, (1024, 512), "i", None)
    with jax.set_mesh(mesh):
        report = explain(
            f if f in FORWARD else jax.jit(f, donate_argnums=0), w, x, mesh=pod_of(backend)
        )
    found = [one for one in report.findings if one.title not in ("bf16 widened", "replicated")]
    if not title:
        assert found == [], report
    else:
        assert found and found[0].title == title, report
        # without an out_sharding with x, the second weight is gathered along it, too
        told = found[: 1 + (f is hidden_units_whole)]
        assert any(words in one.says for one in told), report
