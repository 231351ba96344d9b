"""The transformer of part IV: each function against NumPy, optax or a property that it must
have.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shardlab.networks import transformer
from shardlab.networks.transformer import Config, Hooks

pytestmark = pytest.mark.reads("src/shardlab")

SMALL = Config(layers=2, model=16, heads=4, kv_heads=2, hidden=32)


@pytest.fixture(scope="module")
def parameters():
    return transformer.init(jax.random.key(0), SMALL)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_attention_is_that_of_numpy_head_by_head():
    q, k, v, positions = (
        normal(2, 5, 4, 3),
        normal(2, 5, 2, 3, seed=1),
        normal(2, 5, 2, 3, seed=2),
        np.arange(5),
    )
    found = transformer.attention(q, k, v, positions)
    for batch, token, head in np.ndindex(2, 5, 4):
        # two heads share one
        keys, values = (array[batch, : token + 1, head // 2] for array in (k, v))
        weights = np.exp(keys @ q[batch, token, head] / np.sqrt(3))
        np.testing.assert_allclose(
            found[batch, token, head], weights @ values / weights.sum(), rtol=2e-5, atol=1e-6
        )


def test_rotated_products_depend_on_the_distance_alone():
    q, k = normal(1, 1, 1, 8), normal(1, 1, 1, 8, seed=1)

    def product(at, other):
        return float(
            jnp.sum(
                transformer.rotate(q, jnp.array([at])) * transformer.rotate(k, jnp.array([other]))
            )
        )

    assert (
        product(7, 3)
        == pytest.approx(product(44, 40), rel=1e-4)
        != pytest.approx(product(7, 4), rel=1e-4)
    )
    np.testing.assert_array_equal(transformer.rotate(q, jnp.array([0])), q)


def test_a_token_sees_no_later_one(parameters):
    tokens = transformer.sums(2, 16)["tokens"]
    changed = tokens.copy()
    changed[:, 9:] += 1
    one, other = (transformer.forward(parameters, array) for array in (tokens, changed))
    np.testing.assert_array_equal(one[:, :9], other[:, :9])
    assert (np.abs(one[:, 9:] - other[:, 9:]).max(-1) > 1e-3).all()


def test_a_shard_of_the_sequence_has_its_own_positions(parameters):
    """Without attention, what comes of the second half is that of the whole, if told where it
    stands.
    """
    tokens = transformer.sums(2, 16)["tokens"]
    hooks = Hooks(attention=lambda q, k, v, positions: q)
    whole = transformer.forward(parameters, tokens, hooks)
    half = transformer.forward(parameters, tokens[:, 8:], hooks, jnp.arange(8, 16))
    np.testing.assert_allclose(half, whole[:, 8:], rtol=1e-5, atol=1e-6)


def test_the_losses_of_shards_sum_to_that_of_the_batch(parameters):
    batch = transformer.sums(4, 16)
    whole = float(transformer.loss(parameters, batch))
    shards = [jax.tree.map(lambda array, n=n: array[2 * n : 2 * n + 2], batch) for n in (0, 1)]
    assert sum(float(transformer.loss(parameters, shard)) for shard in shards) == pytest.approx(
        whole, rel=1e-6
    )


def test_a_model_that_knows_nothing_loses_the_logarithm_of_the_vocabulary(parameters):
    blank = parameters | {"unembed": jnp.zeros_like(parameters["unembed"])}
    assert float(transformer.loss(blank, transformer.sums(4, 16))) == pytest.approx(
        np.log(16), rel=1e-6
    )


def test_every_hook_acts(parameters):
    """Each hook is called, and what it returns is used: the loss changes."""
    batch = transformer.sums(2, 16)
    usual = float(transformer.loss(parameters, batch))
    hooks = Hooks()
    double = {
        "attention": lambda *args: 2 * hooks.attention(*args),
        "mlp": lambda *args: 2 * hooks.mlp(*args),
        "token_losses": lambda *args: 2 * hooks.token_losses(*args),
        "enter": lambda x: 2 * x,
        "leave": lambda x: 2 * x,
        "residual": lambda x: x + 1,
        "weights": lambda layer: jax.tree.map(lambda array: 2 * array, layer),
        "embed": lambda embed, tokens: embed[tokens] + 1,
        "remat": lambda layer: lambda x, weights: (layer(x, weights)[0] + 1, None),
    }
    assert set(double) == set(Hooks.__dataclass_fields__)
    for name, hook in double.items():
        assert (
            abs(float(transformer.loss(parameters, batch, Hooks(**{name: hook}))) - usual) > 1e-4
        ), name


def test_adam_is_that_of_optax(parameters):
    state = transformer.adam_state(parameters)
    other = optax.adam(3e-3, b1=0.9, b2=0.95, eps=1e-5)
    theirs, kept = parameters, other.init(parameters)
    for seed in range(3):
        gradients = jax.tree.map(lambda p, seed=seed: normal(*p.shape, seed=seed), parameters)
        state = transformer.adam(state, gradients)
        updates, kept = other.update(gradients, kept)
        theirs = optax.apply_updates(theirs, updates)
    for one, expected in zip(
        jax.tree.leaves(state["parameters"]), jax.tree.leaves(theirs), strict=True
    ):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)
    assert int(state["step"]) == 3


def test_the_model_learns_a_batch(parameters):
    state, batch = transformer.adam_state(parameters), transformer.sums(4, 16)
    step = jax.jit(transformer.train_step)
    losses = []
    for _ in range(60):
        state, value = step(state, batch)
        losses.append(float(value))
    assert losses[-1] < 0.2 < 2 < losses[0]


def test_sums_are_right_and_only_answers_count():
    batch = transformer.sums(3, 64, seed=5)
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        "tokens": ((3, 64), "int32"),
        "targets": ((3, 64), "int32"),
        "weights": ((3, 64), "float32"),
    }
    assert batch["weights"].sum() == pytest.approx(1) and len(np.unique(batch["weights"])) == 2
    np.testing.assert_array_equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])
    for tokens, targets, weights in zip(*batch.values(), strict=True):
        text = transformer.read(tokens) + transformer.read(targets[-1])
        lines = text.split("\n")
        assert len(lines) == 7 and all(len(line) == 9 for line in lines[:-1])
        for line in lines[:-1]:
            question, answer = line.split("=")
            assert sum(map(int, question.split("+"))) == int(answer)
        counted = transformer.read(targets[weights > 0])
        assert counted == "".join(line[6:9] for line in lines[:-1])
    assert not np.array_equal(batch["tokens"], transformer.sums(3, 64, seed=6)["tokens"])


@pytest.mark.parametrize("heads", [4, 2])
def test_in_bfloat16_it_stays_in_bfloat16_and_close_to_float32(heads):
    """Its norms, scores and losses are float32 inside: the same rounded weights in float32 are the
    reference.
    """
    config = Config(layers=2, model=16, heads=4, kv_heads=heads, hidden=32)
    low = jax.tree.map(
        lambda a: a.astype(jnp.bfloat16), transformer.init(jax.random.key(0), config)
    )
    exact = jax.tree.map(lambda a: a.astype(jnp.float32), low)
    batch = transformer.sums(4, 32)
    assert transformer.forward(low, batch["tokens"]).dtype == jnp.bfloat16
    value, gradients = jax.value_and_grad(transformer.loss)(low, batch)
    reference, wanted = jax.value_and_grad(transformer.loss)(exact, batch)
    assert value.dtype == jnp.float32 and abs(value / reference - 1) < 3e-3
    for g, w in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
        assert g.dtype == jnp.bfloat16
        assert np.linalg.norm(g.astype(np.float32) - w) < 0.03 * np.linalg.norm(w)


def test_norm_and_losses_in_bfloat16_are_rounded_once():
    x = jnp.asarray(normal(64, 512), jnp.bfloat16)
    wide = x.astype(jnp.float32)
    np.testing.assert_allclose(
        transformer.norm(x).astype(np.float32), transformer.norm(wide), rtol=2**-8
    )
    matrix, targets = jnp.asarray(normal(512, 16, seed=1), jnp.bfloat16), jnp.arange(64) % 16
    found = transformer.token_losses(x, matrix, targets)
    wanted = transformer.token_losses(wide, matrix.astype(jnp.float32), targets)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
