"""Compiled programs are kept from run to run: right after an edit, shared by clones, safe with
several writers.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from places import ROOT
from tiny_book import TinyBook, chapter
from waiting import PATIENCE, wait_until

from bookbinder.read import package
from bookbinder.read.book import BookError, load
from bookbinder.run import compare, run_notebook, runs, stale

pytestmark = pytest.mark.reads(
    "src/bookbinder", "src/shardlab", "_config.yml", "_toc.yml", "book", "requirements.txt"
)

KEPT = package.of(ROOT).programs
START = """
import jax, jax.numpy as jnp
from shardlab import explain
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.split("/")[-1]))
"""
COUNT = 'print(events.count("cache_hits"), events.count("cache_misses"))'
PROGRAM = "f = jax.jit(lambda x: jnp.sin(x) @ x.T)\nprint(f(jnp.ones((4, 4))).sum())"


def command(archive, *options):
    kept = ["--programs", archive, "--programs-in", KEPT.folder, "--programs-change", KEPT.change]
    return [sys.executable, run_notebook.__file__, "-", "--outputs", *kept, *options]


def environment(source=ROOT / "src"):
    clean = {name: value for name, value in os.environ.items() if not re.match("JAX|XLA", name)}
    return clean | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(source), **KEPT.variables}


def notebook(*cells):
    cells = [cell if isinstance(cell, dict) else new_code_cell(cell) for cell in cells]
    return nbformat.writes(new_notebook(cells=cells))


def run(archive, *cells, source=ROOT / "src"):
    """What each cell printed, in a run that begins with what is kept beside an archive."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command(archive),
        input=notebook(*cells),
        capture_output=True,
        text=True,
        env=environment(source),
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["ok"], report["message"] + report["traceback"]
    ran = nbformat.reads(report["notebook"], as_version=4)
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in ran.cells]


def counts(printed):
    """How many programs were kept, and how many compiled."""
    return tuple(map(int, printed.split()))


@pytest.fixture
def archive(tmp_path):
    return tmp_path / "programs" / "zero" / "lock.zip"


def names(archive):
    with zipfile.ZipFile(archive) as programs:
        assert programs.testzip() is None
        return set(programs.namelist())


def test_what_is_compiled_is_not_compiled_again_and_shows_the_same(archive):
    first = run(archive, START, PROGRAM, COUNT)
    hits, misses = counts(first[-1])
    assert hits == 0 and misses >= 2
    again = run(archive, START, PROGRAM, COUNT)
    assert counts(again[-1]) == (misses, 0) and again[:-1] == first[:-1]
    kept = names(archive)
    assert len(kept) == misses
    # An archive has what the last run has used, so that it does not grow with each edit.
    run(archive, START, "print(jnp.ones(3) * 2)", COUNT)
    assert not names(archive) & {name for name in kept if "lambda" in name}


EXPLAINED = """{}def f(x):
    return x.sum(0)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(jnp.ones((4, 4)), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")))
(move,) = explain(f, x).moves
from shardlab.programs.origins import where
print(where(move.file, move.line))"""  # noqa: E501
EMULATE = "from shardlab import emulate\nemulate(2)\n"


def test_lines_are_right_after_an_edit_that_moves_them(archive):
    """Without the source lines in its key, a program that has not changed otherwise comes back with
    the old ones.
    """
    for above, line in (("", 2), ("# one\n# two\n", 4), ('""\n', 3), ("", 2)):
        cells = [EMULATE + START, EXPLAINED.format(above)]
        assert run(archive, *cells)[-1].split() == [f"In[2]:{line}"], above
    # And the number of the cell, where one was put in before it.
    assert run(archive, EMULATE + START, "1", EXPLAINED.format(""), COUNT)[-2].split() == [
        "In[3]:2"
    ]


def test_a_change_compiles_again_what_it_concerns(archive):
    cells = [
        START,
        PROGRAM,
        "g = jax.jit(lambda x: jnp.cos(x) * 2)\nprint(g(jnp.ones(3)).sum())",
        COUNT,
    ]
    _, misses = counts(run(archive, *cells)[-1])
    cells[1] = cells[1].replace("sin", "tan")
    hits, compiled = counts(run(archive, *cells)[-1])
    assert hits >= 2 and 0 < compiled < misses and hits + compiled == misses


def test_clones_share_although_their_folders_differ(archive, tmp_path):
    elsewhere = tmp_path / "another clone" / "src"
    shutil.copytree(ROOT / "src" / "shardlab", elsewhere / "shardlab")
    cells = [EMULATE + START, EXPLAINED.format(""), COUNT]
    _, misses = counts(run(archive, *cells)[-1])
    assert counts(run(archive, *cells, source=elsewhere)[-1]) == (misses, 0)


def test_other_ways_to_run_a_chapter_begin_with_the_same_programs(archive):
    _, misses = counts(run(archive, START, PROGRAM, COUNT)[-1])
    other = archive.with_name("exercises.zip")
    assert counts(run(other, START, PROGRAM, COUNT)[-1]) == (misses, 0)
    assert names(other) == names(archive)


def test_what_is_damaged_costs_a_compilation_and_is_said_nowhere(archive):
    first = run(archive, START, PROGRAM, COUNT)
    good = archive.read_bytes()
    damages = [good[:-200], good[: len(good) // 2], b"", b"no archive", bytes(len(good))]
    damages += [good[:300] + bytes([good[300] ^ 255]) + good[301:]]  # one byte of a program
    for damage in damages:
        archive.write_bytes(damage)
        again = run(archive, START, PROGRAM, COUNT)
        assert again[:-1] == first[:-1] and counts(again[-1])[1] > 0
        assert (
            names(archive) == {info for info in names(archive) if info.endswith("-cache")}
            and len(again) == 3
        )
        assert counts(run(archive, START, PROGRAM, COUNT)[-1])[1] == 0  # whole again
    archive.unlink()
    archive.mkdir()  # in the way
    assert run(archive, START, PROGRAM, COUNT)[:-1] == first[:-1]


def test_names_in_an_archive_lead_nowhere_else(archive, tmp_path):
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as programs:
        for name in ("../../outside-cache", "/tmp/outside-cache", "a/b-cache", "sitecustomize.py"):
            programs.writestr(name, "raise SystemExit")
    folder = tmp_path / "unpacked"
    run_notebook.unpack(archive, folder)
    assert not [*folder.iterdir()] and not [*tmp_path.rglob("*outside*")]


def test_a_program_that_is_half_written_is_not_kept(archive, tmp_path):
    """The process that wrote it was killed."""
    run(archive, START, PROGRAM)
    folder = tmp_path / "run"
    own = folder / "programs-of" / "1-1"
    own.mkdir(parents=True)
    run_notebook.unpack(archive, folder / "programs")
    (whole, *_) = (folder / "programs").iterdir()
    content = whole.read_bytes()
    for size in (0, 1, len(content) // 2, len(content) - 1):
        (own / f"half{size}-cache").write_bytes(content[:size])
    (own / "whole-cache").write_bytes(content)
    run_notebook.pack(archive, folder)
    assert names(archive) == {"whole-cache"}  # and none of the others was read


def test_several_that_write_at_once_leave_one_whole_archive(archive):
    archive.parent.mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        printed = [*pool.map(lambda n: run(archive, START, PROGRAM, f"print({n})"), range(4))]
    assert {lines[1] for lines in printed} == {printed[0][1]}
    assert names(archive) and not [file for file in archive.parent.iterdir() if file != archive]


PROCESSES = """
import subprocess, sys
code = "import os, jax; print(os.environ['JAX_COMPILATION_CACHE_DIR']); jax.jit(lambda x: x * 3 + 1)(2.0)"
started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
folders = [process.communicate()[0].split()[-1] for process in started]
import os
print(len({*folders, os.environ["JAX_COMPILATION_CACHE_DIR"]}))
"""  # noqa: E501


def test_each_process_has_a_folder_of_its_own(archive):
    """None reads what another one is still writing; what all have compiled is kept once."""
    assert run(archive, START, PROCESSES)[-1].split() == ["4"]
    assert len([name for name in names(archive) if "lambda" in name]) == 1


UNCACHED = {"tags": ["uncached"]}


def test_a_cell_can_compile_anew(archive):
    cells = [
        "print('zero')",
        START,
        new_code_cell(PROGRAM, metadata=UNCACHED),
        COUNT,
        PROGRAM,
        COUNT,
    ]
    zero, *first = run(archive, *cells)
    _, *again = run(archive, *cells)
    assert zero == "zero\n"  # no other cell is touched
    assert counts(again[2]) == (0, 0) == counts(first[2])  # it asks no cache, not even to store
    assert counts(again[4])[0] == counts(first[4])[1] > 0 == counts(again[4])[1]
    assert first[1] == again[1]


def test_a_run_that_fails_keeps_what_it_has_compiled_and_one_that_is_stopped_leaves_nothing(
    archive, tmp_path
):
    archive.parent.mkdir(parents=True)
    text = notebook(START, PROGRAM, "1 / 0")
    done = subprocess.run(
        command(archive), input=text, capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 1 and names(archive)
    archive.unlink()
    ready = tmp_path / "ready"
    text = notebook(
        START, PROGRAM, f"open({str(ready)!r}, 'w').close()\nimport time\ntime.sleep({PATIENCE})"
    )
    with subprocess.Popen(
        command(archive),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    ) as process:
        process.stdin.write(text)
        process.stdin.close()
        wait_until(ready.exists)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    assert not [*archive.parent.iterdir()]


def test_a_folder_that_may_not_be_written_costs_the_programs_and_no_run(
    archive, monkeypatch, tmp_path
):
    folder = tmp_path / "run"
    (folder / "programs-of").mkdir(parents=True)
    archive.parent.parent.mkdir(parents=True)
    archive.parent.write_text("a file in its place")
    with pytest.raises(OSError):  # which the runner takes as it is
        run_notebook.pack(archive, folder)
    text = notebook(START, PROGRAM)
    done = subprocess.run(
        command(archive), input=text, capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr


# --- Where they are, and how many -----------------------------------------------------------------


def test_other_compilers_processors_and_flags_have_archives_of_their_own(monkeypatch):
    here = runs.programs(ROOT, "zero", "lock")
    assert here.relative_to(ROOT / "_build" / "programs").parts[1:] == ("zero", "lock.zip")
    installed = "-".join(
        sorted(info for info in stale.packages() if re.match(r"jax(lib)?-\d", info))
    )
    assert here.parts[-3].startswith(f"{installed}-") and "jaxlib-" in installed
    assert runs.programs(ROOT, "zero", "exercises").parent == here.parent
    fast = runs.programs(ROOT, "zero", "lock", settings={"XLA_FLAGS": "--fast"})
    assert fast.parent == here.parent and fast != here
    monkeypatch.setattr(stale, "processor", lambda: "another")
    assert runs.programs(ROOT, "zero", "lock").parents[1] != here.parents[1]
    monkeypatch.undo()
    monkeypatch.setattr(stale, "packages", lambda python: ["jax-0.1", "jaxlib-0.1", "jaxtyping-3"])
    assert runs.programs(ROOT, "zero", "lock").parts[-3].startswith("jax-0.1-jaxlib-0.1-")


def test_the_folder_has_a_bound_and_what_was_not_used_for_the_longest_goes_first(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(runs, "PROGRAMS", 250)
    files = [tmp_path / "jax-1" / f"chapter{n}" / "lock.zip" for n in range(4)]
    for n, file in enumerate(files):
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(100))
        # the first was used last
        os.utime(file, (1e9 + (n == 0) * 100 + n, 1e9 + (n == 0) * 100 + n))
    runs._forget_programs(tmp_path)
    assert [file.exists() for file in files] == [True, False, False, True]


def test_a_book_keeps_programs_where_its_package_says_how(tmp_path):
    tiny = TinyBook(tmp_path)
    assert tiny.build()[0] == 0 and not (tiny.root / "_build" / "programs").exists()
    settings = (tiny.root / "pyproject.toml").read_text()
    variables = '[tool.bookbinder.programs.variables]\nLIKE_THIS = "1"\n'
    how = (
        '[tool.bookbinder.programs]\npackages = ["jax"]\nfolder = "PROGRAMS_IN"\nchange = "x = '
        f'folder"\n{variables}'
    )
    tiny.write("pyproject.toml", settings + how)
    code = "import os\nprint(os.environ['LIKE_THIS'], os.path.isdir(os.environ['PROGRAMS_IN']))"
    tiny.write("book/one.md", chapter("One", code))
    status, _, err = tiny.build()
    assert status == 0 and "1 True" in tiny.page("one"), err
    (archive,) = (tiny.root / "_build" / "programs").glob("jax-*/one/lock*.zip")
    assert names(archive) == set()
    tiny.write("pyproject.toml", settings + how.replace("folder", "place"))
    package.of.cache_clear()
    with pytest.raises(BookError, match="has no place; it has change, folder, packages, variables"):
        package.of(tiny.root)


# --- What pages show does not depend on them ------------------------------------------------------


def test_outputs_are_compared_with_those_of_a_run_without_them(tmp_path):
    tiny = TinyBook(tmp_path)
    varies = "```{code-cell}\n:tags: [varies]\n\nprint(time.time_ns())\n```\n"
    tiny.write(
        "book/one.md",
        chapter("One", "import time, tempfile\nprint(object(), tempfile.mkdtemp())") + varies,
    )
    hidden = "```{code-cell}\n:tags: [remove-output]\n\nprint(time.time_ns())\n```\n"
    tiny.write(
        "book/two.md", chapter("Two", "import time", "print('a')\nprint(time.time_ns())") + hidden
    )
    status, out, err = tiny.build("compare")
    assert status == 1, out + err
    assert re.search(
        r"^book/two\.md:18: shows something else when it runs again:\n- \d+\n\s*\n\+ \d+\n",
        out,
        re.M,
    ), out
    assert out.endswith("4 cells compared; 1 differ, 0 runs failed\n")
    tiny.write("book/two.md", chapter("Two", "print('a')", "1 / 0"))
    status, out, err = tiny.build("compare")
    assert (
        status == 1
        and re.search(r"^book/two\.md:\d+: ZeroDivisionError", err, re.M)
        and "2 runs failed" in out
    )
    status, out, _ = tiny.build("compare", "--chapters", "one")
    assert (status, out) == (0, "1 cells compared; 0 differ, 0 runs failed\n")


def test_a_comparison_compiles_anew(tmp_path, monkeypatch):
    """Else it would compare what was kept with itself."""
    tiny = TinyBook(tmp_path)
    planned = []

    def run(some, **options):
        planned.append(([one.programs for one in some], options["fresh"]))
        return [
            runs.Report(
                {"ok": False, "error": "E", "message": "", "traceback": "", "cell": 0, "line": 1},
                0,
                "",
            )
        ] * 2

    monkeypatch.setattr(
        runs,
        "of_chapter",
        lambda book, one, column="lock": replace(RUN, name=one.name, programs=Path(column)),
    )
    monkeypatch.setattr(compare.runs, "run", run)
    compare.run(load(tiny.root))
    assert planned == [([Path("lock")] * 2, False), ([None] * 2, True)]


RUN = runs.Run("one", Path("one"), new_notebook(), "", ROOT)


def test_a_run_marks_its_archives_as_used(tmp_path):
    """So that those of other versions are deleted first."""
    archive = tmp_path / "programs" / "lock.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w"):
        pass
    os.utime(archive, (1e9, 1e9))
    run_notebook.unpack(archive.with_name("other.zip"), tmp_path / "unpacked")
    assert archive.stat().st_mtime > 1e9
