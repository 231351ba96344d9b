"""What readers copy from `experts`, against loops over tokens and experts in NumPy."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from contract import (
    DEVICES,
    bound,
    close,
    contract,
    copied,
    mapped,
    mesh_of,
    reads,
    refusal,
    values,
)  # fmt: skip
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

pytestmark = reads("experts")

WIDTH, HIDDEN = 4, 6
KINDS = ["normal", "normal", "zeros", "tiny", "nan", "inf"]
FACTORS = [0, 0.5, 1.0, 1.25, 100.0]
SPECS = {"router": P(), "up": P("expert"), "down": P("expert")}


def layer_of(count, own=None, dtype="float32", router="normal"):
    """A layer with so many experts in its router, and `own` of them."""
    own = count if own is None else own
    up, down = (
        values("normal", (own, WIDTH, HIDDEN), dtype, 2),
        values("normal", (own, HIDDEN, WIDTH), dtype, 3),
    )
    one = values("normal", (WIDTH, count), "float32", 1)
    if router == "one":  # every token to one expert
        one = np.zeros_like(one)
    if router == "nan":
        one[0, 0] = np.nan
    return {"router": one, "up": up, "down": down}


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def looped(x, layer, experts, gates, capacity=np.inf):
    """The mixture and the number of choices that it drops: all first choices, then all second."""
    x, layer = jax.tree.map(lambda a: np.asarray(a, "float64"), (x, layer))
    y, dropped = np.zeros_like(x), 0
    filled = np.zeros(layer["router"].shape[1])
    for choice in range(experts.shape[1]):
        for token in range(len(x)):
            e = experts[token, choice]
            free = filled[e] < capacity
            filled[e] += 1
            dropped += not free
            done = gelu(x[token] @ layer["up"][e]) @ layer["down"][e] if free else 0 * y[token]
            y[token] += float(gates[token, choice]) * done
    return y, dropped


def expected(x, layer, top, groups=1, factor=None):
    """The mixture in groups of tokens, what is dropped, and the loads."""
    choose, count = copied("experts", "choose"), layer["router"].shape[1]
    results, drops, loads = [], [], []
    for own in np.split(np.asarray(x), groups):
        experts, gates, _ = (np.asarray(a) for a in choosing(choose, top)(own, layer["router"]))
        capacity = np.inf if factor is None else np.ceil(factor * experts.size / count)
        with np.errstate(all="ignore"):
            y, dropped = looped(own, layer, experts, gates, capacity)
        results.append(y)
        drops.append(dropped)
        loads.append(np.bincount(experts.ravel(), minlength=count))
    return np.concatenate(results), np.array(drops), np.array(loads)


@cache
def choosing(choose, top):
    return jax.jit(lambda x, router: choose(x, router, top))


@contract(
    "experts", "choose", draws=80,
    tokens=[0, 1, 7], count=[1, 2, 5], top=[0, 1, 2, 3, 5], kind=[*KINDS, "huge"],
    router=["normal", "one", "nan"], dtype=["float32", "bfloat16"],
)  # fmt: skip
def test_choose(choose, tokens, count, top, kind, router, dtype):
    """`choose` takes at least one token, in float32 or bfloat16, and a number of experts for each
    token, from one to all. A NaN in a token makes this token's gates NaN.
    """
    x, router = values(kind, (tokens, WIDTH), dtype), layer_of(count, router=router)["router"]
    with refusal(not tokens or not 1 <= top <= count, tokens, top, count):
        found = (np.asarray(a, "float64") for a in choosing(choose, top)(x, router))
        experts, gates, probabilities = found
        with np.errstate(all="ignore"):
            logits = np.asarray(x, "float64") @ router.astype("float64")
            exact = np.exp(logits - logits.max(-1, keepdims=True))
            exact /= exact.sum(-1, keepdims=True)
        whole = np.isfinite(exact).all(-1)
        assert np.isnan(gates[~whole]).all()
        assert gates.shape == experts.shape == (tokens, top)
        assert all(len(set(row)) == top for row in experts)
        logits, exact = logits[whole], exact[whole]
        if kind == "huge":  # float32 may tell apart what float64 does not, and the other way round
            return
        close(probabilities[whole], exact, 2e-5)
        best = -np.sort(-exact, -1)[:, :top]
        close(gates[whole], best / (best.sum(-1, keepdims=True) if top > 1 else 1), 2e-5)
        if kind == "zeros":  # ties: the first experts
            assert (experts[whole] == np.arange(top)).all()


@contract(
    "experts", "assign_slots", "dispatch", "combine", draws=80,
    tokens=[0, 1, 7], count=[1, 3, 8], top=[1, 2], capacity=[0, 1, 2, 50], kind=KINDS,
    dtype=["float32", "bfloat16"], one=[True, False],
)  # fmt: skip
def test_dispatch(
    assign_slots, dispatch, combine, seed, tokens, count, top, capacity, kind, dtype, one
):
    """`assign_slots`, `dispatch` and `combine` take experts from 0 to `count` - 1 and any capacity,
    from 0.
    """
    random = np.random.default_rng(seed)
    x = values(kind, (tokens, WIDTH), dtype)
    gates = values("normal", (tokens, top), "float32", 1)
    experts = random.integers(0, 1 if one else count, (tokens, top)).astype("int32")
    if top == 2 and count > 1:
        experts[:, 1] = (experts[:, 0] + 1) % count
    elif top == 2:
        return  # a token chooses an expert once
    slots = np.asarray(assign_slots(experts, count))
    filled = dispatch(x, experts, slots, count, capacity)
    assert filled.shape == (count, capacity, WIDTH)
    assert filled.dtype == dtype
    buffers, seen = np.zeros(filled.shape), np.zeros(count, int)
    back = np.zeros((tokens, WIDTH))
    for choice in range(top):
        for token in range(tokens):
            e = experts[token, choice]
            assert slots[token, choice] == seen[e]
            if seen[e] < capacity:
                buffers[e, seen[e]] = x[token]
                with np.errstate(all="ignore"):
                    back[token] += gates[token, choice] * x[token].astype("float64")
            seen[e] += 1
    close(filled, buffers, 0)
    y = combine(filled, experts, slots, gates)
    assert y.dtype == dtype
    close(y, back, 2e-2 if dtype == "bfloat16" else 1e-5)


def is_mixture(run, x, layer, top, dtype, groups=1, factor=None):
    """Whether `run` gives the mixture, and the report on it."""
    y, *report = run(x, layer)
    right, drops, loads = expected(x, layer, top, groups, factor)
    assert y.dtype == dtype
    if np.isnan(layer["up"]).any():  # of one expert; CPUs make all tokens NaN
        assert np.isnan(y)[np.isnan(right)].all()
        return
    close(y, right, 5e-2 if dtype == "bfloat16" else 5e-5)
    if report:
        np.testing.assert_array_equal(np.ravel(report[0]["dropped"]), drops)
        np.testing.assert_array_equal(report[0]["load"], loads if groups > 1 else loads[0])


@contract(
    "experts", "moe", draws=40,
    tokens=[0, 1, 9], count=[1, 3, 8], own=[0, 0, 0, 1, -1], top=[1, 2, 3],
    factor=[*FACTORS, -1.0], kind=KINDS, router=["normal", "one", "nan"],
    dtype=["float32", "bfloat16"],
)  # fmt: skip
def test_moe(moe, tokens, count, own, top, factor, kind, router, dtype):
    """`moe` takes tokens and `top` as `choose` does, a layer with all experts of its router, and
    any capacity factor from 0. It reports how many choices it drops.
    """
    own = count if own == 0 else max(1, count + own)
    x, layer = values(kind, (tokens, WIDTH), dtype), layer_of(count, own, dtype, router)
    named = [own, count] if own != count else [factor] if factor < 0 else [tokens, top, count]
    with refusal(not tokens or top > count or own != count or factor < 0, *named):
        is_mixture(jitted(bound(moe, factor=factor, top=top)), x, layer, top, dtype, 1, factor)


@cache
def jitted(f):
    return jax.jit(f)


@contract(
    "experts", "across", draws=25,
    devices=DEVICES, tokens=[1, 5], own=[1, 2], more=[0, 0, 0, 1], top=[1, 2, 3],
    factor=[0, 1.0, 1.25], kind=KINDS, router=["normal", "one"],
)  # fmt: skip
def test_across(across, devices, tokens, own, more, top, factor, kind, router):
    """`across` takes the options of `moe`, and returns the mixture for one device. All devices must
    have equally many experts.
    """
    count = devices * own + more
    x, layer = (
        values(kind, (devices * tokens, WIDTH)),
        layer_of(count, devices * own, router=router),
    )
    named = [own, count, devices] if more else [tokens, top, count]
    with refusal(top > count or more, *named):
        run = on_devices(bound(across, factor=factor, top=top), devices)
        y, report = run(x, layer)
        report |= {"load": report["load"] if devices > 1 else report["load"][0]}
        is_mixture(lambda *_: (y, report), x, layer, top, "float32", devices, factor)


@cache
def on_devices(make, devices):
    out = P("expert"), P("expert")
    mesh = mesh_of(devices, names=("expert",))
    return jax.jit(jax.shard_map(
        make(), mesh=mesh, in_specs=(P("expert"), SPECS), out_specs=out
    ))  # fmt: skip


@cache
def dropless_on(dropless, top, devices):
    mesh = mesh_of(devices, names=("expert",))
    run = jax.shard_map(
        lambda x, layer: dropless(x, layer, top=top), mesh=mesh,
        in_specs=(P("expert"), SPECS), out_specs=(P("expert"), P("expert")),
    )  # fmt: skip

    def both(x, layer):
        return run(x, layer), jax.grad(lambda own: (run(x, own)[0] ** 2).sum())(layer)

    return jax.jit(both)


@cache
def dense_gradient(top):
    def dense(layer, x):
        experts, gates, _ = copied("experts", "choose")(x, layer["router"], top)
        count = layer["router"].shape[1]
        weights = (jax.nn.one_hot(experts, count) * gates[..., None]).sum(1)
        all_done = jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        return (jnp.einsum("se,esd->sd", weights, all_done) ** 2).sum()

    return jax.jit(jax.grad(dense))


@contract(
    "experts", "dropless", "zeros", draws=20,
    devices=DEVICES, tokens=[1, 5], own=[1, 2], more=[0, 0, 0, 1], top=[1, 2],
    kind=KINDS, router=["normal", "one", "nan"], fault=[False, False, True],
)  # fmt: skip
def test_dropless(dropless, devices, tokens, own, more, top, kind, router, fault):
    """`dropless` is a mixture for one device, like the mixture that `across` returns, on any number
    of devices. It drops nothing.
    """
    count = devices * own + more
    x, layer = (
        values(kind, (devices * tokens, WIDTH)),
        layer_of(count, devices * own, router=router),
    )
    if fault:  # of one expert
        layer["up"][-1, 0, 0] = np.nan
    with refusal(top > count or more, *([own, count, devices] if more else [tokens, top, count])):
        (y, report), gradient = dropless_on(dropless, top, devices)(x, layer)
        load = report["load"] if devices > 1 else report["load"][0]
        is_mixture(lambda *_: (y, report | {"load": load}), x, layer, top, "float32", devices)
        if kind in ("normal", "zeros") and router != "nan" and not fault:
            right = dense_gradient(top)(layer, x)
            close(gradient, right, 1e-3 if router == "normal" else 1e-4)


@contract(
    "experts", "sorted_mixture", "grouped_mlp", "sort_choices", "unsort", draws=30,
    tokens=[1, 9], count=[1, 3, 8], own=[0, 0, 1], top=[1, 2, 3], kind=KINDS,
    router=["normal", "one", "nan"], dtype=["float32", "bfloat16"], fault=[False, False, True],
)  # fmt: skip
def test_sorted_mixture(sorted_mixture, tokens, count, own, top, kind, router, dtype, fault):
    """`sorted_mixture` takes tokens, layer and `top` as `moe` does, and drops nothing."""
    own = count + own
    x, layer = values(kind, (tokens, WIDTH), dtype), layer_of(count, own, dtype, router)
    if fault:
        layer["up"][-1, 0, 0] = np.nan
    with refusal(top > count or own != count, *([own, count] if own != count else [top, count])):
        run = jitted(bound(sorted_mixture, top=top))
        is_mixture(lambda *a: (run(*a),), x, layer, top, dtype)


@contract(
    "experts", "offsets", draws=60, quick=True,
    devices=st.integers(1, 5), own=[0, 1, 2, 3], more=[0, 0, 1], high=[1, 2, 9],
)  # fmt: skip
def test_offsets(offsets, seed, devices, own, more, high):
    """`offsets` takes a table of counts, with a row for each device and a column for each expert.
    Every device must have the same number of experts.
    """
    count = devices * own + more
    table = np.random.default_rng(seed).integers(0, high, (devices, count)).astype("int32")
    with refusal(count % devices or not count, devices, count):
        starts, places = (np.asarray(a) for a in offsets(jnp.asarray(table)))
        each = count // devices
        for sender in range(devices):
            for e in range(count):
                assert starts[sender, e] == table[sender, :e].sum()
                first = e // each * each  # of the receiver's experts
                assert places[sender, e] == table[:, first:e].sum() + table[:sender, e].sum()


@contract(
    "experts", "update", draws=60, quick=True,
    count=[1, 2, 5, 8], rows=[None, None, None, 1, 3], high=[1, 2, 3, 5000],
    dtype=["float32", "bfloat16"], in_jit=[True, False],
)  # fmt: skip
def test_update(update, seed, count, rows, high, dtype, in_jit):
    """`update` takes the bias of all experts, in float32 or bfloat16, and how many choices each of
    them got from the tokens of all devices. It refuses loads of another shape.
    """
    bias = values("normal", (count,), dtype)
    shape = (count,) if rows is None else (rows, count)
    load = np.random.default_rng(seed).integers(0, high, shape)
    with refusal(rows is not None, count, rows):
        found = (jitted(update) if in_jit else update)(bias, load)
        assert found.dtype == dtype and rows is None
        mean = load.sum() / count
        right = bias.astype("float64") + 0.01 * ((load < mean) * 1.0 - (load > mean))
        close(found, right, 1e-2 if dtype == "bfloat16" else 1e-6)


@contract(
    "experts", "padded", draws=20,
    devices=[1, 2, 3, 8], own=[1, 2], high=[1, 2, 5], kind=["normal", "nan", "inf", "ones"],
    dtype=["float32", "bfloat16", "int32"], check=[True, False], most=[None, None, 0, 2, 4],
)  # fmt: skip
def test_padded(padded, seed, devices, own, high, kind, dtype, check, most):
    """`padded` takes the arguments of `lax.ragged_all_to_all`, and passes on any NaN. A block of
    more than `most` rows arrives as NaN, so pass `most`, at least 1, for floats only.
    """
    count, length = devices * own, devices * 2 * 5 + 3
    table = np.random.default_rng(seed).integers(0, high, (devices, count)).astype("int32")
    starts, places = (np.asarray(a) for a in copied("experts", "offsets")(jnp.asarray(table)))
    room = devices * own * 4 + 1
    rows = values(kind, (devices, length, 2), "float32" if dtype == "int32" else dtype)
    if dtype == "int32":  # more digits than a float32 has
        rows = np.arange(rows.size, dtype=dtype).reshape(rows.shape) + 2**30
    right = np.full((devices, room, 2), 7).astype(dtype)
    arriving = np.stack([table[:, d * own : (d + 1) * own] for d in range(devices)])
    for sender in range(devices):
        for e in range(count):
            start, place, size = starts[sender, e], places[sender, e], table[sender, e]
            right[e // own, place : place + size] = rows[sender, start : start + size]
            if most is not None and size > most and dtype != "int32":
                right[e // own, place : place + most] = np.nan
                right[e // own, place + most : place + size] = 7
    run = mapped(bound(padded, axis="x", most=most), mesh_of(devices), P("x"), P("x"), check)
    output = np.full((devices * room, 2), 7).astype(dtype)
    flat = (a.reshape(-1) for a in (starts, table, places, arriving))
    with refusal(most == 0 or (dtype == "int32" and most), dtype, most):
        close(run(rows.reshape(-1, 2), output, *flat), right.reshape(-1, 2), 0)
