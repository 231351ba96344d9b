"""Articles of built pages, made ready to stand together in one file: a book, a deck of slides."""

from pathlib import Path
from urllib.parse import urlsplit

from bs4 import BeautifulSoup

from bookbinder.page import core as pages_of_core


def read(site, name, stops=()):
    """The article of a page, and the page's style sheets, as texts.

    Args:
      site: the folder of the built site.
      name: of the chapter, such as "arrays".
      stops: sections of the core, as `bookbinder.read.core` has them: if some are the chapter's,
        its others are left out.
    """
    page = BeautifulSoup((site / f"{name}.html").read_text("utf-8"), "html.parser")
    if own := [stop for stop in stops if stop.chapter == name]:
        _keep(page.article, own)
    return page.article, [str(sheet.string) for sheet in page.select("head > style")]


def _keep(article, stops):
    """Leave out what is not in some sections of a chapter, and say what one has to know of it."""
    top = article.h1.parent
    on = {id(top)} | {id(_section(article, stop)) for stop in stops if stop.anchor}
    for section in article.select("section"):
        if not section.decomposed and id(section) not in on:
            section.decompose()
    if stops[0].anchor:  # the opening is not among them
        for one in top.find_all(True, recursive=False):
            if one.name not in ("h1", "section"):
                one.decompose()
    for stop in stops:
        if said := pages_of_core.bridged(stop):
            place = _section(article, stop).find(["h1", "h2", "h3", "h4"])
            place.insert_after(BeautifulSoup(f'<p class="bridge">{said}</p>', "html.parser"))


def _section(article, stop):
    """The section of a page that a stop names."""
    place = article.find(id=stop.anchor) if stop.anchor else article.h1
    return place if place.name == "section" else place.find_parent("section")


def lead_within(article, name, names, site, where):
    """Give ids and links the name of their chapter, find files where they are, and open what is
    folded.
    """
    ids = {one["id"] for one in article.select("[id]")}
    for one in article.find_all(True):
        if one.get("id"):
            one["id"] = f"{name}--{one['id']}"
        for key, value in one.attrs.items():  # plots draw marks, and clip, by such names
            if key == "xlink:href" and value[1:] in ids:
                one[key] = f"#{name}--{value[1:]}"
            elif isinstance(value, str) and "url(#" in value:
                one[key] = value.replace("url(#", f"url(#{name}--")
    article["id"] = name
    for one in article.select("[href]"):
        target = urlsplit(one["href"])
        chapter = Path(target.path).stem if target.path else name
        if target.scheme or target.netloc:
            continue
        if chapter in names and (not target.path or target.path.endswith(".html")):
            one["href"] = f"#{chapter}" + (f"--{target.fragment}" if target.fragment else "")
        else:
            one["href"] = where.site + one["href"]
    for one in article.select("img[src]"):
        one["src"] = (site / one["src"].partition("?")[0]).resolve().as_uri()
    for fold in article.select("details"):
        fold["open"] = ""
