"""The processes that a server started, found through /proc, also those that left its group.

A child that calls setsid is still found by its parent's id; one whose parent ended is given to this
process, which is a subreaper; and what was once seen is remembered, for where the kernel refuses
that.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One line of /proc/*/stat.

    `started`, in clock ticks, tells a process from a later one with its id; `state` is ps's letter;
    `exit_code` is a zombie's wait status, 0 where it is not ours to see.
    """

    pid: int
    parent: int
    session: int
    state: str
    started: int
    exit_code: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """What identifies it for good."""
        return (self.pid, self.started)

    @property
    def ended(self) -> bool:
        """It holds nothing any more but its entry."""
        return self.state in "ZX"


def become_subreaper() -> bool:
    """Have orphans given to this process rather than to PID 1. False where that is refused."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def processes() -> dict[int, Process]:
    """Every process that /proc shows."""
    found: dict[int, Process] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            process = _read(int(entry.name))
            if process is not None:
                found[process.pid] = process
    return found


def _read(pid: int) -> Process | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may itself hold blanks and parentheses.
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20:
        return None
    exit_code = int(fields[49]) if len(fields) > 49 else 0
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19]), exit_code)


def title(pid: int) -> str:
    """The command line as it reads now (a process may rename itself); "" if it cannot be read."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def _below(table: dict[int, Process], root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


class ProcessTree:
    """Everything below this process that came with or after the server.

    The caller's own earlier children (a checker that still runs) are left alone.
    """

    def __init__(self) -> None:
        table = processes()
        self._spared = {table[pid].key for pid in _below(table, os.getpid()) if pid in table}
        self._known: set[tuple[int, int]] = set()
        self._sessions: set[int] = set()

    def add(self, pid: int) -> None:
        """The server, which leads a session of its own."""
        process = _read(pid)
        if process is not None:
            self._known.add(process.key)
        self._sessions.add(pid)

    def members(self) -> list[Process]:
        """Those that are left now, zombies too."""
        table = processes()
        pids = _below(table, os.getpid())
        for process in table.values():
            if process.session in self._sessions or process.key in self._known:
                pids.add(process.pid)
                pids |= _below(table, process.pid)
        found = [table[pid] for pid in pids if pid in table and table[pid].key not in self._spared]
        self._known.update(process.key for process in found)
        return found

    def alive(self) -> list[Process]:
        """Those that can still hold memory, a GPU or a port."""
        return [process for process in self.members() if not process.ended]

    def signal(self, number: signal.Signals, spare: int | None = None) -> list[int]:
        """Send to all that are alive, but for one. The ids of those that were sent it."""
        sent = []
        for process in self.alive():
            if process.pid == spare:
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
                sent.append(process.pid)
        return sent

    def usage(self) -> tuple[int, int]:
        """Bytes resident (pages shared between processes count in each) and bytes read so far."""
        resident = read = 0
        page = os.sysconf("SC_PAGE_SIZE")
        for process in self.alive():
            folder = _PROC / str(process.pid)
            with suppress(OSError, ValueError, IndexError):
                resident += int((folder / "statm").read_text().split()[1]) * page
            with suppress(OSError, ValueError):
                for line in (folder / "io").read_text().splitlines():
                    if line.startswith("rchar:"):
                        read += int(line.split()[1])
        return resident, read
