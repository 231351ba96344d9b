"""Give one process several devices, so that parallel programs run on any laptop."""

import os
import re

from shardlab._arguments import short

__all__ = ["configure", "emulate"]

MOST = 4_096  # devices; with many more XLA starts for minutes, or without end
_FLAG = "--xla_force_host_platform_device_count"
_XNNPACK = "--xla_cpu_use_xnnpack"
# jaxlibs whose CPU matmul may use weights that a donation has replaced
_WRONG_XNNPACK = {"0.7.2", "0.8.0", "0.8.1"}


def emulate(n: int = 8, *, keep_accelerators: bool = False) -> list:
    """Make this process see `n` CPU devices and return them.

    `emulate(8)` on a laptop gives eight devices that share its cores. Shardings and collectives
    work on them as on eight chips, but they are no faster than one device.
    Call it before JAX first computes anything. When a notebook is run again it may be called again:
    the devices stay, and a mesh that was set by `jax.set_mesh` is no longer the current one.

    >>> len(emulate(8))
    8

    Args:
      n: how many CPU devices, 1 or more (up to 256 are known to work).
      keep_accelerators: if this machine has GPUs or TPUs, use those instead of emulated
        devices, however many they are, and print how many; if it has none, emulate as usual.

    Returns:
      The devices, as `jax.devices()` lists them: a list of length `n`, or all accelerators.

    Raises:
      ValueError: `n` is not a whole number from 1 to 4,096.
      RuntimeError: JAX has started already, with other devices.

    It sets these things, each by environment variable and, where there is one, by JAX's
    configuration option too, so that child processes inherit them:

    - the platform: `JAX_PLATFORMS=cpu` (not with `keep_accelerators`);
    - the count: `jax_num_cpu_devices`, and `--xla_force_host_platform_device_count` in
      `XLA_FLAGS`;
    - `NPROC=32`: XLA's CPU client sizes its thread pool by it. With fewer threads than
      waiting devices, a loop of collectives can hang on a machine of two cores;
    - with jaxlib 0.7.2, 0.8.0 and 0.8.1, `--xla_cpu_use_xnnpack=false` in `XLA_FLAGS`: on some CPUs
      their matrix products use old weights after a step that donates its state, and the losses are
      wrong without an error.
    """
    import jax

    before = {name: os.environ.get(name) for name in ("NPROC", "XLA_FLAGS", "JAX_PLATFORMS")}
    try:
        configure(n, keep_accelerators=keep_accelerators)
    except RuntimeError:
        devices = jax.devices()
        on_cpu = devices[0].platform == "cpu"
        if (on_cpu and len(devices) == n) or (keep_accelerators and not on_cpu):
            _leave_mesh()
            _report_accelerators(n, devices)
            return devices
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        raise RuntimeError(
            f"emulate({n}) comes too late: JAX has already started, with {len(devices)} "
            f"{devices[0].platform} device(s). Restart the kernel (in Colab: Runtime, "
            "Restart session) and run this cell before anything else that uses JAX."
        ) from None

    devices = jax.devices()
    if devices[0].platform == "cpu" and len(devices) != n:
        raise RuntimeError(
            f"asked for {n} CPU devices, but JAX made {len(devices)}; look for a setting of "
            f"{_FLAG} in XLA_FLAGS={os.environ['XLA_FLAGS']!r} that overrides this one"
        )
    _leave_mesh()
    _report_accelerators(n, devices)
    return devices


def _report_accelerators(n, devices):
    """Say which devices there are where they are not the emulated ones that were asked for."""
    first = devices[0]
    if first.platform != "cpu":
        kind = (
            f"{len(devices)} {first.platform.upper()} device{'s' * (len(devices) > 1)} "
            f"({first.device_kind})"
        )
        print(
            f"emulate({n}) keeps the accelerators of this machine and emulates nothing: you "
            f"have {kind}."
        )


def _leave_mesh():
    """Have no current mesh, as in a new process."""
    import jax
    import numpy as np

    if not jax.sharding.get_abstract_mesh().empty:
        jax.set_mesh(jax.sharding.Mesh(np.empty((), dtype=object), ()))


def configure(n: int, *, keep_accelerators: bool = False) -> None:
    """Request `n` CPU devices without starting JAX, for processes that call
    `jax.distributed.initialize` first.

    `configure(4)` before `jax.distributed.initialize(...)` gives this process four of the global
    devices.
    The settings are those of `emulate`.

    Args:
      n: how many CPU devices, 1 or more.
      keep_accelerators: leave the platform to JAX, which prefers GPUs and TPUs.

    Raises:
      ValueError: `n` is not a whole number from 1 to 4,096.
      RuntimeError: JAX has started already.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"emulate() needs a whole number of devices, 1 or more; got {short(n)}")
    if n > MOST:
        raise ValueError(
            f"emulate() makes at most {MOST:,} devices, not {short(n)}; a layout on more of them "
            "is described with an AbstractMesh"
        )

    import jaxlib

    os.environ["NPROC"] = str(max(32, 2 * n))
    other_flags = re.sub(rf"{_FLAG}=\S*", "", os.environ.get("XLA_FLAGS", "")).split()
    if jaxlib.__version__ in _WRONG_XNNPACK and not any(
        flag.startswith(_XNNPACK) for flag in other_flags
    ):
        other_flags.append(f"{_XNNPACK}=false")
    os.environ["XLA_FLAGS"] = " ".join([*other_flags, f"{_FLAG}={n}"])
    if not keep_accelerators:
        os.environ["JAX_PLATFORMS"] = "cpu"

    import jax

    # Once JAX has started it refuses this option, but would silently accept the platform.
    jax.config.update("jax_num_cpu_devices", n)
    if not keep_accelerators:
        jax.config.update("jax_platforms", "cpu")
