"""The verb `metrics`: queues for Prometheus.

Layer: edges.  Touches: the file that --output names.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dirqueue.cli import output
from dirqueue.cli.arguments import VARIABLE, path_of, verb
from dirqueue.cli.exits import Exit
from dirqueue.errors import DirQueueError, SettingsError, access_error
from dirqueue.tools import discover
from dirqueue.tools import metrics as metrics_


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "metrics",
        metrics,
        "count queues in Prometheus' text format",
        description="Printed, written to a file for node_exporter's textfile collector, or served over HTTP.",
        queue=False,
    )
    parser.add_argument(
        "roots",
        metavar="ROOT",
        nargs="*",
        help=f"queues, or directories of queues (default: ${VARIABLE}, else the current directory)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-o", "--output", metavar="FILE", help="replace FILE, whole, instead of printing")
    how.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        help="serve /metrics, counted anew for each request (default host: 127.0.0.1)",
    )


def metrics(args: argparse.Namespace) -> int:
    """Count, then print, write or serve."""
    wanted = [path_of(root) for root in args.roots] or [os.environ.get(VARIABLE) or "."]
    if args.listen:
        return _serve(wanted, *address(args.listen))
    families = measured(wanted)
    if args.output:
        metrics_.write(args.output, families)
    else:
        output.text(metrics_.text(families))
    return Exit.OK


def measured(wanted: list[str]) -> list[metrics_.Family]:
    """Count every queue under the roots, each once."""
    return metrics_.measure(dict.fromkeys(path for root in wanted for path in discover.find(root)))


def address(text: str) -> tuple[str, int]:
    """Read [HOST:]PORT; loopback if no host is named."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise SettingsError(f"{text!r:.60} is not an address: write PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def server_of(collect: Callable[[], list[metrics_.Family]], host: str, port: int) -> ThreadingHTTPServer:
    """Return a server that answers /metrics with what is collected for each request; it is to be started."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "see /metrics")
                return
            try:
                data = metrics_.text(collect()).encode()
            except (DirQueueError, OSError) as error:
                self.send_error(503, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", metrics_.CONTENT_TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Log nothing: a line for each scrape helps nobody."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise access_error(f"{host}:{port}", "listen on", error) from error
    shown = f"[{host}]" if ":" in host else host
    output.complain(f"metrics on http://{shown}:{server.server_address[1]}/metrics")
    return server


def _serve(wanted: list[str], host: str, port: int) -> int:
    measured(wanted)  # a missing root is reported now, not to the first scraper
    with server_of(lambda: measured(wanted), host, port) as server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return Exit.OK
    return Exit.OK
