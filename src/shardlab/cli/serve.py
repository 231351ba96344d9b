"""`shardlab plan --serve`: list the layouts of a server, by expected throughput within bounds on
its latencies.
"""

import argparse
import json
from dataclasses import asdict

from shardlab._tables import aligned
from shardlab.costs import serving
from shardlab.costs.serving import server_cost
from shardlab.machines import hardware, models

OUTPUT = 256  # tokens of an answer, if nothing is said
OPTIONS = (
    "prompt",
    "output",
    "context",
    "concurrency",
    "chunk",
    "latency",
    "first_token",
    "weights",
    "cache",
)
# with the planning of training
SHARED = ("model", "chip", "chips", "serve", "slices", "products", "reserve", "top")


def add_arguments(command, number):
    """Add the options of serving to a parser; `number` reads a whole one, such as 8k."""
    served = command.add_argument_group("serving instead of training")
    served.add_argument(
        "--serve", action="store_true", help="plan inference: prefill and decode on so many chips"
    )
    served.add_argument(
        "--prompt",
        type=number,
        metavar="N",
        help="tokens of a prompt (of --context, less --output)",
    )
    served.add_argument(
        "--output", type=number, metavar="N", help=f"tokens of an answer ({OUTPUT})"
    )
    served.add_argument(
        "--context", type=number, metavar="N", help="tokens of both together (8192)"
    )
    served.add_argument(
        "--concurrency",
        type=number,
        metavar="N",
        help=(
            "requests at a time, of all replicas (for each layout the power of two on each "
            "replica that is best)"
        ),
    )
    served.add_argument(
        "--chunk",
        type=number,
        metavar="N",
        help=(
            "tokens of prompts that are prefilled with each step (prompts are prefilled whole, "
            "between steps)"
        ),
    )
    served.add_argument(
        "--latency",
        type=float,
        metavar="MS",
        help="longest time from a token to the next, for 95 of 100 of them, in milliseconds",
    )
    served.add_argument(
        "--first-token",
        type=float,
        metavar="MS",
        help="longest time to the first one, where requests come independently of each other",
    )
    served.add_argument(
        "--weights", default="bf16", metavar="DTYPE", help="dtype of the parameters (bf16)"
    )
    served.add_argument(
        "--cache", default="bf16", metavar="DTYPE", help="dtype of the KV cache (bf16)"
    )


def lengths(options: argparse.Namespace) -> tuple[int, int]:
    """Tokens of a prompt and of an answer, of which --context is the sum."""
    prompt, output, context = options.prompt, options.output, options.context
    if None not in (prompt, output, context):
        raise ValueError("--context is --prompt and --output together; leave one of the three out")
    for name, value in (("prompt", prompt), ("output", output), ("context", context)):
        if value is not None and value < 1:
            raise ValueError(f"--{name} is {value}; use a whole number of at least 1")
    if prompt is not None and context is not None:
        output = context - prompt
    output = OUTPUT if output is None else output
    prompt = (context or 8192) - output if prompt is None else prompt
    if min(prompt, output) < 1:
        raise ValueError(
            f"a context of {context or 8192} tokens has no room for both; use a longer --context"
        )
    return prompt, output


def run(options: argparse.Namespace) -> int:
    """Print the layouts; returns the exit status: 0, or 1 if none fits and is fast enough."""
    for name in ("latency", "first_token"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} is {value:g} ms; use a number above 0")
    for name in ("concurrency", "chunk"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise ValueError(
                f"--{name} is {getattr(options, name)}; use a whole number of at least 1"
            )
    model, (prompt, output) = models.parse(options.model), lengths(options)
    machine = hardware.machine(
        options.chip, options.chips, slices=options.slices, reserve=options.reserve
    )
    replica_options = {
        "weights": options.weights,
        "cache": options.cache,
        "dtype": options.products,
        "chunk": options.chunk,
    }
    bounds = {
        "slow_token_seconds": (options.latency or float("inf")) / 1e3,
        "first_token_seconds": (options.first_token or float("inf")) / 1e3,
    }
    plans = serving.server_plan(
        model, machine, prompt, output, options.concurrency, **bounds, **replica_options
    )
    if not plans:
        raise ValueError(
            f"--concurrency {options.concurrency} gives some replicas no request; use more of them"
        )
    able = [cost for cost in plans if cost.fits and _fast(cost, bounds)]
    asked = (model, machine, prompt, output, options.concurrency)
    found = serving.fewest_chips(*asked, **bounds, **replica_options)
    remedies = {} if able else serving.remedies(*asked, **bounds, **replica_options)
    rows = list(serving.batches(model, machine, prompt, output, plans[0].layout, **replica_options))
    if options.json:
        record = {
            "model": model.name,
            "machine": machine.name,
            "prompt_tokens": prompt,
            "output_tokens": output,
        }
        record |= {"chunk_tokens": options.chunk, "able": len(able)}
        record |= {"fewest": found and _record(found, bounds)}
        record |= {
            "remedies": [
                {"change": what} | _record(cost, bounds) for what, cost in remedies.items()
            ]
        }
        record |= {"layouts": [_record(cost, bounds) for cost in plans[: options.top]]}
        record |= {"batches": [_record(cost, bounds) for cost in rows]}
        print(json.dumps(record, indent=1))
        return 0 if able else 1
    print(_report(model, machine, prompt, output, plans, rows, bounds, options))
    print(_search(found, remedies, machine, bounds))
    return 0 if able else 1


def _fast(cost, bounds):
    return all(getattr(cost.expected, name) <= bound for name, bound in bounds.items())


def _record(cost, bounds):
    """A `ServerCost` as JSON has it: units are in the names."""
    expected, bands = asdict(cost.expected), cost.bands
    by_time = {
        "token_seconds": bands.token, "tokens_per_second_per_chip": bands.throughput,
        "requests_per_second": bands.throughput,
    }  # fmt: skip
    ranges = {name: band and band.range(expected[name]) for name, band in by_time.items()}
    by_time["first_token_seconds"] = bands.first_token
    return {
        "layout": asdict(cost.layout), "concurrency_requests": cost.concurrency, "fits": cost.fits,
        "fast_enough": _fast(cost, bounds), "expected": expected, "at_least": asdict(cost.least),
        "range": ranges | {"first_token_seconds": cost.first_token_range},
        "tested_servers": {name: band.tested if band else 0 for name, band in by_time.items()},
        "prefill_share": cost.prefill_share, "mean_context_tokens": cost.context,
        "bound": cost.bound,
        "total_bytes_per_chip": cost.total_bytes,
    }  # fmt: skip


def _first(times):
    """The time to the first token, in ms, and in a burst."""
    ends = [times.first_token_seconds, times.burst_first_token_seconds]
    return " to ".join(dict.fromkeys(f"{seconds * 1e3:,.0f}" for seconds in ends))


def _row(first, cost, bounds):
    """A row of a table: what is expected, and in parentheses the bound."""
    least, expected = cost.least, cost.expected
    able = "yes" if cost.fits and _fast(cost, bounds) else "slow" if cost.fits else "no"
    return (
        able, first, f"{cost.concurrency:,}",
        f"{_first(expected)} ({least.first_token_seconds * 1e3:,.0f})",
        f"{expected.token_seconds * 1e3:,.1f} ({least.token_seconds * 1e3:,.1f})",
        f"{expected.slow_token_seconds * 1e3:,.0f}", f"{expected.pause_seconds * 1e3:,.0f}",
        f"{expected.tokens_per_second_per_chip:,.0f} ({least.tokens_per_second_per_chip:,.0f})",
        f"{expected.requests_per_second:,.2f}", cost.bound, f"{cost.total_bytes / 1e9:,.1f}",
    )  # fmt: skip


def _report(model, machine, prompt, output, plans, rows, bounds, options):
    """The text of a plan."""
    head = (
        "requests",
        "first token ms",
        "token ms",
        "95 % ms",
        "pause ms",
        "tokens/s/chip",
        "requests/s",
        "bound by",
        "GB",
    )
    best = plans[0]
    chunks = f", {options.chunk:,} tokens of prompts with each step" if options.chunk else ""
    lines = [
        (
            f"{model.name or 'model'} on {machine.name}: prompts of {prompt:,} tokens, answers of "
            f"{output:,}{chunks}"
        ),
        "Expected; in parentheses the bound: times are at least, throughputs at most this.\n",
        aligned(
            [
                ("fits", "layout", *head),
                *(_row(str(c.layout), c, bounds) for c in plans[: options.top]),
            ],
            "<<>",
        ),
    ]
    if not best.fits:
        return "\n".join([*lines, "", _too_large(best, machine)])
    shown = [_row("", cost, bounds) for cost in rows]
    if not any(cost.concurrency == best.concurrency for cost in rows):
        shown.append(_row("", best, bounds))
    lines += [
        f"\n{best.layout}, by requests at a time:\n",
        aligned([("fits", "", *head), *shown], "<<>"),
        (
            f"\nWith {best.concurrency:,} requests, prompts take {best.prefill_share:.0%} of the "
            f"time, and a sequence has {best.context:,.0f} tokens on average."
        ),
    ]
    if not _fast(best, bounds):
        lines.append("No layout is expected to be as fast as asked for.")
    times, bands = best.expected, best.bands
    for what, band, value, unit in (
        ("Throughput", bands.throughput, times.tokens_per_second_per_chip, "tokens/s/chip"),
        ("Time for each token", bands.token, times.token_seconds * 1e3, "ms"),
    ):
        if band:
            low, high = band.range(value)
            lines.append(f"{what}: {low:,.0f} to {high:,.0f} {unit}, {band}.")
        else:
            lines.append(f"{what}: {serving.UNTESTED}")
    lines.append(_first_token(best))
    if options.chunk:
        whole = server_cost(
            model,
            machine,
            prompt,
            output,
            best.concurrency,
            best.layout,
            weights=options.weights,
            cache=options.cache,
            dtype=options.products,
        ).expected
        lines.append(
            f"Without --chunk, the first token takes {_first(whole)} ms instead of "
            f"{_first(times)}, a token "
            f"{whole.token_seconds * 1e3:,.1f} ms instead of "
            f"{times.token_seconds * 1e3:,.1f}, and the longest pause "
            f"{whole.pause_seconds * 1e3:,.0f} ms instead of {times.pause_seconds * 1e3:,.0f}."
        )
    return "\n".join(lines)


def _first_token(cost):
    """The range of the time to the first token."""
    ends, band = cost.first_token_range, cost.bands.first_token
    what = "Time to the first token: "
    if not (band and ends):
        return what + serving.UNTESTED
    what += f"{ends[0] * 1e3:,.0f} to {ends[1] * 1e3:,.0f} ms, "
    if cost.concurrency == cost.layout.replicas:
        return f"{what}{band}."
    return (
        f"{what}the first if requests come independently of each other, the second for the last "
        f"of a burst; {band.inside:.0%} of {band.tested} published measurements left out were "
        "within."
    )


def _too_large(cost, machine):
    """What helps if no layout fits."""
    many = (
        "one sequence"
        if cost.concurrency == cost.layout.replicas
        else f"{cost.concurrency:,} requests"
    )
    return (
        f"Not even {many}: {cost.layout} needs {cost.total_bytes / 1e9:.1f} GB on each chip, "
        f"of which {machine.usable_bytes / 1e9:.1f} GB are usable."
    )


def _search(found, remedies, machine, bounds):
    """The fewest chips that do it, and if these chips do not, the one change that would help."""
    name = machine.chip.name
    lines = [f"{what} would do: {_brief(cost)}." for what, cost in remedies.items()]
    if found:
        lines.append(f"The fewest {name} that meet this: {found.layout.chips}, as {_brief(found)}.")
    elif not remedies:
        within = " within these bounds" * (min(bounds.values()) < float("inf"))
        lines.append(
            f"Neither sixteen times the {name} nor another dtype nor chunks of prompts serve this"
            f"{within}; ask for less, or use another chip."
        )
    return "\n".join(lines)


def _brief(cost):
    times = cost.expected
    return (
        f"{cost.layout}, {cost.concurrency:,} requests at a time, "
        f"{times.slow_token_seconds * 1e3:,.0f} ms for 95 of 100 tokens, "
        f"{_first(times)} ms to the first"
    )
