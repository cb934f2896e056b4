"""HTTP to one of our own servers."""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = dict[str, Any]


class RequestError(RuntimeError):
    """A request was not answered, or not with what the API promises."""


@dataclass(frozen=True)
class Answer:
    """What came back.

    prompt:  of the prompt the text, or (chats) the token ids that the template gave
    ids:     the answer's tokens
    end:     the kind of finish reason: "stop" or "length"
    rounds:  verify rounds; 0 without speculation
    chunks:  events that brought new tokens; 1 if not streamed
    params:  the sampling parameters asked for
    """

    prompt: str | list[int]
    ids: list[int]
    end: str
    rounds: int = 0
    chunks: int = 1
    params: Mapping[str, Any] = field(default_factory=dict)


class Client:
    """Requests to 127.0.0.1:`port`, none of which outlasts `deadline` (time.monotonic()).

    Each call opens its own connection, so threads may share a client. Raises RequestError.
    """

    def __init__(self, port: int, deadline: float) -> None:
        self.port = port
        self._deadline = deadline

    def _connect(self, seconds: float | None = None) -> http.client.HTTPConnection:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise RequestError("no time is left")
        bound = left if seconds is None else min(left, seconds)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=bound)

    def status(self, path: str) -> int | None:
        """The status of a GET; None where nothing answers."""
        connection = self._connect(5.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def get(self, path: str) -> str:
        """The text of a GET that is answered 200."""
        return b"".join(self._lines("GET", path, None)).decode()

    def post(self, path: str, body: JSON) -> Any:
        """The JSON of a POST that is answered 200."""
        text = b"".join(self._lines("POST", path, body)).decode()
        try:
            return json.loads(text)
        except ValueError:
            raise RequestError(f"POST {path} was answered with no JSON: {text[:200]!r}") from None

    def _lines(self, method: str, path: str, body: JSON | None) -> Iterator[bytes]:
        connection = self._connect()
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                said = answer.read(2000).decode("utf-8", "replace")
                raise RequestError(f"{method} {path} was answered {answer.status}: {said[:300]}")
            for line in answer:
                if time.monotonic() > self._deadline:
                    raise RequestError(f"{method} {path}: no time is left")
                yield line
        except (OSError, http.client.HTTPException) as error:
            what = f"{type(error).__name__}: {error}"
            raise RequestError(f"{method} {path} was not answered: {what}") from error
        finally:
            connection.close()

    def generate(self, prompt: str, params: Mapping[str, Any]) -> Answer:
        """One whole answer of /generate."""
        body = {"text": prompt, "sampling_params": dict(params)}
        return _answer(prompt, params, self.post("/generate", body))

    def stream(self, prompt: str, params: Mapping[str, Any]) -> Answer:
        """The same, streamed. RequestError where the stream takes back what it sent."""
        body = {"text": prompt, "sampling_params": dict(params), "stream": True}
        last: JSON = {}
        ids: list[int] = []
        chunks = 0
        for raw in self._lines("POST", "/generate", body):
            line = raw.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            last = json.loads(line.removeprefix("data: "))
            now = last.get("output_ids", [])
            if now[: len(ids)] != ids:
                raise RequestError(f"a stream took back tokens: {ids} became {now}")
            chunks += len(now) > len(ids)
            ids = now
        return _answer(prompt, params, last, chunks)

    def chat(self, question: str, tokens: int) -> Answer:
        """One greedy answer of /v1/chat/completions."""
        body = {
            "model": "selftest",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": tokens,
            "return_token_ids": True,
        }
        found = self.post("/v1/chat/completions", body)
        try:
            choice = found["choices"][0]
            prompt, ids = choice["prompt_token_ids"], choice["token_ids"]
            return Answer(list(prompt), list(ids), str(choice["finish_reason"]))
        except (KeyError, IndexError, TypeError):
            raise RequestError(f"a chat was answered without tokens: {str(found)[:300]}") from None

    def gap(self, answer: Answer, at: int, other: int) -> float:
        """How far apart this server finds `answer`'s token number `at` and `other` in its place, in
        log-probability; infinite where it cannot say, and where a grammar allows only one of them.

        Not under speculation, which has no log-probabilities.
        """
        before, own = answer.ids[:at], answer.ids[at]
        body = {
            "text" if isinstance(answer.prompt, str) else "input_ids": answer.prompt,
            "sampling_params": {"temperature": 0, **answer.params, "max_new_tokens": at + 1},
            "return_logprob": True,
            "token_ids_logprob": [own, other],
        }
        found = self.post("/generate", body)
        try:
            if found["output_ids"][:at] != before:
                return math.inf  # it went another way itself this time
            entries = found["meta_info"]["output_token_ids_logprobs"][at]
            left, right = (entry[0] for entry in entries)
        except (KeyError, IndexError, TypeError, ValueError):
            raise RequestError(f"log-probabilities are missing: {str(found)[:300]}") from None
        # JSON has no infinity: a token that a grammar forbids is null.
        return math.inf if left is None or right is None else abs(float(left) - float(right))

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name, summed over their labels."""
        found: dict[str, float] = {}
        for line in self.get("/metrics").splitlines():
            if line and not line.startswith("#"):
                name = line.split("{", 1)[0].split(" ", 1)[0]
                found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
        return found


def _answer(prompt: str, params: Mapping[str, Any], found: JSON, chunks: int = 1) -> Answer:
    try:
        meta = found["meta_info"]
        return Answer(
            prompt,
            list(found["output_ids"]),
            str((meta["finish_reason"] or {})["type"]),
            int(meta.get("spec_verify_ct") or 0),
            chunks,
            params,
        )
    except (KeyError, TypeError):
        raise RequestError(f"an answer without tokens: {str(found)[:300]}") from None
