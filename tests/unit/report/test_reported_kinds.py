"""explain() on kinds of faults that public reports have shown, each beside the correct program."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from steps import grid, pod_of, struct

from shardlab.report.explain import explain
from shardlab.report.findings import repeated_products

pytestmark = pytest.mark.reads("src/shardlab")

MESH = grid((2, 4), ("data", "model"))
EIGHT = grid((8,), ("data",))
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e:2x4"])
ADVICE = {  # of memory
    "replicated", "replicated result", "largest temporaries", "bf16 widened", "not donated",
}  # fmt: skip
HEAD, HIDDEN = struct(MESH, (256, 8192), None, "model"), struct(MESH, (64, 256), "data")
KEY = struct(MESH, (2,), dtype="uint32")
ORDER = np.arange(1024).reshape(8, 128)[[0, 7, 1, 6, 2, 5, 3, 4]].ravel()


def on(x, *spec, mesh=MESH):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def told(f, arguments, backend="cpu"):
    report = explain(f, *arguments, mesh=pod_of(backend))
    return [f"{one.title}: {one.says}" for one in report.findings if one.title not in ADVICE]


# --- Pairs: with the fault, and without -----------------------------------------------------------


def crossed(is_wrong):
    spec = P("model", "data") if is_wrong else P("data", "model")
    f = jax.jit(lambda a, b: a @ b, out_shardings=NamedSharding(MESH, spec))
    return f, (struct(MESH, (2048, 512), "data"), struct(MESH, (512, 2048), None, "model"))


def gathered_for_noise(is_wrong):
    def f(head, hidden, key):
        logits = on(hidden @ head, "data", "model")
        logits = on(logits, "data") if is_wrong else logits
        return jnp.argmax(logits + jax.random.gumbel(key, logits.shape), -1)

    return jax.jit(f), (HEAD, HIDDEN, KEY)


def gathered_for_a_sum(is_wrong):
    def f(head, hidden):
        logits = on(hidden @ head, "data", "model")
        return jax.nn.logsumexp(on(logits, "data") if is_wrong else logits, -1)

    return jax.jit(f), (HEAD, HIDDEN)


def product_without_its_batch(is_wrong):
    def f(head, hidden):
        return jnp.tanh(on(hidden @ head, None if is_wrong else "data", "model"))

    return jax.jit(f), (HEAD, HIDDEN)


def reordered(is_wrong):
    """By a helper that also drops an axis, in another line."""

    def f(w, x):
        h = on(jnp.einsum("btd,dhk->bthk", x, w), "data", "model")
        h = on(jnp.take(h, ORDER, axis=1), "data", "model") if is_wrong else h
        return jnp.tanh(on(h, "data"))

    arguments = struct(MESH, (128, 8, 16)), struct(MESH, (8, 1024, 128), "data", "model")
    return jax.jit(f), arguments


def largest_of_rows(is_wrong):
    def f(x):
        own = lambda x: lax.top_k(x, 8)  # noqa: E731
        return (own if is_wrong else jax.shard_map(own, mesh=EIGHT, **ROWS))(x)

    return jax.jit(f), (struct(EIGHT, (64, 4096), "data"),)


ROWS = {"in_specs": P("data"), "out_specs": P("data")}


def on_one_device(is_wrong):
    slopes = jnp.linspace(0.1, 1, 4096)
    slopes = slopes if is_wrong else jax.device_put(slopes, NamedSharding(MESH, P("model")))
    x = struct(MESH, (16, 4096, 32), "data", "model")
    return jax.jit(lambda s, x: x * s[:, None], donate_argnums=1), (slopes, x)


def carried_whole(is_wrong):
    """Blocks, each of whose results has lost the batch's axis."""
    end = () if is_wrong else ("data",)

    def block(x, w):
        return on(x + jnp.tanh(x @ w["up"]) @ w["down"], *end), None

    def f(w, x):
        return (lax.scan(jax.checkpoint(block), on(x, "data"), w)[0] ** 2).mean()

    up, down = (256, 1024), (1024, 256)
    w = {
        "up": struct(MESH, (3, *up), None, "data", "model"),
        "down": struct(MESH, (3, *down), None, "model", "data"),
    }
    return jax.grad(f), (w, struct(MESH, (512, 16, 256), "data"))


def carried_between(is_wrong):
    """Blocks in two halves, after each of which the batch's axis is lost, so that what the weights
    have along it is all that the second constraint sees.
    """
    end = () if is_wrong else ("data",)

    def block(x, w):
        x = on(x + jnp.tanh(x @ w["up"]) @ w["down"], *end)
        return on(x + jnp.tanh(x @ w["up"]) @ w["down"], *end), None

    def f(w, x):
        return (on(lax.scan(jax.checkpoint(block), on(x, "data"), w)[0], "data") ** 2).mean()

    w, x = carried_whole(True)[1]
    return jax.grad(f), (w, x)


def fused(is_wrong):
    """Blocks with one weight for gate and up, between two constraints on the residuals."""

    def block(x, w):
        x = on(x + jnp.tanh(x @ w["up"]) @ w["down"], "data")
        if is_wrong:
            gate, up = jnp.split(x @ w["gate_up"], 2, -1)
        else:
            gate, up = x @ w["gate"], x @ w["up"]
        return on(x + jax.nn.silu(gate) * up @ w["down"], "data"), None

    def f(w, x):
        return (lax.scan(jax.checkpoint(block), on(x, "data"), w)[0] ** 2).mean()

    w, x = carried_whole(True)[1]
    wide = struct(MESH, (3, 256, 2048), None, "data", "model")
    w |= {"gate_up": wide} if is_wrong else {"gate": w["up"]}
    return jax.grad(f), (w, x)


def stored_elsewhere(is_wrong):
    """Experts that a shard_map takes along `model`, trained with momentum."""

    def own(w, x):
        x = lax.all_gather(x, "model", axis=0, tiled=True)
        y = jnp.einsum("etf,efd->etd", jnp.tanh(jnp.einsum("td,edf->etf", x, w["up"])), w["down"])
        return lax.psum_scatter(y.sum(0), "model", scatter_dimension=0, tiled=True)

    spec, both = {"up": P("model"), "down": P("model")}, P(("data", "model"))
    experts = jax.shard_map(own, mesh=MESH, in_specs=(spec, both), out_specs=both)

    def step(w, moments, x):
        gradients = jax.grad(lambda w: (experts(w, x) ** 2).mean())(w)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, w, moments), moments

    stored = "data" if is_wrong else "model"
    w = {"up": struct(MESH, (8, 256, 512), stored), "down": struct(MESH, (8, 512, 256), stored)}
    f = jax.jit(
        step, donate_argnums=(0, 1), out_shardings=jax.tree.map(lambda a: a.sharding, (w, w))
    )
    return f, (w, w, struct(MESH, (512, 256), ("data", "model")))


def shuffled(is_wrong):
    """A step that shuffles its batch, which another one gets shuffled."""
    rows = NamedSharding(EIGHT, P("data"))

    def loss(w, batch, key):
        if is_wrong:
            order = jax.random.permutation(key, 512)
            batch = {name: one[order] for name, one in batch.items()}
        x, y = (lax.with_sharding_constraint(batch[name], rows) for name in "xy")
        return ((jnp.tanh(x @ w) - y) ** 2).mean()

    def step(w, batch, key):
        return w - 0.1 * lax.with_sharding_constraint(jax.grad(loss)(w, batch, key), rows)

    batch = {"x": struct(EIGHT, (512, 256), "data"), "y": struct(EIGHT, (512, 64), "data")}
    key = jax.eval_shape(jax.random.key, 0)
    key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=NamedSharding(EIGHT, P()))
    return jax.jit(step, donate_argnums=0), (struct(EIGHT, (256, 64), "data"), batch, key)


def summed_and_sliced(is_wrong):
    """The second product of an MLP in a shard_map, whose result is in shards of tokens again."""

    def own(x, up, down):
        part = jnp.tanh(lax.all_gather(x, "model", axis=0, tiled=True) @ up) @ down
        if not is_wrong:
            return lax.psum_scatter(part, "model", scatter_dimension=0, tiled=True)
        start = lax.axis_index("model") * x.shape[0]
        return lax.dynamic_slice_in_dim(lax.psum(part, "model") / 2, start, x.shape[0])

    rows = P(("data", "model"))
    specs = {"in_specs": (rows, P(None, "model"), P("model")), "out_specs": rows}
    f = jax.jit(jax.shard_map(own, mesh=MESH, **specs), donate_argnums=0)
    weights = struct(MESH, (256, 512), None, "model"), struct(MESH, (512, 256), "model")
    return f, (struct(MESH, (512, 256), ("data", "model")), *weights)


def sliced(is_wrong):
    def f(x, i):
        chosen = x[i] if is_wrong else jnp.where(jnp.arange(512)[:, None] == i, x, 0).sum(0)
        return 2 * chosen

    return f, (struct(MESH, (512, 64), "data"), struct(MESH, (), dtype="int32"))


def rolled(is_wrong):
    def f(x, i):
        return x - 0.5 * jnp.roll(x, i, 0)

    spec = ["data"] if is_wrong else [None, "data"]
    return f, (struct(MESH, (512, 64), *spec), struct(MESH, (), dtype="int32"))


PAIRS = {
    carried_whole: ("constraint without an axis", "the next iteration of the loop gets the whole"),
    carried_between: ("constraint without an axis", 'write P("data")'),
    fused: ("avoidable communication", "a split along a dimension that is sharded"),
    stored_elsewhere: ("stored in other shards", 'stored in P("data")'),
    shuffled: ("avoidable communication", "rows of batch['x'] and batch['y'], which are in shards"),
    summed_and_sliced: ("avoidable communication", "scatter_dimension=0, tiled=True) sends half"),
    sliced: ("avoidable communication", "a slice along a dimension that is sharded"),
    rolled: ("avoidable communication", "jnp.roll by a computed number"),
    crossed: ("order of axes", 'asked for in P("model", "data")'),
    gathered_for_noise: ("constraint without an axis", "lacks model"),
    gathered_for_a_sum: ("constraint without an axis", "lacks model"),
    product_without_its_batch: ("constraint without an axis", "lacks data"),
    reordered: ("avoidable communication", "a computed index into a sharded dimension"),
    largest_of_rows: ("avoidable communication", "call it in a shard_map over these rows"),
    on_one_device: ("not placed", "s is on one device"),
}


@BOTH
@pytest.mark.parametrize("pair", PAIRS)
def test_a_fault_is_told_first_and_the_correct_program_has_none(pair, backend):
    title, words = PAIRS[pair]
    if backend != "cpu" and pair is on_one_device:
        pytest.skip("a pod has no arrays")
    if backend != "cpu" and pair in (largest_of_rows, carried_whole):  # it keeps these in shards
        assert told(*pair(True), backend) == []
        return
    found = told(*pair(True), backend)
    assert found and found[0].startswith(f"{title}: ") and words in found[0], found
    assert told(*pair(False), backend) == []


# --- Arrays that are whole where their like are in shards -----------------------------------------


def trained(down, moment):
    """A step with momentum, whose blocks have a spec for `down`, and its moment another one."""
    up = P(None, "data", "model")
    shapes = {
        "up": (4, 256, 1024),
        "gate": (4, 256, 1024),
        "down": (4, 1024, 256),
        "norm": (4, 256),
    }

    def step(w, moments, x):
        def block(x, w):
            hidden = jnp.tanh(w["norm"] * x @ w["up"]) * (x @ w["gate"])
            return on(x + hidden @ w["down"], "data"), None

        def loss(w):
            return (lax.scan(block, on(x, "data"), w)[0] ** 2).mean()

        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, jax.grad(loss)(w))
        return jax.tree.map(lambda p, m: p - 0.1 * m, w, moments), moments

    def arrays(up, down):
        specs = {"up": up, "gate": up, "down": down, "norm": P()}
        return {name: struct(MESH, shapes[name], *spec) for name, spec in specs.items()}

    moments = arrays(up, down) if moment else arrays(P(), P())
    return jax.jit(step, donate_argnums=(0, 1)), (
        arrays(up, down),
        moments,
        struct(MESH, (64, 256), "data"),
    )


def test_an_array_without_an_axis_of_most_others_is_told_with_its_own_dimension():
    report = explain(*_called(trained(P(None, "model"), True)))
    found = [one.says for one in report.findings if one.title == "replicated"]
    assert len(found) == 2 and all("['down']" in one for one in found), found
    assert all("along data, which divides dimension 2" in one for one in found), found
    report = explain(*_called(trained(P(None, "model", "data"), True)))
    assert [one for one in report.findings if one.title == "replicated"] == []


def test_moments_that_are_whole_get_the_specs_of_their_parameters():
    report = explain(*_called(trained(P(None, "model", "data"), False)))
    (found,) = [one for one in report.findings if one.title == "replicated"]
    assert "such as P(None, " in found.says and "that of w['" in found.says
    specs = dict(found.remedy.specs)
    assert {*specs.values()} == {'P(None, "data", "model")', 'P(None, "model", "data")'}


def _called(program):
    f, arguments = program
    return f, *arguments


# --- Correct programs in which something was told once --------------------------------------------


def router():
    """The choice of each token's experts, in a shard_map over the batch."""

    def own(w, x):
        gates, experts = lax.top_k(jax.nn.softmax(x @ w), 2)
        return gates / gates.sum(-1, keepdims=True), experts

    specs = {"in_specs": (P(), P("data")), "out_specs": P("data")}
    f = jax.shard_map(own, mesh=EIGHT, **specs)
    return jax.jit(f), (struct(EIGHT, (256, 64)), struct(EIGHT, (8, 1024, 256), "data"))


def beam():
    """One step of a beam search whose batch is in a shard_map."""

    def own(cache, scores, logits):
        total = (scores[..., None] + jax.nn.log_softmax(logits)).reshape(len(scores), -1)
        best, at = lax.top_k(total, 4)
        parent, token = at // 4096, at % 4096
        return jax.vmap(lambda c, p: c[p])(cache, parent), best, token

    f = jax.shard_map(own, mesh=EIGHT, **ROWS)
    shapes = (64, 4, 64, 32), (64, 4), (64, 4, 4096)
    arguments = [struct(EIGHT, shape, "data") for shape in shapes]
    return jax.jit(f, donate_argnums=(0, 1)), arguments


def candidates():
    """The largest of each shard's largest."""

    def own(logits):
        values, places = lax.top_k(logits, 64)
        return values, places + lax.axis_index("model") * logits.shape[1]

    def f(head, hidden):
        spec = P("data", "model")
        own_best = jax.shard_map(own, mesh=MESH, in_specs=spec, out_specs=(spec, spec))
        values, places = (on(one, "data") for one in own_best(on(hidden @ head, *spec)))
        here = jnp.arange(values.shape[1]) == jnp.argmax(values, -1)[:, None]
        return jnp.where(here, places, 0).sum(-1)

    return jax.jit(f), (HEAD, HIDDEN)


def dense_experts():
    """All experts compute all tokens, and devices add what they have."""

    def loss(w, x):
        gates = jax.nn.softmax(x @ w["router"])
        sent = on(jnp.einsum("tx,td->xtd", gates, x), "data", mesh=EIGHT)
        h = jax.nn.gelu(jnp.einsum("etd,edf->etf", sent, w["up"]))
        back = on(jnp.einsum("etf,efd->etd", h, w["down"]), "data", mesh=EIGHT)
        return jnp.mean((on(x + back.sum(0), "data", mesh=EIGHT) @ w["head"]) ** 2)

    def step(w, x):
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w, x))

    w = {
        "router": struct(EIGHT, (256, 8)),
        "up": struct(EIGHT, (8, 256, 512), "data"),
        "down": struct(EIGHT, (8, 512, 256), "data"),
        "head": struct(EIGHT, (256, 2048), "data"),
    }
    layouts = jax.tree.map(lambda a: a.sharding, w)
    f = jax.jit(step, donate_argnums=0, out_shardings=layouts)
    return f, (w, struct(EIGHT, (512, 256), "data"))


def test_what_a_constraint_repeats_is_not_said_of_the_data():
    """As in decoding, where nothing tells weights from data."""

    def decode(hidden, head):
        return jnp.argmax(on(jnp.tanh(hidden) @ head, "data"), -1)

    found = told(
        decode, (struct(MESH, (64, 512), "data"), struct(MESH, (512, 16384), None, "model"))
    )
    assert len(found) == 1 and found[0].startswith("constraint without an axis: "), found


@BOTH
@pytest.mark.parametrize("program", [router, beam, candidates, dense_experts])
def test_of_a_correct_program_nothing_is_told(program, backend):
    assert told(*program(), backend) == []


def test_products_to_which_xla_gives_the_line_of_others_are_not_repeated():
    """As in a gradient: of two lines it names none, and of a third one more than all it has."""
    whole = Counter({("a.py", 1): 800, ("a.py", 2): 800, ("a.py", 3): 160})
    each = Counter({("", 0): 150, ("a.py", 3): 70})
    assert repeated_products(whole, each, 8) == {}
    again = repeated_products(whole, each + Counter({("a.py", 3): 140}), 8)
    assert again == {("a.py", 3): (8 * 160, 160)}


# --- Results that are equal again -----------------------------------------------------------------


def unchecked(f, in_specs, *arguments):
    mapped = jax.shard_map(f, mesh=EIGHT, in_specs=in_specs, out_specs=P(), check_vma=False)
    return jax.jit(mapped), arguments


def there_and_back(x, w):
    x = lax.all_to_all(x, "data", 0, 1, tiled=True)
    return lax.all_to_all(jnp.tanh(x @ w[0]), "data", 1, 0, tiled=True)


def ring(x):
    def hop(_, carry):
        total, part = carry
        part = lax.ppermute(part, "data", [(n, (n + 1) % 8) for n in range(8)])
        return total + part, part

    return lax.fori_loop(0, 7, hop, (x, x))[0]


SUMMANDS = struct(EIGHT, (512, 128), "data")
TOKENS, WEIGHTS = struct(EIGHT, (8, 64, 128)), struct(EIGHT, (8, 128, 128), "data")
EXCHANGES = [(there_and_back, (P(), P("data")), TOKENS, WEIGHTS), (ring, P("data"), SUMMANDS)]


@pytest.mark.parametrize("case", EXCHANGES, ids=["all_to_all", "ppermute"])
def test_what_an_exchange_makes_equal_again_is_not_called_different(case):
    found = told(*unchecked(*case))
    assert not [one for one in found if one.startswith("replicated but different")], found
    f, _ = unchecked(*case)
    values = [jax.random.normal(jax.random.key(n), one.shape) for n, one in enumerate(case[2:])]
    shards = [np.asarray(one.data) for one in f(*values).addressable_shards]
    assert len(shards) == 8 and all(np.allclose(one, shards[0], atol=1e-3) for one in shards)


@pytest.mark.parametrize("f", [lambda x: x.sum(0), jnp.tanh])
def test_what_no_exchange_makes_equal_is_called_different(f):
    found = told(*unchecked(f, P("data"), SUMMANDS))
    assert found and found[0].startswith("replicated but different: "), found


# --- Fewer heads of keys than devices -------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 8])
def test_an_array_with_fewer_elements_than_devices_is_to_be_repeated(count):
    """Attention of 16 query heads, in shards of heads, with keys in shards of the head's width."""

    def attend(q, k, v):
        q = q.reshape(256, count, 16 // count, 128)
        scores = jax.nn.softmax(jnp.einsum("tkgd,skd->kgts", q, k) / 11.3)
        return jnp.einsum("kgts,skd->tkgd", scores, v).reshape(256, 16, 128)

    f = jax.jit(attend, out_shardings=NamedSharding(EIGHT, P(None, "data")))
    spec = (None, None, "data") if count == 2 else (None, "data")
    kv = struct(EIGHT, (1024, count, 128), *spec)
    report = explain(f, struct(EIGHT, (256, 16, 128), None, "data"), kv, kv)
    found = [one.says for one in report.findings if one.title == "full rematerialisation"]
    if count == 8:
        assert found == [] and report.bytes == 0, report
        return
    assert "for example k, f32[1024,2,16]" in found[0], report
    assert "dimension 1 has 2 elements for 8 devices" in found[0], report
    assert "jnp.repeat(array, 4, 1)" in found[0], report


# --- Fourier transforms of whole dimensions -------------------------------------------------------


@BOTH
@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_transform_of_whole_rows_is_given_the_layout_of_its_operand(is_wrong, backend):
    """Rows are transformed, and then sums taken down the columns, for which these are in shards."""

    def put(x, *spec):
        return lax.with_sharding_constraint(x, NamedSharding(EIGHT, P(*spec)))

    def f(u):
        modes = jnp.fft.rfft(u, axis=1)
        modes = modes if is_wrong else put(modes, "data")
        modes = jnp.cumsum(put(modes, None, "data"), 0) / (1 + jnp.arange(129.0) ** 2)
        return 2 * jnp.fft.irfft(modes, n=256, axis=1)

    out = NamedSharding(EIGHT, P("data"))
    found = told(jax.jit(f, out_shardings=out), (struct(EIGHT, (256, 256), "data"),), backend)
    found = [one for one in found if one.startswith(("repeated work", "full rematerialisation"))]
    if not is_wrong or backend != "cpu":  # the TPU's compiler exchanges rows for columns itself
        assert found == []
        return
    assert found[0].startswith("repeated work") and len(found) == 1, found
    assert 'layout than P("data")' in found[0] and 'constrain the result to P("data")' in found[0]
