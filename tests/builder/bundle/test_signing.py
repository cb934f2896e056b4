from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from builder.bundle.signing import check_with_openssl, signer
from builder.errors import SigningError
from builder.pins import load_shared
from builder.project import default_project
from builder.supply.keys import SigningKey
from tests.builder.bundle.conftest import KeyPair, make_key


def test_signatures_that_openssl_cannot_check(key: KeyPair, tmp_path: Path) -> None:
    """Found where the bundle is made, not on the host that has no network."""
    file = tmp_path / "SHA256SUMS"
    file.write_text("x\n")
    check_with_openssl(file, key.public, key.sign(file))
    other = make_key(tmp_path / "other")
    with pytest.raises(SigningError, match="openssl cannot verify"):
        check_with_openssl(file, other.public, key.sign(file))
    ed25519 = tmp_path / "ed25519.pub"
    private = tmp_path / "ed25519.key"
    for argv in (
        ["genpkey", "-algorithm", "ed25519", "-out", str(private)],
        ["pkey", "-in", str(private), "-pubout", "-out", str(ed25519)],
    ):
        subprocess.run(["openssl", *argv], check=True, capture_output=True)
    with pytest.raises(SigningError, match="openssl cannot verify"):
        check_with_openssl(file, ed25519, b"AAAA")


@pytest.mark.docker  # for Debian's cosign
def test_what_cosign_signs_openssl_verifies(
    host_key: tuple[SigningKey, Path], tmp_path: Path
) -> None:
    project = default_project()
    key, public = host_key
    file = tmp_path / "SHA256SUMS"
    file.write_text("x\n")
    signature = signer(project, load_shared(project), key)(file)
    check_with_openssl(file, public, signature)
    file.write_text("y\n")
    with pytest.raises(SigningError):
        check_with_openssl(file, public, signature)
    wrong = SigningKey(key.reference, "another password")
    with pytest.raises(SigningError):
        signer(project, load_shared(project), wrong)
