"""What is stale: the digests by which all that was made before is known to be of today's sources.

What is kept, and what must be the same for it to hold:

- the run of a chapter, in `_build/runs`: `chapter`, with `settings`; `file` of each that it has
  read
- its compiled programs, in `_build/programs`: `compiler`; in the archive's name, `settings`; for
  each program, JAX's own key
- what Sphinx has read of a chapter: `text`, and the `file` of its outputs
- what Sphinx has read at all, in `_build/staging`: `start`; for Sphinx itself, `builder`
- a page that was written: `besides`, of what it reads besides its text; `shown`, of what it shows
  of other pages
- the site, in `_build/html`: `inputs`, `published`, and `besides`, of what chapters include

Proofs of tests have keys of their own (`tests/tools/runs/proofs.py`), made of `chapter`,
`environment` and `file`.
"""

import json
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from bookbinder import disk
from bookbinder.progress import AS_TEXT
from bookbinder.read import package
from bookbinder.read.book import FOLDER
from bookbinder.run import run_notebook

RUNNER = Path(run_notebook.__file__)
IN_WHEEL = ("pyproject.toml", "README.md", "LICENSE")  # besides the package


# --- Where chapters run ---------------------------------------------------------------------------


@cache
def environment(python=sys.executable):
    """A Python and its installed packages, as JSON: what is there, not what the lock says."""
    if python == sys.executable:
        return json.dumps(run_notebook.environment())
    return subprocess.check_output([python, RUNNER, "--environment"], **AS_TEXT)


def packages(python=sys.executable):
    """The packages of a Python, such as "jax-0.7.2"."""
    return json.loads(environment(python))["packages"]


@cache
def processor():
    """A digest of what a processor is and can, as far as compilers ask."""
    parts = [platform.system(), platform.machine(), platform.processor()]
    with suppress(OSError):
        asked = r"(vendor_id|cpu family|model|model name|stepping|flags|CPU \w+|Features)\s*:"
        first = Path("/proc/cpuinfo").read_text("utf-8", "replace").split("\n\n")[0]
        parts += [line for line in first.splitlines() if re.match(asked, line)]
    return disk.digest(*parts)[:8]


def compiler(names, python=sys.executable):
    """The versions of packages that compile, and the processor that they compile for."""
    installed = (re.fullmatch(rf"(?:{'|'.join(names)})-\d.*", info) for info in packages(python))
    return "-".join([*sorted(match[0] for match in installed if match), processor()])


def settings(variables):
    """Environment variables that chapters are run with besides the usual ones; "" if there are
    none.
    """
    return disk.digest(json.dumps(variables, sort_keys=True)) if variables else ""


# --- A chapter ------------------------------------------------------------------------------------


def chapter(book, chapter, python=sys.executable):
    """What a chapter's run depends on, as far as it is known before: code, runner, Python and
    packages.
    """
    code = [
        (cell.source, cell.metadata) for cell in chapter.notebook.cells if cell.cell_type == "code"
    ]
    parts = [json.dumps(code), RUNNER.read_text("utf-8"), environment(python)]
    imported = package.of(book.root)
    if any(imported.is_imported(source) for source, _ in code):
        parts.append(imported.data_files(book.root))
    return disk.digest(*parts)


def text(chapter):
    """A chapter's source as a whole, prose too."""
    return disk.digest(chapter.text)


def file(root, name):
    """A file below a root; "" if it is gone."""
    return disk.file_digest(root / name)


# --- Pages ----------------------------------------------------------------------------------------


def builder():
    """The modules that make pages and run chapters."""
    return disk.folder_digest(Path(disk.__file__).parent, "*.py")


def start(book, only=None):
    """Everything whose change makes Sphinx start again from nothing; `only` is the chapter that is
    made alone.
    """
    return disk.digest(
        environment(),
        builder(),
        disk.folder_digest(book.root / FOLDER / "static"),
        (book.root / "_config.yml").read_text("utf-8"),
        os.environ.get("GITHUB_REPOSITORY", ""),
        os.environ.get("GITHUB_SERVER_URL", ""),
        only.name if only else "",
    )


def besides(files):
    """For each of some files its digest, by its name: what pages read besides the chapters'
    texts.
    """
    return {str(name): disk.file_digest(Path(name)) for name in sorted(files, key=str)}


def shown(*parts):
    """What one page shows of another, and the theme: of parts that JSON or `str` can write."""
    return disk.digest(json.dumps(parts, default=str, sort_keys=True))


# --- The site -------------------------------------------------------------------------------------


def inputs(book):
    """Everything that the site depends on."""
    return disk.digest(
        environment(),
        disk.folder_digest(book.root / FOLDER),
        disk.folder_digest(book.root / "src"),
        (book.root / "_toc.yml").read_text("utf-8"),
        *(
            disk.digest(*(file.read_text("utf-8") for file in book.root.glob(name)))
            for name in IN_WHEEL
        ),
        start(book),
    )


def published(folders):
    """The files of some folders by size and time: whether they are still those that the last build
    has made.
    """
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return disk.digest(
        *(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)
    )
