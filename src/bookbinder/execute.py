"""Run the chapters in parallel, and keep their outputs as long as they are valid.

Outputs are kept in a jupyter-cache, which finds them by a chapter's code. With them we store the fingerprint of
everything else that they depend on, and we run the chapter again when that has changed.
"""

import atexit
import hashlib
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import psutil

from bookbinder.book import SOURCES
from bookbinder.progress import Progress, plain

CALLED = "BOOKBINDER_CALLED"  # a variable: `make book` has called Sphinx, and will send it `facts` on standard input
MOST_SHOWN = 1_000_000  # characters of output that one cell may have
KERNEL = "BOOKBINDER_KERNEL"  # this variable marks a kernel's processes, even those that have left their parents

# Every Python in a kernel runs this first, under the name of sitecustomize.
GUARD = """
import os, sys

def _guard(root, sources):
    # Of each change: how many paths it names, and which arguments are folders that these are relative to.
    changes = {"os.mkdir": (1, (2,)), "os.remove": (1, (1,)), "os.rmdir": (1, (1,)), "os.truncate": (1, ()),
               "os.link": (2, (2, 3)), "os.rename": (2, (2, 3)), "os.symlink": (2, (2,))}
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT

    def look(event, arguments):
        count, folders = changes.get(event, (0, ()))
        if event == "open" and arguments[2] & writing:
            count = 1
        if any(arguments[n] not in (-1, None) for n in folders):
            return  # such as shutil.rmtree: it has opened the folder, and tells us no more
        for path in arguments[:count]:
            if isinstance(path, (str, bytes, os.PathLike)):
                name = os.path.relpath(os.path.realpath(os.fsdecode(path)), root)
                if name.split(os.sep)[0] in sources and "__pycache__" not in name:
                    raise PermissionError(f"{name} is among the sources of the book, where no cell may write; "
                                          "write to a folder that tempfile makes")

    sys.addaudithook(look)

"""


@dataclass(frozen=True)
class Failure:
    """What went wrong in a chapter, and where."""

    path: str
    line: int
    error: str  # "ValueError: what it says", on one line
    traceback: str = ""

    def __str__(self):
        return f"{self.path}:{self.line}: {self.error}"


@dataclass(frozen=True)
class Result:
    """The result of one chapter."""

    name: str
    status: str  # "ran", "reused", "failed", or "no code"
    cells: int = 0
    seconds: float = 0.0  # of the run that made the outputs
    failure: Failure | None = None
    day: str = ""  # of that run, such as "2026-11-21"
    outputs: str = ""  # changes whenever the outputs do


class Stopped(BaseException):
    """The builder was told to stop, by Ctrl-C or a signal; like KeyboardInterrupt, no ordinary exception."""


def run(book, cache_folder, *, chapters=None, jobs=None, progress=None, stop=None, before=None):
    """Bring the outputs of chapters up to date.

    A chapter whose outputs are still valid is skipped; the others run, `jobs` at a time, the longest
    first. One that fails does not stop the others.

    Args:
      book: the `bookbinder.book.Book`.
      cache_folder: where the jupyter-cache is, or will be.
      chapters: those to look at; all by default.
      jobs: how many at once; by default one more than there are processors, since each waits now and then.
      progress: a `bookbinder.progress.Progress`, which reports what is going on.
      stop: the `Stop` of the caller; by default signals stop this run alone.
      before: called before chapters run, if any must run.

    Returns:
      A `Result` for each chapter, in the order given.

    Raises:
      Stopped: the builder was told to stop; no kernel is left.
    """
    if stop is None:
        with stoppable() as stop:
            return run(book, cache_folder, chapters=chapters, jobs=jobs, progress=progress, stop=stop, before=before)
    chapters = book.chapters if chapters is None else chapters
    progress = progress or Progress()
    with Outputs(cache_folder) as outputs:
        return _run(book, outputs, chapters, jobs, progress, stop, before)


def _run(book, outputs, chapters, jobs, progress, stop, before):
    results, waiting = {}, []
    for chapter in chapters:
        if not chapter.runs:
            results[chapter.name] = Result(chapter.name, "no code")
            continue
        # Taken before the run: what changes meanwhile makes the outputs stale.
        now = fingerprint(book, chapter)
        last = outputs.of(chapter)
        if last.fingerprint == now:
            result = Result(chapter.name, "reused", len(chapter.cells), last.seconds)
            results[chapter.name] = replace(result, day=last.day, outputs=last.version)
        else:
            waiting.append((last.seconds or len(chapter.cells), chapter, now))
    if waiting and before:
        before()
    waiting.sort(key=lambda item: -item[0])
    saved = _sources(book)

    with (
        progress.watching(len(waiting)),
        _Kernels(book, stop) as kernels,
        ThreadPoolExecutor(jobs or (os.cpu_count() or 1) + 1) as pool,
    ):
        running = {
            pool.submit(_run_chapter, book, chapter, kernels, progress): (chapter, now) for _, chapter, now in waiting
        }
        pending = set(running)
        while pending:
            done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            if stop.signal:
                pool.shutdown(cancel_futures=True)
                raise Stopped(stop.signal)
            for future in done:
                chapter, now = running[future]
                results[chapter.name], notebook = future.result()
                if notebook is not None:
                    outputs.keep(chapter, notebook, results[chapter.name].seconds, now)
                    kept = outputs.of(chapter)
                    results[chapter.name] = replace(results[chapter.name], day=kept.day, outputs=kept.version)
                progress.finished(results[chapter.name])
    for name in sorted(name for name, when in _sources(book).items() if saved.get(name, when) != when):
        progress.say(f"{name} changed while chapters ran; the next build will include it")
    return [results[chapter.name] for chapter in chapters]


@dataclass(frozen=True)
class Kept:
    """What is known of kept outputs: their fingerprint, the seconds and the day of their run, and a version."""

    fingerprint: str = ""
    seconds: float = 0.0
    day: str = ""
    version: str = ""


class Outputs:
    """The outputs kept in a jupyter-cache; damaged ones count as missing."""

    def __init__(self, folder):
        """Open the cache in a folder, or create it; one whose database cannot be read is replaced."""
        from jupyter_cache import get_cache

        self._cache = get_cache(folder)
        try:
            self._cache.list_cache_records()
        except Exception:  # any error of its database, of which it uses several kinds
            self._cache.db.dispose()
            shutil.rmtree(folder, ignore_errors=True)
            self._cache = get_cache(folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._cache.db.dispose()

    def _record(self, chapter):
        try:
            record = self._cache.match_cache_notebook(chapter.notebook)
        except KeyError:
            return None
        try:
            self._cache.get_cache_bundle(record.pk)
        except Exception:  # the record is there, its notebook is not, or only half of it
            from jupyter_cache.cache.db import NbCacheRecord

            shutil.rmtree(self._cache.path / "executed" / record.hashkey, ignore_errors=True)
            NbCacheRecord.remove_record(record.pk, self._cache.db)
            return None
        return record

    def of(self, chapter):
        """What is known of a chapter's outputs, as `Kept`; its fields are empty if there are none."""
        record = self._record(chapter)
        if record is None:
            return Kept()
        seconds, fingerprint = record.data.get("execution_seconds", 0.0), record.data.get("fingerprint", "")
        return Kept(fingerprint, seconds, f"{record.created:%Y-%m-%d}", f"{record.hashkey} {record.created}")

    def keep(self, chapter, notebook, seconds, now):
        """Keep an executed notebook, with the fingerprint of what it was made from."""
        from jupyter_cache.base import CacheBundleIn

        bundle = CacheBundleIn(
            notebook,
            str(chapter.root / chapter.path),
            data={"execution_seconds": seconds, "fingerprint": now},
        )
        self._cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def facts(chapters, results):
    """What pages must know of chapters that have run, by name, ready for JSON."""
    return {
        chapter.name: {
            "devices": chapter.devices,
            "day": result.day,
            "outputs": result.outputs,
            "text": hashlib.sha256(chapter.text.encode()).hexdigest(),
        }
        for chapter, result in zip(chapters, results, strict=True)
    }


def fingerprint(book, chapter):
    """What a chapter's outputs depend on besides its own code: Python, the installed packages, shardlab.

    Only a chapter that mentions shardlab depends on it.
    """
    parts = [environment()]
    if any(re.search(r"\bshardlab\b", cell.source) for cell in chapter.cells):
        parts.append(folder_digest(book.root / "src" / "shardlab"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def environment():
    """Python and every installed package, not those of the lock: the two differ until the set-up has run."""
    # Their folders' names say enough, such as jax-0.7.1.dist-info; to read what is in them takes ten times as long.
    packages = sorted({info.stem for folder in sys.path for info in Path(folder).glob("*.*-info")})
    return "\n".join([sys.version, sys.platform, *packages])


def folder_digest(folder, pattern="*"):
    """A digest of the names and contents of the files in a folder and below it, except hidden ones."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob(pattern)):
        name = path.relative_to(folder)
        if path.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in name.parts):
            content = path.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


# --- Stopping --------------------------------------------------------------------------------------------


class Stop:
    """Whether the builder was told to stop: the name of the signal, or None."""

    def __init__(self):
        """Not yet."""
        self.signal = None


@contextmanager
def stoppable():
    """In this context Ctrl-C, SIGTERM and SIGHUP are only noted in a `Stop`, and interrupt nothing.

    Code that runs in it checks the `Stop` often, cleans up, and raises `Stopped`.
    """
    stop = Stop()

    def note(number, frame):
        stop.signal = stop.signal or signal.Signals(number).name

    main = threading.current_thread() is threading.main_thread()
    watched = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] if main else []
    before = {number: signal.signal(number, note) for number in watched}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Kernels:
    """The kernels that run now, with a folder for the files through which we talk to them."""

    def __init__(self, book, stop):
        self._book, self._stop, self._running, self._lock, self._count = book, stop, {}, threading.Lock(), 0

    def __enter__(self):
        # Sockets must have short paths, and temporary folders can be deep.
        parent = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp")
        for left in parent.glob("book-*-*"):  # by a builder that was killed
            pid = left.name.split("-")[1]
            if pid.isdigit() and not psutil.pid_exists(int(pid)):
                _end_all_of(str(left))
                shutil.rmtree(left, ignore_errors=True)
        self._folder = tempfile.TemporaryDirectory(prefix=f"book-{os.getpid()}-", dir=parent)
        guard = f"{GUARD}_guard({str(self._book.root)!r}, {SOURCES!r})\n"
        Path(self._folder.name, "sitecustomize.py").write_text(guard, "utf-8")
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._watcher.join()
        for kernel in list(self._running):
            self.end(kernel)
        self._folder.cleanup()

    def _watch(self):
        """End all kernels as soon as the builder is told to stop, including those that start meanwhile."""
        while not self._done.wait(0.1):
            if self._stop.signal:
                for kernel in list(self._running):
                    self.end(kernel)

    @property
    def stopping(self):
        return self._stop.signal is not None

    def address(self):
        """A unique name for a kernel's connection file and sockets."""
        with self._lock:
            self._count += 1
            return f"{self._folder.name}/{self._count}"

    def environment(self, address):
        """The environment variables of a kernel: it runs under the guard, and is marked with its address.

        It does not get those of ours that would give chapters other devices, other programs or no pictures. JAX does
        not look for accelerators: on a machine that has some, or the libraries for them, pages would differ.
        """
        ours = {name: value for name, value in os.environ.items() if not re.match("JAX_|XLA_|MPLBACKEND$", name)}
        path = os.pathsep.join(filter(None, [self._folder.name, ours.get("PYTHONPATH")]))
        return {**ours, "PYTHONPATH": path, KERNEL: address, "JAX_PLATFORMS": "cpu"}

    def add(self, kernel, address):
        self._running[kernel] = address

    def end(self, kernel):
        """End a kernel and whatever its cells have started."""
        try:
            children = psutil.Process(kernel).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(kernel, signal.SIGKILL)  # it leads a process group of its own
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        _end_all_of(self._running.pop(kernel, None))


def _end_all_of(address):
    """End every process that is marked with a kernel's address, or with one in this folder of addresses."""

    def theirs(process):
        with suppress(psutil.Error):
            return address and f"{process.environ().get(KERNEL)}/".startswith(f"{address}/")

    while found := list(filter(theirs, psutil.process_iter())):
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)


def _sources(book):
    """Each source file with the time of its last change, except those that editors and Python make beside them."""
    found = {}
    for file in (file for name in SOURCES for file in [book.root / name, *(book.root / name).rglob("*")]):
        name = str(file.relative_to(book.root))
        if file.is_file() and not re.search(r"(^|/)([.#]|__pycache__/)|~$", name):
            with suppress(FileNotFoundError):  # gone meanwhile
                found[name] = file.stat().st_mtime_ns
    return found


class _CellFault(Exception):
    """A cell did something that cells must not do, although Python allows it."""

    def __init__(self, name, message):
        super().__init__(f"{name}: {message}")


def _run_chapter(book, chapter, kernels, progress):
    """Run one chapter in a kernel of its own. Returns its Result, and the notebook with outputs if it went well."""
    import asyncio

    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    if kernels.stopping:
        return None, None
    cells = chapter.cells
    at = {cell.position: number for number, cell in enumerate(cells)}
    now, ran = 0, 0  # the number of the cell that runs, and how many have run up to it
    shown, files = 0, set(_sources(book))  # how much it has put out, and what was there before it

    class Client(NotebookClient):
        kernel = None

        async def async_start_new_kernel(self, **kwargs):
            await super().async_start_new_kernel(env=kernels.environment(address), **kwargs)
            self.kernel = self.km.provisioner.pid
            kernels.add(self.kernel, address)

        async def _async_cleanup_kernel(self):
            if self.kernel:
                kernels.end(self.kernel)  # while it can still tell what it has started
            await super()._async_cleanup_kernel()

        def process_message(self, message, cell, cell_index):
            nonlocal shown
            shown += len(str(message["content"]))
            if shown <= MOST_SHOWN:
                return super().process_message(message, cell, cell_index)
            self.task_poll_for_reply.cancel()  # as if the kernel had died
            return None

    def on_cell_execute(cell, cell_index):
        nonlocal now, ran, shown
        now, ran, shown = at[cell_index], ran + 1, 0
        progress.cell(chapter.name, now + 1, len(cells))

    def on_cell_executed(cell, cell_index, execute_reply):
        if any(item["source"] == "ask_exit" for item in execute_reply["content"].get("payload", ())):
            raise _CellFault("SystemExit", "this cell ends the kernel with exit or quit; remove that")
        if new := sorted(set(_sources(book)) - files):
            where = "write to a folder that tempfile makes; if you added it yourself, build again"
            raise _CellFault("NewFile", f"{new[0]} appeared among the sources while this cell ran: {where}")

    notebook = nbformat.from_dict(chapter.notebook)
    notebook.metadata.pop("source_map", None)
    address = kernels.address()
    client = Client(
        notebook,
        timeout=book.cell_seconds,
        kernel_name=notebook.metadata.kernelspec.name,
        on_cell_execute=on_cell_execute,
        on_cell_executed=on_cell_executed,
        shutdown_kernel="immediate",
        record_timing=False,  # times in the cells' metadata would change what the cache finds them by
        # Through files in a folder of ours, rather than open ports.
        config=Config({"KernelManager": {"transport": "ipc", "ip": address, "connection_file": f"{address}.json"}}),
        resources={"metadata": {"path": str((book.root / chapter.path).parent)}},
    )
    client.log.disabled = True  # it reports the same as we do, but less clearly
    progress.cell(chapter.name, 0, len(cells))
    began = time.monotonic()
    line = cells[0].line
    error, traceback = None, ""
    try:
        asyncio.run(client.async_execute())
    except CellExecutionError as failure:
        traceback = failure.traceback
        # A syntax error names a temporary file; we name the real one.
        evalue = re.sub(r" \(\d+\.py, line \d+\)$", "", failure.evalue)
        error = _one_line(f"{failure.ename}: {evalue}" if evalue else failure.ename)
        line = cells[now].line + _line_in_cell(traceback, ran) - 1
    except CellTimeoutError:
        error = f"CellTimeoutError: this cell ran for longer than {book.cell_seconds} s (timeout: in _config.yml)"
        line = cells[now].line
    except DeadKernelError:
        error = "DeadKernelError: the kernel died while this cell ran (out of memory, or the process was killed)"
        if shown > MOST_SHOWN:
            error = f"TooMuchOutput: this cell prints more than {MOST_SHOWN:,} characters; print less, or to a file"
        line = cells[now].line
    except _CellFault as failure:
        error, line = str(failure), cells[now].line
    except Exception as failure:  # a kernel that is not installed, or does not start
        error = _one_line(f"{type(failure).__name__}: {failure}")
    finally:
        atexit.unregister(client._cleanup_kernel)  # it would fail, after a kernel that never came up
    seconds = time.monotonic() - began
    if error:
        failure = Failure(chapter.path, line, error, traceback)
        return Result(chapter.name, "failed", len(cells), seconds, failure), None
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = _as_a_terminal_shows(cell.outputs)
    return Result(chapter.name, "ran", len(cells), seconds), notebook


def _as_a_terminal_shows(outputs):
    """Printed output joined into one text; of a line that was overwritten, as by a progress bar, its final state."""
    shown = []
    for output in outputs:
        last = shown[-1] if shown else output
        if output.output_type == last.output_type == "stream" and output.name == last.name and shown:
            last.text += output.text
        else:
            shown.append(output)
    for output in shown:
        if output.output_type == "stream":
            output.text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in output.text.split("\n"))
    return shown


def _line_in_cell(traceback, execution_count):
    """The line of a cell at which a traceback passes through it: its first frame in that cell."""
    found = re.search(rf"Cell In\[{execution_count}\], line (\d+)", plain(traceback))
    return int(found[1]) if found else 1


def _one_line(text):
    return " ".join(text.split())[:400]
