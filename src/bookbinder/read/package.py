"""What is special to the package that a book's chapters import: the table `[tool.bookbinder]` of
its pyproject.toml.
"""

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bookbinder import disk
from bookbinder.read.book import BookError


@dataclass(frozen=True)
class Programs:
    """How compiled programs are kept from run to run: the table `[tool.bookbinder.programs]`.

    Attributes:
      packages: those whose versions decide whether a program can be used again.
      folder: the variable that names the folder where programs are kept.
      variables: others that processes have then.
      change: code that has a process use another `folder`, or None.
    """

    packages: tuple[str, ...]
    folder: str
    change: str
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Package:
    """The package that chapters import; a book without such a table has one without a name.

    Attributes:
      name: as chapters import it, such as "shardlab": its modules are in src/shardlab.
      recordings: a folder with a file for each chapter, which may read all of them and depends on
        its own alone.
      not_in_colab: what notebooks install in Colab besides, with versions that work there.
      set_up: code that a notebook begins with if one of its cells has the text `set_up_for`.
      unset: a regular expression of variables that chapters do not inherit from whoever builds the
        book.
      variables: those that they have instead.
      programs: how compiled programs are kept; None if they are not.
      minimum_jax: the oldest JAX that it takes, such as "0.7.1"; "" where pyproject.toml does not
        say.
      wheel: the name of its wheel, for notebooks in Colab; "" where pyproject.toml does not say how
        it is built.
    """

    name: str = ""
    recordings: str = ""
    not_in_colab: tuple[str, ...] = ()
    set_up: str = ""
    set_up_for: str = ""
    unset: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    programs: Programs | None = None
    minimum_jax: str = ""
    wheel: str = ""

    @property
    def folder(self):
        """The folder of its modules, relative to the root."""
        return Path("src", self.name)

    def is_imported(self, code):
        """Whether some code names it."""
        return bool(self.name) and re.search(rf"\b{self.name}\b", code) is not None

    def data_files(self, root):
        """The names of its files that are no modules, as a text; on contents a run depends if it
        has read them.
        """
        data = (path for path in disk.files(root / self.folder) if path.suffix != ".py")
        return "\n".join(
            str(path) for path in data if self.folder / path.parent != Path(self.recordings)
        )


@cache
def of(root):
    """The `Package` of the book below a folder.

    Raises:
      BookError: pyproject.toml cannot be read, or its table has a key that is not known.
    """
    file = root / "pyproject.toml"
    try:
        table = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BookError(file.name, None, f"not TOML: {error}") from None
    own = table.get("tool", {})
    own = own.get("bookbinder", {}) if isinstance(own, dict) else {}
    if not isinstance(own, dict):
        raise BookError(file.name, None, f"tool.bookbinder is {str(own)[:80]}; use a table")
    settings = _settings(own, Package, file.name)
    if programs := settings.pop("programs", None):
        settings["programs"] = Programs(**_settings(programs, Programs, file.name, ".programs"))
    project = table.get("project", {}) if "build-system" in table else {}
    named = {"name", "version"} <= project.keys()
    wheel = (
        f"{project['name'].replace('-', '_')}-{project['version']}-py3-none-any.whl"
        if named
        else ""
    )
    needed = " ".join(table.get("project", {}).get("dependencies", ()))
    minimum = re.search(r"\bjax>=([\d.]+)", needed)
    return Package(**settings, wheel=wheel, minimum_jax=minimum[1] if minimum else "")


def _settings(table, kind, file, where=""):
    """A table of TOML as arguments for a dataclass."""
    settings = {key.replace("-", "_"): value for key, value in table.items()}
    known = kind.__dataclass_fields__.keys() - {"wheel", "minimum_jax"}
    if unknown := settings.keys() - known:
        has, has_not = ", ".join(sorted(known)).replace("_", "-"), min(unknown).replace("_", "-")
        raise BookError(file, None, f"[tool.bookbinder{where}] has no {has_not}; it has {has}")
    for key, value in settings.items():
        wanted, right = _KINDS[kind.__annotations__[key]]
        if not right(value):
            name = key.replace("_", "-")
            raise BookError(
                file, None, f"[tool.bookbinder{where}] {name} is {str(value)[:80]}; use {wanted}"
            )
    return settings


def _texts(value):
    return all(isinstance(text, str) for text in value)


# What a setting must be, in words and as a function, by the type of the attribute.
_KINDS = {
    str: ("a text", lambda value: isinstance(value, str)),
    tuple[str, ...]: ("a list of texts", lambda value: isinstance(value, list) and _texts(value)),
    dict[str, str]: (
        "a table of texts",
        lambda value: isinstance(value, dict) and _texts(value.values()),
    ),
    Programs | None: ("a table", lambda value: isinstance(value, dict)),
}
