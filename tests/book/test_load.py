"""recipes/load.py: a Llama and a Phi-3 written by NumPy into odd bfloat16 files, on several meshes
against NumPy's logits.
"""

import importlib.util
import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from places import ROOT

from shardlab import open_weights

nnx = pytest.importorskip("flax.nnx")
save_file = pytest.importorskip("safetensors.numpy").save_file

pytestmark = pytest.mark.reads("book/recipes", "src/shardlab")

L, D, N, G, H, F, V = 3, 32, 8, 2, 4, 48, 40
CONFIG = {
    "num_hidden_layers": L, "hidden_size": D, "num_attention_heads": N, "num_key_value_heads": G,
    "intermediate_size": F, "vocab_size": V, "rms_norm_eps": 1e-3, "rope_theta": 500.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("load_recipe", ROOT / "book/recipes/load.py")
    sys.modules["load_recipe"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["load_recipe"]


def arrays_of(fused, tied):
    """A model's arrays as PyTorch stores them."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return (rng.normal(size=shape) / shape[-1] ** 0.5).astype(jnp.bfloat16)

    made = {"model.embed_tokens.weight": draw(V, D), "model.norm.weight": 1 + draw(D)}
    for n in range(L):
        name = f"model.layers.{n}."
        for norm in ("input", "post_attention"):
            made[f"{name}{norm}_layernorm.weight"] = 1 + draw(D)
        qkv, gate_up = draw((N + 2 * G) * H, D), draw(2 * F, D)
        parts = np.split(qkv, [N * H, (N + G) * H])
        attention = {"qkv": qkv} if fused else dict(zip("qkv", parts, strict=True))
        mlp = {"gate_up": gate_up} if fused else {"gate": gate_up[:F], "up": gate_up[F:]}
        attention["o"], mlp["down"] = draw(D, N * H), draw(D, F)
        made |= {f"{name}self_attn.{part}_proj.weight": a for part, a in attention.items()}
        made |= {f"{name}mlp.{part}_proj.weight": a for part, a in mlp.items()}
    return made if tied else made | {"lm_head.weight": draw(V, D)}


def written(folder, fused=False, tied=False, **config):
    """A folder with three files of very different sizes, an index and a config."""
    arrays = arrays_of(fused, tied)
    names = np.random.default_rng(2).permutation(sorted(arrays)).tolist()
    home = {}
    for number, own in enumerate((names[:1], names[1:8], names[8:])):
        in_file = {n: np.ascontiguousarray(arrays[n]) for n in own}
        save_file(in_file, folder / f"{number}.safetensors")
        home |= dict.fromkeys(own, f"{number}.safetensors")
    index = {"metadata": {}, "weight_map": home}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    given = CONFIG | {"tie_word_embeddings": tied} | config
    (folder / "config.json").write_text(json.dumps(given))
    return {name: a.astype("float64") for name, a in arrays.items()}


def norm(x, scale):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * scale


def turned(x):
    """Complex numbers of element i and i + H / 2, turned by their position."""
    z = x[..., : H // 2] + 1j * x[..., H // 2 :]
    speed = 500.0 ** -(2 * np.arange(H // 2) / H)
    z = z * np.exp(1j * np.arange(x.shape[1])[:, None] * speed)[:, None]
    return np.concatenate([z.real, z.imag], -1)


def attend(y, of):
    """Grouped attention, head by head."""
    q, k, v = ((y @ of(f"self_attn.{name}_proj").T).reshape(*y.shape[:2], -1, H) for name in "qkv")
    q, k, mixed = turned(q), turned(k), np.zeros_like(q)
    for head in range(N):
        own = head // (N // G)
        scores = q[:, :, head] @ k[:, :, own].transpose(0, 2, 1) / H**0.5
        scores = np.where(np.tri(len(scores[0]), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed[:, :, head] = weights / weights.sum(-1, keepdims=True) @ v[:, :, own]
    return mixed.reshape(*y.shape[:2], N * H) @ of("self_attn.o_proj").T


def logits_of(arrays, tokens):
    """What Llama's code computes."""
    x = arrays["model.embed_tokens.weight"][tokens]
    for n in range(L):
        of = partial(weight, arrays, n)
        x = x + attend(norm(x, of("input_layernorm")), of)
        y = norm(x, of("post_attention_layernorm"))
        gate = y @ of("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ of("mlp.up_proj").T)) @ of("mlp.down_proj").T
    last = arrays.get("lm_head.weight", arrays["model.embed_tokens.weight"])
    return norm(x, arrays["model.norm.weight"]) @ last.T


def weight(arrays, n, name):
    return arrays[f"model.layers.{n}.{name}.weight"]


class Counted:
    """An array of a file that counts how often each element is read."""

    def __init__(self, handle):
        self.handle = handle
        self.reads = np.zeros(handle.get_shape(), int)
        self.get_shape = handle.get_shape

    def __getitem__(self, index):
        self.reads[index] += 1
        return self.handle[index]


def mesh_of(rows, columns):
    return jax.make_mesh(
        (rows, columns), ("data", "model"), axis_types=(AxisType.Auto,) * 2,
        devices=jax.devices()[: rows * columns],
    )  # fmt: skip


TOKENS = np.random.default_rng(1).integers(0, V, (8, 10))


def found_logits(recipe, folder, mesh, dtype=jnp.float32):
    with jax.set_mesh(mesh):
        _, model = recipe.load(folder, mesh, dtype)
        tokens = jax.device_put(TOKENS, NamedSharding(mesh, P("data")))
        return model, np.asarray(nnx.jit(lambda model, tokens: model(tokens))(model, tokens))


def off(found, wanted):
    return abs(found - wanted).max() / abs(wanted).max()


@pytest.mark.parametrize("tied", [False, True], ids=["own", "tied"])
@pytest.mark.parametrize("fused", [False, True], ids=["Llama", "Phi-3"])
def test_on_every_mesh_the_logits_are_numpy_s_and_each_byte_is_read_once(
    recipe, tmp_path, monkeypatch, fused, tied
):
    arrays = written(tmp_path, fused, tied)
    separate = arrays_of(False, tied)
    wanted = logits_of({name: a.astype("float64") for name, a in separate.items()}, TOKENS)
    for shape in ((1, 1), (2, 4), (4, 2), (2, 2), (1, 8)):
        files = {name: Counted(handle) for name, handle in open_weights(tmp_path).items()}
        monkeypatch.setattr(recipe, "open_weights", {tmp_path: files}.get)
        model, logits = found_logits(recipe, tmp_path, mesh_of(*shape))
        assert off(logits, wanted) < 1e-5, shape
        assert {*files} == {*arrays} and all((file.reads == 1).all() for file in files.values())
        key = model.layers.key.kernel[...].sharding.shard_shape((L, D, G, H))
        heads = G // shape[1] if shape[1] <= G else G  # replicated where they cannot be divided
        assert key == (L, D // shape[0], heads, H)


def test_in_bfloat16_the_parameters_stay_what_the_files_have(recipe, tmp_path):
    arrays = written(tmp_path)
    model, logits = found_logits(recipe, tmp_path, mesh_of(2, 4), jnp.bfloat16)
    assert model.layers.up.kernel[...].dtype == jnp.bfloat16
    for n in range(L):
        up = np.asarray(model.layers.up.kernel[...])[n].astype("float64")
        np.testing.assert_array_equal(up, arrays[f"model.layers.{n}.mlp.up_proj.weight"].T)
    assert off(logits.astype("float64"), logits_of(arrays, TOKENS)) < 0.05


def test_pairs_for_halves_pass_every_report_and_only_logits_tell(recipe, tmp_path, monkeypatch):
    wanted = logits_of(written(tmp_path), TOKENS)

    def pairs(x, theta):
        order = np.arange(H).reshape(2, -1).T.ravel()  # 0, H / 2, 1, H / 2 + 1, ...
        return recipe_rotary(x[..., np.argsort(order)], theta)[..., order]

    recipe_rotary = recipe.rotary
    monkeypatch.setattr(recipe, "rotary", pairs)
    _, logits = found_logits(recipe, tmp_path, mesh_of(1, 2))
    assert off(logits, wanted) > 0.05
    assert off(logits[:, 0], wanted[:, 0]) < 1e-5  # position 0 is not turned


@pytest.mark.parametrize(
    "odd", [{"hidden_act": "gelu"}, {"attention_bias": True}, {"sliding_window": 2047},
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}], ids=str,
)  # fmt: skip
def test_a_constant_that_the_model_does_not_compute_is_refused(recipe, tmp_path, odd):
    written(tmp_path, **odd)
    with pytest.raises(ValueError, match=f"{next(iter(odd))}.*which Layer does not compute"):
        recipe.load(tmp_path, mesh_of(1, 1))


def test_newer_configs_keep_the_rotary_base_apart(recipe, tmp_path):
    written(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 7.0})
    assert recipe.config_of(tmp_path).theta == 7.0


def test_it_runs_as_a_script_and_names_a_mesh_that_does_not_divide(recipe, tmp_path, capsys):
    written(tmp_path)
    recipe.main(tmp_path, 2, 4)
    assert "the most likely is" in capsys.readouterr().out
    with pytest.raises(
        ValueError, match=r"embed/embedding.* has size 40, .* do not divide: .*replicate it"
    ):
        recipe.main(tmp_path, 1, 3)
