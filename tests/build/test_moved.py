"""Sections that have moved to another page: their old addresses lead on."""

import pytest
import yaml
from bs4 import BeautifulSoup
from sphinx.errors import ExtensionError
from tiny_book import TinyBook

from bookbinder.page import moved
from bookbinder.read import book as books

TWO = "# Two\n\nText.\n\n(two-new)=\n## New home\n\nText.\n"


def with_moves(tiny, moves):
    config = yaml.safe_load((tiny.root / "_config.yml").read_text())
    config["sphinx"]["config"] = {
        **config["sphinx"].get("config", {}),
        moved.SETTING: moves,
    }
    tiny.write("_config.yml", yaml.safe_dump(config))


def test_an_old_anchor_names_the_new_place_and_a_wrong_one_stops_the_build(tmp_path):
    tiny = TinyBook(tmp_path)
    tiny.write("book/two.md", TWO)
    with_moves(tiny, {"one#old-home": "two#new-home", "one#one-old": "two#two-new"})
    status, _, err = tiny.build()
    assert status == 0, err
    page = BeautifulSoup((tiny.root / "_build/html/one.html").read_text(), "html.parser")
    lines = {line["id"]: line.a for line in page.select("article .moved")}
    assert {anchor: link["href"] for anchor, link in lines.items()} == {
        "old-home": "two.html#new-home",
        "one-old": "two.html#two-new",
    }
    assert lines["old-home"].text == "New home" and lines["one-old"].text
    other = (tiny.root / "_build/html/two.html").read_text()
    assert 'class="moved"' not in other and 'id="two-new"' in other

    with_moves(tiny, {"one#old-home": "two#new-house"})
    status, _, err = tiny.build()
    assert status == 1
    assert "there is no section two#new-house; did you mean two#new-home?" in err
    assert tiny.build("chapter", "book/one.md")[0] == 0  # other chapters are not known there


KNOWN = ["one#one", "two#new-home"]


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("one#one", "one#one is still there; remove its line"),
        ("three#old", "three#old is no place on a page"),
        ("one", "one is no place on a page; write page#anchor"),
    ],
)
def test_what_leads_from_no_old_place_is_refused(old, said):
    with pytest.raises(ExtensionError, match=f"_config.yml: moved_sections: {said}"):
        moved.check({old: "two#new-home"}, KNOWN)
    moved.check({"one#old": "two#new-home"}, KNOWN)


def test_the_book_moves_no_label_that_it_still_has(book):
    moves = book.config["sphinx"]["config"][moved.SETTING]
    names = {chapter.name for chapter in book.chapters}
    for old, new in moves.items():
        assert old.partition("#")[0] in names and new.partition("#")[0] in names
        page = book.chapter(old.partition("#")[0])
        headings = {books.slug(line.lstrip("# ")) for line in page.text.splitlines()}
        assert old.partition("#")[2] not in headings
