#!/usr/bin/env python3
"""Compile the programs of a chapter for TPUs and GPUs that are not there, and record what the compilers said.

The recording, src/shardlab/recordings/pods.json, is what shardlab.pods reads where there is no compiler. Run this where
`pip install "shardlab[pods,pods-gpu]"` was done, on Linux x86-64, with the versions that are to be recorded; it takes
some minutes, and needs no accelerator.
"""

import argparse
import datetime
import json
import os
import platform
import sys
from dataclasses import asdict, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main():
    """Run the chapter's cells, and keep every program that they compile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("chapter", nargs="?", default="pods", help="its name; pods by default")
    parser.add_argument("--keep", action="store_true", help="use what this machine compiled before")
    wanted = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    os.environ["MPLBACKEND"] = "agg"
    from bookbinder.book import load
    from shardlab import pods

    installed = {False: pods._tpu_compiler(), True: pods._gpu_compiler()}
    missing = [pods._remedy(is_gpu) for is_gpu, compiler in installed.items() if not compiler]
    if missing:
        sys.exit("\n".join(missing))
    chapter = load(ROOT).chapter(wanted.chapter)
    entries = {}

    def keep(label, key, program):
        program = replace(program, source="compiled")
        entries[label] = {"label": label, "key": key, "program": asdict(program)}
        print(f"{program.name} on {program.pod}: fits={program.fits}, {program.seconds:.0f} s", file=sys.stderr)

    pods._listener = keep
    pods.RECORDING = ROOT / "no recording is read while one is made"
    compile_one = pods.Pod.compile
    if not wanted.keep:
        pods.Pod.compile = lambda self, *args, **how: compile_one(self, *args, **{"fresh": True} | how)
    names = {"__name__": "__main__"}
    for cell in chapter.cells:
        exec(compile(cell.source, f"{chapter.path}:{cell.line}", "exec"), names)
    about = {
        "what": f"What compilers said of the programs of {chapter.path}; src/shardlab/pods.py reads it.",
        "command": "python scripts/record_pods.py",
        "date": str(datetime.date.today()),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, no TPU, no GPU",
        "versions": sorted({text for e in entries.values() for text in list(e["program"]["made"].values())[:2]}),
        "programs": sorted(entries.values(), key=lambda e: (e["program"]["name"], e["program"]["pod"], e["label"])),
    }
    path = ROOT / "src" / "shardlab" / "recordings" / "pods.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(about, indent=1) + "\n")
    print(f"{path.name}: {len(entries)} programs, {path.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
