"""`shardlab upgrade`: what it lists in a program under whatever names, what it leaves alone, what
it edits, and that no file makes it fail otherwise than with one line.
"""

import ast
import json

import pytest

pytestmark = pytest.mark.reads("src/shardlab")


@pytest.fixture
def listed(run, tmp_path):
    """What the command lists of a program: name, line and whether it is sure."""

    def command(source, name="program.py"):
        (tmp_path / name).write_text(source, "utf-8")
        status, out, err = run("upgrade", str(tmp_path / name), "--json")
        told = [(one["name"], one["line"], one["sure"]) for one in json.loads(out)]
        assert not err and status == bool(told)
        return told

    return command


@pytest.fixture
def edited(run, tmp_path):
    """A program after --write, and the names of what is still listed in it."""

    def command(source):
        file = tmp_path / "program.py"
        file.write_bytes(source.encode())
        run("upgrade", str(file), "--write")
        left = json.loads(run("upgrade", str(file), "--json")[1])
        return file.read_bytes().decode(), [one["name"] for one in left]

    return command


MESH = "jax.make_mesh"
OLD = "jax.experimental.shard_map"
LISTED = {
    "an alias of a function": ("from jax import make_mesh as mm\nm = mm((8,), ('d',))", MESH, 2),
    "an alias of a module": ("import jax.lax as l\ny = l.pvary(1, 'd')", "jax.lax.pvary", 2),
    "a plain assignment": ("import jax\nmk = jax.make_mesh\nm = mk((8,), ('d',))", MESH, 3),
    "inside a function": ("def f():\n    import jax as j\n    j.device_put_sharded([], [])",
        "jax.device_put_sharded", 3),
    "an import alone": ("from jax.sharding import (\n  NamedSharding,\n  PmapSharding as Q)",
        "jax.sharding.PmapSharding", 3),
    "a module inside a module": ("import jax.experimental.pjit as p", "jax.experimental.pjit", 1),
    "a name of an old module": ("from jax.extend.ffi import ffi_call", "jax.extend.ffi", 1),
    "a keyword in a partial": ("import functools as ft, jax\n@ft.partial(jax.shard_map,\n"
        "  check_rep=False)\ndef f(x): pass", "jax.shard_map", 3),
    "arguments by position": ("import jax\njax.shard_map(f, m, 1, 2)", "jax.shard_map", 2),
    "a context": ("import jax\nm = jax.sharding.Mesh(d, 'x')\nwith m: pass", "with m:", 3),
    "a spec and a tuple": ("assert x.sharding.spec != ('d',)", "PartitionSpec", 1),
    "a printed device": ("if 'TFRT_CPU_0' in str(d): pass", "'TFRT_CPU_0'", 1),
    "an option": ("import jax\njax.config.update('jax_pmap_shmap_merge', 0)",
        "jax.config.update", 2),
    "a varying type": ("import jax\nv = jax.typeof(x).vma", ".vma", 2),
    "a default value": ("import jax\ndef f(jax=jax.numpy.empty(3)): pass", "jax.numpy.empty", 2),
    "an abstract mesh": ("from jax.sharding import AbstractMesh\nAbstractMesh((8,), ('d',))",
        "jax.sharding.AbstractMesh", 2),
    "a shape with vma": ("import jax\njax.ShapeDtypeStruct((8,), int, vma={'d'})",
        "jax.ShapeDtypeStruct", 2),
}  # fmt: skip


@pytest.mark.parametrize("case", LISTED)
def test_what_is_affected_is_listed_with_its_line(listed, case):
    source, name, line = LISTED[case]
    assert (name, line, True) in listed(source)


LEFT = {
    "a word in a string": "import jax\ns = 'jax.lax.pvary(x) and make_mesh(8)'",
    "a comment": "import jax  # jax.device_put_sharded",
    "another library's function": "from mine import make_mesh, pvary\nmake_mesh(8)\npvary(1)",
    "a parameter that hides a module": "import jax\ndef f(jax): return jax.lax.pvary(1)",
    "a local name that hides a module": "import jax\ndef f():\n  jax = g()\n  return jax.util",
    "axis types": "import jax\njax.make_mesh((8,), ('d',), axis_types=t)",
    "axis types by position": "import jax\njax.make_mesh((8,), ('d',), t)",
    "arguments that are not seen": "import jax\njax.make_mesh(*a)\njax.make_mesh(**k)",
    "a context of another kind": "with open('a') as f: pass\nwith lock: pass",
    "tuples": "assert shape == (1, 2)",
    "a guard by import": "try:\n  from jax.lax import pcast\nexcept ImportError:\n"
    "  from jax.lax import pvary as pcast",
    "a guard by attribute": "from jax import lax\nif not hasattr(lax, 'pcast'):\n  lax.pvary(1)",
    "a guard by version": "import jax\nm = jax.util if jax.__version__ < '0.8' else 1",
    "repeats on automatic axes": "import jax.numpy as jnp\njnp.repeat(a, 2, axis=0)",
    "nothing": "",
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_not_affected_is_not_listed(listed, case):
    assert listed(LEFT[case]) == []


def test_what_depends_on_values_is_listed_as_perhaps(listed, run, tmp_path):
    source = "import jax, jax.numpy as jnp\nT = jax.sharding.AxisType.Explicit\n"
    assert listed(source + "jnp.repeat(a, 2, axis=0)") == [("jax.numpy.repeat", 3, False)]
    assert listed(source + "jnp.repeat(a, 2, axis=0, out_sharding=s)") == []
    heads = source + "jnp.einsum('bthd,bshd->bhts', q, k)"
    assert listed(heads) == [("jax.numpy.einsum", 3, False)]
    assert listed(source + "jnp.einsum('ij,jk->ik', a, b)") == []
    assert listed("with self.mesh: pass") == [("with self.mesh:", 1, False)]
    out = run("upgrade", str(tmp_path / "program.py"))[1]
    assert out.startswith("? ") and out.endswith("\n0 affected, 1 perhaps\n")


def test_edits_keep_the_rest_of_the_program(edited):
    source = (
        "import jax\r\nfrom jax import lax, numpy as jnp\r\nN = ('a', 'b')\r\n"
        "s = 'é'; m = jax.make_mesh((4, 2), N,)  # of 8\r\n"
        "def f(x):\r\n\treturn lax.pvary(\r\n\t\tx,\r\n\t\t'a',  # an axis\r\n\t)\r\n"
        "e = jnp.empty((3,)) + jnp.empty_like(m)\x0c\r\n"
        "k = jax.make_mesh(axis_shapes = (8,), axis_names=('d',))\r\n"
    )
    after, left = edited(source)
    assert left == []
    assert "N,axis_types=(jax.sharding.AxisType.Auto,) * len(N))  # of 8\r\n" in after
    assert "\tx,\r\n\t\t'a',  # an axis\r\n\tto=\"varying\")" in after and "lax.pcast(" in after
    assert "e = jnp.zeros((3,)) + jnp.zeros_like(m)\x0c\r\n" in after
    assert "make_mesh((8,), axis_names=('d',), axis_types=" in after
    assert after.count("\r\n") == source.count("\r\n") and ast.parse(after)


def test_shard_map_is_edited_with_its_import(edited):
    source = (
        "from functools import partial\nfrom jax.experimental.shard_map import shard_map as sm\n"
        "@partial(sm, mesh=m, in_specs=s, out_specs=s, check_rep=False)\ndef f(x): return x\n"
        "g = sm(f, m, (s,), s, check_rep=True)\n"
    )
    after, left = edited(source)
    assert left == [] and "from jax import shard_map as sm\n" in after
    assert "sm(f, mesh=m, in_specs=(s,), out_specs=s, check_vma=True)" in after


UNEDITED = {
    "axes left to the compiler": "g = shard_map(f, m, s, s, auto=frozenset('b'))",
    "arguments that are not seen": "g = shard_map(f, *specs)",
    "keywords that are not seen": "g = shard_map(f, **options)",
    "a function that is passed on": "g = wrap(shard_map)",
}


@pytest.mark.parametrize("case", UNEDITED)
def test_what_cannot_be_edited_safely_stays(edited, case):
    source = f"from {OLD} import shard_map\n{UNEDITED[case]}\n"
    assert edited(source)[0] == source


def test_varying_casts_are_edited_together_or_not_at_all(edited):
    source = "from jax.lax import pvary\ny = pvary(x, 'd')\n"
    assert edited(source)[0] == "from jax.lax import pcast\ny = pcast(x, 'd', to=\"varying\")\n"
    passed_on = source + "z = tree_map(pvary, y)\n"
    assert edited(passed_on)[0] == passed_on


def test_a_mesh_stays_where_axistype_cannot_be_written(edited):
    source = "from jax import make_mesh\nm = make_mesh((8,), ('d',))\n"
    assert edited(source)[0] == source
    known = f"from jax.sharding import AxisType\n{source}"
    assert edited(known)[0].endswith("make_mesh((8,), ('d',), axis_types=(AxisType.Auto,) * 1)\n")


def test_an_edited_program_is_not_edited_again(edited):
    source = "import jax\nm = jax.make_mesh((8,), ('d',))\n"
    once, _ = edited(source)
    assert once != source and edited(once)[0] == once


def test_a_byte_order_mark_stays(edited):
    after, _ = edited("\ufeffimport jax\nm = jax.make_mesh((8,), ('d',))\n")
    assert after.startswith("\ufeffimport jax\n") and "Auto" in after


def test_cells_of_notebooks_know_the_imports_above_them(listed, run, tmp_path):
    cells = [
        {"cell_type": "markdown", "source": "import jax"},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "from jax import lax\n"]},
        {"cell_type": "code", "source": "%%bash\necho jax ("},
        {"cell_type": "code", "source": "\n!pip list\nlax.pvary(1, 'd')"},
    ]
    told = listed(json.dumps({"cells": cells}), "a.ipynb")
    assert told == [("jax.lax.pvary", 3, True)]
    before = (tmp_path / "a.ipynb").read_bytes()
    assert ", cell 4, line 3: jax.lax.pvary" in run("upgrade", str(tmp_path / "a.ipynb"))[1]
    assert run("upgrade", str(tmp_path / "a.ipynb"), "--write")[0] == 1
    assert (tmp_path / "a.ipynb").read_bytes() == before


def test_cells_of_markdown_are_read_and_nothing_else(listed):
    text = (
        "# jax.util\n```{code-cell} ipython3\n:tags: [hide-cell]\n\n%%time\nfrom jax import lax\n"
        "```\n`lax.pvary`\n```text\nlax.pvary(\n```\n```python\nlax.pvary(1, 'd')\n```\n"
    )
    assert listed(text, "a.md") == [("jax.lax.pvary", 13, True)]


WRONG = {
    "no Python": (b"x = = 1", ":1: this is no Python: invalid syntax"),
    "another encoding": ("x = 'é'".encode("latin-1"), "byte 5 is no UTF-8"),
    "a zero byte": (b"x = 1\0", "this is no Python"),
    "nested too deeply": (b"(" * 5000, "this is no Python"),
    "a long sum": (b"x = " + b"-" * 100_000 + b"1", "this is no Python"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_is_no_program_is_one_line_and_the_others_are_read(run, tmp_path, case):
    content, says = WRONG[case]
    (tmp_path / "bad.py").write_bytes(content)
    (tmp_path / "good.py").write_text("import jax.util")
    files = [str(tmp_path / name) for name in ("bad.py", "good.py")]
    status, out, err = run("upgrade", *files)
    assert status == 2 and err.count("\n") == 1 and says in err and "Traceback" not in err
    assert "good.py:1: jax.util is gone, since 0.8.0\n" in out


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing.py", None, "No such file or directory"),
        ("a.ipynb", b"[]", "no notebook of format 4"),
        ("a.ipynb", b'{"cells": [{"cell_type": "code", "source": 3}]}', "no notebook of format 4"),
        ("a.ipynb", b'{"cells": [{"cell_type": "code", "source": "\\nx ="}]}', "cell 1, line 2"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(run, tmp_path, name, content, says):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    status, _, err = run("upgrade", str(tmp_path / name))
    assert status == 2 and err.count("\n") == 1 and says in err


def test_a_folder_is_refused_with_what_to_name(run, tmp_path):
    status, _, err = run("upgrade", str(tmp_path))
    assert status == 2 and "name the files in it, such as src/*.py" in err


def test_help_says_what_is_not_seen(run):
    status, out, _ = run("upgrade", "--help")
    assert status == 0 and "--write" in out and "getattr" in out and "exit status" in out
