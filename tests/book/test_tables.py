"""Formulas in tables that are written by hand, evaluated and held against what shardlab counts."""

import re
from fractions import Fraction

import pytest
from repository import BOOK

from shardlab import MODELS, Parallelism, costs

pytestmark = pytest.mark.reads("book", "src", "_config.yml", "_toc.yml", "pyproject.toml")


def table(chapter, first):
    """The rows of the table whose first row begins with a cell, as lists of cells."""
    lines = BOOK.chapter(chapter).text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    while lines[start].startswith("|"):
        rows.append([cell.strip() for cell in lines[start].strip("|").split("|")])
        start += 1
    return rows


def value(formula, **names):
    """The value of a formula as people write it: "2 (n-1)/n · S", "8 L A / n"."""
    text = re.sub(r"(?<=[\w)])\s*(?:·\s*)?(?=[A-Za-z(])", "*", formula.replace("·", " · ")).replace(
        " · ", "*"
    )
    return eval(
        text, {"__builtins__": {}}, {name: Fraction(number) for name, number in names.items()}
    )


def test_a_formula_is_read_as_people_write_it():
    names = {"n": 8, "S": 64, "L": 3, "A": 5, "M": 4, "k": 2, "c": 1}
    assert value("2 (n-1)/n · S", **names) == 112 and value("(n-1)/n · S/n", **names) == 7
    assert value("4 L k c A / n", **names) == 15 and value(
        "2 A (M + n - 1) / M", **names
    ) == Fraction(55, 2)
    assert value("8 (M/n + 9 - M)", **names) == 44


@pytest.mark.parametrize("n", [2, 8])
def test_what_collectives_send_and_how_often(n):
    rows = table("collectives", "collective permute")
    assert len(rows) == 5
    for name, _, _, sends, rounds in rows:
        kind = name.replace(" ", "-").replace("collective-collective", "collective")
        # the larger of before and after
        stored = "S/n" if name in ("collective permute", "all-to-all") else "S"
        array = value(stored, S=1024, n=n)
        assert value(sends, S=1024, n=n) == costs.collective_bytes(kind, float(array), n), name
        hops = costs.latency_seconds(kind, n, "H100") / costs.latency_seconds(
            "collective-permute", n, "H100"
        )
        assert float(value(rounds.partition(" steps")[0], n=n)) == pytest.approx(hops), name


def test_what_the_stages_of_zero_store():
    numbers = {"N": 396_288, "M": 396_288 - 3072, "n": 8}
    rows = table("zero", "data parallelism")
    assert [name for name, *_ in rows] == ["data parallelism", "ZeRO-1", "ZeRO-2", "ZeRO-3, FSDP"]
    for name, parameters, moments, stored, gradients in rows:
        assert value(parameters, **numbers) + value(moments, **numbers) == int(
            stored.replace(",", "")
        ), name
        assert value(gradients, **numbers) in (
            value("4N", **numbers),
            value("4 (M/n + N - M)", **numbers),
        )
    in_shards = [["M/n" in cell for cell in (row[1], row[4], row[2])] for row in rows]
    # state of stages 3, 2, 1
    assert in_shards == [[False] * 3, [False, False, True], [False, True, True], [True] * 3]


def test_what_kinds_of_parallelism_send():
    """Without remat as the planner counts it, but for the exact (n - 1)/n and the tables of
    tokens.
    """
    n, tokens = 8, 8 * 4096
    sends = {
        re.search(r"`([\w -]+?) <", row[0])[1]: row[2:4]
        for row in table("together", "{doc}`data parallel <transformer>`")
    }
    llama, mixtral = MODELS["llama-3-8b"], MODELS["mixtral-8x7b"]

    def sent(axis, model, **how):
        parallelism = Parallelism(
            **{axis: n}, **({"microbatches": n} if axis == "pipeline" else {})
        )
        return float(
            costs.step_cost(model, "v5p", parallelism, tokens, remat="none", **how).axes[axis].bytes
        )

    def said(name, model, column=0):
        formula = re.match(r"[^,]*", sends[name][column])[0]
        names = {
            "L": model.layers,
            "A": 2 * tokens * model.d_model,
            "P": 2 * model.parameters,
            "M": n,
            "n": n,
            "c": 1,
        }
        return float(value(formula, k=model.experts_per_token, **names))

    share = (n - 1) / n
    assert sent("data", llama) == pytest.approx(share * said("data parallel", llama))
    assert sent("fsdp", llama, gathers=1) == pytest.approx(share * said("FSDP", llama))
    assert sent("fsdp", llama) == pytest.approx(share * said("FSDP", llama, 1))
    assert sent("tensor", llama) == pytest.approx(share * said("tensor", llama), rel=0.02)
    assert sent("expert", mixtral) * n == pytest.approx(
        n * share * said("experts", mixtral), rel=1e-6
    )
    # permutes run in all ticks, and the planner counts those with a micro-batch
    bubble = (2 * n - 1) / n
    assert sent("pipeline", llama) * bubble == pytest.approx(said("pipeline", llama), rel=0.01)
