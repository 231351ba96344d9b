"""Old forms of JAX, each run beside the code that replaces it: the table of the chapter
`from_old_jax`.

>>> from shardlab.book.old_jax import OLD_FORMS, table_of, tried
>>> print(table_of(tried(OLD_FORMS)))  # doctest: +SKIP
| old | replacement | on JAX 0.12.0 | since |
"""

import re
import tomllib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Version = tuple[int, ...]

# What all old forms and their replacements may use; eight devices.
NAMES = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

auto = AxisType.Auto
mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(auto, auto))
line = jax.make_mesh((8,), ("d",), axis_types=(auto,))
x = np.arange(64, dtype=np.float32).reshape(8, 8)
"""
_LONGEST = 71  # characters of an error's message in the table


@dataclass(frozen=True)
class OldForm:
    """Lines that were right in an old JAX, and the lines that replace them.

    Attributes:
      old, new: both leave their result in `out`, if they have one.
      gone: the release from which the old lines fail; None if they still work.
      warns: the release from which they give a DeprecationWarning; None if none did.
      begins: the release from which the new lines work; (0,) if that was before 0.7.1.
      since: what the table says in place of `gone` and `warns`.
      is_alone: whether one process can run them; a chapter runs the others itself.
    """

    old: str
    new: str
    gone: Version | None = None
    warns: Version | None = None
    begins: Version = (0,)
    since: str = ""
    is_alone: bool = True

    @property
    def history(self) -> str:
        """Since when they fail or warn, for the table."""
        if self.since:
            return self.since
        if self.gone and self.warns:
            return f"{_dots(self.gone)}, warned from {_dots(self.warns)}"
        if self.gone:
            return _dots(self.gone)
        return f"warns from {_dots(self.warns)}" if self.warns else "still works"


@dataclass(frozen=True)
class Tried:
    """What became of an old form on the JAX that is installed.

    Attributes:
      form: that form.
      error: the name and the message of the error; "" if it works.
      does_warn: whether it works with a DeprecationWarning.
    """

    form: OldForm
    error: str
    does_warn: bool

    @property
    def now(self) -> str:
        """In words, for the table."""
        if len(self.error) > _LONGEST:
            return f"{self.error[:_LONGEST].rsplit(' ', 1)[0]} …"
        return self.error or ("works, and warns" if self.does_warn else "works")


def attempt(code: str, **given: Any) -> tuple[Any, Exception | None]:
    """Run some lines with the names of `NAMES` on eight devices, without their warnings.

    >>> from shardlab.book.old_jax import attempt
    >>> attempt("out = 3 * 4")
    (12, None)

    Args:
      code: the lines.
      given: more names for them.

    Returns:
      what they leave in `out`, None if nothing; and the error that ended them, None if none did.
    """
    names = _names() | given
    with warnings.catch_warnings(action="ignore"):
        try:
            exec(code, names)
        except Exception as error:
            return None, error
    return names.get("out"), None


def tried(forms: Iterable[OldForm]) -> list[Tried]:
    """Run old forms and their replacements, and hold both against what is said of them.

    >>> from shardlab.book.old_jax import OldForm, tried
    >>> [one.error for one in tried([OldForm("from jax import pmap", "from jax import jit")])]
    ['']

    Args:
      forms: old forms; what one process cannot run counts as it is said to be.

    Returns:
      What became of each, in the same order.

    Raises:
      AssertionError: an old form works or fails, or a replacement fails, in a release in which it
        should not; or both work and differ in a value, or in which device stores which shard.
    """
    return [_tried(form) for form in forms]


def table_of(rows: Iterable[Tried]) -> str:
    """The table, in Markdown.

    Args:
      rows: what `tried` returns.
    """
    import jax

    lines = [f"| old | replacement | on JAX {jax.__version__} | since |", "|---|---|---|---|"]
    for row in rows:
        form = row.form
        later = f" (from {_dots(form.begins)})" if any(form.begins) else ""
        now = row.now.replace("|", "\\|")
        lines.append(f"| {_cell(form.old)} | {_cell(form.new)}{later} | {now} | {form.history} |")
    return "\n".join(lines)


def _tried(form):
    import jax

    here = jax.__version_info__
    should_fail = form.gone is not None and here >= form.gone
    should_warn = form.warns is not None and here >= form.warns and not should_fail
    if not form.is_alone:
        return Tried(form, "ValueError" if should_fail else "", should_warn)
    result, error = attempt(form.old)
    if (error is not None) != should_fail:
        said = f"since {_dots(form.gone)}" if form.gone else "in no release"
        raise AssertionError(f"is said to fail {said}, but here {error or 'works'}: {form.old}")
    expected, trouble = attempt(form.new)
    if (trouble is None) != (here >= form.begins):
        raise AssertionError(f"the replacement {trouble or 'works too early'}: {form.new}")
    if not error and not trouble and not _is_same(result, expected):
        raise AssertionError(f"differs from its replacement, {expected}: {result} by {form.old}")
    said = ""
    if error:
        message = re.sub(r" \(\S*/.*\)", "", str(error)).split("\n")[0]
        said = f"{type(error).__name__}: {message}"
    return Tried(form, said, should_warn)


def _is_same(one, other):
    """Whether two results are equal, and are stored alike if they are arrays."""
    import jax

    from shardlab.arrays.layout import same_layout

    if not isinstance(one, jax.Array):
        return one == other
    return same_layout(one, other) and bool((one == other).all())


def _names():
    names = {}
    exec(NAMES, names)
    return names


def _dots(version):
    return ".".join(map(str, version))


def _cell(code):
    lines = code.replace("out = ", "").strip().splitlines()
    return "<br>".join(f"`{text.strip()}`" for text in lines)


def _read():
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    releases = "gone", "warns", "begins"
    for form in tomllib.loads(text)["forms"]:
        versions = {k: tuple(map(int, form[k].split("."))) for k in releases if k in form}
        yield OldForm(**form | versions)


OLD_FORMS = tuple(_read())
