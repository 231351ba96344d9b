"""Serve the site on localhost while someone writes: build again and reload the page on every save."""

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from livereload import Server
from livereload.handlers import LiveReloadHandler, StaticFileHandler
from livereload.watcher import Watcher

from bookbinder.page.pages import POLICY
from bookbinder.read.book import SOURCES


class _Preview(StaticFileHandler):
    """Serves pages without their security policy, which forbids the script that reloads them."""

    @classmethod
    def get_content(cls, abspath, start=None, end=None):
        words, none = f'http-equiv="{POLICY}"'.encode(), b"data-no-policy-here"
        return Path(abspath).read_bytes().replace(words, none.ljust(len(words)))[start:end]


def serve(book, port, jobs=None):
    """Serve the site until stopped: a saved file starts a build, and the end of a good build reloads the page.

    Args:
      book: the `bookbinder.read.book.Book`.
      port: of localhost.
      jobs: chapters to run at once, as for `python -m bookbinder build --jobs`.

    Returns:
      The exit status: 1 if the port is taken, or if the first build fails and there is no older site.
    """
    html = book.build_folder / "html"
    command = [sys.executable, "-m", "bookbinder", "--root", str(book.root), "build"]
    command += ["--jobs", str(jobs)] if jobs else []
    try:
        socket.create_server(("127.0.0.1", port)).close()  # fail now rather than after a first build of minutes
    except OSError as error:
        print(
            f"cannot serve on port {port}: {error.strerror}; choose another: make serve PORT=8001",
            file=sys.stderr,
        )
        return 1

    def stop(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    builds = [subprocess.Popen(command)]
    try:
        builds[0].wait()
    finally:
        builds[0].terminate()  # no effect if it has ended; otherwise it cleans up first
        builds[0].wait()
    if not html.exists():
        return 1  # there is no good site yet, and the build has said why

    saved, changed, stopping = Watcher(), threading.Event(), threading.Event()
    for name in SOURCES:
        saved.watch(str(book.root / name), changed.set)

    def keep_building():
        while not stopping.wait(0.3):
            saved.examine()
            if changed.is_set():
                changed.clear()
                builds[:] = [subprocess.Popen(command)]  # it prints what is wrong, and leaves the last good site
                builds[0].wait()

    threading.Thread(target=keep_building, daemon=True).start()
    server = Server()
    server.SFH = _Preview
    server.watch(str(book.build_folder / "state.json"))  # a build has ended well: reload
    server.watcher.examine()  # it takes what it sees first for changed
    LiveReloadHandler.DEFAULT_RELOAD_TIME = 0  # even if the last one ended a moment ago

    try:
        server.serve(root=str(html), port=port, host="127.0.0.1")
    finally:
        stopping.set()
        for build in builds:
            build.terminate()
            build.wait()
    return 0
