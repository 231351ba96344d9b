"""What readers copy from `flax`: a target for a restore, from annotations alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from contract import contract, mesh_of, reads, refusal
from flax import linen as nn
from flax.training.train_state import TrainState
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

pytestmark = reads("flax")
NAMES = st.tuples(*[st.sampled_from([None, None, "y", "x", ("y", "x"), "embed"])] * 2)


@contract(
    "flax", "target_of", "is_box", draws=60,
    sizes=[(1, 1), (2, 1), (1, 3), (2, 4), (4, 2)], names=NAMES, rows=[1, 3, 8, 24],
    columns=[1, 12, 16], types=["Auto", "Explicit"], dtype=["float32", "bfloat16"],
    abstract=[True, False],
)  # fmt: skip
def test_target_of(target_of, sizes, names, rows, columns, types, dtype, abstract):
    """`target_of` takes a tree of arrays or shapes, with or without the boxes of
    `nn.with_partitioning`, and a mesh. It refuses an annotation with a name that is not an axis of
    the mesh, and a dimension whose size the axis does not divide.
    """
    mesh = mesh_of(*sizes, names="yx", types=AxisType[types])
    used = [axis for part in names if part for axis in np.ravel(part)]
    of = {"y": sizes[0], "x": sizes[1], "embed": 1}
    counts = [int(np.prod([of[axis] for axis in np.ravel(part) if axis])) for part in names]
    fits = rows % counts[0] == columns % counts[1] == 0
    wrong = "embed" in used or len(used) != len(set(used)) or not fits

    def create():
        box = nn.Partitioned(jnp.ones((rows, columns), dtype), names=names)
        params = {"W": box, "b": jnp.zeros(columns)}
        state = TrainState.create(apply_fn=None, params=params, tx=optax.adam(1e-3))
        return state.replace(step=jnp.zeros((), "int32"))

    state = jax.eval_shape(create) if abstract else create()
    with refusal(wrong, rows, columns):
        target = target_of(state, mesh)
        assert not wrong
        assert jax.tree.structure(target) == jax.tree.structure(state)
        for path, leaf in jax.tree.leaves_with_path(target):
            boxed = "'W'" in jax.tree_util.keystr(path)
            assert leaf.sharding == NamedSharding(mesh, P(*names) if boxed else P())
        assert target.params["W"].names == names and target.params["W"].value.dtype == dtype
