"""The verb `entroq serve`: a service for EntroQ's clients.

Layer: edges.
"""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

from dirqueue.cli import output
from dirqueue.cli.arguments import path_of, verb, whole
from dirqueue.cli.exits import Exit, MissingExtra

#: What the service needs, beside dirqueue.
NEEDED = ("starlette", "uvicorn", "grpc", "google.protobuf")


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verb(
        verbs,
        "serve",
        serve,
        "answer EntroQ's clients, over HTTP/JSON and gRPC",
        description="On this machine only. An address that others can reach needs TLS or --plaintext, and a judge or "
        "--open. Prints the addresses; ends with SIGTERM or Ctrl-C.",
        queue=False,
    )
    parser.add_argument("space", metavar="SPACE", help="the directory of the queues")
    parser.add_argument(
        "--http",
        default="127.0.0.1:9100",
        metavar="HOST:PORT",
        help="where JSON is spoken (default 127.0.0.1:9100)",
    )
    parser.add_argument(
        "--grpc",
        default="127.0.0.1:37706",
        metavar="HOST:PORT",
        help="where gRPC is spoken (default 127.0.0.1:37706)",
    )
    parser.add_argument("--no-http", action="store_true", help="speak no JSON")
    parser.add_argument("--no-grpc", action="store_true", help="speak no gRPC")
    parser.add_argument(
        "--authz",
        choices=("none", "token", "opahttp"),
        default="none",
        help="who may do what: anybody, whoever has the token, whomever OPA allows (default none)",
    )
    parser.add_argument("--token-file", metavar="FILE", help="the file of the token, for --authz token")
    parser.add_argument("--opa-url", metavar="URL", help="where OPA answers (default http://localhost:8181)")
    parser.add_argument("--opa-path", metavar="PATH", help="what it is asked (default /v1/data/entroq/authz)")
    parser.add_argument("--tls-cert", metavar="FILE", help="the certificate of the service, in PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its key")
    parser.add_argument("--tls-client-ca", metavar="FILE", help="whose certificates clients have to show")
    parser.add_argument("--plaintext", action="store_true", help="others may listen to what is said")
    parser.add_argument("--open", action="store_true", help="others may do what they like")
    parser.add_argument(
        "--max-size-mb", type=whole, default=10, metavar="N", help="the largest request, in MiB (default 10)"
    )


def need(*modules: str) -> None:
    """Raise MissingExtra unless these are installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"{module} is not installed: pip install 'dirqueue[entroq]'")


def serve(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    need(*NEEDED)
    from dirqueue.entroq.serve import Addresses, Options, run
    from dirqueue.tools import discover

    opa = {"opa_url": args.opa_url, "opa_path": args.opa_path}
    options = Options(
        http=None if args.no_http else args.http,
        grpc=None if args.no_grpc else args.grpc,
        authz=args.authz,
        token_file=args.token_file,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        tls_client_ca=args.tls_client_ca,
        plaintext=args.plaintext,
        open=args.open,
        max_size_mb=args.max_size_mb,
        **{name: value for name, value in opa.items() if value is not None},
    )

    def ready(addresses: Addresses) -> None:
        for address in (addresses.http, addresses.grpc):
            if address is not None:
                output.complain(f"serving {address}")

    path = path_of(args.space)
    discover.need_space(path)
    run(path, options, ready)
    return Exit.OK
