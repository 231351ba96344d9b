"""Dtypes by their short names, such as "bf16", and what an element of each takes."""

from shardlab._arguments import one_of

__all__ = ["BYTES"]

BYTES = {"f32": 4, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 0.5, "int4": 0.5}
# Of matrices that are not trained. QLoRA (Dettmers and others, 2023, https://arxiv.org/abs/2305.14314,
# section 3): 4 bits, a scale of 8 bits for each block of 64, one of 32 bits for each 256 of those.
# And LLM.int8(), https://arxiv.org/abs/2208.07339.
FROZEN = {"nf4": (4 + 8 / 64 + 32 / (64 * 256)) / 8, "int8": 1}


def dtype_bytes(name: str, dtype: str) -> float:
    """Bytes of an element; `name` is that of the argument, for the error."""
    known = BYTES | FROZEN if name == "parameters" else BYTES
    return known[one_of(name, dtype, tuple(known))]
