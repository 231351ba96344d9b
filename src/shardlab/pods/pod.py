"""Compile for TPUs and GPUs without having them: the memory, the FLOPs and the communication of a
program.

The compilers for TPUs and NVIDIA GPUs run on ordinary computers: they need the description of a
chip, not the chip. `pip install "jax[tpu]"` installs the one for TPUs (200 MB, Linux on x86-64).

    pod = Pod("v5p:8x8x8")                            # 512 chips
    mesh = pod.mesh((64, 8), ("data", "model"))
    x = jax.ShapeDtypeStruct((4096, 8192), "bfloat16", sharding=NamedSharding(mesh, P("data", "model")))
    program = pod.compile(lambda x: x @ x.T, x)       # a PodProgram: its bytes, its FLOPs, its collectives

Nothing is allocated and nothing runs. Without a compiler, programs that were compiled elsewhere are
read from a recording, and their `source` says so.
"""  # noqa: E501

import functools
import glob
import hashlib
import inspect
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from html import escape
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from shardlab._tables import aligned, html_table
from shardlab.arrays.layout import bytes_text
from shardlab.machines import hardware
from shardlab.machines.hardware import COMPILED_GPUS, COMPILED_TPUS, TPU_KINDS
from shardlab.programs import collectives, kernels
from shardlab.programs.flops import MatmulFlops
from shardlab.programs.hlo import Program
from shardlab.programs.timeline import steps_of

__all__ = ["NoCompiler", "Pod", "PodProgram", "Traffic"]

# one file for each chapter that compiles for pods
RECORDINGS = Path(__file__).with_name("recordings")
# called with label, key and program for every program: scripts/record_pods.py sets it
listener = None
# where the code of a kernel stands in its source
_PLACES = r"\\22debug_locations\\22: \\22[^\\]*\\22"
_JIT_OPTIONS = inspect.signature(jax.jit).parameters.keys() - {"fun"}
_MODEL = 2  # of the times in schedules: raise it when shardlab.programs.timeline gives other ones
_FORM = 1  # the format on disk: raise it when the meaning of a field changes


class NoCompiler(RuntimeError):
    """The compiler for these chips is not installed or not made for this machine; the message says
    what to do.
    """


@dataclass(frozen=True)
class Traffic:
    """All collectives of a program that are alike: one row of its communication.

    Attributes:
      kind: HLO's name, such as "all-gather".
      axes: the mesh axes along which devices communicate; None if the groups do not follow mesh
        axes.
      group: how many devices communicate with each other; for a permute, 2.
      arrays: the types of a device's operands, such as `("bf16[64,1792]",)`.
      times: how often they run in one call of the program, in total; None if only the run decides.
      bytes: bytes that a device sends each time, on a ring; None if only the run decides.
      asynchronous: whether the program starts them and waits for them later.
      hidden_flops: FLOPs of matrix products that a device does, each time, between start and end:
        the smallest number, where they differ. 0 where nothing overlaps; None if unknown.
    """

    kind: str
    axes: tuple[str, ...] | None
    group: int
    arrays: tuple[str, ...]
    times: int | None
    bytes: int | None
    asynchronous: bool
    hidden_flops: int | None


@dataclass(frozen=True, eq=False)
class PodProgram:
    """A program as compiled for a pod. Bytes and FLOPs are those of one device.

    Attributes:
      name: the name given to `compile`, or the function's.
      pod: the chips, such as "v5p:8x8x8".
      devices: how many devices; one for each chip, and two for each tpu7x.
      mesh: sizes by axis, such as `{"data": 64, "model": 8}`.
      fits: False if the compiler refused because of memory; None for GPUs, whose compiler never
        refuses.
      message: the compiler's message in that case; else "".
      peak_bytes: the peak memory of a device, by the compiler's plan. None if refused or unknown.
      argument_bytes, output_bytes, temporary_bytes, aliased_bytes, code_bytes: memory by kind; None
        if refused. Aliased (donated) memory counts as argument and as output, but exists once. The
        kinds can add up to more than the peak, because not all of them are held at the same time.
      flops: FLOPs of matrix products, a loop's body counted as often as it runs; None if unknown.
      flops_once: the "flops" of `cost_analysis`: all operations, but a loop's body once. None if it
        does not say.
      traffic: its communication, as `Traffic` rows, in the order of the program.
      kernels: kernels that communicate by themselves, by name, each with the bytes that it
        declares, or None: what they send is not in the program, and not in `traffic`.
      seconds: the time that compiling took, where it was compiled.
      source: "compiled", "cache" (compiled earlier on this machine) or "recording" (on another).
      provenance: the compiler, JAX version, date and kind of machine.
      schedule: what a device does, in order and with predicted times, if `schedule=True` asked for
        it: what `shardlab.step_timeline` draws. Else None.
      text: what the compiler made of it, in HLO, if this process compiled it; None if it was read
        from disk, where texts are not kept, or refused. `compile(..., fresh=True)` always gives
        one.
    """

    name: str
    pod: str
    devices: int
    mesh: dict[str, int]
    fits: bool | None
    message: str = ""
    peak_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    temporary_bytes: int | None = None
    aliased_bytes: int | None = None
    code_bytes: int | None = None
    flops: int | None = None
    flops_once: float | None = None
    traffic: tuple[Traffic, ...] = ()
    seconds: float = 0.0
    source: str = "compiled"
    provenance: dict[str, str] = field(default_factory=dict)
    schedule: list | None = field(default=None, repr=False)
    text: str | None = field(default=None, repr=False)
    kernels: dict[str, int | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What is kept on disk: all but the text, as a dict that `json` can write."""
        left_out = {"text"} if self.schedule is not None else {"text", "schedule"}
        left_out |= set() if self.kernels else {"kernels"}
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def sent(
        self, *axes: str, kind: str | None = None, asynchronous: bool | None = None
    ) -> int | None:
        """Bytes that a device sends in one call, on rings; None if only the run decides, or a
        kernel by itself.

        `sent("model")` counts the collectives along that axis alone, `sent("data", "model")` those
        along both at once, `sent()` all.

        Args:
          *axes: the axes.
          kind: count only collectives of this kind, such as "all-gather".
          asynchronous: True counts only asynchronous collectives, False only the others.
        """
        if self.kernels:
            return None
        rows = [
            row
            for row in self.traffic
            if (not axes or row.axes == axes)
            and (kind is None or row.kind == kind)
            and (asynchronous is None or row.asynchronous == asynchronous)
        ]
        if any(row.times is None or row.bytes is None for row in rows):
            return None
        return sum(row.times * row.bytes for row in rows)

    def times(self, kind: str, *axes: str) -> int | None:
        """How often collectives of a kind run in one call; None if only the run decides.

        Args:
          kind: the kind, such as "all-to-all".
          *axes: count only collectives along exactly these axes.
        """
        rows = [
            row.times for row in self.traffic if row.kind == kind and (not axes or row.axes == axes)
        ]
        return None if None in rows else sum(rows)

    def _head(self):
        mesh = " × ".join(f"{axis} {size}" for axis, size in self.mesh.items())
        yield "program", f"{self.name}, on {self.pod}: {self.devices:,} devices, {mesh}"
        if self.fits is False:
            yield "fits", f"no: {self.message.splitlines()[0]}"
        else:
            yield (
                "fits",
                "yes"
                if self.fits
                else "unknown: this compiler plans memory, but never refuses a program",
            )
            parts = (
                f"arguments {_amount(self.argument_bytes)}, temporaries "
                f"{_amount(self.temporary_bytes)}, results {_amount(self.output_bytes)}, of "
                f"which {_amount(self.aliased_bytes)} in donated arguments"
            )
            yield "memory", f"at most {_amount(self.peak_bytes)} on each device ({parts})"
            yield (
                "FLOPs",
                "unknown" if self.flops is None else f"{self.flops:.3g} in matrix products",
            )
        for kernel, size in self.kernels.items():
            tells = f"it declares {_amount(size)}" if size else "its bytes are not in the program"
            yield "kernel", f"{kernel} communicates; {tells}"
        yield (
            "source",
            f"{self.source}: {self.seconds:.0f} s, {', '.join(self.provenance.values())}",
        )

    def _rows(self):
        """Rows to print: one for each kind, axes and overlap.

        The overlap is "waits" where the collective is one instruction, "hidden" where matrix
        products run between its start and its end, and "exposed" where none do.
        """
        together = {}
        for row in self.traffic:
            key = (
                row.kind,
                row.axes,
                "waits" if not row.asynchronous else "hidden" if row.hidden_flops else "exposed",
            )
            times, sent = together.get(key, (0, 0))
            known = None not in (row.times, row.bytes, times, sent)
            together[key] = (
                (times + row.times, sent + row.times * row.bytes) if known else (None, None)
            )
        for (kind, axes, overlap), (times, sent) in together.items():
            along = ", ".join(axes) if axes is not None else "other groups"
            known = ("unknown", "unknown") if times is None else (f"{times:,}", _amount(sent))
            yield kind, along, overlap, *known

    def __repr__(self) -> str:
        lines = [f"{label:8} {text}" for label, text in self._head()]
        if self.traffic:
            lines.append(aligned([_COLUMNS, *self._rows()]))
            lines.append(f"sent by each device in total (ring model): {_amount(self.sent())}")
        return "\n".join(lines)

    def _repr_html_(self):
        head = "".join(
            f"<tr><th>{label}</th><td>{escape(text)}</td></tr>" for label, text in self._head()
        )
        text = f'<table class="dataframe"><tbody>{head}</tbody></table>'
        if self.traffic:
            text += (
                html_table(_COLUMNS, self._rows())
                + f"<p>Sent by each device in total (ring model): {_amount(self.sent())}.</p>"
            )
        return text


_COLUMNS = ("collective", "along", "overlap", "times", "sent")


def _amount(count):
    """Less than a megabyte is printed exactly, so that it can be compared with a formula."""
    return bytes_text(count, exact=1_000_000)


def flops_and_traffic(text, mesh, called=None):
    """FLOPs of matrix products in the text of a compiled program, and its communication as
    `Traffic` rows.

    `called` is a list for the calls of kernels that communicate; without it they are an error.
    """
    program, flops, rows = Program(text), MatmulFlops(), {}
    for move, start in collectives.find(program, mesh, kernels=called):
        hidden = flops.beside(start) if move.asynchronous else 0
        group = max(map(len, move.groups), default=1)
        key = move.kind, move.axes, group, move.operands, move.bytes, move.asynchronous
        times, least = rows.get(key, (0, hidden))
        known = None not in (times, move.times)
        rows[key] = (
            times + move.times if known else None,
            None if None in (least, hidden) else min(least, hidden),
        )
    traffic = tuple(
        Traffic(kind, axes, group, arrays, times, sent, asynchronous, hidden)
        for (kind, axes, group, arrays, sent, asynchronous), (times, hidden) in rows.items()
    )
    return flops.of(program.entry), traffic


class Pod:
    """A description of a pod, and the compiler for its chips; the chips themselves are not needed.

    `Pod("v5p:8x8x8")` is a torus of 8 * 8 * 8 = 512 TPU v5p; `Pod("h100:8x8")` is 8 hosts of 8 GPUs
    each. Known are the TPUs v5e, v5p, v6e and tpu7x, and the GPUs a100, h100, h200 and b200.
    Compilers also describe slices of other shapes than those on offer, which
    `shardlab.hardware.machine` knows.

    >>> pod = Pod("v5p:8x8x8")
    >>> pod.size, pod.shape
    (512, (8, 8, 8))
    >>> dict(pod.mesh((64, 8), ("data", "model")).shape)
    {'data': 64, 'model': 8}

    Attributes:
      name: the kind of chip, a colon, and the torus, or hosts x GPUs.
      chip: the kind, such as "v5p".
      shape: the torus, such as (8, 8, 8); for GPUs (hosts, GPUs of a host).
      size: the number of JAX devices of the pod.
      compiler: the compiler with its version, such as "libtpu 0.0.50.1"; None if none is installed.

    Raises:
      ValueError: the chip is unknown, the torus has the wrong number of axes, or no slice has this
        shape.
    """

    def __init__(self, name: str) -> None:
        """Look up the chips; no compiler is loaded yet."""
        match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", str(name))
        self.chip = match[1].lower() if match else None
        if self.chip not in {**COMPILED_TPUS, **COMPILED_GPUS}:
            known = f"{', '.join(COMPILED_TPUS)}, {', '.join(COMPILED_GPUS)}"
            raise ValueError(
                f'no chips are called {name!r}; write "v5p:8x8x8" or "h100:8x8" (known: {known})'
            )
        self.name, self.shape = f"{self.chip}:{match[2]}", tuple(map(int, match[2].split("x")))
        self.is_gpu = self.chip in COMPILED_GPUS
        axes, per_chip = (2, 1) if self.is_gpu else COMPILED_TPUS[self.chip]
        if len(self.shape) != axes or 0 in self.shape:
            form = (
                "hosts x GPUs, such as 8x8"
                if self.is_gpu
                else f"{axes} sizes, such as {'x'.join(['4'] * axes)}"
            )
            raise ValueError(f"{self.chip} needs {form}; got {match[2]}")
        odd = [axis for axis in range(2) if self.shape[axis] % 2 and self.shape[axis] > 1]
        if odd and not self.is_gpu:
            around = [(n - 1, n + 1) if axis in odd else (n,) for axis, n in enumerate(self.shape)]
            near = ", ".join("x".join(map(str, shape)) for shape in product(*around))
            raise ValueError(
                f"there is no {self.name}: a host has 2x2 chips, so the first two sizes are "
                f"even, or 1; the nearest are {near}"
            )
        largest = None if self.is_gpu else hardware.chip(self.chip).torus
        if largest and math.prod(self.shape) > math.prod(largest):
            raise ValueError(
                f"there is no {self.name}, which has {math.prod(self.shape):,} chips: the "
                f"largest slice is {'x'.join(map(str, largest))}, of {math.prod(largest):,}"
            )
        self.size = math.prod(self.shape) * per_chip
        self.compiler = _gpu_compiler() if self.is_gpu else _tpu_compiler()

    def __repr__(self) -> str:
        return (
            f"Pod({self.name!r}): {self.size:,} devices, {self.compiler or 'no compiler installed'}"
        )

    @property
    def _devices(self):
        return _devices_of(self.name, self.compiler)

    def mesh(
        self,
        shape: Sequence[int],
        axes: str | Sequence[str],
        *,
        split: bool = False,
        axis_types: AxisType | Sequence[AxisType] | None = None,
    ) -> Mesh | AbstractMesh:
        """A mesh of all devices: neighbours in the mesh are neighbours on the torus.

        `Pod("v5p:8x8x8").mesh((64, 8), ("data", "model"))` maps `data` to two axes of the torus and
        `model` to the third. On GPUs the last axes of the mesh are within a host. Without a
        compiler it is an `AbstractMesh`.

        Args:
          shape: sizes of the mesh axes; their product is the number of devices.
          axes: their names.
          split: allow several mesh axes to share a torus axis; they then have no wraparound links.
          axis_types: a `jax.sharding.AxisType` for all axes, such as `AxisType.Explicit`, or a
            tuple with one for each; Auto by default.

        Returns:
          A `Mesh`, or an `AbstractMesh`.

        Raises:
          ValueError: the shape does not fit; the message says why, and which shapes do.
        """
        shape, axes = tuple(shape), (axes,) if isinstance(axes, str) else tuple(axes)
        if len(shape) != len(axes):
            raise ValueError(f"a mesh {shape} needs {len(shape)} names for its axes; got {axes}")
        if twice := [axis for axis in axes if axes.count(axis) > 1]:
            raise ValueError(
                f"two axes of the mesh are called {twice[0]!r}; each needs a name of its own; "
                f"got {axes}"
            )
        types = axis_types or AxisType.Auto
        types = tuple(types) if isinstance(types, (tuple, list)) else (types,) * len(axes)
        if len(types) != len(axes) or not all(
            isinstance(axis_type, AxisType) for axis_type in types
        ):
            raise ValueError(
                f"axis_types needs one jax.sharding.AxisType, or one for each of {axes}; got "
                f"{axis_types!r}"
            )
        if math.prod(shape) != self.size:
            raise ValueError(
                f"a mesh {shape} needs {math.prod(shape):,} devices; {self.name} has "
                f"{self.size:,}. {_suggested(self._torus, len(axes))}"
            )
        if not self.is_gpu and not split and not _fits_torus(shape, self._torus):
            raise ValueError(
                f"a mesh {shape} does not fit the torus {'x'.join(map(str, self.shape))} of "
                f"{self.name}: the size of each mesh axis must be a product of torus axes. "
                f"{_suggested(self._torus, len(axes))} Or pass split=True, which lets mesh "
                "axes share a torus axis."
            )
        if not self.compiler or _only_recorded():
            return AbstractMesh(shape, axes, axis_types=types)
        devices = np.array(self._devices)
        if not self.is_gpu:
            devices = _placed(shape, self._devices, split)
        return Mesh(devices.reshape(shape), axes, axis_types=types)

    def places(self, mesh: Mesh | AbstractMesh) -> list[tuple[int, ...]]:
        """Where the devices of a mesh are on the torus: for each its coordinates (x, y) or (x, y,
        z), in mesh order.

        `Pod("v5p:4x4x4").places(mesh)` of a 16 x 4 mesh starts with (0, 0, 0), (1, 0, 0), (2, 0,
        0), (3, 0, 0): the second mesh axis runs along x. The coordinates are those of the
        compiler's description of the chips. Without a compiler, JAX's own rule places devices that
        have nothing but coordinates.

        >>> pod = Pod("v5p:4x4x4")
        >>> pod.places(pod.mesh((16, 4), ("data", "model")))[:4]
        [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)]

        Args:
          mesh: what `mesh` of this pod returned.

        Returns:
          A list of tuples, one for each device; the devices of one chip have the same.

        Raises:
          ValueError: these are GPUs, which a switch connects, or the mesh has another number of
            devices.
        """
        if self.is_gpu:
            raise ValueError(f"{self.name} has no torus: a switch connects the GPUs of a host")
        if mesh.size != self.size:
            raise ValueError(
                f"the mesh has {mesh.size:,} devices, but {self.name} has {self.size:,}"
            )
        if isinstance(mesh, Mesh):
            devices = mesh.devices.flat
        else:
            shape = tuple(mesh.shape.values())
            devices = _placed(shape, self._stand_ins(), not _fits_torus(shape, self._torus)).flat
        return [tuple(map(int, device.coords[: len(self.shape)])) for device in devices]

    def _stand_ins(self):
        """Devices of which only the kind and the place are known: all that JAX's rule for meshes
        asks for.
        """
        x, y, z = (*self.shape, 1)[:3]
        places = product(range(z), range(y), range(x), range(self.size // math.prod(self.shape)))
        same = {
            "platform": "tpu",
            "device_kind": TPU_KINDS[self.chip],
            "process_index": 0,
            "slice_index": 0,
        }
        return [
            SimpleNamespace(id=number, coords=[x, y, z], core_on_chip=core, **same)
            for number, (z, y, x, core) in enumerate(places)
        ]

    def like(self, *args: Any) -> tuple:
        """Arguments for `compile`: the shapes, dtypes and specs of arrays on an emulated mesh, but
        on these chips.

        `pod.compile(matmul, *pod.like(A, B))` compiles for this pod a product that the CPU has just
        computed. The mesh has the same axes with the same sizes and types, and neighbours in it are
        neighbours on the torus, unless it has more axes than the torus, which then share some.

        Args:
          *args: arrays or `jax.ShapeDtypeStruct`s with a `NamedSharding` each, or pytrees of them.
            An array on a single device becomes replicated.

        Returns:
          A tuple of the same pytrees, with a `jax.ShapeDtypeStruct` for each array; what is no
          array, such as a static argument, stays.

        Raises:
          ValueError: no argument has a mesh, or the number of its devices is not that of this pod.
        """
        shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)]
        meshes = {sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)}
        if len({(mesh.axis_names, mesh.axis_sizes) for mesh in meshes}) != 1:
            raise ValueError(
                "all arguments together must name one mesh, such as by NamedSharding; found "
                f"{len(meshes)}"
            )
        theirs = next(iter(meshes))
        shape, axes, types = theirs.axis_sizes, theirs.axis_names, theirs.axis_types
        try:
            mesh = self.mesh(shape, axes, axis_types=types)
        except ValueError as error:
            if "split=True" not in str(error):
                raise
            mesh = self.mesh(shape, axes, axis_types=types, split=True)

        def abstract(leaf):
            if not hasattr(leaf, "dtype"):
                return leaf
            sharding = getattr(leaf, "sharding", None)
            spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

        return jax.tree.map(abstract, args)

    @property
    def _torus(self):
        extra = self.size // math.prod(self.shape)
        return self.shape if extra == 1 else (*self.shape, extra)

    def compile(
        self,
        function: Callable,
        *args: Any,
        name: str | None = None,
        cache: bool | str | Path = True,
        fresh: bool = False,
        compiler_options: Mapping[str, Any] | None = None,
        schedule: bool = False,
        **kwargs: Any,
    ) -> PodProgram:
        """Compile `function(*args)` for these chips, and report its memory, FLOPs and
        communication.

        Compiling takes seconds to minutes. A program compiled earlier is read from disk if program,
        options and versions are the same: from the cache of this machine, or from the recording
        that comes with shardlab. Without a compiler, the recording is searched by `name`, chips,
        mesh and arguments instead.

        Args:
          function: a function, jitted or not.
          *args: `jax.ShapeDtypeStruct`s with shardings on a mesh of this pod, or pytrees of them.
            At least one has to be on the pod. Of the arrays of one device, and of NumPy's, only
            shape and dtype are used; the compiler chooses their layout. Numbers stay as they are.
          name: the name of the program, under which a recording stores it.
          cache: a folder; True for the user's (`$XDG_CACHE_HOME/shardlab/pods`), False for none.
          fresh: compile even if the cache has the program.
          compiler_options: options of XLA, such as `{"xla_tpu_enable_async_all_to_all": "true"}`.
          schedule: whether to keep the order of its instructions, for `shardlab.step_timeline`.
          **kwargs: options of `jax.jit`, such as `donate_argnums=0` or `out_shardings=...`; all
            others are arguments of the function, as `args`.

        Returns:
          `PodProgram`. For a program that is too large for the chips, it has `fits=False`.

        Raises:
          ValueError: no argument is sharded over a mesh of this pod, or one is over another mesh;
            or a schedule is asked for, of chips without a data sheet in `shardlab.hardware`.
          NoCompiler: there is no compiler, and no recording of this program.
        """
        chip = hardware.chip(self.chip) if schedule else None
        jit_options = {key: kwargs.pop(key) for key in list(kwargs) if key in _JIT_OPTIONS}
        mesh = self._mesh_of((args, kwargs, jit_options))
        args, kwargs = jax.tree.map(self._abstract, (args, kwargs))
        name = name or getattr(function, "__name__", "program")
        options = {key: str(value) for key, value in sorted((compiler_options or {}).items())}
        explicit = (
            [str(candidate) for candidate in mesh.axis_types]
            if set(mesh.axis_types) != {AxisType.Auto}
            else []
        )
        what = _described((args, kwargs)), options
        label = _digest([name, self.name, list(mesh.shape.items()), *what, *explicit])
        if not self.compiler or _only_recorded():
            return self._from_recording(label, name)
        jitted = (
            function
            if hasattr(function, "lower") and not jit_options
            else jax.jit(function, **jit_options)
        )
        # A caller's current mesh has other devices; this one also gives bare PartitionSpecs in the
        # program their mesh.
        current = nullcontext() if jax.sharding.get_abstract_mesh().empty else jax.set_mesh(mesh)
        with current:
            lowered = jitted.lower(*args, **kwargs)
        provenance = {
            "compiler": self.compiler,
            "jax": f"JAX {jax.__version__}, jaxlib {version('jaxlib')}",
        }
        order = [device.id for device in mesh.devices.flat]
        text = re.sub(_PLACES, "", lowered.as_text())
        key = _digest([_FORM, text, self.name, order, options, provenance, *[_MODEL] * schedule])
        folder = _cache_folder() if cache is True else Path(cache) if cache else None
        known = [] if fresh else [_read(folder, key), _recorded(key)]
        recorded = next(
            (
                candidate
                for candidate in known
                if candidate and (candidate.schedule is not None or not schedule)
            ),
            None,
        )
        program = recorded or self._compiled(lowered, mesh, name, options, provenance, chip)
        if not recorded:
            _write(folder, key, program)
        program = replace(program, name=name)
        if listener is not None:
            listener(label, key, program)
        return program

    def _compiled(self, lowered, mesh, name, options, provenance, chip):
        machine = f"{os.cpu_count()} cores, {platform.machine()}"
        provenance = provenance | {"date": time.strftime("%Y-%m-%d"), "machine": machine}
        about = {"name": name, "pod": self.name, "devices": self.size, "mesh": dict(mesh.shape)}
        about["provenance"] = provenance
        begin = time.perf_counter()
        try:
            compiled = lowered.compile(compiler_options=options or None)
        except Exception as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return PodProgram(
                **about, fits=False, message=str(error), seconds=time.perf_counter() - begin
            )
        seconds = time.perf_counter() - begin
        memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
        text = compiled.as_text()
        called = []
        flops, traffic = flops_and_traffic(text, mesh, called)
        return PodProgram(
            **about,
            fits=None if self.is_gpu else True,
            peak_bytes=getattr(memory, "peak_memory_in_bytes", 0) or None,
            argument_bytes=memory.argument_size_in_bytes,
            output_bytes=memory.output_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            aliased_bytes=memory.alias_size_in_bytes,
            code_bytes=memory.generated_code_size_in_bytes,
            flops=flops,
            flops_once=(costs or {}).get("flops"),
            traffic=traffic,
            seconds=seconds,
            schedule=chip and steps_of(text, chip, self.shape),
            text=text,
            kernels={kernels.name(call): kernels.declared_bytes(call) for call in called},
        )

    def _abstract(self, leaf):
        """An argument without values: what is compiled depends on its shape and dtype alone."""
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
            return leaf
        placed = getattr(leaf, "sharding", None)
        if placed is not None and len(placed.device_set) > 1:
            raise ValueError(
                f"an argument of shape {leaf.shape} is placed on {len(placed.device_set)} "
                "devices of another mesh; pod.like(...) gives arguments like it on "
                f"{self.name}"
            )
        # NumPy's 64 bits become 32
        dtype = leaf.dtype if isinstance(leaf, jax.Array) else jnp.result_type(leaf)
        return jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=getattr(leaf, "weak_type", False))

    def _mesh_of(self, placed):
        shardings = [getattr(leaf, "sharding", leaf) for leaf in jax.tree.leaves(placed)]
        meshes = [sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)]
        for mesh in meshes:
            abstract = isinstance(mesh, AbstractMesh)
            if mesh.size == self.size and (
                abstract or set(mesh.devices.flat) == set(self._devices)
            ):
                return mesh
        raise ValueError(
            f"no argument is placed on {self.name}: give jax.ShapeDtypeStruct(shape, dtype, "
            "sharding=NamedSharding(mesh, spec)) with a mesh of this pod, pod.mesh(...); "
            f"found {meshes or 'no shardings'}"
        )

    def _from_recording(self, label, name):
        for entry in _recordings():
            if entry["label"] == label:
                program = replace(_from_json(entry["program"]), source="recording")
                if listener is not None:
                    listener(label, entry["key"], program)
                return program
        have = sorted(
            {e["program"]["name"] for e in _recordings() if e["program"]["pod"] == self.name}
        )
        raise NoCompiler(
            f"{_remedy(self.is_gpu)} And {name!r} on {self.name}, with these arguments, is "
            f"not among the recorded programs (for {self.name} there are "
            f"{', '.join(have) or 'none'})."
        )


# --- Compilers ------------------------------------------------------------------------------------


def _installed(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _tpu_compiler():
    if _installed("libtpu"):
        return f"libtpu {_installed('libtpu')}"
    path = os.environ.get("TPU_LIBRARY_PATH")  # another build, such as a nightly one
    return f"libtpu at {path}" if path and os.path.isfile(path) else None


def _gpu_compiler():
    for cuda in ("13", "12"):
        if _installed(f"jax-cuda{cuda}-pjrt") and _installed(f"jax-cuda{cuda}-plugin"):
            return f"jax-cuda{cuda}-pjrt {_installed(f'jax-cuda{cuda}-pjrt')}"
    return None


def _remedy(is_gpu):
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return (
            f"The compiler exists for Linux on x86-64; this is {sys.platform} on "
            f"{platform.machine()}."
        )
    if _only_recorded():
        return "SHARDLAB_PODS=recorded is set, so nothing is compiled."
    what = "NVIDIA GPUs" if is_gpu else "TPUs"
    install = "jax-cuda13-plugin jax-cuda13-pjrt" if is_gpu else '"jax[tpu]"'
    return f"The compiler for {what} is not installed: pip install {install}."


def _only_recorded():
    return os.environ.get("SHARDLAB_PODS") == "recorded"


def _quiet_libtpu():
    """Settings that libtpu reads when it is loaded: do not look for a TPU, write no log, allow
    other processes.
    """
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_LOG_DIR", "disabled")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    # a machine with TPUs has its own settings
    if not (glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")):
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-16")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


@functools.cache
def _devices_of(pod, compiler):
    """The devices of a pod, as JAX describes them."""
    from jax.experimental import topologies

    chip, _, shape = pod.partition(":")
    try:
        # plug-ins load once, perhaps for a TPU first
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
        if chip in COMPILED_GPUS:
            described = {"target_config": _target(chip, compiler), "topology": f"1x{shape}"}
            topology = topologies.get_topology_desc(
                platform="cuda", topology_name=chip, **described
            )
        else:
            _quiet_libtpu()
            topology = topologies.get_topology_desc(platform="tpu", topology_name=pod)
    except NotImplementedError as error:
        raise NoCompiler(
            f"{compiler} is installed, but this JAX has not loaded it: {error}"
        ) from None
    except Exception as error:
        reason = str(error).splitlines()[0]
        if "INVALID_ARGUMENT" in reason:
            raise ValueError(f"there is no {pod}: {reason}") from None
        raise NoCompiler(
            f"{compiler} does not work with JAX {jax.__version__}: {reason}"
        ) from error
    return tuple(topology.devices)


def _target(chip, compiler):
    """A GPU as XLA's GpuTargetConfigProto."""
    gpu = COMPILED_GPUS[chip]
    major, minor = gpu.capability.split(".")
    cuda = re.search(r"cuda(\d+)", compiler)[1]
    return f"""gpu_device_info {{
      cuda_compute_capability {{ major: {major} minor: {minor} }}
      core_count: {gpu.cores} fpus_per_core: {gpu.units} clock_rate_ghz: {gpu.clock_ghz}
      device_memory_size: {gpu.memory_bytes} memory_bandwidth: {gpu.chip.hbm_bytes_per_second:.0f}
      l2_cache_size: {gpu.l2_bytes} shared_memory_per_core: {gpu.shared_bytes_per_core}
      shared_memory_per_block: 49152 shared_memory_per_block_optin: {gpu.shared_bytes_per_block}
      registers_per_core_limit: 65536 registers_per_block_limit: 65536
      threads_per_core_limit: 2048 threads_per_block_limit: 1024 threads_per_warp: 32
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
    }}
    platform_name: "CUDA" runtime_version {{ major: {cuda} }} dnn_version_info {{ major: 9 minor: 10 }}
    device_description_str: "NVIDIA {chip.upper()}" """  # noqa: E501


# --- Meshes on a torus ----------------------------------------------------------------------------


def _placed(shape, devices, split):
    """The devices of a torus as a mesh of this shape, placed by JAX's rule."""
    from jax.experimental.mesh_utils import create_device_mesh

    return create_device_mesh(shape, list(devices), allow_split_physical_axes=split)


def _fits_torus(shape, torus):
    """Whether each mesh axis can be a product of torus axes, each of which is used once."""
    if not shape:
        return math.prod(torus) == 1
    first, *others = shape
    for chosen in product((False, True), repeat=len(torus)):
        taken = math.prod(size for size, yes in zip(torus, chosen, strict=True) if yes)
        left = tuple(size for size, yes in zip(torus, chosen, strict=True) if not yes)
        if taken == first and _fits_torus(tuple(others), left):
            return True
    return False


def _suggested(torus, count):
    """A sentence with the shapes that fit."""
    names = set()
    for owners in product(range(count), repeat=len(torus)):
        names.add(
            tuple(
                math.prod(s for s, o in zip(torus, owners, strict=True) if o == axis)
                for axis in range(count)
            )
        )
    shapes = ", ".join(map(str, sorted(names, reverse=True)[:12]))
    return (
        f"With {count} axes, these fit: {shapes}." if count else "A mesh needs at least one axis."
    )


# --- What is stored on disk -----------------------------------------------------------------------


def _digest(thing):
    return hashlib.sha256(json.dumps(thing, sort_keys=True).encode()).hexdigest()


def _described(args):
    """Shapes, dtypes and specs of arguments, in a form that all versions of JAX share."""
    described = []
    for leaf in jax.tree.leaves(args):
        spec = getattr(getattr(leaf, "sharding", None), "spec", ())
        spec = [list(e) if isinstance(e, tuple) else e for e in spec]
        while spec and not spec[-1]:
            spec.pop()
        known = hasattr(leaf, "shape")
        described.append(
            [list(leaf.shape), str(leaf.dtype), spec]
            if known
            else [type(leaf).__name__, repr(leaf)]
        )
    return described


def _cache_folder():
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardlab" / "pods"


def _read(folder, key):
    """A program compiled earlier; None if there is none, or if it cannot be read."""
    if folder is None:
        return None
    try:
        return replace(_from_json(json.loads((folder / f"{key}.json").read_text())), source="cache")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(folder, key, program):
    """Keep a program, whole or not at all: others may read and write at the same time."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
            json.dump(program.to_json(), file)
        os.replace(file.name, folder / f"{key}.json")
    except OSError:
        pass  # a cache that cannot be written costs time only


@functools.cache
def _recordings():
    return [
        entry
        for file in sorted(RECORDINGS.glob("*.json"))
        for entry in json.loads(file.read_text())["programs"]
    ]


def _recorded(key):
    for entry in _recordings():
        if entry["key"] == key:
            return replace(_from_json(entry["program"]), source="recording")
    return None


def _from_json(data):
    rows = (
        Traffic(
            **row | {"axes": row["axes"] and tuple(row["axes"]), "arrays": tuple(row["arrays"])}
        )
        for row in data["traffic"]
    )
    return PodProgram(**data | {"traffic": tuple(rows)})
