"""The ledger: predictions beside measurements, and runs that readers add."""

import json
import math
import random

import pytest

from shardlab import hardware, ledger, published
from shardlab.costs.ledger import Entry, Ledger, read

pytestmark = pytest.mark.reads("src/shardlab")

RUN = {
    "name": "mine", "model": "llama-3-8b", "chip": "H100", "fsdp": 8, "sequences": 16,
    "sequence": 8192,
    "remat": "block", "seconds": 3.4,
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    """A function that writes data as JSON, and returns the file."""

    def write(data, text=None):
        file = tmp_path / "mine.json"
        file.write_text(json.dumps(data) if text is None else text)
        return file

    return write


def test_everything_that_was_measured_is_listed_once():
    kinds = ledger().kinds()
    own = hardware.measured("H200")
    assert len(kinds["training step"]) == len(published.RUNS) + len(own["steps"])
    assert sum(
        len(of) for kind, of in kinds.items() if kind.startswith(("throughput", "time "))
    ) == len(published.SERVERS)
    for kind, rows in {
        "decode step": "decode",
        "memory of a step": "steps",
        "transfer": "transfer",
    }.items():
        assert len(kinds[kind]) == len(own[rows])
    assert len({(e.kind, e.name, e.measured) for e in ledger()}) == len(ledger())
    assert all(entry.by for entry in ledger())


def test_an_entry_is_what_the_run_says():
    run = published.RUNS["torchtitan, 70B on 64 A100"]
    entry = next(e for e in ledger() if e.name == run.name)
    assert (entry.measured, entry.unit, entry.fitted) == (run.seconds, "s", run.fit)
    assert entry.expected == run.cost().expected_seconds and entry.bound == run.cost().seconds
    assert math.isclose(entry.factor, run.seconds / run.cost().expected_seconds)


def test_throughput_is_worse_where_it_is_less():
    servers = [server for server in published.SERVERS if server.kind == "throughput"]
    for entry, server in zip(ledger().kinds()["throughput"], servers, strict=True):
        assert entry.measured == server.measured and entry.bound > entry.measured
        assert math.isclose(entry.factor, server.slower())


@pytest.mark.parametrize(
    ("entry", "misses", "verdict"),
    [
        (Entry("a", "k", 1.2, "s", 0.5, 1.0, 1.3), False, "within 1.30"),
        (Entry("a", "k", 1.4, "s", 0.5, 1.0, 1.3), True, "missed: 1.40 times"),
        (Entry("a", "k", 0.7, "s", 0.5, 1.0, 1.3), True, "missed: 0.70 times"),
        (Entry("a", "k", 0.8, "s", 1.0, 1.0, 1.3), True, "better than the bound, by 1.25"),
        (Entry("a", "k", 80, "tokens/s", 200, 100, 1.3), False, "within 1.30"),
        (Entry("a", "k", 50, "tokens/s", 200, 100, 1.3), True, "missed: 2.00 times"),
        (Entry("a", "k", 250, "tokens/s", 200, 240, 1.3), True, "better than the bound, by 1.25"),
        (Entry("a", "k", 3.0, "s", 1.0), False, "a bound, 3.00 away"),
        (Entry("a", "k", 9.0, "bytes", None, 1.0), False, "9.00 times"),
    ],
)
def test_a_verdict_follows_the_measurement(entry, misses, verdict):
    assert (entry.misses, entry.verdict) == (misses, verdict)


def test_misses_are_red_and_others_are_not():
    entries = Ledger(
        [
            Entry("a", "k", 1.2, "s", 0.5, 1.0, 1.3, by="<me>"),
            Entry("b", "k", 2.0, "s", 0.5, 1.0, 1.3),
        ]
    )
    html = entries._repr_html_()
    assert html.count("<strong") == 1 and "missed: 2.00 times</strong>" in html
    assert "&lt;me&gt;" in html and "<me>" not in html


def test_a_long_source_and_one_with_control_characters_are_shown_as_their_rows_name_them():
    entries = Ledger(
        Entry(name, "k", 1.2, "s", 0.5, 1.0, 1.3, by=by)
        for name, by in (("a", "word " * 1000), ("b", "two\x1b[1m\nlines"))
    )
    shown = entries._repr_html_()
    assert "<td>[1]</td>" in shown and "<td>[2]</td>" in shown and "\x1b" not in shown
    assert len(shown) < 6000 and "word word" in shown


def test_a_reader_adds_runs(written):
    (entry,) = read(written({"by": "A. Reader", "runs": [RUN]}))
    assert (entry.name, entry.by, entry.measured) == ("mine", "A. Reader", 3.4)
    small = {
        "layers": 4,
        "d_model": 512,
        "d_ff": 2048,
        "heads": 8,
        "kv_heads": 8,
        "head_dim": 64,
        "vocab": 32_000,
    }
    file = {
        "by": "A. Reader", "models": {"small": small},
        "chips": {"H100 at home": {"like": "H100", "hbm_bytes": 6e10}},
        "runs": [RUN | {"model": "small", "chip": "H100 at home"}, RUN | {"name": "again"}],
    }  # fmt: skip
    first, second = read(written(file))
    assert first.expected < second.expected


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], 'a list of "runs" is needed'),
        ({"by": "me", "runs": []}, 'a list of "runs" is needed'),
        ({"runs": [RUN]}, '"by" says who measured'),
        ({"by": "me", "run": 1, "runs": [RUN]}, "no key is called 'run'; did you mean 'runs'?"),
        ({"by": "me", "runs": [7]}, "run 1 is 7; use an object"),
        ({"by": "me", "runs": [RUN, {"name": "b"}]}, "run 2 (b) has no 'model'"),
        (
            {"by": "me", "runs": [{k: v for k, v in RUN.items() if k != "seconds"}]},
            "has no measurement",
        ),
        (
            {"by": "me", "runs": [RUN | {"seconds": -1}]},
            "run 1 (mine): seconds is -1; use a number above 0",
        ),
        ({"by": "me", "runs": [RUN | {"sequence": 8.5}]}, "sequence is 8.5; use a whole number"),
        (
            {"by": "me", "runs": [RUN | {"chip": "H1000"}]},
            "run 1 (mine): no chip is called 'H1000'",
        ),
        ({"by": "me", "runs": [RUN | {"fsdp": 3}]}, "run 1 (mine): "),
        ({"by": "me", "runs": [RUN | {"remat": "blocks"}]}, "did you mean 'block'?"),
        ({"by": "me", "runs": [RUN | {"sequences_each": 1}]}, "sequences_each"),
        ({"by": "me", "runs": [RUN | {"fit": True}]}, "fit cannot be given"),
        ({"by": "me", "models": {"a": {"layers": 1}}, "runs": [RUN]}, "models, 'a': "),
        ({"by": "me", "chips": {"a": {"hbm_bytes": 1}}, "runs": [RUN]}, "chips, 'a': "),
    ],
)
def test_a_wrong_file_is_refused_by_run_and_key(written, data, said):
    with pytest.raises(ValueError) as error:
        read(written(data))
    assert said in str(error.value) and "mine.json" in str(error.value)


def test_text_that_is_not_json_is_refused(written):
    with pytest.raises(ValueError, match="is not JSON"):
        read(written(None, "{'by': 1}"))


def test_any_value_gives_entries_or_a_clear_error(written):
    chance = random.Random(7)
    values = [
        None,
        True,
        -1,
        0,
        1.5,
        10**40,
        "",
        "x",
        [],
        {},
        [1],
        {"a": 1},
        "H100",
        float("nan"),
        float("inf"),
    ]
    refused = 0
    for _ in range(400):
        run = dict(RUN)
        for key in chance.sample(
            [*RUN, "tensor", "models", "microbatches", "products", "slices", "peak_share"], 2
        ):
            run[key] = chance.choice(values)
        data = {"by": "me", "runs": [run]} | (
            {chance.choice(["models", "chips"]): chance.choice(values)}
            if chance.random() < 0.2
            else {}
        )
        try:
            assert len(read(written(data))) == 1
        except ValueError as error:
            refused += 1
            assert "mine.json" in str(error)
    assert 0 < refused < 400
