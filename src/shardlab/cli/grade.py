"""`shardlab grade`: run notebooks that participants of a course return, and say which exercises
they have solved.
"""

import asyncio
import csv
import ctypes
import hashlib
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from shardlab._arguments import file_bytes, nearest, plain
from shardlab.cli.arguments import Wrong

ABOUT = "run the notebooks of a course and say which exercises are solved"
EXAMPLES = """\
examples:
  shardlab grade arrays-alice.ipynb arrays-bob.ipynb
  shardlab grade --original class/arrays.ipynb --out marks.csv returned/*.ipynb

The notebooks are those of the book's folder `class`, filled in. Each runs in a kernel of its own, in its own folder, so
give them only to a machine on which strangers' code may run. With --original, only the answers are taken from what was
returned, and everything else, above all what checks them, from the notebook that you handed out. Of several cells for
one exercise the best counts. With --out, marks are written after each notebook. The same command again runs only what
is new or has changed since; to run a notebook again, delete its lines in the table. The exit status is 1 if a notebook
could not be read.
"""  # noqa: E501
# of a cell in which a participant writes; the notebooks are made so
BEGINNING = "# Your answer to exercise"
ANSWER = re.compile(rf"^{BEGINNING} ([\w-]+)", re.MULTILINE)
RIGHT, OPEN, WRONG, ERROR = "right", "open", "wrong", "error"
BEST_FIRST = (RIGHT, WRONG, ERROR, OPEN)  # of several cells for one exercise
MARKS = {RIGHT: "+", OPEN: ".", WRONG: "-", ERROR: "!"}
LEGEND = "+ right   - wrong   . not solved yet   ! raises another error"
WHOLE = "(notebook)"  # in place of an exercise, where a notebook cannot be read
COLUMNS = ["notebook", "exercise", "verdict", "why", "digest"]  # of the table of --out
MOST_SHOWN = 1_000_000  # characters that a cell may print
END_SECONDS = 10  # how long it may take to end what answers have started
INSTALL = "grade needs nbclient and ipykernel; install them with: pip install nbclient ipykernel"
# What outputs must hold, as text; messages that do not are no output.
FIELDS = {"stream": ("name", "text"), "error": ("ename", "evalue")}


def add_arguments(command):
    """Add the options of the command to its parser."""
    command.add_argument(
        "notebooks", nargs="+", metavar="NOTEBOOK", help="a notebook of the folder class, filled in"
    )
    command.add_argument(
        "--original", metavar="NOTEBOOK", help="take all but the answers from this notebook"
    )
    command.add_argument(
        "--out", metavar="FILE", help="a table of marks, such as marks.csv, to begin or continue"
    )
    command.add_argument(
        "--timeout", type=int, default=600, metavar="S", help="seconds that a cell may take (600)"
    )


def run(options):
    """Run the command; returns the exit status."""
    if options.timeout < 1:
        raise Wrong(f"--timeout is {options.timeout}; use a whole number of seconds, at least 1")
    try:
        import ipykernel  # noqa: F401  (it starts later, as a process)
        import nbclient  # noqa: F401
    except ImportError:
        raise Wrong(INSTALL) from None
    original = _read(options.original) if options.original else None
    graded = _class(options, original)
    print(json.dumps(graded, indent=1) if options.json else table(graded))
    return int(any(WHOLE in verdicts for verdicts in graded.values()))


def _class(options, original):
    """The verdicts of each notebook; those that --out has already are not asked for again."""
    marks = _marks(options.out) if options.out else {}
    names = list(dict.fromkeys(options.notebooks))
    for name in names:
        digest = _digest(options.original, name)
        if digest and marks.get(name, ("", {}))[0] == digest:
            continue
        marks.pop(name, None)
        if options.out:  # whatever the answers do to this process, they do it once
            ended = {WHOLE: _error("grading ended while this notebook ran")}
            _write(options.out, marks | {name: (digest, ended)})
        try:
            marks[name] = digest, of_file(name, original, options.timeout)
        finally:
            if options.out:
                _write(options.out, marks)
    return {name: marks[name][1] for name in names}


def _digest(*names):
    """A digest of files; "" if one of them cannot be read."""
    try:
        return hashlib.sha256(b"".join(_bytes(name) for name in names if name)).hexdigest()[:12]
    except Wrong:
        return ""


def _marks(out):
    """The table of an earlier run: for each notebook its digest and its verdicts."""
    marks = {}
    try:
        # spreadsheets put a mark before the first column
        text = file_bytes(out).decode("utf-8-sig", "surrogateescape")
        rows = csv.reader(io.StringIO(text, newline=""))
        head = next(rows, COLUMNS)
        if head != COLUMNS:
            raise Wrong(
                f"--out {out} is no table of marks: its columns are not {', '.join(COLUMNS)}; "
                "name another file"
            )
        for name, label, verdict, why, digest in rows:
            if verdict not in MARKS:
                raise ValueError(f"{verdict!r} is no verdict")
            name = _of_a_sheet(name)
            verdicts = marks.setdefault(name, (digest, {}))[1]
            verdicts[label] = {"verdict": verdict, "why": _of_a_sheet(why)}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Wrong(f"--out {out}: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        if isinstance(error, Wrong):
            raise
        raise Wrong(
            f"--out {out}:{rows.line_num}: {plain(str(error))}; correct the line, or delete it"
        ) from None
    return marks


def _write(out, marks):
    """Write the table of marks so that it is never seen half-written."""
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(COLUMNS)
    for name, (digest, verdicts) in marks.items():
        for label, mark in verdicts.items():
            rows.writerow(
                [_for_a_sheet(name), label, mark["verdict"], _for_a_sheet(mark["why"]), digest]
            )
    part = f"{out}.{os.getpid()}.part"
    try:
        Path(part).write_bytes(text.getvalue().encode("utf-8", "surrogateescape"))
        os.replace(part, out)
    except OSError as error:
        with suppress(OSError):
            os.unlink(part)
        raise Wrong(f"--out {out}: {error.strerror}") from None


def _for_a_sheet(text):
    """A text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "'")) else text


def _of_a_sheet(text):
    return text[1:] if text.startswith("'") else text


def _error(why):
    return {"verdict": ERROR, "why": plain(why)}


def of_file(name, original, timeout):
    """What became of each exercise of the notebook in a file. Whatever is wrong with it is the
    reason why it is no better than "error", and stops nothing else.
    """
    try:
        notebook = _read(name)
        if original is not None:
            notebook = with_answers(original, notebook, name)
        return of_notebook(notebook, Path(name), timeout)
    except Exception as error:
        why = str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}"
        return {WHOLE: _error(why.removeprefix(f"{name}: "))}


def _bytes(name):
    """What a file holds."""
    try:
        return file_bytes(name)
    except (OSError, ValueError) as error:
        raise Wrong(f"{name}: {getattr(error, 'strerror', None) or error}") from None


def _read(name):
    """The code of a notebook from a file, with at least one cell for an answer."""
    import nbformat

    content = _bytes(name)
    try:
        text = content.decode("utf-8-sig")
        notebook = json.loads(text)
        if notebook["nbformat"] != 4:
            notebook = nbformat.convert(nbformat.reader.reads(text), 4)
        cells = [_code(cell) for cell in notebook["cells"] if _is_code(cell)]
    except Exception as error:  # nbformat has many
        raise Wrong(f"{name} is no notebook: {type(error).__name__}") from None
    notebook = nbformat.v4.new_notebook(cells=cells)
    if not answers(notebook):
        raise Wrong(
            f"{name} has no cell that begins with `# Your answer to exercise NAME`; hand out "
            "the notebooks of the book's folder class"
        )
    return notebook


def _is_code(cell):
    """Whether a cell is one of code, and not half of one."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return False
    lines = cell.get("source")
    return isinstance(lines, str | list) and all(isinstance(line, str) for line in lines)


def _code(cell):
    """A new cell of the same code, with those tags that are tags; without halves of characters."""
    import nbformat

    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    good = isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
    return nbformat.v4.new_code_cell(
        "".join(cell["source"]).encode("utf-8", "replace").decode(),
        metadata={"tags": tags} if good else {},
    )


def answers(notebook):
    """The cells in which a participant writes, a list for each exercise: a cell that was copied
    makes two.
    """
    by_exercise = {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and (match := ANSWER.search(cell.source)):
            by_exercise.setdefault(match[1], []).append(cell)
    return by_exercise


def with_answers(original, returned, name):
    """The original with the answers of the returned notebook. An answer to an exercise that the
    original does not have is left out, and one line on standard error says so.

    Raises:
      Wrong: the returned notebook has no answer to any exercise of the original.
    """
    from copy import deepcopy

    from nbformat.v4 import new_code_cell

    merged, given = deepcopy(original), answers(returned)
    places = answers(merged)
    for label in given.keys() - places.keys():
        says = f"{name}: the original has no exercise {label!r}{nearest(label, places)}"
        if not given.keys() & places.keys():
            raise Wrong(says)
        print(plain(f"{says}; its cell does not run"), file=sys.stderr)
    for label, (cell, *_) in places.items():  # a cell that was deleted is not solved
        cell.source = f"{BEGINNING} {label}"
        if label in given:
            cell.source, *more = (one.source for one in given[label])
            after = merged.cells.index(cell) + 1
            merged.cells[after:after] = [
                new_code_cell(source, id=f"{cell.id[:50]}-{number}", metadata=cell.metadata)
                for number, source in enumerate(more, 1)
            ]
    return merged


def _client_class():
    """nbclient's, which refuses more output of a cell than a page can show, and passes over
    messages that are none.
    """
    from nbclient import NotebookClient
    from nbclient.client import CellExecutionComplete

    class Client(NotebookClient):
        cell, shown = -1, 0  # which cell runs, and the characters that it has put out
        flood = False

        def process_message(self, message, cell, cell_index):
            if cell_index != self.cell:
                self.cell, self.shown = cell_index, 0
            content = message.get("content") or {}
            self.shown += len(str(content))
            if self.shown > MOST_SHOWN:
                self.flood = True
                self.task_poll_for_reply.cancel()  # as if the kernel had died
                return None
            fields = FIELDS.get(message.get("msg_type"), ())
            if not all(isinstance(content.get(field), str) for field in fields):
                return None
            try:
                return super().process_message(message, cell, cell_index)
            except CellExecutionComplete:
                raise
            except Exception:  # an answer can send what it likes to the front end
                return None

    return Client


def _note_error(cell, cell_index, execute_reply):
    """Keep the error of a cell that the kernel could not show, or was told not to show."""
    from nbformat.v4 import new_output

    content = (execute_reply or {}).get("content") or {}
    shown = any(output.output_type == "error" for output in cell.outputs)
    if content.get("status") == "error" and not shown:
        name, text = (str(content.get(field) or "") for field in ("ename", "evalue"))
        cell.outputs.append(new_output("error", ename=name, evalue=text, traceback=[]))


@contextmanager
def _kernel_folder():
    """A folder for the files of a kernel. It is gone at the end, and so are the processes that were
    started meanwhile: also those that have left their parent, where the system can (Linux).
    """
    import psutil

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    before = set(psutil.Process().children(recursive=True))
    # short, as the paths of sockets must be
    parent = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="grade-", dir=parent))
    try:
        yield folder
    finally:
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline and (
            left := set(psutil.Process().children(recursive=True)) - before
        ):
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=0.5)
        shutil.rmtree(folder, ignore_errors=True)


def of_notebook(notebook, file, timeout):
    """What became of each exercise: "right", "open", "wrong" or "error", and for the last two why,
    in one line.
    """
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    done, stopped = 0, ""

    def progress(cell, cell_index):
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            text = f"\r{plain(file.name)}: cell {done} of {len(notebook.cells)}"
            print(text, end="", file=sys.stderr, flush=True)

    with _kernel_folder() as folder:
        settings = {"connection_file": str(folder / "kernel.json")}
        if os.name == "posix":
            # files in a folder of ours, rather than open ports
            settings |= {"transport": "ipc", "ip": str(folder / "kernel")}
        client = _client_class()(
            notebook,
            timeout=timeout,
            allow_errors=True,
            kernel_name="python3",
            resources={"metadata": {"path": str(file.parent)}},
            on_cell_start=progress,
            on_cell_executed=_note_error,
            config=Config(KernelManager=settings),
        )
        # they report what we report, less well, and tasks that a flood leaves behind
        client.log.disabled = logging.getLogger("asyncio").disabled = True
        try:
            # what an answer writes past Python must not go to our own outputs
            client.execute(
                env=os.environ | {"IPYTHONDIR": str(folder / "ipython")},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except CellTimeoutError:
            stopped = f"a cell took more than {timeout} s, and no cell after it ran"
        except DeadKernelError:
            stopped = "the kernel died, and no cell after that ran"
            if client.flood:
                stopped = (
                    f"a cell prints more than {MOST_SHOWN:,} characters, and no cell after it ran"
                )
        except (Exception, asyncio.CancelledError) as error:  # such as a kernel that does not start
            stopped = f"{type(error).__name__}: {error}"
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    # where it stopped, the last one has not come to its end
    ended = {id(cell) for cell in notebook.cells[: max(0, done - bool(stopped))]}
    return {
        label: min(
            (_verdict(cell, "" if id(cell) in ended else stopped) for cell in cells),
            key=lambda found: BEST_FIRST.index(found["verdict"]),
        )
        for label, cells in answers(notebook).items()
    }


def _verdict(cell, stopped):
    """What a cell with an answer has printed last, or raised; else why it has not ended."""
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    for output in cell.outputs:
        if output.output_type == "error":
            kind = {"NotSolved": OPEN, "WrongAnswer": WRONG, "_Misplaced": WRONG}.get(
                output.ename, ERROR
            )
            first = output.evalue.strip().partition("\n")[0]
            why = first if kind != ERROR else f"{output.ename}: {first}"
            return {"verdict": kind, "why": plain(why)}
    last = next(
        (
            line
            for line in reversed(printed.splitlines())
            if line.startswith(("Right: ", "Not solved"))
        ),
        "",
    )
    if last.startswith("Right: "):
        return {"verdict": RIGHT, "why": ""}
    return _error(stopped) if stopped else {"verdict": OPEN, "why": ""}


def _shown(names):
    """The name of each file, with as many folders before it as make it unique."""
    parts, shown = {name: Path(name).parts for name in names}, {}
    for name, own in parts.items():
        ends = (own[-count:] for count in range(1, len(own) + 1))
        unique = (e for e in ends if sum(p[-len(e) :] == e for p in parts.values()) == 1)
        shown[name] = plain("/".join(next(unique, own)))
    return shown


def table(graded):
    """A row for each notebook and a column for each exercise; below it, why an answer is wrong."""
    labels = list(dict.fromkeys(label for verdicts in graded.values() for label in verdicts))
    labels = [label for label in labels if label != WHOLE]
    shown = _shown(graded)
    width = max(map(len, shown.values()))
    lines = [f"{number:>2}  {plain(label)}" for number, label in enumerate(labels, 1)]
    lines += [
        "",
        " " * width + "".join(f"{number:>4}" for number in range(1, len(labels) + 1)) + "  right",
    ]
    for name, verdicts in graded.items():
        marks = "".join(
            f"{MARKS[verdicts[label]['verdict']] if label in verdicts else ' ':>4}"
            for label in labels
        )
        right = sum(verdict["verdict"] == RIGHT for verdict in verdicts.values())
        total = "not graded" if WHOLE in verdicts else f"{right:>2} of {len(verdicts)}"
        lines.append(f"{shown[name]:<{width}}{marks}  {total}")
    lines += ["", LEGEND]
    for name, verdicts in graded.items():
        for label, verdict in verdicts.items():
            if verdict["why"]:
                which = "" if label == WHOLE else f", {plain(label)}"
                lines.append(f"{shown[name]}{which}: {verdict['why']}")
    return "\n".join(lines)
