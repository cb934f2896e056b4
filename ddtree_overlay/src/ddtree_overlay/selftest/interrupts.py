"""SIGTERM, SIGINT and SIGHUP as an exception, so that what was started is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked us to end. Not an Exception: nobody but the command itself may catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupts:
    """Raises Interrupted in the main thread, once; later signals do not disturb the cleaning up."""

    def __init__(self) -> None:
        self._held = False
        self._pending = 0
        self._raised = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self._raised:
            return
        if self._held:
            self._pending = number
            return
        self._raised = True
        raise Interrupted(number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block that is not interrupted in its midst, but right after it."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending and not self._raised:
            self._raised = True
            raise Interrupted(self._pending)


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Install the handlers for the block. Without effect outside the main thread."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.signal(number, interrupts) for number in SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
