"""Reset a graph of objects to an earlier moment, in place and fast, for runs that all begin the same.

The contents of everything that the roots reach through attributes, slots and containers are saved, and restored on
request. Objects of other packages, functions, modules and locks are not changed.
"""

import functools

OURS = ("dirqueue", "lab", "dirq")
PLAIN = (str, bytes, int, float, bool, type(None), type)


class Moment:
    """The saved contents of everything that the roots reach."""

    def __init__(self, roots, stop=()):
        self._stop = stop
        self._dicts, self._lists, self._sets, self._slots = [], [], [], []
        seen = set()
        waiting = list(roots)
        while waiting:
            thing = waiting.pop()
            if isinstance(thing, PLAIN) or id(thing) in seen or isinstance(thing, stop):
                continue
            seen.add(id(thing))
            waiting += self._remember(thing)

    def _remember(self, thing):
        """Save one object; return what it refers to."""
        if isinstance(thing, dict):
            self._dicts.append((thing, dict(thing)))
            return [*thing.values()]
        if isinstance(thing, list):
            self._lists.append((thing, list(thing)))
            return list(thing)
        if isinstance(thing, set):
            self._sets.append((thing, set(thing)))
            return list(thing)
        if isinstance(thing, (tuple, frozenset)):
            return list(thing)
        if type(thing).__module__.partition(".")[0] not in OURS:
            return []
        inner = []
        for name in _slots(type(thing)):
            if hasattr(thing, name):
                self._slots.append((thing, name, getattr(thing, name)))
                inner.append(getattr(thing, name))
        if hasattr(thing, "__dict__"):
            self._dicts.append((thing.__dict__, dict(thing.__dict__)))
            inner += thing.__dict__.values()
        return inner

    def back(self):
        """Restore the saved contents."""
        for thing, was in self._dicts:
            thing.clear()
            thing.update(was)
        for thing, was in self._lists:
            thing[:] = was
        for thing, was in self._sets:
            thing.clear()
            thing.update(was)
        for thing, name, was in self._slots:
            setattr(thing, name, was)


@functools.cache
def _slots(kind):
    return [
        name
        for base in kind.__mro__
        for name in getattr(base, "__slots__", ())
        if name not in {"__dict__", "__weakref__"}
    ]


def picture(thing, stop=(), seen=None):
    """Return the contents of everything that an object reaches, as a hashable value."""
    if isinstance(thing, PLAIN):
        return thing
    seen = {} if seen is None else seen
    if isinstance(thing, (tuple, frozenset)):
        return tuple(picture(each, stop, seen) for each in thing)
    if id(thing) in seen:
        return seen[id(thing)]
    seen[id(thing)] = f"<{len(seen)}>"
    if isinstance(thing, stop):
        return None
    if isinstance(thing, dict):
        return tuple((key, picture(value, stop, seen)) for key, value in thing.items())
    if isinstance(thing, list):
        return ("list", *(picture(each, stop, seen) for each in thing))
    if isinstance(thing, set):
        return frozenset(picture(each, stop, seen) for each in thing)
    if type(thing).__module__.partition(".")[0] not in OURS:
        return getattr(thing, "__qualname__", None)
    slots = tuple(
        picture(getattr(thing, name), stop, seen) for name in _slots(type(thing)) if hasattr(thing, name)
    )
    return (type(thing).__name__, slots, picture(getattr(thing, "__dict__", None), stop, seen))
