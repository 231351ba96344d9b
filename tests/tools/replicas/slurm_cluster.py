"""A real Slurm with two nodes on one machine, for tests and for the recordings of clusters.md.
Needs root, on Debian.

Each node is a network namespace with a host name of its own, joined to the others by a bridge, with
a slurmd in it. Nothing outside of a temporary folder, /etc/hosts (one line a node) and the
namespaces is touched; `stop` undoes all. There is one such cluster at a time: another one waits,
and ends what a run that was killed has left.

    with Cluster() as cluster:
        job = cluster.submit("book/cluster/two-nodes.sbatch", "hello.py")
        print(cluster.wait(job).output)

After a lost node Slurm starts a job again when the job's credentials have expired (cred_expire, 120
s unless set). It tries once more to end the first start 60 s after it could not, and must not find
the second one then: hence 70 s. What became of a job is kept however late a test asks: by default
Slurm forgets an ended job after 300 s (MinJobAge), and with 0 at once.

The nodes have no GPUs. Slurm is told that each has four, which are terminals (gres.conf), and 16
CPUs, so that batch scripts for GPU nodes run unchanged; JAX_PLATFORMS=cpu in the job's environment
makes JAX use the CPU.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from places import ROOT
from waiting import PATIENCE, wait_until

PROGRAMS = (
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "ip",
    "tc",
    "nsenter",
    "unshare",
    "sshd",
    "mpirun",
)
# what a Cluster with accounting needs as well
ACCOUNTING = "slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults", "sacct"
DAEMONS = "slurmctld", "slurmscriptd", "slurmd", "munged", "slurmdbd", "mariadbd"
NET = "10.77.0"
LOCK = Path("/tmp/one-slurm-at-a-time.lock")


def missing(programs=PROGRAMS):
    """What this machine lacks to run it, in one line; "" if nothing."""
    if os.geteuid() != 0:
        return "a Slurm of two nodes needs root, for network namespaces"
    absent = [
        name
        for name in programs
        if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    ]
    if absent:
        packages = "slurm-wlm munge iproute2 openssh-server openmpi-bin"
        packages += (
            " slurmdbd mariadb-server-core mariadb-client-core" if {*ACCOUNTING} & {*absent} else ""
        )
        return f"not installed: {', '.join(absent)} (Debian: apt-get install {packages})"
    return ""


def on_cpus(devices):
    """The environment in which JAX makes so many CPU devices in a process."""
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "XLA_FLAGS": "",
        "NPROC": "32",
    }


@dataclass(frozen=True)
class Job:
    """A job that has ended: its last state, its exit code, and what it printed."""

    state: str
    exit_code: str
    output: str


class Cluster:
    """Two nodes, node1 and node2, with four pretended GPUs each, and 16 CPUs as Slurm counts
    them.
    """

    def __init__(self, nodes=2, cpus=16, *, accounting=False):
        self.names = [f"node{i}" for i in range(1, nodes + 1)]
        self.cpus, self.accounting, self.database = cpus, accounting, None
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.environment = os.environ | {
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }

    def __enter__(self):
        self.lock = LOCK.open("a")
        fcntl.flock(self.lock, fcntl.LOCK_EX)  # given back when this process ends, however it ends
        try:
            self._end_daemons_of_a_killed_run()
            self._start()
        except BaseException:
            self.__exit__()  # or the next cluster waits for the lock
            raise
        return self

    def __exit__(self, *_):
        self.stop()
        self.lock.close()

    def _end_daemons_of_a_killed_run(self):
        for name in self.names:
            if Path("/run/netns", name).exists():
                self.kill(name)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = (
                    process.environ()
                    .get("SLURM_CONF", "")
                    .startswith(f"{tempfile.gettempdir()}/slurm-")
                )
                if ours and process.name() in DAEMONS:
                    process.kill()

    # Jobs

    def submit(self, script, *arguments, **environment):
        """Queue a batch script; returns the number of the job. Its output lands in the cluster's
        folder.
        """
        command = ["sbatch", "--parsable", f"--chdir={ROOT / 'book' / 'cluster'}"]
        command += [f"--output={self.folder}/%x-%j.out", str(ROOT / script), *map(str, arguments)]
        return self.run(*command, **{"VENV": sys.prefix} | on_cpus(1) | environment).strip()

    def show(self, job):
        """What Slurm knows of a job, as a dict."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def output(self, job):
        """What a job has printed until now."""
        found = list(self.folder.glob(f"*-{job}.out"))
        return found[0].read_text() if found else ""

    def wait(self, job):
        """Wait until a job has ended; returns a `Job`."""
        going = "PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"
        wait_until(lambda: self.show(job)["JobState"] not in going, lambda: self.told(job))
        facts = self.show(job)
        return Job(facts["JobState"], facts["ExitCode"], self.output(job))

    def told(self, job):
        """What explains why a job does not do what it should."""
        return f"{self.show(job)}\n{self.output(job)}\n{self.log()}"

    def run(self, *command, **environment):
        """Run a command with this cluster's settings; returns what it printed."""
        settings = self.environment | environment
        done = subprocess.run(
            command, env=settings, capture_output=True, text=True, timeout=PATIENCE
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}\n{self.log()}")
        return done.stdout

    def log(self):
        """The last lines of Slurm's own logs."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(
            line
            for file in files
            for line in [f"== {file.name}", *file.read_text().splitlines()[-8:]]
        )

    # Nodes and the network between them

    def slow(self, rate):
        """Limit what each node can send, such as to "200mbit"; None lifts the limit."""
        for name in self.names:
            self._quiet("tc", "-n", name, "qdisc", "del", "dev", "eth0", "root")
            if rate:
                shape = ["tbf", "rate", rate, "burst", "64kb", "latency", "100ms"]
                self.run("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", *shape)

    def kill(self, name):
        """Kill every process of a node, slurmd included, at once; its sockets close."""
        for _ in range(3):
            for pid in self.run("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)

    def miss_nodes_after(self, seconds):
        """How long Slurm waits for the answer of a node before it takes the node for lost."""
        file = self.folder / "slurm.conf"
        file.write_text(re.sub(r"SlurmdTimeout=\d+", f"SlurmdTimeout={seconds}", file.read_text()))
        self.run("scontrol", "reconfigure")

    def start_node(self, name):
        """Start a node's slurmd, in its namespace and under its host name."""
        (self.folder / f"spool.{name}").mkdir(exist_ok=True)
        self.run(*self.on(name, "slurmd"))

    def on(self, name, *command):
        """The command that runs this one on a node: in its network, under its host name."""
        inside = f'hostname {name} && exec "$@"'
        return (
            "nsenter",
            f"--net=/run/netns/{name}",
            "unshare",
            "--uts",
            "sh",
            "-c",
            inside,
            "sh",
            *command,
        )

    def serve_ssh(self):
        """Let root log in to each node by ssh; returns a PATH whose ssh finds its key and knows the
        nodes.
        """
        folder = self.folder / "ssh"
        (folder / "bin").mkdir(parents=True)
        for key in ("host", "user"):
            self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key)
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd gives up its rights
        for name in self.names:
            options = {
                "HostKey": folder / "host",
                "AuthorizedKeysFile": folder / "user.pub",
                "StrictModes": "no",
            }
            options |= {
                "PidFile": folder / f"{name}.pid",
                "PermitRootLogin": "yes",
                "UsePAM": "no",
                "MaxStartups": 100,
            }
            told = [f"-o{option}={value}" for option, value in options.items()]
            self.run(
                *self.on(
                    name,
                    shutil.which("sshd", path=self.environment["PATH"]),
                    "-f",
                    "/dev/null",
                    *told,
                )
            )
        known = (
            f"-oUserKnownHostsFile={folder}/known -oStrictHostKeyChecking=accept-new "
            "-oLogLevel=ERROR"
        )
        ssh = folder / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F /dev/null -i {folder}/user {known} "$@"\n')
        ssh.chmod(0o755)
        return f"{ssh.parent}:{self.environment['PATH']}"

    def wait_for_nodes(self):
        """Wait until every node is free to take work."""

        def all_are_idle():
            return self.run("sinfo", "--noheader", "--states=idle", "--format=%D").strip() == str(
                len(self.names)
            )

        wait_until(all_are_idle, lambda: f"{self.run('sinfo', '-N', '-l')}\n{self.log()}")

    def _start(self):
        for folder in ("state", "munge"):
            (self.folder / folder).mkdir()
        self.folder.chmod(0o755)
        (self.folder / "munge").chmod(0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {
            "key-file": key,
            "socket": self.folder / "munge.sock",
            "pid-file": self.folder / "munged.pid",
        }
        files |= {
            "log-file": self.folder / "munged.log",
            "seed-file": self.folder / "munge" / "seed",
        }
        self.run(
            "munged",
            "--num-threads=2",
            "--force",
            *(f"--{name}={file}" for name, file in files.items()),
        )

        self._remove_network()
        self.run("ip", "link", "add", "slurmbr", "type", "bridge")
        self.run("ip", "addr", "add", f"{NET}.254/24", "dev", "slurmbr")
        self.run("ip", "link", "set", "slurmbr", "up")
        hosts = Path("/etc/hosts").read_text()
        for i, name in enumerate(self.names, 1):
            self.run("ip", "netns", "add", name)
            self.run(
                "ip",
                "link",
                "add",
                f"slurmv{i}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                name,
            )
            self.run("ip", "link", "set", f"slurmv{i}", "master", "slurmbr", "up")
            self.run("ip", "-n", name, "addr", "add", f"{NET}.{i}/24", "dev", "eth0")
            self.run("ip", "-n", name, "link", "set", "eth0", "up")
            self.run("ip", "-n", name, "link", "set", "lo", "up")
            self.run("ip", "-n", name, "route", "add", "default", "via", f"{NET}.254")
            hosts += f"{NET}.{i} {name}\n"
        Path("/etc/hosts").write_text(hosts)

        (self.folder / "slurm.conf").write_text(self._configuration())
        gpus = (
            "Name=gpu Count=4 File=/dev/tty[0-3]\n"
            if Path("/dev/tty3").exists()
            else "Name=gpu Count=4\n"
        )
        (self.folder / "gres.conf").write_text(gpus)
        if self.accounting:
            self._start_accounting()
        self.run("slurmctld", "-c")
        for name in self.names:
            self.start_node(name)
        self.wait_for_nodes()

    def _start_accounting(self):
        """A database for sacct, which only this machine reaches, and its daemon."""
        data, port = self.folder / "database", 16820
        install = "mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}"
        self.run(*install, "--auth-root-authentication-method=normal", "--skip-test-db")
        where = f"--datadir={data}", f"--socket={data}/socket", f"--port={port}"
        command = ["mariadbd", "--no-defaults", "--user=root", "--bind-address=127.0.0.1", *where]
        command += [f"--pid-file={self.folder}/mariadbd.pid", "--skip-grant-tables"]
        with (self.folder / "mariadbd.log").open("w") as log:
            self.database = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

        def answers():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        wait_until(answers, self.log)
        file = self.folder / "slurmdbd.conf"
        file.write_text(f"""
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge.sock
DbdHost=localhost
DbdPort=16819
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={port}
StorageUser=root
StorageLoc=accounting
PidFile={self.folder}/slurmdbd.pid
LogFile={self.folder}/slurmdbd.log
""")
        file.chmod(0o600)
        self.run("slurmdbd")
        wait_until(lambda: self._succeeds("sacctmgr", "--noheader", "list", "cluster"), self.log)
        self.run("sacctmgr", "--immediate", "add", "cluster", "two-nodes")

    def _succeeds(self, *command):
        return not subprocess.run(command, env=self.environment, capture_output=True).returncode

    def _configuration(self):
        here = os.uname().nodename
        names = ",".join(self.names)
        accounts = (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\n"
            "AccountingStoragePort=16819\n"
            f"AccountingStoragePass={self.folder}/munge.sock\nAccountingStorageTRES=gres/gpu\n"
            "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=1"
            if self.accounting
            else "AccountingStorageType=accounting_storage/none\n"
            "JobAcctGatherType=jobacct_gather/none"
        )
        addresses = ",".join(f"{NET}.{i + 1}" for i in range(len(self.names)))
        return f"""
ClusterName=two-nodes
SlurmctldHost={here}({NET}.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge.sock,cred_expire=70
CryptoType=crypto/munge
SlurmctldPort=16817
SlurmdPort=16818
SlurmctldTimeout=10
SlurmdTimeout=10
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool.%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.%n.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
{accounts}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=2
MinJobAge=86400
GresTypes=gpu
NodeName={names} NodeAddr={addresses} NodeHostname={names} CPUs={self.cpus} RealMemory=4000 Gres=gpu:4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
PartitionName=four Nodes=ALL MaxCPUsPerNode=4 MaxTime=INFINITE State=UP
"""  # noqa: E501

    def stop(self):
        """End the daemons, remove nodes and network. May be called again."""
        for name in self.names:
            with contextlib.suppress(Exception):
                self.kill(name)
        for file in self.folder.glob("*.pid"):
            with contextlib.suppress(Exception):
                os.kill(int(file.read_text()), signal.SIGKILL)
        if self.database:
            self.database.kill(), self.database.wait()
        self._remove_network()
        hosts = Path("/etc/hosts")
        lines = hosts.read_text().splitlines(keepends=True)
        if any(line.startswith(f"{NET}.") for line in lines):
            hosts.write_text("".join(line for line in lines if not line.startswith(f"{NET}.")))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_network(self):
        for name in self.names:
            self._quiet("ip", "netns", "del", name)
        self._quiet("ip", "link", "del", "slurmbr")

    def _quiet(self, *command):
        subprocess.run(command, env=self.environment, capture_output=True)
