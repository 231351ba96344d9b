"""What readers copy from `tensor`, against one device."""

import jax
import jax.numpy as jnp
import numpy as np
from contract import bound, close, contract, mapped, mesh_of, reads, values
from jax.sharding import PartitionSpec as P

pytestmark = reads("tensor")


@contract(
    "tensor", "sharded_losses", draws=30,
    devices=[1, 2, 3, 8], columns=[1, 3], kind=["normal", "zeros", "tiny", "nan"],
    outside=[None, None, -1, 1], dtype=["float32", "bfloat16"], check_vma=[True, False],
)  # fmt: skip
def test_losses(sharded_losses, devices, columns, kind, outside, dtype, check_vma, seed):
    """`sharded_losses` takes activations of any float type, a device's columns of the unembedding
    and the targets, on any number of devices. For a target outside the vocabulary the loss is NaN.
    """
    size = devices * columns
    x, table = values(kind, (2, 3, 4), dtype), values("normal", (4, size), dtype, 1)
    targets = np.random.default_rng(seed).integers(size, size=(2, 3)).astype("int32")
    if outside is not None:
        targets[0, 1] = -1 if outside < 0 else size
    specs = (P(), P(None, "x"), P()), P()
    found = mapped(bound(sharded_losses, axes="x"), mesh_of(devices), *specs, check_vma)(
        x, table, targets
    )
    logits = np.asarray(x, "float32") @ np.asarray(table, "float32")
    picked = np.take_along_axis(logits, np.clip(targets, 0, size - 1)[..., None], -1)[..., 0]
    right = np.asarray(jax.nn.logsumexp(jnp.asarray(logits), axis=-1)) - picked
    right[(targets < 0) | (targets >= size)] = np.nan
    close(np.asarray(found) + 10, right + 10, 1e-5)  # losses may be zero: one column
