"""Each published notebook, run in a replica of stock Colab as a reader would, with wrong answers to
its exercises.

`make check` runs the tests of exercises alone, of chapters that have changed, with the Python that
builds the book.
"""

import json
import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest
import trials
from compilers import COMPILE_ONLY, IN_COLAB
from packaging.version import Version
from places import ROOT
from proofs import unit_of
from repository import BOOK, changed_chapters, copy_sources, git
from tiny_book import FRONT
from trials import WRONG_ANSWERS

from bookbinder import disk
from bookbinder.notebook import notebooks, publish
from bookbinder.progress import Progress
from bookbinder.read import address, core
from bookbinder.read.book import Book, Chapter, load
from bookbinder.run import environments, run_notebook, runs, stale
from bookbinder.stopping import stoppable

pytestmark = pytest.mark.slow


PROGRAMS = [chapter.name for chapter in BOOK.chapters if chapter.runs]
EXERCISES = {
    label: chapter
    for chapter in BOOK.chapters
    for label in re.findall(
        r"^`{3,}\{exercise-start\}.*\n:label: (\S+)$", chapter.text, re.MULTILINE
    )
}
# For a newer JAX than Colab's: in Colab their first cell upgrades it (tested below), here they run
# where the book does.
NEWER = {
    chapter.name
    for chapter in BOOK.chapters
    if chapter.runs and Version(chapter.jax_floor or "0") > Version(notebooks.colab_version("jax"))
}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A bare repository with the sources as they are here, as a commit, and the notebooks made from
    that.
    """
    work, bare = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("published") / "bare.git"
    copy_sources(work)
    git(work, "init", "--quiet", "--initial-branch=main")
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message", "sources")
    git(work, "init", "--quiet", "--bare", "--initial-branch=main", str(bare))
    git(work, "push", "--quiet", str(bare), "main")
    book = load(work)
    notebooks.write(book, notebooks.make(book), work / "_build" / "notebooks")
    publish.publish(book, str(bare), is_current=True)
    return bare


@pytest.fixture(scope="module")
def colab():
    """Colab's packages, as an environment of their own; returns its Python."""
    (environment,) = (e for e in environments.environments(ROOT) if e.name == "colab")
    return environments.make(environment, ROOT / "_build" / "environments", Progress())


@pytest.fixture(scope="module")
def reports(request):
    """What became of each notebook, as `runs.Report`, and the notebook with its outputs.

    Each has a machine of its own, as in Colab: packages, home and files. Those of `again` run twice
    in one kernel, as when a reader edits cells and runs all of them again. Before a solution runs
    for the last time, wrong answers to its exercise are tried. What a restart in the middle leaves
    behind besides, processes and files, one notebook shows (RESTARTED). Chapters of which no test
    was chosen do not run. With --quick, chapters run here, once.
    """
    units = {unit_of(item) for item in request.session.items}
    names = [name for name in PROGRAMS if f"notebook {name}" in units]
    if request.config.option.quick:
        wanted = [trials.run_here(BOOK, BOOK.chapter(name)) for name in names]
    else:
        machines = request.getfixturevalue("tmp_path_factory").mktemp("machines")
        published, colab = (request.getfixturevalue(name) for name in ("published", "colab"))
        twice = again(request.config)
        wanted = [
            trials.run_here(BOOK, BOOK.chapter(name))
            if name in NEWER
            else as_in_colab(name, published, colab, machines / name, name in twice)
            for name in names
        ]
    with stoppable() as stop:
        found = runs.run(wanted, progress=Progress(), stop=stop)
    return {
        name: (report, runs.outputs(report) if report.ok else None)
        for name, report in zip(names, found, strict=True)
    }


FROM_ARCHIVE = (
    # this notebook installs shardlab from the repository's archive, as in Colab, which takes long,
    "writing"
)
# and has no git; the others have the wheel beside them and no network, as in a download of the
# whole branch. The cell that installs is the same.
# before, this notebook runs to its half, and its kernel is restarted: of those whose processes
RESTARTED = "clusters"
# and files may outlive a kernel it is the quickest, and a second run in the same kernel finds
# whatever else is left.


@cache
def again(config):
    """The notebooks that run twice: those whose chapters have changed, or all with --again, as on
    GitHub.
    """
    return (set(PROGRAMS) if config.option.again else {RESTARTED, *changed_chapters()}) - NEWER


def as_in_colab(name, published, colab, machine, twice):
    """The run of a published notebook on a machine that is made for it."""
    text = git(published, "show", f"notebooks:{name}.ipynb")
    notebook = nbformat.reads(text, as_version=4)
    if name in PROGRAMS:
        notebook = trials.with_trials(BOOK.chapter(name), notebook)
    # Each publication has another commit, which the notebook names; and a new exercise changes the
    # numbers of others.
    changing = r"\b[0-9a-f]{40}\b|^#@title .*"
    code = [
        re.sub(changing, "", cell.source, flags=re.M)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    options = (("--restart-at", str(before(name))) if before(name) else ()) + (
        ("--twice",) if twice else ()
    )
    known = trials.notebook_key(BOOK, BOOK.chapter(name if name in PROGRAMS else "start"))
    key = disk.digest(known, stale.environment(colab), IN_COLAB, *options, *code)
    machine.mkdir()
    git(machine, "clone", "--quiet", "--branch", "notebooks", published.as_uri(), "content")
    settings = environment(machine)
    if name == FROM_ARCHIVE:
        for wheel in (machine / "content").glob("*.whl"):
            # one that does not belong to it
            wheel.rename(wheel.with_name("shardlab-0.0.1-py3-none-any.whl"))
        for cell in notebook.cells:
            cell.source = from_archive(cell.source, published, machine)
        settings |= {"PATH": without_git(machine, settings["PATH"])}
    else:
        settings |= {"PIP_NO_INDEX": "1"}
    # or pip would read every module, and the run depend on all of them
    settings |= {"PIP_COMPILE": "0"}
    return runs.Run(
        f"{name} as in Colab",
        ROOT / "_build" / "runs" / "notebooks" / name,
        notebook,
        key,
        ROOT,
        layer(colab, machine / "packages"),
        machine / "content",
        settings,
        (*options, *runs.watched(ROOT)),
        runs.programs(ROOT, name, "notebooks", colab),
    )


@contextmanager
def programs_of(names, run, colab):
    """Let the run of a path begin with the programs that its chapters' notebooks have compiled."""
    run.programs.parent.mkdir(parents=True, exist_ok=True)
    copies = []
    for name in names:
        kept = runs.programs(ROOT, name, "notebooks", colab)
        if kept.exists():
            copies.append(shutil.copy(kept, run.programs.with_name(f"of-{name}.zip")))
    try:
        yield
    finally:  # it has kept those that it has used
        for copy in copies:
            copy.unlink()


def before(name):
    """How many cells of a notebook run before its kernel is restarted."""
    return len(BOOK.chapter(name).cells) // 2 if name == RESTARTED else 0


def test_the_replica_has_the_versions_of_colab(colab):
    installed = json.loads(stale.environment(colab))["packages"]
    assert {f"{name}-{notebooks.colab_version(name)}" for name in ("jax", "numpy")} <= set(
        installed
    )


DONATED = """
from shardlab import emulate
emulate({n})
import jax, jax.numpy as jnp, numpy as np
noise = np.random.default_rng(0)
start = [noise.normal(size=(512, 512)).astype(np.float32) / 512**0.5 for _ in range(2)]
x = noise.normal(size=(64, 512)).astype(np.float32)
def step(w):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - x) ** 2))(w)
    return jax.tree.map(lambda w, g: w - 0.5 * g, w, grads), loss
losses = []
for donated in ((), (0,)):
    f, w = jax.jit(step, donate_argnums=donated), jax.tree.map(jnp.array, start)
    for _ in range(20):
        w, loss = f(w)
    losses.append(float(loss))
assert np.isclose(*losses, rtol=1e-5), losses
"""


@pytest.mark.parametrize("n", [1, 8])
def test_a_step_that_donates_its_state_trains_like_one_that_does_not(colab, n):
    """Colab's jaxlib computes with old weights, on CPUs with AVX-512 at least, if emulate does not
    prevent it.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(STRANGE)}
    clean |= {"PYTHONPATH": str(ROOT / "src"), "XLA_FLAGS": ""}
    done = subprocess.run(
        [colab, "-c", DONATED.format(n=n)], env=clean, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def layer(python, folder):
    """A Python with the packages of another one, where more can be installed without touching
    those.
    """
    status, _, said = environments.uv("venv", "--quiet", "--python", python, str(folder))
    assert status == 0, said
    layered = str(folder / "bin" / "python")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs, own = (
        subprocess.run([p, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
        for p in (python, layered)
    )
    (Path(own) / "colab.pth").write_text(f"{theirs}\n")
    return layered


# What this machine has set, and a reader's has not. JAX itself sets TPU_LIBRARY_PATH, where libtpu
# is installed.
STRANGE = ("PYTHON", "GITHUB_", "JAX", "TPU_", "XDG_")


def environment(machine):
    """What a reader's machine has, without a checkout in reach."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(STRANGE)}
    (machine / "home").mkdir()
    clean |= {
        "HOME": str(machine / "home"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "MPLBACKEND": "agg",
    }
    return clean | {"XLA_FLAGS": IN_COLAB}


def from_archive(code, published, machine):
    """Code in which the address of an archive at GitHub leads to one that is made of the bare
    repository.
    """

    def made(match):
        file = machine / "archives" / match[1]
        file.parent.mkdir(exist_ok=True)
        git(
            published,
            "archive",
            "--prefix=book/",
            f"--output={file}",
            match[1].removesuffix(".tar.gz"),
        )
        return file.as_uri()

    return re.sub(
        re.escape(address.of(BOOK.config).archive("V")).replace("V", "([^/]+)"), made, code
    )


def without_git(machine, path):
    """A PATH on which git fails."""
    git = machine / "bin" / "git"
    git.parent.mkdir()
    git.write_text("#!/bin/sh\necho 'git: not found' >&2\nexit 127\n")
    git.chmod(0o755)
    return f"{git.parent}{os.pathsep}{path}"


# Each notebook has the cells of a chapter, which run for its page in any case. So most of them run
# in Colab's replica where one of these files has changed, or the chapter has; on GitHub all do.
ALWAYS = {"start", "arrays", FROM_ARCHIVE, RESTARTED}
SHARED_FILES = (
    "src/.*|tests/(conftest|(tools|book)/.*)[.](py|toml)|pyproject[.]toml|requirements.txt"
)

OF_CORE = {stop.chapter for stop in core.path(BOOK, "evening")}


def of_notebooks(names):
    """Parameters for tests, each a part of its notebook's unit: names of chapters, or labels of
    exercises.
    """
    chapters = {name: EXERCISES[name].name if name in EXERCISES else name for name in names}
    marks = {name: [pytest.mark.unit(f"notebook {chapter}")] for name, chapter in chapters.items()}
    for name, chapter in chapters.items():
        if chapter not in ALWAYS:
            marks[name].append(pytest.mark.of_changes(rf"book/{chapter}\.md|{SHARED_FILES}"))
    for label in marks.keys() & EXERCISES.keys():
        marks[label].append(pytest.mark.of_chapter(chapters[label]))
    return [pytest.param(name, marks=marks[name]) for name in chapters]


@pytest.mark.parametrize("name", of_notebooks(PROGRAMS))
def test_a_notebook_runs_and_runs_again(name, reports, request):
    report, executed = reports[name]
    request.node.user_properties.append(("read", report.read))
    found = report.data
    assert report.ok, (
        f"cell {found['cell']}: {found['error']}: {found['message']}\n{found['traceback']}"
    )
    cells = sum(c.cell_type == "code" and "last_run_only" not in c.metadata for c in executed.cells)
    # on which the run depends, where it is installed
    assert name in NEWER or "src/shardlab/__init__.py" in report.read
    assert found["cells"] == before(name) + (1 + (name in again(request.config))) * cells


@pytest.mark.of_changes(rf"book/(core[.]yml|({'|'.join(sorted(OF_CORE))})[.]md)|{SHARED_FILES}")
@pytest.mark.parametrize("path", core.TITLES)
def test_a_path_through_the_core_runs_as_one_notebook(path, published, colab, tmp_path):
    run = as_in_colab(path, published, colab, tmp_path / "machine", False)
    chapters = () if runs.known(run) else {stop.chapter for stop in core.path(BOOK, path)}
    with programs_of(chapters, run, colab), stoppable() as stop:
        (report,) = runs.run([run], progress=Progress(), stop=stop)
    found = report.data
    assert report.ok, (
        f"cell {found['cell']}: {found['error']}: {found['message']}\n{found['traceback']}"
    )
    shown = [stop for stop in core.path(BOOK, path) if "{code-cell}" in stop.text]
    assert found["cells"] > 2 * len(shown)
    installed = [package.rpartition("-")[0] for package in found["installed"]]
    assert installed == ["shardlab"] and not found["removed"]


@pytest.mark.parametrize("name", of_notebooks(name for name in PROGRAMS if name not in NEWER))
def test_a_notebook_installs_shardlab_and_changes_nothing_else(name, reports):
    """From the wheel beside it, without a network; the notebook FROM_ARCHIVE from the
    repository.
    """
    found = reports[name][0].data
    assert [package.rpartition("-")[0] for package in found["installed"]] == [
        "shardlab"
    ] and not found["removed"]


def test_all_notebooks_install_shardlab_by_the_same_lines(published):
    found = set()
    for name in PROGRAMS:
        cells = json.loads(git(published, "show", f"notebooks:{name}.ipynb"))["cells"]
        first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        found.add(
            re.search(
                r"^archive = .*?%pip install --quiet \{package\}$", first, re.DOTALL | re.MULTILINE
            )[0]
        )
    assert len(found) == 1


def test_a_chapter_for_a_newer_jax_upgrades_it_asks_for_a_restart_and_then_runs(
    published, colab, tmp_path
):
    newer, older = version("jax"), notebooks.colab_version("jax")  # ours, which Colab has not
    assert newer != older
    cells = (
        "from shardlab import emulate\n\nemulate(8)\n\nimport jax\nassert jax.__version__ != "
        f"{older!r}"
    )
    front = FRONT.replace("jupytext:", f'jax: ">={newer}"\njupytext:')
    (tmp_path / "book").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.bookbinder]\nname = "shardlab"\n')
    (tmp_path / "book" / "newer.md").write_text(
        f"{front}# Newer\n\n```{{code-cell}}\n{cells}\n```\n"
    )
    book = Book(tmp_path, (Chapter(tmp_path, "newer"),), {"repository": BOOK.config["repository"]})
    (tmp_path / "newer.ipynb").write_text(
        from_archive(notebooks.make(book)["newer.ipynb"], published, tmp_path)
    )
    python, settings = layer(colab, tmp_path / "packages"), environment(tmp_path)
    settings["XLA_FLAGS"] = COMPILE_ONLY  # the newer jaxlib does not know all of IN_COLAB
    command = [python, run_notebook.__file__, "newer.ipynb"]
    done = [
        subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True)
        for _ in range(2)
    ]
    first, second = (json.loads(one.stdout.splitlines()[-1]) for one in done)
    assert not first["ok"] and first["cell"] == 1 and "Restart session" in first["message"], first
    assert second["ok"], second


# --- Exercises ------------------------------------------------------------------------------------


def verdict(label, reports):
    report, executed = reports[EXERCISES[label].name]
    assert report.ok, report.data["message"]
    return trials.verdicts(EXERCISES[label], executed)[label]


def test_every_exercise_has_wrong_answers():
    assert EXERCISES.keys() == WRONG_ANSWERS.keys()
    assert all(len(answers) >= 2 for answers in WRONG_ANSWERS.values())


@pytest.mark.parametrize("label", of_notebooks(EXERCISES))
def test_an_exercise_has_stars_a_hint_a_stub_and_a_solution(label):
    text = EXERCISES[label].text
    body = re.search(
        rf"\{{exercise-start\}} (.*)\n:label: {label}\n(.*?)\{{exercise-end\}}", text, re.DOTALL
    )
    assert re.search(r" (★|★★|★★★)$", body[1])
    assert ":::{hint}\n:class: dropdown" in body[2]
    assert f"{{solution-start}} {label}\n:label: {label}-solution\n:class: dropdown" in text
    options = r"\n:tags: \[hide-cell, remove-output\]\n"
    assert len(re.findall(options, body[2])) == body[2].count("{code-cell}"), (
        "the page shows the task, not the stub"
    )


@pytest.mark.parametrize("label", of_notebooks(EXERCISES))
def test_a_stub_is_not_solved_and_the_solution_is_proved(label, reports):
    found = verdict(label, reports)
    assert "Not solved yet" in found["printed"], (
        "the stub should say that it is not solved, and let the page build"
    )
    # which it passed, since the notebook ran
    assert found["strict"], "the solution has no check(..., strict=True)"
    assert found["stub"] == "NotSolved"


@pytest.mark.parametrize("label", of_notebooks(EXERCISES))
def test_a_solution_is_right_again_when_all_cells_have_run(label, reports):
    """Whatever mesh and whatever names the cells below it have left. One of `processes` hangs all
    processes on purpose, and the chapter says what to do then.
    """
    again = verdict(label, reports)["again"]
    hung = "no processes are running; call start() again"
    assert again and set(again) <= {"accepted", *([hung] if label == "processes-odd" else [])}, (
        again
    )


@pytest.mark.parametrize("label", of_notebooks(EXERCISES))
def test_wrong_answers_are_refused(label, reports):
    refused = verdict(label, reports)["wrong"]
    assert refused.keys() == WRONG_ANSWERS[label].keys() and set(refused.values()) == {
        "WrongAnswer"
    }, refused
