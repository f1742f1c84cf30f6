"""How one delivery ended: the handler's return or exception, as a verb of the lease.

Layer: conveniences.  Pure values: they cross the socket between a worker and its child processes.
"""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Awaitable, Callable
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from dirqueue.disk.identity import PROCESS
from dirqueue.errors import SettingsError
from dirqueue.lease import Outcome, verb_for
from dirqueue.message import Put
from dirqueue.worker.forkserver import leave


class Cancelled(BaseException):
    """Raised inside a running handler: its lease was lost, its time is over, or the worker must go now.

    Not an Exception, so that a handler's `except Exception` lets it pass. A handler that swallows it gains nothing:
    the message is not committed.
    """


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def check_handler(handler: object, name: str = "handler") -> None:
    """Refuse what cannot be called, and what would return before it has done any work."""
    if not callable(handler):
        raise SettingsError(f"{name} must be callable, not {handler!r:.60}")
    for each in _called(handler):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise SettingsError(
                f"{name} {handler!r:.60} is a generator function, and nothing here would iterate over it: "
                "write a function without yield"
            )


def check_hook(hook: object, name: str) -> None:
    """Refuse what a handler may not be either, and what is async."""
    check_handler(hook, name)
    if is_async(hook):
        raise SettingsError(
            f"{name} {hook!r:.60} is async, and nothing here would await it: write a plain function"
        )


def is_async(handler: object) -> bool:
    """Return whether calling it gives something to be awaited."""
    return any(inspect.iscoroutinefunction(each) for each in _called(handler))


def _called(handler: object) -> tuple[object, ...]:
    """Return what may be run by a call: the function inside partials, or the method of an object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler, type(handler).__call__


def check_result(result: object) -> None:
    """Raise TypeError for a result that stands for work still to be done: to acknowledge it would lose the message."""
    if result is None:
        return
    future = hasattr(result, "add_done_callback")
    if not future and not inspect.isawaitable(result) and not isinstance(result, UNFINISHED):
        return
    # A coroutine that is not closed warns when it is collected; a future would work beside the next attempt.
    end = getattr(result, "cancel" if future else "close", None)
    if callable(end):
        end()
    raise TypeError(
        f"the handler returned a {type(result).__name__} instead of doing the work: "
        "await, iterate or wait for it before returning"
    )


#: What does its work only when it is iterated over.
UNFINISHED = (GeneratorType, AsyncGeneratorType, map, filter)


def puts_of(result: object) -> tuple[Put, ...]:
    """Return what a handler wants to have put together with the ack; any other result means nothing."""
    if isinstance(result, Put):
        return (result,)
    if not isinstance(result, (list, tuple)) or not any(isinstance(each, Put) for each in result):
        return ()
    for each in result:
        if not isinstance(each, Put):
            raise TypeError(f"the handler returned a list of Put with {each!r:.60} in it: return only Put")
    return tuple(result)


def call(handler: Callable[[Any], object], message: Any) -> Outcome:
    """Call the handler and return what came of it; only a cancellation is raised.

    A process that the handler forked, and that comes back here, ends: there is only one worker.
    """
    generation, failure = PROCESS.generation, None
    then: tuple[Put, ...] = ()
    try:
        result = handler(message)
        check_result(result)
        then = puts_of(result)
    except Cancelled:
        raise
    except BaseException as error:  # noqa: BLE001 - the handler is a guest: nothing of it may end the worker
        failure = error
    return _concluded(failure, generation, then)


async def call_async(handler: Callable[[Any], Awaitable[object]], message: Any) -> Outcome:
    """Await the handler and return what came of it, a cancellation too: whoever cancelled it knows why."""
    generation, failure = PROCESS.generation, None
    then: tuple[Put, ...] = ()
    try:
        result = await handler(message)
        check_result(result)
        then = puts_of(result)
    except BaseException as error:  # noqa: BLE001 - as above
        failure = error
    return _concluded(failure, generation, then)


def _concluded(failure: BaseException | None, generation: int, then: tuple[Put, ...]) -> Outcome:
    if PROCESS.generation != generation:
        leave(functools.partial(_raise, failure))
    return Outcome(then=then) if failure is None else verb_for(failure)


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error
