import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jupyter_client
import nbclient
import nbformat
import psutil
import pytest
from waiting import PATIENCE, wait_until

import shardlab.cluster.processes
from shardlab import Processes, ProcessFailure, start

pytestmark = [
    pytest.mark.reads("src/shardlab", "book/cluster"),
    pytest.mark.if_changed(
        *(f"src/shardlab/cluster/{name}.py" for name in ("processes", "worker", "join"))
    ),
]

SETUP = """
import os, signal, time
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
mine = np.full(jax.local_device_count(), float(jax.process_index()), np.float32)
g = jax.make_array_from_process_local_data(NamedSharding(mesh, P("d")), mine)
me = jax.process_index()
"""


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    if Processes.current:
        Processes.current.stop()
    assert not engines()


def engines():
    """The processes of this one that belong to ipyparallel."""
    mine = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "ipyparallel" in " ".join(child.cmdline()):
                mine.append(child)
    return mine


@pytest.fixture
def group():
    """Three joined processes: those of the test before, if they are still there."""
    group = Processes.current
    if group is None or group.n != 3:
        group = start(3)
        group.run(SETUP)
    return group


def wait_until_gone(pids):
    """Until all of these processes have ended; zombies have."""

    def alive():
        return [
            p
            for p in pids
            if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE
        ]

    wait_until(lambda: not alive(), alive)


def test_processes_form_one_program(group):
    assert group["jax.process_index()"] == [0, 1, 2]
    assert group["jax.device_count(), jax.local_device_count()"] == [(3, 1)] * 3
    assert group["float(g.sum())"] == [3.0] * 3
    assert len(set(group.pids)) == 3 and group["os.getpid()"] == group.pids
    assert set(group.hosts) == {socket.gethostname()} and repr(group) == "3 processes on 1 host"


def test_what_they_say_comes_whole_and_in_order(group, capsys):
    for _ in range(5):
        outcomes = group.run("for i in range(50):\n    print(me, i)\nme + 10")
        assert [outcome.process for outcome in outcomes] == [0, 1, 2]
        for me, outcome in enumerate(outcomes):
            assert outcome.text.splitlines() == [*(f"{me} {i}" for i in range(50)), str(me + 10)]
    group.run("print('alike'); print('lines')")
    shardlab.cluster.processes._show(group.outcomes)
    assert capsys.readouterr().out == "[0-2] alike\n[0-2] lines\n"
    group.run("print('two' if me else 'one')")
    shardlab.cluster.processes._show(group.outcomes)
    assert capsys.readouterr().out == "[0] one\n[1-2] two\n"


def test_what_threads_and_jax_print_is_there_and_what_the_transport_prints_is_not(group):
    outcomes = group.run(
        "os.write(1, b'[Gloo] Rank 0 is connected\\n'); os.write(2, b'noise\\n')\n"
        "jax.debug.print('x is {}', jax.numpy.ones(2).sum()); jax.effects_barrier()"
    )
    assert [outcome.text for outcome in outcomes] == ["x is 2.0\n"] * 3


def test_some_run_and_the_others_do_not(group):
    outcomes = group.run("only_here = me", only=[2, 0])
    assert [outcome.process for outcome in outcomes] == [0, 2]
    assert group["'only_here' in globals() or 'only_here' in locals()"] == [True, False, True]
    for only in ([3], [-1], []):
        with pytest.raises(ValueError, match="processes are 0 to 2"):
            group.run("pass", only=only)


def test_an_error_of_all_or_before_anybody_waits_leaves_the_group_usable(group):
    with pytest.raises(ProcessFailure) as failure:
        group.run("x = 1\n1 / 0")
    assert (
        str(failure.value) == "[0-2] raised ZeroDivisionError: division by zero at line 2, `1 / 0`"
    )
    with pytest.raises(ProcessFailure) as failure:
        group.run("print('hi')\nif me == 1:\n    raise KeyError('no')")
    assert failure.value.having("raised") == [1] and failure.value.having("done") == [0, 2]
    assert (
        "[1] raised KeyError: 'no' at line 3" in str(failure.value)
        and group.failure is failure.value
    )
    assert [outcome.text for outcome in failure.value.outcomes] == ["hi\n"] * 3
    with pytest.raises(ProcessFailure, match="SyntaxError"):
        group.run("x = = 1")
    with pytest.raises(
        ProcessFailure,
        match=r"^\[0-2\] raised NameError: there is no name 'mech'; there are mesh, me,",
    ):
        group["mech.size"]
    with pytest.raises(ProcessFailure, match="SystemExit"):
        group.run("raise SystemExit(3)")
    assert group["float(g.sum())"] == [3.0] * 3


def test_a_process_that_fails_while_others_wait_for_it_is_named_and_all_end(group):
    pids = [*group.pids, group._controller_pid()]
    with pytest.raises(ProcessFailure) as failure:
        group.run(
            "print('begins')\nif me == 1:\n    raise ValueError('mine')\ntotal = float(g.sum())",
            grace=2,
        )
    assert "[1] raised ValueError: mine at line 3" in str(failure.value)
    assert "[0,2] still waiting at line 4, `total = float(g.sum())`" in str(failure.value)
    assert [outcome.text for outcome in failure.value.outcomes] == ["begins\n"] * 3
    wait_until_gone(pids)
    assert not group._folder.exists() and Processes.current is None
    assert repr(group) == "3 processes, stopped"
    with pytest.raises(ProcessFailure, match="call start\\(\\) again"):
        group.run("pass")
    group.stop()  # once more does no harm


def test_processes_that_hang_are_named_with_the_line_where_they_are(group):
    with pytest.raises(ProcessFailure) as failure:
        group.run("a = 1\nif me == 2:\n    total = float(g.sum())", limit=4)
    assert failure.value.having("hung") == [2] and failure.value.outcomes[2].line == 3
    assert "[2] had not finished after 4 s; waiting at line 3, `total = float(g.sum())`" in str(
        failure.value
    )
    assert "[0-1] done" in str(failure.value)
    wait_until_gone(group.pids)


def test_a_process_that_dies_is_named_with_its_signal_and_its_last_words(group):
    with pytest.raises(ProcessFailure) as failure:
        group.run("print('last')\nif me == 1:\n    os.kill(os.getpid(), signal.SIGKILL)")
    assert (
        failure.value.having("died") == [1]
        and "killed by SIGKILL" in failure.value.outcomes[1].error
    )
    assert failure.value.outcomes[1].text == "last\n"
    wait_until_gone(group.pids)
    with start(1, join=False) as one, pytest.raises(ProcessFailure) as failure:
        one.run("import os; os.write(2, b'F1121 10:00:00.00 7 x.cc:1] no more\\n'); os.abort()")
    assert "[0] died" in str(failure.value) and "killed by SIGABRT: no more" in str(failure.value)
    with start(1, join=False) as one, pytest.raises(ProcessFailure, match="exit status 7"):
        assert repr(one) == "1 process on 1 host"
        one.run("import os; os._exit(7)")
    assert repr(one) == "1 process, stopped"


def test_devices_arguments_and_environment_reach_the_processes():
    with start(
        2, devices=3, environment={"COLOUR": "blue"}, preemption=True, heartbeat_timeout_seconds=17
    ) as group:
        group.run("import jax, os")
        assert group["jax.device_count(), jax.local_device_count()"] == [(6, 3)] * 2
        assert (
            group["os.environ['COLOUR'], jax.config.jax_enable_preemption_service"]
            == [("blue", True)] * 2
        )
    with start(2, join=False) as group:
        assert group["__import__('jax').distributed.is_initialized()"] == [False, False]
        assert group.coordinator.startswith("localhost:")


@pytest.mark.parametrize(
    ("preemption", "error"), [(True, "exit status 143"), (False, "SIGTERM|exit status 143")]
)
def test_sigterm_ends_a_process_that_hangs_in_a_collective(preemption, error):
    """Also where JAX's preemption service takes the signal."""
    with start(2, preemption=preemption, sigterm_seconds=1) as group:
        group.run(
            "import os, signal, threading, jax\nfrom jax.experimental.multihost_utils import "
            "assert_equal"
        )
        group.run("assert_equal(1)")
        hang = "threading.Timer(2, os.kill, [os.getpid(), signal.SIGTERM]).start()\nassert_equal(1)"
        with pytest.raises(ProcessFailure) as failure:
            group.run(hang, only=[0], limit=PATIENCE)
    assert failure.value.having("died") == [0] and re.search(error, failure.value.outcomes[0].error)


def test_each_process_of_a_host_takes_a_gpu_of_its_own_in_a_step_of_slurm_too():
    """There JAX would ask Slurm, for which all of them are the first task."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "1"}
    step |= {
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
    }
    with start(2, devices=None, environment=step) as group:
        group.run("import jax")
        found = group[
            "jax.process_index(), jax.process_count(), jax.config.read('jax_cuda_visible_devices')"
        ]
    assert found == [(0, 2, "0"), (1, 2, "1")]


def test_nothing_listens_to_other_hosts(group):
    own = psutil.Process().children(recursive=True)
    listening = [
        c.laddr.ip
        for one in own
        for c in one.net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    assert (
        listening
        and {ip for ip in listening if ip.removeprefix("::ffff:") not in ("127.0.0.1", "::1")}
        == set()
    )


@pytest.mark.parametrize(
    "bad", [{"n": 0}, {"n": 2.0}, {"n": True}, {"devices": 0}, {"devices": "4"}]
)
def test_bad_numbers_are_refused_before_anything_starts(bad):
    with pytest.raises(ValueError, match="whole number of 1 or more"):
        start(**bad)


def test_a_launcher_that_nobody_knows_is_refused_before_the_running_group_stops(group):
    for name, says in {
        "sulrm": "; did you mean 'slurm'?",
        "qqq": "; use one such as local, slurm, mpi or ssh",
    }.items():
        with pytest.raises(ValueError) as refused:
            start(2, cluster=name)
        assert str(refused.value) == f"ipyparallel has no launcher called {name!r}{says}"
    assert Processes.current is group and group["me"] == [0, 1, 2]


def test_without_cells_there_are_no_names():
    with (
        start(1, join=False) as one,
        pytest.raises(ProcessFailure, match="no name 'nope'; no cell has made any"),
    ):
        one["nope"]


CHILDREN = """
import os, subprocess
wait = ["sleep", "3600"]
same, other = subprocess.Popen(wait), subprocess.Popen(wait, start_new_session=True)
said = subprocess.run(["sh", "-c", "sleep 3600 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True).stdout
forked = os.fork() or os.execvp("sleep", wait)
children = [same.pid, other.pid, int(said), forked]
"""  # noqa: E501


def test_what_the_processes_started_ends_with_them():
    group = start(1, join=False)
    group.run(CHILDREN)
    (children,) = group["children"]
    assert all(map(psutil.pid_exists, children))
    group.stop()
    wait_until_gone(children)
    group = start(1, join=False)
    group.run(CHILDREN)
    ((same, _, orphan, forked),) = group["children"]
    with pytest.raises(ProcessFailure, match="died"):
        group.run("os._exit(1)")
    wait_until_gone([same, orphan, forked])


LATE = """
import threading, time, sys
from pathlib import Path
folder = Path({folder!r})
def speak():
    while not (folder / "go").exists():
        time.sleep(0.05)
    print("late")
    print("and wrong", file=sys.stderr)
    (folder / f"said-{{me}}").touch()
threading.Thread(target=speak).start()
print("now")
"""


def test_what_a_thread_prints_between_cells_comes_with_the_next_one(group, tmp_path):
    assert [outcome.text for outcome in group.run(LATE.format(folder=str(tmp_path)))] == [
        "now\n"
    ] * 3
    (tmp_path / "go").touch()  # no cell runs now
    wait_until(lambda: len(list(tmp_path.glob("said-*"))) == 3)
    assert [outcome.text for outcome in group.run("print('next')")] == [
        "late\nand wrong\nnext\n"
    ] * 3
    assert [outcome.text for outcome in group.run("print('ä last')")] == ["ä last\n"] * 3


def test_what_cannot_start_in_time_is_given_up_and_cleared_away():
    with pytest.raises(ProcessFailure, match=r"of 4 processes have started"):
        start(4, limit=0.5)
    with pytest.raises(ProcessFailure, match="TypeError"):
        start(2, no_such_argument=1)
    assert Processes.current is None


def test_a_port_that_somebody_took_is_tried_once_more(monkeypatch):
    join, tries = Processes._join, []
    with socket.socket() as busy:
        busy.bind(("", 0))
        busy.listen()

        def with_a_busy_port(self, end):
            if not tries:
                self.coordinator = f"localhost:{busy.getsockname()[1]}"
            tries.append(self.coordinator)
            join(self, end)

        monkeypatch.setattr(Processes, "_join", with_a_busy_port)
        with start(2, initialization_timeout=60, limit=180) as group:
            assert len(tries) == 2 and group["1 + 1"] == [2, 2]


@pytest.fixture
def interruptible():
    """A job in the background may ignore Ctrl-C; here it is heard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_group(capsys, interruptible, tmp_path):
    group, ended = start(2), threading.Event()

    # like a reader, again if nothing happens: Python drops an interrupt that hits a garbage
    # collection
    def press():
        wait_until((tmp_path / "runs").exists)
        for _ in range(4):
            signal.raise_signal(signal.SIGINT)
            if ended.wait(PATIENCE / 10):
                return

    presses = threading.Thread(target=press)
    presses.start()
    with pytest.raises(KeyboardInterrupt):
        group.run(
            f"import pathlib, time; pathlib.Path({str(tmp_path / 'runs')!r}).touch(); "
            "time.sleep(3600)"
        )
    ended.set()
    presses.join()
    assert "interrupted: all processes were stopped" in capsys.readouterr().err
    wait_until_gone(group.pids)


def test_no_port_is_one_that_an_outgoing_connection_could_take(group):
    """In the moment between choosing a port and using it, which on a busy machine is long."""
    ports = {
        c.laddr.port
        for p in engines()
        for c in p.net_connections()
        if c.status == psutil.CONN_LISTEN
    }
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(given.read_text().split()[0]) if given.exists() else 49152
    controllers = {port for port in ports if port in shardlab.cluster.processes.worker.PORTS}
    assert len(controllers) > 10 and shardlab.cluster.processes.worker.PORTS.stop <= lowest
    assert int(group.coordinator.rpartition(":")[2]) in ports & controllers


def test_a_group_starts_although_a_port_was_taken_meanwhile(monkeypatch):
    choose, chosen = shardlab.cluster.processes.worker.free_ports, []
    with contextlib.ExitStack() as stack:

        def taken(count):
            chosen.append(choose(count))
            if len(chosen) == 1:
                for port in chosen[0]:
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return chosen[-1]

        monkeypatch.setattr(shardlab.cluster.processes.worker, "free_ports", taken)
        with start(2, limit=20) as group:
            group.run("import jax")
            assert group["jax.process_count()"] == [2, 2] and len(chosen) > 1


def test_several_groups_side_by_side_do_not_meet():
    program = SETUP.join(
        [
            "from shardlab import start\nif True:\n    group = start(2)\n    group.run('''",
            (
                "''')\n    print(group['float(g.sum())'], group['jax.process_count()'])\n    "
                "group.stop()"
            ),
        ]
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [run.communicate(timeout=PATIENCE)[0] for run in runs] == ["[1.0, 1.0] [2, 2]\n"] * 2


def notebook(*cells):
    """Run cells in a notebook's kernel; returns what each printed, with "picture" for a displayed
    PNG.
    """
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        made, timeout=PATIENCE, kernel_name="python3", allow_errors=True
    ).execute()
    said = []
    for cell in made.cells:
        texts = []
        for output in cell.outputs:
            if output.output_type == "stream":
                texts.append(output.text)
            elif output.output_type == "error":
                texts.append(f"{output.ename}: {output.evalue}")
            else:
                texts.append(
                    "picture\n" if "image/png" in output.data else output.data["text/plain"]
                )
        said.append("".join(texts).rstrip("\n"))
    return said


# ipyparallel, used in this process before, keeps dates as text; nbclient then falls back on an old
# function.
old_clock = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")


@old_clock
def test_in_a_notebook_a_cell_runs_in_processes():
    said = notebook(
        "from shardlab import start\ngroup = start(2)\ngroup",
        "%%processes\nimport jax\nprint('I am', jax.process_index())\njax.device_count()",
        (
            "%%processes 1\nimport matplotlib.pyplot as plt\nprint('see')\nplt.plot([1, "
            "2])\nplt.show()"
        ),
        "%%processes --fails\nraise ValueError('as it should')",
        "%%processes --fails\npass",
        "%%processes\nraise ValueError('really')",
        "%%processes 2-1\npass",
        "%%processes --limt 3\npass",
        "%processes",
        "%%processes --limit 4 --fails\nif jax.process_index():\n    import time; time.sleep(3600)",
        "%%processes\n1",
        "group.failure.having('hung')",
        "group = start(1)",
        "%%processes\n1 + 1",
    )
    assert said[0] == "2 processes on 1 host"
    assert said[1] == "[0] I am 0\n[0] 2\n[1] I am 1\n[1] 2"
    assert said[2] == "[1] see\n[1]\npicture"
    assert (
        said[3]
        == "[0-1] raised ValueError: as it should at line 1, `raise ValueError('as it should')`"
    )
    assert said[4].startswith("AssertionError: this cell was expected to fail")
    assert said[5].startswith("ProcessFailure: [0-1] raised ValueError: really at line 1")
    assert said[6].startswith(
        "ValueError: %%processes: argument only: '2-1' does not name processes; write such as 0"
    )
    assert "unrecognized arguments: --limt" in said[7] and "--help" in said[7]
    assert "usage: %%processes" in said[8] and "--grace" in said[8]
    assert said[9].startswith("[1] had not finished after 4 s; waiting at line 2")
    assert said[10].startswith("ProcessFailure: no processes are running; call start() again")
    assert said[11:] == ["[1]", "", "[0] 2"]


@old_clock
def test_nothing_is_left_when_the_notebook_is_killed():
    manager, client = jupyter_client.manager.start_new_kernel(kernel_name="python3")
    try:
        client.execute(
            "from shardlab import start\ngroup = start(2)\n"
            'group.run(\'import subprocess; child = subprocess.Popen(["sleep", "3600"]).pid\')\n'
            "print(*group.pids, group._controller_pid(), *group['child'], group._folder, "
            "flush=True)"
        )
        pids = []
        while not pids:
            message = client.get_iopub_msg(timeout=PATIENCE)
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                *pids, folder = message["content"]["text"].split()
                pids = list(map(int, pids))
        assert len(pids) == 5 and Path(folder).exists() and all(map(psutil.pid_exists, pids))
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        wait_until_gone(pids)
        assert not Path(folder).exists()
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize(
    ("coordinator", "listens"),
    [
        ("localhost:8476", "127.0.0.1:8476"),
        ("LOCALHOST:8476", "127.0.0.1:8476"),
        ("127.0.0.2:8476", "127.0.0.2:8476"),
        ("[::1]:8476", "[::1]:8476"),
        ("10.0.0.7:8476", None),
        ("node7:8476", None),
    ],
)
def test_a_coordinator_of_this_host_alone_listens_to_no_other(coordinator, listens):
    from shardlab.cluster.join import on_this_host

    assert on_this_host(coordinator).get("coordinator_bind_address") == listens


@pytest.mark.parametrize(
    ("resolves", "listens"),
    [
        (["127.0.1.1"], "127.0.1.1:8476"),  # as Debian's installer writes it: no other reaches it
        (["::1"], "[::1]:8476"),
        (["127.0.1.1", "10.0.0.7"], None),
        (["10.0.0.7"], None),  # others may resolve it to another address of this host
        ([], None),
    ],
)
@pytest.mark.parametrize("name", ["own", "OWN"])
def test_an_own_name_that_only_this_host_reaches_listens_there(
    monkeypatch, name, resolves, listens
):
    from shardlab.cluster.join import on_this_host

    def resolve(host, *_, **__):
        if not resolves:
            raise socket.gaierror
        return [(0, 0, 0, "", (address, 0)) for address in resolves]

    monkeypatch.setattr(socket, "gethostname", lambda: "own")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert on_this_host(f"{name}:8476").get("coordinator_bind_address") == listens
