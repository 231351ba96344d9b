#!/usr/bin/env python3
"""Say in one issue how the book fares with what is upstream: open it, renew it, or close it when all is well again.

upstream.yml calls it as `upstream_report.py FOLDER`. How each job ended is in $NEEDS, as GitHub's `toJSON(needs)`; what
a job that failed has printed is in FOLDER/said-JOB.txt. The program `gh` talks to GitHub.
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
TITLE = "The book and what it builds on no longer agree"
MOST = 60_000  # characters; GitHub takes 65,536
# A place in a chapter, of `make matrix` or `make links`; what is not there; a pin of Colab's; one of ours.
FAULT = re.compile(
    r"^((\S+: )?book/\S+\.md:\d+: |\w+: (cannot|no|nothing) |[-+][\w.-]+==|requirements\.txt: ).*", re.MULTILINE
)
CELL = re.compile(r"executing the following cell:\n-+\n(.*?)\n-+$", re.MULTILINE | re.DOTALL)


def faults(said):
    """What went wrong, from all that a job has printed: a line for each fault, and the cell below it if one failed."""
    starts = list(FAULT.finditer(said))
    found = {}
    for start, after in zip_longest(starts, starts[1:]):
        cell = CELL.search(said, start.end(), after.start() if after else len(said))
        found.setdefault(start[0], "\n" + textwrap.indent(cell[1], "    ") if cell else "")
    return [line + cell for line, cell in found.items()]


def fenced(text):
    """Text as Markdown that shows it as it is, whatever is in it."""
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", text))])
    return f"{fence}text\n{text}\n{fence}\n"


def words(job, folder):
    """What a job has printed, where that was kept."""
    file = folder / f"said-{job}.txt"
    return file.read_text("utf-8", "replace").rstrip() if file.exists() else ""


def heading(job, result):
    """Of a job's part of the issue."""
    return f"## {job}: {result}"


def summary(job, result, folder):
    """The heading and the first line of each fault: what has to be new, for people to be told again."""
    return [heading(job, result), *(fault.partition("\n")[0] for fault in faults(words(job, folder)))]


def body(failed, folder, run):
    """The text of the issue.

    Args:
      failed: how each job ended that did not succeed: {"newest": "failure"}.
      folder: where the jobs' words are.
      run: the address of this run.
    """
    parts = [f"[This run]({run}) found what no longer holds. The next one renews this text, or closes the issue.\n"]
    room = (MOST - len(parts[0])) // len(failed) - 500
    for job, result in failed.items():
        said = words(job, folder)
        named = "\n".join(faults(said))[: room // 2]
        parts.append(f"{heading(job, result)}\n")
        parts.append(fenced(named) if named else "Nothing is named; see what it printed.\n")
        if said:
            end = said[-(room - len(named)) :]
            parts.append(f"<details><summary>The end of what it printed</summary>\n\n{fenced(end)}\n</details>\n")
        else:
            parts.append("It printed nothing that was kept; see the run.\n")
    return "\n".join(parts)


def gh(*arguments, text=None):
    """Run gh; returns what it printed. An error of gh's ends the program."""
    return subprocess.run(["gh", *arguments], input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


def main():
    """Make the issue say what this run found."""
    folder = Path(sys.argv[1])
    run = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}".format_map(os.environ)
    needs = json.loads(os.environ["NEEDS"])
    failed = {job: how["result"] for job, how in needs.items() if how["result"] != "success"}
    which = ["--label", LABEL, "--state", "open", "--limit", "1", "--json", "number,body"]
    issues = json.loads(gh("issue", "list", *which))
    number = str(issues[0]["number"]) if issues else ""
    if failed and number:
        gh("issue", "edit", number, "--body-file", "-", text=body(failed, folder, run))
        told = issues[0]["body"].splitlines()
        new = [line for job in failed for line in summary(job, failed[job], folder) if line not in told]
        if new:  # GitHub tells nobody of a text that has changed
            text = f"New in [this run]({run}):\n\n{fenced(chr(10).join(new)[:MOST])}"
            gh("issue", "comment", number, "--body-file", "-", text=text)
    elif failed:
        gh("label", "create", LABEL, "--force", "--description", "What the weekly look upstream found")
        gh("issue", "create", "--title", TITLE, "--label", LABEL, "--body-file", "-", text=body(failed, folder, run))
    elif number:
        gh("issue", "close", number, "--comment", f"All is well again: {run}")
    print("\n".join(f"{job}: {result}" for job, result in failed.items()) or "all is well")


if __name__ == "__main__":
    main()
