"""Collectives read from programs whose communication is known by construction, for emulated devices
and for TPUs.

The expected numbers come from arithmetic on shapes and meshes, or from the program as JAX lowered
it (StableHLO, before XLA), never from the parser itself.
"""

import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given, settings, strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from meshes import MESH, make_mesh
from tpu_programs import PLACES, PROGRAMS, recordings

from shardlab import UnreadableProgram, collectives, compile_for, read_program

pytestmark = pytest.mark.reads("src/shardlab")

A = jax.ShapeDtypeStruct((8, 16), jnp.float32)


def manual(f, in_specs, out_specs, mesh=MESH):
    return jax.jit(
        jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    )


def ring(n):
    return [(i, (i + 1) % n) for i in range(n)]


KNOWN = {
    # name: (the program of a device, in_specs, out_specs), then kind, axes, bytes in, group size,
    # ring factor
    "all-reduce along x": ((lambda a: lax.psum(a, "x"), P("x", "y"), P(None, "y")), "all-reduce",
        ("x",), 64, 2, 2),
    "all-reduce along y": ((lambda a: lax.psum(a, "y"), P("x", "y"), P("x")), "all-reduce", ("y",),
        64, 4, 2),
    "all-reduce on both": ((lambda a: lax.psum(a, ("x", "y")), P("x", "y"), P()), "all-reduce",
        ("x", "y"), 64, 8, 2),
    "maximum": ((lambda a: lax.pmax(a, "y"), P("x", "y"), P("x")), "all-reduce", ("y",), 64, 4, 2),
    "two sums merged": (
        (lambda a: lax.psum((a, a.sum(0)), "y"), P("x", "y"), (P("x"), P())), "all-reduce", ("y",),
        64 + 16, 4, 2,
    ),
    "reduce-scatter": (
        (lambda a: lax.psum_scatter(a, "y", tiled=True), P(), P("y")), "reduce-scatter", ("y",),
        512, 4, 1,
    ),
    "all-to-all": (
        (lambda a: lax.all_to_all(a, "y", 1, 0, tiled=True), P("y"), P(None, "y")), "all-to-all",
        ("y",), 128, 4, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_known_collectives(name):
    (f, in_specs, out_specs), kind, axes, held, n, passes = KNOWN[name]
    found = collectives(manual(f, in_specs, out_specs), A)
    assert found == {kind: 1}
    (move,) = found.moves
    assert move.axes == axes and move.times == 1 and {len(group) for group in move.groups} == {n}
    assert found.bytes == move.bytes == passes * (n - 1) * held // n
    assert sorted(sum(move.groups, ())) == list(range(8))


def test_all_gather_and_permute():
    gathered = collectives(
        manual(lambda a: lax.all_gather(a, "y", axis=1, tiled=True), P("x", "y"), P("x")), A
    )
    assert gathered == {"all-gather": 1} and gathered.bytes == 3 * 64
    assert gathered.moves[0].operands == ("f32[4,4]",) and gathered.moves[0].results == (
        "f32[4,16]",
    )
    permuted = collectives(
        manual(lambda a: lax.ppermute(a, "y", ring(4)), P("x", "y"), P("x", "y")), A
    )
    assert permuted == {"collective-permute": 1} and permuted.bytes == 64
    assert (
        permuted.moves[0].axes == ("y",)
        and (3, 0) in permuted.moves[0].groups
        and (7, 4) in permuted.moves[0].groups
    )


@settings(max_examples=25, deadline=None)
@given(
    st.permutations("abc"),
    st.integers(1, 3),
    st.sampled_from([(2, 2, 2), (2, 4, 1), (4, 2, 2), (2, 3, 4)]),
)
def test_groups_are_named_by_the_axes_that_the_program_names(order, count, sizes):
    mesh = make_mesh(sizes)
    axes = tuple(sorted(order[:count]))
    whole = math.prod(sizes)
    found = collectives(
        manual(lambda a: lax.psum(a, axes), P("abc"[0]), P("abc"[0]), mesh),
        jnp.ones((12, 5)),
        mesh=mesh,
    )
    n = math.prod(mesh.shape[axis] for axis in axes)
    # along an axis of size 1 nothing is sent, whether or not the compiler leaves an operation there
    if n == 1:
        assert found == {} and found.bytes == 0
        return
    (move,) = found.moves
    assert set(move.axes) == {axis for axis in axes if mesh.shape[axis] > 1}
    assert {len(group) for group in move.groups} == {n} and sorted(sum(move.groups, ())) == list(
        range(whole)
    )
    assert found.bytes == math.ceil(2 * (n - 1) / n * (12 // sizes[0]) * 5 * 4)


def test_no_communication():
    assert (
        collectives(jnp.sin, jax.device_put(jnp.ones((8, 16)), NamedSharding(MESH, P("x", "y"))))
        == {}
    )
    one = collectives(lambda a: a @ a.T, jnp.ones((3, 3)))
    assert (
        one == {} and one.bytes == 0 and repr(one) == "no communication" == one._repr_html_()[3:-4]
    )


@pytest.mark.parametrize("length", [1, 2, 5, 17])
def test_a_loop_counts_as_often_as_it_runs(length):
    def f(a):
        return lax.scan(lambda c, _: (lax.ppermute(c, "y", ring(4)), None), a, None, length=length)[
            0
        ]

    found = collectives(manual(f, P("x", "y"), P("x", "y")), A)
    assert found == {"collective-permute": length} and found.bytes == length * 64


def test_loops_in_loops_multiply():
    def inner(a):
        return lax.fori_loop(0, 3, lambda i, c: lax.ppermute(c, "y", ring(4)), a)

    def f(a):
        return lax.fori_loop(0, 7, lambda i, c: inner(c) * 2, a)

    found = collectives(manual(f, P("x", "y"), P("x", "y")), A)
    assert found["collective-permute"] == 21


def test_what_only_the_run_decides_is_unknown():
    def until(a):
        return lax.while_loop(lambda c: c.sum() < 100, lambda c: lax.pmax(c, "x") + 1, a)

    found = collectives(manual(until, P("x", "y"), P("x", "y")), A)
    assert found == {"all-reduce": None} and found.bytes is None and "unknown" in repr(found)

    def perhaps(a):
        return lax.cond(a.sum() > 0, lambda c: lax.psum(c, "x"), lambda c: 2 * c, a)

    assert collectives(manual(perhaps, P("x", "y"), P(None, "y")), A) == {"all-reduce": None}


def test_a_branch_runs_at_most_once_and_one_branch_of_them_runs():
    def perhaps(a):
        return lax.cond(a.sum() > 0, lambda c: lax.psum(c, "x"), lambda c: 2 * c, a)

    found = collectives(manual(perhaps, P("x", "y"), P(None, "y")), A)
    assert found.at_least == {"all-reduce": 0} and found.at_most == {"all-reduce": 1}
    # 2 · 1/2 · 64 bytes along x
    assert (found.bytes_at_least, found.bytes, found.bytes_at_most) == (0, None, 64)
    (move,) = found.moves
    assert (move.at_least, move.times, move.at_most) == (0, None, 1)
    assert "at most 1 " in repr(found) and "at most 64" in found._repr_html_()

    def either(a):
        many = lambda c: lax.psum(jnp.sin(lax.psum(c, "x")), "y")  # noqa: E731
        return lax.switch(
            a.sum().astype(int), [many, lambda c: lax.psum(c, "x"), lambda c: lax.psum(c, "y")], a
        )

    found = collectives(manual(either, P("x", "y"), P("x", "y")), A)
    assert found == {"all-reduce": None} and found.at_least == {"all-reduce": 1}
    assert found.at_most == {"all-reduce": 2}  # although there are four of them
    assert (found.bytes_at_least, found.bytes_at_most) == (64, 64 + 96) and "64 to 160" in repr(
        found
    )

    def one_each(a):
        return lax.cond(a.sum() > 0, lambda c: lax.psum(c, "x"), lambda c: lax.psum(2 * c, "x"), a)

    always = collectives(manual(one_each, P("x", "y"), P(None, "y")), A)
    assert always == {"all-reduce": 1} and always.bytes == 64


def test_bounds_in_loops():
    def turn(c):
        return lax.cond(c.sum() > 0, lambda c: lax.ppermute(c, "y", ring(4)), lambda c: 2 * c, c)

    found = collectives(
        manual(lambda a: lax.fori_loop(0, 5, lambda i, c: turn(c), a), P("x", "y"), P("x", "y")), A
    )
    assert found.at_most == {"collective-permute": 5} and found.bytes_at_most == 5 * 64

    def until(a):
        return lax.while_loop(
            lambda c: lax.psum(c.sum(), "y") < 100, lambda c: lax.pmax(c, "x") + 1, a
        )

    moves = collectives(manual(until, P("x", "y"), P("x", "y")), A).moves
    bounds = {move.axes: (move.at_least, move.at_most) for move in moves}
    # the condition runs at least once, the body perhaps never
    assert bounds == {("y",): (1, None), ("x",): (0, None)}


BODIES = st.recursive(
    st.just("sum"),
    lambda inside: st.one_of(
        st.tuples(st.just("if"), st.lists(st.lists(inside, max_size=2), min_size=1, max_size=3)),
        st.tuples(st.integers(0, 3), st.lists(inside, max_size=2)),
    ),
    max_leaves=8,
)


def written(parts, name, made):
    """A computation with sums, conditionals and loops, as text in `made`."""
    lines = [f"  %p{name} = f32[4] parameter(0)"]
    for part in parts:
        here = f"{name}.{len(lines)}"
        if part == "sum":
            lines.append(
                f"  %r{here} = f32[4] all-reduce(%p{name}), replica_groups={{}}, to_apply=%add"
            )
            continue
        bodies = part[1] if part[0] == "if" else [part[1]]
        called = [f"b{here}.{i}" for i in range(len(bodies))]
        for body, one in zip(bodies, called, strict=True):
            written(body, one, made)
        if part[0] == "if":
            branches = ", ".join(f"%{one}" for one in called)
            lines.append(
                f"  %r{here} = f32[4] conditional(%p{name}), branch_computations={{{branches}}}"
            )
        else:
            written([], f"c{here}", made)
            known = f'backend_config={{"known_trip_count":{{"n":"{part[0]}"}}}}'
            lines.append(
                f"  %r{here} = f32[4] while(%p{name}), condition=%c{here}, body=%{called[0]}, "
                f"{known}"
            )
    made.append(f"%{name} (p: f32[4]) -> f32[4] {{\n" + "\n".join(lines) + "\n}\n\n")
    return lines


def possible(parts):
    """Every number of sums that a run may make, by trying every choice of every conditional."""
    counts = {0}
    for part in parts:
        once, turns = {1}, 1
        if part != "sum":
            once = set().union(*map(possible, part[1])) if part[0] == "if" else possible(part[1])
            turns = 1 if part[0] == "if" else part[0]
        for _ in range(turns):
            counts = {a + b for a in counts for b in once}
    return counts


@settings(max_examples=100, deadline=None)
@given(st.lists(BODIES, min_size=1, max_size=3))
def test_bounds_are_those_of_all_choices(parts):
    made = []
    found = read_program(program("\n".join(written(parts, "main", made)), "".join(made[:-1])))
    counts = possible(parts)
    assert found.at_least.get("all-reduce", 0) == min(counts)
    assert found.at_most.get("all-reduce", 0) == max(counts)
    # 2 · 7/8 · 16 bytes
    assert (found.bytes_at_least, found.bytes_at_most) == (28 * min(counts), 28 * max(counts))
    assert found.get("all-reduce", 0) == (min(counts) if len(counts) == 1 else None)
    for move in found.moves:
        assert move.at_least == (0 if move.branches else move.at_most)


def test_alone_nobody_communicates():
    mesh = make_mesh((8, 1))
    for axis in ("b", ("b",)):
        assert (
            collectives(manual(lambda a, axis=axis: lax.psum(a, axis), P("a"), P("a"), mesh), A)
            == {}
        )
    body = (
        "  %p = f32[4] parameter(0)\n  ROOT %r = f32[4] all-reduce(%p), replica_groups={}, "
        "to_apply=%add"
    )
    spelled = (
        "{{0},{1},{2},{3},{4},{5},{6},{7}}",
        "[8,1]<=[8]",
        "mesh['d'=8] {}",
        "mesh['d'=8,'e'=1] {'e'}",
    )
    for groups in spelled:
        assert (
            read_program(program(body.replace("replica_groups={}", f"replica_groups={groups}")))
            == {}
        )
    assert read_program(program(body)).moves[0].groups == (tuple(range(8)),)
    replicated = program(body).replace("num_partitions=8", "replica_count=8")  # as pmap of JAX 0.7
    assert read_program(replicated).moves[0].groups == (tuple(range(8)),)


def test_quoted_text_is_no_group():
    groups = "{{0,1,2,3},{4,5,6,7}}"
    fake = (
        r'metadata={op_name="jit(f)/\"x\", replica_groups={{0,1},{2,3}} '
        r'replica_groups=[4,2]<=[8]" source_line=3}'
    )
    mine = (
        f'frontend_attributes={{note="replica_groups={{}}"}}, replica_groups={groups}, '
        f"to_apply=%add, {fake}"
    )
    body = f"  %p = f32[4] parameter(0)\n  ROOT %r = f32[4] all-reduce(%p), {mine}"
    (move,) = read_program(program(body), MESH).moves
    assert move.axes == ("y",)
    (move,) = read_program(program(body.replace(groups, "mesh['x'=2,'y'=4] {'x'}")), MESH).moves
    assert move.axes == ("x",)


@pytest.mark.parametrize(
    ("groups", "within"),
    [([[0, 1], [2, 3]], ("y",)), ([[0, 2], [1, 3]], ("y",)), ([[0, 1, 2, 3]], ("y",))],
)
def test_along_a_part_of_an_axis(groups, within):
    f = manual(
        lambda a: lax.all_to_all(a, "y", 0, 0, axis_index_groups=groups, tiled=True), P("y"), P("y")
    )
    found = collectives(f, jax.ShapeDtypeStruct((32, 16), jnp.float32))
    (move,) = found.moves
    assert found == {"all-to-all": 1} and move.within == within
    assert move.axes == (within if len(groups) == 1 else None)
    words = "along y" if len(groups) == 1 else f"within y: groups {groups}"[:-1]
    assert words in repr(found) and words in found._repr_html_()
    assert found.moves[0].bytes == 8 * 16 * 4 * (len(groups[0]) - 1) // len(groups[0])


def test_the_fewest_axes_within_which_groups_stay():
    def within(groups, mesh=MESH):
        body = (
            "  %p = f32[4] parameter(0)\n  ROOT %r = f32[4] all-reduce(%p), "
            f"replica_groups={groups}, to_apply=%add"
        )
        (move,) = read_program(program(body), mesh).moves
        return move.axes, move.within

    assert within("{{0,1,4,5},{2,3,6,7}}") == (None, ("x", "y"))
    assert within("{{0,1},{2,3},{4,5},{6,7}}", make_mesh((2, 2, 2))) == (("c",), ("c",))
    assert within("{{0,3},{1,2},{4,7},{5,6}}", make_mesh((2, 2, 2))) == (None, ("b", "c"))
    assert within("{{0,8}}") == (None, None)  # device 8 is not on this mesh
    assert within("{{0,1,4,5},{2,3,6,7}}", None) == (None, None)


def lowered_count(lowered, kind):
    return len(re.findall(rf"stablehlo\.{kind.replace('-', '_')}\b", lowered.as_text()))


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_counts_agree_with_the_program_that_jax_lowered(repeats):
    """Sums with different operators are not merged, so that XLA keeps as many as JAX wrote."""

    def f(a):
        for i in range(repeats):
            a = jnp.sin(lax.ppermute(a, "y", ring(4))) + i
            a = jnp.cos(lax.psum(a, "x"))
            a = lax.psum_scatter(lax.all_gather(a, "y", tiled=True), "y", tiled=True) * 0.5
        return a

    jitted = manual(f, P("x", "y"), P("x", "y"))
    lowered = jitted.lower(A)
    found = collectives(jitted, A)
    for kind in ("collective-permute", "all-reduce", "all-gather", "reduce-scatter"):
        assert found[kind] == lowered_count(lowered, kind) == repeats


def put(shape, spec, mesh=MESH):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (P("x", None), P(None, "y"), {}),
        (P(None, "x"), P("x", None), {"all-reduce": 1}),
        (P("x", None), P(None, None), {}),
    ],
)
def test_matmuls_by_the_automatic_way(left, right, expected):
    found = collectives(jnp.dot, put((8, 16), left), put((16, 8), right))
    assert found == expected
    if expected:
        assert found.moves[0].axes == ("x",) and found.bytes == 8 * 8 * 4  # 2 * (2-1)/2 * 256 bytes


def test_explicit_meshes_and_compiled_programs():
    typed = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    a = put((8, 16), P("x", "y"), typed)
    assert collectives(lambda a: a.sum(0), a) == {"all-reduce": 1}
    compiled = jax.jit(lambda a: a.sum(0)).lower(a).compile()
    assert collectives(compiled) == {"all-reduce": 1} and collectives(compiled).moves[0].axes == (
        "x",
    )


def total(a):
    return lax.psum(a.sum(), "y")


def test_every_form_of_a_program():
    jitted = jax.jit(
        lambda a: jnp.sin(jax.shard_map(total, mesh=MESH, in_specs=P("y"), out_specs=P())(a))
    )
    lowered = jitted.lower(A)
    compiled = lowered.compile()
    for f, args in (
        (jitted, (A,)),
        (lowered, ()),
        (compiled, ()),
        (compiled.as_text(), ()),
        (jitted.trace(A), ()),
    ):
        found = collectives(f, *args)
        assert found == {"all-reduce": 1} and found.bytes == 6
        if not isinstance(f, str):
            assert found.moves[0].axes == ("y",)
    assert collectives(compiled.as_text(), mesh=MESH).moves[0].axes == ("y",)
    for f in (lowered, compiled, compiled.as_text()):
        with pytest.raises(TypeError, match="takes no others; pass it alone"):
            collectives(f, A)
    with pytest.raises(
        TypeError, match=r"not ArrayImpl; wrap what you compute: collectives\(lambda"
    ):
        collectives(jnp.ones(3))
    with pytest.raises(UnreadableProgram, match=r"StableHLO.*pass what compiled\.as_text"):
        collectives(lowered.as_text())
    with pytest.raises(TypeError, match="a text cannot be compiled"):
        compile_for(compiled.as_text())


class Stage:
    """As Equinox and Flax wrap JAX's stages: the real one is an attribute, and not every method is
    passed on.
    """

    def __init__(self, **kept):
        self.__dict__.update(kept)


def test_what_other_libraries_jit():
    class Wrapped:
        def lower(self, *args):
            return Stage(lowered=jax.jit(lambda a: a.sum(0)).lower(*args))

    a = put((8, 16), P("x"))
    lowered = Wrapped().lower(a)
    for f, args in (
        (Wrapped(), (a,)),
        (lowered, ()),
        (Stage(compiled=lowered.lowered.compile()), ()),
    ):
        found = collectives(f, *args)
        assert found == {"all-reduce": 1} and found.moves[0].axes == ("x",)

    @nnx.jit
    def forward(model, a):
        return model(a).sum(0)

    class Model(nnx.Linear):
        @nnx.jit
        def method(self, a):
            return self(a).sum(0)

    model = Model(16, 4, rngs=nnx.Rngs(0))
    for f, args in ((forward, (model, a)), (partial(forward, model), (a,)), (model.method, (a,))):
        found = collectives(f, *args)
        assert found == {"all-reduce": 1} and found.moves[0].axes == ("x",)


def test_a_mesh_inside_the_program_names_the_axes():
    other = make_mesh((4, 2), ("rows", "columns"))

    def inner(a):
        summed = jax.shard_map(
            lambda a: lax.psum(a, "rows"), mesh=other, in_specs=P("rows"), out_specs=P()
        )
        return summed(a)

    whole = jax.ShapeDtypeStruct(
        (8, 16), jnp.float32, sharding=NamedSharding(make_mesh((8,), "d"), P("d"))
    )
    for a in (A, jnp.ones((8, 16)), whole):
        found = collectives(inner, a)
        assert [move.axes for move in found.moves if move.kind == "all-reduce"] == [("rows",)], (
            found
        )

    # Results on the mesh of the argument: only the program itself tells the other mesh.
    def outer(a):
        return a + inner(a).sum()

    found = collectives(jax.jit(outer, out_shardings=whole.sharding), whole)
    assert ("rows",) in [move.axes for move in found.moves], found


def test_a_text_that_names_its_mesh():
    body = (
        "  %p = f32[4] parameter(0)\n  ROOT %r = f32[4] all-reduce(%p), replica_groups={}, "
        "to_apply=%add"
    )
    names = {
        "mesh['d'=8] {'d'}": ("d",),
        "mesh['axis_0'=8] {'axis_0'}": None,
        "{{0,1,2,3,4,5,6,7}}": None,
    }
    for groups, axes in names.items():
        text = program(body.replace("replica_groups={}", f"replica_groups={groups}"))
        assert read_program(text).moves[0].axes == collectives(text).moves[0].axes == axes
        assert read_program(text, MESH).moves[0].axes == ("x", "y")
    quoted = body + ", metadata={op_name=\"replica_groups=mesh['d'=8] {'d'}\"}"
    assert read_program(program(quoted)).moves[0].axes is None


def program(body, computations="", partitions=8):
    return (
        f"HloModule m, num_partitions={partitions}\n\n{computations}ENTRY %main (p: f32[4]) -> "
        f"f32[4] {{\n{body}\n}}\n"
    )


def test_asynchronous_pairs_count_once_and_merged_operands_add_up():
    text = program("""\
  %p = f32[4,4]{1,0:T(8,128)} parameter(0)
  %q = bf16[8]{0} parameter(1)
  %ag = (f32[4,4]{1,0}, f32[16,4]{1,0}) all-gather-start(f32[4,4]{1,0:T(8,128)} %p), channel_id=1, \
replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true
  %agd = f32[16,4]{1,0} all-gather-done((f32[4,4]{1,0}, f32[16,4]{1,0}) %ag)
  %ar = (f32[4,4]{1,0}, bf16[8]{0}) all-reduce-start(%p, /*index=1*/%q), replica_groups=[4,2]<=[2,4]T(1,0)
  %ard = (f32[4,4]{1,0}, bf16[8]{0}) all-reduce-done(%ar)
  %cp = (f32[4,4]{1,0}, f32[4,4]{1,0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}
  ROOT %cpd = f32[4,4]{1,0} collective-permute-done(%cp)""")  # noqa: E501
    found = read_program(text, MESH)
    assert found == {"all-gather": 1, "all-reduce": 1, "collective-permute": 1}
    assert all(move.asynchronous for move in found.moves)
    gather, reduce, permute = found.moves
    assert (gather.operands, gather.results, gather.axes, gather.bytes) == (
        ("f32[4,4]",),
        ("f32[16,4]",),
        ("y",),
        192,
    )
    assert (
        reduce.operands == ("f32[4,4]", "bf16[8]")
        and reduce.axes == ("x",)
        and reduce.bytes == 64 + 16
    )
    assert permute.results == ("f32[4,4]",) and permute.bytes == 64


def test_collectives_in_called_computations_and_in_async_wrappers():
    text = program(
        """\
  %p = f32[16]{0} parameter(0)
  %s = ((f32[16]{0}), f32[2]{0}, u32[]) async-start(%p), calls=%wrapped
  %d = f32[2]{0} async-done(%s)
  ROOT %c = f32[16]{0} call(%p), to_apply=%called""",
        """\
%wrapped (a: f32[16]) -> f32[2] {
  %a = f32[16]{0} parameter(0)
  ROOT %rs = f32[2]{0} reduce-scatter(%a), replica_groups={}, dimensions={0}, to_apply=%add
}

%called (b: f32[16]) -> f32[16] {
  %b = f32[16]{0} parameter(0)
  ROOT %ar = f32[16]{0} all-reduce(%b), replica_groups={{0,1,2},{3,4,5,6,7}}, to_apply=%add
}

""",
    )
    found = read_program(text, MESH)
    assert found == {"reduce-scatter": 1, "all-reduce": 1}
    scatter, ragged = found.moves
    assert scatter.asynchronous and scatter.axes == ("x", "y") and scatter.bytes == 7 * 64 // 8
    assert not ragged.asynchronous and ragged.axes is None
    assert ragged.bytes == math.ceil(2 * 4 / 5 * 64)  # the larger group's devices send most
    assert "groups [[0, 1, 2], [3, 4, 5, 6, 7]]" in repr(found)


@pytest.mark.parametrize(
    ("groups", "axes", "one"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", ("y",), (0, 1, 2, 3)),
        ("{{0,4},{1,5},{2,6},{3,7}}", ("x",), (0, 4)),
        ("[2,4]<=[8]", ("y",), (4, 5, 6, 7)),
        ("[4,2]<=[2,4]T(1,0)", ("x",), (1, 5)),
        ("mesh['x'=2,'y'=4] {'x'}", ("x",), (3, 7)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ("y",), (0, 1, 2, 3)),
        ("mesh['a'=1,'b'=2,'c'=4] {'b','c'}", ("x", "y"), tuple(range(8))),
        ("mesh['x'=2,'y'=4] {'y':(2)2}", None, (0, 1)),
        ("mesh['x'=2,'y'=4] {'y':(1)2}", None, (0, 2)),
        ("mesh['x'=2,'y'=4] {'x','y':(1)2}", None, (0, 2, 4, 6)),
        ("mesh['a'=8] {'a':(2)4}", ("y",), (4, 5, 6, 7)),
        (
            "mesh['axis_0'=1,'axis_1'=4,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_1'}",
            ("y",),
            (0, 1, 2, 3),
        ),
        ("mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}", ("x",), (0, 4)),
        ("mesh['a'=2,'b'=4], device_ids=(0,1,4,5,2,3,6,7) {'b'}", None, (0, 1, 4, 5)),
        ("mesh['a'=2,'b'=4], device_ids=(0,4,1,5,2,6,3,7) {'a'}", None, (0, 2)),
        ("mesh['a'=4,'b'=2], device_ids=(0,4,1,5,2,6,3,7) {'b'}", ("x",), (0, 4)),
        ("{}", ("x", "y"), tuple(range(8))),
    ],
)
def test_every_spelling_of_groups(groups, axes, one):
    body = (
        f"  %p = f32[4] parameter(0)\n  ROOT %r = f32[4] all-reduce(%p), replica_groups={groups}, "
        "to_apply=%add"
    )
    (move,) = read_program(program(body), MESH).moves
    assert (
        move.axes == axes and one in move.groups and sorted(sum(move.groups, ())) == list(range(8))
    )


@pytest.mark.parametrize(
    "line",
    [
        "%r = f32[4] all-reduce(%p), replica_groups=mesh['x'=8] {'x':half}, to_apply=%add",
        "%r = f32[4] all-reduce(%p), replica_groups=something-new, to_apply=%add",
        "%r = f32[4] all-reduce(%unknown), replica_groups={}, to_apply=%add",
        "%r = f32[4] collective-permute(%p), channel_id=1",
        "%r = f32[4] all-reduce(%p, replica_groups={}",
    ],
)
def test_what_cannot_be_read_is_shown(line):
    with pytest.raises(UnreadableProgram) as error:
        read_program(program(f"  %p = f32[4] parameter(0)\n  ROOT {line}"))
    assert line.split("(")[1][:20] in str(error.value)
    with pytest.raises(UnreadableProgram, match="no ENTRY"):
        read_program("module @jit_f { }")


def test_types_have_their_sizes():
    types = ["f64[3]", "bf16[5]", "pred[8]", "s4[4]", "f8e4m3fn[2]"]
    body = "\n".join(f"  %p{i} = {kind} parameter({i})" for i, kind in enumerate(types))
    body += (
        f"\n  ROOT %r = ({', '.join(types)}) all-gather(%p0, %p1, %p2, %p3, %p4), "
        "replica_groups=[1,2]<=[2]"
    )
    (move,) = read_program(program(body, partitions=2)).moves
    assert move.bytes == 24 + 10 + 8 + 2 + 2


def test_the_table_shows_everything():
    found = collectives(manual(lambda a: lax.psum(a, "x"), P("x", "y"), P(None, "y")), A)
    shown = repr(found)
    for word in ("all-reduce", "along x", "f32[4,4] → f32[4,4]", "64"):
        assert word in shown and word in found._repr_html_()


def agree(found, known):
    """Whether what was found in a program is what is known of it."""
    if known.kinds is not None:
        assert found == known.kinds
    if known.least is None:
        bound = "unknown" if found.bytes_at_most is None else f"at most {found.bytes_at_most:,}"
        assert found.bytes is None and bound in repr(found)
    else:
        assert known.least <= found.bytes <= known.most
    if known.axes is not None:
        assert {axis for move in found.moves for axis in move.axes} == set(known.axes)
    assert {move.times for move in found.moves} <= set(known.times)


RECORDED = recordings()


@pytest.mark.parametrize("file", sorted({file for file, _ in RECORDED}))
def test_recordings_are_complete(file):
    place = file.partition("-jax-")[0]
    assert [name for there, name in RECORDED if there == file] == [
        name for name, program in PROGRAMS.items() if program.belongs(place)
    ]


def test_recordings_cover_every_place_and_the_oldest_jax():
    files = {file for file, _ in RECORDED}
    assert {file.partition("-jax-")[0] for file in files} == set(PLACES)
    assert {"v5e-2x4-jax-0.7.1", "v5p-2x2x2-jax-0.7.1", "v6e-4x4-jax-0.7.1"} <= files


@pytest.mark.parametrize(("file", "name"), RECORDED)
def test_programs_for_tpus(file, name):
    text, known, sizes = (
        RECORDED[file, name],
        PROGRAMS[name].known,
        PLACES[file.partition("-jax-")[0]][2],
    )
    mesh = make_mesh(sizes.values(), tuple(sizes))
    if known is None:
        with pytest.raises(UnreadableProgram, match="megascale"):
            read_program(text, mesh)
        return
    found = read_program(text, mesh)
    agree(found, known(sizes))
    # Every start is counted, and nothing else is in the background: no step, no end of what was
    # started.
    starts = len(
        re.findall(r'"AsyncCollectiveStart"|(?:all|collective)-[a-z-]*-start\(| call-start\(', text)
    )
    assert sum(move.asynchronous for move in found.moves) == starts
    assert text.count('"AsyncCollectiveStart"') == text.count('"AsyncCollectiveDone"')
    for move in found.moves:
        members = sorted(sum(move.groups, ()))
        assert set(members) <= set(range(mesh.size))
        assert move.kind == "collective-permute" or members == list(range(mesh.size))


def test_the_recordings_hold_what_is_hard_to_read():
    texts = "".join(RECORDED.values())
    for form in (
        '"AsyncCollectiveStart"', "%async_collective_fusion", "calls=%all-reduce-scatter", " call-start(",  # noqa: E501
        " all-to-all-start(", " ragged-all-to-all(", " while(", "/*index=5*/", "is_host_transfer=true",  # noqa: E501
    ):  # fmt: skip
        assert form in texts
    assert "known_trip_count" not in texts  # for TPUs the number of turns is to be found


# CPUs do not exchange ragged arrays, and they send bfloat16 as float32.
NOT_ON_CPUS = (
    "ragged exchange",
    "gather weights of layers",
    "train layers",
    "two matmuls of a model cut along y",
    "sum across slices",
)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in NOT_ON_CPUS])
def test_the_same_programs_on_emulated_devices(name):
    f, *args = PROGRAMS[name].build(MESH)
    agree(collectives(f, *args, mesh=MESH), PROGRAMS[name].known(dict(MESH.shape)))


def turns(direction, first, limit, step):
    """How often a loop runs that adds step to first, as long as that compares so with limit."""
    holds = {
        "LT": lambda i: i < limit, "LE": lambda i: i <= limit, "GT": lambda i: i > limit,
        "GE": lambda i: i >= limit, "NE": lambda i: i != limit,
    }[direction]  # fmt: skip
    for count in range(100):
        if not holds(first + count * step):
            return count
    return None  # never ends


def loop(compare, step, first):
    return program(
        f"""\
  %first = s32[] constant({first})
  %copied = s32[]{{:T(128)}} copy(%first)
  %limit = s32[] constant(5)
  %p = f32[4] parameter(0)
  %start = (s32[], f32[4], s32[]) tuple(%copied, %p, %limit)
  %w = (s32[], f32[4], s32[]) while(%start), condition=%condition, body=%body
  ROOT %r = f32[4] get-tuple-element(%w), index=1""",
        f"""\
%body (carried: (s32[], f32[4], s32[])) -> (s32[], f32[4], s32[]) {{
  %carried = (s32[], f32[4], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%carried), index=0
  %step = s32[] constant({abs(step)})
  %next = s32[] {"add(%step, %i)" if step >= 0 else "subtract(%i, %step)"}
  %a = f32[4] get-tuple-element(%carried), index=1
  %sum = f32[4] all-reduce(%a), replica_groups={{}}, to_apply=%add
  %l = s32[] get-tuple-element(%carried), index=2
  ROOT %t = (s32[], f32[4], s32[]) tuple(%next, %sum, %l)
}}

%condition (carried.1: (s32[], f32[4], s32[])) -> pred[] {{
  %carried.1 = (s32[], f32[4], s32[]) parameter(0)
  %i.1 = s32[] get-tuple-element(%carried.1), index=0
  %l.1 = s32[] get-tuple-element(%carried.1), index=2
  %five = s32[] constant(5)
  ROOT %c = pred[] {compare}
}}

""",
    )


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["LT", "LE", "GT", "GE", "NE"]),
    st.integers(-20, 20),
    st.integers(-4, 4),
    st.sampled_from(["%five", "%l.1"]),
    st.booleans(),
)
def test_loops_that_count(direction, first, step, limit, mirrored):
    said = (
        {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
        if mirrored
        else direction
    )
    sides = f"{limit}, %i.1" if mirrored else f"%i.1, {limit}"
    found = read_program(loop(f"compare({sides}), direction={said}", step, first))
    assert found == {"all-reduce": turns(direction, first, 5, step)}


def test_loops_that_do_not_merely_count_are_unknown():
    for compare in (
        "compare(%i.1, %five), direction=EQ",
        "compare(%l.1, %unknown), direction=LT",
        "less(%i.1, %five)",
        "and(%i.1, %five)",
    ):
        text = loop(compare, 1, 0).replace(
            "%five = s32[]", "%unknown = s32[] rng(), a=b\n  %five = s32[]"
        )
        assert read_program(text) == {"all-reduce": None}
    squared = loop("compare(%i.1, %five), direction=LT", 1, 2).replace(
        "add(%step, %i)", "multiply(%i, %i)"
    )
    assert read_program(squared) == {"all-reduce": None}


STARTED = """\
%starting (a: f32[4]) -> (f32[4], f32[16]) {
  %a = f32[4] parameter(0)
  %g = f32[16] all-gather(%a), channel_id=3, replica_groups=[2,4]<=[8], frontend_attributes={chain_id="0"}
  ROOT %s = (f32[4], f32[16]) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%ending (b: f32[4]) -> f32[16] {
  %b = f32[4] parameter(0)
  %h = f32[16] all-gather(%b), channel_id=3, replica_groups=[2,4]<=[8], frontend_attributes={chain_id="0"}
  ROOT %d = f32[16] custom-call(%b, %h), custom_call_target="AsyncCollectiveDone"
}

%adding (c: f32[16]) -> f32[4] {
  %c = f32[16] parameter(0)
  %r = f32[16] all-reduce(%c), channel_id=3, replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %e = f32[4] dynamic-slice(%r), dynamic_slice_sizes={4}
}

"""  # noqa: E501
IN_FUSIONS = """\
  %p = f32[4] parameter(0)
  %s = (f32[4], f32[16]) fusion(%p), kind=kCustom, calls=%starting
  %d = f32[16] fusion(%p), kind=kCustom, calls=%ending
  ROOT %r = f32[4] fusion(%d), kind=kCustom, calls=%adding"""


def test_collectives_in_fusions():
    found = read_program(program(IN_FUSIONS, STARTED), MESH)
    assert found == {"all-gather": 1, "reduce-scatter": 1}
    gather, scatter = found.moves
    assert gather.asynchronous and gather.axes == ("y",) and gather.bytes == 3 * 16
    assert (
        not scatter.asynchronous
        and scatter.operands == ("f32[16]",)
        and scatter.results == ("f32[4]",)
    )
    assert scatter.bytes == 3 * 16


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("AsyncCollectiveStart", "SomethingElse", "%g"),  # an end without a start
        (
            "channel_id=3, replica_groups=[2,4]<=[8], frontend",
            "channel_id=4, replica_groups=[2,4]<=[8], frontend",
            "%h",
        ),
        # a gather in a fusion, for no reason that we know
        (', frontend_attributes={chain_id="0"}', "", "%g"),
        ("ROOT %r = f32[4] fusion", "ROOT %r = f32[5] fusion", "fusion"),  # no part of the sum
        ("calls=%ending", "calls=%elsewhere", "elsewhere"),
        ("dynamic-slice(%r)", "all-mixing(%r)", "all-mixing"),
        ("dynamic-slice(%r)", "send(%r)", "send"),
        ("custom-call(%g), custom", "custom-call(%nothing), custom", "nothing"),
    ],
)
def test_what_we_do_not_know_in_fusions_is_shown(old, new, shown):
    text = program(IN_FUSIONS, STARTED)
    first = text.rindex(old) if "channel" in old else text.index(old)
    with pytest.raises(UnreadableProgram) as error:
        read_program(text[:first] + new + text[first + len(old) :], MESH)
    assert shown in str(error.value)


def test_ends_and_updates_do_not_count_again():
    text = program(
        """\
  %p = f32[16]{0} parameter(0)
  %s = ((f32[16]{0}), f32[2]{0}, u32[]) async-start(%p), calls=%wrapped
  %u = ((f32[16]{0}), f32[2]{0}, u32[]) async-update(%s), calls=%wrapped
  ROOT %d = f32[2]{0} async-done(%u), calls=%wrapped""",
        """\
%wrapped (a: f32[16]) -> f32[2] {
  %a = f32[16]{0} parameter(0)
  ROOT %rs = f32[2]{0} reduce-scatter(%a), replica_groups={}, dimensions={0}, to_apply=%add
}

""",
    )
    assert read_program(text) == {"reduce-scatter": 1}


KERNEL = """\
  %p = f32[4] parameter(0)
  ROOT %k = f32[4] custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"mesh_axes":"x"
}}, backend_config={"custom_call_config":{"has_communication":true}}"""  # noqa: E501


def test_kernels_that_send_are_refused():
    with pytest.raises(UnreadableProgram, match="inside a kernel"):
        read_program(program(KERNEL))
    assert read_program(program(KERNEL.replace("true", "false"))) == {}
