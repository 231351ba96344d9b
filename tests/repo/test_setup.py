"""scripts/setup.sh: which interpreter it takes, and what it says when there is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

pytestmark = [pytest.mark.reads("scripts", "requirements.txt", "Makefile"), pytest.mark.slow]


@pytest.fixture
def project(tmp_path):
    """A copy of what the set-up reads, in a folder whose name has a space, with an empty home."""
    folder = tmp_path / "a project"
    (folder / "scripts").mkdir(parents=True)
    for name in ("scripts/setup.sh", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    (tmp_path / "home").mkdir()
    return folder


def fake(path, version, *, works=True):
    """An interpreter that says it has a version; making a virtual environment with it fails, and
    says which it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    says = (
        f'case "$1" in -c) echo {version} ;; *) echo "fake $0" >&2; exit 3 ;; esac'
        if works
        else "echo shim >&2; exit 127"
    )
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


def set_up(project, path=(), **environment):
    """Run the set-up with a PATH of the given folders and the system's tools."""
    # the programs that the script uses, without the system's Pythons
    tools = project.parent / "tools"
    tools.mkdir(exist_ok=True)
    for tool in ("sh", "dirname", "cat", "cksum", "rm", "awk", "sed"):
        if not (tools / tool).exists():
            (tools / tool).symlink_to(shutil.which(tool))
    environment = {
        "HOME": str(project.parent / "home"),
        "PATH": os.pathsep.join([*map(str, path), str(tools)]),
    } | environment
    run = subprocess.run(
        ["sh", project / "scripts/setup.sh"], env=environment, capture_output=True, text=True
    )
    return run.returncode, run.stderr


def test_the_newest_that_runs_is_taken_and_shims_are_passed_over(project, tmp_path):
    fake(tmp_path / "bin/python3", "3.11.7")
    fake(tmp_path / "bin/python3.13", "", works=False)
    fake(tmp_path / "home/.pyenv/versions/3.12.1/bin/python3.12", "3.12.1")
    newest = fake(tmp_path / "home/.pyenv/versions/3.13.0/bin/python3.13", "3.13.0")
    fake(tmp_path / "home/.local/share/uv/python/cpython-3.13.2/bin/python3.13", "3.13.0")
    status, said = set_up(project, [tmp_path / "bin"])
    assert (
        status == 3
        and f"making .venv with Python 3.13.0 ({newest})" in said
        and f"fake {newest}" in said
    )


def test_the_patch_version_counts_and_too_new_is_left_alone(project, tmp_path):
    fake(tmp_path / "a/python3.12", "3.12.9")
    fake(tmp_path / "b/python3.12", "3.12.10")
    fake(tmp_path / "c/python3", "3.15.0")
    assert (
        "with Python 3.12.10 "
        in set_up(project, [tmp_path / "a", tmp_path / "b", tmp_path / "c"])[1]
    )


def test_pythons_of_uv_and_of_another_pyenv_root_are_found(project, tmp_path):
    fake(tmp_path / "uv/cpython-3.12/bin/python3.12", "3.12.0")
    assert "3.12.0" in set_up(project, UV_PYTHON_INSTALL_DIR=str(tmp_path / "uv"))[1]
    fake(tmp_path / "env/versions/3.14.0/bin/python3.14", "3.14.0")
    assert "3.14.0" in set_up(project, PYENV_ROOT=str(tmp_path / "env"))[1]


def test_python_overrides(project, tmp_path):
    fake(tmp_path / "bin/python3.13", "3.13.0")
    older = fake(tmp_path / "else where/python", "3.11.2")
    assert (
        f"with Python 3.11.2 ({older})" in set_up(project, [tmp_path / "bin"], PYTHON=str(older))[1]
    )
    assert "with Python 3.13.0" in set_up(project, [tmp_path / "bin"], PYTHON="python3.13")[1]
    status, said = set_up(project, [tmp_path / "bin"], PYTHON="/no/such/python")
    assert (
        status == 1
        and "PYTHON=/no/such/python cannot be used" in said
        and len(said.splitlines()) == 1
    )
    old = fake(tmp_path / "old/python", "3.9.18")
    status, said = set_up(project, PYTHON=str(old))
    assert status == 1 and f"{old} (3.9.18)" in said


def test_without_a_usable_python_one_line_says_what_was_looked_for_and_found(project, tmp_path):
    status, said = set_up(project)
    assert status == 1 and len(said.splitlines()) == 1
    assert (
        "no usable Python: looked for 3.11 to 3.14 with venv on PATH" in said
        and "found none at all" in said
    )
    fake(tmp_path / "bin/python3", "3.9.2")
    fake(tmp_path / "bin/python3.12", "", works=False)
    status, said = set_up(project, [tmp_path / "bin"])
    assert status == 1 and len(said.splitlines()) == 1
    assert (
        f"{tmp_path}/bin/python3 (3.9.2)" in said
        and f"{tmp_path}/bin/python3.12 (does not run, or lacks venv)" in said
    )
    assert "make book PYTHON=/path/to/python" in said


def test_this_environment_is_the_lock_and_nothing_is_done_twice():
    """The set-up of this very checkout is complete, so it returns without a word."""
    run = subprocess.run([ROOT / "scripts/setup.sh"], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    uv = Path(sys.executable).with_name("uv")
    frozen = subprocess.run(
        [uv, "pip", "freeze", "--python", sys.executable], capture_output=True, text=True
    ).stdout
    locked = (ROOT / "requirements.txt").read_text()
    for line in frozen.splitlines():
        if line.startswith(("-e ", "pip==")):  # this project, and what comes with every environment
            continue
        assert f"\n{line} " in f"\n{locked}", f"{line} is installed, but not locked"


def test_every_requirement_is_locked_with_hashes():
    text = (ROOT / "requirements.txt").read_text()
    entries = [entry for entry in text.split("\n") if entry and entry[0] not in " #"]
    assert len(entries) > 100 and all("==" in entry and entry.endswith("\\") for entry in entries)
    assert "://" not in text  # no registry is named


def test_no_home_and_a_foreign_cdpath_do_no_harm(project, tmp_path):
    fake(tmp_path / "bin/python3.13", "3.13.0")
    (tmp_path / "elsewhere/scripts").mkdir(parents=True)
    environment = {"HOME": "", "CDPATH": str(tmp_path / "elsewhere")}
    status, said = set_up(project, [tmp_path / "bin"], **environment)
    assert status == 3 and "making .venv with Python 3.13.0" in said
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{tmp_path / 'tools'}",
        "CDPATH": str(tmp_path / "elsewhere"),
    }
    run = subprocess.run(
        ["sh", "scripts/setup.sh"], cwd=project, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 3 and "HOME" not in run.stderr


def test_a_clone_that_is_reached_by_another_name_keeps_its_environment(project, tmp_path):
    fake(tmp_path / "bin/python3.13", "3.13.0")
    fake(project / ".venv/bin/python", "3.13.0")
    (project / ".venv/folder").write_text(f"{project.resolve()}\n")
    link = tmp_path / "link"
    link.symlink_to(project)
    environment = {"PATH": f"{tmp_path / 'bin'}:{tmp_path / 'tools'}", "HOME": str(tmp_path)}
    assert "making .venv" not in set_up(project, [tmp_path / "bin"])[1]
    # a shell tells its own name of the folder in PWD
    for script, at in ((link / "scripts/setup.sh", tmp_path), ("scripts/setup.sh", link)):
        run = subprocess.run(
            ["sh", script],
            cwd=at,
            env=environment | {"PWD": str(at)},
            capture_output=True,
            text=True,
        )
        assert "installing" in run.stderr and "making" not in run.stderr, run.stderr
    (project / ".venv/folder").write_text("/somewhere/else\n")
    said = set_up(project, [tmp_path / "bin"])[1]
    assert "name /somewhere/else, where it was made: making it again for" in said


def test_a_broken_or_moved_environment_is_made_anew(project, tmp_path):
    fake(tmp_path / "bin/python3.13", "3.13.0")
    own = project / ".venv/bin/python"
    fake(own, "3.13.0", works=False)  # as when its making was interrupted
    assert "making .venv" in set_up(project, [tmp_path / "bin"])[1]
    fake(own, "3.13.0")
    (project / ".venv/folder").write_text("/somewhere/else\n")
    assert "making .venv" in set_up(project, [tmp_path / "bin"])[1]
    fake(own, "3.13.0")
    (project / ".venv/folder").write_text(f"{project}\n")
    assert "making .venv" not in set_up(project, [tmp_path / "bin"])[1]
