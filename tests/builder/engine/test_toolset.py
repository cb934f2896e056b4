from __future__ import annotations

from pathlib import Path

import pytest

from builder.engine import toolset
from builder.engine.aptsources import AptUnavailableError
from builder.engine.packages import Unpacked
from builder.engine.toolset import find_tools
from builder.errors import EngineTooOldError, ToolMissingError
from builder.pins import SharedPins
from builder.project import Project, default_project

PLUGINS = "usr/libexec/docker/cli-plugins"


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def host_docker(folder: Path, monkeypatch: pytest.MonkeyPatch, **versions: str) -> Path:
    """A docker on PATH that knows these plugins, or those below its DOCKER_CONFIG."""
    cases = "".join(f'"{k} version") echo v{v};; ' for k, v in versions.items())
    own = '[ -x "$DOCKER_CONFIG/cli-plugins/docker-$1" ] && exec "$DOCKER_CONFIG/cli-plugins/docker-$1"'
    cli = script(folder / "bin/docker", f'{own}\ncase "$*" in {cases}*) exit 1;; esac')
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_CONFIG", str(folder / "user"))
    return cli


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Debian's packages, as if unpacked."""
    root = tmp_path / "debian"
    script(root / PLUGINS / "docker-buildx", "echo v0.13.1")
    script(root / PLUGINS / "docker-compose", "echo v2.26.1")
    own = 'exec "$DOCKER_CONFIG/cli-plugins/docker-$1"'
    script(root / "usr/bin/docker", own)
    monkeypatch.setattr(
        toolset, "obtain", lambda project, wants: Unpacked(root, {"docker-buildx": "0.13.1"})
    )
    return root


@pytest.fixture
def project() -> Project:
    return default_project()


def unavailable(project: object, wants: object) -> Unpacked:
    raise AptUnavailableError("no archive named", "set DDTREE_DEBIAN_MIRROR")


def test_the_hosts_tools_are_used_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Project, shared: SharedPins
) -> None:
    cli = host_docker(tmp_path, monkeypatch, buildx="0.29.1", compose="2.40.3")
    monkeypatch.setattr(toolset, "obtain", unavailable)
    tools = find_tools(project, shared.engine, tmp_path / "scratch")
    assert tools.cli == str(cli)
    assert tools.versions == {"buildx": "0.29.1", "compose": "2.40.3"}
    assert tools.env["DOCKER_CONFIG"] == str(tmp_path / "user")
    assert tools.packages == {}


@pytest.mark.parametrize("there", [{}, {"compose": "2.40.3"}, {"buildx": "0.9.1"}])
def test_what_is_missing_or_old_comes_from_debian_without_changing_the_user(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    project: Project,
    shared: SharedPins,
    debian: Path,
    there: dict[str, str],
) -> None:
    cli = host_docker(tmp_path, monkeypatch, **there)
    tools = find_tools(project, shared.engine, tmp_path / "scratch")
    assert tools.cli == str(cli)
    assert tools.versions["buildx"] == "0.13.1"
    assert tools.env["DOCKER_CONFIG"] != str(tmp_path / "user")
    assert not (tmp_path / "user").exists()


def test_without_any_docker_the_program_comes_from_debian_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    project: Project,
    shared: SharedPins,
    debian: Path,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(toolset, "which", lambda name: None)
    tools = find_tools(project, shared.engine, tmp_path / "scratch")
    assert tools.cli == str(debian / "usr/bin/docker")
    assert tools.env["PATH"].startswith(f"{debian}/usr/bin:")


@pytest.mark.parametrize(
    ("there", "error"), [({}, ToolMissingError), ({"buildx": "0.9.1"}, EngineTooOldError)]
)
def test_where_debian_has_none_either_the_error_says_what_to_install(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    project: Project,
    shared: SharedPins,
    there: dict[str, str],
    error: type[Exception],
) -> None:
    host_docker(tmp_path, monkeypatch, **there)
    monkeypatch.setattr(toolset, "obtain", unavailable)
    with pytest.raises(error) as caught:
        find_tools(project, shared.engine, tmp_path / "scratch")
    assert "docker-buildx" in getattr(caught.value, "remedy", "")


def test_a_build_does_without_compose(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    project: Project,
    shared: SharedPins,
    capsys: pytest.CaptureFixture[str],
) -> None:
    host_docker(tmp_path, monkeypatch, buildx="0.29.1")
    monkeypatch.setattr(toolset, "obtain", unavailable)
    tools = find_tools(project, shared.engine, tmp_path / "scratch")
    assert "compose" not in tools.versions
    assert "no docker compose" in capsys.readouterr().err
