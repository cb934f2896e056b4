"""The exported image is a function of the files: of nothing else, and of all of them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import TamperedError
from builder.oci.produce import Produced, produce
from tests.builder.oci.archives import (
    CONFIG,
    EPOCH,
    Flavour,
    Member,
    Packing,
    Stream,
    save,
    unpack,
)

BASE = (
    Member("bin/"),
    Member("bin/run", b"#!run\n" * 300, mode=0o755, xattrs={"security.capability": "\x01\x00a"}),
    Member("bin/run2", link="bin/run"),
    Member("etc/"),
    Member("etc/old", b"old", mtime=EPOCH - 100),
    Member("etc/gone", b"gone"),
    Member("lib", target="usr/lib"),
    Member("var/"),
    Member("var/empty/"),
    Member("var/x/"),
    Member("var/x/1", b"1"),
    Member("var-x", b"sorts between var and var/x by plain bytes"),
)
TOP = (
    Member("etc/"),
    Member("etc/.wh.gone"),
    Member("etc/new", b"new" * 5000, owner=(10001, 0)),
    Member("var/"),
    Member("var/x/"),
    Member("var/x/.wh..wh..opq"),
    Member("var/x/2", b"2"),
)


def made(data: bytes, *, threads: int = 1, blobs: Path | None = None, size: int = 4096) -> Produced:
    with TemporaryDirectory() as scratch:
        found = produce(
            Stream(data, size), epoch=EPOCH, scratch=Path(scratch), blobs=blobs, threads=threads
        )
        assert not list(Path(scratch).iterdir())
    return found


REFERENCE = made(save([BASE, TOP]))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    flavour=st.sampled_from(("docker", "oci")),
    packing=st.sampled_from(("", "gzip", "zstd")),
    threads=st.integers(1, 4),
    size=st.integers(100, 20_000),
)
def test_the_digest_knows_no_time_order_flavour_packing_or_thread(
    seed: int, flavour: Flavour, packing: Packing, threads: int, size: int
) -> None:
    noise = random.Random(seed)  # noqa: S311
    data = save([BASE, TOP], flavour=flavour, packing=packing, noise=noise)
    found = made(data, threads=threads, size=size)
    assert found.manifest == REFERENCE.manifest
    assert found.rootfs == REFERENCE.rootfs


@pytest.mark.parametrize(
    "changed",
    [
        Member(
            "bin/run2", b"#!run\n" * 300, mode=0o755, xattrs={"security.capability": "\x01\x00a"}
        ),
        Member("etc/old", b"OLD", mtime=EPOCH - 100),
        Member("etc/old", b"old", mode=0o600, mtime=EPOCH - 100),
        Member("etc/old", b"old", owner=(1, 0), mtime=EPOCH - 100),
        Member("lib", target="usr/lib64"),
        Member("bin/run", b"#!run\n" * 300, mode=0o755),
    ],
)
def test_any_difference_of_a_file_is_another_image_and_another_rootfs(changed: Member) -> None:
    base = [changed if member.path == changed.path else member for member in BASE]
    found = made(save([base, TOP]))
    assert found.rootfs != REFERENCE.rootfs
    assert found.manifest != REFERENCE.manifest


def test_an_older_time_is_kept_and_changes_the_image_but_not_the_rootfs() -> None:
    """Debian's byte code names the time of its source."""
    base = [
        Member("etc/old", b"old", mtime=EPOCH - 7) if member.path == "etc/old" else member
        for member in BASE
    ]
    found = made(save([base, TOP]))
    assert found.rootfs == REFERENCE.rootfs
    assert found.manifest != REFERENCE.manifest


def test_layers_hold_what_is_there_in_the_end(tmp_path: Path) -> None:
    found = made(save([BASE, TOP]), blobs=tmp_path)
    first, second = (
        unpack((tmp_path / layer.digest.removeprefix("sha256:")).read_bytes())
        for layer in found.layers
    )
    assert [member.name for member, _ in first] == [
        *("bin", "bin/run", "bin/run2", "etc", "etc/old", "lib"),
        *("var", "var/empty", "var-x"),
    ]
    assert [member.name for member, _ in second] == [
        *("etc", "etc/new", "var", "var/x", "var/x/2"),
    ]
    entries = {member.name: (member, content) for member, content in first + second}
    run, link = entries["bin/run"][0], entries["bin/run2"][0]
    assert run.pax_headers["SCHILY.xattr.security.capability"] == "\x01\x00a"
    assert (link.type, link.linkname) == (tarfile.LNKTYPE, "bin/run")
    assert entries["etc/new"][1] == b"new" * 5000
    assert (entries["etc/new"][0].uid, entries["etc/new"][0].gid) == (10001, 0)
    assert entries["etc/old"][0].mtime == EPOCH - 100
    assert {m.mtime for m, _ in first + second if m.name != "etc/old"} == {EPOCH}
    assert {m.uname + m.gname for m, _ in first + second} == {""}
    assert all(set(m.pax_headers) <= {"SCHILY.xattr.security.capability"} for m, _ in first)


def test_the_configuration_keeps_what_starts_a_container_and_nothing_of_the_build_host() -> None:
    config = REFERENCE.config
    assert config["config"] == CONFIG
    assert config["created"] == "2023-11-14T22:13:20Z"
    assert {entry["created"] for entry in config["history"]} == {config["created"]}
    assert [entry["created_by"] for entry in config["history"]] == ["step 0", "step 1", "CMD"]
    filled = [entry for entry in config["history"] if not entry.get("empty_layer")]
    assert len(filled) == len(config["rootfs"]["diff_ids"]) == len(REFERENCE.layers)
    assert "docker_version" not in json.dumps(config)


def test_a_layer_of_which_nothing_is_left_is_an_empty_step() -> None:
    found = made(save([BASE, [Member("etc/"), Member("etc/.wh.gone")], TOP]))
    assert [e.get("empty_layer", False) for e in found.config["history"]] == [
        *(False, True, False, True)
    ]
    assert found.rootfs == REFERENCE.rootfs
    assert found.layers == REFERENCE.layers


def test_a_hard_link_across_layers_ends_in_the_layer_of_its_first_name(tmp_path: Path) -> None:
    found = made(save([BASE, [Member("etc/also", link="etc/old")]]), blobs=tmp_path)
    assert len(found.layers) == 1
    names = unpack((tmp_path / found.layers[0].digest[7:]).read_bytes())
    also = next(m for m, _ in names if m.name == "etc/old")
    assert (also.type, also.linkname) == (tarfile.LNKTYPE, "etc/also")


def test_equal_layers_are_one_member_of_the_stream() -> None:
    """Old engines link them to each other, new ones name one blob twice."""
    layers = [[Member("a", b"a")], [Member("b", b"b")], [Member("a", b"a")]]
    digests = {made(save(layers, flavour=flavour)).manifest.digest for flavour in ("docker", "oci")}
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["[", "{", "[x]"])
def test_a_layer_whose_first_name_looks_like_json_is_a_layer(name: str) -> None:
    assert list(made(save([[Member(name, b"1")]])).files) == [name]


NAMES = r"""
import io, sys, tarfile
from builder.oci.entries import read_entry
from builder.oci.saved import members
out = io.BytesIO()
with tarfile.open(fileobj=out, mode="w", format=int(sys.argv[1]), encoding="utf-8") as tar:
    tar.addfile(tarfile.TarInfo("caf\u00e9"))
    tar.addfile(tarfile.TarInfo("\u00e9" * 120))
out.seek(0)
for member, source in members(out):
    print(ascii(read_entry(member, source.extractfile(member)).path))
"""


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_do_not_depend_on_the_locale(form: int) -> None:
    script = NAMES.replace("* 120", "* 20") if form == tarfile.USTAR_FORMAT else NAMES
    found = {
        subprocess.run(
            [sys.executable, "-c", script, str(form)],
            env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for locale in ("C", "C.UTF-8")
    }
    assert len(found) == 1
    assert r"'caf\xe9'" in found.pop()


def test_the_stream_is_read_to_its_end() -> None:
    """Else the engine keeps what it gathered for the answer until somebody closes it."""
    ended = []

    class Padded:
        def __iter__(self) -> Iterator[bytes]:
            yield save([BASE])
            yield bytes(5 << 20)
            ended.append(True)

    with TemporaryDirectory() as scratch:
        produce(Padded(), epoch=EPOCH, scratch=Path(scratch), threads=1)
    assert ended == [True, True]


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_cut_stream_is_refused(keep: float) -> None:
    data = save([BASE, TOP]).rstrip(b"\0")
    with pytest.raises(TamperedError):
        made(data[: int(len(data) * keep)])


@pytest.mark.parametrize(
    "layers",
    [
        [[Member("../etc/passwd", b"x")]],
        [[Member("file", b"x"), Member("file/below", b"x")]],
        [[Member("one", link="absent")]],
    ],
)
def test_layers_that_make_no_file_system_are_refused(layers: list[list[Member]]) -> None:
    with pytest.raises(TamperedError):
        made(save(layers))


def test_an_archive_that_is_no_image_is_refused() -> None:
    with pytest.raises(TamperedError, match="manifest"):
        made(save([BASE]).replace(b"manifest.json", b"manifesto.jso"))
