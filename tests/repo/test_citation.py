"""How the book is cited, archived and installed: the same in every file that says it."""

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import yaml
from places import ROOT
from repository import BOOK, git

from bookbinder.read import address, citation
from bookbinder.read.book import BookError

pytestmark = pytest.mark.reads(
    "book",
    "CITATION.cff",
    ".zenodo.json",
    "pyproject.toml",
    "_config.yml",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "src/bookbinder",
    "src/shardlab",
    "scripts",
)
CITED = citation.of(ROOT)


def test_the_citation_agrees_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert CITED["version"] == project["version"] and project["license"] in CITED["license"]
    assert all(
        f"## {CITED['version']}" in text or CITED["version"] in text
        for text in [(ROOT / "CHANGELOG.md").read_text()]
    )
    assert citation.edition(ROOT) == f"{project['version']} of {CITED['date-released']}"


def test_the_archive_gets_what_the_citation_says():
    archived = json.loads((ROOT / ".zenodo.json").read_text())
    assert (archived["title"], archived["description"]) == (CITED["title"], CITED["abstract"])
    assert archived["creators"] == CITED["authors"] and archived["keywords"] == CITED["keywords"]
    assert archived["license"] in CITED["license"]


def test_the_entry_for_bibtex_is_one():
    from pybtex.database import parse_string

    where = address.of(BOOK.config)
    (entry,) = parse_string(citation.bibtex(ROOT, where), "bibtex").entries.values()
    assert entry.fields["title"].strip("{}") == CITED["title"] and entry.fields["url"] == where.site
    assert entry.fields["version"] == CITED["version"] and entry.fields["year"] == str(
        CITED["date-released"].year
    )
    assert [str(person).strip("{}") for person in entry.persons["author"]] == [
        one["name"] for one in CITED["authors"]
    ]


def test_a_book_without_the_file_cites_nothing_and_a_wrong_one_is_refused(tmp_path):
    where = address.of(BOOK.config)
    assert citation.edition(tmp_path / "none") == citation.bibtex(tmp_path / "none", where) == ""
    (tmp_path / "CITATION.cff").write_text(
        yaml.safe_dump({"title": "A", "authors": [], "version": "1"})
    )
    with pytest.raises(BookError, match=r"CITATION\.cff: has no date-released"):
        citation.of(tmp_path)


@pytest.fixture
def github(tmp_path):
    """An address in place of GitHub's, with the archive that it makes of a commit: the sources
    below one folder.
    """
    archive = tmp_path / "archive" / "main.tar.gz"
    archive.parent.mkdir()
    files = git(
        ROOT, "ls-files", "src/shardlab", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"
    ).split()
    subprocess.run(
        ["tar", "-czf", archive, "--transform", "s,^,book-main/,", *files], cwd=ROOT, check=True
    )
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)
    )
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_pip_installs_the_package_by_the_line_of_the_pages_where_there_is_no_git(github, tmp_path):
    where = replace(address.of(BOOK.config), repository=github)
    python = (
        f"{sys.executable} -m pip --disable-pip-version-check install --no-deps "
        "--no-build-isolation --no-index"
    )
    command = where.install.replace(
        "pip install", f"{python} --quiet --target {tmp_path / 'installed'}", 1
    )
    clean = {"PATH": "", "HOME": str(tmp_path), "no_proxy": "127.0.0.1"}
    done = subprocess.run(["/bin/sh", "-c", command], env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "installed" / "shardlab"
    assert (installed / "__init__.py").is_file() and (
        installed / "machines" / "measured" / "h200.json"
    ).is_file()


def test_all_lines_that_install_the_package_come_from_one_place():
    """Its name is not yet on PyPI, and git may be missing: `{{ install }}` in chapters, `Address`
    in code.
    """
    named = re.compile(
        r"""pip3? install[^`#\n]*[\s"']shardlab\b|git\+https|/archive/|shardlab-\*"""
    )
    names = git(ROOT, "ls-files", "book", "src", "scripts", "README.md", "_config.yml").split()
    kinds = (".md", ".py", ".sh", ".toml", ".yml", ".js", ".html")
    texts = {name: (ROOT / name).read_text("utf-8") for name in names if name.endswith(kinds)}
    assert [name for name, text in texts.items() if named.search(text)] == [
        "src/bookbinder/read/address.py"
    ]
