"""What /proc and /sys say, below a root that tests replace. A missing file never raises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNLIMITED = float("inf")
# cgroup v1 writes "no limit" as the largest multiple of the page size.
_V1_UNLIMITED = 1 << 60


def read_text(path: Path) -> str | None:
    """A small file's text; None when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mounts."""

    source: str
    point: str
    kind: str
    options: tuple[str, ...]


def mounts(root: Path) -> list[Mount]:
    """In the kernel's order: of two on one point the later is the visible one."""
    found = []
    for line in (read_text(root / "proc/self/mounts") or "").splitlines():
        fields = [_unescape(field) for field in line.split(" ")]
        if len(fields) >= 4:
            found.append(Mount(fields[0], fields[1], fields[2], tuple(fields[3].split(","))))
    return found


def mount_of(root: Path, path: Path) -> Mount | None:
    """The mount that holds a path of this container (which need not exist)."""
    target = PurePosixPath(path)
    holding = [mount for mount in mounts(root) if target.is_relative_to(mount.point)]
    if not holding:
        return None
    longest = max(len(PurePosixPath(mount.point).parts) for mount in holding)
    return [m for m in holding if len(PurePosixPath(m.point).parts) == longest][-1]


def _unescape(field: str) -> str:
    """The kernel writes blanks in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def limit(root: Path, name: str) -> tuple[float, float] | None:
    """(soft, hard) of a line of /proc/self/limits, such as "Max locked memory"; None if absent."""
    for line in (read_text(root / "proc/self/limits") or "").splitlines():
        if line.startswith(name + " "):
            soft, hard = line[len(name) :].split()[:2]
            return _number(soft), _number(hard)
    return None


def status(root: Path, name: str) -> str | None:
    """A field of /proc/self/status, such as "Cpus_allowed_list"."""
    found = re.search(rf"^{name}:\s*(.*)$", read_text(root / "proc/self/status") or "", re.M)
    return found.group(1).strip() if found else None


def number_set(text: str) -> set[int]:
    """The kernel's list format: "0-3,8" is {0, 1, 2, 3, 8}."""
    numbers: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def memory_available(root: Path) -> int | None:
    """MemAvailable of the host, bytes."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", read_text(root / "proc/meminfo") or "", re.M)
    return int(found.group(1)) * 1024 if found else None


def cgroup_cpus(root: Path) -> float:
    """CPUs' worth of time that the cgroups allow; infinite without a quota."""
    allowed = UNLIMITED
    for text in _cgroup_files(root, "cpu.max"):
        quota, _, period = text.partition(" ")
        if quota != "max" and period:
            allowed = min(allowed, int(quota) / int(period))
    quotas = list(_cgroup_files(root, "cpu.cfs_quota_us", "cpu"))
    periods = list(_cgroup_files(root, "cpu.cfs_period_us", "cpu"))
    for quota, period in zip(quotas, periods, strict=False):
        if int(quota) > 0:
            allowed = min(allowed, int(quota) / int(period))
    return allowed


def cgroup_memory(root: Path) -> float:
    """Bytes that the cgroups allow; infinite without a limit."""
    values = [
        *_cgroup_files(root, "memory.max"),
        *_cgroup_files(root, "memory.limit_in_bytes", "memory"),
    ]
    numbers = [_number(value) for value in values]
    return min((n for n in numbers if n < _V1_UNLIMITED), default=UNLIMITED)


def cgroup_tasks(root: Path) -> float:
    """Processes and threads that the cgroups allow."""
    values = [*_cgroup_files(root, "pids.max"), *_cgroup_files(root, "pids.max", "pids")]
    return min((_number(value) for value in values), default=UNLIMITED)


def _cgroup_files(root: Path, name: str, controller: str = "") -> Iterator[str]:
    """The file of our cgroup and of each one above it: every one of them binds.

    `controller` "" is cgroup v2. In a cgroup namespace the path is "/" and the mount is the
    container's own; without one the path is the host's, and it may or may not be visible.
    """
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers
        if controller and not base.is_dir():
            base = root / "sys/fs/cgroup" / controller
        parts = PurePosixPath(path).parts[1:]
        for depth in range(len(parts), -1, -1):
            text = read_text(base.joinpath(*parts[:depth]) / name)
            if text is not None and text.strip():
                yield text.strip()


def _number(text: str) -> float:
    return UNLIMITED if text in {"unlimited", "max"} else float(text)


def mib(size: float) -> str:
    """Bytes for people: "512 MiB", "94.5 GiB"."""
    if size == UNLIMITED:
        return "unlimited"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
