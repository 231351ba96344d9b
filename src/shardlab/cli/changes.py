"""What JAX has changed between 0.7 and 0.12, and which lines of a program each change affects."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

LAX, NUMPY, SHARDING = "jax.lax", "jax.numpy", "jax.sharding"
PALLAS, TPU = "jax.experimental.pallas", "jax.experimental.pallas.tpu"
OLD_MAP = "jax.experimental.shard_map"
MAPS = ("jax.shard_map", f"{OLD_MAP}.shard_map")
MESHES = ("jax.make_mesh", f"{SHARDING}.Mesh")
PUT = "jax.device_put(x, NamedSharding(mesh, P(...)))"
INDEX = "index the reference, as in ref[...]"

# Names that fail, or warn: since when, and the new form.
GONE = {
    "jax.device_put_replicated": ("0.10.0", PUT),
    "jax.device_put_sharded": ("0.10.0", PUT),
    "jax.core.get_aval": ("0.10.0", "jax.typeof"),
    "jax.experimental.disable_x64": ("0.9.0", "jax.enable_x64(False), from 0.8.0"),
    "jax.experimental.enable_x64": ("0.9.0", "jax.enable_x64(True), from 0.8.0"),
    "jax.experimental.host_callback": ("0.8.0", "jax.pure_callback or jax.debug.callback"),
    "jax.extend.ffi": ("0.8.0", "jax.ffi"),
    "jax.lib.xla_bridge": ("0.9.0", "jax.extend.backend"),
    "jax.util": ("0.8.0", "functions of your own: nothing replaces it"),
    f"{LAX}.pvary": ("0.10.0", "jax.lax.pcast(..., to='varying'), from 0.8.2"),
    f"{PALLAS}.atomic_add": ("0.9.0", "jax.experimental.pallas.triton.atomic_add"),
    f"{PALLAS}.dot": ("0.11.2", "jnp.dot, or @"),
    f"{PALLAS}.load": ("0.9.0", INDEX),
    f"{PALLAS}.store": ("0.9.0", INDEX),
    f"{PALLAS}.swap": ("0.9.0", INDEX),
    f"{SHARDING}.PmapSharding": ("0.10.0", "jax.sharding.NamedSharding"),
    f"{SHARDING}.PositionalSharding": ("0.7.0", "jax.sharding.NamedSharding"),
    f"{SHARDING}.use_mesh": ("0.7.1", "jax.set_mesh"),
    f"{TPU}.ANY": ("0.10.0", "pl.ANY"),
    f"{TPU}.DeviceIdType": ("0.11.0", "no device_id_type=, or pl.DeviceIdType before 0.12.0"),
    f"{TPU}.TPUCompilerParams": ("0.7.2", "pltpu.CompilerParams"),
    f"{TPU}.repeat": ("0.10.2", "jnp.tile"),
    f"{TPU}.semaphore_read": ("0.11.0", "pl.semaphore_read"),
    f"{TPU}.semaphore_signal": ("0.11.0", "pl.semaphore_signal"),
    f"{TPU}.semaphore_wait": ("0.11.0", "pl.semaphore_wait"),
}
WARNS = {
    "jax.experimental.pjit": ("0.8.0", "jax.jit"),
    "jax.interpreters.pxla": ("0.8.2", "jax.sharding.get_mesh, under jax.set_mesh"),
    OLD_MAP: ("0.8.0", "jax.shard_map, with keywords"),
    f"{PALLAS}.DeviceIdType": ("0.12.0", "no device_id_type="),
    f"{PALLAS}.core_map": ("0.11.1", "pl.kernel, from 0.8.1"),
    f"{PALLAS}.ops.gpu": ("0.11.1", "the package tokamax"),
}
# Calls that run on, and mean something else.
SILENT = {
    "jax.pmap": ("0.8.0", "replicates y[0] of its result", "y.addressable_data(0)[0]"),
    f"{NUMPY}.empty": ("0.11.0", "does not zero its memory", "jnp.zeros"),
    f"{NUMPY}.empty_like": ("0.11.0", "does not zero its memory", "jnp.zeros_like"),
}
CONFIG = {
    "jax_cpu_enable_gloo_collectives": (
        "0.8.0",
        "jax.config.update('jax_cpu_collectives_implementation', 'gloo')",
    ),
    "jax_pmap_no_rank_reduction": ("0.9.0", "nothing: it is always true"),
    "jax_pmap_shmap_merge": ("0.10.0", "nothing: it is always true"),
}
# What explicit axes refuse without a place for the result, or along a sharded dimension.
TYPED = {
    f"{NUMPY}.repeat": ("0.9.0", "out_sharding=, or operands that are sharded as the result is"),
    f"{NUMPY}.sort": (
        "0.9.2",
        "an array whose sorted dimension is not sharded: jax.sharding.reshard",
    ),
    f"{NUMPY}.cumsum": (
        "0.10.0",
        "an array whose summed dimension is not sharded: jax.sharding.reshard",
    ),
}


@dataclass(frozen=True)
class Affected:
    """A place in a program that a change affects.

    Attributes:
      line: its line.
      name: what is affected, such as `jax.lax.pvary`.
      since: the release, such as "0.10.0".
      says: what became of it.
      new: the new form.
      sure: whether it is; else only what runs can tell.
      node: of the syntax tree, for who edits it.
    """

    line: int
    name: str
    since: str
    says: str
    new: str
    sure: bool = True
    node: ast.AST | None = None


class Names:
    """What the names of a program stand for, as its imports and plain assignments say."""

    def __init__(self, tree: ast.AST):
        """Read the imports and assignments of the syntax tree of a program."""
        self._scopes = {tree: self._bound(tree, {})}
        self._of = {}
        self._enter(tree, tree)

    def _enter(self, node, scope):
        for child in ast.iter_child_nodes(node):
            self._of[child] = scope
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                self._enter(child, scope)
                continue
            self._scopes[child] = self._scopes[scope] | self._bound(child, self._scopes[scope])
            self._enter(child, child)
            defaults = [*child.args.defaults, *filter(None, child.args.kw_defaults)]
            for part in [*getattr(child, "decorator_list", ()), *defaults]:
                self._of[part] = scope  # these run where the function is defined
                self._enter(part, scope)

    def _bound(self, scope, outer):
        """The names that a scope binds; None for what is no part of a library."""
        bound, assigned = {}, []
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = scope.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            every += [one for one in (arguments.vararg, arguments.kwarg) if one]
            bound = {one.arg: None for one in every}
        body = scope.body if isinstance(scope.body, list) else [scope.body]
        for node in _of_scope(body):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    bound.setdefault(name, alias.name if alias.asname else name)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    bound.setdefault(alias.asname or alias.name, f"{node.module}.{alias.name}")
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.setdefault(node.id, None)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound.setdefault(node.name, None)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assigned.append(node)
        for node in assigned:  # P = jax.sharding.PartitionSpec
            meant = _dotted(node.value, outer | bound)
            once = sum(one.targets[0].id == node.targets[0].id for one in assigned) == 1
            if meant and once:
                bound[node.targets[0].id] = meant
        return bound

    def meaning(self, node: ast.AST) -> str:
        """The full name of what an expression stands for, such as "jax.lax.pvary"; else ""."""
        return _dotted(node, self._scopes[self._of[node]]) if node in self._of else ""

    def written(self, expression: ast.AST, node: ast.AST) -> str:
        """The full name of an expression that would stand where a node of the program does."""
        return _dotted(expression, self._scopes[self._of[node]])


def _of_scope(body):
    """The nodes of a scope, without those of the functions and classes in it."""
    waiting = list(reversed(body))
    while waiting:
        node = waiting.pop()
        yield node
        inner = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
        if not isinstance(node, inner):
            waiting += reversed(list(ast.iter_child_nodes(node)))


def _dotted(node, bound):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or not bound.get(node.id):
        return ""
    return ".".join([bound[node.id], *reversed(parts)])


def guarded(tree: ast.AST) -> set[ast.AST]:
    """The nodes of a program that some versions never run: of `try` with its handlers, and of `if`
    that asks for a version or for an attribute.
    """
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            kinds = [ast.unparse(one.type) if one.type else "Exception" for one in node.handlers]
            is_guard = any("Import" in k or "Attribute" in k or "Module" in k for k in kinds) or (
                "Exception" in kinds
            )
        elif isinstance(node, ast.If | ast.IfExp):
            asked = ast.unparse(node.test)
            is_guard = "hasattr(" in asked or "version" in asked.lower()
        else:
            continue
        if is_guard:
            inside |= set(ast.walk(node))
    return inside


def affected(tree: ast.AST) -> Iterator[Affected]:
    """The places in a program, in no order, that changes affect; guarded ones too.

    Args:
      tree: its syntax tree.
    """
    names = Names(tree)
    parts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    typed = _is_typed(tree, names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _of_import(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield from _of_attribute(node, names, node in parts)
        elif isinstance(node, ast.Call):
            yield from _of_call(node, names, typed)
        elif isinstance(node, ast.Compare):
            yield from _of_comparison(node, names)
        elif isinstance(node, ast.With | ast.AsyncWith):
            yield from _of_context(node, tree, names)


def _is_typed(tree, names):
    """Whether a program seems to have explicit axes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "Explicit":
            return True
        is_mesh = isinstance(node, ast.Call) and names.meaning(node.func) == "jax.make_mesh"
        if is_mesh and not _has(node, "axis_types", 2):
            return True
    return False


def _looked_up(name):
    """The longest entry of the tables that a full name is, or is inside of."""
    parts = name.split(".")
    for count in range(len(parts), 1, -1):
        prefix = ".".join(parts[:count])
        for table, says in ((GONE, "is gone"), (WARNS, "warns")):
            if prefix in table:
                return prefix, says, *table[prefix]
    return None


def _of_import(node):
    if isinstance(node, ast.Import):
        full = [(alias, alias.name) for alias in node.names]
    elif node.level or not node.module:
        return
    else:
        full = [(alias, f"{node.module}.{alias.name}") for alias in node.names]
    for alias, name in full:
        if known := _looked_up(name):
            prefix, says, since, new = known
            yield Affected(alias.lineno, prefix, since, says, new, node=node)


def _of_attribute(node, names, is_part):
    name = names.meaning(node)
    known = _looked_up(name) if name else None
    if known and known[0] == name:
        yield Affected(node.lineno, name, known[2], known[1], known[3], node=node)
    elif node.attr == "vma" and not is_part:
        new = "jax.typeof(x).manual_axis_type.varying, from 0.10.0"
        sure = isinstance(node.value, ast.Call) and names.meaning(node.value.func) == "jax.typeof"
        yield Affected(node.lineno, ".vma", "0.10.0", "is gone from types of arrays", new, sure)


def _has(call, keyword, position):
    """Whether a call gives an argument, or may, by * or **."""
    return (
        len(call.args) > position
        or any(isinstance(one, ast.Starred) for one in call.args)
        or any(one.arg in (keyword, None) for one in call.keywords)
    )


def mapped(call: ast.Call, names: Names) -> tuple[str, list[ast.expr]]:
    """Which function a call calls, directly or through `functools.partial`, and with which
    arguments by position.
    """
    name, arguments = names.meaning(call.func), call.args
    if name == "functools.partial" and arguments:
        return names.meaning(arguments[0]), arguments[1:]
    return name, arguments


def _of_call(node, names, typed):
    name, arguments = mapped(node, names)
    keywords = {one.arg: one.value for one in node.keywords}

    def of(says, since, new, sure=True, where=node):
        return Affected(where.lineno, name, since, says, new, sure, node)

    if isinstance(node.func, ast.Name) and name == f"{LAX}.pvary":
        yield of("is gone", *GONE[name])
    if name in SILENT:
        since, says, new = SILENT[name]
        yield of(says, since, new, name != "jax.pmap")
    yield from _of_mesh(node, name, keywords, of)
    yield from _of_map(node, name, arguments, keywords, of)
    if name.endswith("multihost_utils.process_allgather") and not _has(node, "tiled", 1):
        yield of("refuses a global array without tiled=True", "0.8.0", "tiled=True", sure=False)
    if name == "jax.ShapeDtypeStruct" and "vma" in keywords:
        new = "manual_axis_type=jax.sharding.ManualAxisType(varying=...), from 0.10.0"
        yield of("has no argument vma", "0.10.0", new)
    if "device_id_type" in keywords:
        yield of("warns of device_id_type", "0.12.0", "no device_id_type=", sure=False)
    option = getattr(arguments[0], "value", None) if arguments else None
    if name.endswith("config.update") and isinstance(option, str) and option in CONFIG:
        yield of(f"does not know {option}", *CONFIG[option])
    if typed and "out_sharding" not in keywords:
        if name in TYPED:
            yield of("can be refused on explicit axes", *TYPED[name], sure=False)
        if name == f"{NUMPY}.einsum" and _has_batch(arguments):
            new = "operands that are sharded alike along their batch dimensions, or out_sharding="
            yield of("can be refused on explicit axes", "0.11.1", new, sure=False)


def _of_mesh(node, name, keywords, of):
    if name == "jax.make_mesh" and not _has(node, "axis_types", 2):
        new = "axis_types=(jax.sharding.AxisType.Auto,) * n, for the axes that it made"
        yield of("without axis_types= makes explicit axes", "0.9.0", new)
    if name == f"{SHARDING}.AbstractMesh" and not _has(node, "axis_types", 2):
        yield of("without axis_types= has explicit axes", "0.11.1", "axis_types=")
    if name == "jax.make_mesh" and "axis_shapes" in keywords:
        yield of("has no argument axis_shapes", "0.11.1", "both by position")


def _of_map(node, name, arguments, keywords, of):
    if name not in MAPS:
        return
    if "check_rep" in keywords:
        is_new, new = name == "jax.shard_map", "jax.shard_map(..., check_vma=)"
        says = "has no argument check_rep" if is_new else "warns, and takes check_rep"
        where = keywords["check_rep"]
        yield of(says, "0.6.1" if is_new else "0.8.0", new, where=where)
    if "auto" in keywords:
        yield of("has no argument auto", "0.8.0", "axis_names=, the axes that are not in it")
    if name == "jax.shard_map" and len(arguments) > (node.args == arguments):
        yield of("takes keywords only", "0.6.1", "mesh=, in_specs=, out_specs=")


def _has_batch(arguments):
    """Whether the subscripts of an einsum of two name a dimension of both and of the result."""
    if not arguments or not isinstance(arguments[0], ast.Constant):
        return False
    inputs, arrow, out = str(arguments[0].value).partition("->")
    one, comma, other = inputs.partition(",")
    return bool(arrow and comma and set(one) & set(other) & set(out) - set(" .,"))


def _of_comparison(node, names):
    sides = [node.left, *node.comparators]
    specs = [
        side
        for side in sides
        if (isinstance(side, ast.Attribute) and side.attr == "spec")
        or (isinstance(side, ast.Call) and _is_spec(names.meaning(side.func)))
    ]
    is_equality = all(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops)
    if is_equality and specs and any(isinstance(side, ast.Tuple) for side in sides):
        yield Affected(
            node.lineno, "PartitionSpec", "0.10.0", "equals no tuple", "P(...) on both sides",
            node=node,
        )  # fmt: skip
    texts = [side.value for side in sides if isinstance(side, ast.Constant)]
    for text in (one for one in texts if isinstance(one, str)):
        if "PartitionSpec(" in text or "TFRT_CPU" in text:
            since, what = ("0.9.1", "a spec") if "Part" in text else ("0.10.0", "a CPU device")
            says = f"{what} prints otherwise"
            yield Affected(
                node.lineno, repr(text), since, says, "a comparison of values", node=node
            )


def _is_spec(name):
    return name in ("jax.P", f"{SHARDING}.PartitionSpec", f"{SHARDING}.P")


def _of_context(node, tree, names):
    meshes = {
        ast.unparse(one.targets[0])
        for one in ast.walk(tree)
        if isinstance(one, ast.Assign)
        and isinstance(one.value, ast.Call)
        and names.meaning(one.value.func) in MESHES
    }
    for item in node.items:
        expression = item.context_expr
        written = ast.unparse(expression)
        is_call = isinstance(expression, ast.Call)
        sure = written in meshes or (is_call and names.meaning(expression.func) in MESHES)
        if sure or (not is_call and "mesh" in written.lower()):
            says = "warns" if sure else "warns, if it is a mesh"
            new = f"with jax.set_mesh({written}):, which commits the arrays made under it"
            yield Affected(expression.lineno, f"with {written}:", "0.10.1", says, new, sure, node)
