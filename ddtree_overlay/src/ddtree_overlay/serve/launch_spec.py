"""What the supervisor is told to run, and how the server is started from it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddtree_overlay.serve.errors import (
    ProgramNotExecutableError,
    ProgramNotFoundError,
    SecretPipeError,
)

SECRETS_VARIABLE = "DDTREE_SECRETS_FD"
# A pipe holds at least this much, also where the user's pipe buffers are used up.
_PIPE_BYTES = 4096
# Set unless the user has: a crash is diagnosed for a minute otherwise, in which the server neither
# answers nor ends; and /health would generate a token.
SERVER_DEFAULTS = {
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
}


@dataclass(frozen=True)
class Launch:
    """One server. Times in seconds.

    argv: program and arguments; no secret is in it.
    environment: the server's whole environment, DEFAULTS of ours and secrets excepted.
    secrets: "api_key", "admin_api_key"; reach the server over a pipe alone.
    host, port: what the server binds; probe_host, probe_port: what our probes bind (used only where
        `supervise` is not handed running probes).
    drain_seconds: from SIGTERM until requests in flight are cut.
    kill_seconds: from SIGTERM to every process until SIGKILL.
    start_seconds: until the model must have answered; 0 for no bound.
    progress_seconds: how long requests may wait without any output before /progressz says so;
        with end_when_stalled, the server is ended then.
    worker_grace_seconds: how long the server may outlive a worker of it.
    tls: the server speaks HTTPS.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    host: str
    port: int
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    probe_host: str = "0.0.0.0"  # noqa: S104 - a container's probes come from outside
    probe_port: int = 30080
    drain_seconds: float = 90.0
    kill_seconds: float = 10.0
    start_seconds: float = 1800.0
    progress_seconds: float = 120.0
    node_rank: int = 0
    cwd: str | None = None
    worker_grace_seconds: float = 20.0
    end_when_stalled: bool = False
    tls: bool = False

    @property
    def address(self) -> str:
        """Where clients find the API."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def start_server(launch: Launch) -> subprocess.Popen[bytes]:
    """Start it in a session of its own, its output ours, its input empty.

    Raises ProgramNotFoundError, ProgramNotExecutableError, SecretPipeError.
    """
    reading, writing = os.pipe()
    try:
        _fill(writing, launch.secrets)
        os.close(writing)
        writing = -1
        return subprocess.Popen(
            launch.argv,
            stdin=subprocess.DEVNULL,
            env={**server_environment(launch), SECRETS_VARIABLE: str(reading)},
            cwd=launch.cwd,
            pass_fds=(reading,),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise ProgramNotFoundError(
            f"{error.filename or launch.argv[0]}: the server's program does not exist",
            "run the image as it was built",
        ) from None
    except OSError as error:
        raise ProgramNotExecutableError(
            f"{launch.argv[0]}: cannot be started: {error.strerror}",
            "run the image as it was built, and check the container's limits on processes",
        ) from None
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def server_environment(launch: Launch) -> dict[str, str]:
    """The launch's, with our defaults beneath it and without any variable that names a secret."""
    hidden = {f"DDTREE_{name.upper()}" for name in ("api_key", "admin_api_key", *launch.secrets)}
    kept = {name: value for name, value in launch.environment.items() if name not in hidden}
    return {**SERVER_DEFAULTS, **kept}


def _fill(writing: int, secrets: Mapping[str, str]) -> None:
    data = json.dumps(dict(secrets)).encode()
    if len(data) > _PIPE_BYTES:
        raise SecretPipeError(
            f"the secrets take {len(data)} bytes and at most {_PIPE_BYTES} can be handed over",
            "use shorter keys",
        )
    os.write(writing, data)
