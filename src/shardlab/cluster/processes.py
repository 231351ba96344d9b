"""Start JAX processes from a notebook, run cells in all or some of them, and report what went wrong
in which.

    group = start(8)                 # eight processes with one CPU device each, joined by jax.distributed

    %%processes                      # the first line of a notebook cell: run it in every process
    import jax
    print(jax.process_index(), jax.device_count())

    %%processes 0,2-3 --limit 10     # in some of them, for ten seconds at most
    group.run("x = 1")               # the same without a notebook
    group["x"]                       # the value of x in each process
    group.stop()

The processes are engines of [ipyparallel](https://ipyparallel.readthedocs.io), so they can also be
started by Slurm, MPI or SSH. What they print is shown in order, with the process index in front.
"""  # noqa: E501

import argparse
import asyncio
import atexit
import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab._arguments import nearest
from shardlab.cluster import worker

__all__ = ["Outcome", "ProcessFailure", "Processes", "start"]

_TICK = 0.02  # seconds between two polls of the processes
_PORTS = 40  # that ipyparallel's controller may use


@dataclass(frozen=True)
class Outcome:
    """The result of running a cell in one process.

    Attributes:
      process: the process index, as `jax.process_index()` returns it.
      state: "done", "raised" (an exception), "died" (its operating-system process has ended),
        "hung" (had not finished at the time limit) or "waited" (had not finished when another
        process raised or died).
      seconds: how long it took, or how long `run` waited for it.
      text: what it printed, and what its threads had printed since the cell before.
      pictures: what it displayed besides text, each a dict of MIME types.
      error: the error in one line; "" if there was none.
      line: the line of the cell that raised or was waiting; 0 if unknown.
    """

    process: int
    state: str
    seconds: float
    text: str = ""
    pictures: tuple = ()
    error: str = ""
    line: int = 0


class ProcessFailure(RuntimeError):
    """A cell failed in at least one process; `outcomes` has the `Outcome` of each process, in
    order.

    `failure.having("died")` lists the processes in that state.
    """

    def __init__(self, message: str, outcomes: Iterable[Outcome] = ()) -> None:  # noqa: D107
        super().__init__(message)
        self.outcomes = tuple(outcomes)

    def having(self, *states: str) -> list[int]:
        """The process indices in one of these states, as a list."""
        return [outcome.process for outcome in self.outcomes if outcome.state in states]


def start(
    n: int = 8,
    devices: int | None = 1,
    *,
    cluster: Any = "local",
    join: bool = True,
    limit: float = 180,
    preemption: bool = False,
    sigterm_seconds: float = 100,
    environment: Mapping[str, str] | None = None,
    **initialize: Any,
) -> "Processes":
    """Start `n` processes, join them into one JAX program, and return the group.

    `start(8)` starts eight processes with one CPU device each, `start(2, devices=4)` two with four,
    which are also 2 * 4 = 8 devices. A group that this function started earlier is stopped first,
    so a notebook's cell can run again. In a notebook the cell magic `%%processes` then runs cells
    in the group; `%%processes --help` lists its options.

    Args:
      n: how many processes, 1 or more.
      devices: how many emulated CPU devices each has; with None each uses the accelerators that it
        finds: if several processes are on a host, each takes the GPU whose number is its index
        there.
      cluster: the launcher: a name that ipyparallel knows ("local", "slurm", "mpi", "ssh"), or an
        `ipyparallel.Cluster` that is not running yet, for queues, accounts and templates of your
        own.
      join: whether to call `jax.distributed.initialize` in each. If not, a cell has to do it, with
        `group.coordinator` as `coordinator_address`.
      limit: seconds after which starting fails.
      preemption: whether JAX's preemption service handles SIGTERM in them. If not, the signal ends
        a process.
      sigterm_seconds: how long a process may still run after SIGTERM where that service handles it.
      environment: variables to set in each process before JAX starts, as a dict.
      **initialize: more arguments for `jax.distributed.initialize`, such as
        `heartbeat_timeout_seconds=10`.

    Returns:
      A `Processes`.

    Raises:
      ValueError: `n` or `devices` is not a whole number of at least 1, or there is no launcher
        `cluster`.
      ImportError: ipyparallel is missing.
      ProcessFailure: they did not start, or did not connect to each other, within the limit. All
        are stopped.
    """
    for name, value in {"n": n, "devices": 1 if devices is None else devices}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"start() needs a whole number of 1 or more for {name}; got {value!r}")
    if isinstance(cluster, str):
        _cluster(cluster)  # raises here if there is none, while an earlier group still runs
    if Processes.current:
        Processes.current.stop()
    settings = {
        "devices": devices,
        "preemption": preemption,
        # JAX 0.7 takes the signal in any case
        "sigterm_seconds": sigterm_seconds if preemption else 0,
        "environment": environment or {},
        "initialize": initialize,
    }
    for attempt in (1, 2):
        try:
            Processes.current = Processes(n, cluster, join, limit, settings)
            break
        except ProcessFailure as failure:
            # Another program may take a free port before we use it. JAX then says so, or crashes;
            # and of ipyparallel's controller a part ends, without which no process counts as
            # started.
            port_taken = failure.having("died") or re.search(
                "RPC server|processes have started", str(failure)
            )
            if attempt == 2 or not port_taken or not isinstance(cluster, str):
                raise
    _offer_magic()
    return Processes.current


class Processes:
    """A group of processes, as `start` returns it.

    Attributes:
      n: how many processes.
      hosts: the host on which each runs, in the order of process indices.
      pids: the operating system's process id of each.
      coordinator: the address of the coordinator, "host:port".
      outcomes: the `Outcome` of the last cell in each process that ran it.
      failure: the `ProcessFailure` of the last cell, or None.
    """

    current = None

    def __init__(  # noqa: D107
        self, n: int, cluster: Any, join: bool, limit: float, settings: dict[str, Any]
    ) -> None:
        self.n, self.coordinator, self.outcomes, self.failure = n, None, (), None
        self.hosts, self.pids = [], []
        # how many bytes of what each printed an outcome has had
        self._told = dict.fromkeys(range(n), 0)
        self._cluster = self._client = self._set = None
        self._settings = settings
        self._local = cluster == "local"
        self._folder = Path(tempfile.mkdtemp(prefix="processes-", dir=None if self._local else "."))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="processes", daemon=True
        )
        self._thread.start()
        atexit.register(self.stop)
        end = time.monotonic() + limit
        try:
            self._launch(cluster, end)
            self._prepare(end)
            if join:
                self._join(end)
        except BaseException:
            self.stop()
            raise

    def __repr__(self) -> str:
        processes = _count(self.n, "process", "processes")
        if self._client is None:
            return f"{processes}, stopped"
        return f"{processes} on {_count(len(set(self.hosts)), 'host', 'hosts')}"

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __getitem__(self, name: str) -> list:
        """The value of a variable, or of any expression, in each process: a list in the order of
        process indices.

        `group["x"]` is `[1, 1]` after a cell `x = 1` in two processes. A `ProcessFailure` names the
        variables that there are, the most similar first, if there is none of this name.
        """
        return self._do(time.monotonic() + 60, worker.value, name, grace=5)

    def run(
        self, code: str, only: Sequence[int] | None = None, *, limit: float = 60, grace: float = 5
    ) -> list[Outcome]:
        """Run code in every process, or in some, at the same time, and wait until all have ended.

        Args:
          code: Python, as text. Names persist from one cell to the next.
          only: the indices of the processes that run it, such as `[0, 2]`; None means all.
          limit: seconds after which processes that have not finished count as hung.
          grace: seconds that the others get to finish after one has raised or died.

        Returns:
          A list of `Outcome`, in the order of process indices.

        Raises:
          ProcessFailure: at least one raised, died or hung. If some hung or died, all are stopped,
            because the others could wait for them indefinitely; call `start` again.
          ValueError: `only` names a process that does not exist.
        """
        if self._client is None:
            raise ProcessFailure("these processes were stopped; call start() again")
        chosen = sorted(set(range(self.n) if only is None else only))
        if not chosen or chosen[0] < 0 or chosen[-1] >= self.n:
            raise ValueError(f"only={list(only)!r}, but the processes are 0 to {self.n - 1}")
        self.failure = None
        calls = self._call(chosen, worker.run, code)
        try:
            self._wait(calls, time.monotonic() + limit, grace)
        except KeyboardInterrupt:
            self.stop()
            print("interrupted: all processes were stopped; call start() again", file=sys.stderr)
            raise
        self._judge(calls, code)
        return list(self.outcomes)

    def stop(self) -> None:
        """End all processes, what they have started, and their helpers at once. Calling it again
        does no harm.

        On other hosts only the processes themselves are sure to end, and what the launcher ends
        with them.
        """
        if self._thread is None:
            return
        started = worker.descendants(self.pids) if self._local else []
        with contextlib.suppress(Exception):
            self._async(self._cluster.signal_engines(signal.SIGKILL), 10)
        worker.end(started)
        # what they started in the meantime
        worker.end(worker.descendants(self.pids) if self._local else [])
        with contextlib.suppress(Exception):
            self._client.close(linger=0)
        with contextlib.suppress(Exception):
            self._async(self._cluster.stop_cluster(), 20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._client = self._thread = None
        atexit.unregister(self.stop)
        if Processes.current is self:
            Processes.current = None

    # Starting

    def _launch(self, cluster, end):
        """The operating system's processes, with ipyparallel's engines in them."""
        if isinstance(cluster, str):
            # Other hosts reach this one by its address, because its name may mean the loopback
            # here.
            options = (
                {} if self._local else {"controller_ip": "*", "controller_location": _address()}
            )
            cluster = _cluster(
                cluster, profile_dir=str(self._folder / "profile"), log_level=40, **options
            )
            cluster.shutdown_atexit = False  # we stop it
        if self._local:
            # We see local processes end without ipyparallel's nannies; without them only half as
            # many processes start.
            cluster.config.EngineLauncher.engine_args = ["--IPEngine.enable_nanny=False"]
            cluster.config.LocalEngineSetLauncher.delay = 0
        # An engine counts as started at its first heartbeat, which by default comes every 3 s.
        beats = ["--HeartMonitor.period=300", "--HeartMonitor.max_heartmonitor_misses=200"]
        first, *_, last = worker.free_ports(_PORTS)
        ports = f"--IPController.ports={first}-{last}"
        cluster.controller_args = [*cluster.controller_args, *beats, ports]
        self._cluster = cluster
        try:
            self._async(cluster.start_controller(), end - time.monotonic())
            self._set = self._async(cluster.start_engines(self.n), end - time.monotonic())
            self._client = self._async(cluster.connect_client(), end - time.monotonic())
            said = time.monotonic()
            while len(self._client.ids) < self.n:
                time.sleep(_TICK)
                if self._exits() or time.monotonic() > end:
                    raise FutureTimeout
                if not self._local and time.monotonic() > said + 15:  # a queue can be long
                    said = time.monotonic()
                    print(
                        f"{len(self._client.ids)} of {self.n} processes have started",
                        file=sys.stderr,
                    )
        except (FutureTimeout, OSError, RuntimeError) as error:
            there = len(self._client.ids) if self._client else 0
            raise ProcessFailure(
                f"{there} of {self.n} processes have started. {error or ''}\n{self._log()}".rstrip()
            ) from None

    def _log(self):
        """The last lines that launchers wrote while starting."""
        files = sorted((self._folder / "profile" / "log").glob("*.log"))
        lines = [line for file in files for line in file.read_text(errors="replace").splitlines()]
        return "\n".join(lines[-8:])

    def _prepare(self, end):
        """Order the engines by process index, and set up their reports."""
        self._ids = list(self._client.ids)
        order = sorted(
            zip(self._ids, self._do(end, worker.hello), strict=True), key=lambda pair: pair[1]
        )
        self._ids = [i for i, _ in order]
        self.hosts, self.pids = [who[1] for _, who in order], [who[2] for _, who in order]
        watch = (os.getpid(), self._controller_pid()) if self._local else None
        self._do(end, worker.prepare, str(self._folder.resolve()), watch, self._settings)
        alone = len(set(self.hosts)) == 1
        (self.coordinator,) = self._do(
            end, worker.coordinator_address, "localhost" if alone else self.hosts[0], only=[0]
        )

    def _join(self, end):
        places = [self.hosts[:i].count(host) for i, host in enumerate(self.hosts)]
        several = self._settings["devices"] is None and len(set(self.hosts)) < self.n  # on a host
        options = (
            self._settings["initialize"],
            self._settings["sigterm_seconds"],
            places if several else None,
        )
        self._do(end, worker.join, self.coordinator, self.n, *options)

    def _controller_pid(self):
        return getattr(self._cluster.controller, "pid", -1)

    # Calling

    def _async(self, coroutine, seconds):
        """Run a coroutine in our own thread, for a limited time."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(max(seconds, 0.1))

    def _do(self, end, function, *args, only=None, grace=1):
        """Call a function of `shardlab.cluster.worker` in processes, each with its index first;
        returns the values.
        """
        calls = self._call(range(self.n) if only is None else only, function, *args)
        self._wait(calls, end, grace)
        self._judge(calls, "")
        return [call.result["value"] for call in calls]

    def _call(self, chosen, function, *args):
        if self._client is None:
            raise ProcessFailure("these processes were stopped; call start() again")
        return [
            _Call(i, self._client[self._ids[i]].apply_async(function, i, *args)) for i in chosen
        ]

    def _wait(self, calls, end, grace):
        """Wait until every call has ended, or for a limited time; note the state of each."""
        while True:
            exits = self._exits()
            for call in calls:
                call.look(exits.get(self.pids[call.process]) if self.pids else None)
            waiting = [call for call in calls if call.state == "waiting"]
            if not waiting:
                return
            now = time.monotonic()
            if now > end:
                state = "hung"
                break
            trouble = [call.ended for call in calls if call.state in ("raised", "died")]
            if trouble and now > min(trouble) + grace:
                state = "waited"
                break
            time.sleep(_TICK)
        for call in waiting:
            call.state, call.ended = state, time.monotonic()
        if self.pids:
            self._ask_where(waiting)

    def _exits(self):
        """The process ids of those that have ended, with their exit codes."""
        engines = self._cluster.engines.get(self._set) if self._set else None
        ended = dict(getattr(engines, "stop_data", None) or {}).get("engines", {})
        return {data["pid"]: data["exit_code"] for data in list(ended.values())}

    def _ask_where(self, calls):
        """Let processes that have not finished write the line at which they are."""
        for call in calls:
            with contextlib.suppress(Exception):
                if self._local:
                    os.kill(self.pids[call.process], signal.SIGUSR1)
                else:
                    self._client.send_signal(signal.SIGUSR1, self._ids[call.process])
        deadline = time.monotonic() + 2
        for call in calls:
            file = self._folder / f"{call.process}.where"
            while time.monotonic() < deadline and not (file.exists() and file.stat().st_size):
                time.sleep(_TICK)
            time.sleep(_TICK)  # it is being written
            lines = (
                re.findall(r'File "<cell>", line (\d+)', file.read_text()) if file.exists() else ()
            )
            call.line = int(lines[0]) if lines else 0

    def _judge(self, calls, code):
        """Keep the outcomes; if one is a failure, stop the processes where necessary, and raise."""
        self.outcomes = outcomes = tuple(
            call.outcome(self._folder, self._told[call.process]) for call in calls
        )
        self._told |= {call.process: call.result["told"] for call in calls if "told" in call.result}
        if all(outcome.state == "done" for outcome in outcomes):
            return
        lost = any(outcome.state in ("died", "hung", "waited") for outcome in outcomes)
        if lost:
            self.stop()
        self.failure = ProcessFailure(_report(outcomes, code, lost), outcomes)
        raise self.failure


class _Call:
    """A function that runs in a process."""

    def __init__(self, process, handle):
        self.process, self.handle = process, handle
        self.began, self.ended, self.state = time.monotonic(), None, "waiting"
        self.result, self.error, self.line = {}, "", 0

    def look(self, exit_code):
        """Note whether it has finished, or never will."""
        if self.state != "waiting":
            return
        if self.handle.ready():
            try:
                self.result = self.handle.get()
                self.error, self.line = self.result.get("error", ""), self.result.get("line", 0)
                self.state = "raised" if self.error else "done"
            except Exception as error:
                gone = "EngineError" in (type(error).__name__, getattr(error, "ename", ""))
                self.state = "died" if gone else "raised"
                self.error = (
                    "" if gone else f"{getattr(error, 'ename', type(error).__name__)}: {error}"
                )
        elif exit_code is not None:
            self.state, self.error = "died", _exit_text(exit_code)
        if self.state != "waiting":
            self.ended = time.monotonic()

    def outcome(self, folder, start):
        """The outcome, with what it printed: from its result, or from its file after `start`."""
        text, error = self.result.get("text"), self.error
        if text is None:
            text = _read(folder / f"{self.process}.text", start)
        if self.state == "died":
            error = (
                f"{error}: {words}"
                if (words := _last_words(_read(folder / f"{self.process}.log")))
                else error
            )
        seconds = self.result.get("seconds", self.ended - self.began)
        pictures = tuple(self.result.get("pictures", ()))
        return Outcome(self.process, self.state, seconds, text, pictures, error, self.line)


def _cluster(name, **options):
    """An `ipyparallel.Cluster`, not running yet, whose engines a launcher of this name starts."""
    try:
        import ipyparallel
        from traitlets import TraitError
    except ImportError:
        raise ImportError(
            "shardlab.cluster.processes needs ipyparallel: pip install ipyparallel"
        ) from None
    try:
        return ipyparallel.Cluster(engines=name, **options)
    except TraitError:
        known = ("local", "slurm", "mpi", "ssh", "pbs", "sge", "lsf", "htcondor")
        hint = nearest(name, known) or "; use one such as local, slurm, mpi or ssh"
        raise ValueError(f"ipyparallel has no launcher called {name!r}{hint}") from None


def _address():
    """The address of this host for others: that of its default route, or else any that is not the
    loopback.
    """
    import psutil

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an address for documentation; nothing is sent
        return probe.getsockname()[0]
    families = (found for interface in psutil.net_if_addrs().values() for found in interface)
    addresses = [found.address for found in families if found.family == socket.AF_INET]
    return next(
        (address for address in addresses if not address.startswith("127.")), socket.gethostname()
    )


def _read(file, start=0):
    try:
        return file.read_bytes()[start:].decode(errors="replace")
    except OSError:
        return ""


def _exit_text(code):
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"


def _last_words(log):
    """The last error that C++ wrote before it ended the process, without times and source lines."""
    errors = re.findall(r"^[EF]\d{4} \S+ +\d+ \S+\] (.*)", log, flags=re.M)
    words = errors[-1].split(" Error: ")[0].strip() if errors else ""
    # Without the advice to look at logs that we have already read.
    return re.sub(r"; see the other task logs.*?absl::Status: ", ": ", words)


def _report(outcomes, code, stopped):
    """What went wrong, with equal outcomes together."""
    lines, groups = code.splitlines(), {}
    for outcome in outcomes:
        if outcome.state != "done":
            groups.setdefault((outcome.state, outcome.error, outcome.line), []).append(outcome)
    text = []
    for (state, error, line), group in groups.items():
        who, seconds = (
            _who(outcome.process for outcome in group),
            max(outcome.seconds for outcome in group),
        )
        where = f" at line {line}, `{lines[line - 1].strip()}`" if 0 < line <= len(lines) else ""
        what = {
            "raised": f"raised {error}{where}",
            "died": f"died after {seconds:.1f} s, {error}",
            "hung": (
                f"had not finished after {seconds:.0f} s; waiting{where or ' at an unknown line'}"
            ),
            "waited": f"still waiting{where} after {seconds:.0f} s",
        }[state]
        text.append(f"{who} {what}")
    finished = [outcome.process for outcome in outcomes if outcome.state == "done"]
    if finished:
        text.append(f"{_who(finished)} done")
    if stopped:
        text.append("all processes were stopped; call start() again")
    return "\n".join(text)


def _count(n, singular, many):
    return f"{n} {singular if n == 1 else many}"


def _who(processes):
    """[0, 1, 2, 5] as "[0-2,5]"."""
    runs = []
    for p in processes:
        if runs and runs[-1][1] == p - 1:
            runs[-1][1] = p
        else:
            runs.append([p, p])
    return "[" + ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs) + "]"


def _numbers(text):
    """ "0,2-4" as [0, 2, 3, 4]."""
    numbers = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match or int(match[1]) > int(match[2] or match[1]):
            raise argparse.ArgumentTypeError(
                f"{text!r} does not name processes; write such as 0 or 0,2-4"
            )
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


# The magic


def _magic_parser():
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise ValueError(f"%%processes: {message}; %%processes --help lists the options")

        def exit(self, status=0, message=None):
            raise SystemExit

    parser = Parser(prog="%%processes", description="Run this cell in every process, or in some.")
    parser.add_argument("only", nargs="?", type=_numbers, help="which, such as 0 or 0,2-4 (all)")
    parser.add_argument(
        "--limit",
        type=float,
        default=60,
        metavar="S",
        help="seconds after which unfinished processes count as hung (60)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=5,
        metavar="S",
        help="seconds that the others get to finish when one has failed (5)",
    )
    parser.add_argument(
        "--fails", action="store_true", help="the cell must fail: show how, and continue"
    )
    return parser


def _offer_magic():
    """In a notebook, register %%processes."""
    from IPython import get_ipython

    if get_ipython():
        get_ipython().register_magic_function(_magic, "line_cell", "processes")


def _magic(line, cell=None):
    with contextlib.suppress(SystemExit):
        options = _magic_parser().parse_args(line.split() if cell else ["--help"])
        group = Processes.current
        if group is None:
            raise ProcessFailure("no processes are running; call start() again")
        failure = None
        try:
            group.run(cell, options.only, limit=options.limit, grace=options.grace)
        except ProcessFailure as error:
            failure = error
        _show(group.outcomes)
        if failure and not options.fails:
            raise failure from None
        if options.fails and not failure:
            raise AssertionError("this cell was expected to fail, but all processes are done")
        if failure:
            print(failure)


def _show(outcomes):
    """Print and display the output of the processes, in order; equal output of several is shown
    once.
    """
    from IPython.display import display

    texts, pictures = {}, {}
    for outcome in outcomes:
        if outcome.text.strip():
            texts.setdefault(outcome.text, []).append(outcome.process)
        for picture in outcome.pictures:
            pictures.setdefault(repr(picture), (picture, []))[1].append(outcome.process)
    for text, who in texts.items():
        print("\n".join(f"{_who(who)} {line}".rstrip() for line in text.rstrip("\n").split("\n")))
    for picture, who in pictures.values():
        print(_who(who))
        display(picture, raw=True)
