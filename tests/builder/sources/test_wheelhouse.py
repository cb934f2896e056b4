"""A wheelhouse: complete and right, or an error that names what is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.errors import (
    BuilderError,
    DiskSpaceError,
    HashMismatchError,
    SourceUnreachableError,
    TruncatedDownloadError,
    WheelhouseError,
)
from builder.sources import wheelhouse
from builder.sources.wheelhouse import INDEX, fill, verify
from tests.builder.sources.fakes import FakeProject, Reply, Site, make_wheel


@pytest.fixture
def house(fake: FakeProject, tmp_path: Path) -> Path:
    """Filled, with the network gone afterwards."""
    folder = tmp_path / "house"
    fill(fake.project, fake.target(), folder, {})
    return folder


def test_everything_a_build_needs_is_there(fake: FakeProject, site: Site, house: Path) -> None:
    sources = {s.filename for s in fake.target().sources}
    names = {p.name for p in house.iterdir()}
    assert names == sources | set(site.index) | {INDEX}
    index = json.loads((house / INDEX).read_text())
    assert {record["filename"] for record in index["files"]} == names - {INDEX}
    assert all(
        record["size"] == (house / record["filename"]).stat().st_size for record in index["files"]
    )
    verify(fake.project, fake.target(), house)


def test_verify_needs_no_network(fake: FakeProject, site: Site, house: Path) -> None:
    asked = len(site.requests)
    verify(fake.project, fake.target(), house)
    assert len(site.requests) == asked


def kinds(fake: FakeProject) -> list[str]:
    """One file of each kind: from the lock, from a source, an archive, SGLang."""
    target = fake.target()
    archive = next(s.filename for s in target.sources if s.kind == "archive")
    wheel = next(s.filename for s in target.sources if s.kind == "wheel")
    return [next(iter(fake.locked)), wheel, archive, target.shared.sglang.wheel]


@pytest.mark.parametrize("kind", range(4))
def test_a_missing_file_is_named(fake: FakeProject, house: Path, kind: int) -> None:
    name = kinds(fake)[kind]
    (house / name).unlink()
    with pytest.raises(WheelhouseError, match=name.split("-")[0]) as caught:
        verify(fake.project, fake.target(), house)
    assert "fetch --cuda cu128" in caught.value.remedy


@pytest.mark.parametrize("kind", range(4))
def test_a_tampered_file_is_named(fake: FakeProject, house: Path, kind: int) -> None:
    path = house / kinds(fake)[kind]
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(HashMismatchError) as caught:
        verify(fake.project, fake.target(), house)
    assert path.name in caught.value.what


def test_a_truncated_file_is_named(fake: FakeProject, house: Path) -> None:
    path = house / kinds(fake)[0]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TruncatedDownloadError) as caught:
        verify(fake.project, fake.target(), house)
    assert path.name in caught.value.what


def test_an_unfinished_folder_is_refused(fake: FakeProject, house: Path, tmp_path: Path) -> None:
    (house / INDEX).unlink()
    with pytest.raises(WheelhouseError, match=INDEX):
        verify(fake.project, fake.target(), house)
    (house / INDEX).write_text("[")
    with pytest.raises(WheelhouseError, match=INDEX):
        verify(fake.project, fake.target(), house)
    with pytest.raises(WheelhouseError, match="no such folder"):
        verify(fake.project, fake.target(), tmp_path / "nowhere")


def test_filling_again_fetches_nothing(fake: FakeProject, site: Site, house: Path) -> None:
    asked = len(site.requests)
    assert fill(fake.project, fake.target(), house, {}).fetched == 0
    assert len(site.requests) == asked


def test_filling_again_mends(fake: FakeProject, site: Site, house: Path) -> None:
    gone, tampered, truncated, _ = (house / name for name in kinds(fake))
    gone.unlink()
    tampered.write_bytes(tampered.read_bytes()[:-1] + b"!")
    truncated.write_bytes(truncated.read_bytes()[:-9])
    assert fill(fake.project, fake.target(), house, {}).fetched == 3
    verify(fake.project, fake.target(), house)


def test_a_broken_off_fetch_is_resumed(fake: FakeProject, site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "house"
    name = next(iter(fake.locked))
    body = site.index.pop(name).body
    with pytest.raises(SourceUnreachableError):
        fill(fake.project, fake.target(), folder, {})
    assert not (folder / INDEX).exists()
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]
    sources = {s.filename for s in fake.target().sources}
    assert sources <= {p.name for p in folder.iterdir()}
    site.publish(name, body)
    site.requests.clear()
    fill(fake.project, fake.target(), folder, {})
    assert not [path for path, _ in site.requests if path in fake.paths.values()]
    verify(fake.project, fake.target(), folder)


def test_small_batches_fill_the_same(
    fake: FakeProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheelhouse, "_BATCH_FILES", 1)
    fill(fake.project, fake.target(), tmp_path / "house", {})
    verify(fake.project, fake.target(), tmp_path / "house")


def test_an_index_that_serves_other_bytes(fake: FakeProject, site: Site, tmp_path: Path) -> None:
    name = next(iter(fake.locked))
    site.publish(name, make_wheel(name, filler=b"evil"))
    with pytest.raises(HashMismatchError):
        fill(fake.project, fake.target(), tmp_path / "house", {})
    assert not (tmp_path / "house" / name).exists()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (lambda body: Reply(body[:-1] + b"!"), HashMismatchError),
        (lambda body: Reply(body[:-9]), TruncatedDownloadError),
        (lambda body: Reply(b"", status=404), SourceUnreachableError),
    ],
)
def test_a_bad_source_stops_the_fetch(
    fake: FakeProject,
    site: Site,
    tmp_path: Path,
    reply: Callable[[bytes], Reply],
    error: type[BuilderError],
) -> None:
    path = fake.paths["torch"]
    site.files[path] = reply(site.files[path].body)
    with pytest.raises(error, match="torch"):
        fill(fake.project, fake.target(), tmp_path / "house", {})
    assert not (tmp_path / "house" / Path(path).name).exists()


def test_two_targets_share_a_folder(fake: FakeProject, site: Site, house: Path) -> None:
    target = fake.target(stand_in=True)
    lock = target.lock_file(fake.project)
    lock.parent.mkdir()
    name = next(iter(fake.locked))
    text = fake.target().lock_file(fake.project).read_text()
    block = text[text.index("\ntriton==") + 1 :]
    lock.write_text(block[: block.index("# file") + 6 + block.split("# file")[1].index("\n") + 1])
    with pytest.raises(WheelhouseError, match="does not list cu128-stand-in"):
        verify(fake.project, target, house)
    fill(fake.project, target, house, {})
    verify(fake.project, target, house)
    verify(fake.project, fake.target(), house)
    index = json.loads((house / INDEX).read_text())
    assert index["targets"] == ["cu128", "cu128-stand-in"]
    assert name in {record["filename"] for record in index["files"]}


def test_room_is_checked_before_anything_is_fetched(
    fake: FakeProject, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: real._replace(free=100))
    with pytest.raises(DiskSpaceError, match="GiB"):
        fill(fake.project, fake.target(), tmp_path / "house", {})
    assert not site.requests
