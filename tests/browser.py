"""A real Chromium without a window, driven through a pipe: no driver program, no package, no network."""

import base64
import json
import os
import select
import subprocess
import time

from patience import PATIENCE

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
]  # fmt: skip


class Browser:
    """One page in one browser; a context manager."""

    def __init__(self, profile):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self._in, self._out = ours_in, ours_out
        with open(os.path.join(profile, "chromium.log"), "wb") as log:
            self._process = subprocess.Popen(
                # The protocol speaks on descriptors 3 and 4.
                ["sh", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "sh", "chromium", *FLAGS,
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
        self.complaints = []

    def __enter__(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

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
        order = {"id": self._count, "method": method, "params": params}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            told = self._receive(deadline)
            if told.get("id") == self._count:
                assert "error" not in told, told
                return told["result"]
            self._listen(told)

    def _listen(self, told):
        params = told.get("params", {})
        if told.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:2000])
        elif told.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            ready = select.select([self._in], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser ended"
            self._buffer += data
        told, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(told)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def js(self, expression):
        """Return the value of a JavaScript expression."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, expression):
        """Return the value of the expression once it is true."""
        deadline = time.monotonic() + PATIENCE
        found = f"((value) => value instanceof Node ? true : value)({expression})"
        while not (value := self.js(found)):
            assert time.monotonic() < deadline, (expression, self.js("document.body.innerText"))
            time.sleep(0.05)
        return value

    def look(self, path, width=1200, height=800, *, dark=False):
        """Write a picture of the page."""
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
