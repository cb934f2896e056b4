"""One reading of a file: hash, linkage, device code, and what looks like a secret."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from builder.inside.contents import inspect, record_digest
from tests.builder.inside.audit.corpus import AWS, KEY
from tests.builder.inside.tree import C10_CALL, Tree, fatbin


def test_the_hash_is_written_as_in_a_record(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"content")
    value = base64.urlsafe_b64encode(hashlib.sha256(b"content").digest()).decode().rstrip("=")
    assert inspect(path, "x").digest == record_digest(b"content") == f"sha256={value}"
    path.write_bytes(b"")
    assert inspect(path, "x").digest == record_digest(b"")


def test_an_elf_file_is_read_whole_at_once(tree: Tree) -> None:
    tree.library(
        "x.so",
        soname="libx.so.1",
        needed=["liba.so.1"],
        undefined=[C10_CALL, "plain_c"],
        defined=["own"],
        code=fatbin((2, 120, 0)),
        requires={"libc.so.6": "GLIBC_2.34"},
    )
    elf = inspect(tree.site / "x.so", "x.so").elf
    assert elf is not None
    assert elf.soname == "libx.so.1"
    assert elf.needed == ("liba.so.1", "libc.so.6")
    assert elf.requires == (("libc.so.6", "GLIBC_2.34"),)
    assert [code.name for code in elf.code] == ["sm_120"]
    # Of hundreds of thousands of symbols only those of torch are kept.
    assert elf.symbols.undefined == {C10_CALL}
    assert elf.symbols.defined == frozenset()


def test_versions_that_a_library_defines(tree: Tree) -> None:
    tree.library("y.so", provides=["GLIBC_2.2.5", "GLIBC_2.36"])
    elf = inspect(tree.site / "y.so", "y.so").elf
    assert elf is not None
    assert {"GLIBC_2.2.5", "GLIBC_2.36"} <= set(elf.provides)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (KEY, "a private key"),
        (KEY.replace("PRIVATE", "RSA PRIVATE"), "a private key"),
        (KEY.replace("PRIVATE", "ENCRYPTED SIGSTORE PRIVATE"), "a private key"),
        (KEY.replace("\n", "\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\n", 1), "a private key"),
        (KEY.replace("\n", "\r\n"), "a private key"),
        ('{"private_key": "' + KEY.replace("\n", "\\n") + '"}', "a private key"),
        (f"aws_access_key_id = {AWS}", "an AWS access key"),
        # What code and documentation say of keys.
        ('if line == "-----BEGIN PRIVATE KEY-----":', ""),
        ("-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----", ""),
        ("-----BEGIN PUBLIC KEY-----\n" + "QUJD" * 16, ""),
        ("AKIA" + "IOSFODNN7EXAMPLE", ""),
        ("hf_hub_download(repo)", ""),
    ],
)
def test_what_looks_like_a_secret(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "x"
    path.write_text(f"before\n{text}\nafter\n")
    assert inspect(path, "x").secret == what


def test_what_cannot_be_read_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        inspect(tmp_path / "absent", "absent")
