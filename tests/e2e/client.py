"""HTTP to a server under test, with the standard library alone: this runs inside the image."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

JSON = dict[str, Any]
META = (
    "completion_tokens",
    "cached_tokens",
    "prompt_tokens",
    "finish_reason",
    "spec_verify_ct",
    "spec_accept_length",
)


class Client:
    """Requests to one server. Each call opens its own connection, so threads may share a client."""

    def __init__(self, address: str, timeout: float = 300.0, key: str = "") -> None:
        parts = urlsplit(address)
        self._headers = {"content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port
        self._timeout = timeout

    def _open(self, method: str, path: str, body: JSON | None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        payload = None if body is None else json.dumps(body).encode()
        connection.request(method, path, payload, self._headers)
        return connection

    def call(self, method: str, path: str, body: JSON | None = None) -> tuple[int, str]:
        """Status and text of an answer."""
        connection = self._open(method, path, body)
        try:
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def post(self, path: str, body: JSON) -> Any:
        """The JSON of an answer with status 200. Raises RuntimeError for another status."""
        status, text = self.call("POST", path, body)
        if status != 200:
            raise RuntimeError(f"POST {path} was answered {status}: {text[:500]}")
        return json.loads(text)

    def events(self, path: str, body: JSON) -> Iterator[JSON]:
        """The JSON events of a streamed answer; closing the iterator disconnects."""
        connection = self._open("POST", path, {**body, "stream": True})
        try:
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"POST {path} was answered {answer.status}: {answer.read()!r}")
            for raw in answer:
                line = raw.decode().strip()
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield json.loads(line[len("data: ") :])
        finally:
            connection.close()

    def generate(self, prompt: str | list[int], params: JSON, **more: Any) -> JSON:
        """One /generate answer as `record` gives it; with n > 1 under "choices"."""
        answer = self.post("/generate", request(prompt, params) | more)
        if isinstance(answer, list):
            return {"choices": [record(one) for one in answer]}
        return record(answer)

    def stream(self, prompt: str | list[int], params: JSON, **more: Any) -> JSON:
        """As `generate`, streamed; "chunks" counts the events that brought new tokens."""
        last: JSON = {}
        seen = chunks = 0
        text = ""
        for event in self.events("/generate", request(prompt, params) | more):
            ids, text_now = event.get("output_ids", []), event.get("text", "")
            # A stream that is not incremental repeats everything: it may only grow.
            if len(ids) < seen or not text_now.startswith(text):
                raise RuntimeError(f"a stream took back what it had sent: {text!r} -> {text_now!r}")
            chunks += len(ids) > seen
            seen, text, last = len(ids), text_now, event
        return record(last) | {"chunks": chunks}

    def metrics(self, *names: str) -> dict[str, float]:
        """Samples of /metrics whose name starts with one of `names`, summed over their labels."""
        found: dict[str, float] = {}
        for line in self.call("GET", "/metrics")[1].splitlines():
            if line.startswith(names):
                name = line.split("{", 1)[0].split(" ", 1)[0]
                found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
        return found

    def flush(self) -> None:
        """Empty the prefix cache. The server must become idle for it; raises if it does not."""
        for _ in range(100):
            if self.call("POST", "/flush_cache")[0] == 200:
                return
            time.sleep(0.1)
        raise RuntimeError("the server was never idle enough for /flush_cache")


def request(prompt: str | list[int], params: JSON) -> JSON:
    """The body of a /generate request; greedy unless `params` say otherwise."""
    key = "text" if isinstance(prompt, str) else "input_ids"
    return {key: prompt, "sampling_params": {"temperature": 0, **params}}


def record(answer: JSON) -> JSON:
    """What is kept of a /generate answer."""
    meta = answer["meta_info"]
    return {
        "ids": answer["output_ids"],
        "text": answer["text"],
        **{name: meta[name] for name in META if name in meta},
    }


def at_once(calls: Sequence[Callable[[], Any]], workers: int = 8) -> list[Any]:
    """Results of all calls in order, at most `workers` of them running at a time."""
    with ThreadPoolExecutor(workers) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
