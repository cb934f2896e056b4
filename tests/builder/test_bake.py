"""The bake file, host secrets, and what a failed bake is taken for."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from builder.bake import (
    OUR_STAGES,
    BakeTarget,
    NoCache,
    bake_file,
    failure,
    host_index,
    host_secrets,
    uv_settings,
)
from builder.errors import AuditFailedError, BuildFailedError, DiskSpaceError
from builder.project import default_project

TARGET = BakeTarget(
    stage="image",
    context=Path("/context"),
    named_contexts={"base": "docker-image://ddtree-base:x"},
    output="type=docker",
    tags=("name:tag",),
    labels={"b": "2", "a": "1"},
)


def test_bake_file_carries_everything_the_build_needs() -> None:
    body = bake_file(TARGET, {"ca": Path("/etc/ca.pem")})["target"]["default"]
    assert body["target"] == "image"
    assert body["contexts"] == {"base": "docker-image://ddtree-base:x"}
    assert body["secret"] == ["type=file,id=ca,src=/etc/ca.pem"]
    assert list(body["labels"]) == ["a", "b"]
    assert "no-cache" not in body


def test_host_settings_travel_as_secrets_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificates")
    for name in (
        "DDTREE_CA_FILE",
        "REQUESTS_CA_BUNDLE",
        "PIP_CERT",
        "UV_INDEX_URL",
        "UV_DEFAULT_INDEX",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with host_secrets() as secrets:
        assert secrets["ca"] == bundle
        settings = secrets["uv"]
        assert "http://127.0.0.1:1/simple" in settings.read_text()
        assert settings.stat().st_mode & 0o077 == 0
    assert not settings.exists()


def test_no_index_of_the_host_means_no_settings() -> None:
    assert uv_settings(host_index({"PIP_CONFIG_FILE": os.devnull})) == ""


@pytest.mark.parametrize(("anew", "key"), [("all", "no-cache"), ("ours", "no-cache-filter")])
def test_what_is_built_anew_is_said_in_bakes_words(anew: NoCache, key: str) -> None:
    target = BakeTarget(
        stage="image", context=Path("/c"), named_contexts={}, output="", no_cache=anew
    )
    body = bake_file(target, {})["target"]["default"]
    assert [name for name in body if name.startswith("no-cache")] == [key]


def test_our_stages_are_stages_of_the_template() -> None:
    """A renamed stage would silently come from the cache."""
    text = (default_project().templates / "Dockerfile.j2").read_text()
    assert set(OUR_STAGES) <= set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("lines", "kind", "word"),
    [
        (
            ["#9 2.1   LNK001  1 FOUND  CUDA major", "#9 2.1 ABI001 lib.so: NEEDED libcudart.so.12", "did not complete successfully: exit code: 51"],
            AuditFailedError,
            "1 in all, the first: ABI001 lib.so",
        ),
        (["write /x: no space left on device"], DiskSpaceError, "disk"),
        (["#5 ERROR: process did not complete successfully: exit code: 2"], BuildFailedError, "exit code: 2"),
        ([], BuildFailedError, "buildx exited with 1"),
    ],
)  # fmt: skip
def test_failures_are_told_apart(lines: list[str], kind: type[Exception], word: str) -> None:
    error = failure(lines, Path("log"), 1)
    assert type(error) is kind
    assert word in error.what


def test_pips_own_configuration_names_the_index_too(tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = http://127.0.0.1:2/simple\n")
    env = {**os.environ, "PIP_CONFIG_FILE": str(settings)}
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        env.pop(name, None)
    assert host_index(env) == "http://127.0.0.1:2/simple"
