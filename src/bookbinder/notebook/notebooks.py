"""Make each chapter a notebook that Colab opens and runs, `_build/notebooks/NAME.ipynb`, with the
wheel beside them.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from packaging.version import Version

from bookbinder.notebook import core as core_chapters, markdown
from bookbinder.progress import AS_TEXT
from bookbinder.read import address as addresses, core, package
from bookbinder.read.book import BookError, split_assertions
from bookbinder.read.excerpts import COPY
from bookbinder.run.compare import VARIES
from bookbinder.run.environments import COLAB
from bookbinder.run.run_notebook import UNCACHED

# folded, since Colab hides nothing for good
FOLD_TAGS = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
# for the page only
PAGE_TAGS = {COPY, "hide-output", "key-figure", "remove-output", "remove-stdout", "remove-stderr"}
RUN_TAGS = {UNCACHED, VARIES}  # for those who run it
PYTHON_MAGICS = {"processes", "time", "timeit", "capture", "px"}
CHECKS = "checks"  # the tag of a cell that has the assertions of the cell before it
BADGE = f"{addresses.COLAB}/assets/colab-badge.svg"
CLASS = "class"  # the folder of notebooks without solutions, for courses
# characters of one output, and of all in a notebook; others are left out
OUTPUT_MOST, OUTPUTS_MOST = 40_000, 400_000
# what GitHub takes out of HTML
NOT_IN_PREVIEWS = re.compile(r"<(svg|script|style|input|button|canvas)\b")
# how the cells begin there in which the reader writes; `shardlab grade` reads it
ANSWER = "# Your answer to exercise"


def make(book, chapters=None, outputs=None):
    """Make the notebooks of all chapters that have code, or of some of them.

    A chapter with exercises has a second one, `class/NAME.ipynb`, in which solutions are left out
    and what checks the answers is not shown. The same sources at the same commit give the same
    bytes.

    Args:
      book: the `bookbinder.read.book.Book`.
      chapters: those to make; all by default.
      outputs: for chapters, by their names, the outputs of each code cell, as
        `bookbinder.run.execute.outputs` finds them. Then the notebook shows those that a reader may
        see before running it: none of folded cells, of exercises, and of cells that answer a
        prediction. Notebooks for courses show none.

    Returns:
      A dict from the names of the files to their content, as text.

    Raises:
      BookError: a chapter uses something that Colab would not show; with file and line.
    """
    parser = markdown.make_parser(book.config)
    targets = markdown.targets(book, parser)
    address = addresses.of(book.config)
    commit = addresses.commit(book.root)
    files = {}
    for chapter in chapters or book.chapters:
        if chapter.runs:
            text = markdown.Markdown(
                book, chapter, targets, address, commit or address.branch, parser
            )
            shown = (outputs or {}).get(chapter.name, ())
            files[f"{chapter.name}.ipynb"] = _Notebook(text, commit, outputs=shown).text()
            if "{exercise-start}" in chapter.text:
                files[f"{CLASS}/{chapter.name}.ipynb"] = _Notebook(
                    text, commit, for_class=True
                ).text()
    if chapters is None:
        files |= _of_core(book, targets, address, commit, parser)
    return files


def _of_core(book, targets, address, commit, parser):
    """The notebooks of the paths through the core of the book, `hour.ipynb` and `evening.ipynb`."""
    files = {}
    for path in core.TITLES:
        cells = []
        for chapter in core_chapters.chapters(book, path):
            text = markdown.Markdown(
                book, chapter, targets, address, commit or address.branch, parser
            )
            notebook = _Notebook(text, commit)
            notebook.read()
            title, set_up_cell, *rest = notebook.cells
            page = f"[The whole chapter]({address.page(chapter.name)})"
            title["source"] = f"{title['source'].partition(chr(10))[0]}\n\n{page}"
            is_same = cells and set_up_cell["source"] == cells[0]["source"]
            cells += [*([] if is_same else [set_up_cell]), title, *rest]
        if cells:
            own = f"[![Open in Colab]({BADGE})]({address.colab(path)})"
            book_link = f"[{book.config.get('title', 'The book')}]({address.site})"
            said = f"# {core.FILES[path]}\n\n{own}\n\nThe core of {book_link}. {LEFT_OUT}"
            cells.insert(0, {"cell_type": "markdown", "metadata": {}, "source": said})
            files[f"{path}.ipynb"] = _as_text(cells, path)
    return files


LEFT_OUT = "Cells that are folded hold code of sections that are left out; run them too."


def _as_text(cells, name):
    """Cells as the text of a notebook's file."""
    import nbformat

    metadata = {
        "colab": {"provenance": [], "toc_visible": True},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(cells):
        cell["id"] = f"{re.sub(r'[^a-zA-Z0-9-_]', '-', name)[:50]}-{number}"
    notebook = nbformat.from_dict(
        {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    )
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


class _Notebook:
    """The notebook of one chapter, while it is made."""

    def __init__(self, text, commit, for_class=False, outputs=()):
        self.markdown, self.chapter, self.commit, self.for_class = (
            text,
            text.chapter,
            commit,
            for_class,
        )
        self.outputs, self.room = iter(outputs), OUTPUTS_MOST
        self.cells, self.buffer, self.solution, self.gate, self.label = [], [], None, None, None
        # A prediction goes on until text follows its cells.
        self.is_prediction, self.answer, self.answered = False, "", False

    def text(self):
        """The notebook as the text of a file."""
        self.read()
        return _as_text(self.cells, self.chapter.name)

    def read(self):
        """Make the cells."""
        source = self.chapter.text
        lines = source.split("\n")
        code = iter([cell for cell in self.chapter.notebook.cells if cell.cell_type == "code"])
        for group in markdown.groups(self.markdown.parse(source)):
            token = group[0]
            line = token.map[0] + 1 if token.map else 1
            if not self.cells and token.type not in markdown.DROPPED and token.tag != "h1":
                raise BookError(self.chapter.path, line, "a chapter begins with its title: # Title")
            if token.type == "fence" and token.info.startswith("{code-cell}"):
                self._flush()
                if (cell := next(code, None)) is None:
                    raise BookError(
                        self.chapter.path,
                        line,
                        "this is not read as a code cell; check the blocks above it",
                    )
                self._code(cell, line, next(self.outputs, ()))
                self.answered = self.is_prediction
                continue
            self._show_answer()
            if token.type == "heading_open" and token.tag == "h1":
                self._begin(group, line)
            elif token.type in ("heading_open", "myst_block_break"):
                self._flush()
                if token.type == "heading_open":
                    self.buffer.append(self.markdown.block(group, lines, 1))
            else:
                directive = markdown.as_directive(token, line, self.chapter)
                if directive and directive.name in GATES:
                    self._gate(directive, line)
                elif self.is_prediction and (question := self.markdown.choices(group, lines, 1)):
                    block, self.answer = question
                    self.buffer.append(block)
                elif block := self.markdown.block(group, lines, 1):
                    self.is_prediction = block.startswith("**Predict.**") or self.is_prediction
                    self.buffer.append(block)
        self._show_answer()
        self._flush()
        if self.gate:
            raise BookError(self.chapter.path, self.gate[1], f"this has no {{{self.gate[0]}-end}}")

    def _show_answer(self):
        """Behind the cells that answer a prediction, its right choice and the reasons, folded."""
        if self.answered:
            if self.answer:
                self.buffer.append(markdown.box("The answer, and why", self.answer, True))
            self.is_prediction, self.answer, self.answered = False, "", False

    def _begin(self, group, line):
        """The title with its links, and the set-up cell."""
        if self.cells:
            raise BookError(
                self.chapter.path, line, "a chapter has one title; write ## for a section"
            )
        address, name = self.markdown.address, self.chapter.name
        own = f"{CLASS}/{name}" if self.for_class else name
        self._text(
            f"{self.markdown.block(group, self.chapter.text.split(chr(10)), 1)}\n\n"
            f"[![Open in Colab]({BADGE})]({address.colab(own)})\n\n"
            f"A chapter of [{self.markdown.book.config.get('title', 'the book')}]({address.site}). "
            f"[Its page]({address.page(name)}) shows all outputs; run the cells to make your own."
        )
        self._add_code(
            "#@title Set-up: run this first\n" + set_up(self.chapter, address, self.commit)
        )

    def _gate(self, directive, line):
        """Exercises and solutions hold cells, so their beginnings and ends are directives between
        the cells.
        """
        kind, _, side = directive.name.partition("-")
        now = self.gate[0] if self.gate else None
        if now != (None if side == "start" else kind):
            message = f"{{{directive.name}}} does not fit here: " + (
                f"end the open {now} first" if now else "none is open"
            )
            raise BookError(self.chapter.path, line, message)
        self._flush()
        self.gate = (kind, line) if side == "start" else None
        self.solution = None
        if side == "start":
            number, title = self.markdown.exercise(directive, line)
            self.solution = number if kind == "solution" else None
            self.label = directive.options.get("label") if kind == "exercise" else None
            text = self.markdown.text(directive.body, directive.line)
            self.buffer += [part for part in (title if kind == "exercise" else "", text) if part]

    def _flush(self):
        """End a text cell."""
        text, self.buffer = "\n\n".join(self.buffer), []
        if text and self.solution:
            text = (
                ""
                if self.for_class
                else markdown.box(f"Solution of exercise {self.solution}", text, True)
            )
        if text:
            self._text(text)

    def _text(self, text):
        self.cells.append({"cell_type": "markdown", "metadata": {}, "source": text})

    def _code(self, cell, line, outputs):
        """A code cell, folded if it is folded on the page, except where the reader is to write."""
        tags = set(cell.metadata.get("tags", ()))
        if unknown := tags - FOLD_TAGS - PAGE_TAGS - RUN_TAGS:
            known = ", ".join(sorted(FOLD_TAGS | PAGE_TAGS | RUN_TAGS))
            raise BookError(
                self.chapter.path,
                line,
                f"notebooks do not know the tag {min(unknown)}; there are {known}",
            )
        if not cell.source.strip() or (self.solution and self.for_class):
            return
        title = None
        if self.solution:
            title = f"Solution of exercise {self.solution}"
        elif tags & FOLD_TAGS and self.gate and not self._is_for_the_reader(line):
            title = "What checks your answer"
        elif tags & FOLD_TAGS and not self.gate:
            title = "Folded code"
        source, checks = cell.source, ""
        if self.for_class and self.gate and not self.solution:
            if self._is_for_the_reader(line):
                source = f"{ANSWER} {self.label}: leave this line as it is.\n{source}"
            elif not source.startswith("%%"):
                source = _unreadable(source)
        if self.is_prediction and not title:
            before, checks, after = split_assertions(source)
            source = "\n".join(filter(None, [before, after]))
        hiding_tags = tags & {"hide-output", "remove-output"}
        is_hidden = title or self.is_prediction or self.gate or hiding_tags
        shown = () if is_hidden else self._shown(outputs, tags)
        self._add_code(source, title, sorted(tags & RUN_TAGS), shown)
        if checks:
            self._add_code(checks, "Checked", [CHECKS])

    def _shown(self, outputs, tags):
        """Those of a cell's outputs that a notebook shows: not too long, and such as GitHub's
        preview can show.
        """
        shown = []
        for output in outputs:
            if output.output_type == "stream" and f"remove-{output.name}" in tags:
                continue
            small = _for_previews(output)
            size = len(json.dumps(small))
            if small and size <= min(OUTPUT_MOST, self.room):
                self.room -= size
                shown.append(small)
        return shown

    def _is_for_the_reader(self, line):
        """Whether the code cell that begins in this line is its exercise's last, in which the
        reader writes.
        """
        below = "\n".join(self.chapter.text.split("\n")[line:])
        return (
            re.search(r"^`{3,}\{(code-cell|exercise-end)\}", below, re.MULTILINE)[1]
            == "exercise-end"
        )

    def _add_code(self, source, title=None, tags=(), outputs=()):
        """A cell, folded under a title if it has one."""
        if source.startswith("%%") and source[2:].split()[0] not in PYTHON_MAGICS:
            title = None  # a cell in another language is not changed
        metadata = {"tags": list(tags)} if tags else {}
        if title:  # a magic stays the first line
            first, _, code = source.partition("\n") if source.startswith("%%") else ("", "", source)
            hint = "" if code.startswith(_UNREADABLE) else ": double-click to read it"
            source = "\n".join(part for part in (first, f"#@title {title}{hint}", code) if part)
            metadata |= {"cellView": "form", "jupyter": {"source_hidden": True}}
        cell = {
            "cell_type": "code",
            "metadata": metadata,
            "source": source,
            "execution_count": None,
        }
        self.cells.append({**cell, "outputs": list(outputs)})


def _for_previews(output):
    """An output in the form in which a notebook keeps it; None if it would only show how an object
    is called.
    """
    if output.output_type == "stream":
        return {"output_type": "stream", "name": output.name, "text": output.text}
    if output.output_type == "error":
        return {name: output[name] for name in ("output_type", "ename", "evalue", "traceback")}
    data = output.data
    html, plain = data.get("text/html", ""), data.get("text/plain", "")
    # not only an object's name
    in_text = {} if re.fullmatch(r"<.*>|", plain, re.DOTALL) else {"text/plain": plain}
    if "image/svg+xml" in data:
        kept = {"image/svg+xml": data["image/svg+xml"]}
    elif html and not NOT_IN_PREVIEWS.search(html):
        kept = {"text/html": html, **in_text}
    elif "text/markdown" in data:
        kept = {"text/markdown": data["text/markdown"], **in_text}
    else:
        kept = in_text  # pictures of arrays are drawn in text too
    return {"output_type": "display_data", "data": kept, "metadata": {}} if kept else None


_UNREADABLE = "import base64, zlib\n\nexec(zlib.decompress(base64.b85decode"


def _unreadable(source):
    """Code that runs as before and shows nothing of what it checks."""
    packed = base64.b85encode(zlib.compress(source.encode(), 9)).decode()
    return f"{_UNREADABLE}({packed!r})))"


GATES = ("exercise-start", "exercise-end", "solution-start", "solution-end")

_INSTALL = """\
from importlib.util import find_spec
from pathlib import Path

archive = "{archive}"
wheel = "{wheel}"  # in this folder if you downloaded all notebooks
if not find_spec("{package}"):
    package = wheel if Path(wheel).is_file() else archive
    %pip install --quiet {{package}}
if not find_spec("{package}"):
    raise RuntimeError("{package} could not be installed: the lines above say why")
"""
_UPGRADE = """
from importlib.metadata import version

from packaging.version import Version

if Version(version("jax")) < Version("{floor}"):
    %pip install --quiet "jax>={floor}"
    raise RuntimeError("JAX has been upgraded: choose Runtime > Restart session, then Runtime > Run all")
"""  # noqa: E501


def set_up(chapter, address, commit):
    """The first cell of a notebook: it installs the package, and what the chapter imports but Colab
    lacks.
    """
    imported = package.of(chapter.root)
    code, version = "", commit or address.branch
    if imported.name:
        code = _INSTALL.format(
            package=imported.name, archive=address.archive(version), wheel=imported.wheel
        )
    for other in imported.not_in_colab:
        imports = rf"^import {other.partition('==')[0]}\b"
        if any(re.search(imports, cell.source, re.MULTILINE) for cell in chapter.cells):
            code += f"%pip install --quiet {other}\n"
    if chapter.jax_floor and Version(chapter.jax_floor) > Version(colab_version("jax")):
        code += _UPGRADE.format(floor=chapter.jax_floor)
    if imported.set_up and any(imported.set_up_for in cell.source for cell in chapter.cells):
        code += f"\n{imported.set_up}"
    return code.rstrip("\n")


def colab_version(package):
    """The version of a package that stock Colab has, such as "0.7.2" for "jax"."""
    pins = COLAB.read_text("utf-8").splitlines()
    return dict(pin.split("==") for pin in pins if "==" in pin)[package]


def write(book, files, folder):
    """Write notebooks, wheel and VERSION.json into a new folder."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    wheel = build_wheel(book.root, folder)
    commit = addresses.commit(book.root)
    version = {
        "repository": addresses.of(book.config).repository,
        "commit": commit,
        "wheel": wheel,
        "notebooks": sorted(files),
    }
    (folder / "VERSION.json").write_text(json.dumps(version, indent=1) + "\n")


def build_wheel(root, folder):
    """Build the package's wheel into a folder; returns its name. The same sources give the same
    bytes.
    """
    if not package.of(root).wheel:
        return None
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1577836800", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder_of_wheel:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder_of_wheel]
        # In a session of its own, so that Ctrl-C reaches the builder alone.
        process = subprocess.run(
            command,
            cwd=root,
            env=environment,
            capture_output=True,
            **AS_TEXT,
            start_new_session=True,
        )
        if process.returncode:
            raise BookError(
                "pyproject.toml",
                None,
                f"the wheel of {package.of(root).name} cannot be built:\n{process.stderr.strip()}",
            )
        shutil.copy(Path(folder_of_wheel, package.of(root).wheel), folder)  # notebooks name it
    return package.of(root).wheel
