"""Slides of built pages, in one file of HTML that needs no network.

A chapter has its question and its key figure, its predictions as a question and its answer, and its
takeaways.
"""

import base64
import html
import mimetypes
from copy import copy
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bookbinder.show import articles

STYLE, SCRIPT = (Path(__file__).with_name(f"slides.{kind}") for kind in ("css", "js"))
LONGEST = 24  # lines of code on a slide
LEFT_OUT = ".headerlink, .facts, button, script, .verdict"
PAGE = """<!DOCTYPE html>
<html lang="en" data-theme="light"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>{styles}</head>
<body class="deck"><main>{slides}</main><p id="at" aria-live="polite"></p>
<script>{script}</script></body></html>
"""


def deck(site, names, title, where, stops=()):
    """A deck of slides, as HTML.

    Args:
      site: the folder of the built site.
      names: of the chapters, in order, such as "arrays".
      title: of the deck.
      where: the book's address, as `bookbinder.read.address` has it; links lead there.
      stops: sections of the core, as `bookbinder.read.core` has them: of the chapters that they
        name, only these sections have slides.
    """
    sheets, slides = {}, [_slide("title", f"<h1>{html.escape(title)}</h1>", _link(where.site))]
    for name in names:
        article, own_sheets = articles.read(site, name, stops)
        sheets |= dict.fromkeys(own_sheets)
        for one in article.select(LEFT_OUT):
            one.decompose()
        articles.lead_within(article, name, (), site, where)
        for picture in article.select("img[src]"):
            picture["src"] = _as_data(picture["src"])
        slides += _of_chapter(article, _link(where.page(name)))
    styles = "".join(f"<style>{sheet}</style>" for sheet in (*sheets, STYLE.read_text("utf-8")))
    return PAGE.format(
        title=html.escape(title),
        styles=styles,
        slides="\n".join(slides),
        script=SCRIPT.read_text("utf-8"),
    )


def _of_chapter(article, link):
    """The slides of a chapter: what it asks and shows first, its questions, its takeaways."""
    top = article.h1.parent
    hook = next((p for p in top.find_all("p", recursive=False) if not p.em), "")
    figure = top.find(class_="key-figure") or ""
    yield _slide("title", str(article.h1), str(hook), str(figure), link)
    points = []
    for one in article.select(".predict, .tip.admonition"):
        if "predict" in one.get("class"):
            yield from _question(article, one, link)
        else:
            points.append("".join(str(p) for p in one.select("p:not(.admonition-title)")))
    if points:
        listed = "".join(f"<li>{point}</li>" for point in points)
        yield _slide("points", "<h2>What to take away</h2>", f"<ul>{listed}</ul>", link)


def _question(article, asked, link):
    """A prediction on two slides: the question, with the code that answers it, and the answer."""
    answer = article.find("details", id=f"{article['id']}--{asked['data-answer']}")
    heading = asked.find_previous(["h2", "h3", "h4", "h1"])
    head = f"<h2>{heading.decode_contents()}</h2>"
    said = "".join(map(str, asked.find_all("p", recursive=False)))
    cell = answer.find_parent(class_="cell")
    code = cell.find(class_="cell_input", recursive=False) if cell else None
    shown = str(code) if code and len(code.get_text().strip().split("\n")) <= LONGEST else ""
    yield _slide("question", head, said, _beside(_choices(asked), shown), link)
    told = copy(answer)
    told.summary.decompose()
    told.p.decompose()  # which says the right choice once more
    output = told.find(class_="cell_output")
    output = str(output.extract()) if output else ""
    because = _choices(asked, right=" class=right") + told.decode_contents()
    yield _slide("answer", head, said, _beside(because, output), link)


def _choices(asked, right=""):
    """The choices of a prediction, of which the right one has an attribute."""
    items = (
        f"<li{right if label.select('[data-right]') else ''}>{label.span.decode_contents()}</li>"
        for label in asked.find_all("label", recursive=False)
    )
    return f"<ol>{''.join(items)}</ol>"


def _slide(kind, *parts):
    """A slide, whose last part is the link to its page."""
    *shown, link = parts
    return f'<section class="slide {kind}"><div class="fit">{"".join(shown)}</div>{link}</section>'


def _beside(left, right):
    """Two columns, or one where there is nothing for the second."""
    if not right.strip():
        return left
    return f'<div class="beside"><div>{left}</div><div>{right}</div></div>'


def _link(address):
    shown = html.escape(address.partition("://")[2].rstrip("/"))
    return f'<p class="from"><a href="{html.escape(address)}">{shown}</a></p>'


def _as_data(source):
    """A picture's file as an address that holds it."""
    file = Path(unquote(urlsplit(source).path))
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
