"""The supervisor's signals: requests to stop are counted, a child's end wakes it."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """While entered (in the main thread), `stops` counts the requests to stop; the latest's name is
    in `latest`."""

    def __init__(self) -> None:
        self.stops = 0
        self.latest = ""
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._stop)
        self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        os.close(self._reading)
        os.close(self._writing)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        self.latest = signal.Signals(number).name

    def wait(self, seconds: float) -> None:
        """Sleep; a signal wakes it."""
        select.select([self._reading], [], [], seconds)
        with suppress(BlockingIOError):
            while os.read(self._reading, 512):
                pass
