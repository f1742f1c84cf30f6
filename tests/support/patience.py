"""Wait for a condition instead of a fixed time."""

import time

#: Far longer than anything takes on a slow, shared machine; a test that waits this long has failed.
PATIENCE = 40.0


def until(condition, what="the condition", seconds=PATIENCE):
    """Return the first true value of the condition; fail if there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.01)
