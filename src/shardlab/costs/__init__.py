"""What a program costs on hardware that we do not have: bytes, FLOPs, seconds and memory, by
formula.

A device computes, moves data between its memory (HBM) and its compute units, and communicates with
other devices. Each of the three has a speed, so each gives a time, and the largest of the three is
a lower bound for all of them together: the roofline. This module applies it to collectives, matrix
products, transformer layers and training steps; `shardlab.inference` to serving. Arguments that are
`Numbers` may be NumPy arrays, which broadcast: a function that takes one `Parallelism` also takes
100,000.

Bytes. `array_bytes` of a collective is the larger of its operand and its result on *one device*:
the result of an all-gather, the operand of a reduce-scatter, either of an all-reduce, an all-to-all
or a permute. `collective_bytes` computes from it what a device sends on a ring, which is
`shardlab.Collective.bytes`: (n-1)/n of the array for an all-gather. Dividing that by what a device
can send along the ring in both directions, W, is the form (array size) / W of the book *How To
Scale Your Model* (https://jax-ml.github.io/scaling-book/, "Scaling Book" below), which leaves the
(n-1)/n out. For an all-to-all that book's array is the global one, n times ours.

Dtypes have short names: "f32", "bf16", "fp8", "int8", "fp4", "int4".
"""

# Where to change what:
#   communication/  the kinds of collectives, their bytes and times, and where axes are on a machine
#   steps/          a training step: its mesh, rematerialisation, memory, parts, and expected time
#   inference.py    prefill and decode of one replica; serving.py composes them into a server
#   plan.py         which meshes are tried, and how they are ranked
#   setting.py      what a step or a replica is computed for, and its checks
#   rates.py        what is fitted to published runs; bands.py says how far off that was
#   published.py    the runs and servers of published.toml and servers.toml
#   ledger.py       predictions beside measurements
#   rooflines.py    one product or one layer on one chip; dtypes.py has the sizes of elements
from shardlab._arguments import Numbers
from shardlab.costs.bands import KINDS_OF_PLANS, LONG, band_of, band_words, kind_of_plan
from shardlab.costs.communication.traffic import (
    ALGORITHMS,
    collective_bytes,
    collective_seconds,
    crossover_bytes,
    hierarchical_seconds,
    latency_seconds,
    node_bytes,
    send_seconds,
)
from shardlab.costs.dtypes import BYTES
from shardlab.costs.rates import FITTED, Band, Fitted, Grouped
from shardlab.costs.rooflines import Roofline, layer, matmul
from shardlab.costs.steps.memory import Memory, activation_bytes, training_flops, training_memory
from shardlab.costs.steps.parallelism import AXES, MESH_AXES, SCHEDULES, Parallelism, parallelisms
from shardlab.costs.steps.remat import POLICIES, REMAT, Remat
from shardlab.costs.steps.step import PARTS, AxisCost, StepCost, step_cost

__all__ = [
    "ALGORITHMS",
    "AXES",
    "BYTES",
    "FITTED",
    "KINDS_OF_PLANS",
    "LONG",
    "MESH_AXES",
    "PARTS",
    "POLICIES",
    "REMAT",
    "SCHEDULES",
    "AxisCost",
    "Band",
    "Fitted",
    "Grouped",
    "Memory",
    "Numbers",
    "Parallelism",
    "Remat",
    "Roofline",
    "StepCost",
    "activation_bytes",
    "band_of",
    "band_words",
    "collective_bytes",
    "collective_seconds",
    "crossover_bytes",
    "hierarchical_seconds",
    "kind_of_plan",
    "latency_seconds",
    "layer",
    "matmul",
    "node_bytes",
    "parallelisms",
    "send_seconds",
    "step_cost",
    "training_flops",
    "training_memory",
]
