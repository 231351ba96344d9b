"""What stands on a page besides its text: the data of the theme in `theme/`, and folds, checks and
colours of code.

Sphinx asks here for each page what its head says, where it leads, and which part of the book it
belongs to. The templates in `theme/` arrange that. No page is touched after Sphinx has written it.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError

from bookbinder import disk
from bookbinder.page import cards
from bookbinder.read import citation, excerpts, package
from bookbinder.read.book import (
    APPENDICES,
    FOLDER,
    LONGEST_DESCRIPTION,
    PATHS,
    in_words,
    split_assertions,
)
from bookbinder.run.execute import LEFT_OUT

NAME = "bookbinder"  # of the theme, for `html_theme` in _config.yml
THEME = Path(__file__).parent / "theme"
POLICY = "Content-Security-Policy"
MOST = LONGEST_DESCRIPTION  # characters of a description
PROMISE = "What we do here."  # how the paragraph begins that says what a chapter does
# What pages say of themselves that are no chapters.
OTHERS = {
    "genindex": (
        "Every term of the book and every function that it uses, with links to the sections that "
        "explain them."
    ),
    "search": (
        "Search the book for a section by its heading, by a function or an option that it uses, "
        "or by its words."
    ),
    "404": "This address leads to no page of the book. The home page lists all chapters.",
}
KEY_FIGURE = "key-figure"  # the tag of a cell
CARDS = "cards"  # the folder of pictures for previews of links
NARROWEST = 12  # characters of a column that has more; book.css says so too
# Before anything is painted: what the reader chose. Without a choice the style sheet follows the
# system.
MODE = """try {
const mode = localStorage.getItem("mode");
if (mode) document.documentElement.dataset.theme = mode;
} catch {}"""
# Matplotlib's colours, and those of the page.
COLOURS = {
    "#000000": "currentColor", "#ffffff": "var(--ground)", "#1f77b4": "var(--device-0)",
    "#ff7f0e": "var(--device-1)",
    "#2ca02c": "var(--device-2)", "#e377c2": "var(--device-3)", "#17becf": "var(--device-4)",
    "#d62728": "var(--device-5)", "#9467bd": "var(--device-3)", "#7f7f7f": "var(--device-7)",
    "#b0b0b0": "var(--line)",
}  # fmt: skip
# What a page loads for pictures of shardlab.
PICTURES = {
    "data-steps=": "steps.js",
    "data-says=": "tiles.js",
    "data-choices=": "choose.js",
    "data-place=": "places.js",
}
# What extensions write that misleads a screen reader: heads of tables that name nothing, names of
# buttons that hide what stands on them, and roles that do not fit.
CLEARER = [
    (r"<th[^>]*>(<p></p>)?</th>", "<td></td>"),
    (' aria-label="Toggle hidden content"', ""),
    (' role="(doc-biblioentry|list)"', ""),
]
_OF_OTHERS = (
    "sphinx_book_theme",
    "pydata_sphinx_theme",
    "sphinx_thebe",
    "sphinx_togglebutton",
    "sphinx_copybutton",
)


@dataclass(frozen=True)
class Chapter:
    """What a chapter's page says about it.

    Attributes:
      devices: what it runs on, such as "8 emulated devices"; "" if its cells ask for none.
      executed: the day of its last run, such as "2026-11-21"; "" if it has no code.
      versions: of what it ran with.
      minutes: to read it; 0 for a page to look things up in.
      exercises: minutes for its exercises; 0 if it has none.
      level: how hard it is, such as "★★☆"; "" if it does not say.
      after: the chapters to read first: their titles by their names.
      paths: for the title of each path that it is on, its place there, and how many chapters the
        path has.
    """

    devices: str = ""
    executed: str = ""
    versions: str = ""
    minutes: int = 1
    exercises: int = 0
    level: str = ""
    after: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class fold(nodes.Element):
    """`<details>`: what is shown when the reader presses its first child, a `fold_title`."""


class fold_title(nodes.TextElement):
    """`<summary>`."""


def setup(app):
    """Called by the extension, which gives Sphinx a `bookbinder_address` and its environment
    `bookbinder_chapters`.
    """
    app.add_html_theme(NAME, str(THEME))
    app.add_node(fold, html=_tags("details"))
    app.add_node(fold_title, html=_tags("summary"))
    app.connect("config-inited", _leave_the_stock_theme, priority=900)
    app.connect("builder-inited", _our_files_only, priority=900)
    app.connect("doctree-resolved", _fold, priority=900)
    app.connect("doctree-resolved", _code, priority=901)
    app.connect("doctree-resolved", _excerpts, priority=901)
    app.connect("doctree-resolved", _outputs, priority=901)
    app.connect("doctree-resolved", _key_figure, priority=899)
    app.connect("doctree-resolved", _say_that_it_runs, priority=898)
    app.connect("doctree-resolved", _tables, priority=902)
    app.connect("doctree-resolved", _letters, priority=902)
    app.connect("doctree-resolved", _plots, priority=903)
    app.connect("html-collect-pages", _not_found)
    app.connect("html-page-context", _describe, priority=900)
    app.connect("build-finished", _forget)
    app.connect("build-finished", _site_map)


def _tags(name):
    """How a node becomes an element of that name."""

    def enter(translator, node):
        data = {name: value for name, value in node.attributes.items() if name.startswith("data-")}
        translator.body.append(translator.starttag(node, name, "", **data))

    return enter, lambda translator, node: translator.body.append(f"</{name}>\n")


# --- What Jupyter Book sets up for its own theme --------------------------------------------------


def _leave_the_stock_theme(app, config):
    """Jupyter Book always loads its own theme and that theme's helpers; none of them has a part in
    our pages.
    """
    config.html_theme_options, config.html_copy_source = {}, False
    app.bookbinder_static = list(config.html_static_path)
    for listeners in app.events.listeners.values():
        listeners[:] = [
            listener
            for listener in listeners
            if listener.handler.__module__.partition(".")[0] not in _OF_OTHERS
        ]


def _our_files_only(app):
    """Extensions add static files of their own, which our pages do not load."""
    app.config.html_static_path = app.bookbinder_static


# --- The text -------------------------------------------------------------------------------------


def _fold(app, doctree, docname):
    """Hints and solutions unfold without a script."""
    for box in list(
        doctree.findall(
            lambda node: "dropdown" in getattr(node, "attributes", {}).get("classes", ())
        )
    ):
        first = (
            box.children[0] if box.children and isinstance(box.children[0], nodes.title) else None
        )
        title = fold_title("", first.astext() if first else type(box).__name__.capitalize())
        title["classes"].append("admonition-title")
        kind = [box.tagname] if isinstance(box, nodes.Admonition) else []
        details = fold(
            "",
            title,
            *box.children[bool(first) :],
            classes=["admonition", *kind, *box["classes"]],
            ids=box["ids"],
        )
        box.replace_self(details)


def _code(app, doctree, docname):
    """Colour what runs in processes as Python, and set a cell's last assertions apart, below its
    output.
    """
    for source in list(doctree.findall(nodes.literal_block)):
        if source.parent.get("nb_element") != "cell_code_source":
            continue
        text, cell = source.astext(), source.parent.parent
        if text.startswith("%%processes"):
            source["language"] = "python"
        before, checks, after = split_assertions(text)
        if checks and cell.get("nb_element") == "cell_code":  # and is not folded
            shown = "\n".join(filter(None, [before, after]))
            details = fold(
                "", fold_title("", "checked"), _with_text(source, checks), classes=["checked"]
            )
            # so many lines stand before it; see book.js
            details["data-before"] = str(len(before.split("\n")))
            source.replace_self(_with_text(source, shown))
            cell.append(details)


def _excerpts(app, doctree, docname):
    """Offer the functions that readers take, each with all that it needs; book.js shows the
    button.

    The first button has the page's list of statements, each button the numbers of its own: "0,1 4"
    for two imports, an empty line, and a definition.
    """
    cells = [
        cell
        for cell in doctree.findall(nodes.container)
        if f"tag_{excerpts.COPY}" in cell.get("classes", ())
    ]
    if not cells:
        return
    found = excerpts.of_chapter(app.bookbinder_book.chapter(docname))
    every = [code for excerpt in found for group in excerpt.statements for code in group]
    numbers = {code: str(number) for number, code in enumerate(dict.fromkeys(every))}
    listed = f' data-statements="{html.escape(json.dumps(list(numbers)))}"'
    for cell, excerpt in zip(cells, found, strict=True):
        label = f"Copy with imports: {in_words_of(excerpt.names)}"
        needs = " ".join(",".join(map(numbers.get, group)) for group in excerpt.statements)
        button = (
            f'<button type="button" class="copy whole" hidden aria-label="{label}" '
            f'data-needs="{needs}"{listed}>Copy with imports</button>'
        )
        listed = ""
        cell.append(nodes.raw("", button, format="html"))


def in_words_of(names):
    """Names as one says them: "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _with_text(block, text):
    """A copy of a block of code, with another text."""
    copy = block.copy()
    copy.rawsource = text
    copy += nodes.Text(text)
    return copy


def _key_figure(app, doctree, docname):
    """Show the picture of the cell with the tag `key-figure` at the head of the page too, below its
    first paragraph.
    """
    for cell in doctree.findall(nodes.container):
        if f"tag_{KEY_FIGURE}" not in cell.get("classes", ()):
            continue
        output = next(
            (node for node in cell.children if "cell_output" in node.get("classes", ())), None
        )
        if output is None:  # of a build that has no outputs
            return
        shown = list(output.findall(_is_picture))
        if not shown:
            raise ExtensionError(f"{docname}: the cell with the tag {KEY_FIGURE} shows no picture")
        title = next(iter(doctree.findall(nodes.title)))
        box = nodes.container("", _renamed(shown[0].deepcopy()), classes=[KEY_FIGURE])
        texts = (node for node in title.parent.children if isinstance(node, nodes.paragraph))
        above = next(texts, title)
        title.parent.insert(title.parent.index(above) + 1, box)
        return


def _say_that_it_runs(app, doctree, docname):
    """Under the title of a page without its outputs, say that they are still to come."""
    if not lacks_outputs(app, docname):
        return
    title = next(iter(doctree.findall(nodes.title)))
    text = "This chapter was still running, or had yet to begin, when this page was made."
    note = nodes.note(
        "",
        nodes.paragraph(text=f"{text} Its outputs are still to come: load the page again later."),
    )
    title.parent.insert(title.parent.index(title) + 1, note)


def lacks_outputs(app, docname):
    """Whether a page is made before its chapter has run: for a preview while others run, or for
    tests.
    """
    outputs, _ = getattr(app.env, "bookbinder_records", {}).get(
        docname.removeprefix(f"{FOLDER}/"), ("", "")
    )
    return outputs == LEFT_OUT


def _is_picture(node):
    return isinstance(node, nodes.image) or (
        isinstance(node, nodes.raw) and "<svg" in node.astext()
    )


def _renamed(node):
    """The copy of a picture, with ids of its own."""
    if isinstance(node, nodes.raw):
        html = node.astext()
        for name in set(re.findall(r'\bid="([^"]+)"', html)):
            html = re.sub(
                rf'(\bid="|url\(#|href="#|labelledby="){re.escape(name)}\b',
                rf"\g<1>key-{name}",
                html,
            )
        return nodes.raw("", html, format="html")
    return node


def _outputs(app, doctree, docname):
    """Mark what a cell has printed in columns: its lines stay lines."""
    for output in list(doctree.findall(nodes.literal_block)):
        if _is_inside(output, "cell_output") and is_aligned(output.astext()):
            output["classes"].append("aligned")


def is_aligned(text):
    """Whether lines are in columns, or are the rows of an array, so that wrapping would tear them:
    two with a gap, or one whose word behind the gap stands below or above another word.
    """
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    gaps = [[gap.end() - 1 for gap in re.finditer(r"\S {2,}\S", line)] for line in lines]
    rows = [bool(re.match(r"(array\(| )*\[.*\][\])]*,?$", line)) for line in lines]
    if sum(map(bool, gaps)) + sum(rows) > 1:
        return True
    begins = [{word.start() for word in re.finditer(r"(?<= )\S", line)} for line in lines]
    return any(
        set(gaps[n]) & begins[other] and len(lines[other]) > 2
        for n in range(len(lines))
        for other in (n - 1, n + 1)
        if gaps[n] and 0 <= other < len(lines)
    )


def _tables(app, doctree, docname):
    """A table that is wider than the screen scrolls in a box of its own, and no column of text
    becomes a thread.
    """
    for table in list(doctree.findall(nodes.table)):
        for entry in table.findall(nodes.entry):
            entry["classes"] += ["text"] * (len(entry.astext()) >= NARROWEST)
        box = nodes.container(classes=["table", "wide"])
        table.replace_self(box)
        box += table


def _letters(app, doctree, docname):
    """Above a glossary, a link to the first term of each letter, and a box in which book.js takes a
    part of a term.
    """
    for glossary in list(doctree.findall(addnodes.glossary)):
        first = {}
        for item in glossary.findall(nodes.definition_list_item):
            term = item.next_node(nodes.term)  # others of this entry are its synonyms
            initial = term.astext()[0].upper()
            first.setdefault(initial if initial.isalpha() else "0-9", term["ids"][0])
        links = [f'<a href="#{place}">{initial}</a>' for initial, place in first.items()]
        box = '<input type="search" placeholder="Filter the terms" aria-label="Filter the terms">'
        row = nodes.raw("", f'<p class="letters">{" ".join([*links, box])}</p>', format="html")
        glossary.parent.insert(glossary.parent.index(glossary), row)


def _plots(app, doctree, docname):
    """Put plots into the page, where they have its colours, light or dark."""
    for number, image in enumerate(list(doctree.findall(nodes.image)), 1):
        file = Path(app.srcdir) / image["uri"]
        if file.suffix == ".svg" and (
            _is_inside(image, "cell_output") or _is_inside(image, KEY_FIGURE)
        ):
            drawn = plot(file.read_text("utf-8"), image.get("alt", ""), f"plot-{number}-")
            image.replace_self(nodes.raw("", drawn, format="html"))


def _is_inside(node, name):
    """Whether it stands in a box of that class."""
    while node := node.parent:
        if name in node.get("classes", ()):
            return True
    return False


def plot(svg, alt, prefix):
    """A plot of Matplotlib as a part of a page: in the page's own colours, with ids that no other
    plot has.

    Args:
      svg: the content of the file.
      alt: what the plot shows, in words.
      prefix: of the ids.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->",
        "",
        svg,
        flags=re.DOTALL,
    )
    used = set(re.findall(r'(?:url\(|href=")#([\w-]+)', svg))
    svg = re.sub(
        r' id="([^"]*)"', lambda match: f' id="{prefix}{match[1]}"' if match[1] in used else "", svg
    )
    svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}", svg)
    svg = re.sub("#[0-9a-f]{6}", lambda match: COLOURS.get(match[0], match[0]), svg)
    head, words = (
        'class="plot" role="img" fill="currentColor" stroke-linejoin="round"',
        html.escape(alt),
    )
    svg = re.sub(
        r"^<svg([^>]*)>",
        rf"<svg {head}\1><title>A plot of the cell above</title><desc>{words}</desc>",
        svg,
    )
    return re.sub(r"\n\s*", "\n", svg)


# --- The page around it ---------------------------------------------------------------------------


def _not_found(app):
    """The page that hosts show for an address that does not exist: a search, and all chapters to
    choose from.
    """
    where, titles = app.bookbinder_address, app.bookbinder_book.titles
    links = {}
    for name, part in sorted(
        parts(app.env).items(), key=lambda item: (item[1].number, item[1].place)
    ):
        chapter = name.removeprefix(f"{FOLDER}/")
        title = titles.get(chapter) or app.env.titles[name].astext()
        links.setdefault((part.number, part.title), []).append(
            f'<li><a href="{where.page(chapter)}">{html.escape(title)}</a></li>'
        )
    lists = "".join(
        (
            "<section "
            f'class="part-{number}"><h2>{html.escape(title or "Chapters")}</h2><ul>{"".join(items)}</ul></section>'  # noqa: E501
        )
        for (number, title), items in links.items()
    )
    words = (
        "<section><h1>There is no such page</h1><p>The address may be mistyped, or the page "
        "may have moved. "
        f'Search the book, start from its <a href="{where.page(app.config.root_doc)}">home '
        "page</a>, or look for the "
        "chapter in the list below.</p>"
        f'<form action="{where.page("search")}" role="search"><input type="search" name="q" '
        'required aria-label="Search the book" placeholder="Search the book"> <button '
        'class="button">Search</button></form><div '
        f'class="all-chapters">{lists}</div></section>'
    )
    yield "404", {"title": "There is no such page", "body": words}, "page.html"


def _describe(app, pagename, templatename, context, doctree):
    """Give the templates `page`: what the head says, and what stands around the text."""
    where, root = app.bookbinder_address, app.bookbinder_book.root
    name, body = pagename.removeprefix(f"{FOLDER}/"), context.get("body", "")
    chapter = getattr(app.env, "bookbinder_chapters", {}).get(name) if doctree else None
    title = html.unescape(
        re.sub("<.*?>", "", context.get("title") or {"genindex": "Index"}.get(name, "Search"))
    )
    address = where.site + ("" if pagename == app.config.root_doc else f"{pagename}.html")
    page = SimpleNamespace(
        title=html.escape(title),
        description=html.escape(_own(app, name) or description(doctree) or title),
        address=address,
        site=where.site,
        version=_version(),
        alone=pagename == "404",
        chapter=chapter,
        part=parts(app.env).get(pagename),
        mode_script=MODE,
        style="",
        sections="",
        place="",
        links="",
        loads=[],
        edit=where.edit(f"{FOLDER}/{name}.md"),
        repository=where.repository,
        edition=citation.edition(root),
        package=package.of(root).name,
        tool=_page_of(app, package.of(root).name),
        about=_page_of(app, "about"),
        report=f"{where.repository}/issues/new?template=wrong.yml&amp;where={quote(f'{name}: ')}",
    )
    page.image, page.shows = _image(app, name, page, doctree)
    sheets = ["book.css"]
    if not page.alone:
        scripts = re.findall(r'data-load="([^"]*)"', body) + [
            file for mark, file in PICTURES.items() if mark in body
        ]
        files = list(dict.fromkeys(file for files in scripts for file in files.split()))
        page.loads = [file for file in files if file.endswith(".js")]
        sheets += [file for file in files if file.endswith(".css")]
    page.style = "".join(map(_sheet(app), sheets))
    if doctree and context.get("display_toc") and pagename != app.config.root_doc:
        page.sections = _light(_without_title(context["toc"]))
    page.policy = _policy(page)
    if chapter and pagename != app.config.root_doc:  # the home page says it of the whole book
        context["body"] = body.replace("</h1>", f"</h1>\n{_head(app, where, name, page)}", 1)
        page.place, page.links = _end(app, where, name, page)
    for pattern, better in CLEARER:
        context["body"] = re.sub(pattern, better, context.get("body", ""))
    context["body"] = re.sub('(?<=<span class="pre">)[^<]+', _breakable, context["body"])
    context["body"] = _light(context["body"])
    context["body"] = re.sub(
        "<pre>(.*?)\n?</pre>", _with_its_height, context.get("body", ""), flags=re.DOTALL
    )
    context["body"] = re.sub(_CODE_FOLD, _with_its_contents, context["body"], flags=re.DOTALL)
    context["body"] = re.sub(_NEIGHBOURS, _as_one_fold, context["body"], flags=re.DOTALL)
    if name == LEDGER:
        context["body"] = re.sub(_TABLE, _with_a_filter, context["body"], flags=re.DOTALL)
    context["body"] = re.sub(_TABLE, _for_phones, context["body"], flags=re.DOTALL)
    context["page"] = page


def _image(app, name, page, doctree):
    """The picture in previews of links to a page, and what it shows in words: its key figure, else
    the book's card.
    """
    boxes = (
        doctree.findall(
            lambda node: KEY_FIGURE in getattr(node, "attributes", {}).get("classes", ())
        )
        if doctree
        else ()
    )
    drawn = "".join(node.astext() for box in boxes for node in box.findall(nodes.raw))
    figure = drawn if "<svg" in drawn else ""
    book, part = app.config.html_title or app.config.project, page.part and page.part.number
    title = html.unescape(page.title)
    file = cards.write(
        Path(app.outdir) / CARDS, _card_of(name), figure, title, book, colours(), part
    )
    if file:
        return f"{CARDS}/{file}", html.escape(cards.words_for(figure))
    return "_static/card.png", html.escape(book)


def _card_of(name):
    return name.replace("/", ".")


@cache
def colours():
    """The colours of the style sheet as they are in the light, by their names: {"device-0":
    "#0072b2"}.
    """
    sheet = (THEME / "static" / "book.css").read_text("utf-8")
    named = dict(re.findall(r"--([\w-]+): (?:light-dark\()?(#\w+|var\(--[\w-]+\))", sheet))
    return {name: named.get(value[6:-1], value) for name, value in named.items()}


def _breakable(name):
    """On a narrow screen a long name in the text breaks after `_` or `.`, rather than inside a
    word.
    """
    return re.sub(r"(?<=[A-Za-z0-9][_.])(?=[A-Za-z])", "<wbr>", name[0])


def _light(markup):
    """Code in sentences and headings without Sphinx's spans: a page has thousands."""

    def plain(code):
        return f'<code class="notranslate">{re.sub("</?span[^>]*>", "", code[1])}</code>'

    return re.sub('<code class="docutils literal notranslate">(.*?)</code>', plain, markup)


def _with_its_height(code):
    """A browser passes over code that is far from the screen when it is told how high that is: see
    book.css.
    """
    lines = code[1].count("\n") + 1
    return f'<pre style="--lines:{lines}">{code[1]}</pre>'


# The title of a cell that is folded, and its code.
_CODE_FOLD = (
    r'(?<=<p class="collapsed admonition-title">)[^<]*'
    r'(?=</p>(?:(?!</details>).)*?<pre style="--lines:(\d+)">((?:(?!</pre>).)*)</pre>)'
)
_DEFINED = re.compile(
    r'^<span class="k">(?:def|class)</span>.*?<span class="n[fc]">(\w+)', re.MULTILINE
)
_MOST_NAMES = 3  # in the title of a fold


def _with_its_contents(title):
    """What a fold says that it holds: "Set-up, 23 lines", or the functions that it defines."""
    lines = int(title[1])
    code = title[2].removeprefix("<span></span>")
    names = [f"<code>{name}</code>" for name in _DEFINED.findall(code)]
    if re.match(r'<span class="kn">(from|import)<', code) and "emulate" in code:
        holds = "Set-up"
    elif names:
        more = f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES)
        holds = ", ".join(names[:_MOST_NAMES]) + more
    else:
        holds = "Code"
    return f"{holds}, {lines} line{'s' * (lines != 1)}"


# Cells of which a page shows nothing but a fold, directly below each other.
_NEIGHBOURS = (
    r'(?:<div class="cell [^"]*"[^>]*>\n<details class="admonition hide above-input">'
    r"(?:(?!</?details).)*</details>\n"
    r'(?:<button type="button" class="copy whole"[^<]*</button>)?</div>\n){2,}'
)
_TITLE = re.compile(r'<p class="collapsed admonition-title">(.*?), (\d+) lines?</p>')
_AND_MORE = re.compile(r" and (\d+) more")


def _as_one_fold(cells):
    """Folds below each other as one that opens them all, and says what they hold together."""
    titles = _TITLE.findall(cells[0])
    held = " ".join(title for title, _ in titles)
    names = re.findall("<code>.*?</code>", held)
    more = len(names[_MOST_NAMES:]) + sum(map(int, _AND_MORE.findall(held)))
    shown = ["Set-up"] * ("Set-up" in held) + names[:_MOST_NAMES]
    title = (", ".join(shown) or "Code") + f" and {more} more" * (more > 0)
    lines = sum(int(count) for _, count in titles)
    inside = cells[0].replace("<details ", "<details open ")
    summary = f"<summary>{title}, {lines} lines</summary>"
    return f'<details class="hide folds">\n{summary}\n{inside}</details>\n'


LEDGER = "ledger"  # the page whose tables are long, and are looked things up in
_MANY = 24  # rows of a table; of one that has more the first dozen shows: see book.css
_TABLE = r"<table([^>]*)>((?:(?!<table).)*?)</table>"
_PHONE = 320  # pixels for a table
_LETTER, _PADDING = 8, 24  # pixels, of a letter and of a column
_LONG = 18  # characters of a cell that has a line of its own on a phone


def _for_phones(table):
    """A table that is wider than a phone, told the headings of its columns: book.css stacks the
    cells of a row there, each below its heading.
    """
    attributes, inside = table.groups()
    head = re.search("<thead.*</thead>", inside, re.DOTALL)
    body = re.search("<tbody.*</tbody>", inside, re.DOTALL)
    if not head or not body or "<th" in body[0]:
        return table[0]
    heads = [
        _text(cell) for _, cell in re.findall(r"<(th|td)\b[^>]*>(.*?)</\1>", head[0], re.DOTALL)
    ]
    rows = [
        [
            _text(cell)
            for cell in re.findall(r"<td\b(?![^>]*colspan)[^>]*>(.*?)</td>", row, re.DOTALL)
        ]
        for row in re.findall("<tr.*?</tr>", body[0], re.DOTALL)
    ]
    columns = zip_longest(heads, *rows, fillvalue="")
    wide = (max(map(_narrowest, column)) for column in columns)
    if sum(_LETTER * letters + _PADDING for letters in wide) <= _PHONE:
        return table[0]
    names = "".join(
        f"--h{n}:{json.dumps(head, ensure_ascii=False)};" for n, head in enumerate(heads, 1)
    )
    classes, marked = re.subn('class="', 'class="stacked ', attributes, count=1)
    classes += "" if marked else ' class="stacked"'
    longer = re.sub(r"<td\b([^>]*)>(.*?)</td>", _with_its_length, body[0], flags=re.DOTALL)
    return f'<table{classes} style="{html.escape(names)}">{inside.replace(body[0], longer)}</table>'


def _narrowest(cell):
    """How many letters wide a cell's column is at least."""
    return max(min(len(cell), NARROWEST), *map(len, re.split(r"[\s_./-]", cell)))


def _with_a_filter(table):
    """A long table with a box above it in which book.js takes words of a row, and a button for all
    rows.
    """
    attributes, inside = table.groups()
    rows = inside.partition("<tbody")[2].count("<tr")
    if rows <= _MANY:
        return table[0]
    classes = attributes.replace('class="', 'class="many ', 1)
    box = '<input type="search" placeholder="Filter the rows" aria-label="Filter the rows">'
    return (
        f'<p class="rows scripted">{box}<button type="button">All {rows} rows</button></p>'
        f"<table{classes}>{inside}</table>"
    )


def _with_its_length(cell):
    """A cell with the class "long" if it is."""
    attributes, inside = cell.groups()
    if len(_text(inside)) < _LONG or "colspan" in attributes:
        return cell[0]
    classes, marked = re.subn('class="', 'class="long ', attributes, count=1)
    return f"<td{classes}{'' if marked else ' class=long'}>{inside}</td>"


def _text(markup):
    return " ".join(html.unescape(re.sub("<[^>]*>", "", markup)).split())


def _page_of(app, name):
    """The page of that name, "book/about"; None if the book has none."""
    return next(
        (page for page in (f"{FOLDER}/{name}", name) if name and page in app.env.found_docs), None
    )


def _head(app, where, name, page):
    """One quiet line below a title: the notebook in Colab, how long the page takes, how hard it is,
    and what to read first.
    """
    chapter, facts = page.chapter, []
    if name in getattr(app.env, "bookbinder_notebooks", ()):
        facts.append(f'<a href="{html.escape(where.colab(name))}">Open in Colab</a>')
    if chapter.minutes:
        facts.append(f"<span>{in_words(chapter.minutes)} to read</span>")
    if chapter.exercises:
        facts.append(f"<span>exercises {in_words(chapter.exercises)}</span>")
    if chapter.level:
        facts.append(
            f'<span role="img" aria-label="difficulty {chapter.level.count("★")} of '
            f'3">{chapter.level}</span>'
        )
    if chapter.after:
        links = [
            f'<a href="{before}.html">{html.escape(title)}</a>'
            for before, title in chapter.after.items()
        ]
        facts.append(f"<span>read first: {', '.join(links)}</span>")
    if "predict.js" in page.loads:
        facts.append('<button class="answers scripted">Show all answers</button>')
    return f'<p class="facts">{" ".join(facts)}</p>' if facts else ""


def _end(app, where, name, page):
    """Lines at the end of a page: where it stands, in its part and on the paths through the book,
    and its notebook and source.
    """
    part, places = page.part, []
    if part and part.title != APPENDICES:
        places.append(f"Part {part.title.partition('.')[0]}, chapter {part.place} of {part.count}")
        for title, (place, count) in page.chapter.paths.items():
            link = f'<a href="{PATHS}.html#using-paths">{title}</a>'
            places.append(f"path {link}: {place} of {count}")
    links = [f'<a href="{where.file(f"{FOLDER}/{name}.md", where.branch)}">Source</a>']
    if name in getattr(app.env, "bookbinder_notebooks", ()):
        links.insert(0, f'<a href="{html.escape(where.notebook(name))}">Download the notebook</a>')
    place = f'<p class="place">{" <span>·</span> ".join(places)}</p>' if places else ""
    return place, " ".join(links)


def parts(env):
    """For each page of the table of contents its part, `number` and `title`, and its `place` there.

    Numbers begin at 1; `count` is how many pages the part has.
    """
    by_page, site_map = {}, getattr(env, "external_site_map", None)
    for number, tree in enumerate(site_map.root.subtrees if site_map else (), 1):
        for place, item in enumerate(tree.items, 1):
            by_page[str(item)] = SimpleNamespace(
                number=number, title=tree.caption or "", place=place, count=len(tree.items)
            )
    return by_page


def _own(app, name):
    """What a page's front matter says of it, or what we say of one that is no chapter; None if
    neither does.
    """
    chapters = {chapter.name: chapter for chapter in app.bookbinder_book.chapters}
    return chapters[name].description if name in chapters else OTHERS.get(name)


def description(doctree):
    """A sentence about a page: what it promises to do, else the first one of its text; shortened if
    it is too long.
    """
    texts = list(doctree.findall(nodes.paragraph)) if doctree else []
    promises = (text for text in texts if text.astext().startswith(PROMISE))
    first = next(promises, texts[0] if texts else None)
    text = " ".join(first.astext().split()).removeprefix(PROMISE).strip() if first else ""
    text = re.split(r"(?<=[.?!])\s", text, maxsplit=1)[0]
    return text if len(text) <= MOST else text[: MOST - 2].rsplit(" ", 1)[0] + " …"


def _without_title(toc):
    """A page's table of contents, without the entry for the page itself."""
    inner = re.search(r"<ul>\s*<li>.*?</a>(.*)</li>\s*</ul>", toc, re.DOTALL)
    return inner[1].strip() if inner else ""


def _sheet(app):
    """Reads a style sheet, without its comments. It stands in the page, which is painted at once
    then: a file of its own is waited for.
    """
    folders = [THEME / "static", *(Path(app.confdir) / folder for folder in app.bookbinder_static)]

    def read(name):
        file = next(file for folder in folders if (file := folder / name).is_file())
        return re.sub(r"/\*.*?\*/\n?", "", file.read_text("utf-8"), flags=re.DOTALL)

    return read


@cache
def _version():
    """Of the theme's files, so that browsers load them anew when they have changed."""
    return disk.folder_digest(THEME / "static")[:8]


def _policy(page):
    """What a browser may load and run for this page: only the site's own. Drawings have styles as
    attributes.
    """

    def allowed(text):
        return (
            f" 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            if text
            else ""
        )

    return "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self'{allowed(page.mode_script)}",
            "worker-src blob:",  # of the page's own text: also from a file, it needs no other file
            f"style-src-elem 'self'{allowed(page.style)}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "connect-src 'self'",  # an audit of the page asks for robots.txt in its name
            "base-uri 'none'",
            "form-action 'self'",
        ]
    )


def _forget(app, exception):
    """Delete the pages of chapters, and the pictures, that the book no longer has."""
    if exception is not None or app.builder.format != "html":
        return
    folder, chapters = Path(app.outdir), {*app.env.found_docs, "404", "genindex", "search"}
    for page in folder.rglob("*.html"):
        if page.relative_to(folder).with_suffix("").as_posix() not in chapters:
            page.unlink()
    names = {_card_of(name.removeprefix(f"{FOLDER}/")) for name in chapters}
    for card in (folder / CARDS).glob("*.png"):
        if card.stem.rpartition("-")[0] not in names:
            card.unlink()
    shown = {name for documents, name in app.env.images.values()}
    for picture in (folder / "_images").glob("*"):
        if picture.name not in shown:
            picture.unlink()


def _site_map(app, exception):
    """For search engines a list of all pages, and that they may read them."""
    if exception is not None or app.builder.format != "html":
        return
    root, where = app.config.root_doc, app.bookbinder_address
    names = ["" if name == root else f"{name}.html" for name in sorted(app.env.found_docs)]
    places = "".join(f"<url><loc>{where.site}{name}</loc></url>" for name in names)
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    (Path(app.outdir) / "robots.txt").write_text(
        f"User-agent: *\nAllow: /\nSitemap: {where.site}sitemap.xml\n", "utf-8"
    )
    file = Path(app.outdir) / "sitemap.xml"
    file.write_text(
        f'{head}<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{places}</urlset>\n',
        "utf-8",
    )
