"""Contracts of what readers copy: a function is right on inputs that nobody chose, or refuses them
in its own words.

A contract is a test of functions from a chapter's cells with the tag `copy`, loaded as a reader
would paste them. Hypothesis draws its inputs:

    @contract("stencils", "widen", draws=40, devices=DEVICES, points=[0, 1, 2, 5], kind=KINDS)
    def test_widen(widen, devices, points, kind):
        \"""What the paragraph above the cell says that it takes.\"""
        u = values(kind, (devices * points,))
        with refusal(points < 1, points):
            close(mapped(...)(u), np.pad(...))

A failure ends with the line that repeats it. `--case` tries one input, `--draws 100` a hundred
times as many.
"""

import ast
import faulthandler
import inspect
import linecache
import re
from functools import cache, partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from jax.sharding import AxisType
from places import ROOT
from repository import BOOK

from bookbinder.read import excerpts
from shardlab import start

DEVICES = (1, 2, 3, 4, 8)
KINDS = ("normal", "zeros", "ones", "tiny", "huge", "nan", "inf")
HANGS = 300  # seconds after which a draw counts as one that hangs
FOLDER = ROOT / "_build" / "contracts"  # where a draw that ends the process leaves its input
_OWN = "<excerpt "  # how the file names of excerpts begin
_drawn = SimpleNamespace(seed=0)  # of the input that is being tried


def add_options(parser):
    """The options of pytest for contracts."""
    parser.addoption("--draws", type=int, default=1, help="so many times the draws of contracts")
    parser.addoption("--case", help="the one input that a contract tries, as a dict")


def configure(config):
    """Declare the mark of contracts."""
    config.addinivalue_line("markers", "contract(chapter, names): of functions that readers copy")


def last_words(nodeid):
    """What a contract leaves whose process has ended: its input, and where it hung."""
    file = _left_by(nodeid)
    return f"\n{file.read_text()}" if file.is_file() else ""


def _left_by(nodeid):
    return FOLDER / f"{nodeid.rpartition('/')[2].replace('.py::', '-')}.txt"


def reads(chapter):
    """The mark of a file of contracts: what its tests depend on."""
    return pytest.mark.reads(f"book/{chapter}.md", "_config.yml", "_toc.yml", "src")


@cache
def excerpts_of(chapter):
    """The excerpts of a chapter."""
    return excerpts.of_chapter(BOOK.chapter(chapter))


@cache
def _loaded(chapter, position):
    excerpt = next(e for e in excerpts_of(chapter) if e.position == position)
    name = f"{_OWN}{chapter}:{excerpt.line}>"
    linecache.cache[name] = (len(excerpt.code), None, excerpt.code.splitlines(True), name)
    space = {"__name__": f"excerpt_of_{chapter}"}
    exec(compile(excerpt.code, name, "exec"), space)
    return space


def copied(chapter, name):
    """A function of a chapter, as it is where a reader has pasted its cell."""
    for excerpt in excerpts_of(chapter):
        if name in excerpt.names:
            return _loaded(chapter, excerpt.position)[name]
    raise LookupError(f"no cell of book/{chapter}.md with the tag `copy` defines {name}")


def pasted(count, code):
    """A function that returns processes, started once, in which `code()` has run; and the fixture
    that ends them after a file's tests.
    """

    @cache
    def group():
        processes = start(count)
        processes.run(code())
        return processes

    @pytest.fixture(autouse=True, scope="module")
    def ends():
        yield
        if group.cache_info().currsize:
            group().stop()

    return group, ends


def contract(chapter, *names, draws, quick=False, **choices):
    """A test of functions that readers copy.

    Args:
      chapter: where they stand.
      names: of the functions, all of one cell; the test gets them by their names.
      draws: how many inputs are drawn.
      quick: whether `make check` runs it.
      choices: for each part of an input its values, or a strategy of hypothesis. An input consists
        of plain values, so that it can be printed. The seed of `values` is one without being asked
        for.
    """
    parts = {"seed": st.integers(0, 10**6)} | {
        name: values if isinstance(values, st.SearchStrategy) else st.sampled_from(list(values))
        for name, values in choices.items()
    }

    place = f"tests/contracts/test_{chapter}_contract.py"

    def decorated(check):
        parameters = inspect.signature(check).parameters
        asked, takes_seed = [n for n in parameters if n in names], "seed" in parameters

        def attempt(case):
            _drawn.seed = case["seed"]
            arguments = {n: v for n, v in case.items() if n != "seed" or takes_seed}
            functions = {name: copied(chapter, name) for name in asked}
            again = f'Again: .venv/bin/python -m pytest {place}::{check.__name__} --case "{case}"'
            file = _left_by(f"{place}::{check.__name__}")
            file.parent.mkdir(parents=True, exist_ok=True)
            filtering = jax.config.jax_traceback_filtering
            jax.config.update("jax_traceback_filtering", "off")  # `refusal` asks who raised it
            with file.open("w") as left:
                print(again, file=left, flush=True)
                faulthandler.dump_traceback_later(HANGS, exit=True, file=left)
                try:
                    check(**functions, **arguments)
                except BaseException as error:
                    error.add_note(again)
                    raise
                finally:
                    faulthandler.cancel_dump_traceback_later()
                    jax.config.update("jax_traceback_filtering", filtering)
                    file.unlink()

        def test(request):
            if only := request.config.option.case:
                attempt(ast.literal_eval(only))
                return
            factor = request.config.option.draws
            drawn = settings(
                max_examples=draws * factor,
                derandomize=factor == 1,
                database=None,
                deadline=None,
                report_multiple_bugs=False,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            )(given(st.fixed_dictionaries(parts))(attempt))
            drawn()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.__module__ = check.__module__
        marks = [pytest.mark.contract(chapter, names)] + [pytest.mark.slow] * (not quick)
        test.pytestmark = marks
        return test

    return decorated


class refusal:
    """Around a call that a function may refuse: with an error of its own that names the values.

    An input that it need not refuse must work, and one that it accepts must come out right.
    """

    def __init__(self, allowed, *values):
        self.allowed, self.values = allowed, values

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is None or not self.allowed or not isinstance(error, Exception):
            return False
        while traceback.tb_next:
            traceback = traceback.tb_next
        file, text = traceback.tb_frame.f_code.co_filename, str(error).replace(",", "")
        if not file.startswith(_OWN) and "/src/shardlab/" not in file:
            error.add_note("This error is not the function's own: it does not say what to do.")
            return False
        whole = [rf"(?<![\w-]){re.escape(str(v))}(?!\w)" for v in self.values]
        missing = [
            v for v, as_one in zip(self.values, whole, strict=True) if not re.search(as_one, text)
        ]
        if missing:
            error.add_note(f"The error does not name {missing}.")
        return not missing


@cache
def mesh_of(*sizes, names="xyz", types=AxisType.Auto):
    """A mesh of the first devices: `mesh_of(3)`, `mesh_of(2, 4, names="yx")`."""
    count = int(np.prod(sizes))
    return jax.make_mesh(
        sizes,
        tuple(names[: len(sizes)]),
        devices=jax.devices()[:count],
        axis_types=(types,) * len(sizes),
    )


def values(kind, shape, dtype="float32", seed=0):
    """An array of a kind: plain numbers, the same, or some that make arithmetic fail.

    Others for each input that is drawn, and for each `seed`.
    """
    rng = np.random.default_rng([_drawn.seed, seed])
    normal = rng.normal(size=shape)
    one = rng.random(shape) < 1 / 8
    if normal.size:
        one.flat[rng.integers(normal.size)] = True
    array = {
        "normal": lambda: normal,
        "zeros": lambda: np.zeros(shape),
        "ones": lambda: np.ones(shape),
        "tiny": lambda: normal * 1e-18,
        "huge": lambda: normal * 1e15,
        "nan": lambda: np.where(one, np.nan, normal),
        "inf": lambda: np.where(one, np.where(normal > 0, np.inf, -np.inf), normal),
    }[kind]()
    return array.astype(dtype)


def close(actual, expected, tolerance=1e-5):
    """Fail unless two arrays, or trees of them, are equal: to a share of the largest finite value
    expected; NaN and infinities where they are expected, and nowhere else.
    """
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    assert len(actual) == len(expected), f"{len(actual)} arrays, {len(expected)} expected"
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        a, b = (np.asarray(each) for each in (a, b))
        assert a.shape == b.shape, f"array {number} has shape {a.shape}, not {b.shape}"
        if not np.iscomplexobj(b):
            a, b = a.astype("float64"), b.astype("float64")
        finite = np.isfinite(b)
        scale = np.abs(b[finite]).max(initial=0)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b), f"NaN in array {number}")
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


@cache
def bound(f, **keywords):
    """The same object for the same arguments, so that its program is compiled once."""
    return partial(f, **keywords)


@cache
def mapped(f, mesh, in_specs, out_specs, check_vma=True):
    """`f` on the shards of a mesh, jitted; the same program for the same arguments."""
    return jax.jit(
        jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)
    )
