"""Build the book with stock Jupyter Book and as `make book` does, in turn, and print how long each takes.

    make benchmark                              every case once: about 20 minutes on two cores
    make benchmark ARGS='prose code --runs 3'   these cases, three times; the table shows the medians
    make benchmark ARGS='--grow 10 50 200'      generated books of this many chapters
    make benchmark ARGS='--book FOLDER'         the book of another repository

Both build clones of the last commit with the same Python, in turn, so that a machine that becomes slower affects both.
Stock means `jupyter-book build .` without our extension and theme, which runs one chapter after the other. It reuses
outputs as long as a chapter's own code is the same. After a change elsewhere its pages are right only if it is forced
to run all chapters, so we compare with a forced run then. Exits with 1 if a target is missed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml

from shardlab._tables import aligned

ROOT = Path(__file__).parent.parent
CACHE = "_build/.jupyter_cache"
# Of _config.yml: what stock Jupyter Book does not know.
OURS = ("bookbinder.page.extension", "html_theme", "search_aliases")


def chapter_of(folder):
    """The first chapter with code that is not the home page."""
    programs = (file for file in sorted((folder / "book").glob("*.md")) if "{code-cell}" in file.read_text("utf-8"))
    return next(file for file in programs if file.stem != "index")


def line_of_prose(folder, number):
    """Add a sentence at a chapter's end."""
    _edit(chapter_of(folder), lambda text: f"{text}\nThis sentence is new: {number}.\n")


def line_of_code(folder, number):
    """Add a line to a chapter's first cell."""
    _edit(
        chapter_of(folder),
        lambda text: re.sub(r"(```\{code-cell\}.*?)\n```", rf"\1\nx = {number}\n```", text, count=1, flags=re.S),
    )


def line_of_shardlab(folder, number):
    """Add a line to what chapters import: to `check`, which most of this book's do."""
    files = sorted((folder / "src" / "shardlab").rglob("*.py"), key=lambda file: file.stem != "check")
    _edit(files[0], lambda text: f"{text}# {number}\n")


def package(folder, number):
    """Install another version of a package that no chapter needs, as a changed lock would."""
    for old in (folder / "src").glob("other-*.dist-info"):
        shutil.rmtree(old)
    new = folder / "src" / f"other-{number}.dist-info"
    new.mkdir()
    (new / "METADATA").write_text(f"Metadata-Version: 2.1\nName: other\nVersion: {number}\n")


def everything(folder, number):
    """Forget what was built."""
    shutil.rmtree(folder / "_build", ignore_errors=True)


@dataclass(frozen=True)
class Case:
    """Something that happens to a book before it is built again.

    Attributes:
      what: what happens, in words.
      change: makes it happen in a folder; its second argument is a new number each time.
      forced: whether stock Jupyter Book must be forced to run all chapters, so that its pages are right.
      most: the target: our time divided by that of stock is at most this; None for no target.
      runs: how many chapters may run; None for any number.
    """

    what: str
    change: Callable
    forced: bool
    most: float | None
    runs: int | None


CASES = {
    "cold": Case("nothing was built before", everything, True, 0.65, None),
    "nothing": Case("nothing has changed", lambda folder, number: None, False, 0.5, 0),
    "prose": Case("a sentence in one chapter", line_of_prose, False, 1.0, 0),
    "code": Case("a line of code in one chapter", line_of_code, False, None, 1),
    "shardlab": Case("a line of src/shardlab", line_of_shardlab, True, None, None),
    "lock": Case("another package", package, True, None, None),
}


class Book:
    """A copy of the book, and how it is built; `ours` says whether as `make book` does."""

    def __init__(self, source, folder, ours):
        """Copy it from `source` to `folder`."""
        self.folder, self.ours = folder, ours
        shutil.copytree(source, folder)
        if not ours:
            config = yaml.safe_load((folder / "_config.yml").read_text("utf-8"))
            config["sphinx"]["extra_extensions"].remove(OURS[0])
            config["sphinx"]["config"] = {k: v for k, v in config["sphinx"]["config"].items() if k not in OURS}
            words = dict.fromkeys(("repository", "versions", "pdf"), "some words")
            config["sphinx"]["config"]["myst_substitutions"] = words
            (folder / "_config.yml").write_text(yaml.safe_dump(config), "utf-8")

    def build(self, forced=False):
        """Build it; returns the seconds, and how many chapters ran."""
        command = [sys.executable, "-m", "bookbinder", "build"]
        if not self.ours:
            _edit(
                self.folder / "_config.yml",
                lambda text: re.sub(
                    r"execute_notebooks: \w+", f"execute_notebooks: {'force' if forced else 'cache'}", text
                ),
            )
            command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", "."]
            command += ["--all"] * forced
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "NO_COLOR": "1"}
        began = time.perf_counter()
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        said = done.stdout + done.stderr
        if done.returncode or "Executing notebook failed" in said:
            sys.exit(f"{' '.join(command)} failed in {self.folder}:\n{said[-5000:]}")
        pattern = r"^\w+ +\d+  ran " if self.ours else r"Executed notebook in"
        return seconds, len(re.findall(pattern, said, re.M))


def _edit(file, change):
    file.write_text(change(file.read_text("utf-8")), "utf-8")


def compare(source, folder, names, runs):
    """Build with both in turn, case by case; returns the lines of a table, and one for each missed target."""
    stock, ours = Book(source, folder / "stock", False), Book(source, folder / "ours", True)
    lines, missed = [("what has changed", "stock, s", "make book, s", "ratio", "at most", "chapters run")], []
    number = 0
    for name in names:
        case, pairs = CASES[name], []
        if case.change is not everything and not (stock.folder / CACHE).exists():
            tell(f"a first build with make book: {ours.build()[0]:.1f} s")
            shutil.copytree(ours.folder / CACHE, stock.folder / CACHE)  # both keep outputs in the same form
            tell(f"a first build with stock, with the same outputs: {stock.build()[0]:.1f} s")
        for _ in range(runs):
            number += 1
            for book in (stock, ours):
                case.change(book.folder, number)
            pairs.append((stock.build(case.forced), ours.build()))
            (theirs, their_runs), (our, our_runs) = pairs[-1]
            tell(f"{name}: stock {theirs:.1f} s ({their_runs} ran), make book {our:.1f} s ({our_runs} ran)")
            if case.runs is not None and our_runs != case.runs:
                missed.append(f"{case.what}: {our_runs} chapters ran, not {case.runs}")
        ratio = median(our / theirs for (theirs, _), (our, _) in pairs)
        if case.most is not None and ratio > case.most:
            missed.append(f"{case.what}: {ratio:.2f} of stock's time, the target is at most {case.most}")
        seconds = [f"{median(seconds for seconds, _ in side):.1f}" for side in zip(*pairs, strict=True)]
        target = "" if case.most is None else f"{case.most}"
        ran = f"{pairs[-1][0][1]} and {pairs[-1][1][1]}"
        lines.append((case.what, *seconds, f"{ratio:.2f}", target, ran))
        if name == "cold":
            tell(where_the_time_went(ours.folder, pairs[-1][1][0]))
    return lines, missed


def where_the_time_went(folder, seconds):
    """The parts of a cold build, and the time below which it cannot get on this machine."""
    results = json.loads((folder / "_build" / "state.json").read_text())["results"]
    longest = max(results, key=lambda result: result["seconds"])
    total, cores = sum(result["seconds"] for result in results), os.cpu_count()
    return (
        f"cold: chapters took {total:.0f} s in all, {total / cores:.0f} s for each of {cores} processors; the longest "
        f"is {longest['name']} with {longest['seconds']:.0f} s; the whole build {seconds:.0f} s"
    )


def generate(source, count):
    """Make a book of `count` short chapters, with this book's settings."""
    front = (ROOT / "book" / "writing.md").read_text("utf-8").split("\n# ")[0]
    for chapter in (source / "book").glob("*.md"):
        chapter.unlink()
    names = ["index", "arrays", *(f"chapter{number}" for number in range(count - 2))]
    for name, after in zip(names, [*names[1:], "index"], strict=True):
        cells = "".join(
            f"A claim.\n\n```{{code-cell}}\nassert {n} + {n} == {2 * n}\nprint('{name}')\n```\n\n" for n in range(5)
        )
        text = f"{front}\n# Chapter {name}\n\nThe next is {{doc}}`{after}`.\n\n{cells}"
        (source / "book" / f"{name}.md").write_text(text, "utf-8")
    toc = {"format": "jb-book", "root": "book/index", "chapters": [{"file": f"book/{name}"} for name in names[1:]]}
    (source / "_toc.yml").write_text(yaml.safe_dump(toc), "utf-8")


def tell(text):
    """Say what is going on."""
    print(text, file=sys.stderr, flush=True)


def main():
    """Measure, print the table, and compare with the targets."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--book", type=Path, default=ROOT, help="the repository of the book (default: this one)")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--runs", type=int, default=1, help="how often to run each case (default: 1)")
    parser.add_argument(
        "--grow", type=int, nargs="+", metavar="N", help="measure generated books of N chapters instead"
    )
    options = parser.parse_args()
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"unknown case {unknown[0]}; known are {', '.join(CASES)}")
    if options.runs < 1 or any(count < 3 for count in options.grow or ()):
        parser.error("--runs must be 1 or more, --grow 3 or more")
    missed = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        folder = Path(temporary)
        for count in options.grow or [None]:
            source = folder / f"source-{count}"
            subprocess.run(["git", "clone", "--quiet", str(options.book), str(source)], check=True)
            names = options.cases or list(CASES)
            if count:
                generate(source, count)
                names = options.cases or ["cold", "nothing", "prose", "code"]
                print(f"\n{count} chapters")
            lines, wrong = compare(source, folder / f"books-{count}", names, options.runs)
            print(aligned(lines, "<>"))
            missed += wrong if not count else []
    for miss in missed:
        print(f"missed: {miss}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
