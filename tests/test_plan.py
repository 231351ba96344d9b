"""shardlab.plan: which meshes fit, in which order; and its predictions against a compiler."""

import subprocess
import sys

import pytest

from shardlab import cost, plan, pods

SMALL = cost.Model(2, 512, 1024, 8, 8, 64, 1024, name="small")
needs_libtpu = pytest.mark.skipif(pods._tpu_compiler() is None, reason="libtpu is not installed")


def test_plans_fit_and_are_in_order():
    found = plan.plan(plan.MODELS["llama-70b"], "v5p", 512, 256)
    assert found and [p.seconds for p in found] == sorted(p.seconds for p in found)
    for p in found:
        assert p.data * p.fsdp * p.tensor == 512 and 256 % (p.data * p.fsdp) == 0
        assert p.memory_bytes <= cost.chip("v5p").hbm_bytes
        assert p.best_seconds == max(p.parts.values()) == p.parts[p.bound] <= p.seconds
        work = max(p.parts["compute"], p.parts["hbm"])
        assert p.seconds == pytest.approx(work + p.parts["data"] + p.parts["fsdp"] + p.parts["tensor"])


def test_every_mesh_is_there_if_it_fits():
    found = {(p.data, p.fsdp, p.tensor) for p in plan.plan(SMALL, "v5e", 8, 64, 128)}
    assert found == {(d, f, 8 // d // f) for d in (1, 2, 4, 8) for f in (1, 2, 4, 8) if d * f <= 8}


def test_what_does_not_fit_is_left_out():
    assert plan.plan(plan.MODELS["llama-70b"], "v5e", 16, 16) == []
    few = plan.plan(plan.MODELS["llama-70b"], "v5p", 64, 64)
    assert few and all(p.fsdp * p.tensor >= 12 for p in few)  # 847 GB of state, 95 GB a chip


@pytest.mark.parametrize(
    "wrong",
    [{"chips": 0}, {"chips": -4}, {"chips": 2.0}, {"batch": 0}, {"batch": True}, {"sequence": 0}, {"chip": "v9"}],
)
def test_bad_numbers(wrong):
    good = {"chip": "v5e", "chips": 8, "batch": 8, "sequence": 128}
    with pytest.raises(ValueError, match=next(str(value) for value in wrong.values())):
        plan.plan(SMALL, **good | wrong)


@needs_libtpu
@pytest.mark.parametrize("axes", [(8, 1, 1), (1, 8, 1), (1, 2, 4), (2, 2, 2)])
def test_predictions_are_near_the_compilers_numbers(axes, tmp_path):
    found = next(p for p in plan.plan(SMALL, "v5e", 8, 64, 128) if (p.data, p.fsdp, p.tensor) == axes)
    program, held = plan.verify(found, SMALL, pods.Pod("v5e:2x4"), 64, 128, cache=tmp_path)
    assert program.fits and "memory" in held
    predicted, compiled = held["FLOPs"]
    again = 2 * 64 * 128 / 8 * SMALL.layers * SMALL.d_model * SMALL.d_ff  # its last product is not computed again
    assert compiled == pytest.approx(predicted - again, rel=0.02)
    assert {
        f"sent along {name}" for name, size in zip(("data", "fsdp", "tensor"), axes, strict=True) if size > 1
    } <= set(held)
    for name, (predicted, compiled) in held.items():
        if name.startswith("sent"):
            assert 0.3 < predicted / compiled < 3, name


def test_remat_that_cannot_be_compiled():
    found = plan.plan(SMALL, "v5e", 8, 64, 128)[0]
    with pytest.raises(ValueError, match="remat='mlp'"):
        plan.verify(found, SMALL, pods.Pod("v5e:2x4"), 64, 128, "mlp")


def command(capsys, *arguments):
    try:
        status = plan.main([*map(str, arguments)])
    except SystemExit as stop:
        status = stop.code
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def test_the_command_prints_a_table(capsys, tmp_path):
    picture = tmp_path / "plans.png"
    status, text = command(
        capsys, "llama-70b", "--chip", "v5p", "--chips", 512, "--batch", 256, "--top", 3, "--plot", picture
    )
    lines = text.splitlines()
    assert status == 0 and len(lines) == 5 and "more that fit" in lines[-1]
    best = plan.plan(plan.MODELS["llama-70b"], "v5p", 512, 256)[0]
    assert lines[1].split()[:3] == [str(best.data), str(best.fsdp), str(best.tensor)]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_says_what_is_wrong(capsys):
    small = ("2,512,1024,8,8,64,1024", "--chip", "v5e", "--batch", 8)
    for arguments, said in (
        ((*small, "--chips", 0), "chips=0"),
        ((*small, "--chips", 8, "--top", 0), "--top 0"),
        (("llama-7b", "--chip", "v5e", "--chips", 8, "--batch", 8), "'llama-7b' is neither a model"),
        (("1,2,3", "--chip", "v5e", "--chips", 8, "--batch", 8), "d_model"),
        (("llama-8b", "--chip", "v9", "--chips", 8, "--batch", 8), "v9"),
    ):
        status, text = command(capsys, *arguments)
        assert status == 2 and said in text, text
    status, text = command(capsys, "llama-70b", "--chip", "v5e", "--chips", 16, "--batch", 16)
    assert status == 1 and "No mesh of 16 v5e fits" in text


@pytest.mark.parametrize(
    "chip, chips, pod",
    [
        ("v5e", 16, "v5e:4x4"), ("v5e", 32, "v5e:4x8"), ("v5p", 512, "v5p:8x8x8"), ("v5p", 256, "v5p:4x8x8"),
        ("H100", 64, "h100:8x8"), ("H100", 4, "h100:1x4"),
    ],
)  # fmt: skip
def test_the_pod_of_so_many_chips(chip, chips, pod):
    assert plan._torus(chip, chips) == pod
    assert pods.Pod(pod).size == chips


@needs_libtpu
def test_the_command_verifies(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    small = ("2,512,1024,8,8,64,1024", "--chip", "v5e", "--chips", 8, "--batch", 64, "--sequence", 128)
    status, text = command(capsys, *small, "--verify", 1)
    assert status == 0 and "v5e:2x4, compiled" in text and "sent along" in text and " %" in text
    status, text = command(capsys, *small, "--verify", 1, "--pod", "v5e:4x4")
    assert status == 2 and "needs 8 devices; v5e:4x4 has 16" in text


def test_help():
    run = subprocess.run([sys.executable, "-m", "shardlab.plan", "--help"], capture_output=True, text=True)
    assert run.returncode == 0 and "Pipelines" in run.stdout
