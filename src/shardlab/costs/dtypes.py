"""Dtypes by their short names, such as "bf16", and what an element of each takes."""

from shardlab._arguments import one_of

__all__ = ["BYTES"]

BYTES = {"f32": 4, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 0.5, "int4": 0.5}


def dtype_bytes(name: str, dtype: str) -> float:
    """Bytes of an element; `name` is that of the argument, for the error."""
    return BYTES[one_of(name, dtype, tuple(BYTES))]
