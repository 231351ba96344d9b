"""programs.hlo: every recorded program is read as XLA itself reads it, and a reader with a fault
would be found.

conftest.py compares in the same way every program that other tests compile and read.
"""

import os
import re
import signal
import subprocess
import sys

import oracle
import pytest
from hypothesis import given, settings, strategies as st
from tpu_programs import recordings

from shardlab import UnreadableProgram, explain, read_program, step_timeline
from shardlab.programs import collectives, hlo, lifetimes

pytestmark = pytest.mark.reads("src/shardlab")

RECORDED = recordings()


@pytest.mark.parametrize("file", sorted({file for file, _ in RECORDED}))
def test_recorded_programs_are_read_as_xla_reads_them(file):
    programs = {name: text for (there, name), text in RECORDED.items() if there == file}
    assert programs
    assert {
        name: found for name, text in programs.items() if (found := oracle.differences(text))
    } == {}


@pytest.mark.parametrize(
    ("pattern", "wrong", "shown"),
    [
        (r"all-gather\(", "all-reduce(", "kind='all-reduce'"),
        (r"\n  (\S[^\n]*)\n  ROOT ", r"\n  ROOT \1\n  ", "root=False"),
        (r"fusion\(%?([\w.-]+), %?([\w.-]+)", r"fusion(\2, \1", "operands="),
        (r"= f32\[", "= bf16[", "types=('bf16["),
        (r"body=%?[\w.-]+", "body=elsewhere", "calls="),
        (r"\n[^\n]* all-gather\([^\n]*", "", "None, XLA says"),
    ],
)
def test_a_fault_in_our_reader_would_be_found(monkeypatch, pattern, wrong, shown):
    text = next(
        text for text in RECORDED.values() if re.search(pattern, text) and " while(" in text
    )
    read = hlo.Program
    changed = re.sub(pattern, wrong, text, count=1)
    changed += "\nelsewhere {\n  ROOT nothing = s32[] constant(0)\n}\n" * ("elsewhere" in wrong)
    monkeypatch.setattr(hlo, "Program", lambda _: read(changed))
    assert any(shown in difference for difference in oracle.differences(text))


DUMPED = """
from shardlab import emulate

emulate(8)

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))


def repeat(W, x):
    return lax.fori_loop(0, 5, lambda _, c: (jnp.tanh(c[0] @ W), c[1] + (c[0] @ W).sum()), (x, 0.0))


shapes = [jax.ShapeDtypeStruct((16, 16), "float32", sharding=NamedSharding(mesh, P("d"))) for _ in range(2)]
print(jax.jit(repeat).lower(*shapes).compile().as_text())
"""  # noqa: E501


def test_a_dumped_program_reads_as_the_one_that_jax_shows(tmp_path):
    """XLA's dumps write an element of a tuple as %loop#1, where other text has a
    get-tuple-element.
    """
    settings = os.environ | {"XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    done = subprocess.run(
        [sys.executable, "-c", DUMPED], env=settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (dumped,) = tmp_path.glob("*repeat*after_optimizations.txt")
    text = dumped.read_text()
    assert re.search(r"%[\w.-]+#\d", text), (
        "dumps are written otherwise now: is there still anything to test?"
    )
    assert not oracle.differences(text)
    shown, read = (
        [move for move, _ in collectives.find(hlo.Program(one))] for one in (done.stdout, text)
    )
    assert read == shown and len(read) >= 2


@hlo.promised()
def follow(text):
    """As `lifetimes` does, of a text."""
    walk = lifetimes._Walk(hlo.Program(text))
    return [walk.lane(layer) for layer in walk.layers()]


READERS = {
    "read_program": read_program,
    "explain": lambda text: explain(text).to_json(),
    "step_timeline": lambda text: step_timeline(text, "v5e"),
    "lifetimes": follow,
}
MARKS = (
    " while(",
    " conditional(",
    "AsyncCollectiveStart",
    " all-to-all(",
    " reduce-scatter(",
    " convolution(",
    "<=[",
)
SMALL = sorted(
    {min((t for t in RECORDED.values() if mark in t), key=len) for mark in MARKS}, key=len
)
TOKEN = re.compile(r"%?[A-Za-z_][\w.-]*=?|\d+|[^\w\s]")


@st.composite
def changed_programs(draw):
    """The text of a program that was cut, or in which lines or words are missing, others, or
    elsewhere.
    """
    text = draw(st.sampled_from(SMALL))
    for _ in range(draw(st.integers(1, 3))):
        lines = text.split("\n")
        n, m = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        words = TOKEN.findall(lines[n])
        how = draw(st.sampled_from(("cut", "drop", "swap", "word", "word", "word", "end")))
        if how == "cut":
            return text[: draw(st.integers(0, len(text)))]
        if how == "drop":
            del lines[n]
        elif how == "swap":
            lines[n], lines[m] = lines[m], lines[n]
        elif how == "end":
            lines[n] = lines[n][: draw(st.integers(0, len(lines[n])))]
        elif words:
            others = st.sampled_from(
                [
                    "",
                    "0",
                    "-1",
                    "99999",
                    "9" * 30,
                    '"',
                    "{",
                    ")",
                    "ROOT",
                    "\x00",
                    *TOKEN.findall(lines[m]),
                ]
            )
            lines[n] = lines[n].replace(draw(st.sampled_from(words)), draw(others), 1)
        text = "\n".join(lines)
    return text


@pytest.mark.parametrize("reader", READERS)
def test_a_changed_program_is_read_or_refused_as_promised(reader):
    @settings(max_examples=250, deadline=None)
    @given(text=changed_programs())
    def keeps_its_promise(text):
        try:
            READERS[reader](text)
        except UnreadableProgram as error:
            assert str(error)

    keeps_its_promise()


@pytest.mark.parametrize("share", [0.5, 0.9, 0.97, 0.999])
def test_a_text_that_was_cut_says_so(share):
    text = max(SMALL, key=len)
    with pytest.raises(
        UnreadableProgram, match=r"ends within the computation \S+, so some of it is missing"
    ):
        read_program(text[: int(len(text.rstrip()) * share)])


def written(body, more="", head=""):
    add = (
        "add {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %s = f32[] add(%a, "
        "%b)\n}\n"
    )
    return (
        f"HloModule m, is_scheduled=true{head}\n\n{more}{add}\nENTRY %main {{\n  %p = f32[4] "
        f"parameter(0)\n{body}\n}}\n"
    )


def calls(depth, last):
    """Computations each of which calls the one before twice."""
    made = [f"c0 {{\n  %p = f32[4] parameter(0)\n  ROOT %r = f32[4] {last}\n}}\n"]
    for n in range(depth):
        called = (
            f"  %q = f32[4] call(%p), to_apply=c{n}\n  ROOT %r = f32[4] call(%q), to_apply=c{n}"
        )
        made.append(f"c{n + 1} {{\n  %p = f32[4] parameter(0)\n{called}\n}}\n")
    return written(f"  ROOT %r = f32[4] call(%p), to_apply=c{depth}", "".join(made))


def counted(sums):
    """A loop whose counter is added to itself again and again."""
    adds = "".join(f"  %n{n + 1} = s32[] add(%n{n}, %n{n})\n" for n in range(sums))
    carried = "  %t = (s32[], f32[4]) parameter(0)\n"
    body = f"body {{\n{carried}  %n0 = s32[] get-tuple-element(%t), index=0\n{adds}"
    body += (
        "  %x = f32[4] get-tuple-element(%t), index=1\n  ROOT %o = (s32[], f32[4]) "
        f"tuple(%n{sums}, %x)\n}}\n"
    )
    end = (
        f"cond {{\n{carried}  %i = s32[] get-tuple-element(%t), index=0\n  %k = s32[] constant(5)\n"
    )
    end += "  ROOT %l = pred[] compare(%i, %k), direction=LT\n}\n"
    loop = "  %z = s32[] constant(0)\n  %t = (s32[], f32[4]) tuple(%z, %p)\n"
    loop += "  ROOT %w = (s32[], f32[4]) while(%t), condition=cond, body=body"
    return written(loop, body + end)


REDUCE = "all-reduce(%p), replica_groups={}, to_apply=add"
LARGE = {
    "calls in calls": calls(60, "negate(%p)"),
    "calls in calls that send": calls(60, REDUCE),
    "a computation that calls itself": calls(1, "call(%p), to_apply=c1"),
    "calls, very deep": calls(3000, "negate(%p)"),
    "a chain of sums": counted(60),
    "a long chain of sums": counted(3000),
    "devices": written(f"  ROOT %r = f32[4] {REDUCE}", head=", num_partitions=1000000000"),
    "devices of groups": written(
        "  ROOT %r = f32[4] all-reduce(%p), replica_groups=[9,1000000000]<=[9000000000]"
    ),
    "axes of groups": written(
        "  ROOT %r = f32[4] all-reduce(%p), replica_groups=mesh['x'=1000000000] {'x'}"
    ),
    "trips": written(
        "  %t = (f32[4]) tuple(%p)\n  ROOT %w = (f32[4]) while(%t), condition=c, body=b, "
        "backend_config="
        '{"known_trip_count":{"n":"1000000000000"}}',
        "b {\n  %t = (f32[4]) parameter(0)\n  %p = f32[4] get-tuple-element(%t), index=0\n"
        f"  %r = f32[4] {REDUCE}\n  ROOT %o = (f32[4]) tuple(%r)\n}}\n"
        "c {\n  %t = (f32[4]) parameter(0)\n  ROOT %o = pred[] constant(true)\n}\n",
    ),
    "a line that goes on": written("  ROOT %r = f32[4] negate(%p)\n" + "a\n" * 200_000),
    "a head": f"HloModule m\nENTRY %main (x) -> {') -> ' * 40_000}\n",
} | {
    f"a line of {token}": written(
        f"  ROOT %r = f32[4] {REDUCE}, metadata={{{token * (180_000 // len(token))}"
    )
    for token in (
        "a",
        "a=",
        '\\"',
        '"',
        "/*",
        "{",
        "f32[",
        "metadata={",
        "replica_groups=mesh[",
        "%p, ",
        "(",
        " ",
        "9",
    )
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", LARGE)
def test_a_large_program_ends(reader, name):
    """What took minutes, or all memory, takes a second or two; the limit is for a machine that is
    busy.
    """

    def too_long(*_):
        raise AssertionError(f"{reader} does not end")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    try:
        READERS[reader](LARGE[name])
    except UnreadableProgram as error:
        assert len(str(error)) < 1500
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
