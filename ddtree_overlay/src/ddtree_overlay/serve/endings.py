"""How `serve` ends: its exit codes, and what is said of each."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """`serve`'s exit codes from the moment the server process exists."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    STOPPED = 0, "stopped as asked; every request in flight was answered"
    REQUESTS_CUT = 80, "stopped as asked; requests in flight were cut when the drain ended"
    SERVER_KILLED = 81, "stopped as asked; the server did not end by itself and was killed"
    SERVER_DIED = 82, "the server ended by itself"
    WORKER_DIED = 83, "a worker of the server ended and the server went on without it"
    NOT_READY = 84, "the model did not answer within start_seconds"
    STALLED = 85, "requests waited and nothing came out (only where asked to end then)"
    UNKILLABLE = 87, "processes were left that even SIGKILL did not end"


@dataclass(frozen=True)
class Ending:
    """A code, what happened, and what to do (empty: nothing)."""

    code: int
    what: str
    remedy: str = ""

    def lines(self) -> list[str]:
        """What stderr gets."""
        if self.code == ExitCode.STOPPED:
            return [f"ddtree: {self.what}"]
        lines = [f"error: {self.what} (exit code {int(self.code)})"]
        return [*lines, f"remedy: {self.remedy}"] if self.remedy else lines


def describe(status: int) -> str:
    """An exit status as subprocess has it, in words."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"by signal {-status}"


def hint(status: int, *, loading: bool, out_of_memory: bool) -> str:
    """What an exit status tells about the cause, and what to do first."""
    if out_of_memory:
        return "the kernel killed a process for lack of host memory: raise the container's limit"
    if status == -signal.SIGBUS:
        return "shared memory is probably too small: --shm-size 16g, or --ipc=host"
    if status in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE):
        return "native code crashed: look for Xid in the host's kernel log, and run `ddtree doctor`"
    if loading:
        return (
            "the server's last lines above say why; run `ddtree doctor`, and if it is CUDA out of"
            " memory, lower DDTREE_MEMORY_FRACTION or DDTREE_CONTEXT_LENGTH"
        )
    return (
        "the server's last lines above say why (SGLang ends itself when a worker crashes); look for"
        " Xid in the host's kernel log"
    )


def out_of_memory_kills() -> int:
    """How often the kernel killed in this container for lack of memory; 0 if it does not say."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            for line in Path(path).read_text(encoding="utf-8").splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        except (OSError, ValueError):
            continue
    return 0
