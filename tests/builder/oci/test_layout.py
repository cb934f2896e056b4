"""A layout on disk: what is accepted, what is refused, and what an engine gets of it."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builder.engine import Engine
from builder.errors import EngineFailedError, TamperedError
from builder.oci.config import describe
from builder.oci.layout import (
    archive,
    load_layout,
    names_of,
    open_layout,
    verify_layout,
    write_names,
)
from builder.oci.model import MANIFEST, ImageLayout
from builder.oci.produce import produce
from tests.builder.oci.archives import EPOCH, Member, Stream, save

NAME = "ddtree:1"


@pytest.fixture
def layout(tmp_path: Path) -> ImageLayout:
    folder = tmp_path / "layout"
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    layers = [[Member("a", b"a" * 9000)], [Member("b", b"b")]]
    found = produce(Stream(save(layers)), epoch=EPOCH, scratch=scratch, blobs=blobs)
    write_names(folder, found.manifest, [NAME])
    return ImageLayout(folder, found.manifest)


def test_a_whole_layout_is_what_was_written(layout: ImageLayout) -> None:
    found = verify_layout(layout.folder)
    assert found == layout
    assert found.rootfs.startswith("sha256:")
    assert len(found.layers()) == len(found.config()["rootfs"]["diff_ids"]) == 2
    index = json.loads((layout.folder / "index.json").read_text())
    (entry,) = index["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == NAME


def _blobs(layout: ImageLayout) -> list[Path]:
    document = layout.document()
    digests = [layout.manifest.digest, document["config"]["digest"]]
    return [layout.blob(d) for d in [*digests, *(layer.digest for layer in layout.layers())]]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_blob_is_found_whichever_it_is(
    layout: ImageLayout, number: int, damage: str
) -> None:
    path = _blobs(layout)[number]
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "cut":
        del data[-1]
    path.unlink() if damage == "remove" else path.write_bytes(data)
    with pytest.raises(TamperedError):
        verify_layout(layout.folder)


@pytest.mark.parametrize(
    "index",
    [
        "",
        "[]",
        '{"manifests": []}',
        '{"manifests": [{"mediaType": "x", "digest": "sha256:../../x", "size": 1}]}',
        '{"manifests": [{"mediaType": "x", "digest": "md5:00", "size": 1}]}',
    ],
)
def test_what_is_no_layout_of_one_image_is_refused(layout: ImageLayout, index: str) -> None:
    (layout.folder / "index.json").write_text(index)
    with pytest.raises(TamperedError, match="no image layout"):
        verify_layout(layout.folder)


def test_two_images_in_one_layout_are_refused(layout: ImageLayout) -> None:
    path = layout.folder / "index.json"
    index = json.loads(path.read_text())
    index["manifests"].append({**index["manifests"][0], "digest": "sha256:" + "0" * 64})
    path.write_text(json.dumps(index))
    with pytest.raises(TamperedError):
        open_layout(layout.folder)


def test_a_layer_named_outside_the_folder_is_refused(layout: ImageLayout) -> None:
    document = layout.document()
    document["layers"][0]["digest"] = "sha256:../../index.json"
    _replace_manifest(layout, document)
    with pytest.raises(TamperedError):
        verify_layout(layout.folder)


def test_an_image_of_somebody_else_has_no_rootfs_hash(layout: ImageLayout) -> None:
    document = layout.document()
    del document["annotations"]
    _replace_manifest(layout, document)
    with pytest.raises(TamperedError, match="of this builder"):
        verify_layout(layout.folder)


def _replace_manifest(layout: ImageLayout, document: dict[str, Any]) -> None:

    data = json.dumps(document).encode()
    manifest = describe(data, MANIFEST)
    layout.blob(manifest.digest).write_bytes(data)
    write_names(layout.folder, manifest, [NAME])


def test_the_archive_holds_the_image_under_the_names_asked_for(
    layout: ImageLayout, tmp_path: Path
) -> None:
    data = b"".join(archive(layout, ["a:1", "host.example/b:2"]))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(tmp_path / "out", filter="data")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest[0]["RepoTags"] == ["a:1", "host.example/b:2"]
    assert all((tmp_path / "out" / name).is_file() for name in manifest[0]["Layers"])
    index = json.loads((tmp_path / "out/index.json").read_text())
    assert [e["annotations"]["io.containerd.image.name"] for e in index["manifests"]] == [
        *("docker.io/library/a:1", "host.example/b:2")
    ]
    assert verify_layout(tmp_path / "out").manifest == layout.manifest
    shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ("ddtree:1", ["ddtree:1"]),
        ("ddtree", ["ddtree:latest"]),
        ("localhost:5000/a/b", ["localhost:5000/a/b:latest"]),
        ("localhost:5000/a/b:2", ["localhost:5000/a/b:2"]),
        ("sha256:" + "ab" * 32, []),
        ("ab" * 32, []),
        ("d4e775cace03", []),
        ("a/b@sha256:" + "ab" * 32, []),
        ("a/b:1@sha256:" + "ab" * 32, []),
    ],
)
def test_an_id_or_a_digest_is_no_name(reference: str, names: list[str]) -> None:
    assert names_of(reference) == names


def fake(image_id: str, answers: list[dict[str, Any]]) -> Engine:
    def load_image(chunks: Any, quiet: bool) -> list[dict[str, Any]]:
        assert b"".join(chunks)
        return answers

    client = SimpleNamespace(
        api=SimpleNamespace(load_image=load_image),
        images=SimpleNamespace(get=lambda _name: SimpleNamespace(id=image_id)),
    )
    return cast(Engine, SimpleNamespace(client=client))


def test_either_stores_id_is_accepted_and_no_other(layout: ImageLayout) -> None:
    config = layout.document()["config"]["digest"]
    for image_id in (config, layout.manifest.digest):
        assert load_layout(fake(image_id, []), layout, [NAME]) == image_id
    with pytest.raises(TamperedError):
        load_layout(fake("sha256:" + "1" * 64, []), layout, [NAME])


def test_what_the_engine_says_reaches_the_user(layout: ImageLayout) -> None:
    with pytest.raises(EngineFailedError, match="no space left"):
        load_layout(fake("", [{"error": "no space left on device"}]), layout, [NAME])
