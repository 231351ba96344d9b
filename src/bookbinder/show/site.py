"""Turn executed chapters into HTML with Jupyter Book, and replace the published site only with a
complete one.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial

import yaml

from bookbinder import disk
from bookbinder.notebook import notebooks
from bookbinder.progress import AS_TEXT, Progress, plain
from bookbinder.read import address
from bookbinder.read.book import FOLDER, load
from bookbinder.run import execute, stale
from bookbinder.stopping import Stopped, stoppable

CACHE = ".jupyter_cache"  # where Jupyter Book itself looks for outputs, below _build
PUBLISHED = ("html", "notebooks")  # the folders below _build that readers get
EARLY = "early"  # a file that is below _build while pages are there whose chapters still run
# seconds of running chapters before the first such pages: many builds have ended by then
EARLIEST = 10
OPENING = 2  # chapters with code that must have run before
_STATE = {
    "inputs": str,
    "commit": str | None,
    "outputs": str,
    "dependencies": dict,
    "results": list,
}
_QUIET = {"PYTHONWARNINGS": "ignore", "NO_COLOR": "1"}  # for Jupyter Book


class SiteError(Exception):
    """Jupyter Book could not make the site, or the disk could not store it; the message says
    why.
    """


def build(book, *, without=(), jobs=None, progress=None):
    """Execute what changed, then make the site in `_build/html` and the notebooks in
    `_build/notebooks`.

    The old site stays until the new one is complete and was made without a warning. Where there is
    none yet, pages are made while chapters still run (`_EarlyPages`). Chapters named in `without`
    do not run: the page of one that has no valid outputs shows none.

    Returns:
      The chapters' results, as `bookbinder.run.execute.run` does. If any failed, the site was not
      made.

    Raises:
      SiteError: Jupyter Book failed or warned, or the disk is full or may not be written.
      BookError: a chapter cannot be made a notebook.
    """
    progress = progress or Progress()
    folder = book.build_folder
    with _telling(book), stoppable() as stop, disk.alone(folder, progress, stop) as lock:
        for name in PUBLISHED:
            disk.finish_swap(folder / name)
        inputs = stale.inputs(book)
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
            book.check()
            # it can fail, so rather before chapters run for minutes
            before = partial(notebooks.make, book)
            with _EarlyPages(book, lock, stop, progress, without) as pages:
                options = {"without": without, "jobs": jobs, "progress": progress}
                results = execute.run(book, **options, stop=stop, before=before, ended=pages.note)
            if any(result.failure for result in results):
                return results
            progress.say("making the pages")
            with _JupyterBook(book, folder / "staging", lock, stop) as jupyter_book:
                notebooks.write(book, notebooks.make(book, outputs=execute.outputs(book)), new)
                pages_folder = jupyter_book.finish()
            _copy(pages_folder, folder / "html.new")
            dependencies = stale.besides(
                json.loads((pages_folder.parent / "dependencies.json").read_text())
            )
        if stale.inputs(book) != inputs:
            # edited meanwhile: pages may show something that will be gone before the next build
            inputs = ""
        for name in PUBLISHED:  # now that all is made
            disk.swap(folder / name)
        (folder / EARLY).unlink(missing_ok=True)
        state = {
            "inputs": inputs,
            "commit": commit,
            "outputs": _published(folder),
            "dependencies": dependencies,
            "results": [asdict(result) for result in results],
        }
        disk.write(state_file, json.dumps(state))
        return results


def _published(folder):
    """A digest of the published files, which changes if they do."""
    return stale.published(folder / name for name in PUBLISHED)


def is_complete(book):
    """Whether there is a site and every page in it was made with its outputs, be it old."""
    return (book.build_folder / "html").exists() and not (book.build_folder / EARLY).exists()


def _copy(pages_folder, place):
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(pages_folder, place, ignore=shutil.ignore_patterns(".buildinfo"))


class _EarlyPages:
    """Makes the pages of a book that has no site yet, again and again, while its chapters run.

    A page whose chapter has not run says so. The first pages are made when the first chapters with
    code have run, the next ones after twice the time, since each time all pages are looked at. What
    is wrong with a page is left to the build to say, when all have run.
    """

    def __init__(self, book, lock, stop, progress, without):
        self._book, self._lock, self._stop, self._progress = book, lock, stop, progress
        running = [chapter.name for chapter in book.chapters if chapter.runs]
        self._opening = set([name for name in running if name not in without][:OPENING])
        self._folder = book.build_folder
        self._began, self._ran, self._end = time.monotonic(), set(), threading.Event()
        self._thread = None if is_complete(book) else threading.Thread(target=self._keep_making)

    def note(self, name):
        """A chapter has run, now or before."""
        self._ran.add(name)

    def __enter__(self):
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        if self._thread:
            self._thread.join()

    def _keep_making(self):
        due = self._began + EARLIEST
        with suppress(Stopped, SiteError, OSError):
            while not self._end.wait(0.2):
                self._stop.check()
                if time.monotonic() >= due and self._opening <= self._ran:
                    self._make()
                    due = self._began + 2 * (time.monotonic() - self._began)

    def _make(self):
        count = len(self._ran)
        with _JupyterBook(
            self._book, self._folder / "staging", self._lock, self._stop
        ) as jupyter_book:
            _copy(jupyter_book.finish(), self._folder / "html.new")
        is_first = not (self._folder / EARLY).exists()
        (self._folder / EARLY).touch()
        disk.swap(self._folder / "html")
        if is_first:
            where = (self._folder / "html" / "index.html").relative_to(self._book.root)
            self._progress.say(
                f"{where} can be opened: {count} chapters have run, the others follow as they "
                "finish"
            )


def _reused(state):
    """The results of the last build, marked as reused."""
    results = (execute.Result(**result) for result in state["results"])
    return [
        replace(result, status="reused") if result.status == "ran" else result for result in results
    ]


def is_current(book):
    """Whether the last build is complete, and was made from the sources as they are now."""
    return _is_current(book, _read_state(book.build_folder / "state.json"), stale.inputs(book))


def _is_current(book, state, inputs, without=()):
    left_out = {
        result["name"]
        for result in state.get("results", ())
        if result["status"] == execute.LEFT_OUT
    }
    return left_out <= set(without) and (
        state.get("inputs") == inputs
        and state.get("outputs") == _published(book.build_folder)
        and state.get("dependencies") == stale.besides(state.get("dependencies", {}))
    )


def build_chapter(book, chapter, *, progress=None):
    """Execute one chapter and make its page alone. Returns its result, and the page (None if it
    failed).

    Links to other chapters lead nowhere here; everything else is as in the book.
    """
    progress = progress or Progress()
    folder = book.build_folder
    with _telling(book), stoppable() as stop, disk.alone(folder, progress, stop) as lock:
        book = load(book.root)  # as it is now: we may have waited
        chapter = book.chapter(chapter.name)
        book.check()
        notebooks.make(book, [chapter])  # says what Colab would not show
        results = execute.run(book, chapters=[chapter], progress=progress, stop=stop)
        if results[0].failure:
            return results[0], None
        progress.say("making the page")
        with _JupyterBook(
            book, folder / "chapter" / chapter.name, lock, stop, only=chapter
        ) as jupyter_book:
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
        (
            f"{FOLDER}/{link['filename']}:{link['lineno']}: {link['uri']}: "
            f"{' '.join(link['info'].split())[:300]}"
        )
        for link in sorted(links, key=lambda link: (link["filename"], link["lineno"]))
        if link["status"] in ("broken", "timeout") and not re.match(r"(403|429) ", link["info"])
    ]


class _JupyterBook:
    """`jupyter-book build` on the chapters' folder, with the outputs that are known. It begins at
    once.

    If the block ends before the pages are made, it is killed.
    """

    def __init__(self, book, folder, lock, stop, only=None):
        self._book, self._folder, self._stop, self._only = book, folder, stop, only
        self._fresh, self._stamp = stale.start(book, only), folder / "made-with"
        if folder.exists() and (not self._stamp.exists() or self._stamp.read_text() != self._fresh):
            shutil.rmtree(folder)  # Sphinx does not notice a change of these by itself
        command = _command(book, folder, _config_for_folder(book, only), only)
        if not only:
            command += ["--warningiserror", "--keep-going"]
        self._stamp.unlink(missing_ok=True)  # until this has gone well
        self._process = subprocess.Popen(
            command,
            # it holds the lock too: were this process killed, the next build would wait for it
            pass_fds=[lock],
            stdin=subprocess.DEVNULL,
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

    def finish(self):
        """Wait for the pages; returns their folder."""
        while True:
            try:
                output, warned = self._process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                self._stop.check()
        if self._process.returncode:
            # If it were kept, the next build would take it as good, and would not repeat its
            # warnings.
            shutil.rmtree(self._folder, ignore_errors=True)
            raise SiteError(_what_was_wrong(self._book, output, warned))
        if self._only and warned.strip():
            print(_relative(self._book, warned).strip(), file=sys.stderr)
        if stale.start(self._book, self._only) == self._fresh:  # no one has edited that meanwhile
            disk.write(self._stamp, self._fresh)
        return self._folder / "_build" / "html"


def _command(book, folder, config, only):
    """The command by which Jupyter Book reads the chapters, with a configuration that is written to
    `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    disk.write(folder / "_config.yml", yaml.safe_dump(config))
    disk.write(folder / "_toc.yml", yaml.safe_dump(_toc_for_folder(book, only)))
    # Garbage collection would take a fifth of its time, and frees little.
    main = (
        "import atexit, gc; gc.disable(); atexit.register(gc.freeze); from jupyter_book.cli.main "
        "import main; main()"
    )
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
        cause = next(
            (line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)),
            "Jupyter Book failed",
        )
        # such as a theme or an extension that is not there
        known = re.search(r"^(?:\w+ error:\n|sphinx\.errors\.\w+: )(.+)$", warned, re.MULTILINE)
        wrong = [known[1]] if known else [cause, output, warned]
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


# --- The same configuration, seen from the chapters' folder ---------------------------------------
# Entries of _toc.yml and paths in _config.yml are relative to the root, since that is where people
# type `jupyter-book build .`; made from book/ instead, pages have addresses without /book/.


def _config_for_folder(book, only):
    config = _strip_folder(book.config)
    config.setdefault("execute", {})["cache"] = str(book.build_folder / CACHE)
    if "url" in config.get("repository", {}):
        config["repository"]["path_to_book"] = FOLDER
    if only:
        sphinx = config.setdefault("sphinx", {}).setdefault("config", {})
        for setting in ("search_aliases", "moved_sections"):  # sections of other chapters
            sphinx.pop(setting, None)
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


def _read_state(file):
    try:
        state = json.loads(file.read_text())
        _reused(state)
        same_kinds = all(isinstance(state[name], kind) for name, kind in _STATE.items())
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return state if same_kinds and all(map(os.path.isabs, state["dependencies"])) else {}
