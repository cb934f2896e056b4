"""The outermost ASGI layer of the server: how it is, and no new requests while it drains.

Plain ASGI, so that a stream passes through untouched and a client that goes away is noticed.
Imports nothing of SGLang; it is given what it looks at.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEALTH_PATH = "/health/ddtree"
RETRY_AFTER_SECONDS = 10
# What only looks is answered to the end, so that a drain can be watched.
_READING = {"GET", "HEAD", "OPTIONS"}
_SERVICE_RESTART = 1012


class Gate:
    """Wraps SGLang's application, `app`, which is to be set before the first call.

    manager: SGLang's tokenizer manager, or None before there is one.
    on_startup: called once inside the running event loop, before the first request.
    """

    app: App

    def __init__(self) -> None:
        self.manager: Any = None
        self.on_startup: Callable[[], None] = lambda: None
        self._draining = False
        self._in_flight = 0  # requests that do not only read
        self._with_model: dict[str, float] = {}  # when each was first seen there
        self._last_output: float | None = None
        self._tokens = 0

    def begin_drain(self) -> None:
        """Refuse new requests from now on. Those in flight go on."""
        self._draining = True

    @property
    def draining(self) -> bool:
        """New requests are refused."""
        return self._draining or bool(getattr(self.manager, "gracefully_exit", False))

    def in_flight(self) -> int:
        """Requests whose answer has not been sent whole, or that SGLang still works on."""
        return max(self._in_flight, len(getattr(self.manager, "rid_to_state", ())))

    def saw_output(self, tokens: int) -> None:
        """The model produced something."""
        self._last_output = time.monotonic()
        self._tokens += tokens

    def health(self) -> dict[str, Any]:
        """What GET /health/ddtree says. Ages in seconds."""
        now = time.monotonic()
        # What has not reached the model, or has left it for a slow reader, does not wait for it.
        # Looked at when asked, so an age may be short by the time between two polls.
        seen, rids = self._with_model, tuple(getattr(self.manager, "rid_to_state", ()))
        self._with_model = {rid: seen.get(rid, now) for rid in rids}
        oldest = min(self._with_model.values(), default=None)
        status = getattr(self.manager, "server_status", None)
        return {
            "status": getattr(status, "value", None) or "Starting",
            "draining": self.draining,
            "in_flight": self.in_flight(),
            "last_output_age": None if self._last_output is None else now - self._last_output,
            "waiting_age": now - oldest if oldest is not None else None,
            "tokens": self._tokens,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            self.on_startup()
            await self.app(scope, receive, send)
        elif kind == "http" and _path(scope) == HEALTH_PATH and scope["method"] in _READING:
            await _respond(send, 200, self.health())
        elif kind == "http" and scope["method"] in _READING:
            await self.app(scope, receive, send)
        elif self.draining:
            await self._refuse(scope, send)
        else:
            await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._in_flight += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._in_flight -= 1

    async def _refuse(self, scope: Scope, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _SERVICE_RESTART})
            return
        error = {
            "message": "the server is shutting down and takes no new requests; try again",
            "type": "service_unavailable",
            "param": None,
            "code": "server_draining",
        }
        # The body is not read, so the connection cannot be used again.
        headers = [(b"retry-after", str(RETRY_AFTER_SECONDS).encode()), (b"connection", b"close")]
        await _respond(send, 503, {"error": error}, headers)


def _path(scope: Scope) -> str:
    path, prefix = str(scope["path"]), str(scope.get("root_path") or "")
    return path[len(prefix) :] if prefix and path.startswith(prefix + "/") else path


async def _respond(
    send: Send, status: int, content: Any, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = json.dumps(content).encode()
    start = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
