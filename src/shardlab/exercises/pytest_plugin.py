"""A plugin for pytest, loaded wherever shardlab is installed: the fixture `devices`, and the option
to emulate some.

    pytest --shardlab-devices 8

or, in pyproject.toml, for every run:

    [tool.pytest.ini_options]
    shardlab_devices = "8"

Devices must be requested before JAX starts. The plugin does so before pytest imports any test or
conftest.py, in each process of pytest-xdist too. Without the option nothing is set, and JAX is not
imported.
"""

from collections.abc import Callable
from contextlib import suppress

import pytest

__all__ = ["devices"]

pytest_plugins = ("shardlab.report.pytest_plugin",)  # the fixture `explained`

# devices that the fixture emulates where none were requested: a later test may need more than the
# first
_LEAST = 8


def pytest_addoption(parser):
    """Add the option, and its line in the configuration."""
    text = "emulate N CPU devices for JAX (shardlab)"
    group = parser.getgroup("shardlab")
    group.addoption("--shardlab-devices", metavar="N", help=text)
    parser.addini("shardlab_devices", text + "; --shardlab-devices goes before", default="")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Request the devices, before a conftest.py can start JAX."""
    count = early_config.known_args_namespace.shardlab_devices or early_config.getini(
        "shardlab_devices"
    )
    if not count:
        return
    if not count.isdigit() or int(count) < 1:
        raise pytest.UsageError(
            f"--shardlab-devices is {count!r}; use a whole number of at least 1, such as 8"
        )
    from shardlab.arrays.devices import configure

    try:
        configure(int(count))
    except RuntimeError:
        raise pytest.UsageError(
            f"--shardlab-devices {count} comes too late: a plugin has started JAX before; "
            f"load it later, or set XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        ) from None


@pytest.fixture(scope="session")
def devices(pytestconfig: pytest.Config) -> Callable[[int], list]:
    """A function that returns the first `n` devices, or fails the test with how to get so many.

        def test_a_mesh(devices):
            types = (jax.sharding.AxisType.Auto,) * 2
            mesh = jax.make_mesh((2, 4), ("x", "y"), devices=devices(8), axis_types=types)

    Args:
      pytestconfig: pytest's own fixture, which knows how many were requested.

    Returns:
      The function. Its argument is how many devices a test needs. If none were requested and JAX
      has not started, the first call makes it emulate as many, and at least 8; otherwise the
      devices are those that JAX has.
    """
    requested = pytestconfig.getoption("shardlab_devices") or pytestconfig.getini(
        "shardlab_devices"
    )

    def first(n):
        __tracebackhide__ = True
        import jax

        from shardlab.arrays.devices import emulate

        if not requested:
            with suppress(RuntimeError):  # JAX has started
                emulate(max(n, _LEAST))
        devices_here = jax.devices()
        if len(devices_here) < n:
            pytest.fail(
                f"this test needs {n} devices, but JAX has started with {len(devices_here)} "
                f"({devices_here[0].platform}); run pytest with --shardlab-devices {n}, or write "
                f'shardlab_devices = "{n}" below [tool.pytest.ini_options] in pyproject.toml',
                pytrace=False,
            )
        return devices_here[:n]

    return first
