"""Run the chapters side by side, and keep their outputs for as long as they are true.

Outputs live in a jupyter-cache. It finds them by a chapter's code; beside them we note the fingerprint of
everything else that they depend on, and run the chapter again when that is no longer the same.
"""

import hashlib
import os
import re
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions

from bookbinder.progress import Progress


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
    """What became of one chapter."""

    name: str
    status: str  # "ran", "reused", "failed", or "no code"
    cells: int = 0
    seconds: float = 0.0  # of the run that made the outputs
    failure: Failure | None = None


class Stopped(BaseException):
    """The builder was told to stop, by Ctrl-C or a signal; like KeyboardInterrupt, no ordinary exception."""


def run(book, cache_folder, *, chapters=None, jobs=None, progress=None):
    """Bring the outputs of chapters up to date.

    A chapter whose outputs are still true is left alone; the others run, `jobs` at a time, the longest
    first. One that fails does not stop the others.

    Args:
      book: the `bookbinder.book.Book`.
      cache_folder: where the jupyter-cache is, or will be.
      chapters: those to look at; all by default.
      jobs: how many at once; by default as many as there are processors.
      progress: a `bookbinder.progress.Progress` to tell what is going on.

    Returns:
      A `Result` for each chapter, in the order given.
    """
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    chapters = book.chapters if chapters is None else chapters
    progress = progress or Progress()
    outputs = get_cache(cache_folder)
    results, waiting = {}, []
    for chapter in chapters:
        if not chapter.runs:
            results[chapter.name] = Result(chapter.name, "no code")
            continue
        before = _recorded(outputs, chapter)
        if before is not None and before.data.get("fingerprint") == fingerprint(book, chapter):
            seconds = before.data.get("execution_seconds", 0.0)
            results[chapter.name] = Result(chapter.name, "reused", len(chapter.cells), seconds)
        else:
            waiting.append((before.data.get("execution_seconds", 0.0) if before else len(chapter.cells), chapter))
    waiting = [chapter for _, chapter in sorted(waiting, key=lambda pair: -pair[0])]

    with (
        progress.watching(len(waiting)),
        _kernels() as kernels,
        ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool,
    ):
        running = {pool.submit(_run_chapter, book, chapter, kernels, progress): chapter for chapter in waiting}
        try:
            for future in as_completed(running):
                chapter = running[future]
                result, notebook = future.result()
                if notebook is not None:
                    outputs.cache_notebook_bundle(
                        CacheBundleIn(
                            notebook,
                            str(book.root / chapter.path),
                            data={"execution_seconds": result.seconds, "fingerprint": fingerprint(book, chapter)},
                        ),
                        check_validity=False,
                        overwrite=True,
                    )
                results[chapter.name] = result
                progress.finished(result)
        except BaseException:
            kernels.stop()
            pool.shutdown(cancel_futures=True)
            raise
    return [results[chapter.name] for chapter in chapters]


def fingerprint(book, chapter):
    """What a chapter's outputs depend on besides its own code: Python, the installed packages, shardlab.

    Only a chapter that mentions shardlab depends on it.
    """
    parts = [_environment()]
    if any(re.search(r"\bshardlab\b", cell.source) for cell in chapter.cells):
        parts.append(folder_digest(book.root / "src" / "shardlab", "*.py"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def _environment():
    # What is installed, not what the lock says: the two differ until the set-up has run.
    packages = sorted(f"{d.metadata['Name']}=={d.version}" for d in distributions())
    return "\n".join([sys.version, sys.platform, *packages])


def folder_digest(folder, pattern="*"):
    """A digest of the names and contents of the files in a folder and below it."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts and ".ipynb_checkpoints" not in path.parts:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def records(cache_folder):
    """For each chapter's file, a text that changes whenever its outputs do: what a site was made from."""
    from jupyter_cache import get_cache

    made = {}
    for record in sorted(get_cache(cache_folder).list_cache_records(), key=lambda record: record.pk):
        made[record.uri] = f"{record.hashkey} {record.created}"
    return made


def _recorded(outputs, chapter):
    try:
        return outputs.match_cache_notebook(chapter.notebook)
    except KeyError:
        return None


# --- Kernels ---------------------------------------------------------------------------------------------


class _Kernels:
    """The kernels that run now, so that all can be stopped at once."""

    def __init__(self, folder):
        self.folder, self.stopping = folder, False
        self._groups, self._lock = set(), threading.Lock()

    def add(self, group):
        with self._lock:
            self._groups.add(group)
        if self.stopping:  # it started while the others were being stopped
            self.end(group)

    def end(self, group):
        """End a kernel and whatever it started: it leads a process group of its own."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        with self._lock:
            self._groups.discard(group)

    def stop(self):
        self.stopping = True
        for group in list(self._groups):
            self.end(group)


@contextmanager
def _kernels():
    """Make Ctrl-C and polite signals end the kernels, and leave by raising `Stopped`."""
    # We talk to kernels through sockets in a folder of ours, with a short path, rather than open ports.
    folder = tempfile.TemporaryDirectory(prefix="book-")
    kernels = _Kernels(folder.name)

    def on_signal(number, frame):
        raise Stopped(signal.Signals(number).name)

    watched = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, on_signal) for number in watched} if main else {}
    try:
        yield kernels
    finally:
        kernels.stop()
        folder.cleanup()
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_chapter(book, chapter, kernels, progress):
    """Run one chapter in a kernel of its own. Returns its Result, and the notebook with outputs if it went well."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    if kernels.stopping:
        raise Stopped
    cells = chapter.cells
    at = {cell.position: number for number, cell in enumerate(cells)}
    now = -1  # the number of the cell that runs

    class Client(NotebookClient):
        group = None

        async def async_start_new_kernel(self, **kwargs):
            await super().async_start_new_kernel(**kwargs)
            self.group = self.km.provisioner.pid
            kernels.add(self.group)

    def on_cell_start(cell, cell_index):
        nonlocal now
        if cell_index in at:
            now = at[cell_index]
            progress.cell(chapter.name, now + 1, len(cells))

    notebook = nbformat.from_dict(chapter.notebook)
    notebook.metadata.pop("source_map", None)
    client = Client(
        notebook,
        timeout=book.cell_seconds,
        kernel_name=notebook.metadata.kernelspec.name,
        on_cell_start=on_cell_start,
        shutdown_kernel="immediate",
        record_timing=False,  # times in the cells' metadata would change what the cache finds them by
        config=Config({"KernelManager": {"transport": "ipc", "ip": f"{kernels.folder}/{chapter.name}"}}),
        resources={"metadata": {"path": str((book.root / chapter.path).parent)}},
    )
    client.log.disabled = True  # it reports what we report, less well
    progress.cell(chapter.name, 0, len(cells))
    began = time.monotonic()
    line = cells[0].line
    traceback = ""
    try:
        client.execute()
        error = None
    except CellExecutionError as failure:
        traceback = failure.traceback
        # A syntax error names a temporary file; we name the real one.
        error = _one_line(re.sub(r" \(\d+\.py, line \d+\)$", "", f"{failure.ename}: {failure.evalue}"))
        line = cells[now].line + _line_in_cell(traceback, now + 1) - 1
    except CellTimeoutError:
        error = (
            f"CellTimeoutError: this cell ran for longer than {book.cell_seconds} s (execute: timeout: in _config.yml)"
        )
        line = cells[now].line
    except DeadKernelError:
        error = "DeadKernelError: the kernel died while this cell ran (out of memory, or the process was ended)"
        line = cells[max(now, 0)].line
    except Exception as failure:  # a kernel that is not installed, or does not start
        error = _one_line(f"{type(failure).__name__}: {failure}")
    finally:
        if client.group:
            kernels.end(client.group)
    if kernels.stopping:
        raise Stopped
    seconds = time.monotonic() - began
    if error:
        failure = Failure(chapter.path, line, error, traceback)
        return Result(chapter.name, "failed", len(cells), seconds, failure), None
    return Result(chapter.name, "ran", len(cells), seconds), notebook


def _line_in_cell(traceback, execution_count):
    """The line of a cell at which a traceback passes through it: its first frame in that cell."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", traceback)
    found = re.search(rf"Cell In\[{execution_count}\], line (\d+)", plain)
    return int(found[1]) if found else 1


def _one_line(text):
    return " ".join(text.split())[:400]
