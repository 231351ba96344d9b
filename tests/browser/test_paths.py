"""Along a path through the core of the book: each page shows its sections and leads to the next,
and the whole pages are a click away.
"""

import re

import pytest
from playwright.sync_api import expect
from repository import BOOK
from waiting import SOON

from bookbinder.read import core

HOUR = core.path(BOOK, "hour")
PAGES = list(dict.fromkeys(stop.chapter for stop in HOUR))
expect.set_options(timeout=SOON * 1000)


DESK = {"width": 1280, "height": 900}


@pytest.fixture
def reader(open_page):
    """Open a page: `reader("arrays.html?path=hour")`, with Playwright's options for who reads."""
    return lambda address, viewport=DESK, **options: open_page(
        address, viewport=viewport, **options
    )


def shown(page):
    """The anchors of the sections that can be seen."""
    return page.eval_on_selector_all(
        "article section section",
        "all => all.filter((one) => !one.closest('[hidden]')).map((one) => one.id)",
    )


def test_next_leads_through_all_sections_of_the_hour_and_no_others(reader):
    page, places, names = reader("evening.html"), [], []
    page.get_by_role("link", name="Begin the hour").click()
    while True:
        expect(page.locator(".path-bar")).to_be_visible()
        name = re.search(r"(\w+)\.html", page.url)[1]
        if name == "evening":
            expect(page.get_by_role("heading", name="What to read now")).to_be_in_viewport()
            break
        names.append(name)
        places += [(name, anchor) for anchor in shown(page)]
        own = [stop for stop in HOUR if stop.chapter == name]
        first = next(n for n, stop in enumerate(HOUR, 1) if stop.chapter == name)
        expect(page.locator(".path-bar")).to_contain_text(f"of {len(HOUR)}")
        numbers = page.locator(".path-place").all_text_contents()
        assert numbers == [f"The hour: {first + n} of {len(HOUR)}" for n in range(len(own))]
        assert page.locator(".bridge").count() == sum(bool(stop.bridge) for stop in own)
        page.locator(".around .next").click()
        page.wait_for_url(lambda url, now=name: f"{now}.html" not in url)
    assert names == PAGES
    assert places == [(stop.chapter, stop.anchor) for stop in HOUR if stop.anchor]


@pytest.mark.parametrize("title", BOOK.paths)
def test_next_leads_through_the_whole_chapters_of_a_path(reader, title):
    names, place = BOOK.paths[title], list(BOOK.paths).index(title)
    page = reader("using.html")
    page.get_by_role("link", name="Begin it").nth(place).click()
    for number, name in enumerate(names, 1):
        page.wait_for_url(re.compile(rf"/{name}\.html\?path="))
        bar = page.locator(".path-bar")
        expect(bar).to_contain_text(f"chapter {number} of {len(names)}")
        expect(bar).to_contain_text(title)
        assert not page.locator(".left-out, .skipped, .path-place").count()
        assert page.locator(".around .prev").count() == (number > 1)
        page.locator(".around .next").click()
    page.wait_for_url(re.compile(r"using\.html#using-paths"))


def test_what_is_left_out_is_named_and_opens(reader):
    page = reader("arrays.html?path=hour")
    left = page.locator(".skipped", has_text="Divisibility")
    expect(left).to_contain_text("Exercises")
    heading = page.get_by_role("heading", name="Divisibility")
    expect(heading).to_be_hidden()
    left.get_by_role("button", name="Show").click()
    expect(heading).to_be_visible()
    expect(left).to_have_count(0)


def test_a_link_to_what_is_left_out_opens_it(reader):
    anchor = "divisibility-when-a-mesh-axis-does-not-divide-a-dimension-evenly"
    page = reader(f"arrays.html?path=hour#{anchor}")
    expect(page.locator(f"#{anchor} > h2")).to_be_in_viewport()


def test_the_path_is_remembered_until_it_is_left(reader):
    page = reader("arrays.html?path=hour")
    page.goto(page.url.replace("arrays.html?path=hour", "zero.html"))
    bar = page.locator(".path-bar")
    expect(bar).to_contain_text("does not lead through this page")
    assert not page.locator(".left-out").count()
    bar.get_by_role("link", name="Back to it").click()
    expect(page).to_have_url(re.compile(r"arrays\.html\?path=hour"))
    page.get_by_role("button", name="Leave it").click()
    expect(page).to_have_url(re.compile(r"arrays\.html$"))
    expect(page.locator("h1")).to_be_visible()
    page.reload()
    page.wait_for_load_state()
    assert not page.locator(".path-bar").count() and not page.locator(".left-out").count()


def test_a_path_that_is_none_changes_nothing(reader):
    page = reader("arrays.html?path=year")
    page.wait_for_load_state("networkidle")
    assert not page.locator(".path-bar, .left-out").count()
    assert page.evaluate("localStorage.getItem('path')") is None


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_is_wider_than_the_screen(reader, width):
    page = reader("auto.html?path=evening", {"width": width, "height": 844})
    expect(page.locator(".path-bar")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_scripts_pages_are_whole(reader):
    page = reader("arrays.html?path=hour", java_script_enabled=False)
    assert not page.locator(".path-bar").count()
    expect(page.get_by_role("heading", name="Divisibility")).to_be_visible()
