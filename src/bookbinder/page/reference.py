"""Make the page of every public name of a package, from its docstrings, as Markdown like that of any other page.

A line `% public names of shardlab` in a page is replaced when Sphinx reads it. The package is not imported: signatures
and docstrings are read from its source.
"""

import ast
import re
import textwrap
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes

from bookbinder.read import package
from bookbinder.read.book import FOLDER

__all__ = ["page", "setup"]

_MARK = re.compile(r"^% public names of (\w+)$", re.MULTILINE)
_CODE = re.compile(r"(?:\A|(?<=\n\n))(?:>>> .*(?:\n.+)*|    .*(?:\n+    .*)*)")  # an example, or an indented block
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
    """Link the first use of each name that a chapter imports, or that stands as `package.name`, to the reference."""
    name, book = docname.removeprefix(f"{FOLDER}/"), app.bookbinder_book
    imported = package.of(book.root)
    where = next((page for page in app.env.found_docs if page.removeprefix(f"{FOLDER}/") == "reference"), None)
    if not imported.name or where is None or name not in {chapter.name for chapter in book.chapters}:
        return
    code = "\n".join(cell.source for cell in book.chapter(name).cells)
    known = anchors(book.root / imported.folder)
    left = {used: known[used] for used in imports(code, imported.name) if used in known}
    left |= {f"{imported.name}.{used}": anchor for used, anchor in known.items()}
    for literal in list(doctree.findall(nodes.literal)):
        used = re.sub(r"\(.*\)$", "", literal.astext(), flags=re.DOTALL)
        if used in left and not _within(literal, (nodes.reference, nodes.title)):
            link = nodes.reference("", "", refuri=f"{app.builder.get_relative_uri(docname, where)}#{left.pop(used)}")
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
    return {one.split()[0] for names in lists for one in re.split(r"[,\n]", names.strip("()")) if one.strip()}


@cache
def anchors(folder):
    """The anchor on the page of each public name that one module alone has."""
    found = re.findall(r"^\((reference-[\w-]+)\)=\n\n### `(\w+)`$", page(folder), re.MULTILINE)
    names = Counter(name for _, name in found)
    return {name: anchor for anchor, name in found if names[name] == 1}


def page(folder):
    """The Markdown for the package in a folder: a section for each public module, and in it one for each name.

    Args:
      folder: of the package; the docstring of its `__init__.py` says what each module does, in the order of the page.
        A module marked "(inside)" there is used by the package's others alone, and left out.
    """
    folder = Path(folder).resolve()
    package = folder.name
    about = ast.get_docstring(_tree(folder / "__init__.py"))
    sections = []
    for module, does in re.findall(rf"^- `{package}\.([\w.]+)`: (.*)(?<! \(inside\))$", about, re.MULTILINE):
        tree = _tree(_file(folder.parent, f"{package}.{module}"))
        sections += [f"## `{package}.{module}`: {does}", _prose(ast.get_docstring(tree).partition("\n\n")[2])]
        anchor = module.replace(".", "-").replace("_", "-")
        for name in _public(tree):
            node = _defined(folder, tree, name)
            sort = "class-" if isinstance(node, ast.ClassDef) else ""  # `Plan` and `plan` have anchors of their own
            sections += [
                f"(reference-{anchor}-{sort}{name.lower().replace('_', '-')})=",
                f"### `{name}`",
                *_entry(node),
            ]
    return "\n\n".join(filter(None, sections))


def _file(root, module):
    """The file of a module, or of a package."""
    place = root.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _tree(file):
    """A module as a tree, with its annotations without quotes, which those need that name what comes further down."""
    tree = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            quoted = getattr(node, field, None)
            if isinstance(quoted, ast.Constant) and isinstance(quoted.value, str):
                setattr(node, field, ast.parse(quoted.value, mode="eval").body)
    return tree


def _public(tree):
    """The names in `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return ast.literal_eval(node.value)
    return []


def _defined(folder, tree, name):
    """The node that defines a name, in the module that it is imported from, if it is."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name and not _is_overload(node):
            return node
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return node
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return _defined(folder, _tree(_file(folder.parent, node.module)), name)
    raise ValueError(f"{name} is in __all__, but not defined")


def _is_overload(node):
    """Whether a definition only says a type: the one that does the work follows."""
    return any(getattr(mark, "id", None) == "overload" for mark in node.decorator_list)


def _entry(node):
    """A name's signature, docstring, and methods, as blocks of Markdown."""
    if isinstance(node, ast.Assign):
        return [_fence(textwrap.shorten(ast.unparse(node), 3 * _WIDTH, placeholder=" ..."))]
    if isinstance(node, ast.FunctionDef):
        return [_fence(_signature(node.name, node.args, node.returns)), *_documented(node)]
    blocks = [_fence(_class(node)), *_documented(node)]
    items = []
    for definition in node.body:
        if isinstance(definition, ast.FunctionDef) and not definition.name.startswith("_"):
            is_property = any(getattr(mark, "id", None) == "property" for mark in definition.decorator_list)
            result = _result(definition.returns)
            head = result.replace(" -> ", ": ") if is_property else f"({_spaced(_without_self(definition))}){result}"
            said = [block for block in _documented(definition) if block]
            items.append(_item(f"`{definition.name}{head}`", "\n\n".join(said)))
    return [*blocks, *(["**Properties and methods**", "\n\n".join(items)] if items else [])]


def _without_self(function):
    arguments = function.args
    return ast.arguments(**{**dict(ast.iter_fields(arguments)), "args": arguments.args[1:]})


def _spaced(arguments):
    """Arguments as people write them."""
    return re.sub(r"(: [^=,]+(?:\[[^=]*\][^=,]*)?)=", r"\1 = ", ast.unparse(arguments))


def _result(returns):
    return f" -> {ast.unparse(returns)}" if returns else ""


def _signature(name, arguments, returns=None):
    """How a function is called, as Python; with a line for each argument if it is long."""
    text = _spaced(arguments)
    result = _result(returns)
    if len(name) + len(text) + len(result) + 2 <= _WIDTH:
        return f"{name}({text}){result}"
    tokens = re.findall(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|.", text)  # texts are one each
    lines, depth = [""], 0
    for token in tokens:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token, 0)
        if token == "," and not depth:
            lines.append("")
        else:
            lines[-1] += token
    lines = ",\n    ".join(map(str.strip, lines))
    return f"{name}(\n    {lines},\n){result}"


def _class(node):
    """A class as one makes it: from its fields, if it is a dataclass, or from its `__init__`."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return _signature(node.name, _without_self(member))
    fields = [
        member for member in node.body if isinstance(member, ast.AnnAssign) and not member.target.id.startswith("_")
    ]
    if fields and any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
        shown = [f"{member.target.id}: {ast.unparse(member.annotation)}" + _default(member.value) for member in fields]
        whole = f"{node.name}({', '.join(shown)})"
        return whole if len(whole) <= _WIDTH else f"{node.name}(\n    " + ",\n    ".join(shown) + ",\n)"
    bases = ", ".join(map(ast.unparse, node.bases))
    return f"class {node.name}({bases})" if bases else f"class {node.name}"


def _default(value):
    return f" = {ast.unparse(value)}" if value is not None else ""


def _documented(node):
    """A docstring's parts as blocks: prose, examples, and lists of what it describes."""
    blocks, part, lines = [], None, []
    for line in [*(ast.get_docstring(node) or "").splitlines(), "End:"]:
        head = re.fullmatch(r"(\w+):", line)
        if head and (head[1] in _PARTS or line == "End:"):
            blocks += _part(part, lines)
            part, lines = head[1], []
        else:
            if part and line and not line.startswith(" "):  # prose after a list
                blocks += _part(part, lines)
                part, lines = None, []
            lines.append(line)
    return [block for block in blocks if block]


def _part(part, lines):
    text = "\n".join(lines)
    if part is None:
        return [_prose(text)]
    text = textwrap.dedent(text).strip()
    if part in ("Returns", "Yields"):
        return [f"**{part}**", _prose(text)]
    items = re.findall(r"^(\S[^\n]*?): +(.*(?:\n(?:[ ].*)?)*)", text, re.MULTILINE)
    names = {"Args": "Arguments"}.get(part, part)
    return [f"**{names}**", "\n\n".join(_item(_names(name), _dedented(explanation)) for name, explanation in items)]


def _names(text):
    """Names before a colon, each as code."""
    return ", ".join(f"`{name}`" for name in re.split(r", ", text))


def _dedented(text):
    first, _, rest = text.partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}".strip()


def _item(term, text):
    """An entry of a definition list."""
    return f"{term}\n: " + textwrap.indent(_prose(text), "  ").strip()


def _prose(text):
    """Markdown, with its examples and its indented blocks as fenced code: coloured where it is Python."""
    return _CODE.sub(lambda block: _fence(textwrap.dedent(block[0])), text).strip()


def _fence(code):
    try:
        ast.parse(code)
        language = "python"
    except SyntaxError:
        language = "python" if re.match(r"\w+\(|>>> ", code) else "text"
    return f"```{language}\n{code}\n```"
