"""The rules of writing.md, held against every chapter."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from itertools import pairwise

import claims
import pytest
from places import ROOT
from repository import BOOK

import shardlab
from bookbinder.read import excerpts

PROGRAMS = [chapter for chapter in BOOK.chapters if chapter.runs]


def ids(chapter):
    return chapter.name


def prose(chapter):
    """The text of a chapter without its front matter and code that runs, by line number."""
    return dict(claims.prose(chapter, "code-cell"))


@pytest.mark.parametrize("chapter", PROGRAMS, ids=ids)
def test_a_chapter_starts_by_asking_for_devices(chapter):
    one, many = r"from shardlab import emulate\n\nemulate\(\d+", r".*\bgroup = start\(\d+"
    assert re.match(f"{one}|{many}", chapter.cells[0].source, re.DOTALL)


@pytest.mark.parametrize("chapter", PROGRAMS, ids=ids)
def test_front_matter_is_the_one_of_jupytext(chapter):
    matter = chapter.front_matter
    assert matter["jupytext"]["text_representation"] == {"extension": ".md", "format_name": "myst"}
    assert matter["kernelspec"] == {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }


@pytest.mark.parametrize("chapter", PROGRAMS, ids=ids)
def test_jupytext_reads_the_same_cells_as_the_build(chapter):
    import jupytext

    notebook = jupytext.read(ROOT / chapter.path)
    cells = [
        cell.source for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()
    ]
    assert cells == [cell.source for cell in chapter.cells]


@pytest.mark.parametrize("chapter", PROGRAMS, ids=ids)
def test_code_fits_the_page_and_is_small(chapter):
    for cell in chapter.cells:
        wide = [line for line in cell.source.splitlines() if len(line) > 80]
        assert not wide, f"{chapter.path}:{cell.line}: longer than 80 characters: {wide[0]}"
        # what readers copy also says what it refuses
        tags = chapter.notebook.cells[cell.position].metadata.get("tags", ())
        most = 36 if excerpts.COPY in tags else 24
        assert len(cell.source.splitlines()) <= most, (
            f"{chapter.path}:{cell.line}: a cell of more than {most} lines"
        )


# Where the default is what a cell shows.
DEFAULT_AXES = {
    'jax.make_mesh((8,), ("d",))',
    'jax.sharding.Mesh(devices, ("d",))',
    'jax.sharding.AbstractMesh((8,), ("d",))',
    'jax.make_mesh((2, n // 2), ("x", "y"))',
}


def meshes_of_default_axes(source):
    """The calls in a program that make a mesh and leave the types of its axes to JAX, with their
    lines.
    """
    if source.startswith("%%writefile -a"):  # a part of a file, which may begin inside a class
        return
    for call in ast.walk(ast.parse(re.sub(r"^(\s*)%.*", r"\1pass", source, flags=re.MULTILINE))):
        if not isinstance(call, ast.Call):
            continue
        function, written = ast.unparse(call.func), ast.get_source_segment(source, call)
        is_empty = (
            len(call.args) > 1 and isinstance(call.args[1], ast.Tuple) and not call.args[1].elts
        )
        is_mesh = (
            re.fullmatch(r"jax\.make_mesh|(jax\.sharding\.)?(Abstract)?Mesh", function)
            and not is_empty
        )
        if is_mesh and not {"axis_types", None} & {keyword.arg for keyword in call.keywords}:
            yield call.lineno, written


@pytest.mark.parametrize("chapter", PROGRAMS, ids=ids)
def test_every_mesh_says_the_types_of_its_axes(chapter):
    """Since what JAX takes by default has changed twice."""
    for cell in chapter.cells:
        for line, written in meshes_of_default_axes(cell.source):
            assert written in DEFAULT_AXES, (
                f"{chapter.path}:{cell.line + line - 1}: say axis_types= in {written}"
            )


def test_every_mesh_in_the_package_says_the_types_of_its_axes():
    """In code and in the examples of docstrings."""
    call = re.compile(r"(?:jax\.make_mesh|\bMesh)\(([^()]|\([^()]*\)|\((?:[^()]|\([^()]*\))*\))*\)")
    for path in (ROOT / "src" / "shardlab").rglob("*.py"):
        for match in call.finditer(path.read_text()):
            empty = "dtype=object), ())" in match[0]
            assert empty or re.search(r"axis_types|\*\*|\.\.\.", match[0]), f"{path}: {match[0]}"


@pytest.mark.parametrize("chapter", PROGRAMS, ids=ids)
def test_claims_are_asserted(chapter):
    asserting = [
        cell
        for cell in chapter.cells
        if re.search(r"^\s*(assert |check\()", cell.source, re.MULTILINE)
    ]
    assert 3 * len(asserting) >= len(chapter.cells), (
        f"only {len(asserting)} of {len(chapter.cells)} cells assert anything"
    )


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=ids)
def test_no_leftovers(chapter):
    forbidden = r"TODO|FIXME|XXX|lorem ipsum|coming soon|jax\._src|!pip|/home/|/root/|\t|\s+$"
    for n, line in enumerate(chapter.text.splitlines(), 1):
        assert not re.search(forbidden, line), f"{chapter.path}:{n}: {line!r}"
    for n, line in prose(chapter).items():
        said = re.search(r"\b(simply|just|obviously|of course)\b", line)
        assert not said, f"{chapter.path}:{n}: says {said[0]!r}, which helps nobody"


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=ids)
def test_headings_come_in_order(chapter):
    levels = [
        len(m[1]) for m in re.finditer(r"^(#+) ", "\n".join(prose(chapter).values()), re.MULTILINE)
    ]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


NO_CHAPTERS = (
    "index",
    "lab",
    "ledger",
    "planner",
    "recipes",
    "shardlab",
    "your_centre",
)  # programs all the same


@pytest.mark.parametrize("chapter", [c for c in PROGRAMS if c.name not in NO_CHAPTERS], ids=ids)
def test_a_chapter_is_complete(chapter):
    opening = re.search(
        r"^# .*?\n\n(.*?)\n\n\*\*What we do here", chapter.text, re.DOTALL | re.MULTILINE
    )
    assert opening, "no promise: a paragraph that starts with **What we do here.**"
    words = " ".join(line for line in opening[1].split("\n") if not line.startswith("% "))
    assert len(words.split()) <= 120 and re.search(r"\d|\b(a|one|two|eight) year", words)
    headings = re.findall(r"^## (.*)$", chapter.text, re.MULTILINE)
    assert headings[-3:] == ["Summary", "Exercises", "Where to read on"]
    assert "**Predict.**" in chapter.text and re.search(
        r"^\s*with raises\(", chapter.text, re.MULTILINE
    )
    assert "{admonition} Takeaway" in chapter.text


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=lambda chapter: chapter.name)
def test_few_predictions_and_takeaways_so_that_each_surprises(chapter):
    assert chapter.text.count("**Predict.**") <= 6
    assert chapter.text.count("{admonition} Takeaway") <= 6


def test_what_a_chapter_asks_to_read_first_comes_before_it():
    order = [chapter.name for chapter in BOOK.chapters]
    wrong = {
        chapter.name: name
        for chapter in BOOK.chapters
        for name in chapter.after
        if order.index(name) > order.index(chapter.name)
    }
    assert not wrong and sum(len(chapter.after) for chapter in BOOK.chapters) > 30


def test_labels_are_unique_and_begin_with_their_chapter():
    seen = {}
    for chapter in BOOK.chapters:
        for label in re.findall(r"^(?::label: |\()([\w-]+)\)?=?$", chapter.text, re.MULTILINE):
            assert label not in seen, f"{label} is in {seen[label]} and in {chapter.path}"
            assert label.startswith(f"{chapter.name}-"), (
                f"{chapter.path}: label {label} should begin with {chapter.name}-"
            )
            seen[label] = chapter.path


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=ids)
def test_figures_have_alternative_texts(chapter):
    for n, line in prose(chapter).items():
        inline = re.search(r"!\[(.*?)\]\((.*?)\)", line)
        assert not inline or len(inline[1]) > 10, (
            f"{chapter.path}:{n}: an image without a description"
        )
    for block in re.findall(r"\{(?:image|figure)\} \S+\n((?::.*\n)*)", chapter.text):
        alt = re.search(r"^:alt: (.*)$", block, re.MULTILINE)
        assert alt and len(alt[1]) > 10 and not re.fullmatch(r"\S+\.\w+", alt[1]), (
            f"{chapter.path}: {block}"
        )
    for cell in chapter.notebook.cells:
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt")
        assert alt is None or (len(alt) > 10 and not re.fullmatch(r"\S+\.\w+", alt)), (
            f"{chapter.path}: {alt}"
        )


# Chapters show and explain the first two line by line; nobody calls the third.
TOLD_ELSEWHERE = (
    "shardlab.networks.transformer",
    "shardlab.networks.decoder",
    "shardlab.report.findings",
)
NAMES = set(re.findall(r"^- `([\w.]+)`:", shardlab.__doc__, re.MULTILINE)) - {*TOLD_ELSEWHERE}
MODULES = [import_module(name) for name in sorted(NAMES)]
PUBLIC = [
    (module, name)
    for module in MODULES
    for name in module.__all__
    if callable(getattr(module, name))
]


@pytest.mark.parametrize(
    ("module", "name"), PUBLIC, ids=lambda value: getattr(value, "__name__", value)
)
def test_what_readers_import_is_documented(module, name):
    thing = getattr(module, name)
    assert len(inspect.getdoc(thing)) > 30
    if inspect.isfunction(thing):
        for argument in inspect.signature(thing).parameters:
            assert (
                re.search(rf"(Args|Arguments):.*\b{argument}\b", thing.__doc__, re.DOTALL)
                or len(inspect.signature(thing).parameters) == 1
            ), f"{name}: {argument} is not described"
    else:
        for attribute, value in vars(thing).items():
            if not attribute.startswith("_") and (
                inspect.isfunction(value) or isinstance(value, property)
            ):
                assert inspect.getdoc(value), f"{name}.{attribute}"


def test_modules_import_in_the_readme_order_without_jupyter():
    """shardlab needs NumPy and JAX only, and knows nothing of bookbinder."""
    program = """
import sys
import re
from importlib import import_module
import shardlab
for name in re.findall(r"^- `([\\w.]+)`:", shardlab.__doc__, re.MULTILINE):
    if name not in {"shardlab.networks.decoder", "shardlab.networks.gradients"} and not name.endswith(".pytest_plugin"):
        import_module(name)
foreign = {"bookbinder", "matplotlib", "IPython", "rich", "sphinx", "nbclient", "ipykernel", "ipyparallel", "libtpu"}
foreign |= {"pytest"}  # except in its plugin
foreign &= set(sys.modules)
assert not foreign, foreign
"""  # noqa: E501
    subprocess.run([sys.executable, "-c", program], check=True)


# Where cells show a calculator besides the explorer's own page.
EMBEDDED = {
    "arrays": ["layout"],
    "explorer": ["layout", "matmul", "fit"],
}


def test_each_calculator_stands_in_the_chapter_that_teaches_it(book):
    found = {
        chapter.name: re.findall(
            r"^explorer\.(\w+)\(", "\n".join(cell.source for cell in chapter.cells), re.MULTILINE
        )
        for chapter in book.chapters
    }
    assert {name: parts for name, parts in found.items() if parts} == EMBEDDED
