"""The verbs that hold a queue back: pause, resume.

Layer: edges.
"""

from __future__ import annotations

import argparse
from typing import Any

from dirqueue.cli.arguments import open_queue, verb
from dirqueue.cli.exits import Exit


def add(subparsers: Any) -> None:
    """Add the verbs."""
    verb(
        subparsers,
        "pause",
        pause,
        "give nothing to any consumer until `resume`",
        description="Puts go on, and what is held can be acknowledged. Consumers at work stop within about a "
        "second. The file `paused` in the queue, or QUEUE.paused beside one of dirq or a text file, says so until it "
        "is resumed, whoever ends or begins meanwhile. Programs of dirq, vsqs and textqueue do not know of it.",
    )
    verb(subparsers, "resume", resume, "end a pause: consumers that wait are woken")


def pause(args: argparse.Namespace) -> int:
    """Pause a queue; one that is paused stays so."""
    with open_queue(args.queue) as queue:
        queue.pause()
    return Exit.OK


def resume(args: argparse.Namespace) -> int:
    """Resume a queue; for one that is not paused nothing changes."""
    with open_queue(args.queue) as queue:
        queue.resume()
    return Exit.OK
