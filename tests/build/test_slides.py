"""The slides of paths and chapters: that they hold the page's own questions, tell no answer too
early, need no network and fit a screen.
"""

import importlib.util
import re
import shutil

import pikepdf
import pytest
from bs4 import BeautifulSoup
from places import ROOT
from repository import missing

spec = importlib.util.spec_from_file_location("slides", ROOT / "scripts" / "slides.py")
slides = importlib.util.module_from_spec(spec)
spec.loader.exec_module(slides)
CHAPTERS = "arrays", "collectives"


@pytest.fixture(scope="module")
def folder(site, tmp_path_factory):
    made = tmp_path_factory.mktemp("slides")
    assert slides.main(["--site", str(site), "--output", str(made), "hour", *CHAPTERS]) == 0
    return made


def parsed(folder, name):
    return BeautifulSoup((folder / f"{name}.html").read_text("utf-8"), "html.parser")


@pytest.mark.parametrize("name", CHAPTERS)
def test_each_prediction_of_a_page_is_a_question_and_its_answer(name, folder, site):
    page = BeautifulSoup((site / f"{name}.html").read_text("utf-8"), "html.parser")
    asked = page.article.select(".predict")
    deck = parsed(folder, name)
    questions, answers = deck.select(".slide.question"), deck.select(".slide.answer")
    assert len(questions) == len(answers) == len(asked) > 3
    for of, question, answer in zip(asked, questions, answers, strict=True):
        right = [bool(label.select("[data-right]")) for label in of.select("label")]
        assert [one.get("class") == ["right"] for one in answer.select("ol li")] == right
        assert sum(right) == 1
        shown = page.find(id=of["data-answer"]).find(class_="cell_output")
        told = " ".join(shown.get_text().split())
        assert not question.select(".right, .cell_output, [data-right]")
        assert told in " ".join(answer.get_text().split())


def test_a_deck_of_the_core_has_its_sections_alone(folder, book):
    headings = {one.get_text() for one in parsed(folder, "hour").select(".question h2")}
    _, _, stops = slides.decks(book)["hour"]
    known = {re.sub(r"[`*]", "", stop.heading) for stop in stops}
    titles = {one.get_text() for one in parsed(folder, "hour").select(".title h1")}
    assert headings and headings <= known | titles


def test_decks_of_all_paths_are_known(book):
    assert {"hour", "evening"} < slides.decks(book).keys()
    assert len(slides.decks(book)) == 2 + len(book.paths)


@pytest.mark.parametrize("name", ("hour", *CHAPTERS))
def test_a_deck_needs_no_network(name, folder):
    deck = parsed(folder, name)
    assert all(one["src"].startswith("data:") for one in deck.select("[src]"))
    assert not deck.select("link, script[src], iframe")
    assert not re.search(r"url\((?!['\"]?(data:|#))", str(deck))


def test_a_wrong_name_gets_the_nearest(capsys):
    assert slides.main(["arrayz"]) == 2
    assert "did you mean arrays?" in capsys.readouterr().err


def test_slides_fit_the_screen_and_turn_by_keys(folder, tmp_path):
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if not program:
        missing("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, timeout=0)
        for width, height in ((1280, 720), (1024, 768), (1920, 1080)):
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(0)
            page.goto((folder / "arrays.html").as_uri())
            beyond = page.evaluate(
                """() => [...document.querySelectorAll(".slide")].filter((slide) => {
                  const box = slide.firstElementChild.getBoundingClientRect();
                  return box.height > slide.clientHeight || box.right > innerWidth + 1;
                }).length"""
            )
            assert beyond == 0
            page.keyboard.press("ArrowRight")
            page.keyboard.press("End")
            count = page.locator(".slide").count()
            assert page.locator("#at").inner_text() == f"{count} / {count}"
            page.keyboard.press("ArrowLeft")
            assert page.evaluate("location.hash") == f"#{count - 1}"
            file = tmp_path / f"{width}.pdf"
            page.pdf(path=file, prefer_css_page_size=True, print_background=True)
            with pikepdf.open(file) as printed:
                assert len(printed.pages) == count
            page.close()
        browser.close()
