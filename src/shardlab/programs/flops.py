"""Count the FLOPs of matrix products in a compiled program, a loop's body as often as it runs.

`cost_analysis` of a compiled program counts all operations, but a loop's body once, and for GPUs it
counts nothing.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardlab.programs.hlo import CALLS, Computation, Instruction, Program, dimensions, promised

__all__ = ["MatmulFlops", "whole_flops"]

_PRODUCTS = rf" (dot|convolution|custom-call)\(|{CALLS}"


class MatmulFlops:
    """FLOPs of matrix products in the computations of one `shardlab.Program`, each computation
    counted once.

    A product of (m, k) by (k, n) is 2 m k n FLOPs. Every count is None where it is unknown: in a
    loop whose length only the run decides, or for a library's or kernel's product, whose sizes are
    not in the program's text.

    >>> compiled = jax.jit(jnp.dot).lower(jnp.ones((4, 8)), jnp.ones((8, 2))).compile()
    >>> MatmulFlops().of(Program(compiled.as_text()).entry)
    128
    """

    def __init__(self) -> None:
        """Begin with no computation counted."""
        self._known = {}

    def of(self, computation: Computation) -> int | None:
        """FLOPs of one run of a `shardlab.programs.hlo.Computation`."""
        if computation not in self._known:
            self._known[computation] = _total(map(self.one, computation.matching(_PRODUCTS)))
        return self._known[computation]

    @promised()
    def by(
        self,
        key: Callable[[Instruction], Any],
        computation: Computation,
        devices: Mapping[str, int] | None = None,
    ) -> Counter | None:
        """FLOPs of one run of a computation as a `Counter`, by what `key` says of each product;
        None if unknown.

        Args:
          key: a function of a `shardlab.programs.hlo.Instruction`.
          computation: a `shardlab.programs.hlo.Computation`.
          devices: for computations, by name, that stand for one device's part: how many devices run
            them.
        """
        return self._by(key, computation, devices or {}, {})

    def _by(self, key, computation, devices, known):
        if computation in known:
            return known[computation]
        total = known[computation] = Counter()
        for product in computation.matching(_PRODUCTS):
            flops = self.one(product)
            if flops is None:
                return None
            calls = (
                product.calls()
                if flops and product.kind not in ("dot", "convolution", "custom-call")
                else None
            )
            if calls is None:
                total[key(product)] += flops
            for callee, times, _ in calls or ():
                inside = self._by(key, callee, devices, known) if self.of(callee) else {}
                if inside is None:
                    return None
                for place, flops in inside.items():
                    total[place] += flops * times * devices.get(callee.name, 1)
        return +total

    @promised()
    def beside(self, start: Instruction) -> int | None:
        """FLOPs between an instruction that starts an asynchronous operation and the one that waits
        for its end.
        """
        here, between, waiting = start.home, [], start.name
        started = set(start.channels("Start"))
        for name in list(here.lines)[list(here.lines).index(start.name) + 1 :]:
            line = here.lines[name]
            if f"{waiting})" in line or f"{waiting}," in line:
                instruction = here[name]
                if instruction.names[:1] == (waiting,) and instruction.kind.endswith("-done"):
                    break
                waiting = (
                    name
                    if instruction.names[:1] == (waiting,) and instruction.kind.endswith("-update")
                    else waiting
                )
            if " fusion(" in line and started.intersection(here[name].channels("Done")):
                break
            if re.search(_PRODUCTS, line):
                between.append(self.one(here[name]))
        return _total(between)

    def one(self, instruction: Instruction) -> int | None:
        """FLOPs of one `shardlab.programs.hlo.Instruction`, with all that it calls."""
        if instruction.kind in ("dot", "convolution"):
            with promised():
                return (_dot_flops if instruction.kind == "dot" else _convolution_flops)(
                    instruction
                )
        if instruction.kind == "custom-call":
            target = instruction.attribute("custom_call_target")
            return (
                None
                if re.search(
                    r"gemm|matmul|conv|cudnn|attention|tpu_custom_call|triton", target, re.I
                )
                else 0
            )
        return _total(
            _repeated(self.of(callee), most if least == most else None)
            for callee, least, most in instruction.calls()
        )


def whole_flops(key: Callable[[Instruction], Any], program: Program, text: str) -> Counter | None:
    """FLOPs of a program before it was partitioned, as `MatmulFlops.by` returns them.

    Args:
      key: a function of a `shardlab.programs.hlo.Instruction`.
      program: a `shardlab.Program` of what `jax.jit(f).lower(...).as_text(dialect="hlo")` returns.
      text: that text.
    """
    manual = set(re.findall(r'xla\.sdy\.manual_axes="#sdy<manual_axes\{([^}]*)\}', text))
    bodies = [here.name for here in program if "manual_computation_body" in here.name]
    if len(manual) > 1 or bool(manual) != bool(bodies) or "SPMDFullToShardShape" in text:
        return None  # shard_maps over several sets of axes, or written in a way that we do not read
    sizes = dict(
        re.findall(
            r'\\?"([^"\\]+)\\?"=(\d+)', (re.search(r"sdy\.mesh<\[[^\]]*\]", text) or [""])[0]
        )
    )
    axes = re.findall(r'\\?"([^"\\]+)\\?"', "".join(manual))
    if not sizes.keys() >= set(axes):
        return None
    devices = math.prod(int(sizes[axis]) for axis in axes)
    return MatmulFlops().by(key, program.entry, dict.fromkeys(bodies, devices))


def _total(counts):
    counts = list(counts)
    return None if None in counts else sum(counts)


def _repeated(flops, times):
    return 0 if flops == 0 else None if None in (flops, times) else flops * times


def _dot_flops(dot):
    """2 · elements of the result · elements of the contracting dimensions."""
    left = dimensions(dot.operands[0])
    return (
        2
        * math.prod(dimensions(dot.result))
        * math.prod(left[d] for d in dot.numbers("lhs_contracting_dims"))
    )


def _convolution_flops(convolution):
    """As `_dot_flops`, of a matrix product that is written as a convolution, as are all in programs
    for TPUs.

    Along each of its spatial dimensions only those positions count where the window covers data,
    and neither padding nor the gaps of dilation: that is how XLA writes a batch of products.
    """
    left, right = (dimensions(operand) for operand in convolution.operands[:2])
    result = dimensions(convolution.result)
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", convolution.attribute("dim_labels"))
    space = sorted(set(labels[1]) - {"b", "f"})
    window = dict(re.findall(r"(\w+)=([\w\-]+)", convolution.attribute("window")))

    def numbers(word, default):
        return (
            [int(n) for n in window[word].split("x")] if word in window else [default] * len(space)
        )

    strides, dilations, spread = (
        numbers("stride", 1),
        numbers("lhs_dilate", 1),
        numbers("rhs_dilate", 1),
    )
    pads = (
        [int(pad.partition("_")[0]) for pad in window["pad"].split("x")]
        if "pad" in window
        else [0] * len(space)
    )
    flops = (
        2
        * right[labels[2].index("i")]
        * result[labels[3].index("f")]
        * result[labels[3].index("b")]
    )
    for d, label in enumerate(space):
        here, there = left[labels[1].index(label)], result[labels[3].index(label)]
        places = (
            np.arange(there)[:, None] * strides[d]
            + np.arange(right[labels[2].index(label)]) * spread[d]
            - pads[d]
        )
        flops *= int(
            (
                (places >= 0) & (places <= (here - 1) * dilations[d]) & (places % dilations[d] == 0)
            ).sum()
        )
    return flops
