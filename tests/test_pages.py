"""What bookbinder makes of the theme's pages: light, and the same for everyone."""

import gzip
import re
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from lxml import etree, html

from bookbinder import pages, styles

# --- Styles ---------------------------------------------------------------------------------------------------

USED = {"tags": {"html", "p", "a", "div"}, "names": {"box", "note", "top"}}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("p { color: red }", "p{color:red}"),
        ("table { color: red }", ""),
        (".box, .other { color: red }", ".box{color:red}"),
        ("p > .box  a{color:red}", "p>.box a{color:red}"),
        ("#top{color:red} #bottom{color:red}", "#top{color:red}"),
        ('.box:hover::before{content:".other"}', '.box:hover::before{content:".other"}'),
        (".box:not(.other){color:red}", ".box:not(.other){color:red}"),
        (":is(.other, .box) p{color:red}", ":is(.other, .box) p{color:red}"),
        (":is(.other, table) p{color:red}", ""),
        ('a[href^="x"]{color:red}', 'a[href^="x"]{color:red}'),
        ("*{margin:0!important}", "*{margin:0!important}"),
        ("@media print { .other{color:red} p{color:red} }", "@media print{p{color:red}}"),
        ("@media print { .other{color:red} }", ""),
        ("@font-face{font-family:x;src:url(x.woff2)}", ""),
        ("@keyframes spin{to{rotate:1turn}}", "@keyframes spin{to{rotate:1turn}}"),
        (":root{--a:1;--b:var(--c);--c:2}p{width:var(--b)}", ":root{--b:var(--c);--c:2}p{width:var(--b)}"),
        (":root{--a:1}", ""),
        ("/* nothing */ p{}", ""),
        ('p{background:url("data:image/svg+xml,<a {}>")}', 'p{background:url("data:image/svg+xml,<a {}>")}'),
        ("P{color:red}", "P{color:red}"),
    ],
)
def test_rules_stay_if_something_can_match_them(given, left):
    assert styles.reduce(given, **USED) == left


def test_what_is_no_css_is_named_with_its_line():
    with pytest.raises(ValueError, match="line 2"):
        styles.reduce("p{color:red}\n}", **USED)


# --- Single changes -------------------------------------------------------------------------------------------


def tree(body):
    return html.document_fromstring(f"<html><head><title>x</title></head><body>{body}</body></html>")


def test_hints_unfold_without_a_script():
    page = tree(
        '<div class="dropdown admonition hint"><p class="admonition-title">Hint <a href="#x">2</a></p><p>h</p></div>'
    )
    pages._unfolding(page)
    (box,) = page.xpath("//details")
    assert [child.tag for child in box] == ["summary", "p"] and box[0].text_content() == "Hint 2"
    assert not box[0].xpath(".//a")


def test_icons_are_drawn_and_unknown_ones_refused():
    page = tree('<button><i class="theme-switch fa-solid fa-sun fa-lg" data-mode="light"></i> x</button>')
    pages._draw(page, {"sun": ("512", "256", "M0 0")})
    (drawing,) = page.xpath("//svg")
    assert drawing.get("viewbox", drawing.get("viewBox")) == "0 0 512 256" and drawing.tail == " x"
    assert {"icon", "theme-switch"} <= set(drawing.get("class").split()) and drawing.get("data-mode") == "light"
    with pytest.raises(ValueError, match="'moon'"):
        pages._draw(tree('<i class="fas fa-moon"></i>'), {})


def test_scripts_come_only_where_they_have_something_to_do():
    scripts = "".join(
        f'<script src="_static/{name}"></script>'
        for name in ("site.js", "steps.js", "copybutton.js", "scripts/bootstrap.js", "scripts/fontawesome.js")
    )
    page = tree(f'<script>let x = 1;</script>{scripts}<div data-steps="2"></div>')
    pages._scripts(page)
    assert page.xpath("//script/@src") == ["_static/site.js", "_static/steps.js"]
    assert all("defer" in script.attrib for script in page.xpath("//script"))


def test_data_for_scripts_stays():
    page = tree('<script type="application/json" id="data">{"a": 1}</script>')
    pages._remove(page)
    pages._scripts(page)
    assert page.xpath("//script")[0].text == '{"a": 1}'


# --- The site -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(site):
    """All pages of the site, parsed, by file."""
    return {file: BeautifulSoup(file.read_text(), "html.parser") for file in sorted(site.glob("*.html"))}


def local(file, address):
    return (file.parent / unquote(urlsplit(address).path)).resolve()


def weight(path):
    data = path.read_bytes()
    return len(gzip.compress(data)) if path.suffix in {".html", ".css", ".js", ".svg"} else len(data)


def test_no_page_weighs_more_than_250_kib(built):
    """Everything that a page asks for, as a host with gzip sends it."""
    for file, page in built.items():
        asked = [tag["src"] for tag in page.select("script[src], img[src]")]
        asked += [tag["href"] for tag in page.select("link[rel=stylesheet], link[rel=icon]")]
        total = weight(file) + sum(weight(local(file, address)) for address in set(asked))
        assert total <= 250 * 1024, f"{file.name}: {total / 1024:.0f} KiB"


def test_one_style_sheet_and_only_scripts_that_wait(built):
    for file, page in built.items():
        assert len(page.select("link[rel=stylesheet]")) + len(page.select("head > style")) == 1, file
        for script in page.select("script"):
            if script.get("type") == "application/json":
                continue
            assert script.has_attr("defer") if script.has_attr("src") else script.string == pages.MODE, (file, script)
        handlers = [name for tag in page.find_all(True) for name in tag.attrs if name.startswith("on")]
        assert not handlers, file


def test_nothing_lies_about_that_no_page_asks_for(site, built):
    asked = {local(file, tag["src"]) for file, page in built.items() for tag in page.select("[src]")}
    asked |= {local(file, tag["href"]) for file, page in built.items() for tag in page.select("[href]")}
    left = {file.name for file in (site / "_static").rglob("*") if file.is_file() and file.resolve() not in asked}
    assert left <= {"card.png"}


def test_icons_are_drawings(built):
    for file, page in built.items():
        assert not page.select("i[class*=fa-], span[class*=fa-]"), file
        assert all(tag["aria-hidden"] == "true" and tag.path["d"] for tag in page.select("svg.icon")), file
    assert "font-face" not in (next(iter(built)).parent / "_static" / "site.css").read_text()


def test_pages_say_what_they_are(built, book):
    described = {}
    for file, page in built.items():
        assert len(page.select("h1")) == 1, file
        assert page.html["lang"] == "en" and len(page.select("meta[name=viewport]")) == 1
        text = page.select_one("meta[name=description]")["content"]
        assert 20 < len(text) <= 160, (file, text)
        described.setdefault(text, []).append(file.stem)
        assert page.select_one("link[rel=canonical]")["href"].startswith("https://")
    chapters = {chapter.name for chapter in book.chapters}
    assert all(len(chapters & set(names)) <= 1 for names in described.values()), described


def test_chapters_say_how_long_they_are_and_when_they_ran(site, book):
    for chapter in book.chapters:
        if not chapter.runs:
            continue
        page = BeautifulSoup((site / f"{chapter.name}.html").read_text(), "html.parser")
        facts = page.select_one(".run-it span").get_text()
        assert re.fullmatch(r"\d+ minutes to read(, \d+ (emulated devices|processes))?", facts), facts
        ran = page.select_one(".executed").get_text()
        assert re.search(r"a run on \d{4}-\d\d-\d\d, with Python 3\.\d+\.\d+, jax \d", ran), ran


def test_pictures_have_sizes_and_words(built):
    for file, page in built.items():
        for image in page.select("main img"):
            assert image["alt"].strip() and int(image["width"]) > 0 and int(image["height"]) > 0, (file, image)
        images = page.select("main img")
        assert all(image["loading"] == "lazy" for image in images[1:]), file


def test_hints_and_solutions_are_details(built):
    assert not any(page.select("div.admonition.dropdown") for page in built.values())
    assert sum(len(page.select("details.admonition.dropdown > summary")) for page in built.values()) > 100


def test_the_map_for_search_engines_has_every_chapter(site, book):
    listed = [element.text for element in etree.parse(site / "sitemap.xml").getroot().iter("{*}loc")]
    names = {address.rpartition("/")[2].removesuffix(".html") or "index" for address in listed}
    assert names == {chapter.name for chapter in book.chapters} and len(names) == len(listed)


def test_an_address_that_is_none_has_a_page(site):
    page = BeautifulSoup((site / "404.html").read_text(), "html.parser")
    assert "no such page" in page.h1.get_text()
    assert page.select_one("head > style") and not page.select("script[src], link[rel=stylesheet], img")
    addresses = [tag["href"] for tag in page.select("[href]") if not tag["href"].startswith("#")]
    assert addresses and all(where.startswith("https://") for where in addresses)  # it is shown at any address
