"""What the search of the site knows: a record for each section of each chapter.

While Sphinx reads a page, its sections are noted in Sphinx's environment: heading, headings above,
the terms that it defines, its text, the names in its code, and the errors that its cells print, but
no other outputs, hints or solutions.
They are then written as scripts, because a page that is opened from a folder may not fetch data:

- `_static/search-index.js` has what decides which sections are found, and which come first:
  headings, terms, and of each word the sections in which it stands. `theme/static/search.js` loads
  it when a reader first searches.
- `_static/search/NAME.js` has the texts of one page's sections. It is loaded when one is found, for
  the sentence that is shown with the result.
"""

import difflib
import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.util import docname_join

from bookbinder.page import pages
from bookbinder.page.terms import bare
from bookbinder.read.book import APPENDICES, FOLDER, slug

FILE = "search-index.js"
TEXTS = "search"  # the folder with a script for each page
SETTING = "search_aliases"  # in _config.yml, below sphinx: config
_SKIPPED = (
    "solution_node",
    "solution_enumerable_node",
    "math_block",
    "index",
    "raw",
    "image",
    "comment",
)
# Hints and solutions, what cells print, and on the home page what only leads to other pages.
_HIDDEN = {"dropdown", "cell_output", "doors", "films", "contents"}
_BLOCKS = (nodes.paragraph, nodes.caption, nodes.row, nodes.term, nodes.line)
_NO_OPENINGS = ("Predict.", pages.PROMISE)  # which say nothing of the subject
_NAME = re.compile(r"[A-Za-z]\w*(?:\.[A-Za-z]\w*)*")
_OF_AN_API = re.compile(r"[._]|[A-Z].*[A-Z]")
# What a cell prints of an error, up to a blank line; people search for it whole.
_ERROR = re.compile(r"^\w*(?:Error|Exception|Warning): .+(?:\n.+)*", re.MULTILINE)
_WORD = re.compile(r"[^\W_]+(?:[._'’-]+[^\W_]+)*")  # as search.js finds words
_BASE, _FIRST = 45, 35  # of the digits of a gap: the code of the first, "#"
# Words that say nothing of the subject. search.js looks for them only where nothing else was typed,
# in headings.
_STOP = (
    "a across an and any are as at be between but by can could do does for from get have how i if "
    "in into is it its many me most much my not of on or over should so than that the their then "
    "there these they this those to use using was we what when where which while who why will "
    "with would you your am im don't doesn't just need want please like way try trying"
)


@dataclass
class Section:
    """What can be found: a section, an exercise, or an entry of the glossary.

    Attributes:
      anchor: where it begins on its page.
      heading: as plain text.
      above: the headings of the sections that it is in, the page's title first.
      kind: "section", "exercise" or "entry".
      names: of the terms that it defines, with their other names, those of `search_aliases`, and
        messages that an index on the page leads from to it.
      openings: the headings of single paragraphs, such as "Other launchers" of one that begins with
        "**Other launchers.**"; a word in one counts as much as a word in a heading.
      text: its paragraphs, one per line, and the errors that its cells print, without those of the
        sections in it; code in it stands between backticks.
      code: the names in its cells that look like parts of an API, such as "lax.psum" and
        "XLA_FLAGS".
    """

    anchor: str
    heading: str
    above: tuple[str, ...] = ()
    kind: str = "section"
    names: list[str] = field(default_factory=list)
    openings: list[str] = field(default_factory=list)
    text: str = ""
    code: str = ""


def setup(app):
    """Called by the extension, after all that changes what a page says while it is read."""
    app.add_config_value(SETTING, {}, "", types=[dict])
    app.connect("builder-inited", _no_other_index)
    app.connect("doctree-read", _note, priority=900)
    app.connect("env-purge-doc", lambda app, env, name: known_sections(env).pop(name, None))
    app.connect(
        "env-merge-info",
        lambda app, env, names, other: known_sections(env).update(known_sections(other)),
    )
    app.connect("env-updated", _write)


def known_sections(env):
    """The sections of each page that has been read, by the page's name."""
    if not hasattr(env, "bookbinder_sections"):
        env.bookbinder_sections = {}
    return env.bookbinder_sections


def _no_other_index(app):
    """Sphinx's own search and its index are not made; its page is ours (see the handler of
    html-collect-pages).
    """
    if app.builder.format == "html":
        app.builder.search = False
        app.connect("html-collect-pages", lambda app: [("search", {}, "search.html")])


def _note(app, doctree):
    """Note a page's sections. The titles of other pages are put in when all have been read: they
    may change.
    """
    here = app.env.docname
    known_sections(app.env)[here] = sections(
        doctree, lambda page: f"\0{docname_join(here, page)}\0"
    )


def _title(env, page):
    """The short title of a page, from the table of contents."""
    site_map = getattr(env, "external_site_map", None)
    item = site_map[page] if site_map and page in site_map else None
    return getattr(item, "title", None) or (
        env.titles[page].astext() if page in env.titles else page
    )


# --- From a page to its sections ------------------------------------------------------------------


def sections(doctree, title=lambda page: page):
    """The sections of a page that has been read, in their order.

    Args:
      doctree: of the page, with its definitions marked (see `terms.note_definitions`).
      title: gives the title of another page, by which a reference to it is replaced.
    """
    sections_of_page = []
    for section in doctree.children:
        if isinstance(section, nodes.section):
            _collect(section, (), sections_of_page, title)
    messages = _messages(doctree)
    for section in sections_of_page:
        section.names += messages.get(section.anchor, [])
    return sections_of_page


def _messages(doctree):
    """The messages from which an index leads to a section of its page: rows that begin with a link
    around code, such as [`Bus error`](#shared-memory).
    """
    places, messages = {}, {}
    for section in doctree.findall(nodes.section):
        places |= dict.fromkeys([*section["ids"], *section["names"]], section["ids"][0])
    for row in doctree.findall(nodes.row):
        link = row.next_node(lambda node: isinstance(node, nodes.reference | addnodes.pending_xref))
        if link is None or link.astext() != row.children[0].astext().strip():
            continue
        target = link.get("refid") or link.get("reftarget", "")
        if place := places.get(target):
            said = [code.astext() for code in link.findall(nodes.literal)]
            messages.setdefault(place, []).extend(said)
    return messages


def _collect(node, above, sections_so_far, title):
    """Add what is at a node, and then what is in it that stands for itself."""
    heading = node.children[0]
    exercise = _is_exercise(node)  # whose own title comes last, after "Exercise"
    words = _plain(heading.children[-1] if exercise else heading, title).replace("`", "")
    section = Section(node["ids"][0], words, above, "exercise" if exercise else "section")
    sections_so_far.append(section)
    lines, code, inner = [], {}, []

    def walk(one, said=False):
        """Look at a node, whose text has been noted if `said`."""
        if isinstance(one, addnodes.index):
            section.names += [
                name for _, name, place, *_ in one["entries"] if place.startswith("defines-")
            ]
        if "cell_output" in one.get("classes", ()):
            printed = "\n\n".join(block.astext() for block in one.findall(nodes.literal_block))
            lines.extend(" ".join(error.split()) for error in _ERROR.findall(printed))
        if (
            one is heading
            or type(one).__name__ in _SKIPPED
            or _HIDDEN & set(one.get("classes", ()))
        ):
            return
        if isinstance(one, addnodes.glossary):
            sections_so_far.extend(_entries(one, title))
        elif _is_exercise(one) or (isinstance(one, nodes.section) and section.kind == "section"):
            inner.append(one)
        elif isinstance(one, nodes.literal_block):
            code.update(dict.fromkeys(filter(_OF_AN_API.search, _NAME.findall(one.astext()))))
        else:
            if isinstance(one, _BLOCKS) and not said:
                lines.append(_plain(one, title))
                section.openings += _opening(one)
                said = True
            for child in one.children:
                if isinstance(child, nodes.Element):
                    walk(child, said)

    for child in node.children:
        walk(child)
    section.text, section.code = "\n".join(filter(None, lines)), " ".join(code)
    for one in inner:
        _collect(one, (*above, section.heading), sections_so_far, title)


def _opening(paragraph):
    """The heading in bold with which a paragraph begins, if it has one."""
    first = next((child for child in paragraph.children if child.astext()), None)  # MyST: ""
    words = first.astext() if isinstance(first, nodes.strong) else ""
    if words.endswith(".") and words not in _NO_OPENINGS:
        yield words.removesuffix(".")


def _is_exercise(node):
    return type(node).__name__ in ("exercise_node", "exercise_enumerable_node")


def _entries(glossary, title):
    """A record for each entry of the glossary."""
    for item in glossary.findall(nodes.definition_list_item):
        first, *others = (term for term in item.children if isinstance(term, nodes.term))
        names = [bare(_plain(term, title)) for term in (first, *others)]
        text = "\n".join(_plain(paragraph, title) for paragraph in item.findall(nodes.paragraph))
        yield Section(first["ids"][0], names[0], ("Glossary",), "entry", names[1:], text=text)


def _plain(node, title):
    """The text of a node in one line: code between backticks, references to pages by the pages'
    titles.
    """
    if isinstance(node, nodes.Text):
        return str(node)
    if isinstance(node, nodes.literal):
        return f"`{node.astext()}`"
    if isinstance(node, nodes.math):
        return re.sub(r"\\\w+|[{}]", "", node.astext())
    if isinstance(node, addnodes.pending_xref) and not node.get("refexplicit"):
        return {"doc": title, "term": str}.get(node["reftype"], lambda target: "")(
            node["reftarget"]
        )
    if isinstance(node, addnodes.index | nodes.raw):
        return ""
    between = " | " if isinstance(node, nodes.row) else ""
    text = " ".join(between.join(_plain(child, title) for child in node.children).split())
    return re.sub(r" (?=[.,;)])", "", text)  # where a reference to a paper was


# --- From all pages to the file -------------------------------------------------------------------


def _write(app, env):
    """Write what the pages of this site have; other builders, such as that which checks links, need
    none of it.
    """
    if app.builder.format != "html":
        return
    noted, parts = known_sections(env), pages.parts(env)
    order = [name for name in (app.config.root_doc, *parts) if name in noted]
    aliases = app.config[SETTING]
    check(
        aliases, [f"{_short(page)}#{section.anchor}" for page in order for section in noted[page]]
    )

    def titled(text):
        return re.sub("\0(.*?)\0", lambda page: _title(env, page[1]), text)

    chapters, records = [], []
    for page in order:
        part = parts.get(page)  # none for the home page
        about = {"part": part.number, "appendix": part.title == APPENDICES} if part else {"part": 0}
        chapters.append({"name": _short(page), "title": _title(env, page), **about})
        for section in noted[page]:
            names = [*section.names, *aliases.get(f"{_short(page)}#{section.anchor}", [])]
            record = {
                "page": len(chapters) - 1,
                **asdict(section),
                "heading": titled(section.heading),
                "above": list(map(titled, section.above)),
                "names": names,
                "text": titled(section.text),
            }
            records.append({name: value for name, value in record.items() if value or value == 0})
    folder = Path(app.outdir) / "_static"
    shutil.rmtree(folder / TEXTS, ignore_errors=True)  # a chapter may be gone
    (folder / TEXTS).mkdir(parents=True)
    for number, chapter in enumerate(chapters):
        own, name = (
            [record.get("text", "") for record in records if record["page"] == number],
            chapter["name"],
        )
        _write_script(
            folder / TEXTS / f"{name}.js", f'(globalThis.searchTexts ??= {{}})["{name}"]', own
        )
    bags = packed(records)
    for record in records:
        record.pop("text", None), record.pop("code", None)
        if record["anchor"] == slug(record["heading"]):
            del record["anchor"]
    index = {"stop": _STOP, "chapters": chapters, "sections": records, **bags}
    _write_script(folder / FILE, "globalThis.searchIndex", index)


def _write_script(file, name, data):
    data = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    file.parent.mkdir(parents=True, exist_ok=True)  # of a page in a folder
    file.write_text(f"{name} = {data};\n", "utf-8")


# --- Words, and where they stand ------------------------------------------------------------------


def packed(records):
    """Of each word in texts and in code the sections in which it stands, once for each time.

    The words are in order, and each begins with a letter for how many letters it shares with the
    word before: "0" for none. Each of three fields has a line for each word: "text", "api" (what
    stands between backticks in the text) and "code". In a line, a section is written as the gap to
    the one before it, in digits to the base 45, of which only the last is below "P"; a gap of 0 is
    once more the same section.

    >>> packed([{"text": "One mesh, `jit`"}, {"text": "two meshes, mesh mesh"}])["words"]
    '0jit 0mesh 4es 0one 0two'

    Args:
      records: of all sections, with "text" and "code" where they have any.
    """
    fields = {
        "text": lambda record: record.get("text", ""),
        "api": lambda record: " ".join(re.findall(r"`[^`]+`", record.get("text", ""))),
        "code": lambda record: record.get("code", ""),
    }
    found, stop = {}, set(_STOP.split())
    for number, record in enumerate(records):
        for field_, text_of in fields.items():
            for word in map(_plainest, _WORD.findall(text_of(record))):
                if word.lower() not in stop:
                    found.setdefault(word, {}).setdefault(field_, []).append(number)
    words = sorted(found)
    lines = {
        field_: "\n".join("".join(_gaps(found[word].get(field_, []))) for word in words)
        for field_ in fields
    }
    shared = (_shared(*pair) for pair in zip(["", *words], words, strict=False))
    return {
        "words": " ".join(
            f"{chr(48 + n)}{word[n:]}" for n, word in zip(shared, words, strict=True)
        ),
        **lines,
    }


def _plainest(word):
    """In lower case, unless a capital stands within it, as in "shardMap"; search.js takes those
    apart.
    """
    return word if any(a.islower() and b.isupper() for a, b in pairwise(word)) else word.lower()


def _shared(before, word):
    """How many letters two words begin with alike; at most 60."""
    alike = (a == b for a, b in zip(before[:60], word, strict=False))
    return sum(takewhile(bool, alike))


def _gaps(numbers):
    """Numbers in ascending order, each as its distance from the one before."""
    for before, number in pairwise([0, *numbers]):
        left, digits = divmod(number - before, _BASE)
        digits = chr(_FIRST + digits)
        while left:
            left, digit = divmod(left, _BASE)
            digits = chr(_FIRST + _BASE + digit) + digits
        yield digits


def _short(page):
    return page.removeprefix(f"{FOLDER}/")


def check(aliases, places):
    """Reject a setting `search_aliases` that does not fit the book.

    Args:
      aliases: the setting, such as `{"training#donation": ["donate"]}`.
      places: of all sections, such as `["training#donation", "training#summary"]`.

    Raises:
      ExtensionError: it names a section that is not there, or has something else than words.
    """
    for place, names in aliases.items():
        if place not in places:
            near = difflib.get_close_matches(place, places, 1, 0.3)
            what = f"there is no section {place}" + (f"; did you mean {near[0]}?" if near else "")
            raise ExtensionError(f"_config.yml: {SETTING}: {what}")
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise ExtensionError(
                f"_config.yml: {SETTING}: {place}: give a list of words, such as [zero-3, fsdp]"
            )
