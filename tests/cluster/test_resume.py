"""Every script that saves checkpoints takes an older one if the last is damaged, or if not all
processes can read it; and ends at once where it could save none.

The processes have joined JAX: Orbax's barriers would make a process that can read wait for one that
cannot.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compilers import COMPILE_AND_RUN
from places import ROOT
from slurm_cluster import on_cpus
from waiting import PATIENCE

from shardlab.cluster.worker import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.reads("src/shardlab", "book/cluster", "book/recipes")]

BOOK = ROOT / "book"
# On several hosts the recipes leave it to the reader to join first.
JOIN = "from shardlab.cluster.join import join; join(); import runpy, sys; del sys.argv[0]; "
JOIN += "runpy.run_path(sys.argv[0], run_name='__main__')"
# The command, and the steps of its last two checkpoints.
SCRIPTS = {
    "train.py of clusters": (
        (BOOK / "cluster" / "train.py", "--folder", "RUN", "--steps", "6"),
        4,
        6,
    ),
    "train.py of the recipes": (("-c", JOIN, BOOK / "recipes" / "train.py", "RUN", "11"), 10, 11),
    "pretrain.py": (("-c", JOIN, BOOK / "recipes" / "pretrain.py", "RUN", "11"), 10, 11),
}
every_script = pytest.mark.parametrize(("command", "older", "last"), SCRIPTS.values(), ids=SCRIPTS)


def run(command, folder, *places):
    """A script in a process for each place, the folder in which it starts; their exit statuses and
    what they print.
    """
    command = [sys.executable, *(folder if word == "RUN" else word for word in command)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    clean |= on_cpus(1) | {"PYTHONPATH": str(ROOT / "src"), "XLA_FLAGS": COMPILE_AND_RUN}
    (port,) = free_ports(1)
    joined = (
        {"COORDINATOR": f"127.0.0.1:{port}", "NUM_PROCESSES": str(len(places))}
        if len(places) > 1
        else {}
    )
    started = []
    for index, place in enumerate(places):
        environment = clean | joined | ({"PROCESS_ID": str(index)} if joined else {})
        log = open(place / f"{index}.log", "w+")  # noqa: SIM115
        pipes = {"stdout": log, "stderr": subprocess.STDOUT}
        started.append((subprocess.Popen(command, cwd=place, env=environment, **pipes), log))
    try:
        for process, _ in started:
            process.wait(timeout=PATIENCE)
    finally:
        for process, log in started:
            process.kill()
            log.close()
    return [(process.wait(), Path(log.name).read_text()) for process, log in started]


def losses(text):
    """{step: loss} of what a script printed."""
    return {
        int(step): float(loss) for step, loss in re.findall(r"step (\d+):? loss (\d\.\d+)", text)
    }


def truncate(folder):
    for file in folder.glob("**/d/*"):
        os.truncate(file, 10)


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that gives an undisturbed run of a script, in one process: its folder, and its
    losses.
    """
    runs = {}

    def undisturbed(command):
        if command not in runs:
            place = tmp_path_factory.mktemp("whole")
            ((status, text),) = run(command, place / "run", place)
            assert status == 0, text
            runs[command] = place / "run", losses(text)
        return runs[command]

    return undisturbed


@every_script
def test_if_only_one_process_can_read_the_newest_both_take_the_older(
    tmp_path, whole, command, older, last
):
    undisturbed, expected = whole(command)
    shutil.copytree(undisturbed, tmp_path / "run")
    places = tmp_path / "zero", tmp_path / "one"
    for place in places:
        place.mkdir()
    newest = tmp_path / "run" / str(last)
    (newest / "default").rename(places[0] / "default")
    (newest / "default").symlink_to("/proc/self/cwd/default")  # which process 1 has not
    outcomes = run(command, tmp_path / "run", *places)
    assert [status for status, _ in outcomes] == [0, 0], outcomes
    assert f"WARNING: process 1 cannot restore {newest}: " in outcomes[0][1]
    found = losses(outcomes[0][1])
    assert list(found) == list(range(older + 1, last + 1))
    # the recipes use bfloat16
    assert found == pytest.approx({step: expected[step] for step in found}, rel=0.02)
    kept = {str(older), str(last), f"damaged-{last}"}
    assert {folder.name for folder in (tmp_path / "run").iterdir()} == kept
    assert (newest / "default").is_dir() and not (newest / "default").is_symlink()  # saved again


@every_script
@pytest.mark.parametrize("damage", [empty, truncate])
def test_a_damaged_checkpoint_is_named_and_the_older_one_taken(
    tmp_path, whole, command, older, last, damage
):
    undisturbed, expected = whole(command)
    shutil.copytree(undisturbed, tmp_path / "run")
    damage(tmp_path / "run" / str(last))
    ((status, text),) = run(command, tmp_path / "run", tmp_path)
    assert status == 0 and f"WARNING: process 0 cannot restore {tmp_path}/run/{last}: " in text, (
        text
    )
    found = losses(text)
    assert list(found) == list(range(older + 1, last + 1))
    assert found == pytest.approx({step: expected[step] for step in found}, rel=1e-3)
    assert (tmp_path / "run" / f"damaged-{last}").is_dir()


def test_a_step_that_is_damaged_twice_is_set_aside_twice(tmp_path, whole):
    command, older, last = SCRIPTS["train.py of clusters"]
    shutil.copytree(whole(command)[0], tmp_path / "run")
    for _ in range(2):
        truncate(tmp_path / "run" / str(last))
        ((status, text),) = run(command, tmp_path / "run", tmp_path)
        assert status == 0 and f"resumes after step {older}" in text, text
    kept = {str(older), str(last), f"damaged-{last}", f"damaged-{last}-2"}
    assert {folder.name for folder in (tmp_path / "run").iterdir()} == kept


def test_if_no_checkpoint_can_be_read_by_all_none_is_renamed_and_every_process_ends(
    tmp_path, whole
):
    command, older, last = SCRIPTS["train.py of clusters"]
    shutil.copytree(whole(command)[0], tmp_path / "run")
    places = tmp_path / "zero", tmp_path / "one"
    for place in places:
        place.mkdir()
    truncate(tmp_path / "run" / str(last))
    (tmp_path / "run" / str(older) / "default").rename(places[0] / "default")
    (tmp_path / "run" / str(older) / "default").symlink_to("/proc/self/cwd/default")
    outcomes = run(command, tmp_path / "run", *places)
    for status, text in outcomes:
        assert (
            status == 1
            and f"no checkpoint in {tmp_path}/run can be restored by all processes" in text
        )
    assert f"processes 0 and 1 cannot restore {tmp_path}/run/{last}: " in outcomes[0][1]
    assert f"process 1 cannot restore {tmp_path}/run/{older}: " in outcomes[0][1]
    assert sorted(folder.name for folder in (tmp_path / "run").iterdir()) == [str(older), str(last)]


def no_folder(kind, place):
    """A name that is none of a folder in which all can save."""
    name = place / "run"
    if kind in ("a file", "below a file"):
        name.touch()
    if kind in ("a link to nowhere", "a link to itself"):
        name.symlink_to(name if kind == "a link to itself" else place / "nowhere")
    below = {"below a file": name / "a" / "b", "too long": place / ("x" * 300)}
    return {"read-only": Path("/sys")}.get(kind, below.get(kind, name))


CLUSTERS, *RECIPES = SCRIPTS.values()
KINDS = {
    "a file": "it is a file",
    "below a file": "it is a file, or below one: name a folder",
    "a link to nowhere": "a link that leads nowhere: name a folder",
    "a link to itself": "name a folder",
    "read-only": "you may not write there",
    "too long": "its name is too long: name another folder",
}


@pytest.mark.parametrize(
    ("command", "kind"),
    [(CLUSTERS[0], kind) for kind in KINDS] + [(command, "a file") for command, *_ in RECIPES],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_where_nothing_can_be_saved_every_process_ends_at_once_with_one_line(
    tmp_path, command, kind, processes
):
    """Orbax would raise in a thread that saves, and the others would wait for it."""
    places = [tmp_path / str(index) for index in range(processes)]
    for place in places:
        place.mkdir()
    folder = no_folder(kind, tmp_path)
    for status, text in run(command, folder, *places):
        (line,) = [line for line in text.splitlines() if str(folder) in line]
        assert f"{folder} cannot hold checkpoints: process 0 on {os.uname().nodename}: " in line
        assert KINDS[kind] in line and status == 1
        assert "step 1" not in text and "Traceback" not in text and "Fatal" not in text


def test_a_name_with_a_newline_is_a_name(tmp_path):
    command, _, last = SCRIPTS["train.py of clusters"]
    ((status, text),) = run(command, f"{tmp_path}/two\nlines", tmp_path)
    assert status == 0 and f"step {last} loss" in text, text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "the name of the checkpoints' folder is empty: is its variable set?"),
        ("b\udcff", r"'b\udcff' is not in UTF-8: name another folder"),
        ("a\nfile/run", r"a\nfile/run' cannot hold checkpoints: "),
    ],
)
def test_a_name_that_cannot_be_a_folder_is_told_in_one_line(tmp_path, name, says):
    (tmp_path / "a\nfile").touch()
    ((status, text),) = run(SCRIPTS["train.py of clusters"][0], name, tmp_path)
    assert status == 1 and says in text.splitlines()[-1], text
