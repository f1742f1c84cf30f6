"""What has to be renewed in a forked child.

Layer: disk.
A child has the memory of its parent but only one of its threads. A lock that another thread held at the fork stays
taken in the child, and what that lock guards may be half changed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

_renewals: set[weakref.WeakMethod[Callable[[], None]]] = set()


def renew_in_child(method: Callable[[], None]) -> None:
    """Call a bound method in every forked child, for as long as its object lives."""
    _renewals.add(weakref.WeakMethod(method, _renewals.discard))


def _renew_all() -> None:
    for reference in list(_renewals):
        method = reference()
        if method is not None:
            method()


os.register_at_fork(after_in_child=_renew_all)
