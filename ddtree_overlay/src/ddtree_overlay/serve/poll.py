"""Asks the server how it is, each second, in a thread: the supervisor's loop never waits."""

from __future__ import annotations

import http.client
import json
import math
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any

from ddtree_overlay.serve.status import Answer, Status

# A probe that gives up after a second flaps under load.
TIMEOUT_SECONDS = 5.0
INTERVAL_SECONDS = 1.0
_WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}  # noqa: S104


def reachable(host: str) -> str:
    """The address under which what is bound to `host` is reached from here."""
    return _WILDCARDS.get(host, host.strip("[]"))


def get(
    host: str, port: int, path: str, *, tls: bool = False, timeout: float = TIMEOUT_SECONDS
) -> tuple[int, bytes]:
    """Status and body of one GET, not through any proxy. Raises OSError or HTTPException."""
    if tls:
        # Our own child on our own machine: its certificate is for its public name.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            reachable(host), port, timeout=timeout, context=context
        )
    else:
        connection = http.client.HTTPConnection(reachable(host), port, timeout=timeout)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read(1 << 20)
    finally:
        connection.close()


def parse_answer(body: bytes, at: float) -> Answer:
    """Of /health/ddtree. Raises ValueError for what is not an answer of it."""
    raw = json.loads(body)
    if not isinstance(raw, Mapping) or not isinstance(raw.get("status"), str):
        raise ValueError("not an answer of /health/ddtree")
    return Answer(
        at=at,
        status=raw["status"],
        draining=raw.get("draining") is True,
        in_flight=_number(raw, "in_flight", int),
        last_output_age=_number(raw, "last_output_age", float),
        waiting_age=_number(raw, "waiting_age", float),
        tokens=_number(raw, "tokens", int),
    )


def _number(raw: Mapping[str, Any], name: str, kind: type) -> Any:
    value = raw.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value < math.inf:  # not a number either
        return None
    return kind(value)


class Poller(threading.Thread):
    """Polls until stopped and tells the status what it heard.

    On a node of rank > 0 SGLang serves only /health, which says nothing but that it is up.
    """

    def __init__(self, status: Status, host: str, port: int, *, tls: bool, node_rank: int) -> None:
        super().__init__(name="poll", daemon=True)
        self._status, self._host, self._port, self._tls = status, host, port, tls
        self._path = "/health/ddtree" if node_rank == 0 else "/health"
        self._detailed = node_rank == 0
        self._stop_now = threading.Event()
        self.interval = INTERVAL_SECONDS

    def run(self) -> None:
        while not self._stop_now.is_set():
            self._once()
            self._stop_now.wait(self.interval)

    def stop(self) -> None:
        """Poll no more; does not wait for one under way."""
        self._stop_now.set()

    def _once(self) -> None:
        try:
            code, body = get(self._host, self._port, self._path, tls=self._tls)
            if code != http.client.OK:
                self._status.missed(f"{self._path} answered {code}")
            elif self._detailed:
                self._status.heard(parse_answer(body, time.monotonic()))
            else:
                self._status.heard(Answer(time.monotonic()))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._status.missed(f"({type(error).__name__}: {error})")
