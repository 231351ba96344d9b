"""The decoder of Part III, on one device and sharded."""

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab.networks.decoder import Config, Decoder, create_sharded, loss
from shardlab.networks.transformer import sums

pytestmark = pytest.mark.reads("src/shardlab")

AXES = {
    "batch": "data",
    "embed": "data",
    "heads": "model",
    "hidden": "model",
    "vocabulary": "model",
}


def build(axes=None, **sizes):
    decoder = Decoder(Config(layers=1, dropout=0.1, **sizes), axes, rngs=nnx.Rngs(0, dropout=1))
    decoder.eval()
    return decoder


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def test_it_computes_the_same_on_eight_devices_as_on_one(mesh):
    batch = sums(8)
    expected = loss(build(), batch)
    with jax.set_mesh(mesh):
        decoder = create_sharded(lambda: build(AXES))
        value = nnx.jit(loss)(decoder, jax.device_put(batch, NamedSharding(mesh, P("data"))))
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_each_weight_is_created_in_shards_by_its_names(mesh):
    with jax.set_mesh(mesh):
        decoder = create_sharded(lambda: build(AXES))
    layer = decoder.layers[0]
    kernels = (
        layer.up.kernel,
        layer.down.kernel,
        layer.attention.query.kernel,
        layer.attention.out.kernel,
    )
    specs = [kernel[...].sharding.spec for kernel in kernels]
    assert specs[:2] == [P("data", "model"), P("model", "data")]
    assert [tuple(spec)[:2] for spec in specs[2:]] == [("data", "model"), ("model", None)]
    for kernel in kernels:
        assert kernel[...].addressable_shards[0].data.size == kernel[...].size / 8


def test_a_token_does_not_see_later_ones():
    decoder, tokens = build(), sums(1)["tokens"]
    later = tokens.copy()
    later[:, 40:] = 0
    before, after = decoder(tokens), decoder(later)
    np.testing.assert_allclose(before[:, :40], after[:, :40], rtol=1e-5, atol=1e-5)
    assert np.abs(before[:, 40:] - after[:, 40:]).max() > 0.01
