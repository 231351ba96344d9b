"""The command line of shardlab: describe a layout, plan a training run, or explain a program, as text or JSON."""

import argparse
import importlib
import json
import math
import os
import re
import sys
import traceback
from pathlib import Path

from shardlab import __version__
from shardlab._arguments import nearest

_SHOWN = 16  # devices that the text lists
_SHORT = {"f": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint", "c": "complex"}

_LAYOUT = """\
examples:
  shardlab layout "float32[8,16]" --mesh x=2,y=4 --spec x,y
  shardlab layout "bf16[8192,28672]" --mesh data=4,fsdp=8,tensor=8 --spec "(data,fsdp),tensor"
  shardlab layout "f32[8,16]" --mesh x=2,y=4 --spec "None,y" --json

A spec names for each dimension the mesh axis over which it is sharded: several in parentheses, None (or -) for none.
Dimensions at the end may be left out. No devices are needed.
"""
_PLAN = """\
examples:
  shardlab plan llama-3-70b v5p 512
  shardlab plan llama-3-8b h100 256 --batch-tokens 4M --sequence 8192 --json
  shardlab plan llama-3-70b h100 8 --serve --context 8k --latency 30

Times and bytes are predicted by formula; --verify 3 compares the bytes of the best three with the chips' own compiler,
which needs no chips but takes minutes. A model of your own: give the path of its config.json, or its sizes.
"""
_EXPLAIN = """\
examples:
  shardlab explain train:example --devices 8
  shardlab explain step.hlo.txt --mesh data=4,model=2 --chip v6e
  shardlab explain train:example --devices 8 --pod v5e:2x4 --json

A function is called without arguments, and returns what to explain, (step, args) or (step, args, kwargs):

  def example():
      return step, (params, batch)

A file holds the text of a compiled program, as `jax.jit(step).lower(*args).compile().as_text()` returns it.
"""


class _Parser(argparse.ArgumentParser):
    """Errors take one line."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
      arguments: as on the command line, without the program's name; by default those of this process.

    Returns:
      The exit status: 0; or 1, if no mesh of a plan fits. Wrong arguments exit with 2, after one line on stderr.
    """
    parser = _Parser(prog="shardlab", description=__doc__.replace("\n", " "))
    parser.add_argument("--version", action="version", version=f"shardlab {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, run, about, examples in (
        ("layout", _layout, "describe which device stores which slice of an array", _LAYOUT),
        ("plan", _plan, "list the meshes on which a model fits, by predicted step time", _PLAN),
        ("explain", _explain, "say what a program sends and stores, and why", _EXPLAIN),
    ):
        command = commands.add_parser(
            name, help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.add_argument("--json", action="store_true", help="print JSON instead of text")
        command.set_defaults(run=run, parser=command)
        _ARGUMENTS[name](command)
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands.choices:
        known = commands.choices
        parser.error(f"no command is called {arguments[0]!r}; use {', '.join(known)}{nearest(arguments[0], known)}")
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return options.run(options)
    except _Wrong as wrong:
        options.parser.error(" ".join(str(wrong).split()))


class _Wrong(ValueError):
    """An argument has a wrong value; the message says which."""


# --- layout -----------------------------------------------------------------------------------------------------


def _layout_arguments(command):
    command.add_argument("type", help='the array, such as "float32[8,16]" or "bf16[8,16]"')
    command.add_argument("--mesh", required=True, help="the axes of the mesh with their sizes, such as x=2,y=4")
    command.add_argument("--spec", default="", help="the mesh axes of each dimension, such as x,y (default: none)")
    command.add_argument("--uneven", action="store_true", help="shards may differ in size, as in compiled programs")


def _layout(options):
    from jax.sharding import NamedSharding, PartitionSpec

    from shardlab._tables import aligned
    from shardlab.layout import counted, describe, index_text

    dtype, shape = _array_type(options.type)
    mesh = _mesh(options.mesh)
    spec = _spec(options.spec, tuple(mesh.shape))
    try:
        sharding = NamedSharding(mesh, PartitionSpec(*(axes or None for axes in spec)))
        layout = describe(sharding, shape, dtype, uneven=options.uneven)
    except ValueError as error:
        raise _Wrong(f"--spec {options.spec}: {error}") from None
    held = layout.bytes_per_device
    if options.json:
        told = {
            "type": layout.type, "shape": layout.shape, "dtype": layout.dtype, "mesh": dict(layout.mesh.axes),
            "spec": layout.spec, "shard_shape": layout.shard_shape, "distinct_shards": layout.distinct_shards,
            "replicas": layout.replicas, "bytes": layout.nbytes, "bytes_per_device": max(held.values()),
            "total_bytes": layout.total_bytes,
            "shards": [
                {"device": s.device, "index": s.index, "replica": s.replica, "bytes": held[s.device]}
                for s in layout.shards
            ],
        }  # fmt: skip
        print(json.dumps(told))
        return 0
    print(layout)
    print(f"all devices together: {counted(layout.total_bytes, 'byte')}, for an array of {layout.nbytes:,}\n")
    rows = [
        (str(s.device), index_text(s.index), f"{s.replica + 1} of {layout.replicas}", f"{held[s.device]:,}")
        for s in layout.shards[:_SHOWN]
    ]
    print(aligned([("device", "slice", "replica", "bytes"), *rows]))
    if len(layout.shards) > _SHOWN:
        print(f"... and {len(layout.shards) - _SHOWN:,} more; --json lists all")
    return 0


def _array_type(text):
    """("float32", (8, 16)) for "float32[8,16]" or "f32[8,16]"."""
    import jax.numpy as jnp

    match = re.fullmatch(r"\s*(\w+)\s*\[([\d,\s]*)\]\s*", text)
    sizes = [size.strip() for size in match[2].split(",")] if match and match[2].strip() else []
    if not match or not all(size.isdigit() for size in sizes):
        raise _Wrong(f"{text!r} is no type of an array; write its element type and its sizes, such as float32[8,16]")
    short = re.fullmatch(r"(bf|f|i|s|u|c)(\d\w*)", match[1])
    name = {"pred": "bool"}.get(match[1]) or (_SHORT[short[1]] + short[2] if short else match[1])
    try:
        return jnp.dtype(name).name, tuple(map(int, sizes))
    except TypeError:
        known = ["bool", "bfloat16", "complex64", "complex128"]
        known += [f"float{bits}" for bits in (16, 32, 64)] + [
            f"{kind}{bits}" for kind in ("int", "uint") for bits in (4, 8, 16, 32, 64)
        ]
        hint = nearest(name, known) or "; use one such as float32"
        raise _Wrong(f"no element type is called {match[1]!r}{hint}") from None


def _mesh(text):
    """A mesh without devices from "x=2,y=4"."""
    from jax.sharding import AbstractMesh

    pairs = [pair.partition("=") for pair in text.split(",")]
    sizes = {name.strip(): size.strip() for name, _, size in pairs}
    for name, size in sizes.items():
        if not name.isidentifier() or not size.isdigit() or int(size) < 1:
            raise _Wrong(
                f"--mesh {text}: {f'{name}={size}' if size else repr(name)} is no mesh axis; write each with a size of "
                "at least 1, such as x=2,y=4"
            )
    if len(sizes) < len(pairs):
        twice = next(name for name in sizes if [pair[0].strip() for pair in pairs].count(name) > 1)
        raise _Wrong(f"--mesh {text}: axis {twice!r} is named twice; give each axis its own name")
    if math.prod(map(int, sizes.values())) > 2**20:
        raise _Wrong(f"--mesh {text}: more than {2**20:,} devices; use a smaller mesh")
    return AbstractMesh(tuple(map(int, sizes.values())), tuple(sizes))


def _spec(text, axes):
    """(("x",), (), ("y", "z")) from "x,None,(y,z)"; also from what Python prints, P("x", None, ("y", "z"))."""
    text = re.sub(r"""["'\s]""", "", text)
    text = re.sub(r"^(?:P|PartitionSpec)\((.*)\)$", r"\1", text)
    if re.search(r"[()]", re.sub(r"\([^()]*\)", "", text)):
        raise _Wrong(f"--spec {text}: a parenthesis is not closed; write several axes of a dimension as (x,y)")
    entries = re.split(r",(?![^()]*\))", text) if text else []
    spec = []
    for entry in entries:
        names = [name for name in entry.strip("()").split(",") if name not in ("", "-", "None")]
        for name in names:
            if name not in axes:
                hint = nearest(name, axes)
                raise _Wrong(f"--spec {text}: the mesh has no axis {name!r}{hint}; it has {', '.join(axes)}")
        spec.append(tuple(names))
    used = [name for names in spec for name in names]
    for name in axes:
        if used.count(name) > 1:
            raise _Wrong(
                f"--spec {text}: axis {name!r} is used {used.count(name)} times; use an axis for one dimension"
            )
    return spec


# --- plan -------------------------------------------------------------------------------------------------------


def _plan_arguments(command):
    from shardlab.plan import add_arguments

    add_arguments(command)


def _plan(options):
    from shardlab.plan import run

    try:
        return run(options)
    except ValueError as error:
        raise _Wrong(str(error)) from None


# --- explain ----------------------------------------------------------------------------------------------------


def _explain_arguments(command):
    command.add_argument("program", help="module:function, or a file with the text of a compiled program")
    command.add_argument("--mesh", help="the mesh whose axes name the groups, such as data=4,model=2")
    command.add_argument("--chip", default="v5p", help="the chip for which times are predicted (v5p)")
    command.add_argument("--pod", metavar="NAME", help="compile for these chips, such as v5e:4x4 (not with --mesh)")
    command.add_argument("--devices", type=int, metavar="N", help="emulate N CPU devices before the module is imported")


def _explain(options):
    from shardlab import hardware

    try:
        hardware.chip(options.chip)
    except ValueError as error:
        raise _Wrong(f"--chip: {error}") from None
    if options.mesh and options.pod:
        raise _Wrong("--mesh and --pod exclude each other; a pod's mesh has the axes of the arguments")
    mesh = _mesh(options.mesh) if options.mesh else None
    if options.devices is not None:
        from shardlab.devices import emulate

        try:
            emulate(options.devices)
        except ValueError:
            raise _Wrong(f"--devices is {options.devices}; use a whole number of at least 1") from None
    if options.pod:
        from shardlab.pods import Pod

        try:
            mesh = Pod(options.pod)
        except ValueError as error:
            raise _Wrong(f"--pod: {error}") from None
    file = Path(options.program)
    if file.is_file():
        program, args, kwargs = _read(file), (), {}
    elif re.fullmatch(r"[\w.]+:\w+", options.program):
        program, args, kwargs = _made(options.program)
    else:
        raise _Wrong(
            f"{options.program!r} is no file, and no function; give a file with the text of a compiled program, or "
            "module:function, such as train:example"
        )
    from shardlab.explanation import explain

    try:
        report = explain(program, *args, mesh=mesh, chip=options.chip, **kwargs)
    except Exception as error:  # what the program itself raises while it is traced and compiled, too
        raise _Wrong(f"{options.program} cannot be explained: {_told(error)}") from None
    print(report.to_json() if options.json else report)
    return 0


def _read(file):
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _Wrong(f"{file} cannot be read: {error}") from None
    if not re.search(r"^HloModule ", text, re.MULTILINE):
        raise _Wrong(
            f"{file} holds no text of a compiled program, which begins with HloModule; write what "
            "jax.jit(step).lower(*args).compile().as_text() returns into it"
        )
    return text


def _made(name):
    """What module:function returns: the program, its arguments, and its keyword arguments."""
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, os.getcwd())  # as python -m does
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            here = [path.stem for path in Path.cwd().glob("*.py")]
            raise _Wrong(
                f"{name}: there is no module {error.name!r} in this folder or installed{nearest(error.name, here)}; "
                "run this in the folder of the module, or set PYTHONPATH"
            ) from None
        raise _Wrong(f"{name}: importing {module_name} failed: {_told(error)}") from None
    except Exception as error:
        raise _Wrong(f"{name}: importing {module_name} failed: {_told(error)}") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
        raise _Wrong(
            f"{name}: {module_name} has no function {function_name!r}{nearest(function_name, known)}; write one that "
            "returns (step, args)"
        )
    try:
        made = function()
    except Exception as error:
        raise _Wrong(f"{name}() failed: {_told(error)}") from None
    if not (
        isinstance(made, tuple)
        and len(made) in (2, 3)
        and isinstance(made[1], tuple | list)
        and (len(made) == 2 or isinstance(made[2], dict))
    ):
        sort = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise _Wrong(
            f"{name}() returned {sort}; return (step, args) or (step, args, kwargs), where args is a tuple "
            "and kwargs a dict"
        )
    return made[0], tuple(made[1]), made[2] if len(made) == 3 else {}


def _told(error):
    """An exception, with the last line outside of libraries that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_file()]
    own = [frame for frame in own if not re.search(r"/(site|dist)-packages/", frame.filename)]
    own = [frame for frame in own if Path(frame.filename).resolve().parent != Path(__file__).resolve().parent]
    place = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}: " if own else ""
    said = str(error).strip().split("\n\n")[0]
    return f"{place}{type(error).__name__}: {said}"


_ARGUMENTS = {"layout": _layout_arguments, "plan": _plan_arguments, "explain": _explain_arguments}

if __name__ == "__main__":
    sys.exit(main())
