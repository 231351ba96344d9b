"""What a server does with its chips: the time to the first token, the time for each token, and
requests per second.

A request is a prompt and an answer. `server_cost` composes the two from `shardlab.inference`: so
many requests are served at a time, and whenever one has ended, the prompt of the next is prefilled
between the steps of the others, or in chunks with them. `server_plan` does so for all layouts of a
model on a machine.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from shardlab import costs
from shardlab._arguments import Numbers, whole
from shardlab.costs import inference
from shardlab.costs.bands import ENOUGH
from shardlab.costs.inference import DecodeCost, PrefillCost, decode_step, prefill_of
from shardlab.costs.rates import Band
from shardlab.costs.setting import ServingSetting
from shardlab.machines import hardware
from shardlab.machines.hardware import Chip, Machine
from shardlab.machines.models import Model, model as known_model

__all__ = [
    "BANDS",
    "Bands",
    "Layout",
    "ServerCost",
    "Times",
    "band_of",
    "batches",
    "fewest_chips",
    "layouts",
    "remedies",
    "server_cost",
    "server_plan",
]

# of prompts that are prefilled at once; TensorRT-LLM's benchmarks choose from 2,048 to 32,768
PREFILL_TOKENS = 8192
CHUNKS = (2048, 1024, 512, 256)  # of prompts with each step, to try
POWERS = tuple(2**n for n in range(31))


@dataclass(frozen=True)
class Layout:
    """How a model is spread over the chips of a machine.

    >>> print(serving.Layout(replicas=2, tensor=4))
    2 replicas of tensor 4

    Attributes:
      replicas: independent servers.
      pipeline: stages of a replica, each with its share of the layers.
      expert: groups of a stage over which routed experts are sharded, and which share the
        sequences.
      tensor: chips of a group, which share everything else.
    """

    replicas: int = 1
    pipeline: int = 1
    expert: int = 1
    tensor: int = 1

    @property
    def chips(self) -> int:
        """Of all replicas."""
        return self.replicas * self.pipeline * self.expert * self.tensor

    def __str__(self) -> str:
        sizes = {axis: getattr(self, axis) for axis in ("pipeline", "expert", "tensor")}
        one = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "one chip"
        return f"{self.replicas} replicas of {one}" if self.replicas > 1 else one


@dataclass(frozen=True)
class Times:
    """What clients of a server see, and what its owner does.

    Attributes:
      first_token_seconds: from when a request gets its place to its first token, if they come
        independently.
      burst_first_token_seconds: the same for the last of all requests, if all come at once.
      token_seconds: from each token to the next, on average.
      slow_token_seconds: from each token to the next, the 95th percentile: while a prompt is
        prefilled, if more than one step in twenty waits for one.
      pause_seconds: from one token to the next where it is longest: while other prompts are
        prefilled.
      tokens_per_second_per_chip: generated tokens, of all requests together.
      requests_per_second: of all chips together.
    """

    first_token_seconds: float
    burst_first_token_seconds: float
    token_seconds: float
    slow_token_seconds: float
    pause_seconds: float
    tokens_per_second_per_chip: float
    requests_per_second: float


# By family of servers: of throughput, and where it is named of the time for each token and of the
# time to the first token, alone or while others are served ("loaded"): whether it is between the
# two of `Times`, as it depends on when requests come.
# From `python scripts/fit_planner.py`.
BANDS = {
    "gpu": Band(1.3, 105, 0.95, 0.924),
    "gpu, first_token": Band(1.39, 14, 1.01, 1.0),
    "gpu, experts": Band(1.31, 44, 1.0, 0.932),
    "gpu, fp4": Band(1.48, 28, 1.12, 0.964),
    "gpu, experts, fp4": Band(2.05, 21, 0.99, 0.952),
    "gpu, token": Band(1.31, 30, 0.99, 0.933),
    "gpu, loaded": Band(1.01, 24, 1.0, 1.0),
    "gpu, experts, token": Band(1.14, 1, 1.13, 1.0),
    "mesh, token": Band(1.87, 9, 1.03, 1.0),
    "tpu": Band(1.45, 10, 0.94, 1.0),
    "tpu, experts": Band(1.44, 2, 1.36, 1.0),
    "tpu, token": Band(1.46, 5, 0.7, 1.0),
    "tpu, loaded": Band(1.27, 10, 1.0, 1.0),
    "tpu, experts, token": Band(1.32, 1, 1.31, 1.0),
    "tpu, experts, loaded": Band(1.44, 1, 1.44, 1.0),
}
UNTESTED = "no range is known; fewer than eight published servers test it."
SLOW = 0.05  # of steps are slower than the percentile that a bound on latency is for
MANY = 16  # requests on a replica, the fewest of a published throughput
ALIKE = 0.98  # of the highest throughput is as good, if fewer requests wait
# The chips on which those servers ran.
TESTED_CHIPS = ("A100", "H100", "H200", "B200", "GB200", "MI300X", "v6e", "tpu7x")


def family(chip: Chip, model: Model, dtype: str) -> str:
    """Which servers are alike: "gpu" or "tpu", "mesh" for GPUs with links to each other and without
    a switch, with ", experts" for a mixture of them and ", fp4" for such products.
    """
    experts, small = ", experts" if model.experts else "", ", fp4" if dtype == "fp4" else ""
    return f"{'mesh' if chip.peers else inference.kind_of(chip)}{experts}{small}"


@dataclass(frozen=True)
class Bands:
    """The `Band` of each kind of `Times`; None where fewer than eight published servers test it."""

    first_token: Band | None
    token: Band | None
    throughput: Band | None


def bands(
    machine: Machine, model: Model, layout: Layout, sequences: int, dtype: str = "bf16"
) -> Bands:
    """How far the expected times of a replica with so many sequences can be trusted.

    Published servers are tensor-parallel within a node or slice; other layouts have not been
    tested.
    """
    apart = layout.pipeline * layout.expert > 1 or layout.tensor > machine.near
    if apart or machine.chip.name not in TESTED_CHIPS:
        return Bands(None, None, None)
    name = family(machine.chip, model, dtype)
    first = f"{name}, loaded" if sequences > 1 else f"{name}, first_token"
    throughput = band_of(name) if sequences >= MANY else None
    return Bands(band_of(first), band_of(f"{name}, token"), throughput)


def band_of(name: str) -> Band | None:
    """The band of a family of servers; None if fewer than eight published ones test it.

    >>> serving.band_of("gpu").tested >= 8, serving.band_of("tpu, token")
    (True, None)

    Args:
      name: of `BANDS`.
    """
    band = BANDS.get(name)
    return band if band and band.tested >= ENOUGH else None


@dataclass(frozen=True)
class ServerCost:
    """What to expect of a server, and what it cannot exceed.

    Attributes:
      layout: a `Layout`.
      concurrency: requests that are served at a time, by all replicas together.
      least: the `Times` at the data sheet's speeds, with nothing besides: a server takes at least
        these, and its throughput is at most that.
      expected: the `Times` to expect of a published server.
      prefill_share: the share of a replica's time that prompts take.
      context: tokens of a sequence on average, while its answer is generated.
      bound: the name of the largest part of a step: see `DecodeCost`.
      total_bytes: on each chip, with all of the requests' tokens.
      fits: whether these are no more than the chips' memory without the machine's reserve.
      bands: how far the expected times can be trusted.
    """

    layout: Layout
    concurrency: int
    least: Times
    expected: Times
    prefill_share: float
    context: float
    bound: str
    total_bytes: float
    fits: bool
    bands: Bands

    @property
    def first_token_range(self) -> tuple[float, float] | None:
        """The range of the time to the first token, from independent requests to a burst; None
        without a band.
        """
        band, times = self.bands.first_token, self.expected
        if band is None:
            return None
        return (
            times.first_token_seconds / band.factor,
            times.burst_first_token_seconds * band.factor,
        )


def most_sequences(
    model: Model, chip: Chip, tensor: int, tokens: int, weights: str = "bf16", cache: str = "bf16"
) -> int:
    """How many sequences of so many tokens a published server holds.

    In 0.95 of the memory that the parameters leave; each chip has at least one kv head.

    Source: https://github.com/NVIDIA/TensorRT-LLM, `calc_engine_setting` in
    tensorrt_llm/bench/build/tuning.py at 04cba88.
    """
    room = 0.95 * (chip.hbm_bytes - model.parameters * costs.BYTES[weights] / tensor)
    shared = tensor if model.kv_rank else min(tensor, model.kv_heads)
    return max(int(room // (inference.cache_bytes(model, tokens, cache) / shared)), 0)


@dataclass(frozen=True)
class Parts:
    """What a replica's time is composed of.

    Attributes:
      step: a token for each of its sequences.
      first: a prompt alone.
      prompts: as many prompts as are prefilled at once; `together`, how many are on their way at
        once.
      mixed: what gives a step with a chunk of a prompt too, for a number of sequences.
    """

    step: DecodeCost
    first: PrefillCost
    prompts: PrefillCost
    together: int
    mixed: Callable[[float], DecodeCost]

    def ways(self):
        """The times of these, (at least, as expected)."""
        step, first, prompts = self.step, self.first, self.prompts
        few = step.sequences < MANY
        return (
            Way(
                step.serial_seconds,
                step.serial_seconds,
                first.seconds,
                prompts.seconds / self.together,
                0.0,
                lambda sequences: self.mixed(sequences).serial_seconds,
                lambda sequences: self.mixed(sequences).serial_seconds,
            ),
            Way(
                np.where(few, step.token_seconds, step.expected_seconds)[()],
                step.token_seconds,
                first.expected_seconds,
                prompts.expected_seconds / self.together,
                1.0,
                lambda sequences: self.mixed(sequences).expected_seconds,
                lambda sequences: self.mixed(sequences).token_seconds,
            ),
        )


@dataclass(frozen=True)
class Way:
    """The same as times, counted in one way."""

    step: Numbers  # of which the throughput is made; and as clients wait for it
    token: Numbers
    first: Numbers
    prompts: Numbers  # of one of them
    waits: float  # whether a request waits for the step in progress
    mixed: Callable[[float], Numbers]
    mixed_token: Callable[[float], Numbers]


def _queue(share, sequences):
    """How many prompts a request finds before its own, on average, if prompts take such a share of
    the time: at most all others are as likely to be before it as after.

    Source: the formula of Pollaczek and Khinchine for service times that are all the same.
    """
    return np.minimum(share / (2 * np.maximum(1 - share, 1e-9)), (sequences - 1) / 2)


def between_steps(way, sequences, output):
    """What `composed` gives for a replica that prefills prompts between its steps.

    While a sequence gets its answer, all others begin once.
    """
    others = (sequences - 1) * way.prompts / output
    token, rate = way.token + others, sequences / (way.first + output * (way.step + others))
    share = way.prompts / (way.prompts + output * way.step / sequences)
    busy = sequences * way.prompts / (sequences * way.prompts + output * way.token)
    step = way.waits * way.token * (sequences > 1)  # of others; on average half of it is left
    first = way.first + step / 2 + way.waits * _queue(busy, sequences) * way.prompts
    burst = np.maximum(first, sequences * way.prompts + step)
    pause = way.token + way.first
    slow = np.where((sequences - 1) / output > SLOW, pause, way.token)
    return first, burst, token, slow, pause, rate, share


def in_chunks(way, sequences, prompt, output, chunk):
    """What `composed` gives for a replica whose steps have `chunk` tokens of prompts too, as long
    as there are any.
    """
    share, steps = sequences * prompt / (chunk * output), math.ceil(prompt / chunk)
    every = math.ceil(sequences * prompt / chunk)  # steps with a chunk, if all prompts are there
    if share <= 1:  # of the steps have a chunk
        time, latency = way.mixed(sequences), way.mixed_token(sequences)
        step = way.waits * way.token * (sequences > 1)
        first, token = steps * latency, (1 - share) * way.token + share * latency
        rate = sequences / (steps * time + output * ((1 - share) * way.step + share * time))
        return (
            first + step / 2 + way.waits * _queue(share, sequences) * first,
            max(first, every * latency) + step,
            token,
            latency if share > SLOW else way.token,
            latency,
            rate,
            share * (1 - way.step / time),
        )
    # if there were more, they would end before as many prompts are ready
    generating = chunk * output / prompt
    time, latency = way.mixed(generating), way.mixed_token(generating)
    rate = generating / (output * time)
    first = max(sequences * output * latency / generating - output * latency, steps * latency)
    burst = max(first, every * latency)
    return (
        first,
        burst,
        latency,
        latency,
        latency,
        rate,
        1 - way.step * generating / sequences / time,
    )


def composed(way: Way, sequences, prompt, output, chunk=None):
    """(first token, that of a burst, token, slow token, pause, requests per second, share of
    prompts) of a replica.
    """
    if chunk is None:
        return between_steps(way, sequences, output)
    return in_chunks(way, sequences, prompt, output, chunk)


def parts_of(setting, prompt, output, sequences, chunk):
    """The `Parts` of a replica, of a `ServingSetting`."""
    context = prompt + output / 2
    many = min(sequences, int(setting.expert) * max(PREFILL_TOKENS // prompt, 1))

    def mixed(generating):
        return decode_step(setting, generating, context, chunk, prompt)

    return Parts(
        decode_step(setting, sequences, context),
        prefill_of(setting, prompt, 1),
        prefill_of(setting, prompt, many),
        many * int(setting.pipeline),
        mixed,
    )


def server_cost(
    model: str | Model,
    machine: Machine,
    prompt: int,
    output: int,
    concurrency: int,
    layout: Layout | None = None,
    *,
    weights: str = "bf16",
    cache: str = "bf16",
    dtype: str = "bf16",
    chunk: int | None = None,
) -> ServerCost:
    """What a server takes for requests of one kind, of which there are always enough.

    >>> h100 = hardware.machine("h100", 8)
    >>> cost = serving.server_cost("llama-3-70b", h100, 2048, 256, 64, serving.Layout(replicas=2, tensor=4))
    >>> times = cost.expected
    >>> print(f"{times.first_token_seconds:.2f} s, then {times.token_seconds * 1e3:.0f} ms for each token")
    0.28 s, then 45 ms for each token

    Args:
      model: a `shardlab.models.Model`, or the name of one.
      machine: a `shardlab.hardware.Machine`.
      prompt, output: tokens of each request's prompt and of its answer.
      concurrency: requests at a time, which the replicas share evenly.
      layout: a `Layout` of all chips; by default one replica, tensor-parallel over them.
      weights, cache, dtype: dtypes of the parameters, of the KV cache, of activations and FLOPs.
      chunk: tokens of prompts that are prefilled with each step; by default prompts are prefilled
        between steps.

    Returns:
      `ServerCost`.

    Raises:
      ValueError: a number, name or dtype is wrong, or the layout does not fill the machine.

    Source: Scaling Book, "All About Transformer Inference"; for chunks Agrawal and others, "Taming
    Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", 2024.
    """  # noqa: E501
    model, layout = known_model(model), layout or Layout(tensor=machine.chips)
    chunk = None if chunk is None else int(whole("chunk", chunk))
    prompt, output = int(whole("prompt", prompt)), int(whole("output", output))
    concurrency = int(whole("concurrency", concurrency))
    if layout.chips != machine.chips:
        raise ValueError(
            f"{layout} fills {layout.chips} chips, but {machine.name} has {machine.chips}"
        )
    sequences = -(-concurrency // layout.replicas)
    setting = ServingSetting(
        model,
        machine.chip,
        layout.tensor,
        layout.expert,
        layout.pipeline,
        weights,
        cache,
        dtype,
        machine=machine,
    )
    parts = parts_of(setting, prompt, output, sequences, chunk)
    least, expected = (composed(way, sequences, prompt, output, chunk) for way in parts.ways())
    total = decode_step(setting, sequences, prompt + output).total_bytes
    return ServerCost(
        layout,
        concurrency,
        _times(least, layout, output),
        _times(expected, layout, output),
        float(expected[6]),
        prompt + output / 2,
        str(parts.step.bound),
        float(total),
        bool(total <= machine.usable_bytes),
        bands(machine, model, layout, sequences, dtype),
    )


def _times(parts, layout, output):
    *times, rate, _ = map(float, parts)
    rate = rate * layout.replicas
    return Times(*times, rate * output / layout.chips, rate)


def layouts(model: str | Model, machine: Machine) -> list[Layout]:
    """The layouts of a model that fill a machine, without regard to memory.

    "tensor" divides the heads, "expert" the routed experts, and "pipeline" has at most a stage on
    each node or slice.

    >>> print(*serving.layouts("llama-3-8b", hardware.machine("h100", 4)), sep="; ")
    tensor 4; 2 replicas of tensor 2; 4 replicas of one chip

    Args:
      model: a `shardlab.models.Model`, or the name of one.
      machine: a `shardlab.hardware.Machine`.

    Returns:
      A `Layout` for each, the fewest replicas first.
    """
    model, every = known_model(model), []
    divisors = [n for n in range(1, machine.chips + 1) if machine.chips % n == 0]
    stages = [n for n in divisors if machine.slices % n == 0 and n <= model.layers]
    experts = [n for n in divisors if n == 1 or (model.experts and model.experts % n == 0)]
    tensors = [n for n in divisors if model.splits(n)]
    for pipeline, expert, tensor in product(stages, experts, tensors):
        replicas, left = divmod(machine.chips, pipeline * expert * tensor)
        if not left:
            every.append(Layout(replicas, pipeline, expert, tensor))
    return sorted(every, key=lambda layout: (layout.replicas, layout.pipeline, layout.expert))


def batches(
    model: str | Model, machine: Machine, prompt: int, output: int, layout: Layout, **how: Any
) -> Iterator[ServerCost]:
    """The `ServerCost` of each power of two of requests on each replica, from one on, as long as
    they fit.

    >>> rows = serving.batches("llama-3-8b", hardware.machine("v5e", 4), 8192, 256, serving.Layout(tensor=4))
    >>> print(*(row.concurrency for row in rows))
    1 2 4 8 16 32

    Args:
      model, machine, prompt, output, layout: as for `server_cost`.
      how: its other arguments.
    """  # noqa: E501
    for sequences in POWERS:
        cost = server_cost(
            model, machine, prompt, output, sequences * layout.replicas, layout, **how
        )
        if not cost.fits:
            return
        yield cost


def _meets(cost, slow_token_seconds=math.inf, first_token_seconds=math.inf, **_):
    times = cost.expected
    fast = (
        times.slow_token_seconds <= slow_token_seconds
        and times.first_token_seconds <= first_token_seconds
    )
    return cost.fits and fast


def server_plan(
    model: str | Model,
    machine: Machine,
    prompt: int,
    output: int,
    concurrency: int | None = None,
    *,
    slow_token_seconds: float = math.inf,
    first_token_seconds: float = math.inf,
    **how: Any,
) -> list[ServerCost]:
    """The layouts of a server, those of the highest expected throughput first, each at its best
    number of requests.

    >>> best, *others = serving.server_plan("llama-3-70b", hardware.machine("h100", 8), 2048, 256, slow_token_seconds=0.06)
    >>> print(f"{best.layout}, {best.concurrency} requests at a time")
    2 replicas of tensor 4, 16 requests at a time

    Args:
      model, machine, prompt, output: as for `server_cost`.
      concurrency: requests at a time, of all replicas; by default for each layout the power of two
        on each replica that has the highest throughput of those that fit and are as fast as asked
        for, or a smaller one whose throughput is nearly as high.
      slow_token_seconds, first_token_seconds: the longest expected times; of those between tokens
        the 95th percentile, of those to a first token where requests come independently.
      how: further arguments of `server_cost`.

    Returns:
      A `ServerCost` for each layout: first those that fit and are fast enough, then the others that
      fit, then the rest by their memory. Those of the latter two have one request on each replica,
      if no `concurrency` is given.
    """  # noqa: E501
    for name, value in (
        ("slow_token_seconds", slow_token_seconds),
        ("first_token_seconds", first_token_seconds),
    ):
        if not value > 0:
            raise ValueError(f"{name} is {value}; use a number above 0")

    def meets(cost):
        return _meets(cost, slow_token_seconds, first_token_seconds)

    def throughput(cost):
        return cost.expected.tokens_per_second_per_chip

    plans = []
    for layout in layouts(model, machine):
        if concurrency is None:
            able = [*filter(meets, batches(model, machine, prompt, output, layout, **how))]
            most = max(map(throughput, able), default=0.0)
            plans += [cost for cost in able if throughput(cost) > ALIKE * most][:1] or [
                server_cost(model, machine, prompt, output, layout.replicas, layout, **how)
            ]
        elif concurrency >= layout.replicas:
            plans.append(server_cost(model, machine, prompt, output, concurrency, layout, **how))
    return sorted(
        plans,
        key=lambda cost: (
            not meets(cost),
            not cost.fits,
            -throughput(cost) if cost.fits else cost.total_bytes,
        ),
    )


def fewest_chips(
    model: str | Model,
    machine: Machine,
    prompt: int,
    output: int,
    concurrency: int | None = None,
    **how: Any,
) -> ServerCost | None:
    """The best server on the fewest chips of a kind that meets what is asked for.

    >>> least = serving.fewest_chips("llama-3-8b", hardware.machine("h100", 8), 2048, 256)
    >>> print(least.layout)
    one chip

    Args:
      model, machine, prompt, output, concurrency: as for `server_plan`. Powers of two of its chips
        are tried, and their own number; up to sixteen times as many.
      how: its other arguments.

    Returns:
      A `ServerCost`, or None.
    """
    most = 16 * machine.chips
    for chips in sorted({machine.chips, *(n for n in POWERS if n <= most)}):
        try:
            some = hardware.machine(machine.chip, chips, reserve=machine.reserve)
        except ValueError:  # there is no such machine
            continue
        best = next(iter(server_plan(model, some, prompt, output, concurrency, **how)), None)
        if best and _meets(best, **how):
            return best
    return None


def remedies(
    model: str | Model,
    machine: Machine,
    prompt: int,
    output: int,
    concurrency: int | None = None,
    **how: Any,
) -> dict[str, ServerCost]:
    """The single changes with which the same chips meet what is asked for: chunks of prompts with
    each step, or narrower weights or caches.

    >>> asked = dict(slow_token_seconds=0.04, concurrency=64)
    >>> found = serving.remedies("llama-3-8b", hardware.machine("h100", 1), 2048, 256, **asked)
    >>> print(*found)
    --chunk 1024

    Args:
      model, machine, prompt, output, concurrency: as for `server_plan`.
      how: its other arguments.

    Returns:
      The best `ServerCost` with each change.
    """
    small = "fp8" if "fp8" in machine.chip.flops_per_second else "int8"
    tries = [[("chunk", chunk)] for chunk in CHUNKS if not how.get("chunk")]
    for name in ("weights", "cache"):
        wide = costs.BYTES[how.get(name) or "bf16"]
        tries.append([(name, dtype) for dtype in (small, "int4") if costs.BYTES[dtype] < wide])
    found: dict[str, ServerCost] = {}
    for change in (change for changes in tries for change in changes):
        name, value = change
        if any(f"--{name} " in what for what in found):
            continue
        best = next(
            iter(server_plan(model, machine, prompt, output, concurrency, **how | {name: value})),
            None,
        )
        if best and _meets(best, **how):
            found[f"--{name} {value}"] = best
    return found
