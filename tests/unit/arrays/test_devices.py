"""shardlab.arrays.devices, in fresh processes: what it sets is set once in the life of a
process.
"""

import json
import os
import subprocess
import sys

import pytest

from shardlab import emulate

pytestmark = pytest.mark.reads("src/shardlab")


def python(program, **environment):
    """Run a program in a fresh interpreter without our settings; returns the JSON that it prints,
    or its stderr.
    """
    clean = {
        k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC", "JAX_PLATFORMS")
    }
    run = subprocess.run(
        [sys.executable, "-c", program], env=clean | environment, capture_output=True, text=True
    )
    return json.loads(run.stdout) if run.returncode == 0 else run.stderr


SEEN = """
import json, os, jax
print(json.dumps({"count": jax.device_count(), "kind": jax.default_backend(), **os.environ}))
"""


@pytest.mark.parametrize("first", ["", "import jax"])
@pytest.mark.parametrize("n", [1, 8])
def test_the_process_sees_n_devices_whether_or_not_jax_is_imported_first(first, n):
    seen = python(f"{first}\nfrom shardlab import emulate\nassert len(emulate({n})) == {n}\n{SEEN}")
    assert seen["count"] == n and seen["kind"] == "cpu"
    assert seen["JAX_PLATFORMS"] == "cpu" and int(seen["NPROC"]) >= 32


def test_child_processes_see_the_same_number():
    program = f"""
import subprocess, sys
from shardlab import emulate
emulate(5)
print(subprocess.check_output([sys.executable, "-c", {SEEN!r}], text=True))
"""
    assert python(program)["count"] == 5


def test_other_flags_are_kept_and_an_old_count_is_replaced():
    flags = "--xla_force_host_platform_device_count=3 --xla_cpu_enable_fast_math=false"
    seen = python(f"from shardlab import emulate\nemulate(4)\n{SEEN}", XLA_FLAGS=flags)
    assert seen["count"] == 4
    assert seen["XLA_FLAGS"].split() == [
        "--xla_cpu_enable_fast_math=false",
        "--xla_force_host_platform_device_count=4",
    ]


@pytest.mark.parametrize(
    ("jaxlib", "before", "after"),
    [
        ("0.7.1", "", []),
        ("0.7.2", "", ["--xla_cpu_use_xnnpack=false"]),
        ("0.8.1", "", ["--xla_cpu_use_xnnpack=false"]),
        ("0.8.1", "--xla_cpu_use_xnnpack=true", ["--xla_cpu_use_xnnpack=true"]),  # the user's own
        ("0.8.2", "", []),
    ],
)
def test_matrix_products_that_are_wrong_after_a_donation_are_switched_off(jaxlib, before, after):
    """Which versions those are: test_colab runs such a step with Colab's."""
    program = (
        f"import jaxlib\njaxlib.__version__ = {jaxlib!r}\nfrom shardlab.arrays.devices import "
        "configure\n"
    )
    program += f"configure(4)\n{SEEN.replace('jax.device_count()', '4').replace('jax.default_backend()', '0')}"  # noqa: E501
    seen = python(program, XLA_FLAGS=before)
    assert seen["XLA_FLAGS"].split() == [*after, "--xla_force_host_platform_device_count=4"]


def test_too_late_is_refused_with_the_remedy_and_changes_nothing():
    program = """
import jax
jax.devices()
import os
before = dict(os.environ)
from shardlab import emulate
try:
    emulate(8)
except RuntimeError as error:
    assert dict(os.environ) == before
    import json
    print(json.dumps(str(error)))
"""
    message = python(program)
    assert (
        "emulate(8) comes too late" in message
        and "1 cpu device(s)" in message
        and "Restart the kernel" in message
    )


def test_a_second_call_with_the_same_number_is_fine():
    assert python(f"from shardlab import emulate\nemulate(8)\nemulate(8)\n{SEEN}")["count"] == 8


def test_devices_made_by_the_flag_alone_are_accepted():
    program = f"import jax; jax.devices()\nfrom shardlab import emulate\nemulate(6)\n{SEEN}"
    assert (
        python(program, XLA_FLAGS="--xla_force_host_platform_device_count=6", JAX_PLATFORMS="cpu")[
            "count"
        ]
        == 6
    )


def test_without_accelerators_keeping_them_emulates():
    seen = python(f"from shardlab import emulate\nemulate(8, keep_accelerators=True)\n{SEEN}")
    assert seen["count"] == 8 and "JAX_PLATFORMS" not in seen


@pytest.mark.parametrize(
    ("count", "said"), [(1, "1 GPU device (NVIDIA H100)"), (4, "4 GPU devices (NVIDIA H100)")]
)
def test_kept_accelerators_are_named(count, said):
    """With the list of a machine that has GPUs in the place of this machine's."""
    program = f"""
import contextlib, io, json, jax
from types import SimpleNamespace
from shardlab import emulate
jax.devices = lambda: {count} * [SimpleNamespace(platform="gpu", device_kind="NVIDIA H100")]
with contextlib.redirect_stdout(io.StringIO()) as out:
    devices = emulate(8, keep_accelerators=True)
print(json.dumps([len(devices), out.getvalue()]))
"""
    found, printed = python(program)
    assert (
        found == count
        and said in printed
        and printed.startswith("emulate(8) keeps the accelerators")
    )


@pytest.mark.parametrize("n", [0, -1, 2.0, "8", True, None])
def test_a_senseless_number_is_refused_by_name(n):
    with pytest.raises(ValueError, match="whole number of devices") as error:
        emulate(n)
    assert repr(n) in str(error.value)


def test_a_long_loop_of_collectives_on_few_cores_ends():
    # Without NPROC this dies or hangs on two cores with jaxlib before 0.12.
    program = """
from shardlab import emulate
emulate(8)
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
x = jax.device_put(jnp.ones((8, 64)), NamedSharding(mesh, P("d")))
step = jax.jit(lambda v: v + v.sum(0) * 1e-6)
for _ in range(200):
    x = step(x)
print(int(x.shape[0]))
"""
    assert python(program) == 8


def test_a_notebook_that_is_run_again_begins_without_the_mesh_that_it_set():
    program = """
import json
from shardlab import emulate
emulate(8)
import jax
from jax.sharding import AxisType
jax.set_mesh(jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,)))
under = jax.numpy.ones(8).committed
emulate(8)
print(json.dumps([under, jax.numpy.ones(8).committed]))
"""
    assert python(program) == [True, False]
