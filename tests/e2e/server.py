"""Start and stop a SGLang server for tests; runs inside the image with the standard library alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# Only bounds, so that a hang ends: a server is up in under a minute on two idle cores.
START_SECONDS = 420
# A crash is diagnosed for a minute otherwise, in which the server neither answers nor ends.
NO_DIAGNOSTICS = {"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}
READY = "The server is fired up and ready to roll!"


class ServerDiedError(RuntimeError):
    """The server did not come up; the message ends with its log."""


# The process that `ddtree serve` supervises; without the supervisor, whose checks take seconds a start.
SERVER = (sys.executable, "-m", "ddtree_overlay.sglang.http_server")


@contextmanager
def serving(
    arguments: Sequence[str],
    *,
    port: int,
    log: Path,
    environment: Mapping[str, str],
    start_seconds: float = START_SECONDS,
) -> Iterator[str]:
    """The address of a server that answers, until the block ends. Raises ServerDiedError."""
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*SERVER, *arguments, "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **NO_DIAGNOSTICS, **environment, "PYTHONPATH": _search_path()},
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(server, address, log, start_seconds)
        yield address
    finally:
        # Not SIGTERM: SGLang then diagnoses for seconds a "crash" of the children that it ended.
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _search_path() -> str:
    """PYTHONPATH without the folder of the mounted pytest, whose packages the image has its own of."""
    mounted = os.environ.get("DDTREE_E2E_PYTEST")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(path for path in paths if path and path != mounted)


def _wait(server: subprocess.Popen[bytes], address: str, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise ServerDiedError(f"exit status {server.returncode}\n{tail(log)}")
        # Until its own warm-up request is done, the server counts and caches that one too.
        if READY in log.read_text("utf-8", "replace") and _healthy(address):
            return
        time.sleep(0.3)
    raise ServerDiedError(f"no answer after {seconds:.0f} s\n{tail(log)}")


def _healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def tail(log: Path, characters: int = 6000) -> str:
    """The end of a log."""
    return log.read_text("utf-8", "replace")[-characters:]
