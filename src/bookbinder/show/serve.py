"""Serve the site on localhost while someone writes: build again and reload the page on every
save.
"""

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from livereload.handlers import LiveReloadHandler, LiveReloadJSHandler, StaticFileHandler
from livereload.server import LiveScriptInjector, Server
from livereload.watcher import Watcher
from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError
from tornado.websocket import WebSocketHandler

from bookbinder.page.pages import POLICY
from bookbinder.read.book import SOURCES
from bookbinder.show.site import EARLY, is_complete

HERE = ("localhost", "127.0.0.1", "[::1]")  # what a browser on this machine calls it


class _ForThisMachine:
    """Answers only what asks for this machine by its name: no page elsewhere whose name was led
    here to read drafts.
    """

    def prepare(self):
        if self.request.host_name not in HERE:
            raise HTTPError(403, f"served to {', '.join(HERE)} alone")


class _Preview(_ForThisMachine, StaticFileHandler):
    """Serves pages without their security policy, which forbids the script that reloads them."""

    def set_extra_headers(self, path):
        # the index of the search is a script
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")

    def parse_url_path(self, url_path):
        if "\0" in url_path:
            raise HTTPError(404)
        return super().parse_url_path(url_path)

    def get_content_size(self):
        """Of what is sent: a build may replace the file before it is read a second time."""
        content = self.get_content(self.absolute_path)
        self.get_content = lambda abspath, start=None, end=None: content[start:end]
        return len(content)

    @classmethod
    def get_content(cls, abspath, start=None, end=None):
        words, none = f'http-equiv="{POLICY}"'.encode(), b"data-no-policy-here"
        return Path(abspath).read_bytes().replace(words, none.ljust(len(words)))[start:end]


class _Reload(_ForThisMachine, LiveReloadHandler):
    """Tells the pages that it serves, and no others, when to load themselves again."""

    check_origin = WebSocketHandler.check_origin


class _ReloadScript(_ForThisMachine, LiveReloadJSHandler):
    pass


class _Injector(LiveScriptInjector):
    script = b'<script src="/livereload.js"></script>'


class _Server(Server):
    """livereload's, at a port that is already taken for it."""

    def __init__(self, listening):
        super().__init__()
        self.SFH, self._listening = _Preview, listening

    def application(self, port, host, liveport=None, debug=None, live_css=True):
        LiveReloadHandler.watcher, LiveReloadHandler.live_css = self.watcher, live_css
        handlers = [
            (r"/livereload", _Reload),
            (r"/livereload.js", _ReloadScript),
            *self.get_web_handlers(""),
        ]
        HTTPServer(Application(handlers, transforms=[_Injector])).add_socket(self._listening)


def serve(book, port, jobs=None):
    """Serve the site until stopped: a saved file starts a build, and the end of a good build
    reloads the page.

    Args:
      book: the `bookbinder.read.book.Book`.
      port: of localhost.
      jobs: chapters to run at once, as for `python -m bookbinder build --jobs`.

    Returns:
      The exit status: 1 if the port is taken, or if the first build fails and there is no older
      site.
    """
    try:
        # Now rather than after a first build of minutes, in which somebody else could take it.
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        print(
            f"cannot serve on port {port}: {error.strerror}; choose another: make serve PORT=8001",
            file=sys.stderr,
        )
        return 1
    with listening:
        listening.setblocking(False)
        return _serve(book, listening, jobs)


def _serve(book, listening, jobs):
    html = book.build_folder / "html"
    command = [sys.executable, "-m", "bookbinder", "--root", str(book.root), "build"]
    command += ["--jobs", str(jobs)] if jobs else []

    def stop(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    builds = [subprocess.Popen(command)]
    try:
        while builds[0].poll() is None and (is_complete(book) or not html.exists()):
            # until the first build has ended, or pages are there of the chapters that have run
            time.sleep(0.2)
    except BaseException:
        builds[0].terminate()  # it cleans up first
        builds[0].wait()
        raise
    if not html.exists():
        return 1  # there is no good site yet, and the build has said why

    saved, changed, stopping = Watcher(), threading.Event(), threading.Event()
    for name in SOURCES:
        saved.watch(str(book.root / name), changed.set)

    def keep_building():
        builds[0].wait()
        while not stopping.wait(0.3):
            saved.examine()
            if changed.is_set():
                changed.clear()
                # it prints what is wrong, and leaves the last good site
                builds[:] = [subprocess.Popen(command)]
                builds[0].wait()

    threading.Thread(target=keep_building, daemon=True).start()
    server = _Server(listening)
    for name in ("state.json", EARLY):  # one of which changes with the pages: reload
        server.watch(str(book.build_folder / name))
    server.watcher.examine()  # it takes what it sees first for changed
    LiveReloadHandler.DEFAULT_RELOAD_TIME = 0  # even if the last one ended a moment ago

    try:
        server.serve(root=str(html), port=listening.getsockname()[1], host="127.0.0.1")
    finally:
        stopping.set()
        for build in builds:
            build.terminate()
            build.wait()
    return 0
