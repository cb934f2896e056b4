from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.bundle.contents import SERVE, announce, contents
from builder.bundle.make import BundleResult, Signer, make_bundle
from builder.bundle.model import Entry
from builder.bundle.write import check_destination, write_bundle
from builder.errors import (
    BundleError,
    DiskSpaceError,
    ImageReferenceError,
    SigningError,
    TamperedError,
)
from builder.oci.model import ImageLayout
from builder.pins import Target, load_target
from builder.project import Project
from tests.builder.bundle.conftest import KeyPair
from tests.builder.bundle.small import BUILD_ID, EPOCH, NAME, SmallImage

Make = Callable[..., BundleResult]


@pytest.fixture
def make(project: Project, target: Target, layout: ImageLayout, evidence: dict[str, Path]) -> Make:
    def made(destination: Path, sign: Signer | None = None) -> BundleResult:
        return make_bundle(project, target, layout, evidence, destination, sign)

    return made


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_every_file_is_listed_and_the_list_is_signed(bundle: Path, key: KeyPair) -> None:
    files = tree(bundle)
    listed = {line[66:]: line[:64] for line in files["SHA256SUMS"].decode().splitlines()}
    assert set(listed) == set(files) - {"SHA256SUMS", "SHA256SUMS.sig"}
    assert list(listed) == sorted(listed)
    for name, digest in listed.items():
        assert hashlib.sha256(files[name]).hexdigest() == digest
    der = bundle.parent / "der"
    der.write_bytes(base64.b64decode(files["SHA256SUMS.sig"], validate=False))
    argv = ["openssl", "dgst", "-sha256", "-verify", str(key.public), "-signature", str(der)]
    subprocess.run([*argv, str(bundle / "SHA256SUMS")], check=True)


def test_the_layout_in_it_is_the_image(bundle: Path, layout: ImageLayout) -> None:
    inside = ImageLayout(bundle / "image", layout.manifest)
    assert inside.document() == layout.document()
    assert inside.config() == layout.config()
    index = json.loads((bundle / "image/index.json").read_text())
    assert index["manifests"] == [layout.manifest.document()]  # no name: given after the check
    (classic,) = json.loads((bundle / "image/manifest.json").read_text())
    assert not classic["RepoTags"]
    assert [name.rpartition("/")[2] for name in classic["Layers"]] == [
        layer.digest.removeprefix("sha256:") for layer in layout.layers()
    ]
    for name in (classic["Config"], *classic["Layers"]):
        path = bundle / "image" / name
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_what_serves_is_in_it(bundle: Path, project: Project, layout: ImageLayout) -> None:
    for name in SERVE:
        assert (bundle / "serve" / name).read_bytes() == (project.root / name).read_bytes()
    assert os.access(bundle / "serve/deploy/appliance.py", os.X_OK)
    assert os.access(bundle / "import.sh", os.X_OK)
    config = layout.document()["config"]["digest"]
    assert f"DDTREE_IMAGE={config}\n" in (bundle / "serve/env.example").read_text()


def test_the_conf_says_which_image(bundle: Path, layout: ImageLayout) -> None:
    lines = (bundle / "bundle.conf").read_text().splitlines()
    conf = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert conf == {
        "format": "1",
        "name": NAME,
        "target": "cu130",
        "build_id": BUILD_ID,
        "revision": "1" * 40,
        "manifest": layout.manifest.digest,
        "config": layout.document()["config"]["digest"],
        "rootfs": layout.rootfs,
        "unpacked_bytes": str(sum(len(layer) for layer in SmallImage().layers)),
    }


def test_two_bundles_of_one_image_differ_in_the_signature_only(
    make: Make, evidence: dict[str, Path], key: KeyPair, tmp_path: Path
) -> None:
    make(tmp_path / "a", key.sign)
    make(tmp_path / "b", key.sign)
    first, second = tree(tmp_path / "a"), tree(tmp_path / "b")
    assert {name for name in first if first[name] != second[name]} == {"SHA256SUMS.sig"}
    make(tmp_path / "a.tar")
    os.utime(evidence["provenance.json"])  # times of the sources do not matter
    make(tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_a_tar_holds_what_a_folder_holds(make: Make, tmp_path: Path) -> None:
    result = make(tmp_path / "x.tar")
    make(tmp_path / "folder")
    top = NAME.replace(":", "-")
    with tarfile.open(tmp_path / "x.tar") as tar:
        members = tar.getmembers()
        assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {
            (0, 0, "", "", EPOCH)
        }
        names = [m.name for m in members if m.isfile()]
        assert names == sorted(names)
        assert len(names) == result.files
        assert {m.name for m in members if m.mode & 0o111 and m.isfile()} == {
            f"{top}/import.sh",
            f"{top}/serve/deploy/appliance.py",
        }
        for m in members:  # each folder before what is in it
            assert m.name == top or str(Path(m.name).parent) in {
                n.name for n in members[: members.index(m)]
            }
    # And other programs than Python's read it.
    subprocess.run(["tar", "-xf", str(tmp_path / "x.tar"), "-C", str(tmp_path)], check=True)
    assert tree(tmp_path / top) == tree(tmp_path / "folder")


def test_the_result_says_what_was_made(make: Make, tmp_path: Path, key: KeyPair) -> None:
    result = make(tmp_path / "x", key.sign)
    files = tree(tmp_path / "x")
    assert result.signed
    assert result.files == len(files)
    assert result.size_bytes == sum(map(len, files.values()))
    assert result.largest_bytes == max(map(len, files.values()))
    assert "receipts/built.json" in result.evidence


# -- refusals ----------------------------------------------------------------------------------


def test_nothing_is_replaced(make: Make, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "x.tar").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    (tmp_path / "dangling.tar").symlink_to(tmp_path / "nowhere")
    for name in ("full", "file", "x.tar", "link", "dangling.tar", "empty"):
        with pytest.raises(BundleError, match=r"exists already|is not empty"):
            make(tmp_path / name)
    with pytest.raises(BundleError, match="full is not empty"):
        check_destination(tmp_path / "full")
    with pytest.raises(BundleError, match="no/such does not exist"):
        check_destination(tmp_path / "no/such/b")
    assert (tmp_path / "full/mine").read_text() == "x"
    assert (tmp_path / "x.tar").read_text() == "x"


@pytest.mark.parametrize("name", ["no/such/folder", "b.tar.gz", "b.tgz", "b.zip", "file/x.tar"])
def test_places_where_no_bundle_can_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError):
        check_destination(tmp_path / name)


def test_an_image_of_another_target(
    project: Project, target: Target, layout: ImageLayout, tmp_path: Path
) -> None:
    other = load_target(project, "cu128", stand_in=True)
    with pytest.raises(ImageReferenceError, match="its labels say cu130"):
        announce(other, layout)
    stranger = SmallImage(labels={}).make(tmp_path / "stranger")
    with pytest.raises(ImageReferenceError, match="nothing of ours"):
        announce(target, stranger)
    stand_in = SmallImage()
    stand_in.labels["dev.ddtree.stand-in"] = "true"
    with pytest.raises(ImageReferenceError, match="cu130-stand-in"):
        announce(target, stand_in.make(tmp_path / "stand-in"))


@pytest.mark.parametrize("key", ["version", "revision"])
@pytest.mark.parametrize("value", ["1$(touch /tmp/never)", "1 2", "1\nname=other:1", "1;x", ""])
def test_a_label_cannot_put_a_command_into_the_conf(
    target: Target, tmp_path: Path, key: str, value: str
) -> None:
    """README.txt has people read bundle.conf with their shell."""
    image = SmallImage()
    image.labels[f"org.opencontainers.image.{key}"] = value
    with pytest.raises(ImageReferenceError, match="label"):
        announce(target, image.make(tmp_path / "image"))


def test_a_damaged_layer_is_found_before_anything_is_written(
    make: Make, layout: ImageLayout, tmp_path: Path
) -> None:
    blob = layout.blob(layout.layers()[0].digest)
    data = blob.read_bytes()
    blob.write_bytes(b"x" + data[1:])
    with pytest.raises(TamperedError, match="cannot be unpacked"):
        make(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_layers_of_another_kind(target: Target, tmp_path: Path) -> None:
    gzip = SmallImage(media_type="application/vnd.oci.image.layer.v1.tar+gzip")
    with pytest.raises(BundleError, match=r"tar\+gzip"):
        announce(target, gzip.make(tmp_path / "gzip"))


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if "bundle" in p.name or "ddtree-new" in p.name)


@pytest.mark.parametrize("name", ["bundle", "bundle.tar"])
@pytest.mark.parametrize("change", [b"x", b"", b"longer than before"])
def test_a_blob_that_is_not_its_digest(
    project: Project,
    target: Target,
    layout: ImageLayout,
    tmp_path: Path,
    name: str,
    change: bytes,
) -> None:
    """Found while it is copied, at the last: nothing is left then."""
    entries = contents(project, announce(target, layout), layout, {})
    layout.blob(layout.layers()[1].digest).write_bytes(change)
    with pytest.raises(TamperedError, match="not what its digest says"):
        write_bundle(entries, tmp_path / name, top="t", epoch=0)
    blob = layout.blob(layout.layers()[0].digest)
    with blob.open("ab") as handle:
        handle.write(b"more")
    with pytest.raises(TamperedError):
        write_bundle([e for e in entries if e.source == blob], tmp_path / name, top="t", epoch=0)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", ["bundle", "bundle.tar"])
@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, DiskSpaceError), (errno.EFBIG, BundleError), (errno.EIO, OSError)],
)
def test_a_disk_that_fails_in_the_middle(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    error: type[Exception],
) -> None:
    real = Entry.chunks

    def broken(self: Entry) -> Iterator[bytes]:
        if self.path == "serve/compose.yaml":
            raise OSError(number, os.strerror(number))
        return real(self)

    monkeypatch.setattr(Entry, "chunks", broken)
    with pytest.raises(error):
        make(tmp_path / name)
    assert leftovers(tmp_path) == []


def test_what_a_killed_run_left_is_replaced(make: Make, tmp_path: Path) -> None:
    left = tmp_path / ".bundle.ddtree-new"
    left.mkdir()
    (left / "half").write_text("x")
    make(tmp_path / "bundle")
    assert leftovers(tmp_path) == ["bundle"]
    assert not (tmp_path / "bundle/half").exists()


def test_no_room_is_found_first(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 1000))

    def never(path: Path) -> bytes:
        raise AssertionError("nothing is to be signed")

    with pytest.raises(DiskSpaceError, match=r"0\.00 GiB are free"):
        make(tmp_path / "bundle", never)
    assert leftovers(tmp_path) == []


def test_a_key_that_cannot_sign_is_found_before_writing(make: Make, tmp_path: Path) -> None:
    def refuses(path: Path) -> bytes:
        assert path.name == "SHA256SUMS"
        assert b"  import.sh\n" in path.read_bytes()
        raise SigningError("the password is wrong", "set COSIGN_PASSWORD")

    with pytest.raises(SigningError):
        make(tmp_path / "bundle", refuses)
    assert leftovers(tmp_path) == []


def test_names_that_import_would_refuse(
    project: Project, target: Target, layout: ImageLayout, evidence: dict[str, Path]
) -> None:
    announced = announce(target, layout)
    for name in ("a b.json", "../x", "-x", "é"):
        with pytest.raises(BundleError, match=r"import\.sh does not take"):
            contents(project, announced, layout, {name: next(iter(evidence.values()))})


def test_a_layer_that_occurs_twice(target: Target, project: Project, tmp_path: Path) -> None:
    twice = SmallImage()
    twice.layers = [twice.layers[0], twice.layers[1], twice.layers[0]]
    layout = twice.make(tmp_path / "twice")
    result = make_bundle(project, target, layout, {}, tmp_path / "x.tar", None)
    assert result.announced.unpacked_bytes == sum(map(len, twice.layers))
    with tarfile.open(tmp_path / "x.tar") as tar:
        names = tar.getnames()
    assert len(names) == len(set(names))


def test_a_repository_that_lacks_a_file(
    project: Project, target: Target, layout: ImageLayout, tmp_path: Path
) -> None:
    copy = tmp_path / "repository"
    shutil.copytree(project.root / "deploy", copy / "deploy")
    with pytest.raises(FileNotFoundError, match=r"compose\.yaml"):
        contents(replace(project, root=copy), announce(target, layout), layout, {})
