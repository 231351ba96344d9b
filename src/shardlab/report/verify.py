"""Verify a plan: compile the training step of its best meshes for the chips, without the chips, and
compare bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.costs.plan import ORDER, Choice, Plan
from shardlab.costs.steps.parallelism import AXES
from shardlab.networks.training import training_step
from shardlab.pods.pod import Pod

__all__ = ["Verdict", "verify"]


@dataclass(frozen=True)
class Verdict:
    """A choice, and the program that a compiler made for it.

    Attributes:
      choice: the `Choice`.
      program: the `shardlab.PodProgram`.
    """

    choice: Choice
    program: Any

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that a chip sends, as compiled; None if only the run decides."""
        return self.program.sent()

    @property
    def ratios(self) -> dict[str, float | None]:
        """Compiled over predicted, of all bytes sent, the FLOPs and the memory; None where one is
        unknown.
        """
        predicted = sum(self.choice.sent_bytes.values())
        sent = self.sent_bytes / predicted if predicted and self.sent_bytes is not None else None
        flops, memory = self.program.flops, self.program.peak_bytes
        return {
            "sent": sent,
            "flops": flops / self.choice.flops if flops else None,
            "memory": memory / self.choice.total_bytes if memory else None,
        }

    def __str__(self) -> str:
        choice, ratios = self.choice, self.ratios
        mesh = str(choice)
        if self.program.fits is False:
            return f"{mesh}: does not fit: {self.program.message.splitlines()[0][:200]}"
        predicted = sum(choice.sent_bytes.values())
        lines = [
            (
                f"{what} {compiled / 1e9:.2f} GB compiled, {expected / 1e9:.2f} GB predicted "
                f"({ratio:.2f} times)"
            )
            for what, compiled, expected, ratio in (
                ("sends", self.sent_bytes, predicted, ratios["sent"]),
                ("holds", self.program.peak_bytes, choice.total_bytes, ratios["memory"]),
            )
            if ratio is not None
        ]
        return f"{mesh}: {'; '.join(lines)}; {self.program.source}, {self.program.seconds:.0f} s"


def verify(plan: Plan, best: int | Sequence[Choice] = 3, **options: Any) -> Iterator[Verdict]:
    """Compile the training step of the best choices for the chips of a plan, without the chips.

    Pipelines are compiled as GPipe, which keeps the activations of all micro-batches and not only
    those of as many as there are stages. Choices with both a pipeline and expert axes are left out,
    and those that interleave or gather once: plan with `stages=1, gathers=2` to compare.

    Args:
      plan: a `Plan`.
      best: how many choices; or which.
      **options: for `shardlab.Pod.compile`, such as `cache=False`.

    Yields:
      A `Verdict` for each, as soon as it is compiled: half a minute or more for large models.

    Raises:
      ValueError: there is no such pod, such as 7 chips in a torus; or each of its chips is two JAX
        devices (tpu7x); or a choice is one that is left out.
      shardlab.NoCompiler: the compiler for these chips is not installed.
    """
    if plan.machine.chip.torus and plan.machine.slices > 1:
        raise ValueError(
            f"one slice is compiled for, not {plan.machine.name}; plan with slices=1 to compare"
        )
    pod = Pod(plan.machine.name)
    if pod.size != plan.chips:
        raise ValueError(
            f"{pod.name} has {pod.size} JAX devices, two for each chip, and a plan's meshes "
            "have one for each; compile shardlab.networks.training's step on a mesh of all "
            "devices"
        )
    some = (
        [choice for choice in plan.choices if choice.can_compile][:best]
        if isinstance(best, int)
        else best
    )
    if unable := [choice for choice in some if not choice.can_compile]:
        raise ValueError(
            f"shardlab.networks.training has no such step: {unable[0]}; plan with stages=1 "
            "and gathers=2 to compare"
        )
    for choice in some:
        axes = [axis for axis in ORDER if axis in AXES or axis in choice.mesh]
        sizes = [getattr(choice, axis) for axis in axes]
        mesh = pod.mesh(sizes, axes, split=not pod.is_gpu)
        step, arguments = training_step(
            plan.model,
            mesh,
            plan.batch_tokens // plan.sequence,
            plan.sequence,
            plan.remat,
            choice.microbatches,
        )
        parts = (
            "x".join(str(size) for size in sizes)
            if axes == [*AXES]
            else str(choice).replace(" ", "")
        )
        name = f"{plan.model.name or 'model'}-{parts}" + f"-{plan.remat}" * (plan.remat != "block")
        yield Verdict(choice, pod.compile(step, *arguments, name=name, donate_argnums=0, **options))
