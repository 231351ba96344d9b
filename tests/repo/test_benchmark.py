"""`make benchmark`: a build with stock Jupyter Book beside one by `make book`, the whole way on a
tiny book.
"""

import re
import subprocess
import sys

import pytest
from places import ROOT
from tiny_book import TinyBook, chapter
from waiting import PATIENCE

pytestmark = pytest.mark.reads("scripts/benchmark.py", "src/bookbinder", "src/shardlab/_tables.py")

SCRIPT = ROOT / "scripts" / "benchmark.py"


def benchmark(*arguments):
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    # of a dozen builds
    return subprocess.run(command, capture_output=True, text=True, timeout=6 * PATIENCE)


PROGRAMS = """
[tool.bookbinder.programs]
packages = ["jax", "jaxlib"]
folder = "JAX_COMPILATION_CACHE_DIR"
change = "import jax; jax.config.update('jax_compilation_cache_dir', folder)"
variables = {JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = "0"}
"""


def committed(tiny):
    """The folder of a tiny book, whose files are committed."""
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "-"]):
        who = ["-c", "user.name=A", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command], cwd=tiny.root, check=True)
    return tiny.root


def rows_of(done):
    """The rows of a table: what has changed, with how many chapters ran; all else is positive."""
    assert not done.stdout or "Traceback" not in done.stderr, done.stderr
    head, *rows = done.stdout.splitlines()
    both = ["stock, s", "processor s", "ours, s", "processor s"]
    columns = [*both, "ratio", "at most", "chapters run"]
    assert re.split(r"  +", head) == ["what has changed", *columns], done.stdout + done.stderr
    chapters = {}
    for row in rows:
        what, *numbers, ran = re.split(r"  +", row)
        # A ratio may be rounded to 0.00; seconds may not.
        assert len(numbers) >= 5 and all(float(number) > 0 for number in numbers[:4]), row
        chapters[what] = ran
    return chapters


def test_each_case_is_measured_for_both(tmp_path):
    done = benchmark("--book", committed(TinyBook(tmp_path)))
    # After a change elsewhere stock is forced to run all; ours runs what it concerns: the second.
    assert rows_of(done) == {
        "nothing was built before": "2 and 2",
        "nothing has changed": "0 and 0",
        "a sentence in one chapter": "0 and 0",
        "a line of code in one chapter": "1 and 1",
        "one cell changed: one": "1 and 1",
        "a line of src/shardlab": "2 and 1",
        "another package": "2 and 2",
    }
    # On so small a book a target may be missed, which is said, and is the only reason for another
    # status than 0.
    missed = r"^missed: .* of stock's time, the target is at most [\d.]+$"
    assert done.returncode == bool(re.findall(missed, done.stderr, re.MULTILINE)), done.stderr


def test_an_edited_cell_runs_its_chapter_alone(tmp_path):
    tiny = TinyBook(tmp_path)
    program = "print(int(jax.jit(lambda x: x + 1)(1)))"
    tiny.write("book/one.md", chapter("One", "import jax", program, "print('the end')"))
    (tmp_path / "book" / "two.md").unlink()
    toc = "{format: jb-book, root: book/index, chapters: [file: book/one]}\n"
    (tmp_path / "_toc.yml").write_text(toc)
    settings = (tmp_path / "pyproject.toml").read_text()
    tiny.write("pyproject.toml", settings + PROGRAMS)
    done = benchmark("cell", "--chapter", "one", "--book", committed(tiny))
    assert rows_of(done) == {"one cell changed: one": "1 and 1"}
    assert done.returncode == 0, done.stderr
    for builder in ("stock", "ours"):
        said = rf"^cell: a first build of one with {builder}: [\d.]+ s"
        assert re.search(said, done.stderr, re.MULTILINE), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process can adopt others")
def test_processes_that_a_command_leaves_behind_count():
    uses = "import time\nwhile time.process_time() < 1: pass"
    leaves = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {uses!r}], "
    leaves += "start_new_session=True)"
    measures = f"""
import subprocess, sys
import benchmark
benchmark.adopt()
before = benchmark.processor_seconds()
subprocess.run([sys.executable, "-c", {leaves!r}], check=True)
benchmark.reap()
print(benchmark.processor_seconds() - before)
"""
    command = [sys.executable, "-c", measures]
    options = {"capture_output": True, "text": True, "timeout": PATIENCE}
    done = subprocess.run(command, cwd=SCRIPT.parent, **options)
    assert float(done.stdout) >= 1, done.stderr


def test_help_says_what_each_row_measures():
    done = benchmark("--help")
    for case in ("cold", "nothing", "prose", "code", "cell", "shardlab", "lock"):
        assert re.search(rf"^{case} +\w.*: ", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wram"], "unknown case wram; known are cold, nothing, prose"),
        (["--runs", "0"], "--runs must be 1 or more"),
        (["--runs", "often"], "invalid int value: 'often'"),
        (["--book", "/nowhere"], "--book /nowhere: git cannot clone it"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, said):
    done = benchmark(*arguments)
    assert done.returncode == 2 and said in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_chapter_that_is_not_there_is_refused(tmp_path):
    done = benchmark("cell", "--chapter", "three", "--book", committed(TinyBook(tmp_path)))
    assert done.returncode == 2
    said = "--chapter three: the book has no such chapter with code (see --help)\n"
    assert done.stderr.endswith(said) and len(done.stderr.splitlines()) == 1
