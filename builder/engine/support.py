"""Whether a private engine can be started on this machine, and from which packages."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from builder.engine.aptsources import AptUnavailableError, host_mirror
from builder.engine.packages import Want
from builder.pins import EnginePins

_HOST_PROGRAMS = ("apt-get", "dpkg-deb", "ldd", "mount", "nsenter", "setpriv", "sh", "unshare")


@dataclass(frozen=True)
class Reason:
    """Why not, and what would help."""

    what: str
    remedy: str


@dataclass(frozen=True)
class Machine:
    """What decides; tests make their own."""

    system: str
    architecture: str
    uid: int
    distribution: frozenset[str]
    has_tun: bool
    has_program: Callable[[str], bool]
    has_mirror: Callable[[], object]


def this_machine() -> Machine:
    """The machine we run on."""
    return Machine(
        system=sys.platform,
        architecture=platform.machine(),
        uid=os.geteuid() if hasattr(os, "geteuid") else -1,
        distribution=distribution(),
        has_tun=Path("/dev/net/tun").exists(),
        has_program=lambda name: which(name) is not None,
        has_mirror=host_mirror,
    )


def distribution(path: Path = Path("/etc/os-release")) -> frozenset[str]:
    """ID and ID_LIKE of os-release(5)."""
    try:
        text = path.read_text()
    except OSError:
        return frozenset()
    found: set[str] = set()
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in {"ID", "ID_LIKE"}:
            found.update(value.strip().strip("\"'").split())
    return frozenset(found)


def why_not_private(machine: Machine | None = None) -> Reason | None:
    """None if a private engine can be started, else the first thing in its way."""
    here = machine or this_machine()
    absent = [name for name in _HOST_PROGRAMS if not here.has_program(name)]
    obstacles = [
        (
            here.system != "linux" or not here.distribution & {"debian", "ubuntu"},
            Reason("this is neither Debian nor Ubuntu", "build on Debian or Ubuntu as root"),
        ),
        (
            here.architecture != "x86_64",
            Reason(f"the appliance is for x86_64, not {here.architecture}", "build on x86_64"),
        ),
        (here.uid != 0, Reason("a private engine needs root", "run the same command as root")),
        (
            bool(absent),
            Reason(
                f"{', '.join(absent)} not found",
                "install the packages apt, dpkg, libc-bin, mount and util-linux",
            ),
        ),
        (not here.has_tun, Reason("/dev/net/tun is missing", "run `modprobe tun`")),
    ]
    for applies, reason in obstacles:
        if applies:
            return reason
    try:
        here.has_mirror()
    except AptUnavailableError as exc:
        return Reason(exc.what, exc.remedy)
    return None


def engine_wants(pins: EnginePins) -> list[Want]:
    """Packages of the private engine; the older suite comes last because its runc must win."""
    return [
        Want(pins.suite, tuple(sorted(pins.packages))),
        Want(pins.runc_suite, tuple(sorted(pins.runc_packages)), libraries=True),
    ]
