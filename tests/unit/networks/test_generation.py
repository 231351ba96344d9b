"""The model with a cache, against `shardlab.networks.transformer` without one."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardlab.networks.generation import chains, extend, generate
from shardlab.networks.transformer import Config, forward, init, read

pytestmark = pytest.mark.reads("src/shardlab")

CONFIG = Config(layers=2, model=24, heads=6, kv_heads=3, hidden=40)
S = 16


def empty(count):
    return jnp.zeros((CONFIG.layers, 2, count, S, CONFIG.kv_heads, CONFIG.model // CONFIG.heads))


@pytest.fixture(scope="module")
def parameters():
    return init(jax.random.key(0), CONFIG)


@pytest.mark.parametrize("chunks", [(11,), (1,) * 11, (5, 1, 4, 1)])
def test_chunks_of_a_sequence_see_what_the_whole_sees(parameters, chunks):
    tokens = chains(3, lines=2)[:, :11]
    cache, logits, first = empty(3), [], 0
    for size in chunks:
        at = jnp.broadcast_to(first + jnp.arange(size), (3, size))
        new, cache = jax.jit(extend)(parameters, cache, tokens[:, first : first + size], at)
        logits.append(new)
        first += size
    expected = forward(parameters, tokens) @ parameters["unembed"]
    np.testing.assert_allclose(jnp.concatenate(logits, 1), expected, atol=1e-5)


def test_sequences_have_positions_of_their_own_and_nothing_is_written_beyond_the_cache(parameters):
    tokens = chains(2, lines=2)[:, :4]
    at = np.array([[0, 1, 2, 3], [S, S, S, S]])
    logits, cache = jax.jit(extend)(parameters, empty(2), tokens, at)
    assert not cache[:, :, 1].any() and cache[:, :, 0, :4].any()
    alone, _ = jax.jit(extend)(parameters, empty(1), tokens[:1], at[:1])
    np.testing.assert_allclose(logits[:1], alone, atol=1e-6)


def test_generation_takes_the_likeliest_token_each_time(parameters):
    prompts = chains(2, lines=1)[:, :4]
    tokens = prompts
    for _ in range(5):
        logits = forward(parameters, tokens) @ parameters["unembed"]
        tokens = np.concatenate([tokens, logits[:, -1:].argmax(-1)], 1)
    assert (generate(parameters, empty(2), prompts, 5) == tokens[:, 4:]).all()


def test_each_sum_follows_from_the_one_before():
    for text in map(read, chains(20, lines=4, seed=3)):
        sums = [line.replace("+", "=").split("=") for line in text.splitlines()]
        assert all(int(a) + int(b) == int(c) for a, b, c in sums)
        assert all(y[:2] == [x[1], x[2][-1]] for x, y in pairwise(sums))
