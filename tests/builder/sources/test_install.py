"""What the image's Dockerfile does with a wheelhouse or the artifacts: uv installs the lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from builder.sources.artifacts import fetch_artifacts
from builder.sources.wheelhouse import fill
from tests.builder.sources.fakes import FakeProject, Site, make_wheel


def install(fake: FakeProject, into: Path, *where: str) -> subprocess.CompletedProcess[str]:
    target = fake.target()
    python = target.shared.python
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UV_")}
    return subprocess.run(
        [
            *(find_uv_bin(), "pip", "install", "--no-config", "--no-cache"),
            *("--python", sys.executable, "--target", str(into)),
            *("--python-version", python.version, "--python-platform", python.resolve_platform),
            *("--require-hashes", "--no-deps", "--only-binary", ":all:", *where),
            *("--requirement", str(target.lock_file(fake.project))),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_from_a_wheelhouse_alone(fake: FakeProject, site: Site, tmp_path: Path) -> None:
    house = tmp_path / "house"
    fill(fake.project, fake.target(), house, {})
    site.requests.clear()
    done = install(fake, tmp_path / "site", "--no-index", "--find-links", str(house))
    assert done.returncode == 0, done.stderr
    torch = fake.target().torch.version
    assert (tmp_path / "site" / f"torch-{torch}.dist-info").is_dir()
    assert not site.requests


def test_from_the_index_and_the_artifacts(fake: FakeProject, site: Site, tmp_path: Path) -> None:
    artifacts = fetch_artifacts(fake.project, fake.target(), {})
    index = f"{site.url}/simple"
    done = install(
        fake, tmp_path / "site", "--default-index", index, "--find-links", str(artifacts)
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / f"triton-{fake.target().torch.triton}.dist-info").is_dir()


@pytest.mark.parametrize("which", ["triton", "torch"])
def test_a_tampered_wheel_is_not_installed(fake: FakeProject, tmp_path: Path, which: str) -> None:
    house = tmp_path / "house"
    fill(fake.project, fake.target(), house, {})
    (wheel,) = house.glob(f"{which}-*.whl")
    wheel.write_bytes(make_wheel(wheel.name, filler=b"evil"))
    done = install(fake, tmp_path / "site", "--no-index", "--find-links", str(house))
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()
    assert not list((tmp_path / "site").glob(f"{which}-*"))
