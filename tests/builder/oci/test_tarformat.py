"""Canonical headers, read back by another implementation."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builder.oci.entries import FILE, SYMLINK, Entry, read_entry
from builder.oci.tarformat import END, header, padding

SURROGATES: Any = ("Cs",)
NAME = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=SURROGATES), min_size=1, max_size=40
).filter(lambda text: text not in (".", ".."))
PATH = st.lists(NAME, min_size=1, max_size=8).map("/".join)


def read_back(data: bytes) -> tuple[tarfile.TarInfo, Entry]:
    with tarfile.open(fileobj=io.BytesIO(data + END)) as tar:
        (member,) = tar.getmembers()
        return member, read_entry(member, None)


@given(
    path=PATH,
    mode=st.integers(0, 0o7777),
    uid=st.integers(0, 2**32),
    gid=st.integers(0, 2**21),
    mtime=st.integers(0, 2**34),
    xattrs=st.dictionaries(
        st.sampled_from(("security.capability", "user.a")), st.binary(max_size=30)
    ),
)
def test_an_entry_comes_back_as_it_was(
    path: str, mode: int, uid: int, gid: int, mtime: int, xattrs: dict[str, bytes]
) -> None:
    values = {key: value.decode("utf-8", "surrogateescape") for key, value in xattrs.items()}
    entry = Entry(path, FILE, mode, uid, gid, mtime, 3, "", xattrs=dict(sorted(values.items())))
    data = header(entry, path=path, kind=FILE, target="", mtime=mtime)
    assert len(data) % 512 == 0
    _, found = read_back(data + b"abc" + bytes(padding(3)))
    assert found == entry


@given(
    target=st.text(
        st.characters(exclude_characters="\0", exclude_categories=SURROGATES), min_size=1
    )
)
def test_a_link_comes_back_as_it_was(target: str) -> None:
    entry = Entry("l", SYMLINK, target=target)
    _, found = read_back(header(entry, path="l", kind=SYMLINK, target=target, mtime=0))
    assert found.target == target


def test_a_name_that_is_not_utf8_comes_back() -> None:
    name = b"latin-\xe9".decode("utf-8", "surrogateescape")
    entry = Entry(name, FILE)
    _, found = read_back(header(entry, path=name, kind=FILE, target="", mtime=0))
    assert found.path == name


def test_a_file_beyond_eight_gibibytes_keeps_its_size() -> None:
    entry = Entry("big", FILE, size=9 * 2**30)
    data = header(entry, path="big", kind=FILE, target="", mtime=0)
    assert tarfile.TarInfo.frombuf(data[-512:], "utf-8", "strict").size == 0
    assert b"size=9663676416\n" in data


def test_a_plain_entry_is_one_block_without_anything_of_a_host() -> None:
    data = header(Entry("etc/a", FILE, 0o644), path="etc/a", kind=FILE, target="", mtime=7)
    assert len(data) == 512
    member, _ = read_back(data)
    assert (member.uname, member.gname, member.pax_headers, member.mtime) == ("", "", {}, 7)
