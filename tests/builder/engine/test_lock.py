from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from builder.engine.lock import exclusive, is_free


def test_the_second_waits_until_the_first_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "cache/engine-data.lock"
    events: list[str] = []
    said = threading.Event()

    def warn(message: str) -> None:
        events.append(message)
        said.set()

    def second() -> None:
        with exclusive(lock):
            events.append("second")

    monkeypatch.setattr("builder.engine.lock.console.warn", warn)
    waiter = threading.Thread(target=second, daemon=True)
    with exclusive(lock):
        assert not is_free(lock)
        waiter.start()
        assert said.wait(30)
        events.append("first")
    waiter.join(30)
    assert events[1:] == ["first", "second"]
    assert "waiting" in events[0]
    assert str(os.getpid()) in events[0]
    assert is_free(lock)


def test_a_lock_nobody_made_is_free(tmp_path: Path) -> None:
    assert is_free(tmp_path / "none")


def test_the_data_root_stays_held_while_anything_of_the_engine_lives(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with exclusive(lock) as descriptor:
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(descriptor,)
        )
    assert not is_free(lock)
    child.communicate(b"\n")
    assert is_free(lock)
