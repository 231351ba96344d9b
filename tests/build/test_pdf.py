"""The book as one PDF: that its links lead within it, and what Chromium makes of it."""

import importlib.util
import re
import shutil
import subprocess

import pikepdf
import pytest
import yaml
from bs4 import BeautifulSoup
from places import ROOT
from repository import missing

from bookbinder.read import citation

PARTS = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))["parts"]
spec = importlib.util.spec_from_file_location("pdf", ROOT / "scripts" / "pdf.py")
pdf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pdf)


@pytest.fixture(scope="module")
def bound(site, book):
    return pdf.bind(
        site, book.config, PARTS, [chapter.name for chapter in book.chapters], citation.of(ROOT)
    )


PRINTED = ("writing", "explicit")


@pytest.fixture(scope="module")
def printed(site, tmp_path_factory):
    """Two chapters as a file."""
    file = tmp_path_factory.mktemp("pdf") / "two.pdf"
    assert pdf.main(["--site", str(site), "--output", str(file), *PRINTED]) == 0
    return file


@pytest.fixture(scope="module")
def pages(printed):
    """The words on each page, line by line."""
    if not shutil.which("pdftotext"):
        missing("poppler-utils")
    told = subprocess.run(
        ["pdftotext", "-layout", printed, "-"], capture_output=True, text=True, check=True
    ).stdout
    return [
        [" ".join(line.split()) for line in page.splitlines() if line.strip()]
        for page in told.split("\f")[:-1]
    ]


def title_of(site, name):
    heading = BeautifulSoup((site / f"{name}.html").read_text("utf-8"), "html.parser").h1
    heading.select_one(".headerlink").decompose()
    return " ".join(heading.get_text().split())


def test_all_chapters_are_there_in_order_and_named_at_the_beginning(bound, book):
    names = [chapter.name for chapter in book.chapters]
    assert [article.get("id") for article in bound.select("article")] == [None, "contents", *names]
    listed = [link["href"].removeprefix("#") for link in bound.select(".contents li a:not(.at)")]
    assert listed == [name for name in names if name != "index"]
    assert [link["href"].removeprefix("#") for link in bound.select(".contents li .at")] == listed


def test_the_cover_says_title_authors_version_date_and_licences(bound):
    cover = " ".join(bound.select_one(".cover").get_text(" ").split())
    cited = citation.of(ROOT)
    facts = [
        cited["title"],
        cited["version"],
        str(cited["date-released"]),
        *(one["name"] for one in cited["authors"]),
    ]
    assert all(fact in cover for fact in (*facts, "CC BY 4.0", "Apache-2.0"))


def test_links_within_the_book_lead_to_something_in_it(bound):
    ids = [one["id"] for one in bound.select("[id]")]
    assert len(ids) == len(set(ids))
    within = [one["href"] for one in bound.select("body [href]") if one["href"].startswith("#")]
    assert len(within) > 500 and not {href[1:] for href in within} - set(ids)
    others = [one for one in bound.select("body [href]") if not one["href"].startswith("#")]
    inside = {"image": ("data:image/png;base64,",)}  # of a drawing
    assert not [
        one
        for one in others
        if not one["href"].startswith(inside.get(one.name, ("https://", "http://")))
    ]


def test_nothing_is_folded_and_nothing_asks_to_be_pressed(bound):
    assert not bound.select("details:not([open]), button, input, script")


def test_answers_are_at_the_end_of_their_chapters_and_each_place_leads_to_the_other(bound):
    assert not bound.select("details.answer, details.solution")
    count = 0
    for article in bound.select("article"):
        asked = [one["id"] for one in article.select(".predict, .exercise") if one.get("id")]
        (last, *none) = article.select(".answers") or [None]
        assert not none and bool(last) == bool(asked), article.get("id")
        if not last:
            continue
        assert not [one for one in last.find_next_siblings() if one.get_text().strip()], article[
            "id"
        ]
        back = {
            line.find_next_sibling()["id"]: line.a["href"] for line in last.select(".elsewhere")
        }
        forth = [
            line.a["href"] for line in article.select(".elsewhere") if last not in line.parents
        ]
        assert sorted(back.values()) == sorted(f"#{name}" for name in asked)
        assert sorted(forth) == sorted(f"#{name}" for name in back)
        count += len(back)
    assert count > 200


def test_an_answer_says_why_the_other_choices_are_wrong(bound):
    assert not bound.select(".predict .reason")
    answer = " ".join(bound.find(id="auto--answer-1").get_text().split())
    right, wrong, shown = (
        answer.index(one)
        for one in ("Answer: devices 0 and 4", "Not: only device 0", "f32[8@x, 16@y] on 8 devices")
    )
    assert (
        right < wrong < shown
        and "the two halves of the same columns, and both receive the total." in answer
        and "Every device runs the same program, so no single device collects" in answer
    )


def test_what_is_asserted_of_an_answer_does_not_tell_it_below_the_question(bound):
    for forth in bound.select("p.elsewhere"):
        following = forth.find_next_sibling()
        assert (
            not following
            or "checked" not in following.get("class", ())
            or forth.find_parent(class_="answers")
        )


def test_each_page_has_its_number_and_the_title_of_its_chapter_but_the_cover(site, pages):
    cover, contents, *chapters = pages
    assert cover[0].startswith(citation.of(ROOT)["title"].split(":")[0]) and cover[-1] != "1"
    assert contents[0] == "Contents" and contents[-1] == "2"
    assert [page[-1] for page in chapters] == [str(number) for number in range(3, len(pages) + 1)]
    heads = list(dict.fromkeys(page[0] for page in chapters))
    assert heads == [title_of(site, name) for name in PRINTED]


def test_contents_and_references_name_the_pages_where_things_are(site, pages, printed):
    for name in PRINTED:
        title = title_of(site, name)
        (line,) = (line for line in pages[1] if line.startswith(title))
        assert int(line.split()[-1]) == next(
            n for n, page in enumerate(pages, 1) if page[0] == title
        )
    said = [
        int(number)
        for page in pages
        for number in re.findall(r"The answer is on page (\d+)", "\n".join(page))
    ]
    assert len(said) > 10 and said == sorted(said)
    for number in said:
        assert re.search(
            r"^(Prediction|Exercise) \d+$|^The question is",
            "\n".join(pages[number - 1]),
            re.MULTILINE,
        )
    places = pdf.pages_of(printed)
    asked = [
        int(number)
        for page in pages
        for number in re.findall(r"The question is on page (\d+)", "\n".join(page))
    ]
    assert len(asked) == len(said) and set(asked) | set(said) <= set(places.values())
    for number in asked:
        assert re.search(r"Predict\.|^Exercise \d+ \(", "\n".join(pages[number - 1]), re.MULTILINE)


def test_chromium_makes_a_pdf_with_a_bookmark_for_each_section(site, printed):
    with pikepdf.open(printed) as made:
        assert len(made.pages) > 10 and "/StructTreeRoot" in made.Root
        with made.open_outline() as outline:
            cover, contents, *chapters = outline.root
            sections = [[one.title for one in chapter.children] for chapter in chapters]
    assert contents.title == "Contents"
    for name, chapter, inner in zip(PRINTED, chapters, sections, strict=True):
        page = BeautifulSoup((site / f"{name}.html").read_text("utf-8"), "html.parser").article
        for link in page.select(".headerlink"):
            link.decompose()
        assert chapter.title == " ".join(page.h1.get_text().split())
        assert inner == [
            *(" ".join(one.get_text().split()) for one in page.select("h2")),
            "Answers",
        ]


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


def test_where_the_file_was_written_is_told(site, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pdf, "write", lambda bound, output, program: None)
    assert pdf.main(["--site", str(site), "--output", str(tmp_path / "a.pdf"), "writing"]) == 0
    assert capsys.readouterr().out == f"the book: {tmp_path / 'a.pdf'}\n"
