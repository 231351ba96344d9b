"""shardlab as strangers install it: its public names, its version, its wheel and sdist, and a new
environment.
"""

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from places import ROOT

import shardlab

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = re.findall(r"^- `(shardlab\.[\w.]+)`:", shardlab.__doc__, re.MULTILINE)
MODULES = {
    name: importlib.import_module(name) for name in NAMES if not name.endswith(".pytest_plugin")
}


def python(program, *options, **environment):
    done = subprocess.run(
        [sys.executable, *options, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- Names ----------------------------------------------------------------------------------------


def stub():
    """The imports of `__init__.pyi`: for each public name its module."""
    tree = ast.parse(Path(shardlab.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    # so that it is public
    assert all(alias.name == alias.asname for node in imports for alias in node.names)
    return {alias.name: node.module for node in imports for alias in node.names}


@pytest.mark.parametrize("name", shardlab.__all__)
def test_a_public_name_is_what_its_module_has(name):
    assert name in dir(shardlab)
    home = importlib.import_module(stub()[name])
    value = getattr(shardlab, name)
    assert value is (
        importlib.import_module(f"{home.__name__}.{name}")
        if inspect.ismodule(value)
        else getattr(home, name)
    )
    assert inspect.ismodule(value) or name in home.__all__


def test_public_names_are_those_of_the_stub():
    assert sorted(shardlab.__all__) == sorted(stub()) and len(stub()) > 70


def test_a_public_name_is_the_same_whatever_is_imported_first():
    """Where a module far below has the name of a function, too."""
    programs = [
        (
            "from shardlab import plan; import shardlab.costs.plan; import shardlab; assert "
            "shardlab.plan is plan"
        ),
        "import shardlab.costs.plan, shardlab.programs.collectives; from shardlab import "
        "collectives, plan\n"
        "assert callable(plan) and callable(collectives)",
        (
            "from shardlab import costs, draw, explain; assert costs.matmul and callable(draw) "
            "and callable(explain)"
        ),
    ]
    for program in programs:
        python(program)


def test_nothing_is_loaded_before_it_is_used():
    program = """
import sys
import shardlab
dir(shardlab), shardlab.__version__
assert not {"jax", "numpy"} & set(sys.modules), "import shardlab loads too much"
from shardlab import emulate
assert "jax" not in sys.modules
assert len(emulate(3)) == 3
from shardlab import *
print(describe.__name__, costs.__name__)
"""
    assert python(program, XLA_FLAGS="") == "describe shardlab.costs"


def test_a_mistyped_name_is_refused_with_the_nearest():
    with pytest.raises(
        AttributeError, match=r"no attribute 'colectives'; did you mean 'collectives'\?"
    ):
        shardlab.colectives  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing_like_it'"):
        from shardlab import nothing_like_it  # noqa: F401


# --- Version and annotations ----------------------------------------------------------------------


def test_there_is_one_version_and_the_changelog_begins_with_it():
    assert PROJECT["version"] == shardlab.__version__ and re.fullmatch(
        r"\d+\.\d+\.\d+", shardlab.__version__
    )
    heads = re.findall(
        r"^## \[(.*)\] - (unreleased|\d{4}-\d\d-\d\d)$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )
    assert heads[0][0] == shardlab.__version__
    numbers = [tuple(map(int, version.split("."))) for version, _ in heads]
    assert numbers == sorted(set(numbers), reverse=True) and all(
        date != "unreleased" for _, date in heads[1:]
    )


def functions_of(thing):
    """A public function; or the methods and properties that a public class defines, but no private
    ones.
    """
    if not inspect.isclass(thing):
        return [thing] if inspect.isfunction(thing) else []
    found = (
        one.fget if isinstance(one, property) else getattr(one, "__func__", one)
        for one in vars(thing).values()
    )
    return [
        one
        for one in found
        if inspect.isfunction(one)
        # not made by dataclass()
        and Path(one.__code__.co_filename).is_relative_to(Path(shardlab.__file__).parent)
        and not re.match(r"_(?!_)", one.__name__)
    ]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_and_method_is_annotated(name):
    """Its arguments and its result, with names of something that exists."""
    for public in MODULES[name].__all__:
        thing = getattr(MODULES[name], public)
        if inspect.isclass(thing):
            inspect.get_annotations(thing, eval_str=True)
        for function in functions_of(thing):
            known = inspect.get_annotations(function, eval_str=True)
            needed = list(inspect.signature(function).parameters)[inspect.isclass(thing) :]
            missing = [argument for argument in (*needed, "return") if argument not in known]
            assert not missing, f"{public}: {function.__name__}"


# --- Wheel and sdist ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist of these sources, and the wheel that is made from the sdist alone."""
    folder = tmp_path_factory.mktemp("built")

    def build(where, target):
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
        done = subprocess.run(command, cwd=where, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (made,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
        return made

    sdist = build(ROOT, "sdist")
    with tarfile.open(sdist) as inside:
        inside.extractall(folder, filter="data")
    return sdist, build(folder / sdist.name.removesuffix(".tar.gz"), "wheel")


def test_they_hold_the_package_and_nothing_else(built):
    sdist, wheel = built
    own = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/shardlab").rglob("*")
        if path.is_file()
    }
    own = {name for name in own if "__pycache__" not in name}
    assert "shardlab/py.typed" in own
    with zipfile.ZipFile(wheel) as inside:
        names = set(inside.namelist())
    about = f"shardlab-{shardlab.__version__}.dist-info"
    expected = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert names == own | {f"{about}/{name}" for name in expected}
    assert (
        wheel.name == f"shardlab-{shardlab.__version__}-py3-none-any.whl"
        and wheel.stat().st_size < 680_000
    )
    with tarfile.open(sdist) as inside:
        names = {name.partition("/")[2] for name in inside.getnames()}
    extra = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert names == {f"src/{name}" for name in own} | extra


def test_their_metadata_is_valid(built):
    _, wheel = built
    with zipfile.ZipFile(wheel) as inside:
        text = inside.read(f"shardlab-{shardlab.__version__}.dist-info/METADATA")
    metadata = Metadata.from_email(text, validate=True)
    assert (metadata.name, str(metadata.version)) == ("shardlab", shardlab.__version__)
    assert (
        metadata.license_expression == "Apache-2.0"
        and metadata.description_content_type == "text/markdown"
    )
    required = {r.name for r in metadata.requires_dist if not r.marker}
    assert required == {"jax", "numpy"}, "more than a stock notebook has"


def test_the_extra_for_starters_has_what_they_import_and_no_more():
    files = [ROOT / f"book/recipes/{name}.py" for name in ("train", "pretrain", "load")]
    files += [ROOT / "src/shardlab/arrays/weights.py"]  # reads safetensors for load.py
    imported = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.split(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
    others = imported - set(sys.stdlib_module_names) - {"jax", "numpy", "shardlab"}
    extra = PROJECT["optional-dependencies"]["starters"]
    assert {name.replace("orbax", "orbax-checkpoint") for name in others} == set(extra)


def test_an_empty_environment_takes_the_wheel(built, tmp_path):
    """Without JAX what needs none works; with the JAX of this environment, all does."""
    _, wheel = built
    folder = tmp_path / "new"
    venv.create(folder, with_pip=False)
    own = folder / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", own, wheel]
    subprocess.run(command, check=True)
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "XLA_", "JAX_"))
    }

    def said(*command, **environment):
        done = subprocess.run(
            command, cwd=tmp_path, env=clean | environment, capture_output=True, text=True
        )
        return done.stdout.strip() or done.stderr.strip()

    place = said(own, "-c", "import shardlab; print(shardlab.__file__)")
    assert Path(place).is_relative_to(folder), place
    assert "No module named 'jax'" in said(own, "-c", "from shardlab import describe")
    libraries = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    script = str(folder / "bin" / "shardlab")
    told = said(
        script, "layout", "f32[8]", "--mesh", "x=2", "--spec", "x", "--json", PYTHONPATH=libraries
    )
    assert json.loads(told)["bytes_per_device"] == 16, told
    program = "from shardlab import assert_layout as a, emulate; emulate(2); print(a.__module__)"
    assert said(own, "-c", program, PYTHONPATH=libraries) == "shardlab.exercises.testing"


def test_code_is_for_the_oldest_python_that_the_project_names():
    oldest = tuple(map(int, re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["requires-python"]).groups()))
    for file in (ROOT / "src/shardlab").rglob("*.py"):
        ast.parse(file.read_text(), feature_version=oldest)


def test_type_checkers_see_what_programs_import(tmp_path):
    """Strangers' programs, of which tests/repo/public_types.py is one; a wrong use of what is
    lazily loaded is seen.
    """

    def types(program):
        (tmp_path / "program.py").write_text(program)
        command = [
            sys.executable,
            "-m",
            "pyrefly",
            "check",
            "--preset",
            "default",
            "--progress-bar",
            "no",
        ]
        command += ["--python-interpreter-path", sys.executable, "program.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return sorted(re.findall(r"^ERROR .*\[([\w-]+)\]$", done.stdout, re.MULTILINE))

    program = Path(__file__).with_name("public_types.py").read_text()
    assert types(program) == []
    wrong = (
        '\nplan("llama-3-8b", "v5p", 64, 2**20).nothing\nassert_type(chip("v5e"), '
        "Machine)\nimport shardlab.draw\n"
    )
    assert types(program + wrong) == ["assert-type", "missing-attribute", "missing-import"]
