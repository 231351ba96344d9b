"""explain() on gradients through a lax.cond of which each device takes a branch of its own."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from steps import grid, line, pod_of, struct

from shardlab.arrays.layout import bytes_text
from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

TITLES = "gradient of one branch", "replicated but different"
CAST = "jax.lax.pcast(x, ('stage',), to=\"varying\")"
LINE, GRID = grid((8,), ("stage",)), grid((2, 4), ("rows", "stage"))
FIRST, EXPLICIT = P("stage"), grid((8,), ("stage",), AxisType.Explicit)


def chosen(x):
    double, triple = lambda x: 2 * jnp.sin(x), lambda x: 3 * jnp.sin(x)
    return lax.cond(lax.axis_index("stage") == 0, double, triple, x)  # chosen


def closed_over(x):
    is_first = lax.axis_index("stage") == 0
    return lax.cond(is_first, lambda: 2 * jnp.sin(x), lambda: 3 * jnp.sin(x))


def switched(x):
    number = jnp.minimum(lax.axis_index("stage"), 1)
    return lax.switch(number, [lambda x: 2 * jnp.sin(x), lambda x: 3 * jnp.sin(x)], x)


def kept(x):
    return jax.checkpoint(chosen)(x)


def scanned(x):
    zero = lax.pcast(jnp.zeros_like(x), "stage", to="varying")
    return lax.scan(lambda total, _: (total + chosen(x), None), zero, length=1)[0]


def mapped(x):
    return jax.vmap(chosen)(x[None])[0]


def cast(x):
    return chosen(lax.pcast(x, "stage", to="varying"))


def selected(x):
    return jnp.where(lax.axis_index("stage") == 0, 2 * jnp.sin(x), 3 * jnp.sin(x))


def decided_alike(x):
    is_first = lax.psum(lax.axis_index("stage"), "stage") < 0
    return lax.cond(is_first, lambda x: 2 * jnp.sin(x), lambda x: 3 * jnp.sin(x), x)


def scaled(x, own=False):
    """The branch is not differentiated, but what it scales does not vary either."""
    s = lax.stop_gradient(jnp.ones_like(x))
    s = lax.pcast(s, "stage", to="varying") if own else s

    def factor(x, s):
        is_first = lax.axis_index("stage") == 0
        return jnp.sin(x) * lax.cond(is_first, lambda s: 2 * s, lambda s: 3 * s, s)

    return jax.checkpoint(factor)(x, s)


def scaled_cast(x):
    return scaled(x, own=True)


def scales_what_varies(x):
    factor = lax.cond(lax.axis_index("stage") == 0, lambda: 2.0, lambda: 3.0)
    return factor * jnp.sin(lax.pcast(x, "stage", to="varying"))


WRONG = [chosen, closed_over, switched, kept, scanned, mapped, scaled]
RIGHT = [cast, selected, decided_alike, scaled_cast, scales_what_varies]


def gradient(f, mesh=LINE):
    """Of the sum over all stages, taken outside of the shard_map."""
    on_stages = jax.shard_map(lambda x: f(x)[None], mesh=mesh, in_specs=P(), out_specs=FIRST)
    return jax.jit(jax.grad(lambda x: on_stages(x).sum()))


def taken_inside(f):
    def own(x):
        return jax.grad(lambda x: lax.psum(f(x).sum(), "stage"))(x)

    return jax.jit(jax.shard_map(own, mesh=LINE, in_specs=P(), out_specs=P()))


def told(report):
    return [one.says for one in report.findings if one.title in TITLES]


@pytest.mark.parametrize("f", WRONG + RIGHT)
@pytest.mark.parametrize("take", [gradient, taken_inside])
def test_the_gradient_is_told_where_its_values_are_wrong(f, take):
    ways = [3] * 8 if f in (decided_alike,) else [2] + [3] * 7
    x = jnp.ones((4,))
    value = float(take(f)(jax.device_put(x, NamedSharding(LINE, P())))[0])
    is_wrong = abs(value - sum(ways) * float(jnp.cos(1.0))) > 1e-3
    assert is_wrong == (f in WRONG)
    report = explain(take(f), struct(LINE, (4,)))
    assert len(told(report)) == is_wrong, report
    if is_wrong:
        assert report.findings[0].says == told(report)[0]
        assert CAST in told(report)[0]
        assert f not in (chosen, kept) or line(chosen, "# chosen") in told(report)[0]


@pytest.mark.parametrize(("mesh", "backend"), [(GRID, "cpu"), (GRID, "v5e:2x4"), (EXPLICIT, "cpu")])
@pytest.mark.parametrize("f", [chosen, cast])
def test_it_is_told_on_other_meshes_and_in_a_function_that_is_differentiated_only(f, mesh, backend):
    x = struct(mesh, (256,), dtype="bfloat16")
    report = explain(gradient(f, mesh), x, mesh=pod_of(backend))
    assert bool(told(report)) == (f is chosen), report
    on_stages = jax.shard_map(lambda x: f(x)[None], mesh=mesh, in_specs=P(), out_specs=FIRST)
    assert not told(explain(jax.jit(on_stages), x, mesh=pod_of(backend)))


@pytest.mark.parametrize("is_cast", [False, True])
def test_a_gradient_that_is_added_in_a_branch_is_told(is_cast):
    def own(x):
        x = lax.pcast(x, "stage", to="varying") if is_cast else x
        number = 1.0 + lax.axis_index("stage")
        return lax.cond(number < 2, lambda x: 2 * x * number, lambda x: 3 * x * number, x)

    report = explain(gradient(own), struct(LINE, (4,)))
    says = [one.says for one in report.findings if one.title == "decided by each device"]
    assert bool(says) != is_cast and all(CAST in one for one in says), report


@pytest.mark.parametrize("f", [chosen, cast, selected])
def test_a_branch_whose_result_is_declared_replicated_is_told(f):
    """Where it varies by its type, JAX refuses it."""
    own = lambda x: f(x) if f is chosen else lax.psum(f(x), "stage")  # noqa: E731
    on_stages = jax.jit(jax.shard_map(own, mesh=LINE, in_specs=P(), out_specs=P()))
    report = explain(on_stages, struct(LINE, (4,)))
    assert bool(told(report)) == (f is chosen), report


# --- What a branch sends --------------------------------------------------------------------------

ROWS = grid((8,), ("data",))


def saves(x):
    io_callback(lambda x: None, None, x)  # saves
    return x


def sums(x):
    return jnp.cumsum(x, 0)  # sums


def sorts(x):
    return jnp.sort(x, 0)  # sorts


def sorts_in_shards(x):
    return jnp.sort(x, 1)


def saves_own(x):
    own = jax.shard_map(lambda x: io_callback(lambda x: None, None, x), mesh=ROWS, **TO_NONE)
    own(x)
    return x


TO_NONE = {"in_specs": P("data"), "out_specs": P()}


def chosen_once(f, x, flag):
    return lax.cond(flag > 0, f, lambda x: x, jnp.sin(x))


def chosen_at_times(f, x, flag):
    """In every fifth step."""
    step = lambda x, n: (lax.cond(n % 5 == flag, f, lambda x: x, jnp.sin(x)), None)  # noqa: E731
    return lax.scan(step, x, jnp.arange(10))[0]


def repeated(f, x, flag):
    return lax.while_loop(lambda x: x.sum() > flag, lambda x: f(jnp.sin(x)), x)


AROUND = [chosen_once, chosen_at_times, repeated]
ON_CPU = [
    (f, around, "cpu") for f in (saves, sums, sorts_in_shards, saves_own) for around in AROUND
]
ON_TPU = [(f, chosen_at_times, "v5e:2x4") for f in (sorts, sorts_in_shards)]  # it splits cumsums


@pytest.mark.parametrize(("f", "around", "backend"), ON_CPU + ON_TPU)
def test_what_a_branch_gathers_is_told_with_the_bytes_of_one_call(f, around, backend):
    x, flag = struct(ROWS, (1024, 256), "data"), struct(ROWS, (), dtype="int32")
    report = explain(jax.jit(lambda x, n: around(f, x, n)), x, flag, mesh=pod_of(backend))
    says = [one.says for one in report.findings if one.title == "avoidable communication"]
    if f in (sorts_in_shards, saves_own):
        assert not says, report
        return
    assert len(says) == 1 and line(f, f"# {f.__name__}") in says[0], report
    often = ", and how often, only the run" if around is repeated else " the branch is taken"
    once = explain(jax.jit(lambda x: f(jnp.sin(x))), x, mesh=pod_of(backend)).bytes
    assert f"send {bytes_text(once)} each time{often}" in says[0]


def test_of_a_line_that_also_runs_without_a_branch_both_are_told():
    def f(x, flag):
        x = sums(x)
        return lax.cond(flag > 0, sums, lambda x: x, jnp.sin(x))

    report = explain(jax.jit(f), struct(ROWS, (1024, 256), "data"), struct(ROWS, (), dtype="int32"))
    (says,) = (one.says for one in report.findings if one.title == "avoidable communication")
    assert "send 918 kB, 100% of all, and 918 kB each time the branch is taken" in says
