"""Predictions and takeaways are read again when they or their cells change (tests/tools/readings.py)."""

import json
import shutil

import pytest
import readings
from conftest import BOOK
from places import ROOT

from bookbinder.read.book import Chapter

pytestmark = pytest.mark.reads("book", "src", "_config.yml", "_toc.yml", "pyproject.toml", "tests/book/readings.json")

KNOWN = json.loads(readings.FILE.read_text("utf-8"))


@pytest.mark.parametrize("name", sorted({*KNOWN, *(chapter.name for chapter in BOOK.chapters if chapter.runs)}))
def test_predictions_and_takeaways_were_read_with_their_cells(name):
    asked = list(readings.changed(BOOK.chapter(name), KNOWN.get(name, ())))
    assert not asked, "\n".join(asked)


def test_all_are_found():
    for chapter in BOOK.chapters:
        kinds = [what for _, what, _ in readings.digests(chapter)]
        assert kinds.count("prediction") == chapter.text.count("\n**Predict.**")
        assert kinds.count("takeaway") == chapter.text.count("{admonition} Takeaway")
        for _, what, text, cells in readings.units(chapter):
            assert text and (cells or what == "takeaway"), (chapter.path, text)
            assert what == "takeaway" or text.count("- [x]") <= 1


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
        ("There are two", "There are three", ["takeaway"]),
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
    assert len(known) == 2
    asked = list(readings.changed(chapter(TEXT.replace(old, new)), known))
    assert [next(kind for kind in ("prediction", "takeaway") if kind in line) for line in asked] == kinds
