"""make matrix: small books on small environments, and every way in which a version or a chapter may
fail.
"""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from pathlib import Path

import nbformat
import psutil
import pytest
from places import ROOT
from repository import BOOK, git
from tiny_book import TinyBook, chapter, statuses
from waiting import PATIENCE, wait_until

from bookbinder.progress import Progress
from bookbinder.read import package
from bookbinder.read.book import BookError, load
from bookbinder.run import environments, matrix, stale
from bookbinder.run.environments import Environment, EnvironmentFault

HERE = Environment("here", python=sys.executable)
THERE = Environment("there", python=sys.executable)
OLDEST = package.of(ROOT).minimum_jax
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def tiny(tmp_path):
    book = TinyBook(tmp_path)
    book.write("src/shardlab/__init__.py", "")
    return book


def run(tiny, *versions, only=None, **options):
    """The matrix of a book, or of one chapter, and its outcomes by chapter and version."""
    book = load(tiny.root)
    chapters = [book.chapter(only)] if only else None
    found = matrix.run(book, versions or [HERE], chapters=chapters, **options)
    return found, {(one.chapter, one.column): one for one in found.outcomes}


def start(tiny, *arguments, columns=("here", "there")):
    """Start the command, with columns that all are this Python."""
    program = f"""
        import sys
        from bookbinder import __main__
        from bookbinder.run import environments
        from bookbinder.run.environments import Environment
        versions = [Environment(name, python=sys.executable) for name in {columns!r}]
        environments.environments = lambda root: versions
        sys.exit(__main__.main(["--root", {str(tiny.root)!r}, "matrix", *sys.argv[1:]]))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def command(tiny, *arguments, **options):
    """Run the command to its end: exit status, standard output, standard error."""
    process = start(tiny, *arguments, **options)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def processes_with(mark):
    """Processes that have some text in their command line or their folder, but for this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and mark in " ".join([*process.cmdline(), process.cwd()]):
                found.append(process)
        except psutil.Error:
            continue
    return found


# --- The table ------------------------------------------------------------------------------------


def test_the_table_and_its_file_and_what_is_reused(tiny):
    status, out, err = command(tiny)
    assert status == 0, err
    rows = [line.split() for line in out.splitlines()]
    assert (
        rows[0] == ["chapter", "here", "there"] and rows[1][0] == "JAX" and rows[2][0] == "Python"
    )
    assert [row[0] for row in rows[3:5]] == ["one", "two"]  # index has no code
    assert re.fullmatch(r"one +\d+\.\d s +\d+\.\d s", out.splitlines()[3])
    assert "4 results, 0 reused, 0 failed, 0 versions missing" in out
    assert "one on here: running" in err and re.search(r"two on there: ran in \d+\.\d s", err)

    saved = json.loads((tiny.root / "_build/matrix/matrix.json").read_text())
    assert [column["name"] for column in saved["columns"]] == ["here", "there"]
    column = saved["columns"][0]
    assert (
        column["python"] == sys.version.split()[0]
        and column["jax"] == __import__("jax").__version__
    )
    assert (
        column["jaxlib"]
        and column["flax"]
        and column["error"] is None
        and saved["date"].startswith("20")
    )
    one = saved["chapters"]["one"]["there"]
    assert (
        one["status"] == "ok"
        and one["seconds"] > 0
        and one["deprecations"] == []
        and one["error"] is None
    )

    # All is reused until something that a result depends on changes; prose does not matter.
    tiny.write(
        "book/one.md",
        (tiny.root / "book/one.md").read_text().replace("# One", "# One\n\nMore prose."),
    )
    assert "4 results, 4 reused" in command(tiny)[1]
    tiny.write("book/one.md", chapter("One", "print('one', 3)"))
    _, outcomes = run(tiny, HERE, THERE)
    assert {place for place, one in outcomes.items() if not one.reused} == {
        ("one", "here"),
        ("one", "there"),
    }
    tiny.write("src/shardlab/value.py", "VALUE = 2\n")
    assert not run(tiny, only="two")[1]["two", "here"].reused
    assert run(tiny, only="two")[1]["two", "here"].reused
    assert not run(tiny, only="two", fresh=True)[1]["two", "here"].reused


def test_a_part_of_the_matrix_leaves_the_file_of_the_whole(tiny):
    status, out, _ = command(tiny, "--only", "there", "--chapters", "book/two.md", "--jobs", "1")
    assert (
        status == 0
        and "\n1 results, 0 reused" in out
        and re.findall(r"^two +\d", out, re.MULTILINE)
    )
    assert "\none " not in out and out.splitlines()[0].split() == ["chapter", "there"]
    assert not (tiny.root / "_build/matrix/matrix.json").exists()
    status, _, err = command(tiny, "--only", "0.1")
    assert (
        status == 1
        and err.strip() == "--only: 0.1 is not a version of the matrix; known are here, there"
    )


def test_a_record_keeps_the_columns_that_were_not_run(tiny):
    file, jax = tiny.root / "book/recordings/matrix.txt", __import__("jax").__version__

    def recorded():
        lines = file.read_text("utf-8").splitlines()
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]

    assert command(tiny, "--record")[0] == 0
    head, _, days, versions, _, *rows = recorded()
    assert head == ["", "here", "there"] and versions == ["JAX", jax, jax]
    assert [row[0] for row in rows] == ["{doc}`one`", "{doc}`two`"]
    before = "2024-05-06"
    file.write_text(file.read_text("utf-8").replace(days[1], before), "utf-8")
    file.write_text(re.sub("(?m)^.*two.*\n", "", file.read_text("utf-8")), "utf-8")

    assert command(tiny, "--record", "--only", "there")[0] == 0
    after = recorded()
    assert after[0] == head and after[2] == ["recorded", before, days[2]]
    assert after[5] == rows[0] and after[6][:2] == ["{doc}`two`", "–"] and after[6][2][-1] == "s"

    chosen = file.read_text("utf-8")
    status, _, err = command(tiny, "--record", "--chapters", "book/two.md")
    assert status == 0 and "not recorded: some chapters were left out" in err
    tiny.write("book/two.md", chapter("Two", "1 / 0"))
    assert command(tiny, "--record")[0] == 1 and file.read_text("utf-8") == chosen


def test_the_build_and_the_matrix_run_nothing_twice(tiny):
    tiny.write("book/one.md", chapter("One", "open('data/table.csv').read()"))
    (tiny.root / "book/data").mkdir()
    tiny.write("book/data/table.csv", "1")
    assert tiny.build()[0] == 0
    lock = Environment("lock", python=sys.executable)
    assert all(one.reused for one in run(tiny, lock)[1].values())
    tiny.write("book/data/table.csv", "2")
    outcomes = run(tiny, lock)[1]
    assert not outcomes["one", "lock"].reused and outcomes["two", "lock"].reused
    assert statuses(tiny.build()[1])["one"] == "reused"


def test_a_failing_cell_is_named_by_file_and_line_and_run_again(tiny):
    flag = tiny.root / "mended"
    code = f"x = 1\nif not __import__('os').path.exists({str(flag)!r}):\n    x / 0"
    tiny.write("book/one.md", chapter("One", "y = 1", code))
    line = (tiny.root / "book/one.md").read_text().splitlines().index("    x / 0") + 1
    status, out, err = command(tiny, columns=("here",))
    said = f"here: book/one.md:{line}: ZeroDivisionError: division by zero"
    assert status == 1 and said in out.splitlines() and said in err and "Traceback" in err
    assert re.search(r"^one +failed$", out, re.MULTILINE) and re.search(
        r"^two +\d+\.\d s$", out, re.MULTILINE
    )
    assert "2 results, 0 reused, 1 failed" in out
    saved = json.loads((tiny.root / "_build/matrix/matrix.json").read_text())["chapters"]["one"][
        "here"
    ]
    assert saved["status"] == "failed" and saved["error"] == said.removeprefix("here: ")
    flag.touch()
    found, outcomes = run(tiny)
    assert found.good and not outcomes["one", "here"].reused and outcomes["two", "here"].reused


def test_deprecations_of_the_chapter_of_shardlab_and_of_what_they_call_count_others_do_not(tiny):
    warn = (
        "import warnings\n\ndef old():\n    warnings.warn({!r}, DeprecationWarning, "
        "stacklevel={})\n"
    )
    tiny.write("src/shardlab/ours.py", warn.format("shardlab is old", 1))
    tiny.write("src/theirs.py", warn.format("they are old", 1))
    tiny.write("src/blames.py", warn.format("you are old", 2))
    tiny.write("src/inner.py", warn.format("what a library calls", 1))
    tiny.write("src/outer.py", "import inner\n\ndef call():\n    inner.old()\n")
    program = "import blames\nblames.old()"
    cells = (
        "import subprocess, sys, warnings\nimport blames, outer, theirs\nfrom shardlab import ours",
        "outer.call()\ntheirs.old()\nours.old()\n\nfor _ in range(2):\n    blames.old()",
        (
            f"program = '''\n{program}\n'''\nsubprocess.run([sys.executable, '-c', program], "
            "check=True);"
        ),
        "warnings.warn('of the future', FutureWarning)",
    )
    tiny.write("book/one.md", chapter("One", *cells))
    lines = (tiny.root / "book/one.md").read_text().splitlines()
    found, outcomes = run(tiny, only="one")
    assert found.good
    cell, other = lines.index("    blames.old()") + 1, lines.index("blames.old()") + 1
    if sys.version_info < (3, 13):  # what -c runs has no lines: its cell is named
        other = lines.index("program = '''") + 1
    expected = {f"book/one.md:{line}: you are old" for line in (cell, other)}
    # attributed to the library itself
    expected |= {f"book/one.md:{lines.index('theirs.old()') + 1}: they are old"}
    assert set(outcomes["one", "here"].deprecations) == {
        "src/shardlab/ours.py:4: shardlab is old",
        *expected,
    }
    shown = matrix.table(found)
    assert (
        " s, 4 deprecated" in shown
        and f"here: book/one.md:{cell}: you are old (DeprecationWarning)" in shown
    )
    # A result that is reused has them too, at the lines where the code is now.
    tiny.write("book/one.md", "\n".join(lines).replace("# One", "# One\n\nMore prose.") + "\n")
    again = run(tiny, only="one")[1]["one", "here"]
    assert again.reused and f"book/one.md:{cell + 2}: you are old" in again.deprecations


def test_a_chapter_may_have_a_floor_of_its_own(tiny):
    tiny.write("book/one.md", chapter("One", "1 / 0").replace("---\n", '---\njax: ">=99.1"\n', 1))
    tiny.write("book/two.md", chapter("Two", "2").replace("---\n", '---\njax: ">=0.1"\n', 1))
    status, out, _ = command(tiny, columns=("here",))
    assert status == 0 and re.search(r"^one +needs 99\.1$", out, re.MULTILINE)
    assert re.search(r"^two +\d+\.\d s$", out, re.MULTILINE)


def test_floors_compare_as_numbers(tiny, monkeypatch):
    tiny.write("book/one.md", chapter("One", "1").replace("---\n", '---\njax: ">=0.8.2"\n', 1))
    statuses = {}
    for jax in ("0.7.2", "0.8.1", "0.8.2", "0.8.10", "0.10.0", "0.12.0.1"):
        column = matrix.Column(jax, sys.executable, "3.13", {"jax": jax})
        monkeypatch.setattr(matrix, "_column", lambda *_, column=column: column)
        statuses[jax] = run(tiny, only="one")[1]["one", jax].status
    assert [jax for jax, status in statuses.items() if status == "needs 0.8.2"] == [
        "0.7.2",
        "0.8.1",
    ]
    assert set(statuses.values()) == {"needs 0.8.2", "ok"}


@pytest.mark.parametrize("value", ["0.8", '"0.8.2"', '"<0.8.2"', '">=0.8.x"', "[1]", '""', "true"])
def test_a_floor_that_is_none_is_refused(tiny, value):
    tiny.write(
        "book/one.md", chapter("One", "1").replace("kernelspec:", f"jax: {value}\nkernelspec:", 1)
    )
    with pytest.raises(
        BookError, match=r'^book/one\.md:6: jax: .* write for example jax: ">=0\.8\.2"'
    ):
        load(tiny.root).check()


def test_a_version_without_a_python_fails_and_says_what_to_do(tiny):
    missing = Environment("old", ("3.4", "3.3"), ("numpy",))
    found, outcomes = run(tiny, HERE, missing, only="one")
    assert (
        not found.good
        and outcomes["one", "old"].status == "not run"
        and outcomes["one", "here"].status == "ok"
    )
    said = matrix.table(found).splitlines()[-1]
    assert (
        said.startswith("old: no Python 3.4 or 3.3 on PATH, in ")
        and "uv python install 3.4" in said
    )
    matrix.save(found, tiny.root / "matrix.json")
    saved = json.loads((tiny.root / "matrix.json").read_text())
    assert (
        saved["columns"][1]["error"] == said
        and saved["chapters"]["one"]["old"]["status"] == "not run"
    )


def test_a_second_best_python_is_said(tiny):
    version = Environment("second", ("3.4", PYTHON), python=sys.executable)
    found, _ = run(tiny, version, only="one")
    assert (
        found.good
        and f"second: on Python {sys.version.split()[0]}, for lack of 3.4 here"
        in matrix.table(found)
    )


def test_an_environment_without_what_runs_notebooks_is_a_failure(tiny, tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    _, outcomes = run(tiny, Environment("bare", python=str(bare / "bin" / "python")), only="one")
    assert "has nbclient and ipykernel" in str(outcomes["one", "bare"].failure)


# --- Stopping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_it_leaves_no_process_and_resumes(tiny, number):
    ready, go = tiny.root / "ready", tiny.root / "go"
    child = f"import time  # child of {tiny.root}\ntime.sleep(600)"
    wait = f"""
        import os, subprocess, sys, time
        if not os.path.exists({str(go)!r}):
            subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=True)
            open({str(ready)!r}, "w").close()
            time.sleep(600)
    """
    tiny.write("book/one.md", chapter("One", "1", "2"))  # has more cells, so it is the first
    tiny.write("book/two.md", chapter("Two", wait))
    process = start(tiny, "--jobs", "1", columns=("here",))
    wait_until(ready.exists)
    # the command, the kernel, what its cell has started
    assert len(processes_with(str(tiny.root))) >= 3
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    if number == signal.SIGKILL:
        assert process.returncode == -number
        wait_until(lambda: not processes_with(str(tiny.root)))
    else:
        assert process.returncode == 128 + number and out == ""
        assert err.splitlines()[-1] == f"stopped ({number.name}); finished runs will be reused", err
        assert not processes_with(str(tiny.root))
    go.touch()
    found, outcomes = run(tiny)
    assert found.good and outcomes["one", "here"].reused and not outcomes["two", "here"].reused


# --- Environments ---------------------------------------------------------------------------------


def wheel(folder, version):
    """A package of one module, `tinypackage`, as it is installed."""
    file = folder / f"tinypackage-{version}-py3-none-any.whl"
    info = f"tinypackage-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("tinypackage.py", f"version = '{version}'\n")
        made.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tinypackage\nVersion: {version}\n"
        )
        made.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        made.writestr(
            f"{info}/RECORD",
            f"tinypackage.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
        )
    return f"tinypackage @ {file.as_uri()}"


def test_an_environment_is_made_once_for_each_definition(tmp_path):
    def made(*requirements, constraints=None):
        version = Environment("a", (PYTHON,), requirements, constraints)
        return Path(environments.make(version, tmp_path / "environments", Progress()))

    first = wheel(tmp_path, "1.0")
    python = made(first)
    assert python == tmp_path / "environments/a/bin/python"
    program = "import tinypackage; print(tinypackage.version)"
    assert subprocess.check_output([python, "-c", program], text=True) == "1.0\n"

    mark, ready = python.parent / "mark", python.parent.parent / "ready"
    mark.touch()
    assert made(first) == python and mark.exists()
    ready.unlink()  # as if it had been killed while it was being made
    made(first)
    assert not mark.exists() and ready.exists()
    mark.touch()
    made(wheel(tmp_path, "2.0"))
    assert not mark.exists()
    assert subprocess.check_output([python, "-c", program], text=True) == "2.0\n"
    mark.touch()
    pins = tmp_path / "pins.txt"
    pins.write_text("tinypackage==2.0\n")
    made(wheel(tmp_path, "2.0"), constraints=pins)
    assert not mark.exists()
    pins.write_text("tinypackage==1.0\n")
    with pytest.raises(EnvironmentFault, match=r"^a: cannot be installed: .*tinypackage==1\.0"):
        made(wheel(tmp_path, "2.0"), constraints=pins)
    assert not ready.exists()


def test_a_requirement_that_is_nowhere_is_a_clear_error(tiny):
    lost = f"lost @ {(tiny.root / 'lost-1.0-py3-none-any.whl').as_uri()}"
    found, outcomes = run(tiny, Environment("lost", (PYTHON,), (lost,)), only="one")
    assert not found.good and outcomes["one", "lost"].status == "not run"
    said = matrix.table(found).splitlines()[-1]
    assert (
        said.startswith("lost: cannot be installed: ")
        and "lost-1.0" in said
        and "environments.py" in said
    )


def test_a_daily_environment_is_resolved_anew_each_day(tmp_path, monkeypatch):
    definitions = []
    monkeypatch.setattr(environments, "uv", lambda *arguments, **_: (0, "python3", ""))
    for day in (1, 1, 2):
        monkeypatch.setattr(
            environments, "date", type("date", (), {"today": staticmethod(lambda day=day: day)})
        )
        place = tmp_path / "newest"
        (place / "bin").mkdir(parents=True, exist_ok=True)
        (place / "bin" / "python").touch()
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
        environments.make(Environment("newest", ("3",), ("x",), daily=True), tmp_path, Progress())
        definitions.append((place / "ready").read_text())
    assert definitions[0] == definitions[1] != definitions[2]


def test_a_nightly_build_comes_from_its_index_alone(tmp_path, monkeypatch):
    def index(name, version):
        folder = tmp_path / name / "tinypackage"
        folder.mkdir(parents=True)
        wheel(folder, version)
        (folder / "index.html").write_text(
            "".join(f'<a href="{file.name}">it</a>' for file in folder.iterdir())
        )
        return (tmp_path / name).as_uri()

    def made(index):
        version = Environment("nightly", (PYTHON,), environments.JAX, index=index)
        python = environments.make(version, tmp_path / "environments", Progress())
        return subprocess.check_output(
            [python, "-c", "import tinypackage as t; print(t.version)"], text=True
        ).strip()

    monkeypatch.setattr(environments, "JAX", ("tinypackage>=0.dev0",))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index("releases", "1.0"))
    assert made(index("nightly", "2.0.dev20310203")) == "2.0.dev20310203"
    (tmp_path / "empty").mkdir()
    with pytest.raises(EnvironmentFault, match=r"^nightly: cannot be installed: .*tinypackage"):
        made((tmp_path / "empty").as_uri())


def test_a_python_that_does_not_run_is_passed_over_for_one_of_pyenv(tmp_path, monkeypatch):
    shim = tmp_path / "shims" / f"python{PYTHON}"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    good = tmp_path / "pyenv" / "versions" / "3" / "bin" / f"python{PYTHON}"
    good.parent.mkdir(parents=True)
    good.symlink_to(sys._base_executable)
    monkeypatch.setenv("PATH", str(shim.parent))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    version = Environment("a", ("3.4", PYTHON))
    assert environments.find_python(version) == str(good)
    good.unlink()
    with pytest.raises(
        EnvironmentFault, match=rf"a: no Python 3\.4 or {re.escape(PYTHON)} on PATH"
    ):
        environments.find_python(version)


def pins():
    """The pins for Colab, by name."""
    lines = (ROOT / "src/bookbinder/run/colab.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_versions_have_what_chapters_import(monkeypatch):
    monkeypatch.delenv("JAX_NIGHTLY", raising=False)
    assert [one.name for one in environments.environments(ROOT)] == [
        "colab",
        "0.10.2",
        "lock",
        "newest",
        OLDEST,
    ]
    monkeypatch.setenv("JAX_NIGHTLY", "https://somewhere/simple/")
    versions = {version.name: version for version in environments.environments(ROOT)}
    assert versions["nightly"].index == "https://somewhere/simple/" and versions["nightly"].daily
    floor = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"][0]
    assert floor == f"jax>={OLDEST}" and f"jax=={OLDEST}" in versions[OLDEST].requirements
    assert floor in versions["newest"].requirements and versions["newest"].daily
    imported, written = set(), set()
    for page in BOOK.chapters:
        written |= set(re.findall(r"^%%writefile \S+/(\w+)\.py$", page.text, re.MULTILINE))
        for cell in page.cells:
            if cell.source.startswith("%%writefile"):  # perhaps a part of a file
                continue
            code = "\n".join(
                line for line in cell.source.split("\n") if not line.lstrip().startswith("%")
            )
            for node in ast.walk(ast.parse(code)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) else []
                imported |= {name.split(".")[0] for name in names}
    imported -= written  # modules that chapters make themselves
    imported -= set(sys.stdlib_module_names) | {"shardlab"}
    assert {"jax", "numpy", "flax", "matplotlib"} <= imported
    for name in imported:
        distribution = {"orbax": "orbax-checkpoint", "IPython": "ipykernel"}.get(name, name)
        for version in versions.values():
            installed = [
                re.match(r"[\w-]+", requirement)[0] for requirement in version.requirements
            ]
            assert version.name == "lock" or distribution in installed, (
                f"{version.name} lacks {distribution}"
            )
    known = {re.match(r"[\w-]+", name)[0] for name in (*pins(), *package.of(ROOT).not_in_colab)}
    assert {re.match(r"[\w-]+", name)[0] for name in versions["colab"].requirements} <= known
    assert not set(pins()) & {name.split("==")[0] for name in package.of(ROOT).not_in_colab}


def test_the_pins_of_colab_can_be_renewed(tmp_path):
    for name in ("scripts/refresh_colab.sh", "src/bookbinder/run/colab.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    file = tmp_path / "src/bookbinder/run/colab.txt"
    before = pins()
    freeze = [f"{name.replace('_', '-').upper()}=={version}" for name, version in before.items()]
    freeze = [line.replace(f"JAX=={before['jax']}", "jax==9.8.7") for line in freeze]
    listing = tmp_path / "pip-freeze.txt"

    def refresh(lines):
        listing.write_text("# a remark\nother==1\ntorch @ file:///x\n" + "\n".join(lines) + "\n")
        command = [
            tmp_path / "scripts/refresh_colab.sh",
            listing.name,
            "2031-02-03, commit abc1234",
        ]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = refresh(freeze)
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    assert (
        "backend-info, 2031-02-03, commit abc1234. Renewed by" in text and "\njax==9.8.7\n" in text
    )
    assert "other" not in text and "torch" not in text
    assert text.count("==") == len(before) and text.count("#") == 2
    done = refresh([line for line in freeze if not line.startswith("FLAX")])
    assert (
        done.returncode == 1
        and "Colab no longer has FLAX" in done.stderr
        and file.read_text() == text
    )
    assert sorted(path.name for path in file.parent.iterdir()) == ["colab.txt"]

    # From Colab's own repository, which is here in its place.
    backend = tmp_path / "backend"
    settings = os.environ | {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_VALUE_0": "https://github.com/googlecolab/backend-info",
    }
    settings["GIT_CONFIG_KEY_0"] = f"url.{backend.as_uri()}.insteadOf"
    command = [tmp_path / "scripts/refresh_colab.sh"]
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True)
    assert done.returncode == 1 and "refresh_colab: cannot clone https://github.com/" in done.stderr
    assert file.read_text() == text
    backend.mkdir()
    (backend / "pip-freeze.txt").write_text(
        "\n".join(freeze).replace("jax==9.8.7", "jax==9.9.9") + "\n"
    )
    git(backend, "init", "--quiet")
    git(backend, "add", "--all")
    git(backend, "commit", "--quiet", "--message", "as of then")
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True)
    assert done.returncode == 0 and "\njax==9.9.9\n" in file.read_text(), done.stderr
    assert re.search(
        r"backend-info, \d{4}-\d\d-\d\d, commit [0-9a-f]{7}\. Renewed", file.read_text()
    )


# --- run_notebook.py ------------------------------------------------------------------------------


class Notebook:
    """A notebook file of some cells, and runs of it."""

    def __init__(self, folder, *cells):
        self.folder, self.file = folder, folder / "notebook.ipynb"
        made = [nbformat.v4.new_markdown_cell("# Words")]
        made += [nbformat.v4.new_code_cell(textwrap.dedent(cell).strip()) for cell in cells]
        nbformat.write(nbformat.v4.new_notebook(cells=made), self.file)

    def start(self, *options, **environment):
        command = [sys.executable, stale.RUNNER, self.file, "--cwd", self.folder, *options]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=os.environ | environment
        )

    def run(self, *options, **environment):
        process = self.start(*options, **environment)
        out, err = process.communicate(timeout=PATIENCE)
        report = json.loads(out.splitlines()[-1])
        assert process.returncode == (0 if report["ok"] else 1), err
        return report


def test_twice_and_restart(tmp_path):
    once = "assert 'x' not in globals()\nx = 1"
    note = "with open('log', 'a') as log:\n    log.write(f'{__import__(\"os\").getpid()} ')"
    notebook = Notebook(tmp_path, note, once, note)
    kernels = lambda: (tmp_path / "log").read_text().split()  # noqa: E731

    report = notebook.run()
    assert report["ok"] and report["cells"] == 3 and len(kernels()) == 2
    report = notebook.run("--twice")
    assert not report["ok"] and (report["cell"], report["line"], report["error"]) == (
        2,
        1,
        "AssertionError",
    )
    assert report["cells"] == 4 and len(kernels()) == 5 and len(set(kernels()[2:])) == 1
    report = notebook.run("--restart-at", "2")
    assert (
        report["ok"]
        and report["cells"] == 5
        and len(kernels()) == 8
        and len(set(kernels()[5:])) == 2
    )
    report = notebook.run("--restart-at", "2", "--twice")
    assert not report["ok"] and report["cells"] == 6


@pytest.mark.parametrize(
    ("cell", "place", "says"),
    [
        ("def f():\n    1 / 0\n%time 1\n\nf()", 5, "ZeroDivisionError: division by zero"),
        ("x = 1\nif x print(x)", 2, "SyntaxError: invalid syntax"),
        ("import os\nos._exit(3)", 1, "DeadKernelError: the kernel died while this cell ran"),
        ("import time\ntime.sleep(30)", 1, "CellTimeoutError: this cell ran for longer than 2 s"),
    ],
)
def test_what_goes_wrong_is_said_with_its_place(tmp_path, cell, place, says):
    report = Notebook(tmp_path, "x = 0", cell, "never = 1").run("--timeout", "2")
    assert not report["ok"] and (report["cell"], report["line"]) == (2, place)
    assert f"{report['error']}: {report['message']}".startswith(says)


def test_a_warning_of_a_library_does_not_say_where_that_is_installed(tmp_path):
    cell = """
        import concurrent.futures.thread as library, warnings

        warnings.warn_explicit("beware", RuntimeWarning, library.__file__, 47)
    """
    report = Notebook(tmp_path, cell).run("--outputs")
    (output,) = nbformat.reads(report["notebook"], as_version=4).cells[1].outputs
    first, line = output.text.splitlines()
    assert first == "concurrent/futures/thread.py:47: RuntimeWarning: beware" and line.strip()


def test_the_kernel_is_the_python_that_runs_the_script_whatever_the_user_has(tmp_path):
    spec = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/bin/false"], "display_name": "x", "language": "python"}))
    profile = tmp_path / "ipython" / "profile_default" / "startup" / "00.py"
    profile.parent.mkdir(parents=True)
    profile.write_text("unwanted = 1")
    cell = (
        f"import os, sys\nassert sys.executable == {sys.executable!r}\nassert 'unwanted' not in "
        "globals()"
    )
    folders = {"JUPYTER_PATH": tmp_path / "jupyter", "JUPYTER_DATA_DIR": tmp_path / "jupyter"}
    folders = {name: str(path) for name, path in folders.items()} | {
        "IPYTHONDIR": str(tmp_path / "ipython")
    }
    report = Notebook(
        tmp_path, cell, "assert os.path.exists('notebook.ipynb')\nos.write(1, b'noise')"
    ).run(**folders)
    assert report["ok"], report
    assert report["python"] == sys.version.split()[0]


def test_whatever_the_cells_have_started_is_ended(tmp_path):
    program = f"import time  # {tmp_path}\ntime.sleep(600)"
    detached = (
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        "
        f"exec({program!r})"
    )
    cell = f"""
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", {program!r}], start_new_session=True)
        subprocess.run([sys.executable, "-c", {detached!r}])
        open("ready", "w").close()
    """
    assert Notebook(tmp_path, cell).run()["ok"]
    assert not processes_with(str(tmp_path))
    for number in (signal.SIGTERM, signal.SIGINT):
        (tmp_path / "ready").unlink()
        process = Notebook(tmp_path, cell, "import time\ntime.sleep(600)").start()
        wait_until((tmp_path / "ready").exists)
        assert len(processes_with(str(tmp_path))) >= 3
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
        assert (
            process.returncode == 128 + number and '"ok"' not in out and "Traceback" not in err
        ), err
        assert not processes_with(str(tmp_path))


def test_its_help_and_its_refusals(tmp_path):
    def said(*arguments):
        return subprocess.run(
            [sys.executable, stale.RUNNER, *arguments], capture_output=True, text=True
        )

    assert said("--help").returncode == 0 and "--restart-at K" in said("--help").stdout
    (tmp_path / "bad.ipynb").write_text("{")
    notebook = Notebook(tmp_path, "1")
    for arguments, message in (
        ([tmp_path / "none.ipynb"], "none.ipynb: not a notebook that can be read"),
        ([tmp_path / "bad.ipynb"], "bad.ipynb: not a notebook that can be read"),
        ([notebook.file, "--cwd", tmp_path / "none"], "none: there is no such folder"),
        ([notebook.file, "--restart-at", "-1"], "--restart-at -1: must be 0 or more"),
    ):
        refused = said(*arguments)
        assert refused.returncode == 2 and message in refused.stderr


def test_a_runner_that_is_killed_is_named(tiny):
    tiny.write(
        "book/one.md",
        chapter(
            "One",
            "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nimport time\ntime.sleep(5)",
        ),
    )
    _, outcomes = run(tiny, only="one")
    assert "run_notebook.py: killed by SIGKILL" in str(outcomes["one", "here"].failure)
