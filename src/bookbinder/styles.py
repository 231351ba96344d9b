"""Reduce style sheets to the rules that can apply to some page."""

import re
from dataclasses import dataclass

import tinycss2
from tinycss2.ast import FunctionBlock, HashToken, IdentToken, LiteralToken

_NESTED = ("media", "supports", "layer", "container")
_ANY_OF = ("is", "where", "has")


def reduce(text, tags, names):
    """A style sheet without the rules that cannot apply.

    A rule is kept if every class, id and element of one of its selectors is known. Custom properties to which no kept
    rule refers are removed too, and so are fonts that would have to be loaded.

    Args:
      text: the style sheet. `@import` is left out: join the sheets first.
      tags: the elements of all pages.
      names: the classes and ids of all pages, and those that scripts may set.

    Returns:
      The style sheet, minified.

    Raises:
      ValueError: something is not CSS.
    """
    kept = _rules(tinycss2.parse_stylesheet(text, skip_comments=True, skip_whitespace=True), tags, names)
    properties = set()
    while True:  # a custom property may name others
        made = "".join(_written(node, properties) for node in kept)
        found = set(re.findall(r"var\(\s*(--[\w-]+)", made))
        if found == properties:
            return made
        properties = found


@dataclass
class _Rule:
    selectors: str
    declarations: list  # of names and values


@dataclass
class _Group:
    head: str  # such as "@media print"
    inside: list  # of rules and groups; or one text that stays as it is


def _rules(nodes, tags, names):
    kept = []
    for node in _sound(nodes):
        if node.type == "qualified-rule":
            selectors = [_selector(one) for one in _split(node.prelude) if _possible(one, tags, names)]
            if selectors:
                kept.append(_Rule(",".join(selectors), _declarations(node.content)))
        elif node.type == "at-rule" and node.content is not None and node.lower_at_keyword != "font-face":
            head = f"@{node.at_keyword} {_squeezed(node.prelude)}".strip()
            inside = [_squeezed(node.content)]
            if node.lower_at_keyword in _NESTED:
                inside = tinycss2.parse_rule_list(node.content, skip_comments=True, skip_whitespace=True)
                inside = _rules(inside, tags, names)
            kept.append(_Group(head, inside))
    return kept


def _sound(nodes):
    for node in nodes:
        if node.type == "error":
            raise ValueError(f"line {node.source_line}: this is not CSS: {node.message}")
    return nodes


def _split(prelude):
    """A list of selectors, at its commas."""
    selectors = [[]]
    for token in prelude:
        if isinstance(token, LiteralToken) and token.value == ",":
            selectors.append([])
        elif token.type != "comment":
            selectors[-1].append(token)
    return selectors


def _possible(selector, tags, names):
    """Whether a selector's classes, ids and elements are all known."""
    before = ""
    for token in selector:
        if isinstance(token, HashToken):
            if token.value not in names:
                return False
        elif isinstance(token, IdentToken):
            if before == ".":
                if token.value not in names:
                    return False
            elif before != ":" and token.lower_value not in tags:
                return False
        elif (
            isinstance(token, FunctionBlock)
            and token.lower_name in _ANY_OF
            and not any(_possible(one, tags, names) for one in _split(token.arguments))
        ):
            return False
        before = token.value if isinstance(token, LiteralToken) else ""
    return True


def _selector(tokens):
    text = _squeezed(tokens)
    for sign in (">", "+", "~"):
        text = text.replace(f" {sign} ", sign)
    return text


def _declarations(content):
    nodes = _sound(tinycss2.parse_blocks_contents(content, skip_comments=True, skip_whitespace=True))
    return [
        (node.name, _squeezed(node.value) + ("!important" if node.important else ""))
        for node in nodes
        if node.type == "declaration"
    ]


def _squeezed(tokens):
    return " ".join(tinycss2.serialize(tokens).split())


def _written(node, properties):
    """A rule or a group as text; "" if it is empty."""
    if isinstance(node, str):
        return node
    if isinstance(node, _Rule):
        kept = [f"{name}:{value}" for name, value in node.declarations if name[:2] != "--" or name in properties]
        return f"{node.selectors}{{{';'.join(kept)}}}" if kept else ""
    inside = "".join(_written(one, properties) for one in node.inside)
    return f"{node.head}{{{inside}}}" if inside else ""
