"""explain(): what is said of programs whose communication is known from elsewhere."""

import ast
import inspect
import json
import re
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import Pod, collectives
from shardlab.arrays.layout import bytes_text
from shardlab.programs.origins import where
from shardlab.report import causes, reports
from shardlab.report.explain import compare, explain

pytestmark = pytest.mark.reads("src/shardlab")

D, F, B = 64, 256, 32
MESH = jax.make_mesh(
    (4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8]
)
SPECS = {"up": P("data", "model"), "down": P("model", "data")}


def on(*spec):
    return NamedSharding(MESH, P(*spec))


def struct(shape, *spec, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=on(*spec))


def weights(layers, dtype="float32"):
    shapes = {"up": (D, F), "down": (F, D)}
    return {
        "layers": [
            {k: struct(shapes[k], *SPECS[k], dtype=dtype) for k in shapes} for _ in range(layers)
        ]
    }


def model(params, x):
    for layer in params["layers"]:
        h = jnp.tanh(x @ layer["up"])
        x = x + h @ layer["down"]
    return x


def step(state, x, y):
    params, moments = state
    loss, grads = jax.value_and_grad(lambda params: jnp.mean((model(params, x) - y) ** 2))(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return (jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments), loss


def line_of(function, text):
    """The number of the line of a function that contains a text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if text in line)


BATCH = struct((B, D), "data")
UP, DOWN = line_of(model, '"up"'), line_of(model, '"down"')


@pytest.fixture(scope="module")
def trained():
    """The report of a step whose moments are replicated."""
    params = weights(3)
    moments = jax.tree.map(lambda one: struct(one.shape), params)
    return explain(jax.jit(step), (params, moments), BATCH, BATCH)


def test_the_moves_are_all_of_the_collectives(trained):
    params = weights(3)
    moments = jax.tree.map(lambda one: struct(one.shape), params)
    whole = collectives(step, (params, moments), BATCH, BATCH)
    assert trained.bytes == whole.bytes > 0
    for kind in whole:
        assert sum(move.times for move in trained.moves if move.kind == kind) == whole[kind]


def test_a_gather_has_the_line_that_needs_the_array_its_pass_and_the_name_of_the_argument(trained):
    gathers = [move for move in trained.moves if move.kind == "all-gather"]
    found = {(move.phase, move.line, move.array): move for move in gathers}
    assert {("forward", UP, "state[0]['layers'][*]['up']"),
        ("forward", DOWN, "state[0]['layers'][*]['down']"),
            ("backward", DOWN, "state[0]['layers'][*]['down']")} <= found.keys()  # fmt: skip
    first = found["forward", UP, "state[0]['layers'][*]['up']"]
    assert first.file == __file__ and first.axes == ("data",) and first.group == 4
    # what a device has goes to three others
    assert first.times == 3 and first.bytes == 3 * (D // 4) * (F // 2) * 4
    assert first.operation == "dot_general" and "FSDP" in first.cause and first.overlap == "waits"


def test_gradients_and_partial_sums_are_told_apart(trained):
    reduces = [move for move in trained.moves if move.kind == "all-reduce"]
    (partial,) = (move for move in reduces if move.phase == "forward" and move.line == DOWN)
    assert (
        partial.axes == ("model",)
        and partial.times == 3
        and "contracting dimension" in partial.cause
    )
    gradients = [move for move in reduces if move.axes == ("data",) and move.phase == "backward"]
    assert gradients and all("gradient" in move.cause for move in gradients if move.total > 100)
    assert any(move.array.startswith("result[0]") for move in gradients)


def test_memory_is_that_of_the_compiler_and_of_the_shards(trained):
    sizes = {array.name: array for array in trained.arrays}
    up, moment = sizes["state[0]['layers'][0]['up']"], sizes["state[1]['layers'][0]['up']"]
    assert (up.bytes, up.whole, up.spec, up.replicated) == (
        D * F * 4 // 8,
        D * F * 4,
        'P("data", "model")',
        (),
    )
    assert (
        moment.bytes == D * F * 4 and moment.replicated == ("data", "model") and up.donated is False
    )
    assert sum(array.bytes for array in trained.arrays) == trained.memory["arguments"]


def test_at_most_is_never_less_than_what_is_stored_at_once(trained):
    """Newer compilers for CPUs leave the temporaries out of their peak: here a product of 4 MB."""
    report = explain(lambda a: jnp.tanh(a @ a.T) @ a, struct((1024, 1024), "data"))
    held = 1024 * 1024 * 4
    for one in (report, trained):
        parts = [one.memory[part] for part in ("arguments", "results", "temporaries")]
        assert one.memory["peak"] == sum(parts)
        assert f"at most {bytes_text(sum(parts))} at once, all of it" in " ".join(repr(one).split())
    assert report.memory["peak"] > held + 2 * held // 4
    state = explain(jax.jit(lambda a: 2 * a, donate_argnums=0), struct((64, 64), "data"))
    assert state.memory["peak"] == state.memory["arguments"] == 64 * 64 * 4 // 4


def test_replicated_moments_and_a_state_that_is_not_donated_are_found(trained):
    titles = {finding.title: finding.says for finding in trained.findings}
    assert titles.keys() == {"replicated", "other sharding", "not donated"}
    assert "state[1]['layers'][*]['up'] (6 arrays)" in titles["replicated"]
    # an eighth of 393 kB, as the parameters
    assert (
        "that of state[0]['layers'][0]['down'], to state[1]['layers'][0]['down']"
        in titles["replicated"]
    )
    assert titles["replicated"].endswith("49.2 kB")
    assert 'donate_argnames="state"' in titles["not donated"]


def says(report, title):
    """What the findings of a report with a title say."""
    return [finding.says for finding in report.findings if finding.title == title]


def test_a_replicated_array_is_told_with_the_dimension_that_divides():
    (odd,) = says(explain(lambda a: a.sum(), struct((511, 64))), "replicated")
    # 511 * 64 * 4 / 4
    assert "in shards along data, which divides dimension 1, it would be 32.7 kB" in odd
    half = explain(lambda a, b: a + b, struct((64, 64), "model", "data"), struct((64, 64), "model"))
    assert (
        "is in shards; in shards along data, which divides dimension 1, it"
        in says(half, "replicated")[0]
    )
    # no axis divides a dimension
    assert says(explain(lambda a: a.sum(), struct((511, 63))), "replicated") == []


def test_a_replicated_result_is_told():
    """No sharding propagates from an array of which only the shape is used."""
    weights = struct((D, F), "data", "model")

    def init(w, x):
        return jnp.zeros_like(w), x

    (whole,) = says(explain(init, weights, BATCH), "replicated result")
    assert whole.startswith(
        "result[0], 65.5 kB on each device, 94% of arguments and results, stored whole along data"
    )
    assert "along data, which divides dimension 0, it would be 16.4 kB" in whole
    sharded = jax.jit(init, out_shardings=(on("data", "model"), on("data")))
    assert says(explain(sharded, weights, BATCH), "replicated result") == []
    # said of the argument
    assert says(explain(lambda w: 2 * w, struct((D, F))), "replicated result") == []


def test_a_result_on_one_device_is_told():
    """A program that uses none of the arrays on a mesh is compiled for one device."""
    weights = struct((D, F), "data", "model")
    (alone,) = says(explain(jnp.zeros_like, weights), "result on one device")
    assert alone.startswith(
        "result, 65.5 kB, is on one device, although arguments are on a mesh of 8"
    )
    assert (
        explain(jax.jit(jnp.zeros_like, out_shardings=on("data", "model")), weights).findings == ()
    )


def test_arguments_are_those_of_the_program_with_their_names_and_specs():
    report = explain(lambda unused, v, w: v @ w, BATCH, BATCH, np.ones((D, D), "float32"))
    assert [(array.name, array.spec) for array in report.arrays] == [
        ("w", "P()"),
        ("v", 'P("data")'),
    ]
    assert sum(array.bytes for array in report.arrays) == report.memory["arguments"]
    several = explain(lambda *args: (2 * args[0], args[1]), BATCH, {"w": struct((D, D), "data")})
    assert {array.name for array in several.arrays} == {"args[0]", "args[1]['w']"}
    assert "jax.jit(..., donate_argnums=(0, 1))" in says(several, "not donated")[0]


def test_a_result_that_does_not_have_the_sharding_of_what_it_replaces_is_told(trained):
    (changes,) = says(trained, "other sharding")
    assert (
        "6 results, first result[0][1]['layers'][0]['down'], have the types of state[1]" in changes
    )
    assert 'P("model", "data")' in changes and "P()" in changes and "compiles again" in changes
    donated = jax.jit(lambda w: 2 * w, donate_argnums=0, out_shardings=on("data"))
    (other,) = says(explain(donated, struct((64, 64), None, "data")), "other sharding")
    assert other.startswith(
        'result has the type of w, but the sharding P("data") instead of P(None, "data")'
    )
    # the same, spelt out
    assert says(explain(donated, struct((64, 64), "data", None)), "other sharding") == []
    # replaces nothing
    assert says(explain(lambda a: a.T, struct((64, 64), "data")), "other sharding") == []


def test_a_gradient_replaces_no_argument():
    params = {"up": struct((D, F)), "down": struct((F, D))}

    def loss(params, x):
        return jnp.mean(jnp.tanh(x @ params["up"]) @ params["down"])

    for f in (jax.grad(loss), jax.jit(jax.value_and_grad(loss))):
        report = explain(f, params, BATCH)
        assert says(report, "not donated") == says(report, "other sharding") == []
    updated = explain(
        lambda p, x: jax.tree.map(lambda p, g: p - g, p, jax.grad(loss)(p, x)), params, BATCH
    )
    assert len(says(updated, "not donated")) == 1


def test_the_gradient_of_the_only_parameter_is_told_from_a_partial_sum():
    def train(w, m, x):
        m = 0.9 * m + jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * m, m

    moves = explain(train, struct((D, D)), struct((D, D)), BATCH).moves
    assert [(move.kind, move.cause.partition(":")[0]) for move in moves] == [
        ("all-reduce", "a gradient")
    ]


def test_only_what_a_result_could_replace_should_be_donated():
    def forward(params, x):
        return jnp.tanh(x @ params["a"]) @ params["b"]

    params = {"a": struct((64, 64)), "b": struct((64, 64))}
    assert says(explain(forward, params, struct((64, 64), "data")), "not donated") == []
    moved = explain(lambda x, v: (x + 0.1 * v, jnp.sum(v)), *2 * [struct((64, 64), "data")])
    assert says(moved, "not donated") == [
        "results have the types and shardings of 4,096 bytes of x; if they replace it, "
        'jax.jit(..., donate_argnames="x") lets them take its memory'
    ]
    # another sharding
    assert says(explain(lambda a: a.T, struct((64, 64), "data")), "not donated") == []


def test_what_was_repaired_is_gone(trained):
    params = weights(3)
    better = explain(jax.jit(step, donate_argnums=0), (params, params), BATCH, BATCH)
    assert better.findings == () and better.memory["donated"] == 2 * 6 * D * F * 4 // 8
    lines = repr(explain.compare(trained, better)).splitlines()
    assert re.fullmatch(r" +before +after", lines[0]) and max(map(len, lines)) <= reports.WIDE
    (arguments,) = (line for line in lines if line.startswith("arguments"))
    assert re.fullmatch(r"arguments +446 kB +102 kB", arguments) and len(arguments) == len(lines[0])
    assert any(line.startswith("- replicated: state[1]") for line in lines)
    assert not any(line.startswith("+ ") for line in lines)
    page = explain.compare(trained, better)._repr_html_()
    assert (
        "<td>arguments</td><td>446 kB</td><td>102 kB</td>" in page
        and "<li>- <strong>replicated</strong>: state[1]" in page
    )
    with pytest.raises(TypeError, match="two reports of explain"):
        compare(trained, step)


def test_a_scan_says_how_often_and_names_the_stacked_arguments():
    stacked = {
        k: struct((3, *one.shape), None, *SPECS[k]) for k, one in weights(1)["layers"][0].items()
    }

    def scanned(params, x):
        def body(x, layer):
            return x + jnp.tanh(x @ layer["up"]) @ layer["down"], None

        return lax.scan(body, x, params)[0]

    found = {
        move.array: move
        for move in explain(scanned, stacked, BATCH).moves
        if move.kind == "all-gather"
    }
    assert found.keys() == {"params['up']", "params['down']"}
    assert all(move.times == 3 and move.line == line_of(scanned, "tanh") for move in found.values())


def large(bytes_on_a_device):
    """An array in shards along data, of so many bytes on each device."""
    return struct((bytes_on_a_device // 64, 64), "data")  # 4 devices, 4 bytes


def test_what_is_less_than_a_twentieth_of_the_memory_is_not_told():
    whole, twentieth = struct((64, 64)), 64 * 64 * 4
    for others, told in ((18 * twentieth, True), (19 * twentieth + 256, False)):
        report = explain(lambda a, b: a[0] + b[:4].sum(), whole, large(others))
        assert bool(says(report, "replicated")) == told
    for others, told in ((19 * twentieth - 256, True), (19 * twentieth, False)):
        state = explain(lambda a, b: (a + b.sum(), b.sum(0)), large(twentieth), large(others))
        assert bool(says(state, "not donated")) == told
    small = explain(lambda a, b: (a + 1, b.sum()), large(1024), large(1024))
    assert says(small, "not donated") == []  # a kilobyte


def test_products_that_are_repeated_are_told_from_a_twentieth_of_all():
    def f(a, b, c):
        first = a @ a
        return first, b @ c

    def told(rows):
        return bool(
            says(
                explain(
                    f, struct((64, 64)), struct((rows, 64), ("data", "model")), struct((64, 64))
                ),
                "repeated work",
            )
        )

    # Of 8 times 64 rows seven times 64 are repeated: 448 of 512 + rows.
    assert told(8 * 1000) and not told(8 * 1100)


@pytest.mark.parametrize(("rows", "told"), [(128, True), (127, False)])
def test_a_constant_is_told_from_64_kib(rows, told):
    constant = np.random.default_rng(0).normal(size=(rows, 128)).astype("float32")
    report = explain(lambda a: a @ constant, struct((64, rows), "data"))
    assert bool(says(report, "closed-over constant")) == told


def test_what_follows_the_backward_pass_is_the_update():
    """The parameters and their moments are stored otherwise."""
    specs = on(None, "model"), on("data")

    def update(p, m):
        return p - m @ m

    def train(p, m, x):
        gradient = jax.grad(lambda p: jnp.mean(jnp.tanh(x @ p) ** 2))(p)
        return update(p, m), 0.9 * m + gradient

    p, m = (jax.ShapeDtypeStruct((D, D), "float32", sharding=sharding) for sharding in specs)
    moves = explain(jax.jit(train, out_shardings=specs), p, m, BATCH).moves
    assert ("all-gather", "update", "m", UPDATE) in [
        (one.kind, one.phase, one.array, one.cause) for one in moves
    ]
    assert {"backward", "update"} <= {move.phase for move in moves}
    # nothing was differentiated
    alone = explain(jax.jit(update, out_shardings=specs[0]), p, m).moves
    assert alone and not any(move.phase == "update" or move.cause == UPDATE for move in alone)


UPDATE = (
    "the update needs whole what is stored in shards: optimiser and parameters have other specs"
)


def test_causes_that_the_program_names():
    reshard = explain(
        lambda a: lax.with_sharding_constraint(2 * a, on(None, "data")), struct((64, 64), "data")
    )
    assert [move.kind for move in reshard.moves] == ["all-to-all"] and reshard.moves[
        0
    ].phase == "forward"
    by_hand = jax.shard_map(
        lambda a: lax.psum(a, "data"), mesh=MESH, in_specs=P("data"), out_specs=P()
    )
    (move,) = explain(by_hand, struct((64, 64), "data")).moves
    assert (
        move.kind == "all-reduce" and move.cause == "written in a shard_map" and move.array == "a"
    )


ROWS, COLUMNS, EIGHT = (
    struct((64, 64), "data"),
    struct((64, 64), None, "data"),
    struct((8, 8), "data"),
)


def mapped_sum(w, x):
    return jax.shard_map(
        lambda w, x: lax.psum(jnp.sum(x @ w), "data"),
        mesh=MESH,
        in_specs=(P(), P("data")),
        out_specs=P(),
    )(w, x)


def ring(x):
    return jax.shard_map(
        lambda x: lax.ppermute(jnp.sin(x), "data", [(i, (i + 1) % 4) for i in range(4)]),
        mesh=MESH,
        in_specs=P("data"),
        out_specs=P("data"),
    )(x)


def look_up(table, indices):
    return table[indices[:, 0].astype(int)]


def descend(p, m, x):
    """A step whose update needs whole what is stored in shards."""
    return p - m @ m, 0.9 * m + jax.grad(lambda p: jnp.mean(jnp.tanh(x @ p) ** 2))(p)


def factored(a):
    """A call into foreign code: LAPACK's LU decomposition."""
    shapes = ((64, 64), "float32"), ((64,), "int32"), ((), "int32")
    return jax.ffi.ffi_call(
        "lapack_sgetrf_ffi", tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes)
    )(a)[0]


def in_groups(x, k):
    return lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
    )


def from_the_host(a):
    return jax.pure_callback(
        np.tanh, jax.ShapeDtypeStruct(a.shape, a.dtype), a, vmap_method="broadcast_all"
    )


unchecked_sum = jax.shard_map(
    lambda w, x: lax.psum(jnp.sum(x @ w), "data"),
    mesh=MESH,
    in_specs=(P(), P("data")),
    out_specs=P(),
    check_vma=False,
)

# A program for each cause: what it is called with, the kind of a collective in it, and how its
# cause begins.
CAUSES = [
    (mapped_sum, (struct((64,)), ROWS), "all-reduce", "written in a shard_map"),
    (jax.grad(mapped_sum), (struct((64,)), ROWS), "all-reduce",
        "added by the backward pass of a shard_map"),
    (jax.grad(lambda x: (ring(x) ** 2).sum()), (ROWS,), "collective-permute",
     "the backward pass of a collective in a shard_map"),
    (jax.grad(unchecked_sum), (struct((64,)), ROWS), "all-reduce",
     "added by the backward pass of a shard_map with check_vma=False"),
    (lambda a: lax.with_sharding_constraint(a, on(None, "data")), (ROWS,), "all-to-all",
        "asked for: a sharding"),
    (from_the_host, (ROWS,), "all-gather", "a callback runs on one device"),
    (factored, (ROWS,), "all-gather", "XLA does not split a call into foreign code"),
    (jax.jit(in_groups, out_shardings=on("data")),
        (struct((16, 8, 8, 32), "data"), struct((3, 3, 8, 64))),
     "all-gather", "a convolution in groups"),
    (lambda a: lax.map(jnp.cumsum, a), (ROWS,), "all-gather",
        "a loop (scan, map) goes along the dimension"),
    (lambda a, i: lax.dynamic_slice_in_dim(jnp.sin(a), i[0], 10),
        (ROWS, struct((1,), dtype="int32")), "all-gather",
     "a slice along a dimension that is sharded: any"),
    (lambda a: jnp.exp(a[:50]), (ROWS,), "all-gather", "a result that is stored whole"),
    (lambda a: a.T.reshape(-1)[:, None] * jnp.ones((1, 2)), (ROWS,), "all-gather",
     "an argument that is sharded along a dimension that this line"),
    (lambda a: jnp.sin(a).T.reshape(-1)[:, None] * jnp.ones((1, 2)), (ROWS,), "all-gather",
        "cause not known"),
    (lambda a, b: jnp.sin(a) * jnp.cos(b),
        (struct((64, 64), ("data", "model")), struct((64, 64), "model")),
     "all-gather", "two arrays with specs that clash"),
    (lambda a: jnp.linalg.cholesky(a), (ROWS,), "all-gather", "XLA has no distributed cholesky"),
    (lambda a: jnp.linalg.qr(a), (ROWS,), "all-gather", "XLA has no distributed qr"),
    (lambda a, b: jnp.linalg.solve(a, b), (ROWS, ROWS), "all-gather",
        "XLA has no distributed solve"),
    (jnp.fft.fftn, (ROWS,), "all-gather", "a Fourier transform needs the whole dimension"),
    (lambda a: jnp.cumsum(a, 0), (ROWS,), "all-gather", "cumsum goes along the whole dimension"),
    (lambda a: jnp.argmax(a, 0), (ROWS,), "all-gather",
        "a maximum and its index over a sharded dimension"),
    (look_up, (ROWS, EIGHT), "all-reduce",
        "a computed index into a sharded dimension: each device looks up"),
    (look_up, (COLUMNS, EIGHT), "all-gather",
        "a computed index into a sharded dimension: any device may need"),
    (lambda a, b: a.at[b[:, 0].astype(int)].set(b), (struct((64, 8), "data"), EIGHT), "all-gather",
     "an update at computed indices"),
    (lambda a, b: jnp.concatenate([a, b]), (ROWS, ROWS), "all-to-all",
        "a concatenation along a sharded"),
    (lambda a: a[::-1], (ROWS,), "collective-permute",
        "an array is reversed along a dimension that is sharded"),
    (lambda a: lax.with_sharding_constraint(jnp.sin(a), on(("model", "data"))),
        (struct((64, 64), ("data", "model")),),
     "collective-permute", "asked for: a sharding"),
    (lambda a: lax.associative_scan(jnp.add, a), (ROWS,), "collective-permute",
     "shards go to other devices; cause not known"),
    (lambda a: a.sum(0), (ROWS,), "all-reduce", "a sum, mean or maximum over a sharded dimension"),
    (lambda a, b: a @ b, (COLUMNS, ROWS), "all-reduce", "the contracting dimension is sharded"),
    (jax.vmap(lambda row: lax.while_loop(lambda x: jnp.any(x > 1), lambda x: x / 2, row)), (ROWS,),
        "all-reduce", "a while_loop under vmap"),
    (lambda a, n: jnp.roll(a, n, 0), (ROWS, struct((), dtype="int32")), "all-gather",
        "jnp.roll by a computed number"),
    (jax.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)), (struct((64, 64)), ROWS), "all-reduce",
     "a gradient: devices with other data add theirs"),
    (lambda a, b: jnp.sin(a) + jnp.cos(b), (ROWS, COLUMNS), "all-to-all",
        "the shards go from one dimension"),
    (lambda a, b: jnp.vdot(a, b), (COLUMNS, COLUMNS), "all-gather",
        "a reshape (as in ravel and vdot)"),
    (jax.jit(descend, out_shardings=(on(None, "model"), on("data"))),
        (struct((64, 64), None, "model"), ROWS, ROWS),
     "all-gather", "the update needs whole what is stored in shards"),
    (lambda x, w: x @ w, (ROWS, ROWS), "all-gather",
        "an argument that is sharded along a dimension that this product"),
    (lambda x, w: x @ jnp.sin(w), (ROWS, ROWS), "all-gather", "a product needs this operand whole"),
    (jax.pmap(lambda x: lax.psum(x, "each"), axis_name="each"), (np.ones((8, 4), "float32"),),
        "all-reduce",
     "a sum that is written in the function which pmap maps"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("f", "arguments", "kind", "words"), CAUSES, ids=[words for *_, words in CAUSES]
)
def test_a_program_for_each_cause(f, arguments, kind, words):
    report = explain(f, *arguments)
    causes = {move.cause for move in report.moves if move.kind == kind}
    assert any(cause.startswith(words) for cause in causes), report


def test_each_cause_that_can_be_told_has_a_program():
    texts = set()
    for node in ast.walk(ast.parse(inspect.getsource(causes))):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            parts = node.value.values if isinstance(node.value, ast.JoinedStr) else [node.value]
            texts.add(
                "".join(part.value if isinstance(part, ast.Constant) else "*" for part in parts)
            )
    assert len(texts) > 20
    for text in texts - {""}:  # of a kind that no compiler makes of JAX's operations
        longest = max(text.split("*"), key=len)
        told = [*(words for *_, words in CAUSES), "random numbers, which JAX"]  # below
        told += ["candidates that each device", ": each device searches"]  # in test_searches
        told += [": the values of each go"]  # in test_callbacks
        told += [": its rows belong to other"]  # of a concatenation, above, or of a split
        assert any(words in text or longest[:20] in words for words in told), text


def test_random_numbers_of_the_old_generator_are_told():
    def drop(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0)

    args = struct((2,), dtype="uint32"), struct((64, 64), "data")
    assert explain(drop, *args).moves == ()
    jax.config.update("jax_threefry_partitionable", False)
    try:
        causes = {move.cause.partition(",")[0] for move in explain(drop, *args).moves}
    finally:
        jax.config.update("jax_threefry_partitionable", True)
    assert causes == {"random numbers"}


def test_what_a_shard_map_sends_is_told_from_what_its_backward_pass_adds():
    mapped = jax.shard_map(
        lambda w, x: lax.psum(jnp.sum(x @ w), "data"),
        mesh=MESH,
        in_specs=(P(), P("data")),
        out_specs=P(),
    )
    report = explain(jax.grad(mapped), struct((64,)), struct((64, 64), "data"))
    (move,) = report.moves
    assert (move.kind, move.phase, move.array) == ("all-reduce", "backward", "result")
    assert move.cause.startswith("added by the backward pass of a shard_map")
    moves = explain(
        jax.value_and_grad(lambda x: (ring(x) ** 2).sum()), struct((64, 64), "data")
    ).moves
    assert {move.cause for move in moves if move.kind == "collective-permute"} == {
        "written in a shard_map",
        "the backward pass of a collective in a shard_map",
    }


def test_only_what_is_added_for_a_result_has_its_name():
    def forward(x, up, down):
        return jnp.tanh(jnp.tanh(x @ up) @ down)

    report = explain(
        forward, struct((B, D), "data"), struct((D, F), None, "model"), struct((F, D), "model")
    )
    assert [(move.kind, move.array) for move in report.moves] == [("all-reduce", "")]
    last = explain(lambda x, w: x @ w, struct((B, D), None, "model"), struct((D, F), "model"))
    assert [(move.kind, move.array) for move in last.moves] == [("all-reduce", "result")]


def test_a_closed_over_array_is_found():
    held = np.random.default_rng(0).normal(size=(256, 256)).astype("float32")
    found = {
        finding.title: finding.says
        for finding in explain(lambda a: a @ held, struct((64, 256), "data")).findings
    }
    assert "1 constant of 262 kB" in found["closed-over constant"]
    assert "closed-over constant" not in {
        finding.title
        for finding in explain(
            lambda a, w: a @ w, struct((64, 256), "data"), struct((256, 256))
        ).findings
    }


def test_a_donation_that_cannot_be_used_is_told():
    found = explain(jax.jit(lambda a: a.sum(), donate_argnums=0), struct((64, 64), "data")).findings
    assert [finding.title for finding in found] == ["donation not used"]
    assert "4,096 bytes are donated, but results take only 0 bytes" in found[0].says


def turned(a):
    """From one layout to another between which the partitioner knows no way."""
    mesh = jax.make_mesh(
        (2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8]
    )
    b = lax.with_sharding_constraint(a, NamedSharding(mesh, P("x", None, "z")))
    return lax.with_sharding_constraint(b * 2, NamedSharding(mesh, P(None, ("y", "x"), None)))


CUBES = jax.make_mesh(
    (2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8]
)
CUBE = jax.ShapeDtypeStruct((8, 8, 8), "float32", sharding=NamedSharding(CUBES, P("x", "y", "z")))


def test_a_full_rematerialisation_is_told_with_its_line_and_still_printed(capfd):
    report = explain(turned, CUBE)
    assert "asked for: a sharding constraint or a reshard" in {move.cause for move in report.moves}
    (said,) = says(report, "full rematerialisation")
    first, second = line_of(turned, '"x", None'), line_of(turned, "b * 2")
    assert (
        "1 array" in said
        and "f32[4,8,4]" in said
        and re.search(rf"in test_explain.py:({first}|{second}):", said)
    )
    assert "Involuntary full rematerialization" in capfd.readouterr().err


@pytest.mark.parametrize("width", [8, 4096])
def test_a_gather_of_little_is_no_full_rematerialisation(width):
    """Of what the partitioner warns of, most is a small part of what a step sends."""

    def step(a, x, w):
        return turned(a), x @ w

    x, w = (
        jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(CUBES, spec))
        for shape, spec in (((width, 64), P("y", "x")), ((64, width), P("x", "z")))
    )
    for explained in (
        explain(step, CUBE, x, w),
        explain(jax.jit(step).lower(CUBE, x, w).compile()),
    ):
        assert bool(says(explained, "full rematerialisation")) == (width == 8)


def test_a_full_rematerialisation_is_seen_in_the_program_where_the_compiler_says_nothing():
    text = jax.jit(turned).lower(CUBE).compile().as_text()
    (said,) = says(explain(text), "full rematerialisation")
    assert (
        "f32[8,8,8] is gathered" in said
        and "keeps only a shard" in said
        and "test_explain.py:" in said
    )
    needed = explain(lambda a, w: a @ w, struct((64, 64), "data"), struct((64, 64), "data"))
    assert (
        "all-gather" in {move.kind for move in needed.moves}
        and says(needed, "full rematerialisation") == []
    )


def test_matrix_products_that_devices_repeat_are_told_with_the_factor():
    def forward(w, v, x):
        h = jnp.tanh(x @ w)
        return h @ v

    w, x = struct((D, D)), struct((B, D), "data")
    (said,) = says(explain(forward, w, struct((D, D), None, "model"), x), "repeated work")
    assert f"test_explain.py:{line_of(forward, 'x @ w')}" in said and "2 times the FLOPs" in said
    assert says(explain(forward, w, w, struct((B, D), ("data", "model"))), "repeated work") == []
    (all_of_it,) = says(explain(forward, w, w, x), "repeated work")
    assert "2 lines" in all_of_it and "2 times the FLOPs" in all_of_it

    def scanned(w, x):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0].sum()

    stacked = struct((3, D, D))
    (said,) = says(explain(jax.grad(scanned), stacked, struct((B, D))), "repeated work")
    assert "8 times the FLOPs" in said
    mapped = jax.shard_map(
        lambda w, x: x @ w,
        mesh=MESH,
        in_specs=(P(), P(("data", "model"))),
        out_specs=P(("data", "model")),
    )
    assert says(explain(mapped, w, struct((B, D), ("data", "model"))), "repeated work") == []


def test_operations_that_every_device_computes_whole_are_told():
    def factor(a):
        return jnp.linalg.cholesky(a)

    (said,) = says(explain(factor, struct((128, 128), "data")), "repeated work")
    assert said.startswith(
        f"test_explain.py:{line_of(factor, 'linalg')}: XLA has no distributed cholesky"
    )
    assert says(explain(factor, struct((64, 64, 64), "data")), "repeated work") == []
    (said,) = says(
        explain(lambda a: jnp.fft.fftn(a), struct((64, 64), "data", dtype="complex64")),
        "repeated work",
    )
    assert "a Fourier transform needs the whole dimension" in said


def test_a_gradient_that_is_added_twice_is_told():
    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    def mapped(f, **options):
        specs = {"in_specs": (P(), P("data")), "out_specs": P(), **options}
        return explain(jax.shard_map(f, mesh=MESH, **specs), struct((D, D)), struct((B, D), "data"))

    twice = mapped(lambda w, x: lax.psum(jax.grad(loss)(w, x), "data"))
    (said,) = says(twice, "added twice")
    assert "4 times too large" in said and "along data" in said
    assert (
        len(says(mapped(lambda w, x: lax.psum(0.5 * jax.grad(loss)(w, x), "data")), "added twice"))
        == 1
    )
    assert says(mapped(jax.grad(loss)), "added twice") == []
    over_both = jax.shard_map(
        lambda x: lax.psum(lax.psum(x, "data"), "model"),
        mesh=MESH,
        in_specs=P("data", "model"),
        out_specs=P(),
    )
    assert says(explain(over_both, struct((B, D), "data", "model")), "added twice") == []
    (both,) = says(
        explain(
            jax.shard_map(
                lambda x: lax.psum(lax.psum(x, "data"), ("data", "model")),
                mesh=MESH,
                in_specs=P("data", "model"),
                out_specs=P(),
                check_vma=False,
            ),
            struct((B, D), "data", "model"),
        ),
        "added twice",
    )
    assert "4 times too large" in both and "along data, model" in both
    line = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])
    x = jax.ShapeDtypeStruct((B, D), "float32", sharding=NamedSharding(line, P("d")))

    def in_groups(second):
        """A sum of each two neighbours, and then of other groups."""

        def body(x):
            pairs = lax.psum(x, "d", axis_index_groups=[[0, 1], [2, 3], [4, 5], [6, 7]])
            return lax.psum(pairs, "d", axis_index_groups=second)

        mapped = jax.shard_map(body, mesh=line, in_specs=P("d"), out_specs=P("d"), check_vma=False)
        return says(explain(mapped, x), "added twice")

    (whole,) = in_groups([[0, 1, 2, 3], [4, 5, 6, 7]])
    assert "2 equal values" in whole
    assert in_groups([[0, 1, 2, 4], [3, 5, 6, 7]]) == []  # two are equal, and two are not
    again = mapped(lambda w, x: lax.psum(jnp.tanh(jax.grad(loss)(w, x)) * x[0, 0], "data"))
    assert says(again, "added twice") == []  # each device adds something else


def test_bf16_that_this_backend_widens_is_told_and_a_pod_answers():
    params = weights(1, "bfloat16")
    here = explain(model, params, struct((B, D), "data", dtype="bfloat16"))
    assert "bf16 widened" in {finding.title for finding in here.findings}
    there = explain(model, params, struct((B, D), "data", dtype="bfloat16"), mesh=Pod("v5e:4x2"))
    assert there.compiled_for == "v5e:4x2" and there.chip == "v5e" and there.devices == 8
    assert "bf16 widened" not in {finding.title for finding in there.findings}
    assert there.memory["peak"] > there.memory["arguments"] and "the compiler's peak" in " ".join(
        repr(there).split()
    )
    moves = {move.array: move for move in there.moves if move.kind == "all-gather"}
    assert moves["params['layers'][*]['up']"].bytes == 3 * (D // 4) * (F // 2) * 2
    assert (
        moves["params['layers'][*]['up']"].line == UP
        and moves["params['layers'][*]['down']"].line == DOWN
    )


def test_every_pod_names_a_chip_for_the_times(monkeypatch):
    square = lambda a: (a * a).sum(0)  # noqa: E731
    assert explain(square, struct((B, D), "data"), mesh=Pod("tpu7x:2x2x1")).chip == "tpu7x"
    # a compiler for GPUs is not always installed
    monkeypatch.setattr(Pod, "like", lambda self, *args: args)
    assert explain(square, struct((B, D), "data"), mesh=Pod("h100:1x8")).chip == "H100"


@pytest.mark.parametrize("form", ["function", "jitted", "lowered", "compiled", "text"])
def test_it_takes_a_program_in_any_form(form):
    arguments = weights(1), BATCH
    jitted = jax.jit(model)
    lowered = jitted.lower(*arguments)
    given = {"function": model, "jitted": jitted, "lowered": lowered, "compiled": lowered.compile()}
    if form == "text":
        report = explain(lowered.compile().as_text(), mesh=MESH)
        assert report.memory == {} and "only the text" in repr(report)
    else:
        report = explain(given[form], *(arguments if form in ("function", "jitted") else ()))
        assert report.memory["arguments"] == (2 * D * F // 8 + B * D // 4) * 4
    assert report.bytes == collectives(model, *arguments).bytes
    assert {move.array for move in report.moves if move.kind == "all-gather"} == {
        "params['layers'][*]['up']",
        "params['layers'][*]['down']",
    }


def test_arguments_with_empty_places_have_their_specs():
    """Equinox leaves None in the places of what it keeps outside of the program."""
    report = explain(
        lambda tree, x: x @ tree["w"], {"static": None, "w": np.ones((D, F), "float32")}, BATCH
    )
    assert {array.name: array.spec for array in report.arrays} == {
        "tree['w']": "P()",
        "x": 'P("data")',
    }


def test_nnx_functions_are_taken_too():
    nnx = pytest.importorskip("flax.nnx")
    layer = nnx.Linear(D, F, rngs=nnx.Rngs(0))
    nnx.update(layer, jax.tree.map(lambda one: jax.device_put(one, on()), nnx.state(layer)))
    report = explain(
        nnx.jit(lambda layer, x: layer(x).sum()),
        layer,
        jax.device_put(jnp.ones((B, D)), on("data")),
    )
    assert report.bytes == collectives(lambda a: a.sum(), struct((B, D), "data")).bytes
    assert {array.type for array in report.arrays} == {
        f"f32[{D},{F}]",
        f"f32[{F}]",
        f"f32[{B},{D}]",
    }


def test_forty_layers_print_on_one_screen():
    params = weights(40)
    report = explain(jax.jit(step), (params, params), BATCH, BATCH)
    lines = repr(report).splitlines()
    assert len(lines) < 60 and max(map(len, lines)) <= reports.WIDE
    assert sum(array.name.startswith("state") for array in report.arrays) == 160


def test_a_table_that_is_too_wide_goes_on_below_and_loses_nothing():
    queries = {"projection_of_queries": struct((D, F))}
    deep = {"the_decoder_of_the_model": {"attention_layers": queries}}

    def project(weights, x):
        return x @ weights["the_decoder_of_the_model"]["attention_layers"]["projection_of_queries"]

    report = explain(project, deep, struct((B, D), None, ("data", "model")))
    shown = repr(report)
    assert max(map(len, shown.splitlines())) <= reports.WIDE
    for array in report.arrays:
        assert "".join(array.name.split()) in "".join(shown.split()) and array.spec in shown
    code = next(
        line.strip() for line in inspect.getsource(project).splitlines() if "return" in line
    )
    assert f"`{code[:58]} …`" in " ".join(shown.split())


def test_what_is_gone_and_new_stands_in_columns_with_headings():
    before = explain(lambda a, b: a @ b, struct((64, 64), "data"), struct((64, 64), "data"))
    after = explain(lambda a, b: a @ b, struct((64, 64), None, "data"), struct((64, 64), "data"))
    lines = repr(explain.compare(before, after)).splitlines()
    heading = next(line for line in lines if "collective" in line)
    gone, new = (next(line for line in lines if line.startswith(sign)) for sign in "-+")
    assert gone.index("all-gather") == new.index("all-reduce") == heading.index("collective")


def test_a_list_of_layers_is_one_row_and_parts_of_a_state_are_not():
    def run(layers, x):
        for w in layers:
            x = jnp.tanh(x @ w)
        return x

    text = repr(explain(run, [struct((D, D), "data") for _ in range(6)], BATCH))
    assert re.search(r"6 ×  layers\[\*\] ", text) and "layers[0]" not in text
    state = explain(
        lambda state: jax.tree.map(lambda a: 2 * a, state), (struct((D, D)), struct((D, D)))
    )
    assert "state[0]" in repr(state) and "state[1]" in repr(state)


def test_a_cell_of_a_notebook_has_its_number(monkeypatch):
    file = "/tmp/ipykernel_12/345.py"
    assert (
        where(file, 2) == "cell:2"
        and where(__file__, 2) == "test_explain.py:2"
        and where("", 0) == "not known"
    )
    cells = SimpleNamespace(format_code_name={file: ("Cell", "In[3]")}.get)
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=cells))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    assert where(file, 2) == "In[3]:2" and where(__file__, 2) == "test_explain.py:2"


def test_it_is_printed_as_html_and_as_json(trained):
    assert json.loads(trained.to_json())["moves"][0]["kind"] == trained.moves[0].kind
    assert json.loads(trained.to_json())["bytes"] == trained.bytes
    page = trained._repr_html_()
    assert page.count("<tr>") > len(trained.moves) and "<strong>replicated</strong>" in page
    assert "<code>h = jnp.tanh(x @ layer[&quot;up&quot;])</code>" in page and "f32[16,128]" in page
    # a finding that names a line of the table
    repeated = explain(lambda a: jnp.fft.fftn(a), ROWS)._repr_html_()
    assert re.search(
        r'<li data-place="(test_explain\.py:\d+)" tabindex="0"><strong>repeated work</strong>: \1',
        repeated,
    )
    assert f"test_explain.py:{UP}" in repr(trained) and "It sends nothing." in repr(
        explain(jnp.tanh, BATCH)
    )


def test_a_program_for_one_device_says_that_the_others_are_idle():
    report = explain(jnp.tanh, jnp.ones(8))
    assert report.idle == jax.device_count() - 1 > 0
    assert f"leaves {report.idle} of {jax.device_count()} devices idle" in repr(report)
    assert explain(jnp.tanh, BATCH).idle == 0


def test_what_is_no_program_is_refused():
    with pytest.raises(
        TypeError,
        match="takes a function, a Lowered or Compiled program or the text of one, not int",
    ):
        explain(3)
    with pytest.raises(ValueError, match="no ENTRY in this text"):
        explain("HloModule nothing")
