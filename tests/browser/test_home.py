"""The home page: what a reader sees first, where it leads, its minutes, and the picture that
plays.
"""

import json
import re
from copy import copy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from bs4 import BeautifulSoup
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from places import ROOT
from playwright.sync_api import expect
from repository import BOOK
from waiting import SOON, wait_until

from bookbinder.page import home as home_page
from bookbinder.read import address, book
from shardlab import compare_specs

WHERE = address.of(BOOK.config)
PARTS = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))["parts"]
TITLES = {Path(one["file"]).name: one["title"] for part in PARTS for one in part["chapters"]}
TAUGHT = [
    Path(one["file"]).name
    for part in PARTS
    if part["caption"] != "Appendices"
    for one in part["chapters"]
]
DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
SPECS = ["P(None, None)", 'P("x", None)', 'P("x", "y")']
BYTES = [512, 256, 64]
expect.set_options(timeout=SOON * 1000)


@pytest.fixture(scope="module")
def page(site):
    """The page as it was built."""
    return BeautifulSoup((site / "index.html").read_text("utf-8"), "html.parser")


@pytest.fixture
def reader(open_page):
    """Open the home page: `reader(DESK)`, with Playwright's options for who reads."""
    return lambda viewport=DESK, **options: open_page("index.html", viewport=viewport, **options)


# --- Minutes and links ----------------------------------------------------------------------------


def minutes(names):
    return sum(BOOK.chapter(name).minutes for name in names)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "1 minute"),
        (44, "44 minutes"),
        (89, "89 minutes"),
        (90, "1½ hours"),
        (100, "1½ hours"),
        (270, "4½ hours"),
    ],
)
def test_a_time_is_said_in_words(count, words):
    assert book.in_words(count) == words


def test_words_and_lines_of_code_take_time_and_exercises_a_time_of_their_own(tmp_path):
    (tmp_path / "book").mkdir()
    fence = "`" * 3
    text = "---\nkernelspec: {name: a}\n---\n# A title\n\n" + "word " * 600
    code = (
        f"\n\n{fence}{{code-cell}}\n{'x ' * 900}\n{fence}\n\n{fence}bash\n{'y ' * 900}\n{fence}\n"
    )
    for tag, minutes in (("a", 2), ("hide-input", 5)):
        lines = "x = 1\n" * minutes * book.LINES_A_MINUTE
        code += f"\n{fence}{{code-cell}} ipython3\n:tags: [{tag}]\n\n{lines}{fence}\n"
    for stars in ("★", "★★★"):
        code += (
            f"\n{fence}{{exercise-start}} Do it "
            f"{stars}\n{fence}\n{'w ' * 900}\n{fence}{{exercise-end}}\n{fence}\n"
        )
    solution = (
        f"\n{fence}{{solution-start}} a\n{fence}\n{'z ' * 900}\n{fence}{{solution-end}}\n{fence}\n"
    )
    (tmp_path / "book" / "one.md").write_text(text + code + solution + "\n" + "more " * 200)
    chapter = book.Chapter(tmp_path, "one")
    assert (chapter.minutes, chapter.exercise_minutes) == (4 + 2, 5 + 20)


def test_all_the_chapters_that_teach_make_the_whole(page):
    (all_of_them,) = page.select("section:has(> .contents) > p .minutes")
    assert all_of_them.get_text() == book.in_words(minutes(TAUGHT))
    assert page.select_one(".about .minutes").get_text() == book.in_words(minutes(["start"]))
    assert BOOK.reading_time("all") == book.in_words(minutes(TAUGHT))


def test_the_contents_list_every_page_with_its_minutes(page):
    boxes = page.select(".contents > .part")
    assert len(boxes) == len(PARTS)
    for number, (box, part) in enumerate(zip(boxes, PARTS, strict=True), 1):
        assert f"part-{number}" in box["class"]
        title = part["caption"].replace("Appendices", "Look it up")
        assert box.select_one("strong").get_text() == title
        names = [Path(one["file"]).name for one in part["chapters"]]
        links = box.select("a")
        assert [link["href"] for link in links] == [f"{name}.html" for name in names]
        assert [link.get_text() for link in links] == [TITLES[name] for name in names]
        for name, line in zip(names, box.select("li"), strict=True):
            told = [span.get_text() for span in line.select(".minutes")]
            minutes = BOOK.chapter(name).minutes
            assert told == [f"{minutes} min"] * bool(minutes) and (minutes or name not in TAUGHT)


def test_the_times_of_a_path_are_those_of_its_chapters(site):
    using = BeautifulSoup((site / "using.html").read_text("utf-8"), "html.parser")
    paths = using.select(".paths > ul > li")
    assert len(paths) == len(BOOK.paths) == 7
    for path in paths:
        names = [link["href"].removesuffix(".html") for link in path.select("ol a")]
        assert tuple(names) == BOOK.paths[path.select_one("strong").get_text()]
        chapters = [BOOK.chapter(name) for name in names]
        read = minutes(names)
        guess = read + sum(chapter.text.count("\n**Predict.**") for chapter in chapters)
        solve = guess + sum(chapter.exercise_minutes for chapter in chapters)
        assert path.select_one(".minutes").get_text() == (
            f"{book.in_words(read)} to read, {book.in_words(guess)} with the predictions, "
            f"{book.in_words(solve)} with the exercises"
        )
        assert [link.get_text() for link in path.select("ol a")] == [TITLES[name] for name in names]
    assert minutes(link["href"].removesuffix(".html") for link in paths[2].select("ol a")) <= 60


def test_the_rates_are_said(site):
    using = BeautifulSoup((site / "using.html").read_text("utf-8"), "html.parser").get_text()
    *some, most = book.EXERCISE_MINUTES.values()
    said = (
        f"read {book.WORDS_A_MINUTE} words or {book.LINES_A_MINUTE} lines of code in a minute, and "
        f"take a minute for each prediction and {', '.join(map(str, some))} or {most} minutes"
    )
    assert said in " ".join(using.split()) and book.PREDICTION_MINUTES == 1


def test_every_door_and_every_film_leads_to_a_page_of_the_book(page):
    doors = [item.select_one("a")["href"] for item in page.select(".doors li")]
    assert len(doors) == len(set(doors)) == 8
    assert {address.removesuffix(".html") for address in doors} <= TITLES.keys()
    films = [item.select_one("a")["href"] for item in page.select(".films li")]
    assert films == [f"{name}.html" for name in home_page.film_pages(BOOK)] and len(films) == 4


def test_films_are_those_of_their_pages(page, site):
    for item in page.select(".films li"):
        there = (site / item.select_one("a")["href"]).read_text("utf-8")
        frames = item.select("[data-steps] > figure")
        assert 4 <= len(frames) <= 8
        for image in item.select("image"):
            assert image["href"] in there
        assert str(len(frames)) == item.select_one("[data-steps]")["data-steps"]


def test_a_film_of_home_has_eight_frames_with_the_first_and_the_last_and_rests_in_its_middle():
    def film(n, more=""):
        frames = "".join(f"<figure a>\n{i}</figure>" for i in range(n))
        return f'<div data-steps="{n}"{more}>{frames}</div>'

    short = home_page.shortened(film(11))
    assert re.findall(r"\n(\d+)", short) == ["0", "1", "3", "4", "6", "7", "9", "10"]
    assert short.startswith('<div data-steps="8" data-start="4">') and short.endswith("</div>")
    assert home_page.shortened(film(3)) == film(3).replace('"3"', '"3" data-start="1"')
    whole = home_page.shortened(film(12, ' data-flow="[]"'))
    assert whole.count("<figure") == 12 and 'data-steps="12" data-start="6"' in whole


def test_numbers_of_home_are_counted(page):
    told = [int(number.get_text().replace(",", "")) for number in page.select(".numbers strong")]
    taught = [BOOK.chapter(name) for name in TITLES] + [BOOK.chapters[0]]
    exercises = sum(len(re.findall(r"^```\{exercise-start\}", one.text, re.M)) for one in taught)
    head = (ROOT / "book/recordings/matrix.txt").read_text("utf-8")
    versions = re.search(r"^\| *\|(.*)\|$", head, re.MULTILINE)[1].count("|") + 1
    contracts = (ROOT / "tests/contracts").glob("test_*_contract.py")
    assert told[1] == exercises and told[3] == versions and told[2] > len(list(contracts))
    every = sum(len(re.findall(r"^ *assert ", one.text, re.MULTILINE)) for one in taught)
    assert 0.8 * every < told[0] <= every


def test_buttons_and_proofs_lead_somewhere(page, site):
    buttons = {link.get_text(): link["href"] for link in page.select(".buttons a")}
    pages = {"Start: your step on all devices": "start.html", "The book in an hour": "evening.html"}
    assert buttons == pages | {"Open in Colab": WHERE.colab("index")}
    using = BeautifulSoup((site / "using.html").read_text("utf-8"), "html.parser")
    proofs = using.select(".proofs li")
    assert len(proofs) >= 6
    for proof in proofs:
        (link,) = proof.select("a")
        file, _, anchor = link["href"].partition("#")
        if link["href"] != WHERE.colab("start"):
            there = (site / file).read_text("utf-8")
            assert not anchor or f'id="{anchor}"' in there


@pytest.mark.parametrize(("screen", "most"), [("DESK", 3.5), ("PHONE", 6.5)])
def test_home_is_a_few_screens_long(reader, screen, most):
    size = {"DESK": DESK, "PHONE": PHONE}[screen]
    page = reader(size, reduced_motion="reduce")
    assert page.evaluate("document.documentElement.scrollHeight") <= most * size["height"]


def test_home_has_few_words(page):
    """Besides code, pictures and the contents."""
    text = copy(page)
    for part in text.select(".contents, details, pre, svg, [data-steps], [data-specs]"):
        part.decompose()
    assert len(text.select_one("article > section").get_text(" ").split()) <= 420


def test_the_home_page_does_not_say_how_long_it_is_itself(page):
    assert not page.select(".facts")


# --- The first screen -----------------------------------------------------------------------------

INSIDE = """all => all.filter((e) => {
  const box = e.getBoundingClientRect();
  return !(box.width && box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth + 0.5);
}).map((e) => `${e.outerHTML.slice(0, 80)} ${JSON.stringify(e.getBoundingClientRect())}`)"""  # noqa: E501


@pytest.mark.parametrize("screen", [DESK, PHONE], ids=["desk", "phone"])
def test_the_first_screen_has_the_promise_the_buttons_and_the_picture(reader, screen):
    page = reader(screen, reduced_motion="reduce")
    for what in (
        "h1",
        ".promise p",
        ".about p",
        ".buttons a",
        ".specs-bar label",
        ".specs-bar [type=text]",
        "[data-specs] figure:visible",
    ):
        found = page.locator(what)
        assert found.count() and not found.evaluate_all(INSIDE), what
    about = page.locator(".about").inner_text()
    assert all(words in about for words in ("NumPy", "jax.jit", "no accelerator", "minutes"))


@pytest.mark.parametrize("width", [360, 390, 768, 1024, 1440])
def test_nothing_is_wider_than_the_screen(reader, width):
    page = reader({"width": width, "height": 800}, reduced_motion="reduce")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


# --- The picture ----------------------------------------------------------------------------------

AXES = AxisType.Auto, AxisType.Auto
LAYOUTS = (P(None, None), P("x", None), P("x", "y"))


@pytest.fixture(scope="module")
def arrays():
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=AXES, devices=jax.devices()[:8])
    return [
        jax.device_put(jnp.arange(128.0).reshape(8, 16), NamedSharding(mesh, spec))
        for spec in LAYOUTS
    ]


def numbers(text):
    return [float(number) for number in text.split()]


def test_tiles_are_drawn_where_their_slices_are_and_bytes_are_those_of_the_shards(arrays):
    drawn = BeautifulSoup(compare_specs(*arrays).html, "html.parser").select("figure")
    assert [figure["data-spec"] for figure in drawn] == SPECS
    for figure, array in zip(drawn, arrays, strict=True):
        tiles = figure.select("[data-from]")
        assert (
            len(tiles)
            == len(figure.select("[data-bytes]"))
            == len(figure.select("[data-bar]"))
            == 8
        )
        for tile, label, shard in zip(
            tiles, figure.select("[data-bytes]"), array.addressable_shards, strict=True
        ):
            assert (
                int(label["data-bytes"]) == shard.data.nbytes
                and label.get_text() == f"{shard.data.nbytes} B"
            )
            # on an array of 160 x 80 px at (46, 22)
            x, y, width, height = numbers(tile["data-from"])
            down, across = (
                part.indices(size)[:2] for part, size in zip(shard.index, array.shape, strict=True)
            )
            assert np.allclose((x - 46, x - 46 + width), np.array(across) * 10)
            assert np.allclose((y - 22, y - 22 + height), np.array(down) * 10)
        total = sum(shard.data.nbytes for shard in array.addressable_shards)
        assert figure.select_one("[data-total]").get_text() == f"{total:,} bytes in all"
        assert f"local shape {array.addressable_shards[0].data.shape}" in figure.svg.get_text()


def test_in_a_console_each_layout_is_a_line(arrays):
    lines = repr(compare_specs(*arrays)).splitlines()
    assert [line.split(" f32")[0].strip() for line in lines] == SPECS
    assert [int(re.search(r"(\d+) bytes", line)[1]) for line in lines] == BYTES


def test_what_cannot_be_compared_is_refused(arrays):
    with pytest.raises(ValueError, match="needs an array"):
        compare_specs()
    with pytest.raises(TypeError, match="not ndarray"):
        compare_specs(np.ones((8, 16)))
    with pytest.raises(ValueError, match="layouts of one array"):
        compare_specs(arrays[0], arrays[0].T)
    line = jax.make_mesh((8,), ("d",), axis_types=AXES[:1], devices=jax.devices()[:8])
    with pytest.raises(ValueError, match="mesh of two axes"):
        compare_specs(jax.device_put(jnp.ones((8, 16)), NamedSharding(line, P("d"))))


def shown(page):
    return page.locator("[data-specs] > figure").evaluate_all(
        "all => all.flatMap((f, i) => f.checkVisibility() ? [i] : [])"
    )


def running(page):
    return page.evaluate(
        "document.getAnimations().filter(one => one.effect.target.closest('[data-specs]')).length"
    )


COUNT = """() => {
  const box = document.querySelector("[data-specs]");
  window.counted = new Set();
  const totals = [...box.querySelectorAll("[data-total]")];
  const note = () => totals.forEach((total) => total.checkVisibility() && counted.add(total.textContent));
  note();
  new MutationObserver(note).observe(box, { subtree: true, childList: true, characterData: true, attributes: true });
}"""  # noqa: E501


def test_it_plays_once_through_all_specs_and_counts_the_bytes(reader):
    page = reader()
    box = page.locator("[data-specs]")
    wait_until(lambda: running(page), lambda: "nothing moves", SOON)
    expect(box.get_by_role("radio", name=SPECS[0])).to_be_checked()
    page.evaluate(COUNT)
    last = box.get_by_role("radio", name=SPECS[2])
    wait_until(
        lambda: last.is_checked() and not running(page), lambda: "it does not come to its end", SOON
    )
    counted = page.evaluate("[...window.counted]")
    assert len(counted) > 3 and "512 bytes in all" in counted
    expect(box.get_by_role("button", name="Play")).to_be_visible()
    assert shown(page) == [2] and not box.get_by_role("status").inner_text()


def test_it_can_be_paused_and_played_again(reader):
    page = reader()
    box = page.locator("[data-specs]")
    box.get_by_role("button", name="Pause").click()
    assert not running(page)
    at = shown(page)
    assert box.locator("figure:visible [data-bytes]").first.text_content() == f"{BYTES[at[0]]} B"
    box.get_by_role("button", name="Play").press("Enter")
    expect(box.get_by_role("button", name="Pause")).to_be_focused()
    assert shown(page) == [0] and running(page)


@pytest.mark.parametrize("how", ["pointer", "keyboard"])
def test_a_reader_chooses_a_spec_and_hears_it(reader, how):
    page = reader()
    box = page.locator("[data-specs]")
    expect(box.get_by_role("radiogroup")).to_have_accessible_name("How the matrix is sharded")
    box.get_by_role("button", name="Pause").click()
    box.get_by_role("radio", name=SPECS[0]).focus()
    for number in (1, 2):
        if how == "pointer":
            box.locator("label").nth(number).click()
        else:
            page.keyboard.press("ArrowRight")
        expect(box.get_by_role("radio", name=SPECS[number])).to_be_checked()
        assert shown(page) == [number] and running(page)
        words = box.get_by_role("status")
        expect(words).to_contain_text(SPECS[number])
        expect(words).to_contain_text(f"{BYTES[number]} bytes per device")
    wait_until(lambda: not running(page), lambda: "it moves without end", SOON)
    # What has arrived is counted after its motion has ended.
    expect(box.locator("figure:visible [data-bytes]")).to_have_text([f"{BYTES[2]} B"] * 8)


def test_who_wants_less_motion_sees_none(reader):
    page = reader(reduced_motion="reduce")
    box = page.locator("[data-specs]")
    assert shown(page) == [2]
    expect(box.get_by_role("button", name="Play")).to_have_count(0)
    box.locator("label").first.click()
    assert shown(page) == [0] and not running(page)
    assert box.locator("figure:visible [data-total]").text_content() == "4,096 bytes in all"


@pytest.mark.parametrize("screen", [DESK, PHONE], ids=["desk", "phone"])
def test_without_javascript_all_three_stand_still(reader, screen):
    page = reader(screen, java_script_enabled=False)
    figures = page.locator("[data-specs] > figure:visible")
    expect(figures).to_have_count(3)
    for number, figure in enumerate(figures.all()):
        expect(figure).to_be_visible()
        assert figure.locator("[data-bytes]").first.text_content() == f"{BYTES[number]} B"
    assert page.locator(".specs-bar").count() == 0


def test_on_paper_all_three_stand_without_a_form(reader):
    page = reader(reduced_motion="reduce")
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert shown(page) == [0, 1, 2]
    expect(page.locator(".specs-bar")).to_be_hidden()


def test_paper_in_the_first_seconds_has_no_tile_in_flight(reader):
    page = reader()
    wait_until(lambda: running(page), lambda: "nothing moves", SOON)
    page.emulate_media(media="print")
    wait_until(lambda: not running(page), lambda: "tiles fly over the paper", SOON)
    assert page.locator("[data-specs] [data-bytes]").evaluate_all(
        "all => all.every((e) => e.textContent === `${e.dataset.bytes} B`)"
    )


def test_a_change_of_the_picture_moves_nothing_else(reader):
    page = reader(PHONE, reduced_motion="reduce")
    where = "document.querySelector('h2').getBoundingClientRect().top"
    tops = set()
    for label in page.locator(".specs-bar label").all():
        label.click()
        tops.add(page.evaluate(where))
    assert len(tops) == 1


# --- The spec that a reader types -----------------------------------------------------------------

SHIFTS = """window.shifts = [];
new PerformanceObserver((list) => window.shifts.push(...list.getEntries().map((one) => one.value)))
  .observe({ type: "layout-shift", buffered: true });"""
TYPED = [
    "P()",
    'P("x")',
    'P(None, "x")',
    'P(("x", "y"))',
    'P(None, ("x", "y"))',
    'P("z")',
    'P("x", None, "y")',
    "P(x",
    "",
]


def test_a_typed_spec_opens_on_both_axes_and_follows_what_is_typed(reader):
    page = reader(reduced_motion="reduce")
    box = page.locator("[data-specs]")
    field, says = box.get_by_role("textbox", name="PartitionSpec"), box.locator(".specs-bar > p")
    expect(field).to_have_value(SPECS[2])
    expect(says).to_have_text(
        "Each device stores 64 of 512 bytes, and no two devices store the same."
    )
    field.press("Control+a")
    page.keyboard.type("P(None, 'x')")
    expect(says).to_have_text("Each device stores 256 of 512 bytes, and 4 devices store the same.")
    drawn = box.locator("figure:visible")
    assert "device 4 stores [0:8, 8:16]" in drawn.locator("desc").first.text_content()
    expect(box.get_by_role("radio", checked=True)).to_have_count(0)
    page.keyboard.press("Backspace")
    expect(says).to_have_text("Not understood: a closing ) is missing.")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(drawn).to_have_attribute("data-spec", 'P(None, "x")')  # of the spec before
    box.get_by_role("radio", name=SPECS[1]).check(force=True)
    expect(field).to_have_value(SPECS[1])
    expect(field).to_have_attribute("aria-invalid", "false")
    field.press("Enter")
    expect(says).to_have_attribute("aria-live", "polite")
    assert page.url.endswith("index.html")


def test_while_it_plays_the_field_shows_the_spec_and_typing_stops_it(reader):
    page = reader()
    box = page.locator("[data-specs]")
    field = box.get_by_role("textbox", name="PartitionSpec")
    expect(field).to_have_value(SPECS[0])
    field.fill("P('y', 'x')")
    expect(box.get_by_role("button", name="Play")).to_be_visible()
    expect(box.locator("figure:visible")).to_have_attribute("data-spec", 'P("y", "x")')
    expect(field).to_have_value("P('y', 'x')")


def test_every_spec_of_the_mesh_has_its_picture(page):
    specs = [json.loads(figure["data-axes"]) for figure in page.select("[data-specs] figure")]
    ways = [[], ["x"], ["y"], ["x", "y"], ["y", "x"]]
    every = [[down, over] for down in ways for over in ways if not set(down) & set(over)]
    assert sorted(specs) == sorted(every)


@pytest.mark.parametrize("width", [360, 390, 640, 768, 1100, 1440])
def test_whatever_is_typed_moves_nothing_else(reader, width):
    page = reader({"width": width, "height": 900}, reduced_motion="reduce")
    field = page.locator(".specs-bar [type=text]")
    where = "document.querySelector('h2').getBoundingClientRect().top + scrollY"
    tops = set()
    for text in TYPED:
        field.fill(text)
        tops.add(page.evaluate(where))
    assert len(tops) == 1


@pytest.mark.parametrize("width", [390, 1440])
def test_the_field_takes_its_place_without_a_shift(browser, home, width):
    context = browser.new_context(
        viewport={"width": width, "height": 2600}, reduced_motion="reduce"
    )
    context.add_init_script(SHIFTS)
    page = context.new_page()
    page.goto(f"{home}index.html")
    expect(page.locator(".specs-bar [type=text]")).to_be_visible()
    page.wait_for_timeout(200)
    assert max(page.evaluate("window.shifts"), default=0) < 0.001
    context.close()
