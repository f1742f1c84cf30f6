"""Why a delivery failed, as text: one line that names it, and a trace that explains it.

Layer: pure values, no I/O.
The trace of an exception is its traceback, the last call first, because what matters is there and the end is what a
bound cuts off. The trace of a program is the last of its output.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from dirqueue.errors import Move, Reject, Retry

#: Characters of an exception's own text, and of a trace, that are kept.
ERROR_LENGTH = 2000
TRACE_LENGTH = 4000
#: Characters of one line of source, exceptions in one chain or group, and calls of one exception.
LINE_LENGTH = 200
EXCEPTIONS = 8
CALLS = 40


class Reason(str):
    """The text of an error with the trace that belongs to it; plain text has none."""

    trace: str | None

    __slots__ = ("trace",)

    def __new__(cls, error: str, trace: str | None = None) -> Self:
        """Return the text as it is, with the trace beside it."""
        self = super().__new__(cls, error)
        self.trace = trace or None
        return self

    def __reduce__(self) -> tuple[type[Reason], tuple[str, str | None]]:
        return Reason, (str(self), self.trace)


def trace_of(error: str | None) -> str | None:
    """Return the trace that came with the text of an error, if any."""
    return error.trace if isinstance(error, Reason) else None


def describe(error: object) -> str | None:
    """Return an error as text: of an exception its type, message and traceback; of anything else its str().

    Retry, Reject and Move give their own text; their trace is that of the exception they were raised from, or while
    handling.
    """
    if isinstance(error, Retry | Reject | Move):
        said = error.reason if isinstance(error, Reject) else error.error
        if isinstance(said, BaseException | Reason):
            return describe(said)
        cause = _cause(error)
        if cause is None or said is None:
            return describe(cause or said)
        return Reason(str(said), _clipped("\n".join(_lines(cause, "caused by "))))
    if isinstance(error, BaseException):
        return Reason(_named(error), _clipped("\n".join(_lines(error))))
    return error if error is None or isinstance(error, Reason) else str(error)


def _named(error: BaseException) -> str:
    """Return the type and the message; somebody's own __str__ may fail."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception as worse:  # noqa: BLE001 - a failure that cannot say why is still that failure
        text = f"(its message cannot be shown: {type(worse).__name__})"
    if len(text) > ERROR_LENGTH:
        text = text[: ERROR_LENGTH - 3] + "..."
    return f"{kind}: {text}" if text else kind


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _lines(error: BaseException, title: str = "") -> Iterator[str]:
    """Yield the calls of an exception, then what it holds and what it came from, each headed by its text."""
    waiting: list[tuple[str, BaseException]] = [(title, error)]
    seen: set[int] = set()
    while waiting and len(seen) < EXCEPTIONS:
        title, each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if title:
            yield title + _named(each)
        yield from (str(note) for note in getattr(each, "__notes__", None) or ())
        yield from _calls(each.__traceback__)
        if isinstance(each, BaseExceptionGroup):
            waiting += [
                ("together with " if index else "it holds ", one) for index, one in enumerate(each.exceptions)
            ]
        cause = _cause(each)
        if cause is not None:
            waiting.insert(0, ("caused by " if each.__cause__ else "while handling ", cause))


def _calls(trace: TracebackType | None) -> Iterator[str]:
    """Yield the calls of a traceback, the last one first, without those of the worker around the handler."""
    import linecache

    calls = []
    while trace is not None:
        calls.append((trace.tb_frame.f_code, trace.tb_lineno, trace.tb_frame.f_globals.get("__name__", "")))
        trace = trace.tb_next
    while calls and calls[0][2].startswith("dirqueue.worker."):
        del calls[0]
    for code, number, _ in calls[: -CALLS - 1 : -1]:
        yield f'  File "{code.co_filename}", line {number}, in {code.co_name}'
        source = linecache.getline(code.co_filename, number).strip()
        if source:
            yield "    " + source[:LINE_LENGTH]
    if len(calls) > CALLS:
        yield f"  ... and {len(calls) - CALLS} calls before these"


def _clipped(trace: str) -> str:
    return trace if len(trace) <= TRACE_LENGTH else trace[: TRACE_LENGTH - 4] + "\n..."
