"""explain() on sums over devices that add too much: what has been added before, and rows of other
devices.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P
from steps import grid, line, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

EIGHT, TWO = grid((8,), ("s",)), grid((2, 4), ("data", "expert"))
TYPED = grid((8,), ("s",), AxisType.Explicit)
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
AGAIN, ROWS = "added twice", "rows of devices added"


def said(report, title):
    return [one.says for one in report.findings if one.title == title]


# --- A gradient that is added in a loop and after it ----------------------------------------------


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def scanned(grad, w, chunks):
    add = lambda total, x: (total + grad(w, x), None)  # noqa: E731
    return lax.scan(add, w * 0, chunks)[0]


def in_python(grad, w, chunks):
    total = jnp.zeros_like(w)
    for x in chunks:
        total += grad(w, x)
    return total


def counted(grad, w, chunks):
    add = lambda n, total: total + grad(w, chunks[n]) / len(chunks)  # noqa: E731
    return lax.fori_loop(0, len(chunks), add, jnp.zeros_like(w))


def stacked(grad, w, chunks):
    return lax.map(lambda x: grad(w, x), chunks).sum(0)


def carried(grad, w, chunks):
    """With a second sum in the carry, and a scan in a scan."""

    def add(total, x):
        value, g = total
        again = lax.scan(lambda g, x: (g + grad(w, x), None), g, x[None])[0]
        return (value + loss(w, x), again), None

    start = lax.pcast(0.0, ("s",), to="varying"), jnp.zeros_like(w)
    return lax.scan(add, start, chunks)[0][1]


LOOPS = [scanned, in_python, counted, stacked, carried]


def accumulated(loop, is_twice, axis, mesh, last=lax.psum, wrap=lambda f: f, **options):
    def local(w, x):
        own = w if is_twice else lax.pcast(w, axis, to="varying")
        total = loop(wrap(jax.grad(loss)), own, x.reshape(4, -1, x.shape[-1]))
        return last(total, axis)  # here

    specs = {"in_specs": (P(), P(axis)), "out_specs": P()}
    return jax.jit(jax.shard_map(local, mesh=mesh, **specs, **options))


def shapes(mesh, axis, dtype="float32"):
    return struct(mesh, (64, 96), dtype=dtype), struct(mesh, (512, 64), axis, dtype=dtype)


@BOTH
@pytest.mark.parametrize("is_twice", [True, False])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_gradient_that_a_loop_adds_up_and_a_psum_adds_again_is_told(loop, is_twice, backend):
    f = accumulated(loop, is_twice, "s", EIGHT)
    report = explain(f, *shapes(EIGHT, "s"), mesh=pod_of(backend))
    found = said(report, AGAIN)
    assert len(found) == is_twice, report
    if found:
        assert report.findings[0].title == AGAIN and "8 times too large" in found[0]
        assert line(accumulated, "# here") in found[0] and "along s" in found[0]


@pytest.mark.parametrize("is_twice", [True, False])
@pytest.mark.parametrize("loop", LOOPS)
def test_the_sum_of_sums_is_as_many_times_too_large(loop, is_twice):
    w, x = (
        jax.random.normal(jax.random.key(n), one.shape) for n, one in enumerate(shapes(EIGHT, "s"))
    )
    value = accumulated(loop, is_twice, "s", EIGHT)(w, x)
    parts = sum(jax.grad(loss)(w, rows) for rows in x.reshape(32, 16, 64))
    parts = parts / 4 if loop is counted else parts
    assert np.allclose(value, (8 if is_twice else 1) * parts, rtol=1e-3, atol=1e-4)


VARIANTS = {
    "checkpoint": {"wrap": jax.checkpoint},
    "bf16": {"dtype": "bfloat16"},
    "other axes": {"axis": "expert", "mesh": TWO},
    "two axes": {"axis": ("data", "expert"), "mesh": TWO},
    "explicit": {"mesh": TYPED},
    "a mean": {"last": lax.pmean},
    "half": {"last": lambda g, axis: lax.psum(0.5 * g, axis)},
    "in pieces": {"last": lambda g, axis: lax.psum_scatter(g, axis, tiled=True), "out": True},
}


@pytest.mark.parametrize("is_twice", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_however_it_is_written(variant, is_twice):
    options = {"axis": "s", "mesh": EIGHT} | VARIANTS[variant]
    dtype, axis, mesh = options.pop("dtype", "float32"), options["axis"], options["mesh"]
    if options.pop("out", False):
        f = jax.shard_map(
            lambda w, x: lax.psum_scatter(
                scanned(
                    jax.grad(loss), w if is_twice else lax.pcast(w, "s", to="varying"), x[None]
                ),
                "s",
                tiled=True,
            ),
            mesh=mesh,
            in_specs=(P(), P("s")),
            out_specs=P("s"),
        )
    else:
        f = accumulated(scanned, is_twice, **options)
    found = said(explain(f, *shapes(mesh, axis, dtype)), AGAIN)
    assert len(found) == is_twice
    if found:
        assert f"{4 if axis == 'expert' else 8} times too large" in found[0]


def local_steps(w, x):
    """Each device takes steps of its own, and they agree by the mean of their weights."""
    own = lax.pcast(w, "s", to="varying")
    step = lambda w, x: (w - 0.1 * jax.grad(loss)(w, x), None)  # noqa: E731
    return lax.pmean(lax.scan(step, own, x.reshape(4, -1, 64))[0], "s")


def steps_and_a_mean(w, x):
    """The weights are equal already, and their mean leaves them so."""
    step = lambda w, x: (w - 0.1 * jax.grad(loss)(w, x) / 8, None)  # noqa: E731
    return lax.pmean(lax.scan(step, w, x.reshape(4, -1, 64))[0], "s")


def means_added(w, x):
    """The sum of a mean is the sum."""
    add = lambda total, x: (total + lax.pmean(x.sum(0), "s"), None)  # noqa: E731
    return lax.psum(lax.scan(add, jnp.zeros(64), x.reshape(4, -1, 64))[0], "s")


def mean_of_a_sum(w, x):
    """The mean of what is equal: a number for the log."""
    add = lambda total, x: (total + lax.psum(loss(w, x), "s"), None)  # noqa: E731
    return lax.pmean(lax.scan(add, 0.0, x.reshape(4, -1, 64))[0], "s")


def norms(w, x):
    """Of a sum and of each device's own part, which is another number."""
    whole = lax.psum(x.sum(0), "s")
    return lax.psum(jnp.sum(jnp.square(x - whole)), "s")


def counts(w, x):
    return lax.psum(x.sum(0), "s") / lax.psum(1, "s") + lax.psum(jnp.ones(64), "s")


def of_a_wide_layer(w, x):
    """Two layers, each with a sum: the second has its own part of the weights."""
    own = lax.dynamic_slice_in_dim(w, 8 * lax.axis_index("s"), 8, 0)
    h = lax.psum(jnp.tanh(x[:1, :8] @ own), "s")
    return lax.psum(h[:, :8] @ own, "s")


CORRECT = [
    local_steps,
    steps_and_a_mean,
    means_added,
    mean_of_a_sum,
    norms,
    counts,
    of_a_wide_layer,
]


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("f", CORRECT)
def test_other_sums_of_sums_are_not_told(f, is_checked):
    if f is steps_and_a_mean and not is_checked:
        pytest.skip("the gradient is each device's own then")
    specs = {"in_specs": (P(), P("s")), "out_specs": P(), "check_vma": is_checked}
    report = explain(jax.shard_map(f, mesh=EIGHT, **specs), *shapes(EIGHT, "s"))
    assert not said(report, AGAIN), report


# --- Rows of other devices ------------------------------------------------------------------------


def experts(axis, x, chosen, up, down):
    """Each device computes its own experts for the rows that it has."""
    first = lax.axis_index(axis) * up.shape[0]
    local = jax.nn.one_hot(chosen - first, up.shape[0], dtype=x.dtype)
    h = jax.nn.silu(jnp.einsum("tx,xij,ti->txj", local, up, x))
    return lax.psum(jnp.einsum("tx,txj,xji->ti", local, h, down), axis)


def rewritten(axis, x, chosen, up, down):
    """The same, in a scan over the device's experts, with a reshape and a transpose."""
    first = lax.axis_index(axis) * up.shape[0]
    rows = x.reshape(2, -1, x.shape[-1])

    def one(total, expert):
        n, up, down = expert
        mine = (chosen == first + n).reshape(2, -1, 1)
        return total + jnp.where(mine, jnp.tanh(rows @ up) @ down, 0), None

    each = jnp.arange(up.shape[0]), up, down
    start = jnp.zeros_like(rows) + 0 * (x[0, 0] + up[0, 0, 0])
    total = lax.scan(jax.checkpoint(one), start, each)[0]
    return lax.pmean(total, axis).swapaxes(1, 2).swapaxes(1, 2).reshape(x.shape)


def mixture(body, mesh, axis, rows, is_checked=True, is_looped=False):
    own = functools.partial(body, axis)
    specs = {"in_specs": (rows, rows, P(axis), P(axis)), "out_specs": rows}
    mapped = jax.shard_map(own, mesh=mesh, **specs, check_vma=is_checked)

    def layer(x, router, up, down):
        return x + mapped(x, jnp.argmax(x @ router, axis=-1), up, down)

    def layers(x, router, up, down):
        return lax.scan(lambda x, _: (layer(x, router, up, down), None), x, None, length=2)[0]

    return jax.jit(layers if is_looped else layer)


def tensors(mesh, axis, rows, dtype="float32"):
    return (
        struct(mesh, (512, 128), *rows, dtype=dtype),
        struct(mesh, (128, 16), dtype=dtype),
        struct(mesh, (16, 128, 256), axis, dtype=dtype),
        struct(mesh, (16, 256, 128), axis, dtype=dtype),
    )


@BOTH
@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("body", [experts, rewritten])
@pytest.mark.parametrize("rows", [P("s"), P()])
def test_a_sum_of_the_rows_of_other_devices_is_told(rows, body, is_checked, backend):
    f = mixture(body, EIGHT, "s", rows, is_checked)
    report = explain(f, *tensors(EIGHT, "s", rows), mesh=pod_of(backend))
    found = said(report, ROWS)
    assert len(found) == (rows == P("s")), report
    if found:
        assert report.findings[0].title == ROWS and "leave s out of their in_specs" in found[0]


GRIDS = [
    (P(("data", "expert")), 1),
    (P("expert"), 1),
    (P("data"), 0),
    (P(("data",), "expert"), 0),  # parts of rows, which the product contracts
]


@pytest.mark.parametrize("rows, count", GRIDS)
@pytest.mark.parametrize("is_looped", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_told_along_the_axis_of_the_sum_alone(dtype, is_looped, rows, count):
    if len(rows) == 2:
        f = jax.shard_map(
            lambda x, w: lax.psum(x @ w, "expert"),
            mesh=TWO,
            in_specs=(rows, P("expert")),
            out_specs=P("data"),
        )
        arguments = struct(TWO, (512, 128), *rows), struct(TWO, (128, 64), "expert")
        assert not said(explain(f, *arguments), ROWS)
        return
    f = mixture(experts, TWO, "expert", rows, is_looped=is_looped)
    found = said(explain(f, *tensors(TWO, "expert", rows, dtype)), ROWS)
    assert len(found) == count and all("along expert" in one for one in found)


def test_its_values_are_those_of_no_program_on_one_device():
    w = [
        jax.random.normal(jax.random.key(n), s.shape) / 8
        for n, s in enumerate(tensors(EIGHT, "s", P()))
    ]
    right = mixture(experts, EIGHT, "s", P())(*w)
    wrong = mixture(experts, EIGHT, "s", P("s"))(*w)
    assert not np.allclose(right, wrong, atol=1e-2)
    repeats = np.asarray(wrong - w[0]).reshape(8, 64, 128)
    assert np.allclose(repeats, repeats[:1], atol=1e-4)


def test_gradients_of_samples_have_a_finding_of_their_own():
    def gradients(w, x):
        return jax.vmap(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))), (None, 0))(w, x)

    f = jax.shard_map(gradients, mesh=EIGHT, in_specs=(P(), P("s")), out_specs=P("s"))
    report = explain(f, struct(EIGHT, (32, 16)), struct(EIGHT, (1024, 32), "s"))
    assert report.findings[0].title == "added over samples" and not said(report, ROWS)


def test_the_forward_pass_of_what_is_differentiated_is_looked_at():
    f = mixture(experts, EIGHT, "s", P("s"))
    grads = jax.grad(lambda x, *w: jnp.sum(f(x, *w) ** 2), argnums=(0, 2, 3))
    assert len(said(explain(grads, *tensors(EIGHT, "s", P("s"))), ROWS)) == 1
    right = jax.grad(lambda x, *w: jnp.sum(mixture(experts, EIGHT, "s", P())(x, *w) ** 2))
    assert not said(explain(right, *tensors(EIGHT, "s", P())), ROWS)


def repeated_on_purpose(x):
    """All inputs are the same along s."""
    return 2 * x


def own_number(x):
    return lax.psum(x.sum(), "s")[None]


def mean_of_rows(x):
    """The mean of all rows, for each row."""
    return jnp.broadcast_to(lax.pmean(x.mean(0), "s"), x.shape)


def less_its_mean(x):
    return x - lax.pmean(x, "s")


def scattered(x):
    return lax.psum_scatter(lax.all_gather(x, "s", tiled=True), "s", tiled=True)


def own_rows(x):
    total = lax.psum(lax.all_gather(x, "s", tiled=True), "s")
    return lax.dynamic_slice_in_dim(total, lax.axis_index("s") * len(x), len(x))


def largest(x):
    """No sum."""
    return lax.pmax(x, "s")


def transposed(x):
    return lax.psum(x.T @ x, "s")


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize(
    "f",
    [
        repeated_on_purpose,
        own_number,
        mean_of_rows,
        less_its_mean,
        scattered,
        own_rows,
        largest,
        transposed,
    ],
)
def test_what_is_equal_on_purpose_or_differs_is_not_told(f, is_checked):
    inputs = P() if f is repeated_on_purpose else P("s")
    specs = {"in_specs": inputs, "out_specs": P("s"), "check_vma": is_checked}
    report = explain(jax.shard_map(f, mesh=EIGHT, **specs), struct(EIGHT, (64, 64), *inputs))
    assert not said(report, ROWS), report
