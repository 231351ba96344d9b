"""Predictions as questions: the reader picks or types an answer, and then the output that shows it
opens.

In a chapter a question is a paragraph that begins with **Predict.** If a list of choices follows,
one of them is right:

    **Predict.** How many of eight devices hold different rows after the change?

    - [ ] two
    - [x] six

      Devices 0 and 7 have the same rows as before.
    - [ ] all eight

The next cell shows the answer. Its output is folded, and unfolds without a script too; `predict.js`
asks first. The paragraph below a choice is its reason, which shows when the reader has picked that
choice.
"""

from docutils import nodes
from sphinx.util import logging

from bookbinder.notebook.markdown import CHOICE
from bookbinder.page import pages

MOST = 4  # choices

_LOG = logging.getLogger(__name__)


class question(nodes.Element):
    """A question with its choices, or with a field to type in."""


class choice(nodes.TextElement):
    """One of them: `number` of its question, and whether it is `right`."""


class reason(nodes.Element):
    """Why the choice before it is right or wrong."""


def setup(app):
    """Called by the extension."""
    app.add_node(question, html=(_begin_question, _end_question))
    app.add_node(choice, html=(_begin_choice, _end_choice))
    app.add_node(reason, html=(_begin_reason, _end_reason))
    # before pages take a cell's assertions apart
    app.connect("doctree-resolved", _ask, priority=899)


def _ask(app, doctree, docname):
    if pages.lacks_outputs(app, docname):  # it has no answers yet, and is not published
        return
    paragraphs = [one for one in doctree.findall(nodes.paragraph) if _is_question(one)]
    for number, paragraph in enumerate(paragraphs, 1):
        following = paragraph.parent.children[paragraph.parent.index(paragraph) + 1 :]
        choices = _choices(following[0], number) if following else []
        right = [(one, why) for one, why in choices if one["right"]]
        if choices and (len(right) != 1 or not 2 <= len(choices) <= MOST):
            needed = f"2 to {MOST} choices, one of them marked [x]"
            _LOG.warning(
                f"a prediction has {needed}, not {len(right)} of {len(choices)}", location=paragraph
            )
            continue
        answer = _answer(following)
        if answer is None:
            _LOG.warning(
                "after a prediction a cell shows the answer, but none follows here",
                location=paragraph,
            )
            continue
        box = question("", classes=["predict"], number=number)
        paragraph.replace_self(box)
        box += paragraph
        for one, why in choices:
            box += one
            if why:
                box += reason("", *why)
        if choices:
            following[0].parent.remove(following[0])
        title = pages.fold_title("", "Show the answer")
        details = pages.fold("", title, classes=["answer"], ids=[f"answer-{number}"])
        answer.replace_self(details)
        for one, why in right:
            said = one.deepcopy()
            for link in list(said.findall(nodes.reference)):  # of the choice itself
                link.parent.replace(link, link.children)
            details += nodes.paragraph("", "", nodes.strong("", "Answer: "), *said.children)
            details += [part.deepcopy() for part in why]
        details += answer


def _is_question(paragraph):
    # MyST begins with an empty text
    first = next((part for part in paragraph.children if part.astext()), None)
    return isinstance(first, nodes.strong) and first.astext() == "Predict."


def _choices(block, number):
    """The choices of a list, each with the blocks of its reason; none if the list is not one of
    choices.
    """
    if not isinstance(block, nodes.bullet_list):
        return []
    choices = []
    for item in block.children:
        text = next(item.findall(lambda node: isinstance(node, nodes.Text) and node.astext()), None)
        mark = CHOICE.match(text.astext()) if text else None
        if not mark:
            return []
        text.parent.replace(text, nodes.Text(text.astext()[mark.end() :]))
        one = choice("", "", *item.children[0].children, number=number, right=mark[1] == "x")
        choices.append((one, item.children[1:]))
    return choices


def _answer(following):
    """The output of the first cell that shows one."""
    for block in following:
        if isinstance(block, nodes.section) or (
            isinstance(block, nodes.paragraph) and _is_question(block)
        ):
            return None
        shown = (
            block.get("nb_element") == "cell_code" if isinstance(block, nodes.Element) else False
        )
        for part in block.children if shown else ():
            if part.get("nb_element") == "cell_code_output":
                return part
    return None


def _begin_question(translator, node):
    number = node["number"]
    translator.body.append(
        f'<div class="predict" role="group" aria-label="Prediction {number}" '
        f'data-answer="answer-{number}" data-load="predict.js">\n'
    )


def _end_question(translator, node):
    if not any(isinstance(part, choice) for part in node.children):
        translator.body.append(
            '<p class="scripted"><input type="text" aria-label="Your prediction" '
            'autocomplete="off"></p>\n'
        )
    translator.body.append('<p class="verdict" role="status"></p>\n</div>\n')


def _begin_choice(translator, node):
    right = " data-right" if node["right"] else ""
    translator.body.append(
        f'<label><input type="radio" name="predict-{node["number"]}"{right}> <span>'
    )


def _end_choice(translator, node):
    translator.body.append("</span></label>\n")


def _begin_reason(translator, node):
    translator.body.append('<div class="reason" hidden>\n')


def _end_reason(translator, node):
    translator.body.append("</div>\n")
