"""A traced program, rewritten: its shardings and shard_maps get another mesh, or its constraints
other specs.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

__all__ = ["rewritten", "transferred"]

# newer versions of JAX have one class for both
_PROGRAMS = (jax.extend.core.Jaxpr, jax.extend.core.ClosedJaxpr)


def transferred(f: Callable, args: tuple, kwargs: dict[str, Any], mesh: Mesh) -> Callable:
    """A function that computes what `f` does, on another mesh.

    Every mesh that the program of `f(*args)` names, in a constraint or a shard_map, is replaced by
    `mesh`, which has the same axes. The function is traced once, for these arguments.

    >>> from shardlab.pods.transfer import transferred
    >>> other = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[4:])
    >>> first = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    >>> double = lambda a: jax.lax.with_sharding_constraint(2 * a, NamedSharding(first, P("d")))
    >>> there = jax.device_put(jnp.ones(8), NamedSharding(other, P("d")))
    >>> moved = transferred(double, (jax.device_put(there, NamedSharding(first, P("d"))),), {}, other)
    >>> sorted(device.id for device in moved(there).sharding.device_set)
    [4, 5, 6, 7]

    Args:
      f: a function, jitted or not.
      args, kwargs: its arguments, on the mesh that it names; arguments that are no arrays become
        part of the program.
      mesh: the mesh of other devices.

    Returns:
      A jitted function with the same arguments, which donates what `f` does.

    Raises:
      ValueError: the program names a mesh with other axes than `mesh`; the message names both.
    """  # noqa: E501
    traced = (f if hasattr(f, "trace") else jax.jit(f)).trace(*args, **kwargs)
    swap = _Rewriting(mesh)
    run = jax.extend.core.jaxpr_as_fun(swap.closed(traced.jaxpr))
    outs, out_tree = jax.tree.flatten(traced.out_info)
    shardings = [getattr(out, "sharding", None) for out in outs]
    shardings = [swap(one) if isinstance(one, NamedSharding) else None for one in shardings]
    info = jax.tree.leaves(traced.args_info)
    fixed, fixed_names = [], []  # static arguments, which the program knows
    if len(info) != len(jax.tree.leaves((args, kwargs))):
        fixed = [n for n, arg in enumerate(args) if not _has_arrays(arg)]
        fixed_names = [name for name, arg in kwargs.items() if not _has_arrays(arg)]

    @functools.wraps(f)
    def moved(*args, **kwargs):
        dynamic = [arg for n, arg in enumerate(args) if n not in fixed]
        named = {name: arg for name, arg in kwargs.items() if name not in fixed_names}
        return jax.tree.unflatten(out_tree, run(*jax.tree.leaves((dynamic, named))))

    donated, start = [], 0
    for n, arg in enumerate(args):
        size = 0 if n in fixed else len(jax.tree.leaves(arg))
        donated += [n] if any(leaf.donated for leaf in info[start : start + size]) else []
        start += size
    return jax.jit(
        moved,
        out_shardings=jax.tree.unflatten(out_tree, shardings),
        donate_argnums=donated,
        static_argnums=fixed,
        static_argnames=fixed_names,
    )


def _has_arrays(arg):
    return any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(arg))


def rewritten(
    program: jax.extend.core.ClosedJaxpr, constraint: Callable[[Any], Any]
) -> jax.extend.core.ClosedJaxpr:
    """A traced program with other sharding constraints.

    >>> from shardlab.pods.transfer import rewritten
    >>> by_rows, whole = NamedSharding(mesh, P("y")), NamedSharding(mesh, P())
    >>> traced = jax.jit(lambda a: jax.lax.with_sharding_constraint(2 * a, whole)).trace(jnp.ones(8))
    >>> program = rewritten(traced.jaxpr, lambda equation: by_rows)
    >>> [*program.jaxpr.eqns[1].params["sharding"].spec]
    ['y']

    Args:
      program: as `jax.jit(f).trace(...).jaxpr` is.
      constraint: called with the equation of each constraint, in inner programs too; returns the
        sharding that it is to have, `equation.params["sharding"]` to leave it as it is, or None to
        leave it out.
    """  # noqa: E501
    return _Rewriting(None, constraint).closed(program)


class _Rewriting:
    """Replaces meshes in the parameters and types of a program, unless the mesh is None, and
    constraints."""

    def __init__(self, mesh, constraint=None):
        self._mesh = mesh
        self._constraint = constraint

    def closed(self, program):
        """A program with its constants, which leave their devices if it gets another mesh."""
        constants = program.consts
        if self._mesh is not None:
            constants = [
                np.asarray(value) if isinstance(value, jax.Array) else value for value in constants
            ]
        return program.replace(jaxpr=self._program(program.jaxpr), consts=constants)

    def __call__(self, value):
        """The value, with another mesh in it; the same object where it names none."""
        if isinstance(value, (Mesh, AbstractMesh, NamedSharding)) and (
            self._mesh is None or (not isinstance(value, NamedSharding) and value.empty)
        ):
            return value
        if isinstance(value, Mesh):
            return Mesh(
                self._named(value).devices, self._mesh.axis_names, axis_types=value.axis_types
            )
        if isinstance(value, AbstractMesh):
            return self._named(value).abstract_mesh.update(axis_types=value.axis_types)
        if isinstance(value, NamedSharding):
            return NamedSharding(self(value.mesh), value.spec, memory_kind=value.memory_kind)
        if isinstance(value, _PROGRAMS):
            return self.closed(value) if hasattr(value, "consts") else self._program(value)
        if isinstance(value, dict):
            return {key: self(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            new = [self(inner) for inner in value]
            if all(inner is before for inner, before in zip(new, value, strict=True)):
                return value
            return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
        return value

    def _named(self, theirs):
        """The new mesh, if it has the axes of another one."""
        if dict(theirs.shape) != dict(self._mesh.shape):
            raise ValueError(
                f"the program names a mesh with the axes {dict(theirs.shape)}, and its "
                f"arguments are on one with the axes {dict(self._mesh.shape)}; to compile it "
                "for other devices, all of them must be one mesh"
            )
        return self._mesh

    def _program(self, program):
        variables = {}
        new = lambda atoms: [self._variable(atom, variables) for atom in atoms]  # noqa: E731
        equations = []
        for equation in program.eqns:
            params = equation.params
            if self._constraint and equation.primitive.name == "sharding_constraint":
                sharding = self._constraint(equation)
                if sharding is None:
                    (variables[id(equation.outvars[0])],) = new(equation.invars)
                    continue
                params = params | {"sharding": sharding}
            equations.append(
                equation.replace(
                    invars=new(equation.invars),
                    outvars=new(equation.outvars),
                    params={name: self(value) for name, value in params.items()},
                    ctx=self._context(equation.ctx),
                )
            )
        ends = {
            "invars": new(program.invars),
            "outvars": new(program.outvars),
            "constvars": new(program.constvars),
        }
        return program.replace(**ends, eqns=equations, debug_info=program.debug_info)

    def _variable(self, atom, variables):
        """A variable or a number with its type on the new mesh; the old one stays, as JAX keeps it
        for other calls.
        """
        if id(atom) in variables:
            return variables[id(atom)]
        sharding = getattr(atom.aval, "sharding", None)
        if self._mesh is None or not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
            return atom
        new = copy.copy(atom)
        new.aval = atom.aval.update(sharding=self(sharding))
        if hasattr(atom, "val"):  # newer versions keep a type of its own in a number
            new.val = np.asarray(atom.val)
        variables[id(atom)] = new
        return new

    def _context(self, context):
        """The context of an equation, which names the mesh that was set."""
        mesh = getattr(context, "cur_abstract_mesh", None)
        if self._mesh is None or mesh is None or mesh.empty:
            return context
        # not a copy: newer versions hand out the same object for equal contexts
        new = object.__new__(type(context))
        for name in type(context).__slots__:
            if name != "__weakref__" and hasattr(context, name):
                object.__setattr__(
                    new, name, self(mesh) if name == "cur_abstract_mesh" else getattr(context, name)
                )
        return new
