"""The appliance as an operator runs it, on a CPU: settings by environment, any user, read-only root.

One container (`hardened`) serves the image's own tiny models with DDTREE and is asked everything here. It runs
under a UID that the image does not know, on a read-only root, with an API key from a file.
"""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.deploy.metrics import not_exported, server_metric_names
from tests.e2e.frontends import TOOL
from tests.image.appliance import Appliance
from tests.image.bounded_load import Load
from tests.image.conftest import KEY

pytestmark = pytest.mark.docker

CHAT = {
    "model": "tiny",
    "temperature": 0,
    "max_tokens": 24,
    "messages": [{"role": "user", "content": "What is a tree?"}],
}
LOAD_SECONDS, FULL_LOAD_SECONDS = 30, 600


def test_completion_chat_and_stream(serving: Appliance) -> None:
    body = {"model": "tiny", "prompt": "The tree", "temperature": 0, "max_tokens": 20}
    whole = serving.post("/v1/completions", body)
    text = whole["choices"][0]["text"]
    assert text and whole["usage"]["completion_tokens"] > 0
    streamed = "".join(
        choice["text"]
        for event in serving.events("/v1/completions", body)
        for choice in event["choices"]
    )
    assert streamed == text
    answer = serving.post("/v1/chat/completions", CHAT)["choices"][0]
    assert answer["message"]["role"] == "assistant" and answer["finish_reason"] in (
        "stop",
        "length",
    )
    parts = [
        e["choices"][0]["delta"].get("content") or ""
        for e in serving.events("/v1/chat/completions", CHAT)
    ]
    assert "".join(parts) == answer["message"]["content"]


def test_a_required_tool_is_called(serving: Appliance) -> None:
    """Its name and form; that it is what plain decoding calls is shown in tests/e2e. SGLang holds
    the arguments to their schema only for a strict tool, which this model does not end."""
    body = {**CHAT, "max_tokens": 120, "tools": [TOOL], "tool_choice": "required"}
    choice = serving.post("/v1/chat/completions", body)["choices"][0]
    (call, *_) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"]
    assert call["function"]["name"] == TOOL["function"]["name"]
    json.loads(call["function"]["arguments"])


def test_metrics_tell_of_trees_and_every_name_that_the_dashboards_use_is_there(
    serving: Appliance,
) -> None:
    # The gauge is of the latest rounds alone, and a single round may accept nothing.
    for prompt in ("A tree", "The draft", "To the end", "Who holds", "A token", "The target") * 3:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 60, "ignore_eos": True}
        assert list(serving.events("/v1/completions", body))
        text = serving.call("GET", "/metrics").text
        found = re.findall(r"^sglang:spec_accept_length\{.*\} (\S+)$", text, re.MULTILINE)
        if found and max(map(float, found)) > 1.0:
            break
    else:
        pytest.fail(f"no accept length above 1: {found}")
    text += serving.call("GET", "/metrics", probe=True).text
    # What NVML alone can tell is not there without a GPU.
    missing = not_exported(server_metric_names(), text)
    assert {name for name in missing if not name.startswith("ddtree_gpu_")} == set()


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/generate", "/server_info"])
def test_without_the_key_nothing_is_answered(serving: Appliance, path: str) -> None:
    method, body = ("GET", None) if path in ("/v1/models", "/server_info") else ("POST", CHAT)
    for key in ("", "sk-wrong"):
        assert serving.call(method, path, body, key=key).status == 401
    if method == "GET":
        assert serving.call(method, path).status == 200


def test_the_secret_is_nowhere(serving: Appliance) -> None:
    """Neither in a command line, an environment, a log, an answer nor a file that we wrote."""
    said = serving.call("GET", "/server_info").text
    said += serving.call("GET", "/status", probe=True).text + serving.logs()
    said += json.dumps(serving.container.attrs)
    code, dump = serving.run(
        "sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; cat /dev/shm/ddtree-* 2>/dev/null;"
        " find /var/cache/ddtree /tmp /dev/shm -type f -size -1M -exec cat {} + 2>/dev/null; true",
    )  # fmt: skip
    assert code == 0
    assert KEY not in said + dump
    assert "tiny" in dump  # the environment of a process was there to be read


def test_doctor_explains_in_the_running_container(serving: Appliance) -> None:
    code, said = serving.run("ddtree", "explain", "--json")
    assert code == 0, said
    document = json.loads(said)
    assert document["settings"]["budget"]["value"] == 16
    assert document["settings"]["budget"]["source"] == "environment DDTREE_BUDGET"
    assert KEY not in said


def _loaded(serving: Appliance, seconds: float) -> None:
    address = f"http://127.0.0.1:{serving.port('30000/tcp')}"
    tally = Load(address, seconds, workers=10, key=serving.key).run()
    assert tally.sound, tally
    assert tally.refused > 0 and tally.hung_up > 0
    # It goes on serving, and nothing is left in flight.
    assert serving.probe("/readyz") == 200
    deadline = time.monotonic() + 60  # those whose client hung up may still be decoding
    while serving.call("GET", "/health/ddtree").json()["in_flight"]:
        assert time.monotonic() < deadline, "requests are still in flight"
        time.sleep(0.5)


def test_a_bounded_load_loses_nothing(serving: Appliance) -> None:
    _loaded(serving, LOAD_SECONDS)


@pytest.mark.full
def test_ten_minutes_of_load_lose_nothing(serving: Appliance) -> None:
    _loaded(serving, FULL_LOAD_SECONDS)
