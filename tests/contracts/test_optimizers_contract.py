"""What readers copy from `optimizers`, against NumPy and Optax on one device."""

from functools import cache

import jax
import numpy as np
import optax
from contract import DEVICES, close, contract, copied, mesh_of, reads, refusal, values
from jax.sharding import NamedSharding, PartitionSpec as P

pytestmark = reads("optimizers")

KINDS = ["normal", "zeros", "ones", "tiny", "huge", "nan", "inf"]
SCALES = [1.0, 1e-30, 1e20]


def scaled(kind, shape, scale, dtype="float32", seed=0):
    """Values up to 1e35 and down to 1e-35."""
    if kind in ("tiny", "huge"):
        scale = 1.0
    return (values(kind, shape, "float64", seed) * scale).astype(dtype)


def newton_schulz(X):
    X = np.asarray(X, "float64")
    if X.size and np.abs(X).max() > 0:
        X = X / np.linalg.norm(X)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X


@contract(
    "optimizers", "orthogonalize", draws=60,
    shape=[(1, 1), (1, 5), (5, 1), (3, 8), (8, 3), (0, 4), (4, 0)], kind=KINDS, scale=SCALES,
    dtype=["float32", "bfloat16"],
)  # fmt: skip
def test_orthogonalize(orthogonalize, shape, kind, scale, dtype):
    """`orthogonalize` takes a matrix of any shape and scale, in float32 or bfloat16. A matrix of
    zeros stays zero, and one NaN or infinity makes all elements NaN.
    """
    X = scaled(kind, shape, scale, dtype)
    found = jitted(orthogonalize)(X)
    assert found.dtype == dtype
    if not np.isfinite(X.astype("float32")).all():
        assert np.isnan(found).all()
        return
    close(found, newton_schulz(X), 8e-2 if dtype == "bfloat16" else 1e-4)


@cache
def jitted(f):
    return jax.jit(f)


@contract(
    "optimizers", "one_each", "spread", draws=25,
    devices=DEVICES, count=[1, 2, 8, 9], rows=[3, 8], other=[False, False, True],
    mesh_set=[True, True, False], kind=["normal", "zeros", "nan"], scale=SCALES,
)  # fmt: skip
def test_one_each(one_each, spread, devices, count, rows, other, mesh_set, kind, scale):
    """`one_each` takes any number of matrices, all of the same shape. Call it under `jit`, with a
    mesh of automatic axes set by `jax.set_mesh`.
    """
    tree = {"a": [scaled("normal", (rows, 5), scale, seed=n) for n in range(count)]}
    tree["a"][-1] = scaled(kind, (rows, 5), scale, seed=count)
    if other:
        tree["b"] = np.ones((5, rows), "float32")
    named = ["5", rows] if other else ["data"]
    with (
        refusal(other or not mesh_set, *named),
        jax.set_mesh(mesh_of(devices, names=("data" if mesh_set else "x",))),
    ):
        found = jitted(spread)(tree)
        if not other and mesh_set:  # a device's own share, at a time
            program = jitted(spread).lower(tree).compile().as_text()
            assert f"f32[{-(-count // devices)},{rows}," in program
        for one, X in zip(found["a"], tree["a"], strict=True):
            if np.isnan(X).any():
                assert np.isnan(one).all()
            else:
                close(one, newton_schulz(X), 1e-4)


@contract(
    "optimizers", "axes_of", "clip_shards", draws=40,
    sizes=[(1, 1), (2, 1), (2, 3), (2, 4), (1, 8)], kind=KINDS, scale=[*SCALES, 1e-3],
    only=["", "W", "b", "both"], dtype=["float32", "bfloat16"], check_vma=[True, False],
    limit=[1.0, 0.25],
)  # fmt: skip
def test_clip_shards(clip_shards, sizes, kind, scale, only, dtype, check_vma, limit):
    """`clip_shards` takes a tree of a device's shards and their specs, on a mesh of any axes, with
    `check_vma` on or off. The gradients may have any scale; one NaN or infinity makes all of them
    NaN.
    """
    shapes = {"W": (12, 4), "b": (5,), "both": (24, 24), "columns": (3, 24)}
    g = {
        name: scaled(kind if only in ("", name) else "normal", shape, scale, dtype, n)
        for n, (name, shape) in enumerate(shapes.items())
    }
    found = clipping(clip_shards, sizes, check_vma, limit)(g)
    wide = jax.tree.map(lambda a: np.asarray(a, "float64"), g)
    with np.errstate(all="ignore"):
        norm = np.sqrt(sum((a**2).sum() for a in wide.values()))
    for name in g:
        assert found[name].dtype == dtype
        if not np.isfinite(norm):
            assert np.isnan(found[name]).all()
        else:
            right = wide[name] * min(1, limit / norm) if norm else wide[name]
            one = np.asarray(found[name], "float64")
            one, right = (np.where(np.abs(right) < 2e-38, 0, a) for a in (one, right))  # subnormal
            close(one, right, 2e-2 if dtype == "bfloat16" else 1e-5)


@cache
def clipping(clip_shards, sizes, check_vma, limit):
    specs = {"W": P("x"), "b": P(), "both": P("y", "x"), "columns": P(None, ("x", "y"))}
    return jax.jit(jax.shard_map(
        lambda g: clip_shards(g, specs, limit), mesh=mesh_of(*sizes), in_specs=(specs,),
        out_specs=specs, check_vma=check_vma,
    ))  # fmt: skip


OPTIMIZERS = {
    "adamw": optax.adamw(1e-3),
    "sgd": optax.sgd(0.1, momentum=0.9),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=6),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    "novograd": optax.novograd(1e-3),
}


@contract(
    "optimizers", "state_specs", "fit", "spec_of", draws=30,
    sizes=[(1, 1), (2, 4), (2, 3), (1, 8)], name=sorted(OPTIMIZERS), factored=[True, False],
    placed=[True, True, False],
)  # fmt: skip
def test_state_specs(state_specs, sizes, name, factored, placed):
    """`state_specs` takes any Optax transformation, and parameters with any shardings."""
    mesh, tx = mesh_of(*sizes), OPTIMIZERS[name]
    rule = {"fit": copied("optimizers", "fit_factored")} if factored else {}
    specs = {"w": P("x"), "b": P(), "in": {"w": P("y", None), "b": P(None, ("y", "x"))}}
    params = {
        "w": np.ones((12, 24)),
        "b": np.ones(()),
        "in": {"w": np.ones((24, 24)), "b": np.ones((5, 24))},
    }
    params = jax.tree.map(lambda a: jax.numpy.asarray(a, "float32"), params)
    expected = tx.init(params)
    if placed:
        layout = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        params = jax.device_put(params, layout)
    found = state_specs(tx, params, **rule)
    layout = jax.tree.map(lambda spec: NamedSharding(mesh, spec), found)
    state = jax.jit(tx.init, out_shardings=layout)(params)
    close(state, expected, 0)
    if name in ("adamw", "sgd") and placed:
        tree = optax.tree_utils.tree_get(state, "mu" if name == "adamw" else "trace")
        assert jax.tree.all(jax.tree.map(
            lambda m, p: m.sharding.is_equivalent_to(p.sharding, p.ndim), tree, params
        ))  # fmt: skip


@contract(
    "optimizers", "fit_factored", draws=60, quick=True,
    of=[(), (4,), (4, 8), (8, 8), (2, 4, 8)], lacks=[-1, 0, 1, 2], shape=[None, (1,), (3, 3)],
)  # fmt: skip
def test_fit_factored(fit_factored, of, lacks, shape):
    """`fit_factored` takes the shape of a state array, and the shape and the spec of its
    parameter.
    """
    entries = ("x", None, "y")[: len(of)]
    dims = [d for d in range(len(of)) if d != lacks]
    own = tuple(of[d] for d in dims) if shape is None else shape
    spec = tuple(fit_factored(own, of, P(*entries)))
    if shape is not None:
        assert spec == ()
        return
    right = {
        tuple(entries[d] for d in range(len(of)) if d != lost)
        for lost in range(-1, len(of))
        if tuple(of[d] for d in range(len(of)) if d != lost) == own
    }
    assert spec in right
