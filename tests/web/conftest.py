"""A root with two queues, servers for it, and a browser."""

import threading

import pytest
from support.commands import _plain_environment
from support.webclient import EVIL, TOKEN, Client

import dirqueue
from dirqueue.web import make_server

__all__ = ["_plain_environment"]


@pytest.fixture
def spool(tmp_path):
    """Return a root with two queues: one has three dead letters, one only waiting messages."""
    orders = dirqueue.Queue(tmp_path / "spool" / "orders", sync=False)
    for body in (EVIL.encode(), b"\xff\xfe binary", b"plain"):
        orders.put(body)
        orders.get(timeout=0).reject(f"cannot ship: {EVIL}")
    orders.put(b"waiting")
    dirqueue.Queue(tmp_path / "spool" / "mail" / "out", sync=False).put_many([b"x"] * 5)
    return tmp_path / "spool"


@pytest.fixture
def serve(spool):
    """Start servers on free ports of loopback; end them with the test."""
    servers = []

    def start_one(**kwargs):
        server = make_server(str(spool), "127.0.0.1", 0, TOKEN, **kwargs)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        servers.append((server, thread))
        return server

    yield start_one
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def client(serve):
    """Return a client with the token."""
    return Client(serve())


@pytest.fixture
def browser(tmp_path):
    """Start a browser without a window."""
    from support.browser import Browser

    (tmp_path / "profile").mkdir()
    with Browser(str(tmp_path / "profile")) as one:
        yield one
