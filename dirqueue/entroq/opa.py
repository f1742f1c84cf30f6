"""A judge that asks the Open Policy Agent over HTTP, in the words that EntroQ uses.

    POST URL/v1/data/entroq/authz    Authorization: as the caller sent it
    {"input": {"authz": {"type", "credentials"}, "queues": [{"exact", "actions"}], "claimant_id"}}
    -> {"result": {"allow": true | false, "failed": [{"exact" | "prefix", "actions"}], "errors": [...]}}

It fails closed: no answer in time, an answer that cannot be read, and an answer without `"allow": true` all mean no.
Nothing is remembered: a right that was taken away is gone with the next request.

Layer: edges.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from dirqueue.entroq.authz import READ, Caller, each
from dirqueue.entroq.tasks import Access, PermissionDenied
from dirqueue.errors import SettingsError

URL = "http://localhost:8181"
PATH = "/v1/data/entroq/authz"
#: Seconds for one answer, questions at a time, and the most bytes of an answer.
SECONDS = 5.0
QUESTIONS = 8
LARGEST = 4 << 20


class Opa:
    """Asks an agent at `url`, under `path`."""

    by_queue = True

    def __init__(self, url: str = URL, path: str = PATH, *, seconds: float = SECONDS) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise SettingsError(f"the address of OPA is http://HOST:PORT or https://HOST:PORT, not {url!r}")
        self._parts, self._path, self._seconds = parts, parts.path.rstrip("/") + path, seconds
        self._pool = ThreadPoolExecutor(QUESTIONS, thread_name_prefix="dirqueue-opa")
        #: Connections that can be used again, the last one used first.
        self._idle: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue()

    async def check(self, caller: Caller, wishes: Sequence[Access], claimant: str = "") -> None:
        """Ask whether all of it is allowed."""
        allowed, failed, errors = await self._judge(caller, wishes, claimant)
        if not allowed:
            raise PermissionDenied(_sentence(failed, errors), failed=failed)

    async def readable(self, caller: Caller, queues: Sequence[str]) -> set[str]:
        """Ask for all at once; if some are refused, ask once more without them, and believe only a yes."""
        left = list(queues)
        for _ in range(2):
            if not left:
                break
            allowed, failed, _errors = await self._judge(caller, each(left, READ))
            if allowed:
                return set(left)
            refused = {each.queue for each in failed}
            left = [name for name in left if name not in refused]
        return set()

    async def close(self) -> None:
        self._pool.shutdown()
        while not self._idle.empty():
            self._idle.get_nowait().close()

    async def _judge(
        self, caller: Caller, wishes: Sequence[Access], claimant: str = ""
    ) -> tuple[bool, list[Access], list[str]]:
        question: dict[str, Any] = {
            "authz": {"type": caller.kind, "credentials": caller.credentials},
            "queues": [{"exact": wish.queue, "actions": list(wish.actions)} for wish in wishes],
        }
        if claimant:
            question["claimant_id"] = claimant
        body = json.dumps({"input": question}).encode()
        headers = {"Content-Type": "application/json"}
        if caller.kind:
            headers["Authorization"] = f"{caller.kind} {caller.credentials}"
        loop = asyncio.get_running_loop()
        try:
            # The whole exchange is bounded, not only each read: a slow answer counts as none.
            async with asyncio.timeout(self._seconds):
                data = await loop.run_in_executor(self._pool, self._ask, body, headers)
            result = json.loads(data)["result"]
            allow = result["allow"] is True
            failed = [_access(entry) for entry in result.get("failed") or ()]
            errors = [str(error)[:200] for error in result.get("errors") or ()]
        except (OSError, TimeoutError, http.client.HTTPException) as error:
            raise PermissionDenied(
                f"refused, because the policy service did not answer ({type(error).__name__})"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PermissionDenied("refused, because the policy service gave no verdict") from error
        return allow, failed, errors

    def _ask(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            return self._exchange(self._connect(), body, headers)
        try:
            return self._exchange(connection, body, headers)
        except (http.client.HTTPException, ConnectionError):
            # The agent had closed the idle connection. A question changes nothing, so it may be asked again.
            return self._exchange(self._connect(), body, headers)

    def _exchange(
        self, connection: http.client.HTTPConnection, body: bytes, headers: Mapping[str, str]
    ) -> bytes:
        try:
            connection.request("POST", self._path, body, dict(headers))
            answer = connection.getresponse()
            data = answer.read(LARGEST)
        except BaseException:
            connection.close()
            raise
        if answer.status != 200 or not answer.isclosed():  # or it is too long
            connection.close()
            raise http.client.HTTPException(f"status {answer.status}")
        self._idle.put(connection)
        return data

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(
                host, port, timeout=self._seconds, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(host, port, timeout=self._seconds)


def _access(entry: Any) -> Access:
    """Return what was refused. A refused prefix stands for itself: only exact names were asked for."""
    return Access(
        str(entry.get("exact") or entry.get("prefix") or ""), tuple(map(str, entry.get("actions") or ()))
    )


def _sentence(failed: Sequence[Access], errors: Sequence[str]) -> str:
    shown = ", ".join(f"{' and '.join(each.actions)} on {each.queue!r}" for each in failed[:5])
    more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
    why = f" ({'; '.join(errors[:3])})" if errors else ""
    return f"not allowed: {shown}{more}{why}" if shown else f"not allowed{why}"
