"""The server's process and everything below it: started, watched, and ended whole."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from ddtree_overlay.serve.launch_spec import Launch, start_server
from ddtree_overlay.serve.process_tree import Process, ProcessTree, become_subreaper
from ddtree_overlay.serve.signals import StopSignals

TREE_SECONDS = 1.0
# A process that the driver holds in the kernel does not die; the container must end all the same.
UNKILLABLE_SECONDS = 30.0
# Between two rounds of ending: long enough to cost nothing, too short for much to be forked.
_ROUND_SECONDS = 0.05


class ServerProcess:
    """One server. Until it has ended, the reaping of every child of this process is its own.

    pid: the server's. exit: as subprocess has it, None while it runs. members: its processes,
    zombies too, as of the last look.
    """

    def __init__(self, launch: Launch) -> None:
        """Start it. Raises EntryError where that fails."""
        become_subreaper()
        self._tree = ProcessTree()
        self._process = start_server(launch)
        self.pid = self._process.pid
        self.exit: int | None = None
        self.members: list[Process] = []
        self._looked = time.monotonic()
        self._tree.add(self.pid)

    def look(self) -> None:
        """Reap what has ended; once a second, see what there is."""
        self._reap()
        if time.monotonic() - self._looked >= TREE_SECONDS:
            self._looked = time.monotonic()
            self.members = self._tree.members()

    def terminate(self) -> None:
        """SIGTERM to the server alone."""
        if self.exit is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def usage(self) -> tuple[int, int]:
        """As ProcessTree.usage."""
        return self._tree.usage()

    def end(
        self, signals: StopSignals, kill_seconds: float, beat: Callable[[], None] = lambda: None
    ) -> list[Process]:
        """SIGTERM to all, SIGKILL to what is left after the bound or at a further request to stop.

        Returns what is left even then. `beat` is called all the while.
        """
        began, stops = time.monotonic(), signals.stops
        self._tree.signal(signal.SIGTERM)
        # Twice: a process may be born behind the reader's back.
        while alive := self._remaining() or self._remaining():
            elapsed = time.monotonic() - began
            if elapsed > kill_seconds + UNKILLABLE_SECONDS:
                return alive
            if elapsed >= kill_seconds or signals.stops > stops:
                # Again and again: a process may have forked before it was killed.
                self._tree.signal(signal.SIGKILL)
            signals.wait(_ROUND_SECONDS)
            beat()
        return []

    def _remaining(self) -> list[Process]:
        self._reap()
        return self._tree.alive()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.pid:
                    self.exit = os.waitstatus_to_exitcode(status)
                    self._process.returncode = self.exit
