"""The site of the real book in a real browser, as readers use it: by pointer, by keyboard, narrow,
dark, on paper.

Chromium is the system's own. The site is served compressed and below "/book/", as GitHub Pages
would. A page that breaks its own policy says so in the console, and a test here fails for every
word there.
"""

import json
import re
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import pytest
import yaml
from places import ROOT
from playwright.sync_api import expect
from repository import BOOK
from waiting import SOON, wait_until

from bookbinder.read import address, excerpts

WHERE = address.of(BOOK.config)
CHAPTERS = [chapter.name for chapter in BOOK.chapters]
SHORT_TITLES = {
    Path(chapter["file"]).name: chapter["title"]
    for part in yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))["parts"]
    for chapter in part["chapters"]
}
PAGES = [*CHAPTERS, "genindex", "search"]
expect.set_options(timeout=SOON * 1000)
DESK = {"viewport": {"width": 1280, "height": 800}}
SCREENS = {
    "1280px": DESK,
    "360px": {"viewport": {"width": 360, "height": 740}},
}
WIDE = {
    "1440px": {"viewport": {"width": 1440, "height": 900}},
    "1920px": {"viewport": {"width": 1920, "height": 1080}},
}


def none(found):
    """Fail with a line for each thing that was found."""
    found = list(found)
    assert not found, "\n".join(["", *found])


@pytest.fixture
def reader(browser, home):
    """Open a page as a new reader: `reader("arrays")`, with Playwright's options for the screen and
    its owner.
    """
    contexts = []

    def open_page(name, **options):
        contexts.append(browser.new_context(**(DESK | options), base_url=home))
        page = contexts[-1].new_page()
        page.set_default_timeout(SOON * 1000)
        page.goto(f"{name}.html")
        return page

    yield open_page
    for context in contexts:
        context.close()


# --- Every page, on every screen ------------------------------------------------------------------

WATCH_SHIFTS = """
window.shifts = [];
const name = (node) => !node ? "?" : node.nodeType === 1 ? node.cloneNode(false).outerHTML : node.textContent;
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) {
    // What Lighthouse rounds to nothing: a page that is painted while it comes in may move a button by a third of it.
    if (shift.value < 0.001) continue;
    window.shifts.push(`${shift.value.toFixed(5)}: ${shift.sources.map((s) => name(s.node)).join(", ")}`);
  }
}).observe({ type: "layout-shift", buffered: true });
"""  # noqa: E501
SETTLED = "document.fonts.ready.then(() => new Promise((done) => setTimeout(done, 100)))"
# What is wider than the document, but for what scrolls in its own box.
TOO_WIDE = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  const scrolls = (e) => e && e !== document.body
    && (getComputedStyle(e).overflowX !== "visible" || scrolls(e.parentElement));
  const wide = [...document.querySelectorAll("body *")].filter((e) => {
    const box = e.getBoundingClientRect();
    return box.width && box.right > width + 0.5 && !scrolls(e.parentElement);
  });
  const inner = wide.filter((e) => !wide.some((other) => other !== e && e.contains(other)));
  return [`the document is ${document.documentElement.scrollWidth} px wide`]
    .concat(inner.map((e) => `${Math.round(e.getBoundingClientRect().right)} px: ${e.outerHTML.slice(0, 150)}`));
}"""  # noqa: E501


class Visit:
    """A page that was opened once, by its name and its screen, and all that happened meanwhile."""

    def __init__(self, browser, home, name, screen):
        self.name, self.screen, self.home = name, screen, home
        self.context = browser.new_context(**(SCREENS | WIDE)[screen])
        self.context.add_init_script(WATCH_SHIFTS)
        self.page = self.context.new_page()
        self.said, self.asked, self.failed = [], [], []
        self.page.on(
            "console", lambda m: self.said.append(f"{m.type}: {m.text} ({m.location['url']})")
        )
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on(
            "requestfailed", lambda request: self.failed.append(f"{request.url}: {request.failure}")
        )
        self.page.on(
            "response",
            lambda r: self.failed.append(f"{r.url}: {r.status}") if r.status >= 400 else None,
        )
        self.page.goto(f"{home}{name}.html")
        self.page.evaluate(SETTLED)
        expect(self.page.locator("[aria-busy=true]")).to_have_count(0)  # what a Worker computes


VISITS = [(name, screen) for name in PAGES for screen in SCREENS]


@pytest.fixture(scope="module", params=VISITS, ids="-".join)
def visit(request, browser, home):
    visit = Visit(browser, home, *request.param)
    yield visit
    visit.context.close()


def test_the_console_holds_no_error_and_no_warning(visit):
    none(said for said in visit.said if said.startswith(("error", "warning")))


def test_all_that_a_page_asks_for_comes_from_its_own_host(visit):
    none(visit.failed)
    assert len(visit.asked) > 1
    own = (visit.home, "data:", "blob:" + visit.home.removesuffix("book/"))
    none(url for url in visit.asked if not url.startswith(own))


def test_nothing_moves_while_a_page_loads(visit):
    none(visit.page.evaluate("window.shifts"))


@pytest.fixture
def slow_home(site):
    """An address whose pages come in piece by piece, over most of a second, as over a slow line."""

    class Slowly(SimpleHTTPRequestHandler):
        def copyfile(self, source, out):
            for piece in iter(lambda: source.read(8192), b""):
                out.write(piece)
                out.flush()
                if self.path.endswith(".html"):
                    time.sleep(0.04)

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Slowly, directory=site)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("screen", ["1920px", "1440px", "1280px", "360px"])
@pytest.mark.parametrize("name", ["index", "arrays", "planner"])
def test_nothing_moves_while_a_page_comes_in_slowly(browser, slow_home, name, screen):
    slow = Visit(browser, slow_home, name, screen)
    none(slow.page.evaluate("window.shifts"))
    slow.context.close()


def test_a_page_begins_on_its_first_screen(visit):
    """A heading, a line of facts, and two lines of the text."""
    if visit.page.locator("article p:not(.facts)").count():
        first = visit.page.locator("article p:not(.facts)").first.bounding_box()
        assert first["y"] + 50 <= visit.page.viewport_size["height"]


def test_a_page_is_never_wider_than_its_screen(visit):
    none(visit.page.evaluate(TOO_WIDE))
    if visit.screen == "1280px":  # and as wide as that is at 200 %
        visit.page.set_viewport_size({"width": 640, "height": 400})
        none(visit.page.evaluate(TOO_WIDE))
        visit.page.set_viewport_size(SCREENS["1280px"]["viewport"])


FOREIGN = """(expected) => {
  const forbidden = [];
  document.addEventListener("securitypolicyviolation", (event) => forbidden.push(event.effectiveDirective));
  const add = (tag, attributes) => document.head.append(Object.assign(document.createElement(tag), attributes));
  add("script", { src: "https://example.org/a.js" });
  add("script", { textContent: "window.ran = true" });
  add("link", { rel: "stylesheet", href: "https://example.org/a.css" });
  add("style", { textContent: "body { color: red }" });
  add("img", { src: "https://example.org/a.png" });
  add("iframe", { src: "https://example.org/" });
  fetch("https://example.org/").catch(() => {});
  return new Promise((done) => {
    const look = () => forbidden.length >= expected || performance.now() > end
      ? setTimeout(() => done({ forbidden: forbidden.sort(), ran: window.ran === true }), 200)  // and no more come
      : setTimeout(look, 50);
    const end = performance.now() + 20000;
    look();
  });
}"""  # noqa: E501


def test_a_page_forbids_what_is_not_its_own(reader, site):
    page = reader("arrays")
    for place in (page.url, (site / "arrays.html").as_uri()):
        page.goto(place)
        found = page.evaluate(FOREIGN, 7)
        where = ["connect-src", "frame-src", "img-src", "script-src-elem", "style-src-elem"]
        assert (
            sorted(set(found["forbidden"])) == where
            and len(found["forbidden"]) == 7
            and not found["ran"]
        )


@pytest.fixture(scope="module")
def axe(npm):
    """The source of axe-core."""
    return (npm / "axe-core" / "axe.min.js").read_text("utf-8")


# A page has thousands of words of code in a dozen colours, which would take axe minutes. One of
# each colour in each kind of box stays an element of its own.
ONE_OF_EACH = """() => {
  const seen = new Set();
  for (const word of document.querySelectorAll(".highlight pre span[class]")) {
    const box = word.closest("[class*=highlight-], .output, .cell_input")?.className;
    const kind = `${word.className} in ${word.parentElement.className} in ${box}`;
    if (seen.has(kind) && !word.children.length) word.replaceWith(word.textContent); else seen.add(kind);
  }
  // Behind a shadow axe judges no colour; the shadow is where code goes on, beside the words.
  for (const box of document.querySelectorAll("article *")) {
    if (getComputedStyle(box).backgroundImage.includes("gradient")) box.style.backgroundImage = "none";
  }
}"""  # noqa: E501
RUN_AXE = """async ([only, without]) => {
  const options = { resultTypes: ["violations", "incomplete"], preload: false };
  if (only) options.runOnly = { type: "rule", values: only };
  options.rules = Object.fromEntries(without.map((rule) => [rule, { enabled: false }]));
  // Off by default, and asked where one points with a finger.
  if (!only && innerWidth < 500) options.rules["target-size"] = { enabled: true };
  const found = await axe.run(document, options);
  const unseen = found.incomplete.map((one) => ({ ...one, nodes: one.nodes.filter((node) => node.any[0]?.data?.messageKey === "bgGradient") }));
  return [...found.violations, ...unseen].flatMap(({ id, help, helpUrl, nodes }) =>
    nodes.map((node) => `${id}: ${node.target.join(" ")}: ${node.failureSummary} (${help}: ${helpUrl})`));
}"""  # noqa: E501
# all that can differ between light and dark; they take longest
COLOURS = ["color-contrast", "link-in-text-block"]


def barriers(page, axe, scheme="light", only=None, without=()):
    """What axe finds with some of its rules, or without some."""
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    wait_until_dark(page, scheme == "dark")
    if not page.evaluate("'axe' in window"):
        page.evaluate(ONE_OF_EACH)
        page.evaluate(axe)
    return page.evaluate(RUN_AXE, [only, list(without)])


def test_axe_finds_no_barrier(visit, axe):
    """Every page light on a wide screen and dark on a narrow one, and with all rules but those for
    colours on both.
    """
    wide = visit.screen == "1280px"
    none(barriers(visit.page, axe, without=() if wide else COLOURS))
    if not wide:
        none(barriers(visit.page, axe, "dark", COLOURS))


# What only a wide screen shows, such as the list of chapters, is the same on all pages.
@pytest.mark.parametrize("screen, scheme", [("1280px", "dark"), ("360px", "light")])
@pytest.mark.parametrize("name", ["index", "arrays", "explorer", "search"])
def test_axe_finds_no_colour_too_weak(reader, axe, name, screen, scheme):
    none(barriers(reader(name, **SCREENS[screen]), axe, scheme, COLOURS))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "address", ["fit?fsdp=4&tensor=4~fsdp=16&tensor=1", "matmul?c=x,-~c=-,-", "layout?shape=9,16"]
)
def test_axe_finds_no_barrier_in_what_the_explorer_makes(reader, axe, address, scheme):
    """Two states side by side, and a refusal."""
    page = reader("explorer", color_scheme=scheme)
    page.goto(f"explorer.html#{address}")
    shown = page.locator(
        f"[data-explorer={address.partition('?')[0]}] .explorer-words"
    ).inner_text()
    assert shown.startswith("Compared" if "~" in address else "JAX refuses")
    none(barriers(page, axe, scheme, COLOURS if scheme == "dark" else None))


# --- Light and dark -------------------------------------------------------------------------------


IS_DARK = """() => {
  const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0);
  let ground = document.querySelector("main");
  const behind = (e) => getComputedStyle(e).backgroundColor;
  while (ground.parentElement && /, 0\\)$/.test(behind(ground))) ground = ground.parentElement;
  return light(behind(ground)) < light(getComputedStyle(document.querySelector("main p")).color);
}"""  # noqa: E501


def wait_until_dark(page, dark=True):
    """Until the ground behind the text is darker than the text, or lighter."""
    page.wait_for_function(f"dark => ({IS_DARK})() === dark", arg=dark)


def choose(page, dark, press):
    """Press the switch until the page is as wanted by choice, whatever the system prefers."""
    for _ in range(3):
        press()
        if page.evaluate(IS_DARK) == dark:
            # a choice must not yield to it
            page.emulate_media(color_scheme="light" if dark else "dark")
            page.wait_for_timeout(100)
            if page.evaluate(IS_DARK) == dark:
                return
    raise AssertionError(f"pressed three times, and the page is not {'dark' if dark else 'light'}")


def test_without_a_choice_a_page_is_dark_where_the_system_is(reader):
    page = reader("index", color_scheme="dark")
    wait_until_dark(page)
    page.emulate_media(color_scheme="light")
    wait_until_dark(page, False)
    page.emulate_media(color_scheme="dark")
    wait_until_dark(page)


@pytest.mark.parametrize("how", ["pointer", "keyboard"])
def test_a_choice_of_light_or_dark_is_kept_over_reloads_and_pages(reader, how):
    page = reader("index", color_scheme="light", reduced_motion="reduce")
    switch = page.locator(".mode:visible")
    expect(switch).to_have_accessible_name(re.compile(r"color|colour|theme|dark", re.IGNORECASE))
    for dark in (True, False):
        choose(
            page,
            dark,
            (lambda: switch.click()) if how == "pointer" else (lambda: switch.press("Enter")),
        )
        page.reload()
        wait_until_dark(page, dark)
        page.goto("arrays.html")
        wait_until_dark(page, dark)
        page.goto("index.html")


def test_a_dark_page_is_dark_before_its_scripts_have_come(reader):
    """No flash of white: what sets the theme stands in the page, before anything is shown."""
    page = reader("index", color_scheme="dark")
    page.route(re.compile(r"\.js\b"), lambda route: route.abort())
    page.goto("arrays.html")
    assert page.evaluate(IS_DARK)


# --- Ways through the book ------------------------------------------------------------------------


def test_next_leads_from_the_first_page_to_the_last_and_previous_back(reader):
    page = reader(CHAPTERS[0])
    expect(page.locator("a.prev")).to_have_count(0)
    for before, name in pairwise(CHAPTERS):
        page.locator("a.next").click()
        page.wait_for_url(f"**/{name}.html")
        assert page.locator("a.prev").evaluate("link => link.href").endswith(f"/{before}.html")
    expect(page.locator("a.next")).to_have_count(0)
    page.locator("a.prev").click()
    page.wait_for_url(f"**/{CHAPTERS[-2]}.html")


def test_the_sidebar_names_every_chapter_and_shows_where_one_is(reader):
    page = reader("arrays")
    links = page.locator("#chapters li a")
    found = [
        Path(link.split("#")[0]).stem
        for link in links.evaluate_all("links => links.map(link => link.href)")
    ]
    assert found == CHAPTERS
    here = page.locator("#chapters li a.current")
    assert here.evaluate_all("links => links.map(link => link.textContent.trim())") == [
        SHORT_TITLES["arrays"]
    ]
    links.nth(CHAPTERS.index("manual")).click()
    page.wait_for_url("**/manual.html")


TITLE = "h1 => h1.firstChild.textContent.trim()"
IN_SIGHT = """(e) => {
  const box = e.getBoundingClientRect();
  const top = document.elementFromPoint(box.left + 5, box.top + box.height / 2);
  return box.top >= 0 && box.bottom <= innerHeight && (e.contains(top) || e === top);
}"""


@pytest.mark.parametrize("screen", ["1280px", "360px"])
def test_links_to_parts_of_this_page_bring_them_in_sight(reader, screen):
    page = reader("collectives", **SCREENS[screen])
    number = page.locator("article h2").count()
    for at in (0, number // 2, number - 1):
        if screen == "360px":
            page.locator(".for-sections:visible").first.click()
        links = page.locator("#sections > ul > li > a:visible")
        expect(links).to_have_count(number)
        links.nth(at).click()
        # what was opened for this is closed again
        expect(links.first).to_be_visible(visible=screen == "1280px")
        heading = page.locator("article h2").nth(at)
        page.wait_for_function(f"e => ({IN_SIGHT})(e)", arg=heading.element_handle())


NARROW_COLUMNS = """() => [...document.querySelectorAll("article .table td, article .table th")].filter((cell) => {
    const style = getComputedStyle(cell), digit = document.createElement("span");
    digit.textContent = "0";
    cell.append(digit);
    const room = cell.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const characters = room / digit.getBoundingClientRect().width;
    digit.remove();
    return cell.checkVisibility() && cell.innerText.trim().length >= 12 && characters < 11.5;
}).map((cell) => cell.innerText)"""  # noqa: E501


@pytest.mark.parametrize("name", ["auto", "from_old_jax", "status"])
def test_no_column_of_text_is_narrower_than_twelve_characters(reader, name):
    page = reader(name, viewport={"width": 390, "height": 800})
    assert page.locator("article .table td").count() > 10
    none(page.evaluate(NARROW_COLUMNS))


# Cells of reports that take more than one line, except those that stand below a row, over all
# columns.
WRAPPED = """() => [
    ...document.querySelectorAll(".cell_output .dataframe :is(th, td):not([colspan])")
].filter((cell) => {
    const all = document.createRange();
    all.selectNodeContents(cell);
    return new Set([...all.getClientRects()].map((box) => Math.round(box.bottom / 6))).size > 1;
}).map((cell) => cell.innerText)"""


@pytest.mark.parametrize("name", ["diagnose", "shardlab"])
def test_rows_of_a_report_are_lines_on_a_wide_screen(reader, name):
    page = reader(name, viewport={"width": 1440, "height": 900})
    assert (
        page.locator(".cell_output td[colspan]").count() > 3
        and page.locator(".dataframe td").count() > 30
    )
    none(page.evaluate(WRAPPED))
    none(page.evaluate(TOO_WIDE))


# Tables that go on to the side, and have no shaded edge there.
UNMARKED = """() => [...document.querySelectorAll("article table")].filter((table) => {
    let box = table;
    while (box && getComputedStyle(box).overflowX !== "auto") box = box.parentElement;
    const marked = box && getComputedStyle(box).backgroundImage.includes("gradient");
    return !box || (box.scrollWidth > box.clientWidth + 1 && !marked);
}).map((table) => table.innerText.slice(0, 80))"""
SCROLLING = """() => [...document.querySelectorAll("article :has(> table)")].filter((box) =>
    box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX === "auto").length"""


# Cells that no reader of a phone would know the column of.
UNNAMED = """() => [
    ...document.querySelectorAll("table.stacked > tbody > tr > td")
].filter((cell) =>
    cell.checkVisibility() && cell.previousElementSibling && !cell.hasAttribute("colspan")
    && getComputedStyle(cell, "::before").content === "none").map((cell) => cell.innerText)"""


@pytest.mark.parametrize("name", ["diagnose", "from_old_jax", "status", "ledger", "zero"])
def test_a_table_that_is_wider_than_a_phone_stands_there_row_by_row(reader, name):
    """And one that scrolls all the same, since it has no heads, shows that."""
    page = reader(name, viewport={"width": 390, "height": 800})
    assert page.locator("table.stacked").count()
    heads = "all => all.filter((head) => head.checkVisibility()).length"
    assert not page.locator("table.stacked thead").evaluate_all(heads)
    none(page.evaluate(UNMARKED))
    none(page.evaluate(UNNAMED))
    assert not page.evaluate(SCROLLING)
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.locator("table.stacked thead").evaluate_all(heads)


@pytest.mark.parametrize("screen", [DESK, SCREENS["360px"]], ids=["desk", "phone"])
def test_of_a_long_table_the_first_rows_show_or_those_that_one_looks_for(reader, screen):
    page = reader("ledger", **screen)
    rows = page.locator("table.many").first.locator("tbody > tr")
    every = rows.count()
    assert every > 24 and sum(row.is_visible() for row in rows.all()) == 12
    last = rows.last.inner_text().split("\n")[0].split("\t")[0] or rows.last.text_content()[:12]
    page.get_by_role("searchbox", name="Filter the rows").first.fill(last)
    expect(rows.last).to_be_visible()
    shown = [row for row in rows.all() if row.is_visible()]
    assert 0 < len(shown) < every
    assert all(last.lower() in row.text_content().lower() for row in shown)
    page.get_by_role("searchbox", name="Filter the rows").first.fill("")
    assert sum(row.is_visible() for row in rows.all()) == 12
    page.get_by_role("button", name=f"All {every} rows").first.click()
    assert all(row.is_visible() for row in rows.all())


def test_without_scripts_a_long_table_is_whole(reader):
    page = reader("ledger", java_script_enabled=False)
    assert all(row.is_visible() for row in page.locator("table.many").first.locator("tr").all())
    expect(page.locator(".rows").first).to_be_hidden()


def test_a_finger_finds_what_a_pointer_must_hover_over(reader):
    page = reader("arrays", has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844})
    for kind in (".highlight .copy", "article h2 > .headerlink"):
        one = page.locator(kind).first
        one.scroll_into_view_if_needed()
        assert one.evaluate("e => getComputedStyle(e).opacity") == "1", kind
        assert one.bounding_box()["width"] >= 24 and one.bounding_box()["height"] >= 24, kind
    one.tap()
    assert page.url.endswith(page.locator("article h2 > .headerlink").first.get_attribute("href"))
    none(page.evaluate(TOO_WIDE))


@pytest.mark.parametrize("width", [390, 1440])
def test_remarks_stand_beside_the_text_where_there_is_room(reader, width):
    page = reader("auto", viewport={"width": width, "height": 900})
    remark, text = page.locator("aside.margin").first, page.locator("aside.margin + p").first
    left, end = remark.bounding_box()["x"], text.bounding_box()["x"] + text.bounding_box()["width"]
    assert (left > end) == (width == 1440)
    none(page.evaluate(TOO_WIDE))


def test_a_mistake_is_reported_with_the_section_where_one_is(reader):
    page = reader("collectives", **SCREENS["1280px"])
    heading = page.locator("article h2").nth(3)
    page.locator("#sections > ul > li > a").nth(3).click()
    said = quote(f'collectives: "{heading.evaluate("e => e.firstChild.textContent")}"', safe="")[
        :40
    ]
    link = page.get_by_role("link", name="Report a mistake in this section")
    expect(link).to_have_attribute(
        "href", re.compile(rf"issues/new\?template=wrong\.yml&where={re.escape(said)}")
    )


def test_the_sidebar_of_a_narrow_screen_opens_and_closes(reader):
    page = reader("arrays", **SCREENS["360px"])
    button = page.locator(".for-chapters:visible").first
    expect(button).to_have_accessible_name(
        re.compile(r"navigation|chapters|contents|sidebar", re.IGNORECASE)
    )
    link = page.locator("#chapters").get_by_role("link", name=SHORT_TITLES["manual"], exact=True)
    expect(link).to_be_hidden()
    button.click()
    expect(link).to_be_visible()
    none(page.evaluate(TOO_WIDE))
    page.keyboard.press("Escape")
    expect(link).to_be_hidden()
    expect(button).to_be_focused()
    button.press("Enter")
    expect(link).to_be_visible()
    page.mouse.click(350, 400)  # beside it
    expect(link).to_be_hidden()
    button.click()
    link.click()
    page.wait_for_url("**/manual.html")
    expect(link).to_be_hidden()


def test_the_sidebar_of_a_narrow_screen_has_a_button_that_closes_it(reader):
    """Who has neither a keyboard nor a steady hand."""
    page = reader("arrays", **SCREENS["360px"])
    page.locator(".for-chapters:visible").first.click()
    sidebar = page.locator("#chapters")
    expect(sidebar).to_be_visible()
    sidebar.get_by_role("button", name=re.compile("close", re.IGNORECASE)).click()
    expect(sidebar).to_be_hidden()


def test_the_first_key_leads_past_the_navigation(reader):
    page = reader("arrays")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to main content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


SEEN_FOCUS = """async () => {
  const e = document.activeElement;
  if (!e || e === document.body) return "gone";
  const box = e.getBoundingClientRect();
  const style = getComputedStyle(e);
  const seen = e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && box.width * box.height > 0;
  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const mark = ring || style.boxShadow !== "none" || style.textDecorationLine !== "none";
  return seen && mark ? "" : `${e.outerHTML.slice(0, 150)}: ${seen ? "no mark of the focus" : "not to be seen"}`;
}"""  # noqa: E501


@pytest.mark.parametrize("screen", ["1280px", "360px"])
def test_the_keyboard_is_always_somewhere_to_be_seen(reader, screen):
    page = reader("collectives", reduced_motion="reduce", **SCREENS[screen])
    for _ in range(90):
        page.keyboard.press("Tab")
        if page.evaluate(SEEN_FOCUS) == "gone":
            break
        # Some fade in.
        wait_until(lambda: not page.evaluate(SEEN_FOCUS), lambda: page.evaluate(SEEN_FOCUS), SOON)


def test_a_missing_page_leads_back_to_the_book(reader, home):
    page = reader("index")
    answer = page.goto("no/such/page.html")
    assert answer.status == 404
    assert "text/html" in answer.headers["content-type"], "there is no 404.html"
    expect(page.locator("h1")).to_be_visible()
    # not the column of the chapters' list, which is not here
    assert page.locator("main").bounding_box()["width"] > 600
    assert page.locator("article").get_by_role("link").first.get_attribute("href") == WHERE.page(
        "index"
    )
    expect(page.get_by_role("searchbox", name="Search the book")).to_be_visible()
    none(page.evaluate(TOO_WIDE))
    leads_to = page.locator("a[href]").evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    )
    relative = [where for where in leads_to if not where.startswith(("https://", "#"))]
    assert not relative, "on this page, which is shown anywhere, relative links lead nowhere"


def test_pages_have_an_icon_and_say_what_they_are_about(reader):
    page = reader("index")
    for name in ("index", "arrays"):
        page.goto(f"{name}.html")
        icons = page.locator('head link[rel~="icon"]').evaluate_all(
            "links => links.map(link => link.href)"
        )
        assert icons, f"{name}: no icon, so browsers ask for favicon.ico in vain"
        assert page.request.get(icons[0]).ok
        about = page.locator('head meta[name="description"]').evaluate_all(
            "tags => tags.map(tag => tag.content)"
        )
        assert len(about) == 1 and 50 <= len(about[0]) <= 300, f"{name}: {about}"


# --- What a chapter offers ------------------------------------------------------------------------

FOLDS = "article :is(.admonition, details):is(.dropdown, .solution, .hint)"


def inside(fold):
    """What a fold hides: its last child that is no button."""
    return fold.locator(":scope > :not(summary, button, .admonition-title)").last


@pytest.mark.parametrize("how", ["pointer", "keyboard"])
@pytest.mark.parametrize("kind", ["hint", "solution"])
def test_hints_and_solutions_unfold_and_fold(reader, kind, how):
    page = reader("arrays")
    folds = page.locator(f"article .dropdown.{kind}")
    assert folds.count() >= 2
    fold = folds.first
    summary = fold.locator(":scope > summary")  # of which browsers say that it unfolds
    press = summary.click if how == "pointer" else lambda: summary.press("Enter")
    expect(inside(fold)).to_be_hidden()
    press()
    expect(inside(fold)).to_be_visible()
    expect(inside(folds.nth(1))).to_be_hidden()
    press()
    expect(inside(fold)).to_be_hidden()


@pytest.mark.parametrize("how", ["pointer", "keyboard"])
def test_hidden_code_unfolds(reader, how):
    chapter = next(c for c in BOOK.chapters if "hide-input" in c.text and c.name != "writing")
    page = reader(chapter.name)
    fold = page.locator("article .tag_hide-input details").first
    code = fold.locator("pre").first
    expect(code).to_be_hidden()
    (
        fold.locator("summary").click
        if how == "pointer"
        else lambda: fold.locator("summary").press("Enter")
    )()
    expect(code).to_be_visible()


@pytest.mark.parametrize("how", ["pointer", "keyboard"])
@pytest.mark.parametrize("name", ["arrays", "costs", "processes"])
def test_the_copy_button_copies_the_code_and_nothing_else(reader, name, how):
    page = reader(name, permissions=["clipboard-read", "clipboard-write"])
    page.evaluate(
        "document.querySelectorAll('article details').forEach((fold) => { fold.open = true; })"
    )
    for number in (0, 3):
        box = page.locator("article .cell").nth(number)
        box.scroll_into_view_if_needed()
        button = box.locator("button.copy")
        if how == "pointer":
            box.hover()
            expect(button).to_have_css("opacity", "1")
            button.click()
        else:
            button.focus()
            expect(button).to_have_css("opacity", "1")
            page.keyboard.press("Enter")
        expect(button).to_have_accessible_name(re.compile("cop", re.IGNORECASE))
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.strip() == BOOK.chapter(f"book/{name}.md").cells[number].source.strip()


def test_functions_to_copy_are_offered_with_all_that_they_need(reader):
    page = reader("stencils", permissions=["clipboard-read", "clipboard-write"])
    (excerpt, *_) = excerpts.of_chapter(BOOK.chapter("stencils"))
    button = page.locator("button.copy.whole").first
    button.scroll_into_view_if_needed()
    expect(button).to_have_css("opacity", "1")  # without a pointer on its cell
    expect(button).to_have_accessible_name(f"Copy with imports: {excerpt.names[0]}")
    button.click()
    expect(button).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert excerpt.needs and copied.split() == excerpt.code.split()
    compile(copied, "pasted", "exec")


def test_the_copy_button_copies_an_example_without_prompts_and_results(reader):
    page = reader("reference", permissions=["clipboard-read", "clipboard-write"])
    box = page.locator("article .highlight-python", has_text="error.message").first
    box.scroll_into_view_if_needed()
    box.hover()
    box.locator("button.copy").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "with raises(ZeroDivisionError) as error:\n    1 / 0\n\nerror.message"


def test_buttons_for_colab_and_downloads_lead_there(reader):
    page = reader("collectives")
    page.context.route(
        re.compile("^https:"), lambda route: route.fulfill(body="there", content_type="text/plain")
    )
    colab, notebook = WHERE.colab("collectives"), WHERE.notebook("collectives")

    def leads_to(link, url):
        expect(link).to_have_attribute("href", url)
        asked = []
        page.context.once("request", lambda request: asked.append(request.url))
        if link.get_attribute("target") == "_blank":
            with page.context.expect_page() as popup:
                link.click()
            popup.value.wait_for_load_state()
            popup.value.close()
        else:
            link.click()
            page.wait_for_url(url)
            page.go_back()
        assert asked == [url]

    leads_to(page.get_by_role("link", name="Open in Colab"), colab)
    leads_to(page.get_by_role("link", name="Download the notebook"), notebook)
    leads_to(
        page.get_by_role("link", name="Source"), WHERE.file("book/collectives.md", WHERE.branch)
    )
    leads_to(page.get_by_role("link", name="Edit this page"), WHERE.edit("book/collectives.md"))


# --- Pictures in steps ----------------------------------------------------------------------------


@pytest.fixture
def steps(reader):
    """The first picture in steps of the chapter on collectives, with ways to look at it."""

    def open_steps(**options):
        page = reader("collectives", **options)
        box = page.locator("[data-steps]").first
        expect(box.locator(".steps-bar")).to_have_count(1)
        unfold(box)
        box.scroll_into_view_if_needed()
        return page, box, int(box.get_attribute("data-steps"))

    return open_steps


def unfold(box):
    """Open the answer that a picture may be."""
    box.evaluate("e => { const fold = e.closest('details'); if (fold) fold.open = true; }")


def shown(box):
    return box.locator(":scope > figure").evaluate_all(
        "all => all.flatMap((f, i) => f.checkVisibility() ? [i] : [])"
    )


def words(box, number):
    svg = box.locator(":scope > figure").nth(number).locator("svg").first
    return svg.evaluate(
        "e => `${e.querySelector('title').textContent}. ${e.querySelector('desc').textContent}`"
    )


@pytest.mark.parametrize("how", ["pointer", "keyboard"])
def test_steps_go_on_and_back_and_are_spoken(steps, how):
    page, box, count = steps()
    spoken = box.get_by_role("status")

    def press(name):
        button = box.get_by_role("button", name=name, exact=True)
        if how == "pointer":
            button.click()
        else:
            button.press("Enter")

    assert shown(box) == [0] and not spoken.inner_text()
    expect(box).to_have_attribute("role", "group")
    expect(box).to_have_accessible_name(f"A picture of {count} frames")
    for number in range(1, count):
        press("Next")
        assert shown(box) == [number]
        expect(spoken).to_have_text(words(box, number))
        expect(box).to_contain_text(f"{number + 1} of {count}")
    last = box.get_by_role("button", name="Next")
    expect(last).to_have_attribute("aria-disabled", "true")
    press("Back")
    assert shown(box) == [count - 2]
    expect(spoken).to_have_text(words(box, count - 2))
    press("All")
    assert shown(box) == list(range(count))
    press("One by one")
    assert shown(box) == [count - 2]


def test_steps_follow_the_arrow_keys_and_the_book_does_not(steps):
    page, box, count = steps()
    box.get_by_role("button", name="Next").focus()
    for key, number in [
        ("ArrowRight", 1),
        ("End", count - 1),
        ("ArrowRight", count - 1),
        ("Home", 0),
        ("ArrowLeft", 0),
    ]:
        page.keyboard.press(key)
        assert shown(box) == [number]
    assert page.url.endswith("/collectives.html")
    box.get_by_role("button", name="All").press("Enter")
    page.keyboard.press("ArrowRight")
    assert shown(box) == list(range(count))


def test_steps_play_to_the_end_and_can_be_paused(steps):
    page, box, count = steps()
    page.clock.install()  # time passes when we say so
    frame = 1200
    play = box.get_by_role("button", name="Play")
    play.click()
    page.clock.run_for(frame)
    assert shown(box) == [1]
    box.get_by_role("button", name="Pause").press("Enter")
    expect(box.get_by_role("status")).to_have_text(words(box, 1))
    page.clock.run_for(count * frame)
    assert shown(box) == [1]
    play.click()
    page.clock.run_for(count * frame)
    assert shown(box) == [count - 1]
    expect(play).to_be_visible()
    expect(box.get_by_role("status")).to_have_text(words(box, count - 1))
    play.click()  # from the start
    assert shown(box) == [0]


def test_who_wants_less_motion_steps_by_hand(steps):
    page, box, count = steps(reduced_motion="reduce")
    expect(box.get_by_role("button", name="Play")).to_have_count(0)
    box.get_by_role("button", name="Next").click()
    assert shown(box) == [1]
    page.emulate_media(reduced_motion="no-preference")
    expect(box.get_by_role("button", name="Play")).to_be_visible()


def test_a_film_plays_faster_and_has_no_ring(reader):
    page = reader("stencils")
    box = page.locator("[data-steps]:not([data-flow])").first
    expect(box.locator(".steps-bar")).to_have_count(1)
    expect(box.get_by_role("button", name="Devices on a ring")).to_have_count(0)
    count = int(box.get_attribute("data-steps"))
    assert shown(box) == [0] and count > 5
    page.clock.install()
    box.get_by_role("button", name="Play").click()
    page.clock.run_for(600)
    assert shown(box) == [1]
    page.clock.run_for(600 * count)
    assert shown(box) == [count - 1]
    expect(box.get_by_role("status")).to_have_text(words(box, count - 1))
    box.press("ArrowLeft")
    assert shown(box) == [count - 2]


@pytest.mark.parametrize("name", ["stencils", "particles", "transforms"])
def test_a_film_is_as_wide_as_the_text_and_no_higher_than_the_screen(reader, name):
    page = reader(name)
    box = page.locator("[data-steps]:not([data-flow])").first
    expect(box.locator(".steps-bar")).to_have_count(1)
    text = page.locator("article section > p").first.bounding_box()["width"]
    frame = box.locator("> figure:visible").bounding_box()
    assert abs(frame["width"] - text) < 2
    assert box.locator("> figure:visible svg").bounding_box()["height"] <= 0.8 * 800
    box.get_by_role("button", name="All").click()  # side by side, they are smaller
    assert box.locator("> figure:visible").first.bounding_box()["width"] < text / 1.5


def test_a_plot_that_is_wider_than_a_phone_fades_where_it_goes_on(reader):
    page = reader("ledger", **SCREENS["360px"])
    plot = page.locator(".cell_output:has(> .plot)").first
    assert plot.evaluate("e => e.scrollWidth > e.clientWidth")
    assert "gradient" in plot.evaluate("e => getComputedStyle(e).maskImage")
    plot.evaluate("e => { e.scrollLeft = e.scrollWidth; }")  # at its end the fade is beside it
    ends = plot.bounding_box(), plot.locator("> .plot").bounding_box()
    box, drawn = (one["x"] + one["width"] for one in ends)
    assert box - drawn >= 35


def flow(box):
    """What the picture was drawn from; of several flows the first."""
    return json.loads(box.get_attribute("data-flow"))[0]


def test_the_slider_goes_to_a_step(steps):
    page, box, count = steps()
    slider = box.get_by_role("slider", name="Step")
    slider.focus()
    for key, number in [
        ("ArrowRight", 1),
        ("End", count - 1),
        ("ArrowLeft", count - 2),
        ("Home", 0),
    ]:
        page.keyboard.press(key)
        assert shown(box) == [number]
        expect(slider).to_have_attribute("aria-valuetext", flow(box)["frames"][number]["title"])
    slider.click()  # in its middle
    assert shown(box) == [(count - 1) // 2]
    box.get_by_role("button", name="Next").click()
    expect(slider).to_have_value(str((count - 1) // 2 + 1))
    box.get_by_role("button", name="All").click()
    expect(slider).to_be_disabled()


# Press Next, stop all motion at its beginning and its end, and say where what moves is, and its
# slots.
FLIGHT = """([box, sends]) => {
  const at = (e) => {
    const { x, y, width, height } = e.getBoundingClientRect();
    return [x + width / 2, y + height / 2].map(Math.round);
  };
  [...box.querySelectorAll("button")].find((b) => b.textContent === "Next").click();
  const svg = [...box.querySelectorAll("figure")].find((f) => !f.hidden).querySelector("svg");
  const moving = svg.getAnimations({ subtree: true }), cells = [...svg.querySelectorAll("[data-slot]")];
  const many = cells.length / svg.querySelectorAll("circle").length;
  const flying = [...(svg.querySelector("[data-flight]")?.children ?? [])].slice(sends.length);
  const found = [0, 699.9].map((time) => {
    for (const one of moving) { one.pause(); one.currentTime = time; }
    return flying.map(at);
  });
  const slots = sends.map(([d, s, e, t]) => [at(cells[d * many + s]), at(cells[e * many + t])]);
  for (const one of moving) one.finish();
  return { found, slots, moving: moving.length };
}"""  # noqa: E501


@pytest.mark.parametrize("view", ["row", "ring"])
def test_what_was_sent_moves_from_where_it_was_to_where_it_arrives(steps, view):
    page, box, count = steps()
    if view == "ring":
        box.get_by_role("button", name="Devices on a ring").click()
    for frame in flow(box)["frames"][1:]:
        sends = frame["sends"]
        moved = page.evaluate(FLIGHT, [box.element_handle(), sends])
        assert len(sends) == len(moved["found"][0]) > 0
        for end in (0, 1):
            for place, slot in zip(moved["found"][end], moved["slots"], strict=True):
                assert place == pytest.approx(slot[end], abs=2)
        expect(box.locator("[data-flight]")).to_have_count(0)


def test_nothing_moves_for_who_wants_less_motion_nor_backwards(steps):
    page, box, count = steps(reduced_motion="reduce")
    frames = flow(box)["frames"]
    assert page.evaluate(FLIGHT, [box.element_handle(), frames[1]["sends"]])["moving"] == 0
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(FLIGHT, [box.element_handle(), frames[2]["sends"]])["moving"] > 0
    moving = (
        "e => { e.click(); return e.closest('[data-steps]').getAnimations({ subtree: true "
        "}).length }"
    )
    assert box.get_by_role("button", name="Back", exact=True).evaluate(moving) == 0


LABELS = (
    "e => [...e.querySelectorAll('[data-slot]')].map(s => s.querySelector('text')?.textContent ?? "
    "'')"
)


def test_the_devices_stand_on_a_ring_and_hold_the_same(steps):
    page, box, count = steps()
    frames = flow(box)["frames"]
    box.get_by_role("button", name="Devices on a ring").press("Enter")
    ring = box.locator(".steps-ring svg")
    for number in range(count):
        expect(ring).to_be_visible()
        assert ring.evaluate(LABELS) == box.locator("figure").nth(number).locator(
            "svg"
        ).first.evaluate(LABELS)
        expect(ring.locator("[data-sent]")).to_have_count(
            len({(a, b) for a, _, b, _ in frames[number]["sends"]})
        )
        expect(ring).to_have_accessible_name(words(box, number).split(". ")[0])
        if number < count - 1:
            box.get_by_role("button", name="Next").click()
    middles = ring.locator("circle").evaluate_all(
        "all => all.map(c => [c.cx.baseVal.value, c.cy.baseVal.value])"
    )
    assert (
        len(middles) == 4
        and len({round(x) for x, _ in middles}) == len({round(y) for _, y in middles}) == 3
    )
    box.get_by_role("button", name="Devices in a row").click()
    assert shown(box) == [count - 1]
    box.get_by_role("button", name="Devices on a ring").click()
    box.get_by_role("button", name="All").click()
    assert shown(box) == list(range(count))


def test_the_lines_of_code_of_a_step_are_lit(reader):
    page = reader("collectives")
    boxes = page.locator("[data-steps]:not([data-bytes])")
    lit = "[...CSS.highlights.get('lit')].map(String)"
    assert boxes.count() > 4 and page.evaluate(lit) == []
    for box in boxes.all():
        unfold(box)
        next_one = box.get_by_role("button", name="Next")
        for frame in flow(box)["frames"][1:]:
            next_one.click()
            assert page.evaluate(lit) == [text for _, text in frame["lines"]] != []
        # They are in the nearest code above the picture that has them.
        above = (
            "([box]) => [...CSS.highlights.get('lit')].every(r => "
            "box.compareDocumentPosition(r.endContainer) & 2)"
        )
        assert page.evaluate(above, [box.element_handle()])
        box.get_by_role("button", name="All").click()
        assert page.evaluate(lit) == []


@pytest.mark.parametrize("how", ["pointer", "keyboard"])
def test_the_rows_of_a_finding_are_lit(reader, how):
    page = reader("diagnose")
    findings = page.locator("li[data-place]")
    assert findings.count() > 0 and page.locator("tr.lit").count() == 0
    finding = findings.first
    unfold(finding)
    finding.hover() if how == "pointer" else finding.focus()
    lit = page.locator("tr.lit")
    expect(lit).not_to_have_count(0)
    place = finding.get_attribute("data-place")
    assert place in [row.locator("td").last.text_content() for row in lit.all()]
    page.locator("h1").hover() if how == "pointer" else finding.blur()
    expect(lit).to_have_count(0)


def test_an_all_reduce_on_the_number_of_devices_that_one_chooses(reader):
    page = reader("collectives")
    box = page.locator("[data-bytes]")
    counter, slider = box.locator("[data-counter]"), box.get_by_role("slider", name="Step")
    devices, array = (
        box.get_by_role("combobox", name="Devices"),
        box.get_by_role("spinbutton", name="Array, bytes"),
    )
    assert devices.locator("option").all_inner_texts() == [str(n) for n in range(2, 9)]
    for n in (2, 5, 8):
        devices.select_option(str(n))
        array.fill("1000000")
        expect(box.locator(".steps-ring circle")).to_have_count(n)
        expect(counter).to_contain_text(f"has sent 0 of {2 * (n - 1)} blocks")
        slider.focus()
        for step in range(1, 2 * (n - 1) + 1):
            page.keyboard.press("ArrowRight")
            expect(counter).to_contain_text(
                f"sent {step} of {2 * (n - 1)} blocks of {1e6 / n:,.0f} bytes: "
            )
            expect(counter).to_contain_text(f"bytes: {step * 1e6 / n:,.0f} bytes.")
            expect(box.locator(".steps-ring [data-sent]")).to_have_count(n)
        total = f"{2e6 * (n - 1) / n:,.0f}"
        expect(counter).to_contain_text(
            f"In all it sends {total} bytes; 2 × ({n} - 1) / {n} × 1,000,000 is {total}."
        )
        names = box.locator(".steps-ring").evaluate(LABELS)
        assert names == [f"Σ{'abcdefgh'[chunk]}" for _ in range(n) for chunk in range(n)]
        expect(box.get_by_role("status")).to_contain_text(
            f"step {2 * (n - 1)}, {n} devices. Device 0 sent Σ"
        )
    array.fill("0")
    expect(counter).to_contain_text("at least 1")
    expect(box.locator("figure:visible")).to_have_count(1)
    still = reader("collectives", java_script_enabled=False).locator("[data-bytes]")
    expect(still.locator("[data-counter]")).to_contain_text(
        "Each of 4 devices sends 6 blocks of 1,024 bytes"
    )


# --- Bars that depend on inputs -------------------------------------------------------------------

CHOOSING = {"zero": 2, "pipeline": 2, "serving": 3}  # chapters, and how many controls each has
BARS = """e => [...e.querySelectorAll("[data-row]")].map(
  row => [...row.querySelectorAll("[data-part]")].map(part => part.getBoundingClientRect().width))"""  # noqa: E501
TOTALS = "e => [...e.querySelectorAll('[data-total]')].map(total => total.textContent)"


def choosing(reader, name, **options):
    page = reader(name, **options)
    box = page.locator("[data-choices]")
    unfold(box)
    box.scroll_into_view_if_needed()
    return page, box, json.loads(box.get_attribute("data-choices"))


@pytest.mark.parametrize("name", CHOOSING)
def test_a_slider_moved_by_keyboard_changes_bars_numbers_and_what_is_said(reader, name):
    page, box, data = choosing(reader, name)
    spoken, svg, caption = box.get_by_role("status"), box.locator("svg"), box.locator("figcaption")
    sliders = box.get_by_role("slider")
    expect(sliders).to_have_count(CHOOSING[name])
    expect(spoken).to_have_text("")
    at, place = list(data["start"]), page.evaluate("scrollY")
    seen, has_moved = {tuple(box.evaluate(TOTALS))}, False  # a slider may begin at its end
    for number, (label, values, _) in enumerate(data["inputs"]):
        slider = box.get_by_role("slider", name=label, exact=True)
        slider.focus()
        for key, to in (
            ("End", len(values) - 1),
            ("ArrowLeft", len(values) - 2),
            ("Home", 0),
            ("ArrowRight", 1),
        ):
            page.keyboard.press(key)
            has_moved |= at[number] != to
            at[number] = to
            expect(slider).to_have_attribute("aria-valuetext", values[to])
            case = 0
            for where, (_, each, _) in zip(at, data["inputs"], strict=True):
                case = case * len(each) + where
            totals, widths = box.evaluate(TOTALS), box.evaluate(BARS)
            numbers_of_rows = data["cases"][case][: len(data["rows"])]
            notes = data["cases"][case][len(data["rows"]) :]
            for label_of_note, note in zip(data["words"], notes, strict=True):
                expect(spoken).to_contain_text(f"{label_of_note}: {note}" if has_moved else "")
            for total, bars, row, numbers in zip(
                totals, widths, data["rows"], numbers_of_rows, strict=True
            ):
                amount, *parts = numbers.lstrip("!").split(" ")
                assert total.startswith(f"{amount}{row[1]}") and (
                    "(over" in total
                ) == numbers.startswith("!")
                expected = [float(part.replace(",", "")) * row[2] for part in parts or [amount]]
                scale = svg.bounding_box()["width"] / 316
                if sum(expected) <= 314:
                    assert bars == pytest.approx([width * scale for width in expected], abs=1.5)
                else:
                    assert sum(bars) == pytest.approx(314 * scale, abs=4)
                expect(spoken).to_contain_text(total if has_moved else "")
            chosen = ", ".join(
                f"{name} {each[where]}"
                for (name, each, _), where in zip(data["inputs"], at, strict=True)
            )
            expect(caption).to_contain_text(chosen)
            expect(svg).to_have_accessible_name(re.compile(f"^{re.escape(chosen)}: "))
            seen.add(tuple(totals))
    assert len(seen) > 4 and page.evaluate("scrollY") == place


@pytest.mark.parametrize("name", CHOOSING)
@pytest.mark.parametrize("screen", SCREENS)
def test_the_script_redraws_what_stood_there_and_moves_nothing(reader, name, screen):
    """With a script and without one the first picture is the same, to the pixel of its words and
    bars.
    """
    with_it, without = (
        choosing(reader, name, java_script_enabled=on, **SCREENS[screen])[1] for on in (True, False)
    )
    expect(with_it).to_have_attribute("data-ready", "")
    expect(without.locator(".choices, [role=status]")).to_have_count(0)
    expect(without.locator("[data-still]")).to_be_visible()
    expect(with_it.locator("[data-still]")).to_be_hidden()
    words = (
        "e => [...e.querySelectorAll('title, desc, text, figcaption')].map(one => one.textContent)"
    )
    figures = [box.locator("figure").evaluate(words) for box in (with_it, without)]
    assert figures[0] == figures[1] and len(figures[0]) > 6
    for one, other in zip(*(box.evaluate(BARS) for box in (with_it, without)), strict=True):
        assert one == pytest.approx(other, abs=0.5)
    controls = with_it.locator(".choices").bounding_box()["height"]
    assert controls == CHOOSING[name] * 36 == with_it.locator(".choices label").count() * 36


# --- Pictures of arrays ---------------------------------------------------------------------------


@pytest.fixture
def arrays(reader):
    """The first row of several pictures in the chapter on arrays."""

    def open_row(**options):
        page = reader("arrays", **options)
        row = page.locator(".shardlab:has(figure + figure [data-says])").first
        expect(row.locator("[tabindex]").first).to_be_attached()
        unfold(row)
        row.scroll_into_view_if_needed()
        return page, row

    return open_row


MARKED = """e => {
  const found = { on: new Set(), off: new Set(), plain: new Set() };
  for (const tile of e.querySelectorAll("[data-device]")) found[tile.dataset.mark ?? "plain"].add(tile.dataset.device);
  return Object.fromEntries(Object.entries(found).map(([mark, devices]) => [mark, [...devices].sort()]));
}"""  # noqa: E501
EIGHT = [str(device) for device in range(8)]


def is_marked(row, device):
    """Whether all tiles of that device stand out, in all pictures of the row, and a line says what
    it holds.
    """
    line, others = row.locator(".tile-says"), [one for one in EIGHT if one != device]
    if device is None:
        expect(line).to_have_count(0)
        return row.evaluate(MARKED) == {"on": [], "off": [], "plain": EIGHT}
    expect(line).to_have_text(
        re.compile(rf"^device {device}, at x=\d, y=\d: rows \d+:\d+, columns \d+:\d+ \(P\(")
    )
    return row.evaluate(MARKED) == {"on": [device], "off": others, "plain": []}


def test_a_device_that_one_points_at_is_marked_in_all_pictures_of_the_row(arrays):
    page, row = arrays()
    assert row.locator("figure").count() > 1 and is_marked(row, None)
    below = page.locator("h2").nth(2).bounding_box()
    for device in ("5", "0"):
        row.locator(f'[data-device="{device}"]').first.hover()
        assert is_marked(row, device)
        marked = row.locator('[data-mark="on"]')
        assert marked.count() == row.locator(f'[data-device="{device}"]').count() >= 2
        for tile in marked.all():
            assert (
                tile.locator("rect").first.evaluate(
                    "e => parseFloat(getComputedStyle(e).strokeWidth)"
                )
                > 2
            )
    # The other picture's tile says its own slice, and nothing on the page has moved.
    other = row.locator("figure").nth(1).locator('[data-device="0"]')
    other.hover()
    expect(row.locator(".tile-says")).to_have_text(other.get_attribute("data-says"))
    assert page.locator("h2").nth(2).bounding_box() == below
    page.locator("h2").first.hover()
    assert is_marked(row, None)


def test_the_arrow_keys_lead_from_device_to_device_and_each_picture_is_one_stop(arrays):
    page, row = arrays()
    first = row.locator("figure").first
    assert [row.locator("figure").nth(i).locator('[tabindex="0"]').count() for i in (0, 1)] == [
        1,
        1,
    ]
    first.locator('[tabindex="0"]').focus()
    place = page.evaluate("scrollY")
    where = first.locator("[data-device]").evaluate_all(
        "all => all.map(e => { const r = e.getBoundingClientRect(); return [r.x, r.y, "
        "e.dataset.device] })"
    )
    rows = sorted({y for _, y, _ in where})
    grid = [
        [device for _, device in sorted((x, device) for x, y, device in where if y == at)]
        for at in rows
    ]
    assert len(grid) > 1 and len(grid[0]) > 1
    for key, device in [
        ("ArrowRight", grid[0][1]),
        ("ArrowDown", grid[1][1]),
        ("ArrowLeft", grid[1][0]),
        ("ArrowLeft", grid[1][0]),
        ("ArrowUp", grid[0][0]),
        ("End", where[-1][2]),
        ("Home", where[0][2]),
    ]:
        page.keyboard.press(key)
        assert is_marked(row, device)
        tile = first.locator('[tabindex="0"]')
        expect(tile).to_be_focused()
        expect(tile).to_have_attribute("aria-label", row.locator(".tile-says").inner_text())
    assert page.evaluate("scrollY") == place and page.url.endswith("/arrays.html")
    page.keyboard.press("Tab")
    expect(row.locator("figure").nth(1).locator('[tabindex="0"]')).to_be_focused()
    page.keyboard.press("Escape")
    assert is_marked(row, None)


def test_a_tapped_device_stays_marked_until_one_taps_elsewhere(arrays):
    page, row = arrays(has_touch=True, viewport={"width": 390, "height": 844})
    row.locator('[data-device="6"]').first.tap()
    assert is_marked(row, "6")
    row.locator("figcaption").first.tap()
    assert is_marked(row, None)


def test_without_javascript_each_tile_has_a_tip(reader):
    page = reader("arrays", java_script_enabled=False)
    for tile in page.locator("[data-says]:has(> title)").all()[:8]:
        assert re.match(r"device \d+: \[", tile.locator("title").text_content())
    assert (
        page.locator("[data-says] > title").count() > 50 and page.locator(".tile-says").count() == 0
    )


# --- Without JavaScript, and on paper -------------------------------------------------------------

COVERED = """all => all.filter((e) => !e.closest("details:not([open])"))
  .filter((e) => !e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || !e.clientWidth)
  .map((e) => e.outerHTML.slice(0, 150))"""  # noqa: E501


@pytest.mark.parametrize("screen", ["1280px", "360px"])
def test_without_javascript_a_chapter_can_be_read(reader, screen):
    page = reader("collectives", java_script_enabled=False, **SCREENS[screen])
    article = page.locator("article")
    for part in ("h1", "h2", "p", "pre:not(details pre)"):  # the first cell is folded
        expect(article.locator(part).first).to_be_visible()
    pictures = article.locator(':is(svg[role="img"], img)')
    assert pictures.count() > 20
    # Pictures in steps wait for their script, but not for ever.
    wait_until(
        lambda: not pictures.evaluate_all(COVERED), lambda: pictures.evaluate_all(COVERED), SOON
    )
    for fold in page.locator(FOLDS).all():
        if fold.locator(":scope > summary").count():
            fold.locator(":scope > summary").click()
        expect(inside(fold)).to_be_visible()
    useless = page.locator("button:visible:not([popovertarget])").evaluate_all(
        "all => all.map(e => e.cloneNode(false).outerHTML)"
    )
    assert not useless, f"without JavaScript these do nothing: {useless}"


def test_without_javascript_a_reader_gets_around(reader):
    page = reader("manual", java_script_enabled=False)
    page.locator("a.next").click()
    page.wait_for_url("**/collectives.html")
    page.locator("#chapters li a").first.click()
    page.wait_for_url("**/index.html")
    page.set_viewport_size(SCREENS["360px"]["viewport"])
    page.locator(".for-chapters").click()
    page.locator("#chapters").get_by_role("link", name=SHORT_TITLES["costs"]).click()
    page.wait_for_url("**/costs.html")
    page.goto("index.html")
    page.locator("article").get_by_role("link", name="Arrays and meshes").first.click()
    page.wait_for_url("**/arrays.html")
    page.locator("a.next").click()
    page.wait_for_url("**/auto.html")
    page.goto("search.html")
    says = re.compile("(activate|needs?|requires?) JavaScript")
    expect(page.locator("main")).to_contain_text(says, use_inner_text=True)


def test_on_paper_there_is_the_chapter_with_all_that_it_folds_and_nothing_to_press(reader):
    page = reader("collectives")
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("h1:visible")).to_have_count(1)
    for what in (
        ".top",
        "#chapters",
        "#sections",
        ".around",
        ".facts",
        ".place",
        "button",
        ".headerlink",
    ):
        seen = page.locator(f"{what}:visible").evaluate_all(
            "all => all.map(e => e.cloneNode(false).outerHTML)"
        )
        assert not seen, f"on paper: {seen[:3]}"
    for fold in page.locator(FOLDS).all():
        expect(inside(fold)).to_be_visible()
    expect(page.locator("article p:not(.facts, .place)").first).to_be_visible()
    for box in page.locator("[data-steps]").all():
        assert len(shown(box)) == int(box.get_attribute("data-steps"))
    hidden = page.locator("article pre").evaluate_all(
        "all => all.filter(e => !e.checkVisibility()).map(e => e.outerHTML.slice(0, 150))"
    )
    assert not hidden, f"code that paper lacks: {hidden}"
    wait_until_dark(page, False)


CUT_OFF = """() => [...document.querySelectorAll("main *")].filter((e) => {
  if (!e.clientWidth || !e.checkVisibility()) return false;
  const scrolls = getComputedStyle(e).overflowX !== "visible" && e.scrollWidth > e.clientWidth + 1;
  return scrolls || e.getBoundingClientRect().right > innerWidth + 1;
}).map((e) => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 40)}`)"""
ON_A4 = {"width": 703, "height": 1000}  # between the margins


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=lambda chapter: chapter.name)
def test_nothing_is_cut_off_on_paper(reader, chapter):
    """Where the screen scrolls sideways: wide tables, and what is printed in columns."""
    page = reader(chapter.name, viewport=ON_A4)
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(CUT_OFF) == []


def test_paper_is_white_even_for_those_who_read_in_the_dark(reader):
    page = reader("collectives", color_scheme="dark")
    wait_until_dark(page)
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert not page.evaluate(IS_DARK)
