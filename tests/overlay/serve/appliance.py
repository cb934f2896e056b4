"""A supervisor in a process of its own around the stub server, for tests to start, signal and watch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddtree_overlay.selftest.server import free_port
from ddtree_overlay.serve.launch_spec import Launch
from tests.overlay.conftest import OVERLAY

STUB = Path(__file__).with_name("stub_server.py")
TAG = "DDTREE_TEST_TAG"
# Only bounds, so that a hang ends.
SECONDS = 30.0

# The appliance's own pace is set for hosts, on which nobody waits for it to notice.
RUN = """
import json, sys
from ddtree_overlay.serve import poll, server_process, supervise
from ddtree_overlay.serve.errors import EntryError
from ddtree_overlay.serve.supervise import Launch
poll.INTERVAL_SECONDS = supervise.TICK_SECONDS = 0.05
server_process.TREE_SECONDS, supervise.REPORT_SECONDS = 0.2, 1
try:
    sys.exit(supervise.supervise(Launch(**json.loads(sys.stdin.read()))))
except EntryError as error:
    print(*error.lines(), sep="\\n", file=sys.stderr)
    sys.exit(error.exit_code)
"""

FAIL = """
from ddtree_overlay.serve.poll import Poller
from ddtree_overlay.serve.probes import Probes
def fail(*_):
    raise RuntimeError("the test's")
{name} = fail
"""


def until(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """What the condition gives once it is true. Fails naming `what`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def tagged(tag: str) -> list[int]:
    """Processes that are alive and carry the tag in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"{TAG}={tag}".encode() in environ.split(b"\0") and state not in "ZX":
            found.append(int(entry.name))
    return found


class Appliance:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tag = str(folder)
        self.port, self.probe_port = free_port(), free_port()
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self, stub: dict[str, Any] | None = None, *, fails: str = "", **launch: Any
    ) -> Appliance:
        """`stub`: options of the stub server; `fails`: a method that raises; `launch`: fields of
        Launch."""
        options = {"folder": str(self.folder), "port": self.port, **(stub or {})}
        environment = {"PATH": os.environ["PATH"], TAG: self.tag, "DDTREE_API_KEY": "never-this"}
        fields: dict[str, Any] = {
            "argv": [sys.executable, str(STUB), json.dumps(options)],
            "environment": environment,
            "host": "127.0.0.1",
            "port": self.port,
            "probe_host": "127.0.0.1",
            "probe_port": self.probe_port,
            "drain_seconds": 20,
            "kill_seconds": 1,
            "worker_grace_seconds": 1,
            **launch,
        }
        Launch(**fields)  # a wrong field is the test's error, not the appliance's
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", (FAIL.format(name=fails) if fails else "") + RUN],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(OVERLAY / "src"), TAG: self.tag},
            )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fields).encode())
        self.process.stdin.close()
        return self

    def probe(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Status and body; 0 while nothing answers."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.probe_port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def status(self) -> dict[str, Any]:
        code, body = self.probe("/status")
        return dict(json.loads(body)) if code == 200 else {}

    def ready(self) -> Appliance:
        until(lambda: self.probe("/readyz")[0] == 200, f"ready\n{self.output()}")
        return self

    def send(self, number: signal.Signals) -> Appliance:
        assert self.process is not None
        self.process.send_signal(number)
        return self

    def stop(self) -> Appliance:
        """SIGTERM, and wait until the drain has begun."""
        self.send(signal.SIGTERM)
        until(lambda: self.status().get("phase") == "draining", "draining")
        return self

    def set_in_flight(self, number: int) -> None:
        whole = self.folder / "in_flight.new"
        whole.write_text(str(number))
        whole.rename(self.folder / "in_flight")

    def server(self) -> dict[str, Any]:
        """What the stub saw of itself."""
        path = self.folder / "server"
        until(path.exists, "the server's start")
        return dict(json.loads(path.read_text()))

    def ended(self, seconds: float = SECONDS) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def output(self) -> str:
        return self.log.read_text()

    def clean(self) -> list[int]:
        """Ids of what was left alive, and an end to it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        left = tagged(self.tag)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left
