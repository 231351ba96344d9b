"""What readers copy from `ensembles`, against NumPy and processes whose answer is known."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from contract import DEVICES, close, contract, copied, mapped, mesh_of, reads, refusal, values
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
    """`split_rhat` takes the draws of a device's chains, in any float type, with at least four
    draws of each chain. If no chain ever moves, it returns NaN.
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
    """`effective_size` takes the same arguments as `split_rhat`. For N draws it returns at most N
    times log₁₀ N; if no chain ever moves, it returns NaN.
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
    """`summed` takes the log likelihood of a device's rows and the mesh axes over which the rows
    are sharded. The rows may be integers. You can differentiate the function that `summed` returns
    once, and only with respect to `theta`.
    """
    x = values(kind, (devices * rows, 3))
    y = (np.random.default_rng(seed).random(devices * rows) < 0.5).astype(labels)
    points = {"weights": values("normal", (4, 3), seed=1), "bias": values("normal", (4,), seed=2)}
    program, on_one = slopes(devices, check)
    close(program(points, x, y), on_one(points, x, y), 1e-4)


SCALE, HERE = np.array([1.0, 0.3], "float32"), np.array([0.5, -1.0], "float32")
CHAINS = 512


@cache
def sampler(name, where, value, steps):
    """Draws of many chains from a normal density with a hole."""

    def density(x):
        hole = {"nowhere": False, "right": x[0] > HERE[0], "everywhere": True}[where]
        return -(((x - HERE) / SCALE) ** 2).sum() / 2 + jnp.where(hole, value, 0.0)

    def chain(key):
        if name == "walk":
            draws = copied("ensembles", name)(density, key, steps, size=0.5)
            return draws, (jnp.diff(draws, axis=0) != 0).any(1)
        return copied("ensembles", name)(jax.value_and_grad(density), key, steps, 0.2, 6, 2)

    return jax.jit(jax.vmap(chain))


def try_sampler(name, where, value, seed):
    value = float(value)
    steps = 200
    keys = jax.random.split(jax.random.key(seed), CHAINS)
    draws, moved = map(np.asarray, sampler(name, where, value, steps)(keys))
    assert draws.shape == (CHAINS, steps, 2) and np.isfinite(draws).all()
    starts = draws[:, 0, 0] > HERE[0]
    if where == "everywhere":
        assert not moved.any()
        return
    if where == "right":
        assert not (np.diff((draws[..., 0] > HERE[0]).astype(int), axis=1) > 0).any()
        left = draws[:, -1, 0] < HERE[0]
        assert not moved[~left].any()
        if name == "hmc" and math.isnan(value):
            assert (~left).sum() > 0.95 * starts.sum()  # the first draw may have left
        else:
            assert (~left).sum() < 0.1 * CHAINS
        draws = draws[draws[:, steps // 2, 0] < HERE[0]]
    z = (draws[:, steps // 2 :: 10] - HERE) / SCALE
    means, count = z.mean(1), len(z)
    expected = -math.sqrt(2 / math.pi) if where == "right" else 0
    for axis, center in ((0, expected), (1, 0)):
        error = means[:, axis].std(ddof=1) / math.sqrt(count)
        assert abs(means[:, axis].mean() - center) < 5.5 * error
        squares = (z[..., axis] ** 2).mean(1)
        assert abs(squares.mean() - 1) < 5.5 * squares.std(ddof=1) / math.sqrt(count)


SIDES = {"where": ["nowhere", "right", "everywhere"], "value": ["nan", "-inf"]}


@contract("ensembles", "walk", draws=12, **SIDES)
def test_walk(where, value, seed):
    """`walk` takes the log density as a function of a vector. No chain moves to a point at which
    the log density is NaN or −inf. A chain that starts at such a point leaves it as soon as a
    proposal has a finite log density.
    """
    try_sampler("walk", where, value, seed)


@contract("ensembles", "hmc", draws=12, **SIDES)
def test_hmc(where, value, seed):
    """`hmc` takes a function that returns, for a vector, the log density and its gradient, here
    called the slope. A chain that starts at a point where one of the two is NaN accepts no
    proposal.
    """
    try_sampler("hmc", where, value, seed)


@contract(
    "ensembles", "weigh", "resample", draws=80, quick=True,
    rows=[0, 1, 7, 1000], more=[0, 0, 0, 1], columns=[0, 3], around=[0.0, -2000.0, 700.0],
    kind=["normal", "zeros", "few", "none", "nan", "+inf"], dtype=["float32", "bfloat16", "int32"],
)  # fmt: skip
def test_resample(weigh, resample, rows, more, columns, around, kind, dtype, seed):
    """`weigh` and `resample` take any log weights, and `resample` also takes an array `x` of floats
    with one row for each weight. If all log weights are −inf, or if one of them is NaN or +inf,
    every row that `resample` returns is NaN.
    """
    rng = np.random.default_rng(seed)
    logs = (rng.normal(size=rows) * 2 * (kind != "zeros") + around).astype("float32")
    if rows:
        logs[rng.random(rows) < {"few": 0.8, "none": 2}.get(kind, -1)] = -np.inf
        logs[rng.integers(rows)] = {"nan": np.nan, "+inf": np.inf, "few": around}.get(kind, logs[0])
        if kind == "none":
            logs[:] = -np.inf
    number = np.arange(rows + more).astype(dtype)
    x = number if not columns else np.repeat(number[:, None], columns, 1)
    if dtype == "bfloat16" and rows > 256:  # which cannot count so far
        return
    with refusal(more or dtype == "int32", dtype, rows):
        if not rows:
            with refusal(True, 0):
                weigh(jnp.array(logs))
            return
        drawn = np.asarray(jitted(resample)(jax.random.key(seed), x, logs), "float64")
        weights, evidence = map(np.asarray, jitted(weigh)(logs))
        assert drawn.shape == x.shape
        if kind in ("none", "nan", "+inf"):
            assert np.isnan(drawn).all()
            assert evidence == -np.inf if kind == "none" else not evidence < np.inf
            return
        exact = np.exp(logs.astype("float64") - logs.max())
        close(weights, exact)
        close(evidence, logs.max() + np.log(exact.mean()), 1e-6)
        numbers = drawn.reshape(rows, -1)
        assert (numbers == numbers[:, :1]).all()
        counts = np.bincount(numbers[:, 0].astype(int), minlength=rows)
        share = rows * exact / exact.sum()
        assert abs(counts - share).max() < 1 + 1e-2 and not counts[exact == 0].any()


@cache
def jitted(f):
    return jax.jit(f)


@contract(
    "ensembles", "over_islands", draws=40, quick=True,
    devices=DEVICES, times=[1, 6], dead=[0.0, 0.1, 1.0], value=["nan", "-inf"],
    around=[0.0, -500.0, 90.0], check=[True, False],
)  # fmt: skip
def test_over_islands(over_islands, devices, times, dead, value, around, check, seed):
    """`over_islands` takes a device's means and its log evidence at each time. From the time at
    which an island's log evidence is −inf or NaN, that island counts nothing. If no island is left,
    the mean is NaN.
    """
    rng = np.random.default_rng(seed)
    means = values("normal", (devices, times))
    evidence = values("normal", (devices, times), seed=1) * 3 + np.float32(around)
    ends = rng.random(evidence.shape) < dead
    evidence[ends] = float(value)
    lost = ends.cumsum(1) > 0
    means[lost] = np.nan  # as a filter makes them
    f = mapped(of_one(over_islands), mesh_of(devices), P("x"), P(), check)
    found = np.asarray(f(means, evidence))
    logs = np.where(lost, -np.inf, np.where(lost, 0, evidence.astype("float64")).cumsum(1))
    with np.errstate(invalid="ignore"):
        weights = np.exp(logs - logs.max(0))
        expected = np.where(lost, 0, weights * np.where(lost, 0, means)).sum(0) / weights.sum(0)
    close(found, expected, 1e-3)


@cache
def of_one(f):
    """Of a device's one island."""
    return lambda means, evidence: f(means[0], evidence[0], "x")
