"""The site of the real book, as `make book` leaves it."""

import ast
import copy
import json
import math
import os
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import claims
import lxml.html
import pytest
from bs4 import BeautifulSoup
from places import ROOT
from repository import BOOK, build, copy_sources

from bookbinder.read import core
from bookbinder.run import runs


@pytest.fixture(scope="module")
def pages(site):
    """Every chapter's page, parsed."""
    return {
        c.name: BeautifulSoup((site / f"{c.name}.html").read_text(), "html.parser")
        for c in BOOK.chapters
    }


def parse(file):
    """The tree of an HTML file; forty times as fast as Beautiful Soup, for tests that read every
    file.
    """
    return lxml.html.fromstring(file.read_bytes())


def article(page):
    return page.select_one("article")


def tags(chapter, cell):
    """The tags of one of a chapter's cells."""
    return chapter.notebook.cells[cell.position].metadata.get("tags", ())


def test_home_is_at_the_root_and_nothing_redirects(site, pages):
    assert pages["index"].h1.get_text().startswith("One Program, Many Devices")
    assert not (site / "book").exists()
    for file in site.rglob("*.html"):
        assert not [
            m for m in parse(file).iter("meta") if m.get("http-equiv", "").lower() == "refresh"
        ], file


def test_nothing_is_left_to_do_on_the_second_build(site, request):
    before = {path: path.stat().st_mtime_ns for path in site.rglob("*")}
    run = build(request.config)
    assert run.returncode == 0 and not re.search(r" ran  ", run.stdout)
    assert before == {path: path.stat().st_mtime_ns for path in site.rglob("*")}


def test_pages_load_nothing_from_elsewhere(site):
    found = []
    for file in site.rglob("*.html"):
        page = parse(file)
        loaded = [tag.get("src", "") for tag in page.iter("script", "img", "iframe", "source")]
        loading = {"stylesheet", "preload", "icon"}
        loaded += [
            tag.get("href")
            for tag in page.iter("link")
            if loading & set(tag.get("rel", "").split())
        ]
        found += loaded
        assert not [address for address in loaded if urlsplit(address).netloc], file
    assert len(found) > len(BOOK.chapters)


def test_every_internal_link_and_anchor_is_alive(site):
    parsed = {}

    def anchors(file):
        if file not in parsed:
            parsed[file] = set(parse(file).xpath("//@id | //a/@name"))
        return parsed[file]

    checked = 0
    for file in site.rglob("*.html"):
        for href in parse(file).xpath("//a/@href"):
            link = urlsplit(href)
            if link.scheme or link.netloc:
                continue
            target = (file.parent / unquote(link.path)).resolve() if link.path else file
            assert target.is_file(), f"{file.name}: dead link {href}"
            if link.fragment and target.suffix == ".html":
                assert unquote(link.fragment) in anchors(target), f"{file.name}: dead anchor {href}"
            checked += 1
    assert checked > 50


@pytest.mark.parametrize("name", ["explicit", "from_old_jax"])
def test_a_chapter_that_runs_again_elsewhere_shows_the_same(pages, tmp_path, name):
    """Byte for byte, in another folder, time zone and order of sets; chapters that measure time do
    not.
    """
    copy_sources(tmp_path)
    command = [
        sys.executable,
        "-m",
        "bookbinder",
        "--root",
        str(tmp_path),
        "chapter",
        f"book/{name}.md",
    ]
    environment = os.environ | {"TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "2"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and " ran " in run.stdout, run.stderr
    page = BeautifulSoup(
        (tmp_path / "_build/chapter" / name / f"_build/html/{name}.html").read_text(), "html.parser"
    )
    ours, theirs = ([str(cell) for cell in one.select("div.cell")] for one in (pages[name], page))
    assert len(ours) == len(BOOK.chapter(name).cells) and ours == theirs


PROGRAMS = [chapter.name for chapter in BOOK.chapters if chapter.runs]
NUMBERS_OF_CHAPTER = claims.all_numbers(BOOK)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.unit(f"page {name}")) for name in PROGRAMS]
)
def test_a_chapter_runs(site, complete, name, request):
    """It ran for the page that was built, or before under the same key."""
    assert name in {chapter.name for chapter in complete}
    report = runs.known(runs.of_chapter(BOOK, BOOK.chapter(name)))
    request.node.user_properties.append(("read", report.read))
    assert report.ok and report.version
    printed = claims.numbers_of(report.outputs)
    faults = list(claims.faults(BOOK.chapter(name), printed, NUMBERS_OF_CHAPTER))
    assert not faults, "\n".join(faults)


def test_outputs_are_on_the_pages(pages, complete):
    for chapter in complete:
        text = article(pages[chapter.name]).get_text()
        # What does not run may quote one: an example in a docstring.
        assert not chapter.runs or "Traceback (most recent call last)" not in text
        shown = [cell for cell in chapter.cells if "remove-input" not in tags(chapter, cell)]
        assert len(article(pages[chapter.name]).select(".cell_input")) == len(shown)
        pictures = r"^(draw|draw_\w+|film|\w+\.draw|show|(\w+_)?bars|timeline|compare_specs|explorer\.\w+)\(|^picture$"  # noqa: E501
        shown = [cell for cell in chapter.cells if "remove-output" not in tags(chapter, cell)]
        drawn = sum(bool(re.search(pictures, cell.source, re.MULTILINE)) for cell in shown)
        # one of several frames holds another
        whole = ".cell_output div.shardlab:not(.shardlab .shardlab)"
        assert len(article(pages[chapter.name]).select(whole)) == drawn
    assert "float32[16@y]" in article(pages["index"]).get_text()
    assert "emulate(2) comes too late" in article(pages["arrays"]).get_text()


def test_plots_are_on_the_pages(pages, complete):
    plotted = 0
    for chapter in complete:
        drawn = sum(
            len(re.findall(r"plt\.(?:subplots|figure)\(", cell.source)) for cell in chapter.cells
        )
        assert len(pages[chapter.name].select(".cell_output svg.plot")) == drawn, chapter.name
        plotted += drawn
    assert plotted


def test_tables_that_cells_write_in_markdown_are_tables(pages):
    """A row that began with a plus sign became the item of a list."""
    for chapter in BOOK.chapters:
        for block in article(pages[chapter.name]).select(".cell_output li, .cell_output p"):
            assert block.get_text().count(" | ") < 2, f"{chapter.name}: {block.get_text()}"


SILENT = 0.15  # of a chapter's cells may show nothing


def test_cells_show_their_answers(pages, complete):
    """Not counted are folded cells, solutions, and cells that only import, define (a function, with
    the constants that it reads), or write a file.
    """
    faults = []
    for chapter in complete:
        visible = [
            cell
            for cell in article(pages[chapter.name]).select("div.cell")
            if "tag_hide-cell" not in cell["class"] and not cell.find_parent("details")
        ]
        telling = [
            cell for cell in visible if cell.select(".cell_output") or not defines_only(cell)
        ]
        silent = [cell for cell in telling if not cell.select(".cell_output")]
        first = silent[0].select_one(".cell_input").get_text() if silent else ""
        if len(silent) > max(1, SILENT * len(telling)):
            faults.append(
                f"{chapter.name}: {len(silent)} of {len(telling)} show nothing, first: {first}"
            )
    assert not faults, "\n".join(faults)


def defines_only(cell):
    source = cell.select_one(".cell_input pre").get_text()
    if source.startswith("%%writefile"):  # what it writes is shown
        return True
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a magic
        return False
    definitions = ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom
    rest = [node for node in body if not isinstance(node, definitions)]
    return len(rest) < len(body) and all(map(sets_a_constant, rest))


def sets_a_constant(node):
    try:
        return isinstance(node, ast.Assign) and bool(ast.literal_eval(node.value))
    except ValueError:  # an expression
        return False


def test_exercises_show_their_task_and_solutions_are_folded_and_right(pages, complete):
    for chapter in complete:
        page = article(pages[chapter.name])
        exercises, solutions = page.select("div.exercise"), page.select("details.solution")
        assert (
            len(exercises) == len(solutions) == len(re.findall(r"\{exercise-start\}", chapter.text))
        )
        for exercise in exercises:
            assert "Not solved yet" not in exercise.get_text()
            assert all("tag_hide-cell" in cell["class"] for cell in exercise.select("div.cell"))
        for solution in solutions:
            assert "dropdown" in solution["class"] and "Right: " in solution.get_text()


def test_pictures_describe_themselves(pages):
    for page in pages.values():
        for svg in article(page).select('svg[role="img"]'):
            assert len(svg.title.get_text()) > 10 and len(svg.desc.get_text()) > 10
        for image in article(page).select("img"):
            assert len(image.get("alt", "")) > 10 and not re.fullmatch(r"\S+\.\w+", image["alt"])


def test_pictures_in_steps_have_all_their_frames_and_the_script_that_plays_them(
    site, pages, complete
):
    played = 0
    for chapter in complete:
        page = pages[chapter.name]
        every = article(page).select("[data-steps]")
        boxes = [box for box in every if not box.find_parent(class_="films")]  # of other pages
        made = sum(
            len(re.findall(r"\bfollow\(.*steps=|\bFlow\(|\bfilm\(", cell.source))
            for cell in chapter.cells
        )
        assert len(boxes) == made
        for box in boxes:
            figures = box.find_all("figure", recursive=False)
            assert len(figures) == int(box["data-steps"]) > 2 and not box.select("[hidden], script")
        scripts = [tag for tag in page.select("script[src]") if "steps.js" in tag["src"]]
        assert len(scripts) == bool(every)
        assert all(
            tag.has_attr("defer") and (site / urlsplit(tag["src"]).path).is_file()
            for tag in scripts
        )
        played += len(boxes)
    assert played


def test_bars_that_depend_on_inputs_have_their_data_and_the_script_that_redraws_them(
    pages, complete
):
    for chapter in complete:
        page = pages[chapter.name]
        boxes = article(page).select("[data-choices]")
        assert len(boxes) == sum(
            len(re.findall(r"\binteractive_bars\(", cell.source)) for cell in chapter.cells
        )
        assert sum("choose.js" in tag["src"] for tag in page.select("script[src]")) == bool(boxes)
        for box in boxes:
            data = json.loads(box["data-choices"])
            assert (
                len(data["cases"]) == math.prod(len(values) for _, values, _ in data["inputs"]) > 1
            )
            assert box.select_one("svg[role=img] > title") and not box.select(
                "script, input, select"
            )


def test_pages_are_well_formed(pages):
    for name, page in pages.items():
        assert page.html["lang"] == "en" and len(article(page).select("h1")) == 1, name
        ids = [tag["id"] for tag in article(page).select("[id]")]
        assert len(ids) == len(set(ids)), f"{name}: duplicate ids"
        prose = copy.copy(article(page))
        for code in prose.select("pre, code"):
            code.extract()
        assert not re.search(r"\{\{|\{doc\}", prose.get_text()), name


def test_nothing_published_tells_of_the_machine_that_built_it(site):
    secret = re.compile("TOKEN|SECRET|PASSW|_KEY$", re.IGNORECASE)
    secrets = [
        socket.gethostname(),
        *(value for name, value in os.environ.items() if secret.search(name)),
    ]
    traces = [str(ROOT), f"{Path.home()}/", "site-packages", "ipykernel_"]
    traces += [value for value in secrets if len(value) > 7]  # a shorter one may be there by chance
    files = [
        file
        for folder in (site, site.parent / "notebooks")
        for file in folder.rglob("*")
        if file.is_file()
    ]
    notebooks = [
        file for file in files if file.suffix == ".ipynb" and file.parent.name == "notebooks"
    ]
    runs = sum(chapter.runs for chapter in BOOK.chapters)
    assert len(notebooks) == runs + len(core.TITLES)
    for file in files:
        for trace in traces:
            assert trace.encode() not in file.read_bytes(), f"{file.name}: {trace}"
    (wheel,) = (file for file in files if file.suffix == ".whl")
    with zipfile.ZipFile(wheel) as inside:
        for name in inside.namelist():
            for trace in traces:
                assert trace.encode() not in inside.read(name), f"{name}: {trace}"


def test_source_links_lead_to_the_chapter(pages):
    url = BOOK.config["repository"]["url"]
    branch = BOOK.config["repository"]["branch"]
    for chapter in BOOK.chapters:
        links = {tag["href"] for tag in pages[chapter.name].select("a[href]")}
        edit = [link for link in links if f"/edit/{branch}/book/{chapter.name}.md" in link]
        assert edit, (
            f"{chapter.name}: no edit link among {sorted(link for link in links if url in link)}"
        )


def test_the_status_page_names_versions_times_and_every_column_of_the_matrix(pages, complete):
    from importlib.metadata import version

    from bookbinder.run.environments import environments

    text = " ".join(article(pages["status"]).get_text().split())
    assert f"jax {version('jax')}" in text and f"numpy {version('numpy')}" in text
    built, contracts, matrix, libraries = article(pages["status"]).select("table")
    rows = {row.a["href"].removesuffix(".html"): row for row in built.select("tbody tr")}
    shown = [chapter.name for chapter in BOOK.chapters if chapter.name in PROGRAMS]
    assert list(rows) == shown and built.th.get_text() == "Chapter"
    sums = [cell.get_text() for cell in contracts.select("tbody tr")[-1].select("td")]
    assert sums[0] == "all" and sums[1] == sums[2] and int(sums[1]) > 50
    for name in shown[1:]:  # behind the home page, in the order of the book and with its titles
        assert rows[name].a.get_text() == BOOK.titles[name]
    ran = {chapter.name for chapter in complete}
    for name, row in rows.items():
        assert float(row.select("td")[3].get_text()) > 0 or name not in ran
        assert "✅" in row.get_text()
    heads = [cell.get_text() for cell in matrix.select("thead th")]
    assert heads == [environment.name for environment in environments(ROOT)]
    recorded = [[cell.get_text() for cell in row.select("td")] for row in matrix.select("tbody tr")]
    days, *_ = recorded
    assert days[0] == "recorded" and all(re.fullmatch(r"20\d\d-\d\d-\d\d", day) for day in days[1:])
    for name, *cells in recorded[3:]:  # below the days and the versions of JAX and Python
        assert all(re.fullmatch(r"\d+\.\d s|needs [\d.]+|–", cell) for cell in cells), name
    assert re.search(r"Recorded on \d{4}-\d\d-\d\d", text)
    lines = (ROOT / "book/recordings/libraries.txt").read_text("utf-8").splitlines()
    written = [line.replace("`", "")[2:-2].split(" | ") for line in lines if line.startswith("| ")]
    assert written == [
        [cell.get_text() for cell in row.select("th, td")] for row in libraries.select("tr")
    ]
    errors = [line for line in lines if line.startswith(": ")]
    shown = [one.code.get_text() for one in libraries.find_all_next("dd")]
    assert shown == [line[2:].strip("` ") for line in errors] and len(written) > 12


def test_the_page_of_public_names_shows_no_markup(pages):
    """Names are headings, and what is left of Markdown or of docstrings is in code alone."""
    page = copy.copy(article(pages["reference"]))
    names = [one.code.get_text() for one in page.select("h3")]
    assert len(names) > 80 and {"describe", "collectives", "assert_layout"} <= set(names)
    for code in page.select("code, pre"):
        code.extract()
    assert not re.search(
        r"\*\*|``|% public|\{\w+\}`|^(Args|Returns|Raises):", page.get_text(), re.MULTILINE
    )
