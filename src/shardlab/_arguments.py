"""Check the numbers and names that functions are given, which may be NumPy arrays; errors show the
wrong one.
"""

import errno
import linecache
import os
import re
import stat
from difflib import get_close_matches
from pathlib import Path

import numpy as np

Numbers = float | np.ndarray  # a number, or an array of them


def first(values, wrong):
    """The first of the values that are wrong, as a mask says."""
    values, wrong = np.broadcast_arrays(values, wrong)
    return values[wrong].flat[0].item()


MOST = 10**15  # of anything that is counted: doubles, and products of a few such numbers, hold it


def whole(name, value):
    """The value as whole numbers from 1 to MOST; ValueError for others."""
    if isinstance(value, int) and value > MOST:
        raise ValueError(f"{name} is {short(value)}; use a whole number of at most {MOST:,}")
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be a whole number or an array of them, not {value!r}")
    wrong = ~((numbers >= 1) & (numbers == np.floor(numbers)))
    if wrong.any():
        raise ValueError(f"{name} is {first(numbers, wrong)}; use a whole number of at least 1")
    if (numbers > MOST).any():
        raise ValueError(
            f"{name} is {first(numbers, numbers > MOST)}; use a whole number of at most {MOST:,}"
        )
    return numbers[()]


MOST_SAID = 300  # characters of a reason


def harmless(text):
    """A text without what a terminal would obey, and without halves of characters; lines stay."""
    text = re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,1000}(\x07|\x1b\\))?", "", text)
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", " ", text)
    return text.encode("utf-8", "replace").decode()


def plain(text, most=MOST_SAID):
    """A text as `harmless` makes it, in one line; of a long one, its beginning and its end."""
    text = " ".join(harmless(text).split())
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[5 - most // 3 :]}"


MOST_READ = 100_000_000  # bytes of a file


def file_bytes(path):
    """What a file holds; OSError, too, for a pipe that would be waited for, a device without end,
    and more than MOST_READ bytes.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a file")
    if status.st_size > MOST_READ:
        raise OSError(errno.EFBIG, f"{status.st_size:,} bytes; at most {MOST_READ:,} are read")
    return Path(path).read_bytes()


def source_line(file, line):
    """A line of a source that a program names; "" where there is none, and of what is no source,
    such as a pipe that would be waited for or a device without end.
    """
    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= MOST_READ:
            return ""
    except (OSError, ValueError):  # a cell of a notebook has no file, and is known all the same
        pass
    return linecache.getline(file, line)


def short(value):
    """A value in a message: of one that is long the beginning, and of a very long number how many
    digits it has.
    """
    if isinstance(value, int) and abs(value) > 10**40:
        return f"a number of about {value.bit_length() * 3 // 10:,} digits"
    return shown if len(shown := repr(value)) <= 80 else f"{shown[:76]} ..."


def amount(name, value):
    """The value as finite numbers that are not negative; floats, because their products do not
    overflow.
    """
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be a number or an array of them, not {value!r}")
    wrong = ~((numbers >= 0) & np.isfinite(numbers))
    if wrong.any():
        raise ValueError(f"{name} is {first(numbers, wrong)}; use a number that is not negative")
    return numbers.astype(float)[()]


def one_of(name, value, known):
    """The value, if it is known; else a ValueError lists what is, and suggests the nearest."""
    if value not in known:
        raise ValueError(
            f"{name}={value!r} is not known; use one of {', '.join(known)}{nearest(value, known)}"
        )
    return value


def nearest(name, known):
    """ "; did you mean 'x'?" if a mistyped name resembles a known one, else an empty text."""
    by_lower = {str(candidate).lower(): str(candidate) for candidate in known}
    matches = get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[matches[0]]!r}?" if matches else ""
