"""Timelines of small programs, against times worked out by hand, and of recorded programs."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from meshes import make_mesh
from tpu_programs import recordings

from shardlab import (
    CHIPS,
    PodProgram,
    UnreadableProgram,
    collectives,
    compile_for,
    read_program,
    timeline,
)
from shardlab.programs.timeline import Flight, predicted_seconds, step_timeline, steps_of

pytestmark = pytest.mark.reads("src/shardlab")

US = 1e-6
HEAD = "HloModule m, is_scheduled=true, num_partitions=8\n\n"
GROUPS = (
    "channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, use_global_device_ids=true"
)
# A v5e multiplies 1024^3 in 2 * 2^30 / 197e12 s; a line of eight gathers 8 MB in 7 MB / 45e9 B/s.
PRODUCT, GATHER = 2 * 1024**3 / 197e12, 7 * 2**20 / 45e9
TYPES = {
    "w": "bf16[512,1024]{1,0}",
    "W": "bf16[4096,1024]{1,0}",
    "x": "bf16[1024,1024]{1,0:T(8,128)S(1)}",
}


def program(*lines, more=""):
    """A program of these instructions; $w, $W and $x stand for types: a shard, what is gathered,
    and in fast memory.
    """
    text = "\n".join(f"  {line}" for line in lines)
    for short, typed in TYPES.items():
        text, more = text.replace(f"${short}", typed), more.replace(f"${short}", typed)
    return (
        f"{HEAD}{more}\nENTRY %main (w: bf16[512,1024], x: bf16[1024,1024]) -> bf16[1024,1024] "
        f"{{\n{text}\n}}\n"
    )


ARGUMENTS = "%w = $w parameter(0)", "%x = $x parameter(1)"
START = f"%s = ($w, $W) all-gather-start(%w), {GROUPS}"
DONE = "%d = $W all-gather-done(%s)"


def dot(name, of="%x"):
    return f"%{name} = $x dot({of}, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"


def about(found):
    return pytest.approx(found, rel=1e-3, abs=1e-12)


def test_what_stands_between_start_and_end_hides_a_collective():
    made = step_timeline(
        program(*ARGUMENTS, START, dot("a"), dot("b", "%a"), DONE, dot("c", "%b")), "v5e"
    )
    sent = 7 * 2**20
    assert 2 * PRODUCT < GATHER
    (flight,) = made.flights
    assert (flight.kind, flight.bytes, flight.start, flight.end) == (
        "all-gather",
        sent,
        0,
        about(GATHER),
    )
    assert made.waits == flight.waited == about(GATHER - 2 * PRODUCT)
    assert made.seconds == about(GATHER + PRODUCT)
    assert made.compute == (about((0, 2 * PRODUCT)), about((GATHER, GATHER + PRODUCT)))
    assert made.hidden() == made.hidden("all-gather") == about(sent * 2 * PRODUCT / GATHER)
    assert (
        made.hidden() + made.exposed() == sent
        and made.hidden("all-reduce") == made.exposed("all-reduce") == 0
    )


def test_without_compute_in_between_it_waits_for_all_of_it():
    for lines in ((START, DONE, dot("a")), (f"%d = $W all-gather(%w), {GROUPS}", dot("a"))):
        made = step_timeline(program(*ARGUMENTS, *lines), "v5e")
        assert made.hidden() == 0 and made.exposed() == 7 * 2**20
        assert made.waits == about(GATHER) and made.seconds == about(GATHER + PRODUCT)


def test_long_compute_hides_all_of_it():
    made = step_timeline(
        program(*ARGUMENTS, START, *(dot(f"a{i}") for i in range(20)), DONE), "v5e"
    )
    assert made.exposed() == made.waits == 0 and made.seconds == about(20 * PRODUCT)


def test_collectives_share_the_links_and_run_one_after_the_other():
    both = START, START.replace("%s", "%t").replace("channel_id=1", "channel_id=2")
    ends = DONE, "%e = $W all-gather-done(%t)"
    made = step_timeline(program(*ARGUMENTS, *both, dot("a"), *ends), "v5e")
    assert [flight.start for flight in made.flights] == about([0, GATHER])
    assert made.seconds == about(2 * GATHER) and made.waits == about(2 * GATHER - PRODUCT)
    assert made.exposed() == about(2 * 7 * 2**20 - 7 * 2**20 * PRODUCT / GATHER)


FUSIONS = f"""
%starts (p: bf16[512,1024]) -> (bf16[512,1024], bf16[4096,1024]) {{
  %p = $w parameter(0)
  %g = $W all-gather(%p), {GROUPS}, frontend_attributes={{chain_id="0"}}
  ROOT %c = ($w, $W) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}

%goes_on (q: bf16[512,1024], y: bf16[1024,1024]) -> (bf16[1024,1024], bf16[512,1024], bf16[4096,1024]) {{
  %q = $w parameter(0)
  %y = $x parameter(1)
  %m = $x dot(%y, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %h = $W all-gather(%q), {GROUPS}, frontend_attributes={{chain_id="0"}}
  ROOT %t = ($x, $w, $W) tuple(%m, %q, %h)
}}

%ends (r: bf16[512,1024]) -> bf16[4096,1024] {{
  %r = $w parameter(0)
  %i = $W all-gather(%r), {GROUPS}, frontend_attributes={{chain_id="0"}}
  ROOT %k = $W custom-call(%i), custom_call_target="AsyncCollectiveDone"
}}
"""  # noqa: E501


def test_a_collective_that_goes_on_in_fusions_is_one_flight():
    lines = (
        "%a = ($w, $W) fusion(%w), kind=kCustom, calls=%starts",
        "%s = $w get-tuple-element(%a), index=0",
        "%f = ($x, $w, $W) fusion(%s, %x), kind=kOutput, calls=%goes_on",
        "%u = $w get-tuple-element(%f), index=1",
        "%d = $W fusion(%u), kind=kCustom, calls=%ends",
    )
    made = step_timeline(program(*ARGUMENTS, *lines, more=FUSIONS), "v5e")
    # what is handed through costs nothing
    assert len(made.flights) == 1 and made.compute == (about((0, PRODUCT)),)
    assert made.waits == about(GATHER - PRODUCT)


def test_names_that_people_chose_are_no_instructions():
    named = dot("a") + ', metadata={op_name="jit(f)/a tuple(b)/a constant(1)/dot_general"}'
    assert step_timeline(program(*ARGUMENTS, named), "v5e").seconds == about(PRODUCT)
    scoped = FUSIONS.replace(
        "%p = $w parameter(0)", '%p = $w parameter(0), metadata={op_name="channel_id=9"}'
    )
    lines = (
        "%a = ($w, $W) fusion(%w), kind=kCustom, calls=%starts",
        "%s = $w get-tuple-element(%a), index=0",
    )
    ends = "%d = $W fusion(%s), kind=kCustom, calls=%ends"
    made = step_timeline(program(*ARGUMENTS, *lines, ends, dot("b"), more=scoped), "v5e")
    assert made.hidden() == 0 and made.seconds == about(GATHER + PRODUCT)


def test_each_call_of_a_computation_sends_once():
    called = f"""
%gathers (p: bf16[512,1024]) -> bf16[4096,1024] {{
  %p = $w parameter(0)
  ROOT %g = $W all-gather(%p), {GROUPS}
}}
"""
    lines = (f"%{name} = $W call(%w), to_apply=%gathers" for name in "ab")
    text = program(*ARGUMENTS, *lines, dot("c"), more=called)
    made = step_timeline(text, "v5e")
    assert [flight.bytes for flight in made.flights] == [7 * 2**20] * 2
    assert read_program(text).bytes == 2 * 7 * 2**20 and made.seconds == about(2 * GATHER + PRODUCT)


def test_a_kernel_of_unknown_flops_is_refused():
    kernel = '%k = $x custom-call(%x), custom_call_target="tpu_custom_call"'
    with pytest.raises(UnreadableProgram, match=r"the FLOPs of k are not in .*without this kernel"):
        step_timeline(program(*ARGUMENTS, kernel), "v5e")


def test_an_end_without_its_start_is_refused():
    carried = "%c = ($w, $W) parameter(2)", "%e = $W all-gather-done(%c)"
    fused = "%d = $W fusion(%w), kind=kCustom, calls=%ends"
    for lines in (carried, (fused,)):
        with pytest.raises(UnreadableProgram, match="starts elsewhere"):
            step_timeline(program(*ARGUMENTS, *lines, dot("a"), more=FUSIONS), "v5e")


def test_a_fusion_ends_one_collective_and_starts_another():
    second = GROUPS.replace("channel_id=1", "channel_id=2")
    change = f"""
%change (r: bf16[512,1024], n: bf16[512,1024]) -> (bf16[4096,1024], (bf16[512,1024], bf16[4096,1024])) {{
  %r = $w parameter(0)
  %n = $w parameter(1)
  %i = $W all-gather(%r), {GROUPS}, frontend_attributes={{chain_id="0"}}
  %k = $W custom-call(%i), custom_call_target="AsyncCollectiveDone"
  %j = $W all-gather(%n), {second}, frontend_attributes={{chain_id="1"}}
  %l = ($w, $W) custom-call(%j), custom_call_target="AsyncCollectiveStart"
  ROOT %t = ($W, ($w, $W)) tuple(%k, %l)
}}

%last (r: bf16[512,1024]) -> bf16[4096,1024] {{
  %r = $w parameter(0)
  %i = $W all-gather(%r), {second}, frontend_attributes={{chain_id="1"}}
  ROOT %k = $W custom-call(%i), custom_call_target="AsyncCollectiveDone"
}}
"""  # noqa: E501
    lines = (
        "%a = ($w, $W) fusion(%w), kind=kCustom, calls=%starts",
        dot("b"),
        "%c = ($W, ($w, $W)) fusion(%w, %w), kind=kCustom, calls=%change",
        dot("e"),
        "%f = $W fusion(%w), kind=kCustom, calls=%last",
    )
    made = step_timeline(program(*ARGUMENTS, *lines, more=FUSIONS + change), "v5e")
    assert [(flight.start, flight.end) for flight in made.flights] == [
        about((0, GATHER)),
        about((GATHER, 2 * GATHER)),
    ]
    assert made.waits == about(2 * (GATHER - PRODUCT)) and made.seconds == about(2 * GATHER)


def test_a_loops_body_runs_as_often_as_the_program_says():
    def step(x, W):
        return jnp.tanh(x @ lax.all_gather(W, "d", tiled=True)), None

    mapped = jax.shard_map(
        lambda x, Ws: lax.scan(step, x, Ws)[0],
        mesh=make_mesh((8,), "d"),
        in_specs=(P("d"), P(None, "d")),
        out_specs=P("d"),
    )
    compiled = compile_for(mapped, jnp.ones((64, 32)), jnp.ones((5, 32, 32)))
    made = step_timeline(compiled, "v5e")
    assert (
        len(made.flights) == 5 and sum(f.bytes for f in made.flights) == collectives(compiled).bytes
    )
    assert [len(trips) for trips in made.loops] == [5]
    trips = made.loops[0]
    assert [end for _, end in trips[:-1]] == [start for start, _ in trips[1:]]
    assert made.hidden() == 0  # this backend's collectives are one instruction each
    text = compiled.as_text()
    assert step_timeline(text, "v5e").flights == made.flights
    assert step_timeline(text, CHIPS["v5p"]).seconds < made.seconds


def test_a_loop_of_unknown_length_is_refused():
    compiled = compile_for(
        lambda x: lax.while_loop(lambda x: x.sum() < 9, lambda x: x * 2, x), jnp.ones(4)
    )
    with pytest.raises(UnreadableProgram, match="how often this loop runs"):
        step_timeline(compiled, "v5e")


@pytest.mark.parametrize(
    ("shape", "seconds"), [((4096, 4096), 2 * 4 * 4096**2 / 819e9), ((8, 8), 512 / 819e9)]
)
def test_what_multiplies_nothing_takes_as_long_as_its_bytes(shape, seconds):
    text = compile_for(lambda x: x * 2, jnp.ones(shape)).as_text()
    assert [step[0] for step in steps_of(text, "v5e")] == ["compute"]
    assert step_timeline(text, "v5e").seconds == about(seconds)


def test_of_a_stack_only_the_slice_is_read():
    slice_ = """
%take (a: bf16[8,512,1024], i: s32[]) -> bf16[1,512,1024] {
  %a = bf16[8,512,1024]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  ROOT %c = bf16[1,512,1024]{2,1,0} dynamic-slice(%a, %i, %z, %z), dynamic_slice_sizes={1,512,1024}
}
"""
    lines = "%w = bf16[8,512,1024]{2,1,0} parameter(0)", "%x = s32[] parameter(1)"
    call = "%f = bf16[1,512,1024]{2,1,0} fusion(%w, %x), kind=kLoop, calls=%take"
    assert step_timeline(program(*lines, call, more=slice_), "v5e").seconds == about(
        2 * 2**20 / 819e9
    )


RECORDED = recordings()


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_recorded_programs_send_in_a_timeline_what_they_send(name):
    text = RECORDED[name]
    try:
        sent, made = read_program(text), step_timeline(text, "v5e")
    except UnreadableProgram as error:
        assert re.search("how often|no formula|no order yet|communicates in a way", str(error))
        return
    assert sent.bytes_at_least <= sum(flight.bytes for flight in made.flights) <= sent.bytes_at_most
    assert made.seconds == pytest.approx(
        made.waits + sum(end - start for start, end in made.compute)
    )
    for kind in sent:
        assert 0 <= made.hidden(kind) <= made.hidden(kind) + made.exposed(kind)


def test_lanes_are_cut_and_drawn():
    made = step_timeline(
        program(*ARGUMENTS, START, dot("a"), DONE, dot("c", "%b")).replace("%b", "%a"), "v5e"
    )
    lanes = made.lanes(PRODUCT / 2, GATHER + PRODUCT / 2)
    (compute, waits, last) = sorted(lanes["compute"], key=lambda segment: segment[1])
    assert (
        compute == ("compute", 0, about(PRODUCT / 2 / US))
        and waits[0] == "waits"
        and last[0] == "compute"
    )
    assert lanes["communication"] == [("all-gather", 0, about((GATHER - PRODUCT / 2) / US))]
    shown = timeline(made.lanes(), unit="µs")
    assert "waits" in repr(shown) and "all-gather" in shown._repr_html_()


def test_times_are_those_of_the_formula():
    gathers = read_program(program(*ARGUMENTS, f"%d = $W all-gather(%w), {GROUPS}")).moves
    assert predicted_seconds(gathers[0], CHIPS["v5e"]) == about(GATHER)
    # along both axes at once
    assert predicted_seconds(gathers[0], CHIPS["v5e"], (2, 4)) == about(GATHER / 2)
    # of other chips we do not know
    assert predicted_seconds(gathers[0], CHIPS["v5e"], (4, 4)) == about(GATHER)
    assert Flight("all-gather", 100, 0.0, 0.0, 0.0).hidden == 100


def test_a_pods_program_brings_its_schedule():
    steps = steps_of(program(*ARGUMENTS, START, dot("a"), DONE), "v5e")
    made = PodProgram("f", "v5e:2x4", 8, {"d": 8}, True, schedule=steps)
    assert step_timeline(made).waits == step_timeline(made, "v5e").waits == about(GATHER - PRODUCT)
    assert made.to_json()["schedule"] == steps
    without = PodProgram("f", "v5e:2x4", 8, {"d": 8}, True)
    assert "schedule" not in without.to_json()
    with pytest.raises(ValueError, match="schedule=True"):
        step_timeline(without)
    with pytest.raises(ValueError, match="for v5e:2x4"):
        step_timeline(made, "v5p")


def test_wrong_arguments_say_what_to_pass():
    with pytest.raises(TypeError, match="PodProgram"):
        step_timeline(3)
    with pytest.raises(ValueError, match="Pass a chip"):
        step_timeline(program(*ARGUMENTS))
    with pytest.raises(UnreadableProgram, match="is_scheduled"):
        step_timeline(program(*ARGUMENTS).replace("is_scheduled=true, ", ""), "v5e")
