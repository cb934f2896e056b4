"""Signals as exceptions: not in the midst of a start, and once."""

from __future__ import annotations

import os
import signal
import time

import pytest

from ddtree_overlay.selftest.interrupts import Interrupted, interruptible
from tests.overlay.selftest.conftest import Bench


def test_a_signal_waits_for_the_end_of_a_held_block() -> None:
    done = []
    with pytest.raises(Interrupted) as raised, interruptible() as interrupts:
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("in the block")
        done.append("after it")
    assert done == ["in the block"]
    assert raised.value.number == signal.SIGTERM


def test_a_second_signal_does_not_disturb_the_cleaning_up() -> None:
    cleaned = []
    with pytest.raises(Interrupted), interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            cleaned.append(True)
    assert cleaned == [True]


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interruptible():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_impatient_user_leaves_nothing_either(bench: Bench) -> None:
    process = bench.start(fault="never-ready", STUB_STUBBORN="1")
    deadline = time.monotonic() + 60
    while not (bench.root / "stub/tree.child").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert bench.left() == []
