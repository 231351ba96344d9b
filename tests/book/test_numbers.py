"""Every number in prose stands on code or outputs of its section, or on what a mark names.

The rules are in tests/tools/chapters/claims.py.

Here without a run, by what is recorded of the outputs; `tests/build/test_site.py` does it with
those of a run.
"""

import shutil

import claims
import pytest
from places import ROOT
from repository import BOOK

from bookbinder.read.book import Chapter

pytestmark = pytest.mark.reads(
    "book", "src", "_config.yml", "_toc.yml", "pyproject.toml", "tests/book/outputs"
)


NUMBERS_OF_CHAPTER = claims.all_numbers(BOOK)


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=lambda chapter: chapter.name)
def test_a_number_in_prose_stands_on_code_on_an_output_or_on_a_source(chapter):
    outputs = claims.recorded(BOOK, chapter)
    assert outputs is not None, (
        f"the outputs of its present code are not known: make chapter FILE={chapter.path}"
    )
    faults = list(claims.faults(chapter, outputs, NUMBERS_OF_CHAPTER))
    assert not faults, "\n".join(faults)


CELL = "```{{code-cell}} ipython3\n{}\n```\n"
TEXT = f"""---
kernelspec: {{name: python3}}
---
# A title

Of 512 devices.

## One

{CELL.format("a = 1536 * 2; print(a / 1e6)")}
%s

## Two

{CELL.format("assert b == 512")}
"""


def faults(tmp_path, text, outputs=(3072, 0.003072)):
    """The faults of a chapter with a paragraph, by the number they are about."""
    (tmp_path / "book").mkdir(exist_ok=True)
    shutil.copy(ROOT / "_config.yml", tmp_path)
    (tmp_path / "book/x.md").write_text(TEXT % text)
    chapter = Chapter(tmp_path, "x")
    found = claims.faults(chapter, [set(outputs), set()], {"y": {77.5}}.__getitem__)
    return [fault.partition(": ")[2] for fault in found]


@pytest.mark.parametrize(
    "text",
    [
        # rounded, scaled, in code
        "It takes 3,072 bytes, 3.1 kB, 3.07 kB or 3 KiB, 0.0031 MB and 1,536 elements.",
        (
            "In 2025 (JAX 0.8.2) [issue 12345](https://a.b/12345) had `f32[777]`, {cite}`b1999` "
            "and {ref}`x-888`."
        ),
        "% 512 here\nOf 512.",
        "Two times, three kilobytes (3 kB), one second, twenty of them, and as many as thirty.",
        "% 12 = 3 * 4\nTwelve minutes.",
        "% 77.5 in y\nThere it was 77.5.",
        (
            "% 1.75 = 7 / 4\n% 459 = hardware.chip('v5p').flops_per_second['bf16'] / 1e12\n- 1.75 "
            "of 459 TFLOP/s"
        ),
        "% 312 source: a data sheet\n| a |\n|---|\n| 312 |",
        "**Predict.** How many?\n\n- [ ] 999\n- [x] 3,072",
    ],
)
def test_what_a_number_may_stand_on(tmp_path, text):
    assert faults(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("It takes 3,172 bytes.", "no code or output of its section has 3,172"),
        ("It takes 3.2 kB.", "has 3.2"),
        ("Each of 47 rows.", "has 47"),
        ("Each of 30 rows.", "has 30"),  # 3,072 in another unit, but no unit follows
        ("It takes forty-one bytes.", "has forty-one"),
        ("Seven and a half times as many.", "has Seven and a half"),
        ("Of 512.", "such as `% 512 here`: another section has it"),
        # 1.536 GiB in another unit, but no unit follows
        ("Each has 3 of 1,573 rows.", "has 1,573"),
        ("![two of 777](x.png)", "has 777"),
        ("| a |\n|---|\n| 313 |", "has 313"),
        ("- [x] 999", "has 999"),
        ("% 77.6 in y\nThere it was 77.6.", "has 77.6"),
        ("% 1.75 = 7 / 5\nIt is 1.75.", "has 1.75"),
        ("% 513 here\nIt is 513.", "has 513"),
        ("% 1.75 = 7 / 4\nIt is there.", "is the mark of no number"),
        ("% 1.75 because\nIt is there.", "is the mark of no number"),
    ],
)
def test_what_does_not_stand_on_it(tmp_path, text, fault):
    assert any(fault in said for said in faults(tmp_path, text)), faults(tmp_path, text)
