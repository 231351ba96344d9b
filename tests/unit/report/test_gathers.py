"""explain() on what is gathered several times, and on sums larger than what could be gathered."""

import contextlib
import inspect

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from steps import grid, struct

from shardlab import Pod
from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

HERE = "test_gathers.py"
ROW = grid((8,), ("data",))
GRID = grid((2, 4), ("data", "model"))


def pod_of(backend):
    """The pod whose compiler to ask; None for that of CPUs."""
    if backend == "cpu":
        return None
    if Pod(backend).compiler is None:
        pytest.skip("no compiler for TPUs is installed")
    return Pod(backend)


def said(report, title):
    return [finding for finding in report.findings if finding.title == title]


def line(function, text):
    lines, first = inspect.getsourcelines(function)
    return f"{HERE}:{first + next(n for n, line in enumerate(lines) if text in line)}"


def to(x, *spec, mesh=ROW):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


# --- Gathered several times ----------------------------------------------------------------------


def chunked(table, hidden):
    """A loss in four parts, each of which gathers the table for itself."""

    @jax.checkpoint
    def part(table, hidden):
        return jnp.mean(jax.nn.logsumexp(to(hidden @ table.T, "data"), -1))

    def loss(table):
        return sum(part(table, hidden[n]) for n in range(4))

    return table - jax.grad(loss)(table)


def chunked_of_one(table, hidden):
    """The same, with one gather outside of the parts."""

    @jax.checkpoint
    def part(whole, hidden):
        return jnp.mean(jax.nn.logsumexp(to(hidden @ whole.T, "data"), -1))

    def loss(table):
        whole = to(table)
        return sum(part(whole, hidden[n]) for n in range(4))

    return table - jax.grad(loss)(table)


def shared_layer(table, hidden):
    """One layer three times: each backward pass gathers its weight again."""
    layer = jax.checkpoint(lambda h, w: to(jnp.tanh(h @ to(w)), "data"))

    def loss(w):
        h = hidden[0]
        for _ in range(3):
            h = layer(h, w)
        return jnp.mean(h**2)

    return table - jax.grad(loss)(table)


def layers_again(tables, hidden):
    """FSDP: the backward pass gathers each weight once more, inside of two checkpoints."""
    layer = lambda h, w: to(jnp.tanh(h @ to(w)), "data")  # noqa: E731

    @jax.checkpoint
    def group(h, tables):
        for w in tables:
            h = jax.checkpoint(layer)(h, w)
        return h

    def loss(tables):
        return jnp.mean(group(hidden[0], tables) ** 2)

    return jax.tree.map(lambda a, b: a - b, tables, jax.grad(loss)(tables))


TABLE, SQUARE = struct(ROW, (4096, 256), None, "data"), struct(ROW, (256, 256), "data")
HIDDEN = struct(ROW, (4, 512, 256), None, "data")


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize(
    ("f", "weights", "times", "text"),
    [
        (chunked, TABLE, 4, "hidden @ table.T"),
        (shared_layer, SQUARE, 3, "to(w)"),
        (chunked_of_one, TABLE, 0, ""),
        (layers_again, [SQUARE] * 3, 0, ""),
    ],
    ids=["chunked", "shared layer", "one gather", "nested checkpoints"],
)
def test_what_one_pass_gathers_several_times_is_told(f, weights, times, text, backend):
    layouts = jax.tree.map(lambda w: w.sharding, weights)
    step = jax.jit(f, donate_argnums=0, out_shardings=layouts)
    report = explain(step, weights, HIDDEN, mesh=pod_of(backend))
    found = said(report, "gathered several times")
    assert len(found) == (times > 0), report
    if times:
        assert f"is gathered {times} times along data" in found[0].says
        place = line(f, text) if "to(" not in text else line(to, "return")
        assert place in found[0].says and found == list(report.findings[:1])


def test_gathered_once_it_sends_what_the_finding_says():
    options = {"donate_argnums": 0, "out_shardings": TABLE.sharding}
    before, after = (
        explain(jax.jit(f, **options), TABLE, HIDDEN) for f in (chunked, chunked_of_one)
    )
    gathers = [
        sum(move.total for move in report.moves if move.kind == "all-gather")
        for report in (before, after)
    ]
    assert gathers[0] == 4 * gathers[1]
    assert f"would be {gathers[1] / 1e6:.2f} MB" in said(before, "gathered several times")[0].says


# --- Sums larger than what could be gathered ------------------------------------------------------


def logits(w, x, y):
    hidden = to(jnp.tanh(x @ w["up"]), "data", "model", mesh=GRID)
    scores = hidden @ w["out"]
    return jnp.mean((jax.nn.logsumexp(scores, -1) - y) ** 2)


def through_a_scan(w, x, y):
    def body(total, x):
        return total + logits(w, x, y[0]), None

    return lax.scan(jax.checkpoint(body), 0.0, x[None])[0]


def mapped_over(w, x, y):
    return jnp.mean(jax.vmap(lambda x, y: logits(w, x, y))(x[None], y[None]))


def explicitly(w, x, y):
    hidden = jnp.tanh(jnp.einsum("bd,df->bf", x, w["up"], out_sharding=P("data", "model")))
    scores = jnp.einsum("bf,fv->bv", hidden, w["out"], out_sharding=P("data"))
    return jnp.mean((jax.nn.logsumexp(scores, -1) - y) ** 2)


def data_of(mesh, size, *spec):
    """Weights whose second has a number of columns, and a batch."""
    w = {"up": struct(mesh, (256, 256)), "out": struct(mesh, (256, size), *spec)}
    return w, struct(mesh, (512, 256), "data"), struct(mesh, (512,), "data")


TITLE = "sum larger than its operand"


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("is_gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("f", [logits, through_a_scan, mapped_over, explicitly])
def test_sums_of_logits_are_told_where_activations_could_be_gathered(f, is_gradient, backend):
    mesh = grid((2, 4), ("data", "model"), AxisType.Explicit) if f is explicitly else GRID
    with jax.set_mesh(mesh) if f is explicitly else contextlib.nullcontext():
        arguments = data_of(mesh, 8192, "model")
        report = explain(jax.grad(f) if is_gradient else f, *arguments, mesh=pod_of(backend))
    found = said(report, TITLE)
    assert found and found[0] is report.findings[0], report
    assert "w['out']" in found[0].says and "the dimension of 8,192" in found[0].says


@pytest.mark.parametrize(
    ("size", "spec"), [(256, ("model",)), (8192, (None, "model"))], ids=["rows", "columns"]
)
def test_sums_of_rows_and_columns_as_they_should_be_are_not_told(size, spec):
    assert not said(explain(jax.grad(logits), *data_of(GRID, size, *spec)), TITLE)


def test_its_remedy_sends_less():
    (found,) = said(explain(logits, *data_of(GRID, 8192, "model"), try_remedies=True), TITLE)
    assert found.tried.is_better and found.tried.bytes[1] < found.tried.bytes[0] / 10
