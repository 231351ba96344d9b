"""Serve a built site on localhost as static hosts on the web do, for browser tests and `make lighthouse`.

It compresses with gzip, sends the content types and the cache lifetime of GitHub Pages, and answers with the site's own
404.html for what is missing. (`make serve` is for writing: it adds a script to each page, and compresses nothing.)
"""

import gzip
import threading
from contextlib import contextmanager
from functools import cache, partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

TEXT = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".md": "text/markdown",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".xml": "application/xml",
}
BINARY = {".ico": "image/x-icon", ".png": "image/png", ".ttf": "font/ttf", ".woff2": "font/woff2"}
LIFETIME = "max-age=600"


@contextmanager
def serving(folder, below="/"):
    """Serve a folder until the block ends; yields the address, such as `http://127.0.0.1:43210/`.

    Args:
      folder: the site, with index.html in it.
      below: the path of the site on the host, with "/" at both ends, such as "/book/". GitHub Pages serves a
        project's site below its name.
    """
    handler = partial(_Handler, directory=str(folder), below=below)
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{below}"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    block_on_close = False  # a browser may keep its connections open

    def handle_error(self, request, client_address):
        """Report nothing: a browser may disconnect in the middle of an answer."""


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds without a request until a connection is closed

    def __init__(self, *args, below, **kwargs):
        self.below = below
        super().__init__(*args, **kwargs)

    def do_GET(self):
        self._answer(send=True)

    def do_HEAD(self):
        self._answer(send=False)

    def log_message(self, format, *args):
        """Log nothing: the client sees the answer."""

    def _answer(self, send):
        path = urlsplit(self.path).path
        inside = path.startswith(self.below)
        file = Path(self.translate_path("/" + path.removeprefix(self.below) if inside else "/404.html"))
        if file.is_dir():
            if not path.endswith("/"):
                return self._send(HTTPStatus.MOVED_PERMANENTLY, [("Location", f"{path}/")], b"", send)
            file /= "index.html"
        status = HTTPStatus.OK
        if not inside or not file.is_file():
            status, file = HTTPStatus.NOT_FOUND, Path(self.directory) / "404.html"
            if not file.is_file():
                return self._send(status, [("Content-Type", "text/plain; charset=utf-8")], b"not found\n", send)
        text = TEXT.get(file.suffix)
        kind = f"{text}; charset=utf-8" if text else BINARY.get(file.suffix, "application/octet-stream")
        headers = [("Content-Type", kind), ("Cache-Control", LIFETIME)]
        small = text and "gzip" in self.headers.get("Accept-Encoding", "")
        if text:
            headers.append(("Vary", "Accept-Encoding"))
        if small:
            headers.append(("Content-Encoding", "gzip"))
        return self._send(status, headers, _content(file, file.stat().st_mtime_ns, bool(small)), send)

    def _send(self, status, headers, content, send):
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(content)))):
            self.send_header(name, value)
        self.end_headers()
        if send:
            self.wfile.write(content)


@cache
def _content(file, changed, small):
    content = file.read_bytes()
    return gzip.compress(content, mtime=0) if small else content
