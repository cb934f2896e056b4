from __future__ import annotations

from pathlib import Path

import pytest

from builder.engine.clidir import make_docker_config


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "user"
    (folder / "cli-plugins").mkdir(parents=True)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder


def test_credentials_stay_usable_and_untouched(user: Path, tmp_path: Path) -> None:
    secret = '{"auths": {"registry.example": {"auth": "eA=="}}}'
    (user / "config.json").write_text(secret)
    folder = make_docker_config(tmp_path / "own", {})
    assert (folder / "config.json").read_text() == secret
    assert (user / "config.json").read_text() == secret
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(p.name for p in user.iterdir()) == ["cli-plugins", "config.json"]


def test_our_plugins_win_and_the_users_others_stay(user: Path, tmp_path: Path) -> None:
    ours = tmp_path / "docker-buildx"
    for path in (ours, user / "cli-plugins/docker-buildx", user / "cli-plugins/docker-scan"):
        path.touch()
    plugins = make_docker_config(tmp_path / "own", {"docker-buildx": ours}) / "cli-plugins"
    assert (plugins / "docker-buildx").resolve() == ours
    assert (plugins / "docker-scan").resolve() == user / "cli-plugins/docker-scan"


def test_without_a_user_configuration_there_is_nothing_to_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
    folder = make_docker_config(tmp_path / "own", {"docker-compose": None})
    assert [p.name for p in folder.rglob("*")] == ["cli-plugins"]
