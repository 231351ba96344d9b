"""The command line of shardlab: what it prints as text and as JSON, and that every error is one
line with a remedy.
"""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P
from places import ROOT

from shardlab import costs, plan, published

pytestmark = pytest.mark.reads("src/shardlab", "scripts/record_gpu.py")


# --- layout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x,y", P("x", "y")),
        ("x", P("x")),
        ("None,y", P(None, "y")),
        ("None,x", P(None, "x")),
        ("(x,y),-", P(("x", "y"))),
        ("", P()),
        ('P(None, ("y", "x"))', P(None, ("y", "x"))),
    ],
)
def test_a_layout_is_the_one_of_jax(run, text, spec):
    mesh = jax.make_mesh((2, 4), ("x", "y"), devices=jax.devices()[:8])
    expected = NamedSharding(mesh, spec).devices_indices_map((8, 16))
    status, out, err = run("layout", "float32[8,16]", "--mesh", "x=2,y=4", "--spec", text, "--json")
    told = json.loads(out)
    assert (
        (status, err) == (0, "") and told["shape"] == [8, 16] and told["mesh"] == {"x": 2, "y": 4}
    )
    for shard in told["shards"]:
        index = [
            s.indices(size)[:2]
            for s, size in zip(expected[jax.devices()[shard["device"]]], (8, 16), strict=True)
        ]
        assert [tuple(pair) for pair in shard["index"]] == index
        assert (
            shard["bytes"]
            == 4 * np.prod([stop - start for start, stop in index])
            == told["bytes_per_device"]
        )
    assert len(told["shards"]) == 8 and told["total_bytes"] == 8 * told["bytes_per_device"]


def test_a_layout_as_text(run):
    status, out, err = run("layout", "bf16[8,16]", "--mesh", "x=2,y=4", "--spec", "None,y")
    assert (status, err) == (0, "")
    assert out.startswith(
        "bf16[8, 16@y]: local shape (8, 4), 4 shards × 2 replicas on 8 devices, 64 bytes each\n"
    )
    assert (
        "512 bytes, for an array of 256\n" in out and "\n3       [0:8, 12:16]  1 of 2   64\n" in out
    )
    out = run("layout", "pred[]", "--mesh", "x=32")[1]
    assert out.startswith("bool[]: ") and out.endswith("... and 16 more; --json lists all\n")
    assert (
        "local shape (3,)" in run("layout", "f32[9]", "--mesh", "x=4", "--spec", "x", "--uneven")[1]
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("float32", "--mesh", "x=2"),
            "'float32' is no type of an array; write its element type and its sizes",
        ),
        (("float31[8]", "--mesh", "x=2"), "'float31'; did you mean 'float32'?"),
        (("f32[8]", "--mesh", "x"), "'x' is no mesh axis; write each with a size"),
        (("f32[8]", "--mesh", "x=0"), "x=0 is no mesh axis"),
        (("f32[8]", "--mesh", "x=2,x=4"), "axis 'x' is named twice"),
        (("f32[8]", "--mesh", "x=9999999"), "more than 1,048,576 devices"),
        (("f32[8]", "--mesh", "data=2", "--spec", "date"), "no axis 'date'; did you mean 'data'?"),
        (("f32[8]", "--mesh", "x=2", "--spec", "(x"), "a parenthesis is not closed"),
        (
            ("f32[9]", "--mesh", "x=2", "--spec", "x"),
            "dimension 0 of shape (9,) has size 9; use a multiple of 2",
        ),
        (("f32[8]", "--mesh", "x=2", "--spec", "None,x"), "has 2 entries, but the array has 1"),
        (
            ("f32[8,8]", "--mesh", "x=2", "--spec", "x,x"),
            "axis 'x' is used 2 times; use an axis for one dimension",
        ),
        (("f32[8]",), "--mesh"),
    ],
)
def test_a_wrong_layout_is_refused(refused, arguments, said):
    assert said in refused("layout", *arguments)


# --- plan -----------------------------------------------------------------------------------------

CHIPS = ("plan", "llama-3-8b", "v5p", "64", "--batch-tokens", "1M")


def test_a_slice_in_googles_names_is_planned_with_a_note(run):
    batch = ("--batch-tokens", "1M", "--remat", "block")
    _, plain, _ = run("plan", "llama-3-8b", "v5p", "64", *batch)
    status, out, _ = run("plan", "llama-3-8b", "v5p-128", *batch)
    note, _, plans = out.partition("\n")
    assert (status, plans) == (0, plain)
    assert note == "v5p-128 is 64 chips of v5p, as Google's name counts cores, two of each chip."
    _, told, err = run("plan", "llama-3-8b", "v5p-128", "64", *batch, "--json")
    assert json.loads(told) and note in err


def test_a_plan_needs_a_number_of_chips(refused):
    assert "how many v5p? Give a number after it" in refused("plan", "llama-3-8b", "v5p")
    said = refused("plan", "llama-3-8b", "v5p-256", "256")
    assert "counts 256 cores, two of each chip: write v5p 128" in said


def test_a_plan_is_that_of_the_planner(run):
    made = plan("llama-3-8b", "v5p", 64, 1048576)
    asked = (*CHIPS, "--top", "3", "--remat", "block")
    status, out, err = run(*asked)
    assumed, _, others = out.partition("moments f32.\n")
    assert "whole layers (--remat block)" in assumed
    report, others = others[: len(made.report(3)) + 1], others[len(made.report(3)) + 1 :]
    assert (status, report, err) == (0, made.report(3) + "\n", "")
    assert re.fullmatch(
        r"(--remat \w+: [\d,]+ ms expected \(\d+% less\) on .+, [\d.]+ GB\n)+", others
    )
    told = json.loads(run(*asked, "--json")[1])
    assert [choice["seconds"] for choice in told["choices"]] == [
        choice.seconds for choice in made.choices[:3]
    ]
    assert (told["meshes"], told["fitting"]) == (len(made.choices), len(made.fitting))
    assert (
        told["model"]["layers"] == 32 and told["chip"] == "v5p" and told["machine"] == "v5p:4x4x4"
    )


def test_a_plan_names_the_other_kinds_of_rematerialisation_that_should_be_faster(run):
    large = (
        "plan",
        "llama-3-405b",
        "h100",
        "2048",
        "--batch-tokens",
        "4M",
        "--axes",
        "fsdp,tensor",
        "--remat",
    )
    named = re.findall(
        r"--remat (\w+): ([\d,]+) ms expected \((\d+)% less\) on (.*), ([\d.]+) GB",
        run(*large, "block")[1],
    )
    assert [remat for remat, *_ in named] == ["mlp"]
    block, mlp = (
        plan("llama-3-405b", "H100", 2048, 2**22, remat=remat, axes=("fsdp", "tensor")).choices[0]
        for remat in ("block", "mlp")
    )
    _, milliseconds, less, mesh, size = named[0]
    assert float(milliseconds.replace(",", "")) == pytest.approx(
        1e3 * mlp.expected_seconds, abs=0.5
    )
    assert int(less) == round(100 * (1 - mlp.expected_seconds / block.expected_seconds)) > 5
    assert (mesh, float(size)) == (str(mlp), pytest.approx(mlp.total_bytes / 1e9, abs=0.05))
    assert run(*large, "mlp")[1].endswith("No other --remat is expected to be faster.\n")


def test_the_first_row_has_the_fastest_policy_that_fits_and_days_when_tokens_are_given(run):
    """8B on 64 H100 took whole layers computed again, 26 days for 1T tokens, where nothing need be;
    torchtitan's step on such a machine makes 18.
    """
    asked = ("plan", "llama-3-8b", "h100", "64", "--tokens", "1000")
    made = {remat: plan("llama-3-8b", "H100", 64, 2**22, remat=remat) for remat in costs.REMAT}
    fastest = min(
        (one.choices[0].expected_seconds, remat) for remat, one in made.items() if one.fitting
    )
    status, out, _ = run(*asked)
    assert status == 0 and fastest[1] == "none" and out.startswith("Assumed: ")
    assert "nothing (--remat none, the fastest of those that fit)" in out.partition("\n")[0]
    assert made["none"].report(10) in out and "No other --remat" not in out
    days = 1e12 / made["none"].batch_tokens * fastest[0] / 86_400
    factor = costs.band_of(made["none"].chip, "dense").factor
    around = f"({days / factor:,.1f} to {days * factor:,.1f})"
    assert f"1,000 billion tokens take {days:,.1f} days on it {around}." in out
    told = json.loads(run(*asked, "--json")[1])
    assert told["remat"] == "none" and told["days"] == pytest.approx(days)
    assert told["days_range"] == pytest.approx([days / factor, days * factor])


def test_where_nothing_fits_whole_layers_are_computed_again(run):
    status, out, _ = run("plan", "llama-3-70b", "v5e", "16", "--batch-tokens", "64k")
    assert status == 1 and "(--remat block, as no other fits either)" in out
    assert "What would fit:" in out


@pytest.mark.parametrize("tokens", ["0", "-1", "inf", "nan"])
def test_tokens_that_are_no_number_of_tokens_are_refused(refused, tokens):
    assert "use more than 0" in refused(*CHIPS, "--tokens", tokens)


def test_no_mesh_that_fits_is_another_status(run):
    few = ("plan", "llama-3-70b", "v5e", "16", "--batch-tokens", "64k")
    status, out, err = run(*few)
    assert (
        status == 1
        and "No mesh fits." in out
        and "What would fit:\n  64 chips: " in out
        and not err
    )
    told = json.loads(run(*few, "--json")[1])
    assert told["fitting"] == 0 and told["remedies"][0]["change"] == "64 chips"
    assert told["remedies"][0]["choice"]["fits"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("llama-3-7b", "v5p", "8"), "no model is called 'llama-3-7b'; known are"),
        (("llama-3-7b", "v5p", "8"), "did you mean 'llama-3-"),
        (("layers=3", "v5p", "8"), "missing or unknown: d_model"),
        (
            ("layers=x,d_model=1,d_ff=1,heads=1,kv_heads=1,head_dim=1,vocab=1", "v5p", "8"),
            "layers is 'x'",
        ),
        (("missing.json", "v5p", "8"), "missing.json cannot be read"),
        (("llama-3-8b", "v5pp", "8"), "did you mean 'v5p'?"),
        (("llama-3-8b", "v5e", "1024"), "the largest has 256; use 256 chips, or slices=4"),
        (("llama-3-8b", "h100", "12"), "12 H100 do not fill hosts of 8; use 8 or 16"),
        (("llama-3-8b", "v5p", "many"), "'many' is no whole number; write it as"),
        (
            (*CHIPS[1:], "--batch-tokens", "5"),
            "a batch of 5 tokens is not a whole number of sequences",
        ),
        ((*CHIPS[1:], "--batch-tokens", "0"), "batch_tokens is 0; use a whole number"),
        ((*CHIPS[1:], "--batch-tokens", "0.3k"), "'0.3k' is no whole number"),
        ((*CHIPS[1:], "--remat", "all"), "invalid choice: 'all'"),
        ((*CHIPS[1:], "--top", "0"), "--top is 0"),
        ((*CHIPS[1:], "--axes", "data,model"), "axes='model' is not known; use one of data, fsdp"),
        ((*CHIPS[1:], "--products", "fp6"), "v5p has no peak for 'fp6'"),
        ((*CHIPS[1:], "--reserve", "2"), "reserve=2.0"),
        (
            (*CHIPS[1:3], "1000000000"),
            "1,000,000,000 chips are more than the planner tries; use at most 131,072",
        ),
    ],
)
def test_a_wrong_plan_is_refused(refused, changed, said):
    assert said in refused("plan", *changed)


def test_names_and_numbers_as_people_write_them(run):
    assert run("plan", "Llama3 8B", "V5P", "64", "--batch-tokens", "1_048_576") == run(*CHIPS)


def test_a_model_from_the_file_that_is_published_with_it(run, tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    }  # fmt: skip
    file = tmp_path / "mine" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(config))
    status, out, _ = run("plan", str(file), *CHIPS[2:])
    assert (
        status == 0
        and out == run(*CHIPS)[1].replace("\nllama-3-8b: ", "\nmine: ")
        and "\nmine: 8.0 " in out
    )


# --- explain --------------------------------------------------------------------------------------


@pytest.fixture
def explained(monkeypatch, tmp_path):
    """The calls of a stand-in for shardlab.report.explain, in an empty folder."""
    calls = []

    class Report:
        def __repr__(self):
            return "the report"

        def to_json(self):
            return '{"a": "report"}'

    def explain(f, *args, mesh=None, chip="v5p", try_remedies=False, **kwargs):
        said = {"mesh": mesh, "chip": chip, "tries": try_remedies, "kwargs": kwargs}
        calls.append(SimpleNamespace(f=f, args=args, **said))
        if f == "raise":
            raise ValueError("no such thing\nas this")
        return Report()

    monkeypatch.setitem(sys.modules, "shardlab.report.explain", SimpleNamespace(explain=explain))
    for name in ("mine_a", "mine_b", "broken"):  # of an earlier test
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return calls


MODULE = """
def step(x): return x
def whole(): return step, (1, 2)
def named(): return step, [1], {"y": 3}
def nothing(): return None
def raises(): raise KeyError("lost")
def late(): return "raise", ()
"""


def test_a_function_is_called_and_what_it_returns_explained(run, explained, tmp_path):
    (tmp_path / "mine_a.py").write_text(MODULE)
    assert run("explain", "mine_a:whole") == (0, "the report\n", "")
    assert run("explain", "mine_a:named", "--json", "--chip", "v6e", "--mesh", "d=8") == (
        0,
        '{"a": "report"}\n',
        "",
    )
    assert run("explain", "mine_a:whole", "--try-remedies")[0] == 0
    first, second, third = explained
    assert [one.tries for one in explained] == [False, False, True]
    assert first.f.__name__ == "step" and (first.args, first.kwargs, first.mesh, first.chip) == (
        (1, 2),
        {},
        None,
        "v5p",
    )
    assert (second.args, second.kwargs, second.chip) == ((1,), {"y": 3}, "v6e") and dict(
        second.mesh.shape
    ) == {"d": 8}


def test_a_file_is_read(run, explained, tmp_path):
    text = jax.jit(lambda x: x + 1).lower(1.0).compile().as_text()
    (tmp_path / "step.txt").write_text(text)
    assert run("explain", "step.txt", "--mesh", "d=8")[0] == 0
    assert explained[0].f == text and explained[0].args == ()


ONE_SUM = """HloModule jit_f, num_partitions=8

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main {
  x = f32[16,16] parameter(0)
  ROOT all = f32[16,16] all-reduce(x), replica_groups={{0,1,2,3,4,5,6,7}}, channel_id=1, \
use_global_device_ids=true, to_apply=add, \
metadata={op_name="jit(f)/dot_general" source_file="step.py" source_line=7}
}
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mine_b:whol",), "has no function 'whol'; did you mean 'whole'?"),
        (("mine_b:nothing",), "mine_b:nothing() returned NoneType; return (step, args)"),
        (("mine_b:raises",), "mine_b:raises() failed: mine_b.py:6: KeyError: 'lost'"),
        (("mine_b:late",), "mine_b:late cannot be explained: "),
        (("mine_b:late",), "ValueError: no such thing as this"),
        (
            ("mine_bb:whole",),
            "no module 'mine_bb' in this folder or installed; did you mean 'mine_b'?",
        ),
        (("broken:whole",), "importing broken failed: broken.py:1: ZeroDivisionError"),
        (("lost.txt",), "'lost.txt' is no file, and no function"),
        (("mine_b.py",), "begins with HloModule"),
        (("mine_b.py", "--try-remedies"), "--try-remedies needs a function, such as train:example"),
        (("mine_b:whole", "--try-remedies", "--compare", "a", "b"), "exclude each other"),
        (("bytes.txt",), "bytes.txt cannot be read"),
        (("mine_b:whole", "--chip", "v5"), "no chip is called 'v5'"),
        (("mine_b:whole", "--mesh", "d"), "'d' is no mesh axis"),
        (("mine_b:whole", "--devices", "0"), "--devices is 0"),
        (("mine_b:whole", "--pod", "v9:2x2"), "--pod: "),
        (("mine_b:whole", "--pod", "v5e:2x2", "--mesh", "d=4"), "exclude each other"),
    ],
)
def test_what_cannot_be_explained_is_refused(refused, explained, tmp_path, arguments, said):
    (tmp_path / "mine_b.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    assert said in refused("explain", *arguments)


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b\u202e"  # what a terminal would obey


def test_what_a_terminal_would_obey_in_a_program_or_its_names_is_not_printed(run, tmp_path):
    names = f"{HOSTILE}{'long' * 2_000}.py"
    program = ONE_SUM.replace("step.py", names).replace("jit(f)", f"jit({HOSTILE})")
    (tmp_path / "step.txt").write_text(program)
    status, out, _ = run("explain", str(tmp_path / "step.txt"), "--mesh", "x=8")
    assert status == 0 and "all-reduce" in out and "long" in out
    assert all(line.isprintable() for line in out.split("\n")) and len(out) < 2_000


@pytest.mark.parametrize("file", ["/dev/zero", "fifo", "/proc/kmsg", "a/" * 5_000 + "x.py"])
def test_a_source_that_is_none_is_not_read(run, tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    (tmp_path / "step.txt").write_text(ONE_SUM.replace("step.py", file))
    status, out, _ = run("explain", "step.txt", "--mesh", "x=8")
    assert status == 0 and f"{file.rsplit('/', 1)[-1]}:7" in out


def test_an_exception_without_a_text_is_told(refused, explained, tmp_path):
    module = "class E(Exception):\n    def __str__(self): raise ValueError\ndef whole(): raise E"
    (tmp_path / "mute.py").write_text(module)
    assert "mute.py:3: E: its text cannot be had" in refused("explain", "mute:whole")


@pytest.mark.parametrize("place", ["import", "call"])
@pytest.mark.parametrize("kind", ["BaseException", "GeneratorExit", "CancelledError"])
def test_what_is_no_exception_but_only_its_base_is_told(refused, explained, tmp_path, kind, place):
    raises = f"raise {kind}('odd')"
    at = {"import": "0", "call": "return step, ()"} | {place: raises}
    name = f"odd_{kind}_{place}"  # a module is imported once
    (tmp_path / f"{name}.py").write_text(
        f"from asyncio import CancelledError\n{at['import']}\ndef whole(): {at['call']}\n"
    )
    assert f"{kind}: odd" in refused("explain", f"{name}:whole")


def test_a_signal_of_the_keyboard_is_no_reason(run, explained, tmp_path):
    (tmp_path / "stopped.py").write_text("def whole(): raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        run("explain", "stopped:whole")


@pytest.mark.parametrize("place", ["whole", "late"])
def test_what_ends_python_ends_no_explanation(refused, explained, tmp_path, place):
    module = (
        "def whole():\n    return step, ()\n\ndef step():\n    pass\n\ndef late():\n    exit(3)\n"
    )
    (tmp_path / "leaves.py").write_text(module if place == "late" else f"{module}\nexit(3)\n")
    assert "SystemExit: 3" in refused("explain", f"leaves:{place}")


DIGITS = "9" * 5_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("layout", f"f32[{DIGITS}]", "--mesh", "x=2"), "use whole numbers of at most 1,000,000"),
        (("layout", "f32[9999999999999999]", "--mesh", "x=2"), "use whole numbers of at most"),
        (("layout", "f32[8]", "--mesh", f"x={DIGITS}"), "is no mesh axis"),
        (("layout", "f32[8]", "--mesh", "x=\u00b2"), "is no mesh axis"),
        (("layout", "f32[\u00b2]", "--mesh", "x=2"), "is no type of an array"),
        (("explain", "a:b", "--devices", "9999999"), "use a whole number from 1 to 4,096"),
        (("explain", "a:b", "--devices", DIGITS), "--devices"),
        (("plan", "llama-3-8b", "v5p", DIGITS), "use a whole number of at most"),
        (("ledger", "fifo"), "fifo: not a file"),
        (("ledger", "/dev/zero"), "/dev/zero: not a file"),
        (("ledger", "digits.json"), "digits.json is not JSON"),
        (("plan", "fifo.json", "v5p", "8"), "not a file"),
        (("plan", "zero.json", "v5p", "8"), "not a file"),
        (("plan", "digits.json", "v5p", "8"), "is no JSON"),
        (("grade", "fifo", "--original", "fifo"), "fifo: not a file"),
        (("grade", "fifo", "--out", "fifo"), "--out fifo: not a file"),
        (("grade", "fifo", "--out", "/dev/zero"), "--out /dev/zero: not a file"),
    ],
)
def test_sizes_and_files_without_end_are_refused_at_once(
    refused, tmp_path, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    for name in ("fifo", "fifo.json"):
        os.mkfifo(name)
    os.symlink("/dev/zero", "zero.json")
    (tmp_path / "digits.json").write_text(f'{{"by": {DIGITS}, "runs": [1]}}')
    told = refused(*arguments)
    assert said in told and len(told) < 2_000


def test_what_is_refused_is_told_in_a_line_of_some_length(refused, tmp_path):
    said = refused("explain", f"{HOSTILE}{'long' * 9_000}:f")
    assert said[:-1].isprintable() and len(said) < 2_000 and "module:function" in said


def test_a_real_program_is_explained_from_a_function_and_from_its_text(tmp_path):
    """In a process of its own, as a stranger runs it."""
    (tmp_path / "mine.py").write_text("""
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

def example():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    return lambda x: x.sum(0), (jax.ShapeDtypeStruct((64, 16), jnp.float32, sharding=NamedSharding(mesh, P("d"))),)

if __name__ == "__main__":
    from shardlab import emulate
    emulate(8)
    step, args = example()
    open("step.txt", "w").write(jax.jit(step).lower(*args).compile().as_text())
""")  # noqa: E501
    clean = {
        name: value for name, value in os.environ.items() if not re.match("XLA_|NPROC|JAX_", name)
    }

    def said(*command):
        return subprocess.run(
            command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True
        ).stdout

    script = os.path.join(os.path.dirname(sys.executable), "shardlab")
    said(sys.executable, "mine.py")
    for told in (
        said(script, "explain", "mine:example", "--devices", "8", "--json"),
        said(script, "explain", "step.txt", "--mesh", "d=8", "--json"),
    ):
        (move,) = json.loads(told)["moves"]
        assert move["kind"] == "all-reduce" and move["axes"] == ["d"]
    assert "all-reduce" in said(script, "explain", "step.txt")


# --- ledger ---------------------------------------------------------------------------------------


def test_the_ledger_lists_what_was_measured(run, tmp_path):
    status, out, err = run("ledger")
    assert status == 0 and not err and all(run_.name in out for run_ in published.RUNS.values())
    status, out, _ = run("ledger", "--kind", "decode step", "--misses", "--json")
    rows = json.loads(out)
    assert (
        status == 0 and rows and all(row["misses"] and row["kind"] == "decode step" for row in rows)
    )
    mine = {
        "name": "mine",
        "model": "llama-3-8b",
        "chip": "H100",
        "fsdp": 8,
        "sequences": 16,
        "sequence": 8192,
    }
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"by": "me", "runs": [mine | {"seconds": 3.4}]}))
    status, out, _ = run("ledger", str(file))
    assert status == 0 and "mine" in out and "3.4 s" in out
    run_ = published.RUNS["torchtitan, 70B on 64 A100"]
    kept = {
        **mine,
        "chip": "A100",
        "model": "llama-3-70b",
        "fsdp": 64,
        "sequences": run_.sequences,
        "remat": "block",
    }
    file.write_text(json.dumps({"by": "me", "runs": [kept | {"seconds": run_.seconds}]}))
    assert run("ledger", str(file), "--misses")[:2] == (
        1,
        "nothing that is listed contradicts its prediction\n",
    )


def test_what_a_terminal_would_obey_in_a_ledger_is_not_printed(run, refused, tmp_path):
    keys = {"name": f"mine{HOSTILE}\n" + "long" * 999, "chip": "H100", "fsdp": 8, "sequences": 16}
    keys |= {"model": "llama-3-8b", "sequence": 8192, "seconds": 3.4}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"by": f"me{HOSTILE}", "runs": [keys]}))
    status, out, _ = run("ledger", str(file))
    assert status == 0 and "mine long" in out and len(out) < 1_000
    assert all(line.isprintable() for line in out.split("\n"))
    file.write_text(json.dumps({"by": "me", "runs": [keys | {"source": 5}]}))
    assert "source is 5; use a name in quotes" in refused("ledger", str(file))
    file.write_text(json.dumps({"by": "me", "runs": [keys | {"chip": f"H{HOSTILE}100"}]}))
    said = refused("ledger", str(file))
    assert said[:-1].isprintable() and len(said) < 2_000 and "or pass your own" in said


def test_a_wrong_ledger_is_refused(refused, tmp_path):
    assert "did you mean 'training step'?" in refused("ledger", "--kind", "training steps")
    assert "cannot read" in refused("ledger", str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("[1")
    assert "is not JSON" in refused("ledger", str(tmp_path / "bad.json"))


# --- All of them ----------------------------------------------------------------------------------


def test_help_has_examples_that_work(run, explained):
    status, out, err = run("--help")
    counts = {"layout": 3, "plan": 4, "explain": 5, "ledger": 3, "grade": 2}
    assert status == 0 and not err and all(name in out for name in counts)
    assert run() == (0, out, "")
    for command, count in counts.items():
        status, out, err = run(command, "--help")
        examples = re.findall(r"^  shardlab (.*)$", out, re.MULTILINE)
        assert status == 0 and len(examples) == count and "--json" in out
        for example in examples if command in ("layout", "plan") else ():  # the others need files
            words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', example)]
            assert run(*words)[0] == 0, example


def test_an_unknown_command_is_refused(refused):
    assert (
        "no command is called 'lay'; use layout, plan, explain, ledger, grade, upgrade; did you "
        "mean 'layout'?"
    ) in refused("lay")


def test_it_is_a_program_and_a_module():
    """Both do the same, and start no JAX for a layout: none of the platforms that this one names
    exists.
    """
    arguments = ["layout", "f32[8]", "--mesh", "x=2", "--spec", "x"]
    environment = os.environ | {"JAX_PLATFORMS": "none"}
    script = os.path.join(os.path.dirname(sys.executable), "shardlab")
    said = [
        subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for command in ([script], [sys.executable, "-m", "shardlab"])
    ]
    assert said[0] == said[1] and said[0].startswith(
        "f32[8@x]: local shape (4,), 2 shards on 2 devices"
    )


def test_the_script_that_measures_a_gpu_says_so_where_there_is_none():
    command = [sys.executable, ROOT / "scripts" / "record_gpu.py"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (
        done.returncode == 1
        and "device is a cpu, no GPU" in done.stderr
        and "Traceback" not in done.stderr
    )


# --- Two revisions --------------------------------------------------------------------------------

STEP = """\
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P


def loss(w, x):
    h = jnp.tanh(x @ w)
    return jnp.mean(h**2)


def example():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    shapes = ((256, 256), P()), ((512, 256), P("d"))
    return jax.grad(loss), tuple(
        jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec)) for shape, spec in shapes)
"""  # noqa: E501


@pytest.fixture(scope="module")
def revisions(tmp_path_factory):
    """A repository in whose second commit a line that needs all rows has come in, and all lines
    have moved.
    """
    root = tmp_path_factory.mktemp("repository")
    (root / "steps").mkdir()
    worse = STEP.replace("import jax\n", "# A comment.\n\nimport jax\n", 1)
    worse = worse.replace("    return jnp.mean", "    h = jnp.cumsum(h, 0)\n    return jnp.mean")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], cwd=root, check=True)
    for text in (STEP, worse):
        (root / "steps" / "train.py").write_text(text)
        subprocess.run([*git, "add", "--all"], cwd=root, check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", "a step"], cwd=root, check=True)
    return root


def compared(root, *arguments):
    command = [
        sys.executable,
        "-m",
        "shardlab",
        "explain",
        "--compare",
        *arguments,
        "train:example",
        "--devices",
        "8",
    ]
    return subprocess.run(command, cwd=root / "steps", capture_output=True, text=True)


def test_a_line_that_sends_more_than_in_another_revision_is_named_and_the_status_is_1(revisions):
    done = compared(revisions, "HEAD~1", "HEAD")
    first, second = done.stdout.splitlines()
    assert first.startswith("steps/train.py:10: sends all-gather") and first.endswith(
        "h = jnp.cumsum(h, 0)"
    )
    assert (
        "before nothing" in first
        and second.startswith("train:example: holds at once")
        and done.returncode == 1
    )
    rows = json.loads(compared(revisions, "HEAD~1", "HEAD", "--json").stdout)
    assert [row["kind"] for row in rows] == ["all-gather", "peak"] and rows[0][
        "before"
    ] == 0 < rows[0]["after"]


def test_what_only_moved_or_became_less_or_stays_below_the_limit_is_no_growth(revisions):
    back, allowed = (
        compared(revisions, "HEAD", "HEAD~1"),
        compared(revisions, "HEAD~1", ".", "--limit", "10000000"),
    )
    assert (back.returncode, allowed.returncode) == (
        0,
        0,
    ) and "no line sends more than in HEAD," in back.stdout
    left = subprocess.run(
        ["git", "worktree", "list"], cwd=revisions, capture_output=True, text=True
    ).stdout
    assert len(left.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("nope", "HEAD"), "no revision 'nope'"), (("HEAD", ".", "--limit", "-1"), "--limit is -1")],
)
def test_a_comparison_that_cannot_be_made_is_refused(revisions, arguments, words):
    done = compared(revisions, *arguments)
    assert done.returncode == 2 and words in done.stderr


@pytest.mark.parametrize("mesh", ["x=1000000", "x=1000,y=1000", "x=65537"])
def test_a_layout_of_more_devices_than_there_are_is_refused_at_once(refused, mesh):
    assert "65,536" in refused("layout", "f32[8,16]", "--mesh", mesh)


def test_a_fine_tune_on_four_consumer_cards_has_an_answer(run):
    """Training all parameters does not fit, so the report says what fine-tuning needs."""
    cards = ("llama-3-8b", "rtx 4090", "4", "--batch-tokens", "64k", "--sequence", "2048")
    status, out, _ = run("plan", *cards)
    assert status == 1 and "Fine-tuning with adapters fits: --lora 16:" in out
    status, out, _ = run("plan", *cards, "--lora", "16", "--parameters", "nf4", "--tokens", "0.1")
    assert status == 0 and out.startswith("Assumed: adapters of rank 16, the model is frozen;")
    assert "parameters nf4" in out and "No published run on GPUs tests such plans" in " ".join(
        out.split()
    )
    assert "0.1 billion tokens take 0.1" in out and "(no range is known)" in out
