"""Build the book with stock Jupyter Book and with ours, in turn, and print how long each takes.

    make benchmark                              every case once: about 20 minutes on two cores
    make benchmark ARGS='prose code --runs 3'   these cases, three times; the table shows the medians
    make benchmark ARGS='cell --chapter zero'   one cell of this chapter; no other chapter runs
    make benchmark ARGS='--grow 10 50 200'      generated books of this many chapters
    make benchmark ARGS='--book FOLDER'         the book of another repository

Both build clones of the last commit with the same Python, in turn, so that a machine that becomes
slower affects both. Stock means `jupyter-book build .` without our extension and theme, which runs
one chapter after the other. It reuses outputs as long as a chapter's own code is the same. After a
change elsewhere its pages are right only if it is forced to run all chapters, so we compare with a
forced run then. Seconds are those of a clock; processor seconds are those of all processes that a
command has started, kernels among them. Exits with 1 if a target is missed.
"""  # noqa: E501

import argparse
import ctypes
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml

from bookbinder.page.extension import substitutions
from bookbinder.read import address
from shardlab._tables import aligned

ROOT = Path(__file__).parent.parent
CACHE = "_build/.jupyter_cache"
LONG = "zero"  # a long chapter of this book
CELL = re.compile(r"^(```\{code-cell\}.*?)\n```$", re.MULTILINE | re.DOTALL)
UNREAPED_SECONDS = 10  # how long to wait for processes that a command has left behind
# Of _config.yml: what stock Jupyter Book does not know.
OURS = ("bookbinder.page.extension", "html_theme", "search_aliases")


def chapter_of(folder):
    """The first chapter with code that is not the home page."""
    programs = (
        file
        for file in sorted((folder / "book").glob("*.md"))
        if "{code-cell}" in file.read_text("utf-8")
    )
    return next(file for file in programs if file.stem != "index")


def line_of_prose(folder, number):
    """Add a sentence at a chapter's end."""
    _edit(chapter_of(folder), lambda text: f"{text}\nThis sentence is new: {number}.\n")


def line_of_code(folder, number):
    """Add a line to a chapter's first cell."""
    _edit(
        chapter_of(folder),
        lambda text: re.sub(
            r"(```\{code-cell\}.*?)\n```", rf"\1\nx = {number}\n```", text, count=1, flags=re.S
        ),
    )


def line_of_cell(folder, chapter, number):
    """Add a comment at the end of the cell in the middle of a chapter."""

    def edited(text):
        cells = list(CELL.finditer(text))
        end = cells[len(cells) // 2].end(1)
        return f"{text[:end]}\n# {number}{text[end:]}"

    _edit(folder / "book" / f"{chapter}.md", edited)


def line_of_shardlab(folder, number):
    """Add a line to what chapters import: to `check`, which most of this book's do."""
    files = sorted(
        (folder / "src" / "shardlab").rglob("*.py"), key=lambda file: file.stem != "check"
    )
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
      measures: what its row measures, for `--help`.
      change: makes it happen in a folder; its second argument is a new number each time. None for
        the case of one cell, for which there are books of one chapter alone.
      forced: whether stock Jupyter Book must be forced to run all chapters, so that its pages are
        right.
      most: the target: our time divided by that of stock is at most this; None for no target.
      runs: how many chapters may run; None for any number.
    """

    what: str
    measures: str
    change: Callable | None
    forced: bool
    most: float | None
    runs: int | None


CASES = {
    "cold": Case(
        "nothing was built before",
        "both begin without _build: all chapters run, and all pages are made",
        everything,
        True,
        0.65,
        None,
    ),
    "nothing": Case(
        "nothing has changed",
        "a second build of the same sources: nothing runs",
        lambda folder, number: None,
        False,
        0.5,
        0,
    ),
    "prose": Case(
        "a sentence in one chapter",
        "nothing runs, and pages are made again",
        line_of_prose,
        False,
        1.0,
        0,
    ),
    "code": Case(
        "a line of code in one chapter",
        "in the first cell of the first chapter: that chapter runs",
        line_of_code,
        False,
        None,
        1,
    ),
    "cell": Case(
        "one cell changed",
        "of a long chapter that has run before, a cell in the middle has a new line: ours "
        "(bookbinder chapter) runs it with the compiled programs that are kept, stock compiles all "
        "anew; no other page is made",
        None,
        False,
        None,
        1,
    ),
    "shardlab": Case(
        "a line of src/shardlab",
        "a module that chapters import has a new line: ours runs those that have read it, stock is "
        "forced to run all",
        line_of_shardlab,
        True,
        None,
        None,
    ),
    "lock": Case(
        "another package",
        "ours runs all chapters, and stock is forced to",
        package,
        True,
        None,
        None,
    ),
}


@dataclass(frozen=True)
class Build:
    """What a build took: seconds of the clock and of all processors, and how many chapters ran."""

    seconds: float
    processor_seconds: float
    ran: int

    def __str__(self):
        took = f"{self.seconds:.1f} s, {self.processor_seconds:.1f} processor s"
        return f"{took} ({self.ran} ran)"


class Book:
    """A copy of the book, and how it is built."""

    def __init__(self, source, folder, ours, chapter=None):
        """Copy it.

        Args:
          source: the folder that is copied.
          folder: where to.
          ours: whether it is built with bookbinder; otherwise with stock Jupyter Book.
          chapter: the name of a chapter, if its page alone is built.
        """
        self.folder, self.ours, self.chapter = folder, ours, chapter
        shutil.copytree(source, folder)
        if not ours:
            config = yaml.safe_load((folder / "_config.yml").read_text("utf-8"))
            config["sphinx"]["extra_extensions"].remove(OURS[0])
            options = {k: v for k, v in config["sphinx"]["config"].items() if k not in OURS}
            options["myst_substitutions"] = substitutions(source, address.of(config))
            config["sphinx"]["config"] = options
            (folder / "_config.yml").write_text(yaml.safe_dump(config), "utf-8")
            if chapter:
                toc = {"format": "jb-book", "root": f"book/{chapter}"}
                (folder / "_toc.yml").write_text(yaml.safe_dump(toc), "utf-8")

    def build(self, forced=False):
        """Build it; returns a `Build`."""
        command = [sys.executable, "-m", "bookbinder"]
        command += ["chapter", f"book/{self.chapter}.md"] if self.chapter else ["build"]
        if not self.ours:
            _edit(
                self.folder / "_config.yml",
                lambda text: re.sub(
                    r"execute_notebooks: \w+",
                    f"execute_notebooks: {'force' if forced else 'cache'}",
                    text,
                ),
            )
            command = [
                sys.executable,
                "-c",
                "from jupyter_book.cli.main import main; main()",
                "build",
                ".",
            ]
            command += ["--all"] * forced
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "NO_COLOR": "1"}
        began, used = time.perf_counter(), processor_seconds()
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True
        )
        seconds = time.perf_counter() - began
        reap()
        said = done.stdout + done.stderr
        if done.returncode or "Executing notebook failed" in said:
            sys.exit(f"{' '.join(command)} failed in {self.folder}:\n{said[-5000:]}")
        pattern = r"^\w+ +\d+  ran " if self.ours else r"Executed notebook in"
        return Build(seconds, processor_seconds() - used, len(re.findall(pattern, said, re.M)))


def processor_seconds():
    """What all processes have used that we have started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def adopt():
    """On Linux, become the parent of what a command leaves behind, so that its time counts."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def reap():
    """Wait for processes that a command has left to us."""
    until = time.monotonic() + UNREAPED_SECONDS
    while time.monotonic() < until:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # there are no more
            return
        if not ended:
            time.sleep(0.05)


def _edit(file, change):
    file.write_text(change(file.read_text("utf-8")), "utf-8")


HEADINGS = (
    "what has changed",
    "stock, s",
    "processor s",
    "ours, s",
    "processor s",
    "ratio",
    "at most",
    "chapters run",
)


def compare(source, folder, names, runs, chapter):
    """Build with both in turn, case by case.

    Args:
      source: a clone of the book.
      folder: where its copies are made.
      names: those of the cases.
      runs: how often each is run.
      chapter: the name of that of which one cell changes.

    Returns:
      The lines of a table, and one for each missed target.
    """
    whole = Book(source, folder / "stock", False), Book(source, folder / "ours", True)
    lines, missed, number = [HEADINGS], [], 0
    for name in names:
        case, pairs = CASES[name], []
        books = whole if case.change else chapter_alone(source, folder, chapter)
        stock, ours = books
        what = case.what if case.change else f"{case.what}: {chapter}"
        if case.change not in (everything, None) and not (stock.folder / CACHE).exists():
            tell("a first build with ours ...")
            tell(f"a first build with ours: {ours.build()}")
            # both keep outputs in the same form
            shutil.copytree(ours.folder / CACHE, stock.folder / CACHE)
            tell(f"a first build with stock, with the same outputs: {stock.build()}")
        for _ in range(runs):
            number += 1
            for book in books:
                if case.change:
                    case.change(book.folder, number)
                else:
                    line_of_cell(book.folder, chapter, number)
            tell(f"{name}: {what} ...")
            pairs.append((stock.build(case.forced), ours.build()))
            tell(f"{name}: stock {pairs[-1][0]}, ours {pairs[-1][1]}")
            if case.runs is not None and (ran := pairs[-1][1].ran) != case.runs:
                missed.append(f"{what}: {ran} chapters ran, not {case.runs}")
        ratio = median(our.seconds / their.seconds for their, our in pairs)
        if case.most is not None and ratio > case.most:
            missed.append(f"{what}: {ratio:.2f} of stock's time, the target is at most {case.most}")
        took = [
            f"{median(getattr(build, kind) for build in side):.1f}"
            for side in zip(*pairs, strict=True)
            for kind in ("seconds", "processor_seconds")
        ]
        target = "" if case.most is None else f"{case.most}"
        ran = f"{pairs[-1][0].ran} and {pairs[-1][1].ran}"
        lines.append((what, *took, f"{ratio:.2f}", target, ran))
        if name == "cold":
            tell(where_the_time_went(ours.folder, pairs[-1][1].seconds))
    return lines, missed


def chapter_alone(source, folder, chapter):
    """Two books of which one chapter is built, by stock and by ours; each has built it once."""
    books = []
    for name, ours in (("stock", False), ("ours", True)):
        book = Book(source, folder / f"{name}-{chapter}", ours, chapter)
        tell(f"cell: a first build of {chapter} with {name} ...")
        tell(f"cell: a first build of {chapter} with {name}: {book.build()}")
        books.append(book)
    return books


def where_the_time_went(folder, seconds):
    """The parts of a cold build, and the time below which it cannot get on this machine."""
    results = json.loads((folder / "_build" / "state.json").read_text())["results"]
    longest = max(results, key=lambda result: result["seconds"])
    total, cores = sum(result["seconds"] for result in results), os.cpu_count()
    return (
        f"cold: chapters took {total:.0f} s in all, {total / cores:.0f} s for each of {cores} "
        f"processors; the longest is {longest['name']} with {longest['seconds']:.0f} s; the "
        f"whole build {seconds:.0f} s"
    )


def generate(source, count):
    """Make a book of `count` short chapters, with this book's settings."""
    front = (ROOT / "book" / "writing.md").read_text("utf-8").split("\n# ")[0]
    for chapter in (source / "book").glob("*.md"):
        chapter.unlink()
    names = ["index", "arrays", *(f"chapter{number}" for number in range(count - 2))]
    for name, after in zip(names, [*names[1:], "index"], strict=True):
        cells = "".join(
            f"A claim.\n\n```{{code-cell}}\nassert {n} + {n} == {2 * n}\nprint('{name}')\n```\n\n"
            for n in range(5)
        )
        text = f"{front}\n# Chapter {name}\n\nThe next is {{doc}}`{after}`.\n\n{cells}"
        (source / "book" / f"{name}.md").write_text(text, "utf-8")
    toc = {
        "format": "jb-book",
        "root": "book/index",
        "chapters": [{"file": f"book/{name}"} for name in names[1:]],
    }
    (source / "_toc.yml").write_text(yaml.safe_dump(toc), "utf-8")


def tell(text):
    """Say what is going on."""
    print(text, file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    """One that says in one line what is wrong with arguments."""

    def error(self, message):
        """Say it, and exit with 2."""
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def arguments():
    """The parser of the command line; its help says what each row measures."""
    rows = [
        textwrap.fill(f"{name:10}{case.what}: {case.measures}", 100, subsequent_indent=" " * 10)
        for name, case in CASES.items()
    ]
    parser = Parser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__,
        epilog="\n".join(["cases, each a row of the table:", *rows]),
    )
    text = "the repository of the book (default: this one)"
    parser.add_argument("--book", type=Path, default=ROOT, help=text)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="see below (default: all)")
    text = "how often to run each case (default: 1)"
    parser.add_argument("--runs", type=int, default=1, help=text)
    parser.add_argument(
        "--chapter",
        metavar="NAME",
        help=f"for the case cell (default: {LONG}, or the first with code where there is none)",
    )
    text = "measure generated books of N chapters instead"
    parser.add_argument("--grow", type=int, nargs="+", metavar="N", help=text)
    return parser


def long_chapter(source, wanted):
    """The name of the chapter of which a cell changes; None if it is not there or has no code."""
    name = Path(wanted).stem if wanted else LONG
    file = source / "book" / f"{name}.md"
    if file.is_file() and CELL.search(file.read_text("utf-8")):
        return name
    return None if wanted else chapter_of(source).stem


def main():
    """Measure, print the table, and compare with the targets."""
    parser = arguments()
    options = parser.parse_args()
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"unknown case {unknown[0]}; known are {', '.join(CASES)}")
    if options.runs < 1 or any(count < 3 for count in options.grow or ()):
        parser.error("--runs must be 1 or more, --grow 3 or more")
    adopt()
    missed = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        folder = Path(temporary)
        for count in options.grow or [None]:
            source = folder / f"source-{count}"
            command = ["git", "clone", "--quiet", str(options.book), str(source)]
            if subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
                parser.error(f"--book {options.book}: git cannot clone it")
            names = options.cases or list(CASES)
            if count:
                generate(source, count)
                names = options.cases or ["cold", "nothing", "prose", "code"]
                print(f"\n{count} chapters")
            if not (chapter := long_chapter(source, options.chapter)):
                parser.error(f"--chapter {options.chapter}: the book has no such chapter with code")
            lines, wrong = compare(source, folder / f"books-{count}", names, options.runs, chapter)
            print(aligned(lines, "<>"))
            missed += wrong if not count else []
    for miss in missed:
        print(f"missed: {miss}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
