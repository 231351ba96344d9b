"""The server of book/serving_system.md, with a step in NumPy whose tokens depend on everything in a
slot's cache.
"""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from threading import Semaphore

import numpy as np
import pytest

from shardlab.book.engine import Batch, Engine, Request
from shardlab.book.server import SYMBOLS, Server

pytestmark = pytest.mark.reads("src/shardlab")

S = 64
PATIENCE = 60  # seconds, after which a test fails
OPEN = []  # connections of this test


def step(cache, tokens, at, last):
    """The next token is the sum of all tokens so far, each times its position + 1, modulo 13."""
    cache = cache.copy()
    for slot in range(len(tokens)):
        inside = at[slot] < S
        cache[slot, at[slot][inside]] = tokens[slot][inside]
    ends = at[np.arange(len(at)), last]
    weights = np.arange(1, S + 1)
    seen = np.arange(S) <= ends[:, None]
    return (cache * weights * seen).sum(1) % 13, cache


def alone(prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(t * n for n, t in enumerate(tokens, 1)) % 13)
    return tokens[len(prompt) :]


class Gated(Batch):
    """Takes a step only when the test permits it, and notes those that it is asked for."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.permits, self.asked = Semaphore(0), Semaphore(0)

    def step(self):
        self.asked.release()
        assert self.permits.acquire(timeout=PATIENCE)
        return super().step()


def batch(kind=Batch, slots=3, step=step):
    return kind(step, np.zeros((slots, S), int), slots=slots, positions=S, chunk=4)


@pytest.fixture
def start():
    """Starts a server; (engine, not started yet, and its port). Whatever a test does, no thread is
    left.
    """
    servers, before = [], set(threading.enumerate())

    def started(engine):
        servers.append(Server(engine))
        return servers[-1].port

    yield started
    while OPEN:
        OPEN.pop().close()
    for server in servers:
        if isinstance(server.engine.batch, Gated):
            server.engine.batch.permits.release(1000)
        server.close()
    assert set(threading.enumerate()) <= before


def post(port, body, read=True):
    OPEN.append(connection := HTTPConnection("127.0.0.1", port, timeout=PATIENCE))
    connection.request(
        "POST", "/completions", body if isinstance(body, bytes) else json.dumps(body)
    )
    return connection.getresponse() if read else connection


def asked(prompt, count):
    return {"prompt": "".join(SYMBOLS[t] for t in prompt), "max_tokens": count}


def events(response):
    return [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: ")]


def answer(response):
    *tokens, end = events(response)
    assert end == "[DONE]"
    return [SYMBOLS.index(json.loads(token)["text"]) for token in tokens]


def until(engine, condition):
    with engine.changed:
        assert engine.changed.wait_for(condition, timeout=PATIENCE)


def draw(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        (random.integers(0, 13, random.integers(1, 12)).tolist(), int(random.integers(1, 30)))
        for _ in range(count)
    ]


def test_many_clients_get_what_each_gets_alone(start):
    engine = Engine(batch(), most_waiting=40)
    port = start(engine)
    engine.start()
    wanted = draw(40)
    with ThreadPoolExecutor(13) as clients:
        answers = list(clients.map(lambda one: answer(post(port, asked(*one))), wanted))
    assert answers == [alone(*one) for one in wanted]
    assert len(engine.batch.sizes) < sum(count for _, count in wanted)


def test_a_cancelled_request_frees_its_slot_and_disturbs_no_other(start):
    engine = Engine(batch(Gated), most_waiting=4)
    port = start(engine)
    # of lengths that divide no other
    wanted = [([4, 10, 9], 40), ([1, 2], 9), ([3] * 9, 5), ([7, 7], 6)]
    left = []
    for one in wanted:
        left.append(post(port, asked(*one), read=False))
        until(engine, lambda: len(engine.waiting) == len(left))
    jobs = list(engine.waiting)
    engine.start()
    engine.batch.permits.release(3)
    response = left[0].getresponse()
    seen = [response.readline() for _ in range(5)][::2]  # an empty line ends an event
    assert [SYMBOLS.index(json.loads(line[6:])["text"]) for line in seen] == alone(*wanted[0])[:3]
    for _ in range(4):  # its third token was read, maybe before the engine is done with that step
        assert engine.batch.asked.acquire(timeout=PATIENCE)
    response.close()
    left[0].close()
    until(engine, lambda: jobs[0].cancelled)
    assert jobs[3] in engine.waiting
    engine.batch.permits.release(1000)
    assert [answer(one.getresponse()) for one in left[1:]] == [alone(*one) for one in wanted[1:]]
    until(engine, lambda: not engine.batch.slots)
    assert len(jobs[0].answer) == 4  # a step was on its way
    assert engine.generated == 4 + 9 + 5 + 6


def test_a_client_that_leaves_the_queue_makes_room(start):
    engine = Engine(batch(), most_waiting=1)
    port = start(engine)
    first = post(port, asked([1], 3), read=False)
    until(engine, lambda: engine.waiting)
    refused = post(port, asked([2], 3))
    assert refused.status == 503 and int(refused.headers["Retry-After"]) >= 1
    first.close()
    until(engine, lambda: not engine.waiting)
    second = post(port, asked([2], 3), read=False)
    until(engine, lambda: engine.waiting)
    engine.start()
    assert answer(second.getresponse()) == alone([2], 3)


@pytest.mark.parametrize(
    "body, words",
    [
        (b"", "JSON"),
        (b"[1]", "JSON"),
        (b"[" * 4000, "JSON"),
        (b"\xff", "JSON"),
        ({"max_tokens": 3}, '"prompt" is None'),
        ({"prompt": "", "max_tokens": 3}, "\"prompt\" is ''"),
        ({"prompt": "2*3=", "max_tokens": 3}, "2\\*3="),
        ({"prompt": "1" * 64, "max_tokens": 3}, "1 to 63"),
        ({"prompt": "4+9="}, '"max_tokens" is None'),
        ({"prompt": "4+9=", "max_tokens": 0}, '"max_tokens" is 0'),
        ({"prompt": "4+9=", "max_tokens": 61}, '"max_tokens" is 61; .* 1 to 60'),
        ({"prompt": "4+9=", "max_tokens": True}, '"max_tokens" is True'),
        ({"prompt": "4+9=", "max_tokens": float("nan")}, '"max_tokens" is nan'),
        ({"prompt": "4+9=", "max_tokens": 2.0}, '"max_tokens" is 2.0'),
    ],
)
def test_bad_input_is_refused_with_the_field_and_its_value(start, body, words):
    response = post(start(Engine(batch(), most_waiting=1)), body)
    said = json.loads(response.read())["error"]
    assert response.status == 400
    assert re.search(words, said), said


def test_health_and_metrics(start):
    engine = Engine(batch(), most_waiting=2)
    port = start(engine)

    def get(path):
        OPEN.append(connection := HTTPConnection("127.0.0.1", port, timeout=PATIENCE))
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()

    assert get("/health")[0] == 503
    waiting = post(port, asked([5], 7), read=False)
    until(engine, lambda: engine.waiting)
    assert get("/metrics")[1].splitlines()[0] == "requests_waiting 1"
    engine.start()
    assert answer(waiting.getresponse()) == alone([5], 7)
    until(engine, lambda: not engine.batch.slots)
    assert get("/health")[0] == 200
    assert get("/metrics")[1].split()[1::2] == ["0", "0", "7", "7"]


def test_an_engine_that_fails_ends_its_streams_and_takes_no_more(start, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    calls = []

    def broken(*args):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("a device is lost")
        return step(*args)

    engine = Engine(batch(step=broken), most_waiting=4)
    port = start(engine)
    engine.start()
    assert events(post(port, asked([1], 9))) == [
        json.dumps({"text": SYMBOLS[token]}) for token in alone([1], 9)[:2]
    ]  # and no [DONE]
    engine.join(PATIENCE)
    assert post(port, asked([1], 9)).status == 503
    cancelled = Request([1], 2)
    engine.cancel(cancelled)  # of one that the engine has never seen
    assert cancelled.cancelled


def test_a_server_closes_under_load(start):
    engine = Engine(batch(Gated), most_waiting=9)
    server = Server(engine)
    left = [post(server.port, asked([n], 20), read=False) for n in range(6)]
    until(engine, lambda: len(engine.waiting) == 6)
    engine.start()
    engine.batch.permits.release(2)
    response = left[0].getresponse()
    assert response.readline().startswith(b"data: ")
    engine.batch.permits.release(1000)
    server.close()
    assert not engine.is_alive()
    response.close()
    while OPEN:
        OPEN.pop().close()
