#!/usr/bin/env python3
"""Compile the programs of chapters for TPUs and GPUs without having them, and record what the
compilers answer.

The recordings, src/shardlab/pods/recordings/CHAPTER.json, are what shardlab reads where there is no
compiler. Run this on Linux x86-64 after `pip install -e ".[pods]"` (for the chapter pods
".[pods,pods-gpu]"), with the versions that are to be recorded. It needs no accelerator and takes
seconds to minutes for each chapter.
"""

import argparse
import ast
import datetime
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bookbinder.read.statements import depended_on, makes_of, uses_of

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "src" / "shardlab" / "pods" / "recordings"
COMPILING = re.compile(r"\b(Pod|verify)\(")
VOLATILE = ("seconds", "source", "provenance")  # differ from one compile to the next


def main():
    """Record each chapter, or check its recording, in a process of its own, since each asks for its
    own devices.
    """
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "chapters", nargs="*", help="names of chapters (default: all that compile for pods)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="reuse what was recorded or compiled before"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the recordings instead of writing them"
    )
    longest = (
        "with --check: of programs that took longer, compare only the text and the versions "
        "(default: of none)"
    )
    parser.add_argument(
        "--longest", type=float, default=float("inf"), metavar="SECONDS", help=longest
    )
    wanted = parser.parse_args()
    from bookbinder.read.book import load

    book = load(ROOT)
    able = compiling(book)
    for name in wanted.chapters:
        if name not in able:
            parser.error(f"{name} compiles nothing for pods; these chapters do: {', '.join(able)}")
    if len(wanted.chapters) != 1:
        flags = [argument for argument in sys.argv[1:] if argument not in wanted.chapters]
        runs = [
            subprocess.run([sys.executable, __file__, name, *flags])
            for name in wanted.chapters or able
        ]
        sys.exit(max(run.returncode for run in runs))
    chapter = book.chapter(wanted.chapters[0])
    path = RECORDINGS / f"{chapter.name}.json"
    if wanted.check:
        check(chapter, path, wanted.keep, wanted.longest)
    else:
        record(chapter, path, wanted.keep)


def compiling(book):
    """The names of the chapters that compile for pods, and so have recordings."""
    return [
        c.name
        for c in book.chapters
        if c.runs and any(COMPILING.search(cell.source) for cell in c.cells)
    ]


def record(chapter, path, keep=False):
    """Write the recording of a chapter."""
    entries = {}

    def hear(entry):
        if entries.setdefault(entry["label"], entry)["key"] != entry["key"]:
            name = entry["program"]["name"]
            sys.exit(
                f"two programs of {chapter.path} are both called {name!r}, with similar "
                "arguments: rename one"
            )

    run(chapter, hear, *[RECORDINGS] * keep, keep=keep)
    about = {
        "what": (
            f"What compilers said of the programs of {chapter.path}; src/shardlab/pods/pod.py "
            "reads it."
        ),
        "command": f"python scripts/record_pods.py {chapter.name}",
        "date": str(datetime.date.today()),
        "machine": (
            f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, no TPU, no GPU"
        ),
        "versions": sorted(
            {
                text
                for e in entries.values()
                for text in list(e["program"]["provenance"].values())[:2]
            }
        ),
        "programs": sorted(
            entries.values(), key=lambda e: (e["program"]["name"], e["program"]["pod"], e["label"])
        ),
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(about, indent=1) + "\n")
    print(f"{path.name}: {len(entries)} programs, {path.stat().st_size:,} bytes", file=sys.stderr)


def check(chapter, path, keep=False, longest=float("inf")):
    """Exit at the first program that is not recorded as it is compiled now, or if a recorded one is
    not compiled.
    """
    from shardlab import Pod

    programs = json.loads(path.read_text())["programs"] if path.exists() else []
    # as for GPUs, without their compiler
    elsewhere = [e for e in programs if not Pod(e["program"]["pod"]).compiler]
    believed = [e for e in programs if e in elsewhere or e["program"]["seconds"] > longest]
    left = {e["label"] for e in programs if e not in elsewhere}

    def hear(entry):
        new = json.loads(json.dumps(entry))
        before = next((e for e in programs if e["label"] == new["label"]), None)
        if wrong := difference(new, before):
            what = f"{new['program']['name']} on {new['program']['pod']}"
            sys.exit(
                f"{path.name} is out of date: {what} {wrong}: record anew, "
                f"scripts/record_pods.py {chapter.name}"
            )
        left.discard(new["label"])

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, path.name).write_text(json.dumps({"programs": believed}))
        run(chapter, hear, Path(folder), keep, slice_of)
    if left:
        names = sorted(e["program"]["name"] for e in programs if e["label"] in left)
        sys.exit(
            f"{path.name} is out of date: {', '.join(names)}: recorded, but no longer compiled"
        )


def difference(new, before):
    """How a program that was compiled differs from its recording, in words; "" if it does not."""
    if not before:
        return "is not recorded"
    told, recorded = new["program"], before["program"]
    for what in ("compiler", "jax"):
        if told["provenance"][what] != recorded["provenance"][what]:
            return (
                f"was recorded with {recorded['provenance'][what]}, and here is "
                f"{told['provenance'][what]}"
            )
    fields = [name for name in told if name not in VOLATILE and told[name] != recorded[name]]
    fields += ["the program's text"] if new["key"] != before["key"] else []
    return f"differs in {', '.join(fields)}" if fields else ""


def run(
    chapter,
    hear,
    recordings=ROOT / "no recording is read while one is made",
    keep=False,
    choose=list,
):
    """Run a chapter's statements, and give `hear` each program that is compiled for a pod.

    Args:
      chapter: the `bookbinder.read.book.Chapter`.
      hear: gets a program's entry in a recording.
      recordings: a folder; what is recorded there is not compiled.
      keep: also reuse what this machine has compiled before; what it has no compiler for comes from
        recordings.
      choose: which of the statements to run, such as `slice_of`; by default all.
    """
    os.environ["MPLBACKEND"] = "agg"
    from IPython.core.inputtransformer2 import TransformerManager
    from IPython.core.interactiveshell import InteractiveShell

    from shardlab.pods import pod as pods

    shell = InteractiveShell.instance()

    def compiled(label, key, program):
        print(
            f"{program.name} on {program.pod}: fits={program.fits}, {program.seconds:.0f} s",
            file=sys.stderr,
        )
        program = replace(program, source="compiled")
        hear({"label": label, "key": key, "program": program.to_json()})

    pods.listener, pods.RECORDINGS = compiled, recordings
    compile_one = pods.Pod.compile
    if not keep:
        pods.Pod.compile = lambda self, *args, **how: compile_one(
            self, *args, **how | {"cache": False}
        )
    # for magics, such as %%processes
    names, statements = {"__name__": "__main__", "get_ipython": lambda: shell}, []
    for cell in chapter.cells:
        tree = ast.parse(TransformerManager().transform_cell(cell.source))
        statements += [(f"{chapter.path}:{cell.line}", statement) for statement in tree.body]
    chosen = choose([statement for _, statement in statements])
    for place, statement in statements:
        if statement in chosen:
            exec(compile(ast.Module([statement], []), place, "exec"), names)


def slice_of(statements):
    """The statements that name a pod, or a function that does, and those on which they depend.

    A check that runs only these takes a fraction of the time, and misses nothing for that: if
    something on which a program depends were left out, the program would not be compiled, or its
    text would not be the recorded one.
    """
    words, known = {"Pod", "emulate"}, None
    while known != words:  # once more, because a function may name a pod that is made after it
        known, roots = set(words), []
        for statement in statements:
            uses, makes = uses_of(statement), makes_of(statement)
            is_function = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
            if isinstance(statement, ast.ImportFrom):
                words |= {name for name in makes if _compiles(statement.module, name)}
            elif uses & words and is_function:
                words |= makes
            elif uses & words:
                roots.append(statement)
                words |= {name for part in ast.walk(statement) for name in _pods(part, words)}
    return depended_on(statements, roots)


def _pods(part, words):
    """The names that get a pod, or a function that names one, if a part of a statement is such an
    assignment.
    """
    if isinstance(part, ast.Assign):
        for value in ast.walk(part.value):
            is_pod = (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Name)
                and value.func.id == "Pod"
            )
            if is_pod or (isinstance(value, ast.Lambda) and uses_of(ast.Expr(value)) & words):
                return [
                    name.id
                    for target in part.targets
                    for name in ast.walk(target)
                    if isinstance(name, ast.Name)
                ]
    return []


def _compiles(module, name):
    """Whether a function of shardlab compiles for pods."""
    if not module.startswith("shardlab"):
        return False
    code = getattr(getattr(importlib.import_module(module), name, None), "__code__", None)
    return code is not None and "Pod" in code.co_names


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
