"""`shardlab plan --serve`: what it prints as text and as JSON, and which options it refuses."""

import json
import re

import pytest

from shardlab import machine, serving

pytestmark = pytest.mark.reads("src/shardlab")

PLAN = ("plan", "llama-3-70b", "h100", "8")
SERVE = (*PLAN, "--serve", "--prompt", "2k", "--output", "256")


def told(run, *arguments):
    """What the command prints as JSON."""
    status, out, err = run(*arguments, "--json")
    assert not err
    return status, json.loads(out)


def test_the_layouts_are_those_of_the_plan(run):
    status, plan = told(run, *SERVE, "--latency", "60")
    expected = serving.server_plan(
        "llama-3-70b", machine("h100", 8), 2048, 256, slow_token_seconds=0.06
    )
    assert status == 0 and plan["prompt_tokens"] == 2048 and plan["output_tokens"] == 256
    assert [row["concurrency_requests"] for row in plan["layouts"]] == [
        cost.concurrency for cost in expected
    ]
    for row, cost in zip(plan["layouts"], expected, strict=True):
        assert serving.Layout(**row["layout"]) == cost.layout and row["fits"] == cost.fits
        assert (
            serving.Times(**row["expected"]) == cost.expected
            and serving.Times(**row["at_least"]) == cost.least
        )
        for name, ends in row["range"].items():
            assert (ends is None) == (row["tested_servers"][name] < 8)
            assert ends is None or ends[0] < row["expected"][name] < ends[1]
        first = row["range"]["first_token_seconds"]
        assert first == list(cost.first_token_range)
        assert first[1] > row["expected"]["burst_first_token_seconds"]
    assert [row["fast_enough"] for row in plan["layouts"]] == [True, True, True, True]


def test_the_best_layout_is_shown_by_requests_up_to_its_memory(run):
    _, plan = told(run, *SERVE)
    rows, best = plan["batches"], plan["layouts"][0]
    assert rows[-1] == best and all(row["layout"] == best["layout"] for row in rows)
    speeds = [row["expected"]["tokens_per_second_per_chip"] for row in rows]
    assert speeds == sorted(speeds) and rows[-1]["total_bytes_per_chip"] <= 0.9 * 80e9
    assert 2 * rows[-2]["concurrency_requests"] == rows[-1]["concurrency_requests"]


def test_the_text_has_what_is_expected_its_bound_and_its_range(run):
    status, out, err = run(*SERVE, "--latency", "60", "--first-token", "300")
    assert status == 0 and not err
    lines = out.splitlines()
    assert lines[0] == "llama-3-70b on h100:1x8: prompts of 2,048 tokens, answers of 256"
    best, slow = (
        next(line for line in lines if line.lstrip().startswith(word)) for word in ("yes", "slow")
    )
    assert "2 replicas of tensor 4" in best and "parameters" in best and slow
    each = next(line for line in lines if line.startswith("Time for each token: "))
    assert "within a factor of" in each and "measurements left out" in each
    assert "prompts take" in out
    assert "% of 105 published measurements left out" in run(*SERVE)[1]
    _, plan = told(run, *SERVE, "--latency", "60", "--first-token", "300")
    times = plan["layouts"][0]
    shown = (
        f"{1e3 * times['expected']['token_seconds']:,.1f} "
        f"({1e3 * times['at_least']['token_seconds']:,.1f})"
    )
    assert shown in best and times["expected"]["first_token_seconds"] <= 0.3
    # of more requests a range, and why it is wide
    out = run(*SERVE, "--concurrency", "64")[1]
    ends = ends_shown(out)
    assert ends[1] > 10 * ends[0]
    assert "come independently of each other, the second for the last of a burst; 100% of 24" in out


def ends_shown(out):
    """The two times to a first token of the best layout."""
    best = next(line for line in out.splitlines() if line.lstrip().startswith("yes"))
    return [float(n.replace(",", "")) for n in re.search(r"([\d,]+) to ([\d,]+) \(", best).groups()]


def test_chunks_are_compared_with_whole_prompts(run):
    out = run(*SERVE, "--chunk", "512", "--concurrency", "64")[1]
    assert (
        "512 tokens of prompts with each step" in out
        and "Without --chunk, the first token takes" in out
    )


def test_what_does_not_fit_or_is_too_slow_is_another_status(run):
    status, out, _ = run("plan", "llama-3-70b", "h100", "1", "--serve")
    assert (
        status == 1
        and "Not even one sequence: one chip needs 143.8 GB" in out
        and "--weights int4 would do: one chip" in out
        and "The fewest H100 that meet this: 2" in out
    )
    # fp8 was given, and int8 is no narrower
    out = run("plan", "llama-3-405b", "h100", "2", "--serve", "--weights", "fp8")[1]
    assert "int8" not in out and "The fewest H100 that meet this: 8" in out
    status, out, _ = run(*SERVE, "--latency", "2")
    assert status == 1 and "No layout is expected to be as fast as asked for" in out
    status, plan = told(run, *SERVE, "--latency", "2")
    assert (
        status == 1 and plan["able"] == 0 and not any(row["fast_enough"] for row in plan["layouts"])
    )


def test_a_layout_or_a_chip_without_a_published_server_says_so(run):
    served = ("4", "--serve", "--concurrency", "64", "--context", "2k")
    for chip, says in (
        ("v5e", "Throughput: no range is known; fewer than eight published servers test it"),
        ("v6e", "of 10 published measurements left out"),
    ):
        assert says in run("plan", "llama-3-8b", chip, *served)[1]


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ((), (7936, 256)),
        (("--context", "4k"), (3840, 256)),
        (("--prompt", "100"), (100, 256)),
        (("--output", "1k"), (7168, 1024)),
        (("--context", "4k", "--output", "96"), (4000, 96)),
        (("--context", "4k", "--prompt", "4000"), (4000, 96)),
        (("--prompt", "7", "--output", "3"), (7, 3)),
    ],
)
def test_a_context_is_a_prompt_and_an_answer(run, given, lengths):
    _, plan = told(run, "plan", "llama-3-8b", "h100", "1", "--serve", *given)
    assert (plan["prompt_tokens"], plan["output_tokens"]) == lengths


def test_dtypes_slices_and_rows(run):
    serve = (*PLAN[:3], "16", "--serve", "--weights", "fp8")
    _, plan = told(run, *serve, "--products", "fp8", "--slices", "2", "--top", "2")
    assert plan["machine"] == "h100:2x8" and len(plan["layouts"]) == 2
    _, slower = told(run, *serve, "--top", "1")
    fast, slow = (
        some["layouts"][0]["expected"]["tokens_per_second_per_chip"] for some in (plan, slower)
    )
    assert fast > 1.2 * slow


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--latency", "30"), "without --serve, --latency has no effect; add --serve"),
        (("--prompt", "30", "--chunk", "8"), "without --serve, --chunk, --prompt have no effect"),
        (("--serve", "--latency", "nan"), "--latency is nan ms; use a number above 0"),
        (("--serve", "--latency=-3"), "--latency is -3 ms"),
        (("--serve", "--first-token", "inf"), "--first-token is inf ms"),
        (("--serve", "--first-token", "0"), "--first-token is 0 ms"),
        (("--serve", "--prompt", "0"), "--prompt is 0; use a whole number"),
        (("--serve", "--output", "2.5"), "'2.5' is no whole number"),
        (("--serve", "--concurrency", "0"), "--concurrency is 0"),
        (("--serve", "--chunk", "0"), "--chunk is 0"),
        (("--serve", "--context", "256"), "a context of 256 tokens has no room for both"),
        (
            ("--serve", "--context", "9", "--prompt", "4", "--output", "5"),
            "leave one of the three out",
        ),
        (("--serve", "--weights", "fp6"), "weights='fp6' is not known"),
        (("--serve", "--products", "fp4"), "H100 has no peak for 'fp4'"),
        (("--serve", "--products", "fp6"), "dtype='fp6' is not known"),
        (("--serve", "--reserve", "2"), "reserve=2.0"),
        (("--serve", "--remat", "none", "--axes", "data"), "where --axes, --remat have no effect"),
        (("--serve", "--verify", "1"), "where --verify has no effect; leave out"),
        (("--serve", "--plot", "plan.svg"), "where --plot has no effect; leave out"),
        (("--serve", "--sequence", "1k"), "where --sequence has no effect; leave out"),
    ],
)
def test_a_wrong_option_is_refused(refused, options, says):
    assert says in refused(*PLAN, *options)


def test_the_ledger_says_of_each_kind_how_many_test_it(run):
    _, out, _ = run("ledger")
    rows = out[out.index("kind, tested by") :].splitlines()[1:]
    assert len(rows) > 20
    for row in rows:
        name, few, _, inside = re.split(r"\s{2,}", row.strip())
        assert (inside == "too few") == (int(few) < 8), row
        assert inside == "too few" or int(inside.split("%")[0]) >= 90, name
