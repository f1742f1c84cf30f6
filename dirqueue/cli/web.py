"""The verb `web`: a page that shows queues and deals with dead letters.

Layer: edges.
"""

from __future__ import annotations

import argparse
import os
import secrets
from typing import Any

from dirqueue.cli import output
from dirqueue.cli.arguments import VARIABLE, path_of, verb
from dirqueue.cli.exits import Exit
from dirqueue.errors import SettingsError
from dirqueue.tools import discover

PORT = 8425
TOKEN = "DIRQUEUE_WEB_TOKEN"  # noqa: S105 - the name of a variable


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "web",
        web,
        "serve a page with live charts, messages and dead letters",
        description="Prints the address to open. It holds a token, which changes at each start unless "
        f"${TOKEN} gives one. Speaks plain HTTP: to reach it from elsewhere, use ssh -L or a proxy with TLS.",
        queue=False,
    )
    parser.add_argument(
        "root",
        metavar="ROOT",
        nargs="?",
        help=f"a queue or a directory of queues (default ${VARIABLE}, else .)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="the address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        metavar="N",
        help=f"the port, or 0 for any free one (default {PORT})",
    )
    parser.add_argument(
        "--public",
        action="store_true",
        help="let anyone read, bodies included; changing still needs the token",
    )


def web(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from dirqueue.web import make_server

    root = path_of(args.root) if args.root else os.environ.get(VARIABLE) or "."
    for _ in discover.find(root):
        break  # a root that is not there is reported now, not by the page
    if not 0 <= args.port < 65536:
        raise SettingsError(f"--port must be from 0 to 65535, not {args.port}")
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(18)
    with make_server(root, args.host, args.port, token, public=args.public) as server:
        output.complain(f"open {server.url}")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return Exit.OK
    return Exit.OK
