"""What readers copy from `solvers`, against NumPy in float64."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from contract import DEVICES, close, contract, copied, mesh_of, reads, refusal, values
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, reshard

pytestmark = reads("solvers")

KINDS = ("normal", "zeros", "ones", "tiny", "huge", "nan", "inf")
MATRICES = ("definite", "diagonal", "indefinite", "stiff")
ROWS = 24
MOST = 60


def matrix(kind, rng):
    """Symmetric; CG needs it positive definite, and not too stiff for its steps."""
    low, high = {
        "definite": (1, 3),
        "diagonal": (1, 2),
        "indefinite": (-2, 3),
        "stiff": (1e-5, 1e3),
    }[kind]
    eigenvalues = np.linspace(low, high, ROWS)
    if kind == "diagonal":
        return np.diag(eigenvalues).astype("float32")
    q, _ = np.linalg.qr(rng.normal(size=(ROWS, ROWS)))
    return (q * eigenvalues @ q.T).astype("float32")


@cache
def solver(name, devices, preconditioner, types):
    mesh = mesh_of(devices, types=AxisType[types])

    def dots(*pairs):
        def sums(*pairs):
            both = zip(pairs[::2], pairs[1::2], strict=True)
            return lax.psum(jnp.stack([(a * b).sum() for a, b in both]), "x")

        return jax.shard_map(sums, mesh=mesh, in_specs=P("x"), out_specs=P())(*pairs)

    def solve(a, b, diagonal, tol):
        def apply(x):
            return a @ (reshard(x, P()) if types == "Explicit" else x)

        more = (dots,) if name == "one_reduction" else ()
        f = copied("solvers", name)
        divided = {"precondition": lambda r: r / diagonal} if preconditioner == "Jacobi" else {}
        return f(apply, *more, b, tol=tol, most=MOST, **divided)

    program, rows = jax.jit(solve), NamedSharding(mesh, P("x"))

    def run(a, b, tol):
        with jax.set_mesh(mesh):
            return program(*(jax.device_put(each, rows) for each in (a, b, a.diagonal())), tol)

    return run


def try_solver(name, devices, kind, system, preconditioner, types, tol, scale, unit, seed):
    rng = np.random.default_rng(seed)
    a, b = matrix(system, rng) * np.float32(unit), values(kind, (ROWS,)) * np.float32(scale)
    expected = np.abs(np.linalg.solve(a.astype("float64"), b.astype("float64"))).max()
    x, steps, converged = map(np.asarray, solver(name, devices, preconditioner, types)(a, b, tol))
    if kind in ("nan", "inf"):
        assert not converged and np.isnan(x).all()
    elif kind == "zeros":
        assert converged and steps == 0 and not x.any()
    else:
        representable = 1e-30 < expected < 1e37
        assert converged or system in ("stiff", "indefinite") or not representable
        assert steps <= MOST
    if converged and kind != "zeros":
        exact = a.astype("float64") @ x.astype("float64")
        left = np.linalg.norm(exact - b) / np.linalg.norm(b.astype("float64"))
        assert left < 11 * tol


DRAWN = {
    "devices": [1, 2, 3, 4, 8], "kind": KINDS, "system": MATRICES, "tol": [1e-2, 1e-4],
    "scale": [1.0, 1e-10, 1e10], "unit": [1.0, 1e-20, 1e20],
    "preconditioner": ["none", "Jacobi"], "types": ["Auto", "Explicit"],
}  # fmt: skip


@contract("solvers", "with_unit_scale", "checked", "cg", draws=80, **DRAWN)
def test_cg(seed, **case):
    """`cg` takes a symmetric positive definite operator and a right-hand side of any scale above
    float32's smallest numbers. At the end it computes the residual of its solution anew. Its third
    result says whether this residual is within ten times the tolerance; for a NaN it is false.
    """
    try_solver("cg", seed=seed, **case)


@contract("solvers", "one_reduction", draws=80, **DRAWN)
def test_one_reduction(seed, **case):
    """`one_reduction` takes the arguments of `cg`, and before `b` a function `dots` that returns
    the inner product of each pair of its arguments. It returns what `cg` returns.
    """
    try_solver("one_reduction", seed=seed, **case)


@cache
def factorisation(devices):
    return jax.jit(copied("solvers", "block_cholesky")(mesh_of(devices)))


@contract(
    "solvers", "block_cholesky", draws=20,
    devices=DEVICES, own=[1, 2, 3], width=[1, 3], more=[0, 0, 0, 1],
    kind=["definite", "large", "small", "indefinite", "nan"],
)  # fmt: skip
def test_block_cholesky(devices, own, width, more, kind, seed):
    """`block_cholesky` takes a square positive definite matrix in the shape (rows, blocks of a
    device, devices, width). Its factor depends only on the blocks on and below the diagonal. Mask
    the result above its diagonal, where the elements are arbitrary. If the matrix is not positive
    definite, the factor contains NaN.
    """
    n = own * devices * width
    normal = np.random.default_rng(seed).normal(size=(n, n))
    a = normal @ normal.T / n + np.eye(n)
    a = {"large": a * 1e12, "small": a * 1e-12, "indefinite": a - 100 * np.eye(n)}.get(kind, a)
    if kind == "nan":
        a[-1, -1] = np.nan
    a = np.pad(a.astype("float32"), ((0, more), (0, 0)))
    with refusal(more, n + more, devices, own, width):
        dealt = a.reshape(n + more, own, devices, width)
        factor = np.tril(np.asarray(factorisation(devices)(dealt)).reshape(n, n))
        if kind in ("indefinite", "nan"):
            assert np.isnan(factor).any()
        else:
            close(factor, np.linalg.cholesky(a.astype("float64")), 1e-4)


@cache
def tall(devices, check):
    f = jax.shard_map(
        copied("solvers", "tsqr"), mesh=mesh_of(devices), in_specs=P("x"),
        out_specs=(P("x"), P()), check_vma=check,
    )  # fmt: skip
    return jax.jit(f)


@contract(
    "solvers", "tsqr", draws=30,
    devices=DEVICES, rows=[0, 1, 2, 4, 7], columns=[1, 3, 4],
    kind=["normal", "ones", "zeros", "tiny", "huge", "nan"],
)  # fmt: skip
def test_tsqr(devices, rows, columns, kind):
    """`tsqr` accepts shards with any number of rows, even fewer rows than columns, on any number of
    devices.
    """
    a = values(kind, (devices * rows, columns))
    with refusal(rows < 1, rows, columns):
        q, r = (np.asarray(part, "float64") for part in tall(devices, False)(a))
        if kind == "nan":
            assert np.isnan(q @ r).any()
            return
        close(q @ r, a, 1e-5)
        assert not np.tril(r, -1).any()
        np.testing.assert_allclose(q.T @ q, np.eye(q.shape[1]), atol=1e-5)
