"""What readers copy from `two_networks`, against what each pattern sends in closed form."""

from types import SimpleNamespace

import numpy as np
import pytest
from contract import close, contract, reads

pytestmark = reads("two_networks")

RINGS = ("all-reduce", "all-gather", "reduce-scatter")


def moved(kind, groups, sent, times=1):
    """A program with one collective."""
    move = SimpleNamespace(kind=kind, groups=groups, bytes=sent, times=times)
    return SimpleNamespace(moves=[move])


@contract(
    "two_networks", "network_bytes", draws=60, quick=True,
    slices=[1, 2, 3, 4], chips=[1, 2, 5], mixed=[False, True],
    kind=[*RINGS, "all-to-all"], sent=[0, 7, 4096], times=[0, 1, 12],
)  # fmt: skip
def test_network_bytes(network_bytes, slices, chips, mixed, kind, sent, times):
    """`network_bytes` takes what `collectives` returned, and the slice of each device in the order
    of the mesh, with any number of slices.
    """
    n = slices * chips
    slice_of = np.tile(np.arange(slices), chips) if mixed else np.repeat(np.arange(slices), chips)
    leave, stay = network_bytes(moved(kind, (tuple(range(n)),), sent, times), slice_of)
    if n == 1:
        expected = 0, 0
    elif kind == "all-to-all":
        each = sent / (n - 1)
        expected = chips * (n - chips) * each, chips * (chips - 1) * each
    elif slices == 1:
        expected = 0, n * sent
    elif mixed:
        expected = chips * sent, 0
    else:
        expected = sent, (chips - 1) * sent
    close(np.array([leave, stay]), np.array(expected) * times)


@contract(
    "two_networks", "network_bytes", draws=20, quick=True,
    pairs=[(), ((0, 4),), ((0, 1), (1, 4), (4, 0)), ((0, 0), (5, 5))], sent=[0, 16],
)  # fmt: skip
def test_permutes(network_bytes, pairs, sent):
    """`network_bytes` takes what `collectives` returned, and the slice of each device in the order
    of the mesh, with any number of slices.
    """
    # A permute sends along its pairs; to itself a device sends nothing.
    slice_of = np.repeat([0, 1], 4)
    leave, stay = network_bytes(moved("collective-permute", pairs, sent), slice_of)
    out = [sum(a // 4 == s != b // 4 for a, b in pairs) for s in (0, 1)]
    within = [sum(a // 4 == b // 4 == s and a != b for a, b in pairs) for s in (0, 1)]
    assert (leave, stay) == (sent * max(out), sent * max(within))


@contract(
    "two_networks", "network_bytes", draws=10, quick=True,
    unknown=[(None, 1), (8, None)], kind=["ragged-all-to-all", "all-reduce"],
)  # fmt: skip
def test_unknown_sizes(network_bytes, unknown, kind):
    """`network_bytes` takes what `collectives` returned, and the slice of each device in the order
    of the mesh, with any number of slices.
    """
    # What only the run decides is refused.
    with pytest.raises(ValueError, match=kind):
        network_bytes(moved(kind, ((0, 1),), *unknown), [0, 1])
