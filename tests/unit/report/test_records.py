"""The fixture `explained`: a test fails when its program sends more than in its record, or gains a
finding; and what counts as more."""

import json
import os
import re
import subprocess
import sys
import textwrap

import jax
import pytest
from places import ROOT
from steps import CORRECT, MISTAKES

from shardlab import compare, explain
from shardlab.report.records import Record, change_since, growth

pytestmark = pytest.mark.reads("src/shardlab", "book/recipes")

STEP = """
    import jax, jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    def step(w, x):
        return w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    def example(spec):
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
        on = lambda shape, *spec: jax.ShapeDtypeStruct(
            shape, "float32", sharding=NamedSharding(mesh, P(*spec))
        )
        w = on((512, 512), *spec)
        f = jax.jit(step, donate_argnums=0, out_shardings=w.sharding)
        return f, w, on((64, 512), "data")
"""
TEST = """
    from train import example
    SPEC = ("data",)
    def test_step(explained):
        assert explained(*example(SPEC)).devices == 8
"""


@pytest.fixture
def project(tmp_path):
    """Files of a project whose test explains a step; runs pytest in it, as a stranger does."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not re.match("XLA_FLAGS|NPROC|JAX_|PYTEST|COLUMNS|CI$|BUILD_NUMBER$", name)
    }

    def write(file, text):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        return done.returncode, done.stdout + done.stderr

    write(
        "pytest.ini",
        """
        [pytest]
        filterwarnings = error
        shardlab_devices = 8
        pythonpath = .
        """,
    )
    write("train.py", STEP)
    write("tests/test_train.py", TEST)
    run.write, run.record = write, tmp_path / "tests/explained/test_train.test_step.json"
    return run


def test_a_record_is_made_when_asked_and_fails_what_is_worse(project):
    command = 'pytest "tests/test_train.py::test_step" --shardlab-record'
    status, said = project()
    assert status == 1 and not project.record.exists(), "written without being asked"
    assert "there is no record of what step sends" in said and command in said

    status, said = project("--shardlab-record")
    assert status == 0 and "tests/explained/test_train.test_step.json written" in said
    written = project.record.read_text()
    assert str(project.record.parents[2]) not in written, "a path of this machine"

    assert project()[0] == 0
    project.write("train.py", "# a line above\n" + textwrap.dedent(STEP))
    status, said = project()
    assert status == 0, said

    project.write("tests/test_train.py", TEST.replace('("data",)', "()"))
    status, said = project()
    assert status == 1 and project.record.read_text() == written
    assert "step does more than in its record tests/explained/test_train.test_step.json" in said
    assert "step: holds at once 3.16 MB, before 2.24 MB" in said and command in said
    assert "+ replicated: w, 1.05 MB" in said and re.search(r"- .* all-gather .*train.py:7", said)
    assert re.search(r"^E? *sent +\S+ \S+ +\S+ \S+$", said, re.MULTILINE), said
    assert "pytest_plugin.py" not in said

    assert project("--shardlab-record")[0] == 0 and project()[0] == 0
    project.write("tests/test_train.py", TEST)
    status, said = project()  # one line more, although all of it holds less
    assert status == 1 and "train.py:7: sends all-gather 918 kB, before nothing: return w" in said


@pytest.mark.slow
def test_processes_of_xdist_write_records_and_tell_what_they_say(project):
    many = "".join(f"    def test_{n}(explained): explained(*example(SPEC))\n" for n in range(3))
    project.write("tests/test_train.py", TEST + many)
    status, said = project("-n", "2", "--shardlab-record")
    assert status == 0 and said.count(".json written") == 4, said
    project.write("tests/test_train.py", (TEST + many).replace('("data",)', "()"))
    status, said = project("-n", "2")
    assert status == 1 and said.count("step does more than in its record") == 4, said


def test_a_record_of_another_version_compares_titles_alone_and_says_so(project):
    assert project("--shardlab-record")[0] == 0
    said = json.loads(project.record.read_text())
    assert said["jax"] == jax.__version__ and said["report"]["compiled_for"] == "cpu"
    for move in said["report"]["moves"]:
        move["bytes"] //= 2
    project.record.write_text(json.dumps(said))
    status, text = project()
    assert status == 1 and "sends all-gather" in text

    project.record.write_text(json.dumps(said | {"jax": "0.1"}))
    status, text = project()
    assert status == 0 and "JAX 0.1 for cpu" in text
    assert "only the titles of findings are compared; renew it with pytest" in text

    project.write("tests/test_train.py", TEST.replace('("data",)', "()"))
    status, text = project()
    assert status == 1 and "+ replicated: w" in text and "sends" not in text.split("+ repl")[0]


def test_the_tolerance_is_an_option_and_refuses_nonsense(project):
    assert project("--shardlab-record")[0] == 0
    said = json.loads(project.record.read_text())
    for move in said["report"]["moves"]:
        move["bytes"] = int(move["bytes"] / 1.02)
    project.record.write_text(json.dumps(said))
    assert project()[0] == 1 and project("--shardlab-tolerance", "3")[0] == 0
    status, text = project("--shardlab-tolerance", "much")
    assert status == 4 and "--shardlab-tolerance is 'much'; use a number of percent" in text


def test_a_spoilt_record_is_told(project):
    project.record.parent.mkdir()
    project.record.write_text("{}")
    status, said = project()
    assert status == 1 and "holds no record (KeyError: 'report')" in said
    assert "write it anew with" in said


def test_each_call_and_each_parameter_has_its_file(project):
    project.write(
        "tests/test_train.py",
        """
        import pytest
        from train import example
        class TestStep:
            @pytest.mark.parametrize("spec", ["data", "a/b"])
            def test(self, explained, spec):
                explained(*example(("data",)))
                explained(*example(()))
        """,
    )
    assert project("--shardlab-record")[0] == 0
    assert sorted(file.name for file in project.record.parent.iterdir()) == [
        "test_train.TestStep.test_a_b-2.json",
        "test_train.TestStep.test_a_b.json",
        "test_train.TestStep.test_data-2.json",
        "test_train.TestStep.test_data.json",
    ]
    assert project()[0] == 0


def test_pytest_does_not_import_jax_for_it(project):
    project.write("pytest.ini", "[pytest]\n")
    project.write(
        "tests/test_train.py",
        """
        import sys
        def test_nothing(explained):
            assert not {"jax", "shardlab.report.explain"} & {*sys.modules}
        """,
    )
    assert project()[0] == 0


@pytest.mark.slow
def test_the_test_to_copy_runs(project):
    project.write("tests/test_step.py", (ROOT / "book/recipes/test_step.py").read_text())
    here = ("tests/test_step.py", "-o", "shardlab_devices=")
    assert project(*here)[0] == 1
    assert project(*here, "--shardlab-record")[0] == 0 and project(*here)[0] == 0


# --- Records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fsdp", "no_donation", "activations_printed"])
def test_a_record_comes_back_from_its_text_and_is_no_worse_than_itself(name, tmp_path):
    case = CORRECT[name] if name in CORRECT else MISTAKES[name][0]
    step, arguments, *_ = case()
    report = explain(step, *arguments)
    record = Record.of(report, tmp_path)
    back = Record.read(record.text())
    assert back.text() == record.text() and back.report.bytes == report.bytes
    assert repr(compare(back.report, record.report)) == repr(compare(report, report))
    assert change_since(back, report, tmp_path).worse == ()


LINE, OTHER = ("a.py", "x @ w", "all-gather"), ("a.py", "x.sum()", "all-reduce")


@pytest.mark.parametrize(
    ("after", "limit", "share", "kinds"),
    [
        ({LINE: 1000, OTHER: 1000, None: 10_000}, 0, 0, []),
        ({LINE: 1001, OTHER: 1000, None: 10_000}, 0, 0, ["all-gather"]),
        ({LINE: 1020, OTHER: 1000, None: 10_000}, 0, 0.01, []),  # of all that is sent
        ({LINE: 1021, OTHER: 1000, None: 10_000}, 0, 0.01, ["all-gather"]),
        ({LINE: 900, OTHER: 1000, None: 10_101}, 0, 0.01, ["peak"]),
        ({LINE: 1050, OTHER: 1200, None: 10_000}, 100, 0.01, ["all-reduce"]),
        ({LINE: 0, OTHER: 5000, None: 30_000}, 0, 0, ["peak", "all-reduce"]),
    ],
)
def test_what_counts_as_more(after, limit, share, kinds):
    sized = lambda sizes: {key: (size, "a.py:1") for key, size in sizes.items()}  # noqa: E731
    before = sized({LINE: 1000, OTHER: 1000, None: 10_000})
    assert [row["kind"] for row in growth(before, sized(after), limit, share)] == kinds
