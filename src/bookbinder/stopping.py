"""Stop in good order: signals are noted, and who works checks for them, cleans up and raises
`Stopped`.
"""

import signal
import threading
from contextlib import contextmanager


class Stopped(BaseException):
    """The builder was told to stop, by Ctrl-C or a signal; like KeyboardInterrupt, no ordinary
    exception.
    """


class Stop:
    """Whether the builder was told to stop: the name of the signal, or None."""

    def __init__(self):
        """Not yet."""
        self.signal = None

    def check(self):
        """Raise `Stopped` if it was."""
        if self.signal:
            raise Stopped(self.signal)


@contextmanager
def stoppable():
    """In this context Ctrl-C, SIGTERM and SIGHUP are only noted in a `Stop`, and interrupt nothing.

    Code that runs in it calls `Stop.check` often.
    """
    stop = Stop()

    def note(number, frame):
        stop.signal = stop.signal or signal.Signals(number).name

    main = threading.current_thread() is threading.main_thread()
    watched = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] if main else []
    before = {number: signal.signal(number, note) for number in watched}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
