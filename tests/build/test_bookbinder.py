"""bookbinder through a book's life, in a small book."""

import http.client
import json
import os
import platform
import pty
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from tiny_book import FRONT, TinyBook, chapter, statuses, waits_for
from waiting import PATIENCE, wait_until

from bookbinder import progress
from bookbinder.read import package
from bookbinder.read.book import BookError, load
from bookbinder.run import execute, runs, stale
from bookbinder.show import serve, site

pytestmark = pytest.mark.reads("src/bookbinder")


@pytest.fixture(scope="module")
def on_a_terminal(tmp_path_factory):
    """A book that someone with settings of their own has built on a terminal; and what that
    showed.
    """
    tiny = TinyBook(tmp_path_factory.mktemp("book"))
    bar = (
        "import time\nprint('a')\n"
        "for i in range(4):\n    print(f'\\r{i} of 3', end='', flush=True)\n    time.sleep(0.4)\n"
        "print('\\r\\nb\\r')"
    )
    tiny.write("book/one.md", chapter("One", "x = 1", bar))
    tiny.write(
        "book/two.md",
        chapter("Two", f"import os\nprint({{n: os.environ.get(n) for n in {tuple(SETTINGS)}}})"),
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bookbinder", "--root", str(tiny.root), "build"]
    environment = (
        os.environ
        | {name: value for name, (value, _) in SETTINGS.items()}
        | {"CHAPTERS_XLA_FLAGS": ""}
    )
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    ) as process:
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
    return tiny, plain


SETTINGS = {  # what whoever builds has, and what reaches the chapters
    "JAX_PLATFORMS": ("tpu", "cpu"),
    "XLA_FLAGS": ("--none", None),
    "PYTHONDONTWRITEBYTECODE": ("1", None),
    "MPLBACKEND": ("agg", "module://matplotlib_inline.backend_inline"),  # the kernel's own
}


def test_a_terminal_gets_a_live_table(on_a_terminal):
    """The running chapter, its cell and its seconds are redrawn in place."""
    assert (
        re.search(r"one +\S* *cell 2 of 2 +\d+ s", on_a_terminal[1])
        and "chapters done" in on_a_terminal[1]
    )


def test_a_progress_bar_is_shown_as_it_ended(on_a_terminal):
    assert re.search(
        "<pre[^>]*>a\\n3 of 3\\nb</pre>", on_a_terminal[0].page("one").replace("<span></span>", "")
    )


def test_settings_of_whoever_builds_do_not_reach_the_chapters(on_a_terminal):
    assert str({name: seen for name, (_, seen) in SETTINGS.items()}) in unescape(
        on_a_terminal[0].page("two")
    )


def test_a_chapter_that_is_left_out_has_a_page_without_outputs_until_it_runs(tiny):
    status, out, err = tiny.build("build", "--without", "two")
    assert status == 0 and statuses(out) == {"index": "no code", "one": "ran", "two": "left out"}, (
        err
    )
    assert (
        "one 2" in tiny.page("one")
        and "two 1" not in tiny.page("two")
        and "VALUE" in tiny.page("two")
    )
    assert not site.is_current(load(tiny.root))  # so it is not published
    assert statuses(tiny.build("build", "--without", "two")[1])["two"] == "left out"
    status, out, _ = tiny.build()
    assert status == 0 and statuses(out)["two"] == "ran" and "two 1" in tiny.page("two")
    status, out, _ = tiny.build("build", "--without", "two")  # it has valid outputs
    assert status == 0 and statuses(out)["two"] == "reused" and "two 1" in tiny.page("two")
    status, _, err = tiny.build("build", "--without", "tow")
    assert (
        status == 1
        and "no such chapter in _toc.yml; there are book/index.md, book/one.md, book/two.md" in err
    )


def test_a_book_through_its_life(tiny):
    """Built; nothing changed; prose, code, shardlab changed; a page that warns; a cell that fails;
    and mended.
    """
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

    # Chapter two alone mentions shardlab. Its own file stays as it is, its page must change all the
    # same.
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
        assert status == 1 and re.search(
            r"^book/index\.md:3: WARNING: Unknown directive type", err, re.MULTILINE
        ), err
    assert tiny.site() == good

    tiny.write("book/index.md", "# Home\n")
    tiny.write(
        "book/one.md", chapter("One", "x = 0", "y = 1\nprint(\n  y / x)\n", "print('never')")
    )
    tiny.write("book/two.md", chapter("Two", "print('two', 'again')"))
    status, out, err = tiny.build()
    assert status == 1 and statuses(out) == {"index": "no code", "one": "failed", "two": "ran"}
    assert re.search(r"^book/one\.md:20: ZeroDivisionError: division by zero$", err, re.MULTILINE)
    assert "y / x" in err and "\x1b" not in err  # the traceback, plain where there is no terminal
    assert "1 of 3 chapters failed; the site is unchanged" in err
    assert tiny.site() == good

    # A new title shows in the side bar of pages that were not touched.
    tiny.write("book/one.md", chapter("A new title", "print('mended')"))
    status, out, err = tiny.build()
    assert status == 0 and statuses(out) == {"index": "no code", "one": "ran", "two": "reused"}
    assert (
        "mended" in tiny.page("one")
        and "two again" in tiny.page("two")
        and "A new title" in tiny.page("two")
    )

    # A chapter that is taken out is gone, from the site and from every page.
    tiny.write("_toc.yml", "format: jb-book\nroot: book/index\nchapters:\n  - file: book/two\n")
    (tiny.root / "book/one.md").unlink()
    assert tiny.build()[0] == 0
    assert "one.html" not in tiny.site() and "A new title" not in tiny.page("two")
    assert not tiny.processes()


def test_a_change_during_the_run_makes_the_outputs_stale(tiny, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")  # sources are read-only for cells
    ready, changed = elsewhere / "ready", elsewhere / "changed"
    code = f"""
        exec(open('../src/shardlab/value.py').read())
        open({str(ready)!r}, 'w').close()
        {waits_for(changed)}
        print('two', VALUE)
        """
    tiny.write("book/two.md", chapter("Two", code))
    process = tiny.start_until(ready)
    tiny.write("src/shardlab/value.py", "VALUE = 2\n")
    changed.touch()
    process.communicate()
    assert tiny.build()[0] == 0
    assert "two 2" in tiny.page("two")


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
        assert (status, out) == (0, "no link is broken\n"), err
        tiny.write(
            "book/one.md", chapter("One", "1 / 0") + f"\n[Here]({at}/gone) and {{doc}}`two`.\n"
        )
        status, out, err = tiny.build("links")
        server.shutdown()
    assert status == 1 and re.fullmatch(rf"book/one\.md:17: {at}/gone: 404 [^\n]*\n", out), (
        out + err
    )
    tiny.write(
        "_config.yml",
        (tiny.root / "_config.yml").read_text().replace("[bookbinder.", "[none.such, bookbinder."),
    )
    status, out, err = tiny.build("links")
    assert status == 1 and "none.such" in err and err.endswith("\nno link was checked\n"), out + err
    assert not (tiny.root / "_build/html").exists()


def test_what_is_no_code_and_what_looks_older_is_followed_too(tiny):
    assert tiny.build()[0] == 0
    tiny.write("src/shardlab/recording.json", "1")  # readers get it with the package
    assert statuses(tiny.build()[1])["two"] == "ran"
    tiny.write("src/shardlab/.hidden", "1")
    assert statuses(tiny.build()[1])["two"] == "reused"
    page, part = tiny.root / "book/index.md", tiny.root / "book/part.txt"
    part.write_text("The first part.\n")
    page.write_text("# Put back\n\n```{include} part.txt\n```\n")
    os.utime(page, (1e9, 1e9))  # as a file that was copied with its time
    assert (
        tiny.build()[0] == 0
        and "Put back" in tiny.page("index")
        and "The first part." in tiny.page("index")
    )
    part.write_text("The other part.\n")
    os.utime(part, (1e9, 1e9))
    assert tiny.build()[0] == 0 and "The other part." in tiny.page("index")


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
    assert [
        tiny.page(f"book/{name}").count("Every output on this page is from")
        for name in ("one", "two")
    ] == [1, 1]
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
            page.stem: page.stat().st_mtime_ns
            for page in (tiny.root / "_build/staging/_build/html").glob("*.html")
        }
        changed = {name for name in pages if pages[name] != before.get(name)} - {
            "404",
            "genindex",
            "search",
        }
        before.clear()
        before.update(pages)
        return changed

    before = {}
    picture = "import matplotlib.pyplot as plt\nplt.plot([1, {}])\nplt.show()"
    tiny.write("book/one.md", chapter("One", "print('one', 1 + 1)", picture.format(1)))
    assert tiny.build()[0] == 0 and written() == {"index", "one", "two"}
    tiny.write("book/two.md", (tiny.root / "book/two.md").read_text() + "\nA new sentence.\n")
    assert (
        tiny.build()[0] == 0
        and written() <= {"index", "two"}
        and "A new sentence." in tiny.page("two")
    )
    tiny.write("book/one.md", chapter("One", "print('one', 1 + 1)", picture.format(2)))
    assert tiny.build()[0] == 0 and written() <= {"index", "one"}
    assert tiny.page("one").count('class="plot"') == 1 and not list(
        tiny.root.glob("_build/html/_images/*")
    )
    tiny.write("book/two.md", (tiny.root / "book/two.md").read_text().replace("# Two", "# Another"))
    assert (
        tiny.build()[0] == 0
        and written() == {"index", "one", "two"}
        and "Another" in tiny.page("one")
    )
    tiny.write("_toc.yml", "format: jb-book\nroot: book/index\nchapters:\n  - file: book/one\n")
    (tiny.root / "book/two.md").unlink()
    assert (
        tiny.build()[0] == 0 and "two.html" not in tiny.site() and "Another" not in tiny.page("one")
    )

    bit_by_bit = tiny.site()
    shutil.rmtree(tiny.root / "_build/staging")
    tiny.write("_config.yml", (tiny.root / "_config.yml").read_text() + "# as good as new\n")
    assert tiny.build()[0] == 0 and tiny.site() == bit_by_bit


def test_lines_of_cells_with_options_and_repeated_code(tiny):
    text = (
        FRONT
        + "# One\n\nprint(1)\n\n```{code-cell}\n:tags: [hide-input]\n\nprint(1)\n```\n\n"
        + (
            "````{code-cell} ipython3\n---\nmystnb:\n  image:\n    alt: A picture.\n---\n# "
            "print(1)\nprint(1)\n````\n"
        )
    )
    tiny.write("book/one.md", text)
    lines = text.splitlines()
    cells = load(tiny.root).chapter("one").cells
    assert [lines[cell.line - 1] for cell in cells] == ["print(1)", "# print(1)"]
    assert [cell.line for cell in cells] == [18, 27]

    # Other fences, blank lines before the code, a cell that only shows how to write one, Windows'
    # line ends.
    text = (
        FRONT + "# "
        "One\n\n````markdown\n```{code-cell}\n0\n```\n````\n\n~~~{code-cell}\n\n\nprint(2)\n~~~\n\n"
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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("difficulty: 4", r"difficulty: 4 is not 1, 2 or 3"),
        ("after: two", r"after: 'two' is not a list of chapters"),
        ("after: [tow]", r"after: there is no other chapter tow; did you mean two\?"),
        ("after: [one]", r"after: there is no other chapter one"),
    ],
)
def test_what_a_chapter_says_of_its_place_is_checked(tiny, line, said):
    tiny.write("book/one.md", chapter("One", "1").replace("---\n", f"---\n{line}\n", 1))
    with pytest.raises(BookError, match=rf"^book/one\.md:2: {said}"):
        load(tiny.root).check()


def test_a_link_to_a_chapter_shows_its_short_title_on_the_page_and_in_the_notebook(tiny):
    toc = (tiny.root / "_toc.yml").read_text()
    tiny.write(
        "_toc.yml", toc.replace("  - file: book/two", "  - file: book/two\n    title: Short")
    )
    tiny.write("book/two.md", chapter("Two: a long title", "2"))
    tiny.write(
        "book/one.md",
        chapter("One", "1") + "\nSee {doc}`two`, {doc}`these words <two>` and {doc}`index`.\n",
    )
    assert tiny.build()[0] == 0

    def links():
        page = BeautifulSoup(tiny.page("one"), "html.parser")
        return [link.get_text() for link in page.article.select("p a.reference")]

    assert links() == ["Short", "these words", "Home"]
    notebook = (tiny.root / "_build/notebooks/one.ipynb").read_text()
    assert "[Short](" in notebook and "[these words](" in notebook and "[Home](" in notebook
    # without a short title the long one is shown, on pages that have not changed too
    tiny.write("_toc.yml", toc)
    assert tiny.build()[0] == 0 and links() == ["Two: a long title", "these words", "Home"]


def test_a_table_of_runs_names_chapters_by_their_titles_in_the_order_of_the_book(tiny):
    toc = "- file: book/two\n    title: The second\n  - file: book/one"
    tiny.write("_toc.yml", f"format: jb-book\nroot: book/index\nchapters:\n  {toc}\n")
    tiny.write("book/index.md", "# Home\n\n```{nb-exec-table}\n```\n")
    assert tiny.build()[0] == 0
    table = tiny.page("index").partition("<table")[2].partition("</table>")[0]
    shown = re.findall(r'href="(\w+)\.html"[^>]*><span[^>]*>(.*?)</span>', table)
    assert shown == [("two", "The second"), ("one", "One")]
    assert "Chapter</p>" in table and "Document" not in table


def test_a_skipped_cell_does_not_shift_the_line_of_an_error(tiny):
    skipped = "```{code-cell}\n:tags: [skip-execution]\n\n1 / 0\n```\n\n"
    text = FRONT + "# One\n\n" + skipped + "```{code-cell}\n\n\nx = 1\nx / 0\n```\n"
    tiny.write("book/one.md", text)
    results = execute.run(load(tiny.root), tiny.root / "_build" / site.CACHE)
    failure = next(result.failure for result in results if result.name == "one")
    assert text.splitlines()[
        failure.line - 1
    ] == "x / 0" and ": ZeroDivisionError: division by zero" in str(failure)


def test_a_chapter_runs_again_when_its_own_recording_changes_and_no_other(tiny):
    """Chapter two reads all recordings, as `shardlab.pods` does."""
    places = [f"src/shardlab/pods/recordings/{name}.json" for name in ("one", "two")]
    (tiny.root / "src/shardlab/pods/recordings").mkdir(parents=True)
    for place in places:
        tiny.write(place, "1")
    look = "from pathlib import Path\nimport shardlab\n"
    look += "for file in Path('../src/shardlab/pods/recordings').iterdir():\n    file.read_text()"
    tiny.write("book/two.md", FRONT + f"# Two\n\n```{{code-cell}}\n{look}\n```\n")

    def again():
        book, cache = load(tiny.root), tiny.root / "_build" / site.CACHE
        results = execute.run(book, cache)
        assert not [result.failure for result in results if result.failure]
        return [result.name for result in results if result.status == "ran"]

    again()
    assert again() == []
    tiny.write(places[0], "2")
    tiny.write("src/shardlab/pods/recordings/three.json", "1")
    assert again() == []
    tiny.write(places[1], "2")
    assert again() == ["two"]


def test_the_key_of_a_run_follows_python_packages_and_shardlab(tiny, monkeypatch):
    book = load(tiny.root)

    def keys():
        return [runs.of_chapter(book, book.chapter(name)).key for name in ("one", "two")]

    before = keys()
    assert before[0] != before[1]
    tiny.write("src/shardlab/other.json", "")
    assert keys()[0] == before[0] and keys()[1] != before[1]
    (tiny.root / "src/shardlab/other.json").unlink()
    assert keys() == before
    with monkeypatch.context() as changed:
        changed.setenv("CHAPTERS_XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
        assert keys()[0] != before[0] and keys()[1] != before[1]
        assert (
            runs.of_chapter(book, book.chapter("one")).variables["XLA_FLAGS"]
            == "--xla_cpu_enable_fast_math=false"
        )
    found = json.loads(stale.environment())
    assert f"jax-{__import__('jax').__version__}" in found["packages"]
    # Two builds of the same version are one: nobody's runs are lost when a distribution builds
    # Python anew.
    assert found["python"] == f"{platform.python_implementation()} {platform.python_version()}"
    monkeypatch.setattr(
        stale, "environment", lambda _: json.dumps(found | {"packages": ["jax-0.0.1"]})
    )
    assert keys()[0] != before[0] and keys()[1] != before[1]


def test_plain_lines_say_where_a_long_chapter_is(capsys):
    lines = progress.Lines(every=0.0)
    lines.cell("arrays", 0, 3)
    lines.cell("arrays", 2, 3)
    lines.finished(execute.Result("arrays", "ran", 3, 1.25))
    assert capsys.readouterr().err.splitlines() == [
        "arrays: running 3 cells",
        "arrays: cell 2 of 3, 0 s",
        "arrays: ran in 1.2 s",
    ]


def test_a_page_that_is_served_shows_what_is_saved(tiny, browser):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server, page = tiny.start("serve", "--port", str(port)), browser.new_page()
    try:
        deadline = time.monotonic() + PATIENCE
        while not listens(port):
            assert server.poll() is None and time.monotonic() < deadline, server.communicate()
            time.sleep(0.1)
        page.goto(
            f"http://127.0.0.1:{port}/one.html", wait_until="networkidle", timeout=1000 * PATIENCE
        )
        assert "one 2" in page.locator("article").inner_text()
        tiny.write("book/one.md", chapter("One", "print('one', 2 + 2)"))
        page.get_by_text("one 4").wait_for(timeout=1000 * PATIENCE)
    finally:
        page.close()
        server.terminate()
        said = server.communicate(timeout=PATIENCE)
    assert not tiny.processes() and "Traceback" not in said[1], said


def test_a_page_that_a_build_replaces_is_sent_with_the_size_that_was_said(tmp_path):
    page = tmp_path / "one.html"
    page.write_text("as it was")
    handler = object.__new__(serve._Preview)
    handler.absolute_path = str(page)
    size = handler.get_content_size()
    page.write_text("longer than it was")
    assert len(handler.get_content(handler.absolute_path)) == size
    assert handler.get_content(handler.absolute_path, 3, 5) == b"it"


def asked(port, path="/one.html", **headers):
    """The status of what is served for a path, and its text."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with closing(line):
        line.request(
            "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = line.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())


def test_what_is_served_is_for_pages_of_this_machine_alone(tiny):
    waits, began = tiny.root / "go", tiny.root / "began"
    tiny.write(
        "book/one.md",
        chapter("One", f"open({str(began)!r}, 'w'); {waits_for(waits)}; print('draft')"),
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = tiny.start("serve", "--port", str(port))
    try:
        wait_until(began.exists)
        # during the first build
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        waits.touch()
        status, text, headers = asked(port, Host=f"localhost:{port}")  # which waits for the build
        assert status == 200 and "draft" in text and "/livereload.js" in text
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        for path in ("/one.html", "/livereload.js", "/livereload"):
            status, text, _ = asked(port, path, Host=f"evil.example:{port}")
            assert status == 403 and "draft" not in text
        assert asked(port, "/forcereload")[0] == 404
        assert {
            asked(port, path)[0] for path in ("/%00", "/a%00b.html", "/%ff", "/" + "x" * 5000)
        } <= {400, 404}
        handshake = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
        handshake |= {"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==", "Host": f"127.0.0.1:{port}"}
        assert asked(port, "/livereload", **handshake, Origin="http://evil.example")[0] == 403
    finally:
        waits.touch()
        server.terminate()
        said = server.communicate(timeout=PATIENCE)
    assert not tiny.processes() and "Traceback" not in said[1], said


@pytest.fixture
def unfinished(tiny):
    """A book whose last chapter waits for a file, and that file."""
    go = tiny.root / "go"
    tiny.write("book/three.md", chapter("Three", f"{waits_for(go)}; print('three', 3)"))
    toc = (tiny.root / "_toc.yml").read_text()
    (tiny.root / "_toc.yml").write_text(f"{toc.rstrip()}\n  - file: book/three\n")
    return tiny, go


STILL = "This chapter was still running"


def test_pages_can_be_opened_while_a_chapter_runs(unfinished):
    tiny, go = unfinished
    html = tiny.root / "_build" / "html"
    assert tiny.build("chapter", "book/one.md")[0] == 0  # it has run before, and does not run again
    process = tiny.start()
    try:
        wait_until(lambda: html.exists() or process.poll() is not None)
        assert (
            process.poll() is None and "one 2" in tiny.page("one") and STILL not in tiny.page("one")
        )
        assert STILL in tiny.page("three") and STILL not in tiny.page("index")
        assert not site.is_complete(load(tiny.root)) and not site.is_current(load(tiny.root))
    finally:
        go.touch()
        out, err = process.communicate(timeout=PATIENCE)
    opened = "_build/html/index.html can be opened: 2 chapters have run, the others follow"
    assert process.returncode == 0 and opened in err, err
    assert STILL not in tiny.page("three") and "three 3" in tiny.page("three")
    assert site.is_complete(load(tiny.root)) and site.is_current(load(tiny.root))
    total, chapters = re.search(
        r"processor time: ([\d,]+) s, of which ([\d,]+) s ran", out
    ).groups()
    assert 0 < int(chapters) <= int(total)


def test_pages_without_outputs_are_no_site_if_a_chapter_fails(unfinished):
    tiny, go = unfinished
    whole = (tiny.root / "book/three.md").read_text()
    tiny.write("book/three.md", whole.replace("print(", "1 / 0; print("))
    process = tiny.start()
    try:
        wait_until(lambda: (tiny.root / "_build/html").exists() or process.poll() is not None)
    finally:
        go.touch()
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and "1 of 4 chapters failed; there is no complete site" in err, (
        err
    )
    assert not site.is_complete(load(tiny.root))
    tiny.write("book/three.md", whole)
    status, _, err = tiny.build()
    assert status == 0 and "three 3" in tiny.page("three") and site.is_complete(load(tiny.root)), (
        err
    )


def test_pages_are_served_while_a_chapter_runs(unfinished):
    tiny, go = unfinished
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = tiny.start("serve", "--port", str(port))

    def page(name):
        with suppress(ConnectionRefusedError):  # it has yet to begin
            return asked(port, f"/{name}.html", Host=f"localhost:{port}")[1]
        return ""

    try:
        wait_until(lambda: "one 2" in page("one"))
        assert STILL in page("three")
        go.touch()
        wait_until(lambda: "three 3" in page("three"))
    finally:
        go.touch()
        server.terminate()
        server.communicate(timeout=PATIENCE)
    assert not tiny.processes()


@pytest.mark.parametrize("port", ["0", "-1", "65536", "99999999999999999999"])
def test_a_number_that_is_no_port_is_refused(tiny, port):
    status, _, err = tiny.build("serve", f"--port={port}")
    assert status == 2 and f"{port} is no port; use one from 1 to 65535" in err


def listens(port):
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def test_help_and_bad_options():
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "bookbinder", *arguments], capture_output=True, text=True
        )

    for command in ([], ["build"], ["chapter"], ["serve"]):
        assert run(*command, "--help").returncode == 0
    assert "must be 1 or more" in run("build", "--jobs", "0").stderr
    assert run().returncode == 2


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            "recording = 'src'",
            (
                "pyproject.toml: [tool.bookbinder] has no recording; it has name, not-in-colab, "
                "programs, recordings"
            ),
        ),
        ("name = shardlab", "pyproject.toml: not TOML: "),
        ("name = 5", "pyproject.toml: [tool.bookbinder] name is 5; use a text"),
        (
            "not-in-colab = [1]",
            "pyproject.toml: [tool.bookbinder] not-in-colab is [1]; use a list of texts",
        ),
        (
            "variables = {A = 1}",
            "pyproject.toml: [tool.bookbinder] variables is {'A': 1}; use a table of texts",
        ),
        (
            "programs.packages = 'jax'",
            "pyproject.toml: [tool.bookbinder.programs] packages is jax; use a list of texts",
        ),
    ],
)
def test_a_table_for_bookbinder_that_cannot_be_read_is_an_error(tmp_path, table, said):
    (tmp_path / "pyproject.toml").write_text(f"[tool.bookbinder]\n{table}\n")
    with pytest.raises(BookError) as error:
        package.of(tmp_path)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("seconds", ["soon", -1, 0, 1.5, True, [30]])
def test_a_time_for_cells_that_is_none_is_an_error(tiny, seconds):
    config = (tiny.root / "_config.yml").read_text()
    tiny.write("_config.yml", config.replace("timeout: 120", f"timeout: {seconds}"))
    with pytest.raises(BookError) as error:
        load(tiny.root)
    says = "use a whole number of seconds, from 1 to 1,000,000"
    assert str(error.value) == f"_config.yml: execute: timeout: is {seconds}; {says}"
