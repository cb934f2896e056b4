from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import pytest

from builder.engine import packages
from builder.engine.aptroot import Package
from builder.engine.aptsources import AptUnavailableError, Mirror
from builder.engine.packages import Want, forget, obtain, recorded
from builder.project import Project

WANTS = [Want("trixie", ("docker.io", "runc")), Want("bookworm", ("runc",), libraries=True)]


class FakeSuite:
    """An apt root whose packages are made on the spot with dpkg-deb."""

    def __init__(self, suite: str) -> None:
        self.suite = suite

    def resolve(self, names: list[str]) -> list[Package]:
        known = [n for n in names if n != "absent"]
        return [Package(n, f"1-{self.suite}", f"{n}_1-{self.suite}_all.deb", 1, n) for n in known]

    def libraries_of(self, names: tuple[str, ...]) -> list[str]:
        return ["libseccomp2"]

    def download(self, found: list[Package], to: Path) -> list[Path]:
        return [_deb(to, package, self.suite) for package in found]


def _deb(to: Path, package: Package, suite: str) -> Path:
    tree = to / f"tree-{package.name}"
    # As in Debian: one suite has runc in sbin, a newer one in bin.
    folder = "usr/bin" if suite == "trixie" else "usr/sbin"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / folder).mkdir(parents=True)
    (tree / folder / package.name).write_text(suite)
    (tree / "DEBIAN/control").write_text(
        f"Package: {package.name}\nVersion: 1\nArchitecture: all\n"
        "Maintainer: x <x@example.org>\nDescription: x\n"
    )
    path = to / package.filename
    subprocess.run(["dpkg-deb", "-b", str(tree), str(path)], check=True, capture_output=True)
    shutil.rmtree(tree)
    return path


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Stand-in for Debian; yields the suites that were opened."""
    if which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))
    opened: list[str] = []

    @contextmanager
    def fake_open(mirror: Mirror, suite: str) -> Iterator[FakeSuite]:
        opened.append(suite)
        yield FakeSuite(suite)

    monkeypatch.setattr(packages, "open_suite", fake_open)
    monkeypatch.setattr(packages, "host_mirror", lambda: Mirror("http://m.example", None, "/k"))
    yield opened


def test_unpacked_once_then_used_again_without_the_archive(
    archive: list[str], tmp_path: Path
) -> None:
    project = Project(tmp_path)
    assert recorded(project, WANTS) == {}
    first = obtain(project, WANTS)
    assert archive == ["trixie", "bookworm"]
    again = obtain(project, WANTS)
    assert archive == ["trixie", "bookworm"]
    assert again == first
    assert first.versions["docker.io"] == "1-trixie"
    assert first.versions["libseccomp2"] == "1-bookworm"
    assert recorded(project, WANTS) == first.versions
    record = json.loads((first.root.parent / "packages.json").read_text())
    assert record["mirror"] == "http://m.example"


def test_the_older_suites_runc_is_the_only_one(archive: list[str], tmp_path: Path) -> None:
    unpacked = obtain(Project(tmp_path), WANTS)
    found = [path.read_text() for path in unpacked.root.rglob("runc")]
    assert found == ["bookworm"]
    assert unpacked.versions["runc"] == "1-bookworm"


def test_other_packages_are_not_mistaken_for_these(archive: list[str], tmp_path: Path) -> None:
    project = Project(tmp_path)
    obtain(project, WANTS)
    obtain(project, WANTS[1:])
    assert archive == ["trixie", "bookworm", "bookworm"]


def test_forget_makes_the_next_run_ask_again(archive: list[str], tmp_path: Path) -> None:
    project = Project(tmp_path)
    obtain(project, WANTS)
    forget(project)
    obtain(project, WANTS)
    assert len(archive) == 4


def test_a_package_that_the_suite_lacks_is_named_and_nothing_stays(
    archive: list[str], tmp_path: Path
) -> None:
    project = Project(tmp_path)
    with pytest.raises(AptUnavailableError, match="no package absent"):
        obtain(project, [Want("trixie", ("docker.io", "absent"))])
    assert [p.name for p in (project.cache / "engine").iterdir()] == ["lock"]


def test_an_interrupt_leaves_nothing_and_a_killed_builders_rest_goes(
    archive: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    rest = project.cache / "engine/.new-killed/root"
    rest.mkdir(parents=True)

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(packages, "_unpack_one", interrupt)
        obtain(project, WANTS)
    assert [p.name for p in (project.cache / "engine").iterdir()] == ["lock"]
    assert obtain(project, WANTS).versions
