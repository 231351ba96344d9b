"""explain() on what arguments become in the next call, and on weights that nothing divides."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from steps import grid, struct

from shardlab.exercises.compiles import assert_compiles_once
from shardlab.report.explain import explain

pytestmark = pytest.mark.reads("src/shardlab")

GRID = grid((2, 4), ("data", "model"))
ROWS = NamedSharding(GRID, P("data"))


def said(report, title):
    return [finding.says for finding in report.findings if finding.title == title]


def decode(batch, keys):
    write = jax.vmap(lambda c, k, t: lax.dynamic_update_slice(c, k[None], (t, 0)))
    cache = write(batch["cache"], keys, batch["lengths"])
    return cache, jnp.sum(batch["hidden"] * keys, -1)


def decode_apart(cache, batch, keys):
    return decode(batch | {"cache": cache}, keys)


BATCH = {
    "cache": struct(GRID, (64, 256, 32), "data"),
    "hidden": struct(GRID, (64, 32), "data"),
    "lengths": struct(GRID, (64,), "data", dtype="int32"),
}
KEYS = struct(GRID, (64, 32), "data")


def test_small_donations_that_cannot_be_used_are_told_where_they_are_most():
    (says,) = said(explain(jax.jit(decode, donate_argnums=0), BATCH, KEYS), "donation not used")
    assert "of 3 donated arrays 2, the largest batch['hidden']" in says
    rest = {name: BATCH[name] for name in ("hidden", "lengths")}
    apart = explain(jax.jit(decode_apart, donate_argnums=0), BATCH["cache"], rest, KEYS)
    assert not apart.findings, apart


def fitted(w, x):
    whole = lax.with_sharding_constraint(w, NamedSharding(GRID, P()))
    grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(whole)
    return w - 0.1 * lax.with_sharding_constraint(grads, ROWS)


def fitted_along_data(w, x):
    return fitted(w, lax.with_sharding_constraint(x, ROWS))


def test_data_on_no_mesh_whose_sharding_the_compiler_chooses_is_told_first():
    w, abstract = struct(GRID, (256, 256), "data"), jax.ShapeDtypeStruct((512, 256), "float32")
    for x in (abstract, np.ones((512, 256), "float32")):
        report = explain(jax.jit(fitted), w, x)
        assert report.findings[0].title == "not placed", report
        assert report.findings[0].says.startswith("x is on no mesh, so the compiler chose its")
        # one that the function places, and one that jit places, are no fault
        assert not said(explain(jax.jit(fitted_along_data), w, x), "not placed")
        columns = NamedSharding(GRID, P(None, "data"))
        f = jax.jit(fitted, in_shardings=(w.sharding, columns))
        assert not said(explain(f, w, x), "not placed")
    assert not said(explain(jax.jit(fitted), w, struct(GRID, (512, 256), "data")), "not placed")


@pytest.mark.parametrize(
    ("write", "is_told"),
    [
        (lambda x, new: x.at[4:7].set(new), True),
        (lambda x, new: x.at[jnp.arange(4, 7)].set(new), False),
        (lambda x, new: lax.dynamic_update_slice(x, new, (4, 0)), False),
        (lambda x, new: x.at[:, 4:7].set(1.0), False),
    ],
)
def test_an_update_of_a_fixed_slice_names_the_forms_that_stay_local(write, is_told):
    x = struct(GRID, (64, 4096), "data")
    f = jax.jit(write, donate_argnums=0, out_shardings=x.sharding)
    report = explain(f, x, struct(GRID, (3, 4096)))
    told = said(report, "indices gathered")
    assert bool(told) == bool(report.bytes) == is_told, report
    assert all("fixed slice" in says and ".at[jnp.arange(a, b)].set" in says for says in told)


@pytest.mark.parametrize(("first", "last"), [(70, 100), (64, 128), (100, 140), (9, 300)])
def test_a_slice_update_is_only_advised_where_it_lies_in_one_shard(first, last):
    """Elsewhere the compiler gathers the array for it, too."""
    x, new = struct(GRID, (512, 64, 64), "data"), struct(GRID, (last - first, 8, 64))
    ways = 512 // x.sharding.shard_shape(x.shape)[0]
    keep = {"donate_argnums": 0, "out_shardings": x.sharding}
    report = explain(jax.jit(lambda x, new: x.at[first:last, 4:12].set(new), **keep), x, new)
    (says,) = said(report, "indices gathered")
    within = first * ways // 512 == (last - 1) * ways // 512
    assert ("dynamic_update_slice" in says) == within and ".at[jnp.arange(a, b)].set" in says
    sliced = jax.jit(lambda x, new: lax.dynamic_update_slice(x, new, (first, 4, 0)), **keep)
    assert (explain(sliced, x, new).bytes == 0) == within
    rows = jax.jit(lambda x, new: x.at[jnp.arange(first, last), 4:12].set(new), **keep)
    assert explain(rows, x, new).bytes == 0


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(
    ("kind", "is_told"),
    [("own", True), ("shared", False), ("agreed", False), ("outside", False), ("other", False)],
)
def test_a_branch_with_a_collective_that_each_device_decides_about_is_told(
    kind, is_told, check_vma
):
    def mixed(x, seed):
        key = jax.random.key(seed[0])
        if kind != "shared":
            key = jax.random.fold_in(key, lax.axis_index("data"))
        coin = jax.random.bernoulli(key)
        coin = lax.pmax(coin.astype("int32"), "data") > 0 if kind == "agreed" else coin
        mean = lax.pmean(x, "data")
        along = "model" if kind == "other" else "data"
        add = lambda x: x + (mean if kind == "outside" else lax.psum(x, along))  # noqa: E731
        return lax.cond(coin, add, lambda x: x, x)

    f = jax.shard_map(
        mixed,
        mesh=GRID,
        in_specs=(P("data", "model"), P()),
        out_specs=P("data", "model"),
        check_vma=check_vma,
    )
    report = explain(
        jax.jit(f), struct(GRID, (64, 64), "data", "model"), struct(GRID, (1,), dtype="int32")
    )
    told = said(report, "decided by each device")
    assert bool(told) == is_told, report
    assert all("lax.cond" in says and "along data" in says for says in told)
    assert not told or report.findings[0].says in told


def counted_up(x):
    return lax.with_sharding_constraint(x, NamedSharding(GRID, P())) + 1


def laid_out(x):
    return jax.jit(lambda x: lax.with_sharding_constraint(x, NamedSharding(GRID, P())))(x)


@pytest.mark.parametrize(("is_placed", "compiled"), [(False, 2), (True, 1)])
def test_a_number_that_comes_back_on_a_mesh_is_told(is_placed, compiled):
    x = jnp.zeros((), jnp.int32)
    x = jax.device_put(x, NamedSharding(GRID, P())) if is_placed else x
    f = jax.jit(lambda x: counted_up(x))  # one of its own has a cache of its own
    assert bool(said(explain(f, x), "not placed")) == (not is_placed)
    for _ in range(3):
        x = f(x)
    assert f._cache_size() == compiled


def test_what_a_function_only_lays_out_is_not_told():
    assert not explain(laid_out, jnp.zeros((), jnp.int32)).findings
    # neither what is no state: it may be called once
    batch = jnp.ones((64, 64))
    assert not said(explain(counted_up, batch), "not placed")
    donated = explain(jax.jit(counted_up, donate_argnums=0), batch)
    assert said(donated, "not placed")


def model(params, x):
    return jax.nn.gelu(x @ params["up"]) @ params["down"]


def weights(*spec, shapes=((256, 1024), (1024, 256))):
    return {n: struct(GRID, s, *spec) for n, s in zip(("up", "down"), shapes, strict=True)}


@pytest.mark.parametrize("is_gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_in_no_shards_come_before_the_products_that_devices_repeat(is_gradient, dtype):
    def step(params, x):
        return jnp.mean(model(params, x) ** 2)

    params = jax.tree.map(lambda w: w.update(dtype=dtype), weights())
    f = jax.grad(step) if is_gradient else step
    report = explain(f, params, struct(GRID, (64, 256), "data", dtype=dtype))
    titles = [finding.title for finding in report.findings]
    assert titles[:2] == ["replicated", "repeated work"], report
    assert "in shards along model" in report.findings[0].says


def test_a_batch_without_an_axis_of_the_weights_comes_before_they_do():
    """Here an axis is in use: devices along it repeat what the data should divide."""
    params = weights() | {"embed": struct(GRID, (64, 64), "model")}

    def step(params, x):
        return model(params, x), params["embed"] * 2

    report = explain(step, params, struct(GRID, (64, 256), "data"))
    titles = [finding.title for finding in report.findings]
    assert titles.index("repeated work") < titles.index("replicated"), report


# --- Decisions that two devices have to share -----------------------------------------------------


CHAINS = grid((8,), ("chain",))
PARTNER = [(n, n ^ 1) for n in range(8)]


def exchanged(key, state, is_shared, is_looped=False):
    """Neighbours exchange their states with some probability."""

    def swap(key, state):
        if is_shared:  # both of a pair draw from one key
            number = lax.axis_index("chain")
            key = jax.random.fold_in(key, number // 2 if is_shared == "by pairs" else 0)
        else:
            key = jax.random.fold_in(key, lax.axis_index("chain"))
        accept = jax.random.uniform(key) < 0.5
        return jnp.where(accept, lax.ppermute(state, "chain", PARTNER), state)

    def run(key, state):
        if not is_looped:
            return swap(key, state)
        return lax.scan(lambda s, n: (swap(jax.random.fold_in(key, n), s), None), state, N)[0]

    specs = {"in_specs": (P(), P("chain")), "out_specs": P("chain")}
    return jax.shard_map(run, mesh=CHAINS, **specs)(key, state)


N = jnp.arange(4)


@pytest.mark.parametrize("is_looped", [False, True])
@pytest.mark.parametrize("is_shared", [False, "by all", "by pairs"])
def test_a_decision_of_each_device_about_an_exchange_is_told(is_shared, is_looped):
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    key = struct(CHAINS, key.shape, dtype=str(key.dtype))
    f = jax.jit(lambda key, x: exchanged(key, x, is_shared, is_looped))
    report = explain(f, key, struct(CHAINS, (64, 32), "chain"))
    found = said(report, "decided by each device")
    assert len(found) == (not is_shared), report
    if found:
        assert report.findings[0].says == found[0] and "along chain" in found[0]


def test_by_decisions_of_their_own_states_are_lost_and_doubled():
    key, state = jax.random.PRNGKey(3), jnp.arange(8.0)
    after = jax.jit(lambda key, x: exchanged(key, x, is_shared=False))(key, state)
    assert sorted(map(float, after)) != sorted(map(float, state))


# --- Two calls of one function --------------------------------------------------------------------

STATE = {"w": np.ones((64, 64), "float32"), "n": np.ones((), "int32")}


def on_grid(tree, *spec):
    return jax.device_put(tree, NamedSharding(GRID, P(*spec)))


NAMED, TURNED = (
    Mesh(devices, axes, axis_types=(AxisType.Auto,) * 2)
    for devices, axes in [
        (GRID.devices, ("rows", "columns")),
        (GRID.devices[::-1], ("data", "model")),
    ]
)


def elsewhere(x, mesh, memory="device"):
    return jax.device_put(x, NamedSharding(mesh, P(), memory_kind=memory))


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda state, x: (state, on_grid(np.ones((64, 32), "float32"))), "x: shape (64, 64), now"),
        (lambda state, x: (state, on_grid(np.ones((64, 64), "bfloat16"))), "x: dtype float32, now"),
        (lambda state, x: (state, on_grid(x, "data")), "x: sharding"),
        (lambda state, x: (state, np.asarray(x)), "x: committed to its devices, now on no device"),
        (lambda state, x: (state | {"n": 1}, x), "state['n']: "),
        (lambda state, x: (state, elsewhere(x, NAMED)), "x: sharding P() on a mesh of data: 2, mo"),
        (lambda *call: elsewhere(call, TURNED), "x: sharding P() on a mesh of data: 2, model: 4"),
        (lambda state, x: (state, elsewhere(x, GRID, "device")), ""),
        (lambda state, x: (state, on_grid(x, None, None)), ""),
        (lambda state, x: (on_grid(STATE), 2 * x), ""),
    ],
)
@pytest.mark.parametrize("is_struct", [False, True])
def test_a_later_call_that_compiles_again_is_told(change, words, is_struct):
    """When JAX compiles again, and then alone."""
    step = jax.jit(lambda state, x: jnp.sum(state["w"] @ x) + state["n"])
    first = on_grid(STATE), on_grid(np.ones((64, 64), "float32"))
    later = change(*first)
    given = first
    if is_struct:
        given = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), first
        )
    told = said(explain(step, *given, later=later), "compiles again")
    assert len(told) == bool(words) and all(words in one for one in told), told
    with pytest.raises(AssertionError) if words else contextlib.nullcontext():
        assert_compiles_once(step, first, later)


@pytest.mark.parametrize("memory", ["device", "pinned_host"])
def test_a_later_call_whose_counter_is_in_another_memory_is_told_with_both(memory):
    """An optimiser's state that is on the host after the first step."""
    whole = NamedSharding(GRID, P())

    def step(state, x):
        return x * jax.device_put(state["n"], whole)

    first, x = {"n": elsewhere(STATE["n"], GRID)}, on_grid(np.ones((64, 64), "float32"))
    later = {"n": elsewhere(STATE["n"], GRID, memory)}
    told = said(explain(jax.jit(step), first, x, later=(later, x)), "compiles again")
    if memory == "device":
        assert not told
        return
    (says,) = told
    at = "P() on a mesh of data: 2, model: 4 (Auto, Auto) in"
    assert f"state['n']: sharding {at} device memory, now {at} pinned_host memory: place" in says
    with pytest.raises(AssertionError, match="in pinned_host memory"):
        assert_compiles_once(jax.jit(step), (first, x), (later, x))


@pytest.mark.parametrize("is_static", [False, True])
def test_a_number_is_only_told_where_it_is_static(is_static):
    step = jax.jit(lambda x, n: x * n, static_argnums=(1,) if is_static else ())
    x = on_grid(np.ones((64, 64), "float32"))
    assert len(said(explain(step, x, 2, later=(x, 3)), "compiles again")) == is_static
    by_name = explain(step, x=x, n=2.0, later={"x": x, "n": 3.0})
    assert len(said(by_name, "compiles again")) == 0 or is_static
    with pytest.raises(TypeError, match="as a tuple, such as later="):
        explain(step, x, 2, later=3)


def test_in_shardings_do_not_hide_that_it_compiles_again():
    """JAX compiles for an argument on no device, and again for one that is placed."""
    rows = NamedSharding(GRID, P("data"))
    step = jax.jit(lambda x: 2 * x, in_shardings=rows)
    x = np.ones((64, 64), "float32")
    calls = (x,), (jax.device_put(x, rows),)
    assert len(said(explain(step, *calls[0], later=calls[1]), "compiles again")) == 1
    with pytest.raises(AssertionError, match="compiles again"):
        assert_compiles_once(step, *calls)


# --- What a donation lacks ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_donation_that_is_not_used_names_the_array_and_its_result():
    mesh = grid((8,), ("data",))
    state = {"w": struct(mesh, (256, 512), "data"), "m": struct(mesh, (256, 512), "data")}
    x = struct(mesh, (64, 256), "data")

    def step(state, x):
        w = state["w"] - (x @ state["w"]).sum()
        return {"m": state["m"] * 0.9, "w": w.astype(jnp.bfloat16)}

    (says,) = said(explain(jax.jit(step, donate_argnums=0), state, x), "donation not used")
    assert "state['w'] is f32[256,512], but result['w'] bf16[256,512]: return f32" in says

    def same(state, x):
        return {"m": state["m"] * 0.9, "w": state["w"] - (x @ state["w"]).sum()}

    whole = {"m": state["m"].sharding, "w": NamedSharding(mesh, P())}
    f = jax.jit(same, donate_argnums=0, out_shardings=whole)
    (says,) = said(explain(f, state, x), "donation not used")
    assert """state['w'] is in P("data"), but result['w'] in P(): give both the same""" in says

    f = jax.jit(lambda state, x: (x @ state["w"]).sum(), donate_argnums=0)
    (says,) = said(explain(f, state, x), "donation not used")
    assert "No result is like state['w'], f32[256,512]" in says and "do not donate it" in says
    assert said(explain(jax.jit(same, donate_argnums=0), state, x), "donation not used") == []
