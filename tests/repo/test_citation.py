"""How the book is cited, archived and installed: the same in every file that says it."""

import json
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from conftest import BOOK, git
from places import ROOT

from bookbinder.read import address, citation
from bookbinder.read.book import BookError
from bookbinder.run import environments

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
)
CITED = citation.of(ROOT)


def test_the_citation_agrees_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert CITED["version"] == project["version"] and project["license"] in CITED["license"]
    assert all(
        f"## {CITED['version']}" in text or CITED["version"] in text for text in [(ROOT / "CHANGELOG.md").read_text()]
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
    assert entry.fields["version"] == CITED["version"] and entry.fields["year"] == str(CITED["date-released"].year)
    assert [str(person).strip("{}") for person in entry.persons["author"]] == [one["name"] for one in CITED["authors"]]


def test_a_book_without_the_file_cites_nothing_and_a_wrong_one_is_refused(tmp_path):
    where = address.of(BOOK.config)
    assert citation.edition(tmp_path / "none") == citation.bibtex(tmp_path / "none", where) == ""
    (tmp_path / "CITATION.cff").write_text(yaml.safe_dump({"title": "A", "authors": [], "version": "1"}))
    with pytest.raises(BookError, match=r"CITATION\.cff: has no date-released"):
        citation.of(tmp_path)


def test_the_archive_that_readers_install_is_the_package(tmp_path):
    """What GitHub makes of a commit, which `pip install` of the page on the tool fetches."""
    archive = tmp_path / "main.tar.gz"
    files = git(ROOT, "ls-files", "src/shardlab", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md").split()
    command = ["tar", "-czf", archive, "--transform", "s,^,book-main/,", *files]
    subprocess.run(command, cwd=ROOT, check=True)
    python = ("--python", sys.executable, "--no-build-isolation", "--offline")
    status, _, said = environments.uv("build", "--quiet", "--wheel", *python, "--out-dir", str(tmp_path), str(archive))
    assert status == 0, said
    (wheel,) = tmp_path.glob("shardlab-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "shardlab/__init__.py" in names and "shardlab/machines/measured/h200.json" in names
    assert address.of(BOOK.config).install.endswith("/archive/main.tar.gz")
