"""A fingerprint stands for the digest: it is equal where the digest is, and differs where it does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from builder.oci.fingerprint import examine
from builder.oci.produce import produce
from tests.builder.oci.archives import CONFIG, EPOCH, Member, Stream, save

BASE = (Member("a/"), Member("a/one", b"1"), Member("a/two", b"2"), Member("l", target="a"))
TOP = (Member("a/"), Member("a/three", link="a/one"), Member("a/old", b"o", mtime=EPOCH - 9))


def both(tmp_path: Path, *layers: tuple[Member, ...], **config: Any) -> tuple[str, str]:
    """(digest, fingerprint)"""
    data = save(list(layers), config={**CONFIG, **config})
    tmp_path.mkdir(exist_ok=True)
    digest = produce(Stream(data), epoch=EPOCH, scratch=tmp_path, threads=1).manifest.digest
    return digest, examine(Stream(data), epoch=EPOCH)[0]


def replaced(member: Member) -> tuple[Member, ...]:
    return tuple(member if old.path == member.path else old for old in BASE)


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param((replaced(Member("a/two", b"3")), TOP), id="content"),
        pytest.param((replaced(Member("a/two", b"2", mode=0o600)), TOP), id="mode"),
        pytest.param((replaced(Member("a/two", b"2", owner=(7, 0))), TOP), id="owner"),
        pytest.param((replaced(Member("l", target="b")), TOP), id="link"),
        pytest.param((replaced(Member("a/two", b"2", mtime=EPOCH - 7)), TOP), id="older time"),
        pytest.param((replaced(Member("a/two", b"2", xattrs={"user.x": "1"})), TOP), id="xattr"),
        pytest.param((BASE, (*TOP, Member("a/new", b""))), id="new file"),
        pytest.param(((*BASE, *TOP[1:]), TOP[:1]), id="another layer"),
    ],
)  # fmt: skip
def test_whatever_changes_the_digest_changes_it(
    layers: tuple[tuple[Member, ...], ...], tmp_path: Path
) -> None:
    first, second = both(tmp_path / "1", BASE, TOP), both(tmp_path / "2", *layers)
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_the_configuration_counts(tmp_path: Path) -> None:
    first, second = both(tmp_path / "1", BASE, TOP), both(tmp_path / "2", BASE, TOP, User="7")
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_what_the_digest_does_not_see_does_not_count(tmp_path: Path) -> None:
    """Times of the build, order, owners' names, the flavour of the archive."""
    first = both(tmp_path / "1", BASE, TOP)
    data = save([BASE, TOP], config=CONFIG, flavour="oci", packing="gzip", noise=random.Random(3))  # noqa: S311
    assert examine(Stream(data), epoch=EPOCH)[0] == first[1]
