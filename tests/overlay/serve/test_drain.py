"""SIGTERM inside the server process, with uvicorn and SGLang's manager played by the test."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_overlay.sglang import drain as module
from ddtree_overlay.sglang.drain import Drain
from ddtree_overlay.sglang.gate import Gate


class Uvicorn:
    """As uvicorn.Server, for what the drain uses of it."""

    def __init__(self) -> None:
        self.should_exit = False
        self.config = SimpleNamespace(timeout_graceful_shutdown=None)

    def handle_exit(self, *_: object) -> None:
        raise AssertionError("uvicorn's own handler would cut requests")


@pytest.fixture
def uvicorn() -> Iterator[Uvicorn]:
    server = Uvicorn()
    before = signal.signal(signal.SIGTERM, server.handle_exit)
    yield server
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The managers whose schedulers were told to end."""
    managers: list[Any] = []

    async def release(manager: Any) -> None:
        managers.append(manager)

    monkeypatch.setattr(module, "_release_schedulers", release)
    return managers


def made() -> tuple[Gate, Drain]:
    gate = Gate()
    gate.manager = SimpleNamespace(rid_to_state={"a": 1}, gracefully_exit=False)
    return gate, Drain(gate)


async def soon(condition: Callable[[], bool]) -> bool:
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


def test_it_waits_for_the_last_request_and_then_ends_uvicorn(
    uvicorn: Uvicorn, released: list[Any]
) -> None:
    async def play() -> None:
        gate, drain = made()
        drain.install()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await soon(lambda: gate.draining)
        assert gate.manager.gracefully_exit
        os.kill(os.getpid(), signal.SIGTERM)  # a second one changes nothing
        await asyncio.sleep(4 * module.POLL_SECONDS)
        assert not released and not uvicorn.should_exit and not drain.done
        gate.manager.rid_to_state.clear()
        assert await soon(lambda: uvicorn.should_exit)
        assert released == [gate.manager] and drain.done
        assert uvicorn.config.timeout_graceful_shutdown == module.FLUSH_SECONDS

    asyncio.run(play())


def test_a_drain_that_fails_still_ends_uvicorn(
    uvicorn: Uvicorn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(manager: Any) -> None:
        raise RuntimeError("no scheduler to be told")

    monkeypatch.setattr(module, "_release_schedulers", fail)

    async def play() -> None:
        gate, drain = made()
        gate.manager.rid_to_state.clear()
        drain.install()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await soon(lambda: uvicorn.should_exit)

    asyncio.run(play())


def test_another_servers_handler_is_an_error_at_the_start() -> None:
    async def play() -> None:
        with pytest.raises(RuntimeError, match="not by uvicorn"):
            made()[1].install()

    asyncio.run(play())
