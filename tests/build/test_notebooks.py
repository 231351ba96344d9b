"""Notebooks: every construct that a chapter may use, everything it may not, what is published, and
how it reads.

tests/book/test_colab.py runs the published notebooks.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup
from hypothesis import given, settings, strategies as st
from places import ROOT
from repository import BOOK
from tiny_book import FRONT, TinyBook

import shardlab
from bookbinder.notebook import notebooks
from bookbinder.read import address, core
from bookbinder.read.book import Book, BookError, Chapter, split_assertions

SITE = "https://tiny.github.io/here/"
CODE = "```{code-cell}\nprint(1)\n```\n"

CONFIG = {
    "title": "Tiny",
    "repository": {"url": "https://github.com/tiny/here", "branch": "main"},
    "parse": {"myst_enable_extensions": ["colon_fence", "deflist", "dollarmath", "substitution"]},
    "bibtex_bibfiles": ["book/works.bib"],
}
OTHER = """\
# Other `one`

(far-away)=
## A far section

```{exercise-start} Before ★
:label: other-before
```
```{exercise-end}
```

```{glossary}
Mesh
  devices in a grid
```
"""


@pytest.fixture
def write(tmp_path):
    """Write a chapter called one, beside another; returns the cells of its notebook."""
    (tmp_path / "book" / "data").mkdir(parents=True)
    (tmp_path / "_config.yml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "book" / "works.bib").write_text(
        "@misc{a, author={Noether, Emmy}, year={1918}, url={https://example.org/n}}\n"
        "@misc{b, author={Noether, Emmy and Hilbert, David}, year={1919}}\n"
        "@misc{c, author={{The Group} and Noether, Emmy and Hilbert, David}, "
        "url={https://example.org/g}}\n"
    )
    (tmp_path / "book" / "pic.svg").write_text("<svg/>")
    (tmp_path / "book" / "data" / "run.sh").write_text("one\ntwo\nthree\nfour\n")
    (tmp_path / "book" / "data" / "f.py").write_text(
        "x = 0\n\n\n@cache\ndef f():\n    return 1\n\n\ny = f()\n"
    )
    (tmp_path / "book" / "other.md").write_text(OTHER)

    def write(body, title="# One\n\n"):
        (tmp_path / "book" / "one.md").write_text(FRONT + title + body)
        chapters = tuple(Chapter(tmp_path, name) for name in ("other", "one"))
        made = notebooks.make(Book(tmp_path, chapters, CONFIG))
        return json.loads(made["one.ipynb"])["cells"]

    return write


@pytest.fixture
def shown(write):
    """What a text becomes, between the title's cells and one of code."""

    def shown(body):
        cells = write(body + "\n\n" + CODE)
        assert "".join(cells[-1]["source"]) == "print(1)"
        return "\n\n=====\n\n".join("".join(cell["source"]) for cell in cells[2:-1])

    return shown


# --- What is converted ----------------------------------------------------------------------------

CONVERTED = {
    "words stay": (
        "Some *words* and\n**more**, `code`, $x_1$, 5 \\$.",
        "Some *words* and\n**more**, `code`, $x_1$, 5 \\$.",
    ),
    "a chapter": ("See {doc}`other`.", f"See [Other `one`]({SITE}other.html)."),
    "a chapter, named": ("See {doc}`there <other>`.", f"See [there]({SITE}other.html)."),
    "an exercise": ("[](#other-before)", f"[Exercise 1]({SITE}other.html#other-before)"),
    "a notebook in Colab": (
        "{colab}`Open it <other>`",
        "[Open it](https://colab.research.google.com/github/tiny/here/blob/notebooks/other.ipynb)",
    ),
    "a time": ("{minutes}`other` to read", "1 minute to read"),
    "a container": (
        ":::{container} cards\n- {doc}`other`\n:::",
        f"- [Other `one`]({SITE}other.html)",
    ),
    "a term": ("a {term}`mesh`", f"a [mesh]({SITE}other.html#term-Mesh)"),
    "a link to a label": ("[](#far-away)", f"[A far section]({SITE}other.html#far-away)"),
    "a link elsewhere": (
        '[x](https://a.b/c_(d) "T") <https://e.f>',
        '[x](https://a.b/c_(d) "T") <https://e.f>',
    ),
    "a download": (
        "{download}`f <data/run.sh>`",
        "[f](https://github.com/tiny/here/blob/main/book/data/run.sh)",
    ),
    "cited in the text": ("{cite:t}`a`", "Noether \\[[1918](https://example.org/n)\\]"),
    "cited: two authors, no address": (
        "{cite:t}`b`",
        f"Noether and Hilbert \\[[1919]({SITE}references.html)\\]",
    ),
    "cited in brackets": (
        "{cite:p}`a,c`",
        (
            "\\[Noether, [1918](https://example.org/n), The Group *et al.*, "
            "[n.d.](https://example.org/g)\\]"
        ),
    ),
    "roles in code stay": (
        "`{doc}` and ``{doc}`other` `` {doc}`x <other>`",
        f"`{{doc}}` and ``{{doc}}`other` `` [x]({SITE}other.html)",
    ),
    "a role over two lines": (
        "see {doc}`the\nother <other>`",
        f"see [the other]({SITE}other.html)",
    ),
    "a role over two lines of a quotation": (
        "> a {doc}`the\n> other <other>`\n> b",
        f"> a [the other]({SITE}other.html)\n> b",
    ),
    "what is escaped stays": (
        r"\[x](#far-away) [y](#far-away) \{doc}`z` [a \](b) c](#far-away)",
        (
            rf"\[x](#far-away) [y]({SITE}other.html#far-away) \{{doc}}`z` [a \](b) "
            rf"c]({SITE}other.html#far-away)"
        ),
    ),
    "code in a link": ("`[w `[`x](y)`](#far-away)", f"`[w `[`x](y)`]({SITE}other.html#far-away)"),
    "a link with a title": ("[a](#far-away (t))", f'[a]({SITE}other.html#far-away "t")'),
    "code in a definition": (
        "T\n: a\n\n  ```python\n  if x:\n      y\n  ```",
        "- **T**: a\n\n  ```python\n  if x:\n      y\n  ```",
    ),
    "a list in a definition": ("T\n: - a\n  - b\n    - c", "- **T**:\n\n  - a\n  - b\n    - c"),
    "a definition behind a tilde": ("T\n~ a", "- **T**: a"),
    "Markdown in a folded title": (
        ":::{admonition} A *b* {doc}`other` & x\n:class: dropdown\ny\n:::",
        f'<details>\n<summary>A <em>b</em> <a href="{SITE}other.html">Other '
        "<code>one</code></a> &amp; x</summary>\n\n"
        "y\n\n</details>",
    ),
    "math of several lines": (
        "$$\na &= b \\\\\nc &= d\n$$",
        "$$\n\\begin{split}\na &= b \\\\\nc &= d\n\\end{split}\n$$",
    ),
    "the text of an exercise's own fence": (
        "```{exercise-start} T\n:label: one-x\nDo it.\n```\n```{exercise-end}\n```",
        "### Exercise 2: T\n\nDo it.",
    ),
    "a heading of two lines": ("Two\nlines\n---", "## Two lines"),
    "a substitution": (
        "{{ repository }} {{ pdf }}",
        "<https://github.com/tiny/here> <https://tiny.github.io/here/book.pdf>",
    ),
    "an image": (
        "![Two boxes](pic.svg)",
        "![Two boxes](https://github.com/tiny/here/raw/main/book/pic.svg)",
    ),
    "a box": (
        ":::{note}\nBody {doc}`other`\n\n- a\n:::",
        f"> **Note**\n>\n> Body [Other `one`]({SITE}other.html)\n>\n> - a",
    ),
    "a box with a title": (
        ":::{admonition} Mind `x`\n:class: tip\nBody\n:::",
        "> **Mind `x`**\n>\n> Body",
    ),
    "a box by YAML": ("```{admonition} T\n---\nclass: tip\n---\nBody\n```", "> **T**\n>\n> Body"),
    "a folded box": (
        ":::{hint}\n:class: dropdown\nBody\n:::",
        "<details>\n<summary>Hint</summary>\n\nBody\n\n</details>",
    ),
    "a box in a box": (
        "::::{note}\n:::{tip}\nIn\n:::\n::::",
        "> **Note**\n>\n> > **Tip**\n> >\n> > In",
    ),
    "the margin": ("```{margin}\nAside\n```", "> **On the margin**\n>\n> Aside"),
    "math": ("$$\nx = 1\n$$", "$$\nx = 1\n$$"),
    "a definition list": (
        "Term {doc}`other`\n: first\n  line\n\nTwo\n: a\n: b",
        f"- **Term [Other `one`]({SITE}other.html)**: first\n  line\n- **Two**: a\n\n  b",
    ),
    "a table": (
        "| a | b |\n|---|---|\n| {doc}`other` | `x` |",
        f"| a | b |\n|---|---|\n| [Other `one`]({SITE}other.html) | `x` |",
    ),
    "lists": (
        "- a {doc}`x <other>`\n  more\n  - b\n\n    ```python\n    {doc}`x`\n    ```\n1. c",
        (
            f"- a [x]({SITE}other.html)\n  more\n  - b\n\n    ```python\n    {{doc}}`x`\n    "
            "```\n\n1. c"
        ),
    ),
    "quotations": ("> a {doc}`x <other>`\n> b", f"> a [x]({SITE}other.html)\n> b"),
    "code": ("```python\n{doc}`x`\n```", "```python\n{doc}`x`\n```"),
    "a function": (
        "```{literalinclude} data/f.py\n:language: python\n:pyobject: f\n```",
        "```python\n@cache\ndef f():\n    return 1\n```",
    ),
    "a file": (
        "```{literalinclude} data/run.sh\n:language: bash\n:lines: 3-\n```",
        "```bash\nthree\nfour\n```",
    ),
    "some lines of a file": (
        "```{literalinclude} data/run.sh\n:lines: 2-3\n```",
        "```\ntwo\nthree\n```",
    ),
    "comments and labels go": ("% hidden\n\n(one-here)=\nText", "Text"),
    "headings split cells": (
        "a\n\n## B\n\nb\n\n### C\n\nc",
        "a\n\n=====\n\n## B\n\nb\n\n=====\n\n### C\n\nc",
    ),
    "a break splits cells": ("a\n\n+++\n\nb", "a\n\n=====\n\nb"),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_converted(name, shown):
    source, expected = CONVERTED[name]
    assert shown(source) == expected


def test_the_head_of_a_notebook(write):
    title, set_up, *_ = write(CODE)
    text = "".join(title["source"])
    assert text.startswith(
        "# One\n\n[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    )
    assert "(https://colab.research.google.com/github/tiny/here/blob/notebooks/one.ipynb)" in text
    assert f"]({SITE}one.html)" in text
    code = "".join(set_up["source"])
    assert '"https://github.com/tiny/here/archive/main.tar.gz"' in code and "emulate" not in code
    assert f'"shardlab-{shardlab.__version__}-py3-none-any.whl"' in code and "glob" not in code


def test_eight_devices_and_a_newer_jax_are_readied_where_a_chapter_wants_them(write, tmp_path):
    cells = write("```{code-cell}\nfrom shardlab import emulate\n\nemulate(8)\n```\n")
    assert "".join(cells[1]["source"]).endswith('print(len(emulate(8)), "devices are ready")')
    front = FRONT.replace("jupytext:", 'jax: ">=0.99.1"\njupytext:')
    (tmp_path / "book" / "one.md").write_text(front + "# One\n\n" + CODE)
    book = Book(tmp_path, (Chapter(tmp_path, "one"),), CONFIG)
    code = "".join(json.loads(notebooks.make(book)["one.ipynb"])["cells"][1]["source"])
    assert '< Version("0.99.1")' in code and '"jax>=0.99.1"' in code and "Restart session" in code


def test_what_colab_lacks_is_installed_where_a_chapter_imports_it(write):
    cells = [
        write(f"```{{code-cell}}\n{source}\n```\n")
        for source in ("import equinox as eqx", "import jax")
    ]
    with_equinox, without = ("".join(set_up["source"]) for _, set_up, *_ in cells)
    assert re.search(r"^%pip install --quiet equinox==[\d.]+$", with_equinox, re.MULTILINE)
    assert "equinox" not in without


def test_every_notebook_installs_the_package_of_its_own_commit_or_the_wheel_that_belongs_to_it():
    """Without git, which images for courses and Kaggle may lack; and no other wheel that lies
    there.
    """
    where, commit = address.of(BOOK.config), address.commit(ROOT)
    wheel = f"shardlab-{shardlab.__version__}-py3-none-any.whl"
    for name, text in notebooks.make(BOOK).items():
        cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"]]
        assert f'archive = "{where.archive(commit)}"\nwheel = "{wheel}"' in cells[1], name
        assert not [
            cell
            for cell in cells
            if "git+" in cell or re.search(r"^[!%](pip|git)\b.*git", cell, re.M)
        ], name


EXERCISE = """\
```{exercise-start} Turn it ★
:label: one-turn
```
Do it.

```{code-cell}
answer = ...
```

:::{hint}
:class: dropdown
Think.
:::
```{exercise-end}
```

```{solution-start} one-turn
:label: one-turn-solution
:class: dropdown
```
First.

```{code-cell}
answer = 1
```
Last.
```{solution-end}
```

After.
"""


def test_exercises_and_folded_solutions(write):
    cells = write(EXERCISE)[2:]
    texts = ["".join(cell["source"]) for cell in cells]
    fold = "<details>\n<summary>Solution of exercise 2</summary>\n\n{}\n\n</details>"
    assert texts == [
        "### Exercise 2: Turn it ★\n\nDo it.",
        "answer = ...",
        "<details>\n<summary>Hint</summary>\n\nThink.\n\n</details>",
        fold.format("First."),
        "#@title Solution of exercise 2: double-click to read it\nanswer = 1",
        fold.format("Last."),
        "After.",
    ]
    assert [cell["metadata"].get("cellView") for cell in cells].index("form") == 4


GRADED = EXERCISE.replace(
    "Do it.\n",
    (
        "Do it.\n\n```{code-cell}\n:tags: [hide-cell]\n\nexpected = "
        "1\n```\n\n```{code-cell}\nexample()\n```\n"
    ),
).replace("```{code-cell}\nanswer = ...", "```{code-cell}\n:tags: [hide-cell]\n\nanswer = ...")


def test_what_checks_an_exercise_is_folded_and_what_the_reader_writes_is_not(write):
    code = [cell for cell in write(GRADED) if cell["cell_type"] == "code"][1:4]
    assert ["".join(cell["source"]) for cell in code] == [
        "#@title What checks your answer: double-click to read it\nexpected = 1",
        "example()",
        "answer = ...",
    ]
    assert [cell["metadata"].get("cellView") for cell in code] == ["form", None, None]


ASKED = """\
**Predict.** How many?

- [ ] three, of
  course

  Three are too many.
- [x] `two`

  There are *two*.
- [ ] one

```{code-cell}
count = 2
assert count == 2
count
```

```{code-cell}
assert count
```

Then why.

```{code-cell}
more = 3
assert more == 3
```
"""


def test_a_notebook_does_not_tell_what_it_asks(write):
    """The assertions of a cell that answers are folded below it, and so is the right choice, with
    all reasons.
    """
    cells = write(ASKED)[2:]
    assert ["".join(cell["source"]) for cell in cells] == [
        "**Predict.** How many?\n\n- three, of course\n- `two`\n- one",
        "count = 2\ncount",
        "#@title Checked: double-click to read it\nassert count == 2",
        "assert count",
        "<details>\n<summary>The answer, and why</summary>\n\nRight: `two`. There are *two*.\n\n"
        "Not: three, of course. Three are too many.\n\n</details>\n\nThen why.",
        "more = 3\nassert more == 3",
    ]
    assert [cell["metadata"].get("cellView") for cell in cells] == [
        None,
        None,
        "form",
        None,
        None,
        None,
    ]


PLAIN = nbformat.v4.new_output("execute_result", {"text/plain": "1"}, execution_count=3)
SHOWN = {"output_type": "display_data", "data": {"text/plain": ["1"]}, "metadata": {}}
TELLING = {
    "a cell": ("```{code-cell}\n1\n```\n", [[SHOWN]]),
    "a folded cell": ("```{code-cell}\n:tags: [hide-input]\n\n1\n```\n", [[]]),
    "a hidden output": ("```{code-cell}\n:tags: [hide-output]\n\n1\n```\n", [[]]),
    "the answers to a prediction, and what follows": (ASKED, [[], [], [], [SHOWN]]),
    "an exercise and its solution": (EXERCISE + "\n```{code-cell}\n1\n```\n", [[], [], [SHOWN]]),
}


@pytest.mark.parametrize("name", TELLING)
def test_outputs_are_kept_where_they_tell_no_answer(write, tmp_path, name):
    body, shown = TELLING[name]
    write(body)
    book = Book(tmp_path, tuple(Chapter(tmp_path, one) for one in ("other", "one")), CONFIG)
    made = notebooks.make(book, outputs={"one": [[PLAIN]] * 9})
    cells = [cell for cell in json.loads(made["one.ipynb"])["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells[1:]] == shown and cells[0]["outputs"] == []
    assert {cell["execution_count"] for cell in cells} == {None}
    if "class/one.ipynb" in made:
        assert made["class/one.ipynb"] == notebooks.make(book)["class/one.ipynb"]


def rich(**data):
    return nbformat.v4.new_output(
        "display_data", {kind.replace("_", "/"): text for kind, text in data.items()}
    )


SVG = {"image/svg+xml": "<svg/>"}
KEPT_OUTPUTS = {
    "what is printed": (
        nbformat.v4.new_output("stream", text="1\n"),
        {"name": "stdout", "text": ["1\n"]},
    ),
    "an error": (
        nbformat.v4.new_output("error", ename="E", evalue="no", traceback=["x"]),
        {"ename": "E", "evalue": "no", "traceback": ["x"]},
    ),
    "a table": (
        rich(text_html="<table/>", text_plain="a b"),
        {"text/html": ["<table/>"], "text/plain": ["a b"]},
    ),
    "a picture of arrays, as text": (
        rich(text_html="<div><svg/></div>", text_plain="┌─┐"),
        {"text/plain": ["┌─┐"]},
    ),
    "a plot": (
        nbformat.v4.new_output("display_data", {**SVG, "text/plain": "<Figure>"}),
        {"image/svg+xml": ["<svg/>"]},
    ),
    "Markdown": (rich(text_markdown="*a*", text_plain="<M>"), {"text/markdown": ["*a*"]}),
    "no name of an object": (rich(text_html="<script/>", text_plain="<HTML object>"), None),
    "nothing that is too long": (
        nbformat.v4.new_output("stream", text="1" * notebooks.OUTPUT_MOST),
        None,
    ),
}


@pytest.mark.parametrize("name", KEPT_OUTPUTS)
def test_an_output_is_kept_as_previews_show_it(write, tmp_path, name):
    output, kept = KEPT_OUTPUTS[name]
    write(CODE * 3)
    book = Book(tmp_path, tuple(Chapter(tmp_path, one) for one in ("other", "one")), CONFIG)
    cells = json.loads(notebooks.make(book, outputs={"one": [[output], [output]]})["one.ipynb"])[
        "cells"
    ]
    *_, first, second, third = (
        [one.get("data", one) for one in cell.get("outputs", ())] for cell in cells
    )
    assert first == second and third == []
    assert [{k: v for k, v in one.items() if k != "output_type"} for one in first] == (
        [kept] if kept else []
    )


def test_outputs_of_a_notebook_have_a_limit_together(write, tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "OUTPUTS_MOST", 200)
    write(CODE * 5)
    book = Book(tmp_path, tuple(Chapter(tmp_path, one) for one in ("other", "one")), CONFIG)
    output = nbformat.v4.new_output("stream", text="1" * 40)
    cells = json.loads(notebooks.make(book, outputs={"one": [[output]] * 5})["one.ipynb"])["cells"]
    assert [len(cell["outputs"]) for cell in cells if cell["cell_type"] == "code"] == [
        0,
        1,
        1,
        0,
        0,
        0,
    ]


def test_folded_cells_keep_their_magic_first(write):
    cells = write(
        "```{code-cell}\n:tags: [hide-input]\n\nplot()\n```\n\n"
        "```{code-cell}\n:tags: [hide-input, remove-stderr]\n%%processes 0\nplot()\n```\n"
    )
    one, two = cells[2:]
    assert "".join(one["source"]).startswith("#@title ") and "".join(one["source"]).endswith(
        "\nplot()"
    )
    first, second, third = "".join(two["source"]).split("\n")
    assert (first, second[:7], third) == ("%%processes 0", "#@title", "plot()")
    assert (
        one["metadata"]
        == two["metadata"]
        == {"cellView": "form", "jupyter": {"source_hidden": True}}
    )


# --- What is refused, and where -------------------------------------------------------------------

REFUSED = {
    "an unknown directive": ("a\n\n```{mermaid}\nx\n```", 5, "{mermaid}"),
    "an unknown directive in a box": (":::{note}\nx\n\n```{raw} html\n<b>\n```\n:::", 6, "{raw}"),
    "an unknown role": ("a\nb {py:func}`x`", 4, "{py:func}"),
    "an unknown chapter": ("a\n\nb {doc}`nowhere`", 5, "nowhere"),
    "an unknown anchor": ("[x](#nothing)", 3, "nothing"),
    "an unknown term": ("{term}`nothing`", 3, "nothing"),
    "an unknown work": ("{cite:t}`nobody`", 3, "nobody"),
    "an unknown file": ("{download}`x <data/none.sh>`", 3, "book/data/none.sh"),
    "a link to a file of the book": ("[x](data/run.sh)", 3, "{download}`FILE`"),
    "a link to a chapter": ("[x](other.md)", 3, "{doc}`NAME`"),
    "a footnote": ("text[^1]\n\n[^1]: why", 3, "footnote_ref"),
    "a labelled equation": ("$$ x $$ (one-q)", 3, "math_block_label"),
    "a figure": ("```{figure} pic.svg\n```", 3, "there are note"),
    "a role of Sphinx": ("{ref}`far-away`", 3, "there are doc"),
    "an unknown file to include": ("```{literalinclude} none.sh\n```", 3, "book/none.sh"),
    "an option that is not known": (
        "```{literalinclude} data/run.sh\n:start-at: f\n```",
        3,
        ":start-at:",
    ),
    "an unknown substitution": ("{{ none }}", 3, "none"),
    "an unknown exercise": ("```{solution-start} none\n```\n```{solution-end}\n```", 3, "none"),
    "an image that is not there": ("![Two boxes](none.svg)", 3, "book/none.svg"),
    "an image from elsewhere": ("![Two boxes](https://a.b/c.png)", 3, "https://a.b/c.png"),
    "an image without words": ("![](pic.svg)", 3, "alternative"),
    "HTML": ("a\n\n<div>x</div>", 5, "html_block"),
    "HTML in a line": ("a <span>x</span>", 3, "<span>"),
    "a directive in a list": ("- a\n\n  ```{note}\n  x\n  ```", 5, "top level"),
    "a box in a quotation": ("> a\n>\n> :::{note}\n> x\n> :::", 5, "top level"),
    "backticks in the first line": ("```{note} of `x`\nbody\n```\n```", 3, "backticks"),
    "colons without a name": ("::: \nx\n:::", 3, "name"),
    "an address that stands apart": ("[x][y]\n\n[y]: https://a.b", 5, "not in the link"),
    "an exercise without a label": (
        "```{exercise-start} T\n```\n```{exercise-end}\n```",
        3,
        ":label:",
    ),
    "an end without a start": ("```{exercise-end}\n```", 3, "exercise-end"),
    "options that are not YAML": ("```{note}\n---\na: [\n---\nx\n```", 3, ":a:"),
    "a comment in a list": ("- a\n  % hidden", 4, "top level"),
    "a function that is not there": (
        "```{literalinclude} data/f.py\n:pyobject: g\n```",
        3,
        "defines no g; it defines f",
    ),
    "lines that are not there": (
        "```{literalinclude} data/run.sh\n:lines: 3-9\n```",
        3,
        "lines 1 to 4",
    ),
    "lines that are no numbers": ("```{literalinclude} data/run.sh\n:lines: a-b\n```", 3, "a-b"),
    "lines in several ranges": (
        "```{literalinclude} data/run.sh\n:lines: 1,3-\n```",
        3,
        "as 2-4 or 2-",
    ),
    "a note that begins in its first line": ("```{note} Hello\nthere\n```", 3, "below {note}"),
    "an equation with an empty line": ("$$\na\n\nb\n$$", 3, "empty line"),
    "a substitution alone in a list": ("- {{ repository }}\n- b", 3, "top level"),
    "a space before a name": ("``` {note}\nx\n```", 3, "```{name}"),
    "the other syntax of a glossary": ("```{glossary}\nA\n: b\n```", 5, "without a colon"),
    "a link without words": ("[](https://a.b)", 3, "no text"),
    "two titles": ("## B\n\n# Two", 5, "one title"),
    "a solution that does not end": (
        (
            "```{exercise-start} T\n:label: "
            "one-t\n```\n```{exercise-end}\n```\n```{solution-start} one-t\n```"
        ),
        8,
        "solution-end",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_file_and_line(name, write):
    source, line, word = REFUSED[name]
    with pytest.raises(BookError) as error:
        write(f"{source}\n\n{CODE}")
    place = f"book/one.md:{FRONT.count(chr(10)) + line}: "
    assert str(error.value).startswith(place) and word in str(error.value), error.value


@pytest.mark.parametrize("tag", ["raises-exception", "skip-execution", "my-tag"])
def test_unknown_tags_of_cells_are_refused(tag, write):
    with pytest.raises(BookError, match=rf"book/one.md:{FRONT.count(chr(10)) + 3}: .*{tag}"):
        write(f"```{{code-cell}}\n:tags: [{tag}]\nprint(1)\n```")


def test_text_without_a_title_is_refused(write):
    for title, body in (("", "Text\n"), ("", CODE), ("## Sub\n\n", "")):
        with pytest.raises(BookError, match=r"begins with its title"):
            write(body + "\n" + CODE, title)


def test_a_chapter_that_colab_would_not_show_fails_the_build(tmp_path):
    tiny = TinyBook(tmp_path)
    assert tiny.build()[0] == 0
    before = tiny.site(), (tmp_path / "_build" / "notebooks" / "one.ipynb").read_bytes()
    tiny.write(
        "book/one.md", (tmp_path / "book" / "one.md").read_text() + "\n```{epigraph}\nx\n```\n"
    )
    for command in (["build"], ["chapter", "book/one.md"]):
        status, _, err = tiny.build(*command)
        assert status == 1 and re.search(r"^book/one.md:17: .*\{epigraph\}", err, re.MULTILINE), err
    assert before == (tiny.site(), (tmp_path / "_build" / "notebooks" / "one.ipynb").read_bytes())


# --- Documents of all kinds -----------------------------------------------------------------------

WORDS = st.text(
    alphabet=st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=8
).map("wz{}".format)
SPANS = st.one_of(
    WORDS,
    WORDS.map("*{}*".format),
    WORDS.map("`{{doc}} {}`".format),
    WORDS.map("$x_{{{}}}$".format),
    st.sampled_from(
        ["{doc}`other`", "{doc}`w <other>`", "{cite:t}`a`", "[](#far-away)", "at {{ repository }}"]
    ),
    st.sampled_from(
        [
            "[l](#far-away)",
            "{term}`mesh`",
            "{download}`data/run.sh`",
            "``{ref}`x` ``",
            "{minutes}`other`",
        ]
    ),
)
LINES = st.lists(SPANS, min_size=1, max_size=6).map(" ".join)
PARAGRAPHS = st.lists(LINES, min_size=1, max_size=3).map("\n".join)
BLOCKS = st.one_of(
    PARAGRAPHS,
    st.lists(LINES, min_size=1, max_size=3).map(
        lambda items: "\n".join(f"- {item}" for item in items)
    ),
    st.lists(LINES, min_size=1, max_size=3).map(
        lambda items: "\n".join(f"> {item}" for item in items)
    ),
    st.tuples(LINES, LINES).map(lambda pair: f"Term\n: {pair[0]}\n  {pair[1]}"),
    st.tuples(LINES, LINES).map(lambda pair: f"| a | b |\n|---|---|\n| {pair[0]} | {pair[1]} |"),
    PARAGRAPHS.map("```python\n{}\n```".format),
    LINES.map("## {}".format),
)
BOXED = st.tuples(st.sampled_from(["note", "hint", "admonition T", "margin"]), BLOCKS).map(
    lambda pair: f":::{{{pair[0].split()[0]}}} {' '.join(pair[0].split()[1:])}\n{pair[1]}\n:::"
)
DOCUMENTS = st.lists(st.one_of(BLOCKS, BOXED, st.just(CODE.strip())), min_size=1, max_size=8).map(
    "\n\n".join
)


@pytest.fixture(scope="module")
def convert(tmp_path_factory):
    """Convert a text of a chapter, many times in one book."""
    root = tmp_path_factory.mktemp("documents")
    (root / "book" / "data").mkdir(parents=True)
    (root / "_config.yml").write_text(yaml.safe_dump(CONFIG))
    (root / "book" / "works.bib").write_text(
        "@misc{a, author={Noether, Emmy}, year={1918}, url={https://example.org}}"
    )
    (root / "book" / "pic.svg").write_text("<svg/>")
    (root / "book" / "data" / "run.sh").write_text("one\n")
    (root / "book" / "other.md").write_text(OTHER)

    def convert(source):
        (root / "book" / "one.md").write_text(
            f"{FRONT}# One\n\n{source}\n\n$$ e $$\n\n{CODE}", "utf-8"
        )
        book = Book(root, (Chapter(root, "other"), Chapter(root, "one")), CONFIG)
        return notebooks.make(book)["one.ipynb"]

    return convert


@given(DOCUMENTS)
@settings(max_examples=80, deadline=None)
def test_whatever_is_written_nothing_raw_is_left_and_no_word_is_lost(convert, source):
    made = convert(source)
    assert made == convert(source)  # the same bytes
    notebook = nbformat.reads(made, as_version=4)
    nbformat.validate(notebook)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    for text in texts:
        assert not raw(text), raw(text)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code[1:] == ["print(1)"] * (source.count("{code-cell}") + 1)
    for word in re.findall(r"wz[^\W_]+", source):
        assert word in " ".join(texts)


def raw(text):
    """What is left of MyST in a text of Markdown, outside of code and math."""
    from markdown_it import MarkdownIt

    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "", text, flags=re.DOTALL)
    words = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        words += [
            child.content for child in token.children or [] if child.type in ("text", "html_inline")
        ]
    prose = "\n".join(words)
    return re.findall(
        r"\{[\w:-]+\}`|^:::.*|\{\{|\[\^|^\([\w-]+\)=|\{[\w-]+\}$", prose, re.MULTILINE
    )


def test_raw_markup_would_be_found():
    for text in ("a {doc}`b`", ":::{note}", "{{ x }}", "a [^b]", "(here)=", "- x {ref}`y`"):
        assert raw(text), text
    assert not raw("`{doc}` $x$ ``{ref}`a` ``\n\n```\n:::{note}\n```")


# --- The real book's notebooks --------------------------------------------------------------------

PROGRAMS = [chapter.name for chapter in BOOK.chapters if chapter.runs]


@pytest.fixture(scope="module")
def published(site):
    """The notebooks that `make book` leaves, by their chapter."""
    folder = site.parent / "notebooks"
    return {
        file.stem: nbformat.read(file, as_version=4)
        for file in folder.glob("*.ipynb")
        if file.stem not in core.TITLES
    }


def test_every_chapter_with_code_has_its_notebook_and_its_buttons(published, site):
    assert sorted(published) == sorted(PROGRAMS)
    where = address.of(BOOK.config)
    for chapter in BOOK.chapters:
        page = BeautifulSoup((site / f"{chapter.name}.html").read_text(), "html.parser")
        links = [link["href"] for link in page.select("a[href]")]
        colab, download = where.colab(chapter.name), where.notebook(chapter.name)
        assert (
            colab
            == f"https://colab.research.google.com/github/{where.name}/blob/notebooks/{chapter.name}.ipynb"
        )
        assert links.count(colab) == (chapter.runs or chapter.name in core.TITLES)
        # where its own buttons are
        assert links.count(download) == (chapter.runs and chapter.name != "index")
        # elsewhere only words of a text lead there, to notebooks that exist
        others = {link for link in links if link.startswith(address.COLAB)} - {colab}
        assert others <= {where.colab(name) for name in [*published, *core.TITLES]}
        assert chapter.name in ("index", "using", "evening") or not others


def test_citations_read_as_on_the_page(published, site):
    for name, notebook in published.items():
        page = BeautifulSoup((site / f"{name}.html").read_text(), "html.parser")
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        shown = re.sub(
            r"\\([\[\]])",
            r"\1",
            re.sub(r"(?<!\\)\[([^\[\]]*)\]\([^()]*\)", r"\1", text).replace("*", ""),
        )
        for citation in page.select("article span.bibtex-citation"):
            assert " ".join(citation.get_text().split()) in shown, f"{name}: {citation.get_text()}"


def test_exercises_have_the_numbers_of_the_page(published, site):
    for name, notebook in published.items():
        page = BeautifulSoup((site / f"{name}.html").read_text(), "html.parser")
        on_page = [
            re.search(r"Exercise (\d+)", title.get_text())[1]
            for title in page.select("div.exercise > p.admonition-title")
        ]
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        assert on_page == re.findall(r"^### Exercise (\d+): ", text, re.MULTILINE)


def test_code_is_that_of_the_chapter(published):
    for chapter in BOOK.chapters:
        if chapter.runs:
            code = [
                cell.source for cell in published[chapter.name].cells if cell.cell_type == "code"
            ][1:]
            written = iter(
                re.sub(r"^#@title .*\n", "", source, flags=re.MULTILINE) for source in code
            )
            for cell in chapter.cells:
                source = next(written)
                if source != cell.source:  # the answer to a prediction, whose assertions follow it
                    before, checks, after = split_assertions(cell.source)
                    assert checks and "\n".join(filter(None, [before, after])) == source, cell
                    assert next(written) == checks
            assert not list(written)


def test_notebooks_are_folded_where_the_page_is_and_show_outputs_elsewhere(
    published, site, complete
):
    names, shown = {chapter.name for chapter in complete}, 0
    for name, notebook in published.items():
        for number, cell in enumerate(notebook.cells):
            assert cell.id.endswith(f"-{number}") and not cell.get("execution_count")
            assert ("cellView" in cell.metadata) == (
                (cell.source.splitlines()[0].startswith("#@title") and number != 1)
                or (cell.source.startswith("%%") and "\n#@title" in cell.source)
            )
            assert not (cell.get("outputs") and "cellView" in cell.metadata)
        assert "widgets" not in notebook.metadata
        size = (site.parent / "notebooks" / f"{name}.ipynb").stat().st_size
        assert size < 1_000_000, (name, size)  # GitHub shows no larger ones
        shown += name in names and any(cell.get("outputs") for cell in notebook.cells)
    assert shown > 0.9 * len(names & set(published))
    for file in (site.parent / "notebooks" / notebooks.CLASS).glob("*.ipynb"):
        assert not any(cell.get("outputs") for cell in nbformat.read(file, as_version=4).cells), (
            file
        )


RENDER = """
const fs = require("fs"), { marked } = require(process.argv[2]);
const cells = JSON.parse(fs.readFileSync(0, "utf8"));
console.log(JSON.stringify(cells.map(text => marked.parse(text, { gfm: true }))));
"""


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """Renders Markdown as GitHub's kind, with the npm package marked: a stand-in for Colab's
    renderer.
    """
    if not shutil.which("npm"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "needs npm (Debian: apt-get install npm)"
        )
    folder = tmp_path_factory.mktemp("marked")
    for name in ("package.json", "package-lock.json"):
        (folder / name).write_text((ROOT / "tests" / "build" / "marked" / name).read_text())
    subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)
    (folder / "render.js").write_text(RENDER)

    def render(texts):
        command = ["node", "render.js", str(folder / "node_modules" / "marked")]
        done = subprocess.run(
            command, cwd=folder, input=json.dumps(texts), capture_output=True, text=True, check=True
        )
        return [BeautifulSoup(html, "html.parser") for html in json.loads(done.stdout)]

    return render


def test_notebooks_read_well(published, marked):
    """No raw markup, no dead or empty link, no image without words: in what a reader sees, not in
    the source.
    """
    pages = {f"{address.of(BOOK.config).site}{chapter.name}.html" for chapter in BOOK.chapters}
    count = 0
    for name, notebook in published.items():
        texts = [
            re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "", c.source, flags=re.S)
            for c in notebook.cells
            if c.cell_type == "markdown"
        ]
        for text, page in zip(texts, marked(texts), strict=True):
            for link in page.select("a"):
                assert link.get("href", "").startswith("https://") and (
                    link.get_text().strip() or link.img
                ), f"{name}: {link}"
                here = link["href"].split("#")[0]
                if here.startswith(address.of(BOOK.config).site) and here.endswith(".html"):
                    assert here in pages, f"{name}: {link}"
                count += 1
            for image in page.select("img"):
                assert image["src"].startswith("https://") and len(image["alt"]) > 5
            for code in page.select("pre, code"):
                code.extract()
            left = re.findall(
                r"\{[\w:-]+\}|:::|\{\{|\[\^|\)=$|\]\(|\*\*|^#+ ", page.get_text(), re.MULTILINE
            )
            assert not left, f"{name}: {left} in {text}"
            assert text.startswith(("<details>", ">")) or len(page.select("h1, h2, h3, h4")) <= 1
    assert count > 100


# --- Publishing -----------------------------------------------------------------------------------


def git(root, *arguments):
    who = ["-c", "user.name=A", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *who, *arguments], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def tiny(tmp_path):
    """A small book in a git repository, and a bare one to publish to."""
    (tmp_path / "work").mkdir()
    tiny = TinyBook(tmp_path / "work")
    tiny.write(
        "pyproject.toml",
        textwrap.dedent("""\
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [project]
        name = "shardlab"
        version = "0.0.1"
        requires-python = ">=3.11"
        [tool.hatch.build.targets.wheel]
        packages = ["src/shardlab"]
        [tool.bookbinder]
        name = "shardlab"
        """),
    )
    tiny.write(".gitignore", "_build\n__pycache__\n")
    tiny.bare = tmp_path / "bare.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(tiny.bare)], check=True)
    git(tiny.root, "init", "--quiet", "--initial-branch=main")
    git(tiny.root, "add", "-A")
    git(tiny.root, "commit", "--quiet", "-m", "first")
    return tiny


def on_branch(tiny):
    names = git(tiny.bare, "ls-tree", "--name-only", "notebooks").split("\n")
    return {
        name: subprocess.run(
            ["git", "show", f"notebooks:{name}"], cwd=tiny.bare, capture_output=True
        ).stdout
        for name in names
    }


def test_publishing_twice_leaves_one_commit_of_the_newest_notebooks(tiny):
    assert tiny.build()[0] == 0
    status, out, err = tiny.build("publish-notebooks", str(tiny.bare))
    assert status == 0 and "2 notebooks are on the branch notebooks" in out, err
    first, commit = on_branch(tiny), git(tiny.bare, "rev-parse", "notebooks")
    assert sorted(first) == [
        "VERSION.json",
        "one.ipynb",
        "shardlab-0.0.1-py3-none-any.whl",
        "two.ipynb",
    ]
    version = json.loads(first["VERSION.json"])
    head = git(tiny.root, "rev-parse", "HEAD")
    assert (
        version["commit"] == head and f"/here/archive/{head}.tar.gz".encode() in first["one.ipynb"]
    )

    assert tiny.build("publish-notebooks", str(tiny.bare))[0] == 0  # nothing new: the same commit
    assert git(tiny.bare, "rev-parse", "notebooks") == commit

    tiny.write("book/one.md", (tiny.root / "book" / "one.md").read_text() + "\nMore words.\n")
    git(tiny.root, "commit", "--quiet", "-am", "second")
    assert tiny.build()[0] == 0 and tiny.build("publish-notebooks", str(tiny.bare))[0] == 0
    assert b"More words." in on_branch(tiny)["one.ipynb"]
    assert git(tiny.bare, "rev-list", "--count", "notebooks") == "1"
    assert git(tiny.bare, "for-each-ref", "--format=%(refname)") == "refs/heads/notebooks"
    git(tiny.bare, "gc", "--quiet", "--prune=now")
    assert commit not in git(tiny.bare, "cat-file", "--batch-check", "--batch-all-objects")
    assert git(tiny.root, "status", "--porcelain") == ""


def test_a_dirty_old_missing_or_failed_build_is_not_published(tiny):
    def refused(*words):
        status, out, err = tiny.build("publish-notebooks", str(tiny.bare))
        assert status == 1 and not out and all(word in err for word in words), err
        assert git(tiny.bare, "for-each-ref") == ""

    refused("missing", "make book")
    tiny.write("book/one.md", (tiny.root / "book" / "one.md").read_text() + "\nMore.\n")
    refused("not committed", "book/one.md")
    assert tiny.build()[0] == 0
    refused("not committed", "book/one.md")
    git(tiny.root, "commit", "--quiet", "-am", "more")
    refused("the last good build is of", "make book")
    assert tiny.build()[0] == 0
    tiny.write(
        "book/two.md",
        (tiny.root / "book" / "two.md").read_text().replace("print('two', VALUE)", "1/0"),
    )
    git(tiny.root, "commit", "--quiet", "-am", "broken")
    assert tiny.build()[0] == 1
    refused("the last good build is of", "make book")
    git(tiny.root, "revert", "--no-edit", "HEAD")
    assert tiny.build()[0] == 0
    status, _, err = tiny.build("publish-notebooks", str(tiny.root / "nowhere.git"))
    assert status == 1 and "git push failed" in err
    assert tiny.build("publish-notebooks", str(tiny.bare))[0] == 0


def test_a_book_that_is_no_repository_is_built_but_not_published(tmp_path):
    tiny = TinyBook(tmp_path)
    assert tiny.build()[0] == 0
    assert (
        "/here/archive/main.tar.gz" in (tmp_path / "_build" / "notebooks" / "one.ipynb").read_text()
    )
    status, _, err = tiny.build("publish-notebooks")
    assert status == 1 and "not a git repository" in err


def test_a_fork_links_to_itself(tiny):
    fork = {"GITHUB_REPOSITORY": "Someone/fork", "GITHUB_SERVER_URL": "https://github.com"}
    assert tiny.build(**fork)[0] == 0
    text = (tiny.root / "_build" / "notebooks" / "one.ipynb").read_text()
    page = (tiny.root / "_build" / "html" / "one.html").read_text()
    for made in (text, page):
        assert (
            "colab.research.google.com/github/Someone/fork/blob/notebooks/one.ipynb" in made
            and "tiny/here" not in made
        )
    assert (
        "https://github.com/Someone/fork/archive/" in text
        and "https://someone.github.io/fork/one.html" in text
    )
    assert "https://github.com/Someone/fork" in tiny.page("index") and "tiny/here" not in tiny.page(
        "index"
    )
    assert tiny.build()[0] == 0
    assert "https://github.com/tiny/here" in tiny.page("index") and "Someone" not in tiny.page(
        "index"
    )


def test_plain_jupyter_book_links_to_the_notebooks_too(tiny):
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", "."]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")} | {
        "PYTHONWARNINGS": "ignore"
    }
    done = subprocess.run(command, cwd=tiny.root, capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stderr
    page = (tiny.root / "_build" / "html" / "book" / "one.html").read_text()
    assert (
        page.count("https://colab.research.google.com/github/tiny/here/blob/notebooks/one.ipynb")
        == 1
    )


@pytest.mark.parametrize(
    ("config", "environment", "site"),
    [
        ({"repository": {"url": "https://github.com/A/b/"}}, {}, "https://a.github.io/b/"),
        ({"repository": {"url": "https://github.com/a/a.github.io"}}, {}, "https://a.github.io/"),
        (
            {
                "repository": {"url": "https://github.com/a/b.git"},
                "html": {"baseurl": "https://book.org"},
            },
            {},
            "https://book.org/",
        ),
        (
            {
                "repository": {"url": "https://github.com/a/b"},
                "html": {"baseurl": "https://book.org"},
            },
            {"GITHUB_REPOSITORY": "c/d"},
            "https://c.github.io/d/",
        ),
    ],
)
def test_where_the_site_is(config, environment, site, monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    where = address.of(config)
    assert where.site == site and where.page("one", "x") == f"{site}one.html#x"
    assert where.branch == "main" and not where.repository.endswith(("/", ".git"))


def test_known_names_are_all_tried():
    """Each directive that is converted is in the tables above."""
    tried = "".join(source for source, *_ in CONVERTED.values()) + OTHER + EXERCISE
    for name in (
        "note",
        "hint",
        "tip",
        "admonition",
        "margin",
        "container",
        "literalinclude",
    ):
        assert f"{{{name}}}" in tried, name
