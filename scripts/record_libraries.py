#!/usr/bin/env python3
"""Run small programs of libraries on Auto and on Explicit mesh axes, and record what becomes of
each: book/recordings/libraries.txt, which the page `status` shows.

    make libraries                        # recorded anew
    make libraries ARGS="--check --newest" # compared: exits with 1 if a result has got worse
    make libraries ARGS="--only Optax"     # shown, not recorded

Libraries that requirements.txt locks run in this environment, unless --newest is given. The others
are installed in environments that are thrown away, each in its newest release.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from library_cases import CASES, MODES

from bookbinder.progress import Progress
from bookbinder.run.environments import Environment, EnvironmentFault, make

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "book" / "recordings" / "libraries.txt"
PROGRAMS = Path(__file__).with_name("library_cases.py")
PYTHONS = ("3.13", "3.12", "3.11")
SECONDS = 900  # for the programs of an environment
HEAD = ("library", "version", "JAX", "program", *MODES)
# What a cell says, best first.
CELLS = ("equal", "differs", "error", "not run")


def locked(case):
    """Whether a case needs nothing but what the lock has."""
    try:
        version(case.package)
    except PackageNotFoundError:
        return False
    return not case.needs


def plan(libraries, newest):
    """What runs in which environment.

    Args:
      libraries: names of libraries.
      newest: whether to run nothing in this environment.

    Returns:
      For each environment what to install, () for this one, and the cases: `Haliax:1` is the
      second of Haliax.
    """
    planned = {}
    for library in libraries:
        for place, case in enumerate(CASES[library]):
            here = locked(case) and not newest
            needs = () if here else (case.package, *case.needs)
            planned.setdefault(needs, []).append(f"{library}:{place}")
    return planned


def case_of(name):
    """The case called `Haliax:1`, with its library."""
    library, _, place = name.partition(":")
    return library, CASES[library][int(place)]


def ran(python, names):
    """What became of cases with an interpreter: a row for each."""
    command = [python, "-W", "ignore", PROGRAMS, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        lines, said = done.stdout.splitlines(), done.stderr.strip() or f"exit {done.returncode}"
    except subprocess.TimeoutExpired as late:
        lines, said = (late.stdout or b"").decode().splitlines(), f"no result in {SECONDS} s"
    rows = [json.loads(line) for line in lines if line.startswith('{"library"')]
    return rows + [missing(name, said.splitlines()[-1]) for name in names[len(rows) :]]


def missing(name, why):
    """The row of a case that could not be run."""
    library, case = case_of(name)
    said = dict.fromkeys(MODES, f"not run: {why}")
    return {"library": library, "does": case.does, "version": "", "jax": "", **said}


def installed(needs, names, progress):
    """The rows of cases whose packages are installed for them alone."""
    with TemporaryDirectory() as folder:
        environment = Environment("library", PYTHONS, needs)
        try:
            python = make(environment, Path(folder), progress)
        except EnvironmentFault as fault:
            why = str(fault).removeprefix("library: ").partition("; check src/")[0]
            return [missing(name, why) for name in names]
        return ran(python, names)


def rows_of(libraries, newest, progress):
    """A row for each case of the libraries, in the order of the table."""
    rows = []
    for needs, names in plan(libraries, newest).items():
        progress.say(f"{', '.join(names)}: {' '.join(needs) or 'the lock'}")
        rows += installed(needs, names, progress) if needs else ran(sys.executable, names)
    order = [(library, case.does) for library in CASES for case in CASES[library]]
    return sorted(rows, key=lambda row: order.index((row["library"], row["does"])))


def cell(said):
    """What the table says of a result."""
    if said.startswith(CELLS[3]):
        return CELLS[3]
    return said if said.startswith(CELLS[:2]) else CELLS[2]


def code(text):
    """A text as Markdown that shows it as it is, as code."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def recording(rows):
    """The page's part: the table, and below it the errors."""
    lines = [
        f"Recorded on {datetime.date.today()} by `make libraries`, on eight emulated CPU devices.",
        "",
        f"| {' | '.join(HEAD)} |",
        f"|{'---|' * len(HEAD)}",
    ]
    errors = []
    for row in rows:
        results = [row[mode] for mode in MODES]
        what = [row[key] for key in ("library", "version", "jax", "does")]
        lines.append(f"| {' | '.join([*what, *map(cell, results)])} |")
        failed = [mode for mode in MODES if cell(row[mode]) in CELLS[2:]]
        for said in dict.fromkeys(row[mode] for mode in failed):
            where = " and ".join(mode for mode in failed if row[mode] == said)
            errors += ["", f"{row['library']}, {row['does']}, {where}", f": {code(said)}"]
    return "\n".join([*lines, *errors]) + "\n"


def recorded(text):
    """The cells of each program in a recording: {(library, program): {"Auto": "equal", ...}}."""
    table = re.findall(r"(?m)^\| (.*) \|$", text)[1:]
    found = {}
    for line in table:
        library, _, _, does, *cells = line.split(" | ")
        found[library, does] = dict(zip(MODES, cells, strict=True))
    return found


def compared(old, rows):
    """Lines about results that have got worse, and about all others that have changed.

    Args:
      old: the cells of each program, as `recorded` returns them.
      rows: what was run now.
    """

    def rank(said):
        return next(n for n, name in enumerate(CELLS) if said.startswith(name))

    worse, other = [], []
    for row in rows:
        for mode in MODES:
            before = old.get((row["library"], row["does"]), {}).get(mode, CELLS[3])
            now = cell(row[mode])
            line = f"book/status.md:1: {row['library']} {row['version']}, {row['does']}: {mode} "
            line += f"was {before}, is {row[mode]}"
            if rank(now) != rank(before):
                (worse if rank(now) > rank(before) else other).append(line)
    return worse, other


def main():
    """Record, or compare with what is recorded."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--check", action="store_true", help="compare, and record nothing")
    parser.add_argument("--newest", action="store_true", help="install all in their newest release")
    parser.add_argument("--only", metavar="LIBRARY", choices=CASES, help="this library, to show")
    options = parser.parse_args()
    rows = rows_of([options.only] if options.only else CASES, options.newest, Progress())
    for row in rows:
        modes = ", ".join(f"{mode}: {row[mode]}" for mode in MODES)
        print(f"{row['library']} {row['version']}, {row['does']}: {modes}")
    worse, other = compared(recorded(FILE.read_text("utf-8")), rows)
    print(*worse, *other, sep="\n")
    if not options.check and not options.only:
        FILE.write_text(recording(rows), "utf-8")
    return 1 if options.check and worse else 0


if __name__ == "__main__":
    sys.exit(main())
