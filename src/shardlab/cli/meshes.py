"""`shardlab plan`: list the meshes on which a model fits, by predicted step time."""

import argparse
import json
import sys
import time
from functools import partial

from shardlab import costs
from shardlab.cli import serve
from shardlab.cli.arguments import Wrong
from shardlab.costs.bands import band_of
from shardlab.costs.plan import FASTER, plan, whole_number
from shardlab.costs.setting import DISPATCHES, OVERLAPS
from shardlab.costs.steps.parallelism import MESH_AXES
from shardlab.machines import hardware, models

ABOUT = "list the meshes on which a model fits, by predicted step time"
# 12 bytes for each parameter
STATE = {"parameters": "bf16", "gradients": "bf16", "moments": "f32", "master": "none"}
WHAT = {
    "parameters": (
        "the parameters; with f32 for them and for gradients 16 bytes each, as MaxText has; nf4, "
        "with --lora, as QLoRA has"
    ),
    "gradients": "their gradients",
    "moments": "each of Adam's two moments",
    "master": "a copy of the parameters in higher precision, as Megatron-LM has, or none",
}
EXAMPLES = """\
examples:
  shardlab plan llama-3-70b v5p 512
  shardlab plan llama-3-8b h100 256 --batch-tokens 4M --sequence 8192 --json
  shardlab plan llama-3-8b "rtx 4090" 4 --batch-tokens 64k --lora 16 --parameters nf4
  shardlab plan llama-3-70b h100 8 --serve --prompt 2048 --output 256 --latency 60

Times and bytes are predicted by formula; --verify 3 compares the bytes of the best three with the chips' own compiler,
which needs no chips but takes minutes. A model of your own: give the path of its config.json, or its sizes.
"""  # noqa: E501


def _number(text):
    try:
        return whole_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_arguments(command):
    """Add the options of the command to its parser."""
    sizes = ",".join(f"{size}=N" for size in models.SIZES)
    command.add_argument(
        "model", help=f"{', '.join(models.MODELS)}; a config.json; or sizes: {sizes}"
    )
    command.add_argument(
        "chip",
        help=f"{', '.join(hardware.CHIPS)}; RTX 3090, RTX 4090, RTX 5090, L4, A10G, T4; or v5p-256",
    )
    command.add_argument(
        "chips", type=_number, nargs="?", help="how many chips; after v5p-256 they are known"
    )
    command.add_argument(
        "--batch-tokens",
        type=_number,
        default=4 * 2**20,
        metavar="N",
        help=(
            "tokens in a batch, of all chips and micro-batches together; k, M and G are powers of "
            "1024 (4M)"
        ),
    )
    command.add_argument(
        "--sequence", type=_number, default=4096, metavar="N", help="tokens of a sequence (4096)"
    )
    command.add_argument(
        "--slices",
        type=_number,
        metavar="N",
        help=(
            "slices of a TPU, connected by the DCN (1); of GPUs, nodes (the fewest that hold them)"
        ),
    )
    command.add_argument(
        "--remat",
        choices=(*costs.REMAT, *costs.POLICIES),
        metavar="KIND",
        help="what the backward pass rematerialises, in all meshes alike: none; matmuls, the "
        "scores of attention; mlp, "
        "all of attention; block, whole layers; offload, whole layers with their inputs in "
        "the host's memory; or a policy of MaxText or Megatron-LM: "
        f"{', '.join(costs.POLICIES)} (the fastest of the first five with which a mesh fits)",
    )
    for name, default in STATE.items():
        command.add_argument(
            f"--{name}", default=default, metavar="DTYPE", help=f"dtype of {WHAT[name]} ({default})"
        )
    command.add_argument(
        "--products", default="bf16", metavar="DTYPE", help="dtype of the layers' products (bf16)"
    )
    command.add_argument(
        "--lora",
        type=_number,
        default=0,
        metavar="RANK",
        help="fine-tune with adapters of this rank on a frozen model, such as 16; with "
        "--parameters nf4 as QLoRA does, or int8 (0: train all parameters)",
    )
    command.add_argument(
        "--adapted",
        default="all",
        metavar="MATRICES",
        help="with --lora, which matrices have adapters: attention, or all (all)",
    )
    command.add_argument(
        "--axes",
        help=f"which axes to try, of {','.join(MESH_AXES)} (data,fsdp,tensor; on several nodes of "
        "GPUs "
        "pipeline and context too; for sequences of 32k tokens or more context; for a mixture "
        "of experts expert)",
    )
    command.add_argument(
        "--microbatches",
        type=_number,
        metavar="N",
        help="how many (for each mesh the power of two that is best)",
    )
    command.add_argument(
        "--stages",
        type=_number,
        metavar="N",
        help=(
            "stages on each chip of a pipeline, an interleaved schedule (1, 2, 4 or 8, whichever "
            "is best)"
        ),
    )
    command.add_argument(
        "--gathers",
        type=int,
        choices=(1, 2),
        help=(
            "how often FSDP gathers a parameter: 2, in both passes of each micro-batch; 1, once "
            "in a step (the best)"
        ),
    )
    command.add_argument(
        "--overlap",
        nargs="+",
        default=(),
        choices=OVERLAPS,
        metavar="AXIS",
        help=(
            "axes whose collectives the framework overlaps with products: tensor, expert (neither)"
        ),
    )
    command.add_argument(
        "--dispatch",
        default="expert",
        choices=DISPATCHES,
        help=(
            "how often a token is sent to another node: once for each expert there, or once, as "
            "DeepEP does (expert)"
        ),
    )
    command.add_argument(
        "--tokens",
        type=float,
        metavar="BILLIONS",
        help="tokens to train on, in billions; the days that they take are printed",
    )
    command.add_argument(
        "--reserve",
        type=float,
        default=0.1,
        metavar="SHARE",
        help=(
            "share of memory kept for what the formulas do not count, such as the compiler's "
            "buffers (0.1)"
        ),
    )
    command.add_argument("--top", type=_number, default=10, metavar="N", help="rows to show (10)")
    command.add_argument(
        "--plot", metavar="FILE", help="draw the plan too, into a file such as plan.svg"
    )
    command.add_argument(
        "--verify",
        type=_number,
        default=0,
        metavar="N",
        help="compile the best N meshes that fit, neither interleaved nor gathered once, and "
        "compare bytes sent and "
        "memory; takes minutes",
    )
    command.add_argument(
        "--time-limit",
        type=float,
        default=900,
        metavar="S",
        help="begin no compile after this (900 s)",
    )
    serve.add_arguments(command, _number)


def run(options):
    """Print a plan; returns the exit status: 0, or 1 if no mesh fits."""
    try:
        return _run(options)
    except ValueError as error:
        raise Wrong(str(error)) from None


def _run(options):
    if options.top < 1:
        raise ValueError(f"--top is {options.top}; use a whole number of at least 1")
    _refuse_ignored(options)
    _understand_slice(options)
    if options.serve:
        return serve.run(options)

    def planned(remat, lora=options.lora, parameters=options.parameters):
        state = {name: getattr(options, name) for name in STATE} | {"parameters": parameters}
        return plan(
            models.parse(options.model),
            options.chip,
            options.chips,
            options.batch_tokens,
            sequence=options.sequence,
            slices=options.slices,
            remat=remat,
            reserve=options.reserve,
            products=options.products,
            axes=tuple(axis.strip() for axis in options.axes.split(",")) if options.axes else None,
            microbatches=options.microbatches,
            stages=options.stages,
            gathers=options.gathers,
            nearest_batch=True,
            overlap=options.overlap,
            dispatch=options.dispatch,
            lora=lora,
            adapted=options.adapted if lora else "all",
            dtypes={name: None if dtype == "none" else dtype for name, dtype in state.items()},
        )

    changed = [f"--{name}" for name, default in STATE.items() if getattr(options, name) != default]
    changed += ["--lora"] * bool(options.lora)
    if options.adapted != "all" and not options.lora:
        raise ValueError("without --lora, --adapted has no effect; add --lora 16")
    if changed and options.verify:
        raise ValueError(
            "--verify compiles steps with bfloat16 parameters and gradients and float32 "
            f"moments; leave out {', '.join(changed)}"
        )
    if options.tokens is not None and not 0 < options.tokens <= 1e9:
        raise ValueError(f"--tokens is {options.tokens:g} billion; use more than 0, up to 1e9")
    proposal = planned(options.remat) if options.remat else _fastest(planned, options.chip)
    if proposal.batch_tokens != options.batch_tokens:
        print(
            (
                f"No mesh shares {options.batch_tokens // options.sequence:,} sequences evenly; "
                "this plan is for the nearest batch: "
                f"{proposal.batch_tokens // options.sequence:,} sequences, "
                f"{proposal.batch_tokens:,} tokens"
            ),
            file=sys.stderr if options.json else sys.stdout,
        )
    fitting = len(proposal.fitting)
    stream = sys.stderr if options.json else sys.stdout
    print(_told(proposal, options) if options.json else _text(proposal, options, planned))
    if options.plot:
        try:
            proposal.plot(options.plot, options.top)
        except (ImportError, OSError) as error:
            raise ValueError(f"--plot {options.plot}: {error}") from None
        print(f"\nthe plot is in {options.plot}", file=stream)
    if options.verify and fitting:
        able = sum(choice.can_compile for choice in proposal.fitting)
        if able:
            return _compare(proposal, min(options.verify, able), options.time_limit, stream)
        print(
            (
                "nothing is compiled: what fits interleaves or gathers once; add --stages 1 "
                "--gathers 2"
            ),
            file=sys.stderr,
        )
        return 1
    if options.verify:
        print(
            "nothing is compiled, as no mesh fits by formula; --reserve 0 lets more of them fit",
            file=sys.stderr,
        )
    return 0 if fitting else 1


def _understand_slice(options):
    """Take a slice in Google's names, such as v5p-256, for its chips, with a note."""
    found = hardware.slice_of(options.chip)
    if found and options.chips in (None, found[1]):
        kind, chips = found
        cores = ", as Google's name counts cores, two of each chip" if kind in ("v4", "v5p") else ""
        print(
            f"{options.chip} is {chips:,} chips of {kind}{cores}.",
            file=sys.stderr if options.json else sys.stdout,
        )
        options.chip, options.chips = found
    if options.chips is None:
        raise ValueError(f"how many {options.chip}? Give a number after it, such as 8")


def _text(proposal, options, planned):
    """The report, with what it assumes above it, and below it days and other policies."""
    lines = [_assumed(proposal, options), proposal.report(options.top)]
    if proposal.fitting and options.tokens:
        lines.append(_days_words(proposal, options.tokens))
    if proposal.fitting and options.remat:
        lines.append(_other_remat(proposal, planned))
    if not proposal.fitting:
        lines += _fine_tunes(proposal, planned)
    return "\n".join(lines)


def _fine_tunes(proposal, planned):
    """Where nothing fits: what fine-tuning with adapters needs instead, if that fits."""
    lora = proposal.lora or 16
    for option, parameters in (("", "bf16"), (" --parameters nf4", "nf4")):
        if proposal.lora and proposal.dtypes.get("parameters") == parameters:
            continue
        made = _fastest(partial(planned, lora=lora, parameters=parameters), proposal.chip.name)
        if made.fitting:
            best = made.choices[0]
            yield (
                f"Fine-tuning with adapters fits: --lora {lora}{option}: "
                f"{best.total_bytes / 1e9:.1f} GB, {best.expected_seconds * 1e3:,.0f} ms on {best}"
            )
            return


def _fastest(planned, chip):
    """The plan with the kind of rematerialisation whose best mesh fits and is the fastest; of those
    as fast, but for a tie, the one that computes less again. Where nothing fits, the plan with
    whole layers computed again.
    """
    plans = {
        remat: planned(remat)
        for remat, kind in costs.REMAT.items()
        if not kind.offloads or hardware.chip(chip).host_bytes_per_second
    }
    found = None
    for made in plans.values():
        if made.fitting and (
            found is None
            or made.choices[0].expected_seconds < FASTER * found.choices[0].expected_seconds
        ):
            found = made
    return found or plans["block"]


def _assumed(proposal, options):
    """What the plan assumes of the step, and which options change it."""
    bytes_of = {name: getattr(options, name) for name in STATE}
    each = ", ".join(f"{name} {dtype}" for name, dtype in bytes_of.items() if dtype != "none")
    label = costs.REMAT[proposal.remat].label if proposal.remat in costs.REMAT else proposal.remat
    chosen = "" if options.remat else ", the fastest of those that fit"
    if not (options.remat or proposal.fitting):
        chosen = ", as no other fits either"
    where = " on attention" if options.adapted == "attention" else ""
    frozen = (
        f"adapters of rank {options.lora}{where}, the model is frozen; " if options.lora else ""
    )
    return (
        f"Assumed: {frozen}computed again in the backward pass: {label} "
        f"(--remat {proposal.remat}{chosen});\n{options.products} products; {each}."
    )


def _days(proposal, billions):
    """The days for so many tokens on the first mesh: expected, and the range in which nine in ten
    of its kind were, or None.
    """
    seconds = proposal.choices[0].expected_seconds / proposal.batch_tokens
    expected = billions * 1e9 * seconds / 86_400
    band = band_of(proposal.chip, proposal.kind)
    return expected, band.range(expected) if band else None


def _days_words(proposal, billions):
    expected, around = _days(proposal, billions)
    digits = 1 if expected >= 2 else 3
    spread = "no range is known"
    if around:
        spread = f"{around[0]:,.{digits}f} to {around[1]:,.{digits}f}"
    return f"{billions:,g} billion tokens take {expected:,.{digits}f} days on it ({spread})."


def _told(proposal, options):
    """The plan as JSON, with the days if tokens are given."""
    told = proposal.to_json(options.top)
    if not options.tokens:
        return told
    expected, around = _days(proposal, options.tokens)
    return json.dumps(json.loads(told) | {"days": expected, "days_range": around}, indent=1)


def _refuse_ignored(options):
    """ValueError for options that have no effect: those of training with --serve, those of serving
    without it.
    """
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    plain = vars(parser.parse_args(["model", "chip", "1"]))
    serving = set(serve.OPTIONS)
    others = set(plain) - set(serve.SHARED) - serving if options.serve else serving
    ignored = [
        f"--{name.replace('_', '-')}"
        for name in sorted(others)
        if getattr(options, name) != plain[name]
    ]
    if ignored:
        names, has = ", ".join(ignored), "has" if len(ignored) == 1 else "have"
        if options.serve:
            raise ValueError(
                f"--serve plans inference, where {names} {has} no effect; leave out what is "
                "for training"
            )
        raise ValueError(
            f"without --serve, {names} {has} no effect; add --serve, or leave out what is for "
            "serving"
        )


def _other_remat(proposal, planned):
    """What the other kinds of rematerialisation promise: those whose best mesh is faster, by more
    than a tie.
    """
    first, alternatives = proposal.choices[0].expected_seconds, []
    for remat, kind in costs.REMAT.items():
        if remat != proposal.remat and (proposal.chip.host_bytes_per_second or not kind.offloads):
            best = planned(remat).choices[0]
            if best.fits and best.expected_seconds < FASTER * first:
                alternatives.append((best.expected_seconds, remat, best))
    lines = [
        (
            f"--remat {remat}: {seconds * 1e3:,.0f} ms expected ({1 - seconds / first:.0%} less) "
            f"on {best}, {best.total_bytes / 1e9:.1f} GB"
        )
        for seconds, remat, best in sorted(alternatives, key=lambda row: row[0])
    ]
    return "\n".join(lines) or "No other --remat is expected to be faster."


def _compare(proposal, best, limit, file):
    """Print what the compiler says of the best meshes."""
    from shardlab.pods.pod import NoCompiler
    from shardlab.report.verify import verify

    print(
        f"\ncompared with the compiler, {best} programs of a minute or more each:",
        file=file,
        flush=True,
    )
    start = time.monotonic()
    try:
        for n, verdict in enumerate(verify(proposal, best), 1):
            print(f"{n} of {best}: {verdict}", file=file, flush=True)
            if n < best and time.monotonic() - start > limit:
                print(f"stopped after {limit:g} s; --time-limit allows more", file=sys.stderr)
                break
    except (NoCompiler, ValueError) as error:
        print(f"cannot compile: {error}", file=sys.stderr)
        return 1
    return 0
