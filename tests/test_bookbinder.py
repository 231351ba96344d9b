"""bookbinder against every fault it promises to survive, each really provoked in a small book."""

import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from bookbinder import execute, progress, site
from bookbinder.book import BookError, load

FRONT = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""


def chapter(title, *cells):
    return FRONT + f"# {title}\n\n" + "\n".join(f"```{{code-cell}}\n{textwrap.dedent(c).strip()}\n```\n" for c in cells)


class TinyBook:
    """A book of two chapters in a folder of its own, and the commands that a user would type."""

    def __init__(self, root):
        self.root = root
        (root / "book").mkdir()
        (root / "src" / "shardlab").mkdir(parents=True)
        self.write("src/shardlab/value.py", "VALUE = 1\n")
        self.write(
            "_config.yml",
            """\
            title: Tiny
            only_build_toc_files: true
            repository: {url: https://github.com/tiny/here, branch: main}
            html: {use_repository_button: true}
            execute: {execute_notebooks: cache, timeout: 20}
            sphinx: {recursive_update: true, extra_extensions: [bookbinder.extension]}
            """,
        )
        self.write(
            "_toc.yml",
            """\
            format: jb-book
            root: book/index
            chapters:
              - file: book/one
              - file: book/two
            """,
        )
        self.write("book/index.md", "# Home\n\nSee {doc}`one`, at {{ repository }}.\n")
        self.write("book/one.md", chapter("One", "print('one', 1 + 1)"))
        self.write("book/two.md", chapter("Two", "exec(open('../src/shardlab/value.py').read()); print('two', VALUE)"))

    def write(self, name, text):
        (self.root / name).write_text(textwrap.dedent(text) if name.endswith("yml") else text)

    def start(self, *arguments, **environment):
        """Start the builder; its output is collected."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
        return subprocess.Popen(
            [sys.executable, "-m", "bookbinder", "--root", str(self.root), *(arguments or ["build"])],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.root, env=clean | environment,
        )  # fmt: skip

    def start_until(self, file):
        """Start the builder, and wait until a cell has made a file."""
        process = self.start()
        while not file.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        return process

    def build(self, *arguments, **environment):
        """Run the builder to its end; returns its exit status, standard output and standard error."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def site(self):
        """The published site: each file with its content."""
        html = self.root / "_build" / "html"
        return {str(path.relative_to(html)): path.read_bytes() for path in html.rglob("*") if path.is_file()}

    def page(self, name):
        return (self.root / "_build" / "html" / f"{name}.html").read_text()


@pytest.fixture
def tiny(tmp_path):
    return TinyBook(tmp_path)


def statuses(table):
    """The closing table as a dict: chapter to result."""
    return {row[0]: row[1] for row in re.findall(r"^(\w+) +(?:\d+ +)?(ran|reused|failed|no code)", table, re.MULTILINE)}


def kernels_below(root):
    """Kernels that run in a folder, whoever started them."""
    found = []
    for process in psutil.process_iter():
        try:
            if "ipykernel_launcher" in " ".join(process.cmdline()) and Path(process.cwd()).is_relative_to(root):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def test_a_progress_bar_is_shown_as_it_ended(tiny):
    bar = (
        "import time\nprint('a')\n"
        "for i in range(4):\n    print(f'\\r{i} of 3', end='', flush=True)\n    time.sleep(0.3)\n"
        "print('\\r\\nb\\r')"
    )
    tiny.write("book/one.md", chapter("One", bar))
    status, _, err = tiny.build()
    assert status == 0, err
    page = (tiny.root / "_build" / "html" / "one.html").read_text()
    assert "<pre>a\n3 of 3\nb\n</pre>" in re.sub(r"<span></span>", "", page)


def test_a_book_through_its_life(tiny):
    """Built; nothing changed; prose, code, shardlab changed; a page that warns; a cell that fails; and mended."""
    status, out, err = tiny.build()
    assert status == 0, err
    assert statuses(out) == {"index": "no code", "one": "ran", "two": "ran"}
    assert "one: running 1 cells" in err and re.search(r"two: ran in \d+\.\d s", err)
    site_files = tiny.site()
    assert {"index.html", "one.html", "two.html"} <= site_files.keys()
    assert not [name for name in site_files if name.startswith("book/")]
    assert 'http-equiv="refresh"' not in tiny.page("index").lower()
    assert "one 2" in tiny.page("one") and "two 1" in tiny.page("two")
    assert "https://github.com/tiny/here" in tiny.page("index")

    before = (tiny.root / "_build/html/index.html").stat().st_mtime_ns
    status, out, err = tiny.build()
    assert status == 0 and statuses(out) == {"index": "no code", "one": "reused", "two": "reused"}
    assert err == "" and (tiny.root / "_build/html/index.html").stat().st_mtime_ns == before

    tiny.write("book/one.md", (tiny.root / "book/one.md").read_text() + "\nMore prose.\n")
    status, out, err = tiny.build()
    assert status == 0 and statuses(out)["one"] == "reused" and "running" not in err
    assert "More prose." in tiny.page("one")

    tiny.write("book/one.md", chapter("One", "print('one', 2 + 2)"))
    status, out, err = tiny.build()
    assert status == 0 and statuses(out) == {"index": "no code", "one": "ran", "two": "reused"}
    assert "one 4" in tiny.page("one")

    # Chapter two alone mentions shardlab. Its own file stays as it is, its page must change all the same.
    tiny.write("src/shardlab/value.py", "VALUE = 7\n")
    status, out, err = tiny.build()
    assert status == 0 and statuses(out) == {"index": "no code", "one": "reused", "two": "ran"}
    assert "two 7" in tiny.page("two")

    good = tiny.site()
    tiny.write("book/index.md", "# Home\n\nSee {doc}`nowhere`.\n")
    status, out, err = tiny.build()
    assert status == 1 and "book/index.md:3: WARNING: unknown document: 'nowhere'" in err
    assert tiny.site() == good
    tiny.write("book/index.md", "# Home\n\n```{no-such-directive}\n```\n")
    for _ in range(2):  # what was wrong stays wrong, although nothing has changed
        status, out, err = tiny.build()
        assert status == 1 and re.search(r"^book/index\.md:3: WARNING: Unknown directive type", err, re.MULTILINE), err
    assert tiny.site() == good

    tiny.write("book/index.md", "# Home\n")
    tiny.write("book/one.md", chapter("One", "x = 0", "y = 1\nprint(\n  y / x)\n", "print('never')"))
    tiny.write("book/two.md", chapter("Two", "print('two', 'again')"))
    status, out, err = tiny.build()
    assert status == 1 and statuses(out) == {"index": "no code", "one": "failed", "two": "ran"}
    assert re.search(r"^book/one\.md:20: ZeroDivisionError: division by zero$", err, re.MULTILINE)
    assert "y / x" in err and "\x1b" not in err  # the traceback, plain where there is no terminal
    assert "1 of 3 chapters failed; the site is as it was" in err
    assert tiny.site() == good

    # A new title shows in the side bar of pages that were not touched.
    tiny.write("book/one.md", chapter("A new title", "print('mended')"))
    status, out, err = tiny.build()
    assert status == 0 and statuses(out) == {"index": "no code", "one": "ran", "two": "reused"}
    assert "mended" in tiny.page("one") and "two again" in tiny.page("two") and "A new title" in tiny.page("two")

    # A chapter that is taken out is gone, from the site and from every page.
    tiny.write("_toc.yml", "format: jb-book\nroot: book/index\nchapters:\n  - file: book/two\n")
    (tiny.root / "book/one.md").unlink()
    assert tiny.build()[0] == 0
    assert "one.html" not in tiny.site() and "A new title" not in tiny.page("two")
    assert not kernels_below(tiny.root)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("import time\ntime.sleep(60)", "CellTimeoutError: this cell ran for longer than 2 s"),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
            "DeadKernelError: the kernel died while this cell ran",
        ),
        ("import os\nos._exit(0)", "DeadKernelError: the kernel died"),
        ("x = = 1", "SyntaxError: invalid syntax"),
        ("def f():\n    raise KeyError('deep')\nf()", "KeyError: 'deep'"),
        ("raise ValueError('first\\nsecond')", "ValueError: first second"),
    ],
    ids=["too long", "killed", "exits", "syntax", "deep", "two lines"],
)
def test_a_cell_that_goes_wrong_is_named_by_line(tiny, cell, message):
    tiny.write("_config.yml", (tiny.root / "_config.yml").read_text().replace("timeout: 20", "timeout: 2"))
    tiny.write("book/one.md", chapter("One", "print('fine')", cell))
    status, out, err = tiny.build()
    assert status == 1 and statuses(out) == {"index": "no code", "one": "failed", "two": "ran"}
    line = next(line for line in err.splitlines() if line.startswith("book/one.md:"))
    number = 18 + (2 if "deep" in cell else 0)
    assert line.startswith(f"book/one.md:{number}: {message}")
    assert "Traceback" not in err.split(line)[0]  # nothing of ours
    assert not (tiny.root / "_build/html").exists()
    assert not kernels_below(tiny.root)


def test_settings_of_whoever_builds_do_not_reach_the_chapters(tiny):
    tiny.write(
        "book/one.md", chapter("One", "import os\nprint({n: os.environ.get(n) for n in ('JAX_PLATFORMS', 'HOME')})")
    )
    settings = {"JAX_PLATFORMS": "tpu", "XLA_FLAGS": "--none", "MPLBACKEND": "agg", "HOME": str(tiny.root)}
    status, _, err = tiny.build(**settings)
    assert status == 0 and f"'JAX_PLATFORMS': None, 'HOME': '{tiny.root}'" in unescape(tiny.page("one")), err


def test_what_a_cell_leaves_running_is_ended(tiny):
    code = """
        import subprocess
        for detached in (False, True):
            print('pid', subprocess.Popen(['sleep', '600'], start_new_session=detached).pid)
        """
    tiny.write("book/one.md", chapter("One", code))
    status, _, err = tiny.build()
    assert status == 0, err
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", tiny.page("one"))]
    assert len(pids) == 2
    for pid in pids:
        deadline = time.monotonic() + 10
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the child of a cell still runs"
            time.sleep(0.05)


def test_a_change_during_the_run_makes_the_outputs_stale(tiny):
    ready = tiny.root / "ready"
    code = f"""
        exec(open('../src/shardlab/value.py').read())
        open({str(ready)!r}, 'w').close()
        import time
        time.sleep(1.5)
        print('two', VALUE)
        """
    tiny.write("book/two.md", chapter("Two", code))
    process = tiny.start_until(ready)
    tiny.write("src/shardlab/value.py", "VALUE = 2\n")
    process.communicate()
    assert tiny.build()[0] == 0
    assert "two 2" in tiny.page("two")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # SQLite's, of a broken database
def test_a_damaged_cache_costs_a_run_and_nothing_else(tiny):
    assert tiny.build()[0] == 0
    book, cache = load(tiny.root), tiny.root / "_build" / site.CACHE

    def reused():
        results = execute.run(book, cache)
        assert not [result for result in results if result.failure]
        return {result.name for result in results if result.status == "reused"}

    assert reused() == {"one", "two"}
    notebooks = sorted(cache.glob("executed/*/base.ipynb"))
    assert len(notebooks) == 2
    notebooks[0].write_text(notebooks[0].read_text()[:100])
    assert len(reused()) == 1 and reused() == {"one", "two"}
    notebooks[1].unlink()
    assert len(reused()) == 1 and reused() == {"one", "two"}
    shutil.rmtree(cache / "executed")
    assert reused() == set() and reused() == {"one", "two"}
    (cache / "global.db").write_bytes(b"not a database at all" * 100)
    assert reused() == set() and reused() == {"one", "two"}


def test_links_that_lead_nowhere_are_named_by_line(tiny):
    class Site(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response({"/there": 200, "/shy": 403}.get(self.path, 404))
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        tiny.write("book/index.md", f"# Home\n\n[This]({at}/there#x) and [that]({at}/shy).\n")
        status, out, err = tiny.build("links")
        assert (status, out) == (0, "every link leads somewhere\n"), err
        tiny.write("book/one.md", chapter("One", "1 / 0") + f"\n[Here]({at}/gone) and {{doc}}`two`.\n")
        status, out, err = tiny.build("links")
        server.shutdown()
    assert status == 1 and re.fullmatch(rf"book/one\.md:17: {at}/gone: 404 [^\n]*\n", out), out + err
    assert not (tiny.root / "_build/html").exists()


def test_two_chapters_with_the_same_code_both_follow_a_change(tiny):
    same = "# from shardlab\nexec(open('../src/shardlab/value.py').read()); print('value', VALUE)"
    tiny.write("book/one.md", chapter("One", same))
    tiny.write("book/two.md", chapter("Two", same))
    assert tiny.build()[0] == 0
    tiny.write("src/shardlab/value.py", "VALUE = 5\n")
    assert tiny.build()[0] == 0
    assert "value 5" in tiny.page("one") and "value 5" in tiny.page("two")


def test_included_files_and_subfolders(tiny):
    (tiny.root / "book" / "part").mkdir()
    tiny.write("NOTES.md", "An old note.\n")
    tiny.write("book/index.md", "# Home\n\n```{include} ../NOTES.md\n```\n")
    tiny.write("book/part/deep.md", chapter("Deep", "print('deep', 3 * 3)"))
    tiny.write("_toc.yml", (tiny.root / "_toc.yml").read_text() + "  - file: book/part/deep\n")
    status, out, err = tiny.build()
    assert status == 0, err
    assert "deep 9" in tiny.page("part/deep") and "An old note" in tiny.page("index")
    tiny.write("NOTES.md", "A new note.\n")
    assert tiny.build()[0] == 0
    assert "A new note" in tiny.page("index")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_leaves_nothing_behind_and_the_next_build_works(tiny, number):
    assert tiny.build()[0] == 0
    good = tiny.site()
    ready = tiny.root / "ready"
    tiny.write("book/one.md", chapter("One", f"open({str(ready)!r}, 'w').close()\nimport time\ntime.sleep(15)"))
    process = tiny.start_until(ready)
    assert kernels_below(tiny.root)
    began = time.monotonic()
    process.send_signal(number)
    time.sleep(0.1)  # two at the same moment could come in either order
    process.send_signal(signal.SIGTERM)  # as impatient people do, and terminals
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 10
    assert process.returncode == 128 + number and f"stopped ({number.name}); the site is as it was" in err
    assert "Traceback" not in err and "Exception" not in err, err
    assert not kernels_below(tiny.root) and tiny.site() == good
    tiny.write("book/one.md", chapter("One", "print('after')"))
    assert tiny.build()[0] == 0 and "after" in tiny.page("one")


def test_a_kill_that_cannot_be_caught(tiny):
    ready = tiny.root / "ready"
    tiny.write("book/one.md", chapter("One", f"open({str(ready)!r}, 'w').close()\nimport time\ntime.sleep(15)"))
    process = tiny.start_until(ready)
    process.kill()
    process.communicate()
    folders = list(Path(tempfile.gettempdir()).glob(f"book-{process.pid}-*"))
    assert len(folders) == 1
    deadline = time.monotonic() + 10  # kernels notice by themselves that their parent is gone
    while kernels_below(tiny.root):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    tiny.write("book/one.md", chapter("One", "print('after')"))
    assert tiny.build()[0] == 0 and "after" in tiny.page("one")
    assert not folders[0].exists()


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


def test_one_chapter_alone(tiny):
    tiny.write("book/two.md", chapter("Two", "1 / 0"))
    status, out, err = tiny.build("chapter", "book/one.md")
    assert status == 0 and statuses(out) == {"one": "ran"}, err
    page = tiny.root / re.search(r"the page: (\S+)", out)[1]
    assert "one 2" in page.read_text()
    status, out, err = tiny.build("chapter", "two")
    assert status == 1 and re.search(r"^book/two\.md:\d+: ZeroDivisionError", err, re.MULTILINE)
    status, out, err = tiny.build("chapter", "three.md")
    assert status == 1 and "three.md: no such chapter" in err and "book/one.md" in err


def test_a_port_that_is_taken_is_told_before_anything_runs(tiny):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = tiny.build("serve", "--port", str(port))
    assert status == 1 and f"cannot serve on port {port}: " in err and "PORT=8001" in err
    assert "running" not in err


def test_plain_jupyter_book_is_as_truthful(tiny):
    def jupyter_book():
        run = subprocess.run(
            [Path(sys.executable).with_name("jupyter-book"), "build", "."],
            cwd=tiny.root,
            capture_output=True,
            text=True,
        )
        return run.returncode, run.stdout + run.stderr

    status, said = jupyter_book()
    assert status == 0, said
    assert "two 1" in tiny.page("book/two")
    tiny.write("src/shardlab/value.py", "VALUE = 5\n")
    status, said = jupyter_book()
    assert status == 0 and "two 5" in tiny.page("book/two"), said
    assert [tiny.page(f"book/{name}").count('class="executed"') for name in ("one", "two")] == [1, 1]
    tiny.write("book/one.md", chapter("One", "1 / 0"))
    status, said = jupyter_book()
    assert status != 0 and "book/one.md:14: ZeroDivisionError: division by zero" in said
    # And what it left does not fool `make book`.
    tiny.write("book/one.md", chapter("One", "print('one', 1 + 1)"))
    assert tiny.build()[0] == 0
    assert "two 5" in tiny.page("two") and not (tiny.root / "_build/html/book").exists()


def test_a_page_is_written_anew_if_it_or_what_it_shows_of_others_has_changed(tiny):
    def written():
        """The chapters whose pages have changed since the last build, as Sphinx left them."""
        pages = {
            page.stem: page.stat().st_mtime_ns for page in (tiny.root / "_build/staging/_build/html").glob("*.html")
        }
        changed = {name for name in pages if pages[name] != before.get(name)} - {"404", "genindex", "search"}
        before.clear()
        before.update(pages)
        return changed

    before = {}
    picture = "import matplotlib.pyplot as plt\nplt.plot([1, {}])\nplt.show()"
    tiny.write("book/one.md", chapter("One", "print('one', 1 + 1)", picture.format(1)))
    assert tiny.build()[0] == 0 and written() == {"index", "one", "two"}
    tiny.write("book/two.md", (tiny.root / "book/two.md").read_text() + "\nA new sentence.\n")
    assert tiny.build()[0] == 0 and written() <= {"index", "two"} and "A new sentence." in tiny.page("two")
    tiny.write("book/one.md", chapter("One", "print('one', 1 + 1)", picture.format(2)))
    assert tiny.build()[0] == 0 and written() <= {"index", "one"}
    assert len(list((tiny.root / "_build/html/_images").iterdir())) == 1  # of the old picture nothing is left
    tiny.write("book/two.md", (tiny.root / "book/two.md").read_text().replace("# Two", "# Another"))
    assert tiny.build()[0] == 0 and written() == {"index", "one", "two"} and "Another" in tiny.page("one")
    tiny.write("_toc.yml", "format: jb-book\nroot: book/index\nchapters:\n  - file: book/one\n")
    (tiny.root / "book/two.md").unlink()
    assert tiny.build()[0] == 0 and "two.html" not in tiny.site() and "Another" not in tiny.page("one")

    bit_by_bit = tiny.site()
    shutil.rmtree(tiny.root / "_build/staging")
    tiny.write("_config.yml", (tiny.root / "_config.yml").read_text() + "# as good as new\n")
    assert tiny.build()[0] == 0
    at_once = tiny.site()
    for index in (bit_by_bit, at_once):
        index.pop("searchindex.js")  # it keeps words that are nowhere any more
    assert bit_by_bit == at_once


def test_in_ci_links_lead_to_the_repository_that_is_built(tiny):
    assert tiny.build(GITHUB_REPOSITORY="somebody/fork")[0] == 0
    assert "https://github.com/somebody/fork" in tiny.page("index") and "tiny/here" not in tiny.page("index")
    assert tiny.build()[0] == 0
    assert "https://github.com/tiny/here" in tiny.page("index") and "somebody" not in tiny.page("index")


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
        (mangled("---\n- a\n---\n# One\n"), "book/one.md:2: the front matter must be keys with values"),
        (mangled("# One\n\n```{code-cell}\n1\n```\n"), "book/one.md:1: has code cells, but its front matter"),
        (mangled(FRONT.replace("  name: python3\n", "") + "# One\n```{code-cell}\n1\n```\n"), "names no kernel"),
        (lambda t: (t.root / "book/one.md").write_bytes("# O\n\nfür\n".encode("latin-1")), "book/one.md:3: not UTF-8"),
        (removed("_toc.yml"), "_toc.yml: not found in "),
        (removed("_config.yml"), "_config.yml: not found in "),
        (lambda t: t.write("_toc.yml", "format: jb-book\nroot: [\n"), "_toc.yml:3: not YAML"),
        (lambda t: t.write("_toc.yml", "format: jb-book\n"), "_toc.yml: "),
        (lambda t: t.write("_toc.yml", "format: jb-book\nroot: index\n"), "_toc.yml:2: index is not in book/"),
        (lambda t: t.write("_config.yml", "title: 'x\n"), "_config.yml:2: not YAML"),
        (lambda t: t.write("_config.yml", "- a\n"), "_config.yml:1: must be keys with values, not list"),
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
        load(tiny.root)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_broken_source_ends_the_command_in_one_line(tiny):
    removed("book/one.md")(tiny)
    status, out, err = tiny.build()
    assert (status, out) == (1, "") and err.splitlines() == [
        "_toc.yml:4: lists book/one, but there is no file book/one.md"
    ]


def test_a_kernel_that_does_not_exist_is_named(tiny):
    tiny.write("book/one.md", chapter("One", "1").replace("name: python3", "name: no-such-kernel"))
    status, out, err = tiny.build()
    assert status == 1 and re.search(r"^book/one\.md:14: NoSuchKernel: .*no-such-kernel", err, re.MULTILINE)


def test_lines_of_cells_with_options_and_repeated_code(tiny):
    text = (
        FRONT
        + "# One\n\nprint(1)\n\n```{code-cell}\n:tags: [hide-input]\n\nprint(1)\n```\n\n"
        + ("````{code-cell} ipython3\n---\nmystnb:\n  image:\n    alt: A picture.\n---\n# print(1)\nprint(1)\n````\n")
    )
    tiny.write("book/one.md", text)
    lines = text.splitlines()
    cells = load(tiny.root).chapter("one").cells
    assert [lines[cell.line - 1] for cell in cells] == ["print(1)", "# print(1)"]
    assert [cell.line for cell in cells] == [18, 27]

    # Other fences, blank lines before the code, a cell that only shows how to write one, Windows' line ends.
    text = (
        FRONT + "# One\n\n````markdown\n```{code-cell}\n0\n```\n````\n\n~~~{code-cell}\n\n\nprint(2)\n~~~\n\n"
        "```{code-cell}\n```\n\n```{code-cell}\nprint(3)\n```\n"
    )
    (tiny.root / "book/one.md").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    cells = load(tiny.root).chapter("one").cells
    assert [text.split("\n")[cell.line - 1] for cell in cells] == ["print(2)", "print(3)"]

    # A page that only shows cells is no program, and needs no front matter.
    tiny.write("book/one.md", "# One\n\n````markdown\n```{code-cell}\n0\n```\n````\n")
    assert not load(tiny.root).chapter("one").runs
    tiny.write("book/one.md", "---\n---\n# One\n")
    assert load(tiny.root).chapter("one").front_matter == {}


def test_a_skipped_cell_does_not_shift_the_line_of_an_error(tiny):
    skipped = "```{code-cell}\n:tags: [skip-execution]\n\n1 / 0\n```\n\n"
    text = FRONT + "# One\n\n" + skipped + "```{code-cell}\n\n\nx = 1\nx / 0\n```\n"
    tiny.write("book/one.md", text)
    results = execute.run(load(tiny.root), tiny.root / "_build" / site.CACHE)
    failure = next(result.failure for result in results if result.name == "one")
    assert text.splitlines()[failure.line - 1] == "x / 0" and ": ZeroDivisionError: division by zero" in str(failure)


def test_the_fingerprint_follows_python_packages_and_shardlab(tiny, monkeypatch):
    book = load(tiny.root)
    one, two = book.chapter("one"), book.chapter("two")
    before = execute.fingerprint(book, one), execute.fingerprint(book, two)
    assert before[0] != before[1]
    tiny.write("src/shardlab/other.py", "")
    assert execute.fingerprint(book, one) == before[0] and execute.fingerprint(book, two) != before[1]
    (tiny.root / "src/shardlab/other.py").unlink()
    assert (execute.fingerprint(book, one), execute.fingerprint(book, two)) == before
    assert f"jax=={__import__('jax').__version__}" in execute.environment() and sys.version in execute.environment()
    monkeypatch.setattr(execute, "environment", lambda: "jax==0.0.1")
    assert execute.fingerprint(book, one) != before[0] and execute.fingerprint(book, two) != before[1]


def test_a_swap_that_was_killed_half_way_is_put_right(tmp_path):
    (tmp_path / "html.old").mkdir()
    (tmp_path / "html.old" / "index.html").write_text("old")
    (tmp_path / "html.new").mkdir()
    site._finish_swap(tmp_path / "html")
    assert (tmp_path / "html" / "index.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["html"]


def test_plain_lines_say_where_a_long_chapter_is(capsys):
    lines = progress.Lines(every=0.0)
    lines.cell("arrays", 0, 3)
    lines.cell("arrays", 2, 3)
    lines.finished(execute.Result("arrays", "ran", 3, 1.25))
    assert capsys.readouterr().err.splitlines() == [
        "arrays: running 3 cells", "arrays: cell 2 of 3, 0 s", "arrays: ran in 1.2 s",
    ]  # fmt: skip


def test_a_terminal_gets_a_live_table(tiny):
    """On a terminal the running chapter, its cell and its seconds are redrawn in place."""
    tiny.write("book/one.md", chapter("One", "import time", "time.sleep(1.5)"))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bookbinder", "--root", str(tiny.root), "build"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert process.returncode == 0, plain
    assert re.search(r"one +\S* *cell 2 of 2 +\d+ s", plain) and "chapters done" in plain


def test_a_page_that_is_served_shows_what_is_saved(tiny, browser):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server, page = tiny.start("serve", "--port", str(port)), browser.new_page()
    try:
        deadline = time.monotonic() + 120
        while not listens(port):
            assert server.poll() is None and time.monotonic() < deadline, server.communicate()
            time.sleep(0.1)
        page.goto(f"http://127.0.0.1:{port}/one.html", wait_until="networkidle")
        assert "one 2" in page.locator("article").inner_text()
        tiny.write("book/one.md", chapter("One", "print('one', 2 + 2)"))
        page.get_by_text("one 4").wait_for(timeout=60_000)
    finally:
        page.close()
        server.terminate()
        said = server.communicate(timeout=20)
    assert not kernels_below(tiny.root) and "Traceback" not in said[1], said


def listens(port):
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def test_help_and_bad_options():
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "bookbinder", *arguments], capture_output=True, text=True)

    for command in ([], ["build"], ["chapter"], ["serve"]):
        assert run(*command, "--help").returncode == 0
    assert "must be 1 or more" in run("build", "--jobs", "0").stderr
    assert run().returncode == 2
