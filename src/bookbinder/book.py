"""Read a book: its configuration, its table of contents, and its chapters, with every fault named by file and line."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

FOLDER = "book"  # where the chapters are, below the root


class BookError(Exception):
    """Something in the book's sources is wrong: "book/x.md:12: what, and what to do"."""

    def __init__(self, path, line, message):
        """Remember the place; `line` is None where the whole file is meant."""
        self.path, self.line, self.message = path, line, message
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")


@dataclass(frozen=True)
class Cell:
    """A code cell: its source, its place among the notebook's cells, and the line of its first line of code."""

    source: str
    position: int
    line: int


@dataclass(frozen=True)
class Chapter:
    """One chapter: a Markdown file, and the program in it."""

    root: Path
    name: str  # "arrays" for book/arrays.md

    @property
    def path(self):
        """The file, relative to the root of the book, as messages print it."""
        return f"{FOLDER}/{self.name}.md"

    @cached_property
    def text(self):
        """The source of the chapter."""
        data = (self.root / self.path).read_bytes()
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            raise BookError(
                self.path, line, f"not UTF-8: byte {data[error.start : error.end]!r}; save it as UTF-8"
            ) from None

    @cached_property
    def front_matter(self):
        """The YAML between the two lines of dashes at the top, as a dict; empty if there is none."""
        if not self.text.startswith("---\n"):
            return {}
        block = re.match(r"---\n(.*?)^---\s*$", self.text, re.DOTALL | re.MULTILINE)
        if not block:
            raise BookError(self.path, 1, "the front matter does not end: put a line with --- below it")
        try:
            matter = yaml.safe_load(block[1])
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            raise BookError(
                self.path,
                mark.line + 2 if mark else 1,
                f"the front matter is not YAML: {getattr(error, 'problem', error)}",
            ) from None
        if not isinstance(matter, dict):
            raise BookError(self.path, 2, f"the front matter must be keys with values, not {type(matter).__name__}")
        return matter

    @property
    def runs(self):
        """Whether the chapter has code to run."""
        return bool(re.search(r"^```+\{code-cell\}", self.text, re.MULTILINE))

    def check(self):
        """Raise BookError if the chapter's code would not be run, or not as a notebook."""
        matter = self.front_matter
        if not self.runs:
            return
        representation = (matter.get("jupytext") or {}).get("text_representation") or {}
        if representation.get("format_name") != "myst":
            raise BookError(
                self.path,
                1,
                "has code cells, but its front matter does not say `jupytext: text_representation: "
                "format_name: myst`, so nothing would run them; copy the front matter of book/writing.md",
            )
        if not (matter.get("kernelspec") or {}).get("name"):
            raise BookError(
                self.path, 1, "has code cells, but its front matter names no kernel; copy that of book/writing.md"
            )

    @cached_property
    def notebook(self):
        """The chapter as a notebook (nbformat), read just as Jupyter Book reads it."""
        from myst_nb.core.read import read_myst_markdown_notebook

        return read_myst_markdown_notebook(self.text, add_source_map=True, path=self.root / self.path)

    @cached_property
    def cells(self):
        """The code cells that will run, in order."""
        lines, cells = self.text.splitlines(), []
        fences = self.notebook.metadata["source_map"]
        for position, (cell, fence) in enumerate(zip(self.notebook.cells, fences, strict=True)):
            if cell.cell_type == "code" and cell.source.strip():
                # Between the fence and the code there may be options: look for the code's own first line.
                first = cell.source.splitlines()[0]
                line = next((n for n in range(fence, len(lines)) if lines[n] == first), fence)
                cells.append(Cell(cell.source, position, line + 1))
        return cells


@dataclass(frozen=True)
class Book:
    """A book: the folder it lives in, its chapters in reading order, and its `_config.yml`."""

    root: Path
    chapters: tuple[Chapter, ...]
    config: dict

    @property
    def build_folder(self):
        """Where everything generated goes."""
        return self.root / "_build"

    @property
    def cell_seconds(self):
        """How long one cell may run: `execute: timeout:` of _config.yml."""
        return (self.config.get("execute") or {}).get("timeout", 30)

    def chapter(self, path):
        """The chapter of a path as a user types it: book/arrays.md, arrays.md or arrays."""
        name = str(path).removeprefix("./").removeprefix(f"{FOLDER}/").removesuffix(".md")
        for chapter in self.chapters:
            if chapter.name == name:
                return chapter
        known = ", ".join(chapter.path for chapter in self.chapters)
        raise BookError(path, None, f"no such chapter in _toc.yml; there are {known}")


def load(root):
    """Read the book below `root`, and check all that can be checked without running it.

    Returns a `Book`; raises `BookError` for the first thing that is wrong.
    """
    from sphinx_external_toc.parsing import MalformedError, parse_toc_yaml

    root = Path(root).resolve()
    config = _read_yaml(root, "_config.yml")
    toc_text = _read(root, "_toc.yml")
    _read_yaml(root, "_toc.yml")
    try:
        listed = list(parse_toc_yaml(root / "_toc.yml"))
    except MalformedError as error:
        raise BookError("_toc.yml", None, str(error)) from None

    chapters = []
    for entry in listed:
        line = next((n for n, text in enumerate(toc_text.splitlines(), 1) if text.split()[-1:] == [entry]), None)
        if not entry.startswith(f"{FOLDER}/"):
            raise BookError("_toc.yml", line, f"{entry} is not in {FOLDER}/, where chapters are")
        chapter = Chapter(root, entry.removeprefix(f"{FOLDER}/").removesuffix(".md"))
        if not (root / chapter.path).is_file():
            raise BookError("_toc.yml", line, f"lists {entry}, but there is no file {chapter.path}")
        chapter.check()
        chapters.append(chapter)
    strays = sorted({p.stem for p in (root / FOLDER).glob("*.md")} - {chapter.name for chapter in chapters})
    if strays:
        raise BookError(
            f"{FOLDER}/{strays[0]}.md", None, "is not in _toc.yml, so nobody would find it; list it there or delete it"
        )
    return Book(root, tuple(chapters), config)


def _read(root, name):
    try:
        return (root / name).read_text("utf-8")
    except FileNotFoundError:
        raise BookError(name, None, f"not found in {root}; run this in the folder of the book") from None


def _read_yaml(root, name):
    try:
        return yaml.safe_load(_read(root, name)) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise BookError(
            name, mark.line + 1 if mark else None, f"not YAML: {getattr(error, 'problem', error)}"
        ) from None
