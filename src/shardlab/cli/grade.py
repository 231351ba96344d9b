"""`shardlab grade`: run notebooks that participants of a course return, and say which exercises
they have solved.
"""

import json
import re
import sys
from pathlib import Path

from shardlab._arguments import nearest
from shardlab.cli.arguments import Wrong

ABOUT = "run the notebooks of a course and say which exercises are solved"
EXAMPLES = """\
examples:
  shardlab grade arrays-alice.ipynb arrays-bob.ipynb
  shardlab grade --original class/arrays.ipynb returned/*.ipynb

The notebooks are those of the book's folder `class`, filled in. Each runs in a kernel of its own, in its own folder, so
give them only to a machine on which strangers' code may run. With --original, only the answers are taken from what was
returned, and everything else, above all what checks them, from the notebook that you handed out.
"""  # noqa: E501
# of a cell in which a participant writes; the notebooks are made so
BEGINNING = "# Your answer to exercise"
ANSWER = re.compile(rf"^{BEGINNING} ([\w-]+)", re.MULTILINE)
RIGHT, OPEN, WRONG, ERROR = "right", "open", "wrong", "error"
MARKS = {RIGHT: "+", OPEN: ".", WRONG: "-", ERROR: "!"}
LEGEND = "+ right   - wrong   . not solved yet   ! raises another error"


def add_arguments(command):
    """Add the options of the command to its parser."""
    command.add_argument(
        "notebooks", nargs="+", metavar="NOTEBOOK", help="a notebook of the folder class, filled in"
    )
    command.add_argument(
        "--original", metavar="NOTEBOOK", help="take all but the answers from this notebook"
    )
    command.add_argument(
        "--timeout", type=int, default=600, metavar="S", help="seconds that a cell may take (600)"
    )


def run(options):
    """Run the command; returns the exit status."""
    if options.timeout < 1:
        raise Wrong(f"--timeout is {options.timeout}; use a whole number of seconds, at least 1")
    original = _read(options.original) if options.original else None
    returned = {name: _read(name) for name in options.notebooks}
    if original is not None:
        for name, notebook in returned.items():
            returned[name] = with_answers(original, notebook, name)
    graded = {}
    for name, notebook in returned.items():
        graded[name] = of_notebook(notebook, Path(name), options.timeout)
    if options.json:
        print(json.dumps(graded, indent=1))
    else:
        print(table(graded))
    return 0


def _read(name):
    """A notebook from a file, with at least one cell for an answer."""
    try:
        import nbformat
    except ImportError:
        raise Wrong(
            "grade needs nbclient and ipykernel; install them with: pip install nbclient ipykernel"
        ) from None
    try:
        notebook = nbformat.read(name, as_version=4)
    except OSError as error:
        raise Wrong(f"{name}: {error.strerror}") from None
    except Exception as error:  # nbformat has many
        raise Wrong(f"{name} is no notebook: {type(error).__name__}") from None
    if not answers(notebook):
        raise Wrong(
            f"{name} has no cell that begins with `# Your answer to exercise NAME`; hand out "
            "the notebooks of the book's folder class"
        )
    return notebook


def answers(notebook):
    """The cells in which a participant writes, by exercise."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return {match[1]: cell for cell in cells if (match := ANSWER.search(cell.source))}


def with_answers(original, returned, name):
    """The original with the answers of the returned notebook.

    Raises:
      Wrong: the returned notebook has an answer to an exercise that the original does not have.
    """
    from copy import deepcopy

    merged, given = deepcopy(original), answers(returned)
    places = answers(merged)
    for label, cell in given.items():
        if label not in places:
            raise Wrong(f"{name}: the original has no exercise {label!r}{nearest(label, places)}")
        places[label].source = cell.source
    for label in places.keys() - given.keys():  # a cell that was deleted is not solved
        places[label].source = f"{BEGINNING} {label}"
    return merged


def of_notebook(notebook, file, timeout):
    """What became of each exercise: "right", "open", "wrong" or "error", and for the last two why,
    in one line.
    """
    try:
        from nbclient import NotebookClient
        from nbclient.exceptions import CellTimeoutError, DeadKernelError
    except ImportError:
        raise Wrong(
            "grade needs nbclient and ipykernel; install them with: pip install nbclient ipykernel"
        ) from None

    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    done = 0

    def progress(cell, cell_index):
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            print(f"\r{file.name}: cell {done} of {cells}", end="", file=sys.stderr, flush=True)

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    client = NotebookClient(
        notebook,
        timeout=timeout,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(file.parent)}},
        on_cell_start=progress,
    )
    stopped = ""
    try:
        client.execute()
    except CellTimeoutError:
        stopped = f"a cell took more than {timeout} s, and no cell after it ran"
    except DeadKernelError:
        stopped = "the kernel died, and no cell after that ran"
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return {label: _verdict(cell, stopped) for label, cell in answers(notebook).items()}


def _verdict(cell, stopped):
    """What a cell with an answer has printed last, or raised."""
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    for output in cell.outputs:
        if output.output_type == "error":
            kind = {"NotSolved": OPEN, "WrongAnswer": WRONG, "_Misplaced": WRONG}.get(
                output.ename, ERROR
            )
            first = output.evalue.strip().partition("\n")[0]
            return {"verdict": kind, "why": first if kind != ERROR else f"{output.ename}: {first}"}
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
    if stopped and not cell.outputs:
        return {"verdict": ERROR, "why": stopped}
    return {"verdict": OPEN, "why": ""}


def table(graded):
    """A row for each notebook and a column for each exercise; below it, why an answer is wrong."""
    labels = list(dict.fromkeys(label for verdicts in graded.values() for label in verdicts))
    width = max(len(Path(name).name) for name in graded)
    lines = [f"{number:>2}  {label}" for number, label in enumerate(labels, 1)]
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
        lines.append(f"{Path(name).name:<{width}}{marks}  {right:>2} of {len(verdicts)}")
    lines += ["", LEGEND]
    for name, verdicts in graded.items():
        for label, verdict in verdicts.items():
            if verdict["why"]:
                lines.append(f"{Path(name).name}, {label}: {verdict['why']}")
    return "\n".join(lines)
