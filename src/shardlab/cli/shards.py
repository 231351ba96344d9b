"""`shardlab layout`: describe which device stores which slice of an array."""

import json
import re

from shardlab._arguments import MOST, nearest, plain
from shardlab.cli.arguments import Wrong, mesh_of

ABOUT = "describe which device stores which slice of an array"
EXAMPLES = """\
examples:
  shardlab layout "float32[8,16]" --mesh x=2,y=4 --spec x,y
  shardlab layout "bf16[8192,28672]" --mesh data=4,fsdp=8,tensor=8 --spec "(data,fsdp),tensor"
  shardlab layout "f32[8,16]" --mesh x=2,y=4 --spec "None,y" --json

A spec names for each dimension the mesh axis over which it is sharded: several in parentheses, None (or -) for none.
Dimensions at the end may be left out. No devices are needed.
"""  # noqa: E501

_SHOWN = 16  # devices that the text lists
_MOST_DEVICES = 2**16  # of which the slices take seconds
_SHORT = {"f": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint", "c": "complex"}


def add_arguments(command):
    """Add the options of the command to its parser."""
    command.add_argument("type", help='the array, such as "float32[8,16]" or "bf16[8,16]"')
    command.add_argument(
        "--mesh", required=True, help="the axes of the mesh with their sizes, such as x=2,y=4"
    )
    command.add_argument(
        "--spec", default="", help="the mesh axes of each dimension, such as x,y (default: none)"
    )
    command.add_argument(
        "--uneven", action="store_true", help="shards may differ in size, as in compiled programs"
    )


def run(options):
    """Run the command; returns the exit status."""
    from jax.sharding import NamedSharding, PartitionSpec

    from shardlab._tables import aligned
    from shardlab.arrays.layout import counted, describe, index_text

    dtype, shape = _array_type(options.type)
    mesh = mesh_of(options.mesh)
    if mesh.size > _MOST_DEVICES:
        raise Wrong(
            f"--mesh {options.mesh}: more than {_MOST_DEVICES:,} devices; use a smaller mesh"
        )
    spec = _spec(options.spec, tuple(mesh.shape))
    try:
        sharding = NamedSharding(mesh, PartitionSpec(*(axes or None for axes in spec)))
        layout = describe(sharding, shape, dtype, uneven=options.uneven)
    except ValueError as error:
        raise Wrong(f"--spec {options.spec}: {error}") from None
    sizes = layout.bytes_per_device
    if options.json:
        record = {
            "type": layout.type, "shape": layout.shape, "dtype": layout.dtype,
            "mesh": dict(layout.mesh.axes),
            "spec": layout.spec, "shard_shape": layout.shard_shape,
            "distinct_shards": layout.distinct_shards,
            "replicas": layout.replicas, "bytes": layout.nbytes,
            "bytes_per_device": max(sizes.values()),
            "total_bytes": layout.total_bytes,
            "shards": [
                {"device": s.device, "index": s.index, "replica": s.replica,
                    "bytes": sizes[s.device]}
                for s in layout.shards
            ],
        }  # fmt: skip
        print(json.dumps(record))
        return 0
    print(layout)
    print(
        f"all devices together: {counted(layout.total_bytes, 'byte')}, for an array of "
        f"{layout.nbytes:,}\n"
    )
    rows = [
        (
            str(s.device),
            index_text(s.index),
            f"{s.replica + 1} of {layout.replicas}",
            f"{sizes[s.device]:,}",
        )
        for s in layout.shards[:_SHOWN]
    ]
    print(aligned([("device", "slice", "replica", "bytes"), *rows]))
    if len(layout.shards) > _SHOWN:
        print(f"... and {len(layout.shards) - _SHOWN:,} more; --json lists all")
    return 0


def _array_type(text):
    """("float32", (8, 16)) for "float32[8,16]" or "f32[8,16]"."""
    import jax.numpy as jnp

    match = re.fullmatch(r"\s*(\w+)\s*\[([\d,\s]*)\]\s*", text)
    sizes = [size.strip() for size in match[2].split(",")] if match and match[2].strip() else []
    if not match or not all(re.fullmatch("[0-9]+", size) for size in sizes):
        raise Wrong(
            f"{text!r} is no type of an array; write its element type and its sizes, such as "
            "float32[8,16]"
        )
    if wrong := next((size for size in sizes if len(size) > 18 or int(size) > MOST), None):
        raise Wrong(f"a size is {plain(wrong, 60)}; use whole numbers of at most {MOST:,}")
    short = re.fullmatch(r"(bf|f|i|s|u|c)(\d\w*)", match[1])
    name = {"pred": "bool"}.get(match[1]) or (_SHORT[short[1]] + short[2] if short else match[1])
    try:
        return jnp.dtype(name).name, tuple(map(int, sizes))
    except TypeError:
        known = ["bool", "bfloat16", "complex64", "complex128"]
        known += [f"float{bits}" for bits in (16, 32, 64)] + [
            f"{kind}{bits}" for kind in ("int", "uint") for bits in (4, 8, 16, 32, 64)
        ]
        hint = nearest(name, known) or "; use one such as float32"
        raise Wrong(f"no element type is called {match[1]!r}{hint}") from None


def _spec(text, axes):
    """(("x",), (), ("y", "z")) from "x,None,(y,z)"; also from what Python prints, P("x", None,
    ("y", "z")).
    """
    text = re.sub(r"""["'\s]""", "", text)
    text = re.sub(r"^(?:P|PartitionSpec)\((.*)\)$", r"\1", text)
    if re.search(r"[()]", re.sub(r"\([^()]*\)", "", text)):
        raise Wrong(
            f"--spec {text}: a parenthesis is not closed; write several axes of a dimension "
            "as (x,y)"
        )
    entries = re.split(r",(?![^()]*\))", text) if text else []
    spec = []
    for entry in entries:
        names = [name for name in entry.strip("()").split(",") if name not in ("", "-", "None")]
        for name in names:
            if name not in axes:
                hint = nearest(name, axes)
                raise Wrong(
                    f"--spec {text}: the mesh has no axis {name!r}{hint}; it has {', '.join(axes)}"
                )
        spec.append(tuple(names))
    used = [name for names in spec for name in names]
    for name in axes:
        if used.count(name) > 1:
            raise Wrong(
                f"--spec {text}: axis {name!r} is used {used.count(name)} times; use an axis "
                "for one dimension"
            )
    return spec
