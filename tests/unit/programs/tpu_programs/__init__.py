"""Programs for TPUs whose communication is known by construction, and what is known of it.

scripts/record_tpu_programs.py compiles them and keeps the compiler's text in this folder, in one
file for each place and version of JAX; `zless` shows it, with a line on top that says what made it,
and when. test_collectives.py reads it. What is expected comes from arithmetic on shapes and on the
sizes of mesh axes, never from a parser; where the compiler is free to choose, there are bounds.
"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

FOLDER = Path(__file__).parent

PLACES = {
    # name: (topology, slices, sizes of the mesh axes); slices are TPUs that a slower network joins
    "v5e-2x4": ("v5e:2x4", 1, {"x": 2, "y": 4}),
    "v5p-2x2x2": ("v5p:2x2x2", 1, {"x": 2, "z": 2, "y": 2}),
    "v6e-4x4": ("v6e:4x4", 1, {"x": 4, "y": 4}),
    "v5e-2x4-twice": ("v5e:2x4", 2, {"x": 2, "y": 8}),
}


@dataclass(frozen=True)
class Known:
    """What is known of a program's communication on one mesh.

    Attributes:
      kinds: how often each kind of collective runs; None if the compiler is free to choose.
      least, most: bounds of the bytes that a device sends in all, on rings; None if only the run
        decides.
      axes: along which axes devices talk; None if the compiler is free.
      times: how often a collective may run; None among them if only the run decides.
    """

    kinds: dict | None
    least: float | None = 0
    most: float | None = 0
    axes: tuple[str, ...] | None = None
    times: tuple[int | None, ...] = (1,)


@dataclass(frozen=True)
class Program:
    """A program and what is known of it.

    Attributes:
      build: from a mesh to a jitted function and its abstract arguments.
      known: from the sizes of the mesh axes to `Known`; None if we cannot read the program, and
        must say so.
      slices: on how many slices it runs.
      options: the compiler's, by the kind of chip; if there are any, on other chips the program is
        left out.
    """

    build: Callable
    known: Callable | None
    slices: int = 1
    options: dict = field(default_factory=dict)

    def belongs(self, place):
        """Whether it is compiled at this place."""
        return PLACES[place][1] == self.slices and (
            not self.options or place.partition("-")[0] in self.options
        )


def recordings():
    """{(file, name): text} of what was recorded."""
    found = {}
    for path in sorted(FOLDER.glob("*.txt.gz")):
        _, *parts = gzip.decompress(path.read_bytes()).decode().split("\n===== ")
        for part in parts:
            name, _, text = part.partition(" =====\n")
            found[path.name.removesuffix(".txt.gz"), name] = text
    return found


# --- What a device sends on a ring of n, if it holds so many bytes --------------------------------


def summed(n, held):
    return 2 * (n - 1) / n * held


def scattered(n, held):  # or exchanged
    return (n - 1) / n * held


def gathered(n, held):
    return (n - 1) * held


def exactly(kind, sent, *axes, times=1):
    """One collective, known in every respect, that runs several times."""
    return Known({kind: times}, times * sent, times * sent, axes, (times,))


# --- Programs of each device: its collectives are those that are written --------------------------


def put(mesh, shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def manual(f, *inputs, out):
    """A function from a mesh to a program of each device; inputs are (shape, spec) or (shape, spec,
    dtype).
    """

    def build(mesh):
        specs = tuple(P(*spec) for _, spec, *_ in inputs)
        program = jax.shard_map(
            lambda *arrays: f(*arrays, n=mesh.shape["y"]),
            mesh=mesh,
            in_specs=specs,
            out_specs=out,
            check_vma=False,
        )
        arrays = [
            put(mesh, shape, *spec, dtype=dtype[0] if dtype else jnp.float32)
            for shape, spec, *dtype in inputs
        ]
        return jax.jit(program), *arrays

    return build


def shift(a, n):
    return lax.ppermute(a, "y", [(i, (i + 1) % n) for i in range(n)])


def block(sizes):
    """Bytes of a piece of CUT or ROWS."""
    return 64 * 128 * 4 / (sizes["x"] * sizes["y"])


CUT = ((64, 128), ("x", "y"))
ROWS = ((64, 128), (("x", "y"),))
WIDE = (8192, 4096)  # large enough that the compiler lets it be sent while it computes
XY, SAME = P(("x", "y")), P("x", "y")


def printing(a, n):
    jax.debug.print("{}", a.sum())  # this is sent to the host, not to other devices
    return a + 1


def counting_up(a, n):
    return lax.fori_loop(3, 10, lambda i, c: shift(c, n) * i, a)


def by_twos(a, n):
    return lax.while_loop(
        lambda c: c[0] < 11, lambda c: (c[0] + 2, lax.pmax(c[1], "y") / 2), (0, a)
    )[1]


def counting_down(a, n):
    return lax.while_loop(lambda c: c[0] >= 2, lambda c: (c[0] - 3, shift(c[1], n) / 2), (20, a))[1]


def nested(a, n):
    def inner(c):
        return lax.fori_loop(0, 3, lambda j, d: shift(d, n) + j, c)

    return lax.fori_loop(0, 7, lambda i, c: inner(c) * 2, a)


def many_carried(a, n):
    """Seven arrays are carried, so that the compiler numbers them with comments where it names
    their types.
    """
    start = tuple(a + i for i in range(7))
    step = lambda c, _: (tuple(jnp.sin(shift(v, n)) + i for i, v in enumerate(c)), None)  # noqa: E731
    return sum(lax.scan(step, start, None, length=3)[0])


def unrolled(a, numbers, n):
    return lax.scan(lambda c, x: (jnp.sin(lax.psum(c, "y") + x), c.sum()), a, numbers, unroll=2)


def perhaps(a, n):
    return lax.cond(a.sum() > 0, lambda c: lax.psum(c, "x"), lambda c: 2 * c, a)


def until(a, n):
    return lax.while_loop(lambda c: c.sum() < 100, lambda c: lax.pmax(c, "x") + 1, a)


def beside(collective):
    """The collective, while matrices are multiplied that do not need it."""
    return lambda a, b, n: (collective(a), b @ b @ b)


def layers(x, weights, n):
    """Weights are gathered just before they are used."""

    def layer(h, w):
        return jnp.tanh(h @ lax.all_gather(w, "y", tiled=True)), None

    return lax.scan(layer, x, weights)[0]


def layers_trained(weights, x, n):
    grown = jax.grad(lambda w: (layers(x, w, n).astype(jnp.float32) ** 2).mean())(weights)
    return weights - grown


DEEP, SIDE = 6, 1024
WEIGHTS, INPUT = (
    ((DEEP, SIDE, SIDE), (None, "y"), jnp.bfloat16),
    ((1024, SIDE), ("y",), jnp.bfloat16),
)


# --- Programs of all devices: the compiler decides what is sent -----------------------------------


def whole(f, *inputs, out=None):
    """A function from a mesh to a jitted function; inputs are (shape, spec) or (shape, spec,
    dtype).
    """

    def build(mesh):
        arrays = [
            put(mesh, shape, *spec, dtype=dtype[0] if dtype else jnp.float32)
            for shape, spec, *dtype in inputs
        ]
        return jax.jit(f, out_shardings=None if out is None else NamedSharding(mesh, out)), *arrays

    return build


def trained(weights, x, y):
    def loss(weights):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return ((h - y) ** 2).mean()

    return [w - g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


def trained_in_a_scan(weights, x, y):
    def loss(weights):
        h = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0]
        return ((h - y) ** 2).mean()

    return weights - jax.grad(loss)(weights)


PROGRAMS = {
    "nothing sent": Program(
        lambda mesh: (jax.jit(jnp.sin), put(mesh, (64, 128), "x", "y")),
        lambda sizes: Known({}, axes=()),
    ),
    "printing": Program(manual(printing, CUT, out=SAME), lambda sizes: Known({}, axes=())),
    "sum along x": Program(
        manual(lambda a, n: lax.psum(a, "x"), CUT, out=P(None, "y")),
        lambda sizes: exactly("all-reduce", summed(sizes["x"], block(sizes)), "x"),
    ),
    "sum along y": Program(
        manual(lambda a, n: lax.psum(a, "y"), CUT, out=P("x")),
        lambda sizes: exactly("all-reduce", summed(sizes["y"], block(sizes)), "y"),
    ),
    "sum along both": Program(
        manual(lambda a, n: lax.psum(a, ("x", "y")), CUT, out=P()),
        lambda sizes: exactly(
            "all-reduce", summed(sizes["x"] * sizes["y"], block(sizes)), "x", "y"
        ),
    ),
    "maximum, and sum of columns": Program(
        manual(lambda a, n: (lax.pmax(a, "y"), lax.psum(a.sum(0), "y")), CUT, out=(P("x"), P("x"))),
        lambda sizes: Known(
            {"all-reduce": 2},
            *[summed(sizes["y"], block(sizes) + 128 / sizes["y"] * 4)] * 2,
            axes=("y",),
        ),
    ),
    "gather rows": Program(
        manual(lambda a, n: lax.all_gather(a, "y", tiled=True), ROWS, out=P("x")),
        lambda sizes: exactly("all-gather", gathered(sizes["y"], block(sizes)), "y"),
    ),
    "gather columns": Program(
        manual(lambda a, n: lax.all_gather(a, "y", axis=1, tiled=True), CUT, out=P("x")),
        lambda sizes: exactly("all-gather", gathered(sizes["y"], block(sizes)), "y"),
    ),
    # A small sum may be made whole everywhere, of which each device then keeps its part.
    "scatter a small sum": Program(
        manual(lambda a, n: lax.psum_scatter(a, "y", tiled=True), ((64, 128), ("x",)), out=XY),
        lambda sizes: Known(
            None,
            scattered(sizes["y"], block(sizes) * sizes["y"]),
            summed(sizes["y"], block(sizes) * sizes["y"]),
            ("y",),
        ),
    ),
    # Some rows more are sent, because their number is rounded up.
    "scatter a large sum": Program(
        manual(lambda a, n: lax.psum_scatter(a, "y", tiled=True), ((8192, 512), ()), out=P("y")),
        lambda sizes: Known(
            None,
            scattered(sizes["y"], 8192 * 512 * 4),
            scattered(sizes["y"], 8192 * 512 * 4) * 1.05,
            ("y",),
        ),
    ),
    "scatter a sum of columns": Program(
        manual(
            lambda a, n: lax.psum_scatter(a, "y", scatter_dimension=1, tiled=True),
            ((8192, 512), ()),
            out=P(None, "y"),
        ),
        lambda sizes: exactly("reduce-scatter", scattered(sizes["y"], 8192 * 512 * 4), "y"),
    ),
    "exchange": Program(
        manual(lambda a, n: lax.all_to_all(a, "y", 1, 0, tiled=True), ROWS, out=SAME),
        lambda sizes: exactly("all-to-all", scattered(sizes["y"], block(sizes)), "y"),
    ),
    "ragged exchange": Program(
        manual(
            lambda a, b, *numbers, n: lax.ragged_all_to_all(a, b, *numbers, axis_name="y"),
            *[((512, 128), ("y",))] * 2,
            *[((64,), (), jnp.int32)] * 4,
            out=P("y"),
        ),
        lambda sizes: Known({"ragged-all-to-all": 1}, None, None, ("y",)),
    ),
    "permute": Program(
        manual(shift, CUT, out=SAME), lambda sizes: exactly("collective-permute", block(sizes), "y")
    ),
    "counting up": Program(
        manual(counting_up, CUT, out=SAME),
        lambda sizes: exactly("collective-permute", block(sizes), "y", times=7),
    ),
    "counting by twos": Program(
        manual(by_twos, CUT, out=SAME),
        lambda sizes: exactly("all-reduce", summed(sizes["y"], block(sizes)), "y", times=6),
    ),
    "counting down": Program(
        manual(counting_down, CUT, out=SAME),
        lambda sizes: exactly("collective-permute", block(sizes), "y", times=7),
    ),
    "loop in a loop": Program(
        manual(nested, CUT, out=SAME),
        lambda sizes: exactly("collective-permute", block(sizes), "y", times=21),
    ),
    "loop that carries much": Program(
        manual(many_carried, CUT, out=SAME),
        lambda sizes: Known(
            {"collective-permute": 21}, 21 * block(sizes), 21 * block(sizes), ("y",), (3,)
        ),
    ),
    "loop unrolled by two": Program(  # of nine turns one is left over
        manual(unrolled, CUT, ((9,), ()), out=(SAME, P())),
        lambda sizes: Known(
            {"all-reduce": 9}, *[9 * summed(sizes["y"], block(sizes))] * 2, ("y",), (4, 1)
        ),
    ),
    "perhaps": Program(
        manual(perhaps, CUT, out=SAME),
        lambda sizes: Known({"all-reduce": None}, None, None, ("x",), (None,)),
    ),
    "until": Program(
        manual(until, CUT, out=SAME),
        lambda sizes: Known({"all-reduce": None}, None, None, ("x",), (None,)),
    ),
    "gather beside matmuls": Program(
        manual(
            beside(lambda a: lax.all_gather(a, "y", tiled=True)),
            (WIDE, (("x", "y"),)),
            ((4096, 4096), ()),
            out=(P("x"), P()),
        ),
        lambda sizes: exactly(
            "all-gather", gathered(sizes["y"], 8192 * 4096 * 4 / (sizes["x"] * sizes["y"])), "y"
        ),
    ),
    "exchange beside matmuls": Program(
        manual(
            beside(lambda a: lax.all_to_all(a, "y", 1, 0, tiled=True)),
            (WIDE, ("y",)),
            ((4096, 4096), ()),
            out=(P(None, "y"), P()),
        ),
        lambda sizes: exactly(
            "all-to-all", scattered(sizes["y"], 8192 * 4096 * 4 / sizes["y"]), "y"
        ),
        options={"v5e": {"xla_tpu_enable_async_all_to_all": "true"}},
    ),
    "sum beside matmuls": Program(
        manual(
            beside(lambda a: lax.psum(a, "y")),
            (WIDE, ("x", "y")),
            ((4096, 4096), ()),
            out=(P("x"), P()),
        ),
        lambda sizes: exactly(
            "all-reduce", summed(sizes["y"], 8192 * 4096 * 4 / (sizes["x"] * sizes["y"])), "y"
        ),
        options={
            "v5e": {
                "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
                "xla_enable_async_all_reduce": "true",
            },
            "v5p": {"xla_tpu_enable_sparse_core_collective_offload_all_reduce": "true"},
            "v6e": {"xla_tpu_enable_sparse_core_collective_offload_all_reduce": "true"},
        },
    ),
    "gather weights of layers": Program(
        manual(lambda w, x, n: layers(x, w, n), WEIGHTS, INPUT, out=P("y")),
        lambda sizes: exactly(
            "all-gather", gathered(sizes["y"], SIDE * SIDE * 2 / sizes["y"]), "y", times=DEEP
        ),
    ),
    # Forwards, each layer's weights are gathered (and kept); backwards, the sum of their gradients
    # is scattered.
    "train layers": Program(
        manual(layers_trained, WEIGHTS, INPUT, out=P(None, "y")),
        lambda sizes: Known(
            {"all-gather": DEEP, "reduce-scatter": DEEP},
            *[2 * DEEP * scattered(sizes["y"], SIDE * SIDE * 2)] * 2,
            ("y",),
            (DEEP,),
        ),
    ),
    "column sum": Program(
        whole(lambda a: a.sum(0), CUT),
        lambda sizes: exactly("all-reduce", summed(sizes["x"], 128 / sizes["y"] * 4), "x"),
    ),
    "matmul of what is cut alike": Program(
        whole(jnp.dot, ((64, 128), (None, "y")), ((128, 64), ("y",))),
        lambda sizes: exactly("all-reduce", summed(sizes["y"], 64 * 64 * 4), "y"),
    ),
    # Each device must at least receive its part once; at most, all is added up and its parts are
    # moved.
    "matmul of what is cut alike, result cut": Program(
        whole(jnp.dot, ((1024, 1024), (None, "y")), ((1024, 1024), ("y",)), out=P("y")),
        lambda sizes: Known(
            None,
            1024 * 1024 * 4 / sizes["y"],
            1.05 * summed(sizes["y"], 1024 * 1024 * 4) + 1024 * 1024 * 4 / sizes["y"],
        ),
    ),
    "matmul with gathered weights": Program(
        whole(jnp.dot, ((1024, 1024), ("y",)), ((1024, 256), (None, "y")), out=P("y")),
        lambda sizes: Known(
            None, 1024 * 256 * 2 / sizes["y"], gathered(sizes["y"], 1024 * 256 * 4 / sizes["y"])
        ),
    ),
    # Rows and inner columns are gathered, and the sum of results is scattered, in bfloat16; where
    # the compiler makes rings of permutations of these, it may go around once more.
    "two matmuls of a model cut along y": Program(
        whole(
            lambda x, a, b: jax.nn.relu(x @ a) @ b,
            *[
                (shape, spec, jnp.bfloat16)
                for shape, spec in (
                    ((8192, 8192), ("x", "y")),
                    ((8192, 32768), (None, "y")),
                    ((32768, 8192), ("y",)),
                )
            ],
            out=SAME,
        ),
        lambda sizes: Known(
            None,
            2 * scattered(sizes["y"], 8192 * 8192 * 2 / sizes["x"]),
            2 * 8192 * 8192 * 2 / sizes["x"],
        ),
    ),
    "train on data cut": Program(
        whole(trained, ((3, 128, 128), ()), *[((512, 128), (("x", "y"),))] * 2),
        lambda sizes: Known(None, *[summed(sizes["x"] * sizes["y"], 3 * 128 * 128 * 4)] * 2),
    ),
    # Per layer: weights gathered at most twice, their gradient added up whole.
    "train in a scan on weights cut": Program(
        whole(trained_in_a_scan, ((DEEP, 2048, 2048), (None, "y")), *[((512, 2048), ("y",))] * 2),
        lambda sizes: Known(
            None, DEEP * 2048 * 2048 * 2 / sizes["y"], DEEP * 2048 * 2048 * 4 * 5, times=(DEEP, 1)
        ),
    ),
    "sum across slices": Program(
        manual(lambda a, n: lax.psum(a, ("x", "y")), CUT, out=P()), None, slices=2
    ),
}
