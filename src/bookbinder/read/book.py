"""Read a book: its configuration, its table of contents and its chapters; every fault is named by
file and line.
"""

import ast
import os
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path

import yaml

from bookbinder.progress import printable

FOLDER = "book"  # where the chapters are, below the root
WORDS_A_MINUTE = 200  # that people read
LINES_A_MINUTE = 50  # of code
PREDICTION_MINUTES = 1
EXERCISE_MINUTES = {"★": 5, "★★": 10, "★★★": 20}  # by what stands behind an exercise's title
LEVELS = {1: "★☆☆", 2: "★★☆", 3: "★★★"}  # of a chapter
PATHS = "using"  # the page that offers paths through the book
APPENDICES = "Appendices"  # the part of _toc.yml that teaches no new subject
LONGEST_DESCRIPTION = 160  # characters that search engines show of it
KERNEL = "python3"  # Jupyter's name for the Python that it runs in itself
# What settings of _config.yml must be, if they are there.
SETTINGS = {
    "title": str,
    "author": str,
    "logo": str,
    "repository": dict,
    "repository: url": str,
    "repository: branch": str,
    "html": dict,
    "html: baseurl": str,
    "parse": dict,
    "parse: myst_enable_extensions": list,
    "sphinx": dict,
    "sphinx: config": dict,
    "sphinx: extra_extensions": list,
    "execute": dict,
}
# A code cell, from its fence to its end.
CELL = re.compile(
    r"^```\{code-cell\}[^\n]*\n(?P<options>(?::[^\n]*\n)*)(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
IN_WORDS = {str: "a text, in quotes", dict: "a table of settings", list: "a list of texts"}
SOURCES = (FOLDER, "src", "_config.yml", "_toc.yml")  # what people edit there


class BookError(Exception):
    """Something in the book's sources is wrong: "book/x.md:12: what, and what to do"."""

    def __init__(self, path, line, message):
        """Remember the place; `line` is None where the whole file is meant."""
        path, message = (" ".join(printable(str(part)).split()) for part in (path, message))
        self.path, self.line, self.message = path, line, message
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")


@dataclass(frozen=True)
class Cell:
    """A code cell: its source, its position among the notebook's cells, and the number of its first
    line of code.
    """

    source: str
    position: int
    line: int


@dataclass(frozen=True)
class Chapter:
    """One chapter: a Markdown file, and the program in it."""

    root: Path
    name: str  # "arrays" for book/arrays.md
    is_appendix: bool = False

    @property
    def path(self):
        """The file, relative to the root of the book, as messages print it."""
        return f"{FOLDER}/{self.name}.md"

    @cached_property
    def text(self):
        """The source of the chapter, with every line ended by a newline character."""
        data = (self.root / self.path).read_bytes()
        try:
            return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            wrong = data[error.start : error.end]
            raise BookError(
                self.path, line, f"not UTF-8: byte {wrong!r}; save it as UTF-8"
            ) from None

    @cached_property
    def front_matter(self):
        """The YAML between the two lines of dashes at the top, as a dict; empty if there is
        none.
        """
        if not self.text.startswith("---\n"):
            return {}
        block = re.match(r"---\n(.*?)^---\s*$", self.text, re.DOTALL | re.MULTILINE)
        if not block:
            raise BookError(
                self.path, 1, "the front matter does not end: put a line with --- below it"
            )
        matter = _yaml(block[1], self.path, "the front matter is", first_line=2) or {}
        if not isinstance(matter, dict):
            raise BookError(
                self.path,
                2,
                (
                    "the front matter must be a mapping of keys to values, not "
                    f"{type(matter).__name__}"
                ),
            )
        return matter

    @cached_property
    def jax_floor(self):
        """The oldest JAX that the chapter supports, if it says so: "0.8.2" for `jax: ">=0.8.2"`;
        else None.
        """
        if "jax" not in self.front_matter:
            return None
        value = self.front_matter["jax"]
        floor = re.fullmatch(r">=\s*(\d+(?:\.\d+)*)", value) if isinstance(value, str) else None
        if not floor:
            raise self._error_at(
                "jax", f'jax: {value!r} is not a minimum version; write for example jax: ">=0.8.2"'
            )
        return floor[1]

    @property
    def devices(self):
        """The devices of the chapter: "8 emulated devices", "8 processes"; "" if its cells do not
        say.
        """
        for cell in self.cells:
            match = re.search(r"^(?:\w+ = )?(emulate|start)\((\d+)", cell.source, re.MULTILINE)
            if match:
                return f"{match[2]} {'emulated devices' if match[1] == 'emulate' else 'processes'}"
        return ""

    @cached_property
    def minutes(self):
        """The minutes that text and code take to read, without outputs and exercises; 0 for a page
        of reference.
        """
        if not self._has_cells() and self.is_appendix:
            return 0
        return max(1, round(reading_minutes(self.text)))

    @cached_property
    def exercise_minutes(self):
        """The minutes that the exercises take, by their stars; 0 if there are none."""
        titles = re.findall(r"^```\{exercise-start\}[^\n]*?(★+)\s*$", self.text, re.MULTILINE)
        return sum(EXERCISE_MINUTES[stars] for stars in titles)

    @cached_property
    def prediction_minutes(self):
        """The minutes that the predictions take."""
        return PREDICTION_MINUTES * len(re.findall(r"^\*\*Predict\.\*\*", self.text, re.MULTILINE))

    @cached_property
    def assertions(self):
        """How many assertions the cells have, without those of solutions."""
        text = re.sub(_block("solution"), "", self.text, flags=re.DOTALL | re.MULTILINE)
        cells = re.findall(r"^```\{code-cell\}.*?^```$", text, flags=re.DOTALL | re.MULTILINE)
        return sum(len(re.findall(r"^ *assert\b", cell, re.MULTILINE)) for cell in cells)

    @cached_property
    def level(self):
        """How hard the chapter is, from 1 to 3; None if its front matter does not say."""
        level = self.front_matter.get("difficulty")
        if level not in (None, *LEVELS):
            raise self._error_at("difficulty", f"difficulty: {level!r} is not 1, 2 or 3")
        return level

    @cached_property
    def after(self):
        """The names of the chapters to read first."""
        after = self.front_matter.get("after", [])
        if not (isinstance(after, list) and all(isinstance(name, str) for name in after)):
            raise self._error_at(
                "after", f"after: {after!r} is not a list of chapters; write for example [arrays]"
            )
        return tuple(after)

    @cached_property
    def description(self):
        """A sentence about the chapter for search engines and previews of links; None if its front
        matter has none.
        """
        text = self.front_matter.get("description")
        if text is not None and not isinstance(text, str):
            raise self._error_at("description", f"description: {text!r} is not a sentence")
        if text and len(text) > LONGEST_DESCRIPTION:
            message = f"it has {len(text)} characters; search engines show {LONGEST_DESCRIPTION}"
            raise self._error_at("description", f"description: {message}")
        return text

    def _error_at(self, key, message):
        """The error of a line of the front matter."""
        lines = enumerate(self.text.split("\n"), 1)
        return BookError(
            self.path,
            next((n for n, text in lines if re.match(rf"[\"']?{key}\b", text)), 1),
            message,
        )

    @cached_property
    def notebook(self):
        """The chapter as a notebook (nbformat), read just as Jupyter Book reads it."""
        from myst_nb.core.read import read_myst_markdown_notebook

        try:
            return read_myst_markdown_notebook(
                self.text,
                config=_config_of(self.root),
                add_source_map=True,
                path=self.root / self.path,
            )
        except Exception as error:  # such as options of a cell that are not YAML
            raise BookError(
                self.path, None, f"cannot be read as a notebook: {' '.join(str(error).split())}"
            ) from None

    @cached_property
    def cells(self):
        """The code cells that are not empty, in order."""
        if "{code-cell}" not in self.text:
            return []
        lines, cells = self.text.split("\n"), []
        fences = self.notebook.metadata["source_map"]
        for position, (cell, fence) in enumerate(zip(self.notebook.cells, fences, strict=True)):
            if cell.cell_type == "code" and cell.source.strip():
                # Between the fence and the code there may be options: look for the first line that
                # is code.
                blank = len(cell.source) - len(cell.source.lstrip("\n"))
                first = cell.source.split("\n")[blank]
                line = next(
                    (n for n in range(fence, len(lines)) if lines[n].strip() == first.strip()),
                    fence + blank,
                )
                cells.append(Cell(cell.source, position, line + 1))
        return cells

    @property
    def runs(self):
        """Whether the chapter has code to run."""
        return bool(self.cells)

    def check(self):
        """Raise BookError if the chapter's code would not be run, or the chapter cannot be read as
        a notebook.
        """
        jupytext, kernel = (self.front_matter.get(key) or {} for key in ("jupytext", "kernelspec"))
        for key, value in (("jupytext", jupytext), ("kernelspec", kernel)):
            if not isinstance(value, dict):
                raise BookError(
                    self.path,
                    1,
                    f"{key}: must have keys below it; copy the front matter of book/writing.md",
                )
        _ = self.jax_floor, self.level, self.after, self.description
        if not self._has_cells():
            return
        representation = jupytext.get("text_representation")
        if not isinstance(representation, dict) or representation.get("format_name") != "myst":
            message = (
                "has code cells, but its front matter does not say `jupytext: "
                "text_representation: format_name: myst`, so nothing would run them; copy the "
                "front matter of book/writing.md"
            )
            raise BookError(self.path, 1, message)
        if not kernel.get("name"):
            message = (
                "has code cells, but its front matter names no kernel; copy that of book/writing.md"
            )
            raise BookError(self.path, 1, message)
        if kernel["name"] != KERNEL:
            line = next(
                (
                    n
                    for n, text in enumerate(self.text.split("\n"), 1)
                    if str(kernel["name"]) in text
                ),
                1,
            )
            message = (
                f"the kernel {kernel['name']} is not known: chapters run in the Python that "
                "builds the book; "
            )
            raise BookError(self.path, line, f"{message}write name: {KERNEL}")
        _ = self.notebook  # options of cells that cannot be read are an error too

    def _has_cells(self):
        """Whether there are code cells. Only those at the top level run; one inside another block
        is an error.
        """
        marks = [
            n
            for n, line in enumerate(self.text.split("\n"))
            if re.match(r"\s*(`{3,}|~{3,}|:{3,})\{code-cell\}", line)
        ]
        if not marks:
            return False
        from markdown_it import MarkdownIt

        top, shown = set(), []
        blocks = MarkdownIt("commonmark").disable("inline")
        for token in blocks.parse(
            re.sub(r"\A---\n.*?^---$", _blanked, self.text, flags=re.S | re.M)
        ):
            if token.type in ("fence", "code_block") and token.map:
                if token.level == 0 and token.info.startswith("{code-cell}"):
                    top.add(token.map[0])
                elif not token.info.startswith("{") or re.match(r"\{code(-block)?\}", token.info):
                    shown.append(range(*token.map))  # a block that shows how to write a cell
        for n in marks:
            if n not in top and not any(n in block for block in shown):
                raise BookError(
                    self.path,
                    n + 1,
                    "a code cell inside another block is not run; put it at the top level",
                )
        return bool(top)


def parser_config(config):
    """The settings of MyST, as Jupyter Book derives them from `_config.yml`."""
    from myst_parser.config.main import MdParserConfig

    # if `_config.yml` sets none
    usual = ["colon_fence", "dollarmath", "linkify", "substitution", "tasklist"]
    return MdParserConfig(
        enable_extensions=set((config.get("parse") or {}).get("myst_enable_extensions", usual))
    )


@cache
def _config_of(root):
    file = root / "_config.yml"
    return parser_config(yaml.safe_load(file.read_text("utf-8")) or {} if file.is_file() else {})


def slug(heading):
    """The anchor that most headings have, as search.js makes it too:
    "all-reduce-twice-the-bytes".
    """
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def reading_minutes(text):
    """The minutes that a text and its code take to read, without exercises, outputs and folded
    cells; not rounded.
    """
    text = re.sub(r"\A---\n.*?^---$|^% [^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(
        _block("exercise") + "|" + _block("solution"), "", text, flags=re.DOTALL | re.MULTILINE
    )
    lines = 0
    for cell in CELL.finditer(text):
        if not re.search("hide-cell|hide-input|remove-", cell["options"]):
            lines += len([line for line in cell["code"].split("\n") if line.strip()])
    code = r"^(`{3,})(?:\{(?:code-cell|code-block|literalinclude|math)\}[^\n]*|\w*)\n.*?^\1$"
    text = re.sub(code, "", text, flags=re.DOTALL | re.MULTILINE)
    return len(re.findall(r"\S*\w\S*", text)) / WORDS_A_MINUTE + lines / LINES_A_MINUTE


def _block(kind):
    """The pattern of a block from its start to its end, such as an exercise."""
    return rf"^```\{{{kind}-start\}}.*?^```\{{{kind}-end\}}$"


def _blanked(match):
    return "\n" * match[0].count("\n")


@dataclass(frozen=True)
class Book:
    """A book: its folder, its chapters in reading order, and its `_config.yml`."""

    root: Path
    chapters: tuple[Chapter, ...]
    config: dict
    # the caption of each, and the names of its chapters
    parts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    # the short title that _toc.yml gives a chapter, by its name
    titles: dict = field(default_factory=dict)

    @property
    def build_folder(self):
        """Where everything generated goes."""
        return self.root / "_build"

    @property
    def cell_seconds(self):
        """How long one cell may run: `execute: timeout:` of _config.yml."""
        return (self.config.get("execute") or {}).get("timeout", 30)

    def check(self):
        """Read all chapters, and raise BookError for every fault that can be found without running
        them.
        """
        from bookbinder.read import core  # which reads books

        titles = {chapter.name for chapter in self.chapters}
        core.stops(self)
        for chapter in self.chapters:
            chapter.check()
            for name in chapter.after:
                if name not in titles or name == chapter.name:
                    near = get_close_matches(name, titles - {chapter.name}, 1)
                    hint = f"; did you mean {near[0]}?" if near else ""
                    raise chapter._error_at(
                        "after", f"after: there is no other chapter {name}{hint}"
                    )

    @cached_property
    def paths(self):
        """The paths through the book that its page `using` offers: {title: the names of their
        chapters}.
        """
        pages = (chapter.text for chapter in self.chapters if chapter.name == PATHS)
        text = next(pages, "").partition(":::{container} paths\n")[2].partition("\n:::\n")[0]
        paths = re.split(r"^- \*\*(.+?)\*\*$", text, flags=re.MULTILINE)[1:]
        link = r"^ +\d+\. \{doc\}`(?:[^`]*<(\w+)>|(\w+))`"
        return {
            title: tuple(named or name for named, name in re.findall(link, stops, re.MULTILINE))
            for title, stops in zip(paths[::2], paths[1::2], strict=True)
        }

    def reading_time(self, names):
        """How long chapters take to read, such as "45 minutes" or "2½ hours".

        Args:
          names: of the chapters, "arrays auto"; "all" for those of all parts but the appendices.

        Raises KeyError for a name that is no chapter's, or a page's that is for looking things up.
        """
        return in_words(sum(chapter.minutes for chapter in self._timed(names)))

    def brief_time(self, names):
        """The same in a list: "45 min"."""
        return f"{sum(chapter.minutes for chapter in self._timed(names))} min"

    def times(self, names):
        """How long with their predictions and with their exercises: "20 minutes to read, 26 minutes
        with the predictions, 1½ hours with the exercises".
        """
        chapters = self._timed(names)
        read = sum(chapter.minutes for chapter in chapters)
        guess = read + sum(chapter.prediction_minutes for chapter in chapters)
        solve = guess + sum(chapter.exercise_minutes for chapter in chapters)
        return (
            f"{in_words(read)} to read, {in_words(guess)} with the predictions, "
            f"{in_words(solve)} with the exercises"
        )

    def _timed(self, names):
        """The chapters of `reading_time`."""
        timed = {chapter.name: chapter for chapter in self.chapters if chapter.minutes}
        taught = [name for caption, names in self.parts if caption != APPENDICES for name in names]
        return [timed[name] for name in (taught if names == "all" else names.split())]

    def chapter(self, path):
        """The chapter of a path as a user types it: book/arrays.md, arrays.md or arrays."""
        name = str(path).removeprefix(f"{self.root}/").removeprefix("./")
        name = name.removeprefix(f"{FOLDER}/").removesuffix(".md")
        for chapter in self.chapters:
            if chapter.name == name:
                return chapter
        known = ", ".join(chapter.path for chapter in self.chapters)
        raise BookError(path, None, f"no such chapter in _toc.yml; there are {known}")


def split_assertions(text):
    """The assertions at a cell's end, which may have one last expression behind them.

    Returns:
      The lines before them, the assertions, and the lines of the expression. If there are no
      assertions there, or if nothing stands before them, the whole cell and two times "".
    """
    try:
        body = ast.parse(text).body
    except SyntaxError:  # a magic
        return text, "", ""
    shown = len(body) > 1 and isinstance(body[-1], ast.Expr) and isinstance(body[-2], ast.Assert)
    first = last = len(body) - shown  # of the assertions, and of what stands behind them
    while first and isinstance(body[first - 1], ast.Assert):
        first -= 1
    if first == last or not first:
        return text, "", ""
    lines = text.split("\n")
    begin, end = body[first - 1].end_lineno, body[last - 1].end_lineno
    # two statements in one line
    if begin >= body[first].lineno or (shown and end >= body[last].lineno):
        return text, "", ""
    return (
        "\n".join(lines[:begin]),
        "\n".join(lines[begin:end]).strip("\n"),
        "\n".join(lines[end:]).strip("\n"),
    )


def in_words(minutes):
    """A time as people say it: 45 is "45 minutes", and 100 is "1½ hours"."""
    if minutes < 90:
        return f"{minutes} minute{'s' * (minutes != 1)}"
    halves = round(minutes / 30)
    return f"{halves // 2}{'½' * (halves % 2)} hours"


def load(root):
    """Read the configuration and the table of contents of the book below `root`; its chapters are
    read when asked for.

    Returns a `Book`; raises `BookError` for the first thing that is wrong.
    """
    from sphinx_external_toc.parsing import MalformedError, parse_toc_yaml

    root = Path(root).resolve()
    _check_place(root)
    config = _read_yaml(root, "_config.yml")
    _check_settings(config)
    seconds = (config.get("execute") or {}).get("timeout", 30)
    if type(seconds) is not int or not 1 <= seconds <= 10**6:
        raise BookError(
            "_config.yml",
            None,
            f"execute: timeout: is {str(seconds)[:40]}; use a whole number of seconds, from 1 to "
            "1,000,000",
        )
    _read_yaml(root, "_toc.yml")
    try:
        toc = parse_toc_yaml(root / "_toc.yml")
    except (MalformedError, TypeError, ValueError) as error:  # such as a list in place of a name
        raise BookError("_toc.yml", None, str(error)) from None
    lines = _read(root, "_toc.yml").split("\n")

    def line_of(entry):
        return next((n for n, text in enumerate(lines, 1) if text.split()[-1:] == [entry]), None)

    parts = tuple(
        (part.caption or "", tuple(map(_name, part.files()))) for part in toc.root.subtrees
    )
    appendices = {name for caption, names in parts if caption == APPENDICES for name in names}
    chapters = []
    for entry, document in toc.items():
        for pattern in document.child_globs():
            raise BookError(
                "_toc.yml",
                line_of(pattern),
                f"the pattern {pattern}: list the chapters one by one instead",
            )
        if not entry.startswith(f"{FOLDER}/"):
            raise BookError(
                "_toc.yml", line_of(entry), f"{entry} is not in {FOLDER}/, where chapters are"
            )
        chapter = Chapter(root, _name(entry), _name(entry) in appendices)
        if not os.path.isfile(root / chapter.path):  # also of a name that is too long
            raise BookError(
                "_toc.yml", line_of(entry), f"lists {entry}, but there is no file {chapter.path}"
            )
        chapters.append(chapter)
    files = (
        path.relative_to(root / FOLDER).with_suffix("") for path in (root / FOLDER).rglob("*.md")
    )
    visible = (
        path.as_posix() for path in files if not any(part.startswith(".") for part in path.parts)
    )
    strays = sorted(set(visible) - {chapter.name for chapter in chapters})
    if strays:
        message = "is not in _toc.yml, so no reader would find it; list it there or delete it"
        raise BookError(f"{FOLDER}/{strays[0]}.md", None, message)
    titles = {_name(entry): document.title for entry, document in toc.items() if document.title}
    return Book(root, tuple(chapters), config, parts, titles)


def _check_place(root):
    """Raise BookError for a folder, or a variable, with which tools of a build fail late."""
    if escape := re.search("%[0-9A-Fa-f]{2}", str(root)):
        message = (
            f"SQLite reads {escape[0]} in the name of a folder as another character; rename it"
        )
        raise BookError(root, None, message)
    if not str(root).isprintable():
        raise BookError(root, None, "its path is not in UTF-8, or has signs of control; rename it")
    if not re.fullmatch("([0-9]{1,11})?", epoch := os.environ.get("SOURCE_DATE_EPOCH", "")):
        message = f"is {epoch[:40]!r}; use a whole number of seconds since 1970, or unset it"
        raise BookError("SOURCE_DATE_EPOCH", None, message)


def _check_settings(config):
    """Raise BookError for a setting of another type than the builder and Jupyter Book take."""
    for place, kind in SETTINGS.items():
        value = config
        for key in place.split(": "):
            value = (value or {}).get(key)
        if value is not None and not (
            isinstance(value, kind)
            and (kind is not list or all(isinstance(text, str) for text in value))
        ):
            raise BookError(
                "_config.yml", None, f"{place}: is {str(value)[:80]}; use {IN_WORDS[kind]}"
            )


def _name(entry):
    return entry.removeprefix(f"{FOLDER}/").removesuffix(".md")


def _read(root, name):
    try:
        return (root / name).read_text("utf-8")
    except FileNotFoundError:
        raise BookError(
            name, None, f"not found in {root}; run this in the folder of the book"
        ) from None
    except UnicodeDecodeError as error:
        raise BookError(name, None, f"not UTF-8: {error.reason}; save it as UTF-8") from None


def _read_yaml(root, name):
    content = _yaml(_read(root, name), name, "") or {}
    if not isinstance(content, dict):
        raise BookError(
            name, 1, f"must be a mapping of keys to values, not {type(content).__name__}"
        )
    return content


def _yaml(text, path, what, first_line=1):
    try:
        return yaml.safe_load(text)
    except (ValueError, RecursionError) as error:  # such as a date of month 13
        raise BookError(path, None, f"{what} not YAML: {error}".strip()) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = f"{what} not YAML: {getattr(error, 'problem', None) or error}".strip()
        raise BookError(path, mark.line + first_line if mark else first_line, problem) from None
