"""The scripts that readers copy: on other numbers of devices and meshes, killed, and resumed on
another number.
"""

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.reads(
        "book/recipes",
        "book/recipes.md",
        "book/recordings",
        "book/together.md",
        "book/experts.md",
        "scripts",
        "_config.yml",
        "_toc.yml",
        "src/shardlab/arrays",
        "tests/book",
    ),
]

SCRIPT = ROOT / "book" / "recipes" / "train.py"
STEP = re.compile(r"step (\d+): loss (\S+)")


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    """A folder in which the scripts keep their programs: many tests begin the same one again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


def start(folder, count, steps, *options, script=(SCRIPT,)):
    """A script on `count` emulated devices, as a process whose lines can be read."""
    flags = f"--xla_force_host_platform_device_count={count}"
    environment = os.environ | {"XLA_FLAGS": flags, "NPROC": "32", "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    command = [sys.executable, *script, folder, str(steps), *map(str, options)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def losses(process):
    """{step: loss} of a run that ends by itself."""
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return {int(step): float(loss) for step, loss in STEP.findall(out)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return losses(start(tmp_path_factory.mktemp("alone"), 1, 40))


def test_it_learns_and_is_short_enough_to_read(alone):
    assert list(alone) == list(range(1, 41)) and alone[40] < 0.7 * alone[1]
    assert (
        len(SCRIPT.read_text().splitlines()) < 135
    )  # "little more than a hundred", says the chapter


def test_it_logs_the_norm_of_the_gradient_and_what_the_loss_returns(tmp_path):
    out, _ = start(tmp_path, 2, 2).communicate()
    (first, second) = re.findall(r"^step \d+: loss (\S+) accuracy (\S+) norm (\S+)$", out, re.M)
    assert float(first[2]) > 1 and first != second and 0 <= float(first[1]) <= 1


@pytest.mark.parametrize("count", [2, 4, 8])
def test_any_number_of_devices_learns_the_same(tmp_path, alone, count):
    found = losses(start(tmp_path, count, 40))
    assert list(found) == list(alone)
    np.testing.assert_allclose(list(found.values()), list(alone.values()), rtol=1e-4)


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 8), (8, 1)])
def test_a_killed_run_resumes_on_another_number_of_devices(tmp_path, alone, before, after):
    process = start(tmp_path, before, 10_000)
    for line in process.stdout:
        if line.startswith("step 25:"):
            break
    process.send_signal(signal.SIGKILL)
    rest = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL, rest
    found = losses(start(tmp_path, after, 40))
    first = min(found)
    assert first in (1, 11, 21, 31) and max(found) == 40  # the last checkpoint that was complete
    np.testing.assert_allclose([found[n] for n in found], [alone[n] for n in found], rtol=1e-4)


def test_a_run_that_has_ended_goes_on_where_it_ended(tmp_path, alone):
    # 14 is no multiple of the interval
    assert list(losses(start(tmp_path, 2, 14))) == list(range(1, 15))
    assert list(losses(start(tmp_path, 2, 14))) == []
    rest = losses(start(tmp_path, 2, 17))
    assert list(rest) == [15, 16, 17]
    np.testing.assert_allclose(list(rest.values()), [alone[n] for n in rest], rtol=1e-4)


def test_a_size_that_the_devices_do_not_divide_is_named(tmp_path):
    process = start(tmp_path, 3, 1)
    out, _ = process.communicate()
    assert (
        process.returncode == 1
        and "hidden/kernel" in out
        and "the 3 devices of 'data' do not divide" in out
    )


CONVOLUTIONS = """
class Network(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.last = nnx.Conv(16, 3, (3, 3), rngs=rngs)
        self.out = nnx.Linear(96, 8, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.first(x.reshape(-1, 4, 8, 1)))
        return self.out(jax.nn.relu(self.last(x)).reshape(len(x), -1))


train.Network = Network
train.specs_of = lambda shapes: jax.tree.map(by_largest, shapes)
print(*(train.specs_of(jax.eval_shape(train.create))["params"][k]["kernel"]
        for k in ("first", "last", "out")), flush=True)
train.main(sys.argv[1], int(sys.argv[2]))
"""


def test_a_network_of_convolutions_is_sharded_along_largest_dimensions(tmp_path):
    page = (ROOT / "book" / "recipes.md").read_text()
    (rule,) = re.findall(r"^def by_largest.*?\n\n", page, re.S | re.M)
    path = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})"
    imports = "import jax, train\nfrom flax import nnx\nfrom jax.sharding import PartitionSpec as P"
    script = ("-c", "\n".join([path, imports, rule, CONVOLUTIONS]))
    outs = {n: start(tmp_path / str(n), n, 6, script=script).communicate()[0] for n in (1, 8)}
    one, eight = ([float(loss) for _, loss in STEP.findall(out)] for out in outs.values())
    assert len(one) == 6, outs[1]
    np.testing.assert_allclose(eight, one, rtol=1e-4)
    for layout in ("(None, None, None, 'data')", "(None, None, 'data')"):
        assert layout in outs[8]
    assert [*losses(start(tmp_path / "8", 4, 8, script=script))] == [7, 8]


EVALUATED = """
def run(steps):
    train.main(Path(sys.argv[1]), steps)
    handler = ocp.StandardCheckpointHandler()
    with ocp.CheckpointManager(Path(sys.argv[1]), item_handlers=handler) as manager:
        return train.restore_newest(manager, goal)[1]


mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(train.AxisType.Auto,))
shapes, definition = jax.eval_shape(train.create), train.parts(train.new())[0]
goal = train.target(shapes, train.specs_of(shapes), mesh)
average = jax.jit(train.create)()["ema"]
for state in map(run, (1, 2, 3)):
    now = state["params"], state["other"][0]
    average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * np.asarray(p), average, now)
apart = jax.tree.map(lambda a, b: abs(a - np.asarray(b)).max(), average, state["ema"])
statistics = jax.tree.leaves(state["ema"][1])
print(len(statistics), max(jax.tree.leaves(apart)))
rows, sums = train.rows_of(1000, 1150), np.zeros(2)
for first in range(0, 150, 64):
    part = pad(jax.tree.map(lambda a: a[first : first + 64], rows), 64)
    part = jax.device_put(part, train.NamedSharding(mesh, P("data")))
    sums += jax.device_get(evaluate(state, *part))
print(*sums, *jax.device_get(evaluate(state, rows, np.ones(150))))
"""


@pytest.mark.parametrize("count", [1, 8])
def test_the_average_is_evaluated_with_its_own_statistics(tmp_path, count):
    page = (ROOT / "book" / "recipes.md").read_text()
    (evaluate,) = re.findall(r"^@jax.jit\ndef evaluate\(state.*?(?=^~~~)", page, re.S | re.M)
    (pad,) = re.findall(r"^def pad.*?\n(?=```)", page, re.S | re.M)
    imports = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})",
        "from pathlib import Path; import jax, optax, train; import numpy as np",
        "import orbax.checkpoint as ocp; from flax import nnx",
        "from jax.sharding import PartitionSpec as P",
    )
    script = ("-c", "\n".join([*imports, evaluate, pad, EVALUATED]))
    out, _ = start(tmp_path, count, 0, script=script).communicate()
    found, evaluated = (line.split() for line in out.splitlines()[-2:])
    assert found[0] == "2" and float(found[1]) < 1e-6, out  # a mean and a variance
    loss, rows, loss_at_once, rows_at_once = map(float, evaluated)
    assert rows == rows_at_once == 150
    np.testing.assert_allclose(loss, loss_at_once, rtol=1e-5)


# --- other models in bfloat16 in the frame of the recipes ---

FOREIGN = ROOT / "tests" / "book" / "foreign.py"


@pytest.mark.parametrize("name", ["unet", "gru", "llama"])
def test_a_foreign_model_learns_the_same_on_one_and_eight_and_resumes_on_four(tmp_path, name):
    script = (FOREIGN, name)
    found = {n: losses(start(tmp_path / str(n), n, 30, script=script)) for n in (1, 8)}
    one, eight = (np.array([*of.values()]) for of in found.values())
    np.testing.assert_allclose(eight, one, rtol=5e-3)  # bfloat16 has eight bits
    assert one[-5:].mean() < 0.9 * one[:5].mean()
    resumed = tmp_path / "resumed"
    losses(start(resumed, 8, 20, script=script))
    rest = losses(start(resumed, 4, 30, script=script))
    assert [*rest] == [*range(21, 31)]
    np.testing.assert_allclose([*rest.values()], one[20:], rtol=5e-3)


# --- pretrain.py ---

PRETRAIN = SCRIPT.with_name("pretrain.py")
IMPORT = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import jax, pretrain; "
IN_FLOAT32 = (
    "-c",
    IMPORT + "pretrain.DTYPE = 'float32'; "
    "folder, *given = sys.argv[1], *map(int, sys.argv[2:]); "
    "pretrain.main(folder, given[0], given[1:5], False, *given[5:])",
)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return losses(start(tmp_path_factory.mktemp("one"), 1, 20, 1, 1, 1, 1, script=IN_FLOAT32))


@pytest.mark.parametrize(
    "mesh, micro", [((1, 2, 2, 2), 1), ((2, 1, 4, 1), 8), ((1, 2, 1, 4), 2)], ids=str
)
def test_every_mesh_learns_the_same_in_float32_in_any_number_of_micro_batches(
    tmp_path, one_device, mesh, micro
):
    found = losses(start(tmp_path, np.prod(mesh), 20, *mesh, micro, script=IN_FLOAT32))
    np.testing.assert_allclose(list(found.values()), list(one_device.values()), rtol=1e-4)


def test_in_bfloat16_it_learns_as_fast_and_resumes_on_another_mesh(tmp_path, one_device):
    process = start(tmp_path, 4, 10_000, "--mesh", 1, 2, 1, 2, script=(PRETRAIN,))
    for line in process.stdout:
        if line.startswith("step 15:"):
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    found = losses(start(tmp_path, 8, 20, "--mesh", 2, 1, 2, 2, script=(PRETRAIN,)))
    # saved after steps 1 and 10, beside the training: the last may not be whole yet
    assert min(found) in (1, 2, 11) and max(found) == 20
    np.testing.assert_allclose([found[n] for n in found], [one_device[n] for n in found], rtol=0.05)


def test_its_report_and_its_help_and_what_it_cannot_divide(tmp_path):
    out, _ = start(tmp_path, 2, 1, "--report", script=(PRETRAIN,)).communicate()
    assert (
        "It sends" in out
        and "shared by donation" in " ".join(out.split())
        and "step 1: loss" in out
    )
    assert "FSDP CONTEXT TENSOR" in start("--help", 1, 0, script=(PRETRAIN,)).communicate()[0]
    out, _ = start(tmp_path / "other", 3, 1, script=(PRETRAIN,)).communicate()
    assert "the 3 devices of 'fsdp' do not divide" in out
    out, _ = start(tmp_path / "third", 2, 1, "--micro", 3, script=(PRETRAIN,)).communicate()
    assert "16 sequences are not shared evenly by 2 groups of devices, 3 times a step" in out


def test_it_creates_its_state_in_shards_and_donates_it():
    program = (
        IMPORT + "mesh, step, layout, goal = pretrain.prepare((1, 2, 2, 2)); "
        "creation = jax.jit(pretrain.create, "
        "out_shardings=layout).lower().compile().memory_analysis(); jax.set_mesh(mesh); step "
        "= step.lower(goal, pretrain.rows_of(0, 16)).compile().memory_analysis(); "
        "print(creation.temp_size_in_bytes, creation.output_size_in_bytes, "
        "step.alias_size_in_bytes)"
    )
    out, _ = start("", 8, 0, script=("-c", program)).communicate()
    temporaries, state, donated = map(int, out.split()[-3:])
    assert temporaries < state and 0.999 * state < donated <= state


def test_gradients_are_added_in_float32_for_tpus():
    """Products are in bfloat16, and all that is gathered too."""
    program = (
        IMPORT + "from shardlab import Pod, explain; "
        "mesh, step, layout, goal = pretrain.prepare((1, 8, 1, 1)); "
        "rows = jax.ShapeDtypeStruct((16, 65), 'int32', "
        "sharding=jax.NamedSharding(mesh, jax.P(pretrain.ROWS))); "
        "jax.set_mesh(mesh); "
        "print([(move.kind, *move.types) for move in explain(step, goal, rows, "
        "mesh=Pod('v5e:2x4')).moves])"
    )
    out, _ = start("", 8, 0, script=("-c", program)).communicate()
    moves = eval(out.splitlines()[-1])
    kinds = {(kind, one.partition("[")[0]) for kind, *types in moves for one in types}
    assert ("reduce-scatter", "f32") in kinds and ("all-gather", "bf16") in kinds
    assert {kind for kind, dtype in kinds if dtype == "bf16"} == {"all-gather"}


def test_micro_batches_send_nothing_more_along_data():
    """Along fsdp each of them gathers and scatters again."""
    program = (
        IMPORT + "from shardlab import collectives; sent = []\n"
        "for micro in (1, 2):\n"
        "    mesh, step, layout, goal = pretrain.prepare((2, 2, 1, 2), micro)\n"
        "    with jax.set_mesh(mesh):\n"
        "        moves = collectives(step, goal, pretrain.rows_of(0, 16), mesh=mesh).moves\n"
        "    sent += [sum(m.times * m.bytes for m in moves if axis in m.axes) "
        "for axis in ('data', 'fsdp')]\n"
        "print(*sent)"
    )
    out, _ = start("", 8, 0, script=("-c", program)).communicate()
    data, fsdp, data_of_two, fsdp_of_two = map(float, out.split()[-4:])
    assert 5e5 < data <= data_of_two < 1.001 * data
    assert fsdp_of_two > 1.9 * fsdp


def test_each_of_two_processes_makes_its_own_rows_and_both_train_together(tmp_path, alone):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    program = (
        "import sys; import jax; jax.distributed.initialize(sys.argv[3], 2, int(sys.argv[4])); "
        + IMPORT
        + "import train; from pathlib import Path; asked = []; mine = train.rows_of; "
        "train.rows_of = lambda *ends: (asked.append(ends), mine(*ends))[1]; "
        "train.main(Path(sys.argv[1]), int(sys.argv[2])); print('asked', asked)"
    )
    both = [start(tmp_path, 2, 2, address, index, script=("-c", program)) for index in (0, 1)]
    first, second = (process.communicate()[0] for process in both)
    assert "asked [(0, 32), (64, 96)]" in first and "asked [(32, 64), (96, 128)]" in second
    found = [float(loss) for _, loss in STEP.findall(first)]
    np.testing.assert_allclose(found, [alone[1], alone[2]], rtol=1e-4)
    assert "step" not in second  # one process logs


def test_devices_sum_its_gradients_in_float32():
    program = (
        IMPORT + "mesh, *_, goal = pretrain.prepare((1, 2, 2, 2)); jax.set_mesh(mesh); specs = "
        "pretrain.apply_rules(pretrain.RULES, goal).specs['params']; print(jax.make_jaxpr(jax.grad("
        "lambda p, t: pretrain.loss_of(p, t, specs)))(goal['params'], pretrain.rows_of(0, 8)))"
    )
    out, _ = start("", 8, 0, script=("-c", program)).communicate()
    sums = re.findall(r":(\w+)\[\d+,\d+\]\S* = (dot_general|scatter-add)", out)
    assert sorted(sums) == 8 * [("f32", "dot_general")] + [("f32", "scatter-add")]


def test_experts_quotes_a_recording_of_its_own_step(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import record_balance

    recording = json.loads(record_balance.RECORDING.read_text())
    step = record_balance.digest(record_balance.statements())
    assert recording["program"] == step, "the step changed: run scripts/record_balance.py"
    page = (ROOT / "book" / "experts.md").read_text()
    for run in recording["runs"]:
        row = f"{run['last loss']:.3f} | {run['busiest'][1]} | {run['nearly unused'][1]} |"
        assert f"| {run['weight']:g} | {row}" in page


def test_the_page_quotes_what_compilers_said_of_this_recipe():
    recording = json.loads((PRETRAIN.parents[1] / "recordings" / "pretrain.json").read_text())
    recipe = hashlib.sha256(PRETRAIN.read_bytes()).hexdigest()
    assert recording["recipe"] == recipe, "pretrain.py changed: run scripts/record_pretrain.py"
    page = (PRETRAIN.parents[1] / "together.md").read_text()
    for case in recording["cases"]:
        numbers = (
            sum(case["planned sent"].values()),
            sum(case["sent"].values()),
            case["planned peak"],
            case["peak"],
        )
        row = [" × ".join(map(str, case["mesh"].values())), case["slice"]]
        assert "| " + " | ".join(row + [f"{n / 1e9:.1f} GB" for n in numbers]) + " |" in page
        for key in case["sent"]:
            axes, kind, dtype = key.split()
            if "fsdp" in axes and kind != "all-gather":
                assert dtype == "f32", key
