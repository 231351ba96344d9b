"""The time of collectives along an axis of a mesh, by its place on the machine."""

import numpy as np

from shardlab.costs.communication.kinds import KINDS
from shardlab.costs.communication.traffic import collective_bytes, network_seconds
from shardlab.costs.rates import fitted


def axis_seconds(kind, count, all_bytes, place, waits, chip, experts=0):
    """(the time within a slice or node, that between them) of `count` collectives of these bytes
    together.

    If tokens are sent once to each node, `experts` is how many each has: of as many nodes, chosen
    at random, some are the same. Within the node they are passed on to its experts.
    """
    if kind == "all-to-all":
        # Of the chunks 1/far stay within the slice or node. The others are counted as all of them,
        # because `network_seconds` takes off what does not cross.
        within, between = all_bytes / place.far, all_bytes
        if experts:
            nodes = place.far * (1 - (1 - 1 / place.far) ** experts)
            within, between = all_bytes, all_bytes * nodes / experts
        near = place.routed * within / chip.link_bytes_per_second
    elif kind == "collective-permute":
        # one of the near chips of an axis sends to another slice or node
        between = np.where(place.far > 1, all_bytes, 0.0)
        near = np.where(place.near > 1, place.crowd * all_bytes / chip.link_bytes_per_second, 0.0)
    else:
        # What is between nodes is of an array that is reduced within the node first, or gathered
        # there last: each chip's card sends its own part.
        between = all_bytes / place.near
        near = collective_bytes(kind, all_bytes, place.near) / (
            place.ways * chip.link_bytes_per_second
        )
    hops = {"all-to-all": place.hops, "collective-permute": place.near > 1}.get(
        kind, KINDS[kind].rounds * place.hops
    )
    near = np.maximum(near, count * hops * chip.link_seconds)
    # Libraries take whichever is faster, rings or trees.
    waiting = count if waits else np.asarray(1.0)
    far = [
        network_seconds(kind, between, place.far, chip, way, count, waiting)
        for way in ("ring", "tree")
    ]
    return near, np.minimum(*far)


def call_seconds(kind, place, chip):
    """What a collective takes on GPUs besides its bytes: NCCL's own model, for the faster of a ring
    and a tree.
    """
    rates = fitted(chip)
    times, devices = KINDS[kind].rounds, place.near * place.far
    if not times:
        hops, across = np.minimum(place.near - 1, 1), np.minimum(place.far - 1, 1)
    else:
        hops, across = times * (devices - place.far), times * (place.far - 1)
    seconds = hops * rates.hop_seconds + across * rates.network_hop_seconds
    if kind == "all-reduce":
        # A tree over nodes takes as many hops as its depth, not as many as there are nodes.
        tree = 2 * (
            (place.near - 1) * rates.hop_seconds + np.log2(place.far) * rates.network_hop_seconds
        )
        seconds = np.minimum(seconds, tree)
    return np.where(devices > 1, rates.call_seconds + seconds, 0.0)
