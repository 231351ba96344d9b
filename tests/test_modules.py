"""What holds for every module of src/: it says its one job, and leaves to the others what is private to them."""

import ast
import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "src"
MODULES = sorted(SOURCES.rglob("*.py"))


def private(name):
    return name.startswith("_") and not name.endswith("__")


def borrowed(text):
    """The private names of other modules that a module's text uses, with their lines.

    A module whose file name begins with an underscore is private to its package, and may be imported in it; what it
    offers to the others has no underscore.
    """
    tree, modules, found = ast.parse(text), set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.asname or name.name.split(".")[-1] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                if SOURCES.joinpath(*node.module.split("."), f"{name.name}.py").exists():
                    modules.add(name.asname or name.name)
                elif private(name.name):
                    found.append((node.lineno, f"{node.module}.{name.name}"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            of = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", None)
            if of in modules and (of, node.attr) != ("os", "_exit"):  # which Python documents
                found.append((node.lineno, f"{of}.{node.attr}"))
    return sorted(found)


@pytest.mark.parametrize("file", MODULES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_no_module_uses_what_is_private_to_another(file):
    assert borrowed(file.read_text()) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from shardlab.layout import _short, describe", "shardlab.layout._short"),
        ("from shardlab import comms\ncomms._moves", "comms._moves"),
        ("from shardlab import comms as c\nc._moves()", "c._moves"),
        ("import shardlab.comms\nshardlab.comms._moves", "comms._moves"),
        ("from shardlab import _svg\n_svg._GROWTH", "_svg._GROWTH"),
        ("from shardlab._svg import _GROWTH", "shardlab._svg._GROWTH"),
        ("import sys\nsys._getframe()", "sys._getframe"),
    ],
)
def test_a_borrowed_name_is_found(text, name):
    assert [found for _, found in borrowed(text)] == [name]


def test_what_is_a_modules_own_is_no_others():
    own = "from shardlab import _svg, cost\n_x = 1\n_svg.row(cost.__doc__)\nself._x\nprint(_x)"
    assert borrowed(own) == []


@pytest.mark.parametrize("file", MODULES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_module_says_its_one_job_in_its_first_line(file):
    said = ast.get_docstring(ast.parse(file.read_text())).splitlines()
    assert len(said[0]) > 20 and said[0].endswith(".") and (len(said) == 1 or not said[1]), said[0]


@pytest.mark.parametrize("package", ["shardlab", "bookbinder"])
def test_a_package_lists_its_modules(package):
    """CONTRIBUTING.md sends people there."""
    modules = {file.stem for file in (SOURCES / package).glob("[!_]*.py")} - {"preflight"}  # a program of clusters.md
    about = ast.get_docstring(ast.parse((SOURCES / package / "__init__.py").read_text()))
    assert set(re.findall(rf"`{package}\.(\w+)`", about)) == modules
