"""shardlab: draw, describe and check parallel JAX.

The companion package of the book *One Program, Many Devices*. Its packages are listed from the
ground up: each imports only from itself and from those before it. Each module does one thing; those
marked (inside) are used by the others alone, and have no section in the reference:

- `shardlab.arrays.devices`: give this process several (emulated) devices
- `shardlab.arrays.layout`: describe in plain data which device stores which shard of an array
- `shardlab.arrays.rules`: shard a whole state by rules on the paths of its arrays
- `shardlab.arrays.weights`: load a model's weights from another library's files, shard by shard
- `shardlab.machines.hardware`: chips and links by their data sheets, and the machines that they
  form
- `shardlab.machines.models`: transformers by their sizes
- `shardlab.cluster.processes`: start many JAX processes from a notebook, and run cells in them
- `shardlab.costs`: predict the time and memory of programs by formula, on chips that you do not
  have
- `shardlab.costs.inference`: predict what serving a model costs: prefill, decode and KV caches
- `shardlab.costs.serving`: predict what a server's clients wait for, and its throughput, for every
  layout of its model
- `shardlab.costs.plan`: list the meshes on which a model fits, by the step time to expect
- `shardlab.costs.published`: training runs that others published, to which the costs are fitted,
  and on which tested
- `shardlab.costs.ledger`: list what formulas predict beside what was measured, by others or by a
  reader
- `shardlab.programs.hlo`: read the text of a compiled program: its instructions, their types, and
  how often they run
- `shardlab.programs.collectives`: list the collectives of a compiled program, and their bytes
- `shardlab.programs.origins`: find an instruction's source line, its pass, and the argument that it
  moves (inside)
- `shardlab.programs.uses`: find the first operations that need a value whole, and how a loop uses a
  sum (inside)
- `shardlab.programs.inherited`: the mesh axes along which the values of a traced program can be in
  shards (inside)
- `shardlab.programs.varying`: find results of a `shard_map` that differ although they are declared
  replicated (inside)
- `shardlab.programs.repeated`: find sums in a `shard_map` that add what has been added, or the rows
  of other devices (inside)
- `shardlab.programs.kernels`: find kernels that communicate by themselves (inside)
- `shardlab.programs.races`: run kernels that communicate, and list their races
- `shardlab.programs.flops`: count the FLOPs of a compiled program's matrix products
- `shardlab.programs.liveness`: the temporaries that a device holds where it holds most (inside)
- `shardlab.programs.lifetimes`: follow each layer's parameters through a program: gathered, used,
  held, scattered
- `shardlab.programs.flows`: follow chunks of data through the program of a device
- `shardlab.programs.timeline`: list what a device does when in a step: compute, hidden and exposed
  communication
- `shardlab.programs.transfers`: list what a function of several meshes sends, within its programs
  and between them
- `shardlab.pods.pod`: compile for TPUs and GPUs without having them, and report memory, FLOPs and
  communication
- `shardlab.pods.transfer`: give a program that names a mesh inside the mesh of other devices
  (inside)
- `shardlab.networks.transformer`: one small decoder-only transformer with Adam, with hooks for
  every way to train it
- `shardlab.networks.generation`: the same transformer with a KV cache, for prefill and decode
  (inside)
- `shardlab.networks.decoder`: a small transformer of Flax NNX's layers, sharded by names; needs
  Flax
- `shardlab.networks.gradients`: gradients of a Flax NNX model that keep its other state; needs Flax
- `shardlab.networks.training`: a decoder's training step, for compilers to judge a plan by
- `shardlab.exercises.check`: check the answer to an exercise: its values, its layout and its
  communication
- `shardlab.exercises.testing`: assert what a program communicates, how arrays are stored, and that
  one device agrees
- `shardlab.exercises.differences`: what differs between two calls of a jitted function (inside)
- `shardlab.exercises.compiles`: assert that a jitted function compiles once, and say which argument
  makes it compile again
- `shardlab.exercises.pytest_plugin`: give tests emulated devices
- `shardlab.pictures.draw`: draw arrays, meshes, products, `shard_map`, memory, time and links, and
  show films
- `shardlab.report.causes`: say what causes a collective, or that it is not known (inside)
- `shardlab.report.states`: tell which arguments are a state that results replace (inside)
- `shardlab.report.findings`: judge a compiled program: what to change, and what is wrong although
  it runs (inside)
- `shardlab.report.names`: names of arguments and results, as the user of a program knows them
  (inside)
- `shardlab.report.program`: a compiled program, its collectives, and where each comes from (inside)
- `shardlab.report.remedies`: remedies of findings that can be compiled, and what they gave (inside)
- `shardlab.report.calls`: judge what the arguments of a program become in its next call (inside)
- `shardlab.report.captured`: judge what a training step captures (inside)
- `shardlab.report.carried`: judge what the loops of a training step carry (inside)
- `shardlab.report.promoted`: judge products that float32 has made wide (inside)
- `shardlab.report.accepted`: advise specs that explicit axes accept (inside)
- `shardlab.report.gathers`: judge what a program gathers (inside)
- `shardlab.report.gradients`: judge gradients that lack axes of their parameters (inside)
- `shardlab.report.kept`: judge sums in a loop that keeps only some of them (inside)
- `shardlab.report.matrices`: judge loops that gather the matrices of a stack (inside)
- `shardlab.report.scattered`: judge sums of which each device keeps its own shard (inside)
- `shardlab.report.specs`: judge the specs of a program (inside)
- `shardlab.report.moves`: what a program sends, added up by line (inside)
- `shardlab.report.stored`: specs for what is stored whole (inside)
- `shardlab.report.storage`: what a program stores: arguments, results and memory (inside)
- `shardlab.report.judgement`: what the text of a program tells of what to change (inside)
- `shardlab.report.reports`: reports of programs, and what changed between two, in print (inside)
- `shardlab.report.trials`: compile a program again with the remedies of its findings (inside)
- `shardlab.report.explain`: explain a program: what it sends and for which line, where its memory
  is, what to change
- `shardlab.report.records`: reports in files, and what grew since (inside)
- `shardlab.report.pytest_plugin`: fail a test when its program sends more than in its record
- `shardlab.report.verify`: compile the best meshes of a plan, and compare them with what was
  predicted

What programs use is imported from `shardlab` itself, as in `from shardlab import draw, emulate`. It
is loaded when it is first used: `import shardlab` alone imports no JAX, so that `emulate` can come
first. The public names stand in `__init__.pyi`, each with its module: one list, for this file and
for type checkers.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.2.0"


def _homes():
    """The module of each public name, by `__init__.pyi`."""
    tree = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
    lines = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module.startswith("shardlab")
    ]
    return {alias.name: node.module for node in lines for alias in node.names}


_HOMES = _homes()
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """A public name, when it is first asked for."""
    if name not in _HOMES:
        hint = ""
        if not name.startswith("_"):
            from shardlab._arguments import nearest

            hint = nearest(name, __all__)
        raise AttributeError(f"module 'shardlab' has no attribute {name!r}{hint}")
    home = _HOMES[name]
    if home == "shardlab":
        return import_module(f"shardlab.{name}")
    module = import_module(home)
    value = getattr(module, name) if hasattr(module, name) else import_module(f"{home}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
