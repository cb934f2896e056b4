"""The probes' HTTP server, in the supervisor: it answers from the first second, come what may.

GET or HEAD of /livez, /readyz, /progressz (200 or 503, one line), /status (JSON), /metrics
(Prometheus). No key guards it and nothing secret is in it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.errors import ProbePortError
from ddtree_overlay.serve.metrics_text import CONTENT_TYPE, GpuSampler, render_metrics
from ddtree_overlay.serve.state_file import State, remove_state, write_state
from ddtree_overlay.serve.status import Judgement, Phase, Status

REQUEST_SECONDS = 5.0
CONNECTIONS = 32
# How late `stop` may be noticed.
STOP_SECONDS = 0.1


class Probes:
    """The server, its thread and the state file.

    Start it before anything slow; hand it to `supervise`, which moves its phases on; stop it last
    (or use it in a `with`).
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        build: Mapping[str, str] | None = None,
        progress_seconds: float = 120.0,
        node_rank: int = 0,
    ) -> None:
        self.status = Status(dict(build or {}), progress_seconds, node_rank)
        self._address = (host, port)
        self._server: _Server | None = None
        self._state: Path | None = None

    @property
    def port(self) -> int:
        """The port it listens on, of which 0 lets the kernel choose one."""
        return int(self._server.server_address[1]) if self._server else self._address[1]

    def start(self) -> None:
        """Bind and answer. Raises ProbePortError."""
        host, port = self._address
        try:
            self._server = _Server(host, port, self.status)
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            raise ProbePortError(
                f"the probes cannot listen on {host} port {port}: "
                f"{getattr(error, 'strerror', None) or error}",
                "another process has the port: set DDTREE_PROBE_PORT to a free one"
                if taken
                else "set DDTREE_PROBE_HOST and DDTREE_PROBE_PORT to an address of this container",
            ) from error
        threading.Thread(
            target=self._server.serve_forever, args=(STOP_SECONDS,), name="probes", daemon=True
        ).start()
        self._state = write_state(State(os.getpid(), host, self.port))

    def set_phase(self, phase: Phase | str) -> None:
        """Enter a phase: checking, loading, ready, draining, stopping or failed."""
        self.status.set_phase(Phase(phase))

    def stop(self) -> None:
        """Answer no more. Safe to call twice, and before start."""
        remove_state(self._state)
        server, self._server = self._server, None
        if server is not None:
            self._address = (self._address[0], int(server.server_address[1]))
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Probes:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, status: Status) -> None:
        self.status = status
        self.gpus = GpuSampler()
        self._open: dict[socket.socket, None] = {}  # in the order they came
        self._open_lock = threading.Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            with suppress(OSError):  # "::" then takes IPv4 too
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer's, which looks the host's name up and may wait for a resolver.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            # The oldest gives way: clients that hold on, even byte by byte, must not shut out the
            # orchestrator, which would end the container for it.
            excess = len(self._open) - CONNECTIONS + 1
            for oldest in list(self._open)[: max(0, excess)]:
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            # Their threads may be late to notice: a flood must not pile up threads.
            turned_away = excess > CONNECTIONS
            if not turned_away:
                self._open[request] = None
        if turned_away:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._closed(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._closed(request)

    def _closed(self, request: Any) -> None:
        with self._open_lock:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nothing to print a traceback about."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: _Server
    server_version = "ddtree"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        status = self.server.status
        judgements = {
            "/livez": status.live,
            "/readyz": status.ready,
            "/progressz": status.progress,
        }
        if path in judgements:
            self._judge(judgements[path]())
        elif path == "/status":
            body = json.dumps({**status.as_json(), "probe_port": self.server.server_port})
            self._reply(HTTPStatus.OK, body + "\n", "application/json")
        elif path == "/metrics":
            text = render_metrics(status, self.server.gpus.sample())
            self._reply(HTTPStatus.OK, text, CONTENT_TYPE)
        else:
            self._reply(
                HTTPStatus.NOT_FOUND, "/livez /readyz /progressz /status /metrics\n", "text/plain"
            )

    do_HEAD = do_GET  # noqa: N815 - the names are http.server's

    def _refuse(self) -> None:
        self._reply(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD\n", "text/plain")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse  # noqa: N815

    def _judge(self, judgement: Judgement) -> None:
        code = HTTPStatus.OK if judgement.yes else HTTPStatus.SERVICE_UNAVAILABLE
        self._reply(code, judgement.why + "\n", "text/plain")

    def _reply(self, code: HTTPStatus, body: str, content_type: str) -> None:
        data = body.encode()
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        if code is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """A line a second would bury the server's log."""
