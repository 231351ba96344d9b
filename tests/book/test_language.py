"""The language of the book: each term is defined once, and where the field has a word, no private
one is used.
"""

import ast
import io
import re
import tokenize
import tomllib
from functools import cache
from pathlib import Path

import pytest
from places import ROOT
from repository import BOOK

from bookbinder.page import terms

TERMS = [names[0] for names in terms.entries(BOOK)]
WORDS = tomllib.loads(Path(__file__).with_name("style_words.toml").read_text())["words"]


def code_free(text):
    """Markdown without front matter, code, options, labels, comments and addresses; lines stay in
    place.
    """
    kept, fences = [], []  # of each open fence its mark, and whether it holds text
    for line in re.sub(r"\A---\n.*?\n---\n", blank, text, flags=re.DOTALL).split("\n"):
        mark = re.match(r"(`{3,})(.*)$", line)
        if mark and fences and line == fences[-1][0]:
            fences.pop()
            line = ""
        elif mark and all(text for _, text in fences):
            directive = re.match(r"\{(code-cell|code-block|math|literalinclude)?", mark[2])
            fences.append((mark[1], bool(directive) and not directive[1]))
            line = mark[2].partition("}")[2]
        shown = all(text for _, text in fences) and not re.match(
            r"(:(label|tags|class|name): .*|\(.*\)=|%.*)$", line
        )
        kept.append(line if shown else "")
    return re.sub(r"(`+).+?\1|\]\(\S+?\)", blank, "\n".join(kept), flags=re.DOTALL)


def blank(match):
    return "\n" * match[0].count("\n")


def python_words(source, first_line=1):
    """The comments and strings of a program, by line."""
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (
                tokenize.COMMENT,
                tokenize.STRING,
                getattr(tokenize, "FSTRING_MIDDLE", -1),
            ):
                found += [
                    (first_line + token.start[0] - 1 + n, re.sub(r"(`+).+?\1", "", text))
                    for n, text in enumerate(token.string.split("\n"))
                ]
    except (tokenize.TokenError, IndentationError):
        pass
    return found


def said(path):
    """What a reader reads in a file: pairs of a line's number and its text."""
    text = (ROOT / path).read_text()
    if path.suffix == ".py":
        ast.parse(text)
        return python_words(text)
    lines = list(enumerate(code_free(text).split("\n"), 1))
    chapter = next((chapter for chapter in BOOK.chapters if chapter.path == str(path)), None)
    for cell in chapter.cells if chapter else ():
        source = cell.source.partition("\n")[2] if cell.source.startswith("%%") else cell.source
        lines += python_words(source, cell.line + cell.source.startswith("%%"))
    return lines


FILES = [
    *(Path(chapter.path) for chapter in BOOK.chapters),
    *map(Path, ("README.md", "CONTRIBUTING.md")),
    *(file.relative_to(ROOT) for file in sorted((ROOT / "src").rglob("*.py"))),
]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_words_of_the_field_are_used(path):
    wrong = []
    for n, text in said(path):
        for entry in WORDS:
            for match in re.finditer(entry["pattern"], text, re.IGNORECASE):
                if not any(
                    re.search(re.escape(part), text, re.IGNORECASE) for part in entry["allowed"]
                ):
                    wrong.append(
                        f"{path}:{n}: {match[0]!r}: say {entry['instead']}: {text.strip()[:80]}"
                    )
    assert not wrong, "\n".join(wrong)


def test_each_place_where_a_word_may_stand_exists():
    everything = "\n".join(text for path in FILES for _, text in said(path)).lower()
    unused = [
        part for entry in WORDS for part in entry["allowed"] if part.lower() not in everything
    ]
    assert not unused


@cache
def bold(chapter):
    return [
        re.sub(r"\s+", " ", words)
        for words in re.findall(r"\*\*([^*]+?)\*\*", code_free(chapter.text))
    ]


@pytest.mark.parametrize("term", TERMS)
def test_each_term_is_defined_in_exactly_one_chapter(term):
    defined = [
        chapter.name
        for chapter in BOOK.chapters
        for words in bold(chapter)
        if words == terms.bare(term)
    ]
    text = BOOK.chapter("glossary").text
    entry = re.search(
        rf"^{re.escape(term)}\n(?:.*\n)*?  Taught in \{{doc\}}`(\w+)`", text, re.MULTILINE
    )
    assert defined == [entry[1]]


def test_the_glossary_is_complete_and_in_order():
    assert len(TERMS) == len(set(TERMS)) > 90
    assert len({name for names in terms.entries(BOOK) for name in names}) == sum(
        map(len, terms.entries(BOOK))
    )


LINKS = r"\{doc\}`[^`]+`(?:,? (?:and )?\{doc\}`[^`]+`)*"
SUBJECT = re.compile(rf"(?:([\w`]+) |[^\w`] ?|^){LINKS} ([a-z]+)\b")
NO_VERB = re.compile("afterwards|across|always|as|besides|its|less|perhaps|this|thus|unless")
VERB = re.compile("are|can|did|do|has|have|is|may|say|show|was|were|will|had|does|[a-z]{3,}s")
NO_SUBJECT = re.compile(
    "after|at|before|between|by|for|from|in|into|like|of|on|see|than|through|to|under|with|"
    "appendix|chapters?|glossary|pages?|section",
    re.IGNORECASE,
)


def subjects(text):
    """The links to chapters that are the subject of a sentence, with the verb."""
    text = re.sub(r"^```\{code-cell\}.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for match in SUBJECT.finditer(" ".join(text.split())):
        before, verb = match[1] or "", match[2]
        if VERB.fullmatch(verb) and not (NO_VERB.fullmatch(verb) or NO_SUBJECT.fullmatch(before)):
            yield match[0]


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=lambda chapter: chapter.name)
def test_a_link_is_not_the_subject_of_a_sentence(chapter):
    """A link shows a short title, and "Manual explains the sum" is no sentence: "the chapter
    {doc}`manual` explains" is one.
    """
    assert not (found := list(subjects(chapter.text))), "\n".join(found)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("{doc}`pods` compiles it.", 1),
        ("It fits. {doc}`pods` compiles\nit.", 1),
        ("as {doc}`auto` explains", 1),
        ("**MFU.** {doc}`costs` says", 1),
        ("{doc}`auto` and {doc}`manual` have", 1),
        ("The chapter {doc}`pods` compiles it.", 0),
        ("In {doc}`pods` it sends less.", 0),
        ("the network of {doc}`training` has", 0),
        ("It fits ({doc}`pods`).", 0),
        ("```{code-cell} ipython3\n# {doc}`pods` compiles\n```", 0),
    ],
)
def test_a_link_as_a_subject_is_found(text, count):
    assert len(list(subjects(text))) == count
