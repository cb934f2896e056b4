"""Health: what the image tells an engine to ask, and what it answers then."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.image.appliance import PROBE_PORT, Appliance
from tests.image.conftest import Ran

pytestmark = pytest.mark.docker

SECOND = 10**9


def test_the_check_of_the_image(config: dict[str, Any]) -> None:
    """A large model loads for many minutes, and that is no failure."""
    check = config["Healthcheck"]
    assert check["Test"] == ["CMD", "ddtree", "health"]
    assert check["StartPeriod"] >= 600 * SECOND
    assert 0 < check["Timeout"] <= check["Interval"] <= 60 * SECOND
    assert check["Retries"] >= 2
    assert PROBE_PORT in config["ExposedPorts"]


@pytest.mark.parametrize("arguments", [(), ("--live",), ("--ready",), ("--progress",)])
def test_without_a_server_it_is_one_line_and_a_failure(
    run_in: Callable[..., Ran], arguments: tuple[str, ...]
) -> None:
    ran = run_in("ddtree", "health", *arguments)
    assert ran.returncode == 1
    assert (ran.stdout + ran.stderr).count("\n") == 1
    assert "Traceback" not in ran.stderr


def test_the_engine_sees_it_healthy(serving: Appliance) -> None:
    deadline = time.monotonic() + 60
    health: dict[str, Any] = {}
    while time.monotonic() < deadline and health.get("Status") != "healthy":
        serving.container.reload()
        health = serving.container.attrs["State"]["Health"]
        time.sleep(1)
    assert health["Status"] == "healthy", health


def test_probes_are_open(serving: Appliance) -> None:
    for path in ("/health", "/health/ddtree", "/metrics"):
        assert serving.call("GET", path, key="").status == 200, path
    for path in ("/livez", "/readyz", "/progressz", "/status", "/metrics"):
        assert serving.call("GET", path, probe=True, key="").status == 200, path


def test_health_generates_no_token_and_says_ready(serving: Appliance) -> None:
    def prompts() -> float:
        text = serving.call("GET", "/metrics").text
        return sum(
            float(v)
            for v in re.findall(r"^sglang:num_requests_total\{.*\} (\S+)$", text, re.MULTILINE)
        )

    serving.post("/v1/completions", {"model": "tiny", "prompt": "A tree", "max_tokens": 4})
    before = prompts()
    for arguments in ((), ("--live",), ("--ready",), ("--progress",)):
        code, said = serving.run("ddtree", "health", *arguments)
        assert code == 0, said
        assert said.count("\n") == 1
    assert prompts() == before
    assert before > 0
