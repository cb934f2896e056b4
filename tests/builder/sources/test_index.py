"""Wheels through pip: by hash, for the image's platform, with pip's own settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import HashMismatchError, SourceUnreachableError, WheelhouseError
from builder.files import sha256_file
from builder.pins import load_shared
from builder.project import default_project
from builder.sources.index import (
    builder_tools,
    fetch_sglang_wheel,
    pinned_wheel,
    pip_download,
    requirement,
    wheel_platforms,
)
from tests.builder.sources.fakes import FakeProject, Site, digest, make_wheel


def test_the_sglang_wheel_comes_from_the_index_once(fake: FakeProject, site: Site) -> None:
    shared = load_shared(fake.project)
    first = fetch_sglang_wheel(fake.project, shared)
    assert first.name == shared.sglang.wheel
    assert sha256_file(first) == shared.sglang.sha256
    asked = len(site.requests)
    assert fetch_sglang_wheel(fake.project, shared) == first
    assert len(site.requests) == asked


def test_a_rotten_cached_wheel_is_fetched_again(fake: FakeProject) -> None:
    shared = load_shared(fake.project)
    first = fetch_sglang_wheel(fake.project, shared)
    first.write_bytes(b"rot")
    assert sha256_file(fetch_sglang_wheel(fake.project, shared)) == shared.sglang.sha256


def test_other_bytes_under_the_pinned_name_are_refused(fake: FakeProject, site: Site) -> None:
    shared = load_shared(fake.project)
    site.publish(shared.sglang.wheel, make_wheel(shared.sglang.wheel, filler=b"evil"))
    with pytest.raises(HashMismatchError, match=r"sglang 0\.5"):
        fetch_sglang_wheel(fake.project, shared)
    assert not list((fake.project.cache / "wheels").rglob("*.whl"))


def test_a_missing_version_says_so(fake: FakeProject, site: Site) -> None:
    shared = load_shared(fake.project)
    del site.index[shared.sglang.wheel]
    with pytest.raises(SourceUnreachableError, match="sglang"):
        fetch_sglang_wheel(fake.project, shared)


def test_an_index_that_does_not_answer(fake: FakeProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(SourceUnreachableError, match="does not answer"):
        fetch_sglang_wheel(fake.project, load_shared(fake.project))


def test_a_hosts_constraints_do_not_cap_a_pinned_wheel(
    fake: FakeProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cap = tmp_path / "cap.txt"
    cap.write_text("sglang<0.1\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(cap))
    assert fetch_sglang_wheel(fake.project, load_shared(fake.project)).is_file()


@pytest.mark.parametrize(
    ("tags", "fits"),
    [
        ("cp311-cp311-manylinux_2_36_x86_64", True),
        ("cp310-abi3-manylinux2014_x86_64", True),
        ("py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("cp311-cp311-manylinux_2_39_x86_64", False),
        ("cp312-cp312-manylinux_2_17_x86_64", False),
        ("cp311-cp311-manylinux_2_17_aarch64", False),
        ("cp311-cp311-macosx_11_0_arm64", False),
    ],
)
def test_wheels_are_chosen_for_the_image_not_for_the_host(
    fake: FakeProject, site: Site, tags: str, fits: bool
) -> None:
    body = make_wheel(f"thing-1.0-{tags}.whl")
    site.publish(f"thing-1.0-{tags}.whl", body)
    python = load_shared(fake.project).python

    def fetch() -> Path:
        return pinned_wheel(fake.project, python, name="thing", version="1.0", sha256=digest(body))

    if fits:
        assert sha256_file(fetch()) == digest(body)
    else:
        with pytest.raises(SourceUnreachableError):
            fetch()


@pytest.mark.parametrize(
    ("tags", "fits"),
    [
        ("cp39-cp39-manylinux_2_20_aarch64", True),
        ("cp38-abi3-manylinux_2_17_aarch64", True),
        ("cp39-cp39-manylinux_2_28_aarch64", False),
        ("cp39-cp39-manylinux_2_17_x86_64", False),
        ("cp311-cp311-manylinux_2_17_aarch64", False),
    ],
)
def test_the_pins_say_what_the_image_is(
    fake: FakeProject, site: Site, tags: str, fits: bool
) -> None:
    """With pins unlike any likely host: a match with the host's own tags would show."""
    body = make_wheel(f"thing-1.0-{tags}.whl")
    site.publish(f"thing-1.0-{tags}.whl", body)
    python = load_shared(fake.project).python.model_copy(
        update={"version": "3.9", "abi": "cp39", "wheel_platform": "manylinux_2_20_aarch64"}
    )
    line = requirement("thing", "1.0", [digest(body)])
    dest = fake.project.root / "dest"
    if fits:
        pip_download([line], dest, python, what="thing")
        assert len(list(dest.iterdir())) == 1
    else:
        with pytest.raises(SourceUnreachableError):
            pip_download([line], dest, python, what="thing")


def test_platforms_start_at_the_images_glibc() -> None:
    platforms = wheel_platforms(load_shared(default_project()).python)
    assert platforms[0] == load_shared(default_project()).python.wheel_platform
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64"} <= set(platforms)
    assert "manylinux_2_37_x86_64" not in platforms


def test_tools_come_from_a_wheelhouse_without_an_index(
    fake: FakeProject, site: Site, tmp_path: Path
) -> None:
    shared = load_shared(fake.project)
    house = tmp_path / "house"
    house.mkdir()
    for filename, file in site.index.items():
        (house / filename).write_bytes(file.body)
    tools = builder_tools(fake.project, shared, house)
    assert set(tools) == {"uv", "pyelftools"}
    assert all(path.parent == house for path in tools.values())
    assert not site.requests
    tools["uv"].write_bytes(b"other")
    with pytest.raises(HashMismatchError, match="uv"):
        builder_tools(fake.project, shared, house)
    tools["uv"].unlink()
    with pytest.raises(WheelhouseError, match="uv"):
        builder_tools(fake.project, shared, house)


@pytest.mark.network
def test_the_real_sglang_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path))
    shared = load_shared(default_project())
    wheel = fetch_sglang_wheel(default_project(), shared)
    assert wheel.name == shared.sglang.wheel
    assert sha256_file(wheel) == shared.sglang.sha256
