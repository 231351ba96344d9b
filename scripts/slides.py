#!/usr/bin/env python3
"""Make slides of the built site: a deck for each path through the book, or for the chapters that
are named, in files of HTML that need no network.

`make book` comes first. A deck has, for each chapter, its question and its key figure, its
predictions as a question and its answer, and its takeaways; they are the page's own. Arrow keys
turn the slides, f fills the screen, and the browser prints one slide on each page.
"""

import argparse
import html
import sys
from difflib import get_close_matches
from pathlib import Path

from bookbinder.read import address, book, core
from bookbinder.show import slides

ROOT = Path(__file__).parent.parent
SITE = ROOT / "_build" / "html"
FOLDER = ROOT / "_build" / "slides"
INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Slides</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body { font: 1.2rem/1.6 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }</style>
</head><body><h1>Slides</h1><ul>{links}</ul></body></html>
"""  # noqa: E501


def decks(here):
    """What there are slides of: {name of the file: (title, names of chapters, sections of the
    core)}.
    """
    of = {}
    for name in core.TITLES:
        if stops := core.path(here, name):
            of[name] = core.FILES[name], list(dict.fromkeys(stop.chapter for stop in stops)), stops
    for title, names in here.paths.items():
        of[book.slug(title)] = title, list(names), ()
    return of


def main(arguments=None):
    """Write the decks; returns the exit status."""
    parser = argparse.ArgumentParser(prog="slides.py", description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--site",
        type=Path,
        default=SITE,
        help="the folder of the built site (default: _build/html)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=FOLDER,
        help="the folder to write to (default: _build/slides)",
    )
    parser.add_argument(
        "names", nargs="*", help="of paths or chapters, such as hour or arrays (default: all paths)"
    )
    options = parser.parse_args(arguments)
    here = book.load(ROOT)
    of, site = decks(here), options.site.resolve()
    names = options.names or list(of)
    for chapter in here.chapters:
        of.setdefault(
            chapter.name, (here.titles.get(chapter.name, chapter.name), [chapter.name], ())
        )
    for name in names:
        if name not in of:
            near = get_close_matches(name, of, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(of)}"
            print(f"slides: no path or chapter is called {name}; {hint}", file=sys.stderr)
            return 2
    if not (site / "index.html").is_file():
        print(f"slides: there is no site in {site}; run `make book` first", file=sys.stderr)
        return 1
    options.output.mkdir(parents=True, exist_ok=True)
    where = address.of(here.config)
    for name in names:
        title, chapters, stops = of[name]
        file = options.output / f"{name}.html"
        file.write_text(slides.deck(site, chapters, title, where, stops), "utf-8")
        print(f"{title}: {file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}")
    if not options.names:
        links = "".join(
            f'<li><a href="{name}.html">{html.escape(of[name][0])}</a></li>' for name in names
        )
        (options.output / "index.html").write_text(INDEX.replace("{links}", links), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
