"""The verb `edit`: a person's editor on a live text queue; and how such a file is shown.

Layer: edges.  Touches: a copy of the file in a directory of its own; the queue in one turn, when the editor is left.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, cast

from dirqueue.cli import output
from dirqueue.cli.arguments import open_queue, verb
from dirqueue.cli.exits import Exit
from dirqueue.disk import fs
from dirqueue.errors import QueueError, SettingsError, Unsupported

if TYPE_CHECKING:
    from dirqueue.layouts.text.layout import Text
    from dirqueue.queue import Queue

#: How each state is shown on a terminal.
_STYLES = {"-": "bold", "=": "green", "!": "red", "#": "dim"}


def add(subparsers: Any) -> None:
    """Add the verb."""
    verb(
        subparsers,
        "edit",
        edit,
        "edit a queue that is a text file, while others use it",
        description="Opens a copy in $VISUAL or $EDITOR. When the editor is left, what was put and finished meanwhile "
        "is merged with it: nothing is lost that you did not delete. If the editor fails, nothing is changed.",
    )


def edit(args: argparse.Namespace) -> int:
    """Let a person edit a copy, then merge it."""
    with open_queue(args.queue) as queue:
        layout = _text(queue, "edited")
        layout.need_locks()  # before a person writes what cannot be saved
        with tempfile.TemporaryDirectory(prefix="dirqueue-edit-") as folder:
            copy = os.path.join(folder, os.path.basename(queue.path))
            before = layout.data()
            _write(copy, before)
            _run_editor(copy)
            after = fs.read_file(copy, -1, 0)
            if after == before:
                output.complain("nothing was changed")
                return Exit.OK
            try:
                layout.replace(after)
            except QueueError:
                kept = f"{queue.path}.edited"
                _write(kept, after)
                output.complain(f"what you wrote is kept in {kept!r}")
                raise
    return Exit.OK


def _run_editor(path: str) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        status = subprocess.run([*shlex.split(editor), path], check=False).returncode
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"cannot run the editor {editor!r}: {error}; set EDITOR; nothing was changed"
        ) from None
    if status:
        raise SettingsError(f"the editor {editor!r} ended with status {status}; nothing was changed")


def show(queue: Queue[bytes], *, raw: bool) -> int:
    """Show a text file as it is; on a terminal, each state in its own colour."""
    data = _text(queue, "shown without ids").data()
    if raw or not output.coloured():
        output.data(data, raw=raw)
        return Exit.OK
    style = ""
    for line in data.decode("utf-8", "replace").splitlines():
        style = style if line.startswith((" ", "\\")) else _STYLES.get(line[:1], "")
        text = output.one_line(line)
        output.line(output.paint(text, "dim" if line.startswith("\\") else style) if style else text)
    return Exit.OK


def _text(queue: Queue[bytes], done: str) -> Text:
    if queue.layout.name != "text":
        raise Unsupported(
            f"{queue.path!r} is in the {queue.layout.name} layout: only a text file can be {done}",
            path=queue.path,
        )
    return cast("Text", queue.layout)


def _write(path: str, data: bytes) -> None:
    fs.remove_path(path)
    fs.copy_out(io.BytesIO(data), path)
