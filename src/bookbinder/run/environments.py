"""The JAX versions that readers have, and for each an environment of its own below
`_build/environments`.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from uv import find_uv_bin

from bookbinder import disk
from bookbinder.progress import AS_TEXT
from bookbinder.read import package
from bookbinder.stopping import Stop, Stopped

RUNNER = ("ipykernel", "nbclient")  # what run_notebook.py needs
JAX = ("jax>=0.dev0", "jaxlib>=0.dev0")  # also of last night
COLAB = Path(__file__).with_name("colab.txt")


class EnvironmentFault(Exception):
    """An environment cannot be had here; the message says why, and what to do."""


@dataclass(frozen=True)
class Environment:
    """A Python with packages: a column of the matrix.

    Attributes:
      name: such as "colab".
      pythons: the versions of Python that are suitable, best first.
      requirements: what to install.
      constraints: a file of pins for whatever is installed.
      daily: whether its packages are resolved again each day.
      index: the only index from which JAX is installed.
      python: the interpreter of an existing environment, in place of all the above.
    """

    name: str
    pythons: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    constraints: Path | None = None
    daily: bool = False
    index: str | None = None
    python: str | None = None


def environments(root):
    """The columns of the matrix, for the project in the folder `root`.

    Where the environment variable JAX_NIGHTLY names an index of JAX's nightly builds, there is a
    column for those too.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    others = (*project["optional-dependencies"]["chapters"], *RUNNER)
    recent = ("3.14", "3.13", "3.12", "3.11")
    index, oldest = os.environ.get("JAX_NIGHTLY"), package.of(root).minimum_jax
    nightly = Environment("nightly", recent, (*JAX, "numpy", *others), daily=True, index=index)
    return (
        Environment(
            "colab",
            ("3.13", "3.12"),
            ("jax", "numpy", "pip", *others, *package.of(root).not_in_colab),
            constraints=COLAB,
        ),
        # the last JAX for Python 3.11
        Environment("0.10.2", ("3.11",), ("jax==0.10.2", "numpy", *others)),
        Environment("lock", python=sys.executable),
        Environment("newest", recent, (*project["dependencies"], *others), daily=True),
        Environment(oldest, ("3.13", "3.12", "3.11"), (f"jax=={oldest}", "numpy", *others)),
        *([nightly] if index else []),
    )


def make(environment, folder, progress, stop=None):
    """Make an environment in a folder, unless it is there already and its definition has not
    changed.

    Args:
      environment: an `Environment`.
      folder: where environments are; this one is in a folder of its name in it.
      progress: a `bookbinder.progress.Progress`.
      stop: a `bookbinder.stopping.Stop`, or None.

    Returns:
      The path of its interpreter.

    Raises:
      EnvironmentFault: there is no such Python here, or the packages cannot be installed.
      Stopped: `stop` was set.
    """
    if environment.python:
        return environment.python
    stop = stop or Stop()
    interpreter = find_python(environment, stop)
    with disk.alone(folder, progress, stop, "making of environments") as lock:
        return _make(environment, interpreter, folder / environment.name, progress, stop, lock)


def _make(environment, interpreter, place, progress, stop, lock):
    python, ready = place / "bin" / "python", place / "ready"
    pins = environment.constraints.read_text("utf-8") if environment.constraints else ""
    today = date.today() if environment.daily else ""
    definition = f"{environment.requirements}\n{pins}\n{interpreter}\n{place}\n{today}\n{environment.index}\n"  # noqa: E501
    if ready.exists() and ready.read_text("utf-8") == definition and python.exists():
        return str(python)

    progress.say(f"{environment.name}: installing packages, with {interpreter}")
    shutil.rmtree(place, ignore_errors=True)
    constraints = ["--constraints", str(environment.constraints)] if environment.constraints else []
    # the first kernels compile what they import: a quarter of it
    install = ["pip", "install", "--python", str(python)]
    commands = [["venv", "--python", interpreter, str(place)]]
    if environment.index:
        commands += [[*install, "--no-deps", "--default-index", environment.index, *JAX]]
    commands += [[*install, *constraints, *environment.requirements]]
    for command in commands:
        status, _, output = uv(*command, "--quiet", stop=stop, lock=lock)
        if status:
            # uv explains itself over several lines, with a frame around them.
            output = " ".join(
                output.replace("×", " ").replace("╰─▶", " ").replace("│", " ").split()
            )
            where = (
                "check src/bookbinder/run/environments.py, and whether packages can be downloaded "
                "at all"
            )
            raise EnvironmentFault(
                f"{environment.name}: cannot be installed: {output[:600]}; {where}"
            )
    ready.write_text(definition, "utf-8")
    return str(python)


def find_python(environment, stop=None):
    """The path of the first interpreter that suits an environment. Nothing is downloaded."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    path = os.pathsep.join(
        [os.environ.get("PATH", ""), *map(str, sorted(pyenv.glob("*/bin"), reverse=True))]
    )
    for version in environment.pythons:
        # It knows its own folder, and passes over what does not run.
        status, out, _ = uv(
            "python", "find", version, "--system", "--no-project", stop=stop, PATH=path
        )
        if status == 0:
            return out.strip()
    versions = " or ".join(environment.pythons)
    raise EnvironmentFault(
        f"{environment.name}: no Python {versions} on PATH, in {pyenv} or in uv's folder; "
        "install one, for example with `.venv/bin/uv python install "
        f"{environment.pythons[0]}`, and run this again"
    )


def uv(*arguments, stop=None, lock=None, **variables):
    """Run uv to its end, holding a lock; returns its exit status, standard output and standard
    error.
    """
    variables = {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1", **variables}
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("UV_SYSTEM_PYTHON", "VIRTUAL_ENV")
    }
    with subprocess.Popen(
        [find_uv_bin(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **AS_TEXT,
        env=environment | variables,
        # were this process killed, the next would wait for uv to end
        pass_fds=[lock] if lock else [],
        start_new_session=True,  # so that Ctrl-C reaches it through us alone
    ) as process:
        while True:
            try:
                out, err = process.communicate(timeout=0.2)
                return process.returncode, out, err
            except subprocess.TimeoutExpired:
                if stop and stop.signal:
                    process.kill()
                    process.communicate()
                    raise Stopped(stop.signal) from None
