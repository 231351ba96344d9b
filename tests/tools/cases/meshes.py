"""Meshes of emulated devices, and layouts for hypothesis to choose from."""

from math import prod

import jax
import numpy as np
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P


def make_mesh(sizes, names="abcdef"):
    return jax.make_mesh(
        tuple(sizes), tuple(names[: len(sizes)]), axis_types=(AxisType.Auto,) * len(sizes)
    )


MESH = make_mesh((2, 4), "xy")


@st.composite
def shardings(draw, even):
    """A mesh of up to 64 devices in any order, a shape of up to four dimensions, and a spec."""
    sizes = draw(
        st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda s: prod(s) <= 64)
    )
    order = draw(st.permutations(jax.devices()[: prod(sizes)]))
    mesh = Mesh(np.array(order).reshape(sizes), tuple("abc"[: len(sizes)]))
    ndim = draw(st.integers(0, 4))
    # Deal the axes out: each to one dimension, or to none.
    axes = draw(st.permutations(mesh.axis_names))
    homes = draw(
        st.lists(
            st.integers(-1, ndim - 1) if ndim else st.just(-1),
            min_size=len(axes),
            max_size=len(axes),
        )
    )
    cuts = [
        tuple(axis for axis, home in zip(axes, homes, strict=True) if home == d)
        for d in range(ndim)
    ]
    entries = [
        draw(st.sampled_from([cut, cut[0]]))
        if len(cut) == 1
        else cut or draw(st.sampled_from([None, ()]))
        for cut in cuts
    ]
    while entries and not entries[-1] and draw(st.booleans()):
        entries.pop()  # a spec may be shorter than the shape
    parts = [prod(mesh.shape[axis] for axis in cut) for cut in cuts]
    if even:
        shape = tuple(part * draw(st.integers(0, 3)) for part in parts)
    else:
        shape = tuple(draw(st.integers(0, 13)) for _ in parts)
    return NamedSharding(mesh, P(*entries)), shape
