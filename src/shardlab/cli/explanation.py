"""`shardlab explain`: say what a program sends and stores, and why."""

import importlib
import os
import re
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

from shardlab._arguments import nearest
from shardlab.cli import compare
from shardlab.cli.arguments import Wrong, mesh_of

ABOUT = "say what a program sends and stores, and why"
EXAMPLES = """\
examples:
  shardlab explain train:example --devices 8
  shardlab explain step.hlo.txt --mesh data=4,model=2 --chip v6e
  shardlab explain train:example --devices 8 --pod v5e:2x4 --json
  shardlab explain train:example --devices 8 --try-remedies
  shardlab explain --compare origin/main HEAD train:example --devices 8

A function is called without arguments, and returns what to explain, (step, args) or (step, args, kwargs):

  def example():
      return step, (params, batch)

With --compare, the function is explained in two revisions of a git repository ("." means the files as they are). One
line is printed for each line of the source for which a device sends more in the second, or for what it holds, and then
the exit status is 1: a check for pull requests.

A file holds the text of a compiled program, as `jax.jit(step).lower(*args).compile().as_text()` returns it.
"""  # noqa: E501


def add_arguments(command):
    """Add the options of the command to its parser."""
    command.add_argument(
        "program", help="module:function, or a file with the text of a compiled program"
    )
    command.add_argument(
        "--mesh", help="the mesh whose axes name the groups, such as data=4,model=2"
    )
    command.add_argument(
        "--chip", default="v5p", help="the chip for which times are predicted (v5p)"
    )
    command.add_argument(
        "--pod", metavar="NAME", help="compile for these chips, such as v5e:4x4 (not with --mesh)"
    )
    command.add_argument(
        "--try-remedies",
        action="store_true",
        help="compile again with each remedy, and say what it gives (only of a function)",
    )
    command.add_argument(
        "--compare",
        nargs=2,
        metavar=("BASE", "HEAD"),
        help="compare two revisions, as git names them",
    )
    command.add_argument(
        "--limit",
        type=int,
        default=0,
        metavar="BYTES",
        help="with --compare, growth that is allowed (0)",
    )
    command.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="emulate N CPU devices before the module is imported",
    )


def run(options):
    """Run the command; returns the exit status."""
    from shardlab.machines import hardware

    try:
        hardware.chip(options.chip)
    except ValueError as error:
        raise Wrong(f"--chip: {error}") from None
    if options.mesh and options.pod:
        raise Wrong(
            "--mesh and --pod exclude each other; a pod's mesh has the axes of the arguments"
        )
    mesh = mesh_of(options.mesh) if options.mesh else None
    if options.try_remedies and options.compare:
        raise Wrong("--try-remedies and --compare exclude each other; try them on one revision")
    if options.compare:
        return compare.run(options)
    if options.devices is not None:
        from shardlab.arrays.devices import emulate

        try:
            emulate(options.devices)
        except ValueError:
            raise Wrong(
                f"--devices is {options.devices}; use a whole number from 1 to 4,096"
            ) from None
    if options.pod:
        from shardlab.pods.pod import Pod

        try:
            mesh = Pod(options.pod)
        except ValueError as error:
            raise Wrong(f"--pod: {error}") from None
    file = options.program
    is_file = os.path.isfile(file)  # of a name that is too long, too
    if is_file and options.try_remedies:
        raise Wrong(
            f"--try-remedies needs a function, such as train:example; {file} is the text of a "
            "program, which cannot be compiled with other specs"
        )
    if is_file:
        program, args, kwargs = _read(file), (), {}
    elif re.fullmatch(r"[\w.]+:\w+", options.program):
        program, args, kwargs = _made(options.program)
    else:
        raise Wrong(
            f"{options.program!r} is no file, and no function; give a file with the text of a "
            "compiled program, or module:function, such as train:example"
        )
    from shardlab.report.explain import explain

    with _told_as(f"{options.program} cannot be explained"):
        # what the program itself raises while it is traced and compiled, too
        report = explain(
            program,
            *args,
            mesh=mesh,
            chip=options.chip,
            try_remedies=options.try_remedies,
            **kwargs,
        )
    print(report.to_json() if options.json else report)
    return 0


def _read(file):
    try:
        text = Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Wrong(f"{file} cannot be read: {error}") from None
    if not re.search(r"^HloModule ", text, re.MULTILINE):
        raise Wrong(
            f"{file} holds no text of a compiled program, which begins with HloModule; write what "
            "jax.jit(step).lower(*args).compile().as_text() returns into it"
        )
    return text


def _made(name):
    """What module:function returns: the program, its arguments, and its keyword arguments."""
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, os.getcwd())  # as python -m does
    with _told_as(f"{name}: importing {module_name} failed"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = error.name
            if not missing or not f"{module_name}.".startswith(f"{missing}."):
                raise
            here = [path.stem for path in Path.cwd().glob("*.py")]
            raise Wrong(
                f"{name}: there is no module {missing!r} in this folder or "
                f"installed{nearest(missing, here)}; run this in the folder of the module, "
                "or set PYTHONPATH"
            ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [
            label
            for label, value in vars(module).items()
            if callable(value) and not label.startswith("_")
        ]
        raise Wrong(
            f"{name}: {module_name} has no function "
            f"{function_name!r}{nearest(function_name, known)}; write one that returns (step, "
            "args)"
        )
    with _told_as(f"{name}() failed"):
        outcome = function()
    if not (
        isinstance(outcome, tuple)
        and len(outcome) in (2, 3)
        and isinstance(outcome[1], tuple | list)
        and (len(outcome) == 2 or isinstance(outcome[2], dict))
    ):
        sort = (
            f"a tuple of {len(outcome)}" if isinstance(outcome, tuple) else type(outcome).__name__
        )
        raise Wrong(
            f"{name}() returned {sort}; return (step, args) or (step, args, kwargs), where "
            "args is a tuple and kwargs a dict"
        )
    return outcome[0], tuple(outcome[1]), outcome[2] if len(outcome) == 3 else {}


@contextmanager
def _told_as(what):
    """Tell in a line whatever code of others raises, but for Ctrl-C."""
    try:
        yield
    except (KeyboardInterrupt, Wrong):
        raise
    except BaseException as error:
        raise Wrong(f"{what}: {_told(error)}") from None


def _told(error):
    """An exception, with the last line outside of libraries that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_file()]
    own = [frame for frame in own if not re.search(r"/(site|dist)-packages/", frame.filename)]
    own = [
        frame
        for frame in own
        if not Path(frame.filename).resolve().is_relative_to(Path(__file__).resolve().parents[1])
    ]
    place = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}: " if own else ""
    try:
        reason = str(error).strip().split("\n\n")[0]
    except Exception:
        reason = "its text cannot be had"
    return f"{place}{type(error).__name__}: {reason}"
