#!/usr/bin/env python3
"""Explain the public reports of tests/tools/cases, and record what `explain` says of each
and whether that is right: book/recordings/reports.txt, which the page `scoreboard` shows.

    make scoreboard                        # recorded anew
    make scoreboard ARGS=--check           # compared: exits with 1 if a verdict has got worse
    make scoreboard ARGS="--only jax#21562" # shown, not recorded
"""

import argparse
import datetime
import re
import sys
import textwrap
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "book" / "recordings" / "reports.txt"
# A call, as deep as specs go; a sharding in braces; an element, a type or a name with underscores.
CODE = re.compile(
    r"[\w.]+\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\{.*?\}(?= to |[;:] |[;:]?$)"
    r"|\w+(?:\[[^\]]*\])+|\w+_\w+(?:=\w+)?|`[^`]+`"
)
SAYS = {
    "right": "the first finding names the cause",
    "partly": "a later finding names it, or only a row shows it",
    "silent": "nothing names it",
    "false": "the findings name something else",
}


def recorded(text):
    """The verdict of each report in a recording, by thread."""
    found, verdict = {}, ""
    for line in text.splitlines():
        if heading := re.match(r"## (\w+): ", line):
            verdict = heading[1].lower()
        elif thread := re.match(r"\[([\w./-]+#\d+)\]\(", line):
            found[thread[1]] = verdict
    return found


def plain(text):
    """A text as Markdown that shows it as it is, what is code as code."""
    escaped, start = "", 0
    for code in CODE.finditer(text):
        escaped += re.sub(r"([\\`*_\[\]<>{}$|#])", r"\\\1", text[start : code.start()])
        escaped += f"`{code[0].strip('`')}`"
        start = code.end()
    return escaped + re.sub(r"([\\`*_\[\]<>{}$|#])", r"\\\1", text[start:])


def answer(report, said):
    """What was said of a report, as paragraphs of Markdown."""
    import reports

    def shown(finding):
        says = textwrap.shorten(reports.words(report, finding), 600, placeholder=" ...")
        return f"*{finding.title}*: {plain(says)}"

    place, row = reports.naming(report, said), reports.showing(report, said)
    if said.findings:
        later = f"Finding {place + 1} names it. {shown(said.findings[place])}" if place else ""
        return [shown(said.findings[0]), *filter(None, [later])]
    if row is None:
        return ["No finding."]
    along = f" along {' and '.join(row.axes)}" if row.axes else ""
    return [f"No finding, but a row: *{row.kind}*{along}: {plain(row.cause)}"]


def entry(report, paragraphs):
    """A report and what was said of it, as Markdown."""
    repository, number = report.thread.split("#")
    program = f"`{report.program.__module__}.{report.program.__name__}`"
    pod = f", compiled for {report.pod}" if report.pod else ""
    return (
        f"[{report.thread}](https://github.com/{repository}/issues/{number}), {program}{pod}\n"
        f": {report.symptom}\n\n"
    ) + "".join(f"  {paragraph}\n\n" for paragraph in paragraphs)


def recording(said, versions):
    """The page's part with all reports, by verdict.

    Args:
      said: triples of a report, its verdict, and paragraphs of what was said.
      versions: with what it was recorded.
    """
    totals = Counter(verdict for _, verdict, _ in said)
    counts = ", ".join(f"{totals[verdict]} {verdict}" for verdict in SAYS)
    lines = [
        f"**{len(said)} reports: {counts}.** Recorded on {datetime.date.today()} by "
        f"`make scoreboard`, with {versions}.\n"
    ]
    for verdict, words in SAYS.items():
        lines.append(f"(scoreboard-{verdict})=\n## {verdict.title()}: {words}\n")
        entries = [entry(report, texts) for report, kind, texts in said if kind == verdict]
        lines += entries or ["None today.\n"]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def compared(old, new):
    """Lines about verdicts that have got worse, and about those that have got better.

    Args:
      old, new: the verdict of each report by thread.
    """
    rank = {verdict: n for n, verdict in enumerate(SAYS)}
    changed = [
        (thread, old.get(thread, "not recorded"), verdict)
        for thread, verdict in new.items()
        if old.get(thread) != verdict
    ]
    said = [
        (f"book/scoreboard.md:1: {thread}: was {before}, is {now}", rank[now] > rank.get(before, 9))
        for thread, before, now in changed
    ]
    gone = [f"book/scoreboard.md:1: {thread}: is gone" for thread in old if thread not in new]
    return [line for line, worse in said if worse] + gone, [line for line, bad in said if not bad]


def installed(name):
    """A package and its version, or nothing."""
    try:
        return [f"{name} {version(name)}"]
    except PackageNotFoundError:
        return []


def main():
    """Record, or compare with what is recorded."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--check", action="store_true", help="compare, and record nothing")
    parser.add_argument("--only", metavar="TEXT", help="show the reports whose threads contain it")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests" / "tools" / "cases"))
    from shardlab import emulate

    emulate(8)
    import reports

    chosen = [one for one in reports.REPORTS.values() if (options.only or "") in one.thread]
    if not chosen:
        parser.error(f"no thread contains {options.only!r}; for example jax#21562")
    said = []
    for report in chosen:
        explained = reports.explained(report)
        verdict = reports.verdict(report, explained)
        said.append((report, verdict, answer(report, explained)))
        if options.only:
            print(f"{report.thread}: {verdict}\n{explained}\n")
    if options.only:
        return 0
    new = {report.thread: verdict for report, verdict, _ in said}
    worse, other = compared(recorded(FILE.read_text("utf-8")) if FILE.exists() else {}, new)
    print("\n".join([*worse, *other]))
    print(", ".join(f"{n} {verdict}" for verdict, n in Counter(new.values()).items()))
    if options.check:
        return 1 if worse else 0
    versions = ", ".join(name for one in ("jax", "libtpu") for name in installed(one))
    FILE.write_text(recording(said, versions), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
