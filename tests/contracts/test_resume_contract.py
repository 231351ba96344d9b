"""What readers copy from `resume`: runs that are taken apart and put together again."""

from functools import cache

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from contract import contract, copied, reads, refusal
from flax import nnx
from hypothesis import strategies as st

pytestmark = reads("resume")


class Largest(nnx.Variable):
    """A kind of variable that no library knows."""


class Model(nnx.Module):
    def __init__(self, kind, width, dtype):
        rngs = nnx.Rngs(0, dropout=1)
        self.layers = nnx.List(
            [nnx.Linear(width, width, rngs=rngs, param_dtype=dtype) for _ in range(2)]
        )
        self.norm = nnx.BatchNorm(width, rngs=rngs) if "norm" in kind else None
        self.dropout = nnx.Dropout(0.5, rngs=rngs) if "dropout" in kind else None
        self.largest = Largest(jnp.ones((), "int32")) if "custom" in kind else None
        if "lora" in kind:
            self.layers[1] = nnx.LoRA(width, 2, width, base_module=self.layers[1], rngs=rngs)
        if "tied" in kind:
            self.layers[1] = self.layers[0]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        if self.norm:
            x = self.norm(x)
        return self.dropout(x) if self.dropout else x


RULES = {
    "sgd": optax.sgd(0.1),
    "adamw": optax.adamw(1e-3),
    "chain": optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.9)),
}


@cache
def abstract(kind, width, dtype, rule):
    def build():
        model = Model(kind, width, dtype)
        return model, nnx.Optimizer(model, RULES[rule], wrt=nnx.Param)

    return build, nnx.split(nnx.eval_shape(build))


def changed(tree, what):
    """The state with a change, and the name of the part that has it."""
    leaves, structure = jax.tree.flatten_with_path(tree)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    at = next(i for i, name in enumerate(names) if "kernel" in name)
    a = leaves[at][1]
    others = {"shape": a[:-1], "dtype": a.astype("float16")}
    arrays = [b for _, b in leaves]
    arrays[at] = others.get(what, a)
    tree = structure.unflatten(arrays)
    if what == "missing":
        first = tree["params"]
        del first[next(iter(first))]
        return tree, "'params'"
    if what == "extra":
        tree["other"]["more"] = a
        return tree, "'more'"
    return tree, names[at]


@contract(
    "resume", "assemble", draws=24,
    kind=["", "norm", "norm dropout", "custom", "lora", "tied", "norm dropout custom lora"],
    width=[1, 3, 8], dtype=["float32", "bfloat16"], rule=list(RULES),
    change=["", "", "", "shape", "dtype", "missing", "extra"], in_jit=[True, False],
)  # fmt: skip
def test_assemble(assemble, seed, kind, width, dtype, rule, change, in_jit):
    """`assemble` takes `nnx.split` of the abstract model and optimiser, and what `split_by_kind`
    has returned for such a pair; it refuses a state with other arrays, or with an array of another
    shape or dtype.
    """
    split_by_kind = copied("resume", "split_by_kind")
    build, (definition, variables) = abstract(kind, width, dtype, rule)
    model, optimizer = build()
    whole = shifted(split_by_kind(model, optimizer), seed)
    state, name = changed(whole, change) if change else (whole, "")

    def again(state):
        return split_by_kind(*assemble(definition, variables, state))

    said = ""
    with refusal(bool(change)):
        try:
            found = jax.jit(again)(state) if in_jit else again(state)
        except ValueError as error:
            said = str(error)
            raise
        assert not change, "it takes another state"
        assert jax.tree.structure(found) == jax.tree.structure(state)
        assert jax.tree.map(to_bits, found) == jax.tree.map(to_bits, state)
    assert name in said


def to_bits(a):
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
        a = jax.random.key_data(a)
    return str(a.dtype), a.shape, np.asarray(a).tobytes()


def shifted(tree, seed):
    """Other values than the first ones, of the same types."""
    rng = np.random.default_rng(seed)

    def shift(a):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            return jax.random.clone(jax.random.key(int(rng.integers(100))))
        return jnp.asarray(rng.normal(size=a.shape) * 10).astype(a.dtype)

    return jax.tree.map(shift, tree)


@contract(
    "resume", "split_by_kind", draws=20,
    kind=["", "norm", "norm dropout", "custom", "lora", "tied", "norm dropout custom lora"],
    width=[1, 3, 8], dtype=["float32", "bfloat16"], rule=list(RULES),
)  # fmt: skip
def test_split_by_kind(split_by_kind, kind, width, dtype, rule):
    """`split_by_kind` takes any NNX model and optimiser, of arrays or abstract."""
    build, _ = abstract(kind, width, dtype, rule)
    model, optimizer = build()
    state = split_by_kind(model, optimizer)
    of = nnx.state((model, optimizer))
    # the optimiser refers to no part of the model
    assert len(jax.tree.leaves(state)) == len(jax.tree.leaves(of))
    parameters = nnx.state(model, nnx.Param)
    assert len(jax.tree.leaves(state["params"])) == len(jax.tree.leaves(parameters))
    shapes = split_by_kind(*nnx.eval_shape(build))
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(lambda a: a.shape, shapes)


class Numbers:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if not 0 <= i < self.count:
            raise IndexError(i)
        return {"index": np.int32(i)}


@contract(
    "resume", "batches", draws=60,
    records=[0, 1, 5, 21, 100], processes=st.integers(1, 5), size=st.integers(0, 24),
    stop=st.integers(0, 9), others=st.integers(1, 5), beyond=[0, 0, 0, 1],
)  # fmt: skip
def test_batches(batches, seed, records, processes, size, stop, others, beyond):
    """`batches` takes a source with records, the index of a process and the number of processes,
    and the size of a global batch; it refuses a size that these processes cannot share evenly.
    """
    source = Numbers(records)

    def loaders(n):
        return [batches(source, p + beyond, n, size, seed=seed) for p in range(n)]

    def together(group):
        """The records of a batch, in order: the processes take turns."""
        parts = [next(loader)["index"].tolist() for loader in group]
        return [i for turn in zip(*parts, strict=True) for i in turn]

    uneven = size < 1 or size % processes or beyond
    few = records < 1
    with refusal(bool(uneven or few), *([processes, size] if uneven and not few else [])):
        group = loaders(processes)
        seen = [together(group) for _ in range(stop + 3)]
        assert not uneven and not few
        assert all(len(each) == size for each in seen)
        counts = np.bincount(np.concatenate(seen), minlength=records)
        assert counts.max() - counts.min() <= 1 if size * len(seen) % records == 0 else True
        alone = [
            next(one)["index"] for one in [batches(source, size=size, seed=seed)] for _ in seen
        ]
        assert seen == [each.tolist() for each in alone]
        order = np.concatenate(seen)[:records]
        if len(order) > 9:  # shuffled, by the seed
            other = next(batches(source, size=size, seed=seed + 1))["index"]
            assert list(order) != sorted(order) and list(other) != seen[0]
        if size % others == 0:
            position, group = None, loaders(processes)
            for _ in range(stop):
                together(group)
            position = group[0].get_state()
            resumed = loaders(others)
            for loader in resumed:
                loader.set_state(position)
            assert [together(resumed) for _ in range(3)] == seen[stop:]


@contract(
    "resume", "prefetch_with_state", draws=40,
    records=[1, 5, 32, 33], batch=[1, 4, 16], size=[-1, 0, 1, 2, 3, 50], in_place=[True, False],
)  # fmt: skip
def test_prefetch_with_state(prefetch_with_state, records, batch, size, in_place):
    """`prefetch_with_state` takes any loader with `get_state` and a size of at least 1; it yields
    each batch, the last ones included, with the position after it.
    """

    def loader():
        order = grain.MapDataset.source(np.arange(records)).seed(7).shuffle()
        own = iter(order.batch(batch).to_iter_dataset(grain.ReadOptions(0, 0)))
        return Own(own) if in_place else own

    right = [each.tolist() for each in loader()]
    with refusal(size < 1, size):
        read = loader()
        pairs = list(prefetch_with_state(read, size))
        assert size >= 1 and [each.tolist() for each, _ in pairs] == right
        for number, (_, position) in enumerate(pairs, 1):
            again = loader()
            again.set_state(position)
            assert [each.tolist() for each in again] == right[number:]
        read, most = Own(loader()), 0
        for number, _ in enumerate(prefetch_with_state(read, size), 1):
            most = max(most, read.count - number)
        assert most == min(size, len(right)) - 1


class Own:
    """A loader that changes its state in place."""

    def __init__(self, of):
        self.of, self.state, self.count = of, {}, 0

    def __iter__(self):
        return self

    def __next__(self):
        batch = next(self.of)
        self.count += 1
        return batch

    def get_state(self):
        self.state["at"] = self.of.get_state()
        return self.state

    def set_state(self, state):
        self.of.set_state(state["at"])
