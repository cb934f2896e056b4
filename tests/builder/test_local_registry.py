"""The registry that other tests rely on is a real one, and stops."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.builder.local_registry import PASSWORD, USER, password_auth, serve_registry

pytestmark = pytest.mark.docker


def _upload(url: str, repository: str, content: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    started = requests.post(f"{url}/v2/{repository}/blobs/uploads/", timeout=10)
    started.raise_for_status()
    requests.put(
        started.headers["Location"], params={"digest": digest}, data=content, timeout=10
    ).raise_for_status()
    return digest


def test_what_is_stored_lies_where_the_fixture_says_and_survives_a_restart(tmp_path: Path) -> None:
    with serve_registry(tmp_path / "r") as registry:
        digest = _upload(registry.url, "a/b", b"content")
        assert registry.blob(digest).read_bytes() == b"content"
        port = registry.port
        registry.stop()
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{registry.url}/v2/", timeout=5)
        registry.start()
        assert registry.port == port
        answer = requests.get(f"{registry.url}/v2/a/b/blobs/{digest}", timeout=5)
        assert answer.content == b"content"
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{registry.url}/v2/", timeout=5)


def test_it_can_ask_for_a_password(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with serve_registry(folder, config=password_auth(folder)) as registry:
        url = f"{registry.url}/v2/"
        assert requests.get(url, timeout=5).status_code == 401
        assert requests.get(url, auth=(USER, "wrong"), timeout=5).status_code == 401
        assert requests.get(url, auth=(USER, PASSWORD), timeout=5).status_code == 200


def test_a_bad_configuration_says_what_the_registry_said(tmp_path: Path) -> None:
    bad: dict[str, Any] = {"storage": {"nonesuch": {}, "filesystem": None}}
    with (
        pytest.raises(AssertionError, match="ended at its start"),
        serve_registry(tmp_path / "r", config=bad),
    ):
        pass
