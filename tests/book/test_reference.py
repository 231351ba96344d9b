"""The page of every public name: made from source, complete, and the same as what Python itself
says.
"""

import importlib
import inspect
import os
import re
import subprocess
import sys

import pytest
from compilers import COMPILE_ONLY
from places import ROOT
from repository import BOOK

from bookbinder.page import reference

PAGE = reference.page(ROOT / "src" / "shardlab")

MODULE = '''
"""Do one thing.

More of it:

    x = f(1)

and

    $ no python
"""

from dataclasses import dataclass
from typing import overload

from pack._inner import borrowed

__all__ = ["LIMIT", "Thing", "borrowed", "f"]

LIMIT = 3


@overload
def f(a: str): ...
def f(a: int, *args, key: dict[str, int] | None = None, **kwargs) -> str:
    """Do it.

    >>> print(f(1))
    one
        two

    Args:
      a: one, or
        the other: both.
      *args, **kwargs: more.

    Returns:
      A text.

    Raises:
      ValueError: never.

    And then
    """


def _own():
    """Nobody's."""


@dataclass(frozen=True)
class Thing:
    """A thing.

    Attributes:
      size: how large.
    """

    size: int = 3

    @property
    def half(self) -> float:
        """Half of it."""

    def shrink(self, by: "int | None" = None) -> "str":
        """Shrink."""

    def grow(self, by=1):
        """Grow.

        >>> Thing().grow()
        4
        """
'''


@pytest.fixture
def pack(tmp_path):
    folder = tmp_path / "pack"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""pack.\n\n- `pack.one`: do one thing\n"""\n')
    (folder / "one.py").write_text(MODULE.lstrip())
    lent = (
        'def borrowed(long_name_one, long_name_two={"a": (1, 2)}, *, long_name_three="x,y,z", '
        "long_name_four=4):"
    )
    (folder / "_inner.py").write_text(f'{lent}\n    """Lent."""\n')
    return reference.page(folder)


def test_signatures_prose_and_parts_are_markdown(pack):
    assert pack.startswith(
        "## `pack.one`: do one thing\n\nMore of it:\n\n```python\nx = "
        "f(1)\n```\n\nand\n\n```text\n$ no"
    )
    assert (
        "```python\nf(a: int, *args, key: dict[str, int] | None = None, **kwargs) -> "
        "str\n```\n\nDo it.\n\n"
    ) in pack
    assert (
        "**Arguments**\n\n`a`\n: one, or\n  the other: both.\n\n`*args`, `**kwargs`\n: more."
        in pack
    )
    assert "**Returns**\n\nA text.\n\n**Raises**\n\n`ValueError`\n: never.\n\nAnd then" in pack
    assert (
        "```python\nThing(size: int = 3)\n```\n\nA thing.\n\n**Attributes**\n\n`size`\n: how large."
        in pack
    )
    shrink = "`shrink(by: int | None = None) -> str`\n: Shrink."
    said = (
        "**Properties and methods**\n\n`half: float`\n: Half of "
        f"it.\n\n{shrink}\n\n`grow(by=1)`\n: Grow.\n\n  ```"
    )
    assert said in pack
    assert "LIMIT = 3" in pack and "_own" not in pack


def test_examples_are_python(pack):
    assert "Do it.\n\n```python\n>>> print(f(1))\none\n    two\n```\n\n**Arguments**" in pack
    assert "`grow(by=1)`\n: Grow.\n\n  ```python\n  >>> Thing().grow()\n  4\n  ```" in pack


def test_a_long_signature_has_a_line_for_each_argument(pack):
    lines = ["borrowed(", "    long_name_one,", "    long_name_two={'a': (1, 2)},", "    *,"]
    assert "\n".join([*lines, "    long_name_three='x,y,z',", "    long_name_four=4,", ")"]) in pack


def test_every_public_name_of_shardlab_is_there_with_its_arguments():
    modules = re.findall(r"^## `(shardlab\.[\w.]+)`: ", PAGE, re.MULTILINE)
    parts = re.split(r"^## `shardlab\.[\w.]+`: .*$", PAGE, flags=re.MULTILINE)[1:]
    for name, part in zip(modules, parts, strict=True):
        module = importlib.import_module(name)
        entries = re.split(r"^### `(\w+)`$", part, flags=re.MULTILINE)[1:]
        assert entries[::2] == module.__all__
        for public, text in zip(entries[::2], entries[1::2], strict=True):
            thing = getattr(module, public)
            if inspect.isfunction(thing) and thing.__module__.startswith("shardlab"):
                head = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)[1]
                for argument in inspect.signature(thing).parameters:
                    assert re.search(rf"\b{argument}\b", head), f"{public}: {argument}"
                assert inspect.getdoc(thing).splitlines()[0].rstrip() in text


# --- Examples -------------------------------------------------------------------------------------

# Modules whose public functions all have an example, and functions that need what a test cannot
# have.
SHOWN = (
    "arrays.layout",
    "book.specs",
    "costs",
    "costs.inference",
    "costs.plan",
    "costs.serving",
    "exercises.check",
    "exercises.testing",
    "machines.hardware",
    "machines.models",
    "programs.collectives",
    "report.explain",
)
RUN = """
import doctest, importlib, sys

begin, *modules = sys.argv[1:]
names = {}
exec(begin, names)
runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
for module in modules:
    for example in doctest.DocTestFinder().find(importlib.import_module(f"shardlab.{module}"), globs=names):
        runner.run(example)
print(runner.summarize())
"""  # noqa: E501


def test_every_example_shows_what_python_shows():
    """In a new process, after the lines that the page gives."""
    begin = re.search(r"```python\n(.*?)```", BOOK.chapter("reference").text, re.DOTALL)[1]
    files = (
        file.relative_to(ROOT / "src/shardlab").with_suffix("")
        for file in (ROOT / "src/shardlab").rglob("*.py")
    )
    modules = [".".join(file.parts) for file in files if not file.stem.startswith("__")] + ["costs"]
    command = [sys.executable, "-c", RUN, begin, *modules]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"XLA_FLAGS": COMPILE_ONLY}
    )
    assert done.returncode == 0, done.stderr
    failed, tried = map(int, re.search(r"failed=(\d+), attempted=(\d+)", done.stdout).groups())
    assert not failed and tried > 100, done.stdout


@pytest.mark.parametrize("name", SHOWN)
def test_public_functions_have_an_example(name):
    module = importlib.import_module(f"shardlab.{name}")
    functions = [one for one in map(module.__dict__.get, module.__all__) if inspect.isfunction(one)]
    assert functions and [f.__name__ for f in functions if ">>> " not in f.__doc__] == []


def test_anchors_are_unique_and_belong_to_the_page():
    anchors = re.findall(r"^\((.*)\)=$", PAGE, re.MULTILINE)
    assert len(anchors) == len(set(anchors)) > 80 and all(
        anchor.startswith("reference-") for anchor in anchors
    )
    assert "% public names of shardlab\n" in BOOK.chapter("reference").text


def test_the_names_that_code_imports_from_the_package_are_known():
    code = (
        "from pack import (\n    a,\n    b as c,\n)\nfrom pack.inner import d, e\nfrom packet "
        "import f\nimport pack\n"
    )
    assert reference.imports(code, "pack") == {"a", "b", "d", "e"}


def test_a_name_that_two_modules_have_leads_nowhere():
    anchors = reference.anchors(ROOT / "src" / "shardlab")
    names = re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)
    assert anchors["explain"] == "reference-report-explain-explain" and len(anchors) > 150
    twice = {name for name in names if names.count(name) > 1}
    assert set(names) - set(anchors) == twice
