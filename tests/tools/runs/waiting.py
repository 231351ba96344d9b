"""How long tests wait for what must happen: generously, because they also run on machines that are
busy.

A test that waits for too long fails; no test fails because something took its time.
"""

import time

PATIENCE = 300  # seconds: for programs, jobs and builds
SOON = 60  # seconds: for what takes a moment on a quiet machine, such as a click


def wait_until(true, said=lambda: "", seconds=PATIENCE):
    """Wait until a function returns what counts as true, and return that; fail with what `said`
    returns.

    `wait_until(file.exists)` is True as soon as the file is there.

    Args:
      true: a function without arguments, called several times a second.
      said: a function whose result explains a failure, such as a log.
      seconds: how long to wait.

    Raises:
      AssertionError: it did not become true in this time.
    """
    end = time.monotonic() + seconds
    while not (result := true()):
        assert time.monotonic() < end, f"this did not happen within {seconds} s\n{said()}"
        time.sleep(0.05)
    return result
