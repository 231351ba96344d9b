"""What readers copy can be pasted, and each function of it has a contract whose words are the
page's.
"""

import contextlib
import subprocess
import sys

import contract as contracts_of_tests
import pytest
from repository import BOOK
from tiny_book import FRONT

from bookbinder.page import contracts
from bookbinder.read import excerpts
from bookbinder.read.book import BookError, load

pytestmark = pytest.mark.reads("book", "_config.yml", "_toc.yml", "src", "tests/contracts")

CONTRACTS = contracts.of_book(BOOK.root)
MARKED = {
    chapter.name: found for chapter in BOOK.chapters if (found := excerpts.of_chapter(chapter))
}


@pytest.mark.parametrize("name", MARKED)
def test_each_function_has_a_contract_that_says_what_the_page_says(name):
    for excerpt in MARKED[name]:
        own = [c for c in CONTRACTS if c.chapter == name and {*c.names} & {*excerpt.names}]
        missing = set(excerpt.names) - {function for c in own for function in c.names}
        line = f"book/{name}.md:{excerpt.line}"
        assert not missing, (
            f"{line}: no contract in tests/contracts/test_{name}_contract.py: {missing}"
        )
        for each in own:
            assert each.says == excerpt.takes, f"{line}: its contract says otherwise"


def test_each_contract_is_of_a_function_that_readers_copy():
    copied = {
        (name, function) for name, found in MARKED.items() for e in found for function in e.names
    }
    assert {(c.chapter, name) for c in CONTRACTS for name in c.names} <= copied
    assert all(c.draws >= 10 for c in CONTRACTS)


@pytest.mark.parametrize("name", MARKED)
def test_each_excerpt_can_be_pasted_into_an_empty_program(name):
    for excerpt in MARKED[name]:
        space = contracts_of_tests._loaded(name, excerpt.position)
        assert all(callable(space[function]) for function in excerpt.names)


ABOVE = "**To copy:** `f` takes a number."


def excerpt_of(tiny, *cells, above=ABOVE):
    """The last of some cells, which has the tag, in a chapter of a small book."""
    blocks = [f"```{{code-cell}}\n{cell}\n```\n" for cell in cells[:-1]]
    last = f"```{{code-cell}}\n:tags: [copy]\n\n{cells[-1]}\n```\n"
    tiny.write("book/one.md", FRONT + "\n".join(["# One\n", *blocks, above + "\n", last]))
    (found,) = excerpts.of_chapter(load(tiny.root).chapter("one"))
    return found


def test_an_excerpt_has_what_it_needs_and_no_more(tiny):
    excerpt = excerpt_of(
        tiny,
        "import math, json\nfrom os import path, sep\nTAU = 2 * math.pi\nmesh = json.loads('1')",
        "def unused():\n    return mesh",
        "def half(mesh):\n    return mesh / 2",
        "def f(x):\n    return half(TAU * x) if sep else None",
    )
    assert excerpt.takes == "`f` takes a number." and excerpt.names == ("f",)
    assert excerpt.code == (
        "import math\nfrom os import sep\n\nTAU = 2 * math.pi\n\n"
        "def half(mesh):\n    return mesh / 2\n\n"
        "def f(x):\n    return half(TAU * x) if sep else None\n"
    )


def test_what_completes_a_function_comes_along(tiny):
    excerpt = excerpt_of(
        tiny,
        "import jax",
        "@jax.custom_vjp\ndef g(x):\n    return x",
        "def back(saved, ct):\n    return (ct,)",
        "g.defvjp(lambda x: (x, None), back)",
        "def f(x):\n    return g(x)",
    )
    assert "g.defvjp(lambda x: (x, None), back)" in excerpt.code and "def back" in excerpt.code


def test_a_cell_that_runs_in_all_processes_is_copied_without_the_line_that_says_so(tiny):
    excerpt = excerpt_of(
        tiny, "%%processes\nimport math", "%%processes\ndef f(x):\n    return math.sqrt(x)"
    )
    assert excerpt.code == "import math\n\ndef f(x):\n    return math.sqrt(x)\n"


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["mesh = open(0)", "def f():\n    return mesh"], "f uses mesh, a value of this chapter's"),
        (["", "def f():\n    return nothing"], "f uses nothing, which no cell above defines"),
        (["", "def f():\n    return 1\n\nf()"], "only defines functions"),
        (["", "x = 1"], "defines no function"),
    ],
)
def test_a_cell_that_cannot_be_copied_is_named_with_its_line(tiny, cells, message):
    with pytest.raises(BookError, match=message) as error:
        excerpt_of(tiny, *cells)
    assert str(error.value).startswith("book/one.md:")


def test_a_cell_without_its_paragraph_is_named(tiny):
    with pytest.raises(BookError, match='begins with "\\*\\*To copy:\\*\\*"'):
        excerpt_of(tiny, "", "def f():\n    return 1", above="Some words.")


@pytest.mark.parametrize(
    ("value", "text", "named"),
    [
        (-1, "size=-1: take at least 1", True),
        (-1, "a size of 1", False),
        (1, "size=-1", False),
        (12, "12 rows, 4,096 columns", True),
        (4096, "12 rows, 4,096 columns", True),
        (2, "12 rows", False),
        ("layers/up", "layers/up has the shape (3, 5)", True),
        (0.5, "0.5 is no factor", True),
    ],
)
def test_a_refusal_has_to_name_the_whole_value(value, text, named):
    space = {}
    exec(compile("def refuse(text): raise ValueError(text)", "<excerpt of a test>", "exec"), space)
    allowed = contracts_of_tests.refusal(True, value)
    with contextlib.nullcontext() if named else pytest.raises(ValueError), allowed:
        space["refuse"](text)


FAILS = '''
from contract import contract, refusal

@contract("stencils", "widen", draws=10, points=[1, 2, 3])
def test_made_to_fail(widen, points):
    """Words."""
    {body}
'''


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("assert points < 3", "Again: .venv/bin/python -m pytest"),
        ("with refusal(True): raise ValueError(points)", "not the function's own"),
        ("with refusal(False, 0): widen(__import__('numpy').ones(0), 0, 'x')", "Again: "),
        ("__import__('time').sleep(60)", "Again: "),
    ],
)
def test_a_contract_that_fails_says_how_to_repeat_it(tmp_path, body, said):
    """A wrong result, an error that is not the function's, one that it need not raise, a hang."""
    plugin = (
        "import contract\ncontract.HANGS = 5\n"
        "pytest_addoption, pytest_configure = contract.add_options, contract.configure\n"
    )
    (tmp_path / "conftest.py").write_text(plugin)
    (tmp_path / "test_stencils.py").write_text(FAILS.format(body=body))
    paths = [str(BOOK.root / "tests" / "tools" / room) for room in ("chapters", "runs")]
    options = [
        "-p",
        "no:cacheprovider",
        "-q",
        "-c",
        "/dev/null",
        "-o",
        f"pythonpath={' '.join(paths)}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
    )
    left = contracts_of_tests.last_words("test_stencils_contract.py::test_made_to_fail")
    assert done.returncode and said in done.stdout + left, done.stdout + done.stderr
    assert ("Timeout" in left) == ("sleep" in body)
