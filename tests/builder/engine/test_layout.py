from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.engine import layout
from builder.engine.layout import (
    SOCKET_LIMIT,
    Layout,
    check_socket_path,
    client_env,
    daemon_config,
    layout_of,
)
from builder.errors import EngineStartError
from builder.project import Project


def place(root: Path) -> Layout:
    return Layout(root / "data", root / "lock", root / "logs", root / "run" / "ddtree-engine-x")


def test_a_socket_path_that_the_kernel_cannot_bind_is_refused() -> None:
    fits = Path("/" + "a" * (SOCKET_LIMIT - 1))
    check_socket_path(fits)
    with pytest.raises(EngineStartError, match=str(SOCKET_LIMIT)):
        check_socket_path(Path(f"{fits}a"))
    with pytest.raises(EngineStartError):  # bytes count, not characters
        check_socket_path(Path("/" + "ä" * (SOCKET_LIMIT // 2 + 1)))


def test_the_socket_is_short_however_deep_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDTREE_CACHE", "/deep" * 60)
    deep = layout_of(Project(Path("/repository")))
    check_socket_path(deep.socket)
    monkeypatch.setenv("DDTREE_CACHE", "/other")
    assert layout_of(Project(Path("/repository"))).socket != deep.socket


def test_the_configuration_keeps_everything_in_places_of_its_own(tmp_path: Path) -> None:
    config = daemon_config(place(tmp_path), keep_gib=30)
    assert config["data-root"] == str(tmp_path / "data")
    assert config["storage-driver"] == "overlay2"
    assert config["hosts"] == ["unix:///run/engine.sock"]
    assert config["cgroup-parent"] == "/ddtree-engine-x"
    assert "30GB" in json.dumps(config["builder"])


def test_resolv_conf_is_put_where_a_private_run_hides_it(tmp_path: Path) -> None:
    here = place(tmp_path)
    here.private_run.mkdir(parents=True)
    assert not here.write_resolv(Path("/etc/resolv.conf"), "nameserver 1.2.3.4\n")
    assert (here.private_run / "resolv.conf").read_text() == "nameserver 1.2.3.4\n"
    assert here.write_resolv(Path("/run/systemd/resolve/stub-resolv.conf"), "nameserver 1.2.3.4\n")
    stub = here.private_run / "systemd/resolve/stub-resolv.conf"
    assert stub.read_text() == "nameserver 1.2.3.4\n"


def test_what_is_left_of_an_engine_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = tmp_path / "cgroup"
    for folder in ("memory/ddtree-engine-x/buildkit", "unified/ddtree-engine-x", "memory/other"):
        (groups / folder).mkdir(parents=True)
    monkeypatch.setattr(layout, "_CGROUPS", groups)
    here = place(tmp_path)
    here.private_run.mkdir(parents=True)
    here.remove_run()
    assert not here.run.exists()
    assert sorted(p.name for p in groups.glob("*/*")) == ["other"]


def test_clients_see_the_private_engine_and_only_the_docker_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "elsewhere")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("BUILDX_BUILDER", "another")
    cli = tmp_path / "docker-cli"
    cli.write_text("#!/bin/sh\n")
    (tmp_path / "config").mkdir()
    env = client_env("unix:///s", tmp_path / "config", cli)
    assert env["DOCKER_HOST"] == "unix:///s"
    assert not {"DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "BUILDX_BUILDER"} & env.keys()
    first = Path(env["PATH"].split(":")[0])
    assert [p.name for p in first.iterdir()] == ["docker"]
