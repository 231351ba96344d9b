"""`explain` names the line that needs an array whole, not the line that made it: an operation on a
line of its own.
"""

import functools
import inspect
import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from steps import pod_of

from shardlab import Pod, explain

pytestmark = pytest.mark.reads("src/shardlab")

MESH = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))


def struct(shape, *spec, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, P(*spec)))


GRID = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)


def on_grid(shape, *spec):
    return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(GRID, P(*spec)))


# What each program does with h, whose 512 rows are sharded, on the third of four lines; and a word
# of the cause.
OPERATIONS = {
    "with_sharding_constraint": (
        "lax.with_sharding_constraint(h, NamedSharding(MESH, P()))",
        "asked for",
    ),
    "cumsum": ("jnp.cumsum(h, 0)", "cumsum"),
    "cumprod of a product": ("jnp.cumprod(1 + h * 1e-3, 0)", "cumprod"),
    "scan": ("lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(256), h)[1]", "a loop"),
    "map": ("lax.map(lambda r: jnp.tanh(r) * r.sum(), h)", "a loop"),
    "flip": ("jnp.flip(h, 0)", "reversed"),
    "dynamic_slice": ("lax.dynamic_slice_in_dim(h, i, 100)", "a slice"),
    "sort": ("jnp.sort(h, 0)", ""),
    "argsort": ("jnp.argsort(h, 0)", ""),
    "nonzero": ("jnp.nonzero(h > 0, size=64)[0]", ""),
    "top_k": ("lax.top_k(h.T, 5)[0]", ""),
    "callback": (
        (
            "jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(h.shape, h.dtype), h, "
            "vmap_method='broadcast_all')"
        ),
        "a callback",
    ),
    "segment_sum": ("jax.ops.segment_sum(h, jnp.arange(512) // 3, 200)", ""),
    "roll": ("jnp.roll(h, 3, 0)", ""),
    "concatenate": ("jnp.concatenate([h, h[:8]])", ""),
    "fft": ("jnp.abs(jnp.fft.fft(h, axis=0))", "a Fourier transform"),
    "qr": ("jnp.linalg.qr(h)[0]", "no distributed"),
    "inv": ("jnp.linalg.inv(h[:256])", ""),
    "median": ("jnp.median(h, 0)", ""),
    "take": ("h[j]", ""),
    "product with itself": ("h @ h.T", ""),
    "loop of cumsums": ("lax.fori_loop(0, 3, lambda k, a: jnp.cumsum(a, 0) * 1e-3, h)", ""),
}


def program(operation, folder):
    """A function whose third line alone is the culprit, in a file of its own."""
    source = (
        f"def f(x, w, i, j):\n    h = jnp.tanh(x @ w)\n    y = {operation}\n    return jnp.exp(y) "
        "* 2\n"
    )
    file = folder / "program.py"
    file.write_text(source)
    linecache.checkcache()
    names = {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "lax": lax,
        "NamedSharding": NamedSharding,
        "P": P,
        "MESH": MESH,
    }
    exec(compile(source, str(file), "exec"), names)
    return names["f"]


ARGUMENTS = (
    struct((512, 256), "d"),
    struct((256, 256)),
    struct((), dtype="int32"),
    struct((512,), dtype="int32"),
)


@pytest.mark.parametrize(("operation", "word"), OPERATIONS.values(), ids=OPERATIONS)
def test_the_line_that_needs_an_array_whole_is_named(operation, word, tmp_path):
    moves = explain(program(operation, tmp_path), *ARGUMENTS).moves
    assert moves and {move.line for move in moves} == {3}
    assert any(word in move.cause for move in moves), [move.cause for move in moves]
    assert not any("clash" in move.cause or "on purpose" in move.cause for move in moves)


def titles(report):
    return [finding.title for finding in report.findings]


def test_what_made_the_array_is_named_too(tmp_path):
    (move,) = explain(program("jnp.cumsum(h, 0)", tmp_path), *ARGUMENTS).moves
    assert move.made == "program.py:2" and "made in program.py:2" in repr(
        explain(program("jnp.cumsum(h, 0)", tmp_path), *ARGUMENTS)
    )


def test_a_constraint_that_keeps_the_shards_is_not_blamed(tmp_path):
    kept = "jnp.cumsum(lax.with_sharding_constraint(h, NamedSharding(MESH, P('d'))), 0)"
    (move,) = explain(program(kept, tmp_path), *ARGUMENTS).moves
    assert move.cause.startswith("cumsum")


@jax.jit
def layer(h):
    return jnp.cumsum(jnp.tanh(h))


def test_a_second_report_is_about_the_second_program():
    """JAX keeps what it has traced, with the lines of the program that it traced first."""

    def before(x):
        return jnp.nonzero(x > 0, size=128)[0]

    def after(x):
        y = x * 2
        z = jnp.nonzero(y > 1, size=128)[0]
        return z + 1

    first = after.__code__.co_firstlineno
    explain(before, struct((4096,), "d"))
    assert {move.line for move in explain(after, struct((4096,), "d")).moves} == {first + 2}
    inner = layer.__wrapped__.__code__.co_firstlineno + 2
    for f in (lambda x: layer(x * 2), lambda x: layer(x + 1)):
        assert {move.line for move in explain(f, struct((4096,), "d")).moves} == {inner}


# --- Loops ----------------------------------------------------------------------------------------


def accumulated(w, xs):
    def body(g, x):
        return g + jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), None

    return lax.scan(body, jnp.zeros_like(w), xs)[0]


def with_statistics(w, x):
    def body(h, _):
        return jnp.tanh(h @ w), jnp.mean(h)

    return lax.scan(body, x, length=12)


def test_a_second_program_has_its_own_line_of_a_map():
    w, x = struct((64, 64)), struct((16, 32, 64), "d")

    def first(w, x):
        return lax.map(lambda row: jnp.tanh(row @ w), x)

    def second(w, x):
        return lax.map(lambda row: jnp.tanh(row @ w), x)

    for f in (first, second, first):
        (move,) = explain(f, w, x).moves
        assert move.line == inspect.getsourcelines(f)[1] + 1, f.__name__


def test_sums_in_a_loop_that_could_come_after_it_are_told():
    micro = struct((4, 64, 128), None, "d")
    (added,) = (
        f
        for f in explain(accumulated, struct((128, 128)), micro).findings
        if f.title == "summed in a loop"
    )
    assert "4 all-reduces" in added.says and "once after the loop" in added.says
    (kept,) = (
        f
        for f in explain(with_statistics, struct((64, 64)), struct((64, 64), "d")).findings
        if f.title == "summed in a loop"
    )
    assert "12 all-reduces of 7 bytes" in kept.says


def test_a_sum_that_an_iteration_needs_is_not():
    def normalised(w, x):
        def body(h, _):
            return jnp.tanh(h @ w) / jnp.sum(h), None

        return lax.scan(body, x, length=12)[0]

    def squared(x):
        return lax.fori_loop(0, 4, lambda i, total: total + jnp.sum(x * i) ** 2, 0.0)

    def residual(up, down, h):
        return lax.scan(lambda h, w: (h + jnp.tanh(h @ w[0]) @ w[1], None), h, (up, down))[0]

    def gradients(up, down, h):
        return jax.grad(lambda *args: jnp.mean(residual(*args) ** 2), (0, 1))(up, down, h)

    columns, rows = struct((4, 64, 256), None, None, "d"), struct((4, 256, 64), None, "d")
    layers = columns, rows, struct((64, 64))
    for f, args in (
        (normalised, (struct((64, 64)), struct((64, 64), "d"))),
        (squared, (struct((64,), "d"),)),
        (residual, layers),
        (gradients, layers),
    ):
        report = explain(f, *args)
        assert report.moves and "summed in a loop" not in titles(report)


def test_a_map_over_shards_is_repeated_work():
    def energies(w, xs):
        return lax.map(lambda x: jnp.sum(jnp.tanh(x @ w) ** 2), xs)

    report = explain(energies, struct((64, 256)), struct((512, 64), "d"))
    (move,) = (move for move in report.moves if move.array == "xs")
    assert move.cause.startswith("a loop")
    assert "8 times the FLOPs" in next(
        f.says for f in report.findings if f.title == "repeated work"
    )


def test_rows_come_by_time_and_many_small_collectives_are_told():
    def loss(ps, ws, x):
        h = lax.scan(lambda h, w: (h * lax.rsqrt(jnp.mean(h * h) + 1e-6) * w, None), x, ws)[0]
        for p in ps:
            h = jnp.tanh(h @ p)
        return jnp.mean(h**2)

    sizes = range(64, 152, 8)
    ps = [struct((a, a + 8), "d") for a in sizes]
    report = explain(loss, ps, struct((200, 64)), struct((64, 64), "d"))
    assert report.moves[0].times == 200 and report.moves[0].kind == "all-reduce"
    assert [move.seconds for move in report.moves] == sorted(
        (move.seconds for move in report.moves), reverse=True
    )
    (many,) = (finding for finding in report.findings if finding.title == "many small collectives")
    assert (
        "% of the predicted time" in many.says
        and f"and {len(report.moves) - 10} others" in repr(report)
    )
    assert "many small collectives" not in titles(
        explain(accumulated, struct((128, 128)), struct((4, 64, 128), None, "d"))
    )


# --- Programs that send nothing and are wrong -----------------------------------------------------


def own_gradient(w, x):
    return w - 0.1 * jax.grad(lambda w, x: jnp.mean((x @ w) ** 2))(w, x)


def mean_gradient(w, x):
    return w - 0.1 * lax.pmean(jax.grad(lambda w, x: jnp.mean((x @ w) ** 2))(w, x), "d")


def looped(w, x):
    return lax.scan(lambda c, r: (c + r.sum(), None), 0.0, x)[0] + w.sum()


def one_of_two(w, x):
    return lax.cond(x.sum() > 0, lambda: w, lambda: -w)


def gathered(w, x):
    return lax.all_gather(x, "d", tiled=True) @ w


@pytest.mark.parametrize(
    ("f", "differs"),
    [
        (own_gradient, True),
        (mean_gradient, False),
        (looped, True),
        (one_of_two, True),
        (gathered, False),
    ],
)
def test_a_result_that_is_declared_replicated_and_differs_is_told(f, differs):
    mapped = jax.shard_map(f, mesh=MESH, in_specs=(P(), P("d")), out_specs=P(), check_vma=False)
    report = explain(lambda w, x: mapped(w, x), struct((32, 32)), struct((128, 32), "d"))
    assert (titles(report)[:1] == ["replicated but different"]) == differs
    if differs:
        assert (
            f"shard_map of `{f.__name__}`" in report.findings[0].says
            and "psum" in report.findings[0].says
        )


def dropped(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)


def dropped_by_device(key, x):
    return dropped(jax.random.fold_in(key, lax.axis_index("d")), x)


def layer_with_bias(key, x):
    return x @ jax.random.normal(key, (32, 8)) + jax.random.normal(key, (8,))


@pytest.mark.parametrize(
    ("f", "same"), [(dropped, True), (dropped_by_device, False), (layer_with_bias, False)]
)
def test_the_same_noise_for_other_data_is_told(f, same):
    mapped = jax.shard_map(f, mesh=MESH, in_specs=(P(), P("d")), out_specs=P("d"))
    report = explain(mapped, jax.random.key(0), struct((128, 32), "d"))
    assert ("same noise" in titles(report)) == same


@pytest.mark.parametrize(
    ("f", "told"), [(own_gradient, True), (lambda w, x: mean_gradient(w, x), False)]
)
def test_a_pmap_that_adds_up_no_gradient_is_told_and_has_the_names_of_its_function(f, told):
    mapped = jax.pmap(f, axis_name="d")
    report = explain(mapped, jnp.ones((8, 32, 32)), jnp.ones((8, 16, 32)))
    assert ("gradients not summed" in titles(report)) == told
    assert {array.name for array in report.arrays} == {"w", "x"}
    assert not any("jax.jit" in finding.says for finding in report.findings)


def averaged_metrics(w, x, is_summed):
    def loss(w):
        h = x @ w
        # statistics over all devices, as in BatchNorm
        return jnp.mean((h - lax.pmean(h.mean(0), "d")) ** 4)

    value, gradient = jax.value_and_grad(loss)(w)
    gradient = lax.pmean(gradient, "d") if is_summed else gradient
    return w - 0.1 * gradient, lax.pmean(value, "d")


@pytest.mark.parametrize("is_summed", [True, False])
@pytest.mark.parametrize("is_mapped", [True, False])
def test_a_pmap_that_averages_its_metrics_alone_is_told(is_summed, is_mapped):
    axes = {} if is_mapped else {"in_axes": (None, 0), "out_axes": (None, 0)}
    mapped = jax.pmap(
        functools.partial(averaged_metrics, is_summed=is_summed), axis_name="d", **axes
    )
    w = jnp.ones((8, 32, 16)) if is_mapped else jnp.ones((32, 16))
    report = explain(mapped, w, jnp.ones((8, 4, 32)))
    assert ("gradients not summed" in titles(report)) != is_summed
    assert not any(
        "data parallelism" in move.cause or "check_vma" in move.cause for move in report.moves
    )
    assert not any("pmap.py" in finding.says for finding in report.findings)


def test_a_pmap_with_a_number_in_its_state_has_the_names_of_its_function():
    def step(state, x):
        return {"w": state["w"] + lax.pmean(x.sum() * state["w"], "d"), "step": state["step"] + 1}

    mapped = jax.pmap(step, axis_name="d", in_axes=(None, 0), out_axes=None)
    names = {
        array.name
        for array in explain(mapped, {"w": jnp.ones((32, 32)), "step": 0}, jnp.ones((8, 4))).arrays
    }
    assert names == {"state['w']", "state['step']", "x"}


def test_equal_mismatches_are_one_finding():
    def own(ws, x):
        return [w + x.sum() for w in ws]

    mapped = jax.shard_map(own, mesh=MESH, in_specs=(P(), P("d")), out_specs=P(), check_vma=False)
    report = explain(mapped, [struct((32, 32))] * 5, struct((8, 4), "d"))
    different = [
        finding.says for finding in report.findings if finding.title == "replicated but different"
    ]
    assert len(different) == 1 and "5 results, first result 0," in different[0]


def test_donation_is_advised_for_all_that_could_be_and_for_what_is_left():
    def step(model, optimizer, x):
        gradient = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(model)
        optimizer = [0.9 * optimizer[0] + gradient, 0.9 * optimizer[1] + gradient**2]
        return model - optimizer[0], optimizer

    w, x = struct((256, 256), "d"), struct((64, 256), "d")
    for donated, advice in (
        ((), '("optimizer", "model")'),
        (("optimizer",), '"model"'),
        (("optimizer", "model"), ""),
    ):
        report = explain(jax.jit(step, donate_argnames=donated), w, [w, w], x)
        says = [finding.says for finding in report.findings if finding.title == "not donated"]
        assert bool(says) == bool(advice) and all(
            f"donate_argnames={advice})" in one for one in says
        ), says


@pytest.mark.parametrize("is_placed", [True, False])
@pytest.mark.parametrize("kind", [jnp.zeros, np.zeros])
def test_a_state_on_no_mesh_is_told(is_placed, kind):
    """Its second call compiles again."""

    def step(w, m, x):
        m = 0.9 * m + jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * m, m

    rows = NamedSharding(MESH, P("d"))
    w, m, x = (
        jax.device_put(np.ones((256, 256), "float32"), rows),
        kind((256, 256), "float32"),
        np.ones((64, 256), "float32"),
    )
    m = jax.device_put(m, rows) if is_placed else m
    jitted = jax.jit(step)
    report = explain(jitted, w, m, jax.device_put(x, rows))
    assert ("not placed" in titles(report)) != is_placed
    for _ in range(3):
        w, m = jitted(w, m, jax.device_put(x, rows))
    assert jitted._cache_size() == (1 if is_placed else 2)


def test_a_report_with_many_rows_and_findings_has_sixty_lines():
    def step(params, x):
        for p in params:
            x = (
                jnp.tanh(jnp.cumsum(x @ p["a_long_name_of_a_weight"], 0))
                @ p["another_long_name_of_a_weight"]
            )
            x = jnp.sort(x, 0) + jnp.flip(x, 0) + jnp.linalg.qr(x)[0] + jnp.roll(x, 3, 0)
        return x

    names = "a_long_name_of_a_weight", "another_long_name_of_a_weight"
    params = [
        {names[0]: struct((64, n), "d"), names[1]: struct((n, 64), None, "d")}
        for n in (64, 128, 192, 256)
    ]
    lines = repr(explain(step, params, struct((512, 64), "d"))).splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 88


# --- Names, memory, errors ------------------------------------------------------------------------


def test_equinox_arguments_have_their_names_and_its_advice_is_not_held_against_it():
    eqx = pytest.importorskip("equinox")

    def step(net, tokens, key):
        one_hot = jax.nn.one_hot(tokens, 64)
        grads = eqx.filter_grad(lambda net: jnp.mean(jax.vmap(jax.vmap(net))(one_hot) ** 2))(net)
        return eqx.apply_updates(net, jax.tree.map(lambda g: -0.1 * g, grads))

    everywhere = NamedSharding(MESH, P())
    net = eqx.filter_shard(eqx.nn.MLP(64, 64, 256, 2, key=jax.random.key(0)), everywhere)
    tokens = jax.device_put(jnp.zeros((64, 32), jnp.int32), NamedSharding(MESH, P("d")))
    kept, donated = (
        explain(eqx.filter_jit(step, donate=donate), net, tokens, jax.random.key(0))
        for donate in ("none", "all")
    )
    assert any('donate="all"' in finding.says for finding in kept.findings)
    assert "donation not used" not in titles(donated)
    assert {"net.layers[1].weight", "tokens"} <= {array.name for array in kept.arrays}


def test_constants_are_part_of_the_memory():
    table = np.random.default_rng(0).normal(size=(512, 512)).astype("float32")
    report = explain(jax.jit(lambda: {"w": table}, out_shardings=NamedSharding(MESH, P("d"))))
    assert report.memory["constants"] == table.nbytes and "1.05 MB constants" in " ".join(
        repr(report).split()
    )
    assert report.memory["peak"] >= table.nbytes


def test_a_flax_nnx_function_has_the_names_of_its_modules():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.up, self.down = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 64, rngs=rngs)

        def __call__(self, x):
            return self.down(nnx.relu(self.up(x)))

    @nnx.jit
    def step(net, x):
        gradients = nnx.grad(lambda net: jnp.mean(net(x) ** 2))(net)
        nnx.update(
            net, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(net, nnx.Param), gradients)
        )

    net = Net(nnx.Rngs(0))
    nnx.update(
        net,
        jax.tree.map(
            lambda a: jax.device_put(a, NamedSharding(MESH, P("d"))), nnx.state(net, nnx.Param)
        ),
    )
    report = explain(step, net, jax.device_put(jnp.ones((512, 64)), NamedSharding(MESH, P("d"))))
    assert {"net.up.kernel", "net.down.bias", "x"} <= {array.name for array in report.arrays}
    assert {"net.up.kernel", "result net.down.kernel"} <= {move.array for move in report.moves}
    assert not any("states[" in repr(move) for move in report.moves)
    assert any('nnx.jit(..., donate_argnames="net")' in finding.says for finding in report.findings)


def scaled(x):
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True))


def through(x):
    return scaled(x)


def once(w, x):
    return scaled(jnp.tanh(x @ w))


def twice(w, x):
    h = through(jnp.tanh(x @ w))
    return through(h @ w)


@pytest.mark.parametrize("f", [once, twice])
def test_calls_that_lead_to_a_helper_are_told_where_they_differ(f):
    report = explain(f, struct((64, 64), None, "d"), struct((128, 64)))
    lines, first = inspect.getsourcelines(f)
    calls = [f"test_lines.py:{first + n}" for n, line in enumerate(lines) if "through(" in line]
    moves = [move for move in report.moves if move.line == inspect.getsourcelines(scaled)[1] + 1]
    assert moves and [move.callers for move in moves] == ([tuple(calls)] if calls else [()]), report
    assert all(f"called in {', '.join(calls)}" in " ".join(repr(report).split()) for _ in calls)


def stack(w):
    return lax.with_sharding_constraint(w, NamedSharding(MESH, P()))


def in_front(w, x):
    return jnp.mean(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack(w))[0] ** 2)


def inside(w, x):
    return jnp.mean(lax.scan(lambda x, w: (jnp.tanh(x @ stack(w)), None), x, w)[0] ** 2)


def again(w, x):
    return jnp.mean(
        lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ stack(w)), None)), x, w)[0] ** 2
    )


def whole_stack(w, x):
    w = stack(w)
    return jnp.mean(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0] ** 2) + jnp.vdot(w, w)


@pytest.mark.parametrize(("f", "told"), [(in_front, True), (inside, False), (whole_stack, False)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_stack_gathered_before_its_loop_is_told(f, told, dtype):
    report = explain(
        f, struct((6, 64, 64), None, "d", dtype=dtype), struct((128, 64), "d", dtype=dtype)
    )
    gathered = [finding for finding in report.findings if finding.title == "gathered before a loop"]
    assert bool(gathered) == told
    assert all(
        "w is gathered whole" in one.says and "one of its 6 parts" in one.says for one in gathered
    )


def test_a_stack_that_a_helper_gathers_is_told_with_the_line_that_calls_it():
    report = explain(in_front, struct((6, 64, 64), None, "d"), struct((128, 64), "d"))
    (says,) = (finding.says for finding in report.findings)
    line = inspect.getsourcelines(in_front)[1] + 1
    assert (
        f"test_lines.py:{inspect.getsourcelines(stack)[1] + 1}, called in test_lines.py:{line}: w"
        in says
    )


def test_what_a_checkpoint_gathers_again_is_told_at_its_own_line():
    """And what the compiler has joined is told with the number of its other results."""

    rows = NamedSharding(GRID, P(("data", "fsdp")))

    def layer(x, w):
        h = jnp.tanh(x @ w["up"])
        return lax.with_sharding_constraint(x + h @ w["down"], rows), None

    def loss(w, x):
        return jnp.mean(lax.scan(jax.checkpoint(layer), x, w)[0] ** 2)

    weights = {
        "up": on_grid((4, 64, 256), None, "fsdp"),
        "down": on_grid((4, 256, 64), None, None, "fsdp"),
    }
    report = explain(jax.grad(loss), weights, on_grid((64, 64), ("data", "fsdp")))
    first = inspect.getsourcelines(layer)[1]
    gathers = [move for move in report.moves if move.kind == "all-gather"]
    both = {(phase, line) for phase in ("forward", "backward") for line in (1, 2)}
    assert {(move.phase, move.line - first) for move in gathers} == both
    assert not any("not known" in move.cause for move in gathers)
    (gradient,) = (
        move for move in report.moves if move.kind == "all-reduce" and len(move.types) > 1
    )
    assert gradient.others == 1 and "and 1 other," in " ".join(repr(report).split())


def bound(x, spec):
    return lax.with_sharding_constraint(x, NamedSharding(MESH, spec))


def changed(x, spec):
    return bound(x, spec)


def through_a_library(x):
    x = changed(jnp.sin(x), P(None, "d"))
    return changed(jnp.cos(x), P("d"))


def test_frames_of_a_library_in_which_all_calls_agree_are_left_out():
    report = explain(through_a_library, struct((64, 64), "d"))
    first = inspect.getsourcelines(through_a_library)[1]
    assert {move.line for move in report.moves} == {inspect.getsourcelines(bound)[1] + 1}
    assert {move.callers for move in report.moves} == {
        (f"test_lines.py:{first + n}",) for n in (1, 2)
    }


@pytest.mark.parametrize(("f", "kept"), [(in_front, 1), (inside, 1), (again, 0)])
def test_gathered_weights_that_are_kept_for_the_backward_pass_are_told(f, kept):
    report = explain(jax.grad(f), struct((6, 64, 64), None, "d"), struct((128, 64), "d"))
    assert report.memory.get("gathered", 0) == kept * 6 * 64 * 64 * 4
    assert (
        "are gathered arguments kept for the backward pass" in " ".join(repr(report).split())
    ) == bool(kept)


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
def test_what_a_loop_in_a_loop_gathers_has_its_name(backend):
    def step(params, batches):
        def loss(params, x):
            x, _ = lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None)), x, params)
            return jnp.mean(x**2)

        add = lambda total, x: (total + jax.grad(loss)(params, x), None)  # noqa: E731
        return params - lax.scan(add, jnp.zeros_like(params), batches)[0]

    params = struct((4, 256, 256), None, "d")
    step = jax.jit(step, donate_argnums=0, out_shardings=params.sharding)
    report = explain(step, params, struct((4, 4096, 256), None, "d"), mesh=pod_of(backend))
    gathers = [move for move in report.moves if move.kind == "all-gather"]
    assert len(gathers) > 1 and {move.array for move in gathers} == {"params"}, report


def test_an_operation_without_a_result_in_a_shard_map_is_explained():
    def printed(x):
        jax.debug.print("{}", x.sum())
        return x * 2

    mapped = jax.shard_map(printed, mesh=MESH, in_specs=P("d"), out_specs=P("d"))
    assert explain(mapped, struct((64, 8), "d")).bytes == 0


def test_reports_of_which_one_has_constants_can_be_compared():
    table = np.random.default_rng(0).normal(size=(512, 512)).astype("float32")
    x = struct((512, 512), "d")
    changed = explain.compare(
        explain(lambda x: x @ table, x), explain(lambda x: x @ jnp.ones((512, 512)), x)
    )
    assert "constants" in repr(changed) and "1.05 MB" in repr(changed)


def layers(weights, x):
    gradient = jax.grad(
        lambda weights: jnp.mean(functools.reduce(lambda h, w: jnp.tanh(h @ w), weights, x) ** 2)
    )
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient(weights))


@pytest.mark.parametrize(
    ("weight", "rows", "batch", "told"),
    [
        (("fsdp",), 4096, ("data",), "what is computed from it sends"),
        (("fsdp",), 4096, (("data", "fsdp"),), ""),
        # a batch so small that gathering the weights would send more
        (("fsdp",), 64, ("data",), ""),
        ((), 4096, ("data",), ""),  # nothing is in shards along the axis
    ],
)
def test_data_that_lack_an_axis_of_the_parameters_are_told(weight, rows, batch, told):
    weights = [on_grid((64, 64), *weight)] * 3
    found = [
        f
        for f in explain(layers, weights, on_grid((rows, 64), *batch)).findings
        if f.title.startswith("data")
    ]
    assert bool(found) == bool(told)
    assert all("x is not sharded over fsdp" in one.says and told in one.says for one in found)


def test_moments_do_not_hide_data_that_lack_an_axis():
    def trained(state, tokens):
        def loss(params):
            h = functools.reduce(
                lambda h, w: h + jnp.tanh(h @ w), params["layers"], params["embed"][tokens]
            )
            return jnp.mean((h @ params["embed"].T) ** 2)

        moments = jax.tree.map(
            lambda m, g: 0.9 * m + g, state["moments"], jax.grad(loss)(state["params"])
        )
        return {
            "params": jax.tree.map(lambda w, m: w - m, state["params"], moments),
            "moments": moments,
        }

    params = {"embed": on_grid((256, 64), None, "fsdp"), "layers": [on_grid((64, 64), "fsdp")] * 2}
    tokens = jax.ShapeDtypeStruct((64, 32), "int32", sharding=NamedSharding(GRID, P("data")))
    report = explain(
        jax.jit(trained, donate_argnums=0), {"params": params, "moments": params}, tokens
    )
    assert any("tokens is not sharded over fsdp" in finding.says for finding in report.findings), (
        titles(report)
    )


def test_parameters_in_a_list_are_one_finding():
    weights = [on_grid((64, 64)) for _ in range(20)]
    report = explain(layers, weights, on_grid((512, 64), ("data", "fsdp")))
    replicated = [finding.says for finding in report.findings if finding.title == "replicated"]
    assert len(replicated) == 1 and "weights[*] (20 arrays), " in replicated[0]
    sharded = [
        jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=NamedSharding(GRID, P("fsdp")))
        for w in weights
    ]
    step = jax.jit(layers, out_shardings=[NamedSharding(GRID, P())] * 20)
    other = [f.says for f in explain(step, sharded, on_grid((512, 64), ("data", "fsdp"))).findings]
    assert any(
        "20 results, first result[0], have the types of weights[*]" in says for says in other
    ), other


def test_a_ragged_all_to_all_points_to_a_compiler_that_has_it():
    def exchanged(x, out, *offsets):
        return lax.ragged_all_to_all(x, out, *offsets, axis_name="d")

    mapped = jax.shard_map(exchanged, mesh=MESH, in_specs=P("d"), out_specs=P("d"))
    args = [struct((64, 4), "d")] * 2 + [struct((64,), "d", dtype="int32")] * 4
    with pytest.raises(NotImplementedError, match=r"no ragged-all-to-all.*Pod"):
        explain(mapped, *args)


@pytest.mark.parametrize("size", [8, 16])
def test_a_struct_on_an_abstract_mesh_is_explained(size):
    mesh = jax.sharding.AbstractMesh((size,), ("d",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((64, 4), "float32", sharding=NamedSharding(mesh, P("d")))
    if size > jax.device_count():
        with pytest.raises(
            ValueError, match=r"16 devices, and 8 are here: begin with emulate\(16\)"
        ):
            explain(jnp.sum, x)
    else:
        assert [move.kind for move in explain(jnp.sum, x).moves] == ["all-reduce"]


def test_a_program_that_names_its_mesh_is_compiled_for_a_pod():
    grid = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    args = [
        jax.ShapeDtypeStruct((256, 256), "float32", sharding=NamedSharding(grid, P(spec)))
        for spec in (None, "data")
    ]

    def own(w, x):
        return lax.with_sharding_constraint(x @ w, NamedSharding(grid, P("data", "model")))

    def current(w, x):
        h = lax.with_sharding_constraint(x @ w, P("data", "model"))
        return jax.shard_map(
            lambda h: lax.psum(h, "model"), in_specs=P("data", "model"), out_specs=P("data")
        )(h)

    pod = Pod("v5e:4x2")
    named = explain(own, *args, mesh=pod)
    assert named.compiled_for == "v5e:4x2" and {array.name for array in named.arrays} == {"w", "x"}
    with jax.set_mesh(grid):
        there = explain(current, *args, mesh=pod)
    assert there.compiled_for == "v5e:4x2"
    mine = jax.shard_map(
        lambda h: lax.psum(h, "model"), mesh=grid, in_specs=P("data", "model"), out_specs=P("data")
    )
    there_too = explain(lambda w, x: mine(own(w, x)), *args, mesh=pod)
    assert [(move.kind, move.axes, move.bytes) for move in there_too.moves] == [
        (move.kind, move.axes, move.bytes) for move in there.moves
    ]


# --- Kernels --------------------------------------------------------------------------------------


def ringed(x, mesh, interpret, estimate=None):
    """Each device sends its shard to the next one, in a kernel; or with `mesh` None, to no
    other.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x_ref, o_ref, sent, received):
        here = lax.axis_index("data")
        if mesh is None:
            copy = pltpu.make_async_copy(x_ref, o_ref, sent)
        else:
            copy = pltpu.make_async_remote_copy(
                x_ref, o_ref, sent, received, device_id={"data": lax.rem(here + 1, 4)}
            )
        copy.start()
        copy.wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((16, 128), x.dtype),
        name="my_ring",
        in_specs=[anywhere],
        out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        interpret=interpret,
        cost_estimate=estimate,
    )
    return jax.shard_map(call, in_specs=P("data"), out_specs=P("data"), check_vma=False)(x)


def test_a_kernel_that_communicates_is_named_and_the_rest_is_kept():
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((64, 128), "float32", sharding=NamedSharding(mesh, P("data")))
    declared = pl.CostEstimate(
        flops=0, transcendentals=0, bytes_accessed=0, remote_bytes_transferred=8192
    )
    with jax.set_mesh(mesh):
        here = explain(lambda x: ringed(x, mesh, pltpu.InterpretParams()), x)
        alone = explain(lambda x: ringed(x, None, pltpu.InterpretParams()), x)
        there = explain(lambda x: ringed(2 * x, mesh, False, declared), x, mesh=Pod("v5e:4x2"))
    assert (
        here.kernels == {"my_ring": None}
        and alone.kernels == {}
        and there.kernels == {"my_ring": 8192}
    )
    assert "Kernel `my_ring` communicates; its bytes are not in the program." in " ".join(
        repr(here).split()
    )
    assert "it declares 8,192 bytes" in " ".join(
        repr(there).split()
    ) and "It sends nothing." in repr(alone)
    assert there.memory["arguments"] > 0 and here.arrays[0].name == "x"


def test_without_layouts_of_results_they_are_still_listed(monkeypatch):
    """As in JAX 0.7, where the results of a program with callbacks have none."""

    def without_layouts(compiled):
        raise AssertionError

    def report():
        return repr(explain(lambda x: (x, x.sum(0)), struct((16, 8), "d")))

    whole = report()
    monkeypatch.setattr(jax.stages.Compiled, "out_info", property(without_layouts))
    assert "result[1]" in whole and report() == whole
