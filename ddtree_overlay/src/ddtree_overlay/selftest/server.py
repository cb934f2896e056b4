"""A server of ours in a process group of its own, which never outlives the self-test."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ddtree_overlay.selftest.client import Client
from ddtree_overlay.serve.errors import SelftestNotRunError
from ddtree_overlay.serve.launch import SERVER_PROGRAM

POLL_SECONDS = 0.2
TERM_SECONDS = 5.0
KILL_SECONDS = 10.0
LOG_LINES = 12
LINE_CHARACTERS = 400
FIRST_PORT, TRIES = 15000, 200


class Server:
    """One server process on 127.0.0.1, between `start` and `stop`."""

    def __init__(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        """`folder` (made if absent) becomes its working and temporary folder and holds its log."""
        self.name = name
        self.port = free_port()
        self.log = folder / f"{name}.log"
        self._argv = [*argv, "--host", "127.0.0.1", "--port", str(self.port)]
        self._environment = dict(environment)
        # Short: SGLang's sockets lie below it, and a socket's path has at most 107 bytes.
        self._folder = folder / name[:1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises SelftestNotRunError where the program cannot be executed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("wb") as output:
                self.process = subprocess.Popen(
                    self._argv,
                    cwd=self._folder,
                    env={**self._environment, "TMPDIR": str(self._folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise SelftestNotRunError(
                f"{self._argv[0]} cannot be started: {error.strerror}",
                "use the image as it was built",
            ) from None

    def wait_ready(self, deadline: float, watched: Sequence[Server] = ()) -> None:
        """Return when it answers /health with 200, which it does after its own warm-up request.

        Raises SelftestNotRunError with the end of a log, if it or one of `watched` dies, and at the
        deadline.
        """
        client = Client(self.port, deadline)
        while time.monotonic() < deadline:
            for server in (self, *watched):
                server.check_alive()
            if client.status("/health") == 200:
                return
            time.sleep(POLL_SECONDS)
        raise self.failure("did not come up in time", "raise --timeout, or read the log")

    def check_alive(self) -> None:
        """Raises SelftestNotRunError with the end of its log if the process has ended."""
        assert self.process is not None
        code = self.process.poll()
        if code is not None:
            raise self.failure(f"ended with status {code}", "read the log (--keep-logs DIR)")

    def failure(self, what: str, remedy: str) -> SelftestNotRunError:
        """What is raised about this server: one line, with the end of the log above the remedy."""
        return SelftestNotRunError(f"the {self.name} server {what}\n{self.tail()}", remedy)

    def tail(self) -> str:
        """The last lines of the log, indented and cut."""
        lines = self.log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:]
        return "\n".join(f"  | {line[:LINE_CHARACTERS]}" for line in lines) or "  | (no output)"


def stop(servers: Sequence[Server]) -> None:
    """End the process groups of those that were started; returns when nothing of them runs.

    TERM goes to the servers themselves alone: SGLang takes the end of a child that we ended for a
    crash. KILL goes to the groups.
    """
    processes = [server.process for server in servers if server.process is not None]
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + TERM_SECONDS
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    deadline = time.monotonic() + KILL_SECONDS
    for process in processes:
        # Again and again: a member may have been about to fork.
        while _running(process.pid) and time.monotonic() < deadline:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.poll()
            time.sleep(0.05)
        process.wait()


def _running(group: int) -> bool:
    """Whether any process of the group is not dead: the dead stay until their parent asks."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # "pid (name) state parent group ...", and a name may hold anything.
            state, _, member = stat.read_text("utf-8", "replace").rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(member) == group and state not in "ZX":
            return True
    return False


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now, below those of outgoing connections: the kernel
    would hand one of these to anybody before a server has started. Raises OSError if all are taken.
    """
    for port in random.sample(range(FIRST_PORT, _first_outgoing()), TRIES):
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise OSError(errno.EADDRINUSE, f"no free port of {TRIES} tried")


def _first_outgoing() -> int:
    """ip(7), ip_local_port_range."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768
    # A host may have moved it down to where no room is left below.
    return first if first >= FIRST_PORT + TRIES else 32768


def program(environment: Mapping[str, str]) -> list[str]:
    """What `serve` starts, with the `python` that it would find."""
    python, *module = SERVER_PROGRAM
    return [shutil.which(python, path=environment.get("PATH")) or sys.executable, *module]
