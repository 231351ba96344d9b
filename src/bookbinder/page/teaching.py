"""What a teacher asks of a book: all its exercises with their times, and the errors that its
questions look for.

In a page the line `% exercises of the book` is replaced by a table for each part, and `%
misconceptions of the book` by the wrong choices of all predictions, each with the reason why. Both
come from the chapters, so they are complete.
"""

import re

from bookbinder.read.book import APPENDICES, EXERCISE_MINUTES

_EXERCISES, _MISCONCEPTIONS = "% exercises of the book", "% misconceptions of the book"
_EXERCISE = re.compile(
    r"^```\{exercise-start\} (.*?) (★+)\n(?::[^\n]*\n)*?:label: (\S+)$", re.MULTILINE
)
_PREDICTION = re.compile(r"^(?=\*\*Predict\.\*\*)", re.MULTILINE)
_CHOICES = re.compile(r"(?:- \[[ x]\] .*\n(?:\n?  .*\n)*\n?)+")


def setup(app):
    """Called by the extension."""
    app.connect("source-read", _replace)


def _replace(app, docname, source):
    if _EXERCISES not in source[0] and _MISCONCEPTIONS not in source[0]:
        return
    book = app.bookbinder_book
    for chapter in book.chapters:
        app.env.note_dependency(str(book.root / chapter.path))
    source[0] = (
        source[0]
        .replace(_EXERCISES, exercises(book))
        .replace(_MISCONCEPTIONS, misconceptions(book))
    )


def exercises(book):
    """A table for each part: its exercises, how hard they are, and how many minutes they take."""
    blocks = []
    for caption, names in book.parts:
        rows = []
        for name in names:
            for title, stars, label in _EXERCISE.findall(book.chapter(name).text):
                rows.append(
                    f"| {{doc}}`{name}` | [{title}](#{label}) | {stars} | "
                    f"{EXERCISE_MINUTES[stars]} |"
                )
        if rows and caption != APPENDICES:
            head = ["| chapter | exercise | stars | minutes |", "|---|---|---|---|"]
            blocks += [f"### {caption}", "\n".join([*head, *rows])]
    return "\n\n".join(blocks)


def misconceptions(book):
    """For each chapter its questions' wrong choices for which it says why they are wrong."""
    blocks = []
    for _, names in book.parts:
        for name in names:
            items = []
            for question in _PREDICTION.split(book.chapter(name).text)[1:]:
                prompt, _, answers = question.removeprefix("**Predict.** ").partition("\n\n")
                choices = _CHOICES.match(answers)
                for choice in (
                    re.split(r"^- ", choices[0], flags=re.MULTILINE)[1:] if choices else ()
                ):
                    wrong, _, reason = choice.strip().partition("\n\n")
                    if wrong.startswith("[ ] ") and reason:
                        wrong = _one_line(wrong.removeprefix("[ ] "))
                        items.append(f"- {_one_line(prompt)} *Wrong:* {wrong}. {_one_line(reason)}")
            if items:
                blocks += [f"### {book.titles.get(name, name)}", "\n".join(items)]
    return "\n\n".join(blocks)


def _one_line(text):
    return " ".join(text.split())
