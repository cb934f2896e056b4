from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from builder.bootstrap import Recipe, installed, local_reference, write_image

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
STATUS = """\
Package: zlib1g
Status: install ok installed
Version: 1:1.2.13
Description: a library
 Version: not this one

Package: removed
Status: deinstall ok config-files
Version: 9

Package: apt
Status: install ok installed
Version: 2.6.1
"""


def test_the_package_list_is_what_is_installed() -> None:
    assert installed(STATUS) == ["apt=2.6.1", "zlib1g=1:1.2.13"]


def test_another_recipe_has_another_key() -> None:
    recipes = [
        Recipe("bookworm", ("a", "b"), 1),
        Recipe("trixie", ("a", "b"), 1),
        Recipe("bookworm", ("a",), 1),
        Recipe("bookworm", ("a", "b"), 2),
    ]
    assert len({recipe.key() for recipe in recipes}) == len(recipes)
    assert Recipe("bookworm", ("b", "a"), 1).key() == recipes[0].key()


def layer(path: Path, content: bytes) -> Path:
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("./etc/hello")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return path


def test_the_image_id_follows_from_the_content_alone(tmp_path: Path) -> None:
    first = layer(tmp_path / "a.tar", b"x")
    ids = [write_image(first, tmp_path / f"{n}.tar", "ddtree-base:x", 1788134400) for n in "12"]
    assert ids[0] == ids[1]
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    other = write_image(layer(tmp_path / "b.tar", b"y"), tmp_path / "3.tar", "ddtree-base:x", 1)
    assert other != ids[0]


def test_the_archive_is_one_that_docker_load_reads(tmp_path: Path) -> None:
    source = layer(tmp_path / "a.tar", b"x")
    image_id = write_image(source, tmp_path / "i.tar", "ddtree-base:bookworm-1", 1788134400)
    with tarfile.open(tmp_path / "i.tar") as tar:

        def read(name: str) -> bytes:
            member = tar.extractfile(name)
            assert member is not None
            return member.read()

        (entry,) = json.loads(read("manifest.json"))
        assert entry["RepoTags"] == ["ddtree-base:bookworm-1"]
        config = read(entry["Config"])
        assert f"sha256:{hashlib.sha256(config).hexdigest()}" == image_id
        (diff,) = json.loads(config)["rootfs"]["diff_ids"]
        assert diff == f"sha256:{hashlib.sha256(read(entry['Layers'][0])).hexdigest()}"
        assert json.loads(config)["created"] == "2026-08-31T00:00:00Z"


def test_a_reference_carries_suite_and_digest() -> None:
    assert local_reference("bookworm", "sha256:" + "ab" * 32) == "ddtree-base:bookworm-abababababab"
