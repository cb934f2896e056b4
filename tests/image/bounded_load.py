"""A bounded load on one server on loopback: nothing may be lost.

Every request is answered whole, or refused with a reason; greedy answers to one prompt are the same
tokens however the batch was made up. Standard library alone.

    python -m tests.image.bounded_load http://127.0.0.1:30000 --seconds 600 --workers 12
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.e2e.client import Client

WORDS = (
    "the tree holds what a drafter says and the target walks it token by token to the end".split()
)
MAX_REQUESTS = 200_000
SEED = 20261130


@dataclass
class Tally:
    """What became of the requests. `lost`: neither answered whole nor refused with a reason."""

    sent: int = 0
    answered: int = 0
    refused: int = 0
    hung_up: int = 0
    lost: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Nothing lost, nothing different, and something was answered."""
        return not self.lost and not self.different and self.answered > 0


class Load:
    """`workers` threads, each sending one request after another until the time is over."""

    def __init__(self, address: str, seconds: float, workers: int, key: str = "") -> None:
        self._address, self._seconds, self._workers = address, seconds, workers
        self._tally, self._statuses = Tally(), Counter[str]()
        self._lock = threading.Lock()
        self._known: dict[str, list[int]] = {}
        self._key = key

    def run(self) -> Tally:
        """The tally, once every worker has ended."""
        started = time.monotonic()
        threads = [
            threading.Thread(target=self._work, args=(number, started + self._seconds))
            for number in range(self._workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self._seconds + 180)
            if thread.is_alive():
                self._tally.lost.append("a request that never ended")
        self._tally.seconds = round(time.monotonic() - started, 1)
        self._tally.statuses = dict(self._statuses)
        return self._tally

    def _work(self, number: int, deadline: float) -> None:
        chance = random.Random(SEED + number)  # noqa: S311 - a load, not a secret
        client = Client(self._address, timeout=120, key=self._key)
        kinds = (self._greedy, self._greedy, self._sampled, self._chat, self._streamed)
        rare = (self._impossible, self._hangs_up)
        # However slow the machine, each of the rare kinds is among the first.
        first = [rare[number]] if number < len(rare) else []
        while time.monotonic() < deadline and self._tally.sent < MAX_REQUESTS:
            kind = (
                first.pop() if first else chance.choice(rare if chance.random() < 0.08 else kinds)
            )
            with self._lock:
                self._tally.sent += 1
            try:
                kind(client, chance)
            except Exception as error:
                with self._lock:
                    self._tally.lost.append(
                        f"{kind.__name__}: {type(error).__name__}: {error}"[:300]
                    )

    def _greedy(self, client: Client, chance: random.Random) -> None:
        prompt, length = _prompt(chance), chance.choice((4, 17, 40))
        status, text = client.call(
            "POST", "/generate", _request(prompt, {"temperature": 0, "max_new_tokens": length})
        )
        if self._count(status, text):
            self._compare(f"{prompt}/{length}", json.loads(text)["output_ids"])

    def _sampled(self, client: Client, chance: random.Random) -> None:
        params = {"temperature": 0.9, "top_p": 0.9, "max_new_tokens": chance.randint(1, 32)}
        status, text = client.call("POST", "/generate", _request(_prompt(chance), params))
        self._count(status, text)

    def _chat(self, client: Client, chance: random.Random) -> None:
        body = {
            "model": "tiny",
            "temperature": 0,
            "max_tokens": 12,
            "messages": [{"role": "user", "content": _prompt(chance)}],
        }
        self._count(*client.call("POST", "/v1/chat/completions", body))

    def _streamed(self, client: Client, chance: random.Random) -> None:
        prompt, length = _prompt(chance), 24
        params = {"temperature": 0, "max_new_tokens": length}
        last: dict[str, Any] = {}
        for event in client.events("/generate", _request(prompt, params)):
            last = event
        if last["meta_info"]["finish_reason"] is None:
            raise RuntimeError("a stream ended in the middle")
        self._answered("200 streamed", len(last["output_ids"]))
        self._compare(f"{prompt}/{length}", last["output_ids"])

    def _impossible(self, client: Client, chance: random.Random) -> None:
        """What DDTREE refuses, and a prompt longer than the context: both with a reason."""
        body: dict[str, Any] = _request(_prompt(chance), {"frequency_penalty": 0.5})
        if chance.random() < 0.5:
            body = {"input_ids": [3] * 100_000, "sampling_params": {"max_new_tokens": 4}}
        self._count(*client.call("POST", "/generate", body))

    def _hangs_up(self, client: Client, chance: random.Random) -> None:
        events = client.events("/generate", _request(_prompt(chance), {"max_new_tokens": 64}))
        next(events)
        events.close()  # type: ignore[attr-defined]
        with self._lock:
            self._tally.hung_up += 1

    def _count(self, status: int, text: str) -> bool:
        """Whether it was an answer. Raises RuntimeError for what is neither that nor a refusal."""
        document = json.loads(text)
        if status == 200:
            tokens = document.get("output_ids") or [0] * document["usage"]["completion_tokens"]
            self._answered("200", len(tokens))
            return True
        reason = json.dumps(document.get("error") or document.get("message") or "")
        if not 400 <= status < 600 or len(reason) < 10:
            raise RuntimeError(f"status {status} without a reason: {text[:120]}")
        with self._lock:
            self._tally.refused += 1
            self._statuses[str(status)] += 1
        return False

    def _answered(self, status: str, tokens: int) -> None:
        with self._lock:
            self._tally.answered += 1
            self._tally.tokens += tokens
            self._statuses[status] += 1

    def _compare(self, key: str, ids: list[int]) -> None:
        with self._lock:
            known = self._known.setdefault(key, ids)
            if known != ids:
                self._tally.different.append(f"{key!r}: {known[:12]}... and {ids[:12]}..."[:300])


def _prompt(chance: random.Random) -> str:
    start = chance.randrange(len(WORDS) - 4)
    return " ".join(WORDS[start : start + chance.randint(2, 4)])


def _request(prompt: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"text": prompt, "sampling_params": params}


def main() -> int:
    """The tally as JSON; 1 if it is not sound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=12)
    chosen = parser.parse_args()
    tally = Load(chosen.address, chosen.seconds, chosen.workers).run()
    print(json.dumps(asdict(tally), indent=2))
    return 0 if tally.sound else 1


if __name__ == "__main__":
    sys.exit(main())
