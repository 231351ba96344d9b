"""What bookbinder puts on pages besides their text, and what the theme makes of it."""

import gzip
import re
import struct
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
import tiny_book
from bs4 import BeautifulSoup
from docutils import nodes
from places import ROOT

from bookbinder.page import pages, teaching
from bookbinder.read import address
from bookbinder.read.book import APPENDICES, in_words, split_assertions

# --- Code -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "parts"),
    [
        ("x = 1\nprint(x)\nassert x == 1", ("x = 1\nprint(x)", "assert x == 1", "")),
        (
            "x = 1\n\nassert x  # 1\nassert (\n    x\n)",
            ("x = 1", "assert x  # 1\nassert (\n    x\n)", ""),
        ),
        ("x = 1\n# why\nassert x", ("x = 1", "# why\nassert x", "")),
        ("x = 1\nassert x\n\ndraw(\n    x)", ("x = 1", "assert x", "draw(\n    x)")),
        *[
            (whole, (whole, "", ""))
            for whole in (
                "assert True\nx = 1",
                "assert True",
                "assert True\nx",
                "x = 1; assert x",
                "x = 1\nassert x; x",
                "for x in y:\n    assert x",
                "%%processes 2\nassert True",
                "not python",
                "",
            )
        ],
    ],
)
def test_the_assertions_at_a_cells_end_are_set_apart(cell, parts):
    assert split_assertions(cell) == parts


def test_a_cell_shows_its_output_and_then_that_it_was_checked(built):
    """Nothing of a cell is lost, and its assertions stand below what it printed."""
    folds = [fold for page in built.values() for fold in page.select("details.checked")]
    assert len(folds) > 200
    for fold in folds:
        assert fold.parent["class"][0] == "cell" and fold.find_next_sibling() is None
        assert fold.summary.get_text() == "checked" and fold.pre.get_text().lstrip().startswith(
            ("assert", "#")
        )


def test_programs_for_processes_are_coloured_as_the_python_that_they_are(built):
    (page,) = (page for file, page in built.items() if file.stem == "processes")
    programs = [
        code for code in page.select(".cell_input pre") if code.get_text().startswith("%%processes")
    ]
    assert len(programs) > 5 and all(len(code.select("span[class]")) > 2 for code in programs)


# --- The site -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(site):
    """All pages of the site, parsed, by file."""
    return {
        file: BeautifulSoup(file.read_text(), "html.parser") for file in sorted(site.glob("*.html"))
    }


def local(file, address):
    return (file.parent / unquote(urlsplit(address).path)).resolve()


def weight(path):
    data = path.read_bytes()
    return (
        len(gzip.compress(data)) if path.suffix in {".html", ".css", ".js", ".svg"} else len(data)
    )


def test_no_page_weighs_more_than_112_kib(built):
    """Everything that a page asks for, as a host with gzip sends it."""
    for file, page in built.items():
        asked = [tag["src"] for tag in page.select("script[src], img[src]")]
        asked += [tag["href"] for tag in page.select("link[rel=stylesheet], link[rel=icon]")]
        total = weight(file) + sum(weight(local(file, address)) for address in set(asked))
        most = 120 if file.name == "reference.html" else 112  # every public name on one page
        assert total <= most * 1024, f"{file.name}: {total / 1024:.0f} KiB"


def test_scripts_wait_and_only_the_choice_of_light_or_dark_stands_in_the_page(built):
    for file, page in built.items():
        for script in page.select("script"):
            if script.get("type") == "application/json":
                continue
            assert (
                script.has_attr("defer") if script.has_attr("src") else script.string == pages.MODE
            ), (file, script)
        handlers = [
            name for tag in page.find_all(True) for name in tag.attrs if name.startswith("on")
        ]
        assert not handlers, file


def test_nothing_of_the_stock_theme_is_published(site, built):
    names = {file.name for file in (site / "_static").rglob("*") if file.is_file()}
    assert {"book.css", "book.js", "choose.js", "steps.js", "icon.svg", "card.png"} <= names
    of_others = re.compile(
        r"bootstrap|fontawesome|pydata|sphinx|jquery|doctools|copybutton|clipboard|thebe|toggle"
    )
    assert not [name for name in names if of_others.search(name)]
    assert not [file for file, page in built.items() if page.select('[class*="bd-"], [id^="pst-"]')]


def test_pages_say_what_they_are(built, book):
    described = {}
    for file, page in built.items():
        assert len(page.select("h1")) == 1, file
        assert page.html["lang"] == "en" and len(page.select("meta[name=viewport]")) == 1
        text = page.select_one("meta[name=description]")["content"]
        # whole sentences, and not the title
        assert 40 < len(text) <= pages.MOST and text[-1] in ".?!", (file, text)
        assert page.select_one('meta[property="og:description"]')["content"] == text
        described.setdefault(text, []).append(file.stem)
        assert page.select_one("link[rel=canonical]")["href"].startswith("https://")
        assert page.title.get_text().split(" · ")[-1] == book.config["title"]
    assert all(len(names) == 1 for names in described.values()), described


def test_chapters_say_how_long_they_are_and_when_they_ran(site, built, complete):
    for chapter in complete:
        if not chapter.runs or chapter.name == "index":  # which says it of the whole book
            continue
        page = built[site / f"{chapter.name}.html"]
        facts = " ".join(page.select_one(".facts").get_text(" ").split())
        times = f"{chapter.minutes} minute{'s' * (chapter.minutes != 1)} to read"
        if chapter.exercise_minutes:
            times += f" exercises {in_words(chapter.exercise_minutes)}"
        assert times in facts, facts
        ran = page.select_one(".end").get_text()
        assert re.search(r"a run on \d{4}-\d\d-\d\d, with Python 3\.\d+\.\d+, jax \d", ran), ran


def test_a_chapter_says_where_it_stands(site, built, book):
    for caption, names in book.parts:
        for place, name in enumerate(names, 1):
            said, chapter = built[site / f"{name}.html"].select_one(".place"), book.chapter(name)
            if caption == APPENDICES:
                assert said is None
                continue
            text = " ".join(said.get_text().split())
            assert text.startswith(
                f"Part {caption.partition('.')[0]}, chapter {place} of {len(names)}"
            )
            head = built[site / f"{name}.html"].select_one(".facts")
            assert chapter.level and f"difficulty {chapter.level} of 3" in str(head)
            first = [link["href"] for link in head.select("span a")]
            assert first == [f"{before}.html" for before in chapter.after]
            links = [link["href"] for link in said.select("a")]
            on = [title for title, stops in book.paths.items() if name in stops]
            assert links == ["using.html#using-paths"] * len(on)
            for title in on:
                assert (
                    f"path {title}: {book.paths[title].index(name) + 1} of {len(book.paths[title])}"
                    in text
                )
    assert built[site / "using.html"].select_one("#using-paths") and len(book.paths) == 7


def test_the_list_of_chapters_marks_the_page(site, built, book):
    for chapter in book.chapters:
        marked = built[site / f"{chapter.name}.html"].select('#chapters [aria-current="page"]')
        assert [link["href"].split("/")[-1] for link in marked] in (
            ["#"],
            [f"{chapter.name}.html"],
        ), chapter.name


# Terms that are words of every day too: where they stand as [the word] among these neighbours, the
# glossary means something else. The first ones are linked nowhere.
NOT_MEANT = re.compile(
    r"\[(rank|restore|resume|hang|inference|gate|slice|slab|semaphore|state|pod|combine|dispatch)e?s?\]"
    r"|\b(it|we|they|you) \[process(es)?\]"
    r"|\[(process|checkpoint|overlap|committed)(es|s)?\] (an?|the|this|it|its|all|each|every)\b"
    r"|\[varying\] (length|size|shape|number|degree|speed|amount)"
)
AMBIGUOUS = re.compile(
    r"(process|checkpoint|overlap|committed|varying|host|node|ring|device|decode|race|barrier|layout"
    r"|donation|invariant|launcher|latency|replica|tracer|router|expert|bubble)(es|s)?"
)


def test_words_that_mean_something_else_lead_to_no_term(built):
    """A matrix has a rank, a draw is ranked, a stack has slabs: no process and no grid is meant."""
    links = {}
    for file, page in built.items():
        for link in page.select("a.term"):
            around = [reversed(list(link.previous_siblings)), link.next_siblings]
            before, after = ("".join(one.get_text() for one in side) for side in around)
            said = " ".join(f"{before}[{link.get_text()}]{after}".lower().split())
            links[file.stem, said] = link
            assert link.find_parent("em") is None, (file.stem, said)  # a word in another sense
    ambiguous = [link for link in links.values() if AMBIGUOUS.fullmatch(link.get_text().lower())]
    assert len(ambiguous) > 200
    assert not [place for place in links if NOT_MEANT.search(place[1])]


def test_a_fold_says_what_it_holds(built):
    kinds = {"Set-up": 0, "Code": 0, "functions": 0}
    for file, page in built.items():
        for fold in page.select("details.hide.above-input"):
            title = fold.select_one(".collapsed").get_text()
            held, lines = re.fullmatch(r"(.+), (\d+) lines?", title).groups()
            assert int(lines) == fold.pre.get_text().count("\n") + 1, (file, title)
            names = re.findall(r"^(?:def|class) (\w+)", fold.pre.get_text(), re.MULTILINE)
            kind = held if held in kinds else "functions"
            kinds[kind] += 1
            if kind == "functions":
                assert held.split(" and ")[0].split(", ") == names[:3], (file, title)
            if kind == "Code":
                assert not names, (file, title)
    assert min(kinds.values()) > 20, kinds


def test_no_list_of_definitions_is_broken(built):
    """`A term : what it is` in one line is a paragraph, which only looks like a definition."""
    for file, page in built.items():
        for paragraph in page.select("article p"):
            text = paragraph.get_text()
            assert not re.match(r"[A-Z][^.:]{5,60} : [A-Z]", text), (file, text[:80])


def test_a_page_to_look_things_up_has_no_time(site, built):
    for name in ("glossary", "reference", "references", "status"):
        assert not built[site / f"{name}.html"].select(".facts")


COLUMNS = {
    "a table": "kind   bytes\nall-gather   12",
    "a table in colour": "\x1b[1mkind   bytes\x1b[0m\nall-gather   12",
    "rows of an array": "[[0 1]\n [2 3]]",
    "names and one gap": "Equinox: loss 3.0, 13 sums\nNNX:     loss 3.0, 13 sums",
    "an array's repr": "array([[0, 1],\n       [2, 3]])",
}
RUNNING = {
    "one row": "kind   bytes",
    "sentences": "One sentence.  Another.\nA third.",
    "indented": "  one\n  two",
    "processes": "[0] died after 0.2 s\n[1] died after 0.4 s, killed by SIGABRT",
    "nothing": "",
}


@pytest.mark.parametrize("name", [*COLUMNS, *RUNNING])
def test_columns_are_told_from_running_text(name):
    assert pages.is_aligned((COLUMNS | RUNNING)[name]) == (name in COLUMNS)


def test_outputs_in_columns_are_marked(built):
    marked = sum(len(page.select(".cell_output > .aligned pre")) for page in built.values())
    assert marked
    for file, page in built.items():
        for output in page.select(".cell_output > div:not(.aligned) > .highlight > pre"):
            assert not pages.is_aligned(output.get_text()), (file, output.get_text())


def test_each_page_leads_to_the_tool_the_source_the_licence_and_the_citation(site, built, book):
    for file, page in built.items():
        if file.stem == "404":
            continue
        links = [link["href"] for link in page.select(".top .links a")]
        assert (
            links[0].split("#")[0] in ("shardlab.html", "#", "")
            and links[1] == book.config["repository"]["url"]
        )
        foot = page.select_one("footer.foot")
        version = re.search(
            r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
        )[1]
        assert f"Version {version} of 20" in foot.get_text() and "CC BY 4.0" in foot.get_text()
        assert foot.a["href"].split("#")[0] in ("about.html", "", "#")
    about = built[site / "about.html"].article.get_text()
    assert "@misc{" in about and "creativecommons" in str(built[site / "about.html"].article)
    assert (
        f"{book.config['repository']['url']}/archive/main.tar.gz"
        in built[site / "shardlab.html"].article.get_text()
    )


def test_names_of_the_package_lead_to_its_reference(site, built):
    places = {tag["id"] for tag in built[site / "reference.html"].select("[id]")}
    linked = {}
    for file, page in built.items():
        for link in page.select("a.name"):
            where, _, anchor = link["href"].partition("#")
            assert where == ("" if file.stem == "reference" else "reference.html"), (file, link)
            assert anchor in places and link.code, (file, link)
            linked.setdefault(file.stem, []).append(link.get_text())
    assert len(linked) > 25 and all(len(names) == len(set(names)) for names in linked.values())
    assert "shardlab.Pod" in linked["shardlab"] and "same_layout" in linked["arrays"]


def test_a_chapter_begins_with_its_key_figure(site, built, book, complete):
    names = {c.name for c in book.chapters if re.search(rf"tags:.*\b{pages.KEY_FIGURE}\b", c.text)}
    assert len(names) > 20
    for chapter in complete:
        figures = built[site / f"{chapter.name}.html"].select(f"article .{pages.KEY_FIGURE}")
        assert len(figures) == (chapter.name in names), chapter.name
        for figure in figures:
            before = [tag.name for tag in figure.find_previous_siblings() if tag.name]
            assert before.count("p") <= 2 and {*before} == {"h1", "p"}, chapter.name
            assert figure.svg


def test_a_preview_of_a_link_shows_the_key_figure(site, built, book, complete):
    """Social sites take PNG, JPEG and the like, and no SVG."""
    pictures = {}
    for file, page in built.items():
        where = page.select_one('meta[property="og:image"]')["content"]
        picture = site / where.removeprefix(address.of(book.config).site)
        assert png_size(picture) == (1200, 630) and picture.stat().st_size < 300_000, where
        assert page.select_one("meta[name='twitter:card']")["content"] == "summary_large_image"
        assert 5 < len(page.select_one('meta[property="og:image:alt"]')["content"]) <= 300
        pictures[file.stem] = picture.relative_to(site)
    drawn = {
        c.name
        for c in complete
        if built[site / f"{c.name}.html"].select(f"article .{pages.KEY_FIGURE}")
    }
    assert {name for name, picture in pictures.items() if picture.parts[0] == pages.CARDS} == drawn
    assert {file.name for file in (site / pages.CARDS).iterdir()} == {
        pictures[name].name for name in drawn
    }


def png_size(file):
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


def test_a_key_figure_without_a_picture_is_refused(tiny):
    cell = "```{code-cell} ipython3\n:tags: [key-figure]\n\nprint(1)\n```\n"
    tiny.write("book/one.md", tiny_book.chapter("One", "1") + "\n" + cell)
    status, _, said = tiny.build()
    assert status and "one: the cell with the tag key-figure shows no picture" in said


def test_teachers_find_all_exercises_and_the_wrong_choices(site, built, book):
    page = built[site / "teaching.html"]
    links = [
        link["href"]
        for link in page.select("#the-exercises-with-their-minutes table a:not(.term, .name)")
        if "#" in link["href"]
    ]
    taught = [c.text for c in book.chapters if not c.is_appendix]
    labels = [
        label
        for text in taught
        for label in re.findall(r"\{exercise-start\}[^\n]*\n:label: (\S+)", text)
    ]
    assert [link.partition("#")[2] for link in links] == labels and len(labels) > 100
    rows = [
        [cell.get_text() for cell in row.select("td")] for row in page.select("article table tr")
    ]
    minutes = sum(int(row[3]) for row in rows if len(row) == 4 and row[2].startswith("★"))
    assert minutes == sum(
        chapter.exercise_minutes for chapter in book.chapters if not chapter.is_appendix
    )
    wrong = [item.get_text() for item in page.select("article li") if "Wrong:" in item.get_text()]
    assert len(wrong) > 50 and not any("[ ]" in one or "[x]" in one for one in wrong)


def test_wrong_choices_are_read_with_their_reasons():
    text = (
        "**Predict.** How\nmany?\n\n- [ ] two\n  or three\n\n  They are\n  more.\n- [x] "
        "four\n\n  Yes.\n- [ ] five\n\n"
        "**Predict.** Which?\n\nNo choices.\n"
    )
    one = SimpleNamespace(text=text)
    book = SimpleNamespace(parts=(("I. One", ("one",)),), titles={}, chapter=lambda name: one)
    assert (
        teaching.misconceptions(book)
        == "### one\n\n- How many? *Wrong:* two or three. They are more."
    )


def test_chapters_of_one_part_have_its_number(built, book):
    parts = {file.stem: page.body.get("data-part") for file, page in built.items()}
    assert parts["index"] is None and parts["arrays"] == "1"
    assert len({parts[name] for name in ("auto", "explicit", "manual", "collectives")}) == 1
    assert len(set(parts.values())) == 1 + 9


def test_a_chapter_leads_to_the_form_for_mistakes_and_names_itself_there(built):
    (page,) = (page for file, page in built.items() if file.stem == "auto")
    (link,) = (link["href"] for link in page.select("article a") if "issues/new" in link["href"])
    assert link.endswith("/issues/new?template=wrong.yml&where=auto%3A%20")


def test_pictures_have_sizes_and_words(built):
    for file, page in built.items():
        images = page.select("main img")
        for image in images:
            assert image["alt"].strip() and int(image["width"]) > 0 and int(image["height"]) > 0, (
                file,
                image,
            )
        assert all(image["loading"] == "lazy" for image in images[1:]), file


def test_the_glossary_has_its_letters(built):
    (row,) = [row for page in built.values() for row in page.select(".letters:has(input)")]
    page = row.find_parent("article")
    starts = [
        page.find(id=link["href"].removeprefix("#")).get_text()[0].upper()
        for link in row.select("a")
    ]
    assert [link.get_text() for link in row.select("a")] == ["0-9", *starts[1:]] and len(
        starts
    ) > 15
    assert starts == sorted(starts) and len(set(starts)) == len(starts)
    firsts = [
        entry
        for entry in page.select("dl.glossary > dt")
        if (before := entry.find_previous_sibling()) and before.name == "dd"
    ]
    assert {entry.get_text()[0].upper() for entry in firsts if entry.get_text()[0].isalpha()} == {
        *starts[1:]
    }


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("jax.make_mesh", "jax.|make_|mesh"),
        ("__init__", "__init__"),
        ("0.12", "0.12"),
        ("a_1.T", "a_1.|T"),
        ("x", "x"),
    ],
)
def test_a_long_name_breaks_after_an_underscore_or_a_dot(name, parts):
    assert pages._breakable(re.match(".+", name)).replace("<wbr>", "|") == parts


def test_every_table_in_markdown_became_one(built):
    """A table whose second line has another number of columns than its first stays a paragraph."""
    texts = [
        (file.stem, text.get_text())
        for file, page in built.items()
        for text in page.select("article p")
    ]
    assert len(texts) > 1000 and not [(name, text[:200]) for name, text in texts if "-|-" in text]


def test_hints_and_solutions_are_details(built):
    assert not any(page.select("div.dropdown") for page in built.values())
    assert (
        sum(len(page.select("details.admonition.dropdown > summary")) for page in built.values())
        > 100
    )


def test_the_map_for_search_engines_has_every_chapter(site, book):
    listed = [
        element.text
        for element in ElementTree.parse(site / "sitemap.xml").getroot().findall(".//{*}loc")
    ]
    names = {one.rpartition("/")[2].removesuffix(".html") or "index" for one in listed}
    assert names == {chapter.name for chapter in book.chapters} and len(names) == len(listed)
    (place,) = re.findall(
        r"^Sitemap: (https://.*)$", (site / "robots.txt").read_text("utf-8"), re.MULTILINE
    )
    assert place == f"{address.of(book.config).site}sitemap.xml"


def test_an_address_that_is_none_has_a_page(site, book):
    page = BeautifulSoup((site / "404.html").read_text(), "html.parser")
    assert "no such page" in page.h1.get_text()
    assert page.select_one("head > style") and not page.select(
        "script[src], link[rel=stylesheet], img"
    )
    addresses = [tag["href"] for tag in page.select("[href]") if not tag["href"].startswith("#")]
    # it is shown at any address
    assert addresses and all(where.startswith("https://") for where in addresses)


def test_a_missing_page_offers_the_search_and_every_chapter_by_its_part(site, book):
    page, where = (
        BeautifulSoup((site / "404.html").read_text(), "html.parser"),
        address.of(book.config),
    )
    assert page.form["action"] == where.page("search") and page.form.input["name"] == "q"
    lists = page.select(".all-chapters section")
    assert [one.h2.get_text() for one in lists] == [caption for caption, _ in book.parts]
    for number, (one, (_, names)) in enumerate(zip(lists, book.parts, strict=True), 1):
        assert one["class"] == [f"part-{number}"]
        shown = {link["href"]: link.get_text() for link in one.select("a")}
        assert shown == {where.page(name): book.titles[name] for name in names}


# --- Colours and sizes ----------------------------------------------------------------------------

SHEET = (pages.THEME / "static" / "book.css").read_text("utf-8")


def luminance(colour):
    """WCAG's relative luminance of a colour such as #0072b2 or #fff."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def in_modes(name):
    """A colour of the style sheet, in the light and in the dark."""
    value = re.search(rf"--{name}: (#\w+|light-dark\(.*?\)|var\(--.*?\));", SHEET)[1]
    if value.startswith("var("):
        return in_modes(value[6:-1])
    return tuple(re.findall(r"#\w+", value)) * (2 if value.startswith("#") else 1)


@pytest.mark.parametrize("number", range(1, 9))
def test_the_accent_of_a_part_stands_out_from_the_page(number):
    """A line that carries meaning needs a contrast of 3 (WCAG 1.4.11); device 6's yellow has 1.3 on
    white.
    """
    for accent, ground in zip(in_modes(f"part-{number}"), in_modes("ground"), strict=True):
        lighter, darker = sorted((luminance(accent), luminance(ground)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 3, (accent, ground)
    assert not re.search(r"--part: var\(--device|var\(--part, var\(--device-", SHEET)


def test_headings_become_smaller_level_by_level_and_stay_larger_than_text():
    sizes = [
        float(re.search(rf"^{what} {{[^}}]*?([\d.]+)rem", SHEET, re.MULTILINE)[1])
        for what in ("h2", "h3", "h4")
    ]
    text = float(re.search(r"^body {.*?font: ([\d.]+)rem", SHEET, re.MULTILINE)[1])
    assert sizes == sorted(sizes, reverse=True) and len({*sizes, text}) == 4 and sizes[-1] > text


def paragraphs(*texts):
    return nodes.section("", *(nodes.paragraph("", "", *one) for one in texts))


PROMISED = [
    nodes.strong("", "What we do here."),
    nodes.Text(" We shard\nan array. Afterwards you can"),
]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([[nodes.Text("A need. Its number.")], PROMISED], "We shard an array."),
        ([[nodes.Text("Since JAX 0.9, a type has\nit. More.")]], "Since JAX 0.9, a type has it."),
        ([[nodes.Text("No end")]], "No end"),
        ([[nodes.Text("word " * 50 + "end.")]], f"{'word ' * 31}…"),
        ([], ""),
    ],
)
def test_a_description_is_what_a_page_promises_or_its_first_sentence(texts, said):
    assert (
        pages.description(paragraphs(*([node.deepcopy() for node in one] for one in texts))) == said
    )
    assert len(said) <= pages.MOST


def test_a_page_may_describe_itself(tiny):
    tiny.write(
        "book/two.md", "---\ndescription: Two of everything & more.\n---\n# Two\n\nSome words.\n"
    )
    assert not tiny.build()[0]
    page = BeautifulSoup(tiny.page("two"), "html.parser")
    assert page.select_one("meta[name=description]")["content"] == "Two of everything & more."
    assert "everything" not in page.body.get_text()
    tiny.write("book/two.md", f"---\ndescription: {'long ' * 40}\n---\n# Two\n")
    status, _, said = tiny.build()
    assert (
        status
        and "book/two.md:2: description: it has 199 characters; search engines show 160" in said
    )


PLOT = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" width="10pt" viewBox="0 0 10 10">
 <metadata>x</metadata><defs><style type="text/css">*{stroke-linecap: butt}</style></defs>
 <g id="figure_1"><path d="M 0 0" clip-path="url(#p1)" style="fill: #ffffff; stroke: #1f77b4"/></g>
 <defs><clipPath id="p1"><rect width="1"/></clipPath><path id="m2"/></defs><use href="#m2" style="stroke: #000000"/>
</svg>"""  # noqa: E501


def test_a_plot_takes_the_colours_of_the_page_and_ids_of_its_own():
    made = pages.plot(PLOT, 'seconds & "bytes"', "plot-1-")
    assert "<style" not in made and "metadata" not in made and "figure_1" not in made
    assert 'id="plot-1-p1"' in made and "url(#plot-1-p1)" in made and 'href="#plot-1-m2"' in made
    assert "fill: var(--ground); stroke: var(--device-0)" in made and "stroke: currentColor" in made
    assert "<desc>seconds &amp; &quot;bytes&quot;</desc>" in made and 'role="img"' in made
    ElementTree.fromstring(made)


def test_plots_have_no_colours_that_the_dark_would_swallow(built):
    """Black marks are as dark as letters, and so white in the dark, where the text around them
    is.
    """
    plots = [plot for page in built.values() for plot in page.select("svg.plot")]
    assert plots and not [
        plot for plot in plots if "#000000" in str(plot) or "#ffffff" in str(plot)
    ]
