"""`acquire`: which engine is taken, and what is said when there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import docker
import pytest

import builder.engine as package
from builder.engine import Engine, EngineMode, acquire, existing
from builder.engine.support import Reason
from builder.engine.toolset import Tools
from builder.errors import DiskSpaceError, EngineAbsentError, EngineTooOldError
from builder.pins import SharedPins
from builder.project import Project, default_project
from tests.builder.engine.conftest import FakeEngine, engine_replies


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """No engine answers, no tools are looked for, a private engine would be a mere record."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    # The variable only keeps the machine's own engine away: to these tests nobody named one.
    monkeypatch.setattr("builder.engine.named_engine", lambda: False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))

    @contextmanager
    def private(project: Project, shared: SharedPins, need_gib: int) -> Iterator[Engine]:
        yield Engine("private", cast(docker.DockerClient, None), {}, {}, "/x/docker")

    tools = Tools("/usr/bin/docker", {"A": "b"}, {"buildx": "0.29.1"}, {})
    monkeypatch.setattr(package, "_private", private)
    monkeypatch.setattr(package, "find_tools", lambda *args: tools)
    monkeypatch.setattr(package, "why_not_private", lambda: None)
    return default_project()


@pytest.mark.parametrize(
    ("mode", "answers", "kind"),
    [
        ("auto", True, "existing"),
        ("auto", False, "private"),
        ("existing", True, "existing"),
        ("private", True, "private"),
        ("private", False, "private"),
    ],
)
def test_the_mode_decides(
    project: Project,
    shared: SharedPins,
    fake_engine: FakeEngine,
    tmp_path: Path,
    mode: EngineMode,
    answers: bool,
    kind: str,
) -> None:
    if answers:
        fake_engine(engine_replies("26.1.5", tmp_path, containerd="1.7", runc="1.1"))
    with acquire(project, shared, mode, need_gib=0) as engine:
        assert engine.kind == kind
        if kind == "existing":
            assert engine.versions == {
                "engine": "26.1.5",
                "containerd": "1.7",
                "runc": "1.1",
                "buildx": "0.29.1",
            }
            assert engine.in_network("curl", "x") == ["curl", "x"]


def test_auto_says_in_one_line_that_it_starts_one(
    project: Project, shared: SharedPins, capsys: pytest.CaptureFixture[str]
) -> None:
    with acquire(project, shared, "auto", need_gib=0):
        pass
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "no Docker engine answers" in line
    assert "private" in line


@pytest.mark.parametrize("mode", ["auto", "private"])
def test_where_none_can_be_started_the_error_says_what_to_install(
    project: Project, shared: SharedPins, monkeypatch: pytest.MonkeyPatch, mode: EngineMode
) -> None:
    monkeypatch.setattr(package, "why_not_private", lambda: Reason("a reason", "a remedy"))
    with pytest.raises(EngineAbsentError) as caught, acquire(project, shared, mode):
        pass
    assert "a reason" in caught.value.what
    assert "a remedy" in caught.value.remedy
    assert "install Docker Engine with buildx" in caught.value.remedy
    assert ("no Docker engine answers" in caught.value.what) == (mode == "auto")


def test_existing_never_starts_one(project: Project, shared: SharedPins) -> None:
    with pytest.raises(EngineAbsentError), acquire(project, shared, "existing"):
        pass


def test_an_old_engine_is_refused_even_if_a_private_one_were_possible(
    project: Project, shared: SharedPins, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    fake_engine(engine_replies("20.10.24", tmp_path))
    with pytest.raises(EngineTooOldError), acquire(project, shared, "auto", need_gib=0):
        pass


def test_a_full_disk_is_found_before_anything_is_done(
    project: Project, shared: SharedPins, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    fake_engine(engine_replies("26.1.5", tmp_path))
    with (
        pytest.raises(DiskSpaceError, match="1000000 GiB"),
        acquire(project, shared, "existing", need_gib=10**6),
    ):
        pass


def test_a_private_engine_checks_its_disk_before_it_takes_packages(
    shared: SharedPins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(package, "why_not_private", lambda: None)
    with (
        pytest.raises(DiskSpaceError, match="1000000 GiB"),
        acquire(default_project(), shared, "private", need_gib=10**6),
    ):
        pass
    assert not (tmp_path / "cache").exists()


def test_command_lines_of_an_engine() -> None:
    engine = Engine(
        "private", cast(docker.DockerClient, None), {}, {}, "/x/docker", {}, ("nsenter", "--")
    )
    assert engine.docker("images") == ["/x/docker", "images"]
    assert engine.buildx("bake", "-f", "x") == ["/x/docker", "buildx", "bake", "-f", "x"]
    assert engine.compose("up") == ["/x/docker", "compose", "up"]
    assert engine.in_network("curl", "u") == ["nsenter", "--", "curl", "u"]


def test_an_engine_that_the_user_named_is_never_replaced(
    project: Project, shared: SharedPins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.engine.named_engine", existing.named_engine)
    with (
        pytest.raises(EngineAbsentError, match=r"none\.sock"),
        acquire(project, shared, "auto", need_gib=0),
    ):
        pytest.fail("it went on with another engine")
