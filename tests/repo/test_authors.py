"""What authors use: a new chapter, chapters as notebooks in editors, pre-commit, the development
container, forms.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from difflib import SequenceMatcher
from pathlib import Path

import jupytext
import nbformat
import pytest
import yaml
from jupytext.config import load_jupytext_config
from places import ROOT
from repository import BOOK, copy_sources

from bookbinder.read import package
from bookbinder.read.book import load

TOOLS = Path(sys.executable).parent
CHAPTERS = [chapter for chapter in BOOK.chapters if chapter.runs]
# What a kernel says of itself; JupyterLab and VS Code write it into a notebook that they have run.
LANGUAGE = {
    "name": "python",
    "version": "3.13.1",
    "pygments_lexer": "ipython3",
    "file_extension": ".py",
}


@pytest.fixture
def sources(tmp_path):
    """A copy of the sources, with these tests' environment as its .venv."""
    copy_sources(tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def run(folder, *command):
    """Run a command on a copy of the sources; returns its exit status and what it printed."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ours |= {"PYTHONPATH": str(folder / "src"), "RUFF_NO_CACHE": "true"}
    done = subprocess.run(
        command, cwd=folder, env=ours, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.returncode, done.stdout


def contents(folder):
    """All files below a folder but what is generated there, and what is in them."""
    files = (
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {
        path.relative_to(folder): path.read_bytes() for path in files if ".venv" not in path.parts
    }


# --- A new chapter --------------------------------------------------------------------------------


def begin(folder, *arguments):
    return run(folder, sys.executable, "scripts/new_chapter.py", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("after", [None, "flax_nnx"], ids=["at the end", "after a chapter"])
def test_a_new_chapter_builds_and_keeps_every_rule_at_once(sources, after):
    title = "Padding: lengths that do not divide"
    status, said = begin(sources, "padding", title, *(["--after", after] if after else []))
    assert status == 0, said
    names = [chapter.name for chapter in load(sources).chapters]
    assert names[names.index("padding") - 1] == (after or "explorer")
    if after:  # what the rules and the build look at is the same in both places, so each runs once
        rules = [
            "tests/book/test_book.py",
            "-k",
            "padding or labels or every_exercise",
            "-p",
            "no:cacheprovider",
            "-q",
        ]
        status, said = run(sources, sys.executable, "-m", "pytest", *rules)
        assert status == 0 and int(re.search(r"(\d+) passed", said)[1]) >= 10, said
    else:
        status, said = run(
            sources, sys.executable, "-m", "bookbinder", "chapter", "book/padding.md"
        )
        assert status == 0 and re.search(r"^padding +\d+ +ran", said, re.MULTILINE), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["arrays", "It is there already"], "book/arrays.md exists already"),
        (["Padding", "It begins with a capital"], "'Padding': use lower-case letters"),
        (["two-words", "A hyphen stands in it"], "'two-words': use lower-case letters"),
        (["../padding", "It is somewhere else"], "'../padding': use lower-case letters"),
        (["padding", "Padding"], "'Padding': write the term"),
        (["padding", "It ends with a stop."], "write the term"),
        (["padding", "It stands\nin two lines"], "write the term"),
        (["padding", "It is " + "very " * 20 + "long"], "at most 80 characters"),
        (
            ["padding", "It comes after nothing", "--after", "nothing"],
            "no such chapter in _toc.yml; there are start,",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_what_cannot_be_a_chapter_is_refused_and_changes_nothing(sources, arguments, says):
    before = contents(sources)
    status, said = begin(sources, *arguments)
    assert status == 2 and says in said and "Traceback" not in said
    assert contents(sources) == before


def test_help_tells_what_to_give():
    status, said = begin(ROOT, "--help")
    assert status == 0 and {"NAME", "TITLE", "--after"} <= set(re.findall(r"-*\w+", said))


# --- Chapters as notebooks ------------------------------------------------------------------------


def saved(chapter, edit=lambda notebook: None):
    """A chapter's text, after an editor has opened it by Jupytext, run it, and saved it."""
    path = ROOT / chapter.path
    config = load_jupytext_config(str(path))
    notebook = jupytext.reads(path.read_text("utf-8"), fmt={"extension": ".md"}, config=config)
    notebook.metadata["language_info"] = dict(LANGUAGE)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = 1
            cell.outputs = [nbformat.v4.new_output("stream", text="1\n")]
            cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
    edit(notebook)
    # as it is sent, or lies in a file
    notebook = nbformat.reads(json.dumps(notebook, sort_keys=True), as_version=4)
    return jupytext.writes(notebook, fmt={"extension": ".md", "format_name": "myst"}, config=config)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_a_chapter_saved_as_a_notebook_is_unchanged_but_for_the_edit(chapter):
    text = (ROOT / chapter.path).read_bytes().decode()
    assert saved(chapter) == text

    def edit(notebook):
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        code[len(code) // 2].source += "\nedited = True"
        prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
        prose[len(prose) // 2].source += "\n\nEdited."

    old, new = text.splitlines(), saved(chapter, edit).splitlines()
    changes = [
        change
        for change in SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if change[0] != "equal"
    ]
    assert [change[0] for change in changes] == ["insert", "insert"]
    assert sorted(line for *_, start, end in changes for line in new[start:end]) == [
        "",
        "Edited.",
        "edited = True",
    ]


@pytest.mark.slow
def test_vs_code_leaves_a_chapter_as_it_is(sources):
    """Its extension makes a notebook beside the chapter, and takes what is saved there back; so do
    these commands.
    """
    settings = json.loads((sources / ".vscode/settings.json").read_text())
    formats = settings["jupytextSync.defaultFormats"][".md"]
    chapter = sources / "book/training.md"
    text, notebook = chapter.read_text("utf-8"), chapter.with_suffix(".ipynb")
    status, said = run(sources, TOOLS / "jupytext", "--set-formats", formats, chapter)
    assert status == 0 and notebook.exists() and chapter.read_text("utf-8") == text, said

    saved = json.loads(notebook.read_text("utf-8"))
    saved["metadata"] |= {
        "kernelspec": {"display_name": ".venv (3.13.1)", "language": "python", "name": "python3"}
    }
    saved["metadata"] |= {"language_info": LANGUAGE}
    saved["cells"][-1]["source"] = [*saved["cells"][-1]["source"], "\n\nEdited."]
    notebook.write_text(json.dumps(saved, indent=1), "utf-8")
    later = chapter.stat().st_mtime + 10
    os.utime(notebook, (later, later))
    status, said = run(sources, TOOLS / "jupytext", *settings["jupytextSync.syncArgs"], notebook)
    assert status == 0 and chapter.read_text("utf-8") == f"{text}\nEdited.\n", said


# --- pre-commit -----------------------------------------------------------------------------------

HOOKS = {
    hook["id"]: hook
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]
}


def test_hooks_fetch_nothing():
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            assert hook["language"] == "system" and shlex.split(hook["entry"])[0].startswith(
                ".venv/bin/"
            )


def hooked(sources, name, files):
    """Run a hook as pre-commit does, on those of some files that it is for."""
    hook = HOOKS[name]
    python = "python" in hook.get("types_or", ())
    wanted = re.compile(hook.get("files", "")), re.compile(hook.get("exclude", "^$"))
    files = [file for file in files if wanted[0].search(file) and not wanted[1].search(file)]
    files = [file for file in files if not python or file.endswith(".py")]
    assert files
    return run(
        sources, *shlex.split(hook["entry"]), *(files if hook.get("pass_filenames", True) else ())
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_says_nothing_of_what_is_here_and_finds_a_fault(sources, name):
    before = contents(sources)
    texts = [
        str(path) for path, data in before.items() if b"\0" not in data and path.suffix != ".gz"
    ]
    status, said = hooked(sources, name, texts)
    assert status == 0, said
    after = contents(sources)
    assert not [path for path in before | after if before.get(path) != after.get(path)]

    chapter, script = sources / "book/arrays.md", sources / "scripts/new_chapter.py"
    text = chapter.read_text("utf-8")
    misspelt = text.replace(" the ", " teh ", 1)  # codespell:ignore
    chapter.write_text(misspelt.replace("```{code-cell} ipython3", "```{code-cell}"), "utf-8")
    script.write_text(script.read_text("utf-8") + "import  os\n")
    before = contents(sources)
    status, said = hooked(sources, name, ["book/arrays.md", "scripts/new_chapter.py"])
    assert status != 0 or contents(sources) != before, "neither refused nor mended"
    if name == "chapters":
        assert chapter.read_text("utf-8") == misspelt


# --- README and CONTRIBUTING ----------------------------------------------------------------------

GUIDES = {name: (ROOT / name).read_text("utf-8") for name in ("README.md", "CONTRIBUTING.md")}


@pytest.mark.parametrize("name", GUIDES)
def test_what_a_guide_names_is_there(name):
    text = GUIDES[name]
    targets = set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE))
    assert targets and targets <= set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    paths = re.findall(
        r"`((?:[\w.-]+/)+[\w.*-]*|[\w.-]+\.(?:md|yml|toml|txt|cff))`|\]\(([\w./-]+)\)", text
    )
    paths = [path for pair in paths for path in pair if path] + re.findall(
        r"^([\w.]+/?[\w./]*)  ", text, re.MULTILINE
    )
    made = "^_build/|NAME|PACKAGE"  # by a command of the guide, or a name to replace
    lacking = [
        path for path in paths if not re.search(made, path) and not any(ROOT.glob(path.rstrip("/")))
    ]
    assert paths and lacking == []


def test_versions_licences_and_days_in_the_guides_are_those_of_the_files():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    setup, readme, guide = (
        (ROOT / "scripts/setup.sh").read_text(),
        GUIDES["README.md"],
        GUIDES["CONTRIBUTING.md"],
    )
    oldest = re.search(r">=(3\.\d+)", project["requires-python"])[1]
    tried = [int(minor) for minor in re.findall(r"\bpython3\.(\d+)", setup)]
    assert re.findall(r"Python (3\.\d+) to (3\.\d+)", readme) == [
        (f"3.{min(tried)}", f"3.{max(tried)}")
    ]
    assert oldest == f"3.{min(tried)}"

    # The least JAX stands in pyproject.toml alone, and the guides send people there.
    floor = package.of(ROOT).minimum_jax
    assert re.fullmatch(r"[\d.]+", floor) and "that `pyproject.toml` asks for" in guide
    assert not [
        name
        for name, text in GUIDES.items()
        if f"JAX from {floor}" in text or f"JAX {floor}" in text
    ]

    licence = (ROOT / "LICENSE").read_text()
    assert re.search(
        r"code under the (Apache License 2\.0), text and figures under (CC BY 4\.0)", readme
    )
    assert re.search(
        r"Text is contributed under (CC BY 4\.0), code under the (Apache License 2\.0)", guide
    )
    assert project["license"].startswith("Apache-2.0") and "Apache License" in licence

    days = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
    cron = re.search(
        r'cron: "\d+ \d+ \* \* (\d)"', (ROOT / ".github/workflows/upstream.yml").read_text()
    )
    assert re.findall(r"Every (\w+day) the chapters run", guide) == [days[int(cron[1])]]
    devices = {"eight": "8"}[re.search(r"chapters run on (\w+) emulated devices", readme)[1]]
    assert f"emulate({devices})" in (ROOT / "book/arrays.md").read_text()


def test_the_readme_fits_on_one_screen():
    assert len(GUIDES["README.md"].splitlines()) <= 40


# --- The development container, and forms ---------------------------------------------------------


def test_the_development_container_runs_what_is_here():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert re.fullmatch(r"python:3\.1[1-4]-\w+", container["image"])
    makefile = (ROOT / "Makefile").read_text()
    for command in container["postCreateCommand"].split(" && "):
        words = command.split()
        if words[0] == "make":
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in words[1:])
        else:
            assert os.access(ROOT / words[0], os.X_OK)
    assert "or $(PORT),8000" in makefile and container["forwardPorts"] == [8000]


def test_the_editor_uses_programs_that_the_lock_brings():
    settings = json.loads((ROOT / ".vscode/settings.json").read_text())
    for key in ("python.defaultInterpreterPath", "jupytextSync.pythonExecutable"):
        assert settings[key] == "${workspaceFolder}/.venv/bin/python"
    assert shutil.which("jupytext", path=TOOLS)


FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_issue_forms_follow_their_schema(file):
    schema = "vendor.github-issue-config" if file.stem == "config" else "vendor.github-issue-forms"
    done = subprocess.run(
        [TOOLS / "check-jsonschema", "--builtin-schema", schema, file],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
