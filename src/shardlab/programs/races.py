"""Run kernels that communicate with JAX's race detector on, and list the races that it finds, and
the semaphores that are not back at zero.
"""

import contextlib
import dataclasses
import importlib
import io
import logging
import re
from collections.abc import Callable
from typing import Any

import jax

from shardlab.programs.kernels import calls, title

__all__ = ["races"]

_LEFT = re.compile(
    r"Semaphore (\d+) has non-zero count for (\d+)\s+(?:\([^)]*\) )?at kernel exit: (-?\d+)"
)


def races(function: Callable, *args: Any) -> list[str]:
    """The races between the memory accesses of a program's Pallas kernels for TPUs, run once on CPU
    devices, and the semaphores that a kernel leaves above zero.

    A race is two accesses to the same place in a device's memory, at least one of them a write,
    that no semaphore puts in an order: a copy from another device may then arrive before the old
    value has been read, or after. The kernels are interpreted, and each copy is made at once, so
    values do not depend on who waits. What is found are the races of this one run, and not all of
    them: see the source. An empty list is no proof.

    A semaphore that is not zero at a kernel's end was signalled more often than it was waited for:
    on a TPU such a program crashes, or the next kernel waits too little.

    What the function prints meanwhile is not shown.

    >>> from jax.experimental import pallas as pl
    >>> def double(x_ref, y_ref):
    ...     y_ref[...] = 2 * x_ref[...]
    >>> def doubled(x):
    ...     return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype))(x)
    >>> races(doubled, jnp.ones((8, 128)))
    []

    Args:
      function: a function that calls `pl.pallas_call`, jitted or not. `interpret=` makes no
        difference: within this call all kernels are interpreted for races.
      *args: its arguments. It is run, so it must not donate arguments that are needed later.

    Returns:
      One text for each race, which begins with `RACE DETECTED`, as JAX reports it: both accesses
      with their buffer, its range, the thread and the source line. The first number of a thread is
      its device, or a DMA's number, which is 100 or more. After these, one text for each semaphore
      that is left: `SEMAPHORE LEFT kernels end with semaphore 2000 at 4096 on device 2`. A kernel's
      own semaphores are numbered in the order of its scratch (from 2000 in JAX 0.12); a barrier's
      number is its `collective_id`. The count of a DMA semaphore is in bytes.

    Raises:
      ValueError: the function calls no kernel, or one that was made before this call, with another
        `interpret`.
      Exception: whatever the function raises. A wait that no one signals does not return.

    Source: `pltpu.InterpretParams(detect_races=True)` of JAX 0.7.2 and 0.12.0 in
    jax/_src/pallas/mosaic/interpret, whose clocks of DMAs are approximate.
    """
    from jax.experimental.pallas import tpu as pltpu

    fields = {field.name for field in dataclasses.fields(pltpu.InterpretParams)}
    # Newer versions raise by default, and the error would come again in the next call; older ones
    # print.
    go_on = {"on_race": "warn"} if "on_race" in fields else {}
    params = pltpu.InterpretParams(detect_races=True, dma_execution_mode="eager", **go_on)
    with _leftovers() as left, _messages() as messages, pltpu.force_tpu_interpret_mode(params):
        try:
            program = jax.jit(lambda *inner: function(*inner))
            _check(program.trace(*args).jaxpr.jaxpr)
            jax.block_until_ready(program(*args))
            jax.effects_barrier()
        finally:
            pltpu.reset_tpu_interpret_mode_state()
    text = "".join(messages)
    found = {
        part.split("\nSemaphore ")[0].strip()
        for part in re.split(r"(?=RACE DETECTED)", text)
        if part.startswith("RACE DETECTED")
    }
    # What JAX prints when the first devices are done may miss the signals of later ones.
    left |= {(int(device), int(which), int(count)) for which, device, count in _LEFT.findall(text)}
    return sorted(found) + [
        f"SEMAPHORE LEFT kernels end with semaphore {which} at {count} on device {device}"
        for device, which, count in sorted(left)
    ]


def _check(jaxpr):
    called = [*calls(jaxpr)]
    if not called:
        raise ValueError(
            "this function calls no kernel: pass one that calls pl.pallas_call or pl.kernel"
        )
    for call in called:
        if not getattr(call.params["interpret"], "detect_races", False):
            raise ValueError(
                f"the kernel {title(call)} was made with interpret={call.params['interpret']} "
                "before this call, so its races are not watched: call pl.pallas_call inside "
                "the function"
            )


@contextlib.contextmanager
def _leftovers():
    """The semaphores that are not zero when all devices have left a kernel, as a set of (device,
    number, count); empty, if this JAX keeps them elsewhere.
    """
    left = set()
    for name in ("interpret.interpret_pallas_call", "interpret"):
        with contextlib.suppress(ImportError):
            module = importlib.import_module(f"jax._src.pallas.mosaic.{name}")
            break
    clear = getattr(module, "_clear_shared_memory", None)

    def look_and_clear():
        # An error here would leave the other devices waiting for ever.
        with contextlib.suppress(Exception):
            memory = module._get_shared_memory()
            for number, semaphore in {**memory.sem, **getattr(memory, "fixed_id_sem", {})}.items():
                old = getattr(semaphore, "counts", ())
                for core, count in enumerate(getattr(semaphore, "count_by_core", old)):
                    if count:
                        device = core // memory.num_cores_per_device
                        left.add((device, int(number), int(count)))
        clear()

    if clear is None:
        yield left
        return
    module._clear_shared_memory = look_and_clear
    try:
        yield left
    finally:
        module._clear_shared_memory = clear


@contextlib.contextmanager
def _messages():
    """What is printed or logged meanwhile, as a list of texts; other log records go where they
    always go.
    """
    messages, printed = [], io.StringIO()

    class Collector(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage() + "\n")

    loggers = [logging.getLogger(), logging.getLogger("jax")]
    before = [(logger, list(logger.handlers)) for logger in loggers]
    for logger in loggers:
        logger.handlers = [Collector()]
    try:
        with contextlib.redirect_stdout(printed):
            yield messages
    finally:
        for logger, handlers in before:
            logger.handlers = handlers
        messages.append(printed.getvalue())
