"""explain() on what is gathered several times, and on sums larger than what could be gathered."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from steps import grid, line, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

HERE = "test_gathers.py"
ROW = grid((8,), ("data",))
GRID = grid((2, 4), ("data", "model"))


def said(report, title):
    return [finding for finding in report.findings if finding.title == title]


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


def two_products(layout):
    """A product of rows in shards with two weights in columns, each in a checkpoint of its own."""
    project = jax.checkpoint(lambda x, w: x @ w)  # two_products

    def step(weights, x):
        gate, up, down = weights
        x = to(x * 2.0, *layout)
        y = to((jax.nn.silu(project(x, gate)) * project(x, up)) @ down, "data")
        return jnp.mean(y**2)

    return jax.value_and_grad(step)


TWO = (
    [struct(ROW, (256, 1024), None, "data")] * 2 + [struct(ROW, (1024, 256), "data")],
    struct(ROW, (512, 256), "data"),
)


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
def test_what_is_gathered_has_the_type_of_the_array(backend):
    """An asynchronous gather of a TPU is a tuple with semaphores."""
    report = explain(two_products(["data"]), *TWO, mesh=pod_of(backend))
    found = [one.says for one in said(report, "gathered several times")]
    assert found and all("u32" not in one for one in found), report
    assert any("[512,256] is gathered 2 times" in one for one in found)
    sizes = {"cpu": "524 kB", "v5e:2x4": "262 kB"}
    assert all(f"each device would hold {sizes[backend]}" in one for one in found)


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
def test_a_weight_that_is_gathered_in_the_background_is_kept_too(backend):
    def step(weights, x):
        def loss(weights):
            h = x
            for w in weights:
                h = to(jnp.tanh(h @ to(w)), "data")
            return jnp.mean(h**2)

        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

    weights = [struct(ROW, (512, 512), "data")] * 3
    f = jax.jit(step, donate_argnums=0, out_shardings=[w.sharding for w in weights])
    report = explain(f, weights, struct(ROW, (64, 512), "data"), mesh=pod_of(backend))
    each = 512 * 512 * (4 if backend == "cpu" else 2)  # a TPU sends bfloat16
    assert report.memory["gathered"] == 2 * each, report  # nothing goes back to the first input


def test_findings_equal_in_words_are_one():
    """The gathers of the forward pass, and those of the backward pass."""

    def project(x, w):
        return to(x, "data") @ w

    def step(weights, x):
        gate, up, down = weights
        x = x * 2.0
        gate, up = jax.checkpoint(project)(x, gate), jax.checkpoint(project)(x, up)
        return jnp.mean(((jax.nn.silu(gate) * up) @ down) ** 2)

    report = explain(jax.value_and_grad(step), *TWO)
    assert len(said(report, "gathered several times")) == 1, report
    assert len(set(report.findings)) == len(report.findings)


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


# --- Heads that an axis cuts ----------------------------------------------------------------------


def attend(params, x):
    """Attention in which several heads of queries share one of keys and of values."""
    b, t, _ = x.shape
    q, k, v = (jnp.einsum("btd,dnh->btnh", x, params[name]) for name in "qkv")
    q = q.reshape(b, t, k.shape[2], -1, q.shape[-1])
    scores = jax.nn.softmax(jnp.einsum("btkgh,bskh->bkgts", q, k))
    mixed = jnp.einsum("bkgts,bskh->btkgh", scores, v).reshape(b, t, -1, q.shape[-1])
    return jnp.einsum("btnh,nhd->btd", mixed, params["o"])


def joined(params, x):
    """The same with queries, keys and values of one weight."""
    b, t, _ = x.shape
    q, k, v = jnp.split(x @ params["qkv"], params["ends"], -1)
    q = q.reshape(b, t, 2, -1, 64)
    k, v = (a.reshape(b, t, 2, 64) for a in (k, v))
    scores = jax.nn.softmax(jnp.einsum("btkgh,bskh->bkgts", q, k))
    mixed = jnp.einsum("bkgts,bskh->btkgh", scores, v).reshape(b, t, -1)
    return mixed @ params["o"]


def summed(f):
    return lambda params, x: jnp.mean(f(params, x) ** 2)


def scanned(f):
    def over_layers(params, x):
        def body(x, w):
            return x + f(w, x), None

        return jnp.mean(lax.scan(jax.checkpoint(body), x, params)[0] ** 2)

    return over_layers


def of_layers(form, params):
    """The parameters of one layer; for a scan over layers, of two."""
    if form is not scanned:
        return params
    return {name: struct(GRID, (2, *w.shape), None, *w.sharding.spec) for name, w in params.items()}


def over_samples(f):
    return lambda params, x: jnp.mean(jax.vmap(lambda x: f(params, x[None])[0])(x) ** 2)


def weights(heads, *spec, query=(None, "model")):
    return {
        "q": struct(GRID, (256, 8, 64), *query),
        "k": struct(GRID, (256, heads, 64), *spec),
        "v": struct(GRID, (256, heads, 64), *spec),
        "o": struct(GRID, (8, 64, 256), "model"),
    }


BATCH = struct(GRID, (8, 128, 256), "data")
BY_HEAD_SIZE = weights(2, None, None, "model")


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("is_gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("form", [summed, scanned, over_samples])
def test_keys_in_shards_of_a_head_are_told(form, is_gradient, backend):
    f = form(attend)
    report = explain(
        jax.grad(f) if is_gradient else f,
        of_layers(form, BY_HEAD_SIZE),
        BATCH,
        mesh=pod_of(backend),
    )
    first = report.findings[0]
    assert first.title == "heads split" and line(attend, "btkgh,bskh->bkgts") in first.says, report
    assert "params['k']" in first.says and "2 is no multiple of the 4 devices" in first.says


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("is_gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize(
    "params",
    [weights(2), weights(4, None, "model"), weights(8, None, "model"), weights(1)],
    ids=["keys whole", "as many as devices", "as many as queries", "one head of keys"],
)
def test_whole_heads_are_not_told(params, is_gradient, backend):
    f = summed(attend)
    report = explain(jax.grad(f) if is_gradient else f, params, BATCH, mesh=pod_of(backend))
    titles = {finding.title for finding in report.findings}
    assert not titles & {"heads split", "axis on two dimensions", "axes swapped"}, report


@pytest.mark.parametrize("heads", [2, 4])
def test_a_remedy_of_keys_in_shards_of_a_head_is_tried(heads):
    params = weights(heads, None, None, "model")
    (found,) = said(explain(attend, params, BATCH, try_remedies=True), "heads split")
    assert found.tried.bytes[1] < found.tried.bytes[0], found.tried


@pytest.mark.parametrize("is_gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("heads", [2, 8])
def test_heads_of_a_joined_weight_are_told_where_the_axis_cuts_them(heads, is_gradient):
    mesh = grid((heads,), ("model",)) if heads == 2 else grid((8,), ("model",))
    params = {
        "qkv": struct(mesh, (256, 1280), None, "model"),
        "o": struct(mesh, (1024, 256), "model"),
    }

    def f(params, x):
        return jnp.mean(joined(params | {"ends": (1024, 1152)}, x) ** 2)

    x = struct(mesh, (8, 64, 256))
    report = explain(jax.grad(f) if is_gradient else f, params, x)
    found = said(report, "heads split")
    assert len(found) == (heads == 8), report
    if found:
        assert found[0] is report.findings[0] and "'s rest" not in repr(report)
        assert "params['qkv'] in 8 shards along model" in found[0].says


@pytest.mark.parametrize("is_gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize(("spec", "is_told"), [((None, "model"), True), (("model",), False)])
def test_a_projection_over_the_size_of_heads_is_told(spec, is_told, is_gradient):
    def project(o, mixed):
        mixed = jnp.tanh(to(mixed, "data", "model", None, mesh=GRID))
        return jnp.mean(jnp.einsum("tnh,nhd->td", mixed, o) ** 2)

    arguments = struct(GRID, (16, 64, 512), *spec), struct(GRID, (512, 16, 64), "data", "model")
    f = jax.grad(project) if is_gradient else project
    report = explain(f, *arguments, try_remedies=True)
    found = said(report, "axis on two dimensions")
    assert len(found) == is_told, report
    if is_told:
        assert "Shard the dimension of 16 of o" in found[0].says
        assert found[0].tried.bytes[1] < found[0].tried.bytes[0]


# --- Axes of a weight that are swapped ------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("form", [summed, scanned, over_samples])
@pytest.mark.parametrize(
    ("spec", "is_told"), [(("model", "data"), True), (("data", "model"), False)]
)
def test_swapped_axes_of_a_weight_are_told(spec, is_told, form, backend):
    params = dict.fromkeys("qkv", struct(GRID, (256, 8, 64), *spec))
    params["o"] = struct(GRID, (8, 64, 256), "model", None, "data")
    report = explain(form(attend), of_layers(form, params), BATCH, mesh=pod_of(backend))
    found = said(report, "axes swapped")
    assert len(found) == is_told, report
    if is_told:
        assert "params['q']" in found[0].says and 'P("data", "model")' in found[0].says


# --- Specs of a shard_map that gather -------------------------------------------------------------


def by_scales(spec, is_sliced):
    def layer(x, w, scales):
        def own(x, w, scales):
            if is_sliced:
                size = scales.shape[1] // 4
                scales = lax.dynamic_slice_in_dim(scales, lax.axis_index("model") * size, size, 1)
            return lax.psum(jnp.einsum("ebd,edf->ebf", x, w * scales[:, :, None]), "model")

        specs = P("data", None, "model"), P("data", "model"), spec
        return jax.shard_map(own, mesh=GRID, in_specs=specs, out_specs=P("data"))(x, w, scales)

    return layer


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize(
    ("spec", "is_told"), [(P("data"), True), (P("data", "model"), False)], ids=["gather", "shards"]
)
def test_in_specs_that_gather_what_each_device_slices_are_told(spec, is_told, backend):
    arguments = (
        struct(GRID, (4, 64, 512), "data", None, "model"),
        struct(GRID, (4, 512, 256), "data", "model"),
        struct(GRID, (4, 512), "data", "model"),
    )
    report = explain(by_scales(spec, is_told), *arguments, mesh=pod_of(backend))
    titles = [finding.title for finding in report.findings]
    assert titles[:1] == ["gathered by in_specs"] * is_told, report
    if is_told:
        says = report.findings[0].says
        assert 'write P("data", "model") in place of P("data")' in says and "scales" in says


# --- Sums that a TPU scatters ---------------------------------------------------------------------


def fsdp(layers, x):
    def loss(layers):
        h = x
        for w in layers:
            h = to(jnp.tanh(h @ w), "data")
        return jnp.mean(h**2)

    return jax.tree.map(lambda w, g: w - g, layers, jax.grad(loss)(layers))


def by_rows(w, x):
    """Partial sums of the forward pass, of which a constraint asks for shards."""
    hidden = to(jnp.tanh(x @ w["up"]), "data", "model", mesh=GRID)
    return to(hidden @ w["down"], ("data", "model"), mesh=GRID)


def test_a_sum_that_a_tpu_scatters_belongs_to_what_is_added():
    layers = [SQUARE] * 3
    step = jax.jit(fsdp, donate_argnums=0, out_shardings=[w.sharding for w in layers])
    report = explain(step, layers, struct(ROW, (2048, 256), "data"), mesh=pod_of("v5e:2x4"))
    (move,) = (move for move in report.moves if move.kind == "reduce-scatter")
    assert move.phase == "backward" and move.cause.startswith("a gradient:")
    assert f"{HERE}:{move.line}" == line(fsdp, "h @ w") and move.array.startswith("result[")

    w = {"up": struct(GRID, (256, 1024), None, "model"), "down": struct(GRID, (1024, 256), "model")}
    report = explain(by_rows, w, struct(GRID, (512, 256), "data"), mesh=pod_of("v5e:2x4"))
    sums = [move for move in report.moves if move.kind == "reduce-scatter"]
    assert [move.phase for move in sums] == ["forward"], report
    assert sums[0].cause.startswith("the contracting dimension")


# --- Constraints with an axis too many ------------------------------------------------------------


def micro_batches(spec, is_normed=False):
    def step(params, x):
        micro = to(x.reshape(4, 16, 64, 128), None, spec, mesh=GRID)

        def body(_, x):
            x = x / (1 + jnp.abs(x)) if is_normed else x
            hidden = jnp.tanh(to(x @ params["up"], "data", None, "model", mesh=GRID))
            return None, jnp.mean(to(hidden @ params["down"], "data", mesh=GRID) ** 2)

        return jnp.mean(lax.scan(jax.checkpoint(body), None, micro)[1])

    return step


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("is_gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize(
    ("spec", "is_normed", "columns", "is_told"),
    [
        (("data", "model"), False, (None, "model"), True),
        (("data", "model"), True, (None, "model"), False),  # which each device computes in part
        (("data", "model"), False, (), False),
        ("data", False, (None, "model"), False),
    ],
    ids=["all axes", "all axes for a norm", "weights whole", "data alone"],
)
def test_micro_batches_over_an_axis_of_weights_are_told(
    spec, is_normed, columns, is_told, is_gradient, backend
):
    params = {
        "up": struct(GRID, (128, 512), *columns),
        "down": struct(GRID, (512, 128), *columns[::-1]),
    }
    f = micro_batches(spec, is_normed)
    x = struct(GRID, (64, 64, 128), "data")
    report = explain(jax.grad(f) if is_gradient else f, params, x, mesh=pod_of(backend))
    found = said(report, "constraint with an axis too many")
    assert len(found) == is_told, report
    if is_told:
        assert found[0] is report.findings[0] and "params['up'] has model" in found[0].says
        assert 'write P(None, "data")' in found[0].says


# --- Specs of a shard_map after which all devices compute the same --------------------------------


def scaled(spec):
    """A sum over all of an array, by which each element is scaled."""

    def own(x):
        return jnp.tanh(x * lax.psum(jnp.sum(x), spec[0]))

    mapped = jax.shard_map(own, mesh=GRID, in_specs=P(*spec), out_specs=P(*spec))  # here
    return lambda x: to(mapped(jnp.sin(x)) * 2, ("data", "model"), mesh=GRID)


def ranked(spec):
    """Each device needs the whole dimension."""
    own = lambda x: jnp.sort(x, 0)  # noqa: E731
    mapped = jax.shard_map(own, mesh=GRID, in_specs=P(*spec), out_specs=P(*spec))
    return lambda x: to(mapped(x), ("data", "model"), mesh=GRID)


def returned_whole(spec):
    own = lambda x: jnp.tanh(x)  # noqa: E731
    mapped = jax.shard_map(own, mesh=GRID, in_specs=P(*spec), out_specs=P(*spec))
    return jax.jit(mapped)


def by_index(spec):
    """Devices compute something else of what they have in common."""

    def own(x):
        return lax.psum(jnp.tanh(x * (1 + lax.axis_index("model"))), "model")

    mapped = jax.shard_map(own, mesh=GRID, in_specs=P("data"), out_specs=P("data"))
    return lambda x: to(mapped(x), ("data", "model"), mesh=GRID)


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("program", [scaled, ranked, returned_whole, by_index])
def test_in_specs_that_gather_what_all_devices_then_compute_are_told(
    program, backend, dtype, is_gradient
):
    x = struct(GRID, (4096, 256), ("data", "model"), dtype=dtype)
    for spec in (("data",), (("data", "model"),)):
        f = program(spec)
        if is_gradient:
            f = jax.grad(lambda x, f=f: jnp.mean(f(x).astype("float32") ** 2))
        report = explain(jax.jit(f), x, mesh=pod_of(backend))
        found = said(report, "gathered by in_specs")
        assert len(found) == (program is scaled and spec == ("data",)), report
        assert all('write P(("data", "model")) in place of P("data")' in one.says for one in found)
