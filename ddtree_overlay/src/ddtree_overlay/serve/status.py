"""What is known of the running server, and the three judgements made of it: live, ready, progress.

Times are of time.monotonic(), in seconds. One lock: the supervisor writes, the probes read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

# The supervisor's loop turns four times a second; its longest step is reading /proc.
HEARTBEAT_SECONDS = 15.0
# A busy server may be late to answer; one late answer (the poll waits 5 s) must not flap.
ANSWER_SECONDS = 15.0


class Phase(str, Enum):
    """Where the appliance is between its start and its end."""

    CHECKING = "checking"
    LOADING = "loading"
    READY = "ready"  # the model has answered; whether it still does is readiness
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(frozen=True)
class Answer:
    """What the server said of itself (GET /health/ddtree), and when.

    waiting_age: seconds that the model has had the oldest request of those that it has not ended;
    None if it has none. A request in flight need not be with the model: its body may still be
    coming, or its answer be on the way to a slow reader.
    """

    at: float
    status: str = "Up"
    draining: bool = False
    in_flight: int | None = None
    last_output_age: float | None = None
    waiting_age: float | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Judgement:
    """Yes or no, and why in a few words."""

    yes: bool
    why: str


@dataclass
class Status:
    """The state, and the judgements. Every method may be called from any thread."""

    build: Mapping[str, str] = field(default_factory=dict)
    progress_seconds: float = 120.0
    node_rank: int = 0
    phase: Phase = Phase.CHECKING
    answer: Answer | None = None
    error: str = ""  # of the latest poll, if it failed
    server_pid: int | None = None
    address: str = ""
    _heartbeat: float | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        self._started = self._since = time.monotonic()

    def set_phase(self, phase: Phase) -> None:
        """Enter a phase; entering the present one changes nothing."""
        with self._lock:
            if phase is not self.phase:
                self.phase = phase
                self._since = time.monotonic()

    def beat(self) -> None:
        """The supervisor's loop has turned."""
        self._heartbeat = time.monotonic()

    def heard(self, answer: Answer) -> None:
        """The server answered."""
        with self._lock:
            self.answer, self.error = answer, ""

    def missed(self, error: str) -> None:
        """The server did not answer."""
        self.error = error

    def live(self) -> Judgement:
        """The appliance itself works, whatever its server does."""
        beat = self._heartbeat
        if beat is None:  # not supervising yet: that this is answered is all there is
            return Judgement(True, self.phase.value)
        age = time.monotonic() - beat
        if age > HEARTBEAT_SECONDS:
            return Judgement(False, f"the supervisor has been stuck for {age:.0f} s")
        return Judgement(True, self.phase.value)

    def ready(self) -> Judgement:
        """A request sent now would be taken and answered."""
        with self._lock:
            if self.phase is not Phase.READY:
                seconds = time.monotonic() - self._since
                return Judgement(False, f"{self.phase.value} for {seconds:.0f} s")
            answer = self.answer
            if answer is None:
                return Judgement(False, "the server has not answered yet")
            age = time.monotonic() - answer.at
            if age > ANSWER_SECONDS:
                return Judgement(False, f"the server has not answered for {age:.0f} s {self.error}")
            if answer.draining:
                return Judgement(False, "the server is draining")
            if answer.status != "Up":
                return Judgement(False, f"the server says {answer.status}")
            return Judgement(True, "ready")

    def stalled(self) -> float | None:
        """Seconds without output though a request waits; None while none waits."""
        with self._lock:
            answer = self.answer
            if answer is None or answer.waiting_age is None:
                return None
            ages = [answer.waiting_age]
            if answer.last_output_age is not None:
                ages.append(answer.last_output_age)
            return min(ages) + time.monotonic() - answer.at

    def progress(self) -> Judgement:
        """Tokens move while requests wait; an idle server makes all the progress there is."""
        stalled = self.stalled()
        if stalled is None:
            return Judgement(True, "no request waits")
        if stalled > self.progress_seconds:
            return Judgement(False, f"requests wait and nothing came out for {stalled:.0f} s")
        return Judgement(True, "tokens move")

    def as_json(self) -> dict[str, Any]:
        """GET /status."""
        live, ready, progress = self.live(), self.ready(), self.progress()
        with self._lock:
            now, answer = time.monotonic(), self.answer
            return {
                "phase": self.phase.value,
                "live": live.yes,
                "ready": ready.yes,
                "progress": progress.yes,
                "why": next((j.why for j in (live, ready, progress) if not j.yes), ready.why),
                "phase_seconds": round(now - self._since, 1),
                "up_seconds": round(now - self._started, 1),
                "stalled_seconds": _rounded(self.stalled()),
                "in_flight": answer.in_flight if answer else None,
                "last_output_age": _rounded(answer.last_output_age) if answer else None,
                "tokens": answer.tokens if answer else None,
                "server": {
                    "pid": self.server_pid,
                    "address": self.address,
                    "status": answer.status if answer else None,
                    "draining": answer.draining if answer else False,
                    "answer_age": round(now - answer.at, 1) if answer else None,
                    "error": self.error,
                },
                "node_rank": self.node_rank,
                "pid": os.getpid(),
                "build": dict(self.build),
            }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
