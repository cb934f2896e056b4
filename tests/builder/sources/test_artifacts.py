"""The pinned files of cu128: reachable or one line each, fetched by hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import HashMismatchError, SourceUnreachableError
from builder.sources import artifacts
from builder.sources.artifacts import artifact_path, check_sources, fetch_artifacts
from builder.sources.http import HttpError, probe
from tests.builder.sources.fakes import FakeProject, Reply, Site

DEAD = "http://127.0.0.1:9"


def test_all_sources_answer(fake: FakeProject, site: Site) -> None:
    statuses = check_sources(fake.target(), {})
    assert [s.name for s in statuses] == [s.name for s in fake.target().sources]
    assert all(s.ok and not s.kept for s in statuses)
    assert {span for _, span in site.requests} == {"bytes=0-0"}


def test_one_line_for_each_source_that_does_not(fake: FakeProject, site: Site) -> None:
    del site.files[fake.paths["torch"]]
    site.files[fake.paths["cuda_nvcc"]] = Reply(b"", status=503)
    with pytest.raises(SourceUnreachableError) as caught:
        check_sources(fake.target(), {})
    lines = caught.value.what.splitlines()
    total = len(fake.target().sources)
    assert lines[0] == f"2 of {total} sources of cu128 cannot be reached:"
    assert len(lines) == 3
    assert "torch" in lines[1] and site.url in lines[1] and "HTTP 404" in lines[1]
    assert "cuda_nvcc" in lines[2] and "HTTP 503" in lines[2]
    for way in ("--mirror", "build.py fetch --cuda cu128", "--wheelhouse", "--stand-in"):
        assert way in caught.value.remedy


def test_a_source_of_another_size_is_no_source(fake: FakeProject, site: Site) -> None:
    site.files[fake.paths["torch"]] = Reply(b"short")
    with pytest.raises(SourceUnreachableError, match="is 5 bytes, pinned are"):
        check_sources(fake.target(), {})


def test_who_outlasts_every_timeout_is_left_behind(
    fake: FakeProject, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that resolves for ever, a server that trickles its headers."""

    def probe_one(url: str) -> int | None:
        if "torch-" in url:
            site.closing.wait(20)
            raise HttpError("too late")
        return None

    monkeypatch.setattr(artifacts, "probe", probe_one)
    with pytest.raises(SourceUnreachableError, match="no answer within") as caught:
        check_sources(fake.target(), {}, seconds=1.0)
    assert len(caught.value.what.splitlines()) == 2


def test_a_probe_is_bounded_by_its_timeout(site: Site) -> None:
    site.files["/x"] = Reply(b"", hang=True)
    with pytest.raises(HttpError, match="no answer within"):
        probe(f"{site.url}/x", timeout=0.2)


def test_nobody_listens(fake: FakeProject, site: Site) -> None:
    with pytest.raises(SourceUnreachableError, match="refused"):
        check_sources(fake.target(), {site.url: DEAD})


def test_mirrors_are_asked_instead(fake: FakeProject, site: Site) -> None:
    for path in fake.paths.values():
        site.files["/mirror" + path] = site.files.pop(path)
    mirrors = {site.url: f"{site.url}/mirror"}
    check_sources(fake.target(), mirrors)
    folder = fetch_artifacts(fake.project, fake.target(), mirrors)
    assert all(path.startswith("/mirror/") for path, _ in site.requests)
    assert len(list(folder.iterdir())) == len(fake.paths)


def test_kept_files_are_not_asked_for(fake: FakeProject, site: Site, tmp_path: Path) -> None:
    torch, *others = fake.target().sources
    (tmp_path / torch.filename).write_bytes(b"there")
    for source in others:
        cached = artifact_path(fake.project, source)
        cached.parent.mkdir(parents=True)
        cached.write_bytes(b"there")
    statuses = check_sources(fake.target(), {}, tmp_path, project=fake.project)
    assert all(s.kept for s in statuses)
    assert not site.requests


def test_a_target_without_sources_asks_nobody(fake: FakeProject, site: Site) -> None:
    assert check_sources(fake.target(stand_in=True), {}) == []
    assert list(fetch_artifacts(fake.project, fake.target(stand_in=True), {}).iterdir()) == []
    assert not site.requests


def test_the_folder_holds_exactly_the_targets_files(fake: FakeProject, site: Site) -> None:
    target = fake.target()
    folder = fetch_artifacts(fake.project, target, {})
    assert sorted(p.name for p in folder.iterdir()) == sorted(s.filename for s in target.sources)
    for source in target.sources:
        served = site.files[fake.paths[source.name]].body
        assert (folder / source.filename).read_bytes() == served
    (folder / "torch-1.0.whl").write_bytes(b"stale")
    asked = len(site.requests)
    fetch_artifacts(fake.project, target, {})
    assert not (folder / "torch-1.0.whl").exists()
    assert len(site.requests) == asked


def test_a_tampered_artifact_never_reaches_the_folder(fake: FakeProject, site: Site) -> None:
    path = fake.paths["cuda_cccl"]
    site.files[path] = Reply(site.files[path].body[:-1] + b"!")
    with pytest.raises(HashMismatchError, match="cuda_cccl"):
        fetch_artifacts(fake.project, fake.target(), {})
    assert not list((fake.project.cache / "artifacts").rglob("cuda_cccl*"))
