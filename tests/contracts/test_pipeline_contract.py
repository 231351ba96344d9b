"""What readers copy from `pipeline`: each step once, after what it needs, in no more ticks than the
formulas say.
"""

from contract import contract, reads
from hypothesis import strategies as st

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
    """`interleaved` takes any number of devices, of micro-batches and of stages on each device; if
    n does not divide M, the last group is not full.
    """
    ticks = assert_can_run(interleaved(n, M, v), n, M, v)
    if M % n == 0:
        assert ticks == 2 * (v * M + n - 1)
