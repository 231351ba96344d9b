"""The kinds of collectives: what compiler and JAX call them, and how each moves its array. The one
list of them.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["KINDS", "OPERATIONS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """A kind of collective.

    Attributes:
      calls: JAX's operations inside a `jax.shard_map` that become it, each with the name that its
        users write.
      rounds: how often an algorithm on a ring passes the whole array on; 0 where chunks go straight
        to their device.
      grows: whether the result is larger than the operand: it has the operands of all devices.
      adds: whether it can add up what devices have.
      whole: whether a device that sends, sends all it has.
      priced: whether there is a formula for its time.
    """

    calls: dict[str, str]
    rounds: int = 0
    grows: bool = False
    adds: bool = False
    whole: bool = False
    priced: bool = True

    def sent(self, array_bytes, devices):
        """Bytes that each of several devices sends on a ring, of the larger of its operand and its
        result.
        """
        if self.whole:
            return np.where(np.greater(devices, 1), array_bytes, 0.0)[()]
        return max(self.rounds, 1) * (devices - 1) * array_bytes / devices


# By the compiler's names.
KINDS = {
    "all-gather": Kind(
        dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), "all_gather"),
        rounds=1,
        grows=True,
    ),
    "all-reduce": Kind(
        {
            **dict.fromkeys(("psum", "psum2", "psum_invariant", "unreduced_psum"), "psum"),
            "pmax": "pmax",
            "pmin": "pmin",
        },
        rounds=2,
        adds=True,
    ),
    "all-to-all": Kind({"all_to_all": "all_to_all"}),
    "collective-broadcast": Kind({"pbroadcast": "pbroadcast"}, whole=True, priced=False),
    "collective-permute": Kind({"ppermute": "ppermute"}, whole=True),
    "ragged-all-to-all": Kind({"ragged_all_to_all": "ragged_all_to_all"}, priced=False),
    "reduce-scatter": Kind(
        dict.fromkeys(
            ("reduce_scatter", "unreduced_reduce_scatter", "psum_scatter"), "psum_scatter"
        ),
        rounds=1,
        adds=True,
    ),
}
OPERATIONS = {operation: name for kind in KINDS.values() for operation, name in kind.calls.items()}
