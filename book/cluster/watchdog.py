"""A watchdog for training: it says where a step hangs, and ends the job."""

import faulthandler
import os
import sys
import threading
import time
import jax


class Watchdog:
    """Ends a process in which two calls of step() are too far apart."""

    def __init__(self, limit, first=600, grace=5):  # noqa: D107
        rank, self.limit, self.next = jax.process_index(), limit, first
        self.who = f"process {rank} on {os.uname().nodename}"
        self.grace = grace if rank else 2 * grace  # its end is the end of all
        self.now = time.monotonic() + first, first, "the start"
        caller = sys._getframe(1).f_code.co_filename, threading.get_ident()
        threading.Thread(target=self._watch, args=caller, daemon=True).start()

    def step(self, name, limit=None):
        """Say what begins, such as "step 17", and how long it may take."""
        seconds, self.next = limit or self.next, self.limit
        self.now = time.monotonic() + seconds, seconds, name

    def _watch(self, path, thread):
        while (now := self.now)[0] > time.monotonic():
            faulthandler.dump_traceback_later(now[1] + 2, exit=True)
            time.sleep(0.5)  # longer only if C code holds the GIL
        frame = sys._current_frames().get(thread)
        while frame and frame.f_code.co_filename != path:
            frame = frame.f_back
        where = f"line {frame.f_lineno}" if frame else "the end"
        line = f"{now[2]} has not ended within {now[1]:g} s; it is at {where}"
        print(f"{self.who}: {line} of {path.split('/')[-1]}", file=sys.stderr)
        faulthandler.cancel_dump_traceback_later()
        faulthandler.dump_traceback()
        time.sleep(self.grace)
        os._exit(124)
