"""The book as one PDF: that its links lead within it, and what Chromium makes of it."""

import importlib.util

import pikepdf
import pytest
import yaml
from bs4 import BeautifulSoup
from places import ROOT

PARTS = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))["parts"]
spec = importlib.util.spec_from_file_location("pdf", ROOT / "scripts" / "pdf.py")
pdf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pdf)


@pytest.fixture(scope="module")
def bound(site, book):
    return pdf.bind(site, book.config, PARTS, [chapter.name for chapter in book.chapters])


def test_all_chapters_are_there_in_order_and_named_at_the_beginning(bound, book):
    names = [chapter.name for chapter in book.chapters]
    assert [article.get("id") for article in bound.select("article")] == [None, *names]
    listed = [link["href"].removeprefix("#") for link in bound.select(".cover li a")]
    assert listed == [name for name in names if name != "index"]


def test_links_within_the_book_lead_to_something_in_it(bound):
    ids = [one["id"] for one in bound.select("[id]")]
    assert len(ids) == len(set(ids))
    within = [one["href"] for one in bound.select("body [href]") if one["href"].startswith("#")]
    assert len(within) > 500 and not {href[1:] for href in within} - set(ids)
    others = [one["href"] for one in bound.select("body [href]") if not one["href"].startswith("#")]
    assert not [href for href in others if not href.startswith(("https://", "http://"))]


def test_nothing_is_folded_and_nothing_asks_to_be_pressed(bound):
    assert not bound.select("details:not([open]), button, input, script")
    assert len(bound.select("details.answer")) > 200


def test_chromium_makes_a_pdf_with_a_bookmark_for_each_section(site, tmp_path, capsys):
    file = tmp_path / "two.pdf"
    assert pdf.main(["--site", str(site), "--output", str(file), "writing", "explicit"]) == 0
    assert capsys.readouterr().out == f"the book: {file}\n"
    with pikepdf.open(file) as made:
        assert len(made.pages) > 10 and "/StructTreeRoot" in made.Root
        with made.open_outline() as outline:
            cover, *chapters = outline.root
            sections = [[one.title for one in chapter.children] for chapter in chapters]
    for name, chapter, inner in zip(("writing", "explicit"), chapters, sections, strict=True):
        page = BeautifulSoup((site / f"{name}.html").read_text("utf-8"), "html.parser").article
        for link in page.select(".headerlink"):
            link.decompose()
        assert chapter.title == " ".join(page.h1.get_text().split())
        assert inner == [" ".join(one.get_text().split()) for one in page.select("h2")]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["nothing"], 2, "there is no chapter nothing; there are index, start"),
        (["--site", "nowhere"], 1, "run `make book` first"),
    ],
)
def test_what_cannot_be_bound_is_told(arguments, status, said, capsys):
    assert pdf.main(arguments) == status
    assert said in capsys.readouterr().err
