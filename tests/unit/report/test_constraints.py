"""explain() on constraints between layers that name other axes than what they get."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, line, pod_of, struct

from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

MESH = grid((4, 2), ("data", "model"))


def put(x, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


def layers_on_the_other_axis(ws, x):
    def layer(x, w):
        x = put(x + jnp.tanh(x @ w["up"]) @ w["down"], "data")
        return put(x, "model"), None  # here

    return jnp.mean(lax.scan(layer, x, ws)[0] ** 2)


def layers(ws, x):
    def layer(x, w):
        return put(x + jnp.tanh(x @ w["up"]) @ w["down"], "data"), None

    return jnp.mean(lax.scan(layer, x, ws)[0] ** 2)


def sequences_to_heads_and_back(ws, x):
    """As in Ulysses, where an all-to-all is meant."""

    def layer(x, w):
        h = put(jnp.tanh(x @ w["up"]), "data", None, "model")
        h = jnp.cumsum(h, 1)
        return put(x + put(h, "data", "model") @ w["down"], "data", "model"), None

    return jnp.mean(lax.scan(layer, x, ws)[0] ** 2)


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("f", [layers_on_the_other_axis, layers, sequences_to_heads_and_back])
def test_a_constraint_that_names_another_axis_is_told_with_that_of_its_operand(
    f, backend, is_gradient
):
    ws = {
        "up": struct(MESH, (4, 256, 1024), None, "data", "model"),
        "down": struct(MESH, (4, 1024, 256), None, "model", "data"),
    }
    x = struct(MESH, (16, 128, 256), "data")
    f, program = f, jax.grad(f) if is_gradient else f
    report = explain(jax.jit(program), ws, x, mesh=pod_of(backend))
    told = [one for one in report.findings if one.title == "order of axes"]
    assert len(told) == (f is layers_on_the_other_axis), report
    for one in told:
        assert line(f, "# here") in one.says and 'write P("data")' in one.says, report


def two_halves(ws, batch):
    def layer(x, w):
        x = put(x + jnp.tanh(x @ w["up"]) @ w["down"], "data")
        return put(x + jnp.sin(x @ w["up"]) @ w["down"], "data"), None

    x = put(jnp.sin(batch["x"]), "data")
    return jnp.mean((lax.scan(layer, x, ws)[0] - batch["y"]) ** 2)


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("axis", ["data", "model"])
def test_data_on_another_axis_than_all_constraints_ask_for_are_told_themselves(axis, backend):
    ws = {
        "up": struct(MESH, (4, 256, 1024), None, "data", "model"),
        "down": struct(MESH, (4, 1024, 256), None, "model", "data"),
    }
    batch = {name: struct(MESH, (16, 128, 256), axis) for name in "xy"}
    report = explain(jax.jit(jax.grad(two_halves)), ws, batch, mesh=pod_of(backend))
    if axis == "data":  # a gradient without out_shardings is whole
        assert {one.title for one in report.findings} <= {"replicated result"}, report
        return
    first = report.findings[0]
    assert first.title == "order of axes", report
    assert "batch['x'] and batch['y'] are in shards along model" in first.says
    assert 'shard the data P("data")' in first.says
    specs = {spec for _, spec in first.remedy.specs}
    assert len(first.remedy.specs) == 2 and specs == {'P("data")'}
    assert len([one for one in report.findings if "constraint" in one.title]) == 0, report


# --- Tokens that enter tensor parallelism ---------------------------------------------------------


def tokens_to_columns(ws, x):
    """Flattened tokens in shards along both axes, gathered before the columns of the weights."""
    for w in ws:
        h = put(x * 1.5, "data")
        h = jax.nn.gelu(h @ w["up"]) @ w["down"]
        x = x + put(h, ("data", "model"))
    return jnp.mean(x**2)


def tokens_to_columns_twice(ws, x):
    """Gate and up, each in its own `jax.checkpoint`, in a loop."""

    def layer(x, w):
        h = put(jnp.tanh(x), "data")
        gate, up = (jax.checkpoint(jnp.dot)(h, w[n]) for n in ("up", "gate"))
        h = (jax.nn.silu(gate) * up) @ w["down"]
        return x + put(h, ("data", "model")), None

    stacked = jax.tree.map(lambda *one: jnp.stack(one), *ws)
    return jnp.mean(lax.scan(layer, x, stacked)[0] ** 2)


def tokens_that_stay_whole(ws, x):
    """The first layer's columns get them, and no constraint scatters them again."""
    x = put(x * 2.0, "data")
    for w in ws:
        x = x + jnp.tanh(x @ w["up"]) @ w["down"]
    return jnp.mean(x**2)


def tokens_to_rows(ws, x):
    """Weights that are stored in shards of rows, as FSDP's: here tokens should keep the axis."""
    for w in ws:
        h = put(x * 1.5, "data")  # here
        x = x + put(jnp.tanh(h @ w["up"]) @ w["down"], ("data", "model"))
    return jnp.mean(x**2)


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize(
    "f", [tokens_to_columns, tokens_to_columns_twice, tokens_that_stay_whole, tokens_to_rows]
)
def test_tokens_gathered_for_the_columns_of_a_weight_lack_no_axis(f, backend, dtype, is_gradient):
    spec = ("model",) if f is tokens_to_rows else (None, "model")
    wide = struct(MESH, (256, 1024), *spec, dtype=dtype)
    tall = struct(MESH, (1024, 256), "model", dtype=dtype)
    ws = [{"up": wide, "gate": wide, "down": tall}] * 2
    x = struct(MESH, (2048, 256), ("data", "model"), dtype=dtype)
    program = jax.value_and_grad(f) if is_gradient else f
    report = explain(jax.jit(program), ws, x, mesh=pod_of(backend))
    told = [one for one in report.findings if one.title == "constraint without an axis"]
    assert bool(told) == (f is tokens_to_rows), report
    for one in told:
        assert line(f, "# here") in one.says and 'write P(("data", "model"))' in one.says


@pytest.mark.parametrize("is_whole", [True, False])
def test_tokens_of_experts_that_lack_the_axis_of_their_experts_are_told(is_whole):
    """Both operands have the dimension of the experts, so it is no column."""

    def loss(ws, x):
        sent = put(jnp.einsum("ed,td->etd", ws["scale"], x), None if is_whole else "model")  # here
        return jnp.mean(jnp.einsum("etd,edf->etf", sent, ws["up"]) ** 2)

    ws = {
        "scale": struct(MESH, (8, 256), "model"),
        "up": struct(MESH, (8, 256, 1024), "model"),
    }
    report = explain(jax.jit(jax.grad(loss)), ws, struct(MESH, (64, 256), "model"))
    told = [one for one in report.findings if one.title == "constraint without an axis"]
    assert bool(told) == is_whole, report
    assert all(line(loss, "# here") in one.says for one in told)


# --- An axis that a constraint moves from the tokens to their features ----------------------------


def flattened(ws, x, first, second):
    t = x.reshape(-1, x.shape[-1])
    t = put(t, *first)  # here
    h = jax.nn.silu(t @ ws["up"])
    return put(h @ ws["down"], *second).reshape(x.shape)


def in_a_loop(ws, x, first, second):
    body = jax.checkpoint(lambda x, _: (x + flattened(ws, x, first, second), None))
    return lax.scan(body, x, None, length=2)[0]


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("f", [flattened, in_a_loop])
def test_an_axis_that_is_moved_to_the_contracted_features_goes_back(f, backend, dtype, is_gradient):
    both = ("data", "model")
    ws = {
        "up": struct(MESH, (256, 1024), dtype=dtype),
        "down": struct(MESH, (1024, 256), dtype=dtype),
    }
    x = struct(MESH, (16, 128, 256), both, dtype=dtype)

    def report_of(*specs):
        program = lambda ws, x: f(ws, x, *specs)  # noqa: E731
        if is_gradient:
            program = jax.grad(lambda ws, x: jnp.mean(f(ws, x, *specs).astype("float32") ** 2))
        return explain(jax.jit(program), ws, x, mesh=pod_of(backend))

    wrong, right = report_of(both, both), report_of((both,), (both,))
    first = wrong.findings[0]
    # in the loop partial sums are added instead
    assert first.title == ("repeated work" if f is flattened else "order of axes"), wrong
    assert f"called in {line(flattened, '# here')}" in first.says, first
    assert first.says.endswith('write P(("data", "model"))')
    titles = {first.title, "repeated work"}
    assert sum(one.title in titles for one in wrong.findings) == 1, wrong
    assert not any(one.title in titles for one in right.findings), right
    # the gradients of the weights are added over more devices, and nothing is computed twice
    assert is_gradient or right.bytes < wrong.bytes


def test_tokens_that_are_exchanged_for_rows_of_a_weight_are_not_told():
    ws = {"up": struct(MESH, (256, 1024), "model"), "down": struct(MESH, (1024, 256))}
    x = struct(MESH, (16, 128, 256), ("data", "model"))
    both = ("data", "model")
    report = explain(jax.jit(lambda ws, x: flattened(ws, x, both, (both,))), ws, x)
    assert not any("moves model" in one.says for one in report.findings), report


@pytest.mark.parametrize("parts", [4, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_micro_batches_are_not_advised_to_be_sharded_along_their_number(parts, dtype):
    """A loop takes one at a time: in shards along their number, all devices would wait for one."""
    mesh = grid((8,), ("data",))
    spec = NamedSharding(mesh, P(None, "data"))

    def step(w, x):
        parted = lax.with_sharding_constraint(x.reshape(parts, -1, *x.shape[1:]), spec)

        def add(total, part):
            return total + jax.grad(lambda w: jnp.tanh(part @ w).sum())(w), None

        return lax.scan(add, jnp.zeros_like(w), parted)[0]

    w, x = struct(mesh, (512, 512), dtype=dtype), struct(mesh, (256, 64, 512), "data", dtype=dtype)
    report = explain(step, w, x)
    assert "order of axes" not in {one.title for one in report.findings}, report
