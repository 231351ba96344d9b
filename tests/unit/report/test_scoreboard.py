"""What explain() says of public reports is what the page `scoreboard` shows."""

import importlib.util
import re
from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest
import reports
from places import ROOT

from shardlab import Pod
from shardlab.report.findings import Finding

pytestmark = pytest.mark.reads(
    "src/shardlab",
    "scripts/record_reports.py",
    "book/recordings/reports.txt",
    "tests/tools/cases",
)

spec = importlib.util.spec_from_file_location(
    "record_reports", ROOT / "scripts" / "record_reports.py"
)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
SHOWN = script.FILE.read_text("utf-8")
RECORDED = script.recorded(SHOWN)


@pytest.mark.parametrize("thread", reports.REPORTS)
def test_the_recorded_verdict_is_computed_again(thread):
    report = reports.REPORTS[thread]
    if f"jax {jax.__version__}" not in SHOWN:
        pytest.skip("recorded with another JAX")
    if report.pod and Pod(report.pod).compiler is None:
        pytest.skip("no compiler for TPUs is installed")
    said = reports.explained(report)
    found = [f"{finding.title}: {finding.says}" for finding in said.findings]
    assert reports.verdict(report, said) == RECORDED[thread], (
        f"{found}; if the new verdict is right, record it: make scoreboard"
    )


def test_the_page_shows_every_report_once_and_adds_up():
    assert set(RECORDED) == set(reports.REPORTS)
    total, *counts = map(int, re.findall(r"\d+", SHOWN.partition(".**")[0]))
    assert total == len(RECORDED) == sum(counts)
    assert counts == [list(RECORDED.values()).count(verdict) for verdict in reports.VERDICTS]


@pytest.mark.parametrize("report", reports.REPORTS.values(), ids=reports.REPORTS)
def test_a_report_has_a_thread_and_a_symptom_and_no_finding_fits_all(report):
    assert re.fullmatch(r"[\w-]+/[\w.-]+#[1-9]\d*", report.thread)
    assert re.fullmatch(r"[A-Z`].{40,240}\.", report.symptom)
    for advice in ("not donated: results have the types of x", "bf16 widened: 3 arrays"):
        assert not re.search(report.finding, advice)


A_REPORT = reports.Report("a/b#1", "", "same noise: .*data", "random", "", None)
RIGHT, OTHER = Finding("same noise", "devices along data"), Finding("not donated", "x")
ROW = SimpleNamespace(kind="all-gather", array="x", cause="random numbers", axes=("data",))


@pytest.mark.parametrize(
    ("findings", "moves", "verdict"),
    [
        ([RIGHT, OTHER], [], "right"),
        ([OTHER, RIGHT], [], "partly"),
        ([], [ROW], "partly"),
        ([], [], "silent"),
        ([OTHER], [ROW], "false"),
    ],
)
def test_a_verdict_is_that_of_the_first_finding(findings, moves, verdict):
    said = SimpleNamespace(findings=findings, moves=moves)
    assert reports.verdict(A_REPORT, said) == verdict


def test_a_worse_verdict_is_told_and_a_better_one_is_no_fault():
    old = {"a/b#1": "right", "a/b#2": "false", "a/b#3": "partly", "a/b#4": "right"}
    new = {"a/b#1": "silent", "a/b#2": "partly", "a/b#3": "partly", "a/b#5": "silent"}
    worse, other = script.compared(old, new)
    assert [re.search(r"a/b#\d: .*", line)[0] for line in worse] == [
        "a/b#1: was right, is silent",
        "a/b#4: is gone",
    ]
    assert [re.search(r"a/b#\d: .*", line)[0] for line in other] == [
        "a/b#2: was false, is partly",
        "a/b#5: was not recorded, is silent",
    ]


def test_words_are_shown_as_they_are_and_lines_counted_from_the_program():
    report = reports.REPORTS["sgl-project/sglang-jax#1083"]
    said = reports.explained(report)
    (text,) = script.answer(report, said)
    assert "a helper, called in line " in text and "reported_layouts.py" not in text
    assert "`f32[2048,256]`" in text and 'write `P("data")`' in text
    assert text.startswith("*constraint without an axis*: a helper")
    shown = script.entry(replace(report, pod="v5e:2x4", symptom="Reads `x_y`."), [text])
    assert ": Reads `x_y`." in shown and "compiled for v5e:2x4" in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('set f("a_b", True) here', 'set `f("a_b", True)` here'),
        ('a P(("x", "y")), or P()', 'a `P(("x", "y"))`, or `P()`'),
        ("state['w'] (as *x*) of `f`", r"`state['w']` (as \*x\*) of `f`"),
        ("from {m['x'=4], [{'y'}, {}]} to {m};", "from `{m['x'=4], [{'y'}, {}]}` to `{m}`;"),
        ("with check_vma=False, in_specs", "with `check_vma=False`, `in_specs`"),
    ],
)
def test_code_is_shown_as_code(text, shown):
    assert script.plain(text) == shown


@pytest.mark.parametrize(
    ("findings", "moves", "words"),
    [
        ([OTHER, RIGHT], [], ["*not donated*: x", "Finding 2 names it. *same noise*"]),
        ([], [ROW], ["No finding, but a row: *all-gather* along data: random numbers"]),
        ([], [], ["No finding."]),
    ],
)
def test_an_answer_shows_what_makes_it_partly_right(findings, moves, words):
    report = replace(A_REPORT, program=reports.REPORTS["markean/aimz#292"].program)
    texts = script.answer(report, SimpleNamespace(findings=findings, moves=moves))
    assert all(text.startswith(start) for text, start in zip(texts, words, strict=True))
