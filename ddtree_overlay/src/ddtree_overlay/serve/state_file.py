"""Where a running appliance leaves its process id and probe port for `ddtree health`.

One file per PID namespace, so a health check finds its own container's appliance also where
/dev/shm is the host's.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT_UID = 0


@dataclass(frozen=True)
class State:
    """pid: the supervisor's. host: what the probes are bound to."""

    pid: int
    host: str
    port: int


def candidates() -> list[Path]:
    """Where the file may be, best first. /dev/shm is writable under a read-only root."""
    try:
        namespace = (Path("/proc/self/ns/pid")).stat().st_ino
    except OSError:
        namespace = 0
    name = f"ddtree-{namespace}.json"
    return [Path("/dev/shm") / name, Path(tempfile.gettempdir()) / name]  # noqa: S108


def write_state(state: State) -> Path | None:
    """Write it whole or not at all, mode 0600. None where no folder can be written: then a health
    check has to be told the port by DDTREE_PROBE_PORT, or guesses the default."""
    for path in candidates():
        temporary = None
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=".ddtree-", dir=path.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(state), file)
            Path(temporary).replace(path)  # fails on another user's file in a sticky folder
            return path
        except OSError:
            if temporary is not None:
                with suppress(OSError):
                    Path(temporary).unlink()
    return None


def remove_state(path: Path | None) -> None:
    """Remove it if it is still ours; one that a later appliance replaced stays."""
    if path is None:
        return
    state = _read(path)
    if state is not None and state.pid == os.getpid():
        with suppress(OSError):
            path.unlink()


def read_state() -> State | None:
    """The state of the appliance in this PID namespace, if it can be read and is to be believed."""
    for path in candidates():
        state = _read(path)
        if state is not None:
            return state
    return None


def _read(path: Path) -> State | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            # The name can be guessed and the folder is everybody's.
            if os.fstat(file.fileno()).st_uid not in {os.geteuid(), ROOT_UID, *_ours()}:
                return None
            raw = json.load(file)
        return _parsed(raw)
    except (OSError, ValueError):
        return None


def _ours() -> set[int]:
    """Root may look at anybody's appliance (`docker exec -u 0`)."""
    if os.geteuid() != ROOT_UID:
        return set()
    try:
        return {(Path("/proc/1")).stat().st_uid}
    except OSError:
        return set()


def _parsed(raw: object) -> State | None:
    if not isinstance(raw, Mapping):
        return None
    pid, host, port = raw.get("pid"), raw.get("host"), raw.get("port")
    if type(pid) is int and isinstance(host, str) and type(port) is int and 0 < port < 65536:
        return State(pid, host, port)
    return None
