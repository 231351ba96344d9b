"""explain(..., try_remedies=True): what a remedy gives is what the mended program gives, compiled
on its own."""

import functools
import json
import re
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from steps import CORRECT, MISTAKES, grid, on_two, state_on, struct

from shardlab import Pod
from shardlab.report.explain import explain
from shardlab.report.remedies import Trial, entries_of, with_axis

pytestmark = pytest.mark.reads("src/shardlab")

TPU = "v5e:2x4"
BACKENDS = ["cpu", pytest.param(TPU, marks=pytest.mark.slow)]
HERE = "test_trials.py"


def of(backend):
    if backend == "cpu":
        return None
    if Pod(backend).compiler is None:
        pytest.skip("no compiler for TPUs is installed")
    return Pod(backend)


def gives(report):
    return report.bytes, report.seconds, report.memory["peak"]


def gave(trial, when):
    return trial.bytes[when], trial.seconds[when], trial.peak[when]


def the_trial(report, title):
    (finding,) = [one for one in report.findings if one.title == title]
    assert str(finding.tried) in finding.says
    return finding.tried


# --- The steps with one mistake -------------------------------------------------------------------


def by_columns_and_rows():
    return on_two(lambda mesh: state_on(mesh, None, "model"))


MENDED = {
    "moments_replicated": on_two,
    "no_donation": on_two,
    "constraint_without_data": on_two,
    "constraint_without_model": on_two,
    "dimensions_swapped": on_two,
    "both_by_columns": by_columns_and_rows,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MENDED)
def test_a_remedy_gives_what_the_mended_step_gives(name, backend):
    pod = of(backend)
    case, title, _ = MISTAKES[name]
    step, arguments = case()
    report = explain(step, *arguments, mesh=pod, try_remedies=True)
    mended, mended_arguments = MENDED[name]()
    trial = the_trial(report, title)
    assert gave(trial, 0) == gives(report) == gives(explain(step, *arguments, mesh=pod))
    assert gave(trial, 1) == gives(explain(mended, *mended_arguments, mesh=pod))
    assert gave(trial, 1) < gave(trial, 0) and str(trial).startswith("tried: with ")


def test_without_being_asked_nothing_is_tried():
    step, arguments = MISTAKES["no_donation"][0]()
    assert all(
        one.tried is None and "tried" not in one.says for one in explain(step, *arguments).findings
    )


@pytest.mark.parametrize("name", ["fsdp", "zero1"])
def test_of_a_correct_step_no_remedy_is_called_better(name):
    step, arguments, _ = CORRECT[name]()
    for finding in explain(step, *arguments, try_remedies=True).findings:
        trial = finding.tried
        assert trial is None or not trial.is_better, finding.says
        assert trial is None or "more" in finding.says


def test_json_has_what_was_tried():
    step, arguments = MISTAKES["no_donation"][0]()
    report = explain(step, *arguments, try_remedies=True)
    (finding,) = json.loads(report.to_json())["findings"]
    trial = report.findings[0].tried
    assert finding["tried"]["peak"] == list(trial.peak) and trial.peak[1] < trial.peak[0]
    assert finding["remedy"] == {"arguments": [*range(28)]}


# --- Ways to write a function ---------------------------------------------------------------------

WHOLE = P()
MESH = grid((2, 4), ("data", "model"))
TABLE, Q = struct(MESH, (32000, 256), "model", None), struct(MESH, (256, 1024), None, "model")
IDS = struct(MESH, (4096,), "data", dtype="int32")


def embed(table, q, ids, spec=WHOLE):
    x = lax.with_sharding_constraint(table[ids], NamedSharding(MESH, spec))
    return jnp.tanh(x @ q)


def by_ambient_mesh(table, q, ids, spec=WHOLE):
    return jnp.tanh(lax.with_sharding_constraint(table[ids], spec) @ q)


def without(a):
    return jax.ShapeDtypeStruct(a.shape, a.dtype)


WAYS = {
    "plain": (embed, (TABLE, Q, IDS)),
    "jitted": (jax.jit(embed), (TABLE, Q, IDS)),
    "in_shardings": (
        jax.jit(embed, in_shardings=tuple(a.sharding for a in (TABLE, Q, IDS))),
        tuple(map(without, (TABLE, Q, IDS))),
    ),
    "static": (jax.jit(embed, static_argnums=3), (TABLE, Q, IDS, P())),
    "static by name": (jax.jit(embed, static_argnames="spec"), (TABLE, Q, IDS)),
    "partial": (functools.partial(jax.jit(embed), TABLE), (Q, IDS)),
    "set_mesh": (by_ambient_mesh, (TABLE, Q, IDS)),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_write_a_function_can_be_tried(way, backend):
    pod = of(backend)
    f, arguments = WAYS[way]
    if way == "partial":
        f, arguments = f.func, (*f.args, *arguments)
    options = {"spec": P()} if way == "static by name" else {}
    with jax.set_mesh(MESH):
        report = explain(f, *arguments, mesh=pod, try_remedies=True, **options)
        mended = explain(functools.partial(embed, spec=P("data")), TABLE, Q, IDS, mesh=pod)
    trial = the_trial(report, "constraint without an axis")
    assert gave(trial, 1) == gives(mended), report
    assert trial.is_better and gave(trial, 0) == gives(report)
    assert re.search(rf"tried: with the constraint of {HERE}:\d+ corrected it sends", str(trial))


def test_a_spec_of_an_argument_is_tried_with_the_result_that_replaces_it():
    mesh = grid((8,), ("data",))

    def step(w, m, x):
        g = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        m = 0.9 * m + g
        return w - m, m

    def case(spec):
        w, m = struct(mesh, (512, 512), "data"), struct(mesh, (512, 512), *spec)
        jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=(w.sharding, m.sharding))
        return jitted, (w, m, struct(mesh, (64, 512), "data"))

    jitted, arguments = case(())
    trial = the_trial(explain(jitted, *arguments, try_remedies=True), "replicated")
    jitted, arguments = case(("data",))
    assert gave(trial, 1) == gives(explain(jitted, *arguments)) and 'P("data") for m' in str(trial)


FORMS = ("direct", "cast", "layers", "unchecked", "moments", "explicit")


def in_a_shard_map(form, is_mapped, axis="rows"):
    """A step whose weights are whole on each device, in a shard_map or by the compiler."""
    kind = (AxisType.Explicit if form == "explicit" else AxisType.Auto,)
    mesh = jax.make_mesh((8,), (axis,), axis_types=kind)

    def model(w, x):
        if form != "layers":
            return jnp.tanh(x @ w)
        return lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None)), x, w)[0]

    specs = {"in_specs": (P(), P(axis)), "out_specs": P(axis), "check_vma": form != "unchecked"}
    mapped = jax.shard_map(model, mesh=mesh, **specs) if is_mapped else model

    def step(state, x):
        dtype = "bfloat16" if form == "cast" else "float32"
        loss = lambda w: jnp.mean(mapped(w.astype(dtype), x.astype(dtype)) ** 2)  # noqa: E731
        m = 0.9 * state["m"] + jax.grad(lambda w: loss(w).astype("float32"))(state["w"])
        return {"w": state["w"] - m, "m": m}

    shape = (4, 256, 256) if form == "layers" else (256, 256)
    of_moments = (axis,) if form == "moments" else ()
    state = {"w": struct(mesh, shape), "m": struct(mesh, shape, *of_moments)}
    return jax.jit(step, donate_argnums=0), (state, struct(mesh, (512, 256), axis))


@pytest.mark.parametrize(
    ("form", "backend"),
    [
        *((form, "cpu") for form in FORMS),
        # on Explicit axes the mesh in the function would be another one than the pod's
        *(pytest.param(form, TPU, marks=pytest.mark.slow) for form in FORMS[:-1]),
    ],
)
def test_a_spec_of_what_enters_a_shard_map_whole_is_not_tried_alone(form, backend):
    words = "in_specs of the shard_map"
    for is_mapped in (True, False):
        jitted, arguments = in_a_shard_map(form, is_mapped)
        report = explain(jitted, *arguments, mesh=of(backend), try_remedies=True)
        found = [one for one in report.findings if one.title == "replicated"]
        told = [one for one in found if words in one.says]
        assert found and bool(told) == is_mapped, report
        for one in told:
            assert "let these name rows too" in one.says and "state['w']" in one.says
            assert str(one.tried).startswith(f"not tried: {words}")
            assert re.search(rf"{words} in {HERE}:\d+ have to", str(one.tried))
        assert all(one.tried.change for one in found if one not in told)


def test_order_of_axes_of_an_argument():
    mesh = grid((2, 4), ("a", "b"))

    def f(w, x):
        y = lax.with_sharding_constraint(2 * x, NamedSharding(mesh, P(("a", "b"))))
        return y + w

    case = lambda *spec: (struct(mesh, (1024, 64), spec), struct(mesh, (1024, 64), ("a", "b")))  # noqa: E731
    report = explain(f, *case("b", "a"), try_remedies=True)
    trial = the_trial(report, "order of axes")
    assert gave(trial, 1) == gives(explain(f, *case("a", "b"))), report
    assert trial.bytes[0] > trial.bytes[1] == 0


def test_data_without_an_axis_get_it_along_the_batch():
    mesh = grid((4, 2), ("data", "fsdp"))

    def step(weights, x):
        def loss(weights):
            return jnp.mean(functools.reduce(lambda h, w: jnp.tanh(h @ w), weights, x) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    weights = [struct(mesh, (64, 64), "fsdp")] * 3
    case = lambda *axes: (weights, struct(mesh, (4096, 64), axes))  # noqa: E731
    trial = the_trial(explain(step, *case("data"), try_remedies=True), "data without an axis")
    assert gave(trial, 1) == gives(explain(step, *case("data", "fsdp")))
    assert trial.is_better and 'P(("data", "fsdp")) for x' in str(trial)


# --- What cannot be tried, or does not help -------------------------------------------------------


def test_explicit_axes_retrace_with_other_arguments_and_keep_their_reshards():
    mesh = grid((2, 4), ("data", "model"), AxisType.Explicit)

    def lost(x, q):
        return jnp.tanh(jax.sharding.reshard(x, P()) @ q)

    def unsharded(m, x):
        return 0.9 * m + x

    x, q = struct(mesh, (4096, 256), "data"), struct(mesh, (256, 1024), None, "model")
    with jax.set_mesh(mesh):
        report = explain(lost, x, q, try_remedies=True)
        assert "not tried: on Explicit axes" in report.findings[0].says, report
        m = lambda *spec: struct(mesh, (4096, 256), *spec)  # noqa: E731
        report = explain(unsharded, m(), m(), try_remedies=True)
        mended = explain(unsharded, m("model"), m("model"))
    trial = report.findings[0].tried
    assert trial.bytes[1] == mended.bytes or "does not compile" in str(trial), report


def test_what_does_not_compile_says_the_first_line_of_why():
    mesh = grid((2, 4), ("data", "model"), AxisType.Explicit)
    fixed = struct(mesh, (4096, 256))
    f = jax.jit(lambda m: 0.9 * m, in_shardings=fixed.sharding)
    with jax.set_mesh(mesh):
        report = explain(f, fixed, try_remedies=True)
    trial = the_trial(report, "replicated")
    assert "it does not compile: " in trial.failure and "\n" not in trial.failure
    assert trial.bytes == trial.peak == (None, None) and not trial.is_better


def test_a_compiled_program_has_nothing_to_try():
    step, arguments = MISTAKES["no_donation"][0]()
    report = explain(step.lower(*arguments), try_remedies=True)
    assert report.findings[0].says.endswith(
        "not tried: this is a compiled program; pass the function and its arguments"
    )


@pytest.mark.parametrize(
    ("bytes", "seconds", "peak", "says"),
    [
        (
            (11_100_000, 120_000), (1.1e-3, 1e-5), (4_700_000, 3_100_000),
            "tried: with X it sends 120 kB in place of 11.1 MB, 0.01 ms for 1.1 ms, and holds "
            "3.1 MB at once for 4.7 MB",
        ),
        (
            (1000, 3000), (1e-3, 2e-3), (100, 200),
            "tried: no better, with X it sends more, 3,000 bytes in place of 1,000 "
            "bytes, 2 ms for 1 ms, and holds more, 200 bytes at once for 100 bytes",
        ),
        (
            (1000, 1000), (1e-3, 1e-3), (100, 100),
            "tried: nothing changes, with X it sends 1,000 bytes as before, and holds "
            "100 bytes at once as before",
        ),
        (
            (None, None), (None, None), (200, 100),
            "tried: with X what it sends is decided in the run, and holds 100 bytes at once for "
            "200 bytes",
        ),
    ],
)  # fmt: skip
def test_a_trial_in_words(bytes, seconds, peak, says):
    assert str(Trial("X", bytes, seconds, peak)) == says


def test_specs_as_text():
    assert entries_of('P("a", None, ("b", "c"))', 4) == [("a",), (), ("b", "c"), ()]
    assert entries_of("", 1) == [()] == entries_of("P()", 1)
    assert with_axis('P("a", "b")', (8, 8), "a", 1) == 'P(None, ("b", "a"))'


def test_nothing_of_a_trial_reaches_the_warnings_of_a_user(capfd):
    step, arguments = MISTAKES["no_donation"][0]()
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explain(step, *arguments, try_remedies=True)
    assert capfd.readouterr().err.count("rematerialization") <= 1


# --- Constraints that are left out ----------------------------------------------------------------


def looked_up_whole(table, ids):
    whole = lax.with_sharding_constraint(table, NamedSharding(MESH, P()))
    return by_columns(whole, ids)


def by_columns(table, ids):
    rows = table[ids]
    return lax.with_sharding_constraint(rows, NamedSharding(MESH, P("data", None, "model")))


def descended(look_up):
    def step(table, ids):
        loss = lambda table: jnp.mean(jnp.tanh(look_up(table, ids)) ** 2)  # noqa: E731
        return table - jax.grad(loss)(table)

    table = struct(MESH, (4096, 256), None, "model")
    step = jax.jit(step, donate_argnums=0, out_shardings=table.sharding)
    return step, (table, struct(MESH, (64, 16), "data", dtype="int32"))


def test_a_constraint_whose_backward_pass_gathers_is_left_out():
    """Its trial is the program without the constraint, and that has no such finding."""
    (step, arguments), (mended, _) = map(descended, (looked_up_whole, by_columns))
    report = explain(step, *arguments, try_remedies=True)
    after = explain(mended, *arguments)
    trial = the_trial(report, "full rematerialisation")
    assert "left out" in trial.change and trial.is_better
    assert gave(trial, 1) == gives(after) and after.bytes < report.bytes / 2
    assert "full rematerialisation" not in {finding.title for finding in after.findings}
