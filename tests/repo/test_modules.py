"""What holds for every module of src/: it says its one job, and leaves to the others what is
private to them.
"""

import ast
import re
import tomllib

import pytest
from places import ROOT

SOURCES = ROOT / "src"
MODULES = sorted(SOURCES.rglob("*.py"))


def private(name):
    return name.startswith("_") and not name.endswith("__")


def borrowed(text):
    """The private names of other modules that a module's text uses, with their lines.

    A module whose file name begins with an underscore is private to its package, and may be
    imported in it; what it offers to the others has no underscore.
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
            of = (
                node.value.attr
                if isinstance(node.value, ast.Attribute)
                else getattr(node.value, "id", None)
            )
            if of in modules and (of, node.attr) != ("os", "_exit"):  # which Python documents
                found.append((node.lineno, f"{of}.{node.attr}"))
    return sorted(found)


@pytest.mark.parametrize("file", MODULES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_no_module_uses_what_is_private_to_another(file):
    assert borrowed(file.read_text()) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from shardlab.arrays.layout import _short, describe", "shardlab.arrays.layout._short"),
        ("from shardlab.programs import collectives\ncollectives._moves", "collectives._moves"),
        ("from shardlab.programs import collectives as c\nc._moves()", "c._moves"),
        (
            "import shardlab.programs.collectives\nshardlab.programs.collectives._moves",
            "collectives._moves",
        ),
        ("from shardlab import _tables\n_tables._GROWTH", "_tables._GROWTH"),
        ("from shardlab.pictures.svg import _GROWTH", "shardlab.pictures.svg._GROWTH"),
        ("import sys\nsys._getframe()", "sys._getframe"),
    ],
)
def test_a_borrowed_name_is_found(text, name):
    assert [found for _, found in borrowed(text)] == [name]


def test_what_is_a_modules_own_is_no_others():
    own = (
        "from shardlab import _tables, costs\n_x = "
        "1\n_tables.row(costs.__doc__)\nself._x\nprint(_x)"
    )
    assert borrowed(own) == []


@pytest.mark.parametrize("file", MODULES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_module_says_its_one_job_in_its_first_sentence(file):
    first = ast.get_docstring(ast.parse(file.read_text())).partition("\n\n")[0]
    assert 20 < len(first) <= 160 and re.fullmatch(r"[^\n]+\n?[^\n]+\.", first), first


def listed(package):
    """The modules that a package's docstring lists; CONTRIBUTING.md sends people there."""
    file = SOURCES.joinpath(*package.split("."), "__init__.py")
    about = ast.get_docstring(ast.parse(file.read_text()))
    return re.findall(
        rf"`({package}\.[\w.]+)`", "\n".join(re.findall(r"^- .*?:", about, re.MULTILINE))
    )


BOOKBINDER = SOURCES / "bookbinder"


@pytest.mark.parametrize(
    "folder",
    [BOOKBINDER, *(file.parent for file in BOOKBINDER.glob("*/__init__.py"))],
    ids=lambda folder: folder.name,
)
def test_a_package_of_bookbinder_lists_what_is_in_it(folder):
    name = ".".join(folder.relative_to(SOURCES).parts)
    contents = [file.stem for file in folder.glob("[!_]*.py")] + [
        file.parent.name for file in folder.glob("*/__init__.py")
    ]
    assert {*listed(name)} == {f"{name}.{content}" for content in contents}


# The packages from the ground up: each imports only from those before it.
FLOORS = {
    "shardlab": ("arrays", "machines", "cluster", "costs", "programs", "pods", "networks",
        "exercises", "pictures",
                 "report", "book", "cli"),
    "bookbinder": ("disk", "stopping", "progress", "read", "run", "notebook", "page", "show"),
}  # fmt: skip
# What all may use.
GROUND = {"shardlab": {"_arguments", "_tables"}, "bookbinder": set()}


def imported(file, project):
    """The packages of a project that a module imports, wherever in it, with its lines."""
    names = {}
    for node in ast.walk(ast.parse(file.read_text())):
        modules = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        if modules == [project]:
            modules = [f"{project}.{alias.name}" for alias in node.names]
        names |= {
            module.split(".")[1]: node.lineno
            for module in modules
            if module.startswith(f"{project}.")
        }
    return names


@pytest.mark.parametrize("floor", FLOORS["shardlab"])
def test_a_package_of_shardlab_has_its_tests(floor):
    assert list((ROOT / "tests" / "unit" / floor).glob("test_*.py"))


TOOLS = ROOT / "tests" / "tools"


def test_what_tests_share_is_in_rooms_that_are_listed():
    """A test imports a tool by its name alone, so no two have the same."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    rooms = project["tool"]["pytest"]["ini_options"]["pythonpath"]
    files = list(TOOLS.rglob("*.py"))
    assert sorted({f"{file.parent.relative_to(ROOT)}" for file in files}) == rooms
    assert len(files) == len({file.name for file in files})
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = re.search(r"^\| in `tests/tools` .*?\n\n", guide, re.MULTILINE | re.DOTALL)[0]
    listed_rooms = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert sorted(f"tests/tools/{room}" for room in listed_rooms) == rooms


@pytest.mark.parametrize("file", sorted(TOOLS.rglob("*.py")), ids=lambda file: file.stem)
def test_a_tool_says_its_one_job_in_its_first_sentence(file):
    first = ast.get_docstring(ast.parse(file.read_text("utf-8"))).partition("\n\n")[0]
    assert len(first) > 20 and re.search(r"[.:]$", first), first


def test_no_test_imports_from_another():
    """What several files use is in tests/tools."""
    for file in (ROOT / "tests").rglob("*.py"):
        assert not re.search(r"^\s*(?:from|import) test_", file.read_text(), re.MULTILINE), file


@pytest.mark.parametrize("project", FLOORS)
def test_the_floors_are_the_packages_and_stand_in_this_order_in_the_docstring(project):
    packages = {file.parent.name for file in (SOURCES / project).glob("*/__init__.py")}
    assert packages == {name for name in FLOORS[project] if (SOURCES / project / name).is_dir()}
    order = [name.split(".")[1] for name in listed(project)]
    assert order == sorted(order, key=FLOORS[project].index)


@pytest.mark.parametrize(
    ("project", "floor"), [(project, floor) for project in FLOORS for floor in FLOORS[project]]
)
def test_a_package_imports_only_from_those_below(project, floor):
    below = {*GROUND[project], *FLOORS[project][: FLOORS[project].index(floor) + 1]}
    below |= {"__version__"} if floor == "cli" else set()
    folder = SOURCES / project / floor
    for file in folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]:
        above = {name: line for name, line in imported(file, project).items() if name not in below}
        assert not above, f"{file.relative_to(SOURCES)}: {above}"


# Their public names are those of `shardlab.costs` and `shardlab.pictures.draw`, or serve pages of
# the book alone.
OFFERED_ELSEWHERE = ("shardlab.costs.", "shardlab.pictures.", "shardlab.book.")


def test_every_public_module_is_listed():
    with_names = set()
    for file in (SOURCES / "shardlab").glob("*/*.py"):
        if re.search(r"^__all__ = ", file.read_text(), re.MULTILINE):
            parts = file.relative_to(SOURCES).with_suffix("").parts
            with_names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    names = {*listed("shardlab")}
    plugins = {"shardlab.exercises.pytest_plugin", "shardlab.report.pytest_plugin"}
    assert names - with_names <= plugins  # which pytest loads
    assert [
        name for name in sorted(with_names - names) if not name.startswith(OFFERED_ELSEWHERE)
    ] == []


MOST_LINES = 75  # of a function without its docstring, each statement on a line of its own


@pytest.mark.parametrize("file", MODULES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_function_can_be_read_at_a_glance(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            about = ast.get_docstring(node, clean=False)
            lines = ast.unparse(node).count("\n") - (about.count("\n") + 1 if about else 0)
            assert lines <= MOST_LINES, f"{node.name}: {lines} lines"
