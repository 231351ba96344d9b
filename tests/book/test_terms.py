"""Terms of the glossary on a page: links at first use, and entries for the search where they are
defined.
"""

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from sphinx import addnodes

from bookbinder.page import terms

GLOSSARY = [
    ("mesh", "device mesh"),
    ("all-reduce", "psum"),
    ("slice (of a pod)",),
    ("HBM",),
    ("ring road", "loop"),
    ("process",),
    ("checkpoint",),
    ("committed",),
    ("overlap",),
    ("varying",),
]


def linked(text, glossary=GLOSSARY, name="chapter", known=lambda term: f"glossary.html#{term}"):
    """The words that are links, each with where it leads."""
    tree = publish_doctree(text)
    terms.link_first_uses(tree, glossary, name, known)
    return [
        (link.astext(), link["refuri"]) for link in tree.findall(nodes.reference)
    ], tree.astext()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A mesh, and the mesh again.", ["mesh"]),
        ("Meshes have axes.", ["Meshes"]),
        # the longest name, and one link for all names of a term
        ("One device mesh, one mesh.", ["device mesh"]),
        ("An all-reduce-scatter is no term, an all-reduce is.", ["all-reduce"]),
        ("A slice of bread; HBM and hbm.", ["HBM"]),
        ("Words in ``mesh`` and in **mesh** stay.", []),
        ("Here it is **mesh**. There, a mesh.", []),  # this page defines it
        (
            "A `mesh <https://example.org>`_ that leads elsewhere, and then a mesh.",
            ["mesh", "mesh"],
        ),
        ("About a loop\n============\n\nA loop.", ["loop"]),
        ("A ring\nroad, and a **ring\nroad**.", []),
        ("psum adds, as the all-reduce does", ["psum"]),
        ("smeshed remeshes", []),
        ("Which experts process it? One process does.", ["process"]),  # the verb is no term
        ("It processes all tokens, and checkpoints the stage.", []),
        ("However many it processes, no process waits.", ["process"]),
        ("The opening committed a sum too many; the array is committed.", ["committed"]),
        ("Files overlap this block, and the overlap is read.", ["overlap"]),
        ("Runs of varying length over a varying value.", ["varying"]),
        ("Bodies are *processes* of its own, a process is not.", ["process"]),
        ("Eight processes have a checkpoint of theirs.", ["processes", "checkpoint"]),
    ],
)
def test_the_first_use_of_a_term_is_a_link(text, words):
    found, after = linked(text)
    assert [word for word, _ in found] == words
    assert after == publish_doctree(text).astext()  # no word of the text has changed


def test_a_link_leads_to_the_term_whatever_name_was_used():
    assert linked("psum adds")[0] == [("psum", "glossary.html#all-reduce")]


def test_without_a_glossary_nothing_is_linked():
    assert linked("A mesh", glossary=[])[0] == linked("A mesh", name="glossary")[0] == []
    assert linked("A mesh", known=lambda term: None)[0] == []


def test_the_search_finds_where_a_term_is_defined_under_all_its_names():
    tree = publish_doctree(
        "A **mesh** has devices. A **mesh** has axes, a **slice** parts, a **ring\nroad** none."
    )
    terms.note_definitions(tree, GLOSSARY, "chapter")
    entries = [entry[1:4] for index in tree.findall(addnodes.index) for entry in index["entries"]]
    assert entries == [
        ("mesh", "defines-mesh", "main"),
        ("device mesh", "defines-mesh", "main"),
        ("slice", "defines-slice", "main"),
        ("ring road", "defines-ring-road", "main"),
        ("loop", "defines-ring-road", "main"),
    ]
    assert [strong["ids"] for strong in tree.findall(nodes.strong)][:2] == [["defines-mesh"], []]


def test_in_the_glossary_itself_entries_are_not_the_main_ones():
    tree = publish_doctree("Text")
    tree += addnodes.index(entries=[("single", "mesh", "term-mesh", "main", None)])
    terms.note_definitions(tree, GLOSSARY, "glossary")
    assert next(tree.findall(addnodes.index))["entries"] == [
        ("single", "mesh", "term-mesh", "", None)
    ]
