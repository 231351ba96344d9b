"""Turn MyST into the Markdown that Colab shows: GitHub's dialect, with math between dollar signs.

Unknown constructs are errors with file and line, so that no reader ever sees a raw directive.
"""

import ast
import html
import posixpath
import re
from dataclasses import dataclass, field

from bookbinder.read import package
from bookbinder.read.book import FOLDER, BookError, parser_config

BOXES = {
    "note": "Note",
    "tip": "Tip",
    "hint": "Hint",
    "important": "Important",
    "warning": "Warning",
    "admonition": None,  # has its title as argument
    "margin": "On the margin",
}
TAGS = {"br", "sub", "sup", "kbd", "b", "i", "em", "strong"}  # inline HTML that Colab shows too
# the known options of each directive; others are errors, so that nothing is lost silently
OPTIONS = {
    **dict.fromkeys(BOXES, ("class", "name")),
    "container": ("name",),
    "exercise-start": ("label", "class"),
    "solution-start": ("label", "class"),
    "literalinclude": ("language", "lines", "pyobject"),
    "glossary": ("sorted",),
}
_IN_PLACE = {
    "paragraph_open",
    "bullet_list_open",
    "ordered_list_open",
    "blockquote_open",
    "table_open",
    "hr",
}
_TOP_ONLY = {
    *(
        "html_block",
        "colon_fence",
        "dl_open",
        "myst_target",
        "myst_line_comment",
        "myst_block_break",
    ),
    "substitution_block",
}
CHOICE = re.compile(r"\[([ x])\] ")  # the mark of a choice, which says whether it is right
DROPPED = {"front_matter", "myst_target", "myst_line_comment"}


@dataclass(frozen=True)
class Directive:
    """A block such as ```{note} argument, with options and a body; `line` is that of the body's
    first line.
    """

    name: str
    argument: str
    options: dict
    body: str
    line: int


@dataclass(frozen=True)
class Target:
    """A place that text can refer to: a chapter, an anchor on its page, and a title."""

    chapter: str
    anchor: str = ""
    title: str = ""


@dataclass
class Targets:
    """All places that text can refer to, by label."""

    chapters: dict = field(default_factory=dict)  # name: title, the short one if there is one
    labels: dict = field(default_factory=dict)  # sections, exercises
    exercises: dict = field(default_factory=dict)  # label: (number, title)
    terms: dict = field(default_factory=dict)
    works: dict = field(default_factory=dict)  # what is cited: key: (authors, year, address)


def make_parser(config):
    """The parser of the book's MyST, with the extensions of `_config.yml`; its tokens know their
    positions.
    """
    from markdown_it.renderer import RendererHTML
    from myst_parser.parsers.mdit import create_md_parser

    return _located(create_md_parser(parser_config(config), RendererHTML))


def _located(parser):
    """Make each inline token record where it begins and ends in its line, and a link also where its
    text ends.
    """
    from markdown_it.helpers import parseLinkLabel

    def noting(rule):
        def run(state, silent):
            begin, count = state.pos, len(state.tokens)
            matched = rule(state, silent)
            for token in state.tokens[count:] if matched and not silent else ():
                token.meta.setdefault("at", (begin, state.pos))
                if token.type == "link_open" and token.info != "auto" and "text" not in token.meta:
                    token.meta["text"] = parseLinkLabel(state, begin)
            return matched

        return run

    for rule in list(parser.inline.ruler.__rules__):
        parser.inline.ruler.at(rule.name, noting(rule.fn), {"alt": rule.alt})
    return parser


def targets(book, parser):
    """Collect from all chapters the places that text can refer to."""
    places = Targets(works=_works(book), chapters=dict(book.titles))
    for chapter in book.chapters:
        _collect(places, chapter, parser, chapter.text, 0)
    return places


def _collect(places, chapter, parser, source, base):
    label = None
    for group in groups(parser.parse(source)):
        token = group[0]
        line = base + (token.map[0] if token.map else 0) + 1
        if token.type == "myst_target":
            label = token.content
            continue
        title = ""
        if token.type == "heading_open":
            title = _words(group[1])
            if token.tag == "h1":
                places.chapters.setdefault(chapter.name, title)
        elif directive := as_directive(token, line, chapter):
            title = directive.argument
            if directive.name == "exercise-start":
                label = label or directive.options.get("label")
                title = _number_exercise(places, directive, chapter, line)
            elif directive.name == "glossary":
                for term, _ in glossary(directive, chapter):
                    anchor = re.sub(r"[^\w.]+", "-", f"term-{term}")  # as Sphinx does, case kept
                    places.terms[term.lower()] = Target(chapter.name, anchor, term)
            elif directive.name in (*BOXES, "container"):
                _collect(places, chapter, parser, directive.body, directive.line - 1)
        if label:
            places.labels[label] = Target(chapter.name, _id(label), title)
            label = None


def _number_exercise(places, directive, chapter, line):
    """Give an exercise the next number; returns how text refers to it."""
    label = directive.options.get("label")
    if not label or label in places.exercises:
        raise BookError(chapter.path, line, "an exercise needs a :label: of its own")
    places.exercises[label] = (len(places.exercises) + 1, directive.argument)
    return f"Exercise {len(places.exercises)}"


def glossary(directive, chapter):
    """The terms of a glossary: pairs of a term, and the text of its definition ("" where the next
    term shares it).
    """
    terms = []
    for number, text in enumerate(directive.body.split("\n")):
        if text.startswith(": "):
            message = "in a glossary, indent the definition below its term, without a colon"
            raise BookError(chapter.path, directive.line + number, message)
        if text and not text[0].isspace():
            terms.append([text.strip(), ""])
        elif terms:
            terms[-1][1] += f"{text.strip()}\n"
    return [(term, text.strip()) for term, text in terms]


def _id(label):
    from docutils.nodes import make_id

    return make_id(label)


def _words(inline):
    """A heading as plain words."""
    return "".join(
        f"`{c.content}`" if c.type == "code_inline" else " " if c.type == "softbreak" else c.content
        for c in inline.children
    )


def _works(book):
    """What can be cited, from the files that `_config.yml` names."""
    from pybtex.database import parse_file
    from pybtex.exceptions import PybtexError

    works = {}
    for name in book.config.get("bibtex_bibfiles") or []:
        try:
            entries = parse_file(str(book.root / name)).entries
        except (PybtexError, OSError, UnicodeDecodeError) as error:
            raise BookError(
                name, getattr(error, "lineno", None), f"cannot be read: {error}"
            ) from None
        for key, entry in entries.items():
            people = [
                " ".join(
                    str(part) for part in (*person.rich_prelast_names, *person.rich_last_names)
                )
                for person in entry.persons.get("author") or entry.persons.get("editor") or []
            ]
            authors = people[0] if people else f"*{entry.fields.get('title', key)}*"
            if len(people) > 1:
                authors += f" and {people[1]}" if len(people) == 2 else " *et al.*"
            works[key] = (authors, entry.fields.get("year", "n.d."), entry.fields.get("url", ""))
    return works


def groups(tokens):
    """The blocks of a text, each as the list of its tokens."""
    blocks = []
    for token in tokens:
        if token.level == 0 and token.nesting >= 0:
            blocks.append([])
        blocks[-1].append(token)
    return blocks


def as_directive(token, line, chapter):
    """A token as a `Directive`, or None if it is none; `line` is the number of its first line."""
    if token.type not in ("fence", "colon_fence") or not token.info.strip().startswith("{"):
        if token.type == "colon_fence":
            raise BookError(chapter.path, line, "a block of colons needs a name, such as :::{note}")
        return None
    match = re.match(r"\{([^}\s]+)\}\s*(.*)$", token.info.strip())
    if not match or token.info[0].isspace():
        raise BookError(
            chapter.path, line, f"cannot be read as a directive: {token.info}; write ```{{name}}"
        )
    from docutils.parsers.rst.directives.misc import TestDirective  # takes all options
    from myst_parser.parsers.directives import parse_directive_text

    # no options, as MyST has it
    nested = token.type == "colon_fence" and token.content.startswith(":::")
    read = parse_directive_text(TestDirective, "", "\n" * nested + token.content)
    if read.warnings:
        raise BookError(
            chapter.path, line + 1, f"the options cannot be read: {read.warnings[0].msg}"
        )
    body, taken = "\n".join(read.body), read.body_offset - nested
    options = {name: "" if value is None else str(value) for name, value in read.options.items()}
    for option in options:
        if match[1] in OPTIONS and option not in OPTIONS[match[1]]:
            known = ", ".join(f":{name}:" for name in OPTIONS[match[1]])
            raise BookError(
                chapter.path,
                line,
                f"notebooks do not know :{option}: of {{{match[1]}}}; there are {known}",
            )
    return Directive(match[1], match[2].strip(), options, body, line + 1 + taken)


@dataclass
class Markdown:
    """Converts the text of one chapter.

    Attributes:
      book, chapter: whose text it is.
      targets: what text can refer to, from `targets`.
      address: a `bookbinder.read.address.Address`.
      version: the commit or branch to which links to files lead.
      parser: from `make_parser`.
    """

    book: object
    chapter: object
    targets: Targets
    address: object
    version: str
    parser: object

    def error(self, line, message):
        """The error for something wrong in this chapter, with file and line."""
        return BookError(self.chapter.path, line, message)

    def text(self, source, line=1):
        """Convert blocks of Markdown; `line` is the number of the first line."""
        blocks = [
            self.block(group, source.split("\n"), line)
            for group in groups(self.parse(source, line))
        ]
        return "\n\n".join(block for block in blocks if block)

    def parse(self, source, line=1):
        """The tokens of a text. Links must contain their addresses, because a notebook splits the
        text into cells.
        """
        env = {}
        tokens = self.parser.parse(source, env)
        for name, reference in (env.get("references") or {}).items():
            where = line + (reference.get("map") or [0])[0]
            raise self.error(
                where, f"the address of [{name.lower()}] is not in the link; write [text](address)"
            )
        return tokens

    def block(self, group, lines, line):
        """Convert one block: its tokens, the lines of the source, and the number of the first of
        those.
        """
        token = group[0]
        here = line + (token.map[0] if token.map else 0)
        if token.type in DROPPED:
            return ""
        if token.type == "heading_open":
            return (
                f"{'#' * int(token.tag[1])} {' '.join(self.inline(group[1], here).split(chr(10)))}"
            )
        if token.type in _IN_PLACE:
            return self._in_place(group, lines, line)
        if token.type == "math_block":
            return self._math(token.content, here)
        if token.type == "dl_open":
            return self._definitions(group, lines, line)
        if token.type == "substitution_block":
            return self._substitution(token.content, here)
        if directive := as_directive(token, here, self.chapter):
            return self.directive(directive, here)
        if token.type in ("fence", "code_block"):
            return "\n".join(lines[token.map[0] : token.map[1]]).rstrip()
        raise self.error(
            here,
            f"Colab does not show this ({token.type.removesuffix('_open')}): write it in Markdown",
        )

    def choices(self, group, lines, line):
        """The choices of a prediction as a list, and its answer: the right choice, and reasons for
        this and for others.

        Returns:
          Two texts; None if the block is not a list of choices.
        """
        if group[0].type != "bullet_list_open":
            return None
        _, *parts = re.split(
            rf"^[-*+] {CHOICE.pattern}", self._in_place(group, lines, line), flags=re.MULTILINE
        )
        marks, items = parts[::2], [item.strip().partition("\n\n") for item in parts[1::2]]
        if not marks:
            return None
        answer = []
        # the right one first
        for mark, (choice, _, reason) in sorted(zip(marks, items, strict=True), reverse=True):
            if mark == "x" or reason:
                answer.append(
                    (
                        f"{'Right' if mark == 'x' else 'Not'}: {_joined(choice)}. {_joined(reason)}"
                    ).rstrip()
                )
        return "\n".join(f"- {_joined(choice)}" for choice, *_ in items), "\n\n".join(answer)

    def _in_place(self, group, lines, line):
        """A block whose lines are kept, with the inline constructs in them replaced."""
        inlines, begin_line = {}, group[0].map[0]
        for token in group:
            here = line + (token.map[0] if token.map else begin_line)
            if token.type == "inline":
                if re.match(r"(```|~~~|:::)", token.content):
                    message = (
                        f"is not a block: {token.content.splitlines()[0]} (no backticks in its "
                        "first line)"
                    )
                    raise self.error(here, message)
                inlines.setdefault(tuple(token.map), []).append(token)
            elif token.type in _TOP_ONLY or (
                token.type == "fence" and token.info.strip().startswith("{")
            ):
                raise self.error(
                    here, "this is inside a list or a quotation; put it at the top level"
                )
        shown = [*lines]
        for (first, last), tokens in inlines.items():
            if group[0].type == "table_open":
                shown[first] = self._row(tokens, lines[first], line + first)
                continue
            (token,) = tokens
            # What stands before and behind each line's own text, such as the mark of a list.
            parts = [
                raw.rpartition(text)[::2]
                for raw, text in zip(lines[first:last], token.content.split("\n"), strict=False)
            ]
            pieces, at, number = [parts[0][0]], 0, 0
            for begin, end, new in [
                *self._edits(token, line + first),
                (len(token.content), len(token.content), ""),
            ]:
                for text in re.split(r"(\n)", token.content[at:begin]):
                    number += text == "\n"
                    pieces.append(
                        f"{parts[number - 1][1]}\n{parts[number][0]}" if text == "\n" else text
                    )
                number += token.content[begin:end].count("\n")
                pieces.append(new)
                at = end
            shown[first:last] = ["".join(pieces) + parts[-1][1], *[None] * (last - first - 1)]
        return "\n".join(
            text for text in shown[begin_line : group[0].map[1]] if text is not None
        ).rstrip()

    def _row(self, cells, row, line):
        """A row of a table."""
        at = 0
        for token in cells:
            place = row.find(token.content, at)
            if place < 0 and "|" in token.content:  # which is escaped in the row
                if self._edits(token, line):
                    raise self.error(
                        line, "a cell with a | in it cannot hold roles or links of the book"
                    )
                continue
            converted = self.inline(token, line)
            converted = (
                converted if converted == token.content else re.sub(r"(?<!\\)\|", r"\\|", converted)
            )
            row, at = (
                row[:place] + converted + row[place + len(token.content) :],
                place + len(converted),
            )
        return row

    # --- In a line --------------------------------------------------------------------------------

    def inline(self, token, line):
        """Convert the text of an inline token."""
        pieces, at = [], 0
        for begin, end, new in self._edits(token, line):
            pieces += [token.content[at:begin], new]
            at = end
        return "".join([*pieces, token.content[at:]])

    def words(self, source, line):
        """Convert a text of one line, such as a title."""
        tokens = self.parse(source, line)
        if not source.strip():
            return ""
        if [token.type for token in tokens] != ["paragraph_open", "inline", "paragraph_close"]:
            raise self.error(line, f"a line of text is expected here; got {source!r}")
        return self.inline(tokens[1], line)

    def _edits(self, token, line):
        """The replacements in an inline token, in order: begin, end, and new text."""
        edits, links = [], []
        for child in token.children:
            begin, end = child.meta.get("at", (0, 0))
            here = line + token.content[:begin].count("\n")
            if child.type == "myst_role":
                edits.append((begin, end, self._role(child.meta["name"], child.content, here)))
            elif child.type == "link_open":
                links.append(child)
            elif child.type == "link_close":
                opened = links.pop()
                address = str(opened.attrs["href"])
                if "text" in opened.meta and not re.match(r"(https?|mailto):", address):
                    first, last = opened.meta["at"][0], opened.meta["text"]
                    title, target = self._link(address, here)
                    named = opened.attrs.get("title")
                    target += f' "{str(named).replace(chr(34), "&quot;")}"' if named else ""
                    edits.append(
                        (
                            last,
                            opened.meta["at"][1],
                            f"{title if last == first + 1 else ''}]({target})",
                        )
                    )
                elif opened.meta.get("text") == opened.meta.get("at", (0,))[0] + 1:
                    raise self.error(here, f"the link to {address} has no text")
            elif child.type == "image":
                edits.append(
                    (begin, end, self._image(str(child.attrs["src"]), child.content, here))
                )
            elif child.type == "html_inline":
                if not (tag := re.match(r"</?(\w+)", child.content)) or tag[1].lower() not in TAGS:
                    raise self.error(
                        here, f"Colab may not show {child.content}; write it in Markdown"
                    )
            elif child.type == "substitution_inline":
                edits.append((begin, end, self._substitution(child.content, here)))
            elif child.type not in _KEPT:
                raise self.error(here, f"Colab does not show this ({child.type}): {child.content}")
        return sorted(edits)

    def _role(self, name, content, line):
        roles = {
            "doc": self._doc,
            "term": self._term,
            "colab": lambda text, name, line: (
                f"[{text}]({self.address.colab(self._chapter(name, line))})"
            ),
            "minutes": lambda _, names, line: self._minutes(names, line),
            "download": lambda text, file, line: f"[{text or file}]({self._file(file, line)})",
            "cite:t": lambda _, keys, line: self._cite(keys, True, line),
            "cite:p": lambda _, keys, line: self._cite(keys, False, line),
        }
        if name not in roles:
            known = ", ".join(roles)
            raise self.error(line, f"notebooks do not know the role {{{name}}}; there are {known}")
        if named := re.fullmatch(r"(.*?)\s*<([^<>]+)>", content, re.DOTALL):
            return roles[name](" ".join(named[1].split()), named[2].strip(), line)
        return roles[name]("", content, line)

    def _doc(self, text, name, line):
        name = self._chapter(name, line)
        return f"[{text or self.targets.chapters.get(name, name)}]({self.address.page(name)})"

    def _term(self, text, term, line):
        if term.lower() not in self.targets.terms:
            raise self.error(line, f"the glossary has no {term!r}")
        place = self.targets.terms[term.lower()]
        return f"[{text or term}]({self.address.page(place.chapter, place.anchor)})"

    def _minutes(self, names, line):
        try:
            return self.book.reading_time(names)
        except KeyError as error:
            raise self.error(line, f"there is no chapter {error}") from None

    def _cite(self, keys, textual, line):
        shown = []
        for key in (key.strip() for key in keys.split(",")):
            if key not in self.targets.works:
                raise self.error(
                    line,
                    f"there is no work {key} in {', '.join(self.book.config['bibtex_bibfiles'])}",
                )
            authors, year, address = self.targets.works[key]
            address = address or self.address.page("references")
            shown.append(
                f"{authors} \\[[{year}]({address})\\]"
                if textual
                else f"{authors}, [{year}]({address})"
            )
        return ", ".join(shown) if textual else f"\\[{', '.join(shown)}\\]"

    def _substitution(self, name, line):
        if name.strip() in ("install", "install_starters"):
            return f"```sh\n{getattr(self.address, name.strip())}\n```"
        if name.strip() == "minimum_jax":
            return package.of(self.book.root).minimum_jax
        if name.strip() not in ("repository", "pdf"):
            known = "install, install_starters, minimum_jax, pdf, repository"
            raise self.error(line, f"there is no substitution {name.strip()}; there are {known}")
        return f"<{getattr(self.address, name.strip())}>"

    def _link(self, target, line):
        """The title and the address that a link leads to."""
        if not target.startswith("#"):
            raise self.error(
                line, f"{target}: write {{doc}}`NAME` for a chapter, {{download}}`FILE` for a file"
            )
        place = self._label(target[1:], line)
        return place.title or target[1:], self.address.page(place.chapter, place.anchor)

    def _chapter(self, name, line):
        name = self._from_here(name)
        if name not in {chapter.name for chapter in self.book.chapters}:
            raise self.error(line, f"there is no chapter {name}")
        return name

    def _label(self, label, line):
        if label not in self.targets.labels:
            raise self.error(line, f"nothing has the label {label}")
        return self.targets.labels[label]

    def _from_here(self, name):
        """A name as seen from the chapters' folder, where it is given as seen from this
        chapter's.
        """
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.chapter.name), name))

    def _path(self, target, line):
        path = f"{FOLDER}/{self._from_here(target)}"
        if not (self.book.root / path).is_file():
            raise self.error(line, f"there is no file {path}")
        return path

    def _file(self, target, line):
        return self.address.file(self._path(target, line), self.version)

    def _image(self, source, alt, line):
        if not alt.strip():
            raise self.error(
                line,
                f"the image {source} has no alternative text, which readers who cannot see it need",
            )
        if re.match(r"https?:", source):
            raise self.error(line, f"the image {source} is not in the book; put it into {FOLDER}/")
        return f"![{' '.join(alt.split())}]({self.address.raw(self._path(source, line), self.version)})"  # noqa: E501

    # --- Blocks -----------------------------------------------------------------------------------

    def directive(self, directive, line):
        """Convert a directive that is allowed anywhere; `line` is the number of its first line."""
        name, argument = directive.name, directive.argument
        if name in BOXES:
            body = self.text(directive.body, directive.line)
            if BOXES[name] and argument:
                raise self.error(
                    line, f"write the text below {{{name}}}, not beside it: {argument}"
                )
            return box(BOXES[name] or self.words(argument, line), body, folded(directive))
        if name == "container":  # a class for the page's style
            return self.text(directive.body, directive.line)
        if name == "literalinclude":
            return self._include(directive, line)
        known = ", ".join(
            (*BOXES, "container", "literalinclude", "exercise-start", "solution-start")
        )
        raise self.error(line, f"notebooks do not know the directive {{{name}}}; there are {known}")

    def exercise(self, directive, line):
        """The number of the exercise that a directive begins or solves, and its heading."""
        solves = directive.name.startswith("solution")
        label = directive.argument if solves else directive.options.get("label")
        if label not in self.targets.exercises:
            raise self.error(
                line,
                f"no exercise is labelled {label}" if solves else "an exercise needs a :label:",
            )
        number, title = self.targets.exercises[label]
        title = self.words(title, line)
        return number, f"### Exercise {number}: {title}" if title else f"### Exercise {number}"

    def _math(self, content, line):
        if not content.strip():
            raise self.error(line, "an equation is empty")
        body = content.strip()
        if re.search(r"\n\s*\n", body):
            raise self.error(
                line, "an equation has an empty line; end the lines of one equation with \\\\"
            )
        # as Sphinx does
        body = f"\\begin{{split}}\n{body}\n\\end{{split}}" if r"\\" in body else body
        return f"$$\n{body}\n$$"

    def _definitions(self, group, lines, line):
        """A list of definitions, as bullets."""
        shown = []
        for index, token in enumerate(group):
            if token.level != group[0].level + 1:
                continue
            if token.type == "dt_open":
                inline = group[index + 1]
                shown.append(f"- **{self.inline(inline, line + inline.map[0])}**:")
            elif token.type == "dd_open":
                first, last = token.map  # the parser may count the term's line in
                first = next(n for n in range(first, last) if re.match(r"\s*[:~]\s", lines[n]))
                begin = re.match(r"\s*", lines[first])[0] + "  "
                body = [re.sub(r"^(\s*)[:~]", r"\1 ", lines[first]), *lines[first + 1 : last]]
                body = [re.sub(rf"^\s{{0,{len(begin)}}}", "", text.expandtabs(4)) for text in body]
                flows = (
                    group[index + 1].type == "paragraph_open"
                    and group[index - 1].type == "dt_close"
                )
                converted = self.text("\n".join(body), line + first).split("\n")
                shown[-1] += (
                    " " + converted[0].lstrip() if flows else f"\n\n  {converted[0]}".rstrip(" ")
                )
                shown[-1] += "".join(f"\n  {text}".rstrip(" ") for text in converted[1:])
        return "\n".join(shown)

    def _include(self, directive, line):
        """The text of a file, or some lines of it, or a function or class of a module in Python."""
        language, ranges = directive.options.get("language", ""), directive.options.get("lines", "")
        text = (
            (self.book.root / self._path(directive.argument, line))
            .read_text("utf-8")
            .rstrip("\n")
            .split("\n")
        )
        if name := directive.options.get("pyobject"):
            defined = {
                node.name: node
                for node in ast.parse("\n".join(text)).body
                if hasattr(node, "decorator_list")
            }
            if name not in defined:
                raise self.error(
                    line,
                    (
                        f":pyobject: {directive.argument} defines no {name}; it defines "
                        f"{', '.join(defined)}"
                    ),
                )
            node = defined[name]
            begin = min(part_of.lineno for part_of in (node, *node.decorator_list))
            text = text[begin - 1 : node.end_lineno]
        match = re.fullmatch(r"(\d+)-(\d*)", ranges or "1-")
        if not match:
            raise self.error(line, f":lines: {ranges} cannot be read; write them as 2-4 or 2-")
        begin, end = int(match[1]), int(match[2] or len(text))
        if not 1 <= begin <= end <= len(text):
            raise self.error(
                line, f":lines: {ranges}: {directive.argument} has lines 1 to {len(text)}"
            )
        return fence("\n".join(text[begin - 1 : end]), language)


_KEPT = {
    *(
        "text",
        "text_special",
        "softbreak",
        "hardbreak",
        "code_inline",
        "math_inline",
        "math_inline_double",
    ),
    *("em_open", "em_close", "strong_open", "strong_close", "s_open", "s_close"),
}


def folded(directive):
    """Whether a box is closed until the reader opens it."""
    return "dropdown" in directive.options.get("class", "").split()


def _joined(text):
    return " ".join(text.split())


def box(title, body, fold):
    """A box with a title, as a quotation, or folded."""
    if fold:
        from markdown_it import MarkdownIt
        from mdit_py_plugins.dollarmath import dollarmath_plugin

        shown = MarkdownIt("commonmark").use(
            dollarmath_plugin, renderer=lambda math, _: f"${html.escape(math)}$"
        )
        summary = shown.renderInline(title)
        return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"
    return "\n".join(f"> {line}".rstrip() for line in (f"**{title}**", "", *body.split("\n")))


def fence(code, language=""):
    """Code in a fence of backticks, longer than any run of backticks in the code."""
    ticks = "`" * max(
        3, 1 + max((len(run) for run in re.findall(r"^\s*(`+)", code, re.MULTILINE)), default=0)
    )
    return f"{ticks}{language}\n{code.rstrip()}\n{ticks}"
