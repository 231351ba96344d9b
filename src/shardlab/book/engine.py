"""Requests in the slots of one batch, which takes its steps with fixed shapes: continuous batching.

batch = Batch(step, cache, slots=8, positions=64)
batch.join([Request([4, 10, 9, 11], 5)])
while batch.slots:
    batch.step()
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Full
from threading import Condition, Thread
from typing import Any

import numpy as np


@dataclass(eq=False)
class Request:
    """The tokens of a prompt, and how many more to generate."""

    prompt: list[int]
    count: int
    send: Callable = lambda token: None  # gets each new token
    answer: list[int] = field(default_factory=list)
    cached: int = 0  # tokens whose keys and values are in the cache
    cancelled: bool = False

    def next_tokens(self, chunk: int) -> list[int]:
        """What the next step computes: at most `chunk` tokens."""
        tokens = [*self.prompt, *self.answer]
        return tokens[self.cached : self.cached + chunk]


class Batch:
    """Requests in slots, which take their steps together.

    >>> from shardlab.book.engine import Batch, Request
    >>> def step(cache, tokens, at, last):  # the token after n is n + 1
    ...     return tokens[range(len(tokens)), last] + 1, cache
    >>> batch, request = Batch(step, None, slots=8, positions=64), Request([4, 5], 3)
    >>> batch.join([request])
    >>> while batch.slots:
    ...     _ = batch.step()
    >>> request.answer
    [6, 7, 8]

    Args:
      step: (cache, tokens i32[slots, T], positions i32[slots, T], last i32[slots]) -> (the token
        after the last one of each slot, cache), for T = chunk and T = 1. A position beyond the
        cache belongs to no request.
      cache: what `step` takes first.
      slots, positions: of the cache.
      chunk: at most so many tokens of a prompt in a step.
    """

    def __init__(self, step: Callable, cache: Any, slots: int, positions: int, chunk: int = 18):
        """All slots are free."""
        self._step, self._cache, self._chunk = step, cache, chunk
        self.size, self.positions = slots, positions
        self.slots: dict[int, Request] = {}
        self.sizes: list[int] = []  # tokens in each step

    def join(self, waiting: list[Request]) -> None:
        """Give free slots to the requests that wait, in their order."""
        for slot in range(self.size):
            if waiting and slot not in self.slots:
                self.slots[slot] = waiting.pop(0)

    def step(self) -> list[Request]:
        """Take one step; returns the requests that got a token."""
        rows = {slot: r.next_tokens(self._chunk) for slot, r in self.slots.items()}
        self.sizes.append(sum(map(len, rows.values())))
        width = self._chunk if self.sizes[-1] > len(rows) else 1  # two shapes
        tokens = np.zeros((self.size, width), int)
        at, last = np.full_like(tokens, self.positions), np.zeros(self.size, int)
        for slot, row in rows.items():
            first = self.slots[slot].cached
            tokens[slot, : len(row)], last[slot] = row, len(row) - 1
            at[slot, : len(row)] = first + np.arange(len(row))
        tokens_after, self._cache = self._step(self._cache, tokens, at, last)
        tokens_after = np.asarray(tokens_after)
        advanced = []
        for slot, row in rows.items():
            request = self.slots[slot]
            request.cached += len(row)
            if request.cached == len(request.prompt) + len(request.answer):
                request.answer.append(int(tokens_after[slot]))
                advanced.append(request)
            if len(request.answer) == request.count:
                del self.slots[slot]
        return advanced


class Engine(Thread):
    """Runs a batch, step after step, while there is work."""

    def __init__(self, batch: Batch, most_waiting: int):
        """`most_waiting` requests fit into the queue, beside those in slots."""
        super().__init__(name="engine")
        self.batch, self.most_waiting, self.generated = batch, most_waiting, 0
        self.waiting: list[Request] = []
        self.closing, self.changed = False, Condition()

    def submit(self, request: Request) -> None:
        """Queue a request; raises `queue.Full`."""
        with self.changed:
            if self.closing or len(self.waiting) >= self.most_waiting:
                raise Full
            self.waiting.append(request)
            self.changed.notify_all()

    def cancel(self, request: Request) -> None:
        """Forget a request; a slot is free again before the next step."""
        with self.changed:
            request.cancelled = True
            self.waiting = [r for r in self.waiting if r is not request]
            self.changed.notify_all()
        request.send(None)

    def run(self) -> None:
        """Take steps until `close`; at the end, or after an error, end every stream."""
        try:
            while self._admit():
                for request in self.batch.step() if self.batch.slots else ():
                    self.generated += 1
                    request.send(request.answer[-1])
        finally:
            with self.changed:
                self.closing, left = True, [*self.waiting, *self.batch.slots.values()]
                self.waiting = []
            for request in left:
                request.send(None)

    def _admit(self):
        """Wait for work, drop what was cancelled, and fill free slots."""
        with self.changed:
            self.changed.wait_for(lambda: self.closing or self.waiting or self.batch.slots)
            for slot, request in [*self.batch.slots.items()]:
                if request.cancelled:
                    del self.batch.slots[slot]
            self.batch.join(self.waiting)
            self.changed.notify_all()
            return not self.closing

    def close(self) -> None:
        """Stop after the current step, and wait for it."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        if self.is_alive():
            self.join()
