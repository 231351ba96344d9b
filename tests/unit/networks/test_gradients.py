"""shardlab.networks.gradients: the gradients of nnx.value_and_grad, and every other kind of
state.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from shardlab.networks.gradients import loss_and_gradients

pytestmark = pytest.mark.reads("src/shardlab")


class Net(nnx.Module):
    """With all kinds of state."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.norm(self.conv(x)))
        return self.out(self.dropout(x.mean((1, 2))))


def loss(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(model(batch[0]), batch[1]).mean()


@pytest.fixture
def batch():
    return jax.random.normal(jax.random.key(1), (16, 8, 8, 3)) + 3, jnp.arange(16) % 4


def test_it_does_what_value_and_grad_of_nnx_does(batch):
    ours, theirs = Net(nnx.Rngs(0)), Net(nnx.Rngs(0))
    for _ in range(3):
        value, gradients = loss_and_gradients(loss, ours, batch)
        expected, expected_gradients = nnx.value_and_grad(loss)(theirs, batch)
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        same = jax.tree.map(
            lambda a, b: np.allclose(a, b, atol=1e-6), gradients, expected_gradients
        )
        assert jax.tree.all(same)
    for a, b in zip(
        jax.tree.leaves(nnx.state(ours)), jax.tree.leaves(nnx.state(theirs)), strict=True
    ):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_compiled_step_moves_statistics_and_draws_new_masks(batch):
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, batch):
        value, gradients = loss_and_gradients(loss, model, batch)
        optimizer.update(model, gradients)
        return value

    step(model, optimizer, batch)
    count = int(model.dropout.rngs.count[...])
    step(model, optimizer, batch)
    assert (
        abs(np.asarray(model.norm.mean[...])).max() > 1e-3
        and np.asarray(model.norm.var[...]).min() != 1
    )
    assert int(model.dropout.rngs.count[...]) == count + 1


def test_another_type_of_variable_can_be_chosen_and_a_missing_one_is_named(batch):
    model = Net(nnx.Rngs(0))
    bias = nnx.All(nnx.Param, nnx.PathContains("bias"))
    _, gradients = loss_and_gradients(loss, model, batch, wrt=bias)
    assert len(jax.tree.leaves(gradients)) == 3
    with pytest.raises(ValueError, match=r"LoRAParam.* selects; it has BatchStat, Param, Rng"):
        loss_and_gradients(loss, model, batch, wrt=nnx.LoRAParam)
