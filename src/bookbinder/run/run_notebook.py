"""Run a notebook with the Python that runs this file, and print what became of it as JSON.

    /path/to/some/python run_notebook.py chapter.ipynb --cwd book --timeout 120

This is the only way in which the project runs notebooks: for the book, on other versions of JAX,
and as Colab does. The file stands alone: it needs nbclient and ipykernel, from Colab's to the
newest. Kernels that the user has installed, and settings of Jupyter and IPython, have no part in
it. What the kernel and its cells write to the terminal, past the notebook, goes to standard error.

It prints a line for each cell that starts, {"cell": its number among the code cells from 1, "of":
how many, "at": when, in ns by the clock that dates files}, and at last the report, which has

- ok: whether every cell came to its end
- seconds, cells: how long it took, and how many cells were run
- processor_seconds: of processor time, of the kernel and all that it has started
- cell, line: the cell that failed, by its place among all cells of the notebook from 0, and the
  line in it from 1; null for `cell` if the kernel did not start
- error, message, traceback: what went wrong; null if nothing did
- deprecations: each DeprecationWarning that cells or the package of --package caused, in whatever
  process, as `cell` (null if it came from the package), `path` (null if it came from a cell),
  `line` and `message`
- read: with --root, the files below it that cells have read, modules that they have imported among
  them, in whatever Python process; of the installed package those in src from which it was made
- notebook: with --outputs, the notebook with its outputs, as text
- installed, removed: packages that the run has added to this Python's environment, and taken from
  it
- python: the version

A cell whose metadata has "last_run_only" is run in the last of several passes alone, and does not
count.

With --programs ARCHIVE, compiled programs are kept from run to run. All archives in its folder are
what a run begins with: the same chapter has compiled them in whatever way. At the end ARCHIVE holds
what this run has read or made of them, and nothing else, so that it does not grow. --programs-in
names the variable by which a process learns of its folder. A cell with the tag "uncached" compiles
its programs anew: around it the code of --programs-change runs, with the name `folder`, which is
None before it.

The exit status is 0 if all is well, 1 if a cell failed, 128 and the signal's number if it was told
to stop. However it ends, it ends what the kernel has started too; it also ends when the process
that started it is gone.
"""

import argparse
import asyncio
import ctypes
import json
import os
import platform
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import zipfile
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

MOST_SHOWN = 1_000_000  # characters of output that one cell may have
PROGRAM = re.compile(r"[\w.-]+-cache")  # the names of files that JAX gives to compiled programs
UNCACHED = "uncached"  # the tag of cells whose programs are compiled anew
# The clock by which Linux dates files, CLOCK_REALTIME_COARSE, which Python does not name: the time
# of the last tick, some milliseconds ago.
DATES_FILES = 5 if sys.platform == "linux" else time.CLOCK_REALTIME

# Every Python that the notebook starts runs these first, as its sitecustomize. It notes the
# warnings that Python attributes to cells (whose module is __main__, in the kernel or another
# process) or to a package, and those that it attributes to a library which a cell or the package
# called: not what libraries warn each other of.
NOTE_WARNINGS = """
import warnings

def _note_warnings(package):
    import json, linecache, os, re, sys
    show, folder = warnings.showwarning, os.path.dirname(__file__)

    def own(filename):  # in the package
        return package and re.search(rf"[/\\\\](?:src|site-packages)[/\\\\]({package}[/\\\\].*)", filename)

    def library(filename):  # the first name below a folder of sys.path
        for folder in sorted(filter(None, {*sys.path, sys.prefix, sys.base_prefix}), key=len, reverse=True):
            if filename.startswith(folder + os.sep):
                return filename[len(folder) + 1:].split(os.sep)[0]

    def write(ours, filename, lineno, message):
        with open(os.path.join(folder, "now")) as now:
            found = dict(path=os.path.join("src", ours[1]) if ours else None, line=lineno, message=str(message),
                         code=linecache.getline(filename, lineno).strip(), now=int(now.read() or 0))
        with open(os.path.join(folder, "warnings"), "a") as notes:
            notes.write(json.dumps(found) + chr(10))

    warn, seen = warnings.warn, set()

    def warned(message, category=None, stacklevel=1, *args, **options):
        kind = type(message) if isinstance(message, Warning) else category
        if isinstance(kind, type) and issubclass(kind, DeprecationWarning):
            frame = sys._getframe(1)
            for _ in range(stacklevel - 1):
                frame = frame and frame.f_back
            name = frame and not own(frame.f_code.co_filename) and library(frame.f_code.co_filename)
            while name and frame and library(frame.f_code.co_filename) in (name, "functools.py", "contextlib.py"):
                frame = frame.f_back
            caller = name and frame and (frame.f_code.co_filename, frame.f_lineno, str(message))
            if caller and caller not in seen and (own(caller[0]) or not library(caller[0])):
                seen.add(caller)
                write(own(caller[0]), *caller)
        return warn(message, category, max(stacklevel, 1) + 1, *args, **options)

    warnings.warn = warned

    def note(message, category, filename, lineno, file=None, line=None):
        ours = own(filename)
        theirs = filename.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep))  # such as ipykernel's own main
        if issubclass(category, DeprecationWarning) and (ours or not theirs):
            write(ours, filename, lineno, message)
        if theirs:  # named as it is imported: where it is installed is no reader's concern
            line = line or linecache.getline(filename, lineno)
            inside = [place for place in sys.path if place and filename.startswith(place + os.sep)]
            filename = filename[len(max(inside, key=len, default="")):].lstrip(os.sep)
        show(message, category, filename, lineno, file, line)

    warnings.showwarning = note
    if not sys.warnoptions:  # what a program asks for by -W stays
        ours = f"|{package}([.]|$)" if package else ""
        warnings.filterwarnings("always", category=DeprecationWarning, module=f"__main__${ours}")

"""  # noqa: E501

# It notes which files below the root are read, and refuses to write to sources.
WATCH_FILES = """
import os, sys

def _watch(root, sources, package):
    # Of each change: how many paths it names, and which arguments are folders that these are relative to.
    changes = {"os.mkdir": (1, (2,)), "os.remove": (1, (1,)), "os.rmdir": (1, (1,)), "os.truncate": (1, ()),
               "shutil.rmtree": (1, (1,)), "os.link": (2, (2, 3)), "os.rename": (2, (2, 3)), "os.symlink": (2, (2,))}
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    notes, noted = os.path.join(os.path.dirname(__file__), "read"), {None}

    def note(path):
        path = os.path.abspath(os.fsdecode(path))
        _, installed, rest = path.rpartition(os.path.join("", "site-packages", package or "none", ""))
        # What is installed was made from what is below the root.
        name = os.path.join("src", package, rest) if installed else os.path.relpath(path, root)
        folder, file = os.path.split(name)
        if os.path.basename(folder) == "__pycache__":  # a module that is imported
            name = os.path.join(os.path.dirname(folder), file.split(".")[0] + ".py")
        # What is hidden or generated, and what is outside, is no source.
        if name in noted or name.startswith((".", "_build")):
            return
        noted.add(name)
        with open(notes, "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(name + chr(10))

    def look(event, arguments):
        count, folders = changes.get(event, (0, ()))
        if event == "open":
            path, _, flags = arguments
            if flags & writing:
                count = 1
            elif isinstance(path, (str, bytes)) and path not in ("", b""):
                return note(path)
        if any(arguments[n] not in (-1, None) for n in folders):
            return  # such as shutil.rmtree: it has opened the folder, and tells us no more
        for path in arguments[:count]:
            if isinstance(path, (str, bytes, os.PathLike)):
                name = os.path.relpath(os.path.realpath(os.fsdecode(path)), root)
                if name.split(os.sep)[0] in sources and "__pycache__" not in name:
                    raise PermissionError(f"{name} is part of the book, where no cell may write or delete; "
                                          "write to a folder that tempfile makes")

    sys.addaudithook(look)

"""  # noqa: E501

# Each Python has a folder of its own for compiled programs, which begins with those that are kept:
# none reads what another is still writing. It notes which it has read.
KEEP_PROGRAMS = """
def _keep_programs(variable):
    import os, sys, time

    here = os.path.dirname(__file__)
    kept, own = os.path.join(here, "programs"), os.path.join(here, "programs-of", f"{os.getpid()}-{time.time_ns()}", "")
    os.makedirs(own)
    for name in os.listdir(kept):
        os.link(kept + os.sep + name, own + name)
    os.environ[variable] = own

    def note(event, arguments):
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(own):
            with open(os.path.join(here, "programs-read"), "a") as notes:
                notes.write(arguments[0][len(own):] + chr(10))

    sys.addaudithook(note)

"""  # noqa: E501

# The names of cells are part of the programs that they compile, and must not differ from kernel to
# kernel. Plots are SVG, with letters as letters, and the same in each run.
KERNEL_CONFIG = """
import ipykernel.compiler
ipykernel.compiler.get_tmp_directory = lambda: "/tmp/ipykernel_0"
c.InlineBackend.figure_formats = ["svg"]
c.InlineBackend.print_figure_kwargs = {"bbox_inches": "tight", "metadata": {"Date": None}}
c.InlineBackend.rc = {"svg.fonttype": "none", "svg.hashsalt": "the same in each run"}
"""

# The line of a cell at which the last exception passed through the notebook, or that is no Python.
LAST_LINE = """
import sys, traceback
_found = [n for frame, n in traceback.walk_tb(sys.last_traceback) if frame.f_globals is globals()]
print((_found + [getattr(sys.last_value, "lineno", None) or 1])[0])
"""


class Stop:
    """Why to stop: the number of the signal that asked for it, or None."""

    def __init__(self):
        """Listen to the signals, and remember who started us."""
        self.signal, self._parent = None, os.getppid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number, frame):
        self.signal = self.signal or number

    def asked(self):
        """Whether to stop."""
        if os.getppid() != self._parent:
            self._note(signal.SIGHUP, None)
        return self.signal is not None


class CellFault(Exception):
    """A cell did something that cells must not do, although Python allows it: the name of the
    fault, and what to do.
    """


def client_class():
    """nbclient's, which refuses more output of a cell than a page can show."""
    from nbclient import NotebookClient

    class Client(NotebookClient):
        shown = 0  # characters that the cell has put out

        def process_message(self, message, cell, cell_index):
            self.shown += len(str(message["content"]))
            if self.shown <= MOST_SHOWN:
                return super().process_message(message, cell, cell_index)
            self.task_poll_for_reply.cancel()  # as if the kernel had died
            return None

    return Client


class Runner:
    """A notebook, and the kernel in which it runs."""

    def __init__(self, notebook, folder, options):
        """Prepare a kernel of this very interpreter, with all its files in a folder."""
        from jupyter_client.kernelspec import KernelSpecManager
        from jupyter_client.manager import AsyncKernelManager

        self.notebook, self.folder, self.options = notebook, Path(folder), options
        self.code = [
            n
            for n, cell in enumerate(notebook.cells)
            if cell.cell_type == "code" and cell.source.strip()
        ]
        self.cells, self.now = 0, None  # how many have run, and which runs
        (self.folder / "now").write_text("0")
        spec = self.folder / "kernels" / "this-python" / "kernel.json"
        spec.parent.mkdir(parents=True)
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec.write_text(
            json.dumps({"argv": command, "display_name": "This Python", "language": "python"})
        )
        package = options.package
        customize = f"{NOTE_WARNINGS}_note_warnings({package!r})\n"
        if options.root:
            customize += (
                f"{WATCH_FILES}_watch({options.root!r}, {options.sources!r}, {package!r})\n"
            )
        if options.programs:
            customize += f"{KEEP_PROGRAMS}_keep_programs({options.programs_in!r})\n"
        (self.folder / "sitecustomize.py").write_text(customize)
        profile = self.folder / "ipython" / "profile_default"
        profile.mkdir(parents=True)
        (profile / "ipython_kernel_config.py").write_text(KERNEL_CONFIG)
        manager = AsyncKernelManager(
            kernel_name="this-python",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(spec.parent.parent)]),
            transport="ipc",  # files in a folder of ours, rather than open ports
            ip=str(self.folder / "kernel"),
            connection_file=str(self.folder / "kernel.json"),
        )
        self.client = client_class()(
            notebook,
            km=manager,
            timeout=options.timeout,
            startup_timeout=120,
            iopub_timeout=60,  # outputs come after the reply; when the machine is busy, late
            record_timing=False,  # times in the cells' metadata would differ from run to run
            on_cell_executed=self._check_reply,
        )
        self.client.log.disabled = True  # it reports what we report, less well

    async def start(self):
        """Start the kernel, or start it again as Jupyter's "Restart" does."""
        if self.client.kc:
            self.client.kc.stop_channels()
            await self.client.km.restart_kernel()
        else:
            path = os.pathsep.join(
                [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
            )
            environment = {
                **os.environ,
                "PYTHONPATH": path,
                "IPYTHONDIR": str(self.folder / "ipython"),
            }
            await self.client.km.start_kernel(
                cwd=self.options.cwd, env=environment, stdout=sys.stderr.fileno()
            )
        await self.client.async_start_new_kernel_client()
        info = await self.client.async_wait_for_reply(self.client.kc.kernel_info())
        self.notebook.metadata["language_info"] = info["content"]["language_info"]

    async def execute(self, count=None, last=True):
        """Run the code cells from the first on, `count` of them or all; `last` says whether no pass
        follows.
        """
        for number, n in enumerate(self.code[:count], 1):
            cell = self.notebook.cells[n]
            extra = cell.metadata.get("last_run_only", False)
            if extra and not last:
                continue
            self.now = n
            (self.folder / "now").write_text(str(n))
            now = {"cell": number, "of": len(self.code), "at": await next_tick()}
            print(json.dumps(now), flush=True)
            uncached = self.options.programs and UNCACHED in cell.metadata.get("tags", ())
            if uncached:
                await self._change_programs(None)
            self.client.reset_execution_trackers()
            self.client.shown = 0
            await self.client.async_execute_cell(cell, n, store_history=not extra)
            if uncached:
                await self._change_programs(self.options.programs_in)
            if not extra:
                self.cells += self.client.code_cells_executed  # none, if its tags say to skip it

    async def _change_programs(self, variable):
        """Have the kernel use the folder of compiled programs that a variable names, or none."""
        folder = f"__import__('os').environ[{variable!r}]" if variable else None
        code = f"exec({self.options.programs_change!r}, dict(folder={folder}))"
        # Not as a cell: nbclient would put it into the notebook, in the place of another.
        message = self.client.kc.execute(code, silent=True, store_history=False)
        reply = await self.client.async_wait_for_reply(message)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(
                f"--programs-change: {reply['content']['ename']}: {reply['content']['evalue']}"
            )

    def _check_reply(self, cell, cell_index, execute_reply):
        if any(
            item.get("source") == "ask_exit" for item in execute_reply["content"].get("payload", ())
        ):
            raise CellFault(
                "SystemExit", "this cell ends the kernel with exit or quit; remove that"
            )

    async def last_line(self):
        """The line of the cell at which it failed."""
        from nbformat.v4 import new_code_cell

        with suppress(Exception):  # the kernel may be gone, or print something else
            cell = new_code_cell(LAST_LINE)
            # after an error the kernel refuses to run anything, until its queue is empty
            for _ in range(100):
                await self.client.async_execute_cell(cell, 0, store_history=False)
                if cell.outputs:
                    return int(cell.outputs[0].text)
                await asyncio.sleep(0.1)
        return 1

    def read(self):
        """The files that cells have read, as paths relative to the root."""
        file = self.folder / "read"
        text = file.read_text("utf-8", "surrogateescape") if file.exists() else ""
        return sorted(set(text.splitlines()))

    def deprecations(self):
        """The warnings that were noted, each once, with the cell that has the line."""
        file, warnings_seen = self.folder / "warnings", {}
        for note in self._notes(file):
            cell, line = (None, note["line"]) if note["path"] else self._place(**note)
            warnings_seen[cell, note["path"], line, note["message"]] = None
        keys = "cell", "path", "line", "message"
        return [dict(zip(keys, values, strict=True)) for values in warnings_seen]

    @staticmethod
    def _notes(file):
        """What processes have noted, each in a line; of one that was killed, the last line may be
        half there.
        """
        for line in file.read_text("utf-8", "replace").splitlines() if file.exists() else ():
            with suppress(ValueError):
                yield json.loads(line)

    def _place(self, code, line, now, **_):
        """The cell and its line that has some code; a program for another process is part of a
        cell, or unknown.
        """
        for n in (now, *self.code):
            lines = [text.strip() for text in self.notebook.cells[n].source.split("\n")]
            if code and code in lines:
                return n, line if lines[line - 1 : line] == [code] else lines.index(code) + 1
        return now, 1


async def run(notebook, folder, options, stop):
    """Run the notebook as the options say; returns the report."""
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    runner = Runner(notebook, folder, options)

    async def passes():
        await runner.start()
        if options.restart_at is not None:
            await runner.execute(options.restart_at, last=False)
            await runner.start()
        if options.twice:
            await runner.execute(last=False)
        await runner.execute()

    before = packages()
    report = {
        "ok": True,
        "cell": None,
        "line": None,
        "error": None,
        "message": None,
        "traceback": None,
    }
    began = time.monotonic()
    try:
        await unless_stopped(passes(), stop)
    except CellExecutionError as failure:
        # a syntax error's temporary file
        message = re.sub(r" \(\d+\.py, line \d+\)$", "", failure.evalue)
        line = await unless_stopped(runner.last_line(), stop)
        report.update(
            ok=False, line=line, error=failure.ename, message=message, traceback=failure.traceback
        )
    except CellTimeoutError:
        message = f"this cell ran for longer than {options.timeout} s"
        report.update(ok=False, line=1, error="CellTimeoutError", message=message)
    except DeadKernelError:
        error, message = (
            "DeadKernelError",
            "the kernel died while this cell ran (out of memory, or it was killed)",
        )
        if runner.client.shown > MOST_SHOWN:
            error = "TooMuchOutput"
            message = (
                f"this cell prints more than {MOST_SHOWN:,} characters; print less, or to a file"
            )
        report.update(ok=False, line=1, error=error, message=message)
    except CellFault as failure:
        error, message = failure.args
        report.update(ok=False, line=1, error=error, message=message)
    except Exception as failure:  # the kernel does not start
        report.update(ok=False, error=type(failure).__name__, message=str(failure))
    finally:
        if runner.client.kc:
            runner.client.kc.stop_channels()
    if not report["ok"]:
        report["cell"] = runner.now
    report.update(seconds=time.monotonic() - began, cells=runner.cells)
    report.update(deprecations=runner.deprecations(), read=runner.read())
    after = packages()
    report.update(installed=sorted(after - before), removed=sorted(before - after))
    return {**report, "python": sys.version.split()[0]}


def packages():
    """The packages in this Python's environment, such as "jax-0.7.2"."""
    # Their folders' names say enough; to read what is in them takes ten times as long.
    return {info.stem for folder in sys.path for info in Path(folder or ".").glob("*.*-info")}


def environment():
    """What a run depends on besides its notebook: this Python, and what is installed."""
    # whoever has built it, and when
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"python": python, "platform": sys.platform, "packages": sorted(packages())}


async def next_tick():
    """The time, in ns, by the clock that dates files, once it is later than the date of any file
    that has changed before.
    """
    before = time.clock_gettime_ns(DATES_FILES)
    while (now := time.clock_gettime_ns(DATES_FILES)) == before:
        await asyncio.sleep(0.001)
    return now


async def unless_stopped(work, stop):
    """Wait for some work; cancel it when we are asked to stop."""
    task = asyncio.ensure_future(work)
    while not task.done():
        if stop.asked():
            task.cancel()
        await asyncio.wait([task], timeout=0.1)
    return task.result()


def adopt():
    """Have processes that lose their parent become children of ours, where the system can (Linux),
    to end them too.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@contextmanager
def a_folder(given=None):
    """A folder for all files of a run, whose path is short, as those of sockets must be; gone at
    the end.
    """
    parent = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"
    folder = given or tempfile.mkdtemp(prefix="notebook-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpack(archive, folder):
    """Fill a new folder with the compiled programs of all archives beside one; what is damaged is
    not there.
    """
    folder.mkdir()
    # a pipe would be waited for
    for file in sorted(file for file in archive.parent.glob("*.zip") if file.is_file()):
        with suppress(Exception), zipfile.ZipFile(file) as programs:
            for name in filter(PROGRAM.fullmatch, programs.namelist()):
                (folder / name).write_bytes(programs.read(name))  # which compares its checksum
            os.utime(file)  # the least recently used are deleted first


def pack(archive, folder):
    """Keep the compiled programs that a run has read or made, below the folder of its files."""
    kept, notes = folder / "programs", folder / "programs-read"
    read = set(notes.read_text().split()) if notes.exists() else set()
    programs = {name: file for name in read if (file := kept / name).is_file()}
    for file in folder.glob("programs-of/*/*"):
        if (
            file.name not in programs
            and not (kept / file.name).exists()
            and PROGRAM.fullmatch(file.name)
        ):
            programs[file.name] = file
    # others may write the same archive now
    new = Path(tempfile.mkdtemp(dir=archive.parent, prefix="."))
    try:
        with zipfile.ZipFile(new / archive.name, "w") as packed:
            for name, file in sorted(programs.items()):
                if is_complete(content := file.read_bytes()):
                    packed.writestr(name, content)
        os.replace(new / archive.name, archive)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def is_complete(program):
    """Whether a compressed program is all there; a process that was killed may have written a part
    of it.
    """
    try:
        if not program.startswith(b"\x28\xb5\x2f\xfd"):
            return bool(zlib.decompress(program))
        try:
            from compression import zstd  # Python 3.14
        except ImportError:
            import zstandard as zstd  # then JAX has used this
        return bool(zstd.decompress(program))
    except Exception:
        return False


def end_children():
    """End all processes below this one."""
    import psutil

    deadline = time.monotonic() + 10
    while (children := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=0.5)


def main():
    """Run the notebook of the command line; returns the exit status."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("notebook", help="a notebook file, .ipynb; - for standard input")
    parser.add_argument(
        "--twice", action="store_true", help="then run all cells a second time in the same kernel"
    )
    parser.add_argument(
        "--restart-at",
        type=int,
        metavar="K",
        help="first run K code cells and restart the kernel, then run all",
    )
    parser.add_argument(
        "--timeout", type=int, default=600, metavar="S", help="seconds that a cell may take (600)"
    )
    parser.add_argument(
        "--cwd", default=".", metavar="FOLDER", help="the folder in which cells run (here)"
    )
    parser.add_argument(
        "--outputs",
        action="store_true",
        help="report the notebook with its outputs, if all is well",
    )
    parser.add_argument(
        "--root", metavar="FOLDER", help="note which files below this folder are read"
    )
    parser.add_argument(
        "--sources",
        nargs="*",
        default=(),
        metavar="NAME",
        help="names in the root to which no cell may write",
    )
    parser.add_argument(
        "--package",
        metavar="NAME",
        help="note warnings of this package too, and map it to src/NAME",
    )
    parser.add_argument(
        "--folder",
        help="for the files of the run; it is deleted (by default one in a temporary folder)",
    )
    text = "keep compiled programs in this file, and begin with those of all archives in its folder"
    parser.add_argument("--programs", type=Path, metavar="ARCHIVE", help=text)
    parser.add_argument(
        "--programs-in", metavar="NAME", help="the variable that names the folder of programs"
    )
    parser.add_argument(
        "--programs-change",
        metavar="CODE",
        help="has a process use the folder of programs called `folder`, or None",
    )
    parser.add_argument(
        "--environment",
        action="store_true",
        help="only print this Python and its packages, as JSON",
    )
    if sys.argv[1:] == ["--environment"]:
        print(json.dumps(environment()))
        return 0
    options = parser.parse_args()
    here = str(Path(__file__).parent.resolve())
    # other files here have names of modules
    sys.path[:] = [folder for folder in sys.path if folder != here]
    try:
        import ipykernel  # noqa: F401  (it starts later, as a process)
        import nbclient  # noqa: F401
        import nbformat
    except ImportError as error:
        parser.error(
            f"{error}: run this with a Python that has nbclient and ipykernel; "
            f"{sys.executable} lacks it"
        )
    try:
        notebook = nbformat.read(
            sys.stdin if options.notebook == "-" else options.notebook, as_version=4
        )
    except (OSError, ValueError, nbformat.reader.NotJSONError) as error:
        parser.error(
            f"{options.notebook}: not a notebook that can be read: "
            f"{' '.join(str(error).split())[:200]}"
        )
    if not Path(options.cwd).is_dir():
        parser.error(f"--cwd {options.cwd}: there is no such folder")
    if options.restart_at is not None and options.restart_at < 0:
        parser.error(f"--restart-at {options.restart_at}: must be 0 or more")
    stop = Stop()
    adopt()
    with a_folder(options.folder) as folder:
        report = None
        if options.programs:
            unpack(options.programs, Path(folder) / "programs")
        try:
            report = asyncio.run(run(notebook, folder, options, stop))
        except BaseException:
            if not stop.signal:
                raise
        finally:
            end_children()
        if options.programs and not stop.signal:
            with suppress(OSError):  # such as a full disk: the run itself is as good
                pack(options.programs, Path(folder))
    if stop.signal:
        return 128 + stop.signal
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report["processor_seconds"] = used.ru_utime + used.ru_stime
    if options.outputs and report["ok"]:
        report["notebook"] = nbformat.writes(notebook)
    print(json.dumps(report))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # at once: sockets to a kernel that is gone would be waited for
