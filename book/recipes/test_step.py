"""A test that fails when a step sends or holds more than it did, or gains a finding.

pytest test_step.py --shardlab-record    # once, and whenever a change is meant
pytest test_step.py
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P


def step(w, x):
    """Takes the place of your training step."""
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


def test_step(explained, devices):
    types = (AxisType.Auto,)
    mesh = jax.make_mesh((8,), ("data",), axis_types=types, devices=devices(8))
    rows = NamedSharding(mesh, P("data"))
    w = jax.ShapeDtypeStruct((512, 512), "float32", sharding=rows)
    x = jax.ShapeDtypeStruct((64, 512), "float32", sharding=rows)
    explained(jax.jit(step, donate_argnums=0, out_shardings=rows), w, x)
