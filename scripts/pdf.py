"""Bind the built site into one PDF with bookmarks, links between its chapters, and page numbers.

`make book` comes first. Prints what Chromium prints of the pages: light, with all folds open.
"""

import argparse
import shutil
import sys
import tempfile
from datetime import date
from pathlib import Path
from urllib.parse import urlsplit

import pikepdf
import yaml
from bs4 import BeautifulSoup
from playwright.sync_api import sync_playwright

from bookbinder.read import address, book

ROOT = Path(__file__).parent.parent
SITE = ROOT / "_build" / "html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BARS = ".facts", ".place", ".headerlink", ".end"
ON_SCREEN = "script", "input", "button", *BARS, ".verdict", "details.hide > summary .expanded"
OF_HOME = ".buttons", ".buttons + .cell", "section section:has(.cards, .paths, .proofs)"  # what leads elsewhere
LEFT_OUT = ", ".join([*ON_SCREEN, *OF_HOME])
STYLE = """
@page { size: A4; margin: 16mm 18mm 18mm; }
body { font-size: 9.5pt; }
article { break-before: page; max-width: none; }
article section > * { max-width: 100% !important; }
.part { color: var(--soft); margin: 0; }
.cover { break-before: auto; }
.cover h1 { font-size: 2.6rem; margin-top: 30vh; }
.cover li { break-inside: avoid; }
"""
FOOTER = """\
<p style="width: 100%; margin: 0; font: 8pt sans-serif; text-align: center"><span class="pageNumber"></span></p>"""


def bind(site, config, parts, names):
    """The pages of chapters as one page.

    Args:
      site: the folder of the built site.
      config: what `_config.yml` says.
      parts: the parts of `_toc.yml`.
      names: of chapters, in order, such as "arrays".

    Returns:
      HTML, parsed. Each id begins with the name of its chapter, and links within the book lead to those.
    """
    where, part_of = address.of(config), {}
    for number, part in enumerate(parts, 1):
        part_of |= {Path(one["file"]).name: (number, part["caption"]) for one in part["chapters"]}
    bound = BeautifulSoup(
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"></head><body></body></html>', "html.parser"
    )
    bound.head.append(bound.new_tag("title", string=config["title"]))
    titles, sheets = {}, {}
    for name in names:
        page = BeautifulSoup((site / f"{name}.html").read_text("utf-8"), "html.parser")
        article = page.article
        sheets |= dict.fromkeys(sheet.string for sheet in page.select("head > style"))
        for one in article.select(LEFT_OUT):
            one.decompose()
        number, caption = part_of.get(name, (None, None))
        if number:
            article["data-part"] = str(number)
            article.h1.insert_before(bound.new_tag("p", attrs={"class": "part"}, string=caption))
        titles[name] = article.h1.get_text().strip()
        _lead_within(article, name, names, site, where)
        bound.body.append(article)
    for sheet in (*sheets, STYLE):
        bound.head.append(bound.new_tag("style", string=sheet))
    bound.body.insert(0, _cover(bound, config, parts, titles, where))
    return bound


def _cover(bound, config, parts, titles, where):
    """The title, what the book is, and its chapters by part."""
    cover = bound.new_tag("article", attrs={"class": "cover"})
    cover.append(bound.new_tag("h1", string=config["title"]))
    said = bound.new_tag("p", string=f"Bound on {date.today().isoformat()} from the pages at ")
    said.append(bound.new_tag("a", href=where.site, string=where.site))
    cover.append(said)
    for part in parts:
        cover.append(bound.new_tag("p", attrs={"class": "part"}, string=part["caption"]))
        chapters = bound.new_tag("ul")
        for one in part["chapters"]:
            name = Path(one["file"]).name
            if name in titles:
                entry = bound.new_tag("li")
                entry.append(bound.new_tag("a", href=f"#{name}", string=titles[name]))
                chapters.append(entry)
        cover.append(chapters)
    return cover


def _lead_within(article, name, names, site, where):
    """Give ids and links the name of their chapter, find files where they are, and open what is folded."""
    for one in article.select("[id]"):
        one["id"] = f"{name}--{one['id']}"
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


def _name(bookmarks, titles):
    """Give bookmarks their spaces again: Chromium loses those where a heading's line ends."""
    for one in bookmarks:
        one.title = titles.get(_letters(one.title), one.title)
        _name(one.children, titles)


def _letters(title):
    return "".join(title.split())


def main(arguments=None):
    """Write the PDF; returns the exit status."""
    parser = argparse.ArgumentParser(prog="pdf.py", description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path, default=SITE, help="the folder of the built site (default: _build/html)")
    parser.add_argument("--output", type=Path, help=f"the file to write (default: _build/{address.PDF})")
    parser.add_argument("chapters", nargs="*", help="such as arrays (default: all, in order)")
    options = parser.parse_args(arguments)
    here = book.load(ROOT)
    output = options.output or ROOT / "_build" / address.PDF
    site, known = options.site.resolve(), [chapter.name for chapter in here.chapters]
    for name in options.chapters:
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
    bound = bind(site, here.config, parts, options.chapters or known)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        whole, made = Path(folder) / "book.html", Path(folder) / address.PDF
        whole.write_text(str(bound), "utf-8")
        browser = playwright.chromium.launch(executable_path=program, timeout=0)  # a busy machine takes its time
        # Without scripts, so that figures of several frames show them all.
        page = browser.new_context(java_script_enabled=False, color_scheme="light").new_page()
        page.set_default_timeout(0)
        page.goto(whole.as_uri())
        page.pdf(
            path=made, prefer_css_page_size=True, print_background=True, outline=True, tagged=True,
            display_header_footer=True, header_template="<span></span>", footer_template=FOOTER,
        )  # fmt: skip
        browser.close()
        with pikepdf.open(made) as pdf:  # half the size
            with pdf.open_outline() as outline:
                titles = [" ".join(title.get_text().split()) for title in bound.select("h1, h2, h3")]
                _name(outline.root, {_letters(title): title for title in titles})
            pdf.save(output, object_stream_mode=pikepdf.ObjectStreamMode.generate, recompress_flate=True)
    print(f"the book: {output.relative_to(Path.cwd()) if output.is_relative_to(Path.cwd()) else output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
