"""Write docs/reference/{api,settings,errors}.md from the docstrings; `--check` says whether they are up to date."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import dirqueue
from dirqueue import aio, errors, settings
from dirqueue.lease import Lease
from dirqueue.message import Message
from dirqueue.queue import Queue

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- made by scripts/api_reference.py; edit the docstrings -->\n"


def main() -> int:
    """Write, or compare."""
    pages = {"api.md": api(), "settings.md": settings_page(), "errors.md": errors_page()}
    stale = [name for name, text in pages.items() if not _same(REFERENCE / name, text)]
    if "--check" in sys.argv:
        print(
            "\n".join(f"docs/reference/{name} is out of date: run scripts/api_reference.py" for name in stale)
        )
        return 1 if stale else 0
    for name, text in pages.items():
        (REFERENCE / name).write_text(text)
    return 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def api() -> str:
    """The public objects, method by method."""
    parts = [f"# API\n\n{NOTE}"]
    for cls in (Queue, Lease, Message, *_optional()):
        parts.append(f"## {cls.__name__}\n\n{inspect.getdoc(cls)}\n")
        parts += [_member(cls, name) for name in _public(cls)]
    parts.append("## AsyncQueue\n\nIn `dirqueue.aio`. The same names as Queue, awaited: ")
    names = [name for name in vars(aio.AsyncQueue) if not name.startswith("_")]
    parts.append(", ".join(f"`{name}`" for name in names) + ".\n")
    return "\n".join(parts)


def _optional() -> list[type]:
    return [getattr(dirqueue, name) for name in ("QueueSet", "Worker") if name in dirqueue.__all__]


def _public(cls: type) -> list[str]:
    """Its own names, then those of the halves that it is made of."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("dirqueue")]
    return list(dict.fromkeys(name for base in ours for name in vars(base) if not name.startswith("_")))


def _member(cls: type, name: str) -> str:
    value = inspect.getattr_static(cls, name)
    text = inspect.getdoc(getattr(cls, name, value)) or ""
    if isinstance(value, property) or inspect.ismemberdescriptor(value):
        return f"### `.{name}`\n\n{text}\n"
    if isinstance(value, (classmethod, staticmethod)):
        return f"### `{cls.__name__}.{name}{_signature(value.__func__)}`\n\n{_doc(text)}\n"
    if not callable(value):
        return f"### `.{name}`\n"
    return f"### `{name}{_signature(value)}`\n\n{_doc(text)}\n"


def _signature(function: Any) -> str:
    text = str(inspect.signature(function))
    return re.sub(r"\((self|cls)(: [^,)]+)?(, )?", "(", text).replace("'", "")


def _doc(text: str) -> str:
    """Turn an Args section into a list."""
    head, found, tail = text.partition("\nArgs:\n")
    if not found:
        return text
    rows = re.findall(r"^ {4}(\w+): (.*)$", tail, re.MULTILINE)
    return head + "\n" + "\n".join(f"- `{name}`: {what}" for name, what in rows)


def settings_page() -> str:
    """Each setting, its default and its comment."""
    source = inspect.getsource(settings._Settings)
    comments: dict[str, str] = {}
    comment: list[str] = []
    for line in source.splitlines():
        stripped = line.strip()
        if stripped.startswith("#:"):
            comment.append(stripped[2:].strip())
        elif found := re.match(r"(\w+): .+ = ", stripped):
            comments[found[1]] = " ".join(comment) or "(as above)"
            comment = []
    rows = [
        f"| `{name}` | `{default!r}` | {comments[name]} |"
        for name, default in settings.Settings._field_defaults.items()
    ]
    head = (
        "Given to `Queue(path, ...)` they hold for that object; given to `Queue.create(path, ...)` they are kept in\n"
        "`queue.json`, hold for everybody, and a conflicting argument is an error. Durations are seconds, sizes\n"
        "bytes.\n"
    )
    return (
        f"# Settings\n\n{NOTE}\n{head}\n| setting | default | what |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def errors_page() -> str:
    """The tree, and each class."""
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    parts = [f"# Errors\n\n{NOTE}\n```text\n{inspect.cleandoc(tree)}\n```\n"]
    parts.append("Each is also the class of the standard library in parentheses; each can be pickled.\n")
    for name, cls in vars(errors).items():
        if isinstance(cls, type) and issubclass(cls, Exception) and cls.__module__ == errors.__name__:
            parts.append(f"## {name}\n\n{inspect.getdoc(cls)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
