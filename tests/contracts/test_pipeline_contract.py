"""What readers copy from `pipeline`: each step once, after what it needs, in no more ticks than the
formulas say; and losses and gradients as one device computes them.
"""

from functools import cache

import jax
import numpy as np
from contract import close, contract, copied, mesh_of, reads, refusal
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from shardlab.networks.transformer import Config, init, loss, sums

pytestmark = reads("pipeline")

STAGES, MICROS = st.integers(1, 9), st.integers(1, 24)


def assert_can_run(steps, n, M, v=1):
    """Each pass of each micro-batch through each of the n v stages, after those it needs."""
    when = {}
    for (tick, s), (kind, m, *chunk) in steps.items():
        assert 0 <= s < n and tick >= 0
        when[kind, m, s + n * (chunk[0] if chunk else 0)] = tick
    assert len(when) == len(steps) == 2 * n * M * v
    for (kind, m, stage), tick in when.items():
        before = stage - 1 if kind == "F" else stage + 1
        if 0 <= before < n * v:
            assert when[kind, m, before] < tick
        assert kind == "F" or when["F", m, stage] < tick
    return 1 + max(when.values())


@contract("pipeline", "all_forward", "gpipe", draws=100, quick=True, n=STAGES, M=MICROS)
def test_gpipe(all_forward, gpipe, n, M):
    """`gpipe` and `all_forward` take any number of stages and of micro-batches, from one."""
    steps = gpipe(n, M)
    assert assert_can_run(steps, n, M) == 2 * (M + n - 1)
    assert {at: step for at, step in steps.items() if step[0] == "F"} == all_forward(n, M)


@contract("pipeline", "one_f_one_b", draws=100, quick=True, n=STAGES, M=MICROS)
def test_one_f_one_b(one_f_one_b, n, M):
    """`one_f_one_b` takes any number of stages and of micro-batches, from one."""
    steps = one_f_one_b(n, M)
    assert assert_can_run(steps, n, M) == 2 * (M + n - 1)
    for stage in range(n):  # activations in flight
        kinds = [kind for (_, s), (kind, _) in sorted(steps.items()) if s == stage]
        most = max(kinds[: i + 1].count("F") - kinds[: i + 1].count("B") for i in range(len(kinds)))
        assert most <= min(n - stage, M)


@contract(
    "pipeline", "interleaved", draws=100, quick=True, n=STAGES, M=MICROS, v=st.integers(1, 4)
)  # fmt: skip
def test_interleaved(interleaved, n, M, v):
    """`interleaved` takes any number of devices, of micro-batches and of stages on each device. If
    n does not divide M, the last group is not full.
    """
    ticks = assert_can_run(interleaved(n, M, v), n, M, v)
    if M % n == 0:
        assert ticks == 2 * (v * M + n - 1)


# --- Steps ----------------------------------------------------------------------------------------

SPECS = {"embed": P(), "layers": P("stage"), "unembed": P()}
STEPS = {
    "n": [1, 2, 3, 4, 8, 8], "M": [0, 1, 3, 5, 15, 15], "rows": [15, 15, 15, 15, 14, 0],
    "layers": [24, 24, 24, 24, 7], "other": [None, None, None, "model", "data"],
    "nan": [False, False, True],
}  # fmt: skip


@cache
def parameters_of(layers):
    config = Config(layers=layers, model=8, heads=2, kv_heads=2, hidden=12)
    return jax.device_get(init(jax.random.key(3), config))


on_one = jax.jit(jax.value_and_grad(loss))


@cache
def stepping(name, mesh, M, *rest):
    """A function like value_and_grad(loss), jitted."""
    f = copied("pipeline", name)(M, *rest, mesh)
    return jax.jit(f if name == "grad_1f1b" else jax.value_and_grad(f))


def is_step(name, n, M, rows, layers, other, nan, rest=(), stages=None, order=None):
    """The loss and its gradients are those of one device, or the step is refused."""
    stages = n if stages is None else stages
    sizes, names = ((n,), ("stage",)) if other is None else ((n, 2), ("stage", other))
    if n == 8 and other:
        sizes = (8, 1)
    batch = {name: array[:rows] for name, array in sums(15, 9).items()}
    if nan and rows:
        batch["weights"][rows // 2, 3] = np.nan
    faults = [
        (other == "data", [other]),
        (not M or not stages, [0]),
        (stages and layers % stages, [stages, layers]),
        (not rows or (M and rows % M), [M, rows]),
    ]
    named = next((values for fault, values in faults if fault), None)
    parameters = parameters_of(layers)
    with refusal(named is not None, *(named or [])):
        stored = parameters
        if order is not None and stages and layers % stages == 0:
            order = order(layers)
            stored = parameters | {"layers": {k: a[order] for k, a in parameters["layers"].items()}}
        value, gradients = stepping(name, mesh_of(*sizes, names=names), M, *rest)(stored, batch)
        expected, right = on_one(parameters, batch)
        if order is not None:
            right = right | {"layers": {k: a[order] for k, a in right["layers"].items()}}
        close(value, expected, 1e-5)
        close(gradients, right, 1e-4)


@contract("pipeline", "gpipe_loss", draws=12, **STEPS)
def test_gpipe_loss(**case):
    """`gpipe_loss` takes a mesh with an axis `stage` of any size that divides the number of layers.
    The number of micro-batches must divide the number of sequences, and may be smaller than the
    number of stages. On a mesh with an axis `data`, `gpipe_loss` needs another `cast`.
    """
    is_step("gpipe_loss", **case)


@contract("pipeline", "grad_1f1b", "add_ends", draws=12, **STEPS)
def test_grad_1f1b(**case):
    """`grad_1f1b` takes M, a mesh without an axis `data`, specs and hooks as `gpipe_loss` does. It
    makes a function that returns the loss and its gradients.
    """
    is_step("grad_1f1b", **case)


@contract(
    "pipeline", "interleaved_loss", "stored_order", draws=12, v=[0, 1, 2, 3], **STEPS
)  # fmt: skip
def test_interleaved_loss(stored_order, n, v, **case):
    """`interleaved_loss` takes M, `v` stages on each device, and a mesh without an axis `data`. The
    layers must be in the order of `stored_order`.
    """
    stages = n * v
    is_step(
        "interleaved_loss", n, **case, rest=(v,), stages=stages,
        order=lambda layers: stored_order(layers, n, v),
    )  # fmt: skip
