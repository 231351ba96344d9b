"""shardlab: draw, describe and check parallel JAX.

The companion package of the book *One Program, Many Devices*. Each module does one thing:

- `shardlab.devices`: give this process several (emulated) devices
- `shardlab.layout`: describe in plain data which device stores which shard of an array
- `shardlab.draw`: draw arrays, meshes, products, `shard_map` with its gradients, memory, time and links
- `shardlab.specs`: compare one array in several layouts: the slice and the bytes of every device
- `shardlab.follow`: follow chunks of data through the program of a device
- `shardlab.hlo`: read the text of a compiled program: its instructions, their types, and how often they run
- `shardlab.comms`: list the collectives of a compiled program, and their bytes
- `shardlab.origins`: find where an instruction comes from: its source line, its pass, and the argument that it moves
- `shardlab.explanation`: explain a program: what it sends and for which line, where its memory is, what to change
- `shardlab.findings`: judge a compiled program: what usually causes a collective, and what to change
- `shardlab.flops`: count the FLOPs of a compiled program's matrix products
- `shardlab.lifetimes`: follow the parameters of each layer through a compiled program: gathered, used, held, scattered
- `shardlab.hardware`: chips and links by their data sheets, and the machines that they form
- `shardlab.models`: transformers by their sizes
- `shardlab.cost`: predict the time and memory of programs by formula, on chips that you do not have
- `shardlab.inference`: predict what serving a model costs: prefill, decode and KV caches
- `shardlab.published`: training runs that others published, to which the costs are fitted and on which they are tested
- `shardlab.plan`: list the meshes on which a model fits, by the step time to expect
- `shardlab.training`: a decoder's training step, for compilers to judge a plan by
- `shardlab.transformer`: one small decoder-only transformer with Adam, with hooks for every way to train it
- `shardlab.decoder`: a small transformer of Flax NNX's layers, sharded by names; needs Flax
- `shardlab.pods`: compile for TPUs and GPUs without having them, and report memory, FLOPs and communication
- `shardlab.schedule`: draw a compiled step as a timeline: compute, hidden and exposed communication
- `shardlab.processes`: start many JAX processes from a notebook, and run cells in them
- `shardlab.explorer`: prepare the calculators of the book's page "Explorer"
- `shardlab.testing`: assert in tests what a program communicates, how arrays are stored, and that one device agrees
- `shardlab.pytest_plugin`: give tests emulated devices
- `shardlab.check`: check the answer to an exercise: its values, its layout and its communication

What programs use most can be imported from here, such as `from shardlab import collectives, describe`, and is loaded
when it is first used: `import shardlab` alone imports no JAX, so that `emulate` can come first. Where a function has
the name of its module, the module is callable: `from shardlab import draw` gives the module, and `draw(array)` calls
`draw.draw`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_MODULES = {  # each with the names that can be imported from the package
    "check": ("Exercise", "NotSolved", "WrongAnswer", "raises"),
    "comms": ("Collective", "Collectives", "collectives", "read_program"),
    "cost": (),
    "decoder": (),
    "devices": ("configure", "emulate"),
    "draw": ("Picture", "bars", "draw_all_reduce", "draw_backward", "draw_matmul", "draw_shard_map", "draw_torus",
             "timeline"),
    "explanation": ("Comparison", "Report", "compare", "explain"),
    "explorer": (),
    "findings": ("Finding",),
    "flops": (),
    "follow": (),
    "hardware": ("CHIPS", "Chip", "Machine", "chip", "machine"),
    "hlo": ("UnreadableProgram",),
    "inference": (),
    "layout": ("Layout", "MeshLayout", "Shard", "describe", "same_layout"),
    "lifetimes": ("Lifetimes",),
    "models": ("MODELS", "Model", "model"),
    "origins": (),
    "plan": ("Choice", "Plan", "Verdict", "verify"),
    "pods": ("NoCompiler", "Pod", "PodProgram"),
    "processes": ("ProcessFailure", "Processes", "start"),
    "published": (),
    "schedule": ("Timeline", "step_timeline"),
    "specs": ("compare_specs",),
    "testing": ("Agreement", "assert_collectives", "assert_equal_to_one_device", "assert_layout"),
    "training": ("training_step",),
    "transformer": (),
}  # fmt: skip
_CALLABLE = ("check", "draw", "follow", "lifetimes", "plan")  # modules with a function of the same name
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_MODULES, *_HOMES]


class _CallableModule(ModuleType):
    """A module whose main function has its name: calling it calls that."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Package(ModuleType):
    """This package: Python sets each of its modules as an attribute, once that is loaded."""

    def __setattr__(self, name, value):
        if name in _CALLABLE and type(value) is ModuleType:
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

if TYPE_CHECKING:  # what type checkers do not see, because it is loaded when it is first used
    # isort: off
    from shardlab.check import (
        Exercise as Exercise,
        NotSolved as NotSolved,
        WrongAnswer as WrongAnswer,
        raises as raises,
    )
    from shardlab.comms import (
        Collective as Collective,
        Collectives as Collectives,
        collectives as collectives,
        read_program as read_program,
    )
    from shardlab.devices import configure as configure, emulate as emulate
    from shardlab.draw import (
        Picture as Picture,
        bars as bars,
        draw_all_reduce as draw_all_reduce,
        draw_backward as draw_backward,
        draw_matmul as draw_matmul,
        draw_shard_map as draw_shard_map,
        draw_torus as draw_torus,
        timeline as timeline,
    )
    from shardlab.explanation import (
        Comparison as Comparison,
        Report as Report,
        compare as compare,
        explain as explain,
    )
    from shardlab.findings import Finding as Finding
    from shardlab.hardware import (
        CHIPS as CHIPS,
        Chip as Chip,
        Machine as Machine,
        chip as chip,
        machine as machine,
    )
    from shardlab.hlo import UnreadableProgram as UnreadableProgram
    from shardlab.layout import (
        Layout as Layout,
        MeshLayout as MeshLayout,
        Shard as Shard,
        describe as describe,
        same_layout as same_layout,
    )
    from shardlab.lifetimes import Lifetimes as Lifetimes
    from shardlab.models import MODELS as MODELS, Model as Model, model as model
    from shardlab.plan import Choice as Choice, Plan as Plan, Verdict as Verdict, verify as verify
    from shardlab.pods import NoCompiler as NoCompiler, Pod as Pod, PodProgram as PodProgram
    from shardlab.processes import ProcessFailure as ProcessFailure, Processes as Processes, start as start
    from shardlab.schedule import Timeline as Timeline, step_timeline as step_timeline
    from shardlab.specs import compare_specs as compare_specs
    from shardlab.testing import (
        Agreement as Agreement,
        assert_collectives as assert_collectives,
        assert_equal_to_one_device as assert_equal_to_one_device,
        assert_layout as assert_layout,
    )
    from shardlab.training import training_step as training_step
    # isort: on

    check: _CallableModule
    draw: _CallableModule
    follow: _CallableModule
    lifetimes: _CallableModule
    plan: _CallableModule


def __getattr__(name: str) -> Any:
    """A module, or a public name of one, when it is first asked for."""
    if name in _MODULES:
        return import_module(f"shardlab.{name}")
    if name in _HOMES:
        value = globals()[name] = getattr(import_module(f"shardlab.{_HOMES[name]}"), name)
        return value
    hint = ""
    if not name.startswith("_"):
        from shardlab._arguments import nearest

        hint = nearest(name, __all__)
    raise AttributeError(f"module 'shardlab' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
