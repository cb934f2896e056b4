"""How an appliance ends: told to, killed from within, and what comes after."""

from __future__ import annotations

import http.client
import threading
import time
from typing import Any

import docker
import pytest

from tests.image.appliance import Appliance, appliance

pytestmark = pytest.mark.docker

LONG = {
    "model": "tiny",
    "prompt": "The tree",
    "max_tokens": 400,
    "temperature": 0,
    "ignore_eos": True,
}


def schedulers(serving: Appliance) -> list[int]:
    """PIDs, inside, of what SGLang calls its schedulers."""
    _, said = serving.run(
        "sh", "-c", "grep -l scheduler /proc/[0-9]*/comm /proc/[0-9]*/cmdline; true"
    )
    return sorted(
        {int(line.split("/")[2]) for line in said.splitlines() if line.startswith("/proc/")}
    )


def test_sigterm_lets_a_request_finish_and_takes_no_other(serving: Appliance) -> None:
    """Runs on the shared server and restarts it: `docker restart` is how an operator would."""
    pieces: list[str] = []
    finished: list[str | None] = []
    refused: list[int] = []

    def stream() -> None:
        for event in serving.events("/v1/completions", LONG):
            pieces.append(event["choices"][0]["text"])
            finished.append(event["choices"][0]["finish_reason"])

    thread = threading.Thread(target=stream)
    thread.start()
    while len(pieces) < 5:
        assert thread.is_alive()
        time.sleep(0.02)
    seen = len(pieces)
    serving.container.kill("SIGTERM")
    while thread.is_alive():
        try:
            answer = serving.call("POST", "/v1/completions", {**LONG, "max_tokens": 4}, timeout=20)
        except (OSError, http.client.HTTPException):
            break
        if answer.status == 503:
            assert "retry-after" in answer.headers
            assert answer.json()["error"]["message"]
        refused.append(answer.status)
        time.sleep(0.05)
    thread.join(120)
    assert finished[-1] == "length", "the request in flight was cut"
    assert len(pieces) > seen, "it had ended before the signal: nothing was tested"
    assert refused and set(refused[1:]) == {503}
    assert serving.wait_ended() == 0, serving.logs()[-3000:]


def test_it_starts_again(serving: Appliance) -> None:
    answer = serving.post("/v1/completions", {**LONG, "max_tokens": 5})
    assert answer["usage"]["completion_tokens"] == 5


def test_a_killed_scheduler_ends_the_container_with_an_error(serving: Appliance) -> None:
    """The last test of the module: nothing but a restart follows."""
    pids = schedulers(serving)
    assert pids, "no scheduler was found"
    code, said = serving.run("python", "-c", f"import os; [os.kill(p, 9) for p in {pids[:1]}]")
    assert code == 0, said
    code = serving.wait_ended(120)
    assert 80 <= code < 90, (code, serving.logs()[-3000:])
    last = [line for line in serving.logs().splitlines() if line.startswith("error: ")]
    assert len(last) == 1, last


def test_a_refused_start_is_fast_and_one_line(
    engine: docker.DockerClient, image: str, bytecode: dict[str, Any]
) -> None:
    with appliance(
        engine, image, bytecode, environment={"DDTREE_MODEL": "/models/nothing-here"}
    ) as started:
        code = started.wait_ended(60)
        said = started.logs()
    assert code == 74, said
    assert "MOD" in said and "/models/nothing-here" in said
    assert "Traceback" not in said and "Load weight" not in said
