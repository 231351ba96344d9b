"""shardlab.pods.pod: what a compiler says of a program, on chips that are not there; and where
there is no compiler.

Expected FLOPs and bytes come from arithmetic on shapes. Tests that compile need libtpu, and fail
without it where the set-up installs it.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from compilers import needs_libtpu
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P
from meshes import MESH
from places import ROOT
from repository import BOOK

from shardlab import MatmulFlops, NoCompiler, Pod, PodProgram, Program
from shardlab.pods import pod as pods
from shardlab.programs import collectives

pytestmark = pytest.mark.reads(
    "src/shardlab", "src/bookbinder", "scripts/record_pods.py", "requirements.txt"
)


needs_cuda = pytest.mark.skipif(
    pods._gpu_compiler() is None, reason="JAX's CUDA plug-in is not installed"
)
POD = Pod("v5e:2x4")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SHARDLAB_PODS", raising=False)
    return tmp_path / "cache" / "shardlab" / "pods"


def test_sent_counts_the_collectives_along_exactly_the_axes_that_are_asked():
    def traffic(axes, bytes, kind="all-reduce", asynchronous=False):
        return pods.Traffic(kind, axes, 2, ("f32[8]",), 3, bytes, asynchronous, None)

    rows = (
        traffic(("data",), 1),
        traffic(("data", "model"), 10),
        traffic(("model",), 100, "all-gather", True),
    )
    program = PodProgram(
        "f", "v5e:2x4", 8, {"data": 2, "model": 4}, True, traffic=(*rows, traffic(None, 1000))
    )
    assert (program.sent("data"), program.sent("data", "model"), program.sent("model")) == (
        3,
        30,
        300,
    )
    assert (program.sent(), program.sent("model", "data"), program.sent(kind="all-reduce")) == (
        3333,
        0,
        3033,
    )
    assert (program.sent(asynchronous=True), program.sent(asynchronous=False)) == (300, 3033)
    assert (program.times("all-reduce"), program.times("all-reduce", "data")) == (9, 3)


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(pods, "_tpu_compiler", lambda: None)
    monkeypatch.setattr(pods, "_gpu_compiler", lambda: None)


def arg(mesh, shape, *spec, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def grid(pod=POD):
    return pod.mesh((2, 4), ("x", "y"))


# --- Counting, on programs for this machine's emulated devices ------------------------------------


def flops(f, *args, mesh=MESH):
    compiled = jax.jit(f).lower(*args).compile()
    return pods.flops_and_traffic(compiled.as_text(), mesh)[0], compiled.cost_analysis()


@pytest.mark.parametrize("m, k, n", [(8, 16, 32), (64, 64, 64), (3, 5, 7)])
def test_matrix_products_are_counted(m, k, n):
    a, b = jax.ShapeDtypeStruct((m, k), jnp.float32), jax.ShapeDtypeStruct((k, n), jnp.float32)
    assert flops(jnp.dot, a, b)[0] == 2 * m * k * n


def test_a_loops_body_counts_as_often_as_it_runs_but_not_in_cost_analysis():
    a = jax.ShapeDtypeStruct((64, 64), jnp.float32)

    def f(a):
        return lax.scan(lambda c, _: (jnp.tanh(c @ a), None), a, None, length=10)[0]

    counted, costs = flops(f, a)
    assert counted == 10 * 2 * 64**3
    assert costs["flops"] < 1.5 * 2 * 64**3  # the body once


def test_an_unknown_number_of_runs_is_unknown():
    a = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    assert flops(lambda a: lax.while_loop(lambda c: c.sum() < 9, lambda c: c @ c, a), a)[0] is None


def convolution(left, right, result, window, labels):
    line = (
        f"  ROOT %c = f32[{result}]{{1,0}} convolution(f32[{left}]{{1,0}} %a, "
        f"f32[{right}]{{1,0}} %b), window={{{window}}}, dim_labels={labels}"
    )
    return MatmulFlops().of(Program(f"ENTRY %main (a: f32[1]) -> f32[1] {{\n{line}\n}}").entry)


def test_matrix_products_written_as_convolutions():
    """As the compiler for TPUs writes them: a batch, or heads, are places that a window meets
    once.
    """
    assert (
        convolution("2,64,512", "1,512,128", "2,64,128", "size=1", "b0f_0io->b0f")
        == 2 * 2 * 64 * 128 * 512
    )
    batch = convolution(
        "2,64,4,128", "2,96,128,1", "2,64,4,96", "size=2x1 lhs_dilate=2x1", "0b1f_0oi1->0b1f"
    )
    assert batch == 2 * (2 * 64 * 4) * 96 * 128
    window = "size=1x4 pad=0_0x3_3 rhs_reversal=0x1"
    heads = convolution("2,64,512,1", "512,4,128,1", "2,64,4,128", window, "0bf1_i1o0->0b1f")
    assert heads == 2 * (2 * 64 * 4) * 128 * 512
    # An image of 8 x 8, a kernel of 3 x 3, no padding: 6 x 6 places, 9 numbers each.
    assert (
        convolution("5,8,8,3", "3,3,3,7", "5,6,6,7", "size=3x3", "b01f_01io->b01f")
        == 2 * 5 * 36 * 9 * 3 * 7
    )
    # With padding the border has fewer: along a line of 8 they are 2 + 6 * 3 + 2.
    padded = convolution("5,8,3", "3,3,7", "5,8,7", "size=3 pad=1_1", "b0f_0io->b0f")
    assert padded == 2 * 5 * 22 * 3 * 7


def test_rows_say_the_same_as_comms():
    def f(a):
        return lax.scan(lambda c, _: (lax.psum(c, "y") * 0.1, None), a, None, length=5)[
            0
        ] + lax.psum(a, "x")

    a = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    program = jax.jit(
        jax.shard_map(f, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    )
    text = program.lower(a).compile().as_text()
    _, rows = pods.flops_and_traffic(text, MESH)
    assert sum(row.times * row.bytes for row in rows) == collectives.read_program(text, MESH).bytes
    assert {(row.kind, row.axes, row.times) for row in rows} == {
        ("all-reduce", ("y",), 5),
        ("all-reduce", ("x",), 1),
    }


ASYNC = """
HloModule m, is_scheduled=true, num_partitions=8

ENTRY %main (a: f32[64,64]) -> f32[64,64] {
  %a = f32[64,64]{1,0} parameter(0)
  %early = f32[64,64]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %s = (f32[64,64]{1,0}, f32[64,64]{1,0}) collective-permute-start(%a), source_target_pairs={{0,1},{1,0}}
  %between = f32[64,64]{1,0} dot(%early, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %d = f32[64,64]{1,0} collective-permute-done(%s)
  ROOT %late = f32[64,64]{1,0} dot(%d, %between), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""  # noqa: E501


def test_work_between_start_and_end_is_what_hides_a_message():
    total, (row,) = pods.flops_and_traffic(ASYNC, MESH)
    assert total == 3 * 2 * 64**3 and row.asynchronous and row.hidden_flops == 2 * 64**3
    lines = ASYNC.splitlines()
    between = next(i for i, line in enumerate(lines) if "%between = " in line)
    lines[between], lines[between + 1] = lines[between + 1], lines[between]
    assert pods.flops_and_traffic("\n".join(lines), MESH)[1][0].hidden_flops == 0


# --- Chips and meshes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["v9:4x4", "v5e", "v5e:", "4x4", "", "v5e:4x4x4", "v5p:8x8", "v5e:0x4", "h100:64"]
)
def test_chips_that_are_none(name):
    with pytest.raises(ValueError, match=r"known: v5e|needs"):
        Pod(name)


@pytest.mark.parametrize(
    ("name", "near"),
    {
        "v5e:3x3": "2x2, 2x4, 4x2, 4x4",
        "v6e:1x7": "1x6, 1x8",
        "v5p:5x2x3": "4x2x3, 6x2x3",
        "v5e:15x16": "14x16, 16x16",
        "tpu7x:3x1x1": "2x1x1, 4x1x1",
    }.items(),
)
def test_slices_that_do_not_exist_are_refused_at_once(name, near):
    with pytest.raises(ValueError, match=f"there is no {name}: .*; the nearest are {near}$"):
        Pod(name)
    assert all(Pod(f"{name.split(':')[0]}:{shape}").size for shape in near.split(", "))
    assert Pod("h100:3x5").size == 15
    with pytest.raises(
        ValueError,
        match=r"no v5p:28x28x28, which has 21,952 chips: the largest slice is 16x20x28, of",
    ):
        Pod("v5p:28x28x28")


@needs_libtpu
@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e", "tpu7x"])
def test_our_rule_of_slices_is_that_of_libtpu(chip):
    for shape in product((1, 2, 3, 4, 5), repeat=2):
        name = f"{chip}:{'x'.join(map(str, shape))}{'x3' if chip in ('v5p', 'tpu7x') else ''}"
        try:
            described = bool(pods._devices_of(name, POD.compiler))
        except ValueError:
            described = False
        try:
            ours = bool(Pod(name))
        except ValueError:
            ours = False
        assert ours == described, name


def test_sizes():
    assert [
        Pod(n).size for n in ("v5e:4x4", "v6e:16x16", "v5p:16x16x16", "tpu7x:4x4x4", "h100:8x8")
    ] == [
        16,
        256,
        4096,
        128,
        64,
    ]


def test_meshes_that_do_not_fit_say_which_do(no_compiler):
    pod = Pod("v5e:4x4")
    with pytest.raises(
        ValueError, match=r"does not fit the torus 4x4.*\(16, 1\), \(4, 4\), \(1, 16\).*split=True"
    ):
        pod.mesh((8, 2), ("x", "y"))
    with pytest.raises(ValueError, match=r"needs 32 devices.*has 16"):
        pod.mesh((8, 4), ("x", "y"))
    with pytest.raises(ValueError, match=r"needs 1 names"):
        pod.mesh((16,), ("x", "y"))
    assert pod.mesh((8, 2), ("x", "y"), split=True).shape == {"x": 8, "y": 2}
    with pytest.raises(ValueError, match="two axes of the mesh are called 'x'"):
        pod.mesh((4, 4), ("x", "x"))


def test_the_types_of_axes_can_be_chosen(no_compiler):
    auto, explicit, mixed = AxisType.Auto, AxisType.Explicit, (AxisType.Explicit, AxisType.Auto)
    for given, types in {None: (auto, auto), explicit: (explicit, explicit), mixed: mixed}.items():
        assert Pod("v5e:2x4").mesh((2, 4), ("x", "y"), axis_types=given).axis_types == types
    for wrong in ((explicit,), "Explicit", (explicit, "Auto")):
        with pytest.raises(ValueError, match=r"axis_types needs one jax\.sharding\.AxisType"):
            Pod("v5e:2x4").mesh((2, 4), ("x", "y"), axis_types=wrong)


@needs_libtpu
def test_a_program_with_explicit_axes():
    mesh = POD.mesh((2, 4), ("x", "y"), axis_types=AxisType.Explicit)
    a, b = arg(mesh, (64, 128), "x", None), arg(mesh, (128, 64), None, "y")
    types = []
    program = POD.compile(lambda a, b: types.append(jax.typeof(a @ b)) or a @ b, a, b)
    assert program.sent() == 0 and types[0].sharding.spec == P("x", "y")


@needs_libtpu
@pytest.mark.parametrize("name", ["v5e:4x4", "v5e:2x4", "v5p:2x2x4", "tpu7x:2x2x2"])
def test_our_rule_of_the_torus_is_that_of_jax(name):
    from jax.experimental.mesh_utils import create_device_mesh

    pod = Pod(name)
    sizes = [n for n in range(1, pod.size + 1) if pod.size % n == 0]
    for shape in product(sizes, repeat=2):
        if shape[0] * shape[1] == pod.size:
            try:
                create_device_mesh(shape, list(pod._devices))
                fits = True
            except (NotImplementedError, ValueError):
                fits = False
            assert pods._fits_torus(shape, pod._torus) == fits, shape


@needs_libtpu
def test_the_number_of_devices_is_that_of_libtpu():
    for name in ("v5e:4x4", "v6e:4x8", "v5p:4x4x4", "tpu7x:2x2x4"):
        assert len(Pod(name)._devices) == Pod(name).size


# --- Compiling ------------------------------------------------------------------------------------


@needs_libtpu
def test_a_product_on_eight_chips_that_are_not_there():
    mesh = grid()
    a, b = arg(mesh, (1024, 2048), "x", "y"), arg(mesh, (2048, 512), "y", None)
    program = POD.compile(jnp.dot, a, b, out_shardings=NamedSharding(mesh, P("x", None)))
    assert program.fits and program.source == "compiled" and program.message == ""
    assert program.devices == 8 and program.mesh == {"x": 2, "y": 4}
    assert program.flops == 2 * 1024 * 2048 * 512 / 8
    assert program.argument_bytes == 2 * (1024 * 2048 / 8 + 2048 * 512 / 4)
    assert program.output_bytes == 2 * 1024 * 512 / 2
    assert program.times("all-reduce", "y") == 1 == program.times("all-reduce")
    assert program.sent() == program.sent("y") == program.sent("y", kind="all-reduce")
    # added up as bf16 or as f32
    assert program.sent() in (2 * 3 / 4 * 512 * 512 * size for size in (2, 4))
    assert program.sent("x") == 0
    assert "all-reduce" in repr(program) and "<table" in program._repr_html_()


@needs_libtpu
def test_arguments_may_be_arrays_and_have_names():
    a, b = arg(grid(), (64, 128), "x", None, dtype="float32"), jnp.ones((128, 32))

    def scaled(a, b, scale=1.0, *, bias=0.0):
        return (a @ b) * scale + bias

    wanted = POD.compile(scaled, a, jax.ShapeDtypeStruct(b.shape, b.dtype), cache=False)
    assert wanted.flops == 2 * 64 * 128 * 32 / 2
    for weights in (b, np.ones((128, 32)), np.ones((128, 32), np.float32)):
        for more in (
            {},
            {"scale": 2.0},
            {"bias": np.ones(32)},
            {"bias": jnp.ones((64, 32)), "donate_argnums": 0},
        ):
            program = POD.compile(scaled, a, weights, cache=False, **more)
            assert program.flops == wanted.flops and program.source == "compiled"
    assert POD.compile(scaled, b=b, a=a, cache=False).flops == wanted.flops
    assert (
        POD.compile(lambda a, how: a if how == "same" else -a, a, "same", static_argnums=1).sent()
        == 0
    )
    with pytest.raises(ValueError, match=r"placed on 8 devices of another mesh; pod\.like"):
        POD.compile(scaled, a, jax.device_put(b, NamedSharding(MESH, P("x"))))
    with pytest.raises(TypeError, match="scael"):
        POD.compile(scaled, a, b, scael=2)


@needs_libtpu
def test_the_text_of_a_program_is_there_where_it_was_compiled(own_cache):
    a = arg(grid(), (64, 128), "x", "y")
    first, again, fresh = (POD.compile(jnp.sum, a, fresh=fresh) for fresh in (False, False, True))
    assert (
        Program(first.text).entry
        and collectives.read_program(first.text, grid())["all-reduce"] == 1
    )
    assert again.text is None and first.text not in repr(first)
    assert "all-reduce" not in "".join(file.read_text() for file in own_cache.iterdir()).replace(
        '"all-reduce"', ""
    )
    assert fresh.text == first.text
    assert all(pods._from_json(entry["program"]).text is None for entry in pods._recordings())


@needs_libtpu
def test_small_programs_have_their_bytes_printed():
    program = POD.compile(jnp.sin, arg(grid(), (8, 8), "x", dtype="float32"))
    assert "0.000" not in repr(program) and f"arguments {program.argument_bytes:,} bytes" in repr(
        program
    )


MESHES = [
    ("v5e:2x4", (2, 4)), ("v5e:2x4", (8, 1)), ("v5e:4x4", (4, 4)), ("v5e:4x4", (16, 1)),
    ("v5e:4x4", (8, 2)),
    ("v6e:16x16", (16, 16)), ("v5p:4x4x4", (16, 4)), ("v5p:8x8x8", (64, 8)),
    ("tpu7x:2x2x1", (4, 2)),
]  # fmt: skip


@needs_libtpu
@pytest.mark.parametrize(("name", "shape"), MESHES)
def test_places_without_a_compiler_are_those_of_the_compilers_description(name, shape):
    pod, split = Pod(name), (name, shape) == ("v5e:4x4", (8, 2))
    mesh = pod.mesh(shape, ("x", "y"), split=split)
    places = pod.places(mesh)
    assert places == pod.places(AbstractMesh(shape, ("x", "y")))
    assert places == [tuple(device.coords[: len(pod.shape)]) for device in mesh.devices.flat]
    assert len(set(places)) == len(places) // (2 if name.startswith("tpu7x") else 1)


def test_only_a_torus_has_places():
    with pytest.raises(ValueError, match="h100:1x8 has no torus"):
        Pod("h100:1x8").places(AbstractMesh((8,), ("x",)))
    with pytest.raises(ValueError, match="the mesh has 8 devices, but v5e:4x4 has 16"):
        Pod("v5e:4x4").places(AbstractMesh((8,), ("x",)))


@needs_libtpu
def test_what_is_donated_needs_its_bytes_once():
    a = arg(grid(), (1024, 1024), "x", "y", dtype="float32")
    kept, given = POD.compile(lambda a: a + 1, a), POD.compile(lambda a: a + 1, a, donate_argnums=0)
    piece = 4 * 1024 * 1024 / 8
    assert kept.aliased_bytes == 0 and given.aliased_bytes == piece
    once = given.argument_bytes + given.output_bytes - given.aliased_bytes
    assert (
        given.aliased_bytes == once == piece
        and kept.argument_bytes + kept.output_bytes == 2 * piece
    )
    assert piece <= given.peak_bytes < kept.peak_bytes < 3 * piece


@needs_libtpu
def test_a_loop_on_tpus_counts_as_often_as_it_runs():
    mesh = grid()
    a, w = arg(mesh, (512, 1024), "x", None), arg(mesh, (6, 1024, 1024), None, None, "y")
    program = POD.compile(
        lambda a, w: lax.scan(lambda c, w: (jnp.tanh(c @ w), None), a, w)[0], a, w
    )
    assert program.flops == 6 * 2 * 256 * 1024 * 256
    assert program.flops_once < program.flops / 3
    # each time the pieces of the next layer's input are gathered
    assert program.sent() >= 6 * 3 * 256 * 256 * 2


@needs_libtpu
def test_too_large_is_an_answer_and_not_an_error(own_cache):
    a = arg(grid(), (200_000, 200_000), "x", "y", dtype="float32")  # 20 GB a chip
    program = POD.compile(lambda a: a * 2, a)
    assert (
        program.fits is False
        and "RESOURCE_EXHAUSTED" in program.message
        and "15.75G" in program.message
    )
    assert program.peak_bytes is None and program.flops is None and program.traffic == ()
    assert "fits     no" in repr(program)
    assert POD.compile(lambda a: a * 2, a).source == "cache"


@needs_libtpu
def test_arguments_must_lie_on_the_pod():
    for wrong in (jnp.ones(8), jax.ShapeDtypeStruct((8,), "float32"), arg(MESH, (8, 8), "x")):
        with pytest.raises(ValueError, match=r"no argument is placed on v5e:2x4.*pod\.mesh"):
            POD.compile(jnp.sin, wrong)


@needs_libtpu
def test_emulated_devices_go_on_working():
    POD.compile(jnp.sin, arg(grid(), (8, 8), "x"))
    assert len(jax.devices()) == 64 and jnp.ones(3).sum() == 3
    assert jax.devices()[0].platform == "cpu"


@needs_libtpu
def test_programs_are_compiled_on_the_pod_when_another_mesh_is_the_current_one():
    emulated = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(emulated):
        a = jax.device_put(jnp.ones((8, 8)), P("x", None))
        program = POD.compile(lambda a: jax.lax.with_sharding_constraint(a, P()), *POD.like(a))
    assert program.times("all-gather", "x") == 1 and program.sent() == 8 * 8 * 4 / 2


# --- The cache ------------------------------------------------------------------------------------


@needs_libtpu
def test_what_was_compiled_is_not_compiled_again(own_cache, tmp_path):
    a = arg(grid(), (64, 128), "x", "y")
    first = POD.compile(jnp.sin, a)
    again = Pod("v5e:2x4").compile(
        jnp.sin, arg(grid(Pod("v5e:2x4")), (64, 128), "x", "y"), name="other"
    )
    assert first.source == "compiled" and again.source == "cache"
    same = {"source": "", "name": "", "text": None}
    assert asdict(again) | same == asdict(first) | same and again.name == "other"
    for other in (
        lambda: POD.compile(jnp.cos, a),
        lambda: POD.compile(jnp.sin, arg(grid(), (64, 128), "y", "x")),
        lambda: POD.compile(
            jnp.sin, a, compiler_options={"xla_tpu_enable_async_all_to_all": "true"}
        ),
        lambda: POD.compile(jnp.sin, a, fresh=True),
        lambda: POD.compile(jnp.sin, a, cache=tmp_path / "elsewhere"),
        lambda: POD.compile(jnp.sin, a, cache=False),
    ):
        assert other().source == "compiled"
    assert POD.compile(jnp.sin, a, cache=tmp_path / "elsewhere").source == "cache"
    assert not list(own_cache.glob("*.part"))


@needs_libtpu
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"traffic": 3}', '{"traffic": [], "old": 1}', "\x00" * 9]
)
def test_damaged_files_are_ignored(own_cache, text):
    a = arg(grid(), (64, 128), "x", "y")
    POD.compile(jnp.sin, a)
    (file,) = own_cache.iterdir()
    file.write_text(text)
    assert POD.compile(jnp.sin, a).source == "compiled"
    assert POD.compile(jnp.sin, a).source == "cache"


@needs_libtpu
def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path):
    (tmp_path / "file").write_text("")
    assert POD.compile(
        jnp.sin, arg(grid(), (64, 128), "x", "y"), cache=tmp_path / "file" / "folder"
    ).fits


PROGRAM = """
import sys
from shardlab import emulate
emulate(4)
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from shardlab import Pod
pod = Pod("v5e:2x4")
mesh = pod.mesh((8,), ("x",))
a = jax.ShapeDtypeStruct((256, 256), "float32", sharding=NamedSharding(mesh, P("x")))
program = pod.compile(lambda a: a @ a.T, a, fresh=True)
assert program.fits and len(jax.devices()) == 4 and jnp.ones(4).sum() == 4
print(program.flops, end="")
"""


@needs_libtpu
def test_processes_do_not_disturb_each_other(tmp_path):
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("TPU_", "ALLOW_MULT", "JAX_", "XLA_"))
    }
    environment |= {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}

    def run(_):
        return subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
        )

    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(run, range(2)))
    assert [r.stdout for r in runs] == [str(2 * 256 * 256 * 256 // 8)] * 2, [r.stderr for r in runs]
    assert not list(tmp_path.glob("*tpu*")) and not list(tmp_path.glob("*lock*"))


# --- Without a compiler ---------------------------------------------------------------------------


def test_without_a_compiler_the_error_says_what_to_install(no_compiler, monkeypatch):
    pod = Pod("v5e:2x4")
    assert "no compiler installed" in repr(pod)
    a = arg(pod.mesh((2, 4), ("x", "y")), (64, 128), "x", "y")
    with pytest.raises(
        NoCompiler, match=r"(?s)jax\[tpu\].*'nothing' on v5e:2x4.*not among the recorded"
    ):
        pod.compile(jnp.sin, a, name="nothing")
    gpus = Pod("h100:1x8")
    with pytest.raises(NoCompiler, match=r"jax-cuda13-plugin"):
        gpus.compile(jnp.sin, arg(gpus.mesh((8,), ("x",)), (64,), "x"), name="nothing")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    with pytest.raises(NoCompiler, match="Linux on x86-64; this is linux on arm64"):
        pod.compile(jnp.sin, a, name="nothing")
    assert isinstance(pod.mesh((2, 4), ("x", "y")), AbstractMesh)


@pytest.fixture
def recording(tmp_path, monkeypatch):
    path = tmp_path / "pods.json"
    monkeypatch.setattr(pods, "RECORDINGS", tmp_path)
    pods._recordings.cache_clear()
    yield path
    pods._recordings.cache_clear()


def described(mesh):
    return pods._described(
        (arg(mesh, (64, 128), ("x", "y"), None), {"b": arg(mesh, (8,), dtype="int32")})
    )


def test_a_recording_is_found_by_name_chips_mesh_and_arguments(no_compiler, recording):
    pod = Pod("v5e:2x4")
    mesh = pod.mesh((2, 4), ("x", "y"))
    a = arg(mesh, (64, 128), "x", "y")
    program = PodProgram("sine", "v5e:2x4", 8, {"x": 2, "y": 4}, True, "", 11)
    label = pods._digest(["sine", "v5e:2x4", [["x", 2], ["y", 4]], pods._described((a,)), {}])
    recording.write_text(
        json.dumps({"programs": [{"label": label, "key": "", "program": asdict(program)}]})
    )
    found = pod.compile(jnp.sin, a, name="sine")
    assert found.source == "recording" and found.peak_bytes == 11
    for wrong in (
        lambda: pod.compile(jnp.sin, a, name="cosine"),
        lambda: pod.compile(jnp.sin, a, name="sine", compiler_options={"a": 1}),
        lambda: pod.compile(jnp.sin, arg(mesh, (64, 64), "x", "y"), name="sine"),
        lambda: pod.compile(jnp.sin, arg(mesh, (64, 128), "y", "x"), name="sine"),
        lambda: pod.compile(
            jnp.sin, arg(pod.mesh((4, 2), ("x", "y")), (64, 128), "x", "y"), name="sine"
        ),
    ):
        with pytest.raises(NoCompiler, match="v5e:2x4 there are sine"):
            wrong()


def test_arguments_are_described_alike_on_real_and_abstract_meshes():
    sizes, names = tuple(MESH.shape.values()), tuple(MESH.shape)
    assert described(MESH) == described(AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * 2))


def test_recorded_only(monkeypatch):
    monkeypatch.setenv("SHARDLAB_PODS", "recorded")
    assert isinstance(grid(), AbstractMesh)
    with pytest.raises(NoCompiler, match="SHARDLAB_PODS=recorded is set"):
        POD.compile(jnp.sin, arg(grid(), (8, 8), "x"), name="nothing")


# --- GPUs -----------------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.unit("a compiler for GPUs")
def test_gpus_that_are_not_there():
    pod = Pod("h100:2x8")
    mesh = pod.mesh((2, 8), ("x", "y"))
    hosts = [[device.process_index for device in row] for row in mesh.devices]
    assert hosts == [[0] * 8, [1] * 8]  # the last axis is within a host
    a, b = arg(mesh, (1024, 2048), "x", "y"), arg(mesh, (2048, 512), "y", None)
    program = pod.compile(jnp.dot, a, b, out_shardings=NamedSharding(mesh, P("x", None)))
    assert program.fits is None and program.flops_once is None
    assert program.argument_bytes >= 2 * (1024 * 2048 / 16 + 2048 * 512 / 8)
    assert program.times("all-reduce", "y") == 1
    assert program.flops in (2 * 1024 * 2048 * 512 / 16, None)


def test_arguments_on_a_pod_are_like_those_on_an_emulated_mesh(no_compiler):
    emulated = AbstractMesh((8,), ("d",), axis_types=(AxisType.Auto,))
    a = arg(emulated, (16, 32), "d", None)
    there, tree = Pod("v5e:2x4").like(a, {"b": jax.ShapeDtypeStruct((3,), "int32")})
    assert (there.shape, there.dtype, there.sharding.spec) == ((16, 32), a.dtype, P("d", None))
    assert dict(there.sharding.mesh.shape) == {"d": 8}
    assert tree["b"].sharding.spec == P() and tree["b"].shape == (3,)
    with pytest.raises(ValueError, match="needs 8 devices"):
        Pod("v5e:4x4").like(a)
    with pytest.raises(ValueError, match="must name one mesh"):
        Pod("v5e:2x4").like(jax.ShapeDtypeStruct((3,), "int32"))


def test_gpus_have_no_torus(no_compiler):
    pod = Pod("h100:2x8")
    assert pod.mesh((4, 4), ("x", "y")).shape == {"x": 4, "y": 4}
    with pytest.raises(ValueError, match="needs 8 devices"):
        pod.mesh((4, 2), ("x", "y"))


def test_the_recording_travels_with_the_package():
    assert Path(pods.__file__).parent in pods.RECORDINGS.parents


spec = importlib.util.spec_from_file_location("record_pods", ROOT / "scripts" / "record_pods.py")
record_pods = importlib.util.module_from_spec(spec)
spec.loader.exec_module(record_pods)
RECORDINGS = {
    file.stem: json.loads(file.read_text()) for file in record_pods.RECORDINGS.glob("*.json")
}


ASKS_AND_READS = r"src/shardlab/(pods/pod|programs/\w+|costs/communication/\w+|machines/hardware)\.py|requirements\.txt"  # noqa: E501


def compiling(name):
    """A parameter for tests: a chapter that compiles for pods, as a unit of its own."""
    reads = pytest.mark.reads(
        "src/shardlab", "src/bookbinder", "scripts/record_pods.py", f"book/{name}.md"
    )
    changed = pytest.mark.of_changes(rf"book/{name}\.md|{ASKS_AND_READS}")
    marks = [pytest.mark.unit(f"pods {name}"), pytest.mark.of_chapter(name), reads, changed]
    return pytest.param(name, marks=marks)


@needs_libtpu
@pytest.mark.parametrize(
    "name", [*map(compiling, sorted({*RECORDINGS, *record_pods.compiling(BOOK)}))]
)
def test_a_chapter_compiles_what_is_recorded(name, own_cache):
    """Where neither the chapter nor what asks and reads compilers has changed, the same text has
    the same answer, so then this is left out (of_changes); the weekly run leaves out none.
    """
    command = [sys.executable, oracle.__file__, record_pods.__file__, name, "--check"]
    run = subprocess.run([*command, "--longest", "10"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


# Where it finds what it imports.
ROOMS = ("scripts", "tests/tools/replicas", "tests/tools/runs")
CHECKS = """
import sys
from pathlib import Path

sys.path[:0] = sys.argv[1:]
import record_pods
from bookbinder.read.book import Chapter
from tiny_book import chapter

SET_UP = '''
from shardlab import emulate
emulate(8)
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from shardlab import Pod
tpu = Pod("v5e:2x4")

def compile_for_tpu(function, name):
    spec = NamedSharding(tpu.mesh((8,), ("x",)), P("x"))
    return tpu.compile(function, jax.ShapeDtypeStruct((8,), jnp.float32, sharding=spec), name=name)
'''
Path("book").mkdir()

def said(do, *cells):
    Path("book/one.md").write_text(chapter("One", SET_UP, *cells))
    try:
        do(Chapter(Path.cwd(), "one"), Path("one.json"))
    except SystemExit as stop:
        return str(stop)

it = "compile_for_tpu(jnp.sin, 'it')"
other = "raise AssertionError('nothing that is compiled depends on this, so a check need not run it')"
print(said(record_pods.check, it))
print(said(record_pods.record, it), said(record_pods.check, "done = 1", other, it, other))
print(said(record_pods.check, it.replace("sin", "cos")))
print(said(record_pods.check, "function = jnp.sin", "function = jnp.cos", it.replace("jnp.sin", "function")))
print(said(record_pods.check, it, "done = 1", it.replace("'it'", "'more'")))
print(said(record_pods.check, "done = 1"))
"""  # noqa: E501


@needs_libtpu
def test_a_recording_that_is_out_of_date_is_told(tmp_path):
    command = [sys.executable, "-c", CHECKS, *map(ROOT.joinpath, ROOMS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    old, remedy = "one.json is out of date: ", ": record anew, scripts/record_pods.py one"
    assert done.stdout.splitlines() == [
        f"{old}it on v5e:2x4 is not recorded{remedy}",
        "None None",
        *[f"{old}it on v5e:2x4 differs in the program's text{remedy}"] * 2,
        # although all that is recorded was compiled before
        f"{old}more on v5e:2x4 is not recorded{remedy}",
        f"{old}it: recorded, but no longer compiled",
    ], done.stderr


def test_a_context_that_stays_entered_belongs_to_what_is_compiled_in_it():
    enters = "stack = ExitStack()\nstack.enter_context(config.mode('slow'))"
    lines = (
        f"pod = Pod('v5e:2x4')\n{enters}\nstack.enter_context(other.mode())\npod.compile(config.f)"
    ).splitlines()
    chosen = record_pods.slice_of(ast.parse("\n".join(lines)).body)
    assert sorted(map(ast.unparse, chosen)) == sorted(lines[:3] + lines[4:])


@pytest.mark.parametrize("recorded", RECORDINGS.values(), ids=RECORDINGS)
def test_a_recording_says_where_it_is_from(recorded):
    assert {"date", "machine", "command", "versions"} <= recorded.keys()
    for entry in recorded["programs"]:
        made = entry["program"]["provenance"]
        assert made["date"] and made["machine"] and made["compiler"] in recorded["versions"]
        assert pods._from_json(entry["program"]).seconds > 0


@needs_libtpu
def test_a_kernel_whose_source_moves_by_a_line_is_the_same_program(own_cache):
    kernel = "def kernel(x_ref, y_ref):\n    y_ref[...] = x_ref[...] * {}\n"
    call = "def doubled(x):\n    return pl.pallas_call(kernel, out_shape=x)(x)\n"
    mesh = POD.mesh((8,), ("x",))
    specs = {"mesh": mesh, "in_specs": P("x"), "out_specs": P("x"), "check_vma": False}

    def source(text):
        from jax.experimental import pallas as pl

        names = {"pl": pl}
        exec(compile(text, "cell.py", "exec"), names)
        return POD.compile(
            jax.shard_map(names["doubled"], **specs), arg(mesh, (64, 128), "x", dtype="float32")
        ).source

    texts = kernel.format(2) + call, "\n" + kernel.format(2) + call, kernel.format(3) + call
    assert [*map(source, texts)] == ["compiled", "cache", "compiled"]


@needs_libtpu
def test_a_kernel_that_communicates_is_named_and_the_rest_is_kept(own_cache):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x_ref, y_ref, sent, arrived):
        to = lax.rem(lax.axis_index("x") + 1, 8)
        copy = pltpu.make_async_remote_copy(x_ref, y_ref, sent, arrived, device_id=(to,))
        copy.start()
        copy.wait()

    def shifted(x, estimate=None):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        call = pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((8, 128), "float32"),
            in_specs=[anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
            name="my_shift",
            cost_estimate=estimate,
        )
        here = jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)
        return jax.shard_map(lambda y: lax.psum(y, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(
            here
        )

    mesh = POD.mesh((8,), ("x",))
    x = arg(mesh, (64, 128), "x", dtype="float32")
    program = POD.compile(shifted, x)
    assert (
        program.kernels == {"my_shift": None}
        and program.times("all-reduce") == 1
        and program.sent() is None
    )
    assert (
        program.argument_bytes == 8 * 128 * 4
        and "my_shift communicates; its bytes are not in" in repr(program)
    )
    again = POD.compile(shifted, x)
    assert again.source == "cache" and again.kernels == program.kernels
    declared = pl.CostEstimate(
        flops=0, transcendentals=0, bytes_accessed=0, remote_bytes_transferred=4096
    )
    told = POD.compile(lambda x: shifted(x, declared), x)
    assert told.kernels == {"my_shift": 4096} and "it declares 4,096 bytes" in repr(told)


def test_recorded_steps_sum_gradients_in_float32():
    chapters, found = {"context", "experts", "pipeline", "tensor", "transformer", "zero"}, set()
    for entry in pods._recordings():
        program = pods._from_json(entry["program"])
        for row in program.traffic:
            # along the axis `model` tensor parallelism adds activations
            adds = row.kind in ("all-reduce", "reduce-scatter") and row.axes != ("model",)
            if adds and any(array.startswith("bf16") for array in row.arrays):
                found.add(program.name)
    assert {name for name in found if name.split(":")[0] in chapters} == {
        "experts: fsdp, astype",  # these are shown on purpose
        "transformer: bfloat16, cast, then vary",
        "transformer: bfloat16, vary, then cast",
        "transformer: wide, cast, then vary",
        "transformer: wide, vary, then cast",
        "zero: mixed, cast_first",
        "zero: wide, cast_first",
    }
