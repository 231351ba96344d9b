"""Chapters on other machines than ours: on other numbers of devices, and the first one on both kinds of axes."""

import os
import re
import subprocess
import sys

import pytest
from places import ROOT
from repository import BOOK

pytestmark = [pytest.mark.slow, pytest.mark.reads("book", "src", "_config.yml", "_toc.yml", "pyproject.toml")]

AXES = re.compile(r",\s*axis_types=\(AxisType\.Auto,\)")
ON_FOUR = ["arrays", "auto", "explicit", "manual", "collectives", "training"]


def run_on(folder, source, count):
    """What a chapter's code prints as a program on `count` emulated devices; its assertions have to hold."""
    program, replaced = re.subn(r"\bemulate\(8\b", f"emulate({count}", source)
    assert replaced == 1
    (folder / "chapter.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg"}
    command = [sys.executable, "chapter.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def source_of(name):
    return "\n\n".join(cell.source for cell in BOOK.chapter(name).cells)


@pytest.mark.parametrize("axes", ["Auto", "default"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_the_first_chapter_runs_to_its_end(tmp_path, count, axes):
    """Three divides the batch and no parameter. By default, axes are explicit since JAX 0.9."""
    source = source_of("start")
    assert len(AXES.findall(source)) == 1
    output = run_on(tmp_path, AXES.sub("", source) if axes == "default" else source, count)
    assert f"{count} x cpu on cpu" in output and output.count("Right: ") == 2


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_recipes_run_to_their_end(tmp_path, count):
    output = run_on(tmp_path, source_of("recipes"), count)
    assert f"{count} devices, 33,024 parameters" in output


@pytest.mark.parametrize("name", ON_FOUR)
def test_on_four_devices(tmp_path, name):
    """Every cell runs, every solution is right, and every assertion that is not guarded holds."""
    source = source_of(name)
    output = run_on(tmp_path, source, 4)
    assert output.count("Right: ") == source.count("strict=True)")


# What a reader may put in place of the first chapter's step: a state of many kinds, donated; BatchNorm, dropout and a
# stream of random numbers; bfloat16.
ADAM = """
import optax
from typing import Any, NamedTuple

class TrainState(NamedTuple):
    params: Any
    moments: Any
    count: Any

optimizer = optax.adam(1e-3)

def loss_of(params, batch):
    hidden = jnp.tanh(batch["x"].astype(DTYPE) @ params["w"].astype(DTYPE))
    scores = (hidden @ params["out"].astype(DTYPE) + params["b"].astype(DTYPE)).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"]).mean()

def train_step(state, batch):
    loss, grads = jax.value_and_grad(loss_of)(state.params, batch)
    updates, moments = optimizer.update(grads, state.moments, state.params)
    return TrainState(optax.apply_updates(state.params, updates), moments, state.count + 1), {"loss": loss}

step = jax.jit(train_step, donate_argnums=0)
noise = np.random.default_rng(0)
trained = {"w": noise.normal(size=(48, 30)), "out": noise.normal(size=(30, 10)), "b": np.zeros(10)}
trained = jax.tree.map(np.float32, trained)
state = TrainState(trained, optimizer.init(trained), 0)
batch = {"x": noise.normal(size=(120, 48)).astype(np.float32), "label": noise.integers(0, 10, 120)}
state, batch = jax.device_get((state, batch))
ours = False
"""
BATCH_NORM = """
import optax
from flax import nnx

class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(48, 64, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.last = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))

net = Net(nnx.Rngs(0))
definition, state = nnx.split((net, nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)))
trained = nnx.state(net, nnx.Param)

def loss_of(net, batch):
    return optax.softmax_cross_entropy_with_integer_labels(net(batch["x"]), batch["label"]).mean()

@jax.jit
def step(state, batch):
    net, optimizer = nnx.merge(definition, state)
    loss, grads = nnx.value_and_grad(loss_of)(net, batch)
    optimizer.update(net, grads)
    return nnx.state((net, optimizer)), loss

noise = np.random.default_rng(0)
batch = {"x": noise.normal(size=(120, 48)).astype(np.float32), "label": noise.integers(0, 10, 120)}
state, batch = jax.device_get((state, batch))
ours = False
"""
STEPS = {
    "adam, donated": (ADAM.replace("DTYPE", "jnp.float32"), "1e-5"),
    "adam in bfloat16, donated": (ADAM.replace("DTYPE", "jnp.bfloat16"), "1e-2"),
    "batch norm and dropout": (BATCH_NORM, "1e-5"),
}


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("name", STEPS)
def test_the_first_chapter_runs_with_a_reader_s_own_step(tmp_path, name, count):
    """Three divides the batch and some of the dimensions. What changes is the cell that the chapter names, and rtol."""
    own, rtol = STEPS[name]
    cells = [cell.source for cell in BOOK.chapter("start").cells]
    at = [k for k, source in enumerate(cells) if "ours = True" in source]
    assert len(at) == 1
    cells[at[0]] = own
    source = "\n\n".join(cells)
    assert source.count("rtol = 1e-5  #") == 1
    output = run_on(tmp_path, source.replace("rtol = 1e-5  #", f"rtol = {rtol}  #"), count)
    assert f"{count} x cpu on cpu" in output and output.count("Right: ") == 2
    if name.startswith("batch") and count > 1:
        assert "'all-reduce': 3" in output  # the gradients, and what BatchNorm adds up
