"""A running appliance under test: one container of the image with its shipped tiny models, on a CPU."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container

MODELS = "/opt/ddtree/venv/lib/python3.11/site-packages/ddtree_overlay/selftest/models"
# What a GPU server gets from its profile and has no use for on a CPU.
CPU_FLAGS = (
    "--dtype float32 --max-total-tokens 8192 --mem-fraction-static 0.2 --tool-call-parser qwen "
    "--constrained-json-disable-any-whitespace --decode-log-interval 1 --disable-overlap-schedule "
    "--disable-cuda-graph --attention-backend ddtree_cpu"
)
ENVIRONMENT = {
    "DDTREE_CPU_PROOF": "1",
    "DDTREE_DEVICE": "cpu",
    "DDTREE_MODEL": f"{MODELS}/target",
    "DDTREE_DRAFT_MODEL": f"{MODELS}/draft",
    "DDTREE_ALGORITHM": "DDTREE",
    "DDTREE_BUDGET": "16",
    "DDTREE_SERVED_MODEL_NAME": "tiny",
    "DDTREE_SGLANG_ARGS": CPU_FLAGS,
    # Threads of several processes would only wait for one another on a machine with few cores.
    "OMP_NUM_THREADS": "1",
}
API_PORT, PROBE_PORT = "30000/tcp", "30080/tcp"
# Only a bound, so that a hang ends.
START_SECONDS = 420


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    text: str
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Appliance:
    """One container; `key` is the API key that it wants."""

    container: Container
    key: str = ""

    def port(self, which: str) -> int:
        self.container.reload()
        (binding,) = self.container.attrs["NetworkSettings"]["Ports"][which]
        return int(binding["HostPort"])

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        probe: bool = False,
        key: str | None = None,
        timeout: float = 120,
    ) -> Answer:
        """One request. Raises OSError or http.client.HTTPException where there is no answer."""
        port = self.port(PROBE_PORT if probe else API_PORT)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        try:
            connection.request(method, path, *self._payload(body, key))
            answer = connection.getresponse()
            text = answer.read().decode()
            return Answer(answer.status, text, {k.lower(): v for k, v in answer.getheaders()})
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> Any:
        """The JSON of an answer that must be 200."""
        answer = self.call("POST", path, body)
        assert answer.status == 200, answer.text[:500]
        return answer.json()

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer, up to [DONE], which must come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port(API_PORT), timeout=120)
        try:
            connection.request("POST", path, *self._payload({**body, "stream": True}, None))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()[:500]
            for raw in answer:
                line = raw.decode().strip()
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))
        finally:
            connection.close()
        pytest.fail("the stream ended without [DONE]")

    def _payload(self, body: Any, key: str | None) -> tuple[bytes | None, dict[str, str]]:
        key = self.key if key is None else key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        if body is None:
            return None, headers
        return json.dumps(body).encode(), headers | {"content-type": "application/json"}

    def probe(self, path: str) -> int:
        """A probe's status; 0 where nothing listens."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.call("GET", path, probe=True, timeout=10).status
        return 0

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.container.reload()
            if self.container.status == "exited":
                break
            if self.probe("/readyz") == 200:
                return
            time.sleep(0.5)
        pytest.fail("the appliance did not become ready:\n" + self.logs()[-6000:])

    def wait_ended(self, seconds: float = 120) -> int:
        """The container's exit code."""
        return int(self.container.wait(timeout=seconds)["StatusCode"])

    def logs(self) -> str:
        return self.container.logs().decode("utf-8", "replace")

    def run(self, *argv: str, user: str = "") -> tuple[int, str]:
        """A command inside: exit code, output of both kinds."""
        ran: Any = self.container.exec_run(list(argv), user=user)
        return int(ran.exit_code), ran.output.decode("utf-8", "replace")


@contextlib.contextmanager
def appliance(
    engine: docker.DockerClient,
    image: str,
    bytecode: dict[str, Any],
    *arguments: str,
    environment: dict[str, str] | None = None,
    volumes: dict[str, Any] | None = None,
    key: str = "",
    **options: Any,
) -> Iterator[Appliance]:
    """A container with ENVIRONMENT and the further options, removed at the end."""
    if options.get("network_mode") != "none":
        options.setdefault("ports", {API_PORT: ("127.0.0.1", 0), PROBE_PORT: ("127.0.0.1", 0)})
    started = engine.containers.run(
        image,
        list(arguments),
        detach=True,
        environment={**ENVIRONMENT, **bytecode["environment"], **(environment or {})},
        volumes={**bytecode["volumes"], **(volumes or {})},
        **options,
    )
    try:
        yield Appliance(started, key)
    finally:
        started.remove(force=True, v=True)


def readable(folder: Path, name: str, text: str) -> Path:
    """A file that the container's user, whoever that is, can read."""
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    path = folder / name
    path.write_text(text)
    path.chmod(0o644)
    return path
