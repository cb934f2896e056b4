from __future__ import annotations

from pathlib import Path

import pytest

from builder.engine.versions import at_least, check_engine, numbers, plugin_version
from builder.errors import EngineTooOldError
from builder.pins import SharedPins


@pytest.mark.parametrize(
    ("version", "expected"),
    [("26.1.5+dfsg1", (26, 1, 5)), ("v0.13.1+ds1-3", (0, 13, 1)), ("dev", ()), ("", ())],
)
def test_numbers_leave_out_what_packagers_add(version: str, expected: tuple[int, ...]) -> None:
    assert numbers(version) == expected


@pytest.mark.parametrize(
    ("version", "minimum", "enough"),
    [
        ("23", "23.0", True),
        ("23.0.0", "23.0", True),
        ("100.1", "23.0", True),  # not by text
        ("0.9.1", "0.10.0", False),
        ("20.10.24+dfsg1", "23.0", False),
        ("unknown", "23.0", False),
    ],
)
def test_comparison_is_by_number(version: str, minimum: str, enough: bool) -> None:
    assert at_least(version, minimum) is enough


def test_an_old_engine_is_named_with_both_versions(shared: SharedPins) -> None:
    with pytest.raises(EngineTooOldError) as caught:
        check_engine({"engine": "20.10.24+dfsg1"}, shared.engine)
    assert "20.10.24+dfsg1" in caught.value.what
    assert shared.engine.minimum_engine in caught.value.what
    check_engine({"engine": shared.engine.minimum_engine}, shared.engine)


def test_podman_is_told_apart_from_an_old_docker(shared: SharedPins) -> None:
    with pytest.raises(EngineTooOldError, match="Podman 5"):
        check_engine({"engine": "5.0.1", "Podman Engine": "5.0.1"}, shared.engine)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("github.com/docker/buildx v0.29.1 abcdef", "0.29.1"),
        ("github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3", "0.13.1+ds1"),
        ("Docker Compose version v2.26.1-4", "2.26.1-4"),
    ],
)
def test_a_plugins_version_is_read_from_what_it_prints(
    tmp_path: Path, output: str, expected: str
) -> None:
    cli = tmp_path / "docker"
    cli.write_text(f"#!/bin/sh\necho '{output}'\n")
    cli.chmod(0o755)
    assert plugin_version(str(cli), "buildx", {}) == expected


def test_an_absent_plugin_has_no_version(tmp_path: Path) -> None:
    cli = tmp_path / "docker"
    cli.write_text("#!/bin/sh\necho \"docker: 'buildx' is not a docker command.\" >&2\nexit 1\n")
    cli.chmod(0o755)
    assert plugin_version(str(cli), "buildx", {}) is None
    assert plugin_version(str(tmp_path / "absent"), "buildx", {}) is None
