"""The judgement of a program: its findings, and what else its collectives tell of its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.report import findings
from shardlab.report.findings import Finding
from shardlab.report.moves import Move
from shardlab.report.program import Located

__all__ = ["Judgement", "judge"]


@dataclass(frozen=True)
class Judgement:
    """What a program's text says beside its moves.

    Attributes:
      findings: what to change in what it sends and computes.
      kept: bytes of gathered arguments that are kept for the backward pass.
      repeats: how many times the FLOPs of the unpartitioned program's products all devices compute
        together.
      forward: the names of the arguments that the forward pass uses.
    """

    findings: tuple[Finding, ...]
    kept: int
    repeats: float
    forward: frozenset[str]


def judge(located: Located, moves: Sequence[Move]) -> Judgement:
    """Judge a program by its text: what it sends, and what its devices repeat.

    Args:
      located: the program, and its collectives with their origins.
      moves: the rows of its report, in which each line of the source stands once.
    """
    sent, origins, compiled = located.collectives, located.origins, located.compiled
    causes = [(origin, why) for (*_, origin), why in zip(sent, located.causes, strict=True)]
    found = (
        *findings.of_sums(sent),
        *findings.of_repeated_operations(causes),
        *findings.of_loops(sent, origins),
        *findings.of_stacks(sent, origins),
        *findings.of_many(moves),
        *findings.of_repeated_products(*located.products, located.program.devices),
        *findings.of_partitioner(sent, origins, compiled.messages),
        *findings.of_constants(compiled.text),
        *findings.of_widening(compiled.text, compiled.backend),
    )
    kept = findings.kept_for_backward(sent, origins)
    return Judgement(found, kept, located.repeats, origins.forward_arguments())
