"""The core of the book: its sections are those of the chapters, its times are counted, and its
files can be opened.
"""

import importlib.util
import json
import re
import textwrap
import zipfile
from xml.etree import ElementTree

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup
from places import ROOT
from repository import BOOK
from tiny_book import TinyBook

from bookbinder.notebook import core as core_chapters
from bookbinder.page import core as page_of_core
from bookbinder.read import book as books, core

spec = importlib.util.spec_from_file_location("pdf", ROOT / "scripts" / "pdf.py")
pdf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pdf)
PATHS = {path: core.path(BOOK, path) for path in core.TITLES}


def test_the_hour_is_an_hour_and_a_part_of_the_evening():
    hour, evening = PATHS["hour"], PATHS["evening"]
    places = [(stop.chapter, stop.heading) for stop in evening]
    assert [p for p in places if p in {(s.chapter, s.heading) for s in hour}] == [
        (stop.chapter, stop.heading) for stop in hour
    ]
    assert 45 <= sum(stop.minutes for stop in hour) <= 62
    assert 90 <= sum(stop.minutes for stop in evening) <= 130


def test_no_section_stands_before_a_chapter_that_its_own_asks_for():
    for stops in PATHS.values():
        order = list(dict.fromkeys(stop.chapter for stop in stops))
        for place, name in enumerate(order):
            later = set(BOOK.chapter(name).after) & set(order[place:])
            assert not later, f"{name} comes before {later}"


def test_times_count_text_code_bridges_and_predictions_and_no_exercise():
    text = "## One\n\n" + "word " * 400 + "\n\n```{code-cell} ipython3\n" + "x = 1\n" * 50 + "```\n"
    stop = core.Stop("one", "One", "one", text, 1)
    assert stop.minutes == 401 / 200 + 50 / 50  # with the word of the heading
    told = core.Stop("one", "One", "one", text, 1, bridge="word " * 200)
    assert round(told.minutes - stop.minutes, 2) == 1
    exercise = "```{exercise-start} Long ★\n```\n" + "word " * 900 + "\n```{exercise-end}\n```\n"
    assert core.Stop("one", "One", "one", text + exercise, 1).minutes == stop.minutes
    asked = core.Stop("one", "One", "one", f"{text}\n**Predict.** What?\n", 1)
    assert page_of_core.times([asked]) == "3 minutes to read, 4 minutes with the predictions"


@pytest.mark.parametrize("path", PATHS)
def test_each_section_is_on_its_page_where_links_lead(site, path):
    pages = {}
    for stop in PATHS[path]:
        if stop.chapter not in pages:
            text = (site / f"{stop.chapter}.html").read_text("utf-8")
            pages[stop.chapter] = BeautifulSoup(text, "html.parser")
        if stop.anchor:
            section = pages[stop.chapter].find(id=stop.anchor)
            assert section is not None and section.name == "section", stop
            assert section.find(["h2", "h3", "h4"]), stop


def test_its_page_lists_each_section_once_in_order(site):
    page = BeautifulSoup((site / "evening.html").read_text("utf-8"), "html.parser")
    links = [link["href"] for link in page.select(".core ol a")]
    assert [re.sub(r"\?path=\w+", "", link) for link in links] == [
        f"{stop.chapter}.html" + (f"#{stop.anchor}" if stop.anchor else "")
        for stop in PATHS["evening"]
    ]
    assert len(page.select(".core .in-hour")) == len(PATHS["hour"])
    assert page_of_core.times(PATHS["hour"]) in page.get_text()


def test_what_leads_along_it_has_the_same_sections(site):
    text = (site / "_static" / page_of_core.STOPS).read_text("utf-8")
    data = json.loads(text.removeprefix("globalThis.coreStops = ").rstrip(";\n"))
    for path, stops in PATHS.items():
        told = [(one["page"], one["anchor"]) for one in data[path]["stops"]]
        assert told == [(stop.chapter, stop.anchor) for stop in stops]


def test_a_path_of_whole_chapters_has_those_of_its_list_with_their_minutes():
    paths = page_of_core.paths_of(BOOK)
    assert list(paths) == [*core.TITLES, *map(books.slug, BOOK.paths)]
    for title, names in BOOK.paths.items():
        path = paths[books.slug(title)]
        assert path["whole"] and path["title"] == title
        assert [(stop["page"], stop["minutes"]) for stop in path["stops"]] == [
            (name, BOOK.chapter(name).minutes) for name in names
        ]
        assert not any(stop["anchor"] or stop["bridge"] for stop in path["stops"])


def test_no_path_has_a_chapter_before_one_that_it_asks_for():
    for title, names in BOOK.paths.items():
        for place, name in enumerate(names):
            later = set(BOOK.chapter(name).after) & set(names[place:])
            assert not later, f"{title}: {name} comes before {later}"


LISTS = {
    "a chapter that is not there": ("tow: [{heading: A}]", "no chapter tow; did you mean 'two'?"),
    "a heading that is not there": ("one: [{heading: Meshs}]", "did you mean 'Meshes'?"),
    "another order": ("one: [{heading: More}, {heading: Meshes}]", "stands before what it follows"),
    "a part without its whole": ("one: [{heading: Part}]", "needs the section that it is in"),
    "no list": ("one: Meshes", "one: write a list of sections"),
    "no heading": ("one: [{hour: true}]", "one: a section has a heading"),
    "an unknown key": ("one: [{heading: Meshes, our: true}]", "our is not known"),
    "no table": ("- one", "write chapters with their sections"),
    "not YAML": ("one: [", "not YAML"),
}


@pytest.mark.parametrize("case", LISTS)
def test_a_list_that_is_wrong_is_told_in_a_line(tmp_path, case):
    text, said = LISTS[case]
    tiny = TinyBook(tmp_path)
    one = "# One\n\nText.\n\n## Meshes\n\nText.\n\n### Part\n\n## More\n"
    tiny.write("book/one.md", one)
    tiny.write("book/core.yml", text)
    with pytest.raises(books.BookError, match=re.escape(said)) as error:
        core.stops(books.load(tiny.root))
    assert str(error.value).startswith("book/core.yml") and "\n" not in str(error.value)


def test_a_build_names_what_is_wrong_in_the_list_and_a_book_without_one_has_no_core(tmp_path):
    tiny = TinyBook(tmp_path)
    assert core.stops(books.load(tiny.root)) == ()
    tiny.write("book/core.yml", "one: [{heading: Nothing}]")
    status, _, err = tiny.build()
    assert status == 1 and "book/core.yml: one has no section 'Nothing'" in err


def test_pieces_are_those_between_headings_and_code_has_none():
    text = textwrap.dedent("""\
        # Title

        Opening.

        (a-label)=
        ## One

        ```python
        ## not a heading
        ```

        ### Two

        Text.
        """)
    pieces = core.sections(text)
    assert [piece[:4] for piece in pieces] == [(1, "", 1, 4), (2, "One", 6, 11), (3, "Two", 12, 15)]
    assert "not a heading" in pieces[1][4] and "a-label" not in pieces[0][4]


@pytest.fixture(scope="module")
def hour(site, tmp_path_factory):
    """The EPUB of the hour, and its PDF beside it."""
    file = tmp_path_factory.mktemp("core") / "hour.pdf"
    assert pdf.main(["--site", str(site), "--output", str(file), "hour"]) == 0
    return file.with_suffix(".epub")


def test_its_pdf_has_its_sections_alone(hour):
    import pikepdf

    with pikepdf.open(hour.with_suffix(".pdf")) as file, file.open_outline() as outline:
        titles = [one.title for chapter in outline.root for one in chapter.children]
        assert 40 <= len(file.pages) <= 110
    own = [stop.heading for stop in PATHS["hour"] if stop.text.startswith("## ")]
    letters = [re.sub(r"\W", "", title) for title in titles if title != "Answers"]
    assert letters == [re.sub(r"\W", "", heading) for heading in own]


def test_an_e_reader_can_open_all_of_its_epub(hour):
    with zipfile.ZipFile(hour) as archive:
        first = archive.infolist()[0]
        assert first.filename == "mimetype" and first.compress_type == zipfile.ZIP_STORED
        assert archive.read("mimetype") == b"application/epub+zip"
        files = {name for name in archive.namelist() if name.startswith("OEBPS/")}
        pages = {
            name.removeprefix("OEBPS/"): ElementTree.fromstring(archive.read(name))
            for name in files
            if name.endswith(".xhtml")
        }
        package = ElementTree.fromstring(archive.read("OEBPS/book.opf"))
    listed = {item.get("href") for item in package.iter("{http://www.idpf.org/2007/opf}item")}
    assert listed == {name.removeprefix("OEBPS/") for name in files} - {"book.opf"}
    ids = {
        name: {one.get("id") for one in page.iter() if one.get("id")}
        for name, page in pages.items()
    }
    links = 0
    for name, page in pages.items():
        for one in page.iter():
            for key, value in one.attrib.items():
                assert "var(--" not in value and "light-dark" not in value, (name, value)
                if (
                    key.endswith("href")
                    and not re.match(r"https?:", value)
                    and value != "style.css"
                ):
                    target, _, place = value.partition("#")
                    assert place == "" or place in ids[target or name], (name, value)
                    links += 1
    assert links > 50
    assert set(dict.fromkeys(stop.chapter for stop in PATHS["hour"])) <= {
        name.removesuffix(".xhtml") for name in pages
    }


def test_bridges_are_short_and_plain():
    for entries in yaml.safe_load((ROOT / core.FILE).read_text("utf-8")).values():
        for entry in entries:
            for key in ("bridge", "bridge_in_hour"):
                said = entry.get(key, "")
                assert len(said.split()) <= 62, said
                assert "{" not in re.sub(r"`[^`]*`", "", said) and "](" not in said, said


def test_a_notebook_has_the_code_that_its_sections_need_and_no_more():
    cells = [
        core_chapters.Cell(code, shown)
        for code, shown in [
            ("import jax\nfrom shardlab import emulate\nemulate(8)\n", False),
            ("def twice(x):\n    return factor * x\n", False),
            ("factor = 2\n", False),
            ("unused = twice(3)\n", False),
            ("for x in range(3):\n    print(x)\n", False),
            ("table = {}\n", False),
            ("table[1] = 2\n", False),
            ("with open('f') as error:\n    pass\n", False),
            ("if jax:\n    maybe = 1\nelse:\n    maybe = 2\n", False),
            ("with open('f') as error:\n    print(error)\nprint(twice(1), table, maybe)\n", True),
            ("after = 1\nemulate(4)\n", False),
        ]
    ]
    assert core_chapters.needed(cells) == {0, 1, 2, 5, 6, 8, 9}


def test_variables_of_processes_are_others_than_those_of_the_notebook():
    cells = [
        core_chapters.Cell(code, shown)
        for code, shown in [
            ("x = 1\n", False),
            ("%%processes\nx = 2\n", False),
            ("%%processes 0\nprint(x)\n", True),
        ]
    ]
    assert core_chapters.needed(cells) == {1, 2}


@pytest.mark.parametrize("path", PATHS)
def test_its_notebook_has_all_its_sections_and_folds_what_is_not_of_them(site, path):
    notebook = nbformat.read(site.parent / "notebooks" / f"{path}.ipynb", as_version=4)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    for stop in PATHS[path]:
        if stop.heading:
            marks = re.match(r"#+ ", stop.text)[0]
            assert sum(text.startswith(f"{marks}{stop.heading}") for text in texts) >= 1, stop
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum("emulate(" in cell.source for cell in codes) >= 5
    assert not any("{exercise" in text or "Solution of" in text for text in texts)


def test_what_a_loop_adds_to_is_made_before_it():
    codes = [("total = 0\n", False), ("for x in range(3):\n    total += x\n", True)]
    assert core_chapters.needed([core_chapters.Cell(*one) for one in codes]) == {0, 1}
