"""Waiting for a condition instead of for a time."""

import time

#: Far longer than anything takes on a slow machine with neighbours; a test that needs it all has failed.
PATIENCE = 40.0


def until(condition, what="the condition", seconds=PATIENCE):
    """Return what the condition returns once that is true; fail when it never becomes true."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.01)
