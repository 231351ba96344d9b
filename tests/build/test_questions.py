"""Predictions: what their choices are, what they hide, and what they say to who picks or types."""

import ast
import json
import re

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import expect
from repository import BOOK
from tiny_book import chapter
from waiting import SOON, wait_until

from bookbinder.read.book import Chapter, split_assertions

expect.set_options(timeout=SOON * 1000)
PICK = """\
**Predict.** What is `1 + 1`?

- [ ] `11`

  Strings are *joined*, numbers are added.
- [x] `2`, which is *even*

  Of two ones comes a two.

"""
# As in the book: with MyST's own task lists, which Jupyter Book has by default, a choice cannot
# begin with code.
PARSE = "parse: {myst_enable_extensions: [colon_fence, dollarmath, substitution]}\n"
TYPE = "**Predict.** And `2 + 2`?\n\n"


@pytest.fixture(scope="module")
def questions(site, book):
    """The boxes of each chapter's page that asks: {name: (page, boxes)}."""
    pages = {
        one.name: BeautifulSoup((site / f"{one.name}.html").read_text("utf-8"), "html.parser")
        for one in book.chapters
    }
    return {
        name: (page, page.select(".predict"))
        for name, page in pages.items()
        if page.select(".predict")
    }


def test_each_prediction_of_the_book_is_a_question_with_one_right_choice(questions, book):
    asked = {
        one.name: len(re.findall(r"^\*\*Predict\.\*\* ", one.text, re.MULTILINE))
        for one in book.chapters
    }
    assert {name: len(boxes) for name, (_, boxes) in questions.items()} == {
        n: k for n, k in asked.items() if k
    }
    assert sum(asked.values()) > 200
    for name, (page, boxes) in questions.items():
        for box in boxes:
            choices = box.select("label")
            assert 2 <= len(choices) <= 4, (name, box.get_text())
            (right,) = [one.get_text() for one in choices if one.select("[data-right]")]
            answer = page.find(id=box["data-answer"])
            assert answer.name == "details" and not answer.has_attr("open"), name
            assert answer.p.get_text() == f"Answer: {right.strip()}" and answer.select(
                ".cell_output > *"
            ), name
            assert not [one for one in choices if re.match(r"\s*\[[ xX]?\]", one.get_text())], name


def test_the_picture_below_a_title_answers_no_prediction(questions):
    """It stands above all that the page asks."""
    shown = [name for name, (page, _) in questions.items() if page.select(".tag_key-figure")]
    assert len(shown) > 20
    assert not [n for n in shown if questions[n][0].select(".tag_key-figure details.answer")]


def printed(output):
    """What an output says, without the reasons of a prediction that stand above it."""
    texts = output.find_all(string=True)
    said = [
        text for text in texts if not (text.find_parent(class_="answer") and text.find_parent("p"))
    ]
    return " ".join(" ".join(said).split())


def test_the_words_of_a_right_choice_do_not_stand_in_an_earlier_output(questions):
    found = []
    for name, (_, boxes) in questions.items():
        for box in boxes:
            right = next(one for one in box.select("label") if one.select("[data-right]"))
            said = " ".join(right.get_text().split())
            if len(said) < 10:  # a number or a spec may stand anywhere
                continue
            earlier = box.find_all_previous(class_=["cell_output", "key-figure"])
            if any(said in printed(one) for one in earlier):
                found.append((name, said))
    assert not found


def told(chapter):
    """The cells of a chapter that answer a prediction and show its answer in their code, as lines
    of text.

    An assertion tells it, and so does a loop over what is expected. Inside a loop or a branch an
    assertion may stay, if it has no number and no text of the right choice.
    """
    lines = chapter.text.split("\n")
    folded = [
        n
        for n, line in enumerate(lines, 1)
        if re.match(r":tags: .*(hide-(input|cell)|remove-)", line)
    ]
    for n in (n for n, line in enumerate(lines, 1) if line.startswith("**Predict.**")):
        cell = next(cell for cell in chapter.cells if cell.line > n)
        before, _, after = split_assertions(re.sub(r"^%%.*\n", "", cell.source))
        if any(n < m < cell.line for m in folded):
            continue
        right = re.search(
            r"^- \[x\] (.*?)(?=\n- |\n```|\n\n)",
            "\n".join(lines[n : cell.line]),
            re.DOTALL | re.MULTILINE,
        )
        program = ast.parse(f"{before}\n{after}")
        for part in ast.walk(program):
            tells = isinstance(part, ast.For) and "expected" in ast.unparse(part.target)
            if isinstance(part, ast.Assert):
                constants = {str(c.value) for c in ast.walk(part) if isinstance(c, ast.Constant)}
                tells = part in program.body or (
                    right and constants & set(re.findall(r"[\w.-]+", right[1]))
                )
            if tells:
                yield (
                    f"{chapter.path}:{cell.line}: the cell that answers a prediction says: "
                    f"{ast.unparse(part)[:80]}"
                )


def test_no_cell_tells_what_is_asked(tiny):
    """Assertions stand at the end of the cell that answers, where a page folds them, or in a cell
    behind it.
    """
    assert not [line for chapter in BOOK.chapters for line in told(chapter)]
    asking(tiny, PICK)
    ((path, text),) = [(path, path.read_text()) for path in [tiny.root / "book" / "one.md"]]
    for code in (
        "assert 1 + 1 == 2\nprint(1 + 1)",
        "for a, expected in [(1, 2)]:\n    print(a + a)",
    ):
        path.write_text(text.replace("print(1 + 1)", code))
        assert len(list(told(Chapter(tiny.root, "one")))) == 1


def test_where_the_right_choice_stands_does_not_give_it_away(questions):
    places = [
        next(place for place, one in enumerate(box.select("label")) if one.select("[data-right]"))
        for _, boxes in questions.values()
        for box in boxes
    ]
    for place in range(3):
        assert 0.15 * len(places) < places.count(place) < 0.5 * len(places), place


def test_notebooks_list_the_choices_alike(site, book):
    for one in book.chapters:
        if one.runs:
            notebook = json.loads(
                (site.parent / "notebooks" / f"{one.name}.ipynb").read_text("utf-8")
            )
            text = "\n".join(
                "".join(cell["source"])
                for cell in notebook["cells"]
                if cell["cell_type"] == "markdown"
            )
            assert not re.search(r"^\s*[-*] \[[ x]\]", text, re.MULTILINE), one.name


def asking(tiny, text):
    """A small book with a chapter that asks."""
    tiny.write("_config.yml", (tiny.root / "_config.yml").read_text() + PARSE)
    tiny.write(
        "book/one.md",
        chapter("One", "print(1 + 1)").replace("```{code-cell}", text + "```{code-cell}"),
    )
    return tiny


def test_a_chapter_that_is_left_out_asks_nothing_yet(tiny):
    asking(tiny, PICK)
    status, _, err = tiny.build("build", "--without", "one")
    assert (
        status == 0 and "Predict." in tiny.page("one") and 'class="predict"' not in tiny.page("one")
    ), err
    assert tiny.build()[0] == 0 and 'class="predict"' in tiny.page("one")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a small chapter that asks two questions, one with choices."""
    from tiny_book import TinyBook

    tiny = asking(
        TinyBook(tmp_path_factory.mktemp("questions")),
        TYPE + "```{code-cell}\nprint(2 + 2)\n```\n\n" + PICK,
    )
    status, out, err = tiny.build()
    assert status == 0, out + err
    return (tiny.root / "_build" / "html" / "one.html").as_uri()


def test_a_reader_picks_by_keyboard_and_hears_whether_it_was_right(browser, page):
    reader = browser.new_page()
    reader.goto(page)
    box, answer = reader.locator(".predict").last, reader.locator("#answer-2")
    box.get_by_role("radio").first.focus()
    expect(answer.get_by_text("2", exact=True).last).to_be_hidden()
    expect(box.get_by_text("Strings are joined")).to_be_hidden()
    reader.keyboard.press("Space")
    expect(box.get_by_role("status")).to_have_text("No. The output below shows the answer.")
    expect(box.get_by_text("Strings are joined")).to_be_visible()
    expect(answer.get_by_text("Of two ones")).to_be_visible()
    expect(answer).to_have_attribute("open", "")
    expect(answer.locator(".cell_output")).to_be_visible()
    assert box.locator("label.right").count() == box.locator("label.wrong").count() == 1
    expect(answer.locator("summary").first).to_have_text("Hide the answer")
    expect(answer.locator(".cell_output")).to_be_in_viewport()
    reader.keyboard.press("ArrowDown")
    expect(box.get_by_role("status")).to_have_text("Right. The output below shows it.")
    assert box.locator("label.right").count() == 1 and not box.locator("label.wrong").count()
    expect(box.get_by_text("Strings are joined")).to_be_hidden()
    reader.close()


def test_a_reader_types_and_sees_it_beside_the_answer(browser, page):
    reader = browser.new_page()
    reader.goto(page)
    field = reader.get_by_label("Your prediction")
    field.press("Enter")
    expect(reader.locator("#answer-1")).not_to_have_attribute("open", "")
    field.fill("four")
    field.press("Enter")
    expect(reader.locator(".predict").first.get_by_role("status")).to_contain_text(
        "You predicted “four”."
    )
    expect(reader.locator("#answer-1")).to_have_attribute("open", "")
    reader.close()


def test_who_wants_all_answers_has_them_open_from_then_on(browser, page):
    context = browser.new_context()
    reader = context.new_page()
    reader.goto(page)

    def open_after_a_reload():
        reader.reload()
        return reader.locator("details.answer[open]").count()

    reader.get_by_role("button", name="Show all answers").click()
    # A browser stores the choice in a process of its own: a reload in the same moment may come
    # first.
    wait_until(lambda: open_after_a_reload() == 2, seconds=SOON)
    reader.get_by_role("button", name="Hide the answers").click()
    wait_until(lambda: open_after_a_reload() == 0, seconds=SOON)
    context.close()


def test_without_a_script_an_answer_unfolds_and_says_which_choice_is_right(browser, page):
    context = browser.new_context(java_script_enabled=False)
    reader = context.new_page()
    reader.goto(page)
    assert not reader.get_by_label("Your prediction").is_visible()
    reader.locator("#answer-2 > summary").click()
    expect(reader.locator("#answer-2")).to_contain_text("Answer: 2, which is even")
    expect(reader.locator("#answer-2").get_by_text("Of two ones comes a two.")).to_be_visible()
    context.close()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (PICK.replace("[ ]", "[x]"), "2 to 4 choices, one of them marked [x], not 2 of 2"),
        (PICK.replace("[x]", "[ ]"), "2 to 4 choices, one of them marked [x], not 0 of 2"),
        (
            PICK + "## A section\n\n",
            "after a prediction a cell shows the answer, but none follows here",
        ),
    ],
)
def test_a_question_that_cannot_be_answered_is_named_by_line(tiny, asked, said):
    status, _, err = asking(tiny, asked).build()
    # MyST-NB is off by a line in the first text of a chapter.
    assert status == 1 and re.search(
        rf"^book/one\.md:1[34]: WARNING: .*{re.escape(said)}", err, re.MULTILINE
    ), err
