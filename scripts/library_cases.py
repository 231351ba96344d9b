"""Small programs of libraries, each run on one device, on Auto and on Explicit mesh axes.

record_libraries.py runs this file with the Python of an environment in which the libraries are:

    python scripts/library_cases.py Optax Haliax:1

and reads a line of JSON for each case, here for all of Optax and for the second of Haliax. The
programs know nothing of the book: JAX, NumPy and the library are all that they need, on eight
devices that the CPU emulates.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np

BATCH, WIDTH, HIDDEN = 16, 8, 32
MODES = ("Auto", "Explicit")
TOLERANCE = 1e-4  # of the largest element


@dataclass(frozen=True)
class Case:
    """A program of a library.

    Attributes:
      package: as the package index calls it.
      does: what the program does, as the table says it.
      program: takes a mesh with the axes data and model, and returns arrays.
      needs: further packages, and bounds.
    """

    package: str
    does: str
    program: Callable
    needs: tuple[str, ...] = ()


def put(mesh, array, *spec):
    """An array on the mesh."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))


def data(mesh):
    """A batch of inputs and targets, sharded along `data`."""
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH, WIDTH)).astype(np.float32)
    return put(mesh, x, "data"), put(mesh, np.sin(x), "data")


def weights():
    """The two matrices of an MLP."""
    random = np.random.default_rng(1)
    up = 0.3 * random.normal(size=(WIDTH, HIDDEN))
    down = 0.3 * random.normal(size=(HIDDEN, WIDTH))
    return {"up": up.astype(np.float32), "down": down.astype(np.float32)}


def two_steps(loss, model, *batch):
    """Two steps of gradient descent; returns the model and the losses."""
    import jax

    @jax.jit
    def step(model, *batch):
        value, slopes = jax.value_and_grad(loss)(model, *batch)
        return jax.tree.map(lambda w, slope: w - 0.1 * slope, model, slopes), value

    model, first = step(model, *batch)
    model, second = step(model, *batch)
    return model, first, second


def flax_nnx(mesh, sharded=False):
    """Two layers; if their matrices are sharded, the second one says what it returns."""
    import jax
    from flax import nnx
    from jax.sharding import PartitionSpec as P

    specs = (("up", (None, "model")), ("down", ("model", None)))
    layers = {}
    for name, spec in specs:
        layers[name] = nnx.Linear(*weights()[name].shape, use_bias=False, rngs=nnx.Rngs(0))
        layers[name].kernel = nnx.Param(put(mesh, weights()[name], *(spec if sharded else ())))
    graph, state = nnx.split(nnx.Dict(layers))
    out = P("data", None) if sharded and "Explicit" in str(mesh.axis_types) else None

    def loss(state, x, y):
        model = nnx.merge(graph, state)
        found = model["down"](jax.nn.relu(model["up"](x)), out_sharding=out)
        return ((found - y) ** 2).mean()

    return two_steps(loss, state, *data(mesh))


def flax_linen(mesh, sharded=False):
    """As `flax_nnx`, with Linen's Dense, which has no such argument."""
    import flax.linen as nn
    import jax

    model = nn.Sequential(
        [nn.Dense(HIDDEN, use_bias=False), jax.nn.relu, nn.Dense(WIDTH, use_bias=False)]
    )
    up, down = ((None, "model"), ("model", None)) if sharded else ((), ())
    kernels = {
        "layers_0": {"kernel": put(mesh, weights()["up"], *up)},
        "layers_2": {"kernel": put(mesh, weights()["down"], *down)},
    }

    def loss(kernels, x, y):
        return ((model.apply({"params": kernels}, x) - y) ** 2).mean()

    return two_steps(loss, kernels, *data(mesh))


def equinox(mesh, sharded=False):
    """Two Linear layers under `vmap`; Equinox stores matrices transposed."""
    import equinox as eqx
    import jax

    def layer(name, spec):
        matrix = weights()[name].T
        empty = eqx.nn.Linear(*matrix.shape[::-1], use_bias=False, key=jax.random.key(0))
        placed = put(mesh, matrix, *(spec if sharded else ()))
        return eqx.tree_at(lambda one: one.weight, empty, placed)

    model = layer("up", ("model",)), layer("down", (None, "model"))
    arrays, rest = eqx.partition(model, eqx.is_array)

    def loss(arrays, x, y):
        up, down = eqx.combine(arrays, rest)
        found = jax.vmap(lambda one: down(jax.nn.relu(up(one))))(x)
        return ((found - y) ** 2).mean()

    return two_steps(loss, arrays, *data(mesh))


def optax(mesh):
    """AdamW with a clipped norm, on matrices that are sharded."""
    import jax
    import jax.numpy as jnp
    import optax

    rows = np.split(weights()["up"], 2)
    parameters = {
        "whole": put(mesh, rows[0]),
        "sharded": put(mesh, rows[1], None, "model"),
        "twice": put(mesh, weights()["down"], "model", "data"),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1))

    @jax.jit
    def step(parameters, state):
        slopes = jax.tree.map(jnp.sin, parameters)
        updates, state = optimizer.update(slopes, state, parameters)
        return optax.apply_updates(parameters, updates), state

    state = optimizer.init(parameters)
    for _ in range(2):
        parameters, state = step(parameters, state)
    return parameters


def orbax(mesh):
    """Save sharded arrays, and restore them to the shardings that they had."""
    import jax
    import orbax.checkpoint as ocp

    state = {
        "up": put(mesh, weights()["up"], "data", "model"),
        "down": put(mesh, weights()["down"]),
    }
    with TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/state", state)
        checkpointer.wait_until_finished()
        abstract = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state
        )
        restored = checkpointer.restore(f"{folder}/state", abstract)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        assert jax.typeof(one) == jax.typeof(other), f"{jax.typeof(one)}: {jax.typeof(other)}"
    return restored


def grain(mesh):
    """Batches of a data set, placed on the mesh, and a sum of each."""
    import grain
    import jax

    source = np.arange(4 * BATCH, dtype=np.float32)[:, None] * np.ones(WIDTH, np.float32)
    batches = grain.MapDataset.source(source).shuffle(seed=0).batch(BATCH)
    add = jax.jit(lambda batch: (batch**2).sum(0))
    return [add(put(mesh, batch, "data")) for batch in batches]


def blackjax(mesh):
    """HMC of a regression whose observations are sharded; eight chains under `vmap`."""
    import blackjax
    import jax
    import jax.numpy as jnp

    x, y = data(mesh)

    def logdensity(w):
        return -((x @ w - y[:, 0]) ** 2).sum() - (w**2).sum()

    hmc = blackjax.hmc(logdensity, 0.01, jnp.ones(WIDTH), 5)
    states = jax.vmap(hmc.init)(put(mesh, np.zeros((8, WIDTH), np.float32)))
    step = jax.jit(jax.vmap(hmc.step))
    for key in jax.random.split(jax.random.key(0), 2):
        states, _ = step(jax.random.split(key, 8), states)
    return states.position


def numpyro(mesh):
    """HMC's kernel of the same regression as a model; one chain."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.distributions import Normal
    from numpyro.infer import HMC

    x, y = data(mesh)

    def model(x, y):
        w = numpyro.sample("w", Normal(jnp.zeros(WIDTH), 1).to_event(1))
        numpyro.sample("y", Normal(x @ w, 1), obs=y)

    kernel = HMC(model, step_size=0.01, adapt_step_size=False, num_steps=5)
    state = kernel.init(jax.random.key(0), 0, {"w": jnp.zeros(WIDTH)}, (x, y[:, 0]), {})
    step = jax.jit(lambda state: kernel.sample(state, (x, y[:, 0]), {}))
    return step(step(state)).z


def diffrax(mesh):
    """A van der Pol equation for each row of a batch, with adaptive steps, under `vmap`."""
    import diffrax
    import jax
    import jax.numpy as jnp

    def field(t, y, args):
        return jnp.stack([y[1], (1 - y[0] ** 2) * y[1] - y[0]])

    @jax.jit
    @jax.vmap
    def solve(start):
        control = diffrax.PIDController(rtol=1e-5, atol=1e-5)
        term, solver = diffrax.ODETerm(field), diffrax.Tsit5()
        solution = diffrax.diffeqsolve(
            term, solver, 0.0, 2.0, 0.1, start, stepsize_controller=control
        )
        return solution.ys[-1]

    return solve(data(mesh)[0][:, :2])


def haliax(mesh):
    """Two layers with named axes."""
    import haliax as names
    import jax

    batch, inner, hidden = (
        names.Axis(name, size)
        for name, size in (("batch", BATCH), ("inner", WIDTH), ("hidden", HIDDEN))
    )
    x, y = data(mesh)
    model = {
        "up": names.named(put(mesh, weights()["up"]), (inner, hidden)),
        "down": names.named(put(mesh, weights()["down"]), (hidden, inner)),
    }

    def loss(model, x, y):
        h = names.nn.relu(names.dot(x, model["up"], axis=inner))
        found = names.dot(h, model["down"], axis=hidden)
        return names.mean((found - y) ** 2).array

    x, y = names.named(x, (batch, inner)), names.named(y, (batch, inner))
    model, first, second = two_steps(loss, model, x, y)
    return jax.tree.leaves((model, first, second))


def tokamax(mesh):
    """Attention by its XLA implementation, with batch and heads sharded."""
    import jax
    import tokamax

    random = np.random.default_rng(2)
    q, k, v = (
        put(mesh, random.normal(size=(8, 16, 4, 8)).astype(np.float32), "data", None, "model")
        for _ in range(3)
    )

    def loss(q, k, v):
        found = tokamax.dot_product_attention(q, k, v, is_causal=True, implementation="xla")
        return (found**2).mean()

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, k, v)


def easydel(mesh):
    """The logits of a Llama of two layers, on a mesh whose axes EasyDeL names."""
    import easydel
    import jax
    from flax import nnx

    sizes = mesh.shape["data"], 1, 1, mesh.shape["model"], 1
    axes, kinds = ("dp", "fsdp", "ep", "tp", "sp"), 5 * mesh.axis_types[:1]
    own = jax.make_mesh(sizes, axes, axis_types=kinds, devices=mesh.devices.ravel())
    config = easydel.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        sharding_axis_dims=sizes,
    )
    config.set_model_mesh(own)
    kind = {"dtype": np.float32, "param_dtype": np.float32}
    with own, jax.set_mesh(own):
        model = easydel.LlamaForCausalLM(config, **kind, rngs=nnx.Rngs(0))
        graph, state = nnx.split(model)
        tokens = np.arange(BATCH * WIDTH, dtype=np.int32).reshape(BATCH, WIDTH) % 64
        run = jax.jit(lambda state, tokens: nnx.merge(graph, state)(tokens).logits)
        return run(state, put(own, tokens, "dp"))


STEPS = "two training steps of an MLP, the batch sharded"
TENSOR = "the same, the weights sharded too"
CASES = {
    "Flax NNX": (
        Case("flax", STEPS, flax_nnx),
        Case("flax", f"{TENSOR}, with `out_sharding=`", partial(flax_nnx, sharded=True)),
    ),
    "Flax Linen": (
        Case("flax", STEPS, flax_linen),
        Case("flax", TENSOR, partial(flax_linen, sharded=True)),
    ),
    "Equinox": (
        Case("equinox", STEPS, equinox),
        Case("equinox", TENSOR, partial(equinox, sharded=True)),
    ),
    "Optax": (Case("optax", "two steps of AdamW with clipping, the parameters sharded", optax),),
    "Orbax": (
        Case("orbax-checkpoint", "sharded arrays saved, and restored with their types", orbax),
    ),
    "Grain": (Case("grain", "batches placed on the mesh and summed", grain),),
    "BlackJAX": (Case("blackjax", "HMC, the observations sharded, chains in `vmap`", blackjax),),
    "NumPyro": (Case("numpyro", "HMC, the observations sharded", numpyro),),
    "Diffrax": (Case("diffrax", "a solver with adaptive steps, the batch sharded", diffrax),),
    # of the releases that are not called development, the last does not import with a JAX of 2026
    "Haliax": (
        Case("haliax", STEPS, haliax, ("haliax>=1.4.dev0",)),
        Case("haliax", f"{STEPS}; JAX 0.10", haliax, ("haliax>=1.4.dev0", "jax<0.11")),
    ),
    "tokamax": (Case("tokamax", "attention in XLA, batch and heads sharded", tokamax),),
    "EasyDeL": (Case("easydel", "a Llama of two layers, the batch sharded", easydel, ("pillow",)),),
}


def result(program, mode, expected=None):
    """What a program returns in a mode, as NumPy arrays; `expected` is what one device returns.

    Returns:
      The arrays, and "equal", "differs by ..." or the first line of the error.
    """
    import jax
    from jax.sharding import AxisType

    shape = (4, 2) if expected is not None else (1, 1)
    devices = jax.devices()[: shape[0] * shape[1]]
    kind = getattr(AxisType, mode)
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(kind, kind), devices=devices)
    try:
        with jax.set_mesh(mesh):
            found = [np.asarray(leaf) for leaf in jax.tree.leaves(program(mesh))]
    except Exception as error:
        while error.__cause__ and "Jax" not in type(error.__cause__).__name__:
            error = error.__cause__
        first = re.sub(r"/\S*/site-packages/", "", str(error)).strip().partition("\n")[0].strip()
        return None, f"{type(error).__name__}: {first}"
    if expected is None:
        return found, "equal"
    scale = [max(1e-30, np.abs(one).max()) for one in expected]
    apart = max(
        np.abs(one - other).max() / size
        for one, other, size in zip(found, expected, scale, strict=True)
    )
    return found, "equal" if apart < TOLERANCE else f"differs by {apart:.1g}"


def outcomes(case):
    """What becomes of a case in each mode, by mode."""
    reference, said = result(case.program, "Auto")
    if reference is None:
        return dict.fromkeys(MODES, f"on one device, too: {said}")
    return {mode: result(case.program, mode, reference)[1] for mode in MODES}


def main():
    """Run the cases of the libraries that are named, and print a line of JSON for each."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    from importlib.metadata import version

    for name in sys.argv[1:]:
        library, _, which = name.partition(":")
        for case in CASES[library][int(which) :][:1] if which else CASES[library]:
            versions = {"version": version(case.package), "jax": version("jax")}
            line = {"library": library, "does": case.does, **versions, **outcomes(case)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
