"""Notices a worker of the server that is gone while the server goes on.

SGLang's own watchdog ends the server after such a crash; this is for when it does not: on nodes of
rank > 0 it has none, and one that hangs cannot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from ddtree_overlay.serve.process_tree import Process, title

# SGLang names its processes so; other children (compilers, probes) come and go.
_WORKER_TITLE = "sglang::"


class WorkerWatch:
    """Remembers the workers it saw and since when each is gone."""

    def __init__(self, grace_seconds: float, title_of: Callable[[int], str] = title) -> None:
        self._grace = grace_seconds
        self._title_of = title_of
        self._seen: dict[tuple[int, int], str] = {}
        self._gone: dict[tuple[int, int], float] = {}

    def lost(self, members: Iterable[Process], server: int, now: float) -> str | None:
        """A worker that has been gone for longer than the grace, in words."""
        table = {process.key: process for process in members}
        for key, process in table.items():
            if process.ended:
                # Nobody has asked for its status: an unnoticed crash if a signal ended it. A plain
                # failure may be a compiler's or a prober's, which nobody misses.
                if process.parent == server and os.WIFSIGNALED(process.exit_code):
                    self._seen.setdefault(key, "a child of the server")
            elif process.pid != server and key not in self._seen:
                name = self._title_of(process.pid)
                # A fork has its parent's title until it becomes another program (a compiler, a
                # prober), and ends whenever it likes.
                if name.startswith(_WORKER_TITLE) and name != self._title_of(process.parent):
                    self._seen[key] = name.split()[0]
        for key, name in self._seen.items():
            known = table.get(key)
            if known is not None and not known.ended:
                continue
            since = self._gone.setdefault(key, now)
            if now - since > self._grace:
                return f"{name} (process {key[0]})"
        return None
