"""What readers copy from `two_meshes`, against the elements that each device stores."""

import jax
import numpy as np
from contract import contract, reads
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

pytestmark = reads("two_meshes")

SPECS = [(), ("x",), (None, "x"), ("x", "y"), ("y", "x"), (("x", "y"),), (None, ("y", "x")),
         (None, None, "y")]  # fmt: skip


def placed(first, count, sizes, spec):
    """A sharding over some of the eight devices."""
    devices = jax.devices()[first : first + count]
    kind = (AxisType.Auto,) * 2
    return NamedSharding(jax.make_mesh(sizes, ("x", "y"), devices=devices, axis_types=kind),
                         P(*spec))  # fmt: skip


@contract(
    "two_meshes", "missing_bytes", draws=80, quick=True,
    shape=[(8, 8, 4), (16, 8, 12), (8, 0, 4), (8, 8, 4, 3)], before=SPECS, after=SPECS,
    meshes=[((0, 8, (2, 4)), (0, 8, (2, 4))), ((0, 8, (4, 2)), (0, 8, (2, 4))),
            ((0, 4, (2, 2)), (4, 4, (2, 2))), ((0, 4, (4, 1)), (2, 4, (2, 2))),
            ((0, 1, (1, 1)), (0, 8, (4, 2)))],
    itemsize=[1, 2, 4],
)  # fmt: skip
def test_missing_bytes(missing_bytes, shape, before, after, meshes, itemsize):
    """`missing_bytes` takes a shape, two shardings of any meshes of one process, and the bytes of
    an element.
    """
    a, b = placed(*meshes[0], before), placed(*meshes[1], after)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    has = {device: set(numbers[index].flat)
           for device, index in a.devices_indices_map(shape).items()}  # fmt: skip
    lacks = [len(set(numbers[index].flat) - has.get(device, set()))
             for device, index in b.devices_indices_map(shape).items()]  # fmt: skip
    assert missing_bytes(shape, a, b, itemsize) == itemsize * max(lacks)
