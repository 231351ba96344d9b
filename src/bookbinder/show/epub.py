"""Write bound pages as an EPUB, which e-readers open: a file of XHTML for each chapter, with its
pictures, and a table of contents.

Chromium turns the HTML into XHTML, since it knows how pages are really read. Colours are those of
the light page: most readers know no variables.
"""

import html
import re
import uuid
import zipfile
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

from bookbinder.page import pages
from bookbinder.read import citation

FOLDER = "OEBPS"
STYLE = Path(__file__).with_suffix(".css")
CONTAINER = """<?xml version="1.0" encoding="UTF-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>
"""  # noqa: E501
PAGE = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="en" xml:lang="en">
<head><title>{title}</title><link rel="stylesheet" href="style.css" type="text/css"/></head>
<body>{body}</body></html>
"""  # noqa: E501
PACKAGE = """<?xml version="1.0" encoding="UTF-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="en">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">urn:uuid:{id}</dc:identifier>
<dc:title>{title}</dc:title><dc:language>en</dc:language>{creators}
<meta property="dcterms:modified">{day}T00:00:00Z</meta></metadata>
<manifest>{manifest}</manifest><spine>{spine}</spine></package>
"""  # noqa: E501
# XHTML of each article, as the browser reads it; what a reader of books cannot use is left out.
SERIALIZE = """() => [...document.querySelectorAll("article")].map((article) => {
  for (const one of article.querySelectorAll("*")) {
    for (const { name } of [...one.attributes]) {
      if (/^data-|^aria-(?!label|hidden)|^on|^paint-order$/.test(name)) one.removeAttribute(name);
    }
  }
  for (const drawn of article.querySelectorAll("svg")) {
    if (drawn.getAttribute("role") !== "img") drawn.removeAttribute("role");
    for (const link of drawn.querySelectorAll("a")) {
      if (!link.querySelector("title")) {
        const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
        title.textContent = link.textContent.trim();
        link.prepend(title);
      }
    }
  }
  for (const fold of article.querySelectorAll("details, summary")) {
    const box = document.createElement("div");
    box.className = fold.className;
    if (fold.id) box.id = fold.id;
    box.append(...fold.childNodes);
    fold.replaceWith(box);
  }
  return new XMLSerializer().serializeToString(article);
})"""
KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg", ".webp": "image/webp"}


def write(bound, file, program, title, cited):
    """Write what `scripts/pdf.py` has bound as an EPUB.

    Args:
      bound: HTML, parsed: an article for each chapter, with ids that begin with its own.
      file: the file to write.
      program: Chromium's path.
      title: of the file.
      cited: what `CITATION.cff` says; {} if there is none.
    """
    bound, images = copy(bound), {}
    bound.select_one("#contents").decompose()
    for mark in bound.select(".at"):  # there are no pages
        sentence = mark.find_parent(class_="elsewhere")
        word = "The question" if "question" in sentence.get_text() else "The answer"
        mark.string = word
        sentence.clear()
        sentence.append(mark)
    for one in bound.select("img[src]"):
        picture = Path(unquote(urlsplit(one["src"]).path))
        one["src"] = images.setdefault(picture, f"images/{len(images)}{picture.suffix}")
        one["alt"] = one.get("alt", "")
    articles = bound.select("article")
    names = {one["id"] for one in articles if one.get("id")}
    ids = {one["id"] for one in bound.select("[id]")}
    for link in bound.select('[href^="#"]'):
        place = link["href"][1:]
        name = place.partition("--")[0]
        if place not in ids:
            link.unwrap()  # to what is left out
        else:
            link["href"] = f"{name}.xhtml#{place}" if name in names else f"cover.xhtml#{place}"
    bodies = [_plain(body) for body in _serialized(bound, program)]
    titles = [" ".join(one.h1.get_text().split()) for one in articles]
    files = [f"{one.get('id') or 'cover'}.xhtml" for one in articles]
    listed = "".join(
        f'<li><a href="{name}">{html.escape(text)}</a></li>'
        for name, text in zip(files, titles, strict=True)
    )
    contents = f'<nav epub:type="toc" id="toc"><h1>Contents</h1><ol>{listed}</ol></nav>'
    pieces = [*zip(files, titles, bodies, strict=True), ("nav.xhtml", "Contents", contents)]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        # readers look for this first, and as it is
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        archive.writestr("META-INF/container.xml", CONTAINER)
        archive.writestr(f"{FOLDER}/book.opf", _package(pieces, images, title, cited))
        archive.write(STYLE, f"{FOLDER}/style.css")
        for name, text, body in pieces:
            page = PAGE.format(title=html.escape(text), body=body)
            archive.writestr(f"{FOLDER}/{name}", page)
        for picture, name in images.items():
            archive.write(picture, f"{FOLDER}/{name}")


def _serialized(bound, program):
    """The XHTML of each article."""
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        whole = Path(folder) / "book.html"
        whole.write_text(str(bound), "utf-8")
        browser = playwright.chromium.launch(executable_path=program, timeout=0)
        page = browser.new_page()
        page.set_default_timeout(0)
        page.goto(whole.as_uri())
        bodies = page.evaluate(SERIALIZE)
        browser.close()
    return bodies


def _plain(body):
    """XHTML with the colours of the light page in place of variables, and one namespace."""
    colours = pages.colours()
    body = re.sub(r"light-dark\(([^,()]+), [^()]+\)", r"\1", body)
    body = re.sub(r"var\(--([\w-]+)\)", lambda name: colours.get(name[1], name[0]), body)
    return body.replace(' xmlns="http://www.w3.org/1999/xhtml"', "")


def _package(pieces, images, title, cited):
    """The list of all files, in the order in which they are read."""
    whole = f"{title}: {cited['title']}" if cited else title
    people = map(html.escape, citation.people(cited))
    first = ["cover.xhtml", "nav.xhtml"]
    order = first + [name for name, *_ in pieces if name not in first]
    items = [
        f'<item id="{_id(name)}" href="{name}" media-type="application/xhtml+xml"'
        f"{_properties(name, body)}/>"
        for name, _, body in pieces
    ]
    items += [
        f'<item id="{_id(name)}" href="{name}" media-type="{KINDS[Path(name).suffix]}"/>'
        for name in images.values()
    ]
    return PACKAGE.format(
        id=uuid.uuid5(uuid.NAMESPACE_URL, whole),
        title=html.escape(whole),
        creators="".join(f"<dc:creator>{name}</dc:creator>" for name in people),
        day=cited.get("date-released", "2026-01-01"),
        manifest="".join([*items, '<item id="style" href="style.css" media-type="text/css"/>']),
        spine="".join(f'<itemref idref="{_id(name)}"/>' for name in order),
    )


def _id(name):
    return "f-" + re.sub(r"\W", "-", name)


def _properties(name, body):
    """What a reader has to be able to show for a file."""
    kinds = ["nav"] if name == "nav.xhtml" else []
    page = BeautifulSoup(body, "html.parser")
    kinds += [kind for kind, tag in (("svg", "svg"), ("mathml", "math")) if page.find(tag)]
    return f' properties="{" ".join(kinds)}"' if kinds else ""
