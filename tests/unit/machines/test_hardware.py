"""Machines: which exist, their slices, nodes, hosts and rings, and where the axes of a mesh are on
them.
"""

import math

import pytest
from hypothesis import given, settings, strategies as st

from shardlab import CHIPS, Machine, chip, costs, machine
from shardlab.costs.inference import decode_cost
from shardlab.machines.hardware import measured
from shardlab.machines.placement import place

pytestmark = pytest.mark.reads("src/shardlab")


@pytest.mark.parametrize(
    ("asked", "how", "name", "hosts", "rings"),
    [
        (("v5p", 512), {}, "v5p:8x8x8", 128, (True,) * 3),
        (("v5p", 8960), {}, "v5p:16x20x28", 2240, (True,) * 3),
        (("v5p", 4), {}, "v5p:2x2x1", 1, (False,) * 3),
        (("v5p", 16), {}, "v5p:2x2x4", 4, (False,) * 3),
        (("v5e", 16), {}, "v5e:4x4", 2, (False, False)),
        (("v5e", 128), {}, "v5e:8x16", 16, (False, True)),
        (("v6e", 256), {}, "v6e:16x16", 32, (True, True)),
        (("v5e", 512), {"slices": 2}, "2 x v5e:16x16", 64, (True, True)),
        (("tpu7x", 9216), {}, "tpu7x:16x24x24", 2304, (True,) * 3),
        (("v5e:4x2",), {}, "v5e:4x2", 1, (False, False)),
        (("H100", 64), {}, "h100:8x8", 8, (True,)),
        (("h100:2x8",), {}, "h100:2x8", 2, (True,)),
        (("H200", 4), {}, "h200:1x4", 1, (True,)),
        (("GB200", 72), {}, "gb200:1x72", 18, (True,)),
        (("GB200", 576), {}, "gb200:8x72", 144, (True,)),
        (("GB200", 256), {}, "gb200:4x64", 64, (True,)),
    ],
)
def test_machines_that_exist(asked, how, name, hosts, rings):
    made = machine(*asked, **how)
    assert (made.name, made.hosts, made.rings) == (name, hosts, rings)
    assert made.chips == made.near * made.slices and machine(made) is made
    if made.slices == 1 or not made.chip.torus:
        assert machine(name) == made


@pytest.mark.parametrize(
    ("asked", "how", "says"),
    [
        (
            ("v5e", 1024),
            {},
            "no slice of v5e has 1,024 chips, the largest has 256; use 256 chips, or slices=4",
        ),
        (
            ("v5p", 16_384),
            {},
            "has 16,384 chips, the largest has 8,960; use 8,960 chips, or slices=4",
        ),
        (("v5p", 5), {}, "no slice of v5p has 5 chips.*; use 4 or 8 chips"),
        (("v5p", 48), {}, "; use 32 or 64 chips"),
        (("v6e", 24), {}, "; use 16 or 32 chips"),
        (("v5e", 7), {}, "; use 4 or 8 chips"),
        (("v5e", 300), {"slices": 7}, "300 chips cannot be spread evenly over 7 slices"),
        (
            ("v5e", 300),
            {"slices": 2},
            "no slice of v5e has 150 chips, the largest has 256; use 256 or 512 chips",
        ),
        (("H100", 512), {"slices": 3}, "512 H100 do not fill hosts of 8 on 3 nodes; use 24"),
        (("H100", 12), {}, "12 H100 do not fill hosts of 8; use 8 or 16"),
        (("h100:3x5",), {}, "no node 5 of H100; the nearest is 4"),
        (("v5p:28x28x28",), {}, "no slice 28x28x28 of v5p; the nearest is 16x20x28"),
        (("v5e:3x3",), {}, "no slice 3x3 of v5e; the nearest is"),
        (("v5p:8xx8",), {}, "'8xx8' is no shape"),
        (("h100:8",), {}, "write nodes x GPUs"),
        (("v5p", 8), {"shape": (4, 4, 4)}, "1 x 4x4x4 are 64 chips, not 8"),
        (("v5p", 8), {"reserve": 1.5}, "reserve=1.5"),
        (("v5p", 8), {"slices": 0}, "slices is 0"),
        ((Machine(CHIPS["v5p"], (2, 2, 2)), 16), {}, "v5p:2x2x2 has 8 chips, not 16"),
    ],
)
def test_machines_that_do_not_exist_are_refused_with_the_nearest(asked, how, says):
    with pytest.raises(ValueError, match=says):
        machine(*asked, **how)


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (("RTX 3090", "rtx3090", "3090", "GeForce RTX 3090", "rtx-3090"), "RTX 3090"),
        (("NVIDIA GeForce RTX 4090", "4090"), "RTX 4090"),
        (("l4", "NVIDIA L4"), "L4"),
        (("a10g", "NVIDIA A10G"), "A10G"),
        (("t4", "Tesla T4"), "T4"),
        (("nvidia h100", "H100"), "H100"),
    ],
)
def test_a_card_is_known_by_the_names_that_its_owner_uses(names, known):
    assert {chip(name).name for name in names} == {known}
    assert machine(f"{known}:1x4").name == machine(known, 4).name


def test_a_slice_in_googles_names_is_its_chips():
    for name, chips in (("v5p-256", 128), ("v4-8", 4), ("v5litepod-16", 16), ("v6e-64", 64)):
        kind = name.partition("-")[0].replace("v5litepod", "v5e")
        assert machine(name) == machine(name, chips) == machine(kind, chips)
    with pytest.raises(ValueError, match="counts 256 cores, two of each chip: write v5p 128"):
        machine("v5p-256", 256)
    with pytest.raises(ValueError, match="no chip is called 'v5p-255'"):
        machine("v5p-255")


def test_what_a_message_proposes_exists():
    for name in CHIPS:
        for chips in (3, 5, 7, 11, 23, 100, 3000):
            try:
                machine(name, chips)
            except ValueError as error:
                said = str(error).rpartition("use ")[2].replace(",", "").replace(" chips", "")
                near = [int(word) for word in said.split() if word.isdigit()]
                assert near and all(machine(name, one).chips == one for one in near), error


def places(name, *sizes):
    return place(lambda chips: machine(name, chips), list(sizes))


def test_axes_take_whole_axes_of_the_torus_and_their_rings():
    tensor, fsdp = places("v5p", 8, 64)
    # a ring of eight, in both directions
    assert (tensor.near, tensor.ways, tensor.hops) == (8, 2, 4)
    assert (fsdp.near, fsdp.ways, fsdp.hops) == (64, 4, 8)  # two of them
    (line,) = places("v5e", 16)
    assert (line.ways, line.hops) == (2, 6)  # two lines of four: an end has one link along each


def test_axes_that_share_an_axis_of_the_torus_have_no_ring_or_share_its_links():
    """Two axes of 4 on one of 16: the inner is a line; the outer reaches around, but four groups
    share each link.
    """
    inner, outer, rest = places("v5e", 4, 4, 16)
    assert (inner.ways, inner.hops, inner.crowd) == (1, 3, 1)
    assert (outer.ways, outer.hops, outer.crowd) == (2 / 4, 4 * 2, 4)
    assert (rest.ways, rest.hops) == (2, 8)


def test_on_gpus_the_innermost_axes_share_a_node():
    tensor, fsdp, data = places("H100", 4, 4, 4)
    assert [(int(axis.near), int(axis.far)) for axis in (tensor, fsdp, data)] == [
        (4, 1),
        (2, 2),
        (1, 4),
    ]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=2, max_size=4),
    st.sampled_from(["v5p", "v5e", "v6e"]),
)
def test_every_axis_has_its_chips_and_no_link_is_used_twice(sizes, name):
    try:
        made = machine(name, math.prod(sizes))
    except ValueError:
        return
    found = place(lambda chips: made, sizes)
    for size, axis in zip(sizes, found, strict=True):
        assert axis.near * axis.far == size and (axis.hops == 0) == (axis.near == 1)
    used = sum(float(axis.ways) for axis in found if axis.near > 1)
    assert used <= 2 * len(chip(name).torus)


# --- What was measured ----------------------------------------------------------------------------


MEASURED = {"H200": measured("H200")}


@pytest.mark.parametrize("name", MEASURED)
def test_no_measurement_is_faster_than_the_data_sheet(name):
    made, data = CHIPS[name], MEASURED[name]
    assert (
        made.name in data["device"]
        and data["packages"]["jax"]
        and data["memory_bytes"] <= 1.1 * made.hbm_bytes
    )
    for row in data["square"]:
        assert (
            row["dtype"] != "bfloat16"
            or 2 * row["size"] ** 3 / row["seconds"] < made.flops_per_second["bf16"]
        )
    for row in data["copy"][-3:]:  # smaller ones may stay in the cache
        assert 2 * row["bytes"] / row["seconds"] < made.hbm_bytes_per_second
    for row in data["transfer"]:
        assert row["bytes"] / row["seconds"] < made.host_bytes_per_second
    for row in data["decode"]:
        least = decode_cost(row["model"], name, row["sequences"], row["context"])
        assert row["seconds"] > least.seconds
    for row in data["steps"]:
        assert (
            row["peak_bytes"] < data["memory_bytes"]
            and row["alias_bytes"] > 0.99 * row["output_bytes"]
        )


def test_what_nobody_measured_is_said():
    with pytest.raises(
        ValueError, match="nothing was measured on v5p; there are measurements of H200"
    ):
        measured("v5p")
    with pytest.raises(ValueError, match="H20"):
        measured("H2000")


# --- Nodes without a switch -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, chip in CHIPS.items() if chip.peers])
@pytest.mark.parametrize("chips", [2, 3, 8])
def test_without_a_switch_a_chip_has_one_link_to_each_other(name, chips):
    """Counted link by link: in a gather each chip sends its shard to each other over the link
    between the two.
    """
    made, nbytes = chip(name), 84e9
    link = made.link_bytes_per_second / made.peers
    assert made.peers == made.node_chips - 1
    shard = nbytes / chips
    assert costs.collective_seconds("all-gather", nbytes, chips, name) == pytest.approx(
        shard / link
    )
    assert costs.collective_seconds("all-reduce", nbytes, chips, name) == pytest.approx(
        2 * shard / link
    )
    assert costs.collective_seconds("all-to-all", nbytes, chips, name) == pytest.approx(
        shard / link
    )
    assert costs.send_seconds(nbytes, 1, name) == pytest.approx(nbytes / link + made.link_seconds)
    (axis,) = place(lambda many: machine(name, 8), [chips])
    assert axis.ways * made.link_bytes_per_second == pytest.approx((chips - 1) * link)
    assert made.link_bytes_per_second / axis.crowd == pytest.approx(link)


def test_with_a_switch_a_pair_has_all_links():
    assert (
        chip("H100").link_share(2) == 1
        and costs.collective_seconds("all-gather", 9e9, 2, "H100") == 4.5e9 / 450e9
    )
