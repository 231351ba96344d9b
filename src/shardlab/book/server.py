"""HTTP before an engine: answers are streamed token by token, overload and bad requests are
refused.

server = Server(engine)  # http://127.0.0.1:{server.port}/completions
engine.start()
server.close()
"""

import asyncio
import json
from concurrent.futures import Future
from functools import partial
from queue import Full
from threading import Thread

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from shardlab.book.engine import Engine, Request
from shardlab.networks.transformer import read

SYMBOLS = read(range(13))


def parse(body: bytes, positions: int) -> tuple[list[int], int]:
    """The prompt's tokens, and how many to generate; ValueError says which field is wrong."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise ValueError('the body is no JSON object; send {"prompt": "4+9=", "max_tokens": 3}')
    prompt, count = asked.get("prompt"), asked.get("max_tokens")
    if not isinstance(prompt, str) or not 0 < len(prompt) < positions or set(prompt) - set(SYMBOLS):
        raise ValueError(
            f'"prompt" is {prompt!r}; send 1 to {positions - 1} of the symbols {SYMBOLS!r}'
        )
    room = positions - len(prompt)
    if type(count) is not int or not 1 <= count <= room:
        raise ValueError(
            f'"max_tokens" is {count!r}; send an integer from 1 to {room}, the room beside '
            "this prompt"
        )
    return [SYMBOLS.index(symbol) for symbol in prompt], count


class Handler(RequestHandler):
    """A handler that knows the engine, and answers errors in JSON."""

    def initialize(self, engine: Engine) -> None:
        """Called by Tornado for each request."""
        self.engine, self.job = engine, None

    def refuse(self, status: int, message: str) -> None:
        """Answer with an error."""
        self.set_status(status)
        self.finish({"error": message})


class Completions(Handler):
    """POST /completions streams an answer, one event for each token."""

    async def post(self) -> None:
        """Queue the request, and send what comes back."""
        stream, loop = asyncio.Queue(), asyncio.get_running_loop()
        send = partial(loop.call_soon_threadsafe, stream.put_nowait)
        try:
            self.job = Request(*parse(self.request.body, self.engine.batch.positions), send)
            self.engine.submit(self.job)
        except ValueError as error:
            return self.refuse(400, str(error))
        except Full:
            self.set_header("Retry-After", "1")
            return self.refuse(503, "the queue is full; try again later")
        self.set_header("Content-Type", "text/event-stream")
        try:
            for _ in range(self.job.count):
                if (token := await stream.get()) is None:
                    return  # without [DONE]: the answer is not complete
                self.write(f"data: {json.dumps({'text': read([token])})}\n\n")
                await self.flush()
            self.write("data: [DONE]\n\n")
        except StreamClosedError:
            pass  # the client has left, see below

    def on_connection_close(self) -> None:
        """Called by Tornado when the client leaves."""
        if self.job:
            self.engine.cancel(self.job)


class Health(Handler):
    """GET /health: whether the engine runs."""

    def get(self) -> None:
        """200 or 503, which load balancers read."""
        if self.engine.closing or not self.engine.is_alive():
            return self.refuse(503, "the engine does not run")
        self.finish({"status": "ok"})


class Metrics(Handler):
    """GET /metrics, in the text format of Prometheus."""

    def get(self) -> None:
        """Gauges and counters, one a line."""
        engine, sizes = self.engine, self.engine.batch.sizes
        self.set_header("Content-Type", "text/plain; version=0.0.4")
        self.write(
            f"requests_waiting {len(engine.waiting)}\nslots_in_use {len(engine.batch.slots)}\n"
        )
        self.write(f"steps_total {len(sizes)}\ntokens_generated_total {engine.generated}\n")


class Server:
    """HTTP on 127.0.0.1 at a free port, in a thread of its own, before an engine."""

    def __init__(self, engine: Engine):
        """Listen at once; the engine starts when its owner wants."""
        self.engine, self._ready = engine, Future()
        self._thread = Thread(name="http", target=lambda: asyncio.run(self._listen()))
        self._thread.start()
        self.port = self._ready.result(timeout=60)

    async def _listen(self):
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        handlers = {"/completions": Completions, "/health": Health, "/metrics": Metrics}
        routes = [(path, handler, {"engine": self.engine}) for path, handler in handlers.items()]
        http = HTTPServer(
            Application(routes, log_function=lambda handler: None), max_body_size=4096
        )
        sockets = bind_sockets(0, "127.0.0.1")
        http.add_sockets(sockets)
        self._ready.set_result(sockets[0].getsockname()[1])
        await self._stopped.wait()
        http.stop()
        await http.close_all_connections()

    def close(self) -> None:
        """Stop the engine, end every stream, and wait for both threads."""
        self.engine.close()
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
