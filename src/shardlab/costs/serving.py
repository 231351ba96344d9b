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

from shardlab import costs
from shardlab._arguments import Numbers, whole
from shardlab.costs import inference
from shardlab.costs.inference import DecodeCost, PrefillCost, decode_step, prefill_of
from shardlab.costs.rates import Band
from shardlab.costs.setting import ServingSetting
from shardlab.machines.hardware import Chip, Machine
from shardlab.machines.models import Model, model as known_model

__all__ = [
    "BANDS",
    "Bands",
    "Layout",
    "ServerCost",
    "Times",
    "batches",
    "layouts",
    "server_cost",
    "server_plan",
]

# of prompts that are prefilled at once; TensorRT-LLM's benchmarks choose from 2,048 to 32,768
PREFILL_TOKENS = 8192
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
      first_token_seconds: from when a request gets its place to its first token.
      token_seconds: from each token to the next, on average.
      pause_seconds: from one token to the next where it is longest: while other prompts are
        prefilled.
      tokens_per_second_per_chip: generated tokens, of all requests together.
      requests_per_second: of all chips together.
    """

    first_token_seconds: float
    token_seconds: float
    pause_seconds: float
    tokens_per_second_per_chip: float
    requests_per_second: float


# By family of servers: of throughput, and where it is named of the time to the first token, alone
# or while others are served ("loaded"), and of the time for each token, of many or of few requests.
# From `python scripts/fit_planner.py`.
BANDS = {
    "gpu": Band(factor=1.3, tested=99),
    "gpu, first_token": Band(factor=1.24, tested=8),
    "gpu, few": Band(factor=1.78, tested=3),
    "gpu, fp4": Band(factor=1.48, tested=20),
    "gpu, experts": Band(factor=1.3, tested=44),
    "gpu, experts, fp4": Band(factor=2.05, tested=15),
    "tpu": Band(factor=1.45, tested=10),
    "tpu, token": Band(factor=1.46, tested=5),
    "tpu, loaded": Band(factor=1.17, tested=3),
    "tpu, experts": Band(factor=1.44, tested=2),
    "tpu, experts, token": Band(factor=1.32, tested=1),
}
ALIKE = 0.98  # of the highest throughput is as good, if fewer requests wait
FEW = 4  # requests on a replica; published throughputs are of many
# The chips on which those servers ran.
TESTED_CHIPS = ("A100", "H100", "H200", "B200", "GB200", "v6e", "tpu7x")


def family(chip: Chip, model: Model, dtype: str) -> str:
    """Which servers are alike: "gpu" or "tpu", with ", experts" for a mixture of them and ", fp4"
    for such products.
    """
    experts, small = ", experts" if model.experts else "", ", fp4" if dtype == "fp4" else ""
    return f"{inference.kind_of(chip)}{experts}{small}"


@dataclass(frozen=True)
class Bands:
    """The `Band` of each kind of `Times`."""

    first_token: Band
    token: Band
    throughput: Band


def bands(
    machine: Machine, model: Model, layout: Layout, sequences: int, dtype: str = "bf16"
) -> Bands:
    """How far the expected times of a replica with so many sequences can be trusted.

    Published servers are tensor-parallel within a node or slice; other layouts have not been
    tested.
    """
    name, unknown = (
        family(machine.chip, model, dtype),
        Band(max(band.factor for band in BANDS.values()), 0),
    )
    apart = layout.pipeline * layout.expert > 1 or layout.tensor > machine.near
    if apart or machine.chip.name not in TESTED_CHIPS:
        return Bands(unknown, unknown, unknown)
    throughput = BANDS.get(name, unknown)
    token = (
        BANDS.get(f"{name}, few", unknown)
        if sequences <= FEW
        else BANDS.get(f"{name}, token", throughput)
    )
    first = BANDS.get(f"{name}, loaded", BANDS.get(f"{name}, first_token", unknown))
    return Bands(first, token, throughput)


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
        return (
            Way(
                step.serial_seconds,
                first.seconds,
                prompts.seconds / self.together,
                0.0,
                lambda sequences: self.mixed(sequences).serial_seconds,
            ),
            Way(
                step.expected_seconds,
                first.expected_seconds,
                prompts.expected_seconds / self.together,
                step.expected_seconds / 2,
                lambda sequences: self.mixed(sequences).expected_seconds,
            ),
        )


@dataclass(frozen=True)
class Way:
    """The same as times, counted in one way."""

    step: Numbers
    first: Numbers
    prompts: Numbers  # of one of them
    waits: Numbers  # until the step in progress ends
    mixed: Callable[[float], Numbers]


def between_steps(way, sequences, output):
    """What `composed` gives for a replica that prefills prompts between its steps.

    While a sequence gets its answer, all others begin once.
    """
    token = way.step + (sequences - 1) * way.prompts / output
    rate = sequences / (way.first + output * token)
    share = way.prompts / (way.prompts + output * way.step / sequences)
    return way.first + way.waits, token, way.step + way.first, rate, share


def in_chunks(way, sequences, prompt, output, chunk):
    """What `composed` gives for a replica whose steps have `chunk` tokens of prompts too, as long
    as there are any.
    """
    share, steps = sequences * prompt / (chunk * output), math.ceil(prompt / chunk)
    if share <= 1:  # of the steps have a chunk
        time = way.mixed(sequences)
        first, token = steps * time, (1 - share) * way.step + share * time
        return (
            first + way.waits,
            token,
            time,
            sequences / (first + output * token),
            share * (1 - way.step / time),
        )
    # if there were more, they would end before as many prompts are ready
    generating = chunk * output / prompt
    time = way.mixed(generating)
    rate = generating / (output * time)
    first = max(sequences / rate - output * time, steps * time)
    return first, time, time, rate, 1 - way.step * generating / sequences / time


def composed(way: Way, sequences, prompt, output, chunk=None):
    """(first token, token, pause, requests per second, share of prompts) of a replica."""
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
    0.20 s, then 55 ms for each token

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
        float(expected[4]),
        prompt + output / 2,
        str(parts.step.bound),
        float(total),
        bool(total <= machine.usable_bytes),
        bands(machine, model, layout, sequences, dtype),
    )


def _times(parts, layout, output):
    first, token, pause, rate, _ = map(float, parts)
    rate = rate * layout.replicas
    return Times(first, token, pause, rate * output / layout.chips, rate)


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


def server_plan(
    model: str | Model,
    machine: Machine,
    prompt: int,
    output: int,
    concurrency: int | None = None,
    *,
    token_seconds: float = math.inf,
    first_token_seconds: float = math.inf,
    **how: Any,
) -> list[ServerCost]:
    """The layouts of a server, those of the highest expected throughput first, each at its best
    number of requests.

    >>> best, *others = serving.server_plan("llama-3-70b", hardware.machine("h100", 8), 2048, 256, token_seconds=0.06)
    >>> print(f"{best.layout}, {best.concurrency} requests at a time")
    2 replicas of tensor 4, 64 requests at a time

    Args:
      model, machine, prompt, output: as for `server_cost`.
      concurrency: requests at a time, of all replicas; by default for each layout the power of two
        on each replica that has the highest throughput of those that fit and are as fast as asked
        for, or a smaller one whose throughput is nearly as high.
      token_seconds, first_token_seconds: the longest expected times.
      how: further arguments of `server_cost`.

    Returns:
      A `ServerCost` for each layout: first those that fit and are fast enough, then the others that
      fit, then the rest by their memory. Those of the latter two have one request on each replica,
      if no `concurrency` is given.
    """  # noqa: E501
    for name, value in (
        ("token_seconds", token_seconds),
        ("first_token_seconds", first_token_seconds),
    ):
        if not value > 0:
            raise ValueError(f"{name} is {value}; use a number above 0")

    def meets(cost):
        times = cost.expected
        fast = (
            times.token_seconds <= token_seconds
            and times.first_token_seconds <= first_token_seconds
        )
        return cost.fits and fast

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
