"""Fit what `shardlab.costs` expects of chips to published runs, and test it on those that are left out.

python scripts/fit_planner.py            print the fitted numbers, and the factor by which each run is off
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from shardlab import costs
from shardlab.costs.published import RUNS


def main():
    """Print the fit and how far off each run is."""
    for kind in ("gpu", "tpu"):
        costs.FITTED[kind] = fit(kind)
        print(f"    {kind!r}: {costs.FITTED[kind]},")
    for name, run in RUNS.items():
        step = run.cost()
        print(
            f"{name:50} {'fit ' if run.fit else 'test'} measured {run.seconds:7.2f} s, at least {step.seconds:7.2f}, "
            f"expected {step.expected_seconds:7.2f}, off by {step.expected_seconds / run.seconds:.2f}"
        )


def runs_of(kind, fit):
    """The runs on GPUs or on TPUs that are fitted to, or that are left out."""
    return [run for run in RUNS.values() if ("tpu" if run.machine.chip.torus else "gpu") == kind and run.fit == fit]


def errors(kind, fit):
    """The logarithms of expected over measured."""
    return np.log([float(run.cost().expected_seconds / run.seconds) for run in runs_of(kind, fit)])


def fit(kind):
    """The numbers that make the squares of the errors least."""
    start = costs.FITTED[kind]
    names = tuple(start.products)

    def made(values, digits=9):
        shares = np.clip(values, 0.05, 1)
        products = {name: round(float(share), digits) for name, share in zip(names, shares, strict=True)}
        other = round(float(np.exp(np.log(shares).mean())), digits)
        return replace(start, products=products, other=other)

    def loss(values):
        costs.FITTED[kind] = made(values)
        return (errors(kind, True) ** 2).sum()

    best = minimize(loss, list(start.products.values()), method="Powell", bounds=[(0.05, 1)] * len(names))
    costs.FITTED[kind] = made(best.x, 2)
    spread = float(np.exp(np.quantile(np.abs(errors(kind, False)), 0.9)))
    return replace(made(best.x, 2), spread=round(spread + 0.005, 2))


if __name__ == "__main__":
    main()
