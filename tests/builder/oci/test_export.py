"""Where exports are kept: whole or not at all, made once, few of them, and never on a full disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docker.errors
import pytest

from builder.engine import Engine
from builder.errors import (
    DiskSpaceError,
    EngineFailedError,
    HostFileError,
    ImageAbsentError,
    TamperedError,
)
from builder.oci import export, spool
from builder.oci.export import export_image, measure
from builder.oci.layout import verify_layout
from builder.project import Project, default_project
from tests.builder.oci.archives import EPOCH, Member, Stream, save


class Images:
    """An engine with some images; counts how often one was saved."""

    def __init__(self, root: Path) -> None:
        self.archives: dict[str, bytes] = {}
        self.ids: dict[str, str] = {}
        self.saved = 0
        self.size = 1000
        self.fail: Exception | None = None
        client = SimpleNamespace(
            images=SimpleNamespace(get=self.get),
            api=SimpleNamespace(get_image=self.get_image),
            info=lambda: {"DockerRootDir": str(root), "DriverStatus": []},
        )
        self.engine = cast(Engine, SimpleNamespace(client=client, env={}))

    def add(self, name: str, content: bytes) -> None:
        self.archives[name] = save([[Member("a", content)]])

    def get(self, name: str) -> Any:
        if name not in self.archives:
            raise docker.errors.ImageNotFound(name)
        image_id = self.ids.get(name, f"sha256:{name.encode().hex():0<64}")
        return SimpleNamespace(id=image_id, attrs={"Size": self.size})

    def get_image(self, image_id: str, chunk_size: int) -> Iterator[bytes]:
        self.saved += 1
        if self.fail is not None:
            raise self.fail
        name = next(n for n in self.archives if str(self.get(n).id) == image_id)
        return iter(Stream(self.archives[name]))


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Images:
    monkeypatch.setattr(spool, "SPARE_BYTES", 1 << 60)  # whatever this disk has: asked twice
    found = Images(tmp_path)
    for name in ("one", "two", "three"):
        found.add(name, name.encode())
    return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "cache"))
    return default_project()


def kept(project: Project) -> list[str]:
    return sorted(path.name for path in (project.cache / "oci").iterdir() if path.is_dir())


def test_an_export_is_whole_and_made_once(project: Project, images: Images) -> None:
    first = export_image(project, images.engine, "one", epoch=EPOCH)
    assert verify_layout(first.folder) == first
    assert images.saved == 2
    again = export_image(project, images.engine, "one", epoch=EPOCH)
    assert again == first
    assert images.saved == 2
    assert not (first.folder / "scratch").exists()
    assert not list(first.folder.glob("blobs/sha256/.part*"))


def test_where_there_is_room_the_engine_is_asked_once(
    project: Project, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = export_image(project, images.engine, "one", epoch=EPOCH)
    shutil.rmtree(twice.folder)
    monkeypatch.setattr(spool, "SPARE_BYTES", -(1 << 60))
    once = export_image(project, images.engine, "one", epoch=EPOCH)
    assert images.saved == 2 + 1
    assert once == twice
    assert not list(once.folder.rglob("saved.tar"))


@pytest.mark.parametrize("number", range(3))
def test_a_kept_layout_that_the_disk_has_damaged_is_made_anew(
    project: Project, images: Images, number: int
) -> None:
    """One bit, no other size: a registry would refuse it after minutes, a bundle carry it."""
    layout = export_image(project, images.engine, "one", epoch=EPOCH)
    document = layout.document()
    digest = (layout.manifest.digest, document["config"]["digest"], layout.layers()[0].digest)
    path = layout.blob(digest[number])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = export_image(project, images.engine, "one", epoch=EPOCH)
    assert images.saved == 4
    assert verify_layout(again.folder) == layout


@pytest.mark.parametrize("kept_already", [False, True])
def test_an_image_asked_for_by_its_id_gets_no_name(
    project: Project, images: Images, kept_already: bool
) -> None:
    """`docker load` refuses an ID as a name."""
    image_id = str(images.get("one").id)
    images.archives[image_id] = images.archives["one"]
    images.ids[image_id] = image_id
    if kept_already:
        named = export_image(project, images.engine, "one", epoch=EPOCH)
        assert _names(named.folder) == ["one:latest"]
    layout = export_image(project, images.engine, image_id, epoch=EPOCH)
    assert _names(layout.folder) == []
    assert layout.layers()


def _names(folder: Path) -> list[str]:
    (image,) = json.loads((folder / "manifest.json").read_text())
    (entry,) = json.loads((folder / "index.json").read_text())["manifests"]
    named = entry.get("annotations", {}).get("org.opencontainers.image.ref.name")
    assert [named] == (image["RepoTags"] or [None])
    return list(image["RepoTags"])


def test_the_digest_without_an_export_is_the_exports(project: Project, images: Images) -> None:
    found = measure(images.engine, "one", epoch=EPOCH)
    assert not project.cache.exists()
    layout = export_image(project, images.engine, "one", epoch=EPOCH)
    assert (layout.manifest.digest, layout.rootfs) == (found.manifest.digest, found.rootfs)


def test_another_epoch_or_a_missing_blob_is_made_anew(project: Project, images: Images) -> None:
    layout = export_image(project, images.engine, "one", epoch=EPOCH)
    other = export_image(project, images.engine, "one", epoch=EPOCH - 1)
    assert other.manifest != layout.manifest
    other.blob(other.layers()[0].digest).unlink()
    again = export_image(project, images.engine, "one", epoch=EPOCH - 1)
    assert verify_layout(again.folder).manifest == other.manifest
    assert images.saved == 6


def test_only_the_layouts_used_last_stay(project: Project, images: Images) -> None:
    for name in ("one", "two", "one", "three"):
        export_image(project, images.engine, name, epoch=EPOCH)
    assert kept(project) == sorted(
        name.encode().hex().ljust(16, "0")[:16] for name in ("one", "three")
    )


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (docker.errors.APIError("x", explanation="no space left"), EngineFailedError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failed_export_leaves_nothing(
    project: Project, images: Images, failure: Exception, error: type[BaseException]
) -> None:
    images.fail = failure
    with pytest.raises(error):
        export_image(project, images.engine, "one", epoch=EPOCH)
    assert kept(project) == []


def test_a_cut_answer_leaves_nothing(project: Project, images: Images) -> None:
    images.archives["one"] = images.archives["one"][:2000]
    with pytest.raises(TamperedError):
        export_image(project, images.engine, "one", epoch=EPOCH)
    assert kept(project) == []


def test_a_disk_that_fills_up_is_said_and_leaves_nothing(
    project: Project, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskSpaceError):
        export_image(project, images.engine, "one", epoch=EPOCH)
    assert kept(project) == []


def test_leftovers_of_a_killed_export_go(project: Project, images: Images) -> None:
    (project.cache / "oci" / ".new-killed").mkdir(parents=True)
    export_image(project, images.engine, "one", epoch=EPOCH)
    assert len(kept(project)) == 1


def test_room_is_checked_before_a_byte_is_read(
    project: Project, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layout and engine on one disk need both: 0.5 and 1.0 of 10 GiB."""
    images.size = 10 * 2**30
    monkeypatch.setattr(export, "free_gib", lambda _path: 14.9)
    with pytest.raises(DiskSpaceError, match=r"needs 15\.0 GiB"):
        export_image(project, images.engine, "one", epoch=EPOCH)
    assert images.saved == 0
    monkeypatch.setattr(export, "free_gib", lambda _path: 15.1)
    export_image(project, images.engine, "one", epoch=EPOCH)


def test_a_folder_of_ones_own(project: Project, images: Images, tmp_path: Path) -> None:
    goal = tmp_path / "mine"
    layout = export_image(project, images.engine, "one", epoch=EPOCH, folder=goal)
    assert layout.folder == goal
    assert verify_layout(goal) == layout
    with pytest.raises(HostFileError, match="not empty"):
        export_image(project, images.engine, "one", epoch=EPOCH, folder=goal)
    assert verify_layout(goal) == layout


def test_an_image_that_is_not_there(project: Project, images: Images) -> None:
    with pytest.raises(ImageAbsentError, match="no image four"):
        export_image(project, images.engine, "four", epoch=EPOCH)
