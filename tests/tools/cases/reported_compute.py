"""Operations that devices repeat, or before which they gather."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from reports import public
from steps import grid, struct


@public(
    "openxla/xla#47945",
    "Each device gathers the whole batch and computes all of a grouped convolution, of which it "
    "then keeps its own shard.",
    r"repeated work: .*convolution|avoidable communication: .*(group|convolution)",
    row="all-gather.*convolution",
)
def grouped_convolution():
    mesh = grid((8,), ("data",))

    def convolve(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=4
        )

    f = jax.jit(convolve, out_shardings=NamedSharding(mesh, P("data")))
    return f, (struct(mesh, (16, 32, 32, 32), "data"), struct(mesh, (3, 3, 8, 64)))


def foreign(x):
    """A call of a function of LAPACK's through the FFI; it stands for any of one's own."""
    jnp.linalg.cholesky(jnp.eye(2))  # which registers it
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.ffi.ffi_call("lapack_spotrf_ffi", shape, vmap_method="broadcast_all")(x)


@public(
    "jax-ml/jax#32098",
    "An array in shards is gathered before a call of foreign code, which then computes all of it "
    "on every device.",
    r"(repeated work|avoidable communication): .*foreign code.*shard_map",
    row="foreign code",
)
def foreign_call():
    mesh = grid((8,), ("data",))

    def step(w, x):
        return jnp.sum(foreign(x @ w), -1)

    return step, (struct(mesh, (64, 64)), struct(mesh, (1024, 64), "data"))


@public(
    "marin-community/marin#6470",
    "Under an explicit mesh, too, the batch is gathered before an attention kernel that is called "
    "through the FFI; a shard_map around the call cures it.",
    r"(repeated work|avoidable communication): .*foreign code.*shard_map",
    row="foreign code",
)
def foreign_call_on_an_explicit_mesh():
    mesh = grid((8,), ("data",), AxisType.Explicit)

    def step(q, k):
        scores = jnp.einsum("btd,bsd->bts", q, k, out_sharding=P("data"))
        return foreign(scores) * 2

    array = struct(mesh, (32, 64, 32), "data")
    return step, (array, array), jax.set_mesh(mesh)


@public(
    "jax-ml/jax#26586",
    "Loops that end at different times for different samples are far slower with shardings than "
    "with pmap: in each iteration all devices agree whether to go on.",
    r"loop.*(shard_map|agree)",
    row="loop|whether to go on",
)
def nested_loops():
    mesh = grid((8,), ("data",))

    def solve(y, count):
        def inner(state):
            return lax.while_loop(lambda s: s[1] < 2, lambda s: (s[0] + 0.1, s[1] + 0.1), state)

        def outer(state):
            t, y, count = state
            t, _ = inner((t, y))
            return t, jnp.sin(t), count + 1

        return lax.while_loop(lambda s: s[2] < 5, outer, (jnp.zeros(()), y, count))[1]

    starts = struct(mesh, (64,), "data"), struct(mesh, (64,), "data", dtype="int32")
    return jax.vmap(solve), starts


@public(
    "jax-ml/jax#20968",
    "While loops of varying length are much slower with a sharded batch than with pmap: devices "
    "sum a flag in every iteration and wait for each other.",
    r"loop.*(shard_map|agree)",
    row="loop|whether to go on",
)
def loops_of_varying_length():
    mesh = grid((8,), ("batch",))

    def halved(x, least):
        return lax.while_loop(lambda s: s[0] > s[1], lambda s: (s[0] / 2, s[1]), (x, least))[0]

    numbers = struct(mesh, (1024,), "batch")
    return jax.jit(lambda x, least: jnp.sum(jax.vmap(halved)(x, least))), (numbers, numbers)


@public(
    "patrick-kidger/diffrax#407",
    "An ensemble of adaptive integrations is slower over sharded devices than with pmap, because "
    "every step waits for all devices.",
    r"loop.*(shard_map|agree)",
    row="loop|whether to go on",
)
def adaptive_steps():
    mesh = grid((8,), ("data",))

    def integrate(theta, y):
        def step(state):
            t, y, h = state
            slope = jnp.sin(theta * t) - y
            error = jnp.abs(h * slope)
            accepted = error < 1e-2
            return (
                jnp.where(accepted, t + h, t),
                jnp.where(accepted, y + h * slope, y),
                jnp.where(accepted, 1.2 * h, 0.5 * h),
            )

        return lax.while_loop(lambda s: s[0] < 10, step, (0.0, y, 0.1))[1]

    return jax.vmap(integrate), (struct(mesh, (64,), "data"), struct(mesh, (64,), "data"))


@public(
    "jax-ml/jax#14559",
    "With the old random number generator every device makes the whole mask of a dropout.",
    r"avoidable communication: .*random numbers.*jax_threefry_partitionable",
    row="random",
)
def dropout_mask():
    mesh = grid((8,), ("data",))

    def drop(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)

    arguments = struct(mesh, (2,), dtype="uint32"), struct(mesh, (512, 1024), "data")
    return jax.jit(drop, donate_argnums=1), arguments, jax.threefry_partitionable(False)


@public(
    "microsoft/folx#36",
    "Samples that are sharded along the batch are computed in a loop over batches, which has to "
    "stand inside a shard_map for each device to loop over its own samples only.",
    r"(repeated work|avoidable communication): .*(lax\.map|scan, map|loop)",
    row="scan, map",
)
def mapped_batch():
    mesh = grid((8,), ("data",))

    def energies(w, x):
        return lax.map(lambda x: jnp.sum(jnp.tanh(x @ w) ** 2), x)

    return energies, (struct(mesh, (64, 256)), struct(mesh, (512, 64), "data"))


@public(
    "marin-community/marin#8054",
    "Statistics of the router, needed for the log alone, are summed over devices in every layer.",
    r"summed in a loop",
    row="sum, mean",
)
def statistics_in_each_layer():
    mesh = grid((8,), ("data",))

    def layer(hidden, w):
        gate = jax.nn.softmax(hidden @ w["router"])
        entropy = -jnp.mean(jnp.sum(gate * jnp.log(gate + 1e-9), -1))
        load = jnp.mean(gate, (0, 1))
        hidden = hidden + jnp.tanh(hidden @ w["up"]) @ w["down"]
        return hidden, {"load": load, "entropy": entropy}

    def loss(w, x):
        hidden, statistics = lax.scan(layer, x, w)
        return jnp.mean(hidden**2), statistics

    def step(w, x):
        (value, statistics), grads = jax.value_and_grad(loss, has_aux=True)(w, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), value, statistics

    w = {
        "router": struct(mesh, (12, 64, 16)),
        "up": struct(mesh, (12, 64, 256)),
        "down": struct(mesh, (12, 256, 64)),
    }
    return jax.jit(step, donate_argnums=0), (w, struct(mesh, (64, 32, 64), "data"))


@public(
    "jax-ml/jax#36886",
    "Gradients of single samples in a shard_map are sums over all devices: JAX adds the gradient "
    "of what devices share.",
    r"(pcast|per sample|single sample|gradients? .*summed)",
    row="all-reduce",
)
def gradients_of_samples():
    mesh = grid((8,), ("data",))

    def gradients(w, x):
        one = jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w)))
        return jax.vmap(one, (None, 0))(w, x)

    f = jax.shard_map(gradients, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    return f, (struct(mesh, (32, 16)), struct(mesh, (1024, 32), "data"))


@public(
    "jax-ml/jax#3970",
    "The gradient of a loss that a psum has added over devices is wrong by the number of devices.",
    r"added twice|(gradient.*(times|too large))",
    row="check_vma=False",
)
def gradient_of_a_psum():
    mesh = grid((8,), ("data",))

    def step(w, x):
        def loss(w):
            return lax.psum(jnp.sum((x @ w) ** 2), "data")

        return w - 0.1 * lax.psum(jax.grad(loss)(w), "data")

    f = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    arguments = struct(mesh, (32, 16)), struct(mesh, (4096, 32), "data")
    return jax.jit(f, donate_argnums=0), arguments


@public(
    "jax-ml/jax#14433",
    "A step with pmap seems two to three times as fast as one with jit: it lacks the psum of the "
    "gradients, so parameters drift apart.",
    r"gradients not summed|replicated but different",
)
def pmap_without_psum():
    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    f = jax.pmap(step, axis_name="data", donate_argnums=0)
    return f, (jnp.ones((8, 32, 32)), jnp.ones((8, 16, 32)))


@public(
    "markean/aimz#292",
    "A shard_map gets its random key replicated, so every shard of the observations has the same "
    "noise.",
    r"same noise",
)
def same_key():
    mesh = grid((8,), ("data",))

    def sample(key, mean):
        return mean + jax.random.normal(key, mean.shape)

    f = jax.shard_map(sample, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    key = struct(mesh, (2,), dtype="uint32")
    return jax.jit(f, donate_argnums=1), (key, struct(mesh, (512, 16), "data"))


@public(
    "marin-community/marin#5278",
    "The specs of a shard_map fall back to replicated, so each device computes all tokens.",
    r"repeated work: .*in_specs",
    row="all-gather",
)
def replicated_in_specs():
    mesh = grid((2, 4), ("data", "model"))

    def program(w, x):
        mlp = jax.shard_map(
            lambda x, w: jnp.tanh(x @ w), mesh=mesh, in_specs=(P(), P()), out_specs=P()
        )
        return mlp(jnp.tanh(x), w)

    return program, (struct(mesh, (256, 512)), struct(mesh, (1024, 256), "data"))


@public(
    "jax-ml/jax#21855",
    "In the backward pass of a shard_map without the check of replication, XLA adds what is equal "
    "on all devices.",
    r"check_vma|(avoidable communication|added twice).*(backward|transpose)",
    row="check_vma=False",
)
def defensive_sums():
    mesh = grid((4, 2), ("data", "model"))
    specs = P("model", None), P("data", "model")
    product = jax.shard_map(
        lambda w, x: lax.psum(x @ w, "model"),
        mesh=mesh,
        in_specs=specs,
        out_specs=P("data", None),
        check_vma=False,
    )

    def step(w, x):
        grads = jax.grad(lambda w, x: jnp.sum(jnp.tanh(product(w, x))), argnums=(0, 1))(w, x)
        return jax.tree.map(lambda g: jnp.sum(g**2), grads)

    args = struct(mesh, (256, 256), *specs[0]), struct(mesh, (512, 256), *specs[1])
    return step, args


@public(
    "jax-ml/jax#35650",
    "`argsort` along a sharded dimension gathers it, and so does the lookup with its result.",
    r"avoidable communication: .*(sort|whole dimension|index)",
    row="all-gather.*(whole dimension|sort)",
)
def sorted_shards():
    mesh = grid((8,), ("data",))

    def order(x):
        return x[jnp.argsort(x)] * 2

    return jax.jit(order, donate_argnums=0), (struct(mesh, (65536,), "data"),)


@public(
    "marin-community/marin#8370",
    "Four statistics of the router are reduced over 64 devices in every layer, although only the "
    "next step or the log needs them: 48 exposed round trips, 150 ms of a step.",
    r"summed in a loop",
    row="written in a shard_map",
)
def means_in_each_layer():
    mesh = grid((8,), ("expert",))

    def layers(w, x):
        def layer(hidden, w):
            gate = jax.nn.softmax(hidden @ w["router"])
            beta = lax.pmean(jnp.mean(gate, 0), "expert")
            hidden = hidden + jnp.tanh(hidden @ w["up"]) @ w["down"]
            return hidden, beta

        return lax.scan(layer, x, w)

    f = jax.shard_map(layers, mesh=mesh, in_specs=(P(), P("expert")), out_specs=(P("expert"), P()))
    w = {
        "router": struct(mesh, (12, 64, 16)),
        "up": struct(mesh, (12, 64, 256)),
        "down": struct(mesh, (12, 256, 64)),
    }
    return jax.jit(f, donate_argnums=1), (w, struct(mesh, (65536, 64), "expert"))


@public(
    "AI-Hypercomputer/maxtext#5099",
    "Gradients are added up over the data-parallel devices after each micro-batch, although only "
    "their sum over the whole step matters.",
    r"summed in a loop: .*once after the loop",
    row="a gradient",
)
def sums_of_each_microbatch():
    mesh = grid((8,), ("data",))

    def step(w, x):
        def body(total, x):
            return total + jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w), None

        total = lax.scan(body, jnp.zeros_like(w), x)[0]
        return w - 0.1 * total

    x = struct(mesh, (8, 1024, 64), None, "data")
    return jax.jit(step, donate_argnums=0), (struct(mesh, (64, 64)), x)


@public(
    "AI-Hypercomputer/maxtext#2208",
    "With an optimiser that is sharded over data-parallel devices, gradients are added up for each "
    "micro-batch; the weights gathered before the loop and one sum after it are enough.",
    r"summed in a loop: .*once after the loop",
)
def gathers_of_each_microbatch():
    mesh = grid((8,), ("data",))

    def step(w, x):
        def loss(w, x):
            w = jax.tree.map(lambda a: lax.with_sharding_constraint(a, whole), w)
            return jnp.mean((jnp.tanh(x @ w["up"]) @ w["down"]) ** 2)

        whole = NamedSharding(mesh, P())

        def body(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(w, x)), None

        total = lax.scan(body, jax.tree.map(jnp.zeros_like, w), x)[0]
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, total)

    w = {"up": struct(mesh, (64, 512), "data"), "down": struct(mesh, (512, 64), None, "data")}
    layouts = jax.tree.map(lambda a: a.sharding, w)
    f = jax.jit(step, donate_argnums=0, out_shardings=layouts)
    return f, (w, struct(mesh, (8, 1024, 64), None, "data"))


@public(
    "openxla/xla#44795",
    "A stack of layers is sharded along the layers, and the loop over them first gathers all.",
    r"(gathered before a loop|avoidable communication|repeated work): .*(layer|loop|scan)",
    row="all-gather.*(scan|loop)",
)
def sharded_layers():
    mesh = grid((8,), ("layers",))

    def step(w, x):
        def loss(w):
            hidden = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0]
            return jnp.mean(hidden**2)

        return w - 0.1 * jax.grad(loss)(w)

    w = struct(mesh, (16, 128, 128), "layers")
    f = jax.jit(step, donate_argnums=0, out_shardings=w.sharding)
    return f, (w, struct(mesh, (512, 128), "layers"))


@public(
    "jax-ml/jax#23052",
    "An update at a static slice of a sharded array gathers it, where one at computed indices does "
    "not.",
    r"(indices gathered|avoidable communication): .*(static|constant|fixed|known)",
    row="all-gather|collective-permute",
)
def static_update():
    mesh = grid((8,), ("data",))

    def write(x, updates):
        return x.at[0:3].set(updates)

    arguments = struct(mesh, (64, 4096), "data"), struct(mesh, (3, 4096))
    return jax.jit(write, donate_argnums=0, out_shardings=arguments[0].sharding), arguments


@public(
    "jax-ml/jax#13087",
    "A large sharded matrix is copied to every device, and each of them computes the whole "
    "decomposition.",
    r"(repeated work|avoidable communication): .*(svd|eigh)",
    row="all-gather.*(svd|eigh)",
)
def whole_decomposition():
    mesh = grid((8,), ("x",))
    f = jax.jit(lambda m: jnp.linalg.eigh(m)[0])
    return f, (struct(mesh, (256, 256), "x"),)


@public(
    "Physical-Intelligence/openpi#112",
    "Weights that a callback loads while the state is made arrive on one device and are sent to "
    "all; XLA warns of a full rematerialisation from a maximal sharding.",
    r"avoidable communication: .*callback",
    row="callback",
)
def weights_from_the_host():
    mesh = grid((8,), ("fsdp",))

    def load(seed):
        return np.zeros((512, 512), np.float32) + np.asarray(seed)

    def init(seed):
        w = jax.pure_callback(load, jax.ShapeDtypeStruct((512, 512), jnp.float32), seed)
        return {"params": w, "moments": jnp.zeros_like(w)}

    layout = NamedSharding(mesh, P("fsdp"))
    f = jax.jit(init, out_shardings={"params": layout, "moments": layout})
    return f, (struct(mesh, ()),)


@public(
    "jax-ml/jax#15895",
    "With dropout, data-parallel training on two devices is slower than on one.",
    r"avoidable communication: .*random numbers.*jax_threefry_partitionable",
    row="random",
)
def training_with_dropout():
    mesh = grid((8,), ("data",))

    def step(w, key, x):
        def loss(w):
            hidden = x
            for n in range(2):
                mask = jax.random.bernoulli(jax.random.fold_in(key, n), 0.9, hidden.shape)
                hidden = jnp.where(mask, jnp.tanh(hidden @ w), 0)
            return jnp.mean(hidden**2)

        return w - 0.1 * jax.grad(loss)(w)

    arguments = struct(mesh, (64, 64)), struct(mesh, (2,), dtype="uint32")
    arguments = *arguments, struct(mesh, (8192, 64), "data")
    return jax.jit(step, donate_argnums=0), arguments, jax.threefry_partitionable(False)


@public(
    "vllm-project/tpu-inference#3435",
    "The output of the shared expert is a partial sum over `model`, and is added to the finished "
    "sum of the routed experts: garbled text, and no error.",
    r"replicated but different: .* along model",
)
def partial_sum_of_shared_expert():
    mesh = grid((4, 2), ("attn_dp", "model"))

    def experts(x, shared_up, shared_down, up, down):
        shared = jax.nn.silu(x @ shared_up) @ shared_down
        routed = lax.psum(jax.nn.silu(x @ up) @ down, "model")
        return shared + routed

    columns, rows, batch = P(None, "model"), P("model", None), P("attn_dp")
    mapped = jax.shard_map(
        experts,
        mesh=mesh,
        in_specs=(batch, columns, rows, columns, rows),
        out_specs=batch,
        check_vma=False,
    )
    up = struct(mesh, (1024, 2048), None, "model", dtype="bfloat16")
    down = struct(mesh, (2048, 1024), "model", dtype="bfloat16")
    x = struct(mesh, (256, 1024), "attn_dp", dtype="bfloat16")
    return jax.jit(mapped), (x, up, down, up, down)


@public(
    "huggingface/transformers#19494",
    "Each device divides its loss by the tokens of its own mask, and `pmean` takes the mean of the "
    "quotients: not the loss of the whole batch.",
    r"mean of quotients: .* along batch",
    row="all-reduce",
)
def mean_of_means():
    mesh = grid((8,), ("batch",))

    def loss(params, x, labels, mask):
        logits = jnp.tanh(x @ params["up"]) @ params["down"]
        logs = jax.nn.log_softmax(logits)
        each = -jnp.take_along_axis(logs, labels[..., None], -1)[..., 0]
        return (each * mask).sum() / mask.sum()

    def step(params, x, labels, mask):
        value, grads = jax.value_and_grad(loss)(params, x, labels, mask)
        value, grads = lax.pmean((value, grads), "batch")
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), value

    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(P(), P("batch"), P("batch"), P("batch")),
        out_specs=(P(), P()),
        check_vma=False,
    )
    params = {"up": struct(mesh, (256, 1024)), "down": struct(mesh, (1024, 4096))}
    return jax.jit(mapped, donate_argnums=0), (
        params,
        struct(mesh, (32, 128, 256), "batch"),
        struct(mesh, (32, 128), "batch", dtype="int32"),
        struct(mesh, (32, 128), "batch"),
    )


@public(
    "goodfire-ai/spd#978",
    "In Muon's Newton-Schulz iterations devices add up the products of sharded matrices and all "
    "compute their squares; whole matrices, divided among the devices, make a step 3.3 times as "
    "fast.",
    r"repeated work: .*product.*(fsdp|replicate)",
    row="all-reduce.*contracting",
)
def newton_schulz():
    mesh = grid((2, 4), ("replicate", "fsdp"))

    def orthogonal(x):
        x = x / (jnp.linalg.norm(x) + 1e-6)
        for _ in range(5):
            a = x @ x.T
            x = 3.44 * x + (-4.775 * a + 2.03 * (a @ a)) @ x
        return x

    def update(w, m, g):
        m = jax.tree.map(lambda m, g: 0.95 * m + g, m, g)
        return jax.tree.map(lambda w, m: w - 0.02 * orthogonal(m), w, m), m

    w = {f"w{n}": struct(mesh, (512, 1024), None, ("replicate", "fsdp")) for n in range(4)}
    layouts = jax.tree.map(lambda a: a.sharding, w)
    f = jax.jit(update, donate_argnums=(0, 1), out_shardings=(layouts, layouts))
    return f, (w, w, w)


@public(
    "openxla/xla#34710",
    "Arrays that are concatenated along the dimension in shards cost a collective each; a "
    "shard_map in which each device concatenates its own shards needs none.",
    r"(avoidable communication|many small collectives|stored in other shards): .*concat",
    row="(all-to-all|collective-permute|all-gather).*concat",
)
def concatenated_shards():
    mesh = grid((8,), ("data",))

    def joined(ws):
        return jnp.concatenate(ws) * 2

    ws = [struct(mesh, (256, 512), "data") for _ in range(12)]
    return jax.jit(joined, out_shardings=ws[0].sharding), (ws,)


@public(
    "OpenSourceEconomics/pylcm#370",
    "An axis in shards is also computed in batches, by a loop, so each batch has collectives; "
    "devices that compute all of their shards at once need none.",
    r"(avoidable communication|gathered in a loop): .*(loop|scan|map|batch)",
    row="all-gather.*(scan|loop)",
)
def batches_of_a_sharded_axis():
    mesh = grid((8,), ("types",))

    def bellman(v, w):
        c = jnp.linspace(0.01, 1, 64)
        u = jnp.log(c * (w[:, None] + 1e-3))
        return jnp.max(u + 0.95 * v[:, None] * (1 - c), -1)

    def solve(v, wealth):
        def period(v, _):
            v = lax.map(lambda a: bellman(*a), (v, wealth), batch_size=8)
            return v, jnp.isnan(v).any()

        v, are_nan = lax.scan(period, v, None, length=10)
        return v, are_nan.any()

    v = struct(mesh, (64, 512), "types")
    return jax.jit(solve, donate_argnums=0, out_shardings=(v.sharding, None)), (v, v)


@public(
    "marin-community/marin#7932",
    "The shard_map of a mixture of experts has the spec of the batch, without the axis of the "
    "experts, so all of its devices send and compute the same tokens.",
    r"(repeated work|data without an axis): .*along expert",
    row="all-to-all.*expert",
)
def tokens_without_the_axis_of_experts():
    mesh = grid((2, 4), ("data", "expert"))
    width, experts, slots = 128, 8, 64

    def mixture(w, x, chosen):
        one = jax.nn.one_hot(chosen, experts, dtype=x.dtype)
        slot = ((jnp.cumsum(one, 0) - 1) * one).sum(-1).astype("int32")
        slot = jax.nn.one_hot(slot, slots, dtype=x.dtype)
        sent = jnp.einsum("be,bc,bd->ecd", one, slot, x)
        sent = lax.all_to_all(sent, "expert", 0, 1, tiled=True)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", sent, w["up"]))
        back = jnp.einsum("ecf,efd->ecd", hidden, w["down"])
        back = lax.all_to_all(back, "expert", 1, 0, tiled=True)
        return jnp.einsum("be,bc,ecd->bd", one, slot, back)

    f = jax.shard_map(
        mixture,
        mesh=mesh,
        in_specs=(P("expert"), P("data"), P("data")),
        out_specs=P("data"),
        check_vma=False,
    )
    w = {
        "up": struct(mesh, (experts, width, 512), "expert"),
        "down": struct(mesh, (experts, 512, width), "expert"),
    }
    x, chosen = struct(mesh, (1024, width), "data"), struct(mesh, (1024,), "data", dtype="int32")
    return jax.jit(lambda w, x, chosen: x + f(w, x, chosen), donate_argnums=1), (w, x, chosen)


@public(
    "AI-Hypercomputer/maxtext#1445",
    "For context parallelism a `take` in each step reorders the sequence, which is in shards, so "
    "that it is gathered; the data can be reordered before they are sharded.",
    r"(indices gathered|avoidable communication|gathered before an index): "
    r".*(index|indices|take|permut)",
    row="all-gather.*(index|context)",
)
def reordered_context():
    mesh = grid((2, 4), ("data", "context"))
    chunks = np.arange(1024).reshape(8, 128)
    order = np.concatenate([chunks[n] for half in range(4) for n in (half, 7 - half)])

    def on(x, *spec):
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def attend(w, x, positions):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, w[n]) for n in "qkv")
        q, k, v = (on(a, "data", "context") for a in (q, k, v))
        q, k, v = (on(jnp.take(a, order, axis=1), "data", "context") for a in (q, k, v))
        positions = jnp.take(positions, order)
        k, v, others = on(k, "data"), on(v, "data"), on(positions)
        scores = jnp.einsum("bthk,bshk->bhts", q, k)
        scores = jnp.where(positions[:, None] >= others, scores, -1e9)
        mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), v)
        return on(jnp.einsum("bthk,hkd->btd", mixed, w["o"]), "data", "context")

    w = {n: struct(mesh, (128, 8, 16)) for n in "qkv"} | {"o": struct(mesh, (8, 16, 128))}
    x = struct(mesh, (8, 1024, 128), "data", "context")
    return jax.jit(attend), (w, x, struct(mesh, (1024,), "context", dtype="int32"))
