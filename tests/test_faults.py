"""Every fault that a build must survive, each really done to one: a line that says what is wrong, and nothing lost.

Much here is done to a copy of the disk's tree that only the book's commands see; that takes root, or leave to make
namespaces.
"""

import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from conftest import missing
from jupyter_cache import get_cache
from tiny_book import FRONT, TinyBook, chapter, statuses

from bookbinder import disk, execute, site
from bookbinder.book import BookError, load

# What two builds of the same sources may differ in, and nothing else.
VARIES = (rb"from a run on \d{4}-\d\d-\d\d",)  # the day on which a chapter ran, at its foot


def steady(files):
    """A site without what varies."""
    return {name: re.sub(b"|".join(VARIES), b"", content) for name, content in files.items()}


def ended(tiny, seconds=10):
    """Whether all that a book's commands have started comes to its end."""
    deadline = time.monotonic() + seconds
    while tiny.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not tiny.processes()


# --- One fault at a time, in a book that was good ----------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A book that was built; each test breaks it, and mends it again."""
    tiny = TinyBook(tmp_path_factory.mktemp("book"))
    status, _, err = tiny.build()
    assert status == 0, err
    return tiny


def cell(code):
    """Chapter one gets a second cell, whose code starts in line 18."""
    return lambda tiny: tiny.write("book/one.md", chapter("One", "print('fine')", code))


def page(text):
    return lambda tiny: tiny.write("book/index.md", f"# Home\n\n{text}\n")


def data(content):
    return lambda tiny: (tiny.root / "book/one.md").write_bytes(content)


def hangs(tiny):
    tiny.write("_config.yml", (tiny.root / "_config.yml").read_text().replace("timeout: 20", "timeout: 3"))
    cell("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)")(tiny)


def no_such_kernel(tiny):
    tiny.write("book/one.md", chapter("One", "1").replace("name: python3", "name: no-such-kernel"))


ONE = r"book/one\.md:18: "
DIED = ONE + r"DeadKernelError: the kernel died while this cell ran \(out of memory, or it was killed\)"
TOO_MUCH = ONE + "TooMuchOutput: this cell prints more than 1,000,000 characters; print less, or to a file"
NOT_THERE = "is among the sources of the book, where no cell may write; write to a folder that tempfile makes"
LIMIT = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))\nx = bytearray(2**33)"
FAULTS = {
    "a cell raises": (cell("1 / 0"), ONE + "ZeroDivisionError: division by zero"),
    "hangs": (hangs, ONE + r"CellTimeoutError: this cell ran for longer than 3 s \(timeout: in _config\.yml\)"),
    "ends the process": (cell("import os\nos._exit(0)"), DIED),
    "exit": (cell("exit()"), ONE + "SystemExit: this cell ends the kernel with exit or quit; remove that"),
    "sys.exit": (cell("import sys\nsys.exit(3)"), r"book/one\.md:19: SystemExit: 3"),
    # As the system does when memory runs out, and a limit before that.
    "is killed": (cell("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"), DIED),
    "no memory": (cell(LIMIT), r"book/one\.md:20: MemoryError"),
    "prints 100 MB": (cell("print('x' * 100_000_000)"), TOO_MUCH),
    "shows 10 MB": (cell("'x' * 10_000_000"), TOO_MUCH),
    "never stops printing": (cell("while True:\n    print('x' * 1000)"), TOO_MUCH),
    "writes a file": (cell("open('new.txt', 'w')"), f"{ONE}PermissionError: book/new.txt {NOT_THERE}"),
    "writes a chapter": (cell("open('two.md', 'a')"), f"{ONE}PermissionError: book/two.md {NOT_THERE}"),
    "moves a chapter": (
        cell("import os, tempfile\nos.replace(tempfile.mkstemp()[1], 'two.md')"),
        rf"book/one\.md:19: PermissionError: book/two.md {NOT_THERE}",
    ),
    "no kernel": (no_such_kernel, r"book/one\.md:9: the kernel no-such-kernel is not known: .*; write name: python3"),
    "a warning": (page("### Too deep"), r"book/index\.md:3: WARNING: Non-consecutive header level increase; .*"),
    "a broken reference": (page("{ref}`nowhere`"), r"book/index\.md:3: WARNING: undefined label: 'nowhere'"),
    "a broken link": (page("[x](nowhere.md)"), r"book/index\.md:3: WARNING: .*'nowhere\.md'.*"),
    "a duplicate label": (
        page("(a)=\n## A\n\n(a)=\n## B"),
        r'book/index\.md:6: WARNING: Duplicate explicit target name: "a"\.',
    ),
    "a missing image": (page("![A](no.png)"), r"book/index\.md:3: WARNING: image file not readable: no\.png"),
    "front matter": (data(b"---\na: [1\nb: 2\n---\n# One\n"), r"book/one\.md:3: the front matter is not YAML: .*"),
    "Latin-1": (data("# O\n\nfür\n".encode("latin-1")), r"book/one\.md:3: not UTF-8: byte b'\\xfc'; save it as UTF-8"),
    "UTF-16": (data("# One\n".encode("utf-16")), r"book/one\.md:1: not UTF-8: byte b'\\xff'; save it as UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "says"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_told_in_one_line_and_costs_nothing(built, damage, says):
    good = built.site()
    files = ("_config.yml", "book/index.md", "book/one.md", "book/two.md", "src/shardlab/value.py")
    sources = {built.root / name: (built.root / name).read_bytes() for name in files}
    damage(built)
    broken = {file: file.read_bytes() for file in sources}
    try:
        status, out, err = built.build()
        assert status == 1, out + err
        told = [line for line in err.splitlines() if re.match(r"(book|src)/\S+: |_\S+: |.*(WARNING|ERROR): ", line)]
        assert len(told) == 1 and re.fullmatch(says, told[0]), err
        assert "bookbinder" not in err and (err == f"{told[0]}\n" or "the site is unchanged" in err), err
        assert built.site() == good
        assert not built.processes()
        assert broken == {file: file.read_bytes() for file in sources}  # no cell has changed a source
    finally:
        for file, content in sources.items():
            file.write_bytes(content)
        for name in ("book/new.txt", "src/shardlab/new.py"):
            (built.root / name).unlink(missing_ok=True)
    mended = f"Mended {time.monotonic_ns()}."
    built.write("book/index.md", f"# Home\n\n{mended}\n")
    status, out, err = built.build()
    assert status == 0 and statuses(out) == {"index": "no code", "one": "reused", "two": "reused"}, out + err
    assert mended in built.page("index") and "WARNING" not in err and not built.processes()


@pytest.mark.parametrize(
    ("code", "line", "says"),
    [
        ("def f():\n    raise KeyError('deep')\nf()", 20, "KeyError: 'deep'"),
        ("raise ValueError('first\\nsecond')", 18, "ValueError: first second"),
        ("x = = 1", 18, "SyntaxError: invalid syntax"),
    ],
)
def test_an_error_is_named_by_its_line_in_the_cell(tiny, code, line, says):
    cell(code)(tiny)
    book = load(tiny.root)
    [result] = execute.run(book, tiny.root / "_build" / site.CACHE, chapters=[book.chapter("one")])
    assert str(result.failure) == f"book/one.md:{line}: {says}"


def test_what_a_cell_leaves_running_is_ended(tiny):
    code = """
        import subprocess, threading, time
        threading.Thread(target=time.sleep, args=(600,)).start()
        for detached in (False, True):
            subprocess.Popen(['sleep', '600'], start_new_session=detached)
        subprocess.run(['sh', '-c', 'setsid sleep 600 >/dev/null 2>&1 & exit'])  # an orphan
        print('all started')
        """
    tiny.write("book/one.md", chapter("One", code))
    status, _, err = tiny.build()
    assert status == 0 and "all started" in tiny.page("one"), err
    assert ended(tiny), tiny.processes()


def test_a_cell_that_never_stops_printing_does_not_fill_the_memory(tiny):
    tiny.within = ["prlimit", f"--data={2 * 10**9}:"]  # of the builder; the cell lifts it for itself
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_DATA, 2 * (resource.getrlimit(resource.RLIMIT_DATA)[1],))
        while True:
            print('x' * 1_000_000)
        """
    tiny.write("book/one.md", chapter("One", code))
    status, _, err = tiny.build()
    assert status == 1 and "book/one.md:14: TooMuchOutput" in err and "MemoryError" not in err, err


def test_a_source_that_another_program_changes_is_named(tiny):
    tiny.write("book/one.md", chapter("One", "import os\nos.system('echo More. >> two.md')"))
    status, _, err = tiny.build()
    assert status == 0 and "book/two.md changed while chapters ran; the next build will include it" in err.splitlines()
    status, _, err = tiny.build()
    assert status == 0 and "More." in tiny.page("two") and "changed while" not in err


def test_a_new_file_among_the_sources_fails_no_chapter_and_is_named(tiny):
    tiny.write("book/one.md", chapter("One", "import os\nos.system('touch notes.txt')", "print('to the end')"))
    status, _, err = tiny.build()
    assert status == 0 and "to the end" in tiny.page("one")
    named = "book/notes.txt appeared while chapters ran; the next build will include it; if a cell made it, have that "
    assert named + "write to a folder that tempfile makes" in err.splitlines()


def test_outputs_follow_each_file_that_a_cell_has_read(tiny):
    read = "import subprocess, sys\nprint('alone', open('data/alone.txt').read())\n"
    read += "subprocess.run([sys.executable, '-c', \"open('data/below.txt').read()\"], check=True);"
    tiny.write("book/one.md", chapter("One", read))
    (tiny.root / "book/data").mkdir()
    for name in ("alone", "below", "other"):
        tiny.write(f"book/data/{name}.txt", "first")
    assert tiny.build()[0] == 0 and "alone first" in tiny.page("one")
    for name, status in {"alone": "ran", "below": "ran", "other": "reused"}.items():
        tiny.write(f"book/data/{name}.txt", "second")
        assert statuses(tiny.build()[1]) == {"index": "no code", "one": status, "two": "reused"}
    assert "alone second" in tiny.page("one")


# --- The disk ----------------------------------------------------------------------------------------------------


def build_folder_of_its_own(tiny):
    """Put the book's `_build` on a disk of 64 MB that its commands see alone; gone with the process returned."""
    folder = tiny.root / "_build"
    folder.mkdir()
    command = f"mount -t tmpfs -o size=64m none '{folder}' && echo mounted && exec sleep 600"
    holder = subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", command], stdout=subprocess.PIPE, text=True
    )
    if holder.stdout.readline() != "mounted\n":
        holder.communicate()
        missing("a mount of its own", "as root, or where the system lets users make namespaces")
    tiny.within = ["nsenter", "--target", str(holder.pid), "--user", "--mount", "--preserve-credentials"]
    tiny.seen = Path(f"/proc/{holder.pid}/root{tiny.root}")
    return holder


@pytest.fixture
def small_disk(tiny):
    """A book, built on a small disk."""
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
    """A build that has something to run fails in one line, and the site stays."""
    good = tiny.site()
    tiny.write("book/one.md", chapter("One", "print('refused')"))
    status, out, err = tiny.build()
    told = [f"{place}: {reason}; free some space or make it writable, and build again"]
    told.append("the pages were not made; the site is unchanged")
    assert status == 1 and err.splitlines()[-2:] == told and "Error" not in err, err
    assert all(re.match(r"(one|two): |making the pages$", line) for line in err.splitlines()[:-2]), err
    assert tiny.site() == good and not tiny.processes()


def assert_good_again(tiny, text):
    tiny.write("book/one.md", chapter("One", f"print({text!r})"))
    status, _, err = tiny.build()
    assert status == 0 and text in tiny.page("one") and not tiny.processes(), err


@pytest.mark.parametrize(
    ("left", "place", "reason"),
    [
        (0, "_build", "No space left on device"),
        (8192, "_build/.jupyter_cache", "database or disk is full"),  # enough for a configuration, not for outputs
        (400_000, "_build", "No space left on device"),  # enough for outputs, not for pages
    ],
)
def test_a_full_disk(small_disk, left, place, reason):
    tiny, filler = small_disk, small_disk.seen / "_build" / "filler"
    disk = os.statvfs(tiny.seen / "_build")
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - left)
    assert_refused(tiny, place, reason)
    filler.unlink()
    assert_good_again(tiny, "room again")


def test_a_disk_that_may_not_be_written(small_disk):
    folder = str(small_disk.root / "_build")
    mount(small_disk, "-o", "remount,ro", folder)
    assert_refused(small_disk, "_build/.lock", "Read-only file system")
    mount(small_disk, "-o", "remount,rw", folder)
    assert_good_again(small_disk, "writable again")


def test_a_cache_that_may_not_be_written(small_disk):
    folder = str(small_disk.root / "_build" / site.CACHE)
    mount(small_disk, "--bind", folder, folder)
    mount(small_disk, "-o", "remount,bind,ro", folder)
    status, _, err = small_disk.build()
    assert (status, err) == (0, "")  # there is nothing to write
    assert_refused(small_disk, f"_build/{site.CACHE}", "attempt to write a readonly database")
    mount(small_disk, "-o", "remount,bind,rw", folder)
    assert_good_again(small_disk, "writable again")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # SQLite's, of a broken database
def test_a_damaged_cache_or_run_costs_a_run_at_most(tiny):
    assert tiny.build()[0] == 0
    book, cache, runs = load(tiny.root), tiny.root / "_build" / site.CACHE, tiny.root / "_build/runs/lock"

    def reused():
        """The chapters that were reused; afterwards Jupyter Book finds the outputs of all in the cache."""
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
    for damaged in (report.read_text()[:100], "[]"):
        report.write_text(damaged)
        assert reused() == {"one"} and reused() == {"one", "two"}
    shutil.rmtree(runs)
    assert reused() == set() and reused() == {"one", "two"}


def test_a_swap_that_was_killed_half_way_is_put_right(tmp_path):
    (tmp_path / "html.old").mkdir()
    (tmp_path / "html.old" / "index.html").write_text("old")
    (tmp_path / "html.new").mkdir()
    disk.finish_swap(tmp_path / "html")
    assert (tmp_path / "html" / "index.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["html"]


# --- The end, at any moment ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_leaves_nothing_behind_and_the_next_build_works(tiny, number):
    assert tiny.build()[0] == 0
    good = tiny.site()
    ready = tiny.root / "ready"
    tiny.write("book/one.md", chapter("One", f"open({str(ready)!r}, 'w').close()\nimport time\ntime.sleep(15)"))
    process = tiny.start_until(ready)
    assert tiny.processes()
    began = time.monotonic()
    process.send_signal(number)
    time.sleep(0.1)  # two at the same moment could come in either order
    process.send_signal(signal.SIGTERM)  # as impatient people do, and terminals
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 10
    assert process.returncode == 128 + number and f"stopped ({number.name}); the site is unchanged" in err
    assert "Traceback" not in err and "Exception" not in err, err
    assert not tiny.processes() and tiny.site() == good
    tiny.write("book/one.md", chapter("One", "print('after')"))
    assert tiny.build()[0] == 0 and "after" in tiny.page("one")


def test_a_kill_that_cannot_be_caught(tiny):
    ready = tiny.root / "ready"
    code = f"""
        import os, time
        os.system("setsid sleep 600 >/dev/null 2>&1 &")
        open({str(ready)!r}, 'w').close()
        time.sleep(15)
        """
    tiny.write("book/one.md", chapter("One", code))
    process = tiny.start_until(ready)
    process.kill()
    process.communicate()
    assert ended(tiny)  # runners notice that their parent is gone, and end what cells have started
    tiny.write("book/one.md", chapter("One", "print('after')"))
    assert tiny.build()[0] == 0 and "after" in tiny.page("one")


def test_kills_at_twenty_random_moments(tiny):
    """Whenever the builder is killed, the site is a good one: the old, or the new."""

    def become(version, salt):
        """The sources of one of two versions; the salt has chapter two run again, to the same outputs."""
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
    for number in range(20):
        become(number % 2, number)
        process, moment = tiny.start(), chance.uniform(0, 1.2 * seconds)
        time.sleep(moment)
        process.kill()
        process.communicate()
        assert steady(tiny.site()) in good, f"killed {moment:.2f} s after its start"
    assert ended(tiny, 30), tiny.processes()
    become(0, "last")
    status, _, err = tiny.build()
    assert status == 0 and steady(tiny.site()) == good[0], err
    left = {"html", "notebooks", "staging", "state.json", ".lock", "runs", site.CACHE}
    assert {path.name for path in (tiny.root / "_build").iterdir()} == left and not tiny.processes()


def test_a_second_build_waits_for_the_first(tiny):
    tiny.write("book/one.md", chapter("One", "import time\ntime.sleep(3)"))
    first = tiny.start()
    while "running" not in first.stderr.readline():
        assert first.poll() is None
    status, out, err = tiny.build()
    assert first.wait() == 0
    first.communicate()
    assert status == 0 and "waiting for another build" in err
    assert statuses(out)["one"] == "reused"


def test_what_is_edited_while_a_build_runs_and_another_waits_is_followed(tiny):
    settings, home = ((tiny.root / name).read_text() for name in ("_config.yml", "book/index.md"))
    tiny.write("book/one.md", chapter("One", "import time\ntime.sleep(3)"))
    first = tiny.start()
    while "running" not in first.stderr.readline():
        assert first.poll() is None
    tiny.write("book/index.md", "# Undone later\n")
    second = tiny.start()
    while "waiting" not in second.stderr.readline():
        assert second.poll() is None
    tiny.write("_config.yml", settings.replace("title: Tiny", "title: Edited"))
    for build in (first, second):
        build.communicate()
        assert build.returncode == 0
    assert "Edited" in tiny.page("one") and "Undone later" in tiny.page("index")

    tiny.write("book/one.md", chapter("One", "import time\ntime.sleep(3.0)"))
    before = tiny.start()
    while "running" not in before.stderr.readline():
        assert before.poll() is None
    tiny.write("book/index.md", home)
    before.communicate()
    tiny.write("book/index.md", "# Undone later\n")  # as it was when that build began
    assert before.returncode == 0 and tiny.build()[0] == 0 and "Undone later" in tiny.page("index")


# --- What is around -----------------------------------------------------------------------------------------------


def test_no_network_is_asked_for_and_two_cold_builds_give_the_same(tiny, tmp_path_factory):
    """One of the two knows no other machine, and differs in its folder, its clock and the order of its sets."""
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


# --- Sources that cannot be read -----------------------------------------------------------------------------------


TOC_WITH_A_PATTERN = "format: jb-book\nroot: book/index\nchapters:\n- glob: book/*\n"


def mangled(text):
    return lambda tiny: tiny.write("book/one.md", text)


def removed(*names):
    return lambda tiny: [(tiny.root / name).unlink() for name in names]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (removed("book/one.md"), "_toc.yml:4: lists book/one, but there is no file book/one.md"),
        (lambda t: t.write("book/extra.md", "# Extra\n"), "book/extra.md: is not in _toc.yml"),
        (mangled("---\na: [1\nb: 2\n---\n# One\n"), "book/one.md:3: the front matter is not YAML: "),
        (mangled("---\na: 1\n# One\n"), "book/one.md:1: the front matter does not end"),
        (mangled("---\n- a\n---\n# One\n"), "book/one.md:2: the front matter must be a mapping of keys to values"),
        (mangled("# One\n\n```{code-cell}\n1\n```\n"), "book/one.md:1: has code cells, but its front matter"),
        (mangled(FRONT.replace("  name: python3\n", "") + "# One\n```{code-cell}\n1\n```\n"), "names no kernel"),
        (lambda t: (t.root / "book/one.md").write_bytes("# O\n\nfür\n".encode("latin-1")), "book/one.md:3: not UTF-8"),
        (removed("_toc.yml"), "_toc.yml: not found in "),
        (removed("_config.yml"), "_config.yml: not found in "),
        (lambda t: t.write("_toc.yml", "format: jb-book\nroot: [\n"), "_toc.yml:3: not YAML"),
        (lambda t: t.write("_toc.yml", "format: jb-book\n"), "_toc.yml: "),
        (lambda t: t.write("_toc.yml", "format: jb-book\nroot: index\n"), "_toc.yml:2: index is not in book/"),
        (lambda t: t.write("_config.yml", "title: 'x\n"), "_config.yml:2: not YAML"),
        (lambda t: t.write("_config.yml", "- a\n"), "_config.yml:1: must be a mapping of keys to values, not list"),
        (lambda t: (t.root / "_toc.yml").write_bytes(b"format: \xff\n"), "_toc.yml: not UTF-8"),
        (lambda t: t.write("_toc.yml", TOC_WITH_A_PATTERN), "_toc.yml:4: the pattern book/*"),
        (mangled("---\njupytext: x\n---\n# One\n"), "book/one.md:1: jupytext: must have keys below it"),
        (mangled(FRONT + "# O\n\n```{code-cell}\n:tags: [a\n\n1\n```\n"), "book/one.md: cannot be read as a notebook"),
        (mangled(FRONT + "# O\n\n````{note}\n```{code-cell}\n1\n```\n````\n"), "book/one.md:14: a code cell inside"),
        (mangled(FRONT + "# O\n\n:::{code-cell}\n1\n:::\n"), "book/one.md:13: a code cell inside another block"),
        (mangled(FRONT + "# O\n\n- x\n\n  ```{code-cell}\n  1\n  ```\n"), "book/one.md:15: a code cell inside"),
    ],
)  # fmt: skip
def test_broken_sources_are_named_in_one_line(tiny, damage, says):
    damage(tiny)
    with pytest.raises(BookError) as error:
        load(tiny.root).check()
    assert says in str(error.value) and "\n" not in str(error.value)
