from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import docker
import pytest

from builder.engine import Engine, cli
from builder.errors import ToolMissingError
from builder.project import Project, default_project


def run(project: Project, *argv: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["engine", *argv])
    code: int = args.handler(args, project)
    return code


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))
    return default_project()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An engine that is only an environment; yields the modes it was asked for."""
    asked: list[Any] = []

    @contextmanager
    def acquire(project: Project, shared: Any, mode: str, **options: Any) -> Iterator[Engine]:
        asked.append(mode)
        env = {"PATH": "/usr/bin:/bin", "DOCKER_HOST": "unix:///here"}
        yield Engine("private", cast(docker.DockerClient, None), {}, env, "/x/docker")
        asked.append("stopped")

    monkeypatch.setattr(cli, "acquire", acquire)
    return asked


def test_status_starts_and_makes_nothing(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, "status", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["existing"] is None
    assert str(tmp_path) in found["existing_reason"]
    assert found["private"]["data_root"] == str(tmp_path / "cache/engine-data")
    assert found["auto"] in {"private", "none"}
    assert run(project, "status") == 0
    assert "a build with --engine auto uses" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("code", [0, 7])
def test_exec_passes_the_exit_code_through(project: Project, engine: list[Any], code: int) -> None:
    argv = ["--", "sh", "-c", f'[ "$DOCKER_HOST" = unix:///here ] && exit {code}; exit 99']
    assert run(project, "exec", "--engine", "private", *argv) == code
    assert engine == ["private", "stopped"]


def test_exec_reports_a_signal_as_a_shell_does(project: Project, engine: list[Any]) -> None:
    assert run(project, "exec", "--", "sh", "-c", "kill -TERM $$") == 128 + 15


def test_exec_of_an_unknown_program_is_the_users_mistake(
    project: Project, engine: list[Any]
) -> None:
    with pytest.raises(ToolMissingError, match="no-such-program"):
        run(project, "exec", "--", "no-such-program")


def test_prune_all_deletes_the_data_root_and_only_that(project: Project, tmp_path: Path) -> None:
    data = tmp_path / "cache/engine-data/overlay2/x"
    data.mkdir(parents=True)
    kept = tmp_path / "cache/wheels"
    kept.mkdir()
    assert run(project, "prune", "--all") == 0
    assert kept.is_dir()
    assert not list((tmp_path / "cache").glob("engine-data*[!k]"))


def test_prune_packages_starts_no_engine(
    project: Project, engine: list[Any], tmp_path: Path
) -> None:
    unpacked = tmp_path / "cache/engine/trixie-0123/root"
    unpacked.mkdir(parents=True)
    assert run(project, "prune", "--packages") == 0
    assert not unpacked.exists()
    assert engine == []


def test_prune_of_nothing_starts_no_engine(project: Project, engine: list[Any]) -> None:
    assert run(project, "prune") == 0
    assert engine == []


def test_the_engine_option_has_one_default() -> None:
    parser = argparse.ArgumentParser()
    cli.add_engine_option(parser)
    assert parser.parse_args([]).engine == "auto"
    with pytest.raises(SystemExit):
        parser.parse_args(["--engine", "podman"])
