"""Paths through the book on the site: the list of the core's sections, and what leads along them
and along the paths of whole chapters.

In a page the line `% sections of the core` is replaced by all of them with their minutes, chapter
by chapter, and {core}`hour` says how long a path takes. `_static/core-stops.js` has for
`theme/static/core.js` where each section is, and what one has to know of those that are left out.
A path of whole chapters is named by its title, as in {core-start}`Begin it <run-on-a-cluster>`.
"""

import html
import json
from functools import cache
from itertools import groupby
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxRole

from bookbinder.read import core
from bookbinder.read.book import PREDICTION_MINUTES, in_words, slug

_SECTIONS = "% sections of the core"
STOPS = "core-stops.js"


def setup(app):
    """Called by the extension."""
    app.add_role("core", _Time())
    app.add_role("core-start", _Start())
    app.connect("source-read", _replace)
    app.connect("build-finished", _write)


class _Time(SphinxRole):
    """How long a path takes: {core}`evening`, or {core}`hour`."""

    def run(self):
        if self.text not in core.TITLES:
            known = ", ".join(core.TITLES)
            message = f"there is no path {self.text}; there are {known}"
            return [], [self.inliner.reporter.error(message, line=self.lineno)]
        words = times(core.path(self.env.app.bookbinder_book, self.text))
        return [nodes.inline("", words, classes=["minutes"])], []


class _Start(SphinxRole):
    """A link to where a path begins: {core-start}`its words <hour>`."""

    def run(self):
        words, _, path = self.text.rstrip(">").rpartition("<")
        paths = paths_of(self.env.app.bookbinder_book)
        if path not in paths:
            message = f"there is no path {path}; there are {', '.join(paths)}"
            return [], [self.inliner.reporter.error(message, line=self.lineno)]
        place = f"{paths[path]['stops'][0]['page']}.html?path={path}"
        return [nodes.reference("", words.strip(), refuri=place)], []


def times(stops):
    """How long sections take: "50 minutes to read, 70 minutes with the predictions"."""
    minutes = round(sum(stop.minutes for stop in stops))
    guesses = sum(stop.text.count("**Predict.**") for stop in stops)
    guessed = in_words(minutes + PREDICTION_MINUTES * guesses)
    return f"{in_words(minutes)} to read, {guessed} with the predictions"


def _replace(app, docname, source):
    if _SECTIONS not in source[0] and "{core}`" not in source[0]:
        return
    book = app.bookbinder_book
    for path in [core.FILE, *(one.path for one in book.chapters)]:
        app.env.note_dependency(str(book.root / path))
    source[0] = source[0].replace(_SECTIONS, listed(book))


def listed(book):
    """All sections, chapter by chapter, in MyST; those of the hour are marked."""
    stops, number, parts = core.stops(book), 1, []
    for name, group in groupby(stops, lambda stop: stop.chapter):
        own = list(group)
        minutes = in_words(max(1, round(sum(stop.minutes for stop in own))))
        items = "".join(_item(stop) for stop in own)
        parts.append(
            f'<li><p><a href="{name}.html?path=evening">{html.escape(book.titles.get(name, name))}'
            f'</a> <span class="minutes">{minutes}</span></p><ol start="{number}">{items}</ol></li>'
        )
        number += len(own)
    return f'```{{raw}} html\n<ul class="core">{"".join(parts)}</ul>\n```\n'


def _item(stop):
    kind, path = (' class="in-hour"', "hour") if stop.is_in_hour else ("", "evening")
    place = f"{stop.chapter}.html?path={path}" + (f"#{stop.anchor}" if stop.anchor else "")
    return f'<li{kind}><a href="{place}">{html.escape(stop.title)}</a></li>'


def bridged(stop):
    """What one has to know of the sections that a path leaves out before one, as HTML; "" if
    nothing.
    """
    return _inline().renderInline(stop.bridge)


@cache
def _inline():
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False})


def _write(app, exception):
    """The data of core.js."""
    if exception is not None or app.builder.format != "html":
        return
    book, file = app.bookbinder_book, Path(app.outdir) / "_static" / STOPS
    if paths := paths_of(book):
        data = json.dumps(paths, ensure_ascii=False)
        file.write_text(f"globalThis.coreStops = {data};\n", "utf-8")
    else:
        file.unlink(missing_ok=True)


def paths_of(book):
    """What core.js has to know of each path that has stops, by its name in addresses: of the core,
    with its sections, and of those through whole chapters.
    """
    paths = {
        path: {
            "title": title,
            "stops": [
                _stop(book, one.chapter, round(one.minutes, 2), one.anchor, bridged(one))
                for one in core.path(book, path)
            ],
        }
        for path, title in core.TITLES.items()
    }
    for title, names in book.paths.items():
        stops = [_stop(book, name, book.chapter(name).minutes) for name in names]
        paths[slug(title)] = {"title": title, "whole": True, "stops": stops}
    return {path: content for path, content in paths.items() if content["stops"]}


def _stop(book, page, minutes, anchor="", bridge=""):
    """What core.js has to know of a section, or of a whole chapter."""
    return {
        "page": page,
        "chapter": book.titles.get(page, page),
        "anchor": anchor,
        "minutes": minutes,
        "bridge": bridge,
    }
