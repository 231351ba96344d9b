"""Public reports of sharded JAX programs that were slow, too large, wrong or compiled again, each
rebuilt as a small program of our own.

A program of `reported_compute` and of the modules beside it returns a function and its arguments,
which need no memory, and a context in which to compile it, if it needs one. Its decorator says what
the thread reports, and how to recognise the finding that names the cause: by the thread's own
resolution, not by what `explain` says. `scripts/record_reports.py` records what it says.
"""

import contextlib
import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

from shardlab import Pod
from shardlab.report.explain import explain

VERDICTS = ("right", "partly", "silent", "false")
REPORTS = {}  # by thread


@dataclass(frozen=True)
class Report:
    """A public report.

    Attributes:
      thread: such as "jax-ml/jax#21562".
      symptom: what was wrong, in a sentence.
      finding: a pattern that a finding, "title: says", contains if it names the cause.
      row: a pattern that a row, "kind array cause axes", contains if it shows the symptom.
      pod: the compiler to ask, such as "v5e:2x4"; "" for that of CPUs.
      program: returns the function, its arguments, and a context if it needs one.
    """

    thread: str
    symptom: str
    finding: str
    row: str
    pod: str
    program: Callable


def public(thread, symptom, finding, row="", pod=""):
    """Marks a program as the one of a thread."""

    def mark(program):
        assert thread not in REPORTS, f"{thread} is there already"
        REPORTS[thread] = Report(thread, symptom, finding, row, pod, program)
        return program

    return mark


def explained(report):
    """What `explain` says of a report's program."""
    function, arguments, *contexts = report.program()
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        return explain(function, *arguments, mesh=Pod(report.pod) if report.pod else None)


def naming(report, said):
    """The place of the first finding that names the cause, from 0; None without one."""
    for place, finding in enumerate(said.findings):
        if re.search(report.finding, f"{finding.title}: {finding.says}", re.DOTALL):
            return place
    return None


def showing(report, said):
    """The first row that shows the symptom; None without one."""
    for move in said.moves:
        row = f"{move.kind} {move.array} {move.cause} {' '.join(move.axes or ())}"
        if report.row and re.search(report.row, row):
            return move
    return None


def verdict(report, said):
    """What an explanation is worth.

    Args:
      report: a `Report`.
      said: the `shardlab.Report` of its program.

    Returns:
      "right" if the first finding names the cause; "partly" if a later one does, or if a row shows
      the symptom and no finding hides it; "silent" without either; "false" if there are findings,
      and all name other causes.
    """
    place = naming(report, said)
    if place is not None:
        return "partly" if place else "right"
    if said.findings:
        return "false"
    return "partly" if showing(report, said) else "silent"


def words(report, finding):
    """What a finding says, with lines counted from the program's own first."""
    file = inspect.getsourcefile(report.program).rpartition("/")[2]
    lines, start = inspect.getsourcelines(report.program)

    def place(match):
        number = int(match[1]) - start + 1
        return f"line {number}" if 0 < number <= len(lines) else "a helper"

    return re.sub(rf"\b{re.escape(file)}:(\d+)", place, finding.says)


for _name in ("compute", "layouts", "memory", "serving"):
    importlib.import_module(f"reported_{_name}")
