"""Check the numbers and names that functions are given, which may be NumPy arrays; errors show the wrong one."""

import numpy as np


def first(values, wrong):
    values, wrong = np.broadcast_arrays(values, wrong)
    return values[wrong].flat[0].item()


def whole(name, value):
    """Whole numbers of at least one."""
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be a whole number or an array of them, not {value!r}")
    wrong = ~((numbers >= 1) & (numbers == np.floor(numbers)))
    if wrong.any():
        raise ValueError(f"{name} is {first(numbers, wrong)}; use a whole number of at least 1")
    return numbers[()]


def amount(name, value):
    """Finite numbers that are not negative, as floats, whose products do not overflow."""
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be a number or an array of them, not {value!r}")
    wrong = ~((numbers >= 0) & np.isfinite(numbers))
    if wrong.any():
        raise ValueError(f"{name} is {first(numbers, wrong)}; use a number that is not negative")
    return numbers.astype(float)[()]


def one_of(name, value, known):
    if value not in known:
        raise ValueError(f"{name}={value!r} is not known; use one of {', '.join(known)}")
    return value
