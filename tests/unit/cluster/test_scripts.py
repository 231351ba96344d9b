"""The scripts that readers copy: what stands in a variable reaches the other hosts as it is, and as
nothing else.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from places import ROOT
from slurm_cluster import on_cpus
from waiting import PATIENCE

from shardlab.cluster.join import join, port_of_this_step, shared_folder
from shardlab.cluster.worker import free_ports

pytestmark = pytest.mark.reads("book/cluster", "book/clusters.md", "src/shardlab")


@pytest.fixture
def hosts(tmp_path):
    """A folder whose name has quotes and spaces, and an ssh that runs the command here."""
    folder = tmp_path / "a 'quoted' \"folder\""
    (folder / "bin").mkdir(parents=True)
    (folder / "host-by-glob").touch()
    for name, text in {
        "ssh": 'echo "host $3"; eval "$4"',
        "python": 'echo "$COORDINATOR|$PROCESS_ID|$JAX_NOTE|$*"',
    }.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    shutil.copy(ROOT / "book" / "cluster" / "ssh.sh", folder)
    return folder


def run(folder, *arguments, **variables):
    settings = os.environ | {
        "VENV": str(folder),
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        **variables,
    }
    done = subprocess.run(
        ["bash", "ssh.sh", *arguments],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


def test_names_with_quotes_and_stars_are_names(hosts):
    note = 'it\'s $HOME `id` "x"'
    status, lines, said = run(hosts, "it's.py", "a b", HOSTS="host* two", PORT="99", JAX_NOTE=note)
    assert status == 0 and not said, said
    assert lines == [
        "host host*",
        "host two",
        f"host*:99|0|{note}|-u it's.py a b",
        f"host*:99|1|{note}|-u it's.py a b",
    ]


@pytest.mark.parametrize("script", ["ssh.sh", "mpirun.sh"])
def test_no_host_is_no_success(hosts, script):
    shutil.copy(ROOT / "book" / "cluster" / script, hosts)
    given = os.environ | {"VENV": str(hosts), "HOSTS": " "}
    done = subprocess.run(["bash", script, "x.py"], cwd=hosts, env=given, capture_output=True)
    assert done.returncode == 1 and done.stderr.strip().endswith(b"HOSTS names no host")


@pytest.mark.parametrize("each", ["0", "two", "-1", " "])
def test_mpirun_sh_says_which_number_it_lacks(hosts, each):
    shutil.copy(ROOT / "book" / "cluster" / "mpirun.sh", hosts)
    given = os.environ | {"VENV": str(hosts), "HOSTS": "one", "EACH": each}
    done = subprocess.run(["bash", "mpirun.sh", "x.py"], cwd=hosts, env=given, capture_output=True)
    assert done.returncode == 1 and done.stderr.decode().startswith(f"EACH={each}: export EACH=")


def test_a_variable_is_no_command(hosts):
    harm = "1;touch harmed;"
    status, lines, _ = run(hosts, "x.py", HOSTS="one", PORT=harm)
    assert status == 0 and lines == ["host one", f"one:{harm}|0||-u x.py"]
    status, lines, _ = run(hosts, "x.py", HOSTS="one;touch${IFS}harmed;", PORT="1")
    assert not (hosts / "harmed").exists()


def test_the_coordinator_is_a_host_and_not_a_user(hosts):
    status, lines, _ = run(hosts, "x.py", HOSTS="root@one root@two", PORT="1")
    assert status == 0 and lines[:2] == ["host root@one", "host root@two"]
    assert [line.split("|")[0] for line in lines[2:]] == ["one:1", "one:1"]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name
)
def test_a_signal_ends_the_programs_on_all_hosts(hosts, number):
    """Ctrl-C is a SIGINT to the script; bash lets what runs in its background ignore it."""
    (hosts / "bin" / "ssh").write_text(
        '#!/bin/bash\ntrap \'echo "ended $3"; exit\' TERM\necho "host $3"\nwhile :; do sleep '
        "0.05; done\n"
    )
    settings = os.environ | {
        "VENV": str(hosts),
        "PATH": f"{hosts / 'bin'}:{os.environ['PATH']}",
        "HOSTS": "one two",
    }
    # what is ignored here, a program ignores too
    before = signal.signal(number, signal.default_int_handler)
    script = subprocess.Popen(
        ["bash", "ssh.sh", "x.py"], cwd=hosts, env=settings, stdout=subprocess.PIPE, text=True
    )
    signal.signal(number, before)
    assert sorted(script.stdout.readline() for _ in "12") == ["host one\n", "host two\n"]
    script.send_signal(number)
    rest, _ = script.communicate(timeout=100)  # returns when all that could write have ended
    assert script.returncode == 1 and sorted(rest.splitlines()) == ["ended one", "ended two"]


FLUX = {"FLUX_TASK_RANK": "5", "FLUX_JOB_SIZE": "8", "FLUX_TASK_LOCAL_ID": "1"}
LSF = {"JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_SIZE": "8", "JSM_NAMESPACE_LOCAL_RANK": "1"}
PBS = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1"}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"}
# of the job around, or of Flux's own PMI
OTHER = {"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_LOCAL_RANK": "0"}


def ranked(folder, *arguments, **variables):
    """What rank.sh tells a program: "processes|process|devices|arguments"; its status and its
    errors.
    """
    shutil.copy(ROOT / "book" / "cluster" / "rank.sh", folder)
    (folder / "bin" / "python").write_text(
        "#!/bin/bash\necho "
        '"$COORDINATOR|$NUM_PROCESSES|$PROCESS_ID|$JAX_LOCAL_DEVICE_IDS|$JAX_PLATFORMS|$*"\n'
    )
    settings = {
        "VENV": str(folder),
        "PATH": os.environ["PATH"],
        "COORDINATOR": "node1:8476",
    } | variables
    settings = {name: value for name, value in settings.items() if value is not None}
    done = subprocess.run(
        ["bash", "rank.sh", *arguments],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    "launcher",
    [FLUX, LSF, PBS, MPICH, FLUX | OTHER],
    ids=["Flux", "LSF", "PBS", "MPICH", "Flux with PMI"],
)
def test_a_launcher_that_jax_does_not_know_tells_the_rank(hosts, launcher):
    assert ranked(hosts, "x.py", "a b", **launcher) == (0, "node1:8476|8|5|1|cuda|-u x.py a b", "")
    # What is left from another launch does not count.
    assert (
        ranked(hosts, "x.py", NUM_PROCESSES="2", PROCESS_ID="0", **launcher)[1]
        == "node1:8476|8|5|1|cuda|-u x.py"
    )


@pytest.mark.parametrize(
    ("visible", "asks"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "0"),
        ({"ROCR_VISIBLE_DEVICES": "1"}, "0"),
        ({"JAX_LOCAL_DEVICE_IDS": "0,1,2,3"}, "0,1,2,3"),
    ],
)
def test_a_rank_asks_for_a_gpu_that_it_sees(hosts, visible, asks):
    assert ranked(hosts, "x.py", **PBS, **visible)[1].split("|")[3] == asks


def test_rank_sh_says_what_it_lacks(hosts):
    for lacks, said in (
        ({"COORDINATOR": None}, "host:port of process 0"),
        ({"VENV": None}, "VENV=/path"),
    ):
        status, out, error = ranked(hosts, "x.py", **(PBS | lacks))
        assert status and not out and said in error
    status, out, error = ranked(hosts, "x.py", PROCESS_ID="1", NUM_PROCESSES="2")
    assert status and not out and "started by mpiexec, jsrun or flux run?" in error


@pytest.mark.slow
def test_two_ranks_join_one_program(tmp_path):
    for name in ("rank.sh", "hello.py", "join.py"):
        shutil.copy(ROOT / "book" / "cluster" / name, tmp_path)
    (port,) = free_ports(1)
    settings = on_cpus(1) | {"VENV": sys.prefix, "COORDINATOR": f"127.0.0.1:{port}"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = []
    for rank in "01":
        of_launcher = {"PMI_RANK": rank, "PMI_SIZE": "2", "PMI_LOCAL_RANK": rank}
        given = os.environ | settings | of_launcher
        ranks.append(
            subprocess.Popen(["bash", "rank.sh", "hello.py"], cwd=tmp_path, env=given, **pipes)
        )
    outputs = [process.communicate(timeout=PATIENCE)[0] for process in ranks]
    for rank, (process, out) in enumerate(zip(ranks, outputs, strict=True)):
        assert (
            process.returncode == 0
            and f"process {rank} of 2 on " in out
            and f"JAX uses {rank}, sum 1" in out
        )


def test_the_script_for_apptainer_asks_for_the_same_and_starts_in_the_image(hosts):
    folder, name = ROOT / "book" / "cluster", "two-nodes-apptainer.sbatch"
    asked = [
        re.findall(r"^#.*SBATCH .*", (folder / file).read_text(), re.M)
        for file in ("two-nodes.sbatch", name)
    ]
    assert asked[0][1:] == asked[1][1:] and asked[1][0] == "#SBATCH --job-name=two-nodes-apptainer"
    for program, text in {"srun": 'echo "$*"', "apptainer": "exit 9"}.items():
        (hosts / "bin" / program).write_text(f"#!/bin/bash\n{text}\n")
        (hosts / "bin" / program).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_PER_TASK": "4"}
    given = job | {"PATH": f"{hosts / 'bin'}:{os.environ['PATH']}", "SIF": "my jax.sif"}
    for platform, gpu in {"": "--nv", "cuda": "--nv", "rocm": "--rocm"}.items():
        done = subprocess.run(
            ["bash", folder / name, "x.py", "a"],
            cwd=hosts,
            capture_output=True,
            text=True,
            check=True,
            env=given | ({"JAX_PLATFORMS": platform} if platform else {}),
        )
        inside = f"apptainer exec {gpu} --bind {hosts} --pwd {hosts} my jax.sif python -u x.py a"
        assert done.stdout.splitlines()[1] == f"--kill-on-bad-exit=1 --label {inside}"
    for named in (["--folder", "run"], ["--folder=run"]):
        command = ["bash", folder / name, "train.py", *named, "--steps", "3"]
        done = subprocess.run(
            command, cwd=hosts, env=given, capture_output=True, text=True, check=True
        )
        assert (
            f"exec --nv --bind {hosts},{hosts}/run --pwd" in done.stdout
            and (hosts / "run").is_dir()
        )
        (hosts / "run").rmdir()
    del given["SIF"]
    done = subprocess.run(
        ["bash", folder / name], cwd=hosts, env=given, capture_output=True, text=True
    )
    assert done.returncode and "SIF: export SIF=/path/to/your/jax.sif before sbatch" in done.stderr


def test_failures_are_counted_and_not_planned_restarts(hosts):
    """The lines of the chapter that put a failed job back into the queue, with stand-ins for
    Slurm's programs.
    """
    text = (ROOT / "book" / "clusters.md").read_text()
    (block,) = re.findall(r"^```bash\n(srun [^`]*scontrol requeue[^`]*)```$", text, re.MULTILINE)
    for name, says in {"srun": "exit 1", "scontrol": 'echo "scontrol $*"'}.items():
        (hosts / "bin" / name).write_text(f"#!/bin/bash\n{says}\n")
        (hosts / "bin" / name).chmod(0o755)
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": "9",
        "PATH": f"{hosts / 'bin'}:{os.environ['PATH']}",
    }
    runs = [
        subprocess.run(
            ["bash", "-euc", block], cwd=hosts, env=os.environ | job, capture_output=True, text=True
        )
        for _ in range(5)
    ]
    assert [run.stdout for run in runs] == 3 * ["scontrol requeue 7\n"] + 2 * [""]
    assert [run.returncode for run in runs] == 5 * [1] and not any(run.stderr for run in runs)


GCLOUD = """\
#!/bin/bash
words=("${@:4}") workers=$(dirname "$0")/workers # of `gcloud compute tpus tpu-vm`
for word; do [[ $word == --command=* ]] && command=${word#*=}; done
for worker in 0 1; do
  mkdir -p "$workers/$worker"
  if [[ ${words[0]} == scp ]]; then
    for word in "${words[@]:1}"; do [[ -f $word ]] && cp "$word" "$workers/$worker"; done
  else # a TPU would tell JAX these two
    (cd "$workers/$worker" && COORDINATOR=$ADDRESS PROCESS_ID=$worker bash -c "$command") &
  fi
done
[[ ${words[0]} == scp ]] || { wait -n && wait -n; }
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "says"), [("hello.py", "of 2 on .* sum 1"), ("hang.py", "start six processes")]
)
def test_tpu_sh_starts_one_program_on_all_workers(tmp_path, program, says):
    """With a stand-in for gcloud, whose workers are folders of this machine."""
    for name, text in {
        "gcloud": GCLOUD,
        "python3": f'#!/bin/bash\nexec {sys.executable} "$@"\n',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (port,) = free_ports(1)
    drop = ("SLURM", "OMPI", "JAX_", "XLA_", "PYTHON")
    settings = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    settings |= {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "ADDRESS": f"127.0.0.1:{port}",
        "NPROC": "32",
    }
    settings |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    command = ["bash", "tpu.sh", "my-tpu", "a-zone", "2", program]
    given = {
        "cwd": ROOT / "book" / "cluster",
        "env": settings,
        "capture_output": True,
        "text": True,
    }
    done = subprocess.run(command, **given, timeout=PATIENCE)
    assert len(re.findall(says, done.stdout + done.stderr)) == 2, done
    assert done.returncode == (program == "hang.py")


@pytest.fixture
def joined(tmp_path):
    """A function that starts a program with join.py beside it in two processes, each with arguments
    of its own.
    """
    shutil.copy(ROOT / "book" / "cluster" / "join.py", tmp_path)
    (port,) = free_ports(1)
    settings = {
        "COORDINATOR": f"127.0.0.1:{port}",
        "NUM_PROCESSES": "2",
        "JAX_PLATFORMS": "cpu",
        "NPROC": "32",
    }
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    started = []

    def begin(*programs, arguments=((), ()), **variables):
        for index, text in enumerate(programs if len(programs) == 2 else 2 * programs):
            folder = tmp_path / f"host{index}" if len(programs) == 2 else tmp_path
            folder.mkdir(exist_ok=True)
            (folder / "program.py").write_text(text)
            command = [sys.executable, folder / "program.py", *arguments[index]]
            given = (
                os.environ
                | settings
                | {"PROCESS_ID": str(index), "PYTHONPATH": str(tmp_path)}
                | variables
            )
            started.append(
                subprocess.Popen(command, cwd=tmp_path, env=given, start_new_session=True, **pipes)
            )
        return started

    def end():
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # children too

    limit = threading.Timer(PATIENCE, end)
    limit.start()
    yield begin
    limit.cancel()
    end()
    for process in started:
        process.communicate()


def until(process, word):
    """Read what a process prints until a line has this word."""
    lines = []
    while not lines or word not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], "".join(lines)


FAILS = """
from join import join

join()
import jax

print("joined", jax.process_count(), flush=True)
if jax.process_index() == 1:
    raise ValueError("a bug in one process")
input()
"""


@pytest.mark.slow
def test_a_process_that_has_joined_and_raises_ends_at_once(joined):
    """Without `join`'s hook it would wait 300 seconds for the other, which waits for it."""
    healthy, broken = joined(FAILS)
    out, _ = broken.communicate(timeout=PATIENCE)
    assert (
        broken.returncode == 1 and "joined 2" in out and "ValueError: a bug in one process" in out
    )
    assert healthy.poll() is None  # it is the launcher that ends the others


CLOSED = """
import sys
from join import join

join()
import jax

print("joined", flush=True)
input()
if jax.process_index() == 1:
    HOW
input()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["print('x' * 10**6)", "sys.stdout = object(); 1 / 0"])
def test_an_error_ends_a_process_at_once_whose_output_is_closed(joined, how):
    """As behind `| head`, and with an object of the program's own in place of its output."""
    healthy, broken = joined(CLOSED.replace("HOW", how))
    until(healthy, "joined"), until(broken, "joined")
    broken.stdout.close()
    broken.stdin.write("\n")
    broken.stdin.close()
    assert broken.wait(timeout=PATIENCE) == 1
    assert healthy.poll() is None  # it has not waited for this one, which would have ended too
    broken.stdout = broken.stdin = None  # for communicate


TWICE = """
import jax, os
from join import join

FIRST
print("joined", flush=True)
join()
"""
BY_JAX = "jax.distributed.initialize(os.environ['COORDINATOR'], 2, int(os.environ['PROCESS_ID']))"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["join()", BY_JAX])
def test_who_joins_twice_is_told_so_and_not_that_a_port_is_taken(joined, first):
    for process in joined(TWICE.replace("FIRST", first)):
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1 and "this process has joined before: call join once" in out
        assert "in use" not in out


HANGS = """
from join import join

join(sigterm_seconds=1)
import os, signal, time
import jax
from jax.experimental import multihost_utils

multihost_utils.sync_global_devices("a collective of both")
if (child := os.fork()) == 0:
    time.sleep(1000)
os.kill(child, signal.SIGTERM)  # as a loader of data ends its workers
assert os.waitpid(child, 0)[1] == signal.SIGTERM
time.sleep(3)  # the signal of a child is none to this process
print("waits", flush=True)
if jax.process_index() == 0:
    multihost_utils.sync_global_devices("a collective of one")
input()
"""


@pytest.mark.slow
def test_sigterm_ends_a_process_that_hangs_in_a_collective(joined):
    """JAX's preemption service takes the signal, and the step at which a program would save never
    ends.
    """
    hanging, other = joined(HANGS)
    until(hanging, "waits"), until(other, "waits")
    hanging.send_signal(signal.SIGTERM)
    out, _ = hanging.communicate(timeout=PATIENCE)
    assert hanging.returncode == 128 + signal.SIGTERM, out
    assert f"process 0 on {os.uname().nodename}: still running 1 s after SIGTERM, ends now" in out
    assert "in sync_global_devices" in out and "program.py" in out
    assert other.poll() is None


SAVES = """
from join import join

join()
import time
from jax.experimental.multihost_utils import reached_preemption_sync_point

for step in range(10**6):
    print("step", step, flush=True)
    if reached_preemption_sync_point(step):
        break
    time.sleep(0.05)
print("saves", step, flush=True)
"""


@pytest.mark.slow
def test_sigterm_still_leads_to_a_step_at_which_all_save(joined):
    both = joined(SAVES)
    for process in both:
        until(process, "step 3")
    both[1].send_signal(signal.SIGTERM)
    ends = [process.communicate(timeout=PATIENCE)[0].splitlines()[-1] for process in both]
    assert (
        ends[0] == ends[1]
        and ends[0].startswith("saves")
        and [process.returncode for process in both] == [0, 0]
    )


TRAINS = "from join import join\njoin()\nprint('trains', flush=True)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("programs", "arguments", "says"),
    [
        (
            (TRAINS,),
            (["--steps", "3"], ["--steps", "4"]),
            "arguments: --steps 3 in process 0; --steps 4 in process 1",
        ),
        ((TRAINS,), ([], ["--steps", "4"]), "arguments: none in process 0; --steps 4 in process 1"),
        ((TRAINS, f"{TRAINS}# new\n"), ([], []), "text of program.py: SHA-256 "),
    ],
)
def test_processes_with_other_arguments_or_another_file_end_and_say_what_differs(
    joined, programs, arguments, says
):
    for process in joined(*programs, arguments=arguments):
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1 and "trains" not in out
        assert f"the processes run different programs, {says}" in out


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node1", "node1"),
        ("n1,n3", "n1"),
        ("gpu[001-004,007]", "gpu001"),
        ("gpu[02,07],x", "gpu02"),
    ],
)
def test_steps_of_one_job_have_coordinators_of_their_own(monkeypatch, nodes, host):
    """JAX takes the port from the job's number alone: a second step would end the first."""
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "4242")
    monkeypatch.setenv("SLURM_STEP_NODELIST", nodes)

    def address(step):
        monkeypatch.setenv("SLURM_STEP_ID", str(step))
        return port_of_this_step().get("coordinator_address", f"{host}:{61440 + 4242 % 4096}")

    told = [address(step) for step in range(20)]
    assert len(set(told)) >= 20 and {text.rpartition(":")[0] for text in told} == {host}
    assert all(61440 <= int(text.rpartition(":")[2]) <= 65535 for text in told)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "node1i:61440")
    assert port_of_this_step() == {}


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"SLURM_STEP_ID": "junk"}, "SLURM_STEP_ID=junk: export SLURM_STEP_ID=what srun sets"),
        ({"SLURM_JOB_ID": None}, "SLURM_JOB_ID is not set: export SLURM_JOB_ID=what srun sets"),
        ({"SLURM_JOB_ID": "12_3"}, "SLURM_JOB_ID=12_3: export SLURM_JOB_ID=what srun sets"),
        ({"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "x"}, "SLURM_JOB_ID=x: export SLURM_JOB_ID="),
    ],
)
def test_numbers_that_slurm_did_not_set_are_named_in_one_line(monkeypatch, variables, says):
    for name in list(os.environ):
        if name.startswith(("SLURM", "OMPI", "JAX_COORD", "COORDINATOR", "PROCESS_ID")):
            monkeypatch.delenv(name)
    slurm = {"NTASKS": "2", "PROCID": "1", "JOB_ID": "7", "STEP_ID": "1", "STEP_NODELIST": "n1"}
    for name, text in ({f"SLURM_{name}": text for name, text in slurm.items()} | variables).items():
        monkeypatch.setenv(name, text) if text is not None else monkeypatch.delenv(name, False)
    with pytest.raises(SystemExit) as error:
        join()
    assert str(error.value).startswith(says) and str(error.value).isprintable()


@pytest.mark.parametrize("name", ["~/run", "~", "$WORK/run", "${WORK}/run"])
def test_a_name_that_the_shell_has_not_replaced_is_no_folder(monkeypatch, tmp_path, name):
    """As of `--folder=~/run` and of single quotes."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        shared_folder(name)
    assert f"{name} is a name in which the shell has replaced nothing" in str(error.value)
    assert not list(tmp_path.iterdir())


GOOD = {"COORDINATOR": "127.0.0.1:1234", "NUM_PROCESSES": "2", "PROCESS_ID": "0"}
NUMBERS = ["two", "", "-1", "1.0", "1e1", " 1", "1\n", "0x1", "٢", "9" * 5000]
ADDRESSES = ["", "node1", "node1:", ":8476", "node1:0", "node1:99999", "node1:-1", "node1:http"]
ADDRESSES += ["http://node1:8476", "node1:8476/x", "node1:84 76", "me@node1:8476", "::1:8476"]
ADDRESSES += [
    "0.0.0.0:8476",
    "[::]:8476",
    "[node1]:8476",
    "node1:8476\n",
    "node1,node2:8476",
    "*:8476",
]
BAD = [
    *({"NUM_PROCESSES": text} for text in [None, "0", *NUMBERS]),
    *({"PROCESS_ID": text} for text in [None, "2", "7", *NUMBERS]),
    *({"COORDINATOR": text} for text in ADDRESSES),
    *({"COORDINATOR": None, "JAX_COORDINATOR_ADDRESS": a, "SLURM_NTASKS": "2"} for a in ADDRESSES),
    {"COORDINATOR": None},
    {"COORDINATOR": None, "NUM_PROCESSES": None},
    *({"COORDINATOR": None, "PROCESS_ID": None, "NUM_PROCESSES": text} for text in ["0", *NUMBERS]),
    *({"COORDINATOR": f"{host}:8476"} for host in ("no.such.host.invalid", "x" * 99, "a..b")),
]


@pytest.mark.parametrize("changed", BAD, ids=lambda changed: repr(changed)[:60])
def test_what_says_nothing_of_the_processes_is_named_in_one_line(monkeypatch, changed):
    if changed.get("JAX_COORDINATOR_ADDRESS") == "":
        pytest.skip("to JAX, an empty address is none")
    for name in list(os.environ):
        if name.startswith(("SLURM", "OMPI", "JAX_COORD")):
            monkeypatch.delenv(name)
    for name, text in (GOOD | changed).items():
        monkeypatch.setenv(name, text) if text is not None else monkeypatch.delenv(name, False)
    with pytest.raises(SystemExit) as error:
        join()
    said = str(error.value)
    assert (said.isprintable() and "export " in said) or "cannot resolve" in said
    assert any(name in said for name in changed if name.endswith(("ADDRESS", "SES", "ID", "TOR")))


@pytest.mark.slow
@pytest.mark.parametrize("program", ["hello.py", "preflight.py", "hang.py", "links.py", "grid.py"])
def test_each_program_says_it_without_a_traceback(program):
    given = os.environ | on_cpus(1) | GOOD | {"PROCESS_ID": "2"}
    command, folder = [sys.executable, program], ROOT / "book" / "cluster"
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode and "PROCESS_ID=2" in said and "Traceback" not in said
    assert said.count("\n") == 1 + (program == "preflight.py")


TELLS = """
import jax, types
from join import exchange, join

join()
print("store", exchange("who", "ä" + jax.process_index() * "b"))
jax._src.distributed = types.SimpleNamespace()  # JAX does not promise to keep the coordinator's store there
print("again", exchange("again", "ä" + jax.process_index() * "b"))
"""  # noqa: E501


@pytest.mark.slow
def test_processes_exchange_words_with_the_coordinator_s_store_and_without(joined):
    """And the same program at two paths is the same."""
    for process in joined(TELLS, TELLS):
        out, _ = process.communicate(timeout=PATIENCE)
        assert "store ['ä', 'äb']" in out and "again ['ä', 'äb']" in out, out


MPI4PY = """
import os

rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
COMM_TYPE_SHARED = 0


class COMM_WORLD:
    Get_rank, Get_size = staticmethod(lambda: rank), staticmethod(lambda: size)
    bcast = staticmethod(lambda text, root: os.environ["ADDRESS"])  # of process 0
    Split_type = staticmethod(lambda kind: COMM_WORLD)  # of one host
"""
SAYS = (
    "import jax\nfrom join import join\n\njoin()\nprint(jax.process_index(), 'of', "
    "jax.process_count())\n"
)


@pytest.mark.slow
@pytest.mark.parametrize("installed", [True, False])
def test_under_open_mpi_5_join_asks_mpi4py_or_says_that_it_is_missing(tmp_path, installed):
    """Two processes with the variables of Open MPI 5, and a stand-in for mpi4py, which JAX's own
    code asks.
    """
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    (tmp_path / "mpi4py" / "MPI.py").write_text(MPI4PY)
    if not installed:
        shutil.rmtree(tmp_path / "mpi4py")
    shutil.copy(ROOT / "book" / "cluster" / "join.py", tmp_path)
    (tmp_path / "program.py").write_text(SAYS)
    (port,) = free_ports(1)
    settings = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI"))
    }
    settings |= {
        "ADDRESS": f"127.0.0.1:{port}",
        "OMPI_COMM_WORLD_SIZE": "2",
        "JAX_PLATFORMS": "cpu",
        "NPROC": "32",
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": tmp_path}
    ranks = [
        settings | {f"OMPI_COMM_WORLD_{name}RANK": str(i) for name in ("", "LOCAL_")}
        for i in range(2)
    ]
    both = [subprocess.Popen([sys.executable, "program.py"], env=rank, **pipes) for rank in ranks]
    for index, process in enumerate(both):
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == (not installed), out
        assert (
            f"{index} of 2" if installed else "Open MPI 5 does not tell JAX where process 0 is"
        ) in out


@pytest.mark.slow
@pytest.mark.parametrize(("platforms", "status"), [("cpu", 0), ("cuda,cpu", 1), ("", 1)])
def test_cpus_are_accepted_only_where_they_alone_are_asked_for(tmp_path, platforms, status):
    shutil.copy(ROOT / "book" / "cluster" / "join.py", tmp_path)
    (tmp_path / "program.py").write_text(TRAINS)
    settings = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI"))
    }
    command = [sys.executable, "program.py"]
    given = settings | {"JAX_PLATFORMS": platforms, "NPROC": "32"}
    done = subprocess.run(
        command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == status and (
        "JAX finds no GPU or TPU and uses CPUs" in done.stderr
    ) == bool(status)
