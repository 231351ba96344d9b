"""XLA's own parser of compiled programs, against which ours is compared: names, kinds, types,
operands and calls.

The parser is a private part of jaxlib, so only tests use it. `python oracle.py SCRIPT ARGUMENTS...`
runs a script and compares every program whose text the script asks for.
"""

import re
import runpy
import sys
from dataclasses import dataclass

import jax

try:
    from jaxlib import _hlo as xla
except ImportError:  # an older jaxlib
    from jaxlib.xla_client import _xla as xla

from shardlab.programs import hlo


@dataclass(frozen=True)
class Instruction:
    """What both parsers must say of an instruction."""

    kind: str
    types: tuple[str, ...]  # of its result: several, if that is a tuple
    operands: tuple[str, ...]  # their names
    calls: frozenset[str]  # names of computations
    root: bool


def theirs(text):
    """{computation: {instruction: `Instruction`}} as XLA reads a program, and the name of the
    entry.
    """
    # It aborts the process at the schedule of a program for TPUs; the order of the lines says the
    # same.
    module = xla.hlo_module_from_text(text.replace(", is_scheduled=true", ""))
    # Printed again with little but names, types, kinds, operands and calls, a program can be read
    # line by line.
    plain = xla.HloPrintOptions.short_parsable()
    for unneeded in (
        "print_metadata",
        "print_backend_config",
        "print_program_shape",
        "include_layout_in_shapes",
    ):
        setattr(plain, unneeded, False)
    plain.print_result_shape, plain.print_operand_shape = True, False
    found, entry = {}, None
    for line in module.to_string(plain).splitlines():
        if head := re.fullmatch(r"(ENTRY )?(\S+) \{", line):
            entry, computation = head[2] if head[1] else entry, head[2]
            found[computation] = {}
        elif made := re.fullmatch(
            r"  (ROOT )?(\S+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)((?:, .*)?)", line
        ):
            root, name, types, kind, inside, attributes = made.groups(default="")
            operands = (
                () if kind in ("parameter", "constant") else tuple(filter(None, inside.split(", ")))
            )
            calls = re.findall(
                r", (?:body|condition|to_apply|calls|\w+_computation)=(\S+?)(?=,|$)", attributes
            )
            several = re.search(
                r", (?:branch_computations|called_computations)=\{(.*?)\}", attributes
            )
            calls += several[1].split(", ") if several else []
            types = tuple(re.findall(r"\w+\[.*?\]", types))
            found[computation][name] = Instruction(
                kind, types, operands, frozenset(calls), bool(root)
            )
    return found, entry


def ours(text):
    """The same, as shardlab reads it. XLA gives a name to each element of a tuple that dumped text
    writes as %x#1.
    """
    program = hlo.Program(text)
    found = {}
    for computation in program:
        found[computation.name] = {}
        names = list(computation.lines)
        for name in names:
            made = computation[name]
            operands = () if made.kind in ("parameter", "constant") else made.names
            names += [one for one in operands if "#" in one and one not in names]
            operands = tuple(one.replace("#", "_") for one in operands)
            calls = frozenset(callee.name for callee, _, _ in made.calls())
            types, is_root = hlo.array_types(made.result), made.name == computation.root
            one = Instruction(made.kind, types, operands, calls, is_root)
            found[computation.name][made.name.replace("#", "_")] = one
    return found, program.entry.name


def differences(text):
    """What the two readings of a program differ in, a line each."""
    (here, entry), (there, their_entry) = ours(text), theirs(text)
    found = [] if entry == their_entry else [f"the entry: {entry}, XLA says {their_entry}"]
    for computation in here.keys() | there.keys():
        mine, other = here.get(computation, {}), there.get(computation, {})
        for name in mine.keys() | other.keys():
            if mine.get(name) != other.get(name):
                found.append(f"{computation}: {name}: {mine.get(name)}, XLA says {other.get(name)}")
    return found


def watch():
    """From now on compare every program of this process whose text is asked for."""
    as_text = jax.stages.Compiled.as_text

    def compared(self):
        text = as_text(self)
        found = differences(text)
        assert not found, "\n".join(["our reader of programs differs from XLA's:", *found])
        return text

    jax.stages.Compiled.as_text = compared


if __name__ == "__main__":
    watch()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
