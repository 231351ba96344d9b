"""Fit what `shardlab.costs` expects of chips to published runs, and test it on those that are left
out.

python scripts/fit_planner.py            print the fitted numbers, and the factor by which each run is off
python scripts/fit_planner.py ranks      print the rank of each run's mesh among the planner's, which is told what
                                         the framework of the run can do; takes minutes
"""  # noqa: E501

import sys
from collections import Counter
from dataclasses import fields, replace

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from shardlab import costs, inference, plan
from shardlab.costs import serving
from shardlab.costs.bands import KINDS_OF_PLANS
from shardlab.costs.plan import DTYPES
from shardlab.costs.published import RUNS, SERVERS


def main():
    """Print the fit and how far off each run is, or the ranks."""
    if sys.argv[1:] == ["ranks"]:
        return print_ranks()
    for kind in ("gpu", "tpu"):
        costs.FITTED[kind] = fit(kind)
        print(f"    {kind!r}: {costs.FITTED[kind]},")
    for kind in inference.SERVED:
        inference.SERVED[kind] = fit_servers(kind)
        print(f"    {kind!r}: {inference.SERVED[kind]},")
    for name, band in server_bands().items():
        print(f"    {name!r}: {band!r},")
    for name, run in RUNS.items():
        step = run.cost()
        print(
            f"{name:62} {run.kind:8} {'fit ' if run.fit else 'test'} measured "
            f"{run.seconds:7.2f} s, at least {step.seconds:7.2f}, expected "
            f"{step.expected_seconds:7.2f}, off by {step.expected_seconds / run.seconds:.2f}"
        )


def servers_of(kind, fit, tokens=False):
    """The servers on GPUs or on TPUs that are fitted to, or that are left out; or of those the ones
    whose times between tokens are measured.
    """
    return [
        server
        for server in SERVERS
        if server.on_gpus == (kind == "gpu")
        and server.fit == fit
        and (server.kind == "token") == tokens
    ]


def server_errors(servers):
    """The logarithms of measured over expected times."""
    return np.log([server.slower() for server in servers])


def stacked(costs):
    """A cost of arrays, from costs of numbers."""
    of = type(costs[0])
    return of(
        **{
            part.name: costs[0].kind
            if part.name == "kind"
            else np.array([getattr(cost, part.name) for cost in costs])
            for part in fields(of)
        }
    )


def quick_errors(servers):
    """A function that gives `server_errors` many times over: it composes the servers' parts
    once.
    """
    plain = [server for server in servers if server.chunk is None]
    chunked = [server for server in servers if server.chunk is not None]
    parts = [server.parts() for server in plain]
    steps, firsts, prompts = (
        stacked([getattr(part, of) for part in parts]) for of in ("step", "first", "prompts")
    )
    together = np.array([part.together for part in parts])
    batch, answer, tensor, measured, alone = np.array(
        [(s.batch, s.answer, s.tensor, s.measured, s.kind == "first_token") for s in plain]
    ).T

    def errors():
        way = serving.Parts(steps, firsts, prompts, together, None).ways()[1]
        rate = serving.composed(way, batch, None, answer)[5]
        return np.concatenate(
            [
                np.log(np.where(alone, measured / way.first, rate * answer / tensor / measured)),
                server_errors(chunked),
            ]
        )

    return errors


def fit_servers(kind):
    """What makes the squares of the servers' errors least; shares are kept between 0 and 1, times
    above 0.
    """
    errors = quick_errors(servers_of(kind, True))

    def served(values, digits=9):
        shares, seconds = 1 / (1 + np.exp(-values[:3])), np.abs(values[3:])
        return inference.Served(
            *(round(float(share), digits) for share in shares),
            *(round(float(s) * 1e-6, digits + 6) for s in seconds),
            start.token_layer_seconds,
        )

    def loss(values):
        inference.SERVED[kind] = served(values)
        return (errors() ** 2).sum()

    def tokens(value):
        inference.SERVED[kind] = replace(found, token_layer_seconds=round(float(value) * 1e-6, 8))
        return (server_errors(servers_of(kind, True, tokens=True)) ** 2).sum()

    start = inference.SERVED[kind]
    try:
        best = minimize(loss, [0.5, 2, 0, 150, 5], method="Nelder-Mead", options={"maxfev": 3000})
        found = served(best.x, 2)
        if kind == "tpu":  # too few of their times between tokens are known
            return replace(found, token_layer_seconds=found.layer_seconds)
        micros = minimize_scalar(tokens, (10, 400), method="bounded", bounds=(10, 400)).x
        return replace(found, token_layer_seconds=round(float(micros) * 1e-6, 8))
    finally:
        inference.SERVED[kind] = start


def server_bands():
    """For each family of servers the `Band` of those that were left out."""
    left = {}
    for server in SERVERS:
        if not server.fit:
            left.setdefault(server.band, []).append(server)
    return {name: costs.Band.of(np.exp(server_errors(servers))) for name, servers in left.items()}


def ranked(run, axes=None):
    """(the rank of a run's mesh among the planner's, of how many, its expected time over the best).

    The planner is told what the framework of the run does: its dtypes, what it rematerialises and
    overlaps, and the axes that it has, if no others are named. Meshes with the same tensor,
    pipeline, context and expert axes count as one, as it makes little difference how data and fsdp
    share the rest. A mesh that the planner does not propose has no rank.
    """
    how = {name: run.how[name] for name in DTYPES if name in run.how}
    asked = {
        name: run.how[name]
        for name in ("remat", "products", "overlap", "dispatch", "lora")
        if name in run.how
    }
    made = plan(
        run.model,
        run.machine,
        None,
        run.sequences * run.sequence,
        sequence=run.sequence,
        dtypes=how,
        axes=(run.axes if axes is None else axes) or None,
        nearest_batch=True,
        **asked,
    )
    same = ("tensor", "pipeline", "context", "expert")
    seen = list(
        dict.fromkeys(tuple(getattr(choice, axis) for axis in same) for choice in made.choices)
    )
    mesh = tuple(run.mesh[axis] for axis in same)
    if mesh not in seen:
        return None, len(seen), float("nan")
    own = next(
        choice for choice in made.choices if tuple(getattr(choice, axis) for axis in same) == mesh
    )
    return 1 + seen.index(mesh), len(seen), own.expected_seconds / made.choices[0].expected_seconds


def print_ranks():
    """The rank of each run's mesh, and for each kind of plan how many are among the first ten.

    At the end, how many would be if frameworks with fewer axes were offered all of them.
    """
    first, all_runs, wider = Counter(), Counter(), 0
    for name, run in RUNS.items():
        rank, of, times = ranked(run)
        family = "TPUs" if run.machine.chip.torus else "GPUs"
        among = rank is not None and rank <= 10
        for key in ((run.kind, family), ("all", "")):
            all_runs[key] += 1
            first[key] += among
        if run.axes:
            other, *_ = ranked(run, ())
            among = other is not None and other <= 10
        wider += among
        print(
            f"{name:62} {run.kind:8} {rank or 'not proposed'} of {of}, {times:.2f} times the best",
            flush=True,
        )
    for kind, family in all_runs:
        share = first[kind, family] / all_runs[kind, family]
        print(
            f"{kind} {family}: {first[kind, family]} of {all_runs[kind, family]} among the "
            f"first ten, {share:.0%}"
        )
    print(f"with all axes for all frameworks: {wider} of {len(RUNS)}, {wider / len(RUNS):.0%}")


def runs_of(kind, fit):
    """The runs on GPUs or on TPUs that are fitted to, or that are left out."""
    return [
        run
        for run in RUNS.values()
        if ("tpu" if run.machine.chip.torus else "gpu") == kind and run.fit == fit
    ]


def errors(runs):
    """The logarithms of expected over measured."""
    return np.log([float(run.cost().expected_seconds / run.seconds) for run in runs])


def fit(kind):
    """The numbers that make the squares of the errors least: of the chips on dense models, then
    that of mixtures.
    """
    start = costs.FITTED[kind]
    dense, narrow, mixtures = [], [], []
    for run in runs_of(kind, fit=True):
        cast = run.how.get("products", "bf16") != "bf16"
        (mixtures if run.model.experts else narrow if cast else dense).append(run)

    def chips(shares, digits=9):
        products = {
            name: round(float(share), digits)
            for name, share in zip(start.products, shares, strict=True)
        }
        return replace(
            start, products=products, other=round(float(np.exp(np.log(shares).mean())), digits)
        )

    def halves(values, digits=9):
        half = start.half | {"narrow": round(1000 * float(values[0]), max(digits - 3, -1))}
        return replace(costs.FITTED[kind], half=half)

    def widths(values, digits=9):
        half = round(1000 * float(values[0]), max(digits - 3, -1))
        grouped = costs.FITTED[kind].grouped | {"bf16": costs.Grouped(1.0, half)}
        return replace(costs.FITTED[kind], grouped=grouped)

    def cast_widths(values, digits=9):
        share, half = float(values[0]), 1000 * float(values[1])
        reached = costs.Grouped(round(share, digits), round(half, max(digits - 3, -1)))
        grouped = costs.FITTED[kind].grouped | {"narrow": reached}
        return replace(costs.FITTED[kind], grouped=grouped)

    def shares(values, digits=9):
        found = round(float(values[0]), digits)
        grouped = {name: replace(of, share=found) for name, of in start.grouped.items()}
        return replace(costs.FITTED[kind], grouped=grouped)

    # (how the numbers are used, the runs, where to begin, the largest, the power of an error): of
    # TPUs too few runs of mixtures are known for more than one share. Of four mixtures in bf16 on
    # GPUs one takes almost twice as long as expected, and its square would decide alone.
    steps = [(chips, dense, [*start.products.values()], 1, 2)]
    if kind == "gpu":
        narrow_mixtures = [run for run in mixtures if run.kind == "narrow mixture"]
        plain = [run for run in mixtures if run.kind == "mixture"]
        steps += [(halves, narrow, [0.4], 2, 2), (widths, plain, [0.1], 6, 1)]
        steps += [(cast_widths, narrow_mixtures, [0.8, 0.5], 2, 2)]
    else:
        steps += [(shares, mixtures, [0.5], 1, 2)]
    for made, runs, begin, most, power in steps:

        def loss(values, made=made, runs=runs, most=most, power=power):
            costs.FITTED[kind] = made(np.clip(values, 0.01, most))
            return (np.abs(errors(runs)) ** power).sum()

        best = minimize(loss, begin, method="Powell", bounds=[(0.01, most)] * len(begin))
        costs.FITTED[kind] = made(np.clip(best.x, 0.01, most), 2)
    return replace(costs.FITTED[kind], bands=bands(kind))


def bands(family):
    """The `Band` of each kind of plan on GPUs or TPUs, of the runs that were left out."""
    left_out = runs_of(family, fit=False)
    found = {}
    for kind in KINDS_OF_PLANS:
        took = np.array(
            [
                run.seconds / float(run.cost().expected_seconds)
                for run in left_out
                if run.kind == kind
            ]
        )
        if len(took):
            found[kind] = costs.Band.of(took)
    return found


if __name__ == "__main__":
    main()
