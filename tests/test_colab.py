"""Each published notebook, run in a replica of stock Colab as a reader would: restarted in the middle, run twice."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import copy_sources
from tiny_book import FRONT

from bookbinder import address, environments, notebooks, publish, run_notebook
from bookbinder.book import Book, Chapter, load
from bookbinder.progress import Progress

ROOT = Path(__file__).parent.parent
BOOK = load(ROOT)
PROGRAMS = [chapter.name for chapter in BOOK.chapters if chapter.runs]
LIST = "from importlib.metadata import distributions as d; print(*sorted({f'{x.name}=={x.version}' for x in d()}))"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A bare repository with the sources as they are here, as a commit, and the notebooks made from that."""
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


def git(root, *arguments):
    who = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "safe.directory=*"]
    done = subprocess.run(["git", *who, *arguments], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def colab():
    """Colab's packages, as an environment of their own; returns its Python."""
    (environment,) = (e for e in environments.environments(ROOT) if e.name == "colab")
    return environments.make(environment, ROOT / "_build" / "environments", Progress())


@pytest.fixture(scope="module")
def reports(published, colab, tmp_path_factory):
    """What became of each notebook. Each has a machine of its own, as in Colab: packages, home and files."""

    def run(name):
        machine = tmp_path_factory.mktemp(name)
        text = git(published, "show", f"notebooks:{name}.ipynb")
        (machine / "content").mkdir()
        (machine / "content" / f"{name}.ipynb").write_text(text)
        cells = sum(cell["cell_type"] == "code" for cell in json.loads(text)["cells"])
        python = layer(colab, machine / "packages")
        before = subprocess.run([python, "-c", LIST], capture_output=True, text=True, check=True).stdout.split()
        command = [python, run_notebook.__file__, f"{name}.ipynb", "--restart-at", str(cells // 2), "--twice"]
        done = subprocess.run(
            command, cwd=machine / "content", env=environment(published, machine), capture_output=True, text=True
        )
        after = subprocess.run([python, "-c", LIST], capture_output=True, text=True, check=True).stdout.split()
        return json.loads(done.stdout or "{}") | {"said": done.stderr, "before": before, "after": after, "all": cells}

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PROGRAMS, pool.map(run, PROGRAMS), strict=True))


def layer(python, folder):
    """A Python with the packages of another one, where more can be installed without touching those."""
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


# What this machine has set, and a reader's has not. JAX itself sets TPU_LIBRARY_PATH, where libtpu is installed.
STRANGE = ("PYTHON", "GITHUB_", "JAX", "TPU_", "XDG_")


def environment(published, machine):
    """What a reader's machine has, without a checkout in reach: GitHub's address leads to the bare repository."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(STRANGE)}
    (machine / "home").mkdir()
    clean |= {"HOME": str(machine / "home"), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "MPLBACKEND": "agg"}
    git_settings = {f"url.{published.as_uri()}.insteadOf": address.of(BOOK.config).repository, "safe.directory": "*"}
    for number, (key, value) in enumerate(git_settings.items()):
        clean |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return clean | {"GIT_CONFIG_COUNT": str(len(git_settings))}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_notebook_runs_restarted_in_the_middle_and_then_twice(name, reports):
    report = reports[name]
    failure = f"cell {report.get('cell')}, line {report.get('line')}: {report.get('error')}: {report.get('message')}"
    assert report.get("ok"), f"{failure}\n{report.get('traceback')}\n{report['said'][-2000:]}"
    assert report["cells"] == report["all"] // 2 + 2 * report["all"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_notebook_installs_shardlab_and_changes_nothing_else(name, reports):
    before, after = set(reports[name]["before"]), set(reports[name]["after"])
    assert before <= after and {package.split("==")[0] for package in after - before} == {"shardlab"}
    assert {f"{name}=={notebooks.colab_version(name)}" for name in ("jax", "numpy")} <= before


def test_a_downloaded_folder_needs_no_network(published, colab, tmp_path):
    """With the wheel beside it, as in a download of the whole branch, a notebook installs that."""
    git(tmp_path, "clone", "--quiet", "--branch", "notebooks", published.as_uri(), "content")
    python = layer(colab, tmp_path / "packages")
    settings = environment(published, tmp_path) | {"PIP_NO_INDEX": "1", "GIT_CONFIG_COUNT": "0"}
    command = [python, run_notebook.__file__, "writing.ipynb"]
    done = subprocess.run(command, cwd=tmp_path / "content", env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_chapter_for_a_newer_jax_upgrades_it_asks_for_a_restart_and_then_runs(published, colab, tmp_path):
    newer, older = version("jax"), notebooks.colab_version("jax")  # ours, which Colab has not
    assert newer != older
    cells = f"from shardlab.devices import emulate\n\nemulate(8)\n\nimport jax\nassert jax.__version__ != {older!r}"
    front = FRONT.replace("jupytext:", f'jax: ">={newer}"\njupytext:')
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "newer.md").write_text(f"{front}# Newer\n\n```{{code-cell}}\n{cells}\n```\n")
    book = Book(tmp_path, (Chapter(tmp_path, "newer"),), {"repository": BOOK.config["repository"]})
    (tmp_path / "newer.ipynb").write_text(notebooks.make(book)["newer.ipynb"])
    python, settings = layer(colab, tmp_path / "packages"), environment(published, tmp_path)
    command = [python, run_notebook.__file__, "newer.ipynb"]
    first, second = (
        json.loads(subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True).stdout)
        for _ in range(2)
    )
    assert not first["ok"] and first["cell"] == 1 and "Restart session" in first["message"], first
    assert second["ok"], second
