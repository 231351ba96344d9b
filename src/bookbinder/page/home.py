"""What the home page says of the whole book, and the films of other pages that it shows.

In a page the line `% contents of the book` is replaced by all chapters with their minutes, part by
part, and `% numbers of the book` by what is counted in the book's sources. In a container of the
class `films` each item shows the first film of the page that its link leads to.
"""

import posixpath
import re

from docutils import nodes

from bookbinder.page import contracts
from bookbinder.read.book import APPENDICES, FOLDER

_CONTENTS, _NUMBERS = "% contents of the book", "% numbers of the book"
_FILMS = "films"  # the class of the container
_MATRIX = f"{FOLDER}/recordings/matrix.txt"
_MOST = 8  # frames of a film of images, so that the page stays light
_FRAME = re.compile(r"<figure .*?</figure>", re.DOTALL)


def setup(app):
    """Called by the extension."""
    app.connect("source-read", _replace)
    app.connect("doctree-resolved", _show_films)


def _replace(app, docname, source):
    if _CONTENTS not in source[0] and _NUMBERS not in source[0]:
        return
    book = app.bookbinder_book
    paths = [book.root / path for path in [*(one.path for one in book.chapters), _MATRIX]]
    for path in [*paths, *contracts.files(book.root)]:
        app.env.note_dependency(str(path))
    source[0] = source[0].replace(_CONTENTS, contents(book)).replace(_NUMBERS, numbers(book))


def contents(book):
    """All chapters with their minutes, part by part."""
    blocks = []
    for number, (caption, names) in enumerate(book.parts, 1):
        title = "Look it up" if caption == APPENDICES else caption
        lines = [f"{{doc}}`{name}`{_minutes(book, name)}" for name in names]
        blocks.append(
            f":::{{container}} part part-{number}\n**{title}**\n\n"
            + "".join(f"- {line}\n" for line in lines)
            + ":::\n"
        )
    return "::::{container} contents\n\n" + "\n".join(blocks) + "::::\n"


def _minutes(book, name):
    return f" {{brief}}`{name}`" if book.chapter(name).minutes else ""


def numbers(book):
    """What holds the book to its word, counted in its sources."""
    assertions = sum(chapter.assertions for chapter in book.chapters)
    exercises = sum(chapter.text.count("\n```{exercise-start}") for chapter in book.chapters)
    functions = len({(c.chapter, name) for c in contracts.of_book(book.root) for name in c.names})
    file = book.root / _MATRIX
    head = re.search(r"^\|(?:[^|\n]*\|)+", file.read_text("utf-8") if file.exists() else "", re.M)
    versions = head[0].count("|") - 2 if head else 1
    lines = [
        f"- **{assertions:,}** assertions beside what they prove: a false one stops the build",
        f"- **{exercises:,}** exercises that check layout, values and what your answer sends",
        f"- **{functions:,}** functions to copy, tested with inputs drawn at random",
        f"- **{versions:,}** sets of versions of JAX, Colab's too, run every chapter",
    ]
    return ":::{container} numbers\n\n" + "\n".join(lines) + "\n:::\n"


def film_pages(book):
    """The names of the pages of which the home page shows films."""
    home = (
        book.chapters[0].text.partition(f":::{{container}} {_FILMS}\n")[2].partition("\n:::\n")[0]
    )
    return re.findall(r"\{doc\}`[^`]*<(\w+)>`", home)


def _show_films(app, doctree, docname):
    for box in doctree.findall(nodes.container):
        if _FILMS not in box.get("classes", ()):
            continue
        for item in box.findall(nodes.list_item):
            # A page by itself, as `bookbinder chapter` makes it, has no links to others.
            links = [link["refuri"] for link in item.findall(nodes.reference)]
            name = posixpath.join(posixpath.dirname(docname), links[0]) if links else ""
            page = name.partition("#")[0].removesuffix(".html")
            film = _film(app.env.get_doctree(page)) if page in app.env.found_docs else ""
            if film:
                item.insert(0, nodes.raw("", shortened(film), format="html"))


def _film(doctree):
    """The first picture in steps of a page; "" where its outputs are still to come."""
    drawn = (node.astext() for node in doctree.findall(nodes.raw) if node.get("format") == "html")
    return next((html for html in drawn if "data-steps=" in html), "")


def shortened(film):
    """A film of at most eight frames, which rests at the one in its middle.

    Args:
      film: HTML, as `shardlab.film` and `shardlab.draw` make it. Pictures of blocks, which have the
        data of all their frames beside them, keep them all.
    """
    frames = _FRAME.findall(film)
    kept = frames
    if len(frames) > _MOST and "data-flow=" not in film:
        last = len(frames) - 1
        kept = [frames[round(i * last / (_MOST - 1))] for i in range(_MOST)]
    start, end = film.index(frames[0]), film.index(frames[-1]) + len(frames[-1])
    film = film[:start] + "".join(kept) + film[end:]
    steps = f'data-steps="{len(kept)}" data-start="{len(kept) // 2}"'
    return re.sub(r'data-steps="\d+"', steps, film, count=1)
