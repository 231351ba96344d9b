"""What commands share: how they refuse an argument, and meshes from text."""

import math
import re


class Wrong(ValueError):
    """An argument has a wrong value; the message says which."""


def mesh_of(text):
    """A mesh without devices from "x=2,y=4"."""
    from jax.sharding import AbstractMesh

    pairs = [pair.partition("=") for pair in text.split(",")]
    sizes = {name.strip(): size.strip() for name, _, size in pairs}
    for name, size in sizes.items():
        if not name.isidentifier() or not re.fullmatch("0*[1-9][0-9]{0,17}", size):
            raise Wrong(
                f"--mesh {text}: {f'{name}={size}' if size else repr(name)} is no mesh axis; "
                "write each with a size of at least 1, such as x=2,y=4"
            )
    if len(sizes) < len(pairs):
        twice = next(name for name in sizes if [pair[0].strip() for pair in pairs].count(name) > 1)
        raise Wrong(f"--mesh {text}: axis {twice!r} is named twice; give each axis its own name")
    if math.prod(map(int, sizes.values())) > 2**20:
        raise Wrong(f"--mesh {text}: more than {2**20:,} devices; use a smaller mesh")
    return AbstractMesh(tuple(map(int, sizes.values())), tuple(sizes))
