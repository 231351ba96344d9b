"""The explorer's twin of the formulas, its scripts fit.js and plan.js, against `shardlab.costs`:
without a browser.

Two hundred cases that `make check` runs in V8. tests/browser/test_explorer.py has them all, on a
page in Chromium.
"""

import json

import pytest
from explorer_cases import STATIC, compare_plans, compare_steps, fit_cases, plan_cases
from py_mini_racer import mini_racer

from shardlab import explorer

pytestmark = pytest.mark.reads("src/shardlab", "book/static/explorer")


@pytest.fixture(scope="module")
def solve():
    """Calls a function of the scripts on every case."""
    with mini_racer() as engine:
        engine.eval("var window = { explorer: {} }, explorer = window.explorer")
        for name in ("words.js", "fit.js", "plan.js"):
            engine.eval((STATIC / name).read_text("utf-8"))
        engine.eval(f"explorer.data = {json.dumps(explorer.data())}")

        def on_every(function, cases):
            called = (
                f"JSON.stringify({json.dumps(cases)}.map((given) => explorer.{function}(given)))"
            )
            return json.loads(engine.eval(called))

        yield on_every


def test_steps(solve):
    cases = fit_cases()[::14]
    kinds = compare_steps(cases, solve("fit", cases))
    assert len(cases) > 190 and {True, False, "refused", "compute", "fsdp", "tensor"} <= set(
        kinds
    ), kinds


def test_plans(solve):
    cases = plan_cases()[::10]
    kinds = compare_plans(cases, solve("plan", cases))
    assert len(cases) > 10 and {"fits", "remedy"} <= set(kinds), kinds


def test_a_changed_formula_is_seen(solve):
    cases = fit_cases()[:30]
    answers = solve("fit", cases)
    answer = next(one for one in answers if "error" not in one)
    answer["expected_seconds"] *= 1.0001
    with pytest.raises(AssertionError):
        compare_steps(cases, answers)
