"""Measure the built site with Lighthouse, as a phone on a slow network sees it, and compare with the targets.

    make lighthouse                             every page, once
    make lighthouse ARGS='arrays costs'         these pages
    make lighthouse ARGS='--runs 5'             each five times; the table shows the medians

Exits with 1 if a page misses a target. The reports are left in _build/lighthouse, for Lighthouse's viewer.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bookbinder.host import serving
from shardlab._tables import aligned

ROOT = Path(__file__).parent.parent
LOCK = Path(__file__).parent / "lighthouse"  # package.json and its lock
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OLDEST_NODE = 20


class CannotMeasure(Exception):
    """The message says what is missing, and what to do."""


@dataclass(frozen=True)
class Column:
    """One number of a report: its heading, where it is found, how it is shown, and its target.

    Attributes:
      head: the heading of its column.
      of: gives the number from a report, or from the median of many.
      shown: a format, such as ".0f".
      good: whether a number reaches the target.
      target: the target, in words.
    """

    head: str
    of: callable
    shown: str
    good: callable
    target: str


def _audit(name, scale=1.0):
    return lambda report: report["audits"][name]["numericValue"] / scale


def _category(name):
    return lambda report: 100 * report["categories"][name]["score"]


COLUMNS = (
    Column("KiB", _audit("total-byte-weight", 1024), ".0f", lambda n: n <= 250, "at most 250"),
    Column("performance", _category("performance"), ".0f", lambda n: round(n) >= 98, "98 or more"),
    Column("accessibility", _category("accessibility"), ".0f", lambda n: round(n) == 100, "100"),
    Column("best practices", _category("best-practices"), ".0f", lambda n: round(n) == 100, "100"),
    Column("SEO", _category("seo"), ".0f", lambda n: round(n) == 100, "100"),
    Column("first paint, s", _audit("first-contentful-paint", 1000), ".2f", lambda n: n < 1.3, "below 1.3"),
    Column("layout shift", _audit("cumulative-layout-shift"), ".4f", lambda n: n == 0, "0"),
)


def numbers(reports):
    """The median of each column over some reports of the same page.

    Raises:
      CannotMeasure: a report says that Lighthouse could not load the page, or lacks a number.
    """
    for report in reports:
        if error := report.get("runtimeError"):
            raise CannotMeasure(f"Lighthouse could not load {report.get('requestedUrl')}: {error['message']}")
    try:
        return [median(column.of(report) for report in reports) for column in COLUMNS]
    except (KeyError, TypeError) as error:
        raise CannotMeasure(f"a report of {reports[0].get('requestedUrl')} is incomplete: no {error}") from error


def failed_audits(report):
    """What a report found wrong besides speed, one line each: the category, the audit's name, and its first items."""
    lines = []
    for category in ("accessibility", "best-practices", "seo"):
        for reference in report["categories"][category]["auditRefs"]:
            audit = report["audits"][reference["id"]]
            if reference["weight"] and audit["score"] is not None and audit["score"] < 1:
                items = [_words(item) for item in audit.get("details", {}).get("items", [])[:3]]
                lines.append(f"{category}: {audit['id']}: " + ("; ".join(filter(None, items)) or audit["title"]))
    return lines


def _words(item):
    node = item.get("node", {})
    return node.get("selector") or item.get("description") or item.get("url") or ""


def table(results):
    """Results, the numbers by the names of pages, as text; a number that misses its target is marked with `!`."""
    heads = ["page", *(f"{column.head} " for column in COLUMNS)]
    rows = []
    for name, found in results.items():
        pairs = zip(found, COLUMNS, strict=True)
        rows.append([name, *(f"{number:{c.shown}}{' ' if c.good(number) else '!'}" for number, c in pairs)])
    rows.append(["target", *(f"{column.target} " for column in COLUMNS)])
    return aligned([heads, *rows], "<>")


def misses(results):
    """Which page misses which target, one line each."""
    return [
        f"{name}: {column.head} is {number:{column.shown}}, the target is {column.target}"
        for name, found in results.items()
        for number, column in zip(found, COLUMNS, strict=True)
        if not column.good(number)
    ]


def browser():
    """The path of the system's Chromium."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        raise CannotMeasure(f"no browser: none of {', '.join(BROWSERS)} is on PATH (Debian: apt-get install chromium)")
    return found


def install(folder):
    """The path of Lighthouse's program, which is installed in a folder unless the locked version is there already."""
    for program in ("node", "npm"):
        if not shutil.which(program):
            raise CannotMeasure(f"no {program} on PATH (Debian: apt-get install npm)")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
    if int(version.lstrip("v").split(".")[0] or 0) < OLDEST_NODE:
        raise CannotMeasure(f"node is {version}; Lighthouse is tested with Node {OLDEST_NODE} and newer")
    program = folder / "node_modules" / "lighthouse" / "cli" / "index.js"
    lock = (LOCK / "package-lock.json").read_text("utf-8")
    ready = folder / "ready"
    if not (program.exists() and ready.exists() and ready.read_text("utf-8") == lock):
        print("installing Lighthouse", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(LOCK / name, folder)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise CannotMeasure(f"npm ci failed:\n{done.stderr.strip()}")
        ready.write_text(lock, "utf-8")
    return program


def measure(program, chrome, url, file):
    """One run of Lighthouse with its settings for phones; returns its report, which is left in a file too."""
    command = ["node", str(program), url, "--output=json", f"--output-path={file}", "--quiet"]
    command += ["--disable-full-page-screenshot"]
    command += ["--chrome-flags=--headless=new --no-sandbox --disable-dev-shm-usage"]
    environment = {**os.environ, "CHROME_PATH": chrome, "CI": "1"}  # CI: so that it asks no questions
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode or not file.exists():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CannotMeasure("\n".join([f"Lighthouse failed on {url}:", *said[-5:]]))
    return json.loads(file.read_text("utf-8"))


def main(arguments=None):
    """Measure and print; returns the exit status: 1 if a target is missed, 2 if nothing could be measured."""
    parser = argparse.ArgumentParser(prog="make lighthouse", description=__doc__.split("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as arrays (default: all)")
    parser.add_argument(
        "--runs", type=int, default=1, metavar="N", help="runs of each page, of which the median counts (default: 1)"
    )
    parser.add_argument("--site", type=Path, default=ROOT / "_build" / "html", help="its folder (default: _build/html)")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error(f"--runs must be 1 or more, not {options.runs}")
    try:
        results, wrong = _run(options)
    except CannotMeasure as error:
        print(f"lighthouse: {error}", file=sys.stderr)
        return 2
    print(table(results))
    for line in (missed := misses(results)) + wrong:
        print(line)
    return 1 if missed else 0


def _run(options):
    there = sorted(file.stem for file in options.site.glob("*.html") if file.stem != "404")
    if not there:
        raise CannotMeasure(f"no site in {options.site}: make book")
    pages = [name.removesuffix(".html") for name in options.pages] or there
    for name in pages:
        if name not in there:
            raise CannotMeasure(f"no page {name} in {options.site}; there are {', '.join(there)}")
    chrome, folder = browser(), ROOT / "_build" / "lighthouse"
    program, results, wrong = install(folder), {}, []
    with serving(options.site) as home:
        for at, name in enumerate(pages):
            url = home if name == "index" else f"{home}{name}.html"
            reports = []
            for run in range(options.runs):
                print(f"{name} ({at + 1} of {len(pages)}), run {run + 1} of {options.runs}", file=sys.stderr)
                reports.append(measure(program, chrome, url, folder / f"{name}-{run + 1}.json"))
            results[name] = numbers(reports)
            wrong += [f"{name}: {line}" for line in failed_audits(reports[0])]
    return results, wrong


if __name__ == "__main__":
    sys.exit(main())
