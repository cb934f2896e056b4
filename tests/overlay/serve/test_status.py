"""Live, ready and progress, over what the server says and how long ago it said it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_overlay.serve import status as module
from ddtree_overlay.serve.status import Answer, Phase, Status


class Clock:
    """time.monotonic() of the module under test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def ready_status(clock: Clock, **answer: Any) -> Status:
    status = Status(progress_seconds=120)
    status.beat()
    status.set_phase(Phase.READY)
    status.heard(Answer(clock.now, **answer))
    return status


@pytest.mark.parametrize("phase", list(Phase))
def test_only_the_ready_phase_can_be_ready(clock: Clock, phase: Phase) -> None:
    status = ready_status(clock)
    status.set_phase(phase)
    assert status.ready().yes is (phase is Phase.READY)
    assert status.live().yes


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"status": "UnHealthy"}, "UnHealthy"),
        ({"status": "Starting"}, "Starting"),
        ({"draining": True}, "draining"),
    ],
)
def test_readiness_is_lost_with_the_servers_word(
    clock: Clock, answer: dict[str, Any], why: str
) -> None:
    judgement = ready_status(clock, **answer).ready()
    assert not judgement.yes and why in judgement.why


def test_readiness_survives_late_answers_and_not_silence(clock: Clock) -> None:
    status = ready_status(clock)
    clock.now += module.ANSWER_SECONDS - 1
    status.missed("timed out")
    assert status.ready().yes
    clock.now += 2
    assert not status.ready().yes and "timed out" in status.ready().why
    status.heard(Answer(clock.now))
    assert status.ready().yes


def test_liveness_needs_no_server_and_a_turning_loop(clock: Clock) -> None:
    status = Status()
    clock.now += 3600
    assert status.live().yes  # the checks before the server have bounds of their own
    status.beat()
    clock.now += module.HEARTBEAT_SECONDS + 1
    assert not status.live().yes
    status.beat()
    assert status.live().yes


@pytest.mark.parametrize(
    ("answer", "seconds", "stalled"),
    [
        # An idle server, for an hour.
        ({"in_flight": 0, "last_output_age": 3600.0}, 0, None),
        ({"in_flight": None}, 500, None),
        # A body that never comes, or a reader that does not read: the model has nothing to do.
        ({"in_flight": 3, "last_output_age": 3600.0}, 500, None),
        # The first request after an idle hour has not waited yet.
        ({"in_flight": 1, "last_output_age": 3600.0, "waiting_age": 1.0}, 0, 1.0),
        # Many wait, and tokens move.
        ({"in_flight": 9, "last_output_age": 0.5, "waiting_age": 900.0}, 0, 0.5),
        ({"in_flight": 1, "last_output_age": 300.0, "waiting_age": 200.0}, 0, 200.0),
        # It never produced anything.
        ({"in_flight": 1, "waiting_age": 130.0}, 0, 130.0),
        # It was busy when it last answered, and has not answered since.
        ({"in_flight": 1, "last_output_age": 1.0, "waiting_age": 2.0}, 150, 151.0),
    ],
)
def test_stalls(
    clock: Clock, answer: dict[str, Any], seconds: float, stalled: float | None
) -> None:
    status = ready_status(clock, **answer)
    clock.now += seconds
    assert status.stalled() == stalled
    assert status.progress().yes is (stalled is None or stalled <= 120)


def test_the_status_says_why() -> None:
    status = Status({"build_id": "b-1"})
    assert status.as_json()["why"].startswith("checking for")
    status.set_phase(Phase.READY)
    status.heard(Answer(time.monotonic(), in_flight=2, tokens=5))
    shown = status.as_json()
    assert (shown["why"], shown["in_flight"], shown["tokens"]) == ("ready", 2, 5)
    assert shown["build"] == {"build_id": "b-1"}
