from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path

import pytest

from builder.engine.existing import find_existing
from builder.errors import EngineAbsentError
from tests.builder.engine.conftest import FakeEngine, engine_replies


@pytest.fixture(autouse=True)
def no_user_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)


def test_the_engine_of_docker_host_is_found(fake_engine: FakeEngine, tmp_path: Path) -> None:
    url = fake_engine(engine_replies("26.1.5", tmp_path))
    found = find_existing()
    assert found.url == url
    assert found.client.version()["Version"] == "26.1.5"
    found.client.close()


def test_the_engine_of_the_current_context_is_found(
    fake_engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fake_engine(engine_replies("27.0.1", tmp_path))
    monkeypatch.delenv("DOCKER_HOST")
    config = tmp_path / "docker"
    # The name of a context's folder is the SHA-256 of the context's name.
    digest = hashlib.sha256(b"lab").hexdigest()
    meta = config / "contexts/meta" / digest
    meta.mkdir(parents=True)
    endpoint = {"docker": {"Host": url, "SkipTLSVerify": False}}
    (meta / "meta.json").write_text(
        json.dumps({"Name": "lab", "Metadata": {}, "Endpoints": endpoint})
    )
    (config / "config.json").write_text(json.dumps({"currentContext": "lab"}))
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    found = find_existing()
    assert found.client.version()["Version"] == "27.0.1"
    found.client.close()


def test_no_engine_says_where_and_why(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    with pytest.raises(EngineAbsentError) as caught:
        find_existing({"DOCKER_HOST": url})
    assert url in caught.value.what
    assert "no such file" in caught.value.what
    assert "--engine private" in caught.value.remedy
    assert "\n" not in caught.value.what


def test_a_closed_port_is_refused_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EngineAbsentError, match="connection refused"):
            find_existing({"DOCKER_HOST": url})


def test_an_unknown_context_is_an_absent_engine() -> None:
    with pytest.raises(EngineAbsentError, match="nowhere"):
        find_existing({"DOCKER_CONTEXT": "nowhere"})


def test_a_malformed_address_is_an_absent_engine() -> None:
    with pytest.raises(EngineAbsentError):
        find_existing({"DOCKER_HOST": "gopher://x"})
