"""The verb `dirqueue web`: what it prints, how it ends, what it refuses."""

import http.client
import json
import signal
from urllib.parse import urlsplit

import pytest
from support.commandline import dq, start
from support.patience import PATIENCE, until


def printed(tmp_path):
    """Return the address that the command printed."""
    log = tmp_path / "said"
    return until(lambda: log.read_bytes().endswith(b"\n") and log.read_text(), "the address").split()[-1]


def test_web_prints_the_address_with_a_new_token(spool, tmp_path):
    """The printed address holds the token in its fragment; Ctrl-C ends the server with status 0."""
    process = start("web", "spool", "--port", "0", cwd=tmp_path)
    try:
        parts = urlsplit(printed(tmp_path))
        assert parts.hostname == "127.0.0.1"
        token = parts.fragment.removeprefix("token=")
        assert len(token) >= 20
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
        connection.request("GET", "/api/queues", headers={"Authorization": f"Bearer {token}"})
        assert len(json.loads(connection.getresponse().read())["queues"]) == 2
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["nowhere"], 1, "no directory"),
        (["spool", "--port", "99999"], 2, "--port"),
        (["spool", "--host", "192.0.2.1"], 1, "cannot listen on '192.0.2.1:8425'"),
    ],
)
def test_web_refuses_an_invalid_argument_in_one_sentence(spool, tmp_path, words, status, message):
    """A root that is not there, an invalid port, an address of another machine."""
    done = dq("web", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, b"")
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
