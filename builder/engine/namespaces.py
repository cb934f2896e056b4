"""Programs in namespaces of their own: what they mount and start ends with them."""

from __future__ import annotations

import time
from pathlib import Path

_START_SECONDS = 10.0


def contained(*more: str) -> list[str]:
    """Command prefix: own mount and process namespaces, plus those of `more` (`--net`).

    Each process on the way down asks to be killed when its parent dies, and the end of a process
    namespace's first process ends all others in it: a builder killed by any signal leaves nothing
    running and nothing mounted. The parent is the calling thread: call from the main one.
    """
    own = ["--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *more, *own, "--"]


def has_own_network(pid: int) -> bool:
    """Wait until process `pid` has left our network namespace; False if it ends instead."""
    own = Path("/proc/self/ns/net").readlink()
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/ns/net").readlink() != own:
                return True
        except OSError:
            return False
        time.sleep(0.01)
    return False
