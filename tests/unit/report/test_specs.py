"""explain() on steps that are correct, on the same with one mistake, and on specs that lack an axis
or have axes in another order."""

import contextlib
import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, reshard
from steps import CORRECT, MISTAKES, grid, line, pod_of, struct

from shardlab import Pod
from shardlab.programs.inherited import inherited_axes
from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

ADVICE = {"replicated", "bf16 widened"}  # of memory, and of what this backend cannot show


def found(report):
    return [f"{finding.title}: {finding.says}" for finding in report.findings]


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize("name", CORRECT)
def test_of_a_correct_step_nothing_is_wrong(name, backend):
    step, arguments, mesh = CORRECT[name]()
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        report = explain(step, *arguments, mesh=pod_of(backend))
    assert report.compiled_for == backend and report.bytes > 0
    assert not [f for f in report.findings if f.title not in ADVICE], report


@pytest.mark.parametrize("name", MISTAKES)
def test_the_first_finding_of_a_mistake_names_it(name):
    case, title, words = MISTAKES[name]
    step, arguments = case()
    report = explain(step, *arguments)
    assert report.findings and report.findings[0].title == title, found(report)
    assert all(one in report.findings[0].says for one in words), report.findings[0].says


# --- A constraint without an axis -----------------------------------------------------------------

MESH = grid((2, 4), ("data", "model"))
TABLE, Q = struct(MESH, (32000, 256), "model", None), struct(MESH, (256, 1024), None, "model")
IDS = struct(MESH, (4096,), "data", dtype="int32")


def whole(x):
    return lax.with_sharding_constraint(x, NamedSharding(MESH, P()))


def looked_up(table, q, ids):
    return jnp.tanh(whole(table[ids]) @ q)  # once


def through_a_scan(table, q, ids):
    x = whole(table[ids])  # before the loop
    return lax.scan(lambda x, _: (jnp.tanh(x @ q @ q.T), None), x, None, length=3)[0]


def checkpointed(table, q, ids):
    x = whole(table[ids])  # inside
    return jnp.tanh(jax.checkpoint(lambda x: jnp.tanh(x @ q))(x) @ q.T)


def mapped(table, q, ids):
    x = whole(table[ids])  # and then
    return jax.vmap(lambda row: jnp.tanh(row @ q))(x)


def in_bf16(table, q, ids):
    x = whole(table[ids].astype("bfloat16"))  # small
    return jnp.tanh(x @ q.astype("bfloat16"))


@pytest.mark.parametrize("f", [looked_up, through_a_scan, checkpointed, mapped, in_bf16])
@pytest.mark.parametrize("is_gradient", [False, True])
def test_a_constraint_without_an_axis_is_first(f, is_gradient):
    """With the call that asks for it, since the constraint stands in a helper."""
    program = f
    if is_gradient:
        program = jax.grad(lambda q, table, ids: jnp.mean(f(table, q, ids) ** 2).astype("float32"))
        report = explain(program, Q, TABLE, IDS)
    else:
        report = explain(program, TABLE, Q, IDS)
    first = found(report)[0]
    assert first.startswith("constraint without an axis") and "lacks data" in first, found(report)
    assert line(whole, "return") in first and f"called in {line(f, 'whole(')}" in first
    assert first.endswith('write P("data")')


def test_on_an_explicit_mesh_a_reshard_is_told_too():
    mesh = grid((2, 4), ("data", "model"), AxisType.Explicit)

    def f(x, w):
        x = jax.sharding.reshard(x, P(None, None))  # here
        return jnp.tanh(x @ w)

    with jax.set_mesh(mesh):
        report = explain(
            f, struct(mesh, (4096, 256), "data"), struct(mesh, (256, 512), None, "model")
        )
    assert "lacks data" in found(report)[0] and line(f, "# here") in found(report)[0]


@pytest.mark.parametrize("shape", [(4096, 256), (4095, 256)])
def test_axes_of_size_one_stay_in_the_corrected_spec(shape):
    mesh = grid((1, 1, 8), ("data", "fsdp", "expert"))

    def f(x, w):
        x = jnp.tanh(x @ w)
        x = lax.with_sharding_constraint(x, NamedSharding(mesh, P(("data", "fsdp"))))
        return jnp.tanh(x @ w)

    rows = ("data", "fsdp", "expert") if shape[0] % 8 == 0 else None
    report = explain(f, struct(mesh, shape, rows), struct(mesh, (256, 256)))
    told = [one for one in found(report) if one.startswith("constraint")]
    assert bool(told) == bool(rows)
    assert all(one.endswith('write P(("data", "fsdp", "expert"))') for one in told)


def test_weights_that_a_constraint_gathers_lack_no_axis():
    def f(w, x):
        return jnp.tanh(x @ whole(w))

    report = explain(f, struct(MESH, (256, 256), "data"), struct(MESH, (4096, 256), "data"))
    assert not [one for one in found(report) if one.startswith("constraint")]


def test_what_an_operation_does_to_axes_is_unknown_says_nothing():
    """A sort of both dimensions may be in any shards."""

    def f(x, w):
        return jnp.fft.fft2(whole(x)).real @ w

    shown = inherited_axes(
        jax.jit(f).trace(*(jnp.ones((64, 64)),) * 2).jaxpr.jaxpr,
        [NamedSharding(MESH, P("data")), None],
    )
    assert not shown.repeated and shown.flops


@pytest.mark.parametrize(
    ("join", "dimension"),
    [
        (lambda x: jnp.stack([x, 2 * x]), 1),
        (lambda x: jnp.stack([x, 2 * x], 1), 0),
        (lambda x: jnp.unstack(x.reshape(64, 8, 8), axis=1)[3], 0),
        (lambda x: jnp.tile(x, (1, 2)), 0),
        (lambda x: jnp.concatenate([x, x], 1), 0),
        (lambda x: jnp.split(x, 2, 1)[0], 0),
        (lambda x: jnp.log2(x) + jax.scipy.special.i0e(x), 0),
    ],
)
def test_what_joins_or_parts_arrays_keeps_the_axes_of_other_dimensions(join, dimension):
    def f(x):
        y = whole(join(x))
        return y @ y.mT

    (loss,) = inherited_axes(
        jax.jit(f).trace(jnp.ones((64, 64))).jaxpr.jaxpr, [NamedSharding(MESH, P("data"))]
    ).repeated
    assert (loss.axis, loss.dimension) == ("data", dimension)


@pytest.mark.parametrize("join", [lambda x: jnp.unstack(x)[0], lambda x: jnp.tile(x, (2, 1))])
def test_what_parts_or_repeats_the_dimension_in_shards_loses_its_axis(join):
    shown = inherited_axes(
        jax.jit(lambda x: jnp.dot(whole(join(x)), jnp.ones((64, 64))))
        .trace(jnp.ones((64, 64)))
        .jaxpr.jaxpr,
        [NamedSharding(MESH, P("data"))],
    )
    assert not shown.repeated and shown.flops


# --- The order of axes ----------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [("data", "model"), ("model", "data")])
def test_the_order_of_axes_that_exchanges_shards_is_told(axes):
    def step(master, x):
        def loss(master):
            w = lax.with_sharding_constraint(master, NamedSharding(MESH, P("model")))  # here
            return jnp.mean((x @ w) ** 2)

        return master - 0.1 * jax.grad(loss)(master)

    master = struct(MESH, (1024, 1024), axes)
    step_jitted = jax.jit(step, out_shardings=master.sharding, donate_argnums=0)
    report = explain(step_jitted, master, struct(MESH, (64, 1024), axes))
    told = [one for one in found(report) if one.startswith("order of axes")]
    assert bool(told) == (axes == ("data", "model")), found(report)
    assert all('P(("model", "data")) for master' in one for one in told)
    assert all(line(step, "# here") in one for one in told)


def test_arrays_that_meet_with_dimensions_exchanged_are_told():
    def f(x, y):
        return x + jnp.tanh(y)

    pair = struct(MESH, (512, 512), "data", "model"), struct(MESH, (512, 512), "model", "data")
    assert found(explain(f, *pair))[0].startswith("order of axes")
    assert not found(explain(f, pair[0], pair[0]))


@pytest.mark.parametrize("output", [(None, "model"), ("model", None)])
def test_heads_gathered_for_the_output_of_attention_are_no_fault_of_the_reshape(output):
    """In a forward pass alone: merging the heads keeps their shards contiguous."""

    def attend(x, w):
        q = jnp.einsum("btd,dhk->bthk", x, w["q"])
        mixed = jnp.einsum(
            "bhts,bshk->bthk", jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, q)), q
        )
        merged = mixed.reshape(x.shape)
        return merged @ w["o"]  # here

    w = {
        "q": struct(MESH, (512, 8, 64), None, "model"),
        "o": struct(MESH, (512, 512), *output),
    }
    report = explain(attend, struct(MESH, (32, 64, 512), "data"), w)
    assert not [one for one in found(report) if "reshape" in one], report
    assert not [move for move in report.moves if "a reshape (as in" in move.cause], report
    told = [one for one in found(report) if one.startswith("columns after columns")]
    assert bool(told) == (output == (None, "model")) and (not told or "w['o']" in told[0])
    assert all(line(attend, "# here") in one for one in told)


def test_a_weight_whose_gradient_is_the_result_is_no_data():
    """The result is stored whole, so its layout is another one than the weight's."""

    def loss(w, x):
        logits = lax.with_sharding_constraint(x @ w, NamedSharding(MESH, P("data")))
        return jnp.mean(jax.nn.logsumexp(logits, -1))

    w, x = struct(MESH, (512, 16384), None, "model"), struct(MESH, (32, 64, 512), "data")
    report = explain(jax.jit(jax.value_and_grad(loss)), w, x)
    assert not [one for one in found(report) if re.match("data without an axis: [wx] ", one)]
    assert found(report)[0].startswith("constraint without an axis"), report


def to_and_fro(mesh, between):
    def layer(w, x):
        put = reshard if mesh.axis_types[0] == AxisType.Explicit else lax.with_sharding_constraint
        on = lambda h, *spec: put(h, NamedSharding(mesh, P(*spec)))  # noqa: E731
        h = on(x @ on(w, None, "model"), "data", "model")
        h = on(h, "data", None) if between is not None else h  # here
        return on((between or jnp.tanh)(h), "data", "model")

    return layer


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("axes", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
@pytest.mark.parametrize(
    "between",
    [
        None,
        jnp.tanh,
        jax.nn.gelu,
        lambda h: jnp.cumsum(h, -1) + h,
        lambda h: h @ jnp.ones((1024, 1024)),
    ],
)
def test_a_constraint_whose_axis_the_next_one_gives_back(between, backend, axes, is_gradient):
    mesh = grid((4, 2), ("data", "model"), axes)
    layer = to_and_fro(mesh, between)
    f = jax.grad(lambda w, x: jnp.sum(layer(w, x) ** 2)) if is_gradient else layer
    w, x = struct(mesh, (512, 1024), None, "model"), struct(mesh, (1024, 512), "data", None)
    with jax.set_mesh(mesh):
        report = explain(f, w, x, mesh=pod_of(backend))
    told = [one for one in found(report) if "nothing between needs it whole" in one]
    is_gathered = any(
        move.kind == "all-gather" and move.phase != "backward" for move in report.moves
    )
    assert bool(told) == (between in (jnp.tanh, jax.nn.gelu) and is_gathered), report
    for one in told:
        assert line(layer, "# here") in one and 'write P("data", "model")' in one
        assert "full rematerialisation" not in {finding.title for finding in report.findings}


# --- Work that the devices of a shard_map repeat --------------------------------------------------


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("in_specs", [P(), P("data"), P(("data", "model"))])
def test_equal_operands_in_a_shard_map_are_told(in_specs, is_gradient, check_vma):
    def body(x, w):
        return jnp.tanh(x @ w)  # here

    f = jax.shard_map(
        body, mesh=MESH, in_specs=(in_specs, P()), out_specs=in_specs, check_vma=check_vma
    )
    program = (lambda w, x: f(x, w)) if not is_gradient else jax.grad(lambda w, x: f(x, w).sum())
    w, x = struct(MESH, (256, 512)), struct(MESH, (1024, 256), "data")
    report = explain(program, w, x)
    told = [one for one in found(report) if "in this shard_map" in one]
    assert bool(told) == (in_specs != P(("data", "model"))), found(report)
    for one in told:
        assert one.startswith("repeated work") and line(body, "# here") in one
        assert ("8 devices" in one and 'P("data") in place of P()' in one) == (in_specs == P())
    assert all("FSDP" not in move.cause for move in report.moves)


# --- Indices, and what compiles again -------------------------------------------------------------


def by_indices(cache, time, k):
    b, n, h = jnp.ix_(*map(jnp.arange, k.shape))
    return cache.at[b, time[:, None, None], n, h].set(k)


def by_slices(cache, time, k):
    return jax.vmap(lambda c, t, k: lax.dynamic_update_slice(c, k[None], (t, 0, 0)))(cache, time, k)


def by_a_mask(cache, time, k):
    here = jnp.arange(cache.shape[1]) == time[:, None]
    return jnp.where(here[:, :, None, None], k[:, None], cache)


@pytest.mark.parametrize(
    ("f", "sends"), [(by_indices, True), (by_slices, False), (by_a_mask, False)]
)
def test_an_update_at_indices_is_told_and_its_remedies_send_nothing(f, sends):
    mesh = grid((4, 2), ("data", "model"))
    report = explain(
        jax.jit(f, donate_argnums=0),
        struct(mesh, (32, 512, 8, 64), "data", None, "model"),
        struct(mesh, (32,), "data", dtype="int32"),
        struct(mesh, (32, 8, 64), "data", "model"),
    )
    assert (report.bytes > 0) == sends
    assert [one for one in found(report) if "dynamic_update_slice" in one] == found(report)
    assert bool(found(report)) == sends


@pytest.mark.parametrize("result", ["step", "loss"])
def test_a_small_array_is_only_told_where_a_result_replaces_it(result):
    """A learning rate that is handed over at each call has the type of the loss."""

    def step(state, x, rate):
        grad = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(state["w"])
        return {
            "w": state["w"] - rate * grad,
            result: jnp.mean(grad) if result == "loss" else 1 + state["step"],
        }

    rows = NamedSharding(MESH, P("data"))
    state = {"w": jax.device_put(jnp.ones((256, 256)), rows)}
    state |= {"step": jnp.ones(())} if result == "step" else {}
    step_jitted = jax.jit(step, donate_argnums=0)
    report = explain(step_jitted, state, jax.device_put(jnp.ones((64, 256)), rows), jnp.ones(()))
    told = [one for one in found(report) if one.startswith("not placed")]
    assert bool(told) == (result == "step"), found(report)


# --- For a pod ------------------------------------------------------------------------------------


def test_shardings_of_jit_are_transferred_to_the_pod():
    """They name a mesh of these devices; the program of the pod is the same without them."""
    if Pod("v5e:2x4").compiler is None:
        pytest.skip("no compiler for TPUs is installed")

    def step(w, x):
        return w - jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

    w, x = struct(MESH, (512, 512), "data", dtype="bfloat16"), struct(MESH, (64, 512), "data")
    named = jax.jit(
        step, in_shardings=(w.sharding, x.sharding), out_shardings=w.sharding, donate_argnums=0
    )
    bare = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (w, x)]
    plain = jax.jit(step, out_shardings=w.sharding, donate_argnums=0)
    pod = Pod("v5e:2x4")
    reports = [
        explain(f, *args, mesh=pod) for f, args in ((named, bare), (named, (w, x)), (plain, (w, x)))
    ]
    first, *others = ((one.bytes, one.memory, one.compiled_for) for one in reports)
    assert all(other == first for other in others) and first[2] == "v5e:2x4"
    assert {array.name: array.spec for array in reports[0].arrays}["w"] == 'P("data")'


# --- Loops, samples and memory --------------------------------------------------------------------

ROW = grid((8,), ("data",))


def accumulated(w, xs):
    def add(total, x):
        return total + jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), None  # sums

    return lax.scan(add, jnp.zeros_like(w), xs)[0]


def chunked(w, xs):
    @jax.checkpoint
    def add(total, x):
        return total + jnp.sum(jax.nn.logsumexp(x @ w, -1)), None  # gathers

    return lax.scan(add, 0.0, xs)[0]


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
def test_what_a_loop_gathers_and_adds_in_each_iteration_is_told(backend):
    xs = struct(ROW, (8, 256, 256), None, "data")
    where = {"mesh": pod_of(backend)}
    w = struct(ROW, (256, 1024), "data")
    titles = {
        finding.title: finding.says
        for finding in explain(jax.jit(jax.grad(chunked)), w, xs, **where).findings
    }
    assert line(chunked, "# gathers") in titles["gathered in a loop"]
    assert "w is gathered 8 times" in titles["gathered in a loop"] or backend != "cpu"
    if backend == "cpu":  # TPUs' compiler moves sums behind the loop
        assert "summed in a loop" in titles, titles
        replicated = explain(jax.jit(accumulated), struct(ROW, (256, 1024)), xs)
        assert line(accumulated, "# sums") in found(replicated)[0]


@pytest.mark.parametrize("kept", [lambda f: f, jax.checkpoint])
@pytest.mark.parametrize("is_gathered_once", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
def test_a_loop_in_a_shard_map_has_its_own_gather_as_the_remedy(backend, is_gathered_once, kept):
    def total(w, xs):
        gathered = lambda: lax.all_gather(w, "data", tiled=True)  # noqa: E731
        once = gathered() if is_gathered_once else None

        def add(total, x):
            return total + jnp.sum((x @ (gathered() if once is None else once)) ** 2), None

        start = lax.pcast(jnp.zeros(()), "data", to="varying")
        return lax.psum(lax.scan(add, start, xs)[0], "data")

    f = jax.shard_map(kept(total), mesh=ROW, in_specs=(P("data"), P(None, "data")), out_specs=P())
    w, xs = struct(ROW, (256, 512), "data"), struct(ROW, (8, 256, 256), None, "data")
    # compilers for CPUs move the gather before the loop, and those for TPUs sums behind it
    program = jax.grad(f) if backend == "cpu" else f
    told = [one for one in found(explain(program, w, xs, mesh=pod_of(backend))) if "a loop" in one]
    assert bool(told) == (not is_gathered_once), told
    assert all("lax.all_gather before the loop" in one for one in told)
    assert not any("pcast" in one for one in told)


@pytest.mark.parametrize("is_gathered_once", [False, True])
def test_a_gather_in_a_loop_of_unknown_length_is_told(is_gathered_once):
    def decode(w, x, n):
        if is_gathered_once:
            w = lax.with_sharding_constraint(w, NamedSharding(ROW, P()))
        return lax.while_loop(lambda s: s[1] < n, lambda s: (jnp.tanh(s[0] @ w), s[1] + 1), (x, 0))[
            0
        ]

    w, x = struct(ROW, (256, 256), "data"), struct(ROW, (256, 256), "data")
    report = explain(decode, w, x, struct(ROW, (), dtype="int32"), mesh=pod_of("v5e:2x4"))
    told = [one.says for one in report.findings if one.title == "gathered in a loop"]
    assert bool(told) == (not is_gathered_once), report
    assert all("how often, only the run decides" in one for one in told)


def test_a_sum_in_a_loop_of_unknown_length_is_told_where_it_is_only_added_up():
    def total(w, x, n):
        def add(state):
            total, k = state
            return total + jnp.sum(jnp.tanh(x @ w * k), 0), k + 1  # sums

        return lax.while_loop(lambda s: s[1] < n, add, (jnp.zeros(512), 0))[0]

    w, x = struct(ROW, (256, 512)), struct(ROW, (256, 256), "data")
    told = found(explain(total, w, x, struct(ROW, (), dtype="int32")))
    assert told[0].startswith("summed in a loop") and "sends 3,584 bytes each time" in told[0]


@pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
def test_a_while_loop_under_vmap_is_told_and_a_shard_map_mends_it(backend):

    def solve(x):
        return lax.while_loop(lambda x: jnp.abs(x).max() > 1e-3, lambda x: x - jnp.sin(x) / 9, x)

    where = {"mesh": pod_of(backend)}
    x = struct(ROW, (64, 256), "data")
    assert found(explain(jax.vmap(solve), x, **where))[0].startswith("loop that devices share")
    explicit = grid((8,), ("data",), AxisType.Explicit)
    with jax.set_mesh(explicit):
        report = explain(jax.vmap(jax.jit(solve)), struct(explicit, (64, 256), "data"), **where)
    assert found(report)[0].startswith("loop that devices share")
    own = jax.shard_map(jax.vmap(solve), mesh=ROW, in_specs=P("data"), out_specs=P("data"))
    assert explain(own, x, **where).moves == ()


def per_sample(w, x, kept=lambda f: f):
    one = jax.grad(kept(lambda w, x: jnp.sum(jnp.tanh(x @ w))))
    return jax.vmap(one, (None, 0))(w, x)


def per_sample_of_its_own(w, x, kept=lambda f: f):
    return per_sample(lax.pcast(w, "data", to="varying"), x, kept)


def of_each_member(w, x):
    return jax.vmap(jax.grad(lambda w: jnp.mean((x @ w) ** 2)))(w)


@pytest.mark.parametrize("kept", [lambda f: f, jax.checkpoint])
def test_gradients_of_samples_are_told_from_those_of_members(kept):
    mapped = lambda f, **specs: jax.shard_map(f, mesh=ROW, **specs)  # noqa: E731
    specs = {"in_specs": (P(), P("data")), "out_specs": P("data")}
    w, x = struct(ROW, (32, 16)), struct(ROW, (1024, 32), "data")
    wrong = mapped(partial(per_sample, kept=kept), **specs)
    assert found(explain(wrong, w, x))[0].startswith("added over samples")
    right = mapped(partial(per_sample_of_its_own, kept=kept), **specs)
    assert "added over samples" not in {f.title for f in explain(right, w, x).findings}
    members = explain(
        mapped(kept(of_each_member), in_specs=(P(), P("data")), out_specs=P()),
        struct(ROW, (4, 32, 16)),
        x,
    )
    assert "added over samples" not in {f.title for f in members.findings}


def test_a_sum_that_a_checkpoint_computes_again_is_not_of_the_backward_pass():
    @jax.checkpoint
    def loss(w, x):
        count = lax.psum(jnp.ones(()), "data")
        return jnp.sum(jnp.tanh(x @ w) ** 2) / count

    def step(w, x):
        return lax.psum(jax.grad(loss)(w, x), "data")

    f = jax.shard_map(step, mesh=ROW, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    report = explain(f, struct(ROW, (32, 16)), struct(ROW, (512, 32), "data"))
    assert "added twice" not in {finding.title for finding in report.findings}


@pytest.mark.parametrize("spec", [P("data"), P(("data", "model"))])
def test_offsets_over_fewer_axes_than_their_tokens_are_told(spec):
    def kernel(tokens, offsets):
        return jnp.take(tokens, offsets, axis=0, mode="clip")

    both = ("data", "model")
    tokens, offsets = struct(MESH, (1024, 64), both), struct(MESH, (64,), *spec, dtype="int32")
    f = jax.shard_map(kernel, mesh=MESH, in_specs=(P(both), spec), out_specs=P(both))
    titles = [finding.title for finding in explain(f, tokens, offsets).findings]
    assert ("indices into other shards" in titles) == (spec == P("data"))


@pytest.mark.parametrize("is_mean", [False, True])
@pytest.mark.parametrize("check", [False, True])
def test_a_gradient_through_a_sum_over_devices_without_the_check(is_mean, check):
    def step(w, x):
        total = lax.pmean if is_mean else lax.psum
        gradient = jax.grad(lambda w: total(jnp.sum((x @ w) ** 2), "data"))(w)
        return gradient if check else lax.psum(gradient, "data")

    f = jax.shard_map(step, mesh=ROW, in_specs=(P(), P("data")), out_specs=P(), check_vma=check)
    w = jnp.ones((32, 16)) / 32
    x = jnp.arange(512 * 32, dtype="float32").reshape(512, 32) % 7
    right = jax.grad(lambda w: jnp.sum((x @ w) ** 2) / (8 if is_mean else 1))(w)
    factor = float(jnp.max(jax.jit(f)(w, x)) / jnp.max(right))
    report = explain(f, struct(ROW, (32, 16)), struct(ROW, (512, 32), "data"))
    is_told = "added twice" in {finding.title for finding in report.findings}
    assert is_told == (not check and not is_mean)
    assert abs(factor - (1 if check else 8)) < 1e-3


def test_logits_that_are_most_of_the_memory_are_told_with_their_line():
    def loss(head, hidden):
        logits = hidden @ head  # logits
        return jnp.mean(jax.nn.logsumexp(logits, -1))

    report = explain(jax.grad(loss), struct(ROW, (64, 8192)), struct(ROW, (4096, 64), "data"))
    says = {finding.title: finding.says for finding in report.findings}["largest temporaries"]
    assert line(loss, "# logits") in says or line(loss, "logsumexp") in says
    assert "chunks" in says and report.temporaries[0].bytes > report.memory["peak"] / 3
    assert "at the peak" in repr(report) and "at the peak" in report._repr_html_()


def test_an_argument_that_is_exchanged_in_each_call_is_told():
    def f(q, w):
        latent = jnp.einsum("bnd,ndr->bnr", q, w)
        latent = lax.with_sharding_constraint(latent, NamedSharding(ROW, P(None, "data")))
        return jnp.sum(latent**2, -1)

    report = explain(
        f, struct(ROW, (64, 16, 64), None, "data"), struct(ROW, (16, 64, 512), None, None, "data")
    )
    assert any(one.startswith("stored in other shards") for one in found(report)), report


# --- What a judge from outside has found ----------------------------------------------------------

PAIR = grid((2, 4), ("batch", "fsdp"))


def fully_sharded(spec):
    def loss(layers, x):
        def layer(x, w):
            x = x + jax.nn.gelu(x @ w[0]) @ w[1]
            return lax.with_sharding_constraint(x, NamedSharding(PAIR, spec)), None

        x = lax.with_sharding_constraint(jnp.tanh(x), NamedSharding(PAIR, spec))
        return jnp.mean(lax.scan(layer, x, layers)[0] ** 2)

    weights = struct(PAIR, (3, 256, 1024), None, "fsdp"), struct(PAIR, (3, 1024, 256), None, "fsdp")
    return explain(jax.grad(loss), weights, struct(PAIR, (64, 64, 256), ("batch", "fsdp")))


def test_a_batch_without_an_axis_of_the_weights_gets_it_back_along_the_batch():
    """Weights have it too, so no product lacks it: to write it along their dimension sends more."""
    wrong, right = fully_sharded(P("batch")), fully_sharded(P(("batch", "fsdp")))
    assert found(wrong)[0].startswith("constraint without an axis"), found(wrong)
    assert "lacks fsdp" in found(wrong)[0]
    assert found(wrong)[0].endswith('write P(("batch", "fsdp"))')
    assert not [one for one in found(right) if one.startswith("constraint")], found(right)
    assert right.bytes < wrong.bytes / 2
    assert fully_sharded(P("batch", None, "fsdp")).bytes > right.bytes


@pytest.mark.parametrize("is_constrained", [False, True])
def test_sums_of_activations_along_the_axis_of_the_batch_are_told(is_constrained):
    def loss(params, tokens):
        x = params["embed"][tokens]  # looked up
        if is_constrained:
            x = lax.with_sharding_constraint(x, NamedSharding(ROW, P("data")))
        h = jax.nn.silu(x @ params["up"]) @ params["down"]
        return jnp.mean(jax.nn.logsumexp(h @ params["embed"].T, -1))

    params = {
        "embed": struct(ROW, (4096, 256), None, "data"),
        "up": struct(ROW, (256, 1024), None, "data"),
        "down": struct(ROW, (1024, 256), None, "data"),
    }
    report = explain(jax.grad(loss), params, struct(ROW, (64, 128), "data", dtype="int32"))
    told = [one for one in found(report) if one.startswith("axis on two dimensions")]
    assert bool(told) != is_constrained, found(report)
    assert all('A constraint P("data")' in one and line(loss, "# looked") in one for one in told)


def logits_in(spec):
    def step(w, hidden):
        logits = hidden @ w
        return jnp.argmax(logits, -1), logits

    shardings = NamedSharding(ROW, P()), NamedSharding(ROW, spec)
    step = jax.jit(step, out_shardings=shardings)
    return explain(step, struct(ROW, (512, 16384), None, "data"), struct(ROW, (256, 512)))


def test_a_result_that_is_gathered_is_told_with_the_dimension_of_its_shards():
    wrong, right = logits_in(P()), logits_in(P(None, "data"))
    assert found(wrong)[0].startswith("replicated result: result[1]"), found(wrong)
    assert "along data, which divides dimension 1" in found(wrong)[0]
    assert not any(one.startswith(("replicated result", "largest")) for one in found(right))
    assert right.bytes < wrong.bytes / 8 < logits_in(P("data")).bytes


@pytest.mark.parametrize("spec", [("data", None, "model"), ("data", "model")])
def test_a_state_in_shards_that_a_constraint_exchanges_is_told(spec):
    def step(state, w, x):
        state = lax.with_sharding_constraint(state, NamedSharding(MESH, P("data", "model")))
        key = jnp.einsum("bd,dhk->bhk", x, w)
        state = state * 0.9 + jnp.einsum("bhk,bhv->bhkv", key, key)
        return state, jnp.einsum("bhk,bhkv->bhv", key, state)

    state = struct(MESH, (32, 16, 64, 64), *spec)
    out = state.sharding, NamedSharding(MESH, P("data", "model"))
    w, x = struct(MESH, (256, 16, 64), None, "model"), struct(MESH, (32, 256), "data")
    report = explain(jax.jit(step, donate_argnums=0, out_shardings=out), state, w, x)
    told = [one for one in found(report) if one.startswith("stored in other shards")]
    assert bool(told) == (len(spec) == 3) == bool(report.bytes), found(report)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("is_added_first", [False, True])
def test_a_mean_of_quotients_is_told_where_it_is_another_value(check, is_added_first):
    def loss(x, mask):
        if is_added_first:
            total, count = lax.psum((jnp.sum(x * mask), jnp.sum(mask)), "data")
            return total / jnp.maximum(count, 1)
        return lax.pmean(jnp.sum(x * mask) / jnp.maximum(jnp.sum(mask), 1), "data")  # divided

    specs = {"in_specs": (P("data"), P("data")), "out_specs": P(), "check_vma": check}
    f = jax.jit(jax.shard_map(loss, mesh=ROW, **specs))
    x = jnp.arange(64, dtype="float32")
    mask = (x < 50).astype("float32") * (x % 3 > 0)
    told = [one for one in found(explain(f, x, mask)) if one.startswith("mean of quotients")]
    assert all(line(loss, "# divided") in one and "along data" in one for one in told)
    is_right = abs(float(f(x, mask)) - float(jnp.sum(x * mask) / jnp.sum(mask))) < 1e-3
    assert bool(told) != is_right == is_added_first


def test_a_mean_of_means_and_of_other_quotients_is_not_told():
    def loss(x, scale):
        return lax.pmean((jnp.mean(x), jnp.sum(x) / scale, jnp.max(x) / jnp.max(x + 1)), "data")

    f = jax.shard_map(loss, mesh=ROW, in_specs=(P("data"), P()), out_specs=P())
    assert found(explain(f, struct(ROW, (64,), "data"), struct(ROW, ()))) == []


@pytest.mark.parametrize(
    ("spec", "is_backward", "is_told"),
    [
        (P(), False, True),
        (P(None, "model"), False, True),
        (P("data", "model"), False, False),
        (P(), True, False),  # of a weight that FSDP gathers: its gradient's comes with it
    ],
)
def test_gradients_that_are_whole_where_moments_are_not_are_told(spec, is_backward, is_told):
    def step(w, x):
        to = lambda w: lax.with_sharding_constraint(w, NamedSharding(MESH, spec))  # noqa: E731
        grad = jax.grad(lambda w: jnp.mean((x @ (to(w) if is_backward else w)) ** 2))(w)
        return w - 0.1 * (grad if is_backward else to(grad))  # here

    w = struct(MESH, (512, 512), "data", "model")
    report = explain(jax.jit(step, donate_argnums=0), w, struct(MESH, (64, 512), "data"))
    told = [one for one in report.findings if "that its operand meets" in one.says]
    assert bool(told) == is_told, found(report)
    assert all(line(step, "# here")[-3:] in one.says for one in told)
    assert all('Write the spec of what it meets, P("data", "model")' in one.says for one in told)


@pytest.mark.parametrize("form", ["constraint", "shard_map", "pipeline"])
def test_data_are_whole_on_purpose_along_the_axes_of_layers_and_stages(form):
    axis = "stage" if form == "pipeline" else "model"
    mesh = grid((4,), (axis,))

    def layer(w, x):
        return x + lax.psum(jnp.tanh(x @ w["up"]) @ w["down"], axis)

    def stages(w, x):
        for _ in range(4):
            x = lax.ppermute(jnp.tanh(x @ w["up"][0]), axis, [(n, (n + 1) % 4) for n in range(4)])
        return lax.psum(x, axis)

    specs = {"up": P(None, axis), "down": P(axis)} if form != "pipeline" else {"up": P(axis)}
    shapes = {"up": (256, 512), "down": (512, 256)} if form != "pipeline" else {"up": (4, 256, 256)}
    mapped = jax.shard_map(
        stages if form == "pipeline" else layer, mesh=mesh, in_specs=(specs, P()), out_specs=P()
    )
    by_constraints = lambda w, x: x + jnp.tanh(x @ w["up"]) @ w["down"]  # noqa: E731
    f = by_constraints if form == "constraint" else mapped

    def step(w, x):
        grads = jax.grad(lambda w: jnp.mean((f(w, x) - x) ** 2))(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads)

    w = {name: struct(mesh, shapes[name], *spec) for name, spec in specs.items()}
    step = jax.jit(step, donate_argnums=0)
    titles = {finding.title for finding in explain(step, w, struct(mesh, (1024, 256))).findings}
    assert not titles - {"largest temporaries"}, titles
    # a forward pass does not tell data from weights, and those should be in shards
    whole = {name: struct(mesh, shape) for name, shape in shapes.items()}
    if form == "constraint":
        assert found(explain(f, whole, struct(mesh, (64, 256))))[0].startswith("replicated: ")


@pytest.mark.parametrize(
    ("wide", "state", "is_told"),
    [("float32", "bfloat16", True), ("bfloat16", "bfloat16", False), ("float32", "float32", False)],
)
def test_sums_in_a_larger_type_than_the_parameters_are_told(wide, state, is_told):
    mesh = grid((8,), ("data",))

    def step(w, batches):
        def loss(w, x):
            layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
            return jnp.mean(lax.scan(layer, x, w.astype("bfloat16"))[0] ** 2)

        def add(total, x):
            return total + jax.grad(loss)(w, x).astype(wide), None  # here

        total, _ = lax.scan(add, jnp.zeros(w.shape, wide), batches)
        return (w - 0.1 * total).astype(w.dtype)

    w = struct(mesh, (16, 256, 256), None, "data", dtype=state)
    report = explain(
        jax.jit(step, donate_argnums=0, out_shardings=w.sharding),
        w,
        struct(mesh, (4, 64, 256), None, "data", dtype="bfloat16"),
    )
    told = [one for one in found(report) if "carries sums in f32" in one]
    assert bool(told) == is_told, found(report)
    assert all(line(step, "# here") in one and "524 kB on each device" in one for one in told)


def test_a_full_rematerialisation_has_the_spec_between_the_layouts():
    mesh = grid((2, 4), ("x", "y"))

    def step(a, between=None):
        b = jnp.tanh(a)
        b = lax.with_sharding_constraint(b, NamedSharding(mesh, between)) if between else b
        return jnp.sin(lax.with_sharding_constraint(b, NamedSharding(mesh, P(None, ("x", "y")))))

    a = struct(mesh, (64, 256, 64), "x", None, "y")
    report = explain(step, a)
    assert 'put a constraint P(None, "x", "y") between the two' in found(report)[0], found(report)
    fixed = explain(lambda a: step(a, P(None, "x", "y")), a)
    assert fixed.bytes < report.bytes / 5
    assert not {"full rematerialisation", "order of axes"} & {f.title for f in fixed.findings}


def test_a_replicated_optimiser_comes_before_the_sharding_of_its_results():
    mesh = grid((8,), ("data",))

    def step(w, moments, x):
        grads = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - x) ** 2))(w)
        moments = 0.9 * moments + grads
        return w - 0.1 * moments, moments

    w, whole = struct(mesh, (512, 512), "data"), struct(mesh, (512, 512))
    report = explain(
        jax.jit(step, donate_argnums=(0, 1)), w, whole, struct(mesh, (64, 512), "data")
    )
    titles = [finding.title for finding in report.findings]
    assert titles.index("replicated") < titles.index("other sharding"), found(report)


def test_what_a_checkpointed_loop_carries_is_told_and_two_loops_keep_less():
    mesh = grid((8,), ("data",))

    def step(w, x, is_nested=False):
        def loss(w):
            layer = jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None))
            if not is_nested:
                return jnp.mean(lax.scan(layer, x, w)[0] ** 2)
            inner = jax.checkpoint(lambda h, w: lax.scan(layer, h, w))
            return jnp.mean(lax.scan(inner, x, w.reshape(8, 8, *w.shape[1:]))[0] ** 2)

        return w - 0.1 * jax.grad(loss)(w)

    w, x = struct(mesh, (64, 64, 64), None, "data"), struct(mesh, (512, 64, 64), "data")
    one, two = (
        explain(
            jax.jit(step, donate_argnums=0, out_shardings=w.sharding, static_argnums=2),
            w,
            x,
            nested,
        )
        for nested in (False, True)
    )
    assert any("what a loop carries, once for each of its 64 iterations" in f for f in found(one))
    assert not any("what a loop carries" in f for f in found(two))
    assert two.memory["peak"] < one.memory["peak"] / 3


def test_repeated_products_name_the_axis_and_the_weights_without_it():
    def f(x, w):
        h = jnp.tanh(x @ w["up"])  # here
        return lax.with_sharding_constraint(h, NamedSharding(MESH, P("data"))) @ w["down"]

    w = {"up": struct(MESH, (256, 512)), "down": struct(MESH, (512, 256), None, "model")}
    report = explain(f, struct(MESH, (4096, 256), "data"), w)
    (told,) = [one for one in found(report) if one.startswith("repeated work")]
    assert f"the matrix products of {line(f, '# here')}" in told
    assert "no array in them is in shards along model" in told and "w['up']" in told


@pytest.mark.parametrize("is_cast", [False, True])
def test_gradients_that_a_shard_map_adds_in_each_iteration_have_a_cast_as_their_remedy(is_cast):
    mesh = grid((8,), ("data",))

    def loss(w, batches):
        w = lax.pcast(w, ("data",), to="varying") if is_cast else w
        add = lambda total, x: (total + jnp.sum(jnp.tanh(x @ w)), None)  # noqa: E731
        return lax.psum(lax.scan(add, lax.pcast(0.0, ("data",), to="varying"), batches)[0], "data")

    mapped = jax.shard_map(loss, mesh=mesh, in_specs=(P(), P(None, "data")), out_specs=P())
    w, batches = struct(mesh, (256, 256)), struct(mesh, (4, 512, 256), None, "data")
    report = explain(jax.grad(mapped), w, batches)
    told = [one for one in found(report) if one.startswith("summed in a loop")]
    assert bool(told) != is_cast, found(report)
    assert all("jax.lax.pcast(parameter, ('data',), to=\"varying\")" in one for one in told)
    assert sum(move.times for move in report.moves if move.bytes > 1024) == (1 if is_cast else 4)
