"""Every fault that a build must survive, each really done to one: a line that says what is wrong,
and nothing lost.

Much here is done to a copy of the disk's tree that only the book's commands see; that takes root,
or leave to make namespaces.
"""

import errno
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from jupyter_cache import get_cache
from repository import missing
from tiny_book import FRONT, TinyBook, chapter, statuses, waits_for
from waiting import PATIENCE, SOON, wait_until

from bookbinder import disk
from bookbinder.progress import Progress
from bookbinder.read import citation, package
from bookbinder.read.book import BookError, load
from bookbinder.run import execute, run_notebook, runs, stale
from bookbinder.show import site
from bookbinder.stopping import Stop

pytestmark = pytest.mark.reads("src/bookbinder")

# What two builds of the same sources may differ in, and nothing else.
VARIES = (rb"from a run on \d{4}-\d\d-\d\d",)  # the day on which a chapter ran, at its foot


def steady(files):
    """A site without what varies."""
    return {name: re.sub(b"|".join(VARIES), b"", content) for name, content in files.items()}


def ended(tiny, seconds=SOON):
    """Whether all that a book's commands have started comes to its end."""
    deadline = time.monotonic() + seconds
    while tiny.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not tiny.processes()


# --- Cells that go wrong: a chapter for each, all run at once -------------------------------------


ONE = r"book/\w+\.md:18: "  # the first line of a chapter's second cell
# After an error a kernel refuses what it is asked to run for a while, on a busy machine for longer.
REFUSES_A_WHILE = """
    kernel = get_ipython().kernel
    loop, again = kernel.shell_channel_thread.io_loop, kernel._post_dummy_stop_aborting_message
    kernel._post_dummy_stop_aborting_message = lambda *which: loop.call_later(1, again, *which)
    raise ValueError("late")
    """
DIED = (
    ONE
    + r"DeadKernelError: the kernel died while this cell ran \(out of memory, or it was killed\)"
)
TOO_MUCH = (
    ONE + "TooMuchOutput: this cell prints more than 1,000,000 characters; print less, or to a file"
)
NOT_THERE = (
    "is part of the book, where no cell may write or delete; write to a folder that tempfile makes"
)
FAULTS = {
    "raises": ("1 / 0", ONE + "ZeroDivisionError: division by zero"),
    "raises_deep": (
        "def f():\n    raise KeyError('deep')\nf()",
        r"book/\w+\.md:20: KeyError: 'deep'",
    ),
    "raises_lines": ("raise ValueError('first\\nsecond')", ONE + "ValueError: first second"),
    "refuses_a_while": (REFUSES_A_WHILE, r"book/\w+\.md:21: ValueError: late"),
    "is_no_python": ("x = = 1", ONE + "SyntaxError: invalid syntax"),
    "hangs": (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)",
        ONE + r"CellTimeoutError: this cell ran for longer than 30 s \(timeout: in _config\.yml\)",
    ),
    "ends_the_process": ("import os\nos._exit(0)", DIED),
    "exits": (
        "exit()",
        ONE + "SystemExit: this cell ends the kernel with exit or quit; remove that",
    ),
    "sys_exit": ("import sys\nsys.exit(3)", r"book/\w+\.md:19: SystemExit: 3"),
    # As the system does when memory runs out, and a limit before that.
    "is_killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", DIED),
    "no_memory": (
        (
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))\nx = "
            "bytearray(2**33)"
        ),
        r"book/\w+\.md:20: MemoryError",
    ),
    "prints_much": ("print('x' * 100_000_000)", TOO_MUCH),
    "shows_much": ("'x' * 10_000_000", TOO_MUCH),
    "never_stops": ("while True:\n    print('x' * 1000)", TOO_MUCH),
    "writes_a_file": ("open('new.txt', 'w')", f"{ONE}PermissionError: book/new.txt {NOT_THERE}"),
    "writes_a_chapter": ("open('two.md', 'a')", f"{ONE}PermissionError: book/two.md {NOT_THERE}"),
    "moves_a_chapter": (
        "import os, tempfile\nos.replace(tempfile.mkstemp()[1], 'two.md')",
        rf"book/\w+\.md:19: PermissionError: book/two.md {NOT_THERE}",
    ),
    "deletes_the_chapters": (
        "import shutil\nshutil.rmtree('../book')",
        rf"book/\w+\.md:19: PermissionError: book {NOT_THERE}",
    ),
    "deletes_the_site": (
        "import shutil\nshutil.rmtree('../_build/html')",
        rf"book/\w+\.md:19: PermissionError: _build/html {NOT_THERE}",
    ),
    "moves_the_site": (
        "import os\nos.rename('../_build', '/tmp/build-elsewhere')",
        rf"book/\w+\.md:19: PermissionError: _build {NOT_THERE}",
    ),
    "writes_other_bytes": ("import os\nos.write(2, b'\\xff\\xfe\\x80\\n')\nos._exit(1)", DIED),
    "writes_a_long_line": ("import os\nos.write(2, b'x' * 30_000_000)\nos._exit(1)", DIED),
    "raises_much": (
        "raise ValueError('\\x1b]0;title\\x07' + 'x' * 200_000)",
        ONE + r"ValueError: x{388}",
    ),
    "shows_no_image": (
        "from IPython.display import display\ndisplay({'image/png': 'no base64!'}, raw=True)",
        ONE + "ValueError: this cell shows an image/png that is not in base64",
    ),
    "kills_the_runner": (
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)",
        r"book/\w+\.md:14: run_notebook\.py: killed by SIGKILL: .*",
    ),
}


LEAVES_RUNNING = """
    import subprocess, threading, time
    threading.Thread(target=time.sleep, args=(600,)).start()
    for detached in (False, True):
        subprocess.Popen(['sleep', '600'], start_new_session=detached)
    subprocess.run(['sh', '-c', 'setsid sleep 600 >/dev/null 2>&1 & exit'])  # an orphan
    open({ready!r}, 'w').close()
    """


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A book with a chapter for each fault; returns the book, the results by chapter, and sources
    before and after.
    """
    tiny = TinyBook(tmp_path_factory.mktemp("book"))
    tiny.write(
        "_config.yml",
        (tiny.root / "_config.yml").read_text().replace("timeout: 120", "timeout: 30"),
    )
    for name, (code, _) in FAULTS.items():
        tiny.write(f"book/{name}.md", chapter(name, "print('fine')", code, "print('never')"))
    tiny.write(
        "book/leaves.md", chapter("Leaves", LEAVES_RUNNING.format(ready=str(tiny.root / "ready")))
    )
    names = ["one", "two", "leaves", *FAULTS]
    tiny.write(
        "_toc.yml",
        "format: jb-book\nroot: book/index\nchapters:\n"
        + "".join(f"- file: book/{n}\n" for n in names),
    )

    def sources():
        return {
            file: file.read_bytes()
            for folder in ("book", "src")
            for file in (tiny.root / folder).rglob("*.*")
            if file.suffix != ".pyc"
        }

    before = sources()
    with pytest.MonkeyPatch.context() as patch:
        # for the folders of runners
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("t")))
        # as the book's commands have it, to know what they have started
        patch.setenv("TINY_BOOK", str(tiny.root))
        results = execute.run(load(tiny.root), tiny.root / "_build" / site.CACHE)
        tiny.left = list(Path(tempfile.gettempdir()).iterdir())
    return tiny, {result.name: result for result in results}, before, sources()


@pytest.mark.parametrize(
    ("name", "says"), [(name, says) for name, (_, says) in FAULTS.items()], ids=FAULTS
)
def test_a_cell_that_goes_wrong_is_named_in_one_line(faulty, name, says):
    result = faulty[1][name]
    assert result.status == "failed" and re.fullmatch(says, str(result.failure)), str(
        result.failure
    )
    assert "bookbinder" not in result.failure.traceback and len(result.failure.traceback) < 25_000
    assert not re.search(
        "[\x00-\x08\x0e-\x1a\ud800-\udfff]|\x1b[^\\[]",
        f"{result.failure}{result.failure.traceback}",
    )


def test_what_goes_wrong_in_one_chapter_harms_no_other_and_leaves_nothing(faulty):
    tiny, results, before, after = faulty
    assert [results[name].status for name in ("index", "one", "two")] == ["no code", "ran", "ran"]
    assert before == after  # no cell has changed a source
    assert ended(tiny), tiny.processes()


def test_no_folder_of_a_runner_is_left(faulty):
    assert faulty[0].left == []


def test_what_a_terminal_would_obey_is_not_in_pages(tiny):
    says = "print('a\\x1b]0;title\\x07b\\x1b[2Jc\\x1b[31mred\\x1b[0m\\x07 12\\b3 \\udc80')"
    tiny.write("book/one.md", chapter("One", says, "'\\x9b x \\x1b'"))
    status, _, err = tiny.build()
    assert status == 0, err
    page = tiny.page("one")
    assert "abc" in re.sub("<[^>]+>", "", page) and " 13 " in page
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe]", page)


def test_what_a_cell_leaves_running_is_ended(faulty):
    tiny, results, *_ = faulty
    assert results["leaves"].status == "ran" and (tiny.root / "ready").exists()
    assert ended(tiny), tiny.processes()


# --- Sources that go wrong, in a book that was good -----------------------------------------------


def test_faults_are_told_a_line_each_and_the_good_site_stays(tiny):
    status, _, err = tiny.build()
    assert status == 0, err
    good, sources = tiny.site(), {f: f.read_bytes() for f in (tiny.root / "book").glob("*.md")}

    def told(says, **pages):
        for name, text in pages.items():
            file = tiny.root / "book" / f"{name}.md"
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        status, out, err = tiny.build()
        lines = [
            line
            for line in err.splitlines()
            if re.match(r"(book|src)/\S+: |_\S+: |.*(WARNING|ERROR): ", line)
        ]
        assert status == 1 and len(lines) == len(says), out + err
        assert all(
            re.fullmatch(one, line) for one, line in zip(says, sorted(lines), strict=True)
        ), err
        assert "bookbinder" not in err and (
            err == f"{lines[0]}\n" or "the site is unchanged" in err
        ), err
        assert tiny.site() == good and not tiny.processes()
        for file, content in sources.items():
            file.write_bytes(content)

    told(
        [
            r"book/index\.md:11: WARNING: image file not readable: no\.png",
            r"book/index\.md:13: WARNING: undefined label: 'nowhere'",
            r"book/index\.md:15: WARNING: .*'nowhere\.md'.*",
            r"book/index\.md:3: WARNING: Non-consecutive header level increase; .*",
            r'book/index\.md:8: WARNING: Duplicate explicit target name: "a"\.',
        ],
        index=(
            "# Home\n\n### Deep\n\n(a)=\n## A\n\n(a)=\n## "
            "B\n\n![A](no.png)\n\n{ref}`nowhere`\n\n[x](nowhere.md)\n"
        ),
    )
    told(
        ONE.replace(r"\w+", "one") and [r"book/one\.md:14: ZeroDivisionError: division by zero"],
        one=chapter("One", "1 / 0"),
    )
    no_kernel = chapter("One", "1").replace("name: python3", "name: no-such-kernel")
    told(
        [r"book/one\.md:9: the kernel no-such-kernel is not known: .*; write name: python3"],
        one=no_kernel,
    )
    told(
        [r"book/one\.md:3: not UTF-8: byte b'\\xfc'; save it as UTF-8"],
        one="# O\n\nfür\n".encode("latin-1"),
    )
    status, out, err = tiny.build()  # mended
    assert status == 0 and statuses(out) == {
        "index": "no code",
        "one": "reused",
        "two": "reused",
    }, out + err
    assert steady(tiny.site()) == steady(good) and "WARNING" not in err and not tiny.processes()


def test_a_notebook_that_is_paired_with_a_chapter_is_no_page_of_its_own(tiny):
    """As Jupytext makes it beside the text, while someone edits that in Jupyter."""
    (tiny.root / "book" / "one.ipynb").write_text(
        '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    )
    status, _, err = tiny.build()
    assert status == 0 and "one 2" in tiny.page("one"), err


def test_on_windows_a_line_says_where_it_runs():
    program = (
        "import sys; sys.modules['fcntl'] = None; from bookbinder.__main__ import main; "
        "main(['build'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        done.stderr
        == "bookbinder needs Linux or macOS; on Windows, use it in WSL: https://aka.ms/wsl\n"
    )


def test_as_many_chapters_run_at_once_as_processors_and_memory_allow(monkeypatch, tmp_path):
    def allowed(processors, memory, **files):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(processors), raising=False)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=memory))
        for name in ("cpu.max", "memory.max", "memory.current"):
            (tmp_path / name).write_text(files.get(name.replace(".", "_"), "max\n"))
        return runs.at_once(tmp_path)

    assert allowed(4, 64 << 30) == 5
    assert allowed(4, 5 << 30) == 2 and allowed(4, 1 << 30) == 1
    assert allowed(16, 64 << 30, cpu_max="200000 100000\n") == 3
    assert allowed(16, 64 << 30, cpu_max="50000 100000\n") == 2
    assert allowed(16, 64 << 30, memory_max=f"{8 << 30}\n", memory_current=f"{2 << 30}\n") == 3
    assert allowed(16, 64 << 30, memory_max="max\n", memory_current=f"{2 << 30}\n") == 17


def test_a_cell_that_never_stops_printing_does_not_fill_the_memory(tiny):
    # of the builder; the cell lifts it for itself
    tiny.within = ["prlimit", f"--data={2 * 10**9}:"]
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_DATA, 2 * (resource.getrlimit(resource.RLIMIT_DATA)[1],))
        while True:
            print('x' * 1_000_000)
        """
    tiny.write("book/one.md", chapter("One", code))
    status, _, err = tiny.build()
    assert status == 1 and "book/one.md:14: TooMuchOutput" in err and "MemoryError" not in err, err


def test_a_source_that_another_program_changes_or_makes_is_named(tiny):
    """And a new file among the sources, which fails no chapter."""
    change = "import time\nwhile 'More.' not in open('two.md').read():\n    time.sleep(0.1)"
    tiny.write("book/one.md", chapter("One", change, "print('to the end')"))

    def edit():
        wait_until(lambda: [*tiny.root.glob("_build/runs/**/.slot0")])
        with open(tiny.root / "book/two.md", "a") as file:
            time.sleep(1)
            tiny.write("book/notes.txt", "")
            file.write("More.\n")

    editor = threading.Thread(target=edit)
    editor.start()
    status, _, err = tiny.build()
    assert status == 0 and "to the end" in tiny.page("one"), err
    assert (
        "book/two.md changed while chapters ran; the next build will include it" in err.splitlines()
    )
    named = (
        "book/notes.txt appeared while chapters ran; the next build will include it; if a cell "
        "made it, have that "
    )
    assert named + "write to a folder that tempfile makes" in err.splitlines()
    status, _, err = tiny.build()
    assert status == 0 and "More." in tiny.page("two") and "while chapters ran" not in err


DELETES = {
    "rm -rf ../src": r"src/shardlab/value\.py",
    "rm ../book/two.md": r"book/two\.md",
    "find ../book/two.md -delete": r"book/two\.md",
    "mv ../src ../moved": "src(/shardlab/value\\.py)?",
    "rm -rf ../_build": "_build(/.*)?",
    "mv ../_build ../moved": "_build",
    "rm -rf ../_build; touch ../_build": "_build(/.*)?",
}


@pytest.mark.parametrize("command", DELETES)
def test_what_a_cell_may_not_delete_stays_and_the_cell_is_named(tiny, command):
    if not namespaces():
        missing("a namespace of its own", "as root, or where the system lets users make namespaces")
    assert tiny.build()[0] == 0
    before = kept_of(tiny)
    tiny.write("book/one.md", chapter("One", f"!{command}", "print('fine')"))
    status, _, err = tiny.build()
    assert status == 1 and "Traceback" not in err, err
    assert re.search(rf"book/one\.md:14: PermissionError: {DELETES[command]} is part of", err), err
    assert kept_of(tiny) == before


def kept_of(tiny):
    """The sources of a book but the chapter that deletes, and its site."""
    files = [path for name in ("src", "book") for path in (tiny.root / name).rglob("*.*")]
    return tiny.site(), {f: f.read_bytes() for f in files if f.suffix in (".py", ".md")} | {
        tiny.root / "book/one.md": b""
    }


def namespaces():
    """Whether a command can have its own mounts here."""
    guard = [sys.executable, "-I", "-S", str(runs.GUARD)]
    code = "import os, sys; sys.exit(not os.statvfs('/usr').f_flag & os.ST_RDONLY)"
    return not subprocess.run([*guard, "/usr", "--", sys.executable, "-c", code]).returncode


def unguarded(tiny, monkeypatch):
    """Run chapters as where the system has no namespaces."""
    guard = tiny.root / "unguarded.py"
    guard.write_text("import os, sys\nc = sys.argv[sys.argv.index('--') + 1 :]\nos.execv(c[0], c)")
    monkeypatch.setattr(runs, "GUARD", guard)


@pytest.mark.parametrize("command", DELETES)
def test_what_a_cell_deletes_is_told_in_a_line_that_names_the_cell(tiny, monkeypatch, command):
    unguarded(tiny, monkeypatch)
    tiny.write("book/one.md", chapter("One", "print(1)", f"!{command}", "print('fine')"))
    with pytest.raises(BookError) as error:
        execute.run(load(tiny.root), jobs=1)
    said = str(error.value)
    assert "\n" not in said and "was deleted or moved while this cell ran" in said
    assert re.match(rf"book/one\.md:18: FileNotFoundError: {DELETES[command]} was", said), said


@pytest.mark.parametrize("command", ["rm -rf ../src", "rm ../book/two.md", "rm -rf ../_build"])
@pytest.mark.parametrize("late", [1, 2, 3])
def test_a_reader_that_is_late_names_the_same_cell(
    tiny, monkeypatch, tmp_path_factory, command, late
):
    """On a busy machine the next cells may have run before it reads that one has begun."""
    unguarded(tiny, monkeypatch)
    gone, end = tiny.root / command.split("../")[1], tmp_path_factory.mktemp("end") / "end"

    class Late(Progress):
        def cell(self, name, number, total):
            if number == late:
                wait_until(lambda: not gone.exists() if late == 2 else end.exists())

    cells = "print(1)", f"!{command}", f"open({str(end)!r}, 'w')", "print('fine')"
    tiny.write("book/one.md", chapter("One", *cells))
    with pytest.raises(BookError) as error:
        execute.run(load(tiny.root), jobs=1, progress=Late())
    assert re.match(r"book/one\.md:18: FileNotFoundError: ", str(error.value)), error.value


def test_a_file_in_place_of_the_build_folder_is_told_in_a_line(tiny):
    tiny.write("_build", "")
    status, _, err = tiny.build()
    assert status == 1 and "_build: a file, where a folder should be; delete it" in err, err
    assert err.count("\n") == 1


def test_outputs_follow_each_file_that_a_cell_has_read(tiny):
    read = "import subprocess, sys\nprint('alone', open('data/alone.txt').read())\n"
    read += "subprocess.run([sys.executable, '-c', \"open('data/below.txt').read()\"], check=True);"
    tiny.write("book/one.md", chapter("One", read))
    (tiny.root / "book/data").mkdir()
    for name in ("alone", "below", "other"):
        tiny.write(f"book/data/{name}.txt", "first")
    assert tiny.build()[0] == 0 and "alone first" in tiny.page("one")
    book, cache = load(tiny.root), tiny.root / "_build" / site.CACHE
    for name, status in {"alone": "ran", "below": "ran", "other": "reused"}.items():
        tiny.write(f"book/data/{name}.txt", "second")
        found = {result.name: result.status for result in execute.run(book, cache)}
        assert found == {"index": "no code", "one": status, "two": "reused"}
    assert tiny.build()[0] == 0 and "alone second" in tiny.page("one")


def test_outputs_follow_each_module_of_shardlab_that_a_cell_has_imported(tiny):
    """And no other: a line of shardlab runs those chapters again that it can concern."""
    for name in ("__init__", "used", "below", "lazily", "other"):
        tiny.write(
            f"src/shardlab/{name}.py", "from shardlab import below\n" if name == "used" else ""
        )
    imports = "import shardlab.used, subprocess, sys\n"
    imports += "subprocess.run([sys.executable, '-c', 'import shardlab.lazily'], check=True);"
    tiny.write("book/one.md", chapter("One", imports))
    book, cache = load(tiny.root), tiny.root / "_build" / site.CACHE

    def status():
        return next(result.status for result in execute.run(book, cache) if result.name == "one")

    assert [status(), status()] == ["ran", "reused"]
    imported = dict.fromkeys(("__init__", "used", "below", "lazily"), "ran")
    for name, expected in (imported | {"other": "reused"}).items():
        with open(tiny.root / f"src/shardlab/{name}.py", "a") as file:
            file.write("\n# changed")
        assert (name, status()) == (name, expected)
    tiny.write("src/shardlab/another.py", "")
    assert status() == "reused"
    tiny.write("src/shardlab/recording.json", "")  # a program may look whether there is one
    assert status() == "ran"


def test_processes_that_run_chapters_of_one_book_share_the_places(tmp_path):
    """As a build and the tests of Colab's notebooks do."""
    stop, running, most, lock = Stop(), 0, 0, threading.Lock()

    def work(_):
        nonlocal running, most
        with disk.one_of(2, tmp_path, stop):
            with lock:
                running += 1
                most = max(most, running)
            wait_until(lambda: most > 1)
            time.sleep(0.3)  # in which a third could begin
            with lock:
                running -= 1

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(work, range(5)))
    assert most == 2
    with disk.one_of(1, tmp_path, stop):
        program = f"""
            from pathlib import Path
            from bookbinder import disk, stopping
            stop = stopping.Stop()
            stop.signal = "SIGTERM"  # as soon as it has to wait
            with disk.one_of(1, Path({str(tmp_path)!r}), stop):
                print("in")
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
        )
    assert "Stopped: SIGTERM" in done.stderr and not done.stdout


def test_four_builders_that_share_their_runs_run_each_chapter_once(tmp_path):
    shared, ran = tmp_path / "runs", tmp_path / "ran"
    shared.mkdir()
    books = []
    for n in range(4):
        root = tmp_path / f"clone{n}"
        root.mkdir()
        books.append(TinyBook(root))
        (root / "_build").mkdir()
        (root / "_build" / "runs").symlink_to(shared)
        note = f"import os, time; time.sleep(1); os.system('echo one >> {ran}')"
        books[-1].write("book/one.md", chapter("One", note))
    builds = [book.start("build", "--jobs", "1") for book in books]
    for build in builds:
        _, err = build.communicate(timeout=PATIENCE)
        assert build.returncode == 0, err
    assert ran.read_text() == "one\n"


def test_what_another_builder_deletes_meanwhile_is_left_out(tiny, monkeypatch):
    """Each file is listed, and gone when it is looked at; or gone once its report was read."""
    assert tiny.build()[0] == 0
    book = load(tiny.root)
    planned = runs.of_chapter(book, book.chapter("one"))
    report = runs.known(planned)
    report.outputs.unlink()
    assert runs.outputs(report).cells[0].outputs[0].text.startswith("one")
    report.outputs.mkdir()
    assert runs.known(planned) is None
    real = Path.stat

    def gone(path, **options):
        if path.name.startswith("one."):
            path.unlink(missing_ok=True)
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", gone)
    assert runs._earlier(planned) == []


def test_processes_of_the_same_number_write_one_file(tmp_path):
    """As in containers that share a folder."""
    file = tmp_path / "file"
    program = f"""
        import os, threading
        from pathlib import Path
        from bookbinder import disk
        own = str(os.getpid())[-1]
        os.getpid = threading.get_ident = lambda: 7
        for _ in range(500):
            disk.write(Path({str(file)!r}), own * 10_000)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    said = [writer.communicate()[1] for writer in writers]
    assert said == [b""] * 4 and len(set(file.read_text())) == 1 and [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda file: os.symlink("/dev/zero", file)])
def test_what_is_no_file_in_place_of_a_record_costs_a_run_at_most(tiny, make):
    assert tiny.build()[0] == 0
    (record,) = (tiny.root / "_build/runs/lock").glob("one.*.json")
    record.unlink()
    make(record)
    for status in ("ran", "reused"):
        assert {one.name: one.status for one in execute.run(load(tiny.root))}["one"] == status


def test_a_record_without_its_notebook_is_none(tiny):
    assert tiny.build()[0] == 0
    (record,) = (tiny.root / "_build/runs/lock").glob("one.*.json")
    forged = json.loads(record.read_text()) | {"version": "gone"}
    record.with_suffix(".ipynb").unlink()
    record.write_text(json.dumps(forged))
    assert {one.name: one.status for one in execute.run(load(tiny.root))}["one"] == "ran"


def test_a_record_of_another_form_is_none(tiny):
    """Whoever shares the folder may have written it."""
    assert tiny.build()[0] == 0
    book = load(tiny.root)
    planned = runs.of_chapter(book, book.chapter("one"))
    good = runs.known(planned)
    (record,) = (tiny.root / "_build/runs/lock").glob("one.*.json")
    text, notebook = record.read_text(), good.notebook
    fields, cells = json.loads(text), json.loads(notebook)
    warning = {"cell": 0, "path": None, "line": 1, "message": "old"}
    data = fields["data"] | {"deprecations": [warning]}
    record.write_text(json.dumps(fields | {"data": data}))
    assert runs.known(planned)
    forged = [
        *({"seconds": value} for value in (-1, float("nan"), float("inf"), 10**400, True)),
        *({"day": value} for value in ("<script>", "x" * 10**6, "2026-11-30\n")),
        *({"read": {name: "gone"}} for name in ("/proc/kmsg", "../x", "book/../../x")),
        *({"read": {name: ""}} for name in ("x" * 300, "x\0y", "\ud800", "one/" * 2000)),
        {"data": {"ok": True}},
        *({"data": data | {"deprecations": value}} for value in (5, {}, "", [3], [{}])),
        *({"data": data | {"deprecations": [warning | {"line": x}]}} for x in ("x", None)),
        *({"data": data | {"cells": value}} for value in ("x", None)),
        *({"data": data | {"processor_seconds": value}} for value in ("x", None, -1)),
        *({"data": data | {"installed": value}} for value in (3, [3], None)),
    ]
    for changed in forged:
        record.write_text(json.dumps(fields | changed))
        assert runs.known(planned) is None, str(changed)[:100]
    others = [
        "no notebook",
        "[" * 100_000,
        json.dumps(cells | {"cells": []}),
        json.dumps(cells | {"cells": [cells["cells"][0] | {"source": "print(7)"}]}),
        *(
            json.dumps(cells | {"cells": [cells["cells"][0] | {"outputs": outputs}]})
            for outputs in (5, [5], [{}])
        ),
    ]
    for other in others:
        record.with_suffix(".ipynb").write_text(other)
        record.write_text(json.dumps(fields | {"version": disk.digest(other)}))
        assert runs.known(planned) is None, other[:100]
    record.with_suffix(".ipynb").write_text(notebook)
    record.write_text("")
    os.truncate(record, 10 << 30)  # without a byte on the disk
    assert runs.known(planned) is None
    record.write_text(text)
    assert runs.known(planned).version == good.version


def test_a_pipe_among_compiled_programs_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.zip")
    run_notebook.unpack(tmp_path / "b.zip", tmp_path / "programs")
    assert not list((tmp_path / "programs").iterdir())


PROGRAMS = """
[tool.bookbinder.programs]
packages = ["nbclient"]
folder = "CACHE"
change = "pass"
"""
PLACES = {
    "_build/runs": lambda place: place.symlink_to(place / "nowhere"),
    "_build/runs/lock": Path.touch,
    "_build/runs/.slot0": Path.mkdir,
    "_build/programs": lambda place: place.symlink_to(place / "nowhere"),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_stands_in_the_way_of_runs_is_told_in_a_line(tiny, place):
    (tiny.root / place).parent.mkdir(parents=True)
    PLACES[place](tiny.root / place)
    tiny.write("pyproject.toml", (tiny.root / "pyproject.toml").read_text() + PROGRAMS)
    status, _, err = tiny.build()
    assert status == 1 and "Traceback" not in err, err
    assert re.search(rf"{place}: a .+; delete it, and build again$", err, re.MULTILINE), err


# --- The disk -------------------------------------------------------------------------------------


def build_folder_of_its_own(tiny):
    """Put the book's `_build` on a disk of 64 MB that its commands see alone; gone with the process
    returned.
    """
    folder = tiny.root / "_build"
    folder.mkdir()
    command = f"mount -t tmpfs -o size=64m none '{folder}' && echo mounted && exec sleep 600"
    holder = subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", command],
        stdout=subprocess.PIPE,
        text=True,
    )
    if holder.stdout.readline() != "mounted\n":
        holder.communicate()
        missing("a mount of its own", "as root, or where the system lets users make namespaces")
    tiny.within = [
        "nsenter",
        "--target",
        str(holder.pid),
        "--user",
        "--mount",
        "--preserve-credentials",
    ]
    tiny.seen = Path(f"/proc/{holder.pid}/root{tiny.root}")
    return holder


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """A book, built on a small disk; each test leaves it as good as it was."""
    tiny = TinyBook(tmp_path_factory.mktemp("disk"))
    holder = build_folder_of_its_own(tiny)
    try:
        status, _, err = tiny.build()
        assert status == 0, err
        yield tiny
    finally:
        holder.kill()
        holder.communicate()


def mount(tiny, *options):
    subprocess.run([*tiny.within, "mount", *options], check=True)


def assert_refused(tiny, place, reason):
    """A build that has something to run fails in one line, which names a place that fits a pattern;
    the site stays.
    """
    good = tiny.site()
    # what has not run before
    tiny.write("book/one.md", chapter("One", f"print('refused', {time.time_ns()})"))
    status, out, err = tiny.build()
    told = rf"{place}: {reason}; (free some space|make it writable), and build again\n"
    told += "the pages were not made; the site is unchanged\n"
    assert status == 1 and re.search(rf"(?:^|\n){told}$", err) and "Error" not in err, err
    assert all(
        re.match(r"(one|two): |making the pages$", line) for line in err.splitlines()[:-2]
    ), err
    assert tiny.site() == good and not tiny.processes()


def assert_good_again(tiny):
    """What was refused is done now."""
    status, _, err = tiny.build()
    number = re.search(r"'refused', (\d+)", (tiny.root / "book/one.md").read_text())[1]
    assert status == 0 and f"refused {number}" in tiny.page("one") and not tiny.processes(), err


@pytest.mark.parametrize(
    ("left", "place", "reason"),
    [
        (0, "_build", "No space left on device"),
        # enough for a configuration, not for outputs
        (20_000, "_build/.jupyter_cache", "No space left on device"),
        # enough for outputs, not for pages
        (100_000, r"_build/staging/_build/html/\S+", "No space left on device"),
    ],
)
def test_a_full_disk(small_disk, left, place, reason):
    tiny, filler = small_disk, small_disk.seen / "_build" / "filler"
    disk = os.statvfs(tiny.seen / "_build")
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - left)
    assert_refused(tiny, place, reason)
    filler.unlink()
    assert_good_again(tiny)


def test_a_disk_that_may_not_be_written(small_disk):
    folder = str(small_disk.root / "_build")
    mount(small_disk, "-o", "remount,ro", folder)
    assert_refused(small_disk, "_build/.lock", "Read-only file system")
    mount(small_disk, "-o", "remount,rw", folder)
    assert_good_again(small_disk)


def test_a_cache_that_may_not_be_written(small_disk):
    folder = str(small_disk.root / "_build" / site.CACHE)
    mount(small_disk, "--bind", folder, folder)
    mount(small_disk, "-o", "remount,bind,ro", folder)
    status, _, err = small_disk.build()
    assert (status, err) == (0, "")  # there is nothing to write
    assert_refused(small_disk, f"_build/{site.CACHE}", "Read-only file system")
    mount(small_disk, "-o", "remount,bind,rw", folder)
    assert_good_again(small_disk)


# SQLite's, of a broken database
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_cache_or_run_costs_a_run_at_most(tiny):
    assert tiny.build()[0] == 0
    book, cache, runs = (
        load(tiny.root),
        tiny.root / "_build" / site.CACHE,
        tiny.root / "_build/runs/lock",
    )

    def reused():
        """The chapters that were reused; afterwards Jupyter Book finds the outputs of all in the
        cache.
        """
        results = execute.run(book, cache)
        assert not [result for result in results if result.failure]
        found = get_cache(cache)
        for name in ("one", "two"):
            record = found.match_cache_notebook(book.chapter(name).notebook)
            assert found.get_cache_bundle(record.pk).nb.cells[0].outputs[0].text.startswith(name)
        found.db.dispose()
        return {result.name for result in results if result.status == "reused"}

    notebooks = sorted(cache.glob("executed/*/base.ipynb"))
    database = cache / "global.db"
    assert reused() == {"one", "two"} and len(notebooks) == 2
    for notebook in notebooks:
        notebook.write_text(notebook.read_text().replace("one 2", "one 3"))
    assert "one 3" in "".join(notebook.read_text() for notebook in notebooks)
    assert reused() == {"one", "two"}
    assert "one 3" not in "".join(
        notebook.read_text() for notebook in cache.glob("executed/*/base.ipynb")
    )
    notebooks[0].write_text(notebooks[0].read_text()[:100])
    assert reused() == {"one", "two"}
    notebooks[1].unlink()
    assert reused() == {"one", "two"}
    shutil.rmtree(cache / "executed")
    assert reused() == {"one", "two"}
    database.write_bytes(b"not a database at all" * 100)
    assert reused() == {"one", "two"}
    for part in (database.stat().st_size // 2, 0):
        os.truncate(database, part)
        assert reused() == {"one", "two"}
    with closing(sqlite3.connect(database)) as old:  # as older versions of jupyter-cache had it
        old.execute("ALTER TABLE nbcache DROP COLUMN data")
    assert reused() == {"one", "two"}
    ((outputs,), (report,)) = list(runs.glob("one.*.ipynb")), list(runs.glob("two.*.json"))
    outputs.write_text(outputs.read_text()[:100])
    assert reused() == {"two"} and reused() == {"one", "two"}
    record = json.loads(report.read_text())
    wrong = [
        ("data", 3),
        ("data", {}),
        ("read", [1]),
        ("read", {"x": 1}),
        ("seconds", "x"),
        ("day", None),
        ("version", 3),
    ]
    shapes = [json.dumps(record | {name: value}) for name, value in wrong]
    for damaged in (report.read_text()[:100], "[]", "[" * 100_000, *shapes):
        report.write_text(damaged)
        assert reused() == {"one"} and reused() == {"one", "two"}
    shutil.rmtree(runs)
    assert reused() == set() and reused() == {"one", "two"}


def test_a_state_of_another_shape_costs_a_build_at_most(tiny):
    assert tiny.build()[0] == 0
    file = tiny.root / "_build" / "state.json"
    state = json.loads(file.read_text())
    for name in state:
        for wrong in (None, 3, "x", [3], {"x": []}):
            file.write_text(json.dumps({**state, name: wrong}))
            if name != "commit" or wrong == 3:
                assert site._read_state(file) in ({}, {**state, name: wrong})
            assert site.is_current(load(tiny.root)) in (True, False)
    file.write_text(json.dumps({**state, "results": [{"nobody": "knows"}]}))
    status, out, err = tiny.build()
    assert status == 0 and statuses(out)["one"] == "reused", err


def test_a_ledger_from_the_future_does_not_displace_what_was_just_made(tiny):
    assert tiny.build()[0] == 0
    ledger = tiny.root / "_build" / "runs" / "lock"
    (report,) = ledger.glob("one.*.json")
    later = time.time() + 1e6
    for n in range(runs.KEPT + 2):
        for file in (report, report.with_suffix(".ipynb")):
            copy = file.with_name(file.name.replace("one.", f"one.{n:012}", 1))
            shutil.copy(file, copy)
            os.utime(copy, (later + n, later + n))
    tiny.write("book/one.md", chapter("One", "print('one', 3)"))
    os.utime(tiny.root / "book" / "one.md", (later, later))
    for statuses_of_one in ("ran", "reused"):
        status, out, err = tiny.build()
        assert status == 0 and statuses(out)["one"] == statuses_of_one, err
    os.utime(tiny.root / "src" / "shardlab" / "value.py", (later, later))  # which chapter two reads
    tiny.write(
        "book/two.md",
        chapter("Two", "exec(open('../src/shardlab/value.py').read()); print('three', VALUE)"),
    )
    for statuses_of_two in ("ran", "reused"):
        status, out, err = tiny.build()
        assert status == 0 and statuses(out)["two"] == statuses_of_two, err


REFUSED = [
    (
        PermissionError(errno.EACCES, "no", "{root}/_build/state.json"),
        "_build/state.json: Permission denied; ",
    ),
    (
        PermissionError(errno.EPERM, "no", "{root}/_build/.lock"),
        "_build/.lock: Operation not permitted; ",
    ),
    (OSError(errno.EROFS, "no"), "_build: Read-only file system; make it writable"),
    (OSError(errno.EDQUOT, "no"), "_build: Disk quota exceeded; free some space"),
]


@pytest.mark.parametrize(
    ("error", "says"), REFUSED, ids=lambda value: getattr(value, "strerror", None)
)
def test_what_the_system_refuses_is_told_in_a_line_in_whatever_language(
    tiny, monkeypatch, error, says
):
    refused = type(error)(
        error.errno, "pas permis", error.filename and error.filename.format(root=tiny.root)
    )

    def refuse(*_, **__):
        try:
            raise refused
        except OSError as cause:
            raise RuntimeError("something went wrong") from cause

    monkeypatch.setattr(execute, "run", refuse)
    with pytest.raises(site.SiteError) as told:
        site.build(load(tiny.root))
    assert str(told.value).startswith(says) and "\n" not in str(told.value)


def test_who_may_not_write_is_told_whose_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = disk.said(errno.EACCES, tmp_path / "file", tmp_path)
    assert f"run sudo chown -R $USER {tmp_path}" in said
    text = f"Traceback:\nPermissionError: [Errno 13] Permission denied: '{tmp_path}/x'\n"
    assert disk.refused_in(text) == (errno.EACCES, f"{tmp_path}/x")
    assert (
        disk.refused_in("ValueError: [Errno 2] No such file") is None
        and disk.refused(ValueError()) is None
    )


def test_a_swap_that_was_killed_half_way_is_put_right(tmp_path):
    (tmp_path / "html.old").mkdir()
    (tmp_path / "html.old" / "index.html").write_text("old")
    (tmp_path / "html.new").mkdir()
    disk.finish_swap(tmp_path / "html")
    assert (tmp_path / "html" / "index.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["html"]


# --- The end, at any moment -----------------------------------------------------------------------


def test_stopping_leaves_nothing_behind_and_the_next_build_works(tiny):
    assert tiny.build()[0] == 0
    good = tiny.site()
    ready = tiny.root / "ready"
    tiny.write(
        "book/one.md",
        chapter("One", f"open({str(ready)!r}, 'w').close()\nimport time\ntime.sleep(600)"),
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        process = tiny.start_until(ready)
        assert tiny.processes()
        process.send_signal(number)
        time.sleep(0.1)  # two at the same moment could come in either order
        process.send_signal(signal.SIGTERM)  # as impatient people do, and terminals
        out, err = process.communicate(timeout=PATIENCE)
        assert (
            process.returncode == 128 + number
            and f"stopped ({number.name}); the site is unchanged" in err
        )
        assert "Traceback" not in err and "Exception" not in err, err
        assert not tiny.processes() and tiny.site() == good
        ready.unlink()
    tiny.write("book/one.md", chapter("One", "print('after')"))
    assert tiny.build()[0] == 0 and "after" in tiny.page("one")


def test_a_kill_that_cannot_be_caught(tiny):
    ready = tiny.root / "ready"
    code = f"""
        import os, time
        os.system("setsid sleep 600 >/dev/null 2>&1 &")
        open({str(ready)!r}, 'w').close()
        time.sleep(600)
        """
    tiny.write("book/one.md", chapter("One", code))
    process = tiny.start_until(ready)
    process.kill()
    process.communicate()
    assert ended(tiny)  # runners notice that their parent is gone, and end what cells have started
    tiny.write("book/one.md", chapter("One", "print('after')"))
    assert tiny.build()[0] == 0 and "after" in tiny.page("one")


def test_kills_at_ten_random_moments(tiny):
    """Whenever the builder is killed, the site is a good one: the old, or the new."""

    def become(version, salt):
        """The sources of one of two versions; the salt has chapter two run again, to the same
        outputs.
        """
        tiny.write("book/one.md", chapter(f"Version {version}", f"print('version', {version})"))
        tiny.write("src/shardlab/value.py", f"VALUE = {version}  # {salt}\n")

    good, seconds = [], 0
    for version in (0, 1):
        become(version, "first")
        began = time.monotonic()
        status, _, err = tiny.build()
        assert status == 0, err
        seconds = time.monotonic() - began
        good.append(steady(tiny.site()))
    assert good[0] != good[1]
    seed = random.randrange(10**6)
    print(f"seed {seed}, {seconds:.1f} s for a build")
    chance = random.Random(seed)
    for number in range(10):
        become(number % 2, number)
        process, moment = tiny.start(), (number + chance.random()) / 10 * 1.2 * seconds
        time.sleep(moment)
        process.kill()
        process.communicate()
        assert steady(tiny.site()) in good, f"killed {moment:.2f} s after its start"
    assert ended(tiny), tiny.processes()
    become(0, "last")
    status, _, err = tiny.build()
    assert status == 0 and steady(tiny.site()) == good[0], err
    left = {"html", "notebooks", "staging", "state.json", ".lock", "runs", site.CACHE}
    assert {path.name for path in (tiny.root / "_build").iterdir()} == left and not tiny.processes()


def test_a_second_build_waits_for_the_first(tiny):
    go = tiny.root / "go"
    tiny.write("book/one.md", chapter("One", waits_for(go)))
    first = tiny.start()
    while "running" not in first.stderr.readline():
        assert first.poll() is None
    second = tiny.start()
    while "waiting for another build" not in second.stderr.readline():
        assert second.poll() is None
    go.touch()
    first.communicate()
    out, _ = second.communicate()
    assert first.returncode == second.returncode == 0
    assert statuses(out)["one"] == "reused"


def test_what_is_edited_while_a_build_runs_and_another_waits_is_followed(tiny):
    settings, home = ((tiny.root / name).read_text() for name in ("_config.yml", "book/index.md"))
    go, later = tiny.root / "go", tiny.root / "later"
    tiny.write("book/one.md", chapter("One", waits_for(go)))
    first = tiny.start()
    while "running" not in first.stderr.readline():
        assert first.poll() is None
    tiny.write("book/index.md", "# Undone later\n")
    second = tiny.start()
    while "waiting" not in second.stderr.readline():
        assert second.poll() is None
    tiny.write("_config.yml", settings.replace("title: Tiny", "title: Edited"))
    go.touch()
    for build in (first, second):
        build.communicate()
        assert build.returncode == 0
    assert "Edited" in tiny.page("one") and "Undone later" in tiny.page("index")

    tiny.write("book/one.md", chapter("One", waits_for(later)))
    before = tiny.start()
    while "running" not in before.stderr.readline():
        assert before.poll() is None
    tiny.write("book/index.md", home)
    later.touch()
    before.communicate()
    tiny.write("book/index.md", "# Undone later\n")  # as it was when that build began
    assert before.returncode == 0 and tiny.build()[0] == 0 and "Undone later" in tiny.page("index")


# --- What is around -------------------------------------------------------------------------------


def test_no_network_is_asked_for_and_two_cold_builds_give_the_same(tiny, tmp_path_factory):
    """One of the two knows no other machine, and differs in its folder, its clock and the order of
    its sets.
    """
    assert tiny.build(TZ="UTC", PYTHONHASHSEED="1")[0] == 0
    other = TinyBook(tmp_path_factory.mktemp("elsewhere"))
    other.within = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*other.within, "true"]).returncode:
        missing("a network of its own", "as root, or where the system lets users make namespaces")
    status, _, err = other.build(TZ="Pacific/Kiritimati", PYTHONHASHSEED="2")
    assert status == 0, err
    ours, theirs = steady(tiny.site()), steady(other.site())
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


# --- Sources that cannot be read ------------------------------------------------------------------


TOC_WITH_A_PATTERN = "format: jb-book\nroot: book/index\nchapters:\n- glob: book/*\n"


def mangled(text):
    return lambda tiny: tiny.write("book/one.md", text)


CITED = "title: a\nversion: 1\ndate-released: 2020-01-01\n"
FRONT_OF_5 = re.sub(r"text_representation:\n(    .*\n)+", "text_representation: 5\n", FRONT)


def set_to(key, value):
    """A setting in place of that of its name."""

    def damage(tiny):
        lines = yaml.safe_load((tiny.root / "_config.yml").read_text())
        lines.pop(key, None)
        tiny.write("_config.yml", f"{yaml.safe_dump(lines)}\n{key}: {value}\n")

    return damage


def listing(entry):
    return lambda t: t.write(
        "_toc.yml", (t.root / "_toc.yml").read_text().replace("book/one", entry)
    )


def project(content):
    return lambda tiny: (tiny.root / "pyproject.toml").write_bytes(content)


def cited(content):
    return lambda tiny: tiny.write("CITATION.cff", content)


def removed(*names):
    return lambda tiny: [(tiny.root / name).unlink() for name in names]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (removed("book/one.md"), "_toc.yml:4: lists book/one, but there is no file book/one.md"),
        (lambda t: t.write("book/extra.md", "# Extra\n"), "book/extra.md: is not in _toc.yml"),
        (
            mangled("---\na: [1\nb: 2\n---\n# One\n"),
            "book/one.md:3: the front matter is not YAML: ",
        ),
        (mangled("---\na: 1\n# One\n"), "book/one.md:1: the front matter does not end"),
        (
            mangled("---\n- a\n---\n# One\n"),
            "book/one.md:2: the front matter must be a mapping of keys to values",
        ),
        (
            mangled("# One\n\n```{code-cell}\n1\n```\n"),
            "book/one.md:1: has code cells, but its front matter",
        ),
        (
            mangled(FRONT.replace("  name: python3\n", "") + "# One\n```{code-cell}\n1\n```\n"),
            "names no kernel",
        ),
        (
            lambda t: (t.root / "book/one.md").write_bytes("# O\n\nfür\n".encode("latin-1")),
            "book/one.md:3: not UTF-8",
        ),
        (removed("_toc.yml"), "_toc.yml: not found in "),
        (removed("_config.yml"), "_config.yml: not found in "),
        (lambda t: t.write("_toc.yml", "format: jb-book\nroot: [\n"), "_toc.yml:3: not YAML"),
        (lambda t: t.write("_toc.yml", "format: jb-book\n"), "_toc.yml: "),
        (
            lambda t: t.write("_toc.yml", "format: jb-book\nroot: index\n"),
            "_toc.yml:2: index is not in book/",
        ),
        (lambda t: t.write("_config.yml", "title: 'x\n"), "_config.yml:2: not YAML"),
        (
            lambda t: t.write("_config.yml", "- a\n"),
            "_config.yml:1: must be a mapping of keys to values, not list",
        ),
        (lambda t: (t.root / "_toc.yml").write_bytes(b"format: \xff\n"), "_toc.yml: not UTF-8"),
        (lambda t: t.write("_toc.yml", TOC_WITH_A_PATTERN), "_toc.yml:4: the pattern book/*"),
        (set_to("repository", "here"), "_config.yml: repository: is here; use a table of settings"),
        (
            set_to("repository", "{branch: 1.0}"),
            "repository: branch: is 1.0; use a text, in quotes",
        ),
        (set_to("html", "yes"), "_config.yml: html: is True; use a table of settings"),
        (set_to("html", "{baseurl: 5}"), "html: baseurl: is 5; use a text, in quotes"),
        (set_to("parse", "{myst_enable_extensions: [[1]]}"), "extensions: is [[1]]; use a list of"),
        (set_to("sphinx", "5"), "_config.yml: sphinx: is 5; use a table of settings"),
        (set_to("execute", "{timeout: soon}"), "execute: timeout: is soon; use a whole number"),
        (set_to("execute", "{timeout: -1}"), "execute: timeout: is -1; use a whole number"),
        (set_to("execute", "{timeout: 9%s}" % ("9" * 400)), "execute: timeout: is 9999"),
        (set_to("execute", "{timeout: 9%s}" % ("9" * 5_000)), "_config.yml: not YAML: Exceeds"),
        (set_to("x", "2026-99-99"), "_config.yml: not YAML: month must be in 1..12"),
        (set_to("x", "\x07"), "_config.yml:1: not YAML: unacceptable character"),
        (listing("[a]"), "_toc.yml: "),
        (listing('"book/o\\e[2Jne"'), "_toc.yml: lists book/o"),
        (listing("book/" + "x" * 5_000), "_toc.yml:4: lists book/xxx"),
        (project(b"[project]\nname='\xff'\n"), "pyproject.toml: not TOML: 'utf-8' codec"),
        (
            project(b"a=" + b"[" * 5_000 + b"]" * 5_000),
            "pyproject.toml: not TOML: maximum recursion",
        ),
        (project(b"project='x'\n"), "pyproject.toml: project is x; use a table"),
        (project(b"[project]\nname=5\n"), "pyproject.toml: [project] name is 5; use a text"),
        (project(b"[project]\ndependencies=[5]\n"), "dependencies is [5]; use a list of texts"),
        (project(b"[tool.bookbinder]\nname='(('\n"), "name is '(('; use the name by which"),
        (project(b"[tool.bookbinder]\nunset='(('\n"), "unset is no regular expression: missing )"),
        (cited("[1]"), "CITATION.cff: is list; use keys such as title: and values"),
        (cited(""), "CITATION.cff: is NoneType; use keys"),
        (cited(f"{CITED}authors: b\n"), "has no family-names and given-names, or name"),
        (cited(f"{CITED}authors: [{{x: y}}]\n"), "authors: {'x': 'y'} has no family-names"),
        (mangled(FRONT_OF_5 + "# O\n```{code-cell}\n1\n```\n"), "does not say `jupytext: text_rep"),
        (
            mangled(FRONT.replace("name: python3", "name: 5") + "# O\n```{code-cell}\n1\n```\n"),
            "the kernel 5 is not known",
        ),
        (
            mangled("---\njupytext: x\n---\n# One\n"),
            "book/one.md:1: jupytext: must have keys below it",
        ),
        (
            mangled(FRONT + "# O\n\n```{code-cell}\n:tags: [a\n\n1\n```\n"),
            "book/one.md: cannot be read as a notebook",
        ),
        (
            mangled(FRONT + "# O\n\n````{note}\n```{code-cell}\n1\n```\n````\n"),
            "book/one.md:14: a code cell inside",
        ),
        (
            mangled(FRONT + "# O\n\n:::{code-cell}\n1\n:::\n"),
            "book/one.md:13: a code cell inside another block",
        ),
        (
            mangled(FRONT + "# O\n\n- x\n\n  ```{code-cell}\n  1\n  ```\n"),
            "book/one.md:15: a code cell inside",
        ),
    ],
)
def test_broken_sources_are_named_in_one_line(tiny, damage, says):
    damage(tiny)
    with pytest.raises(BookError) as error:
        load(tiny.root).check()
        package.of(tiny.root)
        citation.of(tiny.root)
    assert says in str(error.value) and str(error.value).isprintable()


@pytest.mark.parametrize("name", ["bookbinder.page.extension", "bookbinder}"])
def test_a_theme_or_an_extension_that_is_not_there_is_named_in_a_line(tiny, name):
    settings = (tiny.root / "_config.yml").read_text()
    tiny.write("_config.yml", settings.replace(name, "gone}" if name.endswith("}") else "gone"))
    status, _, err = tiny.build()
    assert status == 1 and "Traceback" not in err
    assert re.search("(no theme named 'gone'|Could not import extension gone).*\n.*unchanged", err)


@pytest.mark.parametrize("epoch", ["junk", "-5", "9" * 30, "1.5"])
def test_a_date_that_is_none_is_refused_before_chapters_run(tiny, epoch):
    status, out, err = tiny.build(SOURCE_DATE_EPOCH=epoch)
    assert (status, out) == (1, "") and err.count("\n") == 1 and "seconds since 1970" in err


@pytest.mark.parametrize("name", ["a%41b", os.fsdecode(b"a\xff"), "a\x1bb"])
def test_a_folder_whose_name_a_tool_reads_otherwise_is_refused_in_a_line(tmp_path, name):
    (tmp_path / name).mkdir()
    status, out, err = TinyBook(tmp_path / name).build()
    assert (status, out) == (1, "") and err.count("\n") == 1 and "rename it" in err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_name_that_is_not_in_utf_8_is_one_that_runs_and_digests_stand(tiny):
    for name in (b"src/shardlab/m\xff.py", b"book/m\xff.txt"):
        (tiny.root / os.fsdecode(name)).write_text("x = 1")
    runs_it = "import os, runpy\nrunpy.run_path(os.fsdecode(b'../src/shardlab/m\\xff.py'));"
    tiny.write("book/one.md", chapter("One", runs_it))
    for status in ("ran", "reused"):
        assert {one.name: one.status for one in execute.run(load(tiny.root))}["one"] == status
    before = stale.inputs(load(tiny.root))
    (tiny.root / os.fsdecode(b"book/m\xff.txt")).write_text("x = 2")
    assert stale.inputs(load(tiny.root)) != before
