"""`shardlab ledger`: list what was predicted beside what was measured."""

import json
from dataclasses import asdict

from shardlab._arguments import nearest
from shardlab._tables import aligned
from shardlab.cli.arguments import Wrong
from shardlab.costs import serving
from shardlab.costs.bands import ENOUGH, KINDS_OF_PLANS
from shardlab.costs.ledger import Ledger, ledger, read
from shardlab.costs.rates import FITTED

ABOUT = "list what formulas predict beside what was measured, by others or by you"
EXAMPLES = """\
examples:
  shardlab ledger
  shardlab ledger --kind "training step" --misses
  shardlab ledger mine.json --json

A file of your own runs is JSON:
  {"by": "A. Reader, 2026-11-27",
   "runs": [{"name": "mine", "model": "llama-3-8b", "chip": "H100", "fsdp": 8, "sequences": 16,
             "sequence": 8192, "remat": "block", "seconds": 3.4}]}
"""


def add_arguments(command):
    """Add the options of the command to its parser."""
    command.add_argument(
        "file", nargs="?", help="your own runs, as JSON (default: what the book lists)"
    )
    command.add_argument("--kind", help="only this kind of prediction, such as 'training step'")
    command.add_argument(
        "--misses", action="store_true", help="only what contradicts its prediction"
    )


def run(options):
    """Print the ledger; returns the exit status: 0, or 1 if nothing is listed."""
    try:
        entries = read(options.file) if options.file else ledger()
    except OSError as error:
        raise Wrong(f"cannot read {options.file}: {error.strerror}") from None
    except ValueError as error:
        raise Wrong(str(error)) from None
    kinds = entries.kinds()
    if options.kind is not None and options.kind not in kinds:
        raise Wrong(
            f"--kind {options.kind}: use one of {', '.join(kinds)}{nearest(options.kind, kinds)}"
        )
    if options.kind is not None:
        kinds = {options.kind: kinds[options.kind]}
    listed = {
        kind: Ledger(e for e in group if e.misses or not options.misses)
        for kind, group in kinds.items()
    }
    if options.json:
        rows = [
            asdict(e) | {"factor": e.factor, "misses": e.misses}
            for group in listed.values()
            for e in group
        ]
        print(json.dumps(rows, indent=1))
        return 0 if rows else 1
    for kind, group in listed.items():
        if group:
            print(
                f"{kind}: {sum(e.misses for e in kinds[kind])} of {len(kinds[kind])} "
                "contradict their prediction"
            )
            print(f"{group!r}\n")
    if not options.file and not options.misses and options.kind is None:
        print(_kinds_tested())
    if not any(listed.values()):
        print("nothing that is listed contradicts its prediction")
    return 0 if any(listed.values()) else 1


def _kinds_tested():
    """For each kind of plan and family of servers: how many published ones test it, their median,
    and how many of them are inside its band.
    """
    kinds = {
        f"{family.upper()}: {KINDS_OF_PLANS[kind]}": band
        for family, fitted in FITTED.items()
        for kind, band in fitted.bands.items()
    }
    kinds |= {f"servers: {name}": band for name, band in serving.BANDS.items()}
    rows = [("kind, tested by what nothing was fitted to", "n", "measured/expected", "inside")]
    for name, band in kinds.items():
        inside = f"{band.inside:.0%} within {band.factor:.2f}"
        known = band.tested >= ENOUGH
        rows.append((name, f"{band.tested}", f"{band.median:.2f}", inside if known else "too few"))
    return aligned(rows)
