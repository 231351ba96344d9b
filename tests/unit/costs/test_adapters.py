"""Adapters on a frozen model: what they train, keep, send and take, against counts by hand, and
against a mixture of experts that is built and trained.
"""

import json
import tomllib
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import costs, hardware, model, plan
from shardlab.costs import published
from shardlab.costs.bands import band_of, band_words
from shardlab.costs.dtypes import FROZEN
from shardlab.costs.published import RUNS
from shardlab.costs.steps.adapters import adapters_of
from shardlab.machines.models import Model

LLAMA = model("llama-3-8b")
RANK = 16
# of each layer: query and output 4096 x 4096, key and value 4096 x 1024, three matrices of the MLP
ADAPTERS = 32 * RANK * (2 * 8192 + 2 * (4096 + 1024) + 3 * (4096 + 14_336))
# PEFT prints "trainable params: 41,943,040" for Llama 3 8B with rank 16 on these matrices


def step(parameters="bf16", lora=RANK, mesh=None, size=LLAMA, **how):
    mesh = mesh or costs.Parallelism(fsdp=8)
    return costs.step_cost(size, "H100", mesh, 2**17, 4096, lora=lora, parameters=parameters, **how)


def test_rank_16_on_all_matrices_trains_as_many_parameters_as_peft_prints():
    assert ADAPTERS == 41_943_040
    memory = step().memory
    assert memory.gradient_bytes * 8 == 2 * ADAPTERS
    assert memory.moment_bytes * 8 == 8 * ADAPTERS
    assert memory.frozen_bytes * 8 == 2 * LLAMA.parameters
    assert memory.parameter_bytes * 8 == 2 * LLAMA.parameters + 2 * ADAPTERS
    wide = step(gradients="f32", master="f32").memory
    assert wide.parameter_bytes * 8 == 2 * LLAMA.parameters + 4 * ADAPTERS
    assert wide.master_bytes * 8 == 4 * ADAPTERS


def test_four_bits_take_0_127_bits_more_and_leave_the_embeddings_wide():
    """QLoRA, section 3: "an average of 0.127 bits per parameter" for the constants."""
    embedding = 2 * 128_256 * 4096
    frozen = step("nf4").memory.frozen_bytes * 8
    bits = 8 * (frozen - 2 * embedding) / (LLAMA.parameters - embedding)
    assert bits == pytest.approx(4.127, abs=5e-4)
    # the largest matrix is there in 16 bits too
    both = [step(dtype).memory.working_bytes for dtype in ("bf16", "nf4")]
    assert both[1] - both[0] == 2 * 4096 * 14_336
    assert step("nf4").expected_seconds > step("bf16").expected_seconds


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-3-175b", "gemma-7b"])
@pytest.mark.parametrize(
    "mesh", [{"fsdp": 8}, {"data": 2, "tensor": 4}, {"pipeline": 2, "tensor": 4}]
)
def test_a_frozen_matrix_takes_two_thirds_of_the_flops(name, mesh):
    size, mesh = model(name), costs.Parallelism(**mesh)
    all_of_it = step(lora=0, mesh=mesh, size=size, remat="none").flops * 8
    frozen = step(mesh=mesh, size=size, remat="none").flops * 8
    rank = adapters_of(size, RANK).total
    assert frozen == pytest.approx(all_of_it - 2**18 * size.matmul_parameters + 3 * 2**18 * rank)


def test_only_adapters_have_gradients_that_are_sent():
    for axis, kinds in (("data", 2), ("fsdp", 1)):
        mesh = costs.Parallelism(**{axis: 8})
        all_of_it, frozen = (step(lora=lora, mesh=mesh).axes[axis].bytes for lora in (0, RANK))
        if axis == "data":
            assert frozen == pytest.approx(kinds * 7 / 8 * 2 * ADAPTERS)
        else:  # gathered in both passes, and the gradients scattered
            gathers = 2 * (2 * LLAMA.parameters + 2 * ADAPTERS)
            assert frozen == pytest.approx(7 / 8 * (gathers + 2 * ADAPTERS))
        assert frozen < all_of_it
    four_bits = step("nf4").axes["fsdp"].bytes
    assert four_bits < 0.5 * step().axes["fsdp"].bytes


@pytest.mark.parametrize(
    ("name", "how", "says"),
    [
        (
            "mixtral-8x7b",
            {"lora": 16, "adapted": "mlp"},
            "adapted='mlp' is not known; use one of all",
        ),
        ("mixtral-8x7b", {"adapted": "attention"}, "add their rank, such as lora=16"),
        ("llama-3-8b", {"parameters": "int8"}, "int8 cannot be trained; add adapters"),
        (
            "llama-3-8b",
            {"lora": 4097},
            "lora is 4097; use the rank of the adapters, .* up to 4,096",
        ),
        ("llama-3-8b", {"lora": -1}, "lora is -1"),
        ("llama-3-8b", {"lora": True}, "lora is True"),
        ("llama-3-8b", {"lora": 1.5}, "lora is 1.5"),
        ("llama-3-8b", {"parameters": "nf4"}, "nf4 cannot be trained; add adapters"),
        ("llama-3-8b", {"lora": 16, "gradients": "nf4"}, "gradients"),
    ],
)
def test_errors_name_the_value(name, how, says):
    size, mesh = model(name), costs.Parallelism(fsdp=8)
    with pytest.raises(ValueError, match=says):
        costs.step_cost(size, "H100", mesh, 2**17, **how)
    with pytest.raises(ValueError, match=says):
        costs.training_memory(size, mesh, 2**17, **how)


MIXTRAL = model("mixtral-8x7b")
SMALL = Model(1, 128, 256, 8, 4, 16, 256, experts=8, experts_per_token=2, name="small")


def frozen_array(key, shape, spec, parameters, mesh):
    """A matrix as it is stored, each part placed: in four bits two elements are in a byte, with a
    scale for each 64, and one of those for each 256 of them, as QLoRA has.
    """

    def put(array, spec):
        return jax.device_put(array, NamedSharding(mesh, spec))

    matrix = jax.random.normal(key, shape) / 12
    if parameters == "bf16":
        return {"bf16": put(matrix.astype(jnp.bfloat16), spec)}
    if parameters == "int8":
        return {"int8": put(jnp.round(matrix * 256).astype(jnp.int8), spec)}
    codes = jnp.clip(jnp.round(matrix * 32) + 8, 0, 15).astype(jnp.uint8).reshape(-1)
    parts = {"codes": codes[::2] | codes[1::2] << 4}
    parts |= {"scales": jnp.full(codes.size // 64, 128, jnp.uint8)}
    parts |= {"of scales": jnp.full(-(-codes.size // 64 // 256), 1 / 4096, jnp.float32)}
    every = P(("expert", "fsdp"))  # but the few scales of scales, which each device has
    return {name: put(part, P() if name == "of scales" else every) for name, part in parts.items()}


def restored(stored, shape):
    """The matrix in 16 bits."""
    if "bf16" in stored:
        return stored["bf16"]
    if "int8" in stored:
        return stored["int8"].astype(jnp.bfloat16) / 256
    codes = jnp.stack([stored["codes"] & 15, stored["codes"] >> 4], -1).reshape(-1, 64)
    scales = stored["scales"] * jnp.repeat(stored["of scales"], 256)[: stored["scales"].size]
    return (
        ((codes.astype(jnp.float32) - 8) * scales.reshape(-1, 1))
        .reshape(shape)
        .astype(jnp.bfloat16)
    )


def built(parameters, adapted, rank):
    """(frozen, adapters, moments, a step) of `SMALL`, spread over eight devices, of which four
    groups share the experts.
    """
    mesh = jax.make_mesh(
        (4, 2), ("expert", "fsdp"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8]
    )
    m, every = SMALL, ("expert", "fsdp")
    n, d, wide, keys = m.layers, m.d_model, m.heads * m.head_dim, m.kv_heads * m.head_dim
    attention = {"q": (d, wide), "k": (d, keys), "v": (d, keys), "o": (wide, d)}
    experts = {"gate": (d, m.d_ff), "up": (d, m.d_ff), "down": (m.d_ff, d)}
    key = iter(jax.random.split(jax.random.key(0), 99))
    shapes = {name: (n, *sides) for name, sides in attention.items()}
    shapes |= {name: (n, m.experts, *sides) for name, sides in experts.items()}
    frozen = {
        name: frozen_array(
            next(key),
            shape,
            P(None, "expert", "fsdp") if name in experts else P(None, every),
            parameters,
            mesh,
        )
        for name, shape in shapes.items()
    }
    small = {"router": (d, n * m.experts), "norms": (d, 2 * n + 1)}
    for name, shape in ({"embedding": (m.vocab, d), "output": (m.vocab, d)} | small).items():
        frozen[name] = frozen_array(next(key), shape, P(every), "bf16", mesh)
    adapters = {}
    for name, sides in (attention | experts if adapted == "all" else attention).items():
        lead = (n, m.experts) if name in experts else (n,)
        axes = (None, "expert", "fsdp") if name in experts else (None, every)
        first, second = P(*axes), P(*axes[:-1], None, axes[-1])
        a = jax.random.normal(next(key), (*lead, sides[0], rank), jnp.bfloat16) / 8
        b = jnp.zeros((*lead, rank, sides[1]), jnp.bfloat16)
        adapters[name] = [
            jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((a, first), (b, second))
        ]
    wide_ones = jax.tree.map(lambda x: jnp.zeros_like(x, jnp.float32), adapters)
    moments = jax.tree.map(
        lambda z, x: jax.device_put(z, x.sharding), [wide_ones] * 2, [adapters] * 2
    )

    def loss(adapters, frozen, tokens):
        whole = {name: restored(frozen[name], shape) for name, shape in shapes.items()}

        def product(name, x, layer):  # [..., m] or for experts [expert, ..., m]
            y = x @ whole[name][layer]
            for a, b in [adapters[name]] if name in adapters else []:
                y = y + x @ a[layer] @ b[layer]
            return y

        x = frozen["embedding"]["bf16"][tokens]
        for layer in range(n):
            h = x * (1 + frozen["norms"]["bf16"][:, layer])
            q, k, v = (
                product(name, h, layer).reshape(*h.shape[:2], -1, m.head_dim) for name in "qkv"
            )
            mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + product("o", mixed.reshape(*h.shape[:2], -1), layer)
            h = x * (1 + frozen["norms"]["bf16"][:, n + layer])
            gates = jax.nn.softmax(h @ frozen["router"]["bf16"].reshape(d, n, -1)[:, layer])
            best, which = jax.lax.top_k(gates, m.experts_per_token)
            gates = (jax.nn.one_hot(which, m.experts, dtype=h.dtype) * best[..., None]).sum(-2)
            flat = jnp.broadcast_to(h.reshape(-1, d), (m.experts, h.shape[0] * h.shape[1], d))
            hidden = jax.nn.silu(product("gate", flat, layer)) * product("up", flat, layer)
            out = product("down", hidden, layer).reshape(m.experts, *h.shape)
            x = x + jnp.einsum("ebsd,bse->bsd", out, gates)
        logits = (x * frozen["norms"]["bf16"][:, -1]) @ frozen["output"]["bf16"].T
        logs = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.take_along_axis(logs[:, :-1], tokens[:, 1:, None], -1).mean()

    @jax.jit
    def train(adapters, moments, frozen, tokens):
        value, gradients = jax.value_and_grad(loss)(adapters, frozen, tokens)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
        second = jax.tree.map(
            lambda v, g: 0.99 * v + 0.01 * g.astype(jnp.float32) ** 2, moments[1], gradients
        )
        moved = jax.tree.map(
            lambda x, m, v: (x - 0.02 * m / (jnp.sqrt(v) + 1e-8)).astype(x.dtype),
            adapters,
            first,
            second,
        )
        return moved, [first, second], gradients, value

    return frozen, adapters, moments, train


def held(tree):
    """The bytes of a tree of arrays on each device."""
    found = Counter()
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            found[shard.device.id] += shard.data.nbytes
    assert len(found) == 8
    return list(found.values())


def sizes_of(name):
    """A model of the published runs."""
    data = tomllib.loads(Path(published.__file__).with_suffix(".toml").read_text("utf-8"))
    return Model(**data["models"][name])


def test_adapters_of_a_mixture_are_on_every_expert_or_on_attention_alone():
    # of each layer of gpt-oss-20b: query and output 2880 x 4096, key and value 2880 x 512; Unsloth
    # prints "Trainable parameters = 3,981,312" for rank 8 on attention
    oss = sizes_of("gpt-oss-20b")
    assert adapters_of(oss, 8, "attention").total == 24 * 8 * (2 * 6976 + 2 * 3392) == 3_981_312
    every, some = adapters_of(MIXTRAL, RANK), adapters_of(MIXTRAL, RANK, "attention")
    expert, attention = RANK * 3 * (4096 + 14_336), RANK * (2 * 8192 + 2 * 5120)
    assert (every.shared, some.shared, some.routed) == (32 * attention, 32 * attention, 0)
    assert every.routed == 32 * 8 * expert and every.used == 32 * (attention + 2 * expert)
    # layers without experts, and an expert for every token, have adapters of their own
    deepseek = model("deepseek-v3")
    sides = 7168 + 2 * 1536 + 128 * 192 + 7168 + 2 * 512 + 64 + 3 * 128 * 128 + 7168
    found = adapters_of(deepseek, 8)
    assert found.routed == 58 * 256 * 8 * 3 * (7168 + 2048)
    assert found.shared == 8 * (61 * sides + 3 * 3 * (7168 + 18_432) + 58 * 3 * (7168 + 2048))


def test_a_mixture_under_adapters_takes_what_its_matrices_do():
    tokens, mesh = 2**17, costs.Parallelism(fsdp=2, expert=4)
    for adapted in ("all", "attention"):
        rank = adapters_of(MIXTRAL, RANK, adapted)
        asked = {"mesh": mesh, "size": MIXTRAL, "remat": "none"}
        whole, frozen = step(lora=0, **asked), step(adapted=adapted, **asked)
        saved = 2 * tokens * MIXTRAL.matmul_parameters - 6 * tokens * rank.used
        assert frozen.flops * 8 == pytest.approx(whole.flops * 8 - saved)
        assert frozen.memory.gradient_bytes * 8 == 2 * rank.total
        # each group of experts sums its own adapters, and all others over all chips
        sent = 2 * 7 / 8 * (2 * (MIXTRAL.parameters - MIXTRAL.routed_parameters + rank.shared))
        sent += 2 * 1 / 2 * 2 * (MIXTRAL.routed_parameters + rank.routed) / 4
        sent += 7 / 8 * 2 * rank.shared + 1 / 2 * 2 * rank.routed / 4
        assert frozen.axes["fsdp"].bytes == pytest.approx(sent)
        assert frozen.axes["expert"].bytes == whole.axes["expert"].bytes


@pytest.mark.parametrize("parameters", ["bf16", "int8", "nf4"])
@pytest.mark.parametrize("adapted", ["all", "attention"])
def test_a_built_mixture_has_the_bytes_of_the_formula(parameters, adapted):
    """A mixture of 0.9 million parameters on eight emulated devices, which its adapters train."""
    mesh = costs.Parallelism(fsdp=2, expert=4)
    asked = {"lora": 4, "adapted": adapted, "parameters": parameters}
    memory = costs.training_memory(SMALL, mesh, 1024, **asked)
    frozen, adapters, moments, train = built(parameters, adapted, 4)
    if (parameters, adapted) == ("nf4", "all"):
        tokens = jax.random.randint(jax.random.key(1), (4, 32), 0, SMALL.vocab)
        losses = []
        for _ in range(3):
            adapters, moments, gradients, value = train(adapters, moments, frozen, tokens)
            losses.append(float(jax.block_until_ready(value)))
        assert losses[-1] < losses[0]
        assert held(gradients) == [memory.gradient_bytes] * 8
    # routers and norms, which the formula counts as matrices, are in 16 bits; and each device has
    # all scales of scales
    wide = (2 * SMALL.layers + 1) * SMALL.d_model + SMALL.layers * SMALL.d_model * SMALL.experts
    more = (2 - FROZEN.get(parameters, 2)) * wide / 8
    matrices = SMALL.parameters - SMALL.embedding_parameters - wide
    of_scales = sum(part["of scales"].nbytes for part in frozen.values() if "of scales" in part)
    more += of_scales - 4 * matrices / (64 * 256) / 8 * (parameters == "nf4")
    assert held(frozen) == pytest.approx([memory.frozen_bytes + more] * 8, abs=0.01)
    assert held(adapters) == [memory.parameter_bytes - memory.frozen_bytes] * 8
    assert held(moments) == [memory.moment_bytes] * 8


def test_published_memory_of_adapters_on_mixtures_is_near_the_formula():
    """Unsloth, https://unsloth.ai/blog/gpt-oss, 2025-08-08: gpt-oss-20b "fits on a 14GB VRAM, and
    gpt-oss-120b works on 65GB"; B. Marie, https://kaitchup.substack.com/p/fine-tune-mixtral-8x7b-quantized,
    2024-03-14: "even with QLoRA, we still need 32 GB" for Mixtral 8x7B.
    """
    for name, adapted, gigabytes in (
        ("gpt-oss-20b", "attention", 14),
        ("gpt-oss-120b", "attention", 65),
        ("mixtral-8x7b", "all", 32),
    ):
        size = MIXTRAL if name == "mixtral-8x7b" else sizes_of(name)
        asked = {"lora": 8, "adapted": adapted, "parameters": "nf4"}
        memory = costs.training_memory(size, costs.Parallelism(), 1024, **asked)
        assert 0.8 * gigabytes < memory.total_bytes / 1e9 < gigabytes


def test_published_runs_with_adapters_test_their_kind_and_nothing_is_fitted_to_them():
    took = {
        name: run.seconds / float(run.cost().expected_seconds)
        for name, run in RUNS.items()
        if run.kind == "adapters"
    }
    assert len(took) == 9 and not any(RUNS[name].fit for name in took)
    assert min(took.values()) > 0.8 and max(took.values()) < 1.2
    assert costs.FITTED["gpu"].bands["adapters"] == costs.Band.of([*took.values()])


def test_what_no_run_tests_has_no_number():
    """Four bits, TPUs, and cards to which no share was fitted."""
    mixture = plan("mixtral-8x7b", "H100", 8, 2**17, lora=16)
    assert mixture.kind == "adapted mixture" and band_of(mixture.chip, mixture.kind) is None
    assert mixture.fitting and "adapters on a frozen mixture" in mixture.report(1)
    assert json.loads(mixture.to_json())["adapted"] == "all"
    attention = plan("mixtral-8x7b", "H100", 8, 2**17, lora=16, adapted="attention")
    assert attention.choices[0].total_bytes < mixture.choices[0].total_bytes
    four = plan("llama-3-8b", "RTX 4090", 4, 2**16, lora=16, dtypes={"parameters": "nf4"})
    assert four.kind == "quantised" and band_of(four.chip, four.kind) is None
    assert four.fitting and four.choices[0].total_bytes < 24e9
    assert "No published run on GPUs tests such plans" in four.report(1).replace("\n", " ")
    card = plan("llama-3-8b", "RTX 4090", 4, 2**16, lora=16)
    assert card.kind == "chip" and band_of(card.chip, card.kind) is None
    known = plan("llama-3-8b", "H100", 4, 2**16, lora=16)
    assert known.kind == "adapters" and "within a factor of 1.24" in known.report(1).replace(
        "\n", " "
    )
    tpu = plan("llama-3-8b", "v5p", 4, 2**16, lora=16)
    assert tpu.kind == "adapters" and band_of(tpu.chip, tpu.kind) is None
    assert "tests such plans" in band_words(hardware.chip("v5p"), "adapters")


def test_rank_zero_trains_everything_as_before():
    whole, none = step(lora=0), costs.step_cost(LLAMA, "H100", costs.Parallelism(fsdp=8), 2**17)
    assert np.allclose([*whole.parts.values()], [*none.parts.values()], rtol=0)
    assert whole.memory == none.memory and whole.memory.frozen_bytes == 0
