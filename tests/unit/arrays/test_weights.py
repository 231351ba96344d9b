"""shardlab.arrays.weights: every order of every array against NumPy, each byte read once, and what
a report must find.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

from shardlab import (
    Fused,
    Stored,
    compare_weights,
    equal_part,
    export_weights,
    heads_part,
    load_weights,
    open_weights,
    target,
)

pytestmark = pytest.mark.reads("src/shardlab")

D, H, F = 8, 2, 12
TURNED, AS_OURS = ((1,), (0,)), ((0,), (1,))
LAYOUTS = [(1, 1), (2, 2), (4, 2), (1, 4)]


def mesh_of(rows, columns):
    devices = jax.devices()[: rows * columns]
    names = ("data", "model")
    return jax.make_mesh((rows, columns), names, devices=devices, axis_types=(AxisType.Auto,) * 2)


class Counted:
    """An array of a file that counts how often each of its elements is read."""

    def __init__(self, array):
        self.array, self.reads = array, np.zeros(array.shape, int)

    def get_shape(self):
        return list(self.array.shape)

    def __getitem__(self, index):
        self.reads[index] += 1
        return self.array[index]


def goal_of(shapes, specs, mesh, dtype="float32"):
    tree = {path: jax.ShapeDtypeStruct(shape, dtype) for path, shape in shapes.items()}
    return target(tree, {path: specs.get(path, P()) for path in tree}, mesh)


def loaded(table, shapes, specs, arrays, mesh):
    """What is loaded from these arrays, each of whose elements was read once."""
    files = {name: Counted(array) for name, array in arrays.items()}
    found = load_weights(table, goal_of(shapes, specs, mesh), files)
    for name, file in files.items():
        assert (file.reads == 1).all(), f"{name} is read {file.reads.min()} to {file.reads.max()}"
    return {path: np.asarray(array) for path, array in found.items()}


def draw(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


# The decisive line of each family's code: queries, keys and values of x by the fused array.


def blocked(fused, heads, groups):
    parts = np.split(fused, [heads * H, (heads + groups) * H])
    return [a.reshape(-1, H, *a.shape[1:]) for a in parts]


def by_group(fused, heads, groups):
    each = heads // groups
    rows = fused.reshape(groups, each + 2, H, *fused.shape[1:])
    return rows[:, :each].reshape(heads, H, *fused.shape[1:]), rows[:, each], rows[:, each + 1]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("turned", [True, False], ids=["[out, in]", "[in, out]"])
@pytest.mark.parametrize(("order", "family"), [("blocked", blocked), ("by group", by_group)])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (8, 4), (8, 1), (1, 1)])
def test_fused_heads_with_biases_in_every_order(layout, turned, order, family, heads, groups):
    kernel, bias = draw((heads + 2 * groups) * H, D), draw((heads + 2 * groups) * H)
    table, shapes, specs, wanted = {}, {}, {}, {}
    parts = zip(("query", "key", "value"), (heads, groups, groups), strict=True)
    for number, (part, own) in enumerate(parts):
        entry = heads_part(part, heads, groups, order, dim=0 if turned else 1)
        dims = ((1, 2), (0,)) if turned else ((0,), (1, 2))
        table[f"{part}/kernel"] = Stored("qkv", dims, entry)
        table[f"{part}/bias"] = Stored("b", ((0, 1),), heads_part(part, heads, groups, order))
        wide = "model" if own % 4 == 0 else None
        shapes |= {f"{part}/kernel": (D, own, H), f"{part}/bias": (own, H)}
        specs |= {f"{part}/kernel": P("data", wide), f"{part}/bias": P(wide)}
        wanted[f"{part}/kernel"] = family(kernel, heads, groups)[number].transpose(2, 0, 1)
        wanted[f"{part}/bias"] = family(bias, heads, groups)[number]
    files = {"qkv": kernel if turned else np.ascontiguousarray(kernel.T), "b": bias}
    found = loaded(table, shapes, specs, files, mesh_of(*layout))
    for path, array in wanted.items():
        np.testing.assert_array_equal(found[path], array, path)
    for name, array in export_weights(table, found).items():
        np.testing.assert_array_equal(array, files[name])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("turned", [True, False], ids=["[out, in]", "[in, out]"])
def test_gate_and_up(layout, turned):
    fused, dim = draw(2 * F, D), 0 if turned else 1
    dims = TURNED if turned else AS_OURS
    names = ("gate", "up")
    table = {n: Stored("w", dims, equal_part(i, F, dim=dim)) for i, n in enumerate(names)}
    files = {"w": fused if turned else fused.T}
    specs = dict.fromkeys(names, P("data", "model"))
    found = loaded(table, dict.fromkeys(names, (D, F)), specs, files, mesh_of(*layout))
    np.testing.assert_array_equal(found["gate"], fused[:F].T)
    np.testing.assert_array_equal(found["up"], fused[F:].T)
    np.testing.assert_array_equal(export_weights(table, found)["w"], files["w"])


def test_gate_and_up_row_by_row():
    table = {
        name: Stored("w", TURNED, Fused(tuple(range(i, 2 * F, 2)), 2 * F))
        for i, name in enumerate(("gate", "up"))
    }
    fused = draw(2 * F, D)
    shapes = {"gate": (D, F), "up": (D, F)}
    found = loaded(table, shapes, {"up": P(None, "model")}, {"w": fused}, mesh_of(1, 4))
    np.testing.assert_array_equal(found["gate"], fused[::2].T)
    np.testing.assert_array_equal(found["up"], fused[1::2].T)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_stacks_of_layers_and_of_experts(layout):
    files = {f"l.{n}.e.{e}.w": draw(F, D) + 10 * n + e for n in range(4) for e in range(2)}
    files |= {f"l.{n}.norm": draw(D) + n for n in range(4)}
    table = {
        "layers/up": Stored("l.{}.e.{}.w", TURNED),
        "layers/norm": Stored("l.{}.norm", ((0,),)),
    }
    shapes = {"layers/up": (4, 2, D, F), "layers/norm": (4, D)}
    specs = {"layers/up": P("data", None, None, "model"), "layers/norm": P(None, "model")}
    found = loaded(table, shapes, specs, files, mesh_of(*layout))
    for n in range(4):
        np.testing.assert_array_equal(found["layers/norm"][n], files[f"l.{n}.norm"])
        for e in range(2):
            np.testing.assert_array_equal(found["layers/up"][n, e], files[f"l.{n}.e.{e}.w"].T)
    back = export_weights(table, found)
    assert all((back[name] == files[name]).all() for name in files) and len(back) == len(files)
    some = export_weights(table, found, names={"l.2.norm"})
    assert {*some} == {"l.2.norm"} and (some["l.2.norm"] == files["l.2.norm"]).all()


def test_a_layer_s_number_a_convolution_a_scalar_and_dimensions_of_one():
    table = {
        "blocks/{}/kernel": Stored("b.{}.w", ((3,), (2,), (0,), (1,))),
        "scale": Stored("scale", ()),
        "taps": Stored("taps", ((1,), (), (0,))),  # depthwise: [channels, 1, taps]
        "head": Stored("head", ((0, 1), (2,))),  # one head, sharded within
    }
    files = {"b.3.w": draw(8, 3, 5, 5), "scale": np.array(2.5, "float32"), "taps": draw(8, 1, 4)}
    files["head"] = draw(8, D)
    shapes = {"blocks/3/kernel": (5, 5, 3, 8), "scale": (), "taps": (4, 8), "head": (1, 8, D)}
    specs = {"blocks/3/kernel": P(None, None, None, "model"), "head": P(None, "model")}
    found = loaded(table, shapes, specs, files, mesh_of(2, 4))
    np.testing.assert_array_equal(found["blocks/3/kernel"], files["b.3.w"].transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(found["taps"], files["taps"][:, 0].T)
    np.testing.assert_array_equal(found["head"], files["head"][None])
    assert found["scale"] == 2.5
    back = export_weights(table, found)
    assert all((back[name] == files[name]).all() for name in files)


def test_bfloat16_in_odd_files_with_and_without_an_index(tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    whole = {f"l.{n}.w": draw(F, D).astype(jnp.bfloat16) + n for n in range(5)}
    whole["scale"] = np.array(0.5, jnp.bfloat16)
    odd = [["l.0.w"], ["l.1.w", "l.3.w", "scale"], ["l.2.w", "l.4.w"]]
    home = {}
    for number, names in enumerate(odd):
        save_file({name: whole[name] for name in names}, tmp_path / f"m-{number}.safetensors")
        home |= dict.fromkeys(names, f"m-{number}.safetensors")
    table = {"layers/w": Stored("l.{}.w", TURNED), "scale": Stored("scale", ())}
    goal = goal_of({"layers/w": (5, D, F), "scale": ()}, {"layers/w": P(None, "data", "model")},
                   mesh_of(2, 2), "float32")  # fmt: skip
    for index in (False, True):
        if index:
            text = json.dumps({"weight_map": home})
            (tmp_path / "model.safetensors.index.json").write_text(text)
        files = open_weights(tmp_path)
        assert compare_weights(table, goal, files).clean
        found = load_weights(table, goal, files)
        assert found["layers/w"].dtype == found["scale"].dtype == "float32"
        for n in range(5):
            wanted = whole[f"l.{n}.w"].T.astype("float32")
            np.testing.assert_array_equal(np.asarray(found["layers/w"])[n], wanted)


def test_folders_that_are_not_whole(tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    with pytest.raises(ValueError, match="has no file"):
        open_weights(tmp_path)
    for name in ("a", "b"):
        save_file({"w": draw(2, 2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match=r"w is in b.safetensors and in a file before it"):
        open_weights(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}))
    with pytest.raises(ValueError, match=r"says that b.safetensors has v"):
        open_weights(tmp_path)
    index.write_text(json.dumps({"weight_map": {"w": "c.safetensors"}}))
    with pytest.raises(ValueError, match=r"names c.safetensors, which is not in"):
        open_weights(tmp_path)


def report(table, shapes, files):
    goal = {path: jax.ShapeDtypeStruct(shape, "float32") for path, shape in shapes.items()}
    return compare_weights(table, goal, {n: np.empty(shape) for n, shape in files.items()})


GATE_UP = {n: Stored("w", TURNED, equal_part(i, F)) for i, n in enumerate(("gate", "up"))}
SHAPES = {"gate": (D, F), "up": (D, F)}


def test_the_rows_of_up_read_twice():
    assert report(GATE_UP, SHAPES, {"w": (2 * F, D)}).clean
    twice = report(GATE_UP | {"gate": GATE_UP["up"]}, SHAPES, {"w": (2 * F, D)})
    assert twice.shared == {"w": "gate and up both read 12:24 of dimension 0"}
    files = {"w": np.zeros((2 * F, D))}
    with pytest.raises(ValueError, match="gate and up both read"):
        load_weights(GATE_UP | {"gate": GATE_UP["up"]}, goal_of(SHAPES, {}, mesh_of(1, 1)), files)
    with pytest.raises(ValueError, match="gate and up both read"):
        export_weights(GATE_UP | {"gate": GATE_UP["up"]}, dict.fromkeys(SHAPES, draw(D, F)))


def test_rows_that_nothing_reads_and_an_array_of_two_parameters():
    assert report(GATE_UP, {"up": (D, F)}, {"w": (2 * F, D)}).shared == {
        "w": "nothing reads 0:12 of dimension 0"
    }
    table = {"embed": Stored("e", AS_OURS), "unembed": Stored("e", TURNED)}
    tied = report(table, {"embed": (16, D), "unembed": (D, 16)}, {"e": (16, D)})
    assert tied.shared == {"e": "embed and unembed both read all of it"}
    parts = {"up": GATE_UP["up"], "gate": Stored("w", AS_OURS, equal_part(0, 12, dim=1))}
    both = report(parts, {"up": (24, 12), "gate": (24, 12)}, {"w": (24, 24)})
    assert both.shared == {"w": "gate and up divide different dimensions of it"}


def test_what_only_values_can_tell_is_said():
    found = report(GATE_UP, SHAPES, {"w": (2 * F, D)})
    assert found.clean and found.by_values == ("gate and up exchanged in w",)
    table = {"layers/{}/out": Stored("l.{}.o", TURNED)}
    shapes = {f"layers/{n}/out": (D, D) for n in range(2)}
    square = report(table, shapes, {f"l.{n}.o": (D, D) for n in range(2)})
    assert square.clean and square.by_values == (
        "two dimensions of the same size exchanged in layers/0/out",
    )
    grouped = {p: Stored("qkv", ((1, 2), (0,)), heads_part(p, 4, 2, "blocked")) for p in
               ("query", "key", "value")}  # fmt: skip
    shapes = {"query": (6, 4, H), "key": (6, 2, H), "value": (6, 2, H)}
    found = report(grouped, shapes, {"qkv": (16, 6)})
    assert found.by_values == ("key and value exchanged in qkv",)
    swapped = grouped | {"query": grouped["key"], "key": grouped["query"]}
    assert {*report(swapped, shapes, {"qkv": (16, 6)}).shapes} == {"query", "key"}


def test_names_and_shapes_that_do_not_fit():
    table = {"a": Stored("model.a", TURNED), "b": Stored("model.b", ((0,),))}
    shapes = {"a": (D, F), "b": (D, F), "c": (2,)}
    found = report(table, shapes, {"models.a": (F, D), "model.b": (D,)})
    assert found.unmapped == ("c",) and found.missing == {"model.a": "a"}
    assert found.unused == ("models.a",) and {*found.shapes} == {"b"} and not found.clean
    text = str(found)
    assert "the nearest name that nothing reads is models.a" in text and "nothing reads" in text
    with pytest.raises(ValueError, match="the table has no c"):
        export_weights(table, {"c": draw(2)})


def test_a_layout_that_the_file_does_not_keep_together():
    table = {"query": Stored("q", ((1, 2), (0,)))}
    goal = goal_of({"query": (D, 4, H)}, {"query": P(None, None, "model")}, mesh_of(1, 2))
    message = r"query from q: dimension 2 of \(8, 4, 2\) is sharded.* shard dimension 1 instead"
    with pytest.raises(ValueError, match=message):
        load_weights(table, goal, {"q": np.zeros((4 * H, D))})


def test_parts_that_do_not_exist():
    with pytest.raises(ValueError, match="no part 'keys': choose 'key'"):
        heads_part("keys", 4, 2, "blocked")
    with pytest.raises(ValueError, match="no order 'grouped': choose 'by group'"):
        heads_part("key", 4, 2, "grouped")
    with pytest.raises(ValueError, match="3 groups do not divide 4 heads"):
        heads_part("key", 4, 3, "blocked")
    with pytest.raises(ValueError, match="no part 2 of 2: they are 0 to 1"):
        equal_part(2, F)
