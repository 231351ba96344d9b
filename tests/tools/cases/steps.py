"""Training and decoding steps of a small transformer that are correct, and the same with one
mistake: what `explain` should say of them is known.

Each function of `CORRECT` and `MISTAKES` returns a jitted function and its arguments, which need no
memory; of `CORRECT` also the mesh that is to be set, or None.
"""

import functools
import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import Pod

D, F, LAYERS, V, B, T, HEADS = 128, 512, 3, 512, 32, 32, 8
SHAPES = {
    "norm": (D,), "q": (D, HEADS, D // HEADS), "k": (D, HEADS, D // HEADS),
    "v": (D, HEADS, D // HEADS), "o": (HEADS, D // HEADS, D), "up": (D, F), "down": (F, D),
}  # fmt: skip
CORRECT, MISTAKES = {}, {}


def pod_of(backend):
    """The pod whose compiler to ask; None for that of CPUs."""
    if backend == "cpu":
        return None
    if Pod(backend).compiler is None:
        pytest.skip("no compiler for TPUs is installed")
    return Pod(backend)


def line(function, text):
    """The place of a line of a test's function as reports name it, "test_specs.py:81"."""
    lines, first = inspect.getsourcelines(function)
    number = first + next(n for n, one in enumerate(lines) if text in one)
    return f"{Path(inspect.getsourcefile(function)).name}:{number}"


def correct(f):
    CORRECT[f.__name__] = f
    return f


def mistake(title, *words):
    """Marks a step whose first finding has a title and words."""

    def mark(f):
        MISTAKES[f.__name__] = f, title, words
        return f

    return mark


def grid(shape, axes, types=AxisType.Auto):
    return jax.make_mesh(shape, axes, axis_types=(types,) * len(axes))


def struct(mesh, shape, *spec, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def free(x, *names):
    """No constraint."""
    return x


def constraining(mesh):
    def constrain(x, *names):
        names = [name if name in mesh.axis_names else None for name in names]
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*names)))

    return constrain


def normalised(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def block(x, w, constrain):
    h = normalised(x, w["norm"])
    q, k, v = (jnp.einsum("btd,dhk->bthk", h, w[n]) for n in "qkv")
    q, k, v = (constrain(a, "data", None, "model", None) for a in (q, k, v))
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / 4
    scores = jnp.where(jnp.tril(jnp.ones((T, T), bool)), scores, -1e9)
    mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), v)
    x = x + constrain(jnp.einsum("bthk,hkd->btd", mixed, w["o"]), "data", None, None)
    h = constrain(jax.nn.gelu(normalised(x, w["norm"]) @ w["up"]), "data", None, "model")
    return x + constrain(h @ w["down"], "data", None, None)


def forward(params, tokens, constrain=free, remat=False, dtype=None):
    cast = (lambda a: a.astype(dtype)) if dtype else lambda a: a
    x = constrain(cast(params["embed"])[tokens], "data", None, None)
    layer = functools.partial(block, constrain=constrain)
    layer = jax.checkpoint(layer) if remat else layer
    x, _ = lax.scan(lambda x, w: (layer(x, jax.tree.map(cast, w)), None), x, params["layers"])
    return constrain(x @ cast(params["out"]), "data", None, "model")


def loss(params, tokens, **options):
    logits = forward(params, tokens[:, :-1], **options).astype("float32")
    wanted = jnp.where(jnp.arange(V) == tokens[:, 1:, None], logits, 0).sum(-1)
    return jnp.mean(jax.nn.logsumexp(logits, -1) - wanted)


def adam(state, tokens, loss=loss, **options):
    value, grads = jax.value_and_grad(loss)(state["params"], tokens, **options)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], grads)
    second = jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g * g, state["second"], grads)
    params = jax.tree.map(
        lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), state["params"], first, second
    )
    new = {"params": params, "first": first, "second": second, "step": state["step"] + 1}
    return new, value


def params_on(mesh, fsdp=None, model=None):
    specs = {
        "norm": (None,), **dict.fromkeys("qkv", (fsdp, model, None)), "o": (model, None, fsdp),
        "up": (fsdp, model), "down": (model, fsdp),
    }  # fmt: skip
    layers = {n: struct(mesh, (LAYERS, *s), None, *specs[n]) for n, s in SHAPES.items()}
    return {
        "embed": struct(mesh, (V, D), model, fsdp),
        "layers": layers,
        "out": struct(mesh, (D, V), fsdp, model),
    }


def state_on(mesh, fsdp=None, model=None):
    params = params_on(mesh, fsdp, model)
    count = struct(mesh, (), dtype="int32")
    return {"params": params, "first": params, "second": params, "step": count}


def tokens_on(mesh, *spec):
    return struct(mesh, (B, T + 1), *spec, dtype="int32")


def layouts(state, mesh):
    return jax.tree.map(lambda a: a.sharding, state), NamedSharding(mesh, P())


def training(mesh, state, tokens, donate=True, out=True, **options):
    options = {"constrain": constraining(mesh)} | options
    return jax.jit(
        functools.partial(adam, **options),
        donate_argnums=0 if donate else (),
        **({"out_shardings": layouts(state, mesh)} if out else {}),
    ), (state, tokens)


@correct
def fsdp():
    mesh = grid((8,), ("data",))
    return *training(mesh, state_on(mesh, "data"), tokens_on(mesh, "data"), remat=True), None


@correct
def tensor():
    mesh = grid((8,), ("model",))
    return *training(mesh, state_on(mesh, None, "model"), tokens_on(mesh)), None


@correct
def fsdp_and_tensor():
    mesh = grid((4, 2), ("data", "model"))
    return *training(mesh, state_on(mesh, "data", "model"), tokens_on(mesh, "data")), None


@correct
def data_and_tensor():
    mesh = grid((4, 2), ("data", "model"))
    return *training(mesh, state_on(mesh, None, "model"), tokens_on(mesh, "data")), None


@correct
def sequence():
    """Activations between the blocks are in shards along the sequence."""
    mesh = grid((2, 4), ("data", "model"))
    constrain = constraining(mesh)

    def along_sequence(x, *names):
        names = ("data", "model", None) if names == ("data", None, None) else names
        return constrain(x, *names)

    state = state_on(mesh, None, "model")
    return *training(mesh, state, tokens_on(mesh, "data"), constrain=along_sequence), None


@correct
def three_axes():
    mesh = grid((2, 2, 2), ("replica", "data", "model"))

    def constrain(x, *names):
        spec = P(*[("replica", "data") if name == "data" else name for name in names])
        return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    state, tokens = state_on(mesh, "data", "model"), tokens_on(mesh, ("replica", "data"))
    return *training(mesh, state, tokens, constrain=constrain), None


@correct
def accumulation():
    mesh = grid((8,), ("data",))
    state = state_on(mesh, "data")
    tokens = struct(mesh, (4, B, T + 1), None, "data", dtype="int32")

    def step(state, tokens):
        def add(grads, tokens):
            new = jax.grad(loss)(state["params"], tokens, constrain=constraining(mesh))
            return jax.tree.map(jnp.add, grads, new), None

        zeros = jax.tree.map(jnp.zeros_like, state["params"])
        grads, _ = lax.scan(add, zeros, tokens)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
        return state | {"params": params}

    step = jax.jit(step, donate_argnums=0, out_shardings=layouts(state, mesh)[0])
    return step, (state, tokens), None


@correct
def decoding():
    mesh = grid((4, 2), ("data", "model"))
    params = params_on(mesh, None, "model")
    cache = [
        {n: struct(mesh, (B, T, HEADS, D // HEADS), "data", None, "model") for n in "kv"}
        for _ in range(LAYERS)
    ]

    def step(params, caches, tokens, time):
        x, new = params["embed"][tokens], []
        for n, cache in enumerate(caches):
            w = jax.tree.map(lambda a, n=n: a[n], params["layers"])
            h = normalised(x, w["norm"])
            q, k, v = (jnp.einsum("bd,dhk->bhk", h, w[n]) for n in "qkv")
            cache = {
                n: lax.dynamic_update_slice_in_dim(cache[n], a[:, None], time, 1)
                for n, a in (("k", k), ("v", v))
            }
            scores = jnp.einsum("bhk,bthk->bht", q, cache["k"])
            scores = jax.nn.softmax(jnp.where(jnp.arange(T) <= time, scores, -1e9))
            x = x + jnp.einsum("bht,bthk,hkd->bd", scores, cache["v"], w["o"])
            x = x + jax.nn.gelu(normalised(x, w["norm"]) @ w["up"]) @ w["down"]
            new.append(cache)
        return new, x @ params["out"]

    outs = jax.tree.map(lambda a: a.sharding, cache), NamedSharding(mesh, P("data", "model"))
    step = jax.jit(step, donate_argnums=1, out_shardings=outs)
    tokens, time = (struct(mesh, *s, dtype="int32") for s in (((B,), "data"), ((),)))
    return step, (params, cache, tokens, time), None


@correct
def explicit():
    mesh = grid((4, 2), ("data", "model"), AxisType.Explicit)

    def step(w, x, y):
        def loss(w):
            to_hidden = {"out_sharding": P("data", "model")}
            h = jnp.tanh(jnp.einsum("bd,df->bf", x, w["up"], **to_hidden))
            z = jnp.einsum("bf,fd->bd", h, w["down"], out_sharding=P("data", None))
            return jnp.mean((z - y) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    w = {"up": struct(mesh, (D, F), None, "model"), "down": struct(mesh, (F, D), "model", None)}
    x = struct(mesh, (4096, D), "data")
    return jax.jit(step, donate_argnums=0), (w, x, x), mesh


@correct
def manual():
    mesh = grid((4, 2), ("data", "model"))

    def step(w, x, y):
        def loss(w):
            up = lax.all_gather(w["up"], "data", axis=0, tiled=True)
            down = lax.all_gather(w["down"], "data", axis=1, tiled=True)
            z = lax.psum(jnp.tanh(x @ up) @ down, "model")
            return lax.psum(jnp.sum((z - y) ** 2), "data") / 4096

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    specs = {"up": P("data", "model"), "down": P("model", "data")}
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(specs, P("data"), P("data")), out_specs=specs)
    w = {"up": struct(mesh, (D, F), *specs["up"]), "down": struct(mesh, (F, D), *specs["down"])}
    x = struct(mesh, (4096, D), "data")
    return jax.jit(mapped, donate_argnums=0), (w, x, x), None


@correct
def experts():
    mesh, capacity = grid((8,), ("expert",)), 64

    def step(w, x, chosen):
        def loss(w):
            one = jax.nn.one_hot(chosen, 8, dtype=x.dtype)
            slot = ((jnp.cumsum(one, 0) - 1) * one).sum(-1).astype("int32")
            slot = jax.nn.one_hot(slot, capacity, dtype=x.dtype)
            sent = jnp.einsum("be,bc,bd->ecd", one, slot, x)
            sent = lax.all_to_all(sent, "expert", 0, 1, tiled=True)
            h = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", sent, w["up"]))
            back = jnp.einsum("ecf,efd->ecd", h, w["down"])
            back = lax.all_to_all(back, "expert", 1, 0, tiled=True)
            z = jnp.einsum("be,bc,ecd->bd", one, slot, back)
            return lax.psum(jnp.sum((z - x) ** 2), "expert")

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    specs = {"up": P("expert"), "down": P("expert")}
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(specs, P("expert"), P("expert")), out_specs=specs
    )
    w = {"up": struct(mesh, (8, D, F), "expert"), "down": struct(mesh, (8, F, D), "expert")}
    x, chosen = struct(mesh, (1024, D), "expert"), struct(mesh, (1024,), "expert", dtype="int32")
    return jax.jit(mapped, donate_argnums=0), (w, x, chosen), None


@correct
def experts_by_constraints():
    mesh = grid((2, 4), ("data", "expert"))
    to = lambda a, *spec: lax.with_sharding_constraint(a, NamedSharding(mesh, P(*spec)))  # noqa: E731

    def step(w, x, dispatch):
        def loss(w):
            sent = to(jnp.einsum("gtec,gtd->egcd", dispatch, x), "expert", "data")
            h = to(jax.nn.gelu(jnp.einsum("egcd,edf->egcf", sent, w["up"])), "expert", "data")
            back = to(jnp.einsum("egcf,efd->egcd", h, w["down"]), "expert", "data")
            z = to(jnp.einsum("gtec,egcd->gtd", dispatch, back), ("data", "expert"))
            return jnp.mean((z - x) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    w = {"up": struct(mesh, (8, D, F), "expert"), "down": struct(mesh, (8, F, D), "expert")}
    both = ("data", "expert")
    x, dispatch = struct(mesh, (16, 64, D), both), struct(mesh, (16, 64, 8, 16), both)
    return jax.jit(step, donate_argnums=0), (w, x, dispatch), None


@correct
def wide_layers():
    """Adam of two layers in shards of their rows: where the compiler moves activations instead, the
    gradients get the axis along another dimension.
    """
    mesh = grid((8,), ("data",))

    def loss(w, x, constrain=free):
        return jnp.mean((jax.nn.gelu(x @ w["up"]) @ w["down"] - x) ** 2)

    w = {"up": struct(mesh, (512, 2048), "data"), "down": struct(mesh, (2048, 512), "data")}
    state = {"params": w, "first": w, "second": w, "step": struct(mesh, (), dtype="int32")}
    step = jax.jit(functools.partial(adam, loss=loss), donate_argnums=0)
    return step, (state, struct(mesh, (512, 512), "data")), None


@correct
def zero1():
    """Sharded moments of replicated parameters, which the advice to shard these is about."""
    mesh = grid((8,), ("data",))
    state, sharded = state_on(mesh), params_on(mesh, "data")
    state |= {"first": sharded, "second": sharded}
    return *training(mesh, state, tokens_on(mesh, "data")), None


@correct
def ulysses():
    """One axis goes from the sequence to the heads and back, by constraints."""
    mesh = grid((2, 4), ("data", "seq"))
    to = lambda a, *spec: lax.with_sharding_constraint(a, NamedSharding(mesh, P("data", *spec)))  # noqa: E731

    def step(w, x):
        def loss(w):
            q, k, v = (to(jnp.einsum("btd,dhk->bthk", x, w[n]), "seq") for n in "qkv")
            q, k, v = (to(a, None, "seq") for a in (q, k, v))
            scores = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k) / 4)
            mixed = to(to(jnp.einsum("bhts,bshk->bthk", scores, v), None, "seq"), "seq")
            return jnp.mean((to(jnp.einsum("bthk,hkd->btd", mixed, w["o"]), "seq") - x) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    w = {n: struct(mesh, SHAPES[n]) for n in "qkvo"}
    step = jax.jit(step, donate_argnums=0, out_shardings=jax.tree.map(lambda a: a.sharding, w))
    return step, (w, struct(mesh, (B, 256, D), "data", "seq")), None


@correct
def activations_in_shards_between_layers():
    """Gathered along model before a layer, and scattered after it, as they are stored."""
    mesh = grid((4, 2), ("data", "model"))
    to = lambda a: lax.with_sharding_constraint(a, NamedSharding(mesh, P("data", "model")))  # noqa: E731

    def step(w, x):
        def loss(w):
            y = x
            for layer in w:
                y = to(y + to(jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"])
            return jnp.mean(y**2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    up, down = struct(mesh, (D, F), "data", "model"), struct(mesh, (F, D), "model", "data")
    w = [{"gate": up, "up": up, "down": down}] * 2
    step = jax.jit(step, donate_argnums=0, out_shardings=jax.tree.map(lambda a: a.sharding, w))
    return step, (w, struct(mesh, (4096, D), "data", "model")), None


@correct
def vocabulary_parallel_loss():
    mesh = grid((2, 4), ("data", "model"))

    def losses(h, head, targets):
        logits = (h @ head).astype("float32")
        largest = lax.pmax(lax.stop_gradient(logits.max(-1)), "model")
        total = lax.psum(jnp.exp(logits - largest[:, None]).sum(-1), "model")
        own = targets - lax.axis_index("model") * head.shape[1]
        is_here = (own >= 0) & (own < head.shape[1])
        at = jnp.clip(own, 0, head.shape[1] - 1)[:, None]
        wanted = jnp.where(is_here, jnp.take_along_axis(logits, at, 1)[:, 0], 0)
        mean = jnp.mean(jnp.log(total) + largest - lax.psum(wanted, "model"))
        return lax.pmean(mean, "data")

    def step(w, x, targets):
        def loss(w):
            h = jax.nn.gelu(x @ w["up"]) @ w["down"]
            specs = {"in_specs": (P("data"), P(None, "model"), P("data")), "out_specs": P()}
            return jax.shard_map(losses, mesh=mesh, **specs)(h, w["head"], targets)

        return jax.tree.map(lambda w, g: (w - 0.1 * g).astype(w.dtype), w, jax.grad(loss)(w))

    bf16 = functools.partial(struct, mesh, dtype="bfloat16")
    w = {"up": bf16((D, F), None, "model"), "down": bf16((F, D), "model")}
    w |= {"head": bf16((D, 2048), None, "model")}
    arguments = w, bf16((512, D), "data"), struct(mesh, (512,), "data", dtype="int32")
    return jax.jit(step, donate_argnums=0), arguments, None


@correct
def grouped_micro_batches():
    """SwiGLU in bfloat16, accumulated in bfloat16: loops in a loop, and no constraint before the
    logits.
    """
    mesh = grid((8,), ("data",))
    constrain = constraining(mesh)

    def layer(x, w):
        h = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])
        return constrain(x + h @ w["down"], "data", None, None), None

    def loss(w, tokens):
        x = constrain(w["embed"][tokens], "data", None, None)
        x, _ = lax.scan(jax.checkpoint(layer), x, w["layers"])
        logits = constrain((normalised(x, 1) @ w["out"]).astype("float32"), "data", None, None)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[..., 0])

    def step(w, tokens):
        add = lambda total, one: (jax.tree.map(jnp.add, total, jax.grad(loss)(w, one)), None)  # noqa: E731
        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, w), tokens)
        return jax.tree.map(lambda w, g: (w - 0.1 * g).astype(w.dtype), w, total)

    bf16 = functools.partial(struct, mesh, dtype="bfloat16")
    up, down = bf16((LAYERS, D, F), None, "data"), bf16((LAYERS, F, D), None, None, "data")
    w = {"layers": {"gate": up, "up": up, "down": down}}
    w |= {"embed": bf16((V, D), None, "data"), "out": bf16((D, V), "data")}
    step = jax.jit(step, donate_argnums=0, out_shardings=jax.tree.map(lambda a: a.sharding, w))
    return step, (w, struct(mesh, (4, B, T), None, "data", dtype="int32")), None


def on_two(state=None, tokens=("data",), fsdp="data", model="model", **options):
    """The step with FSDP and tensor parallelism, with something else in it."""
    mesh = grid((4, 2), ("data", "model"))
    state = state(mesh) if state else state_on(mesh, fsdp, model)
    if "change" in options:
        change, own = options.pop("change"), constraining(mesh)
        options["constrain"] = lambda x, *names: own(x, *change(x, names))
    if "loss" in options:
        of, own = options.pop("loss"), constraining(mesh)
        options["loss"] = lambda params, tokens, constrain: of(params, tokens, own)
    return training(mesh, state, tokens_on(mesh, *tokens), **options)


@mistake("replicated", "state", "along data and model")
def moments_replicated():
    def state(mesh):
        return state_on(mesh, "data", "model") | {
            "first": params_on(mesh),
            "second": params_on(mesh),
        }

    return on_two(state)


@mistake("not donated", "donate_argnames")
def no_donation():
    return on_two(donate=False)


@mistake("constraint without an axis", "lacks data", "steps.py")
def constraint_without_data():
    """Of all activations."""
    return on_two(
        change=lambda x, names: [None if n == "data" and x.ndim == 3 else n for n in names]
    )


@mistake("constraint without an axis", "lacks model", 'P("data", None, "model")')
def constraint_without_model():
    """Of the hidden layer."""
    return on_two(change=lambda x, names: names[:2] if x.shape[-1] == F else names)


@mistake("axis on two dimensions", "['embed']", 'P("data")')
def no_constraints():
    """The embedding's rows and the tokens are both in shards along data."""
    mesh = grid((8,), ("data",))
    return training(mesh, state_on(mesh, "data"), tokens_on(mesh, "data"), constrain=free)


@mistake("order of axes", 'P("model", None, "data")')
def dimensions_swapped():
    return on_two(change=lambda x, names: names[::-1] if x.shape[-1] == F else names)


@mistake("constraint without an axis", "lacks model and data", "Write the spec of what it meets")
def gradients_whole():
    mesh = grid((4, 2), ("data", "model"))
    state = state_on(mesh, "data", "model")

    def step(state, tokens):
        grads = jax.grad(loss)(state["params"], tokens, constrain=constraining(mesh))
        grads = lax.with_sharding_constraint(grads, NamedSharding(mesh, P()))
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], grads)
        return state | {"first": first}

    step = jax.jit(step, donate_argnums=0, out_shardings=layouts(state, mesh)[0])
    return step, (state, tokens_on(mesh, "data"))


@mistake("gathered before an index", "index first", "0.031 of it is used")
def last_logits_of_all():
    def of(params, tokens, constrain):
        logits = constrain(forward(params, tokens[:, :-1], constrain), None, None, None)[:, -1]
        return jnp.mean(jax.nn.logsumexp(logits, -1))

    return on_two(loss=of)


@mistake("constraint without an axis", "lacks model", 'P("data", None, "model")')
def logits_whole():
    """After a residual that is constrained as a sum, and by a helper."""
    mesh = grid((4, 2), ("data", "model"))
    constrain = constraining(mesh)

    def loss(w, x):
        h = constrain(jax.nn.gelu(normalised(x, 1) @ w["up"]), "data", None, "model")
        x = constrain(x + h @ w["down"], "data", None, None)
        logits = constrain(x @ w["out"], "data", None, None)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[..., 0])

    def step(w, x):
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w, x))

    w = {"up": struct(mesh, (D, F), "data", "model"), "down": struct(mesh, (F, D), "model", "data")}
    w |= {"out": struct(mesh, (D, 16 * V), "data", "model")}
    return jax.jit(step, donate_argnums=0), (w, struct(mesh, (B, T, D), "data"))


@mistake("data without an axis", "tokens is not sharded over data, nor are other data")
def batch_on_no_axis():
    mesh = grid((8,), ("data",))
    tokens = struct(mesh, (256, T + 1), dtype="int32")
    return training(mesh, state_on(mesh, "data"), tokens, constrain=free)


@mistake("columns after columns", "['down']", "Shard the dimension of 512")
def both_by_columns():
    def state(mesh):
        params = params_on(mesh, None, "model")
        params["layers"]["down"] = struct(mesh, (LAYERS, F, D), None, None, "model")
        return state_on(mesh) | dict.fromkeys(("params", "first", "second"), params)

    return on_two(state)


@mistake("avoidable communication", "a loop (scan, map)")
def layers_in_shards():
    def state(mesh):
        params = params_on(mesh, None, "model")
        layers = {n: a.sharding.spec[1:] for n, a in params["layers"].items()}
        # three layers on three of four devices would be refused
        params["layers"] = {
            n: struct(mesh, (4, *SHAPES[n]), "data", *spec) for n, spec in layers.items()
        }
        return state_on(mesh) | dict.fromkeys(("params", "first", "second"), params)

    return on_two(state)


@mistake("reshape of shards", "along data", "put the dimension first")
def sequence_first():
    def of(params, tokens, constrain):
        logits = forward(params, tokens[:, :-1], constrain)
        logits = logits.transpose(1, 0, 2).reshape(-1, V)
        wanted = jnp.where(jnp.arange(V) == tokens[:, 1:].T.reshape(-1, 1), logits, 0).sum(-1)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - wanted)

    return on_two(loss=of)


@mistake("avoidable communication", "a callback")
def activations_printed():
    def of(params, tokens, constrain):
        logits = forward(params, tokens[:, :-1], constrain)
        jax.debug.print("{}", logits)
        return jnp.mean(jax.nn.logsumexp(logits, -1))

    return on_two(loss=of)


@mistake("gathered before a cast", "cast the shards first")
def cast_after_gather():
    def of(params, tokens, constrain):
        params = jax.tree.map(lambda p: constrain(p).astype("bfloat16"), params)
        return loss(params, tokens, constrain=constrain)

    return on_two(loss=of, model=None)


@mistake("replicated result", "result[1]")
def logits_returned():
    mesh = grid((4, 2), ("data", "model"))
    state, constrain = state_on(mesh, "data", "model"), constraining(mesh)

    def step(state, tokens):
        logits = forward(state["params"], tokens[:, :-1], constrain)
        return adam(state, tokens, constrain=constrain)[0], logits

    return jax.jit(step, donate_argnums=0, out_shardings=layouts(state, mesh)), (
        state,
        tokens_on(mesh, "data"),
    )


@mistake("summed in a loop", "once after the loop")
def summed_in_a_loop():
    mesh = grid((4, 2), ("data", "model"))
    state = state_on(mesh, None, "model")
    tokens = struct(mesh, (4, B, T + 1), None, "data", dtype="int32")

    def step(state, tokens):
        def add(grads, tokens):
            new = jax.grad(loss)(state["params"], tokens, constrain=constraining(mesh))
            return jax.tree.map(jnp.add, grads, new), None

        grads, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, state["params"]), tokens)
        return state | {"params": jax.tree.map(lambda p, g: p - g, state["params"], grads)}

    step = jax.jit(step, donate_argnums=0, out_shardings=layouts(state, mesh)[0])
    return step, (state, tokens)


@mistake("not placed", "state['step']")
def counter_on_no_mesh():
    mesh = grid((4, 2), ("data", "model"))
    state = state_on(mesh, "data", "model")
    step, (state, tokens) = training(mesh, state, tokens_on(mesh, "data"), out=False)
    return step, (state | {"step": jnp.zeros((), "int32")}, tokens)


@mistake("repeated work", "in_specs", "along data and model")
def replicated_in_specs():
    mesh = grid((4, 2), ("data", "model"))

    def step(w, x):
        def loss(w):
            own = lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)  # noqa: E731
            return jax.shard_map(own, mesh=mesh, in_specs=(P(), P()), out_specs=P())(w, x)

        return w - jax.grad(loss)(w)

    return jax.jit(step, donate_argnums=0), (struct(mesh, (D, F)), struct(mesh, (4096, D), "data"))


@mistake("replicated but different", "psum")
def no_psum():
    mesh = grid((4, 2), ("data", "model"))

    def step(w, x):
        own = jax.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2))
        specs = {"in_specs": (P(), P("data")), "out_specs": P()}
        return w - jax.shard_map(own, mesh=mesh, check_vma=False, **specs)(w, x)

    return jax.jit(step, donate_argnums=0), (struct(mesh, (D, F)), struct(mesh, (4096, D), "data"))
