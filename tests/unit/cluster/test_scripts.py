"""The scripts that readers copy: what stands in a variable reaches the other hosts as it is, and as nothing else."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from places import ROOT

from shardlab.cluster.engine import free_ports

pytestmark = pytest.mark.reads("book/cluster", "src/shardlab")


@pytest.fixture
def hosts(tmp_path):
    """A folder whose name has quotes and spaces, and an ssh that runs the command here."""
    folder = tmp_path / "a 'quoted' \"folder\""
    (folder / "bin").mkdir(parents=True)
    (folder / "host-by-glob").touch()
    for name, text in {
        "ssh": 'echo "host $3"; eval "$4"',
        "python": 'echo "$COORDINATOR|$PROCESS_ID|$JAX_NOTE|$*"',
    }.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    shutil.copy(ROOT / "book" / "cluster" / "ssh.sh", folder)
    return folder


def run(folder, *arguments, **variables):
    settings = os.environ | {"VENV": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["bash", "ssh.sh", *arguments], cwd=folder, env=settings, capture_output=True, text=True, timeout=60
    )
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


def test_names_with_quotes_and_stars_are_names(hosts):
    note = 'it\'s $HOME `id` "x"'
    status, lines, said = run(hosts, "it's.py", "a b", HOSTS="host* two", PORT="99", JAX_NOTE=note)
    assert status == 0 and not said, said
    assert lines == [
        "host host*", "host two", f"host*:99|0|{note}|-u it's.py a b", f"host*:99|1|{note}|-u it's.py a b",
    ]  # fmt: skip


def test_a_variable_is_no_command(hosts):
    harm = "1;touch harmed;"
    status, lines, _ = run(hosts, "x.py", HOSTS="one", PORT=harm)
    assert status == 0 and lines == ["host one", f"one:{harm}|0||-u x.py"]
    status, lines, _ = run(hosts, "x.py", HOSTS="one;touch${IFS}harmed;", PORT="1")
    assert not (hosts / "harmed").exists()


def test_the_coordinator_is_a_host_and_not_a_user(hosts):
    status, lines, _ = run(hosts, "x.py", HOSTS="root@one root@two", PORT="1")
    assert status == 0 and lines[:2] == ["host root@one", "host root@two"]
    assert [line.split("|")[0] for line in lines[2:]] == ["one:1", "one:1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_the_programs_on_all_hosts(hosts, number):
    """Ctrl-C is a SIGINT to the script; bash lets what runs in its background ignore it."""
    (hosts / "bin" / "ssh").write_text(
        '#!/bin/bash\ntrap \'echo "ended $3"; exit\' TERM\necho "host $3"\nwhile :; do sleep 0.05; done\n'
    )
    settings = os.environ | {"VENV": str(hosts), "PATH": f"{hosts / 'bin'}:{os.environ['PATH']}", "HOSTS": "one two"}
    script = subprocess.Popen(["bash", "ssh.sh", "x.py"], cwd=hosts, env=settings, stdout=subprocess.PIPE, text=True)
    assert sorted(script.stdout.readline() for _ in "12") == ["host one\n", "host two\n"]
    script.send_signal(number)
    rest, _ = script.communicate(timeout=100)  # returns when all that could write have ended
    assert script.returncode == 1 and sorted(rest.splitlines()) == ["ended one", "ended two"]


FAILS = """
from join import join

join()
import jax

print("joined", jax.process_count(), flush=True)
if jax.process_index() == 1:
    raise ValueError("a bug in one process")
input()
"""


@pytest.mark.slow
def test_a_process_that_has_joined_and_raises_ends_at_once(tmp_path):
    """Without `join`'s hook it would wait 300 seconds for the other, which waits for it."""
    (port,) = free_ports(1)
    (tmp_path / "fails.py").write_text(FAILS)
    shutil.copy(ROOT / "book" / "cluster" / "join.py", tmp_path)
    settings = {"COORDINATOR": f"127.0.0.1:{port}", "NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu", "NPROC": "32"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    healthy, broken = (
        subprocess.Popen(
            [sys.executable, "fails.py"], cwd=tmp_path, env=os.environ | settings | {"PROCESS_ID": str(index)}, **pipes
        )
        for index in range(2)
    )
    try:
        out, _ = broken.communicate(timeout=200)
        assert broken.returncode == 1 and "joined 2" in out and "ValueError: a bug in one process" in out
        assert healthy.poll() is None  # it is the launcher that ends the others
    finally:
        healthy.kill()
        healthy.communicate()
