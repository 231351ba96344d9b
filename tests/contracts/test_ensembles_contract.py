"""What readers copy from `ensembles`, against NumPy and processes whose answer is known."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from contract import DEVICES, close, contract, copied, mesh_of, reads, refusal, values
from jax.sharding import PartitionSpec as P

pytestmark = reads("ensembles")

SHAPES = [(1, 0), (1, 3), (1, 4), (2, 7), (4, 400)]
KINDS = ["normal", "zeros", "tiny", "huge", "nan", "inf", "stuck", "still"]


@cache
def diagnostic(name, devices, check=True):
    f = copied("ensembles", name)
    along = jax.shard_map(
        lambda draws: f(draws, "x"), mesh=mesh_of(devices), in_specs=P("x"), out_specs=P(),
        check_vma=check,
    )  # fmt: skip
    return jax.jit(along)


@contract(
    "ensembles", "centred", "split_rhat", draws=60, devices=DEVICES, shape=SHAPES, kind=KINDS,
    check=[True, False], dtype=["float32", "bfloat16"], level=[0.1, 1 / 3, -7.0],
)  # fmt: skip
def test_split_rhat(devices, shape, kind, check, dtype, level):
    """`split_rhat` takes the draws of a device's chains, at least four of each, of any float type;
    if no chain moves it is NaN.
    """
    chains, steps = shape
    drawn = "normal" if kind in ("stuck", "still") else kind
    draws = values(drawn, (devices * chains, steps), dtype)
    if kind == "still":
        draws = np.full(draws.shape, level, "float32")
    if kind == "stuck":
        draws = draws + 10 * np.arange(len(draws), dtype="float32")[:, None].astype(draws.dtype)
    with refusal(steps < 4, steps):
        found = float(diagnostic("split_rhat", devices, check)(draws))
        if kind in ("zeros", "nan", "inf", "still"):
            assert math.isnan(found)
            return
        halves = draws[:, : steps // 2 * 2].astype("float64").reshape(2 * len(draws), -1)
        within, between = halves.var(1, ddof=1).mean(), halves.mean(1).var(ddof=1)
        n = halves.shape[1]
        close(found, ((n - 1) / n + between / within) ** 0.5, 1e-3)


def autoregressive(phi, chains, steps, seed):
    """Draws whose autocorrelations are powers of phi."""
    noise = np.random.default_rng(seed).normal(size=(chains, steps))
    for t in range(1, steps):
        noise[:, t] = phi * noise[:, t - 1] + (1 - phi**2) ** 0.5 * noise[:, t]
    return noise.astype("float32")


@contract(
    "ensembles", "effective_size", draws=40, devices=DEVICES, chains=[1, 4],
    steps=[3, 5, 2000], phi=[-0.99, -0.9, -0.5, 0.0, 0.5, 0.9],
    kind=["known", "known", "zeros", "nan"], scale=[1e-22, 1.0, 1e20],
)  # fmt: skip
def test_effective_size(devices, chains, steps, phi, kind, scale, seed):
    """`effective_size` takes what `split_rhat` does; for N draws it is at most N times log₁₀ N, and
    if no chain moves it is NaN.
    """
    draws = autoregressive(phi, devices * chains, steps, seed) * np.float32(scale)
    if kind != "known":
        draws = values(kind, draws.shape)
    with refusal(steps < 4, steps):
        found = float(diagnostic("effective_size", devices)(draws))
        if kind != "known":
            assert math.isnan(found)
            return
        count = draws.size
        most = count * math.log10(count)
        assert 0 < found <= most * 1.001
        if steps > 1000:
            exact = min(count * (1 - phi) / (1 + phi), most)
            assert 0.5 < found / exact < 2
            close(found, float(diagnostic("effective_size", 1)(draws)), 0.02)


@cache
def slopes(devices, check):
    def log_likelihood(theta, x, y):
        logits = x @ theta["weights"] + theta["bias"]
        return (y * logits - jnp.logaddexp(0, logits)).sum()

    def of_all(points, x, y):
        one = jax.value_and_grad(copied("ensembles", "summed")(log_likelihood, "x"))
        return jax.vmap(one, (0, None, None))(points, x, y)

    program = jax.shard_map(
        of_all, mesh=mesh_of(devices), in_specs=(P(), P("x"), P("x")), out_specs=P(),
        check_vma=check,
    )  # fmt: skip
    return jax.jit(program), jax.vmap(jax.value_and_grad(log_likelihood), (0, None, None))


@contract(
    "ensembles", "as_varying", "summed", draws=30, devices=DEVICES, rows=[0, 1, 5],
    labels=["float32", "int32"], kind=["normal", "zeros", "tiny", "nan"], check=[True, False],
)  # fmt: skip
def test_summed(devices, rows, labels, kind, check, seed):
    """`summed` takes the log likelihood of a device's rows, which may be integers, and the mesh
    axes over which they are sharded; it has first derivatives, with respect to `theta` alone.
    """
    x = values(kind, (devices * rows, 3))
    y = (np.random.default_rng(seed).random(devices * rows) < 0.5).astype(labels)
    points = {"weights": values("normal", (4, 3), seed=1), "bias": values("normal", (4,), seed=2)}
    program, on_one = slopes(devices, check)
    close(program(points, x, y), on_one(points, x, y), 1e-4)
