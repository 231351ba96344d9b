"""Which names a statement of a program makes, uses and changes, and on which statements others
depend.
"""

import ast
import symtable


def depended_on(statements, roots):
    """The statements among `roots`, and those on which they depend, from the last to the first."""
    bodies = {}
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            bodies.setdefault(statement.name, set()).update(uses_of(statement))
    chosen, wanted = [], set()
    for statement in reversed(statements):
        changes = _changes(statement)
        if statement in roots or (makes_of(statement) | changes) & wanted:
            chosen.append(statement)
            wanted -= _surely_makes(statement) - changes
            more = uses_of(statement)
            while more:  # a function's body uses names when it is called, which is later
                wanted |= more
                more = {name for known in more for name in bodies.get(known, ())} - wanted
    return chosen


def _tables(statement):
    """The symbol tables of a statement, and of the functions in it."""
    tables = [symtable.symtable(ast.unparse(statement), "a statement", "exec")]
    for table in tables:
        tables += table.get_children()
    return tables


def makes_of(statement):
    """The names that a statement assigns."""
    names = _tables(statement)[0].get_symbols()
    return {name.get_name() for name in names if name.is_assigned() or name.is_imported()}


def _surely_makes(statement):
    """Those that it assigns in any case."""
    if isinstance(statement, ast.With):
        return set().union(*map(_surely_makes, statement.body))
    is_plain = isinstance(
        statement, (ast.Assign, ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    )
    return makes_of(statement) if is_plain else set()


def uses_of(statement):
    """The names whose values from before a statement uses, also in functions."""
    if isinstance(statement, (ast.For, ast.With)):
        is_loop = isinstance(statement, ast.For)
        heads = [(statement.iter, statement.target)] if is_loop else []
        heads += [
            (item.context_expr, item.optional_vars) for item in getattr(statement, "items", ())
        ]
        found, made = set(), set()
        for value, target in heads:
            found |= uses_of(ast.Expr(value)) - made
            made |= (
                {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
                if target
                else set()
            )
        for inner in statement.body:
            found |= uses_of(inner) - made
            made |= _surely_makes(inner)
        return found
    added_to = {
        part.target.id
        for part in ast.walk(statement)
        if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)
    }
    return {
        name.get_name()
        for depth, table in enumerate(_tables(statement))
        for name in table.get_symbols()
        if (name.is_referenced() or name.get_name() in added_to)
        and (depth == 0 or name.is_global())
    }


def _changes(statement):
    """The names whose values it changes, as in `steps.append(step)`, `bytes["x"] = 1` and
    `jax.set_mesh(mesh)`.

    A stack that enters a context, `stack.enter_context(jax.set_mesh(mesh))`, also changes what the
    context changes.
    """
    found = set()
    for part in ast.walk(statement):
        if isinstance(part, ast.Call) and getattr(part.func, "attr", "") == "enter_context":
            found |= _changes(ast.Expr(part.args[0]))
        is_call = isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)
        if is_call or isinstance(getattr(part, "ctx", None), ast.Store):
            whole = target = part.value.func if is_call else part
            while isinstance(target, (ast.Attribute, ast.Subscript)):
                target = target.value
            found |= {target.id} if isinstance(target, ast.Name) and target is not whole else set()
    return found
