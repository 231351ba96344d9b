"""A small book to try bookbinder on, and what tests ask about a build of it."""

import os
import re
import subprocess
import sys
import textwrap
import time
from contextlib import suppress

import psutil
from waiting import PATIENCE

FRONT = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""


def chapter(title, *cells):
    return (
        FRONT
        + f"# {title}\n\n"
        + "\n".join(f"```{{code-cell}}\n{textwrap.dedent(c).strip()}\n```\n" for c in cells)
    )


def waits_for(file):
    """A line of code that waits until a file is there."""
    return (
        f"import os, time; [time.sleep(0.05) for _ in iter(lambda: os.path.exists({str(file)!r}), "
        "True)]"
    )


class TinyBook:
    """A book of two chapters in a folder of its own, and the commands that a user would type."""

    def __init__(self, root):
        # `seen` is where this process finds it: commands may run elsewhere
        self.root = self.seen = root
        self.within = []  # what to put before each command
        (root / "book").mkdir()
        (root / "src" / "shardlab").mkdir(parents=True)
        self.write("src/shardlab/value.py", "VALUE = 1\n")
        names = 'name = "shardlab"\nrecordings = "src/shardlab/pods/recordings"\n'
        variables = 'unset = "JAX_|XLA_"\nvariables = {JAX_PLATFORMS = "cpu"}\n'
        self.write("pyproject.toml", f"[tool.bookbinder]\n{names}{variables}")
        self.write(
            "_config.yml",
            """\
            title: Tiny
            only_build_toc_files: true
            repository: {url: https://github.com/tiny/here, branch: main}
            execute: {execute_notebooks: cache, timeout: 120}
            sphinx:
              recursive_update: true
              extra_extensions: [bookbinder.page.extension]
              config: {html_theme: bookbinder}
            """,
        )
        self.write(
            "_toc.yml",
            """\
            format: jb-book
            root: book/index
            chapters:
              - file: book/one
              - file: book/two
            """,
        )
        self.write("book/index.md", "# Home\n\nSee {doc}`one`, at {{ repository }}.\n")
        self.write("book/one.md", chapter("One", "print('one', 1 + 1)"))
        self.write(
            "book/two.md",
            chapter("Two", "exec(open('../src/shardlab/value.py').read()); print('two', VALUE)"),
        )

    def write(self, name, text):
        (self.root / name).write_text(textwrap.dedent(text) if name.endswith("yml") else text)

    def start(self, *arguments, **environment):
        """Start the builder; its output is collected."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
        environment = {**clean, "TINY_BOOK": str(self.root), **environment}
        return subprocess.Popen(
            [
                *self.within,
                sys.executable,
                "-m",
                "bookbinder",
                "--root",
                str(self.root),
                *(arguments or ["build"]),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.root,
            env=environment,
        )

    def start_until(self, file):
        """Start the builder, and wait until a cell has made a file."""
        process = self.start()
        while not file.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        return process

    def build(self, *arguments, **environment):
        """Run the builder to its end; returns its exit status, standard output and standard
        error.
        """
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def site(self):
        """The published site: each file with its content."""
        html = self.seen / "_build" / "html"
        return {
            str(path.relative_to(html)): path.read_bytes()
            for path in html.rglob("*")
            if path.is_file()
        }

    def page(self, name):
        return (self.seen / "_build" / "html" / f"{name}.html").read_text()

    def processes(self):
        """What runs of this book's commands, however far it has gone from them; in words."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("TINY_BOOK") == str(self.root):
                    found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        return found


def statuses(table):
    """The closing table as a dict: chapter to result."""
    rows = re.findall(
        r"^(\w+) +(?:\d+ +)?(ran|reused|failed|left out|no code)", table, re.MULTILINE
    )
    return dict(rows)
