"""A server of our own in the place of one on the internet."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def answering(answer):
    """Yields the address of a server on localhost, without a slash; `answer(path, body)` gives the bytes it sends."""

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
