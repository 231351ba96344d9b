#!/usr/bin/env python3
"""Compile the programs of chapters for TPUs and GPUs without having them, and record what the compilers answer.

The recordings, src/shardlab/recordings/CHAPTER.json, are what shardlab.pods reads where there is no compiler. Run this
on Linux x86-64 after `pip install "shardlab[pods]"` (for the chapter pods "shardlab[pods,pods-gpu]"), with the versions
that are to be recorded. It needs no accelerator and takes seconds to minutes for each chapter.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "src" / "shardlab" / "recordings"
VOLATILE = ("seconds", "source", "made")  # differ from one compile to the next


def main():
    """Record each chapter, or check its recording, in a process of its own, since each asks for its own devices."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("chapters", nargs="*", help="names of chapters (default: all that compile for pods)")
    parser.add_argument("--keep", action="store_true", help="reuse what this machine has compiled before")
    parser.add_argument("--check", action="store_true", help="compare with the recordings instead of writing them")
    longest = "with --check: of programs that took longer, compare only the text and the versions (default: of none)"
    parser.add_argument("--longest", type=float, default=float("inf"), metavar="SECONDS", help=longest)
    wanted = parser.parse_args()
    from bookbinder.book import load

    book = load(ROOT)
    able = compiling(book)
    for name in wanted.chapters:
        if name not in able:
            parser.error(f"{name} compiles nothing for pods; these chapters do: {', '.join(able)}")
    if len(wanted.chapters) != 1:
        flags = [argument for argument in sys.argv[1:] if argument not in wanted.chapters]
        runs = [subprocess.run([sys.executable, __file__, name, *flags]) for name in wanted.chapters or able]
        sys.exit(max(run.returncode for run in runs))
    chapter = book.chapter(wanted.chapters[0])
    path = RECORDINGS / f"{chapter.name}.json"
    if wanted.check:
        check(chapter, path, wanted.keep, wanted.longest)
    else:
        record(chapter, path, wanted.keep)


def compiling(book):
    """The names of the chapters that compile for pods, and so have recordings."""
    return [c.name for c in book.chapters if c.runs and any("Pod(" in cell.source for cell in c.cells)]


def record(chapter, path, keep=False):
    """Write the recording of a chapter."""
    entries = {}

    def hear(entry):
        if entries.setdefault(entry["label"], entry)["key"] != entry["key"]:
            name = entry["program"]["name"]
            sys.exit(f"two programs of {chapter.path} are both called {name!r}, with similar arguments: rename one")

    run(chapter, hear, keep=keep)
    about = {
        "what": f"What compilers said of the programs of {chapter.path}; src/shardlab/pods.py reads it.",
        "command": f"python scripts/record_pods.py {chapter.name}",
        "date": str(datetime.date.today()),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, no TPU, no GPU",
        "versions": sorted({text for e in entries.values() for text in list(e["program"]["made"].values())[:2]}),
        "programs": sorted(entries.values(), key=lambda e: (e["program"]["name"], e["program"]["pod"], e["label"])),
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(about, indent=1) + "\n")
    print(f"{path.name}: {len(entries)} programs, {path.stat().st_size:,} bytes", file=sys.stderr)


def check(chapter, path, keep=False, longest=float("inf")):
    """Exit at the first program that is not recorded as it is compiled now, or if a recorded one is not compiled."""
    from shardlab.pods import Pod

    programs = json.loads(path.read_text())["programs"] if path.exists() else []
    elsewhere = [e for e in programs if not Pod(e["program"]["pod"]).compiler]  # as for GPUs, without their compiler
    believed = [e for e in programs if e in elsewhere or e["program"]["seconds"] > longest]
    left = {e["label"] for e in programs if e not in elsewhere}

    def hear(entry):
        new = json.loads(json.dumps(entry))
        before = next((e for e in programs if e["label"] == new["label"]), None)
        if wrong := difference(new, before):
            what = f"{new['program']['name']} on {new['program']['pod']}"
            sys.exit(f"{path.name} is out of date: {what} {wrong}: record anew, scripts/record_pods.py {chapter.name}")
        left.discard(new["label"])
        return not left

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, path.name).write_text(json.dumps({"programs": believed}))
        run(chapter, hear, Path(folder), keep)
    if left:
        names = sorted(e["program"]["name"] for e in programs if e["label"] in left)
        sys.exit(f"{path.name} is out of date: {', '.join(names)}: recorded, but no longer compiled")


def difference(new, before):
    """How a program that was compiled differs from its recording, in words; "" if it does not."""
    if not before:
        return "is not recorded"
    told, recorded = new["program"], before["program"]
    for what in ("compiler", "jax"):
        if told["made"][what] != recorded["made"][what]:
            return f"was recorded with {recorded['made'][what]}, and here is {told['made'][what]}"
    fields = [name for name in told if name not in VOLATILE and told[name] != recorded[name]]
    fields += ["the program's text"] if new["key"] != before["key"] else []
    return f"differs in {', '.join(fields)}" if fields else ""


def run(chapter, hear, recordings=ROOT / "no recording is read while one is made", keep=False):
    """Run a chapter's cells, and give `hear` each program that is compiled for a pod.

    Args:
      chapter: the `bookbinder.book.Chapter`.
      hear: gets a program's entry in a recording, and returns whether all that are expected have been there. Cells
        that follow run then only up to the last one that names a pod, or a function that does.
      recordings: a folder; what is recorded there is not compiled.
      keep: also reuse what this machine has compiled before.
    """
    os.environ["MPLBACKEND"] = "agg"
    from IPython.core.inputtransformer2 import TransformerManager
    from IPython.core.interactiveshell import InteractiveShell

    from shardlab import pods

    shell, complete = InteractiveShell.instance(), False

    def compiled(label, key, program):
        nonlocal complete
        print(f"{program.name} on {program.pod}: fits={program.fits}, {program.seconds:.0f} s", file=sys.stderr)
        program = replace(program, source="compiled")
        complete = hear({"label": label, "key": key, "program": asdict(program)})

    pods.listener, pods.RECORDINGS = compiled, recordings
    compile_one = pods.Pod.compile
    if not keep:
        pods.Pod.compile = lambda self, *args, **how: compile_one(self, *args, **how | {"cache": False})
    names = {"__name__": "__main__", "get_ipython": lambda: shell}  # for magics, such as %%processes
    for at, cell in enumerate(chapter.cells):
        source = TransformerManager().transform_cell(cell.source)
        exec(compile(source, f"{chapter.path}:{cell.line}", "exec"), names)
        words = {"Pod", *(name for name, value in names.items() if isinstance(value, pods.Pod))}
        code = {name: value.__code__ for name, value in names.items() if hasattr(value, "__code__")}
        words |= {name for name, read in code.items() if words & set(read.co_names)}
        later = "\n".join(after.source for after in chapter.cells[at + 1 :])
        if complete and not words & set(re.findall(r"\w+", later)):
            break


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
