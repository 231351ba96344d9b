"""Chapters on other machines than ours: on other numbers of devices, and the first one on both
kinds of axes.
"""

import re
from dataclasses import replace

import pytest
from nbformat.v4 import new_code_cell, new_notebook
from repository import BOOK

from bookbinder import disk
from bookbinder.progress import Progress
from bookbinder.run import runs
from bookbinder.stopping import stoppable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.reads("book", "src", "_config.yml", "_toc.yml", "pyproject.toml"),
]

AXES = re.compile(r",\s*axis_types=\(AxisType\.Auto,\)")
ON_FOUR = ["arrays", "auto", "explicit", "manual", "collectives", "training"]


def run_on(name, count, cells, variant=""):
    """What the cells of a chapter print on `count` emulated devices; their assertions have to hold.

    `variant` names what was put in place of the chapter's own cells.
    """
    changed = [re.sub(r"\bemulate\(8\b", f"emulate({count}", cell) for cell in cells]
    assert sum(old != new for old, new in zip(cells, changed, strict=True)) == (count != 8)
    chapter = BOOK.chapter(name)
    tags = [chapter.notebook.cells[cell.position].metadata for cell in chapter.cells]
    column = "-".join(["on", str(count), *re.findall(r"\w+", variant)])
    of_book = runs.of_chapter(BOOK, chapter, column=column)
    notebook = new_notebook(
        cells=[
            new_code_cell(cell, metadata=metadata)
            for cell, metadata in zip(changed, tags, strict=True)
        ]
    )
    planned = replace(of_book, notebook=notebook, key=disk.digest(of_book.key, *changed))
    with stoppable() as stop:
        (report,) = runs.run([planned], progress=Progress(), stop=stop)
    said = report.data
    assert report.ok, (
        f"cell {said['cell']}: {said['error']}: {said['message']}\n{said['traceback']}"
    )
    outputs = [output for cell in runs.outputs(report).cells for output in cell.outputs]
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def cells_of(name):
    return [cell.source for cell in BOOK.chapter(name).cells]


@pytest.mark.parametrize("axes", ["Auto", "default"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_the_first_chapter_runs_to_its_end(count, axes):
    """Three divides the batch and no parameter. By default, axes are explicit since JAX 0.9."""
    cells = cells_of("start")
    assert sum(len(AXES.findall(cell)) for cell in cells) == 1
    if axes == "default":
        cells = [AXES.sub("", cell) for cell in cells]
    output = run_on("start", count, cells, "" if axes == "Auto" else "default axes")
    assert f"{count} x cpu on cpu" in output and output.count("Right: ") == 2


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_recipes_run_to_their_end(count):
    assert f"{count} devices, 33,024 parameters" in run_on("recipes", count, cells_of("recipes"))


@pytest.mark.parametrize("name", ON_FOUR)
def test_on_four_devices(name):
    """Every cell runs, every solution is right, and every assertion that is not guarded holds."""
    cells = cells_of(name)
    output = run_on(name, 4, cells)
    assert output.count("Right: ") == sum(cell.count("strict=True)") for cell in cells)


# What a reader may put in place of the first chapter's step: a state of many kinds, donated;
# BatchNorm, dropout and a stream of random numbers; bfloat16.
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
"""  # noqa: E501
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
def test_the_first_chapter_runs_with_a_reader_s_own_step(name, count):
    """Three divides the batch and some of the dimensions. What changes is the cell that the chapter
    names, and rtol.
    """
    own, rtol = STEPS[name]
    cells = cells_of("start")
    at = [k for k, source in enumerate(cells) if "ours = True" in source]
    assert len(at) == 1
    cells[at[0]] = own
    assert sum(cell.count("rtol = 1e-5  #") for cell in cells) == 1
    cells = [cell.replace("rtol = 1e-5  #", f"rtol = {rtol}  #") for cell in cells]
    output = run_on("start", count, cells, name)
    assert f"{count} x cpu on cpu" in output and output.count("Right: ") == 2
    if name.startswith("batch") and count > 1:
        assert "'all-reduce': 3" in output  # the gradients, and what BatchNorm adds up
