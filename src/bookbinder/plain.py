"""Turn MyST into the Markdown that Colab shows: GitHub's kind, with math between dollars.

What is not known here is an error with file and line, so that no reader ever sees a raw directive.
"""

import html
import re
from dataclasses import dataclass, field
from functools import cached_property

import yaml

from bookbinder.book import FOLDER, BookError

BOXES = {
    "note": "Note",
    "tip": "Tip",
    "hint": "Hint",
    "important": "Important",
    "warning": "Warning",
    "caution": "Caution",
    "attention": "Attention",
    "danger": "Danger",
    "error": "Error",
    "seealso": "See also",
    "admonition": None,  # has its title as argument
    "margin": "On the margin",
    "sidebar": None,
    "dropdown": None,
}
CODE = ("code", "code-block", "sourcecode")
TAGS = {"br", "sub", "sup", "kbd", "b", "i", "em", "strong"}  # of HTML in a line, which Colab shows too
_IN_PLACE = {"paragraph_open", "bullet_list_open", "ordered_list_open", "blockquote_open", "table_open", "hr"}
_TOP_ONLY = {"html_block", "colon_fence", "dl_open", "math_block_label", "myst_target", "substitution_block"}
DROPPED = {"front_matter", "myst_target", "myst_line_comment", "footnote_reference_open"}


@dataclass(frozen=True)
class Directive:
    """A block such as ```{note} argument, with options and a body; `line` is that of the body's first line."""

    name: str
    argument: str
    options: dict
    body: str
    line: int


@dataclass(frozen=True)
class Target:
    """A place that text can point to: a chapter, an anchor on its page, and what it is called."""

    chapter: str
    anchor: str = ""
    title: str = ""


@dataclass
class Targets:
    """All that text of the book can point to, by its label."""

    chapters: dict = field(default_factory=dict)  # name: title
    labels: dict = field(default_factory=dict)  # sections, figures, tables, exercises
    equations: dict = field(default_factory=dict)
    exercises: dict = field(default_factory=dict)  # label: (number, title)
    terms: dict = field(default_factory=dict)
    works: dict = field(default_factory=dict)  # what is cited: key: (authors, year, address)


def make_parser(config):
    """The parser of the book's MyST, with the extensions of `_config.yml`."""
    from markdown_it.renderer import RendererHTML
    from myst_parser.config.main import MdParserConfig
    from myst_parser.parsers.mdit import create_md_parser

    extensions = (config.get("parse") or {}).get("myst_enable_extensions") or []
    return create_md_parser(MdParserConfig(enable_extensions=set(extensions)), RendererHTML)


def targets(book, parser):
    """Look through all chapters for what text can point to."""
    found = Targets(works=_works(book))
    for chapter in book.chapters:
        _collect(found, chapter, parser, chapter.text, 0, {"equations": 0})
    return found


def _collect(found, chapter, parser, source, base, counts):
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
                found.chapters.setdefault(chapter.name, title)
        elif token.type == "math_block_label":
            _number_equation(found, chapter, token.info, counts)
        elif directive := as_directive(token, line, chapter):
            title = directive.argument
            names = directive.options.get("name"), directive.options.get("label")
            if directive.name == "math" and any(names):
                _number_equation(found, chapter, names[0] or names[1], counts)
            elif directive.name in ("exercise", "exercise-start"):
                found.exercises[names[1]] = (len(found.exercises) + 1, title)
                title = f"Exercise {len(found.exercises)}"
                label = label or names[1]
            elif directive.name in ("figure", "table", "list-table", "image"):
                title = title if directive.name != "figure" else directive.body.strip().split("\n")[0]
                label = label or names[0]
            elif directive.name == "glossary":
                for inner in parser.parse(directive.body):
                    if inner.type == "inline" and inner.level == 2:
                        anchor = re.sub(r"[^\w.]+", "-", f"term-{inner.content}")  # as Sphinx does, case kept
                        found.terms[inner.content.lower()] = Target(chapter.name, anchor, inner.content)
            elif directive.name in (*BOXES, "tab-set", "tab-item"):
                _collect(found, chapter, parser, directive.body, directive.line - 1, counts)
        if label:
            found.labels[label] = Target(chapter.name, _id(label), title)
            label = None


def _number_equation(found, chapter, label, counts):
    counts["equations"] += 1
    found.equations[label] = (Target(chapter.name, f"equation-{_id(label)}"), counts["equations"])


def _id(label):
    from docutils.nodes import make_id

    return make_id(label)


def _words(inline):
    """A heading as plain words."""
    return "".join(f"`{c.content}`" if c.type == "code_inline" else c.content for c in inline.children)


def _works(book):
    """What can be cited, from the files that `_config.yml` names."""
    from pybtex.database import parse_file

    works = {}
    for name in book.config.get("bibtex_bibfiles") or []:
        for key, entry in parse_file(str(book.root / name)).entries.items():
            people = [" ".join(person.last_names).strip("{}") for person in entry.persons.get("author", [])]
            authors = people[0] if people else key
            authors += {1: "", 2: f" and {people[-1]}"}.get(len(people), " *et al.*") if people else ""
            works[key] = (authors, entry.fields.get("year", "n.d."), entry.fields.get("url", ""))
    return works


def groups(tokens):
    """The blocks of a text, each as the list of its tokens."""
    found = []
    for token in tokens:
        if token.level == 0 and token.nesting >= 0:
            found.append([])
        found[-1].append(token)
    return found


def as_directive(token, line, chapter):
    """A token as a `Directive`, or None if it is none; `line` is the number of its first line."""
    if token.type not in ("fence", "colon_fence") or not token.info.strip().startswith("{"):
        if token.type == "colon_fence":
            raise BookError(chapter.path, line, "colons around a text need a name, such as :::{note}")
        return None
    match = re.match(r"\{([^}\s]+)\}\s*(.*)$", token.info.strip())
    if not match:
        raise BookError(chapter.path, line, f"cannot be read as a directive: {token.info.strip()}")
    body, options, taken = token.content, {}, 0
    if block := re.match(r"---\n(.*?)^---\s*$\n?", body, re.DOTALL | re.MULTILINE):
        options, taken = yaml.safe_load(block[1]) or {}, block[0].count("\n")
        body = body[block.end() :]
    else:
        while option := re.match(r":([\w-]+):[ \t]*(.*)(\n|$)", body):
            options[option[1]] = option[2].strip()
            body, taken = body[option.end() :], taken + 1
    return Directive(match[1], match[2].strip(), options, body, line + 1 + taken)


@dataclass
class Plain:
    """Converts the text of one chapter.

    Attributes:
      book, chapter: whose text it is.
      targets: what text can point to, from `targets`.
      address: a `bookbinder.address.Address`.
      version: the commit or branch to which links to files lead.
      parser: from `make_parser`.
    """

    book: object
    chapter: object
    targets: Targets
    address: object
    version: str
    parser: object
    notes: list = field(default_factory=list)  # the labels of footnotes, in the order of their first use

    def error(self, line, message):
        """What is wrong, with file and line."""
        return BookError(self.chapter.path, line, message)

    def text(self, source, line=1):
        """Convert blocks of Markdown; `line` is the number of the first line."""
        made = [self.block(group, source.split("\n"), line) for group in groups(self.parse(source, line))]
        return "\n\n".join(block for block in made if block)

    def parse(self, source, line=1):
        """The tokens of a text. Addresses may not stand apart from their links: a notebook tears texts apart."""
        env = {}
        tokens = self.parser.parse(source, env)
        for name, reference in (env.get("references") or {}).items():
            where = line + (reference.get("map") or [0])[0]
            raise self.error(
                where, f"the address of [{name.lower()}] stands apart; write it into the link: [text](address)"
            )
        return tokens

    def block(self, group, lines, line):
        """Convert one block: its tokens, the lines of the source, and the number of the first of those."""
        token = group[0]
        here = line + (token.map[0] if token.map else 0)
        if token.type in DROPPED:
            return ""
        if token.type == "heading_open":
            return f"{'#' * int(token.tag[1])} {self.inline(group[1], here)}"
        if token.type in _IN_PLACE:
            return self._in_place(group, lines, line)
        if token.type in ("math_block", "math_block_label"):
            return self._math(token.content, token.info if token.type == "math_block_label" else "")
        if token.type == "dl_open":
            return self._definitions(group, lines, line)
        if token.type == "substitution_block":
            return self._substitution(token.content, here)
        if token.type == "code_block":
            return "\n".join(lines[token.map[0] : token.map[1]]).rstrip()
        if directive := as_directive(token, here, self.chapter):
            return self.directive(directive, here)
        if token.type == "fence":
            return "\n".join(lines[token.map[0] : token.map[1]]).rstrip()
        raise self.error(here, f"Colab does not show this ({token.type.removesuffix('_open')}): write it in Markdown")

    def _in_place(self, group, lines, line):
        """A block whose lines stay, with what stands in them replaced."""
        inlines, begin = {}, group[0].map[0]
        for token in group:
            here = line + (token.map[0] if token.map else begin)
            if token.type == "inline":
                if re.match(r"(```|~~~|:::)", token.content):
                    message = f"is no block: {token.content.splitlines()[0]} (backticks cannot stand in its first line)"
                    raise self.error(here, message)
                inlines.setdefault(tuple(token.map), []).append(token)
            elif token.type in _TOP_ONLY or (token.type == "fence" and token.info.strip().startswith("{")):
                raise self.error(here, "stands inside of a list or a quotation; put it at the top level")
        shown = list(lines)
        for (first, last), tokens in inlines.items():
            text, at = "\n".join(lines[first:last]), 0
            for token in tokens:
                for old, new in self._edits(token, line + first):
                    place = text.find(old, at)
                    if place < 0 and old == new:
                        continue
                    if place < 0:
                        raise self.error(line + first, f"put it on one line: {' '.join(old.split())}")
                    new = new.replace("|", "\\|") if group[0].type == "table_open" else new
                    text = text[:place] + new + text[place + len(old) :]
                    at = place + len(new)
            shown[first:last] = [text, *[None] * (last - first - 1)]
        return "\n".join(text for text in shown[begin : group[0].map[1]] if text is not None).rstrip()

    # --- In a line ----------------------------------------------------------------------------------------

    def inline(self, token, line):
        """Convert the text of an inline token."""
        text, at = token.content, 0
        for old, new in self._edits(token, line):
            place = text.index(old, at)
            text, at = text[:place] + new + text[place + len(old) :], place + len(new)
        return text

    def words(self, source, line):
        """Convert a text of one line, such as a title."""
        tokens = self.parse(source, line)
        if not source.strip():
            return ""
        if [token.type for token in tokens] != ["paragraph_open", "inline", "paragraph_close"]:
            raise self.error(line, f"a line of text is expected here; got {source!r}")
        return self.inline(tokens[1], line)

    def _edits(self, token, line):
        """What an inline token is made of, in order, but for words: pairs of what is written and what is shown."""
        source, at, edits, links = token.content, 0, [], []

        def find(pattern, what):
            nonlocal at
            match = re.compile(pattern).search(source, at)
            if not match:
                raise self.error(here(), f"cannot be converted as it is written: {what}")
            at = match.end()
            return match

        def here():
            return line + source[:at].count("\n")

        for child in token.children:
            if child.type == "code_inline":
                begin = find(rf"(?<!`){child.markup}(?!`)", child.content).start()
                code = source[begin : find(rf"(?<!`){child.markup}(?!`)", child.content).end()]
                edits.append((code, code))  # stays, and nothing is looked for in it
            elif child.type == "math_inline":
                find(re.escape(child.content), child.content)
            elif child.type == "myst_role":
                content = r"\s+".join(re.escape(word) for word in child.content.split())
                name = child.meta["name"]
                match = find(rf"\{{{re.escape(name)}\}}(`+)\s*{content}\s*\1", f"{{{name}}}`{child.content}`")
                edits.append((match[0], self._role(name, child.content, here())))
            elif child.type == "link_open":
                links.append((child, at))
            elif child.type == "link_close":
                opened, began = links.pop()
                if opened.info == "auto":
                    find(r">", child.content)
                    continue
                match = find(rf"\]\({_DESTINATION}\)", opened.attrs["href"])
                title, target = self._link(str(opened.attrs["href"]), here())
                empty = source[began : match.start()].endswith("[")
                edits.append((match[0], f"{title if empty else ''}]({target}{match['title'] or ''})"))
            elif child.type == "image":
                match = find(rf"!\[(?P<alt>[^\]]*)\]\({_DESTINATION}\)", str(child.attrs["src"]))
                edits.append((match[0], self._image(str(child.attrs["src"]), match["alt"], here())))
            elif child.type == "html_inline":
                match = find(re.escape(child.content), child.content)
                if not (tag := re.match(r"</?(\w+)", child.content)) or tag[1].lower() not in TAGS:
                    raise self.error(here(), f"Colab may not show {child.content}; write it in Markdown")
            elif child.type == "footnote_ref":
                label = child.meta["label"]
                find(re.escape(f"[^{label}]"), label)
                if label not in self.notes:
                    self.notes.append(label)
                edits.append((f"[^{label}]", f"<sup>{self.notes.index(label) + 1}</sup>"))
            elif child.type == "substitution_inline":
                match = find(rf"\{{\{{\s*{re.escape(child.content.strip())}\s*\}}\}}", child.content)
                edits.append((match[0], self._substitution(child.content, here())))
            elif child.type == "text" and (note := re.search(r"\[\^[^\]\s]+\]", child.content)):
                raise self.error(line, f"there is no footnote {note[0]}")
            elif child.type not in _KEPT:
                raise self.error(here(), f"Colab does not show this ({child.type}): {child.content}")
        return edits

    def _role(self, name, content, line):
        text, target = content, content
        if named := re.fullmatch(r"(.*?)\s*<([^<>]+)>", content, re.DOTALL):
            text, target = " ".join(named[1].split()), named[2].strip()
        else:
            text = ""
        if name == "doc":
            target = self._chapter(target, line)
            return f"[{text or self.targets.chapters.get(target, target)}]({self.address.page(target)})"
        if name in ("ref", "numref"):
            found = self._label(target, line)
            if not text and not found.title:
                raise self.error(line, f"{target} has no title: write {{{name}}}`text <{target}>`")
            return f"[{text or found.title}]({self.address.page(found.chapter, found.anchor)})"
        if name == "eq":
            if target not in self.targets.equations:
                raise self.error(line, f"no equation is called {target}")
            found, number = self.targets.equations[target]
            return f"[({number})]({self.address.page(found.chapter, found.anchor)})"
        if name == "term":
            if target.lower() not in self.targets.terms:
                raise self.error(line, f"the glossary has no {target!r}")
            found = self.targets.terms[target.lower()]
            return f"[{text or target}]({self.address.page(found.chapter, found.anchor)})"
        if name == "download":
            return f"[{text or target}]({self._file(target, line)})"
        if name in ("cite", "cite:t", "cite:p"):
            return self._cite(content, name == "cite:t", line)
        if name == "math":
            return f"${content}$"
        if name == "code":
            return f"`{content}`"
        if name in ("sub", "sup", "kbd"):
            return f"<{name}>{html.escape(content)}</{name}>"
        known = "doc, ref, numref, eq, term, download, cite, cite:t, cite:p, math, code, sub, sup, kbd"
        raise self.error(line, f"notebooks do not know the role {{{name}}}; there are {known}")

    def _cite(self, keys, textual, line):
        shown = []
        for key in (key.strip() for key in keys.split(",")):
            if key not in self.targets.works:
                raise self.error(line, f"no work is called {key} in {', '.join(self.book.config['bibtex_bibfiles'])}")
            authors, year, address = self.targets.works[key]
            address = address or self.address.page("references")
            shown.append(f"{authors} \\[[{year}]({address})\\]" if textual else f"{authors}, [{year}]({address})")
        return ", ".join(shown) if textual else f"\\[{'; '.join(shown)}\\]"

    def _substitution(self, name, line):
        if name.strip() == "repository":
            return f"<{self.address.repository}>"
        settings = self.book.config.get("sphinx", {}).get("config", {}).get("myst_substitutions") or {}
        known = settings | (self.chapter.front_matter.get("substitutions") or {})
        if name.strip() not in known:
            raise self.error(line, f"no substitution is called {name.strip()}")
        return str(known[name.strip()])

    def _link(self, target, line):
        """The title and the address that a link leads to."""
        if re.match(r"(https?|mailto):", target):
            return target, target
        path, _, anchor = target.partition("#")
        if not path:
            found = self._label(anchor, line)
            return found.title or anchor, self.address.page(found.chapter, found.anchor)
        if path.endswith(".md"):
            chapter = self._chapter(path.removesuffix(".md"), line)
            return self.targets.chapters.get(chapter, chapter), self.address.page(chapter, anchor)
        return path, self._file(path, line)

    def _chapter(self, name, line):
        name = name.removeprefix("./").removeprefix(f"/{FOLDER}/").removeprefix("/")
        if name not in {chapter.name for chapter in self.book.chapters}:
            raise self.error(line, f"there is no chapter {name}")
        return name

    def _label(self, label, line):
        if label not in self.targets.labels:
            raise self.error(line, f"nothing is labelled {label}")
        return self.targets.labels[label]

    def _path(self, target, line):
        path = f"{FOLDER}/{target}"
        if not (self.book.root / path).is_file():
            raise self.error(line, f"there is no file {path}")
        return path

    def _file(self, target, line):
        return self.address.file(self._path(target, line), self.version)

    def _image(self, source, alt, line):
        if not alt.strip():
            raise self.error(line, f"the image {source} has no alternative text for those who cannot see it")
        if re.match(r"https?:", source):
            raise self.error(line, f"the image {source} is not in the book; put it into {FOLDER}/")
        return f"![{' '.join(alt.split())}]({self.address.raw(self._path(source, line), self.version)})"

    # --- Blocks -------------------------------------------------------------------------------------------

    def directive(self, directive, line):
        """Convert a directive that may stand anywhere; `line` is that of its first line."""
        name, argument, options = directive.name, directive.argument, directive.options
        if name in BOXES:
            title = self.words(argument, line) or BOXES[name] or name.capitalize()
            return box(title, self.text(directive.body, directive.line), name == "dropdown" or folded(directive))
        if name in ("exercise", "solution"):
            number, title = self.exercise(directive, line)
            body = self.text(directive.body, directive.line)
            return box(f"Solution of exercise {number}", body, True) if name == "solution" else f"{title}\n\n{body}"
        if name in CODE:
            return fence(directive.body, argument)
        if name == "literalinclude":
            return self._include(directive, line)
        if name == "math":
            return self._math(directive.body, options.get("label") or options.get("name") or "")
        if name in ("figure", "image"):
            picture = self._image(argument, str(options.get("alt", "")), line)
            caption = self.text(directive.body, directive.line)
            return f"{picture}\n\n{caption}" if caption else picture
        if name == "tab-set":
            return self._tabs(directive)
        if name == "table":
            return self._captioned(argument, self.text(directive.body, directive.line), line)
        if name == "list-table":
            return self._captioned(argument, self._list_table(directive), line)
        if name == "glossary":
            return self.text(directive.body, directive.line)
        known = ", ".join((*BOXES, *CODE, "literalinclude, math, figure, image, tab-set, table, list-table, glossary"))
        raise self.error(line, f"notebooks do not know the directive {{{name}}}; there are {known}, exercise, solution")

    def exercise(self, directive, line):
        """The number of the exercise that a directive begins or solves, and its heading."""
        solves = directive.name.startswith("solution")
        label = directive.argument if solves else directive.options.get("label")
        if label not in self.targets.exercises:
            raise self.error(line, f"no exercise is labelled {label}" if solves else "an exercise needs a :label:")
        number, title = self.targets.exercises[label]
        title = self.words(title, line)
        return number, f"### Exercise {number}: {title}" if title else f"### Exercise {number}"

    def _math(self, content, label):
        tag = f" \\tag{{{self.targets.equations[label][1]}}}" if label else ""
        return f"$$\n{content.strip()}{tag}\n$$"

    def _tabs(self, directive):
        shown = []
        for group in groups(self.parse(directive.body, directive.line)):
            here = directive.line + (group[0].map[0] if group[0].map else 0)
            tab = as_directive(group[0], here, self.chapter)
            if not tab or tab.name != "tab-item":
                raise self.error(here, "a tab-set holds nothing but tab-items")
            shown.append(f"**{self.words(tab.argument, here)}**\n\n{self.text(tab.body, tab.line)}")
        return "\n\n".join(shown)

    def _captioned(self, caption, table, line):
        return f"**{self.words(caption, line)}**\n\n{table}" if caption else table

    def _list_table(self, directive):
        """A table written as a list of lists."""
        rows, depth = [], 0
        for token in self.parse(directive.body, directive.line):
            depth += {"bullet_list_open": 1, "bullet_list_close": -1}.get(token.type, 0)
            here = directive.line + (token.map[0] if token.map else 0)
            if token.type == "list_item_open" and depth == 1:
                rows.append([])
            elif token.type == "list_item_open" and depth == 2:
                rows[-1].append("")
            elif token.type == "inline":
                if rows[-1][-1]:
                    raise self.error(here, "a cell of a list-table holds one paragraph")
                rows[-1][-1] = " ".join(self.inline(token, here).split()).replace("|", "\\|")
            elif depth > 2 or token.type in ("fence", "colon_fence", "table_open"):
                raise self.error(here, "a cell of a list-table holds one paragraph")
        if not rows or len({len(row) for row in rows}) != 1:
            raise self.error(directive.line, "the rows of a list-table must have the same number of cells, one or more")
        heads = int(directive.options.get("header-rows", 0))
        if heads > 1:
            raise self.error(directive.line, f"a table has one row of heads here, not {heads}")
        head = rows.pop(0) if heads else [""] * len(rows[0])
        return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])

    def _definitions(self, group, lines, line):
        """A list of definitions, as bullets."""
        shown = []
        for index, token in enumerate(group):
            if token.type == "dt_open":
                inline = group[index + 1]
                shown.append(f"- **{self.inline(inline, line + inline.map[0])}**: ")
            elif token.type == "dd_open":
                first, last = token.map  # the parser may count the term's line in
                first = next(n for n in range(first, last) if re.match(r"\s*:\s", lines[n]))
                body = [re.sub(r"^(:\s+|\s{1,4})", "", text) for text in lines[first:last]]
                made = self.text("\n".join(body), line + first).split("\n")
                begun = not shown[-1].endswith(": ")
                shown[-1] += "\n\n  " if begun else ""
                shown[-1] += "\n".join([made[0], *(f"  {text}".rstrip() for text in made[1:])])
        return "\n".join(shown)

    def _include(self, directive, line):
        """A file, or some lines of it."""
        options = dict(directive.options)
        language, wanted = options.pop("language", ""), options.pop("lines", "")
        if options:
            raise self.error(line, f"notebooks know :language: and :lines: here, not :{next(iter(options))}:")
        text = (self.book.root / self._path(directive.argument, line)).read_text("utf-8").rstrip("\n").split("\n")
        chosen = []
        for part in wanted.split(",") if wanted else ["-"]:
            first, dash, last = part.strip().partition("-")
            begin = int(first or 1)
            end = int(last or len(text)) if dash else begin
            chosen += text[begin - 1 : end]
        return fence("\n".join(chosen), language)

    # --- Footnotes ----------------------------------------------------------------------------------------

    @cached_property
    def footnotes(self):
        """The notes of the whole chapter, by label: their text and line."""
        found = {}
        lines = self.chapter.text.split("\n")
        for token in self.parse(self.chapter.text):
            if token.type == "footnote_reference_open":
                first, last = token.map
                body = [re.sub(r"^(\[\^[^\]]+\]:\s*|\s{1,4})", "", text) for text in lines[first:last]]
                found[token.meta["label"]] = ("\n".join(body).strip(), first + 1)
        return found

    def notes_since(self, count):
        """The text of the notes that have been used for the first time after the first `count`."""
        shown = []
        for number, label in list(enumerate(self.notes, 1))[count:]:
            text, line = self.footnotes[label]
            shown.append(f"<sup>{number}</sup> {self.text(text, line)}")
        return shown


_DESTINATION = r"\s*(?:<[^<>]*>|[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)(?P<title>\s+(?:\"[^\"]*\"|'[^']*'))?\s*"
_KEPT = {
    *("text", "text_special", "softbreak", "hardbreak"),
    *("em_open", "em_close", "strong_open", "strong_close", "s_open", "s_close"),
}


def folded(directive):
    """Whether a box is to be opened by the reader."""
    return "dropdown" in str(directive.options.get("class", "")).split()


def box(title, body, fold):
    """A box with a title, as a quotation, or folded away."""
    if fold:
        summary = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(title, quote=False))
        return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"
    lines = [f"**{title}**", "", *body.split("\n")] if body else [f"**{title}**"]
    return "\n".join(f"> {line}".rstrip() for line in lines)


def fence(code, language=""):
    """Code between backticks, more of them than there are in it."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"^\s*(`+)", code, re.MULTILINE)), default=0))
    return f"{ticks}{language}\n{code.rstrip()}\n{ticks}"
