"""Ports for servers: free, and none that the kernel gives to outgoing connections."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from ddtree_overlay.selftest import server
from ddtree_overlay.selftest.server import FIRST_PORT, TRIES, free_port


def hold(stack: ExitStack, port: int) -> None:
    taken = stack.enter_context(socket.socket())
    taken.bind(("127.0.0.1", port))


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port()
    monkeypatch.setattr(server, "FIRST_PORT", first)
    monkeypatch.setattr(server, "_first_outgoing", lambda: first + 1)
    monkeypatch.setattr(server, "TRIES", 1)
    assert free_port() == first
    with ExitStack() as stack:
        hold(stack, first)
        with pytest.raises(OSError, match="no free port"):
            free_port()


def test_an_outgoing_connection_cannot_take_it() -> None:
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        made = [
            stack.enter_context(socket.create_connection(listening.getsockname()))
            for _ in range(20)
        ]
        lowest = min(one.getsockname()[1] for one in made)
        assert all(FIRST_PORT <= free_port() < lowest for _ in range(20))
    assert lowest > FIRST_PORT + TRIES
