"""Make the theme's pages light: reduce what a page sends, and make it accessible to every reader.

The theme gives each page 2.4 MB of scripts, styles and icon fonts. Here all styles become one file, with only those
rules that a page of this book can use. Scripts load after the page is shown, and only on pages that need them. Icons
are drawn in the page; menus, hints and solutions open without a script. `finish` is called once, when Sphinx is done,
so plain `jupyter-book build .` makes the same pages as `make book`.
"""

import base64
import hashlib
import json
import re
import struct
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from lxml import etree, html

from bookbinder import styles

# Scripts of the theme and its extensions that are not needed: icons are drawn, menus and hints are <details>.
DROPPED = {"fontawesome.js", "bootstrap.js", "togglebutton.js", "sphinx-thebe.js"}
DROPPED_STYLES = ("togglebutton.css", "sphinx-thebe.css")
# These are needed only on pages where this is found; all others are for every page.
ONLY_WITH = {
    "clipboard.min.js": "//div[contains(@class, 'highlight')]/pre",
    "copybutton.js": "//div[contains(@class, 'highlight')]/pre",
    "design-tabs.js": "//*[contains(@class, 'sd-tab-set')]",
    "steps.js": "//*[@data-steps]",
    "doctools.js": "//*[@id='search-results']",
    "sphinx_highlight.js": "//*[@id='search-results']",
    "searchtools.js": "//*[@id='search-results']",
    "language_data.js": "//*[@id='search-results']",
    "searchindex.js": "//*[@id='search-results']",
}
# Before anything is painted: what the reader chose, or what the system prefers.
MODE = """{
const root = document.documentElement;
let mode = "auto";
try { mode = localStorage.getItem("mode") || mode; } catch {}
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
root.dataset.mode = mode;
root.dataset.theme = mode === "auto" ? (dark ? "dark" : "light") : mode;
}"""
POLICY = "Content-Security-Policy"
# What site.js itself loads on a page that was opened from the search.
BY_SCRIPT = ("doctools.js", "sphinx_highlight.js")
BELOW = ("_static", "_images", "_downloads", "_sources")  # the folders of files that pages ask for
WORDS_A_MINUTE = 200
KEPT = "pages.json"  # beside the pages: saves the next build from reading them all
CARD = "card.png"  # the picture that other sites show with a link to the book; in book/static


@dataclass(frozen=True)
class Chapter:
    """What a chapter's page says about it.

    Attributes:
      devices: what it runs on, such as "8 emulated devices"; "" if its cells ask for none.
      executed: the day of its last run, such as "2026-11-21"; "" if it has no code.
      versions: of what it ran with.
    """

    devices: str = ""
    executed: str = ""
    versions: str = ""


@dataclass(frozen=True)
class About:
    """What pages say about the book.

    Attributes:
      title: of the book.
      site: its address, with a slash at its end.
      chapters: `Chapter` by the name of its page.
    """

    title: str
    site: str
    chapters: dict


def finish(folder, about, documents):
    """Make light the pages in a folder that are not light yet, and add a site map for search engines.

    Args:
      folder: where Sphinx has written HTML.
      about: `About`.
      documents: the names of the pages that Sphinx knows; other pages from an earlier build are deleted.
    """
    kept = _kept(folder.parent / KEPT)
    files = [file for file in sorted(folder.rglob("*.html")) if "_static" not in file.parts]
    pages = [_Page(file, folder, kept.get(str(file))) for file in files]
    pages = [page for page in pages if page.light or page.tree.find("body") is not None]  # not the way to one alone
    for page in pages:
        if page.light and page.document not in documents:
            page.file.unlink()
    pages = [page for page in pages if page.file.exists()]
    new = [page for page in pages if not page.light]
    if not new:
        return
    icons, sheets = _icons(folder / "_static"), _sheets(pages)
    for page in new:
        _remove(page.tree)
        _draw(page.tree, icons)
        _menus(page.tree)
        _unfolding(page.tree)
        _roles(page.tree)
        _images(page)
        if page.name in about.chapters:
            _chapter(page.tree, about.chapters[page.name])
        _scripts(page.tree)
        _head(page, about)
    version = f"?v={_join(sheets, pages, folder / '_static' / 'site.css')}"
    for page in pages:
        changed = page.use(version)
        if not page.light:
            if page.name == "404":
                _stand_alone(page.tree, about, folder / "_static" / "site.css")
            _first_in_head(page.tree, etree.Element("meta", {"http-equiv": POLICY, "content": _policy(page.tree)}))
        if changed or not page.light:
            page.write()
    _tidy(pages, folder)
    (folder.parent / KEPT).write_text(json.dumps({str(page.file): page.to_keep(version) for page in pages}), "utf-8")
    addresses = [about.site + page.address for page in pages if page.name in about.chapters]
    (folder / "sitemap.xml").write_text(_sitemap(addresses), "utf-8")


class _Page:
    """A page.

    Attributes:
      name: the chapter's name; `document` is Sphinx's name for it.
      address: relative to the site's.
      static: the path from the page to the static files.
      light: whether it was made light before.
      sheets: the addresses of its style sheets, which become one.
    """

    def __init__(self, file, folder, kept):
        self.file = file
        self._kept = kept if kept and kept["stamp"] == self._stamp() else None
        place = file.relative_to(folder)
        self.name, self.document = place.stem, place.with_suffix("").as_posix()
        self.address = place.as_posix().removesuffix("index.html")
        self.static = "../" * (len(place.parts) - 1) + "_static/"
        if self._kept:
            self.light, self.sheets = True, self._kept["sheets"]
            return
        self.light = bool(self.tree.xpath("//head/meta[@http-equiv=$policy]", policy=POLICY))
        links = self.tree.xpath("//link[@rel='stylesheet']")
        self.sheets = [link.get("href").partition("?")[0] for link in links]
        for link in self.tree.xpath("//link[@data-of]"):
            self.sheets = link.get("data-of").split()

    @cached_property
    def tree(self):
        """The page, parsed."""
        return html.document_fromstring(self.file.read_bytes(), parser=html.HTMLParser(encoding="utf-8"))

    @cached_property
    def needs(self):
        """The elements it has and the files it loads once it is light, ready for JSON."""
        if self._kept:
            return self._kept["needs"]
        return {
            "tags": sorted({element.tag for element in self.tree.iter("*")}),
            "names": sorted({name for value in set(self.tree.xpath("//@class | //@id")) for name in value.split()}),
            "scripts": self.tree.xpath("//script/@src"),
            "files": sorted({a.partition("#")[0] for a in self.tree.xpath("//@src | //link/@href | //a/@href")}),
        }

    def to_keep(self, version):
        """What saves the next build from reading the page again, as long as it has not changed."""
        return {"stamp": self._stamp(), "sheets": self.sheets, "version": version, "needs": self.needs}

    def _stamp(self):
        status = self.file.stat()
        return f"{status.st_mtime_ns} {status.st_size} {_version()}"

    def use(self, version):
        """Replace all style sheets by a version of the one; returns whether this changed the page."""
        if self._kept and self._kept["version"] == version:
            return False
        sheet = f"{self.static}site.css{version}"
        link = next(iter(self.tree.xpath("//link[@data-of]")), None)
        if link is None:
            link = etree.Element("link", {"rel": "stylesheet", "data-of": " ".join(self.sheets)})
            _first_in_head(self.tree, link)
        changed = link.get("href") != sheet
        link.set("href", sheet)
        return changed

    def find(self, address):
        """The file that an address on this page leads to; None if it leads elsewhere."""
        return _file(self.file.parent, address)

    def write(self):
        """Write the page to its file."""
        head, end, body = html.tostring(self.tree, encoding="unicode", doctype="<!DOCTYPE html>").partition("</head>")
        self.file.write_text(re.sub(r"\n\s*\n", "\n", head) + end + body + "\n", "utf-8")


@cache
def _version():
    """Of this code."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]


def _kept(file):
    """What an earlier build kept of pages; {} if that is missing or damaged."""
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


@cache
def _file(folder, address):
    parts = urlsplit(address)
    return None if parts.scheme or parts.netloc else (folder / unquote(parts.path)).resolve()


def _classes(element):
    return set((element.get("class") or "").split())


def _with_class(page, *names):
    """Elements that have all these classes."""
    has = " and ".join(f"contains(concat(' ', normalize-space(@class), ' '), ' {name} ')" for name in names)
    return page.xpath(f"//*[{has}]")


# --- The body --------------------------------------------------------------------------------------------------


def _remove(page):
    """Remove what is empty, repeated, or useless without a script that we do not send."""
    for element in [
        *page.xpath("//*[@id='ethical-ad-placement' or @id='jb-print-docs-body' or @id='pst-back-to-top']"),
        *page.xpath("//button[starts-with(@onclick, 'toggleFullScreen') or starts-with(@onclick, 'window.print')]"),
        *page.xpath("//body//script[not(@src) and not(@type='application/json')]"),
        *page.xpath("//noscript[style] | //span[contains(@class, 'search-button__kbd-shortcut')]"),
        *page.xpath("//footer[contains(@class, 'bd-footer') and not(*)]"),
    ]:
        parent = element.getparent()
        element.drop_tree()
        if parent.tag == "li" and not len(parent):
            parent.drop_tree()
    for comment in page.xpath("//comment()"):
        comment.drop_tree()
    for header in page.xpath("//*[@id='pst-header']"):  # it has a second search and second buttons for the sidebars
        header[:], header.text = [], None
    page.find("body").set("data-default-mode", "auto")
    for element in page.xpath("//*[@data-bs-toggle or @data-bs-placement or @data-bs-title]"):
        for name in ("data-bs-toggle", "data-bs-placement", "data-bs-title"):
            element.attrib.pop(name, None)


def _roles(page):
    """Give elements their roles and names, for readers who use a screen reader."""
    for sidebar in page.xpath("//*[@id='pst-primary-sidebar']"):
        sidebar.set("role", "complementary")
        sidebar.set("aria-label", "Book")
    for sidebar in page.xpath("//*[@id='pst-primary-sidebar' or @id='pst-secondary-sidebar']"):
        form = etree.Element("form", {"method": "dialog", "class": "close-sidebar"})
        etree.SubElement(form, "button", {"class": "btn"}).text = "Close"
        sidebar.insert(0, form)  # seen on narrow screens only, where the theme makes a dialog of it
    for listed in page.xpath("//*[@role='doc-biblioentry' or contains(@class, 'citation-list')]"):
        listed.attrib.pop("role", None)
    for corner in page.xpath("//th[not(normalize-space())]"):
        corner.tag = "td"
    for search in _with_class(page, "search-button-field"):
        search.attrib.pop("aria-label", None)  # its text is its name


def _icons(static):
    """The theme's icons by name, from its own script: width, height and path."""
    known, script = {}, (static / "scripts" / "fontawesome.js").read_text("utf-8")
    form = r'[{,]"?([\w-]+)"?:\[(\d+),(\d+),\[([^\]]*)\],"[0-9a-f]+","([^"]+)"\]'
    for icon in re.finditer(form, script):  # a name comes again in each style; the last is the solid one
        for name in (icon[1], *re.findall(r'"([\w-]+)"', icon[4])):
            known[name] = icon[2], icon[3], icon[5]
    return known


def _draw(page, icons):
    """Draw icons in the page, where the theme has `<i class="fa-solid fa-bars">` for its script to replace."""
    for element in page.xpath("//*[self::i or self::span][contains(@class, 'fa-')]"):
        classes = (element.get("class") or "").split()
        name = next(word[3:] for word in classes if word.startswith("fa-") and word not in ("fa-solid", "fa-lg"))
        if name not in icons:
            raise ValueError(f"the theme's script has no icon {name!r}")
        width, height, path = icons[name]
        kept = [word for word in classes if not word.startswith("fa")]
        drawing = etree.Element("svg", {"class": " ".join(["icon", *kept]), "viewBox": f"0 0 {width} {height}"})
        drawing.set("aria-hidden", "true")
        if element.get("data-mode"):
            drawing.set("data-mode", element.get("data-mode"))
        etree.SubElement(drawing, "path", fill="currentColor", d=path)
        drawing.tail = element.tail
        element.getparent().replace(element, drawing)


def _menus(page):
    """Menus of the header, which open without a script: `<details>` instead of Bootstrap."""
    for menu in page.xpath("//div[contains(@class, 'dropdown')][button[contains(@class, 'dropdown-toggle')]]"):
        menu.tag = "details"
        button = menu.find("button")
        button.tag = "summary"
        button.attrib.pop("type", None)
        button.attrib.pop("aria-expanded", None)
        button.set("title", button.get("aria-label", ""))


def _unfolding(page):
    """Hints and solutions: `<details>` instead of a script that hides them."""
    for box in _with_class(page, "admonition", "dropdown"):
        title = next(child for child in box if "admonition-title" in _classes(child))
        title.tag = "summary"
        etree.strip_tags(title, "a", "span")
        box.tag = "details"
        box.text = None
    for summary in page.xpath("//details[contains(@class, 'hide')]/summary"):
        summary.attrib.pop("aria-label", None)  # its text says more


def _images(page):
    """Give images their sizes, so that nothing jumps; those further down load when they are near."""
    for number, image in enumerate(page.tree.xpath("//main//img")):
        source = page.find(image.get("src", ""))
        if source and source.suffix == ".png" and source.is_file() and not image.get("width"):
            width, height = struct.unpack(">II", source.read_bytes()[16:24])
            image.set("width", str(width))
            image.set("height", str(height))
        if number:
            image.set("loading", "lazy")
        image.set("decoding", "async")


def _chapter(page, chapter):
    """Say above a chapter how long it is and on how many devices it runs, and below it when and with what it ran."""
    article = next(iter(page.xpath("//article")))
    facts = [f"{max(1, round(_words(article) / WORDS_A_MINUTE))} minutes to read"] + [chapter.devices] * bool(
        chapter.devices
    )
    line = next(iter(_with_class(article, "run-it")), None)
    if line is not None:
        etree.SubElement(line, "span").text = ", ".join(facts)
    if chapter.executed:
        foot = etree.SubElement(article, "p", {"class": "executed"})
        foot.text = f"Every output on this page is from a run on {chapter.executed}, with {chapter.versions}."


def _words(element):
    """The number of words to read, without outputs and solutions."""
    if not isinstance(element.tag, str) or {"cell_output", "solution"} & _classes(element):
        return 0
    return sum(len((text or "").split()) for text in (element.text, *(child.tail for child in element))) + sum(
        map(_words, element)
    )


# --- The head --------------------------------------------------------------------------------------------------


def _scripts(page):
    """Keep the scripts that have something to do here; all wait until the page is shown."""
    found, head = {}, page.find("head")
    for script in page.xpath("//script"):
        source = script.get("src")
        name = Path(urlsplit(source or "").path).name
        if source and name not in DROPPED and (name not in ONLY_WITH or page.xpath(ONLY_WITH[name])):
            found.setdefault(source, script)
        if source or script.get("type") != "application/json":
            script.drop_tree()
    for source, script in found.items():
        attributes = {name: value for name, value in script.attrib.items() if name.startswith("data-")}
        etree.SubElement(head, "script", src=source, defer="", **attributes)


def _head(page, about):
    tree, head = page.tree, page.tree.find("head")
    for element in [
        *head.xpath(".//link[@rel='stylesheet' or @rel='preload']"),
        *head.xpath(".//meta[@name='viewport' or starts-with(@name, 'docsearch') or starts-with(@property, 'og:')]"),
        *head.xpath(".//style"),
    ]:
        element.drop_tree()
    heading = next(iter(tree.xpath("//article//h1")), None)
    title = heading.text_content().strip().removesuffix("#") if heading is not None else about.title
    first = next(iter(tree.xpath("//article//section/p[not(@class)]")), None)
    text = " ".join(first.text_content().split()) if first is not None else about.title
    text = text if len(text) <= 160 else text[:157].rsplit(" ", 1)[0] + " …"
    address = about.site + page.address
    metas = [
        {"name": "viewport", "content": "width=device-width, initial-scale=1"},
        {"name": "description", "content": text},
        {"property": "og:title", "content": title},
        {"property": "og:description", "content": text},
        {"property": "og:site_name", "content": about.title},
        {"property": "og:type", "content": "article" if page.name in about.chapters else "website"},
        {"property": "og:url", "content": address},
        {"property": "og:image", "content": f"{about.site}_static/{CARD}"},
        {"name": "twitter:card", "content": "summary_large_image"},
    ]
    for attributes in metas:
        etree.SubElement(head, "meta", **attributes)
    etree.SubElement(head, "link", rel="canonical", href=address)
    etree.SubElement(head, "link", rel="icon", type="image/svg+xml", href=f"{page.static}icon.svg")
    mode = etree.Element("script")
    mode.text = MODE
    _first_in_head(tree, mode)


def _stand_alone(page, about, sheet):
    """Make the page independent of its address, because hosts show it at any address."""
    for element in page.xpath("//script[@src] | //link[@rel='icon']"):
        element.drop_tree()
    for link in page.xpath("//link[@rel='stylesheet']"):
        link.tag, link.text = "style", sheet.read_text("utf-8")
        link.attrib.clear()
    page.rewrite_links(
        lambda link: link if link.startswith("#") else urljoin(about.site, link), resolve_base_href=False
    )


def _policy(page):
    """What a browser may load and run for this page: only the site's own. Drawings have styles as attributes."""
    inline = {"script": "", "style": ""}
    for element in page.xpath("//script[not(@src) and not(@type)] | //style"):
        digest = hashlib.sha256(element.text.encode()).digest()
        inline[element.tag] += f" 'sha256-{base64.b64encode(digest).decode()}'"
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self'{inline['script']}",
            f"style-src-elem 'self'{inline['style']}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "connect-src 'self'",  # the search shows an excerpt of each page
            "base-uri 'none'",
            "form-action 'self'",
        ]
    )


def _first_in_head(page, element):
    """Put an element at the beginning of the head, after what says how to read the page."""
    head = page.find("head")
    place = next((n for n, child in enumerate(head) if child.tag == "title"), 0)
    head.insert(place + 1, element)


# --- Styles, and files that no page loads any more ------------------------------------------------------------


def _sheets(pages):
    """The style sheets that pages ask for, in order."""
    sheets = {}
    for page in pages:
        for address in page.sheets:
            sheets.setdefault(page.find(address))
    return [sheet for sheet in sheets if sheet.name not in DROPPED_STYLES]


def _join(sheets, pages, file):
    """Write one style sheet, with the rules that can apply, if it is not there; returns a digest of it."""
    text = "".join(map(_with_imports, sheets))
    names = {name for page in pages for name in page.needs["names"]}
    tags = {tag for page in pages for tag in page.needs["tags"]}
    scripts = {page.find(source) for page in pages for source in page.needs["scripts"]}
    for script in sorted(scripts):
        if script.name != "searchindex.js":  # all words of the book
            words = script.read_text("utf-8")
            names |= set(re.findall(r"[A-Za-z_][\w-]*", words))
            tags |= set(re.findall(r"""["'`]([a-z][a-z0-9]*)["'`]""", words))
    made_from = hashlib.sha256("\n".join([text, *sorted(tags), *sorted(names)]).encode()).hexdigest()[:8]
    if not file.exists() or not file.read_text("utf-8").startswith(f"/*{made_from}*/"):
        file.write_text(f"/*{made_from}*/{styles.reduce(text, tags, names)}", "utf-8")
    return hashlib.sha256(file.read_bytes().partition(b"*/")[2]).hexdigest()[:8]


def _with_imports(file):
    """A style sheet, with those that it imports."""
    text = file.read_text("utf-8")
    found = re.compile(r'@import\s+(?:url\()?"([^"]+)"\)?;')
    return "".join(_with_imports(file.parent / name) for name in found.findall(text)) + found.sub("", text) + "\n"


def _tidy(pages, folder):
    """Delete what no page loads, of the theme and of earlier versions of chapters."""
    asked = {page.find(address) for page in pages for address in page.needs["files"]}
    asked.add((folder / "_static" / "site.css").resolve())
    asked |= {(folder / "_static" / name).resolve() for name in BY_SCRIPT}
    below = [file for name in BELOW for file in (folder / name).rglob("*")]
    for file in sorted(below, reverse=True):
        if file.is_dir():
            if not any(file.iterdir()):
                file.rmdir()
        elif file.resolve() not in asked and file.name != CARD:
            file.unlink()


def _sitemap(addresses):
    """A list of all pages for search engines."""
    inside = "".join(f"<url><loc>{address}</loc></url>" for address in addresses)
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return f'{head}<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{inside}</urlset>\n'
