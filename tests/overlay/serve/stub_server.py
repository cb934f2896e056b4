"""A server for the supervisor's tests: speaks /health/ddtree, and misbehaves as its argument says.

Run as `python stub_server.py '{"port": ...}'`. The standard library alone; everything it starts
carries its tag in its environment, by which the tests find what is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SLEEP = "import time\nwhile True: time.sleep(60)"
IGNORE_AND_SLEEP = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
# Leaves its parent's session twice over: the middle process ends, the last is an orphan.
DOUBLE_FORK = (
    "import os, signal, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "        while True: time.sleep(60)\n"
    "os._exit(0)"
)


class Stub:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.folder = Path(options["folder"])
        self.draining = False
        self.output_at = time.monotonic()

    @property
    def in_flight(self) -> int:
        try:
            return int((self.folder / "in_flight").read_text())
        except (OSError, ValueError):
            return int(self.options.get("in_flight", 0))

    def health(self, draining: bool) -> dict[str, Any]:
        return {
            "status": self.options.get("status", "Up"),
            "draining": draining,
            "in_flight": self.in_flight,
            "last_output_age": self.options.get("last_output_age"),
            "waiting_age": self.options.get("waiting_age", 0.1) if self.in_flight else None,
            "tokens": 7,
        }

    def terminate(self, *_: object) -> None:
        self.draining = True
        (self.folder / "got_term").touch()

    def drain(self) -> None:
        while True:
            time.sleep(0.05)
            if (self.folder / "end").exists():
                os._exit(self.options.get("serve_status", 3))
            if self.draining and self.in_flight == 0 and not self.options.get("lingers"):
                os._exit(self.options.get("drained_status", 0))


def child(code: str, *, title: str | None = None, session: bool = False) -> int:
    program = [title, "-c", code] if title else [sys.executable, "-c", code]
    return subprocess.Popen(program, executable=sys.executable, start_new_session=session).pid


def read_secrets() -> str:
    with os.fdopen(int(os.environ["DDTREE_SECRETS_FD"])) as pipe:
        return pipe.read()


def main() -> None:
    stub = Stub(json.loads(sys.argv[1]))
    options, folder = stub.options, stub.folder
    (folder / "secrets").write_text(read_secrets())
    if options.get("ignores_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, stub.terminate)
        threading.Thread(target=stub.drain, daemon=True).start()
    if options.get("leaks"):
        child(SLEEP)
    if options.get("leaks_session"):
        child(IGNORE_AND_SLEEP, session=True)
    if options.get("leaks_orphan"):
        child(DOUBLE_FORK)
    worker = child(SLEEP, title="sglang::scheduler_TP0") if options.get("worker") else None
    if worker is not None:
        (folder / "worker").write_text(str(worker))
    # Last: who finds it finds everything else in place.
    whole = folder / "server.new"
    whole.write_text(
        json.dumps(
            {
                "pid": os.getpid(),
                "cmdline": Path("/proc/self/cmdline").read_text(),
                "environ": dict(os.environ),
                "session": os.getsid(0),
                "cwd": str(Path.cwd()),
            }
        )
    )
    whole.rename(folder / "server")
    if options.get("load_status") is not None:
        sys.exit(options["load_status"])
    if options.get("load_signal") is not None:
        os.kill(os.getpid(), options["load_signal"])
    time.sleep(options.get("load_seconds", 0))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path in options.get("paths", ["/health/ddtree"])
            draining = stub.draining  # of the moment that it was asked, however late it answers
            silent = draining and options.get("silent_draining")
            time.sleep(60 if silent else options.get("answer_seconds", 0))
            body = json.dumps(stub.health(draining)).encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer((options.get("bind", "127.0.0.1"), options["port"]), Handler)
    server.serve_forever()


if __name__ == "__main__":
    main()
