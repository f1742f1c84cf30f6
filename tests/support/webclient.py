"""Clients of the web page: one that speaks correct HTTP, and bare sockets for invalid requests."""

import http.client
import json
import socket
from urllib.parse import urlencode

from support.patience import PATIENCE

import dirqueue

TOKEN = "the-token"
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


class Client:
    """Sends requests with or without the token."""

    def __init__(self, server, token=TOKEN):
        self.address = server.server_address[:2]
        self.token = token

    def ask(self, method, path, body=None, **headers):
        """Send a request; return the status, body and headers of the response."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE)
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()

    def get(self, path, **query):
        """Send a GET request; return the status and the JSON."""
        status, data, _ = self.ask("GET", f"{path}?{urlencode(query)}")
        return status, json.loads(data)

    def act(self, order, **headers):
        """Post an action; return the status and the JSON."""
        headers = {"Content-Type": "application/json"} | headers
        status, data, _ = self.ask("POST", "/api/act", json.dumps(order).encode(), **headers)
        return status, json.loads(data)


def connect(server):
    """Return a bare connection."""
    return socket.create_connection(server.server_address[:2], timeout=PATIENCE)


def answer_to(server, request):
    """Send bytes on one connection; return everything received until the server closes it."""
    with connect(server) as connection:
        connection.sendall(request)
        received = b""
        while data := connection.recv(1 << 16):
            received += data
        return received


def dead_ids(spool):
    """Return the ids of the dead letters in the queue `orders`."""
    return [message.id for message in dirqueue.Queue(spool / "orders").peek("dead")]
