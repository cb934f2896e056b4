"""Ports that must be free, and the address at which several hosts meet."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path

from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject
from ddtree_overlay.doctor.procfs import read_text

_ERROR = Severity.ERROR
REACH_SECONDS = 3.0
PROBES = "probes"

IN_USE = Code(
    "NET001",
    _ERROR,
    "A port is in use already.",
    "end what listens there (with --network host it may run on the host), or set another port",
)
TWICE = Code("NET002", _ERROR, "One port is meant for two purposes.", "set different ports")
CANNOT_BIND = Code(
    "NET003",
    _ERROR,
    "An address cannot be listened on.",
    "set host to an address of this machine (0.0.0.0 for all), and a port from 1024 up",
)
NO_MEETING_POINT = Code(
    "NET004",
    _ERROR,
    "Several hosts need an address at which they meet, and none that is usable is set.",
    "set dist_init_addr to HOST:PORT of the host with node_rank 0",
)
UNREACHABLE = Code(
    "NET005",
    Severity.WARNING,
    "The host with node_rank 0 cannot be reached yet.",
    "start it, and let its dist_init_addr through firewalls; this host waits for it",
)


def check_ports(subject: Subject) -> Iterator[Finding]:
    """Binds each address for a moment, as the server would."""
    taken: dict[int, str] = {}
    for purpose, (host, port) in subject.ports.items():
        if port in taken:
            yield TWICE.found(f"port {port} is set for {taken[port]} and for {purpose}")
            continue
        taken[port] = purpose
        if not 0 < port < 65536:
            yield CANNOT_BIND.found(f"{port} ({purpose}) is not a port")
            continue
        if subject.serving and purpose == PROBES:
            continue  # `serve` itself listens there by now
        try:
            _bind(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                who = listener(subject.root, port)
                yield IN_USE.found(
                    f"port {port} ({purpose}) is in use{f' by {who}' if who else ''}"
                )
            else:
                yield CANNOT_BIND.found(
                    f"{host}:{port} ({purpose}) cannot be listened on: {error.strerror or error}"
                )


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: a port that only waits in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen(1)


def listener(root: Path, port: int) -> str | None:
    """The pid and name of what listens on a port, as far as /proc shows it to us."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in (read_text(root / "proc/self/net" / table) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in (root / "proc").glob("[0-9]*"):
        if inodes.intersection(_open_files(process)):
            name = (read_text(process / "comm") or "unknown").strip()
            return f"pid {process.name} ({name})"
    return None


def _open_files(process: Path) -> Iterator[str]:
    """What a process has open; those of others are not ours to see, and some close meanwhile."""
    try:
        for link in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                yield str(link.readlink())
    except OSError:
        return


def check_meeting_point(subject: Subject) -> Iterator[Finding]:
    """Only for several hosts: the address is well-formed, resolves, and (rank > 0) answers."""
    if subject.nnodes < 2:
        return
    host, _, port = (subject.dist_init_addr or "").rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        yield NO_MEETING_POINT.found(f"dist_init_addr is {subject.dist_init_addr or 'not set'}")
        return
    try:
        socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        yield NO_MEETING_POINT.found(
            f"{host} of dist_init_addr does not resolve: {error}",
            severity=Severity.WARNING if subject.node_rank else None,
        )
        return
    if subject.node_rank == 0:
        return
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except OSError as error:
        yield UNREACHABLE.found(f"{subject.dist_init_addr}: {error.strerror or error}")


CHECKS = (
    Check("ports", "ports", (IN_USE, TWICE, CANNOT_BIND), check_ports),
    Check(
        "meeting-point",
        "address for several hosts",
        (NO_MEETING_POINT, UNREACHABLE),
        check_meeting_point,
    ),
)
