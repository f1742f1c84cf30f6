"""A real headless Chromium, driven through a pipe: no driver program, no package, no network."""

import base64
import json
import os
import select
import subprocess
import sys
import time

from support.patience import PATIENCE

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
]  # fmt: skip

#: The protocol uses descriptors 3 and 4, and a shell cannot move every descriptor there.
BECOME = """
import fcntl, os, sys
high = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
os.dup2(high[0], 3)
os.dup2(high[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class RefusedError(AssertionError):
    """The browser refused a call."""


class Browser:
    """One page in one browser; a context manager."""

    def __init__(self, profile):
        self._in, theirs_out = os.pipe()
        theirs_in, self._out = os.pipe()
        with open(os.path.join(profile, "chromium.log"), "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", BECOME, str(theirs_in), str(theirs_out), "chromium", *FLAGS,
                 f"--user-data-dir={profile}", "about:blank"],
                pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._count = 0
        self._session = None
        #: Errors that the page wrote to its console.
        self.errors = []

    def __enter__(self):
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __exit__(self, *_):
        os.close(self._out)  # the browser ends when its pipe closes
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._in)

    def call(self, method, **params):
        """Call one method of the DevTools protocol; return its result."""
        self._count += 1
        request = {"id": self._count, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._out, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self._receive(deadline)
            if message.get("id") == self._count:
                if "error" in message:
                    raise RefusedError(message["error"])
                return message["result"]
            self._note_error(message)

    def _note_error(self, event):
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:2000])
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            ready = select.select([self._in], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def js(self, expression):
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RefusedError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, expression):
        """Wait until the expression is true; return its value."""
        deadline = time.monotonic() + PATIENCE
        found = f"((value) => value instanceof Node ? true : value)({expression})"
        while True:
            try:
                value = self.js(found)
            except RefusedError as error:  # there is no context between two pages
                value, why = None, error
            else:
                why = value
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"{expression} did not become true: {why}")
            time.sleep(0.05)

    def screenshot(self, path, width=1200, height=800, *, dark=False):
        """Write a PNG image of the page."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
