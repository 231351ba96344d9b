"""`shardlab upgrade`: list the lines of programs that JAX 0.8 to 0.12 have changed, with their new
form, and edit them if asked.
"""

import ast
import io
import json
import os
import re
import sys
import tokenize
import warnings
from contextlib import suppress
from pathlib import Path

from shardlab._arguments import file_bytes, plain
from shardlab.cli import changes
from shardlab.cli.arguments import Wrong
from shardlab.cli.changes import OLD_MAP, TPU, Names, affected, guarded, mapped

ABOUT = "list the lines of programs that JAX 0.8 to 0.12 have changed, with their new form"
EXAMPLES = """\
examples:
  shardlab upgrade train.py model.py
  shardlab upgrade train.py --write
  shardlab upgrade notebook.ipynb chapter.md --json

It reads Python files, notebooks (.ipynb) and Markdown with cells of code (.md), and runs nothing. A line that begins with ?
depends on values, such as the axes of a mesh that another file makes. Not listed: what getattr, strings or other libraries
reach, and what stands under a guard, such as `try` with ImportError or `if hasattr(...)`. With --write, a Python file is
edited where the new form means the same, and only if it can be read again. The exit status is 1 if something is listed that
was not edited, and 2 if a file could not be read.
"""  # noqa: E501


def add_arguments(command):
    """Add the options of the command to its parser."""
    command.add_argument("files", nargs="+", metavar="FILE", help="a program: .py, .ipynb or .md")
    command.add_argument(
        "--write", action="store_true", help="edit what has a new form that means the same (.py)"
    )


def run(options):
    """Run the command; returns the exit status."""
    records, unread = [], False
    for name in dict.fromkeys(options.files):
        try:
            records += _of_file(name, options.write)
        except Wrong as wrong:
            unread = True
            print(plain(f"shardlab upgrade: {wrong}", 600), file=sys.stderr)
    if options.json:
        print(json.dumps(records, indent=1))
    else:
        print(_text(records, len(options.files)))
    left = any(not record["edited"] for record in records)
    return 2 if unread else int(left)


def _of_file(name, write):
    """What is affected in a file, as records; edits it first."""
    try:
        content = file_bytes(name)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        hint = "; name the files in it, such as src/*.py" if os.path.isdir(name) else ""
        raise Wrong(f"{name}: {said}{hint}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Wrong(f"{name}: byte {error.start} is no UTF-8; save the file as UTF-8") from None
    code, places = _program(name, text)
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(code)
        behind = guarded(tree)
        found = [one for one in affected(tree) if one.node not in behind]
        edits = _edits(tree, text, found, behind) if write and _is_python(name) else []
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = _where(name, places(line)) if line else name
        said = getattr(error, "msg", None) or "it is nested too deeply"
        raise Wrong(f"{where}: this is no Python: {said}") from None
    done = _written(name, content, text, edits) if edits else set()
    lines = code.split("\n")
    return [
        {"file": name, "cell": places(one.line)[0], "line": places(one.line)[1],
         "name": one.name, "since": one.since, "says": one.says, "new": one.new,
         "sure": one.sure, "code": lines[one.line - 1].strip(), "edited": _key(one) in done}
        for one in _listed(found)
    ]  # fmt: skip


def _is_python(name):
    return Path(name).suffix not in (".ipynb", ".md")


def _where(name, place):
    cell, line = place
    return f"{name}, cell {cell}, line {line}" if cell else f"{name}:{line}"


def _program(name, text):
    """The code of a file, and a function from its lines to cells (or None) and lines in them."""
    suffix = Path(name).suffix
    if suffix == ".ipynb":
        return _of_notebook(name, text)
    if suffix == ".md":
        lines = text.splitlines()
        blank, is_code = ["" for _ in lines], False
        for number, line in enumerate(lines):
            if line.startswith("```"):
                is_code = bool(re.match(r"```\s*(python|py|\{code-cell\}.*)\s*$", line))
            elif is_code and not re.match(r":\w[\w-]*:", line):
                blank[number] = _without_magic(line)
        return "\n".join(blank), lambda line: (None, line)
    return text.replace("\r\n", "\n").replace("\r", "\n"), lambda line: (None, line)


def _of_notebook(name, text):
    """All cells of code as one program, so that a cell knows the imports above it."""
    try:
        cells = [(n, c["source"]) for n, c in enumerate(json.loads(text)["cells"], 1)
                 if c["cell_type"] == "code"]  # fmt: skip
        sources = [(n, s if isinstance(s, str) else "".join(s)) for n, s in cells]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Wrong(f"{name}: no notebook of format 4") from None
    lines, origins = [], []
    for number, source in sources:
        own = [_without_magic(line) for line in source.split("\n")]
        if source.startswith("%%"):
            try:
                ast.parse("\n".join(own))
            except (SyntaxError, ValueError):
                continue  # another language
        lines += own
        origins += [(number, line) for line in range(1, len(own) + 1)]
    return "\n".join(lines), lambda line: origins[min(line, len(origins)) - 1]


def _without_magic(line):
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", line)


def _key(one):
    return one.line, one.name, one.says


def _listed(found):
    """What is affected in a program, by line, each once."""
    unique = {_key(one): one for one in found}
    return sorted(unique.values(), key=lambda one: (one.line, one.name))


def _text(records, files):
    if not records:
        return f"nothing is listed in {files} file{'s' * (files != 1)}"
    lines = []
    for one in records:
        mark = "edited: " if one["edited"] else "" if one["sure"] else "? "
        where = plain(_where(one["file"], (one["cell"], one["line"])))
        lines += [
            f"{mark}{where}: {plain(one['name'])} {one['says']}, since {one['since']}",
            f"    {plain(one['code'], 100)}",
            f"    new: {plain(one['new'])}",
        ]
    sure = sum(one["sure"] for one in records)
    lines += ["", f"{sure} affected, {len(records) - sure} perhaps"]
    return "\n".join(lines)


# --- edits ----------------------------------------------------------------------------------------


class _Text:
    """A program's text, and the places of its nodes in it, in characters."""

    def __init__(self, text):
        self.text = text
        self._lines = [0, *(end.end() for end in re.finditer(r"\r\n|\r|\n", text))]

    def place(self, line, column):
        start = self._lines[line - 1]
        row = self.text[start : self._lines[line] if line < len(self._lines) else None]
        return start + len(row.encode()[:column].decode())

    def start(self, node):
        return self.place(node.lineno, node.col_offset)

    def end(self, node):
        return self.place(node.end_lineno, node.end_col_offset)

    def of(self, node):
        return self.text[self.start(node) : self.end(node)]

    def last_argument(self, call, new):
        """The edit that adds an argument to a call."""
        written = self.of(call)
        tokens = [
            one
            for one in tokenize.generate_tokens(io.StringIO(f"({written})").readline)
            if one.type not in (tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE)
        ]
        closing = max(n for n, one in enumerate(tokens[:-1]) if one.string == ")") - 1
        before = tokens[closing - 1].string
        end = self.end(call) - 1
        return end, end, new if before in ("(", ",") else f", {new}"


def _edits(tree, text, found, behind):
    """The edits of a program: for each what it settles, and what to replace by what.

    Args:
      tree, text: of the program.
      found: what is affected in it.
      behind: the nodes that are guarded.
    """
    page, names = _Text(text), Names(tree)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and n not in behind]
    edits = []
    for one in found:
        if one.node is None or not one.sure:
            continue
        for make in (_edit_of_mesh, _edit_of_name, _edit_of_variance, _edit_of_map):
            if new := make(one, page, names, calls, tree):
                edits.append((_key(one), new))
    if any(key[1] == OLD_MAP for key, _ in edits):  # with the import, its calls
        calls_of_old = f"{OLD_MAP}.shard_map"
        edits += [(_key(one), []) for one in found if one.name == calls_of_old]
    return edits


def _axis_type(tree, names, node):
    """How a program can write AxisType."""
    for written in ("jax.sharding.AxisType", "AxisType"):
        parsed = ast.parse(written, mode="eval").body
        if names.written(parsed, node) == "jax.sharding.AxisType":
            return written
    return ""


def _edit_of_mesh(one, page, names, calls, tree):
    if one.name != "jax.make_mesh":
        return None
    call = one.node
    keywords = {keyword.arg: keyword for keyword in call.keywords}
    if "axis_shapes" in one.says:
        given = keywords["axis_shapes"]
        if call.args or call.keywords[0] is not given:
            return None
        start = page.start(given)
        return [(start, start + re.match(r"axis_shapes\s*=\s*", page.text[start:]).end(), "")]
    axes = (
        call.args[1] if len(call.args) > 1 else getattr(keywords.get("axis_names"), "value", None)
    )
    kind = _axis_type(tree, names, call)
    if not kind or axes is None:
        return None
    if isinstance(axes, ast.Tuple | ast.List):
        count = str(len(axes.elts))
    elif isinstance(axes, ast.Name | ast.Attribute):
        count = f"len({page.of(axes)})"
    else:
        return None
    return [page.last_argument(call, f"axis_types=({kind}.Auto,) * {count}")]


# Names that another name replaces wherever they stand after a dot.
RENAMED = {
    "jax.numpy.empty": "zeros",
    "jax.numpy.empty_like": "zeros_like",
    f"{TPU}.TPUCompilerParams": "CompilerParams",
}


def _edit_of_name(one, page, names, calls, tree):
    node = one.node.func if isinstance(one.node, ast.Call) else one.node
    if not isinstance(node, ast.Attribute):
        return None
    if one.name == "jax.core.get_aval" and page.of(node) == "jax.core.get_aval":
        return [(page.start(node), page.end(node), "jax.typeof")]
    if one.name in RENAMED and names.meaning(node) == one.name:
        return [(page.end(node) - len(node.attr), page.end(node), RENAMED[one.name])]
    moved = one.name.removeprefix(f"{TPU}.")
    if moved in ("ANY", "semaphore_read", "semaphore_signal", "semaphore_wait"):
        pallas = ast.parse("pl", mode="eval").body
        if names.written(pallas, node) == changes.PALLAS:
            return [(page.start(node), page.end(node), f"pl.{moved}")]
    return None


def _edit_of_variance(one, page, names, calls, tree):
    """pvary(x, axis) as pcast(x, axis, to="varying"), if all uses are such calls."""
    if one.name != "jax.lax.pvary":
        return None
    called = [call for call in calls if names.meaning(call.func) == one.name]
    uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute)]
    uses = [n for n in uses if names.meaning(n) == one.name]
    if len(uses) != len(called) or any(len(call.args) != 2 for call in called):
        return None
    if isinstance(one.node, ast.ImportFrom):
        alias = next(a for a in one.node.names if a.name == "pvary")
        start = page.start(alias)
        return [(start, start + len("pvary"), "pcast")]
    call = next((c for c in called if one.node in (c, c.func)), None)
    if call is None:
        return None
    edits = [page.last_argument(call, 'to="varying"')]
    if page.of(call.func).endswith("pvary"):
        end = page.end(call.func)
        edits.append((end - len("pvary"), end, "pcast"))
    return edits


def _edit_of_map(one, page, names, calls, tree):
    """shard_map of jax.experimental as jax.shard_map, if all uses are calls that can be edited."""
    if "check_rep" in one.says and one.name == "jax.shard_map":
        keyword = next(k for k in one.node.keywords if k.arg == "check_rep")
        start = page.start(keyword)
        return [(start, start + len("check_rep"), "check_vma")]
    if one.name != OLD_MAP or not isinstance(one.node, ast.ImportFrom):
        return None
    full = f"{OLD_MAP}.shard_map"
    called = [call for call in calls if mapped(call, names)[0] == full]
    uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute)]
    uses = [n for n in uses if names.meaning(n) == full]
    is_plain = one.node.module == OLD_MAP and len(one.node.names) == 1
    if not is_plain or len(uses) != len(called):
        return None
    edits = []
    for call in called:
        if any(k.arg in ("auto", None) for k in call.keywords):
            return None
        arguments = mapped(call, names)[1]
        if arguments is not call.args and len(arguments) > 1:
            return None
        if any(isinstance(argument, ast.Starred) for argument in arguments):
            return None
        for argument, name in zip(
            arguments[1:], ("mesh", "in_specs", "out_specs", "check_vma"), strict=False
        ):
            edits.append((page.start(argument), page.start(argument), f"{name}="))
        for keyword in call.keywords:
            if keyword.arg == "check_rep":
                start = page.start(keyword)
                edits.append((start, start + len("check_rep"), "check_vma"))
    start = page.start(one.node)
    head = re.match(r"from\s+[\w.]+\s+import", page.text[start:])
    return [*edits, (start, start + head.end(), "from jax import")] if head else None


def _written(name, content, text, edits):
    """Edit a file, if what comes out is a program; returns what has been settled."""
    unique = sorted({edit for _, group in edits for edit in group}, reverse=True)
    new = text
    for start, end, replacement in unique:
        new = f"{new[:start]}{replacement}{new[end:]}"
    try:
        ast.parse(new)
    except (SyntaxError, ValueError):
        print(plain(f"{name}: not edited, as the result would be no Python"), file=sys.stderr)
        return set()
    mark = b"\xef\xbb\xbf" if content.startswith(b"\xef\xbb\xbf") else b""
    part = Path(f"{name}.{os.getpid()}.part")
    try:
        part.write_bytes(mark + new.encode())
        part.chmod(os.stat(name).st_mode)
        part.replace(os.path.realpath(name))
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise Wrong(f"{name}: {error.strerror}") from None
    return {key for key, _ in edits}
