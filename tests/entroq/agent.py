"""A stand-in for the Open Policy Agent: its HTTP interface, with policies run by regopy."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import regopy

import dirqueue.entroq

POLICY = Path(dirqueue.entroq.__file__).with_name("policy.rego")


class Agent:
    """Answers `POST /v1/data/PATH`; `answer` may be set to something that misbehaves."""

    def __init__(self, data):
        self.rego = regopy.Interpreter()
        self.rego.add_module("policy", POLICY.read_text())
        self.rego.add_data(data)
        self.lock = threading.Lock()
        self.questions = []
        self.answer = self.judge

    def judge(self, path, question):
        with self.lock:
            self.rego.set_input(question["input"])
            found = json.loads(
                str(self.rego.query("data." + path.removeprefix("/v1/data/").replace("/", ".")))
            )
        return 200, json.dumps({"result": found["expressions"][0]}).encode()


@contextlib.contextmanager
def running(data):
    """Yield an agent that answers at its `url`."""
    agent = Agent(data)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            agent.questions.append((self.path, self.headers.get("Authorization"), question))
            status, body = agent.answer(self.path, question)
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    agent.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield agent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
