"""Bind the built site into one PDF with a cover, contents, running heads, bookmarks and links
between its chapters; or a path through its core, hour or evening, into a PDF and an EPUB.

`make book` comes first. Prints what Chromium prints of the pages: light, with all folds open. The
answers stand at the end of each chapter. Chromium does not know on which page a link leads, so the
book is printed twice: the first time tells the pages, and the second has their numbers.
"""

import argparse
import json
import shutil
import sys
import tempfile
from copy import copy
from pathlib import Path

import pikepdf
import yaml
from bs4 import BeautifulSoup
from playwright.sync_api import sync_playwright

from bookbinder.read import address, book, citation, core
from bookbinder.show import articles, epub

ROOT = Path(__file__).parent.parent
SITE = ROOT / "_build" / "html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BARS = ".facts", ".place", ".headerlink", ".end"
ON_SCREEN = "script", "input", "button", *BARS, ".verdict", "details.hide > summary .expanded"
# what leads elsewhere
OF_HOME = ".buttons", ".about + .cell", "section section:has(.doors, .films, .numbers, .contents)"
LEFT_OUT = ", ".join([*ON_SCREEN, *OF_HOME])
STYLE = """
@page { size: A4; margin: 20mm 18mm 18mm; @bottom-center { content: counter(page); font: 8pt sans-serif; } }
@page cover { @bottom-center { content: none; } }
body { font-size: 9.5pt; }
article { break-before: page; max-width: none; }
article section > * { max-width: 100% !important; }
details.hide > summary { display: none; }
summary::after { content: none !important; }
.part { color: var(--soft); margin: 0; }
.cover { break-before: auto; page: cover; }
.cover h1 { font-size: 2.6rem; margin: 30vh 0 3rem; }
.subtitle { font-size: 1.6rem; }
.contents ul { list-style: none; padding: 0; margin: 0.2rem 0 1rem; }
.contents li { break-inside: avoid; display: flex; gap: 0.5rem; align-items: baseline; }
.contents li::after { content: ""; order: 1; flex: 1; border-bottom: 1px dotted; }
.contents .at { order: 2; text-align: right; }
.contents .part { break-after: avoid; }
.at { display: inline-block; min-width: 2.5em; }
.elsewhere { color: var(--soft); font-size: 0.9em; }
.answers h3 + .elsewhere { break-after: avoid; }
"""  # noqa: E501
UNKNOWN = "0000"  # in place of the number of a page, and as wide


def bind(site, config, parts, names, cited, path="", stops=()):
    """The pages of chapters as one page.

    Args:
      site: the folder of the built site.
      config: what `_config.yml` says.
      parts: the parts of `_toc.yml`.
      names: of chapters, in order, such as "arrays".
      cited: what `CITATION.cff` says.
      path: the path through the core that is bound; "" for whole chapters.
      stops: its sections, as `bookbinder.read.core` has them.

    Returns:
      HTML, parsed. Each id begins with the name of its chapter, and links within the book lead to
      those. A link of the class `at` has the number of the page as text, once that is known.
    """
    where, part_of = address.of(config), {}
    for number, part in enumerate(parts, 1):
        part_of |= {Path(one["file"]).name: (number, part["caption"]) for one in part["chapters"]}
    bound = BeautifulSoup(
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"></head><body></body></html>',
        "html.parser",
    )
    bound.head.append(bound.new_tag("title", string=config["title"]))
    titles, sheets = {}, {}
    for name in names:
        article, own_sheets = articles.read(site, name, stops)
        sheets |= dict.fromkeys(own_sheets)
        _answers_last(bound, article)
        for one in article.select(LEFT_OUT):
            one.decompose()
        number, caption = part_of.get(name, (None, None))
        if number:
            article["data-part"] = str(number)
            article.h1.insert_before(bound.new_tag("p", attrs={"class": "part"}, string=caption))
        titles[name] = " ".join(article.h1.get_text().split())
        articles.lead_within(article, name, names, site, where)
        bound.body.append(article)
    for sheet in (
        *sheets,
        STYLE,
        *(_head(name, title) for name, title in {**titles, "contents": "Contents"}.items()),
    ):
        bound.head.append(bound.new_tag("style", string=sheet))
    bound.body.insert(0, _cover(bound, config, cited, where, core.FILES.get(path, "")))
    bound.body.insert(1, _contents(bound, parts, titles))
    return bound


def _head(name, title):
    """The style that writes a title above each page of an article."""
    says = f"content: {json.dumps(title, ensure_ascii=False)}; font: 8pt sans-serif; color: #555"
    return f"@page of-{name} {{ @top-left {{ {says}; }} }}\narticle#{name} {{ page: of-{name}; }}"


def _cover(bound, config, cited, where, subtitle=""):
    """The title, and who wrote the book, when and under which licence."""
    cover = bound.new_tag("article", attrs={"class": "cover"})
    cover.append(bound.new_tag("h1", string=cited.get("title") or config["title"]))
    if subtitle:
        cover.append(bound.new_tag("p", attrs={"class": "subtitle"}, string=subtitle))
    edition = f"Version {cited['version']}, {cited['date-released']}" if cited else ""
    for line in (
        ", ".join(citation.people(cited)) or config.get("author", ""),
        edition,
        f"© {config.get('copyright', '')}",
    ):
        cover.append(bound.new_tag("p", string=line))
    online = bound.new_tag("p", string="Online, with every chapter as a notebook: ")
    online.append(bound.new_tag("a", href=where.site, string=where.site))
    cover.append(online)
    return cover


def _contents(bound, parts, titles):
    """The chapters by part, with their pages."""
    contents = bound.new_tag("article", id="contents")
    contents["class"] = "contents"
    contents.append(bound.new_tag("h1", string="Contents"))
    for part in parts:
        listed = [name for one in part["chapters"] if (name := Path(one["file"]).name) in titles]
        if not listed:
            continue
        contents.append(bound.new_tag("p", attrs={"class": "part"}, string=part["caption"]))
        chapters = bound.new_tag("ul")
        for name in listed:
            entry = bound.new_tag("li")
            entry.extend(
                [bound.new_tag("a", href=f"#{name}", string=titles[name]), _at(bound, name)]
            )
            chapters.append(entry)
        contents.append(chapters)
    return contents


def _at(bound, place):
    """The number of the page on which a place is, as a link to it."""
    return bound.new_tag("a", attrs={"class": "at"}, href=f"#{place}", string=UNKNOWN)


def _answers_last(bound, article):
    """Move answers of predictions and exercises to the end of their chapter; each place names the
    page of the other.
    """
    last = bound.new_tag("section", attrs={"class": "answers"})
    last.append(bound.new_tag("h2", string="Answers"))
    asked = {one["data-answer"]: one for one in article.select("[data-answer]")}
    for fold in article.select("details.answer, details.solution"):
        if question := asked.get(fold["id"]):
            question["id"] = f"question-{fold['id'].removeprefix('answer-')}"
            title = question["aria-label"]
            _say_why_not(bound, question, fold)
        else:
            question = fold.find_previous(class_="exercise")
            title = question.select_one(".caption-number").get_text().strip()
        checked = fold.find_next_sibling()
        forth = bound.new_tag("p", attrs={"class": "elsewhere"}, string="The answer is on page ")
        forth.append(_at(bound, fold["id"]))
        fold.replace_with(forth)
        fold.summary.decompose()
        fold.name = "div"
        back = bound.new_tag("p", attrs={"class": "elsewhere"}, string="The question is on page ")
        back.append(_at(bound, question["id"]))
        last.extend([bound.new_tag("h3", string=title), back, fold])
        if checked and "checked" in checked.get("class", ()):  # it would tell the answer
            last.append(checked.extract())
    if last.h3:
        article.h1.parent.append(last)


def _say_why_not(bound, question, answer):
    """Move the reasons of wrong choices, which a page shows when one is chosen, to the answer,
    before what it shows.
    """
    shown = answer.select_one(".cell_output")
    for reason in question.select(".reason"):
        choice = reason.find_previous_sibling("label")
        if not choice.select("[data-right]"):
            said = bound.new_tag("p", string="Not: ")
            said.extend([*copy(choice.span).contents, ". ", *reason.p.extract().contents])
            shown.insert_before(said, *list(reason.contents))
        reason.decompose()


def _name(bookmarks, titles):
    """Give bookmarks their spaces again: Chromium loses those where a heading's line ends."""
    for one in bookmarks:
        one.title = titles.get(_letters(one.title), one.title)
        _name(one.children, titles)


def _letters(title):
    return "".join(title.split())


def write(bound, output, program):
    """Print what was bound, and write it with the numbers of pages to a file."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        made = Path(folder) / address.PDF
        # a busy machine takes its time
        browser = playwright.chromium.launch(executable_path=program, timeout=0)
        _print(browser, bound, made)
        pages = pages_of(made)
        for link in bound.select(".at"):
            link.string = str(pages[link["href"].removeprefix("#")])
        _print(browser, bound, made)
        browser.close()
        assert pages_of(made) == pages, "the numbers of pages have moved what they number"
        with pikepdf.open(made) as pdf:  # half the size
            with pdf.open_outline() as outline:
                titles = [
                    " ".join(title.get_text().split()) for title in bound.select("h1, h2, h3")
                ]
                _name(outline.root, {_letters(title): title for title in titles})
            pdf.save(
                output, object_stream_mode=pikepdf.ObjectStreamMode.generate, recompress_flate=True
            )


def _print(browser, bound, file):
    whole = file.with_suffix(".html")
    whole.write_text(str(bound), "utf-8")
    # Without scripts, so that figures of several frames show them all.
    page = browser.new_context(java_script_enabled=False, color_scheme="light").new_page()
    page.set_default_timeout(0)
    page.goto(whole.as_uri())
    page.pdf(path=file, prefer_css_page_size=True, print_background=True, outline=True, tagged=True)
    page.close()


def pages_of(file):
    """The number of the page of each place to which a link leads."""
    with pikepdf.open(file) as pdf:
        numbers = {page.objgen: number for number, page in enumerate(pdf.pages, 1)}
        return {
            name.removeprefix("/"): numbers[place[0].objgen]
            for name, place in pdf.Root.Dests.items()
        }


def main(arguments=None):
    """Write the PDF; returns the exit status."""
    parser = argparse.ArgumentParser(prog="pdf.py", description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--site",
        type=Path,
        default=SITE,
        help="the folder of the built site (default: _build/html)",
    )
    parser.add_argument(
        "--output", type=Path, help=f"the file to write (default: _build/{address.PDF})"
    )
    text = (
        "such as arrays (default: all, in order); or hour or evening, for a path through the core"
    )
    parser.add_argument("chapters", nargs="*", help=text)
    options = parser.parse_args(arguments)
    here = book.load(ROOT)
    path = options.chapters[0] if options.chapters in [[name] for name in core.TITLES] else ""
    output = options.output or ROOT / "_build" / (f"{path}.pdf" if path else address.PDF)
    site, known = options.site.resolve(), [chapter.name for chapter in here.chapters]
    for name in options.chapters if not path else ():
        if name not in known:
            print(f"pdf: there is no chapter {name}; there are {', '.join(known)}", file=sys.stderr)
            return 2
    if not (site / "index.html").is_file():
        print(f"pdf: there is no site in {site}; run `make book` first", file=sys.stderr)
        return 1
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not program:
        print("pdf: no Chromium found on PATH; install chromium", file=sys.stderr)
        return 1
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    parts = toc.get("parts") or [{"caption": "Chapters", "chapters": toc["chapters"]}]
    stops = core.path(here, path) if path else ()
    names = list(dict.fromkeys(stop.chapter for stop in stops)) or options.chapters or known
    bound = bind(site, here.config, parts, names, citation.of(ROOT), path, stops)
    if path:
        book_file = output.with_suffix(".epub")
        epub.write(bound, book_file, program, core.FILES[path], citation.of(ROOT))
        _say(book_file)
    write(bound, output, program)
    _say(output)
    return 0


def _say(file):
    """Where a file was written."""
    print(f"the book: {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}")


if __name__ == "__main__":
    sys.exit(main())
