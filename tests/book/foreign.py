"""Models that are not in the book, in its recipes' frame: python foreign.py NAME FOLDER STEPS.

Each trains in bfloat16 with float32 parameters, donates its state, and goes on from its newest
checkpoint on any number of devices. `unet` puts its own model, loss, batches and rules in the place
of train.py's; `gru` is an Equinox model with a carry; `llama` adapts queries and values of weights
in fused bfloat16 files, which recipes/load.py loads.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "book" / "recipes"))

import equinox as eqx
import jax
import jax.numpy as jnp
import load
import numpy as np
import optax
import orbax.checkpoint as ocp
import train
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from safetensors.numpy import save_file

from shardlab import apply_rules, export_weights, paths_of, shardings, stored_bytes, target
from shardlab.cluster.join import restore_newest

LOW = jnp.bfloat16


class Block(nnx.Module):
    """A block of a U-Net, which also gets the time."""

    def __init__(self, channels, out, rngs):
        self.norm = nnx.GroupNorm(channels, 4, dtype=LOW, rngs=rngs)
        self.mix = nnx.Conv(channels, out, (3, 3), dtype=LOW, rngs=rngs)
        self.time = nnx.Linear(8, out, dtype=LOW, rngs=rngs)

    def __call__(self, x, time):
        return nnx.silu(self.mix(self.norm(x)) + self.time(time)[:, None, None])


class UNet(nnx.Module):
    """The noise in images of three channels; its own stream draws the noise of the loss."""

    def __init__(self, rngs):
        self.first = nnx.Conv(3, 16, (3, 3), dtype=LOW, rngs=rngs)
        self.down = Block(16, 16, rngs)
        self.halve = nnx.Conv(16, 32, (3, 3), strides=2, dtype=LOW, rngs=rngs)
        self.middle = Block(32, 32, rngs)
        self.double = nnx.ConvTranspose(32, 16, (2, 2), strides=2, dtype=LOW, rngs=rngs)
        self.up = Block(32, 16, rngs)
        self.last = nnx.Conv(16, 3, (3, 3), dtype=LOW, rngs=rngs)
        self.noise = rngs.noise.fork()

    def __call__(self, x, time):
        time = jnp.sin(time[:, None] * 2.0 ** jnp.arange(8))
        x = kept = self.down(self.first(x), time)
        x = self.double(self.middle(self.halve(x), time))
        return self.last(self.up(jnp.concatenate([x, kept], -1), time)).astype(jnp.float32)


def noise_loss(model, images):
    """The error of the noise that the network finds in noisy images."""
    time = jax.random.uniform(model.noise(), images.shape[:1])
    noise = jax.random.normal(model.noise(), images.shape)
    share = time[:, None, None, None]
    found = model(images * (1 - share) + noise * share, time)
    return jnp.mean((found - noise) ** 2), {}


def images_of(first, end):
    """Smooth images by their numbers."""
    waves = [np.random.default_rng(row).normal(size=(1, 1, 3)) * 3 for row in range(first, end)]
    waves = np.array(waves)
    grid = np.linspace(0, 1, 8)
    return np.sin(waves * (grid[:, None, None] + grid[:, None])).astype(np.float32)


def unet(folder, steps):
    """train.py with another model: five names of its top are replaced."""
    train.new = lambda: UNet(nnx.Rngs(params=0, noise=1))
    train.loss_of, train.rows_of, train.BATCH = noise_loss, images_of, 16
    train.RULES = [
        (r"(first|mix|halve)/kernel", P(None, None, None, "data")),
        (r"double/kernel", P(None, None, "data")),
        (r"", P()),  # the rest; three output channels cannot be divided
    ]
    train.main(folder, steps)


def trained(folder, steps, mesh, create, rules, step, batch_of):
    """A run that saves every tenth step; `step` gets the state, which it donates, and a batch."""
    shapes = jax.eval_shape(create)
    applied = apply_rules(rules, shapes)
    assert not applied.unmatched and not applied.idle, applied
    goal, layout = target(shapes, applied.specs, mesh), shardings(applied.specs, mesh)
    step = jax.jit(step, donate_argnums=0, out_shardings=(layout, None))
    handler, options = ocp.StandardCheckpointHandler(), ocp.CheckpointManagerOptions(10)
    with ocp.CheckpointManager(folder, item_handlers=handler, options=options) as manager:
        last, state = restore_newest(manager, goal)
        state = state or jax.jit(create, out_shardings=layout)()
        rows = NamedSharding(mesh, P("data"))
        memory = step.lower(state, jax.device_put(batch_of(0), rows)).compile().memory_analysis()
        assert memory.alias_size_in_bytes >= 0.99 * stored_bytes(state)
        for number in range(last + 1, steps + 1):
            state, value = step(state, jax.device_put(batch_of(number), rows))
            print(f"step {number}: loss {value:.6f}", flush=True)
            manager.save(number, args=ocp.args.StandardSave(state), force=number == steps)


def waves(step):
    """The window of a step, [16, 12, 8]: the next part of the same long waves."""
    speeds = np.random.default_rng(0).uniform(0.2, 1, (16, 1, 8))
    return np.sin(speeds * np.arange(12 * step, 12 * step + 12)[:, None]).astype(np.float32)


def gru(folder, steps):
    """A GRU of Equinox, whose carry goes from window to window and into the checkpoint."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    adam = optax.adam(1e-2)

    def build():
        return eqx.nn.GRUCell(8, 8, key=jax.random.key(0))

    def create():
        weights = eqx.filter(build(), eqx.is_array)
        return {"weights": weights, "adam": adam.init(weights), "carry": jnp.zeros((16, 8))}

    def loss(weights, carry, xs):
        cell = eqx.combine(jax.tree.map(lambda a: a.astype(LOW), weights), static)
        xs = xs.astype(LOW).swapaxes(0, 1)

        def one(h, x):
            h = jax.vmap(cell)(x, h)
            return h, h

        carry, states = jax.lax.scan(one, carry.astype(LOW), xs[:-1])
        return jnp.mean((states - xs[1:]).astype(jnp.float32) ** 2), carry.astype(jnp.float32)

    def step(state, xs):
        found = jax.value_and_grad(loss, has_aux=True)(state["weights"], state["carry"], xs)
        (value, carry), gradient = found
        updates, moments = adam.update(gradient, state["adam"], state["weights"])
        weights = optax.apply_updates(state["weights"], updates)
        return {"weights": weights, "adam": moments, "carry": carry}, value

    static = eqx.partition(build(), eqx.is_array)[1]
    rules = [(r"weight_", P(None, "data")), (r"carry", P("data")), (r"", P())]
    trained(folder, steps, mesh, create, rules, step, waves)


CONFIG = load.Config(2, 32, 8, 2, 4, 64, 40, 1e-5, 500.0, False)


class Adapted(nnx.Module):
    """A layer whose result gets LoRA's product added, whatever its shape."""

    def __init__(self, base, shape, rngs):
        self.base, self.shape = base, shape
        self.lora = nnx.LoRA(CONFIG.model, 4, int(np.prod(shape)), dtype=LOW, rngs=rngs)

    def __call__(self, x):
        return self.base(x) + self.lora(x).reshape(*x.shape[:-1], *self.shape)


class AdaptedLayer(load.Layer):
    """A layer of load.py with adapters at queries and values."""

    def __init__(self, c, dtype, rngs):
        super().__init__(c, dtype, rngs)
        self.query = Adapted(self.query, (c.heads, c.head), rngs)
        self.value = Adapted(self.value, (c.groups, c.head), rngs)


def tokens_of(step):
    """Sequences in which each token is the one before plus three."""
    first = np.random.default_rng(step).integers(0, CONFIG.vocabulary, (16, 1))
    return (first + 3 * np.arange(12)) % CONFIG.vocabulary


def write_weights(folder):
    """The files of a random model, fused and in bfloat16."""
    llama = nnx.state(load.Llama(CONFIG, LOW, rngs=nnx.Rngs(0)), nnx.Param)
    table = load.table_of(CONFIG, ["qkv_proj.weight"])
    folder.mkdir(parents=True, exist_ok=True)
    files = {n: np.ascontiguousarray(a) for n, a in export_weights(table, llama).items()}
    save_file(files, folder / "model.safetensors")


def llama(folder, steps):
    """LoRA over a frozen base, which is loaded onto this run's mesh."""
    count = jax.device_count()
    mesh = jax.make_mesh(
        (max(count // 2, 1), min(count, 2)), ("data", "model"), axis_types=(AxisType.Auto,) * 2
    )
    write_weights(folder / "weights")
    load.config_of = lambda folder: CONFIG
    adam = optax.adam(1e-2)
    make = lambda: load.Llama(CONFIG, LOW, rngs=nnx.Rngs(0), layer=AdaptedLayer)  # noqa: E731
    graph, _, of_base = nnx.split(nnx.eval_shape(make), nnx.LoRAParam, nnx.Param)

    def create():
        lora = nnx.state(make(), nnx.LoRAParam)
        return {"lora": lora, "adam": adam.init(lora)}

    with jax.set_mesh(mesh):
        state = nnx.state(load.load(folder / "weights", mesh)[1])
        arrays = dict(zip(paths_of(state), jax.tree.leaves(state), strict=True))
        base = [arrays[path.replace("base/", "")] for path in paths_of(of_base)]
        base = jax.tree.unflatten(jax.tree.structure(of_base), base)

        def loss(lora, tokens):
            logits = nnx.merge(graph, lora, base, copy=True)(tokens[:, :-1]).astype(jnp.float32)
            of = optax.softmax_cross_entropy_with_integer_labels
            return of(logits, tokens[:, 1:]).mean()

        def step(state, tokens):
            value, gradient = jax.value_and_grad(loss)(state["lora"], tokens)
            updates, moments = adam.update(gradient, state["adam"], state["lora"])
            return {"lora": optax.apply_updates(state["lora"], updates), "adam": moments}, value

        rules = [(r"lora_b", P(None, None, "model")), (r"lora_a|count", P())]
        before = jax.device_get(base)
        trained(folder / "run", steps, mesh, create, rules, step, tokens_of)
        assert all(map(np.array_equal, *map(jax.tree.leaves, (before, jax.device_get(base)))))
        assert {a.dtype for a in jax.tree.leaves(base)} == {jnp.dtype(LOW)}


if __name__ == "__main__":
    run = {"unet": unet, "gru": gru, "llama": llama}[sys.argv[1]]
    run(Path(sys.argv[2]).absolute(), int(sys.argv[3]))
