"""The private engine's way out: a network namespace of its own behind slirp4netns.

slirp4netns is NAT in user space: it opens ordinary sockets on the host, so no interface, route,
firewall rule or sysctl of the host changes and nothing has to be undone. A veth pair with NAT
would be faster, but needs ip_forward and firewall rules on the host.
The size of the tap device's packets does not meet the uplink: TCP ends inside slirp4netns and
leaves the host in the kernel's own segments, which keep to the uplink's MTU. So the tap may be
large, which is what makes it fast.
"""

from __future__ import annotations

import os
import select
import subprocess
from pathlib import Path

from builder.errors import EngineStartError

TAP_MTU = 65520  # the largest slirp4netns takes
NAMESERVER = "10.0.2.3"  # slirp4netns' own, forwards to the host's even if that is on loopback
_READY_SECONDS = 15.0


def resolv_conf(host: str) -> str:
    """The host's resolv.conf with slirp4netns as the only name server."""
    kept = [line for line in host.splitlines() if line.split()[:1] in (["search"], ["options"])]
    return "\n".join([f"nameserver {NAMESERVER}", *kept]) + "\n"


def start_slirp(
    program: Path, pid: int, env: dict[str, str], log: Path
) -> tuple[subprocess.Popen[str], int]:
    """Give the namespace of `pid` its uplink. Returns the process and its exit descriptor.

    slirp4netns ends when the descriptor is closed, so also when this process dies in any way.
    Raises EngineStartError.
    """
    ready_read, ready_write = os.pipe()
    exit_read, exit_write = os.pipe()
    argv = [str(program), "--configure", f"--mtu={TAP_MTU}", "--disable-host-loopback"]
    argv += [f"--ready-fd={ready_write}", f"--exit-fd={exit_read}", "--netns-type=path"]
    argv += [f"/proc/{pid}/ns/net", "tap0"]
    with log.open("w") as handle:
        child = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            text=True,
            pass_fds=(ready_write, exit_read),
            start_new_session=True,
        )
    os.close(ready_write)
    os.close(exit_read)
    try:
        readable, _, _ = select.select([ready_read], [], [], _READY_SECONDS)
        answered = bool(readable) and os.read(ready_read, 1) == b"1"
    finally:
        os.close(ready_read)
    if not answered:
        os.close(exit_write)
        child.kill()
        child.wait()
        lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
        raise EngineStartError(
            f"slirp4netns gave the private engine no network: {lines[-1]}",
            f"see {log}; /dev/net/tun must exist and be usable",
        )
    return child, exit_write
