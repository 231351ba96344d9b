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
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VOLATILE = ("seconds", "source", "made")  # differ from one compile to the next


def main():
    """Record each chapter, or check its recording, in a process of its own, since each asks for its own devices."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("chapters", nargs="*", help="names of chapters (default: all that compile for pods)")
    parser.add_argument("--keep", action="store_true", help="reuse what this machine has compiled before")
    parser.add_argument("--check", action="store_true", help="compare with the recordings instead of writing them")
    wanted = parser.parse_args()
    from bookbinder.book import load

    book = load(ROOT)
    able = [c.name for c in book.chapters if c.runs and any("Pod(" in cell.source for cell in c.cells)]
    for name in wanted.chapters:
        if name not in able:
            parser.error(f"{name} compiles nothing for pods; these chapters do: {', '.join(able)}")
    if len(wanted.chapters) != 1:
        flags = [f"--{flag}" for flag in ("keep", "check") if getattr(wanted, flag)]
        runs = [subprocess.run([sys.executable, __file__, name, *flags]) for name in wanted.chapters or able]
        sys.exit(max(run.returncode for run in runs))
    chapter = book.chapter(wanted.chapters[0])
    path = ROOT / "src" / "shardlab" / "recordings" / f"{chapter.name}.json"
    if wanted.check:
        recorded = {entry["label"]: entry for entry in json.loads(path.read_text())["programs"]}
        sys.exit(differences(path, recorded, compiled(chapter, wanted.keep, until=recorded.keys())))
    entries = compiled(chapter, wanted.keep)
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


def compiled(chapter, keep=False, until=None):
    """Run a chapter's cells, until it has compiled what is asked for, and return its programs for pods by label."""
    os.environ["MPLBACKEND"] = "agg"
    from IPython.core.inputtransformer2 import TransformerManager
    from IPython.core.interactiveshell import InteractiveShell

    from shardlab import pods

    shell = InteractiveShell.instance()
    entries = {}

    def hear(label, key, program):
        if label in entries and entries[label]["key"] != key:
            sys.exit(
                f"two programs of {chapter.path} are both called {program.name!r}, with similar arguments: rename one"
            )
        program = replace(program, source="compiled")
        entries[label] = {"label": label, "key": key, "program": asdict(program)}
        print(f"{program.name} on {program.pod}: fits={program.fits}, {program.seconds:.0f} s", file=sys.stderr)

    pods._listener = hear
    pods.RECORDINGS = ROOT / "no recording is read while one is made"
    compile_one = pods.Pod.compile
    if not keep:
        pods.Pod.compile = lambda self, *args, **how: compile_one(self, *args, **{"fresh": True} | how)
    names = {"__name__": "__main__", "get_ipython": lambda: shell}  # for magics, such as %%processes
    for cell in chapter.cells:
        source = TransformerManager().transform_cell(cell.source)
        exec(compile(source, f"{chapter.path}:{cell.line}", "exec"), names)
        if until is not None and entries.keys() >= until:
            break
    return entries


def differences(path, recorded, entries):
    """What differs between a recording and what was compiled now, in words; None if nothing does."""
    wrong = [f"{e['program']['name']} on {e['program']['pod']} is not recorded" for e in without(entries, recorded)]
    wrong += [f"{e['program']['name']} on {e['program']['pod']} is recorded only" for e in without(recorded, entries)]
    for label in entries.keys() & recorded.keys():
        new, before = json.loads(json.dumps(entries[label])), recorded[label]
        told = [entry["program"] | dict.fromkeys(VOLATILE) for entry in (new, before)]
        if told[0] != told[1] or new["key"] != before["key"]:
            fields = [name for name in told[0] if told[0][name] != told[1][name]] or ["the program's text"]
            wrong.append(f"{new['program']['name']} on {new['program']['pod']} differs in {', '.join(fields)}")
    return "\n".join([f"{path.name} is out of date: record anew, scripts/record_pods.py", *wrong]) if wrong else None


def without(entries, others):
    """The entries that the others lack."""
    return [entries[label] for label in entries.keys() - others.keys()]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
