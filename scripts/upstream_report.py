#!/usr/bin/env python3
"""Report in one issue what fails with newer upstream versions: open it, update it, or close it when
all checks pass.

upstream.yml calls it as `upstream_report.py FOLDER`. How each job ended is in $NEEDS, as GitHub's
`toJSON(needs)`; the output of a failed job is in FOLDER/said-JOB.txt. The program `gh` talks to
GitHub.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from itertools import zip_longest
from pathlib import Path

LABEL = "upstream"
TITLE = "The book fails with newer versions of what it builds on"
MOST = 60_000  # characters; GitHub takes 65,536
# A line of `make matrix` or `make links` about a chapter; something that is missing; a pin of
# Colab's; one of ours.
FAULT = re.compile(
    (
        r"^((\S+: )?book/\S+\.(?:md|bib):\d+: |\w+: (cannot|no|nothing) "
        r"|[-+][\w.-]+==|requirements\.txt: ).*"
    ),
    re.MULTILINE,
)
CELL = re.compile(r"executing the following cell:\n-+\n(.*?)\n-+$", re.MULTILINE | re.DOTALL)


def faults(said):
    """What went wrong, from the output of a job: a line for each fault, and below it the cell that
    failed, if any.
    """
    starts = list(FAULT.finditer(said))
    found = {}
    for start, after in zip_longest(starts, starts[1:]):
        cell = CELL.search(said, start.end(), after.start() if after else len(said))
        found.setdefault(start[0], "\n" + textwrap.indent(cell[1], "    ") if cell else "")
    return [line + cell for line, cell in found.items()]


def fenced(text):
    """Text as Markdown that shows it verbatim, whatever it contains."""
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", text))])
    return f"{fence}text\n{text}\n{fence}\n"


def words(job, folder):
    """The output of a job, if it was kept."""
    file = folder / f"said-{job}.txt"
    return file.read_text("utf-8", "replace").rstrip() if file.exists() else ""


def heading(job, result):
    """The heading of a job's part of the issue."""
    return f"## {job}: {result}"


def summary(job, result, folder):
    """The heading and the first line of each fault; a comment is written only if one of these lines
    is new.
    """
    return [
        heading(job, result),
        *(fault.partition("\n")[0] for fault in faults(words(job, folder))),
    ]


def body(failed, folder, run):
    """The text of the issue.

    Args:
      failed: how each job ended that did not succeed: {"newest": "failure"}.
      folder: where the jobs' outputs are.
      run: the address of this run.
    """
    parts = [
        f"[This run]({run}) found failures. The next run updates this text, or closes the issue.\n"
    ]
    room = (MOST - len(parts[0])) // len(failed) - 500
    for job, result in failed.items():
        said = words(job, folder)
        named = "\n".join(faults(said))[: room // 2]
        parts.append(f"{heading(job, result)}\n")
        parts.append(fenced(named) if named else "No failure is named; see the output.\n")
        if said:
            end = said[-(room - len(named)) :]
            parts.append(
                f"<details><summary>The end of its output</summary>\n\n{fenced(end)}\n</details>\n"
            )
        else:
            parts.append("No output was kept; see the run.\n")
    return "\n".join(parts)


def gh(*arguments, text=None):
    """Run gh; returns what it printed. An error of gh's ends the program."""
    return subprocess.run(
        ["gh", *arguments], input=text, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def main():
    """Make the issue say what this run found."""
    folder = Path(sys.argv[1])
    run = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}".format_map(
        os.environ
    )
    needs = json.loads(os.environ["NEEDS"])
    failed = {job: how["result"] for job, how in needs.items() if how["result"] != "success"}
    which = ["--label", LABEL, "--state", "open", "--limit", "1", "--json", "number,body"]
    issues = json.loads(gh("issue", "list", *which))
    number = str(issues[0]["number"]) if issues else ""
    if failed and number:
        gh("issue", "edit", number, "--body-file", "-", text=body(failed, folder, run))
        told = issues[0]["body"].splitlines()
        new = [
            line for job in failed for line in summary(job, failed[job], folder) if line not in told
        ]
        if new:  # GitHub sends no notification of a changed text
            text = f"New in [this run]({run}):\n\n{fenced(chr(10).join(new)[:MOST])}"
            gh("issue", "comment", number, "--body-file", "-", text=text)
    elif failed:
        gh(
            "label",
            "create",
            LABEL,
            "--force",
            "--description",
            "Found by the weekly check of newer versions",
        )
        gh(
            "issue",
            "create",
            "--title",
            TITLE,
            "--label",
            LABEL,
            "--body-file",
            "-",
            text=body(failed, folder, run),
        )
    elif number:
        gh("issue", "close", number, "--comment", f"All checks pass again: {run}")
    print("\n".join(f"{job}: {result}" for job, result in failed.items()) or "all checks pass")


if __name__ == "__main__":
    main()
