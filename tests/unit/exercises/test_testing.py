"""exercises.testing and its plugin: what passes, what fails with which message, and pytest run as a
stranger would.
"""

import os
import re
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from shardlab import assert_collectives, assert_equal_to_one_device, assert_layout

pytestmark = pytest.mark.reads("src/shardlab")

W = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)
X = np.random.default_rng(2).normal(size=(8, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def mesh(devices):
    return Mesh(np.array(devices(8)).reshape(2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def placed(mesh, array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def loss(w, x):
    return jnp.mean((x @ w["up"]) ** 2)


def message(f, *args, error=AssertionError, **kwargs):
    with pytest.raises(error) as caught:
        f(*args, **kwargs)
    return str(caught.value)


# --- assert_collectives ---------------------------------------------------------------------------


def test_what_is_allowed_passes_and_is_returned(mesh):
    a = placed(mesh, X, "y", None)
    found = assert_collectives(lambda a: a.sum(0), a, at_most={"all-reduce": 1}, max_bytes=96)
    assert found == {"all-reduce": 1} and found.bytes == 2 * 3 * 16 * 4 // 4
    assert assert_collectives(jax.jit(jnp.sin), a, at_most={}, max_bytes=0) == {}
    assert assert_collectives(
        jax.jit(lambda a: a.sum(0)).lower(a).compile(), at_most={"all-reduce": 2}
    )


def test_what_is_not_allowed_is_named_with_the_programs_collectives(mesh):
    a = placed(mesh, X, "y", None)
    said = message(
        assert_collectives, lambda a: a.sum(0), a, at_most={"all-gather": 2}, max_bytes=95
    )
    assert "all-reduce: at most 0 allowed, but it runs 1 time\n" in said
    assert "bytes: each device may send 95, but it sends 96\n" in said
    assert "compiled for cpu" in said and "along y" in said


def test_what_only_the_run_decides_is_not_allowed(mesh):
    def until_small(a):
        return jax.lax.while_loop(lambda a: a.sum() > 1, lambda a: a / 2, a)

    said = message(
        assert_collectives,
        until_small,
        placed(mesh, X, "y", None),
        at_most={"all-reduce": 5},
        max_bytes=99,
    )
    assert (
        "only the run decides how often it runs" in said and "only the run decides how many" in said
    )


def test_all_forms_of_a_program_are_taken_and_a_branch_counts_as_if_it_ran(mesh):
    a = placed(mesh, X, "y", None)

    def maybe(a, take):
        return jax.lax.cond(
            take, lambda a: jax.lax.cond(take, jnp.sum, jnp.max, a), lambda a: 0.0, a
        )

    program = jax.jit(maybe).lower(a, True)
    for form in (program, program.compile(), program.compile().as_text()):
        assert_collectives(form, at_most={"all-reduce": 1}, max_bytes=100)
        assert "all-reduce: at most 0 allowed, but it runs 1 time\n" in message(
            assert_collectives, form, at_most={}
        )


def test_never_is_found_in_another_shape_and_type_but_not_in_a_fusion(mesh):
    sharded = placed(mesh, np.ones((64, 48), np.float32), "x", "y")
    gathered = NamedSharding(mesh, P())

    def step(w):
        return jax.lax.with_sharding_constraint(w.T.astype(jnp.bfloat16), gathered) @ jnp.ones(
            64, jnp.bfloat16
        )

    said = message(assert_collectives, step, sharded, never="f32[64,48]")
    assert re.search(
        r"no device may hold f32\[64,48\], but each holds \w+\[48,64\], which has as many elements",
        said,
    )
    assert_collectives(step, sharded, never=("f32[64,47]", "f32[65,48]"))

    # the product with ones is made inside a fusion
    one = placed(mesh, np.ones((64, 4), np.float32), "x")
    assert_collectives(
        lambda v: (v[:, :, None] * jnp.ones(12)).sum((1, 2)), one, never="f32[32,4,12]"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "asserts nothing"),
        ({"at_most": {"all_gather": 1}}, "'all_gather'; did you mean 'all-gather'?"),
        ({"never": "float32[8]"}, None),
        ({"never": "f32 8"}, "no type of an array"),
    ],
)
def test_what_asserts_nothing_or_does_not_exist_is_refused(given, said):
    if said is None:
        # a type like any other, which nobody holds
        assert_collectives(jnp.sin, jnp.ones(3), **given)
    else:
        assert said in message(assert_collectives, jnp.sin, jnp.ones(3), error=ValueError, **given)


# --- assert_layout --------------------------------------------------------------------------------


def test_a_layout_is_what_devices_store(mesh):
    tree = {
        "up": placed(mesh, W, "y"),
        "layers": [placed(mesh, X, "x"), placed(mesh, X, "x", None)],
    }
    assert_layout(tree["up"], P("y", None))
    # P("x") is for all layers
    assert_layout(tree, {"up": NamedSharding(mesh, P("y")), "layers": P("x")})
    assert_layout(tree, {"up": None, "layers": [P("x", None), None]})


def test_every_array_stored_otherwise_is_named(mesh):
    tree = {"up": placed(mesh, W, "y"), "layers": [placed(mesh, X, "x"), placed(mesh, X), X]}
    said = message(assert_layout, tree, {"up": P("x"), "layers": P("x")})
    assert said.startswith("3 of 4 arrays are not stored as expected:\n")
    assert re.search(
        r"\n  \['up'\]: expected f32\[16@x, 4\] on 8 devices, got f32\[16@y, 4\] on 8; device \d+ ",
        said,
    )
    assert "\n  ['layers'][1]: expected f32[8@x, 16]" in said
    assert (
        "\n  ['layers'][2]: expected a jax.Array, got an array of shape (8, 16), which is "
        "stored on no"
    ) in said
    assert message(assert_layout, placed(mesh, X), P("x")).startswith(
        "1 of 1 array is not stored as expected:\n  exp"
    )


def test_layouts_of_another_structure_are_refused(mesh):
    said = message(assert_layout, {"up": placed(mesh, W)}, {"down": P()}, error=ValueError)
    assert "'down'" in said and "'up'" in said and "do not fit" in said


# --- assert_equal_to_one_device -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("gradient", [False, True, 0, (0, 1)])
def test_the_same_program_computes_the_same(mesh, gradient, dtype):
    args = ({"up": W.astype(jnp.dtype(dtype))}, X.astype(jnp.dtype(dtype)))
    assert_equal_to_one_device(
        loss, args, ({"up": P(None, "y")}, P("x")), mesh=mesh, gradient=gradient
    )


def test_results_of_all_kinds_and_arguments_without_layout(mesh):
    def f(w, x, key, steps):
        noise = jax.random.normal(key, x.shape)
        return {
            "y": (x + noise) @ w,
            "step": steps + 1,
            "key": jax.random.split(key),
            "z": (1j * x).sum(0),
        }

    args = (W, X, jax.random.key(0), np.int32(3))
    assert_equal_to_one_device(
        f, args, (P("y"), P("x", "y"), P(), None), mesh=mesh, gradient=(0, 1)
    )


def over_all(mesh, f):
    """f for the shards of its second argument, over all devices, without the check that makes
    gradients right.
    """
    return jax.shard_map(
        f, mesh=mesh, in_specs=(P(), P(("x", "y"))), out_specs=P(), check_vma=False
    )


def total(w, x):
    return jax.lax.psum(jnp.sum((x @ w["up"]) ** 2), ("x", "y")) / X.shape[0] / W.shape[1]


def test_a_gradient_that_was_summed_twice_is_named(mesh):
    """Without check_vma the transpose of a psum is a psum, so each device's gradient is 8 times too
    large already.
    """
    wrong = over_all(mesh, lambda w, x: jax.lax.psum(jax.grad(total)(w, x), ("x", "y")))
    given = {"mesh": mesh, "reference": jax.grad(loss)}
    said = message(assert_equal_to_one_device, wrong, ({"up": W}, X), (P(), P(("x", "y"))), **given)
    place = r"\n  \['up'\]: 64 of 64 differ, the first at \[0, 0\]: expected \S+, got \S+"
    assert re.search(place + r" \(every value is 8 times what it should be: was it summed", said), (
        said
    )


def test_a_right_value_with_a_wrong_gradient_is_found(mesh):
    def wrong(w, x):
        value = total(w, x)
        return value + 7 * (value - jax.lax.stop_gradient(value))

    args, layouts = ({"up": W}, X), (P(), P(("x", "y")))
    given = {"mesh": mesh, "reference": loss}
    assert_equal_to_one_device(over_all(mesh, total), args, layouts, gradient=True, **given)
    assert_equal_to_one_device(over_all(mesh, wrong), args, layouts, **given)
    said = message(
        assert_equal_to_one_device, over_all(mesh, wrong), args, layouts, gradient=True, **given
    )
    assert said.startswith("2 of 3 results of wrong are not the same on 8 devices as on one:")
    assert re.search(
        r"\n  gradient of argument 0\['up'\]: 64 of 64 differ, .* \(every value is 8 times", said
    )
    assert re.search(r"\n  gradient of argument 1: 128 of 128 differ, ", said)
    said = message(
        assert_equal_to_one_device, over_all(mesh, wrong), args, layouts, gradient=1, **given
    )
    assert said.startswith("1 of 2 results") and "gradient of argument 1: " in said


def test_every_wrong_leaf_is_listed_with_its_index_and_its_dtype(mesh):
    def f(x):
        spoiled = x.at[3, 5].add(jax.lax.axis_size("x"))
        return {"a": spoiled, "b": x.astype(jnp.bfloat16), "c": x}

    def one(x):
        return {"a": x, "b": x, "c": x}

    many = jax.shard_map(f, mesh=mesh, in_specs=P("y"), out_specs=P("y"), check_vma=False)
    said = message(
        assert_equal_to_one_device, many, (np.tile(X, (4, 1)),), (P("y"),), mesh=mesh, reference=one
    )
    assert said.startswith("2 of 3 results of f are not the same on 8 devices as on one:")
    assert "\n  ['a']: 4 of 512 differ, the first at [3, 5]: expected " in said
    assert "\n  ['b']: expected dtype float32, got bfloat16" in said and "['c']" not in said


def test_a_current_mesh_with_explicit_axes_is_replaced_too(devices):
    explicit = Mesh(np.array(devices(8)), ("d",), axis_types=(AxisType.Explicit,))

    def f(w, x):
        return jax.sharding.reshard(x, P(None, "d")).sum(0) * jax.sharding.reshard(
            w, P("d", None)
        ).sum(1)

    with jax.set_mesh(explicit):
        assert_equal_to_one_device(f, (W, X), (P("d"), P("d")), mesh=explicit, gradient=True)


def test_what_is_donated_is_a_copy(mesh):
    x = placed(mesh, X, "x")
    twice = jax.jit(lambda x: x * 2, donate_argnums=0)
    assert_equal_to_one_device(twice, (x,), (P("x"),), mesh=mesh, gradient=True)
    assert_equal_to_one_device(twice, (jnp.asarray(X),), (P("x"),), mesh=mesh)
    assert not x.is_deleted()


def test_a_function_that_names_its_mesh_needs_a_reference(mesh):
    named = jax.jit(jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    said = message(assert_equal_to_one_device, named, (X,), (P("x"),), mesh=mesh, error=ValueError)
    assert "cannot run on one device" in said and "give reference=" in said

    def ignores(x):
        return jax.lax.with_sharding_constraint(jnp.ones(8), NamedSharding(mesh, P("x")))

    said = message(
        assert_equal_to_one_device, ignores, (X,), (P("x"),), mesh=mesh, error=ValueError
    )
    assert "one device" in said and "give reference=" in said


@pytest.mark.parametrize(
    ("layouts", "given", "said"),
    [
        ((P(),), {}, "tuples of the same length"),
        ((P(), P("x")), {"mesh": None}, "needs a mesh to be read on; give mesh="),
        ((None, None), {}, "nothing to compare"),
        (({"down": P()}, P()), {}, "argument 0: the layouts"),
        ((P(), P()), {"gradient": 2}, "there is no argument 2; use 0 to 1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(mesh, layouts, given, said):
    given = {"mesh": mesh} | given
    assert said in message(
        assert_equal_to_one_device, loss, ({"up": W}, X), layouts, error=ValueError, **given
    )


# --- Several steps --------------------------------------------------------------------------------


def descend(w, x):
    value, gradient = jax.value_and_grad(loss)(w, x)
    return jax.tree.map(lambda p, g: p - 0.01 * g, w, gradient), value


def test_steps_are_compared_and_the_largest_difference_is_returned(mesh):
    found = assert_equal_to_one_device(descend, ({"up": W}, X), (P(), P("x")), mesh=mesh, steps=3)
    assert found.devices == 8 and found.arrays == 1 + 3  # the last state, and three losses
    assert 0 <= found.worst < 1e-6 and bool(found.where) == (found.worst > 0)
    assert re.match(
        r"4 arrays on 8 devices as on one; largest relative difference \d\.\de[+-]\d\d(, in \[|$)",
        str(found),
    )


def test_what_one_device_computed_is_used_again_for_the_same_arguments_alone(mesh):
    runs = []

    def reference(w, x):
        jax.debug.callback(lambda: runs.append(1))
        return descend(w, x)

    args, layouts, how = ({"up": W}, X), (P(), P("x")), {"mesh": mesh, "steps": 2}
    first = assert_equal_to_one_device(descend, args, layouts, reference=reference, **how)
    again = assert_equal_to_one_device(descend, args, (P(), P("y")), reference=first, **how)
    once_more = assert_equal_to_one_device(descend, args, layouts, reference=again, **how)
    assert first == once_more and len(runs) == 2  # two steps
    said = message(
        assert_equal_to_one_device,
        lambda w, x: descend(w, 2 * x),
        args,
        layouts,
        reference=first,
        **how,
    )
    assert "not the same on 8 devices as on one" in said
    for other in ({"steps": 3}, {"steps": 1, "gradient": 0}):
        message(
            assert_equal_to_one_device,
            descend,
            args,
            layouts,
            error=ValueError,
            reference=first,
            **how | other,
        )
    said = message(
        assert_equal_to_one_device,
        descend,
        (args[0], X + 0),
        layouts,
        error=ValueError,
        reference=first,
        **how,
    )
    assert "a comparison with other arguments, gradients or steps" in said


def test_a_difference_is_relative_to_the_largest_magnitude_of_its_array(mesh):
    def off(x):
        return {"fine": x, "off": x.at[0, 0].add(0.25)}

    many = jax.shard_map(off, mesh=mesh, in_specs=P("y"), out_specs=P("y"), check_vma=False)
    x = np.full((4, 2), -2, np.float32)
    given = {"mesh": mesh, "reference": lambda x: {"fine": x, "off": x}, "rtol": 1}
    found = assert_equal_to_one_device(many, (x,), (P("y"),), **given)
    assert (found.worst, found.where, found.arrays) == (0.125, "['off']", 2)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float32", 1e-5), ("bfloat16", 3e-2), ("float16", 4e-3), ("float64", 1e-12)],
)
def test_the_default_tolerance_of_a_dtype_is_the_one_that_is_documented(mesh, dtype, tolerance):
    """Relative, and absolute as a share of the largest magnitude: of 64, where the array has a
    zero.
    """
    # at the largest itself both are added
    for size, place, many in ((64.0, 0, 2.5), (0.0, 1, 1.5)):

        def off(times, size=size, place=place):
            value = np.array([64.0, 0.0], dtype=jnp.dtype(dtype))

            def shifted(x):
                return x.at[place].add(jnp.asarray(times * tolerance * 64, x.dtype))

            mapped = jax.shard_map(shifted, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
            assert value[place] == size
            assert_equal_to_one_device(mapped, (value,), (P(),), mesh=mesh, reference=lambda x: x)

        with jax.enable_x64(dtype == "float64"):
            off(0.6)
            with pytest.raises(AssertionError):
                off(many)


def test_infinities_that_agree_are_no_difference(mesh):
    x = np.array([[-np.inf, 2], [1, np.inf], [0, -4], [3, 1]], np.float32)
    found = assert_equal_to_one_device(lambda x: {"twice": 2 * x}, (x,), (P("y"),), mesh=mesh)
    assert (found.worst, found.where, found.arrays) == (0, "", 1)


def test_a_step_that_goes_wrong_later_is_named(mesh):
    def wrong(state, x):  # right in the first step, when the state is 0
        return jax.lax.psum(state, ("x", "y")) + 1, jnp.sum(state)

    many = jax.shard_map(wrong, mesh=mesh, in_specs=(P(), P()), out_specs=(P(), P()))
    given = {"mesh": mesh, "reference": lambda state, x: (state + 1, jnp.sum(state)), "steps": 3}
    said = message(
        assert_equal_to_one_device, many, (np.zeros(3, np.float32), X), (P(), P()), **given
    )
    assert (
        "\n  ['after 3 steps']: " in said and "\n  ['step 3'][0]: " in said and "step 2" not in said
    )


@pytest.mark.parametrize("given", [{"steps": 0}, {"steps": 2, "gradient": 0}])
def test_steps_that_cannot_be_are_refused(mesh, given):
    said = message(
        assert_equal_to_one_device,
        loss,
        ({"up": W}, X),
        (P(), P("x")),
        mesh=mesh,
        error=ValueError,
        **given,
    )
    assert f"steps={given['steps']}" in said


@pytest.mark.parametrize("steps", [1, 3])
def test_what_divides_noise_by_noise_is_left_out_by_state_false(mesh, steps):
    """Adam's first update is g / |g|; where g is a sum that cancels, its sign is a matter of
    rounding.
    """

    def adam(w, x):
        gradient = x.sum(0)
        return w - 0.1 * gradient / (jnp.abs(gradient) + 1e-12), jnp.mean(x**2)

    x = np.random.default_rng(3).normal(size=(64, 256))
    x = (x - x.mean(0)).astype(np.float32)  # each sum is its rounding error
    args, layouts, given = (
        (np.ones(256, np.float32), x),
        (P(), P("x")),
        {"mesh": mesh, "steps": steps},
    )
    said = message(assert_equal_to_one_device, adam, args, layouts, **given)
    assert "only the new state differs" in said and "state=False" in said
    found = assert_equal_to_one_device(adam, args, layouts, state=False, **given)
    assert found.arrays == steps  # the losses
    said = message(
        assert_equal_to_one_device,
        lambda w, x: (w, x.std() * w.sum()),
        args,
        layouts,
        state=False,
        reference=lambda w, x: (w, 2 * x.std() * w.sum()),
        **given,
    )
    assert "not the same on 8 devices" in said and "only the new state" not in said


@pytest.mark.parametrize("f", [lambda w, x: w, lambda w, x: (w,), lambda w, x: (w, None)])
def test_state_false_needs_something_else_to_compare(mesh, f):
    args, layouts = (W, X), (P(), P("x"))
    said = message(
        assert_equal_to_one_device, f, args, layouts, mesh=mesh, state=False, error=ValueError
    )
    assert "returns its new state and nothing beside it" in said
    message(
        assert_equal_to_one_device,
        loss,
        args,
        layouts,
        mesh=mesh,
        state=False,
        gradient=0,
        error=ValueError,
    )


# --- pytest, as a stranger runs it ----------------------------------------------------------------

HEAD = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from shardlab import assert_collectives
"""


def run_pytest(folder, test, *options, ini="", conftest=""):
    """pytest in a process and a folder of its own, without what this process has set; its status
    and its output.
    """
    (folder / "test_mine.py").write_text(textwrap.dedent(test))
    (folder / "conftest.py").write_text(textwrap.dedent(conftest))
    (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{ini}\n")
    clean = {
        name: value
        for name, value in os.environ.items()
        if not re.match("XLA_FLAGS|NPROC|JAX_|PYTEST", name)
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *options]
    done = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def test_a_failing_test_shows_the_difference_and_not_our_code(tmp_path):
    test = (
        HEAD
        + """
    def test_sum(devices):
        mesh = Mesh(np.array(devices(4)), "d")
        a = jax.device_put(jnp.ones(8), NamedSharding(mesh, P("d")))
        assert_collectives(jnp.sum, a, at_most={"all-reduce": 1})
        assert_collectives(jnp.sum, a, at_most={})
    """
    )
    status, said = run_pytest(tmp_path, test)
    assert status == 1 and "all-reduce: at most 0 allowed, but it runs 1 time" in said
    assert "testing.py" not in said and "1 failed" in said


@pytest.mark.parametrize("how", ["option", "ini", "xdist"])
def test_requested_devices_are_there_before_any_conftest_starts_jax(tmp_path, how):
    test = """
    import jax
    def test_count(devices):
        assert jax.device_count() == 3 and len(devices(2)) == 2
    def test_too_many(devices):
        devices(4)
    """
    options = {
        "option": ["--shardlab-devices", "3"],
        "ini": [],
        "xdist": ["--shardlab-devices=3", "-n", "1"],
    }[how]
    ini = "shardlab_devices = 3" if how == "ini" else ""
    status, said = run_pytest(
        tmp_path, test, *options, ini=ini, conftest="import jax\njax.devices()"
    )
    assert status == 1 and "1 failed, 1 passed" in said
    assert (
        "needs 4 devices, but JAX has started with 3 (cpu); run pytest with "
        "--shardlab-devices 4, or write "
    ) in said


def test_without_a_request_nothing_is_imported_and_the_fixture_emulates(tmp_path):
    test = """
    import sys
    def test_nothing():
        assert "jax" not in sys.modules and "shardlab.arrays.devices" not in sys.modules
    def test_some(devices):
        assert [device.id for device in devices(2)] == [0, 1]
    def test_more_than_before(devices):
        assert len(devices(8)) == 8
    def test_too_many(devices):
        devices(9)
    """
    status, said = run_pytest(tmp_path, test)
    assert status == 1 and "1 failed, 3 passed" in said and "--shardlab-devices 9" in said


@pytest.mark.parametrize("given", ["0", "many"])
def test_a_senseless_request_is_one_line(tmp_path, given):
    status, said = run_pytest(tmp_path, "def test(): pass", "--shardlab-devices", given)
    assert status == 4 and len(said.strip().splitlines()) == 1, said
    assert f"--shardlab-devices is {given!r}; use a whole number of at least 1, such as 8" in said
