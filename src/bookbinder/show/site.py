"""Turn executed chapters into HTML with Jupyter Book, and replace the published site only with a complete one."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import yaml

from bookbinder import disk
from bookbinder.notebook import notebooks
from bookbinder.progress import AS_TEXT, Progress, plain
from bookbinder.read import address
from bookbinder.read.book import FOLDER, load
from bookbinder.run import execute, runs
from bookbinder.stopping import stoppable

CACHE = ".jupyter_cache"  # where Jupyter Book itself looks for outputs, below _build
IN_WHEEL = ("pyproject.toml", "README.md", "LICENSE")  # besides the package
PUBLISHED = ("html", "notebooks")  # the folders below _build that readers get
_STATE = {"inputs": str, "commit": str | None, "outputs": str, "dependencies": dict, "results": list}
_QUIET = {"PYTHONWARNINGS": "ignore", "NO_COLOR": "1"}  # for Jupyter Book


class SiteError(Exception):
    """Jupyter Book could not make the site, or the disk could not store it; the message says why."""


def build(book, *, without=(), jobs=None, progress=None):
    """Execute what changed, then make the site in `_build/html` and the notebooks in `_build/notebooks`.

    The old site stays until the new one is complete and was made without a warning. Chapters named in `without` do not
    run: the page of one that has no valid outputs shows none.

    Returns:
      The chapters' results, as `bookbinder.run.execute.run` does. If any failed, the site was not made.

    Raises:
      SiteError: Jupyter Book failed or warned, or the disk is full or may not be written.
      BookError: a chapter cannot be made a notebook.
    """
    progress = progress or Progress()
    folder = book.build_folder
    with _telling(book), stoppable() as stop, disk.alone(folder, progress, stop) as lock:
        for name in PUBLISHED:
            disk.finish_swap(folder / name)
        inputs = _inputs_digest(book)
        book = load(book.root)  # as it is now: we may have waited
        state_file = folder / "state.json"
        state, commit = _read_state(state_file), address.commit(book.root)
        current = _is_current(book, state, inputs, without)
        if current and state["commit"] == commit:
            return _reused(state)
        new = folder / "notebooks.new"
        if current:  # except for the commit, which notebooks name
            results, dependencies = _reused(state), state["dependencies"]
            notebooks.write(book, notebooks.make(book, outputs=execute.outputs(book)), new)
        else:
            with _JupyterBook(book, folder / "staging", lock, stop) as jupyter_book:
                book.check()
                before = partial(notebooks.make, book)  # it can fail, so rather before chapters run for minutes
                options = {"without": without, "jobs": jobs, "progress": progress}
                results = execute.run(book, folder / CACHE, **options, stop=stop, before=before)
                if any(result.failure for result in results):
                    return results
                progress.say("making the pages")
                jupyter_book.go_on(results)
                try:
                    notebooks.write(book, notebooks.make(book, outputs=execute.outputs(book)), new)
                finally:  # ended now, it would have to begin afresh
                    pages_folder = jupyter_book.finish()
            shutil.copytree(pages_folder, folder / "html.new", ignore=shutil.ignore_patterns(".buildinfo"))
            dependencies = _dependencies(json.loads((pages_folder.parent / "dependencies.json").read_text()))
        if _inputs_digest(book) != inputs:
            inputs = ""  # edited meanwhile: pages may show something that will be gone before the next build
        for name in PUBLISHED:  # now that all is made
            disk.swap(folder / name)
        state = {
            "inputs": inputs,
            "commit": commit,
            "outputs": _outputs_digest(folder),
            "dependencies": dependencies,
            "results": [asdict(result) for result in results],
        }
        disk.write(state_file, json.dumps(state))
        return results


def _reused(state):
    """The results of the last build, marked as reused."""
    results = (execute.Result(**result) for result in state["results"])
    return [replace(result, status="reused") if result.status == "ran" else result for result in results]


def is_current(book):
    """Whether the last build is complete, and was made from the sources as they are now."""
    return _is_current(book, _read_state(book.build_folder / "state.json"), _inputs_digest(book))


def _is_current(book, state, inputs, without=()):
    left_out = {result["name"] for result in state.get("results", ()) if result["status"] == execute.LEFT_OUT}
    return left_out <= set(without) and (
        state.get("inputs") == inputs
        and state.get("outputs") == _outputs_digest(book.build_folder)
        and state.get("dependencies") == _dependencies(state.get("dependencies", {}))
    )


def build_chapter(book, chapter, *, progress=None):
    """Execute one chapter and make its page alone. Returns its result, and the page (None if it failed).

    Links to other chapters lead nowhere here; everything else is as in the book.
    """
    progress = progress or Progress()
    folder = book.build_folder
    with _telling(book), stoppable() as stop, disk.alone(folder, progress, stop) as lock:
        book = load(book.root)  # as it is now: we may have waited
        chapter = book.chapter(chapter.name)
        with _JupyterBook(book, folder / "chapter" / chapter.name, lock, stop, only=chapter) as jupyter_book:
            book.check()
            notebooks.make(book, [chapter])  # says what Colab would not show
            results = execute.run(book, folder / CACHE, chapters=[chapter], progress=progress, stop=stop)
            if results[0].failure:
                return results[0], None
            progress.say("making the page")
            jupyter_book.go_on(results)
            pages_folder = jupyter_book.finish()
        return results[0], pages_folder / f"{chapter.name}.html"


def dead_links(book):
    """Check every external address that a chapter links to.

    A host that refuses to answer a program (403, 429) counts as reachable.

    Returns:
      "book/x.md:12: ADDRESS: what is wrong with it", for each that is broken.

    Raises:
      SiteError: Jupyter Book failed before it could check.
    """
    book.check()
    folder = book.build_folder / "links"
    shutil.rmtree(folder, ignore_errors=True)
    config = _config_for_folder(book, None)
    config["execute"] = {"execute_notebooks": "off"}
    asking = {"linkcheck_anchors": False, "linkcheck_timeout": 30, "linkcheck_retries": 3}
    config["sphinx"].setdefault("config", {}).update(asking)
    command = [*_command(book, folder, config, None), "--builder", "linkcheck"]
    process = subprocess.run(command, capture_output=True, **AS_TEXT, env={**os.environ, **_QUIET})
    answers = folder / "_build" / "html" / "output.json"
    if not answers.exists():
        raise SiteError(_what_was_wrong(book, process.stdout, process.stderr))
    links = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
    return [
        f"{FOLDER}/{link['filename']}:{link['lineno']}: {link['uri']}: {' '.join(link['info'].split())[:300]}"
        for link in sorted(links, key=lambda link: (link["filename"], link["lineno"]))
        if link["status"] in ("broken", "timeout") and not re.match(r"(403|429) ", link["info"])
    ]


class _JupyterBook:
    """`jupyter-book build` on the chapters' folder.

    It is started at once, because it takes a second to be ready, and waits for the outputs. If the block ends before
    the outputs are there, it is killed and has changed nothing.
    """

    def __init__(self, book, folder, lock, stop, only=None):
        self._book, self._folder, self._stop, self._only = book, folder, stop, only
        self._fresh, self._stamp = _fresh_digest(book, only), folder / "made-with"
        if folder.exists() and (not self._stamp.exists() or self._stamp.read_text() != self._fresh):
            shutil.rmtree(folder)  # Sphinx does not notice a change of these by itself
        command = _command(book, folder, _config_for_folder(book, only), only)
        if not only:
            command += ["--warningiserror", "--keep-going"]
        self._process = subprocess.Popen(
            command,
            pass_fds=[lock],  # it holds the lock too: were this process killed, the next build would wait for it
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **AS_TEXT,
            env={**os.environ, **_QUIET, execute.CALLED: "yes"},
            start_new_session=True,  # so that Ctrl-C reaches it through us alone
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if not self._process.stdout.closed:
            self._process.communicate()

    def go_on(self, results):
        """Send it what is known of the chapters, so that it makes the pages."""
        self._stamp.unlink(missing_ok=True)  # until this has gone well
        facts = execute.facts([self._only] if self._only else self._book.chapters, results)
        with suppress(BrokenPipeError), self._process.stdin as stdin:  # broken: `finish` will say why
            stdin.write(json.dumps(facts))
        self._process.stdin = None

    def finish(self):
        """Wait for the pages; returns their folder."""
        while True:
            try:
                output, warned = self._process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                self._stop.check()
        if self._process.returncode:
            # If it were kept, the next build would take it as good, and would not repeat its warnings.
            shutil.rmtree(self._folder, ignore_errors=True)
            raise SiteError(_what_was_wrong(self._book, output, warned))
        if self._only and warned.strip():
            print(_relative(self._book, warned).strip(), file=sys.stderr)
        if _fresh_digest(self._book, self._only) == self._fresh:  # no one has edited that meanwhile
            disk.write(self._stamp, self._fresh)
        return self._folder / "_build" / "html"


def _command(book, folder, config, only):
    """The command by which Jupyter Book reads the chapters, with a configuration that is written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    disk.write(folder / "_config.yml", yaml.safe_dump(config))
    disk.write(folder / "_toc.yml", yaml.safe_dump(_toc_for_folder(book, only)))
    # Garbage collection would take a fifth of its time, and frees little.
    main = "import atexit, gc; gc.disable(); atexit.register(gc.freeze); from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", main, "build", str(book.root / FOLDER)]
    command += ["--config", str(folder / "_config.yml"), "--toc", str(folder / "_toc.yml")]
    return [*command, "--path-output", str(folder), "--quiet"]


def _what_was_wrong(book, output, warned):
    """Sphinx's warnings and errors; or the exception that stopped it, with its complete output."""
    warned = plain(warned)
    if refused := disk.refused_in(warned):
        return _refusal(book, *refused)
    lines = warned.splitlines()
    wrong = [line for line in lines if re.search(r"\b(WARNING|ERROR|CRITICAL): ", line)]
    if not wrong:
        cause = next((line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)), "Jupyter Book failed")
        wrong = [cause, output, warned]
    return _relative(book, "\n".join(wrong).strip())


@contextmanager
def _telling(book):
    """Report in a SiteError what the disk has refused."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SiteError) or not (refused := disk.refused(error)):
            raise
        raise SiteError(_refusal(book, *refused)) from None


def _refusal(book, number, file):
    file = book.build_folder / CACHE if file == disk.DATABASE else file
    return _relative(book, disk.said(number, file, book.build_folder))


def _relative(book, text):
    return text.replace(f"{book.root}{os.sep}", "")


# --- The same configuration, seen from the chapters' folder ----------------------------------------------
# Entries of _toc.yml and paths in _config.yml are relative to the root, since that is where people type
# `jupyter-book build .`; made from book/ instead, pages have addresses without /book/.


def _config_for_folder(book, only):
    config = _strip_folder(book.config)
    config.setdefault("execute", {})["cache"] = str(book.build_folder / CACHE)
    if "url" in config.get("repository", {}):
        config["repository"]["path_to_book"] = FOLDER
    if only:
        sphinx = config.setdefault("sphinx", {}).setdefault("config", {})
        sphinx.pop("search_aliases", None)  # sections of other chapters
        sphinx["suppress_warnings"] = [
            "myst.xref_missing",
            "ref",
            "toc",
            "bibtex",
            *sphinx.get("suppress_warnings", []),
        ]
    return config


def _toc_for_folder(book, only):
    if only:
        return {"format": "jb-book", "root": only.name}
    return _strip_folder(yaml.safe_load((book.root / "_toc.yml").read_text("utf-8")))


def _strip_folder(value):
    if isinstance(value, dict):
        return {key: _strip_folder(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strip_folder(item) for item in value]
    return value.removeprefix(f"{FOLDER}/") if isinstance(value, str) else value


# --- What a site was made from ---------------------------------------------------------------------------


def _inputs_digest(book):
    """A digest of everything that the site depends on."""
    return disk.digest(
        runs.environment(),
        disk.folder_digest(book.root / FOLDER),
        disk.folder_digest(book.root / "src"),
        (book.root / "_toc.yml").read_text("utf-8"),
        *(disk.digest(*(file.read_text("utf-8") for file in book.root.glob(name))) for name in IN_WHEEL),
        _fresh_digest(book, None),
    )


def _fresh_digest(book, only):
    """A digest of everything whose change makes Sphinx start again from nothing."""
    return disk.digest(
        runs.environment(),
        disk.folder_digest(Path(disk.__file__).parent, "*.py"),
        disk.folder_digest(book.root / FOLDER / "static"),
        (book.root / "_config.yml").read_text("utf-8"),
        os.environ.get("GITHUB_REPOSITORY", ""),
        os.environ.get("GITHUB_SERVER_URL", ""),
        only.name if only else "",
    )


def _outputs_digest(folder):
    """A digest of the published files, which shows whether they are still those of the last build."""
    files = sorted(path for name in PUBLISHED for path in (folder / name).rglob("*") if path.is_file())
    return disk.digest(*(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files))


def _dependencies(files):
    """A digest for each file that chapters include."""
    return {file: disk.file_digest(Path(file)) for file in files}


def _read_state(file):
    try:
        state = json.loads(file.read_text())
        _reused(state)
        same_kinds = all(isinstance(state[name], kind) for name, kind in _STATE.items())
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return state if same_kinds and all(map(os.path.isabs, state["dependencies"])) else {}
