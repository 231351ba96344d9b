"""What a `jax.shard_map` communicates in its forward and in its backward pass, for
`shardlab.pictures.draw`.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardlab.arrays.layout import spec_text
from shardlab.costs.communication.kinds import OPERATIONS
from shardlab.pictures.svg import PALETTE, Picture, escape, figure, rect, row, text, text_width

__all__ = ["draw_backward"]

# What is drawn of JAX's operations inside shard_map: collectives and casts, as their users write
# them.
_DRAWN = {
    **OPERATIONS, "pvary": "cast to varying", "pcast": "cast to varying",
    "reduced_vary_cast": "cast to varying",
    "preduced": "cast to reduced", "vary_unreduced_cast": "cast to unreduced",
}  # fmt: skip
# Operations that change neither which devices a value comes from nor where it goes: we look through
# them.
_THROUGH = (
    "add_any",
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
    "div",
    "mul",
    "neg",
    "reshape",
    "squeeze",
    "transpose",
)
_FORWARD, _BACKWARD = PALETTE[0], PALETTE[5]


def draw_backward(
    body: Callable,
    in_specs: Any,
    out_specs: Any,
    *args: Any,
    mesh: Mesh | AbstractMesh | None = None,
) -> Picture:
    """Draw what a `jax.shard_map` communicates in its forward pass and, in the other direction, in
    its backward pass.

    Each argument and each result has a box with its spec and its type on one device, and two
    arrows: down for the forward pass, up for the cotangents of the backward pass. With `body =
    lambda W, x: lax.pmean(loss(W, x), "d")`, `in_specs=(P(), P("d"))` and `out_specs=P()`, the
    argument `W` is cast to varying on its way down, and its cotangent is added up by a psum along
    d. The argument `x` needs neither. The collectives are those of the two programs that `jax.vjp`
    makes, read from their jaxprs.

    >>> body = lambda W, x: jax.lax.pmean((x @ W).sum(), "y")
    >>> W, x = jnp.ones((4, 3)), jnp.ones((8, 4))
    >>> draw_backward(body, (P(), P("y")), P(), W, x, mesh=mesh)
    Forward and backward pass of shard_map of <lambda>
    W, P(), on each device f32[4,3]: forward cast to varying y, backward psum y.
    x, P("y"), on each device f32[2,4]{V:y}: forward as it is, backward as it is.
    result, P(), on each device f32[]: forward psum y, backward cast to varying y.

    Args:
      body: what each device runs.
      in_specs: a `PartitionSpec`, or a tuple of one for each argument.
      out_specs: the same for the results.
      *args: the global arguments: floating-point arrays, or `jax.ShapeDtypeStruct`s.
      mesh: the mesh; by default the current one, as `jax.set_mesh` sets it.

    Returns:
      A `Picture`. Collectives between two products inside the body are not at its boundary, and not
      drawn.

    Raises:
      TypeError: an argument has no floating-point type, so it has no cotangent; or as
        `jax.shard_map` does.
      ValueError: the body has an operation across devices that is not known here.
    """
    on = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    # there a type has its sharding
    explicit = jax.sharding.AxisType.Explicit in getattr(on, "axis_types", ())
    placed = [NamedSharding(on, spec) if explicit else None for spec in _each(in_specs, len(args))]
    args = [
        jax.ShapeDtypeStruct(jnp.shape(arg), arg.dtype, sharding=sharding)
        for arg, sharding in zip(args, placed, strict=False)
    ]
    for arg in args:
        if not jnp.issubdtype(arg.dtype, jnp.floating):
            raise TypeError(
                f"draw_backward() needs floating-point arguments: one of type {arg.dtype} has "
                "no cotangent"
            )
    options = {"in_specs": in_specs, "out_specs": out_specs} | (
        {"mesh": mesh} if mesh is not None else {}
    )
    mapped = jax.shard_map(body, **options)
    results = jax.eval_shape(mapped, *args)
    single = not isinstance(results, tuple)

    def both_passes(args, cotangents):
        results, pull_back = jax.vjp(mapped, *args)
        return results, pull_back(cotangents)

    program = jax.make_jaxpr(both_passes)(args, results).jaxpr
    results = [results] if single else list(results)
    ends = program.outvars
    forward, (result_places, argument_places) = _pass(
        program, ends[: len(results)], program.invars[: len(args)]
    )
    backward, (cotangent_outs, cotangent_ins) = _pass(
        program, ends[len(results) :], program.invars[len(args) :]
    )
    names = list(inspect.signature(body).parameters)
    in_specs, out_specs = _each(in_specs, len(args)), _each(out_specs, len(results))
    arguments = [
        _End(
            name,
            spec,
            _type(forward.invars[a]),
            _after(forward, forward.invars[a]),
            _before(backward, b),
        )
        for name, spec, a, b in zip(names, in_specs, argument_places, cotangent_outs, strict=False)
    ]
    outcomes = [
        _End(
            f"result {i + 1}" if len(results) > 1 else "result",
            spec,
            _type(a),
            _before(forward, a),
            _after(backward, backward.invars[b]),
        )
        for i, (spec, a, b) in enumerate(zip(out_specs, result_places, cotangent_ins, strict=True))
    ]
    return _picture(getattr(body, "__name__", "body"), arguments, outcomes)


@dataclass(frozen=True)
class _End:
    """An argument or a result of the body, and its collectives in both passes, as texts."""

    name: str
    spec: jax.sharding.PartitionSpec
    type: str
    forward: list
    backward: list


def _each(specs, count):
    specs = (
        specs
        if isinstance(specs, (tuple, list)) and not isinstance(specs, jax.sharding.PartitionSpec)
        else [specs]
    )
    return list(specs) * count if len(specs) == 1 else list(specs)


def _pass(program, ends, starts):
    """The jaxpr of the shard_map that makes `ends`; the variables in it of `ends`, and the places
    of `starts`.
    """
    for equation in program.eqns:
        if equation.primitive.name == "shard_map" and ends[-1] in equation.outvars:
            inner = equation.params["jaxpr"]
            _refuse_unknown(inner)
            outs = [
                inner.outvars[equation.outvars.index(end)] if end in equation.outvars else None
                for end in ends
            ]
            return inner, (outs, [equation.invars.index(start) for start in starts])
    raise TypeError("draw_backward() found no shard_map in the program of both passes")


def _refuse_unknown(jaxpr):
    """Raise an error at an operation across devices that the picture would leave out."""
    for equation in jaxpr.eqns:
        axes = equation.params.get("axes", equation.params.get("axis_name", ()))
        across = any(
            isinstance(axis, str) for axis in (axes if isinstance(axes, (tuple, list)) else (axes,))
        )
        if across and equation.primitive.name not in {*_DRAWN, "axis_index", "axis_size"}:
            raise ValueError(
                f"draw_backward() does not know JAX's operation {equation.primitive.name}, "
                f"which works along {axes}, and would leave it out of the picture"
            )


def _type(variable):
    """A type on one device, as text; older versions of JAX write {x} for {V:x}."""
    words = str(variable.aval)
    words = words if "V:" in words else words.replace("{", "{V:")
    return re.sub(r"^(b?)float", lambda match: "bf" if match[1] else "f", words)


def _is_collective(equation):
    """Whether an operation is a collective, or the cast of a variable: casts of numbers in the
    program do not count.
    """
    return equation.primitive.name in _DRAWN and not isinstance(
        equation.invars[0], jax.extend.core.Literal
    )


def _said(equation):
    """A collective in words, such as "psum d"."""
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    return f"{_DRAWN[equation.primitive.name]} {','.join(map(str, axes))}"


def _after(jaxpr, variable):
    """The collectives that a variable enters first."""
    words = []
    for equation in jaxpr.eqns:
        if any(operand is variable for operand in equation.invars):
            if _is_collective(equation):
                words.append(_said(equation))
            elif equation.primitive.name in _THROUGH:
                words += _after(jaxpr, equation.outvars[0])
    return list(dict.fromkeys(words))


def _before(jaxpr, variable):
    """The collectives that a variable has just left."""
    for equation in jaxpr.eqns:
        if any(operand is variable for operand in equation.outvars):
            if _is_collective(equation):
                return [_said(equation)]
            if equation.primitive.name in _THROUGH:
                words = [word for operand in equation.invars for word in _before(jaxpr, operand)]
                return list(dict.fromkeys(words))
    return []


# --- The picture ----------------------------------------------------------------------------------


def _picture(body, arguments, results):
    columns = [_width(end) for end in arguments], [_width(end) for end in results]
    width = max(sum(widths) + 12 * (len(widths) - 1) for widths in columns)
    parts, left = [], 0
    for words, colour in (("forward pass", _FORWARD), ("backward pass", _BACKWARD)):
        parts.append(f'<path d="M{left} 6h22" stroke="{colour}" stroke-width="4"/>')
        parts.append(text(left + 28, 10.5, words, size=12, anchor="start"))
        left += 28 + text_width(words) + 14
    top = 24
    _ends(parts, arguments, columns[0], width, top, top + 42)
    top += 42 + 46
    parts.append(rect(0, top, width, 28, more=' rx="5"'))
    parts.append(text(width / 2, top + 18.5, body, size=13, bold=True))
    top += 28
    _ends(parts, results, columns[1], width, top + 46, top)
    bottom = top + 46 + 42
    specs = [", ".join(spec_text(end.spec) for end in ends) for ends in (arguments, results)]
    title = f"Forward and backward pass of shard_map of {body}"
    lines = [_line(end) for end in (*arguments, *results)]
    options = (
        f"<code>in_specs = {escape(specs[0])}</code>, <code>out_specs = {escape(specs[1])}</code>"
    )
    caption = f"{options}; dashed: sends nothing"
    html = row(figure(parts, width, bottom, title, " ".join(lines), caption))
    return Picture(html, "\n".join([title, *lines]))


def _ends(parts, ends, columns, width, box_top, arrow_top):
    """Boxes side by side; below or above each an arrow down for the forward pass and one up for the
    backward pass.
    """
    left = (width - sum(columns) - 12 * (len(columns) - 1)) / 2
    for end, wide in zip(ends, columns, strict=True):
        parts.append(rect(left, box_top, wide, 42))
        parts.append(
            text(
                left + wide / 2,
                box_top + 17,
                f"{end.name}: {spec_text(end.spec)}",
                size=12,
                bold=True,
            )
        )
        parts.append(text(left + wide / 2, box_top + 33, end.type, size=12))
        for n, (label, colour) in enumerate(((end.forward, _FORWARD), (end.backward, _BACKWARD))):
            x, start, turn = left + 12 + 16 * n, arrow_top + (44 if n else 2), -1 if n else 1
            sends = any(not words.startswith("cast") for words in label)
            for path, look in (
                (f"M{x:g} {start:g}v{40 * turn}", "" if sends else ' stroke-dasharray="4 3"'),
                (f"M{x - 5:g} {start + 35 * turn:g}l5 {7 * turn}l5 {-7 * turn}", ""),
            ):
                parts.append(
                    f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="3"{look}/>'
                )
            words = f"{'↑' if n else '↓'} {' and '.join(label) or 'as it is'}"
            parts.append(text(left + 40, arrow_top + 19 + 17 * n, words, size=12, anchor="start"))
        left += wide + 12


def _width(end):
    widest = max(
        (" and ".join(words) or "as it is" for words in (end.forward, end.backward)), key=text_width
    )
    inside = max(text_width(f"{end.name}: {spec_text(end.spec)}"), text_width(end.type))
    return round(max(inside + 16, 40 + text_width(f"↓ {widest}")))


def _line(end):
    forward, backward = (" and ".join(words) or "as it is" for words in (end.forward, end.backward))
    return (
        f"{end.name}, {spec_text(end.spec)}, on each device {end.type}: forward {forward}, "
        f"backward {backward}."
    )
