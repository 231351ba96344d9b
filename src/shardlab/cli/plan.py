"""`shardlab plan`: list the meshes on which a model fits, by predicted step time."""

import argparse
import json
import sys
import time

from shardlab import costs
from shardlab._tables import aligned
from shardlab.cli.arguments import Wrong
from shardlab.costs import inference
from shardlab.costs.parallelism import MESH_AXES
from shardlab.costs.plan import FASTER, POWERS, plan, whole_number
from shardlab.machines import hardware, models

ABOUT = "list the meshes on which a model fits, by predicted step time"
STATE = {"parameters": "bf16", "gradients": "bf16", "moments": "f32", "master": "none"}  # 12 bytes for each parameter
WHAT = {
    "parameters": "the parameters; with f32 for them and for gradients 16 bytes each, as MaxText has",
    "gradients": "their gradients",
    "moments": "each of Adam's two moments",
    "master": "a copy of the parameters in higher precision, as Megatron-LM has, or none",
}
EXAMPLES = """\
examples:
  shardlab plan llama-3-70b v5p 512
  shardlab plan llama-3-8b h100 256 --batch-tokens 4M --sequence 8192 --json
  shardlab plan llama-3-70b h100 8 --serve --context 8k --latency 40

Times and bytes are predicted by formula; --verify 3 compares the bytes of the best three with the chips' own compiler,
which needs no chips but takes minutes. A model of your own: give the path of its config.json, or its sizes.
"""


def _number(text):
    try:
        return whole_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_arguments(command):
    """Add the options of the command to its parser."""
    sizes = ",".join(f"{size}=N" for size in models.SIZES)
    command.add_argument("model", help=f"{', '.join(models.MODELS)}; a config.json; or sizes: {sizes}")
    command.add_argument("chip", help=", ".join(hardware.CHIPS))
    command.add_argument("chips", type=_number, help="how many chips")
    command.add_argument(
        "--batch-tokens", type=_number, default=4 * 2**20, metavar="N",
        help="tokens in a batch, of all chips and micro-batches together; k, M and G are powers of 1024 (4M)",
    )  # fmt: skip
    command.add_argument("--sequence", type=_number, default=4096, metavar="N", help="tokens of a sequence (4096)")
    command.add_argument(
        "--slices", type=_number, metavar="N",
        help="slices of a TPU, connected by the DCN (1); of GPUs, nodes (the fewest that hold them)",
    )  # fmt: skip
    command.add_argument(
        "--remat", default="block", choices=(*costs.REMAT, *costs.POLICIES), metavar="KIND",
        help="what the backward pass rematerialises, in all meshes alike: none; matmuls, the scores of attention; mlp, "
        "all of attention; block, whole layers; offload, whole layers with their inputs in the host's memory; or a "
        f"policy of MaxText or Megatron-LM: {', '.join(costs.POLICIES)} (block)",
    )  # fmt: skip
    for name, default in STATE.items():
        command.add_argument(f"--{name}", default=default, metavar="DTYPE", help=f"dtype of {WHAT[name]} ({default})")
    command.add_argument("--products", default="bf16", metavar="DTYPE", help="dtype of the layers' products (bf16)")
    command.add_argument(
        "--axes", help=f"which axes to try, of {','.join(MESH_AXES)} (data,fsdp,tensor; on several nodes of GPUs "
        "pipeline and context too; for sequences of 32k tokens or more context; for a mixture of experts expert)",
    )  # fmt: skip
    command.add_argument(
        "--microbatches", type=_number, metavar="N", help="how many (for each mesh the power of two that is best)"
    )
    command.add_argument(
        "--stages", type=_number, metavar="N",
        help="stages on each chip of a pipeline, an interleaved schedule (1, 2, 4 or 8, whichever is best)",
    )  # fmt: skip
    command.add_argument(
        "--gathers", type=int, choices=(1, 2),
        help="how often FSDP gathers a parameter: 2, in both passes of each micro-batch; 1, once in a step (the best)",
    )  # fmt: skip
    command.add_argument(
        "--reserve", type=float, default=0.1, metavar="SHARE",
        help="share of memory kept for what the formulas do not count, such as the compiler's buffers (0.1)",
    )  # fmt: skip
    command.add_argument("--top", type=_number, default=10, metavar="N", help="rows to show (10)")
    command.add_argument("--plot", metavar="FILE", help="draw the plan too, into a file such as plan.svg")
    command.add_argument(
        "--verify", type=_number, default=0, metavar="N",
        help="compile the best N meshes that fit, neither interleaved nor gathered once, and compare bytes sent and "
        "memory; takes minutes",
    )  # fmt: skip
    command.add_argument(
        "--time-limit", type=float, default=900, metavar="S", help="begin no compile after this (900 s)"
    )
    served = command.add_argument_group("serving instead of training")
    served.add_argument("--serve", action="store_true", help="plan inference: prefill and decode on so many chips")
    served.add_argument("--context", type=_number, default=8192, metavar="N", help="tokens of each sequence (8192)")
    served.add_argument("--latency", type=float, metavar="MS", help="longest time for a token, in milliseconds")
    served.add_argument("--weights", default="bf16", metavar="DTYPE", help="dtype of the parameters (bf16)")
    served.add_argument("--cache", default="bf16", metavar="DTYPE", help="dtype of the KV cache (bf16)")


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
    if options.serve:
        return _serve(options)

    def planned(remat):
        return plan(
            models.parse(options.model), options.chip, options.chips, options.batch_tokens, sequence=options.sequence,
            slices=options.slices, remat=remat, reserve=options.reserve, products=options.products,
            axes=tuple(axis.strip() for axis in options.axes.split(",")) if options.axes else None,
            microbatches=options.microbatches, stages=options.stages, gathers=options.gathers, nearest_batch=True,
            dtypes={name: None if getattr(options, name) == "none" else getattr(options, name) for name in STATE},
        )  # fmt: skip

    changed = [f"--{name}" for name, default in STATE.items() if getattr(options, name) != default]
    if changed and options.verify:
        raise ValueError(
            f"--verify compiles steps with bfloat16 parameters and gradients and float32 moments; leave out "
            f"{', '.join(changed)}"
        )
    proposal = planned(options.remat)
    if proposal.batch_tokens != options.batch_tokens:
        print(
            f"No mesh shares {options.batch_tokens // options.sequence:,} sequences evenly; this plan is for the "
            f"nearest batch: {proposal.batch_tokens // options.sequence:,} sequences, {proposal.batch_tokens:,} tokens",
            file=sys.stderr if options.json else sys.stdout,
        )
    print(proposal.to_json(options.top) if options.json else proposal.report(options.top))
    fitting = len(proposal.fitting)
    stream = sys.stderr if options.json else sys.stdout
    if fitting and not options.json:
        print(_other_remat(proposal, planned))
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
            "nothing is compiled: what fits interleaves or gathers once; add --stages 1 --gathers 2",
            file=sys.stderr,
        )
        return 1
    if options.verify:
        print("nothing is compiled, as no mesh fits by formula; --reserve 0 lets more of them fit", file=sys.stderr)
    return 0 if fitting else 1


def _refuse_ignored(options):
    """ValueError for options that have no effect: those of training with --serve, those of serving without it."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    plain = vars(parser.parse_args(["model", "chip", "1"]))
    serving = {"context", "latency", "weights", "cache"}
    shared = {"model", "chip", "chips", "serve", "reserve"}
    others = set(plain) - shared - serving if options.serve else serving
    ignored = [f"--{name.replace('_', '-')}" for name in sorted(others) if getattr(options, name) != plain[name]]
    if ignored:
        names, has = ", ".join(ignored), "has" if len(ignored) == 1 else "have"
        if options.serve:
            raise ValueError(f"--serve plans inference, where {names} {has} no effect; leave out what is for training")
        raise ValueError(f"without --serve, {names} {has} no effect; add --serve, or leave out what is for serving")
    if options.latency is not None and not 0 < options.latency < float("inf"):
        raise ValueError(f"--latency is {options.latency:g} ms; use a number above 0")


def _other_remat(proposal, planned):
    """What the other kinds of rematerialisation promise: those whose best mesh is faster, by more than a tie."""
    first, alternatives = proposal.choices[0].expected_seconds, []
    for remat, how in costs.REMAT.items():
        if remat != proposal.remat and (proposal.chip.host_bytes_per_second or not how.offloads):
            best = planned(remat).choices[0]
            if best.fits and best.expected_seconds < FASTER * first:
                alternatives.append((best.expected_seconds, remat, best))
    lines = [
        f"--remat {remat}: {seconds * 1e3:,.0f} ms expected ({1 - seconds / first:.0%} less) on {best}, "
        f"{best.total_bytes / 1e9:.1f} GB"
        for seconds, remat, best in sorted(alternatives, key=lambda row: row[0])
    ]
    return "\n".join(lines) or "No other --remat is expected to be faster."


def _compare(proposal, best, limit, file):
    """Print what the compiler says of the best meshes."""
    from shardlab.pods.pod import NoCompiler
    from shardlab.report.verify import verify

    print(f"\ncompared with the compiler, {best} programs of a minute or more each:", file=file, flush=True)
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


def _serve(options):
    """Print what decode and prefill take for the batches that fit."""
    model = models.parse(options.model)
    machine = hardware.machine(options.chip, options.chips, reserve=options.reserve)
    how, gpu = {"tensor": options.chips, "weights": options.weights, "cache": options.cache}, not machine.chip.torus
    if not gpu:
        how["torus_axes"] = max(sum(size > 1 for size in machine.shape), 1)
    first = inference.prefill_cost(model, machine.chip, options.context, **how)
    rows = [("batch", *["expected ms"] * gpu, "at least ms", "tokens/s", "bound by", "memory GB")]
    found = []
    for batch in POWERS:
        step = inference.decode_cost(model, machine.chip, batch, options.context, **how)
        seconds = float(step.expected_seconds if gpu else step.serial_seconds)
        slow = options.latency is not None and seconds * 1e3 > options.latency
        if step.total_bytes > machine.usable_bytes or slow:
            break
        found.append({
            "batch": batch, "expected_seconds": seconds if gpu else None, "seconds": float(step.serial_seconds),
            "bound": str(step.bound), "bytes": float(step.total_bytes), "tokens_per_second": batch / seconds,
        })  # fmt: skip
        cost = found[-1]
        rows.append((
            str(batch), *[f"{seconds * 1e3:.1f}"] * gpu, f"{cost['seconds'] * 1e3:.1f}",
            f"{cost['tokens_per_second']:,.0f}", cost["bound"], f"{cost['bytes'] / 1e9:.1f}",
        ))  # fmt: skip
    if options.json:
        prefill = {"prefill_seconds": float(first.seconds)}
        prefill |= {"expected_prefill_seconds": float(first.expected_seconds) if gpu else None}
        print(json.dumps(prefill | {"decode": found}, indent=1))
        return 0 if found else 1
    expected = f"{first.expected_seconds * 1e3:,.0f} ms expected, " if gpu else ""
    print(
        f"{model.name or 'model'} on {machine.name}, tensor-parallel over {options.chips}, with {options.context:,} "
        "tokens of context\n"
        f"prefill of one prompt: {expected}at least {first.seconds * 1e3:,.0f} ms, {first.bound}-bound\n"
    )
    print(aligned(rows, ">"))
    if not found:
        cost = inference.decode_cost(model, machine.chip, 1, options.context, **how)
        large = cost.total_bytes > machine.usable_bytes
        help_ = "more chips, a shorter context or --weights int8" if large else "a longer --latency or more chips"
        print(
            f"\nNot even one sequence: it needs {cost.total_bytes / 1e9:.1f} GB on each chip of "
            f"{machine.usable_bytes / 1e9:.1f} GB, and at least {cost.serial_seconds * 1e3:.1f} ms a token; "
            f"use {help_}."
        )
    elif gpu:
        print(
            f"\nExpected times are off by a factor of up to {inference.SERVED.spread:.2f} for nine in ten published "
            "measurements of\nTensorRT-LLM on A100s and H100s that were left out of the fit."
        )
    else:
        print("\nNo server on TPUs is fitted to: all times are lower bounds, and tokens/s an upper bound.")
    return 0 if found else 1
