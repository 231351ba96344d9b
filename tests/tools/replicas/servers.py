"""Servers on localhost, in the place of others: of a built site, and of what tests ask on the
internet.

A site is served as static hosts on the web do it, for the tests in a browser: compressed with gzip,
with the cache lifetime of GitHub Pages, and with the site's own 404.html for what is missing.
(`make serve` is for writing: it adds a script to each page, and compresses nothing.)
"""

import asyncio
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, ErrorHandler, StaticFileHandler


@contextmanager
def serving(folder, below="/"):
    """Serve a folder until the block ends; yields the address, such as `http://127.0.0.1:43210/`.

    Args:
      folder: the site, with index.html and 404.html in it.
      below: the path of the site on the host, with "/" at both ends, such as "/book/". GitHub Pages
        serves a project's site below its name.
    """
    sockets = bind_sockets(0, "127.0.0.1")
    routes = [(f"{below}(.*)", _File, {"path": str(folder), "default_filename": "index.html"})]
    site = Application(
        routes,
        default_handler_class=_Missing,
        default_handler_args={"status_code": 404},
        compress_response=True,
        log_function=lambda handler: None,  # the client sees the answer
        missing=Path(folder, "404.html"),
    )
    loop, end = asyncio.new_event_loop(), asyncio.Event()

    async def serve():
        server = HTTPServer(site)
        server.add_sockets(sockets)
        await end.wait()
        server.stop()
        await server.close_all_connections()  # a browser may keep its own open

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}{below}"
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


class _Missing(ErrorHandler):
    def write_error(self, status, **why):
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(self.settings["missing"].read_bytes())


class _File(StaticFileHandler):
    write_error = _Missing.write_error

    def get_content_type(self):
        kind = super().get_content_type()
        return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind

    def set_extra_headers(self, path):
        self.set_header("Cache-Control", "max-age=600")


@contextmanager
def answering(answer):
    """Yields the address of a server on localhost, without a slash; `answer(path, body)` gives the
    bytes it sends.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            data = answer(self.path, body)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
