"""The terms of the glossary, on every page: a link at the first use, and an entry for the search
where one is defined.

`book/glossary.md` lists each term once, with its other names below each other. A chapter defines a
term by writing it in bold. Nothing else has to be marked in a chapter, because links and entries
are made here. A term that has other meanings too names the one that is meant in parentheses, as in
"slice (of a pod)", and is not linked.
"""

import re
from functools import cache

from docutils import nodes
from sphinx import addnodes

from bookbinder.notebook import markdown

PAGE = "glossary"
_NO_LINKS = (
    nodes.reference,
    nodes.title,
    nodes.strong,
    nodes.emphasis,  # a word that the page uses in a sense of its own
    nodes.literal,
    nodes.FixedTextElement,
    nodes.term,
    nodes.caption,
)
# Terms of the glossary that are verbs too: "which experts process it" and "that opening committed a
# psum too many" mean no process and no committed array; neither does "however many it processes".
_VERBS = re.compile(r"(?:process|checkpoint|overlap|committed)(?:es|s)?", re.IGNORECASE)
_OBJECT = re.compile(
    r"\s+(?:an?|the|all|each|every|it|its|this|them|those|these|one|your|our|their|several|\d+)\b"
)
_SUBJECT = re.compile(r"\b(?:it|he|she|they|we|you|who)\s+$", re.IGNORECASE)
# And an adjective of every day, as in "loops of varying length".
_OF_A_SIZE = re.compile(r"\s+(?:amounts?|degrees?|lengths?|numbers?|shapes?|sizes?|speeds?)\b")


def entries(book):
    """The names of each entry of the glossary: [("replicated", "replica"), ...]; the first one is
    the term itself.
    """
    chapter = next((chapter for chapter in book.chapters if chapter.name == PAGE), None)
    if chapter is None:
        return []
    parser, terms = markdown.make_parser(book.config), []
    for token in parser.parse(chapter.text):
        line = (token.map or [0])[0] + 1
        directive = (
            markdown.as_directive(token, line, chapter)
            if token.type in ("fence", "colon_fence")
            else None
        )
        if directive and directive.name == "glossary":
            names = []
            for name, definition in markdown.glossary(directive, chapter):
                names.append(name)
                if definition:
                    terms.append(tuple(names))
                    names = []
    return terms


def note_definitions(doctree, glossary, name):
    """Tell the search where a page defines terms: an entry for each name of a term that the page
    has in bold.

    Args:
      doctree: of the page.
      glossary: what `entries` returns.
      name: of the page, such as "arrays".
    """
    if name == PAGE:  # where a chapter defines a term, the search leads there first
        for index in doctree.findall(addnodes.index):
            index["entries"] = [(*entry[:3], "", *entry[4:]) for entry in index["entries"]]
        return
    aliases = {bare(names[0]): names for names in glossary}
    for strong in list(doctree.findall(nodes.strong)):
        term = _words(strong)
        if names := aliases.pop(term, None):
            place = "defines-" + re.sub(r"\W+", "-", term.lower())
            strong["ids"].append(place)
            rows = [("single", bare(spelling), place, "main", None) for spelling in names]
            strong.parent.insert(strong.parent.index(strong), addnodes.index(entries=rows))


def link_first_uses(doctree, glossary, name, address):
    """Link the first use of each term on a page to the glossary, if the page does not define it.

    Args:
      doctree: of the page, with its references resolved.
      glossary: what `entries` returns.
      name: of the page.
      address: of a term, from its name; None where there is no glossary.
    """
    if name == PAGE or not glossary:
        return
    defined = {_words(strong) for strong in doctree.findall(nodes.strong)}
    term_of = {
        spelling: names[0] for names in glossary for spelling in names if "(" not in spelling
    }
    seen = {names[0] for names in glossary if bare(names[0]) in defined}
    pattern = _pattern(tuple(term_of))
    for text in list(doctree.findall(nodes.Text)):
        if _takes_links(text):
            _link(text, pattern, term_of, seen, address)


def bare(term):
    """A term as chapters write it: "slice" for "slice (of a pod)"."""
    return term.partition(" (")[0]


def _words(node):
    return " ".join(node.astext().split())


@cache
def _pattern(spellings):
    """One expression for all terms, the longest first; a plural counts, and a capital at the start
    of a sentence.
    """
    either = sorted((re.escape(spelling) for spelling in spellings), key=len, reverse=True)
    first = [
        f"(?i:{spelling[0]}){spelling[1:]}" if spelling[0].islower() else spelling
        for spelling in either
    ]
    return re.compile(rf"(?<![\w/-])({'|'.join(first)})(?:s|es)?(?![\w/-])")


def _takes_links(text):
    """Whether it is running text: no heading, code, link or output."""
    above, inside = text.parent, False
    while above is not None:
        if isinstance(above, (*_NO_LINKS, nodes.container)):  # such as a cell, or a card
            return False
        inside = inside or isinstance(above, nodes.paragraph)
        above = above.parent
    return inside


def _is_meant(match):
    """Whether a word that was found is the term, rather than a verb or a word of every day."""
    text, word = match.string, match[0].lower()
    if word == "varying":
        return not _OF_A_SIZE.match(text, match.end())
    is_verb = _OBJECT.match(text, match.end()) or _SUBJECT.search(text, 0, match.start())
    return not (_VERBS.fullmatch(word) and is_verb)


def _link(text, pattern, term_of, seen, address):
    parts, end = [], 0
    for match in pattern.finditer(text):
        spelling = match[1] if match[1] in term_of else match[1][0].lower() + match[1][1:]
        term = term_of.get(spelling)
        where = address(term) if term and term not in seen and _is_meant(match) else None
        if where:
            seen.add(term)
            link = nodes.reference("", match[0], internal=True, refuri=where, classes=["term"])
            parts += [nodes.Text(text[end : match.start()]), link]
            end = match.end()
    if parts:
        text.parent.replace(text, [*parts, nodes.Text(text[end:])])
