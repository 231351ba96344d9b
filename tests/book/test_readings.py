"""What no machine can judge is read again when it or its cells change (tests/tools/readings.py)."""

import json
import re
import shutil

import pytest
import readings
from places import ROOT
from repository import BOOK

from bookbinder.read.book import Chapter

pytestmark = pytest.mark.reads("book", "src", "_config.yml", "_toc.yml", "pyproject.toml", "tests/book/readings.json")

KNOWN = json.loads(readings.FILE.read_text("utf-8"))


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=lambda chapter: chapter.name)
def test_what_no_machine_can_judge_was_read(chapter):
    asked = list(readings.changed(chapter.path, readings.digests(chapter), KNOWN.get(chapter.name, ())))
    assert not asked, "\n".join(asked)


def test_published_runs_were_looked_up():
    rows = readings.published()
    assert len(rows) > 80 and not list(readings.changed(readings.PUBLISHED.name, rows, KNOWN["published.toml"]))


@pytest.mark.parametrize(
    ("path", "rows"), [*readings.messages()], ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_message_was_read(path, rows):
    asked = list(readings.changed(path, rows, KNOWN.get(path, ())))
    assert not asked, "\n".join(asked)


def test_all_are_found():
    assert sum(len(rows) for _, rows in readings.messages()) > 500
    for chapter in BOOK.chapters:
        kinds = [what for _, what, _ in readings.digests(chapter)]
        assert kinds.count("prediction") == chapter.text.count("\n**Predict.**")
        assert kinds.count("takeaway") == chapter.text.count("{admonition} Takeaway")
        assert kinds.count("hint") == chapter.text.count("{hint}")
        assert kinds.count("summary") == chapter.text.count("\n## Summary\n")
        for _, what, text, cells in readings.units(chapter):
            assert text and (cells or what != "prediction"), (chapter.path, text)
            assert what != "prediction" or text.count("- [x]") <= 1
    glossary = BOOK.chapter("glossary")
    entries = [what for _, what, _ in readings.digests(glossary)].count("entry")
    assert entries == len(list(re.finditer(r"^\S.*\n  \S", glossary.text, re.MULTILINE))) > 100


TEXT = """---
kernelspec: {name: python3}
---
# A title

## One

**Predict.** How many?

- [ ] one
- [x] two

```{code-cell} ipython3
a = 2
```

Two. Now what?

```{code-cell} ipython3
b = 3
```

:::{admonition} Takeaway
There are two.
:::

:::{hint}
Count them.
:::

| one | two |
|---|---|
| 1 | 2 |

It takes a third more. And 2 TiB. It was shown by {cite:t}`gauss1801`, in [the section on two](#two).

## Summary

- There are two.

## Two

```{code-cell} ipython3
c = 4
```
"""


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("- [ ] one\n- [x] two", "- [x] one\n- [ ] two", ["prediction"]),
        ("a = 2", "a = 1", ["prediction", "takeaway"]),
        ("There are two.\n:::", "There are three.\n:::", ["takeaway"]),
        ("- There are two.", "- There are three.", ["summary"]),
        ("| 1 | 2 |", "| 1 | 3 |", ["table"]),
        ("Count them", "Do not count them", ["hint"]),
        ("gauss1801", "euler1748", ["citation or link"]),
        ("a third", "a quarter", ["amount"]),
        ("2 TiB", "2 GiB", ["amount"]),
        ("(#two)", "(#one)", ["citation or link"]),
        ("c = 4", "c = 5", []),
        ("Two. Now what?", "Two, as it says. Now what?", []),
        ("- [ ] one\n- [x] two", "- [ ] one\n- [x]\n  two", []),
    ],
)
def test_a_change_asks_for_a_reading_of_what_it_concerns(tmp_path, old, new, kinds):
    (tmp_path / "book").mkdir()
    shutil.copy(ROOT / "_config.yml", tmp_path)

    def chapter(text):
        (tmp_path / "book/x.md").write_text(text)
        return Chapter(tmp_path, "x")

    known = [digest for *_, digest in readings.digests(chapter(TEXT))]
    assert len(known) == 8 and TEXT.count(old) == 1
    asked = list(readings.changed("x", readings.digests(chapter(TEXT.replace(old, new))), known))
    assert [re.search(r"this (.*?), or", line)[1] for line in asked] == kinds
