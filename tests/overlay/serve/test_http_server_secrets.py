"""Keys inside the server process: read once from the pipe, shown nowhere, compared as they are."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_overlay.serve.errors import SecretPipeError, UnsupportedServerError
from ddtree_overlay.serve.launch_spec import SECRETS_VARIABLE
from ddtree_overlay.sglang.http_server import read_secrets, refuse_unsupported
from ddtree_overlay.sglang.secret_text import SecretText
from tests.overlay.conftest import OVERLAY

KEY = "sk-do-not-show"


@dataclasses.dataclass
class Arguments:
    """As SGLang's ServerArgs, for what becomes of a field."""

    model_path: str
    api_key: Any


def shown_by_repr(arguments: Arguments) -> str:
    return f"{arguments=} {arguments!s}"


def shown_by_asdict(arguments: Arguments) -> str:
    return json.dumps(dataclasses.asdict(arguments))


def shown_by_a_deep_copy(arguments: Arguments) -> str:
    return json.dumps(vars(copy.deepcopy(arguments)))


def shown_after_pickling(arguments: Arguments) -> str:
    return json.dumps(vars(pickle.loads(pickle.dumps(arguments))))  # noqa: S301


SHOWN = [shown_by_repr, shown_by_asdict, shown_by_a_deep_copy, shown_after_pickling]


@pytest.mark.parametrize("show", SHOWN)
def test_a_key_is_shown_nowhere(show: Any) -> None:
    assert KEY in show(Arguments("m", KEY)).replace("'", '"')  # what a plain string would do
    shown = show(Arguments("m", SecretText(KEY)))
    assert KEY not in shown
    assert "(set)" in shown


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_pickle_protocol_carries_it(protocol: int) -> None:
    assert KEY.encode() not in pickle.dumps(SecretText(KEY), protocol)


def test_the_original_is_the_key() -> None:
    secret = SecretText(KEY)
    assert secret == KEY
    assert f"Bearer {secret}" == f"Bearer {KEY}"
    assert bool(secret) and not SecretText("")


def piped(data: bytes) -> dict[str, str]:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return {SECRETS_VARIABLE: str(reading), "OTHER": "1"}


@pytest.fixture(autouse=True)
def no_death_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """read_secrets would tie the test runner's life to its parent's."""
    monkeypatch.setattr("ddtree_overlay.sglang.http_server._end_with_parent", lambda: None)


@pytest.mark.parametrize("secrets", [{}, {"api_key": KEY}, {"api_key": KEY, "admin_api_key": "b"}])
def test_secrets_are_read_and_the_pipe_is_gone(secrets: dict[str, str]) -> None:
    environment = piped(json.dumps(secrets).encode())
    descriptor = int(environment[SECRETS_VARIABLE])
    assert read_secrets(environment) == secrets
    assert environment == {"OTHER": "1"}
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_without_a_pipe_there_are_none() -> None:
    assert read_secrets({}) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"[]",
        json.dumps({"unheard_of": KEY}).encode(),
        json.dumps({"api_key": 3}).encode(),
        json.dumps({"api_key": f"{KEY}\n"}).encode(),
        json.dumps({"api_key": f"{KEY}é"}).encode(),
    ],
)
def test_what_is_no_set_of_keys_is_refused_without_showing_it(data: bytes) -> None:
    with pytest.raises(SecretPipeError) as caught:
        read_secrets(piped(data))
    assert KEY not in " ".join(caught.value.lines())


@pytest.mark.parametrize("number", ["99999", "x", "-1"])
def test_a_descriptor_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(SecretPipeError):
        read_secrets({SECRETS_VARIABLE: number})


ALLOWED: dict[str, Any] = {
    "tokenizer_worker_num": 1,
    "use_ray": False,
    "encoder_only": False,
    "smg_grpc_mode": False,
    "grpc_mode": False,
    "grpc_port": None,
    "enable_http2": False,
}


def test_the_usual_mode_is_taken() -> None:
    refuse_unsupported(SimpleNamespace(**ALLOWED), {"SGLANG_RUST_SERVER": "false"})


@pytest.mark.parametrize(
    ("fields", "environment", "named"),
    [
        ({"tokenizer_worker_num": 2}, {}, "--tokenizer-worker-num"),
        ({"use_ray": True}, {}, "--use-ray"),
        ({"encoder_only": True}, {}, "--encoder-only"),
        ({"smg_grpc_mode": True}, {}, "--smg-grpc-mode"),
        ({"grpc_mode": True}, {}, "--smg-grpc-mode"),
        ({"grpc_port": 0}, {}, "--grpc-port"),
        ({"enable_http2": True}, {}, "--enable-http2"),
        ({}, {"SGLANG_RUST_SERVER": "True"}, "SGLANG_RUST_SERVER"),
    ],
)
def test_modes_past_the_gate_are_refused(
    fields: dict[str, Any], environment: dict[str, str], named: str
) -> None:
    with pytest.raises(UnsupportedServerError) as caught:
        refuse_unsupported(SimpleNamespace(**{**ALLOWED, **fields}), environment)
    assert named in caught.value.what and named in caught.value.remedy


def test_a_failure_is_two_lines_and_a_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ddtree_overlay.sglang.http_server"],
        env={**os.environ, "PYTHONPATH": str(OVERLAY / "src"), SECRETS_VARIABLE: "99999"},
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == SecretPipeError.exit_code
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "remedy"]
