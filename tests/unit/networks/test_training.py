"""The step that compilers are asked about: it trains, and on every axis it has the gradients of one
device.
"""

import math
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from shardlab import Model, training_step
from shardlab.costs import AXES

pytestmark = [
    pytest.mark.reads("src/shardlab"),
    pytest.mark.if_changed("src/shardlab/networks/training.py"),
]

SMALL = Model(2, 64, 128, 4, 2, 16, 64)
MIXTURE = replace(SMALL, experts=4, experts_per_token=2, shared_experts=1)


def beginning(state, tokens):
    """A state and a batch for what `training_step` describes: random parameters and tokens, moments
    of zeros.
    """
    random = np.random.default_rng(0)  # of NumPy, since JAX compiles what makes each array

    def placed(like, value):
        return jax.device_put(value.astype(like.dtype), like.sharding)

    def zeros(leaf):
        return placed(leaf, np.zeros(leaf.shape))

    params = {
        name: placed(leaf, 0.1 * random.normal(size=leaf.shape))
        for name, leaf in sorted(state["params"].items())
    }
    moments = {name: jax.tree.map(zeros, state[name]) for name in ("first", "second")}
    return {"params": params, **moments}, placed(
        tokens, random.integers(SMALL.vocab, size=tokens.shape)
    )


def test_the_step_trains():
    """The step that is compiled for verifying is one: it lowers the loss of a batch that it sees
    again.
    """
    mesh = jax.make_mesh(
        (2, 2, 2), AXES, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8]
    )
    step, (state, tokens) = training_step(SMALL, mesh, sequences=4, sequence=32)
    now, batch = beginning(state, tokens)
    run, seen = jax.jit(step), []
    for _ in range(2):
        after = jax.tree.map(np.asarray, made := run(now, batch))
        changed = jax.tree.map(
            lambda a, b: (np.asarray(a) != b).any(), now["params"], after["params"]
        )
        assert all(changed.values()), changed
        seen.append(sum((m**2).sum() for m in after["first"].values()))
        now = made
    assert seen[1] > seen[0] > 0  # the averaged gradient points the same way


def averaged_gradients(model, mesh, microbatches, remat="block"):
    """After one step, the first moments of Adam: a tenth of the gradients; in float32, with room
    for every token.
    """
    sizes, axes = tuple(mesh.values()), tuple(mesh)
    types = (AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh(sizes, axes, axis_types=types, devices=jax.devices()[: math.prod(sizes)])
    step, (state, tokens) = training_step(
        model, mesh, 8, 32, remat, microbatches, np.float32, capacity=model.experts
    )
    return jax.tree.map(np.asarray, jax.jit(step)(*beginning(state, tokens))["first"])


@pytest.fixture(scope="module")
def on_one_device():
    one = dict.fromkeys(AXES, 1)
    return {model: averaged_gradients(model, one, 1) for model in (SMALL, MIXTURE)}


@pytest.mark.parametrize(
    ("model", "axes", "microbatches"),
    [
        (SMALL, {"fsdp": 4}, 2),
        (SMALL, {"tensor": 2, "context": 4}, 1),
        (SMALL, {"fsdp": 2, "tensor": 2, "pipeline": 2}, 2),
        (SMALL, {"fsdp": 2, "pipeline": 2, "context": 2}, 4),
        (MIXTURE, {"data": 2, "expert": 4}, 1),
        (MIXTURE, {"fsdp": 2, "context": 2, "expert": 2}, 1),
    ],
    ids=str,
)
def test_a_step_on_every_axis_has_the_gradients_of_one_device(
    model, axes, microbatches, on_one_device
):
    found = averaged_gradients(model, dict.fromkeys(AXES, 1) | axes, microbatches)
    for name, right in on_one_device[model].items():
        np.testing.assert_allclose(
            found[name], right, rtol=1e-3, atol=1e-5 * abs(right).max(), err_msg=name
        )
        assert abs(right).max() > 0


def test_the_inputs_of_layers_are_offloaded_and_nothing_else_changes(on_one_device):
    mesh = AbstractMesh((2, 2, 2), AXES, axis_types=(AxisType.Auto,) * 3)
    step, arguments = training_step(SMALL, mesh, 8, 32, "offload", 1, np.float32)
    on_host = set(
        re.findall(
            r"(\S+<host>\S+) = device_put", str(jax.make_jaxpr(step)(*arguments)).replace(":", " ")
        )
    )
    assert on_host == {"f32<host>[8,32,64]"}  # 8 sequences of 32 tokens
    # CPUs ignore the policy
    found = averaged_gradients(SMALL, dict(zip(AXES, (2, 2, 2), strict=True)), 1, "offload")
    for name, right in on_one_device[SMALL].items():
        np.testing.assert_allclose(
            found[name], right, rtol=1e-3, atol=1e-5 * abs(right).max(), err_msg=name
        )


@pytest.mark.parametrize(
    ("model", "axes", "options", "words"),
    [
        (replace(SMALL, tied=True), {}, {}, "untied"),
        (SMALL, {"experts": 2}, {}, "expert"),
        (SMALL, {"pipeline": 4}, {"microbatches": 4}, "4 stages do not share 2 layers"),
        (SMALL, {"pipeline": 2}, {"microbatches": 1}, "2 stages do not share 1 micro-batches"),
        (
            SMALL,
            {"data": 2},
            {"microbatches": 8},
            "8 sequences are no multiple of 8 micro-batches on 2 x 1 x 1",
        ),
        (MIXTURE, {"pipeline": 2, "expert": 2}, {"microbatches": 2}, "use one of them"),
    ],
    ids=str,
)
def test_a_step_that_cannot_be_written_is_refused(model, axes, options, words):
    sizes = dict.fromkeys(AXES, 1) | axes
    mesh = AbstractMesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        training_step(model, mesh, 8, 32, **options)
