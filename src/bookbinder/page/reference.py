"""Make the page of every public name of a package, from its docstrings, as Markdown like that of
any other page.

A line `% public names of shardlab` in a page is replaced when Sphinx reads it. The package is not
imported: griffe reads signatures and docstrings from its source.
"""

import ast
import re
import textwrap
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import griffe
from docutils import nodes

from bookbinder.read import package
from bookbinder.read.book import FOLDER

__all__ = ["page", "setup"]

_MARK = re.compile(r"^% public names of (\w+)$", re.MULTILINE)
# an example, or an indented block
_CODE = re.compile(r"(?:\A|(?<=\n\n))(?:>>> .*(?:\n.+)*|    .*(?:\n+    .*)*)")
_PARTS = ("Args", "Attributes", "Returns", "Yields", "Raises")
_WIDTH = 88  # characters, from which a signature takes a line for each argument


def setup(app):
    """Called by the extension."""
    app.connect("source-read", _replace)
    app.connect("doctree-resolved", _link_names)


def _replace(app, docname, source):
    def public(mark):
        folder = Path(find_spec(mark[1]).origin).parent
        for file in sorted(folder.rglob("*.py")):
            app.env.note_dependency(str(file))
        return page(folder)

    source[0] = _MARK.sub(public, source[0])


def _link_names(app, doctree, docname):
    """Link the first use of each name that a chapter imports, or that stands as `package.name`, to
    the reference.
    """
    name, book = docname.removeprefix(f"{FOLDER}/"), app.bookbinder_book
    imported = package.of(book.root)
    where = next(
        (page for page in app.env.found_docs if page.removeprefix(f"{FOLDER}/") == "reference"),
        None,
    )
    if (
        not imported.name
        or where is None
        or name not in {chapter.name for chapter in book.chapters}
    ):
        return
    code = "\n".join(cell.source for cell in book.chapter(name).cells)
    known = anchors(book.root / imported.folder)
    left = {used: known[used] for used in imports(code, imported.name) if used in known}
    left |= {f"{imported.name}.{used}": anchor for used, anchor in known.items()}
    for literal in list(doctree.findall(nodes.literal)):
        used = re.sub(r"\(.*\)$", "", literal.astext(), flags=re.DOTALL)
        if used in left and not _within(literal, (nodes.reference, nodes.title)):
            link = nodes.reference(
                "", "", refuri=f"{app.builder.get_relative_uri(docname, where)}#{left.pop(used)}"
            )
            link["classes"].append("name")
            literal.replace_self(link)
            link += literal


def _within(node, kinds):
    while node := node.parent:
        if isinstance(node, kinds):
            return True
    return False


def imports(code, package):
    """The names that some code imports from a package or its modules."""
    lists = re.findall(rf"^from {package}(?:\.[\w.]+)? import (\([^)]*\)|.*)$", code, re.MULTILINE)
    return {
        one.split()[0]
        for names in lists
        for one in re.split(r"[,\n]", names.strip("()"))
        if one.strip()
    }


@cache
def anchors(folder):
    """The anchor on the page of each public name that one module alone has."""
    found = re.findall(r"^\((reference-[\w-]+)\)=\n\n### `(\w+)`$", page(folder), re.MULTILINE)
    names = Counter(name for _, name in found)
    return {name: anchor for anchor, name in found if names[name] == 1}


@cache
def page(folder):
    """The Markdown for the package in a folder: a section for each public module, and in it one for
    each name.

    Args:
      folder: of the package; the docstring of its `__init__.py` says what each module does, in the
        order of the page. A module marked "(inside)" there is used by the package's others alone,
        and left out.
    """
    folder = Path(folder).resolve()
    package = griffe.load(folder.name, search_paths=[folder.parent], allow_inspection=False)
    sections = []
    listed = rf"^- `{folder.name}\.([\w.]+)`: (.*(?:\n  .*)*)"
    for module, job in re.findall(listed, package.docstring.value, re.MULTILINE):
        does = " ".join(job.split())
        if does.endswith("(inside)"):
            continue
        node = package[module]
        prose = node.docstring.value.partition("\n\n")[2]
        sections += [f"## `{package.name}.{module}`: {does}", _prose(prose)]
        for name in node.exports:
            sections += _section(module, name, node[str(name)])
    return "\n\n".join(filter(None, sections))


def _section(module, name, node):
    """What stands about a name: its anchor, its heading, its signature and its docstring."""
    node = node.final_target if node.is_alias else node
    sort = "class-" if node.is_class else ""  # `Plan` and `plan` have anchors of their own
    anchor = f"{module.replace('.', '-')}-{sort}{name.lower()}".replace("_", "-")
    yield from (f"(reference-{anchor})=", f"### `{name}`")
    if node.is_attribute:
        value = textwrap.shorten(f"{name} = {node.value}", 3 * _WIDTH, placeholder=" ...")
        yield _fence(value)
    elif node.is_function:
        yield _fence(_signature(name, _parameters(node), _result(node)))
        yield from _documented(node)
    else:
        yield _fence(_class(node))
        yield from _documented(node)
        if members := "\n\n".join(_members(node)):
            yield from ("**Properties and methods**", members)


def _members(node):
    """The public methods and properties of a class, as entries of a definition list."""
    for member in node.members.values():
        is_property = member.is_attribute and "property" in member.labels
        if member.name.startswith("_") or not (member.is_function or is_property):
            continue
        if is_property:
            head = f": {member.annotation}" if member.annotation else ""
        else:
            head = f"({', '.join(_parameters(member)[1:])}){_result(member)}"
        said = "\n\n".join(block for block in _documented(member) if block)
        yield _item(f"`{member.name}{head}`", said)


def _parameters(node):
    """The parameters of a function as people write them, with * and / where they must stand."""
    texts, kinds = [], griffe.ParameterKind
    is_starred = False
    for parameter in node.parameters:
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind, "")
        if parameter.kind is kinds.keyword_only and not is_starred:
            texts.append("*")
        is_starred = is_starred or parameter.kind in (kinds.keyword_only, kinds.var_positional)
        annotation = f": {parameter.annotation}" if parameter.annotation else ""
        text = f"{stars}{parameter.name}{annotation}"
        if parameter.default is not None and not stars:
            text += f" = {parameter.default}" if annotation else f"={parameter.default}"
        texts.append(text)
    return texts


def _result(node):
    return f" -> {node.returns}" if node.returns else ""


def _signature(name, parameters, result=""):
    """How a function is called, as Python; with a line for each parameter if it is long."""
    short = f"{name}({', '.join(parameters)}){result}"
    if len(short) <= _WIDTH:
        return short
    lines = ",\n    ".join(parameters)
    return f"{name}(\n    {lines},\n){result}"


def _class(node):
    """A class as one makes it: from its fields, if it is a dataclass, or from its `__init__`."""
    if "__init__" in node.members or "dataclass" in node.labels:
        made_from = [text for text in _parameters(node)[1:] if not text.startswith("_")]
        return _signature(node.name, made_from)
    bases = ", ".join(map(str, node.bases))
    return f"class {node.name}({bases})" if bases else f"class {node.name}"


def _documented(node):
    """A docstring's parts as blocks: prose, examples, and lists of what it describes.

    Griffe reads these too, but would drop all names but the first of "a, b: what they are".
    """
    part, lines = None, []
    docstring = node.docstring.value if node.docstring else ""
    for line in [*docstring.splitlines(), "End:"]:
        head = re.fullmatch(r"(\w+):", line)
        if head and (head[1] in _PARTS or line == "End:"):
            yield from _part(part, lines)
            part, lines = head[1], []
        else:
            if part and line and not line.startswith(" "):  # prose after a list
                yield from _part(part, lines)
                part, lines = None, []
            lines.append(line)


def _part(part, lines):
    text = "\n".join(lines)
    if part is None:
        return [_prose(text)]
    text = textwrap.dedent(text).strip()
    if part in ("Returns", "Yields"):
        return [f"**{part}**", _prose(text)]
    items = re.findall(r"^(\S[^\n]*?): +(.*(?:\n(?:[ ].*)?)*)", text, re.MULTILINE)
    entries = [_item(_names(name), _dedented(explanation)) for name, explanation in items]
    return [f"**{'Arguments' if part == 'Args' else part}**", "\n\n".join(entries)]


def _names(text):
    """Names before a colon, each as code."""
    return ", ".join(f"`{name}`" for name in re.split(r", ", text))


def _dedented(text):
    first, _, others = text.partition("\n")
    return f"{first}\n{textwrap.dedent(others)}".strip()


def _item(term, text):
    """An entry of a definition list."""
    return f"{term}\n: " + textwrap.indent(_prose(text), "  ").strip()


def _prose(text):
    """Markdown, with its examples and its indented blocks as fenced code: coloured where it is
    Python.
    """
    return _CODE.sub(lambda block: _fence(textwrap.dedent(block[0])), text).strip()


def _fence(code):
    try:
        ast.parse(code)
        language = "python"
    except SyntaxError:
        language = "python" if re.match(r"\w+\(|>>> ", code) else "text"
    return f"```{language}\n{code}\n```"
