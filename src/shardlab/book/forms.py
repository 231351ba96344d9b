"""What the calculators of the book's pages are made of: controls, and a part of a page with its
scripts and data.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from shardlab.pictures.svg import Picture

__all__ = ["OUTPUT", "Part", "form", "label", "number", "pulled", "select"]

OUTPUT = (
    '<div class="explorer-result"><p class="explorer-words" aria-live="polite"></p><div '
    'class="explorer-output"></div><div class="explorer-bar"><button type="button" '
    'name="pin">Pin to compare</button><button type="button" name="link">Copy '
    'link</button><button type="button" name="code">Copy code</button><button type="button" '
    'name="again">Start again</button><span role="status"></span></div></div>'
)


@dataclass(frozen=True)
class Part:
    """A calculator of the explorer, or the planner, in its initial state.

    Attributes:
      name: "layout", "matmul", "fit" or "planner".
      start: the address of the initial state, without the "#name?".
      form: the HTML of its controls.
      picture: a `Picture` of the initial state, with its numbers.
      files: the scripts and styles that it loads, in their order.
      known: the data that the scripts use.
      output: the HTML of what they fill in.
    """

    name: str
    start: str
    form: str
    picture: Picture
    files: tuple[str, ...]
    known: dict
    output: str = OUTPUT

    def _repr_html_(self):
        blob = json.dumps(self.known).replace("<", "\\u003c")
        files = " ".join(f"explorer/{name}" for name in self.files)
        return (
            f'<div class="explorer" data-explorer="{self.name}" '
            f'data-start="{escape(self.start)}" data-load="{files}"><template><div '
            f'class="explorer-both">{self.form}{self.output}</div></template>{self.picture.html}</div><script type="application/json" class="explorer-data">{blob}</script>'  # noqa: E501
        )

    def __repr__(self) -> str:
        return self.picture.text


def label(words: str, control: str, shown: str = "") -> str:
    """A control with its words; `shown` is a control and for which of its values this one is
    shown.
    """
    shown = f' data-if="{shown}"' if shown else ""
    return f"<label{shown}><span>{words}</span>{control}</label>"


def number(
    name: str, words: str, value: int, most: int, shown: str = "", attributes: str = ""
) -> str:
    """A whole number of at least 1."""
    control = (
        f'<input type="number" name="{name}" value="{value}" min="1" max="{most}" '
        f"required{attributes} "
    )
    return label(words, control + f'title="a whole number from 1 to {most:,}">', shown)


def pulled(
    name: str,
    words: str,
    value: int,
    most: int,
    shown: str = "",
    attributes: str = "",
    reach: int | None = None,
) -> str:
    """A number that can be typed or pulled: its slider goes up to `reach` in powers of two."""
    top = (reach or most).bit_length() - 1
    slider = (
        f'<input type="range" min="0" max="{top}" data-of="{name}" aria-label="{words}, doubled '
        'or halved">'
    )
    shown = f' data-if="{shown}"' if shown else ""
    return (
        "<div "
        f'class="explorer-pulled"{shown}>{number(name, words, value, most, "", attributes)}{slider}</div>'  # noqa: E501
    )


def select(
    name: str, words: str, options: Iterable | Mapping, shown: str = "", attributes: str = ""
) -> str:
    """A choice among values, or of a dict from each value to the words that the page shows for
    it.
    """
    named = options if isinstance(options, Mapping) else {option: option for option in options}
    options = "".join(
        f'<option value="{value}">{escape(str(text))}</option>' for value, text in named.items()
    )
    name = f' name="{name}"' if name else ""
    return label(words, f"<select{name}{attributes}>{options}</select>", shown)


def form(name: str, groups: Mapping[str, str]) -> str:
    """A form of groups of controls, by their headings."""
    fields = "".join(
        f"<fieldset><legend>{legend}</legend>{controls}</fieldset>"
        for legend, controls in groups.items()
    )
    return f'<form aria-label="{name}">{fields}</form>'
